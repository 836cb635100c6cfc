/* Proves that none, fp16, bf16, sign and topk write the bytes that plain forms write, which follow
   the formulas, and that decoding makes the right floats of these bytes. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 131072 + 5, SHAPES = 7 }; /* all shapes but the last, whose sums overflow */

static const size_t sizes[] = {0, 1, 15, 16, 17, 67, 1009, 4099, 65536 + 5, LARGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static float g[LARGEST], e[LARGEST], p[LARGEST], d[LARGEST], y[LARGEST], expected[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)];
static gcomp_isa isa_now;

static void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        g[i] = shaped_gradient(shape, i, n);
        e[i] = shaped_residual(shape, i);
        p[i] = g[i] + e[i];
    }
}

static size_t encode(const char *text, size_t n, int feedback)
{
    gcomp_exec exec = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0, more = 7;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    in.residual = feedback ? e : NULL;
    in.key = gcomp_key_make(1, 0, 0, 0);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, gcomp_bound(&codec, n, NULL), &length) == GCOMP_OK);
    CHECK(length <= gcomp_bound(&codec, n, NULL) && gcomp_bound(&codec, n, NULL) <= GCOMP_BOUND(n) &&
          scratch_of(&codec, n) <= GCOMP_SCRATCH(n));
    CHECK(gcomp_encode(&codec, &in, &exec, payload, length - 1, &more) == GCOMP_DST_TOO_SMALL && more == 7);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, length, &more) == GCOMP_OK && more == length);
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    return length;
}

/* Store, add, mean of three, and retain of the payload, against plain loops over its decoded
   values in d. */
static void decode(size_t n, size_t length)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    const void *payloads[3] = {payload, payload, payload};
    size_t lengths[3] = {length, length, length};
    gcomp_input in;
    volatile float term;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, d, 4 * n));
    for (size_t i = 0; i < n; i++) {
        y[i] = e[i];
        term = d[i] * 0.3f;
        expected[i] = e[i] + term;
    }
    CHECK(gcomp_decode_add(payload, length, 0.3f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) CHECK(y[i] == expected[i]); /* -0 + 0 is 0, but stays -0 where nothing was sent */
    for (size_t i = 0; i < n; i++) {
        term = d[i] * (1.0f / 3.0f);
        expected[i] = 0.0f + term;
        expected[i] += term;
        expected[i] += term;
    }
    CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, expected, 4 * n));
    for (size_t i = 0; i < n; i++) {
        y[i] = e[i];
        expected[i] = p[i] - d[i];
    }
    CHECK(gcomp_retain(payload, length, &in, y, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) CHECK(y[i] == expected[i]);
}

/* ---------------- plain forms */

/* Floats of a payload are little endian. */
static float float_at(const uint8_t *from)
{
    const uint32_t bits = (uint32_t)get_word(from, 4);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void test_none_sends_the_floats(void)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s], length;
            fill(shape, n);
            length = encode("none", n, 1);
            CHECK(length == 32 + 4 * n);
            for (size_t i = 0; i < n; i++) d[i] = float_at(payload + 32 + 4 * i);
            CHECK(!memcmp(d, p, 4 * n));
            decode(n, length);
        }
}

/* A float rounded to a format of `bits` stored significant bits, by exact arithmetic in double:
   nearest, ties to even. */
static double rounded(float x, int bits, int lowest)
{
    int exponent;
    double unit, q;
    if (x == 0) return x;
    frexp((double)x, &exponent);
    unit = ldexp(1, (exponent - bits > lowest ? exponent - bits : lowest));
    q = nearbyint((double)x / unit) * unit;
    return q;
}

static void check_cast(const char *text, int bits, int lowest, double most)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s], length;
            fill(shape, n);
            length = encode(text, n, 1);
            CHECK(length == 32 + 2 * n);
            for (size_t i = 0; i < n; i++) {
                double q = rounded(p[i], bits, lowest);
                d[i] = (float)(q > most ? most : q < -most ? -most : copysign(q, (double)p[i]));
            }
            decode(n, length);
        }
}

static void test_fp16_rounds_to_nearest_and_saturates(void) { check_cast("fp16", 11, -24, 65504); }
static void test_bf16_rounds_to_nearest_and_saturates(void)
{
    check_cast("bf16", 8, -133, 338953138925153547590470800371487866880.0);
}

static void check_sign(const char *text, size_t block)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s], of = block ? block : n ? n : 1, scales = (n + of - 1) / of, length;
            fill(shape, n);
            length = encode(text, n, 1);
            CHECK(length == 32 + 4 * scales + (n + 7) / 8);
            for (size_t b = 0; b < scales; b++) {
                size_t end = (b + 1) * of < n ? (b + 1) * of : n;
                double sum = 0, squares = 0, lost = 0;
                float scale;
                scale = float_at(payload + 32 + 4 * b);
                for (size_t i = b * of; i < end; i++) {
                    sum += fabs((double)p[i]);
                    squares += (double)p[i] * p[i];
                }
                CHECK(fabs((double)scale - sum / (double)(end - b * of)) <= 1e-6 * sum / (double)(end - b * of) + 1e-45);
                for (size_t i = b * of; i < end; i++) {
                    d[i] = p[i] < 0 ? -scale : scale;
                    CHECK((payload[32 + 4 * scales + i / 8] >> i % 8 & 1) == (p[i] < 0));
                    lost += ((double)p[i] - d[i]) * ((double)p[i] - d[i]);
                }
                /* |p - C(p)|^2 = |p|^2 - |p|_1^2 / count */
                CHECK(shape == 3 || fabs(lost - (squares - sum * sum / (double)(end - b * of))) <= 1e-5 * squares + 1e-30);
            }
            decode(n, length);
        }
}

static void test_sign_sends_signs_and_the_mean_magnitude_of_each_block(void)
{
    check_sign("sign:block=16", 16);
    check_sign("sign", 1024);
}

static void test_sign_sends_signs_and_the_mean_magnitude_of_the_tensor(void) { check_sign("sign:block=tensor", 0); }

/* ---------------- top-k */
static uint32_t order[LARGEST];

static int by_magnitude(const void *x, const void *z) /* larger first; of equal ones the first */
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)z;
    float u = fabsf(p[a]), v = fabsf(p[b]);
    return u > v ? -1 : u < v ? 1 : a < b ? -1 : a > b;
}

/* Reads the indices of a payload by the text of the manual, bit by bit; marks them. Returns k,
   or -1. */
static long read_indices(size_t n, char *sent)
{
    uint64_t k = 0, at = 0, next = 0;
    unsigned coder = payload[40], width = 0;
    const uint8_t *bits = payload + 41;
    for (int b = 7; b >= 0; b--) k = k << 8 | payload[32 + b];
    memset(sent, 0, n);
    if (coder == 255) {
        for (size_t i = 0; i < n; i++) sent[i] = bits[i / 8] >> i % 8 & 1;
        return (long)k;
    }
    for (uint64_t i = 0; i < k; i++) {
        uint64_t q = 0, low = 0;
        if (coder == 254 && i % 128 == 0) width = bits[(at = (at + 7) / 8 * 8) / 8], at += 8;
        if (coder >= 253) {
            for (unsigned b = 0; b < (coder == 253 ? 32 : width); b++, at++) low |= (uint64_t)(bits[at / 8] >> at % 8 & 1) << b;
            next = coder == 253 ? low : next + low;
            if (next >= n) return -1;
            sent[next++] = 1;
            continue;
        }
        for (; bits[at / 8] >> at % 8 & 1; at++) q++;
        at++;
        for (unsigned b = 0; b < coder; b++, at++) low |= (uint64_t)(bits[at / 8] >> at % 8 & 1) << b;
        next += (q << coder) + low;
        if (next >= n) return -1;
        sent[next++] = 1;
    }
    return (long)k;
}

static void check_topk(const char *text, double density)
{
    static char sent[LARGEST + 1];
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s], length, k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40))), kept = 0;
            if (n && k < 1) k = 1;
            fill(shape, n);
            length = encode(text, n, 1);
            for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
            qsort(order, n, sizeof *order, by_magnitude);
            memset(d, 0, 4 * n);
            for (size_t i = 0; i < k && i < n && p[order[i]] != 0; i++, kept++) d[order[i]] = p[order[i]];
            CHECK(read_indices(n, sent) == (long)kept);
            for (size_t i = 0; i < n; i++) CHECK(sent[i] == (d[i] != 0));
            decode(n, length);
        }
}

static void test_topk_sends_the_largest_and_of_equal_ones_the_first(void)
{
    check_topk("topk", 0.01);
    check_topk("topk:density=0.001", 0.001);
    check_topk("topk:density=0.3", 0.3);
    check_topk("topk:density=1", 1);
}

static void test_k_of_a_tenth_of_ten_is_one(void)
{
    fill(0, 10);
    (void)encode("topk:density=0.1", 10, 0);
    CHECK(payload[32] == 1);
}

/* ---------------- error feedback */

static void test_nothing_is_lost_over_a_thousand_steps(void)
{
    static const char *const codecs[] = {"fp16", "bf16", "sign:block=64", "sign:block=tensor", "topk:density=0.05",
                                         "topk:density=0.1+sign:block=16"};
    enum { N = 333 };
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        static double given[N], sent[N];
        gcomp_input in;
        memset(given, 0, sizeof given);
        memset(sent, 0, sizeof sent);
        memset(e, 0, sizeof e);
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.grad = g;
        in.rows = N;
        for (int step = 0; step < 1000; step++) {
            size_t length;
            for (size_t i = 0; i < N; i++) {
                g[i] = normal((uint64_t)step * N + i) + 0.1f;
                given[i] += (double)g[i];
            }
            length = encode(codecs[c], N, 1);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, N, NULL) == GCOMP_OK);
            CHECK(gcomp_retain(payload, length, &in, e, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) sent[i] += (double)y[i];
        }
        for (size_t i = 0; i < N; i++) CHECK(fabs(given[i] - sent[i] - (double)e[i]) < 2e-3 && fabs((double)e[i]) < 200);
    }
}

int main(void)
{
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_none_sends_the_floats);
        RUN(test_fp16_rounds_to_nearest_and_saturates);
        RUN(test_bf16_rounds_to_nearest_and_saturates);
        RUN(test_sign_sends_signs_and_the_mean_magnitude_of_each_block);
        RUN(test_sign_sends_signs_and_the_mean_magnitude_of_the_tensor);
        RUN(test_topk_sends_the_largest_and_of_equal_ones_the_first);
        RUN(test_k_of_a_tenth_of_ten_is_one);
        RUN(test_nothing_is_lost_over_a_thousand_steps);
    }
    return test_end();
}
