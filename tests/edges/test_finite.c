/* Proves that NaN and infinities are seen wherever they come in: in a gradient, a residual, a scale,
   a weight, the words of a payload, a step. Only integers make and find them here, and this file is
   compiled without -ffast-math: so the object of the header can be compiled with it, and nothing
   else. */
#include "gcomp_optimizers.h"
#include "group.h"

enum { N = 3000, STEP_N = 48 * 32 };
static const uint32_t bad[] = {0x7fc00000u, 0xffc00000u, 0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu};
enum { BAD = sizeof bad / sizeof *bad };

static float g[N], r[N], y[N];
static uint8_t payload[GCOMP_BOUND(N)], changed[GCOMP_BOUND(N)], scratch[GCOMP_SCRATCH(N)];
static gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};

static void put(float *x, uint32_t bits) { memcpy(x, &bits, 4); }

static int all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    }
    return 1;
}

/* Gradient and residual: finite, of both signs and many magnitudes. */
static void fill(void)
{
    for (size_t i = 0; i < N; i++) {
        const uint64_t word = mix(i);
        put(g + i, 0x3c000000u + (uint32_t)(word & 0x80ffffffu));
        put(r + i, 0x3b000000u + (uint32_t)(word >> 32 & 0x80ffffffu));
    }
}

static gcomp_input input_of(const float *residual)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = g;
    in.residual = residual;
    in.rows = N;
    in.scale = 1;
    in.key = gcomp_key_make(1, 2, 3, 4);
    return in;
}

/* The codecs with payloads, one after the other: the next one from *c on, or 0. */
static int next_codec(size_t *c, gcomp_codec *codec)
{
    for (; *c < ALL_CODECS; ++*c)
        if (codec_has_payload(codec_list[*c].text) && !gcomp_codec_parse(codec, codec_list[*c].text, NULL, 0)) return 1;
    return 0;
}

static void refused(const char *text, const char *where, int yes)
{
    if (!yes) printf("# %s: not seen in the %s\n", text, where);
    CHECK(yes);
}

/* Encoding says so, and what it wrote says so to a decoder. */
static int encode_refuses(const gcomp_codec *codec, const gcomp_input *in)
{
    size_t length;
    return gcomp_encode(codec, in, &exec, payload, sizeof payload, &length) == GCOMP_NOT_FINITE &&
           gcomp_decode(payload, length, y, GCOMP_F32, N, &exec) == GCOMP_NOT_FINITE;
}

static void test_every_codec_sees_them_in_gradient_residual_and_scale(void)
{
    static const size_t places[] = {0, 15, 16, 1500, 2992, N - 1};
    gcomp_codec codec;
    for (size_t c = 0; next_codec(&c, &codec); c++)
        for (size_t k = 0; k < BAD; k++) {
            for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
                gcomp_input in = input_of(i & 1 ? r : NULL);
                fill();
                put(g + places[i], bad[k]);
                refused(codec_list[c].text, "gradient", encode_refuses(&codec, &in));
                in = input_of(r);
                fill();
                put(r + places[i], bad[k]);
                refused(codec_list[c].text, "residual", encode_refuses(&codec, &in));
            }
            gcomp_input in = input_of(NULL);
            size_t length;
            fill();
            put(&in.scale, bad[k]);
            refused(codec_list[c].text, "scale",
                    gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        }
}

/* A scale of a block is a sum of many elements: that may be too large for a float. */
static void test_the_largest_numbers_give_payloads_that_the_library_takes(void)
{
    gcomp_codec codec;
    for (size_t c = 0; next_codec(&c, &codec); c++)
        for (uint32_t least = 0; least < 2; least++) {
            const gcomp_input in = input_of(NULL);
            size_t length;
            for (size_t i = 0; i < N; i++) put(g + i, 0x7f7fffffu - (uint32_t)(mix(i) & 3) - (least && i % 7 ? 0x02000000u : 0));
            refused(codec_list[c].text, "sum of large numbers",
                    gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK &&
                        gcomp_check(payload, length, N) == GCOMP_OK && gcomp_decode(payload, length, y, GCOMP_F32, N, &exec) == GCOMP_OK &&
                        all_finite(y, N));
        }
}

static void test_every_codec_sees_them_in_the_weight_of_a_payload(void)
{
    gcomp_codec codec;
    fill();
    for (size_t c = 0; next_codec(&c, &codec); c++)
        for (size_t k = 0; k < BAD; k++) {
            const gcomp_input in = input_of(NULL);
            size_t length;
            float weight;
            put(&weight, bad[k]);
            memset(y, 0, sizeof y);
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
            refused(codec_list[c].text, "weight",
                    gcomp_decode_add(payload, length, weight, y, GCOMP_F32, N, &exec) == GCOMP_INVALID_ARGUMENT && all_finite(y, N));
        }
}

/* Four bytes anywhere in a payload become such a word, and the checksum is made anew. What the check lets pass decodes to finite
   numbers. */
static void test_every_codec_sees_them_in_the_words_of_a_payload(void)
{
    gcomp_codec codec;
    fill();
    for (size_t c = 0; next_codec(&c, &codec); c++) {
        const gcomp_input in = input_of(r);
        size_t length;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
        for (size_t at = 20; at + 4 <= length; at += at < 120 ? 1 : at + 40 < length ? 97 : 1)
            for (size_t k = 0; k < BAD; k++) {
                memcpy(changed, payload, length);
                put_word(changed + at, bad[k], 4);
                if (add_checksum(changed, length) != GCOMP_OK) continue;
                const gcomp_result checked = gcomp_check(changed, length, N);
                const gcomp_result decoded = gcomp_decode(changed, length, y, GCOMP_F32, N, &exec);
                refused(codec_list[c].text, "words of a payload", checked == decoded && (decoded || all_finite(y, N)));
            }
    }
}

/* Both workers hear that one of them has such a number; their gradients stay, and the next step is made. */
static void test_every_codec_sees_them_in_a_step(void)
{
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    const size_t n[2] = {STEP_N, 200};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codecs[2] = {codec_list[c].text, codec_list[c].text};
        static group of;
        if (!codec_list[c].steps) continue;
        group_open(&of, 2, &desc, codecs, n, 2);
        for (size_t k = 0; k < BAD; k++) {
            uint64_t before[MOST];
            group_fill(&of, k);
            put((float *)of.grad[k & 1][0] + (k * 277) % STEP_N, bad[k]);
            digest_all(&of, before);
            group_step(&of);
            refused(codec_list[c].text, "gradient of a step", all_are(&of, GCOMP_NOT_FINITE) && digests_are(&of, before));
        }
        group_fill(&of, BAD);
        group_step(&of);
        CHECK(all_are(&of, GCOMP_OK) && all_finite((const float *)of.grad[0][0], STEP_N));
        group_close(&of);
    }
}

static void test_arguments_of_steps_and_optimizers_are_seen(void)
{
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    const char *const codec = "sign";
    const size_t n = 100;
    static group of;
    group_open(&of, 2, &desc, &codec, &n, 1);
    for (size_t k = 0; k < BAD; k++) {
        float rate;
        gcomp_step step;
        put(&rate, bad[k]);
        fill();
        CHECK(gcomp_momentum_step(g, r, y, N, rate, 0.5f) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_momentum_step(g, r, y, N, 0.5f, rate) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_outer_step(g, r, y, N, rate, 0.5f) == GCOMP_INVALID_ARGUMENT);
        CHECK(all_finite(g, N) && all_finite(r, N));
        of.step = &step;
        memset(&step, 0, sizeof step);
        put(&step.scale, bad[k]);
        group_fill(&of, k);
        group_step(&of);
        CHECK(all_are(&of, GCOMP_INVALID_ARGUMENT));
        memset(&step, 0, sizeof step);
        step.scale = 1;
        put(&step.learning_rate, bad[k]);
        group_step(&of);
        CHECK(all_are(&of, GCOMP_INVALID_ARGUMENT) && all_finite((const float *)of.grad[0][0], n));
    }
    group_close(&of);
}

int main(void)
{
    RUN(test_every_codec_sees_them_in_gradient_residual_and_scale);
    RUN(test_the_largest_numbers_give_payloads_that_the_library_takes);
    RUN(test_every_codec_sees_them_in_the_weight_of_a_payload);
    RUN(test_every_codec_sees_them_in_the_words_of_a_payload);
    RUN(test_every_codec_sees_them_in_a_step);
    RUN(test_arguments_of_steps_and_optimizers_are_seen);
    return test_end();
}
