/* gcomp_advise.h - does compressing pay: for which tensor, with which codec, on this machine, over
   this link? Copy it, change it. Licence: as gcomp.h.

       gcomp_advise_candidate candidates[2] = {{"none"}, {"powersgd:rank=4"}};
       gcomp_advise_question question = {0};
       gcomp_advise_choice each[TENSORS];
       gcomp_advice advice;
       question.desc = &desc;              as for gcomp_open, with desc.clock
       question.link = gcomp_advise_link_of(1e9, 50e-6, 8);   or gcomp_advise_link_measure
       question.tensors = tensors;
       question.tensor_count = TENSORS;
       question.candidates = candidates;
       question.candidate_count = 2;
       if (gcomp_advise(&question, each, &advice)) return 1;  desc.why has the sentence
       tensors[i].codec = candidates[each[i].choice].codec;   each i, before gcomp_add_tensor

   The adviser adds up the time of a step: the processor's time for each codec, which it measures
   here, and the time on the link, which has a start and a time a byte. Ask on rank 0 and tell the
   others: all workers must use the same codecs. */

#ifndef GCOMP_ADVISE_H
#define GCOMP_ADVISE_H

#include "gcomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

/* The time of a collective to which each worker brings b bytes: start + b * byte, in seconds. */
typedef struct gcomp_advise_link {
    double sum_start, sum_byte;           /* allreduce */
    double gather_start, gather_byte;     /* allgather */
    double exchange_start, exchange_byte; /* alltoall; the b bytes go to all workers together, b /
                                             world to each. Both 0: it takes as long as a gather to
                                             which each worker brings b / world bytes */
} gcomp_advise_link;

/* What a codec costs on a machine: everything that a step does except communicating. */
typedef struct gcomp_advise_figures {
    double tensor;  /* seconds a tensor, whatever its size */
    double element; /* seconds an element: to encode, and to commit one payload or a sum */
    double payload; /* seconds an element for each further payload. Not used for sums */
    double bytes;   /* bytes an element in its payload. Not used for sums, whose size is known */
    double noise;   /* the times may be wrong by this part of them: how far the measurements lay
                       apart. 0 for times that are given */
} gcomp_advise_figures;

typedef struct gcomp_advise_candidate {
    const char *codec; /* REQUIRED */
    gcomp_advise_figures figures; /* gcomp_advise measures what is missing and writes it here: the
                                     three times and their noise where all three are 0; bytes, where
                                     it is 0 and the codec has payloads */
} gcomp_advise_candidate;

enum { GCOMP_ADVISE_CANDIDATES = 16 }; /* at most */

typedef struct gcomp_advise_question {
    const gcomp_desc *desc; /* REQUIRED: as for gcomp_open. codec and schedule are not read, and no
                               callback of comm is called. Set desc.optimizer: candidates that
                               gcomp_warning warns of are not chosen */
    gcomp_advise_link link;
    const gcomp_tensor *tensors; /* [tensor_count]; their codecs are not read */
    size_t tensor_count;
    gcomp_advise_candidate *candidates; /* [candidate_count]; the first is "none" */
    size_t candidate_count;
} gcomp_advise_question;

/* The advice for one tensor. */
typedef struct gcomp_advise_choice {
    size_t choice;  /* number of a candidate, for gcomp_tensor.codec; 0: do not compress */
    double seconds; /* its part of a step, without the start of collectives, which tensors share */
    double plain;   /* the same if the tensor is not compressed */
    gcomp_request_kind form; /* how its mean is made: GCOMP_ALLREDUCE as a sum, GCOMP_ALLGATHER from
                                the payloads of all, GCOMP_ALLTOALL by ranges */
    gcomp_dtype dtype;       /* of the sum: GCOMP_F32, GCOMP_BF16, ...; GCOMP_U8 for payloads */
    size_t sent; /* bytes that a worker sends over the network, at most, as gcomp_rounds counts */
} gcomp_advise_choice;

/* The advice for a step. */
typedef struct gcomp_advice {
    size_t compressed; /* tensors with a choice other than 0. If there is none: do not compress */
    double seconds;    /* of a step as advised: codec_seconds + link_seconds */
    double codec_seconds;
    double link_seconds;
    double plain; /* of a step without compression */
    double noise; /* seconds by which the measurements of what is advised may be wrong; 0 where all
                     figures were given. A step as advised takes less than plain - noise */
    const char *note; /* a sentence where no codec can gain: there is one worker, or the link takes
                         no time. Else NULL */
} gcomp_advice;

/* The link of `world` workers in a ring, from its bandwidth and the seconds that an empty message
   takes: a sum is 2 (world - 1) messages of b / world bytes, a gather is world - 1 messages of b
   bytes, an alltoall is world - 1 messages of b / world bytes. Zeros for one worker. */
static inline gcomp_advise_link gcomp_advise_link_of(double bits_per_second, double latency,
                                                     int world)
{
    const double others = world > 1 ? (double)(world - 1) : 0;
    gcomp_advise_link link;
    memset(&link, 0, sizeof link);
    if (others == 0) return link;
    link.sum_start = 2 * others * latency;
    link.sum_byte = 16 * others / (double)world / bits_per_second;
    link.gather_start = others * latency;
    link.gather_byte = 8 * others / bits_per_second;
    link.exchange_start = others * latency;
    link.exchange_byte = 8 * others / (double)world / bits_per_second;
    return link;
}

/* ---------------- small things */

enum { GCOMP_ADVISE_REPEATS = 3, GCOMP_ADVISE_TIMES = 6 }; /* times: the numbers of a link */
enum {
    GCOMP_ADVISE_FRAME = 64,  /* bytes of a frame */
    GCOMP_ADVISE_HEADER = 32, /* of a payload's header */
    GCOMP_ADVISE_LENGTH = 16  /* of what workers tell each other before shards and sums */
};

static inline double gcomp_advise_now(const gcomp_desc *d)
{
    return d->clock ? (d->clock)(d->clock_user) : 0;
}

static inline void *gcomp_advise_take(const gcomp_desc *d, size_t bytes)
{
    return d->allocator.alloc ? (d->allocator.alloc)(d->allocator.user, bytes, 64)
                              : (malloc)(bytes);
}

static inline void gcomp_advise_give(const gcomp_desc *d, void *memory, size_t bytes)
{
    if (!memory) return;
    if (d->allocator.free) (d->allocator.free)(d->allocator.user, memory, bytes);
    else (free)(memory);
}

/* Writes a sentence, and passes the result on. */
static inline gcomp_result gcomp_advise_fail(const gcomp_desc *d, gcomp_result result,
                                             const char *sentence)
{
    if (d->why && d->why_capacity) snprintf(d->why, d->why_capacity, "%s", sentence);
    return result;
}

/* The middle one of three. */
static inline double gcomp_advise_middle(const double t[GCOMP_ADVISE_REPEATS])
{
    const double low = t[0] < t[1] ? t[0] : t[1], high = t[0] < t[1] ? t[1] : t[0];
    return t[2] < low ? low : t[2] > high ? high : t[2];
}

/* How far three times lie apart, as a part of the middle one: the noise of a measurement. */
static inline double gcomp_advise_spread(const double t[GCOMP_ADVISE_REPEATS])
{
    const double middle = gcomp_advise_middle(t);
    double low = t[0], high = t[0];
    for (int i = 1; i < GCOMP_ADVISE_REPEATS; i++) {
        if (t[i] < low) low = t[i];
        if (t[i] > high) high = t[i];
    }
    return middle > 0 ? (high - low) / middle : 0;
}

/* Are these numbers finite and not negative? */
static inline int gcomp_advise_are_times(const double *x, size_t count)
{
    size_t i = 0;
    while (i < count && x[i] >= 0 && x[i] <= 1e300) i++;
    return i == count;
}

/* ---------------- the link, measured */

/* Carries out a collective to which each worker brings so many bytes of `mine`. What comes from all
   goes behind these. An alltoall takes less room than a gather, and keeps its sizes there:
     gather     | mine: bytes | from all: bytes * world                        |
     alltoall   | mine: bytes | from all: bytes | sizes: size_t * world | ...   */
static inline int gcomp_advise_carry(const gcomp_desc *d, gcomp_request_kind kind, float *mine,
                                     size_t bytes)
{
    const gcomp_comm *comm = &d->comm;
    float *const from = mine + bytes / 4;
    if (kind == GCOMP_ALLREDUCE)
        return (comm->allreduce)(comm->user, mine, bytes / 4, GCOMP_F32);
    if (kind == GCOMP_ALLGATHER) return (comm->allgather)(comm->user, mine, from, bytes);
    size_t *const sizes = (size_t *)(void *)(from + bytes / 4);
    for (int w = 0; w < comm->world; w++) sizes[w] = bytes / (size_t)comm->world;
    return (comm->alltoallv)(comm->user, mine, sizes, from, sizes);
}

/* The middle time of a collective to which each worker brings so many bytes. */
static inline int gcomp_advise_time_collective(const gcomp_desc *d, gcomp_request_kind kind,
                                               float *mine, size_t bytes, double *seconds)
{
    double t[GCOMP_ADVISE_REPEATS];
    for (int repeat = -1; repeat < GCOMP_ADVISE_REPEATS; repeat++) { /* the first is a warm-up */
        const double from = gcomp_advise_now(d);
        const int status = gcomp_advise_carry(d, kind, mine, bytes);
        if (status != 0) return status;
        if (repeat >= 0) t[repeat] = gcomp_advise_now(d) - from;
    }
    *seconds = gcomp_advise_middle(t);
    return 0;
}

/* Start and slope of a collective, from a small one and a large one. An alltoall brings whole
   bytes to each worker: its small one has as many bytes as the lengths of shards. */
static inline int gcomp_advise_time_both(const gcomp_desc *d, gcomp_request_kind kind, float *mine,
                                         size_t bytes, double *start, double *byte)
{
    const size_t world = (size_t)d->comm.world;
    const size_t least =
        kind == GCOMP_ALLTOALL ? GCOMP_ADVISE_LENGTH * world : (size_t)GCOMP_ADVISE_FRAME;
    double few = 0, many = 0;
    int status;
    if (kind == GCOMP_ALLTOALL) bytes -= bytes % (4 * world);
    status = gcomp_advise_time_collective(d, kind, mine, least, &few);
    if (status == 0) status = gcomp_advise_time_collective(d, kind, mine, bytes, &many);
    *byte = many > few ? (many - few) / (double)(bytes - least) : 0;
    *start = few - (double)least * *byte;
    if (!(*start > 0)) *start = 0;
    return status;
}

/* Times each collective that desc.comm has: x[0] and x[1] are those of a sum, then those of a
   gather, then those of an alltoall. */
static inline gcomp_result gcomp_advise_time_all(const gcomp_desc *d, float *mine, size_t bytes,
                                                 double x[GCOMP_ADVISE_TIMES])
{
    if (gcomp_advise_time_both(d, GCOMP_ALLREDUCE, mine, bytes, x, x + 1) != 0)
        return gcomp_advise_fail(d, GCOMP_CALLBACK_FAILED, "allreduce failed");
    if (gcomp_advise_time_both(d, GCOMP_ALLGATHER, mine, bytes, x + 2, x + 3) != 0)
        return gcomp_advise_fail(d, GCOMP_CALLBACK_FAILED, "allgather failed");
    if (d->comm.alltoallv &&
        gcomp_advise_time_both(d, GCOMP_ALLTOALL, mine, bytes, x + 4, x + 5) != 0)
        return gcomp_advise_fail(d, GCOMP_CALLBACK_FAILED, "alltoallv failed");
    return GCOMP_OK;
}

/* Do all workers have memory? A sum of ones says how many have none. */
static inline gcomp_result gcomp_advise_all_have(const gcomp_desc *d, int mine)
{
    float missing = mine ? 0.0f : 1.0f;
    if ((d->comm.allreduce)(d->comm.user, &missing, 1, GCOMP_F32) != 0)
        return gcomp_advise_fail(d, GCOMP_CALLBACK_FAILED, "allreduce failed");
    if (!mine)
        return gcomp_advise_fail(d, GCOMP_OUT_OF_MEMORY,
                                 "no memory to send from and to receive in");
    if (missing != 0)
        return gcomp_advise_fail(d, GCOMP_PEER_FAILED,
                                 "another worker has no memory to measure the link");
    return GCOMP_OK;
}

/* x becomes the largest of all workers' x: a sum in which each worker has places of its own. */
static inline gcomp_result gcomp_advise_slowest(const gcomp_desc *d, float *all,
                                                double x[GCOMP_ADVISE_TIMES])
{
    const size_t world = (size_t)d->comm.world, count = GCOMP_ADVISE_TIMES;
    memset(all, 0, count * world * sizeof *all);
    for (size_t i = 0; i < count; i++) all[count * (size_t)d->comm.rank + i] = (float)x[i];
    if ((d->comm.allreduce)(d->comm.user, all, count * world, GCOMP_F32) != 0)
        return gcomp_advise_fail(d, GCOMP_CALLBACK_FAILED, "allreduce failed");
    for (size_t w = 0; w < world; w++) {
        double theirs[GCOMP_ADVISE_TIMES];
        for (size_t i = 0; i < count; i++) theirs[i] = (double)all[count * w + i];
        if (!gcomp_advise_are_times(theirs, count))
            return gcomp_advise_fail(d, GCOMP_MISMATCH, "a worker sent no times");
        for (size_t i = 0; i < count; i++)
            if (theirs[i] > x[i]) x[i] = theirs[i];
    }
    return GCOMP_OK;
}

/* Times desc.comm's allreduce and allgather, and alltoallv where it is set (else its times are 0),
   with few bytes and with `bytes` bytes (0: 1 MiB; best about as many as a step sends), each a few
   times. All workers call it together, between steps. All get the figures of the slowest worker.
   Takes (world + 1) * bytes of memory while it runs, bytes being 128 * world at least. One worker:
   zeros. Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_MISSING_CALLBACK without allreduce,
   allgather or desc.clock, GCOMP_OUT_OF_MEMORY, GCOMP_PEER_FAILED (another worker has no memory),
   GCOMP_CALLBACK_FAILED, GCOMP_MISMATCH; desc->why has the sentence. On error *link is
   unchanged. */
static inline gcomp_result gcomp_advise_link_measure(const gcomp_desc *desc, size_t bytes,
                                                     gcomp_advise_link *link)
{
    double x[GCOMP_ADVISE_TIMES] = {0, 0, 0, 0, 0, 0};
    if (!desc || !link) return GCOMP_INVALID_ARGUMENT;
    if (!desc->clock)
        return gcomp_advise_fail(desc, GCOMP_MISSING_CALLBACK,
                                 "desc.clock is NULL: there is nothing to measure with");
    if (desc->comm.world > 1) {
        const size_t world = (size_t)desc->comm.world;
        const size_t least = 2 * (size_t)GCOMP_ADVISE_FRAME * world;
        gcomp_result result;
        float *mine = NULL;
        if (desc->comm.rank < 0 || desc->comm.rank >= desc->comm.world)
            return gcomp_advise_fail(desc, GCOMP_INVALID_ARGUMENT, "comm.rank is none of world");
        if (!desc->comm.allreduce || !desc->comm.allgather)
            return gcomp_advise_fail(desc, GCOMP_MISSING_CALLBACK,
                                     "comm.allreduce or comm.allgather is NULL");
        if (bytes == 0) bytes = (size_t)1 << 20;
        if (bytes < least) bytes = least;
        bytes -= bytes % 4; /* it is floats that are summed */
        if (bytes <= (size_t)-1 / (world + 1))
            mine = (float *)gcomp_advise_take(desc, bytes * (world + 1));
        if (mine) memset(mine, 0, bytes * (world + 1));
        result = gcomp_advise_all_have(desc, mine != NULL);
        if (result == GCOMP_OK) result = gcomp_advise_time_all(desc, mine, bytes, x);
        if (result == GCOMP_OK) result = gcomp_advise_slowest(desc, mine, x);
        gcomp_advise_give(desc, mine, bytes * (world + 1));
        if (result != GCOMP_OK) return result;
    }
    link->sum_start = x[0];
    link->sum_byte = x[1];
    link->gather_start = x[2];
    link->gather_byte = x[3];
    link->exchange_start = x[4];
    link->exchange_byte = x[5];
    return GCOMP_OK;
}

/* ---------------- the question, looked at */

/* How the mean of a tensor is made with a candidate, and what it sends. */
typedef struct gcomp_advise_fact {
    double summed;           /* bytes of its sums */
    double headers;          /* bytes of its payloads beyond their bodies: less than
                                GCOMP_ADVISE_HEADER where a header is of several tensors */
    double shards;           /* by ranges: bytes of the own payloads, at most */
    double mean;             /* by ranges: the mean that is gathered is at most so many times as
                                long as the own payloads: in two shots 1, scattered 0 */
    size_t sent;             /* bytes on the network, at most */
    gcomp_request_kind form; /* ALLREDUCE: summed, ALLGATHER: gathered, ALLTOALL: by ranges */
    gcomp_dtype dtype;       /* of the numbers that are summed; U8: payloads */
    unsigned uses; /* a bit for each collective that it uses: bit 0 is the gather of payloads, bits
                      22 to 24 are those below, the others are sums. 0: the rules do not give the
                      tensor this codec */
} gcomp_advise_fact;

enum {
    GCOMP_ADVISE_GATHER = 1,
    GCOMP_ADVISE_RANGES = 1 << 22, /* the stages of means made by ranges: an alltoall, a gather */
    GCOMP_ADVISE_COUNTS = 1 << 23, /* topk:global=1: a sum more, to find where the mean is cut */
    GCOMP_ADVISE_LENGTHS = 1 << 24 /* stages before shards, if lengths of payloads vary */
};

/* A question with everything that is derived from it. */
typedef struct gcomp_advise_inquiry {
    const gcomp_advise_question *ask;
    gcomp_desc desc;          /* as the tensors are compressed; its sentences go to `reason` */
    gcomp_advise_link link;   /* with the times of an alltoall */
    gcomp_advise_fact *facts; /* [tensor_count][candidate_count] */
    gcomp_tensor *tensors;    /* [tensor_count], as gcomp_rounds is asked, and what it tells */
    gcomp_codec *given;       /* [tensor_count] */
    gcomp_round *rounds;      /* [tensor_count][GCOMP_ROUNDS] */
    size_t *choices;          /* [tensor_count] numbers of candidates */
    char reason[256];
} gcomp_advise_inquiry;

static inline size_t gcomp_advise_elements(const gcomp_tensor *t)
{
    return t->rows * (t->cols ? t->cols : 1) * (t->stack ? t->stack : 1);
}

static inline const gcomp_advise_fact *gcomp_advise_fact_of(const gcomp_advise_inquiry *q,
                                                            size_t tensor, size_t c)
{
    return q->facts + tensor * q->ask->candidate_count + c;
}

/* Is it the codec that does not compress? */
static inline int gcomp_advise_is_none(const gcomp_codec *codec)
{
    char text[8];
    return gcomp_codec_format(codec, text, sizeof text) == 4 && !strcmp(text, "none");
}

/* Does it apply only the largest elements of the mean? */
static inline int gcomp_advise_cuts_mean(const gcomp_codec *codec)
{
    char text[128];
    return gcomp_codec_format(codec, text, sizeof text) < sizeof text && strstr(text, "global=1");
}

/* "candidate 2: sentence" */
static inline gcomp_result gcomp_advise_refuse(const gcomp_advise_inquiry *q, gcomp_result result,
                                               size_t c, const char *sentence)
{
    char text[300];
    snprintf(text, sizeof text, "candidate %d: %s", (int)c, sentence);
    return gcomp_advise_fail(q->ask->desc, result, text);
}

/* The bit of a sum in this round: sums of different rounds or of different types do not travel
   together. */
static inline unsigned gcomp_advise_sum_bit(int round, const gcomp_round *r)
{
    /* floats, I8, I16, I32, F16, BF16, the largest */
    static const int place[] = {0, 4, 5, 0, 1, 2, 3};
    return 2u << (7 * round + (r->kind == GCOMP_ALLREDUCE_MAX ? 6 : place[r->dtype]));
}

/* Adds a round to the facts of a tensor. By ranges, what is sent is the shards, and a worker's part
   of the mean, which goes to all others:
     sent = (shards + mean) * (world - 1) / world */
static inline void gcomp_advise_add_round(gcomp_advise_fact *fact, int round, const gcomp_round *r,
                                          double world)
{
    if (r->kind == GCOMP_WAIT) return;
    fact->sent += r->sent;
    if (r->kind == GCOMP_ALLREDUCE || r->kind == GCOMP_ALLREDUCE_MAX) {
        fact->summed += (double)r->bytes;
        fact->uses |= gcomp_advise_sum_bit(round, r);
        if (fact->form != GCOMP_WAIT) return;
        fact->form = GCOMP_ALLREDUCE;
        fact->dtype = r->dtype;
        return;
    }
    fact->form = r->kind;
    fact->dtype = r->dtype;
    fact->uses |= r->kind == GCOMP_ALLGATHER ? GCOMP_ADVISE_GATHER : GCOMP_ADVISE_RANGES;
    if (r->kind == GCOMP_ALLTOALL && r->varies) fact->uses |= GCOMP_ADVISE_LENGTHS;
    if (r->kind == GCOMP_ALLGATHER || r->bytes == 0 || !(world > 1)) return;
    fact->shards = (double)r->bytes;
    fact->mean = (double)r->sent * world / (world - 1) / fact->shards - 1;
    if (fact->mean < 1e-3) fact->mean = 0; /* what was rounded up */
    if (fact->mean > 1 && fact->mean < 1 + world / fact->shards) fact->mean = 1; /* the same */
    if (fact->mean > world) fact->mean = world; /* sparse: all elements of all payloads */
}

/* Bytes of headers among the payload of a round: what is more than the body of a payload alone; of
   ranges at most a header for each worker. */
static inline gcomp_result gcomp_advise_count_headers(const gcomp_advise_inquiry *q, size_t i,
                                                      const gcomp_round *r, double *headers)
{
    const double most = (double)GCOMP_ADVISE_HEADER * (double)q->desc.comm.world;
    gcomp_desc gathers = q->desc;
    gcomp_round alone[GCOMP_ROUNDS];
    gcomp_result result;
    if (r->kind != GCOMP_ALLGATHER && r->kind != GCOMP_ALLTOALL) return GCOMP_OK;
    gathers.aggregate = GCOMP_AGGREGATE_GATHER;
    result = gcomp_rounds(&gathers, q->tensors + i, 1, NULL, alone);
    if (result != GCOMP_OK) return result;
    *headers = (double)r->bytes - (double)alone[0].bytes + (double)GCOMP_ADVISE_HEADER;
    if (!(*headers > 0)) *headers = 0;
    if (*headers > most) *headers = most;
    return GCOMP_OK;
}

/* The fact of tensor i with candidate c, from what gcomp_rounds told. */
static inline gcomp_result gcomp_advise_find_fact(gcomp_advise_inquiry *q, size_t i, size_t c)
{
    gcomp_advise_fact *fact = q->facts + i * q->ask->candidate_count + c;
    memset(fact, 0, sizeof *fact);
    for (int round = 0; round < GCOMP_ROUNDS; round++) {
        const gcomp_round *r = q->rounds + (size_t)GCOMP_ROUNDS * i + round;
        const gcomp_result result = gcomp_advise_count_headers(q, i, r, &fact->headers);
        if (result != GCOMP_OK) return result;
        gcomp_advise_add_round(fact, round, r, (double)q->desc.comm.world);
    }
    if (fact->uses & GCOMP_ADVISE_RANGES && gcomp_advise_cuts_mean(q->given + i))
        fact->uses |= GCOMP_ADVISE_COUNTS;
    return GCOMP_OK;
}

/* Finds the facts of a candidate, as if it were that of all tensors. */
static inline gcomp_result gcomp_advise_find_facts(gcomp_advise_inquiry *q, size_t c)
{
    gcomp_result result;
    for (size_t i = 0; i < q->ask->tensor_count; i++) {
        q->tensors[i] = q->ask->tensors[i];
        q->tensors[i].codec = NULL;
    }
    q->desc.codec = q->ask->candidates[c].codec;
    result = gcomp_rounds(&q->desc, q->tensors, q->ask->tensor_count, q->given, q->rounds);
    for (size_t i = 0; i < q->ask->tensor_count && result == GCOMP_OK; i++) {
        if (c && (gcomp_advise_is_none(q->given + i) ||
                  gcomp_warning(q->given + i, q->desc.optimizer)))
            memset(q->facts + i * q->ask->candidate_count + c, 0, sizeof *q->facts);
        else result = gcomp_advise_find_fact(q, i, c);
    }
    return result;
}

/* The facts of what was chosen: with the other tensors as they were chosen, it may share headers
   and ranges with fewer of them. */
static inline gcomp_result gcomp_advise_find_chosen(gcomp_advise_inquiry *q)
{
    gcomp_result result;
    for (size_t i = 0; i < q->ask->tensor_count; i++)
        q->tensors[i].codec = q->ask->candidates[q->choices[i]].codec;
    result = gcomp_rounds(&q->desc, q->tensors, q->ask->tensor_count, q->given, q->rounds);
    for (size_t i = 0; i < q->ask->tensor_count && result == GCOMP_OK; i++)
        result = gcomp_advise_find_fact(q, i, q->choices[i]);
    return result;
}

/* Looks at a candidate: its text, its figures, and whether it goes with the transport and the
   tensors. */
static inline gcomp_result gcomp_advise_inspect(gcomp_advise_inquiry *q, size_t c)
{
    gcomp_codec codec;
    double numbers[5];
    gcomp_result result =
        gcomp_codec_parse(&codec, q->ask->candidates[c].codec, q->reason, sizeof q->reason);
    if (result != GCOMP_OK) return gcomp_advise_refuse(q, result, c, q->reason);
    if ((c == 0) != gcomp_advise_is_none(&codec))
        return gcomp_advise_refuse(q, GCOMP_INVALID_ARGUMENT, c, "the first is none, and no other");
    memcpy(numbers, &q->ask->candidates[c].figures, sizeof numbers);
    if (!gcomp_advise_are_times(numbers, 5))
        return gcomp_advise_refuse(q, GCOMP_INVALID_ARGUMENT, c,
                                   "figures are finite and not negative");
    result = gcomp_advise_find_facts(q, c);
    if (result == GCOMP_OK) return GCOMP_OK;
    if (c) return gcomp_advise_refuse(q, result, c, q->reason);
    return gcomp_advise_fail(q->ask->desc, result, q->reason); /* of the desc or of a tensor */
}

/* Looks at the fields of a question, except the candidates and the tensors. */
static inline gcomp_result gcomp_advise_inspect_question(const gcomp_advise_question *ask)
{
    double numbers[GCOMP_ADVISE_TIMES];
    if (!ask->candidates || ask->candidate_count < 1 ||
        ask->candidate_count > GCOMP_ADVISE_CANDIDATES)
        return gcomp_advise_fail(ask->desc, GCOMP_INVALID_ARGUMENT,
                                 "candidate_count: it takes 1 to 16 candidates");
    if (!ask->tensors && ask->tensor_count)
        return gcomp_advise_fail(ask->desc, GCOMP_INVALID_ARGUMENT, "tensors is NULL");
    memcpy(numbers, &ask->link, sizeof numbers);
    if (!gcomp_advise_are_times(numbers, GCOMP_ADVISE_TIMES))
        return gcomp_advise_fail(ask->desc, GCOMP_INVALID_ARGUMENT,
                                 "link: times are finite and not negative");
    return GCOMP_OK;
}

/* ---------------- rehearsal: what a codec costs here

   A codec is timed in whole steps of one worker, with the tensors that it compresses and an
   exchange in memory. What W - 1 further workers add to that is the time to decode the mean of
   W + 1 payloads, less the time for two (one payload alone may be decoded in another way).

   Steps with K tensors of N elements together take K * tensor + N * element seconds. Steps with
   copies of the smallest tensor say which part of that is `tensor`. */

enum {
    GCOMP_ADVISE_REHEARSED = 1 << 23, /* elements, at most */
    GCOMP_ADVISE_NUMBERS = 1 << 16,   /* of the table that gradients are made from */
    GCOMP_ADVISE_WORKERS = 4,         /* that the rehearsal has, at most */
    GCOMP_ADVISE_COPIES = 16          /* of the smallest tensor */
};

/* An object whose steps are timed, and memory for them. */
typedef struct gcomp_advise_stage {
    const gcomp_desc *desc;
    gcomp *gc;
    size_t world;      /* gcomp_advise_workers */
    size_t tensors;    /* how many are rehearsed */
    size_t n, largest; /* elements of all tensors, of the largest one */
    size_t bound;      /* bytes of the largest payload, at most */
    float *table;      /* [GCOMP_ADVISE_NUMBERS] nearly normal numbers */
    float *grad;       /* [n] */
    float *mean;       /* [largest] */
    char *payloads;    /* [world + 1][bound] copies of one payload */
    void *scratch;     /* for gcomp_decode_mean */
    size_t scratch_bytes;
} gcomp_advise_stage;

/* Workers of the rehearsal. */
static inline size_t gcomp_advise_workers(const gcomp_advise_inquiry *q)
{
    const size_t world = (size_t)q->desc.comm.world, most = GCOMP_ADVISE_WORKERS;
    return world < most ? world : most;
}

/* What steps took. */
typedef struct gcomp_advise_timing {
    double one, all; /* seconds a step of one worker; with the payloads of the others */
    double noise;    /* of all, as a part of it */
    double tensors, elements;
    double bytes; /* of payloads */
} gcomp_advise_timing;

/* The gradients of a step: the numbers of the table, each piece of another size. */
static inline void gcomp_advise_fill(const gcomp_advise_stage *s, uint32_t step)
{
    for (size_t at = 0; at < s->n; at += GCOMP_ADVISE_NUMBERS) {
        const size_t piece = GCOMP_ADVISE_NUMBERS, left = s->n - at;
        const gcomp_key key = gcomp_key_make(2, step, (uint32_t)(at / GCOMP_ADVISE_NUMBERS), 0);
        const float size = 1 + (float)(key.shared & 0xffff) * (1.0f / 262144);
        for (size_t i = 0; i < piece && i < left; i++) s->grad[at + i] = s->table[i] * size;
    }
}

/* Adds the seconds that further workers take for each payload of a gather to *more, and the bytes
   of the payloads to *bytes. A gather of frames has no payload. */
static inline gcomp_result gcomp_advise_payloads(const gcomp_advise_stage *s,
                                                 const gcomp_request *gather, double *more,
                                                 double *bytes)
{
    const unsigned char *at = (const unsigned char *)gather->send;
    size_t left = gather->bytes[0], length;
    const void *payloads[GCOMP_ADVISE_WORKERS + 1];
    size_t lengths[GCOMP_ADVISE_WORKERS + 1];
    gcomp_exec exec;
    gcomp_info info;
    memset(&exec, 0, sizeof exec);
    exec.isa = s->desc->isa;
    exec.parallel = s->desc->parallel;
    exec.scratch = s->scratch;
    exec.scratch_bytes = s->scratch_bytes;
    for (; gcomp_peek(at, left, &info) == GCOMP_OK; at += length, left -= length) {
        length = (size_t)info.length;
        *bytes += (double)length;
        for (size_t w = 0; w <= s->world && s->world > 1; w++) {
            payloads[w] = memcpy(s->payloads + w * s->bound, at, length);
            lengths[w] = length;
        }
        for (int several = 0; several < 2 && s->world > 1; several++) {
            const size_t count = several ? s->world + 1 : 2;
            const double from = gcomp_advise_now(s->desc);
            const gcomp_result result =
                gcomp_decode_mean(payloads, lengths, count, s->mean, GCOMP_F32,
                                  (size_t)info.count, &exec);
            const double took = gcomp_advise_now(s->desc) - from;
            if (result != GCOMP_OK) return result;
            *more += several ? took : -took;
        }
    }
    return GCOMP_OK;
}

/* A step of one worker: its seconds without the exchange, what further workers add, the bytes of
   its payloads. */
static inline gcomp_result gcomp_advise_rehearse(const gcomp_advise_stage *s, double *seconds,
                                                 double *more, double *bytes)
{
    double from = gcomp_advise_now(s->desc);
    float *grad = s->grad;
    gcomp_request request;
    gcomp_result result;
    gcomp_step options = GCOMP_STEP;
    gcomp_tensor_info info;
    options.epoch = UINT32_MAX; /* behind all warm-ups */
    *seconds = *more = *bytes = 0;
    result = gcomp_step_begin(s->gc, &options);
    for (size_t i = 0; result == GCOMP_OK && !gcomp_tensor_get(s->gc, i, &info); i++) {
        result = gcomp_step_ready(s->gc, i, grad);
        grad += info.elements;
    }
    while (result == GCOMP_OK) {
        result = gcomp_step_next(s->gc, &request);
        if (result != GCOMP_OK || request.kind == GCOMP_DONE) break;
        *seconds += gcomp_advise_now(s->desc) - from;
        if (request.kind == GCOMP_ALLGATHER) {
            memcpy(request.recv, request.send, request.bytes[0]);
            result = gcomp_advise_payloads(s, &request, more, bytes);
            if (result != GCOMP_OK) break;
        }
        from = gcomp_advise_now(s->desc);
        result = gcomp_step_done(s->gc, request.id, 0);
    }
    if (result == GCOMP_OK) result = gcomp_step_commit(s->gc);
    *seconds += gcomp_advise_now(s->desc) - from;
    return result;
}

/* Takes steps: the middle times. */
static inline gcomp_result gcomp_advise_time_steps(const gcomp_advise_stage *s,
                                                   gcomp_advise_timing *timing)
{
    double one[GCOMP_ADVISE_REPEATS], all[GCOMP_ADVISE_REPEATS];
    for (size_t i = 0; i < GCOMP_ADVISE_NUMBERS; i++) { /* sums of four uniform numbers */
        const uint64_t key = gcomp_key_make(1, i, 0, 0).shared;
        const uint64_t sum =
            (key & 0xffff) + (key >> 16 & 0xffff) + (key >> 32 & 0xffff) + (key >> 48);
        s->table[i] = ((float)sum - 131070.0f) / 37836.0f; /* of variance 1 */
    }
    for (int repeat = -1; repeat < GCOMP_ADVISE_REPEATS; repeat++) { /* the first is a warm-up */
        double seconds, more;
        gcomp_result result;
        gcomp_advise_fill(s, (uint32_t)(repeat + 2));
        result = gcomp_advise_rehearse(s, &seconds, &more, &timing->bytes);
        if (result != GCOMP_OK) return result;
        if (!(more > 0)) more = 0; /* on a machine that did something else meanwhile */
        if (repeat >= 0) one[repeat] = seconds, all[repeat] = seconds + more;
    }
    timing->one = gcomp_advise_middle(one);
    timing->all = gcomp_advise_middle(all);
    timing->noise = gcomp_advise_spread(all);
    timing->tensors = (double)s->tensors;
    timing->elements = (double)s->n;
    return GCOMP_OK;
}

/* Adds the tensors that a candidate compresses, as long as the elements fit into what is rehearsed
   (a tensor that is too large alone is cut), or copies of one tensor. */
static inline gcomp_result gcomp_advise_add(gcomp_advise_stage *s, const gcomp_advise_inquiry *q,
                                            size_t c, const gcomp_tensor *copied)
{
    const size_t count = copied ? (size_t)GCOMP_ADVISE_COPIES : q->ask->tensor_count;
    size_t left = GCOMP_ADVISE_REHEARSED;
    gcomp_result result = GCOMP_OK;
    for (size_t i = 0; i < count && result == GCOMP_OK; i++) {
        gcomp_tensor tensor = copied ? *copied : q->ask->tensors[i];
        gcomp_round rounds[GCOMP_ROUNDS];
        char name[24];
        size_t n;
        if (!copied && !gcomp_advise_fact_of(q, i, c)->uses) continue;
        if (tensor.cols == 0) tensor.cols = 1;
        if (tensor.cols > GCOMP_ADVISE_REHEARSED) tensor.cols = GCOMP_ADVISE_REHEARSED;
        if (tensor.rows > GCOMP_ADVISE_REHEARSED / tensor.cols)
            tensor.rows = GCOMP_ADVISE_REHEARSED / tensor.cols;
        n = tensor.cols * tensor.rows;
        if (tensor.stack > GCOMP_ADVISE_REHEARSED / n) tensor.stack = GCOMP_ADVISE_REHEARSED / n;
        n = gcomp_advise_elements(&tensor);
        if (n > left) continue;
        left -= n;
        snprintf(name, sizeof name, "%lu", (unsigned long)i);
        tensor.name = name;
        tensor.dtype = GCOMP_F32;
        tensor.codec = q->ask->candidates[c].codec;
        result = gcomp_add_tensor(s->gc, &tensor);
        if (result == GCOMP_OK) result = gcomp_rounds(s->desc, &tensor, 1, NULL, rounds);
        for (int round = 0; round < GCOMP_ROUNDS && result == GCOMP_OK; round++)
            if (rounds[round].kind == GCOMP_ALLGATHER && rounds[round].bytes > s->bound)
                s->bound = rounds[round].bytes;
        if (n > s->largest) s->largest = n;
        s->tensors++;
    }
    s->n = GCOMP_ADVISE_REHEARSED - left;
    return result;
}

/* The scratch that decoding needs to run at its full speed. */
static inline size_t gcomp_advise_scratch(const gcomp_advise_stage *s)
{
    const size_t sparse = 4 * s->largest + 65536;
    gcomp_tensor_info info;
    size_t encoding = 0;
    if (gcomp_tensor_get(s->gc, 0, &info) == GCOMP_OK)
        (void)gcomp_bound(info.codec, s->largest, &encoding);
    return encoding > sparse ? encoding : sparse;
}

/* Times the steps of all tensors of a candidate, or of copies of one. */
static inline gcomp_result gcomp_advise_time(gcomp_advise_inquiry *q, size_t c,
                                             const gcomp_tensor *copied,
                                             gcomp_advise_timing *timing)
{
    gcomp_desc d = q->desc;
    gcomp_advise_stage s;
    gcomp_result result;
    memset(&s, 0, sizeof s);
    s.desc = &d;
    s.world = gcomp_advise_workers(q);
    d.codec = NULL;
    d.comm.rank = 0;
    d.comm.world = 1;
    d.aggregate = GCOMP_AGGREGATE_GATHER; /* so that one worker encodes; it has no ranges */
    d.measure = 0;
    d.bucket_bytes = 0;
    result = gcomp_open(&s.gc, &d);
    if (result == GCOMP_OK) result = gcomp_advise_add(&s, q, c, copied);
    if (result == GCOMP_OK) {
        s.scratch_bytes = gcomp_advise_scratch(&s);
        s.table = (float *)gcomp_advise_take(&d, sizeof(float) * GCOMP_ADVISE_NUMBERS);
        s.grad = (float *)gcomp_advise_take(&d, sizeof(float) * s.n);
        s.mean = (float *)gcomp_advise_take(&d, sizeof(float) * s.largest);
        s.payloads = (char *)gcomp_advise_take(&d, (s.world + 1) * s.bound + 1);
        s.scratch = gcomp_advise_take(&d, s.scratch_bytes);
        if (!s.table || !s.grad || !s.mean || !s.payloads || !s.scratch)
            result = GCOMP_OUT_OF_MEMORY;
        if (result == GCOMP_OK) result = gcomp_advise_time_steps(&s, timing);
        gcomp_advise_give(&d, s.table, sizeof(float) * GCOMP_ADVISE_NUMBERS);
        gcomp_advise_give(&d, s.grad, sizeof(float) * s.n);
        gcomp_advise_give(&d, s.mean, sizeof(float) * s.largest);
        gcomp_advise_give(&d, s.payloads, (s.world + 1) * s.bound + 1);
        gcomp_advise_give(&d, s.scratch, s.scratch_bytes);
    }
    if (result != GCOMP_OK) {
        char text[400];
        snprintf(text, sizeof text, "measuring %.100s: %.250s", q->ask->candidates[c].codec,
                 s.gc && gcomp_error(s.gc)[0] ? gcomp_error(s.gc) : gcomp_result_string(result));
        (void)gcomp_advise_fail(q->ask->desc, result, text);
    }
    gcomp_close(s.gc);
    return result;
}

/* Finds figures that give the measured time of all tensors together, and that of the smallest one
   (nearly, if no figures give both). */
static inline gcomp_result gcomp_advise_measure(gcomp_advise_inquiry *q, size_t c,
                                                const gcomp_tensor *smallest,
                                                gcomp_advise_figures *figures)
{
    const double others = (double)(gcomp_advise_workers(q) - 1);
    gcomp_advise_timing all, least;
    double element, rest;
    gcomp_result result = gcomp_advise_time(q, c, NULL, &all);
    if (result == GCOMP_OK) result = gcomp_advise_time(q, c, smallest, &least);
    if (result != GCOMP_OK) return result;
    memset(figures, 0, sizeof *figures);
    figures->noise = all.noise > least.noise ? all.noise : least.noise;
    element = all.all / all.elements; /* of all workers, as if tensors had no cost of their own */
    rest = all.elements - all.tensors * least.elements / least.tensors;
    if (rest > all.elements / 4) { /* they differ in size */
        element = (all.all - all.tensors * least.all / least.tensors) / rest;
        if (!(element > 0)) element = 0;
        figures->tensor = (all.all - all.elements * element) / all.tensors;
        if (!(figures->tensor > 0)) figures->tensor = 0;
        element = (all.all - all.tensors * figures->tensor) / all.elements;
    }
    if (others > 0 && all.all > all.one)
        figures->payload = (all.all - all.one) / (all.elements * others);
    if (!(element > 0)) element = 0; /* by rounding it could be below */
    if (figures->payload * others > element) figures->payload = element / others;
    figures->element = element - figures->payload * others;
    if (!(figures->element > 0)) figures->element = 0;
    if (all.bytes > 0)
        figures->bytes = (all.bytes - all.tensors * (double)GCOMP_ADVISE_HEADER) / all.elements;
    return GCOMP_OK;
}

/* The figures of a candidate that were not given, from the tensors that it compresses. */
static inline gcomp_result gcomp_advise_figure_out(gcomp_advise_inquiry *q, size_t c)
{
    gcomp_advise_figures *const f = &q->ask->candidates[c].figures, measured;
    const int timed = f->tensor > 0 || f->element > 0 || f->payload > 0;
    const gcomp_tensor *smallest = NULL;
    gcomp_result result;
    int gathers = 0;
    for (size_t i = 0; i < q->ask->tensor_count; i++) {
        const gcomp_tensor *tensor = q->ask->tensors + i;
        const unsigned uses = gcomp_advise_fact_of(q, i, c)->uses;
        /* uncompressed shards have 4 bytes an element */
        gathers |= c && uses & (GCOMP_ADVISE_GATHER | GCOMP_ADVISE_RANGES);
        if (uses && (!smallest || gcomp_advise_elements(tensor) < gcomp_advise_elements(smallest)))
            smallest = tensor;
    }
    if (!smallest) return GCOMP_OK; /* never chosen */
    if (timed && (f->bytes > 0 || !gathers)) return GCOMP_OK;
    if (!timed && !q->desc.clock)
        return gcomp_advise_refuse(q, GCOMP_MISSING_CALLBACK, c,
                                   "no times, and no desc.clock to measure with");
    result = gcomp_advise_measure(q, c, smallest, &measured);
    if (result != GCOMP_OK) return result;
    if (f->bytes > 0) measured.bytes = f->bytes;
    if (timed) f->bytes = measured.bytes;
    else *f = measured;
    return GCOMP_OK;
}

/* ---------------- advice

   Tensors are independent, except that all tensors that use a collective share its start. So each
   set of collectives is tried: every tensor gets its cheapest candidate among those that need only
   collectives of the set. A codec must take less time than no codec even if the measurements of
   both are wrong by their noise: what it loses is sure, what it gains would not be. */

/* What a tensor costs with a candidate: seconds of the processor, and on the link. noise: by how
   much the seconds of the processor may be wrong. */
typedef struct gcomp_advise_price {
    double codec, link, noise;
} gcomp_advise_price;

static inline gcomp_advise_price gcomp_advise_price_of(const gcomp_advise_inquiry *q, size_t tensor,
                                                       size_t c)
{
    const gcomp_advise_fact *fact = gcomp_advise_fact_of(q, tensor, c);
    const gcomp_advise_figures *f = &q->ask->candidates[c].figures;
    const gcomp_advise_link *link = &q->link;
    const double n = (double)gcomp_advise_elements(q->ask->tensors + tensor);
    const double world = (double)q->desc.comm.world;
    gcomp_advise_price price;
    price.codec = f->tensor + n * f->element;
    price.link = fact->summed * link->sum_byte;
    if (fact->form == GCOMP_ALLGATHER) {
        price.codec += n * (world - 1) * f->payload;
        price.link += (fact->headers + n * f->bytes) * link->gather_byte;
    } else if (fact->form == GCOMP_ALLTOALL) {
        const double pieces = fact->headers / (double)GCOMP_ADVISE_HEADER; /* payloads of ranges */
        double shards = fact->headers + n * f->bytes;
        if (!(f->bytes > 0)) shards = fact->shards;
        if (pieces > 1) price.codec += (pieces - 1) * f->tensor;
        price.codec += n * ((world - 1) / world + fact->mean) * f->payload;
        price.link += shards * link->exchange_byte;
        price.link += fact->mean * shards / world * link->gather_byte;
    }
    price.noise = f->noise * price.codec;
    return price;
}

/* What a collective that tensors share takes however much they send. The stages of ranges are an
   alltoall and a gather, of the mean or of whether owners could add. Lengths take another alltoall
   and a gather before, and one more behind the shards, unless that is there already. */
static inline double gcomp_advise_start(const gcomp_advise_inquiry *q, unsigned collective)
{
    const gcomp_advise_link *link = &q->link;
    const double lengths = (double)GCOMP_ADVISE_LENGTH * (double)q->desc.comm.world;
    const int scatters = q->desc.aggregate == GCOMP_AGGREGATE_SCATTER;
    const double told = (double)GCOMP_ADVISE_LENGTH * link->gather_byte; /* by each worker */
    if (collective == GCOMP_ADVISE_GATHER) return link->gather_start;
    if (collective == GCOMP_ADVISE_RANGES)
        return link->exchange_start + link->gather_start + (scatters ? told : 0);
    if (collective == GCOMP_ADVISE_LENGTHS)
        return link->exchange_start + lengths * link->exchange_byte +
               (scatters ? 1 : 2) * (link->gather_start + told);
    return link->sum_start;
}

/* The step as it is chosen: times, and what is chosen if `each` is not NULL. */
static inline void gcomp_advise_add_up(const gcomp_advise_inquiry *q, gcomp_advise_choice *each,
                                       gcomp_advice *advice)
{
    const gcomp_advise_link *link = &q->link;
    unsigned used = 0;
    memset(advice, 0, sizeof *advice);
    for (size_t i = 0; i < q->ask->tensor_count; i++) {
        const size_t choice = q->choices[i];
        const gcomp_advise_fact *fact = gcomp_advise_fact_of(q, i, choice);
        const gcomp_advise_price price = gcomp_advise_price_of(q, i, choice);
        const gcomp_advise_price plain = gcomp_advise_price_of(q, i, 0);
        used |= fact->uses;
        advice->codec_seconds += price.codec;
        advice->link_seconds += price.link;
        advice->compressed += choice != 0;
        if (choice) advice->noise += price.noise + plain.noise;
        if (!each) continue;
        each[i].choice = choice;
        each[i].seconds = price.codec + price.link;
        each[i].plain = plain.codec + plain.link;
        each[i].form = fact->form;
        each[i].dtype = fact->dtype;
        each[i].sent = fact->sent;
    }
    if (q->desc.comm.world > 1)
        advice->link_seconds += link->gather_start + (double)GCOMP_ADVISE_FRAME * link->gather_byte;
    for (int bit = 0; used >> bit; bit++)
        if (used >> bit & 1) advice->link_seconds += gcomp_advise_start(q, 1u << bit);
    advice->seconds = advice->codec_seconds + advice->link_seconds;
}

/* Chooses the step with only these collectives and the first `candidates` candidates. 0: some
   tensor needs other collectives. */
static inline int gcomp_advise_with(const gcomp_advise_inquiry *q, unsigned collectives,
                                    size_t candidates, gcomp_advice *advice)
{
    for (size_t i = 0; i < q->ask->tensor_count; i++) {
        const gcomp_advise_price plain = gcomp_advise_price_of(q, i, 0);
        const int plain_too = !(gcomp_advise_fact_of(q, i, 0)->uses & ~collectives);
        double best = 0;
        size_t choice = GCOMP_ADVISE_CANDIDATES;
        for (size_t c = 0; c < candidates; c++) {
            const unsigned uses = gcomp_advise_fact_of(q, i, c)->uses;
            const gcomp_advise_price price = gcomp_advise_price_of(q, i, c);
            const double seconds = price.codec + price.link;
            if (!uses || uses & ~collectives) continue;
            if (choice < GCOMP_ADVISE_CANDIDATES && seconds >= best) continue;
            if (c && plain_too &&
                seconds + price.noise + plain.noise >= plain.codec + plain.link)
                continue;
            best = seconds;
            choice = c;
        }
        if (choice == GCOMP_ADVISE_CANDIDATES) return 0;
        q->choices[i] = choice;
    }
    gcomp_advise_add_up(q, NULL, advice);
    return 1;
}

/* Why no codec can gain, as a sentence; NULL: one may. */
static inline const char *gcomp_advise_in_vain(const gcomp_advise_inquiry *q)
{
    const gcomp_advise_link *l = &q->link;
    if (q->desc.comm.world == 1)
        return "one worker alone sends nothing: no tensor is compressed";
    return l->sum_start + l->sum_byte + l->gather_start + l->gather_byte + l->exchange_start +
                l->exchange_byte >
            0
        ? NULL
        : "the link takes no time: no tensor is compressed";
}

/* Finds the shortest step, once all is known. */
static inline gcomp_result gcomp_advise_choose(gcomp_advise_inquiry *q, gcomp_advise_choice *each,
                                               gcomp_advice *advice)
{
    const size_t count = q->ask->candidate_count;
    size_t candidates = 1;
    unsigned all = 0, chosen;
    gcomp_advice best, other;
    gcomp_result result;
    double plain;
    for (size_t i = 0; i < q->ask->tensor_count * count; i++) all |= q->facts[i].uses;
    (void)gcomp_advise_with(q, all, 1, &best); /* without compression */
    plain = best.seconds;
    chosen = all;
    for (unsigned some = all; some; some = (some - 1) & all) { /* each set of collectives */
        if (gcomp_advise_in_vain(q) || !gcomp_advise_with(q, some, count, &other) ||
            other.seconds >= best.seconds ||
            (other.compressed && other.seconds + other.noise >= plain))
            continue;
        best = other;
        chosen = some;
        candidates = count;
    }
    (void)gcomp_advise_with(q, chosen, candidates, &best);
    result = gcomp_advise_find_chosen(q);
    if (result == GCOMP_OK) gcomp_advise_add_up(q, NULL, &best);
    if (result == GCOMP_OK && best.compressed && best.seconds + best.noise >= plain) {
        /* it does not pay by the shorter bundles */
        memset(q->choices, 0, q->ask->tensor_count * sizeof *q->choices);
        result = gcomp_advise_find_chosen(q);
    }
    if (result != GCOMP_OK) return gcomp_advise_fail(q->ask->desc, result, q->reason);
    gcomp_advise_add_up(q, each, advice);
    advice->plain = plain;
    advice->note = gcomp_advise_in_vain(q);
    return GCOMP_OK;
}

/* Finds the choice of candidates, tensor by tensor, with the shortest step. Means are made as
   gcomp_rounds says for question->desc: by desc.aggregate, and the callbacks and types of comm. For
   a tensor of n elements, W workers:
     as a sum of b bytes   tensor + n * element;  b * sum_byte
     gathered              tensor + n * (element + (W - 1) * payload)
                           (h + n * bytes) * gather_byte
     by ranges             h / 32 * tensor + n * (element + ((W - 1) / W + m) * payload)
                           (h + n * bytes) * (exchange_byte + m / W * gather_byte)
     for the frames, and for each collective that some tensor uses:   its start
   h are bytes of headers. A tensor alone has 32 in a gather and 32 W in ranges, and one behind
   another of its bundle has 4 in a gather, or 0 where the bundle sends one list, and by ranges those
   of the ranges that begin in it. While a tensor is decided on, all others count as having the same
   codec; the results are of the codecs that were chosen, as gcomp_describe tells of an object with
   them.
   The own shards are encoded; those of the other workers for one range, together one payload less
   1 / W, are decoded; then the mean is, which is m times as long as a payload: 1 in two shots, at
   most W for sparse payloads, whose elements may all differ, 0 where the mean stays scattered. The
   owner encodes the mean of its range instead of its own part of it. Tensors made by ranges share
   an alltoall and a gather, and if lengths of payloads vary another alltoall and two gathers.
   Vectors, small tensors and matrices that would not gain are not compressed, as in
   gcomp_add_tensor; a vector that is the only tensor may be. If two candidates take the same time,
   the first one is chosen. A codec whose gain is no larger than the noise of the measurements is
   not chosen (gcomp_advice.noise). One worker compresses nothing, and over a link that takes no
   time nobody does (gcomp_advice.note).
   Missing figures are measured first. For that an object is opened with desc.allocator and closed
   again; it has the tensors, as many as have 2^23 elements together. Times need desc.clock. The
   gradients are normally distributed numbers. If the length of a payload depends on more than that
   (strom, nonzero, adacomp, coded levels), set `bytes`: a figure that is set stays. Workers that
   share a machine should measure at the same time, as they work. If no figure is missing, only a
   table of 56 bytes for each tensor and candidate, and 232 for each tensor, is allocated.
     each[tensor_count]  out  NULL: not wanted
     *advice             out
   Returns GCOMP_OK, GCOMP_INVALID_ARGUMENT, GCOMP_DUPLICATE_NAME, GCOMP_BAD_CODEC,
   GCOMP_MISSING_CALLBACK (also: nothing to measure with), GCOMP_OUT_OF_MEMORY,
   GCOMP_ISA_UNAVAILABLE; desc->why has the sentence. On error the results are unchanged. */
static inline gcomp_result gcomp_advise(const gcomp_advise_question *question,
                                        gcomp_advise_choice *each, gcomp_advice *advice)
{
    enum { ARRAYS = 5 };
    gcomp_advise_inquiry q;
    gcomp_result result;
    size_t bytes[ARRAYS], count;
    void *memory[ARRAYS];
    int missing = 0;
    if (!question || !question->desc || !advice) return GCOMP_INVALID_ARGUMENT;
    result = gcomp_advise_inspect_question(question);
    if (result != GCOMP_OK) return result;
    memset(&q, 0, sizeof q);
    q.ask = question;
    q.desc = *question->desc;
    q.desc.schedule = NULL;
    q.link = question->link;
    memset(&q.desc.node, 0, sizeof q.desc.node); /* what is compressed goes between machines */
    if (q.desc.comm.world == 0) q.desc.comm.world = 1;
    if (q.link.exchange_start == 0 && q.link.exchange_byte == 0) {
        q.link.exchange_start = q.link.gather_start;
        q.link.exchange_byte = q.link.gather_byte / (double)q.desc.comm.world;
    }
    q.desc.why = q.reason;
    q.desc.why_capacity = sizeof q.reason;
    count = question->tensor_count + 1; /* no array is empty */
    bytes[0] = count * question->candidate_count * sizeof *q.facts;
    bytes[1] = count * sizeof *q.tensors;
    bytes[2] = count * sizeof *q.given;
    bytes[3] = count * GCOMP_ROUNDS * sizeof *q.rounds;
    bytes[4] = count * sizeof *q.choices;
    for (int i = 0; i < ARRAYS; i++) {
        memory[i] = gcomp_advise_take(question->desc, bytes[i]);
        missing |= !memory[i];
    }
    q.facts = (gcomp_advise_fact *)memory[0];
    q.tensors = (gcomp_tensor *)memory[1];
    q.given = (gcomp_codec *)memory[2];
    q.rounds = (gcomp_round *)memory[3];
    q.choices = (size_t *)memory[4];
    if (missing)
        result = gcomp_advise_fail(question->desc, GCOMP_OUT_OF_MEMORY,
                                   "no memory for a table of tensors and candidates");
    for (size_t c = 0; c < question->candidate_count && result == GCOMP_OK; c++)
        result = gcomp_advise_inspect(&q, c);
    for (size_t c = 0; c < question->candidate_count && result == GCOMP_OK; c++)
        result = gcomp_advise_figure_out(&q, c);
    if (result == GCOMP_OK) result = gcomp_advise_choose(&q, each, advice);
    for (int i = 0; i < ARRAYS; i++) gcomp_advise_give(question->desc, memory[i], bytes[i]);
    return result;
}

/* ---------------- for other languages

   With GCOMP_ADVISE_SHARED, in one file of a shared object, these functions are the adviser for
   programs that call C from outside. Of structs they take only those of gcomp.h, whose layout
   gcomp_layouts.h tells. Without desc.clock they time by the system's monotonic clock. */

#ifdef GCOMP_ADVISE_SHARED
#include <time.h>

GCOMP_API void gcomp_advise_shared_ring(double bits_per_second, double latency, int world,
                                        double *link);
GCOMP_API gcomp_result gcomp_advise_shared_measure(const gcomp_desc *desc, size_t bytes,
                                                   double *link);
GCOMP_API gcomp_result gcomp_advise_shared(const gcomp_desc *desc, const double *link,
                                           const gcomp_tensor *tensors, size_t tensor_count,
                                           const char *const *codecs, double *figures,
                                           size_t codec_count, size_t *choices, double *seconds);

static double gcomp_advise_seconds(void *user)
{
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gcomp_desc gcomp_advise_timed(const gcomp_desc *desc)
{
    gcomp_desc timed = *desc;
    if (!timed.clock) timed.clock = gcomp_advise_seconds;
    return timed;
}

/* gcomp_advise_link_of. link[GCOMP_ADVISE_TIMES] <- the fields of gcomp_advise_link, in order. */
void gcomp_advise_shared_ring(double bits_per_second, double latency, int world, double *link)
{
    const gcomp_advise_link ring = gcomp_advise_link_of(bits_per_second, latency, world);
    memcpy(link, &ring, sizeof ring);
}

/* gcomp_advise_link_measure. link: as above. */
gcomp_result gcomp_advise_shared_measure(const gcomp_desc *desc, size_t bytes, double *link)
{
    const gcomp_desc timed = gcomp_advise_timed(desc);
    gcomp_advise_link measured;
    const gcomp_result result = gcomp_advise_link_measure(&timed, bytes, &measured);
    if (result == GCOMP_OK) memcpy(link, &measured, sizeof measured);
    return result;
}

/* gcomp_advise.
     codecs[codec_count]      the candidates
     figures[codec_count][4]  the fields of their gcomp_advise_figures but noise; in and out
     choices[tensor_count]    out  number of a candidate
     seconds[4]               out  of gcomp_advice: seconds, codec_seconds, link_seconds, plain */
gcomp_result gcomp_advise_shared(const gcomp_desc *desc, const double *link,
                                 const gcomp_tensor *tensors, size_t tensor_count,
                                 const char *const *codecs, double *figures, size_t codec_count,
                                 size_t *choices, double *seconds)
{
    const gcomp_desc timed = gcomp_advise_timed(desc);
    const size_t bytes = (tensor_count + 1) * sizeof(gcomp_advise_choice);
    gcomp_advise_candidate candidates[GCOMP_ADVISE_CANDIDATES];
    gcomp_advise_choice *each;
    gcomp_advise_question question;
    gcomp_advice advice;
    gcomp_result result;
    memset(candidates, 0, sizeof candidates);
    memset(&question, 0, sizeof question);
    for (size_t c = 0; c < codec_count && c < GCOMP_ADVISE_CANDIDATES; c++) {
        candidates[c].codec = codecs[c];
        memcpy(&candidates[c].figures, figures + 4 * c, 4 * sizeof *figures);
    }
    question.desc = &timed;
    memcpy(&question.link, link, sizeof question.link);
    question.tensors = tensors;
    question.tensor_count = tensor_count;
    question.candidates = candidates;
    question.candidate_count = codec_count;
    each = (gcomp_advise_choice *)gcomp_advise_take(desc, bytes);
    if (!each) return gcomp_advise_fail(desc, GCOMP_OUT_OF_MEMORY, "no memory for the choices");
    result = gcomp_advise(&question, each, &advice);
    if (result == GCOMP_OK) {
        for (size_t c = 0; c < codec_count; c++)
            memcpy(figures + 4 * c, &candidates[c].figures, 4 * sizeof *figures);
        for (size_t i = 0; i < tensor_count; i++) choices[i] = each[i].choice;
        seconds[0] = advice.seconds;
        seconds[1] = advice.codec_seconds;
        seconds[2] = advice.link_seconds;
        seconds[3] = advice.plain;
    }
    gcomp_advise_give(desc, each, bytes);
    return result;
}
#endif /* GCOMP_ADVISE_SHARED */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_ADVISE_H */
