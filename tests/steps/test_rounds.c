/* Proves of rounds that find the largest float or add integers over the workers, and of the
   methods that use such rounds: their results, their faults, and which callbacks they need. The
   workers run in lock-step; threads test what gcomp_exchange does with callbacks. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime in gcomp_threads.h */
#endif

#include "gcomp_threads.h"

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5, TENSORS = 8, COLLECTIVES = 16 };
static const unsigned integers = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;

/* ---------------- workers in lock-step */

typedef struct group {
    int world;
    size_t count, n[TENSORS];
    gcomp *gc[MOST];
    float *grad[MOST][TENSORS];
    gcomp_result result[MOST];
    /* of the last step */
    size_t calls;
    gcomp_request_kind kind[COLLECTIVES];
    gcomp_dtype dtype[COLLECTIVES];
    float largest;           /* the first that a MAX gave */
    int8_t *codes8[MOST];    /* what an integer sum was given, of one type */
    int16_t *codes16[MOST];
    int32_t *codes32[MOST];
    size_t codes;
    int64_t overflows, worst; /* sums that did not fit; the largest |code| */
    /* faults */
    int fail_call, fail_rank; /* a collective that reports a failure; rank -1: on all; call -1: none */
    float lie;                /* the largest arrives times this factor; 0: as it is */
} group;

static void group_open(group *g, int world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    g->fail_call = -1;
    for (int w = 0; w < world; w++) {
        gcomp_desc desc;
        char why[256] = "";
        memset(&desc, 0, sizeof desc);
        if (base) desc = *base;
        if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        desc.comm.rank = w;
        desc.comm.world = world;
        desc.comm.allreduce_dtypes |= integers;
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&g->gc[w], &desc) != GCOMP_OK) {
            printf("# open: %s\n", why);
            exit(1);
        }
        for (size_t t = 0; t < count; t++) {
            gcomp_result result = gcomp_add_tensor(g->gc[w], &tensors[t]);
            if (result) printf("# add: %s\n", gcomp_error(g->gc[w]));
            CHECK(result == GCOMP_OK);
            g->n[t] = gcomp_tensor_elements(g->gc[w], t);
            g->grad[w][t] = (float *)calloc(g->n[t] + 1, sizeof(float));
        }
    }
}

static void forget_codes(group *g)
{
    for (int w = 0; w < g->world; w++) {
        free(g->codes8[w]);
        free(g->codes16[w]);
        free(g->codes32[w]);
        g->codes8[w] = NULL;
        g->codes16[w] = NULL;
        g->codes32[w] = NULL;
    }
}

static void group_close(group *g)
{
    forget_codes(g);
    for (int w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

static int64_t at(const void *data, gcomp_dtype dtype, size_t i)
{
    if (dtype == GCOMP_I8) return ((const int8_t *)data)[i];
    if (dtype == GCOMP_I16) return ((const int16_t *)data)[i];
    return ((const int32_t *)data)[i];
}

static void put(void *data, gcomp_dtype dtype, size_t i, int64_t v)
{
    if (dtype == GCOMP_I8) ((int8_t *)data)[i] = (int8_t)v;
    else if (dtype == GCOMP_I16) ((int16_t *)data)[i] = (int16_t)v;
    else ((int32_t *)data)[i] = (int32_t)v;
}

/* Sums in 64 bits, which are told when they do not fit. Keeps what was added. */
static void add_integers(group *g, const gcomp_request *q)
{
    gcomp_dtype dtype = q[0].dtype;
    int64_t limit = dtype == GCOMP_I8 ? 127 : dtype == GCOMP_I16 ? 32767 : 2147483647;
    size_t size = bytes_of_dtype(dtype);
    g->codes = q[0].count;
    for (int w = 0; w < g->world; w++) {
        void **keep = dtype == GCOMP_I8    ? (void **)(void *)&g->codes8[w]
                      : dtype == GCOMP_I16 ? (void **)(void *)&g->codes16[w]
                                           : (void **)(void *)&g->codes32[w];
        free(*keep);
        *keep = malloc(size * q[w].count + 1);
        memcpy(*keep, q[w].recv, size * q[w].count);
    }
    for (size_t i = 0; i < q[0].count; i++) {
        int64_t sum = 0;
        for (int w = 0; w < g->world; w++) {
            int64_t v = at(q[w].recv, dtype, i), a = v < 0 ? -v : v;
            sum += v;
            g->worst = a > g->worst ? a : g->worst;
        }
        if (sum > limit || sum < -limit) g->overflows++;
        for (int w = 0; w < g->world; w++) put(q[w].recv, dtype, i, sum);
    }
}

static void carry_out(group *g, const gcomp_request *q)
{
    for (int w = 1; w < g->world; w++)
        CHECK(q[w].kind == q[0].kind && q[w].count == q[0].count && q[w].dtype == q[0].dtype && q[w].stride == q[0].stride &&
              q[w].id == q[0].id);
    if (q[0].kind == GCOMP_ALLGATHER) {
        for (int w = 0; w < g->world; w++)
            for (int s = 0; s < g->world; s++)
                memcpy((char *)q[w].recv + (size_t)s * q[w].stride, q[s].send, q[s].bytes[s]);
    } else if (q[0].kind == GCOMP_ALLREDUCE_MAX) {
        CHECK(q[0].dtype == GCOMP_F32);
        for (size_t i = 0; i < q[0].count; i++) {
            float most = ((const float *)q[0].recv)[i];
            for (int w = 1; w < g->world; w++) most = fmaxf(most, ((const float *)q[w].recv)[i]);
            if (g->lie != 0) most *= g->lie;
            for (int w = 0; w < g->world; w++) ((float *)q[w].recv)[i] = most;
            if (i == 0) g->largest = most;
        }
    } else if (q[0].dtype != GCOMP_F32) {
        add_integers(g, q);
    } else {
        for (size_t i = 0; i < q[0].count; i++) {
            float sum = ((const float *)q[0].recv)[i];
            for (int w = 1; w < g->world; w++) sum += ((const float *)q[w].recv)[i];
            for (int w = 0; w < g->world; w++) ((float *)q[w].recv)[i] = sum;
        }
    }
}

/* A step; bit t of skip: tensor t has no gradient. Results in g->result; a worker whose step has
   ended takes the others along only as far as the test says: all of them fail, or the one is
   left out of what follows. */
static gcomp_result group_step(group *g, unsigned skip)
{
    gcomp_request q[MOST];
    int ended = 0;
    g->calls = 0;
    for (int w = 0; w < g->world; w++) {
        g->result[w] = gcomp_step_begin(g->gc[w], NULL);
        CHECK(g->result[w] == GCOMP_OK);
        for (size_t t = 0; t < g->count; t++)
            CHECK(gcomp_step_ready(g->gc[w], t, skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
    }
    memset(q, 0, sizeof q);
    while (!ended) {
        for (int w = 0; w < g->world; w++) {
            g->result[w] = gcomp_step_next(g->gc[w], &q[w]);
            ended = ended || g->result[w] != GCOMP_OK;
        }
        if (ended || q[0].kind == GCOMP_DONE) break;
        CHECK(q[0].kind != GCOMP_WAIT && g->calls < COLLECTIVES);
        if (q[0].kind == GCOMP_WAIT || g->calls == COLLECTIVES) return GCOMP_WRONG_STATE;
        g->kind[g->calls] = q[0].kind;
        g->dtype[g->calls] = q[0].dtype;
        carry_out(g, q);
        for (int w = 0; w < g->world; w++) {
            int fails = (int)g->calls == g->fail_call && (g->fail_rank < 0 || g->fail_rank == w);
            g->result[w] = gcomp_step_done(g->gc[w], q[w].id, fails ? 7 : 0);
            if (fails) CHECK(g->result[w] == GCOMP_CALLBACK_FAILED);
            ended = ended || g->result[w] != GCOMP_OK;
        }
        g->calls++;
    }
    for (int w = 0; w < g->world; w++) {
        if (ended && g->result[w] == GCOMP_OK) CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_OK);
        if (!ended) g->result[w] = gcomp_step_commit(g->gc[w]);
        if (!ended) CHECK(g->result[w] == GCOMP_OK);
    }
    return g->result[0];
}

/* Uniform in [-1, 1). */
static float noise(uint64_t seed, size_t i) { return (float)((int32_t)(mix(mix(seed) + i) >> 40) - 8388608) / 8388608.0f; }

static void group_fill(group *g, uint64_t seed)
{
    for (int w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            for (size_t i = 0; i < g->n[t]; i++)
                g->grad[w][t][i] = noise(seed, i) + (float)(w + 1) * noise(seed * 31 + (uint64_t)w + 7 * t, i);
}

static int all_equal(const group *g)
{
    for (int w = 1; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++)
            if (memcmp(g->grad[0][t], g->grad[w][t], 4 * g->n[t]) != 0) return 0;
    return 1;
}

/* Gradients and residuals of a worker, digested. */
static uint64_t digest(const group *g, int w)
{
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        const float *e = gcomp_residual(g->gc[w], t);
        h = fnv(h, g->grad[w][t], 4 * g->n[t]);
        if (e) h = fnv(h, e, 4 * g->n[t]);
    }
    return h;
}

static gcomp_tensor tensor_of(const char *name, size_t rows, size_t cols, size_t stack, const char *codec)
{
    gcomp_tensor t;
    memset(&t, 0, sizeof t);
    t.name = name;
    t.rows = rows;
    t.cols = cols;
    t.stack = stack;
    t.codec = codec;
    return t;
}

/* Takes many steps with the same gradients, and adds up the means of tensor 0. At the end the
   gradients are in g again. */
static void add_means(group *g, int steps, double *sum)
{
    for (int step = 0; step < steps; step++) {
        group_fill(g, 5);
        CHECK(group_step(g, 0) == GCOMP_OK);
        for (size_t i = 0; i < g->n[0]; i++) sum[i] += (double)g->grad[0][0][i];
    }
    group_fill(g, 5);
}

/* Two workers with one tensor take a step, and get the gradients of a second step, which will lie
   about the largest of them. `before` tells what they hold. */
static void open_before_a_lie(group *g, const char *codec, float factor, uint64_t before[2])
{
    gcomp_tensor t = tensor_of("w", 33, 3, 1, codec);
    group_open(g, 2, NULL, &t, 1);
    group_fill(g, 1);
    CHECK(group_step(g, 0) == GCOMP_OK);
    group_fill(g, 2);
    for (int w = 0; w < 2; w++) before[w] = digest(g, w);
    g->lie = factor;
}

/* ---------------- intsum */

static const char *const intsums[] = {"intsum", "intsum:rounding=nearest", "intsum:bits=16", "intsum:bits=16,rounding=nearest",
                                      "intsum:bits=32", "intsum:bits=32,rounding=nearest"};

static int64_t code_of(const group *g, int w, int bits, size_t i)
{
    return bits == 0 ? g->codes8[w][i] : bits == 1 ? g->codes16[w][i] : g->codes32[w][i];
}

static int64_t levels_of(int bits, int world)
{
    int64_t levels = (bits == 0 ? 127 : bits == 1 ? 32767 : 2147483647) / world;
    return levels < 4194303 ? levels : 4194303;
}

/* One step of a tensor against the formula: codes from p, their sum in 64 bits, the mean, the
   residual. */
static void check_intsum(group *g, int which, uint64_t seed)
{
    const int bits = which / 2, nearest = which % 2;
    const int64_t levels = levels_of(bits, g->world);
    const float part = 1.0f / (float)g->world;
    size_t n = g->n[0], wrong = 0, bad_codes = 0, bad_rest = 0;
    float *p[MOST], most = 0;
    group_fill(g, seed);
    for (int w = 0; w < g->world; w++) {
        const float *e = gcomp_residual(g->gc[w], 0);
        p[w] = (float *)malloc(4 * n);
        CHECK((e != NULL) == nearest);
        for (size_t i = 0; i < n; i++) {
            p[w][i] = g->grad[w][0][i] + (e ? e[i] : 0);
            most = fmaxf(most, fabsf(p[w][i]));
        }
    }
    g->worst = g->overflows = 0;
    CHECK(group_step(g, 0) == GCOMP_OK);
    CHECK(g->calls == 3 && g->kind[0] == GCOMP_ALLGATHER && g->kind[1] == GCOMP_ALLREDUCE_MAX && g->kind[2] == GCOMP_ALLREDUCE);
    CHECK(g->dtype[2] == (bits == 0 ? GCOMP_I8 : bits == 1 ? GCOMP_I16 : GCOMP_I32));
    CHECK(g->overflows == 0 && g->worst <= levels && (g->codes == n || g->codes == n + 1)); /* the first has a one behind it */
    CHECK(g->largest == most);
    const float d = (float)((double)most / (double)levels);
    for (size_t i = 0; i < n; i++) {
        int64_t sum = 0;
        for (int w = 0; w < g->world; w++) {
            int64_t q = code_of(g, w, bits, i);
            const float *e = gcomp_residual(g->gc[w], 0);
            double error = fabs((double)p[w][i] - (double)d * (double)q);
            /* beside the step, what p * (1 / d) is rounded by */
            bad_codes += error > (nearest ? 0.5 : 1.0) * (double)d + fabs((double)p[w][i]) * 2e-7;
            volatile float sent = d * (float)q;
            if (e) bad_rest += e[i] != p[w][i] - sent;
            sum += q;
        }
        volatile float scaled = (float)sum * part, mean = scaled * d;
        wrong += g->grad[0][0][i] != mean;
    }
    if (wrong || bad_codes || bad_rest)
        printf("# %s, %d workers, n %d: %d %d %d\n", intsums[which], g->world, (int)n, (int)wrong, (int)bad_codes, (int)bad_rest);
    CHECK(wrong == 0 && bad_codes == 0 && bad_rest == 0);
    CHECK(all_equal(g));
    for (int w = 0; w < g->world; w++) free(p[w]);
}

static void test_intsum_is_the_exact_sum_of_the_codes_of_all_workers(void)
{
    static const size_t rows[] = {1, 15, 16, 17, 333, 65536 + 21};
    for (int which = 0; which < 6; which++)
        for (int world = 1; world <= MOST; world++)
            for (size_t r = 0; r < 6; r++) {
                gcomp_tensor t = tensor_of("w", rows[r], 1, world == 3 ? 3 : 1, intsums[which]);
                group g;
                if (rows[r] > 60000 && world % 2) continue;
                group_open(&g, world, NULL, &t, 1);
                for (uint64_t seed = 1; seed <= 3; seed++) check_intsum(&g, which, seed);
                group_close(&g);
            }
}

static void test_intsum_stochastic_is_unbiased(void)
{
    enum { N = 64, STEPS = 3000 };
    for (int which = 0; which < 6; which += 2) {
        gcomp_tensor t = tensor_of("w", N, 1, 1, intsums[which]);
        double sum[N] = {0};
        int bad = 0;
        group g;
        group_open(&g, 2, NULL, &t, 1);
        add_means(&g, STEPS, sum);
        const double d = (double)g.largest / (double)levels_of(which / 2, 2);
        for (size_t i = 0; i < N; i++) {
            double p = ((double)g.grad[0][0][i] + (double)g.grad[1][0][i]) / 2, variance = 0;
            for (int w = 0; w < 2; w++) {
                double x = (double)g.grad[w][0][i] / d, f = x - floor(x);
                variance += f * (1 - f) * d * d / 4;
            }
            /* five sigma, and the rounding of p / d to a float */
            bad += fabs(sum[i] / STEPS - p) > 5 * sqrt(variance / STEPS) + 3e-7 * fabs(p) + 2e-7 * (double)g.largest;
        }
        CHECK(bad == 0);
        group_close(&g);
    }
}

static void test_intsum_loses_nothing_over_the_workers(void)
{
    gcomp_tensor t = tensor_of("w", 40, 30, 0, "intsum:rounding=nearest");
    double in = 0, out = 0, rest = 0;
    group g;
    group_open(&g, 4, NULL, &t, 1);
    for (uint64_t step = 0; step < 200; step++) {
        group_fill(&g, step);
        for (int w = 0; w < 4; w++)
            for (size_t i = 0; i < g.n[0]; i++) in += (double)g.grad[w][0][i] * (double)(i % 7 + 1);
        CHECK(group_step(&g, 0) == GCOMP_OK);
        for (size_t i = 0; i < g.n[0]; i++) out += 4 * (double)g.grad[0][0][i] * (double)(i % 7 + 1);
    }
    for (int w = 0; w < 4; w++)
        for (size_t i = 0; i < g.n[0]; i++) rest += (double)gcomp_residual(g.gc[w], 0)[i] * (double)(i % 7 + 1);
    CHECK(fabs(in - out - rest) < 0.05);
    group_close(&g);
}

static void test_intsum_is_right_for_the_smallest_the_largest_and_no_numbers(void)
{
    static const float sizes[] = {0, 1e-45f, 3e-44f, 1e-38f, 1e-20f, 1e30f, 3.4028234e38f};
    for (int which = 0; which < 6; which++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            gcomp_tensor t = tensor_of("w", 50, 1, 1, intsums[which]);
            int finite = 1, near = 1;
            group g;
            group_open(&g, 3, NULL, &t, 1);
            for (int w = 0; w < 3; w++)
                for (size_t i = 0; i < 50; i++) g.grad[w][0][i] = i % 3 ? sizes[k] : -sizes[k];
            CHECK(group_step(&g, 0) == GCOMP_OK);
            for (size_t i = 0; i < 50; i++) {
                finite = finite && isfinite(g.grad[0][0][i]);
                near = near && fabs((double)g.grad[0][0][i] - (i % 3 ? 1.0 : -1.0) * (double)sizes[k]) <=
                                   3e-6 * (double)sizes[k] + 1.18e-38; /* what is smaller than any normal float is nothing */
            }
            CHECK(finite && all_equal(&g));
            if (!near) printf("# %s of %g gives %g\n", intsums[which], (double)sizes[k], (double)g.grad[0][0][1]);
            CHECK(near);
            group_close(&g);
        }
}

/* ---------------- randomk */

/* Bits of the elements that a step sent: those whose residual is zero (p never is). */
static size_t sent_of(const group *g, int w, unsigned char *sent)
{
    const float *e = gcomp_residual(g->gc[w], 0);
    size_t count = 0;
    for (size_t i = 0; i < g->n[0]; i++) count += sent[i] = e[i] == 0;
    return count;
}

static void test_random_elements_are_summed_and_the_others_kept(void)
{
    static const char *const texts[] = {"randomk:density=0.1", "randomk:density=0.9", "randomk:density=0.1,neighbours=1",
                                        "randomk:density=0.0001", "randomk:density=0.75,neighbours=1"};
    static const double densities[] = {0.1, 0.9, 0.1, 0.0001, 0.75};
    static const size_t rows[] = {11, 64, 333, 65536 * 2 + 21};
    for (int c = 0; c < 5; c++)
        for (int world = 1; world <= MOST; world += 2)
            for (size_t r = 0; r < 4; r++) {
                gcomp_tensor t = tensor_of("w", rows[r], 1, world == 3 ? 3 : 1, texts[c]);
                const size_t k = (size_t)ceil(densities[c] * (double)rows[r] * (1 - ldexp(1, -40))) * (world == 3 ? 3 : 1);
                unsigned char *sent, *other;
                float *p[MOST];
                group g;
                group_open(&g, world, NULL, &t, 1);
                sent = (unsigned char *)malloc(g.n[0]);
                other = (unsigned char *)malloc(g.n[0]);
                for (int w = 0; w < world; w++) p[w] = (float *)malloc(4 * g.n[0]);
                for (uint64_t step = 1; step <= 2; step++) {
                    size_t wrong = 0;
                    group_fill(&g, step);
                    for (int w = 0; w < world; w++)
                        for (size_t i = 0; i < g.n[0]; i++) {
                            const float *e = gcomp_residual(g.gc[w], 0);
                            p[w][i] = g.grad[w][0][i] + (e ? e[i] : 0);
                        }
                    CHECK(group_step(&g, 0) == GCOMP_OK);
                    CHECK(g.calls == 2 && g.kind[1] == GCOMP_ALLREDUCE && all_equal(&g));
                    CHECK(sent_of(&g, 0, sent) == k);
                    for (int w = 1; w < world; w++) CHECK(sent_of(&g, w, other) == k && memcmp(sent, other, g.n[0]) == 0);
                    for (size_t i = 0; i < g.n[0]; i++) {
                        volatile float mean = p[0][i] * (1.0f / (float)world);
                        for (int w = 1; w < world; w++) {
                            volatile float part = p[w][i] * (1.0f / (float)world);
                            mean = mean + part;
                        }
                        wrong += g.grad[0][0][i] != (sent[i] ? mean : 0);
                        for (int w = 0; w < world; w++) wrong += !sent[i] && gcomp_residual(g.gc[w], 0)[i] != p[w][i];
                    }
                    CHECK(wrong == 0);
                    if (strstr(texts[c], "block")) { /* one run, around the end too */
                        size_t edges = 0;
                        for (size_t i = 0; i < g.n[0]; i++) edges += sent[i] != sent[(i + 1) % g.n[0]];
                        CHECK(edges == 2);
                    }
                }
                for (int w = 0; w < world; w++) free(p[w]);
                free(sent);
                free(other);
                group_close(&g);
            }
}

static void test_random_elements_are_all_equally_likely(void)
{
    enum { N = 60, STEPS = 6000 };
    static const char *const texts[] = {"randomk:density=0.1", "randomk:density=0.8", "randomk:density=0.1,neighbours=1"};
    static const double shares[] = {0.1, 0.8, 0.1};
    for (int c = 0; c < 3; c++) {
        gcomp_tensor t = tensor_of("w", N, 1, 1, texts[c]);
        double count[N] = {0}, chi = 0;
        group g;
        group_open(&g, 1, NULL, &t, 1);
        for (uint64_t step = 0; step < STEPS; step++) {
            for (size_t i = 0; i < N; i++) g.grad[0][0][i] = 1;
            CHECK(group_step(&g, 0) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) count[i] += g.grad[0][0][i] != 0;
        }
        for (size_t i = 0; i < N; i++) {
            const double expected = STEPS * shares[c];
            chi += (count[i] - expected) * (count[i] - expected) / (expected * (1 - shares[c]));
        }
        if (chi > 110) printf("# %s: chi-square %g\n", texts[c], chi);
        CHECK(chi < 110); /* 59 or 60 degrees of freedom: 1 of 10000; neighbours go together, and vary more */
        group_close(&g);
    }
}

static void test_randomk_is_unbiased_where_its_text_says_so(void)
{
    enum { N = 60, STEPS = 20000 };
    static const char *const texts[] = {"randomk:density=0.1,unbiased=1", "randomk:density=0.25,unbiased=1,neighbours=1"};
    for (int c = 0; c < 2; c++) {
        gcomp_tensor t = tensor_of("w", N, 1, 1, texts[c]);
        double sum[N] = {0};
        group g;
        group_open(&g, 2, NULL, &t, 1);
        CHECK(gcomp_residual(g.gc[0], 0) == NULL);
        for (uint64_t step = 0; step < STEPS; step++) {
            for (size_t i = 0; i < N; i++) g.grad[0][0][i] = g.grad[1][0][i] = (float)(i + 1);
            CHECK(group_step(&g, 0) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) sum[i] += g.grad[0][0][i];
        }
        for (size_t i = 0; i < N; i++) CHECK(fabs(sum[i] / STEPS / (double)(i + 1) - 1) < 5 * sqrt((c ? 3 : 9) / (double)STEPS));
        group_close(&g);
    }
}

static void test_random_elements_see_every_number_that_is_not_finite(void)
{
    static const char *const texts[] = {"randomk", "randomk:neighbours=1"};
    for (int c = 0; c < 2; c++)
        for (size_t at = 0; at < 3000; at += 299) {
            gcomp_tensor t = tensor_of("w", 3000, 1, 1, texts[c]);
            group g;
            uint64_t before;
            group_open(&g, 2, NULL, &t, 1);
            group_fill(&g, 3);
            g.grad[1][0][at] = at & 1 ? NAN : INFINITY;
            before = digest(&g, 0);
            CHECK(group_step(&g, 0) == GCOMP_NOT_FINITE && digest(&g, 0) == before);
            group_close(&g);
        }
}

/* ---------------- all kinds of rounds in one step */

static const char *const kinds[TENSORS] = {"terngrad:share=1", "intsum", "topk:density=0.05", "intsum:bits=16,rounding=nearest",
                                           "powersgd:rank=2", "intsum:bits=32", "sign", "intsum:rounding=nearest"};

static void open_mixed(group *g, int world, const gcomp_desc *base)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    gcomp_tensor t[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) t[i] = tensor_of(names[i], 21 + i, 40, i == 3 ? 2 : 1, kinds[i]);
    group_open(g, world, base, t, TENSORS);
}

static void test_all_kinds_of_rounds_share_a_step(void)
{
    for (int world = 1; world <= MOST; world++) {
        group g;
        open_mixed(&g, world, NULL);
        for (uint64_t step = 0; step < 4; step++) {
            group_fill(&g, step);
            CHECK(group_step(&g, step == 2 ? 0xAA : 0) == GCOMP_OK); /* in step 2 half of them have no gradient */
            if (step == 2) continue;
            CHECK(all_equal(&g));
            CHECK(g.calls == 8); /* frames; a sum, the largest; sums of floats, of three integers, all payloads */
        }
        group_close(&g);
    }
}

static void test_tensors_do_not_disturb_each_other(void)
{
    for (size_t i = 0; i < TENSORS; i++) {
        group all, one;
        open_mixed(&all, 3, NULL);
        open_mixed(&one, 3, NULL);
        for (uint64_t step = 0; step < 3; step++) {
            group_fill(&all, step);
            group_fill(&one, step);
            CHECK(group_step(&all, 0) == GCOMP_OK);
            CHECK(group_step(&one, ~(1u << i)) == GCOMP_OK);
        }
        for (int w = 0; w < 3; w++) CHECK(memcmp(all.grad[w][i], one.grad[w][i], 4 * all.n[i]) == 0);
        group_close(&all);
        group_close(&one);
    }
}

static void test_every_instruction_set_and_order_of_chunks_gives_the_same_bits(void)
{
    uint64_t first = 0;
    int runs = 0;
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++)
        for (int parallel = 0; parallel < 2; parallel++) {
            static const size_t shapes[] = {1, 17, 65536 * 2 + 37, 1000, 16, 999, 65536 + 9};
            gcomp_tensor t[7];
            gcomp_desc desc;
            uint64_t now = 0;
            group g;
            if (!gcomp_isa_available((gcomp_isa)isa)) continue;
            memset(&desc, 0, sizeof desc);
            desc.isa = (gcomp_isa)isa;
            if (parallel) desc.parallel.run = run_backwards;
            for (size_t i = 0; i < 6; i++) t[i] = tensor_of("abcdef" + i, shapes[i], 1, 1, intsums[(i + 5) % 6]);
            t[6] = tensor_of("shared", shapes[6], 1, 1, "terngrad:share=1");
            group_open(&g, 3, &desc, t, 7);
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                CHECK(group_step(&g, 0) == GCOMP_OK);
            }
            for (int w = 0; w < 3; w++) now = now * 31 + digest(&g, w);
            if (!runs++) first = now;
            CHECK(now == first);
            group_close(&g);
        }
}

static void test_a_collective_that_fails_leaves_everything_as_it_was(void)
{
    for (int rank = -1; rank < 3; rank++)
        for (int call = 0; call < 8; call++) {
            uint64_t before[3];
            group a, b;
            open_mixed(&a, 3, NULL);
            open_mixed(&b, 3, NULL);
            group_fill(&a, 1);
            group_fill(&b, 1);
            CHECK(group_step(&a, 0) == GCOMP_OK && group_step(&b, 0) == GCOMP_OK);
            group_fill(&a, 2);
            group_fill(&b, 2);
            for (int w = 0; w < 3; w++) before[w] = digest(&a, w);
            a.fail_call = call;
            a.fail_rank = rank;
            CHECK(group_step(&a, 0) != GCOMP_OK || rank > 0);
            for (int w = 0; w < 3; w++) {
                CHECK(digest(&a, w) == before[w]);
                if (rank >= 0 && rank != w) continue;
                CHECK(a.result[w] == GCOMP_CALLBACK_FAILED);
                CHECK(strstr(gcomp_error(a.gc[w]), "failed with status 7") != NULL);
                if (a.kind[call] == GCOMP_ALLREDUCE_MAX) CHECK(strstr(gcomp_error(a.gc[w]), "max") != NULL);
            }
            a.fail_call = -1;
            CHECK(group_step(&a, 0) == GCOMP_OK && group_step(&b, 0) == GCOMP_OK); /* again, with the same bits */
            for (int w = 0; w < 3; w++) CHECK(digest(&a, w) == digest(&b, w));
            group_close(&a);
            group_close(&b);
        }
}

static void test_not_finite_on_one_worker_is_told_to_all(void)
{
    for (int t = 0; t < TENSORS; t++) {
        uint64_t before[3];
        group g;
        open_mixed(&g, 3, NULL);
        group_fill(&g, 1);
        g.grad[1][t][g.n[t] - 1] = NAN;
        for (int w = 0; w < 3; w++) before[w] = digest(&g, w);
        group_step(&g, 0);
        for (int w = 0; w < 3; w++) CHECK(g.result[w] == GCOMP_NOT_FINITE && digest(&g, w) == before[w]);
        group_fill(&g, 1);
        CHECK(group_step(&g, 0) == GCOMP_OK);
        group_close(&g);
    }
}

static void test_a_largest_that_cannot_be_is_refused(void)
{
    static const float factors[] = {0.5f, -1.0f, INFINITY, NAN};
    for (size_t k = 0; k < 4; k++) {
        uint64_t before[2];
        group g;
        open_before_a_lie(&g, "intsum:rounding=nearest", factors[k], before);
        g.overflows = 0;
        group_step(&g, 0);
        CHECK(g.result[0] == (k < 2 ? GCOMP_DIVERGED : GCOMP_NOT_FINITE));
        CHECK(g.overflows == 0);
        for (int w = 0; w < 2; w++) CHECK(digest(&g, w) == before[w]);
        group_close(&g);
    }
}

/* ---------------- terngrad with one scale for all */

static void test_terngrad_shares_the_largest_scale(void)
{
    for (int world = 1; world <= MOST; world++)
        for (int stack = 1; stack <= 2; stack++) {
            gcomp_tensor t = tensor_of("w", 37, 41, (size_t)stack, "terngrad:share=1,clip=0");
            size_t bad = 0;
            group g;
            group_open(&g, world, NULL, &t, 1);
            for (uint64_t step = 0; step < 3; step++) {
                float most = 0;
                group_fill(&g, step);
                for (int w = 0; w < world; w++)
                    for (size_t i = 0; i < g.n[0]; i++) most = fmaxf(most, fabsf(g.grad[w][0][i]));
                CHECK(group_step(&g, 0) == GCOMP_OK && all_equal(&g));
                CHECK(g.calls == 3 && g.kind[1] == GCOMP_ALLREDUCE_MAX && g.kind[2] == GCOMP_ALLGATHER);
                CHECK(g.largest == most);
                for (size_t i = 0; i < g.n[0]; i++) { /* a whole number of shares */
                    double x = (double)g.grad[0][0][i] * world / (double)most;
                    bad += fabs(x - floor(x + 0.5)) > 1e-5 || fabs(x) > world + 1e-5;
                }
            }
            CHECK(bad == 0);
            group_close(&g);
        }
}

static void test_terngrad_with_a_shared_scale_is_unbiased(void)
{
    enum { N = 64, STEPS = 4000 };
    gcomp_tensor t = tensor_of("w", N, 1, 1, "terngrad:share=1,clip=0");
    double sum[N] = {0};
    int bad = 0;
    group g;
    group_open(&g, 2, NULL, &t, 1);
    add_means(&g, STEPS, sum);
    for (size_t i = 0; i < N; i++) {
        double p = 0, variance = 0;
        for (int w = 0; w < 2; w++) {
            double x = fabs((double)g.grad[w][0][i]);
            p += (double)g.grad[w][0][i] / 2;
            variance += x * ((double)g.largest - x) / 4;
        }
        bad += fabs(sum[i] / STEPS - p) > 5 * sqrt(variance / STEPS) + 1e-5;
    }
    CHECK(bad == 0);
    group_close(&g);
}

static void test_a_shared_scale_that_cannot_be_changes_nothing(void)
{
    static const float factors[] = {-1.0f, INFINITY, NAN};
    for (size_t k = 0; k < 3; k++) {
        uint64_t before[2];
        group g;
        open_before_a_lie(&g, "terngrad:share=1", factors[k], before);
        CHECK(group_step(&g, 0) != GCOMP_OK && g.result[1] != GCOMP_OK);
        for (int w = 0; w < 2; w++) CHECK(digest(&g, w) == before[w]);
        g.lie = 0;
        CHECK(group_step(&g, 0) == GCOMP_OK && all_equal(&g));
        group_close(&g);
    }
}

static void test_a_payload_alone_has_its_own_scale(void)
{
    static unsigned char a[GCOMP_BOUND(1500)], b[GCOMP_BOUND(1500)];
    gcomp_tensor t[2];
    size_t m = 0, n = 0;
    group g, h;
    t[0] = tensor_of("w", 30, 50, 1, "terngrad:share=1");
    t[1] = tensor_of("w", 30, 50, 1, "terngrad");
    group_open(&g, 1, NULL, &t[0], 1);
    group_open(&h, 1, NULL, &t[1], 1);
    group_fill(&g, 1);
    CHECK(gcomp_compress(g.gc[0], 0, 4, g.grad[0][0], a, sizeof a, &m) == GCOMP_OK);
    CHECK(gcomp_compress(h.gc[0], 0, 4, g.grad[0][0], b, sizeof b, &n) == GCOMP_OK);
    CHECK(m == n && !memcmp(a, b, n));
    group_close(&g);
    group_close(&h);
}

/* ---------------- what the transport must be able to do */

static gcomp_result open_as(const char *codec, int world, unsigned dtypes, char *why)
{
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_result result;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.comm.world = world;
    desc.comm.allreduce_dtypes = dtypes;
    desc.why = why;
    desc.why_capacity = 256;
    why[0] = 0;
    result = gcomp_open(&gc, &desc);
    CHECK((gc != NULL) == (result == GCOMP_OK));
    CHECK((gcomp_memory_needed(&desc, NULL, 0) != 0) == (result == GCOMP_OK));
    gcomp_close(gc);
    return result;
}

static void test_a_transport_that_cannot_add_the_integers_is_named_at_once(void)
{
    static const struct { const char *codec; gcomp_dtype dtype; const char *name; } need[] = {
        {"intsum", GCOMP_I8, "GCOMP_I8"}, {"intsum:bits=16", GCOMP_I16, "GCOMP_I16"}, {"intsum:bits=32", GCOMP_I32, "GCOMP_I32"}};
    char why[256];
    for (size_t i = 0; i < 3; i++) {
        gcomp_tensor t = tensor_of("fc1", 30, 50, 1, need[i].codec);
        gcomp_desc desc;
        gcomp *gc = NULL;
        CHECK(open_as(need[i].codec, 2, integers & ~(1u << need[i].dtype), why) == GCOMP_MISSING_CALLBACK);
        CHECK(strstr(why, "comm.allreduce_dtypes") && strstr(why, need[i].name));
        CHECK(open_as(need[i].codec, 2, 1u << need[i].dtype, why) == GCOMP_OK);
        CHECK(open_as(need[i].codec, 1, 0, why) == GCOMP_OK);
        memset(&desc, 0, sizeof desc);
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        size_t used = gcomp_memory_used(gc);
        CHECK(gcomp_add_tensor(gc, &t) == GCOMP_MISSING_CALLBACK);
        CHECK(strstr(gcomp_error(gc), "fc1") && strstr(gcomp_error(gc), "comm.allreduce_dtypes"));
        CHECK(gcomp_tensor_count(gc) == 0 && gcomp_memory_used(gc) == used);
        CHECK(gcomp_memory_needed(&desc, &t, 1) == 0);
        gcomp_close(gc);
    }
    CHECK(open_as("none", 2, 1u << 7, why) == GCOMP_INVALID_ARGUMENT && strstr(why, "comm.allreduce_dtypes is 128"));
}

static void test_too_many_workers_for_the_integers_are_told_which_are_enough(void)
{
    char why[256];
    CHECK(open_as("intsum", 127, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum", 128, integers, why) == GCOMP_BAD_CODEC);
    CHECK(strstr(why, "comm.world is 128") && strstr(why, "bits=16"));
    CHECK(open_as("intsum:bits=16", 32767, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum:bits=16", 32768, integers, why) == GCOMP_BAD_CODEC && strstr(why, "bits=32"));
    CHECK(open_as("intsum:bits=32", 32768, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum:bits=4", 2, integers, why) == GCOMP_BAD_CODEC);
}

static void test_a_shared_scale_takes_no_blocks(void)
{
    char why[256];
    CHECK(open_as("terngrad:share=1", 2, 0, why) == GCOMP_OK);
    CHECK(open_as("terngrad:block=512,share=1", 2, 0, why) == GCOMP_BAD_CODEC && strstr(why, "block=tensor"));
    CHECK(open_as("terngrad:share=1,code=elias", 1, 0, why) == GCOMP_BAD_CODEC && strstr(why, "code=packed"));
    CHECK(open_as("terngrad:share=1,code=auto", 2, 0, why) == GCOMP_BAD_CODEC && strstr(why, "code=packed"));
    CHECK(open_as("terngrad:block=512", 2, 0, why) == GCOMP_OK);
    CHECK(open_as("terngrad:share=2", 2, 0, why) == GCOMP_BAD_CODEC);
}

static int ignore_max(void *user, float *data, size_t count)
{
    (void)user, (void)data, (void)count;
    return 0;
}

static void test_workers_agree_on_the_new_callbacks(void)
{
    for (int difference = 0; difference < 2; difference++) {
        gcomp_tensor t = tensor_of("w", 30, 50, 1, "intsum");
        gcomp_desc desc;
        group g;
        group_open(&g, 3, NULL, &t, 1);
        memset(&desc, 0, sizeof desc);
        desc.comm.world = 3;
        desc.comm.rank = 2;
        desc.comm.allreduce_dtypes = integers;
        if (difference == 0) desc.comm.allreduce_max = ignore_max;
        else desc.comm.allreduce_dtypes = 1u << GCOMP_I8;
        gcomp_close(g.gc[2]);
        CHECK(gcomp_open(&g.gc[2], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[2], &t) == GCOMP_OK);
        group_fill(&g, 1);
        group_step(&g, 0);
        for (int w = 0; w < 3; w++) CHECK(g.result[w] == GCOMP_MISMATCH && strstr(gcomp_error(g.gc[w]), difference ? "rank 2 has comm.allreduce_dtypes 16" : "rank 2 has comm.allreduce_max set"));
        CHECK(strstr(gcomp_error(g.gc[0]), "rank 2") != NULL);
        group_close(&g);
    }
}

static void test_payloads_of_intsum_need_rounds(void)
{
    gcomp_tensor t = tensor_of("w", 30, 50, 1, "intsum");
    float grad[16] = {0};
    unsigned char payload[256];
    gcomp_input in;
    gcomp_codec codec;
    size_t length = 0;
    group g;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = 16;
    CHECK(gcomp_codec_parse(&codec, "intsum", NULL, 0) == GCOMP_OK && gcomp_bound(&codec, 16) == 0);
    CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    group_open(&g, 1, NULL, &t, 1);
    CHECK(gcomp_compress(g.gc[0], 0, 0, g.grad[0][0], payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    CHECK(gcomp_tensor_codec(g.gc[0], 0)->method == 19);
    group_close(&g);
}

/* ---------------- the exchange, over threads */

typedef struct shared {
    gcomp_threads *group;
    int with_max, fail_call;
    gcomp_result result[MOST];
    uint64_t digest[MOST];
    size_t calls, allocations_late;
} shared;

typedef struct seat {
    shared *all;
    gcomp_comm inner;
    int call;
    size_t allocations;
} seat;

static int fails(seat *s) { return s->call++ == s->all->fail_call; }

static int seat_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allreduce(s->inner.user, data, count, dtype);
}

static int seat_max(void *user, float *data, size_t count)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allreduce_max(s->inner.user, data, count);
}

static int seat_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allgather(s->inner.user, mine, all, bytes);
}

static void *seat_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    ((seat *)user)->allocations++;
    return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL : p;
}

static void seat_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static int worker_fails; /* checks, in any thread */

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            worker_fails++; \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
        } \
    } while (0)

/* Two exchanges, one that fails where the group says so, and one more. */
static void *work(void *arg)
{
    gcomp_threads_member *me = (gcomp_threads_member *)((void **)arg)[0];
    shared *all = (shared *)((void **)arg)[1];
    float *grads[TENSORS];
    gcomp_tensor tensors[TENSORS];
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    gcomp_desc desc;
    uint64_t before;
    seat s;
    group g;
    memset(&desc, 0, sizeof desc);
    memset(&s, 0, sizeof s);
    memset(&g, 0, sizeof g);
    s.all = all;
    s.inner = gcomp_threads_comm(all->group, me->rank);
    desc.comm = s.inner;
    desc.comm.user = &s;
    desc.comm.allreduce = seat_allreduce;
    desc.comm.allgather = seat_allgather;
    desc.comm.allgatherv = NULL;
    desc.comm.alltoallv = NULL;
    desc.comm.allreduce_max = all->with_max ? seat_max : NULL;
    desc.allocator.alloc = seat_alloc;
    desc.allocator.free = seat_free;
    desc.allocator.user = &s;
    g.world = 1;
    g.count = TENSORS;
    EXPECT(gcomp_open(&g.gc[0], &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        tensors[t] = tensor_of(names[t], 21 + t, 40, 1, kinds[t]);
        EXPECT(gcomp_add_tensor(g.gc[0], &tensors[t]) == GCOMP_OK);
        g.n[t] = gcomp_tensor_elements(g.gc[0], t);
        grads[t] = g.grad[0][t] = (float *)malloc(4 * g.n[t]);
    }
    s.call = -1000;
    for (uint64_t step = 0; step < 4; step++) {
        size_t had = s.allocations;
        for (size_t t = 0; t < TENSORS; t++)
            for (size_t i = 0; i < g.n[t]; i++) grads[t][i] = noise(step * 9 + (uint64_t)me->rank, i + t);
        if (step == 2) {
            before = digest(&g, 0);
            s.call = 0;
            all->result[me->rank] = gcomp_exchange(g.gc[0], grads, NULL);
            if (me->rank == 0) all->calls = (size_t)s.call;
            if (all->fail_call >= 0) {
                EXPECT(all->result[me->rank] == GCOMP_CALLBACK_FAILED);
                EXPECT(digest(&g, 0) == before);
                EXPECT(strstr(gcomp_error(g.gc[0]), "failed with status 9") != NULL);
                s.call = -1000;
                EXPECT(gcomp_exchange(g.gc[0], grads, NULL) == GCOMP_OK);
            }
            s.call = -1000;
        } else {
            EXPECT(gcomp_exchange(g.gc[0], grads, NULL) == GCOMP_OK);
        }
        if (step) EXPECT(s.allocations == had);
    }
    EXPECT(gcomp_memory_used(g.gc[0]) == gcomp_memory_needed(&desc, tensors, TENSORS));
    all->digest[me->rank] = digest(&g, 0);
    gcomp_close(g.gc[0]);
    for (size_t t = 0; t < TENSORS; t++) free(grads[t]);
    return NULL;
}

static void run_group(shared *all, int world)
{
    pthread_t threads[MOST];
    void *args[MOST][2];
    CHECK(gcomp_threads_open(&all->group, world, 60.0) == 0);
    for (int w = 0; w < world; w++) {
        args[w][0] = &all->group->members[w];
        args[w][1] = all;
        CHECK(pthread_create(&threads[w], NULL, work, args[w]) == 0);
    }
    for (int w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(all->group);
}

static void test_an_exchange_gathers_the_largest_where_there_is_no_callback_for_it(void)
{
    shared a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    a.with_max = 1;
    a.fail_call = b.fail_call = -1;
    for (int world = 2; world <= 4; world++) {
        run_group(&a, world);
        run_group(&b, world);
        for (int w = 0; w < world; w++) CHECK(a.digest[w] == b.digest[w]);
        CHECK(a.calls == 8 && b.calls == 8);
    }
    CHECK(worker_fails == 0);
}

static void test_every_callback_that_fails_leaves_everything_as_it_was(void)
{
    shared control;
    memset(&control, 0, sizeof control);
    control.fail_call = -1;
    run_group(&control, 3);
    for (int with_max = 0; with_max < 2; with_max++)
        for (int call = 0; call < 8; call++) {
            shared s;
            memset(&s, 0, sizeof s);
            s.with_max = with_max;
            s.fail_call = call;
            run_group(&s, 3);
            for (int w = 0; w < 3; w++) CHECK(s.digest[w] == control.digest[w]);
        }
    CHECK(worker_fails == 0);
}

static void test_a_missing_allreduce_is_named(void)
{
    gcomp_tensor t = tensor_of("fc1", 30, 50, 1, "intsum");
    gcomp *gc = NULL;
    gcomp_desc desc;
    float *grads[1];
    memset(&desc, 0, sizeof desc);
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    desc.comm.allreduce_dtypes = integers;
    grads[0] = (float *)calloc(1500, sizeof(float));
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &t) == GCOMP_OK);
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.allreduce") && strstr(gcomp_error(gc), "fc1"));
    gcomp_close(gc);
    free(grads[0]);
}

int main(void)
{
    RUN(test_intsum_is_the_exact_sum_of_the_codes_of_all_workers);
    RUN(test_intsum_stochastic_is_unbiased);
    RUN(test_intsum_loses_nothing_over_the_workers);
    RUN(test_intsum_is_right_for_the_smallest_the_largest_and_no_numbers);
    RUN(test_random_elements_are_summed_and_the_others_kept);
    RUN(test_random_elements_are_all_equally_likely);
    RUN(test_randomk_is_unbiased_where_its_text_says_so);
    RUN(test_random_elements_see_every_number_that_is_not_finite);
    RUN(test_all_kinds_of_rounds_share_a_step);
    RUN(test_tensors_do_not_disturb_each_other);
    RUN(test_every_instruction_set_and_order_of_chunks_gives_the_same_bits);
    RUN(test_a_collective_that_fails_leaves_everything_as_it_was);
    RUN(test_not_finite_on_one_worker_is_told_to_all);
    RUN(test_a_largest_that_cannot_be_is_refused);
    RUN(test_terngrad_shares_the_largest_scale);
    RUN(test_terngrad_with_a_shared_scale_is_unbiased);
    RUN(test_a_shared_scale_that_cannot_be_changes_nothing);
    RUN(test_a_payload_alone_has_its_own_scale);
    RUN(test_a_transport_that_cannot_add_the_integers_is_named_at_once);
    RUN(test_too_many_workers_for_the_integers_are_told_which_are_enough);
    RUN(test_a_shared_scale_takes_no_blocks);
    RUN(test_workers_agree_on_the_new_callbacks);
    RUN(test_payloads_of_intsum_need_rounds);
    RUN(test_an_exchange_gathers_the_largest_where_there_is_no_callback_for_it);
    RUN(test_every_callback_that_fails_leaves_everything_as_it_was);
    RUN(test_a_missing_allreduce_is_named);
    return test_end();
}
