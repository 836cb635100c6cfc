/* What tests of saves share: a training of workers in lock-step, and readers of saves. */

#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_WORKERS = 5, TENSORS = 9, LARGEST = 2400 };

static const gcomp_tensor tensors[TENSORS] = {
    {"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},   {"stack", 18, 10, 3, GCOMP_F32, "powersgd:rank=1"},
    {"dgc", 40, 50, 0, GCOMP_F32, "dgc:density=0.02,warmup=0"}, {"topk", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
    {"qsgd", 30, 37, 0, GCOMP_F32, "qsgd:levels=3"},       {"int", 32, 20, 0, GCOMP_F32, "int:bits=2,rounding=stochastic"},
    {"intsum", 20, 20, 0, GCOMP_F32, "intsum:bits=16"},    {"randomk", 25, 40, 0, GCOMP_F32, "randomk:density=0.1"},
    {"bias", 129, 0, 0, GCOMP_F32, NULL}};

enum { MATRIX, STACK, DGC, TOPK, QSGD, INT, INTSUM, RANDOMK, BIAS };

typedef struct team {
    size_t world;
    gcomp *gc[MOST_WORKERS];
    float grad[MOST_WORKERS][TENSORS][LARGEST];
    uint8_t *save[MOST_WORKERS];
    size_t length[MOST_WORKERS];
} team;

enum { RECORDS = 60, RECORD = 64 }; /* bytes in front of the records, and of one without its texts */

/* Where the floats begin in a save without a schedule. */
static inline size_t floats_at(const uint8_t *save) { return RECORDS + get_word(save + 52, 8); }

static inline gcomp_comm comm_of(size_t rank, size_t world)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.rank = (int)rank;
    comm.world = (int)world;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return comm;
}

static inline gcomp *open_with(size_t rank, size_t world, const gcomp_tensor *list, size_t count, const char *schedule)
{
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.comm = comm_of(rank, world);
    desc.seed = 77;
    if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    desc.check_every = 2;
    desc.schedule = schedule;
    if (schedule) desc.codec = "powersgd:rank=2|powersgd:rank=1";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(gc, list + t) == GCOMP_OK);
    return gc;
}

static inline gcomp *open_worker(size_t rank, size_t world) { return open_with(rank, world, tensors, TENSORS, NULL); }

static inline void team_open_with(team *t, size_t world, const gcomp_tensor *list, size_t count, const char *schedule)
{
    memset(t, 0, sizeof *t);
    t->world = world;
    for (size_t w = 0; w < world; w++) t->gc[w] = open_with(w, world, list, count, schedule);
}

static inline void team_open(team *t, size_t world) { team_open_with(t, world, tensors, TENSORS, NULL); }

static inline void team_close(team *t)
{
    for (size_t w = 0; w < MOST_WORKERS; w++) {
        gcomp_close(t->gc[w]);
        free(t->save[w]);
    }
}

static inline uint8_t *save_of(gcomp *gc, size_t *length)
{
    size_t size = save_size(gc);
    uint8_t *save = (uint8_t *)malloc(size);
    CHECK(gcomp_save(gc, save, size, length) == GCOMP_OK && *length == size);
    return save;
}

static inline void team_save(team *t)
{
    for (size_t w = 0; w < t->world; w++) {
        free(t->save[w]);
        t->save[w] = save_of(t->gc[w], &t->length[w]);
    }
}

static inline gcomp_result load_all(gcomp *gc, const team *from)
{
    return gcomp_load(gc, (const void *const *)(const void *)from->save, from->length, from->world, NULL);
}

/* ---------------- steps */

static inline float number(uint64_t i)
{
    uint64_t x = (i + 11) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x ^= x >> 29;
    return (float)((int32_t)(x >> 40) - 8388608) / 8388608.0f;
}

static inline void carry_out(team *t, gcomp_request *r)
{
    static uint8_t all[1 << 20];
    size_t world = t->world, bytes = r->count * bytes_of_dtype(r->dtype);
    CHECK(r->kind == GCOMP_ALLGATHER ? world * r->stride <= sizeof all : bytes <= sizeof all);
    for (size_t w = 0; w < world; w++) {
        if (r->kind == GCOMP_ALLGATHER) memcpy(all + w * r->stride, r[w].send, r[w].stride);
        else if (w == 0) memcpy(all, r->recv, bytes);
        else if (r->kind == GCOMP_ALLREDUCE) plain_sum(all, r[w].recv, r->count, r->dtype);
        for (size_t i = 0; r->kind == GCOMP_ALLREDUCE_MAX && i < r->count; i++)
            ((float *)(void *)all)[i] = fmaxf(((float *)(void *)all)[i], ((float *)r[w].recv)[i]);
    }
    for (size_t w = 0; w < world; w++) memcpy(r[w].recv, all, r->kind == GCOMP_ALLGATHER ? world * r->stride : bytes);
}

static inline void team_step(team *t, uint64_t step)
{
    gcomp_request r[MOST_WORKERS];
    gcomp_step about;
    memset(&about, 0, sizeof about);
    about.scale = 1;
    about.epoch = (uint32_t)step / 2;
    for (size_t w = 0; w < t->world; w++) {
        CHECK(gcomp_step_number(t->gc[w]) == step && gcomp_step_begin(t->gc[w], &about) == GCOMP_OK);
        for (size_t k = 0; k < tensors_of(t->gc[w]); k++) {
            for (size_t i = 0; i < tensor_elements(t->gc[w], k); i++)
                t->grad[w][k][i] = number(i + 10000 * (w + 10 * (k + 10 * step)));
            CHECK(gcomp_step_ready(t->gc[w], k, t->grad[w][k]) == GCOMP_OK);
        }
    }
    for (;;) {
        for (size_t w = 0; w < t->world; w++) {
            gcomp_result result = gcomp_step_next(t->gc[w], r + w);
            CHECK(result == GCOMP_OK && r[w].kind == r[0].kind);
            if (result) printf("# worker %d: %s\n", (int)w, gcomp_error(t->gc[w]));
            if (result) return;
        }
        if (r[0].kind == GCOMP_DONE) break;
        carry_out(t, r);
        for (size_t w = 0; w < t->world; w++) CHECK(gcomp_step_done(t->gc[w], r[w].id, 0) == GCOMP_OK);
    }
    for (size_t w = 0; w < t->world; w++) {
        CHECK(gcomp_step_commit(t->gc[w]) == GCOMP_OK);
        CHECK(memcmp(t->grad[w], t->grad[0], sizeof t->grad[0]) == 0);
    }
}

static inline int same_state(gcomp *x, gcomp *y)
{
    size_t m, n;
    uint8_t *p = save_of(x, &m), *q = save_of(y, &n);
    int same = m == n && !memcmp(p, q, n);
    free(p);
    free(q);
    return same;
}

/* ---------------- another number of workers */

/* Float i of a tensor's residual, and of dgc's momentum behind it, from the worker's save. */
static inline size_t own_floats(const gcomp *gc, size_t t)
{
    return tensor_residual(gc, t) ? tensor_elements(gc, t) * (t == DGC ? 2 : 1) : 0;
}

static inline float saved_float(const uint8_t *save, const gcomp *gc, size_t tensor, size_t i)
{
    size_t at = floats_at(save) + 4 * i;
    uint32_t bits;
    float x;
    for (size_t t = 0; t < tensor; t++) at += 4 * (own_floats(gc, t) + (t == MATRIX ? 80 : t == STACK ? 30 : 0));
    bits = (uint32_t)get_word(save + at, 4);
    memcpy(&x, &bits, 4);
    return x;
}

/* Largest difference of the sums of residual (and momentum) / world between two teams, both
   saved. */
static inline double difference(const team *x, const team *y)
{
    double most = 0;
    for (size_t t = 0; t < TENSORS; t++) {
        for (size_t i = 0; i < own_floats(x->gc[0], t); i++) {
            double d = 0;
            for (size_t w = 0; w < x->world; w++) d += (double)saved_float(x->save[w], x->gc[0], t, i) / (double)x->world;
            for (size_t w = 0; w < y->world; w++) d -= (double)saved_float(y->save[w], x->gc[0], t, i) / (double)y->world;
            if (fabs(d) > most) most = fabs(d);
        }
    }
    return most;
}

#endif
