/* Proofs of the teams of examples/adapters/gcomp_sockets.h, between processes on the loopback: whichever
   worker dies, the others find each other, in the old order; a newcomer joins; strangers do not.
   No check depends on a time: the long times end a test that hangs. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif

#include "gcomp_sockets.h"
#include "test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 6 };

/* What a worker, a process, tells the test. */
typedef struct told {
    int error; /* of its last call */
    int rank, world, joined, gone_count, gone[MOST], was[MOST];
    float sum; /* of 1 << rank over all workers, afterwards */
    int32_t data;
    int reached; /* how far it is */
} told;

static told *tell; /* [MOST], shared with the processes */
static gcomp_sockets_desc asked;
static char port[8];

static void choose_port(void)
{
    if (gcomp_sockets_free_port(port) != 0) exit(1);
    memset(tell, 0, MOST * sizeof *tell);
    memset(&asked, 0, sizeof asked);
    asked.port = port;
    asked.secret = "a secret of this test";
    asked.rendezvous = asked.silence = 120;
}

/* What the team is now. */
static void note(told *t, gcomp_sockets_team *team, int error)
{
    float sum;
    t->error = error;
    if (error) return;
    sum = (float)(1 << team->rank);
    t->rank = team->rank;
    t->world = team->world;
    t->joined = team->joined;
    t->gone_count = team->gone_count;
    for (int i = 0; i < team->gone_count; i++) t->gone[i] = team->gone[i];
    for (int i = 0; i < team->world; i++) t->was[i] = team->was[i];
    if (gcomp_sockets_allreduce(team->net, &sum, 1, GCOMP_F32)) sum = -1;
    t->sum = sum;
}

typedef void (*body)(gcomp_sockets_team *, int, told *);

static pid_t begin(int rank, int world, body does)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        gcomp_sockets_team *team;
        gcomp_sockets_desc desc = asked;
        told *t = &tell[rank];
        desc.rank = rank;
        desc.world = world;
        t->error = world ? gcomp_sockets_team_start(&team, &desc)
                         : gcomp_sockets_team_join(&team, &desc);
        if (!t->error) does(team, rank, t);
        gcomp_sockets_team_close(team);
        _exit(0);
    }
    return child;
}

/* Begins all, and waits until they have ended, by themselves or not. */
static void run(int world, body does)
{
    pid_t children[MOST];
    for (int w = 0; w < world; w++) children[w] = begin(w, world, does);
    for (int w = 0; w < world; w++) waitpid(children[w], NULL, 0);
}

static unsigned first_dead, then_dead; /* sets of ranks of the beginning */

/* Exchanges until a worker is lost; those of `dead` die between the meeting and the end of one. */
static void exchange(gcomp_sockets_team *team, int rank, unsigned dead)
{
    float data[1000] = {0};
    for (int i = 0;; i++) {
        if (i == 3 && dead >> rank & 1) {
            gcomp_sockets_meet(team->net, GCOMP_SOCKETS_ALLREDUCE, GCOMP_F32, 1000, 0);
            raise(SIGKILL);
        }
        if (gcomp_sockets_allreduce(team->net, data, 1000, GCOMP_F32)) return;
    }
}

static void body_deaths(gcomp_sockets_team *team, int rank, told *t)
{
    exchange(team, rank, first_dead);
    note(t, team, gcomp_sockets_team_regroup(team, 120, 1));
    if (t->error || !then_dead) return;
    exchange(team, rank, then_dead);
    note(t, team, gcomp_sockets_team_regroup(team, 120, 1));
}

/* Do those who are not in `dead` have ranks in the old order, and know who is gone? before: the
   ranks of the beginning that were there before the last death. */
static void check_left(int world, unsigned before, unsigned dead)
{
    int left = 0, at = 0;
    for (int w = 0; w < world; w++) left += !(dead >> w & 1);
    for (int w = 0; w < world; w++) {
        int old = 0, lost = 0;
        if (dead >> w & 1) continue;
        CHECK(tell[w].error == 0 && tell[w].rank == at++ && tell[w].world == left);
        CHECK(fabsf(tell[w].sum - (float)((1 << left) - 1)) < 0.5f && tell[w].joined == 0);
        for (int other = 0, rank = 0; other < world; other++) {
            if (!(before >> other & 1)) continue;
            if (dead >> other & 1) CHECK(tell[w].gone[lost++] == old);
            else CHECK(tell[w].was[rank++] == old);
            old++;
        }
        CHECK(tell[w].gone_count == lost);
    }
}

static void test_whichever_worker_dies_the_others_go_on(void)
{
    then_dead = 0;
    for (int world = 2; world <= 4; world++)
        for (int victim = 0; victim < world; victim++) {
            choose_port();
            first_dead = 1u << victim;
            run(world, body_deaths);
            check_left(world, (1u << world) - 1, first_dead);
        }
}

static void test_two_die_at_once(void)
{
    then_dead = 0;
    for (int a = 0; a < 4; a++)
        for (int b = a + 1; b < 4; b++) {
            choose_port();
            first_dead = 1u << a | 1u << b;
            run(4, body_deaths);
            check_left(4, 15, first_dead);
        }
}

static void test_two_die_one_after_the_other(void)
{
    static const int pairs[][2] = {{0, 1}, {1, 0}, {3, 2}, {0, 3}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        choose_port();
        first_dead = 1u << pairs[i][0];
        then_dead = 1u << pairs[i][1];
        run(4, body_deaths);
        check_left(4, 15u & ~first_dead, first_dead | then_dead);
    }
}

/* One dies where the others regroup: before it calls, or while it waits for the host. */
static void body_dies_there(gcomp_sockets_team *team, int rank, told *t)
{
    exchange(team, rank, first_dead);
    if (then_dead >> rank & 1) raise(SIGKILL);
    note(t, team, gcomp_sockets_team_regroup(team, 120, 1));
}

static void test_one_dies_while_the_others_regroup(void)
{
    for (int second = 0; second < 4; second++) {
        if (second == 1) continue;
        choose_port();
        first_dead = 2;
        then_dead = 1u << second;
        run(4, body_dies_there);
        check_left(4, 15, first_dead | then_dead);
    }
}

/* ---- newcomers */

static void body_newcomer(gcomp_sockets_team *team, int rank, told *t)
{
    (void)rank;
    note(t, team, 0);
}

static int wanted; /* newcomers */

static void body_waits(gcomp_sockets_team *team, int rank, told *t)
{
    int waiting = 0;
    t->reached = 1;
    (void)rank;
    while (waiting < wanted)
        if (gcomp_sockets_team_asks(team, &waiting)) {
            t->error = -1;
            return;
        }
    note(t, team, gcomp_sockets_team_regroup(team, 120, 1));
}

static void join(int world, int newcomers)
{
    pid_t children[MOST];
    wanted = newcomers;
    choose_port();
    for (int w = 0; w < world; w++) children[w] = begin(w, world, body_waits);
    for (int w = world; w < world + newcomers; w++) children[w] = begin(w, 0, body_newcomer);
    for (int w = 0; w < world + newcomers; w++) waitpid(children[w], NULL, 0);
    for (int w = 0; w < world + newcomers; w++) {
        CHECK(tell[w].error == 0 && tell[w].world == world + newcomers);
        CHECK(tell[w].joined == newcomers && tell[w].gone_count == 0);
        CHECK(fabsf(tell[w].sum - (float)((1 << (world + newcomers)) - 1)) < 0.5f);
        CHECK(w >= world ? tell[w].rank >= world : tell[w].rank == w);
        for (int i = 0; i < world + newcomers; i++)
            CHECK(tell[w].was[i] == (i < world ? i : -1));
    }
}

static void test_newcomers_join(void)
{
    join(1, 1);
    join(3, 1);
    join(2, 3);
}

/* ---- what newcomers get */

static size_t rows_of_newcomer; /* of its tensor; the others have 8 */

static gcomp *object(gcomp_sockets_team *team, size_t rows)
{
    gcomp *gc = NULL;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    desc.comm = gcomp_sockets_comm(team->net);
    tensor.name = "w";
    tensor.rows = rows;
    tensor.cols = 8;
    tensor.codec = "powersgd:rank=2";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    return gc;
}

/* One step; t->data <- a digest of the mean. */
static void step(gcomp *gc, int rank, told *t)
{
    float grad[8 * 20];
    void *grads[1] = {grad};
    for (int i = 0; i < 8 * 20; i++) grad[i] = (float)((i * 37 + rank * 101 + 5 * (int)gcomp_step_number(gc)) % 23 - 11);
    if (gcomp_exchange(gc, grads, NULL)) t->error = -2;
    t->data = (int32_t)plain_crc(0, (const uint8_t *)grad, sizeof(float) * 8 * 8);
}

static void body_brings(gcomp_sockets_team *team, int rank, told *t)
{
    gcomp_comm comm;
    gcomp *gc = object(team, 8);
    for (int i = 0; i < 3; i++) step(gc, rank, t);
    body_waits(team, rank, t);
    comm = gcomp_sockets_comm(team->net);
    CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_OK);
    t->error = gcomp_sockets_team_bring(team, gc, 0);
    if (!t->error) step(gc, team->rank, t);
    gcomp_close(gc);
}

static void body_is_brought(gcomp_sockets_team *team, int rank, told *t)
{
    gcomp *gc = object(team, rows_of_newcomer);
    (void)rank;
    note(t, team, 0);
    t->error = gcomp_sockets_team_bring(team, gc, 1);
    t->reached = (int)gcomp_step_number(gc);
    if (!t->error) step(gc, team->rank, t);
    gcomp_close(gc);
}

static void bring(size_t rows)
{
    pid_t children[3];
    wanted = 1;
    rows_of_newcomer = rows;
    choose_port();
    for (int w = 0; w < 2; w++) children[w] = begin(w, 2, body_brings);
    children[2] = begin(2, 0, body_is_brought);
    for (int w = 0; w < 3; w++) waitpid(children[w], NULL, 0);
}

static void test_a_newcomer_gets_the_state_of_rank_0(void)
{
    bring(8);
    for (int w = 0; w < 3; w++) CHECK(tell[w].error == 0 && tell[w].data == tell[0].data);
    CHECK(tell[2].reached == 3);
}

/* Another tensor: the newcomer's call fails, and the next collective of the others. */
static void test_a_newcomer_with_other_tensors_ends_the_group(void)
{
    bring(20);
    CHECK(tell[2].error && tell[2].reached == 0);
    for (int w = 0; w < 2; w++) CHECK(tell[w].error);
}

/* Rank 0 dies; a newcomer finds the new rank 0 at the same address. */
static void body_dies_and_waits(gcomp_sockets_team *team, int rank, told *t)
{
    exchange(team, rank, 1);
    t->error = gcomp_sockets_team_regroup(team, 120, 1);
    if (!t->error) body_waits(team, rank, t);
}

static void test_a_newcomer_finds_the_rank_0_of_now(void)
{
    pid_t children[4];
    wanted = 1;
    choose_port();
    for (int w = 0; w < 3; w++) children[w] = begin(w, 3, body_dies_and_waits);
    waitpid(children[0], NULL, 0);
    children[3] = begin(3, 0, body_newcomer);
    for (int w = 1; w < 4; w++) waitpid(children[w], NULL, 0);
    for (int w = 1; w < 4; w++)
        CHECK(tell[w].error == 0 && tell[w].world == 3 && tell[w].rank == w - 1 &&
              tell[w].was[2] == -1);
}

/* One with another secret, and one of another job, are sent away; the team does not regroup. */
static void test_strangers_do_not_join(void)
{
    pid_t children[5];
    gcomp_sockets_desc right;
    wanted = 1;
    choose_port();
    for (int w = 0; w < 2; w++) children[w] = begin(w, 2, body_waits);
    right = asked;
    asked.secret = "another secret";
    children[2] = begin(2, 0, body_newcomer);
    asked = right;
    asked.job = 5;
    children[3] = begin(3, 0, body_newcomer);
    waitpid(children[2], NULL, 0);
    waitpid(children[3], NULL, 0);
    CHECK(tell[2].error == EACCES);
    CHECK(tell[3].error == ECONNRESET);
    asked = right;
    children[4] = begin(4, 0, body_newcomer);
    waitpid(children[0], NULL, 0);
    waitpid(children[1], NULL, 0);
    waitpid(children[4], NULL, 0);
    CHECK(tell[0].error == 0 && tell[0].world == 3 && tell[0].joined == 1);
    CHECK(tell[4].error == 0 && tell[4].rank == 2);
}

/* ---- errors */

static void test_who_finds_nobody_is_told(void)
{
    gcomp_sockets_team *team;
    gcomp_sockets_desc desc;
    choose_port();
    desc = asked;
    desc.rendezvous = 0.3;
    CHECK(gcomp_sockets_team_join(&team, &desc) == ETIMEDOUT && !team);
    desc.world = 2;
    CHECK(gcomp_sockets_team_start(&team, &desc) == ETIMEDOUT && !team);
    desc.world = 0;
    CHECK(gcomp_sockets_team_start(&team, &desc) == EINVAL && !team);
    desc.secret = "This secret is longer than a secret may be: it has more than 64 bytes.";
    CHECK(gcomp_sockets_team_join(&team, &desc) == EINVAL && !team);
    gcomp_sockets_team_close(NULL);
}

/* The first to be left alone wants two: nobody else comes. Then one suffices. */
static void body_too_few(gcomp_sockets_team *team, int rank, told *t)
{
    int waiting;
    exchange(team, rank, 1);
    t->reached = gcomp_sockets_team_regroup(team, 0, 1) == EINVAL &&
        gcomp_sockets_team_regroup(team, 1, 0) == EINVAL &&
        gcomp_sockets_team_regroup(team, 120, 2) == ETIMEDOUT && !team->net &&
        gcomp_sockets_team_asks(team, &waiting) == GCOMP_SOCKETS_FAILED && !waiting;
    note(t, team, gcomp_sockets_team_regroup(team, 120, 1));
}

static void test_too_few_are_an_error_and_may_try_again(void)
{
    choose_port();
    run(2, body_too_few);
    CHECK(tell[1].reached == 1 && tell[1].error == 0 && tell[1].world == 1 && tell[1].rank == 0);
}

/* Rank 1 lives and does not come: the host goes on without it when its time is over. Then rank 1
   is sent away. */
static void body_late(gcomp_sockets_team *team, int rank, told *t)
{
    if (rank == 1) {
        char word;
        gcomp_sockets_barrier(team->net); /* fails */
        while (((volatile told *)tell)[0].reached == 0) poll(NULL, 0, 10);
        t->error = gcomp_sockets_team_regroup(team, 120, 1);
        tell[0].reached = 2;
        (void)word;
        return;
    }
    note(t, team, gcomp_sockets_team_regroup(team, 0.5, 1));
    t->reached = 1;
    while (((volatile told *)tell)[0].reached == 1) {
        int waiting;
        if (gcomp_sockets_team_asks(team, &waiting)) break;
    }
}

static void test_one_that_comes_too_late_is_sent_away(void)
{
    choose_port();
    run(2, body_late);
    CHECK(tell[0].error == 0 && tell[0].world == 1 && tell[0].gone_count == 1);
    CHECK(tell[1].error == ECONNRESET);
}

static int stop_now(void *user)
{
    return *(int *)user;
}

static void test_a_team_that_waits_asks_if_it_shall_end(void)
{
    gcomp_sockets_team *team;
    gcomp_sockets_desc desc;
    int stop = 0, listener;
    choose_port();
    desc = asked;
    desc.world = 1;
    desc.stop = stop_now;
    desc.stop_user = &stop;
    CHECK(gcomp_sockets_team_start(&team, &desc) == 0 && team);
    gcomp_sockets_team_close(team);
    listener = gcomp_sockets_listen("127.0.0.1", port); /* it says nothing */
    stop = 1;
    CHECK(gcomp_sockets_team_join(&team, &desc) == ECANCELED && !team);
    close(listener);
}

int main(void)
{
    tell = (told *)mmap(NULL, MOST * sizeof *tell, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    RUN(test_whichever_worker_dies_the_others_go_on);
    RUN(test_two_die_at_once);
    RUN(test_two_die_one_after_the_other);
    RUN(test_one_dies_while_the_others_regroup);
    RUN(test_newcomers_join);
    RUN(test_a_newcomer_gets_the_state_of_rank_0);
    RUN(test_a_newcomer_with_other_tensors_ends_the_group);
    RUN(test_a_newcomer_finds_the_rank_0_of_now);
    RUN(test_strangers_do_not_join);
    RUN(test_who_finds_nobody_is_told);
    RUN(test_too_few_are_an_error_and_may_try_again);
    RUN(test_one_that_comes_too_late_is_sent_away);
    RUN(test_a_team_that_waits_asks_if_it_shall_end);
    return test_end();
}
