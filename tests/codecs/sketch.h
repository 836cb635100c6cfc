/* What tests of sketches share: a plain reference of hashes, tables and estimates. */

#ifndef SKETCH_H
#define SKETCH_H

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4, ROWS = 7, LARGE = 1 << 20 };
static gcomp_isa isa;
static gcomp_parallel parallel;

/* ---------------- the reference: the place of an element */

typedef struct hashes {
    size_t rows, columns;
    uint64_t words, factor[ROWS];
    int apart; /* 1: a hash for each element, to compare with */
} hashes;

static inline hashes hashes_of(size_t rows, size_t columns, uint64_t seed, uint64_t step)
{
    const uint64_t key = gcomp_key_make(seed, step, 0, 0).shared;
    hashes h;
    memset(&h, 0, sizeof h);
    h.rows = rows;
    h.columns = columns;
    h.words = plain_philox(key, 0, 6, 0);
    for (size_t r = 0; r < rows; r++) h.factor[r] = plain_philox(key, 1, 6, (uint32_t)r) | 0x100000001u;
    return h;
}

static inline uint64_t mixed(uint64_t h)
{
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static inline size_t place(const hashes *h, size_t i, size_t r, int *negative)
{
    uint32_t m, x;
    size_t lane, block;
    volatile float at;
    if (h->apart) {
        const uint64_t y = mixed(mixed(h->words + i) + h->factor[r]);
        *negative = (int)(y & 1);
        return r * h->columns + (size_t)((y >> 32) * h->columns >> 32);
    }
    m = (uint32_t)(i / 16) + (uint32_t)h->words;
    m = (m ^ m >> 16) * 0x85EBCA6Bu;
    m = (m ^ m >> 13 ^ (uint32_t)(h->words >> 32)) * 0xC2B2AE35u;
    m ^= m >> 16;
    x = m * (uint32_t)h->factor[r];
    at = (float)(x >> 8) * ((float)(h->columns / 16) / 16777216.0f);
    block = (size_t)at < h->columns / 16 ? (size_t)at : h->columns / 16 - 1;
    lane = i % 16 ^ (size_t)(m >> 28);
    *negative = (int)(m * (uint32_t)(h->factor[r] >> 32) >> (16 + lane) & 1);
    return r * h->columns + block * 16 + lane;
}

static inline void insert(const hashes *h, float *table, const float *p, size_t n)
{
    memset(table, 0, 4 * h->rows * h->columns);
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < h->rows; r++) {
            int negative;
            float *cell = table + place(h, i, r, &negative);
            *cell += negative ? -p[i] : p[i];
        }
}

static inline float estimate(const hashes *h, const float *table, size_t i)
{
    float x[ROWS];
    for (size_t r = 0; r < h->rows; r++) {
        int negative;
        float cell = table[place(h, i, r, &negative)];
        size_t at = r;
        if (negative) cell = -cell;
        for (; at && x[at - 1] > cell; at--) x[at] = x[at - 1]; /* millions of times: no call of qsort */
        x[at] = cell;
    }
    return x[h->rows / 2];
}

typedef struct ranked {
    float size;
    size_t i;
} ranked;

static inline int by_size(const void *x, const void *y)
{
    const ranked *a = (const ranked *)x, *b = (const ranked *)y;
    if (a->size != b->size) return a->size > b->size ? -1 : 1;
    return a->i < b->i ? -1 : 1;
}

static inline int by_index(const void *x, const void *y)
{
    const ranked *a = (const ranked *)x, *b = (const ranked *)y;
    return a->i < b->i ? -1 : 1;
}

/* ---------------- workers in lock-step */

typedef struct group {
    int world;
    size_t n;
    gcomp *gc[MOST];
    float *grad[MOST];
    float *table;      /* the first worker's own; the sum */
    float *sum;
    int tried;         /* a sum was made; one worker alone tries none */
    float *exact;      /* the sum of the second round */
    size_t counts[2];
    float *tables;     /* of the reference for fetch: of each matrix U, then E */
    int fail_call;     /* a collective that fails; -1: none */
    int spoil;         /* the sum of this round (1 or 2) arrives as infinity */
} group;

static inline void group_open(group *g, int world, const char *codec, size_t rows, size_t cols, size_t stack)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->fail_call = -1;
    g->tried = world == 1;
    for (int w = 0; w < world; w++) {
        gcomp_desc desc;
        gcomp_tensor t;
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        desc.comm.rank = w;
        desc.comm.world = world;
        desc.isa = isa;
        desc.parallel = parallel;
        desc.seed = 11;
        desc.aggregate = GCOMP_AGGREGATE_GATHER; /* also one worker alone encodes */
        t.name = "t";
        t.rows = rows;
        t.cols = cols;
        t.stack = stack;
        t.codec = codec;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        CHECK(gcomp_add_tensor(g->gc[w], &t) == GCOMP_OK);
        g->n = tensor_elements(g->gc[w], 0);
        g->grad[w] = (float *)calloc(g->n, sizeof(float));
    }
}

static inline void group_close(group *g)
{
    for (int w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        free(g->grad[w]);
    }
    free(g->table);
    free(g->sum);
    free(g->exact);
    free(g->tables);
}

static inline void copy_of(float **to, const void *from, size_t count)
{
    free(*to);
    *to = (float *)malloc(4 * count + 1);
    memcpy(*to, from, 4 * count);
}

static inline gcomp_result group_step(group *g, float scale)
{
    gcomp_request q[MOST];
    gcomp_result result = GCOMP_OK;
    gcomp_step step = GCOMP_STEP;
    int calls = 0, sums = 0;
    step.scale = scale;
    for (int w = 0; w < g->world; w++)
        CHECK(gcomp_step_begin(g->gc[w], &step) == GCOMP_OK && gcomp_step_ready(g->gc[w], 0, g->grad[w]) == GCOMP_OK);
    for (;; calls++) {
        for (int w = 0; w < g->world; w++) {
            gcomp_result r = gcomp_step_next(g->gc[w], &q[w]);
            CHECK(w == 0 || r == result);
            result = r;
            CHECK(r != GCOMP_OK || (q[w].kind == q[0].kind && q[w].count == q[0].count));
        }
        if (result != GCOMP_OK) return result;
        if (q[0].kind == GCOMP_DONE) break;
        if (q[0].kind == GCOMP_ALLGATHER) {
            for (int w = 0; w < g->world; w++)
                for (int s = 0; s < g->world; s++)
                    memcpy((char *)q[w].recv + (size_t)s * q[w].stride, q[s].send, q[s].bytes[s]);
        } else {
            CHECK(q[0].kind == GCOMP_ALLREDUCE && q[0].dtype == GCOMP_F32 && sums < 2);
            if (sums == 0) copy_of(&g->table, q[0].recv, q[0].count);
            for (size_t i = 0; i < q[0].count; i++) {
                float sum = ((const float *)q[0].recv)[i];
                for (int w = 1; w < g->world; w++) sum += ((const float *)q[w].recv)[i];
                if (g->spoil == sums + 1 && i == q[0].count / 2) sum = INFINITY;
                for (int w = 0; w < g->world; w++) ((float *)q[w].recv)[i] = sum;
            }
            g->counts[sums] = q[0].count - !g->tried; /* the first has a one behind it */
            g->tried |= g->world > 1;
            copy_of(sums == 0 ? &g->sum : &g->exact, q[0].recv, q[0].count);
            sums++;
        }
        for (int w = 0; w < g->world; w++) {
            gcomp_result r = gcomp_step_done(g->gc[w], q[w].id, calls == g->fail_call ? 5 : 0);
            CHECK(r == (calls == g->fail_call ? GCOMP_CALLBACK_FAILED : GCOMP_OK));
            result = r;
        }
        if (result != GCOMP_OK) return result;
    }
    for (int w = 0; w < g->world; w++) CHECK(gcomp_step_commit(g->gc[w]) == GCOMP_OK);
    return GCOMP_OK;
}

static uint64_t state = 88172645463325252u;

static inline double next_uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}

static inline float next_normal(void) { return (float)(sqrt(-2 * log(next_uniform())) * cos(6.283185307179586 * next_uniform())); }

static inline float cubed(void)
{
    const float x = next_normal();
    return x * x * x;
}

/* The k-th largest of |x|. Only the part that holds it is divided further; nothing is sorted,
   because this is called many times with a million elements. */
static inline float kth(const float *x, size_t n, size_t k)
{
    float *size = (float *)malloc(4 * n), t;
    size_t first = 0, end = n;
    for (size_t i = 0; i < n; i++) size[i] = fabsf(x[i]);
    while (end - first > 1) { /* size[n - k] is among first .. end - 1 */
        const float middle = size[first + (end - first) / 2];
        size_t below = first, above = end, i = first;
        while (i < above) { /* smaller ones to the front, larger ones to the back */
            const float one = size[i];
            if (one < middle) {
                size[i++] = size[below];
                size[below++] = one;
            } else if (one > middle) {
                size[i] = size[--above];
                size[above] = one;
            } else i++;
        }
        if (n - k < below) end = below;
        else if (n - k >= above) first = above;
        else break;
    }
    t = size[n - k];
    free(size);
    return t;
}

#endif
