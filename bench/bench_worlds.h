/* bench_worlds.h - worlds of threads: the processor time of worker 0 in a step, without that of the
   transport. */

#ifndef BENCH_WORLDS_H
#define BENCH_WORLDS_H

#include "bench_data.h"
#include "gcomp_threads.h"

enum { WORLDS = 5, LARGEST_WORLD = 64, WORLD_STEPS = 9 };

/* A worker: a thread that takes steps over a transport whose time is subtracted. */
typedef struct seat {
    gcomp_comm inner;
    const data *d;
    const char *codec;
    gcomp_isa isa;
    gcomp_aggregate way;
    int steps;
    double inside, seconds; /* of the shortest step: the others tell of the machine's other work */
} seat;

static int seat_frames(void *user, const void *mine, void *all, size_t bytes)
{
    seat *s = user;
    double from = thread_seconds();
    int status = s->inner.allgather(s->inner.user, mine, all, bytes);
    s->inside += thread_seconds() - from;
    return status;
}

static int seat_gather(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    seat *s = user;
    double from = thread_seconds();
    int status = s->inner.allgatherv(s->inner.user, mine, all, bytes, stride);
    s->inside += thread_seconds() - from;
    return status;
}

static int seat_exchange(void *user, const void *send, const size_t *sent, void *recv,
                         const size_t *awaited)
{
    seat *s = user;
    double from = thread_seconds();
    int status = s->inner.alltoallv(s->inner.user, send, sent, recv, awaited);
    s->inside += thread_seconds() - from;
    return status;
}

static void *take_steps(void *arg)
{
    seat *s = arg;
    const size_t n = s->d->n;
    float *grad = malloc(4 * n);
    void *grads[1] = {grad};
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp *gc;
    if (!grad) exit(1);
    desc.codec = s->codec;
    desc.isa = s->isa;
    desc.aggregate = s->way;
    desc.comm.user = s;
    desc.comm.rank = s->inner.rank;
    desc.comm.world = s->inner.world;
    desc.comm.allgather = seat_frames;
    desc.comm.allgatherv = seat_gather;
    desc.comm.alltoallv = seat_exchange;
    tensor.name = "w";
    tensor.rows = n / 64;
    tensor.cols = 64;
    must(gcomp_open(&gc, &desc), "open");
    must(gcomp_add_tensor(gc, &tensor), "tensor");
    must(gcomp_prepare(gc), "prepare");
    for (int step = 0; step < s->steps; step++) {
        double from;
        for (size_t i = 0; i < n; i++) grad[i] = s->d->g[(i + 7919 * (size_t)s->inner.rank) % n];
        s->inside = 0;
        from = thread_seconds();
        must(gcomp_exchange(gc, grads, NULL), gcomp_error(gc));
        from = thread_seconds() - from - s->inside;
        if (step == 0 || from < s->seconds) s->seconds = from;
    }
    gcomp_close(gc);
    free(grad);
    return NULL;
}

static double seconds_of_worker(const data *d, gcomp_isa isa, const char *codec,
                                gcomp_aggregate way, int world)
{
    static seat seats[LARGEST_WORLD];
    pthread_t threads_of[LARGEST_WORLD];
    gcomp_threads *group;
    if (gcomp_threads_open(&group, world, 60)) exit(1);
    for (int w = 0; w < world; w++) {
        memset(seats + w, 0, sizeof *seats);
        seats[w].inner = gcomp_threads_comm(group, w);
        seats[w].d = d;
        seats[w].codec = codec;
        seats[w].isa = isa;
        seats[w].way = way;
        seats[w].steps = way == GCOMP_AGGREGATE_GATHER ? WORLD_STEPS / 3 : WORLD_STEPS;
        if (pthread_create(&threads_of[w], NULL, take_steps, seats + w)) exit(1);
    }
    for (int w = 0; w < world; w++) pthread_join(threads_of[w], NULL);
    gcomp_threads_close(group);
    return seats[0].seconds;
}

/* A line for each codec and way to aggregate, a column for each world. The last two columns are
   ratios: with AUTO a worker of 64 computes what one of 4 or 8 does. */
static void bench_worlds(const data *d, gcomp_isa isa, const char *filter)
{
    /* every block method; all ways for the first three, whose payloads are short enough to be
       gathered from 64 workers. twobit with a fixed threshold and threshold1 are gathered by AUTO
       on purpose */
    static const char *const compressed[] = {
        "sign", "int",         "int:bits=4", "onebit",         "twobit:threshold=auto",
        "vote", "terngrad",    "eden",       "eden:bits=4",    "qsgd",
        "fp8",  "mx",          "nvfp4",      "nf4",            "e3m0",
        "natural", "qsgd:code=entropy", "bf16", "fp16"};
    static const char *const ways[] = {"gather", "two-shot", "auto"};
    static const gcomp_aggregate aggregates[] = {
        GCOMP_AGGREGATE_GATHER, GCOMP_AGGREGATE_TWO_SHOT, GCOMP_AGGREGATE_AUTO};
    printf("%-22s %-9s %-7s  ms of one worker: encode, add, commit of %zu elements\n"
           "%40s",
           "codec", "way", "isa", d->n, "workers");
    for (int i = 0; i < WORLDS; i++) printf("%8d", 4 << i);
    printf("   64 / 4   64 / 8\n");
    fflush(stdout);
    for (size_t c = 0; c < sizeof compressed / sizeof *compressed; c++)
        for (int way = c < 3 ? 0 : 2; way < 3; way++) {
            double ms[WORLDS];
            if (filter && strcmp(ways[way], filter) && strcmp(compressed[c], filter)) continue;
            printf("%-22s %-9s %-7s", compressed[c], ways[way], gcomp_isa_name(isa));
            for (int i = 0; i < WORLDS; i++) {
                ms[i] = 1e3 * seconds_of_worker(d, isa, compressed[c], aggregates[way], 4 << i);
                printf("%8.3f", ms[i]);
                fflush(stdout);
            }
            printf("%9.2f%9.2f\n", ms[WORLDS - 1] / ms[0], ms[WORLDS - 1] / ms[1]);
        }
}

#endif
