/* advise.c - does compressing pay, for this model, on this machine, over which link?

   Shows     gcomp_advise, gcomp_link_of, gcomp_link_measure
   Build     make build/advise
   Run       build/advise, or build/advise CODEC... with candidates of your own

   Two workers, threads of this process, measure the candidates at the same time, as they would work. Then the
   adviser is asked about four links, and about the memory that the threads share; and steps are taken as it
   says, over a transport that is slowed down to the link, to see if they take the time that it expects. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif

#include "gcomp.h" /* implemented in build/gcomp.o */

#include "gcomp_threads.h"

#include <stdio.h>
#include <stdlib.h>

/* The matrices of ResNet-18, convolutions as output channels x all else, and its vectors. */
static const struct {
    const char *name;
    size_t rows, cols, count;
} shapes[] = {{"conv1", 64, 147, 1},       {"layer1", 64, 576, 4},     {"layer2.0", 128, 576, 1},
              {"layer2", 128, 1152, 3},    {"layer2.down", 128, 64, 1}, {"layer3.0", 256, 1152, 1},
              {"layer3", 256, 2304, 3},    {"layer3.down", 256, 128, 1}, {"layer4.0", 512, 2304, 1},
              {"layer4", 512, 4608, 3},    {"layer4.down", 512, 256, 1}, {"fc", 1000, 512, 1},
              {"fc.bias", 1000, 0, 1},     {"norm", 240, 0, 40}};
static const struct {
    const char *name;
    double bits_per_second, latency; /* 0: what is measured between the threads */
} links[] = {{"100 Mbit/s", 1e8, 1e-4}, {"1 Gbit/s", 1e9, 5e-5}, {"10 Gbit/s", 1e10, 2e-5}, {"100 Gbit/s", 1e11, 5e-6},
             {"in memory", 0, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes, LINKS = sizeof links / sizeof *links };
enum { WORKERS = 2, MOST = 64, STEPS = 3, NOISE = 1 << 16 };

static const char *codecs[GCOMP_CANDIDATES] = {"none", "fp16", "int:bits=4", "sign", "topk:density=0.01", "powersgd:rank=4"};
static size_t codec_count = 6, tensor_count, elements;
static gcomp_tensor tensors[MOST];
static gcomp_tensor_advice each[MOST]; /* rank 0's, for all */
static float noise[NOISE];

typedef struct worker {
    gcomp_threads *group;
    gcomp_comm comm; /* of the threads */
    gcomp_link link; /* what they are slowed down to; zeros: they are not */
    int rank, failed;
} worker;

static double seconds(void *user)
{
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns when the link would have carried the bytes. */
static int wait_until(double end, int status)
{
    struct timespec nap = {0, 50000};
    while (seconds(NULL) < end)
        if (end - seconds(NULL) > 2e-4)
            nanosleep(&nap, NULL);
    return status;
}

static int slow_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    const worker *w = (const worker *)user;
    double bytes = (double)count * (dtype == GCOMP_F32 || dtype == GCOMP_I32 ? 4 : dtype == GCOMP_I16 ? 2 : 1);
    double end = seconds(NULL) + w->link.sum_start + bytes * w->link.sum_byte;
    return wait_until(end, w->comm.allreduce(w->comm.user, data, count, dtype));
}

static int slow_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    const worker *w = (const worker *)user;
    double end = seconds(NULL) + w->link.gather_start + (double)bytes * w->link.gather_byte;
    return wait_until(end, w->comm.allgather(w->comm.user, mine, all, bytes));
}

static gcomp_desc desc_of(worker *w)
{
    gcomp_desc desc = {0};
    desc.comm.user = w;
    desc.comm.rank = w->comm.rank;
    desc.comm.world = WORKERS;
    desc.comm.allreduce = slow_allreduce;
    desc.comm.allgather = slow_allgather; /* it does without the others: all that are given must be slowed down */
    desc.comm.allreduce_dtypes = w->comm.allreduce_dtypes;
    desc.clock = seconds;
    return desc;
}

/* The mean time of steps that compress as advised. */
static gcomp_result take_steps(worker *w, float *grads, double *step_seconds)
{
    gcomp_desc desc = desc_of(w);
    gcomp *gc = NULL;
    gcomp_result result = gcomp_open(&gc, &desc);
    for (size_t i = 0; i < tensor_count && result == GCOMP_OK; i++) {
        gcomp_tensor tensor = tensors[i];
        tensor.codec = codecs[each[i].choice];
        result = gcomp_add_tensor(gc, &tensor);
    }
    *step_seconds = 0;
    for (int step = -1; step < STEPS && result == GCOMP_OK; step++) { /* the first one touches memory for the first time */
        double from;
        for (size_t i = 0; i < elements; i++) /* stands for a backward pass */
            grads[i] = noise[(i + i / 1000 * 7 + (size_t)(step + 2 + w->rank) * 12345) % NOISE];
        if (gcomp_threads_barrier(w->comm.user))
            result = GCOMP_CALLBACK_FAILED;
        from = seconds(NULL);
        if (result == GCOMP_OK)
            result = gcomp_exchange_flat(gc, grads, NULL);
        if (step >= 0)
            *step_seconds += (seconds(NULL) - from) / STEPS;
    }
    gcomp_close(gc);
    return result;
}

static void print_line(const char *link, const gcomp_advice *advice, double measured)
{
    double parameters[GCOMP_CANDIDATES] = {0};
    printf("%-11s %9.2f %9.2f %9.2f   ", link, 1e3 * advice->plain, 1e3 * advice->seconds, 1e3 * measured);
    if (!advice->compressed)
        printf("do not compress");
    for (size_t i = 0; i < tensor_count; i++)
        parameters[each[i].choice] += (double)(tensors[i].rows * (tensors[i].cols ? tensors[i].cols : 1));
    for (size_t c = 1; c < codec_count; c++)
        if (parameters[c] > 0)
            printf("%s for %.1f %%  ", codecs[c], 100 * parameters[c] / (double)elements);
    printf("\n");
}

static gcomp_result ask_and_try(worker *w, float *grads)
{
    gcomp_candidate candidates[GCOMP_CANDIDATES] = {{0}};
    gcomp_desc desc = desc_of(w);
    gcomp_question question = {0};
    gcomp_advice advice;
    gcomp_link here;
    gcomp_result result;
    gcomp *gc;
    char why[256] = "";
    desc.why = why;
    desc.why_capacity = sizeof why;
    for (size_t c = 0; c < codec_count; c++)
        candidates[c].codec = codecs[c];
    question.desc = &desc;
    question.tensors = tensors;
    question.tensor_count = tensor_count;
    question.candidates = candidates;
    question.candidate_count = codec_count;
    result = gcomp_open(&gc, &desc);
    if (result == GCOMP_OK)
        result = gcomp_link_measure(gc, 4 * elements, &here);
    gcomp_close(gc);
    for (size_t l = 0; l < LINKS && result == GCOMP_OK; l++) {
        double measured;
        question.link = here;
        if (links[l].bits_per_second > 0)
            question.link = gcomp_link_of(links[l].bits_per_second, links[l].latency, WORKERS);
        result = gcomp_advise(&question, w->rank == 0 ? each : NULL, &advice); /* the first time it measures */
        if (result != GCOMP_OK && w->rank == 0)
            fprintf(stderr, "%s\n", why);
        if (result == GCOMP_OK && gcomp_threads_barrier(w->comm.user)) /* all see each[] */
            result = GCOMP_CALLBACK_FAILED;
        memset(&w->link, 0, sizeof w->link);
        if (links[l].bits_per_second > 0)
            w->link = question.link;
        if (result == GCOMP_OK)
            result = take_steps(w, grads, &measured);
        if (result == GCOMP_OK && w->rank == 0)
            print_line(links[l].name, &advice, measured);
    }
    return result;
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    float *grads = (float *)malloc(4 * elements);
    gcomp_result result = grads ? ask_and_try(w, grads) : GCOMP_OUT_OF_MEMORY;
    free(grads);
    w->failed = result != GCOMP_OK;
    if (w->failed) {
        fprintf(stderr, "worker %d: %s\n", w->rank, gcomp_result_string(result));
        gcomp_threads_fail(w->group);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static char names[MOST][24];
    static worker workers[WORKERS];
    pthread_t threads[WORKERS];
    gcomp_threads *group;
    int failed = 0, started = 0;
    if (argc > GCOMP_CANDIDATES)
        return fprintf(stderr, "at most %d codecs\n", GCOMP_CANDIDATES - 1), 1;
    for (int i = 1; i < argc; i++)
        codecs[i] = argv[i];
    if (argc > 1)
        codec_count = (size_t)argc;
    for (size_t s = 0; s < SHAPES; s++)
        for (size_t k = 0; k < shapes[s].count; k++, tensor_count++) {
            snprintf(names[tensor_count], sizeof names[0], "%s.%d", shapes[s].name, (int)k);
            tensors[tensor_count].name = names[tensor_count];
            tensors[tensor_count].rows = shapes[s].rows;
            tensors[tensor_count].cols = shapes[s].cols;
            elements += shapes[s].rows * (shapes[s].cols ? shapes[s].cols : 1);
        }
    for (uint32_t i = 0, x = 1; i < NOISE; i++, x = x * 1664525u + 1013904223u) /* two uniform numbers */
        noise[i] = (float)((int)(x >> 8 & 4095) + (int)(x >> 20) - 4095) / 1672.0f;
    printf("ResNet-18, %.1f million parameters, %d workers; milliseconds a step without the backward pass\n",
           1e-6 * (double)elements, WORKERS);
    printf("%-11s %9s %9s %9s   %s\n", "link", "none", "expected", "measured", "advice");
    if (gcomp_threads_open(&group, WORKERS, 60.0) != 0)
        return 1;
    for (; started < WORKERS && !failed; started += !failed) {
        workers[started].group = group;
        workers[started].comm = gcomp_threads_comm(group, started);
        workers[started].rank = started;
        failed = pthread_create(&threads[started], NULL, work, &workers[started]) != 0;
        if (failed)
            gcomp_threads_fail(group);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        failed |= workers[i].failed;
    }
    gcomp_threads_close(group);
    return failed;
}
