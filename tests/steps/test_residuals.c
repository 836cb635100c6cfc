/* Proves of small residuals (desc.residual): a group of workers that keeps them as bf16 or int8 does in each step what a group with floats does that rounds them; and of residuals that decay. */

#include "residuals.h"

static const char *const kinds[] = {"fp32", "bf16", "int8"};

/* Are bf16 residuals of this codec rounded to nearest? Of others, and int8, they are rounded up or down at random. */
static int keeps_to_nearest(const char *kind, const char *codec)
{
    static const char *const names[] = {"sign", "onebit", "int", "fp8", "mx", "nvfp4", "e3m0", "nf4", "lloyd"};
    const size_t length = strcspn(codec, ":+");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (length == strlen(names[i]) && !strncmp(codec, names[i], length)) return !strcmp(kind, "bf16");
    return 0;
}

/* The bf16 on both sides of x. */
static int is_beside(float kept, float x)
{
    uint32_t low, high;
    float a, b;
    if (kept == plain_bf16(x)) return 1;
    memcpy(&low, &x, 4);
    high = low & 0xffffu ? (low & 0xffff0000u) + 0x10000u : low;
    low &= 0xffff0000u;
    memcpy(&a, &low, 4);
    memcpy(&b, &high, 4);
    return kept == a || kept == b;
}

/* How many of these numbers are not x, rounded once as they are kept. */
static size_t not_rounded(const char *kind, const char *codec, const float *kept, const float *x, size_t n)
{
    static float plain[MOST_ROOM];
    size_t bad = 0;
    memcpy(plain, x, 4 * n);
    plain_keep(kind, plain, n);
    if (!strcmp(kind, "fp32") || keeps_to_nearest(kind, codec)) return memcmp(kept, plain, 4 * n) != 0;
    double most = 0; /* of the block of 128 */
    for (size_t i = 0; i < n; i++) {
        if (i % 128 == 0) most = 0;
        for (size_t j = i; i % 128 == 0 && j < i + 128 && j < n; j++) most = fmax(most, fabs((double)x[j]));
        if (!strcmp(kind, "bf16")) bad += !is_beside(kept[i], x[i]);
        else bad += !(fabs((double)kept[i] - (double)x[i]) <= most / 127 * (1 + 1e-4) + 2e-45 * 128) || (x[i] == 0 && kept[i] != 0);
    }
    return bad;
}

/* ---------------- a residual is set */

/* Sets the residual of tensor 0 from n floats that lie alone in memory: the sanitizers see one float too far. */
static gcomp_result set_alone(gcomp *gc, const float *from, size_t n)
{
    float *alone = (float *)malloc(4 * n);
    memcpy(alone, from, 4 * n);
    gcomp_result result = gcomp_residual_set(gc, 0, alone);
    free(alone);
    return result;
}

static void test_a_residual_that_is_set_is_kept_as_its_kind_keeps_it(void)
{
    static const size_t sizes[] = {1, 15, 16, 127, 128, 129, 500, 513, 2000};
    static const float largest[] = {FLT_MAX, 1e-45f, 3.3e38f, 0};
    static float from[MOST_ROOM], kept[MOST_ROOM], now[MOST_ROOM];
    for (int k = 0; k < 3; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int large = 0; large < 2; large++) {
                const size_t n[] = {sizes[s]};
                const char *const codecs[] = {"topk:density=0.1"};
                const gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
                group g;
                group_open(&g, 2, &desc, codecs, n, 1);
                for (size_t i = 0; i < *n; i++) from[i] = large ? (i % 2 ? 1.0f : -1.0f) * largest[i % 4] : gradient_at(0, 1, 0, i);
                CHECK(set_alone(g.gc[0], from, *n) == GCOMP_OK && gcomp_residual_get(g.gc[0], 0, now) == GCOMP_OK);
                memcpy(kept, from, 4 * *n);
                plain_keep(kinds[k], kept, *n);
                CHECK(!memcmp(now, kept, 4 * *n));
                group_close(&g);
            }
}

/* A step after the residual was set is the step of the worker that it came from. */
static void test_a_worker_goes_on_with_the_residuals_of_another(void)
{
    static float e[MOST_ROOM];
    const size_t n[] = {900, 2000};
    const char *const codecs[] = {"topk:density=0.1", "int:bits=4"};
    for (int k = 0; k < 3; k++) {
        const gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
        group a, b;
        group_open(&a, 3, &desc, codecs, n, 2);
        group_open(&b, 3, &desc, codecs, n, 2);
        for (uint64_t step = 0; step < 3; step++) {
            group_fill(&a, step);
            group_step(&a);
        }
        for (size_t w = 0; w < 3; w++) {
            CHECK(gcomp_restart(b.gc[w], 3) == GCOMP_OK);
            for (size_t t = 0; t < 2; t++)
                CHECK(gcomp_residual_get(a.gc[w], t, e) == GCOMP_OK && gcomp_residual_set(b.gc[w], t, e) == GCOMP_OK);
        }
        group_fill(&a, 3);
        group_fill(&b, 3);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        for (size_t w = 0; w < 3; w++) CHECK(digest(&a, w) == digest(&b, w));
        group_close(&a);
        group_close(&b);
    }
}

static void test_a_residual_that_cannot_be_set_is_left_alone(void)
{
    static float e[900], now[900];
    const size_t n[] = {900};
    const char *const codecs[] = {"topk:density=0.1"};
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
        uint64_t before;
        group g;
        group_open(&g, 2, &desc, codecs, n, 1);
        group_fill(&g, 0);
        group_step(&g);
        before = digest(&g, 0);
        CHECK(gcomp_residual_set(NULL, 0, e) == GCOMP_INVALID_ARGUMENT && gcomp_residual_set(g.gc[0], 1, e) == GCOMP_INVALID_ARGUMENT);
        for (size_t i = 0; i < 3; i++) {
            e[899] = bad[i];
            CHECK(gcomp_residual_set(g.gc[0], 0, e) == GCOMP_NOT_FINITE && strstr(gcomp_error(g.gc[0]), "'a'"));
        }
        e[899] = 0;
        CHECK(gcomp_step_begin(g.gc[0], NULL) == GCOMP_OK && gcomp_residual_set(g.gc[0], 0, e) == GCOMP_WRONG_STATE);
        CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK && digest(&g, 0) == before);
        CHECK(gcomp_residual_set(g.gc[0], 0, e) == GCOMP_OK && gcomp_residual_get(g.gc[0], 0, now) == GCOMP_OK && !memcmp(e, now, sizeof e));
        group_close(&g);
        desc.no_error_feedback = 1;
        group_open(&g, 2, &desc, codecs, n, 1);
        CHECK(gcomp_residual_set(g.gc[0], 0, e) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[0]), "keeps no residual"));
        group_close(&g);
    }
}

/* ---------------- the same steps with floats */

/* Gives the group b, which keeps floats, the residuals of a. */
static void copy_residuals(group *a, group *b)
{
    for (size_t w = 0; w < a->world; w++)
        for (size_t t = 0; t < a->count; t++) {
            float *to = (float *)(uintptr_t)tensor_residual(b->gc[w], t);
            CHECK(tensor_residual(a->gc[w], t) == NULL);
            if (to) CHECK(gcomp_residual_get(a->gc[w], t, to) == GCOMP_OK);
            else CHECK(gcomp_residual_get(a->gc[w], t, (float[1]){0}) == GCOMP_WRONG_STATE);
        }
}

/* After a step of both: the same means, and the residuals of b rounded. Returns how many elements wait in residuals. */
static size_t compare(group *a, group *b, const char *kind, const char *what)
{
    static float kept[MOST_ROOM];
    size_t wait = 0, means = 0, residuals = 0;
    for (size_t w = 0; w < a->world; w++)
        for (size_t t = 0; t < a->count; t++) {
            const float *e = tensor_residual(b->gc[w], t);
            means += memcmp(a->grad[w][t], b->grad[w][t], 4 * a->n[t]) != 0;
            if (!e) continue;
            CHECK(gcomp_residual_get(a->gc[w], t, kept) == GCOMP_OK);
            residuals += not_rounded(kind, what, kept, e, a->n[t]);
            for (size_t i = 0; i < a->n[t]; i++) wait += kept[i] != 0;
        }
    if (means || residuals) printf("# %s, %s, world %d: %d means, %d residuals differ\n", what, kind, (int)a->world, (int)means, (int)residuals);
    CHECK(means == 0 && residuals == 0);
    return wait;
}

/* Takes the same steps with small residuals and with floats. Returns how many elements waited. */
static size_t twins(const char *kind, const gcomp_desc *base, size_t world, const char *const *codecs, const size_t *n, size_t count,
                    int steps, const char *what)
{
    gcomp_desc small = *base, floats = *base;
    gcomp_statistics x, y;
    size_t wait = 0;
    group a, b;
    small.residual = kind;
    floats.residual = "fp32";
    group_open(&a, world, &small, codecs, n, count);
    group_open(&b, world, &floats, codecs, n, count);
    for (int step = 0; step < steps; step++) {
        a.step.epoch = b.step.epoch = (uint32_t)step;
        a.step.scale = b.step.scale = step == 1 ? 0.5f : 1;
        group_fill(&a, (uint64_t)step);
        group_fill(&b, (uint64_t)step);
        copy_residuals(&a, &b);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        wait += compare(&a, &b, kind, what);
        CHECK(gcomp_stats(a.gc[0], &x) == GCOMP_OK && gcomp_stats(b.gc[0], &y) == GCOMP_OK);
        CHECK(x.mean_norm == y.mean_norm && fabs(x.relative_error - y.relative_error) <= 0.02 * y.relative_error);
        CHECK(fabs(x.residual_norm - y.residual_norm) <= 0.02 * y.residual_norm);
    }
    group_close(&a);
    group_close(&b);
    return wait;
}

static const size_t shapes[][MOST_TENSORS] = {{2580, 300, 129}, {1, 2047, 640}, {16, 127, 1301}, {128, 1025, 260}};

static void test_steps_are_those_of_floats_and_residuals_are_rounded(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codecs[] = {codec_list[c].text, codec_list[c].text, codec_list[c].text};
        size_t wait = 0;
        for (int k = 1; k < 3; k++)
            for (size_t world = 1; world <= 3; world += 2) {
                gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
                if (world == 3) desc.parallel.run = run_backwards, desc.measure = 1;
                wait += twins(kinds[k], &desc, world, codecs, shapes[(c + world) % 4], 3, 4, codec_list[c].text);
            }
        if (wait == 0 && codec_list[c].steps) printf("# keeps nothing: %s\n", codec_list[c].text);
    }
}

static void test_residuals_are_rounded_whatever_makes_the_mean(void)
{
    static const gcomp_aggregate ways[] = {GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_TWO_SHOT, GCOMP_AGGREGATE_SCATTER};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codecs[] = {codec_list[c].text, codec_list[c].text, codec_list[c].text};
        if (!codec_list[c].steps) continue;
        for (int k = 1; k < 3; k++)
            for (size_t way = 0; way < 3; way++) {
                gcomp_desc desc = desc_of(NULL, ways[way]);
                const gcomp_tensor tensor = tensor_of(0, shapes[c % 4][0], codec_list[c].text);
                desc.measure = 1;
                if (gcomp_memory_needed(&desc, &tensor, 1) == 0) continue; /* not every codec can be scattered */
                (void)twins(kinds[k], &desc, 4, codecs, shapes[c % 4], 3, 3, codec_list[c].text);
            }
    }
}

/* Two ranges of others that hold the same are sent alike, and what is left of them is rounded with other random numbers. */
static void test_each_range_is_rounded_with_numbers_of_its_own(void)
{
    static const size_t n[1] = {3 * 1024};
    static const char *const codecs[1] = {"sign:block=128"};
    static float e[3 * 1024];
    gcomp_desc desc = desc_of("int8", GCOMP_AGGREGATE_TWO_SHOT);
    size_t differ = 0;
    group g;
    group_open(&g, 3, &desc, codecs, n, 1);
    for (size_t w = 0; w < 3; w++)
        for (size_t i = 0; i < n[0]; i++) ((float *)g.grad[w][0])[i] = some_normal(i % 1024 + 5000 * w);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
    for (size_t i = 0; i < 1024; i++) {
        differ += e[1024 + i] != e[2048 + i];
        CHECK(fabsf(e[1024 + i] - e[2048 + i]) < 0.1f); /* a step of the bytes, and not more */
    }
    CHECK(differ > 300 && differ < 800);
    group_close(&g);
}

/* Casts that the transport sums as halves. */
static void test_residuals_of_summed_casts_are_rounded(void)
{
    static const char *const codecs[] = {"fp16", "bf16"};
    for (size_t c = 0; c < 2; c++)
        for (int k = 1; k < 3; k++) {
            const char *const all[] = {codecs[c], codecs[c], codecs[c]};
            gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
            desc.comm.allreduce_dtypes |= 1u << GCOMP_F16 | 1u << GCOMP_BF16;
            desc.measure = 1;
            CHECK(twins(kinds[k], &desc, 3, all, shapes[0], 3, 4, codecs[c]) > 0);
        }
}

/* Tensors that move along their list of codecs keep their residual; buckets; gTop-k. */
static void test_residuals_stay_when_codecs_change(void)
{
    static const char *const codecs[MOST_TENSORS] = {NULL, NULL, NULL};
    static const char *const lists[][2] = {{"topk:density=0.02", "warmup:epochs=2"},
                                           {"none|sign|topk:density=0.1", "warmup:epochs=2"},
                                           {"topk:density=0.3|int:bits=4|powersgd:rank=2", "warmup:epochs=2"},
                                           {"topk:density=0.1,global=1", NULL},
                                           {"sign", NULL}};
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (int k = 1; k < 3; k++) {
            gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
            desc.codec = lists[l][0];
            desc.schedule = lists[l][1];
            desc.bucket_bytes = 4000;
            CHECK(twins(kinds[k], &desc, 3, codecs, shapes[0], 3, 5, lists[l][0]) > 0);
        }
}

/* ---------------- errors of rounding */

static void test_what_rounding_changes_is_bounded(void)
{
    for (int shape = 0; shape < 8; shape++)
        for (int k = 1; k < 3; k++) {
            static const size_t n[1] = {1001};
            static const char *const codecs[2][1] = {{"topk:density=0.001"}, {"sign"}};
            const char *const *codec = codecs[shape % 2];
            gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
            float kept[1001];
            group g;
            size_t bad = 0;
            group_open(&g, 1, &desc, codec, n, 1);
            for (size_t i = 0; i < n[0]; i++) g.grad[0][0][i] = shaped_gradient(shape, i, n[0]);
            CHECK(gcomp_commit(g.gc[0], 0, g.grad[0][0], NULL, 0, NULL, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_residual_get(g.gc[0], 0, kept) == GCOMP_OK);
            for (size_t i = 0; i < n[0]; i++) {
                double most = 0, x = (double)g.grad[0][0][i], error = fabs((double)kept[i] - x);
                for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128 && j < n[0]; j++)
                    most = fmax(most, fabs((double)g.grad[0][0][j]));
                bad += isfinite(kept[i]) == 0;
                if (k == 1) bad += error > fabs(x) / (shape % 2 ? 256 : 128) && error > 1e-40;
                else bad += error > most / 127 * (1 + 1e-5) + 2e-45 * 128;
            }
            if (bad) printf("# shape %d, %s: %d elements\n", shape, kinds[k], (int)bad);
            CHECK(bad == 0);
            group_close(&g);
        }
}

/* What elements of each size get in the end of what is due to them, in the mean: *share. The gradient stays the same. Two workers. */
static void shares(const char *text, const char *kind, double share[3])
{
    enum { N = 640, STEPS = 1200 };
    static const size_t n[1] = {N};
    static const float sizes[3] = {1, 0.25f, 0.0625f};
    static double sent[N];
    static float grad[N];
    gcomp_desc desc = desc_of(kind, GCOMP_AGGREGATE_AUTO);
    size_t count[3] = {0, 0, 0};
    group g;
    group_open(&g, 2, &desc, &text, n, 1);
    for (size_t i = 0; i < N; i++) {
        grad[i] = sizes[i % 3] * (float)(0.7 + 0.3 * (double)(mix(i) % 1000) / 1000) * (mix(i) >> 40 & 1 ? 1.0f : -1.0f);
        sent[i] = 0;
    }
    for (int step = 0; step < STEPS; step++) {
        for (int w = 0; w < 2; w++) memcpy(g.grad[w][0], grad, sizeof grad);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t i = 0; i < N; i++) sent[i] += (double)g.grad[0][0][i];
    }
    share[0] = share[1] = share[2] = 0;
    for (size_t i = 0; i < N; i++) share[i % 3] += sent[i] / (STEPS * (double)grad[i]), count[i % 3]++;
    for (int s = 0; s < 3; s++) share[s] /= (double)count[s];
    group_close(&g);
}

/* Elements that are small beside the others of their block get what they get with residuals of floats. */
static void test_small_elements_get_their_due(void)
{
    static const char *const texts[] = {"randomk:density=0.01", "blocktopk:density=0.05,block=16", "topk:density=0.02", "sign",
                                        "onebit", "twobit:threshold=20", "twobit", "threshold1", "int:bits=2", "int:bits=4",
                                        "strom:threshold=20", "adacomp", "dryden", "powersgd:rank=2", "eden:feedback=1",
                                        "sketch:density=0.01,columns=64"};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
        double due[3], got[3];
        shares(texts[c], "fp32", due);
        for (int k = 1; k < 3; k++) {
            shares(texts[c], kinds[k], got);
            const int fair = fabs(got[0] - due[0]) < 0.05 && fabs(got[1] - due[1]) < 0.05 && fabs(got[2] - due[2]) < 0.05;
            if (!fair)
                printf("# %s, %s: %.3f %.3f %.3f, with fp32 %.3f %.3f %.3f\n", texts[c], kinds[k], got[0], got[1], got[2], due[0],
                       due[1], due[2]);
            CHECK(fair);
        }
    }
}

/* The same bits on each instruction set. */
static void test_residuals_are_the_same_on_all_instruction_sets(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.05", "twobit", "ecsq:bits=3.8"};
    for (size_t c = 0; c < 4; c++)
        for (int k = 1; k < 3; k++)
            for (int decays = 0; decays < 2; decays++) {
                uint64_t first = 0;
                for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++) {
                    const char *const codecs[] = {texts[c], texts[c], texts[c]};
                    gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
                    group g;
                    if (!isa_is_wanted((gcomp_isa)isa)) continue;
                    desc.isa = (gcomp_isa)isa;
                    desc.decay = decays ? 0.99f : 0;
                    group_open(&g, 2, &desc, codecs, shapes[0], 3);
                    for (uint64_t step = 0; step < 4; step++) {
                        group_fill(&g, step);
                        group_step(&g);
                        CHECK(all_are(&g, GCOMP_OK));
                    }
                    const uint64_t found = digest(&g, 0) ^ digest(&g, 1) * 3;
                    CHECK(first == 0 || first == found);
                    first = found;
                    group_close(&g);
                }
            }
}

/* ---------------- one tensor, with any transport */

static void test_tensors_alone_keep_small_residuals(void)
{
    static const char *const texts[] = {"sign", "ecsq:bits=3.8", "topk:density=0.05", "eden:bits=2,feedback=1", "fp8"};
    static const size_t n[1] = {1333};
    static uint8_t bytes[2][GCOMP_BOUND(1333)];
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++)
        for (int k = 1; k < 5; k++) {
            const char *const kind = kinds[1 + k % 2];
            gcomp_desc small = desc_of(kind, GCOMP_AGGREGATE_AUTO), floats = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
            group a, b;
            types[0] = k < 3 ? GCOMP_F32 : GCOMP_BF16;
            small.parallel.run = run_backwards;
            group_open(&a, 1, &small, texts + c, n, 1);
            group_open(&b, 1, &floats, texts + c, n, 1);
            for (uint64_t step = 0; step < 6; step++) {
                group *const both[] = {&a, &b};
                size_t length[2] = {0, 0};
                group_fill(&a, step);
                group_fill(&b, step);
                copy_residuals(&a, &b);
                for (int i = 0; i < 2; i++) {
                    const void *const payload[] = {bytes[i]};
                    gcomp *gc = both[i]->gc[0];
                    float *grad = both[i]->grad[0][0];
                    if (step != 3) CHECK(gcomp_compress(gc, 0, step, grad, bytes[i], sizeof bytes[i], &length[i]) == GCOMP_OK);
                    CHECK(gcomp_commit(gc, 0, grad, step == 3 ? NULL : bytes[i], length[i], payload, &length[i], step % 2 == 0) == GCOMP_OK);
                }
                CHECK(length[0] == length[1] && !memcmp(bytes[0], bytes[1], length[0]));
                (void)compare(&a, &b, kind, texts[c]);
                if (step != 4) continue; /* the payload was lost after all */
                copy_residuals(&a, &b);
                bytes[0][5] ^= 1;
                CHECK(gcomp_give_back(a.gc[0], 0, bytes[0], length[0]) != GCOMP_OK);
                bytes[0][5] ^= 1;
                for (int i = 0; i < 2; i++) CHECK(gcomp_give_back(both[i]->gc[0], 0, bytes[i], length[i]) == GCOMP_OK);
                (void)compare(&a, &b, kind, texts[c]);
            }
            CHECK(gcomp_residual_set(a.gc[0], 0, NULL) == GCOMP_OK && gcomp_residual_set(b.gc[0], 0, NULL) == GCOMP_OK);
            CHECK(compare(&a, &b, kind, texts[c]) == 0);
            types[0] = GCOMP_F32;
            group_close(&a);
            group_close(&b);
        }
}

/* ---------------- residuals that decay */

/* After a step of both from the same residuals: those of a are 3/4 of those of b, rounded once. */
static void compare_decayed(const group *a, const group *b, const char *kind, const char *what)
{
    static float kept[MOST_ROOM], plain[MOST_ROOM];
    for (size_t w = 0; w < a->world; w++)
        for (size_t t = 0; t < a->count; t++) {
            const size_t bytes = 4 * a->n[t];
            const float *e = tensor_residual(b->gc[w], t);
            CHECK(!memcmp(a->grad[w][t], b->grad[w][t], bytes));
            if (!e) continue;
            CHECK(gcomp_residual_get(a->gc[w], t, kept) == GCOMP_OK);
            /* dct has a decay of its own, which counts instead */
            for (size_t i = 0; i < a->n[t]; i++) plain[i] = strncmp(what, "dct", 3) ? 0.75f * e[i] : e[i];
            const int same = not_rounded(kind, what, kept, plain, a->n[t]) == 0;
            if (!same) printf("# %s, %s, world %d: the residual of tensor %d\n", what, kind, (int)a->world, (int)t);
            CHECK(same);
        }
}

static void decay(const char *kind, const gcomp_desc *base, size_t world, const char *codec, const size_t *n)
{
    const char *const codecs[] = {codec, codec, codec};
    gcomp_desc with = *base, without = *base;
    group a, b;
    with.residual = kind;
    with.decay = 0.75f;
    group_open(&a, world, &with, codecs, n, MOST_TENSORS);
    group_open(&b, world, &without, codecs, n, MOST_TENSORS);
    for (uint64_t step = 0; step < 3; step++) {
        for (size_t w = 0; w < world; w++)
            for (size_t t = 0; t < MOST_TENSORS; t++) {
                float *to = (float *)(uintptr_t)tensor_residual(b.gc[w], t);
                if (to) CHECK(gcomp_residual_get(a.gc[w], t, to) == GCOMP_OK);
            }
        group_fill(&a, step);
        group_fill(&b, step);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        compare_decayed(&a, &b, kind, codec);
    }
    group_close(&a);
    group_close(&b);
}

static void test_residuals_decay_whatever_makes_the_mean(void)
{
    static const gcomp_aggregate ways[] = {GCOMP_AGGREGATE_AUTO, GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_TWO_SHOT,
                                           GCOMP_AGGREGATE_SCATTER};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        if (!codec_list[c].steps) continue;
        for (size_t way = 0; way < 4; way++) {
            gcomp_desc desc = desc_of(NULL, ways[way]);
            const gcomp_tensor tensor = tensor_of(0, shapes[c % 4][0], codec_list[c].text);
            if (way % 2) desc.parallel.run = run_backwards, desc.measure = 1;
            if (gcomp_memory_needed(&desc, &tensor, 1) == 0) continue; /* not every codec can be scattered */
            decay(kinds[(c + way) % 3], &desc, 3, codec_list[c].text, shapes[c % 4]);
            decay(kinds[(c + way + 1) % 3], &desc, 1, codec_list[c].text, shapes[(c + 1) % 4]);
        }
    }
}

/* gcomp_commit decays what waits; gcomp_give_back gives back what would have decayed with it. A step that fails, and a
   gradient that is not finite, leave the residual as it was. */
static void test_tensors_alone_decay(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.1", "int:bits=4"};
    static const size_t n[1] = {700};
    static float p[700], sent[700], e[700];
    for (size_t c = 0; c < 3; c++) {
        static uint8_t bytes[GCOMP_BOUND(700)];
        gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
        size_t length = 0, wrong = 0;
        group g;
        desc.decay = 0.5f;
        group_open(&g, 1, &desc, texts + c, n, 1);
        memset(e, 0, sizeof e);
        for (uint64_t step = 3; step < 6; step++) {
            float *grad = g.grad[0][0];
            group_fill(&g, step);
            for (size_t i = 0; i < n[0]; i++) p[i] = grad[i] + e[i];
            CHECK(gcomp_compress(g.gc[0], 0, step, grad, bytes, sizeof bytes, &length) == GCOMP_OK);
            CHECK(gcomp_decode(bytes, length, sent, GCOMP_F32, n[0], NULL) == GCOMP_OK);
            CHECK(gcomp_commit(g.gc[0], 0, grad, step == 4 ? NULL : bytes, length, NULL, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
            for (size_t i = 0; i < n[0]; i++) wrong += e[i] != 0.5f * (step == 4 ? p[i] : p[i] - sent[i]);
        }
        CHECK(gcomp_give_back(g.gc[0], 0, bytes, length) == GCOMP_OK);
        for (size_t i = 0; i < n[0]; i++) wrong += tensor_residual(g.gc[0], 0)[i] != e[i] + 0.5f * sent[i];
        g.grad[0][0][7] = INFINITY;
        memcpy(e, tensor_residual(g.gc[0], 0), sizeof e);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_NOT_FINITE) && !memcmp(e, tensor_residual(g.gc[0], 0), sizeof e));
        CHECK(wrong == 0);
        group_close(&g);
    }
}

/* A residual without gradients, which decays for 2,000 commits, and one commit of less: the decay is followed by one rounding, and
   acts however near to 1 it is. */
static void test_small_residuals_decay_as_floats_do(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.1", "twobit", "int:bits=4"};
    enum { N = 256 };
    static const size_t n[1] = {N};
    static float e[N], given[N];
    for (size_t c = 0; c < 4; c++)
        for (int k = 0; k < 3; k++) {
            static const float decays[] = {0.5f, 0.75f, 0.95f, 0.97f, 0.99f, 0.999f};
            for (size_t d = 0; d < 6; d++) {
                gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
                double left = 0, all = 0, due = 1;
                group g;
                desc.decay = decays[d];
                group_open(&g, 1, &desc, texts + c, n, 1);
                for (size_t i = 0; i < N; i++) given[i] = g.grad[0][0][i] = 9000 + 17.3f * (float)i;
                CHECK(gcomp_commit(g.gc[0], 0, g.grad[0][0], NULL, 0, NULL, NULL, 0) == GCOMP_OK);
                CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) given[i] *= decays[d];
                const int nearest = keeps_to_nearest(kinds[k], texts[c]) && decays[d] < 0.96f;
                CHECK(not_rounded(kinds[k], nearest ? texts[c] : "", e, given, N) == 0);
                memset(g.grad[0][0], 0, sizeof e);
                const int commits = (int)(2 / (1 - decays[d])); /* a seventh is left */
                for (int i = 0; i < commits; i++) {
                    CHECK(gcomp_commit(g.gc[0], 0, g.grad[0][0], NULL, 0, NULL, NULL, 0) == GCOMP_OK);
                    due *= (double)decays[d];
                }
                CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) left += (double)e[i], all += (double)given[i];
                if (fabs(left / all / due - 1) > 0.02)
                    printf("# %s, %s, decay %g: %g is left, %g is due\n", texts[c], kinds[k], (double)decays[d], left / all, due);
                CHECK(fabs(left / all / due - 1) <= 0.02);
                group_close(&g);
            }
        }
}

static void test_a_decay_is_checked(void)
{
    static const float wrong[] = {-0.5f, 1.5f, NAN, INFINITY};
    char why[256];
    gcomp *gc;
    gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
    for (size_t i = 0; i < 4; i++) {
        desc.decay = wrong[i];
        desc.why = why;
        desc.why_capacity = sizeof why;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && !gc && strstr(why, "decay"));
    }
    desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
    gcomp_desc other = desc;
    other.decay = 0.9f;
    expect_mismatch(&desc, &other, "decay");
}

int main(void)
{
    RUN(test_steps_are_those_of_floats_and_residuals_are_rounded);
    RUN(test_residuals_are_rounded_whatever_makes_the_mean);
    RUN(test_each_range_is_rounded_with_numbers_of_its_own);
    RUN(test_residuals_of_summed_casts_are_rounded);
    RUN(test_residuals_stay_when_codecs_change);
    RUN(test_what_rounding_changes_is_bounded);
    RUN(test_small_elements_get_their_due);
    RUN(test_residuals_are_the_same_on_all_instruction_sets);
    RUN(test_tensors_alone_keep_small_residuals);
    RUN(test_a_residual_that_is_set_is_kept_as_its_kind_keeps_it);
    RUN(test_a_worker_goes_on_with_the_residuals_of_another);
    RUN(test_a_residual_that_cannot_be_set_is_left_alone);
    RUN(test_residuals_decay_whatever_makes_the_mean);
    RUN(test_tensors_alone_decay);
    RUN(test_small_residuals_decay_as_floats_do);
    RUN(test_a_decay_is_checked);
    return test_end();
}
