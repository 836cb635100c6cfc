/* Proves that each rule of desc.schedule chooses the codecs that it should, and that all workers change in the same step, also after faults. */

#include "schedules.h"

static const gcomp_tensor matrix = {"matrix", 40, 32, 2, GCOMP_F32, NULL};
static const gcomp_tensor other = {"other", 48, 32, 0, GCOMP_F32, NULL};
static const gcomp_tensor bias = {"bias", 48, 0, 0, GCOMP_F32, NULL};

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
                gcomp_step step = GCOMP_STEP;
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
                for (size_t w = 0; w < world; w++) sent[j] += (double)tensor_residual(t.gc[w], 0)[j] / (double)world;
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
            CHECK(needed == memory_of(t.gc[0]));
            heap.asked = 0;
            for (size_t k = 0; k < 24; k++) {
                gcomp_step step = GCOMP_STEP;
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
    CHECK(failed == 9); /* object, frames, an array; name, residual, Q, sum of an epoch, list; buffers of a step */
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
                gcomp_step step = GCOMP_STEP;
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
    gcomp_step step = GCOMP_STEP;
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
            gcomp_step step = GCOMP_STEP;
            const gcomp_codec *codec = tensor_codec(t.gc[0], 0);
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
    gcomp_desc desc = desc_of("qsgd:levels=127,code=entropy|qsgd:levels=7,code=entropy|qsgd:levels=1,code=entropy",
                              "bytes:target=950,every=4,slack=0.05");
    team t;
    team_open(&t, 2, &desc, &other, 1);
    for (size_t k = 0; k < 80; k++) {
        fill(&t, k);
        for (size_t w = 0; w < 2 && k >= 40; w++)
            for (size_t j = 0; j < t.n[0]; j++) t.grad[w][0][j] = j % 8 ? 0 : t.grad[w][0][j];
        team_step(&t, NULL);
        CHECK(all_are(&t, GCOMP_OK));
        if (k == 39) CHECK(has_codec(&t, 0, "qsgd:code=entropy"));
    }
    CHECK(has_codec(&t, 0, "qsgd:levels=127,code=entropy"));
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
        {"none|dgc", "accordion", GCOMP_BAD_CODEC, "a codec of the list keeps the momentum"},
        {"topk|dgc", "accordion", GCOMP_BAD_CODEC, "a codec of the list keeps the momentum"},
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
        if (cases[c].part) CHECK(strstr(gcomp_error(gc), cases[c].part) && tensors_of(gc) == 0);
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
        gcomp_step step = GCOMP_STEP;
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
    const gcomp_step step = GCOMP_STEP;
    float *grads[1];
    gcomp *gc;
    CHECK(gcomp_open(&gc, desc) == GCOMP_OK && gcomp_add_tensor(gc, &other) == GCOMP_OK);
    grads[0] = (float *)calloc(tensor_elements(gc, 0), sizeof(float));
    CHECK(exchange_floats(gc, grads, &step) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), callback));
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
    return test_end();
}
