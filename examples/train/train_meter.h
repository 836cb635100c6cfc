/* train_meter.h - what train.c measures: bytes through the transport, and seconds of one worker. */

#ifndef TRAIN_METER_H
#define TRAIN_METER_H

#include "gcomp.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A transport that calls the real one, and counts the time spent there, the calls, and the bytes
   that this worker sends over the network and gets from it. Of an allreduce that is what a ring
   sends: 2 (world - 1) / world times the bytes. */
typedef struct meter {
    gcomp_comm inner;
    double sent, received, calls, seconds;
} meter;

/* Seconds that this thread has computed: waiting for others, or for a core, does not count. */
static inline double train_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that have passed. */
static inline double train_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the bytes that a network interface (Linux) has sent and received so far. NULL: adds
   nothing. */
static inline void train_interface(const char *name, double bytes[2])
{
    for (int i = 0; name && i < 2; i++) {
        char path[128];
        double count = 0;
        FILE *file;
        snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s_bytes", name, i ? "rx" : "tx");
        file = fopen(path, "r");
        if (file && fscanf(file, "%lf", &count) == 1) bytes[i] += count;
        if (file) fclose(file);
    }
}

static inline void meter_sum(meter *m, double bytes)
{
    const double world = (double)m->inner.world;
    m->sent += 2 * (world - 1) / world * bytes;
    m->received += 2 * (world - 1) / world * bytes;
    m->calls++;
}

static inline int meter_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    meter *m = (meter *)user;
    double begin = train_seconds();
    int error = m->inner.allreduce(m->inner.user, data, count, dtype);
    meter_sum(m, (double)count * (dtype == GCOMP_I8                            ? 1
                                  : dtype == GCOMP_F32 || dtype == GCOMP_I32 ? 4
                                                                             : 2));
    m->seconds += train_seconds() - begin;
    return error;
}

static inline int meter_allreduce_max(void *user, float *data, size_t count)
{
    meter *m = (meter *)user;
    double begin = train_seconds();
    int error = m->inner.allreduce_max(m->inner.user, data, count);
    meter_sum(m, (double)count * sizeof(float));
    m->seconds += train_seconds() - begin;
    return error;
}

static inline int meter_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    meter *m = (meter *)user;
    double begin = train_seconds();
    int error = m->inner.allgather(m->inner.user, mine, all, bytes);
    m->sent += (double)(m->inner.world - 1) * (double)bytes;
    m->received += (double)(m->inner.world - 1) * (double)bytes;
    m->calls++;
    m->seconds += train_seconds() - begin;
    return error;
}

static inline int meter_allgatherv(void *user, const void *mine, void *all, const size_t *bytes,
                                   size_t stride)
{
    meter *m = (meter *)user;
    double begin = train_seconds();
    int error = m->inner.allgatherv(m->inner.user, mine, all, bytes, stride);
    m->sent += (double)(m->inner.world - 1) * (double)bytes[m->inner.rank];
    m->calls++;
    for (int w = 0; w < m->inner.world; w++)
        m->received += w == m->inner.rank ? 0.0 : (double)bytes[w];
    m->seconds += train_seconds() - begin;
    return error;
}

static inline int meter_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                                  const size_t *awaited)
{
    meter *m = (meter *)user;
    double begin = train_seconds();
    int error = m->inner.alltoallv(m->inner.user, send, sent, recv, awaited);
    for (int w = 0; w < m->inner.world; w++) {
        m->sent += w == m->inner.rank ? 0.0 : (double)sent[w];
        m->received += w == m->inner.rank ? 0.0 : (double)awaited[w];
    }
    m->calls++;
    m->seconds += train_seconds() - begin;
    return error;
}

static inline gcomp_comm meter_comm(meter *m, const gcomp_comm *inner)
{
    gcomp_comm comm = *inner;
    memset(m, 0, sizeof *m);
    m->inner = *inner;
    comm.user = m;
    comm.allreduce = meter_allreduce;
    comm.allgather = meter_allgather;
    comm.allgatherv = inner->allgatherv ? meter_allgatherv : NULL;
    comm.allreduce_max = inner->allreduce_max ? meter_allreduce_max : NULL;
    comm.alltoallv = inner->alltoallv ? meter_alltoallv : NULL;
    comm.start = NULL; /* what is under way while others compute has no time of its own */
    comm.test = NULL;
    comm.wait = NULL;
    return comm;
}

#endif /* TRAIN_METER_H */
