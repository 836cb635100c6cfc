/* Proves that examples/adapters/gcomp_recover.h does the right thing after a step that failed, for each of
   the three classes of results. The workers are threads. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"

#include "gcomp_recover.h"
#include "gcomp_threads.h"

#include <math.h>

enum { WORLD = 3, ROWS = 40, COLS = 50, COUNT = ROWS * COLS, STEPS = 30 };

typedef struct worker {
    gcomp_comm comm;
    gcomp_threads *group;
    int gathers, damage, nan, infinite, gone; /* payload gathers; which of them arrives damaged; steps with faults; -1: none */
    int took, stopped, results[STEPS];
    uint64_t number;
    float weights[COUNT], momentum[COUNT], grad[COUNT];
} worker;

static worker workers[WORLD];

static int gather(void *user, const void *mine, void *all, size_t bytes)
{
    worker *w = (worker *)user;
    int status = w->comm.allgather(w->comm.user, mine, all, bytes);
    if (bytes != 64 && w->gathers++ == w->damage) ((unsigned char *)all)[bytes - 1] ^= 1;
    return status;
}

static int sum(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    worker *w = (worker *)user;
    return w->comm.allreduce(w->comm.user, data, count, dtype);
}

static void *train(void *arg)
{
    worker *w = (worker *)arg;
    float *const state[2] = {w->weights, w->momentum};
    const size_t counts[2] = {COUNT, COUNT};
    gcomp_recover recover = {0};
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp *gc;
    desc.codec = "sign";
    desc.comm.user = w;
    desc.comm.rank = w->comm.rank;
    desc.comm.world = WORLD;
    desc.comm.allgather = gather;
    desc.comm.allreduce = sum;
    tensor.name = "w";
    tensor.rows = ROWS;
    tensor.cols = COLS;
    recover.comm = w->comm;
    recover.state = state;
    recover.count = counts;
    recover.states = 2;
    w->stopped = gcomp_open(&gc, &desc) != GCOMP_OK || gcomp_add_tensor(gc, &tensor) != GCOMP_OK;
    for (w->took = 0; w->took < STEPS && !w->stopped; w->took++) {
        float *grads[1] = {w->grad};
        gcomp_step step = GCOMP_STEP;
        if (w->took == w->gone) break;
        for (size_t i = 0; i < COUNT; i++)
            w->grad[i] = w->weights[i] - (float)(i % 11) + (float)(mix((uint64_t)w->took * 7 + (uint64_t)w->comm.rank + i * 99) % 100) * 0.01f;
        if (w->took == w->nan) w->grad[7] = NAN;
        if (w->took == w->infinite) step.scale = INFINITY;
        gcomp_result result = exchange_floats(gc, grads, &step);
        w->results[w->took] = result;
        w->stopped = gcomp_recover_after(&recover, gc, result);
        for (size_t i = 0; i < COUNT && result == GCOMP_OK; i++) {
            w->momentum[i] = 0.5f * w->momentum[i] + w->grad[i];
            w->weights[i] -= 0.1f * w->momentum[i];
        }
    }
    w->number = gcomp_step_number(gc);
    if (w->stopped || w->took < STEPS) gcomp_threads_fail(w->group);
    gcomp_close(gc);
    return NULL;
}

static void begin(void)
{
    memset(workers, 0, sizeof workers);
    for (int w = 0; w < WORLD; w++) workers[w].damage = workers[w].nan = workers[w].infinite = workers[w].gone = -1;
}

static void run(void)
{
    pthread_t threads[WORLD];
    gcomp_threads *group;
    fflush(stdout);
    CHECK(gcomp_threads_open(&group, WORLD, 20.0) == 0);
    for (int w = 0; w < WORLD; w++) {
        workers[w].group = group;
        workers[w].comm = gcomp_threads_comm(group, w);
        CHECK(pthread_create(&threads[w], NULL, train, &workers[w]) == 0);
    }
    for (int w = 0; w < WORLD; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(group);
}

static void expect_equal(void)
{
    for (int w = 1; w < WORLD; w++) {
        CHECK(!memcmp(workers[w].weights, workers[0].weights, sizeof workers[0].weights));
        CHECK(!memcmp(workers[w].momentum, workers[0].momentum, sizeof workers[0].momentum));
        CHECK(workers[w].number == workers[0].number);
    }
}

static void test_nan_is_skipped_by_all(void)
{
    begin();
    workers[2].nan = 10;
    run();
    for (int w = 0; w < WORLD; w++) {
        for (int s = 0; s < STEPS; s++) CHECK(workers[w].results[s] == (s == 10 ? GCOMP_NOT_FINITE : GCOMP_OK));
        CHECK(!workers[w].stopped && workers[w].number == STEPS - 1);
    }
    expect_equal();
}

static void test_a_payload_damaged_on_one_worker_is_followed_by_a_resynchronisation_of_all(void)
{
    for (int who = 0; who < WORLD; who++) {
        begin();
        workers[who].damage = 5;
        run();
        for (int w = 0; w < WORLD; w++) {
            for (int s = 0; s < STEPS; s++)
                CHECK(workers[w].results[s] == (s == 6               ? GCOMP_OUT_OF_STEP
                                                : s == 5 && w == who ? GCOMP_CHECKSUM_MISMATCH
                                                                     : GCOMP_OK));
            CHECK(!workers[w].stopped && workers[w].number == (who ? STEPS - 1 : STEPS - 2));
        }
        expect_equal();
    }
}

static void test_a_fatal_error_stops_that_worker_and_then_the_others(void)
{
    begin();
    workers[1].infinite = 4;
    run();
    CHECK(workers[1].stopped && workers[1].took == 5 && workers[1].results[4] == GCOMP_INVALID_ARGUMENT);
    for (int w = 0; w < WORLD; w += 2) {
        CHECK(workers[w].stopped && workers[w].took == 6);
        CHECK(workers[w].results[4] == GCOMP_PEER_FAILED && workers[w].results[5] == GCOMP_CALLBACK_FAILED);
    }
}

static void test_a_worker_that_leaves_stops_the_others(void)
{
    begin();
    workers[0].gone = 3;
    run();
    for (int w = 1; w < WORLD; w++) CHECK(workers[w].stopped && workers[w].took == 4 && workers[w].results[3] == GCOMP_CALLBACK_FAILED);
}

static void test_nan_in_every_step_stops_all(void)
{
    begin();
    workers[1].weights[3] = NAN; /* and so its gradient, always */
    run();
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].stopped && workers[w].took == GCOMP_RECOVER_MOST);
}

/* ---------------- what is common to all workers, over a transport of which a worker dies */

typedef struct survivor {
    gcomp_comm comm; /* of the threads */
    gcomp_threads *group;
    int rank, calls, dies; /* dies: the sum at which this worker dies; -1: none */
    int averages;          /* its sums are divided by the number of workers */
    gcomp *gc;
    int failed;
    char why[200];
    float weights[7], momentum[5];
    size_t counts[2];
    const char *const *names;
    int (*job)(gcomp_recover *r, gcomp *gc);
} survivor;

static survivor survivors[WORLD];
static const char *const state_names[2] = {"weights", "momentum"};

/* What a sum that failed leaves is nothing that anyone should keep. */
static int sum_until_death(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    survivor *w = (survivor *)user;
    int status;
    if (w->calls++ == w->dies) {
        gcomp_threads_fail(w->group);
        return 9;
    }
    status = w->comm.allreduce(w->comm.user, data, count, dtype);
    if (status) memset(data, 0x55, count * sizeof(float));
    for (size_t i = 0; i < count && !status && w->averages; i++) ((float *)data)[i] /= (float)w->comm.world;
    return status;
}

static int gather_of_survivors(void *user, const void *mine, void *all, size_t bytes)
{
    survivor *w = (survivor *)user;
    return w->comm.allgather(w->comm.user, mine, all, bytes);
}

static gcomp_comm comm_of(survivor *w)
{
    gcomp_comm comm = {0};
    comm.user = w;
    comm.rank = w->comm.rank;
    comm.world = w->comm.world;
    comm.allreduce = sum_until_death;
    comm.allgather = gather_of_survivors;
    return comm;
}

static void *do_job(void *arg)
{
    survivor *w = (survivor *)arg;
    float *const state[2] = {w->weights, w->momentum};
    gcomp_recover recover = {0};
    recover.comm = comm_of(w);
    recover.state = state;
    recover.count = w->counts;
    recover.states = 2;
    recover.names = w->names;
    w->failed = w->job(&recover, w->gc);
    memcpy(w->why, recover.why, sizeof w->why);
    return NULL;
}

static void begin_survivors(void)
{
    memset(survivors, 0, sizeof survivors);
    for (int w = 0; w < WORLD; w++) {
        survivor *s = &survivors[w];
        s->rank = w;
        s->dies = -1;
        s->counts[0] = 7;
        s->counts[1] = 5;
        for (int i = 0; i < 7; i++) s->weights[i] = (float)(100 * (w + 1) + i);
        for (int i = 0; i < 5; i++) s->momentum[i] = (float)(-100 * (w + 1) - i);
    }
}

/* These workers do their job together. */
static void run_survivors(survivor *const *some, int world)
{
    pthread_t threads[WORLD];
    gcomp_threads *group;
    CHECK(gcomp_threads_open(&group, world, 20.0) == 0);
    for (int w = 0; w < world; w++) {
        some[w]->group = group;
        some[w]->comm = gcomp_threads_comm(group, w);
        CHECK(pthread_create(&threads[w], NULL, do_job, some[w]) == 0);
    }
    for (int w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(group);
}

static void run_all(int (*job)(gcomp_recover *, gcomp *))
{
    survivor *all[WORLD];
    for (int w = 0; w < WORLD; w++) all[w] = &survivors[w], all[w]->job = job;
    run_survivors(all, WORLD);
}

/* Has it the whole state with which this rank began? */
static int has_state_of(const survivor *s, int rank)
{
    int same = 1;
    for (int i = 0; i < 7; i++) same &= s->weights[i] == (float)(100 * (rank + 1) + i);
    for (int i = 0; i < 5; i++) same &= s->momentum[i] == (float)(-100 * (rank + 1) - i);
    return same;
}

static int begins(gcomp_recover *r, gcomp *gc)
{
    (void)gc;
    return gcomp_recover_begin(r);
}

static int compares(gcomp_recover *r, gcomp *gc)
{
    (void)gc;
    return gcomp_recover_compare(r);
}

static int regroups(gcomp_recover *r, gcomp *gc)
{
    return gcomp_regroup(gc, &r->comm, NULL) != GCOMP_OK || gcomp_recover_all(r, gc);
}

static void open_objects(void)
{
    for (int w = 0; w < WORLD; w++) {
        gcomp_desc desc = {0};
        gcomp_tensor tensor = {0};
        desc.comm = comm_of(&survivors[w]);
        desc.comm.rank = w;
        desc.comm.world = WORLD;
        tensor.name = "w";
        tensor.rows = 7;
        CHECK(gcomp_open(&survivors[w].gc, &desc) == GCOMP_OK && gcomp_add_tensor(survivors[w].gc, &tensor) == GCOMP_OK);
    }
}

static void test_a_death_at_any_call_of_a_recovery_leaves_each_survivor_a_whole_state(void)
{
    int calls = 1;
    for (int who = 0; who < WORLD; who++)
        for (int call = 0; call <= calls; call++) {
            survivor *left[WORLD];
            int count = 0, oldest;
            begin_survivors();
            open_objects();
            survivors[who].dies = call;
            run_all(gcomp_recover_all);
            for (int w = 0; w < WORLD; w++) {
                survivor *s = &survivors[w];
                CHECK(has_state_of(s, s->failed ? w : 0));
                CHECK(s->failed == (call < survivors[who].calls && survivors[who].failed));
                CHECK(!s->failed || strstr(s->why, w == who ? "status 9" : "status 2"));
                if (w != who) left[count++] = s;
            }
            calls = survivors[who].calls;
            if (call == calls) CHECK(!survivors[0].failed);
            oldest = survivors[0].failed ? left[0]->rank : 0;
            for (int w = 0; w < count; w++) left[w]->job = regroups;
            run_survivors(left, count);
            for (int w = 0; w < count; w++) CHECK(!left[w]->failed && has_state_of(left[w], oldest));
            for (int w = 0; w < WORLD; w++) gcomp_close(survivors[w].gc);
        }
    CHECK(calls >= 6);
}

/* The transport works up to a sum, and nobody knows who is left: the worker goes on alone. */
static void test_a_worker_that_is_left_alone_keeps_its_state(void)
{
    for (int call = 0; call < 6; call++) {
        begin_survivors();
        open_objects();
        survivors[0].dies = call;
        run_all(gcomp_recover_all);
        survivor *alone = &survivors[2];
        CHECK(alone->failed);
        alone->job = regroups;
        run_survivors(&alone, 1);
        CHECK(!alone->failed && has_state_of(alone, 2));
        for (int w = 0; w < WORLD; w++) gcomp_close(survivors[w].gc);
    }
}

static void test_workers_that_begin_apart_are_named_and_brought_together(void)
{
    begin_survivors();
    run_all(compares);
    for (int w = 0; w < WORLD; w++)
        CHECK(survivors[w].failed && strstr(survivors[w].why, "state 0 (7 floats): 2 of 3 workers differ from rank 0, first rank 1"));
    run_all(begins);
    for (int w = 0; w < WORLD; w++) CHECK(!survivors[w].failed && has_state_of(&survivors[w], 0));
    run_all(compares);
    for (int w = 0; w < WORLD; w++) CHECK(!survivors[w].failed);
    survivors[2].momentum[3] = nextafterf(survivors[2].momentum[3], 0);
    for (int w = 0; w < WORLD; w++) survivors[w].names = state_names;
    run_all(compares);
    for (int w = 0; w < WORLD; w++)
        CHECK(survivors[w].failed && strstr(survivors[w].why, "momentum (5 floats): 1 of 3 workers differ from rank 0, first rank 2"));
}

static void test_other_arrays_and_an_allreduce_that_averages_change_no_state(void)
{
    begin_survivors();
    survivors[1].counts[1] = 4;
    for (int k = 0; k < 2; k++) {
        run_all(k ? compares : begins);
        for (int w = 0; w < WORLD; w++)
            CHECK(survivors[w].failed && has_state_of(&survivors[w], w) && strstr(survivors[w].why, "rank 1 has other arrays"));
    }
    begin_survivors();
    for (int w = 0; w < WORLD; w++) survivors[w].averages = 1;
    for (int k = 0; k < 2; k++) {
        run_all(k ? compares : begins);
        for (int w = 0; w < WORLD; w++)
            CHECK(survivors[w].failed && has_state_of(&survivors[w], w) && strstr(survivors[w].why, "does not sum"));
    }
}

int main(void)
{
    RUN(test_nan_is_skipped_by_all);
    RUN(test_a_payload_damaged_on_one_worker_is_followed_by_a_resynchronisation_of_all);
    RUN(test_a_fatal_error_stops_that_worker_and_then_the_others);
    RUN(test_a_worker_that_leaves_stops_the_others);
    RUN(test_nan_in_every_step_stops_all);
    RUN(test_a_death_at_any_call_of_a_recovery_leaves_each_survivor_a_whole_state);
    RUN(test_a_worker_that_is_left_alone_keeps_its_state);
    RUN(test_workers_that_begin_apart_are_named_and_brought_together);
    RUN(test_other_arrays_and_an_allreduce_that_averages_change_no_state);
    return test_end();
}
