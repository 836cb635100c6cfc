/* train.c - does compressed training train? Four workers train an image classifier of 535,818 parameters,
   first uncompressed, then with each method from the same weights on the same batches; a table and a plot
   compare them.

   Shows     gcomp_exchange in a real training loop, and what is gained on which link
   Leaves    evaluation during training, checkpoints, data loading in the background
   Build     cc -O2 -I. examples/train.c gcomp_impl.c -o build/train -lopenblas -lz -lm -pthread
             mpicc -DUSE_MPI ... -o build/train_mpi: with MPI as a transport too
   Run       build/train [--workers N] [--steps N | --epochs N] [--method CODEC|all]... [--seed S] [--out DIR]
                         [--text FILE] [--accuracy | --accordion | --dgc | --errors] [--seeds N]
                         [--transport threads|sockets|mpi] [--rank R --root HOST:PORT] [--in-order]
                         [--hidden A,B] [--rate R] [--interface NAME] [--no-pictures] [--aggregate WAY] [--alone]
             --transport threads: workers are threads. sockets: processes, all of them here, or with --rank one of
             them, which meets the others where rank 0 listens; all need the same GCOMP_SECRET in the environment, or
             none. mpi: ranks, with mpirun -n 4 build/train_mpi;
             --in-order gives its sums the bits of the others
             --hidden: widths of the hidden layers; --rate: one learning rate for all steps; --interface: bytes of a
             network interface go into runs.csv beside those that were counted here
             --aggregate gather|shards|two-shot: how payloads become a mean, see gcomp_aggregate
             --alone trains with the methods named, not uncompressed first; the table compares with the first of them
             A method is a codec, or a list with its schedule: --method 'powersgd:rank=4|powersgd:rank=1@accordion:every=1',
             or advise: tensor by tensor what gcomp_advise finds, mostly nothing where workers are threads
             --accordion trains with powersgd of rank 4, and of 4 or 1 as accordion chooses, over three seeds; the
             learning rate is in gcomp_step.scale
             --errors trains uncompressed only, and shows bits and error of every codec on a gradient of that
             --dgc trains 20 epochs: uncompressed, with dgc three ways, and with as few elements of plain top-k; the
             learning rate, half a cosine, is in gcomp_step.scale

   gcomp_impl.c is any file with #define GCOMP_IMPLEMENTATION and #include "gcomp.h". */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "gcomp_recover.h"
#include "train_workers.h"
#include "train_advice.h"
#include "train_data.h"
#include "train_meter.h"
#include "train_methods.h"
#include "train_net.h"
#include "train_picture.h"
#include "train_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64 /* samples of a worker in a step */
/* Learning rates at the end of the warm-up, the same for all methods. Found by trial with 1200 steps: at
   higher ones uncompressed training learns faster, and what error feedback sends late falls further behind.
   */
#define IMAGE_RATE 0.0035f
#define TEXT_RATE 0.015f
#define DGC_RATE 0.05f /* in 20 epochs uncompressed training learns more with it than with .005, .01, .02 */
#define MOMENTUM 0.9f
#define MAX_WORKERS 64
#define MAX_RUNS 96
#define MAX_SEEDS 5

typedef struct options {
    const char *methods[MAX_RUNS];
    size_t method_count;
    train_workers workers;
    size_t steps;
    size_t epochs; /* if not 0, instead of steps */
    uint64_t seed;
    size_t seeds;
    const char *out;
    const char *text;
    int accuracy;
    int accordion; /* as accuracy, with other methods */
    int dgc;
    int errors; /* 1: what codecs lose of one gradient, without training with them */
    size_t hidden[2]; /* 0: by the data */
    float rate;       /* 0: with warm-up and decay */
    const char *interface;
    int no_pictures;
    int alone; /* the methods named, without an uncompressed run before them */
    gcomp_aggregate aggregate;
} options;

/* What every worker does, in order: the same list on all. results[i] is of plan[i]; only worker 0 writes
   there. */
typedef struct job {
    const options *options;
    const train_data *data;
    const char *codec[MAX_RUNS];
    uint64_t seed[MAX_RUNS];
    size_t runs;
    float *gradient;     /* of the first layer's weights, worker 0, halfway through the first run */
    train_points points; /* what codecs lose of it */
    train_result results[MAX_RUNS];
} job;

/* The codecs of a method, and the schedule behind an '@' if there is one. codec[capacity] holds them as long as
   the object is being opened. */
static void name_method(gcomp_desc *desc, const char *method, char *codec, size_t capacity)
{
    const char *at = strchr(method, '@');
    snprintf(codec, capacity, "%.*s", at ? (int)(at - method) : (int)strlen(method), method);
    desc->codec = codec;
    desc->schedule = at ? at + 1 : NULL;
}

static double wall_clock(void *user)
{
    (void)user;
    return train_clock();
}

/* Opens a gcomp for the six tensors of the network; `plain` is comm without a meter. Returns NULL after saying what is wrong. */
static gcomp *open_gcomp(const gcomp_comm *comm, const gcomp_comm *plain, const train_net *net, const char *codec, uint64_t seed,
                         gcomp_aggregate aggregate)
{
    static const char *const names[2 * TRAIN_LAYERS] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"};
    gcomp_tensor tensors[2 * TRAIN_LAYERS];
    gcomp_desc desc = {0};
    char why[256] = "", list[256];
    gcomp *gc;
    memset(tensors, 0, sizeof tensors);
    for (size_t t = 0; t < 2 * TRAIN_LAYERS; t++) {
        tensors[t].name = names[t];
        tensors[t].rows = net->width[t / 2 + t % 2];
        tensors[t].cols = t % 2 ? 0 : net->width[t / 2 + 1];
    }
    if (!strcmp(codec, "advise") && train_advise(plain, tensors, 2 * TRAIN_LAYERS, wall_clock))
        return NULL;
    name_method(&desc, strcmp(codec, "advise") ? codec : "none", list, sizeof list);
    desc.comm = *comm;
    desc.aggregate = aggregate;
    desc.seed = seed;
    desc.why = why;
    desc.why_capacity = sizeof why;
    if (gcomp_open(&gc, &desc) != GCOMP_OK) {
        if (comm->rank == 0)
            fprintf(stderr, "%s: %s\n", codec, why);
        return NULL;
    }
    for (size_t t = 0; t < 2 * TRAIN_LAYERS; t++) {
        if (gcomp_add_tensor(gc, &tensors[t]) != GCOMP_OK) {
            fprintf(stderr, "worker %d: %s: %s\n", comm->rank, codec, gcomp_error(gc));
            gcomp_close(gc);
            return NULL;
        }
    }
    return gc;
}

/* Says what each tensor has, and why; of many methods the sums alone. */
static void describe(const gcomp *gc, const char *codec, int whole)
{
    char text[4096], *line = text, *end;
    gcomp_describe(gc, text, sizeof text);
    while (!whole && (end = strchr(line, '\n')) && end[1])
        line = end + 1;
    printf("%s%s%s", codec, whole ? "\n" : ": ", line);
    fflush(stdout);
}

/* Linear warm-up over the first tenth, then to zero at the end: linearly, or as half a cosine. The same for all methods. */
static float learning_rate(float largest, size_t step, size_t steps, int cosine)
{
    float at = (float)(step + 1) / (float)(steps + 1), rest = (1.0f - at) / 0.9f;
    return largest * (at < 0.1f ? at / 0.1f : cosine ? 0.5f * (1.0f - cosf(3.14159265f * rest)) : rest);
}

/* The optimizer's momentum for each tensor: none where the codec keeps it itself. */
static void find_momentum(const gcomp *gc, float momentum[2 * TRAIN_LAYERS])
{
    for (size_t t = 0; t < 2 * TRAIN_LAYERS; t++) {
        char text[160];
        gcomp_codec_format(gcomp_tensor_codec(gc, t), text, sizeof text);
        momentum[t] = strncmp(text, "dgc", 3) && strncmp(text, "fetch", 5) ? MOMENTUM : 0.0f;
    }
}

static size_t steps_of_an_epoch(const train_data *data, size_t workers)
{
    size_t steps = data->count / (BATCH * workers);
    return steps ? steps : 1;
}

/* Fills the batch of a worker in a step: samples drawn with replacement, a function of the arguments alone.
   */
static void draw_batch(train_net *net, const train_data *data, uint64_t seed, size_t step,
                       const gcomp_comm *comm)
{
    uint64_t first = ((uint64_t)step * (uint64_t)comm->world + (uint64_t)comm->rank) * BATCH;
    for (size_t s = 0; s < BATCH; s++) {
        size_t sample = (size_t)(train_mix(train_mix(seed + 1000) + first + s) % data->count);
        net->label[s] = train_sample(data, sample, net->x[0] + s * data->inputs);
    }
}

/* Shares the test samples among the workers. Returns the accuracy of all of them, or -1 if the transport
   failed. */
static double test_accuracy(train_net *net, const train_data *data, const gcomp_comm *comm)
{
    size_t world = (size_t)comm->world, rank = (size_t)comm->rank;
    size_t begin = data->tests * rank / world, end = data->tests * (rank + 1) / world;
    double correct = 0, all[MAX_WORKERS], sum = 0;
    while (begin < end) {
        size_t count = end - begin < BATCH ? end - begin : BATCH;
        for (size_t s = 0; s < count; s++)
            net->label[s] = train_sample(data, data->count + begin + s, net->x[0] + s * data->inputs);
        correct += (double)train_correct(net, count);
        begin += count;
    }
    if (comm->allgather(comm->user, &correct, all, sizeof correct) != 0)
        return -1;
    for (size_t w = 0; w < world; w++)
        sum += all[w];
    return sum / (double)data->tests;
}

/* Gathers what all workers have after a run: parameters to compare, losses to average. Returns 0, or 1 on
   failure. */
static int compare_workers(const train_net *net, const gcomp_comm *comm, const float *loss, train_result *r)
{
    size_t world = (size_t)comm->world, most = net->count > r->steps ? net->count : r->steps;
    float *all = train_floats(world * most);
    int error = all == NULL;
    if (error)
        fprintf(stderr, "worker %d: no memory\n", comm->rank);
    else
        error = comm->allgather(comm->user, net->parameters, all, net->count * sizeof(float));
    r->identical = 1;
    r->digest = train_digest(net);
    for (size_t w = 0; !error && w < world; w++)
        r->identical &= memcmp(all + w * net->count, net->parameters, net->count * sizeof(float)) == 0;
    if (!error)
        error = comm->allgather(comm->user, loss, all, r->steps * sizeof(float));
    for (size_t s = 0; !error && s < r->steps; s++) {
        double sum = 0;
        for (size_t w = 0; w < world; w++)
            sum += (double)all[w * r->steps + s];
        r->loss[s] = (float)(sum / (double)world);
    }
    free(all);
    return error != 0;
}

/* The training loop. loss[steps] and sent[steps] are of this worker. Returns 0, or 1 after saying what is
   wrong. */
static int train_loop(train_net *net, const train_data *data, gcomp *gc, const gcomp_comm *comm, meter *m,
                      const job *j, uint64_t seed, train_result *r, float *loss)
{
    float *const state[2] = {net->parameters, net->momentum};
    const size_t count[2] = {net->count, net->count};
    gcomp_recover recover = {*comm, state, count, 2, 0};
    float *grads[2 * TRAIN_LAYERS], shown = 0;
    float most = !data->pixels ? TEXT_RATE : j->options->dgc ? DGC_RATE : IMAGE_RATE;
    float momentum[2 * TRAIN_LAYERS];
    double compute = 0, exchange = 0, begin, wire[2] = {0, 0};
    find_momentum(gc, momentum);
    for (size_t l = 0; l < TRAIN_LAYERS; l++) {
        grads[2 * l] = net->weight_gradient[l];
        grads[2 * l + 1] = net->bias_gradient[l];
    }
    train_interface(j->options->interface, wire);
    begin = train_clock();
    for (size_t step = 0; step < r->steps; step++) {
        double t0 = train_seconds(), t1, t2;
        float rate = j->options->rate > 0 ? j->options->rate : learning_rate(most, step, r->steps, j->options->dgc);
        gcomp_step how = {0};
        gcomp_result result;
        /* not said: how.learning_rate, which falls in every step here: accordion would never compress */
        how.epoch = (uint32_t)(step / steps_of_an_epoch(data, (size_t)comm->world));
        if (j->options->accordion) /* 1200 steps have five epochs, too few to look at: twelfths of the training */
            how.epoch = (uint32_t)(12 * step / r->steps);
        if (j->options->dgc || j->options->accordion) { /* what waits is of the rate it was made with */
            how.scale = rate;
            rate = 1;
        }
        draw_batch(net, data, seed, step, comm);
        loss[step] = train_gradients(net);
        if (r->gradient && step == r->steps / 2)
            memcpy(r->gradient, grads[0], net->width[0] * net->width[1] * sizeof(float));
        t1 = train_seconds();
        result = gcomp_exchange(gc, grads, &how);
        if (gcomp_recover_after(&recover, gc, result))
            return 1;
        t2 = train_seconds();
        if (result == GCOMP_OK) /* else all workers skip this batch */
            train_update(net, rate, momentum);
        compute += train_seconds() - t2 + t1 - t0;
        exchange += t2 - t1;
        r->sent[step] = m->summed + m->gathered;
        r->seconds[step] = train_clock() - begin;
        shown = step ? shown + (loss[step] - shown) * 0.05f : loss[step];
        if (comm->rank == 0 && step % 10 == 9 && step + 1 < r->steps)
            train_bar(r->codec, step + 1, r->steps, (double)shown, r->sent[step], 0);
    }
    r->wire[0] = 0 - wire[0];
    r->wire[1] = 0 - wire[1];
    train_interface(j->options->interface, r->wire);
    r->compute_seconds = compute / (double)r->steps;
    r->codec_seconds = (exchange - m->seconds) / (double)r->steps;
    return 0;
}

/* One run of one worker. r->loss and r->sent [steps] are given. Returns 0, or 1 after saying what is wrong.
   */
static int train_run(train_net *net, const train_data *data, const gcomp_comm *comm, const job *j, uint64_t seed,
                     train_result *r)
{
    meter m;
    gcomp_statistics stats = {0};
    gcomp_comm metered = meter_comm(&m, comm);
    gcomp *gc = open_gcomp(&metered, comm, net, r->codec, seed, j->options->aggregate);
    float *loss = train_floats(r->steps);
    size_t last = r->steps / 10 ? r->steps / 10 : 1;
    int error = 1;
    train_net_init(net, seed, data->active);
    if (gc && comm->rank == 0 && strcmp(r->codec, "none"))
        describe(gc, r->codec, j->runs <= 2);
    if (gc && loss)
        error = train_loop(net, data, gc, comm, &m, j, seed, r, loss);
    if (!error)
        error = gcomp_stats(gc, &stats) != GCOMP_OK;
    gcomp_close(gc);
    if (!error)
        error = compare_workers(net, comm, loss, r);
    free(loss);
    if (error)
        return 1;
    r->final_loss = 0;
    for (size_t s = r->steps - last; s < r->steps; s++)
        r->final_loss += (double)r->loss[s] / (double)last;
    r->bytes = (m.summed + m.gathered) / (double)r->steps;
    r->summed = m.summed / (double)r->steps;
    r->received = m.received / (double)r->steps;
    r->reported = (double)stats.bytes_out / (double)r->steps;
    r->accuracy = test_accuracy(net, data, comm);
    if (comm->rank == 0)
        train_bar(r->codec, r->steps, r->steps, r->final_loss, r->sent[r->steps - 1], 1);
    return r->accuracy < 0;
}

/* All runs of one worker. Returns 0, or 1 after saying what is wrong. */
static int work(void *of, const gcomp_comm *comm)
{
    job *j = (job *)of;
    size_t steps = j->options->steps;
    size_t width[TRAIN_LAYERS + 1] = {j->data->inputs, 0, 0, j->data->classes};
    float *loss = train_floats(steps);
    double *sent = (double *)calloc(2 * steps, sizeof *sent);
    train_net net;
    int error = !loss || !sent;
    width[1] = j->options->hidden[0] ? j->options->hidden[0] : j->data->pixels ? 512 : 320;
    width[2] = j->options->hidden[1] ? j->options->hidden[1] : j->data->pixels ? 256 : 128;
    error = error || train_net_open(&net, width, BATCH);
    if (error)
        fprintf(stderr, "worker %d: no memory\n", comm->rank);
    else if (comm->rank == 0) {
        j->points.rows = net.width[0];
        j->points.cols = net.width[1];
        j->gradient = train_floats(net.width[0] * net.width[1]); /* without memory: no picture of the codecs */
        printf("%s, %zu samples; %zu parameters; %d workers, batch %d each, %zu steps\n\n", j->data->what,
               j->data->count, net.count, comm->world, BATCH, steps);
        fflush(stdout);
    }
    for (size_t i = 0; !error && i < j->runs; i++) {
        train_result r;
        memset(&r, 0, sizeof r);
        r.codec = j->codec[i];
        r.steps = steps;
        r.loss = comm->rank == 0 ? j->results[i].loss : loss;
        r.sent = comm->rank == 0 ? j->results[i].sent : sent;
        r.seconds = r.sent + steps;
        r.gradient = i == 0 && comm->rank == 0 ? j->gradient : NULL;
        error = train_run(&net, j->data, comm, j, j->seed[i], &r);
        if (comm->rank == 0)
            j->results[i] = r;
        if (i + 1 == j->runs || error)
            train_net_close(&net);
    }
    free(loss);
    free(sent);
    return error;
}

/* Lists the runs: uncompressed first, for each of the seeds. Returns 0, or 1 if memory is short. */
static int plan(job *j, options *o, const train_data *data, size_t *methods, size_t *seeds)
{
    *methods = 0;
    *seeds = o->seeds;
    j->options = o;
    if (o->epochs)
        o->steps = o->epochs * steps_of_an_epoch(data, (size_t)o->workers.world);
    for (size_t s = 0; s < *seeds; s++) {
        if (!o->alone) {
            j->codec[j->runs] = "none";
            j->seed[j->runs++] = o->seed + s;
        }
        for (size_t i = 0; i < o->method_count; i++) {
            j->codec[j->runs] = o->methods[i];
            j->seed[j->runs++] = o->seed + s;
        }
    }
    *methods = j->runs / *seeds;
    for (size_t i = 0; i < j->runs; i++) {
        j->results[i].loss = train_floats(o->steps);
        j->results[i].sent = (double *)calloc(2 * o->steps, sizeof(double)); /* and seconds */
        if (!j->results[i].loss || !j->results[i].sent)
            return 1;
    }
    return 0;
}

/* What worker 0 says at the end. Returns the exit status. */
static int report(job *j, size_t methods, size_t seeds, size_t world)
{
    int bad = 0;
    if (j->options->dgc)
        return train_judge_dgc(j->results, methods, seeds) != 0;
    if (j->options->accuracy)
        return train_judge(j->results, methods, seeds, j->data->pixels != 0) != 0;
    if (!j->options->no_pictures && (!j->gradient || train_measure_all(&j->points, j->gradient)))
        return 1;
    if (j->options->errors) {
        train_methods_table(&j->points);
        return train_picture_draw(&j->points, j->data->what, j->options->steps / 2, j->options->out);
    }
    train_table(j->results, j->runs, world);
    for (size_t i = 0; i < j->runs; i++)
        bad |= !j->results[i].identical;
    printf("\n");
    bad |= train_csv(j->results, j->runs, j->options->out);
    bad |= train_runs_csv(j->results, j->runs, j->options->out);
    if (j->options->no_pictures)
        return bad;
    bad |= train_plot(j->results, j->runs, j->data->what, world, j->options->out);
    bad |= train_picture_draw(&j->points, j->data->what, j->options->steps / 2, j->options->out);
    return bad;
}

/* A whole number from 1 to `most`, 0 if the text is none. */
static size_t read_number(const char *text, size_t most)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && number <= most ? (size_t)number : 0;
}

/* AUTO if the text is no other. */
static gcomp_aggregate read_aggregate(const char *text)
{
    return !strcmp(text, "gather")     ? GCOMP_AGGREGATE_GATHER
           : !strcmp(text, "shards")   ? GCOMP_AGGREGATE_SHARDS
           : !strcmp(text, "two-shot") ? GCOMP_AGGREGATE_TWO_SHOT
                                       : GCOMP_AGGREGATE_AUTO;
}

/* Finds a wrong codec before the uncompressed run is done. Returns 0, or 1 after saying what is wrong. */
static int check_methods(const options *o)
{
    for (size_t i = 0; i < o->method_count; i++) {
        gcomp_desc desc = {0};
        char why[256] = "", list[256];
        gcomp *gc;
        name_method(&desc, strcmp(o->methods[i], "advise") ? o->methods[i] : "none", list, sizeof list);
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&gc, &desc) != GCOMP_OK) {
            fprintf(stderr, "--method %s: %s\n", o->methods[i], why);
            return 1;
        }
        gcomp_close(gc);
    }
    return 0;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: train [--workers 1..%d] [--steps N | --epochs N] [--method CODEC|all]... [--seed N] [--out DIR]\n"
            "             [--text FILE] [--accuracy | --accordion | --dgc | --errors] [--seeds 1..%d]\n"
            "             [--transport " TRAIN_TRANSPORTS "] [--rank N --root HOST:PORT] [--in-order]\n"
            "             [--hidden A,B] [--rate R] [--interface NAME] [--no-pictures]\n"
            "             [--aggregate gather|shards|two-shot] [--alone]\n"
            "       a method may be a list with a schedule: 'CODEC|CODEC@accordion:every=1', or advise\n",
            MAX_WORKERS, MAX_SEEDS);
    return 1;
}

/* Adds every method of the library with its default parameters. */
static void every_method(options *o)
{
    const char *name;
    for (size_t i = 1; (name = gcomp_method_name(i)) && o->method_count + 1 < MAX_RUNS / 3; i++)
        o->methods[o->method_count++] = name;
}

/* Returns 0, or 1 after saying what is wrong. */
static int read_options(options *o, int argc, char **argv)
{
    static const char *const defaults[] = {"sign", "topk:density=0.01", "powersgd:rank=4", "int:bits=4", "qsgd", "bf16"};
    static const char *const bars[] = {"topk:density=0.01", "sign", "powersgd:rank=4"};
    static const char *const ranks[] = {"powersgd:rank=4", "powersgd:rank=4|powersgd:rank=1@accordion:every=1"};
    static const char *const sparsest[] = {"dgc:nesterov=1", "dgc:masking=0", "dgc", "topk:density=0.001"};
    const struct {
        const char *name;
        int *on;
    } flags[] = {{"--accuracy", &o->accuracy}, {"--accordion", &o->accordion}, {"--dgc", &o->dgc}, {"--errors", &o->errors},
                 {"--in-order", &o->workers.in_order}, {"--no-pictures", &o->no_pictures}, {"--alone", &o->alone}};
    memset(o, 0, sizeof *o);
    o->workers.world = 4;
    o->workers.rank = -1;
    o->steps = 0;
    o->seed = 1;
    o->out = "build";
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        size_t f = 0;
        while (f < sizeof flags / sizeof *flags && strcmp(name, flags[f].name))
            f++;
        if (f < sizeof flags / sizeof *flags) {
            *flags[f].on = 1;
            continue;
        }
        if (!strcmp(name, "--workers") && read_number(value, MAX_WORKERS))
            o->workers.world = (int)read_number(value, MAX_WORKERS);
        else if (!strcmp(name, "--rank") && (!strcmp(value, "0") || read_number(value, MAX_WORKERS - 1)))
            o->workers.rank = (int)read_number(value, MAX_WORKERS - 1);
        else if (!strcmp(name, "--hidden") && sscanf(value, "%4zu,%4zu", &o->hidden[0], &o->hidden[1]) == 2)
            ;
        else if (!strcmp(name, "--rate") && (o->rate = strtof(value, NULL)) > 0)
            ;
        else if (!strcmp(name, "--aggregate") && (o->aggregate = read_aggregate(value)) != GCOMP_AGGREGATE_AUTO)
            ;
        else if (!strcmp(name, "--interface") && *value)
            o->interface = value;
        else if (!strcmp(name, "--root") && *value)
            o->workers.root = value;
        else if (!strcmp(name, "--transport") && train_workers_know(value))
            o->workers.transport = value;
        else if (!strcmp(name, "--steps") && read_number(value, 10000000))
            o->steps = read_number(value, 10000000);
        else if (!strcmp(name, "--epochs") && read_number(value, 10000))
            o->epochs = read_number(value, 10000);
        else if (!strcmp(name, "--seeds") && read_number(value, MAX_SEEDS))
            o->seeds = read_number(value, MAX_SEEDS);
        else if (!strcmp(name, "--seed") && read_number(value, 1000000000))
            o->seed = read_number(value, 1000000000);
        else if (!strcmp(name, "--out") && *value)
            o->out = value;
        else if (!strcmp(name, "--text") && *value)
            o->text = value;
        else if (!strcmp(name, "--method") && !strcmp(value, "all"))
            every_method(o);
        else if (!strcmp(name, "--method") && *value && o->method_count + 1 < MAX_RUNS / 3)
            o->methods[o->method_count++] = value;
        else
            return usage();
        i++;
    }
    o->accuracy |= o->accordion; /* judged as those, with other methods */
    if (o->alone && (o->accuracy || o->dgc || o->errors))
        return usage();
    if (o->accuracy + o->errors + o->dgc > 1 || (o->steps && o->epochs))
        return usage();
    if (!o->seeds)
        o->seeds = o->accuracy || o->dgc ? 3 : 1;
    if (o->seeds > 1 && !o->accuracy && !o->dgc)
        return usage();
    if (o->dgc && !o->steps && !o->epochs)
        o->epochs = 20;
    if (!o->steps)
        o->steps = o->errors ? 300 : 1200;
    if (o->errors) {
        o->method_count = 0;
        return 0;
    }
    for (size_t i = 0; !o->method_count && o->dgc && i < sizeof sparsest / sizeof *sparsest; i++)
        o->methods[i] = sparsest[i];
    for (size_t i = 0; !o->method_count && !o->accuracy && !o->dgc && i < sizeof defaults / sizeof *defaults; i++)
        o->methods[i] = defaults[i];
    for (size_t i = 0; !o->method_count && o->accordion && i < sizeof ranks / sizeof *ranks; i++)
        o->methods[i] = ranks[i];
    for (size_t i = 0; !o->method_count && o->accuracy && !o->accordion && i < sizeof bars / sizeof *bars; i++)
        o->methods[i] = bars[i];
    while (o->methods[o->method_count])
        o->method_count++;
    return check_methods(o);
}

/* The images; without them, or if asked for, a text. Returns 0, or 1 after saying what is wrong. */
static int load(train_data *data, const options *o, int rank)
{
    const char *text = o->text ? o->text : "gcomp.h";
    if (!o->text && train_load_images(data) == 0)
        return 0;
    if (!o->text && rank == 0)
        printf(
            "no Fashion-MNIST (Debian: dataset-fashion-mnist): learning the text of %s instead\n",
            text);
    if (train_load_text(data, text) == 0)
        return 0;
    fprintf(stderr, "%s: cannot be read, or is shorter than 10,000 bytes\n", text);
    return 1;
}

int main(int argc, char **argv)
{
    static job j; /* large */
    options o;
    train_data data;
    size_t methods, seeds;
    int status, rank;
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(1); /* the workers share the cores already */
#endif
    memset(&data, 0, sizeof data);
    if (read_options(&o, argc, argv) || train_workers_begin(&o.workers, MAX_WORKERS))
        return 1;
    rank = o.workers.rank;
    j.data = &data;
    status = load(&data, &o, rank) || plan(&j, &o, &data, &methods, &seeds);
    status = status || train_workers_run(&o.workers, work, &j);
    if (!status && rank == 0)
        status = report(&j, methods, seeds, (size_t)o.workers.world);
    status = train_workers_end(&o.workers, status);
    for (size_t i = 0; i < j.runs; i++) {
        free(j.results[i].loss);
        free(j.results[i].sent);
    }
    free(j.gradient);
    train_data_free(&data);
    return status;
}
