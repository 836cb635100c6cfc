/* transformer.c - compressed gradients where people train: a small GPT-2 (0.8 million parameters)
   learns the characters of a text with AdamW, or with an optimizer that is made for compression.

   Shows     gcomp_exchange with fp32 or bf16 gradients under AdamW: warm-up of the rate, cosine
             decay, clipping behind the exchange; 1-bit Adam, Signum and DeMo over the library;
             a checkpoint, and what happens when the gradient of a worker is not a number
   Leaves    dropout, evaluation during training, data loading in the background
   Build     cc -O2 -I. -Iexamples/adapters examples/transformer/transformer.c gcomp_impl.c -o build/transformer -lopenblas -lz -lm
             -pthread
             mpicc -DUSE_MPI ... -o build/transformer_mpi: with MPI as a transport too
   Run       build/transformer [OPTION]...    the options are listed in transformer_options.h
   Read on   transformer_optimizers.h: the four optimizers; transformer_model.h: the model

   gcomp_impl.c is any file with #define GCOMP_IMPLEMENTATION and #include "gcomp.h". */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "gcomp_recover.h"
#include "../train/train_after.h"
#include "../train/train_meter.h"
#include "transformer_checkpoint.h"
#include "transformer_options.h"
#include "transformer_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECAY 0.1f   /* of matrices */
#define WARM 0.1     /* of the steps: the rate rises, and adam1bit exchanges gradients */
#define FINAL 0.1    /* of the rate, at the end of the cosine */
#define SMOOTH 0.05f /* of the loss that the bar shows */

/* What all workers of a process share. */
typedef struct job {
    const transformer_options *options;
    const transformer_text *text;
    train_result result; /* of worker 0 */
} job;

/* A worker. */
typedef struct worker {
    const transformer_options *options;
    const transformer_text *text;
    const gcomp_comm *comm;
    meter m;
    transformer model;
    transformer_optimizer optimizer;
    unsigned char *in, *out; /* [R]: the batch */
    float *loss;             /* [steps] */
    uint64_t first;          /* step: 0, or that of a checkpoint */
    size_t skipped;
} worker;

/* The learning rate of a step: up in a straight line, down as half a cosine. */
static float rate_of(const transformer_options *o, size_t step)
{
    const double warm = WARM * (double)o->steps, at = (double)step;
    double rate;
    if (at < warm) return o->rate * (float)((at + 1) / (warm + 1));
    rate = 0.5 + 0.5 * cos(3.14159265358979 * (at - warm) / ((double)o->steps - warm));
    return o->rate * (float)(FINAL + (1 - FINAL) * rate);
}

/* Returns 0, or 1 after saying what is wrong. */
static int open_worker(worker *w, gcomp_comm *metered)
{
    const transformer_options *o = w->options;
    const size_t r = o->shape.batch * o->shape.context;
    transformer_shape shape = o->shape;
    gcomp_desc desc = {0};
    char list[256];
    shape.characters = w->text->characters;
    *metered = meter_comm(&w->m, w->comm);
    w->in = (unsigned char *)calloc(2 * r, 1);
    w->out = w->in + r;
    w->loss = train_floats(o->steps);
    if (!w->in || !w->loss || transformer_open(&w->model, &shape, o->seed)) {
        fprintf(stderr, "worker %d: no memory\n", w->comm->rank);
        return 1;
    }
    train_name_method(&desc, o->method, list, sizeof list);
    if (!strcmp(o->method, "advise")) desc.codec = o->method;
    desc.comm = *metered;
    desc.aggregate = o->aggregate;
    desc.seed = o->seed;
    desc.optimizer = o->kind == BY_ADAMW ? GCOMP_OPTIMIZER_ADAM : GCOMP_OPTIMIZER_UNKNOWN;
    w->optimizer.kind = (transformer_kind)o->kind;
    w->optimizer.model = &w->model;
    w->optimizer.first = (uint64_t)(WARM * (double)o->steps) + 1;
    w->optimizer.refresh = o->refresh;
    w->optimizer.decay = DECAY;
    w->optimizer.sign_rate = o->sign_rate;
    if (transformer_optimizer_open(&w->optimizer, &desc, o->halves)) return 1;
    w->m.sent = w->m.received = w->m.calls = w->m.seconds = 0; /* of the advice */
    return o->checkpoint && !o->save_at &&
        transformer_resume(&w->optimizer, &w->first, o->checkpoint, w->comm->rank);
}

static void close_worker(worker *w)
{
    transformer_optimizer_close(&w->optimizer);
    transformer_close(&w->model);
    free(w->in);
    free(w->loss);
}

/* Prints what there is, what the exchange sends, and what is known against it. */
static void describe(const worker *w)
{
    char text[16384], *sums;
    const transformer_options *o = w->options;
    gcomp_describe(w->optimizer.gc, text, sizeof text);
    sums = strstr(text, " tensors: "); /* the line behind those of each tensor */
    while (sums && sums > text && sums[-1] != '\n') sums--;
    printf("%zu characters of %zu kinds; %zu parameters; %d workers, %zu x %zu characters each, "
           "%zu steps\n%s: %s\n",
           w->text->length, w->text->characters, w->model.count, w->comm->world, o->shape.batch,
           o->shape.context, o->steps, o->label, sums ? sums : "");
    fflush(stdout);
}

/* The training loop. Returns 0, or 1 after saying what is wrong. */
static int train_steps(worker *w, const gcomp_comm *comm, train_result *r)
{
    const transformer_options *o = w->options;
    transformer_optimizer *opt = &w->optimizer;
    float *const state[3] = {w->model.weights, opt->m, opt->v};
    const size_t count[3] = {w->model.count, w->model.count, w->model.count};
    gcomp_recover recover = {0};
    double compute = 0, exchange = 0, begin = train_clock(), wire[2] = {0, 0};
    float shown = 0;
    recover.comm = *comm;
    recover.state = state;
    recover.count = count;
    recover.states = 3;
    train_interface(o->interface, wire);
    for (size_t step = w->first; step < o->steps; step++) {
        double t0 = train_seconds(), t1, t2;
        gcomp_step how = GCOMP_STEP;
        gcomp_result result;
        gcomp *gc = transformer_is_exact(opt) ? opt->exact : opt->gc;
        if (o->save_at && step == o->save_at &&
            transformer_save(opt, step, o->checkpoint, comm->rank))
            return 1;
        how.epoch = (uint32_t)(20 * step / o->steps);
        transformer_draw(w->text, &w->model.shape, o->seed, step, (uint64_t)comm->rank, w->in,
                         w->out);
        w->loss[step] = (float)transformer_loss(&w->model, w->in, w->out);
        transformer_backward(&w->model, w->in, w->out);
        if (o->nan && step == o->nan && comm->rank == comm->world - 1)
            w->model.gradients[w->model.tensor[2].begin] = NAN;
        t1 = train_seconds();
        result = transformer_exchange(opt, &how);
        if (gcomp_recover_after(&recover, gc, result)) return 1;
        t2 = train_seconds();
        if (result == GCOMP_OK) transformer_update(opt, rate_of(o, step));
        else w->skipped++; /* all workers skip this batch */
        compute += train_seconds() - t2 + t1 - t0;
        exchange += t2 - t1;
        r->sent[step] = w->m.sent;
        r->seconds[step] = train_clock() - begin;
        shown = step > w->first ? shown + (w->loss[step] - shown) * SMOOTH : w->loss[step];
        if (comm->rank == 0 && step % 10 == 9 && step + 1 < o->steps)
            train_bar(o->label, step + 1, o->steps, (double)shown, r->sent[step], 0);
    }
    for (int i = 0; i < 2; i++) r->wire[i] = 0 - wire[i];
    train_interface(o->interface, r->wire);
    r->compute_seconds = compute / (double)(o->steps - w->first);
    r->codec_seconds = (exchange - w->m.seconds) / (double)(o->steps - w->first);
    return 0;
}

/* What the workers find out together after the training. Returns 0, or 1 after saying what is
   wrong. */
static int judge(worker *w, train_result *r)
{
    const double steps = (double)(w->options->steps - w->first);
    gcomp_statistics stats[2] = {{0}, {0}};
    r->bytes = w->m.sent / steps;
    r->received = w->m.received / steps;
    r->calls = w->m.calls / steps;
    if (gcomp_stats(w->optimizer.gc, &stats[0]) != GCOMP_OK ||
        (w->optimizer.exact && gcomp_stats(w->optimizer.exact, &stats[1]) != GCOMP_OK))
        return 1;
    r->reported = (double)(stats[0].bytes_out + stats[1].bytes_out) / steps;
    return transformer_validate(&w->model, w->text, w->comm, w->in, w->out, &r->final_loss,
                                &r->accuracy) ||
        train_compare_all(w->model.weights, w->model.count, w->comm, w->loss, r);
}

/* All that a worker does. Returns 0, or 1 after saying what is wrong. */
static int work(void *of, const gcomp_comm *comm)
{
    job *j = (job *)of;
    const transformer_options *o = j->options;
    double *figures = (double *)calloc(2 * o->steps, sizeof *figures);
    float *mean = train_floats(o->steps);
    train_result r = {0};
    gcomp_comm metered;
    worker w;
    int error;
    memset(&w, 0, sizeof w);
    w.options = o;
    w.text = j->text;
    w.comm = comm;
    r.codec = o->label;
    r.steps = o->steps;
    r.loss = mean;
    r.sent = figures;
    r.seconds = figures + o->steps;
    error = !figures || !mean || open_worker(&w, &metered);
    if (!error && comm->rank == 0 && !o->bare) describe(&w);
    if (!error) error = train_steps(&w, &metered, &r) || judge(&w, &r);
    if (!error && comm->rank == 0) {
        train_bar(o->label, o->steps, o->steps, r.final_loss, r.sent[o->steps - 1], 1);
        printf("validation loss %.4f, %.2f %% of the characters right; %zu steps skipped; replicas "
               "%s, %016llx\n",
               r.final_loss, 100 * r.accuracy, w.skipped, r.identical ? "identical" : "DIFFERENT",
               (unsigned long long)r.digest);
        if (!o->bare) printf("%.2f ms computation, %.2f ms codec, %.0f bytes a step\n",
                             1e3 * r.compute_seconds, 1e3 * r.codec_seconds, r.bytes);
        error = !r.identical;
        if (w.first == 0) error |= train_csv(&r, 1, o->out) | train_runs_csv(&r, 1, o->out);
        if (!o->bare && o->sample) {
            printf("\nThe model writes:\n");
            transformer_write(&w.model, j->text, o->sample, o->seed, w.in, w.out);
        }
        j->result = r;
    }
    close_worker(&w);
    free(figures);
    free(mean);
    return error;
}

int main(int argc, char **argv)
{
    transformer_options o;
    transformer_text text = {0};
    job j;
    int status;
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(1); /* the workers share the cores already */
#endif
    memset(&j, 0, sizeof j);
    j.options = &o;
    j.text = &text;
    if ((status = transformer_read_options(&o, argc, argv)) != 0) return status;
    if (train_workers_begin(&o.workers, TRAIN_WORKERS)) return 1;
    status = transformer_load(&text, o.text);
    status = status || train_workers_run(&o.workers, work, &j);
    status = train_workers_end(&o.workers, status);
    free(text.bytes);
    return status;
}
