/* Proves that examples/gcomp_recover.h does the right thing after a step that failed, for each of
   the three classes of results. The workers are threads. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"

#include "../examples/gcomp_recover.h"
#include "../examples/gcomp_threads.h"

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
        gcomp_step step = gcomp_step_default();
        if (w->took == w->gone) break;
        for (size_t i = 0; i < COUNT; i++)
            w->grad[i] = w->weights[i] - (float)(i % 11) + (float)(mix((uint64_t)w->took * 7 + (uint64_t)w->comm.rank + i * 99) % 100) * 0.01f;
        if (w->took == w->nan) w->grad[7] = NAN;
        if (w->took == w->infinite) step.scale = INFINITY;
        gcomp_result result = gcomp_exchange(gc, grads, &step);
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

int main(void)
{
    RUN(test_nan_is_skipped_by_all);
    RUN(test_a_payload_damaged_on_one_worker_is_followed_by_a_resynchronisation_of_all);
    RUN(test_a_fatal_error_stops_that_worker_and_then_the_others);
    RUN(test_a_worker_that_leaves_stops_the_others);
    RUN(test_nan_in_every_step_stops_all);
    return test_end();
}
