/* Proves of small residuals (desc.residual): a group of workers that keeps them as bf16 or int8 does in each step what a
   group with floats does that begins with the same residuals, bit for bit, for every codec and every way to make the mean; and
   then keeps these residuals rounded, as a plain loop and as the method int round them. Then saves, workers that leave and
   join, failures, and memory. */
#include "codecs.h"
#include "test.h"

#include <float.h>

enum { WORLDS = 5, MOST_TENSORS = 3, MOST_ROOM = 3000 };

static const char *const kinds[] = {"fp32", "bf16", "int8"};
static gcomp_dtype types[MOST_TENSORS] = {GCOMP_F32, GCOMP_BF16, GCOMP_F16}; /* of gradients */

/* ---------------- what a small residual is, in plain words */

/* A float as bf16 keeps it: rounded to nearest, ties to even; the largest bf16 where that would be infinite. */
static float plain_bf16(float x)
{
    uint32_t u = bits_of(x);
    u += 0x7fffu + (u >> 16 & 1);
    if ((u & 0x7f800000u) == 0x7f800000u) u = (u & 0x80000000u) | 0x7f7f0000u;
    return float_of(u & 0xffff0000u);
}

/* x[n] as a residual of this kind keeps it. */
static void plain_keep(const char *kind, float *x, size_t n)
{
    static uint8_t payload[GCOMP_BOUND(MOST_ROOM)];
    static float y[MOST_ROOM];
    gcomp_codec codec;
    gcomp_input in = {0};
    in.scale = 1;
    size_t length = 0;
    for (size_t i = 0; i < n && !strcmp(kind, "bf16"); i++) x[i] = plain_bf16(x[i]);
    if (strcmp(kind, "int8")) return;
    in.grad = x;
    in.rows = n;
    CHECK(n <= MOST_ROOM && gcomp_codec_parse(&codec, "int:bits=8,block=128", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, y, n, NULL) == GCOMP_OK);
    memcpy(x, y, 4 * n);
}

/* Are bf16 residuals of this codec rounded to nearest? Of others, and int8, they are rounded up or down at random. */
static int keeps_to_nearest(const char *kind, const char *codec)
{
    static const char *const names[] = {"sign", "onebit", "int", "fp8", "mx", "nvfp4", "e3m0", "nf4"};
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
    for (size_t i = 0; i < n; i++) {
        double most = 0;
        for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128 && j < n; j++) most = fmax(most, fabs((double)x[j]));
        if (!strcmp(kind, "bf16")) bad += !is_beside(kept[i], x[i]);
        else bad += !(fabs((double)kept[i] - (double)x[i]) <= most / 127 * (1 + 1e-4) + 2e-45 * 128) || (x[i] == 0 && kept[i] != 0);
    }
    return bad;
}

/* ---------------- workers in lock-step */

typedef struct group {
    size_t world, count, n[MOST_TENSORS];
    gcomp *gc[WORLDS];
    float *grad[WORLDS][MOST_TENSORS];
    float *grads[WORLDS][MOST_TENSORS]; /* what a step gets: grad, or NULL */
    gcomp_result result[WORLDS];
    gcomp_step step;
    size_t calls;      /* requests of the last step */
    size_t fail_call;  /* the number of a request that fails; SIZE_MAX: none */
    size_t fail_rank;  /* on this worker; WORLDS: on all */
} group;

static gcomp_desc desc_of(const char *kind, gcomp_aggregate aggregate)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.residual = kind;
    desc.aggregate = aggregate;
    desc.seed = 11;
    desc.compress_vectors = 1;
    desc.min_elements = 1;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return desc;
}

/* A matrix wherever n allows one. */
static gcomp_tensor tensor_of(size_t t, size_t n, const char *codec)
{
    static const char *const names[MOST_TENSORS] = {"a", "b", "c"};
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = names[t];
    tensor.rows = n % 20 == 0 ? n / 20 : n;
    tensor.cols = n % 20 == 0 ? 20 : 1;
    tensor.codec = codec;
    tensor.dtype = types[t];
    return tensor;
}

static void group_open(group *g, size_t world, const gcomp_desc *base, const char *const *codecs, const size_t *n, size_t count)
{
    memset(g, 0, sizeof *g);
    g->step = gcomp_step_default();
    g->world = world;
    g->count = count;
    g->fail_call = SIZE_MAX;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            const gcomp_tensor tensor = tensor_of(t, n[t], codecs[t]);
            g->n[t] = n[t];
            g->grad[w][t] = (float *)calloc(n[t], 4);
            CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
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

/* Gradients with some rows of zeros, and one element that is huge in step 2. */
static float gradient_at(uint64_t step, size_t w, size_t t, size_t i)
{
    const uint64_t common = mix(step * 64 + t) + i, own = mix(step * 64 + t + 16 * (w + 1)) + i;
    if (i / 200 % 5 == 3) return 0;
    if (step % 7 == 2 && i == 77) return 1e20f;
    return normal(common % 100000) * 0.3f + normal(own % 100000) * (i / 128 % 3 == 1 ? 1e-3f : 0.5f);
}

static void group_fill(group *g, uint64_t step)
{
    static float x[MOST_ROOM];
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) {
            for (size_t i = 0; i < g->n[t]; i++) x[i] = gradient_at(step, w, t, i);
            if (types[t] == GCOMP_F32) memcpy(g->grad[w][t], x, 4 * g->n[t]);
            else CHECK(gcomp_from_float(g->grad[w][t], x, types[t], g->n[t], NULL) == GCOMP_OK);
        }
}

static size_t sum_to(const size_t *bytes, size_t end)
{
    size_t sum = 0;
    for (size_t i = 0; i < end; i++) sum += bytes[i];
    return sum;
}

/* to[i] += from[i] for fp16 or bf16. */
static void add_halves(void *to, const void *from, size_t count, gcomp_dtype dtype)
{
    static float x[MOST_TENSORS * MOST_ROOM], y[MOST_TENSORS * MOST_ROOM];
    CHECK(gcomp_to_float(x, to, dtype, count, NULL) == GCOMP_OK && gcomp_to_float(y, from, dtype, count, NULL) == GCOMP_OK);
    for (size_t i = 0; i < count; i++) x[i] += y[i];
    CHECK(gcomp_from_float(to, x, dtype, count, NULL) == GCOMP_OK);
}

/* Carries out a request of all workers. */
static void carry(size_t world, gcomp_request *r)
{
    for (size_t w = 1; request_is_a_reduction(r) && w < world; w++) {
        if (bytes_of_dtype(r->dtype) == 2 && r->dtype != GCOMP_I16) add_halves(r->recv, r[w].recv, r->count, r->dtype);
        else plain_reduce(r, r + w);
    }
    for (size_t w = 1; request_is_a_reduction(r) && w < world; w++)
        memcpy(r[w].recv, r->recv, r->count * bytes_of_dtype(r->dtype));
    for (size_t w = 0; !request_is_a_reduction(r) && w < world; w++)
        for (size_t from = 0; from < world; from++) {
            CHECK(r[w].kind == r->kind);
            if (r->kind == GCOMP_ALLTOALL)
                memcpy((uint8_t *)r[w].recv + sum_to(r[w].bytes, from),
                       (const uint8_t *)r[from].send + sum_to(r[from].send_bytes, w), r[w].bytes[from]);
            else memcpy((uint8_t *)r[w].recv + from * r[w].stride, r[from].send, r[w].bytes[from]);
        }
}

/* A step as an event loop takes it. Workers have the same requests in the same order. */
static void group_step(group *g)
{
    int finished = 0;
    g->calls = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->result[w] = gcomp_step_begin(g->gc[w], &g->step);
        for (size_t t = 0; t < g->count; t++) CHECK(gcomp_step_ready(g->gc[w], t, g->grad[w][t]) == GCOMP_OK);
    }
    while (!finished) {
        gcomp_request r[WORLDS];
        size_t asked = 0;
        for (size_t w = 0; w < g->world; w++) {
            if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_next(g->gc[w], r + w);
            if (g->result[w] != GCOMP_OK) continue;
            asked++;
            finished |= r[w].kind == GCOMP_DONE;
        }
        if (asked < g->world) { /* the others see the transport fail */
            for (size_t w = 0; w < g->world; w++)
                if (g->result[w] == GCOMP_OK && r[w].kind != GCOMP_DONE) g->result[w] = gcomp_step_done(g->gc[w], r[w].id, 9);
            break;
        }
        if (finished) break;
        carry(g->world, r);
        for (size_t w = 0; w < g->world; w++) {
            const int fails = g->calls == g->fail_call && (g->fail_rank == WORLDS || g->fail_rank == w);
            g->result[w] = gcomp_step_done(g->gc[w], r[w].id, fails ? 5 : 0);
        }
        g->calls++;
    }
    for (size_t w = 0; w < g->world && finished; w++)
        if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_commit(g->gc[w]);
}

static int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

/* All gradients and residuals of a worker. */
static uint64_t digest(const group *g, size_t w)
{
    static float e[MOST_ROOM];
    uint64_t h = FNV;
    for (size_t t = 0; t < g->count; t++) {
        h = fnv(h, g->grad[w][t], 4 * g->n[t]);
        if (gcomp_residual_get(g->gc[w], t, e) == GCOMP_OK) h = fnv(h, e, 4 * g->n[t]);
    }
    return h;
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
        CHECK(gcomp_residual_set(g.gc[0], 0, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(g.gc[0]), "tensor 'a': from is NULL"));
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
            float *to = (float *)(uintptr_t)gcomp_residual(b->gc[w], t);
            CHECK(gcomp_residual(a->gc[w], t) == NULL);
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
            const float *e = gcomp_residual(b->gc[w], t);
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
    static const char *const texts[] = {"sign", "topk:density=0.05", "twobit", "int:bits=4,code=auto"};
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
    static const char *const texts[] = {"sign", "int:bits=4,code=auto", "topk:density=0.05", "eden:bits=2,feedback=1", "fp8"};
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
            CHECK(gcomp_reset(a.gc[0], 0) == GCOMP_OK && gcomp_reset(b.gc[0], 0) == GCOMP_OK);
            CHECK(compare(&a, &b, kind, texts[c]) == 0);
            types[0] = GCOMP_F32;
            group_close(&a);
            group_close(&b);
        }
}

/* Two workers with these options say in their first step that they differ, and in what. */
static void expect_mismatch(const gcomp_desc *first, const gcomp_desc *second, const char *what)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {300};
    const gcomp_tensor tensor = tensor_of(0, n[0], codec[0]);
    gcomp_desc desc = *second;
    group g;
    group_open(&g, 2, first, codec, n, 1);
    gcomp_close(g.gc[1]);
    desc.comm.rank = 1;
    desc.comm.world = 2;
    CHECK(gcomp_open(&g.gc[1], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[1], &tensor) == GCOMP_OK);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_MISMATCH) && strstr(gcomp_error(g.gc[0]), what));
    group_close(&g);
}

/* ---------------- residuals that decay */

/* After a step of both from the same residuals: those of a are 3/4 of those of b, rounded once. */
static void compare_decayed(const group *a, const group *b, const char *kind, const char *what)
{
    static float kept[MOST_ROOM], plain[MOST_ROOM];
    for (size_t w = 0; w < a->world; w++)
        for (size_t t = 0; t < a->count; t++) {
            const size_t bytes = 4 * a->n[t];
            const float *e = gcomp_residual(b->gc[w], t);
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
                float *to = (float *)(uintptr_t)gcomp_residual(b.gc[w], t);
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
            CHECK(gcomp_decode(bytes, length, sent, n[0], NULL) == GCOMP_OK);
            CHECK(gcomp_commit(g.gc[0], 0, grad, step == 4 ? NULL : bytes, length, NULL, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
            for (size_t i = 0; i < n[0]; i++) wrong += e[i] != 0.5f * (step == 4 ? p[i] : p[i] - sent[i]);
        }
        CHECK(gcomp_give_back(g.gc[0], 0, bytes, length) == GCOMP_OK);
        for (size_t i = 0; i < n[0]; i++) wrong += gcomp_residual(g.gc[0], 0)[i] != e[i] + 0.5f * sent[i];
        g.grad[0][0][7] = INFINITY;
        memcpy(e, gcomp_residual(g.gc[0], 0), sizeof e);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_NOT_FINITE) && !memcmp(e, gcomp_residual(g.gc[0], 0), sizeof e));
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

/* ---------------- saves, and workers that come and go */

enum { SAVE_ROOM = 200000 };
static const char *const saved_codecs[MOST_TENSORS] = {"sign", "topk:density=0.05", "powersgd:rank=1"};
static const size_t saved_n[MOST_TENSORS] = {1333, 700, 260};
static uint8_t saves[WORLDS][SAVE_ROOM];
static size_t save_lengths[WORLDS];

static void saved_group(group *g, const char *kind, size_t world, uint64_t steps)
{
    const gcomp_desc desc = desc_of(kind, GCOMP_AGGREGATE_AUTO);
    group_open(g, world, &desc, saved_codecs, saved_n, MOST_TENSORS);
    for (uint64_t step = 0; step < steps; step++) {
        group_fill(g, step);
        group_step(g);
        CHECK(all_are(g, GCOMP_OK));
    }
}

static void save_all(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        CHECK(gcomp_save_size(g->gc[w]) <= SAVE_ROOM);
        CHECK(gcomp_save(g->gc[w], saves[w], SAVE_ROOM, &save_lengths[w]) == GCOMP_OK);
        CHECK(save_lengths[w] == gcomp_save_size(g->gc[w]));
    }
}

static void test_a_save_brings_back_every_bit(void)
{
    for (int k = 1; k < 3; k++) {
        group a, b;
        saved_group(&a, kinds[k], 3, 3);
        saved_group(&b, kinds[k], 3, 1);
        save_all(&a);
        for (size_t w = 0; w < 3; w++) {
            const void *const save[] = {saves[w]};
            CHECK(gcomp_load(b.gc[w], save, &save_lengths[w], 1) == GCOMP_OK);
        }
        for (uint64_t step = 3; step < 5; step++) {
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
            for (size_t w = 0; w < 3; w++) CHECK(digest(&a, w) == digest(&b, w));
        }
        group_close(&a);
        group_close(&b);
    }
}

/* Bytes in front of the residual of the first tensor in a save without a schedule: a header, and the records. */
static size_t first_residual(const uint8_t *save) { return 60 + (size_t)get_word(save + 52, 8); }

/* Beside the floats of the state, saves differ in the bytes of the residuals alone: >>format says how many. */
static void test_saves_have_the_bytes_that_the_format_says(void)
{
    static float e[MOST_ROOM];
    size_t length[3], bytes[3] = {0, 0, 0};
    for (size_t t = 0; t < MOST_TENSORS; t++) {
        bytes[0] += 4 * saved_n[t];
        bytes[1] += 2 * saved_n[t];
        bytes[2] += saved_n[t] + (saved_n[t] + 127) / 128 * 4;
    }
    for (int k = 0; k < 3; k++) {
        size_t wrong = 0;
        group g;
        saved_group(&g, kinds[k], 2, 2);
        save_all(&g);
        const size_t at = first_residual(saves[0]);
        length[k] = save_lengths[0];
        CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[0]; i++) {
            const uint8_t *s = saves[0] + at;
            float x = float_of((uint32_t)get_word(s + 4 * i, 4));
            if (k == 1) x = float_of((uint32_t)get_word(s + 2 * i, 2) << 16);
            if (k == 2) x = float_of((uint32_t)get_word(s + i / 128 * 132, 4)) * (float)(int8_t)s[i / 128 * 132 + 4 + i % 128];
            wrong += bits_of(x) != bits_of(e[i]);
        }
        CHECK(wrong == 0);
        group_close(&g);
    }
    CHECK(length[0] - length[1] == bytes[0] - bytes[1] && length[0] - length[2] == bytes[0] - bytes[2]);
}

static void test_a_save_of_another_kind_is_refused(void)
{
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            const void *const save[] = {saves[0]};
            char sentence[64];
            uint64_t before;
            group a, b;
            saved_group(&a, kinds[from], 1, 2);
            saved_group(&b, kinds[to], 1, 1);
            save_all(&a);
            before = digest(&b, 0);
            snprintf(sentence, sizeof sentence, "its residual is %s there", kinds[from]);
            CHECK(gcomp_load(b.gc[0], save, save_lengths, 1) == (from == to ? GCOMP_OK : GCOMP_SAVE_MISMATCH));
            if (from != to) {
                CHECK(strstr(gcomp_error(b.gc[0]), sentence) != NULL && digest(&b, 0) == before);
                CHECK(gcomp_join(b.gc[0], saves[0], save_lengths[0]) == GCOMP_SAVE_MISMATCH);
                CHECK(gcomp_take_over(b.gc[0], saves[0], save_lengths[0]) == GCOMP_SAVE_MISMATCH);
                CHECK(digest(&b, 0) == before);
            }
            group_close(&a);
            group_close(&b);
        }
}

/* gcomp_load_some rounds the residuals of another kind, also where a tensor has more rows than in the save. */
static void test_a_save_of_another_kind_is_rounded_where_it_may_be(void)
{
    static const size_t rows[] = {5, 7, 31, 40};
    static float e[2][MOST_ROOM], now[MOST_ROOM], expected[MOST_ROOM];
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                for (size_t more = 0; more < 3; more++)
                    for (size_t world = 1; world < 3; world++) { /* the own save, or the mean of two */
                        const gcomp_desc were = desc_of(kinds[from], GCOMP_AGGREGATE_AUTO), are = desc_of(kinds[to], GCOMP_AGGREGATE_AUTO);
                        const size_t n[] = {20 * rows[r]}, grown[] = {20 * (rows[r] + 9 * more)};
                        const char *const codec[] = {"topk:density=0.1"};
                        const void *const both[] = {saves[0], saves[1]};
                        char report[200], what[100];
                        group a, b;
                        group_open(&a, 2, &were, codec, n, 1);
                        group_open(&b, world == 1 ? 2 : 1, &are, codec, grown, 1);
                        for (uint64_t step = 0; step < 2; step++) {
                            group_fill(&a, step);
                            group_step(&a);
                            group_fill(&b, step + 5);
                            group_step(&b);
                        }
                        save_all(&a);
                        for (size_t w = 0; w < 2; w++) CHECK(gcomp_residual_get(a.gc[w], 0, e[w]) == GCOMP_OK);
                        CHECK(gcomp_load_some(b.gc[0], both, save_lengths, 2, report, sizeof report, NULL) == GCOMP_OK);
                        CHECK(gcomp_residual_get(b.gc[0], 0, now) == GCOMP_OK);
                        memset(expected, 0, sizeof expected);
                        for (size_t i = 0; i < *n; i++)
                            expected[i] = world == 1 ? e[0][i] : (float)(((double)e[0][i] + (double)e[1][i]) * 0.5);
                        if (from != to || world > 1) plain_keep(kinds[to], expected, *grown);
                        CHECK(!memcmp(now, expected, 4 * *grown));
                        snprintf(what, sizeof what, "its residual is %s there, %s here: its residual is taken", kinds[from], kinds[to]);
                        CHECK(more ? strstr(report, "rows is taken, all else begins empty") != NULL : from == to ? !*report : strstr(report, what) != NULL);
                        group_close(&a);
                        group_close(&b);
                    }
}

/* A save that somebody made up: its checksum is right, and a value is none. */
static void test_residuals_that_no_worker_keeps_are_refused(void)
{
    static const struct {
        int kind;
        size_t at;
        int bytes;
        uint64_t word;
        gcomp_result result;
    } forged[] = {{1, 2, 2, 0x7f80, GCOMP_CORRUPT},     {1, 2, 2, 0xff81, GCOMP_CORRUPT},     {1, 2, 2, 0xff7f, GCOMP_OK},
                  {2, 0, 4, 0x7f800000, GCOMP_CORRUPT}, {2, 0, 4, 0x7fc00000, GCOMP_CORRUPT}, {2, 132, 4, 0x80000000, GCOMP_CORRUPT},
                  {2, 132, 4, 0x7f7fffff, GCOMP_CORRUPT}, {2, 0, 4, 0x7c010203, GCOMP_OK},    {2, 140, 1, 0x80, GCOMP_CORRUPT},
                  {2, 140, 1, 0x81, GCOMP_OK}};
    for (size_t f = 0; f < sizeof forged / sizeof *forged; f++) {
        const void *const save[] = {saves[0]};
        uint64_t before;
        group g;
        saved_group(&g, kinds[forged[f].kind], 1, 2);
        save_all(&g);
        before = digest(&g, 0);
        put_word(saves[0] + first_residual(saves[0]) + forged[f].at, forged[f].word, forged[f].bytes);
        put_word(saves[0] + save_lengths[0] - 4, plain_crc(0, saves[0], save_lengths[0] - 4), 4);
        const gcomp_result result = gcomp_load(g.gc[0], save, save_lengths, 1);
        if (result != forged[f].result) printf("# word %x: %s\n", (unsigned)forged[f].word, gcomp_result_name(result));
        CHECK(result == forged[f].result);
        if (forged[f].result) CHECK(digest(&g, 0) == before && strstr(gcomp_error(g.gc[0]), "tensor 'a': its residual holds"));
        group_close(&g);
    }
}

/* Worker 2 leaves, worker 0 takes over, both regroup, and another one joins: as with floats, then rounded. */
static void test_workers_leave_and_join(void)
{
    static float e[3][MOST_TENSORS][MOST_ROOM], now[MOST_ROOM];
    for (int k = 1; k < 3; k++) {
        gcomp_comm comm;
        gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
        gcomp *joins;
        size_t length = 0;
        group g;
        memset(&comm, 0, sizeof comm);
        comm.world = 2;
        saved_group(&g, kinds[k], 3, 3);
        save_all(&g);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MOST_TENSORS; t++) CHECK(gcomp_residual_get(g.gc[w], t, e[w][t]) == GCOMP_OK);
        CHECK(gcomp_take_over(g.gc[0], saves[2], save_lengths[2]) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            for (size_t i = 0; i < saved_n[t]; i++) e[0][t][i] = (float)((double)e[0][t][i] + (double)e[2][t][i]);
            plain_keep(kinds[k], e[0][t], saved_n[t]);
            CHECK(gcomp_residual_get(g.gc[0], t, now) == GCOMP_OK && !memcmp(now, e[0][t], 4 * saved_n[t]));
        }
        for (size_t w = 0; w < 2; w++) {
            comm.rank = (int)w;
            CHECK(gcomp_regroup(g.gc[w], &comm) == GCOMP_OK);
            for (size_t t = 0; t < MOST_TENSORS; t++) {
                for (size_t i = 0; i < saved_n[t]; i++) e[w][t][i] = (float)((double)e[w][t][i] * (2.0 / 3));
                plain_keep(kinds[k], e[w][t], saved_n[t]);
                CHECK(gcomp_residual_get(g.gc[w], t, now) == GCOMP_OK && !memcmp(now, e[w][t], 4 * saved_n[t]));
            }
        }
        desc.comm.world = 2;
        CHECK(gcomp_open(&joins, &desc) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            const gcomp_tensor tensor = tensor_of(t, saved_n[t], saved_codecs[t]);
            CHECK(gcomp_add_tensor(joins, &tensor) == GCOMP_OK);
        }
        CHECK(gcomp_save(g.gc[1], saves[1], SAVE_ROOM, &length) == GCOMP_OK);
        CHECK(gcomp_join(joins, saves[1], length) == GCOMP_OK && gcomp_step_number(joins) == 3);
        CHECK(gcomp_residual_get(joins, 1, now) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[1]; i++) CHECK(now[i] == 0);
        gcomp_close(joins);
        group_close(&g);
    }
}

/* Two workers load the saves of three: the mean of the residuals, in double, rounded once to a float and once more. */
static void test_another_number_of_workers_takes_the_mean_of_residuals(void)
{
    static float e[3][MOST_ROOM], now[MOST_ROOM];
    const void *const all[] = {saves[0], saves[1], saves[2]};
    for (int k = 1; k < 3; k++) {
        group a, b;
        saved_group(&a, kinds[k], 3, 3);
        save_all(&a);
        saved_group(&b, kinds[k], 2, 1);
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_load(b.gc[w], all, save_lengths, 3) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_residual_get(a.gc[w], t, e[w]) == GCOMP_OK);
            for (size_t i = 0; i < saved_n[t]; i++) {
                volatile double sum = (double)e[0][i] + (double)e[1][i];
                sum += (double)e[2][i];
                sum *= 1.0 / 3;
                e[0][i] = (float)sum;
            }
            plain_keep(kinds[k], e[0], saved_n[t]);
            for (size_t w = 0; w < 2; w++)
                CHECK(gcomp_residual_get(b.gc[w], t, now) == GCOMP_OK && !memcmp(now, e[0], 4 * saved_n[t]));
        }
        CHECK(gcomp_restart(b.gc[0], 7) == GCOMP_OK && gcomp_residual_get(b.gc[0], 0, now) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[0]; i++) CHECK(now[i] == 0);
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- failures */

/* Each request fails once, on one worker and on all. */
static void failing_requests(const gcomp_desc *desc, const char *const *codecs, const size_t *n, size_t calls)
{
    for (size_t call = 0; call < calls; call++)
        for (size_t rank = 1; rank <= WORLDS; rank += WORLDS - 1) {
            uint64_t before[3];
            group g;
            group_open(&g, 3, desc, codecs, n, MOST_TENSORS);
            for (uint64_t step = 0; step < 2; step++) group_fill(&g, step), group_step(&g);
            CHECK(all_are(&g, GCOMP_OK) && g.calls == calls);
            group_fill(&g, 2);
            for (size_t w = 0; w < 3; w++) before[w] = digest(&g, w);
            g.fail_call = call;
            g.fail_rank = rank;
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int last = call + 1 == calls && rank < WORLDS && w != rank; /* who has all may commit */
                CHECK(g.result[w] != GCOMP_OK || last);
                if (g.result[w] != GCOMP_OK) CHECK(digest(&g, w) == before[w]);
            }
            g.fail_call = SIZE_MAX;
            if (rank == WORLDS) {
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
                CHECK(digest(&g, 0) != before[0]);
            }
            group_close(&g);
        }
}

static void test_a_request_that_fails_leaves_small_residuals_as_they_were(void)
{
    static const char *const codecs[][MOST_TENSORS] = {{"sign", "topk:density=0.1", "powersgd:rank=1"},
                                                       {"int:bits=4", "eden:bits=2,feedback=1", "onebit"}};
    static const size_t n[MOST_TENSORS] = {900, 1100, 820};
    for (size_t c = 0; c < 2; c++)
        for (int k = 1; k < 3; k++) {
            gcomp_desc desc = desc_of(kinds[k], c ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_AUTO);
            group g;
            group_open(&g, 3, &desc, codecs[c], n, MOST_TENSORS);
            group_fill(&g, 0);
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            group_close(&g);
            failing_requests(&desc, codecs[c], n, g.calls);
        }
}

/* NaN on one worker: all skip the step. */
static void test_a_skipped_step_changes_nothing(void)
{
    for (int k = 1; k < 3; k++) {
        uint64_t before[3];
        group g;
        saved_group(&g, kinds[k], 3, 2);
        group_fill(&g, 2);
        g.grad[1][0][700] = NAN;
        for (size_t w = 0; w < 3; w++) before[w] = digest(&g, w);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_NOT_FINITE));
        for (size_t w = 0; w < 3; w++) CHECK(digest(&g, w) == before[w]);
        CHECK(gcomp_commit(g.gc[1], 0, g.grad[1][0], NULL, 0, NULL, NULL, 0) == GCOMP_NOT_FINITE && digest(&g, 1) == before[1]);
        group_close(&g);
    }
}

/* ---------------- memory */

static void test_memory_is_what_was_said(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++)
        for (int k = 0; k < 3; k++)
            for (int way = 0; way < 2; way++) {
                gcomp_desc desc = desc_of(kinds[k], way ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_AUTO);
                gcomp_tensor tensors[2];
                test_heap heap = {SIZE_MAX, 0, 0, 0};
                gcomp *gc;
                size_t needed;
                desc.comm.world = 3;
                desc.allocator = heap_of(&heap);
                for (size_t t = 0; t < 2; t++) tensors[t] = tensor_of(t, shapes[c % 4][t], codec_list[c].text);
                needed = gcomp_memory_needed(&desc, tensors, 2);
                CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
                for (size_t t = 0; t < 2; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
                CHECK(gcomp_prepare(gc) == GCOMP_OK && gcomp_memory_used(gc) == needed && heap.held == needed);
                gcomp_close(gc);
                CHECK(heap.held == 0 && heap.blocks == 0);
            }
}

/* What one large tensor takes beside the buffers of its steps: 4, 2, or 1.03 bytes an element. */
static void test_a_residual_takes_the_bytes_that_the_manual_says(void)
{
    static const double each[] = {4, 2, 1.03125};
    gcomp_tensor tensor = tensor_of(0, 1 << 20, "sign");
    gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
    desc.no_error_feedback = 1;
    const double without = (double)gcomp_memory_needed(&desc, &tensor, 1);
    desc.no_error_feedback = 0;
    for (int k = 0; k < 3; k++) {
        desc.residual = kinds[k];
        CHECK((double)gcomp_memory_needed(&desc, &tensor, 1) - without == each[k] * (1 << 20));
    }
}

/* Every allocation fails once: opening, adding, preparing, and calls on one tensor without gcomp_prepare. */
static void test_every_allocation_may_fail(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.1"};
    static float grad[900], e[900];
    static uint8_t payload[GCOMP_BOUND(900)];
    for (size_t c = 0; c < 2; c++)
        for (size_t left = 0, done = 0; !done; left++) {
            gcomp_desc desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
            const gcomp_tensor tensor = tensor_of(0, 900, texts[c]);
            test_heap heap = {left, 0, 0, 0};
            gcomp *gc = NULL;
            size_t length = 0;
            gcomp_result result;
            desc.allocator = heap_of(&heap);
            for (size_t i = 0; i < 900; i++) grad[i] = gradient_at(0, 0, 0, i);
            result = gcomp_open(&gc, &desc);
            if (result == GCOMP_OK) result = gcomp_add_tensor(gc, &tensor);
            if (result == GCOMP_OK) result = gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length);
            if (result == GCOMP_OK) result = gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0);
            if (result == GCOMP_OK) {
                CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK);
                result = gcomp_give_back(gc, 0, payload, length);
                if (result != GCOMP_OK) {
                    float after[900];
                    CHECK(gcomp_residual_get(gc, 0, after) == GCOMP_OK && !memcmp(e, after, sizeof e));
                }
            }
            if (result == GCOMP_OK) result = gcomp_prepare(gc);
            CHECK(result == GCOMP_OK || result == GCOMP_OUT_OF_MEMORY);
            done = result == GCOMP_OK;
            gcomp_close(gc);
            CHECK(heap.held == 0 && heap.blocks == 0);
        }
    /* a commit without a compress before it reserves what it needs, or says that it cannot */
    test_heap heap = {5, 0, 0, 0};
    gcomp_desc desc = desc_of("bf16", GCOMP_AGGREGATE_AUTO);
    const gcomp_tensor tensor = tensor_of(0, 900, "topk:density=0.1");
    gcomp *gc = NULL;
    desc.allocator = heap_of(&heap);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    heap.left = 2;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK && heap.left == 0);
    CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OUT_OF_MEMORY);
    CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK && e[5] == 0);
    heap.left = SIZE_MAX;
    CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK && e[5] == plain_bf16(grad[5]));
    gcomp_close(gc);
}

/* ---------------- training */

enum { INPUTS = 64, CLASSES = 32, BATCH = 8, TRAINED_STEPS = 80 };

static float taught[INPUTS * CLASSES]; /* the teacher's weights */

/* Softmax regression: adds the gradient of a sample that a teacher has labelled, unless grad is NULL. Returns the loss. */
static double sample(uint64_t seed, uint64_t number, const float *weight, float *grad)
{
    float x[INPUTS], y[CLASSES];
    double best = -1e9, top = -1e9, sum = 0;
    size_t label = 0;
    for (size_t i = 0; i < INPUTS; i++) x[i] = normal(mix(seed * 7919 + number) % 1000003 * INPUTS + i);
    for (size_t c = 0; c < CLASSES; c++) {
        double teacher = 0, own = 0;
        for (size_t i = 0; i < INPUTS; i++) {
            teacher += (double)(x[i] * taught[c * INPUTS + i]);
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

/* The loss after a training of four workers, on samples that none of them has seen. */
static double train(const char *codec, const char *kind, uint64_t seed)
{
    static const size_t n[1] = {INPUTS * CLASSES};
    static float weight[INPUTS * CLASSES];
    const gcomp_desc desc = desc_of(kind, GCOMP_AGGREGATE_AUTO);
    double loss = 0;
    group g;
    group_open(&g, 4, &desc, &codec, n, 1);
    memset(weight, 0, sizeof weight);
    for (size_t i = 0; i < n[0]; i++) taught[i] = normal(seed << 40 | i);
    for (uint64_t step = 0; step < TRAINED_STEPS; step++) {
        for (size_t w = 0; w < 4; w++) {
            memset(g.grad[w][0], 0, sizeof weight);
            for (size_t b = 0; b < BATCH; b++) (void)sample(seed, (step * 4 + w) * BATCH + b, weight, g.grad[w][0]);
        }
        group_step(&g);
        for (size_t i = 0; i < n[0]; i++) weight[i] -= 0.5f * g.grad[0][0][i];
    }
    for (uint64_t i = 0; i < 200; i++) loss += sample(seed, 1000000 + i, weight, NULL) / 200;
    group_close(&g);
    return loss;
}

/* make residuals does the same on Fashion-MNIST. */
static void test_small_residuals_train_as_well_as_floats(void)
{
    static const char *const texts[] = {"int:bits=4", "sign"};
    for (size_t c = 0; c < 2; c++) {
        double loss[3] = {0, 0, 0};
        for (int k = 0; k < 3; k++)
            for (uint64_t seed = 1; seed <= 12; seed++) loss[k] += train(texts[c], kinds[k], seed) / 12;
        printf("# %s: loss %.4f, with bf16 %+.3f %%, with int8 %+.3f %%; %.4f before\n", texts[c], loss[0],
               100 * (loss[1] / loss[0] - 1), 100 * (loss[2] / loss[0] - 1), log(CLASSES));
        CHECK(loss[0] < 0.9 * log(CLASSES));
        for (int k = 1; k < 3; k++) CHECK(loss[k] < 1.003 * loss[0]);
    }
}

/* ---------------- arguments */

static void test_what_is_asked_for_is_checked(void)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {300};
    static float e[300];
    char why[256] = "";
    gcomp_desc desc = desc_of("int4", GCOMP_AGGREGATE_AUTO);
    gcomp *gc = NULL;
    group g;
    desc.why = why;
    desc.why_capacity = sizeof why;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && !gc && strstr(why, "residual is 'int4': it takes fp32, bf16 or int8"));
    if (!strstr(why, "int4")) printf("# %s\n", why);
    CHECK(gcomp_memory_needed(&desc, NULL, 0) == 0);
    desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
    group_open(&g, 2, &desc, codec, n, 1);
    CHECK(gcomp_residual_get(NULL, 0, e) == GCOMP_INVALID_ARGUMENT && gcomp_residual_get(g.gc[0], 1, e) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_residual_get(g.gc[0], 0, NULL) == GCOMP_INVALID_ARGUMENT && gcomp_residual(g.gc[0], 0) == NULL);
    group_close(&g);
    gcomp_desc other = desc;
    other.residual = "bf16";
    expect_mismatch(&desc, &other, "residual");
    desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
    desc.no_error_feedback = 1;
    group_open(&g, 1, &desc, codec, n, 1);
    CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_WRONG_STATE);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
    desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO); /* floats */
    group_open(&g, 1, &desc, codec, n, 1);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK && !memcmp(e, gcomp_residual(g.gc[0], 0), sizeof e));
    group_close(&g);
}

/* What the codec layer gets from its user is floats, whatever stands in the reserved field. */
static void test_the_reserved_field_of_an_input_is_not_read(void)
{
    static float grad[500], residual[500];
    static uint8_t bytes[2][GCOMP_BOUND(500)];
    gcomp_codec codec;
    size_t length[2] = {0, 0};
    for (size_t i = 0; i < 500; i++) grad[i] = gradient_at(0, 0, 0, i), residual[i] = gradient_at(1, 0, 0, i);
    CHECK(gcomp_codec_parse(&codec, "int:bits=4", NULL, 0) == GCOMP_OK);
    for (unsigned i = 0; i < 2; i++) {
        gcomp_input in = {0};
        in.scale = 1;
        in.grad = grad;
        in.residual = residual;
        in.rows = 500;
        in.reserved = 2 * i;
        CHECK(gcomp_encode(&codec, &in, NULL, bytes[i], sizeof bytes[i], &length[i]) == GCOMP_OK);
        CHECK(gcomp_retain(bytes[i], length[i], &in, residual, NULL) == GCOMP_OK);
        for (size_t k = 0; k < 500; k++) residual[k] = gradient_at(1, 0, 0, k);
    }
    CHECK(length[0] == length[1] && !memcmp(bytes[0], bytes[1], length[0]));
}

int main(void)
{
    RUN(test_steps_are_those_of_floats_and_residuals_are_rounded);
    RUN(test_residuals_are_rounded_whatever_makes_the_mean);
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
    RUN(test_a_save_brings_back_every_bit);
    RUN(test_saves_have_the_bytes_that_the_format_says);
    RUN(test_a_save_of_another_kind_is_refused);
    RUN(test_a_save_of_another_kind_is_rounded_where_it_may_be);
    RUN(test_residuals_that_no_worker_keeps_are_refused);
    RUN(test_workers_leave_and_join);
    RUN(test_another_number_of_workers_takes_the_mean_of_residuals);
    RUN(test_a_request_that_fails_leaves_small_residuals_as_they_were);
    RUN(test_a_skipped_step_changes_nothing);
    RUN(test_memory_is_what_was_said);
    RUN(test_a_residual_takes_the_bytes_that_the_manual_says);
    RUN(test_every_allocation_may_fail);
    RUN(test_small_residuals_train_as_well_as_floats);
    RUN(test_what_is_asked_for_is_checked);
    RUN(test_the_reserved_field_of_an_input_is_not_read);
    return test_end();
}
