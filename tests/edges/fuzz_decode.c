/* Proves that decoders stay inside buffers of exactly the right size whatever bytes they get (the
   sanitizers watch), that all instruction sets agree, and that what passes the check decodes to
   finite numbers. This is a libFuzzer target. With -DFUZZ_MAIN it is a program that replays files,
   makes the corpus (--make-corpus DIR), or mutates valid payloads (--mutate COUNT). */
#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"
#include "codecs.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 3000 };

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    abort();
}

static void *exactly(size_t bytes, const void *from) /* a heap block of that size, so that one byte too far is seen */
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) fail("no memory");
    if (from && bytes) memcpy(p, from, bytes);
    else if (bytes) memset(p, 0, bytes);
    return p;
}

/* A right checksum, as a hostile worker would send it, where the header says that there is one. */
static void renew_seal(uint8_t *payload, size_t length)
{
    if (length >= 32 && payload[6] & 2)
        put_word(payload + 28, plain_crc(plain_crc(0, payload, 28), payload + 32, length - 32), 4);
}

/* All that reads a payload, on one instruction set. Returns the result of the check. */
static gcomp_result decode_all(const uint8_t *bytes, size_t length, size_t n, gcomp_isa isa, float *out)
{
    uint8_t *payload = exactly(length, bytes);
    float *y = exactly(4 * n, NULL), *g = exactly(4 * n, NULL);
    const void *payloads[3] = {payload, payload, payload};
    size_t lengths[3] = {length, length, length};
    gcomp_exec exec = {isa, NULL, 0, {NULL, NULL}};
    gcomp_input in;
    gcomp_info info;
    gcomp_result check = gcomp_check(payload, length, n), peek = gcomp_peek(payload, length, &info);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    if (check == GCOMP_OK && peek != GCOMP_OK) fail("a valid payload has no readable header");
    if (gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) != check) fail("decode and check disagree");
    for (size_t i = 0; i < n; i++) {
        if (check == GCOMP_OK && !isfinite(y[i])) fail("a valid payload decodes to NaN or Inf");
        if (check != GCOMP_OK && (y[i] != 0 || signbit(y[i]))) fail("decode wrote, and failed");
    }
    memcpy(out, y, 4 * n);
    if (gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) != check) fail("decode_mean and check disagree");
    if (gcomp_decode_add(payload, length, 0.5f, y, GCOMP_F32, n, &exec) != check) fail("decode_add and check disagree");
    if (gcomp_retain(payload, length, &in, g, &exec) != check) fail("retain and check disagree");
    free(payload);
    free(y);
    free(g);
    return check;
}

static gcomp_result decode_everywhere(const uint8_t *bytes, size_t length, size_t n)
{
    static float first[LARGEST + 1], other[LARGEST + 1];
    gcomp_result result = decode_all(bytes, length, n, GCOMP_ISA_SCALAR, first);
    if (decode_all(bytes, length, n, GCOMP_ISA_AUTO, other) != result) fail("instruction sets disagree on validity");
    if (result == GCOMP_OK && n && memcmp(first, other, 4 * n)) fail("instruction sets disagree");
    return result;
}

static const char *texts[ALL_CODECS]; /* the listed codecs that write payloads */
static size_t text_count;

static void collect_texts(void)
{
    if (text_count) return;
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (codec_has_payload(codec_list[c].text)) texts[text_count++] = codec_list[c].text;
}

/* A valid payload of a codec from a seed. */
static size_t make_payload(const char *text, size_t n, uint64_t seed, uint8_t *to, size_t capacity)
{
    static float g[LARGEST];
    static uint8_t scratch[GCOMP_SCRATCH(LARGEST)];
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        g[i] = seed >> 60 == 0 ? 0 : (float)(int32_t)(seed >> 32) * 1e-10f;
    }
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.cols = strstr(text, "block=row") && n % 20 == 0 ? 20 : 1; /* a matrix, or one row */
    in.rows = n / in.cols;
    in.key = gcomp_key_make(seed, 0, 0, 0);
    if (gcomp_codec_parse(&codec, text, NULL, 0) || gcomp_encode(&codec, &in, &exec, to, capacity, &length))
        fail("encode failed");
    return length;
}

/* The first two bytes choose n and what is done: raw bytes, a body behind a right header, or a
   valid payload mutated. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t payload[GCOMP_BOUND(LARGEST) + 8192];
    size_t n, length;
    collect_texts();
    if (size < 4) return 0;
    n = (data[0] | (size_t)data[1] << 8) % (LARGEST + 1);
    if (data[2] % 3 == 0) {
        decode_everywhere(data + 4, size - 4, n);
    } else if (data[2] % 3 == 1 && size - 4 <= 8192) {
        length = make_payload(texts[data[3] % text_count], n, 1, payload, sizeof payload);
        (void)length;
        memcpy(payload + 32, data + 4, size - 4);
        put_word(payload + 16, size - 4, 8);
        decode_everywhere(payload, 32 + size - 4, n);
    } else {
        length = make_payload(texts[data[3] % text_count], n, size, payload, sizeof payload);
        if (data[2] & 1) payload[6] |= 2;
        for (size_t i = 4; i + 3 <= size; i += 3) payload[(data[i] | (size_t)data[i + 1] << 8) % length] ^= data[i + 2];
        renew_seal(payload, length);
        decode_everywhere(payload, length, n);
    }
    return 0;
}

#ifdef FUZZ_MAIN
static void write_file(const char *dir, const char *name, const uint8_t *bytes, size_t length, size_t n)
{
    char path[512];
    uint8_t head[4] = {(uint8_t)n, (uint8_t)(n >> 8), 0, 0};
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (!f || fwrite(head, 1, 4, f) != 4 || fwrite(bytes, 1, length, f) != length || fclose(f)) fail("cannot write the corpus");
}

/* Payloads of 100 elements with one byte that no encoder writes there. */
static void make_corrupt(const char *dir)
{
    static const struct { const char *name, *text; size_t at; int value; } bad[] = {
        {"corrupt_twobit_code", "twobit", 40, 0x10},      {"corrupt_natural_exponent", "natural", 33, 255},
        {"corrupt_fp8_nan", "fp8", 40, 0xff},             {"corrupt_fp8_infinity", "fp8:format=e5m2,block=16", 70, 0x7c},
        {"corrupt_mx_scale", "mx", 34, 255},              {"corrupt_mx_nan", "mx:format=e4m3", 40, 0x7f},
        {"corrupt_mx_overflow", "mx:format=int8", 33, 254}, {"corrupt_onebit_scale", "onebit:block=tensor", 39, 0xff},
        {"corrupt_int_block", "int:bits=4,block=16", 24, 0x0d}, {"corrupt_qsgd_levels", "qsgd", 24, 0},
        {"reserved_natural_padding", "natural", 32 + 6 * 18 + 15, 1}, {"reserved_threshold1_padding", "threshold1", 44, 0x01},
        {"reserved_int_word", "int", 25, 0xff}, {"corrupt_mx_format", "mx", 24, 6},
        {"reserved_mx_word", "mx:format=e2m3", 24, 8 + 4}, {"corrupt_twobit_threshold", "twobit:threshold=auto", 35, 0xff},
        {"corrupt_nvfp4_tensor", "nvfp4", 35, 0x80}, {"corrupt_nvfp4_scale", "nvfp4", 42, 0x7f},
        {"reserved_nvfp4_word", "nvfp4", 24, 4}, {"corrupt_nf4_block", "nf4", 24, 2}, {"corrupt_e3m0_scale", "e3m0", 35, 0xff},
        {"corrupt_int_range", "int:bits=3", 24, 3 | 6 << 2 | 1 << 7}, {"corrupt_qsgd_many", "qsgd:code=entropy", 24, 128},
        {"corrupt_qsgd_sizes", "qsgd:levels=4,norm=l2,bucket=tensor,code=entropy", 53, 6}, {"corrupt_qsgd_code", "qsgd:code=entropy", 37, 8},
        {"unknown_int", "int", 5, 16}, {"corrupt_lloyd_scale", "lloyd", 35, 0x80}, {"reserved_lloyd_word", "lloyd", 24, 1},
        {"corrupt_ecsq_head", "ecsq", 40, 2}, {"corrupt_ecsq_no_table", "ecsq", 57, 0}, {"corrupt_ecsq_sizes", "ecsq", 57, 129},
        {"corrupt_ecsq_states", "ecsq", 44, 0xff}, {"corrupt_ecsq_step", "ecsq", 35, 0xbf}, {"corrupt_ecsq_end", "ecsq", 61, 0xff},
        {"reserved_ecsq_word", "ecsq", 24, 1}, {"corrupt_row_length", "onebit:block=row", 32, 15},
        {"corrupt_row_before", "onebit:block=row", 36, 20}, {"truncated_rows_before", "onebit:block=row", 36, 1},
        {"trailing_longer_rows", "sign:block=row", 32, 50}, {"reserved_row_padding", "onebit:block=row", 32 + 8 + 5 * 8 + 2, 0x10},
        {"corrupt_values_by_rows", "topk:density=0.05+sign", 24, 1}};
    static uint8_t p[GCOMP_BOUND(LARGEST)];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t length = make_payload(bad[i].text, 100, i, p, sizeof p);
        p[bad[i].at] = (uint8_t)bad[i].value;
        if (!strcmp(bad[i].name, "corrupt_mx_overflow")) p[36 + 32] = 0x80; /* 2^127 * -2 */
        if (gcomp_check(p, length, 100) == GCOMP_OK) fail(bad[i].name);
        write_file(dir, bad[i].name, p, length, 100);
    }
}

/* Payloads that send the elements 5, 7 and 90 of 100, by each coder of indices; and some that no
   encoder writes. */
static void make_indices(const char *dir)
{
    static const struct { const char *name; int coder; size_t bytes; uint8_t byte[13]; } some[] = {
        {"valid_indices_bitmap", 255, 13, {0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0}},
        {"valid_indices_rice", 5, 3, {0x8a, 0x30, 0x09}},
        {"valid_indices_packed", 254, 4, {7, 0x85, 0x80, 0x14}},
        {"valid_indices_raw", 253, 12, {5, 0, 0, 0, 7, 0, 0, 0, 90, 0, 0, 0}},
        {"corrupt_indices_width", 254, 4, {8, 5, 1, 82}}, {"corrupt_indices_wide", 254, 4, {33, 5, 1, 82}},
        {"corrupt_indices_fall", 253, 12, {5, 0, 0, 0, 90, 0, 0, 0, 7, 0, 0, 0}},
        {"corrupt_indices_last", 253, 12, {5, 0, 0, 0, 7, 0, 0, 0, 100, 0, 0, 0}},
        {"corrupt_indices_coder", 252, 12, {5, 0, 0, 0, 7, 0, 0, 0, 90, 0, 0, 0}},
        {"corrupt_indices_bitmap", 255, 13, {0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10}},
        {"reserved_indices_packed", 254, 4, {7, 0x85, 0x80, 0x34}}, {"reserved_indices_rice", 5, 3, {0x8a, 0x30, 0x89}}};
    static uint8_t p[GCOMP_BOUND(LARGEST)];
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        make_payload("topk:density=0.05", 100, i, p, sizeof p);
        put_word(p + 16, 9 + some[i].bytes + 12, 8);
        put_word(p + 32, 3, 8);
        p[40] = (uint8_t)some[i].coder;
        memcpy(p + 41, some[i].byte, some[i].bytes);
        for (size_t k = 0; k < 3; k++) put_word(p + 41 + some[i].bytes + 4 * k, 0x3f800000u, 4);
        if ((gcomp_check(p, 41 + some[i].bytes + 12, 100) == GCOMP_OK) != (some[i].name[0] == 'v')) fail(some[i].name);
        write_file(dir, some[i].name, p, 41 + some[i].bytes + 12, 100);
    }
}

static void make_corpus(const char *dir)
{
    static uint8_t p[GCOMP_BOUND(LARGEST)];
    for (size_t c = 0; c < text_count; c++) {
        char name[128];
        size_t length = make_payload(texts[c], 100, 1, p, sizeof p);
        snprintf(name, sizeof name, "valid_%s", texts[c]);
        for (char *at = name; *at; at++)
            if (strchr(":,+=", *at)) *at = '_';
        write_file(dir, name, p, length, 100);
    }
    size_t length = make_payload("sign", 100, 7, p, sizeof p);
    write_file(dir, "truncated", p, length - 1, 100);
    write_file(dir, "trailing_bytes", p, length + 1, 100);
    write_file(dir, "count_mismatch", p, length, 99);
    p[4] = 2;
    write_file(dir, "unsupported_version", p, length, 100);
    p[4] = 1;
    p[5] = 99;
    write_file(dir, "unknown_method", p, length, 100);
    p[5] = 4;
    p[6] = 0x80;
    write_file(dir, "reserved_bits", p, length, 100);
    p[6] = 2;
    write_file(dir, "checksum_mismatch", p, length, 100);
    p[6] = 0;
    put_word(p + 32, 0x7f800000u, 4);
    write_file(dir, "corrupt_scale", p, length, 100);
    p[0] = 'X';
    write_file(dir, "not_a_payload", p, length, 100);
    p[0] = 'G';
    put_word(p + 16, 0, 8);
    p[6] = 1;
    put_word(p + 24, 0, 4);
    write_file(dir, "refusal", p, 32, 100);
    make_corrupt(dir);
    make_indices(dir);
}

static void mutate(uint64_t count)
{
    static uint8_t p[GCOMP_BOUND(LARGEST) + 64];
    static const size_t sizes[] = {0, 1, 7, 16, 17, 33, 100, 257};
    uint64_t s = 88172645463325252u, valid = 0;
    for (uint64_t k = 0; k < count; k++) {
        uint64_t round = k / text_count; /* what is done does not depend on the codec */
        size_t n = sizes[round % 8], length = make_payload(texts[k % text_count], n, k / 64, p, sizeof p);
        unsigned flips = 1 + (unsigned)(round % 3);
        if (round % 5 == 0 && add_checksum(p, length)) fail("seal failed");
        for (unsigned f = 0; f < flips; f++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            p[s % length] ^= (uint8_t)(1u << (s >> 40 & 7));
        }
        if (round % 2) renew_seal(p, length);
        if (round % 7 == 0) length -= (size_t)(s >> 20) % (length + 1);
        if (round % 11 == 0) length += (size_t)(s >> 30) % 16;
        valid += decode_everywhere(p, length, n) == GCOMP_OK;
    }
    printf("%llu mutated payloads, %llu of them still valid\n", (unsigned long long)count, (unsigned long long)valid);
}

int main(int argc, char **argv)
{
    collect_texts();
    if (argc == 3 && !strcmp(argv[1], "--make-corpus")) return make_corpus(argv[2]), 0;
    if (argc == 3 && !strcmp(argv[1], "--mutate")) return mutate(strtoull(argv[2], NULL, 0)), 0;
    if (argc < 2) return fprintf(stderr, "no files\n"), 2;
    for (int i = 1; i < argc; i++) {
        static uint8_t bytes[1 << 16];
        const char *name = strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i];
        gcomp_result result;
        FILE *f = fopen(argv[i], "rb");
        if (!f) return perror(argv[i]), 1;
        size_t size = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        LLVMFuzzerTestOneInput(bytes, size);
        if (size < 4 || bytes[2] || (strncmp(name, "valid_", 6) && strncmp(name, "corrupt_", 8) && strncmp(name, "reserved_", 9)))
            continue;
        result = gcomp_check(bytes + 4, size - 4, bytes[0] | (size_t)bytes[1] << 8); /* their names say what they are */
        if (result != (name[0] == 'v' ? GCOMP_OK : name[0] == 'c' ? GCOMP_CORRUPT : GCOMP_RESERVED_BITS)) fail(name);
    }
    printf("%d files\n", argc - 1);
    return 0;
}
#endif
