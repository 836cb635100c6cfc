/* train_pattern.h - what outer.c, delayed.c, gossip.c and leader.c share: their workers train the
   images over any transport of train.c, row by row of a table; then each row is judged, and its
   curves are written for a picture.

   Command line: --seeds N, --steps N, --workers N, --method ROW (only this row and the one it is
   compared with; may be given again), --hidden A,B, --rate R, --transport, --rank, --root, --text,
   --out: as train_options.h says. */

#ifndef TRAIN_PATTERN_H
#define TRAIN_PATTERN_H

#include "gcomp.h"
#include "../train/train_after.h"
#include "../train/train_job.h"
#include "../train/train_meter.h"
#include "../train/train_workers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_BATCH = 32, PATTERN_STEPS = 600, PATTERN_ROWS = 16 };
enum { PATTERN_JUDGED = 20000 }; /* training samples on which the weights at the end are judged */
enum { PATTERN_TENSORS = 2 * TRAIN_LAYERS };

struct pattern_worker;

/* A row of the table: how to train, and what is expected of it. */
typedef struct pattern {
    const char *name;
    const char *codec; /* of what is exchanged */
    int (*train)(struct pattern_worker *w, const struct pattern *p); /* 0, or 1 after a sentence */
    int adam;          /* the local optimizer is AdamW, else SGD */
    double with[5];    /* numbers for train, see each example */
    const char *beside; /* the row that it is compared with; NULL: the first */
    double most;       /* its loss is at most so many percent above that one's; 0: no bar */
    double below;      /* its loss is at most that; 0: no bar */
    double spread;     /* its workers' weights differ by at most that (pattern_spread); 0: no bar */
    double fewer;      /* it sends so many times fewer bytes than the first row; 0: no bar */
} pattern;

/* What a worker has in one run. */
typedef struct pattern_worker {
    const train_options *options;
    const train_data *data;
    const train_workers *workers;
    const gcomp_comm *plain; /* the transport */
    gcomp_comm comm;         /* the same, with a meter */
    meter m;
    train_net net; /* net.parameters: the weights that the worker trains */
    float *first, *second; /* moments of AdamW */
    float rate;
    int adam;
    uint64_t seed;
    size_t steps, step, local; /* of the run; taken so far; of AdamW since its moments were 0 */
    double rounds;  /* how often the worker has waited for others, or could have */
    double begin, began; /* by the clock; seconds of the processor */
    train_result r;
    double *waited;   /* [steps] rounds so far */
    double *computed; /* [steps] seconds of the processor so far, without the transport */
    double loss;    /* of the weights at the end, over PATTERN_JUDGED training samples */
    double spread;  /* of the workers' weights at the end, see pattern_spread */
} pattern_worker;

static int pattern_say(const pattern_worker *w, const char *what, gcomp_result result)
{
    fprintf(stderr, "worker %d, step %zu: %s: %s\n", w->comm.rank, w->step, what,
            gcomp_result_string(result));
    return 1;
}

/* The gradient of the next batch, at the weights now; each worker and step has its own batch. */
static void pattern_gradient(pattern_worker *w)
{
    const size_t world = (size_t)w->comm.world;
    train_draw(&w->net, w->data, w->seed, w->step * world + (size_t)w->comm.rank);
    w->r.loss[w->step] = train_gradients(&w->net);
}

/* The local optimizer: weights x and gradient g of the net. AdamW: beta 0.9 and 0.999, decay 0.01
   (Loshchilov, Hutter 2019). */
static void pattern_local(pattern_worker *w)
{
    const float *g = w->net.gradients;
    float *x = w->net.parameters, a = w->rate, one, two;
    if (!w->adam) {
        for (size_t i = 0; i < w->net.count; i++) x[i] -= a * g[i];
        return;
    }
    w->local++;
    one = 1 - powf(0.9f, (float)w->local);
    two = 1 - powf(0.999f, (float)w->local);
    for (size_t i = 0; i < w->net.count; i++) {
        w->first[i] += 0.1f * (g[i] - w->first[i]);
        w->second[i] += 0.001f * (g[i] * g[i] - w->second[i]);
        x[i] -= a * (w->first[i] / one / (sqrtf(w->second[i] / two) + 1e-8f) + 0.01f * x[i]);
    }
}

/* Clears the state of the local optimizer: for weights that were set anew. */
static inline void pattern_forget(pattern_worker *w)
{
    memset(w->first, 0, w->net.count * sizeof(float));
    memset(w->second, 0, w->net.count * sizeof(float));
    w->local = 0;
}

/* Ends a step of the worker: notes bytes, rounds and seconds so far. */
static void pattern_next(pattern_worker *w)
{
    w->r.sent[w->step] = w->m.sent;
    w->waited[w->step] = w->rounds;
    w->computed[w->step] = train_seconds() - w->began - w->m.seconds;
    w->r.seconds[w->step] = train_clock() - w->begin;
    w->step++;
    if (w->comm.rank == 0 && w->step % 20 == 0 && w->step < w->steps)
        train_bar(w->r.codec, w->step, w->steps, (double)w->r.loss[w->step - 1], w->m.sent, 0);
}

/* Synchronous training, for comparison: the mean gradient in each step. */
static int pattern_synchronous(pattern_worker *w, const pattern *p)
{
    void *grads[PATTERN_TENSORS];
    gcomp_desc desc = {0};
    gcomp *gc = NULL;
    gcomp_result result;
    desc.codec = p->codec;
    desc.comm = w->comm;
    result = gcomp_open(&gc, &desc);
    for (size_t t = 0; t < PATTERN_TENSORS && result == GCOMP_OK; t++) {
        char name[8];
        gcomp_tensor tensor = {0};
        snprintf(name, sizeof name, "%s%zu", t % 2 ? "bias" : "fc", t / 2);
        tensor.name = name;
        tensor.rows = w->net.width[t / 2 + t % 2];
        tensor.cols = t % 2 ? 0 : w->net.width[t / 2 + 1];
        grads[t] = t % 2 ? w->net.bias_gradient[t / 2] : w->net.weight_gradient[t / 2];
        result = gcomp_add_tensor(gc, &tensor);
    }
    while (w->step < w->steps && result == GCOMP_OK) {
        pattern_gradient(w);
        result = gcomp_exchange(gc, grads, NULL);
        if (result == GCOMP_OK) pattern_local(w);
        w->rounds++;
        pattern_next(w);
    }
    gcomp_close(gc);
    return result == GCOMP_OK ? 0 : pattern_say(w, p->name, result);
}

/* ---------------- runs */

typedef struct pattern_job {
    const train_options *options;
    const train_data *data;
    train_workers *workers;
    const pattern *rows[PATTERN_ROWS];
    size_t count;
    float sgd, adam; /* learning rates */
    train_result results[PATTERN_ROWS * TRAIN_SEEDS]; /* of worker 0: row after row of a seed */
    double *waited[PATTERN_ROWS * TRAIN_SEEDS], *computed[PATTERN_ROWS * TRAIN_SEEDS];
    double spread[PATTERN_ROWS * TRAIN_SEEDS], loss[PATTERN_ROWS * TRAIN_SEEDS];
} pattern_job;

/* mean[n] <- the mean of the workers' weights. Returns their consensus distance: the mean square of
   what a worker's weights are off that mean, over the mean square of the mean. */
static double pattern_spread(const float *all, size_t world, size_t n, float *mean)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t w = 0; w < world; w++) sum += (double)all[w * n + i] / (double)world;
        for (size_t w = 0; w < world; w++)
            off += ((double)all[w * n + i] - sum) * ((double)all[w * n + i] - sum) / (double)world;
        size += sum * sum;
        mean[i] = (float)sum;
    }
    return off / size;
}

/* The mean loss of the weights over the first PATTERN_JUDGED training samples, which the workers
   share; -1 if the transport failed. */
static double pattern_loss(pattern_worker *w)
{
    const size_t world = (size_t)w->comm.world, rank = (size_t)w->comm.rank;
    const size_t most = w->data->count < PATTERN_JUDGED ? w->data->count : PATTERN_JUDGED;
    const size_t batches = most / PATTERN_BATCH;
    double sum = 0, total = 0, *all = (double *)calloc(world, sizeof *all);
    for (size_t b = rank; b < batches; b += world) {
        for (size_t s = 0; s < PATTERN_BATCH; s++)
            w->net.label[s] = train_sample(w->data, b * PATTERN_BATCH + s,
                                           w->net.x[0] + s * w->data->inputs);
        train_forward(&w->net);
        sum += (double)train_loss(&w->net, w->net.delta[0]) / (double)batches;
    }
    if (!all || w->plain->allgather(w->plain->user, &sum, all, sizeof sum)) total = -1;
    for (size_t k = 0; k < world && total >= 0; k++) total += all[k];
    free(all);
    return total;
}

/* One run. Results of worker 0 go to place `at` of the job. */
static int pattern_run(pattern_worker *w, pattern_job *j, const pattern *p, size_t at)
{
    const size_t n = w->net.count, world = (size_t)w->comm.world, last = w->steps / 10;
    float *all = train_floats(world * n);
    int error = !all;
    w->comm = meter_comm(&w->m, w->plain);
    w->r.codec = p->name;
    w->r.loss = train_floats(w->steps);
    w->r.sent = (double *)calloc(4 * w->steps, sizeof(double));
    error = error || !w->r.loss || !w->r.sent;
    w->r.seconds = w->r.sent + w->steps;
    w->waited = w->r.seconds + w->steps;
    w->computed = w->waited + w->steps;
    w->adam = p->adam;
    w->rate = j->options->rate > 0 ? j->options->rate : p->adam ? j->adam : j->sgd;
    w->step = 0;
    w->spread = 0;
    w->rounds = 0;
    w->begin = train_clock();
    w->began = train_seconds();
    train_net_init(&w->net, w->seed, j->data->active);
    pattern_forget(w);
    error = error || p->train(w, p);
    w->r.steps = w->steps;
    w->r.bytes = w->m.sent / (double)w->steps;
    /* A peer that is not the group's may be gone: gossip goes on, and only the figures are less. */
    error = error || w->plain->allgather(w->plain->user, w->net.parameters, all, n * sizeof(float));
    error = error || train_compare(&w->net, w->plain, w->r.loss, &w->r);
    if (!error) {
        /* what is judged is the mean of the workers' weights: where all are equal, those */
        if (!w->r.identical) w->spread = pattern_spread(all, world, n, w->net.parameters);
        w->r.accuracy = train_accuracy(&w->net, w->data, w->plain);
        w->loss = pattern_loss(w);
        error = w->r.accuracy < 0 || w->loss < 0;
        w->r.final_loss = 0;
        for (size_t s = w->steps - last; s < w->steps; s++)
            w->r.final_loss += (double)w->r.loss[s] / (double)last;
        if (w->comm.rank == 0)
            train_bar(p->name, w->steps, w->steps, w->r.final_loss, w->m.sent, 1);
    }
    free(all);
    if (w->comm.rank == 0) {
        j->results[at] = w->r;
        j->waited[at] = w->waited;
        j->computed[at] = w->computed;
        j->spread[at] = w->spread;
        j->loss[at] = w->loss;
        return error;
    }
    free(w->r.loss);
    free(w->r.sent);
    return error;
}

/* All runs of one worker. */
static int pattern_work(void *of, const gcomp_comm *comm)
{
    pattern_job *j = (pattern_job *)of;
    const train_options *o = j->options;
    size_t width[TRAIN_LAYERS + 1] = {j->data->inputs, o->hidden[0] ? o->hidden[0] : 96,
                                      o->hidden[1] ? o->hidden[1] : 64, j->data->classes};
    pattern_worker w;
    int error;
    memset(&w, 0, sizeof w);
    w.options = o;
    w.data = j->data;
    w.workers = j->workers;
    w.plain = comm;
    w.comm = *comm;
    w.steps = o->steps;
    error = train_net_open(&w.net, width, PATTERN_BATCH);
    w.first = train_floats(w.net.count);
    w.second = train_floats(w.net.count);
    error = error || !w.first || !w.second;
    if (error) fprintf(stderr, "worker %d: no memory\n", comm->rank);
    if (!error && comm->rank == 0)
        printf("%s, %zu parameters, %d workers, batch %d each, %zu steps\n", j->data->what,
               w.net.count, comm->world, PATTERN_BATCH, o->steps);
    for (size_t s = 0; s < o->seeds; s++)
        for (size_t i = 0; i < j->count && !error; i++) {
            w.seed = o->seed + s;
            error = pattern_run(&w, j, j->rows[i], s * j->count + i);
        }
    train_net_close(&w.net);
    free(w.first);
    free(w.second);
    return error;
}

/* ---------------- report */

/* The curves of a row, means over the seeds, for gnuplot: a block of lines of step, rounds, bytes,
   seconds, loss (exponential mean of 25 steps) and seconds of the processor without the transport,
   with the row's name first. */
static int pattern_curves(const pattern_job *j, const char *program)
{
    char name[64], path[512];
    FILE *file;
    snprintf(name, sizeof name, "pattern-%s.dat", program);
    file = train_create(j->options->out, name, path, sizeof path);
    for (size_t i = 0; file && i < j->count; i++) {
        double smooth = 0;
        fprintf(file, "%s\"%s\"\n", i ? "\n\n" : "", j->rows[i]->name);
        for (size_t s = 0; s < j->options->steps; s++) {
            double of[5] = {0, 0, 0, 0, 0};
            for (size_t k = 0; k < j->options->seeds; k++) {
                const train_result *r = &j->results[k * j->count + i];
                const double seeds = (double)j->options->seeds;
                of[0] += j->waited[k * j->count + i][s] / seeds;
                of[1] += r->sent[s] / seeds;
                of[2] += r->seconds[s] / seeds;
                of[3] += (double)r->loss[s] / seeds;
                of[4] += j->computed[k * j->count + i][s] / seeds;
            }
            smooth += (of[3] - smooth) * (s < 25 ? 1.0 / (double)(s + 1) : 0.04);
            fprintf(file, "%zu %.0f %.0f %.4f %.5f %.4f\n", s + 1, of[0], of[1], of[2], smooth,
                    of[4]);
        }
    }
    if (file && fclose(file) == 0) printf("%s: the curves\n", path);
    return file == NULL;
}

static size_t pattern_find(const pattern_job *j, const char *name)
{
    size_t i = 0;
    while (name && i < j->count && strcmp(j->rows[i]->name, name)) i++;
    return name && i < j->count ? i : 0;
}

/* The mean over the seeds of the loss at the end. */
static double pattern_mean_loss(const pattern_job *j, size_t row)
{
    double sum = 0;
    for (size_t k = 0; k < j->options->seeds; k++) sum += j->loss[k * j->count + row];
    return sum / (double)j->options->seeds;
}

/* Says what is expected of a row, and if it is so. Returns 1 if it is not. Bars are those of the
   images and PATTERN_STEPS steps. Rows of one pattern are compared by their batches, which are many
   and so have little noise. Where a pattern is compared with synchronous training, the weights at
   the end count: the batches of workers that differ are judged at weights that nobody will use. */
static int pattern_judge(const pattern_job *j, const pattern *p, double loss, double other,
                         double fewer, double spread)
{
    const int bars = p->most > 0 || p->below > 0 || p->fewer > 0 || p->spread > 0;
    const int ok = (!(p->most > 0) || loss <= other * (1 + p->most / 100)) &&
        (!(p->below > 0) || loss <= p->below) && fewer >= p->fewer &&
        (!(p->spread > 0) || spread <= p->spread);
    if (!bars || j->options->steps != PATTERN_STEPS || !j->data->pixels) return 0;
    printf("  %s:", ok ? "ok" : "MISSED");
    if (p->most > 0 && p->beside)
        printf(" batches %+.2f %% of %s, at most %.3g", 100 * (loss / other - 1), p->beside,
               p->most);
    if (p->most > 0 && !p->beside) printf(" at most %.3g %%", p->most);
    if (p->below > 0) printf(" batches at most %.4g", p->below);
    if (p->spread > 0) printf(" spread at most %.0e", p->spread);
    if (p->fewer > 0) printf(" %.4g times fewer bytes", p->fewer);
    return !ok;
}

/* The table: means over the seeds. Returns how many bars were missed. */
static int pattern_table(const pattern_job *j)
{
    const size_t seeds = j->options->seeds, steps = j->options->steps;
    const double none = train_mean_of(j->results, j->count, seeds, 0).bytes;
    int missed = 0;
    printf("\nMeans over %zu seed%s. Bytes: sent by worker 0 in the whole run. Loss: of the weights\n"
           "at the end, or where workers differ of their mean, over %d training samples; beside\n"
           "it how far it is above that of the first row. Batches: the loss while training, last\n"
           "tenth of the steps. Spread: square of the distance of a worker's weights from that mean,\n"
           "over the square of the mean.\n\n",
           seeds, seeds > 1 ? "s" : "", PATTERN_JUDGED);
    printf("%-40s %6s %9s %7s %7s %8s %8s %9s %7s\n", "", "rounds", "bytes", "fewer", "loss", "",
           "batches", "accuracy", "spread");
    for (size_t i = 0; i < j->count; i++) {
        const pattern *p = j->rows[i];
        const size_t other = pattern_find(j, p->beside);
        const train_mean m = train_mean_of(j->results, j->count, seeds, i);
        const double loss = pattern_mean_loss(j, i), first = pattern_mean_loss(j, 0);
        double spread = 0;
        for (size_t k = 0; k < seeds; k++)
            spread = j->spread[k * j->count + i] > spread ? j->spread[k * j->count + i] : spread;
        printf("%-40s %6.0f %8.2fM %6.1fx %7.4f %+7.2f%% %8.4f %8.2f%% %7.0e", p->name,
               j->waited[i][steps - 1], m.bytes * (double)steps * 1e-6, none / m.bytes, loss,
               100 * (loss / first - 1), m.loss, m.accuracy, spread);
        missed += p->beside || p->below > 0
            ? pattern_judge(j, p, m.loss, train_mean_of(j->results, j->count, seeds, other).loss,
                            none / m.bytes, spread)
            : pattern_judge(j, p, loss, first, none / m.bytes, spread);
        printf("\n");
    }
    return missed;
}

/* Takes the rows that --method names with those beside them, in the table's order. */
static int pattern_choose(pattern_job *j, const pattern *rows, size_t count)
{
    const train_options *o = j->options;
    unsigned take = o->method_count ? 0 : ~0u;
    for (size_t k = 0; k < o->method_count; k++) {
        size_t i = 0;
        while (i < count && strcmp(rows[i].name, o->methods[k])) i++;
        if (i == count) {
            fprintf(stderr, "--method %s: the rows are\n", o->methods[k]);
            for (i = 0; i < count; i++) fprintf(stderr, "    %s\n", rows[i].name);
            return 2;
        }
        take |= 1u << i;
        if (!o->alone) take |= 1u;
        for (size_t b = 0; b < count && rows[i].beside && !o->alone; b++)
            if (!strcmp(rows[b].name, rows[i].beside)) take |= 1u << b;
    }
    for (size_t i = 0; i < count; i++)
        if (take >> i & 1) j->rows[j->count++] = &rows[i];
    return 0;
}

static const char pattern_usage[] =
    "    --method ROW           this row and the one it is compared with; may be given again\n"
    "    --alone                the rows named, and no others\n"
    "    --seeds 1.." ARGS_TEXT(TRAIN_SEEDS) ", --steps N, --rate R, --hidden A,B, --text FILE\n"
    "    --workers 1.." ARGS_TEXT(TRAIN_WORKERS) ", --transport " TRAIN_TRANSPORTS ", --rank N --root HOST:PORT\n"
    "    --out DIR              where files go; build if it is not given\n"
    "The rows are:\n";

/* The main function of an example. rows[0] is what bytes are compared with. Returns the exit
   status; bars that were missed are one. */
static int pattern_main(int argc, char **argv, const char *program, const pattern *rows,
                        size_t count, int world, float sgd, float adam)
{
    static pattern_job j; /* large */
    static train_options o;
    train_data data;
    int status;
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(1);
#endif
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            printf("usage: %s [OPTION]...\n%s", program, pattern_usage);
            for (size_t r = 0; r < count; r++) printf("    %s\n", rows[r].name);
            return 0;
        }
    memset(&o, 0, sizeof o);
    o.workers.world = world;
    o.workers.rank = -1;
    o.seed = o.seeds = 1;
    o.steps = PATTERN_STEPS;
    o.out = "build";
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int wrong;
        if (!strcmp(argv[i], "--alone")) {
            o.alone = 1;
            continue;
        }
        wrong = train_option(&o, argv[i], value);
        if (wrong) return args_wrong(argv[0], argv[i], wrong == 2 ? NULL : value);
        i++;
    }
    j.options = &o;
    j.data = &data;
    j.workers = &o.workers;
    j.sgd = sgd;
    j.adam = adam;
    memset(&data, 0, sizeof data);
    if ((status = pattern_choose(&j, rows, count)) != 0) return status;
    if (train_workers_begin(&o.workers, TRAIN_WORKERS)) return 1;
    status = train_load(&data, o.text, o.workers.rank);
    status = status || train_workers_run(&o.workers, pattern_work, &j);
    if (!status && o.workers.rank == 0) {
        status = pattern_table(&j) != 0;
        status |= pattern_curves(&j, program);
    }
    status = train_workers_end(&o.workers, status);
    for (size_t i = 0; i < j.count * o.seeds; i++) {
        free(j.results[i].loss);
        free(j.results[i].sent);
    }
    train_data_free(&data);
    return status;
}

#endif /* TRAIN_PATTERN_H */
