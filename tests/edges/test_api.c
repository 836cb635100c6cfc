/* Proves that each wrong argument of each public function is refused, and named; and the rules for tensors. */

#include "api.h"

/* ---------------- names and strings */

static void test_results_have_distinct_names_and_sentences(void)
{
    static const struct entry { gcomp_result value; const char *name; const char *sentence; } list[] = {
#define ENTRY(name, value, kind, sentence) {name, #name, sentence},
        GCOMP_RESULTS(ENTRY)
#undef ENTRY
    };
    enum { COUNT = sizeof list / sizeof list[0] };
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(strcmp(result_name(list[i].value), list[i].name) == 0);
        CHECK(strcmp(gcomp_result_string(list[i].value), list[i].sentence) == 0);
        CHECK(list[i].sentence[0] != 0);
        CHECK(list[i].value <= 0);
        for (size_t j = 0; j < i; j++) {
            CHECK(list[i].value != list[j].value);
            CHECK(strcmp(result_name(list[i].value), result_name(list[j].value)) != 0);
            CHECK(strcmp(gcomp_result_string(list[i].value), gcomp_result_string(list[j].value)) != 0);
        }
    }
    CHECK(GCOMP_OK == 0 && GCOMP_INVALID_ARGUMENT == -1 && GCOMP_TRUNCATED == -20 && GCOMP_CALLBACK_FAILED == -40);
    CHECK(result_name((gcomp_result)-1000) != NULL && result_name((gcomp_result)-1000)[0] != 0);
    CHECK(gcomp_result_string((gcomp_result)1) != NULL && gcomp_result_string((gcomp_result)1)[0] != 0);
}

/* Bytes from others may have been damaged on their way, and memory may come back, so these steps
   can be tried again. After any other error the step would fail again. */
static void test_every_result_has_its_class(void)
{
#define ENTRY(name, value, kind, sentence) name,
    static const gcomp_result list[] = {GCOMP_RESULTS(ENTRY)};
#undef ENTRY
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const gcomp_result r = list[i];
        gcomp_class expected = GCOMP_CLASS_FATAL;
        if (r == GCOMP_OK) expected = GCOMP_CLASS_OK;
        if (r == GCOMP_NOT_FINITE || r == GCOMP_PEER_FAILED || r == GCOMP_OUT_OF_MEMORY || (r <= GCOMP_TRUNCATED && r >= GCOMP_CORRUPT))
            expected = GCOMP_CLASS_RETRY;
        if (r == GCOMP_CALLBACK_FAILED || r == GCOMP_DIVERGED || r == GCOMP_OUT_OF_STEP) expected = GCOMP_CLASS_RESYNCHRONISE;
        CHECK(gcomp_result_class(r) == expected);
    }
    CHECK(GCOMP_OUT_OF_STEP == -44 && GCOMP_CLASS_FATAL == 3 && gcomp_result_class((gcomp_result)-1000) == GCOMP_CLASS_FATAL);
}

static void test_names_of_instruction_sets_and_methods(void)
{
    CHECK(strcmp(gcomp_isa_name(GCOMP_ISA_SCALAR), "scalar") == 0);
    CHECK(strcmp(gcomp_isa_name(GCOMP_ISA_AVX2), "avx2") == 0);
    CHECK(strcmp(gcomp_isa_name(GCOMP_ISA_AVX512), "avx512") == 0);
    CHECK(strcmp(gcomp_isa_name(GCOMP_ISA_NEON), "neon") == 0);
    CHECK(strcmp(gcomp_isa_name((gcomp_isa)99), "unknown") == 0);
    CHECK(isa_available(GCOMP_ISA_SCALAR) == 1);
    CHECK(isa_available((gcomp_isa)99) == 0);
    CHECK(isa_available((gcomp_isa)-1) == 0);
    static const char *const methods[] = {"none", "fp16", "bf16", "sign", "topk", "powersgd"};
    size_t count = 0;
    while (gcomp_method_name(count)) count++;
    CHECK(count >= 6);
    CHECK(strcmp(gcomp_method_name(0), "none") == 0);
    CHECK(gcomp_method_name(count + 1) == NULL && gcomp_method_name(SIZE_MAX) == NULL);
    for (size_t i = 0; i < 6; i++) {
        size_t found = 0;
        for (size_t j = 0; j < count; j++) found += strcmp(gcomp_method_name(j), methods[i]) == 0;
        CHECK(found == 1);
    }
}

static void test_version_of_header_and_implementation_agree(void)
{
    CHECK(GCOMP_VERSION == 400);
    CHECK(gcomp_version() == GCOMP_VERSION);
}

/* ---------------- open */

static int expect_open(const gcomp_desc *given, gcomp_result expected, const char *word)
{
    char why[200];
    gcomp_desc desc = *given;
    gcomp *gc = (gcomp *)(void *)why; /* must become NULL */
    memset(why, 0, sizeof why);
    desc.why = why;
    desc.why_capacity = sizeof why;
    gcomp_result result = gcomp_open(&gc, &desc);
    int good = result == expected && gc == NULL && strstr(why, word) != NULL;
    if (!good) printf("# %s, expected %s with '%s': %s\n", result_name(result), result_name(expected), word, why);
    if (result == GCOMP_OK) gcomp_close(gc);
    return good;
}

static void test_open_refuses_every_bad_field_and_names_it(void)
{
    gcomp_desc desc = plain_desc();
    memory m;
    desc.comm.rank = -1;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "rank"));
    desc.comm.rank = 1; /* of world 0, which is 1 */
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "rank"));
    desc.comm.world = 4;
    desc.comm.rank = 4;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "rank"));
    desc = plain_desc();
    desc.comm.world = -1;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "world"));
    desc = plain_desc();
    desc.codec = "bogus";
    CHECK(expect_open(&desc, GCOMP_BAD_CODEC, "bogus"));
    desc.codec = "topk:densty=0.1";
    CHECK(expect_open(&desc, GCOMP_BAD_CODEC, "densty"));
    desc.codec = "topk:density=2";
    CHECK(expect_open(&desc, GCOMP_BAD_CODEC, "density"));
    desc.codec = "";
    CHECK(expect_open(&desc, GCOMP_BAD_CODEC, ""));
    desc = plain_desc();
    desc.isa = (gcomp_isa)99;
    CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, "isa"));
    desc.isa = (gcomp_isa)-3;
    CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, "isa"));
    desc = plain_desc();
    desc.optimizer = (gcomp_optimizer)3;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "optimizer"));
    for (int value = -1; value <= 2; value += 3) { /* flags are 0 or 1 */
        desc = plain_desc();
        desc.compress_vectors = value;
        CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "compress_vectors"));
        desc = plain_desc();
        desc.no_error_feedback = value;
        CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "no_error_feedback"));
        desc = plain_desc();
        desc.no_checksum = value;
        CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "no_checksum"));
        desc = plain_desc();
        desc.measure = value;
        CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "measure"));
    }
    desc = plain_desc();
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++) {
        if (isa_available((gcomp_isa)isa)) continue;
        desc.isa = (gcomp_isa)isa;
        CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, gcomp_isa_name((gcomp_isa)isa)));
    }
    desc = plain_desc();
    desc.allocator = memory_allocator(&m);
    desc.allocator.free = NULL;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "allocator"));
    desc.allocator = memory_allocator(&m);
    desc.allocator.alloc = NULL;
    CHECK(expect_open(&desc, GCOMP_INVALID_ARGUMENT, "allocator"));
    CHECK(m.calls == 0);
    desc = plain_desc();
    gcomp *gc = NULL;
    CHECK(gcomp_open(NULL, &desc) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_open(&gc, NULL) == GCOMP_INVALID_ARGUMENT && gc == NULL);
}

static void test_the_reason_of_a_failed_open_is_cut_to_its_buffer(void)
{
    gcomp_desc desc = plain_desc();
    gcomp *gc = NULL;
    desc.codec = "bogus";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_BAD_CODEC); /* no buffer */
    for (size_t capacity = 0; capacity <= 40; capacity++) {
        char why[48];
        memset(why, '#', sizeof why);
        desc.why = why;
        desc.why_capacity = capacity;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_BAD_CODEC);
        CHECK(why[capacity] == '#');
        if (capacity) CHECK(memchr(why, 0, capacity) != NULL);
    }
}

static void test_the_environment_chooses_the_instruction_set_or_is_named(void)
{
    static const char *const bad[] = {"bogus", "AVX2", "avx", "scalar ", "avx5120"};
    gcomp_desc desc = plain_desc();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(setenv("GCOMP_ISA", bad[i], 1) == 0);
        CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, bad[i]));
        CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, "GCOMP_ISA"));
    }
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++) {
        const char *name = gcomp_isa_name((gcomp_isa)isa);
        CHECK(setenv("GCOMP_ISA", name, 1) == 0);
        if (isa_available((gcomp_isa)isa)) gcomp_close(open_or_die(&desc));
        else CHECK(expect_open(&desc, GCOMP_ISA_UNAVAILABLE, name));
    }
    CHECK(setenv("GCOMP_ISA", "bogus", 1) == 0);
    desc.isa = GCOMP_ISA_SCALAR; /* a choice in the desc does not ask the environment */
    gcomp_close(open_or_die(&desc));
    CHECK(unsetenv("GCOMP_ISA") == 0);
}

/* ---------------- tensors */

static int expect_add(gcomp *gc, const gcomp_tensor *tensor, gcomp_result expected, const char *word)
{
    size_t before = tensors_of(gc), used = memory_of(gc);
    gcomp_result result = gcomp_add_tensor(gc, tensor);
    int good = result == expected && tensors_of(gc) == before && memory_of(gc) == used
               && strstr(gcomp_error(gc), word) != NULL;
    if (!good)
        printf("# %s, expected %s with '%s': %s\n", result_name(result), result_name(expected), word,
               gcomp_error(gc));
    return good;
}

static void test_add_tensor_refuses_every_bad_field_and_names_it(void)
{
    gcomp_desc desc = plain_desc();
    gcomp *gc = open_or_die(&desc);
    gcomp_tensor good = plain_tensor("w", 3, 4, NULL), bad;
    CHECK(strcmp(gcomp_error(gc), "") == 0);
    CHECK(gcomp_add_tensor(NULL, &good) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_add_tensor(gc, NULL) == GCOMP_INVALID_ARGUMENT);
    bad = good;
    bad.name = NULL;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "name"));
    bad.name = "";
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "name"));
    bad = good;
    bad.rows = 0;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "rows"));
    bad = good;
    bad.rows = SIZE_MAX / 2 + 1;
    bad.cols = 2;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "w"));
    bad.rows = SIZE_MAX / 4 + 1; /* as elements it fits, as bytes not */
    bad.cols = 0;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "w"));
    bad.rows = bad.cols = (size_t)1 << (sizeof(size_t) * 4 - 2);
    bad.stack = 64;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "w"));
    bad = good;
    bad.dtype = GCOMP_U8;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "dtype"));
    bad.dtype = (gcomp_dtype)99;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "dtype"));
    bad.dtype = (gcomp_dtype)-1;
    CHECK(expect_add(gc, &bad, GCOMP_INVALID_ARGUMENT, "dtype"));
    bad = good;
    bad.codec = "bogus";
    CHECK(expect_add(gc, &bad, GCOMP_BAD_CODEC, "bogus"));
    bad.codec = "topk:density=0";
    CHECK(expect_add(gc, &bad, GCOMP_BAD_CODEC, "density"));
    CHECK(gcomp_add_tensor(gc, &good) == GCOMP_OK);
    CHECK(tensors_of(gc) == 1);
    CHECK(expect_add(gc, &good, GCOMP_DUPLICATE_NAME, "w"));
    float grad[12] = {0}, *grads[1];
    grads[0] = grad;
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_OK);
    good.name = "late";
    CHECK(expect_add(gc, &good, GCOMP_WRONG_STATE, ""));
    CHECK(gcomp_error(gc)[0] != 0);
    gcomp_close(gc);
}

static void test_tensors_are_found_by_name(void)
{
    enum { COUNT = 300 };
    gcomp_desc desc = plain_desc();
    gcomp *gc = open_or_die(&desc);
    CHECK(tensor_named(gc, "any") == 0 && tensors_of(gc) == 0);
    for (size_t i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", (int)(i * 7919 % 1000)); /* in no order */
        gcomp_tensor tensor = plain_tensor(name, i + 1, 2, NULL);              /* copied */
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        memset(name, 'x', 5);
    }
    for (size_t i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", (int)(i * 7919 % 1000));
        CHECK(tensor_named(gc, name) == i);
        CHECK(tensor_elements(gc, i) == 2 * (i + 1));
    }
    CHECK(tensor_named(gc, "layer") == COUNT);
    CHECK(tensor_named(gc, "") == COUNT);
    CHECK(tensor_named(gc, NULL) == COUNT);
    CHECK(tensor_elements(gc, COUNT) == 0);
    CHECK(tensor_codec(gc, COUNT) == NULL);
    CHECK(tensor_residual(gc, COUNT) == NULL);
    gcomp_close(gc);
}

/* Does a tensor of this shape get the codec that `expected` stands for? */
static int gets(const gcomp_desc *desc, size_t rows, size_t cols, size_t stack, const char *codec, const char *expected)
{
    char text[64] = "", shortest[64] = "";
    gcomp *gc = open_or_die(desc);
    gcomp_tensor tensor = plain_tensor("w", rows, cols, codec), other = plain_tensor("other", 1, 1, "none");
    gcomp_codec meant;
    CHECK(gcomp_codec_parse(&meant, expected, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_codec_format(&meant, shortest, sizeof shortest) < sizeof shortest);
    tensor.stack = stack;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(gcomp_add_tensor(gc, &other) == GCOMP_OK); /* one vector alone: test_describe */
    size_t length = gcomp_codec_format(tensor_codec(gc, 0), text, sizeof text);
    int good = length < sizeof text && strcmp(text, shortest) == 0;
    if (!good) printf("# %dx%dx%d has %s, expected %s\n", (int)stack, (int)rows, (int)cols, text, expected);
    gcomp_close(gc);
    return good;
}

static void test_vectors_and_small_tensors_travel_uncompressed(void)
{
    gcomp_desc desc = plain_desc();
    CHECK(gets(&desc, 640, 640, 0, NULL, "none"));
    CHECK(gets(&desc, 640, 640, 0, "fp16", "fp16"));
    desc.codec = "topk:density=0.25";
    CHECK(gets(&desc, 64, 64, 0, NULL, "topk:density=0.25"));
    CHECK(gets(&desc, 5000, 0, 0, NULL, "none"));
    CHECK(gets(&desc, 5000, 1, 0, NULL, "none"));
    CHECK(gets(&desc, 1, 5000, 0, NULL, "topk:density=0.25"));
    CHECK(gets(&desc, 5000, 1, 0, "fp16", "fp16"));      /* one that names its own has it */
    CHECK(gets(&desc, 3, 4, 0, "fp16", "fp16"));
    CHECK(gets(&desc, 32, 32, 0, NULL, "topk:density=0.25")); /* 1024 */
    CHECK(gets(&desc, 31, 33, 0, NULL, "none"));              /* 1023 */
    CHECK(gets(&desc, 16, 16, 4, NULL, "topk:density=0.25")); /* all matrices of the stack count */
    CHECK(gets(&desc, 16, 16, 3, NULL, "none"));
    desc.min_elements = 12;
    CHECK(gets(&desc, 3, 4, 0, NULL, "topk:density=0.25"));
    CHECK(gets(&desc, 11, 1, 0, NULL, "none"));
    CHECK(gets(&desc, 2, 5, 0, NULL, "none"));
    desc.compress_vectors = 1;
    CHECK(gets(&desc, 12, 1, 0, NULL, "topk:density=0.25"));
    CHECK(gets(&desc, 12, 0, 0, NULL, "topk:density=0.25"));
    CHECK(gets(&desc, 11, 0, 0, NULL, "none"));
}

static void test_matrices_that_would_not_gain_from_powersgd_travel_uncompressed(void)
{
    static const struct shape { size_t rows, cols; unsigned rank; } shapes[] = {
        {64, 64, 4}, {64, 64, 31}, {64, 64, 32}, {8, 8, 4}, {8, 8, 3}, {10, 40, 7}, {10, 40, 8}, {10, 40, 9},
        {3, 4000, 2}, {3, 4000, 3}, {4000, 3, 2}, {2, 2, 1}, {3, 3, 1}, {3, 6, 2}, {5000, 1, 1},
    };
    gcomp_desc desc = plain_desc();
    desc.min_elements = 1;
    desc.compress_vectors = 1;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char codec[32];
        size_t rows = shapes[i].rows, cols = shapes[i].cols, rank = shapes[i].rank;
        snprintf(codec, sizeof codec, "powersgd:rank=%u", shapes[i].rank);
        const char *expected = rank * (rows + cols) < rows * cols ? codec : "none";
        CHECK(gets(&desc, rows, cols, 0, codec, expected));
        CHECK(gets(&desc, rows, cols, 3, codec, expected));
        desc.codec = codec;
        CHECK(gets(&desc, rows, cols, 0, NULL, expected));
        desc.codec = NULL;
    }
}

/* ---------------- the codec layer's arguments */

static void test_encode_refuses_every_bad_argument(void)
{
    enum { COUNT = 100 };
    float grad[COUNT], residual[COUNT];
    unsigned char payload[GCOMP_BOUND(COUNT)];
    static unsigned char scratch[GCOMP_SCRATCH(COUNT)];
    for (size_t i = 0; i < COUNT; i++) {
        grad[i] = noise(1, i);
        residual[i] = noise(2, i);
    }
    for (size_t c = 0; c < CODECS; c++) {
        gcomp_codec codec, broken;
        gcomp_input good, in;
        gcomp_exec exec, other;
        size_t length = 4321, needed;
        CHECK(gcomp_codec_parse(&codec, codecs[c], NULL, 0) == GCOMP_OK);
        memset(&good, 0, sizeof good);
        good.grad = grad;
        good.residual = residual;
        good.rows = 10;
        good.cols = 10;
        good.key = gcomp_key_make(1, 0, 0, 0);
        memset(&exec, 0, sizeof exec);
        exec.scratch = scratch;
        exec.scratch_bytes = sizeof scratch;
        CHECK(gcomp_encode(NULL, &good, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_encode(&codec, NULL, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_encode(&codec, &good, &exec, NULL, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_encode(&codec, &good, &exec, payload, sizeof payload, NULL) == GCOMP_INVALID_ARGUMENT);
        in = good;
        in.grad = NULL;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        static const int types[] = {GCOMP_U8, 4, 99, -1};
        for (size_t i = 0; i < 4; i++) {
            in = good;
            in.dtype = (gcomp_dtype)types[i];
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        }
        static const float scales[] = {NAN, INFINITY, -INFINITY};
        for (size_t i = 0; i < 3; i++) {
            in = good;
            in.scale = scales[i];
            CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
            CHECK(gcomp_retain(payload, 32, &in, residual, NULL) != GCOMP_OK);
        }
        in = good;
        in.rows = SIZE_MAX / 2;
        in.cols = 3;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        other = exec;
        other.isa = (gcomp_isa)99;
        CHECK(gcomp_encode(&codec, &good, &other, payload, sizeof payload, &length) == GCOMP_ISA_UNAVAILABLE);
        other.isa = (gcomp_isa)-1;
        CHECK(gcomp_encode(&codec, &good, &other, payload, sizeof payload, &length) == GCOMP_ISA_UNAVAILABLE);
        for (int isa = 1; isa <= 4; isa++) {
            if (isa_available((gcomp_isa)isa)) continue;
            other.isa = (gcomp_isa)isa;
            CHECK(gcomp_encode(&codec, &good, &other, payload, sizeof payload, &length) == GCOMP_ISA_UNAVAILABLE);
        }
        needed = scratch_of(&codec, COUNT);
        CHECK(needed <= GCOMP_SCRATCH(COUNT));
        if (needed) {
            other = exec;
            other.scratch_bytes = needed - 1;
            unsigned char again[GCOMP_BOUND(COUNT)];
            size_t fits = 0, less = 0;
            CHECK(gcomp_encode(&codec, &good, &exec, again, sizeof again, &fits) == GCOMP_OK);
            for (int kind = 0; kind < 3; kind++) { /* too little is refused, or it can do with less: the same bytes then */
                if (kind == 2) other.scratch_bytes = 0;
                gcomp_result result = gcomp_encode(&codec, &good, kind ? &other : NULL, payload, sizeof payload, &less);
                CHECK(result == GCOMP_OK || result == GCOMP_SCRATCH_TOO_SMALL);
                if (result == GCOMP_OK) CHECK(less == fits && memcmp(payload, again, fits) == 0);
            }
            for (size_t skew = 0; skew < 9; skew++) { /* any alignment */
                other.scratch = scratch + skew;
                other.scratch_bytes = needed;
                CHECK(gcomp_encode(&codec, &good, &other, payload, sizeof payload, &less) == GCOMP_OK);
                CHECK(less == fits && memcmp(payload, again, fits) == 0);
            }
            other = exec;
        }
        CHECK(gcomp_encode(&codec, &good, &exec, payload, 31, &length) == GCOMP_DST_TOO_SMALL);
        CHECK(gcomp_encode(&codec, &good, &exec, payload, 0, &length) == GCOMP_DST_TOO_SMALL);
        broken = codec;
        broken.method = 200;
        CHECK(gcomp_encode(&broken, &good, &exec, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
        CHECK(gcomp_bound(&broken, COUNT, NULL) == 0 && scratch_of(&broken, COUNT) == 0);
        CHECK(length == 4321); /* unchanged by all of these */
        in = good;
        in.rows = 0; /* no elements is a legal count */
        in.grad = NULL;
        in.residual = NULL;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_check(payload, length, 0) == GCOMP_OK);
    }
    gcomp_codec powersgd;
    gcomp_input in;
    size_t length = 1;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = in.cols = 10;
    CHECK(gcomp_codec_parse(&powersgd, "powersgd:rank=1", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&powersgd, COUNT, NULL) == 0);
    CHECK(gcomp_encode(&powersgd, &in, NULL, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    CHECK(gcomp_bound(NULL, 5, NULL) == 0 && scratch_of(NULL, 5) == 0);
}

static void test_bounds_overflow_to_zero(void)
{
    for (size_t c = 0; c < CODECS; c++) {
        gcomp_codec codec;
        CHECK(gcomp_codec_parse(&codec, codecs[c], NULL, 0) == GCOMP_OK);
        if (c < 3) CHECK(gcomp_bound(&codec, SIZE_MAX, NULL) == 0 && gcomp_bound(&codec, SIZE_MAX / 2, NULL) == 0);
        CHECK(gcomp_bound(&codec, 0, NULL) >= 32);
        for (size_t n = 0; n <= 4096; n = 3 * n + 1)
            CHECK(gcomp_bound(&codec, n, NULL) <= GCOMP_BOUND(n) && gcomp_bound(&codec, n, NULL) > 0);
    }
}

static void test_decoding_functions_refuse_null(void)
{
    gcomp_codec codec;
    gcomp_input in;
    gcomp_info info;
    float grad[5] = {1, 2, 3, 4, 5}, y[5] = {9, 9, 9, 9, 9};
    unsigned char payload[GCOMP_BOUND(5)];
    size_t length = 0;
    const void *payloads[2];
    size_t lengths[2];
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = 5;
    CHECK(gcomp_codec_parse(&codec, "none", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_OK);
    payloads[0] = payload;
    payloads[1] = NULL;
    lengths[0] = lengths[1] = length;
    CHECK(gcomp_check(NULL, length, 5) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_peek(NULL, length, &info) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_peek(payload, length, NULL) == GCOMP_INVALID_ARGUMENT);
    payload[24] = 1; /* it has no parameters */
    memset(&info, 7, sizeof info);
    CHECK(gcomp_peek(payload, length, &info) == GCOMP_RESERVED_BITS);
    for (size_t i = 0; i < sizeof info; i++) CHECK(((const unsigned char *)&info)[i] == 7);
    payload[24] = 0;
    CHECK(gcomp_decode(NULL, length, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode(payload, length, NULL, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_add(NULL, length, 1, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_add(payload, length, 1, NULL, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_mean(NULL, lengths, 1, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_mean(payloads, NULL, 1, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_mean(payloads, lengths, 0, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_mean(payloads, lengths, 2, y, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_decode_mean(payloads, lengths, 1, NULL, GCOMP_F32, 5, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_retain(NULL, length, &in, y, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_retain(payload, length, NULL, y, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_retain(payload, length, &in, NULL, NULL) == GCOMP_INVALID_ARGUMENT);
    for (size_t i = 0; i < 5; i++) CHECK(y[i] == 9);
    CHECK(gcomp_codec_parse(NULL, "none", NULL, 0) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_codec_parse(&codec, NULL, NULL, 0) == GCOMP_INVALID_ARGUMENT);
    static const int bad[] = {99, -1};
    for (size_t i = 0; i < 2; i++) {
        gcomp_exec exec;
        memset(&exec, 0, sizeof exec);
        exec.isa = (gcomp_isa)bad[i];
        CHECK(gcomp_decode(payload, length, y, GCOMP_F32, 5, &exec) == GCOMP_ISA_UNAVAILABLE);
        CHECK(gcomp_decode_add(payload, length, 1, y, GCOMP_F32, 5, &exec) == GCOMP_ISA_UNAVAILABLE);
        CHECK(gcomp_decode_mean(payloads, lengths, 1, y, GCOMP_F32, 5, &exec) == GCOMP_ISA_UNAVAILABLE);
        CHECK(gcomp_retain(payload, length, &in, y, &exec) == GCOMP_ISA_UNAVAILABLE);
        CHECK(gcomp_convert(y, GCOMP_F32, y, GCOMP_BF16, 5, &exec) == GCOMP_ISA_UNAVAILABLE);
    }
}

/* ---------------- the object's arguments */

static void test_functions_of_an_object_refuse_null(void)
{
    gcomp_desc desc = plain_desc();
    gcomp *gc = open_or_die(&desc);
    gcomp_tensor tensor = plain_tensor("w", 5, 0, NULL);
    gcomp_statistics stats;
    gcomp_request request;
    float grad[5] = {0}, *grads[1];
    void *any[1];
    unsigned char payload[GCOMP_BOUND(5)];
    size_t length = 0;
    grads[0] = grad;
    any[0] = grad;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(NULL, grads, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_exchange_flat(NULL, grad, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_exchange(NULL, any, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_prepare(NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_residual_set(NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_residual_set(gc, 1, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_restart(NULL, 0) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_begin(NULL, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_ready(NULL, 0, grad) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_next(NULL, &request) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_done(NULL, 0, 0) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_commit(NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_abort(NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_stats(NULL, &stats) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_stats(gc, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(NULL, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(gc, 1, 0, grad, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(gc, 0, 0, NULL, payload, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(gc, 0, 0, grad, NULL, sizeof payload, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_OK);
    const void *payloads[1];
    payloads[0] = payload;
    CHECK(gcomp_commit(NULL, 0, grad, payload, length, payloads, &length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_commit(gc, 1, grad, payload, length, payloads, &length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_commit(gc, 0, NULL, payload, length, payloads, &length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_commit(gc, 0, grad, payload, length, NULL, &length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_commit(gc, 0, grad, payload, length, payloads, NULL, 1) == GCOMP_INVALID_ARGUMENT);
    payloads[0] = NULL;
    CHECK(gcomp_commit(gc, 0, grad, payload, length, payloads, &length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_give_back(NULL, 0, payload, length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_give_back(gc, 7, payload, length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_give_back(gc, 0, payload, length) == GCOMP_WRONG_STATE); /* "none" keeps no residual */
    gcomp_tensor other = plain_tensor("v", 5, 0, "sign");
    CHECK(gcomp_add_tensor(gc, &other) == GCOMP_OK);
    CHECK(gcomp_give_back(gc, 1, NULL, length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_give_back(gc, 1, payload, length - 1) == GCOMP_TRUNCATED);
    CHECK(gcomp_exchange(gc, NULL, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "grads is NULL"));
    CHECK(gcomp_exchange_flat(gc, NULL, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "grads is NULL"));
    CHECK(gcomp_exchange(gc, NULL, NULL) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "grads is NULL"));
    CHECK(tensors_of(NULL) == 0 && tensor_named(NULL, "w") == 0 && tensor_elements(NULL, 0) == 0);
    CHECK(tensor_codec(NULL, 0) == NULL && tensor_residual(NULL, 0) == NULL);
    CHECK(memory_of(NULL) == 0 && gcomp_step_number(NULL) == 0);
    CHECK(gcomp_error(NULL) != NULL);
    gcomp_close(gc);
    gcomp_close(NULL);
}

static int sum_alone(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return 1;
}

static void test_an_exchange_of_two_workers_needs_its_callbacks(void)
{
    for (int given = 0; given < 3; given++) {
        gcomp_desc desc = plain_desc();
        desc.comm.world = 2;
        if (given == 1) desc.comm.allgather = echo_frame;
        if (given == 2) desc.comm.allreduce = sum_alone;
        gcomp *gc = open_or_die(&desc);
        gcomp_tensor tensor = plain_tensor("w", 7, 0, NULL);
        float grad[7] = {1, 2, 3, 4, 5, 6, 7}, copy[7], *grads[1];
        void *any[1];
        grads[0] = grad;
        any[0] = grad;
        memcpy(copy, grad, sizeof copy);
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        CHECK(exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
        if (given != 2) CHECK(strstr(gcomp_error(gc), given ? "allreduce" : "all") != NULL);
        else CHECK(strstr(gcomp_error(gc), "allgather") != NULL);
        CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_MISSING_CALLBACK);
        CHECK(gcomp_exchange(gc, any, NULL) == GCOMP_MISSING_CALLBACK);
        CHECK(memcmp(copy, grad, sizeof copy) == 0);
        gcomp_close(gc);
    }
    gcomp_desc desc = plain_desc(); /* one worker needs none */
    gcomp *gc = open_or_die(&desc);
    gcomp_tensor tensor = plain_tensor("w", 7, 0, NULL);
    float grad[7] = {1, 2, 3, 4, 5, 6, 7}, *grads[1];
    grads[0] = grad;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 7; i++) CHECK(grad[i] == (float)(i + 1));
    gcomp_close(gc);
}

static void test_a_scale_that_is_not_finite_is_named(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    gcomp_desc desc = plain_desc();
    gcomp *gc = open_or_die(&desc);
    gcomp_tensor tensor = plain_tensor("w", 3, 0, NULL);
    float grad[3] = {1, 2, 3}, *grads[1];
    grads[0] = grad;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    for (size_t i = 0; i < 3; i++) {
        gcomp_step step = GCOMP_STEP;
        step.scale = bad[i];
        CHECK(exchange_floats(gc, grads, &step) == GCOMP_INVALID_ARGUMENT);
        CHECK(strstr(gcomp_error(gc), "scale") != NULL);
        CHECK(grad[0] == 1 && grad[1] == 2 && grad[2] == 3);
    }
    gcomp_step zero = GCOMP_STEP;
    zero.scale = 0;
    CHECK(exchange_floats(gc, grads, &zero) == GCOMP_OK);
    CHECK(strcmp(gcomp_error(gc), "") == 0);
    CHECK(grad[0] == 0 && grad[1] == 0 && grad[2] == 0); /* a rate of 0 is a rate */
    grad[0] = 1, grad[1] = 2, grad[2] = 3;
    gcomp_step minus = GCOMP_STEP;
    minus.scale = -2;
    CHECK(exchange_floats(gc, grads, &minus) == GCOMP_OK);
    CHECK(grad[0] == -2 && grad[1] == -4 && grad[2] == -6);
    gcomp_close(gc);
}

static void test_flat_and_separate_gradients_give_the_same_bits(void)
{
    enum { A = 40 * 50, B = 77, C = 33 * 34 };
    static float flat[A + B + C], apart[A + B + C], *grads[3];
    gcomp_tensor tensors[3];
    gcomp *a, *b;
    gcomp_desc desc = plain_desc();
    tensors[0] = plain_tensor("a", 40, 50, "sign");
    tensors[1] = plain_tensor("b", 77, 0, NULL);
    tensors[2] = plain_tensor("c", 33, 34, "topk:density=0.1");
    a = open_or_die(&desc);
    b = open_or_die(&desc);
    for (size_t t = 0; t < 3; t++)
        CHECK(gcomp_add_tensor(a, &tensors[t]) == GCOMP_OK && gcomp_add_tensor(b, &tensors[t]) == GCOMP_OK);
    grads[0] = apart;
    grads[1] = apart + A;
    grads[2] = apart + A + B;
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < A + B + C; i++) flat[i] = apart[i] = noise((uint64_t)step, i);
        CHECK(gcomp_exchange_flat(a, flat, NULL) == GCOMP_OK);
        CHECK(exchange_floats(b, grads, NULL) == GCOMP_OK);
        CHECK(memcmp(flat, apart, sizeof flat) == 0);
    }
    gcomp_close(a);
    gcomp_close(b);
}

static void test_an_object_without_tensors_steps(void)
{
    gcomp_desc desc = plain_desc();
    gcomp *gc = open_or_die(&desc);
    float *grads[1] = {NULL};
    gcomp_statistics stats;
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_OK);
    CHECK(gcomp_step_number(gc) == 1);
    CHECK(gcomp_stats(gc, &stats) == GCOMP_OK);
    CHECK(stats.steps == 1 && stats.bytes_in == 0 && !(stats.ratio != stats.ratio) && !isinf(stats.ratio));
    gcomp_close(gc);
}

/* ---------------- an arena that takes nothing back */

static struct { unsigned char bytes[1 << 20]; size_t used; } arena;

static void *arena_alloc(void *user, size_t bytes, size_t align)
{
    const size_t at = arena.used + (size_t)(-(uintptr_t)(arena.bytes + arena.used) & (align - 1));
    (void)user;
    if (at > sizeof arena.bytes || bytes > sizeof arena.bytes - at) return NULL;
    arena.used = at + bytes;
    return arena.bytes + at;
}

static void arena_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)memory;
    (void)bytes;
}

static void test_an_arena_loses_no_more_than_is_said(void)
{
    static const size_t counts[] = {1, 16, 17, 70};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        static gcomp_tensor tensors[70];
        static char names[70][8];
        const size_t count = counts[c], lists = count > 16 ? 1024 * count : 0;
        gcomp_desc desc = plain_desc();
        gcomp *gc;
        desc.codec = "powersgd:rank=2|powersgd:rank=1"; /* what a tensor may have: residual, state, list, sums */
        desc.schedule = "accordion";
        desc.min_elements = 1;
        desc.allocator.alloc = arena_alloc;
        desc.allocator.free = arena_free;
        for (size_t t = 0; t < count; t++) {
            snprintf(names[t], sizeof names[t], "%d", (int)t);
            tensors[t] = plain_tensor(names[t], 16, 17, NULL);
            tensors[t].dtype = GCOMP_BF16;
        }
        arena.used = 0;
        gc = open_or_die(&desc);
        for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
        CHECK(gcomp_prepare(gc) == GCOMP_OK);
        CHECK(arena.used <= gcomp_memory_needed(&desc, tensors, count) + 63 * (6 + 6 * count) + lists);
        gcomp_close(gc);
    }
}

int main(void)
{
    RUN(test_results_have_distinct_names_and_sentences);
    RUN(test_every_result_has_its_class);
    RUN(test_names_of_instruction_sets_and_methods);
    RUN(test_version_of_header_and_implementation_agree);
    RUN(test_open_refuses_every_bad_field_and_names_it);
    RUN(test_the_reason_of_a_failed_open_is_cut_to_its_buffer);
    RUN(test_the_environment_chooses_the_instruction_set_or_is_named);
    RUN(test_add_tensor_refuses_every_bad_field_and_names_it);
    RUN(test_tensors_are_found_by_name);
    RUN(test_vectors_and_small_tensors_travel_uncompressed);
    RUN(test_matrices_that_would_not_gain_from_powersgd_travel_uncompressed);
    RUN(test_encode_refuses_every_bad_argument);
    RUN(test_bounds_overflow_to_zero);
    RUN(test_decoding_functions_refuse_null);
    RUN(test_an_arena_loses_no_more_than_is_said);
    RUN(test_functions_of_an_object_refuse_null);
    RUN(test_an_exchange_of_two_workers_needs_its_callbacks);
    RUN(test_a_scale_that_is_not_finite_is_named);
    RUN(test_flat_and_separate_gradients_give_the_same_bits);
    RUN(test_an_object_without_tensors_steps);
    return test_end();
}
