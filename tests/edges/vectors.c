/* Payloads, and the floats that they decode to, for whoever writes a decoder of his own.

     vectors --write DIR      writes tests/edges/vectors: files NAME.payload and NAME.floats, the same on every machine
     vectors --records ROUNDS FILES
                              writes to standard output what tests/edges/check_vectors.py compares with: the files of tests/edges/corpus,
                              then payloads too long for files, then payloads of which some bytes were changed. A record is
                              the number n of elements, the number of bytes, 1 if gcomp_check accepts them, else 0 (4 bytes
                              each); the bytes; and, if they are accepted, n floats
     vectors --methods        names the listed codecs, one a line: "payload TEXT" or "sums TEXT"

   Most vectors are what encoders write. Some are written by hand here: they have codes that no encoder writes. */
#include "test.h"

#include "codecs.h"

enum { MOST = 140000 };

static float input[MOST], output[MOST];
static uint8_t payload[GCOMP_BOUND(MOST)], scratch[GCOMP_SCRATCH(MOST)];

static void fail(const char *what)
{
    fprintf(stderr, "vectors: %s\n", what);
    exit(1);
}

/* ---------------- payloads */
/* Fills the input with numbers of nearly normal distribution, of which this share is not 0. Integers make them: no function of a
   library that may differ from machine to machine. */
static void make_input(size_t n, float size, double share, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = mix(seed * 1000003 + i), four = mix(bits);
        const int64_t sum = (int64_t)((four & 0xffff) + (four >> 16 & 0xffff) + (four >> 32 & 0xffff) + (four >> 48)) - 131070;
        input[i] = (double)(bits >> 11) < share * 9007199254740992.0 ? size * ((float)sum / 37837) : 0;
    }
}

/* The payload of the input by a codec, as a matrix of so many columns. Returns its bytes. */
static size_t encoded_matrix(const char *text, size_t n, size_t columns, uint64_t seed)
{
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = input;
    in.rows = n / columns;
    in.cols = columns;
    in.key = gcomp_key_make(7, seed, 1, 0);
    if (gcomp_codec_parse(&codec, text, NULL, 0) || gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length)) fail(text);
    return length;
}

static size_t encoded(const char *text, size_t n, uint64_t seed) { return encoded_matrix(text, n, 1, seed); }

/* A body by hand: its bytes, one call after the other, and then the header in front of it. */
static size_t body_bytes;

static void add(uint64_t word, int bytes)
{
    put_word(payload + 32 + body_bytes, word, bytes);
    body_bytes += (size_t)bytes;
}

/* Returns the bytes of the payload. values: the number of the value method of a sparse method, else 0. */
static size_t headed(unsigned method, unsigned values, size_t n, uint32_t word)
{
    const size_t length = 32 + body_bytes;
    memset(payload, 0, 32);
    memcpy(payload, "GCMP", 4);
    payload[4] = 1;
    payload[5] = (uint8_t)method;
    payload[7] = (uint8_t)values;
    put_word(payload + 8, n, 8);
    put_word(payload + 16, body_bytes, 8);
    put_word(payload + 24, word, 4);
    body_bytes = 0;
    return length;
}

/* ---------------- files */
static const char *folder;

static void write_file(const char *name, const char *ending, const void *bytes, size_t count)
{
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, ending);
    for (char *at = path + strlen(folder); *at; at++)
        if (strchr(":,+=", *at)) *at = '_';
    file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file)) fail(path);
}

static void write_vector(const char *name, size_t length, size_t n)
{
    static uint8_t floats[4 * MOST];
    if (gcomp_decode(payload, length, output, GCOMP_F32, n, NULL)) fail(name);
    for (size_t i = 0; i < n; i++) put_word(floats + 4 * i, bits_of(output[i]), 4);
    write_file(name, "payload", payload, length);
    write_file(name, "floats", floats, 4 * n);
}

/* One payload of each codec: 150 elements are some blocks of 16, 32, 64 and 128, with a rest. */
static void write_codecs(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        if (!codec_has_payload(codec_list[c].text)) continue;
        make_input(150, 0.5f, 0.9, c);
        write_vector(codec_list[c].text, encoded(codec_list[c].text, 150, c), 150);
    }
}

/* Payloads of encoders that show what the codecs above do not: coders of indices, forms of chunks of levels, pieces of eden. */
static void write_shapes(void)
{
    static const struct { const char *name, *text; size_t n; float size; double share; size_t every; } shapes[] = {
        {"eden_zeros", "eden:bits=3,block=64", 150, 0, 1, 1},
        {"eden_small", "eden:bits=3,block=64", 150, 1e-33f, 1, 1},
        {"blocktopk_last", "blocktopk:density=0.4,block=16+int", 151, 1, 1, 1},
        {"states_packed", "ecsq:bits=2", 5, 1, 1, 1},
        {"states_packed_2", "qsgd:levels=1,code=entropy", 39, 1, 1, 1},
        {"states_packed_4", "qsgd:levels=5,code=entropy", 33, 1, 1, 1},
        {"states_2", "terngrad:code=entropy", 4103, 1, 0.3, 1},
        {"states_4", "qsgd:levels=6,norm=l2,code=entropy", 1001, 1, 1, 1},
        {"states_8", "qsgd:levels=99,bucket=tensor,code=entropy", 1005, 1, 1, 1},
        {"states_escaped", "ecsq:bits=6", 1500, 1, 1, 1},
        {"states_long", "ecsq:bits=1.5", 16450, 1, 1, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        make_input(shapes[s].n, shapes[s].size, shapes[s].share, s);
        for (size_t i = 0; i < shapes[s].n; i++) input[i] = i % shapes[s].every ? 0 : input[i];
        if (!strcmp(shapes[s].name, "blocktopk_last")) input[150] = 3;
        write_vector(shapes[s].name, encoded(shapes[s].text, shapes[s].n, s), shapes[s].n);
    }
    make_input(150, 1, 1, 1);
    size_t length = encoded("topk:density=0.05", 150, 1);
    payload[5] = 31; /* dgc writes payloads in steps only, and they are as topk's */
    write_vector("dgc", length, 150);
    length = encoded("sign:block=64", 150, 1);
    if (add_checksum(payload, length)) fail("seal");
    write_vector("sealed", length, 150);
    length = encoded("eden:bits=2,block=64", 150, 1);
    for (size_t piece = 0; piece < 4; piece++) payload[32 + 8 + 4 * piece] &= 0xfe; /* each is decoded as if rotated once */
    write_vector("eden_rotated_once", length, 150);
    make_input(2048, 1, 1, 2);
    length = encoded("eden:bits=4", 2048, 2);
    payload[40] |= 1;                               /* rotated twice, */
    for (size_t i = 44; i < length; i++)            /* and most codes are the largest: sums are rounded */
        if (i % 7) payload[i] = i == 45 ? 0x67 : 0x77;
    write_vector("eden_sums", length, 2048);
    length = encoded("eden:bits=4,block=64", 150, 1);
    for (size_t piece = 0; piece < 4; piece++) put_word(payload + 32 + 8 + 4 * piece, bits_of(2e37f) | 1, 4);
    write_vector("eden_large", length, 150);
}

/* The body of n elements by rows of `row`, of which `before` lie before the first element, by hand: scales that rise from block to block,
   then bits of all kinds. Returns the bytes of the payload. */
static size_t by_rows(unsigned method, size_t n, size_t row, size_t before)
{
    size_t counts[64], blocks = 0;
    for (size_t i = 0; i < n; i += counts[blocks++]) {
        const size_t place = (i + before) % row, left = row - place, chunk = 65536 - place % 65536;
        counts[blocks] = n - i < left ? n - i : left;
        if (counts[blocks] > chunk) counts[blocks] = chunk;
    }
    add(row, 4), add(before, 4);
    for (size_t b = 0; b < blocks; b++) {
        add(bits_of(0.25f * (float)(b + 1)), 4);
        if (method == 7) add(bits_of(-0.5f * (float)(b + 1)), 4);
    }
    for (size_t b = 0; b < blocks; b++)
        for (size_t i = 0; i < counts[b]; i += 8)
            add(mix(b * 100000 + i) & (counts[b] - i < 8 ? (1u << (counts[b] - i)) - 1 : 255), 1);
    return headed(method, 0, n, 1);
}

/* Matrices with a scale for each row; parts of some, which begin within a row. */
static void write_rows(void)
{
    static const size_t columns[] = {7, 15, 16, 50, 75};
    static const char *const texts[] = {"sign:block=row", "onebit:block=row"};
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (int t = 0; t < 2; t++) {
            char name[40];
            const size_t n = 150 / columns[c] * columns[c];
            make_input(n, 1, 0.9, c);
            snprintf(name, sizeof name, "rows_of_%d_%s", (int)columns[c], t ? "onebit" : "sign");
            write_vector(name, encoded_matrix(texts[t], n, columns[c], c), n);
        }
    write_vector("rows_from_within_sign", by_rows(4, 150, 33, 17), 150);
    write_vector("rows_from_within_onebit", by_rows(7, 150, 50, 49), 150);
    write_vector("rows_within_one", by_rows(7, 21, 1u << 30, 123456789), 21);
    write_vector("rows_end_of_block", by_rows(4, 150, 70000, 65536 - 3), 150);
}

/* All codes of the block methods, also those that no encoder writes, such as -128 and -0. What decoders refuse is left out. */
static void write_codes(void)
{
    static const struct { const char *name; unsigned method, word, codes, width; } all[] = {
        {"codes_fp8_e4m3", 17, 0 | 4 << 1, 256, 8},     {"codes_fp8_e5m2", 17, 1 | 4 << 1, 256, 8},
        {"codes_e3m0", 36, 4, 32, 4},                   {"codes_nf4", 37, 4, 32, 4},
        {"codes_lloyd", 41, 0, 256, 2},
        {"codes_int_8", 40, 0 | 4 << 2, 256, 8},        {"codes_int_4", 40, 1 | 4 << 2, 32, 4},
        {"codes_int_3", 40, 3 | 4 << 2, 32, 3},         {"codes_int_2", 40, 2 | 4 << 2, 64, 2},
        {"codes_qsgd_15", 13, 15 | 4 << 15, 256, 8},
        {"codes_qsgd_powers_4", 13, 4 | 4 << 15 | 1 << 21, 32, 4}, {"codes_qsgd_powers_8", 13, 100 | 4 << 15 | 1 << 21, 256, 8}};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        unsigned bits = 0, held = 0;
        for (unsigned b = 0; b < all[a].codes / (all[a].method == 41 ? 128 : 16); b++) { /* scales, of int of either sign and last bit */
            const uint32_t scale = bits_of(0.3f * (float)(b + 1));
            if (all[a].method == 40) add(((scale >> 16 & 0xfffe) | (b >> 1 & 1)) ^ (b & 1) << 15, 2);
            else add(scale, 4);
        }
        for (unsigned c = 0; c < all[a].codes; c++) {
            const int special = (all[a].method == 17 && all[a].word & 1) ? (c & 0x7f) >= 0x7c : all[a].method == 17 && (c & 0x7f) == 0x7f;
            bits |= (special ? 0 : c & ((1u << all[a].width) - 1)) << held;
            for (held += all[a].width; held >= 8; held -= 8, bits >>= 8) add(bits & 255, 1);
        }
        write_vector(all[a].name, headed(all[a].method, 0, all[a].codes, all[a].word), all[a].codes);
    }
    for (unsigned format = 0; format < 6; format++) { /* mx, of which each format has codes of its own width */
        const unsigned width = format == 0 ? 4 : format < 4 ? 8 : 6, codes = 1u << width, n = codes < 32 ? 32 : codes;
        char name[32];
        uint64_t bits = 0;
        for (unsigned b = 0; b < n / 32; b++) add(b == 0 ? 0 : b == 1 ? 127 : 60 + 17 * b, 1);
        for (unsigned c = 0, held = 0; c < n; c++) {
            const int special = format == 1 ? (c & 0x7f) == 0x7f : format == 2 && (c & 0x7f) >= 0x7c;
            bits |= (uint64_t)(special ? 0 : c % codes) << held;
            for (held += width; held >= 8; held -= 8, bits >>= 8) add(bits & 255, 1);
        }
        snprintf(name, sizeof name, "codes_mx_%s", (const char *const[]){"e2m1", "e4m3", "e5m2", "int8", "e2m3", "e3m2"}[format]);
        write_vector(name, headed(18, 0, n, format), n);
    }
    add(bits_of(1.1e-3f), 4); /* nvfp4: 16 scales, from the smallest e4m3 to the largest one */
    for (unsigned x = 0; x < 16; x++) add(x < 8 ? x : x == 15 ? 0x7e : 8 * x, 1);
    for (unsigned c = 0; c < 128; c++) add((2 * c & 15) | ((2 * c + 1) & 15) << 4, 1);
    write_vector("codes_nvfp4", headed(35, 0, 256, 0), 256);
    for (unsigned e = 0; e < 255; e += 17) { /* natural: all exponents, either sign, two zeros of which one is negative */
        for (unsigned i = 0; i < 16; i++) add(e + i < 255 ? e + i : 0, 1);
        add(0xaaaa ^ e, 2);
    }
    write_vector("codes_natural", headed(15, 0, 240, 0), 240);
    for (unsigned b = 0; b < 3; b++) add(bits_of(0.1f * (float)(b + 1)), 4), add(bits_of(-12.7f + 3 * (float)b), 4);
    for (unsigned c = 0; c < 48; c++) add((c * 5 + 7) & 255, 1); /* an affine int: sums are rounded once more */
    write_vector("codes_int_affine", headed(40, 0, 48, 0 | 4 << 2 | 1 << 7), 48);
    add(0, 4), add(bits_of(0.25f), 4), add(0x5a, 1); /* onebit: a second mean above the first one */
    write_vector("codes_onebit", headed(7, 0, 8, 0), 8);
    add(0x8ee3, 2); /* twobit: 11 10 00 11, then 10 00 11 10 */
    write_vector("codes_twobit", headed(10, 0, 8, bits_of(0.7f)), 8);
}

/* Ways to send 130 of 300 indices; the values are 1, 2, 3, ... as bfloat16, of which the last one is -0. */
static void write_indices(void)
{
    static const struct { const char *name; unsigned coder; } coders[] = {
        {"coder_rice_0", 0}, {"coder_rice_3", 3}, {"coder_rice_32", 32}, {"coder_words", 253}, {"coder_packed", 254}, {"coder_bitmap", 255}};
    size_t index[130];
    for (size_t c = 0; c < sizeof coders / sizeof *coders; c++) {
        uint64_t bits = 0;
        unsigned held = 0;
        for (size_t k = 0; k < 130; k++) index[k] = k < 100 ? k + k / 3 : k < 128 ? 135 + 4 * (k - 100) : 270 + 29 * (k - 128);
        add(130, 8);
        add(coders[c].coder, 1);
        for (size_t k = 0; coders[c].coder == 255 && k < 304; k += 8) {
            unsigned byte = 0;
            for (size_t at = 0; at < 130; at++) byte |= index[at] / 8 == k / 8 ? 1u << index[at] % 8 : 0;
            add(byte, 1);
        }
        for (size_t k = 0; coders[c].coder != 255 && k < 130; k++) {
            const size_t gap = k ? index[k] - index[k - 1] - 1 : index[0];
            if (coders[c].coder == 253) {
                add(index[k], 4);
            } else if (coders[c].coder == 254) { /* the largest gap of the first 128 is 3, 2 bits, and of the two others 28, 5 bits */
                if (k % 128 == 0) add(k ? 5 : 2, 1);
                bits |= (uint64_t)gap << held;
                held += k < 128 ? 2 : 5;
            } else { /* at most 28 ones and a zero, then the low bits */
                const uint64_t ones = coders[c].coder < 32 ? gap >> coders[c].coder : 0;
                bits |= (((uint64_t)1 << ones) - 1) << held;
                held += (unsigned)ones + 1;
                for (; held >= 8; held -= 8, bits >>= 8) add(bits & 255, 1);
                bits |= (uint64_t)(gap & (((uint64_t)1 << coders[c].coder) - 1)) << held;
                held += coders[c].coder;
            }
            for (; held >= 8; held -= 8, bits >>= 8) add(bits & 255, 1);
                    }
        if (held) add(bits, 1);
        for (size_t k = 0; k < 130; k++) add(k == 129 ? 0x8000 : bits_of((float)(k + 1)) >> 16, 2);
        write_vector(coders[c].name, headed(5, 3, 300, 0), 300);
    }
}

/* Matrices, of which dct sends all coefficients of a chunk, more than half of them, a few, and such as are above 2^120. */
static void write_dct(void)
{
    static const struct { const char *name, *text; size_t rows, cols; float size; } all[] = {
        {"dct_all", "dct:top=4096,chunk=4", 4, 12, 1}, {"dct_bitmap", "dct:top=20,chunk=6+bf16", 12, 6, 1},
        {"dct_matrix", "dct:top=9,chunk=16+int", 30, 32, 1}, {"dct_large", "dct:top=7,chunk=8", 8, 8, 2e37f}};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        const size_t n = all[a].rows * all[a].cols;
        gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
        gcomp_codec codec;
        gcomp_input in;
        size_t length;
        memset(&in, 0, sizeof in);
        in.scale = 1;
        make_input(n, all[a].size, 1, a);
        in.grad = input;
        in.rows = all[a].rows;
        in.cols = all[a].cols;
        if (gcomp_codec_parse(&codec, all[a].text, NULL, 0) || gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length))
            fail(all[a].text);
        write_vector(all[a].name, length, n);
    }
}

/* Which elements randomk sends, of tensor 1 with 20 x 15 elements, in step 2 of one worker: those that are not 0 in the mean. */
static void write_places(void)
{
    static const char *const texts[] = {"randomk:density=0.1", "randomk:density=0.7", "randomk:density=0.3,neighbours=1"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        uint8_t words[8 * 400];
        size_t count = 6;
        gcomp_desc desc;
        gcomp_tensor tensor;
        gcomp *gc;
        memset(&desc, 0, sizeof desc);
        memset(&tensor, 0, sizeof tensor);
        desc.codec = texts[t];
        desc.seed = 0x123456789abcdefu + t;
        desc.min_elements = 1;
        desc.comm.world = 1;
        desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        tensor.rows = 20;
        tensor.cols = 15;
        if (gcomp_open(&gc, &desc)) fail(texts[t]);
        for (int i = 0; i < 2; i++) {
            tensor.name = i ? "second" : "first";
            if (gcomp_add_tensor(gc, &tensor)) fail(gcomp_error(gc));
        }
        for (int step = 0; step < 3; step++) {
            float *grads[2] = {input, input + 300};
            for (size_t i = 0; i < 600; i++) input[i] = 1;
            if (exchange_floats(gc, grads, NULL)) fail(gcomp_error(gc));
        }
        for (size_t i = 0; i < 300; i++)
            if (input[300 + i] != 0) put_word(words + 8 * count++, i, 8);
        put_word(words, desc.seed, 8);
        put_word(words + 8, 2, 8);
        put_word(words + 16, 1, 8);
        put_word(words + 24, 300, 8);
        put_word(words + 32, count - 6, 8);
        put_word(words + 40, strstr(texts[t], "neighbours") != NULL, 8);
        write_file(texts[t], "places", words, 8 * count);
        gcomp_close(gc);
    }
}

/* ---------------- records */
static void put_record(size_t length, size_t n)
{
    uint8_t head[12];
    const int good = gcomp_check(payload, length, n) == GCOMP_OK;
    put_word(head, n, 4);
    put_word(head + 4, length, 4);
    put_word(head + 8, (uint64_t)good, 4);
    fwrite(head, 1, 12, stdout);
    fwrite(payload, 1, length, stdout);
    if (good && gcomp_decode(payload, length, output, GCOMP_F32, n, NULL)) fail("decode and check disagree");
    for (size_t i = 0; good && i < n; i++) {
        put_word(head, bits_of(output[i]), 4);
        fwrite(head, 1, 4, stdout);
    }
}

static void record_file(const char *path) /* of the corpus: n in 4 bytes, then the payload */
{
    uint8_t head[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file || fread(head, 1, 4, file) != 4) fail(path);
    put_record(fread(payload, 1, sizeof payload, file), get_word(head, 4));
    fclose(file);
}

static void record_long(void) /* more than one block of 4096, part, chunk, offset of chunks */
{
    static const char *const texts[] = {"qsgd:levels=1,code=entropy", "qsgd:code=entropy", "qsgd:levels=100,code=entropy", "eden:bits=2",
                                        "topk:density=0.02", "terngrad:code=entropy", "ecsq:bits=1.2", "ecsq:bits=3.8"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        const size_t n = t < 3 ? 131072 + 4000 : t == 5 ? 65536 : t == 6 ? 65536 + 8200 : t == 7 ? 4100 : 9000;
        make_input(n, 1, t < 3 || t == 5 ? 0.01 : 1, t);
        put_record(encoded(texts[t], n, t), n);
    }
    make_input(140000, 1, 1, 1); /* rows of two blocks, from their beginning and from within */
    put_record(encoded_matrix("sign:block=row", 140000, 70000, 1), 140000);
    put_record(by_rows(7, 139999, 70001, 66000), 139999);
}

/* Rows of all lengths, from within: the words, the last bits, and what is beside them. */
static void record_rows(void)
{
    static const size_t rows[] = {0, 1, 15, 16, 17, 31, 100, 1u << 30, (1u << 30) + 1, 0xffffffffu};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t before = 0; before <= 34; before++) {
            const size_t row = rows[r] < 16 || rows[r] > 1u << 30 ? 40 : rows[r];
            size_t length = by_rows(before % 2 ? 4 : 7, 90, row, before % row);
            put_word(payload + 32, rows[r], 4);
            put_word(payload + 36, before, 4);
            put_record(length, 90);
            payload[length - 1] |= 0x80;
            put_record(length, 90);
            put_word(payload + 16, length - 32 - 1, 8);
            put_record(length - 1, 90);
        }
}

/* Floats at the ends of what is allowed, and beside them: thresholds, and the scales of eden's pieces, whose codes are these. */
static void record_ends(void)
{
    const float ends[] = {1e-22f, 1e22f, 0.0f, -0.0f, 1}, scales[] = {0x1p-100f, -0x1p-100f, -1 - 0x1p-23f, 1, 0.0f, -0.0f, 3e38f};
    for (unsigned beside = 0; beside < 3; beside++) {
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            for (unsigned method = 10; method <= 11; method++) {
                add(0xff, 1);
                put_record(headed(method, 0, 4u << (method - 10), bits_of(ends[e]) + beside - 1), 4u << (method - 10));
            }
        }
        for (size_t e = 0; e < sizeof scales / sizeof *scales; e++) {
            for (unsigned codes = 0; codes < 2; codes++) {
                add(12345, 8);
                add((uint32_t)(bits_of(scales[e]) + beside - 1), 4);
                for (int i = 0; i < 8; i++) add(codes ? 0xe4 + (unsigned)i : 0, 1);
                put_record(headed(20, 0, 16, 3), 16);
            }
        }
    }
}

/* Where indices, chunks of levels and offsets are wrong by one. */
static void record_wrong_by_one(void)
{
    size_t length;
    for (unsigned k = 15; k <= 18; k++) { /* k of 16 elements, in a bitmap that is full */
        add(k, 8), add(255, 1), add(0xffff, 2);
        for (unsigned i = 0; i < k; i++) add(0x3f80, 2);
        put_record(headed(5, 3, 16, 0), 16);
    }
    for (unsigned b = 2; b <= 18; b++) { /* blocktopk: the last block of 65536 elements or fewer, of which one is sent */
        add(1, 8), add(255, 1), add(b, 1), add(1u << ((64 >> b) & 7), 1 + (64 >> b) / 8), add(0x3f80, 2);
        put_record(headed(29, 3, 65, 0), 65);
    }
    for (unsigned head = 0; head < 4; head++) /* a chunk of 20 levels of 2, 4 and 8 bits, with one table or another */
        for (unsigned sizes = 0; sizes < 10; sizes++)
            for (unsigned levels = 1; levels <= 61; levels += levels < 3 ? 2 : levels < 9 ? 3 : 40)
                for (unsigned bytes = 0; bytes < 3; bytes++) {
                    add(bits_of(1), 4), add(head, 1);
                    for (unsigned i = 0; i < 4 && head; i++) add(1u << 15, 4);
                    add(sizes, 1);
                    for (unsigned i = 0; i < sizes + bytes; i++) add(i < 3 ? 0 : 3, 1);
                    put_record(headed(13, 0, 20, levels | 1u << 20), 20);
                }
    make_input(131072, 1, 0.005, 9);
    length = encoded("qsgd:levels=1,code=entropy,bucket=tensor", 131072, 9);
    put_record(length, 131072);
    payload[36]++;
    put_record(length, 131072);
}

/* Payloads of each codec in which one of the bytes that steer has another value, by one bit, by one, or the least or largest. */
static void record_steered(void)
{
    static const size_t places[] = {7, 24, 25, 26, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        if (!codec_has_payload(codec_list[c].text)) continue;
        make_input(33, 1, c % 3 ? 0.8 : 0.2, c);
        const size_t length = encoded(codec_list[c].text, 33, c);
        for (size_t p = 0; p < sizeof places / sizeof *places && places[p] < length; p++) {
            const uint8_t byte = payload[places[p]];
            for (unsigned change = 0; change < 12; change++) {
                payload[places[p]] = (uint8_t)(change < 8 ? byte ^ 1u << change : change < 10 ? byte + 2 * change - 17 : change == 10 ? 0 : 255);
                if (payload[places[p]] != byte) put_record(length, 33);
            }
            payload[places[p]] = byte;
        }
    }
}

/* Payloads of each codec with one to three bits changed, some of them longer, shorter, or with a right checksum. */
static void record_mutated(int rounds)
{
    static const size_t sizes[] = {0, 1, 16, 33, 70, 150};
    uint64_t s = 1;
    for (int round = 0; round < rounds; round++) {
        for (size_t c = 0; c < ALL_CODECS; c++) {
            const size_t n = sizes[(size_t)round % 6];
            size_t length;
            if (!codec_has_payload(codec_list[c].text)) continue;
            make_input(n, 1, round % 2 ? 0.9 : 0.1, s = mix(s));
            length = encoded(codec_list[c].text, n, s);
            for (int flip = 0; flip <= round % 3; flip++) {
                s = mix(s);
                const size_t at = s >> 40 & 1 ? s % length : 24 + s % (length < 48 ? length - 24 : 24); /* half of them in what steers */
                payload[at] ^= (uint8_t)(1u << (s >> 41 & 7));
            }
            if (round % 8 == 7) length -= (size_t)(s >> 20) % (length + 1), memset(payload + length, 0, 8), length += (size_t)(s >> 50) % 9;
            if (round % 8 == 5 && add_checksum(payload, length)) continue;
            put_record(length, n);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) {
        folder = argv[2];
        write_codecs();
        write_shapes();
        write_codes();
        write_rows();
        write_indices();
        write_dct();
        write_places();
        return 0;
    }
    if (argc > 2 && !strcmp(argv[1], "--records")) {
        for (int a = 3; a < argc; a++) record_file(argv[a]);
        record_long();
        record_rows();
        record_ends();
        record_wrong_by_one();
        record_steered();
        record_mutated(atoi(argv[2]));
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--methods")) {
        for (size_t c = 0; c < ALL_CODECS; c++)
            printf("%s %s\n", codec_has_payload(codec_list[c].text) ? "payload" : "sums", codec_list[c].text);
        return 0;
    }
    fail("--write DIR, --records ROUNDS FILES, or --methods");
}
