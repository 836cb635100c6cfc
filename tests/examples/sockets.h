/* What tests of sockets share: workers that are processes on the loopback, and tell what they have seen. */

#ifndef SOCKETS_H
#define SOCKETS_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif

#include <netdb.h>
#include <stdio.h>
#include <string.h>

/* A name with three addresses: where nobody listens, where a stranger may, and the loopback. */
static int find_addresses(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    struct addrinfo **end = found;
    if (strcmp(host, "three.addresses") != 0) return getaddrinfo(host, port, hints, found);
    for (int i = 3; i > 0; i--) {
        char number[16];
        snprintf(number, sizeof number, "127.0.0.%d", i);
        if (getaddrinfo(number, port, hints, end) != 0) return EAI_FAIL;
        end = &(*end)->ai_next; /* one address of one kind of socket: a list of one */
    }
    return 0;
}

#define getaddrinfo find_addresses
#include <sys/socket.h>

/* Bytes that this process has sent. */
static size_t bytes_sent;

static ssize_t send_counted(int fd, const void *bytes, size_t count, int flags)
{
    const ssize_t sent = send(fd, bytes, count, flags);
    if (sent > 0) __atomic_fetch_add(&bytes_sent, (size_t)sent, __ATOMIC_RELAXED);
    return sent;
}

#define send(fd, bytes, count, flags) send_counted(fd, bytes, count, flags)
#define GCOMP_SOCKETS_PIECE ((size_t)256) /* so that sums take many pieces */
#define GCOMP_SOCKETS_AT_ONCE ((size_t)100) /* and some of them turns */

/* So that some data go with the meeting, and some do not. A worker may be as if compiled with another one. */
static size_t most_brief = 40;
#define GCOMP_SOCKETS_BRIEF most_brief
#define GCOMP_SOCKETS_GUESTS 8 /* so that strangers take all places */
static double patience = 20; /* so that no test waits for it unseen */
#define GCOMP_SOCKETS_PATIENCE patience
#include "gcomp_sockets.h"
#include "gcomp_try.h"
#undef send
#include "halves.h"
#include "test.h"
#include "training.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST = 4, FORTY = 40, MANY = 64, CROWD = 256 };

/* What a worker, a process, tells the test. */
typedef struct told {
    int opened;  /* what open returned; -1: not reached */
    int status;  /* of the body */
    int wrong;   /* failed checks */
    int steps;   /* committed before the failure */
    double took; /* seconds from the failure of another to the error here */
    uint64_t digest;
    int lost; /* 1 + the worker that is lost, after an error */
    char why[80];
} told;

static told *tell; /* [CROWD], shared with the processes */
static char port[8];
static gcomp_sockets_desc asked; /* but for rank and world: what workers open with */
static int victim;

static inline void choose_port(void)
{
    static int number;
    int fd = -1;
    if (!number) number = 20000 + (int)(getpid() % 100) * 100; /* two that run at once do not meet */
    while (fd < 0) {
        snprintf(port, sizeof port, "%d", number++);
        fd = gcomp_sockets_listen("127.0.0.1", port);
    }
    close(fd);
    memset(&asked, 0, sizeof asked);
    asked.port = port;
    asked.job = 7;
    asked.rendezvous = 30;
    asked.silence = 30;
}

static inline int open_as(gcomp_sockets **s, int rank, int world)
{
    gcomp_sockets_desc desc = asked;
    desc.rank = rank;
    desc.world = world;
    if (rank % 2 && !desc.secret && desc.rendezvous == desc.silence)
        return gcomp_sockets_open(s, rank, world, desc.host, desc.port, desc.job, desc.silence);
    return gcomp_sockets_start(s, &desc);
}

/* One worker as a process. */
static inline pid_t begin(int rank, int world, int (*body)(gcomp_sockets *, told *))
{
    pid_t child;
    tell[rank].opened = -1;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        gcomp_sockets *s;
        told *t = &tell[rank];
        t->opened = open_as(&s, rank, world);
        if (!t->opened) t->status = body(s, t);
        gcomp_sockets_close(t->opened ? NULL : s);
        _exit(0);
    }
    return child;
}

/* All workers as asked. Returns 1 if those but the victim ended by themselves. */
static inline int run_asked(int world, int (*body)(gcomp_sockets *, told *))
{
    pid_t children[CROWD];
    int good = 1, how;
    memset(tell, 0, CROWD * sizeof *tell);
    for (int w = 0; w < world; w++) children[w] = begin(w, world, body);
    for (int w = 0; w < world; w++) {
        if (w == victim) continue;
        good &= waitpid(children[w], &how, 0) == children[w] && WIFEXITED(how) && WEXITSTATUS(how) == 0 && tell[w].opened == 0;
    }
    if (victim >= 0) {
        kill(children[victim], SIGKILL);
        waitpid(children[victim], &how, 0);
    }
    return good;
}

static inline int run(int world, double silence, int (*body)(gcomp_sockets *, told *))
{
    choose_port();
    asked.silence = silence;
    return run_asked(world, body);
}

static inline int all_are(int world, int status)
{
    int good = 1;
    for (int w = 0; w < world; w++) good &= w == victim || (tell[w].status == status && tell[w].wrong == 0);
    return good;
}

/* ---- connecting */

static inline int body_barrier(gcomp_sockets *s, told *t)
{
    (void)t;
    return gcomp_sockets_barrier(s);
}

static inline void end_worker(pid_t child)
{
    int how;
    kill(child, SIGKILL);
    waitpid(child, &how, 0);
}

/* Accepts, and answers with words, until it is killed. */
static inline pid_t begin_stranger(const char *host, const void *words, size_t bytes)
{
    int listener = gcomp_sockets_listen(host, port);
    pid_t child;
    CHECK(listener >= 0);
    fflush(stdout);
    child = fork();
    if (child == 0)
        for (alarm(60);;) { /* if nobody ends it */
            struct pollfd p = {listener, POLLIN, 0};
            int fd;
            poll(&p, 1, 1000);
            fd = accept(listener, NULL, NULL);
            if (fd >= 0) (void)!send(fd, words, bytes, MSG_NOSIGNAL); /* and keeps it */
        }
    close(listener);
    return child;
}

static inline int body_waits_until_the_other_hangs_up(gcomp_sockets *s, told *t)
{
    char word;
    ssize_t n;
    (void)t;
    do {
        n = recv(s->peers[0], &word, 1, 0);
        if (n < 0) poll(NULL, 0, 10);
    } while (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)));
    return 0;
}

#endif
