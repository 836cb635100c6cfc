/* Proves what holds of all sparse methods: feedback, refusals, halves, scratch, parts, damage, means. */

#include "sparse.h"

/* What was sent and what is kept add up to p, over a thousand steps. */
static void check_conservation(const char *text)
{
    enum { N = 333 };
    static double given[N], sent[N];
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    memset(given, 0, sizeof given);
    memset(sent, 0, sizeof sent);
    memset(e, 0, sizeof e);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    exec.isa = isa;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    in.grad = g;
    in.residual = e;
    in.rows = N;
    for (uint64_t step = 0; step < 1000; step++) {
        size_t length = 0, wrong = 0;
        for (size_t i = 0; i < N; i++) {
            g[i] = (float)(uniform(step * N + i) - 0.45);
            given[i] += g[i];
            p[i] = g[i] + e[i];
        }
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_decode(payload, length, d, GCOMP_F32, N, &exec) == GCOMP_OK);
        CHECK(gcomp_retain(payload, length, &in, e, &exec) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) {
            volatile float kept = p[i] - d[i];
            wrong += e[i] != kept;
            sent[i] += d[i];
        }
        CHECK(wrong == 0);
    }
    for (size_t i = 0; i < N; i++) CHECK(fabs(given[i] - sent[i] - (double)e[i]) < 2e-3 && fabs((double)e[i]) < 100);
}

static void test_nothing_is_lost_with_feedback(void)
{
    static const char *const texts[] = {"adacomp:bin=50", "adacomp:bin=50,send=value", "adacomp:bin=50+onebit:block=tensor",
                                        "dryden:density=0.05", "blocktopk:density=0.1,block=16",
                                        "blocktopk:density=0.1,block=32+sign:block=16"};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) check_conservation(texts[c]);
}

static void test_numbers_that_are_not_finite_are_refused(void)
{
    static const char *const texts[] = {"topk:exact=0", "topk:chunk=64", "strom", "strom:threshold=1e20", "nonzero", "dryden", "dryden:density=1",
                                        "wangni", "wangni:density=1", "adacomp", "adacomp:bin=7", "blocktopk",
                                        "blocktopk:density=0.1,block=16"};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++)
        for (size_t s = 1; s < SIZES; s++)
            for (int b = 0; b < 3; b++) {
                fill(NORMAL, sizes[s]);
                g[sizes[s] * (size_t)(b + 1) / 4] = bad[b];
                CHECK(send(texts[c], sizes[s]) == GCOMP_NOT_FINITE);
            }
}

static void test_halves_give_the_bytes_of_the_floats_they_mean(void)
{
    static const char *const texts[] = {"topk:density=0.1,exact=0", "topk:chunk=500", "strom:threshold=0.5", "nonzero", "dryden:density=0.1",
                                        "wangni:density=0.1", "adacomp:bin=50",
                                        "blocktopk:density=0.1,block=64"};
    static uint16_t half[5000];
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
        gcomp_codec codec;
        gcomp_input in;
        gcomp_exec exec;
        size_t length[2];
        static uint8_t first[GCOMP_BOUND(5000)];
        fill(NORMAL, 5000);
        for (size_t i = 0; i < 5000; i++) {
            uint32_t u;
            memcpy(&u, &g[i], 4);
            half[i] = (uint16_t)(u >> 16);
            u &= 0xffff0000u;
            memcpy(&g[i], &u, 4);
        }
        CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
        memset(&exec, 0, sizeof exec);
        exec.isa = isa;
        exec.scratch = scratch;
        exec.scratch_bytes = sizeof scratch;
        for (int form = 0; form < 2; form++) {
            memset(&in, 0, sizeof in);
            in.scale = 1;
            in.grad = form ? (const void *)half : g;
            in.dtype = form ? GCOMP_BF16 : GCOMP_F32;
            in.residual = e;
            in.rows = 5000;
            in.key = gcomp_key_make(1, 0, 0, 0);
            CHECK(gcomp_encode(&codec, &in, &exec, form ? payload : first, sizeof first, &length[form]) == GCOMP_OK);
        }
        CHECK(length[0] == length[1] && memcmp(first, payload, length[0]) == 0);
    }
}

static void test_scratch_of_a_byte_less_is_refused(void)
{
    static const char *const texts[] = {"topk:exact=0", "topk:chunk=64", "strom", "nonzero", "dryden", "wangni", "adacomp", "blocktopk"};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
        gcomp_codec codec;
        gcomp_input in;
        gcomp_exec exec;
        size_t length;
        fill(NORMAL, 1000);
        CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
        memset(&in, 0, sizeof in);
        in.scale = 1;
        memset(&exec, 0, sizeof exec);
        in.grad = g;
        in.rows = 1000;
        in.key = gcomp_key_make(1, 0, 0, 0);
        exec.isa = isa;
        exec.scratch = scratch;
        exec.scratch_bytes = scratch_of(&codec, 1000) - 1;
        CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_SCRATCH_TOO_SMALL);
    }
}

static void count_backwards(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    *(size_t *)user += count;
    run_backwards(NULL, count, task, arg);
}

/* Also where one part has more candidates than its share of the buffer, or where numbers are not
   finite. */
static void test_parts_collect_what_one_pass_does(void)
{
    static const char *const texts[] = {"topk:density=0.01", "topk:density=0.2", "topk:exact=0", "strom:threshold=1",
                                        "dryden:density=0.02"};
    static uint8_t other[GCOMP_BOUND(LARGEST)];
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (int shape = 0; shape < 4; shape++) {
            uint8_t *const to[2] = {payload, other};
            size_t lengths[2] = {0, 0}, tasks = 0;
            gcomp_result results[2];
            gcomp_codec codec;
            fill(NORMAL, LARGEST);
            for (size_t i = 0; i < LARGEST; i++) {
                if (shape == 1 && i > 5000) g[i] = e[i] = 0;
                if (shape == 2 && i > 9000) g[i] *= 1e-3f, e[i] = 0;
            }
            if (shape == 3) g[LARGEST - 1] = (float)NAN;
            CHECK(gcomp_codec_parse(&codec, texts[t], NULL, 0) == GCOMP_OK);
            for (int parallel = 0; parallel < 2; parallel++) {
                gcomp_exec exec = {isa, scratch, sizeof scratch, {parallel ? count_backwards : NULL, &tasks}};
                gcomp_input in = {0};
                in.scale = 1;
                in.grad = g;
                in.residual = e;
                in.rows = LARGEST;
                results[parallel] = gcomp_encode(&codec, &in, &exec, to[parallel], sizeof other, &lengths[parallel]);
            }
            CHECK(results[0] == results[1] && results[0] == (shape == 3 ? GCOMP_NOT_FINITE : GCOMP_OK) && tasks >= 16);
            CHECK(lengths[0] == lengths[1] && !memcmp(payload, other, lengths[0]));
        }
}

/* Two payloads are checked at once: the result of each must be that of a check of it alone. */
static void test_damage_beside_a_valid_payload_is_found(void)
{
    enum { N = 3000 };
    static uint8_t valid[GCOMP_BOUND(N)], damaged[GCOMP_BOUND(N)], *const to[2] = {valid, damaged};
    static const char *const texts[] = {"topk:density=0.05", "topk:density=0.002", "topk:density=0.3+sign"};
    size_t length[2] = {0, 0};
    for (size_t t = 0; t < 3; t++) {
        gcomp_codec codec;
        fill(NORMAL, N);
        for (int which = 0; which < 2; which++) {
            gcomp_exec with = {isa, scratch, sizeof scratch, {NULL, NULL}};
            gcomp_input in = {0};
            in.scale = 1;
            in.grad = which ? e : g;
            in.rows = N;
            CHECK(gcomp_codec_parse(&codec, texts[which ? t : 0], NULL, 0) == GCOMP_OK);
            CHECK(gcomp_encode(&codec, &in, &with, to[which], sizeof valid, &length[which]) == GCOMP_OK);
        }
        for (size_t i = 32; i < length[1]; i++)
            for (int swap = 0; swap < 2; swap++) {
                const void *pair[2] = {to[swap], to[!swap]};
                const size_t lengths[2] = {length[swap], length[!swap]};
                const gcomp_exec exec = {isa, scratch, i % 3 * 700, {NULL, NULL}}; /* room for no list, one, both */
                damaged[i] ^= (uint8_t)(1u << i % 8);
                CHECK(gcomp_decode_mean(pair, lengths, 2, d, GCOMP_F32, N, &exec) == gcomp_check(damaged, length[1], N));
                damaged[i] ^= (uint8_t)(1u << i % 8);
            }
    }
}

/* Indices are kept in the scratch from check to decoding, where there is room. */
static void test_means_do_not_depend_on_scratch(void)
{
    enum { N = 9000, WORKERS = 11 };
    static const char *const texts[] = {"topk:density=0.05", "topk:density=0.5", "blocktopk:density=0.1,block=16", "sign",
                                        "topk:density=0.001", "topk:density=0.05+sign", "strom:threshold=1"};
    static const size_t rooms[] = {64, 1900, 1984, 3000, 24000, sizeof scratch};
    static uint8_t payloads[WORKERS][GCOMP_BOUND(N)];
    static float y[N];
    const void *all[WORKERS];
    size_t lengths[WORKERS];
    gcomp_exec exec = {isa, NULL, 0, {NULL, NULL}};
    for (size_t w = 0; w < WORKERS; w++) {
        gcomp_exec with = {isa, scratch, sizeof scratch, {NULL, NULL}};
        gcomp_input in = {0};
        in.scale = 1;
        gcomp_codec codec;
        fill((int)(w % 3), N);
        for (size_t i = 0; i < N; i++) p[i] = g[(i + 101 * w) % N];
        in.grad = p;
        in.rows = N;
        CHECK(gcomp_codec_parse(&codec, texts[w < 3 ? 0 : w % 7], NULL, 0) == GCOMP_OK);
        CHECK(gcomp_encode(&codec, &in, &with, payloads[w], sizeof payloads[w], &lengths[w]) == GCOMP_OK);
        all[w] = payloads[w];
    }
    CHECK(gcomp_decode_mean(all, lengths, WORKERS, d, GCOMP_F32, N, &exec) == GCOMP_OK);
    exec.scratch = scratch;
    for (size_t r = 0; r < sizeof rooms / sizeof *rooms; r++) {
        exec.scratch_bytes = rooms[r];
        memset(y, 1, sizeof y);
        CHECK(gcomp_decode_mean(all, lengths, WORKERS, y, GCOMP_F32, N, &exec) == GCOMP_OK && !memcmp(y, d, sizeof y));
    }
}

/* From 2^23 elements on a mean is made in the scratch and written past the caches, wherever it
   begins. */
static void test_large_means_do_not_depend_on_scratch(void)
{
    enum { N = (1 << 23) + 77, WORKERS = 3, FEW = 2000 };
    static uint8_t payloads[WORKERS][16 * FEW];
    static size_t lengths[WORKERS];
    static float *x, *y;
    const void *all[WORKERS] = {payloads[0], payloads[1], payloads[2]};
    gcomp_exec exec = {isa, NULL, 0, {NULL, NULL}};
    if (!x) {
        gcomp_codec codec;
        gcomp_input in = {0};
        in.scale = 1;
        CHECK(gcomp_codec_parse(&codec, "topk:density=2e-4", NULL, 0) == GCOMP_OK);
        exec.scratch_bytes = scratch_of(&codec, N);
        exec.scratch = calloc(1, exec.scratch_bytes);
        x = calloc(N, sizeof *x);
        y = calloc(N + 1, sizeof *y);
        if (!exec.scratch || !x || !y) exit(1);
        in.grad = x;
        in.rows = N;
        for (size_t w = 0; w < WORKERS; w++) {
            for (size_t i = 0; i < FEW; i++)
                x[i < 9 ? i : N - 1 - i * (4099 + 64 * w) % N] = (float)(FEW - i) * (w == 1 ? -3.1e34f : 1e34f);
            x[N - 1] = 3e37f;
            CHECK(gcomp_encode(&codec, &in, &exec, payloads[w], sizeof payloads[w], &lengths[w]) == GCOMP_OK);
        }
        free(exec.scratch);
        exec.scratch = NULL;
        exec.scratch_bytes = 0;
    }
    CHECK(gcomp_decode_mean(all, lengths, WORKERS, x, GCOMP_F32, N, &exec) == GCOMP_OK && x[0] != 0 && x[N - 1] != 0);
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    for (size_t shift = 0; shift < 2; shift++) {
        memset(y, 1, (N + 1) * sizeof *y);
        CHECK(gcomp_decode_mean(all, lengths, WORKERS, y + shift, GCOMP_F32, N, &exec) == GCOMP_OK && !memcmp(y + shift, x, N * sizeof *x));
    }
}

/* A commit of more payloads than are added in one pass also keeps their indices. */
static void test_a_commit_of_many_payloads_adds_what_their_mean_is(void)
{
    enum { N = 9000, WORKERS = 11, OWN = 3 };
    static uint8_t payloads[WORKERS][GCOMP_BOUND(N)];
    static float y[N];
    const void *all[WORKERS];
    size_t lengths[WORKERS];
    const gcomp_desc desc = {.codec = "topk:density=0.05", .comm.world = 1, .isa = isa, .compress_vectors = 1};
    const gcomp_tensor tensor = {.name = "v", .rows = N};
    gcomp *gc;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK && gcomp_prepare(gc) == GCOMP_OK);
    fill(0, N);
    for (size_t w = 0; w < WORKERS; w++) {
        for (size_t i = 0; i < N; i++) y[i] = g[(i + 101 * w) % N];
        CHECK(gcomp_compress(gc, 0, w, y, payloads[w], sizeof payloads[w], &lengths[w]) == GCOMP_OK);
        if (w == OWN) memcpy(p, y, sizeof y);
        all[w] = payloads[w];
    }
    CHECK(gcomp_decode_mean(all, lengths, WORKERS, d, GCOMP_F32, N, NULL) == GCOMP_OK);
    memcpy(y, p, sizeof y);
    CHECK(gcomp_commit(gc, 0, y, all[OWN], lengths[OWN], all, lengths, WORKERS) == GCOMP_OK);
    CHECK(!memcmp(y, d, sizeof y));
    CHECK(gcomp_decode(all[OWN], lengths[OWN], d, GCOMP_F32, N, NULL) == GCOMP_OK);
    size_t wrong = 0;
    for (size_t i = 0; i < N; i++) wrong += tensor_residual(gc, 0)[i] != p[i] - d[i];
    CHECK(wrong == 0);
    gcomp_close(gc);
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_nothing_is_lost_with_feedback);
        RUN(test_numbers_that_are_not_finite_are_refused);
        RUN(test_halves_give_the_bytes_of_the_floats_they_mean);
        RUN(test_scratch_of_a_byte_less_is_refused);
        RUN(test_parts_collect_what_one_pass_does);
        RUN(test_damage_beside_a_valid_payload_is_found);
        RUN(test_means_do_not_depend_on_scratch);
        RUN(test_a_commit_of_many_payloads_adds_what_their_mean_is);
        RUN(test_large_means_do_not_depend_on_scratch);
    }
    return test_end();
}
