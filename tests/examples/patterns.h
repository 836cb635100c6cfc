/* What tests of the patterns share: workers that are threads, with quadratic losses. */

#ifndef PATTERNS_H
#define PATTERNS_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunused-function" /* each test is about one of the four */
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

static inline void *begin(void *arg)
{
    void **pair = (void **)arg;
    ((void (*)(worker *))pair[0])((worker *)pair[1]);
    return NULL;
}

/* Runs body in a thread for each worker of ranks 0 .. world - 1. */
static inline void each(int world, void (*body)(worker *))
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

static inline int same(const void *a, const void *b) { return memcmp(a, b, BYTES) == 0; }

/* A start for all, and the gradient of worker `rank`: its own optimum is off the common one. */
static inline float at_first(size_t i) { return (float)((int)(i * 7919 % 2003) - 1001) / 1001.0f; }

static inline float slope(size_t i, int rank, float x)
{
    const float optimum = (float)((int)(i * 104729 % 1999) - 999) / 999.0f;
    const float own = 0.3f * (float)(2 * rank - WORLD + 1) * (i % 3 ? 1.0f : -0.5f);
    return (0.5f + (float)(i % 5) * 0.4f) * (x - optimum - own);
}

/* ---------------- settings of the loop under test */

static size_t every = 6, delay, fragments = 1;

static float outer_rate = 0.7f, mu = 0.9f;
static const char *codec = "int:bits=4";

static inline void set(size_t h, size_t tau, size_t parts, float rate, float momentum, const char *text)
{
    every = h;
    delay = tau;
    fragments = parts;
    outer_rate = rate;
    mu = momentum;
    codec = text;
}

static inline void open_outer(worker *w)
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

static inline void local_step(worker *w)
{
    for (size_t i = 0; i < N; i++) w->x[i] -= RATE * slope(i, w->rank, w->x[i]);
}

static inline void train_outer(worker *w, size_t steps)
{
    for (size_t s = 0; s < steps && w->result == GCOMP_OK; s++) {
        int sent;
        local_step(w);
        w->result = outer_after(&w->o, w->x, &sent);
    }
}

/* The distance of x from the optimum of all workers. */
static inline double miss(const float *x)
{
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        double mean = 0;
        for (int w = 0; w < WORLD; w++) mean += (double)slope(i, w, x[i]) / WORLD;
        sum += mean * mean / N;
    }
    return sqrt(sum);
}

static inline void body_outer_long(worker *w)
{
    open_outer(w);
    if (w->result == GCOMP_OK) train_outer(w, 600);
    if (w->result == GCOMP_OK) w->result = outer_end(&w->o, w->x);
    outer_close(&w->o);
}

#endif
