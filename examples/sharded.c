/* sharded.c - a sharded optimizer, as in ZeRO or FSDP: each worker steps its part of the weights.

   Shows     GCOMP_AGGREGATE_SCATTER and gcomp_shard: after an exchange a worker has the mean in its
             own range of each tensor. It keeps Adam's state and a master copy of the weights for
             these ranges alone, and steps them. Then all workers gather the weights, as floats or
             as halves (gcomp_convert). Workers are threads (gcomp_threads.h)
   Leaves    what to do after a step that failed: see first.c
   Build     cc -I. -Iexamples/adapters examples/sharded.c gcomp_impl.o -o build/sharded -lm -pthread
   Run       build/sharded [fp32|fp16|bf16] [codec] */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "args.h"
#include "gcomp_threads.h"

#include <math.h>
#include <stdio.h>

/* A layer of 64 outputs. All weights are in one array. */
enum { WORKERS = 4, INPUTS = 128, OUTPUTS = 64, BATCH = 32, STEPS = 300, TENSORS = 2 };
enum { BIAS = OUTPUTS * INPUTS, COUNT = BIAS + OUTPUTS };
static const struct {
    const char *name;
    size_t at, rows, cols;
} layout[TENSORS] = {{"weight", 0, OUTPUTS, INPUTS}, {"bias", BIAS, OUTPUTS, 1}};

typedef struct worker {
    gcomp_comm comm;
    int rank;
    const char *codec;
    gcomp_dtype dtype; /* in which the weights are gathered */
    gcomp *gc;
    float weights[COUNT], grad[COUNT]; /* whole: every worker runs the whole network */
    size_t count;                      /* elements of its ranges, one behind the other in: */
    float *master, *m, *v;             /* the weights that it steps, and Adam's state */
    uint8_t mine[4 * COUNT], all[WORKERS * 4 * COUNT]; /* what it gathers */
    char why[200]; /* why gcomp_open failed */
    gcomp_result result;
} worker;

static worker workers[WORKERS];
static gcomp_threads *group;

static float noise(uint64_t i) /* in [-1, 1), the same on all workers */
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    return (float)((i ^ i >> 27) >> 40) / 8388608.0f - 1.0f;
}

/* Forward and backward for one input: adds to the gradient, and returns the loss. What the layer
   shall learn is a matrix of noise. */
static float learn(worker *w, uint64_t number)
{
    float x[INPUTS], loss = 0;
    for (size_t i = 0; i < INPUTS; i++) x[i] = noise(number * INPUTS + i);
    for (size_t o = 0; o < OUTPUTS; o++) {
        const float *weight = w->weights + o * INPUTS;
        float e = w->weights[BIAS + o]; /* what is wrong with output o */
        for (size_t i = 0; i < INPUTS; i++) e += x[i] * (weight[i] - noise(o * INPUTS + i));
        for (size_t i = 0; i < INPUTS; i++) w->grad[o * INPUTS + i] += e * x[i] / BATCH;
        w->grad[BIAS + o] += e / BATCH;
        loss += e * e / (2 * OUTPUTS);
    }
    return loss;
}

/* The range of tensor t that belongs to a worker: how many elements, and where in all weights. */
static size_t range(const worker *w, int t, int rank, size_t *at)
{
    size_t begin = 0, end = 0; /* gcomp_shard fails only for a tensor or worker that is not there */
    if (gcomp_shard(w->gc, (size_t)t, rank, &begin, &end) != GCOMP_OK) return 0;
    *at = layout[t].at + begin;
    return end - begin;
}

/* Adam, in the own ranges. Elsewhere the gradient is still this worker's own. */
static void step_own_ranges(worker *w, int step)
{
    const float first = 1 - powf(0.9f, (float)step), second = 1 - powf(0.999f, (float)step);
    size_t k = 0, at = 0;
    for (int t = 0; t < TENSORS; t++)
        for (size_t n = range(w, t, w->rank, &at), i = 0; i < n; i++, k++) {
            const float g = w->grad[at + i];
            w->m[k] = 0.9f * w->m[k] + 0.1f * g;
            w->v[k] = 0.999f * w->v[k] + 0.001f * g * g;
            w->master[k] -= 0.01f * (w->m[k] / first) / (sqrtf(w->v[k] / second) + 1e-8f);
        }
}

/* One gather, in which each worker brings its ranges of all tensors. The own weights too become
   what the others get: all run the same network. Returns the bytes that a worker brings, which are
   those of worker 0, whose ranges are the longest; 0 if something failed. */
static size_t gather_weights(worker *w)
{
    const size_t width = w->dtype == GCOMP_F32 ? 4 : 2;
    size_t bytes = 0, at = 0;
    for (int t = 0; t < TENSORS; t++) bytes += width * range(w, t, 0, &at);
    if (gcomp_convert(w->mine, w->dtype, w->master, GCOMP_F32, w->count, NULL)) return 0;
    if ((w->comm.allgather)(w->comm.user, w->mine, w->all, bytes)) return 0;
    for (int r = 0; r < WORKERS; r++) {
        const uint8_t *from = w->all + (size_t)r * bytes;
        for (int t = 0; t < TENSORS; t++) {
            const size_t n = range(w, t, r, &at);
            if (n && gcomp_convert(w->weights + at, GCOMP_F32, from, w->dtype, n, NULL)) return 0;
            from += width * n;
        }
    }
    return bytes;
}

static gcomp_result train(worker *w)
{
    gcomp_desc desc = {0};
    gcomp_statistics stats;
    size_t at = 0, k = 0, gathered;
    desc.codec = w->codec;
    desc.comm = w->comm;
    desc.aggregate = GCOMP_AGGREGATE_SCATTER;
    desc.why = w->why;
    desc.why_capacity = sizeof w->why;
    gcomp_result result = gcomp_open(&w->gc, &desc);
    for (int t = 0; t < TENSORS && result == GCOMP_OK; t++) {
        gcomp_tensor tensor = {0};
        tensor.name = layout[t].name;
        tensor.rows = layout[t].rows;
        tensor.cols = layout[t].cols;
        result = gcomp_add_tensor(w->gc, &tensor);
    }
    if (result != GCOMP_OK) return result;
    for (int t = 0; t < TENSORS; t++) w->count += range(w, t, w->rank, &at);
    w->master = (float *)calloc(3 * w->count, sizeof(float)); /* not 3 * COUNT */
    if (!w->master) return GCOMP_OUT_OF_MEMORY;
    w->m = w->master + w->count;
    w->v = w->m + w->count;
    for (int t = 0; t < TENSORS; t++)
        for (size_t n = range(w, t, w->rank, &at), i = 0; i < n; i++)
            w->master[k++] = 0.1f * noise(at + i);
    gathered = gather_weights(w);
    for (int step = 1; step <= STEPS && gathered; step++) {
        float loss = 0;
        memset(w->grad, 0, sizeof w->grad);
        for (int b = 0; b < BATCH; b++)
            loss += learn(w, (uint64_t)((step * WORKERS + w->rank) * BATCH + b));
        if ((result = gcomp_exchange_flat(w->gc, w->grad, NULL)) != GCOMP_OK) return result;
        step_own_ranges(w, step);
        gathered = gather_weights(w);
        if ((w->comm.allreduce)(w->comm.user, &loss, 1, GCOMP_F32)) gathered = 0;
        if (w->rank == 0 && (step == 1 || step % 100 == 0))
            printf("step %3d: loss %.3f\n", step, (double)loss / (BATCH * WORKERS));
    }
    if (!gathered || gcomp_stats(w->gc, &stats)) return GCOMP_CALLBACK_FAILED;
    if (w->rank == 0)
        printf("a worker sends %d bytes of gradient and %d of weights a step; an all-reduce of "
               "floats sends %d\nits optimizer takes %d bytes; without shards %d\n",
               (int)(stats.bytes_out / STEPS), (int)gathered * (WORKERS - 1),
               (int)(stats.bytes_ring / STEPS), (int)(12 * w->count), 12 * COUNT);
    return GCOMP_OK;
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    if ((w->result = train(w)) != GCOMP_OK) {
        gcomp_threads_fail(group); /* the others need not wait */
        fprintf(stderr, "worker %d: %s\n", w->rank, w->gc ? gcomp_error(w->gc) : w->why);
    }
    gcomp_close(w->gc);
    free(w->master);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[WORKERS];
    gcomp_dtype dtype = GCOMP_F32;
    const char *codec = argc > 2 ? argv[2] : "int:bits=4";
    gcomp_codec parsed;
    int failed = 0;
    args_help(argc, argv, "usage: sharded [fp32|fp16|bf16 [CODEC]]\n  fp32 and int:bits=4 if nothing is given\n");
    if (argc > 3) return args_wrong(argv[0], argv[3], NULL);
    if (argc > 1 && !strcmp(argv[1], "fp16")) dtype = GCOMP_F16;
    else if (argc > 1 && !strcmp(argv[1], "bf16")) dtype = GCOMP_BF16;
    else if (argc > 1 && strcmp(argv[1], "fp32")) return args_wrong(argv[0], argv[1], NULL);
    if (gcomp_codec_parse(&parsed, codec, NULL, 0)) return args_wrong(argv[0], "CODEC", codec);
    if (gcomp_threads_open(&group, WORKERS, 30) != 0) return 1;
    for (int r = 0; r < WORKERS; r++) {
        workers[r].comm = gcomp_threads_comm(group, r);
        workers[r].rank = r;
        workers[r].dtype = dtype;
        workers[r].codec = codec;
        if (pthread_create(&threads[r], NULL, work, &workers[r]) != 0) return 1;
    }
    for (int r = 0; r < WORKERS; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < WORKERS; r++)
        failed |= workers[r].result || memcmp(workers[r].weights, workers[0].weights, 4 * COUNT);
    gcomp_threads_close(group);
    puts(failed ? "FAILED" : "all workers have the same weights");
    return failed;
}
