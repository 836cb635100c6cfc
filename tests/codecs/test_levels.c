/* Proves of entropy-coded levels: they decode to what packed codes decode to, on every instruction
   set and with any number of tasks; a plain reader, written from the manual, reads the same
   levels; strings worked out by hand have the same bits; and anything else is refused. */
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
static const char *const codes[] = {"packed", "elias", "rice", "auto"};

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
        if (strstr(text, "code=") || !codec_has_payload(text)) continue;
        snprintf(coded_text, sizeof coded_text, "%s%ccode=auto", text, strchr(text, ':') ? ',' : ':');
        if (gcomp_codec_parse(&codec, coded_text, NULL, 0) == GCOMP_OK) codecs[codec_count++] = text;
    }
    CHECK(codec_count > 20);
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

static size_t scales_of(const gcomp_codec *codec, size_t n) /* bytes: a float a block, of int a bf16 */
{
    const size_t block = (size_t)codec->param[codec->method == 12 || codec->method == 40 ? 1 : 2], each = codec->method == 40 ? 2 : 4;
    return n == 0 ? 0 : block ? each * ((n + block - 1) / block) : each;
}

/* int to nearest has all levels where they are packed, and symmetric ones where they are coded. */
static int packed_is_other(const gcomp_codec *codec) { return codec->method == 40 && codec->param[2] == 0; }

static unsigned code_bits(const gcomp_codec *codec)
{
    double s = codec->method == 12 ? 1 : codec->param[0];
    if (codec->method == 14) return s > 7 ? 8 : 4;
    if (codec->method == 40) return 8u >> (unsigned)s;
    return s > 127 ? 16 : s > 7 ? 8 : s > 1 ? 4 : 2;
}

static long levels_of(const gcomp_codec *codec)
{
    return codec->method == 12 ? 1 : codec->method == 40 ? (1l << (code_bits(codec) - 1)) - 1 : (long)codec->param[0];
}

/* ---------------- decoding */

static void same_decodings(const gcomp_codec *c, const gcomp_codec *p, size_t n, size_t length, size_t plain_length)
{
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    const void *mixed[3] = {coded, plain, coded}, *all[3] = {plain, plain, plain};
    size_t lengths[3] = {length, plain_length, length}, plains[3] = {plain_length, plain_length, plain_length};
    gcomp_input in;
    gcomp_info info;
    (void)p;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    CHECK(gcomp_check(coded, length, n) == GCOMP_OK);
    CHECK(gcomp_peek(coded, length, &info) == GCOMP_OK && info.length == length);
    CHECK(info.codec.param[c->method == 40 ? 4 : 3] == c->param[c->method == 40 ? 4 : 3]);
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
    static const size_t sizes[] = {0, 1, 15, 17, 63, 64, 65, 1000, 8192 + 1, 65536, LARGEST};
    for (size_t c = 0; c < codec_count; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t shape = (c + s) % every; shape < SHAPES; shape += every) {
                gcomp_codec packed = codec_of(codecs[c], "packed");
                if (packed_is_other(&packed)) packed = codec_of(codecs[c], "elias");
                size_t n = sizes[s], length, plain_length, least = (size_t)-1;
                if (n > 10000 && shape % 3 != c % 3) continue;
                fill((int)shape, n);
                plain_length = encode(&packed, n, isa_now, alone, plain);
                for (int k = 1; k < 4; k++) {
                    gcomp_codec codec = codec_of(codecs[c], codes[k]);
                    size_t segments = (n * code_bits(&codec) + 16383) / 16384;
                    length = encode(&codec, n, isa_now, alone, coded);
                    const size_t most = packed_is_other(&packed) ? 32 + scales_of(&packed, n) + (n * code_bits(&packed) + 7) / 8 : plain_length;
                    CHECK(length <= most + segments + (n ? 8 * ((n - 1) / 65536) : 0));
                    CHECK(length <= gcomp_bound(&codec, n, NULL));
                    if (k < 3) least = length < least ? length : least;
                    CHECK(encode(&codec, n, GCOMP_ISA_SCALAR, alone, other) == length && !memcmp(coded, other, length));
                    same_decodings(&codec, &packed, n, length, plain_length);
                }
            }
}

/* ---------------- a plain reader, written from the manual */

typedef struct stream {
    const uint8_t *bytes;
    size_t at, bits; /* bits read, and all */
    int high;        /* each byte from its highest bit */
} stream;

static unsigned next(stream *s)
{
    unsigned byte;
    CHECK(s->at < s->bits);
    if (s->at >= s->bits) return 0;
    byte = s->bytes[s->at / 8];
    byte = s->high ? byte >> (7 - s->at % 8) : byte >> (s->at % 8);
    s->at++;
    return byte & 1;
}

static size_t omega(stream *s)
{
    size_t n = 1;
    while (next(s) && s->at < s->bits) {
        size_t more = 1;
        for (size_t k = 0; k < n; k++) more = 2 * more + next(s);
        n = more;
    }
    return n;
}

/* Which of 64 are not 0, as a tree: `depth` times, i and i + half are first asked together. */
static void tree(stream *s, unsigned *some, size_t left, unsigned depth)
{
    size_t half = (size_t)64 >> depth;
    for (size_t i = 0; i < half; i++) some[i] = i < left ? next(s) : 0;
    for (; depth; depth--, half *= 2) {
        unsigned parent[64];
        memcpy(parent, some, sizeof parent);
        for (size_t i = 0; i < half; i++) some[i] = parent[i] ? next(s) : 0;
        for (size_t i = 0; i < half; i++) some[i + half] = some[i] ? next(s) : parent[i];
    }
}

/* A segment into levels; returns its bytes. */
static size_t read_segment(const uint8_t *p, size_t count, unsigned bits, long levels, long *q)
{
    unsigned head = p[0], k = head & 0x40 ? head & 15 : 0;
    size_t length = p[1] | (size_t)p[2] << 8, at = 0;
    stream s = {p + 3, 0, 8 * length, head == 1};
    static unsigned map[8192];
    memset(q, 0, count * sizeof *q);
    if (head == 0) {
        for (size_t i = 0; i < count; i++) {
            uint32_t code = p[1 + i * bits / 8];
            if (bits == 16) code |= (uint32_t)p[2 + 2 * i] << 8;
            code = bits < 8 ? code >> (i * bits % 8) & ((1u << bits) - 1) : code;
            q[i] = code >> (bits - 1) ? (long)code - (1l << bits) : (long)code;
        }
        return 1 + (count * bits + 7) / 8;
    }
    if (head == 1) {
        for (;;) {
            at += omega(&s);
            if (at > count || s.at >= s.bits) break;
            q[at - 1] = next(&s) ? -1 : 1;
            q[at - 1] *= (long)omega(&s);
        }
        CHECK(at == count + 1);
    } else if (!(head & 0x40)) {
        memset(map, 0, sizeof map);
        for (;;) {
            size_t ones = 0, low = 0;
            while (next(&s)) ones++;
            for (unsigned b = 0; b < (head & 15); b++) low |= (size_t)next(&s) << b;
            at += (ones << (head & 15)) + low;
            if (at >= count) break;
            map[at++] = 1;
        }
        CHECK(at == count);
    }
    for (size_t i = 0; head > 1 && i < count; i += 64) {
        size_t left = count - i < 64 ? count - i : 64;
        unsigned some[64] = {0}, all[64] = {0};
        for (unsigned b = 0; b < k; b++)
            for (size_t j = 0; j < left; j++) q[i + j] |= (long)next(&s) << b;
        if (head & 0x40) tree(&s, all, left, head >> 4 & 3);
        else memcpy(all, map + i, left * sizeof *all);
        memcpy(some, all, sizeof some);
        for (long u = 1; u <= levels >> k; u++) {
            if (u > 1)
                for (size_t j = 0; j < 64; j++) some[j] = some[j] && next(&s);
            for (size_t j = 0; j < left; j++) q[i + j] += some[j] ? 1l << k : 0;
        }
        for (size_t j = 0; j < left; j++)
            if (q[i + j] && next(&s)) q[i + j] = -q[i + j];
    }
    CHECK((s.at + 7) / 8 == length);
    while (s.at < s.bits) CHECK(next(&s) == 0);
    CHECK(3 + length <= (count * bits + 7) / 8);
    return 3 + length;
}

static void test_a_plain_reader_finds_the_packed_levels(void)
{
    static const size_t sizes[] = {100, 8191, 65536 + 777};
    static long q[8192], expected[8192];
    int heads[256] = {0};
    for (size_t c = 0; c < codec_count; c++)
        for (size_t t = c % every; t < 3 * SHAPES * 3; t += every) {
            gcomp_codec packed = codec_of(codecs[c], "packed"), codec = codec_of(codecs[c], codes[1 + t % 3]);
            size_t n = sizes[t / 3 % 3], skip = 32 + scales_of(&packed, n), segment = 16384 / code_bits(&codec), length;
            const uint8_t *p = coded + skip + 8 * ((n - 1) / 65536);
            unsigned bits = code_bits(&codec);
            if (packed_is_other(&packed) || (n > 10000 && t / 9 % 3 != c % 3)) continue;
            fill((int)(t / 9), n);
            encode(&packed, n, isa_now, alone, plain);
            length = encode(&codec, n, isa_now, alone, coded);
            for (size_t i = 0; i < n; i += segment) {
                size_t count = n - i < segment ? n - i : segment;
                other[0] = 0;
                memcpy(other + 1, plain + skip + i * bits / 8, (count * bits + 7) / 8);
                read_segment(other, count, bits, levels_of(&codec), expected);
                heads[p[0]]++;
                p += read_segment(p, count, bits, levels_of(&codec), q);
                CHECK(!memcmp(q, expected, count * sizeof *q));
                if (i + count == 65536) CHECK((size_t)(p - coded) == skip + 8 * ((n - 1) / 65536) + coded[skip] +
                                                                        ((size_t)coded[skip + 1] << 8) +
                                                                        ((size_t)coded[skip + 2] << 16));
            }
            CHECK(p == coded + length);
        }
    CHECK(heads[0] && heads[1] && heads[0x40] && heads[0x41] && heads[0x42] && heads[0x50] && heads[0x60]);
    CHECK(heads[0x22] + heads[0x23] + heads[0x24] + heads[0x25] && heads[0x26] + heads[0x27] + heads[0x28] + heads[0x2c]);
}

/* Coded levels of int to nearest: the step is the largest |p| over the largest level, rounded up to a bf16, and each number
   becomes the nearest multiple. */
static void test_coded_levels_of_int_are_symmetric(void)
{
    static const char *const texts[] = {"int", "int:bits=4", "int:bits=2", "int:bits=4,block=16", "int:bits=2,block=2048"};
    enum { N = 8192 + 100 };
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++)
        for (int shape = 0; shape < SHAPES; shape++) {
            gcomp_codec codec = codec_of(texts[c], codes[1 + (unsigned)shape % 3]);
            const size_t block = (size_t)codec.param[1];
            size_t wrong = 0, length;
            fill(shape, N);
            length = encode(&codec, N, isa_now, alone, coded);
            CHECK(gcomp_decode(coded, length, y, GCOMP_F32, N, NULL) == GCOMP_OK);
            for (size_t k = 0; k * block < N; k++) {
                const size_t end = (k + 1) * block < N ? (k + 1) * block : N;
                const float step = float_of((uint32_t)coded[32 + 2 * k] << 16 | (uint32_t)coded[33 + 2 * k] << 24);
                double most = 0;
                for (size_t i = k * block; i < end; i++) most = fmax(most, fabs((double)g[i]));
                most /= (double)levels_of(&codec);
                wrong += !(step >= most * (1 - 1e-7) && step <= most * (1 + 1 / (codec.param[0] == 2 ? 63.0 : 127.0)));
                for (size_t i = k * block; i < end; i++) {
                    const double q = step > 0 ? (double)y[i] / (double)step : 0;
                    wrong += q != nearbyint(q) || fabs(q) > (double)levels_of(&codec) || fabs((double)g[i] - y[i]) > 0.500001 * step;
                }
            }
            CHECK(wrong == 0);
        }
}

/* ---------------- sizes */

static void test_sizes_are_those_of_the_codes(void)
{
    static const struct { const char *text; const char *code; double least, most; } bars[] = {
        {"qsgd:levels=1,norm=l2", "elias", 0.35, 0.42}, {"qsgd:levels=1,norm=l2", "auto", 0.25, 0.28},
        {"qsgd:levels=4,norm=l2", "elias", 0.95, 1.10}, {"qsgd:levels=4,norm=l2", "auto", 0.80, 0.95},
        {"qsgd:levels=16,norm=l2", "auto", 1.80, 2.20}, {"qsgd:levels=1", "auto", 1.05, 1.15},
        {"int:block=512", "auto", 7.30, 7.60}, {"int:bits=4,block=512", "auto", 3.20, 3.50},
        {"qsgd:levels=4", "auto", 2.40, 2.80}, {"qsgd", "auto", 3.20, 3.50}, {"qsgd:levels=127", "auto", 7.35, 7.60}};
    fill(0, 131072);
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++) {
        gcomp_codec codec = codec_of(bars[i].text, bars[i].code);
        double bits = 8 * (double)(encode(&codec, 131072, isa_now, alone, coded) - 32 - scales_of(&codec, 131072)) / 131072;
        if (bits < bars[i].least || bits > bars[i].most) printf("# %s, %s: %.4f bits\n", bars[i].text, bars[i].code, bits);
        CHECK(bits >= bars[i].least && bits <= bars[i].most);
    }
}

static void test_auto_is_the_smallest(void)
{
    for (size_t c = 0; c < codec_count; c++)
        for (int shape = 0; shape < SHAPES; shape++) {
            size_t length[4], n = 30000;
            fill(shape, n);
            for (int k = 0; k < 4; k++) {
                gcomp_codec codec = codec_of(codecs[c], codes[k]);
                length[k] = encode(&codec, n, isa_now, alone, coded);
            }
            CHECK(length[3] <= length[2] && length[3] <= length[1] && length[3] <= length[0] + 30);
        }
}

/* Levels by hand: the largest of a block is `levels` steps, and 0 is 0. */
static void hand(const char *text, const char *code, const int *q, size_t n, const char *bytes)
{
    gcomp_codec codec = codec_of(text, code);
    size_t length, expected = strlen(bytes) / 3, i;
    for (i = 0; i < n; i++) g[i] = (float)q[i];
    length = encode(&codec, n, isa_now, alone, coded);
    CHECK(length == 32 + 4 + expected);
    for (i = 0; i < expected; i++) {
        unsigned byte = (unsigned)strtoul(bytes + 3 * i, NULL, 16);
        if (length == 36 + expected && coded[36 + i] != byte)
            printf("# %s: byte %zu is %02x, not %02x\n", code, i, coded[36 + i], byte);
        CHECK(length != 36 + expected || coded[36 + i] == byte);
    }
}

static void test_levels_are_coded_as_the_strings_worked_out_by_hand(void)
{
    int q[100] = {0};
    q[5] = 1;
    q[20] = -1;
    /* gap 6 = 10 110 0, + 0, 1 = 0; gap 15 = 11 1111 0, - 1, 1 = 0; end: gap 80 = 10 110
       1010000 0; zeros to a byte: 10110000 11111101 01011010 10000000 */
    hand("qsgd:levels=1,bucket=128", "elias", q, 100, "01 04 00 b0 fd 5a 80 ");
    /* Rice 4: gap 5 = 0 1010, gap 14 = 0 0111, end: gap 79 = 11110 1111; + 0, - 1; 21 bits, each
       byte from bit 0: 01010001 11111101 11101... */
    hand("qsgd:levels=1,bucket=128", "rice", q, 100, "24 03 00 8a bf 17 ");
    /* K = 1: 64 ones, 64 ones (u), the signs; 36 of each for the rest */
    for (int i = 0; i < 100; i++) q[i] = i % 2 ? 3 : -3;
    hand("qsgd:levels=3,bucket=128", "rice", q, 100,
         "41 26 00 ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff 55 55 55 55 55 55 55 55 "
         "ff ff ff ff ff ff ff ff ff 55 55 55 55 05 ");
    /* a tree of depth 3: 8 groups 01100100; 111 101; 11111 10111; 101111111 11111111;
       of 17 u >= 2: 0000000001 0000000, u >= 3: 1, u >= 4: 1; signs 0000000001 0000000 */
    for (int i = 0; i < 64; i++) q[i] = i == 34 ? -4 : i % 4 == 1 ? 1 : 0;
    hand("qsgd:levels=4,bucket=64", "rice", q, 64, "70 0a 00 26 ef ef fd ff 01 04 0c 20 00 ");
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
                                        "qsgd:levels=1000", "qsgd:levels=30,spacing=powers", "terngrad"};
    size_t valid = 0, all = 0;
    for (size_t c = 0; c < 8; c++)
        for (int k = 1; k < 4; k++) {
            gcomp_codec codec = codec_of(texts[c], codes[k]);
            size_t n = c % 2 ? 700 : 131, length;
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

static void test_other_forms_of_a_segment_are_refused(void)
{
    gcomp_codec codec = codec_of("qsgd:levels=4,bucket=256", "auto");
    size_t n = 256, length;
    uint8_t *first = coded + 36;
    for (size_t i = 0; i < n; i++) g[i] = i % 64 == 3 ? -4.0f : i % 64 == 40 ? 4.0f : 0.0f;
    length = encode(&codec, n, isa_now, alone, coded);
    CHECK(try_bytes(coded, length, n) == GCOMP_OK && first[0] && length < 36 + 100);
    for (unsigned head = 0; head < 256; head++) {
        unsigned was = first[0];
        gcomp_result result;
        first[0] = (uint8_t)head;
        result = try_bytes(coded, length, n);
        if (head == was) CHECK(result == GCOMP_OK);
        else CHECK(result != GCOMP_OK);
        first[0] = (uint8_t)was;
    }
    memset(first, 0, 200); /* packed, when an encoder would not: fine; a level above 4, and the most negative code: not */
    put_length(coded, 36 + 129);
    CHECK(try_bytes(coded, 36 + 129, n) == GCOMP_OK);
    for (unsigned code = 0; code < 16; code++) {
        gcomp_result expected = code <= 4 || code >= 12 ? GCOMP_OK : GCOMP_CORRUPT;
        first[20] = (uint8_t)(code << 4);
        CHECK(try_bytes(coded, 36 + 129, n) == expected);
    }
    first[20] = 0;
    codec = codec_of("qsgd:levels=4,bucket=256", "elias");
    for (size_t i = 0; i < n; i++) g[i] = 0;
    length = encode(&codec, n, isa_now, alone, coded); /* gap 257: 11 1000 100000001 0 */
    CHECK(length == 36 + 5 && first[0] == 1 && first[1] == 2 && first[3] == 0xe2 && first[4] == 0x02);
    coded[27] = (uint8_t)(coded[27] & 0xf7); /* code: bits 20 and 21 of the word; now another */
    for (unsigned code = 0; code < 4; code++) {
        coded[26] = (uint8_t)((coded[26] & 0xcf) | code << 4);
        CHECK((try_bytes(coded, length, n) == GCOMP_OK) == (code == 1 || code == 3));
    }
    coded[26] = (uint8_t)((coded[26] & 0xcf) | 1 << 4);
    first[4] = 0x03;
    CHECK(try_bytes(coded, length, n) != GCOMP_OK);
    first[1] = 126; /* as long as packed codes */
    memset(first + 3, 0, 200);
    put_length(coded, 36 + 129);
    CHECK(try_bytes(coded, 36 + 129, n) == GCOMP_CORRUPT);
}

static void test_a_table_of_ends_out_of_order_is_refused(void)
{
    gcomp_codec codec = codec_of("qsgd:levels=1,bucket=65536", "auto");
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
        gcomp_codec codec = codec_of(codecs[c], "auto");
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
        gcomp_codec codec = codec_of(codecs[c], "auto");
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

static void test_code_is_a_parameter_in_texts_and_of_values_of_sparse_methods(void)
{
    gcomp_codec codec;
    char text[80], why[160];
    CHECK(gcomp_codec_parse(&codec, "qsgd:levels=4,code=auto", NULL, 0) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "qsgd:levels=4,code=auto"));
    CHECK(gcomp_codec_parse(&codec, "qsgd:code=packed", NULL, 0) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "qsgd"));
    CHECK(gcomp_codec_parse(&codec, "qsgd:code=huffman", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(!strcmp(why, "qsgd code cannot be 'huffman': it takes packed or elias or rice or auto"));
    CHECK(gcomp_codec_parse(&codec, "topk+qsgd:code=packed", NULL, 0) == GCOMP_OK);
    codec.value_param[3] = 3;
    CHECK(gcomp_bound(&codec, 100, NULL) == 0);
    CHECK(gcomp_codec_parse(&codec, "topk+qsgd:code=auto", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(!strcmp(why, "a sparse method's values are packed: they take no other code"));
    CHECK(gcomp_codec_parse(&codec, "int:range=affine,code=rice", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(!strcmp(why, "int:code codes levels around zero: it goes with range=full"));
    CHECK(gcomp_codec_parse(&codec, "int:range=affine", NULL, 0) == GCOMP_OK);
    {
        size_t length = (fill(0, 100), encode(&codec, 100, isa_now, alone, coded));
        CHECK(gcomp_check(coded, length, 100) == GCOMP_OK);
        coded[25] |= 1; /* C: bits 8 and 9 of the word */
        CHECK(gcomp_check(coded, length, 100) == GCOMP_CORRUPT);
    }
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
        coded[26] |= 0x30; /* code=auto in the values' word */
        CHECK(try_bytes(coded, length, 100) == GCOMP_CORRUPT);
    }
}

int main(void)
{
    every = test_is_long() ? 1 : test_is_slow() ? 6 : 4;
    RUN(test_codecs_with_levels_are_listed);
    RUN(test_code_is_a_parameter_in_texts_and_of_values_of_sparse_methods);
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_coded_levels_decode_as_packed_ones);
        RUN(test_a_plain_reader_finds_the_packed_levels);
        RUN(test_coded_levels_of_int_are_symmetric);
    RUN(test_sizes_are_those_of_the_codes);
        RUN(test_auto_is_the_smallest);
        RUN(test_levels_are_coded_as_the_strings_worked_out_by_hand);
        RUN(test_damage_is_refused_or_harmless);
        RUN(test_other_forms_of_a_segment_are_refused);
        RUN(test_a_table_of_ends_out_of_order_is_refused);
        RUN(test_a_small_buffer_and_what_is_not_finite);
        RUN(test_tasks_do_not_change_the_bytes);
    }
    return test_end();
}
