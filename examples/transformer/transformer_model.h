/* transformer_model.h - the model of transformer.c: a GPT-2 without biases (Radford et al. 2019),
   which learns the next character of a text. Forward and backward pass by hand, products by CBLAS.

   Letters of the comments: B sequences of a batch, T characters of a sequence, R = B T, C channels,
   H heads, V characters that occur. A matrix of weights is (outputs, inputs): y = x W^T.

       x = wte[character] + wpe[place]                      the embeddings, (R, C)
       each layer: x += attention(norm(x)) proj^T           causal, softmax over earlier places
                   x += gelu(norm(x) fc^T) out^T            a hidden layer of 4 C
       scores = norm(x) wte^T                               the embedding again: it is tied

   All weights lie back to back in one array, and their gradients in another of the same form.
   TRANSFORMER_DOUBLE makes all numbers double: the test of the gradients needs that. */

#ifndef TRANSFORMER_MODEL_H
#define TRANSFORMER_MODEL_H

#include "../train/train_net.h" /* train_normal */

#ifdef TRANSFORMER_DOUBLE
typedef double transformer_real;
#define transformer_gemm cblas_dgemm
#else
typedef float transformer_real;
#define transformer_gemm cblas_sgemm
#endif

enum {
    TRANSFORMER_LAYERS = 16, /* there are fewer */
    TRANSFORMER_TENSORS = 4 + 8 * TRANSFORMER_LAYERS
};

typedef struct transformer_shape {
    size_t layers, channels, heads, context, batch, characters;
} transformer_shape;

typedef struct transformer_tensor {
    char name[24];
    size_t rows, cols; /* cols 0: a vector */
    size_t begin, count;
} transformer_tensor;

/* Tensors of a layer, in this order; behind all layers the last norm's two. */
enum { NORM1, SHIFT1, QKV, PROJ, NORM2, SHIFT2, FC, OUT, TRANSFORMER_OF_LAYER };

typedef struct transformer_norm { /* what a norm keeps for the backward pass */
    transformer_real *unit, *y;   /* (R, C): of mean 0 and variance 1; scaled and shifted */
    transformer_real *inverse;    /* (R): 1 / deviation */
} transformer_norm;

typedef struct transformer_layer {
    transformer_norm norm[2];
    transformer_real *qkv;     /* (R, 3 C): queries, keys, values */
    transformer_real *weight;  /* (B, H, T, T): how much of each value */
    transformer_real *mixed;   /* (R, C): values mixed by weight */
    transformer_real *slope;   /* (R, 4 C): of gelu */
    transformer_real *hidden;  /* (R, 4 C): behind gelu */
} transformer_layer;

typedef struct transformer {
    transformer_shape shape;
    size_t tensors, count;
    transformer_tensor tensor[TRANSFORMER_TENSORS]; /* wte, wpe, layers, last norm */
    transformer_real *weights, *gradients;          /* [count] */
    transformer_layer layer[TRANSFORMER_LAYERS];
    transformer_norm last;
    transformer_real *x, *dx, *dy; /* (R, C) */
    transformer_real *scores;      /* (R, V): then probabilities */
    transformer_real *wide;        /* (R, 4 C): gradients of hidden, or of qkv */
    transformer_real *square;      /* (T, T) */
    transformer_real *memory;      /* all arrays above */
    size_t correct;                /* characters of the last batch that had the highest score */
} transformer;

static inline void transformer_close(transformer *m)
{
    free(m->memory);
    memset(m, 0, sizeof *m);
}

static inline void transformer_add(transformer *m, const char *name, size_t layer, size_t rows,
                                   size_t cols)
{
    transformer_tensor *t = &m->tensor[m->tensors++];
    if (layer == TRANSFORMER_LAYERS) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "h%zu.%s", layer, name);
    t->rows = rows;
    t->cols = cols;
    t->begin = m->count;
    t->count = rows * (cols ? cols : 1);
    m->count += t->count;
}

/* The number of a tensor of a layer; of NORM1 and SHIFT1 of the last norm, layer = layers. */
static inline size_t transformer_at(size_t layer, size_t which)
{
    return 2 + layer * TRANSFORMER_OF_LAYER + which;
}

/* Sets an array's place in the memory. Without a memory it only counts. */
static inline void transformer_place(transformer *m, size_t *at, transformer_real **array,
                                     size_t count)
{
    *array = m->memory ? m->memory + *at : NULL;
    *at += (count + 15) / 16 * 16;
}

static inline size_t transformer_place_all(transformer *m)
{
    const transformer_shape *s = &m->shape;
    const size_t r = s->batch * s->context, rc = r * s->channels;
    size_t at = 0;
    transformer_place(m, &at, &m->weights, m->count);
    transformer_place(m, &at, &m->gradients, m->count);
    for (size_t l = 0; l <= s->layers; l++) {
        transformer_layer *layer = &m->layer[l];
        for (size_t n = 0; n < 2; n++) {
            transformer_norm *norm = l < s->layers ? &layer->norm[n] : &m->last;
            transformer_place(m, &at, &norm->unit, rc);
            transformer_place(m, &at, &norm->y, rc);
            transformer_place(m, &at, &norm->inverse, r);
        }
        if (l == s->layers) break;
        transformer_place(m, &at, &layer->qkv, 3 * rc);
        transformer_place(m, &at, &layer->weight, r * s->heads * s->context);
        transformer_place(m, &at, &layer->mixed, rc);
        transformer_place(m, &at, &layer->slope, 4 * rc);
        transformer_place(m, &at, &layer->hidden, 4 * rc);
    }
    transformer_place(m, &at, &m->x, rc);
    transformer_place(m, &at, &m->dx, rc);
    transformer_place(m, &at, &m->dy, rc);
    transformer_place(m, &at, &m->scores, r * s->characters);
    transformer_place(m, &at, &m->wide, 4 * rc);
    transformer_place(m, &at, &m->square, s->context * s->context);
    return at;
}

/* Weights as GPT-2's: deviation .02, smaller where a layer adds to x; norms begin as 1 and 0. */
static inline void transformer_init(transformer *m, uint64_t seed)
{
    const float small = 0.02f / sqrtf(2.0f * (float)m->shape.layers);
    for (size_t t = 0; t < m->tensors; t++) {
        const transformer_tensor *of = &m->tensor[t];
        const size_t which = t < 2 ? QKV : (t - 2) % TRANSFORMER_OF_LAYER;
        const float deviation = which == PROJ || which == OUT ? small : 0.02f;
        for (size_t i = of->begin; i < of->begin + of->count; i++)
            m->weights[i] = of->cols                    ? deviation * train_normal(seed, i)
                : which == NORM1 || which == NORM2 ? 1
                                                   : 0;
    }
}

/* Returns 0, or 1 where a number of the shape is wrong or memory is short. */
static inline int transformer_open(transformer *m, const transformer_shape *shape, uint64_t seed)
{
    static const char *const names[] = {"norm1", "shift1", "qkv", "proj",
                                        "norm2", "shift2", "fc",  "out"};
    const size_t c = shape->channels;
    const size_t rows[] = {c, c, 3 * c, c, c, c, 4 * c, c}, cols[] = {0, 0, c, c, 0, 0, c, 4 * c};
    memset(m, 0, sizeof *m);
    m->shape = *shape;
    if (!shape->layers || shape->layers >= TRANSFORMER_LAYERS || !shape->heads || !c ||
        c % shape->heads || !shape->context || !shape->batch || !shape->characters)
        return 1;
    transformer_add(m, "wte", TRANSFORMER_LAYERS, shape->characters, c);
    transformer_add(m, "wpe", TRANSFORMER_LAYERS, shape->context, c);
    for (size_t l = 0; l < shape->layers; l++)
        for (size_t k = 0; k < TRANSFORMER_OF_LAYER; k++)
            transformer_add(m, names[k], l, rows[k], cols[k]);
    transformer_add(m, "norm", TRANSFORMER_LAYERS, c, 0);
    transformer_add(m, "shift", TRANSFORMER_LAYERS, c, 0);
    m->memory = (transformer_real *)calloc(transformer_place_all(m), sizeof *m->memory);
    if (!m->memory) return 1;
    transformer_place_all(m);
    transformer_init(m, seed);
    return 0;
}

/* ---------------- parts: y (R, out) = x (R, in) W^T, and backwards */

static inline transformer_real *transformer_weights(const transformer *m, size_t tensor)
{
    return m->weights + m->tensor[tensor].begin;
}

static inline transformer_real *transformer_gradient(const transformer *m, size_t tensor)
{
    return m->gradients + m->tensor[tensor].begin;
}

/* beta 1: it is added to y. */
static inline void transformer_linear(const transformer *m, size_t tensor,
                                      const transformer_real *x, transformer_real beta,
                                      transformer_real *y)
{
    const int r = (int)(m->shape.batch * m->shape.context), out = (int)m->tensor[tensor].rows;
    const int in = (int)m->tensor[tensor].cols;
    transformer_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, r, out, in, 1, x, in,
                     transformer_weights(m, tensor), in, beta, y, out);
}

/* From dy the gradient of W, and dx. */
static inline void transformer_linear_back(const transformer *m, size_t tensor,
                                           const transformer_real *x, const transformer_real *dy,
                                           transformer_real *dx)
{
    const int r = (int)(m->shape.batch * m->shape.context), out = (int)m->tensor[tensor].rows;
    const int in = (int)m->tensor[tensor].cols;
    transformer_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, r, 1, dy, out, x, in, 0,
                     transformer_gradient(m, tensor), in);
    transformer_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, r, in, out, 1, dy, out,
                     transformer_weights(m, tensor), in, 0, dx, in);
}

/* tensor: the norm's factors; its shifts are the next tensor. */
static inline void transformer_normalise(const transformer *m, size_t tensor,
                                         const transformer_norm *n)
{
    const size_t c = m->shape.channels, r = m->shape.batch * m->shape.context;
    const transformer_real *factor = transformer_weights(m, tensor), *shift = factor + c;
    for (size_t i = 0; i < r; i++) {
        const transformer_real *x = m->x + i * c;
        transformer_real *unit = n->unit + i * c, *y = n->y + i * c, mean = 0, square = 0;
        for (size_t j = 0; j < c; j++) mean += x[j];
        mean /= (transformer_real)c;
        for (size_t j = 0; j < c; j++) square += (x[j] - mean) * (x[j] - mean);
        n->inverse[i] = 1 / (transformer_real)sqrt((double)(square / (transformer_real)c) + 1e-5);
        for (size_t j = 0; j < c; j++) {
            unit[j] = (x[j] - mean) * n->inverse[i];
            y[j] = unit[j] * factor[j] + shift[j];
        }
    }
}

/* dx += what dy, the gradient of n->y, gives. */
static inline void transformer_normalise_back(const transformer *m, size_t tensor,
                                              const transformer_norm *n)
{
    const size_t c = m->shape.channels, r = m->shape.batch * m->shape.context;
    const transformer_real *factor = transformer_weights(m, tensor);
    transformer_real *dfactor = transformer_gradient(m, tensor), *dshift = dfactor + c;
    memset(dfactor, 0, 2 * c * sizeof *dfactor);
    for (size_t i = 0; i < r; i++) {
        const transformer_real *dy = m->dy + i * c, *unit = n->unit + i * c;
        transformer_real *dx = m->dx + i * c, mean = 0, along = 0;
        for (size_t j = 0; j < c; j++) {
            const transformer_real d = dy[j] * factor[j];
            dfactor[j] += dy[j] * unit[j];
            dshift[j] += dy[j];
            mean += d;
            along += d * unit[j];
        }
        mean /= (transformer_real)c;
        along /= (transformer_real)c;
        for (size_t j = 0; j < c; j++)
            dx[j] += n->inverse[i] * (dy[j] * factor[j] - mean - unit[j] * along);
    }
}

/* ---------------- attention of each head:
   weight = softmax(q k^T / sqrt(C / H)), mixed = weight v */

static inline void transformer_attention(const transformer *m, const transformer_layer *l)
{
    const transformer_shape *s = &m->shape;
    const size_t size = s->channels / s->heads, t = s->context, wide = 3 * s->channels;
    const transformer_real scale = 1 / (transformer_real)sqrt((double)size);
    for (size_t bh = 0; bh < s->batch * s->heads; bh++) {
        const size_t first = bh / s->heads * t, at = bh % s->heads * size;
        const transformer_real *q = l->qkv + first * wide + at;
        transformer_real *w = l->weight + bh * t * t;
        transformer_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)t, (int)t, (int)size, scale,
                         q, (int)wide, q + s->channels, (int)wide, 0, w, (int)t);
        for (size_t i = 0; i < t; i++) { /* a place sees itself and what is before it */
            transformer_real *row = w + i * t, most = row[0], sum = 0;
            for (size_t j = 1; j <= i; j++) most = row[j] > most ? row[j] : most;
            for (size_t j = 0; j <= i; j++) {
                row[j] = sizeof *row == 4 ? (transformer_real)expf((float)(row[j] - most))
                                          : (transformer_real)exp((double)(row[j] - most));
                sum += row[j];
            }
            for (size_t j = 0; j <= i; j++) row[j] /= sum;
            for (size_t j = i + 1; j < t; j++) row[j] = 0;
        }
        transformer_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)t, (int)size, (int)t, 1, w,
                         (int)t, q + 2 * s->channels, (int)wide, 0,
                         l->mixed + first * s->channels + at, (int)s->channels);
    }
}

/* From dy, the gradient of l->mixed, that of l->qkv: wide. */
static inline void transformer_attention_back(const transformer *m, const transformer_layer *l)
{
    const transformer_shape *s = &m->shape;
    const size_t size = s->channels / s->heads, t = s->context, c = s->channels, wide = 3 * c;
    const transformer_real scale = 1 / (transformer_real)sqrt((double)size);
    const int ti = (int)t, si = (int)size, ci = (int)c, wi = (int)wide;
    for (size_t bh = 0; bh < s->batch * s->heads; bh++) {
        const size_t first = bh / s->heads * t, at = bh % s->heads * size;
        const transformer_real *q = l->qkv + first * wide + at, *dy = m->dy + first * c + at;
        const transformer_real *w = l->weight + bh * t * t;
        transformer_real *dq = m->wide + first * wide + at, *dw = m->square;
        transformer_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, ti, ti, si, 1, dy, ci, q + 2 * c,
                         wi, 0, dw, ti);
        transformer_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, ti, si, ti, 1, w, ti, dy, ci, 0,
                         dq + 2 * c, wi);
        for (size_t i = 0; i < t; i++) {
            transformer_real along = 0;
            for (size_t j = 0; j <= i; j++) along += dw[i * t + j] * w[i * t + j];
            for (size_t j = 0; j < t; j++) dw[i * t + j] = w[i * t + j] * (dw[i * t + j] - along);
        }
        transformer_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ti, si, ti, scale, dw, ti,
                         q + c, wi, 0, dq, wi);
        transformer_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, ti, si, ti, scale, dw, ti, q, wi,
                         0, dq + c, wi);
    }
}

/* ---------------- the whole */

/* hidden <- gelu(hidden), as GPT-2's by tanh, and its slope. */
static inline void transformer_gelu(const transformer *m, const transformer_layer *l)
{
    const size_t count = m->shape.batch * m->shape.context * 4 * m->shape.channels;
    const transformer_real a = (transformer_real)0.7978845608028654, b = (transformer_real)0.044715;
    for (size_t i = 0; i < count; i++) {
        const transformer_real x = l->hidden[i], u = -2 * a * x * (1 + b * x * x);
        const transformer_real e = sizeof x == 4 ? (transformer_real)expf((float)u)
                                                 : (transformer_real)exp((double)u);
        const transformer_real half = 1 / (1 + e); /* (1 + tanh) / 2 */
        l->hidden[i] = x * half;
        l->slope[i] = half + x * half * (1 - half) * 2 * a * (1 + 3 * b * x * x);
    }
}

/* The mean loss of a batch: in[R] characters, out[R] those that follow them. */
static inline double transformer_loss(transformer *m, const unsigned char *in,
                                      const unsigned char *out)
{
    const transformer_shape *s = &m->shape;
    const size_t r = s->batch * s->context, c = s->channels, v = s->characters;
    const transformer_real *wte = transformer_weights(m, 0), *wpe = transformer_weights(m, 1);
    double loss = 0;
    for (size_t i = 0; i < r * c; i++)
        m->x[i] = wte[in[i / c] * c + i % c] + wpe[i / c % s->context * c + i % c];
    for (size_t i = 0; i < s->layers; i++) {
        const transformer_layer *l = &m->layer[i];
        transformer_normalise(m, transformer_at(i, NORM1), &l->norm[0]);
        transformer_linear(m, transformer_at(i, QKV), l->norm[0].y, 0, l->qkv);
        transformer_attention(m, l);
        transformer_linear(m, transformer_at(i, PROJ), l->mixed, 1, m->x);
        transformer_normalise(m, transformer_at(i, NORM2), &l->norm[1]);
        transformer_linear(m, transformer_at(i, FC), l->norm[1].y, 0, l->hidden);
        transformer_gelu(m, l);
        transformer_linear(m, transformer_at(i, OUT), l->hidden, 1, m->x);
    }
    transformer_normalise(m, transformer_at(s->layers, NORM1), &m->last);
    transformer_linear(m, 0, m->last.y, 0, m->scores);
    m->correct = 0;
    for (size_t i = 0; i < r; i++) { /* scores become probabilities */
        transformer_real *p = m->scores + i * v, most = p[0], sum = 0;
        for (size_t j = 1; j < v; j++) most = p[j] > most ? p[j] : most;
        m->correct += p[out[i]] == most;
        for (size_t j = 0; j < v; j++) sum += p[j] = (transformer_real)exp((double)(p[j] - most));
        for (size_t j = 0; j < v; j++) p[j] /= sum;
        loss -= log((double)p[out[i]] + 1e-30);
    }
    return loss / (double)r;
}

/* Fills gradients, behind transformer_loss of the same batch. */
static inline void transformer_backward(transformer *m, const unsigned char *in,
                                        const unsigned char *out)
{
    const transformer_shape *s = &m->shape;
    const size_t r = s->batch * s->context, c = s->channels, v = s->characters;
    transformer_real *wte = transformer_gradient(m, 0), *wpe = transformer_gradient(m, 1);
    for (size_t i = 0; i < r; i++) m->scores[i * v + out[i]] -= 1;
    for (size_t i = 0; i < r * v; i++) m->scores[i] /= (transformer_real)r;
    transformer_linear_back(m, 0, m->last.y, m->scores, m->dy);
    memset(m->dx, 0, r * c * sizeof *m->dx);
    transformer_normalise_back(m, transformer_at(s->layers, NORM1), &m->last);
    for (size_t i = s->layers; i-- > 0;) {
        const transformer_layer *l = &m->layer[i];
        transformer_linear_back(m, transformer_at(i, OUT), l->hidden, m->dx, m->wide);
        for (size_t k = 0; k < 4 * r * c; k++) m->wide[k] *= l->slope[k];
        transformer_linear_back(m, transformer_at(i, FC), l->norm[1].y, m->wide, m->dy);
        transformer_normalise_back(m, transformer_at(i, NORM2), &l->norm[1]);
        transformer_linear_back(m, transformer_at(i, PROJ), l->mixed, m->dx, m->dy);
        transformer_attention_back(m, l);
        transformer_linear_back(m, transformer_at(i, QKV), l->norm[0].y, m->wide, m->dy);
        transformer_normalise_back(m, transformer_at(i, NORM1), &l->norm[0]);
    }
    memset(wpe, 0, s->context * c * sizeof *wpe);
    for (size_t i = 0; i < r * c; i++) {
        wte[in[i / c] * c + i % c] += m->dx[i];
        wpe[i / c % s->context * c + i % c] += m->dx[i];
    }
}

#endif /* TRANSFORMER_MODEL_H */
