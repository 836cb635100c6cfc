/* Proves that unbiased codecs are unbiased: over 2,000 keys the mean of what is decoded is what
   was encoded, by z-tests. Each element and nine sums with weights are tested, of each codec and
   shape some 500. A single true hypothesis is refused with a probability of 1e-8 (|z| > 5.73), so
   that all 60,000 together pass with a confidence of 99.9 % or more. The keys are fixed, so that
   each run says the same. Of an element of which few keys send anything, the mean is not normal:
   its interval is widened by the term of Bernstein's inequality, from the largest deviation seen,
   or the largest |p|. eden is nearly unbiased: its bias may be .005 |p|. Casts are tested with
   small numbers too, which are subnormal in fp16. And that no codec draws without a key: then the
   errors of all workers and steps would be the same, and their mean would be no better. */
#include "codecs.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { N = 512, KEYS = 2000, SUMS = 9 };
#define Z 5.73

static float p[N], d[N], other[N];
static double mean[N], square[N], far_off[N], weight[SUMS][N], sums[SUMS][2];
static uint8_t payload[GCOMP_BOUND(N)], scratch[GCOMP_SCRATCH(N)];

static double unit = 1; /* what all numbers are multiplied by */

static const char *const shapes[] = {"normal", "Student's t of 3 degrees", "(1, .9, 0, ...)", "1 on noise of .001",
                                     "1e4 on noise of 1", "two equal elements on noise"};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void fill(int shape)
{
    for (size_t i = 0; i < N; i++) {
        const double v = normal(i), a = normal(i + N), b = normal(i + 2 * N), c = normal(i + 3 * N);
        double x = v;
        if (shape == 1) x = v / sqrt((a * a + b * b + c * c) / 3);
        else if (shape == 2) x = i == 0 ? 1 : i == 1 ? 0.9 : 0;
        else if (shape == 3) x = i == 0 ? 1 : 0.001 * v;
        else if (shape == 4) x = i == 7 ? 1e4 : v;
        else if (shape == 5) x = i == 3 || i == N / 2 ? 1 : 0.001 * v;
        p[i] = (float)(x * unit);
    }
}

/* What is added up: p without its largest elements, then random signs. */
static void clear(void)
{
    double largest = 0;
    for (size_t i = 0; i < N; i++) largest = fmax(largest, fabs((double)p[i]));
    for (int s = 0; s < SUMS; s++)
        for (size_t i = 0; i < N; i++) {
            weight[s][i] = uniform(i * SUMS + (uint64_t)s) < 0.5 ? 1 : -1;
            if (s == 0) weight[s][i] = fabs((double)p[i]) < largest * 0.5 ? (double)p[i] : 0;
        }
    memset(mean, 0, sizeof mean);
    memset(square, 0, sizeof square);
    memset(far_off, 0, sizeof far_off);
    memset(sums, 0, sizeof sums);
}

/* Deviations from p are summed, lest squares of large numbers cancel. */
static void take(const float *decoded)
{
    double sum[SUMS] = {0};
    for (size_t i = 0; i < N; i++) {
        const double off = (double)decoded[i] - (double)p[i];
        mean[i] += off / KEYS;
        square[i] += off * off / KEYS;
        far_off[i] = fmax(far_off[i], fabs(off));
        for (int s = 0; s < SUMS; s++) sum[s] += weight[s][i] * off;
    }
    for (int s = 0; s < SUMS; s++) {
        sums[s][0] += sum[s] / KEYS;
        sums[s][1] += sum[s] * sum[s] / KEYS;
    }
}

static double allowed(double average, double squares)
{
    return Z * sqrt(fmax(squares - average * average, 0) / (KEYS - 1));
}

static void judge(const char *codec, int shape, double bias)
{
    double norm = 0, largest = 0, reach = 0, off = 0, noise = 0, noises = 0;
    size_t wrong = 0;
    for (size_t i = 0; i < N; i++) {
        norm += (double)p[i] * (double)p[i];
        largest = fmax(largest, fabs((double)p[i]));
    }
    norm = sqrt(norm);
    for (size_t i = 0; i < N; i++)
        if (fabs((double)p[i]) < largest * 0.5) reach = fmax(reach, far_off[i]);
    for (size_t i = 0; i < N; i++) {
        const double most = fmax(far_off[i], fabs((double)p[i]) < largest * 0.5 ? reach : largest);
        const double error = (square[i] - mean[i] * mean[i]) / (KEYS - 1);
        const double limit = allowed(mean[i], square[i]) + most * Z * Z / (6 * KEYS) + bias * norm;
        if (!(fabs(mean[i]) <= limit + 1e-6 * fabs((double)p[i]))) {
            if (!wrong++)
                printf("# %s, %s: element %u is %g, mean %+g beside it, allowed %g\n", codec, shapes[shape], (unsigned)i,
                       (double)p[i], mean[i], limit);
        }
        off += mean[i] * mean[i];
        noise += error;
        noises += error * error;
    }
    for (int s = 0; s < SUMS; s++) {
        double length = 0, size = 0;
        for (size_t i = 0; i < N; i++) {
            length += weight[s][i] * weight[s][i];
            size += fabs(weight[s][i] * (double)p[i]);
        }
        if (!(fabs(sums[s][0]) <= allowed(sums[s][0], sums[s][1]) + bias * norm * sqrt(length) + 1e-6 * size)) {
            wrong++;
            printf("# %s, %s: sum %d is off by %g, allowed %g\n", codec, shapes[shape], s, sums[s][0],
                   allowed(sums[s][0], sums[s][1]));
        }
    }
    if (bias > 0 && off > noise + bias * bias * norm * norm + Z * sqrt(2 * noises)) {
        wrong++;
        printf("# %s, %s: bias %g of |p|\n", codec, shapes[shape], sqrt(off - noise) / norm);
    }
    CHECK(wrong == 0);
}

static void check_payloads(const char *text, double bias)
{
    gcomp_codec codec;
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    for (int shape = 0; shape < SHAPES; shape++) {
        fill(shape);
        clear();
        for (uint64_t k = 0; k < KEYS; k++) {
            gcomp_input in;
            size_t length;
            memset(&in, 0, sizeof in);
            in.scale = 1;
            in.grad = p;
            in.rows = N;
            in.key = gcomp_key_make(7, k, 3, 1);
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
            CHECK(gcomp_decode(payload, length, d, GCOMP_F32, N, &exec) == GCOMP_OK);
            take(d);
        }
        judge(text, shape, bias);
    }
}

/* What two workers have to do together, of which both bring the same. */
static void carry_out(const gcomp_request *q)
{
    for (size_t w = 0; w < 2 && q[0].kind == GCOMP_ALLGATHER; w++)
        for (size_t s = 0; s < 2; s++) memcpy((char *)q[w].recv + s * q[w].stride, q[s].send, q[s].bytes[s]);
    for (size_t i = 0; i < q[0].count && q[0].kind != GCOMP_ALLGATHER; i++) {
        if (q[0].dtype == GCOMP_F32) {
            float *a = (float *)q[0].recv + i, *b = (float *)q[1].recv + i;
            *a = *b = q[0].kind == GCOMP_ALLREDUCE_MAX ? fmaxf(*a, *b) : *a + *b;
        } else if (q[0].dtype == GCOMP_I8) {
            int8_t *a = (int8_t *)q[0].recv + i, *b = (int8_t *)q[1].recv + i;
            *a = *b = (int8_t)(*a + *b);
        } else if (q[0].dtype == GCOMP_I16) {
            int16_t *a = (int16_t *)q[0].recv + i, *b = (int16_t *)q[1].recv + i;
            *a = *b = (int16_t)(*a + *b);
        } else {
            int32_t *a = (int32_t *)q[0].recv + i, *b = (int32_t *)q[1].recv + i;
            *a = *b = *a + *b;
        }
    }
}

static void step_of_two(gcomp *const *gc)
{
    gcomp_request q[2];
    memcpy(d, p, sizeof d);
    memcpy(other, p, sizeof other);
    for (int w = 0; w < 2; w++) {
        CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK);
        CHECK(gcomp_step_ready(gc[w], 0, w ? other : d) == GCOMP_OK);
    }
    for (int calls = 0;; calls++) {
        for (int w = 0; w < 2; w++) CHECK(gcomp_step_next(gc[w], &q[w]) == GCOMP_OK);
        CHECK(q[0].kind == q[1].kind && q[0].kind != GCOMP_WAIT && calls < 9);
        if (q[0].kind == GCOMP_DONE || calls == 9) break;
        carry_out(q);
        for (int w = 0; w < 2; w++) CHECK(gcomp_step_done(gc[w], q[w].id, 0) == GCOMP_OK);
    }
    for (int w = 0; w < 2; w++) CHECK(gcomp_step_commit(gc[w]) == GCOMP_OK);
}

static void check_steps(const char *text)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        gcomp *gc[2];
        fill(shape);
        clear();
        for (int w = 0; w < 2; w++) {
            gcomp_tensor tensor = {"t", N, 1, 0, GCOMP_F32, text};
            gcomp_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.comm.world = 2;
            desc.comm.rank = w;
            desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16;
            desc.seed = 7;
            if (gcomp_open(&gc[w], &desc) || gcomp_add_tensor(gc[w], &tensor)) exit(1);
            CHECK(tensor_residual(gc[w], 0) == NULL); /* it is unbiased by itself */
        }
        for (int k = 0; k < KEYS; k++) {
            step_of_two(gc);
            take(d);
        }
        judge(text, shape, 0);
        gcomp_close(gc[0]);
        gcomp_close(gc[1]);
    }
}

static void test_stochastic_rounding_is_unbiased(void)
{
    check_payloads("qsgd", 0);
    check_payloads("qsgd:levels=127,norm=l2", 0);
    check_payloads("qsgd:levels=1,code=entropy", 0);
    check_payloads("natural", 0);
    check_payloads("qsgd:spacing=powers", 0);
    check_payloads("qsgd:norm=l2,code=entropy,spacing=powers", 0);
    check_payloads("terngrad:clip=0", 0);
    check_payloads("terngrad:clip=0,code=entropy", 0);
    check_payloads("int:rounding=stochastic", 0);
    check_payloads("int:bits=4,rounding=stochastic", 0);
    check_payloads("int:bits=2,rounding=stochastic,range=affine", 0);
    check_payloads("fp8:rounding=stochastic", 0);
    check_payloads("fp8:format=e5m2,block=16,rounding=stochastic", 0);
    check_payloads("mx:rounding=stochastic", 0);
    check_payloads("mx:format=e4m3,rounding=stochastic", 0);
    check_payloads("mx:format=e5m2,rounding=stochastic", 0);
    check_payloads("mx:format=int8,rounding=stochastic", 0);
    check_payloads("mx:format=e2m3,rounding=stochastic", 0);
    check_payloads("mx:format=e3m2,rounding=stochastic", 0);
    check_payloads("nvfp4:rounding=stochastic", 0);
}

static void test_casts_at_random_are_unbiased(void)
{
    static const double units[] = {1, 1e-6, 3e-9}; /* for fp16 most are normal, subnormal, below the smallest */
    for (size_t k = 0; k < 3; k++) {
        unit = units[k];
        check_payloads("fp16:rounding=stochastic", 0);
        check_payloads("bf16:rounding=stochastic", 0);
    }
    unit = 1;
}

static void test_random_choice_of_elements_is_unbiased(void)
{
    check_payloads("wangni:density=0.2", 0);
    check_payloads("wangni:density=0.2+qsgd:levels=127", 0);
    check_steps("randomk:density=0.1,unbiased=1");
    check_steps("randomk:density=0.1,unbiased=1,neighbours=1");
}

static void test_sums_of_integers_are_unbiased(void)
{
    check_steps("intsum");
    check_steps("intsum:bits=16");
}

static void test_eden_is_nearly_unbiased(void)
{
    check_payloads("eden", 0.005);
    check_payloads("eden:bits=2", 0.005);
    check_payloads("eden:bits=3,block=512", 0.005);
    check_payloads("eden:bits=4", 0.005);
}

/* With these keys, the bytes of a payload of p; the result of the encoder. */
static gcomp_result encode_with(const gcomp_codec *codec, uint64_t shared, uint64_t own, uint8_t *to, size_t *length)
{
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.grad = p;
    in.scale = 1;
    in.rows = N;
    in.key.shared = shared;
    in.key.own = own;
    return gcomp_encode(codec, &in, &exec, to, sizeof payload, length);
}

/* A codec refuses a missing key if, and only if, its bytes depend on the key. */
static void test_codecs_that_draw_refuse_a_missing_key(void)
{
    static uint8_t second[GCOMP_BOUND(N)];
    size_t drawing = 0, others = 0;
    fill(0);
    for (size_t c = 0; c < ALL_CODECS; c++) {
        gcomp_codec codec;
        size_t length = 7, more = 7;
        CHECK(gcomp_codec_parse(&codec, codec_list[c].text, NULL, 0) == GCOMP_OK);
        if (!gcomp_bound(&codec, 1, NULL)) continue;
        const gcomp_result without = encode_with(&codec, 0, 0, payload, &length);
        CHECK(encode_with(&codec, 1, 1, payload, &length) == GCOMP_OK && encode_with(&codec, 1, 2, second, &more) == GCOMP_OK);
        const int same = length == more && memcmp(payload, second, length) == 0;
        if (without != (same ? GCOMP_OK : GCOMP_MISSING_KEY))
            printf("# %s without a key: %s\n", codec_list[c].text, result_name(without));
        CHECK(without == (same ? GCOMP_OK : GCOMP_MISSING_KEY));
        /* the shared part alone would be the same on all workers */
        CHECK(encode_with(&codec, 1, 0, second, &more) == without);
        drawing += !same;
        others += same;
    }
    CHECK(drawing > 50 && others > 50);
}

/* Of 8 workers with the same p: with the keys of workers the mean has an 8th of the squared error of one worker. */
static void test_the_mean_of_workers_is_better_than_one_worker(void)
{
    static const char *const texts[] = {"qsgd", "terngrad", "eden", "natural", "int:bits=4,rounding=stochastic", "bf16:rounding=stochastic"};
    enum { WORKERS = 8, ROUNDS = 40 };
    fill(0);
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
        double one = 0, all = 0;
        gcomp_codec codec;
        CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            memset(mean, 0, sizeof mean);
            for (uint32_t w = 0; w < WORKERS; w++) {
                const gcomp_key key = gcomp_key_make(1, round, 0, w);
                size_t length;
                CHECK(encode_with(&codec, key.shared, key.own, payload, &length) == GCOMP_OK);
                CHECK(gcomp_decode(payload, length, d, GCOMP_F32, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) {
                    mean[i] += (double)d[i] / WORKERS;
                    one += ((double)d[i] - (double)p[i]) * ((double)d[i] - (double)p[i]) / WORKERS;
                }
            }
            for (size_t i = 0; i < N; i++) all += (mean[i] - (double)p[i]) * (mean[i] - (double)p[i]);
        }
        if (all > 0.2 * one) printf("# %s: the mean of 8 has %.3f of the error of one\n", texts[c], all / one);
        CHECK(all < 0.2 * one); /* .125 */
    }
}

int main(void)
{
    RUN(test_codecs_that_draw_refuse_a_missing_key);
    RUN(test_the_mean_of_workers_is_better_than_one_worker);
    RUN(test_stochastic_rounding_is_unbiased);
    RUN(test_casts_at_random_are_unbiased);
    RUN(test_random_choice_of_elements_is_unbiased);
    RUN(test_sums_of_integers_are_unbiased);
    RUN(test_eden_is_nearly_unbiased);
    return test_end();
}
