/* gcomp_threads.h - a transport for gcomp.h: workers are threads of one process. Copy it, change
   it.

   Licence: as gcomp.h. Needs POSIX threads, which mingw has too: compile with -pthread.

       gcomp_threads *group;
       if (gcomp_threads_open(&group, 4, 30.0)) return 1;  four workers; none waits over 30 seconds
       desc.comm = gcomp_threads_comm(group, rank);        in the thread of each worker
       gcomp_threads_close(group);                         after all threads have been joined

   A collective has three parts. In the meeting every worker lays down what it brings, and the last
   one to come compares. Then each worker copies or adds from the buffers of all. In the parting
   every worker waits until all have finished, because the others read and write its buffers.
   Only the meeting can fail, so a collective fails on all workers or on none:

     - sizes or kinds differ: GCOMP_THREADS_MISMATCH on all; the group can go on
     - a worker does not come in time, or calls gcomp_threads_fail: GCOMP_THREADS_FAILED on all, and
       in every later collective. gcomp_threads_lost says which worker did not come

   A worker can also send a message to one other worker, with gcomp_threads_send and _receive, for
   gossip and the like. The group takes no part in that: a message waits until it is received. What
   goes wrong with a message is an error of that call alone, with one exception: a worker that
   leaves by gcomp_threads_leave can be in no collective, so that these fail on all.

   After gcomp_threads_overlap the transport has start, test and wait: a second thread of each
   worker carries out started requests, one after the other, while the worker computes. A started
   request is the collective of the blocking call, and fails as it does. Blocking collectives wait
   until all that their worker has started is done.

   Sums are made in rank order, and each element is summed by one worker: the same bits on all
   workers and in every run. fp16 and bf16 are added in float32, and the sum is rounded once. Each
   worker sums its shard of the elements for all, so that the work of a sum does not grow with the
   number of workers. */

#ifndef GCOMP_THREADS_H
#define GCOMP_THREADS_H

#if defined(__STRICT_ANSI__) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* for -std=c99, if no header of the system stands before */
#endif

#include "gcomp.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef CLOCK_MONOTONIC
#error "gcomp_threads.h needs POSIX: -std=gnu99, or _POSIX_C_SOURCE 200809L before all includes"
#endif

/* The clock of time-outs: a change of the wall clock must not look like a missing worker. mingw's
   pthreads have the wall clock only. */
#ifdef _WIN32
#define GCOMP_THREADS_CLOCK CLOCK_REALTIME
#else
#define GCOMP_THREADS_CLOCK CLOCK_MONOTONIC
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

#define GCOMP_THREADS_MISMATCH 1
#define GCOMP_THREADS_FAILED 2
#define GCOMP_THREADS_NOTHING 3 /* of gcomp_threads_receive: no message came in time */

/* Requests of gcomp that may be under way at once. The lowest three bits of their ids differ. */
#define GCOMP_THREADS_FLIGHTS 8

typedef enum gcomp_threads_kind {
    GCOMP_THREADS_BARRIER,
    GCOMP_THREADS_ALLREDUCE,
    GCOMP_THREADS_MAX,
    GCOMP_THREADS_ALLGATHER,
    GCOMP_THREADS_ALLGATHERV,
    GCOMP_THREADS_ALLTOALL,
    GCOMP_THREADS_ALLTOALLV,
    GCOMP_THREADS_BROADCAST
} gcomp_threads_kind;

/* What one worker brings to a collective. */
typedef struct gcomp_threads_part {
    gcomp_threads_kind kind;
    size_t size;         /* elements of a sum, else bytes of a block; must be equal on all */
    int root;            /* of a broadcast; the dtype of a sum */
    const void *send;    /* read by others */
    void *sum;           /* of a sum: read and written by others, each in its own shard */
    const size_t *bytes; /* of allgatherv: must be equal on all */
    const size_t *sent, *awaited; /* of alltoallv: [world], must agree in pairs */
} gcomp_threads_part;

/* A message on its way; its bytes stand behind it. */
typedef struct gcomp_threads_message {
    struct gcomp_threads_message *next;
    int from, to;
    size_t bytes;
} gcomp_threads_message;

struct gcomp_threads;

/* A request that is under way, or done and not asked for yet; or a free place for one. */
typedef struct gcomp_threads_flight {
    gcomp_request of;
    int busy, done, status;
} gcomp_threads_flight;

/* What the callbacks get as `user`. */
typedef struct gcomp_threads_member {
    struct gcomp_threads *group;
    int rank;
    int left; /* 1: this worker takes part no more */
    unsigned long came; /* meetings to which it has come */
    int overlaps;       /* 1: there is a thread that carries out requests */
    pthread_t thread;
    gcomp_threads_flight flights[GCOMP_THREADS_FLIGHTS];
    int order[GCOMP_THREADS_FLIGHTS]; /* [n % FLIGHTS]: the place of request n */
    unsigned long started, carried;   /* requests so far */
} gcomp_threads_member;

typedef struct gcomp_threads {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double timeout;
    int world;
    int arrived;                   /* workers that wait in the meeting or parting under way */
    unsigned long turn;            /* number of complete meetings and partings */
    int verdict;                   /* of the last complete meeting */
    int failed;                    /* 1 for ever */
    int ends;                      /* threads that carry out requests end */
    int lost;                      /* the worker that did not come in time, or left; -1: none */
    gcomp_threads_part *parts;     /* [world] */
    gcomp_threads_member *members; /* [world] */
    gcomp_threads_message *messages, **last; /* not received yet, the oldest first */
} gcomp_threads;

/* Ends requests that are under way, and the threads that carry them out. */
static inline void gcomp_threads_end_overlap(gcomp_threads *g)
{
    pthread_mutex_lock(&g->lock);
    g->ends = 1;
    for (int w = 0; w < g->world; w++)
        if (g->members[w].carried != g->members[w].started) g->failed = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    for (int w = 0; w < g->world; w++) {
        if (g->members[w].overlaps) pthread_join(g->members[w].thread, NULL);
        g->members[w].overlaps = 0;
    }
    g->ends = 0;
}

/* Frees a group; no thread of the program may be inside a collective any more. NULL is allowed. */
static inline void gcomp_threads_close(gcomp_threads *group)
{
    if (!group) return;
    gcomp_threads_end_overlap(group);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    while (group->messages) {
        gcomp_threads_message *next = group->messages->next;
        free(group->messages);
        group->messages = next;
    }
    free(group->parts);
    free(group->members);
    free(group);
}

/* A condition that waits by GCOMP_THREADS_CLOCK. */
static inline int gcomp_threads_init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error) return error;
    error = pthread_condattr_setclock(&attributes, GCOMP_THREADS_CLOCK);
    if (!error) error = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

/* Makes a group of `world` workers. timeout_seconds: how long a worker waits for the others, > 0.
   Returns 0 or an errno value; on error *group is NULL. */
static inline int gcomp_threads_open(gcomp_threads **group, int world, double timeout_seconds)
{
    gcomp_threads *g;
    int error;
    *group = NULL;
    if (world < 1 || !(timeout_seconds > 0 && timeout_seconds <= 1e6)) return EINVAL;
    g = (gcomp_threads *)calloc(1, sizeof *g);
    if (!g) return ENOMEM;
    g->parts = (gcomp_threads_part *)calloc((size_t)world, sizeof *g->parts);
    g->members = (gcomp_threads_member *)calloc((size_t)world, sizeof *g->members);
    error = g->parts && g->members ? pthread_mutex_init(&g->lock, NULL) : ENOMEM;
    if (!error) {
        error = gcomp_threads_init_cond(&g->changed);
        if (error) pthread_mutex_destroy(&g->lock);
    }
    if (error) {
        free(g->parts);
        free(g->members);
        free(g);
        return error;
    }
    g->world = world;
    g->timeout = timeout_seconds;
    g->lost = -1;
    g->last = &g->messages;
    for (int rank = 0; rank < world; rank++) {
        g->members[rank].group = g;
        g->members[rank].rank = rank;
    }
    *group = g;
    return 0;
}

/* Ends the group: every collective that has not met yet, and every later one, fails on all workers.
   A worker that gives up calls it, so that the others need not wait for the time-out. May be called
   from any thread. */
static inline void gcomp_threads_fail(gcomp_threads *group)
{
    pthread_mutex_lock(&group->lock);
    group->failed = 1;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* The rank of the worker because of which the group has failed: it did not come in time, or left.
   -1: the group works, or somebody has called gcomp_threads_fail. */
static inline int gcomp_threads_lost(gcomp_threads *group)
{
    int lost;
    pthread_mutex_lock(&group->lock);
    lost = group->lost;
    pthread_mutex_unlock(&group->lock);
    return lost;
}

/* Ends the group because a worker did not come: the first one that has come to fewer meetings than
   this one. Called with the lock. */
static inline void gcomp_threads_lose(gcomp_threads *g, unsigned long came)
{
    for (int w = g->world - 1; w >= 0; w--)
        if (g->members[w].came < came) g->lost = w;
    g->failed = 1;
    pthread_cond_broadcast(&g->changed);
}

/* Do all workers bring the same collective of the same sizes? Called with all of them waiting. */
static inline int gcomp_threads_compare(const gcomp_threads *g)
{
    const gcomp_threads_part *first = &g->parts[0];
    for (int w = 1; w < g->world; w++) {
        const gcomp_threads_part *part = &g->parts[w];
        if (part->kind != first->kind || part->size != first->size || part->root != first->root)
            return GCOMP_THREADS_MISMATCH;
        if (first->bytes &&
            memcmp(part->bytes, first->bytes, (size_t)g->world * sizeof *first->bytes) != 0)
            return GCOMP_THREADS_MISMATCH;
    }
    for (int w = 0; first->sent && w < g->world; w++)
        for (int to = 0; to < g->world; to++)
            if (g->parts[w].sent[to] != g->parts[to].awaited[w]) return GCOMP_THREADS_MISMATCH;
    for (int w = 0; first->bytes && w < g->world; w++)
        if (first->bytes[w] > first->size)
            return GCOMP_THREADS_MISMATCH; /* would run into the next worker's place */
    return 0;
}

static inline struct timespec gcomp_threads_deadline(double seconds)
{
    struct timespec at;
    clock_gettime(GCOMP_THREADS_CLOCK, &at);
    at.tv_sec += (time_t)seconds;
    at.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (at.tv_nsec >= 1000000000L) {
        at.tv_nsec -= 1000000000L;
        at.tv_sec++;
    }
    return at;
}

/* Waits until all requests that this worker has started are carried out. Called with the lock. */
static inline void gcomp_threads_settle(const gcomp_threads_member *me)
{
    if (!me->overlaps || pthread_equal(pthread_self(), me->thread)) return;
    while (me->carried != me->started) pthread_cond_wait(&me->group->changed, &me->group->lock);
}

/* The meeting: returns when all workers have come, 0 on all if they agree. If it is not 0, nobody
   touches a buffer. */
static inline int gcomp_threads_meet(const gcomp_threads_member *me, const gcomp_threads_part *part)
{
    gcomp_threads *g = me->group;
    struct timespec deadline;
    unsigned long turn;
    int verdict;
    pthread_mutex_lock(&g->lock);
    gcomp_threads_settle(me);
    deadline = gcomp_threads_deadline(g->timeout);
    turn = g->turn;
    if (!g->failed) {
        g->parts[me->rank] = *part;
        g->members[me->rank].came++;
        if (++g->arrived == g->world) {
            g->arrived = 0;
            g->turn++;
            g->verdict = gcomp_threads_compare(g);
            pthread_cond_broadcast(&g->changed);
        }
    }
    while (g->turn == turn && !g->failed) {
        if (pthread_cond_timedwait(&g->changed, &g->lock, &deadline) != 0 && g->turn == turn)
            gcomp_threads_lose(g, g->members[me->rank].came);
    }
    /* A complete meeting counts even if the group failed right after it: the others act on it
       too. */
    verdict = g->turn != turn ? g->verdict : GCOMP_THREADS_FAILED;
    pthread_mutex_unlock(&g->lock);
    return verdict;
}

/* The parting: returns when all workers have done their part. It has no time-out: after the meeting
   workers only copy and add, and if one returned early, a slow worker would go on with buffers that
   are gone. */
static inline void gcomp_threads_part_company(const gcomp_threads_member *me)
{
    gcomp_threads *g = me->group;
    unsigned long turn;
    pthread_mutex_lock(&g->lock);
    turn = g->turn;
    if (++g->arrived == g->world) {
        g->arrived = 0;
        g->turn++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->turn == turn) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

/* Folds the elements begin .. end - 1 of all workers in rank order, and writes the result to all
   workers. There is one function for each type. The piece stays in the first cache, whatever the
   number of workers. */
#define GCOMP_THREADS_FOLD(name, type, fold) \
    static inline void name(const gcomp_threads *g, size_t begin, size_t end) \
    { \
        type piece[512]; \
        for (size_t at = begin; at < end; at += 512) { \
            size_t count = end - at < 512 ? end - at : 512; \
            memcpy(piece, (type *)g->parts[0].sum + at, count * sizeof *piece); \
            for (int w = 1; w < g->world; w++) { \
                const type *other = (const type *)g->parts[w].sum + at; \
                for (size_t i = 0; i < count; i++) piece[i] = (type)(fold); \
            } \
            for (int w = 0; w < g->world; w++) \
                memcpy((type *)g->parts[w].sum + at, piece, count * sizeof *piece); \
        } \
    }
GCOMP_THREADS_FOLD(gcomp_threads_sum, float, piece[i] + other[i])
GCOMP_THREADS_FOLD(gcomp_threads_sum8, int8_t, piece[i] + other[i])
GCOMP_THREADS_FOLD(gcomp_threads_sum16, int16_t, piece[i] + other[i])
GCOMP_THREADS_FOLD(gcomp_threads_sum32, int32_t, piece[i] + other[i])
GCOMP_THREADS_FOLD(gcomp_threads_largest, float, other[i] > piece[i] ? other[i] : piece[i])
#undef GCOMP_THREADS_FOLD

/* The same for sums of fp16 or bf16: added in float32, and rounded once. Does not fail in the mode
   of arithmetic that gcomp_threads_reduce has looked for. */
static inline int gcomp_threads_sum_halves(const gcomp_threads *g, size_t begin, size_t end,
                                           gcomp_dtype dtype)
{
    float sum[512], other[512];
    uint16_t piece[512];
    int error = 0;
    for (size_t at = begin; at < end; at += 512) {
        size_t count = end - at < 512 ? end - at : 512;
        error |= gcomp_convert(sum, GCOMP_F32, (uint16_t *)g->parts[0].sum + at, dtype, count,
                               NULL);
        for (int w = 1; w < g->world; w++) {
            error |= gcomp_convert(other, GCOMP_F32, (uint16_t *)g->parts[w].sum + at, dtype,
                                   count, NULL);
            for (size_t i = 0; i < count; i++) sum[i] += other[i];
        }
        error |= gcomp_convert(piece, dtype, sum, GCOMP_F32, count, NULL);
        for (int w = 0; w < g->world; w++)
            memcpy((uint16_t *)g->parts[w].sum + at, piece, count * sizeof *piece);
    }
    return error ? GCOMP_THREADS_FAILED : 0;
}

/* A sum or a maximum: each worker folds its shard for all. */
static inline int gcomp_threads_reduce(const gcomp_threads_member *me, gcomp_threads_kind kind,
                                       void *data, size_t count, gcomp_dtype dtype)
{
    gcomp_threads_part part = {GCOMP_THREADS_ALLREDUCE, 0, 0, NULL, NULL, NULL, NULL, NULL};
    size_t world = (size_t)me->group->world, rank = (size_t)me->rank, shard, begin, end;
    int error, halves = dtype == GCOMP_F16 || dtype == GCOMP_BF16;
    /* where gcomp.h cannot calculate, which this worker alone may see: before the meeting */
    if (halves && gcomp_convert(NULL, GCOMP_F32, NULL, dtype, 0,
                                NULL)) gcomp_threads_fail(me->group);
    part.kind = kind;
    part.size = count;
    part.root = (int)dtype; /* so that it is compared */
    part.sum = data;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    /* Shards of whole cache lines, so that two workers seldom write to one. */
    shard = (count / world + 64) / 64 * 64;
    begin = rank < count / shard + 1 ? rank * shard : count;
    end = count - begin < shard ? count : begin + shard;
    if (kind == GCOMP_THREADS_MAX) gcomp_threads_largest(me->group, begin, end);
    else if (dtype == GCOMP_F32) gcomp_threads_sum(me->group, begin, end);
    else if (dtype == GCOMP_I8) gcomp_threads_sum8(me->group, begin, end);
    else if (dtype == GCOMP_I16) gcomp_threads_sum16(me->group, begin, end);
    else if (dtype == GCOMP_I32) gcomp_threads_sum32(me->group, begin, end);
    else if (halves) error = gcomp_threads_sum_halves(me->group, begin, end, dtype);
    else error = GCOMP_THREADS_MISMATCH; /* on all, and nobody has touched a buffer */
    gcomp_threads_part_company(me);
    return error;
}

/* data[count] <- sum over the workers, in place. */
static inline int gcomp_threads_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    return gcomp_threads_reduce((const gcomp_threads_member *)user, GCOMP_THREADS_ALLREDUCE, data,
                                count, dtype);
}

/* data[count] <- the largest of the workers, in place. */
static inline int gcomp_threads_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_threads_reduce((const gcomp_threads_member *)user, GCOMP_THREADS_MAX, data, count,
                                GCOMP_F32);
}

/* all[world * bytes] <- mine[bytes] of every worker, in rank order. */
static inline int gcomp_threads_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads_part part = {GCOMP_THREADS_ALLGATHER, 0, 0, NULL, NULL, NULL, NULL, NULL};
    int error;
    part.size = bytes;
    part.send = mine;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    for (int w = 0; w < me->group->world && bytes; w++) {
        unsigned char *to = (unsigned char *)all + (size_t)w * bytes;
        if (me->group->parts[w].send != to) /* a worker may send from its own place */
            memcpy(to, me->group->parts[w].send, bytes);
    }
    gcomp_threads_part_company(me);
    return 0;
}

/* all + w * stride <- bytes[w] bytes of worker w, for all w. */
static inline int gcomp_threads_allgatherv(void *user, const void *mine, void *all,
                                           const size_t *bytes, size_t stride)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads_part part = {GCOMP_THREADS_ALLGATHERV, 0, 0, NULL, NULL, NULL, NULL, NULL};
    int error;
    part.size = stride;
    part.send = mine;
    part.bytes = bytes;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    for (int w = 0; w < me->group->world; w++) {
        unsigned char *to = (unsigned char *)all + (size_t)w * stride;
        if (bytes[w] && me->group->parts[w].send != to)
            memcpy(to, me->group->parts[w].send, bytes[w]);
    }
    gcomp_threads_part_company(me);
    return 0;
}

/* recv + w * bytes <- send + rank * bytes of worker w: every worker has a block for every
   worker. */
static inline int gcomp_threads_alltoall(void *user, const void *send, void *recv, size_t bytes)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads_part part = {GCOMP_THREADS_ALLTOALL, 0, 0, NULL, NULL, NULL, NULL, NULL};
    int error;
    part.size = bytes;
    part.send = send;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    for (int w = 0; w < me->group->world && bytes; w++) {
        const unsigned char *from = (const unsigned char *)me->group->parts[w].send +
            (size_t)me->rank * bytes;
        memcpy((unsigned char *)recv + (size_t)w * bytes, from, bytes);
    }
    gcomp_threads_part_company(me);
    return 0;
}

/* data[bytes] <- data of worker `root`. On error data is as it was. */
static inline int gcomp_threads_broadcast(void *user, void *data, size_t bytes, int root)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads_part part = {GCOMP_THREADS_BROADCAST, 0, 0, NULL, NULL, NULL, NULL, NULL};
    int error, wrong_root = root < 0 || root >= me->group->world;
    part.size = bytes;
    part.root = root;
    part.send = data;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    if (!wrong_root && bytes && me->rank != root) memcpy(data, me->group->parts[root].send, bytes);
    gcomp_threads_part_company(me);
    return wrong_root ? GCOMP_THREADS_MISMATCH : 0;
}

/* Worker w gets sent[w] bytes of send, and awaited[w] bytes come from worker w. The parts of send
   lie back to back, in rank order, and so do those of recv. */
static inline int gcomp_threads_alltoallv(void *user, const void *send, const size_t *sent,
                                          void *recv, const size_t *awaited)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads_part part = {GCOMP_THREADS_ALLTOALLV, 0, 0, NULL, NULL, NULL, NULL, NULL};
    unsigned char *to = (unsigned char *)recv;
    int error;
    part.send = send;
    part.sent = sent;
    part.awaited = awaited;
    error = gcomp_threads_meet(me, &part);
    if (error) return error;
    for (int w = 0; w < me->group->world; w++) {
        const gcomp_threads_part *other = &me->group->parts[w];
        const unsigned char *from = (const unsigned char *)other->send;
        for (int before = 0; before < me->rank; before++) from += other->sent[before];
        if (awaited[w]) memcpy(to, from, awaited[w]);
        to += awaited[w];
    }
    gcomp_threads_part_company(me);
    return 0;
}

/* Returns when all workers have called it. */
static inline int gcomp_threads_barrier(void *user)
{
    gcomp_threads_part part = {GCOMP_THREADS_BARRIER, 0, 0, NULL, NULL, NULL, NULL, NULL};
    return gcomp_threads_meet((const gcomp_threads_member *)user, &part);
}

/* ---- messages between two workers. user: the `user` of the worker's gcomp_comm, as above */

/* This worker takes part no more: messages to it, and collectives, fail at once. What it has sent
   can still be received. */
static inline void gcomp_threads_leave(void *user)
{
    gcomp_threads_member *me = (gcomp_threads_member *)user;
    pthread_mutex_lock(&me->group->lock);
    me->left = 1;
    if (!me->group->failed) me->group->lost = me->rank;
    pthread_mutex_unlock(&me->group->lock);
    gcomp_threads_fail(me->group);
}

/* Sends a copy of data[bytes] to worker `to`; never waits. Returns 0; GCOMP_THREADS_MISMATCH: there
   is no such other worker; GCOMP_THREADS_FAILED: it has left, or memory is short. */
static inline int gcomp_threads_send(void *user, int to, const void *data, size_t bytes)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads *g = me->group;
    gcomp_threads_message *m;
    int left;
    if (to < 0 || to >= g->world || to == me->rank) return GCOMP_THREADS_MISMATCH;
    m = (gcomp_threads_message *)malloc(sizeof *m + bytes);
    if (!m) return GCOMP_THREADS_FAILED;
    m->next = NULL;
    m->from = me->rank;
    m->to = to;
    m->bytes = bytes;
    if (bytes) memcpy(m + 1, data, bytes);
    pthread_mutex_lock(&g->lock);
    left = g->members[to].left;
    if (!left) {
        *g->last = m;
        g->last = &m->next;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    if (left) free(m);
    return left ? GCOMP_THREADS_FAILED : 0;
}

/* Takes the oldest message of worker `from`. Called with the lock. NULL: there is none. */
static inline gcomp_threads_message *gcomp_threads_take(const gcomp_threads_member *me, int from)
{
    gcomp_threads *g = me->group;
    for (gcomp_threads_message **at = &g->messages; *at; at = &(*at)->next) {
        gcomp_threads_message *m = *at;
        if (m->from != from || m->to != me->rank) continue;
        *at = m->next;
        if (!m->next) g->last = at;
        return m;
    }
    return NULL;
}

/* Receives the oldest message of worker `from` that was not received yet; waits for it `seconds`
   at most; 0: does not wait. *bytes <- its length. Returns 0, or with data unchanged
     GCOMP_THREADS_NOTHING   no message came in time: it may come later
     GCOMP_THREADS_MISMATCH  the message has more than `capacity` bytes, and is dropped; or there
                             is no such other worker
     GCOMP_THREADS_FAILED    the worker has left, and nothing of it is left to receive */
static inline int gcomp_threads_receive(void *user, int from, void *data, size_t capacity,
                                        size_t *bytes, double seconds)
{
    const gcomp_threads_member *me = (const gcomp_threads_member *)user;
    gcomp_threads *g = me->group;
    struct timespec deadline = gcomp_threads_deadline(seconds > 0 ? seconds : 0);
    gcomp_threads_message *m;
    int late = !(seconds > 0), left, too_long;
    if (from < 0 || from >= g->world || from == me->rank) return GCOMP_THREADS_MISMATCH;
    pthread_mutex_lock(&g->lock);
    while ((m = gcomp_threads_take(me, from)) == NULL && !g->members[from].left && !late)
        late = pthread_cond_timedwait(&g->changed, &g->lock, &deadline) != 0;
    if (!m) m = gcomp_threads_take(me, from); /* it came with the time-out */
    left = g->members[from].left;
    pthread_mutex_unlock(&g->lock);
    if (!m) return left ? GCOMP_THREADS_FAILED : GCOMP_THREADS_NOTHING;
    *bytes = m->bytes;
    too_long = m->bytes > capacity;
    if (!too_long && m->bytes) memcpy(data, m + 1, m->bytes);
    free(m);
    return too_long ? GCOMP_THREADS_MISMATCH : 0;
}

/* ---- requests that are under way while the worker computes */

/* Carries out one request, and returns when it is done. */
static inline int gcomp_threads_carry(gcomp_threads_member *me, const gcomp_request *r)
{
    int even = 1;
    switch (r->kind) {
    case GCOMP_ALLREDUCE: return gcomp_threads_allreduce(me, r->recv, r->count, r->dtype);
    case GCOMP_ALLREDUCE_MAX: return gcomp_threads_allreduce_max(me, (float *)r->recv, r->count);
    case GCOMP_ALLGATHER:
        for (int w = 0; w < me->group->world; w++) even &= r->bytes[w] == r->stride;
        if (even) return gcomp_threads_allgather(me, r->send, r->recv, r->stride);
        return gcomp_threads_allgatherv(me, r->send, r->recv, r->bytes, r->stride);
    case GCOMP_ALLTOALL:
        return gcomp_threads_alltoallv(me, r->send, r->send_bytes, r->recv, r->bytes);
    default: return GCOMP_THREADS_MISMATCH; /* nothing moves */
    }
}

/* The second thread of a worker: carries out requests in the order in which they were started. */
static inline void *gcomp_threads_behind(void *arg)
{
    gcomp_threads_member *me = (gcomp_threads_member *)arg;
    gcomp_threads *g = me->group;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        gcomp_threads_flight *f = &me->flights[me->order[me->carried % GCOMP_THREADS_FLIGHTS]];
        int status;
        if (me->carried == me->started) {
            if (g->ends) break;
            pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        pthread_mutex_unlock(&g->lock);
        status = gcomp_threads_carry(me, &f->of);
        pthread_mutex_lock(&g->lock);
        f->status = status;
        f->done = 1;
        me->carried++;
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* Begins to carry out a request. Returns 0, or GCOMP_THREADS_MISMATCH: the place of its id is
   taken. */
static inline int gcomp_threads_request_start(void *user, const gcomp_request *r)
{
    gcomp_threads_member *me = (gcomp_threads_member *)user;
    const int place = (int)(r->id % GCOMP_THREADS_FLIGHTS);
    gcomp_threads_flight *f = &me->flights[place];
    int taken;
    pthread_mutex_lock(&me->group->lock);
    taken = f->busy;
    if (!taken) {
        f->of = *r;
        f->busy = 1;
        f->done = 0;
        me->order[me->started++ % GCOMP_THREADS_FLIGHTS] = place;
        pthread_cond_broadcast(&me->group->changed);
    }
    pthread_mutex_unlock(&me->group->lock);
    return taken ? GCOMP_THREADS_MISMATCH : 0;
}

/* Is a request done? waits 1: waits until it is. *done <- 1 if it is done or has failed. */
static inline int gcomp_threads_request_ask(gcomp_threads_member *me, uint32_t id, int waits,
                                            int *done)
{
    gcomp_threads_flight *f = &me->flights[id % GCOMP_THREADS_FLIGHTS];
    int status = 0;
    *done = 0;
    pthread_mutex_lock(&me->group->lock);
    if (!f->busy || f->of.id != id) status = GCOMP_THREADS_MISMATCH;
    while (waits && !status && !f->done)
        pthread_cond_wait(&me->group->changed, &me->group->lock);
    if (!status && f->done) {
        *done = 1;
        f->busy = 0;
        status = f->status;
    }
    pthread_mutex_unlock(&me->group->lock);
    return status;
}

/* Never waits. */
static inline int gcomp_threads_request_test(void *user, uint32_t id, int *done)
{
    return gcomp_threads_request_ask((gcomp_threads_member *)user, id, 0, done);
}

static inline int gcomp_threads_request_wait(void *user, uint32_t id)
{
    int done;
    return gcomp_threads_request_ask((gcomp_threads_member *)user, id, 1, &done);
}

/* From now on gcomp_threads_comm has start, test and wait too, for all workers. Starts a thread for
   each worker; call it before the first collective. Returns 0 or an errno value; then nothing is
   changed. */
static inline int gcomp_threads_overlap(gcomp_threads *group)
{
    for (int w = 0; w < group->world; w++) {
        gcomp_threads_member *me = &group->members[w];
        int error = 0;
        if (!me->overlaps) error = pthread_create(&me->thread, NULL, gcomp_threads_behind, me);
        if (error) {
            gcomp_threads_end_overlap(group);
            return error;
        }
        me->overlaps = 1;
    }
    return 0;
}

/* The transport of worker `rank`, for gcomp_desc.comm. Valid until the group is closed. */
static inline gcomp_comm gcomp_threads_comm(gcomp_threads *group, int rank)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.user = &group->members[rank];
    comm.rank = rank;
    comm.world = group->world;
    comm.allreduce = gcomp_threads_allreduce;
    comm.allgather = gcomp_threads_allgather;
    comm.allgatherv = gcomp_threads_allgatherv;
    comm.allreduce_max = gcomp_threads_allreduce_max;
    comm.alltoallv = gcomp_threads_alltoallv;
    comm.allreduce_dtypes = 1u << GCOMP_F16 | 1u << GCOMP_BF16 | 1u << GCOMP_I8 | 1u << GCOMP_I16 |
        1u << GCOMP_I32;
    if (group->members[rank].overlaps) {
        comm.start = gcomp_threads_request_start;
        comm.test = gcomp_threads_request_test;
        comm.wait = gcomp_threads_request_wait;
    }
    return comm;
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_THREADS_H */
