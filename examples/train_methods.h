/* train_methods.h - what train.c finds out about codecs without training: bits and relative error of each on one
   real gradient, as a table and as a picture. */

#ifndef TRAIN_METHODS_H
#define TRAIN_METHODS_H

#include "gcomp.h"
#include "train_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_POINTS 64
#define TRAIN_DRAWS 8 /* of a random codec, to see whether their mean is the gradient */

typedef struct train_point {
    char codec[48];
    int family;
    int unbiased; /* 1: the mean of many draws is p */
    double bits;  /* of an element, without the header of 32 bytes */
    double error; /* |p - C(p)| / |p| */
} train_point;

typedef struct train_points {
    train_point at[TRAIN_POINTS];
    size_t count;
    size_t rows, cols; /* of the gradient */
} train_points;

static const char *const train_families[][2] = {
    {"small floats", "#1f77b4"}, {"integers", "#2ca02c"}, {"levels at random", "#9467bd"},
    {"signs", "#d62728"},        {"largest only", "#e08000"}, {"low rank", "#8c564b"}};

static const struct {
    const char *codec;
    int family;
} train_codecs[] = {{"fp16", 0}, {"bf16", 0}, {"fp8", 0}, {"fp8:format=e5m2", 0}, {"mx", 0}, {"mx:format=e4m3", 0},
    {"mx:format=e5m2", 0}, {"mx:format=int8", 0}, {"mx:format=e2m3", 0}, {"mx:format=e3m2", 0}, {"int", 1},
    {"int:rounding=stochastic", 1}, {"int:range=affine", 1}, {"int:bits=4", 1}, {"int:bits=4,rounding=stochastic", 1},
    {"int:bits=2", 1}, {"qsgd:levels=127", 2}, {"qsgd", 2}, {"qsgd:code=auto", 2}, {"qsgd:levels=1", 2},
    {"qsgd:levels=1,code=auto", 2}, {"natural", 2}, {"naturaldither", 2}, {"terngrad", 2}, {"eden", 2}, {"eden:bits=2", 2},
    {"eden:bits=3", 2}, {"eden:bits=4", 2}, {"sign", 3}, {"sign:block=tensor", 3}, {"signnorm", 3}, {"onebit", 3},
    {"twobit:threshold=auto", 3}, {"threshold1", 3}, {"vote", 3}, {"topk:density=0.1", 4}, {"topk:density=0.1+int:bits=4", 4},
    {"topk", 4}, {"topk+fp16", 4}, {"topk+int:bits=4", 4}, {"topk+sign", 4}, {"topk:density=0.001", 4},
    {"topk:density=0.001+int:bits=4", 4}, {"wangni", 4}, {"adacomp", 4}, {"adacomp+onebit:block=tensor", 4},
    {"blocktopk", 4}};

static const char *const train_sketches[] = {"sketch", "sketch:candidates=64"};

/* |x - part * y|^2 */
static inline double train_distance(const float *x, const float *y, double part, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - part * (double)y[i]) * ((double)x[i] - part * (double)y[i]);
    return sum;
}

/* Encodes and decodes with several keys. memory: room for n floats twice, then payload and scratch. Returns 0, or 1 after
   saying what is wrong. */
static inline int train_measure(train_point *p, const float *gradient, size_t n, float *memory)
{
    float *decoded = memory, *sum = memory + n;
    unsigned char *payload = (unsigned char *)(sum + n), *scratch = payload + GCOMP_BOUND(n);
    double norm = train_distance(gradient, gradient, 0, n), squares = 0, first = 0;
    int draws = 0;
    gcomp_codec codec;
    gcomp_result result = gcomp_codec_parse(&codec, p->codec, NULL, 0);
    memset(sum, 0, n * sizeof *sum);
    while (result == GCOMP_OK && draws < TRAIN_DRAWS) {
        gcomp_input in = {0};
        gcomp_exec exec = {0};
        size_t length = 0;
        in.grad = gradient;
        in.rows = n;
        in.key = gcomp_key_make(1, (uint64_t)draws, 0, 0);
        exec.scratch = scratch;
        exec.scratch_bytes = GCOMP_SCRATCH(n);
        result = gcomp_encode(&codec, &in, &exec, payload, GCOMP_BOUND(n), &length);
        if (result == GCOMP_OK)
            result = gcomp_decode(payload, length, decoded, n, &exec);
        if (result != GCOMP_OK)
            break;
        first = draws ? first : train_distance(gradient, decoded, 1, n);
        squares += draws ? train_distance(gradient, decoded, 1, n) : first;
        for (size_t i = 0; i < n; i++)
            sum[i] += decoded[i];
        draws++;
        p->bits = 8.0 * (double)(length - 32) / (double)n;
        if (draws == 2 && squares <= 2 * first && squares >= 2 * first)
            break; /* not random */
    }
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s: %s\n", p->codec, gcomp_result_string(result));
        return 1;
    }
    squares /= draws;
    p->error = sqrt(squares / norm);
    /* Independent errors without bias: the mean of 8 has an eighth of the square. With bias, the bias stays. */
    p->unbiased = train_distance(gradient, sum, 1.0 / draws, n) < 1.05 * squares / draws;
    return 0;
}

/* The same for methods that have no payload: two steps of one worker, so that the second starts warm. */
static inline int train_measure_sums(train_point *p, const float *gradient, const train_points *all, float *memory)
{
    size_t n = all->rows * all->cols;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp_statistics sent = {0};
    gcomp *gc = NULL;
    int error;
    desc.codec = p->codec;
    desc.no_error_feedback = 1;
    tensor.name = "gradient";
    tensor.rows = all->rows;
    tensor.cols = all->cols;
    error = gcomp_open(&gc, &desc) != GCOMP_OK || gcomp_add_tensor(gc, &tensor) != GCOMP_OK;
    for (int step = 0; !error && step < 2; step++) {
        memcpy(memory, gradient, n * sizeof *memory);
        error = gcomp_exchange(gc, &memory, NULL) != GCOMP_OK;
    }
    error = error || gcomp_stats(gc, &sent) != GCOMP_OK;
    if (error)
        fprintf(stderr, "%s: %s\n", p->codec, gc ? gcomp_error(gc) : "cannot be opened");
    gcomp_close(gc);
    p->bits = 8.0 * ((double)sent.bytes_out / 2 - 64) / (double)n; /* without the frame of each step */
    p->error = sqrt(train_distance(gradient, memory, 1, n) / train_distance(gradient, gradient, 0, n));
    return error;
}

/* Measures all codecs. Returns 0, or 1 after saying what is wrong. */
static inline int train_measure_all(train_points *all, const float *gradient)
{
    size_t n = all->rows * all->cols, codecs = sizeof train_codecs / sizeof *train_codecs;
    float *memory = (float *)malloc(2 * n * sizeof(float) + GCOMP_BOUND(n) + GCOMP_SCRATCH(n));
    double size = sqrt(train_distance(gradient, gradient, 0, n) / (double)n);
    int error = memory == NULL || !(size > 0);
    if (error)
        fprintf(stderr, "%s\n", memory ? "the gradient is zero" : "no memory");
    for (size_t i = 0; !error && i < codecs; i++) {
        train_point *p = &all->at[all->count++];
        snprintf(p->codec, sizeof p->codec, "%s", train_codecs[i].codec);
        p->family = train_codecs[i].family;
        error = train_measure(p, gradient, n, memory);
    }
    for (double t = 1; !error && t <= 4; t *= 4) { /* in units of the gradient: no fixed threshold fits all */
        train_point *p = &all->at[all->count++];
        snprintf(p->codec, sizeof p->codec, "twobit:threshold=%.1g", t * size);
        p->family = 3;
        error = train_measure(p, gradient, n, memory);
    }
    for (size_t rank = 1; !error && rank <= 16; rank *= 4) {
        train_point *p = &all->at[all->count++];
        snprintf(p->codec, sizeof p->codec, "powersgd:rank=%zu", rank);
        p->family = 5;
        error = train_measure_sums(p, gradient, all, memory);
    }
    for (size_t i = 0; !error && i < sizeof train_sketches / sizeof *train_sketches; i++) {
        train_point *p = &all->at[all->count++];
        snprintf(p->codec, sizeof p->codec, "%s", train_sketches[i]);
        p->family = 4;
        error = train_measure_sums(p, gradient, all, memory);
    }
    free(memory);
    return error;
}

static inline void train_methods_table(const train_points *all)
{
    printf("\n%-32s %8s %12s   %s\n", "codec", "bits", "|p-C|/|p|", "unbiased");
    for (size_t i = 0; i < all->count; i++)
        printf("%-32s %8.3f %12.3g   %s\n", all->at[i].codec, all->at[i].bits, all->at[i].error,
               all->at[i].unbiased ? "yes" : "-");
    printf("\nbits of an element without the header of 32 bytes; unbiased: measured, of %d draws\n\n", TRAIN_DRAWS);
}
#endif /* TRAIN_METHODS_H */
