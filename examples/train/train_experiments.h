/* train_experiments.h - the experiments of train.c: which methods are trained, for how long, with
   which learning rates, and how the results are judged. */

#ifndef TRAIN_EXPERIMENTS_H
#define TRAIN_EXPERIMENTS_H

#include "train_report.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TRAIN_SEEDS 5 /* at most */
#define TRAIN_RUNS 96 /* methods x seeds, at most */

typedef enum train_kind { DEMO, ACCURACY, ACCORDION, DGC, RESIDUALS, ERRORS } train_kind;

/* An experiment: what train.c does if the command line says nothing else. */
typedef struct train_experiment {
    const char *flag; /* of the command line; NULL: the demo */
    train_kind kind;
    size_t seeds, steps, epochs; /* steps, or epochs if not 0 */
    /* The learning rate goes into gcomp_step.scale, not into the optimizer: a part of the gradient
       that waits for a later step keeps the rate it was made with. */
    int rate_in_scale;
    const char *methods[7]; /* beside none */
} train_experiment;

static const train_experiment train_experiments[] = {
    {NULL, DEMO, 1, 1200, 0, 0,
     {"sign", "topk:density=0.01", "powersgd:rank=4", "int:bits=4", "qsgd", "bf16"}},
    {"--accuracy", ACCURACY, 3, 1200, 0, 0,
     {"topk:density=0.01", "sign", "powersgd:rank=4"}},
    {"--accordion", ACCORDION, 3, 1200, 0, 1,
     {"powersgd:rank=4", "powersgd:rank=4|powersgd:rank=1@accordion:every=1"}},
    {"--dgc", DGC, 3, 0, 20, 1,
     {"dgc:nesterov=1", "dgc:masking=0", "dgc", "topk:density=0.001"}},
    {"--residuals", RESIDUALS, 3, 1200, 0, 0,
     {"int:bits=4", "int:bits=4%bf16", "int:bits=4%int8", "sign", "sign%bf16", "sign%int8"}},
    {"--errors", ERRORS, 1, 300, 0, 0, {NULL}}};

/* The experiment of a flag, or NULL. */
static inline const train_experiment *train_find_experiment(const char *flag)
{
    for (size_t i = 1; i < sizeof train_experiments / sizeof *train_experiments; i++)
        if (!strcmp(flag, train_experiments[i].flag)) return train_experiments + i;
    return NULL;
}

/* Is the experiment repeated with several seeds, and judged by bars? */
static inline int train_is_judged(const train_experiment *e)
{
    return e->kind == ACCURACY || e->kind == ACCORDION || e->kind == DGC || e->kind == RESIDUALS;
}

/* ---------------- learning rates

   The same for all methods. Found by trial with 1200 steps: at higher rates uncompressed training
   learns faster, and what error feedback sends late falls further behind. */

#define TRAIN_IMAGE_RATE 0.0035f
#define TRAIN_TEXT_RATE 0.015f
/* In 20 epochs uncompressed training learns more with it than with .005, .01, .02. */
#define TRAIN_DGC_RATE 0.05f

/* The learning rate of a step. It rises over the first tenth of the steps, and then falls to zero:
   in a straight line, or with --dgc as half a cosine. */
static inline float train_rate(const train_experiment *e, int images, size_t step, size_t steps)
{
    const float image_rate = e->kind == DGC ? TRAIN_DGC_RATE : TRAIN_IMAGE_RATE;
    const float largest = images ? image_rate : TRAIN_TEXT_RATE;
    const float at = (float)(step + 1) / (float)(steps + 1), rest = (1.0f - at) / 0.9f;
    if (at < 0.1f) return largest * (at / 0.1f);
    return largest * (e->kind == DGC ? 0.5f * (1.0f - cosf(3.14159265f * rest)) : rest);
}

/* The number for gcomp_step.epoch. 1200 steps have five epochs, which are too few for accordion: it
   gets twelfths of the training instead. */
static inline uint32_t train_epoch(const train_experiment *e, size_t step, size_t steps,
                                   size_t epoch_steps)
{
    return (uint32_t)(e->kind == ACCORDION ? 12 * step / steps : step / epoch_steps);
}

/* ---------------- judgement */

/* The means of one method over the seeds. results[s * methods + i] is method i with seed s. */
typedef struct train_mean {
    double loss, accuracy, bytes;
    int identical;
} train_mean;

static inline train_mean train_mean_of(const train_result *results, size_t methods, size_t seeds,
                                       size_t i)
{
    train_mean m = {0, 0, 0, 1};
    for (size_t s = 0; s < seeds; s++) {
        const train_result *r = &results[s * methods + i];
        m.loss += r->final_loss / (double)seeds;
        m.accuracy += 100.0 * r->accuracy / (double)seeds;
        m.bytes += r->bytes / (double)seeds;
        m.identical &= r->identical;
    }
    return m;
}

/* Compares a method with a schedule, "A|B@accordion", with A alone. Returns 1 if it misses its
   bars. */
static inline int train_judge_accordion(const train_result *results, size_t methods, size_t seeds,
                                        size_t i)
{
    const char *codec = results[i].codec, *bar = strchr(codec, '|');
    train_mean own = train_mean_of(results, methods, seeds, i), first;
    double change;
    size_t f = 0;
    int ok;
    if (!bar || !strstr(codec, "@accordion")) return 0;
    while (f < methods &&
           (strncmp(results[f].codec, codec, (size_t)(bar - codec)) ||
            results[f].codec[bar - codec]))
        f++;
    if (f == methods) return 0;
    first = train_mean_of(results, methods, seeds, f);
    change = 100.0 * (own.loss / first.loss - 1.0);
    ok = change <= 0.5 && first.bytes >= 1.5 * own.bytes;
    printf("    beside %s: loss %+.2f%% (bar 0.5 %%), %.2f times fewer bytes (bar "
           "1.5)  %s\n",
           results[f].codec, change, first.bytes / own.bytes, ok ? "ok" : "MISSED");
    return !ok;
}

/* Compares a method that keeps small residuals, "A%int8", with A. Returns 1 if it misses its bar. */
static inline int train_judge_residual(const train_result *results, size_t methods, size_t seeds,
                                       size_t i)
{
    const char *codec = results[i].codec, *kept = strchr(codec, '%');
    double change;
    size_t f = 0;
    if (!kept) return 0;
    while (f < methods && (strncmp(results[f].codec, codec, (size_t)(kept - codec)) ||
                           results[f].codec[kept - codec]))
        f++;
    if (f == methods) return 0;
    change = 100.0 * (train_mean_of(results, methods, seeds, i).loss /
                          train_mean_of(results, methods, seeds, f).loss -
                      1.0);
    printf("    beside fp32 residuals: loss %+.2f%% (bar 0.3 %%)  %s\n", change,
           change <= 0.3 ? "ok" : "MISSED");
    return change > 0.3;
}

/* Prints means over the seeds with the bars of each method. Returns how many bars were missed. */
static inline int train_judge(const train_result *results, size_t methods, size_t seeds, int images)
{
    train_mean none = train_mean_of(results, methods, seeds, 0);
    int missed = 0, width = 18;
    for (size_t i = 0; i < methods; i++)
        width = (int)strlen(results[i].codec) > width ? (int)strlen(results[i].codec) : width;
    printf("\nMeans over %zu seeds. Bars: loss at most 3 %% above uncompressed,\n", seeds);
    printf("accuracy at most 1 point below it%s.\n\n", images ? ", its own at least 85 %" : "");
    printf("%-*s %10s %8s %8s %9s %9s\n", width, "method", "bytes/step", "loss", "", "accuracy",
           "points");
    for (size_t i = 0; i < methods; i++) {
        train_mean m = train_mean_of(results, methods, seeds, i);
        double change = 100.0 * (m.loss / none.loss - 1.0), points = m.accuracy - none.accuracy;
        int ok = change <= 3.0 && points >= -1.0 && m.identical &&
            (i || !images || m.accuracy >= 85.0);
        missed += !ok;
        printf("%-*s %10.0f %8.4f %+7.2f%% %8.2f%% %+9.2f  %s%s\n", width, results[i].codec,
               m.bytes, m.loss, change, m.accuracy, points, ok ? "ok" : "MISSED",
               m.identical ? "" : ", replicas differ");
        missed += train_judge_accordion(results, methods, seeds, i);
        missed += train_judge_residual(results, methods, seeds, i);
    }
    return missed;
}

/* The same for --dgc, with closer bars. Methods that are there for comparison have no bars: masked
   momentum that is not Nesterov's, and plain top-k. */
static inline int train_judge_dgc(const train_result *results, size_t methods, size_t seeds)
{
    train_mean none = train_mean_of(results, methods, seeds, 0);
    double none_bytes = 0;
    int missed = 0;
    printf("\nMeans over %zu seeds; loss: of the last tenth of the steps. Bars of "
           "dgc:nesterov=1 and dgc:masking=0:\n",
           seeds);
    printf("loss at most 2 %% above uncompressed, accuracy at most 0.3 points below it.\n\n");
    printf("%-22s %10s %8s %8s %9s %9s %9s\n", "method", "bytes/step", "ratio", "loss", "",
           "accuracy", "points");
    for (size_t i = 0; i < methods; i++) {
        train_mean m = train_mean_of(results, methods, seeds, i);
        double change = 100.0 * (m.loss / none.loss - 1.0), points = m.accuracy - none.accuracy;
        double bytes = 0;
        int barred = !strncmp(results[i].codec, "dgc:", 4);
        int ok = m.identical && (!barred || (change <= 2.0 && points >= -0.3));
        for (size_t s = 0; s < seeds; s++) { /* bytes of the last tenth: after the warm-up */
            const train_result *r = &results[s * methods + i];
            bytes += r->sent[r->steps - 1] - r->sent[r->steps - 1 - r->steps / 10];
        }
        bytes /= (double)(seeds * (results[i].steps / 10));
        none_bytes = i ? none_bytes : bytes;
        missed += !ok;
        printf("%-22s %10.0f %8.1f %8.4f %+8.2f%% %8.2f%% %+9.2f  %s%s\n", results[i].codec, bytes,
               none_bytes / bytes, m.loss, change, m.accuracy, points,
               barred ? ok ? "ok" : "MISSED" : "", m.identical ? "" : ", replicas differ");
    }
    return missed;
}

/* Judges an experiment with bars. Returns how many were missed. */
static inline int train_judge_experiment(const train_experiment *e, const train_result *results,
                                         size_t methods, size_t seeds, int images)
{
    return e->kind == DGC ? train_judge_dgc(results, methods, seeds)
                          : train_judge(results, methods, seeds, images);
}

#endif /* TRAIN_EXPERIMENTS_H */
