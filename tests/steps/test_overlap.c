/* Proves that steps in buckets, taken while gradients are still made, have the bits of a step that
   takes all tensors at once, also with a fault in any bucket and with requests under way. The
   workers stand in one thread. Their transport is a board on which they lay down requests; a
   worker that asks before the requests of all are there gets no answer. */

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

static size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* Request k, which all have started. */
static void carry(board *b, size_t k)
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

static int fails(const board *b, fault fault, size_t call, size_t rank)
{
    return b->fault == fault && call == b->fault_call && rank == b->fault_rank;
}

static int start(void *user, const gcomp_request *request)
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
static size_t call_of(const board *b, size_t rank, uint32_t id)
{
    for (size_t k = b->started[rank]; k-- > 0;)
        if (!b->over[rank][k] && b->request[rank][k].id == id) return k;
    return CALLS;
}

static int land(board *b, size_t rank, size_t k, int status)
{
    b->over[rank][k] = 1;
    b->under_way[rank]--;
    b->activity++;
    return status;
}

static int test(void *user, uint32_t id, int *done)
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

static int wait(void *user, uint32_t id)
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

static const gcomp_tensor *tensors_for(int aggregate)
{
    return aggregate == GCOMP_AGGREGATE_SCATTER ? scattered : mixed;
}

static test_heap heap = {SIZE_MAX, 0, 0, 0};

static gcomp_desc plain(size_t bucket_bytes, gcomp_aggregate aggregate)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.bucket_bytes = bucket_bytes;
    desc.aggregate = aggregate;
    desc.allocator = heap_of(&heap);
    return desc;
}

static gcomp_comm comm_of(group *g, size_t w)
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

static void group_open(group *g, way way, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
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
            g->n[t] = gcomp_tensor_elements(g->gc[w], t);
            g->dtype[t] = tensors[t].dtype;
            g->grad[w][t] = (float *)calloc(g->n[t], sizeof(float));
        }
    }
}

static void group_close(group *g)
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
static void group_fill(group *g, uint64_t step)
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
static uint64_t outcome(const group *g, size_t w)
{
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        const float *residual = gcomp_residual(g->gc[w], t);
        h = fnv(h, g->grad[w][t], bytes_of_dtype(g->dtype[t]) * g->n[t]);
        if (residual) h = fnv(h, residual, 4 * g->n[t]);
    }
    return h;
}

/* FNV of gradients, residuals, and all that a save holds. */
static uint64_t digest(const group *g, size_t w)
{
    uint64_t h = outcome(g, w);
    size_t bytes = gcomp_save_size(g->gc[w]), length = 0;
    uint8_t *save = (uint8_t *)malloc(bytes);
    CHECK(gcomp_save(g->gc[w], save, bytes, &length) == GCOMP_OK);
    h = fnv(h, save, length);
    free(save);
    return h;
}

/* What gcomp_step_progress does, by hand. */
static gcomp_result own_progress(group *g, size_t w)
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

static void progress(group *g)
{
    for (size_t w = 0; w < g->world; w++)
        if (g->result[w] == GCOMP_OK)
            g->result[w] = g->way == CALLBACKS ? gcomp_step_progress(g->gc[w]) : own_progress(g, w);
}

static size_t tensor_of(const group *g, size_t k, size_t w)
{
    if (g->order == 0) return g->count - 1 - k; /* as a backward pass */
    if (g->order == 1) return k;
    return (3 * k + 2 * w) % g->count; /* 8 tensors */
}

static void begin(group *g)
{
    memset(g->board.started, 0, sizeof g->board.started);
    g->board.carried = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->ids[w] = 0;
        g->done[w] = 0;
        g->result[w] = gcomp_step_begin(g->gc[w], g->step);
    }
}

static void hand_in(group *g, size_t k)
{
    for (size_t w = 0; w < g->world; w++) {
        size_t t = tensor_of(g, k, w);
        if (g->result[w] == GCOMP_OK) CHECK(gcomp_step_ready(g->gc[w], t, g->skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
    }
}

/* Drives all workers until nothing moves any more; then they commit. A worker that ended has its
   error; a worker that waits for one that ended gives up. */
static void finish(group *g)
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

static void group_step(group *g)
{
    begin(g);
    for (size_t k = 0; k < g->count; k++) {
        hand_in(g, k);
        for (unsigned i = 0; i <= g->passes; i++) progress(g);
    }
    finish(g);
}

static int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

static int agree(const group *a, const group *b)
{
    int yes = 1;
    for (size_t w = 0; w < a->world; w++) yes = yes && digest(a, w) == digest(b, w);
    return yes;
}

/* Frames that worker 0 sent in the last step. */
static size_t frames(const group *g)
{
    size_t count = 0;
    for (size_t k = 0; k < g->board.started[0]; k++)
        count += g->board.request[0][k].kind == GCOMP_ALLGATHER && g->board.request[0][k].id % 64 == 1;
    return count;
}

/* The rule of buckets: they are filled from the last tensor on, and a bucket is full when it has
   reached so many bytes. */
static size_t buckets(const group *g, size_t bytes)
{
    size_t count = 1, sum = 0;
    for (size_t t = g->count; t-- > 0 && bytes;) {
        sum += 4 * g->n[t];
        if (sum < bytes || t == 0) continue;
        count++;
        sum = 0;
    }
    return count;
}

/* ---------------- */

static const size_t sizes[] = {0, 100000, 12000, 4500, 1};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_any_buckets_give_the_bits_of_one(void)
{
    static const size_t expected[SIZES] = {1, 1, 2, 4, TENSORS};
    for (size_t world = 1; world <= WORLD_MAX; world++)
        for (int aggregate = 1; aggregate <= 4; aggregate++) {
            uint64_t first[3][WORLD_MAX];
            for (size_t s = 0; s < SIZES; s++) {
                gcomp_desc desc = plain(sizes[s], (gcomp_aggregate)aggregate);
                group g;
                group_open(&g, s == 4 && world > 1 ? OWN_LOOP : CALLBACKS, world, &desc, tensors_for(aggregate), TENSORS);
                g.board.lag = (unsigned)s;
                CHECK(buckets(&g, sizes[s]) == expected[s]);
                for (uint64_t step = 0; step < 3; step++) {
                    g.order = (unsigned)(step + s) % 3;
                    group_fill(&g, step);
                    group_step(&g);
                    CHECK(all_are(&g, GCOMP_OK));
                    CHECK(world == 1 || frames(&g) == expected[s]);
                    for (size_t w = 0; w < world; w++) {
                        if (s == 0) first[step][w] = digest(&g, w);
                        CHECK(digest(&g, w) == first[step][w]);
                    }
                }
                group_close(&g);
            }
        }
    CHECK(heap.blocks == 0);
}

static void test_one_large_bucket_asks_for_what_none_asks_for(void)
{
    group a, b;
    gcomp_desc one = plain(0, GCOMP_AGGREGATE_SHARDS), large = plain(SIZE_MAX, GCOMP_AGGREGATE_SHARDS);
    group_open(&a, OWN_LOOP, 3, &one, mixed, TENSORS);
    group_open(&b, OWN_LOOP, 3, &large, mixed, TENSORS);
    group_fill(&a, 0);
    group_fill(&b, 0);
    group_step(&a);
    group_step(&b);
    CHECK(a.board.carried == b.board.carried);
    for (size_t k = 0; k < a.board.carried; k++) {
        const gcomp_request *x = &a.board.request[1][k], *y = &b.board.request[1][k];
        CHECK(x->kind == y->kind && x->id == y->id && x->stride == y->stride && x->count == y->count);
    }
    group_close(&a);
    group_close(&b);
}

/* The last tensors go first, and a bucket goes out as soon as it can. */
static void test_buckets_go_out_from_the_last_to_the_first(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 2, &desc, mixed, TENSORS);
    group_fill(&g, 0);
    g.order = 1;
    begin(&g);
    for (size_t k = 0; k < TENSORS; k++) {
        progress(&g);
        CHECK(frames(&g) == 0);
        hand_in(&g, k);
    }
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    g.order = 0;
    group_fill(&g, 1);
    begin(&g);
    for (size_t k = 0; k < TENSORS; k++) {
        hand_in(&g, k);
        for (int i = 0; i < 20; i++) progress(&g);
        CHECK(frames(&g) == k + 1 && g.board.under_way[0] == 0);
    }
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

static void test_tensors_may_be_skipped_in_any_bucket(void)
{
    for (unsigned skip = 0; skip < TENSORS + 3; skip++) {
        static const unsigned more[3] = {3, 0x3f, (1u << TENSORS) - 1};
        gcomp_desc whole = plain(0, GCOMP_AGGREGATE_TWO_SHOT), cut = plain(6000, GCOMP_AGGREGATE_TWO_SHOT);
        group a, b;
        group_open(&a, CALLBACKS, 3, &whole, mixed, TENSORS);
        group_open(&b, CALLBACKS, 3, &cut, mixed, TENSORS);
        for (uint64_t step = 0; step < 3; step++) {
            a.skip = b.skip = step != 1 ? 0 : skip < TENSORS ? 1u << skip : more[skip - TENSORS];
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
        }
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- faults */

/* Two equal groups after a step, with the gradients of the next: a will have faults. */
static void open_pair(group *a, group *b, size_t bucket_bytes)
{
    gcomp_desc desc = plain(bucket_bytes, GCOMP_AGGREGATE_SHARDS);
    group_open(a, CALLBACKS, 3, &desc, mixed, TENSORS);
    group_open(b, CALLBACKS, 3, &desc, mixed, TENSORS);
    group_fill(a, 0);
    group_fill(b, 0);
    group_step(a);
    group_step(b);
    group_fill(a, 1);
    group_fill(b, 1);
}

static void close_pair(group *a, group *b)
{
    CHECK(agree(a, b));
    a->board.tamper = NULL;
    a->board.fault = NO_FAULT;
    group_step(a); /* the retry has the bits of the step that did not fail */
    group_step(b);
    CHECK(all_are(a, GCOMP_OK) && all_are(b, GCOMP_OK) && agree(a, b));
    group_close(a);
    group_close(b);
}

static void test_a_bad_gradient_of_a_later_bucket_leaves_no_trace(void)
{
    for (size_t t = 0; t < 7; t++) {
        group a, b;
        open_pair(&a, &b, 1);
        float was = a.grad[1][t][5];
        a.grad[1][t][5] = (float)INFINITY;
        a.passes = 20;
        group_step(&a);
        CHECK(all_are(&a, GCOMP_NOT_FINITE));
        CHECK(frames(&a) == TENSORS - t); /* the buckets before went their way */
        CHECK(strstr(gcomp_error(a.gc[0]), "rank 1") && strstr(gcomp_error(a.gc[1]), mixed[t].name));
        a.grad[1][t][5] = was;
        close_pair(&a, &b);
    }
}

/* What is known early is told early. */
static void test_a_bad_gradient_that_is_ready_first_is_told_in_the_first_frame(void)
{
    group a, b;
    open_pair(&a, &b, 1);
    float was = a.grad[2][0][5];
    a.grad[2][0][5] = NAN;
    a.order = 1;
    group_step(&a);
    CHECK(all_are(&a, GCOMP_NOT_FINITE) && frames(&a) == 1);
    CHECK(strstr(gcomp_error(a.gc[2]), "'a'") != NULL);
    a.grad[2][0][5] = was;
    close_pair(&a, &b);
}

/* A payload that rank 2 alone gets damaged, of the tensor that is last of its bucket. */
static void damage(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (b->request[0][call].id == b->fault_call && rank == 2 && from == 1) bytes[length - 1] ^= 0x40;
}

static void test_what_one_worker_sees_is_told_in_the_next_frame(void)
{
    /* sign of c is gathered in bucket 5; terngrad of h in round 1 of bucket 0; the shards of e
       in bucket 3 */
    static const struct { uint32_t id; const char *name; gcomp_result result; size_t frames; } cases[] = {
        {64 * 5 + 9, "'c'", GCOMP_CHECKSUM_MISMATCH, 7}, {17, "'h'", GCOMP_CHECKSUM_MISMATCH, 2}};
    for (size_t i = 0; i < 2; i++) {
        group a, b;
        open_pair(&a, &b, 1);
        a.board.tamper = damage;
        a.board.fault_call = cases[i].id;
        group_step(&a);
        CHECK(a.result[2] == cases[i].result && strstr(gcomp_error(a.gc[2]), "rank 1"));
        CHECK(strstr(gcomp_error(a.gc[2]), cases[i].name) != NULL);
        CHECK(a.result[0] == GCOMP_PEER_FAILED && a.result[1] == GCOMP_PEER_FAILED);
        CHECK(strstr(gcomp_error(a.gc[0]), "rank 2") != NULL);
        CHECK(frames(&a) == cases[i].frames);
        close_pair(&a, &b);
    }
}

/* Nothing follows the last bucket in its step, as where there is only one bucket. */
static void test_what_one_worker_sees_in_the_last_bucket_is_told_in_the_next_step(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 3, &desc, mixed + 2, 2);
    group_fill(&g, 0);
    g.board.tamper = damage;
    g.board.fault_call = 64 + 9;
    group_step(&g);
    CHECK(g.result[2] == GCOMP_CHECKSUM_MISMATCH && g.result[0] == GCOMP_OK);
    g.board.tamper = NULL;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OUT_OF_STEP));
    group_close(&g);
}

/* A frame of bucket 1: that of bucket 0 once more, rank 0's with a decision, or with more bytes
   than its tensors can have, but not more than others. */
static void forge(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    uint32_t id = b->request[0][call].id;
    (void)rank;
    if (from != (b->fault_call != 1) || length != FRAME || id % 64 != 1) return;
    if (id == 1) memcpy(b->kept, bytes, FRAME);
    if (id != 65) return;
    if (b->fault_call == 0) memcpy(bytes, b->kept, FRAME);
    if (b->fault_call == 1) bytes[13] = 1;
    if (b->fault_call == 2) put_word(bytes + 24, 100, 8);
    put_word(bytes + 60, plain_crc(0, bytes, 60), 4);
}

static void test_frames_of_a_bucket_are_of_it_alone(void)
{
    static const char *const what[] = {"what workers differ in", "codecs", "more bytes"};
    for (size_t i = 0; i < 3; i++) {
        group a, b;
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        desc.codec = "int|int:bits=4";
        desc.schedule = "bytes:target=1e6";
        group_open(&a, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_open(&b, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_fill(&a, 0);
        group_fill(&b, 0);
        a.board.tamper = forge;
        a.board.fault_call = i;
        group_step(&a);
        /* the worker itself sees that its frame is another; the others hear no more of it */
        for (size_t w = 0; w < 3; w++) {
            if (w == (i != 1)) CHECK(a.result[w] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(a.gc[w]), "did not bring back"));
            else if (i == 0) CHECK(a.result[w] != GCOMP_OK || a.board.broken);
            else CHECK(a.result[w] == GCOMP_MISMATCH && strstr(gcomp_error(a.gc[w]), what[i]));
            if (w != (i != 1) && i) CHECK(strstr(gcomp_error(a.gc[w]), i == 1 ? "rank 0 decides" : "rank 1") != NULL);
        }
        close_pair(&a, &b);
    }
}

/* A worker announces more sums than the bucket of tensor e has room for, but fewer than another
   bucket has. */
static void overstate(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    (void)rank;
    if (b->request[0][call].id != 64 * 3 + 42 || from != 1 || length != 16) return;
    put_word(bytes, 800, 8);
    put_word(bytes + 12, plain_crc(0, bytes, 12), 4);
    b->fault_call = 1;
}

static void test_sums_of_a_bucket_fit_its_place(void)
{
    group a, b;
    open_pair(&a, &b, 1);
    a.board.tamper = overstate;
    group_step(&a);
    CHECK(a.board.fault_call == 1 && all_are(&a, GCOMP_MISMATCH) && strstr(gcomp_error(a.gc[0]), "more bytes than its tensors"));
    close_pair(&a, &b);
}

static void test_other_buckets_or_callbacks_are_a_mismatch(void)
{
    for (int with = 0; with < 2; with++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        gcomp_tensor tensor = mixed[3];
        group g;
        group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 1);
        gcomp_close(g.gc[1]);
        desc.comm = comm_of(&g, 1);
        if (with) desc.comm.start = NULL, desc.comm.test = NULL, desc.comm.wait = NULL;
        else desc.bucket_bytes = 2;
        CHECK(gcomp_open(&g.gc[1], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[1], &tensor) == GCOMP_OK);
        begin(&g);
        hand_in(&g, 0);
        for (int i = 0; i < 20; i++)
            for (size_t w = 0; w < 2; w++)
                if (g.result[w] == GCOMP_OK) g.result[w] = w && with ? own_progress(&g, w) : gcomp_step_progress(g.gc[w]);
        CHECK(all_are(&g, GCOMP_MISMATCH) && strstr(gcomp_error(g.gc[0]), with ? "rank 1 has comm.start NULL, rank 0 has comm.start set"
                                                                              : "rank 1 has desc.bucket_bytes 2, rank 0 has desc.bucket_bytes 1"));
        group_close(&g);
    }
}

/* ---------------- callbacks */

/* Each of the first collectives, among them two that are under way together, fails on rank 1. */
static void test_a_callback_that_fails_leaves_no_trace_and_nothing_under_way(void)
{
    for (int kind = FAIL_START; kind <= FAIL_TEST; kind++)
        for (size_t call = 0; call < 12; call++) {
            group a, b;
            open_pair(&a, &b, call % 2 ? 6000 : 12000);
            a.board.fault = (fault)kind;
            a.board.fault_call = call;
            a.board.fault_rank = 1;
            group_step(&a);
            CHECK(a.result[1] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(a.gc[1]), "failed with status"));
            for (size_t w = 0; w < 3; w++) {
                CHECK(a.result[w] != GCOMP_OK && a.board.under_way[w] == 0);
                CHECK(gcomp_step_number(a.gc[w]) == 1);
            }
            close_pair(&a, &b);
        }
}

static void test_a_wait_that_fails_ends_the_step(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    group_fill(&g, 0);
    uint64_t before = digest(&g, 0);
    begin(&g);
    for (size_t k = 0; k < 2; k++) hand_in(&g, k);
    g.result[0] = gcomp_step_progress(g.gc[0]);
    CHECK(g.result[0] == GCOMP_OK && g.board.under_way[0] == 1);
    g.result[0] = gcomp_step_finish(g.gc[0]); /* rank 1 has not come: this board cannot wait */
    CHECK(g.result[0] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[0]), "frames failed with status -1"));
    CHECK(g.board.under_way[0] == 0 && digest(&g, 0) == before);
    CHECK(gcomp_step_abort(g.gc[1]) == GCOMP_OK);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

/* Whatever ends a step waits for what was begun. */
static void test_nothing_is_under_way_after_abort_restart_or_close(void)
{
    for (int how = 0; how < 3; how++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        group g;
        group_open(&g, CALLBACKS, 2, &desc, mixed, TENSORS);
        begin(&g);
        hand_in(&g, 0);
        CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK && g.board.under_way[0] == 1);
        if (how == 0) CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK);
        if (how == 1) CHECK(gcomp_restart(g.gc[0], 0) == GCOMP_OK);
        if (how == 2) gcomp_close(g.gc[0]), g.gc[0] = NULL;
        CHECK(g.board.under_way[0] == 0);
        group_close(&g);
    }
}

static void test_calls_out_of_order_are_refused(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    gcomp_request request;
    group g;
    CHECK(gcomp_step_progress(NULL) == GCOMP_INVALID_ARGUMENT && gcomp_step_finish(NULL) == GCOMP_INVALID_ARGUMENT);
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    group_fill(&g, 0);
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_WRONG_STATE && gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE);
    begin(&g);
    hand_in(&g, 0);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[0]), "'d'"));
    hand_in(&g, 1);
    CHECK(gcomp_step_ready(g.gc[0], 1, g.grad[0][1]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_next(g.gc[0], &request) == GCOMP_OK && request.kind == GCOMP_ALLGATHER);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[0]), "gcomp_step_next"));
    CHECK(gcomp_step_done(g.gc[0], request.id + 64, 0) == GCOMP_WRONG_STATE); /* of the next bucket */
    CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK && gcomp_step_abort(g.gc[1]) == GCOMP_OK);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

static void test_half_a_set_of_callbacks_is_refused(void)
{
    static const char *const names[] = {"comm.start", "comm.test", "comm.wait"};
    gcomp_desc desc = plain(0, GCOMP_AGGREGATE_AUTO);
    for (int missing = 0; missing < 3; missing++) {
        char why[256] = "";
        gcomp *gc = NULL;
        gcomp_comm comm;
        memset(&comm, 0, sizeof comm);
        if (missing != 0) comm.start = start;
        if (missing != 1) comm.test = test;
        if (missing != 2) comm.wait = wait;
        desc.comm = comm;
        desc.why = why;
        desc.why_capacity = sizeof why;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, names[missing]));
        memset(&desc.comm, 0, sizeof desc.comm);
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        CHECK(gcomp_regroup(gc, &comm) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), names[missing]));
        gcomp_close(gc);
    }
}

/* Without start: progress does nothing, finish needs the others. */
static void test_without_start_there_is_no_progress(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, OWN_LOOP, 2, &desc, mixed + 3, 1);
    begin(&g);
    hand_in(&g, 0);
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(g.gc[0]), "allgather"));
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK) && frames(&g) == 1);
    group_close(&g);
}

static double seconds;
static double clock_of(void *user)
{
    (void)user;
    return seconds;
}

static void test_the_clock_runs_while_a_request_is_under_way(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    gcomp_statistics stats;
    group g;
    desc.clock = clock_of;
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    begin(&g);
    hand_in(&g, 0);
    seconds = 10;
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK); /* a frame is under way */
    seconds = 13;
    progress(&g);
    progress(&g);
    progress(&g); /* and all else of the bucket, in no time */
    seconds = 20;
    hand_in(&g, 1);
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK && stats.communicate_seconds == 3);
    CHECK(gcomp_stats(g.gc[1], &stats) == GCOMP_OK && stats.communicate_seconds == 0);
    group_close(&g);
}

/* ---------------- memory, schedules, other workers */

static void test_memory_is_as_foreseen_and_no_step_allocates(void)
{
    for (size_t s = 0; s < SIZES; s++)
        for (int aggregate = 1; aggregate <= 4; aggregate++) {
            gcomp_desc desc = plain(sizes[s], (gcomp_aggregate)aggregate);
            group g;
            group_open(&g, CALLBACKS, 2, &desc, tensors_for(aggregate), TENSORS);
            for (size_t w = 0; w < 2; w++) CHECK(gcomp_prepare(g.gc[w]) == GCOMP_OK);
            desc.comm = comm_of(&g, 0);
            CHECK(gcomp_memory_used(g.gc[0]) == gcomp_memory_needed(&desc, tensors_for(aggregate), TENSORS));
            size_t had = heap.asked;
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                group_step(&g);
            }
            CHECK(all_are(&g, GCOMP_OK) && heap.asked == had);
            group_close(&g);
        }
    CHECK(heap.blocks == 0);
}

/* ---------------- means that are made before the commit, where that takes less memory */

static void test_buckets_take_less_memory_where_payloads_are_many(void)
{
    /* bytes an element: of one bucket at least, of ten at most */
    static const struct { const char *codec; int world; double one, ten; } cases[] = {
        {"nonzero", 16, 70, 15.5}, {"nonzero", 64, 268, 36},  {"strom", 16, 74, 19.5},     {"fp16", 16, 37, 13},
        {"sign", 64, 12, 9},       {"fp16", 64, 133, 23},     {"int:bits=4", 16, 12.5, 9.5},
        {"int:bits=4", 4, 6.5, 7}, {"none", 64, 4, 4.5},      {"sign", 4, 4.5, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
        gcomp_tensor tensors[10];
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        memset(tensors, 0, sizeof tensors);
        desc.codec = cases[i].codec;
        desc.comm.world = cases[i].world;
        for (size_t t = 0; t < 10; t++) {
            tensors[t].name = names[t];
            tensors[t].rows = 1000;
            tensors[t].cols = 100;
        }
        double one = (double)gcomp_memory_needed(&desc, tensors, 10) / 1e6;
        desc.bucket_bytes = 400000;
        double ten = (double)gcomp_memory_needed(&desc, tensors, 10) / 1e6;
        printf("# %s, %d workers: %.1f bytes an element in one bucket, %.1f in ten\n", cases[i].codec, cases[i].world, one, ten);
        CHECK(one > cases[i].one && one < cases[i].one + 1.5 && ten < cases[i].ten);
        CHECK(ten < one + 0.05);
    }
}

/* Between two tensors whose payloads are large, so that means take less memory. */
static void around(gcomp_tensor *tensors, const char *const *codecs)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static const gcomp_dtype dtypes[TENSORS] = {GCOMP_F32, GCOMP_F32,  GCOMP_F16, GCOMP_BF16,
                                                GCOMP_F32, GCOMP_BF16, GCOMP_F32, GCOMP_F16};
    memset(tensors, 0, TENSORS * sizeof *tensors);
    for (size_t t = 0; t < TENSORS; t++) {
        int large = t == 0 || t == 4 || t == 7;
        tensors[t].name = names[t];
        tensors[t].rows = large ? 320 : 31 + 6 * t;
        tensors[t].cols = large ? 40 : 17;
        tensors[t].dtype = dtypes[t];
        tensors[t].codec = large ? "blocktopk:density=1" : codecs[t % 4];
    }
}

/* Opens two groups: one has one bucket; the other has a bucket for each tensor, which takes less
   memory. */
static void open_both(group *a, group *b, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors)
{
    gcomp_desc cut = *base;
    cut.bucket_bytes = 1;
    group_open(a, CALLBACKS, world, base, tensors, TENSORS);
    group_open(b, world & 1 ? OWN_LOOP : CALLBACKS, world, &cut, tensors, TENSORS);
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_prepare(a->gc[w]) == GCOMP_OK && gcomp_prepare(b->gc[w]) == GCOMP_OK);
        CHECK(gcomp_memory_used(b->gc[w]) < gcomp_memory_used(a->gc[w]));
    }
    cut.comm = comm_of(b, 0);
    CHECK(gcomp_memory_used(b->gc[0]) == gcomp_memory_needed(&cut, tensors, TENSORS));
}

static void both_step(group *a, group *b, uint64_t step)
{
    gcomp_statistics x, y;
    a->order = b->order = (unsigned)step % 3;
    group_fill(a, step);
    group_fill(b, step);
    group_step(a);
    group_step(b);
    CHECK(all_are(a, GCOMP_OK) && all_are(b, GCOMP_OK));
    for (size_t w = 0; w < a->world; w++) {
        CHECK(outcome(a, w) == outcome(b, w));
        CHECK(gcomp_stats(a->gc[w], &x) == GCOMP_OK && gcomp_stats(b->gc[w], &y) == GCOMP_OK);
        CHECK(x.relative_error == y.relative_error && x.mean_norm == y.mean_norm);
    }
}

/* Four listed codecs for tests of steps, the c-th four; behind the last come the first. Returns
   0 if there are no more. */
static int take_codecs(size_t c, const char **codecs)
{
    const char *listed[ALL_CODECS];
    size_t count = 0;
    for (size_t i = 0; i < ALL_CODECS; i++)
        if (codec_list[i].steps) listed[count++] = codec_list[i].text;
    for (size_t k = 0; k < 4; k++) codecs[k] = listed[(4 * c + k) % count];
    return 4 * c < count;
}

/* For all codecs that are gathered, with floats and halves, with and without residuals. */
static void test_means_made_before_the_commit_have_the_bits_of_the_commit(void)
{
    const char *codecs[4];
    for (size_t c = 0; take_codecs(c, codecs); c++)
        for (size_t world = 2; world <= WORLD_MAX; world++)
            for (int way = 0; way < 4; way++) {
                if (!test_is_long() && world != 2 + c % 3) continue;
                gcomp_desc desc = plain(0, way == 3 ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER);
                gcomp_tensor tensors[TENSORS];
                group a, b;
                desc.no_error_feedback = way == 1;
                desc.measure = way != 2;
                desc.check_every = way == 2 ? 2 : 1;
                desc.no_checksum = way == 2;
                if (way == 2) desc.parallel.run = run_backwards;
                around(tensors, codecs);
                open_both(&a, &b, world, &desc, tensors);
                size_t had = heap.asked;
                for (uint64_t step = 0; step < 4; step++) {
                    a.skip = b.skip = step == 2 ? 1u << (c + world) % TENSORS | 1u << way : 0;
                    both_step(&a, &b, step);
                }
                CHECK(heap.asked == had);
                CHECK(agree(&a, &b)); /* digests of means are saved too */
                group_close(&a);
                group_close(&b);
            }
    CHECK(heap.blocks == 0);
}

/* Levels change with what was measured: relative errors, and accordion's sums of gradients. */
static void test_schedules_see_the_same_of_means_made_before_the_commit(void)
{
    static const char *const rules[2] = {"error:target=0.02,every=2", "accordion:every=1"};
    static const char *const lists[2] = {"int|int:bits=4|int:bits=2", "fp16|int:bits=2"};
    for (size_t r = 0; r < 2; r++) {
        const char *const codecs[4] = {lists[r], "fp16", lists[r], lists[r]};
        gcomp_desc desc = plain(0, GCOMP_AGGREGATE_GATHER);
        gcomp_tensor tensors[TENSORS];
        gcomp_statistics stats;
        group a, b;
        desc.codec = lists[r];
        desc.schedule = rules[r];
        around(tensors, codecs);
        open_both(&a, &b, 4, &desc, tensors);
        for (uint64_t step = 0; step < 12; step++) {
            gcomp_step how;
            how = gcomp_step_default();
            how.epoch = (uint32_t)step / 2;
            a.step = b.step = &how;
            both_step(&a, &b, step);
        }
        CHECK(gcomp_stats(b.gc[0], &stats) == GCOMP_OK && stats.switches > 2);
        group_close(&a);
        group_close(&b);
    }
}

/* What went wrong in a bucket behind such means leaves everything as it was, and the step can be
   repeated. */
static void test_a_fault_behind_means_that_were_made_leaves_no_trace(void)
{
    static const char *const codecs[4] = {"sign", "dgc:density=0.2,warmup=0", "topk:density=0.2,global=1", "fp16"};
    gcomp_tensor tensors[TENSORS];
    around(tensors, codecs);
    for (size_t fault = 0; fault < 2 * TENSORS; fault++) {
        gcomp_desc desc = plain(0, GCOMP_AGGREGATE_GATHER);
        size_t t = fault % TENSORS;
        uint64_t before[WORLD_MAX];
        group a, b;
        open_both(&a, &b, 3, &desc, tensors);
        both_step(&a, &b, 0);
        group_fill(&b, 1);
        for (size_t w = 0; w < 3; w++) before[w] = digest(&b, w);
        if (fault < TENSORS) { /* a gradient that is NaN */
            uint8_t *x = (uint8_t *)b.grad[1][t], was[4];
            memcpy(was, x, 4);
            memset(x, 0xff, 4);
            b.order = 0;
            b.passes = 20;
            group_step(&b);
            CHECK(all_are(&b, GCOMP_NOT_FINITE) && frames(&b) == TENSORS - t);
            memcpy(x, was, 4);
        } else if (t > 0) { /* a payload that rank 2 alone gets damaged, not in the last bucket */
            b.board.tamper = damage;
            b.board.fault_call = 64 * (TENSORS - 1 - t) + 9;
            group_step(&b);
            CHECK(b.result[2] == GCOMP_CHECKSUM_MISMATCH && b.result[0] == GCOMP_PEER_FAILED && b.result[1] == GCOMP_PEER_FAILED);
            CHECK(strstr(gcomp_error(b.gc[2]), "rank 1") != NULL);
            b.board.tamper = NULL;
        } else { /* all went well, and the caller gives up before the commit */
            begin(&b);
            for (size_t k = 0; k < TENSORS; k++) {
                hand_in(&b, k);
                for (size_t i = 0; i < 20; i++) progress(&b);
            }
            for (size_t w = 0; w < 3; w++) CHECK(b.done[w] && gcomp_step_abort(b.gc[w]) == GCOMP_OK);
        }
        for (size_t w = 0; w < 3; w++) CHECK(digest(&b, w) == before[w]);
        both_step(&a, &b, 1);
        CHECK(agree(&a, &b));
        both_step(&a, &b, 2);
        group_close(&a);
        group_close(&b);
    }
}

/* Then other tensors share a bucket. */
static void test_tensors_may_be_added_after_prepare(void)
{
    gcomp_desc desc = plain(4500, GCOMP_AGGREGATE_SHARDS);
    group a, b;
    group_open(&a, CALLBACKS, 2, &desc, mixed, TENSORS);
    group_open(&b, CALLBACKS, 2, &desc, mixed, TENSORS - 2);
    for (size_t w = 0; w < 2; w++) {
        CHECK(gcomp_prepare(b.gc[w]) == GCOMP_OK);
        for (size_t t = TENSORS - 2; t < TENSORS; t++) {
            CHECK(gcomp_add_tensor(b.gc[w], &mixed[t]) == GCOMP_OK && gcomp_restart(b.gc[w], 0) == GCOMP_OK);
            b.n[t] = a.n[t];
            b.dtype[t] = a.dtype[t];
            b.grad[w][t] = (float *)calloc(b.n[t], sizeof(float));
        }
    }
    b.count = TENSORS;
    group_fill(&a, 0);
    group_fill(&b, 0);
    group_step(&a);
    group_step(&b);
    CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
    group_close(&a);
    group_close(&b);
}

static void test_a_worker_without_memory_tells_in_the_first_frame(void)
{
    for (size_t left = 0; left < 2; left++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_SHARDS);
        group g;
        group_open(&g, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_fill(&g, 0);
        CHECK(gcomp_prepare(g.gc[0]) == GCOMP_OK && gcomp_prepare(g.gc[2]) == GCOMP_OK);
        heap.left = left;
        begin(&g);
        heap.left = SIZE_MAX;
        for (size_t k = 0; k < TENSORS; k++) {
            hand_in(&g, k);
            progress(&g);
        }
        finish(&g);
        CHECK(g.result[0] == GCOMP_PEER_FAILED && g.result[1] == GCOMP_OUT_OF_MEMORY && g.result[2] == GCOMP_PEER_FAILED);
        CHECK(frames(&g) == 1);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

/* Decisions of levels travel in the first frame alone, and all switch. */
static void test_schedules_switch_as_in_one_bucket(void)
{
    static const gcomp_tensor lists[4] = {{"x", 20, 30, 0, GCOMP_F32, NULL}, {"y", 40, 30, 0, GCOMP_F32, NULL},
                                          {"v", 70, 0, 0, GCOMP_F32, NULL}, {"z", 25, 50, 0, GCOMP_F32, NULL}};
    static const char *const rules[3][2] = {{"powersgd:rank=2|powersgd:rank=1", "accordion:every=1"},
                                            {"int|int:bits=4|int:bits=2", "bytes:target=1000,every=2"},
                                            {"topk:density=0.01", "warmup:epochs=3"}};
    for (size_t r = 0; r < 3; r++) {
        gcomp_desc whole = plain(0, GCOMP_AGGREGATE_GATHER), cut = plain(5000, GCOMP_AGGREGATE_GATHER);
        gcomp_statistics x, y;
        group a, b;
        whole.codec = cut.codec = rules[r][0];
        whole.schedule = cut.schedule = rules[r][1];
        whole.min_elements = cut.min_elements = 1;
        group_open(&a, CALLBACKS, 2, &whole, lists, 4);
        group_open(&b, CALLBACKS, 2, &cut, lists, 4);
        for (uint64_t step = 0; step < 10; step++) {
            gcomp_step how;
            how = gcomp_step_default();
            how.epoch = (uint32_t)step / 2;
            a.step = b.step = &how;
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && frames(&b) == 3);
            for (size_t w = 0; w < 2; w++) CHECK(outcome(&a, w) == outcome(&b, w)); /* rank 0 counts more frames */
        }
        CHECK(gcomp_stats(a.gc[1], &x) == GCOMP_OK && gcomp_stats(b.gc[1], &y) == GCOMP_OK);
        CHECK(x.switches > 2 && y.switches == x.switches && y.bytes_out == x.bytes_out + 10 * 2 * FRAME);
        group_close(&a);
        group_close(&b);
    }
}

static void test_other_workers_go_on_in_buckets(void)
{
    gcomp_desc whole = plain(0, GCOMP_AGGREGATE_SHARDS), cut = plain(4500, GCOMP_AGGREGATE_SHARDS);
    group a, b;
    group_open(&a, CALLBACKS, 4, &whole, mixed, TENSORS);
    group_open(&b, CALLBACKS, 4, &cut, mixed, TENSORS);
    for (uint64_t step = 0; step < 4; step++) {
        group *both[2] = {&a, &b};
        for (size_t i = 0; i < 2 && step == 2; i++) {
            both[i]->board.world = both[i]->world = 3; /* the last one is lost */
            for (size_t w = 0; w < 3; w++) {
                gcomp_comm comm = comm_of(both[i], w);
                CHECK(gcomp_regroup(both[i]->gc[w], &comm) == GCOMP_OK);
            }
        }
        group_fill(&a, step);
        group_fill(&b, step);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
    }
    CHECK(frames(&a) == 1 && frames(&b) == 4);
    a.world = b.world = 4;
    group_close(&a);
    group_close(&b);
}

/* ---------------- exchange */

typedef struct runner {
    group *g;
    size_t w;
    int flat;
    float *all;
} runner;

static void *run(void *arg)
{
    runner *r = (runner *)arg;
    group *g = r->g;
    void *grads[TENSORS];
    for (size_t t = 0; t < g->count; t++) grads[t] = g->grad[r->w][t];
    g->result[r->w] = r->flat ? gcomp_exchange_flat(g->gc[r->w], r->all, NULL) : gcomp_exchange_any(g->gc[r->w], grads, NULL);
    return NULL;
}

/* Threads that wait for each other: the exchange over start and wait has the bits of the step. */
static void test_an_exchange_between_threads_gives_the_bits_of_the_step(void)
{
    for (int way = 0; way < 4; way++) {
        const int flat = way & 1, aggregate = way & 2 ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_SHARDS;
        gcomp_desc desc = plain(3000, (gcomp_aggregate)aggregate);
        group a, b;
        size_t count = flat ? 7 : TENSORS; /* all floats */
        desc.allocator.alloc = NULL; /* it counts, for one thread */
        desc.allocator.free = NULL;
        group_open(&a, CALLBACKS, 3, &desc, tensors_for(aggregate), count);
        group_open(&b, CALLBACKS, 3, &desc, tensors_for(aggregate), count);
        for (uint64_t step = 0; step < 2; step++) {
            pthread_t thread[3];
            runner r[3];
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            memset(b.board.started, 0, sizeof b.board.started);
            b.board.carried = 0;
            b.board.threads = 1;
            for (size_t w = 0; w < 3; w++) {
                size_t at = 0;
                r[w].g = &b;
                r[w].w = w;
                r[w].flat = flat;
                r[w].all = (float *)calloc(10000, sizeof(float));
                for (size_t t = 0; t < count; at += b.n[t++]) memcpy(r[w].all + at, b.grad[w][t], 4 * b.n[t]);
                CHECK(pthread_create(&thread[w], NULL, run, &r[w]) == 0);
            }
            for (size_t w = 0; w < 3; w++) {
                size_t at = 0;
                CHECK(pthread_join(thread[w], NULL) == 0);
                for (size_t t = 0; flat && t < count; at += b.n[t++]) memcpy(b.grad[w][t], r[w].all + at, 4 * b.n[t]);
                free(r[w].all);
            }
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b) && frames(&a) == frames(&b));
        }
        group_close(&a);
        group_close(&b);
    }
}

int main(void)
{
    RUN(test_any_buckets_give_the_bits_of_one);
    RUN(test_one_large_bucket_asks_for_what_none_asks_for);
    RUN(test_buckets_go_out_from_the_last_to_the_first);
    RUN(test_tensors_may_be_skipped_in_any_bucket);
    RUN(test_a_bad_gradient_of_a_later_bucket_leaves_no_trace);
    RUN(test_a_bad_gradient_that_is_ready_first_is_told_in_the_first_frame);
    RUN(test_what_one_worker_sees_is_told_in_the_next_frame);
    RUN(test_what_one_worker_sees_in_the_last_bucket_is_told_in_the_next_step);
    RUN(test_frames_of_a_bucket_are_of_it_alone);
    RUN(test_sums_of_a_bucket_fit_its_place);
    RUN(test_other_buckets_or_callbacks_are_a_mismatch);
    RUN(test_a_callback_that_fails_leaves_no_trace_and_nothing_under_way);
    RUN(test_a_wait_that_fails_ends_the_step);
    RUN(test_nothing_is_under_way_after_abort_restart_or_close);
    RUN(test_calls_out_of_order_are_refused);
    RUN(test_half_a_set_of_callbacks_is_refused);
    RUN(test_without_start_there_is_no_progress);
    RUN(test_the_clock_runs_while_a_request_is_under_way);
    RUN(test_memory_is_as_foreseen_and_no_step_allocates);
    RUN(test_buckets_take_less_memory_where_payloads_are_many);
    RUN(test_means_made_before_the_commit_have_the_bits_of_the_commit);
    RUN(test_schedules_see_the_same_of_means_made_before_the_commit);
    RUN(test_a_fault_behind_means_that_were_made_leaves_no_trace);
    RUN(test_tensors_may_be_added_after_prepare);
    RUN(test_a_worker_without_memory_tells_in_the_first_frame);
    RUN(test_schedules_switch_as_in_one_bucket);
    RUN(test_other_workers_go_on_in_buckets);
    RUN(test_an_exchange_between_threads_gives_the_bits_of_the_step);
    return test_end();
}
