/* What tests of schedules share: workers in lock-step, and gradients whose norms follow a plan. */

#ifndef SCHEDULES_H
#define SCHEDULES_H

#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4, TENSORS_MAX = 3, FRAME_BYTES = 64 };

/* ---------------- workers */

typedef struct team {
    size_t world, count, n[TENSORS_MAX];
    gcomp *gc[WORLD_MAX];
    float *grad[WORLD_MAX][TENSORS_MAX];
    gcomp_result result[WORLD_MAX];
    size_t calls;                       /* collectives of the last step */
    size_t strides[16];
    size_t fail_at;                     /* that collective of the next step fails on all; 0: none, 1: the first */
    void (*tamper)(size_t call, uint8_t *all, size_t stride); /* with what a gather brings to all */
    int only;                           /* -1: to all; else to this worker alone */
    int knows_alone;                    /* rank 0 alone is told the learning rate, worker 1 a wrong one */
} team;

static test_heap heap = {SIZE_MAX, 0, 0, 0};

static inline gcomp_desc desc_of(const char *codec, const char *schedule)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.schedule = schedule;
    desc.allocator = heap_of(&heap);
    return desc;
}

static inline void team_open(team *t, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
{
    char why[256] = "";
    memset(t, 0, sizeof *t);
    t->world = world;
    t->count = count;
    t->only = -1;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *base;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        desc.why = why;
        desc.why_capacity = sizeof why;
        int opened = gcomp_open(&t->gc[w], &desc) == GCOMP_OK;
        CHECK(opened);
        if (!opened) {
            printf("# %s\n", why);
            exit(1);
        }
        for (size_t i = 0; i < count; i++) {
            int added = gcomp_add_tensor(t->gc[w], tensors + i) == GCOMP_OK;
            CHECK(added);
            if (!added) printf("# %s\n", gcomp_error(t->gc[w]));
            t->n[i] = tensor_elements(t->gc[w], i);
            t->grad[w][i] = (float *)calloc(t->n[i], sizeof(float));
        }
    }
}

static inline void team_close(team *t)
{
    for (size_t w = 0; w < t->world; w++) {
        gcomp_close(t->gc[w]);
        for (size_t i = 0; i < t->count; i++) free(t->grad[w][i]);
    }
}

static inline void carry(team *t, gcomp_request *request, size_t call)
{
    if (request[0].kind == GCOMP_ALLGATHER) {
        size_t stride = request[0].stride;
        uint8_t *all = (uint8_t *)calloc(t->world + 1, stride + 1);
        if (call < 16) t->strides[call] = stride;
        for (size_t w = 0; w < t->world; w++) memcpy(all + w * stride, request[w].send, request[w].bytes[w]);
        for (size_t w = 0; w < t->world; w++) memcpy(request[w].recv, all, t->world * stride);
        if (t->tamper) t->tamper(call, all, stride);
        for (size_t w = 0; w < t->world; w++)
            if (t->only < 0 || (size_t)t->only == w) memcpy(request[w].recv, all, t->world * stride);
        free(all);
    }
    if (request[0].kind == GCOMP_ALLREDUCE) {
        const size_t bytes = request[0].count * bytes_of_dtype(request[0].dtype);
        for (size_t w = 1; w < t->world; w++) plain_sum(request[0].recv, request[w].recv, request[0].count, request[0].dtype);
        for (size_t w = 1; w < t->world; w++) memcpy(request[w].recv, request[0].recv, bytes);
    }
}

/* A whole step; results in t->result. */
static inline void team_step(team *t, const gcomp_step *step)
{
    gcomp_request request[WORLD_MAX];
    size_t alive = t->world, finished = 0;
    int ended[WORLD_MAX] = {0};
    for (size_t w = 0; w < t->world; w++) {
        gcomp_step own;
        if (step) own = *step;
        if (step && w && t->knows_alone) own.learning_rate = w == 1 ? 7 : 0;
        t->result[w] = gcomp_step_begin(t->gc[w], step ? &own : NULL);
        CHECK(t->result[w] == GCOMP_OK);
        for (size_t i = 0; i < t->count; i++) CHECK(gcomp_step_ready(t->gc[w], i, t->grad[w][i]) == GCOMP_OK);
    }
    for (t->calls = 0; alive && t->calls < 16; t->calls++) {
        int fails = t->fail_at == t->calls + 1 || alive < t->world;
        finished = 0;
        for (size_t w = 0; w < t->world; w++) {
            if (ended[w]) continue;
            t->result[w] = gcomp_step_next(t->gc[w], &request[w]);
            ended[w] = t->result[w] != GCOMP_OK;
            alive -= (size_t)ended[w];
            if (ended[w]) continue;
            CHECK(request[w].kind != GCOMP_WAIT);
            finished += request[w].kind == GCOMP_DONE;
        }
        fails |= alive < t->world;
        if (finished || !alive) break;
        if (!fails) {
            for (size_t w = 1; w < t->world; w++)
                CHECK(request[w].kind == request[0].kind && request[w].stride == request[0].stride &&
                      request[w].count == request[0].count && request[w].id == request[0].id);
            carry(t, request, t->calls);
        }
        for (size_t w = 0; w < t->world; w++) {
            if (ended[w]) continue;
            t->result[w] = gcomp_step_done(t->gc[w], request[w].id, fails);
            ended[w] = t->result[w] != GCOMP_OK;
            alive -= (size_t)ended[w];
        }
    }
    for (size_t w = 0; w < t->world; w++)
        if (!ended[w]) t->result[w] = gcomp_step_commit(t->gc[w]);
    t->fail_at = 0;
}

static inline int all_are(const team *t, gcomp_result result) { return results_are(t->gc, t->result, t->world, result); }

/* The codec of a tensor on all workers; "differs" if it does. */
static inline const char *codec_of(const team *t, size_t tensor)
{
    static char text[2][160];
    for (size_t w = 0; w < t->world; w++) {
        gcomp_codec_format(tensor_codec(t->gc[w], tensor), text[w > 0], sizeof text[0]);
        if (w && strcmp(text[0], text[1])) return "differs";
    }
    return text[0];
}

static inline int has_codec(const team *t, size_t tensor, const char *codec)
{
    const char *is = codec_of(t, tensor);
    if (!strcmp(is, codec)) return 1;
    printf("# tensor %d has %s, expected %s\n", (int)tensor, is, codec);
    return 0;
}

static inline float noise(uint64_t seed, size_t i)
{
    uint64_t x = plain_philox(seed, i, 7, 9);
    return (float)((int32_t)(uint32_t)x) / 2147483648.0f;
}

static inline void fill(team *t, uint64_t seed)
{
    for (size_t w = 0; w < t->world; w++)
        for (size_t i = 0; i < t->count; i++)
            for (size_t j = 0; j < t->n[i]; j++) t->grad[w][i][j] = noise(seed * 64 + w * 8 + i, j);
}

/* Takes the two steps of an epoch. Rank 0 has gradients of these sizes; those of the others would
   lead to other decisions. */
static inline void epoch_of(team *t, uint32_t epoch, const float *size, float rate)
{
    gcomp_step step = GCOMP_STEP;
    step.epoch = epoch;
    step.learning_rate = rate;
    for (int k = 0; k < 2; k++) {
        for (size_t w = 0; w < t->world; w++)
            for (size_t i = 0; i < t->count; i++)
                for (size_t j = 0; j < t->n[i]; j++)
                    t->grad[w][i][j] = w ? (float)(epoch * epoch + 1) : j % 3 ? size[i] : -size[i];
        team_step(t, &step);
        CHECK(all_are(t, GCOMP_OK));
    }
}

#define LOW "topk:density=0.1"
#define HIGH "topk" /* of 1 % */

/* What a step may change of a team. */
static inline uint64_t digest_of(const team *t)
{
    uint64_t h = FNV;
    for (size_t w = 0; w < t->world; w++)
        for (size_t i = 0; i < t->count; i++) {
            const float *residual = tensor_residual(t->gc[w], i);
            h = fnv(h, t->grad[w][i], 4 * t->n[i]);
            if (residual) h = fnv(h, residual, 4 * t->n[i]);
        }
    return h;
}

#endif
