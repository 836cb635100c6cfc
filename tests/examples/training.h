/* A small training over any transport, for tests that compare transports. It must end with the
   digest of the same training by threads; else a bit got lost. */

#ifndef TRAINING_H
#define TRAINING_H

#include "gcomp_threads.h"
#include "requests.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 48, COLS = 40, BIAS = 40, STEPS = 3, TRAIN_MOST = 16 };

static const char *codec; /* of the next training */
static size_t bucket_bytes;

/* Floats summed; payloads gathered, of one length and not, and summed by ranges; integers
   summed, the largest; halves summed, from three workers on. */
static const char *const trained[] = {"none",            "sign",           "topk:density=0.2",
                                      "powersgd:rank=2", "intsum:bits=16", "topk:density=0.1+int:bits=4",
                                      "bf16"};
enum { TRAINED = sizeof trained / sizeof *trained };

typedef struct model {
    gcomp *gc;
    float weight[ROWS * COLS], bias[BIAS], weight_gradient[ROWS * COLS], bias_gradient[BIAS];
    void *grads[2];
} model;

static gcomp_result open_model(model *m, const gcomp_comm *comm)
{
    gcomp_desc desc;
    gcomp_tensor weight, bias;
    gcomp_result result;
    memset(m, 0, sizeof *m);
    memset(&desc, 0, sizeof desc);
    memset(&weight, 0, sizeof weight);
    memset(&bias, 0, sizeof bias);
    m->grads[0] = m->weight_gradient;
    m->grads[1] = m->bias_gradient;
    desc.codec = codec;
    desc.bucket_bytes = bucket_bytes;
    desc.comm = *comm;
    weight.name = "weight";
    weight.rows = ROWS;
    weight.cols = COLS;
    bias.name = "bias";
    bias.rows = BIAS;
    result = gcomp_open(&m->gc, &desc);
    if (result == GCOMP_OK) result = gcomp_add_tensor(m->gc, &weight);
    return result == GCOMP_OK ? gcomp_add_tensor(m->gc, &bias) : result;
}

/* A gradient that depends on the weights, so that a wrong bit stays. */
static void make_gradients(model *m, int rank, int step)
{
    for (size_t i = 0; i < ROWS * COLS; i++) m->weight_gradient[i] = value(rank + 8 * step, i) + 0.25f * m->weight[i];
    for (size_t i = 0; i < BIAS; i++) m->bias_gradient[i] = value(rank + 8 * step, i + 9000) + 0.25f * m->bias[i];
}

static uint64_t digest_of(const model *m)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < ROWS * COLS + BIAS; i++) {
        uint32_t bits;
        memcpy(&bits, i < BIAS ? &m->bias[i] : &m->weight[i - BIAS], 4);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

static int train(const gcomp_comm *comm, uint64_t *digest)
{
    model *m = (model *)malloc(sizeof *m);
    gcomp_result result = m ? open_model(m, comm) : GCOMP_OUT_OF_MEMORY;
    for (int step = 0; step < STEPS && result == GCOMP_OK; step++) {
        make_gradients(m, comm->rank, step);
        result = gcomp_exchange(m->gc, m->grads, NULL);
        for (size_t i = 0; i < ROWS * COLS; i++) m->weight[i] -= 0.1f * m->weight_gradient[i];
        for (size_t i = 0; i < BIAS; i++) m->bias[i] -= 0.1f * m->bias_gradient[i];
    }
    if (m) {
        *digest = digest_of(m);
        gcomp_close(m->gc);
    }
    free(m);
    return (int)result;
}

typedef struct thread_arg {
    gcomp_comm comm;
    uint64_t digest;
    int status;
} thread_arg;

static inline void *thread_main(void *arg)
{
    thread_arg *a = (thread_arg *)arg;
    a->status = train(&a->comm, &a->digest);
    return NULL;
}

/* The digest of the same training by threads, 0 on failure. */
static inline uint64_t train_by_threads(int world)
{
    pthread_t threads[TRAIN_MOST];
    thread_arg args[TRAIN_MOST];
    gcomp_threads *group;
    int good = 1;
    if (gcomp_threads_open(&group, world, 30)) return 0;
    for (int w = 0; w < world; w++) {
        args[w].comm = gcomp_threads_comm(group, w);
        if (pthread_create(&threads[w], NULL, thread_main, &args[w])) return 0;
    }
    for (int w = 0; w < world; w++) {
        pthread_join(threads[w], NULL);
        good &= args[w].status == 0 && args[w].digest == args[0].digest;
    }
    gcomp_threads_close(group);
    return good ? args[0].digest : 0;
}

#endif
