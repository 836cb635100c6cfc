/* python.c - the C side of bench/python.py: milliseconds of gcomp_encode of 2^24 floats, and of an exchange of 100 tensors of
   64 x 32, of one worker alone. Prints the two medians of REPEATS.

   Build and run: see bench/python.py */

#define _POSIX_C_SOURCE 200809L
#include "gcomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 1 << 24, TENSORS = 100, COUNT = 64 * 32, MOST = 1000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int rises(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, rises);
    return 1e3 * times[count / 2];
}

int main(int argc, char **argv)
{
    static double times[MOST];
    const char *codec_text = argc > 1 ? argv[1] : "int:bits=4";
    int repeats = argc > 2 ? atoi(argv[2]) : 21;
    float *x = (float *)malloc(N * sizeof *x);
    unsigned char *payload = (unsigned char *)calloc(GCOMP_BOUND(N), 1);
    float *grads[TENSORS];
    gcomp_codec codec;
    gcomp_input input = {x, GCOMP_F32, 1, NULL, N, 0, {0, 0}, 0};
    gcomp_desc desc = {0};
    gcomp *gc;
    size_t length;
    if (!x || !payload || repeats < 1 || repeats > MOST || gcomp_codec_parse(&codec, codec_text, NULL, 0)) return 1;
    for (size_t i = 0; i < N; i++) x[i] = (float)((i * 2654435761u >> 7) % 2001) - 1000.0f;
    for (int i = -2; i < repeats; i++) {
        double began = now();
        if (gcomp_encode(&codec, &input, NULL, payload, GCOMP_BOUND(N), &length)) return 1;
        if (i >= 0) times[i] = now() - began;
    }
    printf("%.4f", median(times, repeats));
    desc.codec = codec_text;
    if (gcomp_open(&gc, &desc)) return 1;
    for (int t = 0; t < TENSORS; t++) {
        char name[16];
        gcomp_tensor tensor = {name, 64, 32, 0, GCOMP_F32, NULL};
        snprintf(name, sizeof name, "t%d", t);
        if (gcomp_add_tensor(gc, &tensor)) return 1;
        grads[t] = x + t * COUNT;
    }
    for (int i = -2; i < repeats; i++) {
        double began = now();
        if (gcomp_exchange(gc, grads, NULL)) return 1;
        if (i >= 0) times[i] = now() - began;
    }
    printf(" %.4f\n", median(times, repeats));
    gcomp_close(gc);
    free(payload);
    free(x);
    return 0;
}
