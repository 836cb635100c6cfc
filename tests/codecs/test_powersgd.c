/* Proves that powersgd computes its formulas: P = M Q, P^ = orthonormal(P), Q = M^T P^, M^ = P^ Q^T, residual M - P^ Q_local^T.
   */

#include "powersgd.h"

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
            const float *e = tensor_residual(g.gc[0], 0);
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
            CHECK(all_finite(g.grad[0][0], COUNT) && all_finite(tensor_residual(g.gc[0], 0), COUNT));
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
        CHECK(tensor_codec(gc, 0) && tensor_residual(gc, 0));
        for (size_t step = 0; step < 3; step++) {
            for (size_t i = 0; i < 19 * t.rows; i++)
                grad[i] = (float)((double)(int64_t)mix(seed * 1000 + step * 200 + i) * 3.6e19);
            const gcomp_result result = exchange_floats(gc, grads, NULL);
            CHECK(result == GCOMP_OK || result == GCOMP_NOT_FINITE);
            if (result) continue;
            done++;
            for (size_t i = 0; i < 19 * t.rows; i++)
                CHECK(isfinite(grad[i]) && isfinite(tensor_residual(gc, 0)[i]));
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
                const float *e = tensor_residual(g.gc[w], 0);
                fill(g.grad[w][0], n, 1000 * s + 10 * step + w);
                for (size_t i = 0; i < n; i++) p[w][i] = g.grad[w][0][i] + e[i];
                whole += norm(p[w], n);
            }
            CHECK(group_step(&g) == GCOMP_OK);
            for (size_t i = 0; i < n; i++) { /* mean of (M^ + e_w) = mean of M_w, element by element */
                double left = (double)g.grad[0][0][i], right = 0;
                for (size_t w = 0; w < 3; w++) {
                    left += (double)tensor_residual(g.gc[w], 0)[i] / 3;
                    right += (double)p[w][i] / 3;
                }
                if (fabs(left - right) > worst) worst = fabs(left - right);
            }
            CHECK(worst <= 1e-6 * whole);
            for (size_t w = 0; w < 3; w++) { /* e_w = M_w - P^ P^T M_w: nothing of it lies in the subspace; Q_local, not Q */
                const float *e = tensor_residual(g.gc[w], 0);
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
        if (!isa_available((gcomp_isa)isa)) continue;
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
                CHECK(memcmp(tensor_residual(g.gc[1], t), tensor_residual(reference.gc[1], t), 4 * g.n[t]) == 0);
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
        CHECK(memcmp(tensor_residual(a.gc[1], 0), tensor_residual(b.gc[1], 0), 4 * a.n[0]) == 0);
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
    return test_end();
}
