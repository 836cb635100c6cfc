/* Proves of rounds that find the largest float or add integers over the workers, and of intsum and randomk, which use such rounds: their results and their faults. */

#include "rounds.h"

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
        const float *e = tensor_residual(g->gc[w], 0);
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
            const float *e = tensor_residual(g->gc[w], 0);
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
        for (size_t i = 0; i < g.n[0]; i++) rest += (double)tensor_residual(g.gc[w], 0)[i] * (double)(i % 7 + 1);
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
    const float *e = tensor_residual(g->gc[w], 0);
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
                            const float *e = tensor_residual(g.gc[w], 0);
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
                        for (int w = 0; w < world; w++) wrong += !sent[i] && tensor_residual(g.gc[w], 0)[i] != p[w][i];
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
        CHECK(tensor_residual(g.gc[0], 0) == NULL);
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
            if (!isa_available((gcomp_isa)isa)) continue;
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
    return test_end();
}
