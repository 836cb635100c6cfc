/* Proves that eden does what the manual says: a plain form, whose rotations follow the definition
   of the Hadamard matrix in double, finds the same codes and scales. Then it proves what the
   method promises: the error with each number of bits, the mean over many keys, and the same bits
   with and without scratch. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 65541, SHAPES = 8 };

static const size_t sizes[] = {0, 1, 15, 16, 17, 67, 1009, 4099, LARGEST};
enum { SIZES = sizeof sizes / sizeof *sizes };

static float g[LARGEST], e[LARGEST], p[LARGEST], d[LARGEST], y[LARGEST], other[LARGEST];
static double plain[LARGEST + 16], slack[LARGEST + 16]; /* what decoding must give, and how near */
static uint8_t payload[3][GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)], cut[GCOMP_BOUND(300)];
static gcomp_isa isa_now;

static void fill(int shape, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        g[i] = shaped_gradient(shape, i, n);
        e[i] = shaped_residual(shape, i);
        p[i] = g[i] + e[i];
    }
}

static gcomp_codec codec_of(int bits, size_t block)
{
    char text[64];
    gcomp_codec codec;
    sprintf(text, "eden:bits=%d,block=%u", bits, (unsigned)block);
    memset(&codec, 0, sizeof codec);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    return codec;
}

static gcomp_input input_of(const float *grad, const float *residual, size_t n, uint64_t key)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = n;
    in.residual = residual;
    in.key = gcomp_key_make(7, key, 3, 1);
    return in;
}

static size_t encode(const gcomp_codec *codec, const gcomp_input *in, int which)
{
    gcomp_exec exec = {isa_now, scratch, scratch_of(codec, in->rows), {NULL, NULL}};
    size_t length = 0;
    CHECK(gcomp_encode(codec, in, &exec, payload[which], gcomp_bound(codec, in->rows, NULL), &length) == GCOMP_OK);
    CHECK(length <= gcomp_bound(codec, in->rows, NULL) && gcomp_bound(codec, in->rows, NULL) <= GCOMP_BOUND(in->rows));
    CHECK(gcomp_bound(codec, in->rows, NULL) <= length + 4 * 12); /* the most pieces of what is left behind whole blocks */
    CHECK(gcomp_check(payload[which], length, in->rows) == GCOMP_OK);
    return length;
}

static uint64_t word_at(const uint8_t *b, int bytes)
{
    uint64_t w = 0;
    while (bytes) w = w << 8 | b[--bytes];
    return w;
}

/* ---------------- the plain form, from the manual's text */

static int sign_of(uint64_t words, size_t i) /* bit 15 - i / 16 % 16 of draw i / 256 * 16 + i % 16: 1 is negative */
{
    uint32_t draw = (uint32_t)(i / 256 * 16 + i % 16), h = draw / 2 + (uint32_t)words;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h ^= h >> 13 ^ (uint32_t)(words >> 32);
    h *= 0xC2B2AE35u;
    h ^= h >> 16;
    return h >> (draw % 2 * 16 + 15 - i / 16 % 16) & 1;
}

static void hadamard(double *x, size_t n) /* by halves; for small n by the definition */
{
    if (n <= 64) {
        double z[64];
        for (size_t i = 0; i < n; i++) {
            z[i] = 0;
            for (size_t j = 0; j < n; j++) {
                int odd = 0;
                for (size_t both = i & j; both; both &= both - 1) odd ^= 1;
                z[i] += odd ? -x[j] : x[j];
            }
        }
        memcpy(x, z, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n / 2; i++) {
        double a = x[i] + x[i + n / 2], b = x[i] - x[i + n / 2];
        x[i] = a;
        x[i + n / 2] = b;
    }
    hadamard(x, n / 2);
    hadamard(x + n / 2, n / 2);
}

#define LEAN 0.234375

static void lean(double *x, size_t group) /* each element with that half a group behind */
{
    for (size_t j = 0; j < group / 2 && group > 16; j++) {
        double a = x[j], b = x[j + group / 2];
        x[j] = a + LEAN * b;
        x[j + group / 2] = LEAN * a - b;
    }
}

static void turn_again(double *x, uint64_t words, size_t i, size_t size) /* signs of the words with their halves exchanged */
{
    for (size_t j = 0; j < size; j++)
        if (sign_of(words >> 32 | words << 32, i + j)) x[j] = -x[j];
}

static const double centroid[4][8] = {{1}, {3, 10}, {29, 89, 158, 253}, {12, 36, 61, 87, 115, 147, 187, 248}};

/* Between the numbers of centroids k - 1 and k this is k; v in units of the norm. */
static double cubic(int bits, double v)
{
    double y = fmin(v * (bits == 4 ? 0.5308287 : 0.4598167), bits == 4 ? 1.5406423 : 1.2081296);
    return bits == 1 ? 0.5 : bits == 2 ? fmin(v / 0.981599, 1.5) : y * ((bits == 4 ? 7.1207364 : 4.3787316) - y * y);
}

static unsigned code_at(const uint8_t *codes, size_t i, int bits) /* the magnitude, and 8 if negative */
{
    const uint8_t *code = codes + i / 16 * 2 * (size_t)bits;
    unsigned j = i % 16, nibble = code[j / 2 * (bits == 4)] >> j % 2 * 4 & 15;
    unsigned low = bits == 1 ? 0 : bits == 2 ? code[j / 8] >> j % 8 & 1 : code[j / 4 * (bits == 3)] >> j % 4 * 2 & 3;
    if (bits == 4) return nibble & 8 ? nibble ^ 7 : nibble;
    return low | (code[2 * bits - 2 + (int)j / 8] >> j % 8 & 1u) << 3;
}

static double scale_at(const uint8_t *b)
{
    uint32_t w = (uint32_t)word_at(b, 4), u = w & 0x7fffffffu;
    float f;
    memcpy(&f, &u, 4);
    return w >> 31 ? ldexp((double)f, -100) : (double)f;
}

/* Checks codes and scales of a payload of p, and leaves in plain what decoding must give. */
static void check_payload(const uint8_t *body, int bits, size_t block, size_t n)
{
    static double x[65536], c[65536];
    uint64_t words = word_at(body, 8);
    size_t tail = (n % block + 15) / 16, scales = n / block;
    const uint8_t *scale = body + 8, *codes;
    for (; tail; tail &= tail - 1) scales++;
    codes = scale + 4 * scales;
    for (size_t i = 0, size; i < n; i += size, scale += 4) {
        double squares = 0, norm, dot = 0, s, most = 0;
        size_t wrong = 0, group;
        int twice = *scale & 1;
        for (size = block; size > (n - i + 15) / 16 * 16;) size /= 2;
        group = size < 512 ? size : 512;
        for (size_t j = 0; j < size; j++) {
            double v = i + j < n ? (double)p[i + j] : 0;
            x[j] = sign_of(words, i + j) ? -v : v;
            squares += v * v;
            most = fmax(most, fabs(v));
        }
        norm = sqrt(squares);
        if (norm > 0 && fabs(most * most / squares * 128 - 1) > 1e-6) CHECK(twice == (most * most > squares / 128));
        if (twice) {
            for (size_t j = 0; j < size; j += group) {
                hadamard(x + j, group);
                lean(x + j, group);
            }
            turn_again(x, words, i, size);
            norm *= sqrt((double)group * (group > 16 ? 1 + LEAN * LEAN : 1));
        }
        hadamard(x, size);
        for (size_t j = 0; j < size; j++) {
            unsigned code = code_at(codes, i + j, bits), level = code & 7;
            int negative = code >> 3 & 1;
            if (norm > 0) { /* a coordinate may be rounded over a border */
                double at = cubic(bits, fabs(x[j]) / norm);
                wrong += level > at + 1e-3 || level + 1 < at - 1e-3 || level >= 1u << (bits - 1);
                wrong += fabs(x[j]) > 1e-4 * norm && negative != (x[j] < 0);
            } else wrong += code != 0;
            c[j] = centroid[bits - 1][level] * (negative ? -1 : 1);
            dot += fabs(c[j] * x[j]);
        }
        CHECK(wrong == 0);
        s = scale_at(scale);
        CHECK(fabs(s - (norm > 0 ? squares / dot : 0)) <= 1e-5 * s);
        hadamard(c, size);
        if (twice) {
            turn_again(c, words, i, size);
            for (size_t j = 0; j < size; j += group) {
                lean(c + j, group);
                hadamard(c + j, group);
            }
        }
        for (size_t j = 0; j < size && i + j < n; j++) plain[i + j] = s * c[j] * (sign_of(words, i + j) ? -1 : 1);
        most = 0; /* the sums of whole numbers are exact, but not those of the second transform */
        for (size_t j = 0; twice && j < size; j++) most = fmax(most, fabs(s * c[j]));
        for (size_t j = 0; j < size && i + j < n; j++) slack[i + j] = 1e-6 * fmax(most, fabs(plain[i + j])) + 1.5e-45;
    }
}

static void check_plain(int bits, size_t block)
{
    gcomp_codec codec = codec_of(bits, block);
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = sizes[s], length, bad = 0;
            gcomp_input in = input_of(g, e, n, s);
            gcomp_exec with = {isa_now, scratch, sizeof scratch, {NULL, NULL}}, without = {isa_now, NULL, 0, {NULL, NULL}};
            fill(shape, n);
            length = encode(&codec, &in, 0);
            if (n) check_payload(payload[0] + 32, bits, block, n);
            else CHECK(length == 32);
            CHECK(gcomp_decode(payload[0], length, d, GCOMP_F32, n, &with) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) {
                double want = plain[i] > 3.4028234663852886e38 ? 3.4028234663852886e38
                              : plain[i] < -3.4028234663852886e38 ? -3.4028234663852886e38 : plain[i];
                bad += !(fabs((double)d[i] - want) <= slack[i]);
            }
            CHECK(bad == 0);
            for (int room = 0; room < 2; room++) { /* every ending against plain loops over d, with scratch and without */
                const gcomp_exec *exec = room ? &with : &without;
                const void *payloads[3] = {payload[0], payload[0], payload[0]};
                size_t lengths[3] = {length, length, length};
                volatile float term;
                CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, n, exec) == GCOMP_OK && !memcmp(y, d, 4 * n));
                memcpy(y, e, 4 * n);
                CHECK(gcomp_decode_add(payload[0], length, 0.3f, y, GCOMP_F32, n, exec) == GCOMP_OK);
                bad = 0;
                for (size_t i = 0; i < n; i++) {
                    term = d[i] * 0.3f;
                    term = e[i] + term;
                    bad += y[i] != term;
                }
                CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) {
                    volatile float part = d[i] * (1.0f / 3.0f);
                    term = part + part;
                    term = term + part;
                    bad += y[i] != (fabsf(term) > 3.4028234e38f ? copysignf(3.40282347e38f, term) : term);
                }
                memcpy(y, e, 4 * n);
                CHECK(gcomp_retain(payload[0], length, &in, y, exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) {
                    term = p[i] - d[i];
                    bad += shape != 7 && y[i] != term;
                }
                CHECK(bad == 0);
            }
        }
}

static void test_one_bit_agrees_with_the_plain_form(void) { check_plain(1, 4096), check_plain(1, 64), check_plain(1, 65536); }
static void test_two_bits_agree_with_the_plain_form(void) { check_plain(2, 4096), check_plain(2, 512); }
static void test_three_bits_agree_with_the_plain_form(void) { check_plain(3, 4096), check_plain(3, 128); }
static void test_four_bits_agree_with_the_plain_form(void) { check_plain(4, 4096), check_plain(4, 1024); }

/* ---------------- what the method promises */

static double lost(int bits, size_t block, size_t n)
{
    gcomp_codec codec = codec_of(bits, block);
    gcomp_input in = input_of(g, NULL, n, 5);
    gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
    double sum = 0, all = 0;
    size_t length = encode(&codec, &in, 0);
    CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) {
        sum += ((double)y[i] - (double)g[i]) * ((double)y[i] - (double)g[i]);
        all += (double)g[i] * (double)g[i];
    }
    return sum / all;
}

static void test_errors_are_those_of_the_paper(void)
{
    static const double most[] = {0.575, 0.134, 0.0362, 0.0097};
    static const size_t blocks[] = {1024, 4096, 65536};
    fill(0, 65536);
    for (int bits = 1; bits <= 4; bits++)
        for (int b = 0; b < 3; b++) {
            double error = lost(bits, blocks[b], 65536);
            printf("# bits %d block %u: %.5f\n", bits, (unsigned)blocks[b], error);
            CHECK(error <= most[bits - 1] * (bits == 1 ? 1.005 : 1.01));
        }
}

/* (1, .9, 0, ...), 1 on noise of .001, two equal ones with noise and without, one element 1e4
   times the noise, a cube's tails */
static void fill_large(int kind, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float v = normal(i + 5);
        if (kind == 0) g[i] = i == 0 ? 1.0f : i == 1 ? 0.9f : 0.0f;
        else if (kind == 1) g[i] = i == 0 ? 1 : 1e-3f * v;
        else if (kind == 2) g[i] = i == 3 || i == n / 2;
        else if (kind == 3) g[i] = i == 3 || i == n / 3 ? 1 : 1e-3f * v;
        else if (kind == 4) g[i] = i == 7 ? 1e4f : v;
        else g[i] = v * v * v;
    }
}

/* One rotation leaves (1, .9, 0, ...) as (1.81, 0, ...) and of one large element nothing else. */
static void test_large_elements_leave_the_error_as_it_is(void)
{
    static const double most[2][4] = {{0.5708, 0.1331, 0.0358, 0.0096}, {0.3634, 0.1175, 0.0346, 0.0095}};
    enum { N = 2048, KEYS = 40 };
    for (int kind = 0; kind < 6; kind++)
        for (int bits = 1; bits <= 4; bits++)
            for (int feedback = 0; feedback < 2; feedback++) {
                gcomp_codec codec = codec_of(bits, 2048);
                gcomp_exec exec = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
                double sum = 0, all = 0;
                codec.param[2] = feedback;
                fill_large(kind, N);
                for (uint64_t k = 0; k < KEYS; k++) {
                    gcomp_input in = input_of(g, NULL, N, k);
                    size_t length = encode(&codec, &in, 0);
                    CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, N, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < N; i++) sum += ((double)y[i] - (double)g[i]) * ((double)y[i] - (double)g[i]) / KEYS;
                }
                for (size_t i = 0; i < N; i++) all += (double)g[i] * (double)g[i];
                if (!(sum / all < most[feedback][bits - 1] * 1.06 && sum / all > most[feedback][bits - 1] * 0.94))
                    printf("# kind %d bits %d feedback %d: %.5f\n", kind, bits, feedback, sum / all);
                CHECK(sum / all < most[feedback][bits - 1] * 1.06 && sum / all > most[feedback][bits - 1] * 0.94);
            }
}

static void test_feedback_loses_nothing_and_stays_bounded(void)
{
    static const size_t counts[] = {16, 67, 1009};
    enum { N = 1009, STEPS = 1000 };
    static double given[N], came[N];
    for (int c = 0; c < 3; c++)
        for (int bits = 1; bits <= 4; bits += c == 2 ? 3 : 1)
            for (int kind = 0; kind < 5; kind++) {
                const size_t n = counts[c];
                gcomp_codec codec = codec_of(bits, 4096);
                gcomp_exec exec = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
                double norm = 0, largest = 0, off = 0;
                codec.param[2] = 1;
                fill_large(kind, n);
                memset(e, 0, sizeof e);
                memset(given, 0, sizeof given);
                memset(came, 0, sizeof came);
                for (size_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
                for (uint64_t k = 0; k < STEPS; k++) {
                    gcomp_input in = input_of(g, e, n, k);
                    size_t length = encode(&codec, &in, 0);
                    double kept = 0;
                    CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
                    CHECK(gcomp_retain(payload[0], length, &in, e, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) {
                        given[i] += (double)g[i];
                        came[i] += (double)y[i];
                        kept += (double)e[i] * (double)e[i];
                    }
                    largest = fmax(largest, kept);
                }
                for (size_t i = 0; i < n; i++) off = fmax(off, fabs(came[i] + (double)e[i] - given[i]));
                CHECK(largest < norm * (c == 0 ? 6.25 : bits == 1 ? 2.5 : bits == 2 ? 0.7 : 0.3));
                CHECK(off < 1e-3 * sqrt(norm));
            }
}

static void test_feedback_is_off_unless_named(void)
{
    for (int feedback = 0; feedback < 2; feedback++) {
        gcomp_tensor tensor = {"t", 64, 64, 0, GCOMP_F32, feedback ? "eden:bits=2,feedback=1" : "eden:bits=2"};
        gcomp_desc desc;
        gcomp *gc;
        memset(&desc, 0, sizeof desc);
        desc.isa = isa_now;
        desc.comm.world = 1;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        CHECK((tensor_residual(gc, 0) != NULL) == feedback);
        gcomp_close(gc);
    }
}

static void test_the_mean_over_keys_is_the_input(void)
{
    enum { N = 1009, KEYS = 2000 };
    for (int shape = 0; shape < 6; shape += 5)
        for (int bits = 1; bits <= 4; bits++) {
            static double mean[N];
            gcomp_codec codec = codec_of(bits, 1024);
            gcomp_exec exec = {isa_now, NULL, 0, {NULL, NULL}};
            double off = 0, all = 0, along = 0;
            fill(shape, N);
            memset(mean, 0, sizeof mean);
            for (uint64_t k = 0; k < KEYS; k++) {
                gcomp_input in = input_of(g, NULL, N, k);
                size_t length = encode(&codec, &in, 0);
                CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, N, &exec) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) mean[i] += (double)y[i] / KEYS;
            }
            for (size_t i = 0; i < N; i++) {
                off += (mean[i] - (double)g[i]) * (mean[i] - (double)g[i]);
                along += mean[i] * (double)g[i];
                all += (double)g[i] * (double)g[i];
            }
            CHECK(fabs(along / all - 1) < 1e-5); /* <C(p), p> = |p|^2 always */
            CHECK(off / all < 0.65 / KEYS * 1.25); /* the variance of a mean, and no more */
        }
}

static void test_damage_is_refused_or_decoded_safely(void)
{
    enum { N = 300 };
    for (int bits = 1; bits <= 4; bits++) {
        gcomp_codec codec = codec_of(bits, 64);
        gcomp_input in = input_of(g, NULL, N, 9);
        size_t length, tried = 0, passed = 0;
        fill(0, N);
        length = encode(&codec, &in, 0);
        for (size_t i = 0; i < length; i++) CHECK(gcomp_check(payload[0], i, N) != GCOMP_OK);
        CHECK(gcomp_check(payload[0], length + 1, N) == GCOMP_TRAILING_BYTES);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            memcpy(cut, payload[0], length);
            cut[bit / 8] = (uint8_t)(cut[bit / 8] ^ 1u << bit % 8);
            tried++;
            if (gcomp_check(cut, length, N) != GCOMP_OK) continue;
            passed++;
            CHECK(gcomp_decode(cut, length, y, GCOMP_F32, N, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) CHECK(y[i] - y[i] == 0);
        }
        CHECK(passed < tried);
        CHECK(add_checksum(payload[0], length) == GCOMP_OK);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
            CHECK(gcomp_check(payload[0], length, N) != GCOMP_OK);
            payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
        }
    }
}

static void test_scales_that_no_encoder_writes_are_refused(void)
{
    static const uint32_t bad[] = {0x7f800000u, 0x7fc00000u, 0xff800000u, 0x80000000u, 0x00000001u, 0x0d7fffffu, 0xbf800002u,
                                   0xbfc00000u, 0x80000001u, 0};
    gcomp_codec codec = codec_of(2, 64);
    gcomp_input in = input_of(g, NULL, 64, 9);
    size_t length;
    fill(0, 64);
    length = encode(&codec, &in, 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int b = 0; b < 4; b++) payload[0][40 + b] = (uint8_t)(bad[i] >> 8 * b);
        CHECK(gcomp_check(payload[0], length, 64) == GCOMP_CORRUPT);
    }
    /* the largest is finite, whatever the codes */
    for (int b = 0; b < 4; b++) payload[0][40 + b] = (uint8_t)(0x7f7fffffu >> 8 * b);
    CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, 64, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 64; i++) CHECK(y[i] - y[i] == 0);
}

static void test_non_finite_input_is_refused(void)
{
    static const size_t places[] = {0, 4095, 4096, 65540};
    gcomp_codec codec = codec_of(1, 4096);
    gcomp_exec exec = {isa_now, scratch, sizeof scratch, {NULL, NULL}};
    for (int k = 0; k < 8; k++) {
        gcomp_input in = input_of(g, NULL, LARGEST, 9);
        size_t length = 0;
        fill(0, LARGEST);
        g[places[k / 2]] = k & 1 ? (float)INFINITY : (float)NAN;
        CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length) == GCOMP_NOT_FINITE && length == 32);
        CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, LARGEST, &exec) == GCOMP_NOT_FINITE);
    }
}

/* Payloads of other blocks and bits in one mean, threads, and the commit of an object: all are
   the plain sums. */
static void test_means_of_different_payloads_are_plain_sums(void)
{
    static const int bits[] = {1, 4, 2};
    static const size_t blocks[] = {4096, 65536, 64};
    size_t n = LARGEST, lengths[3];
    const void *payloads[3] = {payload[0], payload[1], payload[2]};
    memset(other, 0, sizeof other);
    fill(0, n);
    for (int w = 0; w < 3; w++) {
        gcomp_codec codec = codec_of(bits[w], blocks[w]);
        gcomp_input in = input_of(w == 1 ? e : g, NULL, n, (uint64_t)w);
        lengths[w] = encode(&codec, &in, w);
        CHECK(gcomp_decode(payload[w], lengths[w], y, GCOMP_F32, n, NULL) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) {
            volatile float term = y[i] * (1.0f / 3.0f);
            other[i] += term;
        }
    }
    for (int how = 0; how < 4; how++) {
        gcomp_exec exec = {isa_now, how & 1 ? scratch : NULL, how & 1 ? sizeof scratch : 0, {NULL, NULL}};
        if (how & 2) exec.parallel.run = run_backwards;
        CHECK(gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        CHECK(!memcmp(y, other, 4 * n));
    }
}

static void test_threads_and_scratch_do_not_change_a_payload(void)
{
    gcomp_codec codec = codec_of(3, 1024);
    gcomp_input in = input_of(g, e, LARGEST, 4);
    gcomp_exec exec = {isa_now, scratch, sizeof scratch, {run_backwards, NULL}};
    size_t length, again = 0;
    fill(5, LARGEST);
    length = encode(&codec, &in, 0);
    CHECK(gcomp_encode(&codec, &in, &exec, payload[1], sizeof payload[1], &again) == GCOMP_OK);
    CHECK(again == length && !memcmp(payload[0], payload[1], length));
    exec.scratch_bytes = scratch_of(&codec, LARGEST) - 1;
    CHECK(gcomp_encode(&codec, &in, &exec, payload[1], sizeof payload[1], &again) == GCOMP_SCRATCH_TOO_SMALL);
}

static void test_every_instruction_set_gives_the_same_bits(void)
{
    static uint8_t first[GCOMP_BOUND(LARGEST)];
    static float decoded[LARGEST];
    gcomp_isa now = isa_now;
    for (int bits = 1; bits <= 4; bits++)
        for (int shape = 0; shape < SHAPES; shape++) {
            gcomp_codec codec = codec_of(bits, 4096);
            size_t n = 20011, length = 0;
            fill(shape, n);
            for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
                gcomp_input in = input_of(g, e, n, 4);
                gcomp_exec exec = {(gcomp_isa)i, NULL, 0, {NULL, NULL}};
                if (!isa_available((gcomp_isa)i)) continue;
                isa_now = (gcomp_isa)i;
                length = encode(&codec, &in, 0);
                CHECK(gcomp_decode(payload[0], length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
                if (i == 1) memcpy(first, payload[0], length), memcpy(decoded, y, 4 * n);
                CHECK(!memcmp(first, payload[0], length) && !memcmp(decoded, y, 4 * n));
            }
        }
    isa_now = now;
}

int main(void)
{
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        RUN(test_one_bit_agrees_with_the_plain_form);
        RUN(test_two_bits_agree_with_the_plain_form);
        RUN(test_three_bits_agree_with_the_plain_form);
        RUN(test_four_bits_agree_with_the_plain_form);
        RUN(test_errors_are_those_of_the_paper);
        RUN(test_large_elements_leave_the_error_as_it_is);
        RUN(test_feedback_loses_nothing_and_stays_bounded);
        RUN(test_feedback_is_off_unless_named);
        RUN(test_the_mean_over_keys_is_the_input);
        RUN(test_damage_is_refused_or_decoded_safely);
        RUN(test_scales_that_no_encoder_writes_are_refused);
        RUN(test_non_finite_input_is_refused);
        RUN(test_means_of_different_payloads_are_plain_sums);
        RUN(test_threads_and_scratch_do_not_change_a_payload);
    }
    RUN(test_every_instruction_set_gives_the_same_bits);
    return test_end();
}
