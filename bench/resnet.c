/* resnet.c - whole steps of PowerSGD on the tensors of a ResNet-18, four workers as threads of this
   process.

   Shows     milliseconds of gcomp_exchange, from the moment all workers begin to the moment the
             last one has the mean
   How       one thread a worker; normally distributed gradients, written anew before each step,
             untimed; median
   Run       build/resnet [--codec CODEC] [--steps N]; bench/torch_hook.py runs it beside PyTorch's
             hook */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h" /* implemented in build/gcomp.o */

#include "../examples/args.h"
#include "gcomp_threads.h"

#include <stdio.h>
#include <stdlib.h>

/* Every parameter of torchvision's resnet18: convolutions as output channels x all else; scales and
   shifts of norms. */
static const struct {
    size_t rows, cols, count;
} shapes[] = {{64, 147, 1},   {64, 576, 4},   {128, 576, 1}, {128, 1152, 3}, {128, 64, 1},
              {256, 1152, 1}, {256, 2304, 3}, {256, 128, 1}, {512, 2304, 1}, {512, 4608, 3},
              {512, 256, 1},  {1000, 512, 1}, {1000, 0, 1},  {64, 0, 10},    {128, 0, 10},
              {256, 0, 10},   {512, 0, 10}};
enum { WORKERS = 4, SHAPES = sizeof shapes / sizeof *shapes, NOISE = 1 << 16 };
#define MOST_STEPS 1000

static const char *codec = "powersgd:rank=2";
static int steps = 30;
static float noise[NOISE];
static double began[WORKERS], ended[MOST_STEPS][WORKERS], first[MOST_STEPS][WORKERS];
static double ratio;

typedef struct worker {
    gcomp_comm comm;
    gcomp_threads *group;
    int failed;
} worker;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gcomp_result open_with_tensors(gcomp **gc, const worker *w, size_t *elements)
{
    gcomp_desc desc = {0};
    gcomp_result result;
    desc.codec = codec;
    desc.comm = w->comm;
    result = gcomp_open(gc, &desc);
    *elements = 0;
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t k = 0; k < shapes[s].count && result == GCOMP_OK; k++) {
            gcomp_tensor tensor = {0};
            char name[32];
            snprintf(name, sizeof name, "%d.%d", (int)s, (int)k);
            tensor.name = name;
            tensor.rows = shapes[s].rows;
            tensor.cols = shapes[s].cols;
            result = gcomp_add_tensor(*gc, &tensor);
            *elements += shapes[s].rows * (shapes[s].cols ? shapes[s].cols : 1);
        }
    }
    return result;
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    const int rank = w->comm.rank;
    size_t elements;
    gcomp *gc = NULL;
    gcomp_result result = open_with_tensors(&gc, w, &elements);
    float *grads = (float *)malloc(4 * elements + 4);
    if (!grads) result = GCOMP_OUT_OF_MEMORY;
    /* two untimed: memory, warm start */
    for (int step = -2; step < steps && result == GCOMP_OK; step++) {
        for (size_t i = 0; i < elements; i++)
            grads[i] = noise[(i + i / 1000 * 7 + (size_t)(step + 3 + 31 * rank) * 12345) % NOISE];
        if (gcomp_threads_barrier(w->comm.user)) result = GCOMP_CALLBACK_FAILED;
        began[rank] = seconds();
        if (result == GCOMP_OK) result = gcomp_exchange_flat(gc, grads, NULL);
        if (step >= 0) {
            first[step][rank] = began[rank];
            ended[step][rank] = seconds();
        }
    }
    if (result == GCOMP_OK && rank == 0) {
        gcomp_statistics stats;
        result = gcomp_stats(gc, &stats);
        ratio = stats.ratio;
    }
    if (result != GCOMP_OK) {
        fprintf(stderr, "worker %d: %s: %s\n", rank, gcomp_result_string(result), gcomp_error(gc));
        gcomp_threads_fail(w->group);
    }
    w->failed = result != GCOMP_OK;
    gcomp_close(gc);
    free(grads);
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static worker workers[WORKERS];
    static double t[MOST_STEPS];
    pthread_t threads[WORKERS];
    gcomp_threads *group;
    int failed = 0, started = 0;
    args_help(argc, argv, "usage: resnet [--codec CODEC] [--steps 1.." ARGS_TEXT(MOST_STEPS) "]; takes some 5 s\n");
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        gcomp_codec parsed;
        int good;
        if (!strcmp(argv[i], "--codec")) good = *(codec = value) && !gcomp_codec_parse(&parsed, value, NULL, 0);
        else if (!strcmp(argv[i], "--steps")) good = (steps = (int)args_number(value, MOST_STEPS)) != 0;
        else return args_wrong(argv[0], argv[i], NULL);
        if (!good) return args_wrong(argv[0], argv[i], value);
    }
    for (uint32_t i = 0, x = 1; i < NOISE; i++) { /* four uniform numbers: nearly normal */
        float sum = 0;
        for (int k = 0; k < 4; k++, x = x * 1664525u + 1013904223u)
            sum += (float)(x >> 8) / 8388608.0f - 1;
        noise[i] = sum;
    }
    if (gcomp_threads_open(&group, WORKERS, 60.0) != 0) return 1;
    for (; started < WORKERS && !failed; started += !failed) {
        workers[started].group = group;
        workers[started].comm = gcomp_threads_comm(group, started);
        failed = pthread_create(&threads[started], NULL, work, &workers[started]) != 0;
        if (failed) gcomp_threads_fail(group);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        failed |= workers[i].failed;
    }
    gcomp_threads_close(group);
    if (failed) return 1;
    for (int step = 0; step < steps; step++) {
        double from = first[step][0], to = ended[step][0];
        for (int w = 1; w < WORKERS; w++) {
            from = first[step][w] < from ? first[step][w] : from;
            to = ended[step][w] > to ? ended[step][w] : to;
        }
        t[step] = 1e3 * (to - from);
    }
    qsort(t, (size_t)steps, sizeof *t, ascending);
    printf("%s: %.2f ms a step (%.2f to %.2f in %d steps), %.1f times fewer bytes\n", codec,
           t[steps / 2], t[0], t[steps - 1], steps, ratio);
    return 0;
}
