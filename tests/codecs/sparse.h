/* What tests of sparse methods share: which elements were sent is read off the decoded vector. */

#ifndef SPARSE_H
#define SPARSE_H

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 70000 };
enum { NORMAL, ONE_SIDED, MOSTLY_ZERO, ALL_ZERO, CONSTANT, HEAVY, TINY, SHAPES };
static float g[LARGEST], e[LARGEST], p[LARGEST], d[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)];
static gcomp_isa isa;
static const size_t sizes[] = {0, 1, 2, 15, 16, 17, 100, 1000, 4096, 5000, 33000, LARGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static inline void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = sqrt(-2 * log(uniform(2 * i) + 1e-18)) * cos(6.283185307179586 * uniform(2 * i + 1));
        if (shape == ONE_SIDED) v = -fabs(v) - 0.1;
        if (shape == MOSTLY_ZERO && uniform(3 * i + 7) < 0.9) v = 0;
        if (shape == ALL_ZERO) v = 0;
        if (shape == CONSTANT) v = 0.75;
        if (shape == HEAVY) v = v * v * v;
        if (shape == TINY) v *= 1e-41;
        g[i] = (float)v;
        e[i] = shape == NORMAL ? (float)(0.25 * uniform(i + 77)) : 0;
        p[i] = g[i] + e[i];
    }
}

/* Encodes g and e and decodes to d. */
static inline gcomp_result send(const char *text, size_t n)
{
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    size_t length = 0;
    gcomp_result result = gcomp_codec_parse(&codec, text, NULL, 0);
    CHECK(result == GCOMP_OK);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    in.grad = g;
    in.residual = e;
    in.rows = n;
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.isa = isa;
    exec.scratch = scratch;
    exec.scratch_bytes = scratch_of(&codec, n);
    CHECK(exec.scratch_bytes <= GCOMP_SCRATCH(n));
    result = gcomp_encode(&codec, &in, &exec, payload, gcomp_bound(&codec, n, NULL), &length);
    if (result != GCOMP_OK) return result;
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, d, GCOMP_F32, n, &exec) == GCOMP_OK);
    return GCOMP_OK;
}

static inline size_t count(size_t n)
{
    size_t sent = 0;
    for (size_t i = 0; i < n; i++) sent += d[i] != 0;
    return sent;
}

#endif
