/* Proves of examples/patterns/leader.c: what it says of its algorithm, and of workers that die, return NaN, leave or join. */

#include "patterns.h"

static gcomp_threads *again; /* a second group, for those that are left */

static gcomp_threads *whole; /* a third group, with the worker that joins */
static worker successor;

/* ---------------- leader.c */

static float pull_by = 0.1f;

static void open_leader(worker *w)
{
    memset(&w->l, 0, sizeof w->l);
    w->l.comm = w->comm;
    w->l.n = N;
    w->l.pull = pull_by;
    w->wrong += gcomp_codec_parse(&w->l.codec, codec, NULL, 0) != GCOMP_OK;
    for (size_t i = 0; i < N; i++) w->x[i] = at_first(i);
    w->wrong += leader_open(&w->l, w->x) != 0;
}

/* Everywhere off the start, differently on each worker. */
static void wander(worker *w, size_t round)
{
    for (size_t i = 0; i < N; i++) w->x[i] += 0.01f * ((float)(mix(i * 64 + round * 8 + (size_t)w->rank) % 1001) - 500) / 500;
}

static void test_the_least_finite_loss_leads(void)
{
    static const float losses[][4] = {{3, 1, 2, 1}, {NAN, 2, INFINITY, 5}, {NAN, NAN, NAN, INFINITY}, {1, 1, 1, 1}, {4, 3, 2, -INFINITY}};
    static const int leads[] = {1, 1, -1, 0, 2};
    for (size_t k = 0; k < 5; k++) CHECK(leader_of(losses[k], 4) == leads[k]);
}

/* The leader changes from round to round. With an exact codec b is the leader's x, and the others come closer by c. */
static void body_leader(worker *w)
{
    static const char *const codecs[] = {"none", "int:bits=4", "qsgd", "topk:density=0.05", "sign"};
    float x[N], b[N];
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        codec = codecs[c];
        if (gcomp_threads_barrier(w->comm.user)) return;
        open_leader(w);
        for (size_t round = 0; round < 12; round++) {
            const int leads = (int)(mix(round) % WORLD);
            wander(w, round);
            memcpy(x, w->x, sizeof x);
            w->wrong += leader_round(&w->l, w->x, w->rank == leads ? 0.5f : 1 + (float)w->rank) != GCOMP_OK || w->l.leads != leads;
            w->wrong += w->rank == leads && !same(w->x, x); /* the leader stands */
            for (size_t i = 0; i < N && w->rank != leads; i++) w->wrong += fabsf(x[i] + 0.1f * (w->l.b[i] - x[i]) - w->x[i]) > 1e-6f;
            for (size_t i = 0; i < N && c == 0 && w->rank == leads; i++) w->wrong += fabsf(w->l.b[i] - x[i]) > 1e-6f;
            memcpy(b, w->l.b, sizeof b);
            w->wrong += gcomp_threads_broadcast(w->comm.user, b, sizeof b, 0) != 0 || !same(b, w->l.b); /* the same bits */
        }
        leader_close(&w->l);
        if (gcomp_threads_barrier(w->comm.user)) return;
    }
}

static void test_leaders_stand_and_all_hold_the_same_copy(void)
{
    memset(workers, 0, sizeof workers);
    each(WORLD, body_leader);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* x = b on all: a fixed point; equal workers stay equal. */
static void body_fixed(worker *w)
{
    float x[N];
    open_leader(w);
    memcpy(x, w->x, sizeof x);
    for (size_t round = 0; round < 5; round++) w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK || !same(w->x, x);
    for (size_t round = 0; round < 5; round++) w->wrong += leader_elastic(&w->l, w->x) != GCOMP_OK || !same(w->x, x);
    leader_close(&w->l);
}

static void test_where_all_are_equal_nothing_moves(void)
{
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    each(WORLD, body_fixed);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* Round 1: worker 2 is NaN with a loss of NaN. Round 2: no loss is finite. Round 3: the leader's weights are not finite. */
static void body_leader_nan(worker *w)
{
    float x[N], b[N];
    const int victim = w->rank == 2;
    open_leader(w);
    wander(w, 1);
    if (victim) w->x[7] = NAN;
    w->wrong += leader_round(&w->l, w->x, victim ? NAN : 1 + (float)w->rank) != GCOMP_OK || w->l.leads != 0;
    w->wrong += w->l.restarted != victim || (victim && !same(w->x, w->l.b));
    memcpy(x, w->x, sizeof x);
    memcpy(b, w->l.b, sizeof b);
    w->wrong += leader_round(&w->l, w->x, NAN) != GCOMP_OK || w->l.leads != -1 || !same(w->x, x) || !same(w->l.b, b);
    w->l.restarted = 0;
    if (victim) w->x[8] = INFINITY;
    w->wrong += leader_round(&w->l, w->x, victim ? 0 : 1.0f) != GCOMP_OK || w->l.leads != -1 || !same(w->l.b, b);
    w->wrong += w->l.restarted != victim || !same(w->x, victim ? b : x);
    leader_close(&w->l);
}

static void test_nan_never_leads(void)
{
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    each(WORLD, body_leader_nan);
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0);
}

/* Worker 3 dies; the others go on in another group; then a successor gets b and the round, and joins. */
static void body_leader_death(worker *w)
{
    float x[N], b[N];
    open_leader(w);
    wander(w, 1);
    w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK;
    memcpy(x, w->x, sizeof x);
    memcpy(b, w->l.b, sizeof b);
    if (w->rank == 3) {
        gcomp_threads_fail(w->group);
        leader_close(&w->l);
        return;
    }
    w->wrong += leader_round(&w->l, w->x, 0) != GCOMP_CALLBACK_FAILED || !same(w->x, x) || !same(w->l.b, b);
    w->wrong += leader_elastic(&w->l, w->x) != GCOMP_CALLBACK_FAILED || !same(w->x, x) || !same(w->l.b, b);
    w->l.comm = gcomp_threads_comm(again, w->rank);
    for (size_t round = 2; round < 5; round++) {
        wander(w, round);
        w->wrong += leader_round(&w->l, w->x, (float)w->rank) != GCOMP_OK || w->l.leads != 0;
    }
    w->l.comm = gcomp_threads_comm(whole, w->rank);
    w->wrong += gcomp_threads_barrier(w->l.comm.user) != 0; /* the successor reads b of worker 0 */
    w->wrong += gcomp_threads_barrier(w->l.comm.user) != 0;
    wander(w, 5);
    w->wrong += leader_round(&w->l, w->x, 1 + (float)w->rank) != GCOMP_OK || w->l.leads != 3;
    memcpy(w->x, w->l.b, BYTES); /* for the comparison */
    leader_close(&w->l);
}

static void *join_leader(void *unused)
{
    worker *w = &successor;
    (void)unused;
    w->rank = 3;
    w->comm = gcomp_threads_comm(whole, 3);
    open_leader(w);
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    memcpy(w->l.b, workers[0].l.b, BYTES);
    memcpy(w->x, w->l.b, BYTES);
    w->l.round = workers[0].l.round;
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
    wander(w, 5);
    w->wrong += leader_round(&w->l, w->x, 0) != GCOMP_OK || w->l.leads != 3;
    memcpy(w->x, w->l.b, BYTES);
    leader_close(&w->l);
    return NULL;
}

static void test_when_a_worker_dies_the_others_follow_on_and_another_may_join(void)
{
    pthread_t thread;
    codec = "int:bits=4";
    memset(workers, 0, sizeof workers);
    memset(&successor, 0, sizeof successor);
    CHECK(gcomp_threads_open(&again, 3, 30) == 0 && gcomp_threads_open(&whole, 4, 30) == 0);
    CHECK(pthread_create(&thread, NULL, join_leader, NULL) == 0);
    each(WORLD, body_leader_death);
    pthread_join(thread, NULL);
    gcomp_threads_close(again);
    gcomp_threads_close(whole);
    for (int w = 0; w < WORLD - 1; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, successor.x));
    CHECK(successor.wrong == 0);
}

/* The sum of all x and the centre stays, with a codec that loses much; a worker with NaN adds nothing. */
static void body_elastic(worker *w)
{
    static float all[WORLD][N];
    open_leader(w);
    for (size_t round = 0; round < 20; round++) {
        double before[N], most = 0;
        const int poisoned = round == 9 && w->rank == 1;
        wander(w, round);
        if (poisoned) w->x[3] = NAN;
        for (int after = 0; after < 2; after++) {
            if (after) w->wrong += leader_elastic(&w->l, w->x) != GCOMP_OK;
            memcpy(all[w->rank], w->x, BYTES);
            w->wrong += gcomp_threads_barrier(w->comm.user) != 0;
            for (size_t i = 0; i < N; i++) {
                double sum = (double)w->l.b[i];
                for (int k = 0; k < WORLD; k++) sum += (double)all[k][i];
                if (!after) before[i] = sum;
                else if (round != 9) most = fmax(most, fabs(sum - before[i]));
            }
            w->wrong += gcomp_threads_barrier(w->comm.user) != 0 || most > 1e-5;
        }
        w->wrong += (round == 9 && w->l.restarted != poisoned) || (poisoned && !same(w->x, w->l.b));
        for (size_t i = 0; i < N; i++) w->wrong += !isfinite(w->l.b[i]) || !isfinite(w->x[i]);
    }
    memcpy(w->x, w->l.b, BYTES);
    leader_close(&w->l);
}

static void test_elastic_averaging_conserves_the_sum_with_the_centre(void)
{
    codec = "sign";
    pull_by = 0.9f / WORLD;
    memset(workers, 0, sizeof workers);
    each(WORLD, body_elastic);
    pull_by = 0.1f;
    for (int w = 0; w < WORLD; w++) CHECK(workers[w].wrong == 0 && same(workers[w].x, workers[0].x));
}

int main(void)
{
    RUN(test_the_least_finite_loss_leads);
    RUN(test_leaders_stand_and_all_hold_the_same_copy);
    RUN(test_where_all_are_equal_nothing_moves);
    RUN(test_nan_never_leads);
    RUN(test_when_a_worker_dies_the_others_follow_on_and_another_may_join);
    RUN(test_elastic_averaging_conserves_the_sum_with_the_centre);
    return test_end();
}
