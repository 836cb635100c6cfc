/* Proves of the step: failures leave no trace, and disagreements of workers are named. */

#include "step.h"

/* ---------------- failures */

static size_t collectives_of_a_step(const gcomp_tensor *tensors, size_t count, size_t world)
{
    group g;
    group_open(&g, world, tensors, count);
    group_advance(&g, 0);
    size_t calls = g.carried;
    group_close(&g);
    return calls;
}

static void test_a_failure_that_all_see_leaves_no_trace_and_can_be_retried(void)
{
    size_t calls = collectives_of_a_step(mixed, MIXED, 3);
    CHECK(calls >= 3);  /* the frame, at least one gather, at least one sum */
    for (size_t call = 0; call < calls; call++) {
        group a, b;
        pair_open(&a, &b, 3, mixed, MIXED, 2);
        group_fill(&a, 2);
        snapshot before = snapshot_take(&a);
        fault all_fail = {FAULT_FAIL, call, -1, 0, 0};
        a.fault = all_fail;
        for (int again = 0; again < 2; again++) {
            group_step(&a);
            CHECK(all_are(&a, GCOMP_CALLBACK_FAILED));
            CHECK(group_equals(&a, &before));
        }
        a.fault.kind = FAULT_NONE;
        check_repetition(&a, &b);
        gcomp_statistics stats;
        CHECK(gcomp_stats(a.gc[1], &stats) == GCOMP_OK);
        CHECK(stats.failed == 2 && stats.steps == 4 && stats.skipped == 0);
        snapshot_free(&before);
        pair_close(&a, &b);
    }
}

/* After a fault in step 2 of a: the workers that saw it are untouched. If no worker has committed,
   the step is repeated; else the next frame names the worker that is behind. */
static void check_aftermath(group *a, group *b, const snapshot *before, size_t rank)
{
    snapshot now = snapshot_take(a);
    size_t committed = 0;
    CHECK(a->result[rank] != GCOMP_OK);
    for (size_t w = 0; w < a->world; w++) {
        if (a->result[w] == GCOMP_OK) committed++;
        else CHECK(worker_equals(&now, before, w));
    }
    snapshot_free(&now);
    a->fault.kind = FAULT_NONE;
    if (committed == 0) {
        group_step(a);
        CHECK(all_are(a, GCOMP_OK));
        group_advance(b, 2);
        CHECK(groups_agree(a, b));
        return;
    }
    group_fill(a, 3);
    now = snapshot_take(a);
    group_step(a);
    CHECK(all_are(a, GCOMP_OUT_OF_STEP));
    for (size_t w = 0; w < a->world; w++) {
        CHECK(names_worker(gcomp_error(a->gc[w]), rank));
        CHECK(strstr(gcomp_error(a->gc[w]), "step") != NULL);
    }
    CHECK(group_equals(a, &now));
    snapshot_free(&now);
    group_step(a);
    CHECK(all_are(a, GCOMP_OUT_OF_STEP));
    for (size_t w = 0; w < a->world; w++) CHECK(gcomp_restart(a->gc[w], 3) == GCOMP_OK);
    group_advance(a, 3);
    CHECK(means_agree(a));
    for (size_t w = 0; w < a->world; w++) CHECK(gcomp_restart(b->gc[w], 3) == GCOMP_OK);
    group_advance(b, 3);
    CHECK(groups_agree(a, b));
}

static void test_a_failure_that_one_sees_is_named_by_all_in_the_next_frame(void)
{
    for (int set = 0; set < 2; set++) {
        const gcomp_tensor *tensors = set ? gathered : mixed;
        size_t count = set ? (size_t)GATHERED : (size_t)MIXED, calls = collectives_of_a_step(tensors, count, 3), named = 0;
        for (size_t call = 0; call < calls; call++)
            for (size_t rank = 0; rank < 3; rank++) {
                group a, b;
                pair_open(&a, &b, 3, tensors, count, 2);
                group_fill(&a, 2);
                snapshot before = snapshot_take(&a);
                fault one_fails = {FAULT_FAIL, call, (int)rank, 0, 0};
                a.fault = one_fails;
                group_step(&a);
                CHECK(a.result[rank] == GCOMP_CALLBACK_FAILED);
                if (a.result[(rank + 1) % 3] == GCOMP_OK) named++;
                check_aftermath(&a, &b, &before, rank);
                snapshot_free(&before);
                pair_close(&a, &b);
            }
        CHECK(named == 3);  /* the last collective, on each of three workers */
    }
}

static void test_a_damaged_payload_is_refused_and_named_in_the_next_frame(void)
{
    static const size_t offsets[] = {32, 40, 100, SIZE_MAX};
    for (size_t rank = 0; rank < 3; rank++)
        for (size_t o = 0; o < sizeof offsets / sizeof offsets[0]; o++) {
            group a, b;
            pair_open(&a, &b, 3, gathered, GATHERED, 2);
            size_t last = a.carried - 1;
            CHECK(a.kind[last] == GCOMP_ALLGATHER && a.stride[last] > FRAME_BYTES);
            group_fill(&a, 2);
            snapshot before = snapshot_take(&a);
            fault flip = {FAULT_FLIP, last, (int)rank, (rank + o) % 3, offsets[o]};
            a.fault = flip;
            group_step(&a);
            CHECK(a.result[rank] == GCOMP_CHECKSUM_MISMATCH);
            CHECK(names_worker(gcomp_error(a.gc[rank]), (rank + o) % 3));
            for (size_t w = 0; w < 3; w++)
                if (w != rank) CHECK(a.result[w] == GCOMP_OK);
            check_aftermath(&a, &b, &before, rank);
            snapshot_free(&before);
            pair_close(&a, &b);
        }
}

static void test_every_damaged_byte_of_gathered_payloads_is_refused(void)
{
    group g;
    static const gcomp_tensor tensor = {"topk", 9, 21, 0, GCOMP_F32, "topk:density=0.05"};
    group_open(&g, 2, &tensor, 1);
    group_advance(&g, 0);
    size_t last = g.carried - 1, length = g.queue[0][last].bytes[1];
    for (size_t i = 0; i < length; i++) {
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(g.gc[w], 0) == GCOMP_OK);
        group_fill(&g, 0);
        fault flip = {FAULT_FLIP, last, -1, 1, i};
        g.fault = flip;
        snapshot before = snapshot_take(&g);
        group_step(&g);
        CHECK(g.result[0] != GCOMP_OK && g.result[0] == g.result[1]);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
    }
    group_close(&g);
}

static size_t frame_call(const group *g)
{
    size_t k = 0;
    while (k < g->carried && !(g->kind[k] == GCOMP_ALLGATHER && g->stride[k] == FRAME_BYTES)) k++;
    return k;
}

static void test_frames_in_wrong_order_are_a_mismatch(void)
{
    for (int rank = -1; rank < 3; rank++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_advance(&g, 0);
        size_t k = frame_call(&g);
        CHECK(k < g.carried);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g), after;
        fault swap = {FAULT_SWAP, k, rank, 0, 0};
        g.fault = swap;
        group_step(&g);
        after = snapshot_take(&g);
        for (size_t w = 0; w < 3; w++) {
            if (rank < 0 || (size_t)rank == w) {
                CHECK(g.result[w] == GCOMP_MISMATCH);
                CHECK(strstr(gcomp_error(g.gc[w]), "order") || strstr(gcomp_error(g.gc[w]), "rank"));
            }
            if (g.result[w] != GCOMP_OK) CHECK(worker_equals(&before, &after, w));
        }
        snapshot_free(&before);
        snapshot_free(&after);
        group_close(&g);
    }
}

static void test_a_damaged_frame_is_refused(void)
{
    group g;
    group_open(&g, 3, gathered, GATHERED);
    group_advance(&g, 0);
    size_t k = frame_call(&g), accepted = 0, touched = 0;
    for (size_t i = 0; i < FRAME_BYTES + 8; i++) {
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 1) == GCOMP_OK);
        group_fill(&g, 1);
        snapshot before = snapshot_take(&g);
        fault damage = {FAULT_FLIP, k, -1, 1, i};
        g.fault = damage;
        if (i >= FRAME_BYTES) g.fault.kind = FAULT_NOISE;
        group_step(&g);
        for (size_t w = 0; w < 3; w++)
            if (g.result[w] == GCOMP_OK) {
                if (w == 0) printf("# frame byte %d is not covered\n", (int)i);
                accepted++;
            } else {
                CHECK(g.result[w] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[w]), "rank 1 sent a frame that arrived damaged"));
            }
        if (!group_equals(&g, &before)) touched++;
        snapshot_free(&before);
        g.fault.kind = FAULT_NONE;
    }
    CHECK(accepted == 0);
    CHECK(touched == 0);
    group_close(&g);
}

/* ---------------- disagreement */

static int ignore_gatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    (void)user, (void)mine, (void)all, (void)bytes, (void)stride;
    return 1;
}

static int difference; /* which one odd_one() makes */

enum {
    ODD_SEED, ODD_CODEC, ODD_PARAMETER, ODD_ROWS, ODD_SHAPE, ODD_NAME, ODD_COUNT, ODD_DTYPE, ODD_FEEDBACK, ODD_CHECKSUM,
    ODD_CHECK_EVERY, ODD_GATHERV, ODD_END
};

static const char *const odd_word[ODD_END] = {"rank 2 has desc.seed 1, rank 0 has desc.seed 0", "codec topk, rank 0 has", "density=0.06, rank 0 has",
                                              "29 x ", "37 x 30 fp32, rank 0 has tensor", "'sing'", "rank 2 has no tensor", "fp16, rank 0 has",
                                              "no_error_feedback 1, rank 0 has desc.no_error_feedback 0", "no_checksum 1", "check_every 3",
                                              "rank 2 has comm.allgatherv set, rank 0 has comm.allgatherv NULL"};

static void odd_one(int rank, gcomp_desc *desc, gcomp_tensor *tensors, size_t *count)
{
    desc->comm.allreduce = no_allreduce;
    desc->comm.allgather = no_allgather;
    if (rank != 2) return;
    if (difference == ODD_SEED) desc->seed = 1;
    if (difference == ODD_CODEC) tensors[SIGN].codec = "topk";
    if (difference == ODD_PARAMETER) tensors[TOPK].codec = "topk:density=0.06";
    if (difference == ODD_ROWS) tensors[SIGN].rows = 29;
    if (difference == ODD_SHAPE) {
        tensors[SIGN].rows = 37;
        tensors[SIGN].cols = 30;
    }
    if (difference == ODD_NAME) tensors[SIGN].name = "sing";
    if (difference == ODD_COUNT) (*count)--;
    if (difference == ODD_DTYPE) tensors[VECTOR].dtype = GCOMP_F16;
    if (difference == ODD_FEEDBACK) desc->no_error_feedback = 1;
    if (difference == ODD_CHECKSUM) desc->no_checksum = 1;
    if (difference == ODD_CHECK_EVERY) desc->check_every = 3;
    if (difference == ODD_GATHERV) desc->comm.allgatherv = ignore_gatherv;
}

static void test_disagreement_is_a_mismatch_that_names_the_worker_and_the_difference(void)
{
    for (difference = 0; difference < ODD_END; difference++) {
        group g;
        group_open_with(&g, 3, NULL, mixed, MIXED, odd_one);
        group_fill(&g, 0);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < tensors_of(g.gc[w]); t++) group_ready(&g, w, t, 0);
        group_finish(&g);
        int all = all_are(&g, GCOMP_MISMATCH),
            named = names_worker(gcomp_error(g.gc[0]), 2) && names_worker(gcomp_error(g.gc[1]), 2);
        int word = 1;
        for (size_t w = 0; w < 3; w++) word = word && strstr(gcomp_error(g.gc[w]), odd_word[difference]) != NULL;
        if (!all || !named || !word) printf("# difference %d: %s\n", difference, gcomp_error(g.gc[0]));
        CHECK(all);
        CHECK(named);
        CHECK(word);
        CHECK(group_equals(&g, &before));
        snapshot_free(&before);
        group_close(&g);
    }
}

static void test_another_step_number_is_out_of_step(void)
{
    for (size_t odd = 0; odd < 3; odd++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        CHECK(gcomp_restart(g.gc[odd], 7) == GCOMP_OK);
        CHECK(gcomp_step_number(g.gc[odd]) == 7);
        group_fill(&g, 0);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OUT_OF_STEP));
        for (size_t w = 0; w < 3; w++) CHECK(strstr(gcomp_error(g.gc[w]), "step") != NULL);
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 7) == GCOMP_OK);
        group_advance(&g, 7);
        CHECK(gcomp_step_number(g.gc[odd]) == 8);
        group_close(&g);
    }
}

static void larger_world(int rank, gcomp_desc *desc, gcomp_tensor *tensors, size_t *count)
{
    (void)tensors, (void)count;
    if (rank == 1) desc->comm.world = 4;
}

static void test_another_world_is_a_mismatch(void)
{
    group g;
    group_open_with(&g, 3, NULL, gathered, GATHERED, larger_world);
    group_fill(&g, 0);
    group_begin(&g, NULL);
    for (size_t w = 0; w < 3; w++)
        for (size_t t = 0; t < GATHERED; t++) group_ready(&g, w, t, 0);
    gcomp_request request[3];
    unsigned char frames[4 * FRAME_BYTES];
    memset(frames, 0, sizeof frames);
    for (size_t w = 0; w < 3; w++) {
        CHECK(gcomp_step_next(g.gc[w], &request[w]) == GCOMP_OK);
        CHECK(request[w].kind == GCOMP_ALLGATHER && request[w].stride == FRAME_BYTES);
        memcpy(frames + w * FRAME_BYTES, request[w].send, FRAME_BYTES);
    }
    for (size_t w = 0; w < 3; w++) {
        gcomp_request next;
        memcpy(request[w].recv, frames, (w == 1 ? 4 : 3) * FRAME_BYTES);
        gcomp_result result = gcomp_step_done(g.gc[w], request[w].id, 0);
        if (result == GCOMP_OK) result = gcomp_step_next(g.gc[w], &next);
        CHECK(result == GCOMP_MISMATCH);
        CHECK(w == 1 || strstr(gcomp_error(g.gc[w]), "world") != NULL);
        CHECK(w == 1 || names_worker(gcomp_error(g.gc[w]), 1));
    }
    group_close(&g);
}

static void test_instruction_sets_and_allocators_may_differ(void)
{
    gcomp_isa last = GCOMP_ISA_SCALAR;
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++)
        if (isa_available((gcomp_isa)isa)) last = (gcomp_isa)isa;
    group a, b;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.isa = GCOMP_ISA_SCALAR;
    group_open_with(&a, 2, &desc, mixed, MIXED, NULL);
    group_open_with(&b, 2, &desc, mixed, MIXED, NULL);
    gcomp_close(b.gc[1]);
    desc.isa = last;
    desc.measure = 1;
    desc.comm.rank = 1;
    desc.comm.world = 2;
    CHECK(gcomp_open(&b.gc[1], &desc) == GCOMP_OK);
    for (size_t t = 0; t < MIXED; t++) CHECK(gcomp_add_tensor(b.gc[1], &mixed[t]) == GCOMP_OK);
    for (uint64_t step = 0; step < 5; step++) {
        pair_advance(&a, &b, step);
        CHECK(groups_agree(&a, &b));
    }
    pair_close(&a, &b);
}

static void test_a_corrupted_sum_on_one_worker_is_found_as_divergence(void)
{
    for (uint32_t every = 1; every <= 2; every++) {
        static const gcomp_tensor tensors[] = {{"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
                                               {"v", 100, 0, 0, GCOMP_F32, NULL}};
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.check_every = every;
        group g;
        group_open_with(&g, 3, &desc, tensors, 2, NULL);
        for (uint64_t step = 0; step < 4; step++) group_advance(&g, step);
        size_t k = 0, sums = 0;
        while (k < g.carried && g.kind[k] != GCOMP_ALLREDUCE) k++;
        for (size_t i = 0; i < g.carried; i++) sums += g.kind[i] == GCOMP_ALLREDUCE;
        printf("# %d sums a step\n", (int)sums);
        for (size_t i = g.carried; i-- > 0;)
            if (g.kind[i] == GCOMP_ALLREDUCE) {
                k = i;
                break;
            }
        fault corrupt = {FAULT_CORRUPT, k, 1, 0, 6}; /* a bit in the middle of a float: Q's or the vector's */
        g.fault = corrupt;
        group_fill(&g, 4);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));  /* nobody can see it yet */
        group_fill(&g, 5);
        group_step(&g);
        if (every == 2 && g.result[0] == GCOMP_OK) {
            group_fill(&g, 6);
            group_step(&g);
        }
        CHECK(all_are(&g, GCOMP_DIVERGED));
        g.fault.kind = FAULT_NONE;
        for (size_t w = 0; w < 3; w++) CHECK(gcomp_restart(g.gc[w], 20) == GCOMP_OK);
        for (uint64_t step = 20; step < 24; step++) group_advance(&g, step);
        group_close(&g);
    }
}

/* Rank `rank` takes part as a new worker: without a digest of the means before. */
static void rejoin(group *g, int rank, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    gcomp_desc desc = *base;
    const int other = rank == 1 ? 0 : 1;
    const size_t room = save_size(g->gc[other]);
    uint8_t *save = (uint8_t *)malloc(room);
    size_t length = 0;
    CHECK(gcomp_save(g->gc[other], save, room, &length) == GCOMP_OK);
    gcomp_close(g->gc[rank]);
    desc.comm.rank = rank;
    desc.comm.world = (int)g->world;
    CHECK(gcomp_open(&g->gc[rank], &desc) == GCOMP_OK);
    for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(g->gc[rank], &tensors[t]) == GCOMP_OK);
    CHECK(gcomp_join(g->gc[rank], save, length) == GCOMP_OK);
    free(save);
}

static void test_a_worker_that_joins_sees_divergence_as_all_do(void)
{
    static const gcomp_tensor tensors[] = {{"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
                                           {"v", 100, 0, 0, GCOMP_F32, NULL}};
    for (int joiner = 0; joiner < 3; joiner++) {
        gcomp_desc desc;
        group g;
        memset(&desc, 0, sizeof desc);
        desc.check_every = 1;
        group_open_with(&g, 4, &desc, tensors, 2, NULL);
        group_advance(&g, 0);
        fault corrupt = {FAULT_CORRUPT, g.carried - 1, 3, 0, 6};
        g.fault = corrupt;
        group_fill(&g, 1);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        g.fault.kind = FAULT_NONE;
        rejoin(&g, joiner, &desc, tensors, 2);
        for (int again = 0; again < 2; again++) {
            group_fill(&g, 2);
            group_step(&g);
            CHECK(all_are(&g, GCOMP_DIVERGED));
            for (size_t w = 0; w < 4; w++)
                CHECK(strstr(gcomp_error(g.gc[w]), joiner ? "rank 3 holds other means than rank 0"
                                                          : "rank 3 holds other means than rank 1"));
        }
        rejoin(&g, 3, &desc, tensors, 2); /* the worker with other means joins anew: no reason to stop */
        for (uint64_t step = 2; step < 5; step++) group_advance(&g, step);
        group_close(&g);
    }
}

/* Workers with different byte orders compare this digest, and saves keep it. */
static void test_the_digest_of_means_is_that_of_little_endian_floats(void)
{
    uint8_t *save, word[4];
    uint32_t crc = 0;
    size_t length = 0;
    gcomp_desc desc;
    group g;
    memset(&desc, 0, sizeof desc);
    desc.check_every = 1;
    group_open_with(&g, 2, &desc, mixed, MIXED, NULL);
    group_advance(&g, 3);
    save = (uint8_t *)malloc(save_size(g.gc[1]));
    CHECK(gcomp_save(g.gc[1], save, save_size(g.gc[1]), &length) == GCOMP_OK);
    for (size_t t = 0; t < MIXED; t++)
        for (size_t i = 0; i < g.n[t]; i++) {
            uint32_t bits;
            memcpy(&bits, &g.grad[1][t][i], 4);
            put_word(word, bits, 4);
            crc = plain_crc(crc, word, 4);
        }
    CHECK(crc != 0 && get_word(save + 40, 4) == crc);
    free(save);
    group_close(&g);
}

int main(void)
{
    RUN(test_a_failure_that_all_see_leaves_no_trace_and_can_be_retried);
    RUN(test_a_failure_that_one_sees_is_named_by_all_in_the_next_frame);
    RUN(test_a_damaged_payload_is_refused_and_named_in_the_next_frame);
    RUN(test_every_damaged_byte_of_gathered_payloads_is_refused);
    RUN(test_frames_in_wrong_order_are_a_mismatch);
    RUN(test_a_damaged_frame_is_refused);
    RUN(test_disagreement_is_a_mismatch_that_names_the_worker_and_the_difference);
    RUN(test_another_step_number_is_out_of_step);
    RUN(test_another_world_is_a_mismatch);
    RUN(test_instruction_sets_and_allocators_may_differ);
    RUN(test_a_corrupted_sum_on_one_worker_is_found_as_divergence);
    RUN(test_a_worker_that_joins_sees_divergence_as_all_do);
    RUN(test_the_digest_of_means_is_that_of_little_endian_floats);
    return test_end();
}
