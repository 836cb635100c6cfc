/* bench_sparse.h - the index coder of sparse methods; a step of 8 workers, gathered and by ranges;
   the mean of 8 sparse payloads against decoding and adding each. */

#ifndef BENCH_SPARSE_H
#define BENCH_SPARSE_H

#include "bench_data.h"

enum { INDEX_ROUNDS = 15 };

/* The index coder alone, on random indices: millions of indices a second, bits of an index, and the
   fewest bits that any code can take. */
static void bench_indices(data *d, gcomp_isa isa, const char *filter)
{
    static const double densities[] = {0.1, 0.01, 0.001, 0.0001};
    const gcomp__sparse_kernels *kernels = gcomp__set_of(isa)->sparse;
    uint32_t *list = (uint32_t *)(void *)d->y, batch[128];
    uint64_t s = BENCH_SEED;
    if (filter && !strstr("index", filter)) return;
    for (int c = 0; c < 4; c++) {
        double seconds[2][INDEX_ROUNDS], least;
        size_t k = 0, bytes = 0;
        unsigned coder = 0;
        for (size_t i = 0; i < d->n; i++) {
            if ((double)(random_word(&s) >> 11) < densities[c] * 9007199254740992.0)
                list[k++] = (uint32_t)i;
        }
        if (k < 100) continue;
        /* log2(n! / k! / (n - k)!) / k */
        least = lgamma((double)d->n + 1) - lgamma((double)k + 1) - lgamma((double)(d->n - k) + 1);
        least /= log(2) * (double)k;
        for (size_t round = 0; round < INDEX_ROUNDS; round++) {
            gcomp__indices indices;
            double from = now();
            coder = gcomp__index_coder(kernels, list, k, d->n, &bytes);
            gcomp__put_indices(d->payload[0], list, k, coder, bytes);
            seconds[0][round] = now() - from;
            from = now();
            gcomp__indices_open(&indices, d->payload[0], bytes, coder, k, d->n);
            while (indices.left && !indices.bad) gcomp__next_indices(&indices, batch, 128);
            must(gcomp__indices_end(&indices), "indices");
            seconds[1][round] = now() - from;
        }
        printf("index %-18g %-13s %-7s %9zu %9.0f %7.0f %9.3f %9.3f   M/s coded, read; "
               "bits, at least\n",
               densities[c], "random", gcomp_isa_name(isa), d->n,
               (double)k / median(seconds[0], INDEX_ROUNDS) / 1e6,
               (double)k / median(seconds[1], INDEX_ROUNDS) / 1e6, 8.0 * (double)bytes / (double)k,
               least);
    }
}

/* Carries out a request of all workers. Returns the bytes that worker 0 gets from others. */
static size_t carry_out(gcomp_request *all, size_t world)
{
    size_t bytes = 0;
    for (size_t w = 0; w < world; w++) {
        unsigned char *to = all[w].recv;
        for (size_t from = 0; from < world; from++) {
            const unsigned char *send = all[from].send;
            const size_t length = all[w].bytes[from];
            for (size_t i = 0; all[w].kind == GCOMP_ALLTOALL && i < w; i++)
                send += all[from].send_bytes[i];
            memcpy(to, send, length);
            to += all[w].kind == GCOMP_ALLTOALL ? length : all[w].stride;
            bytes += w == 0 && from ? length : 0;
        }
    }
    return bytes;
}

enum { STEP_WORLD = 8, STEP_REPEATS = 5 };

/* Opens the objects of all workers with one vector of n elements. */
static void open_workers(gcomp **gc, size_t n, gcomp_isa isa, gcomp_aggregate way,
                         const char *codec)
{
    for (size_t w = 0; w < STEP_WORLD; w++) {
        gcomp_desc desc = {0};
        gcomp_tensor tensor = {0};
        desc.comm.rank = (int)w;
        desc.comm.world = STEP_WORLD;
        desc.isa = isa;
        desc.aggregate = way;
        tensor.name = "w";
        tensor.rows = n;
        tensor.codec = codec;
        must(gcomp_open(&gc[w], &desc), "open");
        must(gcomp_add_tensor(gc[w], &tensor), "tensor");
        must(gcomp_prepare(gc[w]), "prepare");
    }
}

/* A step of all workers. Returns the seconds of one worker, without the exchange. *bytes: what
   worker 0 receives. */
static double step_of_workers(gcomp **gc, float **grad, size_t *bytes)
{
    gcomp_request all[STEP_WORLD];
    double seconds = 0, from = now();
    *bytes = 0;
    for (size_t w = 0; w < STEP_WORLD; w++) {
        must(gcomp_step_begin(gc[w], NULL), "begin");
        must(gcomp_step_ready(gc[w], 0, grad[w]), "ready");
    }
    for (;;) {
        for (size_t w = 0; w < STEP_WORLD; w++) must(gcomp_step_next(gc[w], &all[w]), "next");
        if (all[0].kind == GCOMP_DONE) break;
        seconds += now() - from;
        *bytes += carry_out(all, STEP_WORLD);
        for (size_t w = 0; w < STEP_WORLD; w++) must(gcomp_step_done(gc[w], all[w].id, 0), "done");
        from = now();
    }
    for (size_t w = 0; w < STEP_WORLD; w++) must(gcomp_step_commit(gc[w]), "commit");
    return (seconds + now() - from) / STEP_WORLD;
}

/* The mean of 8 workers that share most of their gradient, gathered and by ranges: what one worker
   computes and receives in a step. */
static void bench_aggregate(data *d, gcomp_isa isa, const char *filter)
{
    static const char *const names[] = {"gather", "shards", "global"};
    const size_t n = d->n < (1u << 22) ? d->n : 1u << 22;
    static float *grad[STEP_WORLD];
    if ((filter && !strstr("aggregate", filter)) || n < (1u << 20) || thread_count > 1) return;
    for (size_t w = 0; w < STEP_WORLD; w++)
        if (!grad[w]) grad[w] = memory((size_t)4 << 22); /* the most that n can be */
    for (int way = 0; way < 3; way++) {
        double seconds[STEP_REPEATS];
        size_t bytes = 0;
        gcomp *gc[STEP_WORLD];
        open_workers(gc, n, isa, way ? GCOMP_AGGREGATE_SHARDS : GCOMP_AGGREGATE_GATHER,
                     way == 2 ? "topk:density=0.01,global=1" : "topk:density=0.01");
        for (int step = 0; step < STEP_REPEATS; step++) {
            for (size_t w = 0; w < STEP_WORLD; w++)
                for (size_t i = 0; i < n; i++)
                    grad[w][i] = d->g[i] + 0.3f * d->g[(i + 7919 * (w + 1)) % n];
            seconds[step] = step_of_workers(gc, grad, &bytes);
        }
        printf("%-24s %-13s %-7s %9zu %9.2f %7s %9zu %9s   GB/s of one of 8 workers, "
               "bytes it receives\n",
               "aggregate", names[way], gcomp_isa_name(isa), n,
               4e-9 * (double)n / median(seconds, STEP_REPEATS), "", bytes, "");
        for (size_t w = 0; w < STEP_WORLD; w++) gcomp_close(gc[w]);
    }
}

/* The mean of eight workers' payloads, each of other elements, and the same by decoding each to a
   dense vector and adding it. */
static void bench_mean(data *d, gcomp_isa isa, const char *filter)
{
    enum { WORKERS = 8, APART = 512, TIMES = 9 };
    const size_t n = d->n - WORKERS * APART, room = d->capacity / WORKERS;
    const void *payloads[WORKERS];
    size_t lengths[WORKERS];
    double seconds[2][TIMES];
    gcomp_exec exec = {isa, d->scratch, d->scratch_bytes, threads};
    gcomp_codec codec;
    if (d->n < (1u << 20) || (filter && !strstr("mean", filter))) return;
    must(gcomp_codec_parse(&codec, "topk:density=0.01", NULL, 0), "topk");
    for (size_t w = 0; w < WORKERS; w++) {
        gcomp_input in = {0};
        in.scale = 1;
        in.grad = d->g + w * APART;
        in.rows = n;
        must(gcomp_encode(&codec, &in, &exec, d->payload[0] + w * room, room, &lengths[w]),
             "encode");
        payloads[w] = d->payload[0] + w * room;
    }
    for (size_t t = 0; t < TIMES; t++) {
        double from = now();
        must(gcomp_decode_mean(payloads, lengths, WORKERS, d->y, GCOMP_F32, n, &exec), "decode_mean");
        seconds[0][t] = now() - from;
        from = now();
        for (size_t w = 0; w < WORKERS; w++) {
            must(gcomp_decode(payloads[w], lengths[w], d->b, GCOMP_F32, n, &exec), "decode");
            axpy_range(d->a, d->b, n);
        }
        seconds[1][t] = now() - from;
    }
    for (size_t i = 0; i < d->n; i++) d->b[i] = 1e-9f;
    printf("%-24s %-13s %-7s %9zu %9.2f %7.2f   ms; times as fast as decoding and "
           "adding each\n",
           "topk:density=0.01", "mean of 8", gcomp_isa_name(isa), n,
           1e3 * median(seconds[0], TIMES), median(seconds[1], TIMES) / median(seconds[0], TIMES));
}

#endif
