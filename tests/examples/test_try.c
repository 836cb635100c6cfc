/* Proves of examples/adapters/gcomp_try.h: callbacks that are right pass, and a callback that is broken in
   one way is named in a sentence, which all workers hear. The workers are threads. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "test.h"

#include "gcomp_threads.h"
#include "gcomp_try.h"

enum { MOST = 5 };

typedef enum fault {
    RIGHT,
    SUM_AVERAGES,
    SUM_DOES_NOTHING,
    SUM_IS_LARGEST,
    SUM_LOSES_LAST,
    SUM_CLIPS,
    SUM_LOSES_NAN,
    SUM_HAS_OTHER_BITS,
    SUM_WRITES_BEHIND,
    SUM_FAILS,
    MAX_SUMS,
    MAX_DOES_NOTHING,
    MAX_LOSES_LAST,
    GATHER_REVERSES,
    GATHER_LOSES_LAST,
    GATHER_CHANGES_MINE,
    GATHERV_PACKS,
    GATHERV_LOSES_LAST,
    GATHERV_WRITES_BEHIND,
    GATHERV_IGNORES_LENGTHS,
    SWAP_LOSES_LAST,
    SWAP_SKIPS_NONE, /* places are counted without those of length 0 */
    SWAP_SWAPS_NOT,
    TEST_LIES,
    WAIT_FAILS,
    FAULTS
} fault;

typedef struct worker {
    gcomp_comm real, comm;
    fault broken;
    int dtype, only; /* which sums are broken; on which rank, -1: on all */
    int in_start;    /* only requests that are started are broken */
    gcomp_request queue[8];
    uint32_t queued, carried; /* requests so far */
    gcomp_result result;
    char why[200];
} worker;

static worker workers[MOST];

static int is_broken(const worker *w, fault what, int started)
{
    return w->broken == what && (w->only < 0 || w->only == w->comm.rank) && w->in_start == started;
}

static size_t size_of(gcomp_dtype dtype) { return dtype == GCOMP_F32 || dtype == GCOMP_I32 ? 4 : dtype == GCOMP_I8 ? 1 : 2; }

static double number(const void *data, size_t i, gcomp_dtype dtype)
{
    float x = 0;
    if (dtype == GCOMP_I8) return ((const int8_t *)data)[i];
    if (dtype == GCOMP_I16) return ((const int16_t *)data)[i];
    if (dtype == GCOMP_I32) return ((const int32_t *)data)[i];
    if (dtype == GCOMP_F32) return ((const float *)data)[i];
    CHECK(gcomp_convert(&x, GCOMP_F32, (const uint16_t *)data + i, dtype, 1, NULL) == GCOMP_OK);
    return x;
}

static void set_number(void *data, size_t i, gcomp_dtype dtype, double value)
{
    float x = (float)value;
    if (dtype == GCOMP_I8) ((int8_t *)data)[i] = (int8_t)value;
    else if (dtype == GCOMP_I16) ((int16_t *)data)[i] = (int16_t)value;
    else if (dtype == GCOMP_I32) ((int32_t *)data)[i] = (int32_t)value;
    else if (dtype == GCOMP_F32) ((float *)data)[i] = x;
    else CHECK(gcomp_convert((uint16_t *)data + i, dtype, &x, GCOMP_F32, 1, NULL) == GCOMP_OK);
}

static int sum(worker *w, void *data, size_t count, gcomp_dtype dtype, int started)
{
    unsigned char own[4096 + 64];
    const int mine = w->dtype == (int)dtype, world = w->comm.world;
    float x[3] = {0, 0, 0};
    int status;
    memcpy(own, data, count * size_of(dtype));
    if (mine && is_broken(w, SUM_IS_LARGEST, started)) {
        CHECK(dtype == GCOMP_F32);
        return w->real.allreduce_max(w->real.user, (float *)data, count);
    }
    status = w->real.allreduce(w->real.user, data, count, dtype);
    if (!mine) return status;
    if (dtype == GCOMP_F32) memcpy(x, data, (count < 3 ? count : 3) * 4);
    for (size_t i = 0; i < count && is_broken(w, SUM_AVERAGES, started); i++)
        set_number(data, i, dtype, number(data, i, dtype) / world);
    if (is_broken(w, SUM_DOES_NOTHING, started)) memcpy(data, own, count * size_of(dtype));
    if (is_broken(w, SUM_LOSES_LAST, started)) set_number(data, count - 1, dtype, 77);
    if (is_broken(w, SUM_CLIPS, started) && x[0] > 1e30f) set_number(data, 0, dtype, 1e30);
    if (is_broken(w, SUM_LOSES_NAN, started) && count > 1 && x[1] != x[1]) set_number(data, 1, dtype, 0);
    if (is_broken(w, SUM_HAS_OTHER_BITS, started) && count == 61) *(unsigned char *)data ^= 1;
    if (is_broken(w, SUM_WRITES_BEHIND, started)) ((unsigned char *)data)[count * size_of(dtype)] = 1;
    return is_broken(w, SUM_FAILS, started) ? 31 : status;
}

static int largest(worker *w, float *data, size_t count, int started)
{
    float own = data[0];
    int status;
    if (is_broken(w, MAX_SUMS, started)) return w->real.allreduce(w->real.user, data, count, GCOMP_F32);
    status = w->real.allreduce_max(w->real.user, data, count);
    if (is_broken(w, MAX_DOES_NOTHING, started)) data[0] = own;
    if (is_broken(w, MAX_LOSES_LAST, started)) data[count - 1] = 1000;
    return status;
}

static int gather(worker *w, const void *mine, void *all, size_t bytes, int started)
{
    const int world = w->comm.world;
    unsigned char *to = (unsigned char *)all;
    int status = w->real.allgather(w->real.user, mine, all, bytes);
    for (int i = 0; i < world / 2 && is_broken(w, GATHER_REVERSES, started); i++)
        for (size_t k = 0; k < bytes; k++) {
            unsigned char byte = to[(size_t)i * bytes + k], *other = to + (size_t)(world - 1 - i) * bytes + k;
            to[(size_t)i * bytes + k] = *other;
            *other = byte;
        }
    if (is_broken(w, GATHER_LOSES_LAST, started) && bytes == 37) to[(size_t)world * bytes - 1] ^= 1;
    if (is_broken(w, GATHER_CHANGES_MINE, started)) *(unsigned char *)(uintptr_t)mine ^= 1;
    return status;
}

static int gatherv(worker *w, const void *mine, void *all, const size_t *bytes, size_t stride, int started)
{
    const int world = w->comm.world;
    unsigned char *to = (unsigned char *)all;
    size_t at = 0;
    int status = w->real.allgatherv(w->real.user, mine, all, bytes, stride);
    for (int i = 0; i < world && is_broken(w, GATHERV_PACKS, started); at += bytes[i++]) {
        memmove(to + at, to + (size_t)i * stride, bytes[i]);
        if ((size_t)i * stride >= at + bytes[i]) memset(to + (size_t)i * stride, 0, bytes[i]);
    }
    if (is_broken(w, GATHERV_LOSES_LAST, started) && bytes[world - 1]) to[(size_t)(world - 1) * stride + bytes[world - 1] - 1] ^= 1;
    if (is_broken(w, GATHERV_WRITES_BEHIND, started)) to[(size_t)world * stride] = 0;
    for (int i = 0; i < world && is_broken(w, GATHERV_IGNORES_LENGTHS, started); i++)
        for (size_t k = bytes[w->comm.rank]; k < bytes[i]; k++) to[(size_t)i * stride + k] = 0;
    return status;
}

static int swap(worker *w, const void *send, const size_t *sent, void *recv, const size_t *awaited, int started)
{
    unsigned char *to = (unsigned char *)recv;
    size_t all = 0;
    int status = w->real.alltoallv(w->real.user, send, sent, recv, awaited), none = 0;
    for (int i = 0; i < w->comm.world; i++) {
        all += awaited[i];
        none |= awaited[i] == 0;
    }
    if (all && is_broken(w, SWAP_LOSES_LAST, started)) to[all - 1] ^= 1;
    if (all && none && is_broken(w, SWAP_SKIPS_NONE, started)) memmove(to, to + 1, all - 1);
    if (all && is_broken(w, SWAP_SWAPS_NOT, started)) memcpy(to, send, all);
    return status;
}

static int the_sum(void *user, void *data, size_t count, gcomp_dtype dtype) { return sum((worker *)user, data, count, dtype, 0); }
static int the_largest(void *user, float *data, size_t count) { return largest((worker *)user, data, count, 0); }
static int the_gather(void *user, const void *mine, void *all, size_t bytes) { return gather((worker *)user, mine, all, bytes, 0); }
static int the_gatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    return gatherv((worker *)user, mine, all, bytes, stride, 0);
}
static int the_swap(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    return swap((worker *)user, send, sent, recv, awaited, 0);
}

/* Requests under way are carried out in the order in which they were started, when one is waited for. */
static int begin(void *user, const gcomp_request *request)
{
    worker *w = (worker *)user;
    w->queue[w->queued++ % 8] = *request;
    return 0;
}

static int look(void *user, uint32_t id, int *done)
{
    (void)id;
    *done = is_broken((worker *)user, TEST_LIES, 1);
    return 0;
}

static int finish(void *user, uint32_t id)
{
    worker *w = (worker *)user;
    int status = 0;
    while (w->carried != w->queued) {
        const gcomp_request *r = &w->queue[w->carried++ % 8];
        if (r->kind == GCOMP_ALLREDUCE) status = sum(w, r->recv, r->count, r->dtype, 1);
        else if (r->kind == GCOMP_ALLREDUCE_MAX) status = largest(w, (float *)r->recv, r->count, 1);
        else if (r->kind == GCOMP_ALLTOALL) status = swap(w, r->send, r->send_bytes, r->recv, r->bytes, 1);
        else status = gatherv(w, r->send, r->recv, r->bytes, r->stride, 1);
        if (status || r->id == id) break;
    }
    return is_broken(w, WAIT_FAILS, 1) ? 32 : status;
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    w->result = gcomp_try(&w->comm, w->why, sizeof w->why);
    return NULL;
}

static void prepare(int world, fault broken, int dtype, int only, int in_start)
{
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < world; i++) {
        worker *w = &workers[i];
        w->broken = broken;
        w->dtype = dtype;
        w->only = only;
        w->in_start = in_start;
        w->comm.user = w;
        w->comm.rank = i;
        w->comm.world = world;
        w->comm.allreduce = the_sum;
        w->comm.allgather = the_gather;
        w->comm.allgatherv = the_gatherv;
        w->comm.allreduce_max = the_largest;
        w->comm.alltoallv = the_swap;
        w->comm.allreduce_dtypes = 1u << GCOMP_F16 | 1u << GCOMP_BF16 | 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
        if (in_start) {
            w->comm.start = begin;
            w->comm.test = look;
            w->comm.wait = finish;
        }
    }
}

static void run(int world)
{
    pthread_t threads[MOST];
    gcomp_threads *group;
    CHECK(gcomp_threads_open(&group, world, 20.0) == 0);
    for (int w = 0; w < world; w++) {
        workers[w].real = gcomp_threads_comm(group, w);
        CHECK(pthread_create(&threads[w], NULL, work, &workers[w]) == 0);
    }
    for (int w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(group);
}

/* All workers return this result, and the same sentence with these words. */
static void expect(int world, gcomp_result result, const char *words)
{
    run(world);
    for (int w = 0; w < world; w++) {
        if (workers[w].result != result || !strstr(workers[w].why, words)) printf("# expected %s, worker %d of %d says: %s\n", words, w, world, workers[w].why);
        CHECK(workers[w].result == result && strstr(workers[w].why, words) && !strcmp(workers[w].why, workers[0].why));
    }
}

static void test_callbacks_that_are_right_pass(void)
{
    for (int world = 1; world <= MOST; world++)
        for (int in_start = 0; in_start < 2; in_start++) {
            prepare(world, RIGHT, 0, -1, in_start);
            expect(world, GCOMP_OK, "");
            CHECK(workers[0].why[0] == 0);
            prepare(world, RIGHT, 0, -1, in_start); /* with the two that every transport has */
            for (int w = 0; w < world; w++) {
                workers[w].comm.alltoallv = NULL;
                workers[w].comm.allgatherv = NULL;
                workers[w].comm.allreduce_max = NULL;
                workers[w].comm.allreduce_dtypes = 0;
            }
            expect(world, GCOMP_OK, "");
            prepare(world, RIGHT, 0, -1, 1); /* with start alone */
            for (int w = 0; w < world; w++) {
                workers[w].comm.allreduce = NULL;
                workers[w].comm.allgather = NULL;
            }
            expect(world, GCOMP_OK, "");
        }
}

static void test_sums_of_each_type_that_are_wrong_are_named(void)
{
    static const char *const types[] = {"fp32", "fp16", "bf16", "u8", "int8", "int16", "int32"};
    for (int in_start = 0; in_start < 2; in_start++)
        for (int dtype = GCOMP_F32; dtype <= GCOMP_I32; dtype++)
            for (int world = 2; world <= MOST && dtype != GCOMP_U8; world++) {
                char words[100];
                snprintf(words, sizeof words, "%sallreduce of %s ", in_start ? "start and wait, " : "", types[dtype]);
                prepare(world, SUM_DOES_NOTHING, dtype, -1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, strcat(words, "leaves the data as they were"));
                snprintf(words, sizeof words, "allreduce of %s averages: element 0 is", types[dtype]);
                prepare(world, SUM_AVERAGES, dtype, -1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, words);
                snprintf(words, sizeof words, "rank 1: %sallreduce of %s: element 1008 is 77 instead of", in_start ? "start and wait, " : "", types[dtype]);
                prepare(world, SUM_LOSES_LAST, dtype, 1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, words);
                snprintf(words, sizeof words, "allreduce of %s writes behind", types[dtype]);
                prepare(world, SUM_WRITES_BEHIND, dtype, world - 1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, words);
                snprintf(words, sizeof words, "allreduce of %s returned 31", types[dtype]);
                prepare(world, SUM_FAILS, dtype, -1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, words);
                if (dtype != GCOMP_F32 && dtype != GCOMP_F16 && dtype != GCOMP_BF16) continue;
                prepare(world, SUM_HAS_OTHER_BITS, dtype, 1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, "rank 1: allreduce: sums have other bits than on rank 0");
            }
}

static void test_sums_that_are_maxima_and_infinities_that_vanish_are_named(void)
{
    for (int world = 2; world <= MOST; world++) {
        prepare(world, SUM_IS_LARGEST, GCOMP_F32, -1, 0);
        expect(world, GCOMP_CALLBACK_FAILED, "allreduce of fp32 returns the largest number instead of the sum");
        prepare(world, SUM_CLIPS, GCOMP_F32, -1, 0);
        expect(world, GCOMP_CALLBACK_FAILED, "rank 0: allreduce of fp32: an infinity or NaN of one worker has vanished");
        prepare(world, SUM_LOSES_NAN, GCOMP_F32, 1, 0);
        expect(world, GCOMP_CALLBACK_FAILED, "rank 1: allreduce of fp32: an infinity or NaN of one worker has vanished");
    }
}

static void test_other_callbacks_that_are_wrong_are_named(void)
{
    static const struct {
        fault broken;
        const char *words;
    } cases[] = {{MAX_SUMS, "allreduce_max returns the sum instead of the largest number"},
                 {MAX_DOES_NOTHING, "allreduce_max leaves the data as they were"},
                 {MAX_LOSES_LAST, "allreduce_max: element 1008 is 1000 instead of"},
                 {GATHERV_PACKS, " packs: the place of worker w begins at w * stride"},
                 {GATHERV_LOSES_LAST, ": what rank"},
                 {GATHERV_WRITES_BEHIND, " writes behind its result"},
                 {GATHERV_IGNORES_LENGTHS, ": what rank"},
                 {SWAP_LOSES_LAST, "alltoallv: what rank"},
                 {SWAP_SKIPS_NONE, "alltoallv: what rank"},
                 {SWAP_SWAPS_NOT, "alltoallv: what rank"},
                 {TEST_LIES, "start and wait, "},
                 {WAIT_FAILS, "returned 32"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int in_start = cases[k].broken >= TEST_LIES; in_start < 2; in_start++)
            for (int world = 2; world <= MOST; world++) {
                prepare(world, cases[k].broken, 0, -1, in_start);
                expect(world, GCOMP_CALLBACK_FAILED, cases[k].words);
                CHECK((strstr(workers[0].why, ": start and wait, ") != NULL) == in_start);
                if (cases[k].broken >= GATHERV_PACKS && cases[k].broken <= GATHERV_IGNORES_LENGTHS)
                    CHECK(strstr(workers[0].why, in_start ? "allgather" : "allgatherv"));
            }
}

/* What rank 1 alone sees is told to all, unless it is the telling that is broken. */
static void test_gathers_that_are_wrong_are_named(void)
{
    for (int world = 2; world <= MOST; world++) {
        prepare(world, GATHER_LOSES_LAST, 0, 1, 0);
        expect(world, GCOMP_CALLBACK_FAILED, "rank 1: allgather: what rank");
        prepare(world, GATHER_CHANGES_MINE, 0, -1, 0);
        expect(world, GCOMP_CALLBACK_FAILED, "allgather changes the bytes that it sends");
        prepare(world, GATHER_REVERSES, 0, -1, 0);
        run(world);
        for (int w = 0; w < world; w++)
            CHECK(workers[w].result == GCOMP_CALLBACK_FAILED && strstr(workers[w].why, "allgather: the place of rank 0 holds what rank"));
    }
}

static void test_workers_that_set_other_callbacks_are_named(void)
{
    for (int what = 0; what < 4; what++) {
        prepare(3, RIGHT, 0, -1, what == 3);
        if (what == 0) workers[1].comm.alltoallv = NULL;
        if (what == 1) workers[1].comm.allgatherv = NULL;
        if (what == 2) workers[1].comm.allreduce_dtypes = 1u << GCOMP_I8;
        if (what == 3) workers[1].comm.start = NULL, workers[1].comm.test = NULL, workers[1].comm.wait = NULL;
        run(3);
        for (int w = 0; w < 3; w++) CHECK(workers[w].result == GCOMP_MISMATCH && strstr(workers[w].why, "rank 0: comm: rank 1 has other callbacks"));
    }
}

static void test_what_one_worker_sees_alone_is_refused(void)
{
    gcomp_comm comm = {0};
    char why[100];
    prepare(2, RIGHT, 0, -1, 1);
    for (int w = 0; w < 2; w++) workers[w].comm.wait = NULL;
    expect(2, GCOMP_CALLBACK_FAILED, "rank 0: start, test and wait: set all three, or none");
    CHECK(gcomp_try(NULL, why, sizeof why) == GCOMP_INVALID_ARGUMENT && strstr(why, "rank"));
    CHECK(gcomp_try(&comm, why, sizeof why) == GCOMP_OK && why[0] == 0);
    comm.rank = comm.world = 2;
    CHECK(gcomp_try(&comm, why, sizeof why) == GCOMP_INVALID_ARGUMENT && gcomp_try(&comm, NULL, 0) == GCOMP_INVALID_ARGUMENT);
    comm.rank = 1;
    CHECK(gcomp_try(&comm, why, sizeof why) == GCOMP_MISSING_CALLBACK && strstr(why, "rank 1: comm.allgather is NULL"));
}

static void *work_and_leave(void *arg)
{
    worker *w = (worker *)arg;
    w->result = gcomp_try(&w->comm, w->why, sizeof w->why);
    gcomp_threads_fail(((gcomp_threads_member *)w->real.user)->group);
    return NULL;
}

/* A worker that is not there: the others wait as long as the transport does, once. */
static void test_a_missing_worker_is_an_error_of_the_others(void)
{
    pthread_t threads[2];
    gcomp_threads *group;
    prepare(3, RIGHT, 0, -1, 0);
    CHECK(gcomp_threads_open(&group, 3, 0.2) == 0);
    for (int w = 0; w < 2; w++) {
        workers[w].real = gcomp_threads_comm(group, w);
        CHECK(pthread_create(&threads[w], NULL, work_and_leave, &workers[w]) == 0);
    }
    for (int w = 0; w < 2; w++) {
        pthread_join(threads[w], NULL);
        CHECK(workers[w].result == GCOMP_CALLBACK_FAILED && strstr(workers[w].why, "allgather returned 2"));
    }
    gcomp_threads_close(group);
}

int main(void)
{
    RUN(test_callbacks_that_are_right_pass);
    RUN(test_sums_of_each_type_that_are_wrong_are_named);
    RUN(test_sums_that_are_maxima_and_infinities_that_vanish_are_named);
    RUN(test_other_callbacks_that_are_wrong_are_named);
    RUN(test_gathers_that_are_wrong_are_named);
    RUN(test_workers_that_set_other_callbacks_are_named);
    RUN(test_what_one_worker_sees_alone_is_refused);
    RUN(test_a_missing_worker_is_an_error_of_the_others);
    return test_end();
}
