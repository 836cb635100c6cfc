/* Selectors: which elements each sends, by what it promises. Sets are read off the dense decoded vector. */
#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "../gcomp.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 70000 };
enum { NORMAL, ONE_SIDED, MOSTLY_ZERO, ALL_ZERO, CONSTANT, HEAVY, TINY, SHAPES };

static float g[LARGEST], e[LARGEST], p[LARGEST], d[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)];
static gcomp_isa isa;
static const size_t sizes[] = {0, 1, 2, 15, 16, 17, 100, 1000, 4096, 5000, 33000, LARGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static double uniform(uint64_t i)
{
    uint64_t x = (i + 5) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    return (double)((x ^ x >> 29) >> 11) / 9007199254740992.0;
}

static void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = sqrt(-2 * log(uniform(2 * i) + 1e-18)) * cos(6.283185307179586 * uniform(2 * i + 1));
        if (shape == ONE_SIDED) v = -fabs(v) - 0.1;
        if (shape == MOSTLY_ZERO && uniform(3 * i + 7) < 0.9) v = 0;
        if (shape == ALL_ZERO) v = 0;
        if (shape == CONSTANT) v = 0.75;
        if (shape == HEAVY) v = v * v * v;
        if (shape == TINY) v *= 1e-41;
        g[i] = (float)v;
        e[i] = shape == NORMAL ? (float)(0.25 * uniform(i + 77)) : 0;
        p[i] = g[i] + e[i];
    }
}

/* Encodes g and e and decodes to d. */
static gcomp_result send(const char *text, size_t n)
{
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    size_t length = 0;
    gcomp_result result = gcomp_codec_parse(&codec, text, NULL, 0);
    CHECK(result == GCOMP_OK);
    memset(&in, 0, sizeof in);
    memset(&exec, 0, sizeof exec);
    in.grad = g;
    in.residual = e;
    in.rows = n;
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.isa = isa;
    exec.scratch = scratch;
    exec.scratch_bytes = gcomp_scratch(&codec, n);
    CHECK(exec.scratch_bytes <= GCOMP_SCRATCH(n));
    result = gcomp_encode(&codec, &in, &exec, payload, gcomp_bound(&codec, n), &length);
    if (result != GCOMP_OK) return result;
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, d, n, &exec) == GCOMP_OK);
    return GCOMP_OK;
}

static size_t count(size_t n)
{
    size_t sent = 0;
    for (size_t i = 0; i < n; i++) sent += d[i] != 0;
    return sent;
}

static size_t share(double density, size_t n)
{
    size_t k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    return n && k < 1 ? 1 : k;
}

/* Of the elements of one sign (0: of both), every one sent is at least as large as every one that is not; values are p. */
static int is_a_cut(size_t n, int sign)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < n; i++) {
        if (sign && (p[i] > 0) != (sign > 0)) continue;
        if (d[i] != 0 && d[i] != p[i]) return 0;
        if (d[i] != 0) least = fmin(least, fabs(p[i]));
        else most = fmax(most, fabs(p[i]));
    }
    return least >= most;
}

static void test_sampledtopk_sends_about_k_of_the_largest(void)
{
    static const double densities[] = {0.001, 0.01, 0.2, 1};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                char text[64];
                size_t n = sizes[s], k = share(densities[c], n), nonzero = 0, sent;
                snprintf(text, sizeof text, "sampledtopk:density=%g", densities[c]);
                fill(shape, n);
                CHECK(send(text, n) == GCOMP_OK);
                CHECK(is_a_cut(n, 0));
                for (size_t i = 0; i < n; i++) nonzero += p[i] != 0;
                sent = count(n);
                CHECK(sent <= k + k / 4);
                CHECK(sent >= (k - k / 5 < nonzero ? k - k / 5 : nonzero));
            }
}

static void test_strom_sends_what_reaches_the_threshold(void)
{
    static const char *const thresholds[] = {"0.5", "0.75", "1e-20", "1e20"};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                const float t = strtof(thresholds[c], NULL);
                char text[3][64];
                snprintf(text[0], sizeof *text, "strom:threshold=%s,send=value", thresholds[c]);
                snprintf(text[1], sizeof *text, "strom:threshold=%s", thresholds[c]);
                snprintf(text[2], sizeof *text, "strom:threshold=%s+onebit:block=tensor", thresholds[c]);
                fill(shape, sizes[s]);
                for (int form = 0; form < 3; form++) {
                    CHECK(send(text[form], sizes[s]) == GCOMP_OK);
                    for (size_t i = 0; i < sizes[s]; i++) {
                        const float quantum = p[i] < 0 ? -t : t, value = form ? quantum : p[i];
                        CHECK(d[i] == (fabsf(p[i]) >= t ? value : 0));
                    }
                }
            }
}

static void test_nonzero_is_lossless(void)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            fill(shape, sizes[s]);
            CHECK(send("nonzero", sizes[s]) == GCOMP_OK);
            CHECK(memcmp(d, p, 4 * sizes[s]) == 0);
        }
}

static void test_nonzero_sends_nothing_for_zeros(void)
{
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    size_t length = 0, sent;
    fill(MOSTLY_ZERO, 5000);
    CHECK(send("nonzero+sign:block=tensor", 5000) == GCOMP_OK);
    sent = count(5000);
    for (size_t i = 0; i < 5000; i++) CHECK((d[i] != 0) == (p[i] != 0) && (p[i] == 0 || (d[i] < 0) == (p[i] < 0)));
    CHECK(gcomp_codec_parse(&codec, "nonzero+sign:block=tensor", NULL, 0) == GCOMP_OK);
    memset(&in, 0, sizeof in);
    memset(&exec, 0, sizeof exec);
    in.grad = p;
    in.rows = 5000;
    exec.isa = isa;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(length <= 32 + 9 + 4 + sent / 8 + 1 + 5000 / 8 + 1); /* a bitmap at worst, and a bit a value */
}

static void test_nonzero_alone_keeps_no_residual(void)
{
    static const char *const texts[] = {"nonzero", "nonzero+sign"};
    for (int c = 0; c < 2; c++) {
        gcomp *gc = NULL;
        gcomp_desc desc;
        gcomp_tensor tensor;
        float *grads[1] = {g};
        memset(&desc, 0, sizeof desc);
        memset(&tensor, 0, sizeof tensor);
        desc.codec = texts[c];
        tensor.name = "embedding";
        tensor.rows = 50;
        tensor.cols = 100;
        fill(MOSTLY_ZERO, 5000);
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        CHECK((gcomp_residual(gc, 0) != NULL) == (c == 1));
        if (c == 0) CHECK(memcmp(g, p, 4 * 5000) == 0);
        gcomp_close(gc);
    }
}

static void test_dryden_cuts_each_sign_apart(void)
{
    static const double densities[] = {0.001, 0.01, 0.2, 1};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                char text[64];
                size_t n = sizes[s], sides[2] = {0, 0}, sent[2] = {0, 0};
                snprintf(text, sizeof text, "dryden:density=%g", densities[c]);
                fill(shape, n);
                CHECK(send(text, n) == GCOMP_OK);
                CHECK(count(n) <= 4 * share(densities[c], n));
                if (shape != CONSTANT) CHECK(is_a_cut(n, 1) && is_a_cut(n, -1)); /* of equal ones some may be left */
                for (size_t i = 0; i < n; i++) {
                    sides[p[i] < 0] += p[i] != 0;
                    sent[p[i] < 0] += d[i] != 0;
                }
                for (int k = 0; k < 2; k++) {
                    const double wanted = densities[c] * (double)sides[k];
                    CHECK(sides[k] == 0 || sent[k] > 0 || wanted < 40);
                    if (shape != CONSTANT && (n <= 4096 || (wanted > 400 && n == LARGEST)))
                        CHECK(n <= 4096 ? sent[k] == share(densities[c], sides[k])
                                        : (double)sent[k] > 0.7 * wanted && (double)sent[k] < 1.4 * wanted);
                }
            }
}

static void test_dryden_sends_the_means_of_both_sides(void)
{
    double sum[2] = {0, 0};
    size_t many[2] = {0, 0};
    fill(HEAVY, 4096);
    CHECK(send("dryden:density=0.1", 4096) == GCOMP_OK);
    for (size_t i = 0; i < 4096; i++)
        if (d[i] != 0) {
            sum[d[i] < 0] += d[i];
            many[d[i] < 0]++;
        }
    CHECK(send("dryden:density=0.1+onebit:block=tensor", 4096) == GCOMP_OK);
    for (size_t i = 0; i < 4096; i++)
        if (d[i] != 0) CHECK(fabs(d[i] - sum[d[i] < 0] / (double)many[d[i] < 0]) <= 1e-6 * fabs(d[i]));
}

static void test_numbers_that_are_not_finite_are_refused(void)
{
    static const char *const texts[] = {"sampledtopk", "strom", "strom:threshold=1e20", "nonzero", "dryden", "dryden:density=1"};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++)
        for (size_t s = 1; s < SIZES; s++)
            for (int b = 0; b < 3; b++) {
                fill(NORMAL, sizes[s]);
                g[sizes[s] * (size_t)(b + 1) / 4] = bad[b];
                CHECK(send(texts[c], sizes[s]) == GCOMP_NOT_FINITE);
            }
}

static void test_same_bytes_from_halves(void)
{
    static const char *const texts[] = {"sampledtopk:density=0.1", "strom:threshold=0.5", "nonzero", "dryden:density=0.1"};
    static uint16_t half[5000];
    for (int c = 0; c < 4; c++) {
        gcomp_codec codec;
        gcomp_input in;
        gcomp_exec exec;
        size_t length[2];
        static uint8_t first[GCOMP_BOUND(5000)];
        fill(NORMAL, 5000);
        for (size_t i = 0; i < 5000; i++) {
            uint32_t u;
            memcpy(&u, &g[i], 4);
            half[i] = (uint16_t)(u >> 16);
            u &= 0xffff0000u;
            memcpy(&g[i], &u, 4);
        }
        CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
        memset(&exec, 0, sizeof exec);
        exec.isa = isa;
        exec.scratch = scratch;
        exec.scratch_bytes = sizeof scratch;
        for (int form = 0; form < 2; form++) {
            memset(&in, 0, sizeof in);
            in.grad = form ? (const void *)half : g;
            in.dtype = form ? GCOMP_BF16 : GCOMP_F32;
            in.residual = e;
            in.rows = 5000;
            CHECK(gcomp_encode(&codec, &in, &exec, form ? payload : first, sizeof first, &length[form]) == GCOMP_OK);
        }
        CHECK(length[0] == length[1] && memcmp(first, payload, length[0]) == 0);
    }
}

static void test_scratch_of_a_byte_less_is_refused(void)
{
    static const char *const texts[] = {"sampledtopk", "strom", "nonzero", "dryden"};
    for (int c = 0; c < 4; c++) {
        gcomp_codec codec;
        gcomp_input in;
        gcomp_exec exec;
        size_t length;
        fill(NORMAL, 1000);
        CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
        memset(&in, 0, sizeof in);
        memset(&exec, 0, sizeof exec);
        in.grad = g;
        in.rows = 1000;
        exec.isa = isa;
        exec.scratch = scratch;
        exec.scratch_bytes = gcomp_scratch(&codec, 1000) - 1;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_SCRATCH_TOO_SMALL);
    }
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        if (!gcomp_isa_available((gcomp_isa)i)) continue;
        isa = (gcomp_isa)i;
        printf("# %s\n", gcomp_isa_name(isa));
        RUN(test_sampledtopk_sends_about_k_of_the_largest);
        RUN(test_strom_sends_what_reaches_the_threshold);
        RUN(test_nonzero_is_lossless);
        RUN(test_nonzero_sends_nothing_for_zeros);
        RUN(test_nonzero_alone_keeps_no_residual);
        RUN(test_dryden_cuts_each_sign_apart);
        RUN(test_dryden_sends_the_means_of_both_sides);
        RUN(test_numbers_that_are_not_finite_are_refused);
        RUN(test_same_bytes_from_halves);
        RUN(test_scratch_of_a_byte_less_is_refused);
    }
    return test_end();
}
