/* Without arguments: threads use the library for the first time, all at once, and ThreadSanitizer
   watches. With the name of an instruction set as the argument: the exit status is 0 if the set is
   available, 1 if not. */
#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_barrier_t start;

static void *use(void *failed)
{
    float x[100] = {1, 2, 3};
    void *grads[1];
    uint8_t payload[GCOMP_BOUND(100)], scratch[GCOMP_SCRATCH(100)];
    gcomp_codec codec;
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp *gc = NULL;
    size_t length;
    int bad;
    in.grad = grads[0] = x;
    in.rows = 100;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    desc.codec = "topk";
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    tensor.name = "x";
    tensor.rows = tensor.cols = 10;
    pthread_barrier_wait(&start);
    bad = gcomp_codec_parse(&codec, "topk:density=0.1+int", NULL, 0) ||
          gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) || gcomp_decode(payload, length, x, GCOMP_F32, 100, &exec) ||
          gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &tensor) || gcomp_exchange(gc, grads, NULL);
    gcomp_close(gc);
    if (bad) *(int *)failed = 1;
    return NULL;
}

int main(int argc, char **argv)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    int i, failed[THREADS] = {0}, bad = 0;
    for (i = GCOMP_ISA_SCALAR; argc > 1; i++) {
        const char *name = gcomp_isa_name((gcomp_isa)i);
        gcomp_exec exec = {0};
        exec.isa = (gcomp_isa)i;
        if (!strcmp(name, argv[1])) return gcomp_convert(NULL, GCOMP_F32, NULL, GCOMP_F32, 0, &exec) == GCOMP_ISA_UNAVAILABLE;
        if (!strcmp(name, "unknown")) return 2;
    }
    pthread_barrier_init(&start, NULL, THREADS);
    for (i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, use, &failed[i])) return 2;
    for (i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        bad |= failed[i];
    }
    return bad;
}
