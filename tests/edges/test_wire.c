/* Proves that a payload which no encoder wrote is refused with the error that fits, and that
   nothing is written. Then it proves that codecs are read from text and printed as text. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { N = 200, CAPACITY = GCOMP_BOUND(N) };

static const char *const codecs[] = {"none", "fp16", "bf16", "sign:block=64", "sign:block=tensor", "topk:density=0.1",
                                     "topk:density=0.5+sign:block=16"};
enum { CODECS = sizeof codecs / sizeof *codecs };

static float g[N];
static uint8_t p[CAPACITY], scratch[GCOMP_SCRATCH(N)];

static size_t make(const char *text, int seal)
{
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (int i = 0; i < N; i++) g[i] = (float)((i * 7919) % 1000 - 500) * 0.001f;
    in.grad = g;
    in.rows = N;
    in.key = gcomp_key_make(1, 0, 0, 0);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    in.checksum = seal;
    CHECK(gcomp_encode(&codec, &in, &exec, p, sizeof p, &length) == GCOMP_OK);
    return length;
}

/* The check of bytes in a heap block of exactly that size; whatever decodes from it must leave y
   alone if it is refused. */
static gcomp_result try(const uint8_t *bytes, size_t length, size_t n)
{
    uint8_t *payload = malloc(length ? length : 1);
    float *y = malloc(4 * n + 4), *copy = malloc(4 * n + 4);
    const void *payloads[2];
    size_t lengths[2] = {length, length};
    gcomp_input in;
    gcomp_result r;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (size_t i = 0; i <= n; i++) y[i] = copy[i] = (float)i;
    if (length) memcpy(payload, bytes, length);
    payloads[0] = payloads[1] = payload;
    in.grad = copy;
    in.rows = n;
    r = gcomp_check(payload, length, n);
    if (r != GCOMP_OK) {
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == r);
        CHECK(gcomp_decode_add(payload, length, 1, y, GCOMP_F32, n, NULL) == r);
        CHECK(gcomp_decode_mean(payloads, lengths, 2, y, GCOMP_F32, n, NULL) == r);
        CHECK(gcomp_retain(payload, length, &in, y, NULL) == r);
        CHECK(memcmp(y, copy, 4 * n + 4) == 0);
    } else {
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) CHECK(isfinite(y[i]));
    }
    free(payload);
    free(y);
    free(copy);
    return r;
}

/* Nothing but the flag and the checksum is other, also in a refusal. */
static void test_encode_writes_the_checksum_that_was_asked_for(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.1", "ecsq", "none"};
    static uint8_t plain[CAPACITY];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const size_t length = make(texts[i], 0);
        memcpy(plain, p, length);
        CHECK(!(plain[6] & 2) && add_checksum(plain, length) == GCOMP_OK);
        CHECK(make(texts[i], 1) == length && !memcmp(p, plain, length) && gcomp_check(p, length, N) == GCOMP_OK);
    }
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    const float nan = NAN;
    memset(&in, 0, sizeof in);
    in.grad = &nan;
    in.rows = 1;
    in.scale = 1;
    in.checksum = 1;
    CHECK(gcomp_codec_parse(&codec, "sign", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, NULL, p, sizeof p, &length) == GCOMP_NOT_FINITE && length == 32);
    memcpy(plain, p, 32);
    CHECK(p[6] == 3 && add_checksum(plain, 32) == GCOMP_OK && !memcmp(p, plain, 32) && gcomp_check(p, 32, 1) == GCOMP_NOT_FINITE);
}

static void test_every_truncation_and_every_extra_byte_is_refused(void)
{
    for (size_t c = 0; c < CODECS; c++) {
        for (int seal = 0; seal < 2; seal++) {
            size_t length = make(codecs[c], seal);
            CHECK(try(p, length, N) == GCOMP_OK);
            for (size_t cut = 0; cut < length; cut++) CHECK(try(p, cut, N) == GCOMP_TRUNCATED);
            p[length] = 0;
            CHECK(try(p, length + 1, N) == GCOMP_TRAILING_BYTES);
        }
    }
}

static void test_every_flipped_bit_of_a_sealed_payload_is_refused(void)
{
    for (size_t c = 0; c < CODECS; c++) {
        size_t length = make(codecs[c], 1);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (bit / 8 == 6 && bit % 8 == 1)
                CHECK(try(p, length, N) == GCOMP_RESERVED_BITS); /* the checksum, but no flag for it */
            else CHECK(try(p, length, N) != GCOMP_OK);
            if (bit >= 8 * 32) CHECK(try(p, length, N) == GCOMP_CHECKSUM_MISMATCH || p[bit / 8] == 0 || c >= 5);
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static void test_every_flipped_bit_without_checksum_is_refused_or_decodes_to_finite_numbers(void)
{
    for (size_t c = 0; c < CODECS; c++) {
        size_t length = make(codecs[c], 0);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
            (void)try(p, length, N);
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

/* Two headers alike are opened as one; what else is wrong with the second payload is found as if
   it came alone. */
static void test_a_payload_behind_one_of_its_header_is_checked_as_alone(void)
{
    static const char *const alike[] = {"int:block=64", "sign:block=64", "mx:format=e4m3", "topk:density=0.1+int:block=64"};
    for (size_t c = 0; c < 2 * sizeof alike / sizeof *alike; c++) {
        const size_t length = make(alike[c / 2], c % 2);
        uint8_t good[CAPACITY];
        memcpy(good, p, length);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            const void *payloads[2] = {good, p};
            const size_t lengths[2] = {length, length};
            float y[N], sum[N] = {0};
            gcomp_result alone;
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
            alone = gcomp_check(p, length, N);
            for (int i = 0; i < N; i++) y[i] = (float)i;
            CHECK(gcomp_decode_mean(payloads, lengths, 2, y, GCOMP_F32, N, NULL) == alone);
            for (int i = 0; alone != GCOMP_OK && i < N; i++) sum[i] = (float)i;
            for (int w = 0; alone == GCOMP_OK && w < 2; w++)
                CHECK(gcomp_decode_add(payloads[w], length, 0.5f, sum, GCOMP_F32, N, NULL) == GCOMP_OK);
            CHECK(memcmp(y, sum, sizeof y) == 0);
            p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

static void test_the_header_is_refused_by_its_specific_error(void)
{
    size_t length = make("sign:block=64", 0);
    p[0] = 'X';
    CHECK(try(p, length, N) == GCOMP_NOT_A_PAYLOAD);
    p[0] = 'G';
    p[4] = 2;
    CHECK(try(p, length, N) == GCOMP_UNSUPPORTED_VERSION);
    p[4] = 1;
    p[5] = 77;
    CHECK(try(p, length, N) == GCOMP_UNKNOWN_METHOD);
    p[5] = 6; /* powersgd has no payload */
    CHECK(try(p, length, N) == GCOMP_UNKNOWN_METHOD);
    p[5] = 4;
    p[6] = 4;
    CHECK(try(p, length, N) == GCOMP_RESERVED_BITS);
    p[6] = 0;
    p[7] = 1;
    CHECK(try(p, length, N) == GCOMP_RESERVED_BITS);
    p[7] = 0;
    CHECK(try(p, length, N - 1) == GCOMP_COUNT_MISMATCH);
    CHECK(try(p, length, N + 1) == GCOMP_COUNT_MISMATCH);
    p[23] = 0x80; /* 2^63 bytes of body */
    CHECK(try(p, length, N) == GCOMP_TRUNCATED);
    p[23] = 0;
    p[24] = 17; /* a block of 2^17 elements is too large */
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    p[24] = 6 + 32; /* a bit behind the block size */
    CHECK(try(p, length, N) == GCOMP_RESERVED_BITS);
    p[24] = 6;
    p[28] = 1;
    CHECK(try(p, length, N) == GCOMP_RESERVED_BITS);
    p[28] = 0;
    CHECK(try(p, length, N) == GCOMP_OK);
}

static void test_scales_and_codes_are_finite_and_padding_is_zero(void)
{
    static const uint32_t bad[] = {0x7f800000u, 0x7fc00000u, 0xbf800000u, 0x80000000u};
    size_t length;
    for (size_t i = 0; i < 4; i++) {
        length = make("sign:block=tensor", 0);
        put_word(p + 32, bad[i], 4);
        CHECK(try(p, length, N) == GCOMP_CORRUPT);
    }
    length = make("none", 0);
    put_word(p + length - 4, 0x7f800000u, 4);
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    length = make("fp16", 0);
    put_word(p + 32, 0xfc00u, 2);
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    length = make("bf16", 0);
    put_word(p + 32 + 50, 0x7f80u, 2);
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    length = make("sign:block=tensor", 0); /* 100 elements: the last byte has four bits of padding */
    p[8] = 100;
    p[16] = 4 + 13;
    p[32 + 4 + 12] = 0x1f;
    CHECK(try(p, 32 + 4 + 13, 100) == GCOMP_RESERVED_BITS);
    p[32 + 4 + 12] = 0x0f;
    CHECK(try(p, 32 + 4 + 13, 100) == GCOMP_OK);
}

static void test_sparse_bodies_are_checked_to_the_last_bit(void)
{
    size_t length = make("topk:density=0.1", 0);
    CHECK(get_word(p + 32, 8) == 20 && p[40] == 254); /* packed, a byte less than Golomb-Rice codes */
    for (int coder = 33; coder < 253; coder++) {
        p[40] = (uint8_t)coder;
        CHECK(try(p, length, N) == GCOMP_CORRUPT);
    }
    p[40] = 31; /* larger gaps: indices behind the end, or a stream too short */
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    length = make("topk:density=0.1", 0);
    p[32] = 201; /* k > n */
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
    p[32] = 19; /* one value too few: what is left of the indices */
    CHECK(try(p, length, N) != GCOMP_OK);
    length = make("topk:density=0.1", 0);
    p[7] = 5; /* sparse values of a sparse method */
    CHECK(try(p, length, N) == GCOMP_UNKNOWN_METHOD);
    length = make("topk:density=0.6", 0);
    CHECK(p[40] == 255);
    p[41 + 24] ^= 1;
    CHECK(try(p, length, N) == GCOMP_CORRUPT);
}

static void test_a_refusal_is_valid_and_decodes_to_its_error(void)
{
    for (size_t c = 0; c < CODECS; c++)
        for (int where = 0; where < 3; where++) {
            gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
            gcomp_codec codec;
            gcomp_input in;
            gcomp_info info;
            size_t length = 0;
            (void)make(codecs[c], 0);
            g[where == 0 ? 0 : where == 1 ? N / 2 : N - 1] = where == 1 ? -INFINITY : NAN;
            memset(&in, 0, sizeof in);
            in.scale = 1;
            in.grad = g;
            in.rows = N;
            in.key = gcomp_key_make(1, 0, 0, 0);
            CHECK(gcomp_codec_parse(&codec, codecs[c], NULL, 0) == GCOMP_OK);
            CHECK(gcomp_encode(&codec, &in, &exec, p, sizeof p, &length) == GCOMP_NOT_FINITE && length == 32);
            CHECK(try(p, length, N) == GCOMP_NOT_FINITE);
            CHECK(gcomp_peek(p, length, &info) == GCOMP_OK && info.refused == 1 && info.count == N && info.length == 32);
        }
}

static void test_codecs_are_printed_in_their_shortest_form(void)
{
    static const char *const pairs[][2] = {{"none", "none"}, {"sign", "sign"}, {"sign:block=1024", "sign"},
                                           {"sign:block=tensor", "sign:block=tensor"}, {"sign:block=16", "sign:block=16"},
                                           {"topk", "topk"}, {"topk:density=0.010", "topk"},
                                           {"topk:density=1e-3", "topk:density=0.001"}, {"topk:density=1", "topk:density=1"},
                                           {"topk:density=0.123456789012345", "topk:density=0.123456789012345"},
                                           {"topk:density=2.5e-6+none", "topk:density=25e-7"},
                                           {"topk+sign:block=32", "topk+sign:block=32"},
                                           {"topk:density=.5+fp16", "topk:density=0.5+fp16"}, {"powersgd:rank=4", "powersgd"},
                                           {"powersgd:rank=64", "powersgd:rank=64"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        gcomp_codec codec, again;
        char text[80], why[100] = "";
        CHECK(gcomp_codec_parse(&codec, pairs[i][0], why, sizeof why) == GCOMP_OK && why[0] == 0);
        CHECK(gcomp_codec_format(&codec, text, sizeof text) == strlen(pairs[i][1]));
        if (strcmp(text, pairs[i][1])) printf("# %s printed as %s\n", pairs[i][0], text);
        CHECK(!strcmp(text, pairs[i][1]));
        CHECK(gcomp_codec_parse(&again, text, NULL, 0) == GCOMP_OK && !memcmp(&codec, &again, sizeof codec));
        CHECK(gcomp_codec_format(&codec, text, 3) == strlen(pairs[i][1]) && strlen(text) == 2);
    }
}

static void test_bad_codec_texts_are_refused_by_name(void)
{
    static const char *const pairs[][2] = {{"", ""}, {"tpok", "'tpok'"}, {"topk:densty=1", "'densty'"}, {"topk:density=0", "'0'"},
                                           {"topk:density=1.5", "'1.5'"}, {"topk:density=nan", "'nan'"},
                                           {"topk:density=-0.1", "'-0.1'"}, {"topk:density", "'density'"},
                                           {"topk:density=", "''"}, {"topk:density=0.1x", "'0.1x'"},
                                           {"topk:density=0.1,density=0.2", "'density'"}, {"sign:block=100", "'100'"},
                                           {"sign:block=8", "'8'"}, {"sign:block=131072", "'131072'"}, {"sign:block=0", "'0'"},
                                           {"powersgd:rank=0", "'0'"}, {"powersgd:rank=65", "'65'"},
                                           {"powersgd:rank=1.5", "'1.5'"}, {"none:block=16", "'block'"}, {"sign+fp16", "'sign'"},
                                           {"topk+powersgd", "'powersgd'"}, {"topk+topk", "'topk'"}, {"topk+", ""},
                                           {"topk sign", "' sign'"}, {"topk:density=1e999", "'1e999'"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        gcomp_codec codec, before;
        char why[200] = "";
        memset(&codec, 0x5a, sizeof codec);
        before = codec;
        CHECK(gcomp_codec_parse(&codec, pairs[i][0], why, sizeof why) == GCOMP_BAD_CODEC);
        if (!why[0] || !strstr(why, pairs[i][1])) printf("# '%s': %s\n", pairs[i][0], why);
        CHECK(why[0] && strstr(why, pairs[i][1]));
        CHECK(memcmp(&codec, &before, sizeof codec) == 0);
    }
}

int main(void)
{
    RUN(test_encode_writes_the_checksum_that_was_asked_for);
    RUN(test_every_truncation_and_every_extra_byte_is_refused);
    RUN(test_every_flipped_bit_of_a_sealed_payload_is_refused);
    RUN(test_every_flipped_bit_without_checksum_is_refused_or_decodes_to_finite_numbers);
    RUN(test_a_payload_behind_one_of_its_header_is_checked_as_alone);
    RUN(test_the_header_is_refused_by_its_specific_error);
    RUN(test_scales_and_codes_are_finite_and_padding_is_zero);
    RUN(test_sparse_bodies_are_checked_to_the_last_bit);
    RUN(test_a_refusal_is_valid_and_decodes_to_its_error);
    RUN(test_codecs_are_printed_in_their_shortest_form);
    RUN(test_bad_codec_texts_are_refused_by_name);
    return test_end();
}
