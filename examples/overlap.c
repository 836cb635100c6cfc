/* overlap.c - communication hidden behind the backward pass. Workers train a network of equal
   layers twice, from the same weights on the same batches. One training exchanges the gradients
   after the backward pass, the other one layer by layer during it. The two take turns, step by
   step. The program prints both medians, their ratio, and whether the weights are the same.

   Shows     gcomp_desc.bucket_bytes, gcomp_step_ready, gcomp_step_progress within and between
             layers, gcomp_step_finish; gcomp_sockets_overlap, gcomp_threads_overlap and
             gcomp_mpi_overlap (train_workers.h calls them)
   Leaves    real data: the network learns to give back its input
   Build     cc -O2 -I. -Iexamples/adapters examples/overlap.c gcomp_impl.c -o build/overlap -lopenblas -lm -pthread;
             mpicc -DUSE_MPI ... -o build/overlap_mpi: with MPI as a transport too
   Run       build/overlap [OPTION]... [CODEC [LAYERS WIDTH BATCH BUCKET_BYTES STEPS]]; usage says
             the rest. CODEC "none" is the baseline */

#include "gcomp.h"
#include "args.h"
#include "gcomp_recover.h"
#include "train/train_meter.h"
#include "train/train_workers.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };  /* layers, and steps */
enum { WORKERS = 256 };
enum { PARTS = 8 };  /* of a matrix product; between two of them the network makes progress */

static const char usage[] =
    "usage: overlap [OPTION]... [CODEC [LAYERS WIDTH BATCH BUCKET_BYTES STEPS]]\n"
    "Trains twice in turns: exchanges after the backward pass, and during it. Prints ms a step.\n"
    "    --transport " TRAIN_TRANSPORTS "\n"
#ifdef USE_MPI
    "                         mpi if nothing is said: workers are the ranks of mpirun\n"
#else
    "                         sockets if nothing is said\n"
#endif
    "    --workers N          of threads and sockets: 2\n"
    "    --rank R             of sockets: this process is worker R; without it all workers are\n"
    "                         processes that are made here\n"
    "    --root HOST:PORT     of sockets: where rank 0 listens; with --rank 127.0.0.1:7077, else a\n"
    "                         free port here. The secret is GCOMP_SECRET in the environment\n"
    "    --help\n"
    "CODEC int:bits=4, LAYERS 8, WIDTH 768, BATCH 64, BUCKET_BYTES 1: a layer a bucket, STEPS 30\n";

typedef struct training {
    gcomp *gc;
    int overlaps;
    gcomp_result result; /* of this step, so far */
    gcomp_recover recover;
    float *weight[MOST], *gradient[MOST];
    size_t count[MOST];
    double forward, backward, step[MOST]; /* seconds */
} training;

/* What one worker has. */
typedef struct worker {
    gcomp_comm comm;
    training after, during;
    float *x[MOST + 1], *delta, *next;
} worker;

/* What all workers are told. */
static const char *codec = "int:bits=4";
static size_t layers = 8, width = 768, batch = 64, bucket = 1, steps = 30;

static float noise(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9u;
    return (float)(int32_t)(i >> 32) / 2147483648.0f;
}

/* *p <- zeros. Returns 0, or 1 if memory is short. */
static int floats(float **p, size_t count)
{
    *p = (float *)calloc(count, sizeof **p);
    return !*p;
}

static int said(const worker *w, const char *what)
{
    fprintf(stderr, "worker %d: %s\n", w->comm.rank, what);
    return 1;
}

/* Returns 0, or 1 after saying what is wrong. */
static int open_training(worker *w, training *t, int overlaps)
{
    gcomp_desc desc = {0};
    char why[256] = "";
    desc.codec = codec;
    desc.comm = w->comm;
    desc.bucket_bytes = overlaps ? bucket : 0;
    desc.why = why;
    desc.why_capacity = sizeof why;
    if (!overlaps) desc.comm.start = NULL, desc.comm.test = NULL, desc.comm.wait = NULL;
    t->overlaps = overlaps;
    t->recover.comm = w->comm;
    t->recover.state = t->weight;
    t->recover.count = t->count;
    t->recover.states = layers;
    if (gcomp_open(&t->gc, &desc) != GCOMP_OK) return said(w, why);
    for (size_t l = 0; l < layers; l++) {
        char name[16];
        gcomp_tensor tensor = {0};
        snprintf(name, sizeof name, "layer%d", (int)l);
        tensor.name = name;
        tensor.rows = tensor.cols = width;
        if (gcomp_add_tensor(t->gc, &tensor) != GCOMP_OK) return said(w, gcomp_error(t->gc));
        t->count[l] = width * width;
        if (floats(&t->weight[l], width * width) || floats(&t->gradient[l], width * width))
            return said(w, "memory is short");
        for (size_t i = 0; i < width * width; i++)
            t->weight[l][i] = 1.7f * noise(i + l * width * width) / sqrtf((float)width);
    }
    if (gcomp_prepare(t->gc) != GCOMP_OK) return said(w, gcomp_error(t->gc));
    if (w->comm.rank == 0 && !overlaps) {
        static char text[MOST * 128];
        gcomp_describe(t->gc, text, sizeof text);
        fputs(text, stdout);
    }
    return 0;
}

static void close_training(training *t)
{
    gcomp_close(t->gc);
    for (size_t l = 0; l < layers; l++) {
        free(t->weight[l]);
        free(t->gradient[l]);
    }
}

/* c <- a * b in parts, with gcomp_step_progress between them. */
static void product(training *t, int ta, int tb, size_t rows, size_t inner, const float *a,
                    const float *b, float *c)
{
    for (size_t p = 0; p < PARTS; p++) {
        size_t from = rows * p / PARTS, count = rows * (p + 1) / PARTS - from;
        cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                    (int)count, (int)width, (int)inner, 1, a + (ta ? from : from * width),
                    (int)width, b, (int)width, 0, c + from * width, (int)width);
        if (t->overlaps && t->result == GCOMP_OK) t->result = gcomp_step_progress(t->gc);
    }
}

/* Forward pass over the batch of this step; delta <- d loss / d last layer. Returns the loss. */
static double forward(worker *w, training *t, size_t s)
{
    const size_t number = s * (size_t)w->comm.world + (size_t)w->comm.rank;
    double loss = 0;
    for (size_t i = 0; i < batch * width; i++) w->x[0][i] = noise(i + number * 1000003);
    for (size_t l = 0; l < layers; l++) {
        float *y = w->x[l + 1];
        product(t, 0, 0, batch, width, w->x[l], t->weight[l], y);
        for (size_t i = 0; i < batch * width && l + 1 < layers; i++)
            y[i] = y[i] > 0 ? y[i] : 0.1f * y[i];
    }
    for (size_t i = 0; i < batch * width; i++) {
        float error = w->x[layers][i] - w->x[0][i];
        w->delta[i] = error / (float)batch;
        loss += 0.5 * (double)w->delta[i] * (double)error;
    }
    return loss;
}

/* The last layer first: its gradient is on its way while those before it are made. */
static void backward(worker *w, training *t)
{
    for (size_t l = layers; l-- > 0;) {
        float *swap = w->delta;
        product(t, 1, 0, width, batch, w->x[l], w->delta, t->gradient[l]);
        /* This encodes the gradient. If it completes a bucket, the bucket is sent. */
        if (t->result == GCOMP_OK) t->result = gcomp_step_ready(t->gc, l, t->gradient[l]);
        if (l == 0) break;
        product(t, 0, 1, batch, width, w->delta, t->weight[l], w->next);
        for (size_t i = 0; i < batch * width; i++) w->next[i] *= w->x[l][i] > 0 ? 1 : 0.1f;
        w->delta = w->next;
        w->next = swap;
    }
}

/* Takes a step. Returns 0, or 1 after saying what is wrong: this worker stops. */
static int step(worker *w, training *t, size_t s, double *loss)
{
    float slowest = 0;
    double from;
    /* all begin together, and the time is that of the slowest */
    if (w->comm.allreduce_max(w->comm.user, &slowest, 1)) return said(w, "the transport failed");
    from = train_clock();
    t->result = gcomp_step_begin(t->gc, NULL);
    *loss = forward(w, t, s);
    t->forward = train_clock() - from;
    backward(w, t);
    t->backward = train_clock() - from - t->forward;
    if (t->result == GCOMP_OK) t->result = gcomp_step_finish(t->gc);
    if (gcomp_recover_after(&t->recover, t->gc, t->result)) return 1;
    for (size_t l = 0; l < layers && t->result == GCOMP_OK; l++)
        cblas_saxpy((int)(width * width), -0.01f, t->gradient[l], 1, t->weight[l], 1);
    slowest = (float)(train_clock() - from);
    if (w->comm.allreduce_max(w->comm.user, &slowest, 1)) return said(w, "the transport failed");
    t->step[s] = (double)slowest;
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Both trainings. Returns 0, or 1 if something is wrong. */
static int train(worker *w)
{
    training *after = &w->after, *during = &w->during;
    double loss[2] = {0, 0};
    float differ = 0; /* on any worker */
    int error = floats(&w->delta, batch * width) || floats(&w->next, batch * width);
    for (size_t l = 0; l <= layers && !error; l++) error = floats(&w->x[l], batch * width);
    if (error) return said(w, "memory is short");
    if (open_training(w, after, 0) || open_training(w, during, 1)) return 1;
    for (size_t s = 0; s < steps; s++)
        if (step(w, after, s, &loss[0]) || step(w, during, s, &loss[1])) return 1;
    for (size_t l = 0; l < layers; l++)
        for (size_t i = 0; i < width * width; i++)
            if (after->weight[l][i] != during->weight[l][i]) differ = 1;
    if (w->comm.allreduce_max(w->comm.user, &differ, 1)) return said(w, "the transport failed");
    qsort(after->step, steps, sizeof(double), by_size);
    qsort(during->step, steps, sizeof(double), by_size);
    if (w->comm.rank == 0)
        printf("%s: ms a step: sent after the backward pass %.1f (forward %.1f, backward "
               "and encoding %.1f), during it %.1f: "
               "%.2f times as fast; loss %.3f, %.3f; weights %s\n",
               codec, 1e3 * after->step[steps / 2], 1e3 * after->forward, 1e3 * after->backward,
               1e3 * during->step[steps / 2], after->step[steps / 2] / during->step[steps / 2],
               loss[0], loss[1], differ > 0 ? "differ" : "the same");
    return differ > 0 && w->comm.world <= 2; /* of more, MPI may add floats in another order */
}

/* What a worker does: see train_workers.h. */
static int work(void *job, const gcomp_comm *comm)
{
    worker *w = (worker *)calloc(1, sizeof *w);
    int error = 1;
    (void)job;
    if (!w) return 1;
    w->comm = *comm;
    error = train(w);
    close_training(&w->after);
    close_training(&w->during);
    for (size_t l = 0; l <= layers; l++) free(w->x[l]);
    free(w->delta);
    free(w->next);
    free(w);
    return error;
}

/* Sets what the arguments say. Returns 0, or 2 after saying which one is wrong. */
static int read_arguments(int argc, char **argv, train_workers *w)
{
    static const char *const names[] = {"CODEC", "LAYERS", "WIDTH", "BATCH", "BUCKET_BYTES",
                                        "STEPS"};
    static const double most[] = {MOST, 1 << 15, 1 << 20, 1e15, MOST};
    size_t *const sizes[] = {&layers, &width, &batch, &bucket, &steps};
    int at = 0; /* arguments without a name so far */
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        const size_t number = args_number(value, WORKERS);
        char *end = NULL;
        if (!strncmp(name, "--", 2)) {
            int wrong;
            if (!strcmp(name, "--transport"))
                w->transport = value, wrong = !train_workers_know(value);
            else if (!strcmp(name, "--workers")) w->world = (int)number, wrong = !number;
            else if (!strcmp(name, "--root")) w->root = value, wrong = !strchr(value, ':');
            else if (!strcmp(name, "--rank"))
                w->rank = (int)number, wrong = !number && strcmp(value, "0") != 0;
            else return args_wrong(argv[0], name, NULL);
            if (wrong) return args_wrong(argv[0], name, value);
            i++;
        } else if (at == 0) {
            codec = name;
            at = 1;
        } else if (at < 6) {
            const double size = strtod(name, &end);
            if (*end || !(size >= 1 && size <= most[at - 1]))
                return args_wrong(argv[0], names[at], name);
            *sizes[at++ - 1] = (size_t)size;
        } else {
            return args_wrong(argv[0], name, NULL);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static train_workers workers;
    int status;
    args_help(argc, argv, usage);
#ifndef USE_MPI
    workers.transport = "sockets";
#endif
    workers.world = 2;
    workers.rank = -1;
    workers.overlaps = 1;
    status = read_arguments(argc, argv, &workers);
    if (status) return status;
    status = train_workers_begin(&workers, WORKERS);
    if (!status) status = train_workers_run(&workers, work, NULL);
    return train_workers_end(&workers, status);
}
