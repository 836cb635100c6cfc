/* Proves that when one worker alone makes an error in a step, the others hear of it in its frame,
   and no worker waits in a collective that another does not enter. The transport of threads
   refuses collectives of different kinds or sizes. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_threads.h"
#include "test.h"

enum { WORLD = 4, TENSORS = 3, N = 1200, ODD = 1, FRAME_BYTES = 64 };

typedef enum call { EXCHANGE, FLAT, FINISH } call;

typedef enum mistake {
    NONE,
    NO_GRADS,
    HALVES,     /* floats are passed, and a tensor has 16 bits */
    NO_SUM,     /* comm.allreduce is NULL */
    NO_RANGES,  /* comm.alltoallv is NULL */
    NO_GATHERV, /* comm.allgatherv is NULL */
    NO_MAX,     /* comm.allreduce_max is NULL */
    STARTS,     /* comm.start is set */
    DAMAGE      /* the frame of rank 2 arrives damaged */
} mistake;

typedef struct worker {
    gcomp *gc;
    gcomp_comm comm; /* of the threads, without what stands before it here */
    gcomp_threads *group;
    call by;
    mistake makes;
    float grad[TENSORS * N];
    gcomp_result result;
} worker;

typedef struct team {
    gcomp_threads *group, *machine[2];
    worker w[WORLD];
    int world;
} team;

static int damaging_gather(void *user, const void *mine, void *all, size_t bytes)
{
    worker *w = (worker *)user;
    int status = w->comm.allgather(w->comm.user, mine, all, bytes);
    if (w->makes == DAMAGE && bytes == FRAME_BYTES) ((uint8_t *)all)[2 * FRAME_BYTES + 30] ^= 4;
    return status;
}

static int sum(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    worker *w = (worker *)user;
    return w->comm.allreduce(w->comm.user, data, count, dtype);
}

static int largest(void *user, float *data, size_t count)
{
    worker *w = (worker *)user;
    return w->comm.allreduce_max(w->comm.user, data, count);
}

static int ranges(void *user, const void *send, const size_t *sent, void *recv, const size_t *came)
{
    worker *w = (worker *)user;
    return w->comm.alltoallv(w->comm.user, send, sent, recv, came);
}

static int gatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    worker *w = (worker *)user;
    return w->comm.allgatherv(w->comm.user, mine, all, bytes, stride);
}

/* Begun and over at once. */
static int start(void *user, const gcomp_request *r)
{
    worker *w = (worker *)user;
    CHECK(r->kind == GCOMP_ALLGATHER && r->stride == FRAME_BYTES);
    return w->comm.allgather(w->comm.user, r->send, r->recv, r->stride);
}

static int is_over(void *user, uint32_t id, int *done)
{
    (void)user, (void)id;
    *done = 1;
    return 0;
}

static int wait_for(void *user, uint32_t id)
{
    (void)user, (void)id;
    return 0;
}

static gcomp_comm comm_of(worker *w, gcomp_threads *group, int rank)
{
    gcomp_comm comm;
    w->group = group;
    comm = w->comm = gcomp_threads_comm(group, rank);
    comm.user = w;
    comm.allreduce = w->makes == NO_SUM ? NULL : sum;
    comm.allgather = damaging_gather;
    comm.allgatherv = w->makes == NO_GATHERV ? NULL : gatherv;
    comm.allreduce_max = w->makes == NO_MAX ? NULL : largest;
    comm.alltoallv = w->makes == NO_RANGES ? NULL : ranges;
    if (w->makes == STARTS) {
        comm.start = start;
        comm.test = is_over;
        comm.wait = wait_for;
    }
    return comm;
}

/* With machines: two of two workers each. */
static void team_open(team *t, const gcomp_desc *base, const char *const *codecs, gcomp_dtype last,
                      mistake odd, int machines)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    memset(t, 0, sizeof *t);
    t->world = machines ? 4 : 3;
    CHECK(gcomp_threads_open(&t->group, machines ? 2 : 3, 20) == 0);
    for (int m = 0; m < 2 && machines; m++)
        CHECK(gcomp_threads_open(&t->machine[m], 2, 20) == 0);
    for (int r = 0; r < t->world; r++) {
        worker *w = &t->w[r];
        gcomp_desc desc = *base;
        /* one that is not the first of its machine, or is */
        w->makes = r == ODD + (machines == 2) ? odd : NONE;
        desc.min_elements = 1;
        if (machines) {
            desc.node = gcomp_threads_comm(t->machine[r / 2], r % 2);
            desc.comm.rank = r / 2;
            desc.comm.world = 2;
            if (r % 2 == 0) desc.comm = comm_of(w, t->group, r / 2);
        } else {
            desc.comm = comm_of(w, t->group, r);
        }
        CHECK(gcomp_open(&w->gc, &desc) == GCOMP_OK);
        for (size_t i = 0; i < TENSORS; i++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = names[i];
            tensor.rows = 40;
            tensor.cols = N / 40;
            tensor.codec = codecs[i];
            tensor.dtype = i + 1 < TENSORS ? GCOMP_F32 : last;
            CHECK(gcomp_add_tensor(w->gc, &tensor) == GCOMP_OK);
        }
    }
}

static void team_close(team *t)
{
    for (int r = 0; r < t->world; r++) gcomp_close(t->w[r].gc);
    for (int m = 0; m < 2; m++) gcomp_threads_close(t->machine[m]);
    gcomp_threads_close(t->group);
}

static void *turn(void *arg)
{
    worker *w = (worker *)arg;
    const int none = w->makes == NO_GRADS;
    void *grads[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) grads[i] = w->grad + N * i;
    if (w->by == EXCHANGE && w->makes != HALVES) {
        w->result = gcomp_exchange(w->gc, none ? NULL : grads, NULL);
    } else if (w->by != FINISH) {
        w->result = gcomp_exchange_flat(w->gc, none ? NULL : w->grad, NULL);
    } else {
        w->result = gcomp_step_begin(w->gc, NULL);
        for (size_t i = 0; i < TENSORS && !w->result; i++)
            w->result = gcomp_step_ready(w->gc, i, grads[i]);
        if (!w->result) w->result = gcomp_step_finish(w->gc);
    }
    if (w->group && gcomp_result_class(w->result) == GCOMP_CLASS_RESYNCHRONISE)
        gcomp_threads_fail(w->group);
    return NULL;
}

static void team_fill(team *t)
{
    for (int r = 0; r < t->world; r++)
        for (size_t i = 0; i < TENSORS * N; i++)
            t->w[r].grad[i] = (float)((int)(mix((uint64_t)r << 32 | i) & 255) - 128) / 64.0f;
}

static uint64_t digest(const worker *w)
{
    uint64_t h = fnv(FNV, w->grad, sizeof w->grad);
    for (size_t i = 0; i < TENSORS; i++)
        if (tensor_residual(w->gc, i)) h = fnv(h, tensor_residual(w->gc, i), 4 * N);
    return h;
}

/* A step that must change nothing where it fails. */
static void team_step(team *t)
{
    pthread_t id[WORLD];
    uint64_t before[WORLD];
    for (int r = 0; r < t->world; r++) before[r] = digest(&t->w[r]);
    for (int r = 0; r < t->world; r++)
        CHECK(pthread_create(&id[r], NULL, turn, &t->w[r]) == 0);
    for (int r = 0; r < t->world; r++) pthread_join(id[r], NULL);
    for (int r = 0; r < t->world; r++)
        CHECK(t->w[r].result == GCOMP_OK || digest(&t->w[r]) == before[r]);
}

static int all_are(const team *t, gcomp_result odd, gcomp_result others, size_t which)
{
    int yes = 1;
    for (int r = 0; r < t->world; r++) {
        const gcomp_result expected = (size_t)r == which ? odd : others;
        if (t->w[r].result == expected) continue;
        printf("# rank %d: %s, expected %s: %s\n", r, result_name(t->w[r].result),
               result_name(expected), gcomp_error(t->w[r].gc));
        yes = 0;
    }
    return yes;
}

static const char *const gathers[TENSORS] = {"sign", "topk:density=0.1", "int"};
static const char *const sums[TENSORS] = {"powersgd:rank=2", "sign", "none"};

/* In all three exchanges, in one bucket and in three, on one level and on two. */
static void test_an_error_before_the_step_is_told_in_the_frame(void)
{
    static const struct {
        call by;
        mistake makes;
        gcomp_dtype last;
        const char *why;
    } cases[] = {{EXCHANGE, NO_GRADS, GCOMP_F32, "grads is NULL"},
                 {FLAT, NO_GRADS, GCOMP_F32, "grads is NULL"},
                 {EXCHANGE, NO_GRADS, GCOMP_F16, "grads is NULL"},
                 {EXCHANGE, HALVES, GCOMP_F16, "tensor 'c': its dtype"},
                 {EXCHANGE, HALVES, GCOMP_BF16, "gcomp_exchange"}};
    static team t;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int machines = 0; machines < 3; machines++)
            for (size_t bucket = 0; bucket <= 5000; bucket += 5000) {
                const size_t odd = ODD + (machines == 2);
                gcomp_desc desc;
                memset(&desc, 0, sizeof desc);
                desc.bucket_bytes = bucket;
                team_open(&t, &desc, c & 1 ? sums : gathers, cases[c].last, cases[c].makes,
                          machines);
                team_fill(&t);
                for (int r = 0; r < t.world; r++) t.w[r].by = cases[c].by;
                for (int again = 0; again < 2; again++) {
                    team_step(&t);
                    CHECK(all_are(&t, GCOMP_INVALID_ARGUMENT, GCOMP_PEER_FAILED, odd));
                    CHECK(strstr(gcomp_error(t.w[odd].gc), cases[c].why));
                    CHECK(strstr(gcomp_error(t.w[0].gc), "an argument or a desc field"));
                }
                t.w[odd].makes = NONE;
                team_step(&t);
                CHECK(all_are(&t, GCOMP_OK, GCOMP_OK, odd));
                team_close(&t);
            }
}

static void test_a_missing_allreduce_of_one_worker_is_told_in_the_frame(void)
{
    static team t;
    for (int machines = 0; machines < 3; machines += 2)
        for (call by = EXCHANGE; by <= (machines ? FLAT : FINISH); by = (call)(by + 1))
            for (size_t bucket = 0; bucket <= 5000; bucket += 5000) {
                const size_t odd = ODD + (machines == 2);
                gcomp_desc desc;
                memset(&desc, 0, sizeof desc);
                desc.bucket_bytes = bucket;
                desc.aggregate = GCOMP_AGGREGATE_GATHER; /* AUTO compares who can sum */
                team_open(&t, &desc, sums, GCOMP_F32, NO_SUM, machines);
                team_fill(&t);
                for (int r = 0; r < t.world; r++) t.w[r].by = by;
                for (int again = 0; again < 2; again++) {
                    team_step(&t);
                    CHECK(all_are(&t, GCOMP_MISSING_CALLBACK, GCOMP_PEER_FAILED, odd));
                    CHECK(strstr(gcomp_error(t.w[odd].gc), "tensor 'a': comm.allreduce is NULL"));
                    CHECK(strstr(gcomp_error(t.w[0].gc), "a callback that is needed"));
                }
                team_close(&t);
            }
}

/* Which collectives a step makes depends on the callbacks that a worker has: so the frame tells
   of them before the first collective. */
static void test_other_optional_callbacks_are_a_mismatch(void)
{
    static const char *const global[TENSORS] = {"topk:density=0.1,global=1", "terngrad:share=1",
                                                "sign"};
    static const gcomp_aggregate forms[] = {GCOMP_AGGREGATE_AUTO, GCOMP_AGGREGATE_TWO_SHOT};
    static team t;
    for (mistake odd = NO_SUM; odd <= STARTS; odd = (mistake)(odd + 1))
        for (size_t f = 0; f < (odd == NO_SUM ? 1 : 2); f++)
            for (size_t bucket = 0; bucket <= 5000; bucket += 5000) {
                gcomp_desc desc;
                memset(&desc, 0, sizeof desc);
                desc.aggregate = forms[f];
                desc.bucket_bytes = bucket;
                team_open(&t, &desc, global, GCOMP_F32, odd, 0);
                team_fill(&t);
                for (int again = 0; again < 2; again++) {
                    team_step(&t);
                    CHECK(all_are(&t, GCOMP_MISMATCH, GCOMP_MISMATCH, ODD));
                    for (size_t w = 0; w < 3; w++)
                        CHECK(strstr(gcomp_error(t.w[w].gc), "rank 1 has comm.") && strstr(gcomp_error(t.w[w].gc), "rank 0 has comm."));
                }
                team_close(&t);
            }
}

/* The worker does not know the sizes of what follows. Its class says to make the transport anew:
   that frees the others. */
static void test_a_frame_damaged_on_one_worker_asks_it_to_resynchronise(void)
{
    static team t;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    team_open(&t, &desc, gathers, GCOMP_F32, DAMAGE, 0);
    team_fill(&t);
    team_step(&t);
    CHECK(all_are(&t, GCOMP_CALLBACK_FAILED, GCOMP_CALLBACK_FAILED, ODD));
    CHECK(strstr(gcomp_error(t.w[ODD].gc), "rank 2 sent a frame that arrived damaged"));
    t.w[ODD].makes = NONE;
    gcomp_threads_close(t.group);
    CHECK(gcomp_threads_open(&t.group, t.world, 20) == 0);
    for (int r = 0; r < t.world; r++) {
        const gcomp_comm comm = comm_of(&t.w[r], t.group, r);
        CHECK(gcomp_regroup(t.w[r].gc, &comm, NULL) == GCOMP_OK);
        CHECK(gcomp_restart(t.w[r].gc, 7) == GCOMP_OK);
    }
    team_step(&t);
    CHECK(all_are(&t, GCOMP_OK, GCOMP_OK, ODD));
    team_close(&t);
}

/* ---------------- what came back */

enum { PAIR = 2, PAIR_N = 4096 };

typedef struct pair {
    gcomp *gc[PAIR];
    float grad[PAIR][PAIR_N], before[PAIR][PAIR_N];
    gcomp_result result[PAIR];
} pair;

static void pair_open(pair *p, const char *codec, const char *schedule, gcomp_aggregate aggregate,
                      size_t bucket)
{
    memset(p, 0, sizeof *p);
    for (int w = 0; w < PAIR; w++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.codec = codec;
        desc.schedule = schedule;
        desc.aggregate = aggregate;
        desc.bucket_bytes = bucket;
        desc.comm.rank = w;
        desc.comm.world = PAIR;
        CHECK(gcomp_open(&p->gc[w], &desc) == GCOMP_OK);
    }
}

static void pair_add(pair *p, const char *name, size_t rows, size_t cols)
{
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = name;
    tensor.rows = rows;
    tensor.cols = cols;
    for (int w = 0; w < PAIR; w++) CHECK(gcomp_add_tensor(p->gc[w], &tensor) == GCOMP_OK);
}

static void pair_close(pair *p)
{
    for (int w = 0; w < PAIR; w++) gcomp_close(p->gc[w]);
}

static void pair_begin(pair *p, uint64_t key)
{
    const gcomp_step step = step_with(1, 0, 0);
    for (int w = 0; w < PAIR; w++) {
        for (size_t i = 0; i < PAIR_N; i++)
            p->grad[w][i] = (float)((int)(mix(key + (uint64_t)w * PAIR_N + i) % 999) - 499);
        memcpy(p->before[w], p->grad[w], sizeof p->grad[w]);
        p->result[w] = gcomp_step_begin(p->gc[w], &step);
        for (size_t i = 0; i < tensors_of(p->gc[w]) && !p->result[w]; i++)
            p->result[w] = gcomp_step_ready(
                p->gc[w], i, p->grad[w] + i * (PAIR_N / tensors_of(p->gc[w])));
    }
}

static size_t bytes_before(const size_t *bytes, int w)
{
    size_t sum = 0;
    for (int v = 0; v < w; v++) sum += bytes[v];
    return sum;
}

/* What a sum of both workers makes, as long as neither has it. */
static float pair_sum[2048];

static void add(const gcomp_request *r)
{
    for (size_t i = 0; r[0].kind == GCOMP_ALLREDUCE && i < r[0].count; i++)
        pair_sum[i] = ((const float *)r[0].send)[i] + ((const float *)r[1].send)[i];
}

/* Carries out a request for worker w alone. */
static void bring(const gcomp_request *r, int w)
{
    if (r[w].kind == GCOMP_ALLREDUCE) {
        memcpy(r[w].recv, pair_sum, 4 * r[w].count);
        return;
    }
    for (int v = 0; v < PAIR; v++) {
        const int gather = r[w].kind == GCOMP_ALLGATHER;
        const size_t at = gather ? (size_t)v * r[w].stride : bytes_before(r[w].bytes, v);
        const size_t from = gather ? 0 : bytes_before(r[v].send_bytes, w);
        if (!r[w].bytes[v]) continue;
        memcpy((char *)r[w].recv + at, (const char *)r[v].send + from, r[w].bytes[v]);
    }
}

/* A step in which request `lost` is not brought to worker 0, and its transport says success.
   Returns how many requests there were. */
static int pair_step(pair *p, int lost, uint64_t key)
{
    gcomp_request r[PAIR];
    int k = 0;
    for (pair_begin(p, key); !p->result[0] && !p->result[1]; k++) {
        for (int w = 0; w < PAIR; w++) p->result[w] = gcomp_step_next(p->gc[w], &r[w]);
        if (p->result[0] || p->result[1]) break;
        if (r[0].kind == GCOMP_DONE) {
            for (int w = 0; w < PAIR; w++) p->result[w] = gcomp_step_commit(p->gc[w]);
            return k;
        }
        add(r);
        for (int w = k == lost; w < PAIR; w++) bring(r, w);
        for (int w = 0; w < PAIR; w++) CHECK(gcomp_step_done(p->gc[w], r[w].id, 0) == GCOMP_OK);
    }
    return k;
}

/* What lies in the buffers is that of the step or stage before, with right checksums. Each worker
   looks at what came back of its own. */
static void test_what_does_not_come_is_an_error_and_not_the_mean_of_another_step(void)
{
    static const struct { const char *codec; gcomp_aggregate aggregate; } cases[] = {
        {"sign", GCOMP_AGGREGATE_GATHER}, {"topk:density=0.05", GCOMP_AGGREGATE_GATHER},
        {"topk:density=0.05", GCOMP_AGGREGATE_SHARDS}, {"int", GCOMP_AGGREGATE_TWO_SHOT},
        {"topk:density=0.05,global=1", GCOMP_AGGREGATE_SHARDS},
        {"topk:density=0.05", GCOMP_AGGREGATE_SCATTER}, {"int", GCOMP_AGGREGATE_SCATTER}};
    static pair p;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t bucket = 0; bucket <= 4096; bucket += 4096) {
            int requests = 1;
            for (int lost = 0; lost < requests; lost++) {
                pair_open(&p, cases[c].codec, NULL, cases[c].aggregate, bucket);
                pair_add(&p, "a", 32, PAIR_N / 64);
                pair_add(&p, "b", 32, PAIR_N / 64);
                requests = pair_step(&p, -1, 1);
                CHECK(!p.result[0] && !p.result[1]);
                (void)pair_step(&p, lost, 2);
                CHECK(p.result[0] != GCOMP_OK);
                if (!p.result[0]) printf("# %s, request %d\n", cases[c].codec, lost);
                for (int w = 0; w < PAIR; w++)
                    CHECK(!p.result[w] || !memcmp(p.grad[w], p.before[w], sizeof p.grad[w]));
                for (int w = 0; w < PAIR; w++) CHECK(gcomp_restart(p.gc[w], 7) == GCOMP_OK);
                CHECK(pair_step(&p, -1, 3) == requests && !p.result[0] && !p.result[1]);
                pair_close(&p);
            }
        }
}

/* Where no tensor has a list, there is no room for entries that rank 0 might send. */
static void test_a_decision_on_no_list_is_refused(void)
{
    static pair p;
    gcomp_request r;
    uint8_t *f;
    pair_open(&p, "powersgd:rank=2|powersgd:rank=1", "accordion", GCOMP_AGGREGATE_AUTO, 0);
    pair_add(&p, "a", 8, 1); /* vectors stay uncompressed */
    pair_add(&p, "b", 8, 1);
    pair_begin(&p, 1);
    CHECK(gcomp_step_next(p.gc[1], &r) == GCOMP_OK && r.kind == GCOMP_ALLGATHER);
    f = (uint8_t *)r.recv;
    memcpy(f + FRAME_BYTES, r.send, FRAME_BYTES);
    memcpy(f, r.send, FRAME_BYTES);
    put_word(f + 4, 0, 4);
    f[13] = 255; /* each tensor goes to an entry of its own */
    put_word(f + 60, plain_crc(0, f, 60), 4);
    CHECK(gcomp_step_done(p.gc[1], r.id, 0) == GCOMP_OK);
    CHECK(gcomp_step_next(p.gc[1], &r) == GCOMP_MISMATCH);
    CHECK(strstr(gcomp_error(p.gc[1]), "decides on codecs"));
    pair_close(&p);
}

/* The smallest number of 32 bits has no counterpart: it is an error like any other. */
static void test_a_status_of_any_value_is_an_error(void)
{
    static const uint32_t statuses[] = {1, 29, 255, 256, 0x7fffffffu, 0x80000000u, 0xffffffffu};
    static pair p;
    for (size_t s = 0; s < sizeof statuses / sizeof *statuses; s++) {
        gcomp_request r[PAIR];
        pair_open(&p, "topk:density=0.05", NULL, GCOMP_AGGREGATE_SHARDS, 0);
        pair_add(&p, "a", 64, PAIR_N / 64);
        pair_begin(&p, 1);
        for (int k = 0; k < 3; k++) { /* frames, lengths, answers */
            for (int w = 0; w < PAIR; w++) CHECK(gcomp_step_next(p.gc[w], &r[w]) == GCOMP_OK);
            for (int w = 0; w < PAIR; w++) bring(r, w);
            if (k == 2) {
                uint8_t *answer = (uint8_t *)r[0].recv + 16;
                put_word(answer + 8, statuses[s], 4);
                put_word(answer + 12, plain_crc(0, answer, 12), 4);
            }
            for (int w = 0; w < PAIR; w++) CHECK(gcomp_step_done(p.gc[w], r[w].id, 0) == GCOMP_OK);
        }
        CHECK(gcomp_step_next(p.gc[0], &r[0]) == GCOMP_PEER_FAILED);
        CHECK(strstr(gcomp_error(p.gc[0]), "rank 1: "));
        pair_close(&p);
    }
}

int main(void)
{
    RUN(test_an_error_before_the_step_is_told_in_the_frame);
    RUN(test_a_missing_allreduce_of_one_worker_is_told_in_the_frame);
    RUN(test_other_optional_callbacks_are_a_mismatch);
    RUN(test_a_frame_damaged_on_one_worker_asks_it_to_resynchronise);
    RUN(test_what_does_not_come_is_an_error_and_not_the_mean_of_another_step);
    RUN(test_a_decision_on_no_list_is_refused);
    RUN(test_a_status_of_any_value_is_an_error);
    return test_end();
}
