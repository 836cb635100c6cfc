/* Two workers, which are threads, exchange a gradient; then both have the mean. */
#include "gcomp.h"
#include "gcomp_threads.h"

#include <pthread.h>
#include <stdio.h>

enum { WORKERS = 2, COUNT = 4096 };

typedef struct worker {
    gcomp_threads *group;
    int rank;
    gcomp_result result;
    float grad[COUNT];
} worker;

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    float *grads[1] = {w->grad};
    gcomp *gc = NULL;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    desc.codec = "int:bits=8";
    desc.comm = gcomp_threads_comm(w->group, w->rank);
    tensor.name = "weights";
    tensor.rows = tensor.cols = 64;
    for (int i = 0; i < COUNT; i++) w->grad[i] = (float)(1 + 2 * w->rank);
    w->result = gcomp_open(&gc, &desc);
    if (w->result == GCOMP_OK) w->result = gcomp_add_tensor(gc, &tensor);
    if (w->result == GCOMP_OK) w->result = gcomp_exchange(gc, grads, NULL);
    if (w->result != GCOMP_OK) gcomp_threads_fail(w->group); /* the other need not wait */
    gcomp_close(gc);
    return NULL;
}

int main(void)
{
    static worker workers[WORKERS];
    pthread_t other;
    gcomp_threads *group;
    if (gcomp_threads_open(&group, WORKERS, 10.0) != 0) return 1;
    for (int i = 0; i < WORKERS; i++) workers[i].group = group, workers[i].rank = i;
    if (pthread_create(&other, NULL, work, &workers[1]) != 0) return 1;
    work(&workers[0]);
    pthread_join(other, NULL);
    gcomp_threads_close(group);
    for (int i = 0; i < WORKERS; i++) {
        if (workers[i].result != GCOMP_OK) {
            fprintf(stderr, "worker %d: %s\n", i, gcomp_result_string(workers[i].result));
            return 1;
        }
        if (workers[i].grad[7] < 1.99f || workers[i].grad[7] > 2.01f) return 1;
    }
    printf("gcomp %d: the mean of 1 and 3 is %.2f\n", gcomp_version(), (double)workers[0].grad[7]);
    return 0;
}
