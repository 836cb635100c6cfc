/* Proves of block=row: each block is what its elements alone would be as a tensor, blocks end with rows, and lie where the format says;
   all that decodes finds them there, from any element on; what is not such a payload is refused. */
#include "codecs.h"
#include "run_threads.h"
#include "test.h"

#include <math.h>

enum { CHUNK = 65536, LARGEST = 4 * CHUNK + 4099, HEADER = 32, MOST_BLOCKS = LARGEST / 16 + 2 };
static float g[LARGEST], e[LARGEST], y[LARGEST], wanted[LARGEST], one[LARGEST];
static uint16_t half[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], expected[GCOMP_BOUND(LARGEST)], alone[GCOMP_BOUND(CHUNK)];
static size_t first_of[MOST_BLOCKS + 1]; /* elements; behind the last block: all */
static gcomp_isa isa_now;
static gcomp_parallel parallel_now;

static const char *const codecs[] = {"onebit", "sign", "sign:scale=rms"};
/* rows, columns: of all lengths modulo 16, short ones, longer ones than a chunk; a vector is a row */
static const size_t shapes[][2] = {{1, 1},    {1, 2},     {2, 2},       {40, 3},   {31, 7},         {9, 15},         {5, 16},
                                   {200, 17}, {30, 50},   {65, 64},     {77, 100}, {100, 1000},     {3, 50257},      {1, 50257},
                                   {4, CHUNK}, {2, 70000}, {3, CHUNK + 1}, {1, LARGEST}, {LARGEST, 1}, {LARGEST, 0}, {7, 0}, {0, 5}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static gcomp_codec codec_of(const char *name, const char *block)
{
    char text[60];
    gcomp_codec codec;
    snprintf(text, sizeof text, "%s%sblock=%s", name, strchr(name, ':') ? "," : ":", block);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    return codec;
}

static gcomp_exec exec_now(void)
{
    static uint8_t scratch[GCOMP_SCRATCH(LARGEST)];
    const gcomp_exec exec = {isa_now, scratch, sizeof scratch, parallel_now};
    return exec;
}

static void put(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(v >> 8 * i);
}

/* Rows differ in size, signs and zeros. */
static void fill(size_t n, size_t cols)
{
    uint64_t x = 7;
    double size = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        if (i % cols == 0) size = ldexp(1, (int)(i / cols % 40) - 20);
        g[i] = (float)(((double)(x >> 11) / 9007199254740992.0 - 0.4) * size);
        if (i / cols % 9 == 4) g[i] = 0;
        if (i / cols % 9 == 7) g[i] = -fabsf(g[i]);
        e[i] = i % 3 ? 0.25f * g[i] : -0.0f;
    }
}

/* Where blocks begin, element by element; returns how many there are. */
static size_t find_blocks(size_t rows, size_t cols)
{
    const size_t row = cols > 1 ? cols : rows, n = rows * (cols ? cols : 1);
    size_t blocks = 0, in_block = 0, whole = 0; /* elements of the block; of the rows that it has */
    for (size_t i = 0; i < n; i++) {
        const int row_ends = i % row == 0;
        if (row_ends) whole = in_block;
        if (i == 0 || (row_ends && whole >= 16) || in_block == CHUNK || (row_ends && row > CHUNK)) {
            first_of[blocks++] = i;
            in_block = 0;
        }
        in_block++;
    }
    first_of[blocks] = n;
    return blocks;
}

/* The payload as the format says, from the payloads of its blocks alone. */
static size_t expected_payload(const char *name, size_t rows, size_t cols)
{
    const gcomp_codec codec = codec_of(name, "tensor");
    const size_t n = rows * (cols ? cols : 1), scale = strcmp(name, "onebit") ? 4 : 8, blocks = n ? find_blocks(rows, cols) : 0;
    size_t row = cols > 1 ? cols : rows, at = HEADER + 8 + blocks * scale;
    memset(expected, 0, HEADER);
    if (!n) at = HEADER;
    else {
        while (row < 16) row += cols > 1 ? cols : rows;
        put(expected + HEADER, row, 4);
        put(expected + HEADER + 4, 0, 4);
    }
    for (size_t b = 0; b < blocks; b++) {
        const size_t count = first_of[b + 1] - first_of[b];
        gcomp_input in;
        size_t length = 0;
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.grad = g + first_of[b];
        in.residual = e + first_of[b];
        in.rows = count;
        CHECK(gcomp_encode(&codec, &in, NULL, alone, sizeof alone, &length) == GCOMP_OK);
        CHECK(length == HEADER + scale + (count + 7) / 8);
        memcpy(expected + HEADER + 8 + b * scale, alone + HEADER, scale);
        memcpy(expected + at, alone + HEADER + scale, (count + 7) / 8);
        at += (count + 7) / 8;
        CHECK(gcomp_decode(alone, length, wanted + first_of[b], GCOMP_F32, count, NULL) == GCOMP_OK);
    }
    memcpy(expected, "GCMP\1", 5);
    expected[5] = strcmp(name, "onebit") ? 4 : 7;
    put(expected + 8, n, 8);
    put(expected + 16, at - HEADER, 8);
    put(expected + 24, 1, 4); /* B */
    return at;
}

/* g as a matrix, without a residual. */
static gcomp_input matrix(size_t rows, size_t cols)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = rows;
    in.cols = cols;
    return in;
}

static size_t encode_rows(const char *name, size_t rows, size_t cols)
{
    const gcomp_codec codec = codec_of(name, "row");
    const size_t n = rows * (cols ? cols : 1), bound = gcomp_bound(&codec, n, NULL);
    const gcomp_exec exec = exec_now();
    gcomp_input in = matrix(rows, cols);
    size_t length = 0;
    in.residual = e;
    CHECK(bound <= GCOMP_BOUND(n));
    CHECK(gcomp_encode(&codec, &in, &exec, payload, bound, &length) == GCOMP_OK);
    CHECK(length <= bound && gcomp_check(payload, length, n) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, length - 1, &length) == GCOMP_DST_TOO_SMALL);
    return length;
}

static void test_each_block_is_that_of_a_tensor_alone(void)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (size_t c = 0; c < 3; c++) {
            const size_t rows = shapes[s][0], cols = shapes[s][1], n = rows * (cols ? cols : 1);
            const gcomp_exec exec = exec_now();
            fill(n, cols > 1 ? cols : n + 1);
            const size_t length = encode_rows(codecs[c], rows, cols), want = expected_payload(codecs[c], rows, cols);
            if (length != want || memcmp(payload, expected, want)) printf("# %s of %zu x %zu\n", codecs[c], rows, cols);
            CHECK(length == want && !memcmp(payload, expected, want));
            memset(y, 1, sizeof y);
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
            CHECK(!memcmp(y, wanted, 4 * n) && (n == LARGEST || *(uint8_t *)(y + n) == 1));
        }
}

/* Sums, residuals and halves go tile by tile, and tiles begin anywhere in a block. */
static void test_all_endings_find_the_blocks(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        const size_t rows = shapes[s][0], cols = shapes[s][1], n = rows * (cols ? cols : 1), c = s % 3;
        const gcomp_exec exec = exec_now();
        const void *payloads[3] = {payload, payload, payload};
        fill(n, cols > 1 ? cols : n + 1);
        const size_t length = encode_rows(codecs[c], rows, cols), lengths[3] = {length, length, length};
        (void)expected_payload(codecs[c], rows, cols);
        for (size_t i = 0; i < n; i++) y[i] = 1.0f / (float)(i + 1);
        for (size_t i = 0; i < n; i++) {
            volatile float product = wanted[i] * 0.7f;
            one[i] = y[i] + product;
        }
        CHECK(gcomp_decode_add(payload, length, 0.7f, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, one, 4 * n));
        for (size_t i = 0; i < n; i++) {
            volatile float product = wanted[i] * (1.0f / 3.0f), sum = 0;
            for (int k = 0; k < 3; k++) sum = sum + product;
            one[i] = sum;
        }
        CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, one, 4 * n));
        CHECK(gcomp_decode_mean(payloads, lengths, 3, half, GCOMP_BF16, n, &exec) == GCOMP_OK);
        CHECK(gcomp_convert(y, GCOMP_F32, half, GCOMP_BF16, n, &exec) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) CHECK(fabsf(y[i] - one[i]) <= fabsf(one[i]) / 256);
        gcomp_input in;
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.grad = g;
        in.rows = rows;
        in.cols = cols;
        memcpy(y, e, 4 * n);
        CHECK(gcomp_retain(payload, length, &in, y, &exec) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) {
            volatile float p = g[i] + e[i];
            CHECK(y[i] == p - wanted[i]);
        }
    }
}

/* Payloads of as many elements, whose rows differ, have a mean: also in halves, with scratch. */
static void test_payloads_of_other_rows_have_a_mean(void)
{
    static uint8_t other[4096];
    enum { N = 32 * 30 };
    const void *payloads[2] = {other, payload};
    const gcomp_exec exec = exec_now();
    fill(N, 32);
    const size_t length = encode_rows("onebit", 30, 32), lengths[2] = {length, length};
    memcpy(other, payload, length);
    CHECK(gcomp_decode(other, length, wanted, GCOMP_F32, N, &exec) == GCOMP_OK);
    put(other + HEADER, 40, 4); /* fewer blocks: the body is too long */
    CHECK(gcomp_check(other, length, N) == GCOMP_TRAILING_BYTES);
    put(other + HEADER, 32, 4);
    put(other + HEADER + 4, 8, 4); /* a block more: too short */
    CHECK(gcomp_check(other, length, N) == GCOMP_TRUNCATED);
    /* rows of 33, from element 17 of one on */
    const size_t blocks = 1 + (N - 16 + 32) / 33;
    put(other + HEADER, 33, 4);
    put(other + HEADER + 4, 17, 4);
    const size_t bytes = 8 + 8 * blocks + 2 + (blocks - 2) * 5 + ((N - 16) % 33 + 7) / 8;
    put(other + 16, bytes, 8);
    for (size_t i = HEADER + 8 + 8 * blocks; i < HEADER + bytes; i++) other[i] = 0;
    const size_t both[2] = {HEADER + bytes, lengths[1]};
    CHECK(gcomp_check(other, both[0], N) == GCOMP_OK);
    CHECK(gcomp_decode(other, both[0], one, GCOMP_F32, N, &exec) == GCOMP_OK);
    for (size_t i = 1; i < N; i++) CHECK((one[i] == one[i - 1]) == ((i + 17) % 33 != 0)); /* a value for each row */
    CHECK(gcomp_decode_mean(payloads, both, 2, half, GCOMP_BF16, N, &exec) == GCOMP_OK);
    CHECK(gcomp_convert(y, GCOMP_F32, half, GCOMP_BF16, N, &exec) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) {
        const float mean = 0.5f * one[i] + 0.5f * wanted[i];
        CHECK(fabsf(y[i] - mean) <= (fabsf(one[i]) + fabsf(wanted[i])) / 256);
    }
}

static void test_threads_and_sets_make_the_same_bytes(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        const size_t rows = shapes[s][0], cols = shapes[s][1], n = rows * (cols ? cols : 1);
        fill(n, cols > 1 ? cols : n + 1);
        size_t threads = 5;
        const size_t length = encode_rows("sign", rows, cols);
        memcpy(expected, payload, length);
        CHECK(gcomp_decode(payload, length, wanted, GCOMP_F32, n, NULL) == GCOMP_OK);
        for (int way = 0; way < 2; way++) {
            const gcomp_parallel none = {NULL, NULL}, some = {way ? run_threads : run_backwards, &threads};
            parallel_now = some;
            const gcomp_exec exec = exec_now();
            CHECK(encode_rows("sign", rows, cols) == length && !memcmp(expected, payload, length));
            CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, wanted, 4 * n));
            parallel_now = none;
        }
    }
}

static void test_hostile_payloads_are_refused(void)
{
    enum { ROWS = 21, COLS = 50, N = ROWS * COLS };
    fill(N, COLS);
    const size_t length = encode_rows("onebit", ROWS, COLS);
    static const struct {
        uint64_t row, before;
        gcomp_result result;
    } words[] = {{0, 0, GCOMP_CORRUPT},       {1, 0, GCOMP_CORRUPT},           {15, 0, GCOMP_CORRUPT},
                 {50, 50, GCOMP_CORRUPT},     {50, 51, GCOMP_CORRUPT},         {50, 0xffffffff, GCOMP_CORRUPT},
                 {0xffffffff, 0, GCOMP_CORRUPT}, {0x40000001, 0, GCOMP_CORRUPT}, {0x40000000, 0, GCOMP_TRAILING_BYTES},
                 {0x40000000, 0x3fffffff, GCOMP_TRAILING_BYTES}, {16, 0, GCOMP_TRUNCATED}, {50, 1, GCOMP_TRUNCATED},
                 {50, 0, GCOMP_OK}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put(payload + HEADER, words[i].row, 4);
        put(payload + HEADER + 4, words[i].before, 4);
        CHECK(gcomp_check(payload, length, N) == words[i].result);
    }
    for (size_t some = 0; some < length; some++) CHECK(gcomp_check(payload, some, N) == GCOMP_TRUNCATED);
    for (size_t body = 0; body < 8; body++) { /* not even the words */
        put(payload + 16, body, 8);
        CHECK(gcomp_check(payload, HEADER + body, N) == GCOMP_TRUNCATED);
    }
    put(payload + 16, length - HEADER, 8);
    for (size_t b = 0; b < ROWS; b++) /* 50 bits: 6 bits behind them in each block */
        for (int bit = 0; bit < 8; bit++) {
            uint8_t *last = payload + HEADER + 8 + 8 * ROWS + 7 * b + 6;
            *last ^= (uint8_t)(1u << bit);
            CHECK(gcomp_check(payload, length, N) == (bit < 2 ? GCOMP_OK : GCOMP_RESERVED_BITS));
            *last ^= (uint8_t)(1u << bit);
        }
    for (size_t b = 0; b < ROWS; b++) { /* a scale that is infinite */
        uint8_t kept[4], *scale = payload + HEADER + 8 + 8 * b;
        memcpy(kept, scale, 4);
        put(scale, 0x7f800000, 4);
        CHECK(gcomp_check(payload, length, N) == GCOMP_CORRUPT);
        memcpy(scale, kept, 4);
    }
    CHECK(gcomp_check(payload, length, N) == GCOMP_OK && gcomp_check(payload, length, N + 1) == GCOMP_COUNT_MISMATCH);
    put(payload + 8, SIZE_MAX - 7, 8); /* what no memory holds */
    CHECK(gcomp_check(payload, length, SIZE_MAX - 7) == GCOMP_CORRUPT);
    put(payload + 8, N, 8);
    payload[5] = 40; /* int has no rows: B is in bits 2 to 6 */
    put(payload + 24, 1 << 2, 4);
    CHECK(gcomp_check(payload, length, N) == GCOMP_CORRUPT);
}

static void test_what_is_not_finite_is_refused(void)
{
    enum { ROWS = 300, COLS = 300, N = ROWS * COLS };
    static const size_t places[] = {0, 1, COLS, 65535, 65536, N / 2, N - 1};
    const gcomp_codec codec = codec_of("onebit", "row");
    gcomp_input in = matrix(ROWS, COLS);
    size_t length = 0;
    fill(N, COLS);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const float kept = g[places[i]];
        const gcomp_exec exec = exec_now();
        g[places[i]] = i % 2 ? (float)INFINITY : (float)NAN;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_NOT_FINITE);
        CHECK(gcomp_check(payload, length, N) == GCOMP_NOT_FINITE);
        g[places[i]] = kept;
    }
}

static void test_errors_say_what_is_wrong(void)
{
    static const struct {
        const char *text, *why;
    } bad[] = {{"sign:block=rows", "sign block cannot be 'rows': it takes 'row', 'tensor' or a power of two from 16 to 65536"},
               {"onebit:block=2", "onebit block cannot be '2': it takes 'row', 'tensor' or a power of two from 16 to 65536"},
               {"int:block=row", "int block cannot be 'row': it takes 'tensor' or a power of two from 16 to 65536"},
               {"topk+sign:block=row", "a sparse method's values have no rows: they take no block=row"},
               {"nonzero+onebit:block=row", "a sparse method's values have no rows: they take no block=row"}};
    char why[200], text[60];
    gcomp_codec codec = codec_of("sign:scale=rms", "row");
    CHECK(gcomp_codec_format(&codec, text, sizeof text) == 24 && !strcmp(text, "sign:block=row,scale=rms"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gcomp_codec none;
        CHECK(gcomp_codec_parse(&none, bad[i].text, why, sizeof why) == GCOMP_BAD_CODEC);
        if (strcmp(why, bad[i].why)) printf("# %s\n", why);
        CHECK(!strcmp(why, bad[i].why));
    }
    gcomp_input in; /* rows that are too long; no element is read */
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = 1;
    in.cols = ((size_t)1 << 30) + 1;
    CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.codec = "sign:block=row";
    tensor.name = "long";
    tensor.rows = 1;
    tensor.cols = in.cols;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_INVALID_ARGUMENT);
    CHECK(strstr(gcomp_error(gc), "too many elements for the codec") != NULL);
    gcomp_close(gc);
}

int main(void)
{
    for (int isa = 1; isa <= GCOMP_ISA_NEON; isa++) {
        if (!isa_is_wanted((gcomp_isa)isa)) continue;
        isa_now = (gcomp_isa)isa;
        RUN(test_each_block_is_that_of_a_tensor_alone);
        RUN(test_all_endings_find_the_blocks);
    }
    isa_now = GCOMP_ISA_AUTO;
    RUN(test_threads_and_sets_make_the_same_bytes);
    RUN(test_payloads_of_other_rows_have_a_mean);
    RUN(test_hostile_payloads_are_refused);
    RUN(test_what_is_not_finite_is_refused);
    RUN(test_errors_say_what_is_wrong);
    return test_end();
}
