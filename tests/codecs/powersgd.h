/* What tests of powersgd share: groups of workers in lock-step, matrices, and plain products. */

#ifndef POWERSGD_H
#define POWERSGD_H

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, QUEUE_MAX = 16, TENSORS_MAX = 64, FRAME_BYTES = 64 };

/* ---------------- workers in lock-step, over a transport that never fails */

typedef struct group {
    size_t world, count;
    gcomp_tensor tensor[TENSORS_MAX];
    size_t n[TENSORS_MAX];
    gcomp *gc[WORLD_MAX];
    float *grad[WORLD_MAX][TENSORS_MAX];
} group;

static inline void group_open(group *g, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        if (base) desc = *base;
        if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            CHECK(gcomp_add_tensor(g->gc[w], &tensors[t]) == GCOMP_OK);
            g->n[t] = tensor_elements(g->gc[w], t);
            g->tensor[t] = tensors[t];
            g->grad[w][t] = (float *)calloc(g->n[t], sizeof(float));
        }
    }
}

static inline void group_close(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

static inline void carry_out(const gcomp_request *request, size_t world)
{
    if (request[0].kind == GCOMP_ALLGATHER) {
        for (size_t w = 0; w < world; w++)
            for (size_t s = 0; s < world; s++)
                memcpy((char *)request[w].recv + s * request[w].stride, request[s].send, request[s].bytes[s]);
        return;
    }
    for (size_t w = 1; w < world; w++)
        for (size_t i = 0; i < request[0].count; i++) ((float *)request[0].recv)[i] += ((const float *)request[w].recv)[i];
    for (size_t w = 1; w < world; w++) memcpy(request[w].recv, request[0].recv, 4 * request[0].count);
}

static inline gcomp_result group_step(group *g)
{
    gcomp_result result = GCOMP_OK;
    for (size_t w = 0; w < g->world; w++) {
        if (gcomp_step_begin(g->gc[w], NULL)) return GCOMP_WRONG_STATE;
        for (size_t t = 0; t < g->count; t++)
            if (gcomp_step_ready(g->gc[w], t, g->grad[w][t])) return GCOMP_WRONG_STATE;
    }
    for (;;) {
        gcomp_request request[WORLD_MAX] = {{0}};
        for (size_t w = 0; w < g->world; w++) {
            gcomp_result mine = gcomp_step_next(g->gc[w], &request[w]);
            if (mine) result = mine;
        }
        if (result) return result;
        for (size_t w = 1; w < g->world; w++)
            if (request[w].kind != request[0].kind || request[w].count != request[0].count) return GCOMP_WRONG_STATE;
        if (request[0].kind == GCOMP_DONE) break;
        if (request[0].kind == GCOMP_WAIT) return GCOMP_WRONG_STATE;
        carry_out(request, g->world);
        for (size_t w = 0; w < g->world; w++) {
            gcomp_result mine = gcomp_step_done(g->gc[w], request[w].id, 0);
            if (mine) result = mine;
        }
        if (result) return result;
    }
    for (size_t w = 0; w < g->world; w++)
        if (gcomp_step_commit(g->gc[w])) return GCOMP_WRONG_STATE;
    return GCOMP_OK;
}

/* ---------------- matrices */

/* Uniform in [-1, 1). */
static inline float noise(uint64_t seed, size_t i)
{
    return (float)((int32_t)(mix(mix(seed) + i) >> 40) - 8388608) / 8388608.0f;
}

static inline void fill(float *m, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) m[i] = noise(seed, i);
}

/* A matrix of rank r: sum of r outer products. */
static inline void low_rank(float *m, size_t rows, size_t cols, size_t r, uint64_t seed, double scale)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < r; k++)
                sum += (double)noise(seed + 2 * k, i) * (double)noise(seed + 2 * k + 1, j) / (double)(k + 1);
            m[i * cols + j] = (float)(scale * sum);
        }
}

static inline double norm(const float *m, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)m[i] * (double)m[i];
    return sqrt(sum);
}

static inline double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

static inline gcomp_desc no_feedback(void)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.no_error_feedback = 1;
    return desc;
}

static inline gcomp_tensor matrix(size_t rows, size_t cols, size_t stack, const char *codec)
{
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "m";
    tensor.rows = rows;
    tensor.cols = cols;
    tensor.stack = stack;
    tensor.codec = codec;
    return tensor;
}

/* M = sum of s_k u_k v_k^T with orthonormal cosines; its best approximation of rank r keeps the
   r largest s_k. */
static inline void known_spectrum(float *m, size_t rows, size_t cols, const double *s, size_t count)
{
    const double pi = 3.14159265358979323846;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < count; k++) {
                double u = sqrt((k ? 2.0 : 1.0) / (double)rows) * cos(pi * ((double)i + 0.5) * (double)k / (double)rows);
                double v = sqrt((k ? 2.0 : 1.0) / (double)cols) * cos(pi * ((double)j + 0.5) * (double)k / (double)cols);
                sum += s[k] * u * v;
            }
            m[i * cols + j] = (float)sum;
        }
}

/* So many steps with the same matrix bring what is sent to its best approximation, and there it
   stays. */
static inline void check_best(const char *codec, int steps, int stays)
{
    static const double spectrum[6] = {8, 5, 1.5, 1, 0.5, 0.25};
    enum { ROWS = 30, COLS = 44 };
    static float m[ROWS * COLS], best[ROWS * COLS];
    gcomp_tensor tensor = matrix(ROWS, COLS, 0, codec);
    gcomp_desc desc = no_feedback();
    group g;
    group_open(&g, 1, &desc, &tensor, 1);
    known_spectrum(m, ROWS, COLS, spectrum, 6);
    known_spectrum(best, ROWS, COLS, spectrum, 2);
    for (int step = 1; step < steps + stays; step++) {
        memcpy(g.grad[0][0], m, sizeof m);
        CHECK(group_step(&g) == GCOMP_OK);
        if (step >= steps) CHECK(distance(g.grad[0][0], best, ROWS * COLS) <= 1e-5 * norm(best, ROWS * COLS));
    }
    group_close(&g);
}

#endif
