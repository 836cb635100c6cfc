/* first.c - the smallest complete program: two workers exchange one gradient, one bit an element.

   Shows     gcomp_open, gcomp_add_tensor, gcomp_describe, gcomp_exchange, gcomp_stats; workers that
             are threads (gcomp_threads.h); weights that are the same on all workers, and what to
             do after a step that failed (gcomp_recover.h)
   Leaves    a network to train: see train.c
   Build     cc -I. -Iexamples/adapters examples/first.c -o build/first -pthread
   Run       build/first */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
#include "gcomp_recover.h"
#include "gcomp_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { WORKERS = 2, ROWS = 64, COLS = 32, COUNT = ROWS * COLS, STEPS = 3 };

typedef struct worker {
    gcomp_threads *group;
    int rank;
    gcomp_result result;
} worker;

/* Opens an object and gives it the tensor. On error *gc may be open: the caller closes it. */
static gcomp_result open_worker(gcomp **gc, const worker *w)
{
    gcomp_desc desc = {0};
    gcomp_tensor weights = {0};
    gcomp_result result;
    desc.codec = "sign"; /* a float for every 1024 elements, then one bit each */
    desc.comm = gcomp_threads_comm(w->group, w->rank);
    weights.name = "weights";
    weights.rows = ROWS;
    weights.cols = COLS;
    result = gcomp_open(gc, &desc);
    return result != GCOMP_OK ? result : gcomp_add_tensor(*gc, &weights);
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    float grad[COUNT], weight[COUNT];
    void *grads[1] = {grad};
    float *state[1] = {weight};
    const size_t count[1] = {COUNT};
    gcomp_recover recover = {0};
    gcomp_statistics stats;
    gcomp_tensor_info info;
    gcomp *gc = NULL;
    int stop = 0;
    for (int i = 0; i < COUNT; i++) /* stands for a network that is drawn at random */
        weight[i] = (float)((i * 29 + 7 * w->rank) % 13 - 6);
    recover.comm = gcomp_threads_comm(w->group, w->rank);
    recover.state = state;
    recover.count = count;
    recover.states = 1;
    w->result = open_worker(&gc, w);
    if (w->result != GCOMP_OK) stop = 1;
    else if (gcomp_recover_begin(&recover)) { /* all workers must begin with the same weights */
        w->result = GCOMP_CALLBACK_FAILED;
        stop = 1;
    } else if (w->rank == 0) {
        char text[200];
        gcomp_describe(gc, text, sizeof text); /* what is sent: the codec of each tensor, and why */
        fputs(text, stdout);
    }
    for (int step = 0; step < STEPS && !stop; step++) {
        float own;
        for (int i = 0; i < COUNT; i++) /* stands for a backward pass */
            grad[i] = (float)((i * 37 + 11 * w->rank) % 101 - 50) / 50.0f;
        own = grad[5];
        w->result = gcomp_exchange(gc, grads, NULL); /* grad is the mean over the workers now */
        if (w->result == GCOMP_OK && gcomp_tensor_get(gc, 0, &info) == GCOMP_OK)
            printf("step %d, worker %d: element 5 was %+.3f, mean received %+.3f, kept for "
                   "later %+.3f\n",
                   step, w->rank, (double)own, (double)grad[5], (double)info.residual[5]);
        stop = gcomp_recover_after(&recover, gc, w->result);
        for (int i = 0; i < COUNT && w->result == GCOMP_OK; i++) weight[i] -= 0.1f * grad[i];
    }
    if (!stop && gcomp_recover_compare(&recover)) { /* does any worker have other weights now? */
        fprintf(stderr, "worker %d: %s\n", w->rank, recover.why);
        w->result = GCOMP_DIVERGED;
        stop = 1;
    }
    if (!stop) w->result = gcomp_stats(gc, &stats);
    if (w->result == GCOMP_OK)
        printf("worker %d sent %llu bytes for %llu bytes of gradient: %.1f times less\n", w->rank,
               (unsigned long long)stats.bytes_out, (unsigned long long)stats.bytes_in,
               stats.ratio);
    else gcomp_threads_fail(w->group); /* the other need not wait for this one */
    gcomp_close(gc);
    return NULL;
}

static int usage(const char *argument)
{
    if (!strcmp(argument, "--help"))
        return printf("usage: first\n  two workers exchange one gradient, one bit an element\n") < 0;
    fprintf(stderr, "first: there is no argument '%s'; see first --help\n", argument);
    return 2;
}

int main(int argc, char **argv)
{
    pthread_t threads[WORKERS];
    worker workers[WORKERS];
    gcomp_threads *group;
    int started = 0, failed = 0;
    if (argc > 1) return usage(argv[1]);
    if (gcomp_threads_open(&group, WORKERS, 10.0) != 0) return 1;
    for (; started < WORKERS; started++) {
        workers[started].group = group;
        workers[started].rank = started;
        if (pthread_create(&threads[started], NULL, work, &workers[started]) != 0) {
            gcomp_threads_fail(group);
            failed = 1;
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        if (workers[i].result != GCOMP_OK) {
            fprintf(stderr, "worker %d: %s\n", i, gcomp_result_string(workers[i].result));
            failed = 1;
        }
    }
    gcomp_threads_close(group);
    return failed;
}
