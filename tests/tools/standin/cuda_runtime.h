/* cuda_runtime.h - stands in for CUDA's header in tests: the functions that examples/adapters/gcomp_nccl.h uses, over host memory. What is
   put on a stream happens when the stream is asked, one operation each time, so that a missing wait shows; the address of device
   memory is not one of the process, so that the host cannot touch it by mistake. */

#ifndef STANDIN_CUDA_RUNTIME_H
#define STANDIN_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
#define STANDIN_LOCAL static thread_local
#else
#define STANDIN_LOCAL static _Thread_local
#endif

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotReady = 600
} cudaError_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

struct standin_op;
typedef struct CUstream_st {
    struct standin_op *first, *last;
    int stuck; /* 1: never ready */
    int error; /* of what has run */
} *cudaStream_t;

#define STANDIN_LATER 77 /* what an operation returns that cannot be carried out yet */

typedef struct standin_op {
    struct standin_op *next;
    int (*run)(struct standin_op *op);
    void *to;
    const void *from;
    size_t bytes;
    int type, kind, peer;
    void *comm;
} standin_op;

/* Counts calls that can fail; the one of this number does. 0: none. */
STANDIN_LOCAL long standin_calls, standin_fails;
STANDIN_LOCAL long standin_held; /* allocations not freed */

static inline int standin_failure(void) { return ++standin_calls == standin_fails; }

/* Device memory is told as an address with its highest bits turned, and found again. */
static inline void *standin_turn(const void *p) { return (void *)((uintptr_t)p ^ (uintptr_t)0x5aull << 56); }
static inline int standin_is_device(const void *p) { return ((uintptr_t)p >> 56) == 0x5a; }

static inline void standin_push(cudaStream_t stream, const standin_op *op)
{
    standin_op *copy = (standin_op *)malloc(sizeof *copy);
    if (!copy) abort();
    *copy = *op;
    copy->next = NULL;
    if (stream->last) stream->last->next = copy;
    else stream->first = copy;
    stream->last = copy;
}

static inline cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    void *p = standin_failure() ? NULL : malloc(bytes ? bytes : 1);
    if (!p) return cudaErrorMemoryAllocation;
    standin_held++;
    *memory = standin_turn(p);
    return cudaSuccess;
}

static inline cudaError_t cudaFree(void *memory)
{
    free(standin_turn(memory));
    standin_held--;
    return cudaSuccess;
}

static inline cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    *memory = standin_failure() ? NULL : malloc(bytes ? bytes : 1);
    if (!*memory) return cudaErrorMemoryAllocation;
    standin_held++;
    return cudaSuccess;
}

static inline cudaError_t cudaFreeHost(void *memory)
{
    free(memory);
    standin_held--;
    return cudaSuccess;
}

static inline int standin_copy(standin_op *op)
{
    if (op->kind == (int)cudaMemcpyHostToDevice) memcpy(standin_turn(op->to), op->from, op->bytes);
    else memcpy(op->to, standin_turn(op->from), op->bytes);
    return 0;
}

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    standin_op op;
    memset(&op, 0, sizeof op);
    if (standin_failure()) return cudaErrorInvalidValue;
    if (standin_is_device(to) != (kind == cudaMemcpyHostToDevice) || standin_is_device(from) != (kind == cudaMemcpyDeviceToHost))
        return cudaErrorInvalidValue;
    op.run = standin_copy;
    op.to = to;
    op.from = from;
    op.bytes = bytes;
    op.kind = (int)kind;
    standin_push(stream, &op);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    standin_op *op = stream->first;
    if (stream->stuck) return cudaErrorNotReady;
    if (!op) {
        if (standin_failure()) stream->error = 1;
        return stream->error ? cudaErrorInvalidValue : cudaSuccess;
    }
    {
        int result = op->run(op);
        if (result == STANDIN_LATER) return cudaErrorNotReady;
        stream->error |= result;
    }
    stream->first = op->next;
    if (!stream->first) stream->last = NULL;
    free(op);
    return cudaErrorNotReady;
}

#endif
