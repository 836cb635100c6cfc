/* What tests of overlap share: a transport that carries requests out late, in lock-step. */

#ifndef OVERLAP_H
#define OVERLAP_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "codecs.h"
#include "test.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, TENSORS = 8, CALLS = 160, FRAME = 64 };

/* ---------------- the board */

typedef enum fault { NO_FAULT, FAIL_START, FAIL_TEST, FAIL_WAIT } fault;

typedef struct board {
    size_t world;
    gcomp_request request[WORLD_MAX][CALLS];
    int over[WORLD_MAX][CALLS];
    size_t started[WORLD_MAX], under_way[WORLD_MAX], carried, activity;
    unsigned lag, asked[WORLD_MAX]; /* how often test says "under way" of what is done */
    int broken;
    fault fault;
    size_t fault_call, fault_rank;
    void (*tamper)(struct board *board, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length);
    uint8_t kept[FRAME];
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} board;

typedef struct seat {
    board *at;
    size_t rank;
} seat;

static inline size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* Request k, which all have started. */
static inline void carry(board *b, size_t k)
{
    const gcomp_request *first = &b->request[0][k];
    for (size_t w = 1; w < b->world; w++) {
        const gcomp_request *r = &b->request[w][k];
        b->broken |= r->kind != first->kind || r->id != first->id || r->count != first->count || r->dtype != first->dtype ||
                     r->stride != first->stride;
    }
    if (b->broken) return;
    for (size_t w = 1; request_is_a_reduction(first) && w < b->world; w++) plain_reduce(first, &b->request[w][k]);
    for (size_t w = 1; request_is_a_reduction(first) && w < b->world; w++)
        memcpy(b->request[w][k].recv, first->recv, first->count * bytes_of_dtype(first->dtype));
    for (size_t w = 0; !request_is_a_reduction(first) && w < b->world; w++) {
        for (size_t from = 0; from < b->world; from++) {
            const gcomp_request *to = &b->request[w][k], *of = &b->request[from][k];
            int all = to->kind == GCOMP_ALLTOALL;
            uint8_t *place = (uint8_t *)to->recv + (all ? sum_to(to->bytes, from) : from * to->stride);
            b->broken |= to->bytes[from] != (all ? of->send_bytes[w] : of->bytes[from]);
            if (b->broken) return;
            memcpy(place, (const uint8_t *)of->send + (all ? sum_to(of->send_bytes, w) : 0), to->bytes[from]);
            if (b->tamper) b->tamper(b, k, w, from, place, to->bytes[from]);
        }
    }
}

static inline int fails(const board *b, fault fault, size_t call, size_t rank)
{
    return b->fault == fault && call == b->fault_call && rank == b->fault_rank;
}

static inline int start(void *user, const gcomp_request *request)
{
    const seat *me = (const seat *)user;
    board *b = me->at;
    size_t k, least = SIZE_MAX;
    int status;
    pthread_mutex_lock(&b->lock);
    k = b->started[me->rank];
    status = fails(b, FAIL_START, k, me->rank) ? 7 : 0;
    if (!status && k < CALLS) {
        b->request[me->rank][k] = *request;
        b->over[me->rank][k] = 0;
        b->started[me->rank]++;
        b->under_way[me->rank]++;
        b->activity++;
        for (size_t w = 0; w < b->world; w++) least = b->started[w] < least ? b->started[w] : least;
        while (b->carried < least) carry(b, b->carried++);
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* The request of this id that is under way; CALLS: none. */
static inline size_t call_of(const board *b, size_t rank, uint32_t id)
{
    for (size_t k = b->started[rank]; k-- > 0;)
        if (!b->over[rank][k] && b->request[rank][k].id == id) return k;
    return CALLS;
}

static inline int land(board *b, size_t rank, size_t k, int status)
{
    b->over[rank][k] = 1;
    b->under_way[rank]--;
    b->activity++;
    return status;
}

static inline int test(void *user, uint32_t id, int *done)
{
    const seat *me = (const seat *)user;
    board *b = me->at;
    int status = 0;
    CHECK(*done == 0);
    pthread_mutex_lock(&b->lock);
    size_t k = call_of(b, me->rank, id);
    if (k == CALLS) b->broken = 1;
    else if (fails(b, FAIL_TEST, k, me->rank)) status = land(b, me->rank, k, k % 2 ? 7 : -7); /* as any callback */
    else if (k < b->carried && b->asked[me->rank]++ % (b->lag + 1) == b->lag) status = land(b, me->rank, k, 0), *done = 1;
    else if (k < b->carried) b->activity++;
    pthread_mutex_unlock(&b->lock);
    return status;
}

static inline int wait(void *user, uint32_t id)
{
    const seat *me = (const seat *)user;
    board *b = me->at;
    int status = -1;
    pthread_mutex_lock(&b->lock);
    size_t k = call_of(b, me->rank, id);
    while (b->threads && k < CALLS && k >= b->carried) pthread_cond_wait(&b->changed, &b->lock);
    if (k == CALLS) b->broken = 1;
    else status = land(b, me->rank, k, fails(b, FAIL_WAIT, k, me->rank) ? 7 : k < b->carried ? 0 : -1);
    pthread_mutex_unlock(&b->lock);
    return status;
}

/* ---------------- workers */

typedef enum way { CALLBACKS, OWN_LOOP } way; /* who carries the requests to the board */

typedef struct group {
    board board;
    seat seat[WORLD_MAX];
    size_t world, count, n[TENSORS];
    gcomp_dtype dtype[TENSORS];
    way way;
    gcomp *gc[WORLD_MAX];
    float *grad[WORLD_MAX][TENSORS];
    gcomp_result result[WORLD_MAX];
    uint32_t id[WORLD_MAX][8]; /* OWN_LOOP: what is under way */
    size_t ids[WORLD_MAX];
    int done[WORLD_MAX];
    unsigned order, skip, passes; /* passes: of progress after each tensor, 0: one */
    const gcomp_step *step;
} group;

static const gcomp_tensor mixed[TENSORS] = {
    {"a", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
    {"b", 40, 30, 0, GCOMP_F32, "topk:density=0.05,global=1"},
    {"c", 30, 37, 0, GCOMP_F32, "sign:block=64"},
    {"d", 129, 0, 0, GCOMP_F32, NULL},
    {"e", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
    {"f", 18, 10, 3, GCOMP_F32, "powersgd:rank=1,alternate=1,momentum=0.5"},
    {"g", 33, 16, 0, GCOMP_F32, "intsum:bits=8"},
    {"h", 16, 33, 0, GCOMP_BF16, "terngrad:share=1"},
};

/* The same without global=1, which SCATTER refuses. */
static const gcomp_tensor scattered[TENSORS] = {
    {"a", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
    {"b", 40, 30, 0, GCOMP_F32, "none"},
    {"c", 30, 37, 0, GCOMP_F32, "sign:block=64"},
    {"d", 129, 0, 0, GCOMP_F32, NULL},
    {"e", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
    {"f", 18, 10, 3, GCOMP_F32, "powersgd:rank=1,alternate=1,momentum=0.5"},
    {"g", 33, 16, 0, GCOMP_F32, "intsum:bits=8"},
    {"h", 16, 33, 0, GCOMP_BF16, "terngrad"},
};

static inline const gcomp_tensor *tensors_for(int aggregate)
{
    return aggregate == GCOMP_AGGREGATE_SCATTER ? scattered : mixed;
}

static test_heap heap = {SIZE_MAX, 0, 0, 0};

static inline gcomp_desc plain(size_t bucket_bytes, gcomp_aggregate aggregate)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.bucket_bytes = bucket_bytes;
    desc.aggregate = aggregate;
    desc.allocator = heap_of(&heap);
    return desc;
}

static inline gcomp_comm comm_of(group *g, size_t w)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    g->seat[w].at = &g->board;
    g->seat[w].rank = w;
    comm.user = &g->seat[w];
    comm.rank = (int)w;
    comm.world = (int)g->world;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16;
    if (g->way == CALLBACKS) {
        comm.start = start;
        comm.test = test;
        comm.wait = wait;
    }
    return comm;
}

static inline void group_open(group *g, way way, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->board.lock, NULL);
    pthread_cond_init(&g->board.changed, NULL);
    g->board.world = g->world = world;
    g->count = count;
    g->way = way;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        char why[256] = "";
        desc.comm = comm_of(g, w);
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&g->gc[w], &desc) != GCOMP_OK) {
            printf("# %s\n", why);
            exit(1);
        }
        for (size_t t = 0; t < count; t++) {
            if (gcomp_add_tensor(g->gc[w], &tensors[t]) != GCOMP_OK) {
                printf("# %s\n", gcomp_error(g->gc[w]));
                exit(1);
            }
            g->n[t] = tensor_elements(g->gc[w], t);
            g->dtype[t] = tensors[t].dtype;
            g->grad[w][t] = (float *)calloc(g->n[t], sizeof(float));
        }
    }
}

static inline void group_close(group *g)
{
    CHECK(!g->board.broken);
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
    pthread_cond_destroy(&g->board.changed);
    pthread_mutex_destroy(&g->board.lock);
}

/* As floats, or cut off to what fits two bytes. */
static inline void group_fill(group *g, uint64_t step)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++) {
                double x = (double)(mix(mix(step * 100 + t) + i) >> 11) / 4503599627370496.0 - 1;
                double own = (double)(mix(step + 7 * w + 31 * t + 1000 * i) >> 11) / 4503599627370496.0 - 1;
                float v = (float)(x * x * x + 0.2 * own);
                uint32_t bits;
                memcpy(&bits, &v, 4);
                if (g->dtype[t] == GCOMP_F32) g->grad[w][t][i] = v;
                else if (g->dtype[t] == GCOMP_BF16) ((uint16_t *)g->grad[w][t])[i] = (uint16_t)(bits >> 16);
                else { /* what is subnormal there, as 0 */
                    uint32_t half = (bits & 0x7fffffffu) < 0x38800000u ? 0 : ((bits & 0x7fffffffu) - 0x38000000u) >> 13;
                    ((uint16_t *)g->grad[w][t])[i] = (uint16_t)(bits >> 16 & 0x8000u) | (uint16_t)half;
                }
            }
}

/* FNV of gradients and residuals. */
static inline uint64_t outcome(const group *g, size_t w)
{
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        const float *residual = tensor_residual(g->gc[w], t);
        h = fnv(h, g->grad[w][t], bytes_of_dtype(g->dtype[t]) * g->n[t]);
        if (residual) h = fnv(h, residual, 4 * g->n[t]);
    }
    return h;
}

/* FNV of gradients, residuals, and all that a save holds. */
static inline uint64_t digest(const group *g, size_t w)
{
    uint64_t h = outcome(g, w);
    size_t bytes = save_size(g->gc[w]), length = 0;
    uint8_t *save = (uint8_t *)malloc(bytes);
    CHECK(gcomp_save(g->gc[w], save, bytes, &length) == GCOMP_OK);
    h = fnv(h, save, length);
    free(save);
    return h;
}

/* What gcomp_step_progress does, by hand. */
static inline gcomp_result own_progress(group *g, size_t w)
{
    for (;;) {
        gcomp_request request;
        gcomp_result result = gcomp_step_next(g->gc[w], &request);
        if (result != GCOMP_OK) return result;
        if (request.kind == GCOMP_DONE) return g->done[w] = 1, GCOMP_OK;
        if (request.kind != GCOMP_WAIT) {
            (void)start(&g->seat[w], &request);
            g->id[w][g->ids[w]++] = request.id;
            continue;
        }
        size_t i = 0;
        int done = 0;
        while (i < g->ids[w] && !test(&g->seat[w], g->id[w][i], &done) && !done) i++;
        if (i == g->ids[w]) return GCOMP_OK;
        uint32_t id = g->id[w][i];
        g->id[w][i] = g->id[w][--g->ids[w]];
        result = gcomp_step_done(g->gc[w], id, 0);
        if (result != GCOMP_OK) return result;
    }
}

static inline void progress(group *g)
{
    for (size_t w = 0; w < g->world; w++)
        if (g->result[w] == GCOMP_OK)
            g->result[w] = g->way == CALLBACKS ? gcomp_step_progress(g->gc[w]) : own_progress(g, w);
}

static inline size_t tensor_of(const group *g, size_t k, size_t w)
{
    if (g->order == 0) return g->count - 1 - k; /* as a backward pass */
    if (g->order == 1) return k;
    return (3 * k + 2 * w) % g->count; /* 8 tensors */
}

static inline void begin(group *g)
{
    memset(g->board.started, 0, sizeof g->board.started);
    g->board.carried = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->ids[w] = 0;
        g->done[w] = 0;
        g->result[w] = gcomp_step_begin(g->gc[w], g->step);
    }
}

static inline void hand_in(group *g, size_t k)
{
    for (size_t w = 0; w < g->world; w++) {
        size_t t = tensor_of(g, k, w);
        if (g->result[w] == GCOMP_OK) CHECK(gcomp_step_ready(g->gc[w], t, g->skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
    }
}

/* Drives all workers until nothing moves any more; then they commit. A worker that ended has its
   error; a worker that waits for one that ended gives up. */
static inline void finish(group *g)
{
    size_t before;
    do {
        before = g->board.activity;
        progress(g);
    } while (g->board.activity != before);
    for (size_t w = 0; w < g->world; w++) {
        if (g->result[w] != GCOMP_OK) continue;
        if (g->board.under_way[w]) {
            g->result[w] = GCOMP_CALLBACK_FAILED;
            CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_OK);
        } else {
            g->result[w] = g->way == CALLBACKS ? gcomp_step_finish(g->gc[w]) : gcomp_step_commit(g->gc[w]);
        }
        CHECK(g->way == OWN_LOOP || g->board.under_way[w] == 0);
    }
}

static inline void group_step(group *g)
{
    begin(g);
    for (size_t k = 0; k < g->count; k++) {
        hand_in(g, k);
        for (unsigned i = 0; i <= g->passes; i++) progress(g);
    }
    finish(g);
}

static inline int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

static inline int agree(const group *a, const group *b)
{
    int yes = 1;
    for (size_t w = 0; w < a->world; w++) yes = yes && digest(a, w) == digest(b, w);
    return yes;
}

/* Frames that worker 0 sent in the last step. */
static inline size_t frames(const group *g)
{
    size_t count = 0;
    for (size_t k = 0; k < g->board.started[0]; k++)
        count += g->board.request[0][k].kind == GCOMP_ALLGATHER && g->board.request[0][k].id % 64 == 1;
    return count;
}

static const size_t sizes[] = {0, 100000, 12000, 4500, 1};

enum { SIZES = sizeof sizes / sizeof *sizes };

/* A payload that rank 2 alone gets damaged, of the tensor that is last of its bucket. */
static inline void damage(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (b->request[0][call].id == b->fault_call && rank == 2 && from == 1) bytes[length - 1] ^= 0x40;
}

#endif
