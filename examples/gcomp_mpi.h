/* gcomp_mpi.h - a transport for gcomp.h: workers are the ranks of an MPI communicator. Copy it, change it.

   Licence: as gcomp.h. Compile with mpicc, MPI 2.2 or later.

       gcomp_mpi mpi;
       MPI_Init(&argc, &argv);
       if (gcomp_mpi_open(&mpi, MPI_COMM_WORLD)) MPI_Abort(MPI_COMM_WORLD, 1);
       desc.comm = gcomp_mpi_comm(&mpi);
       ...
       gcomp_mpi_close(&mpi);
       MPI_Finalize();

   On two levels (desc.node), sums within a machine, compressed exchange between machines:

       MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);
       if (gcomp_mpi_open_levels(&node, &between, MPI_COMM_WORLD, shared, &desc)) MPI_Abort(MPI_COMM_WORLD, 1);

   Any communicator of one group will do, such as a part of the ranks that MPI_Comm_split made. It is duplicated,
   so that nothing here meets the user's own messages, and its errors are returned instead of ending the program;
   callbacks return the MPI error code. Counts of MPI are int: larger ones go in pieces. Sums have the same bits on
   all ranks as far as MPI_Allreduce has (Open MPI, MPICH: yes), and after gcomp_mpi_sum_in_order those of
   gcomp_threads.h and gcomp_sockets.h. A rank that dies ends the job: mpirun kills the others. */

#ifndef GCOMP_MPI_H
#define GCOMP_MPI_H

#include "gcomp.h"

#include <limits.h>
#include <mpi.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Largest count given to one MPI call, at most INT_MAX; tests set a small one. */
#ifndef GCOMP_MPI_PIECE
#define GCOMP_MPI_PIECE ((size_t)1 << 30)
#endif

/* Elements of each rank that are summed in rank order at a time. */
#ifndef GCOMP_MPI_ORDER
#define GCOMP_MPI_ORDER ((size_t)1 << 18)
#endif

typedef struct gcomp_mpi {
    MPI_Comm comm;
    int rank;
    int world;
    int *counts; /* [world], of MPI_Allgatherv */
    int *places; /* [world] */
    MPI_Request *requests; /* [2 * world], of alltoallv */
    float *order; /* [world][GCOMP_MPI_ORDER] of sums in rank order; NULL: MPI_Allreduce */
    int *shards;  /* [2][world] of these: counts and places of what comes in */
} gcomp_mpi;

static inline void gcomp_mpi_close(gcomp_mpi *mpi)
{
    if (mpi->comm != MPI_COMM_NULL)
        MPI_Comm_free(&mpi->comm);
    free(mpi->counts);
    free(mpi->places);
    free(mpi->requests);
    mpi->requests = NULL;
    free(mpi->order);
    free(mpi->shards);
    mpi->order = NULL;
    mpi->shards = NULL;
    mpi->counts = NULL;
    mpi->places = NULL;
}

/* Duplicates the communicator; collective. Returns 0 or an MPI error code; on error there is nothing to
   close. */
static inline int gcomp_mpi_open(gcomp_mpi *mpi, MPI_Comm comm)
{
    int error;
    memset(mpi, 0, sizeof *mpi);
    mpi->comm = MPI_COMM_NULL;
    error = MPI_Comm_dup(comm, &mpi->comm);
    if (error)
        return error;
    error = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (!error)
        error = MPI_Comm_rank(mpi->comm, &mpi->rank);
    if (!error)
        error = MPI_Comm_size(mpi->comm, &mpi->world);
    if (!error) {
        mpi->counts = (int *)calloc((size_t)mpi->world, sizeof *mpi->counts);
        mpi->places = (int *)calloc((size_t)mpi->world, sizeof *mpi->places);
        mpi->requests = (MPI_Request *)calloc(2 * (size_t)mpi->world, sizeof *mpi->requests);
        if (!mpi->counts || !mpi->places || !mpi->requests)
            error = MPI_ERR_NO_MEM;
    }
    if (error)
        gcomp_mpi_close(mpi);
    return error;
}

/* From now on floats are added in rank order, each element by one rank, at the bytes of a ring all-reduce: the same bits as over
   other transports. On all ranks or on none. Returns 0 or MPI_ERR_NO_MEM. */
static inline int gcomp_mpi_sum_in_order(gcomp_mpi *mpi)
{
    if (!mpi->shards)
        mpi->shards = (int *)malloc(2 * (size_t)mpi->world * sizeof *mpi->shards);
    if (mpi->shards && !mpi->order)
        mpi->order = (float *)malloc((size_t)mpi->world * GCOMP_MPI_ORDER * sizeof *mpi->order);
    return mpi->order ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

/* data[count] <- sum over the ranks, count <= world * GCOMP_MPI_ORDER. Rank w adds elements count * w / world and on. */
static inline int gcomp_mpi_ordered_piece(gcomp_mpi *mpi, float *data, size_t count)
{
    size_t world = (size_t)mpi->world, rank = (size_t)mpi->rank, begin = count * rank / world;
    size_t shard = count * (rank + 1) / world - begin;
    int error;
    for (size_t w = 0; w < world; w++) {
        mpi->places[w] = (int)(count * w / world);
        mpi->counts[w] = (int)(count * (w + 1) / world) - mpi->places[w];
        mpi->shards[w] = (int)shard;
        mpi->shards[world + w] = (int)(w * shard);
    }
    error = MPI_Alltoallv(data, mpi->counts, mpi->places, MPI_FLOAT, mpi->order, mpi->shards, mpi->shards + world, MPI_FLOAT,
                          mpi->comm);
    for (size_t w = 1; w < world && !error; w++)
        for (size_t i = 0; i < shard; i++)
            mpi->order[i] += mpi->order[w * shard + i];
    if (!error)
        error = MPI_Allgatherv(mpi->order, (int)shard, MPI_FLOAT, data, mpi->counts, mpi->places, MPI_FLOAT, mpi->comm);
    return error;
}

static inline int gcomp_mpi_ordered(gcomp_mpi *mpi, float *data, size_t count)
{
    size_t most = (size_t)mpi->world * GCOMP_MPI_ORDER;
    int error = MPI_SUCCESS;
    for (size_t at = 0; at < count && !error; at += most)
        error = gcomp_mpi_ordered_piece(mpi, data + at, count - at < most ? count - at : most);
    return error;
}

/* data[count] of `bytes` each <- their sum or maximum over the workers, in place, in pieces. */
static inline int gcomp_mpi_reduce(const gcomp_mpi *mpi, void *data, size_t count, size_t bytes,
                                   MPI_Datatype type, MPI_Op op)
{
    char *at = (char *)data;
    while (count) {
        size_t piece = count < GCOMP_MPI_PIECE ? count : GCOMP_MPI_PIECE;
        int error = MPI_Allreduce(MPI_IN_PLACE, at, (int)piece, type, op, mpi->comm);
        if (error)
            return error;
        at += piece * bytes;
        count -= piece;
    }
    return MPI_SUCCESS;
}

/* data[count] <- sum over the workers, in place. */
static inline int gcomp_mpi_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    gcomp_mpi *mpi = (gcomp_mpi *)user;
    if (dtype == GCOMP_F32 && mpi->order)
        return gcomp_mpi_ordered(mpi, (float *)data, count);
    if (dtype == GCOMP_F32)
        return gcomp_mpi_reduce(mpi, data, count, 4, MPI_FLOAT, MPI_SUM);
    if (dtype == GCOMP_I8)
        return gcomp_mpi_reduce(mpi, data, count, 1, MPI_INT8_T, MPI_SUM);
    if (dtype == GCOMP_I16)
        return gcomp_mpi_reduce(mpi, data, count, 2, MPI_INT16_T, MPI_SUM);
    if (dtype == GCOMP_I32)
        return gcomp_mpi_reduce(mpi, data, count, 4, MPI_INT32_T, MPI_SUM);
    return MPI_ERR_TYPE;
}

/* data[count] <- the largest of the workers, in place. */
static inline int gcomp_mpi_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_mpi_reduce((const gcomp_mpi *)user, data, count, 4, MPI_FLOAT, MPI_MAX);
}

/* A type of `piece` bytes whose extent is `bytes`: places the pieces of the workers that far apart. */
static inline int gcomp_mpi_spread(MPI_Datatype *block, MPI_Datatype *spread, size_t piece, size_t bytes)
{
    int error = MPI_Type_contiguous((int)piece, MPI_BYTE, block);
    if (!error)
        error = MPI_Type_create_resized(*block, 0, (MPI_Aint)bytes, spread);
    return error ? error : MPI_Type_commit(spread);
}

static inline void gcomp_mpi_unspread(MPI_Datatype *block, MPI_Datatype *spread)
{
    if (*spread != MPI_DATATYPE_NULL)
        MPI_Type_free(spread);
    if (*block != MPI_DATATYPE_NULL)
        MPI_Type_free(block);
}

/* One piece of a large all-gather: all + w * bytes <- mine[piece] of worker w. */
static inline int gcomp_mpi_gather_piece(const gcomp_mpi *mpi, const void *mine, void *all, size_t piece,
                                         size_t bytes)
{
    MPI_Datatype block = MPI_DATATYPE_NULL, spread = MPI_DATATYPE_NULL;
    int error = gcomp_mpi_spread(&block, &spread, piece, bytes);
    if (!error)
        error = MPI_Allgather(mine, (int)piece, MPI_BYTE, all, 1, spread, mpi->comm);
    gcomp_mpi_unspread(&block, &spread);
    return error;
}

/* all[world * bytes] <- mine[bytes] of every worker, in rank order. */
static inline int gcomp_mpi_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    if (bytes <= GCOMP_MPI_PIECE)
        return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, mpi->comm);
    for (size_t at = 0; at < bytes; at += GCOMP_MPI_PIECE) {
        size_t piece = bytes - at < GCOMP_MPI_PIECE ? bytes - at : GCOMP_MPI_PIECE;
        int error = gcomp_mpi_gather_piece(mpi, (const char *)mine + at, (char *)all + at, piece, bytes);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

/* Broadcasts data[bytes] of rank `root`, in pieces. Also for weights at the start or after a failure. */
static inline int gcomp_mpi_broadcast(void *user, void *data, size_t bytes, int root)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    char *at = (char *)data;
    while (bytes) {
        size_t piece = bytes < GCOMP_MPI_PIECE ? bytes : GCOMP_MPI_PIECE;
        int error = MPI_Bcast(at, (int)piece, MPI_BYTE, root, mpi->comm);
        if (error)
            return error;
        at += piece;
        bytes -= piece;
    }
    return MPI_SUCCESS;
}

/* all + w * stride <- bytes[w] bytes of worker w, for all w. */
static inline int gcomp_mpi_allgatherv(void *user, const void *mine, void *all, const size_t *bytes,
                                       size_t stride)
{
    gcomp_mpi *mpi = (gcomp_mpi *)user;
    size_t world = (size_t)mpi->world;
    for (size_t w = 0; w < world; w++)
        if (bytes[w] > stride)
            return MPI_ERR_COUNT; /* the same on all: the sizes are */
    if (stride <= GCOMP_MPI_PIECE / world) {
        for (size_t w = 0; w < world; w++) {
            mpi->counts[w] = (int)bytes[w];
            mpi->places[w] = (int)(w * stride);
        }
        return MPI_Allgatherv(mine, mpi->counts[mpi->rank], MPI_BYTE, all, mpi->counts, mpi->places, MPI_BYTE,
                              mpi->comm);
    }
    /* Places beyond int: a broadcast from each. At such sizes the time is in the bytes, not the calls. */
    for (size_t w = 0; w < world; w++) {
        char *place = (char *)all + w * stride;
        int error;
        if ((int)w == mpi->rank && bytes[w])
            memmove(place, mine, bytes[w]);
        error = gcomp_mpi_broadcast(mpi, place, bytes[w], (int)w);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

/* recv + w * bytes <- send + rank * bytes of worker w; larger blocks in pieces, `bytes` apart. */
static inline int gcomp_mpi_alltoall(void *user, const void *send, void *recv, size_t bytes)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    if (bytes <= GCOMP_MPI_PIECE)
        return MPI_Alltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, mpi->comm);
    for (size_t at = 0; at < bytes; at += GCOMP_MPI_PIECE) {
        size_t piece = bytes - at < GCOMP_MPI_PIECE ? bytes - at : GCOMP_MPI_PIECE;
        MPI_Datatype block = MPI_DATATYPE_NULL, spread = MPI_DATATYPE_NULL;
        int error = gcomp_mpi_spread(&block, &spread, piece, bytes);
        if (!error)
            error = MPI_Alltoall((const char *)send + at, 1, spread, (char *)recv + at, 1, spread, mpi->comm);
        gcomp_mpi_unspread(&block, &spread);
        if (error)
            return error;
    }
    return MPI_SUCCESS;
}

/* Worker w gets sent[w] bytes of send, and awaited[w] bytes come from it; both lie back to back. Messages between
   each two of them, of a piece at most: counts and places of MPI_Alltoallv are int. */
static inline int gcomp_mpi_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                                      const size_t *awaited)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    for (size_t at = 0;; at += GCOMP_MPI_PIECE) {
        const char *from = (const char *)send;
        char *to = (char *)recv;
        int count = 0, error = MPI_SUCCESS;
        for (int w = 0; w < mpi->world && !error; to += awaited[w++]) {
            size_t left = awaited[w] > at ? awaited[w] - at : 0;
            if (left)
                error = MPI_Irecv(to + at, (int)(left < GCOMP_MPI_PIECE ? left : GCOMP_MPI_PIECE), MPI_BYTE, w, 0,
                                  mpi->comm, &mpi->requests[count++]);
        }
        for (int w = 0; w < mpi->world && !error; from += sent[w++]) {
            size_t left = sent[w] > at ? sent[w] - at : 0;
            if (left)
                error = MPI_Isend(from + at, (int)(left < GCOMP_MPI_PIECE ? left : GCOMP_MPI_PIECE), MPI_BYTE, w,
                                  0, mpi->comm, &mpi->requests[count++]);
        }
        if (error || !count)
            return error;
        for (int i = 0; i < count && !error; i++)
            error = MPI_Wait(&mpi->requests[i], MPI_STATUS_IGNORE);
        if (error)
            return error;
    }
}

static inline int gcomp_mpi_barrier(void *user)
{
    return MPI_Barrier(((const gcomp_mpi *)user)->comm);
}

/* The transport, for gcomp_desc.comm. Valid until mpi is closed or moved. */
static inline gcomp_comm gcomp_mpi_comm(gcomp_mpi *mpi)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.user = mpi;
    comm.rank = mpi->rank;
    comm.world = mpi->world;
    comm.allreduce = gcomp_mpi_allreduce;
    comm.allgather = gcomp_mpi_allgather;
    comm.allgatherv = gcomp_mpi_allgatherv;
    comm.allreduce_max = gcomp_mpi_allreduce_max;
    comm.alltoallv = gcomp_mpi_alltoallv;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return comm;
}

/* Two levels: `shared` holds the ranks of one machine, a part of `all`; collective. Sets desc->node and desc->comm; both transports
   are closed with gcomp_mpi_close, `between` on every rank. Returns 0 or an MPI error code; then there is nothing to close. */
static inline int gcomp_mpi_open_levels(gcomp_mpi *node, gcomp_mpi *between, MPI_Comm all, MPI_Comm shared, gcomp_desc *desc)
{
    MPI_Comm firsts = MPI_COMM_NULL;
    int place[2] = {0, 0}, rank = 0, error;
    memset(between, 0, sizeof *between);
    between->comm = MPI_COMM_NULL;
    error = gcomp_mpi_open(node, shared);
    if (error)
        return error;
    MPI_Comm_rank(all, &rank);
    error = MPI_Comm_split(all, node->rank ? MPI_UNDEFINED : 0, rank, &firsts);
    if (!error && node->rank == 0) {
        error = gcomp_mpi_open(between, firsts);
        MPI_Comm_free(&firsts);
        place[0] = between->rank;
        place[1] = between->world;
    }
    if (!error)
        error = MPI_Bcast(place, 2, MPI_INT, 0, node->comm);
    if (error) {
        gcomp_mpi_close(between);
        gcomp_mpi_close(node);
        return error;
    }
    desc->node = gcomp_mpi_comm(node);
    desc->comm = gcomp_mpi_comm(between);
    desc->comm.rank = place[0];
    desc->comm.world = place[1];
    return MPI_SUCCESS;
}

#endif
