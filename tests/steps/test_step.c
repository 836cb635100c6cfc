/* Proves of the step: its means, and that failures leave no trace and disagreements are named.
   Then the same of tensors that are compressed and committed one by one. The workers run in one
   thread, in lock-step, over a transport that fails when it is told to. */

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

static double tick(void *user)
{
    double *now = (double *)user;
    *now += 1.0;
    return *now;
}

static void group_open_with(group *g, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count,
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

static void group_open(group *g, size_t world, const gcomp_tensor *tensors, size_t count)
{
    group_open_with(g, world, NULL, tensors, count, NULL);
}

static void group_close(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
    memset(g, 0, sizeof *g);
}

static int fault_hits(const group *g, size_t k, size_t w)
{
    return g->fault.kind != FAULT_NONE && g->fault.call == k && (g->fault.rank < 0 || (size_t)g->fault.rank == w);
}

static void carry_gather(group *g, size_t k)
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
static uint64_t ring_bytes(size_t n, size_t world)
{
    world = world > 1 ? world : 2;
    return (8 * (uint64_t)n * (world - 1) + world - 1) / world;
}

static void carry_sum(group *g, size_t k)
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
static void group_carry(group *g, size_t k)
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
static void group_pump(group *g)
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

static void group_begin(group *g, const gcomp_step *step)
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

static void group_ready(group *g, size_t w, size_t t, int skip)
{
    gcomp_result result = gcomp_step_ready(g->gc[w], t, skip ? NULL : g->grad[w][t]);
    CHECK(result == GCOMP_OK);
}

/* Commits where the step went to its end; the others have their error in result. */
static void group_finish(group *g)
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
static void group_step_skipping(group *g, const gcomp_step *step, unsigned skip)
{
    group_begin(g, step);
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) group_ready(g, w, t, (skip >> t & 1) != 0);
    group_finish(g);
}

static void group_step(group *g) { group_step_skipping(g, NULL, 0); }

static int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

/* ---------------- gradients, copies, comparisons */

/* Uniform in [-1, 1), a multiple of 2^-23. */
static float noise(uint64_t step, size_t worker, size_t tensor, size_t i)
{
    uint64_t x = mix(mix(step * 1000003u + worker * 101u + tensor) + i);
    return (float)((int32_t)(x >> 40) - 8388608) / 8388608.0f;
}

static float gradient(uint64_t step, size_t worker, size_t tensor, size_t i)
{
    float common = noise(step, 99, tensor, i);
    return (common + 0.5f * noise(step, worker, tensor, i)) * (1.0f + (float)(tensor % 3));
}

static void group_fill(group *g, uint64_t step)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++) g->grad[w][t][i] = gradient(step, w, t, i);
}

static void group_advance(group *g, uint64_t step)
{
    group_fill(g, step);
    group_step(g);
    CHECK(all_are(g, GCOMP_OK));
}

/* A pair is two equal groups. What a test does to a must leave no trace: a must still equal b. */
static void pair_advance(group *a, group *b, uint64_t step)
{
    group_advance(a, step);
    group_advance(b, step);
}

static void pair_open(group *a, group *b, size_t world, const gcomp_tensor *tensors, size_t count,
                      uint64_t steps) /* that both take */
{
    group_open(a, world, tensors, count);
    group_open(b, world, tensors, count);
    for (uint64_t step = 0; step < steps; step++) pair_advance(a, b, step);
}

static void pair_close(group *a, group *b)
{
    group_close(a);
    group_close(b);
}

/* All that a step may change of a worker: its gradients, then its residuals. */
static size_t worker_bytes(const group *g, size_t w, unsigned char *copy)
{
    size_t bytes = 0;
    for (size_t t = 0; t < g->count; t++) {
        const float *residual = gcomp_residual(g->gc[w], t);
        if (copy) memcpy(copy + bytes, g->grad[w][t], 4 * g->n[t]);
        bytes += 4 * g->n[t];
        if (!residual) continue;
        size_t n = gcomp_tensor_elements(g->gc[w], t); /* a worker may have another list of tensors */
        if (copy) memcpy(copy + bytes, residual, 4 * n);
        bytes += 4 * n;
    }
    return bytes;
}

typedef struct snapshot {
    unsigned char *bytes[WORLD_MAX];
    size_t length[WORLD_MAX], world;
} snapshot;

static snapshot snapshot_take(const group *g)
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

static void snapshot_free(snapshot *s)
{
    for (size_t w = 0; w < s->world; w++) free(s->bytes[w]);
}

static int worker_equals(const snapshot *a, const snapshot *b, size_t w)
{
    return a->length[w] == b->length[w] && memcmp(a->bytes[w], b->bytes[w], a->length[w]) == 0;
}

static int group_equals(const group *g, const snapshot *s)
{
    snapshot now = snapshot_take(g);
    int yes = 1;
    for (size_t w = 0; w < g->world; w++) yes = yes && worker_equals(&now, s, w);
    snapshot_free(&now);
    return yes;
}

static int groups_agree(const group *a, const group *b)
{
    snapshot s = snapshot_take(b);
    int yes = group_equals(a, &s);
    snapshot_free(&s);
    return yes;
}

/* Step 2 of a has failed, without a trace: a repeats the step, and both groups take step 3. */
static void check_repetition(group *a, group *b)
{
    group_step(a);
    CHECK(all_are(a, GCOMP_OK));
    group_advance(b, 2);
    CHECK(groups_agree(a, b));
    pair_advance(a, b, 3);
    CHECK(groups_agree(a, b));
}

static int means_agree(const group *g)
{
    for (size_t w = 1; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            if (memcmp(g->grad[0][t], g->grad[w][t], 4 * g->n[t]) != 0) return 0;
    return 1;
}

/* Does the text speak of worker w? */
static int names_worker(const char *text, size_t w)
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

/* ---------------- what a step gives */

static void test_means_are_equal_on_all_workers_bit_for_bit(void)
{
    for (size_t world = 1; world <= WORLD_MAX; world++) {
        group g;
        group_open(&g, world, mixed, MIXED);
        for (uint64_t step = 0; step < 6; step++) {
            group_advance(&g, step);
            CHECK(means_agree(&g));
            for (size_t w = 0; w < world; w++) CHECK(gcomp_step_number(g.gc[w]) == step + 1);
        }
        group_close(&g);
    }
}

static void test_uncompressed_tensors_get_the_plain_mean(void)
{
    for (size_t world = 1; world <= WORLD_MAX; world++) {
        group g;
        group_open(&g, world, mixed, MIXED);
        for (uint64_t step = 0; step < 3; step++) {
            for (size_t w = 0; w < world; w++)  /* few bits, so that sums are exact */
                for (size_t t = 0; t < g.count; t++)
                    for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = floorf(4096.0f * noise(step, w, t, i)) / 256.0f;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t t = VECTOR; t <= TINY; t++) {
                int good = 1;
                for (size_t i = 0; i < g.n[t]; i++) {
                    double sum = 0;
                    for (size_t w = 0; w < world; w++) sum += floorf(4096.0f * noise(step, w, t, i)) / 256.0f;
                    double mean = sum / (double)world, error = fabs((double)g.grad[0][t][i] - mean);
                    /* 3 roundings of terms, 2 of sums, 1 of 1/3; exact where 1/world is */
                    good = good && error <= (world == 3 ? 6 * 16.0 / 16777216.0 : 0.0);
                }
                CHECK(good);
                for (size_t w = 0; w < world; w++) CHECK(gcomp_residual(g.gc[w], t) == NULL);
            }
        }
        group_close(&g);
    }
}

static void test_nothing_is_lost_over_200_steps(void)
{
    static const char *const codecs[] = {"none", "fp16", "bf16", "sign:block=64", "sign:block=tensor", "topk:density=0.01",
                                         "topk:density=0.05+bf16", "topk:density=0.02+sign", "powersgd:rank=1",
                                         "powersgd:rank=4", "powersgd:rank=3,alternate=1"};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        gcomp_tensor tensor = {"w", 20, 31, 2, GCOMP_F32, NULL};
        enum { STEPS = 200, WORLD = 3 };
        group g;
        tensor.codec = codecs[c];
        group_open(&g, WORLD, &tensor, 1);
        size_t n = g.n[0];
        double *given = (double *)calloc(n, sizeof(double)), *got = (double *)calloc(n, sizeof(double));
        double largest = 0;
        for (uint64_t step = 0; step < STEPS; step++) {
            group_fill(&g, step);
            for (size_t w = 0; w < WORLD; w++)
                for (size_t i = 0; i < n; i++) given[i] += (double)g.grad[w][0][i] / WORLD;
            group_step(&g);
            for (size_t i = 0; i < n; i++) got[i] += (double)g.grad[0][0][i];
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = gcomp_residual(g.gc[w], 0);
                for (size_t i = 0; e && i < n; i++)
                    if (fabs((double)e[i]) > largest) largest = fabs((double)e[i]);
            }
        }
        largest += 1.5; /* a gradient */
        double worst = 0;
        for (size_t i = 0; i < n; i++) {
            double rest = 0;
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = gcomp_residual(g.gc[w], 0);
                rest += e ? (double)e[i] / WORLD : 0.0;
            }
            double error = fabs(got[i] + rest - given[i]);
            if (error > worst) worst = error;
        }
        /* p, p - decode, products and sums of the mean: 8 roundings of half an ulp a step, of
           numbers up to `largest`. They walk at random: 5 sigma of sqrt(8 * STEPS) steps of
           largest * 2^-24 / sqrt(3). Of low rank r: r times as many. */
        double bound = 5.0 * sqrt(8.0 * STEPS / 3.0) * largest / 16777216.0;
        printf("# %s: worst %.3g, bound %.3g\n", codecs[c], worst, bound);
        CHECK(all_are(&g, GCOMP_OK));
        CHECK(worst <= bound);
        free(given);
        free(got);
        group_close(&g);
    }
}

static void test_without_error_feedback_nothing_is_kept(void)
{
    gcomp_desc desc;
    group a, b;
    memset(&desc, 0, sizeof desc);
    desc.no_error_feedback = 1;
    group_open_with(&a, 2, &desc, gathered, GATHERED, NULL);
    group_open_with(&b, 2, &desc, gathered, GATHERED, NULL);
    group_advance(&a, 0);
    pair_advance(&a, &b, 1);
    CHECK(groups_agree(&a, &b));
    CHECK(gcomp_residual(a.gc[0], 0) == NULL);
    CHECK(gcomp_residual(a.gc[0], 1) == NULL);
    pair_close(&a, &b);
}

/* ---------------- order */

static void test_tensors_may_become_ready_in_any_order(void)
{
    for (unsigned way = 0; way < 4; way++) {
        group a, b;
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.measure = 1; /* what a schedule measures does not depend on it either */
        group_open_with(&a, 3, &desc, mixed, MIXED, NULL);
        group_open_with(&b, 3, &desc, mixed, MIXED, NULL);
        for (uint64_t step = 0; step < 4; step++) {
            gcomp_statistics one, other;
            group_fill(&a, step);
            group_begin(&a, NULL);
            for (size_t k = 0; k < MIXED; k++) {
                for (size_t w = 0; w < 3; w++) {
                    static const size_t stride[4] = {1, 3, 5, 2};  /* each has no factor in common with 7 */
                    size_t t = (k * stride[way] + w * (way ? 2 : 0)) % MIXED;
                    group_ready(&a, w, way == 0 ? MIXED - 1 - k : t, 0);
                }
                if (way >= 2) group_pump(&a);  /* communication while the backward pass goes on */
            }
            a.backwards = way == 3;
            group_finish(&a);
            CHECK(all_are(&a, GCOMP_OK));
            group_advance(&b, step);
            CHECK(groups_agree(&a, &b));
            for (size_t w = 0; w < 3; w++) {
                CHECK(gcomp_stats(a.gc[w], &one) == GCOMP_OK && gcomp_stats(b.gc[w], &other) == GCOMP_OK);
                CHECK(one.relative_error == other.relative_error && one.relative_error > 0);
                CHECK(one.mean_norm == other.mean_norm);
            }
        }
        pair_close(&a, &b);
    }
}

static void test_a_tensor_skipped_by_all_keeps_its_state(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a, b;
        pair_open(&a, &b, 2, mixed, MIXED, 1);
        float *residual = NULL;
        if (gcomp_residual(a.gc[1], t)) {
            residual = (float *)malloc(4 * a.n[t]);
            memcpy(residual, gcomp_residual(a.gc[1], t), 4 * a.n[t]);
        }
        group_fill(&a, 1);
        group_step_skipping(&a, NULL, 1u << t);
        CHECK(all_are(&a, GCOMP_OK));
        int untouched = 1;
        for (size_t i = 0; i < a.n[t]; i++) untouched = untouched && a.grad[1][t][i] == gradient(1, 1, t, i);
        CHECK(untouched);
        if (residual) CHECK(memcmp(residual, gcomp_residual(a.gc[1], t), 4 * a.n[t]) == 0);
        pair_advance(&a, &b, 2);  /* as if the skipped step had not been */
        for (size_t w = 0; w < 2; w++) {
            CHECK(memcmp(a.grad[w][t], b.grad[w][t], 4 * a.n[t]) == 0);
            if (residual) CHECK(memcmp(gcomp_residual(a.gc[w], t), gcomp_residual(b.gc[w], t), 4 * a.n[t]) == 0);
        }
        free(residual);
        pair_close(&a, &b);
    }
}

static void test_a_tensor_may_be_skipped_for_ever(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a, b;
        pair_open(&a, &b, 4, mixed, MIXED, 1);
        int good = 1;
        for (uint64_t step = 1; step < 150 && good; step++) { /* 4^75 is beyond float */
            group_fill(&a, step);
            group_step_skipping(&a, NULL, 1u << t);
            good = all_are(&a, GCOMP_OK);
        }
        CHECK(good);
        for (uint64_t step = 1; step < 150; step++) {
            group_fill(&b, step);
            group_step_skipping(&b, NULL, 1u << t);
        }
        CHECK(groups_agree(&a, &b));
        group_advance(&a, 150);
        CHECK(means_agree(&a));
        pair_close(&a, &b);
    }
}

static void test_a_refused_tensor_may_be_skipped_next(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a;
        group_open(&a, 2, mixed, MIXED);
        group_advance(&a, 0);
        group_fill(&a, 1);
        a.grad[0][t][3] = NAN;
        group_step(&a);
        CHECK(all_are(&a, GCOMP_NOT_FINITE));
        group_fill(&a, 1);
        group_step_skipping(&a, NULL, 1u << t);
        CHECK(all_are(&a, GCOMP_OK));
        group_advance(&a, 2);
        group_close(&a);
    }
}

static void test_a_step_with_every_tensor_skipped_passes(void)
{
    group g;
    group_open(&g, 2, mixed, MIXED);
    group_fill(&g, 0);
    snapshot before = snapshot_take(&g);
    group_step_skipping(&g, NULL, (1u << MIXED) - 1);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(group_equals(&g, &before));
    snapshot_free(&before);
    group_advance(&g, 1);
    CHECK(means_agree(&g));
    group_close(&g);
}

static void test_a_tensor_skipped_by_some_is_a_mismatch(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_advance(&g, 0);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++)
            for (size_t i = 0; i < MIXED; i++) group_ready(&g, w, i, w == 2 && i == t);
        group_finish(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        CHECK(names_worker(gcomp_error(g.gc[0]), 2));
        CHECK(names_worker(gcomp_error(g.gc[1]), 2));
        CHECK(strstr(gcomp_error(g.gc[2]), "skip") != NULL || strstr(gcomp_error(g.gc[2]), "NULL") != NULL);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_step(&g);  /* all saw it: nothing has changed, it can be tried again */
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

/* ---------------- not finite */

static void test_one_bad_gradient_is_refused_by_all_together(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < MIXED; t++) {
        for (size_t place = 0; place < 3; place++) {
            group a, b;
            size_t culprit = (t + place) % 3;
            pair_open(&a, &b, 3, mixed, MIXED, 2);
            group_fill(&a, 2);
            size_t i = place == 0 ? 0 : place == 1 ? a.n[t] - 1 : a.n[t] / 2;
            float good = a.grad[culprit][t][i];
            a.grad[culprit][t][i] = bad[place];
            snapshot before = snapshot_take(&a);
            group_step(&a);
            CHECK(all_are(&a, GCOMP_NOT_FINITE));
            CHECK(group_equals(&a, &before));
            for (size_t w = 0; w < 3; w++) {
                gcomp_statistics stats;
                CHECK(gcomp_stats(a.gc[w], &stats) == GCOMP_OK);
                CHECK(stats.skipped == 1 && stats.steps == 2 && stats.failed == 0);
                CHECK(stats.not_finite == (w == culprit ? 1u : 0u));
                CHECK(gcomp_error(a.gc[w])[0] != 0);
            }
            a.grad[culprit][t][i] = good;
            check_repetition(&a, &b);
            snapshot_free(&before);
            pair_close(&a, &b);
        }
    }
}

static void test_an_overflow_of_scale_times_gradient_is_refused(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        gcomp_step step = step_with(1024.0f, -1, 0);
        group g;
        group_open(&g, 2, mixed, MIXED);
        group_fill(&g, 0);
        g.grad[1][t][g.n[t] / 3] = 3e38f;
        snapshot before = snapshot_take(&g);
        group_step_skipping(&g, &step, 0);
        CHECK(all_are(&g, GCOMP_NOT_FINITE));
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_close(&g);
    }
}

static void test_large_finite_gradients_have_a_finite_mean(void)
{
    static const gcomp_tensor tensors[] = {{"none", 40, 40, 0, GCOMP_F32, "none"}, {"bf16", 40, 40, 0, GCOMP_F32, "bf16"},
                                           {"fp16", 40, 40, 0, GCOMP_F32, "fp16"}, {"sign", 40, 40, 0, GCOMP_F32, "sign"},
                                           {"topk", 40, 40, 0, GCOMP_F32, "topk"}};
    group g;
    group_open(&g, 4, tensors, 5);
    for (size_t w = 0; w < 4; w++)
        for (size_t t = 0; t < 5; t++)
            for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = 3e38f;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    int finite = 1;
    for (size_t t = 0; t < 5; t++)
        for (size_t i = 0; i < g.n[t]; i++) finite = finite && isfinite(g.grad[0][t][i]);
    CHECK(finite);
    CHECK(fabsf(g.grad[0][0][7] - 3e38f) <= 1e32f);
    group_close(&g);
}

/* ---------------- failures */

static size_t collectives_of_a_step(const gcomp_tensor *tensors, size_t count, size_t world)
{
    group g;
    group_open(&g, world, tensors, count);
    group_advance(&g, 0);
    size_t calls = g.carried;
    group_close(&g);
    return calls;
}

static void test_a_failure_that_all_see_leaves_no_trace_and_can_be_retried(void)
{
    size_t calls = collectives_of_a_step(mixed, MIXED, 3);
    CHECK(calls >= 3);  /* the frame, at least one gather, at least one sum */
    for (size_t call = 0; call < calls; call++) {
        group a, b;
        pair_open(&a, &b, 3, mixed, MIXED, 2);
        group_fill(&a, 2);
        snapshot before = snapshot_take(&a);
        fault all_fail = {FAULT_FAIL, call, -1, 0, 0};
        a.fault = all_fail;
        for (int again = 0; again < 2; again++) {
            group_step(&a);
            CHECK(all_are(&a, GCOMP_CALLBACK_FAILED));
            CHECK(group_equals(&a, &before));
        }
        a.fault.kind = FAULT_NONE;
        check_repetition(&a, &b);
        gcomp_statistics stats;
        CHECK(gcomp_stats(a.gc[1], &stats) == GCOMP_OK);
        CHECK(stats.failed == 2 && stats.steps == 4 && stats.skipped == 0);
        snapshot_free(&before);
        pair_close(&a, &b);
    }
}

/* After a fault in step 2 of a: the workers that saw it are untouched. If no worker has committed,
   the step is repeated; else the next frame names the worker that is behind. */
static void check_aftermath(group *a, group *b, const snapshot *before, size_t rank)
{
    snapshot now = snapshot_take(a);
    size_t committed = 0;
    CHECK(a->result[rank] != GCOMP_OK);
    for (size_t w = 0; w < a->world; w++) {
        if (a->result[w] == GCOMP_OK) committed++;
        else CHECK(worker_equals(&now, before, w));
    }
    snapshot_free(&now);
    a->fault.kind = FAULT_NONE;
    if (committed == 0) {
        group_step(a);
        CHECK(all_are(a, GCOMP_OK));
        group_advance(b, 2);
        CHECK(groups_agree(a, b));
        return;
    }
    group_fill(a, 3);
    now = snapshot_take(a);
    group_step(a);
    CHECK(all_are(a, GCOMP_OUT_OF_STEP));
    for (size_t w = 0; w < a->world; w++) {
        CHECK(names_worker(gcomp_error(a->gc[w]), rank));
        CHECK(strstr(gcomp_error(a->gc[w]), "step") != NULL);
    }
    CHECK(group_equals(a, &now));
    snapshot_free(&now);
    group_step(a);
    CHECK(all_are(a, GCOMP_OUT_OF_STEP));
    for (size_t w = 0; w < a->world; w++) CHECK(gcomp_restart(a->gc[w], 3) == GCOMP_OK);
    group_advance(a, 3);
    CHECK(means_agree(a));
    for (size_t w = 0; w < a->world; w++) CHECK(gcomp_restart(b->gc[w], 3) == GCOMP_OK);
    group_advance(b, 3);
    CHECK(groups_agree(a, b));
}

static void test_a_failure_that_one_sees_is_named_by_all_in_the_next_frame(void)
{
    for (int set = 0; set < 2; set++) {
        const gcomp_tensor *tensors = set ? gathered : mixed;
        size_t count = set ? (size_t)GATHERED : (size_t)MIXED, calls = collectives_of_a_step(tensors, count, 3), named = 0;
        for (size_t call = 0; call < calls; call++)
            for (size_t rank = 0; rank < 3; rank++) {
                group a, b;
                pair_open(&a, &b, 3, tensors, count, 2);
                group_fill(&a, 2);
                snapshot before = snapshot_take(&a);
                fault one_fails = {FAULT_FAIL, call, (int)rank, 0, 0};
                a.fault = one_fails;
                group_step(&a);
                CHECK(a.result[rank] == GCOMP_CALLBACK_FAILED);
                if (a.result[(rank + 1) % 3] == GCOMP_OK) named++;
                check_aftermath(&a, &b, &before, rank);
                snapshot_free(&before);
                pair_close(&a, &b);
            }
        CHECK(named == 3);  /* the last collective, on each of three workers */
    }
}

static void test_a_damaged_payload_is_refused_and_named_in_the_next_frame(void)
{
    static const size_t offsets[] = {32, 40, 100, SIZE_MAX};
    for (size_t rank = 0; rank < 3; rank++)
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            group a, b;
            pair_open(&a, &b, 3, gathered, GATHERED, 2);
            size_t last = a.carried - 1;
            CHECK(a.kind[last] == GCOMP_ALLGATHER && a.stride[last] > FRAME_BYTES);
            group_fill(&a, 2);
            snapshot before = snapshot_take(&a);
            fault flip = {FAULT_FLIP, last, (int)rank, (rank + o) % 3, offsets[o]};
            a.fault = flip;
            group_step(&a);
            CHECK(a.result[rank] == GCOMP_CHECKSUM_MISMATCH);
            CHECK(names_worker(gcomp_error(a.gc[rank]), (rank + o) % 3));
            for (size_t w = 0; w < 3; w++)
                if (w != rank) CHECK(a.result[w] == GCOMP_OK);
            check_aftermath(&a, &b, &before, rank);
            snapshot_free(&before);
            pair_close(&a, &b);
        }
}

static void test_every_damaged_byte_of_gathered_payloads_is_refused(void)
{
    group g;
    static const gcomp_tensor tensor = {"topk", 9, 21, 0, GCOMP_F32, "topk:density=0.05"};
    group_open(&g, 2, &tensor, 1);
    group_advance(&g, 0);
    size_t last = g.carried - 1, length = g.queue[0][last].bytes[1];
    for (size_t i = 0; i < length; i++) {
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(g.gc[w], 0) == GCOMP_OK);
        group_fill(&g, 0);
        fault flip = {FAULT_FLIP, last, -1, 1, i};
        g.fault = flip;
        snapshot before = snapshot_take(&g);
        group_step(&g);
        CHECK(g.result[0] != GCOMP_OK && g.result[0] == g.result[1]);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
    }
    group_close(&g);
}

static size_t frame_call(const group *g)
{
    size_t k = 0;
    while (k < g->carried && !(g->kind[k] == GCOMP_ALLGATHER && g->stride[k] == FRAME_BYTES)) k++;
    return k;
}

static void test_frames_in_wrong_order_are_a_mismatch(void)
{
    for (int rank = -1; rank < 3; rank++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_advance(&g, 0);
        size_t k = frame_call(&g);
        CHECK(k < g.carried);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g), after;
        fault swap = {FAULT_SWAP, k, rank, 0, 0};
        g.fault = swap;
        group_step(&g);
        after = snapshot_take(&g);
        for (size_t w = 0; w < 3; w++) {
            if (rank < 0 || (size_t)rank == w) {
                CHECK(g.result[w] == GCOMP_MISMATCH);
                CHECK(strstr(gcomp_error(g.gc[w]), "order") || strstr(gcomp_error(g.gc[w]), "rank"));
            }
            if (g.result[w] != GCOMP_OK) CHECK(worker_equals(&before, &after, w));
        }
        snapshot_free(&before);
        snapshot_free(&after);
        group_close(&g);
    }
}

static void test_a_damaged_frame_is_refused(void)
{
    group g;
    group_open(&g, 3, gathered, GATHERED);
    group_advance(&g, 0);
    size_t k = frame_call(&g), accepted = 0, touched = 0;
    for (size_t i = 0; i < FRAME_BYTES + 8; i++) {
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 1) == GCOMP_OK);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g);
        fault damage = {FAULT_FLIP, k, -1, 1, i};
        g.fault = damage;
        if (i >= FRAME_BYTES) g.fault.kind = FAULT_NOISE;
        group_step(&g);
        for (size_t w = 0; w < 3; w++)
            if (g.result[w] == GCOMP_OK) {
                if (w == 0) printf("# frame byte %d is not covered\n", (int)i);
                accepted++;
            } else {
                CHECK(g.result[w] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[w]), "rank 1 sent a frame that arrived damaged"));
            }
        if (!group_equals(&g, &before)) touched++;
        snapshot_free(&before);
        g.fault.kind = FAULT_NONE;
    }
    CHECK(accepted == 0);
    CHECK(touched == 0);
    group_close(&g);
}

/* ---------------- disagreement */

static int ignore_gatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    (void)user, (void)mine, (void)all, (void)bytes, (void)stride;
    return 1;
}

static int difference; /* which one odd_one() makes */
enum {
    ODD_SEED, ODD_CODEC, ODD_PARAMETER, ODD_ROWS, ODD_SHAPE, ODD_NAME, ODD_COUNT, ODD_DTYPE, ODD_FEEDBACK, ODD_CHECKSUM,
    ODD_CHECK_EVERY, ODD_GATHERV, ODD_END
};
static const char *const odd_word[ODD_END] = {"rank 2 has desc.seed 1, rank 0 has desc.seed 0", "codec topk, rank 0 has", "density=0.06, rank 0 has",
                                              "29 x ", "37 x 30 fp32, rank 0 has tensor", "'sing'", "rank 2 has no tensor", "fp16, rank 0 has",
                                              "no_error_feedback 1, rank 0 has desc.no_error_feedback 0", "no_checksum 1", "check_every 3",
                                              "rank 2 has comm.allgatherv set, rank 0 has comm.allgatherv NULL"};

static void odd_one(int rank, gcomp_desc *desc, gcomp_tensor *tensors, size_t *count)
{
    desc->comm.allreduce = no_allreduce;
    desc->comm.allgather = no_allgather;
    if (rank != 2) return;
    if (difference == ODD_SEED) desc->seed = 1;
    if (difference == ODD_CODEC) tensors[SIGN].codec = "topk";
    if (difference == ODD_PARAMETER) tensors[TOPK].codec = "topk:density=0.06";
    if (difference == ODD_ROWS) tensors[SIGN].rows = 29;
    if (difference == ODD_SHAPE) {
        tensors[SIGN].rows = 37;
        tensors[SIGN].cols = 30;
    }
    if (difference == ODD_NAME) tensors[SIGN].name = "sing";
    if (difference == ODD_COUNT) (*count)--;
    if (difference == ODD_DTYPE) tensors[VECTOR].dtype = GCOMP_F16;
    if (difference == ODD_FEEDBACK) desc->no_error_feedback = 1;
    if (difference == ODD_CHECKSUM) desc->no_checksum = 1;
    if (difference == ODD_CHECK_EVERY) desc->check_every = 3;
    if (difference == ODD_GATHERV) desc->comm.allgatherv = ignore_gatherv;
}

static void test_disagreement_is_a_mismatch_that_names_the_worker_and_the_difference(void)
{
    for (difference = 0; difference < ODD_END; difference++) {
        group g;
        group_open_with(&g, 3, NULL, mixed, MIXED, odd_one);
        group_fill(&g, 0);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < gcomp_tensor_count(g.gc[w]); t++) group_ready(&g, w, t, 0);
        group_finish(&g);
        int all = all_are(&g, GCOMP_MISMATCH),
            named = names_worker(gcomp_error(g.gc[0]), 2) && names_worker(gcomp_error(g.gc[1]), 2);
        int word = 1;
        for (size_t w = 0; w < 3; w++) word = word && strstr(gcomp_error(g.gc[w]), odd_word[difference]) != NULL;
        if (!all || !named || !word) printf("# difference %d: %s\n", difference, gcomp_error(g.gc[0]));
        CHECK(all);
        CHECK(named);
        CHECK(word);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_close(&g);
    }
}

static void test_another_step_number_is_out_of_step(void)
{
    for (size_t odd = 0; odd < 3; odd++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        CHECK(gcomp_restart(g.gc[odd], 7) == GCOMP_OK);
        CHECK(gcomp_step_number(g.gc[odd]) == 7);
        group_fill(&g, 0);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OUT_OF_STEP));
        for (size_t w = 0; w < 3; w++) CHECK(strstr(gcomp_error(g.gc[w]), "step") != NULL);
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 7) == GCOMP_OK);
        group_advance(&g, 7);
        CHECK(gcomp_step_number(g.gc[odd]) == 8);
        group_close(&g);
    }
}

static void larger_world(int rank, gcomp_desc *desc, gcomp_tensor *tensors, size_t *count)
{
    (void)tensors, (void)count;
    if (rank == 1) desc->comm.world = 4;
}

static void test_another_world_is_a_mismatch(void)
{
    group g;
    group_open_with(&g, 3, NULL, gathered, GATHERED, larger_world);
    group_fill(&g, 0);
    group_begin(&g, NULL);
    for (size_t w = 0; w < 3; w++)
        for (size_t t = 0; t < GATHERED; t++) group_ready(&g, w, t, 0);
    gcomp_request request[3];
    unsigned char frames[4 * FRAME_BYTES];
    memset(frames, 0, sizeof frames);
    for (size_t w = 0; w < 3; w++) {
        CHECK(gcomp_step_next(g.gc[w], &request[w]) == GCOMP_OK);
        CHECK(request[w].kind == GCOMP_ALLGATHER && request[w].stride == FRAME_BYTES);
        memcpy(frames + w * FRAME_BYTES, request[w].send, FRAME_BYTES);
    }
    for (size_t w = 0; w < 3; w++) {
        gcomp_request next;
        memcpy(request[w].recv, frames, (w == 1 ? 4 : 3) * FRAME_BYTES);
        gcomp_result result = gcomp_step_done(g.gc[w], request[w].id, 0);
        if (result == GCOMP_OK) result = gcomp_step_next(g.gc[w], &next);
        CHECK(result == GCOMP_MISMATCH);
        CHECK(w == 1 || strstr(gcomp_error(g.gc[w]), "world") != NULL);
        CHECK(w == 1 || names_worker(gcomp_error(g.gc[w]), 1));
    }
    group_close(&g);
}

static void test_instruction_sets_and_allocators_may_differ(void)
{
    gcomp_isa last = GCOMP_ISA_SCALAR;
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++)
        if (gcomp_isa_available((gcomp_isa)isa)) last = (gcomp_isa)isa;
    group a, b;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.isa = GCOMP_ISA_SCALAR;
    group_open_with(&a, 2, &desc, mixed, MIXED, NULL);
    group_open_with(&b, 2, &desc, mixed, MIXED, NULL);
    gcomp_close(b.gc[1]);
    desc.isa = last;
    desc.measure = 1;
    desc.comm.rank = 1;
    desc.comm.world = 2;
    CHECK(gcomp_open(&b.gc[1], &desc) == GCOMP_OK);
    for (size_t t = 0; t < MIXED; t++) CHECK(gcomp_add_tensor(b.gc[1], &mixed[t]) == GCOMP_OK);
    for (uint64_t step = 0; step < 5; step++) {
        pair_advance(&a, &b, step);
        CHECK(groups_agree(&a, &b));
    }
    pair_close(&a, &b);
}

static void test_a_corrupted_sum_on_one_worker_is_found_as_divergence(void)
{
    for (uint32_t every = 1; every <= 2; every++) {
        static const gcomp_tensor tensors[] = {{"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
                                               {"v", 100, 0, 0, GCOMP_F32, NULL}};
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.check_every = every;
        group g;
        group_open_with(&g, 3, &desc, tensors, 2, NULL);
        for (uint64_t step = 0; step < 4; step++) group_advance(&g, step);
        size_t k = 0, sums = 0;
        while (k < g.carried && g.kind[k] != GCOMP_ALLREDUCE) k++;
        for (size_t i = 0; i < g.carried; i++) sums += g.kind[i] == GCOMP_ALLREDUCE;
        printf("# %d sums a step\n", (int)sums);
        for (size_t i = g.carried; i-- > 0;)
            if (g.kind[i] == GCOMP_ALLREDUCE) {
                k = i;
                break;
            }
        fault corrupt = {FAULT_CORRUPT, k, 1, 0, 6}; /* a bit in the middle of a float: Q's or the vector's */
        g.fault = corrupt;
        group_fill(&g, 4);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));  /* nobody can see it yet */
        group_fill(&g, 5);
        group_step(&g);
        if (every == 2 && g.result[0] == GCOMP_OK) {
            group_fill(&g, 6);
            group_step(&g);
        }
        CHECK(all_are(&g, GCOMP_DIVERGED));
        g.fault.kind = FAULT_NONE;
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 20) == GCOMP_OK);
        for (uint64_t step = 20; step < 24; step++) group_advance(&g, step);
        group_close(&g);
    }
}

/* Rank `rank` takes part as a new worker: without a digest of the means before. */
static void rejoin(group *g, int rank, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    gcomp_desc desc = *base;
    const int other = rank == 1 ? 0 : 1;
    const size_t room = gcomp_save_size(g->gc[other]);
    uint8_t *save = (uint8_t *)malloc(room);
    size_t length = 0;
    CHECK(gcomp_save(g->gc[other], save, room, &length) == GCOMP_OK);
    gcomp_close(g->gc[rank]);
    desc.comm.rank = rank;
    desc.comm.world = (int)g->world;
    CHECK(gcomp_open(&g->gc[rank], &desc) == GCOMP_OK);
    for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(g->gc[rank], &tensors[t]) == GCOMP_OK);
    CHECK(gcomp_join(g->gc[rank], save, length) == GCOMP_OK);
    free(save);
}

static void test_a_worker_that_joins_sees_divergence_as_all_do(void)
{
    static const gcomp_tensor tensors[] = {{"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
                                           {"v", 100, 0, 0, GCOMP_F32, NULL}};
    for (int joiner = 0; joiner < 3; joiner++) {
        gcomp_desc desc;
        group g;
        memset(&desc, 0, sizeof desc);
        desc.check_every = 1;
        group_open_with(&g, 4, &desc, tensors, 2, NULL);
        group_advance(&g, 0);
        fault corrupt = {FAULT_CORRUPT, g.carried - 1, 3, 0, 6};
        g.fault = corrupt;
        group_fill(&g, 1);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        g.fault.kind = FAULT_NONE;
        rejoin(&g, joiner, &desc, tensors, 2);
        for (int again = 0; again < 2; again++) {
            group_fill(&g, 2);
            group_step(&g);
            CHECK(all_are(&g, GCOMP_DIVERGED));
            for (size_t w = 0; w < 4; w++)
                CHECK(strstr(gcomp_error(g.gc[w]), joiner ? "rank 3 holds other means than rank 0"
                                                          : "rank 3 holds other means than rank 1"));
        }
        rejoin(&g, 3, &desc, tensors, 2); /* the worker with other means joins anew: no reason to stop */
        for (uint64_t step = 2; step < 5; step++) group_advance(&g, step);
        group_close(&g);
    }
}

/* Workers with different byte orders compare this digest, and saves keep it. */
static void test_the_digest_of_means_is_that_of_little_endian_floats(void)
{
    uint8_t *save, word[4];
    uint32_t crc = 0;
    size_t length = 0;
    gcomp_desc desc;
    group g;
    memset(&desc, 0, sizeof desc);
    desc.check_every = 1;
    group_open_with(&g, 2, &desc, mixed, MIXED, NULL);
    group_advance(&g, 3);
    save = (uint8_t *)malloc(gcomp_save_size(g.gc[1]));
    CHECK(gcomp_save(g.gc[1], save, gcomp_save_size(g.gc[1]), &length) == GCOMP_OK);
    for (size_t t = 0; t < MIXED; t++)
        for (size_t i = 0; i < g.n[t]; i++) {
            uint32_t bits;
            memcpy(&bits, &g.grad[1][t][i], 4);
            put_word(word, bits, 4);
            crc = plain_crc(crc, word, 4);
        }
    CHECK(crc != 0 && get_word(save + 40, 4) == crc);
    free(save);
    group_close(&g);
}

/* ---------------- gradients that share memory */

enum { PARTS = 6, PART = 64 };

/* On rank 1, tensor t of PARTS lies at byte place[t] of one buffer; on the other rank the
   tensors lie apart. Tensors become ready in the order that `way` says. Returns the results of
   rank 1 and of the other rank, and the sentence of rank 1. */
static void share_memory(const size_t *place, const gcomp_dtype *dtype, int way, size_t bucket, gcomp_result *own, gcomp_result *other,
                         char *why)
{
    static const char *const names[PARTS] = {"a", "b", "c", "d", "e", "f"};
    static float buffer[2][PARTS * PART];
    gcomp_request request[2];
    gcomp *gc[2];
    gcomp_result result[2] = {GCOMP_OK, GCOMP_OK};
    uint64_t before[2];
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.codec = "int";
        desc.min_elements = 1;
        desc.compress_vectors = 1;
        desc.bucket_bytes = bucket;
        desc.comm.rank = w;
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < PARTS; t++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = names[t];
            tensor.rows = PART;
            tensor.dtype = dtype[t];
            CHECK(gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        }
        CHECK(gcomp_prepare(gc[w]) == GCOMP_OK);
        for (size_t i = 0; i < PARTS * PART; i++) buffer[w][i] = 0.5f;
        before[w] = fnv(FNV, buffer[w], sizeof buffer[w]);
    }
    for (int w = 0; w < 2; w++) {
        CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK);
        for (size_t k = 0; k < PARTS; k++) {
            const size_t t = way == 0 ? k : way == 1 ? PARTS - 1 - k : (5 * k + 3) % PARTS;
            void *grad = (char *)buffer[w] + (place[t] == SIZE_MAX ? 0 : w ? place[t] : 4 * PART * t);
            CHECK(gcomp_step_ready(gc[w], t, place[t] == SIZE_MAX ? NULL : grad) == GCOMP_OK);
        }
    }
    while (!result[0] && !result[1]) {
        for (int w = 0; w < 2; w++) result[w] = gcomp_step_next(gc[w], &request[w]);
        if (result[0] || result[1] || request[0].kind == GCOMP_DONE) break;
        CHECK(request[0].kind == GCOMP_ALLGATHER && request[1].kind == GCOMP_ALLGATHER);
        for (int w = 0; w < 2; w++)
            for (int f = 0; f < 2; f++)
                memcpy((char *)request[w].recv + (size_t)f * request[w].stride, request[f].send, request[f].bytes[f]);
        for (int w = 0; w < 2; w++) CHECK(gcomp_step_done(gc[w], request[w].id, 0) == GCOMP_OK);
    }
    *own = result[1];
    *other = result[0];
    snprintf(why, 256, "%s", gcomp_error(gc[1]));
    for (int w = 0; w < 2; w++) {
        if (!result[w]) CHECK(gcomp_step_commit(gc[w]) == GCOMP_OK);
        else CHECK(fnv(FNV, buffer[w], sizeof buffer[w]) == before[w]);
        gcomp_close(gc[w]);
    }
}

static void test_gradients_that_share_memory_are_refused_by_all(void)
{
    static const gcomp_dtype floats[PARTS] = {GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32};
    static const gcomp_dtype halves[PARTS] = {GCOMP_F16, GCOMP_F32, GCOMP_F16, GCOMP_BF16, GCOMP_F32, GCOMP_BF16};
    enum { ONE = 4 * PART };
    static const struct {
        size_t place[PARTS];
        const gcomp_dtype *dtype;
        const char *pair; /* NULL: apart */
    } cases[] = {{{0, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE}, floats, NULL},
                 {{5 * ONE, 3 * ONE, ONE, 0, 2 * ONE, 4 * ONE}, floats, NULL},
                 {{0, ONE, 2 * ONE, ONE, 4 * ONE, 5 * ONE}, floats, "tensor 'b' and tensor 'd': their gradients share memory"},
                 {{5 * ONE, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE}, floats, "tensor 'a' and tensor 'f'"},
                 {{0, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE - 4}, floats, "tensor 'e' and tensor 'f'"},
                 {{4 * ONE + ONE / 2, 0, ONE, 2 * ONE, 3 * ONE, 4 * ONE}, floats, "tensor 'a' and tensor 'f'"},
                 {{0, ONE / 2, 3 * ONE / 2, 2 * ONE, 5 * ONE / 2, 7 * ONE / 2}, halves, NULL},
                 {{0, ONE / 2, 3 * ONE / 2 - 2, 2 * ONE, 5 * ONE / 2, 7 * ONE / 2}, halves, "tensor 'b' and tensor 'c'"},
                 {{0, SIZE_MAX, 2 * ONE, SIZE_MAX, 4 * ONE, 5 * ONE}, floats, NULL},
                 {{SIZE_MAX, SIZE_MAX, 2 * ONE, 2 * ONE, SIZE_MAX, SIZE_MAX}, floats, "tensor 'c' and tensor 'd'"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int way = 0; way < 3; way++)
            for (size_t bucket = 0; bucket <= 600; bucket += 300) {
                gcomp_result own, other;
                char why[256];
                share_memory(cases[c].place, cases[c].dtype, way, bucket, &own, &other, why);
                CHECK(own == (cases[c].pair ? GCOMP_INVALID_ARGUMENT : GCOMP_OK));
                CHECK(other == (cases[c].pair ? GCOMP_PEER_FAILED : GCOMP_OK));
                CHECK(!cases[c].pair || strstr(why, cases[c].pair));
            }
}

static int calls_of_comm;
static int gather_alone(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user, (void)mine, (void)all, (void)bytes;
    calls_of_comm++;
    return 1; /* nobody else is there: after one frame it is over */
}

/* gcomp_exchange sends nothing but the frame that tells of the shared memory, also where tensors of
   later buckets share it. Many tensors are sorted quickly. */
static void test_exchange_knows_all_gradients_before_it_sends_anything(void)
{
    enum { MANY = 3000 };
    static float buffer[8 * MANY + 8];
    static void *grads[MANY];
    for (int way = 0; way < 4; way++)
        for (int tied = 0; tied < 2; tied++) {
            gcomp_desc desc;
            gcomp *gc;
            memset(&desc, 0, sizeof desc);
            desc.bucket_bytes = 4000;
            CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
            for (size_t t = 0; t < MANY; t++) {
                const size_t at = way == 0 ? t : way == 1 ? MANY - 1 - t : way == 2 ? t * 1009 % MANY : t ^ 1;
                char name[16];
                gcomp_tensor tensor;
                memset(&tensor, 0, sizeof tensor);
                snprintf(name, sizeof name, "%d", (int)t);
                tensor.name = name;
                tensor.rows = 8;
                CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
                grads[t] = buffer + 8 * at;
            }
            if (tied) grads[7] = (float *)grads[2500] + 7;
            for (int again = 0; again < 2; again++) {
                CHECK(gcomp_exchange_any(gc, grads, NULL) == (tied ? GCOMP_INVALID_ARGUMENT : GCOMP_OK));
                CHECK(!tied || strstr(gcomp_error(gc), "tensor '7' and tensor '"));
            }
            gcomp_close(gc);
        }
    for (int any = 0; any < 2; any++) {
        gcomp_desc desc;
        gcomp_tensor tensor;
        gcomp *gc;
        float *two[2] = {buffer, buffer + 1};
        memset(&desc, 0, sizeof desc);
        memset(&tensor, 0, sizeof tensor);
        desc.comm.world = 2;
        desc.comm.allgather = gather_alone;
        tensor.rows = 2;
        tensor.codec = "sign";
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        tensor.name = "p";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        tensor.name = "q";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        calls_of_comm = 0;
        CHECK((any ? gcomp_exchange_any(gc, (void *const *)two, NULL) : gcomp_exchange(gc, two, NULL)) == GCOMP_CALLBACK_FAILED);
        CHECK(calls_of_comm == 1); /* the frame, so that nobody waits */
        gcomp_close(gc);
    }
}

/* ---------------- memory */

enum { PAGE = 4096, FRESH = 0xA5, BLOCKS = 256 };

typedef struct pages {
    uint8_t *raw[BLOCKS], *block[BLOCKS]; /* block NULL: freed */
    size_t bytes[BLOCKS], count;
} pages;

static void *pages_alloc(void *user, size_t bytes, size_t align)
{
    pages *p = (pages *)user;
    uint8_t *raw = (uint8_t *)malloc(bytes + 2 * PAGE), *block;
    if (!raw || p->count == BLOCKS || align > PAGE) abort();
    memset(raw, FRESH, bytes + 2 * PAGE);
    block = raw + PAGE - (uintptr_t)raw % PAGE;
    p->raw[p->count] = raw;
    p->block[p->count] = block;
    p->bytes[p->count++] = bytes;
    return block;
}

static void pages_free(void *user, void *memory, size_t bytes)
{
    pages *p = (pages *)user;
    (void)bytes;
    for (size_t i = 0; i < p->count; i++)
        if (p->block[i] == memory) {
            free(p->raw[i]);
            p->block[i] = NULL;
            p->bytes[i] = 0;
        }
}

/* Bytes of pages that hold something else than what the allocator left there. */
static size_t pages_touched(const pages *p)
{
    size_t touched = 0;
    for (size_t i = 0; i < p->count; i++)
        for (size_t at = 0; at < p->bytes[i]; at += PAGE) {
            size_t k = 0;
            while (k < PAGE && p->block[i][at + k] == FRESH) k++;
            touched += k < PAGE ? PAGE : 0;
        }
    return touched;
}

/* An object reserves room for the longest payloads that there can be. A system that gives memory
   page by page gives only what is used. */
static void test_memory_that_a_step_does_not_use_is_not_touched(void)
{
    enum { N = 200000, USED = 2000, WORKERS = 4 };
    static const char *const codecs[] = {"nonzero", "strom:threshold=0.5", "dryden:density=0.001", "topk:density=0.01"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int buckets = 0; buckets < 2; buckets++) {
            const gcomp_tensor tensors[2] = {{"a", N, 0, 0, GCOMP_F32, codecs[c]}, {"b", N, 0, 0, GCOMP_F32, codecs[c]}};
            static pages memory;
            size_t touched, reserved;
            gcomp_desc desc;
            group g;
            memset(&desc, 0, sizeof desc);
            memset(&memory, 0, sizeof memory);
            desc.allocator.user = &memory;
            desc.allocator.alloc = pages_alloc;
            desc.allocator.free = pages_free;
            desc.bucket_bytes = buckets ? 4 * N : 0;
            desc.no_error_feedback = 1;
            group_open_with(&g, WORKERS, &desc, tensors, 2, NULL);
            for (size_t w = 0; w < WORKERS; w++) CHECK(gcomp_prepare(g.gc[w]) == GCOMP_OK);
            touched = pages_touched(&memory) / WORKERS;
            CHECK(touched < 40 * PAGE);
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                for (size_t w = 0; w < WORKERS; w++)
                    for (size_t t = 0; t < 2; t++)
                        for (size_t i = USED; i < N; i++) g.grad[w][t][i] = 0; /* few rows of an embedding */
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
            }
            touched = pages_touched(&memory) / WORKERS;
            reserved = gcomp_memory_used(g.gc[0]);
            printf("# %s, %s: %d KB reserved, %d touched\n", codecs[c], buckets ? "2 buckets" : "1 bucket", (int)(reserved / 1024),
                   (int)(touched / 1024));
            CHECK(touched < reserved / 4 || reserved < 2 * 4 * N);
            group_close(&g);
        }
}

static void test_memory_needed_is_memory_used_by_every_method(void)
{
    static const size_t elements[] = {1, 300, 5000};
    size_t opened = 0;
    for (size_t m = 0; gcomp_method_name(m); m++)
        for (int world = 1; world <= 17; world += world < 2 ? 1 : 5)
            for (int way = 0; way < 10; way++) {
                gcomp_tensor tensors[3];
                gcomp_desc desc;
                gcomp *gc;
                size_t needed;
                memset(&desc, 0, sizeof desc);
                memset(tensors, 0, sizeof tensors);
                desc.codec = gcomp_method_name(m);
                desc.min_elements = 1;
                desc.compress_vectors = 1;
                desc.comm.world = world;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
                desc.aggregate = (gcomp_aggregate)(way % 5);
                desc.bucket_bytes = way >= 5 ? 2000 : 0;
                for (size_t t = 0; t < 3; t++) {
                    static const char *const names[] = {"x", "y", "z"};
                    tensors[t].name = names[t];
                    tensors[t].rows = elements[t];
                    tensors[t].cols = 7;
                }
                needed = gcomp_memory_needed(&desc, tensors, 3);
                CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && needed > 0);
                for (size_t t = 0; t < 3; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
                CHECK(gcomp_prepare(gc) == GCOMP_OK);
                if (gcomp_memory_used(gc) != needed)
                    printf("# %s, world %d, way %d: needed %lu, used %lu\n", desc.codec, world, way, (unsigned long)needed,
                           (unsigned long)gcomp_memory_used(gc));
                CHECK(gcomp_memory_used(gc) == needed);
                gcomp_close(gc);
                opened++;
            }
    CHECK(opened > 500);
}

/* ---------------- scale and element types */

static void test_scaled_gradients_give_the_same_bits(void)
{
    group a, b;
    gcomp_step step = step_with(1.0f / 1024.0f, -1, 0);
    pair_open(&a, &b, 3, mixed, MIXED, 0);
    for (uint64_t s = 0; s < 4; s++) {
        group_advance(&a, s);
        group_fill(&b, s);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MIXED; t++)
                for (size_t i = 0; i < b.n[t]; i++) b.grad[w][t][i] *= 1024.0f;
        group_step_skipping(&b, &step, 0);
        CHECK(all_are(&b, GCOMP_OK));
        CHECK(groups_agree(&a, &b));
    }
    pair_close(&a, &b);
}

/* A scale is that of the loss, or a rate: a worker's own weight is gcomp_step.samples. */
static void test_what_workers_tell_of_a_step_is_compared(void)
{
    static const gcomp_tensor tensor = {"v", 300, 0, 0, GCOMP_F32, NULL};
    static const char *const said[] = {"rank 1 has step.scale 1.5, rank 0 has step.scale 0.5", "rank 1 has step.batch 20, rank 0 has step.batch 10",
                                       "rank 1 has step.number 4, rank 0 has step.number 3", "rank 1 has step.epoch 2, rank 0 has step.epoch 1",
                                       "rank 1 has step.batch over 1e40, rank 0 has step.batch below 1e-40",
                                       "rank 1 has step.scale -1.5, rank 0 has step.scale below 1e-40"};
    for (int field = 0; field < 6; field++) {
        group g;
        group_open(&g, 3, &tensor, 1);
        group_fill(&g, 0);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++) {
            gcomp_step step = gcomp_step_default();
            const int other = w == 1;
            if (field == 0) step.scale = other ? 1.5f : 0.5f;
            if (field == 1) step.samples = 5, step.batch = other ? 20 : 10;
            if (field == 2) step.number = other ? 4 : 3;
            if (field == 3) step.epoch = other ? 2 : 1;
            if (field == 4) step.samples = 1e-200, step.batch = other ? 1e200 : 1e-200;
            if (field == 5) step.scale = other ? -1.5f : 1e-43f;
            CHECK(gcomp_step_abort(g.gc[w]) == GCOMP_OK);
            CHECK(gcomp_step_begin(g.gc[w], &step) == GCOMP_OK);
            group_ready(&g, w, 0, 0);
        }
        group_finish(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        for (size_t w = 0; w < 3; w++) CHECK(strstr(gcomp_error(g.gc[w]), said[field]));
        group_close(&g);
    }
}

/* One worker has nobody to send to: the gradient comes back as it is, with what waited in the residual. */
static void test_one_worker_alone_loses_nothing(void)
{
    static const char *const codecs[] = {"topk:density=0.02", "sign", "powersgd:rank=1", "int:bits=2", "sketch", "randomk", "intsum:rounding=nearest"};
    static float grad[2][4096], before[4096];
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int kind = 0; kind < 2; kind++) {
            static float waits[4096];
            gcomp *gc[2];
            gcomp_comm alone;
            char text[400];
            memset(&alone, 0, sizeof alone);
            for (int w = 0; w < 2; w++) { /* two workers take a step; then one of them is left */
                gcomp_desc desc;
                gcomp_tensor tensor = {"w", 64, 64, 0, GCOMP_F32, NULL};
                memset(&desc, 0, sizeof desc);
                desc.codec = codecs[c];
                desc.residual = kind ? "bf16" : NULL;
                desc.comm.rank = w;
                desc.comm.world = 2;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
                CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
                for (size_t i = 0; i < 4096; i++) grad[w][i] = noise(3, (size_t)w, 0, i);
            }
            CHECK(gcomp_commit(gc[0], 0, grad[0], NULL, 0, NULL, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_regroup(gc[0], &alone) == GCOMP_OK);
            CHECK(gcomp_residual_get(gc[0], 0, waits) == GCOMP_OK);
            gcomp_describe(gc[0], text, sizeof text);
            CHECK(strstr(text, "fp32, none (one worker alone; with more: ") && strstr(text, codecs[c]) && strstr(text, " 1.0 times less"));
            for (size_t i = 0; i < 4096; i++) before[i] = grad[0][i] = noise(4, 0, 0, i);
            CHECK(gcomp_exchange_flat(gc[0], grad[0], NULL) == GCOMP_OK);
            size_t wrong = 0;
            for (size_t i = 0; i < 4096; i++) wrong += grad[0][i] != before[i] + waits[i];
            CHECK(wrong == 0 && gcomp_residual_get(gc[0], 0, waits) == GCOMP_OK);
            for (size_t i = 0; i < 4096; i++) wrong += waits[i] != 0;
            CHECK(wrong == 0);
            alone.world = 2; /* and another joins: the codec is back */
            alone.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
            CHECK(gcomp_regroup(gc[0], &alone) == GCOMP_OK);
            gcomp_describe(gc[0], text, sizeof text);
            CHECK(!strstr(text, "alone") && strstr(text, codecs[c]));
            gcomp_close(gc[0]);
            gcomp_close(gc[1]);
        }
}

/* What an allreduce does: nothing, 1 it averages, 2 it adds, 3 what it adds is not a number. */
static void test_an_allreduce_that_does_not_add_is_named_in_the_first_step(void)
{
    static const char *const codecs[] = {"none", "powersgd:rank=1", "intsum:bits=8", "intsum:bits=16", "intsum:bits=32", "fp16", "bf16"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int does = 0; does < 4; does++) {
            gcomp *gc[3];
            static float grad[3][4096];
            gcomp_request q[3];
            gcomp_result result[3] = {GCOMP_OK, GCOMP_OK, GCOMP_OK};
            const int halves = codecs[c][1] == 'p' || codecs[c][1] == 'f';
            if (halves && does) continue; /* this test can add integers and floats */
            if (does == 3 && c > 1) continue; /* integers are numbers */
            for (int w = 0; w < 3; w++) {
                gcomp_desc desc;
                gcomp_tensor tensor = {"w", 64, 64, 0, GCOMP_F32, NULL};
                memset(&desc, 0, sizeof desc);
                desc.codec = codecs[c];
                desc.comm.rank = w;
                desc.comm.world = 3;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32 | 1u << GCOMP_F16 | 1u << GCOMP_BF16;
                CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
                for (size_t i = 0; i < 4096; i++) grad[w][i] = 1;
                CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad[w]) == GCOMP_OK);
            }
            for (int call = 0; call < 9 && result[0] == GCOMP_OK; call++) {
                for (int w = 0; w < 3; w++) result[w] = gcomp_step_next(gc[w], &q[w]);
                if (result[0] != GCOMP_OK || q[0].kind == GCOMP_DONE) break;
                for (int w = 0; w < 3 && q[0].kind == GCOMP_ALLGATHER; w++)
                    for (int from = 0; from < 3; from++)
                        memcpy((char *)q[w].recv + (size_t)from * q[w].stride, q[from].send, q[from].bytes[from]);
                if (q[0].kind == GCOMP_ALLREDUCE && does) {
                    for (int w = 1; w < 3; w++) plain_reduce(&q[0], &q[w]);
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_F32; i++) ((float *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I8; i++) ((int8_t *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I16; i++) ((int16_t *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I32; i++) ((int32_t *)q[0].recv)[i] /= 3;
                    if (does == 3) ((float *)q[0].recv)[q[0].count - 1] = c ? NAN : -INFINITY;
                    for (int w = 1; w < 3; w++) memcpy(q[w].recv, q[0].recv, q[0].count * bytes_of_dtype(q[0].dtype));
                }
                for (int w = 0; w < 3; w++) CHECK(gcomp_step_done(gc[w], q[w].id, 0) == GCOMP_OK);
            }
            for (int w = 0; w < 3; w++) {
                if (does == 2) {
                    CHECK(result[w] == GCOMP_OK && gcomp_step_commit(gc[w]) == GCOMP_OK);
                } else {
                    CHECK(result[w] == GCOMP_MISSING_CALLBACK && grad[w][0] == 1);
                    CHECK(strstr(gcomp_error(gc[w]), does == 3 ? "comm.allreduce makes NaN or Inf of a one from each of 3 workers: it must add"
                                                               : "comm.allreduce makes 1 of a one from each of 3 workers: it must add, and not average"));
                }
                gcomp_close(gc[w]);
            }
        }
}

/* What another version of the library sends may mean something else. */
static void test_another_version_of_the_library_is_named(void)
{
    gcomp *gc[2];
    gcomp_request q[2];
    static float grad[2][100];
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc;
        gcomp_tensor tensor = {"w", 100, 0, 0, GCOMP_F32, NULL};
        memset(&desc, 0, sizeof desc);
        desc.comm.rank = w;
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad[w]) == GCOMP_OK);
        CHECK(gcomp_step_next(gc[w], &q[w]) == GCOMP_OK && q[w].stride == FRAME_BYTES);
    }
    gcomp_result result = GCOMP_OK;
    for (int call = 0; call < 20 && result == GCOMP_OK; call++) {
        uint8_t *all = (uint8_t *)q[0].recv, *other = all + FRAME_BYTES;
        memcpy(all, q[0].send, FRAME_BYTES);
        memcpy(other, call ? q[0].send : q[1].send, FRAME_BYTES);
        put_word(other + 4, 1, 4);
        if (call == 0) put_word(other + 44, 7, 4); /* the digest of options */
        else memcpy(other + 16, "GCOMP_VERSION 603", 18); /* looked for, it is the first that differs; then its text */
        put_word(other + 60, plain_crc(0, other, 60), 4);
        CHECK(gcomp_step_done(gc[0], q[0].id, 0) == GCOMP_OK);
        result = gcomp_step_next(gc[0], &q[0]);
        CHECK(result != GCOMP_OK || q[0].stride == FRAME_BYTES);
    }
    CHECK(result == GCOMP_MISMATCH);
    CHECK(strstr(gcomp_error(gc[0]), "rank 1 has GCOMP_VERSION 603, rank 0 has GCOMP_VERSION 400"));
    gcomp_close(gc[0]);
    gcomp_close(gc[1]);
}

/* A bad scale is this worker's error: it joins the frame, and the others hear of it. */
static void test_a_bad_scale_on_one_worker_fails_its_peers_in_the_frame(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_fill(&g, 0);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        gcomp_step step = gcomp_step_default();
        step.scale = bad[i];
        CHECK(gcomp_step_abort(g.gc[1]) == GCOMP_OK);
        CHECK(gcomp_step_begin(g.gc[1], &step) == GCOMP_OK);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MIXED; t++) group_ready(&g, w, t, 0);
        group_finish(&g);
        CHECK(g.result[0] == GCOMP_PEER_FAILED);
        CHECK(g.result[1] == GCOMP_INVALID_ARGUMENT);
        CHECK(strstr(gcomp_error(g.gc[1]), "scale") != NULL);
        CHECK(g.result[2] == GCOMP_PEER_FAILED);
        CHECK(names_worker(gcomp_error(g.gc[0]), 1));
        CHECK(group_equals(&g, &before));
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        snapshot_free(&before);
        group_close(&g);
    }
}

/* From the definitions: sign, exponent, 10 bits; to nearest, ties to even, saturated. */
static uint16_t half_of(float x)
{
    double a = fabs((double)x), best = 0;
    uint16_t found = 0, sign = signbit(x) ? 0x8000 : 0;
    if (a >= 65504.0) return (uint16_t)(sign | 0x7BFF);
    unsigned low = 0, high = 0x7BFF;
    while (low < high) { /* the largest half that is not above a */
        unsigned middle = (low + high + 1) / 2;
        double value =
            middle < 1024 ? ldexp((double)middle, -24) : ldexp((double)(1024 + (middle & 1023)), (int)(middle >> 10) - 25);
        if (value <= a) low = middle;
        else high = middle - 1;
    }
    double below = low < 1024 ? ldexp((double)low, -24) : ldexp((double)(1024 + (low & 1023)), (int)(low >> 10) - 25);
    unsigned up = low + 1;
    double above = up < 1024 ? ldexp((double)up, -24) : ldexp((double)(1024 + (up & 1023)), (int)(up >> 10) - 25);
    (void)best;
    found = (uint16_t)low;
    if (low < 0x7BFF && (a - below > above - a || (a - below == above - a && (low & 1)))) found = (uint16_t)up;
    return (uint16_t)(sign | found);
}

static float float_of_half(uint16_t h)
{
    unsigned low = h & 0x7FFF;
    double value = low < 1024 ? ldexp((double)low, -24) : ldexp((double)(1024 + (low & 1023)), (int)(low >> 10) - 25);
    return (float)(h & 0x8000 ? -value : value);
}

static uint16_t bfloat_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float float_of_bfloat(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static void test_half_gradients_hold_the_rounded_mean_of_the_float_run(void)
{
    for (int type = GCOMP_F16; type <= GCOMP_BF16; type++) {
        gcomp_tensor narrow[MIXED];
        group a, b;
        memcpy(narrow, mixed, sizeof mixed);
        for (size_t t = 0; t < MIXED; t++) narrow[t].dtype = (gcomp_dtype)type;
        group_open(&a, 2, mixed, MIXED);
        group_open(&b, 2, narrow, MIXED);  /* its gradient arrays hold 2 bytes an element */
        for (uint64_t step = 0; step < 4; step++) {
            group_fill(&a, step);
            for (size_t w = 0; w < 2; w++)
                for (size_t t = 0; t < MIXED; t++)
                    for (size_t i = 0; i < a.n[t]; i++) {
                        uint16_t x = type == GCOMP_F16 ? half_of(a.grad[w][t][i]) : bfloat_of(a.grad[w][t][i]);
                        ((uint16_t *)(void *)b.grad[w][t])[i] = x;
                        a.grad[w][t][i] = type == GCOMP_F16 ? float_of_half(x) : float_of_bfloat(x);
                    }
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK));
            CHECK(all_are(&b, GCOMP_OK));
            for (size_t w = 0; w < 2; w++)
                for (size_t t = 0; t < MIXED; t++) {
                    const uint16_t *got = (const uint16_t *)(const void *)b.grad[w][t];
                    size_t wrong = 0;
                    for (size_t i = 0; i < a.n[t]; i++)
                        wrong += got[i] != (type == GCOMP_F16 ? half_of(a.grad[w][t][i]) : bfloat_of(a.grad[w][t][i]));
                    if (wrong) printf("# %s: %d wrong\n", mixed[t].name, (int)wrong);
                    CHECK(wrong == 0);
                    const float *ea = gcomp_residual(a.gc[w], t), *eb = gcomp_residual(b.gc[w], t);
                    CHECK((ea == NULL) == (eb == NULL));
                    if (ea && eb) CHECK(memcmp(ea, eb, 4 * a.n[t]) == 0);
                }
        }
        pair_close(&a, &b);
    }
}

static void test_exchange_any_of_one_worker_rounds_and_saturates(void)
{
    static const gcomp_tensor tensors[] = {{"h", 40, 40, 0, GCOMP_F16, "topk:density=0.5"}, {"b", 70, 0, 0, GCOMP_BF16, NULL},
                                           {"f", 70, 0, 0, GCOMP_F32, NULL}};
    gcomp *gc;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < 3; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
    uint16_t h[1600], b[70];
    float f[70];
    for (size_t i = 0; i < 1600; i++) h[i] = half_of(60000.0f);
    for (size_t i = 0; i < 70; i++) {
        b[i] = bfloat_of(noise(1, 0, 0, i));
        f[i] = noise(2, 0, 0, i);
    }
    void *grads[3];
    grads[0] = h;
    grads[1] = b;
    grads[2] = f;
    CHECK(gcomp_exchange_any(gc, grads, NULL) == GCOMP_OK);
    CHECK(h[0] == half_of(60000.0f) && h[799] == half_of(60000.0f) && h[800] == 0); /* of equals the first are kept */
    CHECK(gcomp_exchange_any(gc, grads, NULL) == GCOMP_OK);
    CHECK(h[0] == half_of(60000.0f) || h[800] == half_of(60000.0f));
    for (size_t i = 0; i < 1600; i++) h[i] = 0x7BFF;
    for (int step = 0; step < 3; step++) {  /* the residual adds up above 65504: saturated, never infinite */
        CHECK(gcomp_exchange_any(gc, grads, NULL) == GCOMP_OK);
        for (size_t i = 0; i < 1600; i++) {
            CHECK((h[i] & 0x7C00) != 0x7C00);
            h[i] = 0x7BFF;
        }
    }
    for (size_t i = 0; i < 70; i++) CHECK(b[i] == bfloat_of(noise(1, 0, 0, i)) && f[i] == noise(2, 0, 0, i));
    gcomp_close(gc);
}

/* ---------------- abort, state, statistics */

static void test_abort_leaves_everything_as_it_was(void)
{
    for (size_t stage = 0; stage < 5; stage++) {
        group a, b;
        pair_open(&a, &b, 2, mixed, MIXED, 1);
        group_fill(&a, 1);
        snapshot before = snapshot_take(&a);
        group_begin(&a, NULL);
        size_t some = stage == 0 ? 0 : stage == 1 ? 3 : (size_t)MIXED;
        for (size_t w = 0; w < 2; w++)
            for (size_t t = 0; t < some; t++) group_ready(&a, w, t, 0);
        if (stage == 3)
            for (size_t w = 0; w < 2; w++) CHECK(gcomp_step_next(a.gc[w], &a.queue[w][0]) == GCOMP_OK);
        if (stage == 4) group_pump(&a);  /* all communicated, not committed */
        for (size_t w = 0; w < 2; w++) {
            CHECK(gcomp_step_abort(a.gc[w]) == GCOMP_OK);
            CHECK(gcomp_step_abort(a.gc[w]) == GCOMP_OK);  /* no effect outside a step */
            CHECK(gcomp_step_number(a.gc[w]) == 1);
        }
        CHECK(group_equals(&a, &before));
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK));
        group_advance(&b, 1);
        CHECK(groups_agree(&a, &b));
        snapshot_free(&before);
        pair_close(&a, &b);
    }
}

static void test_calls_out_of_order_are_refused_and_do_no_harm(void)
{
    group a, b;
    gcomp_request request;
    float *none[MIXED] = {0};
    static const gcomp_tensor late = {"late", 5, 0, 0, GCOMP_F32, NULL};
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.comm.allreduce = no_allreduce;
    desc.comm.allgather = no_allgather;
    group_open_with(&a, 2, &desc, mixed, MIXED, NULL);
    group_open(&b, 2, mixed, MIXED);
    gcomp *gc = a.gc[0];
    CHECK(gcomp_step_ready(gc, 0, a.grad[0][0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_next(gc, &request) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_done(gc, 0, 0) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_error(gc)[0] != 0);
    group_fill(&a, 0);
    group_begin(&a, NULL);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_prepare(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_add_tensor(gc, &late) == GCOMP_WRONG_STATE);
    CHECK(gcomp_exchange(gc, none, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_reset(gc, 0) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_ready(gc, MIXED, a.grad[0][0]) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_next(gc, NULL) == GCOMP_INVALID_ARGUMENT);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < MIXED; t++) group_ready(&a, w, t, 0);
    CHECK(gcomp_step_ready(gc, 1, a.grad[0][1]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    gcomp_result unknown = gcomp_step_done(gc, 12345, 0);
    CHECK(unknown == GCOMP_INVALID_ARGUMENT || unknown == GCOMP_WRONG_STATE);
    group_finish(&a);
    CHECK(all_are(&a, GCOMP_OK));
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_add_tensor(gc, &late) == GCOMP_WRONG_STATE);
    group_advance(&b, 0);
    CHECK(groups_agree(&a, &b));
    pair_advance(&a, &b, 1);
    CHECK(groups_agree(&a, &b));
    pair_close(&a, &b);
}

static void test_a_request_is_done_once(void)
{
    group g;
    group_open(&g, 2, gathered, GATHERED);
    group_fill(&g, 0);
    group_begin(&g, NULL);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < GATHERED; t++) group_ready(&g, w, t, 0);
    gcomp_request request[2];
    for (size_t w = 0; w < 2; w++) CHECK(gcomp_step_next(g.gc[w], &request[w]) == GCOMP_OK);
    for (size_t w = 0; w < 2; w++)
        for (size_t s = 0; s < 2; s++)
            memcpy((char *)request[w].recv + s * request[w].stride, request[s].send, request[s].bytes[s]);
    CHECK(gcomp_step_done(g.gc[0], request[0].id, 0) == GCOMP_OK);
    gcomp_result twice = gcomp_step_done(g.gc[0], request[0].id, 0);
    CHECK(twice == GCOMP_INVALID_ARGUMENT || twice == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_done(g.gc[1], request[1].id, 0) == GCOMP_OK);
    group_finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(means_agree(&g));
    group_close(&g);
}

static void test_statistics_add_up(void)
{
    gcomp_desc desc;
    group g;
    memset(&desc, 0, sizeof desc);
    desc.measure = 1;
    group_open_with(&g, 3, &desc, mixed, MIXED, NULL);
    size_t elements = 0;
    for (size_t t = 0; t < MIXED; t++) elements += g.n[t];
    for (uint64_t step = 0; step < 5; step++) {
        group_advance(&g, step);
        for (size_t w = 0; w < 3; w++) {
            gcomp_statistics stats;
            CHECK(gcomp_stats(g.gc[w], &stats) == GCOMP_OK);
            CHECK(stats.steps == step + 1 && stats.skipped == 0 && stats.failed == 0 && stats.not_finite == 0);
            CHECK(stats.bytes_in == 4 * (uint64_t)elements * (step + 1));
            CHECK(stats.bytes_out == g.bytes[w]);
            uint64_t ring = 0;
            for (size_t t = 0; t < MIXED; t++) ring += ring_bytes(g.n[t], 3);
            CHECK(stats.bytes_ring == ring * (step + 1));
            CHECK(fabs(stats.ratio - (double)stats.bytes_ring / (double)stats.bytes_out) <= 1e-9 * stats.ratio);
            double residual = 0, mean = 0, sent = 0, p = 0;
            for (size_t t = 0; t < MIXED; t++) {
                const float *e = gcomp_residual(g.gc[w], t);
                for (size_t i = 0; i < g.n[t]; i++) {
                    if (e) residual += (double)e[i] * (double)e[i];
                    mean += (double)g.grad[w][t][i] * (double)g.grad[w][t][i];
                    if (step > 0) continue;
                    double x = (double)gradient(0, w, t, i);  /* the first p is the gradient */
                    p += x * x;
                    if (e) sent += (double)e[i] * (double)e[i];
                }
            }
            CHECK(fabs(stats.residual_norm - sqrt(residual)) <= 1e-5 * sqrt(residual));
            CHECK(fabs(stats.mean_norm - sqrt(mean)) <= 1e-5 * sqrt(mean));
            if (step == 0) CHECK(fabs(stats.relative_error - sqrt(sent / p)) <= 1e-3);
            CHECK(stats.encode_seconds >= 1 && stats.commit_seconds >= 1);
            CHECK(stats.encode_seconds + stats.communicate_seconds + stats.commit_seconds <= g.now[w]);
        }
    }
    group_close(&g);
}

static void test_statistics_of_a_skipped_tensor_do_not_count_it(void)
{
    group g;
    gcomp_statistics stats;
    group_open(&g, 2, mixed, MIXED);
    group_fill(&g, 0);
    group_step_skipping(&g, NULL, ~(1u << VECTOR));
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK);
    CHECK(stats.bytes_in == 4 * (uint64_t)g.n[VECTOR]);
    CHECK(stats.bytes_out == g.bytes[0]);
    group_close(&g);
}

/* ---------------- restart and reset */

static void test_restart_forgets_and_reset_forgets_one_tensor(void)
{
    group a, b;
    pair_open(&a, &b, 2, mixed, MIXED, 0);
    for (uint64_t step = 0; step < 3; step++) group_advance(&a, step);
    for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(a.gc[w], 0) == GCOMP_OK);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < MIXED; t++) {
            const float *e = gcomp_residual(a.gc[w], t);
            int zero = 1;
            for (size_t i = 0; e && i < a.n[t]; i++) zero = zero && e[i] == 0;
            CHECK(zero);
        }
    for (uint64_t step = 0; step < 2; step++) {  /* as new */
        pair_advance(&a, &b, step);
        CHECK(groups_agree(&a, &b));
    }
    for (size_t w = 0; w < 2; w++) {
        CHECK(gcomp_reset(a.gc[w], SIGN) == GCOMP_OK);
        CHECK(gcomp_reset(a.gc[w], MIXED) == GCOMP_INVALID_ARGUMENT);
        const float *e = gcomp_residual(a.gc[w], SIGN);
        int zero = 1;
        for (size_t i = 0; i < a.n[SIGN]; i++) zero = zero && e[i] == 0;
        CHECK(zero);
    }
    pair_advance(&a, &b, 2);
    CHECK(memcmp(a.grad[0][SIGN], b.grad[0][SIGN], 4 * a.n[SIGN]) != 0);
    CHECK(memcmp(a.grad[0][TOPK], b.grad[0][TOPK], 4 * a.n[TOPK]) == 0);
    CHECK(memcmp(a.grad[0][MATRIX], b.grad[0][MATRIX], 4 * a.n[MATRIX]) == 0);
    CHECK(means_agree(&a));
    pair_close(&a, &b);
}

static void test_restart_inside_a_step_ends_it(void)
{
    group a, b;
    pair_open(&a, &b, 2, mixed, MIXED, 0);
    group_fill(&a, 0);
    group_begin(&a, NULL);
    for (size_t w = 0; w < 2; w++) {
        group_ready(&a, w, 0, 0);
        CHECK(gcomp_restart(a.gc[w], 5) == GCOMP_OK);
        CHECK(gcomp_restart(b.gc[w], 5) == GCOMP_OK);
    }
    group_step(&a);
    CHECK(all_are(&a, GCOMP_OK));
    group_advance(&b, 0);
    CHECK(groups_agree(&a, &b));
    pair_close(&a, &b);
}

/* ---------------- one-way: compress, commit, give back */

enum { N = 30 * 37 };

static void one_way_open(gcomp **gc, const char *codec, int rank, int world)
{
    gcomp_desc desc;
    gcomp_tensor tensor = {"w", 30, 37, 0, GCOMP_F32, NULL};
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.comm.rank = rank;
    desc.comm.world = world;
    CHECK(gcomp_open(gc, &desc) == GCOMP_OK);
    CHECK(gcomp_add_tensor(*gc, &tensor) == GCOMP_OK);
}

static const char *const one_way_codecs[] = {"none", "fp16", "bf16", "sign:block=64", "topk:density=0.03",
                                             "topk:density=0.03+fp16"};
enum { ONE_WAY = sizeof one_way_codecs / sizeof one_way_codecs[0] };

static void test_a_parameter_server_gets_the_mean_and_workers_keep_the_rest(void)
{
    for (size_t c = 0; c < ONE_WAY; c++) {
        enum { WORLD = 3, CAPACITY = 8 * N + 256 };
        gcomp *gc[WORLD];
        static unsigned char payload[WORLD][CAPACITY];
        static float grad[WORLD][N], expected[WORLD][N], mean[N], decoded[N];
        const void *payloads[WORLD];
        size_t lengths[WORLD];
        for (int w = 0; w < WORLD; w++) one_way_open(&gc[w], one_way_codecs[c], w, WORLD);
        for (uint64_t step = 0; step < 5; step++) {
            size_t part = step == 3 ? 2 : WORLD;  /* once one of them is late */
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = gcomp_residual(gc[w], 0);
                for (size_t i = 0; i < N; i++) grad[w][i] = gradient(step, w, 0, i);
                CHECK(gcomp_compress(gc[w], 0, step, grad[w], payload[w], CAPACITY, &lengths[w]) == GCOMP_OK);
                CHECK(lengths[w] <= gcomp_bound(gcomp_tensor_codec(gc[w], 0), N));
                payloads[w] = payload[w];
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) {
                    float p = grad[w][i] + (e ? e[i] : 0.0f);
                    expected[w][i] = p - decoded[i];
                }
            }
            for (size_t i = 0; i < N; i++) mean[i] = 0;
            for (size_t w = 0; w < part; w++) {
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) mean[i] += decoded[i] * (1.0f / (float)part);
            }
            for (size_t w = 0; w < WORLD; w++) {
                CHECK(gcomp_commit(gc[w], 0, grad[w], payload[w], lengths[w], payloads, lengths, part) == GCOMP_OK);
                const float *e = gcomp_residual(gc[w], 0);
                CHECK(memcmp(grad[0], grad[w], sizeof grad[0]) == 0);
                int good = 1;
                for (size_t i = 0; i < N; i++) {
                    good = good && fabsf(grad[w][i] - mean[i]) <= 4e-7f * (1 + fabsf(mean[i]));
                    if (e) good = good && fabsf(e[i] - expected[w][i]) <= 1e-7f * (1 + fabsf(expected[w][i]));
                }
                CHECK(good);
            }
        }
        for (int w = 0; w < WORLD; w++) gcomp_close(gc[w]);
    }
}

static void test_more_payloads_than_fit_one_pass_have_the_same_mean(void)
{
    enum { MANY = 19, CAPACITY = 8 * N + 256 };
    static unsigned char payload[MANY][CAPACITY];
    static float grad[N], mean[N], decoded[N], expected[N];
    const void *payloads[MANY];
    size_t lengths[MANY];
    for (size_t c = 0; c < ONE_WAY; c++)
        for (size_t count = 1; count <= MANY; count += count == 1 ? 6 : 1) { /* 1, 7 .. 19 */
            gcomp *gc;
            for (size_t w = 0; w < count; w++) {
                one_way_open(&gc, one_way_codecs[(c + (count == 18 ? w : 0)) % ONE_WAY], (int)w, MANY);  /* once of many codecs */
                for (size_t i = 0; i < N; i++) grad[i] = gradient(5, w, 0, i);
                CHECK(gcomp_compress(gc, 0, 5, grad, payload[w], CAPACITY, &lengths[w]) == GCOMP_OK);
                payloads[w] = payload[w];
                gcomp_close(gc);
            }
            for (size_t i = 0; i < N; i++) mean[i] = 0;
            for (size_t w = 0; w < count; w++) {
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) mean[i] += decoded[i] * (1.0f / (float)count);
                if (w == count / 2)
                    for (size_t i = 0; i < N; i++) expected[i] = gradient(5, w, 0, i) - decoded[i];
            }
            one_way_open(&gc, one_way_codecs[c], 0, MANY);
            for (size_t i = 0; i < N; i++) grad[i] = gradient(5, count / 2, 0, i);
            const void *own = payloads[count / 2];  /* as if it were this worker's */
            gcomp_result result = gcomp_commit(gc, 0, grad, own, lengths[count / 2], payloads, lengths, count);
            if (count == 18 && result == GCOMP_CODEC_MISMATCH) {
                gcomp_close(gc);
                continue;
            }
            CHECK(result == GCOMP_OK);
            const float *e = gcomp_residual(gc, 0);
            size_t wrong = 0;
            for (size_t i = 0; i < N; i++) {
                wrong += fabsf(grad[i] - mean[i]) > 4e-7f * (1 + fabsf(mean[i]));
                if (e) wrong += fabsf(e[i] - expected[i]) > 1e-7f * (1 + fabsf(expected[i]));
            }
            if (wrong) printf("# %s, %d payloads: %d wrong\n", one_way_codecs[c], (int)count, (int)wrong);
            CHECK(wrong == 0);
            gcomp_close(gc);
        }
}

static void test_compress_changes_no_state(void)
{
    for (size_t c = 0; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char first[8 * N + 256], second[8 * N + 256];
        static float grad[N], copy[N], residual[N];
        size_t a = 0, b = 0;
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        CHECK(gcomp_compress(gc, 0, 0, grad, first, sizeof first, &a) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, first, a, NULL, NULL, 0) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) CHECK(grad[i] == gradient(0, 0, 0, i));  /* count 0: untouched */
        memcpy(copy, grad, sizeof copy);
        const float *e = gcomp_residual(gc, 0);
        if (e) memcpy(residual, e, sizeof residual);
        CHECK(gcomp_compress(gc, 0, 1, grad, first, sizeof first, &a) == GCOMP_OK);
        CHECK(gcomp_compress(gc, 0, 1, grad, second, sizeof second, &b) == GCOMP_OK);
        CHECK(a == b && memcmp(first, second, a) == 0);
        CHECK(memcmp(copy, grad, sizeof copy) == 0);
        if (e) CHECK(memcmp(residual, gcomp_residual(gc, 0), sizeof residual) == 0);
        gcomp_info info;
        CHECK(gcomp_peek(first, a, &info) == GCOMP_OK);
        CHECK(info.checksum == 1 && info.length == a && info.count == N && info.refused == 0);
        size_t length = 777;
        CHECK(gcomp_compress(gc, 0, 1, grad, second, a - 1, &length) == GCOMP_DST_TOO_SMALL);
        CHECK(length == 777);
        CHECK(gcomp_compress(gc, 1, 1, grad, second, sizeof second, &length) == GCOMP_INVALID_ARGUMENT);
        gcomp_close(gc);
    }
}

static void test_a_step_that_sent_nothing_goes_into_the_residual(void)
{
    for (size_t c = 3; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char payload[8 * N + 256];
        static float grad[N], before[N];
        size_t length = 0;
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0) == GCOMP_OK);
        memcpy(before, gcomp_residual(gc, 0), sizeof before);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(1, 0, 0, i);
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
        int good = 1;
        for (size_t i = 0; i < N; i++)
            good = good && gcomp_residual(gc, 0)[i] == grad[i] + before[i] && grad[i] == gradient(1, 0, 0, i);
        CHECK(good);
        gcomp_close(gc);
    }
}

static void test_a_lost_payload_given_back_restores_conservation(void)
{
    for (size_t c = 3; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char payload[8 * N + 256];
        static float grad[N], decoded[N];
        static double given[N], got[N];
        memset(given, 0, sizeof given);
        memset(got, 0, sizeof got);
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (uint64_t step = 0; step < 40; step++) {
            size_t length = 0;
            for (size_t i = 0; i < N; i++) {
                grad[i] = gradient(step, 0, 0, i);
                given[i] += (double)grad[i];
            }
            CHECK(gcomp_compress(gc, 0, step, grad, payload, sizeof payload, &length) == GCOMP_OK);
            CHECK(gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0) == GCOMP_OK);
            if (step % 3 == 1) {
                CHECK(gcomp_give_back(gc, 0, payload, length) == GCOMP_OK);
                continue;
            }
            CHECK(gcomp_decode(payload, length, decoded, N, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) got[i] += (double)decoded[i];
        }
        double worst = 0, largest = 3;
        for (size_t i = 0; i < N; i++) {
            double e = (double)gcomp_residual(gc, 0)[i], error = fabs(got[i] + e - given[i]);
            if (error > worst) worst = error;
            if (fabs(e) > largest) largest = fabs(e);
        }
        CHECK(worst <= 40 * 3 * 2 * largest / 16777216.0);  /* 3 roundings a step, of numbers up to twice the residual */
        gcomp_close(gc);
    }
}

static void test_commit_and_give_back_refuse_bad_payloads_without_a_trace(void)
{
    gcomp *gc;
    static unsigned char good[8 * N + 256], bad[8 * N + 256];
    static float grad[N], copy[N], residual[N];
    size_t length = 0;
    one_way_open(&gc, "sign:block=64", 0, 2);
    for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
    CHECK(gcomp_compress(gc, 0, 0, grad, good, sizeof good, &length) == GCOMP_OK);
    CHECK(gcomp_commit(gc, 0, grad, good, length, NULL, NULL, 0) == GCOMP_OK);
    memcpy(copy, grad, sizeof copy);
    memcpy(residual, gcomp_residual(gc, 0), sizeof residual);
    CHECK(gcomp_compress(gc, 0, 1, grad, good, sizeof good, &length) == GCOMP_OK);
    for (size_t i = 0; i < length; i++) {
        const void *payloads[2];
        size_t lengths[2];
        memcpy(bad, good, length);
        bad[i] ^= 0x40;
        payloads[0] = good;
        payloads[1] = bad;
        lengths[0] = lengths[1] = length;
        CHECK(gcomp_commit(gc, 0, grad, good, length, payloads, lengths, 2) != GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, bad, length, payloads, lengths, 1) != GCOMP_OK);
        CHECK(gcomp_give_back(gc, 0, bad, length) != GCOMP_OK);
    }
    for (size_t i = 0; i < length; i++) CHECK(gcomp_give_back(gc, 0, good, i) != GCOMP_OK);
    CHECK(memcmp(copy, grad, sizeof copy) == 0);
    CHECK(memcmp(residual, gcomp_residual(gc, 0), sizeof residual) == 0);

    gcomp_codec other;  /* a valid payload of another codec */
    gcomp_input in;
    static unsigned char payload[8 * N + 256], scratch[GCOMP_SCRATCH(N)];
    gcomp_exec exec;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    in.grad = grad;
    in.rows = N;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    CHECK(gcomp_codec_parse(&other, "bf16", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&other, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(gcomp_seal(payload, length, NULL) == GCOMP_OK);
    const void *payloads[1];
    payloads[0] = payload;
    static float decoded[N];
    CHECK(gcomp_decode(payload, length, decoded, N, NULL) == GCOMP_OK);
    gcomp_result result = gcomp_commit(gc, 0, grad, NULL, 0, payloads, &length, 1);
    CHECK(result == GCOMP_OK || result == GCOMP_CODEC_MISMATCH);  /* taken for what its header says, or refused */
    CHECK(memcmp(result ? copy : decoded, grad, sizeof copy) == 0);
    int kept = 1;
    for (size_t i = 0; i < N; i++) kept = kept && gcomp_residual(gc, 0)[i] == (result ? residual[i] : copy[i] + residual[i]);
    CHECK(kept);
    gcomp_close(gc);
}

/* Payloads are checked in pairs. Whichever of three payloads is damaged, or has another codec, is
   found. */
static void test_commit_names_one_bad_payload_of_three(void)
{
    static unsigned char good[8 * N + 256], bad[8 * N + 256], other[8 * N + 256];
    static float grad[N], copy[N];
    gcomp *gc, *halves;
    size_t length = 0, other_length = 0;
    one_way_open(&gc, "topk:density=0.03", 0, 3);
    one_way_open(&halves, "topk:density=0.03+fp16", 0, 3);
    for (size_t i = 0; i < N; i++) copy[i] = grad[i] = gradient(0, 0, 0, i);
    CHECK(gcomp_compress(gc, 0, 0, grad, good, sizeof good, &length) == GCOMP_OK);
    CHECK(gcomp_compress(halves, 0, 0, grad, other, sizeof other, &other_length) == GCOMP_OK);
    memcpy(bad, good, length);
    bad[45] ^= 1; /* among its indices */
    for (size_t w = 0; w < 3; w++) {
        const void *payloads[3] = {good, good, good};
        size_t lengths[3] = {length, length, length};
        payloads[w] = bad;
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, payloads, lengths, 3) == GCOMP_CHECKSUM_MISMATCH);
        payloads[w] = other;
        lengths[w] = other_length;
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, payloads, lengths, 3) == GCOMP_CODEC_MISMATCH);
    }
    CHECK(memcmp(copy, grad, sizeof copy) == 0);
    for (size_t i = 0; i < N; i++) CHECK(gcomp_residual(gc, 0)[i] == 0);
    gcomp_close(gc);
    gcomp_close(halves);
}

static void test_compress_refuses_what_needs_rounds_or_is_not_finite(void)
{
    gcomp *gc;
    static unsigned char payload[8 * N + 256];
    static float grad[N];
    size_t length = 0;
    one_way_open(&gc, "powersgd:rank=2", 0, 1);
    CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    gcomp_close(gc);
    for (size_t c = 0; c < ONE_WAY; c++) {
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        grad[N - 1] = NAN;
        CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_NOT_FINITE);
        CHECK(length == 32 && gcomp_check(payload, 32, N) == GCOMP_NOT_FINITE);
        const void *payloads[1];
        payloads[0] = payload;
        CHECK(gcomp_commit(gc, 0, grad, payload, length, payloads, &length, 1) == GCOMP_NOT_FINITE);
        CHECK(grad[0] == gradient(0, 0, 0, 0));
        gcomp_close(gc);
    }
}

/* ---------------- exchange, between threads */

typedef struct job {
    gcomp_threads *threads;
    int rank, world, steps, broken; /* broken: this worker leaves in the last step instead of taking part */
    float grad[MIXED][2048];
    gcomp_result result;
    gcomp_statistics stats;
    uint64_t step_number;
    int untouched;
} job;

static void *work(void *arg)
{
    job *j = (job *)arg;
    gcomp_desc desc;
    gcomp *gc = NULL;
    float *grads[MIXED];
    double now = 0;
    memset(&desc, 0, sizeof desc);
    desc.comm = gcomp_threads_comm(j->threads, j->rank);
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* as in the step that is compared */
    desc.clock = tick;
    desc.clock_user = &now;
    j->result = gcomp_open(&gc, &desc);
    for (size_t t = 0; t < MIXED && j->result == GCOMP_OK; t++) j->result = gcomp_add_tensor(gc, &mixed[t]);
    for (int step = 0; step < j->steps && j->result == GCOMP_OK; step++) {
        for (size_t t = 0; t < MIXED; t++) {
            grads[t] = j->grad[t];
            for (size_t i = 0; i < gcomp_tensor_elements(gc, t); i++)
                j->grad[t][i] = gradient((uint64_t)step, (size_t)j->rank, t, i);
        }
        if (j->broken && step == j->steps - 1) {
            gcomp_threads_fail(j->threads);
            break;
        }
        j->result = gcomp_exchange(gc, grads, NULL);
        if (step < j->steps - 1) continue;
        j->untouched = 1;
        for (size_t t = 0; t < MIXED; t++)
            for (size_t i = 0; i < gcomp_tensor_elements(gc, t); i++)
                j->untouched = j->untouched && j->grad[t][i] == gradient((uint64_t)step, (size_t)j->rank, t, i);
    }
    j->step_number = gcomp_step_number(gc);
    if (gcomp_stats(gc, &j->stats)) j->result = GCOMP_WRONG_STATE;
    gcomp_close(gc);
    return NULL;
}

static void run_threads(job *jobs, int world, int steps, int broken)
{
    pthread_t thread[WORLD_MAX];
    gcomp_threads *threads = NULL;
    CHECK(gcomp_threads_open(&threads, world, 30.0) == 0);
    memset(jobs, 0, WORLD_MAX * sizeof *jobs);
    for (int w = 0; w < world; w++) {
        jobs[w].threads = threads;
        jobs[w].rank = w;
        jobs[w].world = world;
        jobs[w].steps = steps;
        jobs[w].broken = w == broken;
        CHECK(pthread_create(&thread[w], NULL, work, &jobs[w]) == 0);
    }
    for (int w = 0; w < world; w++) CHECK(pthread_join(thread[w], NULL) == 0);
    gcomp_threads_close(threads);
}

static job jobs[WORLD_MAX];

static void test_exchange_between_threads_gives_the_bits_of_the_step(void)
{
    for (int world = 2; world <= 4; world++) {
        group g;
        run_threads(jobs, world, 4, -1);
        group_open(&g, (size_t)world, mixed, MIXED);
        for (uint64_t step = 0; step < 4; step++) group_advance(&g, step);
        for (size_t w = 0; w < (size_t)world; w++) {
            CHECK(jobs[w].result == GCOMP_OK && jobs[w].step_number == 4);
            CHECK(jobs[w].stats.steps == 4 && jobs[w].stats.bytes_out == g.bytes[w]);
            CHECK(jobs[w].stats.encode_seconds > 0 && jobs[w].stats.communicate_seconds > 0 && jobs[w].stats.commit_seconds > 0);
            for (size_t t = 0; t < MIXED; t++) CHECK(memcmp(jobs[w].grad[t], g.grad[w][t], 4 * g.n[t]) == 0);
        }
        group_close(&g);
    }
}

static void test_exchange_with_a_worker_that_left_fails_without_a_trace(void)
{
    run_threads(jobs, 3, 3, 1);
    for (size_t w = 0; w < 3; w += 2) {
        CHECK(jobs[w].result == GCOMP_CALLBACK_FAILED);
        CHECK(jobs[w].untouched && jobs[w].step_number == 2 && jobs[w].stats.failed == 1);
    }
}

int main(void)
{
    RUN(test_means_are_equal_on_all_workers_bit_for_bit);
    RUN(test_uncompressed_tensors_get_the_plain_mean);
    RUN(test_nothing_is_lost_over_200_steps);
    RUN(test_without_error_feedback_nothing_is_kept);
    RUN(test_tensors_may_become_ready_in_any_order);
    RUN(test_a_tensor_skipped_by_all_keeps_its_state);
    RUN(test_a_tensor_may_be_skipped_for_ever);
    RUN(test_a_refused_tensor_may_be_skipped_next);
    RUN(test_a_step_with_every_tensor_skipped_passes);
    RUN(test_a_tensor_skipped_by_some_is_a_mismatch);
    RUN(test_one_bad_gradient_is_refused_by_all_together);
    RUN(test_an_overflow_of_scale_times_gradient_is_refused);
    RUN(test_large_finite_gradients_have_a_finite_mean);
    RUN(test_a_failure_that_all_see_leaves_no_trace_and_can_be_retried);
    RUN(test_a_failure_that_one_sees_is_named_by_all_in_the_next_frame);
    RUN(test_a_damaged_payload_is_refused_and_named_in_the_next_frame);
    RUN(test_every_damaged_byte_of_gathered_payloads_is_refused);
    RUN(test_frames_in_wrong_order_are_a_mismatch);
    RUN(test_a_damaged_frame_is_refused);
    RUN(test_disagreement_is_a_mismatch_that_names_the_worker_and_the_difference);
    RUN(test_another_step_number_is_out_of_step);
    RUN(test_another_world_is_a_mismatch);
    RUN(test_instruction_sets_and_allocators_may_differ);
    RUN(test_a_corrupted_sum_on_one_worker_is_found_as_divergence);
    RUN(test_a_worker_that_joins_sees_divergence_as_all_do);
    RUN(test_the_digest_of_means_is_that_of_little_endian_floats);
    RUN(test_memory_that_a_step_does_not_use_is_not_touched);
    RUN(test_memory_needed_is_memory_used_by_every_method);
    RUN(test_gradients_that_share_memory_are_refused_by_all);
    RUN(test_exchange_knows_all_gradients_before_it_sends_anything);
    RUN(test_scaled_gradients_give_the_same_bits);
    RUN(test_what_workers_tell_of_a_step_is_compared);
    RUN(test_one_worker_alone_loses_nothing);
    RUN(test_an_allreduce_that_does_not_add_is_named_in_the_first_step);
    RUN(test_another_version_of_the_library_is_named);
    RUN(test_a_bad_scale_on_one_worker_fails_its_peers_in_the_frame);
    RUN(test_half_gradients_hold_the_rounded_mean_of_the_float_run);
    RUN(test_exchange_any_of_one_worker_rounds_and_saturates);
    RUN(test_abort_leaves_everything_as_it_was);
    RUN(test_calls_out_of_order_are_refused_and_do_no_harm);
    RUN(test_a_request_is_done_once);
    RUN(test_statistics_add_up);
    RUN(test_statistics_of_a_skipped_tensor_do_not_count_it);
    RUN(test_restart_forgets_and_reset_forgets_one_tensor);
    RUN(test_restart_inside_a_step_ends_it);
    RUN(test_a_parameter_server_gets_the_mean_and_workers_keep_the_rest);
    RUN(test_more_payloads_than_fit_one_pass_have_the_same_mean);
    RUN(test_compress_changes_no_state);
    RUN(test_a_step_that_sent_nothing_goes_into_the_residual);
    RUN(test_a_lost_payload_given_back_restores_conservation);
    RUN(test_commit_and_give_back_refuse_bad_payloads_without_a_trace);
    RUN(test_commit_names_one_bad_payload_of_three);
    RUN(test_compress_refuses_what_needs_rounds_or_is_not_finite);
    RUN(test_exchange_between_threads_gives_the_bits_of_the_step);
    RUN(test_exchange_with_a_worker_that_left_fails_without_a_trace);
    return test_end();
}
