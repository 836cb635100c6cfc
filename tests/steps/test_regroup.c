/* Proves of workers that come and go: nothing is lost, and what does not suit is refused. */

#include "checkpoint.h"

static team a, b;

/* ---------------- workers leave and join */

/* The last worker hands over to the first; the others go on without it. */
static void leave(team *t)
{
    size_t last = t->world - 1, length;
    uint8_t *save = save_of(t->gc[last], &length);
    CHECK(gcomp_take_over(t->gc[0], save, length) == GCOMP_OK);
    free(save);
    gcomp_close(t->gc[last]);
    t->gc[last] = NULL;
    t->world = last;
    for (size_t w = 0; w < last; w++) {
        gcomp_comm comm = comm_of(w, last);
        CHECK(gcomp_regroup(t->gc[w], &comm, NULL) == GCOMP_OK);
    }
}

static void join(team *t)
{
    size_t length, world = t->world + 1;
    uint8_t *save = save_of(t->gc[0], &length);
    for (size_t w = 0; w < t->world; w++) {
        gcomp_comm comm = comm_of(w, world);
        CHECK(gcomp_regroup(t->gc[w], &comm, NULL) == GCOMP_OK);
    }
    t->gc[t->world] = open_worker(t->world, world);
    CHECK(gcomp_join(t->gc[t->world], save, length) == GCOMP_OK);
    t->save[t->world] = save_of(t->gc[t->world], &t->length[t->world]);
    for (size_t i = 0; i < 80; i++) /* it multiplies with the Q of the others, and has nothing to send yet */
        CHECK(saved_float(t->save[t->world], t->gc[0], MATRIX, 960 + i) == saved_float(save, t->gc[0], MATRIX, 960 + i));
    for (size_t i = 0; i < 4000; i++) CHECK(saved_float(t->save[t->world], t->gc[0], DGC, i) == 0);
    free(t->save[t->world]);
    t->save[t->world] = NULL;
    free(save);
    t->world = world;
}

static void test_workers_leave_and_join_and_nothing_is_lost(void)
{
    team_open(&a, 4);
    for (uint64_t step = 0; step < 8; step++) {
        team_step(&a, step);
        if (step == 1 || step == 3) continue;
        team_save(&a);
        memcpy(b.length, a.length, sizeof b.length);
        memcpy(b.gc, a.gc, sizeof b.gc);
        b.world = a.world;
        for (size_t w = 0; w < MOST_WORKERS; w++) {
            b.save[w] = a.save[w];
            a.save[w] = NULL;
        }
        if (step < 3) leave(&a);
        else join(&a);
        if (step == 6) leave(&a);
        team_save(&a);
        CHECK(difference(&a, &b) < 1e-6);
        for (size_t w = 0; w < MOST_WORKERS; w++) free(b.save[w]);
    }
    CHECK(a.world == 5);
    team_close(&a);
}

/* What reached the weights and what is still to come is what was given: sum of means + mean
   residual = sum of mean gradients. */
static void test_the_weights_get_all_gradients_through_changes_of_workers(void)
{
    static double given[LARGEST], got[LARGEST];
    size_t n = 1050;
    memset(given, 0, sizeof given);
    memset(got, 0, sizeof got);
    team_open(&a, 3);
    for (uint64_t step = 0; step < 12; step++) {
        for (size_t i = 0; i < n; i++)
            for (size_t w = 0; w < a.world; w++) given[i] += (double)number(i + 10000 * (w + 10 * (TOPK + 10 * step))) / (double)a.world;
        team_step(&a, step);
        for (size_t i = 0; i < n; i++) got[i] += (double)a.grad[0][TOPK][i];
        if (step == 3 || step == 5) leave(&a);
        if (step == 4 || step == 8) join(&a);
        if (step == 6) {
            team_save(&a);
            team_open(&b, 4);
            for (size_t w = 0; w < 4; w++) CHECK(load_all(b.gc[w], &a) == GCOMP_OK);
            team_close(&a);
            a = b;
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t w = 0; w < a.world; w++) got[i] += (double)tensor_residual(a.gc[w], TOPK)[i] / (double)a.world;
        CHECK(fabs(got[i] - given[i]) < 1e-5);
    }
    team_close(&a);
}

static void test_what_cannot_be_taken_over_is_refused(void)
{
    team_open(&a, 3);
    team_open(&b, 2);
    team_step(&a, 0);
    team_step(&b, 0);
    team_save(&a);
    CHECK(gcomp_take_over(a.gc[0], a.save[0], a.length[0]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[0]), "itself"));
    CHECK(gcomp_take_over(b.gc[0], a.save[1], a.length[1]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(b.gc[0]), "workers"));
    team_step(&a, 1);
    CHECK(gcomp_take_over(a.gc[0], a.save[1], a.length[1]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[0]), "step"));
    team_close(&a);
    team_close(&b);
}

/* ---------------- regroup */

static void test_regroup_refuses_what_does_not_suit_and_changes_nothing(void)
{
    gcomp_comm comm = comm_of(0, 2);
    test_heap h = {1000, 0, 0, 0};
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.comm = comm_of(0, 2);
    desc.allocator = heap_of(&h);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor tensor = tensors[t];
        if (t == INTSUM) tensor.codec = "intsum:bits=8";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    CHECK(gcomp_regroup(NULL, &comm, NULL) == GCOMP_INVALID_ARGUMENT && gcomp_regroup(gc, NULL, NULL) == GCOMP_INVALID_ARGUMENT);
    comm.rank = 2;
    CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "comm.rank"));
    comm.rank = 0;
    comm.world = 200; /* more than 127 */
    CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_BAD_CODEC && strstr(gcomp_error(gc), "'intsum'"));
    comm.world = 3;
    comm.allreduce_dtypes = 0;
    CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "'intsum'"));
    comm.allreduce_dtypes = 1u << GCOMP_I8;
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    for (long left = 0; left < 4; left++) {
        size_t held = h.held, used = memory_of(gc), range[2], now[2]; /* what worker 1 owns of the first tensor */
        gcomp_result result;
        CHECK(gcomp_shard(gc, 0, 1, &range[0], &range[1]) == GCOMP_OK);
        h.left = left;
        result = gcomp_regroup(gc, &comm, NULL);
        CHECK(result == (left < 3 ? GCOMP_OUT_OF_MEMORY : GCOMP_OK));
        CHECK(gcomp_shard(gc, 0, 1, &now[0], &now[1]) == GCOMP_OK && !memcmp(range, now, sizeof now) == (result != GCOMP_OK));
        if (result) CHECK(h.held == held && memory_of(gc) == used);
        else CHECK(h.held > held && memory_of(gc) == h.held);
    }
    h.left = 0;
    CHECK(gcomp_prepare(gc) == GCOMP_OK); /* all is reserved */
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK && gcomp_regroup(gc, &comm, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(gc) == GCOMP_OK);
    gcomp_close(gc);
    CHECK(h.held == 0);
}

static void test_regroup_of_as_many_workers_keeps_every_bit(void)
{
    gcomp_comm comm = comm_of(1, 2);
    team_open(&a, 2);
    team_step(&a, 0);
    team_save(&a);
    CHECK(gcomp_regroup(a.gc[0], &comm, NULL) == GCOMP_OK);
    comm.rank = 0;
    CHECK(gcomp_regroup(a.gc[1], &comm, NULL) == GCOMP_OK); /* they have changed places */
    for (size_t w = 0; w < 2; w++) {
        size_t length;
        uint8_t *save = save_of(a.gc[w], &length);
        CHECK(get_word(save + 32, 4) == 1 - w && !memcmp(save + 36, a.save[w] + 36, length - 40));
        free(save);
    }
    team_close(&a);
}

int main(void)
{
    RUN(test_workers_leave_and_join_and_nothing_is_lost);
    RUN(test_the_weights_get_all_gradients_through_changes_of_workers);
    RUN(test_what_cannot_be_taken_over_is_refused);
    RUN(test_regroup_refuses_what_does_not_suit_and_changes_nothing);
    RUN(test_regroup_of_as_many_workers_keeps_every_bit);
    return test_end();
}
