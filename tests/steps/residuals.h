/* What tests of small residuals share: a group that keeps them as bf16 or int8, beside one with floats. */

#ifndef RESIDUALS_H
#define RESIDUALS_H

#include "codecs.h"
#include "test.h"
#include <float.h>

enum { WORLDS = 5, MOST_TENSORS = 3, MOST_ROOM = 3000 };
static gcomp_dtype types[MOST_TENSORS] = {GCOMP_F32, GCOMP_BF16, GCOMP_F16}; /* of gradients */

/* ---------------- what a small residual is, in plain words */

/* A float as bf16 keeps it: rounded to nearest, ties to even; the largest bf16 where that would be infinite. */
static inline float plain_bf16(float x)
{
    uint32_t u = bits_of(x);
    u += 0x7fffu + (u >> 16 & 1);
    if ((u & 0x7f800000u) == 0x7f800000u) u = (u & 0x80000000u) | 0x7f7f0000u;
    return float_of(u & 0xffff0000u);
}

/* x[n] as a residual of this kind keeps it. int8: a block of 128 has the scale max |x| / 127, and a number becomes the nearest
   multiple of it, by a factor with which none is above 127. */
static inline void plain_keep(const char *kind, float *x, size_t n)
{
    for (size_t i = 0; i < n && !strcmp(kind, "bf16"); i++) x[i] = plain_bf16(x[i]);
    for (size_t i = 0; i < n && !strcmp(kind, "int8"); i += 128) {
        const size_t end = i + 128 < n ? i + 128 : n;
        float most = 0;
        for (size_t k = i; k < end; k++) most = fmaxf(most, fabsf(x[k]));
        volatile float scale = most / 127, factor;
        if (scale * 127.0 > FLT_MAX) scale = nextafterf(scale, 0); /* a multiple must be finite */
        factor = scale > 0 ? 1 / scale : 0;
        for (volatile float product = most * factor; product > 127; product = most * factor) factor = nextafterf(factor, 0);
        for (size_t k = i; k < end; k++) x[k] = nearbyintf(x[k] * factor) * scale + 0.0f; /* a code of 0 has no sign */
    }
}

/* ---------------- workers in lock-step */

typedef struct group {
    size_t world, count, n[MOST_TENSORS];
    gcomp *gc[WORLDS];
    float *grad[WORLDS][MOST_TENSORS];
    float *grads[WORLDS][MOST_TENSORS]; /* what a step gets: grad, or NULL */
    gcomp_result result[WORLDS];
    gcomp_step step;
    size_t calls;      /* requests of the last step */
    size_t fail_call;  /* the number of a request that fails; SIZE_MAX: none */
    size_t fail_rank;  /* on this worker; WORLDS: on all */
} group;

static inline gcomp_desc desc_of(const char *kind, gcomp_aggregate aggregate)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.residual = kind;
    desc.aggregate = aggregate;
    desc.seed = 11;
    desc.compress_vectors = 1;
    desc.min_elements = 1;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return desc;
}

/* A matrix wherever n allows one. */
static inline gcomp_tensor tensor_of(size_t t, size_t n, const char *codec)
{
    static const char *const names[MOST_TENSORS] = {"a", "b", "c"};
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = names[t];
    tensor.rows = n % 20 == 0 ? n / 20 : n;
    tensor.cols = n % 20 == 0 ? 20 : 1;
    tensor.codec = codec;
    tensor.dtype = types[t];
    return tensor;
}

static inline void group_open(group *g, size_t world, const gcomp_desc *base, const char *const *codecs, const size_t *n, size_t count)
{
    memset(g, 0, sizeof *g);
    g->step = default_step();
    g->world = world;
    g->count = count;
    g->fail_call = SIZE_MAX;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            const gcomp_tensor tensor = tensor_of(t, n[t], codecs[t]);
            g->n[t] = n[t];
            g->grad[w][t] = (float *)calloc(n[t], 4);
            CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
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

/* Gradients with some rows of zeros, and one element that is huge in step 2. */
static inline float gradient_at(uint64_t step, size_t w, size_t t, size_t i)
{
    const uint64_t common = mix(step * 64 + t) + i, own = mix(step * 64 + t + 16 * (w + 1)) + i;
    if (i / 200 % 5 == 3) return 0;
    if (step % 7 == 2 && i == 77) return 1e20f;
    return some_normal(common) * 0.3f + some_normal(own) * (i / 128 % 3 == 1 ? 1e-3f : 0.5f);
}

static inline void group_fill(group *g, uint64_t step)
{
    static float x[MOST_ROOM];
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) {
            for (size_t i = 0; i < g->n[t]; i++) x[i] = gradient_at(step, w, t, i);
            if (types[t] == GCOMP_F32) memcpy(g->grad[w][t], x, 4 * g->n[t]);
            else CHECK(gcomp_convert(g->grad[w][t], types[t], x, GCOMP_F32, g->n[t], NULL) == GCOMP_OK);
        }
}

static inline size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* to[i] += from[i] for fp16 or bf16. */
static inline void add_halves(void *to, const void *from, size_t count, gcomp_dtype dtype)
{
    static float x[MOST_TENSORS * MOST_ROOM], y[MOST_TENSORS * MOST_ROOM];
    CHECK(gcomp_convert(x, GCOMP_F32, to, dtype, count, NULL) == GCOMP_OK && gcomp_convert(y, GCOMP_F32, from, dtype, count, NULL) == GCOMP_OK);
    for (size_t i = 0; i < count; i++) x[i] += y[i];
    CHECK(gcomp_convert(to, dtype, x, GCOMP_F32, count, NULL) == GCOMP_OK);
}

/* Carries out a request of all workers. */
static inline void carry(size_t world, gcomp_request *r)
{
    for (size_t w = 1; request_is_a_reduction(r) && w < world; w++) {
        if (bytes_of_dtype(r->dtype) == 2 && r->dtype != GCOMP_I16) add_halves(r->recv, r[w].recv, r->count, r->dtype);
        else plain_reduce(r, r + w);
    }
    for (size_t w = 1; request_is_a_reduction(r) && w < world; w++)
        memcpy(r[w].recv, r->recv, r->count * bytes_of_dtype(r->dtype));
    for (size_t w = 0; !request_is_a_reduction(r) && w < world; w++)
        for (size_t from = 0; from < world; from++) {
            CHECK(r[w].kind == r->kind);
            if (r->kind == GCOMP_ALLTOALL)
                memcpy((uint8_t *)r[w].recv + sum_to(r[w].bytes, from),
                       (const uint8_t *)r[from].send + sum_to(r[from].send_bytes, w), r[w].bytes[from]);
            else memcpy((uint8_t *)r[w].recv + from * r[w].stride, r[from].send, r[w].bytes[from]);
        }
}

/* A step as an event loop takes it. Workers have the same requests in the same order. */
static inline void group_step(group *g)
{
    int finished = 0;
    g->calls = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->result[w] = gcomp_step_begin(g->gc[w], &g->step);
        for (size_t t = 0; t < g->count; t++) CHECK(gcomp_step_ready(g->gc[w], t, g->grad[w][t]) == GCOMP_OK);
    }
    while (!finished) {
        gcomp_request r[WORLDS];
        size_t asked = 0;
        for (size_t w = 0; w < g->world; w++) {
            if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_next(g->gc[w], r + w);
            if (g->result[w] != GCOMP_OK) continue;
            asked++;
            finished |= r[w].kind == GCOMP_DONE;
        }
        if (asked < g->world) { /* the others see the transport fail */
            for (size_t w = 0; w < g->world; w++)
                if (g->result[w] == GCOMP_OK && r[w].kind != GCOMP_DONE) g->result[w] = gcomp_step_done(g->gc[w], r[w].id, 9);
            break;
        }
        if (finished) break;
        carry(g->world, r);
        for (size_t w = 0; w < g->world; w++) {
            const int fails = g->calls == g->fail_call && (g->fail_rank == WORLDS || g->fail_rank == w);
            g->result[w] = gcomp_step_done(g->gc[w], r[w].id, fails ? 5 : 0);
        }
        g->calls++;
    }
    for (size_t w = 0; w < g->world && finished; w++)
        if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_commit(g->gc[w]);
}

static inline int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

/* All gradients and residuals of a worker. */
static inline uint64_t digest(const group *g, size_t w)
{
    static float e[MOST_ROOM];
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        h = fnv(h, g->grad[w][t], 4 * g->n[t]);
        if (gcomp_residual_get(g->gc[w], t, e) == GCOMP_OK) h = fnv(h, e, 4 * g->n[t]);
    }
    return h;
}

/* Two workers with these options say in their first step that they differ, and in what. */
static inline void expect_mismatch(const gcomp_desc *first, const gcomp_desc *second, const char *what)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {300};
    const gcomp_tensor tensor = tensor_of(0, n[0], codec[0]);
    gcomp_desc desc = *second;
    group g;
    group_open(&g, 2, first, codec, n, 1);
    gcomp_close(g.gc[1]);
    desc.comm.rank = 1;
    desc.comm.world = 2;
    CHECK(gcomp_open(&g.gc[1], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[1], &tensor) == GCOMP_OK);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_MISMATCH) && strstr(gcomp_error(g.gc[0]), what));
    group_close(&g);
}

#endif
