/* run_threads.h - gcomp_parallel.run with real threads. */
#ifndef RUN_THREADS_H
#define RUN_THREADS_H

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

/* The tasks of one thread: first, first + step, ... */
typedef struct thread_share {
    size_t first, step, count;
    void (*task)(void *arg, size_t index);
    void *arg;
} thread_share;

static inline void *run_share(void *arg)
{
    const thread_share *s = (const thread_share *)arg;
    for (size_t i = s->first; i < s->count; i += s->step) s->task(s->arg, i);
    return NULL;
}

/* user: size_t, the number of threads, 8 at most. */
static inline void run_threads(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    size_t threads = *(size_t *)user;
    pthread_t id[8];
    thread_share shares[8];
    for (size_t t = 0; t < threads; t++) {
        thread_share s = {t, threads, count, task, arg};
        shares[t] = s;
        if (pthread_create(&id[t], NULL, run_share, &shares[t])) abort();
    }
    for (size_t t = 0; t < threads; t++) pthread_join(id[t], NULL);
}

#endif
