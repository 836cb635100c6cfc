/* Proves that the quantizers write what plain forms write, which follow their formulas: headers, scales and codes as the
   manual's wire format says; and that decoding makes the right floats of them. No expected number is found with the help of the
   library. */

#include "quantizers.h"

static const size_t sizes[] = {0, 1, 15, 16, 17, 67, 1009, 4099, 65536 + 5};
enum { SIZES = sizeof sizes / sizeof *sizes };
static float d[LARGEST], y[LARGEST], expected[LARGEST];
static uint8_t packed[GCOMP_BOUND(65536 + 5)];

static float saturated(float x) { return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x; }

/* Store, add, mean of three, and retain of the payload, against plain loops over its decoded
   values in d. */
static void decode(size_t n, size_t length)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    const void *payloads[3] = {payload, payload, payload};
    size_t lengths[3] = {length, length, length}, wrong = 0;
    gcomp_input in = input_of(g, NULL, n);
    volatile float term;
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, d, 4 * n));
    for (size_t i = 0; i < n; i++) {
        y[i] = e[i];
        term = d[i] * 0.3f;
        expected[i] = saturated(e[i] + term);
    }
    CHECK(gcomp_decode_add(payload, length, 0.3f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) wrong += !(y[i] == expected[i]);
    for (size_t i = 0; i < n; i++) {
        term = d[i] * (1.0f / 3.0f);
        expected[i] = saturated(saturated(saturated(0.0f + term) + term) + term);
    }
    CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, expected, 4 * n));
    memcpy(y, e, 4 * n);
    CHECK(gcomp_retain(payload, length, &in, y, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) wrong += !(y[i] == saturated(p[i] - d[i]));
    CHECK(wrong == 0);
}

static int near(double x, double to) { return fabs(x - to) <= 3e-7 * fabs(to) + 1.5e-45; }

/* A step so that `levels` of them make `norm`: the nearest float; where that is subnormal, or
   its largest multiple is not finite, a neighbour. */
static int is_step(float step, double norm, double levels, int exact)
{
    double ideal = norm / levels;
    if (ideal > FLT_MAX) return step == FLT_MAX;
    if (ideal * levels > FLT_MAX * (1 + 1e-6) && !exact) /* a norm above every float: as many levels of it as are finite */
        return step >= ideal * (1 - 3e-7) && step <= FLT_MAX / floor(FLT_MAX / ideal) * (1 + 3e-7);
    if (!exact || ideal < FLT_MIN || (float)ideal * levels > FLT_MAX) return near(step, ideal);
    return step == (float)ideal;
}

/* The scale of a block, a and for some methods b, against its measures. */
static int good_scale(const spec *s, const measures *m, float a, float b)
{
    double n = (double)m->count, clip = m->most;
    switch (s->kind) {
    case SIGNS: return near(a, sqrt(m->squares / n));
    case SIDES:
        return near(a, m->count > m->negative ? m->plus / (n - (double)m->negative) : 0) &&
               near(b, m->negative ? -m->minus / (double)m->negative : 0);
    case LEVELS:
        if (s->norm == CLIPPED && s->constant > 0 && m->count >= 32 && s->constant * m->deviation < m->most &&
            s->constant * m->deviation > m->most / 1048576)
            clip = s->constant * m->deviation;
        if (s->norm == L2) return is_step(a, sqrt(m->squares), s->levels, 0);
        return is_step(a, clip, s->levels, clip == m->most) && (clip != m->most || a * (double)s->levels >= clip * (1 - 1e-6));
    case HALVES: /* the next bf16 from the step on; of the largest numbers the one before, since multiples must be finite */
        if (m->most / s->levels > FLT_MAX / s->levels * 0.99) return a >= m->most / s->levels * 0.99 && a * (double)s->levels <= FLT_MAX;
        return a >= m->most / s->levels * (1 - 1e-7) && a <= m->most / s->levels * (1 + 1.0 / (s->bits == 2 ? 63 : 127)) + 0x1p-132;
    case FULL:
    case GRIDS: {
        const double ideal = -m->peak / s->constant, ulp = s->kind == GRIDS ? 1 / 64.0 : 1 / 128.0;
        if (b != 0) return b == a / 2 && a > 0 && fabs(a - 0.4 * m->most) <= 0.4 * m->most * 0.502 * ulp;
        if (m->most > 3e38 && fabs((double)a) < fabs(ideal)) return fabs(a - ideal) <= fabs(ideal) * ulp && fabs((double)a) * s->levels <= FLT_MAX;
        if (fabs(ideal) < FLT_MIN) return fabs((double)a) >= fabs(ideal) && fabs(a - ideal) <= 0x1p-132 && (a < 0) == (m->peak > 0);
        return fabs(a - ideal) <= fabs(ideal) * 0.502 * ulp;
    }
    case DITHER: return is_step(a, s->norm == L2 ? sqrt(m->squares) : m->most, 1, s->norm == MOST);
    case AFFINE:
        if (m->most >= ldexp(1, 127)) /* as many codes above the middle as below: multiples of a are finite then */
            return near(a, (m->high - m->low) / (2 * s->levels)) && fabs(b - (m->low + m->high) / 2) <= 3e-7 * m->most;
        return near(a, (m->high - m->low) / (2 * s->levels + 1)) && near(b, m->low + (s->levels + 1) * (double)a);
    case SMALL:
    case TABLE: return is_step(a, m->most, s->levels, 1);
    default: return 1;
    }
}

/* At random the byte is rounded up, so that nothing saturates. */
static int good_byte(const spec *s, const measures *m, float tensor, unsigned byte)
{
    const double x = m->most > 0 ? m->most / 6 / (double)tensor : 0;
    if (s->stochastic && x < 448 * (1 - 5e-7))
        return small_value(&e4m3_spec, (int)byte) >= x * (1 - 5e-7) &&
               (byte == 0 || small_value(&e4m3_spec, (int)byte - 1) <= x * (1 + 5e-7));
    return small_code(&e4m3_spec, x * (1 - 5e-7)) <= (int)byte && (int)byte <= small_code(&e4m3_spec, x * (1 + 5e-7));
}

/* The byte of an MX block: the exponent of its largest number less that of the format's, biased. At random one more, if that
   number would saturate, but not so that values may overflow. */
static int mx_byte(const spec *s, const measures *m)
{
    int exponent;
    if (m->most == 0) return 0;
    const double part = frexp(m->most, &exponent);
    exponent += s->stochastic && ldexp(part, s->levels + 1) > small_value(s, s->mantissa ? s->last : 127);
    if (exponent - 1 == 128) exponent--;
    return exponent - 1 - s->levels + 127 > 0 ? exponent - 1 - s->levels + 127 : 0;
}

/* ---------------- codes */

/* 16 random bits of an element. */
static uint32_t bits_drawn(uint64_t words, size_t i)
{
    uint32_t h = (uint32_t)(i / 2) + (uint32_t)words;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13 ^ (uint32_t)(words >> 32)) * 0xC2B2AE35u;
    h ^= h >> 16;
    return i % 2 ? h >> 16 : h & 0xffffu;
}

/* A uniform number of an element: 16 bits, and 16 of another stream below them. */
static double draw_of(uint64_t words, size_t i)
{
    return (bits_drawn(words, i) * 65536.0 + bits_drawn(words ^ 0x9E3779B97F4A7C15u, i)) / 4294967296.0;
}

/* What the fraction of |x| must exceed to be rounded up. Levels of a step add random places to x
   itself and cut off. */
static double limit_of(const spec *s, uint64_t words, size_t i, float x)
{
    double u = draw_of(words, i);
    if (s->kind != LEVELS && s->kind != HALVES && s->kind != AFFINE) return u;
    u = ((65535 - bits_drawn(words, i)) * 65536.0 + bits_drawn(words ^ 0x9E3779B97F4A7C15u, i)) / 4294967296.0;
    return s->kind != AFFINE && x < 0 ? 1 - u : u;
}

/* PAIRS: the border between the two sizes of a block. NV: the scale of a block, which `a` is rounded from. HALVES: the step that p is measured by, which is above `a` where
   multiples of that would not be finite. */
static double exact;

/* The two sizes of a block of PAIRS, of which the word of the block has the larger one and the ratio. */
static float size_of_pair(float word, int large)
{
    const float high = float_of(bits_of(word) & 0xffff0000u);
    return large ? high : (float)((double)high * (bits_of(word) & 0xffff) / 65536);
}

/* Is the word of a block of PAIRS right? Lloyd's rule, twice. Where an element lies on a border, both sides are as good, and
   nothing is checked. */
static int good_pair(const float *x, size_t n, double most, float word)
{
    double low = 0, high = 0;
    int open = 0;
    exact = most / 2;
    for (int times = 0; times < 2; times++) {
        double below = 0, above = 0, many = 0;
        for (size_t i = 0; i < n; i++) {
            const double v = fabs((double)x[i]);
            open |= times && v != exact && fabs(v - exact) < 2e-6 * v;
            if (v > exact) above += v, many++;
            else below += v;
        }
        low = below / (many < (double)n ? (double)n - many : 1);
        high = above / (many > 0 ? many : 1);
        if (many == 0) high = low;
        if (many == (double)n) low = high;
        exact = (low + high) / 2;
    }
    if (open) exact = ((double)size_of_pair(word, 0) + (double)size_of_pair(word, 1)) / 2;
    return open || (high - (double)size_of_pair(word, 1) >= -1e-6 * high &&
                    high - (double)size_of_pair(word, 1) <= fmax(high / 128, 0x1p-133) &&
                    fabs((bits_of(word) & 0xffff) - (high > 0 ? low / high * 65535 : 0)) < 1.1);
}

/* The same of small floats at random. A zero has no sign. */
static int good_small(const spec *s, double x, float a, double scale, double u, unsigned code, float *value)
{
    const unsigned draw = (unsigned)(u * 65536), sign = s->mantissa ? code >> (s->bits - 1) : 0;
    const double slack = s->kind == MX ? 0 : 2.5e-7 * fabs(x) / (scale > 0 ? scale : 1), from = scale > 0 ? x / scale : 0;
    const double of = s->mantissa ? small_value(s, (int)(code & ((1u << (s->bits - 1)) - 1))) * (sign ? -1 : 1)
                                  : as_signed(s, code) / 64.0;
    *value = (float)of * a;
    return of >= small_at_random(s, from - slack, draw) && of <= small_at_random(s, from + slack, draw) && (of != 0 || !sign);
}

/* Checks the code of p and returns its value in *value. */
static int good_code(const spec *s, float x, float a, float b, double u, unsigned code, float *value)
{
    int q = s->kind == SMALL || s->kind == MX || s->kind == NV ? (int)(code & ((1u << (s->bits - 1)) - 1)) : as_signed(s, code), half;
    double v = x, ratio = a > 0 ? fabs(v) / (double)a : 0;
    volatile float product;
    if (s->stochastic && (s->kind == SMALL || s->kind == MX || s->kind == NV))
        return good_small(s, v, a, s->kind == NV ? exact : (double)a, u, code, value);
    switch (s->kind) {
    case SIGNS: *value = x < 0 ? -a : a; return code == (x < 0);
    case SIDES: *value = x < 0 ? b : a; return code == (x < 0);
    case TWOBIT:
        *value = (float)(v >= s->constant ? s->constant : v <= -s->constant ? -s->constant : 0);
        return code == (v >= s->constant ? 3u : v <= -s->constant ? 2u : 0u);
    case THRESHOLD: *value = v > s->constant ? 1 : -1; return code == (v > s->constant);
    case FULL:
    case GRIDS: {
        const double from = a != 0 ? (v - b) / (double)a : 0, slack = (fabs(from) + 1) * 3e-7;
        product = (float)q * a;
        *value = s->kind == GRIDS ? product + b : product;
        return q >= fmin(fmax(nearbyint(from - slack), -s->levels), s->levels - 1) &&
               q <= fmin(fmax(nearbyint(from + slack), -s->levels), s->levels - 1);
    }
    case HALVES:
    case LEVELS:
        *value = (float)q * a;
        if (s->kind == HALVES && s->bits == 2) *value += 0.0f; /* c is 0 */
        if (s->kind == HALVES && exact > 0) ratio = fabs(v) / exact;
        half = a > 0 && FLT_MAX / a < (float)s->levels ? (int)(FLT_MAX / a) : s->levels; /* a finite value */
        return between(s, ratio, u, abs(q), half) && (q == 0 || (q < 0) == (x < 0));
    case DITHER:
        *value = q ? copysignf(ldexpf(1, abs(q) - s->levels) * a, (float)q) : 0;
        return between(s, ratio, u, abs(q), s->levels) && (q == 0 || (q < 0) == (x < 0));
    case AFFINE: {
        double from = a > 0 ? (v - b) / (double)a : 0, slack = (fabs(from) + 2 * s->levels + 2) * 2.5e-7, low, high;
        product = (float)q * a;
        *value = product + b;
        half = s->levels + 1;
        low = s->stochastic ? ceil(from - slack - u) : nearbyint(from - slack);
        high = s->stochastic ? ceil(from + slack - u) : nearbyint(from + slack);
        return q >= fmin(fmax(low, -half), s->levels) && q <= fmin(fmax(high, -half), s->levels);
    }
    case PAIRS: {
        const double from = exact > 0 ? v / exact : 0, slack = (fabs(from) + 1) * 3e-7;
        *value = size_of_pair(a, q == 1 || q == -2);
        if (q < 0) *value = -*value;
        return q >= fmin(fmax(floor(from - slack), -2), 1) && q <= fmin(fmax(floor(from + slack), -2), 1);
    }
    case NATURAL: {
        uint32_t magnitude = bits_of(x) & 0x7fffffff, exponent = magnitude >> 23;
        exponent += u * 8388608 < (double)(magnitude & 0x7fffff);
        if (exponent > 254) exponent = 254;
        *value = x < 0 ? -float_of(exponent << 23) : float_of(exponent << 23);
        return code == (exponent | (unsigned)(x < 0) << 8);
    }
    case TABLE:
        product = (float)table_value(s, code);
        *value = product * a;
        if (a > 0) v /= (double)a;
        return fabs(v - table_value(s, code)) <= table_distance(s, v) + 5e-7 * fabs(v) &&
               (s->wire != 36 || (int)(code >> 3) == (signbit(x) != 0));
    case NV:
        product = (float)small_value(s, q);
        *value = copysignf(product * a, x);
        ratio = exact > 0 ? fabs(v) / exact : 0;
        return between(s, ratio, u, q, s->last) && (int)(code >> 3) == (signbit(x) != 0);
    case SMALL:
        product = (float)small_value(s, q);
        *value = copysignf(product * a, x);
        return between(s, ratio, u, q, s->last) && (int)(code >> 7) == (signbit(x) != 0);
    default:
        if (s->mantissa == 0) {
            q = as_signed(s, code);
            *value = (float)(q / 64.0 * a);
            return q == (x < 0 ? -small_code(s, ratio) : small_code(s, ratio));
        }
        *value = copysignf((float)(small_value(s, q) * a), x);
        return q == small_code(s, ratio) && (int)(code >> (s->bits - 1)) == (signbit(x) != 0);
    }
}

/* What a block loses on the grid of step a: levels -2 .. 1 of it, and b above these. */
static double lost_on(const float *x, size_t n, double a, double b)
{
    double lost = 0;
    for (size_t i = 0; i < n; i++) {
        double least = INFINITY;
        for (int q = -2; q <= 1; q++) least = fmin(least, (x[i] - q * a - b) * (x[i] - q * a - b));
        lost += least;
    }
    return lost;
}

/* What an element at z, in 44ths of a step on the side of the peak, loses more on the grid without a zero, in 44ths of a
   step: of squares, step by step. The largest one is where the grid with a zero ends. */
static int lost_more(int z)
{
    const int q = z < -22 ? -44 : z < 22 ? 0 : z < 66 ? 44 : 88, r = z < -44 ? -66 : z < 0 ? -22 : z < 44 ? 22 : 66;
    return ((z - r) * (z - r) - (z - q) * (z - q)) / 44;
}

/* Is it the grid that loses less? Exactly where p is rounded to 44ths, and of p itself but for that. Behind the last element a
   block has zeros, to 16 or to a multiple of 32, which count. A block beyond a tile has a zero always, and a tiny or huge one. */
static int better_grid(const spec *s, const float *x, size_t n, double peak, float a, double b)
{
    const size_t zeros = (0 - n) & (n > 16 ? 31 : 15);
    const double step = fabs(peak) * 0.4, with = lost_on(x, n, -peak / s->constant, 0);
    const double without = lost_on(x, n, step, step / 2) + (double)zeros * step * step / 4;
    const float by = -44 / copysignf(a, -(float)peak);
    long more = 11 * (long)zeros;
    if (!s->block || s->block > 512 || fabs(peak) < 0x1p-47 || fabs(peak) >= 0x1p100) return b == 0;
    for (size_t i = 0; i < n; i++) more += lost_more((int)rintf(x[i] * by));
    return (b != 0) == (more < 0) && (b == 0 ? with <= without * 1.05 : without <= with * 1.05);
}

static void check_payload(const spec *s, int shape, size_t n)
{
    size_t of = s->block ? s->block : n ? n : 1, blocks = (n + of - 1) / of, each = scale_bytes(s), wrong = 0, bad = 0, grids = 0, length;
    const size_t front = s->kind == NV && n ? 4 : 0, scales = front + each * blocks;
    uint64_t words = plain_philox(key.own, 0, 2, 0);
    uint8_t *codes = payload + 32 + scales;
    float tensor = 0;
    fill(shape, n);
    length = encode(s->text, g, e, n);
    CHECK(length == 32 + scales + code_bytes(s, n));
    if (length != 32 + scales + code_bytes(s, n)) return;
    put_header(packed, s->wire, s->word, n, length - 32);
    memcpy(packed + 32, payload + 32, scales);
    memset(packed + 32 + scales, 0, code_bytes(s, n));
    if (front) {
        const measures all = measure(p, n);
        memcpy(&tensor, payload + 32, 4);
        bad += !is_step(tensor, all.most, s->levels, all.most < 1e38); /* else a neighbour may be needed */
    }
    for (size_t k = 0; k < blocks; k++) {
        const uint8_t *scale = payload + 32 + front + each * k;
        size_t end = (k + 1) * of < n ? (k + 1) * of : n;
        measures m = measure(p + k * of, end - k * of);
        float a = 0, b = 0;
        if (each >= 4) memcpy(&a, scale, 4); /* these tests run on little endian machines */
        if (each == 8) memcpy(&b, scale + 4, 4);
        if (each == 2) read_bfloat(s, scale, &a, &b);
        if (s->kind == HALVES) exact = fmax(a, m.most / s->levels);
        if (s->kind == MX) a = (float)ldexp(1, scale[0] - 127);
        if (s->kind == NV) a = (float)(exact = nv_scale(tensor, scale[0]));
        bad += s->kind == MX      ? scale[0] != mx_byte(s, &m)
               : s->kind == NV    ? !good_byte(s, &m, tensor, scale[0])
               : s->kind == PAIRS ? !good_pair(p + k * of, end - k * of, m.most, a)
                                  : !good_scale(s, &m, a, b);
        for (size_t i = k * of; i < end; i++) {
            unsigned code = get_code(s, codes, i);
            wrong += !good_code(s, p[i], a, b, s->stochastic ? limit_of(s, words, i, p[i]) : 0, code, d + i);
            put_code(s, packed + 32 + scales, i, code);
        }
        if (s->kind == GRIDS) grids += !better_grid(s, p + k * of, end - k * of, m.peak, a, b);
    }
    bad += grids;
    if (bad || wrong) printf("# %s, shape %d, n %zu: %zu scales and %zu codes wrong\n", s->text, shape, n, bad, wrong);
    CHECK(bad == 0 && wrong == 0);
    CHECK(!memcmp(payload, packed, length));
    decode(n, length);
}

static void test_payloads_and_decoded_values_are_those_of_the_formulas(void)
{
    key = gcomp_key_make(11, 12, 13, 14);
    for (size_t k = 0; k < SPECS; k++)
        for (size_t i = 0; i < SIZES; i++)
            for (int shape = 0; shape < SHAPES; shape++)
                if ((sizes[i] < 65536 || shape == (int)(k % SHAPES)))
                    check_payload(specs + k, shape, sizes[i]);
}

/* Whole halves of a step, in a block whose step is 1; and what lies beyond the last level on the side that has fewer. */
static void test_halves_of_a_step_go_to_the_even_code_and_the_ends_to_the_last(void)
{
    static const float halves[] = {0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 5.5f, 6.5f, -6.5f};
    static const int even[] = {0, 0, 2, -2, 2, -2, 6, 6, -6};
    enum { COUNT = sizeof halves / sizeof *halves };
    for (int bits = 4; bits <= 8; bits += 4)
        for (int sign = -1; sign <= 1; sign += 2) {
            const size_t length = 32 + 2 + (COUNT + 2) * (size_t)bits / 8 + (bits == 4);
            const float most = (float)sign * (bits == 4 ? 8.15f : 128);
            memcpy(g, halves, sizeof halves);
            g[COUNT] = most;
            g[COUNT + 1] = -0.99f * most;
            CHECK(encode(bits == 4 ? "int:bits=4" : "int", g, NULL, COUNT + 2) == length);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, COUNT + 2, NULL) == GCOMP_OK);
            for (size_t i = 0; i < COUNT; i++) CHECK(y[i] == (float)even[i]);
            CHECK(y[COUNT] == (float)(sign * (bits == 4 ? 8 : 128)) && y[COUNT + 1] == (float)(-sign * (bits == 4 ? 7 : 127)));
        }
}

/* The grid with a zero suits a block of few large numbers, and the other one a block of two sizes. */
static void test_two_bits_take_the_grid_that_fits(void)
{
    static const float some[] = {0, 2.5f, -0.625f, 0}, become[] = {0, 2, -1, 0};
    static const uint8_t scales[] = {0x80, 0xbf, 0x81, 0x3f}; /* -1; 1, and the last bit, which is no digit of it */
    for (size_t i = 0; i < 64; i++) g[i] = some[i % 4];
    for (size_t i = 64; i < 128; i++) g[i] = (i % 3 ? 0.5f : 2.5f) * (i % 2 ? 1.0f : -1.0f);
    CHECK(encode("int:bits=2", g, NULL, 128) == 68 && !memcmp(payload + 32, scales, 4));
    CHECK(gcomp_decode(payload, 68, y, GCOMP_F32, 128, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 64; i++) CHECK(y[i] == become[i % 4]);
    for (size_t i = 64; i < 128; i++) CHECK(y[i] == (i % 3 ? 0.5f : 1.5f) * (i % 2 ? 1.0f : -1.0f));
}

/* ---------------- casts at random */

/* The cast of x: a multiple of 2^(e - mantissa) for 2^e <= |x| < 2^(e+1), e not below `least`; up
   if the 16 binary places behind it and 16 random bits add up to a whole. */
static float cast_of(float x, int mantissa, int least, double most, uint32_t bits)
{
    int exponent;
    double unit, whole, q = fabs((double)x) < most ? fabs((double)x) : most;
    frexp(q, &exponent);
    unit = ldexp(1, (q == 0 || exponent - 1 < least ? least : exponent - 1) - mantissa);
    whole = floor(q / unit);
    whole += floor((q / unit - whole) * 65536) + bits >= 65536;
    return copysignf((float)(whole * unit), x);
}

static void check_random_cast(const char *text, int wire, int mantissa, int least, double most)
{
    uint64_t words = plain_philox(key.own, 0, 2, 0);
    for (size_t s = 0; s < SIZES; s++)
        for (int shape = 0; shape <= SHAPES; shape++) {
            const size_t n = sizes[s];
            size_t length, wrong = 0;
            fill(shape < SHAPES ? shape : 0, n);
            for (size_t i = 0; shape == SHAPES && i < n; i++) p[i] = g[i] = ldexpf(g[i], -10 - (int)(i % 40)), e[i] = -0.0f;
            length = encode(text, g, e, n);
            put_header(packed, (unsigned)wire, 0, n, 2 * n);
            CHECK(length == 32 + 2 * n && !memcmp(payload, packed, 32)); /* the payload does not say how it was rounded */
            for (size_t i = 0; i < n; i++) d[i] = cast_of(p[i], mantissa, least, most, bits_drawn(words, i));
            decode(n, length);
            (void)encode(text, d, NULL, n); /* what the format has stays as it is */
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) wrong += bits_of(y[i]) != bits_of(d[i]);
            CHECK(wrong == 0);
        }
}

/* Numbers at which the formats end or change their steps: over many keys each becomes one of its
   neighbours, and as often as the distance to the other one says. */
static void check_edges_of_cast(const char *text, const float *edges, size_t count, int mantissa, int least, double most)
{
    enum { TIMES = 4096 };
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    gcomp_codec codec;
    double up[64] = {0};
    size_t length = 0, wrong = 0;
    gcomp_input in = input_of(edges, NULL, count);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    for (uint64_t k = 0; k < TIMES; k++) {
        in.key = gcomp_key_make(5, k, 0, 0);
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, count, &exec) == GCOMP_OK);
        for (size_t i = 0; i < count; i++) {
            const float low = cast_of(edges[i], mantissa, least, most, 0), high = cast_of(edges[i], mantissa, least, most, 65535);
            wrong += bits_of(y[i]) != bits_of(low) && bits_of(y[i]) != bits_of(high);
            up[i] += y[i] != low;
        }
    }
    CHECK(wrong == 0);
    for (size_t i = 0; i < count; i++) {
        const double low = cast_of(edges[i], mantissa, least, most, 0), high = cast_of(edges[i], mantissa, least, most, 65535);
        const double x = fmin(fabs((double)edges[i]), most), share = high != low ? (x - fabs(low)) / fabs(high - low) : 0;
        if (!(fabs(up[i] / TIMES - share) <= 5.5 * sqrt(share * (1 - share) / TIMES) + 8.0 / TIMES))
            printf("# %s of %g: up %g times of %d, not %g\n", text, (double)edges[i], up[i], TIMES, share * TIMES);
        CHECK(fabs(up[i] / TIMES - share) <= 5.5 * sqrt(share * (1 - share) / TIMES) + 8.0 / TIMES);
    }
}

static void test_casts_at_random_are_those_of_the_formula(void)
{
    static const float halves[] = {0.0f, -0.0f, 65504.0f, -65504.0f, 65503.0f, 65519.9f, 65520.0f, -1e9f, FLT_MAX, -FLT_MAX,
                                   0x1p-24f, -0x1p-25f, 0x1p-26f, 0x1.8p-24f, -0x1.7ff8p-15f, 0x1p-14f, 0x1.fffffep-15f, 1e-45f,
                                   0x1.002p0f, 0x1.001p0f, -0x1.ffffp0f, 0x1.0008p1f, 2047.5f, 32767.0f, 0x1p-30f, 0x1p-41f};
    static const float bfloats[] = {0.0f, -0.0f, 0x1.fep127f, -0x1.fep127f, 0x1.fdp127f, FLT_MAX, -FLT_MAX, 1e-45f, -0x1p-134f,
                                    0x1p-133f, 0x1.8p-133f, 0x1p-126f, -0x1.fffffcp-127f, 0x1.01p0f, -0x1.02p0f, 0x1.fffffep3f};
    key = gcomp_key_make(11, 12, 13, 14);
    check_random_cast("fp16:rounding=stochastic", 2, 10, -14, 65504);
    check_random_cast("bf16:rounding=stochastic", 3, 7, -126, (double)0x1.fep127f);
    check_edges_of_cast("fp16:rounding=stochastic", halves, sizeof halves / sizeof *halves, 10, -14, 65504);
    check_edges_of_cast("bf16:rounding=stochastic", bfloats, sizeof bfloats / sizeof *bfloats, 7, -126, (double)0x1.fep127f);
}

/* ---------------- MXNet */

static const float vector5[] = {0.7f, -0.5f, 0.49f, 1.6f, -0.2f};

static void test_twobit_packs_as_mxnet_does(void)
{
    static const float rest[] = {0.7f - 0.5f, 0, 0.49f, 1.6f - 0.5f, -0.2f};
    static const uint8_t up[] = {0xc0, 0x30, 0x0c, 0x03}, down[] = {0x80, 0x20, 0x08, 0x02};
    gcomp_input in = input_of(vector5, NULL, 5);
    size_t length = encode("twobit:threshold=0.5", vector5, NULL, 5);
    CHECK(length == 34 && payload[32] == 0xe3 && payload[33] == 0);
    memset(y, 0, sizeof rest);
    CHECK(gcomp_retain(payload, length, &in, y, NULL) == GCOMP_OK);
    for (int i = 0; i < 5; i++) CHECK(y[i] == rest[i]);
    fill(0, 70);
    for (size_t n = 0; n <= 70; n++) {
        memset(packed, 0, 18);
        for (size_t i = 0; i < n; i++) packed[i / 4] |= g[i] >= 0.25f ? up[i % 4] : g[i] <= -0.25f ? down[i % 4] : 0;
        CHECK(encode("twobit:threshold=0.25", g, NULL, n) == 32 + (n + 3) / 4);
        CHECK(!memcmp(payload + 32, packed, (n + 3) / 4));
    }
}

/* What is lost with the threshold t. */
static double lost_with(double t, size_t n)
{
    double lost = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)p[i]) >= t ? fabs((double)p[i]) - t : (double)p[i];
        lost += off * off;
    }
    return lost;
}

static float threshold_of(const char *text, size_t n)
{
    float t;
    size_t length = encode(text, g, e, n), wrong = 0;
    CHECK(length == 36 + (n + 3) / 4);
    memcpy(&t, payload + 32, 4);
    CHECK(t > 0 && gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) wrong += y[i] != (p[i] >= t ? t : p[i] <= -t ? -t : 0);
    CHECK(wrong == 0);
    return t;
}

/* Of up to 4096 elements the encoder looks at all. Then the share that reaches t is the rate, but
   for equal numbers and the last bits of t. */
static void test_twobit_finds_the_threshold_that_a_part_of_the_elements_reaches(void)
{
    static const struct { const char *text; double rate; } rates[] = {
        {"twobit:threshold=auto,rate=0.001", 0.001}, {"twobit:threshold=auto,rate=0.05", 0.05},
        {"twobit:threshold=auto,rate=0.5", 0.5}, {"twobit:threshold=auto,rate=1", 1}};
    static const int shapes[] = {0, 2, 5, 7};
    static const size_t some[] = {1, 17, 1009, 4096, 200003};
    for (int k = 0; k < 4; k++)
        for (int shape = 0; shape < 4; shape++)
            for (size_t j = 0; j < 5; j++) {
                size_t n = some[j], fires = 0, wanted = (size_t)ceil(rates[k].rate * (double)n);
                double slack = n > 4096 ? 5 * sqrt(rates[k].rate * (1 - rates[k].rate) / 4096) * (double)n : 1;
                fill(shapes[shape], n);
                (void)threshold_of(rates[k].text, n);
                for (size_t i = 0; i < n; i++) fires += y[i] != 0;
                if (fabs((double)fires - (double)wanted) > slack + 0.01 * (double)wanted)
                    printf("# %s, shape %d, n %zu: %zu\n", rates[k].text, shapes[shape], n, fires);
                CHECK(fabs((double)fires - (double)wanted) <= slack + 0.01 * (double)wanted);
            }
}

static void test_twobit_finds_the_threshold_of_least_error(void)
{
    static const size_t some[] = {1, 17, 1009, 65536, 200003};
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t j = 0; j < 5; j++) {
            size_t n = some[j];
            double best, found, top = 0;
            if (shape == 3 || (shape == 2 && n > 65536)) continue; /* subnormal; the huge one is in no sample */
            fill(shape, n);
            for (size_t i = 0; i < n; i++) top = fmax(top, fabs((double)p[i]));
            found = lost_with(threshold_of("twobit:threshold=auto", n), n);
            best = lost_with(INFINITY, n);
            for (double t = top; t > top / 1000; t *= n > 65536 ? 0.9 : 0.99) best = fmin(best, lost_with(t, n));
            best = best * (n > 65536 || n < 100 ? 1.03 : 1.01) + top * top / 256; /* a few numbers alone are reached to a 16th */
            if (!(found <= best)) printf("# shape %d, n %zu: %g, best %g\n", shape, n, found, best);
            CHECK(found <= best);
        }
}

/* A few neighbours hold all that matters, as rows of rare inputs do. The lines of memory that make
   up a sample may miss them all. */
static void test_twobit_finds_the_threshold_of_clusters(void)
{
    static const size_t some[] = {5000, 20000, 40003, 65536};
    for (size_t j = 0; j < 4; j++)
        for (size_t at = 0; at < 4; at++) {
            const size_t n = some[j], first = n / 5 * at + 7;
            double found, best = INFINITY;
            fill(0, n);
            for (size_t i = 0; i < n; i++) {
                e[i] = 0;
                p[i] = g[i] = (i >= first && i < first + 40 ? g[i] < 0 ? -1000 : 1000 : 1) * g[i];
            }
            found = lost_with(threshold_of("twobit:threshold=auto", n), n);
            for (double t = 5000; t > 0.01; t *= 0.98) best = fmin(best, lost_with(t, n));
            if (!(found <= 1.05 * best)) printf("# n %zu, from %zu: %g, best %g\n", n, first, found, best);
            CHECK(found <= 1.05 * best); /* a 16th of the threshold, of few elements */
        }
}

static void test_a_threshold_of_twobit_that_is_none_is_refused(void)
{
    static const uint32_t bad[] = {0x7f800000, 0x7fc00000, 0xbf800000, 0x80000000};
    for (int i = 0; i < 4; i++) {
        size_t length = encode("twobit:threshold=auto", vector5, NULL, 5);
        memcpy(payload + 32, bad + i, 4);
        CHECK(gcomp_check(payload, length, 5) == GCOMP_CORRUPT);
        length = encode("twobit", vector5, NULL, 5);
        memcpy(payload + 24, bad + i, 4);
        CHECK(gcomp_check(payload, length, 5) == GCOMP_CORRUPT);
    }
}

static void test_threshold1_packs_as_mxnet_does(void)
{
    static const float rest[] = {0.7f - 1, 0.5f, 0.49f - 1, 1.6f - 1, 0.8f};
    gcomp_input in = input_of(vector5, NULL, 5);
    size_t length = encode("threshold1:threshold=0", vector5, NULL, 5);
    CHECK(length == 33 && payload[32] == 0xb0);
    memset(y, 0, sizeof rest);
    CHECK(gcomp_retain(payload, length, &in, y, NULL) == GCOMP_OK);
    for (int i = 0; i < 5; i++) CHECK(y[i] == rest[i]);
    fill(6, 70);
    for (size_t n = 0; n <= 70; n++) {
        memset(packed, 0, 9);
        for (size_t i = 0; i < n; i++) packed[i / 8] |= (uint8_t)(g[i] > 0 ? 0x80 >> i % 8 : 0);
        CHECK(encode("threshold1", g, NULL, n) == 32 + (n + 7) / 8);
        CHECK(!memcmp(payload + 32, packed, (n + 7) / 8));
    }
}

static void test_a_code_of_twobit_that_means_nothing_is_refused(void)
{
    size_t length = encode("twobit", vector5, NULL, 5);
    for (int i = 0; i < 4; i++) {
        payload[32] = (uint8_t)(0x40 >> 2 * i);
        CHECK(gcomp_check(payload, length, 5) == GCOMP_CORRUPT && gcomp_decode(payload, length, y, GCOMP_F32, 5, NULL) == GCOMP_CORRUPT);
    }
}

/* A payload of zeros, by hand; the scale is 1, or for fp8 2. */
static size_t zeros_of(const spec *s, size_t n)
{
    size_t blocks = s->kind == MX ? (n + 31) / 32 : 1, bytes = scale_bytes(s) * blocks + code_bytes(s, n);
    float two = 2;
    put_header(payload, s->wire, s->word, n, bytes);
    memset(payload + 32, 0, bytes);
    if (s->kind == MX) memset(payload + 32, 127, blocks);
    if (s->kind == SMALL) memcpy(payload + 32, &two, 4);
    return 32 + bytes;
}

static void check_codes(const char *text, unsigned last)
{
    const spec *s = spec_of(text);
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    size_t n = (size_t)1 << s->bits, length;
    unsigned sign = 1u << (s->bits - 1);
    for (unsigned first = 0; first < n; first++) { /* one code in all places */
        int valid = s->mantissa == 0 || (first & (sign - 1)) <= last;
        double value = s->mantissa == 0 ? as_signed(s, first) / 64.0 : small_value(s, (int)(first & (sign - 1)));
        if (s->mantissa && first & sign) value = -value;
        length = zeros_of(s, 37);
        for (size_t i = 0; i < 37; i++) put_code(s, payload + length - code_bytes(s, 37), i, first);
        CHECK(gcomp_check(payload, length, 37) == (valid ? GCOMP_OK : GCOMP_CORRUPT));
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, 37, &exec) == (valid ? GCOMP_OK : GCOMP_CORRUPT));
        for (size_t i = 0; valid && i < 37; i++)
            CHECK(y[i] == (float)value * (s->kind == MX ? 1 : 2) && (s->mantissa == 0 || !signbit(y[i]) == !(first & sign)));
    }
}

static void test_small_formats_have_the_values_of_their_standards(void)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const spec *e4m3 = spec_of("fp8"), *e5m2 = spec_of("fp8:format=e5m2,block=tensor");
    for (int i = 0; i < 8; i++) CHECK(small_value(spec_of("mx"), i) == e2m1[i]);
    CHECK(small_value(e4m3, 0x7e) == 448 && small_value(e4m3, 1) == ldexp(1, -9) && small_value(e4m3, 8) == ldexp(1, -6));
    CHECK(small_value(e5m2, 0x7b) == 57344 && small_value(e5m2, 1) == ldexp(1, -16) && small_value(e5m2, 4) == ldexp(1, -14));
    for (int i = 0; i < 8; i++) { /* the standard names the smallest, the largest and the normal ones */
        CHECK(small_value(spec_of("mx:format=e2m3"), i) == i / 8.0);
        CHECK(small_value(spec_of("mx:format=e2m3"), 24 + i) == 4 + i / 2.0);
        CHECK(small_value(spec_of("mx:format=e3m2"), i) == (i < 4 ? i / 16.0 : (4 + i % 4) / 16.0));
    }
    CHECK(small_value(spec_of("mx:format=e3m2"), 31) == 28 && small_value(spec_of("mx:format=e3m2"), 12) == 1);
    CHECK(small_value(spec_of("mx:format=e2m3"), 31) == 7.5 && small_value(spec_of("mx:format=e2m3"), 8) == 1);
    CHECK(small_value(e4m3, 0x38) == 1 && small_value(e5m2, 0x3c) == 1);
}

static void test_every_code_of_the_small_formats_decodes_or_is_refused(void)
{
    check_codes("fp8", 0x7e);
    check_codes("fp8:format=e5m2,block=tensor", 0x7b);
    check_codes("mx", 7);
    check_codes("mx:format=e4m3", 0x7e);
    check_codes("mx:format=e5m2", 0x7b);
    check_codes("mx:format=int8", 0);
    check_codes("mx:format=e2m3", 31);
    check_codes("mx:format=e3m2", 31);
}

static void test_scales_that_are_no_number_are_refused(void)
{
    static const uint32_t bad[] = {0x7f800000, 0x7fc00000, 0xff800000, 0xbf800000, 0x7f7fffff};
    const spec *s = spec_of("fp8"), *mx = spec_of("mx:format=int8");
    for (int i = 0; i < 5; i++) { /* the last: its largest multiple overflows */
        size_t length = zeros_of(s, 40);
        memcpy(payload + 32, bad + i, 4);
        memset(payload + 36, 0x7e, 40);
        CHECK(gcomp_check(payload, length, 40) == GCOMP_CORRUPT);
    }
    for (int i = 253; i < 256; i++) { /* 2^126 * -2 is finite, 2^127 * -2 is not, 255 is no scale */
        size_t length = zeros_of(mx, 40);
        payload[33] = (uint8_t)i;
        memset(payload + 34, 0x80, 40);
        CHECK(gcomp_check(payload, length, 40) == (i == 253 ? GCOMP_OK : GCOMP_CORRUPT));
    }
}

/* Steps of int have a sign. One whose largest multiple is infinite is refused; and so is the number of an older form of int. */
static void test_scales_of_int_that_are_no_number_are_refused(void)
{
    static const unsigned words[] = {0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0xff7f, 0x7e7f, 0xfe7f, 0x7d7f, 0x7b7f, 0xbf80, 0x8000, 0x0001};
    static const char *const texts[] = {"int", "int:bits=4", "int:bits=3", "int:bits=2,block=16"};
    for (size_t t = 0; t < 4; t++)
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            const spec *s = spec_of(texts[t]);
            const size_t n = 40, scales = 2 * ((n + s->block - 1) / s->block), length = 32 + scales + code_bytes(s, n);
            const unsigned word = words[i] & (s->bits == 2 ? 0xfffeu : 0xffffu);
            const int fits = fabs((double)float_of(word << 16)) * s->levels <= FLT_MAX;
            put_header(payload, s->wire, s->word, n, length - 32);
            memset(payload + 32, 0, length - 32);
            payload[32] = (uint8_t)words[i];
            payload[33] = (uint8_t)(words[i] >> 8);
            for (size_t j = 0; j < 16; j++) put_code(s, payload + 32 + scales, j, 1u << (s->bits - 1)); /* -levels */
            CHECK(gcomp_check(payload, length, n) == (fits ? GCOMP_OK : GCOMP_CORRUPT));
            payload[5] = 16;
            CHECK(gcomp_check(payload, length, n) == GCOMP_UNKNOWN_METHOD);
        }
}

static void run_on_one_set(void)
{
    RUN(test_payloads_and_decoded_values_are_those_of_the_formulas);
    RUN(test_halves_of_a_step_go_to_the_even_code_and_the_ends_to_the_last);
    RUN(test_two_bits_take_the_grid_that_fits);
    RUN(test_scales_of_int_that_are_no_number_are_refused);
    RUN(test_casts_at_random_are_those_of_the_formula);
    RUN(test_twobit_packs_as_mxnet_does);
    RUN(test_twobit_finds_the_threshold_that_a_part_of_the_elements_reaches);
    RUN(test_twobit_finds_the_threshold_of_least_error);
    RUN(test_twobit_finds_the_threshold_of_clusters);
    RUN(test_a_threshold_of_twobit_that_is_none_is_refused);
    RUN(test_threshold1_packs_as_mxnet_does);
    RUN(test_a_code_of_twobit_that_means_nothing_is_refused);
    RUN(test_small_formats_have_the_values_of_their_standards);
    RUN(test_every_code_of_the_small_formats_decodes_or_is_refused);
    RUN(test_scales_that_are_no_number_are_refused);
}

int main(void)
{
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (isa_is_wanted(isa_now)) run_on_one_set();
    }
    isa_now = GCOMP_ISA_AUTO;
    return test_end();
}
