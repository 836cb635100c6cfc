/* Proves of quantizers: small formats round to the nearest; the means of the unbiased ones over many keys, the errors of all, what is lost, and texts. */

#include "quantizers.h"

#ifdef __SANITIZE_ADDRESS__
enum { KEYS = 1024 }; /* each payload costs a lot there */
#else
enum { KEYS = 4096 };
#endif

static float y[LARGEST];

/* Blocks whose scale is 1: every value of the format, the middles between them, and the
   neighbours of these in float. */
static void check_rounding(const char *text)
{
    const spec *s = spec_of(text);
    double top = s->mantissa ? small_value(s, s->last) : 127 / 64.0, widest = s->kind == MX ? ldexp(1, s->levels) : top;
    size_t n = 0, length, wrong = 0;
    for (int code = 0; code <= (s->mantissa ? s->last : 127); code++) {
        double low = small_value(s, code), high = code < (s->mantissa ? s->last : 127) ? small_value(s, code + 1) : top;
        double middle = (low + high) / 2;
        float some[4];
        some[0] = (float)low;
        some[1] = (float)middle;
        some[2] = nextafterf((float)middle, 0);
        some[3] = nextafterf((float)middle, (float)high);
        for (int k = 0; k < 8; k++) {
            if (s->kind == MX && n % 32 == 0) g[n++] = (float)widest; /* fixes the scale of the block */
            if (s->kind == SMALL && n % 256 == 0) g[n++] = (float)widest;
            g[n++] = k & 1 ? -some[k / 2] : some[k / 2];
        }
    }
    for (double x = 1; s->kind == MX && x < 1.99; x += 0.01) { /* saturates between the largest value and the next power of two */
        if (n % 32 == 0) g[n++] = (float)widest;
        g[n++] = (float)(x * widest);
    }
    length = encode(text, g, NULL, n);
    for (size_t i = 0; i < n; i++) {
        unsigned code = get_code(s, payload + length - code_bytes(s, n), i);
        double x = g[i], best = top, reached;
        for (int k = 0; k <= (s->mantissa ? s->last : 127); k++) { /* the nearest of all; of two the even one */
            double value = small_value(s, k), off = fabs(fabs(x) - value);
            if (off < fabs(fabs(x) - best) || (off == fabs(fabs(x) - best) && k % 2 == 0)) best = value;
        }
        reached = s->mantissa == 0 ? as_signed(s, code) / 64.0 : small_value(s, (int)(code & ((1u << (s->bits - 1)) - 1)));
        wrong += fabs(reached) != best;
    }
    if (wrong) printf("# %s: %zu of %zu\n", text, wrong, n);
    CHECK(wrong == 0);
}

static void test_small_formats_round_to_the_nearest_value_and_to_even(void)
{
    check_rounding("fp8");
    check_rounding("fp8:format=e5m2,block=tensor");
    check_rounding("mx");
    check_rounding("mx:format=e4m3");
    check_rounding("mx:format=e5m2");
    check_rounding("mx:format=int8");
    check_rounding("mx:format=e2m3");
    check_rounding("mx:format=e3m2");
}

/* A block whose scale is 1, and every border between two values with its neighbours. A border of
   e3m0 becomes the value whose significand is even as 10 is, the larger one, and the least border
   0; of nf4 the lower value. */
static void check_table(const char *text)
{
    const spec *s = spec_of(text);
    size_t n = 0, length, wrong = 0;
    double sorted[16];
    for (int i = 0; i < 16; i++) sorted[i] = s->wire == 37 ? table_value(s, (unsigned)i) : table_value(s, (unsigned)(i < 8 ? 15 - i : i - 8));
    for (int i = 0; i + 1 < 16; i++) {
        const float low = (float)((sorted[i] + sorted[i + 1]) / 2);
        const float some[4] = {(float)sorted[i], low, nextafterf(low, -INFINITY), nextafterf(low, INFINITY)};
        for (int k = 0; k < 4; k++) {
            if (n % 16 == 0) g[n++] = (float)s->levels; /* fixes the scale of the block */
            g[n++] = some[k];
        }
    }
    length = encode(text, g, NULL, n);
    for (size_t i = 0; i < n; i++) {
        const unsigned code = get_code(s, payload + length - code_bytes(s, n), i);
        const double x = g[i], reached = table_value(s, code), other = 2 * x - reached; /* as far off on the other side */
        wrong += fabs(x - reached) != table_distance(s, x);
        for (int k = 0; k < 16; k++)
            if (table_value(s, (unsigned)k) == other && other != reached)
                wrong += s->wire == 37 ? reached > other : fabs(x) < 0.2 ? reached != 0 : fabs(reached) < fabs(other);
    }
    if (wrong) printf("# %s: %zu of %zu\n", text, wrong, n);
    CHECK(wrong == 0);
}

static void test_looked_up_values_are_the_nearest(void)
{
    check_table("e3m0:block=16");
    check_table("nf4:block=16");
    for (unsigned code = 0; code < 16; code++) /* every code decodes; so does one behind the last whole group */
        for (int k = 0; k < 2; k++) {
            gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
            const spec *s = spec_of(k ? "nf4" : "e3m0");
            const float two = 2;
            const size_t length = 32 + 4 + code_bytes(s, 37);
            put_header(payload, s->wire, s->word, 37, length - 32);
            memcpy(payload + 32, &two, 4);
            memset(payload + 36, 0, code_bytes(s, 37));
            for (size_t i = 0; i < 37; i++) put_code(s, payload + 36, i, code);
            CHECK(gcomp_check(payload, length, 37) == GCOMP_OK && gcomp_decode(payload, length, y, GCOMP_F32, 37, &exec) == GCOMP_OK);
            for (size_t i = 0; i < 37; i++) CHECK(y[i] == (float)table_value(s, code) * 2);
        }
}

/* Random numbers in (-1, 1), many of them near the borders: no other value of nf4 is nearer. */
static void test_nf4_takes_the_nearest_value_of_many(void)
{
    enum { N = 1 << 16 };
    const spec *s = spec_of("nf4:block=4096");
    size_t wrong = 0, length;
    for (size_t i = 0; i < N; i++) {
        const unsigned code = (unsigned)(mix(i) % 15);
        const double middle = (table_value(s, code) + table_value(s, code + 1)) / 2;
        g[i] = i % 4096 == 0 ? 1 : i % 2 ? (float)(2 * uniform(i) - 1) : (float)(middle + (uniform(i) - 0.5) * ldexp(1, -(int)(i / 2 % 24)) * 0.1);
    }
    length = encode("nf4:block=4096", g, NULL, N);
    for (size_t i = 0; i < N; i++) {
        const double value = table_value(s, get_code(s, payload + length - N / 2, i));
        wrong += fabs((double)g[i] - value) != table_distance(s, (double)g[i]);
    }
    CHECK(wrong == 0);
}

/* ---------------- scales of two levels */

/* A payload of one scale of a byte, by hand. */
static size_t two_levels(float tensor, unsigned byte, unsigned code, size_t n)
{
    const spec *s = spec_of("nvfp4");
    const size_t blocks = (n + 15) / 16, length = 32 + 4 + blocks + code_bytes(s, n);
    put_header(payload, s->wire, 0, n, length - 32);
    memcpy(payload + 32, &tensor, 4);
    memset(payload + 36, (int)byte, blocks);
    memset(payload + 36 + blocks, 0, code_bytes(s, n));
    for (size_t i = 0; i < n; i++) put_code(s, payload + 36 + blocks, i, code);
    return length;
}

static void test_every_scale_of_two_levels_decodes_or_is_refused(void)
{
    static const uint32_t bad[] = {0x7f800000, 0x7fc00000, 0xff800000, 0xbf800000, 0x80000000, 0x7f7fffff};
    const spec *s = spec_of("nvfp4");
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    for (unsigned byte = 0; byte < 256; byte++)
        for (unsigned code = 0; code < 16; code++) {
            const size_t n = byte % 2 ? 77 : 64, length = two_levels(0.7f, byte, code, n);
            const gcomp_result expect = byte < 0x7f ? GCOMP_OK : GCOMP_CORRUPT;
            CHECK(gcomp_check(payload, length, n) == expect && gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == expect);
            for (size_t i = 0; i < n && byte < 0x7f; i++) {
                const float scale = (float)nv_scale(0.7f, byte), value = (float)small_value(s, (int)(code & 7)) * scale;
                CHECK(bits_of(y[i]) == bits_of(code & 8 ? -value : value));
            }
        }
    for (size_t i = 0; i < 6; i++) { /* the last: its largest multiple overflows, and the others do not */
        size_t length = two_levels(float_of(bad[i]), 0x7e, 7, 40);
        CHECK(gcomp_check(payload, length, 40) == GCOMP_CORRUPT);
        length = two_levels(float_of(bad[i]), 0x20, 7, 40);
        CHECK(gcomp_check(payload, length, 40) == (i == 5 ? GCOMP_OK : GCOMP_CORRUPT));
    }
    for (size_t bytes = 1; bytes <= 8; bytes++) { /* a bad byte among eight, and behind them */
        const size_t length = two_levels(1, 0x38, 1, 16 * 13);
        payload[36 + bytes + 4] = 0x7f;
        CHECK(gcomp_check(payload, length, 16 * 13) == GCOMP_CORRUPT);
        payload[36 + bytes + 4] = 0x80;
        CHECK(gcomp_check(payload, length, 16 * 13) == GCOMP_CORRUPT);
    }
}

/* S is 1: the scales of blocks are the e4m3 nearest to a sixth of their largest number, ties to
   even; and codes are the nearest, also where the scale was rounded down. */
static void test_scales_of_two_levels_are_rounded_to_nearest(void)
{
    const spec *s = spec_of("nvfp4");
    for (int times = 0; times < 3; times++) {
        size_t n = 0, wrong = 0;
        for (int code = 0; code < 0x7e; code++) {
            const double middle = (small_value(&e4m3_spec, code) + small_value(&e4m3_spec, code + 1)) / 2;
            const double most = 6 * middle * (times == 0 ? 1 : times == 1 ? 1 - 1e-5 : 1 + 1e-5);
            for (int i = 0; i < 16; i++, n++) g[n] = (float)(i == code % 16 ? -most : most * (2 * uniform(n) - 1));
        }
        for (int i = 0; i < 16; i++) g[n++] = i == 3 ? 6 * 448 : 0;
        CHECK(encode("nvfp4", g, NULL, n) != 0);
        for (size_t k = 0; k < n / 16; k++) {
            const int code = (int)k, byte = payload[36 + k], up = times == 0 ? code % 2 : times == 2;
            const double x = small_value(&e4m3_spec, byte);
            wrong += byte != (k < 0x7e ? code + up : 0x7e);
            for (size_t i = 16 * k; i < 16 * k + 16; i++) {
                const unsigned q = get_code(s, payload + 36 + n / 16, i);
                wrong += !between(s, x > 0 ? fabs((double)g[i]) / x : 0, 0, (int)(q & 7), 7);
            }
        }
        CHECK(payload[32] == 0 && payload[33] == 0 && payload[34] == 0x80 && payload[35] == 0x3f && wrong == 0);
    }
}

/* ---------------- unbiased methods */

static const spec unbiased[] = {
    {"qsgd:levels=1,bucket=16", LEVELS, 13, 0, 16, 2, 1, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=7,bucket=tensor", LEVELS, 13, 0, 0, 4, 7, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=32767,bucket=16", LEVELS, 13, 0, 16, 16, 32767, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=1,norm=l2,bucket=tensor", LEVELS, 13, 0, 0, 2, 1, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=3,norm=l2,bucket=16", LEVELS, 13, 0, 16, 4, 3, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=31,norm=l2,bucket=tensor", LEVELS, 13, 0, 0, 8, 31, 1, L2, 0, 0, 0, 0},
    {"terngrad:clip=0", LEVELS, 12, 0, 0, 2, 1, 1, CLIPPED, 0, 0, 0, 0},
    {"terngrad:clip=0,block=16", LEVELS, 12, 0, 16, 2, 1, 1, CLIPPED, 0, 0, 0, 0},
    {"qsgd:levels=3,bucket=16,spacing=powers", DITHER, 13, 0, 16, 4, 3, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=9,bucket=tensor,spacing=powers", DITHER, 13, 0, 0, 8, 9, 1, MOST, 0, 0, 0, 0},
    {"qsgd:levels=5,norm=l2,bucket=tensor,spacing=powers", DITHER, 13, 0, 0, 4, 5, 1, L2, 0, 0, 0, 0},
    {"qsgd:levels=1,norm=l2,bucket=16,spacing=powers", DITHER, 13, 0, 16, 4, 1, 1, L2, 0, 0, 0, 0},
    {"natural", NATURAL, 15, 0, 0, 9, 0, 1, 0, 0, 0, 0, 0},
    {"int:rounding=stochastic,block=tensor", HALVES, 40, 0, 0, 8, 127, 1, MOST, 0, 0, 0, 0},
    {"int:bits=4,rounding=stochastic,block=16", HALVES, 40, 0, 16, 4, 7, 1, MOST, 0, 0, 0, 0},
    {"int:bits=2,rounding=stochastic,block=16", HALVES, 40, 0, 16, 2, 1, 1, MOST, 0, 0, 0, 0},
    {"int:range=affine,rounding=stochastic,block=16", AFFINE, 40, 0, 16, 8, 127, 1, 0, 0, 0, 0, 0},
    {"int:bits=4,range=affine,rounding=stochastic,block=tensor", AFFINE, 40, 0, 0, 4, 7, 1, 0, 0, 0, 0, 0},
    {"int:bits=2,range=affine,rounding=stochastic,block=16", AFFINE, 40, 0, 16, 2, 1, 1, 0, 0, 0, 0, 0}};

enum { UNBIASED = sizeof unbiased / sizeof *unbiased, SHORT = 48 };

/* The two values between which x is rounded: |x|'s, or in AFFINE those above b - (levels + 1) a.
   Returns x measured so. */
static double neighbours(const spec *s, double x, double a, double b, double *low, double *high)
{
    double step = a, from = s->kind == AFFINE ? x - (b - (s->levels + 1) * a) : fabs(x), last = s->levels * a;
    *low = *high = from;
    if (from <= 0 || (s->kind != NATURAL && a == 0)) return from;
    if (s->kind == LEVELS || s->kind == HALVES || s->kind == AFFINE) {
        *low = floor(from / a) * a;
        if (s->kind == AFFINE) last = (2 * s->levels + 1) * a;
    } else {
        double smallest = s->kind == NATURAL ? FLT_MIN : ldexp(a, 1 - s->levels);
        int exponent;
        frexp(s->kind == NATURAL ? from : from / a, &exponent);
        step = ldexp(s->kind == NATURAL ? 1 : a, exponent - 1);
        last = s->kind == NATURAL ? ldexp(1, 127) : a;
        *low = from < smallest ? 0 : step;
        if (from < smallest) step = smallest;
    }
    *high = *low + step;
    if (from >= last) *low = *high = from; /* but for rounding */
    return from;
}

/* The paper's bound of the summed variance of a block; 0: none. */
static double variance_bound(const spec *s, const measures *m, double a)
{
    double n = (double)m->count, t = ldexp(sqrt(n), 1 - s->levels);
    if (s->kind == NATURAL) return m->squares / 8 + (m->most < FLT_MIN ? FLT_MIN * (m->plus + m->minus) : 0); /* of subnormals */
    if (s->kind == DITHER) return m->squares * (0.125 + (t < 1 ? t * t : t));
    if (s->norm == CLIPPED) return m->most * (m->plus + m->minus) - m->squares;
    if (s->norm == L2) return m->squares * fmin(n / s->levels / s->levels, sqrt(n) / s->levels);
    return n * a * a / 4;
}

static void check_block(const spec *s, int shape, size_t begin, size_t end, double a, double b, const double *sum,
                        const double *squares)
{
    measures m = measure(p + begin, end - begin);
    double variance = 0, spread = 0, seen = 0, hops = 0, bound = variance_bound(s, &m, a);
    for (size_t i = begin; i < end; i++) {
        double low, high, from = neighbours(s, p[i], a, b, &low, &high), up = from - low, down = high - from, allowed;
        double hop = high > low ? high - low : s->kind == DITHER ? a / 2 : a;
        double rounding = 3e-7 * (s->kind == AFFINE ? (2 * s->levels + 2) * a + fabs(b) : fabs(p[i])) + 1.5e-45;
        if (s->kind == NATURAL && high > ldexp(1, 127)) return;
        variance += up * down;
        if (high > low) spread += up * down * (up * up * up + down * down * down) / hop - up * down * up * down;
        seen += squares[i] / KEYS;
        hops = hop > hops ? hop : hops;
        allowed = 5.5 * sqrt(up * down / KEYS) + 8 * hop / KEYS + rounding;
        if (!(fabs(sum[i] / KEYS - p[i]) <= allowed))
            printf("# %s, shape %d: element %zu is %g, mean %g, %g allowed\n", s->text, shape, i, (double)p[i], sum[i] / KEYS,
                   allowed);
        CHECK(fabs(sum[i] / KEYS - p[i]) <= allowed);
    }
    spread = 6 * sqrt(spread > 0 ? spread / KEYS : 0) + 20 * hops * hops / KEYS + 1e-12 * m.squares + 1e-80;
    if (fabs(seen - variance) > spread) printf("# %s, shape %d: variance %g, seen %g\n", s->text, shape, variance, seen);
    CHECK(fabs(seen - variance) <= spread);
    CHECK(variance <= bound * (1 + 1e-6) + 1e-12 * m.squares + 1e-80);
    if (s->norm == CLIPPED) CHECK(variance >= bound * (1 - 1e-5) - 1e-12 * m.squares);
}

static void check_unbiased(const spec *s, int shape)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    double sum[SHORT] = {0}, squares[SHORT] = {0};
    size_t of = s->block ? s->block : SHORT, each = scale_bytes(s), length = 0, failed = 0;
    gcomp_codec codec;
    gcomp_input in = input_of(p, NULL, SHORT);
    fill(shape, SHORT);
    CHECK(gcomp_codec_parse(&codec, s->text, NULL, 0) == GCOMP_OK);
    for (uint64_t k = 0; k < KEYS; k++) {
        in.key = gcomp_key_make(1, k, 0, 0);
        failed += gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) != GCOMP_OK;
        failed += gcomp_decode(payload, length, y, GCOMP_F32, SHORT, &exec) != GCOMP_OK;
        for (size_t i = 0; i < SHORT; i++) {
            sum[i] += (double)y[i];
            squares[i] += ((double)y[i] - p[i]) * ((double)y[i] - p[i]);
        }
    }
    CHECK(failed == 0);
    for (size_t k = 0; k < SHORT / of; k++) {
        float a = 0, b = 0;
        if (each == 2) read_bfloat(s, payload + 32 + each * k, &a, &b);
        if (each >= 4) memcpy(&a, payload + 32 + each * k, 4);
        if (each == 8) memcpy(&b, payload + 36 + each * k, 4);
        check_block(s, shape, k * of, (k + 1) * of, a, b, sum, squares);
    }
}

static void test_means_over_many_keys_are_the_input_and_variances_those_of_the_formulas(void)
{
    static const int used[] = {0, 2, 3, 4, 5, 7};
    for (size_t k = 0; k < UNBIASED; k++)
        for (int i = 0; i < 6; i++) check_unbiased(unbiased + k, used[i]);
}

/* Halves of a step, rounded at random, fall as coins do. */
static void test_draws_of_neighbours_and_of_keys_are_not_correlated(void)
{
    enum { N = 4096, TIMES = KEYS / 16 };
    static const size_t lags[] = {1, 2, 3, 4, 8, 15, 16, 17, 32, 64, 1024, 2048};
    static int8_t coin[TIMES][N];
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in = input_of(g, NULL, N);
    size_t length = 0;
    double most = 5.5 / sqrt((double)N * TIMES), total = 0;
    CHECK(gcomp_codec_parse(&codec, "terngrad:clip=0", NULL, 0) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) g[i] = i ? 0.5f : 1.0f;
    for (uint64_t k = 0; k < TIMES; k++) {
        in.key = gcomp_key_make(k % 2, k / 4, (uint32_t)(k / 2 % 2), 0);
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, N, &exec) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) {
            coin[k][i] = (int8_t)(i == 0 ? 0 : y[i] > 0 ? 1 : -1);
            total += coin[k][i];
        }
    }
    CHECK(fabs(total / ((double)N * TIMES)) < most);
    for (size_t j = 0; j < sizeof lags / sizeof *lags; j++) {
        long same = 0;
        for (size_t k = 0; k < TIMES; k++)
            for (size_t i = 0; i + lags[j] < N; i++) same += coin[k][i] * coin[k][i + lags[j]];
        CHECK(fabs((double)same / ((double)(N - lags[j]) * TIMES)) < most * sqrt(N / (double)(N - lags[j])));
    }
    for (size_t lag = 1; lag <= 4; lag++) { /* seed, tensor, both, step */
        long same = 0;
        for (size_t k = 0; k + lag < TIMES; k++)
            for (size_t i = 0; i < N; i++) same += coin[k][i] * coin[k + lag][i];
        CHECK(fabs((double)same / ((double)N * (double)(TIMES - lag))) < most * sqrt(TIMES / (double)(TIMES - lag)));
    }
}

/* ---------------- biased methods */

static void check_lost(const char *text, int kind, int shape, size_t n)
{
    double lost = 0, expect;
    size_t length = (fill(shape, n), encode(text, p, NULL, n));
    measures m = measure(p, n);
    double positive = (double)(n - m.negative), negative = (double)m.negative;
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) lost += ((double)p[i] - y[i]) * ((double)p[i] - y[i]);
    if (kind == SIDES) {
        expect = m.squares - (positive > 0 ? m.plus * m.plus / positive : 0) - (negative > 0 ? m.minus * m.minus / negative : 0);
        CHECK(lost <= m.squares * (1 + 1e-6));
    } else {
        expect = 2 * m.squares * (1 - (m.squares > 0 ? (m.plus + m.minus) / sqrt((double)n * m.squares) : 0));
    }
    CHECK(fabs(lost - expect) <= 1e-6 * m.squares);
}

static void test_onebit_and_sign_lose_what_their_formulas_say(void)
{
    static const size_t some[] = {1, 17, 1009, 4099};
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t i = 0; i < 4 && shape != 3; i++) {
            check_lost("onebit:block=tensor", SIDES, shape, some[i]);
            check_lost("sign:block=tensor,scale=rms", SIGNS, shape, some[i]);
        }
}

/* What a number may lose: half a step, or what lies beyond the last level; an eighth or a sixteenth of itself or half the
   smallest step of the format. */
static void test_rounding_loses_at_most_half_a_step(void)
{
    static const char *const texts[] = {"int", "int:bits=4", "int:bits=4,block=16", "int:bits=4,block=2048", "int:bits=3",
                                        "int:bits=3,block=512", "int:bits=2,block=tensor", "int:range=affine,block=2048",
                                        "int:range=affine,bits=4,block=tensor", "fp8", "fp8:block=16",
                                        "fp8:format=e5m2,block=tensor", "mx:format=e4m3", "mx:format=e5m2",
                                        "mx:format=e2m3", "mx:format=e3m2"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (int shape = 0; shape < SHAPES; shape++) {
            const spec *s = spec_of(texts[t]);
            size_t n = 1009, each = scale_bytes(s), wrong = 0, length;
            fill(shape, n);
            length = encode(texts[t], p, NULL, n);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) {
                const uint8_t *scale = payload + 32 + each * (s->block ? i / s->block : 0);
                float a, b = 0;
                double half, v = fabs((double)p[i]), off = fabs((double)p[i] - y[i]);
                if (s->kind == MX) a = (float)ldexp(1, scale[0] - 127);
                else if (each == 2) read_bfloat(s, scale, &a, &b);
                else memcpy(&a, scale, 4);
                half = fabs((double)a) / 2;
                if (each == 2) { /* p / a < 0: the side that has one level more */
                    const double beyond = v - (s->levels - ((p[i] < 0) == (a < 0))) * fabs((double)a);
                    const double most = s->bits == 8 ? 1.5 : s->bits == 4 ? 1.19 : 1.52; /* steps, as the chapter says */
                    if (beyond > half) wrong += b != 0 || (s->bits > 2 && shape != 8 && shape != 3 && beyond > most * fabs((double)a));
                    half = fmax(half, beyond);
                }
                if (s->kind == SMALL || s->kind == MX) half = fmax(ldexp(v, -1 - s->mantissa), ldexp(a, -s->bias - s->mantissa));
                if (s->kind == MX && v > small_value(s, s->last) * a) half = v - small_value(s, s->last) * a;
                wrong += off > half * (1 + 1e-5) + 3e-7 * v + 3e-45;
            }
            if (wrong) printf("# %s, shape %d: %zu wrong\n", texts[t], shape, wrong);
            CHECK(wrong == 0);
        }
}

static void test_nothing_is_lost_over_a_thousand_steps(void)
{
    static const char *const codecs[] = {"sign:block=64,scale=rms", "onebit:block=64", "twobit:threshold=1", "threshold1", "terngrad",
                                         "qsgd:levels=3,bucket=64", "qsgd:spacing=powers", "natural", "int:bits=2,block=16", "int:bits=3", "int:bits=2",
                                         "int:bits=4,range=affine", "fp8:format=e5m2", "mx", "nvfp4", "e3m0", "nf4", "lloyd"};
    enum { N = 133 };
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        static double given[N], sent[N];
        gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
        gcomp_input in = input_of(g, NULL, N);
        memset(given, 0, sizeof given);
        memset(sent, 0, sizeof sent);
        memset(e, 0, sizeof e);
        for (int step = 0; step < 1000; step++) {
            size_t length;
            for (size_t i = 0; i < N; i++) {
                g[i] = normal((uint64_t)step * N + i) + 0.1f;
                given[i] += (double)g[i];
            }
            key = gcomp_key_make(3, (uint64_t)step, 0, 0);
            length = encode(codecs[c], g, e, N);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, N, &exec) == GCOMP_OK);
            CHECK(gcomp_retain(payload, length, &in, e, &exec) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) sent[i] += (double)y[i];
        }
        for (size_t i = 0; i < N; i++) CHECK(fabs(given[i] - sent[i] - (double)e[i]) < 2e-3 && fabs((double)e[i]) < 200);
    }
    key = gcomp_key_make(11, 12, 13, 14);
}

static void test_residuals_of_thresholds_stay_within_them(void)
{
    static const char *const codecs[] = {"twobit:threshold=0.25", "threshold1"};
    enum { N = 67 };
    for (int c = 0; c < 2; c++) {
        float most = c ? 1 : 0.25f;
        gcomp_input in = input_of(g, NULL, N);
        size_t wrong = 0;
        memset(e, 0, sizeof e);
        for (int step = 0; step < 1000; step++) {
            size_t length;
            for (size_t i = 0; i < N; i++) g[i] = most * (float)(i == 0 ? 1 : 2 * uniform((uint64_t)step * N + i) - 1);
            length = encode(codecs[c], g, e, N);
            CHECK(gcomp_retain(payload, length, &in, e, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) wrong += fabsf(e[i]) > most;
        }
        CHECK(wrong == 0);
    }
}

/* ---------------- errors on many numbers */

static void check_error(const char *text, double from, double to)
{
    double lost = 0, all = 0;
    size_t length = encode(text, g, NULL, LARGEST);
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, LARGEST, NULL) == GCOMP_OK);
    for (size_t i = 0; i < LARGEST; i++) {
        lost += ((double)y[i] - g[i]) * ((double)y[i] - g[i]);
        all += (double)g[i] * g[i];
    }
    if (!(lost / all >= from && lost / all <= to)) printf("# %s: %g, not %g to %g\n", text, lost / all, from, to);
    CHECK(lost / all >= from && lost / all <= to);
}

typedef struct known {
    const char *text;
    double gauss, laplace; /* error relative to the energy, known from simulations */
    double last;           /* half of the last digit given, of both together */
} known;

/* What is measured must be within 3 % of these. */
static const known errors[] = {{"sign:block=tensor,scale=rms", 0.4042, 0.5858, 0.0001},
                               {"onebit:block=tensor", 0.3634, 0.5, 0.0001},
                               {"twobit:threshold=1", 0.349, 0.413, 0.001},
                               {"twobit:threshold=auto", 0.3413, 0.414, 0.001},
                               {"terngrad", 1.008, 0.877, 0.001},
                               {"qsgd:levels=1", 1.59, 2.40, 0.01},
                               {"qsgd:levels=3", 0.196, 0.404, 0.001},
                               {"qsgd", 0.0361, 0.080, 0.0005},
                               {"qsgd:levels=15", 0.00787, 0.0177, 0.00005},
                               {"qsgd:levels=127", 1.1e-4, 2.5e-4, 0.05e-4},
                               {"qsgd:levels=1,norm=l2", 17.0, 14.9, 0.1},
                               {"qsgd:levels=7,norm=l2", 1.58, 1.33, 0.01},
                               {"qsgd:levels=31,norm=l2", 0.0887, 0.087, 0.0005},
                               {"natural", 0.0817, 0.0820, 0.0001},
                               {"qsgd:levels=4,spacing=powers", 0.0889, 0.110, 0.0005},
                               {"qsgd:levels=8,spacing=powers", 0.0810, 0.0784, 0.0001},
                               {"qsgd:levels=4,norm=l2,spacing=powers", 1.27, 1.07, 0.01},
                               {"qsgd:levels=8,norm=l2,spacing=powers", 0.0831, 0.0837, 0.0001},
                               {"int", 2.875e-5, 4.53e-5, 0.01e-5},
                               {"int:block=256", 4.78e-5, 9.92e-5, 0.05e-5},
                               {"int:block=2048", 6.79e-5, 1.755e-4, 0.1e-5},
                               {"int:bits=4", 0.00880, 0.01493, 0.00005},
                               {"int:bits=4,block=32", 0.00728, 0.01116, 0.00005},
                               {"int:bits=4,block=512", 0.01349, 0.02954, 0.0001},
                               {"int:bits=3", 0.03374, 0.05251, 0.0001},
                               {"int:bits=2", 0.1139, 0.1684, 0.0005},
                               {"int:bits=2,block=16", 0.0955, 0.1121, 0.0005},
                               {"int:bits=4,range=affine,block=512", 0.0138, 0.0283, 0.0001},
                               {"int:bits=4,range=affine,block=512,rounding=stochastic", 0.0275, 0.0565, 0.0001},
                               {"mx", 0.0133, 0.0161, 0.0001},
                               {"mx:format=e4m3", 8.7e-4, 1.0e-3, 0.5e-4},
                               {"mx:format=e5m2", 2.9e-3, 3.0e-3, 0.5e-4},
                               {"mx:format=e2m3", 8.0e-4, 9.3e-4, 0.1e-4},
                               {"mx:format=e3m2", 2.9e-3, 3.0e-3, 0.5e-4},
                               {"nvfp4", 0.00904, 0.00861, 0.0001},
                               {"e3m0", 0.0378, 0.0361, 0.0003},
                               {"e3m0:block=16", 0.0283, 0.0230, 0.0003},
                               {"nf4", 0.00847, 0.0108, 0.0001},
                               {"nf4:block=512", 0.0103, 0.0177, 0.0001},
                               {"lloyd", 0.1233, 0.1845, 0.0005}};

static void test_errors_on_normal_and_laplace_numbers_are_the_known_ones(void)
{
    key = gcomp_key_make(7, 0, 0, 0);
    for (int laplace = 0; laplace < 2; laplace++) {
        for (size_t i = 0; i < LARGEST; i++)
            g[i] = laplace ? (float)(log(uniform(2 * i) + 1e-18) * (uniform(2 * i + 1) < 0.5 ? 1 : -1) / sqrt(2)) : normal(i);
        for (size_t k = 0; k < sizeof errors / sizeof *errors; k++) {
            double error = laplace ? errors[k].laplace : errors[k].gauss;
            check_error(errors[k].text, error * 0.97 - errors[k].last, error * 1.03 + errors[k].last);
        }
        if (laplace) continue;
        check_error("fp8", 0, 1e-3);
        check_error("fp8:format=e5m2", 0, 4e-3);
        check_error("mx:format=int8", 0, 2e-4);
        check_error("fp8:rounding=stochastic", 1e-3, 1.5e-3); /* twice those to nearest; more where scales are larger */
        check_error("mx:rounding=stochastic", 0.026, 0.028);
        check_error("nvfp4:rounding=stochastic", 0.0215, 0.0227);
    }
}

/* The least that is wanted of so many bits, of normal numbers and of their cubes. */
static void test_errors_of_int_are_small_for_its_bits(void)
{
    static const struct { const char *text; double bits, normal, cubed; } all[] = {
        {"int:bits=2", 2.25, 0.115, 0.46}, {"int:bits=3", 3.25, 0.035, 0.08}, {"int:bits=4", 4.25, 0.0092, 0.019},
        {"int:bits=4,block=32", 4.5, 0.0075, 0.0122}, {"int", 8.5, 3e-5, 8.5e-5}};
    for (int cubed = 0; cubed < 2; cubed++) {
        for (size_t i = 0; i < LARGEST; i++) g[i] = cubed ? normal(i) * normal(i) * normal(i) : normal(i);
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            check_error(all[k].text, 0, cubed ? all[k].cubed : all[k].normal);
            CHECK(encode(all[k].text, g, NULL, LARGEST) == 32 + all[k].bits * LARGEST / 8);
        }
    }
}

/* The values that topk sends, in 2.25 bits each: of normal numbers, and of Student's t of 3 degrees, whose tails are long. An
   encoder must do better than the levels of int and the one size of sign. */
static void test_errors_of_the_largest_elements_are_small_in_two_bits(void)
{
    static const char *const texts[] = {"topk+lloyd", "topk:density=0.1+lloyd", "topk:density=0.015625,chunk=4096+lloyd"};
    static const char *const others[] = {"topk+int:bits=2", "topk+sign"};
    static uint8_t work[GCOMP_SCRATCH(LARGEST)];
    const gcomp_exec exec = {isa_now, work, sizeof work, {NULL, NULL}};
    for (int tails = 0; tails < 2; tails++) {
        double bar = tails ? 0.1 : 0.02;
        for (size_t i = 0; i < LARGEST; i++) {
            const double a = normal(i + LARGEST), b = normal(i + 2 * LARGEST), c = normal(i + 3 * LARGEST);
            g[i] = (float)(normal(i) / (tails ? sqrt((a * a + b * b + c * c) / 3) : 1));
        }
        for (size_t k = 0; k < 5; k++) {
            const char *text = k < 3 ? texts[k] : others[k - 3];
            gcomp_codec codec;
            const gcomp_input in = input_of(g, NULL, LARGEST);
            double lost = 0, all = 0;
            size_t length = 0;
            CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, LARGEST, NULL) == GCOMP_OK);
            codec.value = 1; /* the same elements as floats */
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
            CHECK(gcomp_decode(payload, length, e, GCOMP_F32, LARGEST, NULL) == GCOMP_OK);
            for (size_t i = 0; i < LARGEST; i++) {
                lost += ((double)y[i] - (double)e[i]) * ((double)y[i] - (double)e[i]);
                all += (double)e[i] * (double)e[i];
            }
            if (k == 0) bar = fmin(bar, 1.1 * (tails ? 0.075 : 0.0039));
            if (k == 3) bar = 1.3 * (tails ? 0.07 : 0.0039);
            if (k < 3 ? lost / all > (k ? tails ? 0.1 : 0.02 : bar) : lost / all < bar) printf("# %s: %g\n", text, lost / all);
            CHECK(k < 3 ? lost / all <= (k ? tails ? 0.1 : 0.02 : bar) : lost / all >= bar);
        }
        memset(e, 0, sizeof e);
    }
}

/* One size in a block: all elements are exact, if it is a bf16. Two of which one is seldom: both are. And of zeros, of which
   some are negative, zeros. */
static void test_two_sizes_of_a_block_are_found(void)
{
    for (size_t i = 0; i < 384; i++)
        g[i] = (i % 3 ? 1.0f : -1.0f) * (i < 128 ? 0.75f : i < 256 ? i % 50 == 9 ? 40 : 5 : 0);
    CHECK(encode("lloyd", g, NULL, 384) == 32 + 12 + 96);
    CHECK(gcomp_decode(payload, 140, y, GCOMP_F32, 384, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 384; i++) CHECK(fabsf(y[i] - g[i]) <= fabsf(g[i]) * 1.6e-5f + (i / 128 == 1) * 40 / 65536.0f);
}

/* ---------------- texts */

static void test_texts_are_read_and_printed_shortest(void)
{
    static const char *const pairs[][2] = {
        {"sign:block=1024,scale=mean", "sign"}, {"sign:scale=rms,block=tensor", "sign:block=tensor,scale=rms"},
        {"onebit:block=64", "onebit:block=64"}, {"onebit:block=1024", "onebit"}, {"twobit:threshold=0.50", "twobit"},
        {"twobit:threshold=2.5e-1", "twobit:threshold=0.25"}, {"twobit:rate=0,threshold=auto", "twobit:threshold=auto"},
        {"twobit:threshold=auto,rate=5e-2", "twobit:threshold=auto,rate=0.05"},
        {"twobit:threshold=0.10000000000000001", "twobit:threshold=0.1"},
        {"topk:density=0.30000000000000004", "topk:density=0.30000000000000004"},
        {"topk:density=1.0000000000000000208e-3", "topk:density=0.001"}, {"topk:density=1E+0", "topk:density=1"},
        {"strom:threshold=0.010000000000000000208", "strom"},
        {"strom:threshold=12345678901234567890", "strom:threshold=12345678901234567e3"},
        {"topk:density=0.0000000000000000000000000000000000000000000000001e46", "topk:density=0.001"},
        {"threshold1:threshold=0", "threshold1"}, {"threshold1:threshold=1.5", "threshold1:threshold=1.5"},
        {"terngrad:block=tensor,clip=2.5", "terngrad"}, {"terngrad:block=512,clip=0", "terngrad:clip=0,block=512"},
        {"qsgd:levels=7,norm=max,bucket=512", "qsgd"},
        {"qsgd:bucket=tensor,norm=l2,levels=32767", "qsgd:levels=32767,norm=l2,bucket=tensor"},
        {"qsgd:spacing=powers,norm=max,levels=7", "qsgd:spacing=powers"}, {"dither", "qsgd"},
        {"dither:levels=127,norm=l2", "qsgd:levels=127,norm=l2"}, {"topk+dither:levels=3", "topk+qsgd:levels=3"},
        {"qsgd:spacing=powers,levels=100", "qsgd:levels=100,spacing=powers"}, {"natural", "natural"},
        {"int:bits=8,block=32,rounding=nearest,range=full", "int"}, {"int:block=64,bits=3", "int:bits=3"},
        {"int:block=64,bits=4", "int:bits=4"}, {"int:block=64", "int:block=64"}, {"int:bits=2,block=64", "int:bits=2"},
        {"int:block=128,range=affine", "int:range=affine"}, {"int:range=affine,block=32", "int:block=32,range=affine"},
        {"int:block=256,bits=4,range=affine", "int:bits=4,range=affine"}, {"int:block=128", "int:block=128"},
        {"int:block=256,bits=4", "int:bits=4,block=256"}, {"int:bits=2,block=tensor", "int:bits=2,block=tensor"},
        {"int:range=affine,bits=2", "int:bits=2,range=affine"},
        {"int:rounding=stochastic,block=65536,bits=4", "int:bits=4,block=65536,rounding=stochastic"}, {"fp8:format=e4m3", "fp8"},
        {"fp8:block=16,format=e5m2", "fp8:format=e5m2,block=16"}, {"mx:format=e2m1", "mx"}, {"mx:format=int8", "mx:format=int8"},
        {"mx:format=e5m2", "mx:format=e5m2"}, {"mx:rounding=stochastic,format=e2m1", "mx:rounding=stochastic"},
        {"nvfp4:rounding=nearest", "nvfp4"}, {"fp8:rounding=stochastic,block=256", "fp8:rounding=stochastic"}, {"topk+lloyd", "topk+lloyd"},
        {"mx:format=e2m3", "mx:format=e2m3"}, {"mx:format=e3m2", "mx:format=e3m2"},
        {"topk:density=0.1+natural", "topk:density=0.1+natural"},
        {"topk+int:bits=8,block=64", "topk+int:block=64"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char text[100];
        gcomp_codec codec, again;
        size_t length;
        CHECK(gcomp_codec_parse(&codec, pairs[i][0], NULL, 0) == GCOMP_OK);
        length = gcomp_codec_format(&codec, text, sizeof text);
        if (strcmp(text, pairs[i][1])) printf("# %s\n", text);
        CHECK(!strcmp(text, pairs[i][1]) && length == strlen(text));
        CHECK(gcomp_codec_parse(&again, text, NULL, 0) == GCOMP_OK && !memcmp(&codec, &again, sizeof codec));
    }
}

/* A number in a text is what strtod makes of it, and what is printed is not longer than any
   other text of it. */
static void test_numbers_are_the_nearest_doubles(void)
{
    static const char *const forms[] = {"%.17g", "%.16g", "%.4g", "%.30e", "%.60f", "%.0f.5", "%.1f"};
    size_t wrong = 0, tried = 0;
    for (uint64_t i = 0; i < 30000; i++) {
        uint64_t bits = (1023 - 66 + mix(i) % 132) << 52 | mix(i + 1000000) >> 12;
        char number[128], text[160], other[160];
        gcomp_codec codec, again;
        double v;
        memcpy(&v, &bits, 8);
        if (i % 7 == 4) v += 0.5; /* often halfway between two */
        snprintf(number, sizeof number, forms[i % 7], v);
        v = strtod(number, NULL);
        if (v < 1e-20 || v > 1e20) continue;
        tried++;
        snprintf(text, sizeof text, "strom:threshold=%s", number);
        wrong += gcomp_codec_parse(&codec, text, NULL, 0) != GCOMP_OK || codec.param[0] != v;
        (void)gcomp_codec_format(&codec, other, sizeof other);
        wrong += gcomp_codec_parse(&again, other, NULL, 0) != GCOMP_OK || memcmp(&codec, &again, sizeof codec) != 0;
        for (int digits = 1; digits < 17; digits++) { /* as printf finds the shortest */
            size_t length = 0;
            char *end = strchr(other, '=');
            snprintf(number, sizeof number, "%.*e", digits - 1, v);
            if (strtod(number, NULL) != v) continue;
            if (end) /* the digits without zeros at either end */
                for (size_t zeros = 0; *++end && *end != 'e';) {
                    if (*end < '0' || *end > '9' || (*end == '0' && !length)) continue;
                    zeros = *end == '0' ? zeros + 1 : 0;
                    length++;
                    if (!end[1] || end[1] == 'e') length -= zeros;
                }
            wrong += length > (size_t)digits;
            break;
        }
    }
    CHECK(wrong == 0 && tried > 20000);
}

/* The parameter that only the encoder needs: scale of sign, clip of terngrad, norm of qsgd,
   rounding of int and of small floats; -1: none. */
static int at_home(unsigned wire) { return wire == 4 ? 1 : wire == 12 ? 0 : wire == 13 ? 1 : wire == 40 || wire == 17 ? 2 : wire == 18 ? 1 : wire == 35 ? 0 : -1; }

static void test_payloads_name_the_parameters_that_they_carry(void)
{
    for (size_t k = 0; k < SPECS; k++) {
        gcomp_info info;
        gcomp_codec codec;
        size_t length = (fill(0, 40), encode(specs[k].text, p, NULL, 40));
        CHECK(gcomp_codec_parse(&codec, specs[k].text, NULL, 0) == GCOMP_OK && gcomp_peek(payload, length, &info) == GCOMP_OK);
        CHECK(info.codec.method == codec.method && info.count == 40 && info.length == length);
        CHECK(!info.refused && !info.checksum);
        for (int i = 0; i < GCOMP_PARAMS; i++) CHECK(info.codec.param[i] == codec.param[i] || i == at_home(specs[k].wire));
    }
}

static void test_bad_values_are_refused_with_a_sentence(void)
{
    static const char *const pairs[][2] = {
        {"int:bits=5", "int bits cannot be '5': it takes 8 or 4 or 2 or 3"},
        {"int:bits=16", "int bits cannot be '16': it takes 8 or 4 or 2 or 3"},
        {"int:bits=", "int bits cannot be '': it takes 8 or 4 or 2 or 3"},
        {"int:bits=3,range=affine", "int:bits=3 goes with rounding=nearest and range=full"},
        {"topk+int:rounding=stochastic,bits=3", "int:bits=3 goes with rounding=nearest and range=full"},
        {"int:rounding=even", "int rounding cannot be 'even': it takes nearest or stochastic"},
        {"int:range=symmetric,bits=8", "int range cannot be 'symmetric': it takes full or affine"},
        {"int:block=100", "int block cannot be '100': it takes 'tensor' or a power of two from 16 to 65536"},
        {"int:block=8", "int block cannot be '8': it takes 'tensor' or a power of two from 16 to 65536"},
        {"int:levels=7", "int has no parameter 'levels'; it has: bits block rounding range"},
        {"int:bits=4,bits=4", "parameter given twice: 'bits'"},
        {"sign:block=0", "sign block cannot be '0': it takes 'row', 'tensor' or a power of two from 16 to 65536"},
        {"onebit:block=131072", "onebit block cannot be '131072': it takes 'row', 'tensor' or a power of two from 16 to 65536"},
        {"terngrad:clip=-1", "terngrad clip cannot be '-1': it takes a number from 0 to 1000000"},
        {"qsgd:levels=0", "qsgd levels cannot be '0': it takes a whole number from 1 to 32767"},
        {"qsgd:levels=32768", "qsgd levels cannot be '32768': it takes a whole number from 1 to 32767"},
        {"qsgd:levels=1.5", "qsgd levels cannot be '1.5': it takes a whole number from 1 to 32767"},
        {"qsgd:norm=l1", "qsgd norm cannot be 'l1': it takes max or l2"},
        {"qsgd:norm=l22", "qsgd norm cannot be 'l22': it takes max or l2"},
        {"qsgd:block=16", "qsgd has no parameter 'block'; it has: levels norm bucket code spacing"},
        {"qsgd:levels=101,spacing=powers", "qsgd:spacing=powers takes at most 100 levels"},
        {"natural:levels=1", "natural has no parameter 'levels'; it has none"},
        {"bf16:rounding=even", "bf16 rounding cannot be 'even': it takes nearest or stochastic"},
        {"fp8:format=e3m4", "fp8 format cannot be 'e3m4': it takes e4m3 or e5m2"},
        {"mx:format=e3m4", "mx format cannot be 'e3m4': it takes e2m1 or e4m3 or e5m2 or int8 or e2m3 or e3m2"},
        {"nvfp4:block=16", "nvfp4 has no parameter 'block'; it has: rounding"},
        {"nf4:block=8", "nf4 block cannot be '8': it takes 'tensor' or a power of two from 16 to 65536"},
        {"e3m0:format=e3m0", "e3m0 has no parameter 'format'; it has: block"},
        {"mx:block=32", "mx has no parameter 'block'; it has: format rounding"},
        {"twobit:rate=0.1", "twobit:rate finds a threshold: it goes with threshold=auto"},
        {"twobit:threshold=auto,rate=1.5", "twobit rate cannot be '1.5': it takes a number from 0 to 1"},
        {"topk:density=0.1+terngrad:share=1",
         "terngrad:share=1 shares the scale of a tensor, not that of a sparse method's values"},
        {"qsgd+natural", "only a sparse method takes another behind a plus, not 'qsgd'"}};
    static const char *const thresholds[] = {"twobit:threshold=0", "twobit:threshold=-0.5", "twobit:threshold=nan",
                                             "twobit:threshold=1e40"};
    char why[200];
    gcomp_codec codec;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        CHECK(gcomp_codec_parse(&codec, pairs[i][0], why, sizeof why) == GCOMP_BAD_CODEC);
        if (strcmp(why, pairs[i][1])) printf("# %s\n", why);
        CHECK(!strcmp(why, pairs[i][1]));
    }
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++) {
        CHECK(gcomp_codec_parse(&codec, thresholds[i], why, sizeof why) == GCOMP_BAD_CODEC);
        CHECK(!strncmp(why, "twobit threshold cannot be '", 28) && strstr(why, ": it takes 'auto' or a number from "));
    }
}

/* The manual's entries: a name, then its parameters as name=default, and no other word with such a sign. Defaults are not
   printed, so that "method:name=default" is printed as the method; and no method has a parameter
   that its entry does not name: a wrong name tells all there are. */
static void test_the_manual_lists_all_parameters_and_their_defaults(void)
{
    char line[200], name[40] = "", why[200], text[80], printed[80];
    size_t methods = 0, params = 0, known = 0;
    int on = 0, missing = 0;
    gcomp_codec codec;
    FILE *f = fopen("gcomp.h", "r");
    CHECK(f != NULL);
    while (f && fgets(line, sizeof line, f) && !strstr(line, "   Other sources")) {
        const int entry = strlen(line) > 17 && !strncmp(line, "     ", 5) && line[16] == ' ' && line[17] != ' ';
        on |= strstr(line, "     none        exact") != NULL;
        if (!on || !entry) continue;
        if (line[5] != ' ') { /* what it has */
            sscanf(line, "%39s", name);
            snprintf(text, sizeof text, "%s:wrong=1", name);
            CHECK(gcomp_codec_parse(&codec, text, why, sizeof why) == GCOMP_BAD_CODEC);
            char *has = strstr(why, "; it has");
            methods++;
            for (has = has ? has + 8 : why; (has = strchr(has, ' ')) != NULL; has++) missing += strcmp(has, " none") != 0;
        }
        for (char *s = line + 17, *value; (value = strchr(s, '=')) != NULL; s = value + 1) {
            char *from = value, *stop = value + strcspn(value, " ,\n");
            while (from > line && from[-1] >= 'a' && from[-1] <= 'z') from--;
            snprintf(text, sizeof text, "%s:%.*s", name, (int)(stop - from), from);
            if (gcomp_codec_parse(&codec, text, why, sizeof why) != GCOMP_OK) printf("# %s: %s\n", text, why);
            CHECK(gcomp_codec_parse(&codec, text, why, sizeof why) == GCOMP_OK);
            gcomp_codec_format(&codec, printed, sizeof printed);
            CHECK(!strcmp(printed, name));
            params++;
            missing--;
        }
    }
    if (f) fclose(f);
    while (gcomp_method_name(known)) known++;
    if (methods != known || missing) printf("# %d methods of %d, %d parameters missing of %d\n", (int)methods, (int)known, missing, (int)params);
    CHECK(methods == known && params > 50 && missing == 0);
}

/* The codes of so many elements are written past the caches; the codes of their parts are not. The
   numbers repeat, so that the whole and the parts have the same scale. */
static void test_large_payloads_hold_what_pieces_of_them_would(void)
{
    enum { PERIOD = 1 << 16, PIECE = 1 << 20, N = (1 << 22) + 77, GUARD = 64 };
    static const char *const texts[] = {"int", "int:bits=4", "int:bits=2,block=tensor", "int:range=affine,block=4096",
                                        "mx:format=e2m3", "fp16", "nf4", "nvfp4"};
    float *from = malloc(sizeof *from * N), *whole = malloc(sizeof *whole * N), *part = malloc(sizeof *part * (PIECE + 77));
    uint8_t *large = malloc(GCOMP_BOUND(N) + 2 * GUARD), *small = malloc(GCOMP_BOUND(PIECE + 77));
    for (size_t i = 0; i < N; i++) from[i] = i < PERIOD ? normal(i) : from[i - PERIOD];
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
        gcomp_codec codec;
        gcomp_input in = {0};
        uint8_t *at = large + GUARD + t % 3; /* lines begin in the middle of codes */
        size_t length = 0, bytes = 0, wrong = 0;
        in.scale = t == 1 ? 0.5f : 1;
        in.residual = t == 0 ? from : NULL;
        in.grad = from;
        in.rows = N;
        CHECK(gcomp_codec_parse(&codec, texts[t], NULL, 0) == GCOMP_OK);
        memset(large, 0xa5, GCOMP_BOUND(N) + 2 * GUARD);
        CHECK(gcomp_encode(&codec, &in, &exec, at, GCOMP_BOUND(N), &length) == GCOMP_OK);
        for (size_t i = 0; i < GUARD; i++) wrong += at[-1 - (int)i] != 0xa5 || at[length + i] != 0xa5;
        CHECK(wrong == 0);
        CHECK(gcomp_check(at, length, N) == GCOMP_OK && gcomp_decode(at, length, whole, GCOMP_F32, N, &exec) == GCOMP_OK);
        for (size_t i = 0; i < N - 77; i += PIECE) {
            in.rows = i + PIECE + 77 == N ? PIECE + 77 : PIECE;
            in.grad = from + i;
            if (in.residual) in.residual = from + i;
            CHECK(gcomp_encode(&codec, &in, &exec, small, GCOMP_BOUND(PIECE + 77), &bytes) == GCOMP_OK);
            CHECK(gcomp_decode(small, bytes, part, GCOMP_F32, in.rows, &exec) == GCOMP_OK);
            CHECK(!memcmp(part, whole + i, sizeof *part * in.rows));
        }
    }
    free(from);
    free(whole);
    free(part);
    free(large);
    free(small);
}

/* Its two grids are compared by squares, which overflow long before |p| does: one number among zeros, and many. */
static void test_two_bits_lose_at_most_what_a_block_is(void)
{
    enum { N = 64 * 9 };
    static const float sizes[] = {1e-30f, 1, 1e15f, 1e18f, 1e19f, 3e19f, 1e20f, 1e25f, 1e30f, 3e38f};
    static float x[N], y[N];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t each = 1; each <= 64; each *= 2) { /* so many of a block are not 0 */
            double lost = 0, whole = 0;
            for (size_t i = 0; i < N; i++) x[i] = i % 64 < each ? sizes[s] * (float)(1 - 0.9 * uniform(i)) * (i & 1 ? -1 : 1) : 0;
            const size_t length = encode("int:bits=2", x, NULL, N);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, N, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) {
                lost += ((double)x[i] - y[i]) / sizes[s] * ((double)x[i] - y[i]) / sizes[s];
                whole += (double)x[i] / sizes[s] * x[i] / sizes[s];
            }
            if (lost > whole) printf("# %zu of a block, %g: %g of %g\n", each, (double)sizes[s], lost, whole);
            CHECK(lost <= whole);
        }
}

/* A method whose rounding no formula checks would pass with any digest. */
static void test_each_block_method_is_compared_with_its_formula(void)
{
    static const char elsewhere[] = " ecsq none fp16 bf16 sign vote eden "; /* their own tests, here and in test_ecsq.c, test_vote.c, test_eden.c */
    for (size_t m = 0; gcomp_method_name(m); m++) {
        const char *name = gcomp_method_name(m);
        char word[40];
        int found = 0;
        snprintf(word, sizeof word, " %s ", name);
        if (!codec_has_payload(name) || codec_is_sparse(name) || strstr(elsewhere, word)) continue;
        for (size_t k = 0; k < SPECS; k++)
            found += !strncmp(specs[k].text, name, strlen(name)) && strchr(":", specs[k].text[strlen(name)]);
        if (!found) printf("# specs[] in test_quantizers.c has no %s: add a line with its formula\n", name);
        CHECK(found);
    }
}

static void run_on_one_set(void)
{
    RUN(test_small_formats_round_to_the_nearest_value_and_to_even);
    RUN(test_looked_up_values_are_the_nearest);
    RUN(test_nf4_takes_the_nearest_value_of_many);
    RUN(test_every_scale_of_two_levels_decodes_or_is_refused);
    RUN(test_scales_of_two_levels_are_rounded_to_nearest);
    RUN(test_means_over_many_keys_are_the_input_and_variances_those_of_the_formulas);
    RUN(test_draws_of_neighbours_and_of_keys_are_not_correlated);
    RUN(test_onebit_and_sign_lose_what_their_formulas_say);
    RUN(test_rounding_loses_at_most_half_a_step);
    RUN(test_two_bits_lose_at_most_what_a_block_is);
    RUN(test_nothing_is_lost_over_a_thousand_steps);
    RUN(test_large_payloads_hold_what_pieces_of_them_would);
    RUN(test_residuals_of_thresholds_stay_within_them);
}

int main(void)
{
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (isa_is_wanted(isa_now)) run_on_one_set();
    }
    isa_now = GCOMP_ISA_AUTO;
    RUN(test_errors_of_int_are_small_for_its_bits);
    RUN(test_errors_of_the_largest_elements_are_small_in_two_bits);
    RUN(test_two_sizes_of_a_block_are_found);
    RUN(test_errors_on_normal_and_laplace_numbers_are_the_known_ones);
    RUN(test_texts_are_read_and_printed_shortest);
    RUN(test_numbers_are_the_nearest_doubles);
    RUN(test_payloads_name_the_parameters_that_they_carry);
    RUN(test_bad_values_are_refused_with_a_sentence);
    RUN(test_the_manual_lists_all_parameters_and_their_defaults);
    RUN(test_each_block_method_is_compared_with_its_formula);
    return test_end();
}
