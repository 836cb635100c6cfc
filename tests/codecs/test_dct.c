/* Proves that dct (DeMo) does what the manual says. A cosine transform written from its definition in
   double finds the same coefficients; the places are read by the manual's rule; the residual, the mean
   over senders, the decay and the bits on all instruction sets and threads follow; and what becomes of
   the momentum when workers come and go, and when a schedule changes the codec. */
#include "codecs.h"
#include "run_threads.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 256 * 520, WORLD = 5, SIDE = 64, STEP = 64 * 96, GUARD = 65536 };

typedef struct shape {
    size_t rows, cols, h, w;
} shape;

static const shape shapes[] = {
    {1, 1, 1, 1},      {1, 7, 1, 7},     {7, 1, 1, 7},      {64, 64, 64, 64},  {67, 1, 1, 1},  {67, 71, 1, 1},
    {128, 192, 64, 64}, {100, 50, 50, 50}, {67, 64, 1, 64},   {64, 67, 64, 1},   {4096, 1, 1, 64}, {1, 4096, 1, 64},
    {17, 33, 17, 33},  {300, 200, 60, 50}, {48, 130, 48, 26},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static float g[WORLD][LARGEST], y[LARGEST], e[LARGEST], other[LARGEST];
static double plain[LARGEST], image[LARGEST], total[LARGEST];
static uint8_t payload[WORLD][GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)], cut[GCOMP_BOUND(LARGEST)];
static size_t length[WORLD];

static gcomp_codec codec_of(const char *text)
{
    gcomp_codec codec;
    memset(&codec, 0, sizeof codec);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    return codec;
}

static gcomp_exec exec_of(gcomp_isa isa, int with_scratch)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    exec.scratch = with_scratch ? scratch : NULL;
    exec.scratch_bytes = with_scratch ? sizeof scratch : 0;
    return exec;
}

static gcomp_input input_of(const float *grad, const float *residual, const shape *s)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.residual = residual;
    in.rows = s->rows;
    in.cols = s->cols;
    in.key = gcomp_key_make(1, 2, 3, 0);
    return in;
}

static gcomp_result encode(const char *text, const gcomp_input *in, gcomp_isa isa, uint8_t *to, size_t *bytes)
{
    const gcomp_codec codec = codec_of(text);
    const gcomp_exec exec = exec_of(isa, 1);
    return gcomp_encode(&codec, in, &exec, to, GCOMP_BOUND(LARGEST), bytes);
}

/* to <- the coefficients of each chunk of `from`, at the places of the chunk in the matrix; back: the
   way back. */
static void transform(const shape *s, const double *from, double *to, int back)
{
    static double half[SIDE][SIDE], c[2][SIDE][SIDE];
    const size_t side[2] = {s->h, s->w}, cols = s->cols == 1 ? s->rows : s->cols, n = s->rows * s->cols;
    for (int a = 0; a < 2; a++)
        for (size_t k = 0; k < side[a]; k++)
            for (size_t j = 0; j < side[a]; j++) {
                const double value = sqrt((k ? 2.0 : 1.0) / (double)side[a]) *
                                     cos(3.14159265358979323846 * (double)((2 * j + 1) * k) / (2.0 * (double)side[a]));
                if (back) c[a][j][k] = value;
                else c[a][k][j] = value;
            }
    for (size_t row = 0; row < n / cols; row += s->h)
        for (size_t col = 0; col < cols; col += s->w) {
            const double *x = from + row * cols + col;
            for (size_t u = 0; u < s->h; u++)
                for (size_t j = 0; j < s->w; j++) {
                    half[u][j] = 0;
                    for (size_t i = 0; i < s->h; i++) half[u][j] += c[0][u][i] * x[i * cols + j];
                }
            for (size_t u = 0; u < s->h; u++)
                for (size_t v = 0; v < s->w; v++) {
                    double sum = 0;
                    for (size_t j = 0; j < s->w; j++) sum += half[u][j] * c[1][v][j];
                    to[(row + u) * cols + col + v] = sum;
                }
        }
}

/* The largest |x|. */
static double most_of(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    return most;
}

static void fill(float *x, size_t n, int which, size_t worker)
{
    for (size_t i = 0; i < n; i++) x[i] = which ? shaped_gradient(which, i, n) : normal(i + 1000003 * worker);
}

static void test_a_transform_written_in_double_agrees(void)
{
    for (size_t k = 0; k < SHAPES; k++) {
        const shape *s = &shapes[k];
        const size_t n = s->rows * s->cols;
        const gcomp_input in = input_of(g[0], NULL, s);
        const gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1);
        double worst = 0;
        fill(g[0], n, 0, k);
        /* all coefficients: the way there and back */
        CHECK(encode("dct:top=4096", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
        CHECK(gcomp_decode(payload[0], length[0], y, n, &exec) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)y[i] - (double)g[0][i]));
        CHECK(worst < 4e-6);
        /* the coefficients themselves */
        for (size_t i = 0; i < n; i++) image[i] = (double)g[0][i];
        transform(s, image, plain, 0);
        CHECK(get_word(payload[0] + 32, 8) == (s->cols == 1 ? s->rows : s->cols));
        CHECK(payload[0][40] == s->h && payload[0][41] == s->w && get_word(payload[0] + 42, 2) == s->h * s->w);
        CHECK(length[0] == 32 + 12 + 4 * n);
        const size_t cols = s->cols == 1 ? s->rows : s->cols, across = cols / s->w;
        worst = 0;
        for (size_t j = 0; j < n; j++) {
            const size_t chunk = j / (s->h * s->w), in_chunk = j % (s->h * s->w);
            const size_t at = (chunk / across * s->h + in_chunk / s->w) * cols + chunk % across * s->w + in_chunk % s->w;
            float q;
            uint32_t bits = (uint32_t)get_word(payload[0] + 44 + 4 * j, 4);
            memcpy(&q, &bits, 4);
            worst = fmax(worst, fabs((double)q - plain[at]));
        }
        CHECK(worst < 1e-5);
    }
}

/* The places of a chunk, by the manual. Returns the bytes that they take. */
static size_t places_of(const uint8_t *from, size_t c, size_t k, size_t *place)
{
    unsigned low = 0;
    while (c / k >> (low + 1)) low++;
    const size_t upper = k == c ? 0 : low ? k + ((c - 1) >> low) : c;
    size_t found = 0;
    for (size_t bit = 0; bit < upper; bit++)
        if (from[bit / 8] >> bit % 8 & 1 && found < k) {
            place[found] = low ? (bit - found) << low : bit;
            found++;
        }
    for (size_t i = 0; k < c && i < k; i++)
        for (unsigned b = 0; b < low; b++) {
            const size_t bit = upper + i * low + b;
            place[i] |= (size_t)(from[bit / 8] >> bit % 8 & 1) << b;
        }
    for (size_t i = 0; k == c && i < k; i++) place[i] = i;
    CHECK(k == c || found == k);
    return (upper + k * low + 7) / 8;
}

static void test_the_largest_coefficients_of_each_chunk_are_sent(void)
{
    static const size_t tops[] = {1, 3, 32, 100, 2000};
    static size_t place[4096];
    for (size_t t = 0; t < 5; t++)
        for (size_t shape_now = 0; shape_now < SHAPES; shape_now++) {
            const shape *s = &shapes[shape_now];
            const size_t n = s->rows * s->cols, c = s->h * s->w, k = tops[t] < c ? tops[t] : c;
            const size_t cols = s->cols == 1 ? s->rows : s->cols, across = cols / s->w, chunks = n / c;
            const gcomp_input in = input_of(g[0], NULL, s);
            char text[40];
            size_t wrong = 0, bytes = 0;
            snprintf(text, sizeof text, "dct:top=%d", (int)tops[t]);
            fill(g[0], n, 0, t);
            for (size_t i = 0; i < n; i++) image[i] = (double)g[0][i];
            transform(s, image, plain, 0);
            CHECK(encode(text, &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
            for (size_t chunk = 0; chunk < chunks; chunk++) {
                const double *q = plain + chunk / across * s->h * cols + chunk % across * s->w;
                double least = INFINITY, most = 0;
                size_t before = 0, j = 0;
                const size_t took = places_of(payload[0] + 44 + chunk * bytes, c, k, place);
                if (chunk == 0) bytes = took;
                for (size_t i = 0; i < c; i++) {
                    const double size = fabs(q[i / s->w * cols + i % s->w]);
                    if (j < k && place[j] == i) least = fmin(least, size), j++;
                    else most = fmax(most, size);
                }
                wrong += j != k;
                for (size_t i = 0; i < k; before = place[i++]) wrong += place[i] >= c || (i && place[i] <= before);
                wrong += least < most - 1e-5;
            }
            CHECK(wrong == 0);
            CHECK(length[0] == 32 + 12 + chunks * bytes + 4 * k * chunks);
        }
}

static void test_ties_take_the_first_places(void)
{
    static const shape one = {64, 64, 64, 64};
    static size_t place[4096];
    const gcomp_input in = input_of(g[0], NULL, &one);
    memset(g[0], 0, sizeof g[0]); /* all coefficients are 0 */
    CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
    (void)places_of(payload[0] + 44, 4096, 32, place);
    for (size_t i = 0; i < 32; i++) CHECK(place[i] == i);
}

static void test_sets_and_scratch_change_no_bit(void)
{
    static const char *const texts[] = {"dct", "dct:top=500", "dct:top=3,chunk=16+int:bits=4", "dct:top=64,chunk=40+bf16"};
    for (size_t k = 0; k < SHAPES; k++)
        for (int t = 0; t < 4; t++)
            for (int which = 0; which < 8; which++) {
                const shape *s = &shapes[k];
                const size_t n = s->rows * s->cols;
                const gcomp_input in = input_of(g[0], e, s);
                gcomp_exec exec = exec_of(GCOMP_ISA_SCALAR, 0);
                if (n > 10000 && (which != t || test_is_slow())) continue;
                fill(g[0], n, which, k);
                for (size_t i = 0; i < n; i++) e[i] = shaped_residual(which, i);
                CHECK(encode(texts[t], &in, GCOMP_ISA_SCALAR, payload[0], &length[0]) == GCOMP_OK);
                CHECK(gcomp_decode(payload[0], length[0], other, n, &exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) CHECK(isfinite(other[i]));
                for (int isa = GCOMP_ISA_AVX2; isa <= GCOMP_ISA_NEON; isa++) {
                    if (!gcomp_isa_available((gcomp_isa)isa)) continue;
                    CHECK(encode(texts[t], &in, (gcomp_isa)isa, payload[1], &length[1]) == GCOMP_OK);
                    CHECK(length[0] == length[1] && !memcmp(payload[0], payload[1], length[0]));
                    for (int with = 0; with < 2; with++) {
                        exec = exec_of((gcomp_isa)isa, with);
                        memset(y, 0xff, 4 * n);
                        CHECK(gcomp_decode(payload[0], length[0], y, n, &exec) == GCOMP_OK);
                        CHECK(memcmp(y, other, 4 * n) == 0);
                    }
                }
            }
}

static void test_the_mean_is_over_those_that_sent(void)
{
    static const shape s = {128, 128, 64, 64};
    static size_t place[4096];
    const size_t n = s.rows * s.cols;
    const gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1), bare = exec_of(GCOMP_ISA_AUTO, 0);
    const void *payloads[WORLD];
    static double count[LARGEST];
    double worst = 0;
    memset(plain, 0, sizeof plain);
    memset(count, 0, sizeof count);
    for (size_t w = 0; w < WORLD; w++) {
        const gcomp_input in = input_of(g[w], NULL, &s);
        fill(g[w], n, 0, w);
        for (size_t i = 0; i < n; i++) g[w][i] += 3 * normal(i / 7); /* a part that all have */
        CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[w], &length[w]) == GCOMP_OK);
        payloads[w] = payload[w];
        for (size_t chunk = 0; chunk < 4; chunk++) {
            (void)places_of(payload[w] + 44 + 36 * chunk, 4096, 32, place);
            for (size_t i = 0; i < 32; i++) {
                const size_t at = (chunk / 2 * 64 + place[i] / 64) * 128 + chunk % 2 * 64 + place[i] % 64;
                const uint32_t bits = (uint32_t)get_word(payload[w] + 44 + 4 * 36 + 4 * (32 * chunk + i), 4);
                plain[at] += (double)float_of(bits);
                count[at]++;
            }
        }
    }
    size_t shared = 0;
    for (size_t i = 0; i < n; i++) {
        shared += count[i] > 1;
        if (count[i] > 0) plain[i] /= count[i];
    }
    CHECK(shared > 10); /* else this would show nothing */
    transform(&s, plain, image, 1);
    CHECK(gcomp_decode_mean(payloads, length, WORLD, y, n, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)y[i] - image[i]));
    CHECK(worst < 1e-5);
    CHECK(gcomp_decode_mean(payloads, length, WORLD, other, n, &bare) == GCOMP_OK);
    CHECK(memcmp(y, other, 4 * n) == 0);
    /* one payload alone is its own mean; a payload of another shape has no senders in common */
    CHECK(gcomp_decode_mean(payloads, length, 1, y, n, &exec) == GCOMP_OK);
    CHECK(gcomp_decode(payload[0], length[0], other, n, &exec) == GCOMP_OK);
    CHECK(memcmp(y, other, 4 * n) == 0);
    {
        static const shape flat = {1, 128 * 128, 1, 64};
        const gcomp_input in = input_of(g[1], NULL, &flat);
        CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[1], &length[1]) == GCOMP_OK);
        CHECK(gcomp_decode_mean(payloads, length, 2, y, n, &exec) == GCOMP_OK);
        memset(other, 0, sizeof other);
        for (int w = 0; w < 2; w++) CHECK(gcomp_decode_add(payload[w], length[w], 0.5f, other, n, &exec) == GCOMP_OK);
        CHECK(memcmp(y, other, 4 * n) == 0);
    }
}

/* More payloads than the places are remembered of: the same mean as of the definition. */
static void test_many_payloads_have_a_mean(void)
{
    static const shape s = {16, 16, 16, 16};
    enum { MANY = 70, N = 256 };
    static uint8_t many[MANY][GCOMP_BOUND(N)];
    static size_t lengths[MANY], place[N];
    static double count[N];
    const void *payloads[MANY];
    const gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 0);
    double worst = 0;
    memset(plain, 0, sizeof plain);
    memset(count, 0, sizeof count);
    for (size_t w = 0; w < MANY; w++) {
        const gcomp_input in = input_of(g[0], NULL, &s);
        fill(g[0], N, 0, w);
        CHECK(encode("dct:top=9", &in, GCOMP_ISA_AUTO, many[w], &lengths[w]) == GCOMP_OK);
        payloads[w] = many[w];
        const size_t bytes = places_of(many[w] + 44, N, 9, place);
        for (size_t i = 0; i < 9; i++) {
            plain[place[i]] += (double)float_of((uint32_t)get_word(many[w] + 44 + bytes + 4 * i, 4));
            count[place[i]]++;
        }
    }
    for (size_t i = 0; i < N; i++)
        if (count[i] > 0) plain[i] /= count[i];
    transform(&s, plain, image, 1);
    CHECK(gcomp_decode_mean(payloads, lengths, MANY, y, N, &exec) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)y[i] - image[i]));
    CHECK(worst < 1e-5);
}

/* An object with one matrix, for which base->codec is named. */
static gcomp *open_as(const gcomp_desc *base, int rank, int world, const shape *s, gcomp_dtype dtype)
{
    gcomp_desc desc = *base;
    gcomp_tensor tensor;
    gcomp *gc = NULL;
    memset(&tensor, 0, sizeof tensor);
    desc.comm.rank = rank;
    desc.comm.world = world;
    tensor.name = "w";
    tensor.rows = s->rows;
    tensor.cols = s->cols;
    tensor.dtype = dtype;
    tensor.codec = base->codec;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    return gc;
}

static gcomp *open_worker(const char *codec, int rank, int world, const shape *s, gcomp_dtype dtype, const char *residual)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.residual = residual;
    return open_as(&desc, rank, world, s, dtype);
}

static gcomp_step how; /* of the next steps; main sets it */

/* A step of all; status 1: its gather fails. Returns the result of worker 0's last call. */
static gcomp_result step_all(gcomp **gc, size_t world, int fails)
{
    gcomp_request q[WORLD];
    gcomp_result result = GCOMP_OK;
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_step_begin(gc[w], &how) == GCOMP_OK);
        CHECK(gcomp_step_ready(gc[w], 0, g[w]) == GCOMP_OK);
    }
    for (int call = 0;; call++) {
        for (size_t w = 0; w < world; w++) {
            const gcomp_result now = gcomp_step_next(gc[w], &q[w]);
            if (w == 0) result = now;
            CHECK(now == result);
        }
        if (result != GCOMP_OK || q[0].kind == GCOMP_DONE) break;
        for (size_t w = 0; w < world && q[0].kind == GCOMP_ALLGATHER; w++)
            for (size_t from = 0; from < world; from++)
                memcpy((char *)q[w].recv + from * q[w].stride, q[from].send, q[from].bytes[from]);
        for (size_t w = 1; w < world && q[0].kind == GCOMP_ALLREDUCE; w++)
            plain_sum(q[0].recv, q[w].recv, q[0].count, q[0].dtype);
        for (size_t w = 1; w < world && q[0].kind == GCOMP_ALLREDUCE; w++)
            memcpy(q[w].recv, q[0].recv, q[0].count * bytes_of_dtype(q[0].dtype));
        for (size_t w = 0; w < world; w++)
            result = gcomp_step_done(gc[w], q[w].id, fails && call == 1);
        if (result != GCOMP_OK) break;
    }
    for (size_t w = 0; w < world; w++)
        CHECK((result == GCOMP_OK ? gcomp_step_commit(gc[w]) : gcomp_step_abort(gc[w])) == GCOMP_OK);
    return result;
}

/* d <- 0.999 (d + g - sent), for 1000 steps; and what was sent and what stays make up all. */
static void test_the_momentum_decays_and_nothing_else_is_lost(void)
{
    static const shape s = {32, 24, 16, 12};
    enum { N = 32 * 24, STEPS = 1000 };
    gcomp *gc = open_worker("dct:top=6,chunk=16", 0, 1, &s, GCOMP_F32, NULL);
    static double moving[N];
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        fill(g[0], N, 0, (size_t)step % 50);
        for (size_t i = 0; i < N; i++) total[i] = (double)g[0][i];
        CHECK(step_all(&gc, 1, 0) == GCOMP_OK); /* a mean of one: what was sent */
        for (size_t i = 0; i < N; i++) moving[i] = (double)0.999f * (moving[i] + total[i] - (double)g[0][i]);
        const float *left = gcomp_residual(gc, 0);
        for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)left[i] - moving[i]));
    }
    CHECK(most_of(moving, N) > 1); /* else this would show nothing */
    CHECK(worst < 2e-4);
    gcomp_close(gc);
}

/* A step by the codec layer: y <- the mean of the payloads of g + d, d <- decay * what was not sent. */
static const shape step_shape = {64, 96, 64, 48};
static float d[WORLD][STEP];

static void plain_step(const char *text, size_t world)
{
    const gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 0);
    const float decay = codec_decay(text);
    const void *payloads[WORLD];
    for (size_t w = 0; w < world; w++) {
        const gcomp_input in = input_of(g[w], d[w], &step_shape);
        CHECK(encode(text, &in, GCOMP_ISA_AUTO, payload[w], &length[w]) == GCOMP_OK);
        payloads[w] = payload[w];
        CHECK(gcomp_retain(payload[w], length[w], &in, d[w], &exec) == GCOMP_OK);
        for (size_t i = 0; i < STEP; i++) d[w][i] *= decay;
    }
    CHECK(gcomp_decode_mean(payloads, length, world, y, STEP, &exec) == GCOMP_OK);
}

/* Gradients that workers have in part in common. */
static void fill_all(size_t world, size_t step)
{
    for (size_t w = 0; w < world; w++) {
        fill(g[w], STEP, 0, 10 * w + step);
        for (size_t i = 0; i < STEP; i++) g[w][i] += normal(i);
    }
}

/* Takes a step. Returns 1 if all workers have the mean and the momentum of the definition. */
static int is_plain_step(gcomp **gc, const char *text, size_t world, size_t step)
{
    int same = 1;
    fill_all(world, step);
    plain_step(text, world);
    CHECK(step_all(gc, world, 0) == GCOMP_OK);
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_residual_get(gc[w], 0, other) == GCOMP_OK);
        same &= memcmp(g[w], y, 4 * STEP) == 0 && memcmp(other, d[w], 4 * STEP) == 0;
    }
    return same;
}

static void test_steps_follow_the_definition_on_many_workers(void)
{
    for (size_t world = 1; world <= WORLD; world += 2) {
        gcomp *gc[WORLD];
        memset(d, 0, sizeof d);
        for (size_t w = 0; w < world; w++)
            gc[w] = open_worker("dct:top=20,decay=0.9", (int)w, (int)world, &step_shape, GCOMP_F32, NULL);
        for (size_t step = 0; step < 4; step++) CHECK(is_plain_step(gc, "dct:top=20,decay=0.9", world, step));
        for (size_t w = 0; w < world; w++) gcomp_close(gc[w]);
    }
}

/* Payloads of three workers, what is decoded from them, and what stays; `room` bytes of scratch to decode,
   behind which nothing is written. */
static uint64_t digest_of(const char *text, const shape *s, gcomp_parallel parallel, size_t room)
{
    const gcomp_codec codec = codec_of(text);
    const void *payloads[3] = {payload[0], payload[1], payload[2]};
    const size_t n = s->rows * s->cols;
    gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1);
    gcomp_input in;
    uint64_t h = FNV;
    exec.parallel = parallel;
    for (size_t w = 0; w < 3; w++) {
        in = input_of(g[w], e, s);
        CHECK(gcomp_encode(&codec, &in, &exec, payload[w], sizeof payload[w], &length[w]) == GCOMP_OK);
        h = fnv(h, payload[w], length[w]);
    }
    exec.scratch_bytes = room;
    for (size_t i = room; i < sizeof scratch && i < room + GUARD; i++) scratch[i] = 0xa5;
    CHECK(gcomp_decode(payload[0], length[0], y, n, &exec) == GCOMP_OK);
    h = fnv(h, y, 4 * n);
    CHECK(gcomp_decode_add(payload[1], length[1], 0.7f, y, n, &exec) == GCOMP_OK);
    h = fnv(h, y, 4 * n);
    CHECK(gcomp_decode_mean(payloads, length, 3, y, n, &exec) == GCOMP_OK);
    h = fnv(h, y, 4 * n);
    memcpy(other, e, 4 * n);
    in = input_of(g[2], other, s);
    CHECK(gcomp_retain(payload[2], length[2], &in, other, &exec) == GCOMP_OK);
    size_t written = 0;
    for (size_t i = room; i < sizeof scratch && i < room + GUARD; i++) written += scratch[i] != 0xa5;
    CHECK(written == 0);
    return fnv(h, other, 4 * n);
}

/* Two steps of three workers. */
static uint64_t digest_of_steps(const char *text, const shape *s, gcomp_parallel parallel)
{
    const size_t n = s->rows * s->cols;
    uint64_t h = FNV;
    gcomp_desc desc;
    gcomp *gc[3];
    memset(&desc, 0, sizeof desc);
    desc.codec = text;
    desc.parallel = parallel;
    for (int w = 0; w < 3; w++) gc[w] = open_as(&desc, w, 3, s, GCOMP_F32);
    for (size_t step = 0; step < 2; step++) {
        for (size_t w = 0; w < 3; w++) fill(g[w], n, 0, 3 * step + w);
        CHECK(step_all(gc, 3, 0) == GCOMP_OK);
        for (size_t w = 0; w < 3; w++) h = fnv(fnv(h, g[w], 4 * n), gcomp_residual(gc[w], 0), 4 * n);
    }
    for (int w = 0; w < 3; w++) gcomp_close(gc[w]);
    return h;
}

/* An encoder takes a task for each 65536 elements: two here. In a decoder chunks and scratch limit the tasks. */
static void test_threads_change_no_bit(void)
{
    static const shape large[] = {{512, 256, 64, 64}, {256, 520, 64, 52}, {2, 65536, 2, 64}};
    static const char *const texts[] = {"dct", "dct:top=9,chunk=24+int:bits=4", "dct:top=100"};
    static size_t two = 2, seven = 7;
    const gcomp_parallel alone = {NULL, NULL};
    const struct { gcomp_parallel parallel; size_t room; } ways[] = {
        {{run_backwards, NULL}, 0}, {{run_threads, &two}, 4 * SIDE * SIDE}, {{run_threads, &seven}, 9 * SIDE * SIDE},
        {{run_threads, &seven}, sizeof scratch}};
    for (size_t k = 0; k < 3; k++) {
        const shape *s = &large[k];
        const size_t n = s->rows * s->cols;
        const gcomp_codec codec = codec_of(texts[k]);
        const gcomp_input in = input_of(g[0], e, s);
        gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1);
        for (size_t w = 0; w < 3; w++) fill(g[w], n, 0, w + k);
        fill(e, n, 0, 9);
        const uint64_t digest = digest_of(texts[k], s, alone, 0);
        for (size_t way = 0; way < 4; way++) CHECK(digest_of(texts[k], s, ways[way].parallel, ways[way].room) == digest);
        if (k == 1) CHECK(digest_of_steps(texts[k], s, ways[3].parallel) == digest_of_steps(texts[k], s, alone));
        exec.parallel = ways[2].parallel;
        fill(g[0], n, 0, k);
        g[0][n - 1] = NAN; /* one task finds it */
        CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_NOT_FINITE && length[0] == 32);
    }
}

static void test_a_step_that_fails_leaves_no_trace(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    gcomp *gc[2];
    static float before[2][N];
    for (int w = 0; w < 2; w++) gc[w] = open_worker("dct", w, 2, &s, GCOMP_F32, NULL);
    for (int round = 0; round < 3; round++) {
        for (size_t w = 0; w < 2; w++) {
            fill(g[w], N, 0, w + (size_t)round);
            memcpy(before[w], gcomp_residual(gc[w], 0), 4 * N);
        }
        memcpy(other, g[0], 4 * N);
        CHECK(step_all(gc, 2, 1) == GCOMP_CALLBACK_FAILED);
        CHECK(memcmp(other, g[0], 4 * N) == 0);
        g[1][77] = NAN;
        CHECK(step_all(gc, 2, 0) == GCOMP_NOT_FINITE);
        for (size_t w = 0; w < 2; w++) CHECK(memcmp(before[w], gcomp_residual(gc[w], 0), 4 * N) == 0);
        g[1][77] = 1;
        CHECK(step_all(gc, 2, 0) == GCOMP_OK);
        CHECK(memcmp(g[0], g[1], 4 * N) == 0);
    }
    for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
}

/* One-way: compress, commit, give back. */
static void test_compress_and_commit_are_a_step(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    gcomp *gc = open_worker("dct:decay=0.5", 0, 1, &s, GCOMP_F32, NULL), *step = open_worker("dct:decay=0.5", 0, 1, &s, GCOMP_F32, NULL);
    for (uint64_t k = 0; k < 3; k++) {
        const void *payloads[1] = {payload[0]};
        fill(g[0], N, 0, k);
        memcpy(y, g[0], 4 * N);
        CHECK(gcomp_compress(gc, 0, k, y, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, y, payload[0], length[0], payloads, length, 1) == GCOMP_OK);
        CHECK(step_all(&step, 1, 0) == GCOMP_OK);
        CHECK(memcmp(y, g[0], 4 * N) == 0);
        CHECK(memcmp(gcomp_residual(gc, 0), gcomp_residual(step, 0), 4 * N) == 0);
    }
    /* what is given back decays as what stayed has */
    memcpy(e, gcomp_residual(gc, 0), 4 * N);
    memcpy(other, gcomp_residual(gc, 0), 4 * N);
    fill(g[0], N, 0, 9);
    memcpy(y, g[0], 4 * N);
    CHECK(gcomp_compress(gc, 0, 3, y, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
    CHECK(gcomp_commit(gc, 0, y, payload[0], length[0], NULL, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_give_back(gc, 0, payload[0], length[0]) == GCOMP_OK);
    double worst = 0;
    for (size_t i = 0; i < N; i++)
        worst = fmax(worst, fabs((double)gcomp_residual(gc, 0)[i] - 0.5 * ((double)e[i] + (double)g[0][i])));
    CHECK(worst < 1e-6);
    gcomp_close(gc);
    gcomp_close(step);
}

static void test_what_is_not_finite_is_refused_and_what_is_large_stays_finite(void)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    for (size_t k = 0; k < SHAPES; k++) {
        const shape *s = &shapes[k];
        const size_t n = s->rows * s->cols;
        const gcomp_input in = input_of(g[0], NULL, s);
        if (n > 10000) continue;
        for (int end = 0; end < 3; end++)
            for (int o = 0; o < 3; o++) {
                fill(g[0], n, 0, k);
                g[0][end == 0 ? 0 : end == 1 ? n / 2 : n - 1] = odd[o];
                CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_NOT_FINITE && length[0] == 32);
            }
        /* as large as can be: the sums of a chunk would overflow */
        for (size_t i = 0; i < n; i++) g[0][i] = 3.4e38f;
        CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
        memset(e, 0, 4 * n);
        CHECK(gcomp_retain(payload[0], length[0], &in, e, NULL) == GCOMP_OK);
        CHECK(gcomp_decode(payload[0], length[0], y, n, NULL) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) CHECK(isfinite(e[i]) && isfinite(y[i]) && y[i] > 0);
    }
}

static void test_hostile_payloads_are_refused(void)
{
    static const shape s = {64, 128, 64, 64};
    enum { N = 64 * 128 };
    const gcomp_input in = input_of(g[0], NULL, &s);
    fill(g[0], N, 0, 5);
    CHECK(encode("dct:top=5", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
    for (size_t bytes = 0; bytes < length[0]; bytes++) CHECK(gcomp_check(payload[0], bytes, N) != GCOMP_OK);
    payload[0][length[0]] = 0;
    CHECK(gcomp_check(payload[0], length[0] + 1, N) == GCOMP_TRAILING_BYTES);
    size_t taken = 0, refused = 0;
    for (size_t bit = 0; bit < 8 * length[0]; bit++) {
        memcpy(cut, payload[0], length[0]);
        cut[bit / 8] = (uint8_t)(cut[bit / 8] ^ 1u << bit % 8);
        if (gcomp_check(cut, length[0], N) != GCOMP_OK) {
            refused++;
            continue;
        }
        taken++; /* another payload that is valid: decoded safely */
        CHECK(gcomp_decode(cut, length[0], y, N, NULL) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) CHECK(isfinite(y[i]));
    }
    CHECK(taken > 100 && refused > 200);
    /* the head: a field that no encoder writes */
    static const struct { int at; uint8_t value; } bad[] = {{32, 0}, {32, 3}, {40, 0}, {40, 65}, {40, 60}, {41, 0}, {41, 65}, {41, 48}, {42, 0}, {43, 17}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        memcpy(cut, payload[0], length[0]);
        cut[bad[k].at] = bad[k].value;
        CHECK(gcomp_check(cut, length[0], N) == GCOMP_CORRUPT);
    }
    /* what is sealed has no bit that may change */
    CHECK(gcomp_seal(payload[0], length[0], NULL) == GCOMP_OK);
    for (size_t bit = 0; bit < 8 * length[0]; bit++) {
        payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
        CHECK(gcomp_check(payload[0], length[0], N) != GCOMP_OK);
        payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
    }
    /* nothing has nothing to send */
    static const shape none = {0, 5, 0, 0};
    const gcomp_input empty = input_of(NULL, NULL, &none);
    CHECK(encode("dct", &empty, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK && length[0] == 32);
    CHECK(gcomp_decode(payload[0], length[0], NULL, 0, NULL) == GCOMP_OK);
}

static void test_halves_and_small_residuals_do_as_floats(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    static const char *const kinds[] = {"bf16", "int8"};
    for (int k = 0; k < 2; k++) {
        gcomp *gc = open_worker("dct", 0, 1, &s, GCOMP_F32, kinds[k]), *exact = open_worker("dct", 0, 1, &s, GCOMP_F32, NULL);
        double far = 0, size = 0;
        for (size_t step = 0; step < 5; step++) {
            fill(g[0], N, 0, step);
            CHECK(step_all(&gc, 1, 0) == GCOMP_OK);
            memcpy(y, g[0], 4 * N);
            fill(g[0], N, 0, step);
            CHECK(step_all(&exact, 1, 0) == GCOMP_OK);
        }
        for (size_t i = 0; i < N; i++) {
            far += ((double)y[i] - (double)g[0][i]) * ((double)y[i] - (double)g[0][i]);
            size += (double)g[0][i] * (double)g[0][i];
        }
        CHECK(far < 0.2 * size); /* a few coefficients may be others */
        gcomp_close(gc);
        gcomp_close(exact);
    }
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
        static uint16_t half[N];
        gcomp *gc = open_worker("dct", 0, 1, &s, (gcomp_dtype)dtype, NULL), *exact = open_worker("dct", 0, 1, &s, GCOMP_F32, NULL);
        fill(g[0], N, 0, 3);
        CHECK(gcomp_from_float(half, g[0], (gcomp_dtype)dtype, N, NULL) == GCOMP_OK);
        CHECK(gcomp_to_float(g[0], half, (gcomp_dtype)dtype, N, NULL) == GCOMP_OK);
        CHECK(step_all(&exact, 1, 0) == GCOMP_OK);
        void *grads[1] = {half};
        CHECK(gcomp_exchange_any(gc, grads, NULL) == GCOMP_OK);
        static uint16_t rounded[N];
        CHECK(gcomp_from_float(rounded, g[0], (gcomp_dtype)dtype, N, NULL) == GCOMP_OK);
        CHECK(memcmp(rounded, half, sizeof half) == 0);
        gcomp_close(gc);
        gcomp_close(exact);
    }
}

/* Saves give the same bits again; those that stay keep what they have, however many workers there are. */
static void test_saves_and_workers_that_leave(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    static uint8_t save[2][8 * N];
    size_t bytes[2];
    gcomp *gc[2], *again[2];
    for (int w = 0; w < 2; w++) {
        gc[w] = open_worker("dct", w, 2, &s, GCOMP_F32, NULL);
        again[w] = open_worker("dct", w, 2, &s, GCOMP_F32, NULL);
    }
    for (int round = 0; round < 2; round++) {
        for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w);
        CHECK(step_all(gc, 2, 0) == GCOMP_OK);
    }
    for (int w = 0; w < 2; w++) {
        const void *saves[1] = {save[w]};
        bytes[w] = gcomp_save_size(gc[w]);
        CHECK(bytes[w] <= sizeof save[w] && gcomp_save(gc[w], save[w], sizeof save[w], &bytes[w]) == GCOMP_OK);
        CHECK(gcomp_load(again[w], saves, &bytes[w], 1) == GCOMP_OK);
        CHECK(memcmp(gcomp_residual(gc[w], 0), gcomp_residual(again[w], 0), 4 * N) == 0);
    }
    for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w + 7);
    CHECK(step_all(gc, 2, 0) == GCOMP_OK);
    memcpy(y, g[0], 4 * N);
    for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w + 7);
    CHECK(step_all(again, 2, 0) == GCOMP_OK);
    CHECK(memcmp(y, g[0], 4 * N) == 0);
    /* one leaves: what it had moves; what the other had stays as it is */
    memcpy(e, gcomp_residual(gc[0], 0), 4 * N);
    memcpy(other, gcomp_residual(gc[1], 0), 4 * N);
    CHECK(gcomp_save(gc[1], save[1], sizeof save[1], &bytes[1]) == GCOMP_OK && gcomp_take_over(gc[0], save[1], bytes[1]) == GCOMP_OK);
    gcomp_comm alone;
    memset(&alone, 0, sizeof alone);
    alone.world = 1;
    CHECK(gcomp_regroup(gc[0], &alone) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) CHECK(gcomp_residual(gc[0], 0)[i] == e[i] + other[i]);
    fill(g[0], N, 0, 3);
    CHECK(step_all(gc, 1, 0) == GCOMP_OK);
    for (int w = 0; w < 2; w++) {
        gcomp_close(gc[w]);
        gcomp_close(again[w]);
    }
}

static void regroup(gcomp *gc, int rank, int world)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.rank = rank;
    comm.world = world;
    CHECK(gcomp_regroup(gc, &comm) == GCOMP_OK);
}

/* One of three leaves, another joins. What the others have is not scaled: a mean over senders does not divide by all. */
static void test_those_that_stay_keep_their_momentum(void)
{
    static const char *const kinds[] = {"fp32", "bf16", "int8"};
    static float before[STEP], after[STEP];
    static uint8_t save[3][5 * STEP];
    for (int k = 0; k < 3; k++) {
        const char *const text = "dct:decay=0.9";
        const void *const saves[3] = {save[0], save[1], save[2]};
        size_t bytes[3];
        gcomp *gc[3], *two;
        memset(d, 0, sizeof d);
        for (int w = 0; w < 3; w++) gc[w] = open_worker(text, w, 3, &step_shape, GCOMP_F32, kinds[k]);
        for (size_t step = 0; step < 2; step++) CHECK(is_plain_step(gc, text, 3, step) || k);
        for (int w = 0; w < 3; w++) CHECK(gcomp_residual_get(gc[w], 0, d[w]) == GCOMP_OK);
        CHECK(gcomp_save(gc[2], save[2], sizeof save[2], &bytes[2]) == GCOMP_OK);
        CHECK(gcomp_take_over(gc[0], save[2], bytes[2]) == GCOMP_OK);
        CHECK(gcomp_residual_get(gc[0], 0, before) == GCOMP_OK);
        double worst = 0, most = 0;
        for (size_t i = 0; i < STEP; i++) {
            worst = fmax(worst, fabs((double)before[i] - (double)(d[0][i] + d[2][i])));
            most = fmax(most, fabs((double)before[i]));
        }
        CHECK(most > 1 && worst <= (k == 0 ? 0 : most / 250)); /* small ones are rounded, by int8 to 1/254 */
        memcpy(d[0], before, sizeof before);
        gcomp_close(gc[2]);
        for (int w = 0; w < 2; w++) {
            regroup(gc[w], w, 2);
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK && memcmp(after, d[w], sizeof after) == 0);
        }
        CHECK(is_plain_step(gc, text, 2, 7) || k);
        CHECK(gcomp_save(gc[1], save[1], sizeof save[1], &bytes[1]) == GCOMP_OK);
        gc[2] = open_worker(text, 2, 3, &step_shape, GCOMP_F32, kinds[k]);
        CHECK(gcomp_join(gc[2], save[1], bytes[1]) == GCOMP_OK && gcomp_step_number(gc[2]) == 3);
        for (int w = 0; w < 3; w++) {
            CHECK(gcomp_residual_get(gc[w], 0, d[w]) == GCOMP_OK);
            if (w < 2) regroup(gc[w], w, 3);
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK && memcmp(after, d[w], sizeof after) == 0);
        }
        for (size_t i = 0; i < STEP; i++) CHECK(after[i] == 0); /* of the new one */
        CHECK(is_plain_step(gc, text, 3, 8) || k);
        CHECK(memcmp(g[0], g[1], 4 * STEP) == 0 && memcmp(g[0], g[2], 4 * STEP) == 0);
        /* two others load what the three have: the mean */
        memset(total, 0, sizeof total);
        for (size_t w = 0; w < 3; w++) {
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK);
            for (size_t i = 0; i < STEP; i++) total[i] += (double)after[i] / 3;
            CHECK(gcomp_save(gc[w], save[w], sizeof save[w], &bytes[w]) == GCOMP_OK);
            gcomp_close(gc[w]);
        }
        two = open_worker(text, 1, 2, &step_shape, GCOMP_F32, kinds[k]);
        CHECK(gcomp_load(two, saves, bytes, 3) == GCOMP_OK && gcomp_residual_get(two, 0, after) == GCOMP_OK);
        worst = 0;
        for (size_t i = 0; i < STEP; i++) worst = fmax(worst, fabs((double)after[i] - total[i]));
        CHECK(worst <= (k == 0 ? 1e-6 : most_of(total, STEP) / 250));
        gcomp_close(two);
    }
}

/* Codecs of a list share the momentum, and it decays by the codec of the step. The method none sends all of it. */
static void test_a_list_of_codecs_follows_the_definition(void)
{
    static const char *const codecs[] = {"dct:top=40", "none", "dct:top=8,decay=0.5+bf16"};
    static const uint32_t epochs[] = {0, 0, 1, 1, 2, 2, 1, 0, 0, 2, 2, 0};
    int seen[3] = {0, 0, 0};
    gcomp *gc[2];
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(d, 0, sizeof d);
    desc.codec = "dct:top=40|none|dct:top=8,decay=0.5+bf16";
    desc.schedule = "warmup:epochs=2";
    for (int w = 0; w < 2; w++) gc[w] = open_as(&desc, w, 2, &step_shape, GCOMP_F32);
    for (size_t step = 0; step < sizeof epochs / sizeof *epochs; step++) {
        char text[2][64];
        int now = 0;
        how.epoch = epochs[step];
        for (int w = 0; w < 2; w++) gcomp_codec_format(gcomp_tensor_codec(gc[w], 0), text[w], sizeof text[w]);
        while (now < 2 && strcmp(text[0], codecs[now])) now++;
        CHECK(!strcmp(text[0], codecs[now]) && !strcmp(text[0], text[1]));
        seen[now]++;
        if (now != 1) {
            CHECK(is_plain_step(gc, text[0], 2, step));
            continue;
        }
        double worst = 0; /* a sum rounds elsewhere than a mean of payloads */
        fill_all(2, step);
        plain_step("none", 2);
        CHECK(step_all(gc, 2, 0) == GCOMP_OK && memcmp(g[0], g[1], 4 * STEP) == 0);
        for (size_t i = 0; i < STEP; i++) {
            worst = fmax(worst, fabs((double)g[0][i] - (double)y[i]));
            CHECK(gcomp_residual(gc[0], 0)[i] == 0 && gcomp_residual(gc[1], 0)[i] == 0 && d[0][i] == 0 && d[1][i] == 0);
        }
        CHECK(worst < 4e-6);
    }
    CHECK(seen[0] > 1 && seen[1] > 1 && seen[2] > 1);
    how = gcomp_step_default();
    for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
}

/* Each schedule ends where it should; a list that cannot be is refused with a sentence. */
static void test_schedules_choose_among_dct(void)
{
    static const struct { const char *codecs, *schedule, *reached; } cases[] = {
        {"none|dct|dct:top=8", "bytes:target=1e6,every=3", "none"},
        {"none|dct|dct:top=8", "bytes:target=500,every=3", "dct"}, /* a payload of 368 bytes and a frame of 64 */
        {"none|dct|dct:top=8", "bytes:target=300,every=3", "dct:top=8"}, /* of 130 */
        {"none|dct:top=2000|dct:top=8", "error:target=0.7,every=3", "dct:top=2000"},
        {"dct:top=200|dct", "accordion:every=1", "dct"}};
    static const struct { const char *codecs, *schedule, *why; } wrong[] = {
        {"dct|dct:top=8", NULL, "desc.schedule is NULL"},
        {"dct|vote", "bytes:target=300", "keeps a residual and another does not"},
        {"dct|dgc", "bytes:target=300", "dgc keeps the momentum"}};
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp *gc[2];
        gcomp_statistics stats;
        char text[64];
        desc.codec = cases[c].codecs;
        desc.schedule = cases[c].schedule;
        for (int w = 0; w < 2; w++) gc[w] = open_as(&desc, w, 2, &step_shape, GCOMP_F32);
        for (size_t step = 0; step < 30; step++) {
            how.epoch = (uint32_t)(step / 2);
            fill_all(2, step);
            CHECK(step_all(gc, 2, 0) == GCOMP_OK && memcmp(g[0], g[1], 4 * STEP) == 0);
        }
        gcomp_codec_format(gcomp_tensor_codec(gc[0], 0), text, sizeof text);
        CHECK(gcomp_stats(gc[0], &stats) == GCOMP_OK && !strcmp(text, cases[c].reached));
        if (strcmp(text, cases[c].reached)) printf("# %s: %s, error %g\n", cases[c].schedule, text, stats.relative_error);
        for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
    }
    how = gcomp_step_default();
    for (size_t c = 0; c < sizeof wrong / sizeof *wrong; c++) {
        char why[200] = "";
        gcomp *gc = NULL;
        desc.codec = wrong[c].codecs;
        desc.schedule = wrong[c].schedule;
        desc.why = why;
        desc.why_capacity = sizeof why;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_BAD_CODEC && !gc && strstr(why, wrong[c].why));
    }
}

static void test_wrong_parameters_are_named(void)
{
    static const char *const wrong[] = {"dct:top=0", "dct:top=4097", "dct:chunk=0", "dct:chunk=65", "dct:decay=1.5", "dct:decay=-1", "dct+topk"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gcomp_codec codec;
        char why[200] = "";
        CHECK(gcomp_codec_parse(&codec, wrong[i], why, sizeof why) == GCOMP_BAD_CODEC && why[0]);
    }
    /* too little room, too little scratch */
    static const shape s = {64, 64, 64, 64};
    const gcomp_codec codec = codec_of("dct");
    const gcomp_input in = input_of(g[0], NULL, &s);
    gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1);
    fill(g[0], 4096, 0, 1);
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], 100, &length[0]) == GCOMP_DST_TOO_SMALL);
    exec.scratch_bytes = gcomp_scratch(&codec, 4096) - 1;
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_SCRATCH_TOO_SMALL);
    exec.scratch_bytes++;
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
    for (size_t n = 1; n < 20000; n += n < 300 ? 1 : 97) {
        CHECK(gcomp_scratch(&codec, n) <= GCOMP_SCRATCH(n));
        CHECK(gcomp_bound(&codec, n) <= GCOMP_BOUND(n) && gcomp_bound(&codec, n) >= gcomp_bound(&codec, n - 1));
    }
}

int main(void)
{
    how = gcomp_step_default();
    RUN(test_a_transform_written_in_double_agrees);
    RUN(test_the_largest_coefficients_of_each_chunk_are_sent);
    RUN(test_ties_take_the_first_places);
    RUN(test_sets_and_scratch_change_no_bit);
    RUN(test_the_mean_is_over_those_that_sent);
    RUN(test_many_payloads_have_a_mean);
    RUN(test_the_momentum_decays_and_nothing_else_is_lost);
    RUN(test_steps_follow_the_definition_on_many_workers);
    RUN(test_threads_change_no_bit);
    RUN(test_a_step_that_fails_leaves_no_trace);
    RUN(test_compress_and_commit_are_a_step);
    RUN(test_what_is_not_finite_is_refused_and_what_is_large_stays_finite);
    RUN(test_hostile_payloads_are_refused);
    RUN(test_halves_and_small_residuals_do_as_floats);
    RUN(test_saves_and_workers_that_leave);
    RUN(test_those_that_stay_keep_their_momentum);
    RUN(test_a_list_of_codecs_follows_the_definition);
    RUN(test_schedules_choose_among_dct);
    RUN(test_wrong_parameters_are_named);
    return test_end();
}
