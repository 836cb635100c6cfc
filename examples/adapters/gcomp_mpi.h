/* gcomp_mpi.h - a transport for gcomp.h: workers are the ranks of an MPI communicator. Copy it,
   change it.

   Licence: as gcomp.h. Compile with mpicc, MPI 3.0 or later.

       gcomp_mpi mpi;
       MPI_Init(&argc, &argv);
       if (gcomp_mpi_open(&mpi, MPI_COMM_WORLD)) MPI_Abort(MPI_COMM_WORLD, 1);
       desc.comm = gcomp_mpi_comm(&mpi);
       ...
       gcomp_mpi_close(&mpi);
       MPI_Finalize();

   On two levels (desc.node), with sums within a machine and a compressed exchange between machines:

       MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);
       if (gcomp_mpi_open_levels(&node, &between, MPI_COMM_WORLD, shared, &desc))
           MPI_Abort(MPI_COMM_WORLD, 1);

   Any communicator of one group will do, such as a part of the ranks that MPI_Comm_split made. It
   is duplicated, so that no message here meets a message of yours. Its errors are returned instead
   of ending the program: callbacks return the MPI error code. If one rank cannot open a transport,
   all ranks get an error.

   Counts of MPI are int: larger data is sent in pieces. Sums have the same bits on all ranks if
   MPI_Allreduce gives the same bits on all ranks (Open MPI and MPICH do). After
   gcomp_mpi_sum_in_order they have the bits of gcomp_threads.h and gcomp_sockets.h. Sums of fp16
   and bf16, of which MPI has no types, have these bits always: this file makes them, in float32,
   and rounds once. After gcomp_mpi_overlap collectives are under way while the caller computes. If
   a rank dies, mpirun kills the others. */

#ifndef GCOMP_MPI_H
#define GCOMP_MPI_H

#include "gcomp.h"

#include <limits.h>
#include <mpi.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define GCOMP_MPI_YIELD() ((void)sched_yield())
#else
#define GCOMP_MPI_YIELD() ((void)0)
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

/* The largest count given to one MPI call, at most INT_MAX. Tests set a small one. */
#ifndef GCOMP_MPI_PIECE
#define GCOMP_MPI_PIECE ((size_t)1 << 30)
#endif

/* Sums in rank order are made in pieces of this many elements a rank. */
#ifndef GCOMP_MPI_ORDER
#define GCOMP_MPI_ORDER ((size_t)1 << 18)
#endif

/* Requests of gcomp that may be under way at once. The lowest three bits of their ids differ. */
#define GCOMP_MPI_FLIGHTS 8

/* A request that is under way, or a free place for one. */
typedef struct gcomp_mpi_flight {
    MPI_Request request;
    gcomp_request of;
    int busy;
    int scatters;       /* 1: a sum is in its first half, in which shards come in */
    int late;           /* an error of this rank's sum, which the end of the request tells */
    unsigned long turn; /* of a sum: how many sums were started before it */
    /* [4][world]: counts and places of what goes out, then of what comes in. MPI reads them until
       the request is done. */
    int *counts;
    MPI_Datatype *types; /* [2][world], of an alltoall: of what goes out, of what comes in */
    char *room;          /* of a sum: this rank's shard, from each rank */
    size_t room_bytes;
} gcomp_mpi_flight;

typedef struct gcomp_mpi {
    MPI_Comm comm;
    int rank;
    int world;
    int *counts;           /* [world], of MPI_Allgatherv */
    int *places;           /* [world] */
    MPI_Request *requests; /* [2 * world], of alltoallv */
    float *order;          /* [world][GCOMP_MPI_ORDER]: sums in rank order; NULL: MPI_Allreduce */
    uint16_t *shorts;      /* the same for fp16 and bf16; NULL: there was no such sum yet */
    int *shards;           /* [2][world], for these sums: counts and places of what comes in */
    gcomp_mpi_flight *flights; /* [GCOMP_MPI_FLIGHTS]; NULL: all collectives block */
    /* The second halves of sums have a communicator of their own, where they are called in the
       order in which the sums were started: another rank may call one before or after it starts
       something else on comm. */
    MPI_Comm halves;
    unsigned long sums, gathered; /* sums that were started; that began their second half */
} gcomp_mpi;

/* All ranks hear if one has an error. Returns this rank's error, or MPI_ERR_OTHER for that of
   another. Collective. */
static inline int gcomp_mpi_agree(MPI_Comm comm, int error)
{
    int failed = error != MPI_SUCCESS, any = 0;
    int told = MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, comm);
    return error ? error : told ? told : any ? MPI_ERR_OTHER : MPI_SUCCESS;
}

/* Frees the types that were made for the blocks of an alltoall. */
static inline void gcomp_mpi_drop_types(MPI_Datatype *types, int count)
{
    for (int i = 0; i < count; i++) {
        if (types[i] != MPI_BYTE) MPI_Type_free(&types[i]);
        types[i] = MPI_BYTE;
    }
}

static inline void gcomp_mpi_close(gcomp_mpi *mpi)
{
    if (mpi->comm != MPI_COMM_NULL) MPI_Comm_free(&mpi->comm);
    free(mpi->counts);
    free(mpi->places);
    free(mpi->requests);
    mpi->requests = NULL;
    free(mpi->order);
    free(mpi->shorts);
    free(mpi->shards);
    if (mpi->flights && mpi->halves != MPI_COMM_NULL) MPI_Comm_free(&mpi->halves);
    for (int i = 0; i < GCOMP_MPI_FLIGHTS && mpi->flights; i++) {
        if (mpi->flights[i].types) gcomp_mpi_drop_types(mpi->flights[i].types, 2 * mpi->world);
        free(mpi->flights[i].types);
        free(mpi->flights[i].counts);
        free(mpi->flights[i].room);
    }
    free(mpi->flights);
    mpi->flights = NULL;
    mpi->order = NULL;
    mpi->shorts = NULL;
    mpi->shards = NULL;
    mpi->counts = NULL;
    mpi->places = NULL;
}

/* Duplicates the communicator; collective. Returns 0 or an MPI error code; on error there is
   nothing to close. */
static inline int gcomp_mpi_open(gcomp_mpi *mpi, MPI_Comm comm)
{
    int error;
    memset(mpi, 0, sizeof *mpi);
    mpi->comm = MPI_COMM_NULL;
    error = MPI_Comm_dup(comm, &mpi->comm);
    if (error) return error;
    error = MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    if (!error) error = MPI_Comm_rank(mpi->comm, &mpi->rank);
    if (!error) error = MPI_Comm_size(mpi->comm, &mpi->world);
    if (!error) {
        mpi->counts = (int *)calloc((size_t)mpi->world, sizeof *mpi->counts);
        mpi->places = (int *)calloc((size_t)mpi->world, sizeof *mpi->places);
        mpi->requests = (MPI_Request *)calloc(2 * (size_t)mpi->world, sizeof *mpi->requests);
        if (!mpi->counts || !mpi->places || !mpi->requests) error = MPI_ERR_NO_MEM;
    }
    error = gcomp_mpi_agree(mpi->comm, error);
    if (error) gcomp_mpi_close(mpi);
    return error;
}

/* From now on floats are added in rank order, each element by one rank: the same bits as over other
   transports. It sends as many bytes as a ring all-reduce. Collective. Returns 0, or an MPI error
   code; then nothing is changed. */
static inline int gcomp_mpi_sum_in_order(gcomp_mpi *mpi)
{
    int error;
    if (!mpi->shards) mpi->shards = (int *)malloc(2 * (size_t)mpi->world * sizeof *mpi->shards);
    if (mpi->shards && !mpi->order)
        mpi->order = (float *)malloc((size_t)mpi->world * GCOMP_MPI_ORDER * sizeof *mpi->order);
    error = gcomp_mpi_agree(mpi->comm, mpi->order ? MPI_SUCCESS : MPI_ERR_NO_MEM);
    if (error) {
        free(mpi->order);
        mpi->order = NULL;
    }
    return error;
}

/* Takes the room for sums of fp16 and bf16, in the first of them. Collective. Returns 0, or an MPI
   error code on all ranks. */
static inline int gcomp_mpi_take_shorts(gcomp_mpi *mpi)
{
    int error;
    if (mpi->shorts) return MPI_SUCCESS;
    if (!mpi->shards) mpi->shards = (int *)malloc(2 * (size_t)mpi->world * sizeof *mpi->shards);
    if (mpi->shards)
        mpi->shorts =
            (uint16_t *)malloc((size_t)mpi->world * GCOMP_MPI_ORDER * sizeof *mpi->shorts);
    error = gcomp_mpi_agree(mpi->comm, mpi->shorts ? MPI_SUCCESS : MPI_ERR_NO_MEM);
    if (error) {
        free(mpi->shorts);
        mpi->shorts = NULL;
    }
    return error;
}

static inline MPI_Datatype gcomp_mpi_type(gcomp_dtype dtype)
{
    return dtype == GCOMP_F32 ? MPI_FLOAT
        : dtype == GCOMP_F16  ? MPI_UINT16_T /* to be sent, not to be summed */
        : dtype == GCOMP_BF16 ? MPI_UINT16_T
        : dtype == GCOMP_I8   ? MPI_INT8_T
        : dtype == GCOMP_I16  ? MPI_INT16_T
        : dtype == GCOMP_I32  ? MPI_INT32_T
                              : MPI_DATATYPE_NULL;
}

static inline int gcomp_mpi_is_short(gcomp_dtype dtype)
{
    return dtype == GCOMP_F16 || dtype == GCOMP_BF16;
}

static inline size_t gcomp_mpi_size(gcomp_dtype dtype)
{
    return dtype == GCOMP_I8 ? 1 : dtype == GCOMP_I16 || gcomp_mpi_is_short(dtype) ? 2 : 4;
}

/* room[shard] <- the sum of the shards of all ranks, which lie back to back in the room: added in
   float32 in rank order, and rounded once. Fails where gcomp.h cannot calculate. */
static inline int gcomp_mpi_add_shorts(void *room, size_t world, size_t shard, gcomp_dtype dtype)
{
    uint16_t *from = (uint16_t *)room;
    float sum[512], other[512];
    int error = 0;
    for (size_t at = 0; at < shard; at += 512) {
        size_t count = shard - at < 512 ? shard - at : 512;
        error |= gcomp_convert(sum, GCOMP_F32, from + at, dtype, count, NULL);
        for (size_t w = 1; w < world; w++) {
            error |= gcomp_convert(other, GCOMP_F32, from + w * shard + at, dtype, count, NULL);
            for (size_t i = 0; i < count; i++) sum[i] += other[i];
        }
        error |= gcomp_convert(from + at, dtype, sum, GCOMP_F32, count, NULL);
    }
    return error ? MPI_ERR_OTHER : MPI_SUCCESS;
}

/* data[count] <- sum over the ranks, count <= world * GCOMP_MPI_ORDER, of floats, fp16 or bf16.
   Rank w adds the elements from count * w / world on. A rank that cannot add sends what it has, so
   that the others do not wait, and returns an error. */
static inline int gcomp_mpi_ordered_piece(gcomp_mpi *mpi, void *data, size_t count,
                                          gcomp_dtype dtype)
{
    MPI_Datatype type = gcomp_mpi_type(dtype);
    void *room = dtype == GCOMP_F32 ? (void *)mpi->order : (void *)mpi->shorts;
    size_t world = (size_t)mpi->world, rank = (size_t)mpi->rank, begin = count * rank / world;
    size_t shard = count * (rank + 1) / world - begin;
    int error, late = MPI_SUCCESS;
    for (size_t w = 0; w < world; w++) {
        mpi->places[w] = (int)(count * w / world);
        mpi->counts[w] = (int)(count * (w + 1) / world) - mpi->places[w];
        mpi->shards[w] = (int)shard;
        mpi->shards[world + w] = (int)(w * shard);
    }
    error = MPI_Alltoallv(data, mpi->counts, mpi->places, type, room, mpi->shards,
                          mpi->shards + world, type, mpi->comm);
    if (!error && dtype != GCOMP_F32) late = gcomp_mpi_add_shorts(room, world, shard, dtype);
    for (size_t w = 1; w < world && !error && dtype == GCOMP_F32; w++)
        for (size_t i = 0; i < shard; i++) mpi->order[i] += mpi->order[w * shard + i];
    if (!error)
        error = MPI_Allgatherv(room, (int)shard, type, data, mpi->counts, mpi->places, type,
                               mpi->comm);
    return error ? error : late;
}

static inline int gcomp_mpi_ordered(gcomp_mpi *mpi, void *data, size_t count, gcomp_dtype dtype)
{
    size_t most = (size_t)mpi->world * GCOMP_MPI_ORDER;
    int error = dtype == GCOMP_F32 ? MPI_SUCCESS : gcomp_mpi_take_shorts(mpi);
    for (size_t at = 0; at < count && !error; at += most)
        error = gcomp_mpi_ordered_piece(mpi, (char *)data + at * gcomp_mpi_size(dtype),
                                        count - at < most ? count - at : most, dtype);
    return error;
}

/* data[count], elements of `bytes` bytes <- sum or maximum over the workers, in place, in
   pieces. */
static inline int gcomp_mpi_reduce(const gcomp_mpi *mpi, void *data, size_t count, size_t bytes,
                                   MPI_Datatype type, MPI_Op op)
{
    char *at = (char *)data;
    while (count) {
        size_t piece = count < GCOMP_MPI_PIECE ? count : GCOMP_MPI_PIECE;
        int error = MPI_Allreduce(MPI_IN_PLACE, at, (int)piece, type, op, mpi->comm);
        if (error) return error;
        at += piece * bytes;
        count -= piece;
    }
    return MPI_SUCCESS;
}

/* data[count] <- sum over the workers, in place. */
static inline int gcomp_mpi_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    gcomp_mpi *mpi = (gcomp_mpi *)user;
    if ((dtype == GCOMP_F32 && mpi->order) || gcomp_mpi_is_short(dtype))
        return gcomp_mpi_ordered(mpi, data, count, dtype);
    if (gcomp_mpi_type(dtype) == MPI_DATATYPE_NULL) return MPI_ERR_TYPE;
    return gcomp_mpi_reduce(mpi, data, count, gcomp_mpi_size(dtype), gcomp_mpi_type(dtype),
                            MPI_SUM);
}

/* data[count] <- the largest of the workers, in place. */
static inline int gcomp_mpi_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_mpi_reduce((const gcomp_mpi *)user, data, count, 4, MPI_FLOAT, MPI_MAX);
}

/* *spread <- a type of `piece` bytes whose extent is `bytes`: the pieces of the workers lie that
   far apart. */
static inline int gcomp_mpi_spread(MPI_Datatype *block, MPI_Datatype *spread, size_t piece,
                                   size_t bytes)
{
    int error = MPI_Type_contiguous((int)piece, MPI_BYTE, block);
    if (!error) error = MPI_Type_create_resized(*block, 0, (MPI_Aint)bytes, spread);
    return error ? error : MPI_Type_commit(spread);
}

static inline void gcomp_mpi_unspread(MPI_Datatype *block, MPI_Datatype *spread)
{
    if (*spread != MPI_DATATYPE_NULL) MPI_Type_free(spread);
    if (*block != MPI_DATATYPE_NULL) MPI_Type_free(block);
}

/* One piece of a large all-gather: all + w * bytes <- mine[piece] of worker w. */
static inline int gcomp_mpi_gather_piece(const gcomp_mpi *mpi, const void *mine, void *all,
                                         size_t piece, size_t bytes)
{
    MPI_Datatype block = MPI_DATATYPE_NULL, spread = MPI_DATATYPE_NULL;
    int error = gcomp_mpi_spread(&block, &spread, piece, bytes);
    if (!error) error = MPI_Allgather(mine, (int)piece, MPI_BYTE, all, 1, spread, mpi->comm);
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
        int error = gcomp_mpi_gather_piece(mpi, (const char *)mine + at, (char *)all + at, piece,
                                           bytes);
        if (error) return error;
    }
    return MPI_SUCCESS;
}

/* data[bytes] <- data of rank `root`, in pieces. On error data is unspecified: gcomp_recover.h
   brings weights to all, and keeps the old ones until the new ones have come. */
static inline int gcomp_mpi_broadcast(void *user, void *data, size_t bytes, int root)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    char *at = (char *)data;
    while (bytes) {
        size_t piece = bytes < GCOMP_MPI_PIECE ? bytes : GCOMP_MPI_PIECE;
        int error = MPI_Bcast(at, (int)piece, MPI_BYTE, root, mpi->comm);
        if (error) return error;
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
        if (bytes[w] > stride) return MPI_ERR_COUNT; /* the same on all: the sizes are */
    if (stride <= GCOMP_MPI_PIECE / world) {
        for (size_t w = 0; w < world; w++) {
            mpi->counts[w] = (int)bytes[w];
            mpi->places[w] = (int)(w * stride);
        }
        return MPI_Allgatherv(mine, mpi->counts[mpi->rank], MPI_BYTE, all, mpi->counts, mpi->places,
                              MPI_BYTE, mpi->comm);
    }
    /* Places are larger than int: a broadcast from each rank. At such sizes it is the bytes that
       take the time, not the calls. */
    for (size_t w = 0; w < world; w++) {
        char *place = (char *)all + w * stride;
        int error;
        if ((int)w == mpi->rank && bytes[w]) memmove(place, mine, bytes[w]);
        error = gcomp_mpi_broadcast(mpi, place, bytes[w], (int)w);
        if (error) return error;
    }
    return MPI_SUCCESS;
}

/* recv + w * bytes <- send + rank * bytes of worker w. Large blocks are sent in pieces. */
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
            error = MPI_Alltoall((const char *)send + at, 1, spread, (char *)recv + at, 1, spread,
                                 mpi->comm);
        gcomp_mpi_unspread(&block, &spread);
        if (error) return error;
    }
    return MPI_SUCCESS;
}

/* Ends requests, of which the first `received` receive: none of these writes to a buffer of the
   caller any more. MPI may still read what is to be sent: a send cannot be called back. */
static inline void gcomp_mpi_give_up(MPI_Request *requests, int received, int count)
{
    for (int i = 0; i < count; i++) {
        if (requests[i] == MPI_REQUEST_NULL) continue;
        if (i < received && MPI_Cancel(&requests[i]) == MPI_SUCCESS)
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
    }
}

/* What is left of `bytes` bytes from `at` on, at most a piece. */
static inline int gcomp_mpi_rest(size_t bytes, size_t at)
{
    const size_t left = bytes > at ? bytes - at : 0;
    return (int)(left < GCOMP_MPI_PIECE ? left : GCOMP_MPI_PIECE);
}

/* Waits for a message of so many bytes. MPI takes a shorter one for a success: *late <- an error,
   and the other messages are still waited for. */
static inline int gcomp_mpi_hear(MPI_Request *request, int bytes, int *late)
{
    MPI_Status status;
    int came = 0, error = MPI_Wait(request, &status);
    if (!error) error = MPI_Get_count(&status, MPI_BYTE, &came);
    if (!error && came != bytes) *late = MPI_ERR_TRUNCATE;
    return error;
}

/* Worker w gets sent[w] bytes of send, and awaited[w] bytes come from worker w; both lie back to
   back. Each pair of workers exchanges messages of at most a piece, since counts and places of
   MPI_Alltoallv are int. After an error no request is active, but messages may be on their way:
   open a new transport. */
static inline int gcomp_mpi_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                                      const size_t *awaited)
{
    const gcomp_mpi *mpi = (const gcomp_mpi *)user;
    for (size_t at = 0;; at += GCOMP_MPI_PIECE) {
        const char *from = (const char *)send;
        char *to = (char *)recv;
        int count = 0, received, error = MPI_SUCCESS, late = MPI_SUCCESS;
        for (int i = 0; i < 2 * mpi->world; i++) mpi->requests[i] = MPI_REQUEST_NULL;
        for (int w = 0; w < mpi->world && !error; to += awaited[w++]) {
            const int piece = gcomp_mpi_rest(awaited[w], at);
            if (piece)
                error = MPI_Irecv(to + at, piece, MPI_BYTE, w, 0, mpi->comm,
                                  &mpi->requests[count++]);
        }
        received = count;
        for (int w = 0; w < mpi->world && !error; from += sent[w++]) {
            const int piece = gcomp_mpi_rest(sent[w], at);
            if (piece)
                error = MPI_Isend(from + at, piece, MPI_BYTE, w, 0, mpi->comm,
                                  &mpi->requests[count++]);
        }
        for (int w = 0, i = 0; w < mpi->world && !error; w++) {
            const int piece = gcomp_mpi_rest(awaited[w], at);
            if (piece) error = gcomp_mpi_hear(&mpi->requests[i++], piece, &late);
        }
        for (int i = received; i < count && !error; i++)
            error = MPI_Wait(&mpi->requests[i], MPI_STATUS_IGNORE);
        if (error) gcomp_mpi_give_up(mpi->requests, received, count);
        if (error || late || !count) return error ? error : late;
    }
}

static inline int gcomp_mpi_barrier(void *user)
{
    return MPI_Barrier(((const gcomp_mpi *)user)->comm);
}

/* From now on gcomp_mpi_comm has start, test and wait too. Collective. Returns 0, or an MPI error
   code; then close mpi. */
static inline int gcomp_mpi_overlap(gcomp_mpi *mpi)
{
    int error = MPI_SUCCESS;
    if (mpi->flights) return error;
    mpi->halves = MPI_COMM_NULL;
    mpi->flights = (gcomp_mpi_flight *)calloc(GCOMP_MPI_FLIGHTS, sizeof *mpi->flights);
    if (!mpi->flights) error = MPI_ERR_NO_MEM;
    for (int i = 0; i < GCOMP_MPI_FLIGHTS && !error; i++) {
        gcomp_mpi_flight *f = &mpi->flights[i];
        f->counts = (int *)malloc(4 * (size_t)mpi->world * sizeof(int));
        f->types = (MPI_Datatype *)malloc(2 * (size_t)mpi->world * sizeof(MPI_Datatype));
        for (int w = 0; w < 2 * mpi->world && f->types; w++) f->types[w] = MPI_BYTE;
        if (!f->counts || !f->types) error = MPI_ERR_NO_MEM;
    }
    error = gcomp_mpi_agree(mpi->comm, error);
    return error ? error : MPI_Comm_dup(mpi->comm, &mpi->halves); /* returns errors, as comm does */
}

/* counts[2][world] <- counts and places of blocks that lie `stride` apart. Returns the bytes up to
   the end of the last one. */
static inline size_t gcomp_mpi_lay_out(const gcomp_mpi *mpi, const size_t *bytes, size_t stride,
                                       int *counts)
{
    size_t at = 0;
    for (int w = 0; w < mpi->world; w++, at += stride) {
        counts[w] = (int)bytes[w];
        counts[mpi->world + w] = (int)at;
    }
    return at;
}

/* A block of `bytes` bytes that begins at byte `at`: as a count and a place, if they fit into int,
   else as one element of a type that holds both. */
static inline int gcomp_mpi_block(size_t at, size_t bytes, int *count, int *place,
                                  MPI_Datatype *type)
{
    const size_t whole = bytes / GCOMP_MPI_PIECE * GCOMP_MPI_PIECE;
    int lengths[2] = {(int)(bytes / GCOMP_MPI_PIECE), (int)(bytes % GCOMP_MPI_PIECE)}, error;
    MPI_Aint places[2] = {(MPI_Aint)at, (MPI_Aint)(at + whole)};
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE}, made = MPI_DATATYPE_NULL;
    *type = MPI_BYTE;
    *count = (int)bytes;
    *place = (int)at;
    if (at <= GCOMP_MPI_PIECE && bytes <= GCOMP_MPI_PIECE) return MPI_SUCCESS;
    *count = 1;
    *place = 0;
    error = MPI_Type_contiguous((int)GCOMP_MPI_PIECE, MPI_BYTE, &parts[0]);
    if (!error) error = MPI_Type_create_struct(2, lengths, places, parts, &made);
    if (!error) error = MPI_Type_commit(&made);
    if (parts[0] != MPI_DATATYPE_NULL) MPI_Type_free(&parts[0]);
    if (!error) *type = made;
    else if (made != MPI_DATATYPE_NULL) MPI_Type_free(&made);
    return error;
}

/* One rank's blocks may be larger than counts of MPI, and those of the others not. All ranks must
   call the same collective: only the types differ. */
static inline int gcomp_mpi_start_alltoall(const gcomp_mpi *mpi, gcomp_mpi_flight *f)
{
    const gcomp_request *r = &f->of;
    int world = mpi->world, *out = f->counts, *in = out + 2 * world, error = MPI_SUCCESS;
    size_t sent = 0, came = 0;
    for (int w = 0; w < world && !error; w++) {
        error = gcomp_mpi_block(sent, r->send_bytes[w], out + w, out + world + w, f->types + w);
        if (!error)
            error = gcomp_mpi_block(came, r->bytes[w], in + w, in + world + w,
                                    f->types + world + w);
        sent += r->send_bytes[w];
        came += r->bytes[w];
    }
    if (!error)
        error = MPI_Ialltoallw(r->send, out, out + world, f->types, r->recv, in, in + world,
                               f->types + world, mpi->comm, &f->request);
    if (error) gcomp_mpi_drop_types(f->types, 2 * world);
    return error;
}

static inline int gcomp_mpi_start_gather(gcomp_mpi *mpi, gcomp_mpi_flight *f)
{
    const gcomp_request *r = &f->of;
    int world = mpi->world, *in = f->counts;
    if (gcomp_mpi_lay_out(mpi, r->bytes, r->stride, in) > GCOMP_MPI_PIECE)
        return gcomp_mpi_allgatherv(mpi, r->send, r->recv, r->bytes, r->stride);
    return MPI_Iallgatherv(r->send, in[mpi->rank], MPI_BYTE, r->recv, in, in + world, MPI_BYTE,
                           mpi->comm, &f->request);
}

/* A sum or a maximum. In the first half rank w gets the elements from count * w / world on of all
   ranks and adds them in rank order; in the second half all ranks gather the sums. That sends as
   many bytes as a ring. MPI_Iallreduce of some MPIs takes twice the time. */
static inline int gcomp_mpi_start_reduce(gcomp_mpi *mpi, gcomp_mpi_flight *f)
{
    const gcomp_request *r = &f->of;
    size_t world = (size_t)mpi->world, rank = (size_t)mpi->rank;
    size_t shard = r->count * (rank + 1) / world - r->count * rank / world;
    size_t bytes = world * shard * gcomp_mpi_size(r->dtype);
    MPI_Datatype type = gcomp_mpi_type(r->dtype);
    int *out = f->counts, *in = out + 2 * world;
    if (type == MPI_DATATYPE_NULL) return MPI_ERR_TYPE;
    if (r->count > GCOMP_MPI_PIECE)
        return r->kind == GCOMP_ALLREDUCE
            ? gcomp_mpi_allreduce(mpi, r->recv, r->count, r->dtype)
            : gcomp_mpi_allreduce_max(mpi, (float *)r->recv, r->count);
    if (bytes > f->room_bytes) {
        free(f->room);
        f->room = (char *)malloc(bytes);
        f->room_bytes = f->room ? bytes : 0;
        if (!f->room) return MPI_ERR_NO_MEM;
    }
    for (size_t w = 0; w < world; w++) {
        out[world + w] = (int)(r->count * w / world);
        out[w] = (int)(r->count * (w + 1) / world) - out[world + w];
        in[w] = (int)shard;
        in[world + w] = (int)(w * shard);
    }
    f->scatters = 1;
    f->turn = mpi->sums++;
    return MPI_Ialltoallv(r->recv, out, out + world, type, f->room, in, in + world, type, mpi->comm,
                          &f->request);
}

/* Adds what came in, in rank order; the result is at the beginning of the room. */
#define GCOMP_MPI_FOLD(type, fold) \
    for (size_t w = 1; w < world; w++) \
        for (size_t i = 0; i < shard; i++) { \
            type *y = (type *)(void *)f->room + i; \
            type x = ((type *)(void *)f->room)[w * shard + i]; \
            *y = (type)(fold); \
        }

/* Begins the second half of a sum, whose shards have come in. */
static inline int gcomp_mpi_gather_sums(gcomp_mpi *mpi, gcomp_mpi_flight *f)
{
    const gcomp_request *r = &f->of;
    size_t world = (size_t)mpi->world, shard = (size_t)f->counts[mpi->rank];
    f->scatters = 0;
    mpi->gathered++;
    if (r->kind == GCOMP_ALLREDUCE_MAX) {
        GCOMP_MPI_FOLD(float, x > *y ? x : *y)
    } else if (r->dtype == GCOMP_F32) {
        GCOMP_MPI_FOLD(float, *y + x)
    } else if (gcomp_mpi_is_short(r->dtype)) {
        f->late = gcomp_mpi_add_shorts(f->room, world, shard, r->dtype);
    } else if (r->dtype == GCOMP_I8) {
        GCOMP_MPI_FOLD(int8_t, *y + x)
    } else if (r->dtype == GCOMP_I16) {
        GCOMP_MPI_FOLD(int16_t, *y + x)
    } else {
        GCOMP_MPI_FOLD(int32_t, *y + x)
    }
    return MPI_Iallgatherv(f->room, (int)shard, gcomp_mpi_type(r->dtype), r->recv, f->counts,
                           f->counts + world, gcomp_mpi_type(r->dtype), mpi->halves, &f->request);
}
#undef GCOMP_MPI_FOLD

/* Begins to carry out a request. Sums are made in rank order. A request that is larger than a piece
   is done when this returns. */
static inline int gcomp_mpi_start(void *user, const gcomp_request *r)
{
    gcomp_mpi *mpi = (gcomp_mpi *)user;
    gcomp_mpi_flight *f = &mpi->flights[r->id % GCOMP_MPI_FLIGHTS];
    int error;
    if (f->busy) return MPI_ERR_REQUEST;
    f->of = *r;
    f->scatters = 0;
    f->late = MPI_SUCCESS;
    f->request = MPI_REQUEST_NULL; /* of what is done at once */
    error = r->kind == GCOMP_ALLGATHER ? gcomp_mpi_start_gather(mpi, f)
        : r->kind == GCOMP_ALLTOALL    ? gcomp_mpi_start_alltoall(mpi, f)
                                       : gcomp_mpi_start_reduce(mpi, f);
    f->busy = !error;
    return error;
}

/* Begins the second half of each sum whose first half is done, in the order of the sums. */
static inline int gcomp_mpi_go_on(gcomp_mpi *mpi)
{
    int error = MPI_SUCCESS;
    for (int i = 0; i < GCOMP_MPI_FLIGHTS && !error; i++) {
        gcomp_mpi_flight *f = &mpi->flights[i];
        int done = 0;
        if (!f->busy || !f->scatters || f->turn != mpi->gathered) continue;
        error = MPI_Test(&f->request, &done, MPI_STATUS_IGNORE);
        if (!error && done) error = gcomp_mpi_gather_sums(mpi, f);
        if (done) i = -1; /* the next sum may be in any place: look again */
    }
    return error;
}

/* Is a request done? MPI makes progress in here. */
static inline int gcomp_mpi_test(void *user, uint32_t id, int *done)
{
    gcomp_mpi *mpi = (gcomp_mpi *)user;
    gcomp_mpi_flight *f = &mpi->flights[id % GCOMP_MPI_FLIGHTS];
    int error;
    *done = 0;
    if (!f->busy || f->of.id != id) return MPI_ERR_REQUEST;
    error = gcomp_mpi_go_on(mpi);
    if (!error && !f->scatters) error = MPI_Test(&f->request, done, MPI_STATUS_IGNORE);
    if (!error && !*done) return 0;
    f->busy = 0;
    gcomp_mpi_drop_types(f->types, 2 * mpi->world);
    return error ? error : f->late;
}

/* Waits until a request is done, and lets other ranks have the core meanwhile: there may be more
   ranks than cores, and MPI_Wait of some MPIs keeps the core. */
static inline int gcomp_mpi_wait(void *user, uint32_t id)
{
    int done, error;
    while (!(error = gcomp_mpi_test(user, id, &done)) && !done) GCOMP_MPI_YIELD();
    return error;
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
    comm.allreduce_dtypes = 1u << GCOMP_F16 | 1u << GCOMP_BF16 | 1u << GCOMP_I8 | 1u << GCOMP_I16 |
        1u << GCOMP_I32;
    if (mpi->flights) {
        comm.start = gcomp_mpi_start;
        comm.test = gcomp_mpi_test;
        comm.wait = gcomp_mpi_wait;
    }
    return comm;
}

/* Two levels: `shared` holds the ranks of one machine, a part of `all`. Collective. Sets desc->node
   and desc->comm. Close both transports with gcomp_mpi_close, on every rank. Returns 0, or an MPI
   error code on all ranks of `all` if one of them has an error; then there is nothing to close. */
static inline int gcomp_mpi_open_levels(gcomp_mpi *node, gcomp_mpi *between, MPI_Comm all,
                                        MPI_Comm shared, gcomp_desc *desc)
{
    MPI_Comm firsts = MPI_COMM_NULL;
    int place[2] = {0, 0}, rank = 0, error, opened;
    memset(between, 0, sizeof *between);
    between->comm = MPI_COMM_NULL;
    error = opened = gcomp_mpi_open(node, shared);
    if (!error) error = MPI_Comm_rank(all, &rank);
    error = gcomp_mpi_agree(all, error);
    if (error && !opened) gcomp_mpi_close(node);
    if (error) return error;
    error = MPI_Comm_split(all, node->rank ? MPI_UNDEFINED : 0, rank, &firsts);
    if (!error && node->rank == 0) {
        error = gcomp_mpi_open(between, firsts);
        MPI_Comm_free(&firsts);
        place[0] = between->rank;
        place[1] = between->world;
    }
    /* Do they agree? Only then may the others wait for what rank 0 of their machine says. */
    error = gcomp_mpi_agree(all, error);
    if (!error) error = MPI_Bcast(place, 2, MPI_INT, 0, node->comm);
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

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif
