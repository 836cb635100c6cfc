/* Proves that every instruction set, compiler, optimisation level and number of threads gives the
   same bits: digests of payloads, decoded floats, residuals and steps are compared with constants,
   which stand in codecs.h. Integer arithmetic makes the input, so the input is the same everywhere
   too. */
#include "codecs.h"
#include "run_threads.h"
#include "test.h"

enum { COUNT = 3 * 65536 + 77, STACK = 301 * 47 * 3 };
#ifdef TEST_SOME_METHODS /* of a build that leaves methods out: check_without.sh */
enum { SOME_METHODS = 1 };
#else
enum { SOME_METHODS = 0 };
#endif

static float grad[COUNT], old[COUNT], y[COUNT], e[COUNT], steps[3][STACK];
static uint8_t payload[3][GCOMP_BOUND(COUNT)], scratch[GCOMP_SCRATCH(COUNT)];

/* Normal-like numbers of many magnitudes: whole numbers times a power of two are exact. */
static float number(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;
    int32_t sum;
    float scale = 1.0f / 1048576.0f;
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    x ^= x >> 29;
    sum = (int32_t)(x & 0xffff) + (int32_t)(x >> 16 & 0xffff) - (int32_t)(x >> 32 & 0xffff) - (int32_t)(x >> 48);
    if (i % 5 == 0) scale *= 1.0f / 1024.0f;
    if (i % 97 == 0) scale *= 256.0f;
    if (i % 31 == 0) sum = 0;
    return (float)sum * scale;
}

static uint64_t digest_floats(uint64_t h, const float *x, size_t n) /* FNV-1a of words: most of this test's time */
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        h = (h ^ u) * 0x100000001B3u;
    }
    return h;
}

/* Payload, decoded, mean of three, and residual of a codec. */
static uint64_t codec_digest(const char *text, gcomp_isa isa, gcomp_parallel parallel)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 1009, COUNT};
    gcomp_codec codec;
    gcomp_exec exec = {isa, scratch, sizeof scratch, parallel};
    uint64_t h = FNV;
    if (gcomp_codec_parse(&codec, text, NULL, 0)) return 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const void *payloads[3] = {payload[0], payload[1], payload[2]};
        size_t n = sizes[s], length[3];
        gcomp_input in;
        memset(&in, 0, sizeof in);
        in.rows = n;
        for (size_t w = 0; w < 3; w++) {
            in.grad = w == 1 ? old : grad;
            in.residual = w == 2 ? NULL : w == 1 ? grad : old;
            in.scale = w == 1 ? 0.3f : 1.0f;
            in.key = gcomp_key_make(1, s, 0, (uint32_t)w);
            if (gcomp_encode(&codec, &in, &exec, payload[w], sizeof payload[w], &length[w])) return 1;
            if (w == 1 && add_checksum(payload[w], length[w])) return 2;
            h = fnv(h, payload[w], length[w]);
        }
        if (gcomp_decode(payload[0], length[0], y, GCOMP_F32, n, &exec)) return 3;
        h = digest_floats(h, y, n);
        if (gcomp_decode_add(payload[1], length[1], 0.7f, y, GCOMP_F32, n, &exec)) return 4;
        h = digest_floats(h, y, n);
        if (gcomp_decode_mean(payloads, length, 3, y, GCOMP_F32, n, &exec)) return 5;
        h = digest_floats(h, y, n);
        memcpy(e, grad, 4 * n);
        if (gcomp_retain(payload[1], length[1], &in, e, &exec)) return 6;
        h = digest_floats(h, e, n);
    }
    return h;
}

/* Gradients and residuals of three steps of one worker, for methods of several rounds and for
   the rest. */
static uint64_t step_digest(const char *text, gcomp_isa isa, gcomp_parallel parallel)
{
    gcomp_desc desc;
    gcomp_tensor t;
    gcomp_step step = GCOMP_STEP;
    gcomp *gc;
    uint64_t h = FNV;
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.isa = isa;
    desc.parallel = parallel;
    desc.seed = 7;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    t.name = "t";
    t.rows = 301; /* STACK elements in all */
    t.cols = 47;
    t.stack = 3;
    t.codec = text;
    if (gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &t)) return 1;
    for (int k = 0; k < 3; k++) {
        float *grads[1] = {y};
        memcpy(y, steps[k], sizeof steps[k]);
        step.scale = k == 1 ? 0.3f : 1.0f;
        step.epoch = (uint32_t)k;
        if (exchange_floats(gc, grads, &step)) return 2;
        h = digest_floats(h, y, STACK);
        if (tensor_residual(gc, 0)) h = digest_floats(h, tensor_residual(gc, 0), STACK);
    }
    gcomp_close(gc);
    return h;
}

static uint64_t any_digest(const char *text, gcomp_isa isa, gcomp_parallel parallel)
{
    gcomp_codec codec;
    if (gcomp_codec_parse(&codec, text, NULL, 0)) return 0;
    return gcomp_bound(&codec, 1, NULL) ? codec_digest(text, isa, parallel) ^ step_digest(text, isa, parallel)
                                  : step_digest(text, isa, parallel);
}

static void same_with(gcomp_isa isa, gcomp_parallel parallel)
{
    static int told[ALL_CODECS]; /* each digest is printed once */
    for (size_t c = 0; c < ALL_CODECS; c++) {
        uint64_t found = any_digest(codec_list[c].text, isa, parallel);
        if (SOME_METHODS && !found) continue; /* no such method in this build */
        if (found != codec_list[c].digest && !told[c])
            printf("# %s on %s: 0x%016llxu, but codecs.h has 0x%016llxu\n", codec_list[c].text, gcomp_isa_name(isa),
                   (unsigned long long)found, (unsigned long long)codec_list[c].digest);
        told[c] |= found != codec_list[c].digest;
        CHECK(found && found == codec_list[c].digest); /* 0: the codec is refused */
    }
}

static gcomp_isa isa_now;
static int is_brief; /* environment TEST_BRIEF: each digest once, for builds and machines where this test takes long */

static void test_digests_are_golden_on_one_thread(void)
{
    gcomp_parallel none = {NULL, NULL};
    same_with(isa_now, none);
}

static void test_digests_are_golden_on_2_and_7_threads(void)
{
    for (size_t threads = 2; threads <= 7; threads += 5) {
        gcomp_parallel parallel = {run_threads, &threads};
        same_with(isa_now, parallel);
    }
}

static void test_digests_are_golden_when_tasks_run_backwards(void)
{
    gcomp_parallel parallel = {run_backwards, NULL};
    same_with(isa_now, parallel);
}

/* Residuals of three workers, whose saves two others load; and with one that left, after the
   other two have regrouped. */
static void test_changes_of_workers_have_their_golden_digest(void)
{
    enum { N = 1009 };
    static uint8_t save[3][4 * N + 256];
    const void *saves[3] = {save[0], save[1], save[2]};
    gcomp_tensor tensor = {"t", N, 1, 0, GCOMP_F32, "topk"};
    gcomp *gc[4];
    size_t length[3];
    uint64_t h = FNV;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.isa = isa_now;
    for (size_t w = 0; w < 4; w++) {
        desc.comm.world = w == 3 ? 2 : 3;
        desc.comm.rank = (int)w % 3;
        CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        memcpy(y, grad + N * w, 4 * N);
        y[7] = w < 2 ? 3.3e38f : 1; /* added up it is more than a float holds */
        CHECK(gcomp_commit(gc[w], 0, y, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
        if (w < 3) CHECK(gcomp_save(gc[w], save[w], sizeof save[w], &length[w]) == GCOMP_OK);
    }
    CHECK(gcomp_load(gc[3], saves, length, 3, NULL) == GCOMP_OK);
    h = digest_floats(h, tensor_residual(gc[3], 0), N);
    CHECK(gcomp_take_over(gc[0], save[1], length[1]) == GCOMP_OK);
    h = digest_floats(h, tensor_residual(gc[0], 0), N);
    desc.comm.world = 2;
    desc.comm.rank = 0;
    CHECK(gcomp_regroup(gc[0], &desc.comm, NULL) == GCOMP_OK);
    h = digest_floats(h, tensor_residual(gc[0], 0), N);
    for (size_t w = 0; w < 4; w++) gcomp_close(gc[w]);
    CHECK(h == 0x914388b538f4f08cu);
    if (h != 0x914388b538f4f08cu) printf("# found 0x%016llx\n", (unsigned long long)h);
}

int main(void)
{
    gcomp_codec topk;
    is_brief = getenv("TEST_BRIEF") != NULL;
    for (size_t i = 0; i < COUNT; i++) {
        grad[i] = number(i);
        old[i] = number(i + 1000003) * 0.25f;
    }
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < STACK; i++) steps[k][i] = number(i * 3 + k);
    for (int i = 1; i <= GCOMP_ISA_NEON; i++) {
        isa_now = (gcomp_isa)i;
        if (!isa_is_wanted(isa_now)) continue;
        if (!is_brief) RUN(test_digests_are_golden_on_one_thread);
        if (!is_brief) RUN(test_digests_are_golden_on_2_and_7_threads);
        RUN(test_digests_are_golden_when_tasks_run_backwards);
        if (gcomp_codec_parse(&topk, "topk", NULL, 0) == GCOMP_OK) RUN(test_changes_of_workers_have_their_golden_digest);
    }
    return test_end();
}
