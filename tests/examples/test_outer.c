/* Proves of examples/patterns/outer.c: what it says of its algorithm, and of workers that die, return NaN, leave or join. */

#include "patterns.h"

static gcomp_threads *again; /* a second group, for those that are left */

/* The largest |a - b|. */
static double apart(const float *a, const float *b)
{
    double most = 0;
    for (size_t i = 0; i < N; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static void body_outer(worker *w)
{
    open_outer(w);
    if (w->result == GCOMP_OK) train_outer(w, 24);
    if (w->result == GCOMP_OK) w->result = outer_end(&w->o, w->x);
    outer_close(&w->o);
}

static void test_outer_of_one_local_step_is_the_synchronous_step(void)
{
    static float x[N];
    set(1, 0, 1, 1, 0, "none");
    each(WORLD, body_outer);
    for (size_t i = 0; i < N; i++) {
        x[i] = at_first(i);
        for (int s = 0; s < 24; s++) {
            float mean = 0;
            for (int w = 0; w < WORLD; w++) mean += slope(i, w, x[i]) / WORLD;
            x[i] -= RATE * mean;
        }
    }
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && apart(workers[w].x, x) < 2e-6);
}

/* Equal differences have themselves as their mean: whatever H, as many workers do what one does. */
static void body_outer_alike(worker *w)
{
    w->rank = 0;
    body_outer(w);
}

static void test_outer_of_equal_workers_is_that_of_one(void)
{
    static float x[N];
    set(6, 0, 1, 0.7f, 0.9f, "none");
    each(1, body_outer_alike);
    memcpy(x, workers[0].x, BYTES);
    each(WORLD, body_outer_alike);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && apart(workers[w].x, x) < 1e-5);
}

static void test_the_outer_step_is_nesterovs(void)
{
    float x = 1, velocity = 0, d = 0.5f;
    CHECK(gcomp_outer_step(&x, &velocity, &d, 1, 0.7f, 0.9f) == GCOMP_OK); /* 1 - .7 (.5 + .9 * .5) */
    CHECK(fabsf(x - 0.335f) < 1e-6f && fabsf(velocity - 0.5f) < 1e-6f);
    d = 0.2f;
    CHECK(gcomp_outer_step(&x, &velocity, &d, 1, 0.7f, 0.9f) == GCOMP_OK); /* velocity .65 */
    CHECK(fabsf(x + 0.2145f) < 1e-6f && fabsf(velocity - 0.65f) < 1e-6f);
    CHECK(gcomp_outer_step(NULL, &velocity, &d, 1, 0.7f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_outer_step(&x, NULL, &d, 1, 0.7f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_outer_step(&x, &velocity, NULL, 1, 0.7f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_outer_step(&x, &velocity, &d, 1, (float)HUGE_VAL, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_outer_step(&x, &velocity, &d, 1, 0.7f, (float)-HUGE_VAL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_outer_step(NULL, NULL, NULL, 0, 0.7f, 0.9f) == GCOMP_OK);
    CHECK(fabsf(x + 0.2145f) < 1e-6f && fabsf(velocity - 0.65f) < 1e-6f);
}

static void test_streaming_workers_end_alike_near_the_optimum(void)
{
    set(12, 3, 3, 0.4f, 0.9f, "int:bits=4");
    each(WORLD, body_outer_long);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].result == GCOMP_OK && same(workers[w].x, workers[0].x));
    CHECK(miss(workers[0].x) < 0.02);
}

/* Which fragments leave when, and when their mean is applied. */
static void body_schedule(worker *w)
{
    open_outer(w);
    for (size_t t = 1; t <= 36; t++) {
        float before[N];
        int sent, moved;
        memcpy(before, w->o.start, sizeof before);
        local_step(w);
        w->wrong += outer_after(&w->o, w->x, &sent) != GCOMP_OK;
        w->wrong += sent != (t % 4 == 0); /* 12 / 3 */
        if (sent) w->wrong += w->o.traveller != t / 4 % 3;
        moved = memcmp(before, w->o.start, sizeof before) != 0;
        w->wrong += moved != (t % 4 == 3 && t > 4);
        for (size_t i = 0; i < N && moved; i++) /* the fragment that left three steps ago, and no other */
            w->wrong += (before[i] < w->o.start[i] || before[i] > w->o.start[i]) && i / (N / 3) != (t - 3) / 4 % 3;
    }
    outer_close(&w->o);
}

static void test_fragments_take_turns_and_arrive_after_the_delay(void)
{
    set(12, 3, 3, 0.4f, 0.9f, "none");
    memset(workers, 0, sizeof workers);
    each(2, body_schedule);
    CHECK(workers[0].wrong == 0 && workers[1].wrong == 0);
    set(12, 4, 3, 0.4f, 0.9f, "none"); /* the next fragment would leave before this one is there */
    each(2, open_outer);
    CHECK(workers[0].result == GCOMP_INVALID_ARGUMENT && !workers[0].o.gc);
}

/* Samples 1, 2, 3, 4: the mean is that over all samples. */
static void body_weighted(worker *w)
{
    open_outer(w);
    w->o.samples = w->rank + 1;
    w->o.batch = 10;
    train_outer(w, every);
    outer_close(&w->o);
}

static void test_workers_may_have_weights(void)
{
    float most = 0;
    set(3, 0, 1, 1, 0, "none");
    each(WORLD, body_weighted);
    for (size_t i = 0; i < N; i++) {
        float wanted = 0;
        for (int w = 0; w < WORLD; w++) {
            float x = at_first(i);
            for (size_t s = 0; s < every; s++) x -= RATE * slope(i, w, x);
            wanted += x * (float)(w + 1) / 10;
        }
        most = fmaxf(most, fabsf(wanted - workers[0].x[i]));
    }
    CHECK(most < 1e-6f && same(workers[0].x, workers[3].x));
}

/* Worker 2 has NaN in its weights when the second exchange is due. */
static void body_nan(worker *w)
{
    float start[N], m[N], x[N];
    const int victim = w->rank == 2;
    open_outer(w);
    train_outer(w, 2 * every - 1);
    memcpy(start, w->o.start, sizeof start);
    memcpy(m, w->o.m, sizeof m);
    if (victim) w->x[5] = NAN;
    memcpy(x, w->x, sizeof x);
    for (size_t i = 0; i < N; i++) x[i] -= RATE * slope(i, w->rank, x[i]);
    train_outer(w, 1);
    w->wrong = w->result != GCOMP_OK || !same(w->o.start, start) || !same(w->o.m, m) || w->o.restarted != victim ||
        !same(w->x, victim ? start : x);
    train_outer(w, every);
    w->wrong += w->result != GCOMP_OK || same(w->o.start, start) || !same(w->x, w->o.start);
    outer_close(&w->o);
}

static void test_after_nan_nobody_steps_and_that_worker_begins_again(void)
{
    set(6, 0, 1, 0.7f, 0.9f, "int:bits=4");
    memset(workers, 0, sizeof workers);
    each(WORLD, body_nan);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
}

/* Worker 3 dies before the second exchange. The others go on in another group. */
static void body_death(worker *w)
{
    float start[N], m[N], x[N];
    gcomp_comm comm;
    open_outer(w);
    train_outer(w, 2 * every - 1);
    local_step(w);
    memcpy(start, w->o.start, sizeof start);
    memcpy(m, w->o.m, sizeof m);
    memcpy(x, w->x, sizeof x);
    if (w->rank < 3) {
        int sent;
        w->wrong = outer_after(&w->o, w->x, &sent) != GCOMP_CALLBACK_FAILED;
        w->wrong += !same(w->o.start, start) || !same(w->o.m, m) || !same(w->x, x);
        comm = gcomp_threads_comm(again, w->rank);
        w->wrong += gcomp_regroup(w->o.gc, &comm, NULL) != GCOMP_OK;
        train_outer(w, every); /* twice as many local steps travel */
        w->wrong += w->result != GCOMP_OK || same(w->o.start, start) || !same(w->x, w->o.start);
    } else gcomp_threads_fail(w->group);
    outer_close(&w->o);
}

static void test_when_a_worker_dies_the_others_go_on(void)
{
    set(6, 0, 1, 0.7f, 0.9f, "int:bits=4");
    memset(workers, 0, sizeof workers);
    CHECK(gcomp_threads_open(&again, WORLD - 1, 30) == 0);
    each(WORLD, body_death);
    gcomp_threads_close(again);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
    for (int w = 1; w < WORLD - 1; w++) CHECK(same(workers[w].x, workers[0].x));
}

static double residual_of(const outer_loop *o)
{
    double sum = 0;
    for (size_t i = 0; i < N; i++) sum += (double)tensor_residual(o->gc, 0)[i];
    return sum;
}

/* After 2 H steps worker 3 leaves, and a new one joins in its place. */
static unsigned char saves[2][16 * N];

static size_t lengths[2];
static pthread_barrier_t saved;

static void body_leave_and_join(worker *w)
{
    worker *other = &workers[0];
    open_outer(w);
    train_outer(w, 2 * every);
    w->residual = residual_of(&w->o);
    if (w->rank == 3) w->wrong = gcomp_save(w->o.gc, saves[0], sizeof saves[0], &lengths[0]) != GCOMP_OK;
    pthread_barrier_wait(&saved);
    if (w->rank == 1) w->wrong = gcomp_take_over(w->o.gc, saves[0], lengths[0]) != GCOMP_OK;
    if (w->rank != 3) w->wrong += gcomp_regroup(w->o.gc, &w->comm, NULL) != GCOMP_OK;
    if (w->rank == 0) w->wrong += gcomp_save(w->o.gc, saves[1], sizeof saves[1], &lengths[1]) != GCOMP_OK;
    pthread_barrier_wait(&saved);
    if (w->rank == 3) { /* its successor */
        outer_close(&w->o);
        open_outer(w);
        memcpy(w->o.start, other->o.start, BYTES);
        memcpy(w->o.m, other->o.m, BYTES);
        memcpy(w->x, other->o.start, BYTES);
        w->o.step = other->o.step;
        w->wrong += gcomp_join(w->o.gc, saves[1], lengths[1]) != GCOMP_OK;
    }
    pthread_barrier_wait(&saved);
    w->residual -= residual_of(&w->o); /* summed over the workers: nothing was lost */
    train_outer(w, 2 * every);
    w->wrong += w->result != GCOMP_OK || !same(w->x, w->o.start);
    outer_close(&w->o);
}

static void test_workers_leave_and_join_and_nothing_is_lost(void)
{
    double change = 0;
    set(6, 0, 1, 0.7f, 0.9f, "sign");
    memset(workers, 0, sizeof workers);
    pthread_barrier_init(&saved, NULL, WORLD);
    each(WORLD, body_leave_and_join);
    pthread_barrier_destroy(&saved);
    for (int w = 0; w < WORLD; w++) {
        CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
        change += workers[w].residual;
    }
    CHECK(fabs(change) < 1e-3);
}

/* ---------------- a trainer without gradients: each sample changes the weights at once

   40 neurons of 60 inputs, each with tanh, as in small libraries that have no buffer for gradients:
   nothing but the weights can be seen from outside. */

enum { INPUTS = 60, NEURONS = N / INPUTS, SAMPLES = 400 };

static float sample_input(size_t sample, size_t i) { return (float)(mix(sample * 131 + i) >> 40) / 8388608.0f - 1; }

static float sample_target(size_t sample, size_t neuron)
{
    float sum = 0;
    for (size_t i = 0; i < INPUTS; i++) sum += sample_input(sample, i) * ((float)((i * 13 + neuron * 7) % 11) - 5) * 0.04f;
    return tanhf(sum);
}

/* Learns one sample; returns its squared error. */
static double learn(float *weights, size_t sample, float rate)
{
    double error = 0;
    float input[INPUTS];
    for (size_t i = 0; i < INPUTS; i++) input[i] = sample_input(sample, i);
    for (size_t k = 0; k < NEURONS; k++) {
        float sum = 0, y, d;
        for (size_t i = 0; i < INPUTS; i++) sum += weights[k * INPUTS + i] * input[i];
        y = tanhf(sum);
        d = (y - sample_target(sample, k)) * (1 - y * y);
        error += (double)((y - sample_target(sample, k)) * (y - sample_target(sample, k)));
        for (size_t i = 0; i < INPUTS; i++) weights[k * INPUTS + i] -= rate * d * input[i];
    }
    return error / NEURONS;
}

static void body_in_place(worker *w)
{
    double first = 0, last = 0;
    open_outer(w);
    memset(w->x, 0, sizeof w->x);
    memset(w->o.start, 0, BYTES);
    for (size_t s = 0; s < SAMPLES && w->result == GCOMP_OK; s++) {
        int sent; /* a local step is one sample; each worker has samples of its own */
        const double error = learn(w->x, s * WORLD + (size_t)w->rank, 0.02f);
        if (s < 20) first += error;
        if (s >= SAMPLES - 20) last += error;
        w->result = outer_after(&w->o, w->x, &sent);
    }
    w->wrong = w->result != GCOMP_OK || last > 0.1 * first || !same(w->x, w->o.start);
    outer_close(&w->o);
}

static void test_a_trainer_that_changes_weights_in_place_exchanges_differences(void)
{
    set(10, 0, 1, 0.7f, 0.6f, "int:bits=4");
    memset(workers, 0, sizeof workers);
    each(WORLD, body_in_place);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
}

int main(void)
{
    RUN(test_outer_of_one_local_step_is_the_synchronous_step);
    RUN(test_outer_of_equal_workers_is_that_of_one);
    RUN(test_the_outer_step_is_nesterovs);
    RUN(test_streaming_workers_end_alike_near_the_optimum);
    RUN(test_fragments_take_turns_and_arrive_after_the_delay);
    RUN(test_workers_may_have_weights);
    RUN(test_after_nan_nobody_steps_and_that_worker_begins_again);
    RUN(test_when_a_worker_dies_the_others_go_on);
    RUN(test_workers_leave_and_join_and_nothing_is_lost);
    RUN(test_a_trainer_that_changes_weights_in_place_exchanges_differences);
    return test_end();
}
