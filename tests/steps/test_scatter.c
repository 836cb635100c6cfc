/* Proves of GCOMP_AGGREGATE_SCATTER: an owner has the bits of two shots before the second one, or of
   shards; the rest of the gradient is untouched; what is not sent is kept; tensors that are not
   scattered have the bits of the gather; the object asks for no more than it needs. Failures of each
   request, damaged and hostile bytes: see test_shards, which has this form too. */
#include "group.h"

static const size_t worlds[] = {2, 3, 5, 8};
enum { WORLDS = sizeof worlds / sizeof *worlds };

typedef struct range {
    size_t begin, end;
} range;

static range shard_of(const group *g, size_t t, size_t w)
{
    range r = {1, 0};
    CHECK(gcomp_shard(g->gc[0], t, (int)w, &r.begin, &r.end) == GCOMP_OK);
    return r;
}

/* A copy of all gradients, as they were before a step. */
typedef struct copy {
    void *grad[MOST][TENSORS];
} copy;

static copy copy_of(const group *g)
{
    copy c;
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) {
            c.grad[w][t] = malloc(4 * g->n[t]);
            memcpy(c.grad[w][t], g->grad[w][t], 4 * g->n[t]);
        }
    return c;
}

static void copy_free(copy *c, const group *g)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t t = 0; t < g->count; t++) free(c->grad[w][t]);
}

static size_t width(const group *g, size_t t) { return g->half[t] ? 2 : 4; }

/* Are bytes of elements begin .. end - 1 the same? */
static int same(const group *g, size_t t, const void *a, const void *b, size_t begin, size_t end)
{
    const size_t each = width(g, t);
    return !memcmp((const char *)a + each * begin, (const char *)b + each * begin, each * (end - begin));
}

/* Does worker w have in its range what `mean` has there, and else what was there before? */
static int is_scattered(const group *g, size_t t, size_t w, const void *mean, const copy *before)
{
    const range r = shard_of(g, t, w);
    return same(g, t, g->grad[w][t], mean, r.begin, r.end) && same(g, t, g->grad[w][t], before->grad[w][t], 0, r.begin) &&
           same(g, t, g->grad[w][t], before->grad[w][t], r.end, g->n[t]);
}

/* ---------------- ranges */

static void test_the_shards_of_a_tensor_are_a_partition(void)
{
    static const size_t some[] = {1, 15, 16, 17, 127, 128, 129, 1000, 4096, 100003};
    for (size_t s = 0; s < sizeof some / sizeof *some; s++)
        for (size_t world = 1; world <= MOST; world++)
            for (int way = GCOMP_AGGREGATE_AUTO; way <= GCOMP_AGGREGATE_SCATTER; way++) {
                const gcomp_desc desc = desc_of((gcomp_aggregate)way);
                const char *const codec[1] = {s % 2 ? "sign" : "none"};
                size_t at = 0;
                group g;
                group_open(&g, world, &desc, codec, some + s, 1);
                for (size_t w = 0; w < world; w++) {
                    const range r = shard_of(&g, 0, w);
                    CHECK(r.begin == at && r.end >= at);
                    CHECK(r.begin % 16 == 0 || r.begin == some[s]); /* kernels take 16 at a time */
                    at = r.end;
                }
                CHECK(at == some[s]);
                group_close(&g);
            }
}

static void test_a_wrong_question_for_a_shard_is_refused(void)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {1000};
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    size_t begin = 7, end = 8;
    group g;
    group_open(&g, 3, &desc, codec, n, 1);
    CHECK(gcomp_shard(NULL, 0, 0, &begin, &end) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_shard(g.gc[0], 1, 0, &begin, &end) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_shard(g.gc[0], 0, -1, &begin, &end) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_shard(g.gc[0], 0, 3, &begin, &end) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_shard(g.gc[0], 0, 0, NULL, &end) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_shard(g.gc[0], 0, 0, &begin, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(begin == 7 && end == 8);
    CHECK(gcomp_step_begin(g.gc[0], NULL) == GCOMP_OK); /* also inside a step */
    CHECK(gcomp_shard(g.gc[0], 0, 2, &begin, &end) == GCOMP_OK && end == 1000 && begin < end);
    CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK);
    group_close(&g);
}

/* ---------------- block payloads */

static float plain_p[MOST][ROOM], plain_rest[MOST][ROOM], plain_mean[ROOM];

/* The first of two shots: each worker sends C(p) of the ranges of others; the owner adds its own
   part of p as it is. A vote: the owner counts its own as it does the others'. */
static void plain_first_shot(const char *codec, const group *g, size_t n, uint64_t step)
{
    static float q[ROOM], d[ROOM];
    const size_t world = g->world;
    const float part = 1.0f / (float)world;
    for (size_t o = 0; o < world; o++) {
        const range r = shard_of(g, 0, o);
        const size_t count = r.end - r.begin;
        for (size_t i = 0; i < count; i++) q[i] = plain_p[o][r.begin + i] * part;
        for (size_t w = 0; w < world; w++) {
            if (w == o) continue;
            pass(codec, plain_p[w] + r.begin, count, step, w, o, d);
            for (size_t i = 0; i < count; i++) {
                volatile float term = d[i] * part;
                q[i] = q[i] + term;
                plain_rest[w][r.begin + i] = plain_p[w][r.begin + i] - d[i];
            }
        }
        for (size_t i = 0; i < count; i++) {
            plain_mean[r.begin + i] = q[i];
            plain_rest[o][r.begin + i] = 0; /* the owner has lost nothing */
        }
    }
    for (size_t i = 0; i < n && !strcmp(codec, "vote"); i++) {
        size_t negative = 0;
        for (size_t w = 0; w < world; w++) negative += plain_p[w][i] < 0;
        plain_mean[i] = 2 * negative > world ? -1.0f : 1.0f;
    }
}

/* bf16 <- x, to nearest, ties to even. */
static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float element(const group *g, size_t w, size_t i)
{
    float x;
    uint32_t u;
    if (!g->half[0]) return ((const float *)g->grad[w][0])[i];
    u = (uint32_t)((const uint16_t *)g->grad[w][0])[i] << 16;
    memcpy(&x, &u, 4);
    return x;
}

/* A group of one tensor, whose gradient may be bf16. */
static void open_one(group *g, size_t world, const gcomp_desc *base, const char *codec, size_t n, int half)
{
    group_open(g, world, base, &codec, &n, 0);
    g->count = 1;
    g->n[0] = n;
    g->half[0] = half;
    for (size_t w = 0; w < world; w++) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = "a";
        tensor.rows = n;
        tensor.codec = codec;
        if (half) tensor.dtype = GCOMP_BF16;
        g->grad[w][0] = calloc(n, 4);
        CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
    }
}

/* Bit for bit, also with gradients of half precision: sums are made as floats, and a mean is rounded
   once. What was given is what was applied and what waits. */
static void check_first_shot(const char *text, size_t world, size_t n, int half)
{
    static double given[ROOM], applied[ROOM];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    const gcomp_step how = step_with(world == 3 ? 0.5f : 1.0f, -1, 0);
    size_t wrong = 0, lost = 0;
    group g;
    desc.measure = 1;
    desc.check_every = 1;
    open_one(&g, world, &desc, text, n, half);
    g.step = &how;
    memset(given, 0, sizeof given);
    memset(applied, 0, sizeof applied);
    for (uint64_t step = 0; step < 3; step++) {
        static uint16_t rounded[ROOM];
        group_fill(&g, step);
        copy before = copy_of(&g);
        for (size_t w = 0; w < world; w++) {
            const float *e = tensor_residual(g.gc[w], 0);
            for (size_t i = 0; i < n; i++) {
                plain_p[w][i] = how.scale * element(&g, w, i) + (e ? e[i] : 0);
                given[i] += (double)(how.scale * element(&g, w, i)) / (double)world;
            }
        }
        plain_first_shot(text, &g, n, step);
        for (size_t i = 0; i < n; i++) rounded[i] = to_bf16(plain_mean[i]);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 1 && g.carried == (lengths_vary(text) ? 5u : 3u));
        for (size_t w = 0; w < world; w++) {
            wrong += !is_scattered(&g, 0, w, half ? (void *)rounded : (void *)plain_mean, &before);
            if (tensor_residual(g.gc[w], 0)) wrong += memcmp(tensor_residual(g.gc[w], 0), plain_rest[w], 4 * n) != 0;
        }
        for (size_t i = 0; i < n; i++) applied[i] += (double)plain_mean[i];
        copy_free(&before, &g);
    }
    for (size_t i = 0; i < n && tensor_residual(g.gc[0], 0); i++) {
        double e = 0;
        for (size_t w = 0; w < world; w++) e += (double)tensor_residual(g.gc[w], 0)[i] / (double)world;
        lost += fabs(given[i] - applied[i] - e) > 1e-6 * (3 + fabs(e));
    }
    if (wrong || lost) printf("# %s, %d workers, n %d: %d wrong, %d lost\n", text, (int)world, (int)n, (int)wrong, (int)lost);
    CHECK(wrong == 0 && lost == 0);
    group_close(&g);
}

static void test_an_owner_has_the_mean_of_two_shots_before_the_second(void)
{
    static const size_t some[WORLDS] = {515, 1800, 1280, 2053}; /* of eight, the last range is a rest */
    size_t count = 0;
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        if (!has_two_shots(text) && strcmp(text, "none")) continue;
        for (size_t k = 0; k < WORLDS; k++)
            if (codec_list[c].steps || k == c % WORLDS) check_first_shot(text, worlds[k], some[k], (c + k) % 3 == 0), count++;
    }
    CHECK(count > 50);
    check_first_shot("sign", 18, 4609, 0); /* the last range is empty */
    check_first_shot("none", 18, 4609, 1);
}

/* ---------------- sparse payloads */

static int is_scattered_codec(const char *text)
{
    return codec_is_sparse(text) && strncmp(text, "blocktopk", 9) && strncmp(text, "dct", 3) && !strstr(text, "global=1");
}

/* The same steps by shards and scattered: the own range has the same bits, and so has all that is
   kept, momentum included. Variants: 1 without feedback and checksums; 2 scaled, measured, checked,
   in parallel, skipping. */
static void check_sparse(const char *const *codecs, const size_t *n, size_t world, int variant)
{
    gcomp_desc shards = desc_of(GCOMP_AGGREGATE_SHARDS), scatter;
    const gcomp_step half = step_with(0.5f, -1, 0), first = default_step();
    gcomp_statistics x, y;
    group a, b;
    shards.no_error_feedback = shards.no_checksum = variant == 1;
    if (variant == 2) shards.measure = 1, shards.check_every = 1, shards.parallel.run = run_backwards;
    scatter = shards;
    scatter.aggregate = GCOMP_AGGREGATE_SCATTER;
    group_open(&a, world, &shards, codecs, n, TENSORS);
    group_open(&b, world, &scatter, codecs, n, TENSORS);
    b.backwards = 1;
    a.step = b.step = variant == 2 ? &half : &first;
    for (uint64_t step = 0; step < 3; step++) {
        group_fill(&a, step);
        group_fill(&b, step);
        copy before = copy_of(&b);
        if (variant == 2) a.skip = b.skip = step == 1 ? 0x15 : step == 2 ? 0x7f : 0;
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        CHECK(exchanges(&b) == (b.skip != 0x7f ? 1 : 0) && (b.skip == 0x7f || b.carried == a.carried - 1));
        for (size_t w = 0; w < world; w++)
            for (size_t t = 0; t < TENSORS; t++) {
                const float *e = tensor_residual(a.gc[w], t);
                const int whole = b.skip >> t & 1 || t == 2; /* t 2: a small one that is summed */
                if (whole) CHECK(same(&b, t, b.grad[w][t], a.grad[w][t], 0, b.n[t]));
                else CHECK(is_scattered(&b, t, w, a.grad[w][t], &before));
                CHECK(!e == !tensor_residual(b.gc[w], t));
                CHECK(!e || !memcmp(e, tensor_residual(b.gc[w], t), 4 * n[t]));
            }
        copy_free(&before, &b);
    }
    CHECK(gcomp_stats(a.gc[0], &x) == GCOMP_OK && gcomp_stats(b.gc[0], &y) == GCOMP_OK);
    CHECK(x.relative_error == y.relative_error && x.bytes_in == y.bytes_in);
    CHECK(variant == 2 ? 1 : y.bytes_out < x.bytes_out);
    group_close(&a);
    group_close(&b);
}

static void test_an_owner_has_the_bits_of_shards(void)
{
    static const size_t sizes[][TENSORS] = {{3001, 1000, 50, 700, 129, 900, 300}, {1, 17, 100, 600, 999, 1500, 40}};
    const char *sparse[ALL_CODECS], *codecs[TENSORS];
    size_t count = 0;
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (codec_list[c].steps && is_scattered_codec(codec_list[c].text)) sparse[count++] = codec_list[c].text;
    CHECK(count > 10);
    for (size_t next = 0, l = 0; next < count; l++) {
        for (size_t t = 0; t < TENSORS; t++) codecs[t] = t == 2 ? "none" : sparse[next++ % count];
        for (size_t k = 0; k < WORLDS; k++)
            for (int variant = 0; variant < (worlds[k] == 3 ? 3 : 1); variant++)
                check_sparse(codecs, sizes[l % 2], worlds[k], variant);
    }
}

/* ---------------- tensors that are not scattered */

/* Sums, indices of groups, scales that are found together, and small tensors: all workers have the
   whole mean, with the bits that it has without SCATTER, beside tensors that are scattered. */
static void test_other_tensors_have_the_whole_mean_on_all_workers(void)
{
    static const char *const whole[] = {"powersgd:rank=1", "intsum:bits=16", "randomk:density=0.1", "sketch:density=0.01",
                                        "fetch:density=0.01", "blocktopk:density=0.2,block=16", "terngrad:share=1", "int:bits=4", "none"};
    for (size_t c = 0; c < sizeof whole / sizeof *whole; c++)
        for (size_t k = 0; k < WORLDS; k++) {
            static const size_t n[3] = {3000, 700, 4096};
            const char *const codecs[3] = {"sign", whole[c], "topk:density=0.1"};
            const int small = !strcmp(whole[c], "int:bits=4") || !strcmp(whole[c], "none");
            gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER), scatter = desc_of(GCOMP_AGGREGATE_SCATTER);
            group a, b;
            gather.comm.allreduce_dtypes = scatter.comm.allreduce_dtypes = 1u << GCOMP_I16;
            gather.check_every = scatter.check_every = 1;
            group_open(&a, worlds[k], &gather, codecs, n, 1);
            group_open(&b, worlds[k], &scatter, codecs, n, 1);
            for (group *g = &a; g; g = g == &a ? &b : NULL)
                for (size_t t = 1; t < 3; t++) {
                    gcomp_tensor tensor;
                    memset(&tensor, 0, sizeof tensor);
                    tensor.name = t == 1 ? "b" : "c";
                    tensor.rows = t == 2 ? 50 : small ? 10 : 200;
                    tensor.cols = t == 2 ? 40 : small ? 20 : 300;
                    tensor.codec = codecs[t];
                    g->n[t] = tensor.rows * tensor.cols;
                    g->count = t + 1;
                    for (size_t w = 0; w < g->world; w++) {
                        CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
                        g->grad[w][t] = calloc(g->n[t], 4);
                    }
                }
            for (uint64_t step = 0; step < 3; step++) {
                group_fill(&a, step);
                group_fill(&b, step);
                group_step(&a);
                group_step(&b);
                CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && exchanges(&b) == 1);
                for (size_t w = 0; w < b.world; w++) {
                    const float *e = tensor_residual(a.gc[w], 1);
                    CHECK(same(&b, 1, b.grad[w][1], a.grad[w][1], 0, b.n[1]));
                    CHECK(!e || !memcmp(e, tensor_residual(b.gc[w], 1), 4 * b.n[1]));
                    CHECK(!same(&b, 0, b.grad[w][0], b.grad[0][0], 0, b.n[0]) || w == 0);
                }
            }
            group_close(&a);
            group_close(&b);
        }
}

/* An uncompressed tensor is scattered from 256 elements a worker on, whether it named `none` or is
   a vector: its shards are half of what a sum sends. */
static void test_uncompressed_tensors_are_scattered_if_they_are_large(void)
{
    for (size_t n = 767; n <= 768; n++)
        for (int named = 0; named < 2; named++) {
            gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
            gcomp_tensor two[2]; /* else a vector would be compressed; another codec is another bundle */
            gcomp_round rounds[2 * GCOMP_ROUNDS];
            gcomp_codec codecs[2], codec;
            char text[64];
            memset(two, 0, sizeof two);
            two[0].name = "a";
            two[0].rows = n;
            two[0].codec = named ? "none" : NULL;
            two[1].name = "b";
            two[1].rows = 16;
            two[1].codec = "topk";
            desc.codec = "sign";
            desc.comm.world = 3;
            CHECK(gcomp_rounds(&desc, two, 2, codecs, rounds) == GCOMP_OK);
            codec = codecs[0];
            CHECK(gcomp_codec_format(&codec, text, sizeof text) == 4 && !strcmp(text, "none"));
            CHECK(rounds[0].kind == (n == 767 ? GCOMP_ALLREDUCE : GCOMP_ALLTOALL) && rounds[1].kind == GCOMP_WAIT);
            CHECK(rounds[0].dtype == (n == 767 ? GCOMP_F32 : GCOMP_U8));
            CHECK(rounds[0].bytes == 4 * n || (n == 768 && rounds[0].bytes > 4 * n && rounds[0].bytes < 4 * n + 2000));
        }
}

static void test_an_object_tells_what_is_scattered(void)
{
    static const char *const codecs[3] = {"sign", "none", "topk:density=0.1"};
    static const size_t n[3] = {1000, 100, 1000};
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    char text[1000];
    group g;
    group_open(&g, 2, &desc, codecs, n, 3);
    CHECK(gcomp_describe(g.gc[0], text, sizeof text) < sizeof text);
    CHECK(strstr(text, "a: 1000 fp32, sign scattered, at most ") && strstr(text, "b: 100 fp32, none, 400 of 400 bytes"));
    CHECK(strstr(text, "c: 1000 fp32, topk:density=0.1 scattered, at most "));
    group_close(&g);
}

/* ---------------- buckets, instruction sets, threads */

static const char *const mixed[TENSORS] = {"topk:density=0.05", "vote", "none", "int:bits=4", "onebit:block=tensor",
                                           "dgc:density=0.1,warmup=0", "fp8"};
static const size_t mixed_n[TENSORS] = {3001, 1000, 50, 800, 5000, 4000, 2000};

static void test_buckets_threads_and_sets_leave_the_bits_as_they_are(void)
{
    uint64_t first[2][5];
    for (int isa = GCOMP_ISA_SCALAR - 1; isa <= GCOMP_ISA_NEON; isa++)
        for (size_t bucket = 0; bucket < 3; bucket++) {
            static const size_t bytes[] = {0, 12000, 1};
            gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
            group g;
            if (isa >= GCOMP_ISA_SCALAR && !isa_available((gcomp_isa)isa)) continue;
            desc.isa = isa < GCOMP_ISA_SCALAR ? GCOMP_ISA_SCALAR : (gcomp_isa)isa;
            if (isa < GCOMP_ISA_SCALAR) desc.parallel.run = run_backwards;
            desc.bucket_bytes = bytes[bucket];
            group_open(&g, 5, &desc, mixed, mixed_n, TENSORS);
            g.backwards = bucket == 1;
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK) && (bucket || exchanges(&g) == 1));
                for (size_t w = 0; w < 5; w++) {
                    if (isa < GCOMP_ISA_SCALAR && bucket == 0) first[step][w] = digest(&g, w);
                    CHECK(digest(&g, w) == first[step][w]);
                }
            }
            group_close(&g);
        }
}

typedef struct seat {
    gcomp_comm comm;
    int no_allreduce;
    gcomp_result result;
    uint64_t digest;
} seat;

static void *work(void *arg)
{
    seat *s = (seat *)arg;
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    group g;
    desc.comm = s->comm;
    if (s->no_allreduce) desc.comm.allreduce = NULL;
    memset(&g, 0, sizeof g);
    g.world = 1;
    CHECK(gcomp_open(&g.gc[0], &desc) == GCOMP_OK);
    for (; g.count < TENSORS; g.count++) {
        const size_t t = g.count;
        static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g"};
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = names[t];
        g.n[t] = tensor.rows = t == 2 && s->no_allreduce ? 2000 : mixed_n[t];
        tensor.codec = mixed[t];
        g.half[t] = t == 6;
        if (g.half[t]) tensor.dtype = GCOMP_BF16;
        g.grad[0][t] = calloc(g.n[t], 4);
        CHECK(gcomp_add_tensor(g.gc[0], &tensor) == GCOMP_OK);
        for (size_t i = 0; i < g.n[t]; i++) {
            const float v = value_of(0, (size_t)s->comm.rank, t, i);
            uint32_t u;
            memcpy(&u, &v, 4);
            if (g.half[t]) ((uint16_t *)g.grad[0][t])[i] = (uint16_t)(u >> 16);
            else ((float *)g.grad[0][t])[i] = v;
        }
    }
    s->result = gcomp_exchange(g.gc[0], g.grad[0], NULL);
    s->digest = digest(&g, 0);
    group_close(&g);
    return NULL;
}

static void test_threads_give_the_bits_of_an_event_loop(void)
{
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    for (size_t k = 0; k < WORLDS; k++)
        for (int none = 0; none < 2; none++) { /* where all is scattered no allreduce is needed */
            size_t n[TENSORS];
            seat seats[MOST];
            pthread_t threads[MOST];
            gcomp_threads *all;
            group a;
            memcpy(n, mixed_n, sizeof n);
            if (none) n[2] = 2000;
            if (none && worlds[k] == 8) continue; /* 2000 / 8 is small */
            group_open(&a, worlds[k], &desc, mixed, n, TENSORS);
            group_fill(&a, 0);
            group_step(&a);
            CHECK(all_are(&a, GCOMP_OK) && gcomp_threads_open(&all, (int)worlds[k], 60.0) == 0);
            for (size_t w = 0; w < worlds[k]; w++) {
                memset(&seats[w], 0, sizeof seats[w]);
                seats[w].comm = gcomp_threads_comm(all, (int)w);
                seats[w].no_allreduce = none;
                CHECK(pthread_create(&threads[w], NULL, work, &seats[w]) == 0);
            }
            for (size_t w = 0; w < worlds[k]; w++) {
                pthread_join(threads[w], NULL);
                CHECK(seats[w].result == GCOMP_OK && seats[w].digest == digest(&a, w));
            }
            gcomp_threads_close(all);
            group_close(&a);
        }
}

/* ---------------- what is not sent, from step to step */

/* sum of e / world of a tensor's element */
static double waits(const group *g, size_t i)
{
    double e = 0;
    for (size_t w = 0; w < g->world; w++) e += (double)tensor_residual(g->gc[w], 0)[i];
    return e / (double)g->world;
}

/* The mean of tensor 0, from the range of each owner. */
static void gather_means(const group *g, double *to)
{
    for (size_t w = 0; w < g->world; w++) {
        const range r = shard_of(g, 0, w);
        for (size_t i = r.begin; i < r.end; i++) to[i] = (double)((const float *)g->grad[w][0])[i];
    }
}

/* A save holds all that a scattered tensor keeps; a worker that leaves hands it over, although the
   ranges change then. */
static void test_saves_and_other_worlds_keep_what_waits(void)
{
    static const char *const codecs[] = {"sign", "topk:density=0.05"};
    static const size_t n[1] = {2500};
    static double before[2500], mean[2500];
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    static uint8_t save[4][12000];
    for (size_t c = 0; c < 2; c++) {
        size_t length[4], wrong = 0, lost = 0;
        group a, b;
        group_open(&a, 4, &desc, codecs + c, n, 1);
        group_open(&b, 4, &desc, codecs + c, n, 1);
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
        CHECK(shard_of(&a, 0, 2).end == n[0]); /* the ranges are those of three */
        for (size_t i = 0; i < n[0]; i++) wrong += fabs(before[i] - waits(&a, i)) > 1e-6 * (1 + fabs(before[i]));
        group_fill(&a, 7);
        for (size_t i = 0; i < n[0]; i++)
            for (size_t w = 0; w < 3; w++) before[i] += (double)((float *)a.grad[w][0])[i] / 3;
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK) && exchanges(&a) == 1);
        gather_means(&a, mean);
        for (size_t i = 0; i < n[0]; i++) lost += fabs(before[i] - waits(&a, i) - mean[i]) > 2e-6 * (1 + fabs(before[i]));
        CHECK(wrong == 0 && lost == 0);
        group_shrink(&a, 1); /* alone: the whole gradient is its range */
        group_fill(&a, 8);
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK) && exchanges(&a) == 0 && shard_of(&a, 0, 0).end == n[0]);
        group_close(&a);
        group_close(&b);
    }
}

/* What is not sent in one form waits in the same residual for the next codec of a list, whether that
   is scattered or not. */
static void test_other_codecs_of_a_list_go_on_with_what_waits(void)
{
    static const char *const codec[1] = {NULL};
    static const size_t n[1] = {1500};
    static double given[1500], applied[1500], mean[1500];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    gcomp_step how = GCOMP_STEP;
    size_t lost = 0;
    group g;
    desc.codec = "topk:density=0.1|none|sign|randomk:density=0.5|int:bits=2";
    desc.schedule = "warmup:epochs=4";
    desc.compress_vectors = 1;
    group_open(&g, 4, &desc, codec, n, 1);
    g.step = &how;
    for (uint64_t step = 0; step < 7; step++) { /* the epoch is heard in one step, and goes for the next */
        how.epoch = (uint32_t)step + 1;
        group_fill(&g, step);
        for (size_t w = 0; w < 4; w++)
            for (size_t i = 0; i < n[0]; i++) given[i] += (double)((float *)g.grad[w][0])[i] / 4;
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == (step == 3 ? 0 : 1));
        gather_means(&g, mean);
        for (size_t i = 0; i < n[0]; i++) applied[i] += mean[i];
        for (size_t w = 0; w < 4 && step == 1; w++) /* none has sent all */
            for (size_t i = 0; i < n[0]; i++) lost += tensor_residual(g.gc[w], 0)[i] != 0;
    }
    for (size_t i = 0; i < n[0]; i++) lost += fabs(given[i] - applied[i] - waits(&g, i)) > 2e-6 * (3 + fabs(waits(&g, i)));
    CHECK(lost == 0);
    group_close(&g);
}

/* With the largest floats that there are, means and what is kept are finite on all. */
static void test_huge_numbers_stay_finite(void)
{
    static const size_t n[1] = {900};
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *const codec[1] = {codec_list[c].text};
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
        size_t bad = 0;
        group g;
        if (!has_two_shots(codec[0]) && strcmp(codec[0], "none")) continue;
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

/* ---------------- refusals, memory, bytes */

static void test_what_cannot_be_scattered_is_refused_with_a_sentence(void)
{
    char why[256] = "";
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    gcomp_comm comm, node;
    gcomp_tensor tensor;
    float grad[900] = {0}, *grads[1];
    gcomp *gc = NULL;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "fc1";
    tensor.rows = 900;
    tensor.codec = "topk:density=0.1,global=1";
    grads[0] = grad;
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    desc.why = why;
    desc.why_capacity = sizeof why;
    /* global=1: of a tensor, of the desc, and of one worker alone, who may get company */
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_BAD_CODEC);
    CHECK(strstr(gcomp_error(gc), "fc1") && strstr(gcomp_error(gc), "topk:global=1") && strstr(gcomp_error(gc), "SCATTER"));
    CHECK(tensors_of(gc) == 0);
    /* no alltoallv: for a codec, and for floats */
    tensor.codec = "none";
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK && exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.alltoallv") && strstr(gcomp_error(gc), "SCATTER") && strstr(gcomp_error(gc), "fc1"));
    /* another level comes later */
    memset(&comm, 0, sizeof comm);
    memset(&node, 0, sizeof node);
    comm.world = node.world = 2;
    node.allreduce = no_allreduce;
    node.allgather = echo_frame;
    CHECK(gcomp_regroup(gc, &comm, &node) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "desc.node"));
    node.world = 1;
    CHECK(gcomp_regroup(gc, &comm, &node) == GCOMP_OK);
    gcomp_close(gc);
    gc = NULL;
    desc.codec = "topk:density=0.1,global=1";
    desc.comm.world = 1;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_BAD_CODEC && !gc && strstr(why, "global=1"));
    desc.codec = NULL;
    desc.node = node;
    desc.node.world = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && !gc && strstr(why, "node") && strstr(why, "SCATTER"));
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) == 0);
}

/* The memory of an object is as foreseen, steps take none, and SCATTER takes less than TWO_SHOT. */
static void test_memory_is_as_foreseen_and_no_step_allocates(void)
{
    static const char *const lists[] = {"sign", "topk:density=0.1", "none", "none|topk:density=0.1|sign|int:bits=2"};
    for (size_t l = 0; l < 4; l++)
        for (size_t world = 1; world <= 5; world++)
            for (size_t bucket = 0; bucket < 2; bucket++) {
                size_t needed[2];
                for (int way = 0; way < 2; way++) {
                    gcomp_desc desc = desc_of(way ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_TWO_SHOT);
                    gcomp_tensor tensors[3];
                    test_heap heap = {SIZE_MAX, 0, 0, 0};
                    gcomp *gc;
                    memset(tensors, 0, sizeof tensors);
                    desc.allocator = heap_of(&heap);
                    desc.comm.world = (int)world;
                    desc.codec = lists[l];
                    if (strchr(lists[l], '|')) desc.schedule = "warmup:epochs=4";
                    desc.compress_vectors = 1;
                    desc.min_elements = 1;
                    desc.bucket_bytes = bucket * 5000;
                    for (size_t t = 0; t < 3; t++) {
                        static const char *const names[] = {"x", "y", "z"};
                        tensors[t].name = names[t];
                        tensors[t].rows = 1400 - 500 * t;
                        if (t == 1) tensors[t].dtype = GCOMP_F16;
                    }
                    needed[way] = gcomp_memory_needed(&desc, tensors, 3);
                    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
                    for (size_t t = 0; t < 3; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
                    CHECK(gcomp_prepare(gc) == GCOMP_OK && memory_of(gc) == needed[way]);
                    gcomp_close(gc);
                    CHECK(heap.blocks == 0);
                }
                /* floats that are summed in TWO_SHOT take a copy, and three where they are scattered */
                if (world > 1 && !strstr(lists[l], "none")) CHECK(needed[1] < needed[0]);
            }
    test_heap heap = {SIZE_MAX, 0, 0, 0};
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    group g;
    desc.allocator = heap_of(&heap);
    group_open(&g, 3, &desc, mixed, mixed_n, TENSORS);
    for (size_t w = 0; w < 3; w++) CHECK(gcomp_prepare(g.gc[w]) == GCOMP_OK);
    heap.asked = 0;
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && heap.asked == 0);
    group_close(&g);
    CHECK(heap.blocks == 0);
}

/* A worker receives one payload at most, whatever the world, and of floats half of what a ring
   sends; the statistics say what it sent. */
static void test_bytes_are_those_of_the_first_half(void)
{
    static const size_t n[1] = {40000};
    for (size_t k = 0; k < WORLDS; k++)
        for (int floats = 0; floats < 2; floats++) {
            const char *const codec[1] = {floats ? "none" : "int:bits=4"};
            const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
            const size_t world = worlds[k];
            size_t sent = (world - 1) * (64 + 16); /* of each worker a frame, and could it add? */
            uint64_t received = sent;
            gcomp_statistics stats;
            group g;
            group_open(&g, world, &desc, codec, n, 1);
            group_fill(&g, 0);
            group_step(&g);
            for (size_t w = 0; w < world; w++) {
                const range r = shard_of(&g, 0, w);
                const size_t count = r.end - r.begin, payload = 32 + (floats ? 4 * count : (count + 1) / 2 + 2 * ((count + 63) / 64));
                if (w) sent += payload;
                else received += (world - 1) * payload;
            }
            CHECK(all_are(&g, GCOMP_OK) && g.received == received);
            CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK && stats.bytes_in == 4 * n[0] && stats.bytes_out == sent);
            CHECK(2 * stats.bytes_out < stats.bytes_ring + 2000);
            group_close(&g);
        }
}

/* Workers with another list of ranges would make wrong sums: the frames compare desc.aggregate. */
static void test_workers_agree_on_scatter(void)
{
    const char *const codec[1] = {"sign"};
    static const size_t n[1] = {900};
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    gcomp_tensor tensor;
    group g;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "a";
    tensor.rows = n[0];
    tensor.codec = codec[0];
    group_open(&g, 3, &desc, codec, n, 1);
    gcomp_close(g.gc[2]);
    desc.comm.rank = 2;
    desc.comm.world = 3;
    desc.aggregate = GCOMP_AGGREGATE_TWO_SHOT;
    CHECK(gcomp_open(&g.gc[2], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[2], &tensor) == GCOMP_OK);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_MISMATCH) && strstr(gcomp_error(g.gc[0]), "aggregate"));
    group_close(&g);
}

/* The gathered payload of worker 2 becomes another one on its way to worker 1. */
static void other_signs(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (g->kind[call] == GCOMP_ALLGATHER && length > 64 && rank == 1 && from == 2) bytes[length - 9] ^= 0x55;
}

/* desc.check_every compares the means that all workers have, and no others. */
static void test_other_bits_of_a_whole_mean_are_still_found(void)
{
    static const char *const codecs[2] = {"int", "sign"};
    static const size_t n[2] = {3000, 700};
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    group g;
    desc.check_every = 1;
    desc.no_checksum = 1;
    group_open(&g, 3, &desc, codecs, n, 2);
    for (uint64_t step = 0; step < 4; step++) {
        group_fill(&g, step);
        g.change = step == 2 ? other_signs : NULL;
        group_step(&g);
        CHECK(all_are(&g, step == 3 ? GCOMP_DIVERGED : GCOMP_OK));
    }
    group_close(&g);
}

int main(void)
{
    RUN(test_the_shards_of_a_tensor_are_a_partition);
    RUN(test_a_wrong_question_for_a_shard_is_refused);
    RUN(test_an_owner_has_the_mean_of_two_shots_before_the_second);
    RUN(test_an_owner_has_the_bits_of_shards);
    RUN(test_other_tensors_have_the_whole_mean_on_all_workers);
    RUN(test_uncompressed_tensors_are_scattered_if_they_are_large);
    RUN(test_an_object_tells_what_is_scattered);
    RUN(test_buckets_threads_and_sets_leave_the_bits_as_they_are);
    RUN(test_threads_give_the_bits_of_an_event_loop);
    RUN(test_saves_and_other_worlds_keep_what_waits);
    RUN(test_other_codecs_of_a_list_go_on_with_what_waits);
    RUN(test_huge_numbers_stay_finite);
    RUN(test_what_cannot_be_scattered_is_refused_with_a_sentence);
    RUN(test_memory_is_as_foreseen_and_no_step_allocates);
    RUN(test_bytes_are_those_of_the_first_half);
    RUN(test_workers_agree_on_scatter);
    RUN(test_other_bits_of_a_whole_mean_are_still_found);
    return test_end();
}
