/* Proves of dct (DeMo): what is refused, halves, saves, workers that leave, and lists of codecs with it. */

#include "dct.h"

static float e[LARGEST];
static double total[LARGEST];
static uint8_t cut[GCOMP_BOUND(LARGEST)];

/* One-way: compress, commit, give back. */
static void test_compress_and_commit_are_a_step(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    gcomp *gc = open_worker("dct:decay=0.5", 0, 1, &s, GCOMP_F32, NULL), *step = open_worker("dct:decay=0.5", 0, 1, &s, GCOMP_F32, NULL);
    for (uint64_t k = 0; k < 3; k++) {
        const void *payloads[1] = {payload[0]};
        fill(g[0], N, 0, k);
        memcpy(y, g[0], 4 * N);
        CHECK(gcomp_compress(gc, 0, k, y, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, y, payload[0], length[0], payloads, length, 1) == GCOMP_OK);
        CHECK(step_all(&step, 1, 0) == GCOMP_OK);
        CHECK(memcmp(y, g[0], 4 * N) == 0);
        CHECK(memcmp(tensor_residual(gc, 0), tensor_residual(step, 0), 4 * N) == 0);
    }
    /* what is given back decays as what stayed has */
    memcpy(e, tensor_residual(gc, 0), 4 * N);
    memcpy(other, tensor_residual(gc, 0), 4 * N);
    fill(g[0], N, 0, 9);
    memcpy(y, g[0], 4 * N);
    CHECK(gcomp_compress(gc, 0, 3, y, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
    CHECK(gcomp_commit(gc, 0, y, payload[0], length[0], NULL, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_give_back(gc, 0, payload[0], length[0]) == GCOMP_OK);
    double worst = 0;
    for (size_t i = 0; i < N; i++)
        worst = fmax(worst, fabs((double)tensor_residual(gc, 0)[i] - 0.5 * ((double)e[i] + (double)g[0][i])));
    CHECK(worst < 1e-6);
    gcomp_close(gc);
    gcomp_close(step);
}

static void test_what_is_not_finite_is_refused_and_what_is_large_stays_finite(void)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    for (size_t k = 0; k < SHAPES; k++) {
        const shape *s = &shapes[k];
        const size_t n = s->rows * s->cols;
        const gcomp_input in = input_of(g[0], NULL, s);
        if (n > 10000) continue;
        for (int end = 0; end < 3; end++)
            for (int o = 0; o < 3; o++) {
                fill(g[0], n, 0, k);
                g[0][end == 0 ? 0 : end == 1 ? n / 2 : n - 1] = odd[o];
                CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_NOT_FINITE && length[0] == 32);
            }
        /* as large as can be: the sums of a chunk would overflow */
        for (size_t i = 0; i < n; i++) g[0][i] = 3.4e38f;
        CHECK(encode("dct", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
        memset(e, 0, 4 * n);
        CHECK(gcomp_retain(payload[0], length[0], &in, e, NULL) == GCOMP_OK);
        CHECK(gcomp_decode(payload[0], length[0], y, GCOMP_F32, n, NULL) == GCOMP_OK);
        for (size_t i = 0; i < n; i++) CHECK(isfinite(e[i]) && isfinite(y[i]) && y[i] > 0);
    }
}

static void test_hostile_payloads_are_refused(void)
{
    static const shape s = {64, 128, 64, 64};
    enum { N = 64 * 128 };
    const gcomp_input in = input_of(g[0], NULL, &s);
    fill(g[0], N, 0, 5);
    CHECK(encode("dct:top=5", &in, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK);
    for (size_t bytes = 0; bytes < length[0]; bytes++) CHECK(gcomp_check(payload[0], bytes, N) != GCOMP_OK);
    payload[0][length[0]] = 0;
    CHECK(gcomp_check(payload[0], length[0] + 1, N) == GCOMP_TRAILING_BYTES);
    size_t taken = 0, refused = 0;
    for (size_t bit = 0; bit < 8 * length[0]; bit++) {
        memcpy(cut, payload[0], length[0]);
        cut[bit / 8] = (uint8_t)(cut[bit / 8] ^ 1u << bit % 8);
        if (gcomp_check(cut, length[0], N) != GCOMP_OK) {
            refused++;
            continue;
        }
        taken++; /* another payload that is valid: decoded safely */
        CHECK(gcomp_decode(cut, length[0], y, GCOMP_F32, N, NULL) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) CHECK(isfinite(y[i]));
    }
    CHECK(taken > 100 && refused > 200);
    /* the head: a field that no encoder writes */
    static const struct { int at; uint8_t value; } bad[] = {{32, 0}, {32, 3}, {40, 0}, {40, 65}, {40, 60}, {41, 0}, {41, 65}, {41, 48}, {42, 0}, {43, 17}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        memcpy(cut, payload[0], length[0]);
        cut[bad[k].at] = bad[k].value;
        CHECK(gcomp_check(cut, length[0], N) == GCOMP_CORRUPT);
    }
    /* what is sealed has no bit that may change */
    CHECK(add_checksum(payload[0], length[0]) == GCOMP_OK);
    for (size_t bit = 0; bit < 8 * length[0]; bit++) {
        payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
        CHECK(gcomp_check(payload[0], length[0], N) != GCOMP_OK);
        payload[0][bit / 8] = (uint8_t)(payload[0][bit / 8] ^ 1u << bit % 8);
    }
    /* nothing has nothing to send */
    static const shape none = {0, 5, 0, 0};
    const gcomp_input empty = input_of(NULL, NULL, &none);
    CHECK(encode("dct", &empty, GCOMP_ISA_AUTO, payload[0], &length[0]) == GCOMP_OK && length[0] == 32);
    CHECK(gcomp_decode(payload[0], length[0], NULL, GCOMP_F32, 0, NULL) == GCOMP_OK);
}

static void test_halves_and_small_residuals_do_as_floats(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    static const char *const kinds[] = {"bf16", "int8"};
    for (int k = 0; k < 2; k++) {
        gcomp *gc = open_worker("dct", 0, 1, &s, GCOMP_F32, kinds[k]), *exact = open_worker("dct", 0, 1, &s, GCOMP_F32, NULL);
        double far = 0, size = 0;
        for (size_t step = 0; step < 5; step++) {
            fill(g[0], N, 0, step);
            CHECK(step_all(&gc, 1, 0) == GCOMP_OK);
            memcpy(y, g[0], 4 * N);
            fill(g[0], N, 0, step);
            CHECK(step_all(&exact, 1, 0) == GCOMP_OK);
        }
        for (size_t i = 0; i < N; i++) {
            far += ((double)y[i] - (double)g[0][i]) * ((double)y[i] - (double)g[0][i]);
            size += (double)g[0][i] * (double)g[0][i];
        }
        CHECK(far < 0.2 * size); /* a few coefficients may be others */
        gcomp_close(gc);
        gcomp_close(exact);
    }
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
        static uint16_t half[N];
        gcomp *gc = open_worker("dct", 0, 1, &s, (gcomp_dtype)dtype, NULL), *exact = open_worker("dct", 0, 1, &s, GCOMP_F32, NULL);
        fill(g[0], N, 0, 3);
        CHECK(gcomp_convert(half, (gcomp_dtype)dtype, g[0], GCOMP_F32, N, NULL) == GCOMP_OK);
        CHECK(gcomp_convert(g[0], GCOMP_F32, half, (gcomp_dtype)dtype, N, NULL) == GCOMP_OK);
        CHECK(step_all(&exact, 1, 0) == GCOMP_OK);
        void *grads[1] = {half};
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        static uint16_t rounded[N];
        CHECK(gcomp_convert(rounded, (gcomp_dtype)dtype, g[0], GCOMP_F32, N, NULL) == GCOMP_OK);
        CHECK(memcmp(rounded, half, sizeof half) == 0);
        gcomp_close(gc);
        gcomp_close(exact);
    }
}

/* Saves give the same bits again; those that stay keep what they have, however many workers there are. */
static void test_saves_and_workers_that_leave(void)
{
    static const shape s = {64, 96, 64, 48};
    enum { N = 64 * 96 };
    static uint8_t save[2][8 * N];
    size_t bytes[2];
    gcomp *gc[2], *again[2];
    for (int w = 0; w < 2; w++) {
        gc[w] = open_worker("dct", w, 2, &s, GCOMP_F32, NULL);
        again[w] = open_worker("dct", w, 2, &s, GCOMP_F32, NULL);
    }
    for (int round = 0; round < 2; round++) {
        for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w);
        CHECK(step_all(gc, 2, 0) == GCOMP_OK);
    }
    for (int w = 0; w < 2; w++) {
        const void *saves[1] = {save[w]};
        bytes[w] = save_size(gc[w]);
        CHECK(bytes[w] <= sizeof save[w] && gcomp_save(gc[w], save[w], sizeof save[w], &bytes[w]) == GCOMP_OK);
        CHECK(gcomp_load(again[w], saves, &bytes[w], 1, NULL) == GCOMP_OK);
        CHECK(memcmp(tensor_residual(gc[w], 0), tensor_residual(again[w], 0), 4 * N) == 0);
    }
    for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w + 7);
    CHECK(step_all(gc, 2, 0) == GCOMP_OK);
    memcpy(y, g[0], 4 * N);
    for (size_t w = 0; w < 2; w++) fill(g[w], N, 0, w + 7);
    CHECK(step_all(again, 2, 0) == GCOMP_OK);
    CHECK(memcmp(y, g[0], 4 * N) == 0);
    /* one leaves: what it had moves; what the other had stays as it is */
    memcpy(e, tensor_residual(gc[0], 0), 4 * N);
    memcpy(other, tensor_residual(gc[1], 0), 4 * N);
    CHECK(gcomp_save(gc[1], save[1], sizeof save[1], &bytes[1]) == GCOMP_OK && gcomp_take_over(gc[0], save[1], bytes[1]) == GCOMP_OK);
    gcomp_comm alone;
    memset(&alone, 0, sizeof alone);
    alone.world = 1;
    CHECK(gcomp_regroup(gc[0], &alone, NULL) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) CHECK(tensor_residual(gc[0], 0)[i] == e[i] + other[i]);
    fill(g[0], N, 0, 3);
    CHECK(step_all(gc, 1, 0) == GCOMP_OK);
    for (int w = 0; w < 2; w++) {
        gcomp_close(gc[w]);
        gcomp_close(again[w]);
    }
}

static void regroup(gcomp *gc, int rank, int world)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.rank = rank;
    comm.world = world;
    CHECK(gcomp_regroup(gc, &comm, NULL) == GCOMP_OK);
}

/* One of three leaves, another joins. What the others have is not scaled: a mean over senders does not divide by all. */
static void test_those_that_stay_keep_their_momentum(void)
{
    static const char *const kinds[] = {"fp32", "bf16", "int8"};
    static float before[STEP], after[STEP];
    static uint8_t save[3][5 * STEP];
    for (int k = 0; k < 3; k++) {
        const char *const text = "dct:decay=0.9";
        const void *const saves[3] = {save[0], save[1], save[2]};
        size_t bytes[3];
        gcomp *gc[3], *two;
        memset(d, 0, sizeof d);
        for (int w = 0; w < 3; w++) gc[w] = open_worker(text, w, 3, &step_shape, GCOMP_F32, kinds[k]);
        for (size_t step = 0; step < 2; step++) CHECK(is_plain_step(gc, text, 3, step) || k);
        for (int w = 0; w < 3; w++) CHECK(gcomp_residual_get(gc[w], 0, d[w]) == GCOMP_OK);
        CHECK(gcomp_save(gc[2], save[2], sizeof save[2], &bytes[2]) == GCOMP_OK);
        CHECK(gcomp_take_over(gc[0], save[2], bytes[2]) == GCOMP_OK);
        CHECK(gcomp_residual_get(gc[0], 0, before) == GCOMP_OK);
        double worst = 0, most = 0;
        for (size_t i = 0; i < STEP; i++) {
            worst = fmax(worst, fabs((double)before[i] - (double)(d[0][i] + d[2][i])));
            most = fmax(most, fabs((double)before[i]));
        }
        CHECK(most > 1 && worst <= (k == 0 ? 0 : most / 250)); /* small ones are rounded, by int8 to 1/254 */
        memcpy(d[0], before, sizeof before);
        gcomp_close(gc[2]);
        for (int w = 0; w < 2; w++) {
            regroup(gc[w], w, 2);
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK && memcmp(after, d[w], sizeof after) == 0);
        }
        CHECK(is_plain_step(gc, text, 2, 7) || k);
        CHECK(gcomp_save(gc[1], save[1], sizeof save[1], &bytes[1]) == GCOMP_OK);
        gc[2] = open_worker(text, 2, 3, &step_shape, GCOMP_F32, kinds[k]);
        CHECK(gcomp_join(gc[2], save[1], bytes[1]) == GCOMP_OK && gcomp_step_number(gc[2]) == 3);
        for (int w = 0; w < 3; w++) {
            CHECK(gcomp_residual_get(gc[w], 0, d[w]) == GCOMP_OK);
            if (w < 2) regroup(gc[w], w, 3);
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK && memcmp(after, d[w], sizeof after) == 0);
        }
        for (size_t i = 0; i < STEP; i++) CHECK(after[i] == 0); /* of the new one */
        CHECK(is_plain_step(gc, text, 3, 8) || k);
        CHECK(memcmp(g[0], g[1], 4 * STEP) == 0 && memcmp(g[0], g[2], 4 * STEP) == 0);
        /* two others load what the three have: the mean */
        memset(total, 0, sizeof total);
        for (size_t w = 0; w < 3; w++) {
            CHECK(gcomp_residual_get(gc[w], 0, after) == GCOMP_OK);
            for (size_t i = 0; i < STEP; i++) total[i] += (double)after[i] / 3;
            CHECK(gcomp_save(gc[w], save[w], sizeof save[w], &bytes[w]) == GCOMP_OK);
            gcomp_close(gc[w]);
        }
        two = open_worker(text, 1, 2, &step_shape, GCOMP_F32, kinds[k]);
        CHECK(gcomp_load(two, saves, bytes, 3, NULL) == GCOMP_OK && gcomp_residual_get(two, 0, after) == GCOMP_OK);
        worst = 0;
        for (size_t i = 0; i < STEP; i++) worst = fmax(worst, fabs((double)after[i] - total[i]));
        CHECK(worst <= (k == 0 ? 1e-6 : most_of(total, STEP) / 250));
        gcomp_close(two);
    }
}

/* Codecs of a list share the momentum, and it decays by the codec of the step. The method none sends all of it. */
static void test_a_list_of_codecs_follows_the_definition(void)
{
    static const char *const codecs[] = {"dct:top=40", "none", "dct:top=8,decay=0.5+bf16"};
    static const uint32_t epochs[] = {0, 0, 1, 1, 2, 2, 1, 0, 0, 2, 2, 0};
    int seen[3] = {0, 0, 0};
    gcomp *gc[2];
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(d, 0, sizeof d);
    desc.codec = "dct:top=40|none|dct:top=8,decay=0.5+bf16";
    desc.schedule = "warmup:epochs=2";
    for (int w = 0; w < 2; w++) gc[w] = open_as(&desc, w, 2, &step_shape, GCOMP_F32);
    for (size_t step = 0; step < sizeof epochs / sizeof *epochs; step++) {
        char text[2][64];
        int now = 0;
        how.epoch = epochs[step];
        for (int w = 0; w < 2; w++) gcomp_codec_format(tensor_codec(gc[w], 0), text[w], sizeof text[w]);
        while (now < 2 && strcmp(text[0], codecs[now])) now++;
        CHECK(!strcmp(text[0], codecs[now]) && !strcmp(text[0], text[1]));
        seen[now]++;
        if (now != 1) {
            CHECK(is_plain_step(gc, text[0], 2, step));
            continue;
        }
        double worst = 0; /* a sum rounds elsewhere than a mean of payloads */
        fill_all(2, step);
        plain_step("none", 2);
        CHECK(step_all(gc, 2, 0) == GCOMP_OK && memcmp(g[0], g[1], 4 * STEP) == 0);
        for (size_t i = 0; i < STEP; i++) {
            worst = fmax(worst, fabs((double)g[0][i] - (double)y[i]));
            CHECK(tensor_residual(gc[0], 0)[i] == 0 && tensor_residual(gc[1], 0)[i] == 0 && d[0][i] == 0 && d[1][i] == 0);
        }
        CHECK(worst < 4e-6);
    }
    CHECK(seen[0] > 1 && seen[1] > 1 && seen[2] > 1);
    how = default_step();
    for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
}

/* Each schedule ends where it should; a list that cannot be is refused with a sentence. */
static void test_schedules_choose_among_dct(void)
{
    static const struct { const char *codecs, *schedule, *reached; } cases[] = {
        {"none|dct|dct:top=8", "bytes:target=1e6,every=3", "none"},
        {"none|dct|dct:top=8", "bytes:target=500,every=3", "dct"}, /* a payload of 368 bytes and a frame of 64 */
        {"none|dct|dct:top=8", "bytes:target=300,every=3", "dct:top=8"}, /* of 130 */
        {"none|dct:top=2000|dct:top=8", "error:target=0.7,every=3", "dct:top=2000"},
        {"dct:top=200|dct", "accordion:every=1", "dct"}};
    static const struct { const char *codecs, *schedule, *why; } wrong[] = {
        {"dct|dct:top=8", NULL, "desc.schedule is NULL"},
        {"dct|vote", "bytes:target=300", "keeps a residual and another does not"},
        {"dct|dgc", "bytes:target=300", "a codec of the list keeps the momentum"}};
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp *gc[2];
        gcomp_statistics stats;
        char text[64];
        desc.codec = cases[c].codecs;
        desc.schedule = cases[c].schedule;
        for (int w = 0; w < 2; w++) gc[w] = open_as(&desc, w, 2, &step_shape, GCOMP_F32);
        for (size_t step = 0; step < 30; step++) {
            how.epoch = (uint32_t)(step / 2);
            fill_all(2, step);
            CHECK(step_all(gc, 2, 0) == GCOMP_OK && memcmp(g[0], g[1], 4 * STEP) == 0);
        }
        gcomp_codec_format(tensor_codec(gc[0], 0), text, sizeof text);
        CHECK(gcomp_stats(gc[0], &stats) == GCOMP_OK && !strcmp(text, cases[c].reached));
        if (strcmp(text, cases[c].reached)) printf("# %s: %s, error %g\n", cases[c].schedule, text, stats.relative_error);
        for (int w = 0; w < 2; w++) gcomp_close(gc[w]);
    }
    how = default_step();
    for (size_t c = 0; c < sizeof wrong / sizeof *wrong; c++) {
        char why[200] = "";
        gcomp *gc = NULL;
        desc.codec = wrong[c].codecs;
        desc.schedule = wrong[c].schedule;
        desc.why = why;
        desc.why_capacity = sizeof why;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_BAD_CODEC && !gc && strstr(why, wrong[c].why));
    }
}

static void test_wrong_parameters_are_named(void)
{
    static const char *const wrong[] = {"dct:top=0", "dct:top=4097", "dct:chunk=0", "dct:chunk=65", "dct:decay=1.5", "dct:decay=-1", "dct+topk"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gcomp_codec codec;
        char why[200] = "";
        CHECK(gcomp_codec_parse(&codec, wrong[i], why, sizeof why) == GCOMP_BAD_CODEC && why[0]);
    }
    /* too little room, too little scratch */
    static const shape s = {64, 64, 64, 64};
    const gcomp_codec codec = codec_of("dct");
    const gcomp_input in = input_of(g[0], NULL, &s);
    gcomp_exec exec = exec_of(GCOMP_ISA_AUTO, 1);
    fill(g[0], 4096, 0, 1);
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], 100, &length[0]) == GCOMP_DST_TOO_SMALL);
    exec.scratch_bytes = scratch_of(&codec, 4096) - 1;
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_SCRATCH_TOO_SMALL);
    exec.scratch_bytes++;
    CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
    for (size_t n = 1; n < 20000; n += n < 300 ? 1 : 97) {
        CHECK(scratch_of(&codec, n) <= GCOMP_SCRATCH(n));
        CHECK(gcomp_bound(&codec, n, NULL) <= GCOMP_BOUND(n) && gcomp_bound(&codec, n, NULL) >= gcomp_bound(&codec, n - 1, NULL));
    }
}

int main(void)
{
    how = default_step();
    RUN(test_compress_and_commit_are_a_step);
    RUN(test_what_is_not_finite_is_refused_and_what_is_large_stays_finite);
    RUN(test_hostile_payloads_are_refused);
    RUN(test_halves_and_small_residuals_do_as_floats);
    RUN(test_saves_and_workers_that_leave);
    RUN(test_those_that_stay_keep_their_momentum);
    RUN(test_a_list_of_codecs_follows_the_definition);
    RUN(test_schedules_choose_among_dct);
    RUN(test_wrong_parameters_are_named);
    return test_end();
}
