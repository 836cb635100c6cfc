/* lgc.c - learned gradient compression (LGC): an autoencoder over the values that leadertopk sends, and what it costs and brings.

   Paper     Abrahamyan, Chen, Bekoulis, Deligiannis: Learned Gradient Compression for Distributed Deep Learning, IEEE TNNLS 2021,
             in its form for all-reduce. Steps have three phases:
               1  uncompressed
               2  leadertopk, as it is; meanwhile worker 0 trains the autoencoder on the values of all workers
               3  leadertopk's list; then the workers sum codes, a quarter as many floats as values, and not the values
             Encoder: Conv1d of 1-64-128-256-64 channels (3 taps, stride 2), then 64-4 (1 tap). Decoder: ConvTranspose1d of
             4-32-64-128-32, then 32-1. LeakyReLU between. Loss: half the mean square of what is decoded less the mean of the
             values, and half that of the differences between the codes of two workers
   Differs   the values are divided by their root mean square, which travels beside the codes: gradients are too small for such a
             network as they are. SGD has a momentum of 0.9 and a rate of 0.01; the paper's is 0.001
   Shows     the step driven by hand: the second sum is replaced by one's own. The library counts the values as sent; so what the
             decoder loses is added to the next gradient. Worker 0 decodes for all, and broadcasts: convolutions of another
             compiler or processor may round differently, and replicas must not drift
   Prints    a table: LGC beside leadertopk and beside top-k with values of 4 bits. The README of the examples judges it
   Build     cc -O2 -I. -Iexamples/adapters examples/lgc/lgc.c gcomp_impl.o -o build/lgc -lm -pthread
   Run       build/lgc [steps of phase 1] [of phase 2] [of phase 3] [rate of the autoencoder] */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "../args.h"
#include "gcomp_threads.h"
#include "lgc_net.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

/* ---------------- what is trained: two layers, which shall find the classes that two others make */

enum { INPUTS = 256, HIDDEN = 64, CLASSES = 10, BATCH = 16, TENSORS = 2, FIRST = HIDDEN * INPUTS, LAST = CLASSES * HIDDEN };
enum { ELEMENTS = 82 }; /* 0.5 % of the first layer: what leadertopk sends; LENGTH is the multiple of 16 above */

typedef struct worker {
    gcomp_comm comm;
    gcomp *gc;
    const char *codec;
    int rank, lgc, first, second, steps; /* where phases 2 and 3 begin, and all steps */
    const char *name; /* of the method */
    float rate, weights[FIRST + LAST], grad[FIRST + LAST], left[FIRST]; /* left: what the decoder has lost */
    double bytes, loss, error, coding, training; /* of the first layer in phase 3; seconds of processor time */
    float all[WORKERS][LENGTH + 1]; /* the values of all workers, and behind them their size */
    trace trace;
    char why[200];
    gcomp_result result;
} worker;

static void run_layers(const float *weights, const float *x, float *hidden, float *y)
{
    for (int o = 0; o < HIDDEN; o++) {
        hidden[o] = 0;
        for (int i = 0; i < INPUTS; i++) hidden[o] += weights[o * INPUTS + i] * x[i];
        hidden[o] = fmaxf(hidden[o], 0);
    }
    for (int c = 0; c < CLASSES; c++) {
        y[c] = 0;
        for (int o = 0; o < HIDDEN; o++) y[c] += weights[FIRST + c * HIDDEN + o] * hidden[o];
    }
}

static float begin_with(size_t i) { return noise(i) * (i % 200000 < FIRST ? 0.1f : 0.2f); }

static double learn(worker *w, const float *teacher, uint64_t number) /* adds to the gradient; returns the loss */
{
    float x[INPUTS], hidden[HIDDEN], y[CLASSES], most = -1e30f, sum = 0;
    int label = 0;
    for (int i = 0; i < INPUTS; i++) x[i] = noise(number * INPUTS + (uint64_t)i);
    run_layers(teacher, x, hidden, y);
    for (int c = 1; c < CLASSES; c++) label = y[c] > y[label] ? c : label;
    run_layers(w->weights, x, hidden, y);
    for (int c = 0; c < CLASSES; c++) most = fmaxf(most, y[c]);
    for (int c = 0; c < CLASSES; c++) sum += y[c] = expf(y[c] - most);
    const double loss = -log((double)(y[label] / sum) + 1e-30);
    for (int c = 0; c < CLASSES; c++) y[c] = (y[c] / sum - (float)(c == label)) / BATCH;
    for (int o = 0; o < HIDDEN; o++) {
        float g = 0;
        for (int c = 0; c < CLASSES; c++) {
            w->grad[FIRST + c * HIDDEN + o] += y[c] * hidden[o];
            g += hidden[o] > 0 ? y[c] * w->weights[FIRST + c * HIDDEN + o] : 0;
        }
        for (int i = 0; i < INPUTS; i++) w->grad[o * INPUTS + i] += g * x[i];
    }
    return loss;
}

/* ---------------- a step by hand */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes that come to a worker in a ring that sums, or in a broadcast. */
static double ring(size_t floats) { return 8.0 * (double)floats * (WORKERS - 1) / WORKERS; }

/* Phase 2, after the sum: worker 0 gets the values of all, and learns to find their mean. */
static int learn_values(worker *w, float (*all)[LENGTH + 1], const float *brought, const float *sum, size_t count)
{
    float mean[LENGTH] = {0}, size = 0;
    const double from = seconds();
    if ((w->comm.allgather)(w->comm.user, brought, all, sizeof all[0])) return 1; /* MPI has a gather to one worker */
    for (int r = 0; r < WORKERS; r++) size += all[r][LENGTH] / WORKERS;
    for (size_t i = 0; i < count; i++) mean[i] = sum[i] / size;
    if (w->rank == 0) (void)train_net(all, mean, w->rate);
    w->training += seconds() - from;
    return 0;
}

/* The second sum: v holds this worker's values / WORKERS, and shall hold the mean of all. own: a copy of v. */
static int sum_values(worker *w, float *v, size_t count, int step, float *own)
{
    float (*all)[LENGTH + 1] = w->all, brought[LENGTH + 1] = {0}, mean[LENGTH] = {0}, codes[CODE + 1], size = 0;
    double from, error = 0, squares = 0;
    memcpy(own, v, sizeof *v * count);
    for (size_t i = 0; i < count; i++) size += own[i] * own[i] * (WORKERS * WORKERS) / (float)count;
    size = sqrtf(size) + 1e-30f;
    for (size_t i = 0; i < count; i++) brought[i] = own[i] * WORKERS / size;
    brought[LENGTH] = size;
    if ((w->comm.allreduce)(w->comm.user, v, count, GCOMP_F32)) return 1; /* in phase 3 for the table alone */
    if (step < w->second) return learn_values(w, all, brought, v, count);
    /* the encoder: threads share worker 0's. Processes would broadcast it here, once */
    from = seconds();
    memcpy(w->trace.at[0], brought, 4 * LENGTH);
    forward(&w->trace, 0, ENCODER);
    memcpy(codes, w->trace.at[ENCODER], 4 * CODE);
    codes[CODE] = size;
    if ((w->comm.allreduce)(w->comm.user, codes, CODE + 1, GCOMP_F32)) return 1;
    for (int i = 0; i < CODE; i++) w->trace.at[ENCODER][i] = codes[i] / WORKERS;
    if (w->rank == 0) forward(&w->trace, ENCODER, LAYERS);
    for (size_t i = 0; i < count; i++) mean[i] = w->trace.at[LAYERS][i] * codes[CODE] / WORKERS;
    for (size_t i = 0; i < count; i++) mean[i] = mean[i] != 0 ? mean[i] : 1e-30f; /* so that places are seen in the mean */
    if (gcomp_threads_broadcast(w->comm.user, mean, 4 * count, 0)) return 1;
    w->coding += seconds() - from;
    w->bytes += ring(CODE + 1) + 4.0 * (double)count;
    for (size_t i = 0; i < count; i++) {
        error += (double)(mean[i] - v[i]) * (double)(mean[i] - v[i]);
        squares += (double)v[i] * (double)v[i];
    }
    w->error += error / (squares + 1e-30);
    memcpy(v, mean, sizeof *v * count);
    return 0;
}

static gcomp_result exchange(worker *w, int step)
{
    float *const grads[TENSORS] = {w->grad, w->grad + FIRST};
    float own[LENGTH];
    gcomp_step at = GCOMP_STEP;
    gcomp_request q;
    int sums = 0, last = step >= w->second;
    at.epoch = step >= w->first; /* of the schedule: epoch 0 is phase 1 */
    for (size_t i = 0; w->lgc && i < FIRST; i++) w->grad[i] += w->left[i];
    memset(w->left, 0, sizeof w->left);
    gcomp_result result = gcomp_step_begin(w->gc, &at);
    for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) result = gcomp_step_ready(w->gc, t, grads[t]);
    while (result == GCOMP_OK && (result = gcomp_step_next(w->gc, &q)) == GCOMP_OK && q.kind != GCOMP_DONE) {
        int status = 0;
        if (q.kind == GCOMP_ALLGATHER) {
            status = (w->comm.allgatherv)(w->comm.user, q.send, q.recv, q.bytes, q.stride);
            for (int r = 0; last && q.stride != 64 && r < WORKERS; r++) w->bytes += r == w->rank ? 0 : (double)q.bytes[r];
        } else if (++sums == 2 && w->lgc) {
            status = sum_values(w, (float *)q.recv, q.count, step, own);
        } else {
            status = (w->comm.allreduce)(w->comm.user, q.recv, q.count, GCOMP_F32);
            if (last) w->bytes += ring(q.count - (sums == 1 ? LAST : 0));
        }
        result = gcomp_step_done(w->gc, q.id, status);
    }
    if (result == GCOMP_OK) result = gcomp_step_commit(w->gc);
    for (size_t i = 0, j = 0; result == GCOMP_OK && w->lgc && last && i < FIRST; i++) /* places are where the mean is not 0 */
        if (w->grad[i] != 0) w->left[i] = own[j++] * WORKERS - w->grad[i];
    return result;
}

static gcomp_result train(worker *w)
{
    float *teacher = (float *)malloc(sizeof w->weights);
    char list[80];
    gcomp_desc desc = {0};
    snprintf(list, sizeof list, "none|%s", w->codec);
    desc.codec = strcmp(w->codec, "none") ? list : "none";
    if (desc.codec == list) desc.schedule = "warmup:epochs=1";
    desc.comm.rank = w->rank; /* no callbacks: the step is driven by hand */
    desc.comm.world = WORKERS;
    desc.why = w->why;
    desc.why_capacity = sizeof w->why;
    gcomp_result result = teacher ? gcomp_open(&w->gc, &desc) : GCOMP_OUT_OF_MEMORY;
    for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) {
        gcomp_tensor tensor = {0};
        tensor.name = t ? "last" : "first";
        tensor.rows = t ? CLASSES : HIDDEN;
        tensor.cols = t ? HIDDEN : INPUTS;
        tensor.codec = t ? "none" : NULL; /* the paper too leaves the last layer uncompressed */
        result = gcomp_add_tensor(w->gc, &tensor);
    }
    for (size_t i = 0; i < FIRST + LAST && teacher; i++) teacher[i] = begin_with(i + 200000);
    for (size_t i = 0; i < FIRST + LAST; i++) w->weights[i] = begin_with(i);
    for (int step = 0; step < w->steps && result == GCOMP_OK; step++) {
        double loss = 0;
        memset(w->grad, 0, sizeof w->grad);
        for (int b = 0; b < BATCH; b++)
            loss += learn(w, teacher, (uint64_t)((step * WORKERS + w->rank) * BATCH + b + 1000000)) / BATCH;
        if (step >= w->steps - w->steps / 10 - 1) w->loss += loss / (w->steps / 10 + 1);
        if ((result = exchange(w, step)) == GCOMP_OK)
            for (size_t i = 0; i < FIRST + LAST; i++) w->weights[i] -= 0.2f * w->grad[i];
        if (w->rank == 0) args_bar(w->name, (size_t)step + 1, (size_t)w->steps, " steps", 0);
    }
    free(teacher);
    return result;
}

static gcomp_threads *group;

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    if ((w->result = train(w)) != GCOMP_OK) {
        gcomp_threads_fail(group); /* the others need not wait */
        fprintf(stderr, "worker %d: %s\n", w->rank, w->gc ? gcomp_error(w->gc) : w->why);
    }
    gcomp_close(w->gc);
    return NULL;
}

int main(int argc, char **argv)
{
    static const struct { const char *name, *codec; } methods[] = {
        {"none", "none"}, {"topk+int:bits=4", "topk:density=0.005+int:bits=4"}, {"leadertopk", "leadertopk:density=0.005"},
        {"one element", "leadertopk:density=1e-9"}, {"LGC", "leadertopk:density=0.005"}};
    static worker workers[WORKERS];
    static const char *const names[] = {"the steps of phase 1", "the steps of phase 2", "the steps of phase 3"};
    int phases[3] = {50, 400, 550}, bad = 0;
    args_help(argc, argv, "usage: lgc [STEPS of phase 1 [of phase 2 [of phase 3 [RATE of the autoencoder]]]]\n"
                          "  50, 400 and 550 steps and a rate of 0.01 if they are not given; takes some 50 s\n");
    for (int i = 0; i < 3 && i + 1 < argc; i++)
        if (!(phases[i] = (int)args_number(argv[i + 1], 1000000))) return args_wrong(argv[0], names[i], argv[i + 1]);
    if (argc > 4 && !(atof(argv[4]) > 0)) return args_wrong(argv[0], "the rate", argv[4]);
    if (argc > 5) return args_wrong(argv[0], argv[5], NULL);
    printf("%-16s %14s %9s %9s %10s\n", "first layer", "bytes a step", "coding ms", "error^2", "loss");
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        pthread_t threads[WORKERS];
        double loss = 0, bytes = 0;
        begin_net();
        if (gcomp_threads_open(&group, WORKERS, 60) != 0) return 1;
        for (int r = 0; r < WORKERS; r++) {
            worker *w = &workers[r];
            memset(w, 0, sizeof *w);
            w->comm = gcomp_threads_comm(group, r);
            w->rank = r;
            w->codec = methods[m].codec;
            w->name = methods[m].name;
            w->lgc = !strcmp(methods[m].name, "LGC");
            w->first = phases[0];
            w->second = phases[0] + phases[1];
            w->steps = w->second + phases[2];
            w->rate = argc > 4 ? (float)atof(argv[4]) : 0.01f;
            if (pthread_create(&threads[r], NULL, work, w) != 0) return 1;
        }
        for (int r = 0; r < WORKERS; r++) pthread_join(threads[r], NULL);
        args_clear();
        gcomp_threads_close(group);
        for (int r = 0; r < WORKERS; r++) {
            loss += workers[r].loss / WORKERS;
            bytes += workers[r].bytes / WORKERS / phases[2];
            bad |= workers[r].result || memcmp(workers[r].weights, workers[0].weights, sizeof workers[r].weights);
        }
        printf("%-16s %14.0f %9.3f %9.3f %10.4f\n", methods[m].name, bytes, 1e3 * workers[0].coding / phases[2],
               workers[0].error / phases[2], loss);
        if (workers[0].lgc)
            printf("LGC before phase 3: %d bytes a step to worker 0 and %.1f s of its time; then %d bytes of the encoder to each "
                   "worker\nif each worker decodes for itself: %d bytes a step less, %d bytes of the decoder more\n",
                   (WORKERS - 1) * 4 * (LENGTH + 1), workers[0].training, 4 * (int)weights_before(ENCODER), 4 * ELEMENTS,
                   4 * (int)(NET - weights_before(ENCODER)));
    }
    if (bad) printf("a worker failed, or replicas differ\n");
    return bad;
}
