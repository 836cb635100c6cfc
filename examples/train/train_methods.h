/* train_methods.h - what train.c finds out about codecs without training: bits and relative error
   of each on one real gradient, as a table and as a picture. */

#ifndef TRAIN_METHODS_H
#define TRAIN_METHODS_H

#include "codecs.h"
#include "gcomp.h"
#include "train_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_POINTS 80
#define TRAIN_DRAWS 8 /* of a random codec, to see whether their mean is the gradient */

typedef struct train_point {
    char codec[48];
    int family;
    int unbiased; /* 1: the mean of many draws is p */
    double bits;  /* of an element, without the header of 32 bytes */
    double error; /* |p - C(p)| / |p| */
    int best;     /* 1: on the frontier, no codec sends fewer bits for a smaller error */
} train_point;

typedef struct train_points {
    train_point at[TRAIN_POINTS];
    size_t count;
    size_t rows, cols; /* of the gradient */
} train_points;

/* Name and colour of each family of codecs.h. */
static const char *const train_families[FAMILIES][2] = {
    {"small floats", "#1f77b4"}, {"integers", "#2ca02c"},     {"levels at random", "#9467bd"},
    {"signs", "#d62728"},        {"largest only", "#e08000"}, {"low rank", "#8c564b"}};

/* |x - part * y|^2 */
static inline double train_distance(const float *x, const float *y, double part, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((double)x[i] - part * (double)y[i]) * ((double)x[i] - part * (double)y[i]);
    return sum;
}

/* Encodes and decodes with several keys. memory: room for n floats twice, then payload and scratch.
   Returns 0, or 1 after saying what is wrong. */
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
        in.scale = 1;
        gcomp_exec exec = {0};
        size_t length = 0;
        in.grad = gradient;
        in.rows = n;
        in.key = gcomp_key_make(1, (uint64_t)draws, 0, 0);
        exec.scratch = scratch;
        exec.scratch_bytes = GCOMP_SCRATCH(n);
        result = gcomp_encode(&codec, &in, &exec, payload, GCOMP_BOUND(n), &length);
        if (result == GCOMP_OK) result = gcomp_decode(payload, length, decoded, GCOMP_F32, n,
                                                      &exec);
        if (result != GCOMP_OK) break;
        first = draws ? first : train_distance(gradient, decoded, 1, n);
        squares += draws ? train_distance(gradient, decoded, 1, n) : first;
        for (size_t i = 0; i < n; i++) sum[i] += decoded[i];
        draws++;
        p->bits = 8.0 * (double)(length - 32) / (double)n;
        if (draws == 2 && squares <= 2 * first && squares >= 2 * first) break; /* not random */
    }
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s: %s\n", p->codec, gcomp_result_string(result));
        return 1;
    }
    squares /= draws;
    p->error = sqrt(squares / norm);
    /* Independent errors without bias: the mean of 8 has an eighth of the square. With bias, the
       bias stays. */
    p->unbiased = train_distance(gradient, sum, 1.0 / draws, n) < 1.05 * squares / draws;
    return 0;
}

/* The same for methods that have no payload: two steps of one worker, so that the second starts
   warm. */
static inline int train_measure_sums(train_point *p, const float *gradient, const train_points *all,
                                     float *memory)
{
    size_t n = all->rows * all->cols;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp_statistics sent = {0};
    void *grads[1] = {memory};
    gcomp *gc = NULL;
    int error;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    desc.codec = p->codec;
    desc.no_error_feedback = 1;
    tensor.name = "gradient";
    tensor.rows = all->rows;
    tensor.cols = all->cols;
    error = gcomp_open(&gc, &desc) != GCOMP_OK || gcomp_add_tensor(gc, &tensor) != GCOMP_OK;
    for (int step = 0; !error && step < 2; step++) {
        memcpy(memory, gradient, n * sizeof *memory);
        error = gcomp_exchange(gc, grads, NULL) != GCOMP_OK;
    }
    error = error || gcomp_stats(gc, &sent) != GCOMP_OK;
    if (error) fprintf(stderr, "%s: %s\n", p->codec, gc ? gcomp_error(gc) : "cannot be opened");
    gcomp_close(gc);
    /* without the frame of each step */
    p->bits = 8.0 * ((double)sent.bytes_out / 2 - 64) / (double)n;
    p->error = sqrt(train_distance(gradient, memory, 1, n) /
                    train_distance(gradient, gradient, 0, n));
    return error;
}

/* Measures one codec, as the next point. Returns 0, or 1 after saying what is wrong. */
static inline int train_measure_one(train_points *all, const char *text, int family,
                                    const float *gradient, float *memory)
{
    train_point *p = &all->at[all->count];
    if (all->count++ == TRAIN_POINTS) {
        fprintf(stderr, "more than %d codecs\n", TRAIN_POINTS);
        return 1;
    }
    snprintf(p->codec, sizeof p->codec, "%s", text);
    p->family = family;
    if (codec_has_payload(text)) return train_measure(p, gradient, all->rows * all->cols, memory);
    return train_measure_sums(p, gradient, all, memory);
}

/* Measures all codecs of the picture. Returns 0, or 1 after saying what is wrong. */
static inline int train_measure_all(train_points *all, const float *gradient)
{
    size_t n = all->rows * all->cols;
    float *memory = (float *)malloc(2 * n * sizeof(float) + GCOMP_BOUND(n) + GCOMP_SCRATCH(n));
    double size = sqrt(train_distance(gradient, gradient, 0, n) / (double)n);
    int error = memory == NULL || !(size > 0);
    if (error) fprintf(stderr, "%s\n", memory ? "the gradient is zero" : "no memory");
    for (size_t c = 0; !error && c < ALL_CODECS; c++)
        if (codec_list[c].picture)
            error = train_measure_one(all, codec_list[c].text, codec_list[c].family, gradient,
                                      memory);
    /* in units of the gradient: no fixed threshold fits all */
    for (double t = 1; !error && t <= 4; t *= 4) {
        char text[40];
        snprintf(text, sizeof text, "twobit:threshold=%.1g", t * size);
        error = train_measure_one(all, text, SIGNS_ONLY, gradient, memory);
    }
    free(memory);
    return error;
}

static inline int train_by_bits(const void *a, const void *b)
{
    const train_point *const *x = (const train_point *const *)a, *const *y = (const train_point *const *)b;
    if ((*x)->bits != (*y)->bits) return (*x)->bits < (*y)->bits ? -1 : 1;
    return ((*x)->error > (*y)->error) - ((*x)->error < (*y)->error);
}

/* Finds the frontier: with more and more bits, the codecs of which each has a smaller error than all
   before. Returns how many they are; at[] are these, and then the others. */
static inline size_t train_frontier(train_points *all, const train_point **at)
{
    size_t best = 0;
    for (size_t i = 0; i < all->count; i++) at[i] = &all->at[i];
    qsort(at, all->count, sizeof *at, train_by_bits);
    for (size_t i = 0; i < all->count; i++) {
        const train_point *p = at[i];
        all->at[p - all->at].best = best == 0 || p->error < at[best - 1]->error;
        if (!p->best) continue;
        at[i] = at[best];
        at[best++] = p;
    }
    return best;
}

static inline void train_methods_table(train_points *all)
{
    const train_point *at[TRAIN_POINTS];
    const size_t best = train_frontier(all, at);
    printf("\n%-32s %8s %12s   %-8s  %s\n", "codec", "bits", "|p-C|/|p|", "unbiased", "frontier");
    for (size_t i = 0; i < all->count; i++)
        printf("%-32s %8.3f %12.3g   %-8s  %s\n", all->at[i].codec, all->at[i].bits, all->at[i].error,
               all->at[i].unbiased ? "yes" : "-", all->at[i].best ? "yes" : "-");
    printf("\n"
           "bits of an element without the header of 32 bytes; unbiased: measured, of %d draws; frontier: no other\n"
           "codec has a smaller error for as many bits, or fewer, on this gradient\n\n"
           "the frontier, from few bits to many:",
           TRAIN_DRAWS);
    for (size_t i = 0; i < best; i++) printf("%s %s", i % 6 ? "," : i ? ",\n   " : "\n   ", at[i]->codec);
    printf("\n\n");
}
#endif /* TRAIN_METHODS_H */
