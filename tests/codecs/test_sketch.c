/* Proves that sketch does what a plain reference does, element by element: hashes, tables, estimates, candidates, mean and
   residual. */

#include "sketch.h"

/* One step of matrices against the reference, to the last bit. */
static void check_step(group *g, size_t matrix, size_t rows, size_t columns, size_t k, size_t few, uint64_t step, float scale)
{
    const hashes h = hashes_of(rows, columns, 11, step);
    const size_t cells = rows * columns, stack = g->n / matrix;
    const float part = 1.0f / (float)g->world;
    float *p[MOST], *table = (float *)malloc(4 * cells + 4), *y = (float *)calloc(g->n, 4);
    unsigned char *taken = (unsigned char *)calloc(g->n, 1);
    ranked *all = (ranked *)malloc(matrix * sizeof *all);
    size_t wrong = 0;
    for (int w = 0; w < g->world; w++) {
        const float *e = tensor_residual(g->gc[w], 0);
        p[w] = (float *)malloc(4 * g->n);
        for (size_t i = 0; i < g->n; i++) {
            volatile float scaled = g->grad[w][i] * scale;
            p[w][i] = scaled + e[i];
        }
    }
    CHECK(group_step(g, scale) == GCOMP_OK);
    CHECK(g->counts[0] == cells * stack && g->counts[1] == few * stack);
    for (size_t s = 0; s < stack; s++) {
        const size_t first = s * matrix;
        size_t found = 0;
        insert(&h, table, p[0] + first, matrix);
        for (size_t i = 0; i < cells; i++) wrong += table[i] * part != g->table[s * cells + i];
        for (size_t i = 0; i < matrix; i++) {
            all[i].size = fabsf(estimate(&h, g->sum + s * cells, i));
            all[i].i = i;
        }
        qsort(all, matrix, sizeof *all, by_size);
        while (found < few && all[found].size > 0) found++;
        qsort(all, found, sizeof *all, by_index);
        for (size_t j = 0; j < found; j++) {
            float sum = p[0][first + all[j].i] * part;
            for (int w = 1; w < g->world; w++) {
                volatile float own = p[w][first + all[j].i] * part;
                sum += own;
            }
            wrong += sum != g->exact[s * few + j];
            y[first + all[j].i] = sum;
            all[j].size = fabsf(sum);
        }
        qsort(all, found, sizeof *all, by_size);
        for (size_t j = 0; j < found; j++) {
            if (j < k) taken[first + all[j].i] = 1;
            else y[first + all[j].i] = 0;
        }
    }
    for (int w = 0; w < g->world; w++) {
        const float *e = tensor_residual(g->gc[w], 0);
        for (size_t i = 0; i < g->n; i++) wrong += g->grad[w][i] != y[i] || e[i] != (taken[i] ? 0 : p[w][i]);
        free(p[w]);
    }
    CHECK(wrong == 0);
    if (wrong) printf("# %d of %d, %d rows, %d columns\n", (int)wrong, (int)g->n, (int)rows, (int)columns);
    free(table);
    free(y);
    free(taken);
    free(all);
}

static void test_a_step_equals_the_plain_reference(void)
{
    static const struct { size_t rows, cols, stack, r, columns, k, few; const char *codec; } c[] = {
        {40, 40, 1, 5, 64, 2, 40, "sketch"},
        {41, 37, 3, 5, 48, 1, 20, "sketch:density=0.0001"},
        {1, 3001, 1, 5, 48, 31, 620, "sketch:density=0.01,columns=48"},
        {1009, 1, 1, 1, 64, 11, 11, "sketch:density=0.01,rows=1,columns=64,candidates=1"},
        {60, 50, 2, 3, 128, 30, 240, "sketch:density=0.01,rows=3,columns=128,candidates=8"},
        {100, 101, 1, 7, 336, 11, 44, "sketch:rows=7,candidates=4"},
        {333, 210, 1, 5, 2224, 70, 1400, "sketch"}, /* sampled, two chunks */
        {600, 1000, 1, 5, 18976, 600, 12000, "sketch"}}; /* several lanes */
    for (size_t t = 0; t < sizeof c / sizeof *c; t++)
        for (int world = 1; world <= MOST; world += t > 5 ? 3 : 1) {
            group g;
            group_open(&g, world, c[t].codec, c[t].rows, c[t].cols, c[t].stack);
            for (uint64_t step = 0; step < 3; step++) {
                for (int w = 0; w < world; w++)
                    for (size_t i = 0; i < g.n; i++) g.grad[w][i] = (t + i) % 11 == 0 ? 0 : cubed();
                check_step(&g, c[t].rows * c[t].cols, c[t].r, c[t].columns, c[t].k, c[t].few, step, step == 1 ? 0.3f : 1.0f);
            }
            for (int w = 0; w < world; w++) /* ties */
                for (size_t i = 0; i < g.n; i++) g.grad[w][i] = 0.5f - tensor_residual(g.gc[w], 0)[i];
            check_step(&g, c[t].rows * c[t].cols, c[t].r, c[t].columns, c[t].k, c[t].few, 3, 1);
            group_close(&g);
        }
}

static void test_zeros_are_a_step_like_any_other(void)
{
    group g;
    group_open(&g, 2, "sketch", 50, 60, 1);
    for (uint64_t step = 0; step < 2; step++) check_step(&g, 3000, 5, 96, 3, 60, step, 1);
    group_close(&g);
}

static void test_tables_are_linear(void)
{
    enum { N = 20000 };
    static float x[N], *tables[3];
    double worst = 0, size = 0;
    size_t cells = 0;
    for (int c = 0; c < 3; c++) {
        group g;
        group_open(&g, 1, "sketch", 200, 100, 1);
        state = 5;
        for (size_t i = 0; i < N; i++) {
            const float a = next_normal(), b = next_normal();
            x[i] = c == 0 ? a : c == 1 ? b : a + b;
        }
        memcpy(g.grad[0], x, sizeof x);
        CHECK(group_step(&g, 1) == GCOMP_OK);
        cells = g.counts[0];
        tables[c] = g.table;
        g.table = NULL;
        group_close(&g);
    }
    for (size_t i = 0; i < cells; i++) {
        worst = fmax(worst, fabs((double)tables[0][i] + (double)tables[1][i] - (double)tables[2][i]));
        size = fmax(size, fabs((double)tables[2][i]));
    }
    CHECK(worst <= 1e-6 * size);
    for (int c = 0; c < 3; c++) free(tables[c]);
}

static void test_few_elements_are_found_exactly(void)
{
    for (int world = 1; world <= MOST; world += 3)
        for (size_t many = 1; many <= 65; many += 64) {
            size_t wrong = 0, found = 0;
            group g;
            float *x;
            group_open(&g, world, "sketch", 255, 256, 1); /* k = 66 */
            x = (float *)calloc(g.n, 4);
            for (size_t j = 0; j < many; j++) x[(size_t)(next_uniform() * (double)g.n)] = 1 + next_normal();
            for (int w = 0; w < world; w++) memcpy(g.grad[w], x, 4 * g.n);
            CHECK(group_step(&g, 1) == GCOMP_OK);
            for (int w = 0; w < world; w++)
                for (size_t i = 0; i < g.n; i++) {
                    wrong += g.grad[w][i] != x[i] || tensor_residual(g.gc[w], 0)[i] != 0;
                    found += g.grad[w][i] != 0;
                }
            CHECK(wrong == 0 && found > 0);
            free(x);
            group_close(&g);
        }
}

static void test_the_mean_loses_nothing_over_the_workers(void)
{
    enum { STEPS = 1000 };
    double in[3] = {0, 0, 0}, out[3] = {0, 0, 0}, rest[3] = {0, 0, 0};
    group g;
    group_open(&g, 4, "sketch:density=0.005", 30, 50, 1);
    for (int step = 0; step < STEPS; step++) {
        for (int w = 0; w < 4; w++)
            for (size_t i = 0; i < g.n; i++) {
                g.grad[w][i] = cubed();
                in[i % 3] += (double)g.grad[w][i];
            }
        CHECK(group_step(&g, 1) == GCOMP_OK);
        for (int w = 1; w < 4; w++) CHECK(memcmp(g.grad[0], g.grad[w], 4 * g.n) == 0);
        for (size_t i = 0; i < g.n; i++) out[i % 3] += 4 * (double)g.grad[0][i];
    }
    for (int w = 0; w < 4; w++)
        for (size_t i = 0; i < g.n; i++) rest[i % 3] += (double)tensor_residual(g.gc[w], 0)[i];
    for (int c = 0; c < 3; c++) CHECK(fabs(in[c] - out[c] - rest[c]) < 0.5);
    group_close(&g);
}

static void test_a_step_that_fails_changes_nothing(void)
{
    static float before[2][2][5000];
    for (int fault = 0; fault < 6; fault++) {
        group g;
        float whole[5000];
        group_open(&g, 2, "sketch:density=0.005", 50, 100, 1);
        state = 9;
        for (int step = 0; step < 2; step++) {
            for (int w = 0; w < 2; w++)
                for (size_t i = 0; i < g.n; i++) g.grad[w][i] = cubed();
            if (step == 0) CHECK(group_step(&g, 1) == GCOMP_OK);
        }
        for (int w = 0; w < 2; w++) {
            memcpy(before[w][0], g.grad[w], 4 * g.n);
            memcpy(before[w][1], tensor_residual(g.gc[w], 0), 4 * g.n);
        }
        if (fault < 3) g.fail_call = fault;
        else if (fault < 5) g.spoil = fault - 2;
        else g.grad[1][77] = NAN;
        CHECK(group_step(&g, 1) == (fault < 3 ? GCOMP_CALLBACK_FAILED : GCOMP_NOT_FINITE));
        g.grad[1][77] = before[1][0][77];
        for (int w = 0; w < 2; w++) {
            CHECK(memcmp(before[w][0], g.grad[w], 4 * g.n) == 0);
            CHECK(memcmp(before[w][1], tensor_residual(g.gc[w], 0), 4 * g.n) == 0);
        }
        g.fail_call = -1;
        g.spoil = 0;
        CHECK(group_step(&g, 1) == GCOMP_OK);
        memcpy(whole, g.grad[0], sizeof whole);
        for (int w = 0; w < 2; w++) CHECK(gcomp_restart(g.gc[w], 1) == GCOMP_OK);
        for (int w = 0; w < 2; w++) { /* the same again from what was there before: the same bits */
            memcpy(g.grad[w], before[w][0], 4 * g.n);
            for (size_t i = 0; i < g.n; i++) g.grad[w][i] += before[w][1][i];
        }
        CHECK(group_step(&g, 1) == GCOMP_OK);
        CHECK(memcmp(whole, g.grad[0], sizeof whole) == 0);
        group_close(&g);
    }
}

static void test_what_is_not_finite_is_refused(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int c = 0; c < 8; c++)
        for (size_t at = 0; at < 5003; at += 5002) {
            group g;
            group_open(&g, 2, c / 4 ? "fetch" : "sketch", 5003, 1, 1);
            if (c % 4 < 3) g.grad[1][at] = bad[c % 4];
            else
                for (size_t i = 0; i < g.n; i++) g.grad[1][i] = 3e38f; /* the cells are not */
            CHECK(group_step(&g, 1) == GCOMP_NOT_FINITE);
            CHECK(c / 4 ? !tensor_residual(g.gc[0], 0) : tensor_residual(g.gc[0], 0)[at] == 0);
            group_close(&g);
        }
}

static void test_sets_and_tasks_give_the_same_bits(void)
{
    static float first[3][600000];
    const gcomp_isa mine = isa;
    for (int run = 0; run < 4; run++) {
        group g;
        isa = run % 2 ? mine : GCOMP_ISA_SCALAR;
        parallel.run = run % 2 ? run_backwards : NULL;
        group_open(&g, 1, run < 2 ? "sketch" : "fetch", 600, 1000, 1);
        state = 3;
        for (int step = 0; step < 2; step++) {
            for (size_t i = 0; i < g.n; i++) g.grad[0][i] = next_normal() * (float)(i % 5);
            CHECK(group_step(&g, 1) == GCOMP_OK);
            if (!(run % 2)) memcpy(first[step], g.grad[0], 4 * g.n);
            CHECK(memcmp(first[step], g.grad[0], 4 * g.n) == 0);
        }
        if (run == 0) memcpy(first[2], tensor_residual(g.gc[0], 0), 4 * g.n);
        if (run == 1) CHECK(memcmp(first[2], tensor_residual(g.gc[0], 0), 4 * g.n) == 0);
        group_close(&g);
    }
    parallel.run = NULL;
    isa = mine;
}

static void test_nine_of_ten_of_the_largest_are_found(void)
{
    enum { K = 1049 };
    double most = 0, got = 0;
    size_t found = 0;
    float *x = (float *)malloc(4 * LARGE), t;
    group g;
    state = 21;
    for (size_t i = 0; i < LARGE; i++) x[i] = cubed();
    t = kth(x, LARGE, K);
    group_open(&g, 1, "sketch", 1024, 1024, 1);
    memcpy(g.grad[0], x, 4 * LARGE);
    CHECK(group_step(&g, 1) == GCOMP_OK);
    for (size_t i = 0; i < LARGE; i++) {
        found += fabsf(x[i]) >= t && g.grad[0][i] != 0;
        most += fabsf(x[i]) >= t ? (double)x[i] * (double)x[i] : 0;
        got += (double)g.grad[0][i] * (double)g.grad[0][i];
    }
    printf("# %d of the %d largest, %.3f of their squares; %.1f times less sent\n", (int)found, K, got / most,
           (double)LARGE / (double)(g.counts[0] + g.counts[1]));
    CHECK(found >= K * 9 / 10 && got > 0.9 * most);
    group_close(&g);
    free(x);
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_a_step_equals_the_plain_reference);
        RUN(test_zeros_are_a_step_like_any_other);
        RUN(test_tables_are_linear);
        RUN(test_few_elements_are_found_exactly);
        RUN(test_the_mean_loses_nothing_over_the_workers);
        RUN(test_a_step_that_fails_changes_nothing);
        RUN(test_what_is_not_finite_is_refused);
        RUN(test_sets_and_tasks_give_the_same_bits);
        RUN(test_nine_of_ten_of_the_largest_are_found);
    }
    return test_end();
}
