/* overlap.c - communication hidden behind the backward pass. Ranks of MPI train a network of equal
   layers twice, from the same weights on the same batches. One training exchanges the gradients
   after the backward pass, the other one layer by layer during it. The two take turns, step by
   step. The program prints both medians, their ratio, and whether the weights are the same.

   Shows     gcomp_desc.bucket_bytes, gcomp_step_ready, gcomp_step_progress within and between
             layers, gcomp_step_finish, gcomp_mpi_overlap
   Leaves    real data: the network learns to give back its input
   Build     mpicc -O2 -I. examples/overlap.c gcomp_impl.c -o build/overlap -lopenblas -lm
   Run       mpirun -n 2 build/overlap [CODEC [LAYERS WIDTH BATCH BUCKET_BYTES STEPS]]
             CODEC "none" is the baseline */

#include "gcomp.h"
#include "gcomp_mpi.h"
#include "gcomp_recover.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };  /* layers, and steps */
enum { PARTS = 8 };  /* of a matrix product; between two of them the network makes progress */

typedef struct training {
    gcomp *gc;
    int overlaps;
    gcomp_result result; /* of this step, so far */
    gcomp_recover recover;
    float *weight[MOST], *gradient[MOST];
    size_t count[MOST];
    double forward, backward, step[MOST]; /* seconds */
} training;

static gcomp_mpi blocking, nonblocking;
static size_t layers = 8, width = 768, batch = 64, bucket = 1, steps = 30;
static float *x[MOST + 1], *delta, *next;

static float noise(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9u;
    return (float)(int32_t)(i >> 32) / 2147483648.0f;
}

static float *floats(size_t count)
{
    float *p = (float *)calloc(count, sizeof *p);
    if (!p) MPI_Abort(MPI_COMM_WORLD, 1);
    return p;
}

static void must(training *t, gcomp_result result)
{
    if (result != GCOMP_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", blocking.rank, gcomp_result_string(result),
                t->gc ? gcomp_error(t->gc) : "");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void open_training(training *t, const char *codec, int overlaps)
{
    gcomp_desc desc = {0};
    char why[256] = "";
    desc.codec = codec;
    desc.comm = gcomp_mpi_comm(overlaps ? &nonblocking : &blocking);
    desc.bucket_bytes = overlaps ? bucket : 0;
    desc.why = why;
    desc.why_capacity = sizeof why;
    t->overlaps = overlaps;
    if (gcomp_open(&t->gc, &desc) != GCOMP_OK)
        fprintf(stderr, "%s\n", why), MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t l = 0; l < layers; l++) {
        char name[16];
        gcomp_tensor tensor = {0};
        snprintf(name, sizeof name, "layer%d", (int)l);
        tensor.name = name;
        tensor.rows = tensor.cols = width;
        must(t, gcomp_add_tensor(t->gc, &tensor));
        t->count[l] = width * width;
        t->weight[l] = floats(width * width);
        t->gradient[l] = floats(width * width);
        for (size_t i = 0; i < width * width; i++)
            t->weight[l][i] = 1.7f * noise(i + l * width * width) / sqrtf((float)width);
    }
    t->recover.comm = gcomp_mpi_comm(&blocking);
    t->recover.state = t->weight;
    t->recover.count = t->count;
    t->recover.states = layers;
    must(t, gcomp_prepare(t->gc));
    if (blocking.rank == 0 && !overlaps) {
        static char text[MOST * 128];
        gcomp_describe(t->gc, text, sizeof text);
        fputs(text, stdout);
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

/* Takes a step and returns the loss. */
static double step(training *t, size_t s)
{
    double from = MPI_Wtime(), loss = 0;
    for (size_t i = 0; i < batch * width; i++)
        x[0][i] = noise(i + (s * (size_t)blocking.world + (size_t)blocking.rank) * 1000003);
    t->result = gcomp_step_begin(t->gc, NULL);
    for (size_t l = 0; l < layers; l++) {
        product(t, 0, 0, batch, width, x[l], t->weight[l], x[l + 1]);
        for (size_t i = 0; i < batch * width && l + 1 < layers; i++)
            x[l + 1][i] = x[l + 1][i] > 0 ? x[l + 1][i] : 0.1f * x[l + 1][i];
    }
    for (size_t i = 0; i < batch * width; i++) {
        delta[i] = (x[layers][i] - x[0][i]) / (float)batch;
        loss += 0.5 * (double)delta[i] * (double)(x[layers][i] - x[0][i]);
    }
    t->forward = MPI_Wtime() - from;
    for (size_t l = layers; l-- > 0;) {
        float *swap = delta;
        product(t, 1, 0, width, batch, x[l], delta, t->gradient[l]);
        /* This encodes the gradient. If it completes a bucket, the bucket is sent. */
        if (t->result == GCOMP_OK) t->result = gcomp_step_ready(t->gc, l, t->gradient[l]);
        if (l == 0) break;
        product(t, 0, 1, batch, width, delta, t->weight[l], next);
        for (size_t i = 0; i < batch * width; i++) next[i] *= x[l][i] > 0 ? 1 : 0.1f;
        delta = next;
        next = swap;
    }
    t->backward = MPI_Wtime() - from - t->forward;
    if (t->result == GCOMP_OK) t->result = gcomp_step_finish(t->gc);
    if (gcomp_recover_after(&t->recover, t->gc, t->result)) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t l = 0; l < layers && t->result == GCOMP_OK; l++)
        cblas_saxpy((int)(width * width), -0.01f, t->gradient[l], 1, t->weight[l], 1);
    t->step[s] = MPI_Wtime() - from;
    /* the time of the slowest rank */
    MPI_Allreduce(MPI_IN_PLACE, &t->step[s], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return loss;
}

static int by_size(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

int main(int argc, char **argv)
{
    static training after, during;
    const char *codec = argc > 1 ? argv[1] : "int:bits=4";
    size_t *const sizes[] = {&layers, &width, &batch, &bucket, &steps};
    double loss[2] = {0, 0};
    int same = 1;
    for (int i = 2; i < argc && i < 7; i++) *sizes[i - 2] = (size_t)strtod(argv[i], NULL);
    MPI_Init(&argc, &argv);
    if (layers < 1 || layers > MOST || width < 1 || batch < 1 || steps < 1 || steps > MOST ||
        gcomp_mpi_open(&blocking, MPI_COMM_WORLD) || gcomp_mpi_open(&nonblocking, MPI_COMM_WORLD) ||
        gcomp_mpi_overlap(&nonblocking))
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t l = 0; l <= layers; l++) x[l] = floats(batch * width);
    delta = floats(batch * width);
    next = floats(batch * width);
    open_training(&after, codec, 0);
    open_training(&during, codec, 1);
    for (size_t s = 0; s < steps; s++) {
        MPI_Barrier(MPI_COMM_WORLD);
        loss[0] = step(&after, s);
        MPI_Barrier(MPI_COMM_WORLD);
        loss[1] = step(&during, s);
    }
    for (size_t l = 0; l < layers; l++)
        for (size_t i = 0; i < width * width; i++)
            same &= after.weight[l][i] == during.weight[l][i];
    MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    qsort(after.step, steps, sizeof(double), by_size);
    qsort(during.step, steps, sizeof(double), by_size);
    if (blocking.rank == 0)
        printf("%s: ms a step: sent after the backward pass %.1f (forward %.1f, backward "
               "and encoding %.1f), during it %.1f: "
               "%.2f times as fast; loss %.3f, %.3f; weights %s\n",
               codec, 1e3 * after.step[steps / 2], 1e3 * after.forward, 1e3 * after.backward,
               1e3 * during.step[steps / 2], after.step[steps / 2] / during.step[steps / 2],
               loss[0], loss[1], same ? "the same" : "differ");
    gcomp_close(after.gc);
    gcomp_close(during.gc);
    gcomp_mpi_close(&blocking);
    gcomp_mpi_close(&nonblocking);
    MPI_Finalize();
    return !same && blocking.world <= 2; /* of more ranks MPI may add floats in another order */
}
