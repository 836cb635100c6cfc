/* bench_codecs.h - speed of every codec in GB/s of gradient, beside axpy in the same rounds: a row
   for each codec and kernel, or a bar while they are measured and a screen at the end. */

#ifndef BENCH_CODECS_H
#define BENCH_CODECS_H

#include "bench_data.h"
#include "codecs.h"

enum { MAX_ROWS = 720, MAX_ROUNDS = 15 };
/* Where all rows are measured, a row begins no round after that: two minutes in all. */
#define ROW_SECONDS 0.08

/* insert and query are of sketch alone: its tables are made, its candidates found. */
static const char *const kernels[] = {"encode", "encode_plain", "commit", "round_trip", "decode",
                                      "decode_add", "seal", "insert", "query", NULL};

typedef struct row {
    const char *method, *kernel;
    gcomp_isa isa;
    gcomp_codec codec;
    gcomp *gc; /* for commit and round_trip */
    double seconds[MAX_ROUNDS], speed, ratio, compression, error;
} row;

/* Where rows go, and how many there are in all. */
typedef struct report {
    FILE *csv;  /* NULL: nowhere */
    int each;   /* 1: each row is printed; 0: a bar */
    size_t done, all;
    double began;
} report;

/* ---------------- the yardsticks */
static float *axpy_a;
static const float *axpy_b;
static size_t axpy_n;

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
    size_t pieces = *(size_t *)arg;
    size_t begin = axpy_n * i / pieces / 16 * 16, end = axpy_n * (i + 1) / pieces / 16 * 16;
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
static gcomp_exec exec_of(const row *r, data *d)
{
    gcomp_exec exec = {r->isa, d->scratch, d->scratch_bytes, threads};
    return exec;
}

static void encode(row *r, data *d, const float *residual, int which, size_t *length)
{
    const size_t cols = matrix_cols(d->n);
    gcomp_exec exec = exec_of(r, d);
    gcomp_input in = {0};
    in.scale = 1;
    in.grad = d->g;
    in.cols = d->n % cols ? 1 : cols; /* dct and block=row see a matrix; to other methods that is the same */
    in.rows = d->n / in.cols;
    in.residual = residual;
    in.key = gcomp_key_make(1, 0, 0, 0);
    must(gcomp_encode(&r->codec, &in, &exec, d->payload[which], d->capacity, length), "encode");
}

static void commit(row *r, data *d, const size_t *lengths)
{
    const void *payloads[2] = {d->payload[0], d->payload[1]};
    must(gcomp_commit(r->gc, 0, d->y, payloads[0], lengths[0], payloads, lengths, 2),
         gcomp_error(r->gc));
}

/* A step of one worker alone, before its commit. To measure encoding it stops at the first round that
   is more than a frame or a scale: a sum, or dgc's payload. Returns the bytes sent, without the frame. */
static size_t begin_step(row *r, data *d, int encodes)
{
    gcomp_request q;
    size_t sent = 0, bytes;
    int frame = 1; /* comes first */
    must(gcomp_step_begin(r->gc, NULL), "begin");
    must(gcomp_step_ready(r->gc, 0, d->y), "ready");
    for (;;) {
        must(gcomp_step_next(r->gc, &q), gcomp_error(r->gc));
        if (q.kind == GCOMP_DONE) break;
        bytes = q.count * (q.dtype == GCOMP_I8 ? 1 : q.dtype == GCOMP_I16 ? 2 : 4);
        if (q.kind == GCOMP_ALLGATHER) bytes = q.bytes[0];
        if (encodes && bytes > 64) break;
        if (q.kind == GCOMP_ALLGATHER) memcpy(q.recv, q.send, q.stride);
        if (!frame) sent += bytes;
        frame = 0;
        must(gcomp_step_done(r->gc, q.id, 0), "done");
    }
    return sent;
}

static size_t whole_step(row *r, data *d, int encodes)
{
    const size_t sent = begin_step(r, d, encodes);
    must(encodes ? gcomp_step_abort(r->gc) : gcomp_step_commit(r->gc), "commit");
    return sent;
}

/* Fills the table of a sketch, or finds candidates in it. */
static void sketch(row *r, int query)
{
    gcomp__work work = gcomp__work_of(r->gc, r->gc->tensors);
    const size_t few = gcomp__sketch_few(work.codec, r->gc->tensors->n);
    gcomp__sketch_job job = gcomp__sketch_job_of(&work, 0);
    if (query) sink += (double)gcomp__sketch_largest(&work.call, &job, few).count;
    else if (thread_count > 1) gcomp__run(&work.call, job.rows, gcomp__sketch_fill_row, &job);
    else (void)gcomp__sketch_fill(&job, 0, job.rows);
}

/* One timed call. Returns its seconds. What a commit changed is put back first, untimed. */
static double timed(row *r, data *d)
{
    gcomp_exec exec = exec_of(r, d);
    size_t lengths[2] = {0, 0};
    const char *k = r->kernel;
    int rounds = gcomp_bound(&r->codec, 1, NULL) == 0 && r->codec.method;
    int changes = rounds || !strcmp(k, "commit") || !strcmp(k, "round_trip");
    double from;
    if (changes) {
        memcpy(d->y, d->g, 4 * d->n);
        if (r->gc->tensors->kept.residual.floats)
            memcpy(r->gc->tensors->kept.residual.floats, d->e, 4 * d->n);
    }
    if (r->codec.method && !rounds && strcmp(k, "encode") && strcmp(k, "encode_plain")) {
        encode(r, d, d->e, 0, &lengths[0]);
        memcpy(d->payload[1], d->payload[0], lengths[0]);
        lengths[1] = lengths[0];
    }
    if (!strcmp(k, "insert") || !strcmp(k, "query")) {
        /* If the tensor is too small for a gain, it is not compressed, and has no tables. */
        if (r->gc->tensors->use.method != &gcomp__row_sketch) return 1;
        (void)begin_step(r, d, 1);
        from = now();
        sketch(r, !strcmp(k, "query"));
        from = now() - from;
        must(gcomp_step_abort(r->gc), "abort");
        return from;
    }
    from = now();
    if (!strcmp(r->method, "axpy")) axpy(d);
    else if (!strcmp(r->method, "memcpy")) memcpy(d->a, d->b, 4 * d->n);
    else if (!strcmp(r->method, "read")) sink += (double)read_range(d->b, d->n);
    else if (rounds) (void)whole_step(r, d, !strcmp(k, "encode"));
    else if (!strcmp(k, "encode")) encode(r, d, d->e, 0, &lengths[0]);
    else if (!strcmp(k, "encode_plain")) encode(r, d, NULL, 0, &lengths[0]);
    else if (!strcmp(k, "commit")) commit(r, d, lengths);
    else if (!strcmp(k, "decode"))
        must(gcomp_decode(d->payload[0], lengths[0], d->y, GCOMP_F32, d->n, &exec), "decode");
    else if (!strcmp(k, "decode_add"))
        must(gcomp_decode_add(d->payload[0], lengths[0], 0.5f, d->y, GCOMP_F32, d->n, &exec), "decode_add");
    else if (!strcmp(k, "seal")) gcomp__seal(gcomp__set_of(exec.isa), d->payload[0], lengths[0]);
    else {
        encode(r, d, r->gc->tensors->kept.residual.floats, 0, &lengths[0]);
        commit(r, d, lengths);
    }
    return now() - from;
}

/* ---------------- a table of rows for one size */

static void open_row(row *r, const data *d)
{
    gcomp_desc desc = {0};
    gcomp_tensor t = {0};
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    desc.isa = r->isa;
    desc.no_checksum = 1;
    desc.parallel = threads;
    desc.allocator.alloc = allocate;
    desc.allocator.free = give_back;
    desc.seed = 1;
    /* There is one worker: a sum of integers is what it sent. */
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    t.name = "t";
    t.cols = matrix_cols(d->n);
    t.rows = d->n / t.cols;
    t.codec = r->method;
    must(gcomp_open(&r->gc, &desc), "open");
    must(gcomp_add_tensor(r->gc, &t), "add_tensor");
    must(gcomp_prepare(r->gc), "prepare");
}

/* Adds a row if the filter wants it; axpy, to which all others are compared, is always there. */
static size_t add_row(row *rows, size_t count, const char *method, const gcomp_codec *codec,
                      const char *kernel, gcomp_isa isa, const char *filter)
{
    row *r = &rows[count];
    if (filter && !strstr(method, filter) && !strstr(kernel, filter) && strcmp(method, "axpy"))
        return count;
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
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        gcomp_codec codec;
        if (!codec_list[c].bench) continue;
        must(gcomp_codec_parse(&codec, text, NULL, 0), text);
        for (size_t k = 0; kernels[k]; k++) {
            int of_sketch = !strcmp(kernels[k], "insert") || !strcmp(kernels[k], "query");
            if (of_sketch && strncmp(text, "sketch", 6) != 0) continue;
            if (!of_sketch && !gcomp_bound(&codec, 1, NULL) && strcmp(kernels[k], "encode") &&
                strcmp(kernels[k], "round_trip"))
                continue;
            /* none has nothing to encode, and keeps nothing */
            if (!strcmp(text, "none") && strcmp(kernels[k], "round_trip")) continue;
            count = add_row(rows, count, text, &codec, kernels[k], isa, filter);
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
    if (gcomp_bound(&r->codec, 1, NULL)) {
        encode(r, d, NULL, 0, &length);
        must(gcomp_decode(d->payload[0], length, d->y, GCOMP_F32, d->n, &exec), "decode");
        r->compression = 4.0 * (double)d->n / (double)length;
    } else {
        memcpy(d->y, d->g, 4 * d->n);
        if (r->gc->tensors->kept.residual.floats)
            memset(r->gc->tensors->kept.residual.floats, 0, 4 * d->n);
        r->compression = 4.0 * (double)d->n / (double)whole_step(r, d, 0);
    }
    for (size_t i = 0; i < d->n; i++)
        error += ((double)d->g[i] - (double)d->y[i]) * ((double)d->g[i] - (double)d->y[i]);
    r->error = sqrt(error / d->squares);
}

static void report_row(row *r, size_t n, double seconds, report *to)
{
    const char *quote = strchr(r->method, ',') ? "\"" : "";
    r->speed = 4e-9 * (double)n / seconds;
    to->done++;
    if (to->csv)
        fprintf(to->csv, "%s%s%s,%s,%s,%zu,%zu,%.3f,%.4f,%.3f,%.6g\n", quote, r->method, quote,
                r->kernel, gcomp_isa_name(r->isa), thread_count, n, r->speed, r->ratio,
                r->compression, r->error);
    if (to->each) {
        printf("%-24s %-13s %-7s %9zu %9.2f %7.3f %9.1f %9.2g\n", r->method, r->kernel,
               gcomp_isa_name(r->isa), n, r->speed, r->ratio, r->compression, r->error);
        fflush(stdout);
    } else {
        char what[32], more[80];
        snprintf(what, sizeof what, "%zu, %s", n, gcomp_isa_name(r->isa));
        snprintf(more, sizeof more, " rows, %.0f s: %.24s", now() - to->began, r->method);
        args_bar(what, to->done, to->all, more, 0);
    }
}

/* The speed of a kernel of a method beside axpy, as text; empty where the method has none. */
static const char *beside_axpy(const row *rows, size_t count, const char *method,
                               const char *kernel, char text[16])
{
    text[0] = 0;
    for (size_t i = 0; i < count; i++)
        if (rows[i].method == method && !strcmp(rows[i].kernel, kernel))
            snprintf(text, 16, "%.2f", rows[i].ratio);
    return text;
}

/* A screen: the methods with their defaults. */
static void print_screen(const row *rows, size_t count, size_t n)
{
    char a[16], b[16], c[16];
    args_clear();
    printf("%zu elements, %s; beside axpy, which takes %.1f GB/s: 1.00 is as fast as a[i] += b[i]\n", n,
           gcomp_isa_name(rows[0].isa), rows[0].speed);
    printf("%-12s %11s %9s %9s %12s %10s\n", "", "times fewer", "relative", "", "encode and", "decode");
    printf("%-12s %11s %9s %9s %12s %10s\n", "method", "bytes", "error", "encode", "commit of 2", "and add");
    for (size_t i = 0; i < count; i++) {
        const row *r = &rows[i];
        if (!r->codec.method || strpbrk(r->method, ":+") || r->method == rows[i - 1].method) continue;
        printf("%-12s %11.1f %9.2g %9s %12s %10s\n", r->method, r->compression, r->error,
               beside_axpy(rows, count, r->method, "encode", a),
               beside_axpy(rows, count, r->method, "round_trip", b),
               beside_axpy(rows, count, r->method, "decode_add", c));
    }
}

/* Measures all rows of one size, which stay there until the next call. Returns how many there are. */
static size_t bench(data *d, row *rows, gcomp_isa isa, const char *filter, report *to)
{
    const size_t count = make_rows(rows, isa, filter);
    const size_t calls = d->n >= (1u << 20) ? 1 : (1u << 19) / d->n;
    const size_t rounds = d->n < (1u << 24) ? filter ? 15 : 9 : filter ? 7 : 3;
    double axpy_seconds = 0;
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
            report_row(r, d->n, median(r->seconds, rounds), to);
            continue;
        }
        double ratios[MAX_ROUNDS], seconds[MAX_ROUNDS];
        /* All kernels of a codec share the object, and what judge() found out. */
        if (i && rows[i - 1].method == r->method) {
            r->gc = rows[i - 1].gc;
            r->compression = rows[i - 1].compression;
            r->error = rows[i - 1].error;
        } else {
            open_row(r, d);
            judge(r, d);
        }
        size_t done = 0;
        double spent = 0;
        /* axpy runs before each round, so that the ratio compares neighbours in time. */
        for (; done < rounds && (filter || spent < ROW_SECONDS); done++) {
            double a = 0, s = 0;
            for (size_t c = 0; c < calls; c++) a += timed(&rows[0], d);
            for (size_t c = 0; c < calls; c++) s += timed(r, d);
            seconds[done] = s / (double)calls;
            ratios[done] = a / s;
            spent += a + s;
        }
        r->ratio = median(ratios, done);
        report_row(r, d->n, median(seconds, done), to);
        if (i + 1 == count || rows[i + 1].method != r->method) gcomp_close(r->gc);
    }
    return count;
}

#endif
