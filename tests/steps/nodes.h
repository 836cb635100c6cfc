/* What tests of two levels share: machines of workers, which are threads. */

#ifndef NODES_H
#define NODES_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_threads.h"
#include "test.h"
#include <setjmp.h>

enum { MOST = 6, NODES = 3, TENSORS = 3, LARGEST = 3000, ALL = 2 * LARGEST };
static const size_t rows[TENSORS] = {60, 37, 50}, cols[TENSORS] = {50, 0, 40};
typedef struct fleet fleet;

typedef struct member {
    fleet *of;
    gcomp *gc;
    gcomp_comm within; /* of the node, without what stands before it here */
    int rank;
    gcomp_result result;
    float grad[TENSORS][LARGEST];
    uint16_t half[LARGEST]; /* of the last tensor, where it is of 16 bits */
    int calls, fail_at, damage_at; /* callbacks of the node: count, which one fails (from 1), which one's bytes are changed */
    int breaks;                    /* a failing one breaks the node's transport for all */
    size_t summed;                 /* bytes of all sums within the node */
    gcomp_comm beyond;             /* that between machines, likewise */
    int trips, trip_fails_at, trip_lies_at;
    int tied;                      /* its gradient of the second tensor begins in the last element of the first one's */
    jmp_buf *way_out;              /* where a failing callback jumps to, in the place of a return */
} member;

struct fleet {
    int nodes, each, halves;
    gcomp_aggregate aggregate;
    gcomp_step step;
    int skip; /* a tensor, or -1 */
    gcomp_threads *within[NODES], *between;
    member m[MOST];
};

/* ---------------- transports that fail when told to */

static inline int fails(member *m)
{
    if (++m->calls != m->fail_at) return 0;
    if (m->breaks) gcomp_threads_fail(m->of->within[m->rank / m->of->each]);
    if (m->way_out) longjmp(*m->way_out, 1);
    return 1;
}

static inline int trip_fails(member *m)
{
    if (++m->trips != m->trip_fails_at) return 0;
    if (m->way_out) longjmp(*m->way_out, 1);
    return 1;
}

static inline int beyond_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    member *m = (member *)user;
    int status = m->beyond.allreduce(m->beyond.user, data, count, dtype);
    if (m->trips + 1 == m->trip_lies_at) ((float *)data)[0] += 1;
    return trip_fails(m) ? 1 : status;
}

static inline int beyond_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    member *m = (member *)user;
    int status = m->beyond.allgather(m->beyond.user, mine, all, bytes);
    return trip_fails(m) ? 1 : status;
}

static inline int beyond_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *came)
{
    member *m = (member *)user;
    int status = m->beyond.alltoallv(m->beyond.user, send, sent, recv, came);
    return trip_fails(m) ? 1 : status;
}

static inline int node_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    member *m = (member *)user;
    int status = m->within.allreduce(m->within.user, data, count, dtype);
    m->summed += count * bytes_of_dtype(dtype);
    if (m->calls + 1 == m->damage_at) ((float *)data)[count - 1] += 1;
    return fails(m) ? 1 : status;
}

static inline int node_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    member *m = (member *)user;
    int status = m->within.allgather(m->within.user, mine, all, bytes);
    if (m->calls + 1 == m->damage_at) ((uint8_t *)all)[5] ^= 1;
    return fails(m) ? 1 : status;
}

static const char *schedule; /* of the next fleet */
static const char *residual; /* likewise */
static uint32_t checks;      /* its check_every */

static inline gcomp_desc desc_of(fleet *f, int r, const char *codec)
{
    gcomp_desc desc;
    member *m = &f->m[r];
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.schedule = schedule;
    desc.residual = residual;
    desc.check_every = checks;
    desc.min_elements = 1;
    desc.aggregate = f->aggregate;
    desc.bucket_bytes = f->halves ? 8000 : 0; /* two buckets */
    if (r % f->each == 0) {
        m->beyond = gcomp_threads_comm(f->between, r / f->each);
        desc.comm.user = m;
        desc.comm.allreduce = beyond_allreduce;
        desc.comm.allgather = beyond_allgather;
        desc.comm.alltoallv = beyond_alltoallv;
    }
    desc.comm.rank = r / f->each; /* callbacks of the others are not called: there are none */
    desc.comm.world = f->nodes;
    m->within = gcomp_threads_comm(f->within[r / f->each], r % f->each);
    desc.node.user = m;
    desc.node.rank = r % f->each;
    desc.node.world = f->each;
    desc.node.allreduce = node_allreduce;
    desc.node.allgather = node_allgather;
    return desc;
}

static inline gcomp_tensor tensor_of(const fleet *f, size_t t)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = names[t];
    tensor.rows = rows[t];
    tensor.cols = cols[t];
    if (f->halves && t == TENSORS - 1) tensor.dtype = GCOMP_F16;
    return tensor;
}

static gcomp_aggregate way; /* of the next fleet */
static double patience = 20; /* seconds that its workers wait for each other */

static inline void fleet_open(fleet *f, int nodes, int each, const char *codec, int halves)
{
    memset(f, 0, sizeof *f);
    f->step = default_step();
    f->aggregate = way;
    f->nodes = nodes;
    f->each = each;
    f->halves = halves;
    f->skip = -1;
    CHECK(gcomp_threads_open(&f->between, nodes, patience) == 0);
    for (int n = 0; n < nodes; n++) CHECK(gcomp_threads_open(&f->within[n], each, patience) == 0);
    for (int r = 0; r < nodes * each; r++) {
        gcomp_desc desc = desc_of(f, r, codec);
        f->m[r].of = f;
        f->m[r].rank = r;
        CHECK(gcomp_open(&f->m[r].gc, &desc) == GCOMP_OK);
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_tensor tensor = tensor_of(f, t);
            CHECK(gcomp_add_tensor(f->m[r].gc, &tensor) == GCOMP_OK);
        }
    }
}

static inline void fleet_close(fleet *f)
{
    for (int r = 0; r < f->nodes * f->each; r++) gcomp_close(f->m[r].gc);
    for (int n = 0; n < f->nodes; n++) gcomp_threads_close(f->within[n]);
    gcomp_threads_close(f->between);
}

static inline size_t elements(size_t t) { return rows[t] * (cols[t] ? cols[t] : 1); }

static inline float gradient(uint64_t step, int rank, size_t t, size_t i)
{
    uint64_t x = mix(step << 40 ^ (uint64_t)rank << 32 ^ t << 24 ^ i);
    return (float)((int)(x & 1023) - 512) / 256.0f; /* exact in 16 bits; sums of a few are exact in floats */
}

static inline uint16_t half_of(float x) /* a multiple of 1/256 below 4 */
{
    int e = 0, q = (int)(x < 0 ? -x * 256 : x * 256);
    if (!q) return 0;
    while (q >> (e + 1)) e++;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (e + 15 - 8) << 10 | (q << (10 - e) & 1023));
}

static inline void fleet_fill(fleet *f, uint64_t step)
{
    for (int r = 0; r < f->nodes * f->each; r++)
        for (size_t t = 0; t < TENSORS; t++)
            for (size_t i = 0; i < elements(t); i++) {
                f->m[r].grad[t][i] = gradient(step, r, t, i);
                if (f->halves && t == TENSORS - 1) f->m[r].half[i] = half_of(f->m[r].grad[t][i]);
            }
}

static inline void *turn(void *arg)
{
    member *m = (member *)arg;
    const fleet *f = m->of;
    void *grads[TENSORS];
    for (int t = 0; t < TENSORS; t++) grads[t] = t == f->skip ? NULL : (void *)m->grad[t];
    if (f->halves) grads[TENSORS - 1] = m->half;
    if (m->tied) grads[1] = m->grad[0] + LARGEST - 1;
    m->result = gcomp_exchange(m->gc, grads, &f->step);
    return NULL;
}

static inline void fleet_step(fleet *f)
{
    pthread_t id[MOST];
    for (int r = 0; r < f->nodes * f->each; r++) CHECK(pthread_create(&id[r], NULL, turn, &f->m[r]) == 0);
    for (int r = 0; r < f->nodes * f->each; r++) pthread_join(id[r], NULL);
}

static inline int all_are(const fleet *f, gcomp_result result)
{
    int good = 1;
    for (int r = 0; r < f->nodes * f->each; r++) good &= f->m[r].result == result;
    return good;
}

/* The residual of a tensor of any kind, in one of two rooms; NULL: none. */
static inline const float *kept(const gcomp *gc, size_t t, int room)
{
    static float rooms[2][LARGEST];
    return gcomp_residual_get(gc, t, rooms[room]) == GCOMP_OK ? rooms[room] : NULL;
}

static inline uint64_t digest(const member *m, int residuals)
{
    uint64_t h = fnv(FNV, m->grad, sizeof m->grad / TENSORS * (m->of->halves ? TENSORS - 1 : TENSORS));
    h = fnv(h, m->half, sizeof m->half);
    for (size_t t = 0; t < TENSORS && residuals; t++)
        if (kept(m->gc, t, 0)) h = fnv(h, kept(m->gc, t, 0), 4 * elements(t));
    return h;
}

/* ---------------- the same as one level of the machines' means */

typedef struct flat_worker {
    gcomp *gc;
    float grad[TENSORS][LARGEST];
    gcomp_step step;
    int skip;
    gcomp_result result;
} flat_worker;

static inline void *flat_turn(void *arg)
{
    flat_worker *w = (flat_worker *)arg;
    float *grads[TENSORS];
    for (int t = 0; t < TENSORS; t++) grads[t] = t == w->skip ? NULL : w->grad[t];
    w->result = exchange_floats(w->gc, grads, &w->step);
    return NULL;
}

#endif
