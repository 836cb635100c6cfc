/* Proves that powersgd computes its formulas: P = M Q, P^ = orthonormal(P), Q = M^T P^, M^ = P^
   Q^T, residual M - P^ Q_local^T. */

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, QUEUE_MAX = 16, TENSORS_MAX = 64, FRAME_BYTES = 64 };

/* ---------------- workers in lock-step, over a transport that never fails */

typedef struct group {
    size_t world, count;
    gcomp_tensor tensor[TENSORS_MAX];
    size_t n[TENSORS_MAX];
    gcomp *gc[WORLD_MAX];
    float *grad[WORLD_MAX][TENSORS_MAX];
} group;

static void group_open(group *g, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        if (base) desc = *base;
        if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            CHECK(gcomp_add_tensor(g->gc[w], &tensors[t]) == GCOMP_OK);
            g->n[t] = gcomp_tensor_elements(g->gc[w], t);
            g->tensor[t] = tensors[t];
            g->grad[w][t] = (float *)calloc(g->n[t], sizeof(float));
        }
    }
}

static void group_close(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

static void carry_out(const gcomp_request *request, size_t world)
{
    if (request[0].kind == GCOMP_ALLGATHER) {
        for (size_t w = 0; w < world; w++)
            for (size_t s = 0; s < world; s++)
                memcpy((char *)request[w].recv + s * request[w].stride, request[s].send, request[s].bytes[s]);
        return;
    }
    for (size_t w = 1; w < world; w++)
        for (size_t i = 0; i < request[0].count; i++) ((float *)request[0].recv)[i] += ((const float *)request[w].recv)[i];
    for (size_t w = 1; w < world; w++) memcpy(request[w].recv, request[0].recv, 4 * request[0].count);
}

static gcomp_result group_step(group *g)
{
    gcomp_result result = GCOMP_OK;
    for (size_t w = 0; w < g->world; w++) {
        if (gcomp_step_begin(g->gc[w], NULL)) return GCOMP_WRONG_STATE;
        for (size_t t = 0; t < g->count; t++)
            if (gcomp_step_ready(g->gc[w], t, g->grad[w][t])) return GCOMP_WRONG_STATE;
    }
    for (;;) {
        gcomp_request request[WORLD_MAX] = {{0}};
        for (size_t w = 0; w < g->world; w++) {
            gcomp_result mine = gcomp_step_next(g->gc[w], &request[w]);
            if (mine) result = mine;
        }
        if (result) return result;
        for (size_t w = 1; w < g->world; w++)
            if (request[w].kind != request[0].kind || request[w].count != request[0].count) return GCOMP_WRONG_STATE;
        if (request[0].kind == GCOMP_DONE) break;
        if (request[0].kind == GCOMP_WAIT) return GCOMP_WRONG_STATE;
        carry_out(request, g->world);
        for (size_t w = 0; w < g->world; w++) {
            gcomp_result mine = gcomp_step_done(g->gc[w], request[w].id, 0);
            if (mine) result = mine;
        }
        if (result) return result;
    }
    for (size_t w = 0; w < g->world; w++)
        if (gcomp_step_commit(g->gc[w])) return GCOMP_WRONG_STATE;
    return GCOMP_OK;
}

/* ---------------- matrices */

/* Uniform in [-1, 1). */
static float noise(uint64_t seed, size_t i)
{
    return (float)((int32_t)(mix(mix(seed) + i) >> 40) - 8388608) / 8388608.0f;
}

static void fill(float *m, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) m[i] = noise(seed, i);
}

/* A matrix of rank r: sum of r outer products. */
static void low_rank(float *m, size_t rows, size_t cols, size_t r, uint64_t seed, double scale)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < r; k++)
                sum += (double)noise(seed + 2 * k, i) * (double)noise(seed + 2 * k + 1, j) / (double)(k + 1);
            m[i * cols + j] = (float)(scale * sum);
        }
}

static double norm(const float *m, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)m[i] * (double)m[i];
    return sqrt(sum);
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

static int all_finite(const float *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(m[i])) return 0;
    return 1;
}

/* |A^T B|_F / (|A| |B|): 0 where the columns of A and B are orthogonal; `of_rows`: |A B^T|, of
   rows. */
static double overlap_of(const float *a, const float *b, size_t rows, size_t cols, int of_rows)
{
    double total = 0, size = norm(a, rows * cols) * norm(b, rows * cols);
    size_t n = of_rows ? rows : cols, apart = of_rows ? cols : 1, along = of_rows ? 1 : cols;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t k = 0; k < rows * cols / n; k++)
                sum += (double)a[k * along + i * apart] * (double)b[k * along + j * apart];
            total += sum * sum;
        }
    return size > 0 ? sqrt(total) / size : 0.0;
}

/* In even steps of the alternating form Q is orthonormal, and not P. */
static double overlap_in(const char *codec, uint64_t step, const float *a, const float *b, size_t rows, size_t cols)
{
    return overlap_of(a, b, rows, cols, strstr(codec, "alternate") && step % 2 == 0);
}

static gcomp_desc no_feedback(void)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.no_error_feedback = 1;
    return desc;
}

static gcomp_tensor matrix(size_t rows, size_t cols, size_t stack, const char *codec)
{
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "m";
    tensor.rows = rows;
    tensor.cols = cols;
    tensor.stack = stack;
    tensor.codec = codec;
    return tensor;
}

static const struct shape {
    size_t rows, cols, r;
    const char *codec;
} shapes[] = {
    {20, 31, 1, "powersgd:rank=1"},  {20, 31, 4, "powersgd:rank=4"},   {64, 27, 3, "powersgd:rank=3"},
    {7, 200, 2, "powersgd:rank=2"},  {200, 7, 2, "powersgd:rank=2"},   {33, 65, 8, "powersgd:rank=8"},
    {129, 17, 5, "powersgd:rank=5"}, {48, 48, 16, "powersgd:rank=16"},   {50, 61, 20, "powersgd:rank=20"},
    {20, 31, 4, "powersgd:rank=4,alternate=1"}, {40, 33, 9, "powersgd:rank=9,alternate=1"},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---------------- one worker */

static void test_a_matrix_of_rank_r_is_recovered_within_three_steps(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        gcomp_tensor tensor = matrix(shapes[s].rows, shapes[s].cols, 0, shapes[s].codec);
        gcomp_desc desc = no_feedback();
        size_t n = shapes[s].rows * shapes[s].cols;
        float *m = (float *)malloc(4 * n);
        group g;
        group_open(&g, 1, &desc, &tensor, 1);
        low_rank(m, shapes[s].rows, shapes[s].cols, shapes[s].r, 10 + s, 1.0);
        for (int step = 0; step < 3; step++) {
            memcpy(g.grad[0][0], m, 4 * n);
            CHECK(group_step(&g) == GCOMP_OK);
        }
        double error = distance(g.grad[0][0], m, n) / norm(m, n);
        printf("# %dx%d rank %d: %.3g\n", (int)shapes[s].rows, (int)shapes[s].cols, (int)shapes[s].r, error);
        CHECK(error <= 1e-5);
        free(m);
        group_close(&g);
    }
}

static void test_the_error_is_orthogonal_to_what_was_sent(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        gcomp_tensor tensor = matrix(shapes[s].rows, shapes[s].cols, 0, shapes[s].codec);
        size_t rows = shapes[s].rows, cols = shapes[s].cols, n = rows * cols;
        float *p = (float *)malloc(4 * n), *rest = (float *)malloc(4 * n);
        group g;
        group_open(&g, 1, NULL, &tensor, 1);
        for (uint64_t step = 0; step < 5; step++) {
            const float *e = gcomp_residual(g.gc[0], 0);
            fill(g.grad[0][0], n, 100 * s + step);
            for (size_t i = 0; i < n; i++) p[i] = g.grad[0][0][i] + e[i];
            CHECK(group_step(&g) == GCOMP_OK);
            const float *sent = g.grad[0][0];
            for (size_t i = 0; i < n; i++) rest[i] = p[i] - sent[i];
            double whole = norm(p, n), kept = norm(sent, n), lost = norm(rest, n);
            CHECK(kept > 0.1 * whole);                                                  /* it does send something */
            CHECK(fabs(whole * whole - kept * kept - lost * lost) <= 1e-5 * whole * whole);  /* Pythagoras */
            CHECK(overlap_in(shapes[s].codec, step, sent, rest, rows, cols) <= 1e-5); /* P^ is orthonormal, Q = M^T P^ */
            CHECK(distance(e, rest, n) <= 1e-6 * whole);
            CHECK(norm(e, n) <= whole * (1 + 1e-6));
        }
        free(p);
        free(rest);
        group_close(&g);
    }
}

/* M = sum of s_k u_k v_k^T with orthonormal cosines; its best approximation of rank r keeps the
   r largest s_k. */
static void known_spectrum(float *m, size_t rows, size_t cols, const double *s, size_t count)
{
    const double pi = 3.14159265358979323846;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < count; k++) {
                double u = sqrt((k ? 2.0 : 1.0) / (double)rows) * cos(pi * ((double)i + 0.5) * (double)k / (double)rows);
                double v = sqrt((k ? 2.0 : 1.0) / (double)cols) * cos(pi * ((double)j + 0.5) * (double)k / (double)cols);
                sum += s[k] * u * v;
            }
            m[i * cols + j] = (float)sum;
        }
}

/* So many steps with the same matrix bring what is sent to its best approximation, and there it
   stays. */
static void check_best(const char *codec, int steps, int stays)
{
    static const double spectrum[6] = {8, 5, 1.5, 1, 0.5, 0.25};
    enum { ROWS = 30, COLS = 44 };
    static float m[ROWS * COLS], best[ROWS * COLS];
    gcomp_tensor tensor = matrix(ROWS, COLS, 0, codec);
    gcomp_desc desc = no_feedback();
    group g;
    group_open(&g, 1, &desc, &tensor, 1);
    known_spectrum(m, ROWS, COLS, spectrum, 6);
    known_spectrum(best, ROWS, COLS, spectrum, 2);
    for (int step = 1; step < steps + stays; step++) {
        memcpy(g.grad[0][0], m, sizeof m);
        CHECK(group_step(&g) == GCOMP_OK);
        if (step >= steps) CHECK(distance(g.grad[0][0], best, ROWS * COLS) <= 1e-5 * norm(best, ROWS * COLS));
    }
    group_close(&g);
}

static void test_repeated_steps_find_the_best_approximation(void)
{
    check_best("powersgd:rank=2", 20, 1); /* (1.5 / 5)^(2 * 20) is below float */
}

static void test_a_zero_gradient_stays_zero_and_does_not_kill_the_warm_start(void)
{
    for (int feedback = 0; feedback < 2; feedback++)
        for (int zeros = 1; zeros <= 3; zeros++)
            for (int first = 0; first < 2; first++) {
                enum { ROWS = 20, COLS = 31, COUNT = ROWS * COLS };
                static float m[COUNT];
                gcomp_tensor tensor = matrix(ROWS, COLS, 0, "powersgd:rank=2");
                gcomp_desc desc = no_feedback();
                desc.no_error_feedback = !feedback;
                group g;
                group_open(&g, 2, &desc, &tensor, 1);
                if (!first) {
                    for (size_t w = 0; w < 2; w++) low_rank(g.grad[w][0], ROWS, COLS, 2, 7, 1.0);
                    for (int step = 0; step < 3; step++) CHECK(group_step(&g) == GCOMP_OK);
                }
                for (int step = 0; step < zeros; step++) {
                    for (size_t w = 0; w < 2; w++) memset(g.grad[w][0], 0, sizeof m);
                    CHECK(group_step(&g) == GCOMP_OK);
                    CHECK(all_finite(g.grad[0][0], COUNT));
                    if (first || !feedback) CHECK(norm(g.grad[0][0], COUNT) == 0);
                }
                low_rank(m, ROWS, COLS, 2, 900, 1.0);
                if (first || !feedback) {
                    for (int step = 0; step < 3; step++) {
                        for (size_t w = 0; w < 2; w++) memcpy(g.grad[w][0], m, sizeof m);
                        CHECK(group_step(&g) == GCOMP_OK);
                        if (feedback) CHECK(norm(g.grad[0][0], COUNT) > 0);
                    }
                    if (!feedback) CHECK(distance(g.grad[0][0], m, COUNT) <= 1e-5 * norm(m, COUNT));
                }
                CHECK(memcmp(g.grad[0][0], g.grad[1][0], sizeof m) == 0);
                group_close(&g);
            }
}

static void test_matrices_of_lower_rank_and_of_any_scale_are_accurate(void)
{
    static const double scales[] = {1.0, 1e-30, 1e30, 1e-20, 1e20};
    enum { ROWS = 40, COLS = 60, COUNT = ROWS * COLS };
    static float m[COUNT];
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++)
        for (int kind = 0; kind < 4; kind++) {
            gcomp_tensor tensor = matrix(ROWS, COLS, 0, "powersgd:rank=4");
            gcomp_desc desc = no_feedback();
            group g;
            if (kind < 2) low_rank(m, ROWS, COLS, kind ? 2 : 1, 3, scales[s]);  /* of rank below 4 */
            for (size_t i = 0; i < COUNT && kind == 2; i++) m[i] = (float)scales[s];
            for (size_t i = 0; i < COUNT && kind == 3; i++) m[i] = i == 777 ? (float)scales[s] : 0.0f;
            for (size_t world = 1; world <= 2; world++) {
                group_open(&g, world, &desc, &tensor, 1);
                for (int step = 0; step < 3; step++) {
                    for (size_t w = 0; w < world; w++) memcpy(g.grad[w][0], m, sizeof m);
                    CHECK(group_step(&g) == GCOMP_OK);
                    CHECK(all_finite(g.grad[0][0], COUNT));
                }
                double error = distance(g.grad[0][0], m, COUNT) / norm(m, COUNT);
                if (!(error <= 1e-5)) printf("# scale %g, kind %d: %.3g\n", scales[s], kind, error);
                CHECK(error <= 1e-5);
                group_close(&g);
            }
        }
}

static void test_extreme_values_are_finite_or_refused_without_a_trace(void)
{
    static const float values[] = {1e-45f, 1e-42f, 1e-38f, 1e38f, 3e38f};
    enum { ROWS = 40, COLS = 60, COUNT = ROWS * COLS };
    static float m[COUNT];
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
        gcomp_tensor tensor = matrix(ROWS, COLS, 0, "powersgd:rank=2");
        group g;
        group_open(&g, 2, NULL, &tensor, 1);
        for (size_t i = 0; i < COUNT; i++) m[i] = noise(v, i) < 0 ? -values[v] : values[v];
        for (int step = 0; step < 3; step++) {
            for (size_t w = 0; w < 2; w++) memcpy(g.grad[w][0], m, sizeof m);
            gcomp_result result = group_step(&g);
            CHECK(result == GCOMP_OK || result == GCOMP_NOT_FINITE);
            CHECK(all_finite(g.grad[0][0], COUNT) && all_finite(gcomp_residual(g.gc[0], 0), COUNT));
            if (result) CHECK(memcmp(g.grad[0][0], m, sizeof m) == 0);
        }
        group_close(&g);
    }
}

/* ---------------- many workers */

/* P and Q are finite, but not always their products, nor M without them. */
static void test_what_huge_matrices_leave_is_finite(void)
{
    static const char *const codecs[] = {"powersgd:rank=1", "powersgd:rank=2",
                                         "powersgd:rank=1,alternate=1"};
    size_t done = 0;
    for (uint64_t seed = 0; seed < 90; seed++) {
        gcomp_tensor t = {"w", 3 + (size_t)(seed % 5), 19, 0, GCOMP_F32, codecs[seed % 3]};
        gcomp_desc desc;
        gcomp *gc;
        float grad[8 * 19], *grads[1] = {grad};
        memset(&desc, 0, sizeof desc);
        desc.min_elements = 1;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &t) == GCOMP_OK);
        CHECK(gcomp_tensor_codec(gc, 0) && gcomp_residual(gc, 0));
        for (size_t step = 0; step < 3; step++) {
            for (size_t i = 0; i < 19 * t.rows; i++)
                grad[i] = (float)((double)(int64_t)mix(seed * 1000 + step * 200 + i) * 3.6e19);
            const gcomp_result result = gcomp_exchange(gc, grads, NULL);
            CHECK(result == GCOMP_OK || result == GCOMP_NOT_FINITE);
            if (result) continue;
            done++;
            for (size_t i = 0; i < 19 * t.rows; i++)
                CHECK(isfinite(grad[i]) && isfinite(gcomp_residual(gc, 0)[i]));
        }
        gcomp_close(gc);
    }
    CHECK(done > 20);
}

static void test_many_workers_equal_one_with_the_mean(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        gcomp_tensor tensor = matrix(shapes[s].rows, shapes[s].cols, 0, shapes[s].codec);
        size_t n = shapes[s].rows * shapes[s].cols;
        group many, one;
        group_open(&many, 4, NULL, &tensor, 1);
        group_open(&one, 1, NULL, &tensor, 1);
        for (uint64_t step = 0; step < 4; step++) {
            for (size_t w = 0; w < 4; w++) fill(many.grad[w][0], n, 1000 * s + 10 * step + w);
            for (size_t i = 0; i < n; i++) {
                double sum = 0;
                for (size_t w = 0; w < 4; w++) sum += (double)many.grad[w][0][i];
                one.grad[0][0][i] = (float)(sum / 4);
            }
            CHECK(group_step(&many) == GCOMP_OK);
            CHECK(group_step(&one) == GCOMP_OK);
            CHECK(distance(many.grad[0][0], one.grad[0][0], n) <= 1e-5 * (double)(step + 1) * norm(one.grad[0][0], n));
        }
        group_close(&many);
        group_close(&one);
    }
}

static void test_each_residual_is_what_the_subspace_left_of_this_worker(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        gcomp_tensor tensor = matrix(shapes[s].rows, shapes[s].cols, 0, shapes[s].codec);
        size_t rows = shapes[s].rows, cols = shapes[s].cols, n = rows * cols;
        group g;
        float *p[3], *lost = (float *)malloc(4 * n);
        for (size_t w = 0; w < 3; w++) p[w] = (float *)malloc(4 * n);
        group_open(&g, 3, NULL, &tensor, 1);
        for (uint64_t step = 0; step < 4; step++) {
            double whole = 0, worst = 0;
            for (size_t w = 0; w < 3; w++) {
                const float *e = gcomp_residual(g.gc[w], 0);
                fill(g.grad[w][0], n, 1000 * s + 10 * step + w);
                for (size_t i = 0; i < n; i++) p[w][i] = g.grad[w][0][i] + e[i];
                whole += norm(p[w], n);
            }
            CHECK(group_step(&g) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) { /* mean of (M^ + e_w) = mean of M_w, element by element */
                double left = (double)g.grad[0][0][i], right = 0;
                for (size_t w = 0; w < 3; w++) {
                    left += (double)gcomp_residual(g.gc[w], 0)[i] / 3;
                    right += (double)p[w][i] / 3;
                }
                if (fabs(left - right) > worst) worst = fabs(left - right);
            }
            CHECK(worst <= 1e-6 * whole);
            for (size_t w = 0; w < 3; w++) { /* e_w = M_w - P^ P^T M_w: nothing of it lies in the subspace; Q_local, not Q */
                const float *e = gcomp_residual(g.gc[w], 0);
                for (size_t i = 0; i < n; i++) lost[i] = p[w][i] - e[i];
                CHECK(overlap_in(shapes[s].codec, step, g.grad[0][0], e, rows, cols) <= 2e-5);
                CHECK(overlap_in(shapes[s].codec, step, lost, e, rows, cols) <= 2e-5);
            }
        }
        for (size_t w = 0; w < 3; w++) free(p[w]);
        free(lost);
        group_close(&g);
    }
}

static const gcomp_tensor *one_tensor_a_shape(void)
{
    static gcomp_tensor tensors[SHAPES];
    static char names[SHAPES][8];
    for (size_t s = 0; s < SHAPES; s++) {
        tensors[s] = matrix(shapes[s].rows, shapes[s].cols, s % 3, shapes[s].codec);
        snprintf(names[s], sizeof names[s], "m%d", (int)s);
        tensors[s].name = names[s];
    }
    return tensors;
}

static void test_workers_never_drift_apart(void)
{
    const gcomp_tensor *tensors = one_tensor_a_shape();
    group g;
    group_open(&g, 4, NULL, tensors, SHAPES);
    for (uint64_t step = 0; step < 20; step++) {
        for (size_t w = 0; w < 4; w++)
            for (size_t t = 0; t < SHAPES; t++) fill(g.grad[w][t], g.n[t], 1000 * step + 10 * w + t);
        CHECK(group_step(&g) == GCOMP_OK);
        for (size_t w = 1; w < 4; w++)
            for (size_t t = 0; t < SHAPES; t++) CHECK(memcmp(g.grad[0][t], g.grad[w][t], 4 * g.n[t]) == 0);
    }
    group_close(&g);
}

static void test_every_instruction_set_gives_the_same_bits(void)
{
    group reference;
    const gcomp_tensor *tensors = one_tensor_a_shape();
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    for (int isa = GCOMP_ISA_SCALAR + 1; isa <= GCOMP_ISA_NEON; isa++) {
        if (!gcomp_isa_available((gcomp_isa)isa)) continue;
        group g;
        printf("# %s\n", gcomp_isa_name((gcomp_isa)isa));
        desc.isa = GCOMP_ISA_SCALAR;
        group_open(&reference, 2, &desc, tensors, SHAPES);
        desc.isa = (gcomp_isa)isa;
        group_open(&g, 2, &desc, tensors, SHAPES);
        for (uint64_t step = 0; step < 6; step++)
            for (size_t t = 0; t < SHAPES; t++) {
                if (t == 0)
                    for (size_t w = 0; w < 2; w++)
                        for (size_t u = 0; u < SHAPES; u++) {
                            fill(g.grad[w][u], g.n[u], 1000 * step + 10 * w + u);
                            fill(reference.grad[w][u], g.n[u], 1000 * step + 10 * w + u);
                        }
                if (t == 0) CHECK(group_step(&g) == GCOMP_OK && group_step(&reference) == GCOMP_OK);
                CHECK(memcmp(g.grad[0][t], reference.grad[0][t], 4 * g.n[t]) == 0);
                CHECK(memcmp(gcomp_residual(g.gc[1], t), gcomp_residual(reference.gc[1], t), 4 * g.n[t]) == 0);
            }
        group_close(&g);
        group_close(&reference);
    }
}

static void test_the_order_of_tasks_does_not_change_the_bits(void)
{
    gcomp_tensor tensor = matrix(300, 700, 2, "powersgd:rank=3");
    gcomp_desc desc;
    group a, b;
    memset(&desc, 0, sizeof desc);
    group_open(&a, 2, &desc, &tensor, 1);
    desc.parallel.run = run_backwards;
    group_open(&b, 2, &desc, &tensor, 1);
    for (uint64_t step = 0; step < 2; step++) {
        for (size_t w = 0; w < 2; w++) {
            fill(a.grad[w][0], a.n[0], 10 * step + w);
            fill(b.grad[w][0], a.n[0], 10 * step + w);
        }
        CHECK(group_step(&a) == GCOMP_OK && group_step(&b) == GCOMP_OK);
        CHECK(memcmp(a.grad[0][0], b.grad[0][0], 4 * a.n[0]) == 0);
        CHECK(memcmp(gcomp_residual(a.gc[1], 0), gcomp_residual(b.gc[1], 0), 4 * a.n[0]) == 0);
    }
    group_close(&a);
    group_close(&b);
}

/* A step too large for a cache takes another loop of the kernels, which fetches ahead. */
static void test_what_else_a_step_holds_does_not_change_the_bits(void)
{
    static const char *const codecs[] = {"powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4", "powersgd:rank=16"};
    enum { COUNT = sizeof codecs / sizeof codecs[0], LARGE = 1 << 22 };
    for (int feedback = 0; feedback < 2; feedback++) {
        gcomp_tensor tensors[COUNT + 1];
        char names[COUNT + 1][8];
        gcomp_desc desc = no_feedback();
        group alone, beside;
        desc.no_error_feedback = !feedback;
        for (size_t t = 0; t <= COUNT; t++) {
            tensors[t] = t < COUNT ? matrix(29, 1300, 0, codecs[t]) : matrix(LARGE, 1, 0, "none");
            snprintf(names[t], sizeof names[t], "m%d", (int)t);
            tensors[t].name = names[t];
        }
        group_open(&alone, 1, &desc, tensors, COUNT);
        group_open(&beside, 1, &desc, tensors, COUNT + 1);
        for (uint64_t step = 0; step < 2; step++) {
            for (size_t t = 0; t < COUNT; t++) {
                fill(alone.grad[0][t], alone.n[t], 10 * step + t);
                fill(beside.grad[0][t], alone.n[t], 10 * step + t);
            }
            CHECK(group_step(&alone) == GCOMP_OK && group_step(&beside) == GCOMP_OK);
            for (size_t t = 0; t < COUNT; t++) CHECK(memcmp(alone.grad[0][t], beside.grad[0][t], 4 * alone.n[t]) == 0);
        }
        group_close(&alone);
        group_close(&beside);
    }
}

/* ---------------- stacks and bytes */

static void test_a_stack_behaves_as_separate_matrices(void)
{
    static const double spectra[3][4] = {{8, 4, 1, 0.5}, {3, 2, 0.5, 0.25}, {100, 60, 10, 1}};
    enum { ROWS = 24, COLS = 30, ONE = ROWS * COLS };
    static float m[3][ONE], best[ONE];
    gcomp_tensor whole = matrix(ROWS, COLS, 3, "powersgd:rank=2"), parts[3];
    gcomp_desc desc = no_feedback();
    group stack, separate;
    for (size_t s = 0; s < 3; s++) {
        static const char *const names[3] = {"a", "b", "c"};
        parts[s] = matrix(ROWS, COLS, 1, "powersgd:rank=2");
        parts[s].name = names[s];
        known_spectrum(m[s], ROWS, COLS, spectra[s], 4);
    }
    group_open(&stack, 2, &desc, &whole, 1);
    group_open(&separate, 2, &desc, parts, 3);
    for (int step = 0; step < 25; step++) { /* (1 / 4)^(2 * 25): both have forgotten where Q started */
        for (size_t w = 0; w < 2; w++)
            for (size_t s = 0; s < 3; s++) {
                memcpy(stack.grad[w][0] + s * ONE, m[s], sizeof m[s]);
                memcpy(separate.grad[w][s], m[s], sizeof m[s]);
            }
        CHECK(group_step(&stack) == GCOMP_OK);
        CHECK(group_step(&separate) == GCOMP_OK);
    }
    for (size_t s = 0; s < 3; s++) {
        known_spectrum(best, ROWS, COLS, spectra[s], 2);
        CHECK(distance(stack.grad[0][0] + s * ONE, best, ONE) <= 1e-5 * norm(best, ONE));
        CHECK(distance(separate.grad[0][s], best, ONE) <= 1e-5 * norm(best, ONE));
    }
    gcomp_statistics a, b;
    CHECK(gcomp_stats(stack.gc[0], &a) == GCOMP_OK && gcomp_stats(separate.gc[0], &b) == GCOMP_OK);
    CHECK(a.bytes_out == b.bytes_out);
    CHECK(a.bytes_out == 25 * (FRAME_BYTES + 4 * 3 * 2 * (ROWS + COLS)));
    group_close(&stack);
    group_close(&separate);
}

/* ResNet-18 for CIFAR: 11,173,962 parameters, of which 9,610 in vectors. */
static void test_resnet18_takes_36325_r_plus_9610_floats_a_step(void)
{
    static const size_t layers[][3] = {
        {64, 27, 1}, {64, 576, 4}, {128, 576, 1}, {128, 1152, 3}, {128, 64, 1}, {256, 1152, 1}, {256, 2304, 3},
        {256, 128, 1}, {512, 2304, 1}, {512, 4608, 3}, {512, 256, 1}, {10, 512, 1},
    };
    static const size_t ranks[3] = {1, 2, 4};
    static const char *const codecs[3] = {"powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"};
    static const double published[3] = {243.26, 135.84, 72.13};
    for (size_t r = 0; r < 3; r++) {
        gcomp_tensor tensors[TENSORS_MAX];
        char names[TENSORS_MAX][16];
        size_t count = 0, total = 0;
        group g;
        for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++)
            for (size_t k = 0; k < layers[l][2]; k++) {
                tensors[count] = matrix(layers[l][0], layers[l][1], 0, codecs[r]);
                total += layers[l][0] * layers[l][1];
                count++;
            }
        tensors[count] = matrix(9610, 0, 0, NULL);
        total += 9610;
        count++;
        for (size_t t = 0; t < count; t++) {
            snprintf(names[t], sizeof names[t], "t%d", (int)t);
            tensors[t].name = names[t];
        }
        CHECK(total == 11173962);
        group_open(&g, 2, NULL, tensors, count);
        for (size_t w = 0; w < 2; w++)
            for (size_t t = 0; t < count; t++)
                for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = (float)((i * 2654435761u >> 8 & 0xFFFF) + w) / 65536.0f;
        CHECK(group_step(&g) == GCOMP_OK);
        gcomp_statistics stats;
        CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK);
        CHECK(stats.bytes_in == 4 * (uint64_t)total);
        CHECK(stats.bytes_out - FRAME_BYTES == 4 * (uint64_t)(36325 * ranks[r] + 9610));
        double ratio = (double)stats.bytes_in / (double)(stats.bytes_out - FRAME_BYTES);
        printf("# rank %d: %.2f\n", (int)ranks[r], ratio);
        CHECK(fabs(ratio - published[r]) < 0.005);
        group_close(&g);
    }
}

/* ---------------- one sum a step; momentum; the optimizer */

static void test_alternate_steps_send_p_or_q_beside_the_vectors(void)
{
    enum { ROWS = 40, COLS = 70, STACK = 2, RANK = 3, LENGTH = 123 };
    gcomp_tensor tensors[3] = {matrix(LENGTH, 0, 0, NULL), matrix(ROWS, COLS, STACK, "powersgd:rank=3,alternate=1"),
                               matrix(LENGTH, 0, 0, NULL)};
    gcomp_statistics stats;
    uint64_t sent = 0;
    group g;
    tensors[0].name = "a";
    tensors[2].name = "b";
    group_open(&g, 2, NULL, tensors, 3);
    for (uint64_t step = 0; step < 6; step++) {
        for (size_t w = 0; w < 2; w++)
            for (size_t t = 0; t < 3; t++)
                for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = (float)(i + step + t) + noise(step + t, i);
        CHECK(group_step(&g) == GCOMP_OK);
        CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK);
        CHECK(stats.bytes_out - sent == FRAME_BYTES + 4 * (2 * LENGTH + RANK * STACK * (step % 2 ? COLS : ROWS)));
        sent = stats.bytes_out;
        for (size_t t = 0; t < 3; t++) CHECK(memcmp(g.grad[0][t], g.grad[1][t], 4 * g.n[t]) == 0);
        for (size_t t = 0; t < 3; t += 2)
            for (size_t i = 0; i < LENGTH; i++) CHECK(g.grad[0][t][i] == (float)(i + step + t) + noise(step + t, i));
    }
    group_close(&g);
}

static void test_alternate_steps_find_the_best_approximation(void)
{
    check_best("powersgd:rank=2,alternate=1", 39, 2); /* half an iteration each */
}

/* With momentum m what is compressed is e + u, u <- m u + g, and e what is left of that, on each
   worker. */
static void test_momentum_comes_before_feedback(void)
{
    static const char *const codecs[2] = {"powersgd:rank=2,momentum=0.75", "powersgd:rank=2,alternate=1,momentum=0.75"};
    enum { ROWS = 30, COLS = 44, COUNT = ROWS * COLS, WORLD = 2 };
    for (size_t c = 0; c < 2; c++) {
        static float u[WORLD][COUNT], p[WORLD][COUNT];
        gcomp_tensor tensor = matrix(ROWS, COLS, 0, codecs[c]);
        gcomp_desc desc;
        gcomp_statistics stats;
        group g;
        memset(&desc, 0, sizeof desc);
        memset(u, 0, sizeof u);
        desc.measure = 1;
        group_open(&g, WORLD, &desc, &tensor, 1);
        for (uint64_t step = 0; step < 5; step++) {
            double whole = 0, worst = 0, kept;
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = gcomp_residual(g.gc[w], 0);
                fill(g.grad[w][0], COUNT, 10 * step + w);
                for (size_t i = 0; i < COUNT; i++) {
                    u[w][i] = 0.75f * u[w][i] + g.grad[w][0][i];
                    p[w][i] = e[i] + u[w][i];
                }
                whole += norm(p[w], COUNT);
            }
            CHECK(group_step(&g) == GCOMP_OK);
            for (size_t i = 0; i < COUNT; i++) {
                double left = (double)g.grad[0][0][i], right = 0;
                for (size_t w = 0; w < WORLD; w++) {
                    left += (double)gcomp_residual(g.gc[w], 0)[i] / WORLD;
                    right += (double)p[w][i] / WORLD;
                }
                if (fabs(left - right) > worst) worst = fabs(left - right);
            }
            CHECK(worst <= 1e-6 * whole);
            kept = norm(gcomp_residual(g.gc[0], 0), COUNT) / norm(p[0], COUNT);
            CHECK(kept < 1);
            CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK);
            CHECK(fabs(stats.relative_error - kept) <= 1e-5);
        }
        group_close(&g);
    }
}

static void test_turns_and_momentum_survive_a_save(void)
{
    enum { ROWS = 30, COLS = 44, WORLD = 2 };
    for (uint64_t steps = 2; steps < 4; steps++) { /* before a turn of Q, and of P */
        gcomp_tensor tensor = matrix(ROWS, COLS, 2, "powersgd:rank=2,alternate=1,momentum=0.75");
        group g, h;
        group_open(&g, WORLD, NULL, &tensor, 1);
        group_open(&h, WORLD, NULL, &tensor, 1);
        for (uint64_t step = 0; step < steps + 2; step++) {
            for (size_t w = 0; w < WORLD; w++) {
                fill(g.grad[w][0], g.n[0], 10 * step + w);
                fill(h.grad[w][0], g.n[0], 10 * step + w);
                if (step != steps) continue;
                size_t length = gcomp_save_size(g.gc[w]);
                void *save = malloc(length);
                const void *const saves[1] = {save};
                CHECK(gcomp_save(g.gc[w], save, length, &length) == GCOMP_OK);
                CHECK(gcomp_load(h.gc[w], saves, &length, 1) == GCOMP_OK);
                free(save);
            }
            CHECK(group_step(&g) == GCOMP_OK);
            if (step < steps) continue;
            CHECK(group_step(&h) == GCOMP_OK);
            for (size_t w = 0; w < WORLD; w++) {
                CHECK(memcmp(g.grad[w][0], h.grad[w][0], 4 * g.n[0]) == 0);
                CHECK(memcmp(gcomp_residual(g.gc[w], 0), gcomp_residual(h.gc[w], 0), 4 * g.n[0]) == 0);
            }
        }
        group_close(&g);
        group_close(&h);
    }
}

/* A worker that joins takes Q and P and whose turn it is, and no momentum: the sum of momenta /
   world stays. */
static void test_a_worker_that_joins_takes_the_factors_and_no_momentum(void)
{
    enum { ROWS = 30, COLS = 44, N = ROWS * COLS };
    gcomp_tensor tensor = matrix(ROWS, COLS, 0, "powersgd:rank=2,alternate=1,momentum=0.75");
    size_t shared = 2 * (ROWS + COLS) + 1, length, zeros = 0, same = 0;
    group g, h;
    uint8_t *save[2];
    group_open(&g, 1, NULL, &tensor, 1);
    group_open(&h, 1, NULL, &tensor, 1);
    fill(g.grad[0][0], N, 1);
    CHECK(group_step(&g) == GCOMP_OK);
    length = gcomp_save_size(g.gc[0]);
    for (int k = 0; k < 2; k++) save[k] = (uint8_t *)malloc(length);
    CHECK(gcomp_save(g.gc[0], save[0], length, &length) == GCOMP_OK);
    CHECK(gcomp_join(h.gc[0], save[0], length) == GCOMP_OK);
    CHECK(gcomp_save(h.gc[0], save[1], length, &length) == GCOMP_OK);
    for (size_t i = 0; i < shared + N; i++) { /* the state is the end but for a checksum */
        const uint8_t *x = save[0] + length - 4 * (shared + N) + 4 * i - 4, *y = x - save[0] + save[1];
        if (i < shared) same += get_word(x, 4) == get_word(y, 4);
        else zeros += get_word(y, 4) == 0;
    }
    printf("# %d of %d the same, %d of %d zero\n", (int)same, (int)shared, (int)zeros, N);
    CHECK(same == shared && zeros == N);
    for (int k = 0; k < 2; k++) free(save[k]);
    group_close(&g);
    group_close(&h);
}

static void test_the_optimizer_takes_the_steps_of_algorithm_2(void)
{
    enum { COUNT = 100 };
    float x[COUNT], v[COUNT], d[COUNT], before[COUNT];
    double exact_x[COUNT], exact_v[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        exact_x[i] = x[i] = noise(1, i);
        exact_v[i] = v[i] = 0;
    }
    for (uint64_t step = 0; step < 10; step++) {
        fill(d, COUNT, 50 + step);
        CHECK(gcomp_momentum_step(x, v, d, COUNT, 0.1f, 0.9f) == GCOMP_OK);
        for (size_t i = 0; i < COUNT; i++) {
            exact_v[i] = (double)0.9f * exact_v[i] + (double)d[i];
            exact_x[i] -= (double)0.1f * ((double)d[i] + exact_v[i]);
            CHECK(fabs(exact_v[i] - (double)v[i]) <= 1e-5 && fabs(exact_x[i] - (double)x[i]) <= 1e-5);
        }
    }
    memcpy(before, x, sizeof x);
    CHECK(gcomp_momentum_step(NULL, v, d, 1, 0.1f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_momentum_step(x, NULL, d, 1, 0.1f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_momentum_step(x, v, NULL, 1, 0.1f, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_momentum_step(x, v, d, COUNT, (float)HUGE_VAL, 0.9f) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_momentum_step(x, v, d, COUNT, 0.1f, -(float)HUGE_VAL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_momentum_step(NULL, NULL, NULL, 0, 0.1f, 0.9f) == GCOMP_OK);
    CHECK(memcmp(before, x, sizeof x) == 0);
}

static void test_the_rank_is_limited_by_the_matrix(void)
{
    /* rank 4 of 5 x 90 gains (380 < 450); rank 5 would not. What was kept of a matrix of rank 4
       is all of it. */
    enum { ROWS = 5, COLS = 90, COUNT = ROWS * COLS };
    static float m[COUNT];
    gcomp_tensor tensor = matrix(ROWS, COLS, 0, "powersgd:rank=4");
    gcomp_desc desc = no_feedback();
    group g;
    group_open(&g, 2, &desc, &tensor, 1);
    low_rank(m, ROWS, COLS, 4, 70, 1.0);
    for (int step = 0; step < 3; step++) {
        for (size_t w = 0; w < 2; w++) memcpy(g.grad[w][0], m, sizeof m);
        CHECK(group_step(&g) == GCOMP_OK);
    }
    CHECK(distance(g.grad[0][0], m, COUNT) <= 1e-5 * norm(m, COUNT));
    group_close(&g);
}

static void test_rank_auto_is_a_share_of_the_smaller_side(void)
{
    static const struct auto_rank { size_t rows, cols; const char *codec, *same; } cases[] = {
        {300, 100, "powersgd:rank=auto", "powersgd:rank=12"}, {100, 300, "powersgd:rank=auto", "powersgd:rank=12"},
        {40, 40, "powersgd:rank=auto", "powersgd:rank=5"},    {39, 70, "powersgd:rank=auto", "powersgd:rank=4"},
        {11, 90, "powersgd:rank=auto", "powersgd:rank=4"},    {600, 700, "powersgd:rank=auto", "powersgd:rank=64"},
        {64, 64, "powersgd:rank=auto,share=4", "powersgd:rank=16"}, {64, 640, "powersgd:rank=auto,share=64", "powersgd:rank=4"},
        {90, 80, "powersgd:rank=auto,alternate=1,momentum=0.5", "powersgd:rank=10,alternate=1,momentum=0.5"},
        {7, 7, "powersgd:rank=auto", "none"}, {3, 400, "powersgd:rank=auto", "none"},
    };
    char why[200], text[100];
    gcomp_codec codec;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = cases[i].rows * cases[i].cols;
        gcomp_tensor tensors[2];
        gcomp_desc desc;
        group g;
        gcomp_statistics stats[2];
        float *mean[2];
        memset(&desc, 0, sizeof desc);
        desc.min_elements = 1;
        tensors[0] = matrix(cases[i].rows, cases[i].cols, 0, cases[i].codec);
        tensors[1] = matrix(cases[i].rows, cases[i].cols, 0, cases[i].same);
        tensors[1].name = "same";
        for (int t = 0; t < 2; t++) {
            group_open(&g, 2, &desc, tensors + t, 1);
            for (uint64_t step = 0; step < 3; step++) {
                for (uint64_t w = 0; w < 2; w++)
                    for (size_t j = 0; j < n; j++) g.grad[w][0][j] = noise(10 * step + w, j);
                CHECK(group_step(&g) == GCOMP_OK);
            }
            mean[t] = g.grad[0][0];
            g.grad[0][0] = NULL;
            CHECK(gcomp_stats(g.gc[0], stats + t) == GCOMP_OK);
            group_close(&g);
        }
        CHECK(stats[0].bytes_out == stats[1].bytes_out && !memcmp(mean[0], mean[1], 4 * n));
        free(mean[0]);
        free(mean[1]);
    }
    CHECK(gcomp_codec_parse(&codec, "powersgd:rank=0", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(strstr(why, "'auto' or a whole number from 1 to 64") != NULL);
    CHECK(gcomp_codec_parse(&codec, "powersgd:rank=4.5", NULL, 0) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "powersgd:rank=65", NULL, 0) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "powersgd:rank=auto,share=0", NULL, 0) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "powersgd:rank=auto,share=4", NULL, 0) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "powersgd:rank=auto,share=4"));
}

int main(void)
{
    RUN(test_a_matrix_of_rank_r_is_recovered_within_three_steps);
    RUN(test_the_error_is_orthogonal_to_what_was_sent);
    RUN(test_repeated_steps_find_the_best_approximation);
    RUN(test_a_zero_gradient_stays_zero_and_does_not_kill_the_warm_start);
    RUN(test_matrices_of_lower_rank_and_of_any_scale_are_accurate);
    RUN(test_extreme_values_are_finite_or_refused_without_a_trace);
    RUN(test_what_huge_matrices_leave_is_finite);
    RUN(test_many_workers_equal_one_with_the_mean);
    RUN(test_each_residual_is_what_the_subspace_left_of_this_worker);
    RUN(test_workers_never_drift_apart);
    RUN(test_every_instruction_set_gives_the_same_bits);
    RUN(test_the_order_of_tasks_does_not_change_the_bits);
    RUN(test_what_else_a_step_holds_does_not_change_the_bits);
    RUN(test_a_stack_behaves_as_separate_matrices);
    RUN(test_resnet18_takes_36325_r_plus_9610_floats_a_step);
    RUN(test_the_rank_is_limited_by_the_matrix);
    RUN(test_rank_auto_is_a_share_of_the_smaller_side);
    RUN(test_alternate_steps_send_p_or_q_beside_the_vectors);
    RUN(test_alternate_steps_find_the_best_approximation);
    RUN(test_momentum_comes_before_feedback);
    RUN(test_turns_and_momentum_survive_a_save);
    RUN(test_a_worker_that_joins_takes_the_factors_and_no_momentum);
    RUN(test_the_optimizer_takes_the_steps_of_algorithm_2);
    return test_end();
}
