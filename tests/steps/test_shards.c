/* Proves of the mean made by ranges of elements: it has the bits of the gather; gTop-k and two
   shots give what plain references give; faults and hostile shards leave no trace; and a worker
   receives as few bytes as promised. The workers run in one thread, in lock-step, as an event loop
   drives them; then the same through threads. */
#include "group.h"

static const size_t worlds[] = {1, 2, 3, 4, 7, 8};

/* ---------------- the bits of the gather */

/* Makes the l-th list of codecs, one for each tensor: sparse codecs of codecs.h that follow each
   other (the first ones follow the last one), and two others. Returns 0 if there is no such
   list. */
static int take_codecs(size_t l, const char **codecs)
{
    const char *sparse[ALL_CODECS];
    size_t count = 0, next = l * (TENSORS - 2);
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (codec_list[c].steps && codec_is_sparse(codec_list[c].text)) sparse[count++] = codec_list[c].text;
    if (next >= count) return 0;
    for (size_t t = 0; t < TENSORS; t++) codecs[t] = t == 2 ? "none" : t == 4 ? "sign" : sparse[next++ % count];
    return 1;
}

static const size_t sizes[][TENSORS] = {{3001, 1000, 50, 700, 129, 900, 300}, {1, 17, 2048, 600, 999, 1500, 40},
                                        {1200, 400, 512, 15, 2500, 333, 100}};

/* The same steps both ways. Variants: 1 without feedback and checksums; 2 scaled, measured,
   checked, in parallel, skipping. */
static void check_same_bits(const char *const *codecs, const size_t *n, size_t world, int variant)
{
    gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER), shards;
    const gcomp_step half = step_with(0.5f, -1, 0), first = gcomp_step_default();
    gcomp_statistics x, y;
    group a, b;
    gather.no_error_feedback = gather.no_checksum = variant == 1;
    if (variant == 2) gather.measure = 1, gather.check_every = 1, gather.parallel.run = run_backwards;
    shards = gather;
    shards.aggregate = GCOMP_AGGREGATE_SHARDS;
    group_open(&a, world, &gather, codecs, n, TENSORS);
    group_open(&b, world, &shards, codecs, n, TENSORS);
    b.backwards = 1;
    a.step = b.step = variant == 2 ? &half : &first;
    for (uint64_t step = 0; step < 3; step++) {
        group_fill(&a, step);
        group_fill(&b, step);
        if (variant == 2) a.skip = b.skip = step == 1 ? 0x15 : step == 2 ? 0x7f : 0;
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        for (size_t w = 0; w < world; w++) CHECK(digest(&a, w) == digest(&b, w));
        for (size_t w = 1; w < world; w++)
            for (size_t t = 0; t < TENSORS; t++)
                CHECK(a.skip >> t & 1 || !memcmp(b.grad[w][t], b.grad[0][t], (t == 6 ? 2 : 4) * b.n[t]));
        CHECK(exchanges(&a) == 0 && exchanges(&b) == (world > 1 && b.skip != 0x7f ? 2 : 0));
    }
    CHECK(gcomp_stats(a.gc[0], &x) == GCOMP_OK && gcomp_stats(b.gc[0], &y) == GCOMP_OK);
    CHECK(x.relative_error == y.relative_error && x.mean_norm == y.mean_norm && x.bytes_in == y.bytes_in);
    group_close(&a);
    group_close(&b);
}

static void test_a_mean_made_by_ranges_has_the_bits_of_the_gather(void)
{
    const char *codecs[TENSORS];
    for (size_t l = 0; take_codecs(l, codecs); l++)
        for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++)
            for (int variant = 0; variant < (worlds[c] == 3 ? 3 : 1); variant++)
                check_same_bits(codecs, sizes[l % 3], worlds[c], variant);
}

static void test_ranges_follow_the_number_of_workers(void)
{
    static const size_t left[] = {4, 3, 1};
    const gcomp_step first = gcomp_step_default(); /* dgc wants an epoch */
    const char *codecs[TENSORS];
    for (size_t l = 0; take_codecs(l, codecs); l++) {
        gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER), shards = desc_of(GCOMP_AGGREGATE_SHARDS);
        group a, b;
        uint64_t step = 0;
        group_open(&a, 5, &gather, codecs, sizes[l % 3], TENSORS);
        group_open(&b, 5, &shards, codecs, sizes[l % 3], TENSORS);
        a.step = b.step = &first;
        for (size_t c = 0; c <= sizeof left / sizeof *left; c++) {
            for (int k = 0; k < 2; k++, step++) {
                group_fill(&a, step);
                group_fill(&b, step);
                group_step(&a);
                group_step(&b);
                CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
                for (size_t w = 0; w < a.world; w++) CHECK(digest(&a, w) == digest(&b, w));
                CHECK(exchanges(&a) == 0 && exchanges(&b) == (b.world > 1 ? 2 : 0));
            }
            if (c == sizeof left / sizeof *left) break;
            group_shrink(&a, left[c]);
            group_shrink(&b, left[c]);
        }
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- dense or sparse */

static void test_sums_are_dense_where_that_is_shorter(void)
{
    static const size_t n[1] = {4 * 384};
    for (int form = 0; form < 3; form++) {
        const char *const codec[1] = {"nonzero"};
        const gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER), shards = desc_of(GCOMP_AGGREGATE_SHARDS);
        group a, b;
        group_open(&a, 4, &gather, codec, n, 1);
        group_open(&b, 4, &shards, codec, n, 1);
        for (group *g = &a; g; g = g == &a ? &b : NULL) {
            group_fill(g, 3);
            for (size_t w = 0; w < 4 && form; w++)
                for (size_t i = 0; i < n[0]; i++) /* all sparse; or the first range full and the others nearly empty */
                    if (form == 1 ? i % 40 != 7 : i >= 384 && i % 50) ((float *)g->grad[w][0])[i] = 0;
            group_step(g);
            CHECK(all_are(g, GCOMP_OK));
        }
        for (size_t w = 0; w < 4; w++) CHECK(digest(&a, w) == digest(&b, w));
        CHECK(b.carried == 6);
        CHECK(form == 1 ? b.largest[5] < 32 + 4 * 384 : b.largest[5] == 32 + 4 * 384);
        CHECK(form == 0 ? b.least[5] == 32 + 4 * 384 : b.least[5] < 200);
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- gTop-k */

static const float *order_of;

static uint32_t key_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x7fffffffu;
}

static int falling(const void *a, const void *b)
{
    const size_t i = *(const size_t *)a, j = *(const size_t *)b;
    const uint32_t x = key_of(order_of[i]), y = key_of(order_of[j]);
    return x != y ? (x < y ? 1 : -1) : i < j ? -1 : 1;
}

/* y <- the k largest of x, of equal ones the first; else 0. */
static void plain_topk(float *y, const float *x, size_t n, size_t k)
{
    static size_t order[ROOM];
    for (size_t i = 0; i < n; i++) order[i] = i;
    order_of = x;
    qsort(order, n, sizeof *order, falling);
    for (size_t i = 0; i < n; i++) y[order[i]] = i < k ? x[order[i]] : 0;
}

static void check_global(size_t world, size_t n, double density, int shape, gcomp_aggregate aggregate)
{
    static float e[8][ROOM], p[8][ROOM], sent[8][ROOM], sum[ROOM], kept[ROOM];
    const gcomp_desc desc = desc_of(aggregate);
    const size_t k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    const float part = 1.0f / (float)world;
    char text[64];
    const char *codec[1];
    group g;
    snprintf(text, sizeof text, "topk:density=%g,global=1", density);
    codec[0] = text;
    group_open(&g, world, &desc, codec, &n, 1);
    memset(e, 0, sizeof e);
    for (uint64_t step = 0; step < 4; step++) {
        group_fill(&g, step);
        memset(sum, 0, sizeof sum);
        for (size_t w = 0; w < world; w++) {
            float *grad = (float *)g.grad[w][0];
            for (size_t i = 0; i < n; i++) {
                if (shape == 1) grad[i] = (float)(int)(grad[i] * 2.5f); /* ties, and sums that cancel */
                if (shape == 2) grad[i] = i < n / 8 ? grad[i] * 100 : grad[i]; /* one owner has them all */
                if (shape == 3) grad[i] = 0.5f;
                if (shape == 4) grad[i] = i % 300 ? 0 : grad[i]; /* fewer than k */
                p[w][i] = grad[i] + e[w][i];
            }
            plain_topk(sent[w], p[w], n, k);
            for (size_t i = 0; i < n; i++) {
                volatile float term = sent[w][i] * part;
                sum[i] = sum[i] + term;
            }
        }
        plain_topk(kept, sum, n, world == 1 ? n : k);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t w = 0; w < world; w++) {
            const float *residual = gcomp_residual(g.gc[w], 0);
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) {
                e[w][i] = kept[i] != 0 ? p[w][i] - sent[w][i] : p[w][i];
                wrong += memcmp(&kept[i], (float *)g.grad[w][0] + i, 4) != 0 || memcmp(&e[w][i], residual + i, 4) != 0;
            }
            if (wrong) printf("# world %d, n %d, density %g, shape %d: %d wrong\n", (int)world, (int)n, density, shape, (int)wrong);
            CHECK(wrong == 0);
        }
    }
    group_close(&g);
}

static void test_global_topk_is_that_of_a_plain_reference(void)
{
    static const size_t n[] = {5, 260, 2000};
    static const double densities[] = {0.01, 0.1, 1};
    for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++)
        for (size_t s = 0; s < 3; s++)
            for (size_t d = 0; d < 3; d++)
                for (int shape = 0; shape < 5; shape++) {
                    check_global(worlds[c], n[s], densities[d], shape, GCOMP_AGGREGATE_SHARDS);
                    if (c == 2) check_global(worlds[c], n[s], densities[d], shape, GCOMP_AGGREGATE_GATHER);
                }
}

/* Whole numbers and a world of 4: every sum is exact, so that nothing may be missing. */
static void test_global_topk_loses_nothing(void)
{
    static const char *const codec[1] = {"topk:density=0.02,global=1"};
    static const size_t n[1] = {600};
    static double given[600], applied[600];
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
    size_t wrong = 0, most = 0;
    group g;
    group_open(&g, 4, &desc, codec, n, 1);
    for (uint64_t step = 0; step < 200; step++) {
        size_t count = 0;
        group_fill(&g, step);
        for (size_t w = 0; w < 4; w++)
            for (size_t i = 0; i < n[0]; i++) {
                float *x = (float *)g.grad[w][0] + i;
                *x = (float)(int)(*x * 20);
                given[i] += (double)*x;
            }
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t i = 0; i < n[0]; i++) {
            applied[i] += 4 * (double)((float *)g.grad[1][0])[i];
            count += ((float *)g.grad[1][0])[i] != 0;
        }
        most = count > most ? count : most;
    }
    for (size_t i = 0; i < n[0]; i++) {
        double rest = 0;
        for (size_t w = 0; w < 4; w++) rest += (double)gcomp_residual(g.gc[w], 0)[i];
        wrong += given[i] - applied[i] - rest != 0;
    }
    CHECK(wrong == 0 && most == 12);
    group_close(&g);
}

/* ---------------- two shots */

static size_t begin_of(size_t n, size_t world, size_t w)
{
    const size_t begin = ((n + world - 1) / world + 127) / 128 * 128 * w;
    return begin < n ? begin : n;
}

static float plain_p[MOST][ROOM], plain_rest[MOST][ROOM], plain_mean[ROOM];

/* Makes plain_mean and the residuals of all workers from plain_p. */
static void plain_two_shot(const char *codec, size_t world, size_t n, uint64_t step)
{
    static float q[ROOM], d[ROOM];
    const float part = 1.0f / (float)world;
    for (size_t o = 0; o < world; o++) {
        const size_t begin = begin_of(n, world, o), count = begin_of(n, world, o + 1) - begin;
        for (size_t i = 0; i < count; i++) q[i] = plain_p[o][begin + i] * part;
        for (size_t w = 0; w < world; w++) {
            if (w == o) continue;
            pass(codec, plain_p[w] + begin, count, step, w, o, d);
            for (size_t i = 0; i < count; i++) {
                volatile float term = d[i] * part;
                q[i] = q[i] + term;
                plain_rest[w][begin + i] = plain_p[w][begin + i] - d[i];
            }
        }
        pass(codec, q, count, step, o, world, plain_mean + begin);
        for (size_t i = 0; i < count; i++) {
            volatile float lost = q[i] - plain_mean[begin + i];
            plain_mean[begin + i] += 0.0f; /* a sum of one: -0 becomes 0 */
            plain_rest[o][begin + i] = lost * (float)world;
        }
    }
}

/* |lost| / |p| of both encodings of a worker. */
static double plain_error(size_t world, size_t n, size_t w)
{
    double lost = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const int own = i >= begin_of(n, world, w) && i < begin_of(n, world, w + 1);
        const double e = (double)plain_rest[w][i] / (own ? (double)world : 1);
        lost += e * e;
        all += (double)plain_p[w][i] * (double)plain_p[w][i];
    }
    return sqrt(lost / all);
}

static double error_of(const gcomp *gc)
{
    gcomp_statistics stats;
    CHECK(gcomp_stats(gc, &stats) == GCOMP_OK);
    return stats.relative_error;
}

/* Every method against the plain reference, bit for bit; and nothing is lost: applied + mean of
   e is what was given. */
static void check_two_shot(const char *text, size_t world, size_t n)
{
    static double given[ROOM], applied[ROOM];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    const gcomp_step how = step_with(world == 3 ? 0.5f : 1.0f, -1, 0);
    const int votes = !strcmp(text, "vote");
    size_t wrong = 0, lost = 0;
    group g;
    desc.measure = 1;
    group_open(&g, world, &desc, &text, &n, 1);
    g.step = &how;
    memset(given, 0, sizeof given);
    memset(applied, 0, sizeof applied);
    for (uint64_t step = 0; step < 3; step++) {
        group_fill(&g, step);
        for (size_t w = 0; w < world; w++) {
            const float *grad = (const float *)g.grad[w][0], *e = gcomp_residual(g.gc[w], 0);
            for (size_t i = 0; i < n; i++) {
                plain_p[w][i] = how.scale * grad[i] + (e ? e[i] : 0);
                given[i] += (double)(how.scale * grad[i]) / (double)world;
            }
        }
        if (!votes) plain_two_shot(text, world, n, step);
        for (size_t i = 0; votes && i < n; i++) {
            size_t negative = 0;
            for (size_t w = 0; w < world; w++) negative += plain_p[w][i] < 0;
            plain_mean[i] = 2 * negative > world ? -1.0f : 1.0f;
        }
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 2);
        for (size_t w = 0; w < world; w++) {
            wrong += memcmp(g.grad[w][0], plain_mean, 4 * n) != 0;
            if (!gcomp_residual(g.gc[w], 0)) continue;
            wrong += memcmp(gcomp_residual(g.gc[w], 0), plain_rest[w], 4 * n) != 0;
            wrong += fabs(error_of(g.gc[w]) - plain_error(world, n, w)) > 1e-6;
        }
        for (size_t i = 0; i < n; i++) applied[i] += (double)plain_mean[i];
    }
    for (size_t i = 0; i < n && gcomp_residual(g.gc[0], 0); i++) {
        double e = 0;
        for (size_t w = 0; w < world; w++) e += (double)gcomp_residual(g.gc[w], 0)[i] / (double)world;
        lost += fabs(given[i] - applied[i] - e) > 1e-6 * (3 + fabs(e));
    }
    if (wrong || lost) printf("# %s, %d workers: %d wrong, %d lost\n", text, (int)world, (int)wrong, (int)lost);
    CHECK(wrong == 0 && lost == 0);
    group_close(&g);
}

static void test_two_shots_are_those_of_a_plain_reference_and_lose_nothing(void)
{
    size_t count = 0;
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        if (!has_two_shots(text)) continue;
        count++;
        for (size_t w = 1; w < sizeof worlds / sizeof *worlds; w++) /* of eight, the last range is a rest */
            if (w == 2 || w == 5 || c % 4 == w % 4) check_two_shot(text, worlds[w], w == 5 ? 2053 : 1800);
    }
    CHECK(count > 20);
    check_two_shot("sign", 18, 4609); /* the last range is empty */
}

/* Large tensors and small ones, sums, sparse payloads, a bf16 gradient: those that have no two
   shots keep their bits, and the instruction set, threads and the order of requests matter to
   none. */
static void test_two_shots_have_the_same_bits_everywhere(void)
{
    static const char *const codecs[TENSORS] = {"topk:density=0.05",   "vote", "none", "int:bits=4",
                                                "onebit:block=tensor", "eden", "fp8"};
    static const size_t n[TENSORS] = {3001, 1000, 50, 767, 200000, 5000, 2000};
    for (int isa = GCOMP_ISA_SCALAR - 1; isa <= GCOMP_ISA_NEON; isa++) {
        gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER), two = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
        static uint64_t first[3];
        group a, b;
        if (isa >= GCOMP_ISA_SCALAR && !gcomp_isa_available((gcomp_isa)isa)) continue;
        gather.isa = two.isa = isa < GCOMP_ISA_SCALAR ? GCOMP_ISA_SCALAR : (gcomp_isa)isa;
        if (isa < GCOMP_ISA_SCALAR) two.parallel.run = run_backwards;
        group_open(&a, 3, &gather, codecs, n, TENSORS);
        group_open(&b, 3, &two, codecs, n, TENSORS);
        b.backwards = 1;
        for (uint64_t step = 0; step < 2; step++) {
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&b, GCOMP_OK) && exchanges(&b) == 2);
            for (size_t t = 0; t < 4; t++) CHECK(!memcmp(a.grad[1][t], b.grad[1][t], 4 * n[t]));
            for (size_t t = 4; t < TENSORS; t++) CHECK(memcmp(a.grad[1][t], b.grad[1][t], 2 * n[t]));
            for (size_t t = 0; t < TENSORS; t++) CHECK(!memcmp(b.grad[0][t], b.grad[2][t], (t == 6 ? 2 : 4) * n[t]));
        }
        for (size_t w = 0; w < 3; w++) {
            if (isa < GCOMP_ISA_SCALAR) first[w] = digest(&b, w);
            CHECK(digest(&b, w) == first[w]);
        }
        group_close(&a);
        group_close(&b);
    }
}

/* The last range is shorter, but its payload may be longer: it may have more parts with a scale
   each. */
static void test_two_shots_have_room_for_every_size(void)
{
    static const char *const codecs[] = {"eden", "eden:bits=4,block=64", "sign", "int:bits=4,code=auto", "mx"};
    static const size_t some_worlds[] = {2, 3, 5, 8};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (size_t k = 0; k < 4; k++)
            for (size_t n = 256 * some_worlds[k]; n < 9000; n += 89) {
                const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
                group g;
                group_open(&g, some_worlds[k], &desc, codecs + c, &n, 1);
                group_fill(&g, 1);
                group_step(&g);
                if (!all_are(&g, GCOMP_OK)) printf("# %s, world %d, n %d\n", codecs[c], (int)some_worlds[k], (int)n);
                CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 2);
                group_close(&g);
            }
}

/* The gradient stays the same, and the mean of what T steps apply tends to it: because residuals
   stay small, or because the method is unbiased. Its error is at most 1 / T of a few gradients,
   or 1 / sqrt(T) of the noise of a step. */
static void test_two_shots_apply_the_mean_in_the_end(void)
{
    enum { N = 1024, T = 150 };
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codec[1] = {codec_list[c].text};
        static const size_t n[1] = {N};
        static double given[N], applied[N];
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
        double error = 0, size = 0, noise = 0;
        int keeps;
        group g;
        if (!codec_list[c].steps || !has_two_shots(codec[0]) || !strcmp(codec[0], "vote")) continue; /* no mean */
        group_open(&g, 4, &desc, codec, n, 1);
        keeps = gcomp_residual(g.gc[0], 0) != NULL;
        memset(given, 0, sizeof given);
        memset(applied, 0, sizeof applied);
        for (uint64_t step = 0; step < T; step++) {
            group_fill(&g, 0);
            for (size_t w = 0; w < 4 && step == 0; w++)
                for (size_t i = 0; i < N; i++) given[i] += (double)((float *)g.grad[w][0])[i] / 4;
            group_step(&g);
            for (size_t i = 0; i < N; i++) {
                const double d = (double)((float *)g.grad[3][0])[i];
                applied[i] += d / T;
                noise += (d - given[i]) * (d - given[i]) / T;
            }
        }
        for (size_t i = 0; i < N; i++) {
            error += (applied[i] - given[i]) * (applied[i] - given[i]);
            size += given[i] * given[i];
        }
        printf("# %-24s of the mean: error %.4f, noise of a step %.4f\n", codec[0], sqrt(error / size), sqrt(noise / size));
        CHECK(keeps ? sqrt(error) < 15.0 / T * sqrt(size) : error > 0.8 * noise / T && error < 1.25 * noise / T);
        group_close(&g);
    }
}

/* sum of e / world of a tensor's element */
static double waits(const group *g, size_t i)
{
    double e = 0;
    for (size_t w = 0; w < g->world; w++) e += (double)gcomp_residual(g->gc[w], 0)[i];
    return e / (double)g->world;
}

/* Two shots keep nothing but the residual. A save holds it, and a worker that leaves hands it over,
   although the ranges change then. */
static void test_two_shots_survive_a_save_and_another_world(void)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {1500};
    static double before[1500];
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    static uint8_t save[4][8000];
    size_t length[4], wrong = 0, lost = 0;
    group a, b;
    group_open(&a, 4, &desc, codec, n, 1);
    group_open(&b, 4, &desc, codec, n, 1);
    for (uint64_t step = 0; step < 5; step++) {
        const void *saved[1];
        group_fill(&a, step);
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK));
        for (size_t w = 0; w < 4 && step == 2; w++) {
            CHECK(gcomp_save(a.gc[w], save[w], sizeof save[w], &length[w]) == GCOMP_OK);
            saved[0] = save[w];
            CHECK(gcomp_load(b.gc[w], saved, length + w, 1) == GCOMP_OK);
        }
        if (step < 3) continue;
        group_fill(&b, step);
        group_step(&b);
        for (size_t w = 0; w < 4; w++) CHECK(digest(&a, w) == digest(&b, w));
    }
    for (size_t i = 0; i < n[0]; i++) before[i] = waits(&a, i);
    CHECK(gcomp_save(a.gc[3], save[3], sizeof save[3], &length[3]) == GCOMP_OK);
    CHECK(gcomp_take_over(a.gc[1], save[3], length[3]) == GCOMP_OK);
    group_shrink(&a, 3);
    for (size_t i = 0; i < n[0]; i++) wrong += fabs(before[i] - waits(&a, i)) > 1e-6 * (1 + fabs(before[i]));
    group_fill(&a, 7);
    for (size_t i = 0; i < n[0]; i++)
        for (size_t w = 0; w < 3; w++) before[i] += (double)((float *)a.grad[w][0])[i] / 3;
    group_step(&a);
    CHECK(all_are(&a, GCOMP_OK) && exchanges(&a) == 2);
    for (size_t i = 0; i < n[0]; i++)
        lost += fabs(before[i] - waits(&a, i) - (double)((float *)a.grad[0][0])[i]) > 2e-6 * (1 + fabs(before[i]));
    CHECK(wrong == 0 && lost == 0);
    CHECK(gcomp_reset(a.gc[0], 0) == GCOMP_OK && gcomp_residual(a.gc[0], 0)[0] == 0);
    group_close(&a);
    group_close(&b);
}

/* What is not sent in one form waits in the same residual for the next codec of a list:
   uncompressed, sparse, two shots. */
static void test_two_shots_follow_other_codecs_of_a_list(void)
{
    static const char *const codec[1] = {NULL};
    static const size_t n[1] = {1500};
    static const int requests[] = {2, 6, 6, 6, 6}; /* frames, then a sum; or five stages of either kind of shards */
    static double given[1500], applied[1500];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    gcomp_step how = gcomp_step_default();
    size_t lost = 0;
    group g;
    desc.codec = "none|topk:density=0.1|sign|int:bits=2";
    desc.schedule = "warmup:epochs=3";
    desc.compress_vectors = 1;
    group_open(&g, 4, &desc, codec, n, 1);
    g.step = &how;
    for (uint64_t step = 0; step < 5; step++) { /* the epoch is heard in one step, and goes for the next */
        how.epoch = (uint32_t)step + 1;
        group_fill(&g, step);
        for (size_t w = 0; w < 4; w++)
            for (size_t i = 0; i < n[0]; i++) given[i] += (double)((float *)g.grad[w][0])[i] / 4;
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK) && g.carried == (size_t)requests[step] && exchanges(&g) == (step ? 2 : 0));
        for (size_t i = 0; i < n[0]; i++) applied[i] += (double)((float *)g.grad[0][0])[i];
    }
    for (size_t i = 0; i < n[0]; i++) lost += fabs(given[i] - applied[i] - waits(&g, i)) > 2e-6 * (3 + fabs(waits(&g, i)));
    CHECK(lost == 0);
    group_close(&g);
}

/* With the largest floats that there are, what is decoded and what is kept is finite on all. */
static void test_two_shots_of_huge_numbers_stay_finite(void)
{
    static const size_t n[1] = {900};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codec[1] = {codec_list[c].text};
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
        size_t bad = 0;
        group g;
        if (!has_two_shots(codec[0])) continue;
        group_open(&g, 3, &desc, codec, n, 1);
        for (int step = 0; step < 2; step++) {
            for (size_t w = 0; w < 3; w++)
                for (size_t i = 0; i < n[0]; i++)
                    ((float *)g.grad[w][0])[i] = step ? 0 : i % 7 == 3 ? 1e-42f : (i / 3 + w) % 5 ? 3.4028235e38f : -3.4028235e38f;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t w = 0; w < 3; w++)
                for (size_t i = 0; i < n[0]; i++) {
                    const float *e = gcomp_residual(g.gc[w], 0);
                    bad += !isfinite(((float *)g.grad[w][0])[i]) || (e && !isfinite(e[i]));
                }
        }
        if (bad) printf("# %s: %d are not finite\n", codec[0], (int)bad);
        CHECK(bad == 0);
        group_close(&g);
    }
}

/* Softmax regression with 64 inputs and 32 classes, which a teacher tells apart. */
enum { INPUTS = 64, CLASSES = 32, BATCH = 8 };

static double sample(uint64_t number, const float *weight, float *grad)
{
    float x[INPUTS], y[CLASSES];
    double best = -1e9, top = -1e9, sum = 0;
    size_t label = 0;
    for (size_t i = 0; i < INPUTS; i++) x[i] = value_of(1, 1, 1, (size_t)number * INPUTS + i);
    for (size_t c = 0; c < CLASSES; c++) {
        double teacher = 0, own = 0;
        for (size_t i = 0; i < INPUTS; i++) {
            teacher += (double)(x[i] * value_of(2, 2, 2, c * INPUTS + i));
            own += (double)(x[i] * weight[c * INPUTS + i]);
        }
        if (teacher > best) best = teacher, label = c;
        if (own > top) top = own;
        y[c] = (float)own;
    }
    for (size_t c = 0; c < CLASSES; c++) sum += exp((double)y[c] - top);
    for (size_t c = 0; c < CLASSES && grad; c++) {
        const float error = (float)(exp((double)y[c] - top) / sum) - (c == label ? 1.0f : 0.0f);
        for (size_t i = 0; i < INPUTS; i++) grad[c * INPUTS + i] += error * x[i] / BATCH;
    }
    return top + log(sum) - (double)y[label];
}

static double train(const char *codec, gcomp_aggregate way)
{
    static const size_t n[1] = {INPUTS * CLASSES};
    static float weight[INPUTS * CLASSES];
    const gcomp_desc desc = desc_of(way);
    double loss = 0;
    group g;
    group_open(&g, 4, &desc, &codec, n, 1);
    memset(weight, 0, sizeof weight);
    for (uint64_t step = 0; step < 60; step++) {
        for (size_t w = 0; w < 4; w++) {
            memset(g.grad[w][0], 0, sizeof weight);
            for (size_t b = 0; b < BATCH; b++) (void)sample((step * 4 + w) * BATCH + b, weight, (float *)g.grad[w][0]);
        }
        group_step(&g);
        for (size_t i = 0; i < n[0]; i++) weight[i] -= 1.5f * ((float *)g.grad[0][0])[i];
    }
    for (uint64_t i = 0; i < 100; i++) loss += sample(1000000 + i, weight, NULL) / 100;
    group_close(&g);
    return loss;
}

static void test_two_shots_reach_the_loss_of_the_gather(void)
{
    static const char *const codecs[] = {"sign", "int:bits=4"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        const double gather = train(codecs[c], GCOMP_AGGREGATE_GATHER), two = train(codecs[c], GCOMP_AGGREGATE_TWO_SHOT);
        printf("# %s: loss %.4f, in two shots %.4f; %.4f before\n", codecs[c], gather, two, log(CLASSES));
        CHECK(two < 1.05 * gather && gather < 0.7 * log(CLASSES));
    }
}

/* ---------------- failures */

/* Sparse payloads; the two-shot form, which has no lists; scattered, sparse payloads and others,
   which has no sums either. */
enum { FORMS = 4 };
static const char *const some[FORMS][2] = {{"topk:density=0.1", "topk:density=0.1,global=1"}, {"sign:block=64", "qsgd:levels=1"},
                                           {"topk:density=0.1", "dgc:density=0.1,warmup=0"}, {"sign:block=64", "none"}};
static const size_t some_n[FORMS][2] = {{300, 220}, {900, 770}, {300, 220}, {900, 770}};
static const gcomp_aggregate ways[FORMS] = {GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_TWO_SHOT, GCOMP_AGGREGATE_SCATTER,
                                            GCOMP_AGGREGATE_SCATTER};
static const char *const *few = some[0];
static const size_t *few_n = some_n[0];
static int form;

static gcomp_desc choose_form(int which)
{
    form = which;
    few = some[which];
    few_n = some_n[which];
    return desc_of(ways[which]);
}

/* The stage of a request, and the request of a stage. The last stage, and how many requests there
   are. */
static int stage_of(size_t call) { return (int)call + (form && call >= LISTED); }
static size_t call_of(size_t stage) { return stage - (form && stage > LISTED); }
static int last_stage(void) { return form >= 2 ? TOTALS : SUMS; }
static size_t calls(void) { return call_of((size_t)last_stage()) + 1; }

static void open_few(group *g, const gcomp_desc *desc)
{
    group_open(g, 3, desc, few, few_n, 2);
    for (uint64_t step = 0; step < 2; step++) { /* residuals that are not zero */
        group_fill(g, step);
        group_step(g);
        CHECK(all_are(g, GCOMP_OK));
    }
    group_fill(g, 2);
}

/* What the workers of open_few hold after a step without a fault. */
static void digests_without_a_fault(const gcomp_desc *desc, uint64_t *digests)
{
    group g;
    open_few(&g, desc);
    group_step(&g);
    CHECK(g.carried == calls());
    digest_all(&g, digests);
    group_close(&g);
}

static void failing_requests(const gcomp_desc desc)
{
    uint64_t control[3], before[3];
    group g;
    digests_without_a_fault(&desc, control);
    for (int call = 0; call < (int)calls(); call++)
        for (int rank = -1; rank < 3; rank += 2) {
            open_few(&g, &desc);
            digest_all(&g, before);
            g.fail_call = call;
            g.fail_rank = rank;
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int last = stage_of((size_t)call) == last_stage() && rank >= 0 && (int)w != rank; /* who has all commits */
                CHECK(g.result[w] == (last ? GCOMP_OK : GCOMP_CALLBACK_FAILED));
                CHECK(digest(&g, w) == (last ? control[w] : before[w]));
                CHECK(last || strstr(gcomp_error(g.gc[w]), "failed with status 5") || call == FRAMES || rank >= 0);
            }
            if (call == SHARDS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "alltoallv") != NULL);
            if (stage_of((size_t)call) == SUMS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "allgather of sums") != NULL);
            if (stage_of((size_t)call) == TOTALS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "allgather of totals") != NULL);
            g.fail_call = -1;
            if (rank < 0) { /* all have seen it */
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
                CHECK(digests_are(&g, control));
            }
            group_close(&g);
        }
}

static void test_a_request_that_fails_leaves_everything_as_it_was(void)
{
    for (int which = FORMS; which-- > 0;) failing_requests(choose_form(which));
}

static void flip(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || rank != 1 || from != 2) return;
    if (g->arg < length) bytes[g->arg] ^= (uint8_t)(1u << (g->arg & 7));
    else g->arg = SIZE_MAX;
}

/* Every byte of what one worker gets from another, in every stage. */
static void damaged_bytes(const gcomp_desc desc)
{
    for (size_t at_call = LENGTHS; at_call < calls(); at_call++) {
        const int call = stage_of(at_call), is_last = call == last_stage();
        group g;
        size_t tried = 0;
        open_few(&g, &desc);
        for (size_t at = 0; at != SIZE_MAX; at = g.arg == SIZE_MAX ? SIZE_MAX : at + 1) {
            uint64_t before[3];
            digest_all(&g, before);
            g.change = flip;
            g.at = at_call;
            g.arg = at;
            group_step(&g);
            if (g.arg == SIZE_MAX) break;
            tried++;
            CHECK(g.result[1] != GCOMP_OK);
            if (call != ANSWERS) CHECK(g.result[1] != GCOMP_PEER_FAILED);
            CHECK(digest(&g, 1) == before[1]);
            for (size_t w = 0; w < 3; w += 2) {
                /* what one has seen is told to all; a bad total ends the step of one, which
                   cannot take part in the last gather */
                CHECK(g.result[w] == (is_last          ? GCOMP_OK
                                      : call == TOTALS ? GCOMP_CALLBACK_FAILED
                                                       : GCOMP_PEER_FAILED));
                CHECK(is_last || digest(&g, w) == before[w]);
            }
            if (call == SHARDS) CHECK(strstr(gcomp_error(g.gc[0]), "rank 1") && strstr(gcomp_error(g.gc[1]), "rank 2, tensor"));
            if (call == TOTALS) CHECK(g.result[1] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[1]), "damaged length"));
            else if (call == SHARDS || call == SUMS) CHECK(g.result[1] != GCOMP_CALLBACK_FAILED);
            else CHECK(g.result[1] == GCOMP_CHECKSUM_MISMATCH);
            CHECK(gcomp_result_class(g.result[1]) == (call == TOTALS ? GCOMP_CLASS_RESYNCHRONISE : GCOMP_CLASS_RETRY));
            if (call == LENGTHS) CHECK(g.carried == ANSWERS + 1);
            if (is_last) break; /* the others have gone on */
        }
        CHECK(tried >= 1 && (is_last || tried >= 16));
        g.change = NULL;
        if (call < TOTALS) group_step(&g); /* all have heard of it: goes on at once */
        if (call < TOTALS) CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

static void test_every_damaged_byte_is_refused_without_a_trace(void)
{
    for (int which = FORMS; which-- > 0;) damaged_bytes(choose_form(which));
}

typedef struct forgery {
    const char *codec;
    size_t n;
    int cut; /* bytes that are missing at the end, or too many */
    size_t at;
    int flip;
    gcomp_result result;
} forgery;

/* A worker makes up a shard, in a world of two with 1792 elements. The owner of the range refuses
   the shard, and the step fails on all. */
static void forge(const forgery *f, const char *codec, gcomp_aggregate way, int is_checked, int is_sealed)
{
    static const size_t n[1] = {1792}; /* ranges of 896, of sparse payloads 90 elements at most */
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    static float x[ROOM];
    gcomp_desc desc = desc_of(way);
    uint64_t before[2];
    group g;
    desc.no_checksum = !is_checked;
    group_open(&g, 2, &desc, &codec, n, 1);
    group_fill(&g, 0);
    for (size_t i = 0; i < ROOM; i++) x[i] = value_of(9, 9, 9, i) + 3;
    digest_all(&g, before);
    memset(payload, 0, sizeof payload);
    g.forged_length = (size_t)((int)encode(f->codec, x, f->n, payload, 0) - f->cut);
    if (is_sealed) CHECK(gcomp_seal(payload, g.forged_length, NULL) == GCOMP_OK);
    payload[f->at] ^= (uint8_t)f->flip;
    g.forged = payload;
    group_step(&g);
    if (g.result[1] != f->result) printf("# %s for %s: %s\n", f->codec, codec, gcomp_result_name(g.result[1]));
    CHECK(g.result[1] == f->result);
    CHECK(g.result[0] == (f->result ? GCOMP_PEER_FAILED : GCOMP_OK));
    if (f->result) CHECK(digests_are(&g, before));
    group_close(&g);
    if (way != GCOMP_AGGREGATE_SCATTER) forge(f, codec, GCOMP_AGGREGATE_SCATTER, is_checked, is_sealed); /* the same */
}

static void test_hostile_shards_are_refused_by_all(void)
{
    static const forgery sparse[] = {
        {"topk:density=0.1", 896, 0, 0, 0, GCOMP_OK},
        {"topk:density=0.10125", 896, 0, 0, 0, GCOMP_CORRUPT}, /* 91: more than anyone selects */
        {"topk:density=0.1", 895, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"topk:density=0.1", 897, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"topk:density=0.1", 896, 1, 0, 0, GCOMP_TRUNCATED},
        {"topk:density=0.1", 896, 400, 0, 0, GCOMP_TRUNCATED},
        {"topk:density=0.01", 896, -1, 0, 0, GCOMP_TRAILING_BYTES},
        {"topk:density=0.1+fp16", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"dryden:density=0.05", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"sign", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"topk:density=0.1", 896, 0, 4, 3, GCOMP_UNSUPPORTED_VERSION},
        {"topk:density=0.1", 896, 0, 6, 2, GCOMP_CHECKSUM_MISMATCH},
        {"topk:density=0.1", 896, 0, 32, 1, GCOMP_CORRUPT},   /* k: 91 */
        {"topk:density=0.1", 896, 0, 40, 255, GCOMP_CORRUPT}, /* the coder */
    };
    static const forgery two_shot[] = {
        {"int:bits=4", 896, 0, 0, 0, GCOMP_OK},
        {"int:bits=4", 895, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"int:bits=4", 896, 1, 0, 0, GCOMP_TRUNCATED},
        {"int:bits=2", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"int:bits=4,block=512", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"sign:block=tensor", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"topk:density=0.01", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"int:bits=4", 896, 0, 6, 1, GCOMP_TRAILING_BYTES}, /* a refusal has no body */
        {"int:bits=4", 896, 0, 35, 255, GCOMP_CORRUPT},     /* a scale that is negative */
    };
    const forgery dense = {"none", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH}; /* sums may be that */
    forgery sealed = {"topk:density=0.1", 896, 0, 0, 0, GCOMP_CHECKSUM_MISMATCH};
    const char *const codec = "topk:density=0.05";
    for (size_t f = 0; f < sizeof sparse / sizeof *sparse; f++) forge(sparse + f, codec, GCOMP_AGGREGATE_SHARDS, 0, 0);
    for (size_t f = 0; f < sizeof two_shot / sizeof *two_shot; f++)
        forge(two_shot + f, "int:bits=4", GCOMP_AGGREGATE_TWO_SHOT, 0, 0);
    forge(&dense, "topk:density=0.5", GCOMP_AGGREGATE_SHARDS, 0, 0);
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 1, 0); /* workers want one, there is one, both */
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 0, 1);
    sealed.result = GCOMP_OK;
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 1, 1);
}

/* Whatever a shard says, no worker reads or writes outside of its buffers, and the step ends alike
   on all. */
static void test_mutated_shards_do_no_harm(void)
{
    static const size_t n[1] = {400};
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    static float x[ROOM];
    size_t taken = 0;
    for (int global = 0; global < 3; global++) { /* 2: scattered */
        gcomp_desc desc = desc_of(global == 2 ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_SHARDS);
        group g;
        desc.no_checksum = 1;
        group_open(&g, 2, &desc, few + global % 2, n, 1);
        for (size_t i = 0; i < ROOM; i++) x[i] = value_of(9, 9, 9, i);
        for (uint64_t round = 0; round < 400; round++) {
            uint64_t before[2];
            g.forged_length = encode("topk:density=0.1", x, 144, payload, 0);
            for (uint64_t j = 0; j <= round % 3; j++)
                payload[mix(round * 8 + j) % g.forged_length] ^= (uint8_t)(1u << (mix(round * 8 + j) >> 40) % 8);
            g.forged = payload;
            group_fill(&g, round);
            digest_all(&g, before);
            group_step(&g);
            taken += g.result[1] == GCOMP_OK;
            CHECK(g.result[0] == (g.result[1] ? GCOMP_PEER_FAILED : GCOMP_OK));
            if (g.result[1]) CHECK(digests_are(&g, before));
            else CHECK(global == 2 || !memcmp(g.grad[0][0], g.grad[1][0], 4 * n[0]));
        }
        group_close(&g);
    }
    printf("# %d of 1200 mutated shards were accepted\n", (int)taken);
    CHECK(taken > 30 && taken < 1170); /* flipped values are numbers too */
}

/* A length, an answer or a total that is well formed, but says something false. */
static void lie(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || from != 0 || (call == LENGTHS && rank != 1)) return; /* what is gathered all get alike */
    CHECK(length == 16);
    if (g->arg == SIZE_MAX) put_word(bytes + 8, 12, 4); /* a status */
    else put_word(bytes, g->arg, 8);
    put_word(bytes + 12, plain_crc(0, bytes, 12), 4);
}

/* Only the receiver sees the length of a shard: it tells all before anybody waits for shards. */
static void forged_lengths(const gcomp_desc desc)
{
    static const size_t stages[] = {LENGTHS, ANSWERS, TOTALS}, lies[] = {SIZE_MAX, SIZE_MAX - 1, (size_t)1 << 40, 5000};
    for (size_t s = 0; s < 3; s++)
        for (size_t l = 0; l < 4; l++) {
            uint64_t before[3], control[3];
            const int goes_on = stages[s] == ANSWERS && l; /* with all sizes known, until the totals */
            group g;
            digests_without_a_fault(&desc, control);
            open_few(&g, &desc);
            digest_all(&g, before);
            g.change = lie;
            g.at = call_of(stages[s]);
            g.arg = lies[l];
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int sees = stages[s] != LENGTHS || w == 1;
                CHECK(g.result[w] == (!sees || !l ? GCOMP_PEER_FAILED : stages[s] == TOTALS ? GCOMP_MISMATCH : GCOMP_CORRUPT));
                CHECK(digest(&g, w) == before[w]);
                CHECK(strstr(gcomp_error(g.gc[w]), !sees ? "rank 1: " : l ? "rank 0 announces more bytes than" : "rank 0: "));
            }
            CHECK(g.carried == (stages[s] == LENGTHS ? ANSWERS + 1 : goes_on ? call_of(TOTALS) + 1 : g.at + 1));
            g.change = NULL;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            CHECK(digests_are(&g, control));
            group_close(&g);
        }
}

static void test_a_forged_length_ends_the_step_of_all_and_it_can_be_repeated(void)
{
    for (int which = FORMS; which-- > 0;) forged_lengths(choose_form(which));
}

static void not_finite(const gcomp_desc desc, size_t at)
{
    uint64_t before[3];
    group g;
    open_few(&g, &desc);
    ((float *)g.grad[2][1])[at] = NAN;
    digest_all(&g, before);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_NOT_FINITE) && g.carried == 1);
    CHECK(digests_are(&g, before));
    group_fill(&g, 2);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

static void test_not_finite_on_one_worker_is_told_to_all(void)
{
    not_finite(choose_form(1), 0);   /* in a range of another */
    not_finite(choose_form(1), 769); /* in its own */
    not_finite(choose_form(3), 0);   /* the same of floats that are scattered */
    not_finite(choose_form(3), 769);
    not_finite(choose_form(2), 219);
    not_finite(choose_form(0), 219);
}

/* powersgd finds only in its second sum that numbers are too large, and only on the worker that has
   them. All workers skip the step. */
static void too_large(int which)
{
    static const char *const codec = "topk:density=0.1";
    static const size_t n = 300;
    const gcomp_desc desc = choose_form(which);
    gcomp_tensor matrix = {"matrix", 20, 3, 0, GCOMP_F32, "powersgd:rank=1,momentum=0.9"};
    uint64_t before[3];
    group g;
    group_open(&g, 3, &desc, &codec, &n, 1);
    g.n[g.count++] = 60;
    for (size_t w = 0; w < 3; w++) {
        CHECK(gcomp_add_tensor(g.gc[w], &matrix) == GCOMP_OK);
        g.grad[w][1] = calloc(60, 4);
    }
    group_fill(&g, 1);
    for (size_t i = 0; i < 60; i++) ((float *)g.grad[1][1])[i] *= 2e38f;
    digest_all(&g, before);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_NOT_FINITE));
    CHECK(digests_are(&g, before));
    group_close(&g);
}

static void test_numbers_too_large_on_one_worker_are_told_with_the_totals(void)
{
    too_large(2);
    too_large(0);
}

static void aborts(const gcomp_desc desc)
{
    uint64_t control[3], before[3];
    group g;
    digests_without_a_fault(&desc, control);
    open_few(&g, &desc);
    digest_all(&g, before);
    for (size_t upto = 0; upto <= calls(); upto++) {
        gcomp_request request;
        g.carried = 0;
        for (size_t w = 0; w < 3; w++) {
            g.result[w] = gcomp_step_begin(g.gc[w], NULL);
            for (size_t t = 0; t < 2; t++) CHECK(gcomp_step_ready(g.gc[w], t, g.grad[w][t]) == GCOMP_OK);
        }
        for (size_t k = 0; k < upto; k++) {
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_step_next(g.gc[w], &g.request[w][k]) == GCOMP_OK);
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_step_next(g.gc[w], &request) == GCOMP_OK && request.kind == GCOMP_WAIT);
            CHECK(gcomp_step_done(g.gc[0], g.request[0][k].id + 1, 0) == GCOMP_WRONG_STATE);
            carry(&g, k);
            CHECK(gcomp_step_done(g.gc[0], g.request[0][k].id, 0) == GCOMP_WRONG_STATE);
        }
        for (size_t w = 0; w < 3; w++) {
            CHECK(gcomp_step_abort(g.gc[w]) == GCOMP_OK);
            CHECK(digest(&g, w) == before[w]);
        }
    }
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(digests_are(&g, control));
    group_close(&g);
}

static void test_abort_in_every_stage_changes_nothing(void)
{
    for (int which = FORMS; which-- > 0;) aborts(choose_form(which));
}

/* ---------------- memory, agreement, callbacks */

static void failing_allocations(gcomp_desc desc)
{
    gcomp_tensor tensors[2];
    test_heap heap = {0, 0, 0, 0};
    int made = 0;
    memset(tensors, 0, sizeof tensors);
    desc.allocator = heap_of(&heap);
    desc.comm.world = 3;
    for (size_t t = 0; t < 2; t++) {
        tensors[t].name = few[t];
        tensors[t].rows = few_n[t];
        tensors[t].codec = few[t];
    }
    for (size_t left = 0; !made; left++) {
        gcomp *gc = NULL;
        gcomp_result result;
        heap.left = left;
        result = gcomp_open(&gc, &desc);
        for (size_t t = 0; t < 2 && result == GCOMP_OK; t++) result = gcomp_add_tensor(gc, &tensors[t]);
        if (result == GCOMP_OK) result = gcomp_prepare(gc);
        made = result == GCOMP_OK;
        CHECK(made || result == GCOMP_OUT_OF_MEMORY);
        if (made) CHECK(gcomp_memory_used(gc) == gcomp_memory_needed(&desc, tensors, 2));
        gcomp_close(gc);
        CHECK(heap.blocks == 0 && (!made || left > 7));
    }
    heap.left = SIZE_MAX;
    group g;
    open_few(&g, &desc);
    heap.asked = 0;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && heap.asked == 0);
    group_close(&g);
    CHECK(heap.blocks == 0);
}

static void test_every_allocation_may_fail_and_none_comes_later(void)
{
    for (int which = FORMS; which-- > 0;) failing_allocations(choose_form(which));
}

static int no_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)awaited;
    return 1;
}

static void test_workers_agree_on_the_way(void)
{
    for (int difference = 0; difference < 2; difference++) {
        group g;
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
        group_open(&g, 3, &desc, few, few_n, 2);
        gcomp_close(g.gc[2]);
        desc.comm.rank = 2;
        desc.comm.world = 3;
        if (difference) desc.comm.alltoallv = no_alltoallv;
        else desc.aggregate = GCOMP_AGGREGATE_AUTO;
        CHECK(gcomp_open(&g.gc[2], &desc) == GCOMP_OK);
        for (size_t t = 0; t < 2; t++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = t ? "b" : "a";
            tensor.rows = few_n[t];
            tensor.codec = few[t];
            CHECK(gcomp_add_tensor(g.gc[2], &tensor) == GCOMP_OK);
        }
        group_fill(&g, 0);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        CHECK(strstr(gcomp_error(g.gc[0]), difference ? "rank 2 has comm.alltoallv set, rank 0 has comm.alltoallv NULL"
                                                      : "rank 2 has desc.aggregate 0, rank 0 has desc.aggregate 2"));
        group_close(&g);
    }
}

static void test_a_missing_alltoallv_and_a_wrong_way_are_named(void)
{
    char why[128];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
    gcomp_tensor tensor;
    float grad[600] = {0}, *grads[1];
    gcomp *gc = NULL;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "fc1";
    tensor.rows = 300;
    tensor.codec = few[0];
    grads[0] = grad;
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.alltoallv") && strstr(gcomp_error(gc), "fc1"));
    gcomp_close(gc);
    desc.aggregate = GCOMP_AGGREGATE_TWO_SHOT;
    tensor.rows = 600;
    tensor.codec = "sign";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "TWO_SHOT"));
    gcomp_close(gc);
    desc.aggregate = (gcomp_aggregate)5;
    desc.why = why;
    desc.why_capacity = sizeof why;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "aggregate is 5"));
}

/* ---------------- threads */

typedef struct seat {
    gcomp_comm inner;
    int exchanges, at, fail_at;
    gcomp_aggregate aggregate;
    int without;
    const char *codec;
    gcomp_result result[2];
    uint64_t digest;
} seat;

static int seat_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    seat *s = (seat *)user;
    int status = s->inner.alltoallv(s->inner.user, send, sent, recv, awaited);
    s->exchanges++;
    return s->at++ == s->fail_at ? 9 : status;
}

static int seat_allgatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    seat *s = (seat *)user;
    int status = s->inner.allgatherv(s->inner.user, mine, all, bytes, stride);
    return s->at++ == s->fail_at ? 9 : status;
}

static int seat_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    seat *s = (seat *)user;
    int status = s->inner.allgather(s->inner.user, mine, all, bytes);
    return s->at++ == s->fail_at ? 9 : status;
}

static const size_t threads_n[1] = {9000};

/* One step, repeated if the first try fails. */
static void *work(void *arg)
{
    seat *s = (seat *)arg;
    gcomp_desc desc = desc_of(s->aggregate);
    float *grads[1];
    group g;
    desc.comm = s->inner;
    desc.comm.user = s;
    desc.comm.allreduce = NULL;
    desc.comm.allreduce_max = NULL;
    desc.comm.allgather = seat_allgather;
    desc.comm.allgatherv = seat_allgatherv;
    desc.comm.alltoallv = s->without ? NULL : seat_alltoallv;
    memset(&g, 0, sizeof g);
    g.world = g.count = 1;
    g.n[0] = threads_n[0];
    g.grad[0][0] = calloc(g.n[0], 4);
    grads[0] = (float *)g.grad[0][0];
    for (size_t i = 0; i < g.n[0]; i++) grads[0][i] = value_of(0, (size_t)s->inner.rank, 0, i);
    if (gcomp_open(&g.gc[0], &desc) == GCOMP_OK) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = "a";
        tensor.rows = g.n[0];
        tensor.codec = s->codec;
        s->result[0] = gcomp_add_tensor(g.gc[0], &tensor);
        if (s->result[0] == GCOMP_OK) s->result[0] = gcomp_exchange(g.gc[0], grads, NULL);
        s->result[1] = s->result[0] ? gcomp_exchange(g.gc[0], grads, NULL) : GCOMP_OK;
        s->digest = digest(&g, 0);
    }
    group_close(&g);
    return NULL;
}

static void run_threads(seat *seats, size_t world, const char *codec, gcomp_aggregate aggregate, int without, int fail_at)
{
    pthread_t threads[MOST];
    gcomp_threads *all;
    CHECK(gcomp_threads_open(&all, (int)world, 60.0) == 0);
    memset(seats, 0, world * sizeof *seats);
    for (size_t w = 0; w < world; w++) {
        seats[w].inner = gcomp_threads_comm(all, (int)w);
        seats[w].codec = codec;
        seats[w].aggregate = aggregate;
        seats[w].without = without;
        seats[w].fail_at = fail_at;
        CHECK(pthread_create(&threads[w], NULL, work, &seats[w]) == 0);
    }
    for (size_t w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(all);
}

static void test_threads_give_the_bits_of_the_gather(void)
{
    for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++)
        for (int global = 0; global < 2; global++) {
            const char *const codec[1] = {global ? "topk:density=0.1,global=1" : "topk:density=0.1"};
            const gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER);
            seat seats[MOST];
            group a;
            group_open(&a, worlds[c], &gather, codec, threads_n, 1);
            group_fill(&a, 0);
            group_step(&a);
            for (int form = 0; form < 2; form++) {
                run_threads(seats, worlds[c], codec[0], form ? GCOMP_AGGREGATE_SHARDS : GCOMP_AGGREGATE_AUTO, 0, -1);
                for (size_t w = 0; w < worlds[c]; w++) {
                    CHECK(seats[w].result[0] == GCOMP_OK);
                    CHECK(seats[w].digest == digest(&a, w) || (worlds[c] == 1 && !form)); /* AUTO compresses nothing for one */
                    CHECK(seats[w].exchanges == (worlds[c] >= (form ? 2 : global ? 3 : 6) ? 2 : 0)); /* by the rule of AUTO */
                }
            }
            group_close(&a);
        }
}

static void test_threads_give_two_shots_the_bits_of_an_event_loop(void)
{
    static const char *const codec[1] = {"onebit"};
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++) {
        seat seats[MOST];
        group a;
        group_open(&a, worlds[c], &desc, codec, threads_n, 1);
        group_fill(&a, 0);
        group_step(&a);
        run_threads(seats, worlds[c], codec[0], GCOMP_AGGREGATE_TWO_SHOT, 0, -1);
        for (size_t w = 0; w < worlds[c]; w++)
            CHECK(seats[w].result[0] == GCOMP_OK && seats[w].digest == digest(&a, w) &&
                  seats[w].exchanges == (worlds[c] > 1 ? 2 : 0));
        group_close(&a);
    }
}

/* Is the mean of a tensor of n elements made by ranges? */
static int ranges(const char *codec, size_t n, int world, int no_feedback)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    gcomp_tensor tensor;
    gcomp_round rounds[GCOMP_ROUNDS];
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "a";
    tensor.rows = n;
    tensor.codec = codec;
    desc.comm.world = world;
    desc.comm.alltoallv = no_alltoallv;
    desc.no_error_feedback = no_feedback;
    CHECK(gcomp_rounds(&desc, &tensor, 1, NULL, rounds) == GCOMP_OK);
    if (rounds[0].kind == GCOMP_ALLTOALL) { /* never more than a gather of the same payloads */
        size_t gathered;
        gcomp_codec parsed;
        CHECK(gcomp_codec_parse(&parsed, codec, NULL, 0) == GCOMP_OK);
        gathered = gcomp_bound(&parsed, n) * (size_t)(world - 1);
        CHECK(strstr(codec, "topk") || rounds[0].sent <= gathered);
    }
    return rounds[0].kind == GCOMP_ALLTOALL;
}

static void test_auto_takes_the_form_that_receives_fewest_bytes(void)
{
    seat seats[MOST];
    static const struct {
        const char *codec;
        int without, exchanges;
    } rule[] = {{"topk:density=0.057", 0, 2}, {"topk:density=0.0565", 0, 0}, {"topk:density=0.1", 1, 0},
                {"topk:density=0.1+int", 0, 0}, {"blocktopk:density=0.1", 0, 0}, {"sign", 0, 2}, {"sign", 1, 0}};
    for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) { /* 512 elements make eight shards of 64 */
        run_threads(seats, 8, rule[r].codec, GCOMP_AGGREGATE_AUTO, rule[r].without, -1);
        for (size_t w = 0; w < 8; w++) CHECK(seats[w].result[0] == GCOMP_OK && seats[w].exchanges == rule[r].exchanges);
    }
    /* sparse: where the mean of payloads that were chosen independently is shorter than all but one of them */
    CHECK(!ranges("topk:density=0.01", 1000000, 14, 0) && ranges("topk:density=0.01", 1000000, 16, 0));
    CHECK(!ranges("topk:density=0.1", 1000000, 5, 0) && ranges("topk:density=0.1", 1000000, 6, 0));
    CHECK(!ranges("topk:density=0.01,global=1", 1000000, 2, 0) && ranges("topk:density=0.01,global=1", 1000000, 3, 0));
    CHECK(!ranges("nonzero", 1000000, 7, 0) && ranges("nonzero", 1000000, 8, 0));
    CHECK(!ranges("topk:density=0.5", 1000000, 2, 0) && ranges("topk:density=0.5", 1000000, 3, 0));
    /* block payloads: from three workers on */
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        if (!codec_list[c].steps || !has_two_shots(text)) continue;
        const int fixed = !strncmp(text, "threshold1", 10) || (!strncmp(text, "twobit", 6) && !strstr(text, "auto"));
        CHECK(!ranges(text, 100000, 2, 0));
        CHECK(ranges(text, 100000, 3, 0) == !fixed && ranges(text, 100000, 64, 0) == !fixed);
        CHECK(!ranges(text, 767, 3, 0)); /* a range has 256 elements or more */
    }
    /* a codec that loses what it does not send does not lose twice; what is right on average stays so */
    CHECK(!ranges("sign", 768, 3, 0) && ranges("int", 768, 3, 0)); /* with the headers of all ranges */
    CHECK(!ranges("sign", 100000, 8, 1) && !ranges("int:bits=4", 100000, 8, 1));
    CHECK(ranges("qsgd", 100000, 8, 1) && ranges("vote", 100000, 8, 1));
}

static void test_every_callback_of_threads_may_fail(void)
{
    seat seats[MOST];
    uint64_t control[3];
    for (int which = FORMS; which-- > 0;) {
        choose_form(which);
        run_threads(seats, 3, few[1], ways[which], 0, -1);
        for (size_t w = 0; w < 3; w++) control[w] = seats[w].digest;
        CHECK(seats[0].at == (int)calls());
        for (int call = 0; call < (int)calls(); call++) {
            run_threads(seats, 3, few[1], ways[which], 0, call);
            for (size_t w = 0; w < 3; w++) {
                CHECK(seats[w].result[0] == GCOMP_CALLBACK_FAILED && seats[w].result[1] == GCOMP_OK);
                CHECK(seats[w].digest == control[w]);
            }
        }
    }
}

/* ---------------- bytes */

/* Workers whose gradients differ by a little noise: what one of them receives. */
static uint64_t received_by_one(size_t world, const char *codec, gcomp_aggregate aggregate)
{
    static const size_t n[1] = {40000};
    const gcomp_desc desc = desc_of(aggregate);
    uint64_t bytes;
    group g;
    group_open(&g, world, &desc, &codec, n, 1);
    for (size_t w = 0; w < world; w++)
        for (size_t i = 0; i < n[0]; i++) {
            float common = value_of(0, 0, 0, i);
            ((float *)g.grad[w][0])[i] = common * common * common + 0.02f * value_of(1, w, 1, i);
        }
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    bytes = g.received;
    group_close(&g);
    return bytes;
}

static void test_received_bytes_do_not_grow_with_the_world(void)
{
    const char *const plain = "topk:density=0.02", *const global = "topk:density=0.02,global=1";
    uint64_t gather[4], shards[4], kept[4], two_shot[4];
    for (size_t c = 0; c < 4; c++) {
        const size_t world = (size_t)2 << c;
        gather[c] = received_by_one(world, plain, GCOMP_AGGREGATE_GATHER);
        shards[c] = received_by_one(world, plain, GCOMP_AGGREGATE_SHARDS);
        kept[c] = received_by_one(world, global, GCOMP_AGGREGATE_SHARDS);
        two_shot[c] = received_by_one(world, "sign", GCOMP_AGGREGATE_TWO_SHOT);
        printf("# world %2d: bytes received by a worker, k = 800: gather %6d, shards %6d, global %6d; sign, two shots: %6d\n",
               (int)world, (int)gather[c], (int)shards[c], (int)kept[c], (int)two_shot[c]);
    }
    CHECK(two_shot[3] < 5 * two_shot[0] / 2); /* (world - 1) / world of two payloads, and headers */
    CHECK(gather[3] > 7 * gather[1] / 2);
    CHECK(shards[3] < 2 * shards[1] && 3 * shards[3] < gather[3]);
    CHECK(kept[3] < 2 * kept[1] && 3 * kept[3] < gather[3]);
}

int main(void)
{
    RUN(test_a_mean_made_by_ranges_has_the_bits_of_the_gather);
    RUN(test_ranges_follow_the_number_of_workers);
    RUN(test_sums_are_dense_where_that_is_shorter);
    RUN(test_global_topk_is_that_of_a_plain_reference);
    RUN(test_global_topk_loses_nothing);
    RUN(test_two_shots_are_those_of_a_plain_reference_and_lose_nothing);
    RUN(test_two_shots_have_the_same_bits_everywhere);
    RUN(test_two_shots_have_room_for_every_size);
    RUN(test_two_shots_apply_the_mean_in_the_end);
    RUN(test_two_shots_survive_a_save_and_another_world);
    RUN(test_two_shots_follow_other_codecs_of_a_list);
    RUN(test_two_shots_of_huge_numbers_stay_finite);
    RUN(test_two_shots_reach_the_loss_of_the_gather);
    RUN(test_a_request_that_fails_leaves_everything_as_it_was);
    RUN(test_every_damaged_byte_is_refused_without_a_trace);
    RUN(test_hostile_shards_are_refused_by_all);
    RUN(test_mutated_shards_do_no_harm);
    RUN(test_a_forged_length_ends_the_step_of_all_and_it_can_be_repeated);
    RUN(test_not_finite_on_one_worker_is_told_to_all);
    RUN(test_numbers_too_large_on_one_worker_are_told_with_the_totals);
    RUN(test_abort_in_every_stage_changes_nothing);
    RUN(test_every_allocation_may_fail_and_none_comes_later);
    RUN(test_workers_agree_on_the_way);
    RUN(test_a_missing_alltoallv_and_a_wrong_way_are_named);
    RUN(test_threads_give_the_bits_of_the_gather);
    RUN(test_threads_give_two_shots_the_bits_of_an_event_loop);
    RUN(test_auto_takes_the_form_that_receives_fewest_bytes);
    RUN(test_every_callback_of_threads_may_fail);
    RUN(test_received_bytes_do_not_grow_with_the_world);
    return test_end();
}
