/* What tests of quantizers share: gradients of every shape, and plain forms of the formulas of all block methods. */

#ifndef QUANTIZERS_H
#define QUANTIZERS_H

#include "codecs.h"
#include "test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { LARGEST = 1 << 20, SHAPES = 9 };
static float g[LARGEST], e[LARGEST], p[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)];
static gcomp_isa isa_now;
static gcomp_key key;

/* Gradient, residual and their sum: normal, zero, one huge, subnormal, all equal, heavy tail,
   signs and zeros of both signs, all negative, and some 3e38 in size. */
static inline void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float v = normal(i), rest = normal(i + 77777) * 0.1f;
        e[i] = rest;
        switch (shape) {
        case 0: g[i] = v; break;
        case 1: g[i] = e[i] = i % 3 ? 0.0f : -0.0f; break;
        case 2: g[i] = i == n / 2 ? 3e38f : v; break;
        case 3: g[i] = v * 1e-40f; e[i] = rest * 1e-40f; break;
        case 4: g[i] = -0.75f; e[i] = 0; break;
        case 5: g[i] = v * v * v; break;
        case 6: g[i] = (float)((int)(uniform(i) * 3) - 1); e[i] = g[i] == 0 && i % 2 ? -0.0f : 0; break;
        case 7: g[i] = -fabsf(v) - 0.01f; e[i] = -fabsf(rest); break;
        default:
            g[i] = i % 5 == 0 ? copysignf(FLT_MAX, v) : (float)(2 * uniform(i) - 1) * FLT_MAX;
            e[i] = i % 5 == 0 ? 0.0f : -0.05f * g[i];
            break;
        }
        p[i] = g[i] + e[i];
    }
}

static inline gcomp_input input_of(const float *grad, const float *residual, size_t n)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = n;
    in.residual = residual;
    in.key = key;
    return in;
}

static inline size_t encode(const char *text, const float *grad, const float *residual, size_t n)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in = input_of(grad, residual, n);
    size_t length = 0;
    gcomp_result result = gcomp_codec_parse(&codec, text, NULL, 0);
    CHECK(result == GCOMP_OK);
    if (result) return 0;
    CHECK(gcomp_encode(&codec, &in, &exec, payload, gcomp_bound(&codec, n, NULL), &length) == GCOMP_OK);
    CHECK(length == gcomp_bound(&codec, n, NULL) && length <= GCOMP_BOUND(n));
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    return length;
}

/* ---------------- a codec, as the tests know it */

/* kinds; of TABLE a code is the number of a value; NV has a float before its scales of a byte.
   HALVES is LEVELS with a bf16 as scale; FULL has all codes of its bits, and GRIDS two grids; PAIRS has two sizes a block. */
enum { SIGNS, SIDES, TWOBIT, THRESHOLD, LEVELS, AFFINE, DITHER, NATURAL, SMALL, MX, TABLE, NV, HALVES, FULL, GRIDS, PAIRS };

enum { MOST, L2, CLIPPED }; /* norms */

typedef struct spec {
    const char *text;
    int kind;
    unsigned wire;    /* number of the method */
    uint32_t word;    /* of the header */
    size_t block;     /* elements a scale; 0: the tensor */
    unsigned bits;    /* of a code */
    int levels;       /* the largest code that is sent; of MX the exponent of the largest value */
    int stochastic, norm;
    double constant;  /* a threshold; of CLIPPED, how many deviations; of FULL and GRIDS, the largest |p| in steps */
    int mantissa, bias, last; /* of SMALL and MX; mantissa 0: k / 64 */
} spec;

static const spec specs[] = {
    {"sign:scale=rms", SIGNS, 4, 10, 1024, 1, 0, 0, 0, 0, 0, 0, 0},
    {"sign:block=16,scale=rms", SIGNS, 4, 4, 16, 1, 0, 0, 0, 0, 0, 0, 0},
    {"sign:block=tensor,scale=rms", SIGNS, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
    {"onebit", SIDES, 7, 10, 1024, 1, 0, 0, 0, 0, 0, 0, 0},
    {"onebit:block=16", SIDES, 7, 4, 16, 1, 0, 0, 0, 0, 0, 0, 0},
    {"onebit:block=tensor", SIDES, 7, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
    {"twobit", TWOBIT, 10, 0x3f000000u, 0, 2, 0, 0, 0, 0.5, 0, 0, 0},
    {"twobit:threshold=1", TWOBIT, 10, 0x3f800000u, 0, 2, 0, 0, 0, 1, 0, 0, 0},
    {"threshold1", THRESHOLD, 11, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
    {"threshold1:threshold=0.75", THRESHOLD, 11, 0x3f400000u, 0, 1, 0, 0, 0, 0.75, 0, 0, 0},
    {"terngrad", LEVELS, 12, 0, 0, 2, 1, 1, CLIPPED, 2.5, 0, 0, 0},
    {"terngrad:clip=0,block=16", LEVELS, 12, 4, 16, 2, 1, 1, CLIPPED, 0, 0, 0, 0},
    {"terngrad:clip=1,block=64", LEVELS, 12, 6, 64, 2, 1, 1, CLIPPED, 1, 0, 0, 0},
    {"qsgd", LEVELS, 13, 7 | 9 << 15, 512, 4, 7, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=1,bucket=16", LEVELS, 13, 1 | 4 << 15, 16, 2, 1, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=2,norm=l2,bucket=tensor", LEVELS, 13, 2, 0, 4, 2, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=127,norm=l2", LEVELS, 13, 127 | 9 << 15, 512, 8, 127, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=8,bucket=tensor", LEVELS, 13, 8, 0, 8, 8, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=32767,bucket=2048", LEVELS, 13, 32767 | 11 << 15, 2048, 16, 32767, 1, MOST, 0, 0, 0, 0},
    {"qsgd:spacing=powers", DITHER, 13, 7 | 9 << 15 | 1 << 21, 512, 4, 7, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=1,norm=l2,bucket=16,spacing=powers", DITHER, 13, 1 | 4 << 15 | 1 << 21, 16, 4, 1, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=8,norm=l2,bucket=tensor,spacing=powers", DITHER, 13, 8 | 1 << 21, 0, 8, 8, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=100,bucket=tensor,spacing=powers", DITHER, 13, 100 | 1 << 21, 0, 8, 100, 1, MOST, 0, 0, 0, 0},
    {"natural", NATURAL, 15, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0},
    {"int", FULL, 40, 5 << 2, 32, 8, 128, 0, MOST, 128, 0, 0, 0},
    {"int:bits=4", FULL, 40, 1 | 6 << 2, 64, 4, 8, 0, MOST, 8.15, 0, 0, 0},
    {"int:bits=4,block=16", FULL, 40, 1 | 4 << 2, 16, 4, 8, 0, MOST, 8.15, 0, 0, 0},
    {"int:bits=4,block=2048", FULL, 40, 1 | 11 << 2, 2048, 4, 8, 0, MOST, 8.15, 0, 0, 0},
    {"int:bits=3", FULL, 40, 3 | 6 << 2, 64, 3, 4, 0, MOST, 4.5, 0, 0, 0},
    {"int:bits=3,block=512", FULL, 40, 3 | 9 << 2, 512, 3, 4, 0, MOST, 4.5, 0, 0, 0},
    {"int:bits=2", GRIDS, 40, 2 | 6 << 2, 64, 2, 2, 0, MOST, 2.5, 0, 0, 0},
    {"int:bits=2,block=16", GRIDS, 40, 2 | 4 << 2, 16, 2, 2, 0, MOST, 2.5, 0, 0, 0},
    {"int:bits=2,block=tensor", GRIDS, 40, 2, 0, 2, 2, 0, MOST, 2.5, 0, 0, 0},
    {"int:rounding=stochastic,block=tensor", HALVES, 40, 0, 0, 8, 127, 1, MOST, 0, 0, 0, 0},
    {"int:bits=4,rounding=stochastic", HALVES, 40, 1 | 6 << 2, 64, 4, 7, 1, MOST, 0, 0, 0, 0},
    {"int:bits=2,rounding=stochastic,block=16", HALVES, 40, 2 | 4 << 2, 16, 2, 1, 1, MOST, 0, 0, 0, 0},
    {"int:range=affine,block=2048", AFFINE, 40, 11 << 2 | 1 << 7, 2048, 8, 127, 0, 0, 0, 0, 0, 0},
    {"int:range=affine,bits=4,block=tensor", AFFINE, 40, 1 | 1 << 7, 0, 4, 7, 0, 0, 0, 0, 0, 0},
    {"int:range=affine,bits=2,block=16", AFFINE, 40, 2 | 4 << 2 | 1 << 7, 16, 2, 1, 0, 0, 0, 0, 0, 0},
    {"int:range=affine,rounding=stochastic", AFFINE, 40, 7 << 2 | 1 << 7, 128, 8, 127, 1, 0, 0, 0, 0, 0},
    {"int:range=affine,bits=4,rounding=stochastic,block=16", AFFINE, 40, 1 | 4 << 2 | 1 << 7, 16, 4, 7, 1, 0, 0, 0, 0, 0},
    {"int:range=affine,bits=2,rounding=stochastic,block=tensor", AFFINE, 40, 2 | 1 << 7, 0, 2, 1, 1, 0, 0, 0, 0, 0},
    {"fp8", SMALL, 17, 8 << 1, 256, 8, 448, 0, MOST, 0, 3, 7, 0x7e},
    {"fp8:block=16", SMALL, 17, 4 << 1, 16, 8, 448, 0, MOST, 0, 3, 7, 0x7e},
    {"fp8:format=e5m2,block=tensor", SMALL, 17, 1, 0, 8, 57344, 0, MOST, 0, 2, 15, 0x7b},
    {"mx", MX, 18, 0, 32, 4, 2, 0, 0, 0, 1, 1, 7},
    {"mx:format=e4m3", MX, 18, 1, 32, 8, 8, 0, 0, 0, 3, 7, 0x7e},
    {"mx:format=e5m2", MX, 18, 2, 32, 8, 15, 0, 0, 0, 2, 15, 0x7b},
    {"mx:format=int8", MX, 18, 3, 32, 8, 0, 0, 0, 0, 0, 0, 127},
    {"mx:format=e2m3", MX, 18, 4, 32, 6, 2, 0, 0, 0, 3, 1, 31},
    {"mx:format=e3m2", MX, 18, 5, 32, 6, 4, 0, 0, 0, 2, 3, 31},
    {"nvfp4", NV, 35, 0, 16, 4, 6 * 448, 0, MOST, 0, 1, 1, 7},
    {"e3m0", TABLE, 36, 8, 256, 4, 16, 0, MOST, 0, 0, 0, 0},
    {"e3m0:block=16", TABLE, 36, 4, 16, 4, 16, 0, MOST, 0, 0, 0, 0},
    {"e3m0:block=tensor", TABLE, 36, 0, 0, 4, 16, 0, MOST, 0, 0, 0, 0},
    {"nf4", TABLE, 37, 6, 64, 4, 1, 0, MOST, 0, 0, 0, 0},
    {"nf4:block=16", TABLE, 37, 4, 16, 4, 1, 0, MOST, 0, 0, 0, 0},
    {"nf4:block=4096", TABLE, 37, 12, 4096, 4, 1, 0, MOST, 0, 0, 0, 0},
    {"fp8:rounding=stochastic", SMALL, 17, 8 << 1, 256, 8, 448, 1, MOST, 0, 3, 7, 0x7e},
    {"fp8:format=e5m2,block=16,rounding=stochastic", SMALL, 17, 1 | 4 << 1, 16, 8, 57344, 1, MOST, 0, 2, 15, 0x7b},
    {"fp8:block=tensor,rounding=stochastic", SMALL, 17, 0, 0, 8, 448, 1, MOST, 0, 3, 7, 0x7e},
    {"mx:rounding=stochastic", MX, 18, 0, 32, 4, 2, 1, 0, 0, 1, 1, 7},
    {"mx:format=e4m3,rounding=stochastic", MX, 18, 1, 32, 8, 8, 1, 0, 0, 3, 7, 0x7e},
    {"mx:format=e5m2,rounding=stochastic", MX, 18, 2, 32, 8, 15, 1, 0, 0, 2, 15, 0x7b},
    {"mx:format=int8,rounding=stochastic", MX, 18, 3, 32, 8, 0, 1, 0, 0, 0, 0, 127},
    {"mx:format=e2m3,rounding=stochastic", MX, 18, 4, 32, 6, 2, 1, 0, 0, 3, 1, 31},
    {"mx:format=e3m2,rounding=stochastic", MX, 18, 5, 32, 6, 4, 1, 0, 0, 2, 3, 31},
    {"nvfp4:rounding=stochastic", NV, 35, 0, 16, 4, 6 * 448, 1, MOST, 0, 1, 1, 7},
    {"lloyd", PAIRS, 41, 0, 128, 2, 0, 0, 0, 0, 0, 0, 0}};

enum { SPECS = sizeof specs / sizeof *specs };

/* Code i of a stream of them; a code of 9 bits is an exponent and above it a sign, in groups of
   16. */
static inline unsigned get_code(const spec *s, const uint8_t *codes, size_t i)
{
    int first_high = s->kind == TWOBIT || s->kind == THRESHOLD;
    size_t at = i * s->bits;
    if (s->bits == 9) {
        const uint8_t *group = codes + i / 16 * 18;
        return group[i % 16] | (unsigned)(group[16 + i % 16 / 8] >> i % 8 & 1) << 8;
    }
    if (s->bits == 16) return codes[2 * i] | (unsigned)codes[2 * i + 1] << 8;
    if (s->bits == 6 || s->bits == 3) /* may reach into the next byte */
        return (codes[at / 8] >> at % 8 | (at % 8 > 8 - s->bits ? (unsigned)codes[at / 8 + 1] << (8 - at % 8) : 0)) & ((1u << s->bits) - 1);
    return codes[at / 8] >> (first_high ? 8 - s->bits - at % 8 : at % 8) & ((1u << s->bits) - 1);
}

static inline void put_code(const spec *s, uint8_t *codes, size_t i, unsigned code)
{
    int first_high = s->kind == TWOBIT || s->kind == THRESHOLD;
    size_t at = i * s->bits;
    if (s->bits == 9) {
        uint8_t *group = codes + i / 16 * 18;
        group[i % 16] = (uint8_t)code;
        group[16 + i % 16 / 8] |= (uint8_t)((code >> 8) << i % 8);
    } else if (s->bits == 16) {
        codes[2 * i] = (uint8_t)code;
        codes[2 * i + 1] = (uint8_t)(code >> 8);
    } else if (s->bits == 6 || s->bits == 3) {
        codes[at / 8] |= (uint8_t)(code << at % 8);
        if (at % 8 > 8 - s->bits) codes[at / 8 + 1] |= (uint8_t)(code >> (8 - at % 8));
    } else {
        codes[at / 8] |= (uint8_t)(code << (first_high ? 8 - s->bits - at % 8 : at % 8));
    }
}

static inline size_t code_bytes(const spec *s, size_t n) { return s->bits == 9 ? (n + 15) / 16 * 18 : (n * s->bits + 7) / 8; }

static inline int as_signed(const spec *s, unsigned code)
{
    int half = 1 << (s->bits - 1);
    return ((int)code ^ half) - half;
}

/* The code without its sign of x >= 0, nearest even and saturating; and its value. Exact, in
   double. */
static inline int small_code(const spec *s, double x)
{
    int exponent, code;
    if (s->mantissa == 0) return x * 64 < 127 ? (int)nearbyint(x * 64) : 127;
    if (x == 0) return 0;
    frexp(x, &exponent);
    exponent = exponent - 1 < 1 - s->bias ? 1 - s->bias : exponent - 1;
    if (exponent > 100) return s->last;
    code = (int)nearbyint(ldexp(x, s->mantissa - exponent)) + ((exponent + s->bias - 1) << s->mantissa);
    return code < s->last ? code : s->last;
}

static inline double small_value(const spec *s, int code)
{
    int field = code >> s->mantissa, unit = 1 << s->mantissa;
    if (s->mantissa == 0) return code / 64.0;
    return field ? ldexp(unit + code % unit, field - s->bias - s->mantissa) : ldexp(code, 1 - s->bias - s->mantissa);
}

/* x in steps of the format at x, with 16 binary places to nearest, plus `draw`, cut off: the value that x becomes at random,
   which saturates. */
static inline double small_at_random(const spec *s, double x, unsigned draw)
{
    const double top = small_value(s, s->last);
    double value;
    int exponent = 1 - s->bias;
    if (s->mantissa == 0) value = floor((floor(x * 64 * 65536 + 0.5) + draw) / 65536) / 64;
    else {
        if (x != 0) frexp(x, &exponent), exponent = exponent - 1 < 1 - s->bias ? 1 - s->bias : exponent - 1;
        exponent -= s->mantissa;
        value = ldexp(floor((floor(ldexp(x, 16 - exponent) + 0.5) + draw) / 65536), exponent);
    }
    return value > top ? top : value < -top ? -top : value;
}

/* The values of TABLE: powers of two; and the floats that the authors of QLoRA publish. */
static inline double table_value(const spec *s, unsigned code)
{
    static const double e3m0[8] = {0, 0.25, 0.5, 1, 2, 4, 8, 16};
    static const double nf4[16] = {-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                                   -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
                                   0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                                   0.7229568362236023, 1};
    if (s->wire == 37) return nf4[code];
    return code & 8 ? -e3m0[code & 7] : e3m0[code];
}

/* The distance of the nearest value. */
static inline double table_distance(const spec *s, double x)
{
    double least = INFINITY;
    for (unsigned code = 0; code < 16; code++) least = fmin(least, fabs(x - table_value(s, code)));
    return least;
}

/* ---------------- scales */

typedef struct measures {
    double most, squares, plus, minus, low, high, deviation, peak; /* peak: the number of the size `most` */
    size_t count, negative;
} measures;

static inline measures measure(const float *x, size_t count)
{
    measures m = {0, 0, 0, 0, x[0], x[0], 0, 0, count, 0};
    double mean, about = 0;
    for (size_t i = 0; i < count; i++) {
        double v = x[i];
        m.most = fabs(v) > m.most ? fabs(v) : m.most;
        m.squares += v * v;
        if (v < 0) m.minus -= v;
        else m.plus += v;
        m.negative += v < 0;
        m.low = v < m.low ? v : m.low;
        m.high = v > m.high ? v : m.high;
    }
    m.peak = -m.low >= m.high ? m.low : m.high; /* of two the negative one */
    mean = (m.plus - m.minus) / (double)count;
    for (size_t i = 0; i < count; i++) about += (x[i] - mean) * (x[i] - mean);
    m.deviation = sqrt(about / (double)count);
    return m;
}

/* The scale of a block of NV before it is rounded to a float, and the byte that stands for it: the
   e4m3 nearest to a sixth of the largest |p| in units of `tensor`. */
static const spec e4m3_spec = {"e4m3", SMALL, 0, 0, 0, 8, 448, 0, MOST, 0, 3, 7, 0x7e};

static inline double nv_scale(float tensor, unsigned byte) { return (double)tensor * small_value(&e4m3_spec, (int)byte); }

/* x >= 0 up with the probability of its fraction, or to nearest. Grows with x. */
static inline double whole_of(double x, int stochastic, double u)
{
    double q = stochastic ? ceil(x - u) : nearbyint(x);
    return q > 0 ? q : 0;
}

/* The level 0 .. s of x / norm, value 2^(level - s), or 0. */
static inline int dither_of(double x, int s, double u)
{
    int exponent, low;
    frexp(x, &exponent);
    low = x > 0 ? exponent - 1 + s : 0;
    if (low < 1) return u < ldexp(x, s - 1);
    low += u < ldexp(x, s - low) - 1;
    return low < s ? low : s;
}

/* Is q, the size of a code, what x says, or what the neighbours of x say that rounding of a
   product may reach? */
static inline int between(const spec *s, double x, double u, int q, int top)
{
    const double slack = 2.5e-7, tiny = s->stochastic ? 2.4e-10 : 0;
    double low = x * (1 - slack) - tiny, high = x * (1 + slack) + tiny;
    if (x == 0) return q == 0;
    if (s->kind == DITHER) return dither_of(low > 0 ? low : 0, top, u) <= q && q <= dither_of(high, top, u);
    if (s->kind == SMALL || s->kind == NV) return small_code(s, low) <= q && q <= small_code(s, high);
    low = whole_of(low, s->stochastic, u);
    high = whole_of(high, s->stochastic, u);
    return (low < top ? low : top) <= q && q <= (high < top ? high : top);
}

/* ---------------- payloads */

static inline size_t scale_bytes(const spec *s)
{
    if (s->kind == TWOBIT || s->kind == THRESHOLD || s->kind == NATURAL) return 0;
    if (s->kind == HALVES || s->kind == FULL || s->kind == GRIDS) return 2;
    return s->kind == MX || s->kind == NV ? 1 : s->kind == SIDES || s->kind == AFFINE ? 8 : 4;
}

/* The constants of a block of int from the two bytes of its scale: a step, and of GRIDS half a step where the last bit is 1. */
static inline void read_bfloat(const spec *s, const uint8_t *scale, float *a, float *b)
{
    const unsigned word = scale[0] | (unsigned)scale[1] << 8, grid = s->kind == GRIDS ? word & 1 : 0;
    *a = float_of((word - grid) << 16);
    *b = grid ? *a / 2 : 0;
}

static inline void put_header(uint8_t *to, unsigned wire, uint32_t word, size_t n, size_t bytes)
{
    static const uint8_t begin[5] = {'G', 'C', 'M', 'P', 1};
    memset(to, 0, 32);
    memcpy(to, begin, 5);
    to[5] = (uint8_t)wire;
    for (int i = 0; i < 8; i++) to[8 + i] = (uint8_t)((uint64_t)n >> 8 * i);
    for (int i = 0; i < 8; i++) to[16 + i] = (uint8_t)((uint64_t)bytes >> 8 * i);
    for (int i = 0; i < 4; i++) to[24 + i] = (uint8_t)(word >> 8 * i);
}

/* ---------------- small floats */

static inline const spec *spec_of(const char *text)
{
    for (size_t k = 0; k < SPECS; k++)
        if (!strcmp(specs[k].text, text)) return specs + k;
    CHECK(!"a spec of that text");
    return specs;
}

#endif
