/* Proves of memory: what is needed is what is used, every allocation may fail; of the caller's floating-point mode; and that two objects never meet. */

#include "api.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

static int is_short(gcomp_result result, const char *why)
{
    if (!memory_beside) return result == GCOMP_OUT_OF_MEMORY;
    if (!strstr(why, "desc.allocator.alloc")) printf("# %s: %s\n", result_name(result), why);
    return result == GCOMP_INVALID_ARGUMENT && strstr(why, "desc.allocator.alloc") != NULL;
}

static float grad_data[SOME][LARGEST], *some_grads[SOME];

static void fill_some(uint64_t step)
{
    for (size_t t = 0; t < SOME; t++) {
        some_grads[t] = grad_data[t];
        for (size_t i = 0; i < LARGEST; i++) {
            grad_data[t][i] = noise(step * 100 + t, i);
            if (some[t].dtype == GCOMP_F16) ((uint16_t *)(void *)grad_data[t])[i] = (uint16_t)(0x3000 + i % 1024);
        }
    }
}

static gcomp_result exchange_some(gcomp *gc)
{
    void *any[SOME];
    for (size_t t = 0; t < SOME; t++) any[t] = grad_data[t];
    return gcomp_exchange(gc, any, NULL);
}

static void test_memory_needed_is_memory_used_after_prepare(void)
{
    for (int world = 1; world <= 4; world++)
        for (int variant = 0; variant < 5; variant++) {
            memory m;
            gcomp_desc desc = plain_desc();
            desc.comm.world = world;
            desc.allocator = memory_allocator(&m);
            desc.no_error_feedback = variant == 1;
            desc.measure = variant == 2;
            desc.check_every = variant == 3 ? 2 : 0;
            desc.codec = variant == 4 ? "fp16" : NULL;
            for (size_t count = 0; count <= SOME; count++) {
                size_t needed = gcomp_memory_needed(&desc, some, count);
                CHECK(m.live_bytes == 0 && m.live_blocks == 0);
                gcomp *gc = open_or_die(&desc);
                for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(gc, &some[t]) == GCOMP_OK);
                CHECK(gcomp_prepare(gc) == GCOMP_OK);
                if (memory_of(gc) != needed || m.live_bytes != needed)
                    printf("# world %d variant %d, %d tensors: needed %lu, used %lu, live %lu\n", world, variant, (int)count,
                           (unsigned long)needed, (unsigned long)memory_of(gc), (unsigned long)m.live_bytes);
                CHECK(memory_of(gc) == needed);
                CHECK(m.live_bytes == needed);
                CHECK(gcomp_prepare(gc) == GCOMP_OK && memory_of(gc) == needed); /* twice is once */
                gcomp_close(gc);
                CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
            }
        }
}

static void test_memory_needed_of_what_is_invalid_is_zero(void)
{
    gcomp_desc desc = plain_desc();
    gcomp_tensor tensor = plain_tensor("w", 5, 5, NULL);
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) > 0);
    CHECK(gcomp_memory_needed(&desc, NULL, 0) > 0);
    CHECK(gcomp_memory_needed(NULL, &tensor, 1) == 0);
    CHECK(gcomp_memory_needed(&desc, NULL, 1) == 0);
    tensor.rows = 0;
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) == 0);
    tensor = plain_tensor("w", 5, 5, "bogus");
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) == 0);
    tensor = plain_tensor("w", SIZE_MAX / 8, 3, NULL);
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) == 0);
    tensor = plain_tensor("w", 5, 5, NULL);
    desc.comm.rank = 7;
    CHECK(gcomp_memory_needed(&desc, &tensor, 1) == 0);
}

static void test_no_call_allocates_after_the_first_exchange(void)
{
    memory m;
    gcomp_desc desc = plain_desc();
    desc.allocator = memory_allocator(&m);
    desc.measure = 1;
    gcomp *gc = open_or_die(&desc);
    gcomp_statistics stats;
    static unsigned char payload[GCOMP_BOUND(LARGEST)];
    for (size_t t = 0; t < SOME; t++) CHECK(gcomp_add_tensor(gc, &some[t]) == GCOMP_OK);
    fill_some(0);
    CHECK(exchange_some(gc) == GCOMP_OK);
    size_t calls = m.calls, bytes = m.live_bytes, blocks = m.live_blocks, length = 0;
    CHECK(memory_of(gc) == bytes);
    for (uint64_t step = 1; step < 5; step++) {
        fill_some(step);
        CHECK(exchange_some(gc) == GCOMP_OK);
    }
    CHECK(gcomp_stats(gc, &stats) == GCOMP_OK);
    CHECK(gcomp_compress(gc, 2, 9, grad_data[2], payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(gcomp_give_back(gc, 2, payload, length) == GCOMP_OK);
    CHECK(gcomp_residual_set(gc, 0, NULL) == GCOMP_OK && gcomp_restart(gc, 0) == GCOMP_OK);
    grad_data[3][5] = NAN;
    CHECK(exchange_some(gc) == GCOMP_NOT_FINITE);
    CHECK(gcomp_add_tensor(gc, &some[0]) != GCOMP_OK);
    CHECK(m.calls == calls && m.live_bytes == bytes && m.live_blocks == blocks);
    gcomp_close(gc);
    CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);

    desc.allocator = memory_allocator(&m); /* and none at all after prepare */
    gc = open_or_die(&desc);
    for (size_t t = 0; t < SOME; t++) CHECK(gcomp_add_tensor(gc, &some[t]) == GCOMP_OK);
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    calls = m.calls;
    fill_some(0);
    CHECK(exchange_some(gc) == GCOMP_OK);
    CHECK(m.calls == calls);
    gcomp_close(gc);
    CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
}

/* Opens an object, adds tensors, prepares or not, and exchanges. Each call that finds no memory
   says so, leaves all as it was, and is repeated. */
static size_t run_out_of_memory(size_t from, size_t count, int prepare, float *result)
{
    memory m;
    gcomp_desc desc = plain_desc();
    gcomp *gc = NULL;
    size_t hits = 0;
    char why[128] = "";
    desc.allocator = memory_allocator(&m);
    desc.why = why;
    desc.why_capacity = sizeof why;
    m.fail_from = from;
    m.fail_count = count;
    gcomp_result r = gcomp_open(&gc, &desc);
    if (r) {
        hits++;
        CHECK(is_short(r, why) && gc == NULL && m.live_blocks == 0 && why[0] != 0);
        m.fail_count = 0;
        gc = open_or_die(&desc);
    }
    for (size_t t = 0; t < SOME; t++) {
        r = gcomp_add_tensor(gc, &some[t]);
        if (!r) continue;
        hits++;
        CHECK(is_short(r, gcomp_error(gc)) && tensors_of(gc) == t);
        CHECK(gcomp_error(gc)[0] != 0 && tensor_named(gc, some[t].name) == t && memory_of(gc) == m.live_bytes);
        m.fail_count = 0;
        CHECK(gcomp_add_tensor(gc, &some[t]) == GCOMP_OK);
    }
    if (prepare) {
        size_t before = m.live_bytes;
        r = gcomp_prepare(gc);
        if (r) {
            hits++;
            CHECK(is_short(r, gcomp_error(gc)) && m.live_bytes == before && memory_of(gc) == before);
            m.fail_count = 0;
            CHECK(gcomp_prepare(gc) == GCOMP_OK);
        }
    }
    static float copy[SOME][LARGEST];
    fill_some(0);
    memcpy(copy, grad_data, sizeof copy);
    r = exchange_some(gc);
    if (r) {
        hits++;
        CHECK(is_short(r, gcomp_error(gc)) && memcmp(copy, grad_data, sizeof copy) == 0 && gcomp_step_number(gc) == 0);
        m.fail_count = 0;
        CHECK(exchange_some(gc) == GCOMP_OK);
    }
    memcpy(result, grad_data, sizeof copy);
    gcomp_close(gc);
    CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
    return hits;
}

static void test_every_allocation_may_fail(void)
{
    static float undisturbed[SOME * LARGEST], result[SOME * LARGEST];
    for (int prepare = 0; prepare < 2; prepare++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            size_t from = 1;
            CHECK(run_out_of_memory(1, 0, prepare, undisturbed) == 0);
            for (;; from++) {
                size_t hits = run_out_of_memory(from, for_ever ? SIZE_MAX : 1, prepare, result);
                CHECK(memcmp(undisturbed, result, sizeof result) == 0);
                CHECK(hits <= 1);
                if (!hits) break;
            }
            printf("# %d allocations failed in turn\n", (int)from - 1);
            CHECK(from > 3);
        }
}

/* Decoding keeps the indices of topk's payloads in scratch. Payloads are committed where the
   scratch is not there yet, is there, was given back for a further tensor, or was lost in a
   gcomp_prepare without memory; and after gcomp_regroup. The bits are the same. */
static void test_scratch_that_was_given_back_is_not_used(void)
{
    enum { N = 4096, WORKERS = 3 };
    static float grad[N], first[N], last[N];
    static unsigned char payload[WORKERS][GCOMP_BOUND(N)], scratch[GCOMP_SCRATCH(N)];
    const void *payloads[WORKERS];
    size_t length[WORKERS];
    gcomp_codec codec;
    gcomp_exec exec;
    gcomp_input in;
    memset(&exec, 0, sizeof exec);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    in.grad = grad;
    in.rows = N;
    CHECK(gcomp_codec_parse(&codec, "topk:density=0.02", NULL, 0) == GCOMP_OK);
    for (size_t w = 0; w < WORKERS; w++) {
        for (size_t i = 0; i < N; i++) first[i] = grad[i] = noise(w, i);
        payloads[w] = payload[w];
        CHECK(gcomp_encode(&codec, &in, &exec, payload[w], sizeof payload[w], &length[w]) == GCOMP_OK);
    }
    for (int how = 0; how < 6; how++) {
        memory m;
        gcomp_desc desc = plain_desc();
        gcomp_comm comm;
        gcomp_tensor tensor = plain_tensor("one", 64, 64, "topk:density=0.02");
        gcomp *gc;
        desc.allocator = memory_allocator(&m);
        desc.comm.world = WORKERS;
        gc = open_or_die(&desc);
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        tensor.name = "two";
        if (how == 1 || how == 3) CHECK(gcomp_prepare(gc) == GCOMP_OK);
        if (how == 2 || how == 5) {
            size_t ignored;
            CHECK(gcomp_compress(gc, 0, 0, first, payload[0], sizeof payload[0], &ignored) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) grad[i] = noise(0, i);
            CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
        }
        if (how == 2 || how == 3) CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        if (how == 4) {
            m.fail_from = m.calls + 2; /* the arena: the scratch comes first */
            m.fail_count = 1;
            CHECK(is_short(gcomp_prepare(gc), gcomp_error(gc)) && m.calls >= m.fail_from);
        }
        if (how == 5) {
            memset(&comm, 0, sizeof comm);
            comm.world = 2;
            m.fail_from = m.calls + 2; /* the scratch: the frames come first */
            m.fail_count = 1;
            CHECK(is_short(gcomp_regroup(gc, &comm, NULL), gcomp_error(gc)) && gcomp_regroup(gc, &comm, NULL) == GCOMP_OK);
        }
        memcpy(grad, first, sizeof grad);
        CHECK(gcomp_commit(gc, 0, grad, payload[0], length[0], payloads, length, WORKERS) == GCOMP_OK);
        if (how == 0) memcpy(last, grad, sizeof last);
        CHECK(memcmp(last, grad, sizeof last) == 0);
        gcomp_close(gc);
        CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
    }
}

static void test_a_list_that_cannot_grow_is_as_before(void)
{
    for (size_t fail = 1; fail <= 6; fail++) {
        memory m;
        gcomp_desc desc = plain_desc();
        desc.allocator = memory_allocator(&m);
        gcomp *gc = open_or_die(&desc);
        char name[16];
        gcomp_tensor tensor = plain_tensor(name, 7, 0, "sign");
        size_t refused = 0;
        for (size_t t = 0; t < 70; t++) {
            snprintf(name, sizeof name, "t%d", (int)(t * 37 % 100));
            m.fail_from = m.calls + fail;
            m.fail_count = SIZE_MAX;
            gcomp_result result = gcomp_add_tensor(gc, &tensor);
            m.fail_count = 0;
            if (result) {
                refused++;
                CHECK(is_short(result, gcomp_error(gc)) && tensors_of(gc) == t && tensor_named(gc, name) == t);
                CHECK(memory_of(gc) == m.live_bytes);
                CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
            }
            CHECK(tensors_of(gc) == t + 1 && tensor_named(gc, name) == t);
        }
        CHECK(fail > 3 || refused > 0);
        CHECK(gcomp_prepare(gc) == GCOMP_OK);
        gcomp_close(gc);
        CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
    }
}

/* An allocator that ignores align. */
static void test_memory_that_is_not_aligned_is_given_back(void)
{
    static const size_t beside[] = {1, 4, 8, 16, 32};
    gcomp *gc;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        memory_beside = beside[i];
        test_every_allocation_may_fail();
        test_scratch_that_was_given_back_is_not_used();
        test_a_list_that_cannot_grow_is_as_before();
        for (size_t from = 1; from < 30; from++) { /* of two levels too */
            gcomp_desc desc = plain_desc();
            gcomp_tensor tensor = plain_tensor("w", 64, 64, "sign");
            char why[128] = "";
            memory m;
            desc.allocator = memory_allocator(&m);
            desc.why = why;
            desc.why_capacity = sizeof why;
            desc.node.world = 2;
            desc.node.allreduce = no_allreduce;
            desc.node.allgather = no_allgather;
            m.fail_from = from;
            m.fail_count = 1;
            gcomp_result r = gcomp_open(&gc, &desc);
            if (r == GCOMP_OK) r = gcomp_add_tensor(gc, &tensor);
            if (r == GCOMP_OK) r = gcomp_prepare(gc);
            if (r != GCOMP_OK) CHECK(is_short(r, gc ? gcomp_error(gc) : why));
            CHECK((r != GCOMP_OK) == (m.calls >= from));
            gcomp_close(gc);
            CHECK(m.live_blocks == 0 && m.live_bytes == 0 && !m.wrong);
        }
    }
    memory_beside = 0;
}

static void test_a_worker_without_memory_still_joins_the_frame(void)
{
    enum { WORLD = 3, FRAME = 64 };
    memory m[WORLD];
    gcomp *gc[WORLD];
    gcomp_result result[WORLD];
    gcomp_request request[WORLD];
    static float grads[WORLD][LARGEST], copy[WORLD][LARGEST];
    static const gcomp_tensor tensor = {"sign", 40, 37, 0, GCOMP_F32, "sign"};
    for (int w = 0; w < WORLD; w++) {
        gcomp_desc desc = plain_desc();
        desc.comm.rank = w;
        desc.comm.world = WORLD;
        desc.allocator = memory_allocator(&m[w]);
        gc[w] = open_or_die(&desc);
        CHECK(gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        for (size_t i = 0; i < LARGEST; i++) grads[w][i] = noise((uint64_t)w, i);
    }
    memcpy(copy, grads, sizeof copy);
    m[1].fail_from = 1;
    m[1].fail_count = SIZE_MAX;
    for (int attempt = 0; attempt < 2; attempt++) {
        int ended = 0;
        for (int w = 0; w < WORLD; w++) {
            CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK);
            CHECK(gcomp_step_ready(gc[w], 0, grads[w]) == GCOMP_OK);
            result[w] = GCOMP_OK;
        }
        for (int round = 0; round < 8 && !ended; round++) {
            for (int w = 0; w < WORLD; w++) {
                result[w] = gcomp_step_next(gc[w], &request[w]);
                if (result[w] || request[w].kind == GCOMP_DONE || request[w].kind == GCOMP_WAIT) ended++;
            }
            if (ended) break;
            for (int w = 0; w < WORLD; w++) CHECK(request[w].kind == GCOMP_ALLGATHER && request[w].stride == request[0].stride);
            for (int w = 0; w < WORLD; w++)
                for (int s = 0; s < WORLD; s++)
                    memcpy((char *)request[w].recv + (size_t)s * request[w].stride, request[s].send, request[s].bytes[s]);
            for (int w = 0; w < WORLD; w++) {
                result[w] = gcomp_step_done(gc[w], request[w].id, 0);
                if (result[w]) ended++;
            }
        }
        if (attempt == 0) { /* all three ended, at the frame */
            CHECK(ended == WORLD);
            CHECK(result[0] == GCOMP_PEER_FAILED && result[1] == GCOMP_OUT_OF_MEMORY && result[2] == GCOMP_PEER_FAILED);
            CHECK(strchr(gcomp_error(gc[0]), '1') != NULL && strchr(gcomp_error(gc[2]), '1') != NULL);
            CHECK(strstr(gcomp_error(gc[1]), "memory") != NULL);
            CHECK(memcmp(copy, grads, sizeof copy) == 0);
            m[1].fail_count = 0;
        } else { /* with memory back the same step passes */
            for (int w = 0; w < WORLD; w++) CHECK(result[w] == GCOMP_OK && request[w].kind == GCOMP_DONE);
            for (int w = 0; w < WORLD; w++) CHECK(gcomp_step_commit(gc[w]) == GCOMP_OK);
            CHECK(memcmp(grads[0], grads[1], 4 * 40 * 37) == 0 && memcmp(grads[0], grads[2], 4 * 40 * 37) == 0);
        }
    }
    for (int w = 0; w < WORLD; w++) {
        gcomp_close(gc[w]);
        CHECK(m[w].live_blocks == 0 && !m[w].wrong);
    }
}

/* ---------------- the caller's floating-point mode */

#if defined(__x86_64__) || (defined(__i386__) && defined(__SSE2__))

enum { CONTROL = 0xFFC0 }; /* rounding, flushing and masks; not the sticky flags */

/* All that calculates, once: payload, decoded, residual and an exchange, one after the other in
   `out`. */
static size_t calculate(const char *text, const float *grad, size_t n, unsigned char *out)
{
    static unsigned char scratch[GCOMP_SCRATCH(LARGEST)], payload[GCOMP_BOUND(LARGEST)];
    static float y[LARGEST], e[LARGEST], g[LARGEST];
    const void *payloads[3];
    size_t lengths[3], length = 0, at = 0;
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    int good = 1;
    memset(&in, 0, sizeof in);
    in.grad = grad;
    in.rows = n;
    in.scale = 0.3f;
    in.key = gcomp_key_make(1, 0, 0, 0);
    good &= gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK;
    good &= gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK;
    good &= add_checksum(payload, length) == GCOMP_OK;
    memcpy(out, payload, length);
    at += length;
    good &= gcomp_decode(payload, length, y, GCOMP_F32, n, NULL) == GCOMP_OK;
    good &= gcomp_decode_add(payload, length, 0.7f, y, GCOMP_F32, n, NULL) == GCOMP_OK;
    memcpy(out + at, y, 4 * n);
    at += 4 * n;
    for (size_t i = 0; i < 3; i++) {
        payloads[i] = payload;
        lengths[i] = length;
    }
    good &= gcomp_decode_mean(payloads, lengths, 3, y, GCOMP_F32, n, NULL) == GCOMP_OK;
    memcpy(out + at, y, 4 * n);
    at += 4 * n;
    for (size_t i = 0; i < n; i++) e[i] = grad[n - 1 - i];
    good &= gcomp_retain(payload, length, &in, e, NULL) == GCOMP_OK;
    memcpy(out + at, e, 4 * n);
    at += 4 * n;
    in.scale = 1e-40f; /* not 0 */
    good &= gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK;
    memcpy(out + at, payload, length);
    at += length;
    gcomp_desc desc = plain_desc();
    gcomp *gc = NULL;
    gcomp_tensor tensor = plain_tensor("w", 40, n / 40, text);
    gcomp_step step = GCOMP_STEP;
    float *grads[1];
    step.scale = 0.3f;
    grads[0] = g;
    desc.measure = 1;
    good &= gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK;
    for (int k = 0; k < 2; k++) {
        memcpy(g, grad, 4 * n);
        good &= exchange_floats(gc, grads, &step) == GCOMP_OK;
        memcpy(out + at, g, 4 * n);
        at += 4 * n;
    }
    good &= gcomp_compress(gc, 0, 9, grad, payload, sizeof payload, &length) == GCOMP_OK;
    if (tensor_residual(gc, 0)) good &= gcomp_give_back(gc, 0, payload, length) == GCOMP_OK;
    memcpy(out + at, payload, length);
    at += length;
    gcomp_close(gc);
    return good ? at : 0;
}

static void test_the_mode_is_restored_and_does_not_change_the_bits(void)
{
    enum { COUNT = 40 * 60 };
    static const char *const more[] = {"twobit:threshold=0.1", "threshold1:threshold=0.1"}; /* no floats: payloads round them */
    static float grad[COUNT];
    static unsigned char plain[3 * GCOMP_BOUND(COUNT) + 20 * COUNT], strange[sizeof plain];
    for (int small = 0; small < 2; small++) {
        for (size_t i = 0; i < COUNT; i++) grad[i] = small ? ldexpf(noise(5, i), -130) : noise(5, i);
        for (size_t c = 0; c < CODECS + 2; c++) {
            const char *text = c < CODECS ? codecs[c] : more[c - CODECS];
            size_t a = calculate(text, grad, COUNT, plain);
            CHECK(a > 0);
            for (int mode = 0; mode < 4; mode++) {
                unsigned normal = _mm_getcsr();
                int rounding = fegetround();
                if (mode == 1) CHECK(fesetround(FE_UPWARD) == 0);
                if (mode == 2) CHECK(fesetround(FE_TOWARDZERO) == 0);
                unsigned set = _mm_getcsr();
                if (mode != 1) set |= 0x8040;  /* flush to zero, denormals are zero */
                if (mode == 3) set &= ~0x0F80u; /* invalid, denormal, by zero, overflow, underflow trap */
                set &= ~0x3Fu;
                _mm_setcsr(set);
                size_t b = calculate(text, grad, COUNT, strange);
                unsigned after = _mm_getcsr();
                int direction = fegetround();
                _mm_setcsr(normal);
                CHECK(fesetround(rounding) == 0);
                CHECK((after & CONTROL) == (set & CONTROL));
                CHECK(direction == (mode == 1 ? FE_UPWARD : mode == 2 ? FE_TOWARDZERO : FE_TONEAREST));
                size_t same = 0;
                while (same < a && same < b && plain[same] == strange[same]) same++;
                if (same != a || a != b)
                    printf("# %s, small %d, mode %d: differs at byte %d\n", text, small, mode, (int)same);
                CHECK(a == b && same == a);
            }
        }
    }
}

static void test_low_rank_sums_do_not_depend_on_the_mode(void)
{
    enum { COUNT = 40 * 60 };
    static float grad[COUNT], plain[COUNT];
    for (int mode = 0; mode < 2; mode++) {
        gcomp_desc desc = plain_desc();
        gcomp *gc = open_or_die(&desc);
        gcomp_tensor tensor = plain_tensor("w", 40, 60, "powersgd:rank=2");
        float *grads[1];
        grads[0] = grad;
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        unsigned normal = _mm_getcsr();
        for (int step = 0; step < 3; step++) {
            for (size_t i = 0; i < COUNT; i++) grad[i] = noise((uint64_t)step, i);
            if (mode) _mm_setcsr((normal | 0xE040u) & ~0x3Fu); /* towards zero, flushing */
            gcomp_result result = exchange_floats(gc, grads, NULL);
            unsigned after = _mm_getcsr();
            _mm_setcsr(normal);
            CHECK(result == GCOMP_OK);
            if (mode) CHECK((after & CONTROL) == ((normal | 0xE040u) & CONTROL));
        }
        if (!mode) memcpy(plain, grad, sizeof plain);
        else CHECK(memcmp(plain, grad, sizeof plain) == 0);
        gcomp_close(gc);
    }
}

#endif

/* ---------------- two objects */

static void test_two_objects_never_meet(void)
{
    static const char *const text[2] = {"topk:density=0.02", "sign:block=64"};
    enum { COUNT = 40 * 60, STEPS = 4 };
    static float alone[2][STEPS][COUNT], grad[COUNT];
    float *grads[1];
    grads[0] = grad;
    for (int together = 0; together < 2; together++) {
        gcomp *gc[2] = {NULL, NULL};
        for (size_t k = 0; k < 2; k++) {
            gcomp_desc desc = plain_desc();
            gcomp_tensor tensor = plain_tensor("w", 40, 60, NULL);
            desc.codec = text[k];
            desc.seed = 7 * k;
            gc[k] = open_or_die(&desc);
            CHECK(gcomp_add_tensor(gc[k], &tensor) == GCOMP_OK);
        }
        for (size_t i = 0; i < 2 * STEPS; i++) {
            size_t k = together ? i % 2 : i / STEPS, step = together ? i / 2 : i % STEPS;
            for (size_t j = 0; j < COUNT; j++) grad[j] = noise(10 * k + step, j);
            CHECK(exchange_floats(gc[k], grads, NULL) == GCOMP_OK);
            if (together) CHECK(memcmp(alone[k][step], grad, sizeof grad) == 0);
            else memcpy(alone[k][step], grad, sizeof grad);
            CHECK(gcomp_exchange(gc[1 - k], NULL, NULL) == GCOMP_INVALID_ARGUMENT);
            CHECK(gcomp_error(gc[1 - k])[0] != 0 && strcmp(gcomp_error(gc[k]), "") == 0);
        }
        gcomp_close(gc[0]);
        gcomp_close(gc[1]);
    }
}

int main(void)
{
    RUN(test_memory_needed_is_memory_used_after_prepare);
    RUN(test_memory_needed_of_what_is_invalid_is_zero);
    RUN(test_no_call_allocates_after_the_first_exchange);
    RUN(test_every_allocation_may_fail);
    RUN(test_scratch_that_was_given_back_is_not_used);
    RUN(test_a_list_that_cannot_grow_is_as_before);
    RUN(test_memory_that_is_not_aligned_is_given_back);
    RUN(test_a_worker_without_memory_still_joins_the_frame);
#if defined(__x86_64__) || (defined(__i386__) && defined(__SSE2__))
    RUN(test_the_mode_is_restored_and_does_not_change_the_bits);
    RUN(test_low_rank_sums_do_not_depend_on_the_mode);
#endif
    RUN(test_two_objects_never_meet);
    return test_end();
}
