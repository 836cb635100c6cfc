/* halves.h - fp16 and bf16 by their formulas, and what a transport's sum of them must give. */
#ifndef HALVES_H
#define HALVES_H

#include "gcomp.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t halves_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float halves_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* The number of a half, by its formula. NaN: the quiet one of its sign. */
static inline float number_of(uint16_t h, gcomp_dtype dtype)
{
    const int bits = dtype == GCOMP_F16 ? 10 : 7, bias = dtype == GCOMP_F16 ? 15 : 127;
    const int last = dtype == GCOMP_F16 ? 31 : 255, exponent = (h & 0x7fff) >> bits, mantissa = h & ((1 << bits) - 1);
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    double x = exponent ? ldexp((1 << bits) + mantissa, exponent - bias - bits) : ldexp(mantissa, 1 - bias - bits);
    if (exponent == last) return halves_float(sign | (mantissa ? 0x7fc00000u : 0x7f800000u));
    return halves_float(sign | halves_bits((float)x)); /* exact */
}

/* The half nearest to a float, ties to even; the largest for what is too large. It is found among
   the halves of rising size, which are in the order of their numbers. */
static inline uint16_t half_of(float x, gcomp_dtype dtype)
{
    const uint16_t infinity = dtype == GCOMP_F16 ? 0x7c00 : 0x7f80;
    const uint32_t bits = halves_bits(x);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const double size = fabs((double)x);
    uint16_t low = 0, high = (uint16_t)(infinity - 1);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(sign | infinity | (dtype == GCOMP_F16 ? 0x200 : 0x40));
    if ((bits & 0x7fffffffu) == 0x7f800000u) return (uint16_t)(sign | infinity);
    if (size >= (double)number_of(high, dtype)) return (uint16_t)(sign | high);
    while (low + 1 < high) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        if ((double)number_of(middle, dtype) <= size) low = middle;
        else high = middle;
    }
    const double below = size - (double)number_of(low, dtype), above = (double)number_of(high, dtype) - size;
    return (uint16_t)(sign | (below < above || (!(below > above) && low % 2 == 0) ? low : high));
}

static inline int half_is_nan(uint16_t h, gcomp_dtype dtype) { return (h & 0x7fff) > (dtype == GCOMP_F16 ? 0x7c00 : 0x7f80); }

/* What worker `rank` brings: numbers of all sizes, subnormal ones too, of which some cancel; now and
   then the largest, an infinity or NaN. */
static inline uint16_t half_brought(int rank, size_t i, gcomp_dtype dtype)
{
    uint64_t x = (uint64_t)(i * 64 + (size_t)rank + 1) * 0x9e3779b97f4a7c15u;
    const uint16_t infinity = dtype == GCOMP_F16 ? 0x7c00 : 0x7f80;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    if (i % 64 == 63) { /* the same kind on all, or one alone */
        const int kind = (int)(i / 64 % 4), mine = (size_t)rank == i / 256 % 3;
        if (kind == 0) return (uint16_t)((x & 0x8000) | (infinity - 1));
        if (kind == 1) return mine ? infinity : 0x3c00;
        if (kind == 2) return mine ? (uint16_t)(infinity | 1 | (x & 0x8000)) : 0x3c00;
        return (uint16_t)((x & 0x8000) | infinity);
    }
    if (i % 3 == 0) return half_of((float)((int)(x & 0xfff) - 0x800) / 512.0f, dtype);
    return (uint16_t)((x & 0x8000) | (x >> 16) % (uint16_t)(infinity / 2 + 0x800));
}

/* The sum of `world` workers in float32, in rank order, rounded once. */
static inline uint16_t half_sum(int world, size_t i, gcomp_dtype dtype)
{
    float sum = number_of(half_brought(0, i, dtype), dtype);
    for (int w = 1; w < world; w++) {
        volatile float next = sum + number_of(half_brought(w, i, dtype), dtype); /* no more digits than a float has */
        sum = next;
    }
    return half_of(sum, dtype);
}

/* Sums `count` halves of a type over the workers of a transport, and counts what is wrong: against
   half_sum, in the bytes behind them, and in bits that differ from worker to worker. *status: what
   the callbacks returned. */
static inline size_t halves_are_wrong(const gcomp_comm *comm, size_t count, gcomp_dtype dtype, int *status)
{
    const size_t world = (size_t)comm->world, bytes = 2 * count;
    uint16_t *data = (uint16_t *)malloc(bytes + 2), *all = (uint16_t *)malloc(world * bytes + 2);
    size_t wrong = !(comm->allreduce_dtypes >> dtype & 1);
    for (size_t i = 0; i < count; i++) data[i] = half_brought(comm->rank, i, dtype);
    data[count] = 0x1234;
    *status = comm->allreduce(comm->user, data, count, dtype);
    for (size_t i = 0; i < count && !*status; i++) {
        const uint16_t expected = half_sum(comm->world, i, dtype);
        wrong += half_is_nan(expected, dtype) ? !half_is_nan(data[i], dtype) : data[i] != expected;
    }
    wrong += data[count] != 0x1234;
    if (!*status && count) *status = comm->allgather(comm->user, data, all, bytes);
    for (size_t w = 0; w < world && !*status && count; w++) wrong += memcmp(all + w * count, data, bytes) != 0;
    free(data);
    free(all);
    return wrong;
}

#endif
