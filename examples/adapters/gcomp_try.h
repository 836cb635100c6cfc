/* gcomp_try.h - do the callbacks of a gcomp_comm do what gcomp.h asks of them? Copy it, change it.
   Licence: as gcomp.h.

       char why[200];
       if (gcomp_try(&comm, why, sizeof why)) {     all workers call it, once, before the training
           fprintf(stderr, "%s\n", why);            rank 0: allreduce averages: element 0 is 1.5 ...
           return 1;
       }

   gcomp_try calls each callback that is set a few times with small known data, and looks at what
   comes back: sums (of each type in allreduce_dtypes, in place, not averaged, with infinity and
   NaN, with the same bits on all workers), maxima, the order of ranks in gathers, lengths and
   places of allgatherv, alltoallv with unequal lengths and with none, and every kind of request
   through start, test and wait. A wrong callback does not end the trial: all workers make the same
   calls in the same order. At last the workers gather what each of them has found, so that all
   return the same sentence, unless allgather itself is broken. After three calls that failed a
   worker makes no more. gcomp_try waits no longer than the transport does. It takes some 200 bytes
   of memory for each worker, and 10 KB. */

#ifndef GCOMP_TRY_H
#define GCOMP_TRY_H

#include "gcomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

typedef enum gcomp_try_fault {
    GCOMP_TRY_FINE = 0,
    GCOMP_TRY_STATUS,    /* it returned a status */
    GCOMP_TRY_AVERAGE,   /* a mean in place of a sum */
    GCOMP_TRY_UNCHANGED, /* a worker's own numbers */
    GCOMP_TRY_LARGEST,   /* a maximum in place of a sum */
    GCOMP_TRY_SUMMED,    /* a sum in place of a maximum */
    GCOMP_TRY_VALUE,     /* any other number */
    GCOMP_TRY_LOST,      /* infinity or NaN has vanished */
    GCOMP_TRY_ORDER,     /* ranks in another order */
    GCOMP_TRY_PACKED,    /* places of allgatherv without a stride */
    GCOMP_TRY_BYTES,     /* any other byte */
    GCOMP_TRY_OUTSIDE,   /* bytes behind the result were written */
    GCOMP_TRY_INPUT,     /* bytes to be sent were written */
    GCOMP_TRY_BITS,      /* sums differ between workers */
    GCOMP_TRY_OTHERS,    /* workers have set other callbacks */
    GCOMP_TRY_PARTS,     /* start without wait, and the like */
    GCOMP_TRY_NO_GATHER
} gcomp_try_fault;

enum {
    GCOMP_TRY_COUNT = 1009, /* elements of a sum */
    GCOMP_TRY_FEW = 61,     /* elements of a sum of irregular numbers */
    GCOMP_TRY_STRIDE = 96,  /* of allgatherv */
    GCOMP_TRY_GUARD = 64,   /* bytes behind a result that nobody may write */
    GCOMP_TRY_GUARDED = 0xa5,
    GCOMP_TRY_MOST = 3 /* after so many calls that failed, no other is made */
};

/* Callbacks that are set; the bits of allreduce_dtypes stand above them. */
enum {
    GCOMP_TRY_SUM = 1,
    GCOMP_TRY_MAX = 2,
    GCOMP_TRY_GATHER = 4,
    GCOMP_TRY_GATHERV = 8,
    GCOMP_TRY_ALLTOALLV = 16,
    GCOMP_TRY_START = 32,
    GCOMP_TRY_DTYPES = 8
};

/* What a worker tells the others: 64 bytes. */
typedef struct gcomp_try_record {
    uint32_t magic;
    int32_t rank, world;
    uint32_t able;    /* what is set */
    uint32_t fault;   /* gcomp_try_fault, the first one that was found */
    uint32_t kind;    /* of which request; bit 8: gathered by allgatherv; bit 9: by start */
    uint32_t dtype;   /* of a sum */
    int32_t number;   /* a status, or a rank */
    uint64_t at;      /* an element, a byte or a place */
    double got, want; /* numbers */
    uint64_t bits;    /* digest of all sums */
} gcomp_try_record;

typedef struct gcomp_try_work {
    gcomp_comm comm;
    gcomp_try_record found;
    int failures; /* calls that returned a status */
    int by_start; /* requests go through start and wait, not through the blocking callbacks */
    uint32_t id;  /* of the next request */
    gcomp_request now; /* the request that is tried */
    size_t *out, *in;  /* [world] lengths */
    unsigned char *send, *recv;
    size_t room; /* bytes of each of the two, without the guard */
} gcomp_try_work;

static inline void gcomp_try_note(gcomp_try_work *t, gcomp_try_fault fault, uint64_t at, double got,
                                  double want, int number)
{
    gcomp_try_record *f = &t->found;
    if (f->fault != GCOMP_TRY_FINE) return;
    f->fault = (uint32_t)fault;
    f->kind = (uint32_t)t->now.kind | (t->now.stride == GCOMP_TRY_STRIDE ? 256u : 0u) |
        (t->by_start ? 512u : 0u);
    f->dtype = (uint32_t)t->now.dtype;
    f->number = number;
    f->at = at;
    f->got = got;
    f->want = want;
}

static inline uint64_t gcomp_try_mix(uint64_t digest, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ data[i]) * 1099511628211u;
    return digest;
}

/* ---------------- requests */

/* Through start, test and wait. The request that start gets is gone after the call. */
static inline int gcomp_try_started(gcomp_try_work *t)
{
    gcomp_request given = t->now;
    int status, done = 0;
    given.id = t->id++;
    status = (t->comm.start)(t->comm.user, &given);
    memset(&given, 0x5a, sizeof given);
    for (int k = 0; k < 100 && !done && !status; k++)
        status = (t->comm.test)(t->comm.user, t->id - 1, &done);
    return status || done ? status : (t->comm.wait)(t->comm.user, t->id - 1);
}

static inline int gcomp_try_blocking(const gcomp_try_work *t)
{
    const gcomp_comm *c = &t->comm;
    const gcomp_request *r = &t->now;
    if (r->kind == GCOMP_ALLREDUCE) return (c->allreduce)(c->user, r->recv, r->count, r->dtype);
    if (r->kind == GCOMP_ALLREDUCE_MAX)
        return (c->allreduce_max)(c->user, (float *)r->recv, r->count);
    if (r->kind == GCOMP_ALLTOALL)
        return (c->alltoallv)(c->user, r->send, r->send_bytes, r->recv, r->bytes);
    if (r->stride == GCOMP_TRY_STRIDE)
        return (c->allgatherv)(c->user, r->send, r->recv, r->bytes, r->stride);
    return (c->allgather)(c->user, r->send, r->recv, r->stride);
}

/* Carries out t->now, whose result has so many bytes. Returns 0, or 1 after a note. */
static inline int gcomp_try_carry(gcomp_try_work *t, size_t bytes)
{
    const uint64_t sent = gcomp_try_mix(0, t->send, t->room);
    int status;
    if (t->failures == GCOMP_TRY_MOST) return 1;
    memset(t->recv + bytes, GCOMP_TRY_GUARDED, GCOMP_TRY_GUARD);
    status = t->by_start ? gcomp_try_started(t) : gcomp_try_blocking(t);
    t->failures += status != 0;
    if (status) gcomp_try_note(t, GCOMP_TRY_STATUS, 0, 0, 0, status);
    for (size_t i = 0; i < GCOMP_TRY_GUARD; i++)
        if (t->recv[bytes + i] != GCOMP_TRY_GUARDED)
            gcomp_try_note(t, GCOMP_TRY_OUTSIDE, i, 0, 0, 0);
    if (sent != gcomp_try_mix(0, t->send, t->room))
        gcomp_try_note(t, GCOMP_TRY_INPUT, 0, 0, 0, 0);
    return status != 0;
}

static inline void gcomp_try_ask(gcomp_try_work *t, gcomp_request_kind kind, gcomp_dtype dtype)
{
    memset(&t->now, 0, sizeof t->now);
    t->now.kind = kind;
    t->now.dtype = dtype;
    t->now.send = t->send;
    t->now.recv = t->recv;
}

/* ---------------- sums and maxima */

static inline size_t gcomp_try_size(gcomp_dtype dtype)
{
    return dtype == GCOMP_F32 || dtype == GCOMP_I32 ? 4 : dtype == GCOMP_I8 ? 1 : 2;
}

static inline void gcomp_try_put(void *data, size_t i, gcomp_dtype dtype, double value)
{
    const float real = (float)value;
    if (dtype == GCOMP_F32) ((float *)data)[i] = real;
    else if (dtype == GCOMP_I8) ((int8_t *)data)[i] = (int8_t)value;
    else if (dtype == GCOMP_I16) ((int16_t *)data)[i] = (int16_t)value;
    else if (dtype == GCOMP_I32) ((int32_t *)data)[i] = (int32_t)value;
    else if (gcomp_convert((uint16_t *)data + i, dtype, &real, GCOMP_F32, 1, NULL) != GCOMP_OK)
        ((uint16_t *)data)[i] = 0;
}

static inline double gcomp_try_get(const void *data, size_t i, gcomp_dtype dtype)
{
    float real = 0;
    if (dtype == GCOMP_F32) return (double)((const float *)data)[i];
    if (dtype == GCOMP_I8) return ((const int8_t *)data)[i];
    if (dtype == GCOMP_I16) return ((const int16_t *)data)[i];
    if (dtype == GCOMP_I32) return ((const int32_t *)data)[i];
    if (gcomp_convert(&real, GCOMP_F32, (const uint16_t *)data + i, dtype, 1,
                      NULL) != GCOMP_OK) return 0;
    return (double)real;
}

/* What a rank brings to a sum: whole numbers, whose sum fits into the type. The first two ranks
   bring what differs from the mean and from the maximum. */
static inline double gcomp_try_number(int rank, size_t i, gcomp_dtype dtype)
{
    const int small = rank == 0 ? -1 : rank == 1 ? 9 : rank < 100;
    const double sign = i % 2 ? -1 : 1, size = (double)(i % 7 + 1);
    if (dtype == GCOMP_F32) return (rank % 8 + 1) * size;
    if (dtype == GCOMP_I16) return small * sign * size;
    if (dtype == GCOMP_I32) return small * sign * size * 100003;
    return small * sign; /* 8 bits, and halves, which have 8 bits before they round */
}

/* What a rank brings to a maximum. */
static inline double gcomp_try_height(int rank, size_t i)
{
    return (double)((i * 31 + (size_t)rank * 17) % 101);
}

static inline int gcomp_try_equal(double a, double b) { return a - b < 0.25 && b - a < 0.25; }

/* Says what is wrong with element i of a sum or maximum. */
static inline void gcomp_try_judge(gcomp_try_work *t, size_t i, double got)
{
    const int largest = t->now.kind == GCOMP_ALLREDUCE_MAX, world = t->comm.world;
    double sum = 0, most = -1e300, own = 0, mean;
    for (int w = 0; w < world; w++) {
        const double x = largest ? gcomp_try_height(w, i) : gcomp_try_number(w, i, t->now.dtype);
        sum += x;
        if (x > most) most = x;
        if (w == t->comm.rank) own = x;
    }
    if (got >= -1e300 && gcomp_try_equal(got, largest ? most : sum)) return;
    mean = sum / world;
    if (t->now.dtype != GCOMP_F32 && t->now.dtype != GCOMP_F16 && t->now.dtype != GCOMP_BF16)
        mean = (double)(long)mean;
    gcomp_try_note(t,
                   !(got >= -1e300)                              ? GCOMP_TRY_VALUE
                       : gcomp_try_equal(got, own)               ? GCOMP_TRY_UNCHANGED
                       : largest && gcomp_try_equal(got, sum)    ? GCOMP_TRY_SUMMED
                       : largest                                 ? GCOMP_TRY_VALUE
                       : gcomp_try_equal(got / mean * 50, 50)    ? GCOMP_TRY_AVERAGE
                       : gcomp_try_equal(got, most)              ? GCOMP_TRY_LARGEST
                                                                 : GCOMP_TRY_VALUE,
                   i, got, largest ? most : sum, 0);
}

/* A sum or maximum of so many known numbers. */
static inline void gcomp_try_reduce(gcomp_try_work *t, gcomp_request_kind kind, gcomp_dtype dtype,
                                    size_t count)
{
    const int rank = t->comm.rank;
    gcomp_try_ask(t, kind, dtype);
    t->now.count = count;
    for (size_t i = 0; i < count; i++)
        gcomp_try_put(t->recv, i, dtype,
                      kind == GCOMP_ALLREDUCE ? gcomp_try_number(rank, i, dtype)
                                              : gcomp_try_height(rank, i));
    if (gcomp_try_carry(t, count * gcomp_try_size(dtype))) return;
    for (size_t i = 0; i < count && t->found.fault == GCOMP_TRY_FINE; i++)
        gcomp_try_judge(t, i, gcomp_try_get(t->recv, i, dtype));
}

/* A sum in which one worker has infinity, one NaN, and two have both infinities. */
static inline void gcomp_try_infinity(gcomp_try_work *t)
{
    static const uint32_t bits[3] = {0x7f800000u, 0x7fc00000u, 0xff800000u};
    const int last = t->comm.rank == t->comm.world - 1, first = t->comm.rank == 0;
    uint32_t word;
    gcomp_try_ask(t, GCOMP_ALLREDUCE, GCOMP_F32);
    t->now.count = 3;
    memset(t->recv, 0, 3 * sizeof word);
    if (last) memcpy(t->recv, bits, sizeof bits);
    if (first) memcpy(t->recv + 8, bits, 4);
    if (gcomp_try_carry(t, 3 * sizeof word)) return;
    for (size_t i = 0; i < 3; i++) {
        memcpy(&word, t->recv + 4 * i, sizeof word);
        if (i ? (word & 0x7fffffffu) <= bits[0] : word != bits[0])
            gcomp_try_note(t, GCOMP_TRY_LOST, i, 0, 0, 0);
    }
}

/* A sum that is rounded: its bits depend on the order in which workers are added. */
static inline void gcomp_try_rounded(gcomp_try_work *t, gcomp_dtype dtype)
{
    const size_t bytes = GCOMP_TRY_FEW * gcomp_try_size(dtype);
    gcomp_try_ask(t, GCOMP_ALLREDUCE, dtype);
    t->now.count = GCOMP_TRY_FEW;
    for (size_t i = 0; i < GCOMP_TRY_FEW; i++) {
        const uint64_t key = gcomp_key_make(1, i, (uint32_t)t->comm.rank, 0).shared;
        gcomp_try_put(t->recv, i, dtype, (double)(key & 0xffffff) / 0xffffff / t->comm.world);
    }
    if (!gcomp_try_carry(t, bytes)) t->found.bits = gcomp_try_mix(t->found.bits, t->recv, bytes);
}

static inline void gcomp_try_sums(gcomp_try_work *t, unsigned able)
{
    for (int d = GCOMP_F32; d <= GCOMP_I32; d++) {
        const gcomp_dtype dtype = (gcomp_dtype)d;
        if (dtype == GCOMP_U8 || (dtype != GCOMP_F32 && !(able >> (GCOMP_TRY_DTYPES + d) & 1)))
            continue;
        gcomp_try_reduce(t, GCOMP_ALLREDUCE, dtype, GCOMP_TRY_COUNT);
        gcomp_try_reduce(t, GCOMP_ALLREDUCE, dtype, 1);
        if (dtype == GCOMP_F32) gcomp_try_infinity(t);
        if (dtype <= GCOMP_BF16) gcomp_try_rounded(t, dtype);
    }
}

/* ---------------- gathers, and bytes from each to each */

/* Byte i of what a rank sends to another one; to: 0 in gathers. */
static inline unsigned char gcomp_try_byte(int rank, int to, size_t i)
{
    uint32_t x = (uint32_t)rank * 2654435761u ^ (uint32_t)to * 2246822519u;
    x ^= (uint32_t)i * 668265263u;
    x ^= x >> 15;
    return (unsigned char)(x * 2654435761u >> 24);
}

static inline int gcomp_try_is_from(const unsigned char *data, int rank, int to, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && data[i] == gcomp_try_byte(rank, to, i)) i++;
    return i == bytes;
}

/* A block that should be what `rank` sent: notes the first wrong byte. */
static inline void gcomp_try_block(gcomp_try_work *t, const unsigned char *data, int rank, int to,
                                   size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != gcomp_try_byte(rank, to, i))
            gcomp_try_note(t, GCOMP_TRY_BYTES, i, 0, 0, rank);
}

/* Looks at what was gathered: t->now.bytes bytes of each worker. */
static inline void gcomp_try_look(gcomp_try_work *t)
{
    size_t packed = 0;
    for (int w = 0; w < t->comm.world && t->found.fault == GCOMP_TRY_FINE; w++) {
        const unsigned char *place = t->recv + (size_t)w * t->now.stride;
        const size_t bytes = t->now.bytes[w];
        if (!gcomp_try_is_from(place, w, 0, bytes)) {
            for (int r = 0; r < t->comm.world && bytes > 8; r++)
                if (gcomp_try_is_from(place, r, 0, bytes))
                    gcomp_try_note(t, GCOMP_TRY_ORDER, (uint64_t)w, 0, 0, r);
            if (packed != (size_t)w * t->now.stride &&
                gcomp_try_is_from(t->recv + packed, w, 0, bytes))
                gcomp_try_note(t, GCOMP_TRY_PACKED, 0, 0, 0, 0);
            gcomp_try_block(t, place, w, 0, bytes);
        }
        packed += bytes;
    }
}

/* Prepares a gather. turn -1: of `stride` bytes of each; else of unequal lengths, also of none. */
static inline void gcomp_try_prepare(gcomp_try_work *t, size_t stride, int turn)
{
    static const size_t lengths[4] = {41, 7, 0, GCOMP_TRY_STRIDE};
    gcomp_try_ask(t, GCOMP_ALLGATHER, GCOMP_U8);
    t->now.stride = stride;
    t->now.bytes = t->in;
    for (int w = 0; w < t->comm.world; w++) t->in[w] = turn < 0 ? stride : lengths[(w + turn) % 4];
    for (size_t i = 0; i < stride; i++) t->send[i] = gcomp_try_byte(t->comm.rank, 0, i);
    memset(t->recv, GCOMP_TRY_GUARDED, (size_t)t->comm.world * stride);
}

static inline void gcomp_try_gather(gcomp_try_work *t, size_t stride, int turn)
{
    gcomp_try_prepare(t, stride, turn);
    if (!gcomp_try_carry(t, (size_t)t->comm.world * stride)) gcomp_try_look(t);
}

/* Bytes that one rank sends to another. */
static inline size_t gcomp_try_length(int from, int to, int turn)
{
    return (size_t)((from + 2 * to + turn) % 4) * 5;
}

static inline void gcomp_try_swap(gcomp_try_work *t, int turn)
{
    const int rank = t->comm.rank, world = t->comm.world;
    unsigned char *out = t->send, *in = t->recv;
    size_t bytes = 0;
    gcomp_try_ask(t, GCOMP_ALLTOALL, GCOMP_U8);
    t->now.send_bytes = t->out;
    t->now.bytes = t->in;
    for (int w = 0; w < world; w++) {
        t->out[w] = gcomp_try_length(rank, w, turn);
        t->in[w] = gcomp_try_length(w, rank, turn);
        bytes += t->in[w];
        for (size_t i = 0; i < t->out[w]; i++) *out++ = gcomp_try_byte(rank, w, i);
    }
    memset(t->recv, GCOMP_TRY_GUARDED, bytes);
    if (gcomp_try_carry(t, bytes)) return;
    for (int w = 0; w < world; in += t->in[w++]) gcomp_try_block(t, in, w, rank, t->in[w]);
}

/* Two requests under way at once; the second one is waited for first. */
static inline void gcomp_try_two(gcomp_try_work *t)
{
    float sum[3 + GCOMP_TRY_GUARD / sizeof(float)] = {1, 1, 1}; /* zeros are the guard */
    gcomp_request first, second;
    int status;
    if (t->failures) return;
    gcomp_try_prepare(t, GCOMP_TRY_STRIDE, 0);
    first = t->now;
    first.id = t->id++;
    gcomp_try_ask(t, GCOMP_ALLREDUCE, GCOMP_F32);
    second = t->now;
    second.id = t->id++;
    second.recv = sum;
    second.count = 3;
    status = (t->comm.start)(t->comm.user, &first);
    if (!status) status = (t->comm.start)(t->comm.user, &second);
    if (!status) status = (t->comm.wait)(t->comm.user, second.id);
    for (size_t i = 0; i < 3 && !status; i++)
        if (!gcomp_try_equal((double)sum[i], t->comm.world))
            gcomp_try_note(t, GCOMP_TRY_VALUE, i, (double)sum[i], t->comm.world, 0);
    for (size_t i = 3; i < sizeof sum / sizeof *sum; i++)
        if (!gcomp_try_equal((double)sum[i], 0)) gcomp_try_note(t, GCOMP_TRY_OUTSIDE, i, 0, 0, 0);
    t->now = first;
    if (!status) status = (t->comm.wait)(t->comm.user, first.id);
    if (status) gcomp_try_note(t, GCOMP_TRY_STATUS, 0, 0, 0, status);
    else gcomp_try_look(t);
}

/* ---------------- the workers */

/* What is set. */
static inline unsigned gcomp_try_able(const gcomp_comm *c)
{
    unsigned able = (c->allreduce_dtypes & 0xffu) << GCOMP_TRY_DTYPES;
    if (c->allreduce) able |= GCOMP_TRY_SUM;
    if (c->allreduce_max) able |= GCOMP_TRY_MAX;
    if (c->allgather) able |= GCOMP_TRY_GATHER;
    if (c->allgatherv) able |= GCOMP_TRY_GATHERV;
    if (c->alltoallv) able |= GCOMP_TRY_ALLTOALLV;
    if (c->start && c->test && c->wait) able |= GCOMP_TRY_START;
    return able;
}

/* Gathers the records of all: into t->recv. Returns 0, or 1 after a note. */
static inline int gcomp_try_records(gcomp_try_work *t)
{
    gcomp_try_prepare(t, sizeof t->found, -1);
    memcpy(t->send, &t->found, sizeof t->found);
    t->failures = 0; /* this one is worth a try */
    return gcomp_try_carry(t, (size_t)t->comm.world * sizeof t->found);
}

static inline gcomp_try_record gcomp_try_record_of(const gcomp_try_work *t, int w)
{
    gcomp_try_record record;
    memcpy(&record, t->recv + (size_t)w * sizeof record, sizeof record);
    return record;
}

/* Callbacks that all workers have set. Notes a worker that has set others, or stands elsewhere. */
static inline unsigned gcomp_try_common(gcomp_try_work *t)
{
    const unsigned mine = t->found.able;
    unsigned able = mine;
    if (gcomp_try_records(t)) return able;
    for (int w = 0; w < t->comm.world; w++) {
        const gcomp_try_record other = gcomp_try_record_of(t, w);
        if (other.magic != t->found.magic) gcomp_try_note(t, GCOMP_TRY_BYTES, 0, 0, 0, w);
        else if (other.rank != w) gcomp_try_note(t, GCOMP_TRY_ORDER, (uint64_t)w, 0, 0, other.rank);
        else if (other.able != mine || other.world != t->comm.world)
            gcomp_try_note(t, GCOMP_TRY_OTHERS, 0, 0, 0, w);
        if (other.magic == t->found.magic) able &= other.able;
    }
    return able;
}

/* Tries what all have, in one order. */
static inline void gcomp_try_all(gcomp_try_work *t, unsigned able)
{
    const int started = (able & GCOMP_TRY_START) != 0;
    for (t->by_start = 0; t->by_start <= started; t->by_start++) {
        unsigned now = able;
        if (t->by_start)
            now |= GCOMP_TRY_SUM | GCOMP_TRY_MAX | GCOMP_TRY_GATHER | GCOMP_TRY_GATHERV;
        if (now & GCOMP_TRY_GATHER) {
            gcomp_try_gather(t, 64, -1);
            gcomp_try_gather(t, 37, -1);
            gcomp_try_gather(t, 1, -1);
        }
        if (now & GCOMP_TRY_SUM) gcomp_try_sums(t, able);
        if (now & GCOMP_TRY_MAX)
            gcomp_try_reduce(t, GCOMP_ALLREDUCE_MAX, GCOMP_F32, GCOMP_TRY_COUNT);
        for (int turn = -1; turn < 4 && now & GCOMP_TRY_GATHERV; turn++)
            gcomp_try_gather(t, GCOMP_TRY_STRIDE, turn);
        for (int turn = 0; turn < 4 && now & GCOMP_TRY_ALLTOALLV; turn++) gcomp_try_swap(t, turn);
    }
    t->by_start = 1;
    if (started) gcomp_try_two(t);
    t->by_start = !(able & GCOMP_TRY_GATHER) && started;
}

/* "start and wait, allreduce of fp32" */
static inline void gcomp_try_name(const gcomp_try_record *f, char *name, size_t capacity)
{
    static const char *const types[] = {"fp32", "fp16", "bf16", "u8", "int8", "int16", "int32"};
    const unsigned kind = f->kind & 255;
    const char *what = kind == GCOMP_ALLREDUCE ? "allreduce"
        : kind == GCOMP_ALLREDUCE_MAX          ? "allreduce_max"
        : kind == GCOMP_ALLTOALL               ? "alltoallv"
        : (f->kind & 768) == 256               ? "allgatherv"
                                               : "allgather";
    snprintf(name, capacity, "%s%s%s%s", f->kind & 512 ? "start and wait, " : "", what,
             kind == GCOMP_ALLREDUCE ? " of " : "",
             kind == GCOMP_ALLREDUCE && f->dtype <= GCOMP_I32 ? types[f->dtype] : "");
}

/* What rank w has found, as a sentence. */
static inline void gcomp_try_say(const gcomp_try_record *f, int w, char *why, size_t capacity)
{
    const unsigned long long at = f->at;
    char name[64], text[160] = "";
    gcomp_try_name(f, name, sizeof name);
    switch (f->fault) {
    case GCOMP_TRY_STATUS: snprintf(text, sizeof text, " returned %d", (int)f->number); break;
    case GCOMP_TRY_AVERAGE:
        snprintf(text, sizeof text, " averages: element %llu is %g, and the sum is %g", at, f->got,
                 f->want);
        break;
    case GCOMP_TRY_UNCHANGED:
        snprintf(text, sizeof text, " leaves the data as they were: the result comes in place");
        break;
    case GCOMP_TRY_LARGEST:
        snprintf(text, sizeof text, " returns the largest number instead of the sum");
        break;
    case GCOMP_TRY_SUMMED:
        snprintf(text, sizeof text, " returns the sum instead of the largest number");
        break;
    case GCOMP_TRY_VALUE:
        snprintf(text, sizeof text, ": element %llu is %g instead of %g", at, f->got, f->want);
        break;
    case GCOMP_TRY_LOST:
        snprintf(text, sizeof text, ": an infinity or NaN of one worker has vanished");
        break;
    case GCOMP_TRY_ORDER:
        snprintf(text, sizeof text, ": the place of rank %llu holds what rank %d sent", at,
                 (int)f->number);
        break;
    case GCOMP_TRY_PACKED:
        snprintf(text, sizeof text, " packs: the place of worker w begins at w * stride");
        break;
    case GCOMP_TRY_BYTES:
        snprintf(text, sizeof text, ": what rank %d sent is wrong from byte %llu on",
                 (int)f->number, at);
        break;
    case GCOMP_TRY_OUTSIDE: snprintf(text, sizeof text, " writes behind its result"); break;
    case GCOMP_TRY_INPUT: snprintf(text, sizeof text, " changes the bytes that it sends"); break;
    case GCOMP_TRY_BITS:
        snprintf(name, sizeof name, "allreduce");
        snprintf(text, sizeof text, ": sums have other bits than on rank 0");
        break;
    case GCOMP_TRY_OTHERS:
        snprintf(name, sizeof name, "comm");
        snprintf(text, sizeof text, ": rank %d has other callbacks, allreduce_dtypes or world",
                 (int)f->number);
        break;
    case GCOMP_TRY_PARTS:
        snprintf(name, sizeof name, "start, test and wait");
        snprintf(text, sizeof text, ": set all three, or none");
        break;
    case GCOMP_TRY_NO_GATHER:
        snprintf(name, sizeof name, "comm.allgather");
        snprintf(text, sizeof text, " is NULL");
        break;
    default: snprintf(text, sizeof text, ": unknown fault"); break;
    }
    if (why && capacity) snprintf(why, capacity, "rank %d: %s%s", w, name, text);
}

/* All hear what each has found, and all choose the finding of the lowest rank. */
static inline gcomp_result gcomp_try_verdict(gcomp_try_work *t, char *why, size_t capacity)
{
    gcomp_try_record worst = t->found;
    int who = t->comm.rank;
    if (!gcomp_try_records(t)) {
        const uint64_t bits = gcomp_try_record_of(t, 0).bits;
        int w = 0;
        for (; w < t->comm.world; w++) {
            gcomp_try_record other = gcomp_try_record_of(t, w);
            if (other.magic != t->found.magic || other.rank != w) break; /* allgather is broken */
            if (other.fault == GCOMP_TRY_FINE && other.bits != bits) other.fault = GCOMP_TRY_BITS;
            if (other.fault == GCOMP_TRY_FINE) continue;
            worst = other;
            who = w;
            break;
        }
        if (w == t->comm.world) worst = t->found; /* nobody has found anything */
    } else worst = t->found;
    if (worst.fault == GCOMP_TRY_FINE) return GCOMP_OK;
    gcomp_try_say(&worst, who, why, capacity);
    return worst.fault == GCOMP_TRY_OTHERS ? GCOMP_MISMATCH : GCOMP_CALLBACK_FAILED;
}

/* Tries all callbacks of a gcomp_comm. All workers call it together. One worker alone has nothing
   to try.
     why[why_capacity]  out  a sentence if a callback is wrong, on this worker or another; else
                             ""; may be NULL
   Returns GCOMP_OK; GCOMP_CALLBACK_FAILED: a callback is wrong; GCOMP_MISMATCH: workers have set
   other callbacks; and without a call of a callback GCOMP_INVALID_ARGUMENT (comm, rank, world),
   GCOMP_MISSING_CALLBACK (no allgather) and GCOMP_OUT_OF_MEMORY, which the others do not hear. */
static inline gcomp_result gcomp_try(const gcomp_comm *comm, char *why, size_t why_capacity)
{
    gcomp_try_work t;
    gcomp_result result;
    size_t world, bytes;
    char *memory;
    memset(&t, 0, sizeof t);
    if (why && why_capacity) why[0] = 0;
    if (!comm || comm->world < 0 || comm->rank < 0 ||
        comm->rank >= (comm->world > 1 ? comm->world : 1)) {
        if (why && why_capacity)
            snprintf(why, why_capacity, "comm.rank is none of 0 .. comm.world - 1");
        return GCOMP_INVALID_ARGUMENT;
    }
    if (comm->world <= 1) return GCOMP_OK;
    t.comm = *comm;
    t.found.magic = 0x5954434fu;
    t.found.rank = comm->rank;
    t.found.world = comm->world;
    t.found.able = gcomp_try_able(comm);
    if (!(t.found.able & (GCOMP_TRY_GATHER | GCOMP_TRY_START))) {
        t.found.fault = GCOMP_TRY_NO_GATHER;
        gcomp_try_say(&t.found, comm->rank, why, why_capacity);
        return GCOMP_MISSING_CALLBACK;
    }
    world = (size_t)comm->world;
    t.room = GCOMP_TRY_STRIDE * world > 4 * GCOMP_TRY_COUNT ? GCOMP_TRY_STRIDE * world
                                                            : 4 * GCOMP_TRY_COUNT;
    bytes = 2 * world * sizeof(size_t) + 2 * (t.room + GCOMP_TRY_GUARD);
    memory = (char *)calloc(1, bytes);
    if (!memory) {
        if (why && why_capacity) snprintf(why, why_capacity, "no memory for the trial");
        return GCOMP_OUT_OF_MEMORY;
    }
    t.out = (size_t *)(void *)memory;
    t.in = t.out + world;
    t.recv = (unsigned char *)(t.in + world);
    t.send = t.recv + t.room + GCOMP_TRY_GUARD;
    if ((comm->start || comm->test || comm->wait) && !(t.found.able & GCOMP_TRY_START))
        gcomp_try_note(&t, GCOMP_TRY_PARTS, 0, 0, 0, 0);
    t.by_start = !comm->allgather;
    gcomp_try_all(&t, gcomp_try_common(&t));
    result = gcomp_try_verdict(&t, why, why_capacity);
    free(memory);
    return result;
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_TRY_H */
