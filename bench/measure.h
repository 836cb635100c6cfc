/* measure.h - the bottom of build/bench, build/gemm and build/scale: gcomp.h, unless GCOMP_LINKED is defined with its
   implementation, whose inner functions are measured too; clocks, memory, random numbers, median, axpy, one core. */

#ifndef MEASURE_H
#define MEASURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"

#include "../examples/args.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#define BENCH_SEED 88172645463325252u

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that this thread has computed. */
static inline double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline size_t mapped(size_t bytes) { return (bytes + (4u << 20)) >> 21 << 21; }

/* Memory that has been written to, on large pages if there are any. Each block begins at another
   offset in its page, so that blocks do not share sets of a cache. */
static inline void *memory(size_t bytes)
{
    static size_t count;
    size_t size = mapped(bytes), skew = 64 + count++ % 16 * 4160;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 0, size);
    memcpy(p + skew - sizeof p, &p, sizeof p);
    return p + skew;
}

static inline uint64_t random_word(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static inline int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static inline double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

/* Can this machine run the instruction set? */
static inline int can_run(gcomp_isa isa)
{
    gcomp_exec exec = {0};
    exec.isa = isa;
    return gcomp_convert(NULL, GCOMP_F32, NULL, GCOMP_F32, 0, &exec) != GCOMP_ISA_UNAVAILABLE;
}

static inline gcomp_isa isa_of(const char *name)
{
    for (int i = 1; i <= GCOMP_ISA_NEON; i++)
        if (!strcmp(gcomp_isa_name((gcomp_isa)i), name) && can_run((gcomp_isa)i))
            return (gcomp_isa)i;
    fprintf(stderr, "there is no instruction set '%s' here\n", name);
    exit(2);
}

static inline void pin(void)
{
    cpu_set_t set;
    int cpu = sched_getcpu(); /* taskset may have chosen */
    CPU_ZERO(&set);
    CPU_SET(cpu < 0 ? 0 : (size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* a <- a + b. The function begins on a line of the cache: where its loop crosses one, it takes 1.7
   times as long. */
#if defined(__x86_64__)
__attribute__((noinline, aligned(64), target("avx2"), unused))
static void axpy_range(float *a, const float *b, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(a + i, _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
}
#else
__attribute__((noinline, aligned(64), optimize("O3"), unused))
static void axpy_range(float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) a[i] += b[i];
}
#endif

#endif
