/* Requests of every kind, for tests of transports that carry them out while the caller goes on. */

#ifndef REQUESTS_H
#define REQUESTS_H

#include "gcomp.h"

#include <sched.h>
#include <stdint.h>
#include <string.h>

/* Values whose sum depends on the order of addition: magnitudes from 2^-20 to 2^20. */
static inline float value(int rank, size_t i)
{
    uint64_t x = (uint64_t)(i * 16 + (size_t)rank + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return ((float)(x >> 40) - 8388608.0f) * (1.0f / 8388608.0f) * (float)(1u << (x & 15));
}

static inline gcomp_request sum_request(uint32_t id, float *data, size_t count)
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
static inline int ask_until_done(const gcomp_comm *comm, uint32_t id)
{
    int done = 0, status = 0;
    while (!done && !status) {
        status = comm->test(comm->user, id, &done);
        if (!done) sched_yield();
    }
    return status;
}

/* Eight requests of every kind at once, that are asked for in another order; between: what else the caller does meanwhile, in this
   round; taken: what start returns where a place is taken. *wrong += failed checks. Returns a status of the transport. */
static inline int eight_requests(const gcomp_comm *comm, int round, int taken, int (*between)(void *user, int round), int *wrong)
{
    enum { WORKERS = 8, SUMS = 4, COUNT = 700, EACH = 24 };
    float sums[SUMS][COUNT], most[COUNT];
    unsigned char mine[EACH], all[WORKERS * EACH], uneven[WORKERS * EACH], send[WORKERS * 40], recv[WORKERS * 40];
    size_t whole[WORKERS], part[WORKERS], sent[WORKERS], at = 0;
    const int world = comm->world, rank = comm->rank;
    uint32_t id = (uint32_t)round * 8;
    gcomp_request r;
    int status = 0, done;
    for (int w = 0; w < world; w++) {
        whole[w] = EACH;
        part[w] = (size_t)w % 5 * 5;
        sent[w] = (size_t)((rank + w) % 3 * 20); /* the sizes are the same in both directions */
        memset(send + at, 16 * rank + w, sent[w]);
        at += sent[w];
    }
    memset(mine, rank + 1, sizeof mine);
    memset(all, 0xee, sizeof all);
    memset(uneven, 0xee, sizeof uneven);
    for (int k = 0; k < SUMS; k++) {
        for (size_t i = 0; i < COUNT; i++) sums[k][i] = value(rank + k, i);
        r = sum_request(id++, sums[k], COUNT);
        status |= comm->start(comm->user, &r);
    }
    for (size_t i = 0; i < COUNT; i++) most[i] = value(rank, i);
    r = sum_request(id++, most, COUNT);
    r.kind = GCOMP_ALLREDUCE_MAX;
    status |= comm->start(comm->user, &r);
    memset(&r, 0, sizeof r);
    r.kind = GCOMP_ALLGATHER;
    r.id = id++;
    r.send = mine;
    r.recv = all;
    r.stride = EACH;
    r.bytes = whole;
    status |= comm->start(comm->user, &r);
    r.id = id++;
    r.recv = uneven;
    r.bytes = part;
    status |= comm->start(comm->user, &r);
    r.kind = GCOMP_ALLTOALL;
    r.id = id++;
    r.send = send;
    r.recv = recv;
    r.send_bytes = r.bytes = sent;
    status |= comm->start(comm->user, &r);
    *wrong += comm->start(comm->user, &r) != taken;
    *wrong += comm->test(comm->user, id + 8, &done) != taken;
    status |= between(comm->user, round);
    for (uint32_t k = 0; k < 8; k += 2) status |= ask_until_done(comm, id - 1 - k);
    for (uint32_t k = 1; k < 8; k += 2) status |= comm->wait(comm->user, id - 1 - k);
    *wrong += comm->wait(comm->user, id - 1) != taken; /* it is over */
    for (size_t i = 0; i < COUNT; i++) {
        float largest = value(0, i);
        for (int w = 1; w < world; w++) largest = value(w, i) > largest ? value(w, i) : largest;
        *wrong += memcmp(&largest, &most[i], 4) != 0;
        for (int k = 0; k < SUMS; k++) {
            float sum = value(k, i);
            for (int w = 1; w < world; w++) sum += value(w + k, i);
            *wrong += memcmp(&sum, &sums[k][i], 4) != 0;
        }
    }
    for (size_t i = 0; i < (size_t)world * EACH; i++) {
        *wrong += all[i] != i / EACH + 1;
        *wrong += uneven[i] != (i % EACH < part[i / EACH] ? i / EACH + 1 : 0xee);
    }
    at = 0;
    for (int w = 0; w < world; w++)
        for (size_t i = 0; i < sent[w]; i++, at++) *wrong += recv[at] != 16 * w + rank;
    return status;
}

#endif
