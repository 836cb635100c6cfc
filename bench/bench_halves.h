/* bench_halves.h - gradients in bf16 beside the same numbers as floats: elements a second of encoding
   (gcomp_encode), of the encoding half of a step (gcomp_step_ready), and of its commit. The two types
   take turns; the figure of each is its best turn, in processor time of this thread. */

#ifndef BENCH_HALVES_H
#define BENCH_HALVES_H

#include "bench_data.h"

enum { HALF_TURNS = 25 };

/* Seconds of one call on gradients of a type: gcomp_encode, or the two parts of a step of one worker.
   A method without a payload encodes in steps alone: returns 0 seconds. */
static double half_encode(data *d, const gcomp_codec *codec, gcomp_isa isa, const void *grad, gcomp_dtype dtype)
{
    gcomp_exec exec = {isa, d->scratch, d->scratch_bytes, threads};
    gcomp_input in = {0};
    in.scale = 1;
    size_t length;
    if (!gcomp_bound(codec, 1, NULL)) return 0;
    in.grad = grad;
    in.dtype = dtype;
    in.rows = d->n;
    in.residual = d->e;
    in.key = gcomp_key_make(1, 0, 0, 0);
    const double from = thread_seconds();
    must(gcomp_encode(codec, &in, &exec, d->payload[0], d->capacity, &length), "encode");
    return thread_seconds() - from;
}

static void half_step(gcomp *gc, void *grad, double *ready, double *commit)
{
    gcomp_request q;
    must(gcomp_step_begin(gc, NULL), "begin");
    double from = thread_seconds();
    must(gcomp_step_ready(gc, 0, grad), "ready");
    *ready = thread_seconds() - from;
    for (;;) {
        must(gcomp_step_next(gc, &q), gcomp_error(gc));
        if (q.kind == GCOMP_DONE) break;
        if (q.kind == GCOMP_ALLGATHER) memcpy(q.recv, q.send, q.stride);
        must(gcomp_step_done(gc, q.id, 0), "done");
    }
    from = thread_seconds();
    must(gcomp_step_commit(gc), "commit");
    *commit = thread_seconds() - from;
}

static void half_print(const char *text, const char *part, gcomp_isa isa, const data *d, const double *best)
{
    if (best[0] > 0 && best[0] < 1e9)
        printf("%-24s %-8s %-7s %9zu %9.3f %9.3f %7.2f\n", text, part, gcomp_isa_name(isa), d->n, 1e-9 * (double)d->n / best[0],
               1e-9 * (double)d->n / best[1], best[0] / best[1]);
}

static void bench_halves(data *d, gcomp_isa isa, const char *filter)
{
    static const char *const texts[] = {"sign", "int", "int:bits=4", "mx", "bf16", "eden", "topk", "topk:density=0.01,exact=0",
                                        "powersgd", "randomk"};
    uint16_t *half = memory(2 * d->n), *work = memory(2 * d->n);
    for (size_t i = 0; i < d->n; i++) { /* both types have the same numbers */
        uint32_t u;
        memcpy(&u, d->g + i, 4);
        half[i] = (uint16_t)(u >> 16);
        u &= 0xffff0000u;
        memcpy(d->g + i, &u, 4);
    }
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
        double best[3][2] = {{1e9, 1e9}, {1e9, 1e9}, {1e9, 1e9}}, now_is[3]; /* encode, ready, commit; float, bf16 */
        gcomp *gc[2];
        gcomp_codec codec;
        if (filter && !strstr(texts[c], filter)) continue;
        must(gcomp_codec_parse(&codec, texts[c], NULL, 0), texts[c]);
        for (int k = 0; k < 2; k++) {
            gcomp_desc desc = {0};
            gcomp_tensor t = {0};
            desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
            desc.isa = isa;
            desc.parallel = threads;
            desc.no_checksum = 1;
            desc.allocator.alloc = allocate;
            desc.allocator.free = give_back;
            t.name = "t";
            t.cols = matrix_cols(d->n);
            t.rows = d->n / t.cols;
            t.codec = texts[c];
            t.dtype = k ? GCOMP_BF16 : GCOMP_F32;
            must(gcomp_open(&gc[k], &desc), "open");
            must(gcomp_add_tensor(gc[k], &t), "add_tensor");
            must(gcomp_prepare(gc[k]), "prepare");
        }
        for (int turn = 0; turn < HALF_TURNS; turn++)
            for (int k = 0; k < 2; k++) {
                now_is[0] = half_encode(d, &codec, isa, k ? (void *)half : d->g, k ? GCOMP_BF16 : GCOMP_F32);
                if (k) memcpy(work, half, 2 * d->n);
                else memcpy(d->y, d->g, 4 * d->n);
                half_step(gc[k], k ? (void *)work : d->y, &now_is[1], &now_is[2]);
                for (int part = 0; part < 3; part++)
                    if (now_is[part] < best[part][k]) best[part][k] = now_is[part];
            }
        half_print(texts[c], "encode", isa, d, best[0]);
        half_print(texts[c], "ready", isa, d, best[1]);
        half_print(texts[c], "commit", isa, d, best[2]);
        fflush(stdout);
        for (int k = 0; k < 2; k++) gcomp_close(gc[k]);
    }
}

#endif
