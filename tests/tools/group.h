/* Workers in one thread, in lock-step, as an event loop drives them: steps with any number of
   tensors, for tests of means that are made by ranges. Faults can be put into every request. */
#ifndef GROUP_H
#define GROUP_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_threads.h"

#include "codecs.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 18, TENSORS = 7, CALLS = 64 };
enum { FRAMES, LENGTHS, ANSWERS, SHARDS, COUNTED, TOTALS, SUMS }; /* requests of a step, in order; few steps have all of them */

typedef struct group group;
typedef void (*tamper)(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length);

struct group {
    size_t world, count, n[TENSORS];
    gcomp *gc[MOST];
    void *grad[MOST][TENSORS];
    int half[TENSORS];
    gcomp_result result[MOST];
    gcomp_request request[MOST][CALLS];
    size_t asked[MOST], carried;
    gcomp_request_kind kind[CALLS];
    size_t largest[CALLS], least[CALLS]; /* bytes that one worker brought to a gather */
    uint64_t received;                   /* by worker 0 from others, this step */
    const gcomp_step *step;
    unsigned skip;                       /* bit t: tensor t has no gradient */
    int backwards, broken;
    int fail_call, fail_rank;            /* -1: none; rank -1: all */
    tamper change, change_sum;           /* of what a gather or an exchange delivers; of a sum, from the worker itself */
    size_t at, arg;                      /* for it */
    const uint8_t *forged;               /* NULL, or the shard that worker 1 gets from worker 0 */
    size_t forged_length;
};

/* In [-1, 1), heavy-tailed, partly common to the workers. */
static inline float value_of(uint64_t step, size_t worker, size_t tensor, size_t i)
{
    double common = (double)(mix(mix(step * 1000 + tensor) + i) >> 11) / 4503599627370496.0 - 1;
    double own = (double)(mix(mix(step * 1000 + tensor + 77 * (worker + 1)) + i) >> 11) / 4503599627370496.0 - 1;
    return (float)(common * common * common + 0.3 * own);
}

static inline void group_fill(group *g, uint64_t step)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++) {
                float v = value_of(step, w, t, i);
                uint32_t u;
                memcpy(&u, &v, 4);
                if (g->half[t]) ((uint16_t *)g->grad[w][t])[i] = (uint16_t)(u >> 16);
                else ((float *)g->grad[w][t])[i] = v;
            }
}

/* Tensors of n elements: matrices of `cols` columns, or vectors where they are 1 or do not divide n. */
static inline void group_open_matrices(group *g, size_t world, const gcomp_desc *base, const char *const *codecs, const size_t *n,
                                       size_t count, size_t cols)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g"};
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    g->fail_call = -1;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = names[t];
            tensor.cols = n[t] % cols ? 1 : cols;
            tensor.rows = n[t] / tensor.cols;
            tensor.codec = codecs[t];
            g->half[t] = t == 6;
            if (g->half[t]) tensor.dtype = GCOMP_BF16;
            g->n[t] = n[t];
            g->grad[w][t] = calloc(n[t], 4);
            CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
        }
    }
}

static inline void group_open(group *g, size_t world, const gcomp_desc *base, const char *const *codecs, const size_t *n, size_t count)
{
    group_open_matrices(g, world, base, codecs, n, count, 1);
}

static inline void group_close(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

/* All gradients and residuals of a worker. */
static inline uint64_t digest(const group *g, size_t w)
{
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        const float *residual = tensor_residual(g->gc[w], t);
        h = fnv(h, g->grad[w][t], (g->half[t] ? 2u : 4u) * g->n[t]);
        if (residual) h = fnv(h, residual, 4 * g->n[t]);
    }
    return h;
}

static inline void digest_all(const group *g, uint64_t *digests) /* of each worker */
{
    for (size_t w = 0; w < g->world; w++) digests[w] = digest(g, w);
}

static inline int digests_are(const group *g, const uint64_t *digests)
{
    int yes = 1;
    for (size_t w = 0; w < g->world; w++) yes = yes && digest(g, w) == digests[w];
    return yes;
}

static inline size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* A request of shards, and not of their lengths: ids have the round. */
static inline int is_of_shards(const gcomp_request *request) { return request->kind == GCOMP_ALLTOALL && request->id % 64 / 8 == SHARDS; }

/* What worker w gets of worker `from` in request k, and where it lies. */
static inline uint8_t *deliver(group *g, size_t k, size_t w, size_t from, size_t *length)
{
    const gcomp_request *to = &g->request[w][k], *of = &g->request[from][k];
    if (to->kind == GCOMP_ALLTOALL) {
        uint8_t *place = (uint8_t *)to->recv + sum_to(to->bytes, from);
        *length = to->bytes[from];
        if (g->forged && w == 1 && from == 0 && is_of_shards(to)) {
            memcpy(place, g->forged, *length);
            return place;
        }
        if (of->send_bytes[w] != *length) g->broken = 1;
        else memcpy(place, (const uint8_t *)of->send + sum_to(of->send_bytes, w), *length);
        if (g->forged && w == 1 && from == 0) { /* its length */
            put_word(place, g->forged_length, 8);
            put_word(place + 12, plain_crc(0, place, 12), 4);
        }
        return place;
    }
    *length = to->bytes[from];
    for (size_t i = *length; i < of->stride; i++)
        if (((const uint8_t *)of->send)[i]) g->broken = 1; /* what pads is zero */
    if (to->stride != of->stride || of->bytes[from] != *length || *length > to->stride) g->broken = 1;
    else memcpy((uint8_t *)to->recv + from * to->stride, of->send, to->stride);
    return (uint8_t *)to->recv + from * to->stride;
}

static inline void carry(group *g, size_t k)
{
    int complete = 1;
    const gcomp_request *first = NULL;
    for (size_t w = 0; w < g->world; w++) {
        if (g->result[w] != GCOMP_OK) complete = 0;
        else if (!first) first = &g->request[w][k];
        if (g->result[w] == GCOMP_OK && g->request[w][k].kind != first->kind) g->broken = 1;
    }
    if (!first || g->broken) return;
    g->kind[k] = first->kind;
    g->largest[k] = 0;
    g->least[k] = SIZE_MAX;
    for (size_t w = 1; complete && request_is_a_reduction(first) && w < g->world; w++) plain_reduce(first, &g->request[w][k]);
    for (size_t w = 1; complete && request_is_a_reduction(first) && w < g->world; w++)
        memcpy(g->request[w][k].recv, first->recv, first->count * bytes_of_dtype(first->dtype));
    for (size_t w = 0; complete && request_is_a_reduction(first) && w < g->world && g->change_sum; w++)
        g->change_sum(g, k, w, w, (uint8_t *)g->request[w][k].recv, first->count * bytes_of_dtype(first->dtype));
    for (size_t w = 0; complete && !request_is_a_reduction(first) && w < g->world && !g->broken; w++)
        for (size_t from = 0; from < g->world && !g->broken; from++) {
            size_t length;
            uint8_t *bytes = deliver(g, k, w, from, &length);
            if (w == 0 && from) g->received += length;
            if (first->kind == GCOMP_ALLGATHER && length > g->largest[k]) g->largest[k] = length;
            if (first->kind == GCOMP_ALLGATHER && length < g->least[k]) g->least[k] = length;
            if (g->change) g->change(g, k, w, from, bytes, length);
        }
    for (size_t w = 0; w < g->world && !g->broken; w++) {
        int status = !complete || ((int)k == g->fail_call && (g->fail_rank < 0 || (size_t)g->fail_rank == w)) ? 5 : 0;
        if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_done(g->gc[w], g->request[w][k].id, status);
    }
}

/* A step as an event loop takes it: all that can be asked for first, then carried out in either
   order. */
static inline void group_step(group *g)
{
    int finished[MOST] = {0};
    g->carried = 0;
    g->received = 0;
    g->broken = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->asked[w] = 0;
        g->result[w] = gcomp_step_begin(g->gc[w], g->step);
        for (size_t t = 0; t < g->count; t++)
            CHECK(gcomp_step_ready(g->gc[w], t, g->skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
    }
    for (;;) {
        size_t upto = SIZE_MAX;
        for (size_t w = 0; w < g->world; w++) {
            while (g->result[w] == GCOMP_OK && !finished[w] && g->asked[w] < CALLS) {
                gcomp_request request;
                g->result[w] = gcomp_step_next(g->gc[w], &request);
                if (g->result[w] || request.kind == GCOMP_WAIT) break;
                if (request.kind == GCOMP_DONE) finished[w] = 1;
                else g->request[w][g->asked[w]++] = request;
            }
            if (g->result[w] == GCOMP_OK && g->asked[w] < upto) upto = g->asked[w];
        }
        if (upto == SIZE_MAX || upto <= g->carried || g->broken) break;
        for (size_t i = g->carried; i < upto; i++) carry(g, g->backwards ? g->carried + upto - 1 - i : i);
        g->carried = upto;
    }
    CHECK(!g->broken);
    for (size_t w = 0; w < g->world; w++) {
        if (finished[w]) g->result[w] = gcomp_step_commit(g->gc[w]);
        else if (g->result[w] == GCOMP_OK) CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_WRONG_STATE); /* never */
    }
}

static inline int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

static inline gcomp_desc desc_of(gcomp_aggregate aggregate)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.aggregate = aggregate;
    desc.seed = 5;
    return desc;
}

static inline int exchanges(const group *g) /* of shards, in all buckets */
{
    int count = 0;
    for (size_t k = 0; k < g->carried; k++) count += is_of_shards(&g->request[0][k]);
    return count;
}

/* The last workers are lost, and the others go on. */
static inline void group_shrink(group *g, size_t world)
{
    for (size_t w = world; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
    g->world = world;
    for (size_t w = 0; w < world; w++) {
        gcomp_comm comm;
        memset(&comm, 0, sizeof comm);
        comm.rank = (int)w;
        comm.world = (int)world;
        CHECK(gcomp_regroup(g->gc[w], &comm, NULL) == GCOMP_OK);
    }
}

/* ---------------- what the codec layer makes of a range */

enum { ROOM = 4700 };

static inline size_t encode(const char *text, const float *x, size_t n, uint8_t *payload, uint64_t own)
{
    static uint8_t scratch[GCOMP_SCRATCH(ROOM)];
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = x;
    in.rows = n;
    in.key.own = own;
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, GCOMP_BOUND(n), &length) == GCOMP_OK);
    return length;
}

/* What is decoded of a range of x, encoded with its own key; the mean is range `world`. */
static inline void pass(const char *codec, const float *x, size_t n, uint64_t step, size_t rank, size_t range, float *y)
{
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    const uint64_t own = gcomp_key_make(5, step, 0, (uint32_t)rank).own;
    const size_t length = encode(codec, x, n, payload, plain_philox(own, 0, 7, (uint32_t)range));
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
}

/* Two shots take payloads that are not sparse, of methods without a round of their own. */
static inline int has_two_shots(const char *text)
{
    return strcmp(text, "none") && codec_has_payload(text) && !codec_is_sparse(text) && !strstr(text, "share=1");
}

/* Payloads of as many elements have other lengths: then workers send lengths before shards. */
static inline int lengths_vary(const char *text)
{
    return codec_is_sparse(text) || strstr(text, "code=") || strstr(text, "block=row") || !strncmp(text, "ecsq", 4) ||
           !strncmp(text, "dct", 3);
}

#endif
