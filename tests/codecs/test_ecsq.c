/* Proves of ecsq: it takes the bits that were asked for, and hardly more than the entropy of what it sends; the errors of its
   chapter; no element is cut off; streams of every kind are read as they were written, and nothing else is accepted. */
#include "codecs.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 3 * 65536 + 4099 };
static float g[LARGEST], y[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], copy[GCOMP_BOUND(LARGEST)];
static gcomp_isa isa_now;

static size_t encode_as(const char *text, size_t n)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    const size_t bound = gcomp_bound(&codec, n, NULL);
    CHECK(bound && bound <= GCOMP_BOUND_ECSQ(n) && bound <= GCOMP_BOUND(n));
    CHECK(gcomp_encode(&codec, &in, &exec, payload, bound, &length) == GCOMP_OK);
    CHECK(length <= bound && gcomp_check(payload, length, n) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    return length;
}

static size_t encode(double bits, size_t n)
{
    char text[40];
    snprintf(text, sizeof text, "ecsq:bits=%g", bits);
    return encode_as(text, n);
}

static double float_at(size_t at)
{
    float x;
    uint32_t bits = payload[at] | (uint32_t)payload[at + 1] << 8 | (uint32_t)payload[at + 2] << 16 | (uint32_t)payload[at + 3] << 24;
    memcpy(&x, &bits, 4);
    return x;
}

/* Each element is the nearest number of its 65536, and is decoded as d q - c sgn(q). Returns the entropy of all q. */
static double entropy(size_t n)
{
    size_t count[256] = {0};
    double bits = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = float_at(32 + i / 65536 * 8), c = float_at(36 + i / 65536 * 8);
        const double q = d > 0 ? nearbyint((double)y[i] / d + (y[i] > 0 ? c / d : y[i] < 0 ? -c / d : 0)) : 0;
        const float wanted = (float)(q * d) - (float)((q > 0) - (q < 0)) * (float)c;
        CHECK(fabs(q) <= 127 && y[i] == wanted);
        CHECK(fabs((double)g[i] - q * d) <= d * (0.5 + 1e-5) + 1e-44); /* nothing is cut off */
        count[(int)q + 128]++;
    }
    for (int k = 0; k < 256; k++)
        if (count[k]) bits -= (double)count[k] * log2((double)count[k] / (double)n);
    return bits / (double)n;
}

static double error(size_t n)
{
    double lost = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        lost += ((double)y[i] - g[i]) * ((double)y[i] - g[i]);
        all += (double)g[i] * g[i];
    }
    return lost / all;
}

/* 1.42 * 2^(-2 bits) is what a uniform step loses of normal numbers with an ideal coder. */
static void test_normal_numbers_take_the_bits_asked_for(void)
{
    static const double asked[] = {0.5, 0.8, 1.2, 2, 3, 3.8, 5, 6};
    for (size_t i = 0; i < LARGEST; i++) g[i] = normal(i) * 1e-3f;
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        const double bits = 8.0 * (double)(encode(asked[k], LARGEST) - 32) / LARGEST, least = entropy(LARGEST), lost = error(LARGEST);
        printf("# %.1f bits asked for: %.3f, entropy %.3f, error^2 %.5f, of 1.42 * 2^(-2 bits) %.3f\n", asked[k], bits, least, lost,
               lost / (1.42 * pow(2, -2 * asked[k])));
        CHECK(bits <= asked[k] + 0.03 && bits >= asked[k] - 0.05);
        CHECK(bits <= least + (asked[k] > 4 ? 0.05 : 0.03));
        CHECK(lost <= 1.10 * 1.42 * pow(2, -2 * asked[k]));
    }
}

/* What is large is rare in these, so they need fewer bits for the same error. */
static void test_other_numbers_take_no_more_bits(void)
{
    static const double normal_error[] = {0.28, 0.095, 0.024};
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < LARGEST; i++) {
            const float v = normal(i);
            g[i] = kind == 0 ? v * v * v : kind == 1 ? (i % 7 ? 0 : v) : i / 5000 % 4 ? v * 0.1f : v;
        }
        for (int k = 0; k < 3; k++) {
            const double asked = k == 0 ? 1.2 : k + 1, bits = 8.0 * (double)(encode(asked, LARGEST) - 32) / LARGEST;
            (void)entropy(LARGEST);
            if (bits > asked + 0.05) printf("# kind %d: %g bits, not %g\n", kind, bits, asked);
            CHECK(bits <= asked + 0.05);
            CHECK(error(LARGEST) < 0.6 * normal_error[k]);
        }
    }
}

/* Normal and Laplace numbers, Student's t of 3 degrees, cubes of normal numbers: the error asked for, or up to 5 % less. Where
   127 steps do not reach the largest element of a chunk, the error is above that, and steps are those 127. */
static void test_errors_are_those_asked_for(void)
{
    static const double asked[] = {0.0003, 0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 0.9};
    static const size_t sizes[] = {LARGEST, 10007};
    size_t reached = 0;
    for (int kind = 0; kind < 4; kind++)
        for (int s = 0; s < 2; s++) {
            const size_t n = sizes[s];
            for (size_t i = 0; i < n; i++) {
                const double v = normal(i), a = normal(i + LARGEST), b = normal(i + 2 * LARGEST), c = normal(i + 3 * LARGEST);
                g[i] = (float)(kind == 0   ? v
                               : kind == 1 ? log(uniform(2 * i) + 1e-18) * (uniform(2 * i + 1) < 0.5 ? 1 : -1)
                               : kind == 2 ? v / sqrt((a * a + b * b + c * c) / 3)
                                           : v * v * v);
            }
            for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
                char text[40];
                int limited = 0;
                snprintf(text, sizeof text, "ecsq:error=%g", asked[k]);
                encode_as(text, n);
                (void)entropy(n);
                const double part = error(n) / asked[k];
                for (size_t at = 0; at < n; at += 65536) { /* has a chunk a step that its largest element asks for? */
                    double most = 0;
                    for (size_t i = at; i < n && i < at + 65536; i++) most = fmax(most, fabs((double)g[i]));
                    limited |= float_at(32 + at / 65536 * 8) < most / 126.9;
                }
                if (!limited && (part < 0.95 || part > 1.03)) printf("# kind %d, %zu elements, error %g: %g of it\n", kind, n, asked[k], part);
                CHECK(limited || (part >= 0.95 && part <= 1.03));
                reached += !limited;
            }
        }
    CHECK(reached >= 48);
}

/* The text: an error alone, bits alone, and which of them are refused. */
static void test_bits_or_an_error_decides(void)
{
    static const struct { const char *text, *why; } texts[] = {
        {"ecsq:error=0.01", NULL}, {"ecsq:error=0.0001", NULL}, {"ecsq:error=0.9", NULL}, {"ecsq:bits=3", NULL},
        {"ecsq:bits=3,error=0.01", "one of them"}, {"ecsq:error=1e-06", "0.00001"}, {"ecsq:error=0.91", "error"},
        {"ecsq:error=-1", "error"}};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        gcomp_codec codec;
        char why[200] = "", back[60] = "";
        const gcomp_result result = gcomp_codec_parse(&codec, texts[k].text, why, sizeof why);
        CHECK((result == GCOMP_OK) == !texts[k].why);
        if (texts[k].why) CHECK(strstr(why, texts[k].why));
        if (!texts[k].why) CHECK(gcomp_codec_format(&codec, back, sizeof back) && !strcmp(back, texts[k].text));
    }
}

/* One element is a million times as large as the others. */
static void test_a_huge_element_is_not_cut_off(void)
{
    for (size_t i = 0; i < 100000; i++) g[i] = normal(i);
    g[70000] = -1e6f;
    encode(2, 100000);
    (void)entropy(100000);
    CHECK(fabs((double)y[70000] + 1e6) < 1e6 / 254 && error(65536) < 0.1); /* the first 65536 have a step of their own */
}

static void test_shapes_of_all_sizes(void)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 15, 17, 63, 100, 2047, 2048, 2049, 4095, 4096, 8191, 8192, 8195, 16383, 16384, 16385, 65535, 65536, 65537, 73731};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int shape = 0; shape < 9; shape++)
            for (int k = 0; k < 3; k++) {
                const size_t n = sizes[s];
                for (size_t i = 0; i < n; i++) {
                    const float v = normal(i);
                    g[i] = shape == 0   ? v
                           : shape == 1 ? (i % 2 ? 0.0f : -0.0f)
                           : shape == 2 ? -0.75f
                           : shape == 3 ? (float)(2 * uniform(i) - 1) * 3.4e38f
                           : shape == 4 ? v * 1e-40f
                           : shape == 5 ? (float)(i % 255) - 127
                           : shape == 6 ? (i % 4096 == 9 ? v : 0)
                           : shape == 7 ? (i / 2048 % 2 ? (float)(i * 29 % 255) - 127 : v * 1e-3f)
                                        : (i % 2048 < 2000 ? 0 : 100 * v);
                }
                encode(k == 0 ? 0.5 : k == 1 ? 2 : 6, n);
                (void)entropy(n);
            }
}

static void test_tables_are_kept_where_they_fit(void)
{
    for (size_t i = 0; i < 65536; i++) g[i] = normal(i);
    size_t same = encode(2, 65536);
    for (size_t i = 32768; i < 65536; i++) g[i] *= 3;
    const size_t two = encode(2, 65536);
    const double bits = 8.0 * (double)(two - 40) / 65536;
    CHECK(entropy(65536) > bits + 0.05); /* tables follow the levels */
    (void)same;
    for (size_t i = 0; i < 65536; i++) g[i] = (float)(i * 29 % 255) - 127; /* all levels, equally often: packed */
    g[0] = 127;
    CHECK(encode(6, 65536) <= 32 + 8 + 65536 + 8);
}

static void test_what_is_not_finite_is_refused(void)
{
    gcomp_codec codec;
    gcomp_input in;
    size_t length;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = 1000;
    CHECK(gcomp_codec_parse(&codec, "ecsq", NULL, 0) == GCOMP_OK);
    for (size_t i = 0; i < 1000; i++) g[i] = normal(i);
    for (int k = 0; k < 3; k++) {
        const float keep = g[k * 499];
        g[k * 499] = k == 1 ? NAN : k ? -INFINITY : INFINITY;
        CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_NOT_FINITE && length == 32);
        g[k * 499] = keep;
    }
}

/* Nothing behind the payload is read: it ends where its memory ends. What is accepted has finite elements. */
static void check_hostile(const uint8_t *bytes, size_t length, size_t n, int refused)
{
    uint8_t *exact = malloc(length);
    CHECK(exact != NULL);
    if (!exact) return;
    memcpy(exact, bytes, length);
    const int good = gcomp_check(exact, length, n) == GCOMP_OK;
    CHECK(!good || !refused);
    CHECK((gcomp_decode(exact, length, y, GCOMP_F32, n, NULL) == GCOMP_OK) == good);
    for (size_t i = 0; good && i < n; i++) CHECK(isfinite(y[i]));
    free(exact);
}

static void test_hostile_payloads_are_refused_or_read_safely(void)
{
    static const size_t sizes[] = {40, 700, 9000, 20000};
    for (size_t s = 0; s < 4; s++) {
        const size_t n = sizes[s];
        for (size_t i = 0; i < n; i++) g[i] = normal(i);
        const size_t length = encode(s & 1 ? 5.5 : 2, n), step = length / 200 + 1;
        memcpy(copy, payload, length);
        for (size_t cut = 32; cut < length; cut += step) {
            memcpy(payload, copy, length);
            for (int b = 0; b < 8; b++) payload[16 + b] = (uint8_t)((uint64_t)(cut - 32) >> 8 * b);
            check_hostile(payload, cut, n, 1);
        }
        for (size_t at = 32; at < length; at += step)
            for (int k = 0; k < 4; k++) {
                memcpy(payload, copy, length);
                payload[at] = (uint8_t)(k == 0 ? 0 : k == 1 ? 255 : k == 2 ? payload[at] ^ 1 : payload[at] ^ 128);
                check_hostile(payload, length, n, 0);
            }
    }
}

/* Levels at the end that are rare take more than 8 bits: they wait for room. In a part these are 95 of each size at most, but the last
   part may be short, and have a long table; then it stays packed. */
static void test_rare_levels_at_the_end(void)
{
    for (int k = 0; k < 3; k++) {
        const size_t n = 32768 + (k == 2 ? 1100 : 0), rare = k ? 95 * 127 + n - 32768 : 300;
        for (size_t i = 0; i < n; i++) g[i] = i < n - rare ? 0 : (float)(1 + i * 29 % 127) * (i & 1 ? 1.0f : -1.0f);
        g[n - 1] = 127;
        const size_t length = encode(6, n);
        if (k == 2) CHECK(payload[40] == 0 && length == 32 + 8 + 1 + n);
        else CHECK(payload[40] == 1 && length < (k ? 18000 : 10000));
        (void)entropy(n);
        for (size_t i = 0; i < n; i++) CHECK(y[i] == g[i]);
    }
}

/* Each byte 127 is tried as that of the escaped level. */
static void test_an_escaped_level_is_a_byte(void)
{
    size_t found = 0;
    for (size_t i = 0; i < 3000; i++) g[i] = i == 1234 ? 127 : (float)(i * 29 % 3) - 1;
    const size_t length = encode(2, 3000);
    CHECK(y[1234] == 127 && payload[40] == 1);
    for (size_t at = 57; at < length; at++) {
        if (payload[at] != 127) continue;
        payload[at] = 126;
        const int level = gcomp_decode(payload, length, y, GCOMP_F32, 3000, NULL) == GCOMP_OK && y[1234] == 126;
        payload[at] = 128;
        found += level && gcomp_check(payload, length, 3000) == GCOMP_CORRUPT; /* -128 is no level */
        payload[at] = 127;
    }
    CHECK(found == 1);
}

/* By hand: elements 0, one symbol, which takes no bits. A head, four states, a size, the escape's share. */
static void test_streams_by_hand(void)
{
    static const uint8_t zeros[21] = {1, 0, 128, 0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 0, 128, 0, 0, 1, 0};
    static const struct { size_t at; int value, wanted; } wrong[] = {
        {0, 2, GCOMP_CORRUPT},    /* no such head */
        {1, 1, GCOMP_CORRUPT},    /* a state that does not end as 2^15 */
        {2, 127, GCOMP_CORRUPT},  /* a state below 2^15 */
        {16, 128, GCOMP_CORRUPT}, /* a state of 32 bits */
        {17, 0, GCOMP_CORRUPT},   /* no table before */
        {17, 129, GCOMP_CORRUPT}, /* more sizes than there are */
        {17, 128, GCOMP_TRUNCATED},
        {18, 255, GCOMP_TRUNCATED}}; /* the level 0 takes a bit, and there is none */
    for (size_t i = 0; i < 30; i++) g[i] = 0;
    CHECK(encode(2, 18) == 32 + 8 + 19 && payload[40] == 0); /* packed is shorter */
    memcpy(payload + 40, zeros, 19);
    CHECK(gcomp_check(payload, 59, 18) == GCOMP_CORRUPT); /* longer than packed */
    CHECK(encode(2, 19) == 32 + 8 + 19 && !memcmp(payload + 40, zeros, 19));
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        payload[40 + wrong[k].at] = (uint8_t)wrong[k].value;
        CHECK(gcomp_check(payload, 59, 19) == wrong[k].wanted);
        memcpy(payload + 40, zeros, 19);
    }
    CHECK(gcomp_check(payload, 59, 19) == GCOMP_OK);
    for (size_t bytes = 0; bytes < 19; bytes++) { /* it ends early */
        payload[16] = (uint8_t)(8 + bytes);
        CHECK(gcomp_check(payload, 40 + bytes, 19) == GCOMP_TRUNCATED);
    }
    CHECK(encode(2, 21) == 32 + 8 + 19);
    memcpy(payload + 40, zeros, 21);
    payload[16] = 8 + 20;
    payload[57] = 2;
    payload[58] = 255;
    payload[59] = 129; /* 255 + 2 * 129 = 513 */
    CHECK(gcomp_check(payload, 60, 21) == GCOMP_CORRUPT);
    payload[16] = 8 + 22; /* packed codes */
    payload[40] = 0;
    memset(payload + 41, 0, 21);
    payload[61] = 0x81;
    CHECK(gcomp_check(payload, 62, 21) == GCOMP_OK);
    payload[61] = 0x80; /* -128 is no level */
    CHECK(gcomp_check(payload, 62, 21) == GCOMP_CORRUPT);
    payload[16] = 8 + 21;
    CHECK(gcomp_check(payload, 61, 21) == GCOMP_TRUNCATED);
}

int main(void)
{
    for (int isa = 1; isa <= GCOMP_ISA_NEON; isa++) {
        if (!isa_is_wanted((gcomp_isa)isa)) continue;
        isa_now = (gcomp_isa)isa;
        RUN(test_normal_numbers_take_the_bits_asked_for);
        RUN(test_other_numbers_take_no_more_bits);
        RUN(test_errors_are_those_asked_for);
        RUN(test_a_huge_element_is_not_cut_off);
        RUN(test_shapes_of_all_sizes);
        RUN(test_tables_are_kept_where_they_fit);
        RUN(test_rare_levels_at_the_end);
        RUN(test_an_escaped_level_is_a_byte);
    }
    isa_now = GCOMP_ISA_AUTO;
    RUN(test_bits_or_an_error_decides);
    RUN(test_what_is_not_finite_is_refused);
    RUN(test_hostile_payloads_are_refused_or_read_safely);
    RUN(test_streams_by_hand);
    return test_end();
}
