/* gcomp_nccl.h - a transport for gcomp.h: workers are the ranks of an NCCL communicator. Copy it,
   change it.

   Licence: as gcomp.h. Compile with the headers of CUDA and NCCL 2.8 or later. RCCL has the same
   functions.

       gcomp_nccl nccl;
       float *pinned[TENSORS];
       if (gcomp_nccl_open(&nccl, comm, stream, 30.0)) return 1;  comm is yours; stream: of its own
       desc.comm = gcomp_nccl_comm(&nccl);
       gcomp_nccl_pin(&pinned[i], elements);                      for each tensor
       ...
       gcomp_nccl_exchange(&nccl, gc, device_gradients, pinned, NULL);
       ...
       gcomp_nccl_close(&nccl);                                   comm and stream stay open

   gcomp compresses on the CPU. Gradients are copied from the device into pinned host memory and
   compressed there. What is sent is copied to the device again, on the stream, because NCCL sends
   from there. This pays if the network between nodes is slower than PCIe by more than the
   compression gains. Inside a node use NCCL alone.

   If a rank vanishes, the others would wait in a collective for ever. Here they ask NCCL for errors
   while they wait, and abort the communicator after `timeout` seconds. That frees the communicator:
   nccl.comm is NULL then. Do not destroy or abort it again; make a new one. A communicator that
   blocks can also wait inside a call of NCCL, where nobody looks at a clock: the first collective
   connects the ranks. One that does not block (since NCCL 2.14) returns from each call at once, and
   the time-out holds for all that it does, its beginning included:

       ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
       config.blocking = 0;
       ncclCommInitRankConfig(&comm, world, id, rank, &config);   ncclInProgress is no error

   Callbacks return the ncclResult_t, or 1000 + the cudaError_t. Sums have the same bits on all
   ranks if NCCL's sums do. NCCL sums integers of 8 and 32 bits, not of 16: gcomp_open refuses
   intsum:bits=16. It sums fp16, and since 2.10 bf16, and rounds on the way, once for each rank
   that a sum passes. */

#ifndef GCOMP_NCCL_H
#define GCOMP_NCCL_H

#if defined(__STRICT_ANSI__) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* for -std=c99, if no header of the system stands before */
#endif

#include "gcomp.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef CLOCK_MONOTONIC
#error "gcomp_nccl.h needs POSIX: -std=gnu99, or _POSIX_C_SOURCE 200809L before all includes"
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

/* Bytes of pinned host memory, and of device memory, through which collectives pass in pieces. */
#ifndef GCOMP_NCCL_STAGE
#define GCOMP_NCCL_STAGE ((size_t)32 << 20)
#endif

#define GCOMP_NCCL_CUDA 1000    /* added to a cudaError_t */
#define GCOMP_NCCL_TIMEOUT 2000 /* and the communicator is aborted */

/* What a communicator that does not block says while it works. NCCL has it since 2.14. */
#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE >= 21400
#define GCOMP_NCCL_BUSY ncclInProgress
#else
#define GCOMP_NCCL_BUSY ncclSuccess
#endif

/* Since 2.10 it has a type of bf16. */
#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE >= 21000
#define GCOMP_NCCL_BF16 1
#else
#define GCOMP_NCCL_BF16 0
#endif

typedef struct gcomp_nccl {
    ncclComm_t comm; /* NULL: it was aborted */
    cudaStream_t stream;
    int rank;
    int world;
    int failed; /* the first error; all later calls return it */
    double timeout;
    unsigned char *host;   /* [GCOMP_NCCL_STAGE], pinned */
    unsigned char *device; /* [GCOMP_NCCL_STAGE] */
    void **grads;          /* [grads_room], of an exchange */
    size_t grads_room;
} gcomp_nccl;

static inline double gcomp_nccl_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int gcomp_nccl_cuda(cudaError_t error)
{
    return error == cudaSuccess ? 0 : GCOMP_NCCL_CUDA + (int)error;
}

/* Ends what waits on the device, and frees the communicator. Returns the error. */
static inline int gcomp_nccl_abort(gcomp_nccl *n, int error)
{
    n->failed = error;
    ncclCommAbort(n->comm);
    n->comm = NULL;
    return error;
}

/* What a call of NCCL has led to: waits while a communicator that does not block is at it. Only
   then is its work on the stream, and only then may another call follow. Returns 0, an
   ncclResult_t, or GCOMP_NCCL_TIMEOUT with the communicator aborted. */
static inline int gcomp_nccl_settle(gcomp_nccl *n, ncclResult_t result)
{
    const double then = gcomp_nccl_now() + n->timeout;
    while (result == GCOMP_NCCL_BUSY && result != ncclSuccess) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(n->comm, &state);
        result = asked == ncclSuccess ? state : asked;
        if (result != GCOMP_NCCL_BUSY) break;
        if (gcomp_nccl_now() >= then) return gcomp_nccl_abort(n, GCOMP_NCCL_TIMEOUT);
        sched_yield();
    }
    return (int)result;
}

/* The same inside a group, whose end tells. */
static inline int gcomp_nccl_grouped(ncclResult_t result)
{
    return result == GCOMP_NCCL_BUSY ? 0 : (int)result;
}

/* Waits for what is on the stream, and looks at NCCL meanwhile. */
static inline int gcomp_nccl_wait(gcomp_nccl *n)
{
    double then = gcomp_nccl_now() + n->timeout;
    for (;;) {
        cudaError_t state = cudaStreamQuery(n->stream);
        ncclResult_t error = ncclSuccess, asked;
        if (state == cudaSuccess) return 0;
        if (state != cudaErrorNotReady) return n->failed = gcomp_nccl_cuda(state);
        asked = ncclCommGetAsyncError(n->comm, &error);
        if (asked != ncclSuccess) error = asked;
        if (error != ncclSuccess && error != GCOMP_NCCL_BUSY)
            return gcomp_nccl_abort(n, (int)error);
        if (gcomp_nccl_now() >= then) return gcomp_nccl_abort(n, GCOMP_NCCL_TIMEOUT);
        sched_yield();
    }
}

static inline int gcomp_nccl_copy(gcomp_nccl *n, void *to, const void *from, size_t bytes,
                                  enum cudaMemcpyKind kind)
{
    return bytes ? gcomp_nccl_cuda(cudaMemcpyAsync(to, from, bytes, kind, n->stream)) : 0;
}

/* The end of a call: waits for the stream, also after an error, so that nothing is left running.
   Returns the first error. */
static inline int gcomp_nccl_end(gcomp_nccl *n, int error)
{
    int late = n->failed ? n->failed : gcomp_nccl_wait(n);
    if (error && !n->failed) n->failed = error;
    return error ? error : late;
}

/* Takes pinned host memory for a gradient. Returns 0 or an error. */
static inline int gcomp_nccl_pin(float **memory, size_t elements)
{
    void *p = NULL;
    int error = gcomp_nccl_cuda(cudaMallocHost(&p, elements * sizeof(float)));
    *memory = error ? NULL : (float *)p;
    return error;
}

static inline void gcomp_nccl_unpin(float *memory)
{
    if (memory) cudaFreeHost(memory);
}

static inline void gcomp_nccl_close(gcomp_nccl *n)
{
    if (n->device) cudaFree(n->device);
    if (n->host) cudaFreeHost(n->host);
    free(n->grads);
    n->device = n->host = NULL;
    n->grads = NULL;
    n->grads_room = 0;
}

/* Takes the memory. The current device must be that of the communicator. timeout: seconds that a
   collective may take, and that a communicator that does not block may take to begin. Returns 0, an
   ncclResult_t, 1000 + a cudaError_t, or GCOMP_NCCL_TIMEOUT, with the communicator aborted. On
   error there is nothing to close. */
static inline int gcomp_nccl_open(gcomp_nccl *n, ncclComm_t comm, cudaStream_t stream,
                                  double timeout)
{
    void *p = NULL;
    int error;
    memset(n, 0, sizeof *n);
    n->comm = comm;
    n->stream = stream;
    n->timeout = timeout;
    error = timeout > 0 ? 0 : (int)ncclInvalidArgument;
    if (!error) error = gcomp_nccl_settle(n, GCOMP_NCCL_BUSY); /* it may still connect */
    if (!error) error = (int)ncclCommUserRank(comm, &n->rank);
    if (!error) error = (int)ncclCommCount(comm, &n->world);
    if (!error && GCOMP_NCCL_STAGE / 32 < (size_t)n->world)
        error = (int)ncclInvalidArgument; /* no room for 16 bytes of each rank */
    if (!error) error = gcomp_nccl_cuda(cudaMalloc(&p, GCOMP_NCCL_STAGE));
    if (!error) {
        n->device = (unsigned char *)p;
        error = gcomp_nccl_cuda(cudaMallocHost(&p, GCOMP_NCCL_STAGE));
    }
    if (!error) n->host = (unsigned char *)p;
    if (error) gcomp_nccl_close(n);
    return error;
}

/* data[count], elements of `bytes` bytes <- sum or maximum over the ranks, in place. */
static inline int gcomp_nccl_reduce(gcomp_nccl *n, void *data, size_t count, size_t bytes,
                                    ncclDataType_t type, ncclRedOp_t op)
{
    unsigned char *at = (unsigned char *)data;
    int error = n->failed;
    while (count && !error) {
        size_t most = GCOMP_NCCL_STAGE / bytes, piece = count < most ? count : most;
        memcpy(n->host, at, piece * bytes);
        error = gcomp_nccl_copy(n, n->device, n->host, piece * bytes, cudaMemcpyHostToDevice);
        if (!error)
            error = gcomp_nccl_settle(
                n, ncclAllReduce(n->device, n->device, piece, type, op, n->comm, n->stream));
        if (!error)
            error = gcomp_nccl_copy(n, n->host, n->device, piece * bytes, cudaMemcpyDeviceToHost);
        error = gcomp_nccl_end(n, error);
        if (!error) memcpy(at, n->host, piece * bytes);
        at += piece * bytes;
        count -= piece;
    }
    return error;
}

/* data[count] <- sum over the ranks, in place. */
static inline int gcomp_nccl_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    gcomp_nccl *n = (gcomp_nccl *)user;
    if (dtype == GCOMP_F32) return gcomp_nccl_reduce(n, data, count, 4, ncclFloat32, ncclSum);
    if (dtype == GCOMP_I8) return gcomp_nccl_reduce(n, data, count, 1, ncclInt8, ncclSum);
    if (dtype == GCOMP_I32) return gcomp_nccl_reduce(n, data, count, 4, ncclInt32, ncclSum);
    if (dtype == GCOMP_F16) return gcomp_nccl_reduce(n, data, count, 2, ncclFloat16, ncclSum);
#if GCOMP_NCCL_BF16
    if (dtype == GCOMP_BF16) return gcomp_nccl_reduce(n, data, count, 2, ncclBfloat16, ncclSum);
#endif
    return (int)ncclInvalidArgument;
}

/* data[count] <- the largest of the ranks, in place. */
static inline int gcomp_nccl_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_nccl_reduce((gcomp_nccl *)user, data, count, 4, ncclFloat32, ncclMax);
}

/* Bytes of each rank that a gather moves at a time: the stage holds one piece of this rank to send,
   and one of each rank to receive. */
static inline size_t gcomp_nccl_piece(const gcomp_nccl *n)
{
    return GCOMP_NCCL_STAGE / ((size_t)n->world + 1) / 16 * 16;
}

/* all[world * bytes] <- mine[bytes] of every rank, in rank order. */
static inline int gcomp_nccl_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    gcomp_nccl *n = (gcomp_nccl *)user;
    size_t most = gcomp_nccl_piece(n), world = (size_t)n->world;
    int error = n->failed;
    for (size_t at = 0; at < bytes && !error; at += most) {
        size_t piece = bytes - at < most ? bytes - at : most;
        memcpy(n->host, (const unsigned char *)mine + at, piece);
        error = gcomp_nccl_copy(n, n->device, n->host, piece, cudaMemcpyHostToDevice);
        if (!error)
            error = gcomp_nccl_settle(n, ncclAllGather(n->device, n->device + most, piece,
                                                       ncclUint8, n->comm, n->stream));
        if (!error)
            error = gcomp_nccl_copy(n, n->host + most, n->device + most, world * piece,
                                    cudaMemcpyDeviceToHost);
        error = gcomp_nccl_end(n, error);
        for (size_t w = 0; w < world && !error; w++)
            memcpy((unsigned char *)all + w * bytes + at, n->host + most + w * piece, piece);
    }
    return error;
}

/* What is left of `bytes` bytes from `at` on, at most one piece. */
static inline size_t gcomp_nccl_rest(size_t bytes, size_t at, size_t most)
{
    size_t rest = bytes > at ? bytes - at : 0;
    return rest < most ? rest : most;
}

/* all + w * stride <- bytes[w] bytes of rank w, for all w: a broadcast from each, as one group. */
static inline int gcomp_nccl_allgatherv(void *user, const void *mine, void *all,
                                        const size_t *bytes, size_t stride)
{
    gcomp_nccl *n = (gcomp_nccl *)user;
    size_t most = gcomp_nccl_piece(n), longest = 0;
    size_t world = (size_t)n->world, rank = (size_t)n->rank;
    int error = n->failed;
    for (size_t w = 0; w < world; w++) {
        longest = bytes[w] > longest ? bytes[w] : longest;
        if (bytes[w] > stride) return (int)ncclInvalidArgument; /* the same on all: the sizes are */
    }
    /* All places come back from the device in one copy: make them no wider than needed. */
    if (longest < most) most = (longest + 15) / 16 * 16;
    for (size_t at = 0; at < longest && !error; at += most) {
        size_t own = gcomp_nccl_rest(bytes[rank], at, most);
        if (own) memcpy(n->host, (const unsigned char *)mine + at, own);
        error = gcomp_nccl_copy(n, n->device, n->host, own, cudaMemcpyHostToDevice);
        if (!error) error = (int)ncclGroupStart();
        if (!error) {
            int ended;
            for (size_t w = 0; w < world && !error; w++) {
                size_t piece = gcomp_nccl_rest(bytes[w], at, most);
                if (piece)
                    error = gcomp_nccl_grouped(
                        ncclBroadcast(n->device, n->device + (w + 1) * most, piece, ncclUint8,
                                      (int)w, n->comm, n->stream));
            }
            ended = gcomp_nccl_settle(n, ncclGroupEnd());
            error = error ? error : ended;
        }
        if (!error)
            error = gcomp_nccl_copy(n, n->host + most, n->device + most, world * most,
                                    cudaMemcpyDeviceToHost);
        error = gcomp_nccl_end(n, error);
        for (size_t w = 0; w < world && !error; w++) {
            size_t piece = gcomp_nccl_rest(bytes[w], at, most);
            if (piece)
                memcpy((unsigned char *)all + w * stride + at, n->host + (w + 1) * most, piece);
        }
    }
    return error;
}

/* The sends and receives of one piece between each two ranks, as one group. */
static inline int gcomp_nccl_swap(gcomp_nccl *n, const size_t *sent, const size_t *awaited,
                                  size_t at, size_t most)
{
    size_t world = (size_t)n->world, half = world * most, out = 0, in = 0;
    int error = (int)ncclGroupStart(), ended;
    if (error) return error;
    for (size_t w = 0; w < world && !error; w++) {
        size_t piece = gcomp_nccl_rest(sent[w], at, most);
        if (piece)
            error = gcomp_nccl_grouped(
                ncclSend(n->device + out, piece, ncclUint8, (int)w, n->comm, n->stream));
        out += piece;
        piece = gcomp_nccl_rest(awaited[w], at, most);
        if (piece && !error)
            error = gcomp_nccl_grouped(
                ncclRecv(n->device + half + in, piece, ncclUint8, (int)w, n->comm, n->stream));
        in += piece;
    }
    ended = gcomp_nccl_settle(n, ncclGroupEnd());
    return error ? error : ended;
}

/* Rank w gets sent[w] bytes of send, and awaited[w] bytes come from rank w; both lie back to back
   in rank order. Both ranks of a pair know the sizes, and so which pieces they exchange. */
static inline int gcomp_nccl_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                                       const size_t *awaited)
{
    gcomp_nccl *n = (gcomp_nccl *)user;
    size_t world = (size_t)n->world, most = GCOMP_NCCL_STAGE / (2 * world) / 16 * 16;
    size_t half = world * most, longest = 0;
    int error = n->failed;
    for (size_t w = 0; w < world; w++) {
        longest = sent[w] > longest ? sent[w] : longest;
        longest = awaited[w] > longest ? awaited[w] : longest;
    }
    for (size_t at = 0; at < longest && !error; at += most) {
        const unsigned char *from = (const unsigned char *)send;
        unsigned char *to = (unsigned char *)recv;
        size_t out = 0, in = 0;
        for (size_t w = 0; w < world; from += sent[w++]) {
            size_t piece = gcomp_nccl_rest(sent[w], at, most);
            if (piece) memcpy(n->host + out, from + at, piece);
            out += piece;
        }
        error = gcomp_nccl_copy(n, n->device, n->host, out, cudaMemcpyHostToDevice);
        if (!error) error = gcomp_nccl_swap(n, sent, awaited, at, most);
        for (size_t w = 0; w < world; w++) in += gcomp_nccl_rest(awaited[w], at, most);
        if (!error)
            error = gcomp_nccl_copy(n, n->host + half, n->device + half, in,
                                    cudaMemcpyDeviceToHost);
        error = gcomp_nccl_end(n, error);
        in = 0;
        for (size_t w = 0; w < world && !error; to += awaited[w++]) {
            size_t piece = gcomp_nccl_rest(awaited[w], at, most);
            if (piece) memcpy(to + at, n->host + half + in, piece);
            in += piece;
        }
    }
    return error;
}

/* The transport, for gcomp_desc.comm. Valid until it is closed or moved. */
static inline gcomp_comm gcomp_nccl_comm(gcomp_nccl *n)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.user = n;
    comm.rank = n->rank;
    comm.world = n->world;
    comm.allreduce = gcomp_nccl_allreduce;
    comm.allgather = gcomp_nccl_allgather;
    comm.allgatherv = gcomp_nccl_allgatherv;
    comm.allreduce_max = gcomp_nccl_allreduce_max;
    comm.alltoallv = gcomp_nccl_alltoallv;
    comm.allreduce_dtypes = 1u << GCOMP_F16 | (unsigned)GCOMP_NCCL_BF16 << GCOMP_BF16 |
        1u << GCOMP_I8 | 1u << GCOMP_I32;
    return comm;
}

/* Makes room for the pointers of an exchange. 0: no memory. */
static inline int gcomp_nccl_reserve(gcomp_nccl *n, size_t count)
{
    void **larger;
    if (count <= n->grads_room) return 1;
    larger = (void **)realloc(n->grads, count * sizeof *larger);
    if (!larger) return 0;
    n->grads = larger;
    n->grads_room = count;
    return 1;
}

/* gcomp_exchange for gradients on the device.
     device[i]  <- mean over the ranks; NULL on all ranks: tensor i is skipped
     pinned[i]  as many floats from gcomp_nccl_pin; not read for a tensor that is skipped
   The gradients must be complete, or their kernels must be ordered before the stream. Returns as
   gcomp_exchange. GCOMP_CALLBACK_FAILED also stands for errors of CUDA, which are in n->failed;
   after one of them every later exchange fails too. After an error before the commit the gradients
   on the device are as they were. */
static inline gcomp_result gcomp_nccl_exchange(gcomp_nccl *n, gcomp *gc, float *const *device,
                                               float *const *pinned, const gcomp_step *step)
{
    gcomp_tensor_info info;
    size_t count = 0;
    gcomp_result result;
    int error = n->failed;
    while (gcomp_tensor_get(gc, count, &info) == GCOMP_OK) count++;
    if (!error && !gcomp_nccl_reserve(n, count + 1)) return GCOMP_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && !error; i++) {
        n->grads[i] = device[i] ? pinned[i] : NULL;
        if (device[i] && gcomp_tensor_get(gc, i, &info) == GCOMP_OK)
            error = gcomp_nccl_copy(n, pinned[i], device[i], info.elements * sizeof(float),
                                    cudaMemcpyDeviceToHost);
    }
    if (gcomp_nccl_end(n, error)) return GCOMP_CALLBACK_FAILED;
    result = gcomp_exchange(gc, n->grads, step);
    if (result != GCOMP_OK) return result;
    for (size_t i = 0; i < count && !error; i++)
        if (device[i] && gcomp_tensor_get(gc, i, &info) == GCOMP_OK)
            error = gcomp_nccl_copy(n, device[i], pinned[i], info.elements * sizeof(float),
                                    cudaMemcpyHostToDevice);
    return gcomp_nccl_end(n, error) ? GCOMP_CALLBACK_FAILED : GCOMP_OK;
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_NCCL_H */
