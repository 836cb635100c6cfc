/* multi_b.c - the file beside multi_a.c: declarations only, linked against its implementation. */

#include "gcomp.h"

gcomp_result multi_b_round_trip(const char *text, const float *x, float *y, size_t n);

gcomp_result multi_b_round_trip(const char *text, const float *x, float *y, size_t n)
{
    static unsigned char payload[GCOMP_BOUND(100)], scratch[GCOMP_SCRATCH(100)];
    gcomp_codec codec;
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp_result result;
    size_t length = 0;
    if (n > 100) return GCOMP_DST_TOO_SMALL;
    in.grad = x;
    in.rows = n;
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    result = gcomp_codec_parse(&codec, text, NULL, 0);
    if (result == GCOMP_OK) result = gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length);
    if (result == GCOMP_OK) result = gcomp_decode(payload, length, y, GCOMP_F32, n, &exec);
    return result;
}
