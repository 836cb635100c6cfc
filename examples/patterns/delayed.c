/* delayed.c - the mean comes late: Delayed Gradient Averaging. Nobody waits for the network: a
   worker goes on with its own gradient, and when the mean of that round arrives, it takes the place
   of the worker's own part.

       each step          x -= u;  h += u          u: what the local optimizer subtracts
       every K steps      send h;  h = 0
       D steps later      the mean H of that round arrives:  y -= H
                          x = y - own parts of rounds under way - h

   y is the same on all workers, bit for bit: so replicas never drift apart, D = 0 and K = 1 is
   synchronous training, and after the last round all hold y.

   Shows     one step of the step API under way for D local steps, and several objects in turn where
             more than one round is under way
   Leaves    the local optimizer; a transport with start, test and wait, which hides the network:
             gcomp_mpi_overlap
   Build     cc -O2 -I. -Iexamples/adapters examples/patterns/delayed.c gcomp_impl.c -o build/delayed -lopenblas -lz -lm -pthread
   Run       build/delayed [OPTION]...   train_pattern.h has the options
   Paper     Zhu, Lin, Lu, Lin, Han: Delayed Gradient Averaging, NeurIPS 2021

   NaN       GCOMP_NOT_FINITE: all drop that round. The worker whose part it was takes all its parts
             back, and goes on at y. What it sent meanwhile may be NaN too: each such round is
             dropped.
   Dies      GCOMP_CALLBACK_FAILED: the own part of that round goes back to h, and travels with the
             next one. Connect those that are left, and call gcomp_regroup for each object.
   Joins     All call delayed_end, so that nothing is under way. Then the new worker gets y and the
             step number, sets x = y, and calls gcomp_join for each object. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DELAYED_ROUNDS = 8 }; /* under way at a time, at most */

typedef struct delayed_round {
    gcomp *gc;   /* one step can be under way in an object, so each round has its own */
    float *sent; /* h, untouched until the commit writes the mean here */
    float *own;  /* a copy: what x holds of it */
    size_t left; /* when it was sent */
} delayed_round;

typedef struct delayed_loop {
    size_t n;
    size_t every;  /* K: local steps in a round */
    size_t delay;  /* D: local steps from sending to receiving */
    size_t rounds; /* max(1, ceil(D / K)), at most DELAYED_ROUNDS */
    delayed_round ring[DELAYED_ROUNDS];
    size_t oldest, under_way;
    float *y, *h;
    size_t step;
    size_t dropped; /* rounds in which some worker had NaN */
    int restarted;  /* 1: this one had; clear the local optimizer */
} delayed_loop;

static void delayed_close(delayed_loop *d)
{
    for (size_t r = 0; r < DELAYED_ROUNDS; r++) {
        gcomp_close(d->ring[r].gc);
        free(d->ring[r].sent);
        free(d->ring[r].own);
    }
    free(d->y);
    free(d->h);
    memset(d, 0, sizeof *d);
}

/* Sets d up; n, every and delay are set. desc has the codec, comms[rounds] the transport of each
   round: the same one for all, if it has no start; x[n] the weights, the same on all workers. */
static gcomp_result delayed_open(delayed_loop *d, const gcomp_desc *desc, const gcomp_comm *comms,
                                 const float *x)
{
    gcomp_desc own = *desc;
    gcomp_tensor tensor = {0};
    gcomp_result result = GCOMP_OK;
    d->rounds = d->every && d->delay ? (d->delay + d->every - 1) / d->every : 1;
    if (!d->every || d->rounds > DELAYED_ROUNDS) return GCOMP_INVALID_ARGUMENT;
    tensor.name = "updates";
    tensor.rows = d->n;
    tensor.codec = desc->codec;
    d->y = (float *)malloc(d->n * sizeof(float));
    d->h = (float *)calloc(d->n, sizeof(float));
    if (!d->y || !d->h) result = GCOMP_OUT_OF_MEMORY;
    for (size_t r = 0; r < d->rounds && result == GCOMP_OK; r++) {
        own.comm = comms[r];
        own.seed = desc->seed + r;
        result = gcomp_open(&d->ring[r].gc, &own);
        if (result == GCOMP_OK) result = gcomp_add_tensor(d->ring[r].gc, &tensor);
        d->ring[r].sent = (float *)calloc(d->n, sizeof(float));
        d->ring[r].own = (float *)calloc(d->n, sizeof(float));
        if (!d->ring[r].sent || !d->ring[r].own) result = GCOMP_OUT_OF_MEMORY;
    }
    if (result == GCOMP_OK) memcpy(d->y, x, d->n * sizeof(float));
    else delayed_close(d);
    return result;
}

/* x <- y without what is not agreed on yet. */
static void delayed_place(const delayed_loop *d, float *x)
{
    memcpy(x, d->y, d->n * sizeof(float));
    for (size_t k = 0; k < d->under_way; k++) {
        const float *own = d->ring[(d->oldest + k) % d->rounds].own;
        for (size_t i = 0; i < d->n; i++) x[i] -= own[i];
    }
    for (size_t i = 0; i < d->n; i++) x[i] -= d->h[i];
}

static gcomp_result delayed_send(delayed_loop *d)
{
    delayed_round *r = &d->ring[(d->oldest + d->under_way) % d->rounds];
    gcomp_result result = gcomp_step_begin(r->gc, NULL);
    if (result != GCOMP_OK) return result;
    memcpy(r->sent, d->h, d->n * sizeof(float));
    memcpy(r->own, d->h, d->n * sizeof(float));
    memset(d->h, 0, d->n * sizeof(float));
    r->left = d->step;
    d->under_way++;
    return gcomp_step_ready(r->gc, 0, r->sent);
}

/* Receives the mean of the oldest round. */
static gcomp_result delayed_receive(delayed_loop *d, float *x)
{
    delayed_round *r = &d->ring[d->oldest];
    gcomp_result result = gcomp_step_finish(r->gc);
    int bad = 0;
    d->oldest = (d->oldest + 1) % d->rounds;
    d->under_way--;
    for (size_t i = 0; i < d->n; i++) bad |= !isfinite(r->own[i]);
    if (result == GCOMP_OK) {
        for (size_t i = 0; i < d->n; i++) d->y[i] -= r->sent[i];
    } else if (result == GCOMP_NOT_FINITE) {
        d->dropped++;
        d->restarted |= bad;
        result = GCOMP_OK;
        for (size_t k = 0; k < d->under_way && bad; k++)
            memset(d->ring[(d->oldest + k) % d->rounds].own, 0, d->n * sizeof(float));
        if (bad) memset(d->h, 0, d->n * sizeof(float));
    } else { /* the step has changed nothing: what it was to bring travels with the next one */
        for (size_t i = 0; i < d->n; i++) d->h[i] += r->own[i];
        return result;
    }
    delayed_place(d, x);
    return result;
}

/* A local step: x -= u, then sends and receives what is due. *sent: 1 if a round has left. After an
   error x is as it was after x -= u. */
static gcomp_result delayed_step(delayed_loop *d, float *x, const float *u, int *sent)
{
    gcomp_result result = GCOMP_OK;
    *sent = 0;
    d->step++;
    for (size_t i = 0; i < d->n; i++) {
        x[i] -= u[i];
        d->h[i] += u[i];
    }
    for (size_t k = 0; k < d->under_way && result == GCOMP_OK; k++)
        result = gcomp_step_progress(d->ring[(d->oldest + k) % d->rounds].gc);
    if (result == GCOMP_OK && d->under_way && d->step - d->ring[d->oldest].left >= d->delay)
        result = delayed_receive(d, x);
    if (result == GCOMP_OK && d->step % d->every == 0) {
        result = delayed_send(d);
        *sent = 1;
        if (result == GCOMP_OK && d->delay == 0) result = delayed_receive(d, x);
    }
    return result;
}

/* Sends the rest, and receives all that is under way: then x is the same on all workers. */
static gcomp_result delayed_end(delayed_loop *d, float *x)
{
    gcomp_result result = GCOMP_OK;
    while (d->under_way && result == GCOMP_OK) result = delayed_receive(d, x);
    if (result == GCOMP_OK && d->step % d->every) result = delayed_send(d);
    while (d->under_way && result == GCOMP_OK) result = delayed_receive(d, x);
    return result;
}

#ifndef PATTERN_FUNCTIONS /* tests take the functions above alone */

#include "train_pattern.h"

/* with: K, D. */
static int delayed_train(pattern_worker *w, const pattern *p)
{
    delayed_loop d = {0};
    gcomp_desc desc = {0};
    gcomp_comm comms[DELAYED_ROUNDS];
    gcomp_result result;
    desc.codec = p->codec;
    for (size_t r = 0; r < DELAYED_ROUNDS; r++) comms[r] = w->comm;
    d.n = w->net.count;
    d.every = (size_t)p->with[0];
    d.delay = (size_t)p->with[1];
    result = delayed_open(&d, &desc, comms, w->net.parameters);
    if (result != GCOMP_OK) return pattern_say(w, p->name, result);
    while (w->step < w->steps && result == GCOMP_OK) {
        int sent;
        pattern_gradient(w);
        for (size_t i = 0; i < d.n; i++) w->net.gradients[i] *= w->rate;
        result = delayed_step(&d, w->net.parameters, w->net.gradients, &sent);
        w->rounds += sent;
        pattern_next(w);
    }
    if (result == GCOMP_OK) result = delayed_end(&d, w->net.parameters);
    delayed_close(&d);
    return result == GCOMP_OK ? 0 : pattern_say(w, p->name, result);
}

int main(int argc, char **argv)
{
    static const pattern rows[] = {
        {.name = "synchronous SGD", .codec = "none", .train = pattern_synchronous},
        {.name = "delayed 0", .codec = "none", .train = delayed_train, .with = {1, 0}},
        {.name = "delayed 5", .codec = "none", .train = delayed_train, .with = {1, 5}, .most = 4},
        {.name = "delayed 5, of 5 steps", .codec = "none", .train = delayed_train, .with = {5, 5},
         .most = 4},
        {.name = "delayed 20, of 5 steps", .codec = "none", .train = delayed_train,
         .with = {5, 20}, .most = 6},
        {.name = "delayed 20, of 20 steps", .codec = "none", .train = delayed_train,
         .with = {20, 20}, .most = 6},
        {.name = "delayed 5, of 5 steps, int:bits=4", .codec = "int:bits=4",
         .train = delayed_train, .with = {5, 5}, .most = 4},
        {.name = "delayed 20, of 5 steps, int:bits=4", .codec = "int:bits=4",
         .train = delayed_train, .with = {5, 20}, .most = 6},
        {.name = "delayed 5, of 5 steps, sign", .codec = "sign", .train = delayed_train,
         .with = {5, 5}}};
    return pattern_main(argc, argv, "delayed", rows, sizeof rows / sizeof *rows, 4, 0.05f, 0.001f);
}

#endif
