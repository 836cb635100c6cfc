/* Proves of qsgd and terngrad with code=entropy: coded levels decode to what packed codes decode to, on every instruction set and
   with any number of tasks; they take hardly more bits than their entropy; and anything else is refused. test_ecsq.c has the
   streams of a third method, byte by byte; decode.py reads all of them after the manual alone. */
#include "codecs.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 2 * 65536 + 4099, SHAPES = 7 };
static float g[LARGEST], y[LARGEST], z[LARGEST];
static uint8_t plain[GCOMP_BOUND(LARGEST)], coded[GCOMP_BOUND(LARGEST)], other[GCOMP_BOUND(LARGEST)];
static gcomp_isa isa_now;
static size_t every; /* of the combinations of codec, size and shape one in so many is tried */

static const char *codecs[ALL_CODECS]; /* the listed ones with levels that can be coded, without their code */
static size_t codec_count;

/* Normal; zeros; one of 50 not zero, in one half only; runs of both; heavy tails; all equal;
   ever rarer. */
static void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double v = sqrt(-2 * log(uniform(2 * i) + 1e-18)) * cos(6.283185307179586 * uniform(2 * i + 1));
        if (shape == 1) v = 0;
        if (shape == 2 && (i % 50 != 7 || i > n / 2)) v = 0;
        if (shape == 3 && i / 700 % 3) v = 0;
        if (shape == 4) v = v * v * v * v * v * v * v;
        if (shape == 5) v = i % 3 == 0 ? -2.5 : 2.5;
        if (shape == 6 && uniform(i + 99) > 0.6 * exp(-(double)i * 8 / (double)n)) v = 0;
        g[i] = (float)v;
    }
}

static gcomp_codec codec_of(const char *text, const char *code)
{
    char whole[120];
    gcomp_codec codec;
    memset(&codec, 0, sizeof codec);
    snprintf(whole, sizeof whole, "%s%ccode=%s", text, strchr(text, ':') ? ',' : ':', code);
    CHECK(gcomp_codec_parse(&codec, whole, NULL, 0) == GCOMP_OK);
    return codec;
}

static void test_codecs_with_levels_are_listed(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        char coded_text[120];
        gcomp_codec codec;
        if (strstr(text, "code=") || strchr(text, '+') || !codec_has_payload(text)) continue;
        snprintf(coded_text, sizeof coded_text, "%s%ccode=entropy", text, strchr(text, ':') ? ',' : ':');
        if (gcomp_codec_parse(&codec, coded_text, NULL, 0) == GCOMP_OK) codecs[codec_count++] = text;
    }
    CHECK(codec_count > 14);
}

static size_t encode(const gcomp_codec *codec, size_t n, gcomp_isa isa, gcomp_parallel parallel, uint8_t *to)
{
    static uint8_t scratch[1 << 16];
    gcomp_exec exec = {isa, scratch, sizeof scratch, parallel};
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    in.key = gcomp_key_make(1, 2, 3, 4);
    CHECK(gcomp_encode(codec, &in, &exec, to, gcomp_bound(codec, n, NULL), &length) == GCOMP_OK);
    return length;
}

static const gcomp_parallel alone = {NULL, NULL};

static size_t scales_of(const gcomp_codec *codec, size_t n) /* bytes: a float a block */
{
    const size_t block = (size_t)codec->param[codec->method == 12 ? 1 : 2];
    return n == 0 ? 0 : block ? 4 * ((n + block - 1) / block) : 4;
}

/* ---------------- decoding */

static void same_decodings(const gcomp_codec *codec, size_t n, size_t length, size_t plain_length)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    const void *mixed[3] = {coded, plain, coded}, *all[3] = {plain, plain, plain};
    size_t lengths[3] = {length, plain_length, length}, plains[3] = {plain_length, plain_length, plain_length};
    gcomp_input in;
    gcomp_info info;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    CHECK(gcomp_check(coded, length, n) == GCOMP_OK);
    CHECK(gcomp_peek(coded, length, &info) == GCOMP_OK && info.length == length);
    CHECK(info.codec.param[3] == 1 && codec->param[3] == 1);
    CHECK(gcomp_decode(plain, plain_length, y, GCOMP_F32, n, &exec) == GCOMP_OK && gcomp_decode(coded, length, z, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, z, 4 * n));
    CHECK(gcomp_decode_add(plain, plain_length, 0.3f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(gcomp_decode_add(coded, length, 0.3f, z, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, z, 4 * n));
    CHECK(gcomp_decode_mean(all, plains, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(gcomp_decode_mean(mixed, lengths, 3, z, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, z, 4 * n));
    CHECK(gcomp_retain(plain, plain_length, &in, y, &exec) == GCOMP_OK && gcomp_retain(coded, length, &in, z, &exec) == GCOMP_OK);
    CHECK(!memcmp(y, z, 4 * n));
}

static void test_coded_levels_decode_as_packed_ones(void)
{
    static const size_t sizes[] = {0, 1, 15, 17, 63, 64, 65, 100, 1000, 2049, 8192 + 1, 16385, 65536, LARGEST};
    for (size_t c = 0; c < codec_count; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t shape = (c + s) % every; shape < SHAPES; shape += every) {
                const gcomp_codec packed = codec_of(codecs[c], "packed"), codec = codec_of(codecs[c], "entropy");
                const size_t n = sizes[s];
                if (n > 10000 && shape % 3 != c % 3) continue;
                fill((int)shape, n);
                const size_t plain_length = encode(&packed, n, isa_now, alone, plain);
                const size_t length = encode(&codec, n, isa_now, alone, coded);
                CHECK(length <= gcomp_bound(&codec, n, NULL));
                CHECK(length <= plain_length + (n ? 1 + 9 * ((n - 1) / 65536) : 0)); /* heads, ends */
                CHECK(encode(&codec, n, GCOMP_ISA_SCALAR, alone, other) == length && !memcmp(coded, other, length));
                same_decodings(&codec, n, length, plain_length);
            }
}

/* A mean of payloads of several codecs: what is not coded may have blocks by rows. */
static void test_coded_levels_have_a_mean_with_other_codecs(void)
{
    static const char *const others[] = {"sign:block=row", "onebit:block=row", "mx", "int:bits=3", "ecsq", "eden"};
    enum { ROWS = 70, COLS = 1100, N = ROWS * COLS };
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    const gcomp_codec codec = codec_of("qsgd:levels=4", "entropy");
    fill(0, N);
    const size_t length = encode(&codec, N, isa_now, alone, coded);
    for (size_t o = 0; o < sizeof others / sizeof *others; o++) {
        static uint8_t scratch[GCOMP_SCRATCH(N)];
        const gcomp_exec with = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
        gcomp_codec second;
        gcomp_input in;
        size_t lengths[2] = {length, 0};
        const void *const payloads[2] = {coded, other};
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.grad = g;
        in.rows = ROWS;
        in.cols = COLS;
        in.key = gcomp_key_make(1, 2, 3, 4);
        CHECK(gcomp_codec_parse(&second, others[o], NULL, 0) == GCOMP_OK);
        CHECK(gcomp_encode(&second, &in, &with, other, sizeof other, lengths + 1) == GCOMP_OK);
        CHECK(gcomp_decode_mean(payloads, lengths, 2, y, GCOMP_F32, N, &with) == GCOMP_OK);
        memset(z, 0, sizeof z);
        for (int w = 0; w < 2; w++) CHECK(gcomp_decode_add(payloads[w], lengths[w], 0.5f, z, GCOMP_F32, N, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, z, 4 * N));
    }
}

/* ---------------- sizes */

/* Bits of normal numbers, and the entropy of their levels, which is what any code of single levels takes at least. */
static void test_levels_take_hardly_more_bits_than_their_entropy(void)
{
    static const char *const texts[] = {"qsgd:levels=1,norm=l2", "qsgd:levels=4,norm=l2", "qsgd:levels=16,norm=l2", "qsgd:levels=1", "qsgd:levels=4",
                                        "qsgd", "qsgd:levels=127", "qsgd:spacing=powers", "terngrad"};
    enum { N = 131072 };
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (int shape = 0; shape < 2; shape++) { /* normal numbers and their cubes */
            gcomp_codec codec = codec_of(texts[t], "entropy"), packed;
            size_t count[256] = {0};
            double least = 0;
            fill(0, N);
            for (size_t i = 0; shape && i < N; i++) g[i] = g[i] * g[i] * g[i];
            const double bits = 8 * (double)(encode(&codec, N, isa_now, alone, coded) - 32 - scales_of(&codec, N)) / N;
            packed = codec_of(texts[t], "packed");
            encode(&packed, N, isa_now, alone, plain);
            const unsigned width = strstr(texts[t], "127") || strstr(texts[t], "16") ? 8 : strstr(texts[t], "=1") || codec.method == 12 ? 2 : 4;
            const uint8_t *const levels = plain + 32 + scales_of(&codec, N);
            for (size_t i = 0; i < N; i++) count[levels[i * width / 8] >> i * width % 8 & ((1u << width) - 1)]++;
            for (int k = 0; k < 256; k++)
                if (count[k]) least -= (double)count[k] / N * log2((double)count[k] / N);
            const double more = width == 8 ? 0.12 : 0.03; /* a table of many sizes has bytes, and rounds their shares */
            if (bits > least + more) printf("# %s: %.4f bits, entropy %.4f\n", texts[t], bits, least);
            CHECK(bits <= least + more && bits > least - 0.03);
        }
}

/* ---------------- what is no payload */

static gcomp_result try_bytes(const uint8_t *bytes, size_t length, size_t n)
{
    uint8_t *copy = (uint8_t *)malloc(length ? length : 1);
    float *out = (float *)malloc(4 * n + 4);
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    gcomp_result result;
    memcpy(copy, bytes, length);
    result = gcomp_check(copy, length, n);
    CHECK(gcomp_decode(copy, length, out, GCOMP_F32, n, &exec) == result);
    for (size_t i = 0; result == GCOMP_OK && i < n; i++) CHECK(out[i] - out[i] == 0);
    free(copy);
    free(out);
    return result;
}

static void put_length(uint8_t *p, size_t length)
{
    for (int i = 0; i < 8; i++) p[16 + i] = (uint8_t)((uint64_t)(length - 32) >> (8 * i));
}

static void test_damage_is_refused_or_harmless(void)
{
    static const char *const texts[] = {"qsgd:levels=1", "qsgd:levels=1,norm=l2", "qsgd:levels=4", "qsgd", "qsgd:levels=127",
                                        "qsgd:levels=100,bucket=16", "qsgd:levels=30,spacing=powers", "terngrad"};
    size_t valid = 0, all = 0;
    for (size_t c = 0; c < 8; c++)
        for (int k = 0; k < 3; k++) { /* packed codes of a byte; 4 lanes; 4 lanes and a short turn */
            gcomp_codec codec = codec_of(texts[c], "entropy");
            size_t n = k == 0 ? 9 : k == 1 ? 131 + c : 700, length;
            fill(c % 3 == 1 ? 2 : 0, n);
            length = encode(&codec, n, isa_now, alone, coded);
            CHECK(try_bytes(coded, length, n) == GCOMP_OK);
            for (size_t cut = 1; cut <= length; cut++) {
                CHECK(try_bytes(coded, length - cut, n) != GCOMP_OK);
                memcpy(other, coded, length);
                if (cut > length - 32) continue;
                put_length(other, length - cut);
                CHECK(try_bytes(other, length - cut, n) != GCOMP_OK);
            }
            memcpy(other, coded, length);
            memset(other + length, 0, 4);
            put_length(other, length + 1);
            CHECK(try_bytes(other, length + 1, n) == GCOMP_TRAILING_BYTES);
            CHECK(try_bytes(other, length + 2, n) != GCOMP_OK);
            for (size_t bit = 8 * 24; bit < 8 * length; bit++, all++) {
                memcpy(other, coded, length);
                other[bit / 8] = (uint8_t)(other[bit / 8] ^ 1u << bit % 8);
                valid += try_bytes(other, length, n) == GCOMP_OK;
            }
        }
    CHECK(valid < all);
}

/* The field of the parameter word that says how many levels qsgd has. */
static void put_levels(unsigned levels)
{
    coded[24] = (uint8_t)levels;
    coded[25] = (uint8_t)((coded[25] & 0x80) | levels >> 8);
}

/* As many levels as the stream needs are accepted, and more; with fewer it is refused: by the table, by a level behind an escape, by
   a code of a chunk that is packed. */
static void test_levels_above_their_number_are_refused(void)
{
    static const struct { const char *text; size_t n; int most, coded; } streams[] = {
        {"qsgd:levels=4,bucket=tensor", 1000, 4, 5}, {"qsgd:levels=127,bucket=tensor", 3000, 127, 2}, {"qsgd:levels=9,bucket=tensor", 11, 9, 0}};
    for (size_t s = 0; s < 3; s++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const gcomp_codec codec = codec_of(streams[s].text, "entropy");
            const size_t n = streams[s].n;
            for (size_t i = 0; i < n; i++) g[i] = (float)(i % 3) - 1; /* of whole numbers nothing is rounded */
            for (size_t i = 0; i < n; i += s == 1 ? n : 7) g[i] = (float)(sign * streams[s].most);
            const size_t length = encode(&codec, n, isa_now, alone, coded);
            CHECK(coded[36] == (streams[s].coded != 0));
            if (streams[s].coded) CHECK(coded[53] == streams[s].coded); /* sizes of the table */
            for (unsigned levels = 1; levels <= 127; levels++) {
                put_levels(levels);
                const gcomp_result found = try_bytes(coded, length, n);
                if ((int)levels >= streams[s].most) CHECK(found == GCOMP_OK);
                else if (streams[s].coded || levels > 7) CHECK(found == GCOMP_CORRUPT);
                else CHECK(found != GCOMP_OK); /* its packed codes have fewer bits */
            }
            put_levels(128); /* as packed codes such levels have 16 bits; coded ones there are not */
            CHECK(try_bytes(coded, length, n) == GCOMP_CORRUPT);
        }
}

/* A chunk that is packed, when an encoder would have coded it: each code is tried, each head, and bits behind the last code. */
static void test_codes_of_a_packed_chunk_are_levels(void)
{
    static const struct { const char *text; int levels; unsigned bits; } some[] = {
        {"qsgd:levels=1,bucket=256", 1, 2}, {"qsgd:levels=4,bucket=256", 4, 4}, {"qsgd:levels=100,bucket=256", 100, 8}};
    for (size_t s = 0; s < 3; s++) {
        const gcomp_codec codec = codec_of(some[s].text, "entropy");
        const unsigned bits = some[s].bits;
        const size_t n = 251, bytes = (n * bits + 7) / 8, length = 36 + 1 + bytes;
        for (size_t i = 0; i < n; i++) g[i] = 0;
        CHECK(encode(&codec, n, isa_now, alone, coded) < length);
        memset(coded + 36, 0, 1 + bytes);
        put_length(coded, length);
        CHECK(try_bytes(coded, length, n) == GCOMP_OK);
        for (int code = 0; code < 1 << bits; code++) {
            const size_t i = (size_t)code % 251;
            const int q = code < 1 << (bits - 1) ? code : code - (1 << bits);
            coded[37 + i * bits / 8] = (uint8_t)((unsigned)code << i * bits % 8);
            CHECK(try_bytes(coded, length, n) == (abs(q) <= some[s].levels ? GCOMP_OK : GCOMP_CORRUPT));
            coded[37 + i * bits / 8] = 0;
        }
        for (unsigned head = 1; head < 256; head++) {
            coded[36] = (uint8_t)head;
            CHECK(try_bytes(coded, length, n) == GCOMP_CORRUPT); /* 1: states are not 0 */
        }
        coded[36] = 0;
        for (unsigned bit = 0; bit < 8; bit++) {
            const int used = n * bits % 8 == 0 || bit < n * bits % 8;
            coded[length - 1] = (uint8_t)(1u << bit);
            if (!used) CHECK(try_bytes(coded, length, n) == GCOMP_RESERVED_BITS);
            coded[length - 1] = 0;
        }
        put_length(coded, length - 1);
        CHECK(try_bytes(coded, length - 1, n) == GCOMP_TRUNCATED);
        put_length(coded, length);
        coded[26] ^= 1 << 4; /* bit 20 of the word: packed codes without a head */
        CHECK(try_bytes(coded, length, n) == GCOMP_TRAILING_BYTES);
    }
}

static void test_a_table_of_ends_out_of_order_is_refused(void)
{
    gcomp_codec codec = codec_of("qsgd:levels=1,bucket=65536", "entropy");
    size_t n = LARGEST, length, at = 32 + 12;
    fill(0, n);
    length = encode(&codec, n, isa_now, alone, coded);
    CHECK(try_bytes(coded, length, n) == GCOMP_OK);
    for (size_t i = 0; i < 16; i++) {
        coded[at + i] ^= 0x11;
        CHECK(try_bytes(coded, length, n) != GCOMP_OK);
        coded[at + i] ^= 0x11;
    }
    CHECK(try_bytes(coded, length, n) == GCOMP_OK);
}

/* ---------------- calls */

static void test_a_small_buffer_and_what_is_not_finite(void)
{
    for (size_t c = 0; c < codec_count; c++) {
        gcomp_codec codec = codec_of(codecs[c], "entropy");
        gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
        gcomp_input in;
        size_t n = 70000, length = 7, bound = gcomp_bound(&codec, n, NULL);
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.grad = g;
        in.rows = n;
        in.key = gcomp_key_make(1, 0, 0, 0);
        fill(0, n);
        CHECK(bound <= GCOMP_BOUND(n));
        memset(coded, 0xee, bound + 64);
        CHECK(gcomp_encode(&codec, &in, &exec, coded, bound - 1, &length) == GCOMP_DST_TOO_SMALL && length == 7);
        CHECK(gcomp_encode(&codec, &in, &exec, coded, bound, &length) == GCOMP_OK && length <= bound);
        for (size_t i = 0; i < 64; i++) CHECK(coded[bound + i] == 0xee);
        g[n - 3] = INFINITY;
        CHECK(gcomp_encode(&codec, &in, &exec, coded, bound, &length) == GCOMP_NOT_FINITE && length == 32);
        CHECK(gcomp_check(coded, length, n) == GCOMP_NOT_FINITE);
    }
}

static void run_some(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    size_t tasks = *(size_t *)user;
    for (size_t t = 0; t < tasks; t++)
        for (size_t i = tasks - 1 - t; i < count; i += tasks) task(arg, i);
}

static void test_tasks_do_not_change_the_bytes(void)
{
    for (size_t c = 0; c < codec_count; c += every) {
        gcomp_codec codec = codec_of(codecs[c], "entropy");
        size_t n = LARGEST, length;
        fill((int)c % SHAPES, n);
        length = encode(&codec, n, isa_now, alone, coded);
        for (size_t tasks = 1; tasks <= 7; tasks += tasks == 1 ? 1 : 5) {
            gcomp_parallel parallel = {run_some, &tasks};
            gcomp_exec exec = {isa_now, NULL, 0, parallel};
            CHECK(encode(&codec, n, isa_now, parallel, other) == length && !memcmp(coded, other, length));
            CHECK(gcomp_decode(coded, length, z, GCOMP_F32, n, &exec) == GCOMP_OK);
            exec.parallel = alone;
            CHECK(gcomp_decode(coded, length, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, z, 4 * n));
        }
    }
}

static void test_code_is_a_parameter_in_texts_but_not_of_values(void)
{
    static const struct { const char *text, *why; } refused[] = {
        {"qsgd:code=huffman", "qsgd code cannot be 'huffman': it takes packed or entropy"},
        {"qsgd:levels=128,code=entropy", "qsgd:code=entropy takes at most 127 levels"},
        {"topk+qsgd:code=entropy", "a sparse method's values are packed: they take no other code"},
        {"int:code=entropy", "int has no parameter 'code'; it has: bits block rounding range"}};
    gcomp_codec codec;
    char text[80], why[160];
    CHECK(gcomp_codec_parse(&codec, "qsgd:levels=4,code=entropy", NULL, 0) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "qsgd:levels=4,code=entropy"));
    codec.param[0] = 128;
    CHECK(gcomp_bound(&codec, 100, NULL) == 0);
    CHECK(gcomp_codec_parse(&codec, "qsgd:code=packed", NULL, 0) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "qsgd"));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        CHECK(gcomp_codec_parse(&codec, refused[i].text, why, sizeof why) == GCOMP_BAD_CODEC);
        CHECK(!strcmp(why, refused[i].why));
    }
    CHECK(gcomp_codec_parse(&codec, "topk+qsgd:code=packed", NULL, 0) == GCOMP_OK);
    codec.value_param[3] = 1;
    CHECK(gcomp_bound(&codec, 100, NULL) == 0);
    CHECK(gcomp_codec_parse(&codec, "topk:density=0.1+qsgd", NULL, 0) == GCOMP_OK);
    {
        static uint8_t scratch[GCOMP_SCRATCH(100)];
        gcomp_exec exec = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
        gcomp_input in;
        size_t length = 0;
        memset(&in, 0, sizeof in);
        in.scale = 1;
        fill(0, 100);
        in.grad = g;
        in.rows = 100;
        in.key = gcomp_key_make(1, 0, 0, 0);
        CHECK(gcomp_encode(&codec, &in, &exec, coded, sizeof coded, &length) == GCOMP_OK);
        CHECK(try_bytes(coded, length, 100) == GCOMP_OK);
        coded[26] |= 0x10; /* code=entropy in the values' word */
        CHECK(try_bytes(coded, length, 100) == GCOMP_CORRUPT);
    }
}

int main(void)
{
    every = test_is_long() ? 1 : test_is_slow() ? 6 : 4;
    RUN(test_codecs_with_levels_are_listed);
    RUN(test_code_is_a_parameter_in_texts_but_not_of_values);
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_coded_levels_decode_as_packed_ones);
        RUN(test_coded_levels_have_a_mean_with_other_codecs);
        RUN(test_levels_take_hardly_more_bits_than_their_entropy);
        RUN(test_damage_is_refused_or_harmless);
        RUN(test_levels_above_their_number_are_refused);
        RUN(test_codes_of_a_packed_chunk_are_levels);
        RUN(test_a_table_of_ends_out_of_order_is_refused);
        RUN(test_a_small_buffer_and_what_is_not_finite);
        RUN(test_tasks_do_not_change_the_bytes);
    }
    return test_end();
}
