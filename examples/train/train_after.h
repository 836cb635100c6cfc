/* train_after.h - what the workers of train.c find out together after a run: the accuracy, the mean
   losses, and whether all ended with the same parameters. */

#ifndef TRAIN_AFTER_H
#define TRAIN_AFTER_H

#include "gcomp.h"
#include "train_data.h"
#include "train_net.h"
#include "train_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shares the test samples among the workers. Returns the accuracy over all of them, or -1 if the
   transport failed. */
static inline double train_accuracy(train_net *net, const train_data *data, const gcomp_comm *comm)
{
    const size_t world = (size_t)comm->world, rank = (size_t)comm->rank;
    const size_t end = data->tests * (rank + 1) / world;
    double correct = 0, sum = 0, *all = (double *)calloc(world, sizeof *all);
    int error = !all;
    for (size_t begin = data->tests * rank / world; begin < end; begin += net->batch) {
        const size_t count = end - begin < net->batch ? end - begin : net->batch;
        for (size_t s = 0; s < count; s++)
            net->label[s] = train_sample(data, data->count + begin + s,
                                         net->x[0] + s * data->inputs);
        correct += (double)train_correct(net, count);
    }
    error = error || comm->allgather(comm->user, &correct, all, sizeof correct) != 0;
    for (size_t w = 0; w < world && !error; w++) sum += all[w];
    free(all);
    return error ? -1 : sum / (double)data->tests;
}

/* Compares the parameters of all workers, and averages their losses. loss[r->steps]: the losses of
   this worker. Returns 0, or 1 after saying what is wrong. */
static inline int train_compare_all(const float *parameters, size_t count, const gcomp_comm *comm,
                                    const float *loss, train_result *r)
{
    const size_t world = (size_t)comm->world, most = count > r->steps ? count : r->steps;
    float *all = train_floats(world * most);
    int error = all == NULL;
    if (error) fprintf(stderr, "worker %d: no memory\n", comm->rank);
    else error = comm->allgather(comm->user, parameters, all, count * sizeof(float));
    r->identical = 1;
    r->digest = train_digest(parameters, count);
    for (size_t w = 0; !error && w < world; w++)
        r->identical &= memcmp(all + w * count, parameters, count * sizeof(float)) == 0;
    if (!error) error = comm->allgather(comm->user, loss, all, r->steps * sizeof(float));
    for (size_t s = 0; !error && s < r->steps; s++) {
        double sum = 0;
        for (size_t w = 0; w < world; w++) sum += (double)all[w * r->steps + s];
        r->loss[s] = (float)(sum / (double)world);
    }
    free(all);
    return error != 0;
}

static inline int train_compare(const train_net *net, const gcomp_comm *comm, const float *loss,
                                train_result *r)
{
    return train_compare_all(net->parameters, net->count, comm, loss, r);
}

#endif /* TRAIN_AFTER_H */
