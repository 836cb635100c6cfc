/* Proves of the transport examples/adapters/gcomp_threads.h: its results are right, all workers get an
   error when one does, and no worker hangs. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_threads.h"
#include "gcomp_try.h"
#include "halves.h"
#include "requests.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MOST 8 /* workers */

/* One worker of a test: body returns what the collective under test returned; checks count
   failures. */
typedef struct worker {
    gcomp_comm comm;
    int (*body)(struct worker *worker);
    int status;      /* returned by body */
    int wrong;       /* failed checks */
    uint64_t digest; /* of what the worker got, for tests that compare workers */
} worker;

static int tests, failures;

static void report(int good, const char *name)
{
    tests++;
    failures += !good;
    printf("%s %d - %s\n", good ? "ok" : "not ok", tests, name);
    fflush(stdout);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *start(void *arg)
{
    worker *w = (worker *)arg;
    w->status = w->body(w);
    return NULL;
}

static int overlapped; /* the workers of the next run have start, test and wait */

/* Runs body on `world` workers, on `present` of them really. Returns 0, or 1 if threads cannot
   be had. */
static int run(worker *workers, int world, int present, double timeout, int (*body)(worker *))
{
    pthread_t threads[MOST];
    gcomp_threads *group;
    int started = 0;
    memset(workers, 0, MOST * sizeof *workers);
    if (gcomp_threads_open(&group, world, timeout) != 0)
        return 1;
    if (overlapped && (gcomp_threads_overlap(group) != 0 || gcomp_threads_overlap(group) != 0)) return 1;
    for (; started < present; started++) {
        workers[started].comm = gcomp_threads_comm(group, started);
        workers[started].body = body;
        if (pthread_create(&threads[started], NULL, start, &workers[started]) != 0) {
            gcomp_threads_fail(group);
            break;
        }
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    gcomp_threads_close(group);
    return started < present;
}

/* Did all `present` workers return `status` with no failed check? */
static int all_are(const worker *workers, int present, int status)
{
    int good = 1;
    for (int i = 0; i < present; i++)
        good &= workers[i].status == status && workers[i].wrong == 0;
    return good;
}

static uint64_t digest(const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Sums of every count around shard borders against a plain loop in rank order. */
static int body_sums(worker *w)
{
    static const size_t counts[] = {0, 1, 15, 16, 17, 63, 64, 65, 511, 513, 4099, 20011};
    static const size_t runs = sizeof counts / sizeof *counts;
    static _Thread_local float data[20011];
    for (size_t c = 0; c < runs; c++) {
        size_t count = counts[c];
        int status;
        for (size_t i = 0; i < count; i++)
            data[i] = value(w->comm.rank, i);
        status = w->comm.allreduce(w->comm.user, data, count, GCOMP_F32);
        if (status)
            return status;
        for (size_t i = 0; i < count; i++) {
            float sum = value(0, i);
            for (int r = 1; r < w->comm.world; r++)
                sum += value(r, i);
            w->wrong += memcmp(&sum, &data[i], sizeof sum) != 0;
        }
        w->digest ^= digest(data, count * sizeof *data);
    }
    return 0;
}

static void test_sums(void)
{
    worker workers[MOST];
    uint64_t first = 0;
    int good = 1;
    for (int world = 1; world <= MOST; world++)
        good &= !run(workers, world, world, 30.0, body_sums) && all_are(workers, world, 0);
    report(good, "allreduce adds in rank order, for 1 to 8 workers and counts around shard borders");
    for (int repeat = 0; repeat < 3; repeat++) {
        good &= !run(workers, 4, 4, 30.0, body_sums);
        first = repeat ? first : workers[0].digest;
        for (int i = 0; i < 4; i++)
            good &= workers[i].digest == first;
    }
    report(good, "allreduce gives the same bits on all workers and in every run");
}

static int body_other_type(worker *w)
{
    uint8_t data[4] = {0, 0, 0, 0};
    return w->comm.allreduce(w->comm.user, data, 4, GCOMP_U8);
}

/* Sums of fp16 and bf16 of every count around shard borders: in float32, in rank order, rounded once. */
static int body_halves(worker *w)
{
    static const size_t counts[] = {0, 1, 15, 63, 64, 65, 511, 513, 4099};
    int status = 0;
    for (size_t c = 0; c < sizeof counts / sizeof *counts && !status; c++)
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16 && !status; dtype++)
            w->wrong += halves_are_wrong(&w->comm, counts[c], (gcomp_dtype)dtype, &status) != 0;
    return status;
}

static int body_half_or_bfloat(worker *w)
{
    uint16_t data[4] = {1, 1, 1, 1};
    const int status = w->comm.allreduce(w->comm.user, data, 4, w->comm.rank ? GCOMP_F16 : GCOMP_BF16);
    for (int i = 0; i < 4; i++) w->wrong += data[i] != 1;
    return status;
}

/* Sums of each integer type, up to its ends, and the largest floats. */
static int body_integers(worker *w)
{
    static const size_t counts[] = {0, 1, 63, 64, 65, 513, 4099};
    static _Thread_local int8_t a[4099];
    static _Thread_local int16_t b[4099];
    static _Thread_local int32_t c[4099];
    static _Thread_local float f[4099];
    int world = w->comm.world, rank = w->comm.rank, status = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++) {
        size_t count = counts[k];
        for (size_t i = 0; i < count; i++) {
            int even = i % 2 == 0;
            a[i] = (int8_t)(even ? 127 / world : -((int)(i + (size_t)rank) % 16));
            b[i] = (int16_t)(even ? -(32768 / world) : (int)(i * 7 + (size_t)rank) % 4000);
            c[i] = even ? 2147483647 / world : -(int32_t)(i * 1000 + (size_t)rank);
            f[i] = value(rank, i);
        }
        status = w->comm.allreduce(w->comm.user, a, count, GCOMP_I8);
        if (!status) status = w->comm.allreduce(w->comm.user, b, count, GCOMP_I16);
        if (!status) status = w->comm.allreduce(w->comm.user, c, count, GCOMP_I32);
        if (!status) status = w->comm.allreduce_max(w->comm.user, f, count);
        for (size_t i = 0; i < count; i++) {
            int even = i % 2 == 0;
            int64_t x = 0, y = 0, z = 0;
            float most = value(0, i);
            for (int r = 0; r < world; r++) {
                x += even ? 127 / world : -((int)(i + (size_t)r) % 16);
                y += even ? -(32768 / world) : (int)(i * 7 + (size_t)r) % 4000;
                z += even ? 2147483647 / world : -(int32_t)(i * 1000 + (size_t)r);
                most = value(r, i) > most ? value(r, i) : most;
            }
            w->wrong += a[i] != x || b[i] != y || c[i] != z || memcmp(&f[i], &most, 4) != 0;
        }
    }
    return status;
}

static int body_max_or_sum(worker *w)
{
    float data[4] = {1, 1, 1, 1};
    return w->comm.rank ? w->comm.allreduce_max(w->comm.user, data, 4) : w->comm.allreduce(w->comm.user, data, 4, GCOMP_F32);
}

static int body_gathers(worker *w)
{
    unsigned char mine[24], all[MOST * 32];
    size_t bytes[MOST], world = (size_t)w->comm.world, rank = (size_t)w->comm.rank;
    int status;
    memset(mine, (int)rank + 1, sizeof mine);
    status = w->comm.allgather(w->comm.user, mine, all, 24);
    if (status)
        return status;
    for (size_t i = 0; i < world * 24; i++)
        w->wrong += all[i] != i / 24 + 1;
    memset(all, 0xee, sizeof all);
    for (size_t r = 0; r < world; r++)
        bytes[r] = r * 3;
    status = w->comm.allgatherv(w->comm.user, mine, all, bytes, 32);
    if (status)
        return status;
    for (size_t i = 0; i < world * 32; i++)
        w->wrong += all[i] != (i % 32 < bytes[i / 32] ? i / 32 + 1 : 0xee);
    return 0;
}

static int body_alltoall(worker *w)
{
    unsigned char send[MOST * 5], recv[MOST * 5];
    int status;
    for (int r = 0; r < w->comm.world; r++)
        memset(send + 5 * r, 16 * w->comm.rank + r, 5);
    status = gcomp_threads_alltoall(w->comm.user, send, recv, 5);
    for (int i = 0; !status && i < 5 * w->comm.world; i++)
        w->wrong += recv[i] != 16 * (i / 5) + w->comm.rank;
    return status;
}

/* Worker r sends (r + 2 to) % 7 bytes to worker `to`, in three rounds. */
static int body_alltoallv(worker *w)
{
    unsigned char send[MOST * 7], recv[MOST * 7 + 1];
    size_t sent[MOST], awaited[MOST];
    for (int round = 0; round < 3; round++) {
        unsigned char *at = send;
        int status, rank = w->comm.rank;
        memset(recv, 0xee, sizeof recv);
        for (int r = 0; r < w->comm.world; r++) {
            sent[r] = (size_t)(rank + 2 * r + round) % 7;
            awaited[r] = (size_t)(r + 2 * rank + round) % 7;
            memset(at, 16 * rank + r, sent[r]);
            at += sent[r];
        }
        status = w->comm.alltoallv(w->comm.user, send, sent, recv, awaited);
        if (status)
            return status;
        at = recv;
        for (int r = 0; r < w->comm.world; r++)
            for (size_t i = 0; i < awaited[r]; i++)
                w->wrong += *at++ != 16 * r + rank;
        w->wrong += *at != 0xee;
    }
    return 0;
}

static int body_pair_differs(worker *w)
{
    unsigned char send[MOST] = {0}, recv[MOST + 1];
    size_t sent[MOST] = {1, 1, 1, 1, 1, 1, 1, 1}, awaited[MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    int status;
    memset(recv, 0xee, sizeof recv);
    awaited[2] += w->comm.rank == 1;
    status = w->comm.alltoallv(w->comm.user, send, sent, recv, awaited);
    w->wrong += recv[0] != 0xee;                          /* nobody has written */
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0; /* the group can go on */
    return status;
}

static int body_broadcast(worker *w)
{
    for (int root = 0; root < w->comm.world; root++) {
        int data[3] = {w->comm.rank, w->comm.rank, w->comm.rank};
        int status = gcomp_threads_broadcast(w->comm.user, data, sizeof data, root);
        if (status)
            return status;
        w->wrong += data[0] != root || data[1] != root || data[2] != root;
    }
    return gcomp_threads_barrier(w->comm.user);
}

static int body_wrong_root(worker *w)
{
    int data = 0;
    return gcomp_threads_broadcast(w->comm.user, &data, sizeof data, w->comm.world);
}

static int body_size_differs(worker *w)
{
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int status = w->comm.allreduce(w->comm.user, data, w->comm.rank == 2 ? 7 : 8, GCOMP_F32);
    for (int i = 0; i < 8; i++)
        w->wrong += data[i] < 1 || data[i] > 1;           /* nobody has written */
    w->wrong += gcomp_threads_barrier(w->comm.user) != 0; /* the group can go on */
    return status;
}

static int body_gather_differs(worker *w)
{
    unsigned char mine[8] = {0}, all[MOST * 8];
    return w->comm.allgather(w->comm.user, mine, all, w->comm.rank ? 8 : 4);
}

static int body_list_differs(worker *w)
{
    unsigned char mine[8] = {0}, all[MOST * 8];
    size_t bytes[MOST] = {1, 2, 3, 4, 5, 6, 7, 8};
    bytes[0] += w->comm.rank == 1;
    return w->comm.allgatherv(w->comm.user, mine, all, bytes, 8);
}

static int body_list_too_long(worker *w)
{
    unsigned char mine[16] = {0}, all[MOST * 8];
    size_t bytes[MOST] = {1, 2, 9, 4, 5, 6, 7, 8};
    return w->comm.allgatherv(w->comm.user, mine, all, bytes, 8);
}

static int body_kind_differs(worker *w)
{
    unsigned char mine[8] = {0}, all[MOST * 8];
    return w->comm.rank ? w->comm.allgather(w->comm.user, mine, all, 0) : gcomp_threads_barrier(w->comm.user);
}

static int body_barrier_twice(worker *w)
{
    int first = gcomp_threads_barrier(w->comm.user);
    w->wrong += gcomp_threads_barrier(w->comm.user) != first; /* failed once, failed for ever */
    w->wrong += gcomp_threads_lost(((gcomp_threads_member *)w->comm.user)->group) < 0;
    return first;
}

/* Worker 1 gives up after a moment; all others wait in a sum. */
static int body_fail(worker *w)
{
    float data[4] = {0, 0, 0, 0};
    if (w->comm.rank == 1) {
        struct timespec moment = {0, 50000000};
        nanosleep(&moment, NULL);
        gcomp_threads_fail(((gcomp_threads_member *)w->comm.user)->group);
    }
    return w->comm.allreduce(w->comm.user, data, 4, GCOMP_F32);
}

/* Many short collectives in a row: a worker that is fast must not overtake the others. */
static int body_many(worker *w)
{
    for (int i = 0; i < 2000; i++) {
        float sum = (float)(w->comm.rank + i);
        int all[MOST], status = w->comm.allreduce(w->comm.user, &sum, 1, GCOMP_F32),
                       mine = i * 8 + w->comm.rank;
        float expected = (float)(w->comm.world * i + w->comm.world * (w->comm.world - 1) / 2);
        status = status ? status : w->comm.allgather(w->comm.user, &mine, all, sizeof mine);
        if (status)
            return status;
        w->wrong += sum < expected || sum > expected;
        for (int r = 0; r < w->comm.world; r++)
            w->wrong += all[r] != i * 8 + r;
    }
    return 0;
}

/* Messages go from one to one, in order and of any size; nobody else takes part. */
static int body_messages(worker *w)
{
    static const size_t sizes[] = {0, 1, 4096, 100000};
    static _Thread_local unsigned char data[100000];
    void *me = w->comm.user;
    int world = w->comm.world, next = (w->comm.rank + 1) % world, before = (w->comm.rank + world - 1) % world;
    size_t bytes = 9;
    double from;
    w->wrong += gcomp_threads_receive(me, before, data, sizeof data, &bytes, 0) != GCOMP_THREADS_NOTHING;
    if (w->comm.allgather(me, data, data, 0)) return 1; /* nobody has sent before all have looked */
    for (size_t k = 0; k < 4; k++) {
        memset(data, w->comm.rank * 16 + (int)k, sizes[k]);
        w->wrong += gcomp_threads_send(me, next, data, sizes[k]) != 0;
    }
    for (size_t k = 0; k < 4; k++) {
        w->wrong += gcomp_threads_receive(me, before, data, sizes[k], &bytes, 30) != 0 || bytes != sizes[k];
        for (size_t i = 0; i < bytes; i++) w->wrong += data[i] != before * 16 + (int)k;
    }
    from = seconds();
    w->wrong += gcomp_threads_receive(me, before, data, 1, &bytes, 0.05) != GCOMP_THREADS_NOTHING;
    w->wrong += seconds() - from < 0.049;
    if (w->comm.allgather(me, data, data, 0)) return 1;
    w->wrong += gcomp_threads_send(me, next, data, 10) != 0; /* longer than there is room for: dropped */
    data[0] = 77;
    w->wrong += gcomp_threads_receive(me, before, data, 9, &bytes, 30) != GCOMP_THREADS_MISMATCH || bytes != 10;
    w->wrong += data[0] != 77 || gcomp_threads_receive(me, before, data, 9, &bytes, 0) != GCOMP_THREADS_NOTHING;
    w->wrong += gcomp_threads_send(me, world, data, 1) != GCOMP_THREADS_MISMATCH;
    w->wrong += gcomp_threads_send(me, w->comm.rank, data, 1) != GCOMP_THREADS_MISMATCH;
    w->wrong += gcomp_threads_receive(me, -1, data, 1, &bytes, 0) != GCOMP_THREADS_MISMATCH;
    if (w->comm.allgather(me, data, data, 0)) return 1;
    w->wrong += gcomp_threads_send(me, next, data, 5) != 0; /* received by nobody: freed by close */
    return w->comm.allgather(me, data, data, 0);
}

/* Worker 0 leaves. What it sent can be received; then calls that name it fail, and no others. */
static int body_leaves(worker *w)
{
    unsigned char data[8] = {1, 2, 3};
    void *me = w->comm.user;
    size_t bytes;
    double from = seconds();
    if (w->comm.rank == 0) {
        for (int to = 1; to < 3; to++) w->wrong += gcomp_threads_send(me, to, data, 3) != 0;
        gcomp_threads_leave(me);
        return GCOMP_THREADS_FAILED;
    }
    w->wrong += gcomp_threads_receive(me, 0, data, 8, &bytes, 30) != 0 || bytes != 3;
    w->wrong += gcomp_threads_receive(me, 0, data, 8, &bytes, 30) != GCOMP_THREADS_FAILED;
    w->wrong += gcomp_threads_send(me, 0, data, 8) != GCOMP_THREADS_FAILED;
    w->wrong += gcomp_threads_send(me, 3 - w->comm.rank, data, 2) != 0;
    w->wrong += gcomp_threads_receive(me, 3 - w->comm.rank, data, 8, &bytes, 30) != 0 || bytes != 2;
    w->wrong += seconds() - from > 20;
    w->status = gcomp_threads_barrier(me);
    w->wrong += gcomp_threads_lost(((gcomp_threads_member *)me)->group) != 0;
    return w->status;
}

static void expect(int (*body)(worker *), int world, int present, int status, const char *name)
{
    worker workers[MOST];
    report(!run(workers, world, present, 30.0, body) && all_are(workers, present, status), name);
}

static int body_try(worker *w)
{
    char why[200];
    if (gcomp_try(&w->comm, why, sizeof why)) printf("# %s\n", why), w->wrong++;
    return 0;
}

static void test_missing(void)
{
    worker workers[MOST];
    double begin = seconds(), took;
    int good = !run(workers, 4, 3, 0.2, body_barrier_twice) && all_are(workers, 3, GCOMP_THREADS_FAILED);
    took = seconds() - begin;
    report(good && took >= 0.19,
           "a missing worker is an error on all others after the time-out");
    good = !run(workers, 4, 4, 3600.0, body_fail) && all_are(workers, 4, GCOMP_THREADS_FAILED);
    report(good, "gcomp_threads_fail wakes all workers at once");
}

/* Workers 0, 1 and 3 have come to the second meeting when the time is over. */
static void test_lost(void)
{
    gcomp_threads *group;
    int good = gcomp_threads_open(&group, 4, 1.0) == 0;
    good &= gcomp_threads_lost(group) == -1;
    for (int w = 0; w < 4; w++) group->members[w].came = w == 2 ? 1 : 2;
    gcomp_threads_lose(group, 2);
    report(good && gcomp_threads_lost(group) == 2 && group->failed, "the worker that did not come is the one that is lost");
    gcomp_threads_close(group);
}

/* ---- requests that are under way while the worker computes */

static int beside(void *user, int round) { return round % 2 ? gcomp_threads_barrier(user) : 0; }

static int body_requests(worker *w)
{
    int status = 0;
    if (!w->comm.start || !w->comm.test || !w->comm.wait) return 1;
    for (int round = 0; round < 20 && !status; round++)
        status = eight_requests(&w->comm, round, GCOMP_THREADS_MISMATCH, beside, &w->wrong);
    return status;
}

/* Sizes of the second request differ; what is behind it is done as if nothing had been. */
static int body_requests_disagree(worker *w)
{
    float data[3][9] = {{1}, {1}, {1}};
    const gcomp_comm *comm = &w->comm;
    for (uint32_t k = 0; k < 3; k++) {
        gcomp_request r = sum_request(k, data[k], k == 1 && comm->rank ? 8 : 9);
        w->wrong += comm->start(comm->user, &r) != 0;
    }
    w->wrong += comm->wait(comm->user, 0) != 0 || data[0][0] < (float)comm->world;
    w->wrong += comm->wait(comm->user, 1) != GCOMP_THREADS_MISMATCH || data[1][0] > 1;
    w->wrong += comm->wait(comm->user, 2) != 0 || data[2][0] < (float)comm->world;
    return gcomp_threads_barrier(comm->user);
}

static int ends; /* how worker 1 ends the group: 0: it is late, 1: it fails it, 2: it leaves */

/* The others have started two requests, and worker 1 one. */
static int body_requests_fail(worker *w)
{
    float data[2][100] = {{0}};
    const gcomp_comm *comm = &w->comm;
    gcomp_threads_member *me = (gcomp_threads_member *)comm->user;
    const int late = comm->rank == 1;
    for (uint32_t k = 0; k < 2; k++) {
        gcomp_request r = sum_request(k, data[k], 100);
        if (!late || k == 0) w->wrong += comm->start(comm->user, &r) != 0;
    }
    w->wrong += comm->wait(comm->user, 0) != 0;
    if (late && ends == 1) gcomp_threads_fail(me->group);
    if (late && ends == 2) gcomp_threads_leave(me);
    if (late) return GCOMP_THREADS_FAILED;
    w->wrong += (comm->rank ? comm->wait(comm->user, 1) : ask_until_done(comm, 1)) != GCOMP_THREADS_FAILED;
    w->wrong += gcomp_threads_lost(me->group) != (ends == 1 ? -1 : 1);
    return gcomp_threads_barrier(comm->user);
}

/* The group is closed while a request is under way: the data outlives it. */
static int body_leaves_a_request(worker *w)
{
    static float data[MOST][100];
    gcomp_request r = sum_request(7, data[w->comm.rank], 100);
    return w->comm.rank ? 0 : w->comm.start(w->comm.user, &r);
}

static uint64_t trained_digest; /* of the same steps without overlap */

/* Three steps of two tensors, the last one first; each is a bucket. */
static int body_train(worker *w)
{
    static const char *const codecs[] = {"none", "sign", "topk:density=0.2", "intsum:bits=16", "powersgd:rank=2"};
    float grads[2][1600];
    w->digest = 0;
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        gcomp_desc desc;
        gcomp_tensor tensor;
        gcomp *gc;
        memset(&desc, 0, sizeof desc);
        memset(&tensor, 0, sizeof tensor);
        desc.codec = codecs[c];
        desc.comm = w->comm;
        desc.bucket_bytes = 1;
        tensor.rows = tensor.cols = 40;
        if (gcomp_open(&gc, &desc)) return 1;
        for (int t = 0; t < 2; t++) {
            tensor.name = t ? "last" : "first";
            if (gcomp_add_tensor(gc, &tensor)) return 2;
        }
        for (int s = 0; s < 3; s++) {
            if (gcomp_step_begin(gc, NULL)) return 3;
            for (size_t t = 2; t-- > 0;) {
                for (size_t i = 0; i < 1600; i++) grads[t][i] = value(w->comm.rank + 8 * s, i + 1600 * t);
                if (gcomp_step_ready(gc, t, grads[t]) || gcomp_step_progress(gc)) return 4;
            }
            if (gcomp_step_finish(gc)) return 5;
            w->digest = w->digest * 31 + digest(grads, sizeof grads);
        }
        gcomp_close(gc);
    }
    if (!overlapped && w->comm.rank == 0) trained_digest = w->digest;
    return 0;
}

static void test_requests(void)
{
    worker workers[MOST];
    expect(body_train, 3, 3, 0, "three steps of blocking collectives");
    overlapped = 1;
    for (int world = 1; world <= MOST; world++)
        expect(body_requests, world, world, 0, "requests are carried out in the order of their start");
    report(!run(workers, 3, 3, 30.0, body_train) && all_are(workers, 3, 0) && workers[0].digest == trained_digest &&
               workers[1].digest == trained_digest && workers[2].digest == trained_digest,
           "steps that overlap end with the bits of blocking collectives");
    expect(body_many, 4, 4, 0, "2000 sums and gathers in a row, where there is overlap");
    expect(body_requests_disagree, 4, 4, 0, "a request of other sizes fails on all, and the next one does not");
    for (ends = 0; ends < 3; ends++)
        report(!run(workers, 4, 4, ends ? 30.0 : 1.0, body_requests_fail) && all_are(workers, 4, GCOMP_THREADS_FAILED),
               "a request fails on all when a worker is late, gives up or leaves");
    expect(body_leaves_a_request, 3, 3, 0, "close ends a request that nobody waits for");
    overlapped = 0;
}

static void test_open(void)
{
    gcomp_threads *group = NULL;
    int good = gcomp_threads_open(&group, 0, 1.0) != 0 && !group;
    good &= gcomp_threads_open(&group, 2, 0.0) != 0 && !group;
    good &= gcomp_threads_open(&group, 2, -1.0) != 0 && !group;
    gcomp_threads_close(NULL);
    report(good, "open refuses no workers and no time");
}

int main(void)
{
    test_open();
    test_sums();
    expect(body_other_type, 3, 3, GCOMP_THREADS_MISMATCH, "allreduce refuses bytes without a sign on all");
    for (int world = 1; world <= MOST; world++)
        expect(body_halves, world, world, 0, "sums of halves are made in float32 in rank order, and rounded once");
    expect(body_half_or_bfloat, 3, 3, GCOMP_THREADS_MISMATCH, "fp16 here and bf16 there: error on all");
    for (int world = 1; world <= MOST; world++)
        expect(body_integers, world, world, 0, "sums of integers and the largest floats are exact");
    expect(body_max_or_sum, 3, 3, GCOMP_THREADS_MISMATCH, "a maximum here and a sum there: error on all");
    expect(body_gathers, 5, 5, 0, "allgather and allgatherv put blocks in rank order and touch nothing else");
    expect(body_alltoall, 5, 5, 0, "alltoall gives every worker its blocks");
    for (int world = 1; world <= MOST; world++)
        expect(body_alltoallv, world, world, 0, "alltoallv gives every worker its bytes, of other counts for each");
    expect(body_pair_differs, 4, 4, GCOMP_THREADS_MISMATCH, "counts of two that differ: error on all, nothing written");
    expect(body_broadcast, 4, 4, 0, "broadcast from every root");
    expect(body_wrong_root, 3, 3, GCOMP_THREADS_MISMATCH,
           "broadcast refuses a root outside the group on all");
    expect(body_many, 4, 4, 0, "2000 sums and gathers in a row, 4 workers");
    expect(body_size_differs, 4, 4, GCOMP_THREADS_MISMATCH,
           "counts of a sum that differ: error on all, data as it was");
    expect(body_gather_differs, 3, 3, GCOMP_THREADS_MISMATCH, "sizes of a gather that differ: error on all");
    expect(body_list_differs, 4, 4, GCOMP_THREADS_MISMATCH, "size lists that differ: error on all");
    expect(body_list_too_long, 4, 4, GCOMP_THREADS_MISMATCH, "sizes above the stride: error on all");
    expect(body_kind_differs, 3, 3, GCOMP_THREADS_MISMATCH, "different collectives: error on all");
    expect(body_messages, 4, 4, 0, "messages go from one worker to one other, in order, of any size, with a time-out");
    expect(body_leaves, 3, 3, GCOMP_THREADS_FAILED, "a worker that leaves is an error of calls that name it, and of collectives");
    for (int world = 1; world <= MOST; world++)
        expect(body_try, world, world, 0, "all callbacks do what gcomp.h asks of them");
    test_requests();
    test_missing();
    test_lost();
    printf("1..%d\n", tests);
    return failures != 0;
}
