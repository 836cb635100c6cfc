/* Proves that each rule of desc.schedule chooses the codecs that it should, and that all workers
   change in the same step, also after faults, saves, and changes of the workers. The workers run
   in one thread, in lock-step. */

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

static gcomp_desc desc_of(const char *codec, const char *schedule)
{
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.schedule = schedule;
    desc.allocator = heap_of(&heap);
    return desc;
}

static void team_open(team *t, size_t world, const gcomp_desc *base, const gcomp_tensor *tensors, size_t count)
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
            t->n[i] = gcomp_tensor_elements(t->gc[w], i);
            t->grad[w][i] = (float *)calloc(t->n[i], sizeof(float));
        }
    }
}

static void team_close(team *t)
{
    for (size_t w = 0; w < t->world; w++) {
        gcomp_close(t->gc[w]);
        for (size_t i = 0; i < t->count; i++) free(t->grad[w][i]);
    }
}

static void carry(team *t, gcomp_request *request, size_t call)
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
static void team_step(team *t, const gcomp_step *step)
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

static int all_are(const team *t, gcomp_result result) { return results_are(t->gc, t->result, t->world, result); }

/* The codec of a tensor on all workers; "differs" if it does. */
static const char *codec_of(const team *t, size_t tensor)
{
    static char text[2][160];
    for (size_t w = 0; w < t->world; w++) {
        gcomp_codec_format(gcomp_tensor_codec(t->gc[w], tensor), text[w > 0], sizeof text[0]);
        if (w && strcmp(text[0], text[1])) return "differs";
    }
    return text[0];
}

static int has_codec(const team *t, size_t tensor, const char *codec)
{
    const char *is = codec_of(t, tensor);
    if (!strcmp(is, codec)) return 1;
    printf("# tensor %d has %s, expected %s\n", (int)tensor, is, codec);
    return 0;
}

static float noise(uint64_t seed, size_t i)
{
    uint64_t x = plain_philox(seed, i, 7, 9);
    return (float)((int32_t)(uint32_t)x) / 2147483648.0f;
}

static void fill(team *t, uint64_t seed)
{
    for (size_t w = 0; w < t->world; w++)
        for (size_t i = 0; i < t->count; i++)
            for (size_t j = 0; j < t->n[i]; j++) t->grad[w][i][j] = noise(seed * 64 + w * 8 + i, j);
}

static const gcomp_tensor matrix = {"matrix", 40, 32, 2, GCOMP_F32, NULL};
static const gcomp_tensor other = {"other", 48, 32, 0, GCOMP_F32, NULL};
static const gcomp_tensor bias = {"bias", 48, 0, 0, GCOMP_F32, NULL};

/* ---------------- Accordion */

/* Takes the two steps of an epoch. Rank 0 has gradients of these sizes; those of the others would
   lead to other decisions. */
static void epoch_of(team *t, uint32_t epoch, const float *size, float rate)
{
    gcomp_step step = gcomp_step_default();
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

static void test_accordion_compresses_while_the_norm_hardly_changes(void)
{
    static const struct {
        float size[4];       /* of gradients in epochs 0 .. 3 */
        float rate[4];
        const char *codec[4]; /* at the end of each */
    } cases[] = {
        {{1, 1, 1, 1}, {0, 0, 0, 0}, {LOW, LOW, HIGH, HIGH}},
        {{1, 0.5f, 0.5f, 0.25f}, {0, 0, 0, 0}, {LOW, LOW, LOW, HIGH}}, /* exactly half is critical */
        {{1, 0.501f, 0.501f, 0.501f}, {0, 0, 0, 0}, {LOW, LOW, HIGH, HIGH}},
        {{1, 1.5f, 1.5f, 3}, {0, 0, 0, 0}, {LOW, LOW, LOW, HIGH}},
        {{1, 1.4375f, 1, 1}, {0, 0, 0, 0}, {LOW, LOW, HIGH, HIGH}},
        {{0, 1, 1, 1}, {0, 0, 0, 0}, {LOW, LOW, LOW, HIGH}},           /* from nothing */
        {{0, 0, 0, 0}, {0, 0, 0, 0}, {LOW, LOW, LOW, LOW}},
        {{1, 3e38f, 3e38f, 1}, {0, 0, 0, 0}, {LOW, LOW, LOW, LOW}},    /* sums that are not finite */
        {{1, 1, 1, 1}, {1, 1, 1, 0.1f}, {LOW, LOW, HIGH, LOW}},        /* the rate falls */
        {{1, 1, 1, 1}, {1, 1, 0.1f, 0.1f}, {LOW, LOW, LOW, HIGH}},
        {{1, 1, 1, 1}, {1, 2, 3, 4}, {LOW, LOW, HIGH, HIGH}},          /* it rises */
        {{1, 1, 1, 1}, {1, 1, -1, 1}, {LOW, LOW, HIGH, HIGH}},         /* it is not said */
        {{1, 1, 1, 1}, {1, 1, 1, 0}, {LOW, LOW, HIGH, LOW}},           /* it falls to 0 */
    };
    for (size_t world = 1; world <= 4; world *= 2) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            for (int model = 0; model < 2; model++) {
                gcomp_desc desc = desc_of(LOW "|" HIGH, model ? "accordion:every=1,scope=model" : "accordion:every=1");
                team t;
                desc.no_error_feedback = 1;
                team_open(&t, world, &desc, &other, 1);
                for (uint32_t epoch = 0; epoch < 4; epoch++) {
                    epoch_of(&t, epoch, &cases[c].size[epoch], cases[c].rate[epoch]);
                    if (!has_codec(&t, 0, cases[c].codec[epoch])) {
                        printf("# case %d, epoch %d, world %d\n", (int)c, (int)epoch, (int)world);
                        CHECK(0);
                    }
                }
                team_close(&t);
            }
        }
    }
}

static void test_accordion_decides_each_tensor_alone_or_all_together(void)
{
    static const float sizes[4][3] = {{1, 8, 1}, {1, 4, 1}, {1, 4, 1}, {1, 4, 1}};
    const gcomp_tensor tensors[3] = {other, matrix, bias};
    for (int model = 0; model < 2; model++) {
        gcomp_desc desc = desc_of(LOW "|" HIGH, model ? "accordion:every=1,scope=model,eta=0.4" : "accordion:every=1,eta=0.4");
        team t;
        team_open(&t, 2, &desc, tensors, 3);
        epoch_of(&t, 0, sizes[0], 0);
        epoch_of(&t, 1, sizes[1], 0);
        epoch_of(&t, 2, sizes[2], 0);
        CHECK(has_codec(&t, 0, model ? LOW : HIGH));
        CHECK(has_codec(&t, 1, LOW));
        CHECK(has_codec(&t, 2, "none"));
        epoch_of(&t, 3, sizes[3], 0);
        CHECK(has_codec(&t, 0, HIGH));
        CHECK(has_codec(&t, 1, HIGH));
        team_close(&t);
    }
}

static void test_accordion_looks_every_so_many_epochs(void)
{
    static const float sizes[7] = {1, 9, 1.25f, 7, 1.5f, 1.5f, 3};
    static const char *const codecs[7] = {LOW, LOW, LOW, HIGH, HIGH, HIGH, HIGH};
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=2");
    gcomp_statistics stats;
    team t;
    team_open(&t, 2, &desc, &other, 1);
    for (uint32_t epoch = 0; epoch < 7; epoch++) {
        epoch_of(&t, epoch, &sizes[epoch], 0);
        CHECK(has_codec(&t, 0, codecs[epoch]));
    }
    epoch_of(&t, 7, &sizes[0], 0); /* 3 after 1.5: low again */
    CHECK(has_codec(&t, 0, LOW));
    CHECK(gcomp_stats(t.gc[1], &stats) == GCOMP_OK && stats.switches == 2);
    team_close(&t);
}

static void test_a_tensor_that_no_codec_of_the_list_helps_is_left_alone(void)
{
    gcomp_desc desc = desc_of("powersgd:rank=4|powersgd:rank=2", "accordion:every=1,scope=model");
    static const float sizes[2] = {1, 1};
    gcomp_tensor tensors[2] = {other, matrix};
    gcomp_statistics stats;
    team t;
    tensors[1].cols = 2; /* 40 x 2 */
    tensors[1].codec = desc.codec;
    team_open(&t, 2, &desc, tensors, 2);
    for (uint32_t epoch = 0; epoch < 3; epoch++) epoch_of(&t, epoch, sizes, 0);
    CHECK(has_codec(&t, 0, "powersgd:rank=2") && has_codec(&t, 1, "none"));
    CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK && stats.switches == 1);
    team_close(&t);
}

/* ---------------- a switch */

static const char *const lists[] = {
    "powersgd:rank=4|powersgd:rank=1",
    "powersgd:rank=1|powersgd:rank=3|powersgd:rank=2|none|powersgd:rank=2",
    LOW "|" HIGH "|none|sign|int:bits=2|topk:density=0.02+int:bits=4",
    "none|randomk:density=0.3|sketch:density=0.05|powersgd:rank=2|randomk:density=0.1,neighbours=1|fp16",
};

/* Goes up and down a list by the epochs of a warm-up, three steps each. */
static uint32_t up_and_down(size_t step, size_t levels)
{
    size_t at = step / 3 % (2 * levels);
    return (uint32_t)(at < levels ? at : 2 * levels - 1 - at);
}

static void test_nothing_is_lost_through_switches(void)
{
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
        for (size_t world = 1; world <= 4; world *= 2) {
            const gcomp_tensor tensors[2] = {matrix, bias};
            const size_t steps = 42;
            size_t levels = 1;
            char schedule[32];
            team t;
            double *given, *sent;
            double worst = 0;
            for (const char *s = lists[l]; *s; s++) levels += *s == '|';
            snprintf(schedule, sizeof schedule, "warmup:epochs=%d", (int)levels - 1);
            gcomp_desc desc = desc_of(lists[l], schedule);
            team_open(&t, world, &desc, tensors, 2);
            given = (double *)calloc(t.n[0], sizeof(double));
            sent = (double *)calloc(t.n[0], sizeof(double));
            for (size_t k = 0; k < steps; k++) {
                gcomp_step step = gcomp_step_default();
                step.epoch = up_and_down(k, levels);
                fill(&t, k);
                for (size_t w = 0; w < world; w++)
                    for (size_t j = 0; j < t.n[0]; j++) given[j] += (double)t.grad[w][0][j] / (double)world;
                team_step(&t, &step);
                CHECK(all_are(&t, GCOMP_OK));
                for (size_t j = 0; j < t.n[0]; j++) sent[j] += (double)t.grad[0][0][j];
                for (size_t w = 1; w < world; w++)
                    CHECK(memcmp(t.grad[w][0], t.grad[0][0], 4 * t.n[0]) == 0);
                CHECK(strcmp(codec_of(&t, 0), "differs") != 0);
            }
            for (size_t j = 0; j < t.n[0]; j++) {
                for (size_t w = 0; w < world; w++) sent[j] += (double)gcomp_residual(t.gc[w], 0)[j] / (double)world;
                worst = fabs(sent[j] - given[j]) > worst ? fabs(sent[j] - given[j]) : worst;
            }
            if (worst > 1e-4) printf("# %s: %g lost\n", lists[l], worst);
            CHECK(worst <= 1e-4);
            free(given);
            free(sent);
            team_close(&t);
        }
    }
}

static void test_memory_is_reserved_for_all_codecs_of_a_list(void)
{
    const gcomp_tensor tensors[2] = {matrix, bias};
    static const char *const schedules[] = {"warmup:epochs=5", "accordion", "bytes:target=100"};
    for (size_t s = 0; s < 3; s++) {
        for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
            gcomp_desc desc = desc_of(lists[s == 1 ? 0 : l], schedules[s]);
            size_t levels = 6, needed, before = heap.blocks;
            team t;
            desc.comm.world = 2;
            needed = gcomp_memory_needed(&desc, tensors, 2);
            team_open(&t, 2, &desc, tensors, 2);
            for (size_t w = 0; w < 2; w++) CHECK(gcomp_prepare(t.gc[w]) == GCOMP_OK);
            CHECK(needed == gcomp_memory_used(t.gc[0]));
            heap.asked = 0;
            for (size_t k = 0; k < 24; k++) {
                gcomp_step step = gcomp_step_default();
                step.epoch = up_and_down(k, levels);
                fill(&t, k);
                team_step(&t, &step);
                CHECK(all_are(&t, GCOMP_OK));
            }
            CHECK(heap.asked == 0);
            team_close(&t);
            CHECK(heap.blocks == before);
        }
    }
}

static void test_running_out_of_memory_leaves_nothing(void)
{
    gcomp_desc desc = desc_of(lists[0], "accordion");
    size_t failed = 0;
    for (;; failed++) {
        gcomp *gc;
        heap.left = failed;
        gcomp_result result = gcomp_open(&gc, &desc);
        if (result == GCOMP_OK) result = gcomp_add_tensor(gc, &matrix);
        if (result == GCOMP_OK) result = gcomp_prepare(gc);
        CHECK(result == GCOMP_OK || result == GCOMP_OUT_OF_MEMORY);
        gcomp_close(gc);
        CHECK(heap.blocks == 0);
        if (result == GCOMP_OK || failed > 100) break;
    }
    heap.left = SIZE_MAX;
    CHECK(failed == 10); /* object, frames, two arrays; name, residual, Q, sum of an epoch, list; buffers of a step */
}

/* What a step may change of a team. */
static uint64_t digest_of(const team *t)
{
    uint64_t h = FNV;
    for (size_t w = 0; w < t->world; w++)
        for (size_t i = 0; i < t->count; i++) {
            const float *residual = gcomp_residual(t->gc[w], i);
            h = fnv(h, t->grad[w][i], 4 * t->n[i]);
            if (residual) h = fnv(h, residual, 4 * t->n[i]);
        }
    return h;
}

static void test_failed_and_aborted_steps_leave_decisions_as_they_were(void)
{
    const gcomp_tensor tensors[2] = {matrix, other};
    static const char *const schedules[] = {"accordion:every=1", "accordion:every=1,scope=model", "warmup:epochs=2",
                                            "bytes:target=900,every=2"};
    for (size_t s = 0; s < 4; s++) {
        for (size_t l = 0; l < 2; l++) {
            gcomp_desc desc = desc_of(l ? LOW "|" HIGH : lists[0], schedules[s]);
            gcomp_statistics stats;
            team a, b;
            team_open(&a, 2, &desc, tensors, 2);
            team_open(&b, 2, &desc, tensors, 2);
            for (size_t k = 0; k < 16; k++) {
                gcomp_step step = gcomp_step_default();
                char before[2][160];
                step.epoch = (uint32_t)(k / 3);
                fill(&a, k / 6); /* the norm changes now and then */
                fill(&b, k / 6);
                team_step(&b, &step);
                CHECK(all_are(&b, GCOMP_OK));
                for (size_t i = 0; i < 2; i++) strcpy(before[i], codec_of(&a, i));
                uint64_t digest = digest_of(&a);
                for (size_t fail = 1; fail <= b.calls; fail++) {
                    a.fail_at = fail;
                    team_step(&a, &step);
                    CHECK(all_are(&a, GCOMP_CALLBACK_FAILED));
                    CHECK(digest_of(&a) == digest && has_codec(&a, 0, before[0]) && has_codec(&a, 1, before[1]));
                }
                for (size_t w = 0; w < 2; w++) {
                    gcomp_request request;
                    CHECK(gcomp_step_begin(a.gc[w], &step) == GCOMP_OK);
                    for (size_t i = 0; i < 2; i++) CHECK(gcomp_step_ready(a.gc[w], i, a.grad[w][i]) == GCOMP_OK);
                    CHECK(gcomp_step_next(a.gc[w], &request) == GCOMP_OK);
                    CHECK(gcomp_step_abort(a.gc[w]) == GCOMP_OK);
                }
                team_step(&a, &step);
                CHECK(all_are(&a, GCOMP_OK));
                CHECK(digest_of(&a) == digest_of(&b));
                strcpy(before[0], codec_of(&b, 0));
                CHECK(has_codec(&a, 0, before[0]));
                CHECK(a.calls == b.calls);
            }
            CHECK(gcomp_stats(b.gc[1], &stats) == GCOMP_OK && stats.switches > 0);
            team_close(&a);
            team_close(&b);
        }
    }
}

static void test_restart_goes_back_to_the_first_codec(void)
{
    gcomp_desc desc = desc_of(lists[0], "warmup:epochs=1");
    gcomp_step step = step_with(1, -1, 3);
    team t;
    team_open(&t, 2, &desc, &matrix, 1);
    team_step(&t, &step);
    CHECK(has_codec(&t, 0, "powersgd:rank=1"));
    for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(t.gc[w], 5) == GCOMP_OK);
    CHECK(has_codec(&t, 0, "powersgd"));
    step.epoch = 0;
    team_step(&t, &step);
    CHECK(all_are(&t, GCOMP_OK) && has_codec(&t, 0, "powersgd"));
    team_close(&t);
}

/* An element of one of two matrices with singular values 1 and five times 0.45, with vectors
   that have nothing in common. */
static double six(size_t j)
{
    static const int first[2] = {2, 4}; /* which of the six is the large one */
    size_t which = j / 1280, row = j % 1280 / 32, col = j % 32, block = row / 6;
    if (block > 5 || col / 5 != block) return 0;
    return (block == (size_t)first[which] ? 1 : 0.45) / sqrt(30.0) * (row % 2 ? 1 : -1) * (col % 2 ? 1 : -1);
}

/* Where the first column of Q is kept the large one is lost in no step, neither when columns go
   nor when some are added. */
static void test_powersgd_keeps_what_it_knows_through_a_switch(void)
{
    static const double rest[3] = {1, 5 * 0.45 * 0.45, 5 * 0.45 * 0.45};
    gcomp_desc desc = desc_of("powersgd:rank=4|powersgd:rank=1|powersgd:rank=2", "warmup:epochs=2");
    gcomp_step step = gcomp_step_default();
    team t;
    desc.no_error_feedback = 1;
    team_open(&t, 1, &desc, &matrix, 1);
    for (int k = 0; k < 18; k++) {
        double error[2] = {0, 0};
        step.epoch = (uint32_t)(k / 6);
        for (size_t j = 0; j < t.n[0]; j++) t.grad[0][0][j] = (float)six(j);
        team_step(&t, &step);
        CHECK(all_are(&t, GCOMP_OK));
        for (size_t j = 0; j < t.n[0]; j++)
            error[j / 1280] += (six(j) - (double)t.grad[0][0][j]) * (six(j) - (double)t.grad[0][0][j]);
        for (int i = 0; i < 2 && k > 2; i++) CHECK(error[i] <= 1.01 * rest[k / 6]);
    }
    CHECK(has_codec(&t, 0, "powersgd:rank=2"));
    team_close(&t);
}

/* ---------------- warm-up */

static void test_every_method_warms_up(void)
{
    static const double keep[4] = {0.25, 0.0625, 0.015625, 0.004};
    const char *name;
    for (size_t m = 1; (name = gcomp_method_name(m)) != NULL; m++) {
        gcomp_desc desc = desc_of(name, "warmup:epochs=8");
        gcomp_codec plain, density;
        char text[64], last[64];
        team t;
        CHECK(gcomp_codec_parse(&plain, name, NULL, 0) == GCOMP_OK);
        snprintf(text, sizeof text, "%s:density=0.5", name);
        int dense = gcomp_codec_parse(&density, text, NULL, 0) == GCOMP_OK;
        gcomp_codec_format(&plain, last, sizeof last);
        team_open(&t, 1, &desc, &other, 1);
        if (!strcmp(name, "dgc")) strcpy(last, "dgc:warmup=8");
        for (uint32_t epoch = 0; epoch < 10; epoch++) {
            gcomp_step step = gcomp_step_default();
            const gcomp_codec *codec = gcomp_tensor_codec(t.gc[0], 0);
            step.epoch = epoch;
            for (int k = 0; k < 2; k++) {
                fill(&t, epoch);
                team_step(&t, &step);
                CHECK(all_are(&t, GCOMP_OK));
            }
            if (epoch >= 8 || !strcmp(name, "dgc")) CHECK(has_codec(&t, 0, last));
            else if (!dense) CHECK(has_codec(&t, 0, "none"));
            else if (strcmp(name, "sketch") && strcmp(name, "fetch")) /* large ones do not gain */
                CHECK(codec->param[0] == (plain.param[0] > keep[epoch / 2] ? plain.param[0] : keep[epoch / 2]));
        }
        team_close(&t);
    }
}

/* ---------------- controllers */

static uint64_t bytes_of(team *t, uint64_t *before)
{
    gcomp_statistics stats;
    CHECK(gcomp_stats(t->gc[0], &stats) == GCOMP_OK);
    uint64_t bytes = stats.bytes_out - *before;
    *before = stats.bytes_out;
    return bytes;
}

static void test_a_budget_of_bytes_is_reached_and_held(void)
{
    static const struct {
        const char *codecs, *schedule, *reached;
        uint64_t most;
    } cases[] = {
        {"topk:density=0.5|topk:density=0.2|topk:density=0.1|topk:density=0.05|topk:density=0.02|topk",
         "bytes:target=700,every=3", "topk:density=0.05", 700},
        {"none|powersgd:rank=8|powersgd:rank=4|powersgd:rank=2|powersgd:rank=1", "bytes:target=4096,every=4",
         "powersgd", 4096},
        {"int|int:bits=4|int:bits=2", "bytes:target=10,every=4", "int:bits=2", 1000},    /* cannot be reached */
        {"int|int:bits=4|int:bits=2", "bytes:target=1e9,every=4", "int", 6000},          /* nothing to do */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(cases[c].codecs, cases[c].schedule);
        gcomp_statistics stats;
        uint64_t before = 0, settled = 0;
        team t;
        team_open(&t, 2, &desc, c == 1 ? &matrix : &other, 1);
        for (size_t k = 0; k < 60; k++) {
            fill(&t, k);
            team_step(&t, NULL);
            CHECK(all_are(&t, GCOMP_OK));
            uint64_t bytes = bytes_of(&t, &before);
            CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK);
            if (k == 30) settled = stats.switches;
            if (k >= 30) CHECK(bytes <= cases[c].most);
        }
        CHECK(has_codec(&t, 0, cases[c].reached));
        CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK && stats.switches == settled);
        team_close(&t);
    }
}

static void test_a_budget_of_bytes_follows_the_data(void)
{
    gcomp_desc desc = desc_of("qsgd:levels=127,code=auto|qsgd:levels=7,code=auto|qsgd:levels=1,code=auto",
                              "bytes:target=950,every=4,slack=0.05");
    team t;
    team_open(&t, 2, &desc, &other, 1);
    for (size_t k = 0; k < 80; k++) {
        fill(&t, k);
        for (size_t w = 0; w < 2 && k >= 40; w++)
            for (size_t j = 0; j < t.n[0]; j++) t.grad[w][0][j] = j % 8 ? 0 : t.grad[w][0][j];
        team_step(&t, NULL);
        CHECK(all_are(&t, GCOMP_OK));
        if (k == 39) CHECK(has_codec(&t, 0, "qsgd:code=auto"));
    }
    CHECK(has_codec(&t, 0, "qsgd:levels=127,code=auto"));
    team_close(&t);
}

static void test_a_target_of_error_is_reached_and_held(void)
{
    static const struct {
        const char *codecs, *schedule, *reached;
        double most;
    } cases[] = {
        {"fp16|int|int:bits=4|int:bits=2", "error:target=0.2,every=3", "int:bits=4", 0.2},
        {"fp16|int|int:bits=4|int:bits=2", "error:target=1e-9", "fp16", 1},            /* cannot be reached */
        {"fp16|int|int:bits=4|int:bits=2", "error:target=1,every=1", "int:bits=2", 1}, /* all will do */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(cases[c].codecs, cases[c].schedule);
        gcomp_statistics stats;
        uint64_t settled = 0;
        team t;
        team_open(&t, 2, &desc, &other, 1);
        for (size_t k = 0; k < 60; k++) {
            fill(&t, k);
            team_step(&t, NULL);
            CHECK(all_are(&t, GCOMP_OK));
            CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK);
            if (k == 30) settled = stats.switches;
            if (k >= 30) CHECK(stats.relative_error <= cases[c].most);
        }
        CHECK(has_codec(&t, 0, cases[c].reached) && stats.switches == settled);
        CHECK(gcomp_stats(t.gc[1], &stats) == GCOMP_OK && stats.relative_error <= 0); /* rank 0 alone measures */
        team_close(&t);
    }
}

/* ---------------- what is refused */

static void test_bad_schedules_and_lists_are_refused_with_a_reason(void)
{
    static const struct {
        const char *codec, *schedule;
        gcomp_result result;
        const char *part;
    } cases[] = {
        {"topk", "often", GCOMP_INVALID_ARGUMENT, "there are: warmup accordion bytes error"},
        {"topk", "", GCOMP_INVALID_ARGUMENT, "schedule: no ''"},
        {"topk", "warmup:epochs=0", GCOMP_INVALID_ARGUMENT, "warmup epochs cannot be '0'"},
        {"topk", "warmup:steps=3", GCOMP_INVALID_ARGUMENT, "warmup has no parameter 'steps'"},
        {"topk", "warmup+accordion", GCOMP_INVALID_ARGUMENT, "schedule: cannot read '+accordion' at the end"},
        {LOW "|" HIGH, "accordion:scope=layer", GCOMP_INVALID_ARGUMENT, "tensor or model"},
        {LOW "|" HIGH, "accordion:eta=nan", GCOMP_INVALID_ARGUMENT, "eta cannot be 'nan'"},
        {LOW "|" HIGH, "bytes", GCOMP_INVALID_ARGUMENT, "bytes takes a target"},
        {LOW "|" HIGH, "error:every=3", GCOMP_INVALID_ARGUMENT, "error takes a target"},
        {LOW "|" HIGH, "error:target=2", GCOMP_INVALID_ARGUMENT, "error target cannot be '2'"},
        {LOW "|" HIGH, "bytes:target=100,slack=1", GCOMP_INVALID_ARGUMENT, "bytes slack cannot be '1'"},
        {LOW "|" HIGH, NULL, GCOMP_BAD_CODEC, "desc.schedule is NULL"},
        {LOW, "accordion", GCOMP_BAD_CODEC, "chooses from a list"},
        {NULL, "bytes:target=100", GCOMP_BAD_CODEC, "chooses from a list"},
        {LOW "|" HIGH "|sign", "accordion", GCOMP_BAD_CODEC, "between two codecs"},
        {LOW "||" HIGH, "accordion", GCOMP_BAD_CODEC, "no method"},
        {LOW "|", "accordion", GCOMP_BAD_CODEC, "no method"},
        {"topk|topkk", "accordion", GCOMP_BAD_CODEC, "no method 'topkk'"},
        {"fp16|int|int|int|int|int|int|int|int", "bytes:target=100", GCOMP_BAD_CODEC, "more than 8"},
        {"topk|qsgd", "accordion", GCOMP_BAD_CODEC, "keeps a residual and another does not"},
        {"none|dgc", "accordion", GCOMP_BAD_CODEC, "dgc keeps the momentum"},
        {"topk|dgc", "accordion", GCOMP_BAD_CODEC, "dgc keeps the momentum"},
        {"qsgd|qsgd:levels=1", "error:target=0.1", GCOMP_BAD_CODEC, "this list keeps none"},
    };
    char why[256];
    gcomp *gc;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(cases[c].codec, cases[c].schedule);
        desc.why = why;
        desc.why_capacity = sizeof why;
        why[0] = 0;
        CHECK(gcomp_open(&gc, &desc) == cases[c].result && gc == NULL);
        if (!strstr(why, cases[c].part)) {
            printf("# %s, %s: '%s'\n", cases[c].codec, cases[c].schedule, why);
            CHECK(0);
        }
        CHECK(gcomp_memory_needed(&desc, &matrix, 1) == 0);
    }
    gcomp_codec codec;
    CHECK(gcomp_codec_parse(&codec, LOW "|" HIGH, why, sizeof why) == GCOMP_BAD_CODEC && strstr(why, "cannot read '|topk'"));
    CHECK(heap.blocks == 0);
}

static void test_tensors_bring_lists_as_long_as_the_first(void)
{
    static const struct {
        const char *codec, *schedule, *own;
        const char *part; /* NULL: it is taken */
    } cases[] = {
        {LOW "|" HIGH, "accordion", "powersgd:rank=4|powersgd:rank=1", NULL},
        {LOW "|" HIGH, "accordion", "sign", NULL},
        {LOW "|" HIGH, "accordion", "powersgd:rank=4|powersgd:rank=2|powersgd:rank=1", "as many codecs as that of desc.codec"},
        {LOW "|" HIGH, "accordion", "sign|vote", "another does not"},
        {LOW, NULL, LOW "|" HIGH, "desc.schedule is NULL"},
        {LOW, "warmup", "int:bits=4", NULL},
        {"none", "warmup", "int:bits=4", NULL},
        {LOW, "warmup", "none|none|none|none|sign", NULL},
        {LOW, "warmup", "none|sign", "as many codecs as that of desc.codec"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(cases[c].codec, cases[c].schedule);
        gcomp_tensor own = other;
        gcomp *gc;
        own.codec = cases[c].own;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        CHECK(gcomp_add_tensor(gc, &own) == (cases[c].part ? GCOMP_BAD_CODEC : GCOMP_OK));
        if (cases[c].part) CHECK(strstr(gcomp_error(gc), cases[c].part) && gcomp_tensor_count(gc) == 0);
        gcomp_close(gc);
    }
    CHECK(heap.blocks == 0);
}

static void test_a_bad_learning_rate_fails_the_step(void)
{
    static const float bad[] = {-INFINITY, NAN, INFINITY};
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion");
    team t;
    team_open(&t, 1, &desc, &matrix, 1);
    for (int i = 0; i < 3; i++) {
        gcomp_step step = gcomp_step_default();
        step.learning_rate = bad[i];
        fill(&t, 1);
        team_step(&t, &step);
        CHECK(all_are(&t, GCOMP_INVALID_ARGUMENT) && strstr(gcomp_error(t.gc[0]), "learning_rate"));
    }
    team_close(&t);
}

/* The first exchange of two workers, already while the first codec of the list is in use, asks
   for the callback of a later one. */
static void check_missing(const gcomp_desc *desc, const char *callback)
{
    const gcomp_step step = gcomp_step_default();
    float *grads[1];
    gcomp *gc;
    CHECK(gcomp_open(&gc, desc) == GCOMP_OK && gcomp_add_tensor(gc, &other) == GCOMP_OK);
    grads[0] = (float *)calloc(gcomp_tensor_elements(gc, 0), sizeof(float));
    CHECK(gcomp_exchange(gc, grads, &step) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), callback));
    free(grads[0]);
    gcomp_close(gc);
}

static void test_a_sum_further_down_a_list_needs_its_callback_from_the_start(void)
{
    gcomp_desc desc = desc_of("sign|powersgd:rank=1", "accordion");
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    check_missing(&desc, "comm.allreduce");
}

static void test_shards_further_down_a_list_need_their_callback_from_the_start(void)
{
    gcomp_desc desc = desc_of("none|" LOW, "accordion");
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    desc.comm.allreduce = no_allreduce;
    desc.aggregate = GCOMP_AGGREGATE_SHARDS;
    check_missing(&desc, "comm.alltoallv");
}

/* ---------------- saves, and other workers */

typedef struct saved {
    uint8_t *bytes[WORLD_MAX];
    size_t length[WORLD_MAX];
} saved;

static void save_team(const team *t, saved *s)
{
    memset(s, 0, sizeof *s);
    for (size_t w = 0; w < t->world; w++) {
        size_t size = gcomp_save_size(t->gc[w]);
        s->bytes[w] = (uint8_t *)malloc(size);
        CHECK(gcomp_save(t->gc[w], s->bytes[w], size, &s->length[w]) == GCOMP_OK && s->length[w] == size);
    }
}

static void load_team(team *t, const saved *s, size_t count)
{
    for (size_t w = 0; w < t->world; w++)
        CHECK(gcomp_load(t->gc[w], (const void *const *)(const void *)s->bytes, s->length, count) == GCOMP_OK);
}

static void drop(saved *s)
{
    for (size_t w = 0; w < WORLD_MAX; w++) free(s->bytes[w]);
}

static int same_saves(const team *a, const team *b)
{
    saved x, y;
    int same = 1;
    save_team(a, &x);
    save_team(b, &y);
    for (size_t w = 0; w < a->world; w++)
        same = same && x.length[w] == y.length[w] && !memcmp(x.bytes[w], y.bytes[w], x.length[w]);
    drop(&x);
    drop(&y);
    return same;
}

enum { BREAK_STEPS = 18 };

static void step_of(team *t, size_t k)
{
    gcomp_step step = step_with(1, 0.5f, 0);
    step.epoch = (uint32_t)(k / 3);
    if (k >= 13) step.learning_rate = 0.25f;
    fill(t, k / 6); /* the norm changes now and then */
    team_step(t, &step);
    CHECK(all_are(t, GCOMP_OK));
}

static const struct {
    const char *codec, *schedule;
    size_t levels; /* that the steps come to */
} breaks[] = {{"powersgd:rank=1|powersgd:rank=3|none|powersgd:rank=2", "warmup:epochs=4", 4},
              {"topk:density=0.002", "warmup:epochs=4", 5},
              {"dgc:density=0.2,warmup=0|dgc:density=0.05,warmup=0", "accordion:every=1", 2},
              {"powersgd:rank=4|powersgd:rank=1", "accordion:every=1", 2},
              {"powersgd:rank=4|powersgd:rank=1", "accordion:every=1,scope=model", 2},
              {"topk:density=0.5|topk:density=0.1|powersgd:rank=1", "bytes:target=900,every=2", 3},
              {"int|int:bits=4|powersgd:rank=1", "error:target=0.2,every=2", 3}};

/* Adds the codec that tensor 0 has now to those seen, unless it is among them. Returns how many
   were seen. */
static size_t count_levels(const team *t, char seen[8][160], size_t count)
{
    const char *codec = codec_of(t, 0);
    size_t i;
    for (i = 0; i < count && strcmp(seen[i], codec); i++) {}
    if (i == count) strcpy(seen[count++], codec);
    return count;
}

static void test_a_run_goes_on_after_a_break_with_the_same_bits(void)
{
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 0; c < sizeof breaks / sizeof *breaks; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        saved saves[BREAK_STEPS];
        uint64_t digests[BREAK_STEPS];
        char seen[8][160];
        size_t levels = 0;
        team t, after;
        team_open(&t, 2, &desc, tensors, 3);
        for (size_t k = 0; k < BREAK_STEPS; k++) {
            save_team(&t, &saves[k]);
            levels = count_levels(&t, seen, levels);
            step_of(&t, k);
            digests[k] = digest_of(&t);
        }
        if (levels != breaks[c].levels) printf("# %s: %d levels\n", breaks[c].schedule, (int)levels);
        CHECK(levels == breaks[c].levels);
        for (size_t from = 1; from < BREAK_STEPS; from++) {
            team_open(&after, 2, &desc, tensors, 3);
            load_team(&after, &saves[from], 2);
            for (size_t k = from; k < BREAK_STEPS; k++) {
                step_of(&after, k);
                CHECK(digest_of(&after) == digests[k]);
            }
            CHECK(same_saves(&t, &after));
            team_close(&after);
        }
        for (size_t k = 0; k < BREAK_STEPS; k++) drop(&saves[k]);
        team_close(&t);
    }
}

/* Rank 0 has the same gradients whatever the number of workers: accordion decides the same. */
static void test_a_schedule_goes_on_with_another_number_of_workers(void)
{
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 2; c < 7; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        for (size_t from = 4; from < 12; from += 7) {
            saved saves, again;
            team t, after;
            team_open(&t, 3, &desc, tensors, 3);
            for (size_t k = 0; k < from; k++) step_of(&t, k);
            save_team(&t, &saves);
            for (size_t world = 1; world <= 4; world += 3) {
                team_open(&after, world, &desc, tensors, 3);
                load_team(&after, &saves, 3);
                save_team(&after, &again);
                CHECK(again.length[0] == saves.length[0]);
                CHECK(!memcmp(again.bytes[0] + 44, saves.bytes[0] + 44, 8 + 8 * 3 + 16)); /* codecs, levels, what all know */
                for (size_t k = from; k < BREAK_STEPS; k++) {
                    step_of(&after, k);
                    if (world == 1 && c < 5) step_of(&t, k);
                    if (world == 1 && c < 5) CHECK(!strcmp(codec_of(&t, 0), "differs") || has_codec(&after, 0, codec_of(&t, 0)));
                }
                drop(&again);
                team_close(&after);
            }
            drop(&saves);
            team_close(&t);
        }
    }
    CHECK(heap.blocks == 0);
}

/* Workers get these ranks; rank 0 stands first in the team again. */
static void regroup(team *t, size_t world, const int *ranks)
{
    gcomp *gc[WORLD_MAX] = {0};
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.world = (int)world;
    for (size_t w = 0; w < t->world; w++) {
        comm.rank = ranks[w];
        CHECK(gcomp_regroup(t->gc[w], &comm) == GCOMP_OK);
        gc[ranks[w]] = t->gc[w];
    }
    memcpy(t->gc, gc, sizeof gc);
}

/* The level of a tensor in a save. */
/* The place of a codec in its list, from the record of a tensor. */
static size_t saved_level(const saved *s, size_t w, size_t tensor)
{
    const uint8_t *record = s->bytes[w] + 60;
    while (tensor--) record += 64 + get_word(record, 8) + get_word(record + 8, 8);
    return get_word(record + 60, 4);
}

static void test_who_joins_has_the_levels_of_the_others(void)
{
    static const int same[2] = {0, 1};
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 0; c < sizeof breaks / sizeof *breaks; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        saved saves;
        team t;
        team_open(&t, 2, &desc, tensors, 3);
        for (size_t k = 0; k < 10; k++) step_of(&t, k);
        save_team(&t, &saves);
        CHECK(saved_level(&saves, 1, 0) > 0 || saved_level(&saves, 1, 1) > 0);
        regroup(&t, 3, same);
        desc.comm.rank = 2;
        desc.comm.world = 3;
        CHECK(gcomp_open(&t.gc[2], &desc) == GCOMP_OK);
        for (size_t i = 0; i < 3; i++) {
            CHECK(gcomp_add_tensor(t.gc[2], tensors + i) == GCOMP_OK);
            t.grad[2][i] = (float *)calloc(t.n[i], sizeof(float));
        }
        CHECK(gcomp_join(t.gc[2], saves.bytes[c % 2], saves.length[c % 2]) == GCOMP_OK);
        t.world = 3;
        for (size_t k = 10; k < BREAK_STEPS; k++) {
            CHECK(strcmp(codec_of(&t, 0), "differs") && strcmp(codec_of(&t, 1), "differs"));
            step_of(&t, k);
        }
        drop(&saves);
        team_close(&t);
    }
    CHECK(heap.blocks == 0);
}

static void test_a_new_rank_0_does_not_judge_by_half_an_epoch(void)
{
    static const int swap[2] = {1, 0};
    static const float size[9] = {1, 1, 1, 1, 1, 1, 1, 4, 4};
    for (int model = 0; model < 2; model++) {
        for (int between = 0; between < 2; between++) {
            gcomp_desc desc = desc_of(LOW "|" HIGH, model ? "accordion:every=1,scope=model" : "accordion:every=1");
            size_t used[2];
            team t;
            team_open(&t, 2, &desc, &other, 1);
            for (uint32_t epoch = 0; epoch < 3; epoch++) epoch_of(&t, epoch, &size[epoch], 0);
            CHECK(has_codec(&t, 0, HIGH));
            if (!between) { /* in the midst of an epoch: three steps, two with the new rank 0 */
                gcomp_step step = step_with(1, -1, 3);
                team_step(&t, &step);
                CHECK(all_are(&t, GCOMP_OK));
            }
            for (size_t w = 0; w < 2; w++) used[w] = gcomp_memory_used(t.gc[w]);
            regroup(&t, 2, swap);
            CHECK(gcomp_memory_used(t.gc[0]) == used[0] && gcomp_memory_used(t.gc[1]) == used[1] && used[0] > used[1]);
            for (uint32_t epoch = 3; epoch < 8; epoch++) {
                epoch_of(&t, epoch, &size[epoch], 0);
                CHECK(has_codec(&t, 0, HIGH)); /* up to the first whole sum, and from two on by them */
            }
            epoch_of(&t, 8, &size[8], 0);
            CHECK(has_codec(&t, 0, LOW));
            epoch_of(&t, 9, &size[8], 0);
            CHECK(has_codec(&t, 0, HIGH));
            team_close(&t);
        }
    }
    CHECK(heap.blocks == 0);
}

static void test_a_new_rank_0_controls_bytes_and_errors(void)
{
    static const int swap[2] = {1, 0};
    const gcomp_tensor tensors[2] = {matrix, other};
    for (size_t c = 5; c < 7; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        gcomp_statistics stats;
        char settled[160];
        team t;
        team_open(&t, 2, &desc, tensors, 2);
        for (size_t k = 0; k < 2; k++) step_of(&t, k);
        regroup(&t, 2, swap);
        for (size_t k = 2; k < 30; k++) {
            fill(&t, k);
            team_step(&t, NULL);
            CHECK(all_are(&t, GCOMP_OK));
        }
        strcpy(settled, codec_of(&t, 0));
        CHECK(strcmp(settled, "differs") && strncmp(settled, desc.codec, strlen(settled)));
        CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK && (c == 5 || stats.relative_error > 0));
        regroup(&t, 2, swap); /* what it has settled on stays */
        CHECK(has_codec(&t, 0, settled));
        team_close(&t);
    }
}

static void test_regroup_without_memory_changes_no_schedule(void)
{
    const gcomp_tensor tensors[2] = {matrix, other};
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    gcomp_comm comm;
    gcomp_result result = GCOMP_OUT_OF_MEMORY;
    saved before, after;
    team t;
    memset(&comm, 0, sizeof comm);
    comm.world = 2;
    team_open(&t, 2, &desc, tensors, 2);
    for (size_t k = 0; k < 8; k++) step_of(&t, k);
    save_team(&t, &before);
    for (size_t left = 0; result != GCOMP_OK; left++) {
        size_t used = gcomp_memory_used(t.gc[1]), held = heap.blocks;
        heap.left = left;
        result = gcomp_regroup(t.gc[1], &comm);
        heap.left = SIZE_MAX;
        CHECK(result == (left < 5 ? GCOMP_OUT_OF_MEMORY : GCOMP_OK)); /* frames, two sums, scratch, buffers */
        if (result == GCOMP_OK || left > 9) break;
        CHECK(gcomp_memory_used(t.gc[1]) == used && heap.blocks == held);
        save_team(&t, &after);
        CHECK(after.length[1] == before.length[1] && !memcmp(after.bytes[1], before.bytes[1], before.length[1]));
        drop(&after);
    }
    CHECK(gcomp_save_size(t.gc[1]) == before.length[0]);
    drop(&before);
    team_close(&t);
    CHECK(heap.blocks == 0);
}

static void test_saves_at_other_levels_are_told_apart(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "warmup:epochs=1"), changed = desc_of(LOW "|" HIGH, "warmup:epochs=2");
    gcomp_step first = gcomp_step_default(), second = step_with(1, -1, 1);
    saved low, high;
    team a, b, c;
    team_open(&a, 2, &desc, &matrix, 1);
    team_open(&b, 2, &desc, &matrix, 1);
    team_open(&c, 2, &changed, &matrix, 1);
    fill(&a, 1);
    fill(&b, 1);
    team_step(&a, &first);
    team_step(&b, &second);
    save_team(&a, &low);
    save_team(&b, &high);
    CHECK(low.length[0] == high.length[0] && saved_level(&low, 0, 0) == 0 && saved_level(&high, 0, 0) == 1);
    CHECK(gcomp_take_over(a.gc[0], low.bytes[1], low.length[1]) == GCOMP_OK);
    CHECK(gcomp_take_over(a.gc[0], high.bytes[1], high.length[1]) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[0]), "'matrix': it is at another codec"));
    free(low.bytes[1]);
    low.bytes[1] = high.bytes[1];
    high.bytes[1] = NULL;
    CHECK(gcomp_load(a.gc[0], (const void *const *)(const void *)low.bytes, low.length, 2) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[0]), "save 1: it is at other codecs"));
    CHECK(gcomp_join(c.gc[0], high.bytes[0], high.length[0]) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(c.gc[0]), "another schedule"));
    drop(&low);
    drop(&high);
    team_close(&a);
    team_close(&b);
    team_close(&c);
}

/* gcomp_step.learning_rate is rank 0's: what the others were told is in their saves, and does
   not matter there. */
static void test_saves_load_together_whatever_the_others_were_told_of_the_learning_rate(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    const float size[1] = {1};
    for (size_t world = 2; world <= 4; world++) {
        saved saves;
        team t, after;
        team_open(&t, 3, &desc, &matrix, 1);
        t.knows_alone = 1;
        for (uint32_t epoch = 0; epoch < 3; epoch++) epoch_of(&t, epoch, size, 1);
        CHECK(has_codec(&t, 0, HIGH));
        save_team(&t, &saves);
        team_open(&after, world, &desc, &matrix, 1);
        after.knows_alone = 1;
        load_team(&after, &saves, 3);
        CHECK(has_codec(&after, 0, HIGH));
        epoch_of(&after, 2, size, 1); /* no fall: the rate of rank 0 was 1, that of worker 1 was 7 */
        CHECK(has_codec(&after, 0, HIGH));
        epoch_of(&after, 2, size, 0.5f);
        CHECK(has_codec(&after, 0, LOW));
        drop(&saves);
        team_close(&after);
        team_close(&t);
    }
}

static void test_saves_of_other_epochs_are_told_apart(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    const float size[1] = {1};
    saved now, later;
    team t, b;
    team_open(&t, 2, &desc, &matrix, 1);
    team_open(&b, 2, &desc, &matrix, 1);
    epoch_of(&t, 0, size, 0);
    epoch_of(&b, 1, size, 0);
    save_team(&t, &now);
    save_team(&b, &later);
    free(now.bytes[1]);
    now.bytes[1] = later.bytes[1];
    later.bytes[1] = NULL;
    CHECK(gcomp_load(t.gc[0], (const void *const *)(const void *)now.bytes, now.length, 2) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(t.gc[0]), "save 1: it is in another epoch"));
    drop(&now);
    drop(&later);
    team_close(&t);
    team_close(&b);
}

/* Each bit of a save is changed in turn, and the checksum with it. The save is refused and
   nothing has changed, or it is taken as it stands. */
static void test_forged_schedules_are_refused_or_taken_as_they_stand(void)
{
    static const gcomp_tensor small[2] = {{"w", 6, 5, 0, GCOMP_F32, NULL}, {"b", 5, 0, 0, GCOMP_F32, NULL}};
    static const char *const lists_of[2] = {"powersgd:rank=1|none", "sign|topk:density=0.1|powersgd:rank=1"};
    static const char *const schedules[3] = {"accordion:every=1,eta=0.01", "accordion:every=1,eta=0.01,scope=model", "bytes:target=100,every=3"};
    const gcomp_step first = gcomp_step_default();
    for (size_t c = 0; c < 3; c++) {
        gcomp_desc desc = desc_of(lists_of[c / 2], schedules[c]);
        size_t refused = 0, taken = 0, length;
        saved saves;
        team t, fresh;
        desc.min_elements = 1;
        team_open(&t, 1, &desc, small, 2);
        for (size_t k = 0; k < 8; k++) step_of(&t, k);
        save_team(&t, &saves);
        length = saves.length[0];
        team_open(&fresh, 1, &desc, small, 2);
        for (size_t bit = 8 * 48; bit < 8 * (length - 4); bit++) {
            uint8_t bad[2048], had[2048], has[2048];
            const void *list = bad;
            size_t n;
            CHECK(length <= sizeof bad && gcomp_save(fresh.gc[0], had, sizeof had, &n) == GCOMP_OK && n == length);
            memcpy(bad, saves.bytes[0], length);
            bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
            put_word(bad + length - 4, plain_crc(0, bad, length - 4), 4);
            gcomp_result result = gcomp_load(fresh.gc[0], &list, &length, 1);
            CHECK(result == GCOMP_OK || result == GCOMP_CORRUPT || result == GCOMP_SAVE_MISMATCH);
            CHECK(gcomp_save(fresh.gc[0], has, sizeof has, &n) == GCOMP_OK && n == length);
            CHECK(!memcmp(has, result == GCOMP_OK ? bad : had, length));
            refused += result != GCOMP_OK;
            taken += result == GCOMP_OK;
            if (bit % 16) continue;
            fill(&fresh, bit); /* and steps go on */
            team_step(&fresh, &first);
            CHECK(fresh.result[0] == GCOMP_OK);
        }
        if (refused < 300 || taken < 1000) printf("# %s: %d refused, %d taken\n", schedules[c], (int)refused, (int)taken);
        CHECK(refused > 300 && taken > 1000);
        drop(&saves);
        team_close(&t);
        team_close(&fresh);
    }
}

/* Words of a save that no schedule can have, for each rule, in the order of the manual. The save
   is that of rank 0. */
static void test_what_no_schedule_knows_is_refused(void)
{
    static const struct {
        size_t at; /* behind the levels of tensors */
        uint64_t word;
        int bytes;
    } accordion[] = {{0, 1, 4}, {4, 2, 4}, {4, 0, 4}, {12, 0x7f800000u, 4}, {12, 0x80000000u, 4}, {12, 0x7fc00000u, 4}, {16 + 140, 2, 4},
                     {16 + 144, 2, 4}, {16 + 148, 0x7ff0000000000000u, 8}, {16 + 148, 0x8000000000000000u, 8},
                     {16 + 156, 0x7ff8000000000000u, 8}, {16 + 164, 0x7f800001u, 4}},
      bytes[] = {{0, 3, 4}, {0, 1, 4}, {16 + 140, 3, 4}, {16 + 144, 0xffffffffu, 4}, {16 + 148, 2, 4}, {16 + 152, 3, 4},
                 {16 + 156, 0xbff0000000000000u, 8}, {16 + 164, 0x7ff0000000000000u, 8}, {16 + 172, 0x8000000000000000u, 8}};
    static const gcomp_tensor small = {"w", 6, 5, 0, GCOMP_F32, NULL};
    for (int c = 0; c < 2; c++) {
        gcomp_desc desc = desc_of(c ? "sign|topk:density=0.1|powersgd:rank=1" : "powersgd:rank=1|none",
                                  c ? "bytes:target=1e9,every=3" : "accordion:every=1");
        const size_t count = c ? sizeof bytes / sizeof *bytes : sizeof accordion / sizeof *accordion;
        saved saves;
        team t;
        desc.min_elements = 1;
        team_open(&t, 1, &desc, &small, 1);
        step_of(&t, 0);
        save_team(&t, &saves);
        uint8_t *s = saves.bytes[0];
        const size_t length = saves.length[0];
        const void *list = s;
        for (size_t i = 0; i <= count; i++) {
            uint8_t had[8];
            size_t at = 60 + get_word(s + 52, 8) + (c ? bytes : accordion)[i % count].at;
            int n = (c ? bytes : accordion)[i % count].bytes;
            memcpy(had, s + at, 8);
            if (i < count) put_word(s + at, (c ? bytes : accordion)[i].word, n);
            put_word(s + length - 4, plain_crc(0, s, length - 4), 4);
            gcomp_result result = gcomp_load(t.gc[0], &list, &length, 1);
            if (result != (i < count ? GCOMP_CORRUPT : GCOMP_OK)) printf("# rule %d, case %d\n", c, (int)i);
            CHECK(result == (i < count ? GCOMP_CORRUPT : GCOMP_OK));
            memcpy(s + at, had, 8);
        }
        drop(&saves);
        team_close(&t);
    }
}

static void test_workers_with_other_schedules_are_named(void)
{
    static const struct {
        const char *schedule[2], *codec; /* of the second worker */
        const char *part;
    } cases[] = {
        {{"accordion", "accordion:eta=0.4"}, LOW "|" HIGH, "rank 1 has a parameter of desc.schedule 0.4, rank 0 has a parameter of desc.schedule 0.5"},
        {{"accordion", "accordion:every=9"}, LOW "|" HIGH, "rank 1 has a parameter of desc.schedule 9"},
        {{"bytes:target=100", "bytes:target=101"}, LOW "|" HIGH, "desc.schedule 101"},
        {{"accordion", "error:target=0.1"}, LOW "|" HIGH, "rank 1 has desc.schedule error, rank 0 has desc.schedule accordion"},
        {{"accordion", "accordion"}, LOW "|topk:density=0.02", "|topk:density=0.02"}, /* the first is the same, the second is not */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(LOW "|" HIGH, cases[c].schedule[0]), second = desc_of(cases[c].codec, cases[c].schedule[1]);
        team t;
        team_open(&t, 2, &desc, &matrix, 1);
        gcomp_close(t.gc[1]);
        second.comm.rank = 1;
        second.comm.world = 2;
        CHECK(gcomp_open(&t.gc[1], &second) == GCOMP_OK && gcomp_add_tensor(t.gc[1], &matrix) == GCOMP_OK);
        team_step(&t, NULL);
        CHECK(all_are(&t, GCOMP_MISMATCH) && strstr(gcomp_error(t.gc[0]), cases[c].part));
        team_close(&t);
    }
}

/* ---------------- hostile frames */

static size_t hostile_rank, hostile_call, hostile_at;
static uint8_t hostile_byte;
static int hostile_seal;

/* Another byte in what one worker sent, with a checksum that fits. */
static void hostile(size_t call, uint8_t *all, size_t stride)
{
    uint8_t *p = all + hostile_rank * stride;
    if (call != hostile_call) return;
    p[hostile_at] = hostile_byte;
    if (call == 0 && hostile_seal) put_word(p + 60, plain_crc(0, p, 60), 4);
    if (call == 1 && hostile_seal) {
        uint8_t step[8];
        put_word(step, 3, 8);
        put_word(p + stride - 4, plain_crc(plain_crc(0, step, 8), p, stride - 4), 4);
    }
}

/* Three steps; in the fourth rank 0 has each tensor switch (tensors), or all (not). */
static void before_a_switch(team *t, int tensors, gcomp_step *step)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, tensors ? "accordion:every=1" : "warmup:epochs=1");
    const gcomp_tensor both[2] = {matrix, other};
    *step = gcomp_step_default();
    team_open(t, 2, &desc, both, 2);
    for (int k = 0; k < 3; k++) {
        step->epoch = tensors ? (uint32_t)k / 2 : 0;
        fill(t, 1);
        team_step(t, step);
        CHECK(all_are(t, GCOMP_OK));
    }
    if (tensors) { /* norms of epochs 0 and 1 are 2 and 1 of these gradients */
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(t->gc[w], 0) == GCOMP_OK);
        for (int k = 0; k < 3; k++) {
            step->epoch = k ? (uint32_t)k - 1 : 0;
            for (size_t w = 0; w < 2; w++)
                for (size_t i = 0; i < 2; i++)
                    for (size_t j = 0; j < t->n[i]; j++) t->grad[w][i][j] = k == 2 ? 2 : 1;
            team_step(t, step);
            CHECK(all_are(t, GCOMP_OK));
        }
    }
    step->epoch++;
    fill(t, 2);
}

static void test_decisions_that_are_none_are_refused_by_all(void)
{
    static const struct {
        int tensors;
        size_t rank, call, at;
        uint8_t byte;
        int seal;
    } cases[] = {
        {0, 0, 0, 13, 3, 1}, {0, 0, 0, 13, 255, 1}, {0, 0, 0, 13, 1, 0}, {0, 1, 0, 13, 1, 1},
        {1, 0, 0, 13, 1, 1}, {1, 0, 0, 13, 254, 1}, {1, 1, 0, 13, 255, 1},
        {1, 0, 1, 0, 2, 1},  {1, 0, 1, 1, 255, 1}, {1, 0, 1, 0, 0, 0},  {1, 0, 1, 5, 77, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_step step;
        team t;
        before_a_switch(&t, cases[c].tensors, &step);
        hostile_rank = cases[c].rank;
        hostile_call = cases[c].call;
        hostile_at = cases[c].at;
        hostile_byte = cases[c].byte;
        hostile_seal = cases[c].seal;
        t.tamper = hostile;
        uint64_t digest = digest_of(&t);
        team_step(&t, &step);
        for (size_t w = 0; w < 2; w++) /* a worker sees a change of its own frame */
            CHECK(t.result[w] == (cases[c].call                            ? GCOMP_CHECKSUM_MISMATCH
                                  : cases[c].seal && w != cases[c].rank ? GCOMP_MISMATCH
                                                                           : GCOMP_CALLBACK_FAILED));
        CHECK(digest_of(&t) == digest && has_codec(&t, 0, LOW) && has_codec(&t, 1, LOW));
        t.tamper = NULL;
        team_step(&t, &step); /* and it can be tried again */
        CHECK(all_are(&t, GCOMP_OK) && has_codec(&t, 0, HIGH) && has_codec(&t, 1, HIGH));
        CHECK(t.strides[1] == 6 || !cases[c].tensors);
        team_close(&t);
    }
}

static void test_decisions_damaged_on_one_worker_are_named_in_the_next_frame(void)
{
    gcomp_step step;
    team t;
    before_a_switch(&t, 1, &step);
    hostile_rank = 0;
    hostile_call = 1;
    hostile_at = 1;
    hostile_byte = 9;
    hostile_seal = 0;
    t.tamper = hostile;
    t.only = 1;
    team_step(&t, &step);
    CHECK(t.result[0] == GCOMP_OK && t.result[1] == GCOMP_CHECKSUM_MISMATCH && strstr(gcomp_error(t.gc[1]), "damaged"));
    t.tamper = NULL;
    team_step(&t, &step);
    CHECK(t.result[0] == GCOMP_OUT_OF_STEP && t.result[1] == GCOMP_OUT_OF_STEP);
    team_close(&t);
}

int main(void)
{
    RUN(test_accordion_compresses_while_the_norm_hardly_changes);
    RUN(test_accordion_decides_each_tensor_alone_or_all_together);
    RUN(test_accordion_looks_every_so_many_epochs);
    RUN(test_a_tensor_that_no_codec_of_the_list_helps_is_left_alone);
    RUN(test_nothing_is_lost_through_switches);
    RUN(test_memory_is_reserved_for_all_codecs_of_a_list);
    RUN(test_running_out_of_memory_leaves_nothing);
    RUN(test_failed_and_aborted_steps_leave_decisions_as_they_were);
    RUN(test_restart_goes_back_to_the_first_codec);
    RUN(test_powersgd_keeps_what_it_knows_through_a_switch);
    RUN(test_every_method_warms_up);
    RUN(test_a_budget_of_bytes_is_reached_and_held);
    RUN(test_a_budget_of_bytes_follows_the_data);
    RUN(test_a_target_of_error_is_reached_and_held);
    RUN(test_bad_schedules_and_lists_are_refused_with_a_reason);
    RUN(test_tensors_bring_lists_as_long_as_the_first);
    RUN(test_a_bad_learning_rate_fails_the_step);
    RUN(test_a_sum_further_down_a_list_needs_its_callback_from_the_start);
    RUN(test_shards_further_down_a_list_need_their_callback_from_the_start);
    RUN(test_a_run_goes_on_after_a_break_with_the_same_bits);
    RUN(test_a_schedule_goes_on_with_another_number_of_workers);
    RUN(test_who_joins_has_the_levels_of_the_others);
    RUN(test_a_new_rank_0_does_not_judge_by_half_an_epoch);
    RUN(test_a_new_rank_0_controls_bytes_and_errors);
    RUN(test_regroup_without_memory_changes_no_schedule);
    RUN(test_saves_at_other_levels_are_told_apart);
    RUN(test_saves_load_together_whatever_the_others_were_told_of_the_learning_rate);
    RUN(test_saves_of_other_epochs_are_told_apart);
    RUN(test_forged_schedules_are_refused_or_taken_as_they_stand);
    RUN(test_what_no_schedule_knows_is_refused);
    RUN(test_workers_with_other_schedules_are_named);
    RUN(test_decisions_that_are_none_are_refused_by_all);
    RUN(test_decisions_damaged_on_one_worker_are_named_in_the_next_frame);
    return test_end();
}
