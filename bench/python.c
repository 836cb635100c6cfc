/* python.c - the C side of bench/python.py, which loads it: calls as a C program makes them, timed one by one, in processor time.

   Build   gcc -O2 -DGCOMP_EXPORT -I. -shared -fPIC bench/python.c build/libgcomp.so -o build/bench_python.so */

#define _POSIX_C_SOURCE 200809L
#include "gcomp.h"

#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of gcomp_encode of x[n]; below 0 on error. The codec was parsed before, and scratch is there. */
double time_encode(const gcomp_codec *codec, const float *x, size_t n, void *payload, size_t capacity, void *scratch, size_t bytes)
{
    gcomp_input input = {x, GCOMP_F32, 1, NULL, n, 0, {1, 1}, 0};
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, bytes, {NULL, NULL}};
    size_t length;
    double began = now();
    gcomp_result result = gcomp_encode(codec, &input, &exec, payload, capacity, &length);
    return result ? -1 : now() - began;
}


/* An object of one worker with `count` tensors of rows x cols; NULL on error. */
gcomp *open_tensors(const char *codec, int count, size_t rows, size_t cols)
{
    gcomp_desc desc = {0};
    gcomp *gc;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    desc.codec = codec;
    if (gcomp_open(&gc, &desc)) return NULL;
    for (int t = 0; t < count; t++) {
        char name[3] = {(char)('0' + t / 64), (char)('0' + t % 64), 0};
        gcomp_tensor tensor = {name, rows, cols, 0, GCOMP_F32, NULL};
        if (gcomp_add_tensor(gc, &tensor)) return NULL;
    }
    return gc;
}

/* Seconds of gcomp_exchange; below 0 on error. */
double time_exchange(gcomp *gc, void *const *grads)
{
    double began = now();
    gcomp_result result = gcomp_exchange(gc, grads, NULL);
    return result ? -1 : now() - began;
}
