/* Proves that dct (DeMo) does what the manual says: a cosine transform written from its definition in double finds the same
   coefficients. */

#include "dct.h"

static float e[LARGEST];
static double plain[LARGEST], image[LARGEST], total[LARGEST];

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
        CHECK(gcomp_decode(payload[0], length[0], y, GCOMP_F32, n, &exec) == GCOMP_OK);
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
                CHECK(gcomp_decode(payload[0], length[0], other, GCOMP_F32, n, &exec) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) CHECK(isfinite(other[i]));
                for (int isa = GCOMP_ISA_AVX2; isa <= GCOMP_ISA_NEON; isa++) {
                    if (!isa_available((gcomp_isa)isa)) continue;
                    CHECK(encode(texts[t], &in, (gcomp_isa)isa, payload[1], &length[1]) == GCOMP_OK);
                    CHECK(length[0] == length[1] && !memcmp(payload[0], payload[1], length[0]));
                    for (int with = 0; with < 2; with++) {
                        exec = exec_of((gcomp_isa)isa, with);
                        memset(y, 0xff, 4 * n);
                        CHECK(gcomp_decode(payload[0], length[0], y, GCOMP_F32, n, &exec) == GCOMP_OK);
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
    CHECK(gcomp_decode_mean(payloads, length, WORLD, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)y[i] - image[i]));
    CHECK(worst < 1e-5);
    CHECK(gcomp_decode_mean(payloads, length, WORLD, other, GCOMP_F32, n, &bare) == GCOMP_OK);
    CHECK(memcmp(y, other, 4 * n) == 0);
    /* one payload alone is its own mean; a payload of another shape has no senders in common */
    CHECK(gcomp_decode_mean(payloads, length, 1, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(gcomp_decode(payload[0], length[0], other, GCOMP_F32, n, &exec) == GCOMP_OK);
    CHECK(memcmp(y, other, 4 * n) == 0);
    {
        static const shape flat = {1, 128 * 128, 1, 64};
        const gcomp_input in = input_of(g[1], NULL, &flat);
        CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[1], &length[1]) == GCOMP_OK);
        CHECK(gcomp_decode_mean(payloads, length, 2, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        memset(other, 0, sizeof other);
        for (int w = 0; w < 2; w++) CHECK(gcomp_decode_add(payload[w], length[w], 0.5f, other, GCOMP_F32, n, &exec) == GCOMP_OK);
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
    CHECK(gcomp_decode_mean(payloads, lengths, MANY, y, GCOMP_F32, N, &exec) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)y[i] - image[i]));
    CHECK(worst < 1e-5);
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
        const float *left = tensor_residual(gc, 0);
        for (size_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)left[i] - moving[i]));
    }
    CHECK(most_of(moving, N) > 1); /* else this would show nothing */
    CHECK(worst < 2e-4);
    gcomp_close(gc);
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
    CHECK(gcomp_decode(payload[0], length[0], y, GCOMP_F32, n, &exec) == GCOMP_OK);
    h = fnv(h, y, 4 * n);
    CHECK(gcomp_decode_add(payload[1], length[1], 0.7f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    h = fnv(h, y, 4 * n);
    CHECK(gcomp_decode_mean(payloads, length, 3, y, GCOMP_F32, n, &exec) == GCOMP_OK);
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
        for (size_t w = 0; w < 3; w++) h = fnv(fnv(h, g[w], 4 * n), tensor_residual(gc[w], 0), 4 * n);
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
            memcpy(before[w], tensor_residual(gc[w], 0), 4 * N);
        }
        memcpy(other, g[0], 4 * N);
        CHECK(step_all(gc, 2, 1) == GCOMP_CALLBACK_FAILED);
        CHECK(memcmp(other, g[0], 4 * N) == 0);
        g[1][77] = NAN;
        CHECK(step_all(gc, 2, 0) == GCOMP_NOT_FINITE);
        for (size_t w = 0; w < 2; w++) CHECK(memcmp(before[w], tensor_residual(gc[w], 0), 4 * N) == 0);
        g[1][77] = 1;
        CHECK(step_all(gc, 2, 0) == GCOMP_OK);
        CHECK(memcmp(g[0], g[1], 4 * N) == 0);
    }
    for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
}

int main(void)
{
    how = default_step();
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
    return test_end();
}
