/* Rounding to fp16 and bf16 from its definition, for tests: to nearest, ties to even, saturated. */
#ifndef HALVES_H
#define HALVES_H

#include "../gcomp.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t half_rounded(gcomp_dtype dtype, float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double a = fabs((double)x);
    int exponent;
    uint32_t u;
    if (dtype == GCOMP_BF16) {
        memcpy(&u, &x, 4);
        u += 0x7fff + (u >> 16 & 1);
        return (uint16_t)((u & 0x7fffffffu) >= 0x7f800000u ? sign | 0x7f7f : u >> 16);
    }
    if (a >= 65504) return (uint16_t)(sign | 0x7bff);
    (void)frexp(a, &exponent); /* a < 2^exponent; the smallest normal half is 2^-14 */
    if (exponent < -13 || a == 0) exponent = -13;
    const double steps = nearbyint(ldexp(a, 11 - exponent)); /* of 2^(exponent - 11) */
    u = (uint32_t)(exponent + 13) * 1024 + (uint32_t)steps;
    return (uint16_t)(sign | (u > 0x7bff ? 0x7bff : u));
}

static inline float half_as_float(gcomp_dtype dtype, uint16_t h)
{
    const uint32_t exponent = h >> 10 & 31, fraction = h & 1023, u = (uint32_t)h << 16;
    float x;
    if (dtype == GCOMP_BF16) {
        memcpy(&x, &u, 4);
        return x;
    }
    x = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return h & 0x8000 ? -x : x;
}

#endif
