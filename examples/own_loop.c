/* own_loop.c - the step API in the user's own event loop: three workers in one thread, which calls
   poll.

   Shows     gcomp_step_begin, _ready, _next, _done, _commit without callbacks and threads; a
             backward pass that hands in one tensor a turn while the tensors before it are on their
             way (desc.bucket_bytes); requests that are carried out over sockets that never block
   Leaves    real connections: the workers are in one process, and socket pairs connect them
   Build     cc -I. -Iexamples/adapters examples/own_loop.c gcomp_impl.o -o build/own_loop
   Run       build/own_loop */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"
#include "args.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORLD = 3, STEPS = 5, TENSORS = 4, ROWS = 200, COLS = 300, COUNT = ROWS * COLS };

/* Elements of the largest sum: a tensor, and in the first sum the one with which gcomp tries it. */
enum { ROOM = COUNT + 1 };

/* One end of a connection: what it has still to send and to receive. */
typedef struct line {
    int fd;
    const unsigned char *out;
    unsigned char *in;
    size_t out_left, in_left;
} line;

typedef struct worker {
    int rank;
    gcomp *gc;
    float grads[TENSORS][COUNT];
    size_t ready; /* tensors handed in, in this step */
    int steps;    /* committed */
    int failures; /* steps in a row */
    int busy;     /* a request is under way */
    gcomp_request request;
    line lines[WORLD];
    float inbox[WORLD][ROOM]; /* what comes in to be summed */
} worker;

static worker workers[WORLD];

/* Stands for the backward pass of one layer. */
static float gradient(int rank, size_t tensor, int step, size_t i)
{
    return (float)((i * 37 + tensor * 11 + (size_t)rank * 5 + (size_t)step) % 101) - 50.0f;
}

static gcomp_result open_worker(worker *w, int rank)
{
    gcomp_desc desc = {0};
    gcomp_result result;
    w->rank = rank;
    desc.codec = "topk:density=0.02";
    /* each tensor is sent alone, as soon as it is ready */
    desc.bucket_bytes = COUNT * sizeof(float);
    desc.comm.rank = rank;
    desc.comm.world = WORLD; /* no callbacks: requests come out of gcomp_step_next */
    result = gcomp_open(&w->gc, &desc);
    for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) {
        static const char *const names[TENSORS] = {"fc1", "fc2", "fc3", "embedding"};
        gcomp_tensor tensor = {0};
        tensor.name = names[t];
        tensor.rows = ROWS;
        tensor.cols = COLS;
        tensor.codec = t == 3 ? "none" : NULL; /* so that there is something to sum */
        result = gcomp_add_tensor(w->gc, &tensor);
    }
    return result;
}

/* Begins to carry out a request: says what goes to each other worker, and where the bytes that come
   from it go. */
static void start(worker *w)
{
    const gcomp_request *r = &w->request;
    int gather = r->kind == GCOMP_ALLGATHER;
    w->busy = 1;
    for (int other = 0; other < WORLD; other++) {
        line *l = &w->lines[other];
        unsigned char *place = (unsigned char *)r->recv + (size_t)other * r->stride;
        if (other == w->rank) {
            if (gather && r->bytes[other]) memcpy(place, r->send, r->bytes[other]);
            continue;
        }
        l->out = (const unsigned char *)(gather ? r->send : r->recv);
        l->out_left = gather ? r->bytes[w->rank] : r->count * sizeof(float);
        l->in = gather ? place : (unsigned char *)w->inbox[other];
        l->in_left = gather ? r->bytes[other] : r->count * sizeof(float);
    }
}

/* All bytes of a request have moved. Sums are added in rank order, so that all workers get the same
   bits. */
static gcomp_result finish(worker *w)
{
    const gcomp_request *r = &w->request;
    if (r->kind == GCOMP_ALLREDUCE) {
        float *data = (float *)r->recv;
        memcpy(w->inbox[w->rank], data, r->count * sizeof(float));
        memcpy(data, w->inbox[0], r->count * sizeof(float));
        for (int other = 1; other < WORLD; other++)
            for (size_t i = 0; i < r->count; i++) data[i] += w->inbox[other][i];
    }
    w->busy = 0;
    return gcomp_step_done(w->gc, r->id, r->kind != GCOMP_ALLGATHER && r->kind != GCOMP_ALLREDUCE);
}

/* What a worker does in a turn of the loop: it begins a step if none is under way, hands in one
   tensor, and goes on with its communication. */
static gcomp_result turn(worker *w)
{
    gcomp_result result = GCOMP_OK;
    int waiting = 0;
    if (w->steps == STEPS) return GCOMP_OK;
    if (w->ready == 0) result = gcomp_step_begin(w->gc, NULL);
    if (w->ready < TENSORS && result == GCOMP_OK) {
        size_t t = TENSORS - ++w->ready; /* the last layer comes first */
        for (size_t i = 0; i < COUNT; i++) w->grads[t][i] = gradient(w->rank, t, w->steps, i);
        result = gcomp_step_ready(w->gc, t, w->grads[t]);
    }
    for (int other = 0; other < WORLD; other++)
        waiting |= w->lines[other].out_left || w->lines[other].in_left;
    if (w->busy && !waiting && result == GCOMP_OK) result = finish(w);
    if (!w->busy && result == GCOMP_OK) result = gcomp_step_next(w->gc, &w->request);
    if (w->busy || result != GCOMP_OK || w->request.kind == GCOMP_WAIT) return result;
    if (w->request.kind != GCOMP_DONE) {
        start(w);
        return GCOMP_OK;
    }
    w->ready = 0;
    w->steps++;
    w->failures = 0;
    return gcomp_step_commit(w->gc);
}

/* After a step of a worker that failed. Returns 0: go on with the next step, 1: stop.
     retry          nothing has changed: the worker takes part in the next step
     resynchronise  the worker takes the step's number of worker 0, and would take its weights if
                    there were any. All workers are in one process, so that needs no broadcast. A
                    connection that failed is not made again: stop
     fatal          stop */
static int recover(worker *w, gcomp_result result)
{
    const gcomp_class what = gcomp_result_class(result);
    const uint64_t number = gcomp_step_number(workers[0].gc);
    fprintf(stderr, "worker %d: %s: %s\n", w->rank, gcomp_result_string(result),
            gcomp_error(w->gc));
    w->ready = 0;
    if (what == GCOMP_CLASS_FATAL || result == GCOMP_CALLBACK_FAILED || ++w->failures == 10)
        return 1;
    return what == GCOMP_CLASS_RESYNCHRONISE && gcomp_restart(w->gc, number) != GCOMP_OK;
}

/* Moves what can be moved without waiting; waits a moment if nothing can. Returns 0, or 1 if a
   connection is gone. */
static int poll_all(void)
{
    struct pollfd polls[WORLD * WORLD];
    for (int i = 0; i < WORLD * WORLD; i++) {
        const line *l = &workers[i / WORLD].lines[i % WORLD];
        polls[i].events = (short)((l->out_left ? POLLOUT : 0) | (l->in_left ? POLLIN : 0));
        polls[i].fd = polls[i].events ? l->fd : -1;
        polls[i].revents = 0;
    }
    if (poll(polls, WORLD * WORLD, 1) <= 0) /* 1 ms: the backward pass is to go on */
        return 0;
    for (int i = 0; i < WORLD * WORLD; i++) {
        line *l = &workers[i / WORLD].lines[i % WORLD];
        ssize_t out = 0, in = 0;
        if (l->out_left && (polls[i].revents & POLLOUT)) out = write(l->fd, l->out, l->out_left);
        if (l->in_left && (polls[i].revents & POLLIN)) in = read(l->fd, l->in, l->in_left);
        if (out < 0 || in < 0) return 1;
        l->out += out;
        l->out_left -= (size_t)out;
        l->in += in;
        l->in_left -= (size_t)in;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0, left = WORLD, turns = 0;
    args_none(argc, argv, "usage: own_loop\n  three workers in one thread take steps in a loop around poll\n");
    for (int a = 0; a < WORLD && !failed; a++) {
        failed = open_worker(&workers[a], a) != GCOMP_OK;
        if (a == 0 && !failed) {
            char text[1024];
            gcomp_describe(workers[a].gc, text, sizeof text);
            fputs(text, stdout);
        }
        for (int b = 0; b < a && !failed; b++) {
            int pair[2];
            failed = socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ||
                fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 || fcntl(pair[1], F_SETFL, O_NONBLOCK) < 0;
            workers[a].lines[b].fd = pair[0];
            workers[b].lines[a].fd = pair[1];
        }
    }
    for (; !failed && left; turns++) {
        failed = poll_all();
        left = 0;
        for (int a = 0; a < WORLD && !failed; a++) {
            gcomp_result result = turn(&workers[a]);
            failed = result != GCOMP_OK && recover(&workers[a], result);
            left += workers[a].steps < STEPS;
        }
    }
    for (size_t t = 0; t < TENSORS && !failed; t++)
        for (int a = 1; a < WORLD; a++)
            failed |= memcmp(workers[a].grads[t], workers[0].grads[t], COUNT * sizeof(float)) != 0;
    /* The tensor that is not compressed has the exact mean. */
    for (size_t i = 0; i < COUNT && !failed; i++) {
        float sum = gradient(0, 3, STEPS - 1, i) + gradient(1, 3, STEPS - 1, i) +
            gradient(2, 3, STEPS - 1, i);
        float error = 3 * workers[0].grads[3][i] - sum;
        failed |= !(error > -1e-3f && error < 1e-3f);
    }
    printf("%d workers, %d steps, %d turns of the loop: the means are %s\n", WORLD, STEPS, turns,
           failed ? "WRONG" : "the same");
    for (int a = 0; a < WORLD; a++) gcomp_close(workers[a].gc);
    return failed;
}
