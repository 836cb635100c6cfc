/* Proves of the transport examples/adapters/gcomp_sockets.h, between processes on the loopback: its results
   are right; training has the bits that it has over threads; all workers get an error when one
   dies or is silent; there may be many workers; and strangers without the secret stay out. With
   the argument "many": 64 workers open 20 times, also beside busy processes, and beside strangers.
   Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif

#include <netdb.h>
#include <stdio.h>
#include <string.h>

/* A name with three addresses: where nobody listens, where a stranger may, and the loopback. */
static int find_addresses(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    struct addrinfo **end = found;
    if (strcmp(host, "three.addresses") != 0) return getaddrinfo(host, port, hints, found);
    for (int i = 3; i > 0; i--) {
        char number[16];
        snprintf(number, sizeof number, "127.0.0.%d", i);
        if (getaddrinfo(number, port, hints, end) != 0) return EAI_FAIL;
        end = &(*end)->ai_next; /* one address of one kind of socket: a list of one */
    }
    return 0;
}
#define getaddrinfo find_addresses

#include <sys/socket.h>

/* Bytes that this process has sent. */
static size_t bytes_sent;
static ssize_t send_counted(int fd, const void *bytes, size_t count, int flags)
{
    const ssize_t sent = send(fd, bytes, count, flags);
    if (sent > 0) __atomic_fetch_add(&bytes_sent, (size_t)sent, __ATOMIC_RELAXED);
    return sent;
}
#define send(fd, bytes, count, flags) send_counted(fd, bytes, count, flags)

#define GCOMP_SOCKETS_PIECE ((size_t)256) /* so that sums take many pieces */
#define GCOMP_SOCKETS_AT_ONCE ((size_t)100) /* and some of them turns */
#define GCOMP_SOCKETS_GUESTS 8 /* so that strangers take all places */
static double patience = 20; /* so that no test waits for it unseen */
#define GCOMP_SOCKETS_PATIENCE patience
#include "gcomp_sockets.h"
#include "gcomp_try.h"
#undef send
#include "halves.h"
#include "test.h"
#include "training.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST = 4, FORTY = 40, MANY = 64 };

/* What a worker, a process, tells the test. */
typedef struct told {
    int opened;  /* what open returned; -1: not reached */
    int status;  /* of the body */
    int wrong;   /* failed checks */
    int steps;   /* committed before the failure */
    double took; /* seconds from the failure of another to the error here */
    uint64_t digest;
    int lost; /* 1 + the worker that is lost, after an error */
    char why[80];
} told;

static told *tell; /* [MANY], shared with the processes */
static char port[8];
static gcomp_sockets_desc asked; /* but for rank and world: what workers open with */

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
        fd = gcomp_sockets_listen("127.0.0.1", port);
    }
    close(fd);
    memset(&asked, 0, sizeof asked);
    asked.port = port;
    asked.job = 7;
    asked.rendezvous = 30;
    asked.silence = 30;
}

static int open_as(gcomp_sockets **s, int rank, int world)
{
    gcomp_sockets_desc desc = asked;
    desc.rank = rank;
    desc.world = world;
    if (rank % 2 && !desc.secret && desc.rendezvous == desc.silence)
        return gcomp_sockets_open(s, rank, world, desc.host, desc.port, desc.job, desc.silence);
    return gcomp_sockets_start(s, &desc);
}

/* One worker as a process. */
static pid_t begin(int rank, int world, int (*body)(gcomp_sockets *, told *))
{
    pid_t child;
    tell[rank].opened = -1;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        gcomp_sockets *s;
        told *t = &tell[rank];
        t->opened = open_as(&s, rank, world);
        if (!t->opened) t->status = body(s, t);
        gcomp_sockets_close(t->opened ? NULL : s);
        _exit(0);
    }
    return child;
}

/* All workers as asked. Returns 1 if those but the victim ended by themselves. */
static int run_asked(int world, int (*body)(gcomp_sockets *, told *))
{
    pid_t children[MANY];
    int good = 1, how;
    memset(tell, 0, MANY * sizeof *tell);
    for (int w = 0; w < world; w++) children[w] = begin(w, world, body);
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

static int run(int world, double silence, int (*body)(gcomp_sockets *, told *))
{
    choose_port();
    asked.silence = silence;
    return run_asked(world, body);
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
    t->wrong += comm.allreduce(s, data, 4, GCOMP_U8) != GCOMP_SOCKETS_MISMATCH;
    return status ? status : gcomp_sockets_barrier(s);
}

/* Sums of fp16 and bf16: in float32, in rank order, rounded once. */
static int body_halves(gcomp_sockets *s, told *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 65, 127, 1000, 1999};
    gcomp_comm comm = gcomp_sockets_comm(s);
    int status = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++)
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16 && !status; dtype++)
            t->wrong += halves_are_wrong(&comm, counts[k], (gcomp_dtype)dtype, &status) != 0;
    return status ? status : gcomp_sockets_barrier(s);
}

/* A worker sends 2 (W - 1) / W of the data, of 2 bytes an element, beside what all collectives
   send: 32 bytes to each other worker in the meeting; a byte to rank 0, and back, in the parting. */
static int body_bytes(gcomp_sockets *s, told *t)
{
    static uint16_t data[1200]; /* of each shard as many elements, for 1 to 4 workers */
    gcomp_comm comm = gcomp_sockets_comm(s);
    const size_t world = (size_t)s->world, others = world - 1;
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
        const size_t before = bytes_sent;
        const int status = comm.allreduce(s, data, 1200, (gcomp_dtype)dtype);
        if (status) return status;
        t->wrong += bytes_sent - before !=
                    2 * others * (sizeof data / world) + others * sizeof(gcomp_sockets_part) +
                        (s->rank ? 1 : others);
    }
    return gcomp_sockets_barrier(s);
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

/* Two megabytes each way: more than the kernel's buffers hold, so that all must send and receive
   at once. */
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
    t->wrong += gcomp_sockets_allreduce(s, data, 8, s->rank ? GCOMP_F16 : GCOMP_BF16) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += (s->rank ? gcomp_sockets_allgather(s, mine, all, 8) : gcomp_sockets_barrier(s)) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, list, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, longer, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->rank ? 0 : 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->world) != GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_barrier(s); /* the group can go on */
}

static int body_try(gcomp_sockets *s, told *t)
{
    const gcomp_comm comm = gcomp_sockets_comm(s);
    char why[200];
    if (gcomp_try(&comm, why, sizeof why)) printf("# %s\n", why), t->wrong++;
    return 0;
}

static void test_callbacks_do_what_is_asked_of_them(void)
{
    for (int world = 1; world <= MOST; world++) CHECK(run(world, 30, body_try) && all_are(world, 0));
}

static void test_collectives_of_1_to_4_workers_are_right(void)
{
    for (int world = 1; world <= MOST; world++) {
        CHECK(run(world, 30, body_sums) && all_are(world, 0));
        CHECK(run(world, 30, body_gathers) && all_are(world, 0));
        CHECK(run(world, 30, body_halves) && all_are(world, 0));
        CHECK(run(world, 30, body_bytes) && all_are(world, 0));
    }
    CHECK(run(3, 30, body_large) && all_are(3, 0));
}

static void test_workers_that_disagree_are_told_and_go_on(void) { CHECK(run(3, 30, body_disagree) && all_are(3, 0)); }

/* Two workers do not agree about a size: all get an error, and the group is over. */
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

/* ---- messages between two workers */

/* All send to all, more than the kernel's buffers hold, and then receive. */
static int body_messages(gcomp_sockets *s, told *t)
{
    static const size_t sizes[] = {0, 1, 15, 4096, 1500000};
    static unsigned char data[1500000];
    size_t bytes = 9;
    double from;
    const int next = (s->rank + 1) % s->world;
    t->wrong += gcomp_sockets_receive_from(s, next, data, sizeof data, &bytes, 0) != GCOMP_SOCKETS_NOTHING;
    if (gcomp_sockets_barrier(s)) return 1; /* nobody has sent before all have looked */
    for (size_t k = 0; k < 5; k++)
        for (int to = 0; to < s->world; to++) {
            memset(data, s->rank * 16 + to * 4 + (int)k % 4, sizes[k]);
            if (to != s->rank) t->wrong += gcomp_sockets_send_to(s, to, data, sizes[k]) != 0;
        }
    for (int by = s->world - 1; by >= 0; by--)
        for (size_t k = 0; k < 5 && by != s->rank; k++) {
            t->wrong += gcomp_sockets_receive_from(s, by, data, sizes[k], &bytes, 30) != 0 || bytes != sizes[k];
            for (size_t i = 0; i < bytes; i++) t->wrong += data[i] != by * 16 + s->rank * 4 + (int)k % 4;
        }
    from = gcomp_sockets_now();
    t->wrong += gcomp_sockets_receive_from(s, next, data, 1, &bytes, 0.05) != GCOMP_SOCKETS_NOTHING;
    t->wrong += gcomp_sockets_now() - from < 0.049;
    if (gcomp_sockets_barrier(s)) return 1;
    t->wrong += gcomp_sockets_send_to(s, next, data, 10) != 0; /* longer than there is room for: dropped */
    data[0] = 77;
    t->wrong += gcomp_sockets_receive_from(s, (s->rank + s->world - 1) % s->world, data, 9, &bytes, 30) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += bytes != 10 || data[0] != 77;
    t->wrong += gcomp_sockets_send_to(s, s->world, data, 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_send_to(s, s->rank, data, 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_receive_from(s, -1, data, 1, &bytes, 0) != GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_barrier(s); /* collectives go on */
}

/* A collective that some have begun does not disturb messages of others. */
static int body_messages_beside_a_barrier(gcomp_sockets *s, told *t)
{
    unsigned char data[4] = {1, 2, 3, 4};
    size_t bytes;
    if (s->rank == 1) {
        poll(NULL, 0, 50); /* worker 2 waits in the barrier */
        t->wrong += gcomp_sockets_send_to(s, 0, data, 4) != 0;
    }
    if (s->rank == 0) t->wrong += gcomp_sockets_receive_from(s, 1, data, 4, &bytes, 30) != 0 || bytes != 4;
    return gcomp_sockets_barrier(s);
}

/* Worker 3 dies in the midst of a message to worker 0, after one to worker 1. */
static int body_dies_in_a_message(gcomp_sockets *s, told *t)
{
    static unsigned char data[100];
    const gcomp_sockets_head head = {GCOMP_SOCKETS_MESSAGE, 0, sizeof data};
    double from = gcomp_sockets_now();
    size_t bytes;
    if (s->rank == 3) {
        gcomp_sockets_send_to(s, 1, data, 50);
        if (send(s->peers[0], &head, sizeof head, MSG_NOSIGNAL) < 0) _exit(1);
        if (send(s->peers[0], data, 40, MSG_NOSIGNAL) < 0) _exit(1);
        raise(SIGKILL);
    }
    if (s->rank == 1) t->wrong += gcomp_sockets_receive_from(s, 3, data, 100, &bytes, 30) != 0 || bytes != 50;
    t->wrong += gcomp_sockets_receive_from(s, 3, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    t->wrong += gcomp_sockets_send_to(s, 3, data, 100) != GCOMP_SOCKETS_FAILED;
    for (int w = 0; w < 3; w++)
        if (w != s->rank) t->wrong += gcomp_sockets_send_to(s, w, data, 100) != 0;
    for (int w = 0; w < 3; w++)
        if (w != s->rank) t->wrong += gcomp_sockets_receive_from(s, w, data, 100, &bytes, 30) != 0 || bytes != 100;
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED || gcomp_sockets_now() - from > 20;
    return 0;
}

/* Worker 1 stops in the midst of a message: silence ends its connection, and no other one. And a
   length that nobody sends. */
static int body_silent_in_a_message(gcomp_sockets *s, told *t)
{
    unsigned char data[100];
    const gcomp_sockets_head head = {GCOMP_SOCKETS_MESSAGE, 0, s->rank == 1 ? 100 : UINT64_MAX};
    size_t bytes;
    if (s->rank) {
        t->wrong += send(s->peers[0], &head, sizeof head, MSG_NOSIGNAL) != sizeof head;
        t->wrong += gcomp_sockets_receive_from(s, 0, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
        return 0;
    }
    t->wrong += gcomp_sockets_receive_from(s, 2, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    t->wrong += gcomp_sockets_receive_from(s, 1, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    return 0;
}

static void test_messages_go_from_one_worker_to_one_other(void)
{
    for (int world = 2; world <= MOST; world++) CHECK(run(world, 30, body_messages) && all_are(world, 0));
    CHECK(run(3, 30, body_messages_beside_a_barrier) && all_are(3, 0));
}

static void test_a_worker_that_dies_fails_the_messages_that_name_it(void)
{
    double from = gcomp_sockets_now();
    victim = 3;
    CHECK(run(4, 30, body_dies_in_a_message) && all_are(4, 0));
    victim = -1;
    CHECK(run(3, 0.3, body_silent_in_a_message) && all_are(3, 0));
    CHECK(gcomp_sockets_now() - from < 25);
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

/* The survivors' error comes in step 2, with everything as before that step; then they go on
   without the victim. */
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
    comm.alltoallv = NULL;
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
    t->lost = 1 + gcomp_sockets_lost(s);
    gcomp_sockets_why(s, t->why, sizeof t->why);
    snprintf(next, sizeof next, "%d", atoi(port) - 10000);
    asked.port = next;
    asked.job = 8;
    t->wrong += open_as(&fewer, s->rank - (s->rank > victim), s->world - 1) != 0;
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
            limit = way == SILENT ? 1 : 300;
            CHECK(run(4, limit, body_dies) && all_are(4, GCOMP_CALLBACK_FAILED));
            for (int w = 0; w < 4; w++) {
                if (w == victim) continue;
                CHECK(tell[w].steps == 2);
                CHECK(tell[w].lost == 1 + victim && strstr(tell[w].why, "rank ") && atoi(tell[w].why + 5) == victim);
                if (tell[w].lost != 1 + victim) printf("# way %d, victim %d, worker %d: %s\n", way, victim, w, tell[w].why);
                CHECK(tell[w].digest != 0 && tell[w].digest == tell[victim == 0].digest); /* of a step without the victim */
                CHECK(way == SILENT ? tell[w].took > 0.9 : tell[w].took < 200); /* seen at once, long before the time-out */
            }
        }
    victim = -1;
}

/* The child of a worker, a data loader, lives on when the worker dies; and in it the group has
   failed. */
static int test_goes_on[2]; /* a pipe: the child reads its end when the test is over */
static int body_has_a_child(gcomp_sockets *s, told *t)
{
    double from;
    int word[2];
    char byte = 0;
    if (s->rank == 1) {
        if (pipe(word) != 0) return 1;
        fflush(stdout);
        if (fork() == 0) {
            byte = (char)gcomp_sockets_barrier(s);
            gcomp_sockets_close(s);
            close(test_goes_on[1]);
            if (write(word[1], &byte, 1) == 1) _exit(read(test_goes_on[0], &byte, 1) != 0);
            _exit(1);
        }
        close(word[1]);
        t->wrong += read(word[0], &byte, 1) != 1 || byte != GCOMP_SOCKETS_FAILED;
        t->steps = gcomp_sockets_barrier(s) == 0; /* the parent has the group still */
        raise(SIGKILL);
    }
    t->wrong += gcomp_sockets_barrier(s) != 0;
    from = gcomp_sockets_now();
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED;
    t->took = gcomp_sockets_now() - from;
    return gcomp_sockets_barrier(s);
}

static void test_a_worker_that_dies_is_seen_at_once_though_its_child_lives(void)
{
    victim = 1;
    CHECK(pipe(test_goes_on) == 0);
    CHECK(run(3, 300, body_has_a_child) && all_are(3, GCOMP_SOCKETS_FAILED));
    CHECK(tell[1].steps == 1 && tell[1].wrong == 0 && tell[0].took < 200 && tell[2].took < 200);
    close(test_goes_on[0]);
    close(test_goes_on[1]);
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
    struct addrinfo hints, *to;
    int fd = -1;
    double then = gcomp_sockets_now() + 20;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo("127.0.0.1", port, &hints, &to) != 0) return -1;
    while (fd < 0 && gcomp_sockets_now() < then) {
        fd = gcomp_sockets_connect(NULL, to, then);
        if (fd < 0) poll(NULL, 0, 2);
    }
    freeaddrinfo(to);
    return fd;
}

/* Says something to the listener at the port. Returns the connection. */
static int say(const void *words, size_t bytes)
{
    int fd = knock();
    CHECK(fd >= 0 && gcomp_sockets_send(NULL, fd, words, bytes, gcomp_sockets_now() + 20) == 0);
    return fd;
}

/* Hears the challenge, and answers with a hello, proven with a secret. Returns the connection. */
static int say_hello(const gcomp_sockets_hello *hello, const char *secret)
{
    gcomp_sockets_meeting m;
    gcomp_sockets_challenge challenge;
    gcomp_sockets_hello proven = *hello;
    int fd = knock();
    double then = gcomp_sockets_now() + 20;
    memset(&m, 0, sizeof m);
    memcpy(m.secret, secret, strlen(secret));
    CHECK(fd >= 0 && gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    gcomp_sockets_prove(&m, proven.proof, 'c', &challenge, &proven);
    CHECK(gcomp_sockets_send(NULL, fd, &proven, sizeof proven, then) == 0);
    return fd;
}

/* The verdict on a hello, -1: none. */
static int verdict(int fd)
{
    unsigned char words[33];
    return gcomp_sockets_receive(NULL, fd, words, sizeof words, gcomp_sockets_now() + 20) == 0 ? words[0] : -1;
}

/* Does the listener close this connection? */
static int sent_away(int fd)
{
    char words[64];
    int error = 0;
    while (!error) error = gcomp_sockets_receive(NULL, fd, words, 1, gcomp_sockets_now() + 20);
    return error == ECONNRESET;
}

static gcomp_sockets_hello hello_of(int rank, int world)
{
    gcomp_sockets_hello hello;
    memset(&hello, 0, sizeof hello);
    memcpy(hello.magic, "GCOMPSK2", 8);
    hello.job = 7;
    hello.order = 0x01020304u;
    hello.world = (uint32_t)world;
    hello.rank = (uint32_t)rank;
    hello.port = 9;
    return hello;
}

static void end_worker(pid_t child)
{
    int how;
    kill(child, SIGKILL);
    waitpid(child, &how, 0);
}

static void test_strangers_at_the_door_are_sent_away(void)
{
    gcomp_sockets_hello right = hello_of(1, 3), wrong;
    unsigned char garbage[200];
    int silent[FORTY], fd, how;
    pid_t children[3];
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.secret = "of three";
    children[0] = begin(0, 3, body_barrier);
    memset(garbage, 'G', sizeof garbage);
    fd = say(garbage, sizeof garbage);
    CHECK(sent_away(fd));
    close(fd);
    close(say(&right, 10)); /* hangs up in the middle of a word */
    for (int field = 0; field < 10; field++) {
        wrong = right;
        if (field == 0) wrong.magic[7] = '1';
        if (field == 1) wrong.job = 8;
        if (field == 2) wrong.order = 0x04030201u;
        if (field == 3) wrong.world = 4;
        if (field == 4) wrong.rank = 3;
        if (field == 5) wrong.rank = 0;
        if (field == 6) wrong.rank = 0xffffffffu;
        if (field == 7) wrong.port = 65536;
        if (field == 8) wrong.to = 1;
        fd = say_hello(&wrong, field == 9 ? "of four" : "of three");
        CHECK(verdict(fd) == (field == 0 ? -1 : field == 9 ? GCOMP_SOCKETS_OTHER_SECRET : GCOMP_SOCKETS_OTHER_JOB));
        CHECK(sent_away(fd));
        close(fd);
    }
    for (int i = 0; i < FORTY; i++) silent[i] = say(&right, i % 2 ? 31 : 0); /* more than there are places; and no more */
    children[1] = begin(1, 3, body_barrier);
    children[2] = begin(2, 3, body_barrier);
    for (int w = 0; w < 3; w++) {
        waitpid(children[w], &how, 0);
        CHECK(WIFEXITED(how) && tell[w].opened == 0 && tell[w].status == 0);
    }
    for (int i = 0; i < FORTY; i++) close(silent[i]);
}

/* Three that say nothing do not take all places; none the less they are not kept for long. */
static void test_the_silent_are_sent_away_after_a_while(void)
{
    int silent[3];
    double from;
    pid_t child;
    choose_port();
    patience = 1;
    child = begin(0, 2, body_barrier);
    patience = 20;
    for (int i = 0; i < 3; i++) silent[i] = say("GCOMP", i == 1 ? 5 : 0);
    from = gcomp_sockets_now();
    for (int i = 0; i < 3; i++) {
        CHECK(sent_away(silent[i]));
        close(silent[i]);
    }
    CHECK(gcomp_sockets_now() - from > 0.5 && gcomp_sockets_now() - from < 10);
    end_worker(child);
}

static void test_a_rank_has_one_worker_and_its_successor_when_it_is_dead(void)
{
    gcomp_sockets_hello right = hello_of(1, 3);
    gcomp_sockets *s;
    pid_t children[3];
    int fd, how;
    for (int last = 0; last < 2; last++) { /* its successor comes before the others, or last */
        memset(tell, 0, MANY * sizeof *tell);
        choose_port();
        children[0] = begin(0, 3, body_barrier);
        fd = say_hello(&right, "");
        CHECK(verdict(fd) == GCOMP_SOCKETS_WELCOME);
        CHECK(open_as(&s, 1, 3) == ECONNRESET && !s);
        close(fd); /* it dies */
        children[1 + last] = begin(1 + last, 3, body_barrier);
        poll(NULL, 0, 300);
        children[2 - last] = begin(2 - last, 3, body_barrier);
        for (int w = 0; w < 3; w++) {
            waitpid(children[w], &how, 0);
            CHECK(WIFEXITED(how) && tell[w].opened == 0 && tell[w].status == 0);
        }
    }
}

/* ---- many workers, and what disturbs them */

enum { NOTHING, BUSY, FLOOD, SLOW, GARBAGE, RANK_TAKERS, DISTURBANCES };

/* One process that disturbs, for ever. */
static pid_t disturb(int how)
{
    gcomp_sockets_hello hello = hello_of(1 + MANY / 2, MANY);
    char junk[4096];
    int fds[200], n = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child) return child;
    alarm(60); /* if nobody ends it */
    memset(fds, -1, sizeof fds);
    memset(junk, 'G', sizeof junk);
    for (unsigned k = 0; how != BUSY; k++) {
        if (how == SLOW && k % 40 == 0) /* a byte each 20 ms of 40 hellos */
            for (size_t i = 0; k && i < sizeof hello; i++) {
                for (n = 0; n < 40; n++) (void)!send(fds[n], (char *)&hello + i, 1, MSG_NOSIGNAL);
                poll(NULL, 0, 20);
            }
        n = (int)(k % (how == SLOW ? 40 : how == FLOOD ? 200 : 1));
        if (fds[n] >= 0) close(fds[n]);
        fds[n] = knock();
        if (how == GARBAGE) (void)!send(fds[n], junk, sizeof junk, MSG_NOSIGNAL);
        if (how == RANK_TAKERS) (void)!send(fds[n], &hello, sizeof hello, MSG_NOSIGNAL);
    }
    for (volatile unsigned k = 0;; k++) {}
    return 0;
}

/* 64 workers with a secret, disturbed. Returns the seconds until all have opened and closed
   again, -1 if one has not. */
static double open_many(int how)
{
    pid_t strangers[4];
    double from = gcomp_sockets_now();
    int good;
    choose_port();
    asked.secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for (int i = 0; i < 4; i++) strangers[i] = how ? disturb(how) : -1;
    good = run_asked(MANY, body_barrier) && all_are(MANY, 0);
    for (int i = 0; i < 4; i++)
        if (strangers[i] > 0) end_worker(strangers[i]);
    for (int w = 0; w < MANY && !good; w++)
        if (tell[w].opened) printf("# disturbance %d, worker %d: %s\n", how, w, strerror(tell[w].opened));
    return good ? gcomp_sockets_now() - from : -1;
}

static void test_64_workers_meet(void) { CHECK(open_many(NOTHING) > 0); }
static void test_64_workers_meet_beside_a_flood_of_silent_strangers(void) { CHECK(open_many(FLOOD) > 0); }

/* For the argument "many". */
static int open_many_times(int times)
{
    static const char *const names[] = {"nothing", "4 busy processes", "a flood of silent connections", "40 slow hellos",
                                        "garbage", "hellos without proof"};
    int failed = 0;
    for (int how = 0; how < DISTURBANCES; how++) {
        double longest = 0;
        int good = 0;
        for (int k = 0; k < times; k++) {
            double took = open_many(how);
            good += took > 0;
            longest = took > longest ? took : longest;
        }
        printf("# %d workers beside %s: %d of %d, the longest took %.1f s\n", MANY, names[how], good, times, longest);
        fflush(stdout);
        failed += times - good;
    }
    return failed != 0;
}

/* ---- descriptors, addresses, times */

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + (double)used.ru_stime.tv_sec
           + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* A worker that may have `more` descriptors than it has. */
static pid_t begin_limited(int rank, int world, int more)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        struct rlimit limit;
        gcomp_sockets *s;
        int next = dup(0);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = (rlim_t)(next + more);
        close(next);
        setrlimit(RLIMIT_NOFILE, &limit);
        tell[rank].opened = open_as(&s, rank, world);
        if (!tell[rank].opened) tell[rank].status = gcomp_sockets_barrier(s);
        tell[rank].took = cpu_seconds();
        gcomp_sockets_close(s);
        _exit(0);
    }
    return child;
}

static void test_too_few_descriptors_are_waited_for_and_told(void)
{
    int silent[FORTY], fd, how;
    pid_t children[4];
    choose_port(); /* one for the listener, none for a worker */
    asked.rendezvous = 1.5;
    children[0] = begin_limited(0, 2, 1);
    fd = knock();
    waitpid(children[0], &how, 0);
    CHECK(tell[0].opened == EMFILE);
    CHECK(tell[0].took < 0.1); /* without turning around and around */
    close(fd);
    children[1] = begin_limited(1, 2, 1); /* one that calls, and has none to listen */
    asked.rendezvous = 3;
    children[0] = begin(0, 2, body_barrier);
    for (int w = 0; w < 2; w++) waitpid(children[w], &how, 0);
    CHECK(tell[0].opened == ETIMEDOUT && tell[1].opened == EMFILE);
    choose_port(); /* as many as the workers need, and strangers that want them */
    children[0] = begin_limited(0, 4, 4);
    for (int i = 0; i < FORTY; i++) silent[i] = knock();
    for (int w = 1; w < 4; w++) children[w] = begin(w, 4, body_barrier);
    for (int w = 0; w < 4; w++) {
        waitpid(children[w], &how, 0);
        CHECK(tell[w].opened == 0 && tell[w].status == 0);
    }
    for (int i = 0; i < FORTY; i++) close(silent[i]);
}

/* Accepts, and answers with words, until it is killed. */
static pid_t begin_stranger(const char *host, const void *words, size_t bytes)
{
    int listener = gcomp_sockets_listen(host, port);
    pid_t child;
    CHECK(listener >= 0);
    fflush(stdout);
    child = fork();
    if (child == 0)
        for (alarm(60);;) { /* if nobody ends it */
            struct pollfd p = {listener, POLLIN, 0};
            int fd;
            poll(&p, 1, 1000);
            fd = accept(listener, NULL, NULL);
            if (fd >= 0) (void)!send(fd, words, bytes, MSG_NOSIGNAL); /* and keeps it */
        }
    close(listener);
    return child;
}

static void test_all_addresses_of_a_name_are_tried(void)
{
    char words[4096];
    pid_t stranger, other;
    int how;
    choose_port();
    asked.host = "three.addresses"; /* the first one of them is where rank 0 listens */
    CHECK(run_asked(3, body_barrier) && all_are(3, 0));
    choose_port();
    memset(words, 'x', sizeof words);
    stranger = begin_stranger("127.0.0.3", words, sizeof words);
    asked.host = "three.addresses"; /* rank 0 cannot listen at the first one: at the second */
    CHECK(run_asked(3, body_barrier) && all_are(3, 0));
    end_worker(stranger);
    choose_port();
    stranger = begin_stranger("127.0.0.2", words, sizeof words); /* rank 0 listens at the third */
    asked.host = "three.addresses";
    other = begin(1, 2, body_barrier); /* which waits for rank 0, though the stranger answers */
    poll(NULL, 0, 200);
    asked.host = "127.0.0.1";
    CHECK(waitpid(begin(0, 2, body_barrier), &how, 0) > 0 && tell[0].opened == 0);
    waitpid(other, &how, 0);
    CHECK(tell[1].opened == 0);
    end_worker(stranger);
}

static int body_defaults(gcomp_sockets *s, told *t)
{
    t->wrong += s->silence < 300 || s->silence > 300;
    return gcomp_sockets_barrier(s);
}

static void test_rendezvous_and_silence_have_times_of_their_own(void)
{
    gcomp_sockets *s;
    double from = gcomp_sockets_now();
    pid_t children[2];
    int how;
    choose_port();
    asked.rendezvous = 0.3;
    CHECK(open_as(&s, 0, 2) == ETIMEDOUT && !s);
    CHECK(gcomp_sockets_now() - from < 10);
    asked.rendezvous = 20;
    asked.silence = 0.2; /* shorter than rank 0 has to wait */
    children[0] = begin(0, 2, body_barrier);
    poll(NULL, 0, 600);
    children[1] = begin(1, 2, body_barrier);
    for (int w = 0; w < 2; w++) waitpid(children[w], &how, 0);
    CHECK(tell[0].opened == 0 && tell[1].opened == 0);
    choose_port();
    asked.rendezvous = asked.silence = 0; /* 300 */
    CHECK(run_asked(2, body_defaults) && all_are(2, 0));
}

/* ---- the secret */

static int digest_is(const unsigned char digest[32], const char *hex)
{
    char text[65];
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return strcmp(text, hex) == 0;
}

/* FIPS 180-4 and the examples of NIST; RFC 4231, cases 1 to 4. */
static void test_sha_256_and_hmac_give_the_published_digests(void)
{
    static const struct {
        const char *message, *digest;
    } hashes[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                  {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                  {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                   "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
                  {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmn"
                   "opqrstnopqrstu",
                   "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"}};
    static const struct {
        int key, bytes; /* a key of that many bytes of this, or -1: 1, 2, ..., 25 */
        const char *text, *message, *digest;
    } macs[] = {{20, 0x0b, NULL, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
                {4, 0, "Jefe", "what do ya want for nothing?",
                 "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
                {20, 0xaa, NULL, NULL, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
                {25, -1, NULL, NULL, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"}};
    static char million[1000000];
    unsigned char digest[32];
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        gcomp_sockets_sha256(digest, hashes[i].message, strlen(hashes[i].message));
        CHECK(digest_is(digest, hashes[i].digest));
    }
    memset(million, 'a', sizeof million);
    gcomp_sockets_sha256(digest, million, sizeof million);
    CHECK(digest_is(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    for (size_t i = 0; i < sizeof macs / sizeof *macs; i++) {
        unsigned char key[64] = {0}, message[50];
        for (int k = 0; k < macs[i].key; k++)
            key[k] = (unsigned char)(macs[i].text ? macs[i].text[k] : macs[i].bytes < 0 ? k + 1 : macs[i].bytes);
        memset(message, i == 2 ? 0xdd : 0xcd, sizeof message);
        gcomp_sockets_hmac(digest, key, macs[i].message ? (const void *)macs[i].message : message,
                           macs[i].message ? strlen(macs[i].message) : sizeof message);
        CHECK(digest_is(digest, macs[i].digest));
    }
    CHECK(gcomp_sockets_same((const unsigned char *)"abc", (const unsigned char *)"abd", 2));
    CHECK(!gcomp_sockets_same((const unsigned char *)"abc", (const unsigned char *)"abd", 3));
}

static void test_numbers_differ_from_call_to_call_and_group_to_group(void)
{
    enum { DRAWN = 100 };
    unsigned char number[2 * DRAWN][16];
    gcomp_sockets_desc desc = {0};
    for (int k = 0; k < 2; k++) {
        gcomp_sockets_meeting m;
        memset(&m, 0, sizeof m);
        m.s = gcomp_sockets_alone(0, 1, 1);
        CHECK(m.s && gcomp_sockets_prepare(&m, &desc, 1) == 0);
        for (int i = 0; i < DRAWN; i++) gcomp_sockets_draw(&m, number[k * DRAWN + i]);
        gcomp_sockets_close(m.s);
        free(m.places);
        free(m.guests);
        free(m.polls);
    }
    for (int i = 0; i < 2 * DRAWN; i++)
        for (int k = 0; k < i; k++) CHECK(memcmp(number[i], number[k], 16) != 0);
}

static int opens_as(int rank, const char *secret)
{
    gcomp_sockets *s;
    const char *before = asked.secret;
    int error;
    asked.secret = secret;
    error = open_as(&s, rank, 2);
    asked.secret = before;
    gcomp_sockets_close(s);
    return error;
}

static void test_who_does_not_know_the_secret_is_sent_away(void)
{
    static const char longest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char other[66];
    pid_t child;
    int how;
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.secret = longest;
    child = begin(0, 2, body_barrier);
    memcpy(other, longest, sizeof longest);
    other[63] ^= 1;
    CHECK(opens_as(1, other) == EACCES);
    other[63] = 0; /* a part of it */
    CHECK(opens_as(1, other) == EACCES);
    CHECK(opens_as(1, "") == EACCES);
    CHECK(opens_as(1, NULL) == EACCES);
    memset(other, 'x', 65);
    other[65] = 0;
    CHECK(opens_as(1, other) == EINVAL);
    CHECK(waitpid(child, &how, WNOHANG) == 0); /* it waits for the right one */
    CHECK(waitpid(begin(1, 2, body_barrier), &how, 0) > 0 && tell[1].opened == 0);
    waitpid(child, &how, 0);
    CHECK(tell[0].opened == 0 && tell[0].status == 0);
    choose_port();
    child = begin(0, 2, body_barrier);
    CHECK(opens_as(1, "a secret where none is") == EACCES);
    end_worker(child);
}

/* A hello that was heard once is no proof in another connection. */
static void test_a_hello_that_is_said_again_proves_nothing(void)
{
    gcomp_sockets_hello hello = hello_of(1, 2);
    gcomp_sockets_challenge challenge;
    gcomp_sockets_meeting m;
    pid_t child;
    double then = gcomp_sockets_now() + 20;
    int fd;
    choose_port();
    asked.secret = "secret";
    child = begin(0, 2, body_barrier);
    fd = knock();
    memset(&m, 0, sizeof m);
    memcpy(m.secret, "secret", 6);
    CHECK(gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    close(fd);
    gcomp_sockets_prove(&m, hello.proof, 'c', &challenge, &hello); /* what the right worker says there */
    fd = knock();
    CHECK(gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    CHECK(gcomp_sockets_send(NULL, fd, &hello, sizeof hello, then) == 0 && verdict(fd) == GCOMP_SOCKETS_OTHER_SECRET);
    close(fd);
    end_worker(child);
}

/* Who listens must know the secret too, also if it sends the caller's own proof back. */
static void test_a_false_rank_0_is_found_out(void)
{
    for (int echo = 0; echo < 2; echo++) {
        int listener, how;
        pid_t child;
        choose_port();
        asked.secret = "secret";
        listener = gcomp_sockets_listen("127.0.0.1", port);
        fflush(stdout);
        child = fork();
        if (child == 0) {
            struct pollfd p = {listener, POLLIN, 0};
            gcomp_sockets_challenge challenge;
            gcomp_sockets_hello hello;
            unsigned char words[33] = {0};
            double then = gcomp_sockets_now() + 20;
            int fd;
            alarm(60);
            memcpy(challenge.magic, "GCOMPSK2", 8);
            memset(challenge.number, 7, sizeof challenge.number);
            poll(&p, 1, 20000);
            fd = accept(listener, NULL, NULL);
            gcomp_sockets_send(NULL, fd, &challenge, sizeof challenge, then);
            gcomp_sockets_receive(NULL, fd, &hello, sizeof hello, then);
            if (echo) memcpy(words + 1, hello.proof, sizeof hello.proof);
            gcomp_sockets_send(NULL, fd, words, sizeof words, then);
            poll(NULL, 0, 5000);
            _exit(0);
        }
        CHECK(opens_as(1, "secret") == EACCES);
        kill(child, SIGKILL);
        waitpid(child, &how, 0);
        close(listener);
    }
}

static int stop_at_third(void *asks) { return ++*(int *)asks == 3; }

static int body_waits_until_the_other_hangs_up(gcomp_sockets *s, told *t)
{
    char word;
    ssize_t n;
    (void)t;
    do {
        n = recv(s->peers[0], &word, 1, 0);
        if (n < 0) poll(NULL, 0, 10);
    } while (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)));
    return 0;
}

/* All times are longer than a test may take. */
static void test_a_call_that_waits_asks_if_it_shall_end(void)
{
    gcomp_sockets *s = NULL;
    int asks, how;
    pid_t child;
    for (int rank = 0; rank < 2; rank++) {
        choose_port();
        asked.rendezvous = 1e6;
        asked.stop = stop_at_third;
        asked.stop_user = &asks;
        asks = 0;
        CHECK(open_as(&s, rank, 2) == ECANCELED && !s && asks == 3);
    }
    choose_port();
    child = begin(1, 2, body_waits_until_the_other_hangs_up);
    asks = 3; /* no answer ends the meeting */
    asked.silence = 1e6;
    asked.stop = stop_at_third;
    asked.stop_user = &asks;
    CHECK(open_as(&s, 0, 2) == 0 && !s->stopped);
    asks = 0;
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && s->stopped && asks == 3);
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && asks == 3);
    gcomp_sockets_close(s);
    waitpid(child, &how, 0);
    CHECK(WIFEXITED(how) && tell[1].opened == 0 && tell[1].status == 0);
}

/* ---- requests that are under way while the caller computes */

static gcomp_request sum_request(uint32_t id, float *data, size_t count)
{
    gcomp_request r;
    memset(&r, 0, sizeof r);
    r.kind = GCOMP_ALLREDUCE;
    r.id = id;
    r.recv = data;
    r.count = count;
    r.dtype = GCOMP_F32;
    return r;
}

/* Asks until the request is done. */
static int ask_until_done(const gcomp_comm *comm, uint32_t id)
{
    int done = 0, status = 0;
    while (!done && !status) {
        status = comm->test(comm->user, id, &done);
        if (!done) sched_yield();
    }
    return status;
}

/* Requests of every kind, eight at once, that end in another order than they began; a blocking
   collective and a message behind them. */
static int body_requests(gcomp_sockets *s, told *t)
{
    static float sums[5][700], most[700];
    static unsigned char mine[24], all[MOST * 24], uneven[MOST * 24], send[MOST * 40], recv[MOST * 40];
    size_t whole[MOST], part[MOST], sent[MOST], awaited[MOST], at = 0, bytes;
    unsigned char word = (unsigned char)s->rank;
    const int left = (s->rank + s->world - 1) % s->world;
    gcomp_comm comm;
    gcomp_request r, last;
    int done, status = 0;
    t->wrong += gcomp_sockets_comm(s).start != NULL;
    t->wrong += gcomp_sockets_overlap(s) != 0 || gcomp_sockets_overlap(s) != 0;
    comm = gcomp_sockets_comm(s);
    for (int round = 0; round < 3 && !status; round++) {
        uint32_t id = (uint32_t)round * 8;
        memset(mine, s->rank + 1, sizeof mine);
        at = 0;
        for (int w = 0; w < s->world; w++) {
            whole[w] = 24;
            part[w] = (size_t)w * 5;
            sent[w] = (size_t)((s->rank + w) % 3 * 20);
            awaited[w] = (size_t)((s->rank + w) % 3 * 20);
            memset(send + at, 16 * s->rank + w, sent[w]);
            at += sent[w];
        }
        for (int k = 0; k < 5; k++) {
            for (size_t i = 0; i < 700; i++) sums[k][i] = value(s->rank + k, i);
            r = sum_request(id++, sums[k], 700);
            status |= comm.start(comm.user, &r);
        }
        for (size_t i = 0; i < 700; i++) most[i] = value(s->rank, i);
        memset(&r, 0, sizeof r);
        r.kind = GCOMP_ALLREDUCE_MAX;
        r.id = id++;
        r.recv = most;
        r.count = 700;
        status |= comm.start(comm.user, &r);
        r.kind = GCOMP_ALLGATHER;
        r.id = id++;
        r.send = mine;
        r.recv = round % 2 ? all : uneven;
        r.stride = 24;
        r.bytes = round % 2 ? whole : part;
        memset(r.recv, 0xee, sizeof all);
        status |= comm.start(comm.user, &r);
        last = r;
        r.kind = GCOMP_ALLTOALL;
        r.id = id++;
        r.send = send;
        r.send_bytes = sent;
        r.recv = recv;
        r.bytes = awaited;
        status |= comm.start(comm.user, &r);
        t->wrong += comm.start(comm.user, &r) != GCOMP_SOCKETS_MISMATCH; /* its place is taken */
        t->wrong += comm.test(comm.user, id + 8, &done) != GCOMP_SOCKETS_MISMATCH;
        if (round == 1) status |= gcomp_sockets_barrier(s);
        if (round == 2) status |= gcomp_sockets_send_to(s, (s->rank + 1) % s->world, &word, 1);
        for (uint32_t k = 0; k < 8; k += 2) status |= ask_until_done(&comm, id - 1 - k);
        for (uint32_t k = 1; k < 8; k += 2) status |= comm.wait(comm.user, id - 1 - k);
        t->wrong += comm.wait(comm.user, id - 1) != GCOMP_SOCKETS_MISMATCH; /* it is over */
        if (round == 2) {
            status |= gcomp_sockets_receive_from(s, left, &word, 1, &bytes, 30);
            t->wrong += bytes != 1 || word != left;
        }
        for (size_t i = 0; i < 700; i++) {
            float sum[5] = {0}, largest = value(0, i);
            for (int w = 0; w < s->world; w++) {
                for (int k = 0; k < 5; k++) sum[k] = w ? sum[k] + value(w + k, i) : value(k, i);
                largest = value(w, i) > largest ? value(w, i) : largest;
            }
            for (int k = 0; k < 5; k++) t->wrong += memcmp(&sum[k], &sums[k][i], 4) != 0;
            t->wrong += memcmp(&largest, &most[i], 4) != 0;
        }
        for (size_t i = 0; i < (size_t)s->world * 24; i++)
            t->wrong += ((unsigned char *)last.recv)[i] != (i % 24 < last.bytes[i / 24] ? i / 24 + 1 : 0xee);
        at = 0;
        for (int w = 0; w < s->world; w++)
            for (size_t i = 0; i < awaited[w]; i++, at++) t->wrong += recv[at] != 16 * w + s->rank;
    }
    return status ? status : gcomp_sockets_barrier(s);
}

static void test_requests_are_carried_out_while_the_caller_goes_on(void)
{
    for (int world = 2; world <= MOST; world++) CHECK(run(world, 30, body_requests) && all_are(world, 0));
}

/* Tensor by tensor, the last one first, with a bucket for each. */
static int body_train_overlapped(gcomp_sockets *s, told *t)
{
    model *m = (model *)malloc(sizeof *m);
    gcomp_comm comm;
    gcomp_result result;
    if (!m || gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    result = open_model(m, &comm);
    for (int step = 0; step < STEPS && result == GCOMP_OK; step++) {
        make_gradients(m, comm.rank, step);
        result = gcomp_step_begin(m->gc, NULL);
        for (size_t tensor = 2; tensor-- > 0 && result == GCOMP_OK;) {
            result = gcomp_step_ready(m->gc, tensor, m->grads[tensor]);
            if (result == GCOMP_OK) result = gcomp_step_progress(m->gc);
        }
        if (result == GCOMP_OK) result = gcomp_step_finish(m->gc);
        for (size_t i = 0; i < ROWS * COLS; i++) m->weight[i] -= 0.1f * m->weight_gradient[i];
        for (size_t i = 0; i < BIAS; i++) m->bias[i] -= 0.1f * m->bias_gradient[i];
    }
    t->digest = digest_of(m);
    gcomp_close(m->gc);
    free(m);
    return (int)result;
}

static void test_overlapped_training_ends_with_the_bits_of_threads(void)
{
    for (int world = 2; world <= MOST; world++)
        for (size_t c = 0; c < TRAINED; c++) {
            uint64_t digest;
            int good = 1;
            codec = trained[c];
            bucket_bytes = 1;
            digest = train_by_threads(world);
            CHECK(digest && run(world, 30, body_train_overlapped) && all_are(world, 0));
            for (int w = 0; w < world; w++) good &= tell[w].digest == digest;
            CHECK(good);
        }
    bucket_bytes = 0;
}

/* If only some workers overlap, the frames differ: all are told, and nobody hangs. */
static int body_some_overlap(gcomp_sockets *s, told *t)
{
    gcomp_comm comm;
    if (s->rank == 1 && gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    t->wrong += train(&comm, &t->digest) != GCOMP_MISMATCH;
    return gcomp_sockets_barrier(s); /* the group can go on */
}

static void test_workers_of_which_some_overlap_are_told(void)
{
    codec = "sign";
    CHECK(run(3, 30, body_some_overlap) && all_are(3, 0));
}

/* Sizes of the second request differ; what is behind it is done as if nothing had been. */
static int body_requests_disagree(gcomp_sockets *s, told *t)
{
    static float data[3][9];
    gcomp_comm comm;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    for (uint32_t k = 0; k < 3; k++) {
        gcomp_request r = sum_request(k, data[k], k == 1 && s->rank ? 8 : 9);
        data[k][0] = 1;
        t->wrong += comm.start(comm.user, &r) != 0;
    }
    t->wrong += comm.wait(comm.user, 0) != 0 || data[0][0] < (float)s->world;
    t->wrong += comm.wait(comm.user, 1) != GCOMP_SOCKETS_MISMATCH || data[1][0] > 1;
    t->wrong += comm.wait(comm.user, 2) != 0 || data[2][0] < (float)s->world;
    return gcomp_sockets_barrier(s);
}

/* How worker 1 leaves while requests of all others wait for it. */
enum { REQUEST_KILLED, REQUEST_SILENT, REQUEST_FAILED, REQUEST_CLOSED, REQUEST_WAYS };

/* The others have started two requests, and worker 1 one; then it leaves. */
static int body_requests_fail(gcomp_sockets *s, told *t)
{
    static float data[2][1000];
    double from = gcomp_sockets_now();
    gcomp_comm comm;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    for (uint32_t k = 0; k < 2; k++) {
        gcomp_request r = sum_request(k, data[k], 1000);
        if (s->rank != 1 || k == 0) t->wrong += comm.start(comm.user, &r) != 0;
    }
    t->wrong += comm.wait(comm.user, 0) != 0;
    if (s->rank == 1) {
        if (way == REQUEST_KILLED) raise(SIGKILL);
        if (way == REQUEST_SILENT) poll(NULL, 0, 60000);
        if (way == REQUEST_FAILED) gcomp_sockets_fail(s);
        return GCOMP_SOCKETS_FAILED; /* and closes */
    }
    t->wrong += (s->rank ? comm.wait(comm.user, 1) : ask_until_done(&comm, 1)) != GCOMP_SOCKETS_FAILED;
    t->lost = 1 + gcomp_sockets_lost(s);
    gcomp_sockets_why(s, t->why, sizeof t->why);
    t->took = gcomp_sockets_now() - from;
    return gcomp_sockets_barrier(s);
}

static void test_a_request_fails_when_a_worker_leaves(void)
{
    CHECK(run(3, 30, body_requests_disagree) && all_are(3, 0));
    for (way = 0; way < REQUEST_WAYS; way++) {
        victim = way <= REQUEST_SILENT ? 1 : -1;
        CHECK(run(4, way == REQUEST_SILENT ? 1 : 60, body_requests_fail) && all_are(4, GCOMP_SOCKETS_FAILED));
        for (int w = 0; w < 4; w++) {
            if (w != 1 && (tell[w].lost != 2 || tell[w].took > 30)) printf("# way %d: rank %d lost %d, %s\n", way, w, tell[w].lost - 1, tell[w].why);
            if (w != 1) CHECK(tell[w].lost == 2 && strstr(tell[w].why, "rank 1") && tell[w].took < 30);
        }
        victim = -1;
    }
}

/* Rank 0 ends the group itself while its own request is under way, which the other never starts. */
static int body_ends_its_own_request(gcomp_sockets *s, told *t)
{
    static float data[1000];
    gcomp_comm comm;
    gcomp_request r = sum_request(3, data, 1000);
    char why[80];
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    if (s->rank == 0) {
        t->wrong += comm.start(comm.user, &r) != 0;
        if (way == REQUEST_CLOSED) return GCOMP_SOCKETS_FAILED;
        gcomp_sockets_fail(s);
        t->wrong += comm.wait(comm.user, 3) != GCOMP_SOCKETS_FAILED || gcomp_sockets_lost(s) != -1;
        t->wrong += strcmp(gcomp_sockets_why(s, why, sizeof why), "this worker gave up") != 0;
        r.id = 4;
        t->wrong += comm.start(comm.user, &r) != 0 || comm.wait(comm.user, 4) != GCOMP_SOCKETS_FAILED;
    } else {
        while (gcomp_sockets_receive_from(s, 0, data, 1, &(size_t){0}, 0.05) == GCOMP_SOCKETS_NOTHING) {}
    }
    return gcomp_sockets_barrier(s);
}

static void test_a_worker_ends_its_own_requests(void)
{
    for (way = REQUEST_FAILED; way <= REQUEST_CLOSED; way++)
        CHECK(run(2, 60, body_ends_its_own_request) && all_are(2, GCOMP_SOCKETS_FAILED));
}

/* A child of fork() has no thread that carries out requests: they fail there, and the parent goes on. */
static int body_forks_beside_requests(gcomp_sockets *s, told *t)
{
    static float data[4000];
    gcomp_comm comm;
    gcomp_request r = sum_request(0, data, 4000);
    pid_t child;
    int how = 0;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    t->wrong += comm.start(comm.user, &r) != 0;
    child = fork();
    if (child == 0) {
        int done = 0;
        r.id = 1;
        if (comm.start(comm.user, &r) != GCOMP_SOCKETS_FAILED || comm.wait(comm.user, 0) != GCOMP_SOCKETS_FAILED) _exit(1);
        if (comm.test(comm.user, 0, &done) != GCOMP_SOCKETS_FAILED || done) _exit(2);
        if (gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED) _exit(3);
        gcomp_sockets_close(s);
        _exit(0);
    }
    t->wrong += comm.wait(comm.user, 0) != 0;
    t->wrong += waitpid(child, &how, 0) != child || how != 0;
    return gcomp_sockets_barrier(s);
}

static void test_a_child_has_no_requests(void) { CHECK(run(2, 30, body_forks_beside_requests) && all_are(2, 0)); }

/* desc.stop is asked by the call that waits, on its thread. */
static pthread_t asker;
static int stop_at_third_on_my_thread(void *asks)
{
    if (!pthread_equal(pthread_self(), asker)) *(int *)asks = 1000;
    return ++*(int *)asks == 3;
}

static void test_a_wait_for_a_request_asks_if_it_shall_end(void)
{
    static float data[4];
    gcomp_sockets *s = NULL;
    gcomp_request r = sum_request(0, data, 4);
    gcomp_comm comm;
    int asks = 3, how;
    pid_t child;
    choose_port();
    child = begin(1, 2, body_waits_until_the_other_hangs_up);
    asker = pthread_self();
    asked.silence = 1e6;
    asked.stop = stop_at_third_on_my_thread;
    asked.stop_user = &asks;
    CHECK(open_as(&s, 0, 2) == 0 && gcomp_sockets_overlap(s) == 0);
    comm = gcomp_sockets_comm(s);
    asks = 0;
    CHECK(comm.start(comm.user, &r) == 0);
    CHECK(comm.wait(comm.user, 0) == GCOMP_SOCKETS_FAILED && asks == 3 && s->stopped && gcomp_sockets_lost(s) == -1);
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && asks == 3);
    gcomp_sockets_close(s);
    waitpid(child, &how, 0);
    CHECK(WIFEXITED(how) && tell[1].opened == 0 && tell[1].status == 0);
}

static void test_open_says_what_is_wrong(void)
{
    gcomp_sockets *s = NULL;
    pid_t child;
    int how, other;
    char words[4096];
    choose_port();
    CHECK(open_as(&s, 0, 0) == EINVAL && !s);
    CHECK(open_as(&s, 2, 2) == EINVAL && !s);
    asked.rendezvous = -1;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.rendezvous = 2e6;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.rendezvous = 0.1;
    asked.silence = -1;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.silence = 1;
    asked.port = "123456789";
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.port = port;
    CHECK(open_as(&s, 0, 2) == ETIMEDOUT && !s); /* nobody comes */
    CHECK(open_as(&s, 1, 2) == ETIMEDOUT && !s); /* nobody is there */
    asked.host = "no.such.host.invalid";
    CHECK(open_as(&s, 0, 2) == EADDRNOTAVAIL && !s);
    asked.host = NULL;
    other = gcomp_sockets_listen("127.0.0.1", port);
    CHECK(open_as(&s, 0, 2) == EADDRINUSE && !s);
    CHECK(open_as(&s, 1, 2) == ETIMEDOUT && !s); /* it listens and says nothing */
    close(other);
    choose_port();
    memset(words, 'x', sizeof words);
    child = begin_stranger("127.0.0.1", words, sizeof words);
    CHECK(open_as(&s, 1, 2) == EPROTO && !s); /* something else listens there, and answers */
    end_worker(child);
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.rendezvous = 1;
    child = begin(0, 2, body_barrier);
    asked.job = 6;
    CHECK(open_as(&s, 1, 2) == ECONNRESET && !s); /* another job */
    asked.job = 7;
    CHECK(open_as(&s, 1, 3) == ECONNRESET && !s); /* another world */
    waitpid(child, &how, 0);
    CHECK(tell[0].opened == ETIMEDOUT);
    gcomp_sockets_close(NULL);
    CHECK(open_as(&s, 0, 1) == 0 && s); /* one alone needs nobody */
    CHECK(gcomp_sockets_barrier(s) == 0);
    gcomp_sockets_close(s);
}

int main(int argc, char **argv)
{
    tell = (told *)mmap(NULL, MANY * sizeof *tell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    victim = -1;
    if (argc > 1 && !strcmp(argv[1], "many")) return open_many_times(20);
    RUN(test_callbacks_do_what_is_asked_of_them);
    RUN(test_collectives_of_1_to_4_workers_are_right);
    RUN(test_workers_that_disagree_are_told_and_go_on);
    RUN(test_one_that_gives_up_ends_the_group_at_once);
    RUN(test_messages_go_from_one_worker_to_one_other);
    RUN(test_a_worker_that_dies_fails_the_messages_that_name_it);
    RUN(test_training_ends_with_the_bits_of_threads);
    RUN(test_a_worker_that_dies_is_an_error_on_all_others);
    RUN(test_a_worker_that_dies_is_seen_at_once_though_its_child_lives);
    RUN(test_strangers_at_the_door_are_sent_away);
    RUN(test_the_silent_are_sent_away_after_a_while);
    RUN(test_a_rank_has_one_worker_and_its_successor_when_it_is_dead);
    RUN(test_64_workers_meet);
    RUN(test_64_workers_meet_beside_a_flood_of_silent_strangers);
    RUN(test_too_few_descriptors_are_waited_for_and_told);
    RUN(test_all_addresses_of_a_name_are_tried);
    RUN(test_rendezvous_and_silence_have_times_of_their_own);
    RUN(test_sha_256_and_hmac_give_the_published_digests);
    RUN(test_numbers_differ_from_call_to_call_and_group_to_group);
    RUN(test_who_does_not_know_the_secret_is_sent_away);
    RUN(test_a_hello_that_is_said_again_proves_nothing);
    RUN(test_a_false_rank_0_is_found_out);
    RUN(test_a_call_that_waits_asks_if_it_shall_end);
    RUN(test_requests_are_carried_out_while_the_caller_goes_on);
    RUN(test_overlapped_training_ends_with_the_bits_of_threads);
    RUN(test_workers_of_which_some_overlap_are_told);
    RUN(test_a_request_fails_when_a_worker_leaves);
    RUN(test_a_worker_ends_its_own_requests);
    RUN(test_a_child_has_no_requests);
    RUN(test_a_wait_for_a_request_asks_if_it_shall_end);
    RUN(test_open_says_what_is_wrong);
    return test_end();
}
