/* Proves that every layer takes and gives fp16 and bf16: what is calculated has the bits of the float functions, and is rounded
   once at the end. The codecs come from codecs.h, rounding from halves.h. */
#include "codecs.h"
#include "test.h"

#include "halves.h"

#include <stdlib.h>

enum { MOST = 65536 + 531, WORKERS = 11, GUARD = 64 };

typedef struct named {
    const char *text;
    gcomp_codec codec;
} named;

static named codecs[ALL_CODECS];
static size_t codec_count;
static gcomp_isa isa_now;
static float g[MOST], expected[MOST];
static unsigned char payload[WORKERS][GCOMP_BOUND(MOST)], scratch[GCOMP_SCRATCH(MOST) + 1];
static unsigned char room[2 * MOST + 2 * GUARD + 2], before[sizeof room];
static const void *list[WORKERS];
static size_t lengths[WORKERS];

static gcomp_exec exec_with(size_t bytes, int threads)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa_now;
    exec.scratch = bytes ? scratch + 1 : NULL;
    exec.scratch_bytes = bytes;
    if (threads) exec.parallel.run = run_backwards;
    return exec;
}

/* Worker w's payload of n elements: large, small, subnormal numbers and zeros among normal ones. */
static void encode(const gcomp_codec *codec, size_t w, size_t n)
{
    gcomp_exec exec = exec_with(GCOMP_SCRATCH(n), 0);
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = g;
    in.rows = n;
    in.key = gcomp_key_make(1, 2, 3, (uint32_t)w);
    in.key.shared = 9;
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = mix(i * WORKERS + w);
        g[i] = normal(i + 100000 * w) * (r % 19 == 0 ? 1e-6f : r % 23 == 0 ? 1e5f : r % 29 == 0 ? 0.0f : 1);
    }
    CHECK(gcomp_encode(codec, &in, &exec, payload[w], sizeof payload[w], &lengths[w]) == GCOMP_OK);
    list[w] = payload[w];
}

/* Fills the room for y; the gradient that it holds is finite. */
static void fill_room(gcomp_dtype dtype)
{
    for (size_t i = 0; i < sizeof room; i++) room[i] = (unsigned char)mix(i);
    for (size_t i = 1; i < sizeof room; i += 2) /* no infinity, no NaN, whether y begins at an even or an odd address */
        for (size_t j = i - 1; j <= i; j++) room[j] &= dtype == GCOMP_F16 ? 0xbb : 0xbf;
    memcpy(before, room, sizeof room);
}

/* Compares the room: y[n] at `at` holds `expected`, rounded, and nothing else has changed. */
static int room_is_right(gcomp_dtype dtype, size_t at, size_t n)
{
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, room + at + 2 * i, 2);
        wrong += h != half_rounded(dtype, expected[i]);
    }
    if (wrong) printf("# %zu of %zu wrong\n", wrong, n);
    return !wrong && !memcmp(room, before, at) && !memcmp(room + at + 2 * n, before + at + 2 * n, sizeof room - at - 2 * n);
}

/* The mean of `count` payloads. scratch_bytes 0: none. */
static void check_mean(gcomp_dtype dtype, size_t at, size_t n, size_t count, size_t scratch_bytes, int threads, const char *text)
{
    const gcomp_exec plain = exec_with(0, 0), exec = exec_with(scratch_bytes, threads);
    CHECK(gcomp_decode_mean(list, lengths, count, expected, n, &plain) == GCOMP_OK);
    fill_room(dtype);
    CHECK(gcomp_decode_mean_any(list, lengths, count, room + at, dtype, n, &exec) == GCOMP_OK);
    if (!room_is_right(dtype, at, n)) {
        printf("# mean of %zu, %s, n = %zu, type %d\n", count, text, n, (int)dtype);
        CHECK(0);
    }
}

/* All three functions, on the payloads of the first three workers. */
static void check_codec(const named *c, gcomp_dtype dtype, size_t n, size_t shift)
{
    const size_t at = GUARD + shift, all = GCOMP_SCRATCH(n);
    const int threads = (n + shift) & 1, needs = gcomp_scratch(&c->codec, 1000) != 0, coded = strstr(c->text, "code=") != NULL;
    const gcomp_exec plain = exec_with(0, 0), exec = exec_with(needs ? all : 0, threads);
    static const float weights[] = {1, -0.25f, 3e38f};
    CHECK(gcomp_decode(payload[0], lengths[0], expected, n, &plain) == GCOMP_OK);
    fill_room(dtype);
    CHECK(gcomp_decode_any(payload[0], lengths[0], room + at, dtype, n, &exec) == GCOMP_OK);
    CHECK(room_is_right(dtype, at, n));
    for (size_t k = 0; k < 3; k++) {
        fill_room(dtype);
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, room + at + 2 * i, 2);
            expected[i] = half_as_float(dtype, h);
        }
        CHECK(gcomp_decode_add(payload[1], lengths[1], weights[k], expected, n, &plain) == GCOMP_OK);
        CHECK(gcomp_decode_add_any(payload[1], lengths[1], weights[k], room + at, dtype, n, &exec) == GCOMP_OK);
        if (!room_is_right(dtype, at, n)) {
            printf("# add of %s, n = %zu, type %d\n", c->text, n, (int)dtype);
            CHECK(0);
        }
    }
    for (size_t count = 1; count <= 3; count++)
        check_mean(dtype, at, n, count, needs || (coded && count > 1) ? all : 0, threads, c->text);
}

static void test_every_codec_decodes_to_halves_as_to_floats_that_are_rounded(void)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 31, 33, 511, 512, 513, 1023, 4099, 65535, 65536, 65537, MOST};
    for (size_t c = 0; c < codec_count; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (sizes[s] > 60000 && !test_is_long() && (c + s) % 4) continue; /* a part of the large ones */
            for (size_t w = 0; w < 3; w++) encode(&codecs[c].codec, w, sizes[s]);
            for (size_t shift = 0; shift < 2; shift++)
                check_codec(&codecs[c], (c + s + shift) & 1 || test_is_long() ? GCOMP_BF16 : GCOMP_F16, sizes[s], shift);
            check_codec(&codecs[c], GCOMP_F16, sizes[s], s % 3);
        }
}

/* Payloads of one codec in any number; payloads of many codecs, in several orders. */
static void test_means_of_many_payloads_and_of_mixed_codecs_are_rounded_once(void)
{
    static const char *const some[] = {"sign",      "topk:density=0.1", "int:bits=4,code=auto", "vote", "eden:bits=2", "bf16",
                                       "int:bits=4", "int",             "none",                 "topk:density=0.2+int", "mx"};
    static const size_t sizes[] = {1, 17, 513, 65537};
    gcomp_codec codec;
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++)
        for (size_t s = 0; s < 4; s++) {
            const size_t n = sizes[s];
            for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
                const int needs = strchr(some[k], 'k') || strstr(some[k], "eden") || strstr(some[k], "code=");
                CHECK(gcomp_codec_parse(&codec, some[k], NULL, 0) == GCOMP_OK);
                for (size_t w = 0; w < WORKERS; w++) encode(&codec, w, n);
                for (size_t count = 7; count <= WORKERS; count++) /* 8 views are added in one pass */
                    check_mean((gcomp_dtype)dtype, GUARD, n, count, needs ? 4 * n + 127 : 0, (int)count & 1, some[k]);
            }
            for (size_t first = 0; first < WORKERS; first++) {
                for (size_t w = 0; w < WORKERS; w++) {
                    CHECK(gcomp_codec_parse(&codec, some[(first + w) % WORKERS], NULL, 0) == GCOMP_OK);
                    encode(&codec, w, n);
                }
                for (size_t count = 2; count <= WORKERS; count += 3) {
                    check_mean((gcomp_dtype)dtype, GUARD + 1, n, count, 4 * n + 127, 0, "mixed");
                    check_mean((gcomp_dtype)dtype, GUARD, n, count, GCOMP_SCRATCH(n), 1, "mixed");
                }
            }
        }
}

static void test_float_y_of_any_type_functions_has_the_bits_of_the_float_functions(void)
{
    static float y[MOST];
    const size_t n = 4099;
    const gcomp_exec exec = exec_with(0, 0);
    for (size_t c = 0; c < codec_count; c++) {
        for (size_t w = 0; w < 2; w++) encode(&codecs[c].codec, w, n);
        CHECK(gcomp_decode(list[0], lengths[0], expected, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode_any(list[0], lengths[0], y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
        CHECK(gcomp_decode_add(list[1], lengths[1], 0.3f, expected, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode_add_any(list[1], lengths[1], 0.3f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
        CHECK(gcomp_decode_mean(list, lengths, 2, expected, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode_mean_any(list, lengths, 2, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
    }
}

/* Calls the three functions; each must return `result` and leave the room as it was. */
static void check_refused(gcomp_result result, const gcomp_exec *exec, size_t count, void *y, gcomp_dtype dtype, size_t n)
{
    CHECK(gcomp_decode_any(list[0], lengths[0], y, dtype, n, exec) == result);
    CHECK(gcomp_decode_add_any(list[0], lengths[0], 1, y, dtype, n, exec) == result);
    CHECK(gcomp_decode_mean_any(list, lengths, count, y, dtype, n, exec) == result);
    CHECK(!memcmp(room, before, sizeof room));
}

static void test_errors_leave_halves_as_they_were(void)
{
    enum { N = 1000 };
    static const int bad_types[] = {-1, GCOMP_U8, GCOMP_I8, GCOMP_I16, GCOMP_I32, 7, 99};
    const gcomp_exec none = exec_with(0, 0), full = exec_with(GCOMP_SCRATCH(N), 0);
    const void *swapped[2];
    for (size_t c = 0; c < codec_count; c++) {
        const named *at = &codecs[c];
        for (size_t w = 0; w < 2; w++) encode(&at->codec, w, N);
        fill_room(GCOMP_BF16);
        for (size_t k = 0; k < sizeof bad_types / sizeof *bad_types; k++)
            check_refused(GCOMP_INVALID_ARGUMENT, &full, 2, room, (gcomp_dtype)bad_types[k], N);
        check_refused(GCOMP_INVALID_ARGUMENT, &full, 2, NULL, GCOMP_BF16, N);
        check_refused(GCOMP_COUNT_MISMATCH, &full, 2, room, GCOMP_F16, N + 1);
        CHECK(gcomp_seal(payload[0], lengths[0], &none) == GCOMP_OK);
        payload[0][lengths[0] - 1] ^= 1;
        check_refused(GCOMP_CHECKSUM_MISMATCH, &full, 2, room, GCOMP_F16, N);
        swapped[0] = payload[1], swapped[1] = payload[0]; /* the last of a mean */
        const size_t swapped_lengths[2] = {lengths[1], lengths[0]};
        CHECK(gcomp_decode_mean_any(swapped, swapped_lengths, 2, room, GCOMP_BF16, N, &full) == GCOMP_CHECKSUM_MISMATCH);
        CHECK(!memcmp(room, before, sizeof room));
        payload[0][lengths[0] - 1] ^= 1;
        CHECK(gcomp_decode_add_any(list[0], lengths[0], NAN, room, GCOMP_F16, N, &full) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_decode_mean_any(list, lengths, 0, room, GCOMP_F16, N, &full) == GCOMP_INVALID_ARGUMENT);
        CHECK(!memcmp(room, before, sizeof room));
        if (gcomp_scratch(&at->codec, N)) { /* a sparse method, or eden */
            const gcomp_exec little = exec_with(4 * N, 0), enough = exec_with(4 * N + 127, 0);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, &none, 2, room, GCOMP_F16, N);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, NULL, 2, room, GCOMP_BF16, N);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, &little, 2, room, GCOMP_BF16, N);
            CHECK(gcomp_decode_any(list[0], lengths[0], room, GCOMP_BF16, N, &enough) == GCOMP_OK);
            CHECK(gcomp_decode_add_any(list[0], lengths[0], 1, room, GCOMP_BF16, N, &enough) == GCOMP_OK);
            CHECK(gcomp_decode_mean_any(list, lengths, 2, room, GCOMP_BF16, N, &enough) == GCOMP_OK);
        } else if (strstr(at->text, "code=")) { /* entropy-coded levels: a mean of several needs scratch */
            CHECK(gcomp_decode_mean_any(list, lengths, 2, room, GCOMP_F16, N, &none) == GCOMP_SCRATCH_TOO_SMALL);
            CHECK(!memcmp(room, before, sizeof room));
        }
    }
}

int main(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        named *to = codecs + codec_count;
        if (!codec_has_payload(codec_list[c].text) || (test_is_slow() && c % 3)) continue;
        if (gcomp_codec_parse(&to->codec, codec_list[c].text, NULL, 0) != GCOMP_OK) return 1;
        to->text = codec_list[c].text;
        codec_count++;
    }
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++) {
        isa_now = (gcomp_isa)isa;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_every_codec_decodes_to_halves_as_to_floats_that_are_rounded);
        RUN(test_means_of_many_payloads_and_of_mixed_codecs_are_rounded_once);
        RUN(test_float_y_of_any_type_functions_has_the_bits_of_the_float_functions);
        RUN(test_errors_leave_halves_as_they_were);
    }
    return test_end();
}
