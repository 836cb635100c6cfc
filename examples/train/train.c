/* train.c - does compressed training train? Four workers train an image classifier of 535,818
   parameters, first uncompressed, then with each method from the same weights on the same batches;
   a table and a plot compare them.

   Shows     gcomp_exchange in a real training loop, and what is gained on which link
   Leaves    evaluation during training, checkpoints, data loading in the background
   Build     cc -O2 -I. -Iexamples/adapters examples/train/train.c gcomp_impl.c -o build/train -lopenblas -lz -lm -pthread
             mpicc -DUSE_MPI ... -o build/train_mpi: with MPI as a transport too
   Run       build/train [OPTION]...        the options are listed in train_options.h
   Read on   train_experiments.h: what is trained, and how the results are judged

   gcomp_impl.c is any file with #define GCOMP_IMPLEMENTATION and #include "gcomp.h". */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "gcomp_recover.h"
#include "train_advice.h"
#include "train_after.h"
#include "train_job.h"
#include "train_meter.h"
#include "train_workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 2 * TRAIN_LAYERS }; /* a weight and a bias for each layer */
#define MOMENTUM 0.9f

static double wall_clock(void *user)
{
    (void)user;
    return train_clock();
}

/* Opens a gcomp for the tensors of the network; `plain` is comm without a meter. Returns NULL after
   saying what is wrong. */
static gcomp *open_gcomp(const gcomp_comm *comm, const gcomp_comm *plain, const train_net *net,
                         const char *codec, uint64_t seed, gcomp_aggregate aggregate)
{
    static const char *const names[TENSORS] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                               "fc2.bias",   "fc3.weight", "fc3.bias"};
    gcomp_tensor tensors[TENSORS];
    gcomp_desc desc = {0};
    char why[256] = "", list[256];
    gcomp *gc;
    memset(tensors, 0, sizeof tensors);
    for (size_t t = 0; t < TENSORS; t++) {
        tensors[t].name = names[t];
        tensors[t].rows = net->width[t / 2 + t % 2];
        tensors[t].cols = t % 2 ? 0 : net->width[t / 2 + 1];
    }
    if (!strcmp(codec, "advise") &&
        train_advise(plain, tensors, TENSORS, wall_clock, GCOMP_OPTIMIZER_SGD))
        return NULL;
    train_name_method(&desc, codec, list, sizeof list);
    desc.comm = *comm;
    desc.aggregate = aggregate;
    desc.seed = seed;
    desc.why = why;
    desc.why_capacity = sizeof why;
    if (gcomp_open(&gc, &desc) != GCOMP_OK) {
        if (comm->rank == 0) fprintf(stderr, "%s: %s\n", codec, why);
        return NULL;
    }
    for (size_t t = 0; t < TENSORS; t++) {
        if (gcomp_add_tensor(gc, &tensors[t]) != GCOMP_OK) {
            fprintf(stderr, "worker %d: %s: %s\n", comm->rank, codec, gcomp_error(gc));
            gcomp_close(gc);
            return NULL;
        }
    }
    return gc;
}

/* Prints the codec of each tensor, and why it has that codec; or the line with the sums alone. */
static void describe(const gcomp *gc, const char *codec, int whole)
{
    char text[4096], *line = text, *end;
    gcomp_describe(gc, text, sizeof text);
    while (!whole && (end = strchr(line, '\n')) && end[1]) line = end + 1;
    printf("%s%s%s", codec, whole ? "\n" : ": ", line);
    fflush(stdout);
}

/* The optimizer's momentum for each tensor: none where the codec keeps it itself. */
static void find_momentum(const gcomp *gc, float momentum[TENSORS])
{
    for (size_t t = 0; t < TENSORS; t++) {
        char text[160] = "";
        gcomp_tensor_info info;
        if (gcomp_tensor_get(gc, t, &info) == GCOMP_OK) gcomp_codec_format(info.codec, text, sizeof text);
        momentum[t] = strncmp(text, "dgc", 3) && strncmp(text, "fetch", 5) ? MOMENTUM : 0.0f;
    }
}

/* The training loop. loss[r->steps] is of this worker. Returns 0, or 1 after saying what is
   wrong. */
static int train_loop(train_net *net, gcomp *gc, const gcomp_comm *comm, const meter *m,
                      const train_job *j, uint64_t seed, train_result *r, float *loss)
{
    const train_options *o = j->options;
    const size_t epoch_steps = train_epoch_steps(j->data, (size_t)comm->world);
    float *const state[2] = {net->parameters, net->momentum};
    const size_t count[2] = {net->count, net->count};
    gcomp_recover recover = {0};
    void *grads[TENSORS];
    float momentum[TENSORS], shown = 0;
    double compute = 0, exchange = 0, begin, wire[2] = {0, 0};
    recover.comm = *comm;
    recover.state = state;
    recover.count = count;
    recover.states = 2;
    find_momentum(gc, momentum);
    for (size_t t = 0; t < TENSORS; t++)
        grads[t] = t % 2 ? net->bias_gradient[t / 2] : net->weight_gradient[t / 2];
    train_interface(o->interface, wire);
    begin = train_clock();
    for (size_t step = 0; step < r->steps; step++) {
        double t0 = train_seconds(), t1, t2;
        float rate = train_rate(o->experiment, j->data->pixels != 0, step, r->steps);
        gcomp_step how = GCOMP_STEP;
        gcomp_result result;
        if (o->rate > 0) rate = o->rate;
        /* how.learning_rate stays unknown: the rate falls in every step, and accordion, which sends more
           after each fall, would never compress. */
        how.epoch = train_epoch(o->experiment, step, r->steps, epoch_steps);
        if (o->experiment->rate_in_scale) {
            how.scale = rate;
            rate = 1;
        }
        train_draw(net, j->data, seed, step * (size_t)comm->world + (size_t)comm->rank);
        loss[step] = train_gradients(net);
        if (r->gradient && step == r->steps / 2)
            memcpy(r->gradient, grads[0], net->width[0] * net->width[1] * sizeof(float));
        t1 = train_seconds();
        result = gcomp_exchange(gc, grads, &how);
        if (gcomp_recover_after(&recover, gc, result)) return 1;
        t2 = train_seconds();
        if (result == GCOMP_OK) train_update(net, rate, momentum); /* else all skip this batch */
        compute += train_seconds() - t2 + t1 - t0;
        exchange += t2 - t1;
        r->sent[step] = m->sent;
        r->seconds[step] = train_clock() - begin;
        shown = step ? shown + (loss[step] - shown) * 0.05f : loss[step];
        if (comm->rank == 0 && step % 10 == 9 && step + 1 < r->steps)
            train_bar(r->codec, step + 1, r->steps, (double)shown, r->sent[step], 0);
    }
    r->wire[0] = 0 - wire[0];
    r->wire[1] = 0 - wire[1];
    train_interface(o->interface, r->wire);
    r->compute_seconds = compute / (double)r->steps;
    r->codec_seconds = (exchange - m->seconds) / (double)r->steps;
    return 0;
}

/* One run of one worker. r->loss, r->sent and r->seconds [r->steps] are given. Returns 0, or 1
   after saying what is wrong. */
static int train_run(train_net *net, const gcomp_comm *comm, const train_job *j, uint64_t seed,
                     train_result *r)
{
    meter m;
    gcomp_statistics stats = {0};
    gcomp_comm metered = meter_comm(&m, comm);
    gcomp *gc = open_gcomp(&metered, comm, net, r->codec, seed, j->options->aggregate);
    float *loss = train_floats(r->steps);
    const double steps = (double)r->steps;
    const size_t last = r->steps / 10 ? r->steps / 10 : 1;
    int error = 1;
    train_net_init(net, seed, j->data->active);
    if (gc && comm->rank == 0 && strcmp(r->codec, "none")) describe(gc, r->codec, j->runs <= 2);
    if (gc && loss) error = train_loop(net, gc, comm, &m, j, seed, r, loss);
    if (!error) error = gcomp_stats(gc, &stats) != GCOMP_OK;
    gcomp_close(gc);
    if (!error) error = train_compare(net, comm, loss, r);
    free(loss);
    if (error) return 1;
    r->final_loss = 0;
    for (size_t s = r->steps - last; s < r->steps; s++)
        r->final_loss += (double)r->loss[s] / (double)last;
    r->bytes = m.sent / steps;
    r->received = m.received / steps;
    r->calls = m.calls / steps;
    r->reported = (double)stats.bytes_out / steps;
    r->accuracy = train_accuracy(net, j->data, comm);
    if (comm->rank == 0)
        train_bar(r->codec, r->steps, r->steps, r->final_loss, r->sent[r->steps - 1], 1);
    return r->accuracy < 0;
}

/* All runs of one worker. Returns 0, or 1 after saying what is wrong. */
static int work(void *of, const gcomp_comm *comm)
{
    train_job *j = (train_job *)of;
    const train_options *o = j->options;
    const int first = comm->rank == 0, images = j->data->pixels != 0;
    size_t width[TRAIN_LAYERS + 1] = {j->data->inputs, o->hidden[0], o->hidden[1],
                                      j->data->classes};
    float *loss = train_floats(o->steps);
    double *sent = (double *)calloc(2 * o->steps, sizeof *sent);
    train_net net;
    int error;
    if (!width[1]) width[1] = images ? 512 : 320;
    if (!width[2]) width[2] = images ? 256 : 128;
    error = train_net_open(&net, width, TRAIN_BATCH) || !loss || !sent;
    if (error) {
        fprintf(stderr, "worker %d: no memory\n", comm->rank);
    } else if (first) {
        j->points.rows = net.width[0];
        j->points.cols = net.width[1];
        j->gradient = train_floats(width[0] * width[1]); /* without memory: no picture */
        printf("%s, %zu samples; %zu parameters; %d workers, batch %d each, %zu steps\n\n",
               j->data->what, j->data->count, net.count, comm->world, TRAIN_BATCH, o->steps);
        fflush(stdout);
    }
    for (size_t i = 0; !error && i < j->runs; i++) {
        train_result r;
        memset(&r, 0, sizeof r);
        r.codec = j->codec[i];
        r.steps = o->steps;
        r.loss = first ? j->results[i].loss : loss;
        r.sent = first ? j->results[i].sent : sent;
        r.seconds = r.sent + o->steps;
        r.gradient = first && i == 0 ? j->gradient : NULL;
        error = train_run(&net, comm, j, j->seed[i], &r);
        if (first) j->results[i] = r;
    }
    train_net_close(&net);
    free(loss);
    free(sent);
    return error;
}

int main(int argc, char **argv)
{
    static train_job j; /* large */
    train_options o;
    train_data data;
    int status;
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(1); /* the workers share the cores already */
#endif
    memset(&data, 0, sizeof data);
    if ((status = train_read_options(&o, argc, argv)) != 0) return status;
    if (train_workers_begin(&o.workers, TRAIN_WORKERS)) return 1;
    status = train_load(&data, o.text, o.workers.rank) || train_plan(&j, &o, &data);
    status = status || train_workers_run(&o.workers, work, &j);
    if (!status && o.workers.rank == 0) status = train_report(&j, (size_t)o.workers.world);
    status = train_workers_end(&o.workers, status);
    train_job_free(&j);
    train_data_free(&data);
    return status;
}
