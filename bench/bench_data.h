/* bench_data.h - the vectors of build/bench and their contents, its memory and its threads. */

#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include "measure.h"

#include <pthread.h>

typedef struct data {
    size_t n;
    float *g, *e, *a, *b, *y; /* gradient, residual, axpy's pair, output */
    unsigned char *payload[2], *scratch;
    size_t capacity, scratch_bytes;
    double squares; /* of g, summed */
} data;

static const char *const kinds[] = {"normal",    "cubed",      "zeros", "constant",
                                    "ascending", "descending", NULL};
static const char *kind = "normal";
static gcomp_parallel threads;
static size_t thread_count = 1;

static double sink; /* results go there, so that no compiler leaves them out */

static inline void must(gcomp_result r, const char *what)
{
    if (r == GCOMP_OK) return;
    fprintf(stderr, "%s: %s\n", what, gcomp_result_string(r));
    exit(1);
}

/* The allocator of the objects that are measured: large blocks are placed as the vectors are. */
static inline void *allocate(void *user, size_t bytes, size_t align)
{
    (void)user;
    return bytes >> 20 ? memory(bytes) : aligned_alloc(align, (bytes + align - 1) / align * align);
}

static inline void give_back(void *user, void *p, size_t bytes)
{
    (void)user;
    if (bytes >> 20 == 0) {
        free(p);
        return;
    }
    memcpy(&p, (char *)p - sizeof p, sizeof p);
    munmap(p, mapped(bytes));
}

/* ---------------- threads: a job is split over T threads, made anew for each (tens of
   microseconds, and counted) */
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

static inline void run_parallel(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
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

/* Columns of a matrix of n elements, about half as many as rows. */
static inline size_t matrix_cols(size_t n)
{
    size_t cols = 16;
    while (cols * cols * 4 <= n) cols *= 2;
    return cols;
}

/* Makes the vectors, the same in every run. */
static inline void fill(data *d, size_t n)
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

#endif
