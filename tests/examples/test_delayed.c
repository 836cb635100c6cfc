/* Proves of examples/patterns/delayed.c: what it says of its algorithm, of NaN, of workers that die, and of overlap. */

#include "patterns.h"

static gcomp_threads *again; /* a second group, for those that are left */

static unsigned char saves[2][16 * N]; /* of workers that leave, for those that join */
static size_t lengths[2];

/* ---------------- delayed.c */

static size_t round_steps = 1, late, local_steps = 30;

static void open_delayed(worker *w)
{
    gcomp_desc desc = {0};
    gcomp_comm comms[DELAYED_ROUNDS];
    memset(&w->d, 0, sizeof w->d);
    desc.codec = codec;
    for (size_t r = 0; r < DELAYED_ROUNDS; r++) comms[r] = w->comm;
    w->d.n = N;
    w->d.every = round_steps;
    w->d.delay = late;
    for (size_t i = 0; i < N; i++) w->x[i] = at_first(i);
    w->result = delayed_open(&w->d, &desc, comms, w->x);
}

static void train_delayed(worker *w, size_t steps)
{
    float u[N];
    for (size_t s = 0; s < steps && w->result == GCOMP_OK; s++) {
        int sent;
        for (size_t i = 0; i < N; i++) u[i] = RATE * slope(i, w->rank, w->x[i]);
        w->result = delayed_step(&w->d, w->x, u, &sent);
        w->wrong += sent != (w->d.step % round_steps == 0);
    }
}

/* With an uncompressed codec: y - h - own parts is x, to rounding; and sum of what was applied = sum of u. */
static void body_delayed(worker *w)
{
    open_delayed(w);
    train_delayed(w, local_steps);
    if (w->result == GCOMP_OK) w->result = delayed_end(&w->d, w->x);
    w->wrong += !same(w->x, w->d.y);
    delayed_close(&w->d);
}

static void body_synchronous(worker *w)
{
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp *gc = NULL;
    float u[N], *grads[1] = {u};
    desc.codec = codec;
    desc.comm = w->comm;
    tensor.name = "updates";
    tensor.rows = N;
    tensor.codec = codec;
    w->wrong = gcomp_open(&gc, &desc) != GCOMP_OK || gcomp_add_tensor(gc, &tensor) != GCOMP_OK;
    for (size_t i = 0; i < N; i++) w->x[i] = at_first(i);
    for (size_t s = 0; s < local_steps && !w->wrong; s++) {
        for (size_t i = 0; i < N; i++) u[i] = RATE * slope(i, w->rank, w->x[i]);
        w->wrong = exchange_floats(gc, grads, NULL) != GCOMP_OK;
        for (size_t i = 0; i < N; i++) w->x[i] -= u[i];
    }
    gcomp_close(gc);
}

static void set_delay(size_t k, size_t d, const char *text)
{
    round_steps = k;
    late = d;
    codec = text;
    memset(workers, 0, sizeof workers);
}

static void test_without_delay_every_bit_is_that_of_synchronous_training(void)
{
    static const char *const codecs[] = {"none", "int:bits=4", "sign", "topk:density=0.05"};
    static float x[N];
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        set_delay(1, 0, codecs[c]);
        each(WORLD, body_synchronous);
        memcpy(x, workers[0].x, BYTES);
        CHECK(workers[0].wrong == 0);
        each(WORLD, body_delayed);
        for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && same(workers[w].x, x));
    }
}

static void test_drained_workers_are_equal_whatever_the_delay(void)
{
    static const size_t ways[][2] = {{1, 0}, {1, 5}, {1, 8}, {5, 0}, {5, 3}, {5, 5}, {5, 20}, {7, 20}, {20, 20}};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        set_delay(ways[k][0], ways[k][1], "int:bits=4");
        local_steps = 63; /* not a multiple of any: the last round is shorter */
        each(WORLD, body_delayed);
        for (int w = 0; w < WORLD; w++)
            CHECK(workers[w].result == GCOMP_OK && workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
        local_steps = 400;
        each(WORLD, body_delayed);
        CHECK(miss(workers[0].x) < 0.05);
    }
    local_steps = 30;
    set_delay(1, 9, "none");
    each(1, open_delayed);
    CHECK(workers[0].result == GCOMP_INVALID_ARGUMENT);
}

/* What was sent and what waits in the residuals is what the workers have done: start - y = mean of sum u - e. */
static void body_conserves(worker *w)
{
    float u[N];
    double most = 0;
    static double done[WORLD][N], kept[WORLD][N];
    open_delayed(w);
    memset(done[w->rank], 0, sizeof done[0]);
    for (size_t s = 0; s < 40; s++) {
        int sent;
        for (size_t i = 0; i < N; i++) {
            u[i] = RATE * slope(i, w->rank, w->x[i]);
            done[w->rank][i] += (double)u[i];
        }
        w->wrong += delayed_step(&w->d, w->x, u, &sent) != GCOMP_OK;
    }
    w->wrong += delayed_end(&w->d, w->x) != GCOMP_OK;
    for (size_t i = 0; i < N; i++) kept[w->rank][i] = 0;
    for (size_t r = 0; r < w->d.rounds; r++) /* over all objects */
        for (size_t i = 0; i < N; i++) kept[w->rank][i] += (double)tensor_residual(w->d.ring[r].gc, 0)[i];
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    for (size_t i = 0; i < N; i++) {
        double sum = 0;
        for (int k = 0; k < WORLD; k++) sum += (done[k][i] - kept[k][i]) / WORLD;
        most = fmax(most, fabs((double)at_first(i) - (double)w->x[i] - sum));
    }
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0 || most > 1e-5;
    delayed_close(&w->d);
}

static void test_what_is_not_applied_waits_in_the_residuals(void)
{
    set_delay(2, 6, "sign");
    each(WORLD, body_conserves);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* Worker 1 has NaN in one update, with three rounds under way. */
static void body_delayed_nan(worker *w)
{
    float u[N];
    open_delayed(w);
    for (size_t s = 0; s < 40; s++) {
        int sent;
        for (size_t i = 0; i < N; i++) u[i] = RATE * slope(i, w->rank, w->x[i]);
        if (s == 11 && w->rank == 1) u[17] = NAN;
        w->wrong += delayed_step(&w->d, w->x, u, &sent) != GCOMP_OK;
        for (size_t i = 0; i < N; i++) w->wrong += !isfinite(w->d.y[i]);
        for (size_t i = 0; i < N && (w->rank != 1 || s < 11 || s > 18); i++) w->wrong += !isfinite(w->x[i]);
    }
    w->wrong += delayed_end(&w->d, w->x) != GCOMP_OK || !same(w->x, w->d.y);
    w->wrong += w->d.dropped < 1 || w->d.dropped > 4 || w->d.restarted != (w->rank == 1);
    delayed_close(&w->d);
}

static void test_a_round_with_nan_is_dropped_by_all(void)
{
    set_delay(2, 6, "int:bits=4");
    each(WORLD, body_delayed_nan);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
}

/* Worker 3 dies with two rounds under way. The others regroup, and another worker joins them when all are drained. */
static gcomp_threads *whole;

static void body_delayed_death(worker *w)
{
    gcomp_comm comm;
    float x[N], u[N];
    int sent;
    open_delayed(w);
    train_delayed(w, 10);
    memcpy(x, w->x, sizeof x);
    if (w->rank == 3) {
        gcomp_threads_fail(w->group);
        delayed_close(&w->d);
        return;
    }
    memset(u, 0, sizeof u);
    for (int k = 0; k < 2; k++) { /* both rounds under way fail, and the weights stay */
        w->result = GCOMP_OK;
        while (w->result == GCOMP_OK) w->result = delayed_step(&w->d, w->x, u, &sent);
        w->wrong += w->result != GCOMP_CALLBACK_FAILED || !same(w->x, x);
    }
    comm = gcomp_threads_comm(again, w->rank);
    for (size_t r = 0; r < w->d.rounds; r++) w->wrong += gcomp_regroup(w->d.ring[r].gc, &comm, NULL) != GCOMP_OK;
    w->result = GCOMP_OK;
    train_delayed(w, 30 - w->d.step);
    w->wrong += w->result != GCOMP_OK || delayed_end(&w->d, w->x) != GCOMP_OK;
    comm = gcomp_threads_comm(whole, w->rank); /* and now with a successor of worker 3 */
    for (size_t r = 0; r < w->d.rounds; r++) {
        w->wrong += gcomp_regroup(w->d.ring[r].gc, &comm, NULL) != GCOMP_OK;
        if (w->rank == 0) w->wrong += gcomp_save(w->d.ring[r].gc, saves[r], sizeof saves[r], &lengths[r]) != GCOMP_OK;
    }
    w->wrong += gcomp_threads_barrier(comm.user) != 0;
    w->wrong += gcomp_threads_barrier(comm.user) != 0; /* it has read what it needs */
    train_delayed(w, 10);
    w->wrong += w->result != GCOMP_OK || delayed_end(&w->d, w->x) != GCOMP_OK;
    w->wrong += gcomp_threads_barrier(comm.user) != 0;
    delayed_close(&w->d);
}

static worker successor;

static void *join_delayed(void *unused)
{
    worker *w = &successor;
    (void)unused;
    w->rank = 3;
    w->comm = gcomp_threads_comm(whole, 3);
    open_delayed(w);
    w->wrong = gcomp_threads_barrier(w->comm.user) != 0;
    for (size_t r = 0; r < w->d.rounds; r++) w->wrong += gcomp_join(w->d.ring[r].gc, saves[r], lengths[r]) != GCOMP_OK;
    memcpy(w->d.y, workers[0].d.y, BYTES);
    memcpy(w->x, w->d.y, BYTES);
    w->d.step = workers[0].d.step;
    w->d.oldest = workers[0].d.oldest;
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    train_delayed(w, 10);
    w->wrong += w->result != GCOMP_OK || delayed_end(&w->d, w->x) != GCOMP_OK;
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    delayed_close(&w->d);
    return NULL;
}

static void test_when_a_worker_dies_its_rounds_travel_again_and_another_may_join(void)
{
    pthread_t thread;
    set_delay(2, 4, "int:bits=4");
    memset(&successor, 0, sizeof successor);
    CHECK(gcomp_threads_open(&again, 3, 30) == 0 && gcomp_threads_open(&whole, 4, 30) == 0);
    CHECK(pthread_create(&thread, NULL, join_delayed, NULL) == 0);
    each(WORLD, body_delayed_death);
    pthread_join(thread, NULL);
    gcomp_threads_close(again);
    gcomp_threads_close(whole);
    for (int w = 0; w < WORLD - 1; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
    CHECK(successor.wrong == 0 && same(successor.x, workers[0].x));
}

/* ---------------- overlap: a transport that carries a request out when it is asked the second time

   All workers ask equally often, so they come to each collective together. */

typedef struct slow {
    gcomp_comm inner;
    gcomp_request request;
    int asked, busy;
    size_t tested, awaited; /* requests that were done in test, and in wait */
} slow;

static slow slows[WORLD];

static int slow_carry_out(slow *s)
{
    const gcomp_request *r = &s->request;
    void *user = s->inner.user;
    s->busy = 0;
    switch (r->kind) {
    case GCOMP_ALLREDUCE: return s->inner.allreduce(user, r->recv, r->count, r->dtype);
    case GCOMP_ALLREDUCE_MAX: return s->inner.allreduce_max(user, (float *)r->recv, r->count);
    case GCOMP_ALLGATHER: return s->inner.allgatherv(user, r->send, r->recv, r->bytes, r->stride);
    case GCOMP_ALLTOALL: return s->inner.alltoallv(user, r->send, r->send_bytes, r->recv, r->bytes);
    default: return 1;
    }
}

static int slow_start(void *user, const gcomp_request *request)
{
    slow *s = (slow *)user;
    if (s->busy) return 1; /* one at a time */
    s->request = *request;
    s->asked = 0;
    s->busy = 1;
    return 0;
}

static int slow_test(void *user, uint32_t id, int *done)
{
    slow *s = (slow *)user;
    if (!s->busy || id != s->request.id) return 1;
    *done = s->asked++ > 0;
    s->tested += *done != 0;
    return *done ? slow_carry_out(s) : 0;
}

static int slow_wait(void *user, uint32_t id)
{
    slow *s = (slow *)user;
    s->awaited++;
    return !s->busy || id != s->request.id || slow_carry_out(s);
}

static void make_slow(worker *w)
{
    slow *s = &slows[w->rank];
    memset(s, 0, sizeof *s);
    s->inner = w->comm;
    w->comm.user = s;
    w->comm.start = slow_start;
    w->comm.test = slow_test;
    w->comm.wait = slow_wait;
}

static void body_slow_outer(worker *w)
{
    make_slow(w);
    body_outer_long(w);
}

static void body_slow_delayed(worker *w)
{
    make_slow(w);
    body_delayed(w);
}

static void test_overlap_hides_the_requests_and_changes_no_bit(void)
{
    static float x[N];
    set(36, 11, 3, 0.4f, 0.9f, "int:bits=4");
    each(WORLD, body_outer_long);
    memcpy(x, workers[0].x, BYTES);
    each(WORLD, body_slow_outer);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && same(workers[w].x, x));
    CHECK(slows[0].tested >= 90 && slows[0].awaited <= 6); /* the six requests of a bucket in two shots */
    printf("# streaming: %zu requests carried out while workers compute, %zu at the end\n", slows[0].tested, slows[0].awaited);
    local_steps = 200;
    set_delay(20, 20, "none");
    each(WORLD, body_delayed);
    memcpy(x, workers[0].x, BYTES);
    each(WORLD, body_slow_delayed);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && same(workers[w].x, x));
    CHECK(slows[0].tested >= 18 && slows[0].awaited <= 2); /* 10 rounds of a frame and a sum; those at the end must wait */
    printf("# delayed: %zu and %zu\n", slows[0].tested, slows[0].awaited);
    local_steps = 30;
}

int main(void)
{
    RUN(test_without_delay_every_bit_is_that_of_synchronous_training);
    RUN(test_drained_workers_are_equal_whatever_the_delay);
    RUN(test_what_is_not_applied_waits_in_the_residuals);
    RUN(test_a_round_with_nan_is_dropped_by_all);
    RUN(test_when_a_worker_dies_its_rounds_travel_again_and_another_may_join);
    RUN(test_overlap_hides_the_requests_and_changes_no_bit);
    return test_end();
}
