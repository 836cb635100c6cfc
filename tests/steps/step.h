/* What tests of steps share: workers in one thread, in lock-step, over queues in place of a transport. */

#ifndef STEP_H
#define STEP_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime in gcomp_threads.h */
#endif

#include "gcomp_threads.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, TENSORS_MAX = 8, QUEUE_MAX = 32, FRAME_BYTES = 64 };

/* ---------------- the workers and their transport */

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_FAIL,      /* the collective reports a failure */
    FAULT_FLIP,      /* one bit of what was received is another */
    FAULT_SWAP,      /* the frames of two workers arrive in each other's place */
    FAULT_NOISE,     /* the frame of one worker arrives as random bytes */
    FAULT_CORRUPT    /* one bit of a sum is another */
} fault_kind;

typedef struct fault {
    fault_kind kind;
    size_t call;     /* which collective of the step */
    int rank;        /* who sees it; -1: all */
    size_t worker;   /* whose bytes */
    size_t offset;   /* which byte of them; counted from the end if it is SIZE_MAX - x */
} fault;

typedef enum worker_state { IDLE, RUNNING, FINISHED, ENDED } worker_state;

typedef struct group {
    size_t world, count;
    gcomp_tensor tensor[TENSORS_MAX];
    size_t n[TENSORS_MAX];
    gcomp *gc[WORLD_MAX];
    float *grad[WORLD_MAX][TENSORS_MAX];
    gcomp_result result[WORLD_MAX];
    worker_state state[WORLD_MAX];
    gcomp_request queue[WORLD_MAX][QUEUE_MAX];
    size_t asked[WORLD_MAX];
    size_t carried;                      /* collectives of this step */
    gcomp_request_kind kind[QUEUE_MAX];  /* of those */
    size_t stride[QUEUE_MAX];
    int tried;                           /* a sum was made */
    uint64_t bytes[WORLD_MAX];           /* that each worker sent over the network, all steps */
    int backwards;                       /* carry out what is outstanding from the last to the first */
    int broken;                          /* workers asked for different things */
    fault fault;
    double now[WORLD_MAX];               /* clocks */
} group;

typedef void (*tweak)(int rank, gcomp_desc *desc, gcomp_tensor *tensors, size_t *count);

static inline double tick(void *user)
{
    double *now = (double *)user;
    *now += 1.0;
    return *now;
}

static inline void group_open_with(group *g, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count,
                            tweak change)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    for (size_t t = 0; t < count; t++) {
        size_t cols = tensors[t].cols ? tensors[t].cols : 1, stack = tensors[t].stack ? tensors[t].stack : 1;
        g->tensor[t] = tensors[t];
        g->n[t] = tensors[t].rows * cols * stack;
    }
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc;
        gcomp_tensor own[TENSORS_MAX];
        size_t own_count = count;
        char why[256] = "";
        memset(&desc, 0, sizeof desc);
        if (base) desc = *base;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        desc.clock = tick;
        desc.clock_user = &g->now[w];
        desc.why = why;
        desc.why_capacity = sizeof why;
        memcpy(own, tensors, count * sizeof *own);
        if (change) change((int)w, &desc, own, &own_count);
        gcomp_result result = gcomp_open(&g->gc[w], &desc);
        CHECK(result == GCOMP_OK);
        if (result) {
            printf("# open: %s\n", why);
            exit(1);
        }
        for (size_t t = 0; t < own_count; t++) {
            result = gcomp_add_tensor(g->gc[w], &own[t]);
            CHECK(result == GCOMP_OK);
            if (result) printf("# add %s: %s\n", own[t].name, gcomp_error(g->gc[w]));
        }
        for (size_t t = 0; t < count; t++) g->grad[w][t] = (float *)calloc(g->n[t], sizeof(float));
    }
}

static inline void group_open(group *g, size_t world, const gcomp_tensor *tensors, size_t count)
{
    group_open_with(g, world, NULL, tensors, count, NULL);
}

static inline void group_close(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
    memset(g, 0, sizeof *g);
}

static inline int fault_hits(const group *g, size_t k, size_t w)
{
    return g->fault.kind != FAULT_NONE && g->fault.call == k && (g->fault.rank < 0 || (size_t)g->fault.rank == w);
}

static inline void carry_gather(group *g, size_t k)
{
    const gcomp_request *first = NULL;
    unsigned char *all = NULL;
    for (size_t w = 0; w < g->world; w++) {
        const gcomp_request *request = &g->queue[w][k];
        if (g->state[w] == ENDED) continue;
        if (!first) {
            first = request;
            all = (unsigned char *)calloc(g->world, first->stride + 1);
        }
        if (request->stride != first->stride || memcmp(request->bytes, first->bytes, g->world * sizeof(size_t)) != 0) {
            g->broken = 1;
            free(all);
            return;
        }
        if (request->bytes[w] > request->stride) g->broken = 1;
        memcpy(all + w * first->stride, request->send, request->stride); /* a transport that pads reads it all ... */
        for (size_t i = request->bytes[w]; i < request->stride; i++) all[w * first->stride + i] = (unsigned char)(0xA5 ^ i);
        g->bytes[w] += request->bytes[w] * (g->world > 1 ? g->world - 1 : 1); /* ... and delivers what it likes behind the end */
    }
    for (size_t w = 0; w < g->world; w++) {
        const gcomp_request *request = &g->queue[w][k];
        unsigned char *recv = (unsigned char *)request->recv;
        if (g->state[w] == ENDED) continue;
        memcpy(recv, all, g->world * first->stride);
        if (!fault_hits(g, k, w)) continue;
        unsigned char *hit = recv + g->fault.worker * first->stride;
        if (g->fault.kind == FAULT_FLIP) {
            size_t length = request->bytes[g->fault.worker];
            size_t offset = g->fault.offset < length ? g->fault.offset : length - 1 - (SIZE_MAX - g->fault.offset);
            hit[offset] ^= 0x10;
        }
        if (g->fault.kind == FAULT_SWAP) {
            memcpy(recv, all + first->stride, first->stride);
            memcpy(recv + first->stride, all, first->stride);
        }
        if (g->fault.kind == FAULT_NOISE)
            for (size_t i = 0; i < first->stride; i++) hit[i] = (unsigned char)(37 * i + 11 * (i >> 3) + 5 + g->fault.offset);
    }
    free(all);
}

/* What a worker sends of n floats in a ring all-reduce. One worker alone counts as one of two. */
static inline uint64_t ring_bytes(size_t n, size_t world)
{
    world = world > 1 ? world : 2;
    return (8 * (uint64_t)n * (world - 1) + world - 1) / world;
}

static inline void carry_sum(group *g, size_t k)
{
    size_t n = 0, alive = 0;
    float *sum = NULL;
    for (size_t w = 0; w < g->world; w++) {
        const gcomp_request *request = &g->queue[w][k];
        const float *x = (const float *)request->recv;
        if (g->state[w] == ENDED) continue;
        if (!sum) {
            n = request->count;
            sum = (float *)calloc(n + 1, sizeof(float));
        }
        if (request->count != n || request->dtype != GCOMP_F32) {
            g->broken = 1;
            break;
        }
        for (size_t i = 0; i < n; i++) sum[i] = alive ? sum[i] + x[i] : x[i];
        alive++;
        g->bytes[w] += ring_bytes(n - (g->world > 1 && !g->tried), g->world); /* the first has a one behind it, which does not count */
    }
    for (size_t w = 0; w < g->world && !g->broken; w++) {
        float *recv = (float *)g->queue[w][k].recv;
        if (g->state[w] == ENDED) continue;
        memcpy(recv, sum, n * sizeof(float));
        if (fault_hits(g, k, w) && g->fault.kind == FAULT_CORRUPT) ((unsigned char *)recv)[g->fault.offset % (4 * n)] ^= 1;
    }
    g->tried = 1;
    free(sum);
}

/* Carries out collective k: all workers that are still in the step have asked for it; it fails
   where one has left. */
static inline void group_carry(group *g, size_t k)
{
    int complete = 1;
    const gcomp_request *first = NULL;
    for (size_t w = 0; w < g->world; w++) {
        if (g->state[w] == ENDED) {
            complete = 0;
            continue;
        }
        if (!first) first = &g->queue[w][k];
        if (g->queue[w][k].kind != first->kind) g->broken = 1;
    }
    if (!first || g->broken) return;
    g->kind[k] = first->kind;
    g->stride[k] = first->kind == GCOMP_ALLGATHER ? first->stride : 0;
    if (complete && first->kind == GCOMP_ALLGATHER) carry_gather(g, k);
    if (complete && first->kind == GCOMP_ALLREDUCE) carry_sum(g, k);
    if (g->broken) return;
    for (size_t w = 0; w < g->world; w++) {
        if (g->state[w] == ENDED) continue;
        int status = !complete || (fault_hits(g, k, w) && g->fault.kind == FAULT_FAIL);
        gcomp_result result = gcomp_step_done(g->gc[w], g->queue[w][k].id, status);
        if (status) CHECK(result == GCOMP_CALLBACK_FAILED);
        if (result) {
            g->result[w] = result;
            g->state[w] = ENDED;
        }
    }
}

/* Asks every worker for its requests and carries out those that all have asked for, until
   nothing more can be done. */
static inline void group_pump(group *g)
{
    while (!g->broken) {
        size_t upto = SIZE_MAX, running = 0;
        for (size_t w = 0; w < g->world; w++) {
            while (g->state[w] == RUNNING && g->asked[w] < QUEUE_MAX) {
                gcomp_request request;
                memset(&request, 0, sizeof request);
                gcomp_result result = gcomp_step_next(g->gc[w], &request);
                if (result) {
                    g->result[w] = result;
                    g->state[w] = ENDED;
                } else if (request.kind == GCOMP_WAIT) {
                    break;
                } else if (request.kind == GCOMP_DONE) {
                    g->state[w] = FINISHED;
                } else {
                    g->queue[w][g->asked[w]++] = request;
                }
            }
            if (g->state[w] == ENDED) continue;
            if (g->state[w] == RUNNING) running++;
            if (g->asked[w] < upto) upto = g->asked[w];
        }
        if (!running || upto == SIZE_MAX || upto <= g->carried) return;
        for (size_t from = g->carried, i = from; i < upto; i++) group_carry(g, g->backwards ? upto - 1 - (i - from) : i);
        g->carried = upto;
    }
}

static inline void group_begin(group *g, const gcomp_step *step)
{
    g->carried = 0;
    g->broken = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->asked[w] = 0;
        g->result[w] = gcomp_step_begin(g->gc[w], step);
        CHECK(g->result[w] == GCOMP_OK);
        g->state[w] = RUNNING;
    }
}

static inline void group_ready(group *g, size_t w, size_t t, int skip)
{
    gcomp_result result = gcomp_step_ready(g->gc[w], t, skip ? NULL : g->grad[w][t]);
    CHECK(result == GCOMP_OK);
}

/* Commits where the step went to its end; the others have their error in result. */
static inline void group_finish(group *g)
{
    group_pump(g);
    CHECK(!g->broken);
    for (size_t w = 0; w < g->world; w++) {
        CHECK(g->state[w] == FINISHED || g->state[w] == ENDED);
        if (g->state[w] == FINISHED) g->result[w] = gcomp_step_commit(g->gc[w]);
        if (g->state[w] == RUNNING) {
            g->result[w] = GCOMP_WRONG_STATE;
            if (gcomp_step_abort(g->gc[w])) g->broken = 1;
        }
        g->state[w] = IDLE;
    }
}

/* A whole step. Bit t of skip: tensor t has no gradient on any worker. */
static inline void group_step_skipping(group *g, const gcomp_step *step, unsigned skip)
{
    group_begin(g, step);
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) group_ready(g, w, t, (skip >> t & 1) != 0);
    group_finish(g);
}

static inline void group_step(group *g) { group_step_skipping(g, NULL, 0); }

static inline int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

/* ---------------- gradients, copies, comparisons */

/* Uniform in [-1, 1), a multiple of 2^-23. */
static inline float noise(uint64_t step, size_t worker, size_t tensor, size_t i)
{
    uint64_t x = mix(mix(step * 1000003u + worker * 101u + tensor) + i);
    return (float)((int32_t)(x >> 40) - 8388608) / 8388608.0f;
}

static inline float gradient(uint64_t step, size_t worker, size_t tensor, size_t i)
{
    float common = noise(step, 99, tensor, i);
    return (common + 0.5f * noise(step, worker, tensor, i)) * (1.0f + (float)(tensor % 3));
}

static inline void group_fill(group *g, uint64_t step)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++) g->grad[w][t][i] = gradient(step, w, t, i);
}

static inline void group_advance(group *g, uint64_t step)
{
    group_fill(g, step);
    group_step(g);
    CHECK(all_are(g, GCOMP_OK));
}

/* A pair is two equal groups. What a test does to a must leave no trace: a must still equal b. */
static inline void pair_advance(group *a, group *b, uint64_t step)
{
    group_advance(a, step);
    group_advance(b, step);
}

static inline void pair_open(group *a, group *b, size_t world, const gcomp_tensor *tensors, size_t count,
                      uint64_t steps) /* that both take */
{
    group_open(a, world, tensors, count);
    group_open(b, world, tensors, count);
    for (uint64_t step = 0; step < steps; step++) pair_advance(a, b, step);
}

static inline void pair_close(group *a, group *b)
{
    group_close(a);
    group_close(b);
}

/* All that a step may change of a worker: its gradients, then its residuals. */
static inline size_t worker_bytes(const group *g, size_t w, unsigned char *copy)
{
    size_t bytes = 0;
    for (size_t t = 0; t < g->count; t++) {
        const float *residual = tensor_residual(g->gc[w], t);
        if (copy) memcpy(copy + bytes, g->grad[w][t], 4 * g->n[t]);
        bytes += 4 * g->n[t];
        if (!residual) continue;
        size_t n = tensor_elements(g->gc[w], t); /* a worker may have another list of tensors */
        if (copy) memcpy(copy + bytes, residual, 4 * n);
        bytes += 4 * n;
    }
    return bytes;
}

typedef struct snapshot {
    unsigned char *bytes[WORLD_MAX];
    size_t length[WORLD_MAX], world;
} snapshot;

static inline snapshot snapshot_take(const group *g)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    s.world = g->world;
    for (size_t w = 0; w < g->world; w++) {
        s.length[w] = worker_bytes(g, w, NULL);
        s.bytes[w] = (unsigned char *)malloc(s.length[w] + 1);
        worker_bytes(g, w, s.bytes[w]);
    }
    return s;
}

static inline void snapshot_free(snapshot *s)
{
    for (size_t w = 0; w < s->world; w++) free(s->bytes[w]);
}

static inline int worker_equals(const snapshot *a, const snapshot *b, size_t w)
{
    return a->length[w] == b->length[w] && memcmp(a->bytes[w], b->bytes[w], a->length[w]) == 0;
}

static inline int group_equals(const group *g, const snapshot *s)
{
    snapshot now = snapshot_take(g);
    int yes = 1;
    for (size_t w = 0; w < g->world; w++) yes = yes && worker_equals(&now, s, w);
    snapshot_free(&now);
    return yes;
}

static inline int groups_agree(const group *a, const group *b)
{
    snapshot s = snapshot_take(b);
    int yes = group_equals(a, &s);
    snapshot_free(&s);
    return yes;
}

/* Step 2 of a has failed, without a trace: a repeats the step, and both groups take step 3. */
static inline void check_repetition(group *a, group *b)
{
    group_step(a);
    CHECK(all_are(a, GCOMP_OK));
    group_advance(b, 2);
    CHECK(groups_agree(a, b));
    pair_advance(a, b, 3);
    CHECK(groups_agree(a, b));
}

static inline int means_agree(const group *g)
{
    for (size_t w = 1; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            if (memcmp(g->grad[0][t], g->grad[w][t], 4 * g->n[t]) != 0) return 0;
    return 1;
}

/* Does the text speak of worker w? */
static inline int names_worker(const char *text, size_t w)
{
    char form[3][24];
    snprintf(form[0], sizeof form[0], "worker %d", (int)w);
    snprintf(form[1], sizeof form[1], "rank %d", (int)w);
    snprintf(form[2], sizeof form[2], "Worker %d", (int)w);
    return strstr(text, form[0]) || strstr(text, form[1]) || strstr(text, form[2]);
}

/* One of each kind of tensor. */
static const gcomp_tensor mixed[] = {
    {"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
    {"stack", 18, 10, 3, GCOMP_F32, "powersgd:rank=1,alternate=1,momentum=0.5"},
    {"sign", 30, 37, 0, GCOMP_F32, "sign:block=64"},
    {"topk", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
    {"bf16", 16, 33, 0, GCOMP_F32, "bf16"},
    {"vector", 129, 0, 0, GCOMP_F32, NULL},
    {"tiny", 3, 4, 0, GCOMP_F32, NULL},
};

enum { MIXED = sizeof mixed / sizeof mixed[0], MATRIX = 0, STACK = 1, SIGN = 2, TOPK = 3, BF16 = 4, VECTOR = 5, TINY = 6 };

/* The same without sums of factors, so that the last collective is the gather of payloads. */
static const gcomp_tensor gathered[] = {
    {"sign", 30, 37, 0, GCOMP_F32, "sign:block=64"},
    {"topk", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
};

enum { GATHERED = sizeof gathered / sizeof gathered[0] };

enum { N = 30 * 37 };

#endif
