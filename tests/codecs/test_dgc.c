/* Proves that dgc (Deep Gradient Compression) follows the recursion of its paper, which is written
   out here. The workers run in lock-step. What a worker has sent shows in its residual v: v is
   zero where something was sent, and p elsewhere. u shows in the p of the steps that follow. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, LARGEST = 2 * 65536 + 77 };
enum { NO_FAULT, NOT_FINITE, FAILS_IN_THE_GATHER, DAMAGED, OTHER_EPOCH, ABORTED };

static float y[MOST][LARGEST], p[MOST][LARGEST], u[MOST][LARGEST], v[MOST][LARGEST], next[MOST][LARGEST];
static uint8_t first_payload[32 + 5 * LARGEST];
static size_t first_length;
static gcomp_isa isa;
static gcomp_parallel parallel;

typedef struct setting { /* what the codec's text says */
    double density, momentum, clip;
    int nesterov, masking, warmup;
} setting;

/* About normal, different on each worker and in each step, with a part that stays. */
static float gradient(size_t w, uint64_t step, size_t i)
{
    double sum = 0;
    for (uint64_t k = 0; k < 4; k++) sum += (double)(mix(mix(step * 8 + w) + 4 * i + k) >> 40) / 16777216.0 - 0.5;
    return (float)(sum + 0.3 * ((double)(mix(i) >> 40) / 16777216.0 - 0.5));
}

static gcomp *open_worker(const char *codec, int rank, int world, size_t n, gcomp_dtype dtype)
{
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc = NULL;
    char why[256] = "";
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm.rank = rank;
    desc.comm.world = world;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* also the smallest tensor is compressed */
    desc.isa = isa;
    desc.parallel = parallel;
    desc.measure = 1;
    desc.why = why;
    desc.why_capacity = sizeof why;
    tensor.name = "w";
    tensor.rows = n;
    tensor.dtype = dtype;
    tensor.codec = codec;
    if (gcomp_open(&gc, &desc) != GCOMP_OK || gcomp_add_tensor(gc, &tensor) != GCOMP_OK) {
        printf("# %s: %s\n", codec, gc ? gcomp_error(gc) : why);
        exit(1);
    }
    return gc;
}

static void open_all(gcomp **gc, const char *codec, size_t world, size_t n)
{
    for (size_t w = 0; w < world; w++) gc[w] = open_worker(codec, (int)w, (int)world, n, GCOMP_F32);
}

static void close_all(gcomp **gc, size_t world)
{
    for (size_t w = 0; w < world; w++) gcomp_close(gc[w]);
}

/* A step of all with gradients in y. With a fault all workers end without a commit. */
static void step_all(gcomp **gc, size_t world, float scale, uint32_t epoch, int fault)
{
    gcomp_request q[MOST];
    int ended = 0;
    for (size_t w = 0; w < world; w++) {
        gcomp_step step = GCOMP_STEP;
        step.scale = scale;
        step.epoch = epoch + (fault == OTHER_EPOCH && w == 1 ? 1 : 0);
        CHECK(gcomp_step_begin(gc[w], &step) == GCOMP_OK);
        CHECK(gcomp_step_ready(gc[w], 0, y[w]) == GCOMP_OK);
    }
    for (int call = 0; !ended; call++) {
        for (size_t w = 0; w < world; w++) {
            const gcomp_result result = gcomp_step_next(gc[w], &q[w]);
            ended |= result != GCOMP_OK || q[w].kind == GCOMP_DONE;
            if (result == GCOMP_OK) continue;
            CHECK(fault != NO_FAULT);
            if (fault == NOT_FINITE) CHECK(result == GCOMP_NOT_FINITE);
            if (fault == DAMAGED) CHECK(result == GCOMP_CHECKSUM_MISMATCH);
            if (fault == OTHER_EPOCH) CHECK(result == GCOMP_MISMATCH && strstr(gcomp_error(gc[w]), "epoch"));
        }
        if (ended) break;
        for (size_t w = 0; w < world; w++) {
            CHECK(q[w].kind == GCOMP_ALLGATHER && q[w].stride == q[0].stride);
            for (size_t s = 0; s < world; s++) memcpy((char *)q[w].recv + s * q[w].stride, q[s].send, q[s].bytes[s]);
            if (fault == DAMAGED && call == 1) ((uint8_t *)q[w].recv)[q[w].bytes[0] - 1] ^= 1;
        }
        if (call == 1 && q[0].bytes[0] <= sizeof first_payload) {
            first_length = q[0].bytes[0];
            memcpy(first_payload, q[0].send, first_length);
        }
        for (size_t w = 0; w < world; w++) {
            const int fails = fault == FAILS_IN_THE_GATHER && call == 1;
            CHECK((gcomp_step_done(gc[w], q[w].id, fails) == GCOMP_OK) == !fails);
            ended |= fails;
        }
    }
    for (size_t w = 0; w < world; w++)
        CHECK(fault == NO_FAULT ? gcomp_step_commit(gc[w]) == GCOMP_OK : gcomp_step_abort(gc[w]) == GCOMP_OK);
}

static void fill_all(size_t world, uint64_t step, size_t n)
{
    for (size_t w = 0; w < world; w++)
        for (size_t i = 0; i < n; i++) y[w][i] = gradient(w, step, i);
}

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* Makes next and p of a worker from the gradient in y. Each operation is rounded once. */
static void recursion(const setting *s, size_t w, size_t world, float scale, size_t n)
{
    const double limit = s->clip * sqrt((double)world);
    const volatile float m = (float)s->momentum;
    double norm = 0;
    volatile float factor = scale, g, t;
    for (size_t i = 0; i < n; i++) {
        g = y[w][i] * scale;
        norm += (double)g * (double)g;
    }
    norm = sqrt(norm);
    if (s->clip > 0 && norm > limit) factor = (float)((double)scale * (limit / norm));
    for (size_t i = 0; i < n; i++) {
        g = y[w][i] * factor;
        t = s->nesterov ? u[w][i] + g : m * u[w][i];
        t = s->nesterov ? m * t : t + g;
        next[w][i] = t;
        t = v[w][i] + t;
        if (s->nesterov) t = t + g;
        p[w][i] = t;
    }
}

static double density_at(const setting *s, uint32_t epoch)
{
    static const double keep[4] = {1 / 4.0, 1 / 16.0, 1 / 64.0, 0.004};
    if ((int)epoch >= s->warmup) return s->density;
    return fmax(s->density, keep[4 * (int)epoch / s->warmup]);
}

/* After a step: the largest elements of p were sent, about as many as the epoch says; u and v
   follow; the mean is that of what was sent. */
static void check_step(gcomp **gc, const setting *s, size_t world, uint32_t epoch, size_t n)
{
    const size_t exact = (size_t)ceil(density_at(s, epoch) * (double)n * (1 - ldexp(1, -40))), k = exact ? exact : 1;
    const float part = 1.0f / (float)world;
    size_t wrong = 0, wrong_mean = 0;
    for (size_t w = 0; w < world; w++) {
        const float *e = tensor_residual(gc[w], 0);
        double least = INFINITY, most = 0;
        size_t sent = 0;
        for (size_t i = 0; i < n; i++) {
            const int is_sent = e[i] == 0 && p[w][i] != 0;
            wrong += !is_sent && memcmp(&e[i], &p[w][i], 4) != 0 && e[i] != p[w][i];
            if (is_sent) least = fmin(least, fabs((double)p[w][i]));
            else most = fmax(most, fabs((double)p[w][i]));
            sent += (size_t)is_sent;
            u[w][i] = is_sent && s->masking ? 0 : next[w][i];
            v[w][i] = e[i];
        }
        CHECK(sent >= k - k / 5 && sent <= k + k / 4);
        CHECK(least >= most);
    }
    for (size_t i = 0; i < n; i++) {
        volatile float mean = 0;
        for (size_t w = 0; w < world; w++) {
            volatile float term = p[w][i] * part;
            if (v[w][i] == 0 && p[w][i] != 0) mean = mean + term;
        }
        for (size_t w = 0; w < world; w++) wrong_mean += y[w][i] != mean;
    }
    if (wrong || wrong_mean) printf("# n %d, %d workers: %d and %d differ\n", (int)n, (int)world, (int)wrong, (int)wrong_mean);
    CHECK(wrong == 0 && wrong_mean == 0);
}

static void forget(void)
{
    memset(u, 0, sizeof u);
    memset(v, 0, sizeof v);
}

static void text_of(const setting *s, char text[160])
{
    snprintf(text, 160, "dgc:density=%g,momentum=%g,nesterov=%d,clip=%g,masking=%d,warmup=%d", s->density, s->momentum,
             s->nesterov, s->clip, s->masking, s->warmup);
}

static void check_run(const setting *s, size_t world, size_t n, float scale)
{
    char text[160];
    gcomp *gc[MOST];
    text_of(s, text);
    open_all(gc, text, world, n);
    forget();
    for (uint32_t epoch = 0; epoch < 6; epoch++)
        for (int k = 0; k < (n < 70000 ? 2 : 1); k++) {
            fill_all(world, 2 * epoch + (uint64_t)k, n);
            for (size_t w = 0; w < world; w++) recursion(s, w, world, scale, n);
            step_all(gc, world, scale, epoch, NO_FAULT);
            check_step(gc, s, world, epoch, n);
        }
    close_all(gc, world);
}

static void test_steps_follow_the_recursion(void)
{
    static const size_t sizes[] = {1, 15, 16, 17, 1000, LARGEST};
    static const setting settings[] = {{0.001, 0.9, 0, 0, 1, 4},  {0.001, 0.9, 0, 1, 1, 4}, {0.01, 0.5, 2.5, 0, 0, 0},
                                       {0.02, 0.99, 0.5, 1, 0, 2}, {1, 0, 0, 0, 1, 0},       {0.05, 0.7, 100, 1, 1, 1}};
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check_run(&settings[k], sizes[s] == LARGEST ? 1 + k % 2 : 1 + (k + s) % 4, sizes[s], k % 2 ? 0.3f : 1.0f);
    check_run(&settings[0], MOST, 1000, 1);
}

static void test_warmup_sends_less_from_epoch_to_epoch(void)
{
    static const double eight[] = {0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.004, 0.004, 0.001, 0.001};
    static const double four[] = {0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001};
    for (int c = 0; c < 2; c++) {
        gcomp *gc[1];
        open_all(gc, c ? "dgc:warmup=8" : "dgc", 1, LARGEST);
        for (uint32_t epoch = 0; epoch < 10; epoch++) {
            const double wanted = (c ? eight : four)[epoch] * LARGEST;
            size_t sent = 0;
            fill_all(1, epoch, LARGEST);
            step_all(gc, 1, 1, epoch, NO_FAULT);
            for (size_t i = 0; i < LARGEST; i++) sent += y[0][i] != 0;
            CHECK((double)sent > 0.79 * wanted && (double)sent < 1.26 * wanted);
        }
        close_all(gc, 1);
    }
}

static void test_without_masking_all_of_the_momentum_arrives(void)
{
    static const char *const texts[] = {"dgc:density=0.02,masking=0,warmup=0", "dgc:density=0.02,masking=0,warmup=0+int:bits=8"};
    enum { N = 2000, STEPS = 300 };
    static double sent[N], wanted[N], moving[N];
    for (int c = 0; c < 2; c++) {
        gcomp *gc[1];
        double worst = 0;
        open_all(gc, texts[c], 1, N);
        memset(sent, 0, sizeof sent);
        memset(wanted, 0, sizeof wanted);
        memset(moving, 0, sizeof moving);
        for (uint64_t step = 0; step < STEPS; step++) {
            fill_all(1, step, N);
            for (size_t i = 0; i < N; i++) {
                moving[i] = 0.9 * moving[i] + (double)y[0][i];
                wanted[i] += moving[i];
            }
            step_all(gc, 1, 1, 0, NO_FAULT);
            for (size_t i = 0; i < N; i++) sent[i] += (double)y[0][i];
        }
        for (size_t i = 0; i < N; i++) {
            const double lost = fabs(sent[i] + (double)tensor_residual(gc[0], 0)[i] - wanted[i]);
            worst = fmax(worst, lost / (1 + fabs(wanted[i])));
        }
        CHECK(worst < 1e-4);
        close_all(gc, 1);
    }
}

static void test_without_momentum_it_is_inexact_topk(void)
{
    static const size_t sizes[] = {1, 17, 5000, LARGEST};
    static const char *const values[] = {"", "+int:bits=4", "+bf16"};
    static float other[2][LARGEST];
    for (size_t s = 0; s < 4; s++)
        for (int c = 0; c < 3; c++) {
            gcomp *gc[2], *plain[2];
            char text[64];
            snprintf(text, sizeof text, "dgc:density=0.01,momentum=0,warmup=0%s", values[c]);
            open_all(gc, text, 2, sizes[s]);
            snprintf(text, sizeof text, "topk:density=0.01,exact=0%s", values[c]);
            open_all(plain, text, 2, sizes[s]);
            for (uint64_t step = 0; step < 3; step++) {
                fill_all(2, step, sizes[s]);
                step_all(plain, 2, 0.7f, 0, NO_FAULT);
                memcpy(other, y, sizeof other);
                fill_all(2, step, sizes[s]);
                step_all(gc, 2, 0.7f, 9, NO_FAULT);
                for (size_t w = 0; w < 2; w++) {
                    CHECK(memcmp(other[w], y[w], 4 * sizes[s]) == 0);
                    CHECK(memcmp(tensor_residual(plain[w], 0), tensor_residual(gc[w], 0), 4 * sizes[s]) == 0);
                }
            }
            close_all(gc, 2);
            close_all(plain, 2);
        }
}

static void test_with_all_sent_it_is_momentum_or_masked_none(void)
{
    enum { N = 3001 };
    static const char *const texts[] = {"dgc:density=1,masking=0,warmup=0", "dgc:density=1,warmup=0"};
    static float moving[N], g[N];
    for (int c = 0; c < 2; c++) {
        gcomp *gc[1];
        open_all(gc, texts[c], 1, N);
        memset(moving, 0, sizeof moving);
        for (uint64_t step = 0; step < 20; step++) {
            size_t wrong = 0;
            fill_all(1, step, N);
            memcpy(g, y[0], sizeof g);
            step_all(gc, 1, 1, 0, NO_FAULT);
            for (size_t i = 0; i < N; i++) {
                volatile float t = 0.9f * moving[i];
                moving[i] = t + g[i];
                wrong += y[0][i] != (c ? g[i] : moving[i]);
            }
            CHECK(wrong == 0);
        }
        close_all(gc, 1);
    }
}

/* The mean of independent gradients gets the norm that is asked for, each worker's sqrt(world)
   times as much. */
static void test_clipped_gradients_have_a_mean_of_the_norm(void)
{
    enum { N = 4000 };
    for (size_t world = 1; world <= MOST; world *= 2)
        for (int equal = 0; equal < 2; equal++) {
            const double limit = 0.5 * sqrt(equal ? (double)world : 1);
            gcomp *gc[MOST];
            double norm;
            open_all(gc, "dgc:density=1,momentum=0,warmup=0,clip=0.5", world, N);
            fill_all(world, 1, N);
            for (size_t w = 0; w < world; w++)
                for (size_t i = 0; i < N; i++)
                    y[w][i] = (float)((double)(mix(mix(7 * (equal ? 0 : w) + 1) + i) >> 11) / 4503599627370496.0 - 1);
            step_all(gc, world, 3, 0, NO_FAULT);
            norm = norm_of(y[0], N);
            printf("# world %d, %s gradients: norm %.4f, clip 0.5\n", (int)world, equal ? "equal" : "independent", norm);
            CHECK(fabs(norm - limit) < (equal ? 1e-5 : 0.05) * limit);
            fill_all(world, 1, N); /* below the norm nothing changes */
            for (size_t w = 0; w < world; w++)
                for (size_t i = 0; i < N; i++) y[w][i] *= 0.001f;
            memcpy(p[0], y[0], 4 * N);
            for (size_t w = 1; w < world; w++) memcpy(y[w], y[0], 4 * N);
            step_all(gc, world, 1, 0, NO_FAULT);
            CHECK(fabs(norm_of(y[0], N) - norm_of(p[0], N)) <= 1e-5 * norm_of(p[0], N));
            close_all(gc, world);
        }
}

/* W = 1: the mean is what was sent. */
static void test_rounding_of_values_stays_in_the_residual(void)
{
    enum { N = 20000 };
    const setting s = {0.01, 0.9, 0, 0, 1, 0};
    gcomp *gc[1];
    open_all(gc, "dgc:density=0.01,warmup=0+int:bits=8", 1, N);
    forget();
    for (uint64_t step = 0; step < 10; step++) {
        const float *e = tensor_residual(gc[0], 0);
        size_t wrong = 0, sent = 0, rounded = 0;
        fill_all(1, step, N);
        recursion(&s, 0, 1, 1, N);
        step_all(gc, 1, 1, 0, NO_FAULT);
        for (size_t i = 0; i < N; i++) {
            volatile float rest = p[0][i] - y[0][i];
            wrong += e[i] != rest;
            sent += y[0][i] != 0;
            rounded += y[0][i] != 0 && rest != 0;
            u[0][i] = y[0][i] != 0 ? 0 : next[0][i];
            v[0][i] = e[i];
        }
        CHECK(wrong == 0 && sent >= 160 && sent <= 250 && rounded > sent / 2);
    }
    close_all(gc, 1);
}

static void test_a_step_that_fails_leaves_momentum_and_residual(void)
{
    enum { N = 3000, WORLD = 3 };
    static float kept[WORLD][N];
    for (int fault = NOT_FINITE; fault <= ABORTED; fault++) {
        gcomp *gc[WORLD], *calm[WORLD];
        open_all(gc, "dgc:density=0.02,clip=3", WORLD, N);
        open_all(calm, "dgc:density=0.02,clip=3", WORLD, N);
        for (uint64_t step = 0; step < 4; step++) {
            fill_all(WORLD, step, N);
            step_all(calm, WORLD, 1, 1, NO_FAULT);
            for (size_t w = 0; w < WORLD; w++) memcpy(kept[w], y[w], 4 * N);
            fill_all(WORLD, 77 + step, N);
            if (fault == NOT_FINITE) y[2][N - 1] = step % 2 ? NAN : -INFINITY;
            if (fault == ABORTED) {
                for (size_t w = 0; w < WORLD; w++) {
                    CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK);
                    CHECK(gcomp_step_ready(gc[w], 0, y[w]) == GCOMP_OK);
                    CHECK(gcomp_step_abort(gc[w]) == GCOMP_OK);
                }
            } else {
                step_all(gc, WORLD, 1, 1, fault);
            }
            for (size_t w = 0; w < WORLD; w++)
                for (size_t i = 0; i < N; i += 7) CHECK(fault == NOT_FINITE || y[w][i] == gradient(w, 77 + step, i));
            fill_all(WORLD, step, N);
            step_all(gc, WORLD, 1, 1, NO_FAULT);
            for (size_t w = 0; w < WORLD; w++) {
                CHECK(memcmp(kept[w], y[w], 4 * N) == 0);
                CHECK(memcmp(tensor_residual(gc[w], 0), tensor_residual(calm[w], 0), 4 * N) == 0);
            }
        }
        close_all(gc, WORLD);
        close_all(calm, WORLD);
    }
}

static void test_reset_and_restart_forget_the_momentum(void)
{
    enum { N = 2000 };
    static float first[N];
    gcomp *gc[1];
    open_all(gc, "dgc:density=0.05,warmup=0", 1, N);
    for (int round = 0; round < 3; round++) {
        for (uint64_t step = 0; step < 3; step++) {
            fill_all(1, step, N);
            step_all(gc, 1, 1, 0, NO_FAULT);
        }
        if (round == 0) memcpy(first, y[0], sizeof first);
        CHECK(memcmp(first, y[0], sizeof first) == 0);
        CHECK(round == 0 ? gcomp_residual_set(gc[0], 0, NULL) == GCOMP_OK : gcomp_restart(gc[0], 0) == GCOMP_OK);
    }
    close_all(gc, 1);
}

static void test_a_skipped_tensor_keeps_its_momentum(void)
{
    enum { N = 2000 };
    static float first[N];
    for (int skips = 0; skips < 2; skips++) {
        gcomp *gc[1];
        float *grads[1] = {y[0]}, *none[1] = {NULL};
        open_all(gc, "dgc:density=0.05,warmup=0", 1, N);
        for (uint64_t step = 0; step < 4; step++) {
            fill_all(1, step, N);
            CHECK(exchange_floats(gc[0], grads, NULL) == GCOMP_OK);
            if (skips) CHECK(exchange_floats(gc[0], none, NULL) == GCOMP_OK);
        }
        if (!skips) memcpy(first, y[0], sizeof first);
        CHECK(memcmp(first, y[0], sizeof first) == 0);
        close_all(gc, 1);
    }
}

static void test_a_step_gives_the_same_bits_however_it_runs(void)
{
    static const char *const texts[] = {"dgc", "dgc:density=0.01,nesterov=1,clip=4,masking=0,warmup=1+int:bits=8"};
    const gcomp_isa was = isa;
    for (int c = 0; c < 2; c++) {
        uint64_t expected = 0;
        for (int set = GCOMP_ISA_SCALAR; set <= GCOMP_ISA_NEON; set++)
            for (int threads = 0; threads < 2; threads++) {
                uint64_t h = FNV;
                gcomp *gc[2];
                if (!isa_available((gcomp_isa)set)) continue;
                isa = (gcomp_isa)set;
                parallel.run = threads ? run_backwards : NULL;
                open_all(gc, texts[c], 2, LARGEST);
                for (uint32_t step = 0; step < 4; step++) {
                    fill_all(2, step, LARGEST);
                    step_all(gc, 2, 0.9f, step, NO_FAULT);
                    h = fnv(h, y[0], 4 * LARGEST);
                    h = fnv(h, first_payload, first_length);
                }
                close_all(gc, 2);
                if (!expected) expected = h;
                CHECK(h == expected);
            }
    }
    parallel.run = NULL;
    isa = was;
}

static void test_halves_are_taken_and_returned(void)
{
    enum { N = 1000 };
    static uint16_t half[N];
    gcomp *gc[2];
    gc[0] = open_worker("dgc:density=0.1,warmup=0", 0, 1, N, GCOMP_BF16);
    gc[1] = open_worker("dgc:density=0.1,warmup=0", 0, 1, N, GCOMP_F32);
    for (uint64_t step = 0; step < 4; step++) {
        void *grads[2];
        size_t wrong = 0;
        fill_all(1, step, N);
        for (size_t i = 0; i < N; i++) {
            uint32_t word;
            memcpy(&word, &y[0][i], 4);
            half[i] = (uint16_t)(word >> 16);
            word &= 0xffff0000u;
            memcpy(&y[0][i], &word, 4);
        }
        grads[0] = half;
        grads[1] = y[0];
        for (int k = 0; k < 2; k++) CHECK(gcomp_exchange(gc[k], &grads[k], NULL) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) wrong += (half[i] & 0x7fff) != 0 && y[0][i] == 0;
        CHECK(wrong == 0 && memcmp(tensor_residual(gc[0], 0), tensor_residual(gc[1], 0), 4 * N) == 0);
    }
    close_all(gc, 2);
}

static void test_statistics_are_of_the_p_that_was_sent(void)
{
    enum { N = 5000 };
    const setting s = {0.1, 0.9, 0, 0, 1, 0};
    gcomp_statistics stats;
    gcomp *gc[1];
    open_all(gc, "dgc:density=0.1,warmup=0", 1, N);
    forget();
    for (uint64_t step = 0; step < 3; step++) {
        fill_all(1, step, N);
        recursion(&s, 0, 1, 1, N);
        step_all(gc, 1, 1, 0, NO_FAULT);
        CHECK(gcomp_stats(gc[0], &stats) == GCOMP_OK);
        CHECK(fabs(stats.relative_error - norm_of(tensor_residual(gc[0], 0), N) / norm_of(p[0], N)) < 1e-6);
        check_step(gc, &s, 1, 0, N);
    }
    close_all(gc, 1);
}

static void test_payloads_are_sparse_ones(void)
{
    enum { N = 1000 };
    static float d[N];
    gcomp *gc[1];
    gcomp_info info;
    open_all(gc, "dgc:density=0.1,warmup=0", 1, N);
    fill_all(1, 3, N);
    step_all(gc, 1, 1, 0, NO_FAULT);
    CHECK(gcomp_peek(first_payload, first_length, &info) == GCOMP_OK && info.count == N && info.length == first_length);
    CHECK(gcomp_check(first_payload, first_length, N) == GCOMP_OK);
    CHECK(gcomp_decode(first_payload, first_length, d, GCOMP_F32, N, NULL) == GCOMP_OK && memcmp(d, y[0], sizeof d) == 0);
    for (size_t length = 0; length < first_length; length++) CHECK(gcomp_check(first_payload, length, N) != GCOMP_OK);
    for (size_t i = 0; i < 8 * first_length; i++) {
        first_payload[i / 8] ^= (uint8_t)(1u << i % 8);
        CHECK(gcomp_check(first_payload, first_length, N) != GCOMP_OK);
        first_payload[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    close_all(gc, 1);
}

static void test_memory_is_what_was_said(void)
{
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm.world = 4;
    tensor.name = "w";
    tensor.rows = 3000;
    tensor.codec = "dgc";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    CHECK(memory_of(gc) == gcomp_memory_needed(&desc, &tensor, 1) && memory_of(gc) > 3 * 4 * 3000);
    gcomp_close(gc);
}

static void test_only_steps_have_the_momentum(void)
{
    static uint8_t payload[GCOMP_BOUND(2000)], scratch[GCOMP_SCRATCH(2000)];
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    size_t length = 7;
    gcomp *gc[1];
    fill_all(1, 0, 2000);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    in.grad = y[0];
    in.rows = 2000;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    CHECK(gcomp_codec_parse(&codec, "dgc", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 2000, NULL) == 0 && scratch_of(&codec, 2000) == 0);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS && length == 7);
    open_all(gc, "dgc", 1, 2000);
    CHECK(gcomp_compress(gc[0], 0, 0, y[0], payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    CHECK(gcomp_commit(gc[0], 0, y[0], NULL, 0, NULL, NULL, 0) == GCOMP_NEEDS_ROUNDS);
    close_all(gc, 1);
}

static void test_bad_parameters_are_refused(void)
{
    static const char *const bad[] = {"dgc:density=0",   "dgc:density=1.1", "dgc:momentum=1",  "dgc:momentum=-0.1",
                                      "dgc:nesterov=2",  "dgc:clip=-1",     "dgc:masking=0.5", "dgc:warmup=1.5",
                                      "dgc:warmup=2000000", "dgc:rate=1",   "dgc+topk",        "dgc+qsgd:code=entropy"};
    static const char *const good[] = {"dgc", "dgc:density=0.01,momentum=0.5,nesterov=1,clip=2,masking=0,warmup=0+int:bits=4"};
    gcomp_codec codec;
    char text[160];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(gcomp_codec_parse(&codec, bad[i], text, sizeof text) == GCOMP_BAD_CODEC);
        CHECK(text[0] != 0);
    }
    for (size_t i = 0; i < 2; i++) {
        CHECK(gcomp_codec_parse(&codec, good[i], NULL, 0) == GCOMP_OK);
        CHECK(gcomp_codec_format(&codec, text, sizeof text) == strlen(good[i]) && strcmp(text, good[i]) == 0);
    }
    CHECK(gcomp_codec_parse(&codec, "dgc:warmup=4,momentum=0.9", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_codec_format(&codec, text, sizeof text) == 3);
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        if (!isa_available((gcomp_isa)i)) continue;
        isa = (gcomp_isa)i;
        printf("# %s\n", gcomp_isa_name(isa));
        RUN(test_steps_follow_the_recursion);
        RUN(test_warmup_sends_less_from_epoch_to_epoch);
        RUN(test_without_masking_all_of_the_momentum_arrives);
        RUN(test_without_momentum_it_is_inexact_topk);
        RUN(test_with_all_sent_it_is_momentum_or_masked_none);
        RUN(test_clipped_gradients_have_a_mean_of_the_norm);
        RUN(test_rounding_of_values_stays_in_the_residual);
        RUN(test_a_step_that_fails_leaves_momentum_and_residual);
        RUN(test_reset_and_restart_forget_the_momentum);
        RUN(test_a_skipped_tensor_keeps_its_momentum);
        RUN(test_halves_are_taken_and_returned);
        RUN(test_statistics_are_of_the_p_that_was_sent);
    }
    isa = GCOMP_ISA_AUTO;
    RUN(test_a_step_gives_the_same_bits_however_it_runs);
    RUN(test_payloads_are_sparse_ones);
    RUN(test_memory_is_what_was_said);
    RUN(test_only_steps_have_the_momentum);
    RUN(test_bad_parameters_are_refused);
    return test_end();
}
