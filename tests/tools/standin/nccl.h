/* nccl.h - stands in for NCCL's header in tests: the functions that examples/adapters/gcomp_nccl.h uses, over examples/adapters/gcomp_threads.h: a
   rank is a thread. What is called goes onto the stream; sends and receives stand in a group. */

#ifndef STANDIN_NCCL_H
#define STANDIN_NCCL_H

#include "cuda_runtime.h"
#include "gcomp_threads.h"

#ifndef NCCL_VERSION_CODE /* that a test does not ask for an older one */
#define NCCL_VERSION_CODE 21805
#endif

typedef enum {
    ncclSuccess = 0,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
#if NCCL_VERSION_CODE >= 21400
    ncclInProgress = 7,
#endif
    ncclInvalidUsage = 5
} ncclResult_t;
typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclFloat16 = 6,
#if NCCL_VERSION_CODE >= 21000
    ncclBfloat16 = 9,
#endif
    ncclFloat32 = 7
} ncclDataType_t;
typedef enum { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;

typedef struct ncclComm {
    gcomp_comm threads;
    int async;   /* what ncclCommGetAsyncError says */
    int aborted;
    /* A communicator that does not block: after each call that puts something on a stream, and after its beginning, it has to be
       asked so many times until it is done. Then what was called is on the stream. -1: it is never done. */
    int lazy, busy;
    standin_op held[64];
    int held_count;
} *ncclComm_t;

STANDIN_LOCAL int standin_grouped; /* depth */
STANDIN_LOCAL standin_op standin_group[64];
STANDIN_LOCAL int standin_group_count;

#if NCCL_VERSION_CODE >= 21400
#define STANDIN_BUSY ncclInProgress
#else
#define STANDIN_BUSY ncclInternalError
#endif

static inline ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->threads.rank;
    if (comm->busy) return STANDIN_BUSY;
    return standin_failure() ? ncclInternalError : ncclSuccess;
}

static inline ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->threads.world;
    if (comm->busy) return STANDIN_BUSY;
    return standin_failure() ? ncclInternalError : ncclSuccess;
}

static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = (ncclResult_t)comm->async;
    if (comm->busy > 0 && --comm->busy == 0) {
        for (int i = 0; i < comm->held_count; i++) standin_push((cudaStream_t)(void *)comm->held[i].next, &comm->held[i]);
        comm->held_count = 0;
    }
    if (comm->busy && !comm->async) *error = STANDIN_BUSY;
    return standin_failure() ? ncclInternalError : ncclSuccess;
}

/* What was called goes onto the stream, or waits until the communicator has been asked. */
static inline ncclResult_t standin_launch(ncclComm_t comm, cudaStream_t stream, const standin_op *op)
{
    if (!comm->lazy) {
        standin_push(stream, op);
        return ncclSuccess;
    }
    if (comm->held_count == 64) return ncclInvalidUsage;
    comm->held[comm->held_count] = *op;
    comm->held[comm->held_count++].next = (standin_op *)(void *)stream;
    comm->busy = comm->lazy;
    return STANDIN_BUSY;
}

static inline ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->aborted++;
    return ncclSuccess;
}

/* Queues an operation, or keeps it until its group ends. Device memory only. */
static inline ncclResult_t standin_enqueue(int (*run)(standin_op *), const void *from, void *to, size_t bytes, int type, int kind,
                                           int peer, ncclComm_t comm, cudaStream_t stream)
{
    standin_op op;
    memset(&op, 0, sizeof op);
    if (standin_failure()) return ncclInternalError;
    if (comm->busy) return ncclInvalidUsage; /* the call before is not done */
    if (comm->aborted || (from && !standin_is_device(from)) || (to && !standin_is_device(to))) return ncclInvalidUsage;
    op.run = run;
    op.from = from ? standin_turn(from) : NULL;
    op.to = to ? standin_turn(to) : NULL;
    op.bytes = bytes;
    op.type = type;
    op.kind = kind;
    op.peer = peer;
    op.comm = comm;
    if (!standin_grouped) return standin_launch(comm, stream, &op);
    if (standin_group_count == 64) return ncclInvalidUsage;
    op.next = (standin_op *)(void *)stream;
    standin_group[standin_group_count++] = op;
    return comm->lazy ? STANDIN_BUSY : ncclSuccess;
}

static inline int standin_run_reduce(standin_op *op)
{
    const gcomp_comm *threads = &((ncclComm_t)op->comm)->threads;
    gcomp_dtype dtype = op->type == (int)ncclFloat32   ? GCOMP_F32
                        : op->type == (int)ncclInt8    ? GCOMP_I8
                        : op->type == (int)ncclFloat16 ? GCOMP_F16
                        : op->type == 9                ? GCOMP_BF16
                                                       : GCOMP_I32;
    size_t count = op->bytes;
    if (op->from != op->to) return 1; /* only in place here */
    if (op->kind == (int)ncclMax) return threads->allreduce_max(threads->user, (float *)op->to, count);
    return threads->allreduce(threads->user, op->to, count, dtype);
}

static inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                         ncclComm_t comm, cudaStream_t stream)
{
    return standin_enqueue(standin_run_reduce, from, to, count, (int)type, (int)op, 0, comm, stream);
}

static inline int standin_run_gather(standin_op *op)
{
    const gcomp_comm *threads = &((ncclComm_t)op->comm)->threads;
    return threads->allgather(threads->user, op->from, op->to, op->bytes);
}

static inline ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                                         cudaStream_t stream)
{
    if (type != ncclUint8) return ncclInvalidArgument;
    return standin_enqueue(standin_run_gather, from, to, count, (int)type, 0, 0, comm, stream);
}

static inline int standin_run_broadcast(standin_op *op)
{
    const gcomp_comm *threads = &((ncclComm_t)op->comm)->threads;
    if (threads->rank == op->peer) memmove(op->to, op->from, op->bytes);
    return gcomp_threads_broadcast(threads->user, op->to, op->bytes, op->peer);
}

static inline ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream)
{
    if (type != ncclUint8) return ncclInvalidArgument;
    return standin_enqueue(standin_run_broadcast, from, to, count, (int)type, 0, root, comm, stream);
}

/* What was sent and not yet received, oldest first. */
typedef struct standin_mail {
    struct standin_mail *next;
    void *group;
    int from, to;
    size_t bytes;
    unsigned char *data;
} standin_mail;

static standin_mail *standin_mails;
static pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;

/* Drops what nobody has received: a failed call leaves it, and a later group may have the address of
   an earlier one. */
static inline void standin_drop_mails(void)
{
    while (standin_mails) {
        standin_mail *mail = standin_mails;
        standin_mails = mail->next;
        free(mail->data);
        free(mail);
    }
}

static inline void *standin_group_of(const gcomp_comm *threads) { return ((gcomp_threads_member *)threads->user)->group; }

static inline int standin_run_send(standin_op *op)
{
    const gcomp_comm *threads = &((ncclComm_t)op->comm)->threads;
    standin_mail *mail = (standin_mail *)calloc(1, sizeof *mail), **end = &standin_mails;
    if (!mail || !(mail->data = (unsigned char *)malloc(op->bytes))) return free(mail), 1;
    memcpy(mail->data, op->from, op->bytes);
    mail->group = standin_group_of(threads);
    mail->from = threads->rank;
    mail->to = op->peer;
    mail->bytes = op->bytes;
    pthread_mutex_lock(&standin_lock);
    while (*end) end = &(*end)->next;
    *end = mail;
    pthread_mutex_unlock(&standin_lock);
    return 0;
}

static inline int standin_run_receive(standin_op *op)
{
    const gcomp_comm *threads = &((ncclComm_t)op->comm)->threads;
    standin_mail **at = &standin_mails, *mail;
    int error;
    pthread_mutex_lock(&standin_lock);
    while (*at && ((*at)->group != standin_group_of(threads) || (*at)->from != op->peer || (*at)->to != threads->rank))
        at = &(*at)->next;
    mail = *at;
    if (mail) *at = mail->next;
    pthread_mutex_unlock(&standin_lock);
    if (!mail) return STANDIN_LATER;
    error = mail->bytes != op->bytes;
    if (!error) memcpy(op->to, mail->data, op->bytes);
    free(mail->data);
    free(mail);
    return error;
}

static inline ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                    cudaStream_t stream)
{
    if (type != ncclUint8 || !standin_grouped) return ncclInvalidUsage;
    return standin_enqueue(standin_run_send, from, NULL, count, (int)type, 0, peer, comm, stream);
}

static inline ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclUint8 || !standin_grouped) return ncclInvalidUsage;
    return standin_enqueue(standin_run_receive, NULL, to, count, (int)type, 0, peer, comm, stream);
}

static inline ncclResult_t ncclGroupStart(void)
{
    if (standin_failure()) return ncclInternalError;
    standin_grouped++;
    standin_group_count = 0;
    return ncclSuccess;
}

static inline ncclResult_t ncclGroupEnd(void)
{
    int count = standin_group_count;
    ncclResult_t result = ncclSuccess;
    standin_grouped--;
    standin_group_count = 0;
    if (standin_failure()) return ncclInternalError;
    for (int sends = 1; sends >= 0; sends--) /* in a group a send does not wait for a receive that stands before it */
        for (int i = 0; i < count; i++)
            if ((standin_group[i].run == standin_run_send) == sends) {
                const ncclResult_t one = standin_launch((ncclComm_t)standin_group[i].comm, (cudaStream_t)(void *)standin_group[i].next, &standin_group[i]);
                if (one != ncclSuccess) result = one;
            }
    return result;
}

#endif
