/* Proves of examples/patterns/outer.c, delayed.c, gossip.c and leader.c: what each says of its algorithm, and of workers that die, return NaN,
   leave or join. The workers are threads, and their losses are quadratic. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#define PATTERN_FUNCTIONS
#include "../../examples/patterns/outer.c"
#include "../../examples/patterns/delayed.c"
#include "../../examples/patterns/gossip.c"
#include "../../examples/patterns/leader.c"
#include "gcomp_threads.h"
#include "test.h"

#include <pthread.h>

enum { WORLD = 4, N = 2400, BYTES = N * (int)sizeof(float) };
static const float RATE = 0.05f;

/* ---------------- workers as threads */

typedef struct worker {
    gcomp_threads *group;
    gcomp_comm comm;
    int rank;
    outer_loop o;
    delayed_loop d;
    leader_loop l;
    gcomp_result result;
    float x[N];
    double residual; /* sums over the elements */
    int wrong;
} worker;

static worker workers[WORLD + 1]; /* of one more where a test has five */
static gcomp_threads *again; /* a second group, for those that are left */

static void *begin(void *arg)
{
    void **pair = (void **)arg;
    ((void (*)(worker *))pair[0])((worker *)pair[1]);
    return NULL;
}

/* Runs body in a thread for each worker of ranks 0 .. world - 1. */
static void each(int world, void (*body)(worker *))
{
    pthread_t threads[WORLD + 1];
    void *pairs[WORLD + 1][2];
    gcomp_threads *group;
    CHECK(gcomp_threads_open(&group, world, 30) == 0);
    for (int w = 0; w < world; w++) {
        workers[w].group = group;
        workers[w].rank = w;
        workers[w].comm = gcomp_threads_comm(group, w);
        pairs[w][0] = *(void **)(void *)&body;
        pairs[w][1] = &workers[w];
        CHECK(pthread_create(&threads[w], NULL, begin, pairs[w]) == 0);
    }
    for (int w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(group);
}

static int same(const void *a, const void *b) { return memcmp(a, b, BYTES) == 0; }

/* The largest |a - b|. */
static double apart(const float *a, const float *b)
{
    double most = 0;
    for (size_t i = 0; i < N; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* A start for all, and the gradient of worker `rank`: its own optimum is off the common one. */
static float at_first(size_t i) { return (float)((int)(i * 7919 % 2003) - 1001) / 1001.0f; }
static float slope(size_t i, int rank, float x)
{
    const float optimum = (float)((int)(i * 104729 % 1999) - 999) / 999.0f;
    const float own = 0.3f * (float)(2 * rank - WORLD + 1) * (i % 3 ? 1.0f : -0.5f);
    return (0.5f + (float)(i % 5) * 0.4f) * (x - optimum - own);
}

/* ---------------- outer.c */

static size_t every = 6, delay, fragments = 1;
static float outer_rate = 0.7f, mu = 0.9f;
static const char *codec = "int:bits=4";

static void set(size_t h, size_t tau, size_t parts, float rate, float momentum, const char *text)
{
    every = h;
    delay = tau;
    fragments = parts;
    outer_rate = rate;
    mu = momentum;
    codec = text;
}

static void open_outer(worker *w)
{
    gcomp_desc desc = {0};
    memset(&w->o, 0, sizeof w->o);
    desc.codec = codec;
    desc.comm = w->comm;
    w->o.every = every;
    w->o.delay = delay;
    w->o.rate = outer_rate;
    w->o.mu = mu;
    w->o.own = fragments > 1 ? 0.5f : 0;
    w->o.fragments = fragments;
    for (size_t p = 0; p <= fragments; p++) w->o.first[p] = N * p / fragments;
    for (size_t i = 0; i < N; i++) w->x[i] = at_first(i);
    w->result = outer_open(&w->o, &desc, w->x);
}

static void local_step(worker *w)
{
    for (size_t i = 0; i < N; i++) w->x[i] -= RATE * slope(i, w->rank, w->x[i]);
}

static void train_outer(worker *w, size_t steps)
{
    for (size_t s = 0; s < steps && w->result == GCOMP_OK; s++) {
        int sent;
        local_step(w);
        w->result = outer_after(&w->o, w->x, &sent);
    }
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

/* The distance of x from the optimum of all workers. */
static double miss(const float *x)
{
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        double mean = 0;
        for (int w = 0; w < WORLD; w++) mean += (double)slope(i, w, x[i]) / WORLD;
        sum += mean * mean / N;
    }
    return sqrt(sum);
}

static void body_outer_long(worker *w)
{
    open_outer(w);
    if (w->result == GCOMP_OK) train_outer(w, 600);
    if (w->result == GCOMP_OK) w->result = outer_end(&w->o, w->x);
    outer_close(&w->o);
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
        w->wrong += gcomp_regroup(w->o.gc, &comm) != GCOMP_OK;
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
    for (size_t i = 0; i < N; i++) sum += (double)gcomp_residual(o->gc, 0)[i];
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
    if (w->rank != 3) w->wrong += gcomp_regroup(w->o.gc, &w->comm) != GCOMP_OK;
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
        w->wrong = gcomp_exchange(gc, grads, NULL) != GCOMP_OK;
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
        for (size_t i = 0; i < N; i++) kept[w->rank][i] += (double)gcomp_residual(w->d.ring[r].gc, 0)[i];
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
    for (size_t r = 0; r < w->d.rounds; r++) w->wrong += gcomp_regroup(w->d.ring[r].gc, &comm) != GCOMP_OK;
    w->result = GCOMP_OK;
    train_delayed(w, 30 - w->d.step);
    w->wrong += w->result != GCOMP_OK || delayed_end(&w->d, w->x) != GCOMP_OK;
    comm = gcomp_threads_comm(whole, w->rank); /* and now with a successor of worker 3 */
    for (size_t r = 0; r < w->d.rounds; r++) {
        w->wrong += gcomp_regroup(w->d.ring[r].gc, &comm) != GCOMP_OK;
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
    CHECK(slows[0].tested >= 90 && slows[0].awaited <= 4);
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

/* ---------------- gossip.c, over a network of messages that does what a test says: all in one thread

   Of each message it may say that it cannot be sent, lose it, keep it back, or deliver it twice. */

enum { PEERS = 9, G = 150, QUEUE = 4096 };

typedef struct letter {
    int from, to, after; /* rounds that it is kept back */
    size_t bytes;
    unsigned char data[GCOMP_BOUND(G) + 8];
} letter;

static letter *letters[QUEUE]; /* in order */
static size_t waiting;
static unsigned refuse, lose, keep, twice; /* of 100 messages */
static int dead = -1;
static uint64_t luck;
static peers nets[PEERS];
static gossip_loop gossips[PEERS];
static choco_loop chocos[PEERS];
static float xs[PEERS][G];

static unsigned draw(void) { return (unsigned)(mix(luck++) % 100); }

static void post(int from, int to, const void *data, size_t bytes, int after)
{
    letter *l = (letter *)malloc(sizeof *l);
    CHECK(waiting < QUEUE && bytes <= sizeof l->data);
    l->from = from;
    l->to = to;
    l->after = after;
    l->bytes = bytes;
    memcpy(l->data, data, bytes);
    letters[waiting++] = l;
}

static int script_send(void *user, int to, const void *data, size_t bytes)
{
    const peers *me = (const peers *)user;
    if (to == dead || draw() < refuse) return 2;
    if (draw() < lose) return 0;
    post(me->rank, to, data, bytes, draw() < keep ? 5 : 0);
    if (draw() < twice) post(me->rank, to, data, bytes, 3);
    return 0;
}

static int script_receive(void *user, int from, void *data, size_t capacity, size_t *bytes, double seconds)
{
    const peers *me = (const peers *)user;
    (void)seconds;
    for (size_t i = 0; i < waiting; i++) {
        letter *l = letters[i];
        if (l->from != from || l->to != me->rank || l->after > 0) continue;
        CHECK(l->bytes <= capacity);
        memcpy(data, l->data, l->bytes);
        *bytes = l->bytes;
        free(l);
        memmove(letters + i, letters + i + 1, (--waiting - i) * sizeof *letters);
        return 0;
    }
    return from == dead ? 2 : 3;
}

static void open_peers(int world)
{
    while (waiting) free(letters[--waiting]);
    refuse = lose = keep = twice = 0;
    dead = -1;
    luck = 1;
    for (int w = 0; w < world; w++) {
        nets[w].user = &nets[w];
        nets[w].rank = w;
        nets[w].world = world;
        nets[w].send = script_send;
        nets[w].receive = script_receive;
    }
}

static void open_gossip(int world)
{
    open_peers(world);
    for (int w = 0; w < world; w++) {
        for (size_t i = 0; i < G; i++) xs[w][i] = at_first(i * 7 + (size_t)w * 311) * 3;
        memset(&gossips[w], 0, sizeof gossips[w]);
        gossips[w].n = G;
        CHECK(gossip_open(&gossips[w], &nets[w], xs[w]) == 0);
    }
}

static void close_gossip(int world)
{
    for (int w = 0; w < world; w++) gossip_close(&gossips[w]);
    while (waiting) free(letters[--waiting]);
}

/* A round of all that live: they send, then they receive. rate > 0: with a step of their loss. */
static void gossip_round(int world, float rate)
{
    for (int w = 0; w < world; w++) {
        gossip_loop *g = &gossips[w];
        if (w == dead) continue;
        for (size_t i = 0; i < G && rate > 0; i++) g->y[i] -= rate * slope(i, w % WORLD, g->y[i] / (float)g->s);
        gossip_send(g);
    }
    for (int w = 0; w < world; w++) {
        if (w != dead) gossip_receive(&gossips[w], gossips[w].round);
        gossips[w].round++;
    }
    for (size_t i = 0; i < waiting; i++) letters[i]->after--;
}

/* The sum of element i over all workers, with what is on its way or lost and will come with the next message. */
static double mass(int world, size_t i)
{
    double sum = 0;
    for (int w = 0; w < world; w++) {
        const gossip_loop *g = &gossips[w];
        sum += i < G ? (double)g->y[i] : g->s;
        for (int l = 0; l < g->links; l++) {
            const gossip_loop *to = &gossips[(w + (1 << l)) % world];
            const size_t at = i < G ? GOSSIP_HEAD + i : 1;
            sum += gossip_new(g->sent[l][at], to->seen[l][at]);
        }
    }
    return sum;
}

static void masses(int world, double *of)
{
    for (size_t i = 0; i <= G; i++) of[i] = mass(world, i);
}

static double mass_change(int world, const double *before)
{
    double most = 0;
    for (size_t i = 0; i <= G; i++) most = fmax(most, fabs(mass(world, i) - before[i]));
    return most;
}

/* The largest difference of z from the mean that `before` says. */
static double from_mean(int world, const double *before)
{
    double most = 0;
    for (int w = 0; w < world; w++)
        for (size_t i = 0; i < G && w != dead; i++)
            most = fmax(most, fabs((double)gossips[w].y[i] / gossips[w].s - before[i] / world));
    return most;
}

static void test_push_sum_of_2_to_the_l_workers_averages_exactly_in_l_rounds(void)
{
    double before[G + 1];
    for (int world = 1; world <= PEERS; world++) {
        const int exact = (world & (world - 1)) == 0;
        int rounds = 0;
        open_gossip(world);
        masses(world, before);
        CHECK(before[G] <= world && before[G] >= world);
        while (1 << rounds < world) rounds++;
        CHECK(gossips[0].links == rounds);
        for (int r = 0; r < (exact ? rounds : 60); r++) gossip_round(world, 0);
        CHECK(from_mean(world, before) < 1e-5); /* some units of 2^-20 */
        CHECK(mass_change(world, before) < 1e-4);
        for (int w = 0; w < world && exact; w++) CHECK(gossips[w].s <= 1 && gossips[w].s >= 1);
        close_gossip(world);
    }
}

static void test_nothing_is_lost_with_messages_that_are(void)
{
    double before[G + 1];
    open_gossip(8);
    masses(8, before);
    refuse = 10;
    lose = 30;
    keep = 20;
    twice = 20;
    for (int r = 0; r < 300; r++) {
        gossip_round(8, 0);
        if (r % 50 == 0) CHECK(mass_change(8, before) < 1e-3);
    }
    CHECK(mass_change(8, before) < 1e-3 && fabs(mass(8, G) - 8) <= 0); /* the weights are exact */
    CHECK(gossips[0].failed > 10 && gossips[0].missing > 50);
    refuse = lose = keep = twice = 0;
    for (int r = 0; r < 60; r++) gossip_round(8, 0);
    CHECK(from_mean(8, before) < 1e-3); /* the mean of what there was at first */
    close_gossip(8);
}

static void test_gossip_trains_while_messages_get_lost(void)
{
    double most = 0;
    open_gossip(8);
    lose = 20;
    for (int r = 0; r < 1000; r++) gossip_round(8, 0.1f / (1 + (float)r / 40));
    for (int w = 0; w < 8; w++)
        for (size_t i = 0; i < G; i++) { /* the optimum of all, where the mean slope is 0 */
            double mean = 0;
            for (int k = 0; k < WORLD; k++) mean += (double)slope(i, k, gossips[w].y[i] / (float)gossips[w].s) / WORLD;
            most = fmax(most, fabs(mean));
        }
    CHECK(most < 0.1);
    close_gossip(8);
}

static void test_an_update_of_nan_is_left_out_and_a_huge_half_is_not_sent(void)
{
    float u[G] = {0};
    double before[G + 1];
    open_gossip(4);
    masses(4, before);
    u[3] = NAN;
    gossip_step(&gossips[1], xs[1], u);
    CHECK(gossips[1].left_out == 1 && isfinite(xs[1][3]) && mass_change(4, before) < 1e-6);
    gossips[2].y[0] = 5000;
    masses(4, before);
    gossip_send(&gossips[2]);
    CHECK(gossips[2].failed == 1 && gossips[2].s >= 1 && mass_change(4, before) < 1e-6);
    close_gossip(4);
}

static void test_when_a_peer_vanishes_the_others_come_together(void)
{
    float least[G], most[G];
    double spread = 0;
    open_gossip(8);
    for (size_t i = 0; i < G; i++) {
        least[i] = most[i] = xs[0][i];
        for (int w = 1; w < 8; w++) {
            least[i] = fminf(least[i], xs[w][i]);
            most[i] = fmaxf(most[i], xs[w][i]);
        }
    }
    gossip_round(8, 0);
    dead = 5;
    for (int r = 0; r < 150; r++) gossip_round(8, 0);
    for (int w = 0; w < 8; w++)
        for (size_t i = 0; i < G && w != dead; i++) {
            const double z = (double)gossips[w].y[i] / gossips[w].s;
            spread = fmax(spread, fabs(z - (double)gossips[0].y[i] / gossips[0].s));
            CHECK(z > (double)least[i] - 1e-4 && z < (double)most[i] + 1e-4); /* in the hull */
        }
    CHECK(spread < 1e-4);
    close_gossip(8);
}

static void test_a_peer_may_join(void)
{
    double before[G + 1];
    open_gossip(4);
    for (int r = 0; r < 9; r++) gossip_round(4, 0);
    open_peers(5); /* nothing is under way: every round was received */
    memset(&gossips[4], 0, sizeof gossips[4]);
    gossips[4].n = G;
    for (size_t i = 0; i < G; i++) xs[4][i] = gossips[0].y[i] / (float)gossips[0].s;
    CHECK(gossip_open(&gossips[4], &nets[4], xs[4]) == 0);
    for (int w = 0; w < 4; w++) CHECK(gossip_regroup(&gossips[w], &nets[w]) == 0);
    masses(5, before);
    CHECK(fabs(before[G] - 5) <= 0);
    for (int r = 0; r < 40; r++) gossip_round(5, 0);
    CHECK(from_mean(5, before) < 1e-4 && mass_change(5, before) < 1e-4);
    close_gossip(5);
}

/* The same over threads, with messages that are waited for two steps later. */
static void body_gossip_threads(worker *w)
{
    gossip_loop g = {0};
    peers net = {0};
    float x[G], u[G];
    net.user = w->comm.user;
    net.rank = w->rank;
    net.world = w->comm.world;
    net.send = gcomp_threads_send;
    net.receive = gcomp_threads_receive;
    g.n = G;
    g.late = 2;
    g.seconds = 30;
    for (size_t i = 0; i < G; i++) x[i] = at_first(i);
    w->wrong = gossip_open(&g, &net, x) != 0;
    for (int s = 0; s < 1000 && !w->wrong; s++) {
        for (size_t i = 0; i < G; i++) u[i] = 0.1f / (1 + (float)s / 40) * slope(i, w->rank, x[i]);
        gossip_step(&g, x, u);
    }
    gossip_end(&g, x);
    memcpy(w->x, x, sizeof x);
    w->wrong += g.missing + g.failed != 0 || gcomp_threads_barrier(w->comm.user) != 0;
    gossip_close(&g);
}

static void test_late_messages_of_threads_end_near_the_optimum(void)
{
    memset(workers, 0, sizeof workers);
    each(WORLD, body_gossip_threads);
    for (int w = 0; w < WORLD; w++) {
        double most = 0;
        for (size_t i = 0; i < G; i++) {
            double mean = 0;
            for (int k = 0; k < WORLD; k++) mean += (double)slope(i, k, workers[w].x[i]) / WORLD;
            most = fmax(most, fabs(mean));
        }
        CHECK(workers[w].wrong == 0 && most < 0.05);
    }
}

/* ---------------- CHOCO */

static void open_choco(int world, const char *text, float gamma)
{
    open_peers(world);
    for (int w = 0; w < world; w++) {
        float first[G];
        for (size_t i = 0; i < G; i++) first[i] = at_first(i);
        for (size_t i = 0; i < G; i++) xs[w][i] = at_first(i * 7 + (size_t)w * 311);
        memset(&chocos[w], 0, sizeof chocos[w]);
        chocos[w].n = G;
        chocos[w].gamma = gamma;
        CHECK(gcomp_codec_parse(&chocos[w].codec, text, NULL, 0) == GCOMP_OK);
        CHECK(choco_open(&chocos[w], &nets[w], first) == 0);
    }
}

static void close_choco(int world)
{
    for (int w = 0; w < world; w++) choco_close(&chocos[w]);
    while (waiting) free(letters[--waiting]);
}

static int choco_rounds;
static float poison; /* added to an element of worker 2 in round 5 */
static int quits;    /* after round 10 */

static void body_choco(worker *w)
{
    choco_loop *c = &chocos[w->rank];
    c->net.user = w->comm.user;
    c->net.send = gcomp_threads_send;
    c->net.receive = gcomp_threads_receive;
    c->seconds = 30;
    w->result = GCOMP_OK;
    for (int r = 0; r < choco_rounds && w->result == GCOMP_OK; r++) {
        if (r == 5 && w->rank == 2) xs[2][9] += poison;
        if (r == 10 && w->rank == quits) {
            gcomp_threads_leave(w->comm.user);
            return;
        }
        w->result = choco_step(c, xs[w->rank]);
    }
}

static void run_choco(int world, int rounds)
{
    choco_rounds = rounds;
    memset(workers, 0, sizeof workers);
    each(world, body_choco);
    for (int w = 0; w < world; w++) CHECK(workers[w].result == GCOMP_OK);
}

static void test_choco_conserves_the_mean_and_comes_to_it(void)
{
    static const struct {
        const char *codec;
        float gamma;
    } ways[] = {{"none", 1}, {"int:bits=4", 0.3f}, {"qsgd", 0.3f}, {"topk:density=0.1", 0.1f}, {"sign", 0.1f}};
    quits = -1;
    poison = 0;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        for (int world = 1; world <= 5; world++) {
            double before[G], most = 0, drift = 0;
            open_choco(world, ways[k].codec, ways[k].gamma);
            for (size_t i = 0; i < G; i++) {
                before[i] = 0;
                for (int w = 0; w < world; w++) before[i] += (double)xs[w][i] / world;
            }
            run_choco(world, 400);
            for (size_t i = 0; i < G; i++) {
                double mean = 0;
                for (int w = 0; w < world; w++) mean += (double)xs[w][i] / world;
                drift = fmax(drift, fabs(mean - before[i]));
                for (int w = 0; w < world; w++) most = fmax(most, fabs((double)xs[w][i] - before[i]));
            }
            if (!(drift < 1e-4 && most < 0.02)) printf("# %s, %d: drift %g, apart %g\n", ways[k].codec, world, drift, most);
            CHECK(drift < 1e-4 && most < 0.02);
            for (int w = 0; w < world && world > 2; w++) { /* the copies of a worker are the same bits everywhere */
                const float *own = chocos[w].copy[0];
                CHECK(memcmp(own, chocos[(w + 1) % world].copy[1], G * sizeof *own) == 0);
                CHECK(memcmp(own, chocos[(w + world - 1) % world].copy[2], G * sizeof *own) == 0);
            }
            close_choco(world);
        }
}

static void test_choco_refuses_nan_and_goes_on(void)
{
    quits = -1;
    poison = NAN;
    open_choco(4, "int:bits=4", 0.3f);
    run_choco(4, 200);
    CHECK(chocos[1].refused == 1 && chocos[3].refused == 1 && chocos[0].refused == 0);
    for (int w = 0; w < 4; w++)
        for (size_t i = 0; i < G; i++) CHECK(fabsf(xs[w][i] - xs[0][i]) < 0.02f);
    CHECK(memcmp(chocos[2].copy[0], chocos[1].copy[2], G * sizeof(float)) == 0);
    close_choco(4);
}

static void test_choco_leaves_out_a_neighbour_that_vanishes(void)
{
    quits = 2;
    poison = 0;
    open_choco(5, "int:bits=4", 0.3f);
    run_choco(5, 400);
    CHECK(chocos[1].out[2] && chocos[3].out[1] && !chocos[1].out[1] && !chocos[4].out[1]);
    for (int w = 0; w < 5; w++)
        for (size_t i = 0; i < G && w != 2; i++) CHECK(fabsf(xs[w][i] - xs[0][i]) < 0.02f);
    close_choco(5);
}

/* ---------------- leader.c */

static float pull_by = 0.1f;

static void open_leader(worker *w)
{
    memset(&w->l, 0, sizeof w->l);
    w->l.comm = w->comm;
    w->l.n = N;
    w->l.pull = pull_by;
    w->wrong += gcomp_codec_parse(&w->l.codec, codec, NULL, 0) != GCOMP_OK;
    for (size_t i = 0; i < N; i++) w->x[i] = at_first(i);
    w->wrong += leader_open(&w->l, w->x) != 0;
}

/* Everywhere off the start, differently on each worker. */
static void wander(worker *w, size_t round)
{
    for (size_t i = 0; i < N; i++) w->x[i] += 0.01f * ((float)(mix(i * 64 + round * 8 + (size_t)w->rank) % 1001) - 500) / 500;
}

static void test_the_least_finite_loss_leads(void)
{
    static const float losses[][4] = {{3, 1, 2, 1}, {NAN, 2, INFINITY, 5}, {NAN, NAN, NAN, INFINITY}, {1, 1, 1, 1}, {4, 3, 2, -INFINITY}};
    static const int leads[] = {1, 1, -1, 0, 2};
    for (size_t k = 0; k < 5; k++) CHECK(leader_of(losses[k], 4) == leads[k]);
}

/* The leader changes from round to round. With an exact codec b is the leader's x, and the others come closer by c. */
static void body_leader(worker *w)
{
    static const char *const codecs[] = {"none", "int:bits=4", "qsgd", "topk:density=0.05", "sign"};
    float x[N], b[N];
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        codec = codecs[c];
        if (gcomp_threads_barrier(w->comm.user)) return;
        open_leader(w);
        for (size_t round = 0; round < 12; round++) {
            const int leads = (int)(mix(round) % WORLD);
            wander(w, round);
            memcpy(x, w->x, sizeof x);
            w->wrong += leader_round(&w->l, w->x, w->rank == leads ? 0.5f : 1 + (float)w->rank) != GCOMP_OK || w->l.leads != leads;
            w->wrong += w->rank == leads && !same(w->x, x); /* the leader stands */
            for (size_t i = 0; i < N && w->rank != leads; i++) w->wrong += fabsf(x[i] + 0.1f * (w->l.b[i] - x[i]) - w->x[i]) > 1e-6f;
            for (size_t i = 0; i < N && c == 0 && w->rank == leads; i++) w->wrong += fabsf(w->l.b[i] - x[i]) > 1e-6f;
            memcpy(b, w->l.b, sizeof b);
            w->wrong += gcomp_threads_broadcast(w->comm.user, b, sizeof b, 0) != 0 || !same(b, w->l.b); /* the same bits */
        }
        leader_close(&w->l);
        if (gcomp_threads_barrier(w->comm.user)) return;
    }
}

static void test_leaders_stand_and_all_hold_the_same_copy(void)
{
    memset(workers, 0, sizeof workers);
    each(WORLD, body_leader);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* x = b on all: a fixed point; equal workers stay equal. */
static void body_fixed(worker *w)
{
    float x[N];
    open_leader(w);
    memcpy(x, w->x, sizeof x);
    for (size_t round = 0; round < 5; round++) w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK || !same(w->x, x);
    for (size_t round = 0; round < 5; round++) w->wrong += leader_elastic(&w->l, w->x) != GCOMP_OK || !same(w->x, x);
    leader_close(&w->l);
}

static void test_where_all_are_equal_nothing_moves(void)
{
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    each(WORLD, body_fixed);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* Round 1: worker 2 is NaN with a loss of NaN. Round 2: no loss is finite. Round 3: the leader's weights are not finite. */
static void body_leader_nan(worker *w)
{
    float x[N], b[N];
    const int victim = w->rank == 2;
    open_leader(w);
    wander(w, 1);
    if (victim) w->x[7] = NAN;
    w->wrong += leader_round(&w->l, w->x, victim ? NAN : 1 + (float)w->rank) != GCOMP_OK || w->l.leads != 0;
    w->wrong += w->l.restarted != victim || (victim && !same(w->x, w->l.b));
    memcpy(x, w->x, sizeof x);
    memcpy(b, w->l.b, sizeof b);
    w->wrong += leader_round(&w->l, w->x, NAN) != GCOMP_OK || w->l.leads != -1 || !same(w->x, x) || !same(w->l.b, b);
    w->l.restarted = 0;
    if (victim) w->x[8] = INFINITY;
    w->wrong += leader_round(&w->l, w->x, victim ? 0 : 1.0f) != GCOMP_OK || w->l.leads != -1 || !same(w->l.b, b);
    w->wrong += w->l.restarted != victim || !same(w->x, victim ? b : x);
    leader_close(&w->l);
}

static void test_nan_never_leads(void)
{
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    each(WORLD, body_leader_nan);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* Worker 3 dies; the others go on in another group; then a successor gets b and the round, and joins. */
static void body_leader_death(worker *w)
{
    float x[N], b[N];
    open_leader(w);
    wander(w, 1);
    w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK;
    memcpy(x, w->x, sizeof x);
    memcpy(b, w->l.b, sizeof b);
    if (w->rank == 3) {
        gcomp_threads_fail(w->group);
        leader_close(&w->l);
        return;
    }
    w->wrong += leader_round(&w->l, w->x, 0) != GCOMP_CALLBACK_FAILED || !same(w->x, x) || !same(w->l.b, b);
    w->wrong += leader_elastic(&w->l, w->x) != GCOMP_CALLBACK_FAILED || !same(w->x, x) || !same(w->l.b, b);
    w->l.comm = gcomp_threads_comm(again, w->rank);
    for (size_t round = 2; round < 5; round++) {
        wander(w, round);
        w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK || w->l.leads != 0;
    }
    w->l.comm = gcomp_threads_comm(whole, w->rank);
    w->wrong += gcomp_threads_barrier(w->l.comm.user) != 0; /* the successor reads b of worker 0 */
    w->wrong += gcomp_threads_barrier(w->l.comm.user) != 0;
    wander(w, 5);
    w->wrong += leader_round(&w->l, w->x, 1 + (float)w->rank) != GCOMP_OK || w->l.leads != 3;
    memcpy(w->x, w->l.b, BYTES); /* for the comparison */
    leader_close(&w->l);
}

static void *join_leader(void *unused)
{
    worker *w = &successor;
    (void)unused;
    w->rank = 3;
    w->comm = gcomp_threads_comm(whole, 3);
    open_leader(w);
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    memcpy(w->l.b, workers[0].l.b, BYTES);
    memcpy(w->x, w->l.b, BYTES);
    w->l.round = workers[0].l.round;
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    wander(w, 5);
    w->wrong += leader_round(&w->l, w->x, 0) != GCOMP_OK || w->l.leads != 3;
    memcpy(w->x, w->l.b, BYTES);
    leader_close(&w->l);
    return NULL;
}

static void test_when_a_worker_dies_the_others_follow_on_and_another_may_join(void)
{
    pthread_t thread;
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    memset(&successor, 0, sizeof successor);
    CHECK(gcomp_threads_open(&again, 3, 30) == 0 && gcomp_threads_open(&whole, 4, 30) == 0);
    CHECK(pthread_create(&thread, NULL, join_leader, NULL) == 0);
    each(WORLD, body_leader_death);
    pthread_join(thread, NULL);
    gcomp_threads_close(again);
    gcomp_threads_close(whole);
    for (int w = 0; w < WORLD - 1; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, successor.x));
    CHECK(successor.wrong == 0);
}

/* The sum of all x and the centre stays, with a codec that loses much; a worker with NaN adds nothing. */
static void body_elastic(worker *w)
{
    static float all[WORLD][N];
    open_leader(w);
    for (size_t round = 0; round < 20; round++) {
        double before[N], most = 0;
        const int poisoned = round == 9 && w->rank == 1;
        wander(w, round);
        if (poisoned) w->x[3] = NAN;
        for (int after = 0; after < 2; after++) {
            if (after) w->wrong += leader_elastic(&w->l, w->x) != GCOMP_OK;
            memcpy(all[w->rank], w->x, BYTES);
            w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
            for (size_t i = 0; i < N; i++) {
                double sum = (double)w->l.b[i];
                for (int k = 0; k < WORLD; k++) sum += (double)all[k][i];
                if (!after) before[i] = sum;
                else if (round != 9) most = fmax(most, fabs(sum - before[i]));
            }
            w->wrong += gcomp_threads_barrier(w->comm.user) != 0 || most > 1e-5;
        }
        w->wrong += (round == 9 && w->l.restarted != poisoned) || (poisoned && !same(w->x, w->l.b));
        for (size_t i = 0; i < N; i++) w->wrong += !isfinite(w->l.b[i]) || !isfinite(w->x[i]);
    }
    memcpy(w->x, w->l.b, BYTES);
    leader_close(&w->l);
}

static void test_elastic_averaging_conserves_the_sum_with_the_centre(void)
{
    codec = "sign";
    pull_by = 0.9f / WORLD;
    memset(workers, 0, sizeof workers);
    each(WORLD, body_elastic);
    pull_by = 0.1f;
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
    RUN(test_without_delay_every_bit_is_that_of_synchronous_training);
    RUN(test_drained_workers_are_equal_whatever_the_delay);
    RUN(test_what_is_not_applied_waits_in_the_residuals);
    RUN(test_a_round_with_nan_is_dropped_by_all);
    RUN(test_when_a_worker_dies_its_rounds_travel_again_and_another_may_join);
    RUN(test_overlap_hides_the_requests_and_changes_no_bit);
    RUN(test_push_sum_of_2_to_the_l_workers_averages_exactly_in_l_rounds);
    RUN(test_nothing_is_lost_with_messages_that_are);
    RUN(test_gossip_trains_while_messages_get_lost);
    RUN(test_an_update_of_nan_is_left_out_and_a_huge_half_is_not_sent);
    RUN(test_when_a_peer_vanishes_the_others_come_together);
    RUN(test_a_peer_may_join);
    RUN(test_late_messages_of_threads_end_near_the_optimum);
    RUN(test_choco_conserves_the_mean_and_comes_to_it);
    RUN(test_choco_refuses_nan_and_goes_on);
    RUN(test_choco_leaves_out_a_neighbour_that_vanishes);
    RUN(test_the_least_finite_loss_leads);
    RUN(test_leaders_stand_and_all_hold_the_same_copy);
    RUN(test_where_all_are_equal_nothing_moves);
    RUN(test_nan_never_leads);
    RUN(test_when_a_worker_dies_the_others_follow_on_and_another_may_join);
    RUN(test_elastic_averaging_conserves_the_sum_with_the_centre);
    return test_end();
}
