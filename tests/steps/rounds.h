/* What tests of rounds share: workers in lock-step whose rounds find the largest float or add integers. */

#ifndef ROUNDS_H
#define ROUNDS_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime in gcomp_threads.h */
#endif

#include "gcomp_threads.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5, TENSORS = 8, COLLECTIVES = 16 };
static const unsigned integers = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;

/* ---------------- workers in lock-step */

typedef struct group {
    int world;
    size_t count, n[TENSORS];
    gcomp *gc[MOST];
    float *grad[MOST][TENSORS];
    gcomp_result result[MOST];
    /* of the last step */
    size_t calls;
    gcomp_request_kind kind[COLLECTIVES];
    gcomp_dtype dtype[COLLECTIVES];
    float largest;           /* the first that a MAX gave */
    int8_t *codes8[MOST];    /* what an integer sum was given, of one type */
    int16_t *codes16[MOST];
    int32_t *codes32[MOST];
    size_t codes;
    int64_t overflows, worst; /* sums that did not fit; the largest |code| */
    /* faults */
    int fail_call, fail_rank; /* a collective that reports a failure; rank -1: on all; call -1: none */
    float lie;                /* the largest arrives times this factor; 0: as it is */
} group;

static inline void group_open(group *g, int world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    g->fail_call = -1;
    for (int w = 0; w < world; w++) {
        gcomp_desc desc;
        char why[256] = "";
        memset(&desc, 0, sizeof desc);
        if (base) desc = *base;
        if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        desc.comm.rank = w;
        desc.comm.world = world;
        desc.comm.allreduce_dtypes |= integers;
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&g->gc[w], &desc) != GCOMP_OK) {
            printf("# open: %s\n", why);
            exit(1);
        }
        for (size_t t = 0; t < count; t++) {
            gcomp_result result = gcomp_add_tensor(g->gc[w], &tensors[t]);
            if (result) printf("# add: %s\n", gcomp_error(g->gc[w]));
            CHECK(result == GCOMP_OK);
            g->n[t] = tensor_elements(g->gc[w], t);
            g->grad[w][t] = (float *)calloc(g->n[t] + 1, sizeof(float));
        }
    }
}

static inline void forget_codes(group *g)
{
    for (int w = 0; w < g->world; w++) {
        free(g->codes8[w]);
        free(g->codes16[w]);
        free(g->codes32[w]);
        g->codes8[w] = NULL;
        g->codes16[w] = NULL;
        g->codes32[w] = NULL;
    }
}

static inline void group_close(group *g)
{
    forget_codes(g);
    for (int w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

static inline int64_t at(const void *data, gcomp_dtype dtype, size_t i)
{
    if (dtype == GCOMP_I8) return ((const int8_t *)data)[i];
    if (dtype == GCOMP_I16) return ((const int16_t *)data)[i];
    return ((const int32_t *)data)[i];
}

static inline void put(void *data, gcomp_dtype dtype, size_t i, int64_t v)
{
    if (dtype == GCOMP_I8) ((int8_t *)data)[i] = (int8_t)v;
    else if (dtype == GCOMP_I16) ((int16_t *)data)[i] = (int16_t)v;
    else ((int32_t *)data)[i] = (int32_t)v;
}

/* Sums in 64 bits, which are told when they do not fit. Keeps what was added. */
static inline void add_integers(group *g, const gcomp_request *q)
{
    gcomp_dtype dtype = q[0].dtype;
    int64_t limit = dtype == GCOMP_I8 ? 127 : dtype == GCOMP_I16 ? 32767 : 2147483647;
    size_t size = bytes_of_dtype(dtype);
    g->codes = q[0].count;
    for (int w = 0; w < g->world; w++) {
        void **keep = dtype == GCOMP_I8    ? (void **)(void *)&g->codes8[w]
                      : dtype == GCOMP_I16 ? (void **)(void *)&g->codes16[w]
                                           : (void **)(void *)&g->codes32[w];
        free(*keep);
        *keep = malloc(size * q[w].count + 1);
        memcpy(*keep, q[w].recv, size * q[w].count);
    }
    for (size_t i = 0; i < q[0].count; i++) {
        int64_t sum = 0;
        for (int w = 0; w < g->world; w++) {
            int64_t v = at(q[w].recv, dtype, i), a = v < 0 ? -v : v;
            sum += v;
            g->worst = a > g->worst ? a : g->worst;
        }
        if (sum > limit || sum < -limit) g->overflows++;
        for (int w = 0; w < g->world; w++) put(q[w].recv, dtype, i, sum);
    }
}

static inline void carry_out(group *g, const gcomp_request *q)
{
    for (int w = 1; w < g->world; w++)
        CHECK(q[w].kind == q[0].kind && q[w].count == q[0].count && q[w].dtype == q[0].dtype && q[w].stride == q[0].stride &&
              q[w].id == q[0].id);
    if (q[0].kind == GCOMP_ALLGATHER) {
        for (int w = 0; w < g->world; w++)
            for (int s = 0; s < g->world; s++)
                memcpy((char *)q[w].recv + (size_t)s * q[w].stride, q[s].send, q[s].bytes[s]);
    } else if (q[0].kind == GCOMP_ALLREDUCE_MAX) {
        CHECK(q[0].dtype == GCOMP_F32);
        for (size_t i = 0; i < q[0].count; i++) {
            float most = ((const float *)q[0].recv)[i];
            for (int w = 1; w < g->world; w++) most = fmaxf(most, ((const float *)q[w].recv)[i]);
            if (g->lie != 0) most *= g->lie;
            for (int w = 0; w < g->world; w++) ((float *)q[w].recv)[i] = most;
            if (i == 0) g->largest = most;
        }
    } else if (q[0].dtype != GCOMP_F32) {
        add_integers(g, q);
    } else {
        for (size_t i = 0; i < q[0].count; i++) {
            float sum = ((const float *)q[0].recv)[i];
            for (int w = 1; w < g->world; w++) sum += ((const float *)q[w].recv)[i];
            for (int w = 0; w < g->world; w++) ((float *)q[w].recv)[i] = sum;
        }
    }
}

/* A step; bit t of skip: tensor t has no gradient. Results in g->result; a worker whose step has
   ended takes the others along only as far as the test says: all of them fail, or the one is
   left out of what follows. */
static inline gcomp_result group_step(group *g, unsigned skip)
{
    gcomp_request q[MOST];
    int ended = 0;
    g->calls = 0;
    for (int w = 0; w < g->world; w++) {
        g->result[w] = gcomp_step_begin(g->gc[w], NULL);
        CHECK(g->result[w] == GCOMP_OK);
        for (size_t t = 0; t < g->count; t++)
            CHECK(gcomp_step_ready(g->gc[w], t, skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
    }
    memset(q, 0, sizeof q);
    while (!ended) {
        for (int w = 0; w < g->world; w++) {
            g->result[w] = gcomp_step_next(g->gc[w], &q[w]);
            ended = ended || g->result[w] != GCOMP_OK;
        }
        if (ended || q[0].kind == GCOMP_DONE) break;
        CHECK(q[0].kind != GCOMP_WAIT && g->calls < COLLECTIVES);
        if (q[0].kind == GCOMP_WAIT || g->calls == COLLECTIVES) return GCOMP_WRONG_STATE;
        g->kind[g->calls] = q[0].kind;
        g->dtype[g->calls] = q[0].dtype;
        carry_out(g, q);
        for (int w = 0; w < g->world; w++) {
            int fails = (int)g->calls == g->fail_call && (g->fail_rank < 0 || g->fail_rank == w);
            g->result[w] = gcomp_step_done(g->gc[w], q[w].id, fails ? 7 : 0);
            if (fails) CHECK(g->result[w] == GCOMP_CALLBACK_FAILED);
            ended = ended || g->result[w] != GCOMP_OK;
        }
        g->calls++;
    }
    for (int w = 0; w < g->world; w++) {
        if (ended && g->result[w] == GCOMP_OK) CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_OK);
        if (!ended) g->result[w] = gcomp_step_commit(g->gc[w]);
        if (!ended) CHECK(g->result[w] == GCOMP_OK);
    }
    return g->result[0];
}

/* Uniform in [-1, 1). */
static inline float noise(uint64_t seed, size_t i) { return (float)((int32_t)(mix(mix(seed) + i) >> 40) - 8388608) / 8388608.0f; }

static inline void group_fill(group *g, uint64_t seed)
{
    for (int w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++)
                g->grad[w][t][i] = noise(seed, i) + (float)(w + 1) * noise(seed * 31 + (uint64_t)w + 7 * t, i);
}

static inline int all_equal(const group *g)
{
    for (int w = 1; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            if (memcmp(g->grad[0][t], g->grad[w][t], 4 * g->n[t]) != 0) return 0;
    return 1;
}

/* Gradients and residuals of a worker, digested. */
static inline uint64_t digest(const group *g, int w)
{
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        const float *e = tensor_residual(g->gc[w], t);
        h = fnv(h, g->grad[w][t], 4 * g->n[t]);
        if (e) h = fnv(h, e, 4 * g->n[t]);
    }
    return h;
}

static inline gcomp_tensor tensor_of(const char *name, size_t rows, size_t cols, size_t stack, const char *codec)
{
    gcomp_tensor t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.rows = rows;
    t.cols = cols;
    t.stack = stack;
    t.codec = codec;
    return t;
}

/* Takes many steps with the same gradients, and adds up the means of tensor 0. At the end the
   gradients are in g again. */
static inline void add_means(group *g, int steps, double *sum)
{
    for (int step = 0; step < steps; step++) {
        group_fill(g, 5);
        CHECK(group_step(g, 0) == GCOMP_OK);
        for (size_t i = 0; i < g->n[0]; i++) sum[i] += (double)g->grad[0][0][i];
    }
    group_fill(g, 5);
}

/* Two workers with one tensor take a step, and get the gradients of a second step, which will lie
   about the largest of them. `before` tells what they hold. */
static inline void open_before_a_lie(group *g, const char *codec, float factor, uint64_t before[2])
{
    gcomp_tensor t = tensor_of("w", 33, 3, 1, codec);
    group_open(g, 2, NULL, &t, 1);
    group_fill(g, 1);
    CHECK(group_step(g, 0) == GCOMP_OK);
    group_fill(g, 2);
    for (int w = 0; w < 2; w++) before[w] = digest(g, w);
    g->lie = factor;
}

/* ---------------- the exchange, over threads */

typedef struct shared {
    gcomp_threads *group;
    int with_max, fail_call;
    gcomp_result result[MOST];
    uint64_t digest[MOST];
    size_t calls, allocations_late;
} shared;

typedef struct seat {
    shared *all;
    gcomp_comm inner;
    int call;
    size_t allocations;
} seat;

static inline int fails(seat *s) { return s->call++ == s->all->fail_call; }

#endif
