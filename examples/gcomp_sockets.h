/* gcomp_sockets.h - a transport for gcomp.h: workers are processes connected by TCP. Copy it, change it.

   Licence: as gcomp.h. Needs POSIX sockets and nothing else.

       gcomp_sockets *net;
       int error = gcomp_sockets_open(&net, rank, world, "10.0.0.1", "7077", job, 30.0);  0, or an errno value
       desc.comm = gcomp_sockets_comm(net);
       ...
       gcomp_sockets_close(net);

   All workers meet at rank 0, which listens at the address and port given, and then connect each with each. So a
   message takes one hop; a worker that dies is seen by all at once, for the kernel closes its connections; and a
   sum, for which each worker gets its shard from all and adds it in rank order, costs the bytes of a ring
   all-reduce, 2 (W - 1) / W of the data a worker, and gives the bits of gcomp_threads.h. (A star would send all
   through one link; a ring takes W - 1 hops, and hears of a death from one neighbour to the next.)

   Every collective first meets (all tell all what they bring), then moves data, then parts: rank 0 hears from
   all that they have everything, and tells them. Therefore a collective fails on all workers or on none:

     - sizes or kinds that differ: GCOMP_SOCKETS_MISMATCH on all; the group can go on
     - a worker that is gone, or that nothing comes from for `timeout` seconds: GCOMP_SOCKETS_FAILED on all, for
       ever; the data of that collective is unspecified. Whoever is left may open a new group.

   The one exception: if rank 0 dies while it tells them, some have heard and some have not; gcomp's next frame
   names those that are a step behind.

   Limits
     - One rack: W (W - 1) / 2 connections, 2 MiB of buffer a worker for each other one. Use MPI for more.
     - Every host must reach every other at the address that rank 0 sees, at any port; name rank 0 by an address
       that all use, not by one that is the loopback at home. No NAT, no scoped IPv6 addresses.
     - No secrets: the job number keeps jobs apart, not attackers. Strangers that connect while the workers meet
       are sent away; later nobody listens. Use a private network, or a tunnel.
     - All hosts have the same byte order. The timeout must be longer than what the slowest worker computes between
       two collectives, and than the largest of them takes on the slowest link beside it.
     - POSIX: Linux, BSD, macOS with SO_NOSIGPIPE in place of MSG_NOSIGNAL. */

#ifndef GCOMP_SOCKETS_H
#define GCOMP_SOCKETS_H

#include "gcomp.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define GCOMP_SOCKETS_MISMATCH 1
#define GCOMP_SOCKETS_FAILED 2

/* Bytes of a shard that are summed at a time, a multiple of 4; tests set a small one. */
#ifndef GCOMP_SOCKETS_PIECE
#define GCOMP_SOCKETS_PIECE ((size_t)2 << 20)
#endif

/* Bytes between two workers that move at once between all of them. */
#ifndef GCOMP_SOCKETS_AT_ONCE
#define GCOMP_SOCKETS_AT_ONCE ((size_t)32 << 10)
#endif

/* How often a worker that waits looks for bytes, a microsecond or two each time, before it sleeps. */
#ifndef GCOMP_SOCKETS_LOOKS
#define GCOMP_SOCKETS_LOOKS 1000
#endif

/* Connections that may wait for their first words while the workers meet. */
#define GCOMP_SOCKETS_PENDING 16

typedef enum gcomp_sockets_kind {
    GCOMP_SOCKETS_BARRIER = 1,
    GCOMP_SOCKETS_ALLREDUCE,
    GCOMP_SOCKETS_MAX,
    GCOMP_SOCKETS_ALLGATHER,
    GCOMP_SOCKETS_ALLGATHERV,
    GCOMP_SOCKETS_ALLTOALLV,
    GCOMP_SOCKETS_BROADCAST
} gcomp_sockets_kind;

/* What one worker brings to a collective; the same bytes on all. */
typedef struct gcomp_sockets_part {
    uint32_t magic;
    uint32_t kind;
    uint32_t root; /* of a broadcast; the dtype of a sum */
    uint32_t turn; /* counts collectives */
    uint64_t size; /* elements of a sum, else bytes of a block */
    uint64_t list; /* digest of the sizes of allgatherv */
} gcomp_sockets_part;

/* The first words of a connection. */
typedef struct gcomp_sockets_hello {
    char magic[8];
    uint64_t job;
    uint32_t order; /* a number that reads otherwise in the other byte order */
    uint32_t world;
    uint32_t rank;
    uint32_t port; /* where this worker listens */
} gcomp_sockets_hello;

/* Where a worker listens, told by rank 0, whose own place holds the magic. */
typedef struct gcomp_sockets_place {
    char host[56];
    char port[8];
} gcomp_sockets_place;

/* What still has to move to and from one worker. */
typedef struct gcomp_sockets_flow {
    const unsigned char *out;
    unsigned char *in;
    size_t out_left, in_left;
} gcomp_sockets_flow;

typedef struct gcomp_sockets {
    int rank;
    int world;
    int failed; /* for ever */
    uint32_t turn;
    double timeout;
    int *peers;                /* [world] connections, -1: none */
    struct pollfd *polls;      /* [world] */
    gcomp_sockets_flow *flows; /* [world] */
    gcomp_sockets_part *parts; /* [world] */
    unsigned char *buffer;     /* [world][GCOMP_SOCKETS_PIECE] */
} gcomp_sockets;

static inline double gcomp_sockets_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds for poll until then, at least 1. */
static inline int gcomp_sockets_wait(double then)
{
    double left = (then - gcomp_sockets_now()) * 1e3 + 1;
    return left > 1e6 ? 1000000 : left < 1 ? 1 : (int)left;
}

/* Ends the group: all others fail at once instead of after the timeout. For a worker that gives up. */
static inline void gcomp_sockets_fail(gcomp_sockets *s)
{
    s->failed = 1;
    for (int w = 0; w < s->world; w++)
        if (s->peers[w] >= 0)
            shutdown(s->peers[w], SHUT_RDWR);
}

/* Closes all connections and frees the group. NULL is allowed. */
static inline void gcomp_sockets_close(gcomp_sockets *s)
{
    if (!s)
        return;
    for (int w = 0; s->peers && w < s->world; w++)
        if (s->peers[w] >= 0)
            close(s->peers[w]);
    free(s->peers);
    free(s->polls);
    free(s->flows);
    free(s->parts);
    free(s->buffer);
    free(s);
}

/* Sends and receives what can be at once, of what events names. Returns the bytes moved, -1 if the connection is gone. */
static inline long gcomp_sockets_some(int fd, gcomp_sockets_flow *flow, int events)
{
    long moved = 0;
    if (flow->out_left && (events & POLLOUT)) {
        ssize_t n = send(fd, flow->out, flow->out_left, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return -1;
        if (n > 0) {
            flow->out += n;
            flow->out_left -= (size_t)n;
            moved += (long)n;
        }
    }
    if (flow->in_left && (events & POLLIN)) {
        ssize_t n = recv(fd, flow->in, flow->in_left, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return -1;
        if (n > 0) {
            flow->in += n;
            flow->in_left -= (size_t)n;
            moved += (long)n;
        }
    }
    return moved;
}

/* Returns as poll. Who sleeps takes long to wake, so it looks some times before, and lets others compute in between. */
static inline int gcomp_sockets_look(gcomp_sockets *s, double then)
{
    int ready = 0;
    for (int k = 0; k < GCOMP_SOCKETS_LOOKS && ready == 0; k++) {
        ready = poll(s->polls, (nfds_t)s->world, 0);
        if (ready == 0)
            sched_yield();
    }
    return ready ? ready : poll(s->polls, (nfds_t)s->world, gcomp_sockets_wait(then));
}

/* Carries out the flows to worker `to` and from worker `from`, -1: all; in whatever order the others are in, so that two
   that send to each other cannot block each other. */
static inline int gcomp_sockets_move_some(gcomp_sockets *s, int to, int from)
{
    double then = gcomp_sockets_now() + s->timeout;
    while (!s->failed) {
        int busy = 0, ready;
        for (int w = 0; w < s->world; w++) {
            int out = s->flows[w].out_left && (to < 0 || to == w), in = s->flows[w].in_left && (from < 0 || from == w);
            s->polls[w].events = (short)((out ? POLLOUT : 0) | (in ? POLLIN : 0));
            s->polls[w].revents = 0;
            s->polls[w].fd = s->polls[w].events ? s->peers[w] : -1;
            busy |= s->polls[w].events;
        }
        if (!busy)
            return 0;
        ready = gcomp_sockets_look(s, then);
        for (int w = 0; ready > 0 && w < s->world; w++) {
            gcomp_sockets_flow *flow = &s->flows[w];
            long moved = s->polls[w].revents ? gcomp_sockets_some(s->peers[w], flow, s->polls[w].events) : 0;
            if (moved < 0)
                gcomp_sockets_fail(s);
            if (moved > 0)
                then = gcomp_sockets_now() + s->timeout;
        }
        if (gcomp_sockets_now() >= then)
            gcomp_sockets_fail(s);
    }
    return GCOMP_SOCKETS_FAILED;
}

/* Carries out all flows: what is small at once, what is large in turns, in each of which every worker sends to one other
   and receives from one other. Many that send to one at once would overrun its link, and send again what got lost. */
static inline int gcomp_sockets_move(gcomp_sockets *s)
{
    size_t most = 0;
    int error = 0;
    for (int w = 0; w < s->world; w++) {
        most = s->flows[w].out_left > most ? s->flows[w].out_left : most;
        most = s->flows[w].in_left > most ? s->flows[w].in_left : most;
    }
    if (most <= GCOMP_SOCKETS_AT_ONCE)
        return gcomp_sockets_move_some(s, -1, -1);
    for (int turn = 1; turn < s->world && !error; turn++)
        error = gcomp_sockets_move_some(s, (s->rank + turn) % s->world, (s->rank + s->world - turn) % s->world);
    return error;
}

/* Gives every other worker a flow: out bytes of `send` + w * send_step, in bytes to `recv` + w * recv_step. */
static inline void gcomp_sockets_flow_all(gcomp_sockets *s, const void *send, size_t send_step, size_t out, void *recv,
                                          size_t recv_step, size_t in)
{
    for (int w = 0; w < s->world; w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        flow->out = (const unsigned char *)send + (size_t)w * send_step;
        flow->in = (unsigned char *)recv + (size_t)w * recv_step;
        flow->out_left = w == s->rank ? 0 : out;
        flow->in_left = w == s->rank ? 0 : in;
    }
}

/* The meeting: all compare what all bring with what rank 0 brings, and so conclude the same. */
static inline int gcomp_sockets_meet(gcomp_sockets *s, gcomp_sockets_kind kind, uint32_t root, size_t size, uint64_t list)
{
    gcomp_sockets_part *mine = &s->parts[s->rank];
    int verdict = 0;
    if (s->failed)
        return GCOMP_SOCKETS_FAILED;
    mine->magic = 0x4b534347u;
    mine->kind = (uint32_t)kind;
    mine->root = root;
    mine->turn = s->turn++;
    mine->size = size;
    mine->list = list;
    gcomp_sockets_flow_all(s, mine, 0, sizeof *mine, s->parts, sizeof *mine, sizeof *mine);
    if (gcomp_sockets_move(s))
        return GCOMP_SOCKETS_FAILED;
    for (int w = 0; w < s->world; w++) {
        if (s->parts[w].magic != mine->magic || s->parts[w].turn != mine->turn) {
            gcomp_sockets_fail(s); /* not what a worker sends: the stream is lost */
            return GCOMP_SOCKETS_FAILED;
        }
        if (memcmp(&s->parts[w], &s->parts[0], sizeof *mine) != 0)
            verdict = GCOMP_SOCKETS_MISMATCH;
    }
    return verdict;
}

/* The parting: success on all once rank 0 has heard from all that they have everything. What happens to a worker
   after that is the next collective's matter. */
static inline int gcomp_sockets_part_company(gcomp_sockets *s)
{
    unsigned char word = 1;
    if (s->rank) {
        gcomp_sockets_flow_all(s, &word, 0, 0, &word, 0, 0);
        s->flows[0].out_left = 1;
        if (gcomp_sockets_move(s))
            return GCOMP_SOCKETS_FAILED;
        s->flows[0].in_left = 1;
        return gcomp_sockets_move(s);
    }
    gcomp_sockets_flow_all(s, &word, 0, 0, s->buffer, 1, 1);
    if (gcomp_sockets_move(s))
        return GCOMP_SOCKETS_FAILED;
    for (int w = 1; w < s->world; w++) /* one byte into an empty buffer; who is gone does not change the verdict */
        if (send(s->peers[w], &word, 1, MSG_NOSIGNAL) != 1)
            shutdown(s->peers[w], SHUT_RDWR);
    return 0;
}

/* sum[i] <- fold of sum[i] and other[i], a function a type. */
#define GCOMP_SOCKETS_FOLD(name, type, fold)                                                                   \
    static inline void name(void *sums, const void *others, size_t count)                                      \
    {                                                                                                          \
        type *sum = (type *)sums;                                                                              \
        const type *other = (const type *)others;                                                              \
        for (size_t i = 0; i < count; i++)                                                                     \
            sum[i] = (type)(fold);                                                                             \
    }
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum, float, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum8, int8_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum16, int16_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum32, int32_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_largest, float, other[i] > sum[i] ? other[i] : sum[i])
#undef GCOMP_SOCKETS_FOLD

/* One piece of a sum: elements begin[w] .. begin[w + 1] - 1 are worker w's shard. Each gets its shard from all,
   folds it in rank order, and gives it to all. */
static inline int gcomp_sockets_fold_piece(gcomp_sockets *s, unsigned char *data, size_t count, size_t bytes,
                                           void (*fold)(void *, const void *, size_t))
{
    size_t world = (size_t)s->world, rank = (size_t)s->rank;
    size_t begin = count * rank / world, shard = count * (rank + 1) / world - begin;
    int error;
    gcomp_sockets_flow_all(s, data, 0, 0, s->buffer, GCOMP_SOCKETS_PIECE, shard * bytes);
    for (size_t w = 0; w < world; w++) {
        size_t other = count * w / world;
        s->flows[w].out = data + other * bytes;
        s->flows[w].out_left = w == rank ? 0 : (count * (w + 1) / world - other) * bytes;
    }
    error = gcomp_sockets_move(s);
    if (error)
        return error;
    memcpy(s->buffer + rank * GCOMP_SOCKETS_PIECE, data + begin * bytes, shard * bytes);
    for (size_t w = 1; w < world; w++)
        fold(s->buffer, s->buffer + w * GCOMP_SOCKETS_PIECE, shard);
    memcpy(data + begin * bytes, s->buffer, shard * bytes);
    gcomp_sockets_flow_all(s, data + begin * bytes, 0, shard * bytes, data, 0, 0);
    for (size_t w = 0; w < world; w++) {
        size_t other = count * w / world;
        s->flows[w].in = data + other * bytes;
        s->flows[w].in_left = w == rank ? 0 : (count * (w + 1) / world - other) * bytes;
    }
    return gcomp_sockets_move(s);
}

static inline int gcomp_sockets_reduce(gcomp_sockets *s, gcomp_sockets_kind kind, void *data, size_t count,
                                       gcomp_dtype dtype)
{
    void (*fold)(void *, const void *, size_t) = NULL;
    size_t bytes = dtype == GCOMP_I8 ? 1 : dtype == GCOMP_I16 ? 2 : 4;
    size_t most = GCOMP_SOCKETS_PIECE / bytes * (size_t)s->world;
    int error = gcomp_sockets_meet(s, kind, (uint32_t)dtype, count, 0);
    if (error)
        return error;
    if (kind == GCOMP_SOCKETS_MAX)
        fold = gcomp_sockets_largest;
    else if (dtype == GCOMP_F32)
        fold = gcomp_sockets_sum;
    else if (dtype == GCOMP_I8)
        fold = gcomp_sockets_sum8;
    else if (dtype == GCOMP_I16)
        fold = gcomp_sockets_sum16;
    else if (dtype == GCOMP_I32)
        fold = gcomp_sockets_sum32;
    if (!fold)
        return GCOMP_SOCKETS_MISMATCH; /* on all: they bring the same */
    for (size_t at = 0; at < count && !error; at += most)
        error = gcomp_sockets_fold_piece(s, (unsigned char *)data + at * bytes, count - at < most ? count - at : most,
                                         bytes, fold);
    return error ? error : gcomp_sockets_part_company(s);
}

/* data[count] <- sum over the workers, in place. */
static inline int gcomp_sockets_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    return gcomp_sockets_reduce((gcomp_sockets *)user, GCOMP_SOCKETS_ALLREDUCE, data, count, dtype);
}

/* data[count] <- the largest of the workers, in place. */
static inline int gcomp_sockets_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_sockets_reduce((gcomp_sockets *)user, GCOMP_SOCKETS_MAX, data, count, GCOMP_F32);
}

/* After the meeting: the flows, then the parting. */
static inline int gcomp_sockets_finish(gcomp_sockets *s)
{
    int error = gcomp_sockets_move(s);
    return error ? error : gcomp_sockets_part_company(s);
}

/* all[world * bytes] <- mine[bytes] of every worker, in rank order. */
static inline int gcomp_sockets_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    int error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHER, 0, bytes, 0);
    if (error)
        return error;
    if (bytes) /* a worker may send from its own place */
        memmove((unsigned char *)all + (size_t)s->rank * bytes, mine, bytes);
    gcomp_sockets_flow_all(s, mine, 0, bytes, all, bytes, bytes);
    return gcomp_sockets_finish(s);
}

/* all + w * stride <- bytes[w] bytes of worker w, for all w. */
static inline int gcomp_sockets_allgatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    uint64_t list = 1469598103934665603u;
    int error, too_long = 0;
    for (int w = 0; w < s->world; w++) {
        list = (list ^ (uint64_t)bytes[w]) * 1099511628211u;
        too_long |= bytes[w] > stride;
    }
    error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHERV, 0, stride, list);
    if (error || too_long)
        return error ? error : GCOMP_SOCKETS_MISMATCH;
    if (bytes[s->rank])
        memmove((unsigned char *)all + (size_t)s->rank * stride, mine, bytes[s->rank]);
    gcomp_sockets_flow_all(s, mine, 0, bytes[s->rank], all, stride, 0);
    for (int w = 0; w < s->world; w++)
        s->flows[w].in_left = w == s->rank ? 0 : bytes[w];
    return gcomp_sockets_finish(s);
}

/* Worker w gets sent[w] bytes of send, and awaited[w] bytes come from it; both lie back to back in rank order, the own
   ones too. Two that do not agree about a size end the group, for nobody else sees it. */
static inline int gcomp_sockets_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                                          const size_t *awaited)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    const unsigned char *from = (const unsigned char *)send;
    unsigned char *to = (unsigned char *)recv;
    int error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLTOALLV, 0, 0, 0);
    if (error)
        return error;
    for (int w = 0; w < s->world; w++)
        s->parts[w].list = sent[w];
    gcomp_sockets_flow_all(s, &s->parts[0].list, sizeof *s->parts, sizeof s->parts[0].list, &s->parts[0].size,
                           sizeof *s->parts, sizeof s->parts[0].size);
    s->parts[s->rank].size = sent[s->rank];
    error = gcomp_sockets_move(s);
    for (int w = 0; w < s->world && !error; w++)
        if (s->parts[w].size != awaited[w]) {
            gcomp_sockets_fail(s);
            error = GCOMP_SOCKETS_FAILED;
        }
    for (int w = 0; w < s->world && !error; from += sent[w], to += awaited[w], w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        flow->out = from;
        flow->in = to;
        flow->out_left = w == s->rank ? 0 : sent[w];
        flow->in_left = w == s->rank ? 0 : awaited[w];
        if (w == s->rank && sent[w])
            memcpy(to, from, sent[w]);
    }
    return error ? error : gcomp_sockets_finish(s);
}

/* data[bytes] <- data of worker `root`, for weights at the start or after a failure. */
static inline int gcomp_sockets_broadcast(void *user, void *data, size_t bytes, int root)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    int error = gcomp_sockets_meet(s, GCOMP_SOCKETS_BROADCAST, (uint32_t)root, bytes, 0);
    if (error || root < 0 || root >= s->world)
        return error ? error : GCOMP_SOCKETS_MISMATCH;
    gcomp_sockets_flow_all(s, data, 0, s->rank == root ? bytes : 0, data, 0, 0);
    if (s->rank != root)
        s->flows[root].in_left = bytes;
    return gcomp_sockets_finish(s);
}

/* Returns when all workers have called it. */
static inline int gcomp_sockets_barrier(void *user)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    int error = gcomp_sockets_meet(s, GCOMP_SOCKETS_BARRIER, 0, 0, 0);
    return error ? error : gcomp_sockets_part_company(s);
}

/* ---- connecting */

/* A connection that never blocks and sends small messages at once. Returns it, or -1 with the socket closed. */
static inline int gcomp_sockets_tune(int fd)
{
    int on = 1, flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* without it: the same bytes, later */
    return fd;
}

/* Listens at a numeric or named address; port "0": any. Returns the socket, or -1 with errno. */
static inline int gcomp_sockets_listen(const char *host, const char *port, int backlog)
{
    struct addrinfo hints, *found = NULL;
    int fd = -1, on = 1, error = EADDRNOTAVAIL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) == 0) {
        fd = socket(found->ai_family, SOCK_STREAM, 0);
        if (fd >= 0) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, backlog) != 0) {
                error = errno;
                close(fd);
                fd = -1;
            } else {
                fd = gcomp_sockets_tune(fd);
            }
        }
        freeaddrinfo(found);
    }
    errno = error;
    return fd;
}

/* One attempt to connect. flags: of getaddrinfo. Returns the connection or -1. */
static inline int gcomp_sockets_try(const char *host, const char *port, int flags, double then)
{
    struct addrinfo hints, *found = NULL;
    int fd = -1, failed = 1;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd >= 0)
        fd = gcomp_sockets_tune(fd);
    if (fd >= 0) {
        failed = connect(fd, found->ai_addr, found->ai_addrlen) != 0;
        if (failed && errno == EINPROGRESS) {
            struct pollfd p;
            socklen_t length = sizeof failed;
            p.fd = fd;
            p.events = POLLOUT;
            p.revents = 0;
            failed = poll(&p, 1, gcomp_sockets_wait(then)) != 1
                     || getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length) != 0 || failed;
        }
        if (failed) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

/* Connects, again and again until somebody listens there. Returns the connection or -1. */
static inline int gcomp_sockets_connect(const gcomp_sockets_place *to, int flags, double then)
{
    for (;;) {
        int fd = gcomp_sockets_try(to->host, to->port, flags, then);
        if (fd >= 0 || gcomp_sockets_now() >= then)
            return fd;
        poll(NULL, 0, 20);
    }
}

/* Moves one flow of a connection to its end. Returns 0, or an errno value. */
static inline int gcomp_sockets_all_of(int fd, gcomp_sockets_flow flow, double then)
{
    while (flow.out_left || flow.in_left) {
        struct pollfd p;
        p.fd = fd;
        p.events = flow.out_left ? POLLOUT : POLLIN;
        p.revents = 0;
        if (gcomp_sockets_now() >= then)
            return ETIMEDOUT;
        if (poll(&p, 1, gcomp_sockets_wait(then)) == 1 && gcomp_sockets_some(fd, &flow, p.events) < 0)
            return ECONNRESET;
    }
    return 0;
}

/* The number and port behind an address. */
static inline int gcomp_sockets_name(const struct sockaddr_storage *address, socklen_t length, gcomp_sockets_place *place)
{
    return getnameinfo((const struct sockaddr *)(const void *)address, length, place->host, sizeof place->host, place->port,
                       sizeof place->port, NI_NUMERICHOST | NI_NUMERICSERV)
               ? EAFNOSUPPORT
               : 0;
}

/* Is this the hello of a worker that is still missing? Then the connection is its. */
static inline int gcomp_sockets_admit(gcomp_sockets *s, int fd, const gcomp_sockets_hello *hello,
                                      const gcomp_sockets_hello *own, gcomp_sockets_place *places)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    gcomp_sockets_place *place;
    if (memcmp(hello->magic, own->magic, sizeof own->magic) != 0 || hello->job != own->job || hello->order != own->order
        || hello->world != own->world || hello->rank <= own->rank || hello->rank >= own->world || hello->port > 65535
        || s->peers[hello->rank] >= 0)
        return 0;
    place = &places[hello->rank];
    if (getpeername(fd, (struct sockaddr *)(void *)&address, &length) != 0 || gcomp_sockets_name(&address, length, place) != 0)
        return 0;
    snprintf(place->port, sizeof place->port, "%u", (unsigned)hello->port);
    s->peers[hello->rank] = fd;
    return 1;
}

/* Accepts the workers of higher rank. Strangers, and workers of other jobs, are sent away; who connects and says nothing
   holds up nobody. Returns 0, or ETIMEDOUT. */
static inline int gcomp_sockets_accept(gcomp_sockets *s, int listener, const gcomp_sockets_hello *own,
                                       gcomp_sockets_place *places, double then)
{
    struct pollfd polls[GCOMP_SOCKETS_PENDING + 1];
    gcomp_sockets_hello hellos[GCOMP_SOCKETS_PENDING];
    gcomp_sockets_flow flows[GCOMP_SOCKETS_PENDING];
    int missing = s->world - 1 - s->rank, oldest = 0;
    for (int i = 0; i <= GCOMP_SOCKETS_PENDING; i++) {
        polls[i].fd = i == GCOMP_SOCKETS_PENDING ? listener : -1;
        polls[i].events = POLLIN;
        polls[i].revents = 0;
    }
    while (missing && gcomp_sockets_now() < then) {
        if (poll(polls, GCOMP_SOCKETS_PENDING + 1, gcomp_sockets_wait(then)) <= 0)
            continue;
        for (int i = 0; i < GCOMP_SOCKETS_PENDING; i++) {
            long moved = polls[i].fd >= 0 && polls[i].revents ? gcomp_sockets_some(polls[i].fd, &flows[i], POLLIN) : 0;
            int admitted = 0;
            if (moved >= 0 && (polls[i].fd < 0 || flows[i].in_left))
                continue;
            if (moved >= 0)
                admitted = gcomp_sockets_admit(s, polls[i].fd, &hellos[i], own, places);
            if (!admitted)
                close(polls[i].fd);
            polls[i].fd = -1;
            missing -= admitted;
        }
        if (missing && polls[GCOMP_SOCKETS_PENDING].revents) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0)
                fd = gcomp_sockets_tune(fd);
            if (fd < 0)
                continue;
            if (polls[oldest].fd >= 0)
                close(polls[oldest].fd);
            polls[oldest].fd = fd;
            memset(&flows[oldest], 0, sizeof flows[oldest]);
            flows[oldest].in = (unsigned char *)&hellos[oldest];
            flows[oldest].in_left = sizeof hellos[oldest];
            oldest = (oldest + 1) % GCOMP_SOCKETS_PENDING;
        }
    }
    for (int i = 0; i < GCOMP_SOCKETS_PENDING; i++)
        if (polls[i].fd >= 0)
            close(polls[i].fd);
    return missing ? ETIMEDOUT : 0;
}

/* Says hello to a worker of lower rank. */
static inline int gcomp_sockets_greet(gcomp_sockets *s, int rank, const gcomp_sockets_hello *own, double then)
{
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    flow.out = (const unsigned char *)own;
    flow.out_left = sizeof *own;
    return gcomp_sockets_all_of(s->peers[rank], flow, then);
}

/* Rank 0: accepts all, and tells them where each listens. */
static inline int gcomp_sockets_host(gcomp_sockets *s, const gcomp_sockets_hello *own, gcomp_sockets_place *places,
                                     const gcomp_sockets_place *root, double then)
{
    int listener = gcomp_sockets_listen(root->host, root->port, s->world + GCOMP_SOCKETS_PENDING), error;
    if (listener < 0)
        return errno;
    error = gcomp_sockets_accept(s, listener, own, places, then);
    close(listener);
    memcpy(places[0].host, own->magic, sizeof own->magic);
    for (int w = 1; w < s->world && !error; w++) {
        gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
        flow.out = (const unsigned char *)places;
        flow.out_left = (size_t)s->world * sizeof *places;
        error = gcomp_sockets_all_of(s->peers[w], flow, then);
    }
    return error;
}

/* Another rank: meets rank 0, hears where the others are, calls those of lower rank and is called by the others. */
static inline int gcomp_sockets_join(gcomp_sockets *s, gcomp_sockets_hello *own, gcomp_sockets_place *places,
                                     const gcomp_sockets_place *root, double then)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    gcomp_sockets_place here;
    int listener, error;
    s->peers[0] = gcomp_sockets_connect(root, 0, then);
    if (s->peers[0] < 0)
        return ETIMEDOUT;
    if (getsockname(s->peers[0], (struct sockaddr *)(void *)&address, &length) != 0
        || gcomp_sockets_name(&address, length, &here) != 0)
        return EAFNOSUPPORT;
    listener = gcomp_sockets_listen(here.host, "0", s->world + GCOMP_SOCKETS_PENDING);
    length = sizeof address;
    if (listener < 0)
        return errno;
    error = getsockname(listener, (struct sockaddr *)(void *)&address, &length) != 0 ? errno : 0;
    if (!error)
        error = gcomp_sockets_name(&address, length, &here);
    own->port = (uint32_t)strtoul(here.port, NULL, 10);
    if (!error)
        error = gcomp_sockets_greet(s, 0, own, then);
    flow.in = (unsigned char *)places;
    flow.in_left = (size_t)s->world * sizeof *places;
    if (!error)
        error = gcomp_sockets_all_of(s->peers[0], flow, then);
    if (!error && memcmp(places[0].host, own->magic, sizeof own->magic) != 0)
        error = EPROTO;
    for (int w = 1; w < s->rank && !error; w++) {
        places[w].host[sizeof places[w].host - 1] = 0;
        places[w].port[sizeof places[w].port - 1] = 0;
        s->peers[w] = gcomp_sockets_connect(&places[w], AI_NUMERICHOST | AI_NUMERICSERV, then);
        error = s->peers[w] < 0 ? ETIMEDOUT : gcomp_sockets_greet(s, w, own, then);
    }
    if (!error)
        error = gcomp_sockets_accept(s, listener, own, places, then);
    close(listener);
    return error;
}

/* Connects this worker with all others; returns on all when all are connected. host, port: where rank 0 listens, best a
   number, the port below those that the system hands out (Linux: 32768). job: any number, the same on all and another
   for each job. timeout: how long to wait for the others here, and later for something to move. Returns 0 or an errno
   value: EINVAL, ENOMEM, EADDRINUSE and the like on rank 0, ETIMEDOUT if not all came, ECONNRESET if rank 0 sent this
   worker away (another job or world, a rank that is taken). On error *sockets is NULL. */
static inline int gcomp_sockets_open(gcomp_sockets **sockets, int rank, int world, const char *host, const char *port,
                                     uint64_t job, double timeout)
{
    double then = gcomp_sockets_now() + timeout;
    gcomp_sockets_hello own;
    gcomp_sockets_place root, *places;
    gcomp_sockets *s;
    int error;
    *sockets = NULL;
    if (world < 1 || rank < 0 || rank >= world || !(timeout > 0 && timeout <= 1e6) || strlen(host) >= sizeof root.host
        || strlen(port) >= sizeof root.port)
        return EINVAL;
    s = (gcomp_sockets *)calloc(1, sizeof *s);
    if (!s)
        return ENOMEM;
    s->rank = rank;
    s->world = world;
    s->timeout = timeout;
    s->peers = (int *)malloc((size_t)world * sizeof *s->peers);
    s->polls = (struct pollfd *)calloc((size_t)world, sizeof *s->polls);
    s->flows = (gcomp_sockets_flow *)calloc((size_t)world, sizeof *s->flows);
    s->parts = (gcomp_sockets_part *)calloc((size_t)world, sizeof *s->parts);
    s->buffer = (unsigned char *)malloc((size_t)world * GCOMP_SOCKETS_PIECE);
    places = (gcomp_sockets_place *)calloc((size_t)world, sizeof *places);
    for (int w = 0; s->peers && w < world; w++)
        s->peers[w] = -1;
    error = s->peers && s->polls && s->flows && s->parts && s->buffer && places ? 0 : ENOMEM;
    memset(&own, 0, sizeof own);
    memcpy(own.magic, "GCOMPSK1", sizeof own.magic);
    own.job = job;
    own.order = 0x01020304u;
    own.world = (uint32_t)world;
    own.rank = (uint32_t)rank;
    memset(&root, 0, sizeof root);
    memcpy(root.host, host, strlen(host));
    memcpy(root.port, port, strlen(port));
    if (!error && world > 1)
        error = rank ? gcomp_sockets_join(s, &own, places, &root, then) : gcomp_sockets_host(s, &own, places, &root, then);
    if (!error && gcomp_sockets_barrier(s) != 0)
        error = ETIMEDOUT;
    free(places);
    if (error) {
        gcomp_sockets_close(s);
        return error;
    }
    *sockets = s;
    return 0;
}

/* The transport, for gcomp_desc.comm. Valid until the group is closed. */
static inline gcomp_comm gcomp_sockets_comm(gcomp_sockets *s)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.user = s;
    comm.rank = s->rank;
    comm.world = s->world;
    comm.allreduce = gcomp_sockets_allreduce;
    comm.allgather = gcomp_sockets_allgather;
    comm.allgatherv = gcomp_sockets_allgatherv;
    comm.allreduce_max = gcomp_sockets_allreduce_max;
    comm.alltoallv = gcomp_sockets_alltoallv;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return comm;
}

#endif /* GCOMP_SOCKETS_H */
