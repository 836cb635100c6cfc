/* What tests of dct share: a cosine transform written from its definition in double, and steps that follow the definition of DeMo. */

#ifndef DCT_H
#define DCT_H

#include "codecs.h"
#include "run_threads.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 256 * 520, WORLD = 5, SIDE = 64, STEP = 64 * 96, GUARD = 65536 };

typedef struct shape {
    size_t rows, cols, h, w;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1},      {1, 7, 1, 7},     {7, 1, 1, 7},      {64, 64, 64, 64},  {67, 1, 1, 1},  {67, 71, 1, 1},
    {128, 192, 64, 64}, {100, 50, 50, 50}, {67, 64, 1, 64},   {64, 67, 64, 1},   {4096, 1, 1, 64}, {1, 4096, 1, 64},
    {17, 33, 17, 33},  {300, 200, 60, 50}, {48, 130, 48, 26},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };
static float g[WORLD][LARGEST], y[LARGEST], other[LARGEST];
static uint8_t payload[WORLD][GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)];
static size_t length[WORLD];

static inline gcomp_codec codec_of(const char *text)
{
    gcomp_codec codec;
    memset(&codec, 0, sizeof codec);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    return codec;
}

static inline gcomp_exec exec_of(gcomp_isa isa, int with_scratch)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    exec.scratch = with_scratch ? scratch : NULL;
    exec.scratch_bytes = with_scratch ? sizeof scratch : 0;
    return exec;
}

static inline gcomp_input input_of(const float *grad, const float *residual, const shape *s)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.residual = residual;
    in.rows = s->rows;
    in.cols = s->cols;
    in.key = gcomp_key_make(1, 2, 3, 0);
    return in;
}

static inline gcomp_result encode(const char *text, const gcomp_input *in, gcomp_isa isa, uint8_t *to, size_t *bytes)
{
    const gcomp_codec codec = codec_of(text);
    const gcomp_exec exec = exec_of(isa, 1);
    return gcomp_encode(&codec, in, &exec, to, GCOMP_BOUND(LARGEST), bytes);
}

/* The largest |x|. */
static inline double most_of(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static inline void fill(float *x, size_t n, int which, size_t worker)
{
    for (size_t i = 0; i < n; i++) x[i] = which ? shaped_gradient(which, i, n) : normal(i + 1000003 * worker);
}

/* An object with one matrix, for which base->codec is named. */
static inline gcomp *open_as(const gcomp_desc *base, int rank, int world, const shape *s, gcomp_dtype dtype)
{
    gcomp_desc desc = *base;
    gcomp_tensor tensor;
    gcomp *gc = NULL;
    memset(&tensor, 0, sizeof tensor);
    desc.comm.rank = rank;
    desc.comm.world = world;
    tensor.name = "w";
    tensor.rows = s->rows;
    tensor.cols = s->cols;
    tensor.dtype = dtype;
    tensor.codec = base->codec;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    return gc;
}

static inline gcomp *open_worker(const char *codec, int rank, int world, const shape *s, gcomp_dtype dtype, const char *residual)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.residual = residual;
    return open_as(&desc, rank, world, s, dtype);
}

static gcomp_step how; /* of the next steps; main sets it */

/* A step of all; status 1: its gather fails. Returns the result of worker 0's last call. */
static inline gcomp_result step_all(gcomp **gc, size_t world, int fails)
{
    gcomp_request q[WORLD];
    gcomp_result result = GCOMP_OK;
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_step_begin(gc[w], &how) == GCOMP_OK);
        CHECK(gcomp_step_ready(gc[w], 0, g[w]) == GCOMP_OK);
    }
    for (int call = 0;; call++) {
        for (size_t w = 0; w < world; w++) {
            const gcomp_result now = gcomp_step_next(gc[w], &q[w]);
            if (w == 0) result = now;
            CHECK(now == result);
        }
        if (result != GCOMP_OK || q[0].kind == GCOMP_DONE) break;
        for (size_t w = 0; w < world && q[0].kind == GCOMP_ALLGATHER; w++)
            for (size_t from = 0; from < world; from++)
                memcpy((char *)q[w].recv + from * q[w].stride, q[from].send, q[from].bytes[from]);
        for (size_t w = 1; w < world && q[0].kind == GCOMP_ALLREDUCE; w++)
            plain_sum(q[0].recv, q[w].recv, q[0].count, q[0].dtype);
        for (size_t w = 1; w < world && q[0].kind == GCOMP_ALLREDUCE; w++)
            memcpy(q[w].recv, q[0].recv, q[0].count * bytes_of_dtype(q[0].dtype));
        for (size_t w = 0; w < world; w++)
            result = gcomp_step_done(gc[w], q[w].id, fails && call == 1);
        if (result != GCOMP_OK) break;
    }
    for (size_t w = 0; w < world; w++)
        CHECK((result == GCOMP_OK ? gcomp_step_commit(gc[w]) : gcomp_step_abort(gc[w])) == GCOMP_OK);
    return result;
}

/* A step by the codec layer: y <- the mean of the payloads of g + d, d <- decay * what was not sent. */
static const shape step_shape = {64, 96, 64, 48};

static float d[WORLD][STEP];

static inline void plain_step(const char *text, size_t world)
{
    const gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 0);
    const float decay = codec_decay(text);
    const void *payloads[WORLD];
    for (size_t w = 0; w < world; w++) {
        const gcomp_input in = input_of(g[w], d[w], &step_shape);
        CHECK(encode(text, &in, GCOMP_ISA_AUTO, payload[w], &length[w]) == GCOMP_OK);
        payloads[w] = payload[w];
        CHECK(gcomp_retain(payload[w], length[w], &in, d[w], &exec) == GCOMP_OK);
        for (size_t i = 0; i < STEP; i++) d[w][i] *= decay;
    }
    CHECK(gcomp_decode_mean(payloads, length, world, y, GCOMP_F32, STEP, &exec) == GCOMP_OK);
}

/* Gradients that workers have in part in common. */
static inline void fill_all(size_t world, size_t step)
{
    for (size_t w = 0; w < world; w++) {
        fill(g[w], STEP, 0, 10 * w + step);
        for (size_t i = 0; i < STEP; i++) g[w][i] += normal(i);
    }
}

/* Takes a step. Returns 1 if all workers have the mean and the momentum of the definition. */
static inline int is_plain_step(gcomp **gc, const char *text, size_t world, size_t step)
{
    int same = 1;
    fill_all(world, step);
    plain_step(text, world);
    CHECK(step_all(gc, world, 0) == GCOMP_OK);
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_residual_get(gc[w], 0, other) == GCOMP_OK);
        same &= memcmp(g[w], y, 4 * STEP) == 0 && memcmp(other, d[w], 4 * STEP) == 0;
    }
    return same;
}

#endif
