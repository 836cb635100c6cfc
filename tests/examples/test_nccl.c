/* Proves of the transport examples/adapters/gcomp_nccl.h, over stand-ins for CUDA and NCCL (tests/tools/standin):
   its pieces add up to the whole, its waits end, and each call that fails is an error. The ranks
   are threads. It says nothing about a GPU. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "gcomp_threads.h"
#include "standin/cuda_runtime.h"
#include "standin/nccl.h"
#define GCOMP_NCCL_STAGE ((size_t)1024) /* so that all goes in pieces */
#include "gcomp_nccl.h"
#include "gcomp_try.h"
#include "halves.h"
#include "test.h"

enum { MOST = 4, COUNT = 700, ROWS = 40, COLS = 50, N = ROWS * COLS };

/* How often communicators that do not block are asked until they are done. NCCL has them since 2.14. */
#if NCCL_VERSION_CODE >= 21400
enum { MOST_LAZY = 3 };
#else
enum { MOST_LAZY = 0 };
#endif

typedef struct worker {
    gcomp_comm threads;
    int (*body)(struct worker *worker);
    int status, wrong;
    float mean[N];
} worker;

static worker workers[MOST];

static void *start(void *arg)
{
    worker *w = (worker *)arg;
    w->status = w->body(w);
    return NULL;
}

/* 1 if all workers end with status 0 and nothing wrong. */
static int run(int world, int (*body)(worker *))
{
    pthread_t threads[MOST];
    gcomp_threads *group;
    int good = 1;
    memset(workers, 0, sizeof workers);
    standin_drop_mails();
    if (gcomp_threads_open(&group, world, 30)) return 0;
    for (int w = 0; w < world; w++) {
        workers[w].threads = gcomp_threads_comm(group, w);
        workers[w].body = body;
        if (pthread_create(&threads[w], NULL, start, &workers[w])) return 0;
    }
    for (int w = 0; w < world; w++) {
        pthread_join(threads[w], NULL);
        good &= workers[w].status == 0 && workers[w].wrong == 0;
    }
    gcomp_threads_close(group);
    return good;
}

/* A rank's communicator and stream. */
typedef struct rank {
    struct ncclComm comm;
    struct CUstream_st stream;
    gcomp_nccl nccl;
} rank;

static int lazy; /* of the communicators: see the stand-in */

static int open_rank(rank *r, const gcomp_comm *threads, double timeout)
{
    memset(r, 0, sizeof *r);
    r->comm.threads = *threads;
    r->comm.lazy = r->comm.busy = lazy;
    return gcomp_nccl_open(&r->nccl, &r->comm, &r->stream, timeout);
}

static int body_sums(worker *w)
{
    static const size_t counts[] = {0, 1, 255, 256, 257, COUNT};
    rank r;
    gcomp_comm comm;
    int status = open_rank(&r, &w->threads, 30), world = w->threads.world, me = w->threads.rank;
    if (status) return status;
    comm = gcomp_nccl_comm(&r.nccl);
    w->wrong += comm.rank != me || comm.world != world;
    w->wrong += comm.allreduce_dtypes != (1u << GCOMP_F16 | (NCCL_VERSION_CODE >= 21000 ? 1u << GCOMP_BF16 : 0) | 1u << GCOMP_I8 |
                                          1u << GCOMP_I32);
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++) {
        float sum[COUNT], most[COUNT];
        int8_t a[COUNT];
        int32_t c[COUNT];
        for (size_t i = 0; i < counts[k]; i++) {
            sum[i] = most[i] = (float)((int)i % 100 - 30 * me);
            a[i] = (int8_t)((int)i % 25 - me);
            c[i] = (int32_t)i * 700000 - me;
        }
        status = comm.allreduce(comm.user, sum, counts[k], GCOMP_F32);
        if (!status) status = comm.allreduce_max(comm.user, most, counts[k]);
        if (!status) status = comm.allreduce(comm.user, a, counts[k], GCOMP_I8);
        if (!status) status = comm.allreduce(comm.user, c, counts[k], GCOMP_I32);
        for (size_t i = 0; i < counts[k]; i++) {
            int ranks = world * (world - 1) / 2;
            w->wrong += sum[i] != (float)((int)i % 100 * world - 30 * ranks) || most[i] != (float)((int)i % 100);
            w->wrong += a[i] != (int)i % 25 * world - ranks || c[i] != (int32_t)i * 700000 * world - ranks;
        }
        w->wrong += comm.allreduce(comm.user, sum, 1, GCOMP_I16) == 0;
        /* the stand-in adds as gcomp_threads.h does */
        if (!status) w->wrong += halves_are_wrong(&comm, counts[k], GCOMP_F16, &status) != 0;
        if (NCCL_VERSION_CODE < 21000) w->wrong += comm.allreduce(comm.user, sum, 1, GCOMP_BF16) != (int)ncclInvalidArgument;
        else if (!status) w->wrong += halves_are_wrong(&comm, counts[k], GCOMP_BF16, &status) != 0;
    }
    gcomp_nccl_close(&r.nccl);
    w->wrong += standin_held != 0;
    return status;
}

static int body_gathers(worker *w)
{
    static const size_t sizes[] = {0, 1, 15, 200, 201, COUNT};
    static unsigned char memory[MOST][4][MOST * COUNT];
    unsigned char *all = memory[w->threads.rank][0], *send = memory[w->threads.rank][1];
    size_t world = (size_t)w->threads.world, me = (size_t)w->threads.rank, bytes[MOST], sent[MOST], awaited[MOST];
    rank r;
    gcomp_comm comm;
    int status = open_rank(&r, &w->threads, 30);
    if (status) return status;
    comm = gcomp_nccl_comm(&r.nccl);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes && !status; k++) {
        size_t size = sizes[k];
        for (size_t i = 0; i < world * size; i++) send[i] = (unsigned char)(i * 7 + 31 * me);
        memset(all, 0xee, MOST * COUNT);
        status = comm.allgather(comm.user, send, all, size);
        for (size_t i = 0; i < MOST * COUNT; i++)
            w->wrong += all[i] != (i < world * size ? (unsigned char)(i % size * 7 + 31 * (i / size)) : 0xee);
        memset(all, 0xee, MOST * COUNT);
        for (size_t v = 0; v < world; v++) bytes[v] = v == 1 ? 0 : size / (v + 1);
        if (!status) status = comm.allgatherv(comm.user, send, all, bytes, COUNT);
        for (size_t i = 0; i < MOST * COUNT; i++) {
            int comes = i / COUNT < world && i % COUNT < bytes[i / COUNT];
            w->wrong += all[i] != (comes ? (unsigned char)(i % COUNT * 7 + 31 * (i / COUNT)) : 0xee);
        }
        for (size_t v = 0; v < world; v++) { /* some of no bytes, some of many pieces */
            sent[v] = (2 * me + v) % 3 * size / 2;
            awaited[v] = (2 * v + me) % 3 * size / 2;
        }
        memset(all, 0xee, MOST * COUNT);
        memset(send, (int)me + 1, MOST * COUNT);
        if (!status) status = gcomp_nccl_alltoallv(comm.user, send, sent, all, awaited);
        for (size_t v = 0, i = 0; v < world; v++)
            for (size_t k2 = 0; k2 < awaited[v]; k2++) w->wrong += all[i++] != v + 1;
    }
    bytes[0] = COUNT + 1;
    w->wrong += comm.allgatherv(comm.user, send, all, bytes, COUNT) == 0;
    gcomp_nccl_close(&r.nccl);
    return status;
}

static int body_try(worker *w)
{
    char why[200];
    gcomp_comm comm;
    rank r;
    if (open_rank(&r, &w->threads, 30)) return 1;
    comm = gcomp_nccl_comm(&r.nccl);
    if (gcomp_try(&comm, why, sizeof why)) printf("# %s\n", why), w->wrong++;
    gcomp_nccl_close(&r.nccl);
    return 0;
}

static void test_callbacks_do_what_is_asked_of_them(void)
{
    for (lazy = MOST_LAZY; lazy >= 0; lazy--)
        for (int world = 1; world <= MOST; world++) CHECK(run(world, body_try));
    lazy = 0;
}

static void test_collectives_in_pieces_are_right(void)
{
    for (lazy = MOST_LAZY; lazy >= 0; lazy--)
        for (int world = 1; world <= MOST; world++) {
            CHECK(run(world, body_sums));
            CHECK(run(world, body_gathers));
        }
    lazy = 0;
}

static gcomp *open_gc(const gcomp_comm *comm)
{
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_tensor tensor;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.codec = "sign";
    desc.comm = *comm;
    tensor.name = "w";
    tensor.rows = ROWS;
    tensor.cols = COLS;
    if (gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &tensor)) return NULL;
    return gc;
}

static void fill(float *x, int me)
{
    for (size_t i = 0; i < N; i++) x[i] = (float)((int)(i * 37 + 11 * (size_t)me) % 101 - 50);
}

/* Gradients on the device; the mean must be that of the same exchange over threads. */
static int body_device(worker *w)
{
    rank r;
    gcomp_comm comm;
    gcomp *gc;
    float *pinned = NULL, *device, plain[N], *grads[1] = {plain};
    void *memory = NULL;
    int status = open_rank(&r, &w->threads, 30);
    if (status) return status;
    comm = gcomp_nccl_comm(&r.nccl);
    gc = open_gc(&comm);
    if (!gc || cudaMalloc(&memory, sizeof plain) || gcomp_nccl_pin(&pinned, N)) return 1;
    device = (float *)memory;
    fill((float *)standin_turn(device), w->threads.rank);
    w->wrong += gcomp_nccl_exchange(&r.nccl, gc, &device, &pinned, NULL) != GCOMP_OK;
    memcpy(w->mean, standin_turn(device), sizeof w->mean);
    gcomp_close(gc);
    gc = open_gc(&w->threads);
    fill(plain, w->threads.rank);
    w->wrong += !gc || exchange_floats(gc, grads, NULL) != GCOMP_OK || memcmp(plain, w->mean, sizeof plain) != 0;
    gcomp_close(gc);
    gcomp_nccl_unpin(pinned);
    gcomp_nccl_unpin(NULL);
    cudaFree(memory);
    gcomp_nccl_close(&r.nccl);
    w->wrong += standin_held != 0;
    return 0;
}

static void test_gradients_on_the_device_get_the_mean(void)
{
    for (int world = 1; world <= MOST; world++) CHECK(run(world, body_device));
}

/* Every call that can fail fails once: then there is an error, no memory is lost, and the
   gradient on the device is as it was or is the mean. */
static int body_failures(worker *w)
{
    static float before[N];
    float *pinned = NULL, *device;
    void *memory = NULL;
    gcomp_comm comm;
    int errors = 0, done = 0;
    fill(before, 0);
    for (long number = 1; number < 200 && !done; number++) {
        rank r;
        gcomp *gc = NULL;
        gcomp_result result = GCOMP_OUT_OF_MEMORY;
        unsigned char bytes[40] = {0}, all[40];
        size_t list = 40;
        int status;
        standin_fails = 0;
        if (cudaMalloc(&memory, sizeof before)) return 1;
        device = (float *)memory;
        memcpy(standin_turn(device), before, sizeof before);
        standin_calls = 0;
        standin_fails = number;
        status = open_rank(&r, &w->threads, 30) || gcomp_nccl_pin(&pinned, N);
        if (!status) {
            comm = gcomp_nccl_comm(&r.nccl);
            gc = open_gc(&comm);
            if (!gc) return 1;
            result = gcomp_nccl_exchange(&r.nccl, gc, &device, &pinned, NULL);
            if (standin_calls >= number) w->wrong += result != GCOMP_CALLBACK_FAILED || r.nccl.failed == 0;
            status = comm.allgather(comm.user, bytes, all, sizeof bytes) || comm.allgatherv(comm.user, bytes, all, &list, 40)
                     || gcomp_nccl_alltoallv(comm.user, bytes, &list, all, &list);
        }
        standin_fails = 0;
        errors += status || result != GCOMP_OK;
        done = !status && result == GCOMP_OK; /* no call of this number any more */
        w->wrong += standin_calls >= number && done;
        if (result != GCOMP_OK && (!gc || !gcomp_step_number(gc)))
            w->wrong += memcmp(standin_turn(device), before, sizeof before) != 0;
        while (r.stream.first) (void)cudaStreamQuery(&r.stream); /* what an abort has left there */
        gcomp_close(gc);
        gcomp_nccl_unpin(pinned);
        pinned = NULL;
        if (r.nccl.host) gcomp_nccl_close(&r.nccl);
        cudaFree(memory);
        w->wrong += standin_held != 0;
    }
    w->wrong += !done || errors < 20;
    return 0;
}

static void test_every_call_that_fails_is_an_error(void)
{
    for (lazy = MOST_LAZY; lazy >= 0; lazy -= 3) CHECK(run(1, body_failures));
    lazy = 0;
}

/* A collective that never ends, and one that NCCL reports: both abort, and later calls fail at
   once. */
static int body_stuck(worker *w)
{
    for (int async = 0; async < 2; async++) {
        rank r;
        float data[4] = {1, 2, 3, 4};
        double from = gcomp_nccl_now();
        int expected = async ? (int)ncclInternalError : GCOMP_NCCL_TIMEOUT;
        if (open_rank(&r, &w->threads, async ? 30 : 0.1)) return 1;
        r.stream.stuck = 1;
        r.comm.async = async ? (int)ncclInternalError : 0;
        w->wrong += gcomp_nccl_allreduce(&r.nccl, data, 4, GCOMP_F32) != expected || r.comm.aborted != 1;
        w->wrong += gcomp_nccl_now() - from > 20 || r.nccl.comm != NULL;
        w->wrong += data[0] != 1 || data[3] != 4;
        w->wrong += gcomp_nccl_allgather(&r.nccl, data, data, 4) != expected || r.comm.aborted != 1;
        r.stream.stuck = 0;
        while (r.stream.first) (void)cudaStreamQuery(&r.stream);
        gcomp_nccl_close(&r.nccl);
    }
    return 0;
}

static void test_what_never_ends_is_aborted(void) { CHECK(run(1, body_stuck)); }

/* A communicator that does not block and is never done, while it begins and in a collective: both
   end after the time-out, and the data is as it was. */
static int body_never_done(worker *w)
{
    float data[4] = {1, 2, 3, 4}, all[4];
    const size_t bytes = 16;
    for (int call = 0; call < 4; call++) {
        rank r;
        int status;
        lazy = call ? 2 : -1;
        status = open_rank(&r, &w->threads, 0.1);
        if (!call) {
            w->wrong += status != GCOMP_NCCL_TIMEOUT || r.comm.aborted != 1 || standin_held != 0;
            continue;
        }
        w->wrong += status != 0;
        r.comm.lazy = -1;
        status = call == 1 ? gcomp_nccl_allreduce(&r.nccl, data, 4, GCOMP_F32)
            : call == 2    ? gcomp_nccl_allgatherv(&r.nccl, data, all, &bytes, 16)
                           : gcomp_nccl_alltoallv(&r.nccl, data, &bytes, all, &bytes);
        w->wrong += status != GCOMP_NCCL_TIMEOUT || r.comm.aborted != 1 || r.nccl.comm != NULL || data[3] != 4;
        w->wrong += gcomp_nccl_allgather(&r.nccl, data, all, 16) != GCOMP_NCCL_TIMEOUT || r.comm.aborted != 1;
        while (r.stream.first) (void)cudaStreamQuery(&r.stream);
        gcomp_nccl_close(&r.nccl);
    }
    lazy = 0;
    return 0;
}

static void test_a_communicator_that_is_never_done_is_aborted(void)
{
    CHECK(run(1, body_never_done));
}

/* Two tensors, the second one maybe skipped. */
static gcomp *open_two(const gcomp_comm *comm)
{
    gcomp *gc = open_gc(comm);
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "v";
    tensor.rows = 64;
    return gc && gcomp_add_tensor(gc, &tensor) == GCOMP_OK ? gc : NULL;
}

/* An abort frees the communicator: whatever is called later on a stream that is still not ready,
   it is not touched again. */
static int body_aborted_once(worker *w)
{
    rank r;
    gcomp_comm comm;
    gcomp *gc;
    float *pinned[2], *device[2];
    void *memory = NULL;
    if (open_rank(&r, &w->threads, 0.05)) return 1;
    comm = gcomp_nccl_comm(&r.nccl);
    gc = open_two(&comm);
    if (!gc || cudaMalloc(&memory, 4 * (N + 64)) || gcomp_nccl_pin(&pinned[0], N) || gcomp_nccl_pin(&pinned[1], 64)) return 1;
    device[0] = (float *)memory;
    device[1] = device[0] + N;
    r.stream.stuck = 1;
    for (int again = 0; again < 3; again++) {
        w->wrong += gcomp_nccl_exchange(&r.nccl, gc, device, pinned, NULL) != GCOMP_CALLBACK_FAILED;
        w->wrong += r.nccl.failed != GCOMP_NCCL_TIMEOUT || r.comm.aborted != 1 || r.nccl.comm != NULL;
    }
    r.stream.stuck = 0;
    while (r.stream.first) (void)cudaStreamQuery(&r.stream);
    gcomp_close(gc);
    gcomp_nccl_unpin(pinned[0]);
    gcomp_nccl_unpin(pinned[1]);
    cudaFree(memory);
    gcomp_nccl_close(&r.nccl);
    w->wrong += standin_held != 0;
    return 0;
}

static void test_a_communicator_is_aborted_once(void) { CHECK(run(1, body_aborted_once)); }

/* NULL on the device, with pinned memory or without: no copy, no error, and the others get their
   mean. */
static int body_skips(worker *w)
{
    rank r;
    gcomp_comm comm;
    gcomp *gc, *beside;
    static float plain_of[MOST][N];
    float *pinned[2], *device[2], *plain = plain_of[w->threads.rank], *grads[2] = {plain, NULL};
    void *memory = NULL;
    if (open_rank(&r, &w->threads, 30)) return 1;
    comm = gcomp_nccl_comm(&r.nccl);
    gc = open_two(&comm);
    beside = open_two(&w->threads);
    if (!gc || !beside || cudaMalloc(&memory, 4 * N) || gcomp_nccl_pin(&pinned[0], N)) return 1;
    device[0] = (float *)memory;
    for (int with = 0; with < 2; with++) {
        float untouched[64] = {5};
        pinned[1] = with ? untouched : NULL;
        device[1] = NULL;
        fill((float *)standin_turn(device[0]), w->threads.rank + with);
        w->wrong += gcomp_nccl_exchange(&r.nccl, gc, device, pinned, NULL) != GCOMP_OK || r.nccl.failed;
        fill(plain, w->threads.rank + with);
        w->wrong += exchange_floats(beside, grads, NULL) != GCOMP_OK || untouched[0] != 5;
        w->wrong += memcmp(plain, standin_turn(device[0]), 4 * N) != 0;
    }
    gcomp_close(gc);
    gcomp_close(beside);
    gcomp_nccl_unpin(pinned[0]);
    cudaFree(memory);
    gcomp_nccl_close(&r.nccl);
    w->wrong += standin_held != 0;
    return 0;
}

static void test_a_tensor_without_a_gradient_is_skipped(void)
{
    CHECK(run(1, body_skips));
    CHECK(run(3, body_skips));
}

static int body_arguments(worker *w)
{
    rank r;
    w->wrong += open_rank(&r, &w->threads, 0) != (int)ncclInvalidArgument;
    w->threads.world = 33; /* more than the stage has room for */
    w->wrong += open_rank(&r, &w->threads, 1) != (int)ncclInvalidArgument;
    return 0;
}

static void test_open_refuses_no_time_and_too_many(void) { CHECK(run(1, body_arguments)); }

int main(void)
{
    RUN(test_callbacks_do_what_is_asked_of_them);
    RUN(test_collectives_in_pieces_are_right);
    RUN(test_gradients_on_the_device_get_the_mean);
    RUN(test_every_call_that_fails_is_an_error);
    RUN(test_what_never_ends_is_aborted);
    if (MOST_LAZY) RUN(test_a_communicator_that_is_never_done_is_aborted); /* NCCL before 2.14 has none */
    RUN(test_a_communicator_is_aborted_once);
    RUN(test_a_tensor_without_a_gradient_is_skipped);
    RUN(test_open_refuses_no_time_and_too_many);
    return test_end();
}
