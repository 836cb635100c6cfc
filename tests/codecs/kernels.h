/* What test_kernels compares with: data of every kind, and plain loops for each kernel. */

#ifndef KERNELS_H
#define KERNELS_H

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR_EACH_SET(s) for (size_t s = 0; gcomp__sets[s]; s++) if (isa_available(gcomp__sets[s]->isa))

/* Kinds of data: smooth, wide in range, subnormal, any finite bits, ties, zeros of both signs. */
enum { KINDS = 6 };

static float sample(int kind, uint64_t seed, size_t i)
{
    uint64_t r = mix(seed * 1000 + (uint64_t)kind + mix(i));
    float u = (float)((int32_t)(r >> 40) - 8388608) / 8388608.0f;
    if (kind == 0) return u;
    if (kind == 1) return ldexpf(u, (int)(r % 60) - 30);
    if (kind == 2) return float_of((uint32_t)(r & 0x807FFFFF));
    if (kind == 3) {
        uint32_t b = (uint32_t)r;
        return (b & 0x7F800000) == 0x7F800000 ? float_of(b & 0xBFFFFFFF) : float_of(b);
    }
    if (kind == 4) return (float)((int)(r % 5) - 2) * 0.5f;
    return r & 1 ? 0.0f : -0.0f;
}

static float *floats(size_t n) { return (float *)malloc(n ? 4 * n : 1); }

/* One rounding each: volatile keeps the compiler from fusing them. */
static float product(float a, float b)
{
    volatile float x = a * b;
    return x;
}

static float sum(float a, float b)
{
    volatile float x = a + b;
    return x;
}

static float value_of_half(unsigned low)
{
    return (float)(low < 1024 ? ldexp((double)low, -24) : ldexp((double)(1024 + (low & 1023)), (int)(low >> 10) - 25));
}

/* To nearest, ties to even, saturated at 65504: a search among all values. */
static uint16_t half_of(float x)
{
    double a = fabs((double)x);
    unsigned low = 0, high = 0x7BFF;
    while (low < high) {
        unsigned middle = (low + high + 1) / 2;
        if ((double)value_of_half(middle) <= a) low = middle;
        else high = middle - 1;
    }
    if (low < 0x7BFF) {
        double down = a - (double)value_of_half(low), up = (double)value_of_half(low + 1) - a;
        if (up < down || (up == down && (low & 1))) low++;
    }
    return (uint16_t)(low | (signbit(x) ? 0x8000u : 0u));
}

static uint16_t bfloat_of(float x)
{
    uint32_t b = bits_of(x), sign = b >> 31 << 15;
    b = (b & 0x7FFFFFFF) + 0x7FFF + (b >> 16 & 1);
    b >>= 16;
    return (uint16_t)(sign | (b > 0x7F7F ? 0x7F7F : b));
}

/* ---------------- p = scale * grad + residual */

typedef struct dense {
    float *grad, *residual, *y;
    void *narrow;
    const void *given;
    gcomp_dtype type;
} dense;

/* A gradient of this type at an odd multiple of its size; what the plain loop reads is in grad. */
static dense dense_make(size_t n, int kind, int type)
{
    dense d;
    d.grad = floats(n);
    d.residual = floats(n);
    d.y = floats(n);
    d.narrow = malloc(2 * n + 1);
    d.type = (gcomp_dtype)type;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        d.grad[i] = sample(kind, 11, i);
        d.residual[i] = sample(kind, 12, i);
        if (type == GCOMP_F32) continue;
        h = type == GCOMP_F16 ? half_of(d.grad[i]) : bfloat_of(d.grad[i]);
        memcpy((char *)d.narrow + 2 * i, &h, 2);
        d.grad[i] = type == GCOMP_BF16 ? float_of((uint32_t)h << 16)
                                       : h & 0x8000 ? -value_of_half(h & 0x7FFF) : value_of_half(h & 0x7FFF);
    }
    d.given = type == GCOMP_F32 ? (const void *)d.grad : d.narrow;
    return d;
}

static void dense_free(dense *d)
{
    free(d->grad);
    free(d->residual);
    free(d->y);
    free(d->narrow);
}

static const float scales[] = {1.0f, 0.3f, -2.0f};

/* ---------------- collect: what is at least as large as a guess, in order */

static int reaches(const gcomp__selection *job, float p)
{
    const uint32_t bits = bits_of(p);
    return (bits & 0x7FFFFFFF) >= (bits >> 31 ? job->under : job->guess);
}

/* ---------------- low rank: the products, in the order that their chapter states, with one rounding a step */

static const struct product_shape { size_t rows, cols, rank; } product_shapes[] = {
    {1, 1, 1}, {9, 31, 1}, {13, 1310, 1}, {10, 783, 2}, {7, 800, 3}, {11, 33, 4}, {5, 64, 5}, {29, 50, 7}, {31, 131, 8},
    {17, 97, 9}, {21, 48, 16}, {50, 230, 17}, {70, 66, 33}, {65, 65, 64},
};

/* M[i][j] = scale * g + e, each rounded. */
static float element_of(const gcomp__source *in, size_t at)
{
    const float g = ((const float *)in->grad)[at], p = in->scale == 1 ? g : product(in->scale, g);
    return in->residual.floats ? sum(p, in->residual.floats[at]) : p;
}

static float plain_m_q(const gcomp__source *in, const struct product_shape *d, const float *q, size_t i)
{
    const size_t lines = d->cols / 16 * 16;
    float all = 0;
    size_t j = 0;
    if (d->rank > 4) {
        for (; j < d->cols; j++) all = fmaf(element_of(in, i * d->cols + j), q[j], all);
        return all;
    }
    while (j < d->cols) {
        const size_t count = j == lines ? d->cols - lines : lines - j < 768 ? lines - j : 512;
        float lane[16] = {0};
        for (size_t end = j + count; j < end; j++) lane[j % 16] = fmaf(element_of(in, i * d->cols + j), q[j], lane[j % 16]);
        for (size_t half = 8; half >= 4; half /= 2)
            for (size_t k = 0; k < half; k++) lane[k] = sum(lane[k], lane[k + half]);
        all = sum(all, sum(sum(lane[0], lane[2]), sum(lane[1], lane[3])));
    }
    return all;
}

static void check_products(const gcomp__set *set, const struct product_shape *d, float scale, int feedback)
{
    const size_t n = d->rows * d->cols, r = d->rank, pitch = gcomp__gemm_pitch(r);
    const gcomp__gemm_kernels *kernels = (const gcomp__gemm_kernels *)gcomp__row_powersgd.kernels[set->isa];
    float *g = floats(n), *e = floats(n), *p = floats(d->rows * r), *q = floats(d->cols * r), *other = floats(d->cols * r);
    float *y = floats(n), *rest = floats(n), *turned = floats(gcomp__gemm_factor(r, d->rows));
    float *panels = floats(gcomp__gemm_factor(r, d->cols)), *theirs = floats(gcomp__gemm_factor(r, d->cols));
    float *out = floats(gcomp__gemm_factor(r, d->rows));
    gcomp__factors own, mean;
    gcomp__source in;
    gcomp__matrix m;
    size_t wrong = 0;
    memset(&in, 0, sizeof in);
    memset(&m, 0, sizeof m);
    for (size_t i = 0; i < n; i++) g[i] = sample(0, 1, i), e[i] = sample(0, 2, i);
    for (size_t i = 0; i < d->rows * r; i++) p[i] = sample(0, 3, i);
    for (size_t i = 0; i < d->cols * r; i++) q[i] = sample(0, 4, i), other[i] = sample(0, 5, i);
    in.grad = g;
    in.scale = scale;
    in.residual.floats = feedback ? e : NULL;
    m.in = &in;
    m.rows = d->rows;
    m.cols = d->cols;
    m.rank = r;
    m.pitch = pitch;
    gcomp__to_projected(kernels, panels, q, d->cols, r);
    for (size_t i = 0; i < d->rows; i += 48) kernels->project(&m, i, i + 48 < d->rows ? i + 48 : d->rows, panels, out);
    for (size_t i = 0; i < d->rows; i++)
        for (size_t c = 0; c < r; c++) wrong += bits_of(out[i * pitch + c]) != bits_of(plain_m_q(&in, d, q + c * d->cols, i));
    CHECK(wrong == 0);
    kernels->transpose(turned, pitch, p, d->rows, d->rows, r);
    for (size_t j = 0; j < d->cols; j += 64) kernels->back(&m, j, j + 64 < d->cols ? j + 64 : d->cols, turned, panels);
    gcomp__from_panels(y, panels, d->cols, r);
    for (size_t j = 0; j < d->cols; j++)
        for (size_t c = 0; c < r; c++) {
            float all = 0;
            for (size_t i = 0; i < d->rows; i++) all = fmaf(element_of(&in, i * d->cols + j), p[c * d->rows + i], all);
            wrong += bits_of(y[c * d->cols + j]) != bits_of(all);
        }
    CHECK(wrong == 0);
    gcomp__to_panels(panels, q, d->cols, r);
    gcomp__to_panels(theirs, other, d->cols, r);
    own.p = mean.p = turned;
    own.q = theirs;
    mean.q = panels;
    for (size_t i = 0; i < d->rows; i += 48)
        kernels->expand(&m, i, i + 48 < d->rows ? i + 48 : d->rows, &own, feedback ? rest : NULL, &mean, y);
    for (size_t i = 0; i < d->rows; i++)
        for (size_t j = 0; j < d->cols; j++) {
            float all = 0, sent = 0;
            for (size_t c = 0; c < r; c++) {
                all = fmaf(p[c * d->rows + i], q[c * d->cols + j], all);
                sent = fmaf(p[c * d->rows + i], other[c * d->cols + j], sent);
            }
            wrong += bits_of(y[i * d->cols + j]) != bits_of(all);
            if (feedback) wrong += bits_of(rest[i * d->cols + j]) != bits_of(sum(element_of(&in, i * d->cols + j), -sent));
        }
    CHECK(wrong == 0);
    if (wrong) printf("# %s, %zux%zu of rank %zu\n", gcomp_isa_name(set->isa), d->rows, d->cols, r);
    free(g), free(e), free(p), free(q), free(other), free(y), free(rest), free(turned), free(panels), free(theirs), free(out);
}

/* |P^T P - I|, where columns that are zero count as orthonormal. */
static double skewness(const float *p, size_t n, size_t r, size_t *zeros)
{
    double all = 0;
    *zeros = 0;
    for (size_t a = 0; a < r; a++)
        for (size_t b = 0; b < r; b++) {
            double dot = 0;
            for (size_t i = 0; i < n; i++) dot += (double)p[a * n + i] * (double)p[b * n + i];
            if (a == b && dot == 0) ++*zeros;
            else all += (dot - (a == b)) * (dot - (a == b));
        }
    return sqrt(all);
}

/* Increasing indices, the last of them at most 2^32 - 2: gaps of up to `bits` bits, most of them
   small. */
static uint32_t *indices_of(size_t k, unsigned bits, size_t *n)
{
    uint32_t *index = (uint32_t *)malloc(4 * k + 1);
    uint64_t next = 0;
    for (size_t i = 0; i < k; i++) {
        uint64_t r = mix(1000 * k + bits + 77 * i), gap = r >> 20 & (((uint64_t)1 << (r % 8 ? bits / 2 : bits)) - 1);
        next += gap <= 0xfffffffeu - (k - i) - next ? gap : 0;
        index[i] = (uint32_t)next++;
    }
    *n = (size_t)next;
    return index;
}

static const size_t index_counts[] = {0, 1, 2, 15, 16, 17, 127, 128, 129, 255, 256, 257, 385, 1000};

enum { INDEX_COUNTS = sizeof index_counts / sizeof *index_counts };

#endif
