/* Goes one of three ways through gcomp.h, and writes each call of a function that is made on it: its depth and its address.
   ways.py builds this without optimisation, so that every function says when it is entered and when it is left.

     ways a FILE   gcomp_encode of 4096 floats with int:bits=4, and gcomp_decode
     ways b FILE   the second exchange of topk:density=0.01+int among four workers, as worker 0 sees it
     ways c FILE   the same of int:bits=4: bf16 gradients, residuals of 8 bits, means of ranges */
#define GCOMP_IMPLEMENTATION
#define GCOMP_MAX_ISA 1
#include "gcomp_threads.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define UNSEEN __attribute__((no_instrument_function))
enum { WORKERS = 4, ROWS = 64, COLS = 512, COUNT = 4096 };

static FILE *calls;
static __thread int depth, watched; /* of this thread */

UNSEEN void __cyg_profile_func_enter(void *function, void *from)
{
    (void)from;
    if (watched) fprintf(calls, "%d %p\n", depth++, function);
}
UNSEEN void __cyg_profile_func_exit(void *function, void *from)
{
    (void)function, (void)from;
    depth -= watched;
}

UNSEEN static int failed(gcomp_result result, const char *why)
{
    if (result) printf("%s: %s\n", gcomp_result_string(result), why);
    return result != 0;
}

UNSEEN static int encode_and_decode(void)
{
    static float grad[COUNT], mean[COUNT];
    static unsigned char payload[GCOMP_BOUND(COUNT)];
    static gcomp_input input;
    gcomp_codec codec;
    size_t bytes = 0;
    for (int i = 0; i < COUNT; i++) grad[i] = (float)(i * 7919 % 1000 - 500);
    input.grad = grad;
    input.rows = COUNT;
    input.scale = 1;
    if (failed(gcomp_codec_parse(&codec, "int:bits=4", NULL, 0), "parse")) return 1;
    watched = 1;
    gcomp_result encoded = gcomp_encode(&codec, &input, NULL, payload, sizeof payload, &bytes);
    gcomp_result decoded = gcomp_decode(payload, bytes, mean, GCOMP_F32, COUNT, NULL);
    watched = 0;
    return failed(encoded, "encode") || failed(decoded, "decode");
}

typedef struct {
    gcomp_threads *group;
    int rank, scattered, failed;
} worker;

UNSEEN static gcomp *open_worker(const worker *w)
{
    gcomp *gc = NULL;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    desc.codec = w->scattered ? "int:bits=4" : "topk:density=0.01+int";
    desc.residual = w->scattered ? "int8" : NULL;
    desc.aggregate = w->scattered ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_GATHER;
    desc.comm = gcomp_threads_comm(w->group, w->rank);
    tensor.name = "weights";
    tensor.rows = ROWS;
    tensor.cols = COLS;
    tensor.dtype = w->scattered ? GCOMP_BF16 : GCOMP_F32;
    if (failed(gcomp_open(&gc, &desc), "open") || failed(gcomp_add_tensor(gc, &tensor), gcomp_error(gc))) exit(1);
    return gc;
}

UNSEEN static void *exchange_twice(void *arg)
{
    worker *w = arg;
    gcomp *gc = open_worker(w);
    void *grads[1] = {calloc(ROWS * COLS, 4)};
    for (int step = 0; step < 2 && !w->failed; step++) {
        for (int i = 0; i < ROWS * COLS; i++) {
            const float x = (float)((i * 7919 + w->rank * 31) % 1000 - 500);
            uint32_t bits;
            memcpy(&bits, &x, 4);
            if (w->scattered) ((uint16_t *)grads[0])[i] = (uint16_t)(bits >> 16);
            else ((float *)grads[0])[i] = x;
        }
        watched = !w->rank && step;
        const gcomp_result result = gcomp_exchange(gc, grads, NULL);
        watched = 0;
        w->failed = failed(result, gcomp_error(gc));
    }
    free(grads[0]);
    gcomp_close(gc);
    return NULL;
}

UNSEEN static int exchange(int scattered)
{
    pthread_t threads[WORKERS];
    worker workers[WORKERS] = {{0}};
    gcomp_threads *group = NULL;
    int bad = 0;
    if (gcomp_threads_open(&group, WORKERS, 60)) return 1;
    for (int w = 0; w < WORKERS; w++) {
        workers[w].group = group, workers[w].rank = w, workers[w].scattered = scattered;
        if (pthread_create(threads + w, NULL, exchange_twice, workers + w)) return 1;
    }
    for (int w = 0; w < WORKERS; w++) pthread_join(threads[w], NULL), bad |= workers[w].failed;
    gcomp_threads_close(group);
    return bad;
}

UNSEEN int main(int count, char **arg)
{
    if (count != 3 || !(calls = fopen(arg[2], "w"))) return 2;
    const int bad = arg[1][0] == 'a' ? encode_and_decode() : exchange(arg[1][0] == 'c');
    return fclose(calls) || bad;
}
