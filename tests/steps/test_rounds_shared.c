/* Proves of scales that all workers share, of callbacks that are missing or fail, and of workers that are too many for integers. */

#include "rounds.h"

static const char *const kinds[TENSORS] = {"terngrad:share=1", "intsum", "topk:density=0.05", "intsum:bits=16,rounding=nearest",
                                           "powersgd:rank=2", "intsum:bits=32", "sign", "intsum:rounding=nearest"};

/* ---------------- terngrad with one scale for all */

static void test_terngrad_shares_the_largest_scale(void)
{
    for (int world = 1; world <= MOST; world++)
        for (int stack = 1; stack <= 2; stack++) {
            gcomp_tensor t = tensor_of("w", 37, 41, (size_t)stack, "terngrad:share=1,clip=0");
            size_t bad = 0;
            group g;
            group_open(&g, world, NULL, &t, 1);
            for (uint64_t step = 0; step < 3; step++) {
                float most = 0;
                group_fill(&g, step);
                for (int w = 0; w < world; w++)
                    for (size_t i = 0; i < g.n[0]; i++) most = fmaxf(most, fabsf(g.grad[w][0][i]));
                CHECK(group_step(&g, 0) == GCOMP_OK && all_equal(&g));
                CHECK(g.calls == 3 && g.kind[1] == GCOMP_ALLREDUCE_MAX && g.kind[2] == GCOMP_ALLGATHER);
                CHECK(g.largest == most);
                for (size_t i = 0; i < g.n[0]; i++) { /* a whole number of shares */
                    double x = (double)g.grad[0][0][i] * world / (double)most;
                    bad += fabs(x - floor(x + 0.5)) > 1e-5 || fabs(x) > world + 1e-5;
                }
            }
            CHECK(bad == 0);
            group_close(&g);
        }
}

static void test_terngrad_with_a_shared_scale_is_unbiased(void)
{
    enum { N = 64, STEPS = 4000 };
    gcomp_tensor t = tensor_of("w", N, 1, 1, "terngrad:share=1,clip=0");
    double sum[N] = {0};
    int bad = 0;
    group g;
    group_open(&g, 2, NULL, &t, 1);
    add_means(&g, STEPS, sum);
    for (size_t i = 0; i < N; i++) {
        double p = 0, variance = 0;
        for (int w = 0; w < 2; w++) {
            double x = fabs((double)g.grad[w][0][i]);
            p += (double)g.grad[w][0][i] / 2;
            variance += x * ((double)g.largest - x) / 4;
        }
        bad += fabs(sum[i] / STEPS - p) > 5 * sqrt(variance / STEPS) + 1e-5;
    }
    CHECK(bad == 0);
    group_close(&g);
}

static void test_a_shared_scale_that_cannot_be_changes_nothing(void)
{
    static const float factors[] = {-1.0f, INFINITY, NAN};
    for (size_t k = 0; k < 3; k++) {
        uint64_t before[2];
        group g;
        open_before_a_lie(&g, "terngrad:share=1", factors[k], before);
        CHECK(group_step(&g, 0) != GCOMP_OK && g.result[1] != GCOMP_OK);
        for (int w = 0; w < 2; w++) CHECK(digest(&g, w) == before[w]);
        g.lie = 0;
        CHECK(group_step(&g, 0) == GCOMP_OK && all_equal(&g));
        group_close(&g);
    }
}

static void test_a_payload_alone_has_its_own_scale(void)
{
    static unsigned char a[GCOMP_BOUND(1500)], b[GCOMP_BOUND(1500)];
    gcomp_tensor t[2];
    size_t m = 0, n = 0;
    group g, h;
    t[0] = tensor_of("w", 30, 50, 1, "terngrad:share=1");
    t[1] = tensor_of("w", 30, 50, 1, "terngrad");
    group_open(&g, 1, NULL, &t[0], 1);
    group_open(&h, 1, NULL, &t[1], 1);
    group_fill(&g, 1);
    CHECK(gcomp_compress(g.gc[0], 0, 4, g.grad[0][0], a, sizeof a, &m) == GCOMP_OK);
    CHECK(gcomp_compress(h.gc[0], 0, 4, g.grad[0][0], b, sizeof b, &n) == GCOMP_OK);
    CHECK(m == n && !memcmp(a, b, n));
    group_close(&g);
    group_close(&h);
}

/* ---------------- what the transport must be able to do */

static gcomp_result open_as(const char *codec, int world, unsigned dtypes, char *why)
{
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_result result;
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.comm.world = world;
    desc.comm.allreduce_dtypes = dtypes;
    desc.why = why;
    desc.why_capacity = 256;
    why[0] = 0;
    result = gcomp_open(&gc, &desc);
    CHECK((gc != NULL) == (result == GCOMP_OK));
    CHECK((gcomp_memory_needed(&desc, NULL, 0) != 0) == (result == GCOMP_OK));
    gcomp_close(gc);
    return result;
}

static void test_a_transport_that_cannot_add_the_integers_is_named_at_once(void)
{
    static const struct { const char *codec; gcomp_dtype dtype; const char *name; } need[] = {
        {"intsum", GCOMP_I8, "GCOMP_I8"}, {"intsum:bits=16", GCOMP_I16, "GCOMP_I16"}, {"intsum:bits=32", GCOMP_I32, "GCOMP_I32"}};
    char why[256];
    for (size_t i = 0; i < 3; i++) {
        gcomp_tensor t = tensor_of("fc1", 30, 50, 1, need[i].codec);
        gcomp_desc desc;
        gcomp *gc = NULL;
        CHECK(open_as(need[i].codec, 2, integers & ~(1u << need[i].dtype), why) == GCOMP_MISSING_CALLBACK);
        CHECK(strstr(why, "comm.allreduce_dtypes") && strstr(why, need[i].name));
        CHECK(open_as(need[i].codec, 2, 1u << need[i].dtype, why) == GCOMP_OK);
        CHECK(open_as(need[i].codec, 1, 0, why) == GCOMP_OK);
        memset(&desc, 0, sizeof desc);
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        size_t used = memory_of(gc);
        CHECK(gcomp_add_tensor(gc, &t) == GCOMP_MISSING_CALLBACK);
        CHECK(strstr(gcomp_error(gc), "fc1") && strstr(gcomp_error(gc), "comm.allreduce_dtypes"));
        CHECK(tensors_of(gc) == 0 && memory_of(gc) == used);
        CHECK(gcomp_memory_needed(&desc, &t, 1) == 0);
        gcomp_close(gc);
    }
    CHECK(open_as("none", 2, 1u << 7, why) == GCOMP_INVALID_ARGUMENT && strstr(why, "comm.allreduce_dtypes is 128"));
}

static void test_too_many_workers_for_the_integers_are_told_which_are_enough(void)
{
    char why[256];
    CHECK(open_as("intsum", 127, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum", 128, integers, why) == GCOMP_BAD_CODEC);
    CHECK(strstr(why, "comm.world is 128") && strstr(why, "bits=16"));
    CHECK(open_as("intsum:bits=16", 32767, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum:bits=16", 32768, integers, why) == GCOMP_BAD_CODEC && strstr(why, "bits=32"));
    CHECK(open_as("intsum:bits=32", 32768, integers, why) == GCOMP_OK);
    CHECK(open_as("intsum:bits=4", 2, integers, why) == GCOMP_BAD_CODEC);
}

static void test_a_shared_scale_takes_no_blocks(void)
{
    char why[256];
    CHECK(open_as("terngrad:share=1", 2, 0, why) == GCOMP_OK);
    CHECK(open_as("terngrad:block=512,share=1", 2, 0, why) == GCOMP_BAD_CODEC && strstr(why, "block=tensor"));
    for (int world = 1; world <= 2; world++)
        CHECK(open_as("terngrad:share=1,code=entropy", world, 0, why) == GCOMP_BAD_CODEC && strstr(why, "code=packed"));
    CHECK(open_as("terngrad:block=512", 2, 0, why) == GCOMP_OK);
    CHECK(open_as("terngrad:share=2", 2, 0, why) == GCOMP_BAD_CODEC);
}

static int ignore_max(void *user, float *data, size_t count)
{
    (void)user, (void)data, (void)count;
    return 0;
}

static void test_workers_agree_on_the_new_callbacks(void)
{
    for (int difference = 0; difference < 2; difference++) {
        gcomp_tensor t = tensor_of("w", 30, 50, 1, "intsum");
        gcomp_desc desc;
        group g;
        group_open(&g, 3, NULL, &t, 1);
        memset(&desc, 0, sizeof desc);
        desc.comm.world = 3;
        desc.comm.rank = 2;
        desc.comm.allreduce_dtypes = integers;
        if (difference == 0) desc.comm.allreduce_max = ignore_max;
        else desc.comm.allreduce_dtypes = 1u << GCOMP_I8;
        gcomp_close(g.gc[2]);
        CHECK(gcomp_open(&g.gc[2], &desc) == GCOMP_OK && gcomp_add_tensor(g.gc[2], &t) == GCOMP_OK);
        group_fill(&g, 1);
        group_step(&g, 0);
        for (int w = 0; w < 3; w++) CHECK(g.result[w] == GCOMP_MISMATCH && strstr(gcomp_error(g.gc[w]), difference ? "rank 2 has comm.allreduce_dtypes 16" : "rank 2 has comm.allreduce_max set"));
        CHECK(strstr(gcomp_error(g.gc[0]), "rank 2") != NULL);
        group_close(&g);
    }
}

static void test_payloads_of_intsum_need_rounds(void)
{
    gcomp_tensor t = tensor_of("w", 30, 50, 1, "intsum");
    float grad[16] = {0};
    unsigned char payload[256];
    gcomp_input in;
    gcomp_codec codec;
    size_t length = 0;
    group g;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = grad;
    in.rows = 16;
    CHECK(gcomp_codec_parse(&codec, "intsum", NULL, 0) == GCOMP_OK && gcomp_bound(&codec, 16, NULL) == 0);
    CHECK(gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    group_open(&g, 1, NULL, &t, 1);
    CHECK(gcomp_compress(g.gc[0], 0, 0, g.grad[0][0], payload, sizeof payload, &length) == GCOMP_NEEDS_ROUNDS);
    CHECK(tensor_codec(g.gc[0], 0)->method == 19);
    group_close(&g);
}

static int seat_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allreduce(s->inner.user, data, count, dtype);
}

static int seat_max(void *user, float *data, size_t count)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allreduce_max(s->inner.user, data, count);
}

static int seat_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    seat *s = (seat *)user;
    return fails(s) ? 9 : s->inner.allgather(s->inner.user, mine, all, bytes);
}

static void *seat_alloc(void *user, size_t bytes, size_t align)
{
    void *p = NULL;
    ((seat *)user)->allocations++;
    return posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, bytes) ? NULL : p;
}

static void seat_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static int worker_fails; /* checks, in any thread */

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            worker_fails++; \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
        } \
    } while (0)

/* Two exchanges, one that fails where the group says so, and one more. */
static void *work(void *arg)
{
    gcomp_threads_member *me = (gcomp_threads_member *)((void **)arg)[0];
    shared *all = (shared *)((void **)arg)[1];
    float *grads[TENSORS];
    gcomp_tensor tensors[TENSORS];
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    gcomp_desc desc;
    uint64_t before;
    seat s;
    group g;
    memset(&desc, 0, sizeof desc);
    memset(&s, 0, sizeof s);
    memset(&g, 0, sizeof g);
    s.all = all;
    s.inner = gcomp_threads_comm(all->group, me->rank);
    desc.comm = s.inner;
    desc.comm.user = &s;
    desc.comm.allreduce = seat_allreduce;
    desc.comm.allgather = seat_allgather;
    desc.comm.allgatherv = NULL;
    desc.comm.alltoallv = NULL;
    desc.comm.allreduce_max = all->with_max ? seat_max : NULL;
    desc.allocator.alloc = seat_alloc;
    desc.allocator.free = seat_free;
    desc.allocator.user = &s;
    g.world = 1;
    g.count = TENSORS;
    EXPECT(gcomp_open(&g.gc[0], &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        tensors[t] = tensor_of(names[t], 21 + t, 40, 1, kinds[t]);
        EXPECT(gcomp_add_tensor(g.gc[0], &tensors[t]) == GCOMP_OK);
        g.n[t] = tensor_elements(g.gc[0], t);
        grads[t] = g.grad[0][t] = (float *)malloc(4 * g.n[t]);
    }
    s.call = -1000;
    for (uint64_t step = 0; step < 4; step++) {
        size_t had = s.allocations;
        for (size_t t = 0; t < TENSORS; t++)
            for (size_t i = 0; i < g.n[t]; i++) grads[t][i] = noise(step * 9 + (uint64_t)me->rank, i + t);
        if (step == 2) {
            before = digest(&g, 0);
            s.call = 0;
            all->result[me->rank] = exchange_floats(g.gc[0], grads, NULL);
            if (me->rank == 0) all->calls = (size_t)s.call;
            if (all->fail_call >= 0) {
                EXPECT(all->result[me->rank] == GCOMP_CALLBACK_FAILED);
                EXPECT(digest(&g, 0) == before);
                EXPECT(strstr(gcomp_error(g.gc[0]), "failed with status 9") != NULL);
                s.call = -1000;
                EXPECT(exchange_floats(g.gc[0], grads, NULL) == GCOMP_OK);
            }
            s.call = -1000;
        } else {
            EXPECT(exchange_floats(g.gc[0], grads, NULL) == GCOMP_OK);
        }
        if (step) EXPECT(s.allocations == had);
    }
    EXPECT(memory_of(g.gc[0]) == gcomp_memory_needed(&desc, tensors, TENSORS));
    all->digest[me->rank] = digest(&g, 0);
    gcomp_close(g.gc[0]);
    for (size_t t = 0; t < TENSORS; t++) free(grads[t]);
    return NULL;
}

static void run_group(shared *all, int world)
{
    pthread_t threads[MOST];
    void *args[MOST][2];
    CHECK(gcomp_threads_open(&all->group, world, 60.0) == 0);
    for (int w = 0; w < world; w++) {
        args[w][0] = &all->group->members[w];
        args[w][1] = all;
        CHECK(pthread_create(&threads[w], NULL, work, args[w]) == 0);
    }
    for (int w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(all->group);
}

static void test_an_exchange_gathers_the_largest_where_there_is_no_callback_for_it(void)
{
    shared a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    a.with_max = 1;
    a.fail_call = b.fail_call = -1;
    for (int world = 2; world <= 4; world++) {
        run_group(&a, world);
        run_group(&b, world);
        for (int w = 0; w < world; w++) CHECK(a.digest[w] == b.digest[w]);
        CHECK(a.calls == 8 && b.calls == 8);
    }
    CHECK(worker_fails == 0);
}

static void test_every_callback_that_fails_leaves_everything_as_it_was(void)
{
    shared control;
    memset(&control, 0, sizeof control);
    control.fail_call = -1;
    run_group(&control, 3);
    for (int with_max = 0; with_max < 2; with_max++)
        for (int call = 0; call < 8; call++) {
            shared s;
            memset(&s, 0, sizeof s);
            s.with_max = with_max;
            s.fail_call = call;
            run_group(&s, 3);
            for (int w = 0; w < 3; w++) CHECK(s.digest[w] == control.digest[w]);
        }
    CHECK(worker_fails == 0);
}

static void test_a_missing_allreduce_is_named(void)
{
    gcomp_tensor t = tensor_of("fc1", 30, 50, 1, "intsum");
    gcomp *gc = NULL;
    gcomp_desc desc;
    float *grads[1];
    memset(&desc, 0, sizeof desc);
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    desc.comm.allreduce_dtypes = integers;
    grads[0] = (float *)calloc(1500, sizeof(float));
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &t) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.allreduce") && strstr(gcomp_error(gc), "fc1"));
    gcomp_close(gc);
    free(grads[0]);
}

int main(void)
{
    RUN(test_terngrad_shares_the_largest_scale);
    RUN(test_terngrad_with_a_shared_scale_is_unbiased);
    RUN(test_a_shared_scale_that_cannot_be_changes_nothing);
    RUN(test_a_payload_alone_has_its_own_scale);
    RUN(test_a_transport_that_cannot_add_the_integers_is_named_at_once);
    RUN(test_too_many_workers_for_the_integers_are_told_which_are_enough);
    RUN(test_a_shared_scale_takes_no_blocks);
    RUN(test_workers_agree_on_the_new_callbacks);
    RUN(test_payloads_of_intsum_need_rounds);
    RUN(test_an_exchange_gathers_the_largest_where_there_is_no_callback_for_it);
    RUN(test_every_callback_that_fails_leaves_everything_as_it_was);
    RUN(test_a_missing_allreduce_is_named);
    return test_end();
}
