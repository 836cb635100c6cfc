/* transformer_optimizers.h - AdamW, and three optimizers that make their own use of compression.
   Each step is an exchange, and then, if it has succeeded on all workers, an update.

   adamw     The mean gradient is exchanged, clipped by its norm, and stepped by AdamW (Loshchilov,
             Hutter 2019). Any codec that suits Adam.
   adam1bit  1-bit Adam (Tang et al. 2021). In the first tenth of the steps as adamw. Then workers
             exchange their momenta b1 m + (1 - b1) g, with error feedback; every `refresh` steps they
             exchange gradients again, and v, the second moment, moves. "A|B": A is the codec of
             gradients, B that of momenta.
   signum    Each worker keeps a momentum of its own gradients; `vote` makes the mean of the signs
             a sign again; it is the step (Bernstein et al. 2018).
   demo      DeMo (Peng et al. 2024): the codec `dct` keeps a momentum that is never exchanged, and
             sends the largest cosine coefficients of it; the sign of their mean is the step.

   Vectors travel uncompressed; all optimizers step them as adamw does. What all workers have in
   common is in m and v; `own` is of one worker alone, and so is the state in gcomp. */

#ifndef TRANSFORMER_OPTIMIZERS_H
#define TRANSFORMER_OPTIMIZERS_H

#include "gcomp.h"
#include "../train/train_advice.h"
#include "../train/train_meter.h"
#include "transformer_model.h"

typedef enum transformer_kind {
    BY_ADAMW,
    BY_ADAM1BIT,
    BY_SIGNUM,
    BY_DEMO,
    TRANSFORMER_KINDS
} transformer_kind;
static const char *const transformer_kinds[] = {"adamw", "adam1bit", "signum", "demo"};
static const char *const transformer_codecs[] = {"none", "qsgd|sign", "vote", "dct:top=32"};

#define ADAM_B1 0.9f
#define ADAM_B2 0.95f
#define ADAM_EPS 1e-8f
#define ADAM_CLIP 1.0
#define ADAM_REFRESH 0.8f /* of v stays where a mean gradient moves it */

typedef struct transformer_optimizer {
    transformer_kind kind;
    transformer *model;
    gcomp *gc;
    gcomp *exact;          /* adam1bit: exchanges gradients */
    float *m, *v;          /* [count] */
    float *own, *next;     /* [count], signum: the momentum, and what it is if the step succeeds */
    uint16_t *half;        /* [count] where gradients are bf16, else NULL */
    uint64_t applied;      /* steps that succeeded */
    uint64_t first;        /* adam1bit: steps that exchange gradients */
    uint64_t refresh;      /* 0: v stays */
    float decay, sign_rate; /* of a step by signs, in rates of adamw */
} transformer_optimizer;

/* Does this step exchange gradients, for v? */
static inline int transformer_is_exact(const transformer_optimizer *o)
{
    return o->kind == BY_ADAM1BIT &&
        (o->applied < o->first || (o->refresh && (o->applied - o->first) % o->refresh == 0));
}

/* Is this tensor stepped as adamw does, in this step? */
static inline int transformer_by_gradient(const transformer_optimizer *o, size_t tensor)
{
    return o->kind == BY_ADAMW || !o->model->tensor[tensor].cols || transformer_is_exact(o);
}

/* Turns gradients into what is exchanged. Changes nothing that a step which fails would need. */
static inline void transformer_prepare(const transformer_optimizer *o)
{
    float *g = o->model->gradients;
    for (size_t t = 0; t < o->model->tensors; t++) {
        const size_t begin = o->model->tensor[t].begin, end = begin + o->model->tensor[t].count;
        if (transformer_by_gradient(o, t) || o->kind == BY_DEMO) continue;
        for (size_t i = begin; i < end; i++) {
            if (o->kind == BY_SIGNUM) {
                g[i] = o->next[i] = ADAM_B1 * o->own[i] + (1 - ADAM_B1) * g[i];
            } else { /* where v is 0, the smallest m would make an endless step */
                g[i] = o->v[i] > 0 ? ADAM_B1 * o->m[i] + (1 - ADAM_B1) * g[i] : 0 * g[i];
            }
        }
    }
}

/* Makes the mean over the workers. Returns what gcomp_exchange returns. */
static inline gcomp_result transformer_exchange(transformer_optimizer *o, const gcomp_step *how)
{
    const transformer *m = o->model;
    void *grads[TRANSFORMER_TENSORS];
    gcomp_result result = GCOMP_OK;
    transformer_prepare(o);
    for (size_t t = 0; t < m->tensors; t++)
        grads[t] = o->half ? (void *)(o->half + m->tensor[t].begin)
                           : (void *)(m->gradients + m->tensor[t].begin);
    if (o->half) result = gcomp_convert(o->half, GCOMP_BF16, m->gradients, GCOMP_F32, m->count, NULL);
    if (result == GCOMP_OK)
        result = gcomp_exchange(transformer_is_exact(o) ? o->exact : o->gc, grads, how);
    if (result == GCOMP_OK && o->half)
        result = gcomp_convert(m->gradients, GCOMP_F32, o->half, GCOMP_BF16, m->count, NULL);
    return result;
}

/* What a mean gradient is multiplied with, so that the norm of all is at most ADAM_CLIP. */
static inline float transformer_clip(const transformer_optimizer *o)
{
    double square = 0;
    for (size_t t = 0; t < o->model->tensors; t++) {
        const float *g = transformer_gradient(o->model, t);
        if (!transformer_by_gradient(o, t)) continue;
        for (size_t i = 0; i < o->model->tensor[t].count; i++)
            square += (double)g[i] * (double)g[i];
    }
    return square > ADAM_CLIP * ADAM_CLIP ? (float)(ADAM_CLIP / sqrt(square)) : 1;
}

/* Steps a tensor by the mean in gradients. clip: of gradients. */
static inline void transformer_step_tensor(const transformer_optimizer *o, size_t tensor,
                                           float rate, float clip)
{
    const transformer_tensor *t = &o->model->tensor[tensor];
    const int gradient = transformer_by_gradient(o, tensor);
    /* v is frozen behind its first steps: from then on it is what divided by c2 it was */
    const int frozen = o->kind == BY_ADAM1BIT && t->cols && o->applied >= o->first;
    const float done = (float)(o->applied + 1), decay = t->cols ? o->decay : 0;
    const float c1 = 1 / (1 - powf(ADAM_B1, done)), keep = frozen ? ADAM_REFRESH : ADAM_B2;
    const float c2 = frozen ? 1 : 1 / (1 - powf(ADAM_B2, done));
    const float thaw = frozen && o->applied == o->first
        ? 1 / (1 - powf(ADAM_B2, (float)o->first))
        : 1;
    float *x = o->model->weights + t->begin, *g = o->model->gradients + t->begin;
    float *m = o->m + t->begin, *v = o->v + t->begin;
    for (size_t i = 0; i < t->count; i++) {
        float step;
        if (!gradient && o->kind != BY_ADAM1BIT) {
            step = o->sign_rate * (float)((g[i] > 0) - (g[i] < 0));
        } else {
            if (thaw > 1) v[i] *= thaw;
            if (gradient) {
                const float gi = clip * g[i];
                m[i] = ADAM_B1 * m[i] + (1 - ADAM_B1) * gi;
                v[i] = keep * v[i] + (1 - keep) * gi * gi;
            } else {
                m[i] = v[i] > 0 ? g[i] : 0;
            }
            step = c1 * m[i] / (sqrtf(c2 * v[i]) + ADAM_EPS);
        }
        x[i] -= rate * (step + decay * x[i]);
    }
}

/* Behind an exchange that has succeeded. */
static inline void transformer_update(transformer_optimizer *o, float rate)
{
    const float clip = transformer_clip(o);
    float *own = o->own;
    for (size_t t = 0; t < o->model->tensors; t++) transformer_step_tensor(o, t, rate, clip);
    if (o->kind == BY_SIGNUM) {
        o->own = o->next;
        o->next = own;
    }
    o->applied++;
}

/* ---------------- opening */

static inline double transformer_clock(void *user)
{
    (void)user;
    return train_clock();
}

/* codec: "advise": for each tensor what train_advice.h finds. */
static inline gcomp *transformer_gcomp(const transformer *m, gcomp_desc desc, const char *codec,
                                       int halves)
{
    gcomp_tensor tensors[TRANSFORMER_TENSORS];
    const int advise = !strcmp(codec, "advise");
    char why[256] = "";
    gcomp *gc;
    memset(tensors, 0, sizeof tensors);
    for (size_t t = 0; t < m->tensors; t++) {
        tensors[t].name = m->tensor[t].name;
        tensors[t].rows = m->tensor[t].rows;
        tensors[t].cols = m->tensor[t].cols;
        tensors[t].dtype = halves ? GCOMP_BF16 : GCOMP_F32;
    }
    if (advise &&
        train_advise(&desc.comm, tensors, m->tensors, transformer_clock, desc.optimizer))
        return NULL;
    desc.codec = advise ? "none" : codec;
    desc.why = why;
    desc.why_capacity = sizeof why;
    if (gcomp_open(&gc, &desc) != GCOMP_OK) {
        if (desc.comm.rank == 0) fprintf(stderr, "%s: %s\n", codec, why);
        return NULL;
    }
    for (size_t t = 0; t < m->tensors; t++) {
        if (gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK) continue;
        fprintf(stderr, "worker %d: %s: %s\n", desc.comm.rank, codec, gcomp_error(gc));
        gcomp_close(gc);
        return NULL;
    }
    return gc;
}

static inline void transformer_optimizer_close(transformer_optimizer *o)
{
    gcomp_close(o->gc);
    gcomp_close(o->exact);
    free(o->m);
    free(o->v);
    free(o->own);
    free(o->next);
    free(o->half);
    memset(o, 0, sizeof *o);
}

/* o->kind, model and numbers are set. desc->codec: of adam1bit "A|B"; or "advise". Returns 0, or 1 after
   saying what is wrong. */
static inline int transformer_optimizer_open(transformer_optimizer *o, const gcomp_desc *desc,
                                             int halves)
{
    const char *codec = desc->codec, *bar = o->kind == BY_ADAM1BIT ? strchr(codec, '|') : NULL;
    const size_t count = o->model->count;
    char exact[128] = "none";
    gcomp_desc plain = *desc;
    if (bar) snprintf(exact, sizeof exact, "%.*s", (int)(bar - codec), codec);
    plain.schedule = NULL;
    o->gc = transformer_gcomp(o->model, *desc, bar ? bar + 1 : codec, halves);
    if (o->kind == BY_ADAM1BIT) o->exact = transformer_gcomp(o->model, plain, exact, halves);
    o->m = train_floats(count);
    o->v = train_floats(count);
    o->own = train_floats(count);
    o->next = train_floats(count);
    o->half = halves ? (uint16_t *)calloc(count, sizeof(uint16_t)) : NULL;
    if (!o->gc || (o->kind == BY_ADAM1BIT && !o->exact) || !o->m || !o->v || !o->own || !o->next ||
        (halves && !o->half)) {
        transformer_optimizer_close(o);
        return 1;
    }
    return 0;
}

#endif /* TRANSFORMER_OPTIMIZERS_H */
