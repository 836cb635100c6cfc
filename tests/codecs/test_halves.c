/* Proves that every layer takes and gives fp16 and bf16: what is calculated has the bits of the float functions, and is rounded
   once at the end. The codecs come from codecs.h. */
#include "codecs.h"
#include "test.h"

#include <stdlib.h>

/* Rounding to fp16 and bf16 from its definition, quick enough for many elements: to nearest, ties to even, saturated. */
static uint16_t half_rounded(gcomp_dtype dtype, float x)
{
    const float a = fabsf(x);
    uint32_t u = bits_of(a), most = dtype == GCOMP_BF16 ? 0x7f7f : 0x7bff;
    if (dtype == GCOMP_BF16) u = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    else if (a < 6.103515625e-5f) u = (uint32_t)nearbyintf(a * 16777216.0f); /* subnormal: multiples of 2^-24 */
    else u = ((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10);             /* exponents begin at -14, not at -126 */
    return (uint16_t)((signbit(x) ? 0x8000u : 0u) | (u > most ? most : u));
}

static float half_as_float(gcomp_dtype dtype, uint16_t h)
{
    static float made[65536];
    if (dtype == GCOMP_BF16) return float_of((uint32_t)h << 16);
    for (uint32_t u = made[1] == 0 ? 0 : 65536; u < 65536; u++) {
        const uint32_t exponent = u >> 10 & 31, fraction = u & 1023;
        const float x = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
        made[u] = u & 0x8000 ? -x : x;
    }
    return made[h];
}

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
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    in.key = gcomp_key_make(1, 2, 3, (uint32_t)w);
    in.key.shared = 9;
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = mix(i * WORKERS + w);
        g[i] = some_normal(i + 100000 * w) * (r % 19 == 0 ? 1e-6f : r % 23 == 0 ? 1e5f : r % 29 == 0 ? 0.0f : 1);
    }
    CHECK(gcomp_encode(codec, &in, &exec, payload[w], sizeof payload[w], &lengths[w]) == GCOMP_OK);
    list[w] = payload[w];
}

/* Fills the room for y with finite numbers, whether y begins at an even or an odd address. */
static void fill_room(gcomp_dtype dtype)
{
    static unsigned char made[2][sizeof room];
    unsigned char *of = made[dtype == GCOMP_F16];
    if (!of[0])
        for (size_t j = sizeof room; j-- > 0;) of[j] = (unsigned char)(mix(j) & (dtype == GCOMP_F16 ? 0xbb : 0xbf)) | (j == 0);
    memcpy(room, of, sizeof room);
    memcpy(before, of, sizeof room);
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
    CHECK(gcomp_decode_mean(list, lengths, count, expected, GCOMP_F32, n, &plain) == GCOMP_OK);
    fill_room(dtype);
    CHECK(gcomp_decode_mean(list, lengths, count, room + at, dtype, n, &exec) == GCOMP_OK);
    if (!room_is_right(dtype, at, n)) {
        printf("# mean of %zu, %s, n = %zu, type %d\n", count, text, n, (int)dtype);
        CHECK(0);
    }
}

/* All three functions, on the payloads of the first three workers. */
static void check_codec(const named *c, gcomp_dtype dtype, size_t n, size_t shift)
{
    const size_t at = GUARD + shift, all = GCOMP_SCRATCH(n);
    const int threads = (n + shift) & 1, needs = scratch_of(&c->codec, 1000) != 0, coded = strstr(c->text, "code=") || !strncmp(c->text, "ecsq", 4);
    const gcomp_exec plain = exec_with(0, 0), exec = exec_with(needs ? all : 0, threads);
    static const float weights[] = {1, -0.25f, 3e38f};
    CHECK(gcomp_decode(payload[0], lengths[0], expected, GCOMP_F32, n, &plain) == GCOMP_OK);
    fill_room(dtype);
    CHECK(gcomp_decode(payload[0], lengths[0], room + at, dtype, n, &exec) == GCOMP_OK);
    CHECK(room_is_right(dtype, at, n));
    for (size_t k = 0; k < 3; k++) {
        fill_room(dtype);
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, room + at + 2 * i, 2);
            expected[i] = half_as_float(dtype, h);
        }
        CHECK(gcomp_decode_add(payload[1], lengths[1], weights[k], expected, GCOMP_F32, n, &plain) == GCOMP_OK);
        CHECK(gcomp_decode_add(payload[1], lengths[1], weights[k], room + at, dtype, n, &exec) == GCOMP_OK);
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
    static const char *const some[] = {"sign",      "topk:density=0.1", "ecsq",             "vote", "eden:bits=2", "bf16",
                                       "int:bits=4", "int",             "none",                 "topk:density=0.2+int", "mx"};
    static const size_t sizes[] = {1, 17, 513, 65537};
    gcomp_codec codec;
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++)
        for (size_t s = 0; s < 4; s++) {
            const size_t n = sizes[s];
            for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
                const int needs = strchr(some[k], 'k') || strstr(some[k], "eden") || strstr(some[k], "ecsq");
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
        CHECK(gcomp_decode(list[0], lengths[0], expected, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode(list[0], lengths[0], y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
        CHECK(gcomp_decode_add(list[1], lengths[1], 0.3f, expected, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode_add(list[1], lengths[1], 0.3f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
        CHECK(gcomp_decode_mean(list, lengths, 2, expected, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(gcomp_decode_mean(list, lengths, 2, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, expected, 4 * n));
    }
}

/* Calls the three functions; each must return `result` and leave the room as it was. */
static void check_refused(gcomp_result result, const gcomp_exec *exec, size_t count, void *y, gcomp_dtype dtype, size_t n)
{
    CHECK(gcomp_decode(list[0], lengths[0], y, dtype, n, exec) == result);
    CHECK(gcomp_decode_add(list[0], lengths[0], 1, y, dtype, n, exec) == result);
    CHECK(gcomp_decode_mean(list, lengths, count, y, dtype, n, exec) == result);
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
        CHECK(add_checksum(payload[0], lengths[0]) == GCOMP_OK);
        payload[0][lengths[0] - 1] ^= 1;
        check_refused(GCOMP_CHECKSUM_MISMATCH, &full, 2, room, GCOMP_F16, N);
        swapped[0] = payload[1], swapped[1] = payload[0]; /* the last of a mean */
        const size_t swapped_lengths[2] = {lengths[1], lengths[0]};
        CHECK(gcomp_decode_mean(swapped, swapped_lengths, 2, room, GCOMP_BF16, N, &full) == GCOMP_CHECKSUM_MISMATCH);
        CHECK(!memcmp(room, before, sizeof room));
        payload[0][lengths[0] - 1] ^= 1;
        CHECK(gcomp_decode_add(list[0], lengths[0], NAN, room, GCOMP_F16, N, &full) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_decode_mean(list, lengths, 0, room, GCOMP_F16, N, &full) == GCOMP_INVALID_ARGUMENT);
        CHECK(!memcmp(room, before, sizeof room));
        if (scratch_of(&at->codec, N)) { /* a sparse method, or eden */
            const gcomp_exec little = exec_with(4 * N, 0), enough = exec_with(4 * N + 127, 0);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, &none, 2, room, GCOMP_F16, N);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, NULL, 2, room, GCOMP_BF16, N);
            check_refused(GCOMP_SCRATCH_TOO_SMALL, &little, 2, room, GCOMP_BF16, N);
            CHECK(gcomp_decode(list[0], lengths[0], room, GCOMP_BF16, N, &enough) == GCOMP_OK);
            CHECK(gcomp_decode_add(list[0], lengths[0], 1, room, GCOMP_BF16, N, &enough) == GCOMP_OK);
            CHECK(gcomp_decode_mean(list, lengths, 2, room, GCOMP_BF16, N, &enough) == GCOMP_OK);
        } else if (strstr(at->text, "code=") || !strncmp(at->text, "ecsq", 4)) { /* entropy-coded levels: a mean of several needs scratch */
            CHECK(gcomp_decode_mean(list, lengths, 2, room, GCOMP_F16, N, &none) == GCOMP_SCRATCH_TOO_SMALL);
            CHECK(!memcmp(room, before, sizeof room));
        }
    }
}

/* ---------------- objects: one tensor, any transport */

/* Objects have three tensors of about n elements: a vector, a matrix, a stack; and a small vector. */
typedef struct setting {
    size_t world, n;
    gcomp_aggregate aggregate;
    size_t bucket_bytes;
    float scale;
    int measures, threads;
} setting;

enum { TENSORS = 4, GROUP = 3 };

static gcomp_tensor tensor_of(const char *codec, size_t t, size_t n, gcomp_dtype dtype)
{
    static const char *const names[TENSORS] = {"vector", "matrix", "stack", "bias"};
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = names[t];
    tensor.rows = t == 1 ? n / 40 + 1 : t == 2 ? 36 : t == 3 ? 77 : n;
    tensor.cols = t == 1 ? 41 : t == 2 ? n / 72 + 1 : 0;
    tensor.stack = t == 2 ? 2 : 0;
    tensor.dtype = dtype;
    tensor.codec = t == 3 ? NULL : codec;
    return tensor;
}

static gcomp_desc desc_of(const setting *of, size_t rank)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.comm.rank = (int)rank;
    desc.comm.world = (int)of->world;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    desc.aggregate = of->aggregate;
    desc.bucket_bytes = of->bucket_bytes;
    desc.measure = of->measures;
    desc.check_every = of->measures ? 1 : 0;
    desc.isa = isa_now;
    desc.seed = 17;
    if (of->threads) desc.parallel.run = run_backwards;
    return desc;
}

static gcomp *object_of(const setting *of, size_t rank, const char *codec, gcomp_dtype dtype)
{
    const gcomp_desc desc = desc_of(of, rank);
    gcomp *gc;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        const gcomp_tensor tensor = tensor_of(codec, t, of->n, dtype);
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    return gc;
}

/* The gradients of one worker as halves, and what these are as floats. */
typedef struct gradients {
    uint16_t *half[TENSORS];
    float *plain[TENSORS];
    size_t n[TENSORS];
} gradients;

static gradients gradients_of(const gcomp *gc)
{
    gradients g_of;
    for (size_t t = 0; t < TENSORS; t++) {
        g_of.n[t] = tensor_elements(gc, t);
        g_of.half[t] = (uint16_t *)malloc(2 * g_of.n[t]);
        g_of.plain[t] = (float *)malloc(4 * g_of.n[t]);
    }
    return g_of;
}

static void fill_gradient(gradients *to, gcomp_dtype dtype, uint64_t seed, size_t t)
{
    for (size_t i = 0; i < to->n[t]; i++) {
        const float x = some_normal(seed * 1000003 + t * 9973 + i);
        to->half[t][i] = half_rounded(dtype, mix(i + seed) % 37 ? x : x * 3e4f); /* means may saturate with a residual */
        to->plain[t][i] = half_as_float(dtype, to->half[t][i]);
    }
}

static void free_gradients(gradients *g_of)
{
    for (size_t t = 0; t < TENSORS; t++) free(g_of->half[t]), free(g_of->plain[t]);
}

/* Are the halves the floats, rounded; and are the residuals the same? */
static int same_outcome(const gradients *at, gcomp_dtype dtype, const gcomp *floats, const gcomp *halves)
{
    size_t wrong = 0;
    for (size_t t = 0; t < TENSORS; t++) {
        const float *e = tensor_residual(floats, t), *r = tensor_residual(halves, t);
        for (size_t i = 0; i < at->n[t]; i++) wrong += at->half[t][i] != half_rounded(dtype, at->plain[t][i]);
        wrong += (e == NULL) != (r == NULL) || (e && r && memcmp(e, r, 4 * at->n[t]));
        if (wrong) {
            printf("# tensor %zu: %zu wrong\n", t, wrong);
            return 0;
        }
    }
    return 1;
}

/* gcomp_compress and gcomp_commit of halves against those of the same numbers as floats. */
static void check_commit(const char *text, gcomp_dtype dtype, size_t n, size_t count, int own, int threads)
{
    const setting of = {2, n, GCOMP_AGGREGATE_AUTO, 0, 1, 0, threads};
    gcomp *floats = object_of(&of, 0, text, GCOMP_F32), *halves = object_of(&of, 0, text, dtype);
    gradients at = gradients_of(floats);
    for (uint64_t step = 0; step < 2; step++) {
        for (size_t t = 0; t < TENSORS; t++) {
            for (size_t w = count; w-- > 0;) { /* the last one made is number 0, the own */
                const uint64_t key = step * WORKERS + w;
                size_t length = 0;
                fill_gradient(&at, dtype, w ? 7 * key : step, t);
                CHECK(gcomp_compress(floats, t, key, at.plain[t], payload[w], sizeof payload[w], &lengths[w]) == GCOMP_OK);
                CHECK(gcomp_compress(halves, t, key, at.half[t], scratch, sizeof scratch, &length) == GCOMP_OK);
                CHECK(length == lengths[w] && !memcmp(payload[w], scratch, length));
                list[w] = payload[w];
            }
            CHECK(gcomp_commit(floats, t, at.plain[t], own ? list[0] : NULL, lengths[0], list, lengths, count) == GCOMP_OK);
            CHECK(gcomp_commit(halves, t, at.half[t], own ? list[0] : NULL, lengths[0], list, lengths, count) == GCOMP_OK);
            for (size_t k = 0; k < TENSORS; k++)
                if (k != t) at.n[k] = 0;
            if (!same_outcome(&at, dtype, floats, halves)) {
                printf("# %s, n = %zu, type %d, %zu payloads, own %d\n", text, n, (int)dtype, count, own);
                CHECK(0);
            }
            for (size_t k = 0; k < TENSORS; k++) at.n[k] = tensor_elements(floats, k);
        }
    }
    free_gradients(&at);
    gcomp_close(floats);
    gcomp_close(halves);
}

static int is_listed_with_steps(const char *text)
{
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (!strcmp(codec_list[c].text, text)) return codec_list[c].steps;
    return 0;
}

static void test_compress_and_commit_of_halves_are_those_of_floats_rounded(void)
{
    static const size_t counts[] = {1, 2, 3, 8, 9, WORKERS};
    for (size_t c = 0; c < codec_count; c++) {
        const size_t more = is_listed_with_steps(codecs[c].text) || test_is_long() ? 6 : 2;
        for (size_t k = 0; k < more; k++) {
            const gcomp_dtype dtype = (c + k) & 1 ? GCOMP_F16 : GCOMP_BF16;
            check_commit(codecs[c].text, dtype, 1031, counts[k], k != 2, k & 1);
        }
        if (more == 6) check_commit(codecs[c].text, GCOMP_BF16, 65536 + 77, 2, 1, 0);
    }
}

/* A commit that fails leaves gradient and residual of a half-precision tensor as they were. */
static void test_a_failed_commit_leaves_half_gradients_as_they_were(void)
{
    const setting of = {2, 1031, GCOMP_AGGREGATE_AUTO, 0, 1, 0, 0};
    for (size_t c = 0; c < codec_count; c++)
        for (size_t k = 0; k < 4; k++) {
            test_heap heap = {SIZE_MAX, 0, 0, 0};
            gcomp_desc desc = desc_of(&of, 0);
            const gcomp_tensor tensor = tensor_of(codecs[c].text, 1, of.n, GCOMP_F16);
            gcomp *gc;
            gcomp_result result;
            size_t length = 0;
            static uint16_t half[2 * 1031], kept[2 * 1031];
            desc.allocator = heap_of(&heap);
            CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
            const size_t n = tensor_elements(gc, 0);
            for (size_t i = 0; i < n; i++) half[i] = half_rounded(GCOMP_F16, normal(i));
            encode(&codecs[c].codec, 0, n);
            encode(&codecs[c].codec, 1, n);
            memcpy(kept, half, sizeof half);
            if (k == 0) lengths[1]--; /* cut short */
            if (k == 1) heap.left = 0; /* no memory for floats, where they are needed */
            if (k == 2) half[n / 2] = kept[n / 2] = 0x7c00; /* nothing was sent, and the gradient is infinite */
            result = gcomp_commit(gc, 0, half, k == 2 ? NULL : list[0], lengths[0], list, lengths, 2);
            if (k == 0) CHECK(result == GCOMP_TRUNCATED);
            if (k == 1) CHECK(result == GCOMP_OK || result == GCOMP_OUT_OF_MEMORY);
            if (k == 1 && scratch_of(&codecs[c].codec, n)) CHECK(result == GCOMP_OUT_OF_MEMORY);
            if (k == 2) CHECK(result == (tensor_residual(gc, 0) ? GCOMP_NOT_FINITE : GCOMP_OK));
            if (k == 3) CHECK(result == GCOMP_OK);
            CHECK((result == GCOMP_OK) != !memcmp(half, kept, sizeof half));
            for (size_t i = 0; tensor_residual(gc, 0) && result != GCOMP_OK && i < n; i++)
                CHECK(tensor_residual(gc, 0)[i] == 0);
            if (k == 3 && tensor_residual(gc, 0)) { /* a refusal is a payload */
                half[1] = 0x7c01;
                CHECK(gcomp_compress(gc, 0, 1, half, scratch, sizeof scratch, &length) == GCOMP_NOT_FINITE && length == 32);
            }
            gcomp_close(gc);
            CHECK(heap.blocks == 0);
        }
}

/* ---------------- steps */

static size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* Carries out one request of all workers. */
static void carry(const gcomp_request *r, size_t world)
{
    for (size_t w = 1; w < world && request_is_a_reduction(r); w++) plain_reduce(&r[0], &r[w]);
    for (size_t w = 1; w < world && request_is_a_reduction(r); w++)
        memcpy(r[w].recv, r[0].recv, r[0].count * bytes_of_dtype(r[0].dtype));
    for (size_t w = 0; w < world && !request_is_a_reduction(r); w++)
        for (size_t from = 0; from < world; from++) {
            const int all = r[w].kind == GCOMP_ALLTOALL;
            memcpy((uint8_t *)r[w].recv + (all ? sum_to(r[w].bytes, from) : from * r[w].stride),
                   (const uint8_t *)r[from].send + (all ? sum_to(r[from].send_bytes, w) : 0), r[w].bytes[from]);
        }
}

/* A step of all workers. halves: their gradients are at[w].half, else at[w].plain. Tensor `skipped` has none. */
static void take_step(gcomp **gc, gradients *at, const setting *of, int halves, size_t skipped)
{
    gcomp_request r[GROUP];
    gcomp_step step;
    int done = 0;
    step = default_step();
    step.scale = of->scale;
    for (size_t w = 0; w < of->world; w++) {
        CHECK(gcomp_step_begin(gc[w], &step) == GCOMP_OK);
        for (size_t t = TENSORS; t-- > 0;) {
            void *grad = halves ? (void *)at[w].half[t] : at[w].plain[t];
            CHECK(gcomp_step_ready(gc[w], t, t == skipped ? NULL : grad) == GCOMP_OK);
        }
    }
    while (!done && !test_errors) {
        for (size_t w = 0; w < of->world; w++) CHECK(gcomp_step_next(gc[w], &r[w]) == GCOMP_OK);
        done = r[0].kind == GCOMP_DONE;
        if (done || test_errors) break;
        CHECK(r[0].kind != GCOMP_WAIT);
        carry(r, of->world);
        for (size_t w = 0; w < of->world; w++) CHECK(gcomp_step_done(gc[w], r[w].id, 0) == GCOMP_OK);
    }
    for (size_t w = 0; w < of->world; w++) CHECK(gcomp_step_commit(gc[w]) == GCOMP_OK);
}

static void check_steps(const char *text, gcomp_dtype dtype, const setting *of)
{
    gcomp *floats[GROUP], *halves[GROUP];
    gradients at[GROUP];
    const gcomp_desc desc = desc_of(of, 0);
    const gcomp_tensor tensor = tensor_of(text, 1, of->n, dtype);
    gcomp_round rounds[GCOMP_ROUNDS];
    if (gcomp_rounds(&desc, &tensor, 1, NULL, rounds) != GCOMP_OK) {
        CHECK(of->aggregate == GCOMP_AGGREGATE_SCATTER); /* which refuses some codecs */
        return;
    }
    for (size_t w = 0; w < of->world; w++) {
        floats[w] = object_of(of, w, text, GCOMP_F32);
        halves[w] = object_of(of, w, text, dtype);
        at[w] = gradients_of(floats[w]);
    }
    for (uint64_t step = 0; step < 3 && !test_errors; step++) {
        const size_t skipped = step == 1 ? 0 : TENSORS; /* none but in step 1 */
        for (size_t w = 0; w < of->world; w++)
            for (size_t t = 0; t < TENSORS; t++) fill_gradient(&at[w], dtype, 10 * step + w, t);
        take_step(floats, at, of, 0, skipped);
        take_step(halves, at, of, 1, skipped);
        for (size_t w = 0; w < of->world; w++)
            if (!same_outcome(&at[w], dtype, floats[w], halves[w])) {
                printf("# %s, n = %zu, type %d, worker %zu of %zu, form %d, buckets %zu, step %d\n", text, of->n, (int)dtype, w,
                       of->world, (int)of->aggregate, of->bucket_bytes, (int)step);
                CHECK(0);
            }
    }
    for (size_t w = 0; w < of->world; w++) {
        gcomp_statistics a, b;
        CHECK(gcomp_stats(floats[w], &a) == GCOMP_OK && gcomp_stats(halves[w], &b) == GCOMP_OK);
        CHECK(a.relative_error == b.relative_error && a.residual_norm == b.residual_norm);
        if (dtype == GCOMP_BF16) CHECK(fabs(a.mean_norm - b.mean_norm) <= 0.01 * a.mean_norm); /* fp16 saturates */
        free_gradients(&at[w]);
        gcomp_close(floats[w]);
        gcomp_close(halves[w]);
    }
}

static void test_steps_of_halves_are_those_of_floats_rounded(void)
{
    static const setting settings[] = {
        {2, 1500, GCOMP_AGGREGATE_GATHER, 0, 1, 0, 0},      {3, 1500, GCOMP_AGGREGATE_TWO_SHOT, 0, 0.5f, 1, 1},
        {1, 1500, GCOMP_AGGREGATE_GATHER, 0, 1, 1, 0},      {3, 1500, GCOMP_AGGREGATE_GATHER, 3000, 1, 1, 0},
        {3, 1500, GCOMP_AGGREGATE_SCATTER, 0, 1, 1, 0},     {3, 40000, GCOMP_AGGREGATE_SHARDS, 9000, -2, 0, 0},
        {2, 65536 + 400, GCOMP_AGGREGATE_GATHER, 0, 1, 0, 1}};
    for (size_t c = 0; c < ALL_CODECS; c++)
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            if (k >= 5 && !codec_list[c].steps) continue;
            if (k && !codec_list[c].steps && (c + k) % 3 && !test_is_long()) continue;
            if (test_is_slow() && (c + k) % 4) continue;
            check_steps(codec_list[c].text, (c + k) & 1 ? GCOMP_F16 : GCOMP_BF16, &settings[k]);
        }
}

/* A list of codecs takes room for each of them; objects of the same tensors as floats have as much memory, but for the floats of
   the largest tensor whose mean is made in floats. */
static void test_half_tensors_take_one_buffer_of_floats_and_no_more(void)
{
    static const char *const with_floats[] = {"topk:density=0.1", "eden", "powersgd", "randomk", "qsgd:code=entropy", "sketch", "intsum"};
    static const char *const without[] = {"sign", "int", "bf16:rounding=stochastic", "mx", "vote", "none", "onebit"};
    const setting of = {2, 3000, GCOMP_AGGREGATE_GATHER, 0, 1, 0, 0};
    for (size_t k = 0; k < 14; k++) {
        const char *text = k < 7 ? with_floats[k] : without[k - 7];
        gcomp *floats = object_of(&of, 0, text, GCOMP_F32), *halves = object_of(&of, 0, text, GCOMP_BF16);
        const gcomp_desc desc = desc_of(&of, 0);
        gcomp_tensor tensors[TENSORS];
        size_t most = 0;
        for (size_t t = 0; t < TENSORS; t++) {
            tensors[t] = tensor_of(text, t, of.n, GCOMP_BF16);
            if (tensor_elements(halves, t) > most) most = tensor_elements(halves, t);
        }
        CHECK(gcomp_prepare(floats) == GCOMP_OK && gcomp_prepare(halves) == GCOMP_OK);
        const size_t more = memory_of(halves) - memory_of(floats);
        CHECK(memory_of(halves) == gcomp_memory_needed(&desc, tensors, TENSORS));
        if (k < 7) CHECK(more > 0 && more <= (4 * most + 63) / 64 * 64);
        else CHECK(more == 0);
        if (k < 7 && more == 0) printf("# %s\n", text);
        gcomp_close(floats);
        gcomp_close(halves);
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
        RUN(test_compress_and_commit_of_halves_are_those_of_floats_rounded);
        RUN(test_a_failed_commit_leaves_half_gradients_as_they_were);
        RUN(test_steps_of_halves_are_those_of_floats_rounded);
        RUN(test_half_tensors_take_one_buffer_of_floats_and_no_more);
    }
    return test_end();
}
