/* Proves of the step: its means, tensors that are skipped, and what a gradient that is refused does to it. */

#include "step.h"

/* ---------------- what a step gives */

static void test_means_are_equal_on_all_workers_bit_for_bit(void)
{
    for (size_t world = 1; world <= WORLD_MAX; world++) {
        group g;
        group_open(&g, world, mixed, MIXED);
        for (uint64_t step = 0; step < 6; step++) {
            group_advance(&g, step);
            CHECK(means_agree(&g));
            for (size_t w = 0; w < world; w++) CHECK(gcomp_step_number(g.gc[w]) == step + 1);
        }
        group_close(&g);
    }
}

static void test_uncompressed_tensors_get_the_plain_mean(void)
{
    for (size_t world = 1; world <= WORLD_MAX; world++) {
        group g;
        group_open(&g, world, mixed, MIXED);
        for (uint64_t step = 0; step < 3; step++) {
            for (size_t w = 0; w < world; w++)  /* few bits, so that sums are exact */
                for (size_t t = 0; t < g.count; t++)
                    for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = floorf(4096.0f * noise(step, w, t, i)) / 256.0f;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t t = VECTOR; t <= TINY; t++) {
                int good = 1;
                for (size_t i = 0; i < g.n[t]; i++) {
                    double sum = 0;
                    for (size_t w = 0; w < world; w++) sum += floorf(4096.0f * noise(step, w, t, i)) / 256.0f;
                    double mean = sum / (double)world, error = fabs((double)g.grad[0][t][i] - mean);
                    /* 3 roundings of terms, 2 of sums, 1 of 1/3; exact where 1/world is */
                    good = good && error <= (world == 3 ? 6 * 16.0 / 16777216.0 : 0.0);
                }
                CHECK(good);
                for (size_t w = 0; w < world; w++) CHECK(tensor_residual(g.gc[w], t) == NULL);
            }
        }
        group_close(&g);
    }
}

static void test_nothing_is_lost_over_200_steps(void)
{
    static const char *const codecs[] = {"none", "fp16", "bf16", "sign:block=64", "sign:block=tensor", "topk:density=0.01",
                                         "topk:density=0.05+bf16", "topk:density=0.02+sign", "powersgd:rank=1",
                                         "powersgd:rank=4", "powersgd:rank=3,alternate=1"};
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
        gcomp_tensor tensor = {"w", 20, 31, 2, GCOMP_F32, NULL};
        enum { STEPS = 200, WORLD = 3 };
        group g;
        tensor.codec = codecs[c];
        group_open(&g, WORLD, &tensor, 1);
        size_t n = g.n[0];
        double *given = (double *)calloc(n, sizeof(double)), *got = (double *)calloc(n, sizeof(double));
        double largest = 0;
        for (uint64_t step = 0; step < STEPS; step++) {
            group_fill(&g, step);
            for (size_t w = 0; w < WORLD; w++)
                for (size_t i = 0; i < n; i++) given[i] += (double)g.grad[w][0][i] / WORLD;
            group_step(&g);
            for (size_t i = 0; i < n; i++) got[i] += (double)g.grad[0][0][i];
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = tensor_residual(g.gc[w], 0);
                for (size_t i = 0; e && i < n; i++)
                    if (fabs((double)e[i]) > largest) largest = fabs((double)e[i]);
            }
        }
        largest += 1.5; /* a gradient */
        double worst = 0;
        for (size_t i = 0; i < n; i++) {
            double rest = 0;
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = tensor_residual(g.gc[w], 0);
                rest += e ? (double)e[i] / WORLD : 0.0;
            }
            double error = fabs(got[i] + rest - given[i]);
            if (error > worst) worst = error;
        }
        /* p, p - decode, products and sums of the mean: 8 roundings of half an ulp a step, of
           numbers up to `largest`. They walk at random: 5 sigma of sqrt(8 * STEPS) steps of
           largest * 2^-24 / sqrt(3). Of low rank r: r times as many. */
        double bound = 5.0 * sqrt(8.0 * STEPS / 3.0) * largest / 16777216.0;
        printf("# %s: worst %.3g, bound %.3g\n", codecs[c], worst, bound);
        CHECK(all_are(&g, GCOMP_OK));
        CHECK(worst <= bound);
        free(given);
        free(got);
        group_close(&g);
    }
}

static void test_without_error_feedback_nothing_is_kept(void)
{
    gcomp_desc desc;
    group a, b;
    memset(&desc, 0, sizeof desc);
    desc.no_error_feedback = 1;
    group_open_with(&a, 2, &desc, gathered, GATHERED, NULL);
    group_open_with(&b, 2, &desc, gathered, GATHERED, NULL);
    group_advance(&a, 0);
    pair_advance(&a, &b, 1);
    CHECK(groups_agree(&a, &b));
    CHECK(tensor_residual(a.gc[0], 0) == NULL);
    CHECK(tensor_residual(a.gc[0], 1) == NULL);
    pair_close(&a, &b);
}

/* ---------------- order */

static void test_tensors_may_become_ready_in_any_order(void)
{
    for (unsigned way = 0; way < 4; way++) {
        group a, b;
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.measure = 1; /* what a schedule measures does not depend on it either */
        group_open_with(&a, 3, &desc, mixed, MIXED, NULL);
        group_open_with(&b, 3, &desc, mixed, MIXED, NULL);
        for (uint64_t step = 0; step < 4; step++) {
            gcomp_statistics one, other;
            group_fill(&a, step);
            group_begin(&a, NULL);
            for (size_t k = 0; k < MIXED; k++) {
                for (size_t w = 0; w < 3; w++) {
                    static const size_t stride[4] = {1, 3, 5, 2};  /* each has no factor in common with 7 */
                    size_t t = (k * stride[way] + w * (way ? 2 : 0)) % MIXED;
                    group_ready(&a, w, way == 0 ? MIXED - 1 - k : t, 0);
                }
                if (way >= 2) group_pump(&a);  /* communication while the backward pass goes on */
            }
            a.backwards = way == 3;
            group_finish(&a);
            CHECK(all_are(&a, GCOMP_OK));
            group_advance(&b, step);
            CHECK(groups_agree(&a, &b));
            for (size_t w = 0; w < 3; w++) {
                CHECK(gcomp_stats(a.gc[w], &one) == GCOMP_OK && gcomp_stats(b.gc[w], &other) == GCOMP_OK);
                CHECK(one.relative_error == other.relative_error && one.relative_error > 0);
                CHECK(one.mean_norm == other.mean_norm);
            }
        }
        pair_close(&a, &b);
    }
}

static void test_a_tensor_skipped_by_all_keeps_its_state(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a, b;
        pair_open(&a, &b, 2, mixed, MIXED, 1);
        float *residual = NULL;
        if (tensor_residual(a.gc[1], t)) {
            residual = (float *)malloc(4 * a.n[t]);
            memcpy(residual, tensor_residual(a.gc[1], t), 4 * a.n[t]);
        }
        group_fill(&a, 1);
        group_step_skipping(&a, NULL, 1u << t);
        CHECK(all_are(&a, GCOMP_OK));
        int untouched = 1;
        for (size_t i = 0; i < a.n[t]; i++) untouched = untouched && a.grad[1][t][i] == gradient(1, 1, t, i);
        CHECK(untouched);
        if (residual) CHECK(memcmp(residual, tensor_residual(a.gc[1], t), 4 * a.n[t]) == 0);
        pair_advance(&a, &b, 2);  /* as if the skipped step had not been */
        for (size_t w = 0; w < 2; w++) {
            CHECK(memcmp(a.grad[w][t], b.grad[w][t], 4 * a.n[t]) == 0);
            if (residual) CHECK(memcmp(tensor_residual(a.gc[w], t), tensor_residual(b.gc[w], t), 4 * a.n[t]) == 0);
        }
        free(residual);
        pair_close(&a, &b);
    }
}

static void test_a_tensor_may_be_skipped_for_ever(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a, b;
        pair_open(&a, &b, 4, mixed, MIXED, 1);
        int good = 1;
        for (uint64_t step = 1; step < 150 && good; step++) { /* 4^75 is beyond float */
            group_fill(&a, step);
            group_step_skipping(&a, NULL, 1u << t);
            good = all_are(&a, GCOMP_OK);
        }
        CHECK(good);
        for (uint64_t step = 1; step < 150; step++) {
            group_fill(&b, step);
            group_step_skipping(&b, NULL, 1u << t);
        }
        CHECK(groups_agree(&a, &b));
        group_advance(&a, 150);
        CHECK(means_agree(&a));
        pair_close(&a, &b);
    }
}

static void test_a_refused_tensor_may_be_skipped_next(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group a;
        group_open(&a, 2, mixed, MIXED);
        group_advance(&a, 0);
        group_fill(&a, 1);
        a.grad[0][t][3] = NAN;
        group_step(&a);
        CHECK(all_are(&a, GCOMP_NOT_FINITE));
        group_fill(&a, 1);
        group_step_skipping(&a, NULL, 1u << t);
        CHECK(all_are(&a, GCOMP_OK));
        group_advance(&a, 2);
        group_close(&a);
    }
}

static void test_a_step_with_every_tensor_skipped_passes(void)
{
    group g;
    group_open(&g, 2, mixed, MIXED);
    group_fill(&g, 0);
    snapshot before = snapshot_take(&g);
    group_step_skipping(&g, NULL, (1u << MIXED) - 1);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(group_equals(&g, &before));
    snapshot_free(&before);
    group_advance(&g, 1);
    CHECK(means_agree(&g));
    group_close(&g);
}

static void test_a_tensor_skipped_by_some_is_a_mismatch(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_advance(&g, 0);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++)
            for (size_t i = 0; i < MIXED; i++) group_ready(&g, w, i, w == 2 && i == t);
        group_finish(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        CHECK(names_worker(gcomp_error(g.gc[0]), 2));
        CHECK(names_worker(gcomp_error(g.gc[1]), 2));
        CHECK(strstr(gcomp_error(g.gc[2]), "skip") != NULL || strstr(gcomp_error(g.gc[2]), "NULL") != NULL);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_step(&g);  /* all saw it: nothing has changed, it can be tried again */
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

/* ---------------- not finite */

static void test_one_bad_gradient_is_refused_by_all_together(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < MIXED; t++) {
        for (size_t place = 0; place < 3; place++) {
            group a, b;
            size_t culprit = (t + place) % 3;
            pair_open(&a, &b, 3, mixed, MIXED, 2);
            group_fill(&a, 2);
            size_t i = place == 0 ? 0 : place == 1 ? a.n[t] - 1 : a.n[t] / 2;
            float good = a.grad[culprit][t][i];
            a.grad[culprit][t][i] = bad[place];
            snapshot before = snapshot_take(&a);
            group_step(&a);
            CHECK(all_are(&a, GCOMP_NOT_FINITE));
            CHECK(group_equals(&a, &before));
            for (size_t w = 0; w < 3; w++) {
                gcomp_statistics stats;
                CHECK(gcomp_stats(a.gc[w], &stats) == GCOMP_OK);
                CHECK(stats.skipped == 1 && stats.steps == 2 && stats.failed == 0);
                CHECK(stats.not_finite == (w == culprit ? 1u : 0u));
                CHECK(gcomp_error(a.gc[w])[0] != 0);
            }
            a.grad[culprit][t][i] = good;
            check_repetition(&a, &b);
            snapshot_free(&before);
            pair_close(&a, &b);
        }
    }
}

static void test_an_overflow_of_scale_times_gradient_is_refused(void)
{
    for (size_t t = 0; t < MIXED; t++) {
        gcomp_step step = step_with(1024.0f, -1, 0);
        group g;
        group_open(&g, 2, mixed, MIXED);
        group_fill(&g, 0);
        g.grad[1][t][g.n[t] / 3] = 3e38f;
        snapshot before = snapshot_take(&g);
        group_step_skipping(&g, &step, 0);
        CHECK(all_are(&g, GCOMP_NOT_FINITE));
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_close(&g);
    }
}

static void test_large_finite_gradients_have_a_finite_mean(void)
{
    static const gcomp_tensor tensors[] = {{"none", 40, 40, 0, GCOMP_F32, "none"}, {"bf16", 40, 40, 0, GCOMP_F32, "bf16"},
                                           {"fp16", 40, 40, 0, GCOMP_F32, "fp16"}, {"sign", 40, 40, 0, GCOMP_F32, "sign"},
                                           {"topk", 40, 40, 0, GCOMP_F32, "topk"}};
    group g;
    group_open(&g, 4, tensors, 5);
    for (size_t w = 0; w < 4; w++)
        for (size_t t = 0; t < 5; t++)
            for (size_t i = 0; i < g.n[t]; i++) g.grad[w][t][i] = 3e38f;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    int finite = 1;
    for (size_t t = 0; t < 5; t++)
        for (size_t i = 0; i < g.n[t]; i++) finite = finite && isfinite(g.grad[0][t][i]);
    CHECK(finite);
    CHECK(fabsf(g.grad[0][0][7] - 3e38f) <= 1e32f);
    group_close(&g);
}

int main(void)
{
    RUN(test_means_are_equal_on_all_workers_bit_for_bit);
    RUN(test_uncompressed_tensors_get_the_plain_mean);
    RUN(test_nothing_is_lost_over_200_steps);
    RUN(test_without_error_feedback_nothing_is_kept);
    RUN(test_tensors_may_become_ready_in_any_order);
    RUN(test_a_tensor_skipped_by_all_keeps_its_state);
    RUN(test_a_tensor_may_be_skipped_for_ever);
    RUN(test_a_refused_tensor_may_be_skipped_next);
    RUN(test_a_step_with_every_tensor_skipped_passes);
    RUN(test_a_tensor_skipped_by_some_is_a_mismatch);
    RUN(test_one_bad_gradient_is_refused_by_all_together);
    RUN(test_an_overflow_of_scale_times_gradient_is_refused);
    RUN(test_large_finite_gradients_have_a_finite_mean);
    return test_end();
}
