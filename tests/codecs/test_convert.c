/* Proves of gcomp_convert: each half becomes its number, each float the
   nearest half, on every instruction set; infinities and NaN stay; wrong arguments change nothing. */

#include "halves.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 2 * GCOMP_CHUNK + 100 };

static const gcomp_dtype types[2] = {GCOMP_F16, GCOMP_BF16};

static gcomp_exec exec_of(gcomp_isa isa)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    return exec;
}

static void check_halves(gcomp_isa isa)
{
    static uint16_t all[65536], back[65536];
    static float y[65536];
    const gcomp_exec exec = exec_of(isa);
    for (int k = 0; k < 2; k++) {
        size_t wrong = 0;
        for (size_t h = 0; h < 65536; h++) all[h] = (uint16_t)h;
        CHECK(gcomp_convert(y, GCOMP_F32, all, types[k], 65536, &exec) == GCOMP_OK);
        for (size_t h = 0; h < 65536; h++) wrong += bits_of(y[h]) != bits_of(number_of((uint16_t)h, types[k]));
        CHECK(!wrong);
        CHECK(gcomp_convert(back, types[k], y, GCOMP_F32, 65536, &exec) == GCOMP_OK);
        for (size_t h = 0; h < 65536; h++) wrong += back[h] != half_of(y[h], types[k]);
        CHECK(!wrong);
        for (size_t h = 0; h < 65536; h++) /* but for NaN, each comes back as it was */
            wrong += back[h] != h && (h & 0x7fff) <= (types[k] == GCOMP_F16 ? 0x7c00 : 0x7f80);
        CHECK(!wrong);
    }
}

/* Between each two halves: the middle, and its neighbours; and floats of any bits. */
static void check_floats(gcomp_isa isa)
{
    static float x[4 * 65536];
    static uint16_t y[4 * 65536];
    const gcomp_exec exec = exec_of(isa);
    for (int k = 0; k < 2; k++) {
        size_t wrong = 0, n = 0;
        for (uint32_t h = 0; h < 65536; h++) {
            const float a = number_of((uint16_t)h, types[k]), b = number_of((uint16_t)(h + 1), types[k]);
            const float middle = (float)(((double)a + (double)b) / 2); /* exact where both are finite */
            x[n++] = middle;
            x[n++] = float_of(bits_of(middle) + 1);
            x[n++] = float_of(bits_of(middle) - 1);
            x[n++] = float_of((uint32_t)mix(h));
        }
        CHECK(gcomp_convert(y, types[k], x, GCOMP_F32, n, &exec) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) wrong += y[i] != half_of(x[i], types[k]);
        CHECK(!wrong);
    }
}

/* Any number of elements at any address, with what is not finite in each place; nothing is written
   beside them. */
static void check_sizes(gcomp_isa isa)
{
    static uint8_t room[2 * 80 + 8], halves[2 * 80 + 8];
    const gcomp_exec exec = exec_of(isa);
    float x[80], y[80];
    for (size_t n = 0; n < 70; n++)
        for (size_t offset = 0; offset < 4; offset++)
            for (int k = 0; k < 2; k++) {
                size_t wrong = 0;
                const size_t at = n ? (size_t)mix(n + 100 * offset) % n : 0;
                for (size_t i = 0; i < n; i++) x[i] = i == at ? float_of(offset % 2 ? 0xff800000u : 0x7f812345u) : normal(i + n);
                memset(room, 0xee, sizeof room);
                CHECK(gcomp_convert(room + offset, types[k], x, GCOMP_F32, n, &exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) {
                    const uint16_t expected = half_of(x[i], types[k]);
                    wrong += memcmp(room + offset + 2 * i, &expected, 2) != 0;
                }
                for (size_t i = 0; i < sizeof room; i++) wrong += (i < offset || i >= offset + 2 * n) && room[i] != 0xee;
                memcpy(halves, room, sizeof room);
                for (size_t i = 0; i < 80; i++) y[i] = 5;
                CHECK(gcomp_convert(y, GCOMP_F32, halves + offset, types[k], n, &exec) == GCOMP_OK);
                for (size_t i = 0; i < 80; i++) {
                    uint16_t h = 0;
                    memcpy(&h, halves + offset + 2 * (i < n ? i : 0), 2);
                    wrong += bits_of(y[i]) != (i < n ? bits_of(number_of(h, types[k])) : bits_of(5.0f));
                }
                CHECK(!wrong);
            }
}

/* In threads, over more than a chunk. */
static void check_chunks(gcomp_isa isa)
{
    static float x[MOST], y[MOST];
    static uint16_t one[MOST], other[MOST];
    gcomp_exec exec = exec_of(isa), parallel = exec_of(isa);
    parallel.parallel.run = run_backwards;
    for (size_t i = 0; i < MOST; i++) x[i] = i == MOST - 3 ? float_of(0xffc00001u) : i == 7 ? float_of(0x7f800000u) : normal(i);
    for (int k = 0; k < 2; k++) {
        size_t wrong = 0;
        CHECK(gcomp_convert(one, types[k], x, GCOMP_F32, MOST, &exec) == GCOMP_OK);
        CHECK(gcomp_convert(other, types[k], x, GCOMP_F32, MOST, &parallel) == GCOMP_OK);
        CHECK(!memcmp(one, other, sizeof one));
        for (size_t i = 0; i < MOST; i += 61) wrong += one[i] != half_of(x[i], types[k]);
        wrong += one[MOST - 3] != half_of(x[MOST - 3], types[k]) || one[7] != half_of(x[7], types[k]);
        CHECK(gcomp_convert(y, GCOMP_F32, one, types[k], MOST, &parallel) == GCOMP_OK);
        for (size_t i = 0; i < MOST; i++) wrong += bits_of(y[i]) != bits_of(number_of(one[i], types[k]));
        CHECK(!wrong);
    }
}

static const gcomp_isa sets[] = {GCOMP_ISA_AUTO, GCOMP_ISA_SCALAR, GCOMP_ISA_AVX2, GCOMP_ISA_AVX512, GCOMP_ISA_NEON};

static void on_each_set(void (*check)(gcomp_isa))
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (isa_available(sets[i])) check(sets[i]);
}

static void test_each_half_becomes_its_number_and_comes_back(void) { on_each_set(check_halves); }
static void test_each_float_becomes_the_nearest_half(void) { on_each_set(check_floats); }
static void test_any_number_of_elements_at_any_address(void) { on_each_set(check_sizes); }
static void test_chunks_and_threads_change_nothing(void) { on_each_set(check_chunks); }

static void test_floats_are_copied(void)
{
    const uint32_t bits[5] = {0x7f812345u, 0xff800000u, 1, 0x80000000u, 0x3f800000u};
    float x[5], y[5];
    memcpy(x, bits, sizeof x);
    CHECK(gcomp_convert(y, GCOMP_F32, x, GCOMP_F32, 5, NULL) == GCOMP_OK && !memcmp(x, y, sizeof x));
    memset(y, 0, sizeof y);
    CHECK(gcomp_convert(y, GCOMP_F32, x, GCOMP_F32, 5, NULL) == GCOMP_OK && !memcmp(x, y, sizeof x));
}

static void test_wrong_arguments_change_nothing(void)
{
    const gcomp_dtype others[] = {GCOMP_U8, GCOMP_I8, GCOMP_I16, GCOMP_I32, (gcomp_dtype)-1, (gcomp_dtype)7};
    float x[4] = {1, 2, 3, 4}, y[4] = {5, 5, 5, 5};
    uint16_t h[4] = {7, 7, 7, 7};
    gcomp_exec exec = exec_of((gcomp_isa)9);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK(gcomp_convert(y, GCOMP_F32, h, others[i], 4, NULL) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_convert(h, others[i], x, GCOMP_F32, 4, NULL) == GCOMP_INVALID_ARGUMENT);
    }
    for (int k = 0; k < 3; k++) {
        const gcomp_dtype dtype = k == 2 ? GCOMP_F32 : types[k];
        CHECK(gcomp_convert(NULL, GCOMP_F32, h, dtype, 1, NULL) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_convert(y, GCOMP_F32, NULL, dtype, 1, NULL) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_convert(NULL, dtype, x, GCOMP_F32, 1, NULL) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_convert(h, dtype, NULL, GCOMP_F32, 1, NULL) == GCOMP_INVALID_ARGUMENT);
        if (dtype != GCOMP_F32) CHECK(gcomp_convert(h, GCOMP_F16, h, GCOMP_BF16, 1, NULL) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_convert(NULL, GCOMP_F32, NULL, dtype, 0, NULL) == GCOMP_OK);
        CHECK(gcomp_convert(NULL, dtype, NULL, GCOMP_F32, 0, NULL) == GCOMP_OK);
        CHECK(gcomp_convert(y, GCOMP_F32, h, dtype, 4, &exec) == GCOMP_ISA_UNAVAILABLE);
        CHECK(gcomp_convert(h, dtype, x, GCOMP_F32, 4, &exec) == GCOMP_ISA_UNAVAILABLE);
    }
    for (int i = 0; i < 4; i++) CHECK(bits_of(y[i]) == bits_of(5.0f) && h[i] == 7);
}

int main(void)
{
    RUN(test_each_half_becomes_its_number_and_comes_back);
    RUN(test_each_float_becomes_the_nearest_half);
    RUN(test_any_number_of_elements_at_any_address);
    RUN(test_chunks_and_threads_change_nothing);
    RUN(test_floats_are_copied);
    RUN(test_wrong_arguments_change_nothing);
    return test_end();
}
