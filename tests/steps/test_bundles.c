/* Proves of tensors that travel together: their bodies, or one list, stand behind one header, ranges are cut from all of them, and what a hostile
   worker writes into such a payload is refused. */

#include "group.h"

enum { HEADER = 32, SEVERAL = 4 };
static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g"};

static uint64_t get64(const uint8_t *p)
{
    uint64_t x = 0;
    for (int i = 8; i-- > 0;) x = x << 8 | p[i];
    return x;
}

static uint32_t get32(const uint8_t *p) { return (uint32_t)(get64(p) & 0xffffffffu); } /* 4 bytes more can be read */

/* What one worker got from another in a request. */
static uint8_t caught[1 << 16];
static size_t caught_bytes;

static void catch_bytes(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || rank != 1 || from != 0) return;
    memcpy(caught, bytes, caught_bytes = length);
}

/* The body of elements of a tensor as this worker sends it alone; range -1: of all. */
static size_t body_of(const char *codec, const float *x, size_t n, size_t tensor, int range, uint8_t *to)
{
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    uint64_t own = gcomp_key_make(5, 0, (uint32_t)tensor, 0).own;
    if (range >= 0) own = plain_philox(own, 0, 7, (uint32_t)range);
    const size_t length = encode(codec, x, n, payload, own);
    memcpy(to, payload + HEADER, length - HEADER);
    return length - HEADER;
}

/* Compares what was caught with the bodies of three tensors, the second skipped if `skips`; range: that of worker 1. lead: so many bytes, of the
   key that the tensors share then, the first body has for all. */
static void check_caught(const group *g, const char *codec, int skips, int ranges, int varies, size_t lead)
{
    static uint8_t expected[1 << 16];
    size_t at = HEADER, elements = 0, last = 3;
    for (size_t t = 0; t < 3; t++) {
        size_t begin = 0, end = g->n[t];
        if (ranges) CHECK(gcomp_shard(g->gc[1], t, 1, &begin, &end) == GCOMP_OK);
        if (begin < end && !(skips && t == 1)) last = t;
    }
    CHECK(last < 3);
    size_t bodies = 0;
    for (size_t t = 0; t < 3; t++) {
        size_t begin = 0, end = g->n[t];
        if (ranges) CHECK(gcomp_shard(g->gc[1], t, 1, &begin, &end) == GCOMP_OK);
        if (begin == end || (skips && t == 1)) continue;
        static float x[ROOM];
        for (size_t i = begin; i < end; i++) x[i - begin] = value_of(0, 0, t, i);
        const size_t front = varies && t != last ? 4 : 0;
        const size_t skip = bodies ? lead : 0; /* these bytes go where the body before ends, and are put back */
        uint8_t before[8];
        memcpy(before, expected + at - skip, skip);
        const size_t bytes = body_of(codec, x, end - begin, lead ? 0 : t, ranges ? 1 : -1, expected + at + front - skip) - skip;
        memcpy(expected + at - skip, before, skip);
        for (size_t i = 0; i < front; i++) expected[at + i] = (uint8_t)(bytes >> 8 * i);
        at += front + bytes;
        elements += end - begin;
        bodies++;
    }
    CHECK(caught_bytes == at && !memcmp(caught, "GCMP", 4));
    CHECK(caught[6] == (2 | (bodies > 1 ? SEVERAL : 0))); /* 2: it has a checksum */
    CHECK(get64(caught + 8) == elements && get64(caught + 16) == at - HEADER);
    CHECK(!memcmp(caught + HEADER, expected + HEADER, at - HEADER));
}

static void test_bodies_of_tensors_stand_behind_one_header(void)
{
    static const struct {
        const char *codec;
        int varies;
        size_t lead;
    } some[] = {{"int:bits=4", 0, 0}, {"sign:block=64", 0, 0}, {"qsgd", 0, 0}, {"eden", 0, 8}, {"eden:bits=3,block=64", 0, 8}, {"twobit:threshold=0.5", 0, 0},
                {"topk:density=0.1+int", 1, 0}, {"nonzero", 1, 0}, {"topk:density=0.1,global=1", 1, 0}, {"blocktopk:density=0.1,block=16", 1, 0},
                {"qsgd:code=entropy", 1, 0}, {"ecsq", 1, 0}};
    static const size_t n[3] = {300, 1000, 77};
    for (size_t c = 0; c < sizeof some / sizeof *some; c++)
        for (int ranges = 0; ranges < 2; ranges++)
            for (int skips = 0; skips < 2; skips++) {
                const char *const codecs[3] = {some[c].codec, some[c].codec, some[c].codec};
                if (ranges && !has_two_shots(some[c].codec)) continue;
                gcomp_desc desc = desc_of(ranges ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER);
                group g;
                group_open(&g, 2, &desc, codecs, n, 3);
                group_fill(&g, 0);
                g.skip = skips ? 2 : 0;
                g.change = catch_bytes;
                g.at = ranges && lengths_vary(some[c].codec) ? SHARDS : 1; /* right behind the frames, or behind lengths */
                caught_bytes = 0;
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
                check_caught(&g, some[c].codec, skips, ranges, some[c].varies, some[c].lead);
                group_close(&g);
            }
}

/* One list of all tensors: what each sends by itself stands there as if it were one tensor, and had no other elements. */
static void check_list(const group *g, const char *codec, int skips)
{
    static uint8_t payload[GCOMP_BOUND(ROOM)], expected[GCOMP_BOUND(ROOM)];
    static float all[ROOM];
    size_t elements = 0;
    for (size_t t = 0; t < 3; t++) {
        static float x[ROOM];
        if (skips && t == 1) continue;
        for (size_t i = 0; i < g->n[t]; i++) x[i] = value_of(0, 0, t, i);
        const size_t length = encode(codec, x, g->n[t], payload, gcomp_key_make(5, 0, (uint32_t)t, 0).own);
        CHECK(gcomp_decode(payload, length, all + elements, GCOMP_F32, g->n[t], NULL) == GCOMP_OK);
        elements += g->n[t];
    }
    const size_t length = encode("nonzero", all, elements, expected, 1);
    CHECK(caught_bytes == length && !memcmp(caught, "GCMP", 4) && caught[6] == (2 | SEVERAL) && get64(caught + 8) == elements);
    CHECK(caught[5] == payload[5] && !memcmp(caught + 16, expected + 16, 12)); /* bytes, parameter word */
    CHECK(!memcmp(caught + HEADER, expected + HEADER, length - HEADER));
}

static void test_what_sparse_tensors_send_is_one_list(void)
{
    static const char *const some[] = {"topk:density=0.1", "topk:density=0.02,exact=0", "topk:density=0.05,chunk=100", "dryden:density=0.05", "wangni:density=0.05"};
    static const size_t n[3] = {300, 1000, 77};
    for (size_t c = 0; c < sizeof some / sizeof *some; c++)
        for (int skips = 0; skips < 2; skips++) {
            const char *const codecs[3] = {some[c], some[c], some[c]};
            gcomp_desc desc = desc_of(GCOMP_AGGREGATE_GATHER);
            group g;
            group_open(&g, 2, &desc, codecs, n, 3);
            group_fill(&g, 0);
            g.skip = skips ? 2 : 0;
            g.change = catch_bytes;
            g.at = 1;
            caught_bytes = 0;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            check_list(&g, some[c], skips);
            group_close(&g);
        }
}

/* Each tensor has the mean and the residual that it has where every tensor is a bucket, and sends a payload alone; also where a
   bucket's means are made before the next bucket comes, where tensors are skipped, and where what is sent is all zero. */
static void test_tensors_of_a_list_have_the_means_that_they_have_alone(void)
{
    static const char *const some[] = {"topk:density=0.3", "topk:density=0.01", "topk:density=0.05,exact=0", "wangni:density=0.1"};
    static const size_t n[TENSORS] = {4000, 1, 4500, 129, 4300, 16, 77}, worlds[] = {2, 3, 11};
    static const size_t buckets[] = {4, 4 * 4400, 1 << 20}; /* a tensor each; three buckets; one */
    for (size_t c = 0; c < sizeof some / sizeof *some; c++)
        for (size_t k = 0; k < sizeof worlds / sizeof *worlds; k++) {
            uint64_t digests[3][4][MOST];
            for (size_t b = 0; b < 3; b++) {
                const char *const codecs[TENSORS] = {some[c], some[c], some[c], some[c], some[c], some[c], some[c]};
                gcomp_desc desc = desc_of(GCOMP_AGGREGATE_GATHER);
                group g;
                desc.bucket_bytes = buckets[b];
                group_open(&g, worlds[k], &desc, codecs, n, TENSORS);
                for (uint64_t step = 0; step < 4; step++) {
                    group_fill(&g, step);
                    g.skip = step == 1 ? 1 | 16 | 64 : step == 2 ? 2 | 4 | 8 | 16 | 32 : 0;
                    for (size_t w = 0; w < g.world && step == 3; w++) memset(g.grad[w][2], 0, 4 * n[2]);
                    group_step(&g);
                    CHECK(all_are(&g, GCOMP_OK));
                    digest_all(&g, digests[b][step]);
                    for (size_t t = 0; t < TENSORS; t++) CHECK(!memcmp(g.grad[0][t], g.grad[1][t], (g.half[t] ? 2 : 4) * n[t]) || g.skip >> t & 1);
                }
                group_close(&g);
                for (size_t step = 0; step < 4; step++) CHECK(!memcmp(digests[b][step], digests[0][step], sizeof(uint64_t) * worlds[k]));
            }
        }
}

/* All elements have one owner; ranges are equal, but for the last ones, however small the tensors are. */
static void test_ranges_are_cut_from_all_tensors(void)
{
    static const size_t n[5] = {700, 128, 65, 3000, 1};
    const char *const codecs[5] = {"sign:block=64", "sign:block=64", "sign:block=64", "sign:block=64", "sign:block=64"};
    for (size_t world = 2; world <= 16; world++) {
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
        group g;
        size_t owned[MOST] = {0}, most = 0;
        group_open(&g, world, &desc, codecs, n, 5);
        for (size_t t = 0; t < 5; t++) {
            size_t at = 0;
            for (size_t w = 0; w < world; w++) {
                size_t begin, end;
                CHECK(gcomp_shard(g.gc[0], t, (int)w, &begin, &end) == GCOMP_OK && begin <= end && end <= n[t]);
                if (begin == end) continue; /* nothing of this tensor */
                CHECK(begin == at && (begin % 128 == 0));
                at = end;
                owned[w] += end - begin;
                most = owned[w] > most ? owned[w] : most;
            }
            CHECK(at == n[t]);
        }
        CHECK(most <= (3894 + 2 * 128 + world - 1) / world + 128); /* tensors begin at multiples of 128 */
        group_fill(&g, 0);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

/* What stands between two tensors with the same codec: what has no payload leaves them together, what has one ends the bundle. Each
   tensor has the mean and the residual that it has alone. */
static void test_other_tensors_stand_between_those_of_a_bundle(void)
{
    static const struct {
        const char *between;
        int headers; /* in what a worker gathers */
    } some[] = {{"int:bits=4", 1}, {"none", 1}, {"powersgd:rank=1", 1}, {"randomk:density=0.1", 1}, {"int:bits=3", 3},
                {"dct", 3}, {"terngrad:share=1", 3}, {"topk:density=0.1", 3}, {"int|int:bits=4", 3}};
    static const char *const with_sums[] = {"none", "powersgd", "randomk", "terngrad", NULL};
    static const size_t n[3] = {300, 2048, 77};
    for (size_t c = 0; c < sizeof some / sizeof *some; c++) {
        const int list = strchr(some[c].between, '|') != NULL; /* that of the desc */
        const char *const codecs[3] = {"int:bits=4", list ? NULL : some[c].between, "int:bits=4"};
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_GATHER);
        group g;
        if (list) {
            desc.schedule = "accordion";
            desc.codec = some[c].between;
            desc.compress_vectors = 1;
        }
        group_open(&g, 2, &desc, codecs, n, 3);
        for (uint64_t step = 0; step < 3; step++) {
            gcomp_step epoch = GCOMP_STEP;
            epoch.epoch = (uint32_t)step;
            g.step = &epoch;
            group_fill(&g, step);
            size_t headers = 0;
            g.change = catch_bytes;
            g.at = 1; /* frames, sums if there are any, payloads */
            for (const char *const *sums = with_sums; *sums; sums++) g.at += !strncmp(some[c].between, *sums, strlen(*sums));
            caught_bytes = 0;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t at = 0; at < caught_bytes; at += HEADER + (size_t)get64(caught + at + 16)) headers++;
            if (headers != (size_t)some[c].headers) printf("# %s: %d headers\n", some[c].between, (int)headers);
            CHECK(headers == (size_t)some[c].headers);
            for (size_t t = 0; t < 3; t++) CHECK(!memcmp(g.grad[0][t], g.grad[1][t], 4 * n[t]));
        }
        group_close(&g);
    }
}

/* ---------------- a hostile worker */

/* Worker 1 gets another byte, or other bytes, of the payload of worker 0. */
static void spoil(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || rank != 1 || from != 0) return;
    CHECK(g->arg < length);
    bytes[g->arg] ^= 1;
}

/* Without checksums each field is looked at: a change is refused, or changes no more than numbers. */
static void check_field(const char *codec, gcomp_aggregate way, size_t at, gcomp_result result)
{
    static const size_t n[3] = {300, 1000, 77};
    const char *const codecs[3] = {codec, codec, codec};
    gcomp_desc desc = desc_of(way);
    uint64_t before[2];
    group g;
    desc.no_checksum = 1;
    group_open(&g, 2, &desc, codecs, n, 3);
    group_fill(&g, 0);
    digest_all(&g, before);
    g.change = spoil;
    g.at = way != GCOMP_AGGREGATE_GATHER && lengths_vary(codec) ? SHARDS : 1;
    g.arg = at;
    group_step(&g);
    if (g.result[1] != result) printf("# %s, byte %d: %s\n", codec, (int)at, result_name(g.result[1]));
    CHECK(g.result[1] == result && digest(&g, 1) == before[1]);
    group_close(&g);
}

static void test_fields_of_a_payload_of_several_are_checked(void)
{
    static const gcomp_aggregate both[] = {GCOMP_AGGREGATE_GATHER, GCOMP_AGGREGATE_TWO_SHOT};
    for (int k = 0; k < 2; k++) {
        check_field("int:bits=4", both[k], 0, GCOMP_NOT_A_PAYLOAD);
        check_field("int:bits=4", both[k], 4, GCOMP_NOT_A_PAYLOAD); /* version 0 */
        check_field("int:bits=4", both[k], 8, GCOMP_COUNT_MISMATCH);
        check_field("int:bits=4", both[k], 15, GCOMP_COUNT_MISMATCH);
        check_field("int:bits=4", both[k], 24, GCOMP_CODEC_MISMATCH);
        check_field("eden", both[k], 8, GCOMP_COUNT_MISMATCH);
    }
    check_field("int:bits=4", GCOMP_AGGREGATE_GATHER, 17, GCOMP_TRUNCATED); /* 256 bytes more or fewer */
    check_field("int:bits=4", GCOMP_AGGREGATE_GATHER, 22, GCOMP_TRUNCATED);
    check_field("eden", GCOMP_AGGREGATE_GATHER, 17, GCOMP_TRUNCATED);
    check_field("topk:density=0.1+int", GCOMP_AGGREGATE_GATHER, 32, GCOMP_CORRUPT); /* the length of the first body */
    check_field("topk:density=0.1+int", GCOMP_AGGREGATE_GATHER, 35, GCOMP_TRUNCATED);
    check_field("topk:density=0.1", GCOMP_AGGREGATE_GATHER, 8, GCOMP_COUNT_MISMATCH); /* a list: its elements, bytes, k, coder */
    check_field("topk:density=0.1", GCOMP_AGGREGATE_GATHER, 17, GCOMP_TRUNCATED);
    check_field("topk:density=0.1", GCOMP_AGGREGATE_GATHER, 32, GCOMP_CORRUPT);
    check_field("topk:density=0.1", GCOMP_AGGREGATE_GATHER, 39, GCOMP_CORRUPT);
    check_field("topk:density=0.1", GCOMP_AGGREGATE_GATHER, 40, GCOMP_RESERVED_BITS);
    check_field("topk:density=0.1", GCOMP_AGGREGATE_SHARDS, 35, GCOMP_TRUNCATED);
}

/* Several bodies where one is expected, and one where several are. */
static void turn_flag(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || rank != 1 || from != 0) return;
    CHECK(length > HEADER && !(bytes[6] & SEVERAL) == (g->count == 1));
    bytes[6] ^= SEVERAL;
}

static void test_the_number_of_bodies_is_what_is_expected(void)
{
    static const size_t n[2] = {300, 1000};
    static const char *const some[2][2] = {{"int:bits=4", "int:bits=4"}, {"topk:density=0.1", "topk:density=0.1"}};
    for (size_t k = 0; k < 4; k++) {
        const char *const *codecs = some[k / 2];
        const size_t count = 1 + k % 2;
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_GATHER);
        group g;
        desc.no_checksum = 1;
        group_open(&g, 2, &desc, codecs, n, count);
        group_fill(&g, 0);
        g.change = turn_flag;
        g.at = 1;
        group_step(&g);
        CHECK(g.result[1] == GCOMP_RESERVED_BITS && g.result[0] == GCOMP_OK); /* the others hear of it in the next step */
        group_close(&g);
    }
}

/* The decoders of the codec layer do not know which tensors a payload of several is of. */
static void test_the_codec_layer_refuses_a_payload_of_several(void)
{
    static const size_t n[3] = {300, 1000, 77};
    static const char *const codecs[3] = {"int:bits=4", "int:bits=4", "int:bits=4"};
    static float y[1377];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, 2, &desc, codecs, n, 3);
    group_fill(&g, 0);
    g.change = catch_bytes;
    g.at = 1;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && get32(caught + 8) == 1377);
    CHECK(gcomp_decode(caught, caught_bytes, y, GCOMP_F32, 1377, NULL) == GCOMP_RESERVED_BITS);
    group_close(&g);
}

/* ---------------- many workers */

static int never(void *user, const void *send, void *recv, size_t bytes)
{
    (void)user, (void)send, (void)recv, (void)bytes;
    return 1;
}

static int never_sums(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return 1;
}

static int never_exchanges(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)awaited;
    return 1;
}

/* What gcomp_describe says that a worker of so many sends in a step, of 60 matrices; 0: something goes as none. */
static double described(const char *codec, int world)
{
    static char text[1 << 16];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    gcomp_tensor tensors[60];
    char name[60][8];
    gcomp *gc;
    desc.comm.world = world;
    desc.comm.allgather = never;
    desc.comm.allreduce = never_sums;
    desc.comm.alltoallv = never_exchanges;
    memset(tensors, 0, sizeof tensors);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < 60; t++) {
        snprintf(name[t], sizeof name[t], "t%d", (int)t);
        tensors[t].name = name[t];
        tensors[t].rows = 64 << t % 4;
        tensors[t].cols = 576 << t % 4;
        tensors[t].codec = codec;
        CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
    }
    CHECK(gcomp_describe(gc, text, sizeof text) < sizeof text);
    const char *total = strstr(text, "60 tensors: ");
    double bytes = 0;
    CHECK(total && sscanf(total, strstr(total, "at most") ? "60 tensors: at most %lf" : "60 tensors: %lf", &bytes) == 1);
    if (world < 100) { /* memory is that of the same way */
        CHECK(gcomp_prepare(gc) == GCOMP_OK && memory_of(gc) == gcomp_memory_needed(&desc, tensors, 60));
    }
    gcomp_close(gc);
    return strstr(text, ", none (") ? 0 : bytes;
}

static void test_bytes_stay_flat_among_thousands_of_workers(void)
{
    static const char *const codecs[] = {"eden", "sign", "int:bits=4", "qsgd", "topk:density=0.01,global=1"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        const double few = described(codecs[c], 8), some = described(codecs[c], 64), many = described(codecs[c], 4096);
        printf("# %s: %.3f MB among 8 workers, %.3f among 64, %.3f among 4096\n", codecs[c], few / 1e6, some / 1e6, many / 1e6);
        /* a worker sends to 4095 / 4096 of the owners, and not to 7 / 8: a seventh more */
        CHECK(few > 0 && some < few * 1.16 && many < few * 1.26);
    }
}

/* Offsets of tensors count, and not only elements: two tensors of 2^28 elements are no bundle. */
static void test_large_tensors_travel_alone(void)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    gcomp *gc;
    size_t begin, end;
    desc.comm.world = 4;
    desc.no_error_feedback = 1;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < 2; t++) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = names[t];
        tensor.rows = (size_t)1 << 14;
        tensor.cols = (size_t)1 << 14;
        tensor.codec = "fp16";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    CHECK(gcomp_shard(gc, 1, 0, &begin, &end) == GCOMP_OK && begin == 0 && end == (size_t)1 << 26);
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_bodies_of_tensors_stand_behind_one_header);
    RUN(test_what_sparse_tensors_send_is_one_list);
    RUN(test_tensors_of_a_list_have_the_means_that_they_have_alone);
    RUN(test_ranges_are_cut_from_all_tensors);
    RUN(test_other_tensors_stand_between_those_of_a_bundle);
    RUN(test_fields_of_a_payload_of_several_are_checked);
    RUN(test_the_number_of_bodies_is_what_is_expected);
    RUN(test_the_codec_layer_refuses_a_payload_of_several);
    RUN(test_bytes_stay_flat_among_thousands_of_workers);
    RUN(test_large_tensors_travel_alone);
    return test_end();
}
