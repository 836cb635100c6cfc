/* train_advice.h - what train.c compresses with --method advise: the choice of gcomp_advise for the
   link between the workers and for this machine. The link is timed. All workers measure the codecs
   at the same time, as they work. */

#ifndef TRAIN_ADVICE_H
#define TRAIN_ADVICE_H

#include "gcomp_advise.h"

#include <stdio.h>
#include <string.h>

#define TRAIN_ADVISED 144 /* most tensors */

/* For SGD; for Adam: what costs it no loss, see WITH ADAM in the manual. */
enum { TRAIN_CANDIDATES = 4 };
static const char *const train_candidates[2][TRAIN_CANDIDATES] = {
    {"none", "powersgd:rank=4", "topk:density=0.01", "int:bits=4"},
    {"none", "int:bits=4", "qsgd", "eden:bits=2"}};

/* Sets the codec of each tensor to the choice of rank 0. All workers call it together. clock: in
   seconds. optimizer: what steps by the means. Returns 0, or 1 after saying what is wrong. */
static inline int train_advise(const gcomp_comm *comm, gcomp_tensor *tensors, size_t count,
                               double (*clock)(void *user), gcomp_optimizer optimizer)
{
    const char *const *codecs = train_candidates[optimizer == GCOMP_OPTIMIZER_ADAM];
    gcomp_advise_candidate candidates[TRAIN_CANDIDATES];
    gcomp_advise_choice each[TRAIN_ADVISED];
    unsigned char mine[TRAIN_ADVISED] = {0}, all[64 * TRAIN_ADVISED];
    gcomp_advise_question question = {0};
    gcomp_advice advice;
    gcomp_desc desc = {0};
    gcomp_result result;
    char why[256] = "";
    size_t bytes = 0;
    memset(candidates, 0, sizeof candidates);
    for (size_t c = 0; c < TRAIN_CANDIDATES; c++) candidates[c].codec = codecs[c];
    for (size_t t = 0; t < count; t++)
        bytes += 4 * tensors[t].rows * (tensors[t].cols ? tensors[t].cols : 1);
    desc.comm = *comm;
    desc.clock = clock;
    desc.optimizer = optimizer;
    desc.why = why;
    desc.why_capacity = sizeof why;
    question.desc = &desc;
    question.tensors = tensors;
    question.tensor_count = count;
    question.candidates = candidates;
    question.candidate_count = TRAIN_CANDIDATES;
    result = gcomp_advise_link_measure(&desc, bytes, &question.link);
    if (result == GCOMP_OK) result = gcomp_advise(&question, each, &advice);
    if (result != GCOMP_OK || count > TRAIN_ADVISED || comm->world > 64) {
        fprintf(stderr, "worker %d: advice: %s %s\n", comm->rank, gcomp_result_string(result), why);
        return 1;
    }
    /* what it expects is good to a quarter: less than that is not worth it */
    for (size_t t = 0; t < count; t++)
        mine[t] = advice.seconds < 0.75 * advice.plain ? (unsigned char)each[t].choice : 0;
    if (comm->allgather(comm->user, mine, all, sizeof mine)) return 1;
    for (size_t t = 0; t < count; t++) tensors[t].codec = codecs[all[t] % TRAIN_CANDIDATES];
    if (comm->rank == 0) {
        printf("advised: %.1f ms a step without the backward pass, uncompressed %.1f;",
               1e3 * advice.seconds, 1e3 * advice.plain);
        for (size_t t = 0; t < count; t++)
            if (mine[t]) printf(" %s %s", tensors[t].name, tensors[t].codec);
        printf("%s\n", advice.seconds < 0.75 * advice.plain ? "" : " do not compress");
    }
    return 0;
}

#endif
