/* Proves of steps in buckets: calls out of order, memory, means made before the commit, schedules, other workers. */

#include "overlap.h"

static void test_calls_out_of_order_are_refused(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    gcomp_request request;
    group g;
    CHECK(gcomp_step_progress(NULL) == GCOMP_INVALID_ARGUMENT && gcomp_step_finish(NULL) == GCOMP_INVALID_ARGUMENT);
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    group_fill(&g, 0);
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_WRONG_STATE && gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE);
    begin(&g);
    hand_in(&g, 0);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[0]), "'d'"));
    hand_in(&g, 1);
    CHECK(gcomp_step_ready(g.gc[0], 1, g.grad[0][1]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_next(g.gc[0], &request) == GCOMP_OK && request.kind == GCOMP_ALLGATHER);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[0]), "gcomp_step_next"));
    CHECK(gcomp_step_done(g.gc[0], request.id + 64, 0) == GCOMP_WRONG_STATE); /* of the next bucket */
    CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK && gcomp_step_abort(g.gc[1]) == GCOMP_OK);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

/* Frames are under way. That of worker 1 tells its failure; worker 0 meets NaN in the next bucket; other calls are refused. */
static void test_a_failure_that_waits_keeps_its_sentence(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    gcomp_step step = GCOMP_STEP;
    gcomp_request request[2];
    group g;
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    group_fill(&g, 0);
    for (size_t w = 0; w < 2; w++) {
        if (w == 1) step.scale = INFINITY;
        CHECK(gcomp_step_begin(g.gc[w], &step) == GCOMP_OK && gcomp_step_ready(g.gc[w], 1, g.grad[w][1]) == GCOMP_OK);
        CHECK(gcomp_step_next(g.gc[w], request + w) == GCOMP_OK && request[w].kind == GCOMP_ALLGATHER);
    }
    g.grad[0][0][0] = NAN;
    CHECK(gcomp_step_ready(g.gc[0], 0, g.grad[0][0]) == GCOMP_OK && *gcomp_error(g.gc[0]));
    for (size_t w = 0; w < 2; w++) {
        for (size_t from = 0; from < 2; from++)
            memcpy((uint8_t *)request[w].recv + from * FRAME, request[from].send, FRAME);
        CHECK(gcomp_step_done(g.gc[w], request[w].id, 0) == GCOMP_OK);
    }
    CHECK(gcomp_step_done(g.gc[1], request[1].id, 0) == GCOMP_WRONG_STATE && strstr(gcomp_error(g.gc[1]), "under way"));
    CHECK(gcomp_step_next(g.gc[0], request) == GCOMP_PEER_FAILED && strstr(gcomp_error(g.gc[0]), "rank 1"));
    CHECK(gcomp_step_next(g.gc[1], request) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(g.gc[1]), "step.scale"));
    group_close(&g);
}

static void test_half_a_set_of_callbacks_is_refused(void)
{
    static const char *const names[] = {"comm.start", "comm.test", "comm.wait"};
    gcomp_desc desc = plain(0, GCOMP_AGGREGATE_AUTO);
    for (int missing = 0; missing < 3; missing++) {
        char why[256] = "";
        gcomp *gc = NULL;
        gcomp_comm comm;
        memset(&comm, 0, sizeof comm);
        if (missing != 0) comm.start = start;
        if (missing != 1) comm.test = test;
        if (missing != 2) comm.wait = wait;
        desc.comm = comm;
        desc.why = why;
        desc.why_capacity = sizeof why;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, names[missing]));
        memset(&desc.comm, 0, sizeof desc.comm);
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), names[missing]));
        gcomp_close(gc);
    }
}

/* Without start: progress does nothing, finish needs the others. */
static void test_without_start_there_is_no_progress(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, OWN_LOOP, 2, &desc, mixed + 3, 1);
    begin(&g);
    hand_in(&g, 0);
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK);
    CHECK(gcomp_step_finish(g.gc[0]) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(g.gc[0]), "allgather"));
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK) && frames(&g) == 1);
    group_close(&g);
}

static double seconds;

static double clock_of(void *user)
{
    (void)user;
    return seconds;
}

static void test_the_clock_runs_while_a_request_is_under_way(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    gcomp_statistics stats;
    group g;
    desc.clock = clock_of;
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    begin(&g);
    hand_in(&g, 0);
    seconds = 10;
    CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK); /* a frame is under way */
    seconds = 13;
    progress(&g);
    progress(&g);
    progress(&g); /* and all else of the bucket, in no time */
    seconds = 20;
    hand_in(&g, 1);
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK && stats.communicate_seconds == 3);
    CHECK(gcomp_stats(g.gc[1], &stats) == GCOMP_OK && stats.communicate_seconds == 0);
    group_close(&g);
}

/* ---------------- memory, schedules, other workers */

static void test_memory_is_as_foreseen_and_no_step_allocates(void)
{
    for (size_t s = 0; s < SIZES; s++)
        for (int aggregate = 1; aggregate <= 4; aggregate++) {
            gcomp_desc desc = plain(sizes[s], (gcomp_aggregate)aggregate);
            group g;
            group_open(&g, CALLBACKS, 2, &desc, tensors_for(aggregate), TENSORS);
            for (size_t w = 0; w < 2; w++) CHECK(gcomp_prepare(g.gc[w]) == GCOMP_OK);
            desc.comm = comm_of(&g, 0);
            CHECK(memory_of(g.gc[0]) == gcomp_memory_needed(&desc, tensors_for(aggregate), TENSORS));
            size_t had = heap.asked;
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                group_step(&g);
            }
            CHECK(all_are(&g, GCOMP_OK) && heap.asked == had);
            group_close(&g);
        }
    CHECK(heap.blocks == 0);
}

/* ---------------- means that are made before the commit, where that takes less memory */

static void test_buckets_take_less_memory_where_payloads_are_many(void)
{
    /* bytes an element: of one bucket at least, of ten at most */
    static const struct { const char *codec; int world; double one, ten; } cases[] = {
        {"nonzero", 16, 70, 15.5}, {"nonzero", 64, 268, 36},  {"strom", 16, 74, 19.5},     {"fp16", 16, 37, 13},
        {"sign", 64, 12, 9},       {"fp16", 64, 133, 23},     {"int:bits=4", 16, 12.5, 9.5},
        {"int:bits=4", 4, 6.5, 7}, {"none", 64, 4, 4.5},      {"sign", 4, 4.5, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
        gcomp_tensor tensors[10];
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        memset(tensors, 0, sizeof tensors);
        desc.codec = cases[i].codec;
        desc.aggregate = GCOMP_AGGREGATE_GATHER;
        desc.comm.world = cases[i].world;
        for (size_t t = 0; t < 10; t++) {
            tensors[t].name = names[t];
            tensors[t].rows = 1000;
            tensors[t].cols = 100;
        }
        double one = (double)gcomp_memory_needed(&desc, tensors, 10) / 1e6;
        desc.bucket_bytes = 400000;
        double ten = (double)gcomp_memory_needed(&desc, tensors, 10) / 1e6;
        printf("# %s, %d workers: %.1f bytes an element in one bucket, %.1f in ten\n", cases[i].codec, cases[i].world, one, ten);
        CHECK(one > cases[i].one && one < cases[i].one + 1.5 && ten < cases[i].ten);
        CHECK(ten < one + 0.05);
    }
}

/* Between two tensors whose payloads are large, so that means take less memory. */
static void around(gcomp_tensor *tensors, const char *const *codecs)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static const gcomp_dtype dtypes[TENSORS] = {GCOMP_F32, GCOMP_F32,  GCOMP_F16, GCOMP_BF16,
                                                GCOMP_F32, GCOMP_BF16, GCOMP_F32, GCOMP_F16};
    memset(tensors, 0, TENSORS * sizeof *tensors);
    for (size_t t = 0; t < TENSORS; t++) {
        int large = t == 0 || t == 4 || t == 7;
        tensors[t].name = names[t];
        tensors[t].rows = large ? 320 : 31 + 6 * t;
        tensors[t].cols = large ? 40 : 17;
        tensors[t].dtype = dtypes[t];
        tensors[t].codec = large ? "blocktopk:density=1" : codecs[t % 4];
    }
}

/* Opens two groups: one has one bucket; the other has a bucket for each tensor, which takes less
   memory. */
static void open_both(group *a, group *b, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors)
{
    gcomp_desc cut = *base;
    cut.bucket_bytes = 1;
    group_open(a, CALLBACKS, world, base, tensors, TENSORS);
    group_open(b, world & 1 ? OWN_LOOP : CALLBACKS, world, &cut, tensors, TENSORS);
    for (size_t w = 0; w < world; w++) {
        CHECK(gcomp_prepare(a->gc[w]) == GCOMP_OK && gcomp_prepare(b->gc[w]) == GCOMP_OK);
        CHECK(memory_of(b->gc[w]) < memory_of(a->gc[w]));
    }
    cut.comm = comm_of(b, 0);
    CHECK(memory_of(b->gc[0]) == gcomp_memory_needed(&cut, tensors, TENSORS));
}

static void both_step(group *a, group *b, uint64_t step)
{
    gcomp_statistics x, y;
    a->order = b->order = (unsigned)step % 3;
    group_fill(a, step);
    group_fill(b, step);
    group_step(a);
    group_step(b);
    CHECK(all_are(a, GCOMP_OK) && all_are(b, GCOMP_OK));
    for (size_t w = 0; w < a->world; w++) {
        CHECK(outcome(a, w) == outcome(b, w));
        CHECK(gcomp_stats(a->gc[w], &x) == GCOMP_OK && gcomp_stats(b->gc[w], &y) == GCOMP_OK);
        CHECK(x.relative_error == y.relative_error && x.mean_norm == y.mean_norm);
    }
}

/* Four listed codecs for tests of steps, the c-th four; behind the last come the first. Returns
   0 if there are no more. */
static int take_codecs(size_t c, const char **codecs)
{
    const char *listed[ALL_CODECS];
    size_t count = 0;
    for (size_t i = 0; i < ALL_CODECS; i++)
        if (codec_list[i].steps) listed[count++] = codec_list[i].text;
    for (size_t k = 0; k < 4; k++) codecs[k] = listed[(4 * c + k) % count];
    return 4 * c < count;
}

/* For all codecs that are gathered, with floats and halves, with and without residuals. */
static void test_means_made_before_the_commit_have_the_bits_of_the_commit(void)
{
    const char *codecs[4];
    for (size_t c = 0; take_codecs(c, codecs); c++)
        for (size_t world = 2; world <= WORLD_MAX; world++)
            for (int way = 0; way < 4; way++) {
                if (!test_is_long() && world != 2 + c % 3) continue;
                gcomp_desc desc = plain(0, way == 3 ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER);
                gcomp_tensor tensors[TENSORS];
                group a, b;
                desc.no_error_feedback = way == 1;
                desc.measure = way != 2;
                desc.check_every = way == 2 ? 2 : 1;
                desc.no_checksum = way == 2;
                if (way == 2) desc.parallel.run = run_backwards;
                around(tensors, codecs);
                open_both(&a, &b, world, &desc, tensors);
                size_t had = heap.asked;
                for (uint64_t step = 0; step < 4; step++) {
                    a.skip = b.skip = step == 2 ? 1u << (c + world) % TENSORS | 1u << way : 0;
                    both_step(&a, &b, step);
                }
                CHECK(heap.asked == had);
                CHECK(agree(&a, &b)); /* digests of means are saved too */
                group_close(&a);
                group_close(&b);
            }
    CHECK(heap.blocks == 0);
}

/* Levels change with what was measured: relative errors, and accordion's sums of gradients. */
static void test_schedules_see_the_same_of_means_made_before_the_commit(void)
{
    static const char *const rules[2] = {"error:target=0.02,every=2", "accordion:every=1"};
    static const char *const lists[2] = {"int|int:bits=4|int:bits=2", "fp16|int:bits=2"};
    for (size_t r = 0; r < 2; r++) {
        const char *const codecs[4] = {lists[r], "fp16", lists[r], lists[r]};
        gcomp_desc desc = plain(0, GCOMP_AGGREGATE_GATHER);
        gcomp_tensor tensors[TENSORS];
        gcomp_statistics stats;
        group a, b;
        desc.codec = lists[r];
        desc.schedule = rules[r];
        around(tensors, codecs);
        open_both(&a, &b, 4, &desc, tensors);
        for (uint64_t step = 0; step < 12; step++) {
            gcomp_step how;
            how = default_step();
            how.epoch = (uint32_t)step / 2;
            a.step = b.step = &how;
            both_step(&a, &b, step);
        }
        CHECK(gcomp_stats(b.gc[0], &stats) == GCOMP_OK && stats.switches > 2);
        group_close(&a);
        group_close(&b);
    }
}

/* What went wrong in a bucket behind such means leaves everything as it was, and the step can be
   repeated. */
static void test_a_fault_behind_means_that_were_made_leaves_no_trace(void)
{
    static const char *const codecs[4] = {"sign", "dgc:density=0.2,warmup=0", "topk:density=0.2,global=1", "fp16"};
    gcomp_tensor tensors[TENSORS];
    around(tensors, codecs);
    for (size_t fault = 0; fault < 2 * TENSORS; fault++) {
        gcomp_desc desc = plain(0, GCOMP_AGGREGATE_GATHER);
        size_t t = fault % TENSORS;
        uint64_t before[WORLD_MAX];
        group a, b;
        open_both(&a, &b, 3, &desc, tensors);
        both_step(&a, &b, 0);
        group_fill(&b, 1);
        for (size_t w = 0; w < 3; w++) before[w] = digest(&b, w);
        if (fault < TENSORS) { /* a gradient that is NaN */
            uint8_t *x = (uint8_t *)b.grad[1][t], was[4];
            memcpy(was, x, 4);
            memset(x, 0xff, 4);
            b.order = 0;
            b.passes = 20;
            group_step(&b);
            CHECK(all_are(&b, GCOMP_NOT_FINITE) && frames(&b) == TENSORS - t);
            memcpy(x, was, 4);
        } else if (t > 0) { /* a payload that rank 2 alone gets damaged, not in the last bucket */
            b.board.tamper = damage;
            b.board.fault_call = 64 * (TENSORS - 1 - t) + 9;
            group_step(&b);
            CHECK(b.result[2] == GCOMP_CHECKSUM_MISMATCH && b.result[0] == GCOMP_PEER_FAILED && b.result[1] == GCOMP_PEER_FAILED);
            CHECK(strstr(gcomp_error(b.gc[2]), "rank 1") != NULL);
            b.board.tamper = NULL;
        } else { /* all went well, and the caller gives up before the commit */
            begin(&b);
            for (size_t k = 0; k < TENSORS; k++) {
                hand_in(&b, k);
                for (size_t i = 0; i < 20; i++) progress(&b);
            }
            for (size_t w = 0; w < 3; w++) CHECK(b.done[w] && gcomp_step_abort(b.gc[w]) == GCOMP_OK);
        }
        for (size_t w = 0; w < 3; w++) CHECK(digest(&b, w) == before[w]);
        both_step(&a, &b, 1);
        CHECK(agree(&a, &b));
        both_step(&a, &b, 2);
        group_close(&a);
        group_close(&b);
    }
}

/* Then other tensors share a bucket. */
static void test_tensors_may_be_added_after_prepare(void)
{
    gcomp_desc desc = plain(4500, GCOMP_AGGREGATE_SHARDS);
    group a, b;
    group_open(&a, CALLBACKS, 2, &desc, mixed, TENSORS);
    group_open(&b, CALLBACKS, 2, &desc, mixed, TENSORS - 2);
    for (size_t w = 0; w < 2; w++) {
        CHECK(gcomp_prepare(b.gc[w]) == GCOMP_OK);
        for (size_t t = TENSORS - 2; t < TENSORS; t++) {
            CHECK(gcomp_add_tensor(b.gc[w], &mixed[t]) == GCOMP_OK && gcomp_restart(b.gc[w], 0) == GCOMP_OK);
            b.n[t] = a.n[t];
            b.dtype[t] = a.dtype[t];
            b.grad[w][t] = (float *)calloc(b.n[t], sizeof(float));
        }
    }
    b.count = TENSORS;
    group_fill(&a, 0);
    group_fill(&b, 0);
    group_step(&a);
    group_step(&b);
    CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
    group_close(&a);
    group_close(&b);
}

static void test_a_worker_without_memory_tells_in_the_first_frame(void)
{
    for (size_t left = 0; left < 2; left++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_SHARDS);
        group g;
        group_open(&g, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_fill(&g, 0);
        CHECK(gcomp_prepare(g.gc[0]) == GCOMP_OK && gcomp_prepare(g.gc[2]) == GCOMP_OK);
        heap.left = left;
        begin(&g);
        heap.left = SIZE_MAX;
        for (size_t k = 0; k < TENSORS; k++) {
            hand_in(&g, k);
            progress(&g);
        }
        finish(&g);
        CHECK(g.result[0] == GCOMP_PEER_FAILED && g.result[1] == GCOMP_OUT_OF_MEMORY && g.result[2] == GCOMP_PEER_FAILED);
        CHECK(frames(&g) == 1);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

/* Decisions of levels travel in the first frame alone, and all switch. */
static void test_schedules_switch_as_in_one_bucket(void)
{
    static const gcomp_tensor lists[4] = {{"x", 20, 30, 0, GCOMP_F32, NULL}, {"y", 40, 30, 0, GCOMP_F32, NULL},
                                          {"v", 70, 0, 0, GCOMP_F32, NULL}, {"z", 25, 50, 0, GCOMP_F32, NULL}};
    static const char *const rules[3][2] = {{"powersgd:rank=2|powersgd:rank=1", "accordion:every=1"},
                                            {"int|int:bits=4|int:bits=2", "bytes:target=1000,every=2"},
                                            {"topk:density=0.01", "warmup:epochs=3"}};
    for (size_t r = 0; r < 3; r++) {
        gcomp_desc whole = plain(0, GCOMP_AGGREGATE_GATHER), cut = plain(5000, GCOMP_AGGREGATE_GATHER);
        gcomp_statistics x, y;
        group a, b;
        whole.codec = cut.codec = rules[r][0];
        whole.schedule = cut.schedule = rules[r][1];
        whole.min_elements = cut.min_elements = 1;
        group_open(&a, CALLBACKS, 2, &whole, lists, 4);
        group_open(&b, CALLBACKS, 2, &cut, lists, 4);
        for (uint64_t step = 0; step < 10; step++) {
            gcomp_step how;
            how = default_step();
            how.epoch = (uint32_t)step / 2;
            a.step = b.step = &how;
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && frames(&b) == 3);
            for (size_t w = 0; w < 2; w++) CHECK(outcome(&a, w) == outcome(&b, w)); /* rank 0 counts more frames */
        }
        CHECK(gcomp_stats(a.gc[1], &x) == GCOMP_OK && gcomp_stats(b.gc[1], &y) == GCOMP_OK);
        CHECK(x.switches > 2 && y.switches == x.switches && y.bytes_out == x.bytes_out + 10 * 2 * FRAME);
        group_close(&a);
        group_close(&b);
    }
}

static void test_other_workers_go_on_in_buckets(void)
{
    gcomp_desc whole = plain(0, GCOMP_AGGREGATE_SHARDS), cut = plain(4500, GCOMP_AGGREGATE_SHARDS);
    group a, b;
    group_open(&a, CALLBACKS, 4, &whole, mixed, TENSORS);
    group_open(&b, CALLBACKS, 4, &cut, mixed, TENSORS);
    for (uint64_t step = 0; step < 4; step++) {
        group *both[2] = {&a, &b};
        for (size_t i = 0; i < 2 && step == 2; i++) {
            both[i]->board.world = both[i]->world = 3; /* the last one is lost */
            for (size_t w = 0; w < 3; w++) {
                gcomp_comm comm = comm_of(both[i], w);
                CHECK(gcomp_regroup(both[i]->gc[w], &comm, NULL) == GCOMP_OK);
            }
        }
        group_fill(&a, step);
        group_fill(&b, step);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
    }
    CHECK(frames(&a) == 1 && frames(&b) == 4);
    a.world = b.world = 4;
    group_close(&a);
    group_close(&b);
}

/* ---------------- exchange */

typedef struct runner {
    group *g;
    size_t w;
    int flat;
    float *all;
} runner;

static void *run(void *arg)
{
    runner *r = (runner *)arg;
    group *g = r->g;
    void *grads[TENSORS];
    for (size_t t = 0; t < g->count; t++) grads[t] = g->grad[r->w][t];
    g->result[r->w] = r->flat ? gcomp_exchange_flat(g->gc[r->w], r->all, NULL) : gcomp_exchange(g->gc[r->w], grads, NULL);
    return NULL;
}

/* Threads that wait for each other: the exchange over start and wait has the bits of the step. */
static void test_an_exchange_between_threads_gives_the_bits_of_the_step(void)
{
    for (int way = 0; way < 4; way++) {
        const int flat = way & 1, aggregate = way & 2 ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_SHARDS;
        gcomp_desc desc = plain(3000, (gcomp_aggregate)aggregate);
        group a, b;
        size_t count = flat ? 7 : TENSORS; /* all floats */
        desc.allocator.alloc = NULL; /* it counts, for one thread */
        desc.allocator.free = NULL;
        group_open(&a, CALLBACKS, 3, &desc, tensors_for(aggregate), count);
        group_open(&b, CALLBACKS, 3, &desc, tensors_for(aggregate), count);
        for (uint64_t step = 0; step < 2; step++) {
            pthread_t thread[3];
            runner r[3];
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            memset(b.board.started, 0, sizeof b.board.started);
            b.board.carried = 0;
            b.board.threads = 1;
            for (size_t w = 0; w < 3; w++) {
                size_t at = 0;
                r[w].g = &b;
                r[w].w = w;
                r[w].flat = flat;
                r[w].all = (float *)calloc(10000, sizeof(float));
                for (size_t t = 0; t < count; at += b.n[t++]) memcpy(r[w].all + at, b.grad[w][t], 4 * b.n[t]);
                CHECK(pthread_create(&thread[w], NULL, run, &r[w]) == 0);
            }
            for (size_t w = 0; w < 3; w++) {
                size_t at = 0;
                CHECK(pthread_join(thread[w], NULL) == 0);
                for (size_t t = 0; flat && t < count; at += b.n[t++]) memcpy(b.grad[w][t], r[w].all + at, 4 * b.n[t]);
                free(r[w].all);
            }
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b) && frames(&a) == frames(&b));
        }
        group_close(&a);
        group_close(&b);
    }
}

int main(void)
{
    RUN(test_calls_out_of_order_are_refused);
    RUN(test_a_failure_that_waits_keeps_its_sentence);
    RUN(test_half_a_set_of_callbacks_is_refused);
    RUN(test_without_start_there_is_no_progress);
    RUN(test_the_clock_runs_while_a_request_is_under_way);
    RUN(test_memory_is_as_foreseen_and_no_step_allocates);
    RUN(test_buckets_take_less_memory_where_payloads_are_many);
    RUN(test_means_made_before_the_commit_have_the_bits_of_the_commit);
    RUN(test_schedules_see_the_same_of_means_made_before_the_commit);
    RUN(test_a_fault_behind_means_that_were_made_leaves_no_trace);
    RUN(test_tensors_may_be_added_after_prepare);
    RUN(test_a_worker_without_memory_tells_in_the_first_frame);
    RUN(test_schedules_switch_as_in_one_bucket);
    RUN(test_other_workers_go_on_in_buckets);
    RUN(test_an_exchange_between_threads_gives_the_bits_of_the_step);
    return test_end();
}
