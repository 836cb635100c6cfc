/* outer.c - train locally, and exchange differences of weights: DiLoCo and Streaming DiLoCo.

   Each worker takes H steps of its own optimizer. Then all exchange how far they have come,
   compressed, and one outer step with Nesterov's momentum moves the weights that all share:

       d = start - x;  d <- mean of all d;  m <- mu m + d;  start -= lr (d + mu m);  x = start

   Streaming: the weights are cut into fragments that take turns; a difference travels while the
   next `delay` local steps are taken, and then x keeps the part `own` of what it has become.

   Shows     gcomp_exchange and the step API on differences of weights; workers of different
             weight; what happens when a worker returns NaN, dies, leaves or joins
   Leaves    the local optimizer: any will do, and its state is never exchanged
   Build     cc -O2 -I. -Iexamples/adapters examples/patterns/outer.c gcomp_impl.c -o build/outer -lopenblas -lz -lm -pthread
   Run       build/outer [OPTION]...   train_pattern.h has the options
   Papers    Douillard et al.: DiLoCo, arXiv 2311.08105; Streaming DiLoCo, arXiv 2501.18512; Sarfi
             et al.: SparseLoCo, arXiv 2508.15706 (sparse differences, residuals that decay)

   NaN       The frames tell it to all: GCOMP_NOT_FINITE. Nobody takes the outer step. The worker
             whose weights are not finite begins again at `start`.
   Dies      The transport fails: GCOMP_CALLBACK_FAILED. x, start and m are as before. Connect the
             workers that are left, call gcomp_regroup, and go on: the local steps since the last
             exchange travel with the next one.
   Leaves    Between two exchanges: gcomp_save, and another worker's gcomp_take_over.
   Joins     Between two exchanges: it gets start, m and the step number, sets x = start, and calls
             gcomp_join. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_optimizers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTER_FRAGMENTS = 8 }; /* at most */

typedef struct outer_loop {
    gcomp *gc;        /* a tensor for each fragment */
    size_t fragments, first[OUTER_FRAGMENTS + 1]; /* fragment p: first[p] .. first[p + 1] - 1 */
    size_t every;     /* H: local steps between two exchanges of a fragment */
    size_t delay;     /* tau: local steps that a difference travels, below every / fragments */
    float rate, mu;   /* of the outer step: 0.7 and 0.9 in the paper */
    float own;        /* alpha: the part of x that stays; 0: x = start. Streaming DiLoCo: 0.5 */
    double samples, batch; /* of this worker and of all, since the last exchange; batch 0: all are alike */
    float *start, *m, *d;
    size_t step;      /* local steps taken */
    size_t traveller; /* the fragment under way; `fragments`: none */
    size_t left;      /* when it was sent */
    int restarted;    /* 1: x was not finite, and was set to start; clear the local optimizer */
} outer_loop;

static void outer_close(outer_loop *o)
{
    gcomp_close(o->gc);
    free(o->start);
    free(o->m);
    free(o->d);
    memset(o, 0, sizeof *o);
}

/* Sets o up: desc has the codec and the transport, x[first[fragments]] the weights, the same on all
   workers. Set every and the fields below it first. */
static gcomp_result outer_open(outer_loop *o, const gcomp_desc *desc, const float *x)
{
    const size_t n = o->first[o->fragments];
    gcomp_result result = gcomp_open(&o->gc, desc);
    if (result != GCOMP_OK) return result;
    if (o->delay * o->fragments >= o->every) result = GCOMP_INVALID_ARGUMENT;
    o->start = (float *)malloc(n * sizeof(float));
    o->m = (float *)calloc(n, sizeof(float));
    o->d = (float *)calloc(n, sizeof(float));
    if (!o->start || !o->m || !o->d) result = GCOMP_OUT_OF_MEMORY;
    for (size_t p = 0; p < o->fragments && result == GCOMP_OK; p++) {
        char name[32];
        gcomp_tensor tensor = {0};
        snprintf(name, sizeof name, "fragment%zu", p);
        tensor.name = name;
        tensor.rows = o->first[p + 1] - o->first[p];
        tensor.codec = desc->codec; /* named here, since vectors would travel uncompressed */
        result = gcomp_add_tensor(o->gc, &tensor);
    }
    if (result == GCOMP_OK) memcpy(o->start, x, n * sizeof(float));
    else outer_close(o);
    o->traveller = o->fragments;
    return result;
}

/* Begins to send the difference of a fragment. */
static gcomp_result outer_send(outer_loop *o, const float *x, size_t p)
{
    gcomp_step how = GCOMP_STEP;
    gcomp_result result;
    how.samples = o->samples;
    how.batch = o->batch;
    for (size_t i = o->first[p]; i < o->first[p + 1]; i++) o->d[i] = o->start[i] - x[i];
    result = gcomp_step_begin(o->gc, &how);
    for (size_t t = 0; t < o->fragments && result == GCOMP_OK; t++)
        result = gcomp_step_ready(o->gc, t, t == p ? o->d + o->first[p] : NULL);
    if (result == GCOMP_OK) {
        o->traveller = p;
        o->left = o->step;
    }
    return result;
}

/* Waits for the mean of the difference under way, and takes the outer step. After an error x, start
   and m are as they were; GCOMP_NOT_FINITE is none. */
static gcomp_result outer_receive(outer_loop *o, float *x)
{
    const size_t p = o->traveller, at = o->first[p], n = o->first[p + 1] - at;
    gcomp_result result = gcomp_step_finish(o->gc);
    int bad = 0;
    o->traveller = o->fragments;
    if (result == GCOMP_NOT_FINITE) {
        for (size_t i = 0; i < o->first[o->fragments]; i++) bad |= !isfinite(x[i]);
        if (bad) memcpy(x, o->start, o->first[o->fragments] * sizeof(float));
        o->restarted |= bad;
        return GCOMP_OK;
    }
    if (result != GCOMP_OK) return result;
    result = gcomp_outer_step(o->start + at, o->m + at, o->d + at, n, o->rate, o->mu);
    if (result != GCOMP_OK) return result;
    for (size_t i = at; i < at + n; i++)
        x[i] = o->own > 0 ? o->own * x[i] + (1 - o->own) * o->start[i] : o->start[i];
    return GCOMP_OK;
}

/* Call it after each local step: sends and receives what is due. Fragment p is due in step t where
   t - p every / fragments is a multiple of every. *sent: 1 if a difference has left. */
static gcomp_result outer_after(outer_loop *o, float *x, int *sent)
{
    gcomp_result result = GCOMP_OK;
    *sent = 0;
    o->step++;
    if (o->traveller < o->fragments && o->step - o->left >= o->delay) result = outer_receive(o, x);
    else if (o->traveller < o->fragments) result = gcomp_step_progress(o->gc);
    for (size_t p = 0; p < o->fragments && result == GCOMP_OK; p++) {
        const size_t turn = p * o->every / o->fragments;
        if (o->step < turn || (o->step - turn) % o->every || o->step == 0) continue;
        result = outer_send(o, x, p);
        *sent = result == GCOMP_OK;
        if (result == GCOMP_OK && o->delay == 0) result = outer_receive(o, x);
    }
    if (result != GCOMP_OK) o->traveller = o->fragments; /* the step is over */
    return result;
}

/* At the end of training: receives what is under way; x becomes what all workers share. */
static gcomp_result outer_end(outer_loop *o, float *x)
{
    gcomp_result result = o->traveller < o->fragments ? outer_receive(o, x) : GCOMP_OK;
    if (result == GCOMP_OK) memcpy(x, o->start, o->first[o->fragments] * sizeof(float));
    return result;
}

#ifndef PATTERN_FUNCTIONS /* tests take the functions above alone */

#include "train_pattern.h"

/* with: H, outer rate, mu, delay, decay of residuals; a delay cuts the weights into a fragment for
   each layer. */
static int outer_train(pattern_worker *w, const pattern *p)
{
    outer_loop o = {0};
    gcomp_desc desc = {0};
    gcomp_result result;
    const int streaming = p->with[3] > 0;
    desc.codec = p->codec;
    desc.comm = w->comm;
    desc.decay = (float)p->with[4];
    o.every = (size_t)p->with[0];
    o.rate = (float)p->with[1];
    o.mu = (float)p->with[2];
    o.delay = (size_t)p->with[3];
    o.own = streaming ? 0.5f : 0;
    o.fragments = streaming ? TRAIN_LAYERS : 1;
    for (size_t l = 1; l < o.fragments; l++)
        o.first[l] = (size_t)(w->net.weight[l] - w->net.parameters);
    o.first[o.fragments] = w->net.count;
    result = outer_open(&o, &desc, w->net.parameters);
    if (result != GCOMP_OK) return pattern_say(w, p->name, result);
    while (w->step < w->steps && result == GCOMP_OK) {
        int sent;
        pattern_gradient(w);
        pattern_local(w);
        result = outer_after(&o, w->net.parameters, &sent);
        if (o.restarted) pattern_forget(w);
        o.restarted = 0;
        w->rounds += sent;
        pattern_next(w);
    }
    if (result == GCOMP_OK) result = outer_end(&o, w->net.parameters);
    outer_close(&o);
    return result == GCOMP_OK ? 0 : pattern_say(w, p->name, result);
}

int main(int argc, char **argv)
{
    static const pattern rows[] = {
        {.name = "synchronous AdamW", .codec = "none", .train = pattern_synchronous, .adam = 1},
        {.name = "synchronous SGD", .codec = "none", .train = pattern_synchronous},
        {.name = "synchronous powersgd:rank=4", .codec = "powersgd:rank=4",
         .train = pattern_synchronous, .adam = 1},
        {.name = "synchronous sign", .codec = "sign", .train = pattern_synchronous, .adam = 1},
        {.name = "synchronous topk:density=0.01+int:bits=4",
         .codec = "topk:density=0.01+int:bits=4", .train = pattern_synchronous, .adam = 1},
        {.name = "outer none", .codec = "none", .train = outer_train, .adam = 1,
         .with = {20, 0.7, 0.9}},
        {.name = "outer int:bits=4", .codec = "int:bits=4", .train = outer_train, .adam = 1,
         .with = {20, 0.7, 0.9}, .beside = "outer none", .most = 1},
        {.name = "outer int:bits=4,block=256", .codec = "int:bits=4,block=256",
         .train = outer_train, .adam = 1, .with = {20, 0.7, 0.9}, .beside = "outer none",
         .most = 1, .fewer = 150},
        {.name = "outer mx", .codec = "mx", .train = outer_train, .adam = 1,
         .with = {20, 0.7, 0.9}},
        {.name = "outer sign", .codec = "sign", .train = outer_train, .adam = 1,
         .with = {20, 0.7, 0.9}},
        {.name = "outer eden, mu 0.5", .codec = "eden", .train = outer_train, .adam = 1,
         .with = {20, 1, 0.5}},
        /* the sparse differences of SparseLoCo, whose residuals decay */
        {.name = "outer topk by chunks, mu 0.5",
         .codec = "topk:density=0.0625,chunk=4096+int:bits=4", .train = outer_train, .adam = 1,
         .with = {20, 1, 0.5, 0, 0.95}},
        {.name = "local AdamW, averaged", .codec = "none", .train = outer_train, .adam = 1,
         .with = {20, 1, 0}},
        /* 5 % above the loss of a prototype */
        {.name = "streaming int:bits=4, delay 2", .codec = "int:bits=4", .train = outer_train,
         .adam = 1, .with = {20, 0.7, 0.9, 2}, .below = 1.05 * 0.383},
        {.name = "streaming mx, delay 5", .codec = "mx", .train = outer_train, .adam = 1,
         .with = {20, 0.7, 0.9, 5}, .below = 1.05 * 0.390}};
    return pattern_main(argc, argv, "outer", rows, sizeof rows / sizeof *rows, 4, 0.05f, 0.001f);
}

#endif
