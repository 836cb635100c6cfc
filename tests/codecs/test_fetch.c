/* Proves that fetch (FetchSGD) does what a plain reference does, and what the manual promises of the hashes of both. */

#include "sketch.h"

/* Also where all is in one column of a matrix, whose width is a multiple of 16. */
static void test_estimates_of_a_row_are_unbiased_and_vary_by_less_than_promised(void)
{
    enum { N = 4096, COLUMNS = 256, SEEDS = 2000 };
    static float x[N], table[COLUMNS];
    static double sum[N];
    for (int column = 0; column < 2; column++) {
        double squares = 0, errors = 0, far = 0;
        memset(sum, 0, sizeof sum);
        for (size_t i = 0; i < N; i++) {
            x[i] = column && i % 64 ? 0 : next_normal();
            squares += (double)x[i] * (double)x[i];
        }
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            const hashes h = hashes_of(1, COLUMNS, seed, 0);
            insert(&h, table, x, N);
            for (size_t i = 0; i < N; i += column ? 64 : 1) {
                const double error = (double)estimate(&h, table, i) - (double)x[i];
                sum[i] += error;
                errors += error * error;
            }
        }
        errors /= (double)SEEDS * (column ? N / 64 : N);
        for (size_t i = 0; i < N; i++) far = fmax(far, fabs(sum[i]) / SEEDS);
        printf("# variance %.4g, promised %.4g; largest mean error %.3g\n", errors, squares / COLUMNS, far);
        CHECK(errors <= 1.03 * squares / COLUMNS);
        CHECK(far <= 5 * sqrt(squares / COLUMNS / SEEDS));
    }
}

/* The memory of fetch shows in the steps that follow: they must be the same in a group that
   failed and in one that did not. */
static void test_a_step_of_fetch_that_fails_changes_nothing(void)
{
    for (int fault = 0; fault < 4; fault++) {
        group g[2];
        for (int c = 0; c < 2; c++) group_open(&g[c], 2, "fetch:density=0.005,momentum=0.8", 50, 100, 1);
        state = 9;
        for (int step = 0; step < 5; step++) {
            float before[2][5000];
            for (int w = 0; w < 2; w++) {
                for (size_t i = 0; i < 5000; i++) before[w][i] = g[0].grad[w][i] = cubed();
                memcpy(g[1].grad[w], before[w], sizeof before[w]);
            }
            if (step == 2) {
                g[1].fail_call = fault < 2 ? fault : -1;
                g[1].spoil = fault == 2;
                if (fault == 3) g[1].grad[1][4999] = INFINITY;
                CHECK(group_step(&g[1], 1) == (fault < 2 ? GCOMP_CALLBACK_FAILED : GCOMP_NOT_FINITE));
                g[1].fail_call = -1;
                g[1].spoil = 0;
                g[1].grad[1][4999] = before[1][4999];
                for (int w = 0; w < 2; w++) CHECK(memcmp(before[w], g[1].grad[w], sizeof before[w]) == 0);
            }
            for (int c = 0; c < 2; c++) CHECK(group_step(&g[c], 1) == GCOMP_OK);
            for (int w = 0; w < 2; w++) CHECK(memcmp(g[0].grad[0], g[1].grad[w], 4 * 5000) == 0);
        }
        for (int c = 0; c < 2; c++) group_close(&g[c]);
    }
}

/* The same error and recall with a hash for each element: what blocks of 16 could cost. With
   2^18 columns nine of ten of the largest 0.1 % are found by their estimates alone, and all of
   them among the candidates. */
static void test_hashes_of_blocks_are_as_good_as_of_elements(void)
{
    enum { K = 1049, RUNS = 2 };
    static const size_t columns[] = {1 << 14, 1 << 16, 1 << 18};
    float *x = (float *)malloc(4 * LARGE), *table = (float *)malloc((size_t)4 * 5 << 18), *near = (float *)malloc(4 * LARGE);
    for (int shape = 0; shape < 3; shape++)
        for (size_t c = 0; c < 3; c++) {
            double error[2] = {0, 0}, recall[2] = {0, 0};
            size_t among = 0;
            float t;
            state = 77;
            if (shape && c != 2) continue;
#ifdef __SANITIZE_ADDRESS__
            if (shape || c) continue; /* each costs a lot there */
#endif
            for (size_t i = 0; i < LARGE; i++) { /* cubes of normals; the same in runs of 16; one column of 1024 large */
                x[i] = cubed();
                if (shape == 1) x[i] = next_uniform() < 0.001 ? 30 : 0;
                if (shape == 1 && i % 16) x[i] = x[i / 16 * 16] + 0.1f * next_normal();
                if (shape == 2 && i % 1024 != 40) x[i] = 0.1f * next_normal();
            }
            t = kth(x, LARGE, K);
            for (uint64_t run = 0; run < RUNS; run++)
                for (int apart = 0; apart < 2; apart++) {
                    double squares = 0, errors = 0;
                    float guess;
                    size_t found = 0;
                    hashes h = hashes_of(5, columns[c], run, 0);
                    h.apart = apart;
                    insert(&h, table, x, LARGE);
                    for (size_t i = 0; i < LARGE; i++) {
                        near[i] = estimate(&h, table, i);
                        squares += (double)x[i] * (double)x[i];
                        errors += ((double)x[i] - (double)near[i]) * ((double)x[i] - (double)near[i]);
                    }
                    if (!shape && c == 2 && !apart) {
                        guess = kth(near, LARGE, 20 * K);
                        for (size_t i = 0; i < LARGE; i++) among += fabsf(x[i]) >= t && fabsf(near[i]) >= guess;
                    }
                    guess = kth(near, LARGE, K);
                    for (size_t i = 0; i < LARGE; i++) found += fabsf(x[i]) >= t && fabsf(near[i]) >= guess;
                    error[apart] += errors / squares / RUNS;
                    recall[apart] += (double)found / K / RUNS;
                }
            printf("# shape %d, %d columns: error^2 %.4f blocks, %.4f elements; recall %.3f, %.3f\n", shape, (int)columns[c],
                   error[0], error[1], recall[0], recall[1]);
            /* runs of 16 meet rarely, but all at once: over 24 keys 0.0096 and 0.0095, over two
               keys anything near */
            CHECK(error[0] <= (shape == 1 ? 1.25 : 1.03) * error[1] && recall[0] >= recall[1] - 0.02);
            CHECK(shape || c != 2 || (recall[0] >= 0.9 && among >= RUNS * K * 99 / 100));
        }
    free(x);
    free(table);
    free(near);
}

/* ---------------- fetch */

/* Compares a step of fetch with the reference, to the last bit, for all matrices. The group
   keeps the tables of the reference. The hashes are those of step 0. */
static void check_fetch(group *g, size_t matrix, size_t rows, size_t columns, size_t k, float momentum, int zeroing, float scale)
{
    const hashes h = hashes_of(rows, columns, 11, 0);
    const size_t cells = rows * columns, stack = g->n / matrix;
    const float part = 1.0f / (float)g->world;
    float *p = (float *)malloc(4 * g->n), *table = (float *)malloc(4 * cells), *y = (float *)calloc(g->n, 4);
    ranked *all = (ranked *)malloc(matrix * sizeof *all);
    size_t wrong = 0;
    if (!g->tables) g->tables = (float *)calloc(2 * stack * cells, 4);
    for (size_t i = 0; i < g->n; i++) p[i] = g->grad[0][i] * scale;
    CHECK(group_step(g, scale) == GCOMP_OK);
    CHECK(g->counts[0] == cells * stack && g->counts[1] == 0);
    for (size_t s = 0; s < stack; s++) {
        const float *sum = g->sum + s * cells;
        float *u = g->tables + 2 * s * cells, *e = u + cells;
        size_t found = 0;
        insert(&h, table, p + s * matrix, matrix);
        for (size_t i = 0; i < cells; i++) {
            volatile float faded = momentum * u[i];
            wrong += table[i] * part != g->table[s * cells + i];
            u[i] = faded + sum[i];
            e[i] += u[i];
        }
        for (size_t i = 0; i < matrix; i++) {
            const float near = estimate(&h, e, i);
            all[i].size = fabsf(near);
            all[i].i = i;
            y[s * matrix + i] = near;
        }
        qsort(all, matrix, sizeof *all, by_size);
        while (found < k && found < matrix && all[found].size > 0) found++;
        for (size_t j = found; j < matrix; j++) y[s * matrix + all[j].i] = 0;
        qsort(all, found, sizeof *all, by_index);
        for (size_t j = 0; j < found; j++)
            for (size_t r = 0; r < rows; r++) {
                int negative;
                const size_t cell = place(&h, all[j].i, r, &negative);
                const float value = y[s * matrix + all[j].i];
                if (zeroing) u[cell] = e[cell] = 0;
                else e[cell] -= negative ? -value : value;
            }
    }
    for (int w = 0; w < g->world; w++)
        for (size_t i = 0; i < g->n; i++) wrong += g->grad[w][i] != y[i];
    CHECK(wrong == 0);
    if (wrong) printf("# fetch: %d of %d, %d rows, %d columns\n", (int)wrong, (int)g->n, (int)rows, (int)columns);
    free(p);
    free(table);
    free(y);
    free(all);
}

static void test_a_step_of_fetch_equals_the_plain_reference(void)
{
    static const struct { size_t rows, cols, stack, r, columns, k; float momentum; int zeroing; const char *codec; } c[] = {
        {40, 40, 1, 5, 64, 2, 0.9f, 1, "fetch"},
        {41, 37, 3, 5, 32, 16, 0.5f, 0, "fetch:density=0.01,columns=32,momentum=0.5,zeroing=0"},
        {1009, 1, 1, 1, 64, 11, 0, 1, "fetch:density=0.01,rows=1,columns=64,momentum=0"},
        {100, 101, 1, 7, 336, 11, 0.9f, 0, "fetch:rows=7,zeroing=0"},
        {333, 210, 1, 3, 2224, 70, 0.9f, 1, "fetch:rows=3"}};
    for (size_t t = 0; t < sizeof c / sizeof *c; t++)
        for (int world = 1; world <= MOST; world += t > 3 ? 3 : 1) {
            group g;
            group_open(&g, world, c[t].codec, c[t].rows, c[t].cols, c[t].stack);
            for (int step = 0; step < 6; step++) {
                for (int w = 0; w < world; w++) /* then ties, then zeros: what is in the tables still comes */
                    for (size_t i = 0; i < g.n; i++) g.grad[w][i] = step == 4 ? 0.5f : step == 5 || i % 11 == 0 ? 0 : cubed();
                check_fetch(&g, c[t].rows * c[t].cols, c[t].r, c[t].columns, c[t].k, c[t].momentum, c[t].zeroing,
                            step == 1 ? 0.3f : 1.0f);
            }
            group_close(&g);
        }
}

/* Without zeroing all that came in is in the tables or was delivered, after 1000 steps too: the
   next estimates show it. */
static void test_fetch_keeps_what_it_does_not_deliver(void)
{
    enum { STEPS = 1000, N = 640, CELLS = 5 * 48 };
    const hashes h = hashes_of(5, 48, 11, 0);
    static double kept[CELLS], before[N];
    static float rest[CELLS];
    double largest = 0;
    group g;
    size_t shown = 0;
    memset(kept, 0, sizeof kept);
    group_open(&g, 2, "fetch:density=0.005,columns=48,momentum=0,zeroing=0", 32, 20, 1);
    for (int step = 0; step <= STEPS; step++) {
        for (size_t i = 0; i < N; i++) {
            before[i] = 0;
            for (int w = 0; w < 2; w++) {
                g.grad[w][i] = step == STEPS ? 0 : cubed();
                before[i] += 0.5 * (double)g.grad[w][i];
            }
        }
        for (size_t c = 0; c < CELLS; c++) rest[c] = (float)kept[c];
        CHECK(group_step(&g, 1) == GCOMP_OK);
        for (size_t i = 0; i < N; i++)
            for (size_t r = 0; r < 5; r++) {
                int negative;
                const size_t cell = place(&h, i, r, &negative);
                kept[cell] += (negative ? -1 : 1) * (before[i] - (double)g.grad[0][i]);
            }
    }
    for (size_t c = 0; c < CELLS; c++) largest = fmax(largest, fabs((double)rest[c]));
    for (size_t i = 0; i < N; i++) {
        shown += g.grad[0][i] != 0;
        CHECK(g.grad[0][i] == 0 || fabs((double)g.grad[0][i] - (double)estimate(&h, rest, i)) <= 1e-4 * largest);
    }
    CHECK(shown == 4 && largest > 1); /* k = 3.2, up */
    group_close(&g);
}

/* Where no two elements meet it is top-k of the mean with plain error feedback. */
static void test_fetch_without_momentum_and_collisions_is_topk_with_feedback(void)
{
    enum { N = 20000, MANY = 24, K = 8 };
    static float e[N];
    ranked all[MANY];
    size_t wrong = 0, sent = 0, chosen[MANY];
    group g;
    memset(e, 0, sizeof e);
    group_open(&g, 2, "fetch:density=0.0004,rows=7,columns=2720,momentum=0", 100, 200, 1);
    for (size_t j = 0; j < MANY; j++) chosen[j] = N / MANY * j + 5;
    for (int step = 0; step < 30; step++) {
        memset(g.grad[0], 0, 4 * N);
        memset(g.grad[1], 0, 4 * N);
        for (size_t j = 0; j < MANY; j++) {
            for (int w = 0; w < 2; w++) g.grad[w][chosen[j]] = (float)(int)(64 * cubed());
            e[chosen[j]] += 0.5f * (g.grad[0][chosen[j]] + g.grad[1][chosen[j]]); /* exact: small whole numbers */
            all[j].size = fabsf(e[chosen[j]]);
            all[j].i = chosen[j];
        }
        qsort(all, MANY, sizeof *all, by_size);
        CHECK(group_step(&g, 1) == GCOMP_OK);
        for (size_t j = 0; j < MANY; j++) {
            wrong += g.grad[0][all[j].i] != (j < K ? e[all[j].i] : 0);
            sent += j < K && e[all[j].i] != 0;
            if (j < K) e[all[j].i] = 0;
        }
    }
    CHECK(wrong == 0 && sent > 200);
    group_close(&g);
}

/* Workers keep nothing of their own: they may trade places, and some may have nothing to say. */
static void test_any_workers_may_take_part_in_fetch(void)
{
    group a, b, c;
    group_open(&a, 2, "fetch", 50, 60, 1);
    group_open(&b, 2, "fetch", 50, 60, 1);
    group_open(&c, 4, "fetch", 50, 60, 1);
    for (int step = 0; step < 8; step++) {
        size_t wrong = 0;
        for (size_t i = 0; i < a.n; i++)
            for (int w = 0; w < 2; w++) {
                a.grad[w][i] = b.grad[w ^ (step & 1)][i] = c.grad[(w + step) % 4][i] = cubed();
                c.grad[(w + 2 + step) % 4][i] = 0;
            }
        CHECK(group_step(&a, 1) == GCOMP_OK && group_step(&b, 1) == GCOMP_OK && group_step(&c, 1) == GCOMP_OK);
        for (size_t i = 0; i < a.n; i++) {
            wrong += a.grad[0][i] != b.grad[0][i];
            wrong += fabsf(a.grad[0][i] - 2 * c.grad[0][i]) > 1e-5f * fabsf(a.grad[0][i]);
        }
        CHECK(wrong == 0);
    }
    group_close(&a);
    group_close(&b);
    group_close(&c);
}

static void test_tables_of_fetch_saturate_and_its_smallest_numbers_count(void)
{
    for (int zeroing = 0; zeroing < 2; zeroing++) {
        size_t bad = 0, sent = 0;
        group g;
        group_open(&g, 1, zeroing ? "fetch:columns=1600" : "fetch:columns=1600,zeroing=0", 100, 100, 1);
        for (int step = 0; step < 20; step++) { /* k = 10: more than one step brings */
            memset(g.grad[0], 0, 4 * g.n);
            for (size_t i = 17; i < g.n; i += 700) g.grad[0][i] = 3e38f;
            CHECK(group_step(&g, 1) == GCOMP_OK);
            for (size_t i = 0; i < g.n; i++) bad += !(fabsf(g.grad[0][i]) <= 3.4028235e38f);
            sent += g.grad[0][17] >= 3e38f;
        }
        CHECK(bad == 0 && sent >= 10);
        CHECK(gcomp_residual_set(g.gc[0], 0, NULL) == GCOMP_OK);
        memset(g.grad[0], 0, 4 * g.n);
        g.grad[0][33] = 1e-45f;
        CHECK(group_step(&g, 1) == GCOMP_OK && g.grad[0][33] > 0 && g.grad[0][17] == 0); /* nothing larger is left */
        group_close(&g);
    }
}

static void test_columns_are_a_multiple_of_16(void)
{
    gcomp_codec codec;
    char why[200], text[64];
    CHECK(gcomp_codec_parse(&codec, "sketch:columns=40", why, sizeof why) == GCOMP_BAD_CODEC && strstr(why, "multiple of 16"));
    CHECK(gcomp_codec_parse(&codec, "sketch:columns=16.5", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "sketch:rows=4", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "topk+sketch", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "fetch:columns=40", why, sizeof why) == GCOMP_BAD_CODEC && strstr(why, "multiple of 16"));
    CHECK(gcomp_codec_parse(&codec, "fetch:momentum=1", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "fetch:candidates=4", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "topk+fetch", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "sketch:rows=3,columns=262144", why, sizeof why) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "sketch:rows=3,columns=262144"));
    CHECK(gcomp_codec_parse(&codec, "sketch:columns=auto", why, sizeof why) == GCOMP_OK);
    gcomp_codec_format(&codec, text, sizeof text);
    CHECK(!strcmp(text, "sketch") && gcomp_bound(&codec, 100, NULL) == 0);
    for (size_t n = 1; n < 3000000; n += n / 3 + 1) CHECK(scratch_of(&codec, n) <= GCOMP_SCRATCH(n));
    CHECK(gcomp_codec_parse(&codec, "sketch:density=1,candidates=64", why, sizeof why) == GCOMP_OK);
    for (size_t n = 1; n < 3000000; n += n / 3 + 1) CHECK(scratch_of(&codec, n) <= GCOMP_SCRATCH(n));
}

int main(void)
{
    const char *only = getenv("GCOMP_ISA");
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_a_step_of_fetch_equals_the_plain_reference);
        RUN(test_a_step_of_fetch_that_fails_changes_nothing);
        RUN(test_fetch_keeps_what_it_does_not_deliver);
        RUN(test_fetch_without_momentum_and_collisions_is_topk_with_feedback);
        RUN(test_any_workers_may_take_part_in_fetch);
        RUN(test_tables_of_fetch_saturate_and_its_smallest_numbers_count);
    }
    if (only && *only && strcmp(only, "scalar")) return test_end(); /* the rest is the same on all */
    RUN(test_estimates_of_a_row_are_unbiased_and_vary_by_less_than_promised);
    RUN(test_hashes_of_blocks_are_as_good_as_of_elements);
    RUN(test_columns_are_a_multiple_of_16);
    return test_end();
}
