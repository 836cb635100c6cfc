/* Proves of the mean made by ranges of elements: it has the bits of the gather; gTop-k and two shots give what plain references give. */

#include "group.h"

static const size_t worlds[] = {1, 2, 3, 4, 7, 8};

/* ---------------- the bits of the gather */

/* By ranges the values of these are coded range by range, and those of sums too. */
static int codes_sums(const char *text) { return strstr(text, "global=1") && strchr(text, '+'); }

/* Makes the l-th list of codecs, one for each tensor: sparse codecs of codecs.h that follow each
   other (the first ones follow the last one), and two others. Returns 0 if there is no such
   list. */
static int take_codecs(size_t l, const char **codecs)
{
    const char *sparse[ALL_CODECS];
    size_t count = 0, next = l * (TENSORS - 2);
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (codec_list[c].steps && codec_is_sparse(codec_list[c].text) && !codes_sums(codec_list[c].text))
            sparse[count++] = codec_list[c].text;
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
    const gcomp_step half = step_with(0.5f, -1, 0), first = default_step();
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
        CHECK(exchanges(&a) == 0 && exchanges(&b) == (world > 1 && b.skip != 0x7f ? 1 : 0));
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
    const gcomp_step first = GCOMP_STEP; /* dgc wants an epoch */
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
                CHECK(exchanges(&a) == 0 && exchanges(&b) == (b.world > 1 ? 1 : 0));
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

/* ---------------- only the largest sums are applied */

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

static size_t begin_of(size_t n, size_t world, size_t w)
{
    const size_t begin = ((n + world - 1) / world + 127) / 128 * 128 * w;
    return begin < n ? begin : n;
}

/* The bin of a sum that is not 0: bins of equal width in keys, from 2^-40 to 2^24. */
static size_t bin_of(float x, size_t bins)
{
    const uint32_t low = key_of(ldexpf(1, -40)), high = key_of(ldexpf(1, 24)), key = key_of(x);
    return key < low ? 0 : key >= high ? bins - 1 : (size_t)(key - low) * bins / (high - low);
}

/* y <- what the owners of ranges apply of x, about k elements: those above the bin in which the counts of all reach k, and a part
   of those in it, each owner its largest. Returns how many. */
static size_t plain_global(float *y, const float *x, size_t n, size_t world, size_t k, uint64_t step)
{
    static size_t count[MOST][1024];
    const uint32_t random = (uint32_t)plain_philox(gcomp_key_make(5, step, 0, 0).shared, 0, 7, 0);
    size_t bins = 16, bin, there = 0, larger = 0, all = 0;
    while (bins < 1024 && bins < k / 16) bins *= 2;
    memset(count, 0, sizeof count);
    for (size_t w = 0; w < world; w++)
        for (size_t i = begin_of(n, world, w); i < begin_of(n, world, w + 1); i++)
            if (x[i] != 0) count[w][bin_of(x[i], bins)]++;
    for (bin = bins; bin-- > 0; larger += there) {
        there = 0;
        for (size_t w = 0; w < world; w++) there += count[w][bin];
        if (larger + there > k) break;
    }
    for (size_t w = 0; w < world; w++) {
        const size_t begin = begin_of(n, world, w), end = begin_of(n, world, w + 1);
        const double part = (double)(uint32_t)(random + (uint32_t)w * 0x9e3779b9u) / 4294967296.0;
        size_t wanted = end - begin;
        if (bin < bins) { /* else fewer than k are not 0 */
            wanted = (size_t)floor((double)(count[w][bin] * (k - larger)) / (double)there + part);
            for (size_t b = bin + 1; b < bins; b++) wanted += count[w][b];
        }
        plain_topk(y + begin, x + begin, end - begin, wanted);
        for (size_t i = begin; i < end; i++) all += y[i] != 0;
    }
    return all;
}

/* A group of one tensor with global=1; value: "", or the value method with a plus before it. */
static void open_global(group *g, size_t world, const gcomp_desc *desc, size_t n, double density, const char *value)
{
    char text[64];
    const char *codec[1];
    snprintf(text, sizeof text, "topk:density=%g,global=1%s", density, value);
    codec[0] = text;
    group_open(g, world, desc, codec, &n, 1);
}

static void check_global(size_t world, size_t n, double density, int shape, gcomp_aggregate aggregate)
{
    static float e[8][ROOM], p[8][ROOM], sent[8][ROOM], sum[ROOM], kept[ROOM];
    const gcomp_desc desc = desc_of(aggregate);
    const size_t k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    const float part = 1.0f / (float)world;
    group g;
    open_global(&g, world, &desc, n, density, "");
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
                if (shape == 5) grad[i] *= i % 2 ? 1e-20f : 1e20f; /* below and above all bins */
                if (shape == 6) grad[i] = 0;
                p[w][i] = grad[i] + e[w][i];
            }
            plain_topk(sent[w], p[w], n, k);
            for (size_t i = 0; i < n; i++) {
                volatile float term = sent[w][i] * part;
                sum[i] = sum[i] + term;
            }
        }
        if (world == 1) plain_topk(kept, sum, n, n);
        else {
            const size_t all = plain_global(kept, sum, n, world, k, step);
            size_t some = 0;
            for (size_t i = 0; i < n; i++) some += sum[i] != 0;
            CHECK(all < k + world && all + world > (k < some ? k : some));
        }
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t w = 0; w < world; w++) {
            const float *residual = tensor_residual(g.gc[w], 0);
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
                for (int shape = 0; shape < 7; shape++) {
                    check_global(worlds[c], n[s], densities[d], shape, GCOMP_AGGREGATE_SHARDS);
                    if (c == 2) check_global(worlds[c], n[s], densities[d], shape, GCOMP_AGGREGATE_GATHER);
                }
}

/* y <- what is decoded of the elements of x that are not 0, as values of a sparse payload of their own. `sum`: of floats where that is
   shorter. */
static void pass_values(const char *value, const float *x, size_t n, uint64_t step, size_t rank, size_t range, int sum, float *y)
{
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    char text[64];
    if (!n) return;
    snprintf(text, sizeof text, "topk:density=1%s", value);
    pass(text, x, n, step, rank, range, y);
    if (sum && encode(text, x, n, payload, 1) >= 32 + 4 * n) memcpy(y, x, 4 * n);
}

/* The same with other values than floats: they are coded range by range, once for the owner and once for all. */
static void check_global_values(const char *value, size_t world, size_t n, double density)
{
    static float p[8][ROOM], e[8][ROOM], largest[ROOM], sent[8][ROOM], sum[ROOM], kept[ROOM], mean[ROOM];
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
    const size_t k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    const float part = 1.0f / (float)world;
    size_t wrong = 0, applied = 0;
    group g;
    open_global(&g, world, &desc, n, density, value);
    memset(e, 0, sizeof e);
    for (uint64_t step = 0; step < 4; step++) {
        group_fill(&g, step);
        memset(sum, 0, sizeof sum);
        for (size_t w = 0; w < world; w++) {
            for (size_t i = 0; i < n; i++) p[w][i] = ((float *)g.grad[w][0])[i] + e[w][i];
            plain_topk(largest, p[w], n, k);
            for (size_t o = 0; o < world; o++) {
                const size_t begin = begin_of(n, world, o);
                pass_values(value, largest + begin, begin_of(n, world, o + 1) - begin, step, w, o, 0, sent[w] + begin);
            }
            for (size_t i = 0; i < n; i++) {
                volatile float term = sent[w][i] * part;
                sum[i] = sum[i] + term;
            }
        }
        (void)plain_global(kept, sum, n, world, k, step);
        for (size_t o = 0; o < world; o++) {
            const size_t begin = begin_of(n, world, o), end = begin_of(n, world, o + 1);
            pass_values(value, kept + begin, end - begin, step, o, world, 1, mean + begin);
            for (size_t i = begin; i < end; i++) {
                for (size_t w = 0; w < world; w++) e[w][i] = mean[i] != 0 ? p[w][i] - sent[w][i] : p[w][i];
                volatile float lost = kept[i] - mean[i];
                lost = lost * (float)world;
                if (mean[i] != 0) e[o][i] = e[o][i] + lost;
                applied += mean[i] != 0;
            }
        }
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t w = 0; w < world; w++)
            for (size_t i = 0; i < n; i++) {
                mean[i] += 0.0f; /* -0 becomes 0 */
                wrong += memcmp(&mean[i], (float *)g.grad[w][0] + i, 4) || memcmp(&e[w][i], tensor_residual(g.gc[w], 0) + i, 4);
            }
    }
    if (wrong) printf("# topk%s, world %d, n %d: %d wrong\n", value, (int)world, (int)n, (int)wrong);
    CHECK(wrong == 0 && applied > 0);
    group_close(&g);
}

static void test_global_topk_codes_values_in_both_directions(void)
{
    static const char *const values[] = {"+int:bits=4", "+sign", "+int:bits=2,rounding=stochastic", "+fp16", "+int:block=16", "+lloyd"};
    static const size_t n[] = {5, 260, 2000};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (size_t c = 1; c < sizeof worlds / sizeof *worlds; c++)
            for (size_t s = 0; s < 3; s++) {
                check_global_values(values[v], worlds[c], n[s], 0.1);
                check_global_values(values[v], worlds[c], n[s], 0.5);
            }
}

/* Workers leave, a tensor is skipped, one holds NaN: all have one mean, and what was not applied is in the residuals. */
static void test_global_topk_conserves_the_mean_whatever_its_values(void)
{
    static const char *const values[] = {"", "+int:bits=4", "+sign", "+qsgd", "+natural", "+nvfp4", "+twobit"};
    static const size_t left[] = {6, 6, 5, 3, 2, 2}, n[2] = {1500, 700};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
        const char *codecs[2];
        char text[2][64];
        size_t applied = 0;
        group g;
        for (int t = 0; t < 2; t++) {
            snprintf(text[t], sizeof text[t], "topk:density=%s,global=1%s", t ? "0.3,exact=0" : "0.05", values[v]);
            codecs[t] = text[t];
        }
        group_open(&g, 6, &desc, codecs, n, 2);
        for (uint64_t step = 0; step < sizeof left / sizeof *left; step++) {
            static double given[2][1500];
            double worst = 0;
            if (left[step] < g.world) group_shrink(&g, left[step]);
            group_fill(&g, step);
            if (step == 1) { /* nothing changes */
                ((float *)g.grad[2][1])[6] = NAN;
                group_step(&g);
                CHECK(all_are(&g, GCOMP_NOT_FINITE));
                group_fill(&g, step);
            }
            g.skip = step == 2 ? 1 : 0;
            memset(given, 0, sizeof given);
            for (size_t w = 0; w < g.world; w++)
                for (size_t t = 0; t < 2; t++)
                    for (size_t i = 0; i < n[t]; i++) given[t][i] += (double)((float *)g.grad[w][t])[i] + (double)tensor_residual(g.gc[w], t)[i];
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t t = g.skip; t < 2; t++)
                for (size_t i = 0; i < n[t]; i++) {
                    double rest = (double)g.world * (double)((float *)g.grad[0][t])[i];
                    applied += rest != 0;
                    for (size_t w = 0; w < g.world; w++) rest += (double)tensor_residual(g.gc[w], t)[i];
                    worst = fmax(worst, fabs(rest - given[t][i]));
                }
            CHECK(worst < 1e-5);
            for (size_t w = 1; w < g.world; w++)
                for (size_t t = g.skip; t < 2; t++) CHECK(!memcmp(g.grad[0][t], g.grad[w][t], 4 * n[t]));
        }
        CHECK(applied > 100);
        group_close(&g);
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
        for (size_t w = 0; w < 4; w++) rest += (double)tensor_residual(g.gc[w], 0)[i];
        wrong += given[i] - applied[i] - rest != 0;
    }
    CHECK(wrong == 0 && most >= 12 && most < 12 + 4);
    group_close(&g);
}

/* ---------------- two shots */

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
            const float *grad = (const float *)g.grad[w][0], *e = tensor_residual(g.gc[w], 0);
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
        CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 1);
        for (size_t w = 0; w < world; w++) {
            wrong += memcmp(g.grad[w][0], plain_mean, 4 * n) != 0;
            if (!tensor_residual(g.gc[w], 0)) continue;
            wrong += memcmp(tensor_residual(g.gc[w], 0), plain_rest[w], 4 * n) != 0;
            wrong += fabs(error_of(g.gc[w]) - plain_error(world, n, w)) > 1e-6;
        }
        for (size_t i = 0; i < n; i++) applied[i] += (double)plain_mean[i];
    }
    for (size_t i = 0; i < n && tensor_residual(g.gc[0], 0); i++) {
        double e = 0;
        for (size_t w = 0; w < world; w++) e += (double)tensor_residual(g.gc[w], 0)[i] / (double)world;
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
        if (isa >= GCOMP_ISA_SCALAR && !isa_available((gcomp_isa)isa)) continue;
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
            CHECK(all_are(&b, GCOMP_OK) && exchanges(&b) == 1);
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
    static const char *const codecs[] = {"eden", "eden:bits=4,block=64", "sign", "ecsq:bits=3.8", "qsgd:code=entropy", "terngrad:code=entropy", "mx"};
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
                CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 1);
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
        keeps = tensor_residual(g.gc[0], 0) != NULL;
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
    for (size_t w = 0; w < g->world; w++) e += (double)tensor_residual(g->gc[w], 0)[i];
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
            CHECK(gcomp_load(b.gc[w], saved, length + w, 1, NULL) == GCOMP_OK);
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
    CHECK(all_are(&a, GCOMP_OK) && exchanges(&a) == 1);
    for (size_t i = 0; i < n[0]; i++)
        lost += fabs(before[i] - waits(&a, i) - (double)((float *)a.grad[0][0])[i]) > 2e-6 * (1 + fabs(before[i]));
    CHECK(wrong == 0 && lost == 0);
    CHECK(gcomp_residual_set(a.gc[0], 0, NULL) == GCOMP_OK && tensor_residual(a.gc[0], 0)[0] == 0);
    group_close(&a);
    group_close(&b);
}

/* What is not sent in one form waits in the same residual for the next codec of a list:
   uncompressed, sparse, two shots. */
static void test_two_shots_follow_other_codecs_of_a_list(void)
{
    static const char *const codec[1] = {NULL};
    static const size_t n[1] = {1500};
    static const int requests[] = {2, 6, 3, 3, 3}; /* frames, then a sum, or stages; shards of known lengths have two */
    static double given[1500], applied[1500];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    gcomp_step how = GCOMP_STEP;
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
        CHECK(all_are(&g, GCOMP_OK) && g.carried == (size_t)requests[step] && exchanges(&g) == (step ? 1 : 0));
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
                    const float *e = tensor_residual(g.gc[w], 0);
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

int main(void)
{
    RUN(test_a_mean_made_by_ranges_has_the_bits_of_the_gather);
    RUN(test_ranges_follow_the_number_of_workers);
    RUN(test_sums_are_dense_where_that_is_shorter);
    RUN(test_global_topk_is_that_of_a_plain_reference);
    RUN(test_global_topk_codes_values_in_both_directions);
    RUN(test_global_topk_conserves_the_mean_whatever_its_values);
    RUN(test_global_topk_loses_nothing);
    RUN(test_two_shots_are_those_of_a_plain_reference_and_lose_nothing);
    RUN(test_two_shots_have_the_same_bits_everywhere);
    RUN(test_two_shots_have_room_for_every_size);
    RUN(test_two_shots_apply_the_mean_in_the_end);
    RUN(test_two_shots_survive_a_save_and_another_world);
    RUN(test_two_shots_follow_other_codecs_of_a_list);
    RUN(test_two_shots_of_huge_numbers_stay_finite);
    RUN(test_two_shots_reach_the_loss_of_the_gather);
    return test_end();
}
