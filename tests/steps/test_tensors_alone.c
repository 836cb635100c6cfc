/* Proves of tensors that are compressed and committed alone, over any transport, and of the exchange between threads. */

#include "step.h"

static void one_way_open(gcomp **gc, const char *codec, int rank, int world)
{
    gcomp_desc desc;
    gcomp_tensor tensor = {"w", 30, 37, 0, GCOMP_F32, NULL};
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.comm.rank = rank;
    desc.comm.world = world;
    CHECK(gcomp_open(gc, &desc) == GCOMP_OK);
    CHECK(gcomp_add_tensor(*gc, &tensor) == GCOMP_OK);
}

static const char *const one_way_codecs[] = {"none", "fp16", "bf16", "sign:block=64", "topk:density=0.03",
                                             "topk:density=0.03+fp16"};

enum { ONE_WAY = sizeof one_way_codecs / sizeof one_way_codecs[0] };

static void test_a_parameter_server_gets_the_mean_and_workers_keep_the_rest(void)
{
    for (size_t c = 0; c < ONE_WAY; c++) {
        enum { WORLD = 3, CAPACITY = 8 * N + 256 };
        gcomp *gc[WORLD];
        static unsigned char payload[WORLD][CAPACITY];
        static float grad[WORLD][N], expected[WORLD][N], mean[N], decoded[N];
        const void *payloads[WORLD];
        size_t lengths[WORLD];
        for (int w = 0; w < WORLD; w++) one_way_open(&gc[w], one_way_codecs[c], w, WORLD);
        for (uint64_t step = 0; step < 5; step++) {
            size_t part = step == 3 ? 2 : WORLD;  /* once one of them is late */
            for (size_t w = 0; w < WORLD; w++) {
                const float *e = tensor_residual(gc[w], 0);
                for (size_t i = 0; i < N; i++) grad[w][i] = gradient(step, w, 0, i);
                CHECK(gcomp_compress(gc[w], 0, step, grad[w], payload[w], CAPACITY, &lengths[w]) == GCOMP_OK);
                CHECK(lengths[w] <= gcomp_bound(tensor_codec(gc[w], 0), N, NULL));
                payloads[w] = payload[w];
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, GCOMP_F32, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) {
                    float p = grad[w][i] + (e ? e[i] : 0.0f);
                    expected[w][i] = p - decoded[i];
                }
            }
            for (size_t i = 0; i < N; i++) mean[i] = 0;
            for (size_t w = 0; w < part; w++) {
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, GCOMP_F32, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) mean[i] += decoded[i] * (1.0f / (float)part);
            }
            for (size_t w = 0; w < WORLD; w++) {
                CHECK(gcomp_commit(gc[w], 0, grad[w], payload[w], lengths[w], payloads, lengths, part) == GCOMP_OK);
                const float *e = tensor_residual(gc[w], 0);
                CHECK(memcmp(grad[0], grad[w], sizeof grad[0]) == 0);
                int good = 1;
                for (size_t i = 0; i < N; i++) {
                    good = good && fabsf(grad[w][i] - mean[i]) <= 4e-7f * (1 + fabsf(mean[i]));
                    if (e) good = good && fabsf(e[i] - expected[w][i]) <= 1e-7f * (1 + fabsf(expected[w][i]));
                }
                CHECK(good);
            }
        }
        for (int w = 0; w < WORLD; w++) gcomp_close(gc[w]);
    }
}

static void test_more_payloads_than_fit_one_pass_have_the_same_mean(void)
{
    enum { MANY = 19, CAPACITY = 8 * N + 256 };
    static unsigned char payload[MANY][CAPACITY];
    static float grad[N], mean[N], decoded[N], expected[N];
    const void *payloads[MANY];
    size_t lengths[MANY];
    for (size_t c = 0; c < ONE_WAY; c++)
        for (size_t count = 1; count <= MANY; count += count == 1 ? 6 : 1) { /* 1, 7 .. 19 */
            gcomp *gc;
            for (size_t w = 0; w < count; w++) {
                one_way_open(&gc, one_way_codecs[(c + (count == 18 ? w : 0)) % ONE_WAY], (int)w, MANY);  /* once of many codecs */
                for (size_t i = 0; i < N; i++) grad[i] = gradient(5, w, 0, i);
                CHECK(gcomp_compress(gc, 0, 5, grad, payload[w], CAPACITY, &lengths[w]) == GCOMP_OK);
                payloads[w] = payload[w];
                gcomp_close(gc);
            }
            for (size_t i = 0; i < N; i++) mean[i] = 0;
            for (size_t w = 0; w < count; w++) {
                CHECK(gcomp_decode(payload[w], lengths[w], decoded, GCOMP_F32, N, NULL) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) mean[i] += decoded[i] * (1.0f / (float)count);
                if (w == count / 2)
                    for (size_t i = 0; i < N; i++) expected[i] = gradient(5, w, 0, i) - decoded[i];
            }
            one_way_open(&gc, one_way_codecs[c], 0, MANY);
            for (size_t i = 0; i < N; i++) grad[i] = gradient(5, count / 2, 0, i);
            const void *own = payloads[count / 2];  /* as if it were this worker's */
            gcomp_result result = gcomp_commit(gc, 0, grad, own, lengths[count / 2], payloads, lengths, count);
            if (count == 18 && result == GCOMP_CODEC_MISMATCH) {
                gcomp_close(gc);
                continue;
            }
            CHECK(result == GCOMP_OK);
            const float *e = tensor_residual(gc, 0);
            size_t wrong = 0;
            for (size_t i = 0; i < N; i++) {
                wrong += fabsf(grad[i] - mean[i]) > 4e-7f * (1 + fabsf(mean[i]));
                if (e) wrong += fabsf(e[i] - expected[i]) > 1e-7f * (1 + fabsf(expected[i]));
            }
            if (wrong) printf("# %s, %d payloads: %d wrong\n", one_way_codecs[c], (int)count, (int)wrong);
            CHECK(wrong == 0);
            gcomp_close(gc);
        }
}

static void test_compress_changes_no_state(void)
{
    for (size_t c = 0; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char first[8 * N + 256], second[8 * N + 256];
        static float grad[N], copy[N], residual[N];
        size_t a = 0, b = 0;
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        CHECK(gcomp_compress(gc, 0, 0, grad, first, sizeof first, &a) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, first, a, NULL, NULL, 0) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) CHECK(grad[i] == gradient(0, 0, 0, i));  /* count 0: untouched */
        memcpy(copy, grad, sizeof copy);
        const float *e = tensor_residual(gc, 0);
        if (e) memcpy(residual, e, sizeof residual);
        CHECK(gcomp_compress(gc, 0, 1, grad, first, sizeof first, &a) == GCOMP_OK);
        CHECK(gcomp_compress(gc, 0, 1, grad, second, sizeof second, &b) == GCOMP_OK);
        CHECK(a == b && memcmp(first, second, a) == 0);
        CHECK(memcmp(copy, grad, sizeof copy) == 0);
        if (e) CHECK(memcmp(residual, tensor_residual(gc, 0), sizeof residual) == 0);
        gcomp_info info;
        CHECK(gcomp_peek(first, a, &info) == GCOMP_OK);
        CHECK(info.checksum == 1 && info.length == a && info.count == N && info.refused == 0);
        size_t length = 777;
        CHECK(gcomp_compress(gc, 0, 1, grad, second, a - 1, &length) == GCOMP_DST_TOO_SMALL);
        CHECK(length == 777);
        CHECK(gcomp_compress(gc, 1, 1, grad, second, sizeof second, &length) == GCOMP_INVALID_ARGUMENT);
        gcomp_close(gc);
    }
}

static void test_a_step_that_sent_nothing_goes_into_the_residual(void)
{
    for (size_t c = 3; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char payload[8 * N + 256];
        static float grad[N], before[N];
        size_t length = 0;
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0) == GCOMP_OK);
        memcpy(before, tensor_residual(gc, 0), sizeof before);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(1, 0, 0, i);
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
        int good = 1;
        for (size_t i = 0; i < N; i++)
            good = good && tensor_residual(gc, 0)[i] == grad[i] + before[i] && grad[i] == gradient(1, 0, 0, i);
        CHECK(good);
        gcomp_close(gc);
    }
}

static void test_a_lost_payload_given_back_restores_conservation(void)
{
    for (size_t c = 3; c < ONE_WAY; c++) {
        gcomp *gc;
        static unsigned char payload[8 * N + 256];
        static float grad[N], decoded[N];
        static double given[N], got[N];
        memset(given, 0, sizeof given);
        memset(got, 0, sizeof got);
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (uint64_t step = 0; step < 40; step++) {
            size_t length = 0;
            for (size_t i = 0; i < N; i++) {
                grad[i] = gradient(step, 0, 0, i);
                given[i] += (double)grad[i];
            }
            CHECK(gcomp_compress(gc, 0, step, grad, payload, sizeof payload, &length) == GCOMP_OK);
            CHECK(gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0) == GCOMP_OK);
            if (step % 3 == 1) {
                CHECK(gcomp_give_back(gc, 0, payload, length) == GCOMP_OK);
                continue;
            }
            CHECK(gcomp_decode(payload, length, decoded, GCOMP_F32, N, NULL) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) got[i] += (double)decoded[i];
        }
        double worst = 0, largest = 3;
        for (size_t i = 0; i < N; i++) {
            double e = (double)tensor_residual(gc, 0)[i], error = fabs(got[i] + e - given[i]);
            if (error > worst) worst = error;
            if (fabs(e) > largest) largest = fabs(e);
        }
        CHECK(worst <= 40 * 3 * 2 * largest / 16777216.0);  /* 3 roundings a step, of numbers up to twice the residual */
        gcomp_close(gc);
    }
}

static void test_commit_and_give_back_refuse_bad_payloads_without_a_trace(void)
{
    gcomp *gc;
    static unsigned char good[8 * N + 256], bad[8 * N + 256];
    static float grad[N], copy[N], residual[N];
    size_t length = 0;
    one_way_open(&gc, "sign:block=64", 0, 2);
    for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
    CHECK(gcomp_compress(gc, 0, 0, grad, good, sizeof good, &length) == GCOMP_OK);
    CHECK(gcomp_commit(gc, 0, grad, good, length, NULL, NULL, 0) == GCOMP_OK);
    memcpy(copy, grad, sizeof copy);
    memcpy(residual, tensor_residual(gc, 0), sizeof residual);
    CHECK(gcomp_compress(gc, 0, 1, grad, good, sizeof good, &length) == GCOMP_OK);
    for (size_t i = 0; i < length; i++) {
        const void *payloads[2];
        size_t lengths[2];
        memcpy(bad, good, length);
        bad[i] ^= 0x40;
        payloads[0] = good;
        payloads[1] = bad;
        lengths[0] = lengths[1] = length;
        CHECK(gcomp_commit(gc, 0, grad, good, length, payloads, lengths, 2) != GCOMP_OK);
        CHECK(gcomp_commit(gc, 0, grad, bad, length, payloads, lengths, 1) != GCOMP_OK);
        CHECK(gcomp_give_back(gc, 0, bad, length) != GCOMP_OK);
    }
    for (size_t i = 0; i < length; i++) CHECK(gcomp_give_back(gc, 0, good, i) != GCOMP_OK);
    CHECK(memcmp(copy, grad, sizeof copy) == 0);
    CHECK(memcmp(residual, tensor_residual(gc, 0), sizeof residual) == 0);

    gcomp_codec other;  /* a valid payload of another codec */
    gcomp_input in;
    static unsigned char payload[8 * N + 256], scratch[GCOMP_SCRATCH(N)];
    gcomp_exec exec;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    in.grad = grad;
    in.rows = N;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    CHECK(gcomp_codec_parse(&other, "bf16", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&other, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(add_checksum(payload, length) == GCOMP_OK);
    const void *payloads[1];
    payloads[0] = payload;
    static float decoded[N];
    CHECK(gcomp_decode(payload, length, decoded, GCOMP_F32, N, NULL) == GCOMP_OK);
    gcomp_result result = gcomp_commit(gc, 0, grad, NULL, 0, payloads, &length, 1);
    CHECK(result == GCOMP_OK || result == GCOMP_CODEC_MISMATCH);  /* taken for what its header says, or refused */
    CHECK(memcmp(result ? copy : decoded, grad, sizeof copy) == 0);
    int kept = 1;
    for (size_t i = 0; i < N; i++) kept = kept && tensor_residual(gc, 0)[i] == (result ? residual[i] : copy[i] + residual[i]);
    CHECK(kept);
    gcomp_close(gc);
}

/* Payloads are checked in pairs. Whichever of three payloads is damaged, or has another codec, is
   found. */
static void test_commit_names_one_bad_payload_of_three(void)
{
    static unsigned char good[8 * N + 256], bad[8 * N + 256], other[8 * N + 256];
    static float grad[N], copy[N];
    gcomp *gc, *halves;
    size_t length = 0, other_length = 0;
    one_way_open(&gc, "topk:density=0.03", 0, 3);
    one_way_open(&halves, "topk:density=0.03+fp16", 0, 3);
    for (size_t i = 0; i < N; i++) copy[i] = grad[i] = gradient(0, 0, 0, i);
    CHECK(gcomp_compress(gc, 0, 0, grad, good, sizeof good, &length) == GCOMP_OK);
    CHECK(gcomp_compress(halves, 0, 0, grad, other, sizeof other, &other_length) == GCOMP_OK);
    memcpy(bad, good, length);
    bad[45] ^= 1; /* among its indices */
    for (size_t w = 0; w < 3; w++) {
        const void *payloads[3] = {good, good, good};
        size_t lengths[3] = {length, length, length};
        payloads[w] = bad;
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, payloads, lengths, 3) == GCOMP_CHECKSUM_MISMATCH);
        payloads[w] = other;
        lengths[w] = other_length;
        CHECK(gcomp_commit(gc, 0, grad, NULL, 0, payloads, lengths, 3) == GCOMP_CODEC_MISMATCH);
    }
    CHECK(memcmp(copy, grad, sizeof copy) == 0);
    for (size_t i = 0; i < N; i++) CHECK(tensor_residual(gc, 0)[i] == 0);
    gcomp_close(gc);
    gcomp_close(halves);
}

static void test_compress_refuses_what_needs_rounds_or_is_not_finite(void)
{
    gcomp *gc;
    static unsigned char payload[8 * N + 256];
    static float grad[N];
    size_t length = 0;
    one_way_open(&gc, "powersgd:rank=2", 0, 1);
    CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    gcomp_close(gc);
    for (size_t c = 0; c < ONE_WAY; c++) {
        one_way_open(&gc, one_way_codecs[c], 0, 1);
        for (size_t i = 0; i < N; i++) grad[i] = gradient(0, 0, 0, i);
        grad[N - 1] = NAN;
        CHECK(gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length) == GCOMP_NOT_FINITE);
        CHECK(length == 32 && gcomp_check(payload, 32, N) == GCOMP_NOT_FINITE);
        const void *payloads[1];
        payloads[0] = payload;
        CHECK(gcomp_commit(gc, 0, grad, payload, length, payloads, &length, 1) == GCOMP_NOT_FINITE);
        CHECK(grad[0] == gradient(0, 0, 0, 0));
        gcomp_close(gc);
    }
}

/* ---------------- exchange, between threads */

typedef struct job {
    gcomp_threads *threads;
    int rank, world, steps, broken; /* broken: this worker leaves in the last step instead of taking part */
    float grad[MIXED][2048];
    gcomp_result result;
    gcomp_statistics stats;
    uint64_t step_number;
    int untouched;
} job;

static void *work(void *arg)
{
    job *j = (job *)arg;
    gcomp_desc desc;
    gcomp *gc = NULL;
    float *grads[MIXED];
    double now = 0;
    memset(&desc, 0, sizeof desc);
    desc.comm = gcomp_threads_comm(j->threads, j->rank);
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* as in the step that is compared */
    desc.clock = tick;
    desc.clock_user = &now;
    j->result = gcomp_open(&gc, &desc);
    for (size_t t = 0; t < MIXED && j->result == GCOMP_OK; t++) j->result = gcomp_add_tensor(gc, &mixed[t]);
    for (int step = 0; step < j->steps && j->result == GCOMP_OK; step++) {
        for (size_t t = 0; t < MIXED; t++) {
            grads[t] = j->grad[t];
            for (size_t i = 0; i < tensor_elements(gc, t); i++)
                j->grad[t][i] = gradient((uint64_t)step, (size_t)j->rank, t, i);
        }
        if (j->broken && step == j->steps - 1) {
            gcomp_threads_fail(j->threads);
            break;
        }
        j->result = exchange_floats(gc, grads, NULL);
        if (step < j->steps - 1) continue;
        j->untouched = 1;
        for (size_t t = 0; t < MIXED; t++)
            for (size_t i = 0; i < tensor_elements(gc, t); i++)
                j->untouched = j->untouched && j->grad[t][i] == gradient((uint64_t)step, (size_t)j->rank, t, i);
    }
    j->step_number = gcomp_step_number(gc);
    if (gcomp_stats(gc, &j->stats)) j->result = GCOMP_WRONG_STATE;
    gcomp_close(gc);
    return NULL;
}

static void run_threads(job *jobs, int world, int steps, int broken)
{
    pthread_t thread[WORLD_MAX];
    gcomp_threads *threads = NULL;
    CHECK(gcomp_threads_open(&threads, world, 30.0) == 0);
    memset(jobs, 0, WORLD_MAX * sizeof *jobs);
    for (int w = 0; w < world; w++) {
        jobs[w].threads = threads;
        jobs[w].rank = w;
        jobs[w].world = world;
        jobs[w].steps = steps;
        jobs[w].broken = w == broken;
        CHECK(pthread_create(&thread[w], NULL, work, &jobs[w]) == 0);
    }
    for (int w = 0; w < world; w++) CHECK(pthread_join(thread[w], NULL) == 0);
    gcomp_threads_close(threads);
}

static job jobs[WORLD_MAX];

static void test_exchange_between_threads_gives_the_bits_of_the_step(void)
{
    for (int world = 2; world <= 4; world++) {
        group g;
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.aggregate = GCOMP_AGGREGATE_GATHER;
        run_threads(jobs, world, 4, -1);
        group_open_with(&g, (size_t)world, &desc, mixed, MIXED, NULL);
        for (uint64_t step = 0; step < 4; step++) group_advance(&g, step);
        for (size_t w = 0; w < (size_t)world; w++) {
            CHECK(jobs[w].result == GCOMP_OK && jobs[w].step_number == 4);
            CHECK(jobs[w].stats.steps == 4 && jobs[w].stats.bytes_out == g.bytes[w]);
            CHECK(jobs[w].stats.encode_seconds > 0 && jobs[w].stats.communicate_seconds > 0 && jobs[w].stats.commit_seconds > 0);
            for (size_t t = 0; t < MIXED; t++) CHECK(memcmp(jobs[w].grad[t], g.grad[w][t], 4 * g.n[t]) == 0);
        }
        group_close(&g);
    }
}

static void test_exchange_with_a_worker_that_left_fails_without_a_trace(void)
{
    run_threads(jobs, 3, 3, 1);
    for (size_t w = 0; w < 3; w += 2) {
        CHECK(jobs[w].result == GCOMP_CALLBACK_FAILED);
        CHECK(jobs[w].untouched && jobs[w].step_number == 2 && jobs[w].stats.failed == 1);
    }
}

int main(void)
{
    RUN(test_a_parameter_server_gets_the_mean_and_workers_keep_the_rest);
    RUN(test_more_payloads_than_fit_one_pass_have_the_same_mean);
    RUN(test_compress_changes_no_state);
    RUN(test_a_step_that_sent_nothing_goes_into_the_residual);
    RUN(test_a_lost_payload_given_back_restores_conservation);
    RUN(test_commit_and_give_back_refuse_bad_payloads_without_a_trace);
    RUN(test_commit_names_one_bad_payload_of_three);
    RUN(test_compress_refuses_what_needs_rounds_or_is_not_finite);
    RUN(test_exchange_between_threads_gives_the_bits_of_the_step);
    RUN(test_exchange_with_a_worker_that_left_fails_without_a_trace);
    return test_end();
}
