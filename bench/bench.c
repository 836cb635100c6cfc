/* bench.c - speed of every codec beside the bandwidth of this machine's memory.

   Shows     GB/s of gradient (4 n bytes / time), and the ratio to axpy (a[i] += b[i]) measured in the same rounds; at last the
             index coder of sparse methods: indices a second and bits; a step of 8 workers, gathered and by ranges; and the
             mean of 8 sparse payloads against decoding and adding each
   How       pinned to a core, all contenders interleaved, median of the rounds; memory touched before; state that a commit
             changes is put back untimed
   Run       build/bench --worlds [--isa NAME] [--n COUNT] [--filter TEXT]: the step of one of 4 to 64 workers, gathered, in two
             shots; a fifth of a minute, 2 GB
             build/bench [--filter TEXT] [--isa NAME] [--n COUNT] [--data KIND] [--threads T] [--csv FILE] [--list]
             KIND of gradient: normal, cubed, zeros (90 % of them), constant, ascending, descending */

#define _GNU_SOURCE
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
#include "examples/gcomp_threads.h"

#include "bench.h"

#include <pthread.h>

enum { MAX_ROWS = 360, MAX_ROUNDS = 15 };
#define ROW_SECONDS 0.08 /* a row begins no round after that, where all are measured: two minutes in all */

static const char *const codecs[] = {
    "none", "fp16", "bf16", "fp8", "mx", "mx:format=e4m3", "mx:format=e2m3", "sign", "sign:block=tensor", "signnorm", "onebit",
    "vote", "twobit", "twobit:threshold=auto", "twobit:threshold=auto,rate=0.05", "threshold1", "terngrad", "qsgd",
    "qsgd:levels=1", "qsgd:levels=127", "qsgd:code=auto", "qsgd:levels=4,code=auto", "qsgd:levels=1,code=auto", "naturaldither",
    "natural", "int", "int:bits=4", "int:bits=2", "int:bits=4,code=auto", "int:rounding=stochastic", "int:range=affine", "eden",
    "eden:bits=2", "eden:bits=4", "topk", "topk:density=0.001", "topk:density=0.01+sign", "sampledtopk",
    "strom:threshold=0.0026+sign", "dryden", "wangni", "adacomp", "nonzero", "blocktopk", "dgc:warmup=0", "powersgd:rank=1",
    "powersgd:rank=2", "powersgd", "powersgd:rank=16", "powersgd:alternate=1", "randomk", "randomblock", "intsum",
    "intsum:bits=16", "sketch", "sketch:columns=262144", "fetch", NULL};
static const char *const kernels[] = {"encode", "encode_plain", "commit", "round_trip", "decode", "decode_add", "seal",
                                      "insert", "query", NULL}; /* these two: sketch's tables made, its candidates found */

typedef struct data {
    size_t n;
    float *g, *e, *a, *b, *y; /* gradient, residual, axpy's pair, output */
    unsigned char *payload[2], *scratch;
    size_t capacity, scratch_bytes;
    double squares; /* of g, summed */
} data;

typedef struct row {
    const char *method, *kernel;
    gcomp_isa isa;
    gcomp_codec codec;
    gcomp *gc; /* for commit and round_trip */
    double seconds[MAX_ROUNDS], ratio, compression, error;
} row;

static const char *const kinds[] = {"normal", "cubed", "zeros", "constant", "ascending", "descending", NULL};
static const char *kind = "normal";
static gcomp_parallel threads;
static size_t thread_count = 1;

/* The allocator of the objects that are measured: what is large stands as the vectors do. */
static void *allocate(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes >> 20 ? memory(bytes) : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void give_back(void *user, void *p, size_t bytes)
{
    (void)user;
    if (bytes >> 20 == 0) {
        free(p);
        return;
    }
    memcpy(&p, (char *)p - sizeof p, sizeof p);
    munmap(p, mapped(bytes));
}

/* ---------------- threads: a job is split over T threads, made anew for each (tens of microseconds, and counted) */
typedef struct share {
    size_t begin, end;
    void (*task)(void *arg, size_t index);
    void *arg;
} share;

static void *work(void *arg)
{
    share *s = arg;
    for (size_t i = s->begin; i < s->end; i++) s->task(s->arg, i);
    return NULL;
}

static void run_parallel(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    pthread_t id[16];
    share shares[16];
    size_t t;
    (void)user;
    for (t = 0; t < thread_count; t++) {
        shares[t].begin = count * t / thread_count;
        shares[t].end = count * (t + 1) / thread_count;
        shares[t].task = task;
        shares[t].arg = arg;
        if (t + 1 < thread_count && pthread_create(&id[t], NULL, work, &shares[t])) exit(1);
    }
    work(&shares[thread_count - 1]);
    for (t = 0; t + 1 < thread_count; t++) pthread_join(id[t], NULL);
}

/* ---------------- the yardsticks */
static float *axpy_a;
static const float *axpy_b;
static size_t axpy_n;
static double sink;

#if defined(__x86_64__)
__attribute__((noinline, target("avx2"))) static float read_range(const float *a, size_t n)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    float f[8];
    for (size_t i = 0; i + 32 <= n; i += 32) {
        s0 = _mm256_add_ps(s0, _mm256_loadu_ps(a + i));
        s1 = _mm256_add_ps(s1, _mm256_loadu_ps(a + i + 8));
        s2 = _mm256_add_ps(s2, _mm256_loadu_ps(a + i + 16));
        s3 = _mm256_add_ps(s3, _mm256_loadu_ps(a + i + 24));
    }
    _mm256_storeu_ps(f, _mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
    return f[0] + f[3] + f[7];
}
#else
__attribute__((noinline)) static float read_range(const float *a, size_t n)
{
    float s[4] = {0, 0, 0, 0};
    for (size_t i = 0; i + 4 <= n; i += 4)
        for (size_t j = 0; j < 4; j++) s[j] += a[i + j];
    return s[0] + s[1] + s[2] + s[3];
}
#endif

static void axpy_task(void *arg, size_t i)
{
    size_t pieces = *(size_t *)arg, begin = axpy_n * i / pieces / 16 * 16, end = axpy_n * (i + 1) / pieces / 16 * 16;
    axpy_range(axpy_a + begin, axpy_b + begin, end - begin);
}

static void axpy(data *d)
{
    size_t pieces = thread_count;
    axpy_a = d->a;
    axpy_b = d->b;
    axpy_n = d->n;
    if (thread_count > 1) run_parallel(NULL, pieces, axpy_task, &pieces);
    else axpy_range(d->a, d->b, d->n);
}

/* ---------------- the contenders */
static void must(gcomp_result r, const char *what)
{
    if (r == GCOMP_OK) return;
    fprintf(stderr, "%s: %s\n", what, gcomp_result_string(r));
    exit(1);
}

static gcomp_exec exec_of(const row *r, data *d)
{
    gcomp_exec exec = {r->isa, d->scratch, d->scratch_bytes, threads};
    return exec;
}

static void encode(row *r, data *d, const float *residual, int which, size_t *length)
{
    gcomp_exec exec = exec_of(r, d);
    gcomp_input in = {0};
    in.grad = d->g;
    in.rows = d->n;
    in.residual = residual;
    must(gcomp_encode(&r->codec, &in, &exec, d->payload[which], d->capacity, length), "encode");
}

static void commit(row *r, data *d, const size_t *lengths)
{
    const void *payloads[2] = {d->payload[0], d->payload[1]};
    must(gcomp_commit(r->gc, 0, d->y, payloads[0], lengths[0], payloads, lengths, 2), gcomp_error(r->gc));
}

/* All rounds of one worker alone; or, to encode, up to the first that is more than a frame or a scale: a sum, or dgc's payload.
   Returns the bytes it sent, without the frame. */
static size_t whole_step(row *r, data *d, int encodes)
{
    gcomp_request q;
    size_t sent = 0, bytes;
    int frame = 1; /* comes first */
    must(gcomp_step_begin(r->gc, NULL), "begin");
    must(gcomp_step_ready(r->gc, 0, d->y), "ready");
    for (;;) {
        must(gcomp_step_next(r->gc, &q), gcomp_error(r->gc));
        if (q.kind == GCOMP_DONE) break;
        bytes = q.kind == GCOMP_ALLGATHER ? q.bytes[0] : q.count * (q.dtype == GCOMP_I8 ? 1 : q.dtype == GCOMP_I16 ? 2 : 4);
        if (encodes && bytes > 64) break;
        if (q.kind == GCOMP_ALLGATHER) memcpy(q.recv, q.send, q.stride);
        if (!frame) sent += bytes;
        frame = 0;
        must(gcomp_step_done(r->gc, q.id, 0), "done");
    }
    must(encodes ? gcomp_step_abort(r->gc) : gcomp_step_commit(r->gc), "commit");
    return sent;
}

/* Fills the table of a sketch, or finds candidates in it. */
static void sketch(row *r, int query)
{
    gcomp__work work = gcomp__work_of(r->gc, r->gc->tensors);
    gcomp__sketch_job job = gcomp__sketch_job_of(&work, 0, gcomp__sketch_few(work.codec, r->gc->tensors->n));
    if (query) sink += (double)gcomp__sketch_largest(&work.call, &job)->count;
    else if (thread_count > 1) gcomp__run(&work.call, job.rows, gcomp__sketch_fill_row, &job);
    else (void)gcomp__sketch_fill(&job, 0, job.rows);
}

/* One timed call. Returns its seconds; what a commit changed is put back before, untimed. */
static double timed(row *r, data *d)
{
    gcomp_exec exec = exec_of(r, d);
    size_t lengths[2] = {0, 0};
    const char *k = r->kernel;
    int rounds = gcomp_bound(&r->codec, 1) == 0 && r->codec.method;
    int changes = rounds || !strcmp(k, "commit") || !strcmp(k, "round_trip");
    double from;
    if (changes) {
        memcpy(d->y, d->g, 4 * d->n);
        if (gcomp_residual(r->gc, 0)) memcpy((float *)(uintptr_t)gcomp_residual(r->gc, 0), d->e, 4 * d->n);
    }
    if (r->codec.method && !rounds && strcmp(k, "encode") && strcmp(k, "encode_plain")) {
        encode(r, d, d->e, 0, &lengths[0]);
        memcpy(d->payload[1], d->payload[0], lengths[0]);
        lengths[1] = lengths[0];
    }
    if (!strcmp(k, "insert") || !strcmp(k, "query")) {
        if (r->gc->tensors->method != &gcomp__row_sketch) return 1; /* too small to gain: it travels as it is */
        must(gcomp_step_begin(r->gc, NULL), "begin");
        must(gcomp_step_ready(r->gc, 0, d->y), "ready");
        must(gcomp_step_abort(r->gc), "abort");
        from = now();
        sketch(r, !strcmp(k, "query"));
        return now() - from;
    }
    from = now();
    if (!strcmp(r->method, "axpy")) axpy(d);
    else if (!strcmp(r->method, "memcpy")) memcpy(d->a, d->b, 4 * d->n);
    else if (!strcmp(r->method, "read")) sink += (double)read_range(d->b, d->n);
    else if (rounds) (void)whole_step(r, d, !strcmp(k, "encode"));
    else if (!strcmp(k, "encode")) encode(r, d, d->e, 0, &lengths[0]);
    else if (!strcmp(k, "encode_plain")) encode(r, d, NULL, 0, &lengths[0]);
    else if (!strcmp(k, "commit")) commit(r, d, lengths);
    else if (!strcmp(k, "decode")) must(gcomp_decode(d->payload[0], lengths[0], d->y, d->n, &exec), "decode");
    else if (!strcmp(k, "decode_add")) must(gcomp_decode_add(d->payload[0], lengths[0], 0.5f, d->y, d->n, &exec), "decode_add");
    else if (!strcmp(k, "seal")) must(gcomp_seal(d->payload[0], lengths[0], &exec), "seal");
    else {
        encode(r, d, gcomp_residual(r->gc, 0), 0, &lengths[0]);
        commit(r, d, lengths);
    }
    return now() - from;
}

/* ---------------- a table of rows for one size */
static size_t matrix_cols(size_t n)
{
    size_t cols = 16;
    while (cols * cols * 4 <= n) cols *= 2;
    return cols;
}

static void open_row(row *r, const data *d)
{
    gcomp_desc desc = {0};
    gcomp_tensor t = {0};
    desc.isa = r->isa;
    desc.no_checksum = 1;
    desc.parallel = threads;
    desc.allocator.alloc = allocate;
    desc.allocator.free = give_back;
    desc.seed = 1;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32; /* alone, each sum is what was sent */
    t.name = "t";
    t.cols = matrix_cols(d->n);
    t.rows = d->n / t.cols;
    t.codec = r->method;
    must(gcomp_open(&r->gc, &desc), "open");
    must(gcomp_add_tensor(r->gc, &t), "add_tensor");
    must(gcomp_prepare(r->gc), "prepare");
}

static size_t add_row(row *rows, size_t count, const char *method, const gcomp_codec *codec, const char *kernel, gcomp_isa isa,
                      const char *filter)
{
    row *r = &rows[count];
    if (filter && !strstr(method, filter) && !strstr(kernel, filter) && strcmp(method, "axpy")) return count;
    if (count == MAX_ROWS) exit((fprintf(stderr, "more than %d rows\n", MAX_ROWS), 1));
    memset(r, 0, sizeof *r);
    r->method = method;
    if (codec) r->codec = *codec;
    r->kernel = kernel;
    r->isa = isa;
    return count + 1;
}

static size_t make_rows(row *rows, gcomp_isa isa, const char *filter)
{
    size_t count = 0;
    count = add_row(rows, count, "axpy", NULL, "axpy", isa, filter);
    count = add_row(rows, count, "memcpy", NULL, "memcpy", isa, filter);
    count = add_row(rows, count, "read", NULL, "read", isa, filter);
    for (size_t c = 0; codecs[c]; c++) {
        gcomp_codec codec;
        must(gcomp_codec_parse(&codec, codecs[c], NULL, 0), codecs[c]);
        for (size_t k = 0; kernels[k]; k++) {
            int of_sketch = !strcmp(kernels[k], "insert") || !strcmp(kernels[k], "query");
            if (of_sketch && strncmp(codecs[c], "sketch", 6) != 0) continue;
            if (!of_sketch && !gcomp_bound(&codec, 1) && strcmp(kernels[k], "encode") && strcmp(kernels[k], "round_trip")) continue;
            if (!strcmp(codecs[c], "none") && strcmp(kernels[k], "round_trip")) continue; /* nothing is encoded or kept */
            count = add_row(rows, count, codecs[c], &codec, kernels[k], isa, filter);
        }
    }
    return count;
}

/* Error and ratio of a codec, without a residual, and a check that it decodes. */
static void judge(row *r, data *d)
{
    double error = 0;
    size_t length = 0;
    gcomp_exec exec = exec_of(r, d);
    if (gcomp_bound(&r->codec, 1)) {
        encode(r, d, NULL, 0, &length);
        must(gcomp_decode(d->payload[0], length, d->y, d->n, &exec), "decode");
        r->compression = 4.0 * (double)d->n / (double)length;
    } else {
        memcpy(d->y, d->g, 4 * d->n);
        if (gcomp_residual(r->gc, 0)) memset((float *)(uintptr_t)gcomp_residual(r->gc, 0), 0, 4 * d->n);
        r->compression = 4.0 * (double)d->n / (double)whole_step(r, d, 0);
    }
    for (size_t i = 0; i < d->n; i++) error += ((double)d->g[i] - (double)d->y[i]) * ((double)d->g[i] - (double)d->y[i]);
    r->error = sqrt(error / d->squares);
}

static void print_row(const row *r, size_t n, double seconds, FILE *csv)
{
    double speed = 4e-9 * (double)n / seconds;
    const char *quote = strchr(r->method, ',') ? "\"" : "";
    printf("%-24s %-13s %-7s %9zu %9.2f %7.3f %9.1f %9.2g\n", r->method, r->kernel, gcomp_isa_name(r->isa), n, speed, r->ratio,
           r->compression, r->error);
    if (csv)
        fprintf(csv, "%s%s%s,%s,%s,%zu,%zu,%.3f,%.4f,%.3f,%.6g\n", quote, r->method, quote, r->kernel, gcomp_isa_name(r->isa),
                thread_count, n, speed, r->ratio, r->compression, r->error);
    fflush(stdout);
}

static void bench(data *d, gcomp_isa isa, const char *filter, FILE *csv)
{
    static row rows[MAX_ROWS];
    size_t count = make_rows(rows, isa, filter), rounds = d->n >= (1u << 24) ? filter ? 7 : 3 : filter ? 15 : 9,
           calls = d->n >= (1u << 20) ? 1 : (1u << 19) / d->n;
    double axpy_seconds;
    for (size_t i = 0; i < count; i++) {
        row *r = &rows[i];
        if (!r->codec.method) { /* a yardstick */
            r->compression = 1;
            for (size_t k = 0; k < rounds; k++) {
                double s = 0;
                for (size_t c = 0; c < calls; c++) s += timed(r, d);
                r->seconds[k] = s / (double)calls;
            }
            if (i == 0) axpy_seconds = median(r->seconds, rounds);
            r->ratio = i == 0 ? 1 : axpy_seconds / median(r->seconds, rounds);
            print_row(r, d->n, median(r->seconds, rounds), csv);
            continue;
        }
        double ratios[MAX_ROUNDS], seconds[MAX_ROUNDS];
        if (i && rows[i - 1].method == r->method) { /* the object and what was found out serve all kernels of a codec */
            r->gc = rows[i - 1].gc;
            r->compression = rows[i - 1].compression;
            r->error = rows[i - 1].error;
        } else {
            open_row(r, d);
            judge(r, d);
        }
        size_t done = 0;
        double spent = 0;
        for (; done < rounds && (filter || spent < ROW_SECONDS); done++) { /* axpy before each: so the ratio is of neighbours */
            double a = 0, s = 0;
            for (size_t c = 0; c < calls; c++) a += timed(&rows[0], d);
            for (size_t c = 0; c < calls; c++) s += timed(r, d);
            seconds[done] = s / (double)calls;
            ratios[done] = a / s;
            spent += a + s;
        }
        r->ratio = median(ratios, done);
        print_row(r, d->n, median(seconds, done), csv);
        if (i + 1 == count || rows[i + 1].method != r->method) gcomp_close(r->gc);
    }
}

/* The index coder alone, on random indices: millions of them a second; bits each, and the least that any code takes. */
static void bench_indices(data *d, gcomp_isa isa, const char *filter)
{
    static const double densities[] = {0.1, 0.01, 0.001, 0.0001};
    const gcomp__common_kernels *common = gcomp__set_of(isa)->common;
    uint32_t *list = (uint32_t *)(void *)d->y, batch[128];
    uint64_t s = BENCH_SEED;
    if (filter && !strstr("index", filter)) return;
    for (int c = 0; c < 4; c++) {
        double seconds[2][MAX_ROUNDS], least;
        size_t k = 0, bytes = 0;
        unsigned coder = 0;
        for (size_t i = 0; i < d->n; i++) {
            if ((double)(random_word(&s) >> 11) < densities[c] * 9007199254740992.0) list[k++] = (uint32_t)i;
        }
        if (k < 100) continue;
        least = (lgamma((double)d->n + 1) - lgamma((double)k + 1) - lgamma((double)(d->n - k) + 1)) / log(2) / (double)k;
        for (size_t round = 0; round < MAX_ROUNDS; round++) {
            gcomp__indices indices;
            double from = now();
            coder = gcomp__index_coder(common, list, &k, d->n, &bytes);
            gcomp__put_indices(d->payload[0], list, &k, d->n, coder, bytes);
            seconds[0][round] = now() - from;
            from = now();
            gcomp__indices_open(&indices, d->payload[0], bytes, coder, k, d->n);
            while (indices.left && !indices.bad) gcomp__next_indices(&indices, batch, 128);
            must(gcomp__indices_end(&indices), "indices");
            seconds[1][round] = now() - from;
        }
        printf("index %-18g %-13s %-7s %9zu %9.0f %7.0f %9.3f %9.3f   M/s coded, read; bits, at least\n", densities[c],
               "random", gcomp_isa_name(isa), d->n, (double)k / median(seconds[0], MAX_ROUNDS) / 1e6,
               (double)k / median(seconds[1], MAX_ROUNDS) / 1e6, 8.0 * (double)bytes / (double)k, least);
    }
}

/* A request of all workers, carried out; returns the bytes that worker 0 gets from others. */
static size_t carry_out(gcomp_request *all, size_t world)
{
    size_t bytes = 0;
    for (size_t w = 0; w < world; w++) {
        unsigned char *to = all[w].recv;
        for (size_t from = 0; from < world; from++) {
            const unsigned char *send = all[from].send;
            const size_t length = all[w].bytes[from];
            for (size_t i = 0; all[w].kind == GCOMP_ALLTOALL && i < w; i++) send += all[from].send_bytes[i];
            memcpy(to, send, length);
            to += all[w].kind == GCOMP_ALLTOALL ? length : all[w].stride;
            bytes += w == 0 && from ? length : 0;
        }
    }
    return bytes;
}

/* A mean of 8 workers that share most of their gradient, gathered and by ranges: what one computes and receives in a step. */
static void bench_aggregate(data *d, gcomp_isa isa, const char *filter)
{
    enum { WORLD = 8, STEPS = 5 };
    static const char *const names[] = {"gather", "shards", "global"};
    const size_t n = d->n < (1u << 22) ? d->n : 1u << 22;
    static float *grad[WORLD];
    if ((filter && !strstr("aggregate", filter)) || n < (1u << 20) || thread_count > 1) return;
    for (int way = 0; way < 3; way++) {
        double seconds[STEPS];
        size_t bytes = 0;
        gcomp *gc[WORLD];
        for (size_t w = 0; w < WORLD; w++) {
            gcomp_desc desc = {0};
            gcomp_tensor tensor = {0};
            desc.comm.rank = (int)w;
            desc.comm.world = WORLD;
            desc.isa = isa;
            desc.aggregate = way ? GCOMP_AGGREGATE_SHARDS : GCOMP_AGGREGATE_GATHER;
            tensor.name = "w";
            tensor.rows = n;
            tensor.codec = way == 2 ? "topk:density=0.01,global=1" : "topk:density=0.01";
            must(gcomp_open(&gc[w], &desc), "open");
            must(gcomp_add_tensor(gc[w], &tensor), "tensor");
            must(gcomp_prepare(gc[w]), "prepare");
            if (!grad[w]) grad[w] = memory((size_t)4 << 22); /* the most that n can be */
        }
        for (int step = 0; step < STEPS; step++) {
            gcomp_request all[WORLD];
            double from;
            for (size_t w = 0; w < WORLD; w++)
                for (size_t i = 0; i < n; i++) grad[w][i] = d->g[i] + 0.3f * d->g[(i + 7919 * (w + 1)) % n];
            bytes = 0;
            seconds[step] = 0;
            for (size_t w = 0; w < WORLD; w++) {
                from = now();
                must(gcomp_step_begin(gc[w], NULL), "begin");
                must(gcomp_step_ready(gc[w], 0, grad[w]), "ready");
                seconds[step] += now() - from;
            }
            for (;;) {
                from = now();
                for (size_t w = 0; w < WORLD; w++) must(gcomp_step_next(gc[w], &all[w]), "next");
                seconds[step] += now() - from;
                if (all[0].kind == GCOMP_DONE) break;
                bytes += carry_out(all, WORLD);
                for (size_t w = 0; w < WORLD; w++) must(gcomp_step_done(gc[w], all[w].id, 0), "done");
            }
            from = now();
            for (size_t w = 0; w < WORLD; w++) must(gcomp_step_commit(gc[w]), "commit");
            seconds[step] = (seconds[step] + now() - from) / WORLD;
        }
        printf("%-24s %-13s %-7s %9zu %9.2f %7s %9zu %9s   GB/s of one of 8 workers, bytes it receives\n", "aggregate",
               names[way], gcomp_isa_name(isa), n, 4e-9 * (double)n / median(seconds, STEPS), "", bytes, "");
        for (size_t w = 0; w < WORLD; w++) gcomp_close(gc[w]);
    }
}

/* The mean of eight workers' payloads, each of other elements, and the same by decoding each to a dense vector and adding it. */
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
        in.grad = d->g + w * APART;
        in.rows = n;
        must(gcomp_encode(&codec, &in, &exec, d->payload[0] + w * room, room, &lengths[w]), "encode");
        payloads[w] = d->payload[0] + w * room;
    }
    for (size_t t = 0; t < TIMES; t++) {
        double from = now();
        must(gcomp_decode_mean(payloads, lengths, WORKERS, d->y, n, &exec), "decode_mean");
        seconds[0][t] = now() - from;
        from = now();
        for (size_t w = 0; w < WORKERS; w++) {
            must(gcomp_decode(payloads[w], lengths[w], d->b, n, &exec), "decode");
            axpy_range(d->a, d->b, n);
        }
        seconds[1][t] = now() - from;
    }
    for (size_t i = 0; i < d->n; i++) d->b[i] = 1e-9f;
    printf("%-24s %-13s %-7s %9zu %9.2f %7.2f   ms; times as fast as decoding and adding each\n", "topk:density=0.01",
           "mean of 8", gcomp_isa_name(isa), n, 1e3 * median(seconds[0], TIMES),
           median(seconds[1], TIMES) / median(seconds[0], TIMES));
}

/* ---------------- worlds of threads: the processor time of worker 0 in a step, without that of the transport */
enum { WORLDS = 5, LARGEST_WORLD = 64, WORLD_STEPS = 9 };

typedef struct seat {
    gcomp_comm inner;
    const data *d;
    const char *codec;
    gcomp_isa isa;
    gcomp_aggregate way;
    int steps;
    double inside, seconds; /* of the shortest step: the others tell of the machine's other work */
} seat;

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int seat_gather(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    seat *s = user;
    double from = thread_seconds();
    int status = s->inner.allgatherv(s->inner.user, mine, all, bytes, stride);
    s->inside += thread_seconds() - from;
    return status;
}

static int seat_exchange(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    seat *s = user;
    double from = thread_seconds();
    int status = s->inner.alltoallv(s->inner.user, send, sent, recv, awaited);
    s->inside += thread_seconds() - from;
    return status;
}

static void *take_steps(void *arg)
{
    seat *s = arg;
    const size_t n = s->d->n;
    float *grad = malloc(4 * n), *grads[1] = {grad};
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    gcomp *gc;
    if (!grad) exit(1);
    desc.codec = s->codec;
    desc.isa = s->isa;
    desc.aggregate = s->way;
    desc.comm = s->inner;
    desc.comm.user = s;
    desc.comm.allreduce = NULL;
    desc.comm.allgatherv = seat_gather;
    desc.comm.alltoallv = seat_exchange;
    tensor.name = "w";
    tensor.rows = n / 64;
    tensor.cols = 64;
    must(gcomp_open(&gc, &desc), "open");
    must(gcomp_add_tensor(gc, &tensor), "tensor");
    must(gcomp_prepare(gc), "prepare");
    for (int step = 0; step < s->steps; step++) {
        double from;
        for (size_t i = 0; i < n; i++) grad[i] = s->d->g[(i + 7919 * (size_t)s->inner.rank) % n];
        s->inside = 0;
        from = thread_seconds();
        must(gcomp_exchange(gc, grads, NULL), gcomp_error(gc));
        from = thread_seconds() - from - s->inside;
        if (step == 0 || from < s->seconds) s->seconds = from;
    }
    gcomp_close(gc);
    free(grad);
    return NULL;
}

static double seconds_of_worker(const data *d, gcomp_isa isa, const char *codec, gcomp_aggregate way, int world)
{
    static seat seats[LARGEST_WORLD];
    pthread_t threads_of[LARGEST_WORLD];
    gcomp_threads *group;
    if (gcomp_threads_open(&group, world, 60)) exit(1);
    for (int w = 0; w < world; w++) {
        memset(seats + w, 0, sizeof *seats);
        seats[w].inner = gcomp_threads_comm(group, w);
        seats[w].d = d;
        seats[w].codec = codec;
        seats[w].isa = isa;
        seats[w].way = way;
        seats[w].steps = way == GCOMP_AGGREGATE_GATHER ? WORLD_STEPS / 3 : WORLD_STEPS;
        if (pthread_create(&threads_of[w], NULL, take_steps, seats + w)) exit(1);
    }
    for (int w = 0; w < world; w++) pthread_join(threads_of[w], NULL);
    gcomp_threads_close(group);
    return seats[0].seconds;
}

static void bench_worlds(const data *d, gcomp_isa isa, const char *filter)
{
    static const char *const compressed[] = {"sign", "int", "int:bits=4"}, *const ways[] = {"gather", "two-shot"};
    printf("%-12s %-9s %-7s  ms of one worker: encode, add, commit of %zu elements\n%30s", "codec", "way", "isa", d->n, "workers");
    for (int i = 0; i < WORLDS; i++) printf("%8d", 4 << i);
    printf("   64 / 4\n");
    for (int c = 0; c < 3; c++)
        for (int way = 0; way < 2; way++) {
            double first = 0, last = 0;
            if (filter && !strstr(ways[way], filter) && strcmp(compressed[c], filter)) continue;
            printf("%-12s %-9s %-7s", compressed[c], ways[way], gcomp_isa_name(isa));
            for (int i = 0; i < WORLDS; i++) {
                last = seconds_of_worker(d, isa, compressed[c], way ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER, 4 << i);
                first = i ? first : last;
                printf("%8.3f", 1e3 * last);
                fflush(stdout);
            }
            printf("%9.2f\n", last / first);
        }
}

static void fill(data *d, size_t n)
{
    uint64_t s = BENCH_SEED;
    d->n = n;
    d->squares = 0;
    d->g = memory(4 * n);
    d->e = memory(4 * n);
    d->a = memory(4 * n);
    d->b = memory(4 * n);
    d->y = memory(4 * n);
    d->capacity = 5 * n + 128;
    d->payload[0] = memory(d->capacity);
    d->payload[1] = memory(d->capacity);
    d->scratch_bytes = GCOMP_SCRATCH(n);
    d->scratch = memory(d->scratch_bytes);
    for (size_t i = 0; i < n; i++) { /* nearly normal: twelve uniform numbers, four in a word */
        float sum = 0;
        for (int k = 0; k < 3; k++) {
            random_word(&s);
            for (int b = 0; b < 44; b += 11) sum += (float)(s >> b & 2047) / 2048.0f - 0.5f;
        }
        d->e[i] = (float)((double)((s >> 20 & 0xffff)) - 32767.5) * 1e-8f;
        if (!strcmp(kind, "cubed")) sum = sum * sum * sum;
        else if (strcmp(kind, "normal")) d->e[i] = 0;
        if (!strcmp(kind, "zeros") && (s >> 40) % 10) sum = 0;
        if (!strcmp(kind, "constant")) sum = 1;
        if (!strcmp(kind, "ascending")) sum = (float)i / (float)n;
        if (!strcmp(kind, "descending")) sum = (float)(n - i) / (float)n;
        d->g[i] = sum * 1e-3f;
        d->squares += (double)d->g[i] * (double)d->g[i];
        d->b[i] = 1e-9f;
    }
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1u << 14, 1u << 20, 1u << 25};
    const char *filter = NULL, *isa = NULL, *csv_name = NULL;
    size_t n = 0;
    FILE *csv = NULL;
    int worlds = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--worlds")) {
            worlds = 1;
            continue;
        }
        if (!strcmp(argv[i], "--list")) {
            for (size_t c = 0; codecs[c]; c++) puts(codecs[c]);
            return 0;
        }
        if (!value)
            return fprintf(stderr, "usage: bench [--filter TEXT] [--isa NAME] [--n COUNT] [--data KIND] [--threads T]"
                                   " [--csv FILE] [--list | --worlds]\n"), 2;
        i++;
        if (!strcmp(argv[i - 1], "--filter")) filter = value;
        else if (!strcmp(argv[i - 1], "--isa")) isa = value;
        else if (!strcmp(argv[i - 1], "--n")) n = strtoull(value, NULL, 0);
        else if (!strcmp(argv[i - 1], "--threads")) thread_count = strtoull(value, NULL, 0);
        else if (!strcmp(argv[i - 1], "--csv")) csv_name = value;
        else if (!strcmp(argv[i - 1], "--data")) {
            size_t k = 0;
            while (kinds[k] && strcmp(kinds[k], value)) k++;
            if (!kinds[k]) return fprintf(stderr, "no data '%s'\n", value), 2;
            kind = kinds[k];
        }
        else return fprintf(stderr, "unknown option %s\n", argv[i - 1]), 2;
    }
    if (thread_count < 1 || thread_count > 16) return fprintf(stderr, "--threads takes 1 to 16\n"), 2;
    if (thread_count > 1) threads.run = run_parallel;
    if (csv_name && !(csv = fopen(csv_name, "w"))) return perror(csv_name), 1;
    if (csv) fprintf(csv, "method,kernel,isa,threads,n,gb_per_s,ratio_to_axpy,compression_ratio,relative_error\n");
    if (thread_count == 1) pin();
    printf("gcomp %d, gcc %s, %zu thread(s)\n", gcomp_version(), __VERSION__, thread_count);
    if (worlds) {
        data d;
        fill(&d, n ? n : 1u << 19);
        bench_worlds(&d, gcomp__set_of(isa ? isa_of(isa) : GCOMP_ISA_AUTO)->isa, filter);
        return 0;
    }
    printf("%-24s %-13s %-7s %9s %9s %7s %9s %9s\n", "method", "kernel", "isa", "n", "GB/s", "/axpy", "ratio", "error");
    for (size_t s = 0; s < (n ? 1 : sizeof sizes / sizeof sizes[0]); s++) {
        data d;
        fill(&d, n ? n : sizes[s]);
        for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
            if (isa ? (gcomp_isa)i != isa_of(isa) : !gcomp_isa_available((gcomp_isa)i)) continue;
            if (!isa && i == GCOMP_ISA_SCALAR && d.n > (1u << 14)) continue; /* minutes, and nobody's choice */
            bench(&d, (gcomp_isa)i, filter, csv);
            if (d.n <= 0xffffffffu) bench_indices(&d, (gcomp_isa)i, filter);
            bench_aggregate(&d, (gcomp_isa)i, filter);
            bench_mean(&d, (gcomp_isa)i, filter);
        }
    }
    if (csv) fclose(csv);
    return sink == 12345.678 ? 1 : 0;
}
