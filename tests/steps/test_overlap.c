/* Proves that steps in buckets, taken while gradients are still made, have the bits of a step that takes all tensors at once; with faults in any bucket. */

#include "overlap.h"

/* The rule of buckets: they are filled from the last tensor on, and a bucket is full when it has
   reached so many bytes. */
static size_t buckets(const group *g, size_t bytes)
{
    size_t count = 1, sum = 0;
    for (size_t t = g->count; t-- > 0 && bytes;) {
        sum += 4 * g->n[t];
        if (sum < bytes || t == 0) continue;
        count++;
        sum = 0;
    }
    return count;
}

static void test_any_buckets_give_the_bits_of_one(void)
{
    static const size_t expected[SIZES] = {1, 1, 2, 4, TENSORS};
    for (size_t world = 1; world <= WORLD_MAX; world++)
        for (int aggregate = 1; aggregate <= 4; aggregate++) {
            uint64_t first[3][WORLD_MAX];
            for (size_t s = 0; s < SIZES; s++) {
                gcomp_desc desc = plain(sizes[s], (gcomp_aggregate)aggregate);
                group g;
                group_open(&g, s == 4 && world > 1 ? OWN_LOOP : CALLBACKS, world, &desc, tensors_for(aggregate), TENSORS);
                g.board.lag = (unsigned)s;
                CHECK(buckets(&g, sizes[s]) == expected[s]);
                for (uint64_t step = 0; step < 3; step++) {
                    g.order = (unsigned)(step + s) % 3;
                    group_fill(&g, step);
                    group_step(&g);
                    CHECK(all_are(&g, GCOMP_OK));
                    CHECK(world == 1 || frames(&g) == expected[s]);
                    for (size_t w = 0; w < world; w++) {
                        if (s == 0) first[step][w] = digest(&g, w);
                        CHECK(digest(&g, w) == first[step][w]);
                    }
                }
                group_close(&g);
            }
        }
    CHECK(heap.blocks == 0);
}

static void test_one_large_bucket_asks_for_what_none_asks_for(void)
{
    group a, b;
    gcomp_desc one = plain(0, GCOMP_AGGREGATE_SHARDS), large = plain(SIZE_MAX, GCOMP_AGGREGATE_SHARDS);
    group_open(&a, OWN_LOOP, 3, &one, mixed, TENSORS);
    group_open(&b, OWN_LOOP, 3, &large, mixed, TENSORS);
    group_fill(&a, 0);
    group_fill(&b, 0);
    group_step(&a);
    group_step(&b);
    CHECK(a.board.carried == b.board.carried);
    for (size_t k = 0; k < a.board.carried; k++) {
        const gcomp_request *x = &a.board.request[1][k], *y = &b.board.request[1][k];
        CHECK(x->kind == y->kind && x->id == y->id && x->stride == y->stride && x->count == y->count);
    }
    group_close(&a);
    group_close(&b);
}

/* The last tensors go first, and a bucket goes out as soon as it can. */
static void test_buckets_go_out_from_the_last_to_the_first(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 2, &desc, mixed, TENSORS);
    group_fill(&g, 0);
    g.order = 1;
    begin(&g);
    for (size_t k = 0; k < TENSORS; k++) {
        progress(&g);
        CHECK(frames(&g) == 0);
        hand_in(&g, k);
    }
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    g.order = 0;
    group_fill(&g, 1);
    begin(&g);
    for (size_t k = 0; k < TENSORS; k++) {
        hand_in(&g, k);
        for (int i = 0; i < 20; i++) progress(&g);
        CHECK(frames(&g) == k + 1 && g.board.under_way[0] == 0);
    }
    finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

static void test_tensors_may_be_skipped_in_any_bucket(void)
{
    for (unsigned skip = 0; skip < TENSORS + 3; skip++) {
        static const unsigned more[3] = {3, 0x3f, (1u << TENSORS) - 1};
        gcomp_desc whole = plain(0, GCOMP_AGGREGATE_TWO_SHOT), cut = plain(6000, GCOMP_AGGREGATE_TWO_SHOT);
        group a, b;
        group_open(&a, CALLBACKS, 3, &whole, mixed, TENSORS);
        group_open(&b, CALLBACKS, 3, &cut, mixed, TENSORS);
        for (uint64_t step = 0; step < 3; step++) {
            a.skip = b.skip = step != 1 ? 0 : skip < TENSORS ? 1u << skip : more[skip - TENSORS];
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK) && agree(&a, &b));
        }
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- faults */

/* Two equal groups after a step, with the gradients of the next: a will have faults. */
static void open_pair(group *a, group *b, size_t bucket_bytes)
{
    gcomp_desc desc = plain(bucket_bytes, GCOMP_AGGREGATE_SHARDS);
    group_open(a, CALLBACKS, 3, &desc, mixed, TENSORS);
    group_open(b, CALLBACKS, 3, &desc, mixed, TENSORS);
    group_fill(a, 0);
    group_fill(b, 0);
    group_step(a);
    group_step(b);
    group_fill(a, 1);
    group_fill(b, 1);
}

static void close_pair(group *a, group *b)
{
    CHECK(agree(a, b));
    a->board.tamper = NULL;
    a->board.fault = NO_FAULT;
    group_step(a); /* the retry has the bits of the step that did not fail */
    group_step(b);
    CHECK(all_are(a, GCOMP_OK) && all_are(b, GCOMP_OK) && agree(a, b));
    group_close(a);
    group_close(b);
}

static void test_a_bad_gradient_of_a_later_bucket_leaves_no_trace(void)
{
    for (size_t t = 0; t < 7; t++) {
        group a, b;
        open_pair(&a, &b, 1);
        float was = a.grad[1][t][5];
        a.grad[1][t][5] = (float)INFINITY;
        a.passes = 20;
        group_step(&a);
        CHECK(all_are(&a, GCOMP_NOT_FINITE));
        CHECK(frames(&a) == TENSORS - t); /* the buckets before went their way */
        CHECK(strstr(gcomp_error(a.gc[0]), "rank 1") && strstr(gcomp_error(a.gc[1]), mixed[t].name));
        a.grad[1][t][5] = was;
        close_pair(&a, &b);
    }
}

/* What is known early is told early. */
static void test_a_bad_gradient_that_is_ready_first_is_told_in_the_first_frame(void)
{
    group a, b;
    open_pair(&a, &b, 1);
    float was = a.grad[2][0][5];
    a.grad[2][0][5] = NAN;
    a.order = 1;
    group_step(&a);
    CHECK(all_are(&a, GCOMP_NOT_FINITE) && frames(&a) == 1);
    CHECK(strstr(gcomp_error(a.gc[2]), "'a'") != NULL);
    a.grad[2][0][5] = was;
    close_pair(&a, &b);
}

static void test_what_one_worker_sees_is_told_in_the_next_frame(void)
{
    /* sign of c is gathered in bucket 5; terngrad of h in round 1 of bucket 0; the shards of e
       in bucket 3 */
    static const struct { uint32_t id; const char *name; gcomp_result result; size_t frames; } cases[] = {
        {64 * 5 + 9, "'c'", GCOMP_CHECKSUM_MISMATCH, 7}, {17, "'h'", GCOMP_CHECKSUM_MISMATCH, 2}};
    for (size_t i = 0; i < 2; i++) {
        group a, b;
        open_pair(&a, &b, 1);
        a.board.tamper = damage;
        a.board.fault_call = cases[i].id;
        group_step(&a);
        CHECK(a.result[2] == cases[i].result && strstr(gcomp_error(a.gc[2]), "rank 1"));
        CHECK(strstr(gcomp_error(a.gc[2]), cases[i].name) != NULL);
        CHECK(a.result[0] == GCOMP_PEER_FAILED && a.result[1] == GCOMP_PEER_FAILED);
        CHECK(strstr(gcomp_error(a.gc[0]), "rank 2") != NULL);
        CHECK(frames(&a) == cases[i].frames);
        close_pair(&a, &b);
    }
}

/* Nothing follows the last bucket in its step, as where there is only one bucket. */
static void test_what_one_worker_sees_in_the_last_bucket_is_told_in_the_next_step(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 3, &desc, mixed + 2, 2);
    group_fill(&g, 0);
    g.board.tamper = damage;
    g.board.fault_call = 64 + 9;
    group_step(&g);
    CHECK(g.result[2] == GCOMP_CHECKSUM_MISMATCH && g.result[0] == GCOMP_OK);
    g.board.tamper = NULL;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OUT_OF_STEP));
    group_close(&g);
}

/* A frame of bucket 1: that of bucket 0 once more, rank 0's with a decision, or with more bytes
   than its tensors can have, but not more than others. */
static void forge(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    uint32_t id = b->request[0][call].id;
    (void)rank;
    if (from != (b->fault_call != 1) || length != FRAME || id % 64 != 1) return;
    if (id == 1) memcpy(b->kept, bytes, FRAME);
    if (id != 65) return;
    if (b->fault_call == 0) memcpy(bytes, b->kept, FRAME);
    if (b->fault_call == 1) bytes[13] = 1;
    if (b->fault_call == 2) put_word(bytes + 24, 100, 8);
    put_word(bytes + 60, plain_crc(0, bytes, 60), 4);
}

static void test_frames_of_a_bucket_are_of_it_alone(void)
{
    static const char *const what[] = {"what workers differ in", "codecs", "more bytes"};
    for (size_t i = 0; i < 3; i++) {
        group a, b;
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        desc.codec = "int|int:bits=4";
        desc.schedule = "bytes:target=1e6";
        group_open(&a, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_open(&b, CALLBACKS, 3, &desc, mixed, TENSORS);
        group_fill(&a, 0);
        group_fill(&b, 0);
        a.board.tamper = forge;
        a.board.fault_call = i;
        group_step(&a);
        /* the worker itself sees that its frame is another; the others hear no more of it */
        for (size_t w = 0; w < 3; w++) {
            if (w == (i != 1)) CHECK(a.result[w] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(a.gc[w]), "did not bring back"));
            else if (i == 0) CHECK(a.result[w] != GCOMP_OK || a.board.broken);
            else CHECK(a.result[w] == GCOMP_MISMATCH && strstr(gcomp_error(a.gc[w]), what[i]));
            if (w != (i != 1) && i) CHECK(strstr(gcomp_error(a.gc[w]), i == 1 ? "rank 0 decides" : "rank 1") != NULL);
        }
        close_pair(&a, &b);
    }
}

/* A worker announces more sums than the bucket of tensor e has room for, but fewer than another
   bucket has. */
static void overstate(board *b, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    (void)rank;
    if (b->request[0][call].id != 64 * 3 + 42 || from != 1 || length != 16) return;
    put_word(bytes, 800, 8);
    put_word(bytes + 12, plain_crc(0, bytes, 12), 4);
    b->fault_call = 1;
}

static void test_sums_of_a_bucket_fit_its_place(void)
{
    group a, b;
    open_pair(&a, &b, 1);
    a.board.tamper = overstate;
    group_step(&a);
    CHECK(a.board.fault_call == 1 && all_are(&a, GCOMP_MISMATCH) && strstr(gcomp_error(a.gc[0]), "more bytes than its tensors"));
    close_pair(&a, &b);
}

static void test_other_buckets_or_callbacks_are_a_mismatch(void)
{
    for (int with = 0; with < 2; with++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        gcomp_tensor tensor = mixed[3];
        group g;
        group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 1);
        gcomp_close(g.gc[1]);
        desc.comm = comm_of(&g, 1);
        if (with) desc.comm.start = NULL, desc.comm.test = NULL, desc.comm.wait = NULL;
        else desc.bucket_bytes = 2;
        CHECK(gcomp_open(&g.gc[1], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[1], &tensor) == GCOMP_OK);
        begin(&g);
        hand_in(&g, 0);
        for (int i = 0; i < 20; i++)
            for (size_t w = 0; w < 2; w++)
                if (g.result[w] == GCOMP_OK) g.result[w] = w && with ? own_progress(&g, w) : gcomp_step_progress(g.gc[w]);
        CHECK(all_are(&g, GCOMP_MISMATCH) && strstr(gcomp_error(g.gc[0]), with ? "rank 1 has comm.start NULL, rank 0 has comm.start set"
                                                                              : "rank 1 has desc.bucket_bytes 2, rank 0 has desc.bucket_bytes 1"));
        group_close(&g);
    }
}

/* ---------------- callbacks */

/* Each of the first collectives, among them two that are under way together, fails on rank 1. */
static void test_a_callback_that_fails_leaves_no_trace_and_nothing_under_way(void)
{
    for (int kind = FAIL_START; kind <= FAIL_TEST; kind++)
        for (size_t call = 0; call < 12; call++) {
            group a, b;
            open_pair(&a, &b, call % 2 ? 6000 : 12000);
            a.board.fault = (fault)kind;
            a.board.fault_call = call;
            a.board.fault_rank = 1;
            group_step(&a);
            CHECK(a.result[1] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(a.gc[1]), "failed with status"));
            for (size_t w = 0; w < 3; w++) {
                CHECK(a.result[w] != GCOMP_OK && a.board.under_way[w] == 0);
                CHECK(gcomp_step_number(a.gc[w]) == 1);
            }
            close_pair(&a, &b);
        }
}

static void test_a_wait_that_fails_ends_the_step(void)
{
    gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
    group g;
    group_open(&g, CALLBACKS, 2, &desc, mixed + 3, 2);
    group_fill(&g, 0);
    uint64_t before = digest(&g, 0);
    begin(&g);
    for (size_t k = 0; k < 2; k++) hand_in(&g, k);
    g.result[0] = gcomp_step_progress(g.gc[0]);
    CHECK(g.result[0] == GCOMP_OK && g.board.under_way[0] == 1);
    g.result[0] = gcomp_step_finish(g.gc[0]); /* rank 1 has not come: this board cannot wait */
    CHECK(g.result[0] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[0]), "frames failed with status -1"));
    CHECK(g.board.under_way[0] == 0 && digest(&g, 0) == before);
    CHECK(gcomp_step_abort(g.gc[1]) == GCOMP_OK);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

/* Whatever ends a step waits for what was begun. */
static void test_nothing_is_under_way_after_abort_restart_or_close(void)
{
    for (int how = 0; how < 3; how++) {
        gcomp_desc desc = plain(1, GCOMP_AGGREGATE_GATHER);
        group g;
        group_open(&g, CALLBACKS, 2, &desc, mixed, TENSORS);
        begin(&g);
        hand_in(&g, 0);
        CHECK(gcomp_step_progress(g.gc[0]) == GCOMP_OK && g.board.under_way[0] == 1);
        if (how == 0) CHECK(gcomp_step_abort(g.gc[0]) == GCOMP_OK);
        if (how == 1) CHECK(gcomp_restart(g.gc[0], 0) == GCOMP_OK);
        if (how == 2) gcomp_close(g.gc[0]), g.gc[0] = NULL;
        CHECK(g.board.under_way[0] == 0);
        group_close(&g);
    }
}

int main(void)
{
    RUN(test_any_buckets_give_the_bits_of_one);
    RUN(test_one_large_bucket_asks_for_what_none_asks_for);
    RUN(test_buckets_go_out_from_the_last_to_the_first);
    RUN(test_tensors_may_be_skipped_in_any_bucket);
    RUN(test_a_bad_gradient_of_a_later_bucket_leaves_no_trace);
    RUN(test_a_bad_gradient_that_is_ready_first_is_told_in_the_first_frame);
    RUN(test_what_one_worker_sees_is_told_in_the_next_frame);
    RUN(test_what_one_worker_sees_in_the_last_bucket_is_told_in_the_next_step);
    RUN(test_frames_of_a_bucket_are_of_it_alone);
    RUN(test_sums_of_a_bucket_fit_its_place);
    RUN(test_other_buckets_or_callbacks_are_a_mismatch);
    RUN(test_a_callback_that_fails_leaves_no_trace_and_nothing_under_way);
    RUN(test_a_wait_that_fails_ends_the_step);
    RUN(test_nothing_is_under_way_after_abort_restart_or_close);
    return test_end();
}
