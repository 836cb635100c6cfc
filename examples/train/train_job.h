/* train_job.h - the list of runs of train.c, and the report of worker 0 at the end. */

#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include "train_data.h"
#include "train_net.h"
#include "train_options.h"
#include "train_picture.h"
#include "train_report.h"

#include <stdlib.h>

/* The runs that every worker does, in this order. */
typedef struct train_job {
    const train_options *options;
    const train_data *data;
    const char *codec[TRAIN_RUNS];
    uint64_t seed[TRAIN_RUNS];
    size_t runs, methods;
    float *gradient;     /* of the first layer's weights, worker 0, halfway through the first run */
    train_points points; /* what codecs lose of it */
    train_result results[TRAIN_RUNS]; /* only worker 0 writes there */
} train_job;

/* Lists the runs, the uncompressed one first, for each seed. Returns 0, or 1 if memory is short. */
static inline int train_plan(train_job *j, train_options *o, const train_data *data)
{
    j->options = o;
    j->data = data;
    if (o->epochs) o->steps = o->epochs * train_epoch_steps(data, (size_t)o->workers.world);
    for (uint64_t seed = o->seed; seed < o->seed + o->seeds; seed++)
        for (size_t i = o->alone ? 1 : 0; i <= o->method_count; i++) {
            j->codec[j->runs] = i ? o->methods[i - 1] : "none";
            j->seed[j->runs++] = seed;
        }
    j->methods = j->runs / o->seeds;
    for (size_t i = 0; i < j->runs; i++) {
        j->results[i].loss = train_floats(o->steps);
        j->results[i].sent = (double *)calloc(2 * o->steps, sizeof(double)); /* and seconds */
        if (!j->results[i].loss || !j->results[i].sent) return 1;
    }
    return 0;
}

static inline void train_job_free(train_job *j)
{
    for (size_t i = 0; i < j->runs; i++) {
        free(j->results[i].loss);
        free(j->results[i].sent);
    }
    free(j->gradient);
}

/* What worker 0 says at the end. Returns the exit status. */
static inline int train_report(train_job *j, size_t world)
{
    const train_options *o = j->options;
    const char *what = j->data->what;
    int bad = 0;
    if (train_is_judged(o->experiment))
        return train_judge_experiment(o->experiment, j->results, j->methods, o->seeds,
                                      j->data->pixels != 0) != 0;
    if (!o->no_pictures && (!j->gradient || train_measure_all(&j->points, j->gradient))) return 1;
    if (o->experiment->kind == ERRORS) {
        train_methods_table(&j->points);
        return train_picture_draw(&j->points, what, o->steps / 2, o->out);
    }
    train_table(j->results, j->runs);
    for (size_t i = 0; i < j->runs; i++) bad |= !j->results[i].identical;
    printf("\n");
    bad |= train_csv(j->results, j->runs, o->out);
    bad |= train_runs_csv(j->results, j->runs, o->out);
    if (o->no_pictures) return bad;
    bad |= train_plot(j->results, j->runs, what, world, o->out);
    bad |= train_picture_draw(&j->points, what, o->steps / 2, o->out);
    return bad;
}

#endif /* TRAIN_JOB_H */
