/* train_workers.h - who works in train.c: threads of this process, processes connected by sockets,
   or the ranks of MPI. The same training runs over each, chosen on the command line; with
   --in-order for MPI it ends with the same parameters, bit for bit. */

#ifndef TRAIN_WORKERS_H
#define TRAIN_WORKERS_H

#ifdef USE_MPI
#include "gcomp_mpi.h"
#endif
#include "gcomp_sockets.h"
#include "gcomp_threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define TRAIN_TIMEOUT 60.0

#ifdef USE_MPI
#define TRAIN_TRANSPORTS "threads|sockets|mpi"
#else
#define TRAIN_TRANSPORTS "threads|sockets"
#endif

typedef struct train_workers {
    /* "threads", "sockets" or "mpi"; NULL: mpi if built with it, else threads */
    const char *transport;
    int world; /* of mpi: found when it begins */
    /* of sockets: -1: all workers are made here, as processes. Later the rank of this process */
    int rank;
    const char *root; /* of sockets: where rank 0 listens, "host:port" */
    int in_order;     /* of mpi: sums with the bits of the other transports */
    int overlaps;     /* comm has start, test and wait */
    gcomp_sockets *sockets;
#ifdef USE_MPI
    gcomp_mpi mpi;
#endif
} train_workers;

/* What a worker does. Returns 0, or 1 after saying what is wrong. */
typedef int (*train_work)(void *job, const gcomp_comm *comm);

static inline int train_workers_are(const train_workers *w, const char *transport)
{
#ifdef USE_MPI
    return !strcmp(w->transport ? w->transport : "mpi", transport);
#else
    return !strcmp(w->transport ? w->transport : "threads", transport);
#endif
}

/* Is there such a transport in this build? */
static inline int train_workers_know(const char *transport)
{
#ifdef USE_MPI
    if (!strcmp(transport, "mpi")) return 1;
#endif
    return !strcmp(transport, "threads") || !strcmp(transport, "sockets");
}

/* Connects this process to the others. If all workers run here, it first makes their processes. */
static inline int train_sockets_begin(train_workers *w)
{
    char host[64] = "127.0.0.1", port[8] = "7077";
    const char *colon = w->root ? strrchr(w->root, ':') : NULL;
    gcomp_sockets_desc desc;
    int error = w->root &&
        (!colon || (size_t)(colon - w->root) >= sizeof host || strlen(colon) > sizeof port);
    if (!error && w->root) {
        memcpy(host, w->root, (size_t)(colon - w->root));
        host[colon - w->root] = 0;
        memcpy(port, colon + 1, strlen(colon));
    }
    if (error) {
        fprintf(stderr, "--root %s: it takes HOST:PORT\n", w->root);
        return 1;
    }
    if (w->rank < 0) {
        error = w->root ? 0 : gcomp_sockets_free_port(port);
        if (error) {
            fprintf(stderr, "no port on 127.0.0.1: %s\n", strerror(error));
            return 1;
        }
        fflush(stdout);
        w->rank = 0;
        for (int rank = 1; rank < w->world && w->rank == 0; rank++) {
            pid_t child = fork();
            if (child == 0) w->rank = rank;
            if (child < 0) /* the others will wait for it in vain */
                fprintf(stderr, "worker %d: %s\n", rank, strerror(errno));
        }
    }
    memset(&desc, 0, sizeof desc);
    desc.rank = w->rank;
    desc.world = w->world;
    desc.host = host;
    desc.port = port;
    desc.secret = getenv("GCOMP_SECRET"); /* others can see the command line */
    desc.rendezvous = desc.silence = TRAIN_TIMEOUT;
    error = gcomp_sockets_start(&w->sockets, &desc);
    if (!error && w->overlaps) error = gcomp_sockets_overlap(w->sockets);
    if (error) fprintf(stderr, "worker %d: %s:%s: %s\n", w->rank, host, port, strerror(error));
    return error != 0;
}

/* Finds rank and world of this process; connects it. Returns 0, or 1 after saying what is wrong. */
static inline int train_workers_begin(train_workers *w, int most)
{
#ifdef USE_MPI
    if (train_workers_are(w, "mpi")) {
        MPI_Init(NULL, NULL);
        if (gcomp_mpi_open(&w->mpi, MPI_COMM_WORLD) != 0 || w->mpi.world > most ||
            (w->in_order && gcomp_mpi_sum_in_order(&w->mpi) != 0) ||
            (w->overlaps && gcomp_mpi_overlap(&w->mpi) != 0)) {
            fprintf(stderr, "no communicator of at most %d ranks\n", most);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        w->rank = w->mpi.rank;
        w->world = w->mpi.world;
        return 0;
    }
#endif
    (void)most;
    if (w->rank >= w->world) {
        fprintf(stderr, "--rank %d: there are %d workers\n", w->rank, w->world);
        return 1;
    }
    if (train_workers_are(w, "sockets")) return train_sockets_begin(w);
    w->rank = 0;
    return 0;
}

typedef struct train_thread {
    train_work work;
    void *job;
    gcomp_threads *group;
    int rank;
    int error;
} train_thread;

static void *train_thread_main(void *arg)
{
    train_thread *t = (train_thread *)arg;
    gcomp_comm comm = gcomp_threads_comm(t->group, t->rank);
    t->error = t->work(t->job, &comm);
    if (t->error) gcomp_threads_fail(t->group); /* the others need not wait for this one */
    return NULL;
}

/* One thread a worker. */
static inline int train_threads_run(int world, int overlaps, train_work work, void *job)
{
    pthread_t *threads = (pthread_t *)calloc((size_t)world, sizeof *threads);
    train_thread *args = (train_thread *)calloc((size_t)world, sizeof *args);
    gcomp_threads *group = NULL;
    int started = 0;
    int error = !threads || !args || gcomp_threads_open(&group, world, TRAIN_TIMEOUT) != 0 ||
        (overlaps && gcomp_threads_overlap(group) != 0);
    if (error) fprintf(stderr, "cannot make a group of %d workers\n", world);
    for (; !error && started < world; started++) {
        args[started].work = work;
        args[started].job = job;
        args[started].group = group;
        args[started].rank = started;
        error = pthread_create(&threads[started], NULL, train_thread_main, &args[started]);
        if (error) {
            fprintf(stderr, "cannot start thread %d\n", started);
            gcomp_threads_fail(group);
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        error |= args[i].error;
    }
    if (group && gcomp_threads_lost(group) >= 0)
        fprintf(stderr, "worker %d did not come in time\n", gcomp_threads_lost(group));
    gcomp_threads_close(group);
    free(threads);
    free(args);
    return error != 0;
}

/* Lets the workers of this process work. Returns 0, or 1 after something was said to be wrong. */
static inline int train_workers_run(train_workers *w, train_work work, void *job)
{
    gcomp_comm comm;
    char why[80];
    int error;
#ifdef USE_MPI
    if (train_workers_are(w, "mpi")) {
        comm = gcomp_mpi_comm(&w->mpi);
        if (work(job, &comm) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
        return 0;
    }
#endif
    if (train_workers_are(w, "threads")) return train_threads_run(w->world, w->overlaps, work, job);
    comm = gcomp_sockets_comm(w->sockets);
    error = work(job, &comm);
    if (gcomp_sockets_lost(w->sockets) >= 0)
        fprintf(stderr, "worker %d: %s\n", w->rank, gcomp_sockets_why(w->sockets, why, sizeof why));
    return error;
}

/* Disconnects, and waits for the processes that were made here. Returns status, or 1 if one of them
   failed. */
static inline int train_workers_end(train_workers *w, int status)
{
    int how;
    gcomp_sockets_close(w->sockets); /* the others see it */
    while (w->rank == 0 && w->sockets && wait(&how) > 0) status |= how != 0;
#ifdef USE_MPI
    if (train_workers_are(w, "mpi")) {
        gcomp_mpi_close(&w->mpi);
        MPI_Finalize();
    }
#endif
    return status;
}

#endif /* TRAIN_WORKERS_H */
