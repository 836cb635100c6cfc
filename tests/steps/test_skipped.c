/* Proves of tensors that are skipped in a step (their gradient is NULL on all workers): they take no
   bytes in any round, and keep their gradient, residual and state; the others get the bits that they
   get where nothing is skipped. The workers run in lock-step, and at last over threads. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime in gcomp_threads.h */
#endif

#include "gcomp_threads.h"

#include "codecs.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 4, TENSORS = 4, CALLS = 64 };

/* ---------------- workers in lock-step; what they bring to collectives is counted */

typedef struct group {
    size_t world, count, n[TENSORS];
    gcomp *gc[MOST];
    float *grad[MOST][TENSORS];
    gcomp_result result[MOST];
    int order; /* tensors are ready: 0 from the last on, 1 from the first on; 2 requests come at the end */
    /* of the last step */
    size_t calls, frames;
    uint64_t frame_bytes, bytes, sums; /* of rank 0: frames; all others; those of sums */
    int tried;                         /* the first sum was made */
    uint64_t gathered;                 /* of all workers: the payloads of a gather */
    /* faults: this call fails on this worker (MOST: on all) */
    size_t fails_at, fails_on;
    int corrupts; /* 1: the last worker gets another first float of a sum */
} group;

static const gcomp_tensor shapes[TENSORS] = {
    {"a", 40, 24, 0, GCOMP_F32, NULL},
    {"b", 33, 41, 0, GCOMP_F32, NULL},
    {"c", 18, 20, 3, GCOMP_F32, NULL},
    {"d", 2000, 0, 0, GCOMP_F32, NULL},
};

static gcomp_desc plain(const char *codec, gcomp_aggregate aggregate, size_t bucket_bytes)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.min_elements = 1;
    desc.compress_vectors = 1;
    desc.aggregate = aggregate;
    desc.bucket_bytes = bucket_bytes;
    return desc;
}

/* Opens `world` workers with the tensors of which the bit is set. */
static void group_open(group *g, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, unsigned which)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->fails_at = SIZE_MAX;
    for (size_t t = 0; t < TENSORS; t++) g->count += which >> t & 1;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        char why[256] = "";
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32 | 1u << GCOMP_F16 | 1u << GCOMP_BF16;
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&g->gc[w], &desc) != GCOMP_OK) {
            printf("# open: %s\n", why);
            exit(1);
        }
        for (size_t t = 0, at = 0; t < TENSORS; t++) {
            if (!(which >> t & 1)) continue;
            if (gcomp_add_tensor(g->gc[w], &tensors[t]) != GCOMP_OK) {
                printf("# add: %s\n", gcomp_error(g->gc[w]));
                exit(1);
            }
            g->n[at] = tensor_elements(g->gc[w], at);
            g->grad[w][at] = (float *)calloc(g->n[at], sizeof(float));
            at++;
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

/* In [-1, 1), most of them small. */
static float noise(uint64_t seed, size_t i)
{
    const float x = (float)((int32_t)(mix(seed + i) >> 40) - 8388608) / 8388608.0f;
    return x * x * x;
}

/* The gradient of a tensor of `shapes`, whatever its number in the group is. */
static void fill(group *g, size_t at, size_t t, uint64_t step)
{
    for (size_t w = 0; w < g->world; w++)
        for (size_t i = 0; i < g->n[at]; i++)
            g->grad[w][at][i] = noise(step * 131 + t * 1000003, i) + 0.3f * noise(step + 77 * w + t * 1000033, 2 * i);
}

static void group_fill(group *g, uint64_t step)
{
    for (size_t t = 0; t < g->count; t++) fill(g, t, t, step);
}

static uint64_t bytes_of(const group *g, size_t w, const gcomp_request *r)
{
    uint64_t bytes = 0;
    if (request_is_a_reduction(r)) return (uint64_t)r->count * bytes_of_dtype(r->dtype);
    for (size_t to = 0; r->kind == GCOMP_ALLTOALL && to < g->world; to++) bytes += r->send_bytes[to];
    return r->kind == GCOMP_ALLTOALL ? bytes : r->bytes[w];
}

/* What a request has, back to back, before the place of worker `to`. */
static size_t before(const size_t *bytes, size_t to)
{
    size_t sum = 0;
    for (size_t w = 0; w < to; w++) sum += bytes[w];
    return sum;
}

/* What an allreduce of halves does, for all workers. */
static void sum_halves(const group *g, const gcomp_request *q)
{
    for (size_t i = 0; i < q[0].count; i++) {
        float sum = 0, one;
        for (size_t w = 0; w < g->world; w++) {
            CHECK(gcomp_convert(&one, GCOMP_F32, (const uint16_t *)q[w].recv + i, q[0].dtype, 1, NULL) == GCOMP_OK);
            sum += one;
        }
        for (size_t w = 0; w < g->world; w++)
            CHECK(gcomp_convert((uint16_t *)q[w].recv + i, q[0].dtype, &sum, GCOMP_F32, 1, NULL) == GCOMP_OK);
    }
}

static void carry(const group *g, const gcomp_request *q)
{
    for (size_t w = 1; w < g->world; w++)
        CHECK(q[w].kind == q[0].kind && q[w].id == q[0].id && q[w].count == q[0].count && q[w].stride == q[0].stride);
    if (q[0].kind == GCOMP_ALLREDUCE && (q[0].dtype == GCOMP_F16 || q[0].dtype == GCOMP_BF16)) {
        sum_halves(g, q);
    } else if (request_is_a_reduction(&q[0])) {
        for (size_t w = 1; w < g->world; w++) plain_reduce(&q[0], &q[w]);
        for (size_t w = 1; w < g->world; w++) memcpy(q[w].recv, q[0].recv, q[0].count * bytes_of_dtype(q[0].dtype));
        if (g->corrupts) *(float *)q[g->world - 1].recv += 1;
    }
    for (size_t w = 0; w < g->world && !request_is_a_reduction(&q[0]); w++)
        for (size_t from = 0; from < g->world; from++) {
            int all = q[w].kind == GCOMP_ALLTOALL;
            CHECK(q[w].bytes[from] == (all ? q[from].send_bytes[w] : q[from].bytes[from]));
            memcpy((uint8_t *)q[w].recv + (all ? before(q[w].bytes, from) : from * q[w].stride),
                   (const uint8_t *)q[from].send + (all ? before(q[from].send_bytes, w) : 0), q[w].bytes[from]);
        }
}

static void count(group *g, const gcomp_request *q)
{
    const int frame = q->id % 64 == 1;
    uint64_t bytes = bytes_of(g, 0, q);
    if (q->kind == GCOMP_ALLREDUCE && !g->tried) { /* the first sum has a one behind it */
        g->tried = 1;
        bytes -= bytes_of_dtype(q->dtype);
    }
    g->calls++;
    g->frames += (size_t)frame;
    *(frame ? &g->frame_bytes : &g->bytes) += bytes;
    if (request_is_a_reduction(q)) g->sums += bytes;
    /* 8 * (round + 1) + 1 is a gather of payloads */
    for (size_t w = 0; q->kind == GCOMP_ALLGATHER && q->id % 64 > 8 && q->id % 8 == 1 && w < g->world; w++)
        g->gathered += bytes_of(g, w, q);
}

/* Carries out what all workers ask for, until they wait or are done. Returns 1 at DONE, -1 where a
   step has ended. */
static int pump(group *g)
{
    for (;;) {
        gcomp_request q[MOST];
        int ended = 0;
        for (size_t w = 0; w < g->world; w++) {
            g->result[w] = gcomp_step_next(g->gc[w], &q[w]);
            ended |= g->result[w] != GCOMP_OK;
        }
        if (ended) return -1;
        if (q[0].kind == GCOMP_DONE || q[0].kind == GCOMP_WAIT) {
            for (size_t w = 1; w < g->world; w++) CHECK(q[w].kind == q[0].kind);
            return q[0].kind == GCOMP_DONE;
        }
        const size_t call = g->calls;
        count(g, q);
        carry(g, q);
        for (size_t w = 0; w < g->world; w++) {
            const int status = call == g->fails_at && (g->fails_on == MOST || g->fails_on == w) ? 5 : 0;
            g->result[w] = gcomp_step_done(g->gc[w], q[w].id, status);
            CHECK(g->result[w] == (status ? GCOMP_CALLBACK_FAILED : GCOMP_OK));
            ended |= status != 0;
        }
        if (ended) return -1;
    }
}

/* Bit t of skip: tensor t is skipped by all. */
static void group_step(group *g, unsigned skip)
{
    int over = 0;
    g->calls = g->frames = 0;
    g->frame_bytes = g->bytes = g->sums = g->gathered = 0;
    for (size_t w = 0; w < g->world; w++) CHECK(gcomp_step_begin(g->gc[w], NULL) == GCOMP_OK);
    for (size_t k = 0; k < g->count && over >= 0; k++) {
        const size_t t = g->order == 0 ? g->count - 1 - k : k;
        for (size_t w = 0; w < g->world; w++)
            CHECK(gcomp_step_ready(g->gc[w], t, skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
        if (g->order != 2) over = pump(g);
    }
    if (over == 0) over = pump(g);
    CHECK(over != 0);
    for (size_t w = 0; w < g->world; w++) {
        if (over > 0) g->result[w] = gcomp_step_commit(g->gc[w]);
        else if (g->result[w] == GCOMP_OK) CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_OK);
    }
}

static int all_are(const group *g, gcomp_result result) { return results_are(g->gc, g->result, g->world, result); }

/* A whole step that must succeed. */
static void good_step(group *g, unsigned skip)
{
    group_step(g, skip);
    CHECK(all_are(g, GCOMP_OK));
}

/* As fnv, but four bytes at a time. */
static uint64_t digest_bytes(uint64_t h, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count / 4; i++) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)bytes + 4 * i, 4);
        h = (h ^ word) * 1099511628211u;
    }
    return fnv(h, (const uint8_t *)bytes + count / 4 * 4, count % 4);
}

/* Gradient and residual of a tensor on a worker, digested. */
static uint64_t digest_of(const group *g, size_t w, size_t t)
{
    const float *residual = tensor_residual(g->gc[w], t);
    uint64_t h = digest_bytes(FNV, g->grad[w][t], 4 * g->n[t]);
    return residual ? digest_bytes(h, residual, 4 * g->n[t]) : h;
}

/* Of all tensors, and of all that a save holds. */
static uint64_t digest(const group *g, size_t w)
{
    uint64_t h = FNV;
    const size_t bytes = save_size(g->gc[w]);
    uint8_t *save = (uint8_t *)malloc(bytes);
    size_t length = 0;
    CHECK(gcomp_save(g->gc[w], save, bytes, &length) == GCOMP_OK);
    h = digest_bytes(h, save, length);
    free(save);
    for (size_t t = 0; t < g->count; t++) h ^= mix(digest_of(g, w, t) + t);
    return h;
}

/* ---------------- codecs: all that steps take, and forms of sums that the list has not */

static const char *const more[] = {
    "intsum:bits=8", "intsum:bits=16,rounding=nearest", "intsum:bits=32", "powersgd:rank=3,alternate=1,momentum=0.9",
    "sketch:density=0.02,rows=3,columns=512,candidates=2", "fetch:density=0.02,rows=3,columns=512,momentum=0.5",
    "randomk:density=0.1,unbiased=1,neighbours=1", "terngrad:clip=0,block=16", "powersgd:rank=4",
};
enum { MORE = sizeof more / sizeof *more };

/* The i-th codec text; NULL behind the last. */
static const char *codec_at(size_t i)
{
    for (size_t c = 0; c < ALL_CODECS; c++)
        if (codec_list[c].steps && i-- == 0) return codec_list[c].text;
    return i < MORE ? more[i] : NULL;
}

/* Does the codec exchange sums in each step, and nothing else? Then all its bytes are known. */
static int only_sums(const group *g) { return g->sums && g->sums == g->bytes; }

static const gcomp_aggregate ways[3] = {GCOMP_AGGREGATE_GATHER, GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_TWO_SHOT};

/* ---------------- bytes */

/* Do several tensors with this codec send one list? */
static int sends_list(const char *codec)
{
    return (!strncmp(codec, "topk", 4) || !strncmp(codec, "dryden", 6) || !strncmp(codec, "wangni", 6)) && !strchr(codec, '+') && !strstr(codec, "global=1");
}

/* A step with some of the tensors brings the bytes of an object that has these alone; of payloads,
   whose lengths depend on keys, it brings the bytes that these have among the others. Payloads of
   one codec have one header, but for the length of each before the last, where lengths differ; of
   eden they have random words together too. A
   list has a header, a count and a coder less for each tensor, and its indices end within a byte
   once; those of wangni depend on keys. */
static void test_a_skipped_tensor_takes_no_bytes(void)
{
    size_t sums = 0, lists = 0;
    for (size_t c = 0; codec_at(c); c++) {
        gcomp_desc desc = plain(codec_at(c), GCOMP_AGGREGATE_GATHER, 0);
        const int list = sends_list(codec_at(c)), draws = !strncmp(codec_at(c), "wangni", 6);
        uint64_t one[TENSORS] = {0}, shared = 0; /* bytes of a header that two tensors share */
        for (unsigned take = 0; take < 1u << TENSORS; take++) {
            group g, alone;
            uint64_t expected = 0;
            group_open(&g, 3, &desc, shapes, (1u << TENSORS) - 1);
            group_fill(&g, 0);
            good_step(&g, ~take);
            CHECK(g.frame_bytes == 64);
            if (!(take & (take - 1)))
                for (size_t t = 0; t < TENSORS; t++)
                    if (take == 1u << t) one[t] = g.bytes;
            for (size_t t = 0; t < TENSORS; t++) expected += take >> t & 1 ? one[t] : 0;
            if (take == 3 && !list) shared = expected - g.bytes;
            CHECK(shared == 0 || (strncmp(codec_at(c), "eden", 4) ? shared == 28 || shared == 32 : shared == 32 + 8));
            for (unsigned rest = take & (take - 1); rest; rest &= rest - 1) expected -= list ? 32 + 9 - 8 : shared;
            CHECK(list ? g.bytes <= expected : g.bytes == expected); /* of a tensor alone: what it was found to bring */
            if (take == 0) CHECK(g.calls == 1 && g.bytes == 0);
            if (only_sums(&g) || (list && !draws)) {
                sums += !list;
                lists += list;
                group_open(&alone, 3, &desc, shapes, take);
                for (size_t t = 0, at = 0; t < TENSORS; t++)
                    if (take >> t & 1) fill(&alone, at++, t, 0);
                good_step(&alone, 0);
                CHECK(alone.bytes == g.bytes && alone.calls == g.calls);
                group_close(&alone);
            }
            group_close(&g);
        }
    }
    CHECK(sums > 8 * 15 && lists > 2 * 15);
}

/* The payloads that rank 0 of 3 brings to a step of some tensors by ranges, and their bodies: what goes to each owner, and the own
   sum. Two shots: what is for itself stays. */
static void count_payloads(const group *g, unsigned take, int two_shot, size_t *payloads, size_t *bodies)
{
    *payloads = *bodies = 0;
    for (int w = -1; w < 3; w++) { /* -1: the own sum */
        size_t some = 0;
        for (size_t t = 0; t < TENSORS; t++) {
            size_t begin, end;
            CHECK(gcomp_shard(g->gc[0], t, w < 0 ? 0 : w, &begin, &end) == GCOMP_OK);
            some += take >> t & 1 && begin < end && !(w == 0 && two_shot);
        }
        *bodies += some;
        *payloads += some > 0;
    }
}

/* By ranges too: counts of sums and payloads of ranges. What remains beside them are the lengths and
   answers of a bucket, where lengths vary: these are the same for each number of tensors. */
static void test_a_skipped_tensor_takes_no_bytes_where_means_are_made_by_ranges(void)
{
    static const char *const codecs[] = {"topk:density=0.05", "topk:density=0.05,global=1", "nonzero", "int", "sign", "eden"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int way = 1; way < 3; way++) {
            gcomp_desc desc = plain(codecs[c], ways[way], 0);
            uint64_t bytes[1 << TENSORS], fixed, each[1 << TENSORS]; /* each: headers, and lengths of bodies */
            const int by_ranges = way == 2 || c < 3, varies = c < 3;
            const size_t head = c == 5 ? 32 + 8 : 32; /* eden: with its random words */
            for (unsigned take = 0; take < 1u << TENSORS; take++) {
                group g;
                group_open(&g, 3, &desc, shapes, (1u << TENSORS) - 1);
                group_fill(&g, 0);
                good_step(&g, ~take);
                bytes[take] = g.bytes;
                size_t payloads = take != 0, bodies = (size_t)__builtin_popcount(take);
                if (by_ranges) count_payloads(&g, take, c >= 3, &payloads, &bodies);
                each[take] = head * payloads + (varies ? 4 * (bodies - payloads) : 0);
                if (!take) CHECK(g.calls == 1 && g.bytes == 0);
                group_close(&g);
            }
            fixed = by_ranges && varies ? 3 * 16 + 16 + 16 : 0; /* three lengths, an answer, a total */
            for (unsigned take = 1; take < 1u << TENSORS; take++) {
                uint64_t expected = fixed + each[take];
                for (size_t t = 0; t < TENSORS; t++)
                    expected += take >> t & 1 ? bytes[1u << t] - fixed - each[1u << t] : 0;
                CHECK(bytes[take] == expected);
            }
        }
}

/* Each bucket has its own place in the sums. One whose tensors are all skipped sends its frame. */
static void test_a_bucket_without_gradients_sends_its_frame_alone(void)
{
    for (size_t c = 0; codec_at(c); c++) {
        gcomp_desc desc = plain(codec_at(c), GCOMP_AGGREGATE_GATHER, 1), whole = plain(codec_at(c), GCOMP_AGGREGATE_GATHER, 0);
        for (unsigned take = 0; take < 1u << TENSORS; take += 3) {
            group g, one;
            size_t none = 0;
            group_open(&g, 3, &desc, shapes, (1u << TENSORS) - 1);
            group_open(&one, 3, &whole, shapes, (1u << TENSORS) - 1);
            group_fill(&g, 0);
            group_fill(&one, 0);
            good_step(&g, ~take);
            good_step(&one, ~take);
            for (size_t t = 0; t < TENSORS; t++) none += !(take >> t & 1);
            CHECK(g.frames == TENSORS && g.frame_bytes == 64 * TENSORS && g.bytes >= one.bytes); /* which has fewer headers */
            CHECK(none < TENSORS || g.calls == TENSORS);
            for (size_t w = 0; w < 3 && !strstr(codec_at(c), "global=1"); w++) CHECK(digest(&g, w) == digest(&one, w));
            group_close(&g);
            group_close(&one);
        }
    }
}

/* ---------------- bits */

/* After two whole steps, one in which some are skipped: the others are as in a step that skips none,
   and the skipped ones as they were. */
static void check_one_step(const gcomp_desc *desc, const gcomp_tensor *tensors, size_t world, int order)
{
    for (unsigned skip = 0; skip < 1u << TENSORS; skip++) {
        group a, b;
        uint64_t was[MOST][TENSORS];
        group_open(&a, world, desc, tensors, (1u << TENSORS) - 1);
        group_open(&b, world, desc, tensors, (1u << TENSORS) - 1);
        a.order = order;
        for (uint64_t step = 0; step < 3; step++) {
            group_fill(&a, step);
            group_fill(&b, step);
            for (size_t w = 0; w < world; w++)
                for (size_t t = 0; t < TENSORS; t++) was[w][t] = digest_of(&a, w, t);
            good_step(&a, step == 2 ? skip : 0);
            good_step(&b, 0);
        }
        for (size_t w = 0; w < world; w++)
            for (size_t t = 0; t < TENSORS; t++)
                CHECK(digest_of(&a, w, t) == (skip >> t & 1 ? was[w][t] : digest_of(&b, w, t)));
        group_close(&a);
        group_close(&b);
    }
}

static void test_others_get_the_bits_of_a_step_that_skips_none(void)
{
    for (size_t c = 0; codec_at(c); c++) {
        gcomp_desc desc = plain(codec_at(c), ways[c % 3], c % 2 ? 6000 : 0);
        check_one_step(&desc, shapes, 1 + c % MOST, (int)(c % 3));
    }
}

/* Different codecs share rounds, of the same kinds and of others: floats, integers, payloads. */
static const gcomp_tensor mixed[3][TENSORS] = {
    {{"a", 40, 24, 0, GCOMP_F32, "powersgd:rank=2"},
     {"b", 33, 41, 0, GCOMP_F32, "none"},
     {"c", 18, 20, 3, GCOMP_F32, "powersgd:rank=1,alternate=1"},
     {"d", 2000, 0, 0, GCOMP_F32, "randomk:density=0.1"}},
    {{"a", 40, 24, 0, GCOMP_F32, "intsum:bits=8"},
     {"b", 33, 41, 0, GCOMP_F32, "intsum:bits=16"},
     {"c", 18, 20, 3, GCOMP_F32, "terngrad:share=1"},
     {"d", 2000, 0, 0, GCOMP_F32, "intsum:bits=8,rounding=nearest"}},
    {{"a", 40, 24, 0, GCOMP_F32, "sketch:density=0.02,rows=3,columns=512,candidates=2"},
     {"b", 33, 41, 0, GCOMP_F32, "topk:density=0.05,global=1"},
     {"c", 18, 20, 3, GCOMP_F32, "powersgd:rank=1"},
     {"d", 2000, 0, 0, GCOMP_F32, "fetch:density=0.02,rows=3,columns=512"}},
};

static void test_codecs_of_all_kinds_stand_beside_each_other(void)
{
    for (size_t m = 0; m < 3; m++)
        for (int order = 0; order < 3; order++)
            for (size_t bytes = 0; bytes <= 9000; bytes += 4500) {
                gcomp_desc desc = plain("none", GCOMP_AGGREGATE_SHARDS, bytes);
                check_one_step(&desc, mixed[m], 3, order);
            }
}

/* Casts that the transport sums: 2 bytes an element of the tensors taken, and no other. */
static void test_sums_of_halves_skip_too(void)
{
    static const gcomp_tensor both[TENSORS] = {
        {"a", 40, 24, 0, GCOMP_F32, "fp16"},
        {"b", 33, 41, 0, GCOMP_F32, "bf16"},
        {"c", 18, 20, 3, GCOMP_F32, "fp16"},
        {"d", 2000, 0, 0, GCOMP_F32, "bf16"},
    };
    for (size_t bytes = 0; bytes <= 9000; bytes += 9000) {
        gcomp_desc desc = plain("none", GCOMP_AGGREGATE_AUTO, bytes);
        for (unsigned take = 0; take < 1u << TENSORS; take++) {
            group g;
            uint64_t expected = 0;
            group_open(&g, 3, &desc, both, (1u << TENSORS) - 1);
            group_fill(&g, 0);
            good_step(&g, ~take);
            for (size_t t = 0; t < TENSORS; t++) expected += take >> t & 1 ? 2 * g.n[t] : 0;
            CHECK(g.bytes == expected && g.sums == expected);
            group_close(&g);
        }
        for (int order = 0; order < 3; order++) check_one_step(&desc, both, 3 + (size_t)order % 2, order);
    }
}

/* One tensor is in each step, the others come and go: it has the bits of an object that skips none. */
static void test_what_others_skip_does_not_reach_a_tensor(void)
{
    for (size_t c = 0; codec_at(c); c++)
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_desc desc = plain(codec_at(c), GCOMP_AGGREGATE_GATHER, 0);
            group a, b;
            group_open(&a, 2, &desc, shapes, (1u << TENSORS) - 1);
            group_open(&b, 2, &desc, shapes, (1u << TENSORS) - 1);
            for (uint64_t step = 0; step < 6; step++) {
                group_fill(&a, step);
                group_fill(&b, step);
                good_step(&a, (unsigned)mix(step + 10 * t) & 15 & ~(1u << t));
                good_step(&b, 0);
                for (size_t w = 0; w < 2; w++) CHECK(digest_of(&a, w, t) == digest_of(&b, w, t));
            }
            group_close(&a);
            group_close(&b);
        }
}

/* The first tensor has the same keys in an object without the others: so it has the same bits. */
static void test_the_first_tensor_is_as_in_an_object_without_the_others(void)
{
    for (size_t c = 0; codec_at(c); c++) {
        gcomp_desc desc = plain(codec_at(c), GCOMP_AGGREGATE_GATHER, 0);
        group a, b;
        group_open(&a, 3, &desc, shapes, (1u << TENSORS) - 1);
        group_open(&b, 3, &desc, shapes, 1);
        for (uint64_t step = 0; step < 3; step++) {
            group_fill(&a, step);
            group_fill(&b, step);
            good_step(&a, 14);
            good_step(&b, 0);
            /* what is applied goes by ranges, which are cut from all tensors */
            for (size_t w = 0; w < 3 && !strstr(codec_at(c), "global=1"); w++) CHECK(digest_of(&a, w, 0) == digest_of(&b, w, 0));
            if (only_sums(&b)) CHECK(a.bytes == b.bytes && a.calls == b.calls);
        }
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- lists of codecs: entries have sums of other lengths */

static void test_lists_of_codecs_skip_too(void)
{
    static const char *const lists[] = {"powersgd:rank=8|powersgd:rank=2", "intsum|none", "randomk:density=0.5|randomk:density=0.1",
                                        "none|powersgd:rank=1,alternate=1"};
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (unsigned skip = 0; skip < 1u << TENSORS; skip++) {
            gcomp_desc desc = plain(lists[l], GCOMP_AGGREGATE_GATHER, l % 2 ? 6000 : 0);
            group a, b;
            desc.schedule = "warmup:epochs=2";
            group_open(&a, 3, &desc, shapes, (1u << TENSORS) - 1);
            group_open(&b, 3, &desc, shapes, (1u << TENSORS) - 1);
            for (int over = 0; over < 2; over++) { /* gcomp_exchange is not needed: the epoch stands in the step */
                group *g = over ? &b : &a;
                for (uint64_t step = 0; step < 4; step++) {
                    gcomp_step how;
                    int done = 0;
                    how = default_step();
                    how.epoch = (uint32_t)step;
                    group_fill(g, step);
                    for (size_t w = 0; w < 3; w++) CHECK(gcomp_step_begin(g->gc[w], &how) == GCOMP_OK);
                    for (size_t t = 0; t < TENSORS; t++)
                        for (size_t w = 0; w < 3; w++)
                            CHECK(gcomp_step_ready(g->gc[w], t, !over && step == 3 && skip >> t & 1 ? NULL : g->grad[w][t]) == GCOMP_OK);
                    done = pump(g);
                    CHECK(done == 1);
                    for (size_t w = 0; w < 3 && done == 1; w++) CHECK(gcomp_step_commit(g->gc[w]) == GCOMP_OK);
                }
            }
            for (size_t w = 0; w < 3; w++)
                for (size_t t = 0; t < TENSORS; t++)
                    if (!(skip >> t & 1)) CHECK(digest_of(&a, w, t) == digest_of(&b, w, t));
            group_close(&a);
            group_close(&b);
        }
}

/* ---------------- failures */

/* Each collective fails, on each worker and on all: nothing has changed, and the step that is tried
   again has its bits. */
static void campaign(const gcomp_desc *desc, const gcomp_tensor *tensors, unsigned skip)
{
    group good, g;
    uint64_t was[MOST], then[MOST];
    group_open(&good, 3, desc, tensors, (1u << TENSORS) - 1);
    group_fill(&good, 0);
    good_step(&good, 0);
    group_fill(&good, 1);
    good_step(&good, skip);
    for (size_t w = 0; w < 3; w++) then[w] = digest(&good, w);
    for (size_t call = 0; call < good.calls; call++)
        for (size_t on = 0; on < 4; on++) {
            group_open(&g, 3, desc, tensors, (1u << TENSORS) - 1);
            group_fill(&g, 0);
            good_step(&g, 0);
            group_fill(&g, 1);
            for (size_t w = 0; w < 3; w++) was[w] = digest(&g, w);
            g.fails_at = call;
            g.fails_on = on == 3 ? (size_t)MOST : on;
            group_step(&g, skip);
            for (size_t w = 0; w < 3; w++) CHECK(digest(&g, w) == was[w]);
            g.fails_at = SIZE_MAX;
            good_step(&g, skip);
            for (size_t w = 0; w < 3; w++) CHECK(digest(&g, w) == then[w]);
            group_close(&g);
        }
    group_close(&good);
}

static void test_each_failure_leaves_no_trace(void)
{
    for (size_t m = 0; m < 3; m++)
        for (unsigned skip = 1; skip < 1u << TENSORS; skip += m == 2 ? 4 : 3) {
            gcomp_desc desc = plain("none", GCOMP_AGGREGATE_SHARDS, skip % 2 ? 6000 : 0);
            campaign(&desc, mixed[m], skip);
        }
    for (unsigned skip = 1; skip < 1u << TENSORS; skip += 5) {
        gcomp_desc desc = plain(skip % 2 ? "bf16" : "fp16", GCOMP_AGGREGATE_AUTO, skip % 2 ? 6000 : 0);
        campaign(&desc, shapes, skip);
    }
}

/* A worker that skips other tensors is named before anything else is sent. */
static void test_workers_that_skip_other_tensors_are_a_mismatch(void)
{
    for (size_t m = 0; m < 3; m++)
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_desc desc = plain("none", GCOMP_AGGREGATE_SHARDS, 0);
            group g;
            uint64_t was[MOST];
            char expected[200];
            const size_t k = 0; /* the first tensor that differs */
            group_open(&g, 3, &desc, mixed[m], (1u << TENSORS) - 1);
            group_fill(&g, 0);
            good_step(&g, 5);
            for (size_t w = 0; w < 3; w++) was[w] = digest(&g, w);
            g.calls = 0;
            for (size_t w = 0; w < 3; w++) {
                CHECK(gcomp_step_begin(g.gc[w], NULL) == GCOMP_OK);
                for (size_t k = 0; k < TENSORS; k++)
                    CHECK(gcomp_step_ready(g.gc[w], k, (w == 1) == (k == t) ? NULL : g.grad[w][k]) == GCOMP_OK);
            }
            /* the frames; then two to find the tensor among four, and two to say its name */
            CHECK(pump(&g) == -1 && g.calls == 5 && all_are(&g, GCOMP_MISMATCH));
            snprintf(expected, sizeof expected, "rank 1 has tensor '%s' %s, rank 0 has tensor '%s' %s", mixed[m][k].name,
                     k == t ? "skipped" : "with a gradient", mixed[m][k].name, k == t ? "with a gradient" : "skipped");
            CHECK(strstr(gcomp_error(g.gc[0]), expected) != NULL);
            for (size_t w = 0; w < 3; w++) CHECK(digest(&g, w) == was[w]);
            good_step(&g, 10);
            group_close(&g);
        }
}

/* NaN in a tensor that is not skipped, where others are. */
static void test_nan_beside_skipped_tensors_ends_the_step(void)
{
    for (size_t m = 0; m < 3; m++)
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_desc desc = plain("none", GCOMP_AGGREGATE_GATHER, 6000);
            group g;
            uint64_t was[MOST];
            group_open(&g, 2, &desc, mixed[m], (1u << TENSORS) - 1);
            group_fill(&g, 0);
            good_step(&g, 0);
            group_fill(&g, 1);
            g.grad[1][t][3] = NAN;
            for (size_t w = 0; w < 2; w++) was[w] = digest(&g, w);
            group_step(&g, 15 & ~(1u << t) & ~(t ? 1u : 2u));
            CHECK(all_are(&g, GCOMP_NOT_FINITE));
            for (size_t w = 0; w < 2; w++) CHECK(digest(&g, w) == was[w]);
            g.grad[1][t][3] = 1;
            good_step(&g, 15 & ~(1u << t));
            group_close(&g);
        }
}

/* ---------------- gcomp_exchange over threads, through callbacks that count */

typedef struct counted {
    gcomp_comm below;
    uint64_t bytes; /* that this worker brings, without frames and without padding */
    gcomp *gc;
    float *grads[TENSORS];
    size_t frames;
    gcomp_result result;
} counted;

static int count_reduce(void *user, void *data, size_t n, gcomp_dtype dtype)
{
    counted *c = (counted *)user;
    c->bytes += n * bytes_of_dtype(dtype);
    return c->below.allreduce(c->below.user, data, n, dtype);
}

static int count_max(void *user, float *data, size_t n)
{
    counted *c = (counted *)user;
    c->bytes += 4 * n;
    return c->below.allreduce_max(c->below.user, data, n);
}

static int count_gather(void *user, const void *mine, void *all, size_t bytes)
{
    counted *c = (counted *)user;
    if (bytes == 64) c->frames++;
    else c->bytes += bytes;
    return c->below.allgather(c->below.user, mine, all, bytes);
}

static int count_gatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    counted *c = (counted *)user;
    c->bytes += bytes[c->below.rank];
    return c->below.allgatherv(c->below.user, mine, all, bytes, stride);
}

static void *take_turn(void *arg)
{
    counted *c = (counted *)arg;
    c->result = exchange_floats(c->gc, c->grads, NULL);
    return NULL;
}

/* Three tensors of 52516 floats together, uncompressed and in intsum: with the last one alone, its
   bytes travel. */
static void test_bytes_of_an_exchange_are_those_of_the_tensors_taken(void)
{
    static const size_t sizes[3] = {40000, 12000, 516};
    static const char *const codecs[3] = {"none", "intsum:bits=16", "powersgd:rank=2"};
    for (size_t c = 0; c < 3; c++)
        for (unsigned take = 0; take < 8; take++) {
            counted worker[3];
            pthread_t id[3];
            gcomp_threads *group;
            uint64_t expected = 0;
            CHECK(gcomp_threads_open(&group, 3, 20) == 0);
            memset(worker, 0, sizeof worker);
            for (int w = 0; w < 3; w++) {
                gcomp_desc desc = plain(codecs[c], GCOMP_AGGREGATE_AUTO, 0);
                counted *me = &worker[w];
                me->below = desc.comm = gcomp_threads_comm(group, w);
                desc.comm.user = me;
                desc.comm.allreduce = count_reduce;
                desc.comm.allreduce_max = count_max;
                desc.comm.allgather = count_gather;
                desc.comm.allgatherv = count_gatherv;
                desc.comm.alltoallv = NULL;
                CHECK(gcomp_open(&me->gc, &desc) == GCOMP_OK);
                for (size_t t = 0; t < 3; t++) {
                    gcomp_tensor tensor = {NULL, 0, 4, 0, GCOMP_F32, NULL};
                    tensor.name = shapes[t].name;
                    tensor.rows = sizes[t] / 4;
                    CHECK(gcomp_add_tensor(me->gc, &tensor) == GCOMP_OK);
                    me->grads[t] = take >> t & 1 ? (float *)calloc(sizes[t], 4) : NULL;
                    if (me->grads[t]) me->grads[t][sizes[t] - 1] = (float)(w + 1);
                }
                CHECK(pthread_create(&id[w], NULL, take_turn, me) == 0);
            }
            for (int w = 0; w < 3; w++) pthread_join(id[w], NULL);
            for (size_t t = 0; t < 3; t++) {
                if (!(take >> t & 1)) continue;
                if (c == 0) expected += 4 * sizes[t];
                if (c == 1) expected += 4 + 2 * sizes[t];
                if (c == 2) expected += 4 * 2 * (sizes[t] / 4 + 4);
            }
            for (int w = 0; w < 3; w++) {
                gcomp_statistics stats;
                counted *me = &worker[w];
                if (expected) me->bytes -= c == 1 ? 2 : 4; /* the one behind the first sum */
                CHECK(me->result == GCOMP_OK && me->frames == 1 && me->bytes == expected);
                CHECK(gcomp_stats(me->gc, &stats) == GCOMP_OK);
                /* over the network: a frame to each of the two others, and 4 / 3 of what is summed, rounded up in each round */
                CHECK(3 * (stats.bytes_out - 128) >= 4 * expected && 3 * (stats.bytes_out - 128) < 4 * expected + 9);
                for (size_t t = 0; t < 3; t++) {
                    if (me->grads[t] && c == 0) CHECK(me->grads[t][0] == 0 && me->grads[t][sizes[t] - 1] == 2.0f);
                    free(me->grads[t]);
                }
                gcomp_close(me->gc);
            }
            gcomp_threads_close(group);
        }
}

/* ---------------- one tensor at a time */

static const char *const in_turn[] = {"topk:density=0.05", "leadertopk:density=0.05", "powersgd:rank=2,alternate=1", "int:bits=4", "dgc:density=0.05,warmup=0"};

/* Exchanges that skip all tensors but one give each tensor the means and residuals that it has where all are exchanged together:
   the turns of a tensor go by its own steps. Behind the first step these codecs draw nothing: random numbers go by the number of the exchange. */
static void test_tensors_one_at_a_time_get_what_they_get_together(void)
{
    for (size_t c = 0; c < sizeof in_turn / sizeof *in_turn; c++)
        for (size_t world = 2; world <= 4; world++) {
            const gcomp_desc desc = plain(in_turn[c], GCOMP_AGGREGATE_GATHER, 0);
            group a, b;
            size_t wrong = 0;
            group_open(&a, world, &desc, shapes, 15);
            group_open(&b, world, &desc, shapes, 15);
            for (uint64_t step = 0; step < 6; step++) {
                group_fill(&a, step);
                group_fill(&b, step);
                good_step(&a, 0);
                if (step == 0) good_step(&b, 0); /* powersgd draws its first Q */
                for (size_t t = 0; t < TENSORS && step; t++) good_step(&b, ~(1u << t));
                for (size_t w = 0; w < world; w++)
                    for (size_t t = 0; t < TENSORS; t++) wrong += digest_of(&a, w, t) != digest_of(&b, w, t);
            }
            if (wrong) printf("# %s, %d workers: %d tensors differ\n", in_turn[c], (int)world, (int)wrong);
            CHECK(wrong == 0);
            group_close(&a);
            group_close(&b);
        }
}

/* Each worker leads each tensor, though tensor t is always exchanged in a step t, t + 4, t + 8, ... : what one worker alone has is
   sent, and does not wait for ever. A save and a load between the steps change nothing. */
static void test_all_workers_lead_where_tensors_take_turns(void)
{
    for (size_t world = 2; world <= 4; world += 2) {
        const gcomp_desc desc = plain("leadertopk:density=0.01", GCOMP_AGGREGATE_GATHER, 0);
        group g, other;
        group_open(&g, world, &desc, shapes, 15);
        group_open(&other, world, &desc, shapes, 15);
        for (uint64_t step = 0; step < 2 * TENSORS * world; step++) {
            const size_t t = step % TENSORS;
            for (size_t w = 0; w < world; w++) { /* worker w has its large elements at w, w + 7 * world, ... */
                memset(g.grad[w][t], 0, 4 * g.n[t]);
                for (size_t i = w; i < 30 * world; i += 7 * world) g.grad[w][t][i] = step < TENSORS ? 1.0f : 0;
            }
            good_step(&g, ~(1u << t));
            for (size_t w = 0; w < world; w++) { /* the next step is another object's */
                const size_t room = save_size(g.gc[w]);
                void *save = malloc(room);
                const void *own = save;
                size_t length = 0;
                gcomp *gc = g.gc[w];
                CHECK(gcomp_save(gc, save, room, &length) == GCOMP_OK && gcomp_load(other.gc[w], &own, &length, 1, NULL) == GCOMP_OK);
                g.gc[w] = other.gc[w];
                other.gc[w] = gc;
                free(save);
            }
        }
        for (size_t w = 0; w < world; w++)
            for (size_t t = 0; t < TENSORS; t++) {
                size_t waiting = 0;
                for (size_t i = 0; i < g.n[t]; i++) waiting += tensor_residual(g.gc[w], t)[i] != 0;
                CHECK(waiting == 0);
            }
        group_close(&g);
        group_close(&other);
    }
}

/* check_every 4 with four tensors in turn: the means of each are compared, and not only those of the last. */
static void test_all_tensors_are_checked_where_they_take_turns(void)
{
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_desc desc = plain("none", GCOMP_AGGREGATE_GATHER, 0);
        size_t steps = 0;
        int found = 0;
        group g;
        desc.check_every = TENSORS;
        group_open(&g, 2, &desc, shapes, 15);
        for (; steps < 6 * TENSORS && !found; steps++) {
            group_fill(&g, steps);
            g.corrupts = steps % TENSORS == t; /* worker 1 gets another sum of this tensor */
            group_step(&g, ~(1u << steps % TENSORS));
            found = g.result[0] == GCOMP_DIVERGED;
            CHECK(all_are(&g, found ? GCOMP_DIVERGED : GCOMP_OK));
        }
        CHECK(found);
        group_close(&g);
    }
}

int main(void)
{
    RUN(test_a_skipped_tensor_takes_no_bytes);
    RUN(test_a_skipped_tensor_takes_no_bytes_where_means_are_made_by_ranges);
    RUN(test_a_bucket_without_gradients_sends_its_frame_alone);
    RUN(test_others_get_the_bits_of_a_step_that_skips_none);
    RUN(test_codecs_of_all_kinds_stand_beside_each_other);
    RUN(test_sums_of_halves_skip_too);
    RUN(test_what_others_skip_does_not_reach_a_tensor);
    RUN(test_the_first_tensor_is_as_in_an_object_without_the_others);
    RUN(test_lists_of_codecs_skip_too);
    RUN(test_each_failure_leaves_no_trace);
    RUN(test_workers_that_skip_other_tensors_are_a_mismatch);
    RUN(test_nan_beside_skipped_tensors_ends_the_step);
    RUN(test_bytes_of_an_exchange_are_those_of_the_tensors_taken);
    RUN(test_tensors_one_at_a_time_get_what_they_get_together);
    RUN(test_all_workers_lead_where_tensors_take_turns);
    RUN(test_all_tensors_are_checked_where_they_take_turns);
    return test_end();
}
