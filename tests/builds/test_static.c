/* test_static.c - GCOMP_STATIC: every public function is private to this file, and works.
   Build     cc tests/builds/test_static.c -lm; the object exports nothing but main */

#define GCOMP_STATIC
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"

#include <stdio.h>

int main(void)
{
    static float x[5000], y[5000];
    static unsigned char payload[GCOMP_BOUND(5000)], scratch[GCOMP_SCRATCH(5000)];
    gcomp_codec codec;
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp *gc = NULL;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    size_t length = 0, i;
    void *grads[1];
    int same, failed = 0;
    for (i = 0; i < 5000; i++) x[i] = (float)(i % 91) - 45.0f;
    in.grad = x;
    in.rows = 5000;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    same = gcomp_codec_parse(&codec, "bf16", NULL, 0) == GCOMP_OK &&
           gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK &&
           gcomp_decode(payload, length, y, GCOMP_F32, 5000, NULL) == GCOMP_OK && memcmp(x, y, sizeof x) == 0;
    failed += !same;
    printf("1..2\n%sok 1 - a static codec gives back what bf16 holds exactly\n", same ? "" : "not ");
    desc.codec = "fp16";
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    tensor.name = "t";
    tensor.rows = 50;
    tensor.cols = 100;
    grads[0] = y;
    same = gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK &&
           gcomp_exchange(gc, grads, NULL) == GCOMP_OK && memcmp(x, y, sizeof x) == 0;
    failed += !same;
    printf("%sok 2 - a static object exchanges with itself\n", same ? "" : "not ");
    gcomp_close(gc);
    return failed != 0;
}
