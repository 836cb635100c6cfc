/* The transport examples/gcomp_sockets.h: processes on the loopback. Results, the same bits as over threads, errors on all when a
   worker dies or is silent, and strangers at the door. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif

#define GCOMP_SOCKETS_PIECE ((size_t)256) /* so that sums take many pieces */
#define GCOMP_SOCKETS_AT_ONCE ((size_t)100) /* and some of them turns */
#include "../examples/gcomp_sockets.h"
#include "test.h"
#include "training.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 4, FORTY = 40 };

/* What a worker, a process, tells the test. */
typedef struct told {
    int opened;  /* what open returned; -1: not reached */
    int status;  /* of the body */
    int wrong;   /* failed checks */
    int steps;   /* committed before the failure */
    double took; /* seconds from the failure of another to the error here */
    uint64_t digest;
} told;

static told *tell; /* [MOST], shared with the processes */
static char port[8];

/* How a worker of the tests about failures ends. */
enum {
    KILLED_BEFORE_FRAMES,
    KILLED_IN_FRAMES,
    KILLED_BEFORE_PAYLOADS,
    KILLED_AFTER_MEETING,
    KILLED_BEFORE_PARTING,
    SILENT,
    WAYS
};
static int victim, way;
static double limit;

static void choose_port(void)
{
    static int number;
    int fd = -1;
    if (!number) number = 20000 + (int)(getpid() % 100) * 100; /* two that run at once do not meet */
    while (fd < 0) {
        snprintf(port, sizeof port, "%d", number++);
        fd = gcomp_sockets_listen("127.0.0.1", port, 1);
    }
    close(fd);
}

/* One worker as a process. */
static pid_t begin(int rank, int world, uint64_t job, double timeout, int (*body)(gcomp_sockets *, told *))
{
    pid_t child;
    tell[rank].opened = -1;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        gcomp_sockets *s;
        told *t = &tell[rank];
        t->opened = gcomp_sockets_open(&s, rank, world, "127.0.0.1", port, job, timeout);
        if (!t->opened) t->status = body(s, t);
        gcomp_sockets_close(t->opened ? NULL : s);
        _exit(0);
    }
    return child;
}

/* All workers. Returns 1 if those but the victim ended by themselves. */
static int run(int world, double timeout, int (*body)(gcomp_sockets *, told *))
{
    pid_t children[MOST];
    int good = 1, how;
    memset(tell, 0, MOST * sizeof *tell);
    choose_port();
    for (int w = 0; w < world; w++) children[w] = begin(w, world, 7, timeout, body);
    for (int w = 0; w < world; w++) {
        if (w == victim) continue;
        good &= waitpid(children[w], &how, 0) == children[w] && WIFEXITED(how) && WEXITSTATUS(how) == 0 && tell[w].opened == 0;
    }
    if (victim >= 0) {
        kill(children[victim], SIGKILL);
        waitpid(children[victim], &how, 0);
    }
    return good;
}

static int all_are(int world, int status)
{
    int good = 1;
    for (int w = 0; w < world; w++) good &= w == victim || (tell[w].status == status && tell[w].wrong == 0);
    return good;
}

/* ---- collectives */

static int body_sums(gcomp_sockets *s, told *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 64, 65, 1000};
    static float data[1000], most[1000];
    static int8_t a[1000];
    static int16_t b[1000];
    static int32_t c[1000];
    gcomp_comm comm = gcomp_sockets_comm(s);
    int status = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++) {
        size_t count = counts[k];
        for (size_t i = 0; i < count; i++) {
            data[i] = most[i] = value(s->rank, i);
            a[i] = (int8_t)((int)i % 25 - s->rank);
            b[i] = (int16_t)((int)i * 7 - 1000 * s->rank);
            c[i] = (int32_t)i * 500000 - s->rank;
        }
        status = comm.allreduce(s, data, count, GCOMP_F32);
        if (!status) status = comm.allreduce_max(s, most, count);
        if (!status) status = comm.allreduce(s, a, count, GCOMP_I8);
        if (!status) status = comm.allreduce(s, b, count, GCOMP_I16);
        if (!status) status = comm.allreduce(s, c, count, GCOMP_I32);
        for (size_t i = 0; i < count; i++) {
            float sum = value(0, i), largest = sum;
            int ranks = s->world * (s->world - 1) / 2;
            for (int r = 1; r < s->world; r++) {
                float x = value(r, i);
                sum += x;
                largest = x > largest ? x : largest;
            }
            t->wrong += memcmp(&sum, &data[i], 4) != 0 || memcmp(&largest, &most[i], 4) != 0;
            t->wrong += a[i] != (int)i % 25 * s->world - ranks || b[i] != (int)i * 7 * s->world - 1000 * ranks;
            t->wrong += c[i] != (int32_t)i * 500000 * s->world - ranks;
        }
    }
    t->wrong += comm.allreduce(s, data, 4, GCOMP_F16) != GCOMP_SOCKETS_MISMATCH;
    return status ? status : gcomp_sockets_barrier(s);
}

static int body_gathers(gcomp_sockets *s, told *t)
{
    unsigned char mine[24], all[MOST * 32], send[MOST * 160], recv[MOST * 160];
    size_t bytes[MOST], sent[MOST], awaited[MOST], from = 0, to = 0, world = (size_t)s->world;
    int status;
    memset(mine, s->rank + 1, sizeof mine);
    memset(all, 0xee, sizeof all);
    status = gcomp_sockets_allgather(s, mine, all, 24);
    for (size_t i = 0; i < sizeof all; i++) t->wrong += all[i] != (i < world * 24 ? i / 24 + 1 : 0xee);
    memset(all, 0xee, sizeof all);
    for (size_t r = 0; r < world; r++) bytes[r] = r * 3;
    if (!status) status = gcomp_sockets_allgatherv(s, mine, all, bytes, 32);
    for (size_t i = 0; i < sizeof all; i++) t->wrong += all[i] != (i / 32 < world && i % 32 < bytes[i / 32] ? i / 32 + 1 : 0xee);
    for (int r = 0; r < s->world; r++) { /* some of no bytes, some that take turns */
        sent[r] = (size_t)((2 * s->rank + r) % 5 * 40);
        awaited[r] = (size_t)((2 * r + s->rank) % 5 * 40);
        memset(send + from, 16 * s->rank + r, sent[r]);
        from += sent[r];
    }
    if (!status) status = gcomp_sockets_alltoallv(s, send, sent, recv, awaited);
    for (int r = 0; r < s->world; r++)
        for (size_t i = 0; i < awaited[r]; i++, to++) t->wrong += recv[to] != 16 * r + s->rank;
    for (int root = 0; root < s->world && !status; root++) {
        int data[3] = {s->rank, s->rank, s->rank};
        status = gcomp_sockets_broadcast(s, data, sizeof data, root);
        t->wrong += data[0] != root || data[2] != root;
    }
    return status;
}

/* Two megabytes each way: more than the kernel's buffers hold, so that all must send and receive at once. */
static int body_large(gcomp_sockets *s, told *t)
{
    static unsigned char mine[2000000], all[MOST * 2000000];
    memset(mine, s->rank + 1, sizeof mine);
    if (gcomp_sockets_allgather(s, mine, all, sizeof mine)) return 1;
    for (size_t i = 0; i < sizeof mine * (size_t)s->world; i += 997) t->wrong += all[i] != i / sizeof mine + 1;
    return 0;
}

static int body_disagree(gcomp_sockets *s, told *t)
{
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    unsigned char mine[8] = {0}, all[MOST * 8];
    size_t list[MOST] = {1, 2, 3, 4}, longer[MOST] = {1, 9, 3, 4};
    list[0] += s->rank == 1;
    t->wrong += gcomp_sockets_allreduce(s, data, s->rank == 2 ? 7 : 8, GCOMP_F32) != GCOMP_SOCKETS_MISMATCH;
    for (int i = 0; i < 8; i++) t->wrong += data[i] < 1 || data[i] > 1; /* nobody has written */
    t->wrong += (s->rank ? gcomp_sockets_allreduce_max(s, data, 8) : gcomp_sockets_allreduce(s, data, 8, GCOMP_F32))
                != GCOMP_SOCKETS_MISMATCH;
    t->wrong += (s->rank ? gcomp_sockets_allgather(s, mine, all, 8) : gcomp_sockets_barrier(s)) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, list, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, longer, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->rank ? 0 : 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->world) != GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_barrier(s); /* the group can go on */
}

static void test_collectives_of_1_to_4_workers(void)
{
    for (int world = 1; world <= MOST; world++) {
        CHECK(run(world, 30, body_sums) && all_are(world, 0));
        CHECK(run(world, 30, body_gathers) && all_are(world, 0));
    }
    CHECK(run(3, 30, body_large) && all_are(3, 0));
}

static void test_workers_that_disagree_are_told_and_go_on(void) { CHECK(run(3, 30, body_disagree) && all_are(3, 0)); }

/* Two workers that do not agree about a size: an error on all, and the group is over. */
static int body_pair(gcomp_sockets *s, told *t)
{
    unsigned char send[12] = {0}, recv[12];
    size_t sent[MOST] = {3, 3, 3, 3}, awaited[MOST] = {3, 3, 3, 3};
    sent[2] -= s->rank == 0;
    t->wrong += gcomp_sockets_alltoallv(s, send, sent, recv, awaited) != GCOMP_SOCKETS_FAILED;
    return gcomp_sockets_barrier(s);
}

static int body_gives_up(gcomp_sockets *s, told *t)
{
    if (s->rank == 1) gcomp_sockets_fail(s);
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED;
    return gcomp_sockets_barrier(s);
}

static void test_one_that_gives_up_ends_the_group_at_once(void)
{
    double from = gcomp_sockets_now();
    CHECK(run(4, 60, body_pair) && all_are(4, GCOMP_SOCKETS_FAILED));
    CHECK(run(4, 60, body_gives_up) && all_are(4, GCOMP_SOCKETS_FAILED));
    CHECK(gcomp_sockets_now() - from < 30);
}

/* ---- the same training as over threads */

static int body_train(gcomp_sockets *s, told *t)
{
    gcomp_comm comm = gcomp_sockets_comm(s);
    return train(&comm, &t->digest);
}

static void test_training_ends_with_the_bits_of_threads(void)
{
    for (int world = 1; world <= MOST; world++)
        for (size_t c = 0; c < TRAINED; c++) {
            uint64_t digest;
            codec = trained[c];
            digest = train_by_threads(world);
            CHECK(digest != 0);
            CHECK(run(world, 30, body_train) && all_are(world, 0));
            for (int w = 0; w < world; w++) CHECK(tell[w].digest == digest);
        }
}

/* ---- a worker dies */

static int gathers; /* of the step under way, on the victim */

static void end_here(void) { raise(way == SILENT ? SIGSTOP : SIGKILL); }

/* The gather of the frames, then that of the payloads, up to where this worker ends. */
static int dying_gather(void *user, const void *mine, void *all, size_t bytes)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    int frames = gathers++ == 0;
    if (way == KILLED_BEFORE_FRAMES || (way == KILLED_BEFORE_PAYLOADS && !frames) || way == SILENT) end_here();
    if (way == KILLED_IN_FRAMES || !frames) {
        if (gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHER, 0, bytes, 0)) return 1;
        if (way == KILLED_IN_FRAMES || way == KILLED_AFTER_MEETING) end_here();
        gcomp_sockets_flow_all(s, mine, 0, bytes, all, bytes, bytes);
        if (gcomp_sockets_move(s)) return 1;
        if (way == KILLED_BEFORE_PARTING) end_here();
    }
    return gcomp_sockets_allgather(user, mine, all, bytes);
}

/* The survivors' error comes in step 2, with everything as before that step; then they go on without the victim. */
static int body_dies(gcomp_sockets *s, told *t)
{
    static model m, before;
    static float residual[ROWS * COLS];
    gcomp_comm comm = gcomp_sockets_comm(s), wrapped;
    gcomp_sockets *fewer = NULL;
    gcomp_result result;
    double from;
    char next[16];
    comm.allgatherv = NULL;
    wrapped = comm;
    result = open_model(&m, &wrapped);
    for (int step = 0; result == GCOMP_OK && step < 9; step++) {
        make_gradients(&m, s->rank, step);
        before = m;
        memcpy(residual, gcomp_residual(m.gc, 0), sizeof residual);
        from = gcomp_sockets_now();
        if (step == 2 && s->rank == victim) {
            /* the object's callbacks are copied: this worker drives the step itself */
            gcomp_request request;
            t->wrong += gcomp_step_begin(m.gc, NULL) != GCOMP_OK;
            for (size_t i = 0; i < 2; i++) t->wrong += gcomp_step_ready(m.gc, i, m.grads[i]) != GCOMP_OK;
            for (;;) {
                int status = 0;
                if (gcomp_step_next(m.gc, &request) != GCOMP_OK || request.kind == GCOMP_DONE) break;
                if (request.kind == GCOMP_ALLGATHER) status = dying_gather(s, request.send, request.recv, request.stride);
                if (request.kind == GCOMP_ALLREDUCE)
                    status = gcomp_sockets_allreduce(s, request.recv, request.count, request.dtype);
                if (gcomp_step_done(m.gc, request.id, status) != GCOMP_OK) break;
            }
            _exit(3); /* not reached */
        }
        result = gcomp_exchange(m.gc, m.grads, NULL);
        t->took = gcomp_sockets_now() - from;
        t->steps += result == GCOMP_OK;
    }
    t->wrong += memcmp(&m, &before, sizeof m) != 0;
    t->wrong += memcmp(residual, gcomp_residual(m.gc, 0), sizeof residual) != 0;
    t->wrong += s->failed != 1;
    snprintf(next, sizeof next, "%d", atoi(port) - 10000);
    t->wrong += gcomp_sockets_open(&fewer, s->rank - (s->rank > victim), s->world - 1, "127.0.0.1", next, 8, 30) != 0;
    if (fewer) {
        comm = gcomp_sockets_comm(fewer);
        t->wrong += gcomp_regroup(m.gc, &comm) != GCOMP_OK || gcomp_exchange(m.gc, m.grads, NULL) != GCOMP_OK;
        memcpy(m.weight, m.weight_gradient, sizeof m.weight);
        memcpy(m.bias, m.bias_gradient, sizeof m.bias);
        t->digest = digest_of(&m);
    }
    gcomp_close(m.gc);
    gcomp_sockets_close(fewer);
    return (int)result;
}

static void test_a_worker_that_dies_is_an_error_on_all_others(void)
{
    codec = "sign";
    for (way = 0; way < WAYS; way++)
        for (victim = way == SILENT ? 3 : 0; victim < 4; victim++) {
            limit = way == SILENT ? 1 : 30;
            CHECK(run(4, limit, body_dies) && all_are(4, GCOMP_CALLBACK_FAILED));
            for (int w = 0; w < 4; w++) {
                if (w == victim) continue;
                CHECK(tell[w].steps == 2);
                CHECK(tell[w].digest != 0 && tell[w].digest == tell[victim == 0].digest); /* of a step without the victim */
                CHECK(way == SILENT ? tell[w].took > 0.9 && tell[w].took < 20 : tell[w].took < 15);
            }
        }
    victim = -1;
}

/* ---- connecting */

static int body_barrier(gcomp_sockets *s, told *t)
{
    (void)t;
    return gcomp_sockets_barrier(s);
}

static int knock(void)
{
    gcomp_sockets_place to;
    memset(&to, 0, sizeof to);
    memcpy(to.host, "127.0.0.1", 10);
    memcpy(to.port, port, sizeof port);
    return gcomp_sockets_connect(&to, 0, gcomp_sockets_now() + 20);
}

/* Says something to rank 0. Returns the connection. */
static int say(const void *words, size_t bytes)
{
    int fd = knock();
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    flow.out = (const unsigned char *)words;
    flow.out_left = bytes;
    CHECK(fd >= 0 && gcomp_sockets_all_of(fd, flow, gcomp_sockets_now() + 20) == 0);
    return fd;
}

/* Does rank 0 close this connection? */
static int sent_away(int fd)
{
    char word;
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    flow.in = (unsigned char *)&word;
    flow.in_left = 1;
    return gcomp_sockets_all_of(fd, flow, gcomp_sockets_now() + 20) == ECONNRESET;
}

static void test_strangers_at_the_door_are_sent_away(void)
{
    gcomp_sockets_hello right, wrong;
    unsigned char garbage[200];
    int silent[FORTY], fd, how;
    pid_t children[3];
    memset(tell, 0, MOST * sizeof *tell);
    choose_port();
    children[0] = begin(0, 3, 7, 30, body_barrier);
    memset(&right, 0, sizeof right);
    memcpy(right.magic, "GCOMPSK1", 8);
    right.job = 7;
    right.order = 0x01020304u;
    right.world = 3;
    right.rank = 1;
    right.port = 9;
    memset(garbage, 'G', sizeof garbage);
    fd = say(garbage, sizeof garbage);
    CHECK(sent_away(fd));
    close(fd);
    close(say(&right, 10)); /* hangs up in the middle of a word */
    for (int field = 0; field < 8; field++) {
        wrong = right;
        if (field == 0) wrong.magic[7] = '2';
        if (field == 1) wrong.job = 8;
        if (field == 2) wrong.order = 0x04030201u;
        if (field == 3) wrong.world = 4;
        if (field == 4) wrong.rank = 3;
        if (field == 5) wrong.rank = 0;
        if (field == 6) wrong.rank = 0xffffffffu;
        if (field == 7) wrong.port = 65536;
        fd = say(&wrong, sizeof wrong);
        CHECK(sent_away(fd));
        close(fd);
    }
    for (int i = 0; i < FORTY; i++) silent[i] = say(&right, i % 2 ? 31 : 0); /* more than may wait, and say nothing more */
    children[1] = begin(1, 3, 7, 30, body_barrier);
    children[2] = begin(2, 3, 7, 30, body_barrier);
    for (int w = 0; w < 3; w++) {
        waitpid(children[w], &how, 0);
        CHECK(WIFEXITED(how) && tell[w].opened == 0 && tell[w].status == 0);
    }
    for (int i = 0; i < FORTY; i++) close(silent[i]);
    memset(tell, 0, MOST * sizeof *tell);
    choose_port();
    children[0] = begin(0, 3, 7, 30, body_barrier);
    fd = say(&right, sizeof right);
    children[1] = begin(1, 3, 7, 30, body_barrier); /* a second worker of the same rank */
    waitpid(children[1], &how, 0);
    CHECK(tell[1].opened == ECONNRESET);
    close(fd);
    kill(children[0], SIGKILL);
    waitpid(children[0], &how, 0);
}

static void test_open_says_what_is_wrong(void)
{
    gcomp_sockets *s = NULL;
    pid_t child;
    int how, other;
    char here[8];
    choose_port();
    CHECK(gcomp_sockets_open(&s, 0, 0, "127.0.0.1", port, 1, 1) == EINVAL && !s);
    CHECK(gcomp_sockets_open(&s, 2, 2, "127.0.0.1", port, 1, 1) == EINVAL && !s);
    CHECK(gcomp_sockets_open(&s, 0, 2, "127.0.0.1", port, 1, 0) == EINVAL && !s);
    CHECK(gcomp_sockets_open(&s, 0, 2, "127.0.0.1", "123456789", 1, 1) == EINVAL && !s);
    CHECK(gcomp_sockets_open(&s, 0, 2, "127.0.0.1", port, 1, 0.1) == ETIMEDOUT && !s); /* nobody comes */
    CHECK(gcomp_sockets_open(&s, 1, 2, "127.0.0.1", port, 1, 0.1) == ETIMEDOUT && !s); /* nobody is there */
    CHECK(gcomp_sockets_open(&s, 0, 2, "no.such.host.invalid", port, 1, 0.1) == EADDRNOTAVAIL && !s);
    other = gcomp_sockets_listen("127.0.0.1", port, 4);
    CHECK(gcomp_sockets_open(&s, 0, 2, "127.0.0.1", port, 1, 0.1) == EADDRINUSE && !s);
    CHECK(gcomp_sockets_open(&s, 1, 2, "127.0.0.1", port, 1, 0.1) == ETIMEDOUT && !s); /* it listens and says nothing */
    memcpy(here, port, sizeof here);
    fflush(stdout);
    child = fork();
    if (child == 0) { /* something else listens there, and answers */
        struct pollfd p = {other, POLLIN, 0};
        char words[4096];
        memset(words, 'x', sizeof words);
        for (int i = 0; i < 2; i++) { /* one is the connection of above */
            int fd;
            poll(&p, 1, 20000);
            fd = accept(other, NULL, NULL);
            if (send(fd, words, sizeof words, MSG_NOSIGNAL) < 0) continue;
            poll(NULL, 0, 300);
        }
        _exit(0);
    }
    CHECK(gcomp_sockets_open(&s, 1, 2, "127.0.0.1", here, 1, 10) == EPROTO && !s);
    kill(child, SIGKILL);
    waitpid(child, &how, 0);
    close(other);
    memset(tell, 0, MOST * sizeof *tell);
    choose_port();
    child = begin(0, 2, 7, 1, body_barrier);
    CHECK(gcomp_sockets_open(&s, 1, 2, "127.0.0.1", port, 6, 10) == ECONNRESET && !s); /* another job */
    CHECK(gcomp_sockets_open(&s, 1, 3, "127.0.0.1", port, 7, 10) == ECONNRESET && !s); /* another world */
    waitpid(child, &how, 0);
    CHECK(tell[0].opened == ETIMEDOUT);
    gcomp_sockets_close(NULL);
    CHECK(gcomp_sockets_open(&s, 0, 1, "127.0.0.1", port, 1, 1) == 0 && s); /* one alone needs nobody */
    CHECK(gcomp_sockets_barrier(s) == 0);
    gcomp_sockets_close(s);
}

int main(void)
{
    tell = (told *)mmap(NULL, MOST * sizeof *tell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    victim = -1;
    RUN(test_collectives_of_1_to_4_workers);
    RUN(test_workers_that_disagree_are_told_and_go_on);
    RUN(test_one_that_gives_up_ends_the_group_at_once);
    RUN(test_training_ends_with_the_bits_of_threads);
    RUN(test_a_worker_that_dies_is_an_error_on_all_others);
    RUN(test_strangers_at_the_door_are_sent_away);
    RUN(test_open_says_what_is_wrong);
    return test_end();
}
