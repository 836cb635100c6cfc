/* gcomp_recover.h - what all workers must have in common: before the first step, and after a step
   that failed, for each class of results. Copy it, change it. Licence: as gcomp.h.

       float *state[2] = {weights, momentum};    what all workers must have in common
       size_t count[2] = {n, n};                 floats of each
       gcomp_recover recover = {0};              C++: = {}
       recover.comm = comm;                      the workers, as in desc.comm
       recover.state = state;
       recover.count = count;
       recover.states = 2;
       if (gcomp_recover_begin(&recover)) stop;  all workers take the state of rank 0
       while (backward(grads)) {
           gcomp_result result = gcomp_exchange(gc, grads, &step);
           if (gcomp_recover_after(&recover, gc, result)) break;   stop: stderr has the sentence
           if (result == GCOMP_OK) optimizer_step(grads);          else all workers skip this step
       }

   Retry          the worker takes part in the next step.
   Resynchronise  all workers take the state and the step's number of rank 0, over the same
                  transport. If the transport has failed for good, as gcomp_threads.h and
                  gcomp_sockets.h do, this fails too and the worker stops. Then connect the workers
                  that are left, call gcomp_regroup, and then gcomp_recover_all.
   Fatal          the worker stops.

   A state is replaced only when all of it has arrived. Whatever fails before, each worker keeps the
   state that it had. For that the state is received beside the old one: while workers take the
   state of rank 0, each needs the memory of its state once more. */

#ifndef GCOMP_RECOVER_H
#define GCOMP_RECOVER_H

#include "gcomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

enum { GCOMP_RECOVER_MOST = 10 }; /* after that many failures in a row: stop */

typedef struct gcomp_recover {
    gcomp_comm comm;
    float *const *state; /* [states], the same arrays on all workers */
    const size_t *count; /* floats of each */
    size_t states;
    const char *const *names; /* [states], for sentences; NULL: "state 0", "state 1", ... */
    int failures;  /* steps in a row that failed */
    char why[200]; /* after an error of a function below: a sentence */
} gcomp_recover;

/* Writes a sentence. Returns 1. */
static inline int gcomp_recover_fail(gcomp_recover *r, const char *sentence)
{
    snprintf(r->why, sizeof r->why, "%s", sentence);
    return 1;
}

/* data[count] <- sum over the workers. Returns 0, or 1 with a sentence. */
static inline int gcomp_recover_sum(gcomp_recover *r, float *data, size_t count)
{
    int status;
    if (r->comm.world <= 1 || !count) return 0;
    if (!r->comm.allreduce) return gcomp_recover_fail(r, "comm.allreduce is NULL");
    status = (r->comm.allreduce)(r->comm.user, data, count, GCOMP_F32);
    if (!status) return 0;
    snprintf(r->why, sizeof r->why, "allreduce failed with status %d", status);
    return 1;
}

/* *number <- that of rank 0: digits of 16 bits, which floats hold exactly, and a sum of ones. */
static inline int gcomp_recover_number(gcomp_recover *r, uint64_t *number)
{
    const float world = (float)(r->comm.world > 1 ? r->comm.world : 1);
    float words[5] = {0, 0, 0, 0, 1};
    for (int i = 0; i < 4 && !r->comm.rank; i++)
        words[i] = (float)(*number >> 16 * i & 0xffff);
    if (gcomp_recover_sum(r, words, 5)) return 1;
    if (!(words[4] > world - 0.5f && words[4] < world + 0.5f))
        return gcomp_recover_fail(r, "allreduce does not sum: gcomp_try.h says what it does");
    *number = 0;
    for (int i = 0; i < 4; i++)
        if (words[i] > 0 && words[i] < 65536) *number |= (uint64_t)words[i] << 16 * i;
    return 0;
}

/* *count <- how many workers say yes, *first <- the first one of them. */
static inline int gcomp_recover_who(gcomp_recover *r, int yes, int *count, int *first)
{
    float all = yes ? 1.0f : 0.0f;
    *first = 0;
    if (gcomp_recover_sum(r, &all, 1)) return 1;
    *count = all > 0.5f && all < 1e9f ? (int)all : 0;
    for (int base = 0; *count > 0 && base < r->comm.world; base += 64) {
        float ranks[64] = {0};
        if (yes && r->comm.rank / 64 == base / 64) ranks[r->comm.rank % 64] = 1;
        if (gcomp_recover_sum(r, ranks, 64)) return 1;
        for (int i = 0; i < 64; i++)
            if (ranks[i] > 0.5f) return *first = base + i, 0;
    }
    return 0;
}

static inline uint64_t gcomp_recover_mix(uint64_t digest, uint64_t word)
{
    digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

/* The digest of the lengths of all arrays. */
static inline uint64_t gcomp_recover_shape(const gcomp_recover *r)
{
    uint64_t digest = r->states;
    for (size_t i = 0; i < r->states; i++) digest = gcomp_recover_mix(digest, r->count[i]);
    return digest;
}

/* The digest of an array, to the bit. */
static inline uint64_t gcomp_recover_digest(const float *data, size_t count)
{
    uint64_t digest = count;
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, data + i, sizeof word);
        digest = gcomp_recover_mix(digest, word);
    }
    return digest;
}

/* Has a worker another number than rank 0? *count <- how many have, *first <- the first one. */
static inline int gcomp_recover_differs(gcomp_recover *r, uint64_t mine, int *count, int *first)
{
    uint64_t number = mine;
    return gcomp_recover_number(r, &number) || gcomp_recover_who(r, mine != number, count, first);
}

/* Has every worker the same state, to the bit? All of them call it. Returns 0; or 1 on all, and
   r->why names the first array that differs and the first worker whose array is not that of
   rank 0. */
static inline int gcomp_recover_compare(gcomp_recover *r)
{
    uint64_t digest = 0;
    int differ, rank;
    char name[24];
    if (gcomp_recover_differs(r, gcomp_recover_shape(r), &differ, &rank)) return 1;
    if (differ) {
        snprintf(r->why, sizeof r->why, "rank %d has other arrays of state than rank 0", rank);
        return 1;
    }
    for (size_t i = 0; i < r->states; i++)
        digest = gcomp_recover_mix(digest, gcomp_recover_digest(r->state[i], r->count[i]));
    if (gcomp_recover_differs(r, digest, &differ, &rank)) return 1;
    if (!differ) return 0;
    for (size_t i = 0; i < r->states; i++) {
        digest = gcomp_recover_digest(r->state[i], r->count[i]);
        if (gcomp_recover_differs(r, digest, &differ, &rank)) return 1;
        if (!differ) continue;
        snprintf(name, sizeof name, "state %d", (int)i);
        snprintf(r->why, sizeof r->why,
                 "%.60s (%llu floats): %d of %d workers differ from rank 0, first rank %d",
                 r->names ? r->names[i] : name, (unsigned long long)r->count[i], differ,
                 r->comm.world, rank);
        return 1;
    }
    return gcomp_recover_fail(r, "the state changes while it is compared");
}

/* Receives the arrays of rank 0 into room, one after the other. */
static inline int gcomp_recover_receive(gcomp_recover *r, float *room)
{
    for (size_t i = 0; i < r->states; room += r->count[i++]) {
        if (r->comm.rank) memset(room, 0, r->count[i] * sizeof *room);
        else if (r->count[i]) memcpy(room, r->state[i], r->count[i] * sizeof *room);
        if (gcomp_recover_sum(r, room, r->count[i])) return 1;
    }
    return 0;
}

/* All workers take the state of rank 0, and *step becomes that of rank 0. On error both are as
   before. */
static inline int gcomp_recover_take(gcomp_recover *r, uint64_t *step)
{
    uint64_t number = *step, shape = gcomp_recover_shape(r);
    size_t total = 0;
    float *room, *from;
    int differ, missing, rank, other;
    if (r->comm.world <= 1) return 0;
    for (size_t i = 0; i < r->states; i++) total += r->count[i];
    from = room = total < (size_t)-1 / sizeof *room
        ? (float *)malloc((total + 1) * sizeof *room)
        : NULL;
    if (gcomp_recover_number(r, &number) || gcomp_recover_differs(r, shape, &differ, &other) ||
        gcomp_recover_who(r, !room, &missing, &rank)) {
        free(room);
        return 1;
    }
    if (differ)
        snprintf(r->why, sizeof r->why, "rank %d has other arrays of state than rank 0", other);
    else if (missing)
        snprintf(r->why, sizeof r->why, "rank %d has no memory to receive the state", rank);
    if (differ || missing || !room || gcomp_recover_receive(r, room)) {
        free(room);
        return 1;
    }
    for (size_t i = 0; i < r->states; from += r->count[i++])
        if (r->count[i]) memcpy(r->state[i], from, r->count[i] * sizeof *from);
    free(room);
    *step = number;
    return 0;
}

/* Before the first step: all workers take the state of rank 0. All of them call it. Returns 0; or 1
   with a sentence in r->why and on stderr, and the state as before. */
static inline int gcomp_recover_begin(gcomp_recover *r)
{
    uint64_t none = 0;
    if (!gcomp_recover_take(r, &none)) return 0;
    fprintf(stderr, "rank %d: %s\n", r->comm.rank, r->why);
    return 1;
}

/* All workers take the state and the step's number of rank 0. All of them call it. Returns 0; or 1
   with a sentence in r->why. On error the state is as before, or the whole state of rank 0 if only
   gcomp_restart failed. */
static inline int gcomp_recover_all(gcomp_recover *r, gcomp *gc)
{
    uint64_t step = gcomp_step_number(gc);
    if (gcomp_recover_take(r, &step)) return 1;
    if (gcomp_restart(gc, step) == GCOMP_OK) return 0;
    return gcomp_recover_fail(r, gcomp_error(gc));
}

/* Call it after each step, with the step's result. Returns 0: go on, with the mean after GCOMP_OK,
   else with the next step. Returns 1: stop. */
static inline int gcomp_recover_after(gcomp_recover *r, gcomp *gc, gcomp_result result)
{
    const gcomp_class what = gcomp_result_class(result);
    if (what == GCOMP_CLASS_OK) {
        r->failures = 0;
        return 0;
    }
    fprintf(stderr, "rank %d, step %llu: %s: %s\n", r->comm.rank,
            (unsigned long long)gcomp_step_number(gc), gcomp_result_string(result),
            gcomp_error(gc));
    if (what == GCOMP_CLASS_FATAL || ++r->failures == GCOMP_RECOVER_MOST) return 1;
    if (what != GCOMP_CLASS_RESYNCHRONISE || !gcomp_recover_all(r, gc)) return 0;
    fprintf(stderr, "rank %d does not resynchronise: %s\n", r->comm.rank, r->why);
    return 1;
}

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_RECOVER_H */
