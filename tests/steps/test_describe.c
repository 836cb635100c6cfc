/* Proves that a codec that the user names is used, or that a sentence says why not: for a vector
   that is the only tensor, for codecs that need epochs, and in the text of gcomp_describe. */
#include "test.h"

#include <math.h>

enum { COUNT = 1 << 14 };

static float grad[2 * COUNT];

static void fill(uint64_t seed)
{
    for (size_t i = 0; i < 2 * COUNT; i++) grad[i] = (float)(int32_t)mix(seed * 1000003 + i) * 0x1p-31f;
}

static gcomp_tensor shape(const char *name, size_t rows, size_t cols, const char *codec)
{
    gcomp_tensor t = {0};
    t.name = name;
    t.rows = rows;
    t.cols = cols;
    t.codec = codec;
    return t;
}

static int has(const gcomp *gc, size_t tensor, const char *codec)
{
    char text[160];
    (void)gcomp_codec_format(tensor_codec(gc, tensor), text, sizeof text);
    if (strcmp(text, codec)) printf("# tensor %d has %s, expected %s\n", (int)tensor, text, codec);
    return !strcmp(text, codec);
}

static gcomp *open_with(const gcomp_desc *desc)
{
    gcomp *gc = NULL;
    CHECK(gcomp_open(&gc, desc) == GCOMP_OK);
    return gc;
}

static gcomp *open_codec(const char *codec)
{
    gcomp_desc desc = {0};
    desc.codec = codec;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    return open_with(&desc);
}

static int says(const gcomp *gc, const char *part)
{
    char text[4096];
    CHECK(gcomp_describe(gc, text, sizeof text) == strlen(text));
    if (!strstr(text, part)) printf("# not \"%s\" in:\n# %s", part, text);
    return strstr(text, part) != NULL;
}

/* ---------------- one vector */

static void test_one_flat_vector_is_compressed(void)
{
    static const char *const codecs[] = {"topk", "sign", "int:bits=4", "dgc:warmup=0", "randomk", "eden", "vote"};
    static const double least[] = {60, 28, 7, 400, 90, 28, 30};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        gcomp *gc = open_codec(codecs[c]);
        gcomp_tensor all = shape("all", COUNT, 0, NULL);
        gcomp_statistics stats;
        CHECK(gcomp_add_tensor(gc, &all) == GCOMP_OK);
        CHECK(has(gc, 0, codecs[c]));
        for (uint64_t s = 0; s < 20; s++) {
            fill(s);
            CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
        }
        CHECK(gcomp_stats(gc, &stats) == GCOMP_OK);
        /* a frame of 64 bytes a step beside it */
        printf("# %s: %.1f times less\n", codecs[c], (double)stats.bytes_in / (double)(stats.bytes_out - 20 * 64));
        CHECK((double)stats.bytes_in / (double)(stats.bytes_out - 20 * 64) > least[c]);
        CHECK(has(gc, 0, codecs[c]));
        gcomp_close(gc);
    }
}

/* The same bits as where it is named, or where vectors are compressed. */
static void test_one_flat_vector_is_as_if_it_were_named(void)
{
    float after[3][COUNT];
    for (int how = 0; how < 3; how++) {
        gcomp_desc desc = {0};
        gcomp_tensor all = shape("all", COUNT, how == 1 ? 1 : 0, how == 2 ? "topk:density=0.02" : NULL);
        gcomp *gc;
        desc.codec = "topk:density=0.02";
        desc.compress_vectors = how == 1;
        gc = open_with(&desc);
        CHECK(gcomp_add_tensor(gc, &all) == GCOMP_OK);
        for (uint64_t s = 0; s < 5; s++) {
            fill(s);
            CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
        }
        memcpy(after[how], grad, sizeof after[how]);
        gcomp_close(gc);
    }
    CHECK(!memcmp(after[0], after[1], sizeof after[0]) && !memcmp(after[0], after[2], sizeof after[0]));
}

static void test_a_vector_among_others_is_not_compressed(void)
{
    for (int first = 0; first < 2; first++) {
        test_heap heap = {SIZE_MAX, 0, 0, 0};
        gcomp_desc desc = {0};
        gcomp_tensor tensors[2] = {shape("v", COUNT, 0, NULL), shape("m", 64, 64, NULL)};
        gcomp_tensor swap = tensors[0];
        gcomp *gc;
        desc.codec = "sign";
        desc.allocator = heap_of(&heap);
        if (!first) tensors[0] = tensors[1], tensors[1] = swap;
        gc = open_with(&desc);
        CHECK(gcomp_add_tensor(gc, tensors) == GCOMP_OK && has(gc, 0, "sign"));
        CHECK(gcomp_add_tensor(gc, tensors + 1) == GCOMP_OK);
        CHECK(has(gc, tensor_named(gc, "v"), "none") && has(gc, tensor_named(gc, "m"), "sign"));
        CHECK(tensor_residual(gc, tensor_named(gc, "v")) == NULL && tensor_residual(gc, tensor_named(gc, "m")) != NULL);
        CHECK(gcomp_prepare(gc) == GCOMP_OK && gcomp_memory_needed(&desc, tensors, 2) == memory_of(gc));
        CHECK(heap.held == memory_of(gc));
        fill(1);
        CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
        gcomp_close(gc);
        CHECK(heap.blocks == 0 && heap.held == 0);
    }
}

/* The object is the same as one whose vector was added with the codec none: saves go from one to
   the other. */
static void test_what_was_alone_leaves_no_trace(void)
{
    gcomp *gc = open_codec("sign"), *named = open_codec("sign");
    gcomp_tensor v = shape("v", COUNT, 0, NULL), m = shape("m", 64, 64, NULL), plain = shape("v", COUNT, 0, "none");
    unsigned char *save = (unsigned char *)malloc(1 << 20);
    size_t length = 0;
    CHECK(gcomp_add_tensor(gc, &v) == GCOMP_OK && save_size(gc) > 4 * COUNT);
    CHECK(gcomp_add_tensor(gc, &m) == GCOMP_OK);
    CHECK(gcomp_add_tensor(named, &plain) == GCOMP_OK && gcomp_add_tensor(named, &m) == GCOMP_OK);
    fill(1);
    CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
    CHECK(save_size(gc) == save_size(named) && gcomp_save(gc, save, 1 << 20, &length) == GCOMP_OK);
    const void *saves[1] = {save};
    CHECK(gcomp_load(named, saves, &length, 1, NULL) == GCOMP_OK);
    gcomp_close(gc);
    gcomp_close(named);
    free(save);
}

static void test_what_cannot_be_added_leaves_the_vector_alone(void)
{
    test_heap heap = {SIZE_MAX, 0, 0, 0};
    gcomp_desc desc = {0};
    gcomp_tensor v = shape("v", COUNT, 0, NULL), again = v, m = shape("m", 64, 64, NULL), bad = shape("b", 64, 64, "no such codec");
    size_t used;
    gcomp *gc;
    desc.codec = "sign";
    desc.allocator = heap_of(&heap);
    gc = open_with(&desc);
    CHECK(gcomp_add_tensor(gc, &v) == GCOMP_OK);
    used = memory_of(gc);
    CHECK(gcomp_memory_needed(&desc, &v, 1) > used);
    CHECK(gcomp_add_tensor(gc, &again) == GCOMP_DUPLICATE_NAME && gcomp_add_tensor(gc, &bad) == GCOMP_BAD_CODEC);
    for (size_t left = 0; left < 2; left++) {
        heap.left = left;
        CHECK(gcomp_add_tensor(gc, &m) == GCOMP_OUT_OF_MEMORY);
        heap.left = SIZE_MAX;
    }
    CHECK(has(gc, 0, "sign") && tensor_residual(gc, 0) && memory_of(gc) == used);
    CHECK(gcomp_prepare(gc) == GCOMP_OK && gcomp_memory_needed(&desc, &v, 1) == memory_of(gc));
    gcomp_close(gc);
    CHECK(heap.blocks == 0);
}

static void test_other_rules_stay(void)
{
    gcomp *gc = open_codec("sign");
    gcomp_tensor few = shape("few", 1023, 0, NULL), v = shape("v", COUNT, 0, NULL), none = shape("v", COUNT, 0, "none");
    CHECK(gcomp_add_tensor(gc, &few) == GCOMP_OK && has(gc, 0, "none") && says(gc, "none (fewer elements than desc.min_elements)"));
    gcomp_close(gc);
    gc = open_codec("sign");
    CHECK(gcomp_add_tensor(gc, &none) == GCOMP_OK && has(gc, 0, "none") && !tensor_residual(gc, 0));
    gcomp_close(gc);
    gc = open_codec("powersgd:rank=2");
    CHECK(gcomp_add_tensor(gc, &v) == GCOMP_OK && has(gc, 0, "none") && says(gc, "a vector, which the codec would not make smaller"));
    gcomp_close(gc);
}

/* The only tensor begins with the first codec of its list, and the schedule goes on with it. */
static void test_a_schedule_serves_one_vector(void)
{
    gcomp_desc desc = {0};
    gcomp_tensor v = shape("v", COUNT, 0, NULL);
    gcomp_step step = GCOMP_STEP;
    gcomp *gc;
    desc.codec = "topk:density=0.001";
    desc.schedule = "warmup:epochs=4";
    gc = open_with(&desc);
    CHECK(gcomp_add_tensor(gc, &v) == GCOMP_OK && has(gc, 0, "topk:density=0.25") && says(gc, "(codec 1 of 5 of the schedule)"));
    for (step.epoch = 0; step.epoch < 6; step.epoch++)
        for (int i = 0; i < 2; i++) {
            fill(step.epoch);
            CHECK(gcomp_exchange_flat(gc, grad, &step) == GCOMP_OK);
        }
    CHECK(has(gc, 0, "topk:density=0.001") && says(gc, "(codec 5 of 5 of the schedule)"));
    gcomp_close(gc);
}

/* ---------------- epochs */

static void test_what_goes_by_epochs_refuses_a_step_that_says_none(void)
{
    static const struct { const char *codec, *schedule, *word; } cases[] = {
        {"dgc:density=0.01", NULL, "codec dgc warms up by epochs: pass gcomp_step.epoch, or set warmup=0"},
        {"topk:density=0.01", "warmup", "schedule warmup goes by epochs: pass gcomp_step.epoch"},
        {"dgc:density=0.01,warmup=0", "warmup", "codec dgc warms up by epochs"},
        {"int|int:bits=4", "accordion", "schedule accordion goes by epochs: pass gcomp_step.epoch"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int flat = 0; flat < 2; flat++) {
            gcomp_desc desc = {0};
            gcomp_tensor t = shape("w", 128, flat ? 0 : 128, NULL);
            float *grads[1] = {grad}, before = 0;
            gcomp_step step = GCOMP_STEP;
            gcomp *gc;
            if (flat) t.rows = COUNT;
            desc.codec = cases[c].codec;
            desc.schedule = cases[c].schedule;
            gc = open_with(&desc);
            CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
            fill(3);
            before = grad[7];
            for (int i = 0; i < 2; i++) {
                CHECK(exchange_floats(gc, grads, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), cases[c].word));
                CHECK(strstr(gcomp_error(gc), "tensor 'w'") && grad[7] == before && gcomp_step_number(gc) == 0);
            }
            CHECK(exchange_floats(gc, grads, &step) == GCOMP_OK && gcomp_step_number(gc) == 1);
            gcomp_close(gc);
        }
}

static void test_what_does_not_go_by_epochs_takes_no_step(void)
{
    static const struct { const char *codec, *schedule, *own; } cases[] = {
        {"dgc:warmup=0", NULL, NULL}, {"topk", NULL, NULL}, {"int|int:bits=4", "bytes:target=1000", NULL},
        {"topk", "warmup", "none"}, {"int|int:bits=4", "error:target=0.1", NULL}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = {0};
        gcomp_tensor t = shape("w", 128, 128, NULL), bias = shape("b", 100, 0, NULL);
        gcomp *gc;
        desc.codec = cases[c].codec;
        desc.schedule = cases[c].schedule;
        gc = open_with(&desc);
        if (!cases[c].own) CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
        CHECK(gcomp_add_tensor(gc, &bias) == GCOMP_OK);
        fill(4);
        CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
        gcomp_close(gc);
    }
}

static void test_a_vector_that_was_alone_asks_for_no_epochs(void)
{
    gcomp *gc = open_codec("dgc");
    gcomp_tensor v = shape("v", COUNT, 0, NULL), small = shape("s", 10, 10, NULL);
    CHECK(gcomp_add_tensor(gc, &v) == GCOMP_OK && says(gc, "dgc (more in the first epochs)"));
    CHECK(gcomp_add_tensor(gc, &small) == GCOMP_OK);
    fill(5);
    CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_OK);
    gcomp_close(gc);
}

/* Two workers, of which one says no epoch: both come back from the step. */
static void test_a_step_without_epoch_is_told_to_the_others(void)
{
    gcomp *gc[2];
    gcomp_request request[2];
    gcomp_step step = GCOMP_STEP;
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc = {0};
        gcomp_tensor t = shape("w", 64, 64, NULL);
        desc.codec = "dgc";
        desc.comm.rank = w;
        desc.comm.world = 2;
        gc[w] = open_with(&desc);
        CHECK(gcomp_add_tensor(gc[w], &t) == GCOMP_OK);
        fill((uint64_t)w);
        CHECK(gcomp_step_begin(gc[w], w ? &step : NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad) == GCOMP_OK);
        CHECK(gcomp_step_next(gc[w], &request[w]) == GCOMP_OK && request[w].kind == GCOMP_ALLGATHER);
    }
    for (int w = 0; w < 2; w++) {
        gcomp_request next;
        for (int o = 0; o < 2; o++) memcpy((char *)request[w].recv + (size_t)o * request[w].stride, request[o].send, 64);
        CHECK(gcomp_step_done(gc[w], request[w].id, 0) == GCOMP_OK);
        CHECK(gcomp_step_next(gc[w], &next) == (w ? GCOMP_PEER_FAILED : GCOMP_INVALID_ARGUMENT));
    }
    CHECK(strstr(gcomp_error(gc[0]), "dgc warms up by epochs") && strstr(gcomp_error(gc[1]), "rank 0"));
    gcomp_close(gc[0]);
    gcomp_close(gc[1]);
}

/* ---------------- describe */

static void test_each_tensor_has_a_line_and_the_last_line_has_the_sums(void)
{
    gcomp *gc = open_codec("sign");
    gcomp_tensor stack = shape("stack", 64, 32, "powersgd:rank=2"), half = shape("half", 40, 50, NULL);
    gcomp_tensor bias = shape("bias", 2000, 0, NULL), small = shape("small", 10, 10, NULL), gainless = shape("gainless", 3, 500, "powersgd");
    gcomp_tensor none = shape("none", 40, 50, "none");
    stack.stack = 3;
    half.dtype = GCOMP_F16;
    CHECK(gcomp_add_tensor(gc, &stack) == GCOMP_OK && gcomp_add_tensor(gc, &half) == GCOMP_OK && gcomp_add_tensor(gc, &bias) == GCOMP_OK);
    CHECK(gcomp_add_tensor(gc, &small) == GCOMP_OK && gcomp_add_tensor(gc, &gainless) == GCOMP_OK && gcomp_add_tensor(gc, &none) == GCOMP_OK);
    CHECK(says(gc, "stack: 3 x 64 x 32 fp32, powersgd:rank=2, 2304 of 24576 bytes\n")); /* 3 (64 + 32) 2 floats */
    CHECK(says(gc, "\nhalf: 40 x 50 fp16, sign, at most 290 of 4000 bytes\n"));         /* 32, 2 scales, 2000 bits */
    CHECK(says(gc, "\nbias: 2000 fp32, none (a vector), 8000 of 8000 bytes\n"));
    CHECK(says(gc, "\nsmall: 10 x 10 fp32, none (fewer elements than desc.min_elements), 400 of 400 bytes\n"));
    CHECK(says(gc, "\ngainless: 3 x 500 fp32, none (would not be smaller), 6000 of 6000 bytes\n"));
    CHECK(says(gc, "\nnone: 40 x 50 fp32, none, 8000 of 8000 bytes\n"));
    CHECK(says(gc, "\n6 tensors: at most 24994 of 50976 bytes a step, 2.0 times less\n"));
    gcomp_close(gc);
    gc = open_codec(NULL);
    CHECK(says(gc, "0 tensors: 0 of 0 bytes a step, 1.0 times less\n"));
    CHECK(gcomp_add_tensor(gc, &bias) == GCOMP_OK && says(gc, "bias: 2000 fp32, none, 8000 of 8000 bytes\n1 tensor: 8000 of"));
    gcomp_close(gc);
}

static void test_uncompressed_halves_are_said_to_take_more_bytes(void)
{
    gcomp *gc = open_codec("sign");
    gcomp_tensor bias = shape("bias", 2000, 0, "none"), cast = shape("cast", 40, 50, "bf16");
    char text[400];
    bias.dtype = cast.dtype = GCOMP_BF16;
    CHECK(gcomp_add_tensor(gc, &cast) == GCOMP_OK);
    (void)gcomp_describe(gc, text, sizeof text);
    CHECK(!strstr(text, "hint"));
    gcomp_close(gc);
    gc = open_codec("sign");
    CHECK(gcomp_add_tensor(gc, &bias) == GCOMP_OK);
    CHECK(says(gc, "8000 of 4000 bytes a step, 2.0 times more\nhint: uncompressed halves travel as float32, in twice their "
                   "bytes (1 of the tensors): give them codec bf16 or fp16\n"));
    gcomp_close(gc);
}

/* gcomp_describe says how many bytes are sent: exactly, where the length does not depend on the
   gradient; else at least as many. */
static void test_it_says_what_is_sent(void)
{
    for (size_t c = 1; gcomp_method_name(c); c++) {
        gcomp_desc desc = {0};
        gcomp_tensor t = shape("w", 128, 128, NULL);
        gcomp_statistics stats;
        gcomp_step step = GCOMP_STEP;
        char text[1024];
        const char *at;
        unsigned long long said = 0;
        gcomp *gc;
        desc.codec = gcomp_method_name(c);
        desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
        gc = open_with(&desc);
        CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
        (void)gcomp_describe(gc, text, sizeof text);
        at = strstr(text, "at most ");
        CHECK(sscanf(at ? at + 8 : strstr(text, ", ") + 2, at ? "%llu" : "%*[^,], %llu", &said) == 1);
        fill(c);
        CHECK(gcomp_exchange_flat(gc, grad, &step) == GCOMP_OK && gcomp_stats(gc, &stats) == GCOMP_OK);
        if (at ? stats.bytes_out - 64 > said : stats.bytes_out - 64 != said)
            printf("# %s: %llu sent, %s", desc.codec, (unsigned long long)stats.bytes_out - 64, text);
        CHECK(at ? stats.bytes_out - 64 <= said : stats.bytes_out - 64 == said);
        gcomp_close(gc);
    }
}

static void test_codecs_that_do_not_suit_adam_are_warned_of(void)
{
    static const struct { const char *codec, *word; } cases[] = {
        {"none", NULL}, {"bf16", NULL}, {"int:bits=4", NULL}, {"qsgd", NULL}, {"eden", NULL}, {"mx", NULL}, {"nonzero+int", NULL},
        {"powersgd:rank=auto", NULL}, {"powersgd:rank=8", NULL}, {"powersgd:rank=auto,share=4", NULL},
        {"sign", "signs"}, {"sign:scale=rms", "signs"}, {"onebit", "signs"}, {"twobit", "signs"}, {"sign", "6 to 33 %"}, {"terngrad", "2 to 8 %"},
        {"int:bits=2", "few levels"}, {"lloyd", "few levels"}, {"int:bits=3", "few levels"}, {"qsgd:levels=1", "few levels"}, {"int:bits=2,rounding=stochastic", "few levels"}, {"int", NULL},
        {"int:bits=2,range=affine", "few levels"}, {"ecsq", "few levels"}, {"ecsq:bits=4", NULL}, {"ecsq:error=0.01", "few levels"}, {"ecsq:error=0.005", NULL},
        {"eden:feedback=1", "7 %"}, {"eden:bits=2", NULL}, {"eden:bits=1,block=64", NULL},
        {"threshold1", "signs"}, {"topk", "sparse"}, {"topk+int:bits=4", "sparse"}, {"dryden", "sparse"}, {"randomk", "sparse"},
        {"sketch", "sparse"}, {"leadertopk", "sparse"}, {"strom", "sparse"}, {"adacomp", "sparse"}, {"blocktopk", "sparse"},
        {"powersgd", "rank=auto"},
        {"powersgd:rank=auto,share=9", "rank=auto"}, {"powersgd:rank=16,momentum=0.9", "plain SGD"}, {"dgc", "plain SGD"},
        {"fetch", "plain SGD"}, {"vote", "by its sign"}, {"dct", "step by the sign"},
    };
    gcomp_codec codec;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *warning;
        CHECK(gcomp_codec_parse(&codec, cases[i].codec, NULL, 0) == GCOMP_OK);
        warning = gcomp_warning(&codec, GCOMP_OPTIMIZER_ADAM);
        CHECK(cases[i].word ? warning && strstr(warning, cases[i].word) : !warning);
        CHECK(!gcomp_warning(&codec, GCOMP_OPTIMIZER_SGD) && !gcomp_warning(&codec, GCOMP_OPTIMIZER_UNKNOWN));
    }
    memset(&codec, 0xff, sizeof codec);
    CHECK(!gcomp_warning(NULL, GCOMP_OPTIMIZER_ADAM) && !gcomp_warning(&codec, GCOMP_OPTIMIZER_ADAM));
    for (int adam = 0; adam < 2; adam++) {
        gcomp_tensor tensors[4] = {shape("a", 64, 64, "topk"), shape("b", 64, 64, "sign"), shape("c", 64, 64, "dryden"),
                                   shape("d", 64, 64, "int")};
        gcomp_desc desc = {0};
        char text[4096];
        gcomp *gc;
        int warnings = 0;
        desc.comm.world = 2;
        desc.optimizer = adam ? GCOMP_OPTIMIZER_ADAM : GCOMP_OPTIMIZER_SGD;
        gc = open_with(&desc);
        for (int t = 0; t < 4; t++) CHECK(gcomp_add_tensor(gc, tensors + t) == GCOMP_OK);
        CHECK(gcomp_describe(gc, text, sizeof text) == strlen(text));
        for (const char *s = text; (s = strstr(s, "\nwarning: ")) != NULL; s++) warnings++;
        CHECK(warnings == 2 * adam);
        CHECK(!adam || (strstr(text, "\nwarning: topk: sparse") && strstr(text, "\nwarning: sign: signs")));
        gcomp_close(gc);
    }
}

static int any_alltoallv(void *user, const void *send, const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    (void)user, (void)send, (void)send_bytes, (void)recv, (void)recv_bytes;
    return 1;
}

/* The bytes that the hint names are those that the callback saves. */
static void test_a_missing_alltoallv_is_hinted_at_where_it_would_save_bytes(void)
{
    static const struct {
        const char *codec;
        int world, saves;
    } all[] = {{"int:bits=4", 4, 1}, {"int:bits=4", 16, 1}, {"sign", 4, 1}, {"topk:density=0.05", 16, 1}, {"int:bits=4", 2, 0},
               {"none", 4, 0}, {"powersgd:rank=2", 8, 0}, {"twobit:threshold=1", 8, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        gcomp_tensor t = shape("w", 512, 512, NULL);
        gcomp_round rounds[2][GCOMP_ROUNDS];
        gcomp_desc desc = {0};
        char hint[120], text[1024];
        gcomp *gc;
        const int sparse = !strncmp(all[i].codec, "topk", 4); /* the hint has an estimate */
        desc.codec = all[i].codec;
        desc.comm.world = all[i].world;
        CHECK(gcomp_rounds(&desc, &t, 1, NULL, rounds[0]) == GCOMP_OK);
        gc = open_with(&desc);
        CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
        desc.comm.alltoallv = any_alltoallv;
        CHECK(gcomp_rounds(&desc, &t, 1, NULL, rounds[1]) == GCOMP_OK);
        CHECK(sparse || (rounds[0][0].sent > rounds[1][0].sent) == all[i].saves);
        snprintf(hint, sizeof hint, "\nhint: comm.alltoallv is NULL: with it a worker would receive up to %llu bytes less in a step\n",
                 (unsigned long long)(rounds[0][0].sent - rounds[1][0].sent));
        if (all[i].saves && !sparse) CHECK(says(gc, hint));
        (void)gcomp_describe(gc, text, sizeof text);
        CHECK((strstr(text, "hint: comm.alltoallv is NULL") != NULL) == all[i].saves);
        gcomp_close(gc);
        gc = open_with(&desc);
        CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
        (void)gcomp_describe(gc, text, sizeof text);
        CHECK(!strstr(text, "hint"));
        gcomp_close(gc);
    }
}

static void test_names_and_shapes_are_told(void)
{
    gcomp_desc desc = {0};
    gcomp_tensor_info info, before;
    gcomp_tensor stack = shape("stack", 64, 32, NULL), bias = shape("bias", 200, 0, NULL);
    gcomp *gc;
    memset(&info, 0, sizeof info);
    desc.comm.rank = 2;
    desc.comm.world = 5;
    stack.stack = 3;
    stack.dtype = GCOMP_F16;
    gc = open_with(&desc);
    CHECK(gcomp_add_tensor(gc, &stack) == GCOMP_OK && gcomp_add_tensor(gc, &bias) == GCOMP_OK);
    CHECK(!strcmp(tensor_name(gc, 0), "stack") && !strcmp(tensor_name(gc, 1), "bias") && !tensor_name(gc, 2));
    CHECK(gcomp_tensor_get(gc, 0, &info) == GCOMP_OK && info.rows == 64 && info.cols == 32 && info.stack == 3);
    CHECK(info.elements == 64 * 32 * 3 && info.dtype == GCOMP_F16 && !strcmp(info.name, "stack"));
    CHECK(gcomp_tensor_get(gc, 1, &info) == GCOMP_OK && info.rows == 200 && info.cols == 1 && info.stack == 1);
    before = info;
    CHECK(gcomp_tensor_get(gc, 2, &info) == GCOMP_INVALID_ARGUMENT && gcomp_tensor_get(NULL, 0, &info) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_tensor_get(gc, 0, NULL) == GCOMP_INVALID_ARGUMENT && !memcmp(&info, &before, sizeof info));
    gcomp_close(gc);
}

static void test_text_is_cut_to_fit(void)
{
    char whole[512], part[512];
    gcomp *gc = open_codec("sign");
    gcomp_tensor t = shape("w", 64, 64, NULL);
    CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK);
    size_t length = gcomp_describe(gc, whole, sizeof whole);
    CHECK(length == strlen(whole) && gcomp_describe(gc, NULL, 0) == length && gcomp_describe(NULL, part, 9) == 0);
    for (size_t capacity = 0; capacity <= length + 2; capacity++) {
        memset(part, 'x', sizeof part);
        CHECK(gcomp_describe(gc, part, capacity) == length);
        if (capacity) CHECK(strlen(part) == (capacity <= length ? capacity - 1 : length) && !memcmp(part, whole, strlen(part)));
        CHECK(part[capacity] == 'x');
    }
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_one_flat_vector_is_compressed);
    RUN(test_one_flat_vector_is_as_if_it_were_named);
    RUN(test_a_vector_among_others_is_not_compressed);
    RUN(test_what_was_alone_leaves_no_trace);
    RUN(test_what_cannot_be_added_leaves_the_vector_alone);
    RUN(test_other_rules_stay);
    RUN(test_a_schedule_serves_one_vector);
    RUN(test_what_goes_by_epochs_refuses_a_step_that_says_none);
    RUN(test_what_does_not_go_by_epochs_takes_no_step);
    RUN(test_a_vector_that_was_alone_asks_for_no_epochs);
    RUN(test_a_step_without_epoch_is_told_to_the_others);
    RUN(test_each_tensor_has_a_line_and_the_last_line_has_the_sums);
    RUN(test_uncompressed_halves_are_said_to_take_more_bytes);
    RUN(test_it_says_what_is_sent);
    RUN(test_codecs_that_do_not_suit_adam_are_warned_of);
    RUN(test_a_missing_alltoallv_is_hinted_at_where_it_would_save_bytes);
    RUN(test_names_and_shapes_are_told);
    RUN(test_text_is_cut_to_fit);
    return test_end();
}
