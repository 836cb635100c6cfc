/* gcomp_recover.h - what to do after a step that failed, for each class of results. Copy it, change
   it. Licence: as gcomp.h.

       float *state[2] = {weights, momentum};    what all workers must have in common
       size_t count[2] = {n, n};                 floats of each
       gcomp_recover recover = {0};
       recover.comm = comm;                      the workers, as in desc.comm
       recover.state = state;
       recover.count = count;
       recover.states = 2;
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
   Fatal          the worker stops. */

#ifndef GCOMP_RECOVER_H
#define GCOMP_RECOVER_H

#include "gcomp.h"

#include <stdio.h>
#include <string.h>

enum { GCOMP_RECOVER_MOST = 10 }; /* after that many failures in a row: stop */

typedef struct gcomp_recover {
    gcomp_comm comm;
    float *const *state; /* [states], the same arrays on all workers */
    const size_t *count; /* floats of each */
    size_t states;
    int failures; /* steps in a row that failed */
} gcomp_recover;

/* data[count] <- that of rank 0: a sum with zeros. Returns what the callback returns. */
static inline int gcomp_recover_broadcast(const gcomp_comm *comm, float *data, size_t count)
{
    if (comm->world <= 1) return 0;
    if (comm->rank) memset(data, 0, count * sizeof *data);
    return comm->allreduce ? (comm->allreduce)(comm->user, data, count, GCOMP_F32) : 1;
}

/* All workers take the state and the step's number of rank 0. All of them call it. Returns 0, or 1
   if the transport failed. */
static inline int gcomp_recover_all(gcomp_recover *r, gcomp *gc)
{
    float digits[4]; /* of the step's number, 16 bits each: floats hold them exactly */
    uint64_t step = gcomp_step_number(gc);
    for (int i = 0; i < 4; i++) digits[i] = (float)(step >> 16 * i & 0xffff);
    if (gcomp_recover_broadcast(&r->comm, digits, 4)) return 1;
    for (size_t i = 0; i < r->states; i++)
        if (gcomp_recover_broadcast(&r->comm, r->state[i], r->count[i])) return 1;
    step = 0;
    for (int i = 0; i < 4; i++) step |= (uint64_t)digits[i] << 16 * i;
    return gcomp_restart(gc, step) != GCOMP_OK;
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
    return what == GCOMP_CLASS_RESYNCHRONISE && gcomp_recover_all(r, gc);
}

#endif /* GCOMP_RECOVER_H */
