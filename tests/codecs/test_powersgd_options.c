/* Proves of powersgd: stacks, the rank and its limits, alternate steps, momentum, saves. */

#include "gcomp_optimizers.h"
#include "powersgd.h"

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
                const float *e = tensor_residual(g.gc[w], 0);
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
                    left += (double)tensor_residual(g.gc[w], 0)[i] / WORLD;
                    right += (double)p[w][i] / WORLD;
                }
                if (fabs(left - right) > worst) worst = fabs(left - right);
            }
            CHECK(worst <= 1e-6 * whole);
            kept = norm(tensor_residual(g.gc[0], 0), COUNT) / norm(p[0], COUNT);
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
                size_t length = save_size(g.gc[w]);
                void *save = malloc(length);
                const void *const saves[1] = {save};
                CHECK(gcomp_save(g.gc[w], save, length, &length) == GCOMP_OK);
                CHECK(gcomp_load(h.gc[w], saves, &length, 1, NULL) == GCOMP_OK);
                free(save);
            }
            CHECK(group_step(&g) == GCOMP_OK);
            if (step < steps) continue;
            CHECK(group_step(&h) == GCOMP_OK);
            for (size_t w = 0; w < WORLD; w++) {
                CHECK(memcmp(g.grad[w][0], h.grad[w][0], 4 * g.n[0]) == 0);
                CHECK(memcmp(tensor_residual(g.gc[w], 0), tensor_residual(h.gc[w], 0), 4 * g.n[0]) == 0);
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
    length = save_size(g.gc[0]);
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
