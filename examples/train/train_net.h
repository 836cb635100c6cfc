/* train_net.h - the network of train.c: a multi-layer perceptron with ReLU and softmax, matrix
   products by CBLAS.

   All parameters lie back to back in one array, and their gradients in another of the same form:
   weight matrices of inputs x outputs, each followed by its bias. */

#ifndef TRAIN_NET_H
#define TRAIN_NET_H

#include "train_data.h"

#include <cblas.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_LAYERS 3

typedef struct train_net {
    size_t width[TRAIN_LAYERS + 1]; /* inputs, hidden, hidden, classes */
    size_t batch;
    size_t count;                /* parameters */
    float *parameters;           /* [count] */
    float *gradients;            /* [count] */
    float *momentum;             /* [count] */
    float *weight[TRAIN_LAYERS]; /* into parameters */
    float *bias[TRAIN_LAYERS];
    float *weight_gradient[TRAIN_LAYERS]; /* into gradients */
    float *bias_gradient[TRAIN_LAYERS];
    float *x[TRAIN_LAYERS + 1]; /* batch x width: the input, then what each layer gives */
    /* batch x widest hidden or output layer: d loss / d layer, in turn */
    float *delta[2];
    unsigned *label; /* [batch] */
} train_net;

static inline void train_net_close(train_net *net)
{
    free(net->parameters);
    free(net->gradients);
    free(net->momentum);
    for (size_t l = 0; l <= TRAIN_LAYERS; l++) free(net->x[l]);
    free(net->delta[0]);
    free(net->delta[1]);
    free(net->label);
    memset(net, 0, sizeof *net);
}

static inline float *train_floats(size_t count) { return (float *)calloc(count, sizeof(float)); }

/* A normal number of mean 0 and variance 1, a function of its arguments (Box, Muller 1958). */
static inline float train_normal(uint64_t seed, uint64_t index)
{
    uint64_t bits = train_mix(train_mix(seed) ^ index);
    float u = ((float)(bits >> 40) + 0.5f) * (1.0f / 16777216.0f);
    float v = (float)(bits >> 16 & 0xffffff) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
}

/* Sets the weights to random numbers for ReLU (He et al. 2015), biases and momentum to zero. All
   workers get the same, since it is a function of the seed. active: how many inputs of a sample are
   not zero. Of one-hot text these are few, so the weights may be larger. */
static inline void train_net_init(train_net *net, uint64_t seed, size_t active)
{
    memset(net->parameters, 0, net->count * sizeof(float));
    memset(net->momentum, 0, net->count * sizeof(float));
    for (size_t l = 0; l < TRAIN_LAYERS; l++) {
        float deviation = sqrtf(2.0f / (float)(l ? net->width[l] : active));
        for (size_t i = 0; i < net->width[l] * net->width[l + 1]; i++)
            net->weight[l][i] = deviation * train_normal(seed + l, i);
    }
}

/* Returns 0, or 1 if memory is short. */
static inline int train_net_open(train_net *net, const size_t width[TRAIN_LAYERS + 1], size_t batch)
{
    size_t at = 0, widest = 0;
    int short_of_memory;
    memset(net, 0, sizeof *net);
    net->batch = batch;
    for (size_t l = 0; l <= TRAIN_LAYERS; l++) {
        net->width[l] = width[l];
        net->count += l ? width[l] * (width[l - 1] + 1) : 0;
        if (l && width[l] > widest) widest = width[l];
        net->x[l] = train_floats(batch * width[l]);
    }
    net->parameters = train_floats(net->count);
    net->gradients = train_floats(net->count);
    net->momentum = train_floats(net->count);
    net->delta[0] = train_floats(batch * widest);
    net->delta[1] = train_floats(batch * widest);
    net->label = (unsigned *)calloc(batch, sizeof *net->label);
    short_of_memory = !net->parameters || !net->gradients || !net->momentum || !net->label;
    short_of_memory |= !net->delta[0] || !net->delta[1];
    for (size_t l = 0; l <= TRAIN_LAYERS; l++) short_of_memory |= !net->x[l];
    if (short_of_memory) {
        train_net_close(net);
        return 1;
    }
    for (size_t l = 0; l < TRAIN_LAYERS; l++) {
        net->weight[l] = net->parameters + at;
        net->weight_gradient[l] = net->gradients + at;
        at += width[l] * width[l + 1];
        net->bias[l] = net->parameters + at;
        net->bias_gradient[l] = net->gradients + at;
        at += width[l + 1];
    }
    return 0;
}

/* Fills the batch in x[0] and label with samples drawn with replacement, a function of the
   arguments alone. number: of the batch; each step of each worker has its own. */
static inline void train_draw(train_net *net, const train_data *data, uint64_t seed,
                              uint64_t number)
{
    for (size_t s = 0; s < net->batch; s++) {
        const uint64_t mixed = train_mix(train_mix(seed + 1000) + number * net->batch + s);
        net->label[s] = train_sample(data, (size_t)(mixed % data->count),
                                     net->x[0] + s * data->inputs);
    }
}

/* c[m x n] <- a * b, row-major; a and b may be transposed. */
static inline void train_product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, size_t m, size_t n,
                                 size_t k, const float *a, const float *b, float *c)
{
    int lda = (int)(ta == CblasNoTrans ? k : m), ldb = (int)(tb == CblasNoTrans ? n : k);
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1.0f, a, lda, b, ldb, 0.0f, c,
                (int)n);
}

/* From x[0] to the scores in x[TRAIN_LAYERS]. */
static inline void train_forward(train_net *net)
{
    for (size_t l = 0; l < TRAIN_LAYERS; l++) {
        size_t in = net->width[l], out = net->width[l + 1];
        float *y = net->x[l + 1];
        train_product(CblasNoTrans, CblasNoTrans, net->batch, out, in, net->x[l], net->weight[l],
                      y);
        for (size_t s = 0; s < net->batch; s++)
            for (size_t j = 0; j < out; j++) {
                float value = y[s * out + j] + net->bias[l][j];
                y[s * out + j] = l + 1 < TRAIN_LAYERS && value < 0 ? 0 : value;
            }
    }
}

/* Returns the mean cross-entropy of the batch. delta[batch x classes] <- its derivative with
   respect to the scores: (softmax - one-hot) / batch. */
static inline float train_loss(const train_net *net, float *delta)
{
    size_t classes = net->width[TRAIN_LAYERS];
    double loss = 0;
    for (size_t s = 0; s < net->batch; s++) {
        const float *score = net->x[TRAIN_LAYERS] + s * classes;
        float *d = delta + s * classes, largest = score[0], sum = 0;
        for (size_t c = 1; c < classes; c++) largest = score[c] > largest ? score[c] : largest;
        for (size_t c = 0; c < classes; c++) {
            d[c] = expf(score[c] - largest);
            sum += d[c];
        }
        loss += (double)(logf(sum) + largest - score[net->label[s]]);
        for (size_t c = 0; c < classes; c++)
            d[c] = (d[c] / sum - (c == net->label[s] ? 1.0f : 0.0f)) / (float)net->batch;
    }
    return (float)(loss / (double)net->batch);
}

/* One forward and backward pass over the batch in x[0] and label. Fills gradients and returns the
   mean loss. */
static inline float train_gradients(train_net *net)
{
    float *delta = net->delta[0], *next = net->delta[1], loss;
    train_forward(net);
    loss = train_loss(net, delta);
    for (size_t l = TRAIN_LAYERS; l-- > 0;) {
        size_t in = net->width[l], out = net->width[l + 1];
        float *swap = delta;
        train_product(CblasTrans, CblasNoTrans, in, out, net->batch, net->x[l], delta,
                      net->weight_gradient[l]);
        memset(net->bias_gradient[l], 0, out * sizeof(float));
        for (size_t s = 0; s < net->batch; s++)
            for (size_t j = 0; j < out; j++) net->bias_gradient[l][j] += delta[s * out + j];
        if (l == 0) break;
        train_product(CblasNoTrans, CblasTrans, net->batch, in, out, delta, net->weight[l], next);
        for (size_t i = 0; i < net->batch * in; i++)
            next[i] = net->x[l][i] > 0 ? next[i] : 0; /* ReLU */
        delta = next;
        next = swap;
    }
    return loss;
}

/* Stochastic gradient descent with momentum, one number for each layer's weights and one for its
   biases. It works on the mean gradient, after the exchange: momentum itself is not exchanged. */
static inline void train_update(train_net *net, float learning_rate,
                                const float momentum[2 * TRAIN_LAYERS])
{
    for (size_t t = 0; t < 2 * TRAIN_LAYERS; t++) {
        size_t l = t / 2;
        size_t first = (size_t)((t % 2 ? net->bias[l] : net->weight[l]) - net->parameters);
        size_t count = net->width[l + 1] * (t % 2 ? 1 : net->width[l]);
        for (size_t i = first; i < first + count; i++) {
            net->momentum[i] = momentum[t] * net->momentum[i] + net->gradients[i];
            net->parameters[i] -= learning_rate * net->momentum[i];
        }
    }
}

/* A digest of all parameters' bits (FNV-1a of words). */
static inline uint64_t train_digest(const float *parameters, size_t count)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &parameters[i], sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

/* How many of the first `count` samples in x[0] does the network get right? */
static inline size_t train_correct(train_net *net, size_t count)
{
    size_t classes = net->width[TRAIN_LAYERS], correct = 0;
    train_forward(net);
    for (size_t s = 0; s < count; s++) {
        const float *score = net->x[TRAIN_LAYERS] + s * classes;
        size_t best = 0;
        for (size_t c = 1; c < classes; c++) best = score[c] > score[best] ? c : best;
        correct += best == net->label[s];
    }
    return correct;
}

#endif /* TRAIN_NET_H */
