/* Proves what every codec that writes payloads must do at its edges, whatever its method. The
   codecs come from codecs.h. Nothing here knows what a method sends, except for the index streams
   of topk, which are made by hand. */
#include "codecs.h"
#include "test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { LARGE = (1 << 20) + 3 };
enum { SMALL = 67, GUARD = 4 };

typedef struct named {
    char text[80];
    gcomp_codec codec;
} named;

static named codecs[ALL_CODECS];
static size_t codec_count;
static gcomp_isa isa_now;
static size_t large; /* elements of the large tensors: LARGE in the long run, else fewer */

static float g[LARGE], e[LARGE], p[LARGE], d[LARGE], y[LARGE];
static uint16_t half[LARGE];
static uint8_t payload[GCOMP_BOUND(LARGE)], second[GCOMP_BOUND(LARGE)], scratch[GCOMP_SCRATCH(LARGE)];

/* ---------------- numbers */

static uint64_t mixed(uint64_t i)
{
    uint64_t x = (i + 11) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
}

static float widened(gcomp_dtype dtype, size_t i)
{
    uint32_t h = half[i], exponent = h >> 10 & 31, fraction = h & 1023;
    float x;
    if (dtype == GCOMP_F32) return g[i];
    if (dtype == GCOMP_BF16) return float_of(h << 16);
    if (exponent == 31) x = fraction ? NAN : INFINITY;
    else x = exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
    return h & 0x8000u ? -x : x;
}

/* Gradient in g or half, residual in e: zeros of both signs, subnormals and large numbers among
   normal ones. */
static void fill(gcomp_dtype dtype, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = mixed(seed + 3 * i);
        uint32_t bits;
        g[i] = some_normal(seed + i);
        if (r % 13 == 0) g[i] = r & 64 ? 0.0f : -0.0f;
        if (r % 17 == 0) g[i] *= 1e-40f;
        if (r % 101 == 0) g[i] *= 1e30f;
        memcpy(&bits, g + i, 4);
        if (dtype == GCOMP_BF16) half[i] = (uint16_t)(bits >> 16);
        if (dtype == GCOMP_F16) half[i] = (uint16_t)((r >> 40 & 0x7fff) % 0x7c00 | (r >> 20 & 0x8000));
        e[i] = r % 11 == 0 ? -0.0f : some_normal(seed + 31337 + i) * 0.1f;
    }
}

static gcomp_input input_of(const void *grad, size_t n, gcomp_dtype dtype, float scale, const float *residual)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = grad;
    in.dtype = dtype;
    in.scale = scale;
    in.residual = residual;
    in.rows = n;
    in.key = gcomp_key_make(5, 6, 7, 8);
    return in;
}

static gcomp_exec exec_of(gcomp_isa isa)
{
    gcomp_exec exec = {isa, scratch, sizeof scratch, {NULL, NULL}};
    return exec;
}

/* Encodes a plain vector; 0 and a failed check if that is refused. */
static size_t encode_plain(const gcomp_codec *codec, const float *x, size_t n, gcomp_isa isa, void *to)
{
    gcomp_exec exec = exec_of(isa);
    gcomp_input in = input_of(x, n, GCOMP_F32, 1, NULL);
    size_t length = 0;
    gcomp_result result = gcomp_encode(codec, &in, &exec, to, gcomp_bound(codec, n, NULL), &length);
    CHECK(result == GCOMP_OK);
    return result == GCOMP_OK ? length : 0;
}

/* ---------------- the codecs */

static void test_codecs_with_a_payload_are_listed(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        named *to = codecs + codec_count;
        if (!codec_has_payload(codec_list[c].text)) continue;
        if (test_is_slow() && c % 3) continue; /* each costs seconds there */
        CHECK(gcomp_codec_parse(&to->codec, codec_list[c].text, NULL, 0) == GCOMP_OK);
        snprintf(to->text, sizeof to->text, "%s", codec_list[c].text);
        codec_count++;
    }
    CHECK(codec_count > (test_is_slow() ? 40 : 100));
}

/* Behind the last parameter of each codec, whatever its value ends with. */
static void test_a_plus_begins_a_value_method_or_is_refused_as_such(void)
{
    size_t pairs = 0;
    gcomp_codec codec, same;
    CHECK(!gcomp_codec_parse(&codec, "strom:threshold=1+int", NULL, 0));
    CHECK(!gcomp_codec_parse(&same, "strom:threshold=1e+0+int", NULL, 0) && !memcmp(&same, &codec, sizeof codec));
    for (size_t c = 0; c < ALL_CODECS; c++) {
        char text[200], again[200], why[200] = "";
        gcomp_result result;
        if (strchr(codec_list[c].text, '+')) continue;
        snprintf(text, sizeof text, "%s+int:bits=4", codec_list[c].text);
        result = gcomp_codec_parse(&codec, text, why, sizeof why);
        CHECK(!result || !strncmp(why, "only a sparse method takes another behind a plus", 48));
        if (result) continue;
        pairs++;
        CHECK(gcomp_codec_format(&codec, again, sizeof again) < sizeof again);
        CHECK(!gcomp_codec_parse(&same, again, NULL, 0) && !memcmp(&same, &codec, sizeof codec));
    }
    CHECK(pairs > 15);
}

/* ---------------- inputs */

/* One gradient of a dtype, scaled and with or without a residual, against the vector p that it
   means. */
static void check_input(gcomp_dtype dtype, float scale, int feedback, size_t n)
{
    const void *grad = dtype == GCOMP_F32 ? (const void *)g : half;
    fill(dtype, n, n);
    for (size_t i = 0; i < n; i++) {
        volatile float scaled = scale * widened(dtype, i);
        p[i] = feedback ? scaled + e[i] : scaled;
    }
    for (size_t c = 0; c < codec_count; c++) {
        const gcomp_codec *codec = &codecs[c].codec;
        gcomp_exec exec = exec_of(isa_now);
        gcomp_input in = input_of(grad, n, dtype, scale, feedback ? e : NULL);
        size_t length = encode_plain(codec, p, n, isa_now, payload), other = 0, wrong = 0;
        CHECK(gcomp_encode(codec, &in, &exec, second, gcomp_bound(codec, n, NULL), &other) == GCOMP_OK);
        if ((length != other || memcmp(payload, second, length)) && strncmp(codecs[c].text, "adacomp", 7))
            printf("# %s: dtype %d, scale %g, n %zu\n", codecs[c].text, (int)dtype, (double)scale, n);
        if (feedback && !strncmp(codecs[c].text, "adacomp", 7)) { /* looks at the gradient alone too */
            memcpy(payload, second, other);
            length = other;
        }
        CHECK(length == other && !memcmp(payload, second, length));
        CHECK(gcomp_decode(payload, length, d, GCOMP_F32, n, &exec) == GCOMP_OK);
        if (feedback) memcpy(y, e, 4 * n);
        else memset(y, 0, 4 * n);
        CHECK(gcomp_retain(payload, length, &in, y, &exec) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) wrong += !(y[i] == p[i] - d[i]);
        if (wrong) printf("# %s: %zu wrong of %zu, dtype %d\n", codecs[c].text, wrong, n, (int)dtype);
        CHECK(wrong == 0);
    }
}

static void test_any_dtype_scale_and_residual_encode_and_retain_as_the_vector_they_mean(void)
{
    static const size_t sizes[] = {1, 17, 1009, 4099};
    static const float scales[] = {1, 0.5f, -3, 0};
    for (int dtype = GCOMP_F32; dtype <= GCOMP_BF16; dtype++) {
        for (size_t k = 0; k < 4; k++)
            for (int feedback = 0; feedback < 2; feedback++)
                for (size_t s = 0; s < 4; s++) check_input((gcomp_dtype)dtype, scales[k], feedback, sizes[s]);
        check_input((gcomp_dtype)dtype, -3, 1, 65536 + 5);
    }
}

/* The same calls with every pointer moved: those to bytes by `shift` bytes, those to floats by
   as many floats. */
static void check_shifted(const named *of, size_t n, size_t shift)
{
    static char grad[4 * LARGE];
    static float old[LARGE], out[LARGE];
    gcomp_exec plain = exec_of(isa_now), moved = {isa_now, scratch + shift, sizeof scratch - shift, {NULL, NULL}};
    gcomp_input in = input_of(g, n, GCOMP_F32, 0.5f, e);
    const void *pair[2] = {payload, payload}, *moved_pair[2] = {second + shift, second + shift};
    size_t length = 0, other = 0, lengths[2];
    float *to = out + shift;
    CHECK(gcomp_encode(&of->codec, &in, &plain, payload, sizeof payload, &length) == GCOMP_OK);
    memcpy(grad + shift, g, 4 * n);
    memcpy(old + shift, e, 4 * n);
    in.grad = grad + shift;
    in.residual = old + shift;
    CHECK(gcomp_encode(&of->codec, &in, &moved, second + shift, gcomp_bound(&of->codec, n, NULL), &other) == GCOMP_OK);
    CHECK(length == other && !memcmp(payload, second + shift, length));
    lengths[0] = lengths[1] = length;
    CHECK(add_checksum(payload, length) == GCOMP_OK && add_checksum(second + shift, length) == GCOMP_OK);
    CHECK(!memcmp(payload, second + shift, length));
    CHECK(gcomp_decode(payload, length, d, GCOMP_F32, n, &plain) == GCOMP_OK);
    CHECK(gcomp_decode(second + shift, length, to, GCOMP_F32, n, &moved) == GCOMP_OK && !memcmp(to, d, 4 * n));
    CHECK(gcomp_decode_add(payload, length, 0.25f, d, GCOMP_F32, n, &plain) == GCOMP_OK);
    CHECK(gcomp_decode_add(second + shift, length, 0.25f, to, GCOMP_F32, n, &moved) == GCOMP_OK && !memcmp(to, d, 4 * n));
    CHECK(gcomp_decode_mean(pair, lengths, 2, d, GCOMP_F32, n, &plain) == GCOMP_OK);
    CHECK(gcomp_decode_mean(moved_pair, lengths, 2, to, GCOMP_F32, n, &moved) == GCOMP_OK && !memcmp(to, d, 4 * n));
    memcpy(d, e, 4 * n);
    memcpy(to, e, 4 * n);
    CHECK(gcomp_retain(second + shift, length, &in, to, &moved) == GCOMP_OK);
    in.grad = g;
    CHECK(gcomp_retain(payload, length, &in, d, &plain) == GCOMP_OK && !memcmp(to, d, 4 * n));
}

static void test_bytes_and_floats_at_any_address_give_the_same_bits(void)
{
    static const size_t sizes[] = {1, 16, SMALL, 1009, 65536 + 5};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        fill(GCOMP_F32, sizes[s], s);
        for (size_t c = 0; c < codec_count; c++)
            for (size_t shift = sizes[s] < large / 2 ? 1 : 3; shift <= 3; shift++) check_shifted(codecs + c, sizes[s], shift);
    }
}

static const float not_numbers[] = {NAN, INFINITY, -INFINITY};

/* One encode that must be refused, and what may be done with the refusal. good: a valid payload
   of as many elements. */
static void check_refusal(const gcomp_codec *codec, const gcomp_input *in, size_t n, const void *good, size_t good_length)
{
    gcomp_exec exec = exec_of(isa_now);
    const void *payloads[3] = {good, payload, good};
    size_t lengths[3] = {good_length, 0, good_length}, length = 0, changed = 0;
    gcomp_info info;
    for (size_t i = 0; i < n; i++) y[i] = 7;
    CHECK(gcomp_encode(codec, in, &exec, payload, gcomp_bound(codec, n, NULL), &length) == GCOMP_NOT_FINITE && length == 32);
    for (int seal = 0; seal < 2; seal++) {
        if (seal) CHECK(add_checksum(payload, length) == GCOMP_OK);
        CHECK(gcomp_check(payload, length, n) == GCOMP_NOT_FINITE);
        CHECK(gcomp_peek(payload, length, &info) == GCOMP_OK && info.refused == 1 && info.count == n && info.length == 32);
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_NOT_FINITE);
        CHECK(gcomp_decode_add(payload, length, 1, y, GCOMP_F32, n, &exec) == GCOMP_NOT_FINITE);
        CHECK(gcomp_retain(payload, length, in, y, &exec) == GCOMP_NOT_FINITE);
        for (size_t at = 0; at < 3; at++) {
            payloads[0] = payloads[1] = payloads[2] = good;
            lengths[0] = lengths[1] = lengths[2] = good_length;
            payloads[at] = payload;
            lengths[at] = length;
            CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) == GCOMP_NOT_FINITE);
        }
    }
    for (size_t i = 0; i < n; i++) changed += !(y[i] == 7);
    CHECK(changed == 0);
}

static void check_not_finite(const gcomp_codec *codec, size_t n)
{
    size_t good = encode_plain(codec, g, n, isa_now, second);
    for (size_t k = 0; k < 9; k++) {
        size_t at = k / 3 == 0 ? 0 : k / 3 == 1 ? n / 2 : n - 1;
        float bad = not_numbers[k % 3];
        uint32_t bits;
        gcomp_input in = input_of(p, n, GCOMP_F32, k & 1 ? 0.5f : 1, NULL);
        memcpy(p, g, 4 * n);
        p[at] = bad;
        check_refusal(codec, &in, n, second, good);
        in.residual = e;
        check_refusal(codec, &in, n, second, good);
        in.grad = g;
        in.residual = p;
        check_refusal(codec, &in, n, second, good);
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
            memcpy(&bits, &bad, 4);
            memset(half, 0, 2 * n);
            half[at] = (uint16_t)(dtype == GCOMP_BF16 ? bits >> 16 : (bits >> 16 & 0x8000u) | (k % 3 ? 0x7c00u : 0x7c01u));
            in = input_of(half, n, (gcomp_dtype)dtype, k & 1 ? 0.5f : 1, k & 2 ? e : NULL);
            check_refusal(codec, &in, n, second, good);
        }
        memcpy(p, g, 4 * n); /* finite, but the sum or the product is not */
        p[at] = 3e38f;
        in = input_of(p, n, GCOMP_F32, k & 1 ? 3 : -3, NULL);
        check_refusal(codec, &in, n, second, good);
        in = input_of(p, n, GCOMP_F32, 1, p);
        check_refusal(codec, &in, n, second, good);
    }
}

/* Takes what was sent out of a gradient or a residual that has one bad element. */
static void check_retain(const float *grad, gcomp_dtype dtype, float scale, float *residual, size_t n, size_t length)
{
    gcomp_exec exec = exec_of(isa_now);
    gcomp_input in = input_of(dtype == GCOMP_F32 ? (const void *)grad : half, n, dtype, scale, NULL);
    memcpy(y, residual, 4 * n);
    for (int way = 0; way < 2; way++) {
        if (way) exec.parallel.run = run_backwards;
        CHECK(gcomp_retain(second, length, &in, residual, &exec) == GCOMP_NOT_FINITE && !memcmp(y, residual, 4 * n));
    }
}

static void test_retain_refuses_what_is_not_finite_and_changes_nothing(void)
{
    static const size_t sizes[] = {1, 16, 17, 1000, 65536 + 5};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t c = 0; c < codec_count; c++) {
            const size_t n = sizes[s];
            size_t length;
            fill(GCOMP_F32, n, c);
            length = encode_plain(&codecs[c].codec, g, n, isa_now, second);
            memset(half, 0, 2 * n);
            memset(d, 0, 4 * n);
            for (size_t k = 0; k < 9; k++) {
                const size_t at = k / 3 == 0 ? 0 : k / 3 == 1 ? n / 2 : n - 1;
                const float bad = not_numbers[k % 3], good = g[at], scale = k & 1 ? 0.5f : 1;
                uint32_t bits;
                memcpy(&bits, &bad, 4);
                g[at] = bad;
                check_retain(g, GCOMP_F32, scale, d, n, length);
                g[at] = good;
                d[at] = bad;
                check_retain(g, GCOMP_F32, scale, d, n, length);
                for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
                    check_retain(NULL, (gcomp_dtype)dtype, scale, d, n, length);
                    d[at] = 0;
                    half[at] = (uint16_t)(dtype == GCOMP_BF16 ? bits >> 16 : (bits >> 16 & 0x8000u) | (k % 3 ? 0x7c00u : 0x7c01u));
                    check_retain(NULL, (gcomp_dtype)dtype, scale, d, n, length);
                    half[at] = 0;
                    d[at] = bad;
                }
                d[at] = 0;
            }
        }
}

static float saturated(float x) { return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x; }

/* An object with one tensor of n elements, and a residual of `rest` each. */
static gcomp *object_of(const char *codec, size_t n, float rest, size_t world)
{
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.isa = isa_now;
    desc.comm.world = (int)world;
    tensor.name = "w";
    tensor.rows = n;
    tensor.codec = codec;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) p[i] = rest;
    CHECK(gcomp_commit(gc, 0, p, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
    return gc;
}

/* The payload says -f where the gradient is f, with a residual of f or 0: what is left is more
   than a float holds. retain and all ways to commit make the largest float of it. */
static void test_residuals_saturate(void)
{
    enum { MOST = 9 };
    static const size_t sizes[] = {1, 17, 1000};
    for (size_t s = 0; s < 3; s++)
        for (size_t c = 0; c < codec_count; c++)
            for (int negative = 0; negative < 2; negative++) {
                const size_t n = sizes[s];
                const float f = negative ? -3e38f : 3e38f, decay = codec_decay(codecs[c].text);
                const void *payloads[MOST];
                size_t lengths[MOST], length, wrong = 0;
                gcomp_exec exec = exec_of(isa_now);
                gcomp_input in = input_of(g, n, GCOMP_F32, 1, NULL);
                for (size_t i = 0; i < n; i++) g[i] = -f;
                length = encode_plain(&codecs[c].codec, g, n, isa_now, second);
                for (size_t w = 0; w < MOST; w++) payloads[w] = second, lengths[w] = length;
                CHECK(gcomp_decode(second, length, d, GCOMP_F32, n, &exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) g[i] = f, e[i] = i % 3 ? f : 0;
                for (int scaled = 0; scaled < 2; scaled++) {
                    in.scale = scaled ? 2 : 1;
                    memcpy(y, e, 4 * n);
                    CHECK(gcomp_retain(second, length, &in, y, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) wrong += y[i] != saturated(saturated(in.scale * f + e[i]) - d[i]);
                }
                for (size_t count = 0; count <= MOST; count++) {
                    gcomp *gc = object_of(codecs[c].text, n, f, 2);
                    const float *rest = tensor_residual(gc, 0);
                    const void *own = count & 1 ? payload : second;
                    memcpy(payload, second, length); /* the same bytes, but none of those at hand */
                    memcpy(y, g, 4 * n);
                    CHECK(gcomp_commit(gc, 0, y, own, length, payloads, lengths, count) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) {
                        const float left = decay * saturated(saturated(f + decay * f) - d[i]);
                        wrong += !isfinite(y[i]) || (rest && rest[i] != left);
                    }
                    for (int twice = 0; rest && twice < 2; twice++)
                        CHECK(gcomp_give_back(gc, 0, second, length) == GCOMP_OK);
                    for (size_t i = 0; rest && i < n; i++) wrong += !isfinite(rest[i]);
                    gcomp_close(gc);
                }
                if (wrong) printf("# %s: %zu wrong of %zu\n", codecs[c].text, wrong, n);
                CHECK(wrong == 0);
            }
}

static void test_a_commit_of_nothing_refuses_what_is_not_finite_and_saturates(void)
{
    static const size_t sizes[] = {1, 16, 17, 1000, 65536 + 5};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t c = 0; c < codec_count; c++) {
            const size_t n = sizes[s];
            const float decay = codec_decay(codecs[c].text);
            gcomp *gc = object_of(codecs[c].text, n, -3e38f, 1);
            const float *rest = tensor_residual(gc, 0);
            const void *own = second;
            gcomp_statistics stats;
            size_t length, wrong = 0;
            fill(GCOMP_F32, n, c);
            length = encode_plain(&codecs[c].codec, g, n, isa_now, second);
            memcpy(y, g, 4 * n);
            for (size_t k = 0; rest && k < 9; k++) {
                const size_t at = k / 3 == 0 ? 0 : k / 3 == 1 ? n / 2 : n - 1;
                memcpy(p, rest, 4 * n);
                y[at] = not_numbers[k % 3];
                memcpy(d, y, 4 * n);
                CHECK(gcomp_commit(gc, 0, y, NULL, 0, &own, &length, k % 2) == GCOMP_NOT_FINITE && gcomp_error(gc)[0]);
                CHECK(!memcmp(p, rest, 4 * n) && !memcmp(d, y, 4 * n));
                CHECK(gcomp_stats(gc, &stats) == GCOMP_OK && stats.not_finite == k + 1);
                y[at] = g[at];
            }
            if (!rest) y[0] = NAN; /* it is not read */
            CHECK(gcomp_commit(gc, 0, y, NULL, 0, &own, &length, 1) == GCOMP_OK && isfinite(y[0]));
            for (size_t i = 0; i < n; i++) y[i] = -3e38f;
            for (size_t i = 0; i < n; i++) p[i] = rest ? rest[i] : 0;
            CHECK(gcomp_commit(gc, 0, y, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
            for (size_t i = 0; rest && i < n; i++) wrong += rest[i] != decay * saturated(-3e38f + p[i]);
            CHECK(wrong == 0);
            gcomp_close(gc);
        }
}

static void test_an_element_that_is_not_finite_gives_a_refusal_that_changes_nothing(void)
{
    static const size_t sizes[] = {1, 15, 16, 17, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t i = 0; i < sizes[s]; i++) {
            g[i] = normal(i);
            e[i] = normal(i + 5000);
        }
        for (size_t c = 0; c < codec_count; c++) check_not_finite(&codecs[c].codec, sizes[s]);
    }
}

/* ---------------- sizes */

/* This instruction set, alone and with tasks in reverse order, against scalar code. */
static void check_size(const named *of, size_t n)
{
    gcomp_exec scalar = exec_of(GCOMP_ISA_SCALAR), execs[2];
    gcomp_input in = input_of(g, n, GCOMP_F32, 1, e);
    const void *pair[2] = {payload, payload};
    size_t length = 0, bound = gcomp_bound(&of->codec, n, NULL), lengths[2];
    CHECK(gcomp_encode(&of->codec, &in, &scalar, payload, bound, &length) == GCOMP_OK);
    CHECK(length <= bound && bound <= GCOMP_BOUND(n) && scratch_of(&of->codec, n) <= GCOMP_SCRATCH(n));
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    lengths[0] = lengths[1] = length;
    execs[0] = execs[1] = exec_of(isa_now);
    execs[1].parallel.run = run_backwards;
    for (int k = 0; k < 2; k++) {
        size_t other = 0;
        CHECK(gcomp_encode(&of->codec, &in, execs + k, second, bound, &other) == GCOMP_OK);
        CHECK(length == other && !memcmp(payload, second, length));
    }
    CHECK(gcomp_decode(payload, length, d, GCOMP_F32, n, &scalar) == GCOMP_OK);
    for (int k = 0; k < 2; k++) CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, execs + k) == GCOMP_OK && !memcmp(y, d, 4 * n));
    CHECK(gcomp_decode_mean(pair, lengths, 2, d, GCOMP_F32, n, &scalar) == GCOMP_OK);
    CHECK(gcomp_decode_mean(pair, lengths, 2, y, GCOMP_F32, n, execs + 1) == GCOMP_OK && !memcmp(y, d, 4 * n));
    memcpy(d, e, 4 * n);
    memcpy(y, e, 4 * n);
    CHECK(gcomp_retain(payload, length, &in, d, &scalar) == GCOMP_OK);
    CHECK(gcomp_retain(payload, length, &in, y, execs + 1) == GCOMP_OK && !memcmp(y, d, 4 * n));
}

static void check_sizes(size_t from, size_t to)
{
    fill(GCOMP_F32, to, 12345);
    for (size_t n = from; n <= to; n++)
        for (size_t c = 0; c < codec_count; c++) check_size(codecs + c, n);
}

static void test_no_element_and_one_element_are_the_same_on_scalar_code_and_backwards(void) { check_sizes(0, 1); }
static void test_few_elements_are_the_same_on_scalar_code_and_backwards(void) { check_sizes(2, 70); }

static void test_many_chunks_are_the_same_on_scalar_code_and_backwards(void)
{
    static float once[LARGE];
    for (size_t i = 0; i < large && once[large - 1] == 0; i++) once[i] = normal(i);
    for (size_t i = 0; i < large; i++) {
        g[i] = once[i];
        e[i] = once[large - 1 - i] * 0.25f;
    }
    for (size_t c = 0; c < codec_count; c++) check_size(codecs + c, large);
}

/* ---------------- means */

static void test_the_mean_of_payloads_of_many_codecs_is_their_sum_in_order(void)
{
    static const size_t sizes[] = {1, SMALL, 1009, 65536 + 5};
    static uint8_t bytes[20][GCOMP_BOUND(65536 + 5)];
    static float decoded[20][65536 + 5];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t trial = 0; trial < (s < 3 ? 40 : 4); trial++) {
            size_t n = sizes[s], count = s < 3 ? trial % 20 + 1 : 20 - trial, lengths[20], wrong = 0;
            const void *payloads[20];
            gcomp_exec exec = exec_of(isa_now);
            float weight = 1.0f / (float)count;
            for (size_t w = 0; w < count; w++) { /* runs of one codec, and single ones */
                const named *one = &codecs[mixed(trial * 100 + (trial & 1 ? w : w / 5)) % codec_count];
                if (!strncmp(one->text, "dct", 3)) one = codecs; /* its means are over those that sent: see test_dct */
                const gcomp_codec *codec = &one->codec;
                fill(GCOMP_F32, n, trial * 1000 + w);
                lengths[w] = encode_plain(codec, g, n, isa_now, bytes[w]);
                payloads[w] = bytes[w];
                CHECK(gcomp_decode(bytes[w], lengths[w], decoded[w], GCOMP_F32, n, &exec) == GCOMP_OK);
            }
            for (size_t i = 0; i < n; i++) y[i] = NAN;
            CHECK(gcomp_decode_mean(payloads, lengths, count, y, GCOMP_F32, n, &exec) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) {
                volatile float sum = 0, term;
                for (size_t w = 0; w < count; w++) {
                    term = decoded[w][i] * weight;
                    sum = sum + term;
                }
                wrong += !(y[i] == sum);
            }
            if (wrong) printf("# n %zu, %zu payloads: %zu wrong\n", n, count, wrong);
            CHECK(wrong == 0);
        }
}

static void test_the_mean_of_the_largest_numbers_is_finite(void)
{
    enum { MOST = 40 };
    const void *payloads[MOST];
    size_t lengths[MOST];
    gcomp_exec exec = exec_of(isa_now);
    for (size_t c = 0; c < codec_count; c++)
        for (int negative = 0; negative < 2; negative++) {
            size_t infinite = 0;
            for (size_t i = 0; i < SMALL; i++) g[i] = negative ? -FLT_MAX : FLT_MAX;
            lengths[0] = encode_plain(&codecs[c].codec, g, SMALL, isa_now, payload);
            for (size_t w = 0; w < MOST; w++) {
                payloads[w] = payload;
                lengths[w] = lengths[0];
                CHECK(gcomp_decode_mean(payloads, lengths, w + 1, y, GCOMP_F32, SMALL, &exec) == GCOMP_OK);
                for (size_t i = 0; i < SMALL; i++) infinite += !isfinite(y[i]);
            }
            if (infinite) printf("# %s: %zu of %d means\n", codecs[c].text, infinite, SMALL * MOST);
            CHECK(infinite == 0);
        }
}

/* ---------------- damage */

/* Every decoding of a payload, from a heap block of its exact length, between guard words: all
   refuse it alike and change nothing, or all take it and give finite numbers. */
static gcomp_result try_bytes(const uint8_t *bytes, size_t length, size_t n)
{
    gcomp_exec exec = exec_of(isa_now);
    gcomp_input in = input_of(g, n, GCOMP_F32, 1, NULL);
    uint8_t *exact = (uint8_t *)malloc(length ? length : 1);
    float *frame = (float *)malloc(4 * (n + 2 * GUARD)), *inside = frame + GUARD;
    const void *pair[2] = {exact, exact};
    size_t lengths[2] = {length, length}, changed = 0;
    gcomp_result result;
    if (length) memcpy(exact, bytes, length);
    for (size_t i = 0; i < n + 2 * GUARD; i++) frame[i] = 7;
    result = gcomp_check(exact, length, n);
    CHECK(gcomp_decode(exact, length, inside, GCOMP_F32, n, &exec) == result);
    for (size_t i = 0; i < n; i++) changed += result ? !(inside[i] == 7) : !isfinite(inside[i]);
    for (size_t i = 0; i < n; i++) inside[i] = 7;
    CHECK(gcomp_decode_mean(pair, lengths, 2, inside, GCOMP_F32, n, &exec) == result);
    for (size_t i = 0; i < n && result; i++) changed += !(inside[i] == 7);
    CHECK(gcomp_decode_add(exact, length, 1, inside, GCOMP_F32, n, &exec) == result);
    for (size_t i = 0; i < n; i++) changed += result ? !(inside[i] == 7) : 0;
    CHECK(gcomp_retain(exact, length, &in, inside, &exec) == result);
    for (size_t i = 0; i < n && result; i++) changed += !(inside[i] == 7);
    for (size_t i = 0; i < GUARD; i++) changed += !(frame[i] == 7) + !(frame[GUARD + n + i] == 7);
    CHECK(changed == 0);
    free(exact);
    free(frame);
    return result;
}

static size_t make_small(size_t c)
{
    for (size_t i = 0; i < SMALL; i++) g[i] = normal(i + 900);
    return encode_plain(&codecs[c].codec, g, SMALL, isa_now, payload);
}

static void test_every_cut_and_every_appended_byte_is_refused(void)
{
    for (size_t c = 0; c < codec_count; c++)
        for (int seal = 0; seal < 2; seal++) {
            size_t length = make_small(c);
            if (seal) CHECK(add_checksum(payload, length) == GCOMP_OK);
            CHECK(try_bytes(payload, length, SMALL) == GCOMP_OK);
            for (size_t cut = 0; cut < length; cut++) CHECK(try_bytes(payload, cut, SMALL) != GCOMP_OK);
            for (size_t more = 1; more <= 40; more++) {
                payload[length + more - 1] = (uint8_t)(more * 37 & (more & 1 ? 0xff : 0));
                CHECK(try_bytes(payload, length + more, SMALL) != GCOMP_OK);
            }
            CHECK(try_bytes(payload, length, SMALL - 1) != GCOMP_OK && try_bytes(payload, length, SMALL + 1) != GCOMP_OK);
        }
}

/* The same, with a header that agrees about the length. */
static void test_a_body_of_another_length_is_refused(void)
{
    for (size_t c = 0; c < codec_count; c++) {
        size_t length = make_small(c), body = length - 32;
        memset(payload + length, 0, 40);
        for (size_t bytes = 0; bytes < body + 40; bytes++) {
            put_word(payload + 16, bytes, 8);
            if (bytes < body) (void)try_bytes(payload, 32 + bytes, SMALL); /* a sparse one may have another meaning */
            if (bytes > body) CHECK(try_bytes(payload, 32 + bytes, SMALL) != GCOMP_OK);
        }
    }
}

static void check_flips(int seal)
{
    for (size_t c = 0; c < codec_count; c++) {
        size_t length = make_small(c);
        if (seal) CHECK(add_checksum(payload, length) == GCOMP_OK);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            gcomp_result result;
            payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
            result = try_bytes(payload, length, SMALL);
            if (seal && result == GCOMP_OK) printf("# %s: bit %zu of byte %zu\n", codecs[c].text, bit % 8, bit / 8);
            CHECK(!seal || result != GCOMP_OK);
            payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static void test_every_flipped_bit_of_a_sealed_payload_is_refused(void) { check_flips(1); }
static void test_a_flipped_bit_without_a_seal_is_refused_or_gives_finite_numbers(void) { check_flips(0); }

/* ---------------- index streams by hand */
enum { STREAM = 1 << 16 };

static uint8_t stream[STREAM];
static size_t stream_bits;

static void put_ones(size_t count)
{
    for (; count; count--, stream_bits++) stream[stream_bits / 8] |= (uint8_t)(1u << stream_bits % 8);
}

static void put_gap(uint64_t gap, unsigned coder)
{
    put_ones((size_t)(gap >> coder));
    stream_bits++;
    for (unsigned b = 0; b < coder; b++, stream_bits++)
        if (gap >> b & 1) stream[stream_bits / 8] |= (uint8_t)(1u << stream_bits % 8);
}

static void begin_stream(void)
{
    memset(stream, 0, sizeof stream);
    stream_bits = 0;
}

/* A topk payload with the values 1, 2, 3, ... as floats, behind `bytes` bytes of the stream.
   Returns its length. */
static size_t by_hand(uint64_t n, uint64_t k, unsigned coder, size_t bytes, size_t values)
{
    put_topk_header(second, n, k, coder, bytes + 4 * values);
    memcpy(second + 41, stream, bytes);
    for (size_t i = 0; i < values; i++)
        put_word(second + 41 + bytes + 4 * i, bits_of((float)(i + 1)), 4);
    return 41 + bytes + 4 * values;
}

static size_t stream_bytes(void) { return (stream_bits + 7) / 8; }

static void test_streams_written_by_the_manual_are_read_with_every_coder(void)
{
    static const uint32_t runs[] = {0, 1, 2, 23, 24, 25, 30, 31, 32, 33, 54, 55, 56, 57, 62, 63, 64, 65, 111, 112, 113, 300};
    enum { RUNS = sizeof runs / sizeof *runs };
    gcomp_exec exec = exec_of(isa_now);
    for (unsigned coder = 0; coder <= 32; coder++)
        for (size_t run = 0; run < RUNS; run++) {
            static const unsigned before[] = {0, 1, 3, 7};
            size_t n = 70000, k = 0, length;
            uint64_t next = 0;
            begin_stream();
            memset(d, 0, 4 * n);
            for (size_t i = 0; i < 30; i++) {
                uint64_t gap = (uint64_t)(i % 2 ? before[i / 2 % 4] : runs[(run + i / 2) % RUNS]) << (coder < 12 ? coder : 0);
                if (next + gap >= n) break;
                put_gap(gap, coder);
                next += gap;
                d[next++] = (float)++k;
            }
            length = by_hand(n, k, coder, stream_bytes(), k);
            CHECK(gcomp_check(second, length, n) == GCOMP_OK);
            CHECK(gcomp_decode(second, length, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, d, 4 * n));
        }
}

static const unsigned coders[] = {0, 1, 16, 31, 32};

static void test_bytes_and_bits_behind_the_last_index_are_refused(void)
{
    for (size_t c = 0; c < 5; c++)
        for (size_t k = 0; k < 20; k++) {
            size_t bytes;
            begin_stream();
            for (size_t i = 0; i < k; i++) put_gap(i % 4, coders[c]);
            bytes = stream_bytes();
            CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL) == GCOMP_OK);
            for (size_t more = 1; more < 20; more++)
                CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes + more, k), SMALL) != GCOMP_OK);
            for (size_t bit = stream_bits; bit < 8 * bytes; bit++) {
                stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
                CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL) != GCOMP_OK);
                stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
        }
}

static void test_an_index_of_n_is_refused_and_of_n_minus_1_is_not(void)
{
    static const size_t sizes[] = {1, 2, 16, 17, 64, SMALL, 1000, 4096};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t c = 0; c < 5; c++) {
            size_t n = sizes[s];
            for (size_t past = 0; past < 3; past++) {
                begin_stream(); /* one index */
                put_gap(n - 1 + past, coders[c]);
                CHECK((try_bytes(second, by_hand(n, 1, coders[c], stream_bytes(), 1), n) == GCOMP_OK) == (past == 0));
                if (n < 2) continue;
                begin_stream(); /* the first and the last */
                put_gap(0, coders[c]);
                put_gap(n - 2 + past, coders[c]);
                CHECK((try_bytes(second, by_hand(n, 2, coders[c], stream_bytes(), 2), n) == GCOMP_OK) == (past == 0));
                begin_stream(); /* all, or one left out */
                for (size_t i = 0; i < n; i++) put_gap(i == n / 2 ? past : 0, coders[c]);
                CHECK((try_bytes(second, by_hand(n, n, coders[c], stream_bytes(), n), n) == GCOMP_OK) == (past == 0));
            }
        }
}

static void test_the_last_index_of_the_largest_tensor_is_checked(void)
{
#if SIZE_MAX > 0xffffffffu
    for (size_t c = 2; c < 5; c++)
        for (uint64_t past = 0; past < 3; past++) {
            begin_stream();
            put_gap((uint64_t)0xfffffffeu + past, coders[c]);
            CHECK((gcomp_check(second, by_hand(0xffffffffu, 1, coders[c], stream_bytes(), 1), 0xffffffffu) == GCOMP_OK) ==
                  (past == 0));
        }
    for (size_t c = 3; c < 5; c++)
        for (uint64_t past = 0; past < 3; past++) { /* of 2^32 elements the last but two, and the last or one behind it */
            const uint64_t n = (uint64_t)1 << 32;
            begin_stream();
            put_gap(n - 3, coders[c]);
            put_gap(1 + past, coders[c]);
            CHECK(gcomp_check(second, by_hand(n, 2, coders[c], stream_bytes(), 2), (size_t)n) ==
                  (past ? GCOMP_CORRUPT : GCOMP_OK));
        }
    for (int bits = 32; bits <= 40; bits++) { /* more elements have no sparse payload: here the element 1 by all coders */
        const uint64_t n = ((uint64_t)1 << bits) + 1;
        begin_stream();
        put_gap(1, 31);
        CHECK(gcomp_check(second, by_hand(n, 1, 31, stream_bytes(), 1), (size_t)n) == GCOMP_CORRUPT);
        begin_stream();
        stream[0] = 1;
        CHECK(gcomp_check(second, by_hand(n, 1, 253, 4, 1), (size_t)n) == GCOMP_CORRUPT);
        stream[1] = 1;
        CHECK(gcomp_check(second, by_hand(n, 1, 254, 2, 1), (size_t)n) == GCOMP_CORRUPT);
    }
#endif
}

static void test_endless_quotients_are_refused_at_once(void)
{
    clock_t start = clock();
    for (size_t c = 0; c < 5; c++)
        for (size_t bytes = 0; bytes <= 40; bytes++)
            for (size_t k = 1; k <= SMALL; k += k < 3 ? 1 : 32) {
                begin_stream();
                put_ones(8 * bytes);
                CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL) != GCOMP_OK);
                if (bytes < 10) continue;
                stream[bytes - 1] = 0x7f; /* the run ends in the last bit, far behind n */
                CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL) != GCOMP_OK);
                stream[bytes - 1] = 0;
                CHECK(try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL) != GCOMP_OK);
            }
    for (size_t c = 0; c < 5; c++) {
        begin_stream();
        put_ones(8 * (size_t)STREAM);
        CHECK(try_bytes(second, by_hand(SMALL, 1, coders[c], STREAM, 1), SMALL) != GCOMP_OK);
        CHECK(gcomp_check(second, by_hand(0xffffffffu, 1, coders[c], STREAM, 1), 0xffffffffu) != GCOMP_OK);
        stream[STREAM - 8] = 0;
        CHECK(try_bytes(second, by_hand(SMALL, 2, coders[c], STREAM, 2), SMALL) != GCOMP_OK);
    }
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 30);
}

static void test_a_count_that_the_stream_does_not_hold_is_refused(void)
{
    static const uint64_t absurd[] = {SMALL + 1, 1000, 0xffffffffu, (uint64_t)1 << 32, (uint64_t)1 << 61, (uint64_t)1 << 62,
                                      (uint64_t)1 << 63, UINT64_MAX - 8, UINT64_MAX};
    for (size_t c = 0; c < 5; c++) {
        begin_stream();
        for (size_t i = 0; i < 16; i++) put_gap(i == 15 ? 1 : i % 3, coders[c]);
        for (size_t k = 0; k <= SMALL; k++) { /* zero bits of padding may be gaps of 0 as well */
            size_t bytes = stream_bytes(), most = 16 + (8 * bytes - stream_bits) / (1 + coders[c]);
            gcomp_result result = try_bytes(second, by_hand(SMALL, k, coders[c], bytes, k), SMALL);
            CHECK((result == GCOMP_OK) == (k >= 16 && k <= most));
        }
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++)
            for (size_t values = 0; values <= SMALL + 1; values += 17)
                CHECK(try_bytes(second, by_hand(SMALL, absurd[i], coders[c], stream_bytes(), values), SMALL) != GCOMP_OK);
    }
}

static void test_coders_that_do_not_exist_are_refused(void)
{
    for (unsigned coder = 33; coder < 253; coder++)
        for (size_t k = 0; k <= 16; k += 4)
            for (size_t bytes = 0; bytes < 20; bytes += 9) {
                begin_stream();
                CHECK(try_bytes(second, by_hand(SMALL, k, coder, bytes, k), SMALL) != GCOMP_OK);
                put_ones(8 * bytes);
                CHECK(try_bytes(second, by_hand(SMALL, k, coder, bytes, k), SMALL) != GCOMP_OK);
            }
}

static void test_a_bitmap_has_its_length_its_count_and_zero_padding(void)
{
    for (size_t k = 0; k <= SMALL + 5; k++)
        for (size_t bytes = 0; bytes <= 18; bytes++)
            for (size_t bits = 0; bits <= SMALL + 5 && bits <= 8 * bytes; bits++) {
                int valid = bytes == (SMALL + 7) / 8 && k == bits && k <= SMALL;
                if (!valid && (k + bits + bytes) % 5) continue;
                begin_stream();
                put_ones(bits);
                CHECK((try_bytes(second, by_hand(SMALL, k, 255, bytes, k), SMALL) == GCOMP_OK) == valid);
            }
    for (size_t pad = SMALL; pad < 72; pad++) { /* a bit behind the last element, in place of one */
        begin_stream();
        put_ones(9);
        stream_bits = pad;
        put_ones(1);
        CHECK(try_bytes(second, by_hand(SMALL, 10, 255, 9, 10), SMALL) != GCOMP_OK);
        CHECK(try_bytes(second, by_hand(SMALL, 9, 255, 9, 9), SMALL) != GCOMP_OK);
    }
}

int main(void)
{
    large = test_is_long() && !test_is_slow() ? LARGE : (1 << 17) + 3;
    RUN(test_codecs_with_a_payload_are_listed);
    RUN(test_a_plus_begins_a_value_method_or_is_refused_as_such);
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_any_dtype_scale_and_residual_encode_and_retain_as_the_vector_they_mean);
        RUN(test_bytes_and_floats_at_any_address_give_the_same_bits);
        RUN(test_an_element_that_is_not_finite_gives_a_refusal_that_changes_nothing);
        RUN(test_retain_refuses_what_is_not_finite_and_changes_nothing);
        RUN(test_residuals_saturate);
        RUN(test_a_commit_of_nothing_refuses_what_is_not_finite_and_saturates);
        RUN(test_no_element_and_one_element_are_the_same_on_scalar_code_and_backwards);
        RUN(test_few_elements_are_the_same_on_scalar_code_and_backwards);
        RUN(test_many_chunks_are_the_same_on_scalar_code_and_backwards);
        RUN(test_the_mean_of_payloads_of_many_codecs_is_their_sum_in_order);
        RUN(test_the_mean_of_the_largest_numbers_is_finite);
        RUN(test_every_cut_and_every_appended_byte_is_refused);
        RUN(test_a_body_of_another_length_is_refused);
        RUN(test_every_flipped_bit_of_a_sealed_payload_is_refused);
        RUN(test_a_flipped_bit_without_a_seal_is_refused_or_gives_finite_numbers);
        RUN(test_streams_written_by_the_manual_are_read_with_every_coder);
        RUN(test_bytes_and_bits_behind_the_last_index_are_refused);
        RUN(test_an_index_of_n_is_refused_and_of_n_minus_1_is_not);
        RUN(test_the_last_index_of_the_largest_tensor_is_checked);
        RUN(test_endless_quotients_are_refused_at_once);
        RUN(test_a_count_that_the_stream_does_not_hold_is_refused);
        RUN(test_coders_that_do_not_exist_are_refused);
        RUN(test_a_bitmap_has_its_length_its_count_and_zero_padding);
    }
    return test_end();
}
