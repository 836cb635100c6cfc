/* gcomp_sockets.h - a transport for gcomp.h: workers are processes connected by TCP. Copy it,
   change it.

   Licence: as gcomp.h. Needs POSIX sockets, pthread_atfork (link with -pthread) and /dev/urandom; or
   Windows: see there.

       gcomp_sockets *net;
       gcomp_sockets_desc net_desc = {0};
       net_desc.rank = rank; net_desc.world = world;
       net_desc.host = "10.0.0.1"; net_desc.port = "7077";
       net_desc.secret = getenv("JOB_SECRET");
       int error = gcomp_sockets_start(&net, &net_desc);       0, or an errno value
       desc.comm = gcomp_sockets_comm(net);
       ...
       gcomp_sockets_close(net);

   All workers meet at rank 0, which listens at the given address and port. Then each worker
   connects to each other worker. So a message takes one hop. If a worker dies, all others see it at
   once, because the kernel closes its connections. In a sum each worker gets its shard from all
   others, adds it in rank order, and sends the result to all. That takes the bytes of a ring
   all-reduce, 2 (W - 1) / W of the data a worker, and gives the bits of gcomp_threads.h. fp16 and
   bf16 travel as they are, are added in float32, and the sum is rounded once. (A star
   would send everything through one link. A ring takes W - 1 hops, and the news of a death goes
   from neighbour to neighbour.)

   A collective has three parts. In the meeting all workers tell all what they bring; data of at most
   GCOMP_SOCKETS_BRIEF bytes goes with it. Then the rest of the data moves. In the parting rank 0
   hears from every worker that it has everything, and then tells all.
   Therefore a collective fails on all workers or on none:

     - sizes or kinds differ: GCOMP_SOCKETS_MISMATCH on all; the group can go on
     - a worker is gone, or sends nothing for `silence` seconds: GCOMP_SOCKETS_FAILED on all, and in
       every later collective; the data of the collective is unspecified. gcomp_sockets_lost says
       which worker that was, and gcomp_sockets_why says it in a sentence: who gives up because of
       another tells the others of whom. The workers that are left may open a new group.

   There is one exception: if rank 0 dies during the parting, some workers have heard and some have
   not. gcomp's next frame names the workers that are a step behind.

   Messages. A worker can also send a message to one other worker, with gcomp_sockets_send_to and
   _receive_from, for gossip and the like. The other workers take no part in that. While a worker
   waits in one of these two calls, it takes in what all others send, so that all may send first and
   receive later, whatever the sizes. If a worker dies, calls that name it fail, and messages
   between the others go on; but the next collective fails, on all. Messages and collectives share
   the connections: before a worker begins a collective, it must have received all messages that
   were sent to it, else the collective ends the group.

   Overlap. After gcomp_sockets_overlap the transport has start, test and wait: a thread of this
   file carries out started requests, one after the other, while the caller computes. On the network
   a started request is the collective of the blocking call, so workers that start and workers that
   block may meet. Blocking collectives and messages wait until all that was started is done. A
   request fails as a collective does; what was started behind it fails too. Ask gcomp_sockets_lost
   and gcomp_sockets_why after an error, not while requests are under way. gcomp_sockets_fail and
   gcomp_sockets_close end what is under way, here and on the others. desc.stop is asked by the
   calls that wait, never by the thread. In a child of fork() every request fails.

   Children. A group belongs to the process that opened it: fork before gcomp_sockets_start. A child
   that fork() makes later (a data loader) closes its copies of the connections before fork()
   returns in the child, and there the group has failed. So the others see the death of a worker at
   once, even if its children live on. This is promised for fork(), and for children that exec. A
   child that shares the connections in another way (clone) hides the death of its parent until
   `silence` seconds have passed.

   The secret. The worker that calls must prove that it knows the secret, and so must the worker
   that listens. Each of the two draws a random number for each connection. A proof is the
   HMAC-SHA-256 of both numbers, of who calls whom, and of the job, with the secret as the key. The
   secret itself is never sent. Without a secret whoever reaches the port and knows the job number
   can take a rank. The secret authenticates the rendezvous and nothing that follows: later data is
   neither encrypted nor authenticated, and whoever can change packets on the way can take a
   connection over. Take 32 random bytes as 64 hex digits: whoever hears one rendezvous can try
   short secrets.

   Strangers. A worker that listens has W + GCOMP_SOCKETS_GUESTS seats for connections that have not
   proven yet who they are. It closes each of them after GCOMP_SOCKETS_PATIENCE seconds. When no
   seat is free, a newer connection gets the seat of the oldest one of the address that has most
   seats, once that one has had its seat for GCOMP_SOCKETS_GRACE seconds. A worker that loses its
   seat calls again until its time is over. After the rendezvous no worker
   listens, except in a team: see "workers that come and go" below.

   Limits
     - One rack: W (W - 1) / 2 connections, 2 MiB of buffer a worker for each other one, of which only
       what sums touch is taken. A worker of W needs W + 2 descriptors (W after the rendezvous); with
       fewer gcomp_sockets_start returns EMFILE: raise ulimit -n. 256 workers on one machine of two
       cores met within 10 s, took 8 MiB each after small sums, and 3 to 8 s for a sum: there the
       processes wait for a core. Use MPI for more. The tests open 64 workers on one machine,
       also beside strangers, and 256 where TEST_LONG is set.
     - Every host must reach every other host at the address that rank 0 sees, at any port. Name
       rank 0 by an address that all hosts use, not by one that is its loopback. No NAT, no scoped
       IPv6 addresses.
     - All hosts have the same byte order. `silence` must be longer than the slowest worker computes
       between two collectives, and longer than the largest collective takes on the slowest link.
     - POSIX: Linux, BSD, macOS with SO_NOSIGPIPE in place of MSG_NOSIGNAL.

   Windows. Link with ws2_32 and bcrypt:
       x86_64-w64-mingw32-gcc worker.c gcomp.o -lws2_32 -lbcrypt
   Visual C++ finds the two by itself. The tests run under wine; nobody has run this on Windows
   itself, or with Visual C++. What differs:
     - Ctrl-C and other signals interrupt no call. desc.stop is asked every GCOMP_SOCKETS_SLICE
       seconds: let it answer with what a handler of SetConsoleCtrlHandler has noted.
     - There is no fork(), and processes that a worker starts do not inherit the connections.
     - Before Windows 10, version 2004, the system does not say when a connection is refused. Then
       each call at a place where nobody listens takes GCOMP_SOCKETS_PATIENCE seconds, and a team
       waits for its dead.
     - The last word of a worker that gives up may get lost behind the end of its connection. Then
       gcomp_sockets_lost names that worker, and not the one that it has lost.
     - A port is not shared: who listens where another program does gets EADDRINUSE.
     - errno values are those of the C library, translated from Winsock's; one without a name is
       EIO. */

#ifndef GCOMP_SOCKETS_H
#define GCOMP_SOCKETS_H

#if defined(__STRICT_ANSI__) && !defined(_POSIX_C_SOURCE) && !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L /* for -std=c99, if no header of the system stands before */
#endif

#include "gcomp.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#if defined(_WINSOCKAPI_) && !defined(_WINSOCK2API_) /* windows.h has included the older winsock.h */
#ifdef _MSC_VER
#error "gcomp_sockets.h: winsock2.h must stand before windows.h, or define WIN32_LEAN_AND_MEAN"
#endif
#undef _WINSOCKAPI_ /* mingw has both beside each other, and would warn */
#endif
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <bcrypt.h>
#include <process.h>
#if _WIN32_WINNT < 0x0600
#error "gcomp_sockets.h needs Windows Vista or later: _WIN32_WINNT 0x0600 before all includes"
#endif
#ifdef _MSC_VER
#pragma comment(lib, "ws2_32.lib")
#pragma comment(lib, "bcrypt.lib")
#endif
#else
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifndef CLOCK_MONOTONIC
#error "gcomp_sockets.h needs POSIX: -std=gnu99, or _POSIX_C_SOURCE 200809L before all includes"
#endif
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

#define GCOMP_SOCKETS_MISMATCH 1
#define GCOMP_SOCKETS_FAILED 2
#define GCOMP_SOCKETS_NOTHING 3 /* of gcomp_sockets_receive_from: no message came in time */

/* Bytes of a shard that are summed at a time, a multiple of 4. Tests set a small one. */
#ifndef GCOMP_SOCKETS_PIECE
#define GCOMP_SOCKETS_PIECE ((size_t)2 << 20)
#endif

/* Requests of gcomp that may be under way at once. The lowest three bits of their ids differ. */
#define GCOMP_SOCKETS_FLIGHTS 8

/* If no two workers have more bytes than this for each other, all pairs move them at once. */
#ifndef GCOMP_SOCKETS_AT_ONCE
#define GCOMP_SOCKETS_AT_ONCE ((size_t)32 << 10)
#endif

/* Data of at most so many bytes travel with the meeting of a collective, from each worker to each
   other one. At most GCOMP_SOCKETS_PIECE, and the same on all workers: the first collective fails
   if it is not. */
#ifndef GCOMP_SOCKETS_BRIEF
#define GCOMP_SOCKETS_BRIEF ((size_t)4096)
#endif

/* How often a worker that waits looks for bytes before it sleeps. A look takes a microsecond or
   two. */
#ifndef GCOMP_SOCKETS_LOOKS
#define GCOMP_SOCKETS_LOOKS 1000
#endif

/* Seats of a worker that listens, in addition to one for each worker. */
#ifndef GCOMP_SOCKETS_GUESTS
#define GCOMP_SOCKETS_GUESTS 256
#endif

/* Seconds in which a connection must prove who it is, and that a caller waits for the challenge. */
#ifndef GCOMP_SOCKETS_PATIENCE
#define GCOMP_SOCKETS_PATIENCE 5.0
#endif

/* Seconds for which a connection keeps its seat at least. */
#ifndef GCOMP_SOCKETS_GRACE
#define GCOMP_SOCKETS_GRACE 0.01
#endif

/* A call that waits asks gcomp_sockets_desc.stop so often, in seconds. */
#ifndef GCOMP_SOCKETS_SLICE
#define GCOMP_SOCKETS_SLICE 0.1
#endif

/* Newcomers that can wait for a team at a time. */
#ifndef GCOMP_SOCKETS_NEWCOMERS
#define GCOMP_SOCKETS_NEWCOMERS 16
#endif

/* The longest message between two workers. */
#ifndef GCOMP_SOCKETS_LONGEST
#define GCOMP_SOCKETS_LONGEST ((uint64_t)1 << 32)
#endif

/* Seconds of rendezvous and of silence if the desc has 0. */
#define GCOMP_SOCKETS_SECONDS 300.0

/* ---------------- the system: what differs between POSIX and Windows. Nothing below does.

   A socket is an int, -1: none. Windows hands out no number that an int does not hold. What fails
   returns -1 and sets errno. */

#ifdef _WIN32
#define GCOMP_SOCKETS_IN POLLRDNORM
#define GCOMP_SOCKETS_OUT POLLWRNORM
#define GCOMP_SOCKETS_URGENT POLLRDBAND
#define GCOMP_SOCKETS_ENDS 0
#define GCOMP_SOCKETS_REFUSAL 4.0 /* seconds: Windows calls three times before it says so */
#define GCOMP_SOCKETS_CUT_WAKES 0
#define GCOMP_SOCKETS_MUTEX SRWLOCK_INIT

typedef SRWLOCK gcomp_sockets_mutex;
typedef CONDITION_VARIABLE gcomp_sockets_cond;

typedef struct gcomp_sockets_thread {
    HANDLE of;
    unsigned id;
    void (*body)(void *arg);
    void *arg;
} gcomp_sockets_thread;

/* The errno value of one of Winsock's errors. */
static inline int gcomp_sockets_errno_of(int error)
{
    static const int known[][2] = {
        {0, 0},
        {WSAEWOULDBLOCK, EWOULDBLOCK},
        {WSAEINTR, EINTR},
        {WSAEMFILE, EMFILE},
        {WSAENOBUFS, ENOBUFS},
        {WSAEACCES, EACCES},
        {WSAEADDRINUSE, EADDRINUSE},
        {WSAEADDRNOTAVAIL, EADDRNOTAVAIL},
        {WSAEAFNOSUPPORT, EAFNOSUPPORT},
        {WSAECONNREFUSED, ECONNREFUSED},
        {WSAECONNRESET, ECONNRESET},
        {WSAENETUNREACH, ENETUNREACH},
        {WSAEHOSTUNREACH, EHOSTUNREACH},
        {WSAETIMEDOUT, ETIMEDOUT}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == error) return known[i][1];
    return EIO;
}

/* Returns what a function of Winsock has returned, with errno. */
static inline int gcomp_sockets_of(int result)
{
    if (result < 0) errno = gcomp_sockets_errno_of(WSAGetLastError());
    return result;
}

static inline void gcomp_sockets_mutex_lock(gcomp_sockets_mutex *m) { AcquireSRWLockExclusive(m); }
static inline void gcomp_sockets_mutex_unlock(gcomp_sockets_mutex *m)
{
    ReleaseSRWLockExclusive(m);
}
static inline int gcomp_sockets_mutex_try(gcomp_sockets_mutex *m)
{
    return TryAcquireSRWLockExclusive(m);
}
static inline int gcomp_sockets_mutex_begin(gcomp_sockets_mutex *m)
{
    InitializeSRWLock(m);
    return 0;
}
static inline void gcomp_sockets_mutex_end(gcomp_sockets_mutex *m) { (void)m; }

static inline int gcomp_sockets_cond_begin(gcomp_sockets_cond *c)
{
    InitializeConditionVariable(c);
    return 0;
}
static inline void gcomp_sockets_cond_end(gcomp_sockets_cond *c) { (void)c; }
static inline void gcomp_sockets_cond_wake(gcomp_sockets_cond *c) { WakeAllConditionVariable(c); }

static inline int gcomp_sockets_cond_wait(gcomp_sockets_cond *c, gcomp_sockets_mutex *m,
                                          double seconds)
{
    return !SleepConditionVariableSRW(c, m, seconds > 0 ? (DWORD)(seconds * 1e3) : INFINITE, 0);
}

static inline unsigned __stdcall gcomp_sockets_thread_main(void *arg)
{
    const gcomp_sockets_thread *t = (const gcomp_sockets_thread *)arg;
    t->body(t->arg);
    return 0;
}

static inline int gcomp_sockets_thread_begin(gcomp_sockets_thread *t, void (*body)(void *),
                                             void *arg)
{
    t->body = body;
    t->arg = arg;
    t->of = (HANDLE)_beginthreadex(NULL, 0, gcomp_sockets_thread_main, t, CREATE_SUSPENDED, &t->id);
    if (!t->of) return EAGAIN;
    ResumeThread(t->of); /* now that it has its id */
    return 0;
}

static inline void gcomp_sockets_thread_join(gcomp_sockets_thread *t)
{
    WaitForSingleObject(t->of, INFINITE);
    CloseHandle(t->of);
}

static inline int gcomp_sockets_is_thread(const gcomp_sockets_thread *t)
{
    return GetCurrentThreadId() == t->id;
}

/* There is no fork(). */
static inline int gcomp_sockets_at_fork(void (*before)(void), void (*parent)(void),
                                        void (*child)(void))
{
    (void)before;
    (void)parent;
    (void)child;
    return 0;
}

static inline double gcomp_sockets_now(void)
{
    LARGE_INTEGER ticks, second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&second);
    return (double)ticks.QuadPart / (double)second.QuadPart;
}

static inline void gcomp_sockets_yield(void) { SwitchToThread(); }

static inline int gcomp_sockets_begin(void)
{
    static gcomp_sockets_mutex lock = GCOMP_SOCKETS_MUTEX;
    static int begun; /* Winsock is there until the process ends */
    WSADATA data;
    int error = 0;
    gcomp_sockets_mutex_lock(&lock);
    if (!begun) error = gcomp_sockets_errno_of(WSAStartup(MAKEWORD(2, 2), &data));
    begun |= !error;
    gcomp_sockets_mutex_unlock(&lock);
    return error;
}

static inline int gcomp_sockets_random(unsigned char *bytes, size_t count)
{
    return BCryptGenRandom(NULL, bytes, (ULONG)count, BCRYPT_USE_SYSTEM_PREFERRED_RNG) ? EIO : 0;
}

static inline void gcomp_sockets_poll_for(struct pollfd *p, int fd, int events)
{
    p->fd = (SOCKET)fd;
    p->events = (short)events;
    p->revents = 0;
}

/* WSAPoll refuses a list without a socket. */
static inline int gcomp_sockets_poll_once(struct pollfd *polls, size_t count, int milliseconds)
{
    size_t first = 0;
    while (first < count && polls[first].fd == INVALID_SOCKET) first++;
    if (first < count) return gcomp_sockets_of(WSAPoll(polls, (ULONG)count, milliseconds));
    Sleep((DWORD)milliseconds);
    return 0;
}

static inline int gcomp_sockets_stream(int family)
{
    return gcomp_sockets_of((int)socket(family, SOCK_STREAM, 0));
}

static inline void gcomp_sockets_shut(int fd) { closesocket((SOCKET)fd); }
static inline void gcomp_sockets_cut_off(int fd) { shutdown((SOCKET)fd, SD_BOTH); }

/* Children do not inherit the socket. */
static inline int gcomp_sockets_unblock(int fd)
{
    u_long on = 1;
    SetHandleInformation((HANDLE)(SOCKET)fd, HANDLE_FLAG_INHERIT, 0);
    return gcomp_sockets_of(ioctlsocket((SOCKET)fd, (long)FIONBIO, &on));
}

static inline void gcomp_sockets_no_delay(int fd)
{
    const int on = 1;
    setsockopt((SOCKET)fd, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
}

/* Without SO_REUSEADDR, which lets another process listen at the same port. */
static inline int gcomp_sockets_listen_at(int fd, const struct addrinfo *at)
{
    if (bind((SOCKET)fd, at->ai_addr, (int)at->ai_addrlen) == 0 &&
        listen((SOCKET)fd, SOMAXCONN) == 0)
        return 0;
    return gcomp_sockets_of(-1);
}

static inline int gcomp_sockets_connect_to(int fd, const struct addrinfo *to)
{
    const int result = gcomp_sockets_of(connect((SOCKET)fd, to->ai_addr, (int)to->ai_addrlen));
    if (result < 0 && errno == EWOULDBLOCK) errno = EINPROGRESS;
    return result;
}

static inline int gcomp_sockets_error_of(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt((SOCKET)fd, SOL_SOCKET, SO_ERROR, (char *)&error, &length) != 0)
        error = WSAGetLastError();
    return gcomp_sockets_errno_of(error);
}

static inline int gcomp_sockets_accept_from(int fd, struct sockaddr_storage *from,
                                            socklen_t *length)
{
    return gcomp_sockets_of((int)accept((SOCKET)fd, (struct sockaddr *)(void *)from, length));
}

static inline int gcomp_sockets_name_of(int fd, struct sockaddr_storage *name, socklen_t *length)
{
    return gcomp_sockets_of(getsockname((SOCKET)fd, (struct sockaddr *)(void *)name, length));
}

static inline ptrdiff_t gcomp_sockets_put(int fd, const void *bytes, size_t count, int flags)
{
    const int most = count < 1 << 30 ? (int)count : 1 << 30;
    return gcomp_sockets_of(send((SOCKET)fd, (const char *)bytes, most, flags));
}

static inline ptrdiff_t gcomp_sockets_get(int fd, void *bytes, size_t count, int flags)
{
    const int most = count < 1 << 30 ? (int)count : 1 << 30;
    return gcomp_sockets_of(recv((SOCKET)fd, (char *)bytes, most, flags));
}

#else /* POSIX */
#define GCOMP_SOCKETS_IN POLLIN
#define GCOMP_SOCKETS_OUT POLLOUT
#define GCOMP_SOCKETS_URGENT POLLPRI
/* The other end has closed, with bytes still unread. Elsewhere only who reads them learns it. */
#if defined(POLLRDHUP)
#define GCOMP_SOCKETS_ENDS POLLRDHUP
#elif defined(__linux__) && !defined(__sparc__)
#define GCOMP_SOCKETS_ENDS 0x2000 /* the same, which a C standard without extensions hides */
#else
#define GCOMP_SOCKETS_ENDS 0
#endif
#define GCOMP_SOCKETS_REFUSAL 1.0 /* seconds until the system must have said that nobody listens */
#define GCOMP_SOCKETS_CUT_WAKES 1 /* gcomp_sockets_cut_off wakes a thread that polls the socket */
#define GCOMP_SOCKETS_MUTEX PTHREAD_MUTEX_INITIALIZER

typedef pthread_mutex_t gcomp_sockets_mutex;
typedef pthread_cond_t gcomp_sockets_cond;

typedef struct gcomp_sockets_thread {
    pthread_t of;
    void (*body)(void *arg);
    void *arg;
} gcomp_sockets_thread;

static inline void gcomp_sockets_mutex_lock(gcomp_sockets_mutex *m) { pthread_mutex_lock(m); }
static inline void gcomp_sockets_mutex_unlock(gcomp_sockets_mutex *m) { pthread_mutex_unlock(m); }
/* Returns 1 if the mutex is this thread's now. */
static inline int gcomp_sockets_mutex_try(gcomp_sockets_mutex *m)
{
    return pthread_mutex_trylock(m) == 0;
}
static inline int gcomp_sockets_mutex_begin(gcomp_sockets_mutex *m)
{
    return pthread_mutex_init(m, NULL);
}
static inline void gcomp_sockets_mutex_end(gcomp_sockets_mutex *m) { pthread_mutex_destroy(m); }

static inline int gcomp_sockets_cond_begin(gcomp_sockets_cond *c)
{
    return pthread_cond_init(c, NULL);
}
static inline void gcomp_sockets_cond_end(gcomp_sockets_cond *c) { pthread_cond_destroy(c); }
static inline void gcomp_sockets_cond_wake(gcomp_sockets_cond *c) { pthread_cond_broadcast(c); }

/* seconds, less than 1; 0: for ever. Returns 0 if it was woken. */
static inline int gcomp_sockets_cond_wait(gcomp_sockets_cond *c, gcomp_sockets_mutex *m,
                                          double seconds)
{
    struct timespec at;
    if (!(seconds > 0)) return pthread_cond_wait(c, m);
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += (long)(seconds * 1e9);
    at.tv_sec += at.tv_nsec / 1000000000L;
    at.tv_nsec %= 1000000000L;
    return pthread_cond_timedwait(c, m, &at);
}

static inline void *gcomp_sockets_thread_main(void *arg)
{
    const gcomp_sockets_thread *t = (const gcomp_sockets_thread *)arg;
    t->body(t->arg);
    return NULL;
}

/* A thread that signals do not interrupt. *t stays where it is. Returns 0 or an errno value. */
static inline int gcomp_sockets_thread_begin(gcomp_sockets_thread *t, void (*body)(void *),
                                             void *arg)
{
    sigset_t all, before;
    int error;
    t->body = body;
    t->arg = arg;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&t->of, NULL, gcomp_sockets_thread_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static inline void gcomp_sockets_thread_join(gcomp_sockets_thread *t)
{
    pthread_join(t->of, NULL);
}

/* Is this the thread that calls? */
static inline int gcomp_sockets_is_thread(const gcomp_sockets_thread *t)
{
    return pthread_equal(pthread_self(), t->of);
}

static inline int gcomp_sockets_at_fork(void (*before)(void), void (*parent)(void),
                                        void (*child)(void))
{
    return pthread_atfork(before, parent, child);
}

static inline double gcomp_sockets_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void gcomp_sockets_yield(void) { sched_yield(); }

/* Before all other functions that know sockets or names. Returns 0 or an errno value. */
static inline int gcomp_sockets_begin(void) { return 0; }

/* bytes[count] <- random ones. Returns 0 or an errno value. */
static inline int gcomp_sockets_random(unsigned char *bytes, size_t count)
{
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC), error;
    if (file < 0) return errno;
    error = read(file, bytes, count) == (ssize_t)count ? 0 : EIO;
    close(file);
    return error;
}

static inline void gcomp_sockets_poll_for(struct pollfd *p, int fd, int events)
{
    p->fd = fd;
    p->events = (short)events;
    p->revents = 0;
}

static inline int gcomp_sockets_poll_once(struct pollfd *polls, size_t count, int milliseconds)
{
    return poll(polls, (nfds_t)count, milliseconds);
}

static inline int gcomp_sockets_stream(int family) { return socket(family, SOCK_STREAM, 0); }
static inline void gcomp_sockets_shut(int fd) { close(fd); }
static inline void gcomp_sockets_cut_off(int fd) { shutdown(fd, SHUT_RDWR); }

/* The socket never blocks, and a program that a child executes does not have it. */
static inline int gcomp_sockets_unblock(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
            fcntl(fd, F_SETFD, FD_CLOEXEC) < 0
        ? -1
        : 0;
}

static inline void gcomp_sockets_no_delay(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline int gcomp_sockets_listen_at(int fd, const struct addrinfo *at)
{
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0 ? 0 : -1;
}

/* -1 with EINPROGRESS: gcomp_sockets_error_of knows more when the socket may be written. */
static inline int gcomp_sockets_connect_to(int fd, const struct addrinfo *to)
{
    return connect(fd, to->ai_addr, to->ai_addrlen);
}

/* 0 or the errno value of the socket itself. */
static inline int gcomp_sockets_error_of(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 ? errno : error;
}

static inline int gcomp_sockets_accept_from(int fd, struct sockaddr_storage *from,
                                            socklen_t *length)
{
    return accept(fd, (struct sockaddr *)(void *)from, length);
}

static inline int gcomp_sockets_name_of(int fd, struct sockaddr_storage *name, socklen_t *length)
{
    return getsockname(fd, (struct sockaddr *)(void *)name, length);
}

/* flags: MSG_OOB, which both systems have. */
static inline ptrdiff_t gcomp_sockets_put(int fd, const void *bytes, size_t count, int flags)
{
    return send(fd, bytes, count, flags | MSG_NOSIGNAL);
}

/* flags: MSG_OOB, MSG_PEEK. */
static inline ptrdiff_t gcomp_sockets_get(int fd, void *bytes, size_t count, int flags)
{
    return recv(fd, bytes, count, flags);
}
#endif

/* ---------------- what all systems have */

typedef enum gcomp_sockets_kind {
    GCOMP_SOCKETS_BARRIER = 1,
    GCOMP_SOCKETS_ALLREDUCE,
    GCOMP_SOCKETS_MAX,
    GCOMP_SOCKETS_ALLGATHER,
    GCOMP_SOCKETS_ALLGATHERV,
    GCOMP_SOCKETS_ALLTOALLV,
    GCOMP_SOCKETS_BROADCAST
} gcomp_sockets_kind;

/* What one worker brings to a collective: the same bytes on all, but for `own`. If own is at most
   GCOMP_SOCKETS_BRIEF, so many bytes of data follow at once. */
typedef struct gcomp_sockets_part {
    uint32_t magic;
    uint32_t kind;
    uint32_t root; /* of a broadcast; the dtype of a sum */
    uint32_t turn; /* counts collectives */
    uint64_t size; /* elements of a sum, else bytes of a block */
    uint64_t list; /* digest of the sizes of an allgatherv */
    uint64_t own;  /* bytes of data for the worker that gets this, in the collective's first move */
} gcomp_sockets_part;

/* Whether a call that waits shall end: 0 lets the call go on. */
typedef int (*gcomp_sockets_stop)(void *user);

/* What gcomp_sockets_start is told. 0 or NULL stands for the default, except for rank and world.
   The texts are not needed after the call. */
typedef struct gcomp_sockets_desc {
    int rank;           /* of this worker, 0 .. world - 1 */
    int world;          /* workers, 1 .. 65535; the same on all */
    const char *host;   /* where rank 0 listens, best as a number; NULL: "127.0.0.1" */
    const char *port;   /* below those that the system hands out (Linux: 32768 on); NULL: "7077" */
    uint64_t job;       /* any number, the same on all and another for each job */
    const char *secret; /* 1 to 64 bytes and a zero, the same on all; NULL or "": none */
    double rendezvous;  /* seconds until all must have come, at most 1e6; 0: 300 */
    double silence;     /* seconds without a byte until a worker is lost, at most 1e6; 0: 300 */
    gcomp_sockets_stop stop; /* asked by each call that waits, on the thread of the call, after
                                each signal and every GCOMP_SOCKETS_SLICE seconds. If the answer is
                                not 0, the call fails, and the group has failed; NULL: not asked */
    void *stop_user;
} gcomp_sockets_desc;

/* The first bytes of a connection, from the worker that listens. */
typedef struct gcomp_sockets_challenge {
    char magic[8];
    unsigned char number[16]; /* drawn for this connection */
} gcomp_sockets_challenge;

/* The answer of the worker that calls. Then the worker that listens sends its verdict, a byte, and
   its proof, 32 bytes. */
typedef struct gcomp_sockets_hello {
    char magic[8];
    uint64_t job;
    uint32_t order; /* a number that is another one in the other byte order */
    uint32_t world;
    uint32_t rank;
    uint32_t to;   /* the rank that is called */
    uint32_t port; /* where this worker listens */
    uint32_t zero;
    unsigned char number[16]; /* drawn for this connection */
    unsigned char proof[32];  /* of all fields above and the challenge */
} gcomp_sockets_hello;

/* The verdict on a hello. */
typedef enum gcomp_sockets_verdict {
    GCOMP_SOCKETS_WELCOME,
    GCOMP_SOCKETS_OTHER_JOB,
    GCOMP_SOCKETS_OTHER_SECRET,
    GCOMP_SOCKETS_TAKEN
} gcomp_sockets_verdict;

/* Where a worker listens. Rank 0 sends these; its own place holds the magic. */
typedef struct gcomp_sockets_place {
    char host[56];
    char port[8];
} gcomp_sockets_place;

/* What still has to move to and from one worker. */
typedef struct gcomp_sockets_flow {
    const unsigned char *out;
    unsigned char *in;
    size_t out_left, in_left;
} gcomp_sockets_flow;

/* What goes before a message. */
typedef struct gcomp_sockets_head {
    uint32_t magic; /* not that of a gcomp_sockets_part */
    uint32_t zero;
    uint64_t bytes;
} gcomp_sockets_head;

/* A message that has come, or is coming; its bytes stand behind it. */
typedef struct gcomp_sockets_message {
    struct gcomp_sockets_message *next;
    size_t bytes, come;
} gcomp_sockets_message;

/* Why a group has failed, as this worker sees it. */
typedef enum gcomp_sockets_end {
    GCOMP_SOCKETS_OWN, /* this worker gave up, or the group works */
    GCOMP_SOCKETS_GONE,
    GCOMP_SOCKETS_SILENT,
    GCOMP_SOCKETS_GAVE_UP,
    GCOMP_SOCKETS_TOLD, /* another worker says who is lost */
    GCOMP_SOCKETS_NONSENSE,
    GCOMP_SOCKETS_SIZES
} gcomp_sockets_end;

/* The messages of one worker. */
typedef struct gcomp_sockets_inbox {
    gcomp_sockets_message *first, *last; /* the last one may be incomplete */
    gcomp_sockets_head head;
    size_t head_come; /* bytes of it; 0: none is coming */
    int waits;        /* a collective stands in the stream */
    int told;         /* its last word, when it gave up: see gcomp_sockets_fail. -1: none */
} gcomp_sockets_inbox;

/* A request that is under way, or done and not asked for yet; or a free place for one. */
typedef struct gcomp_sockets_flight {
    gcomp_request of;
    int busy, done, status;
} gcomp_sockets_flight;

/* The requests that are under way, and the thread that carries them out in the order of their
   start. The lock is for all fields. While a request is not carried out, the thread alone uses the
   group. */
typedef struct gcomp_sockets_queue {
    gcomp_sockets_mutex lock;
    gcomp_sockets_cond changed;
    gcomp_sockets_thread thread;
    gcomp_sockets_flight flights[GCOMP_SOCKETS_FLIGHTS];
    int order[GCOMP_SOCKETS_FLIGHTS]; /* [n % FLIGHTS]: the place of request n */
    unsigned long started, carried;   /* requests so far */
    int awaited;                      /* calls that wait for the thread */
    int broken;                       /* 1: this worker gives up; 2: desc.stop said so */
    int ends;                         /* the thread ends when all is carried out */
} gcomp_sockets_queue;

typedef struct gcomp_sockets {
    int rank;
    int world;
    int failed; /* 1 for ever */
    int lost;   /* the worker that has ended the group; -1: none is known */
    gcomp_sockets_end end;
    int stopped; /* the group has failed because desc.stop said so */
    gcomp_sockets_stop stop;
    void *stop_user;
    uint32_t turn;
    double silence;
    int *peers;                 /* [descriptors] connections to the workers; -1: none */
    int descriptors;            /* world; while the workers meet, also the listener and guests */
    struct pollfd *polls;       /* [world] */
    gcomp_sockets_flow *flows;  /* [world] */
    gcomp_sockets_flow *later;  /* [world] those that wait while the workers meet */
    unsigned char *brief;       /* [world][sizeof(gcomp_sockets_part) + GCOMP_SOCKETS_BRIEF] */
    gcomp_sockets_part *parts;  /* [world] */
    unsigned char *buffer;      /* [world][GCOMP_SOCKETS_PIECE] */
    gcomp_sockets_inbox *inboxes; /* [world] */
    gcomp_sockets_queue *queue; /* NULL: all collectives block */
    struct gcomp_sockets *next; /* in gcomp_sockets_list */
} gcomp_sockets;

/* The groups that this file has opened in this process, for gcomp_sockets_in_child. */
static gcomp_sockets *gcomp_sockets_list;
static int gcomp_sockets_watched; /* gcomp_sockets_at_fork has been called */
static gcomp_sockets_mutex gcomp_sockets_lock = GCOMP_SOCKETS_MUTEX;

/* Milliseconds for poll until then, at least 1. */
static inline int gcomp_sockets_wait(double then)
{
    double left = (then - gcomp_sockets_now()) * 1e3 + 1;
    return left > 1e6 ? 1000000 : left < 1 ? 1 : (int)left;
}

/* Is this the thread that carries out requests? */
static inline int gcomp_sockets_is_behind(const gcomp_sockets *s)
{
    return s->queue && gcomp_sockets_is_thread(&s->queue->thread);
}

/* Ends the connections under the thread, whose collective then fails. Called with the lock. */
static inline void gcomp_sockets_cut(gcomp_sockets *s, int broken)
{
    const unsigned char word = 0;
    s->queue->broken = broken;
    for (int w = 0; w < s->world; w++) {
        if (s->peers[w] < 0) continue;
        gcomp_sockets_put(s->peers[w], &word, 1, MSG_OOB); /* or unsaid */
        gcomp_sockets_cut_off(s->peers[w]);
    }
}

/* Waits for a change of the queue. Asks every GCOMP_SOCKETS_SLICE seconds if the call shall end;
   then the group fails. Called with the lock. */
static inline void gcomp_sockets_sleep(gcomp_sockets *s)
{
    gcomp_sockets_queue *q = s->queue;
    int late, stops;
    q->awaited++;
    late = gcomp_sockets_cond_wait(&q->changed, &q->lock, s->stop ? GCOMP_SOCKETS_SLICE : 0);
    q->awaited--;
    if (!late || !s->stop || q->broken) return;
    gcomp_sockets_mutex_unlock(&q->lock); /* the answer may take long */
    stops = s->stop(s->stop_user);
    gcomp_sockets_mutex_lock(&q->lock);
    if (stops && q->carried != q->started) gcomp_sockets_cut(s, 2);
}

/* Waits until all requests that were started are carried out: from then on the caller may use the
   group. cut 1: ends them first. Returns 1 if there was something to cut. */
static inline int gcomp_sockets_settle(gcomp_sockets *s, int cut)
{
    gcomp_sockets_queue *q = s->queue;
    int found;
    if (!q || gcomp_sockets_is_behind(s)) return 0;
    gcomp_sockets_mutex_lock(&q->lock);
    found = cut && q->carried != q->started;
    if (found) gcomp_sockets_cut(s, 1);
    while (q->carried != q->started) gcomp_sockets_sleep(s);
    gcomp_sockets_mutex_unlock(&q->lock);
    return found;
}

/* May a wait look for bytes before it sleeps? The thread may not while the caller computes, since
   they may share a core. */
static inline int gcomp_sockets_hurries(const gcomp_sockets *s)
{
    int hurries;
    if (!gcomp_sockets_is_behind(s)) return 1;
    gcomp_sockets_mutex_lock(&s->queue->lock);
    hurries = s->queue->awaited > 0;
    gcomp_sockets_mutex_unlock(&s->queue->lock);
    return hurries;
}

/* Ends the requests that are under way, and the thread. */
static inline void gcomp_sockets_end_queue(gcomp_sockets *s)
{
    gcomp_sockets_queue *q = s->queue;
    if (!q) return;
    gcomp_sockets_settle(s, 1);
    gcomp_sockets_mutex_lock(&q->lock);
    q->ends = 1;
    gcomp_sockets_cond_wake(&q->changed);
    gcomp_sockets_mutex_unlock(&q->lock);
    gcomp_sockets_thread_join(&q->thread);
    gcomp_sockets_cond_end(&q->changed);
    gcomp_sockets_mutex_end(&q->lock);
    free(q);
    s->queue = NULL;
}

/* Ends the group: all other workers fail at once, not after `silence` seconds. For a worker that
   gives up. Its last word goes beside the stream, as urgent data, since it may stand in the midst
   of anything: 1 + the rank that it has lost, 255 if the rank is higher, 0 for none. */
static inline void gcomp_sockets_fail(gcomp_sockets *s)
{
    const unsigned char word = (unsigned char)(s->lost < 254 ? s->lost + 1 : 255);
    if (gcomp_sockets_settle(s, 1)) return; /* the thread has failed the group */
    for (int w = 0; w < s->world; w++) {
        if (s->peers[w] < 0) continue;
        if (!s->failed) gcomp_sockets_put(s->peers[w], &word, 1, MSG_OOB); /* or unsaid */
        gcomp_sockets_cut_off(s->peers[w]);
    }
    s->failed = 1;
}

/* Ends the group because of worker w, or of the one of which w has told. */
static inline void gcomp_sockets_lose(gcomp_sockets *s, int w, gcomp_sockets_end how)
{
    const int told = s->inboxes[w].told;
    if (!s->failed) {
        s->lost = told > 0 && told < 255 && told <= s->world ? told - 1 : w;
        s->end = told < 0 ? how : s->lost == w ? GCOMP_SOCKETS_GAVE_UP : GCOMP_SOCKETS_TOLD;
    }
    gcomp_sockets_fail(s);
}

/* Hears the last word of worker w, before the end of its stream is read. */
static inline void gcomp_sockets_hear_last(gcomp_sockets *s, int w)
{
    unsigned char word;
    if (s->peers[w] >= 0 && gcomp_sockets_get(s->peers[w], &word, 1, MSG_OOB) == 1)
        s->inboxes[w].told = word;
}

/* The rank of the worker because of which the group has failed: it has died, was silent, or gave
   up. -1: the group works, or this worker gave up itself. */
static inline int gcomp_sockets_lost(const gcomp_sockets *s) { return s->lost; }

/* The same as a sentence, in text. Returns text. */
static inline const char *gcomp_sockets_why(const gcomp_sockets *s, char *text, size_t capacity)
{
    static const char *const says[] = {
        "",
        "rank %d is gone: its connection has ended",
        "rank %d has been silent for too long",
        "rank %d gave up",
        "rank %d is lost, says another worker",
        "rank %d sent bytes that no collective has",
        "rank %d has other sizes for alltoallv than this worker"};
    if (s->end != GCOMP_SOCKETS_OWN) snprintf(text, capacity, says[s->end], s->lost);
    else snprintf(text, capacity, s->failed ? "this worker gave up" : "no worker is lost");
    return text;
}

static inline void gcomp_sockets_hang_up(gcomp_sockets *s, int i)
{
    if (s->peers[i] >= 0) gcomp_sockets_shut(s->peers[i]);
    s->peers[i] = -1;
}

static inline void gcomp_sockets_before_fork(void) { gcomp_sockets_mutex_lock(&gcomp_sockets_lock); }

static inline void gcomp_sockets_in_parent(void) { gcomp_sockets_mutex_unlock(&gcomp_sockets_lock); }

/* Closes without shutdown, which would end the connections of the parent too. */
static inline void gcomp_sockets_in_child(void)
{
    for (gcomp_sockets *s = gcomp_sockets_list; s; s = s->next) {
        s->failed = 1;
        s->queue = NULL; /* its thread is not here */
        for (int i = 0; i < s->descriptors; i++) gcomp_sockets_hang_up(s, i);
    }
    gcomp_sockets_mutex_unlock(&gcomp_sockets_lock);
}

/* From now on a child that fork() makes closes the group. Returns 0 or an errno value. */
static inline int gcomp_sockets_watch(gcomp_sockets *s)
{
    int error = 0;
    gcomp_sockets_mutex_lock(&gcomp_sockets_lock);
    if (!gcomp_sockets_watched)
        error = gcomp_sockets_at_fork(gcomp_sockets_before_fork, gcomp_sockets_in_parent,
                                      gcomp_sockets_in_child);
    if (!error) {
        gcomp_sockets_watched = 1;
        s->next = gcomp_sockets_list;
        gcomp_sockets_list = s;
    }
    gcomp_sockets_mutex_unlock(&gcomp_sockets_lock);
    return error;
}

/* Has this worker ended the connections under its thread? */
static inline int gcomp_sockets_is_cut(const gcomp_sockets *s)
{
    int broken;
    gcomp_sockets_mutex_lock(&s->queue->lock);
    broken = s->queue->broken;
    gcomp_sockets_mutex_unlock(&s->queue->lock);
    return broken != 0;
}

/* Waits for events until then, and returns as poll does. Asks meanwhile if the call shall end; then
   the group has failed. s NULL: nobody is asked. */
static inline int gcomp_sockets_poll(gcomp_sockets *s, struct pollfd *polls, size_t count,
                                     double then)
{
    const int behind = s && gcomp_sockets_is_behind(s), looks = behind && !GCOMP_SOCKETS_CUT_WAKES;
    const gcomp_sockets_stop stop = s && !behind ? s->stop : NULL;
    for (;;) {
        double soon = gcomp_sockets_now() + GCOMP_SOCKETS_SLICE;
        int ready;
        if (!(stop || looks) || soon > then) soon = then;
        ready = gcomp_sockets_poll_once(polls, count, gcomp_sockets_wait(soon));
        if (ready > 0 || (ready < 0 && errno != EINTR)) return ready;
        if (stop && stop(s->stop_user)) {
            s->stopped = 1;
            gcomp_sockets_fail(s);
        }
        if (looks && gcomp_sockets_is_cut(s)) s->failed = 1;
        if (gcomp_sockets_now() >= then || (s && s->failed)) return 0;
    }
}

/* Closes all connections and frees the group. NULL is allowed. */
static inline void gcomp_sockets_close(gcomp_sockets *s)
{
    if (!s) return;
    gcomp_sockets_end_queue(s);
    gcomp_sockets_mutex_lock(&gcomp_sockets_lock);
    for (gcomp_sockets **at = &gcomp_sockets_list; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    gcomp_sockets_mutex_unlock(&gcomp_sockets_lock);
    for (int i = 0; s->peers && i < s->descriptors; i++) gcomp_sockets_hang_up(s, i);
    for (int w = 0; s->inboxes && w < s->world; w++)
        while (s->inboxes[w].first) {
            gcomp_sockets_message *next = s->inboxes[w].first->next;
            free(s->inboxes[w].first);
            s->inboxes[w].first = next;
        }
    free(s->inboxes);
    free(s->peers);
    free(s->polls);
    free(s->flows);
    free(s->later);
    free(s->brief);
    free(s->parts);
    free(s->buffer);
    free(s);
}

/* Sends and receives what is possible without waiting; events says which of the two is. Returns the
   bytes moved, or -1 if the connection is gone. */
static inline long gcomp_sockets_some(int fd, gcomp_sockets_flow *flow, int events)
{
    long moved = 0;
    if (flow->out_left && (events & GCOMP_SOCKETS_OUT)) {
        ptrdiff_t n = gcomp_sockets_put(fd, flow->out, flow->out_left, 0);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return -1;
        if (n > 0) {
            flow->out += n;
            flow->out_left -= (size_t)n;
            moved += (long)n;
        }
    }
    if (flow->in_left && (events & GCOMP_SOCKETS_IN)) {
        ptrdiff_t n = gcomp_sockets_get(fd, flow->in, flow->in_left, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            return -1;
        if (n > 0) {
            flow->in += n;
            flow->in_left -= (size_t)n;
            moved += (long)n;
        }
    }
    return moved;
}

/* Waits for events, and returns as poll does. A process that sleeps takes long to wake, so this
   looks some times before it sleeps, and lets others compute in between. */
static inline int gcomp_sockets_look(gcomp_sockets *s, double then)
{
    int ready = 0;
    for (int k = 0; k < GCOMP_SOCKETS_LOOKS && ready == 0 && gcomp_sockets_hurries(s); k++) {
        ready = gcomp_sockets_poll_once(s->polls, (size_t)s->world, 0);
        if (ready == 0) gcomp_sockets_yield();
    }
    return ready ? ready : gcomp_sockets_poll(s, s->polls, (size_t)s->world, then);
}

/* Carries out the flows to worker `to` and from worker `from`; -1: all. Sends and receives as the
   connections allow, so that two workers that send to each other cannot block each other. */
static inline int gcomp_sockets_move_some(gcomp_sockets *s, int to, int from)
{
    double then = gcomp_sockets_now() + s->silence;
    int first = 1; /* send before the first look: mostly a connection takes all. Receive only after
                      one: a read at the end of a stream drops the last word that stands there */
    while (!s->failed) {
        int busy = 0, late = 0, ready; /* late: the worker that is waited for */
        for (int w = 0; w < s->world; w++) {
            int out = s->flows[w].out_left && (to < 0 || to == w);
            int in = s->flows[w].in_left && (from < 0 || from == w);
            const int events = (out ? GCOMP_SOCKETS_OUT : 0) | (in ? GCOMP_SOCKETS_IN : 0);
            gcomp_sockets_poll_for(&s->polls[w], events ? s->peers[w] : -1,
                                   events | GCOMP_SOCKETS_URGENT);
            if (first && out) s->polls[w].revents = GCOMP_SOCKETS_OUT;
            busy |= events;
            if (events) late = w;
        }
        if (!busy) return 0;
        ready = first ? 1 : gcomp_sockets_look(s, then);
        for (int w = 0; ready > 0 && w < s->world; w++) {
            gcomp_sockets_flow *flow = &s->flows[w];
            long moved = 0;
            if (s->polls[w].revents & GCOMP_SOCKETS_URGENT) gcomp_sockets_hear_last(s, w);
            if (s->polls[w].revents)
                moved = gcomp_sockets_some(s->peers[w], flow,
                                           first ? GCOMP_SOCKETS_OUT : s->polls[w].events);
            if (moved < 0) {
                gcomp_sockets_hear_last(s, w);
                gcomp_sockets_lose(s, w, GCOMP_SOCKETS_GONE);
            }
            if (moved > 0) then = gcomp_sockets_now() + s->silence;
        }
        first = 0;
        if (gcomp_sockets_now() >= then) gcomp_sockets_lose(s, late, GCOMP_SOCKETS_SILENT);
    }
    return GCOMP_SOCKETS_FAILED;
}

/* Carries out all flows: small ones all at once, large ones in turns. In a turn every worker sends
   to one other worker and receives from one other worker. If many sent to one at once, they would
   overrun its link, and TCP would have to send again what got lost. */
static inline int gcomp_sockets_move(gcomp_sockets *s)
{
    size_t most = 0;
    int error = 0;
    for (int w = 0; w < s->world; w++) {
        most = s->flows[w].out_left > most ? s->flows[w].out_left : most;
        most = s->flows[w].in_left > most ? s->flows[w].in_left : most;
    }
    if (most <= GCOMP_SOCKETS_AT_ONCE) return gcomp_sockets_move_some(s, -1, -1);
    for (int turn = 1; turn < s->world && !error; turn++)
        error = gcomp_sockets_move_some(s, (s->rank + turn) % s->world,
                                        (s->rank + s->world - turn) % s->world);
    return error;
}

/* Begins a collective: waits for what was started before, and for nothing to move. */
static inline gcomp_sockets *gcomp_sockets_enter(void *user)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    gcomp_sockets_settle(s, 0);
    memset(s->flows, 0, (size_t)s->world * sizeof *s->flows);
    return s;
}

/* Gives worker w a flow, for all w but this one: `out` bytes from send + w * send_step, and `in`
   bytes to recv + w * recv_step. */
static inline void gcomp_sockets_flow_all(gcomp_sockets *s, const void *send, size_t send_step,
                                          size_t out, void *recv, size_t recv_step, size_t in)
{
    for (int w = 0; w < s->world; w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        flow->out = (const unsigned char *)send + (size_t)w * send_step;
        flow->in = (unsigned char *)recv + (size_t)w * recv_step;
        flow->out_left = w == s->rank ? 0 : out;
        flow->in_left = w == s->rank ? 0 : in;
    }
}

/* Do so many bytes travel with the meeting? */
static inline size_t gcomp_sockets_brief(uint64_t bytes)
{
    return bytes <= GCOMP_SOCKETS_BRIEF && bytes <= GCOMP_SOCKETS_PIECE ? (size_t)bytes : 0;
}

/* Sends each worker what this one brings, and the data that follow it at once; receives the same of
   all. The data of worker w come to the buffer, as the verdict is not known yet. */
static inline int gcomp_sockets_tell(gcomp_sockets *s, const gcomp_sockets_part *mine)
{
    for (int w = 0; w < s->world; w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        unsigned char *out = s->brief + (size_t)w * (sizeof *mine + GCOMP_SOCKETS_BRIEF);
        gcomp_sockets_part part = *mine;
        const size_t brief = gcomp_sockets_brief(flow->out_left);
        s->later[w] = *flow;
        part.own = flow->out_left;
        memcpy(out, &part, sizeof part);
        if (brief) memcpy(out + sizeof part, flow->out, brief);
        s->later[w].out += brief;
        s->later[w].out_left -= brief;
        flow->out = out;
        flow->out_left = w == s->rank ? 0 : sizeof part + brief;
        flow->in = (unsigned char *)&s->parts[w];
        flow->in_left = w == s->rank ? 0 : sizeof part;
    }
    if (gcomp_sockets_move_some(s, -1, -1)) return GCOMP_SOCKETS_FAILED;
    for (int w = 0; w < s->world; w++) {
        s->flows[w].in = s->buffer + (size_t)w * GCOMP_SOCKETS_PIECE;
        s->flows[w].in_left = w == s->rank || s->parts[w].magic != mine->magic
            ? 0
            : gcomp_sockets_brief(s->parts[w].own);
    }
    return gcomp_sockets_move_some(s, -1, -1);
}

/* The meeting: each worker compares what all bring with what rank 0 brings. So all come to the same
   verdict. The flows are those of the collective's first move, none for this worker itself. If the
   verdict is 0, what has come is in its place, and the flows are what is left to move. */
static inline int gcomp_sockets_meet(gcomp_sockets *s, gcomp_sockets_kind kind, uint32_t root,
                                     size_t size, uint64_t list)
{
    gcomp_sockets_part *mine = &s->parts[s->rank];
    int verdict = 0;
    for (int w = 0; w < s->world && !s->failed; w++) /* one that a message has found dead */
        if (w != s->rank && s->peers[w] < 0) gcomp_sockets_lose(s, w, GCOMP_SOCKETS_GONE);
    if (s->failed) return GCOMP_SOCKETS_FAILED;
    mine->magic = 0x4b534347u + (uint32_t)GCOMP_SOCKETS_BRIEF; /* whoever has another one is lost */
    mine->kind = (uint32_t)kind;
    mine->root = root;
    mine->turn = s->turn++;
    mine->size = size;
    mine->list = list;
    mine->own = 0;
    if (gcomp_sockets_tell(s, mine)) return GCOMP_SOCKETS_FAILED;
    for (int w = 0; w < s->world; w++) {
        if (s->parts[w].magic != mine->magic || s->parts[w].turn != mine->turn) {
            gcomp_sockets_lose(s, w, GCOMP_SOCKETS_NONSENSE); /* the stream is lost */
            return GCOMP_SOCKETS_FAILED;
        }
        if (memcmp(&s->parts[w], &s->parts[0], offsetof(gcomp_sockets_part, own)) != 0)
            verdict = GCOMP_SOCKETS_MISMATCH;
    }
    if (verdict) return verdict;
    for (int w = 0; w < s->world; w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        const size_t brief = gcomp_sockets_brief(s->parts[w].own);
        *flow = s->later[w];
        if (flow->in_left != s->parts[w].own) {
            gcomp_sockets_lose(s, w, GCOMP_SOCKETS_SIZES);
            return GCOMP_SOCKETS_FAILED;
        }
        if (brief) memmove(flow->in, s->buffer + (size_t)w * GCOMP_SOCKETS_PIECE, brief);
        flow->in += brief;
        flow->in_left -= brief;
    }
    return 0;
}

/* The parting: the collective succeeds on all workers once rank 0 has heard from all that they have
   everything. If a worker fails after that, the next collective sees it. */
static inline int gcomp_sockets_part_company(gcomp_sockets *s)
{
    unsigned char word = 1, answer;
    if (s->rank) {
        gcomp_sockets_flow_all(s, &word, 0, 0, &answer, 0, 0);
        s->flows[0].out_left = s->flows[0].in_left = 1;
        return gcomp_sockets_move(s);
    }
    gcomp_sockets_flow_all(s, &word, 0, 0, s->buffer, 1, 1);
    if (gcomp_sockets_move(s)) return GCOMP_SOCKETS_FAILED;
    /* One byte fits into the empty buffer. A worker that is gone does not change the verdict. */
    for (int w = 1; w < s->world; w++)
        if (gcomp_sockets_put(s->peers[w], &word, 1, 0) != 1) gcomp_sockets_cut_off(s->peers[w]);
    return 0;
}

/* sum[i] <- fold of sum[i] and other[i]; one function for each type. */
#define GCOMP_SOCKETS_FOLD(name, type, fold) \
    static inline void name(void *sums, const void *others, size_t count) \
    { \
        type *sum = (type *)sums; \
        const type *other = (const type *)others; \
        for (size_t i = 0; i < count; i++) sum[i] = (type)(fold); \
    }
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum, float, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum8, int8_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum16, int16_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_sum32, int32_t, sum[i] + other[i])
GCOMP_SOCKETS_FOLD(gcomp_sockets_largest, float, other[i] > sum[i] ? other[i] : sum[i])
#undef GCOMP_SOCKETS_FOLD

/* The shards of all workers in the buffer become their sum, at its beginning. */
static inline void gcomp_sockets_fold_all(gcomp_sockets *s, size_t shard,
                                          void (*fold)(void *, const void *, size_t))
{
    for (int w = 1; w < s->world; w++)
        fold(s->buffer, s->buffer + (size_t)w * GCOMP_SOCKETS_PIECE, shard);
}

/* The same of fp16 or bf16: added in float32, and rounded once. Does not fail in the mode of
   arithmetic that gcomp_sockets_reduce has looked for. */
static inline int gcomp_sockets_sum_halves(gcomp_sockets *s, size_t shard, gcomp_dtype dtype)
{
    float sum[512], other[512];
    int error = 0;
    for (size_t at = 0; at < shard; at += 512) {
        size_t count = shard - at < 512 ? shard - at : 512;
        error |= gcomp_convert(sum, GCOMP_F32, s->buffer + 2 * at, dtype, count, NULL);
        for (int w = 1; w < s->world; w++) {
            const unsigned char *from = s->buffer + (size_t)w * GCOMP_SOCKETS_PIECE + 2 * at;
            error |= gcomp_convert(other, GCOMP_F32, from, dtype, count, NULL);
            for (size_t i = 0; i < count; i++) sum[i] += other[i];
        }
        error |= gcomp_convert(s->buffer + 2 * at, dtype, sum, GCOMP_F32, count, NULL);
    }
    return error ? GCOMP_SOCKETS_FAILED : 0;
}

/* data[count] <- the fold of all workers' elements, in rank order; those of the others are in the
   buffer. fold NULL: the elements are halves. */
static inline int gcomp_sockets_fold_own(gcomp_sockets *s, unsigned char *data, size_t count,
                                         size_t bytes, gcomp_dtype dtype,
                                         void (*fold)(void *, const void *, size_t))
{
    int error = 0;
    memcpy(s->buffer + (size_t)s->rank * GCOMP_SOCKETS_PIECE, data, count * bytes);
    if (fold) gcomp_sockets_fold_all(s, count, fold);
    else error = gcomp_sockets_sum_halves(s, count, dtype);
    if (!error) memcpy(data, s->buffer, count * bytes);
    return error;
}

/* One piece of a sum. The elements from count * w / world up to count * (w + 1) / world are worker
   w's shard. Each worker gets its shard from all, folds it, and sends it to all. */
static inline int gcomp_sockets_fold_piece(gcomp_sockets *s, unsigned char *data, size_t count,
                                           size_t bytes, gcomp_dtype dtype,
                                           void (*fold)(void *, const void *, size_t))
{
    size_t world = (size_t)s->world, rank = (size_t)s->rank;
    size_t begin = count * rank / world, shard = count * (rank + 1) / world - begin;
    int error;
    gcomp_sockets_flow_all(s, data, 0, 0, s->buffer, GCOMP_SOCKETS_PIECE, shard * bytes);
    for (size_t w = 0; w < world; w++) {
        size_t other = count * w / world;
        s->flows[w].out = data + other * bytes;
        s->flows[w].out_left = w == rank ? 0 : (count * (w + 1) / world - other) * bytes;
    }
    error = gcomp_sockets_move(s);
    if (!error) error = gcomp_sockets_fold_own(s, data + begin * bytes, shard, bytes, dtype, fold);
    if (error) return error;
    gcomp_sockets_flow_all(s, data + begin * bytes, 0, shard * bytes, data, 0, 0);
    for (size_t w = 0; w < world; w++) {
        size_t other = count * w / world;
        s->flows[w].in = data + other * bytes;
        s->flows[w].in_left = w == rank ? 0 : (count * (w + 1) / world - other) * bytes;
    }
    return gcomp_sockets_move(s);
}

static inline int gcomp_sockets_reduce(gcomp_sockets *s, gcomp_sockets_kind kind, void *data,
                                       size_t count, gcomp_dtype dtype)
{
    void (*fold)(void *, const void *, size_t) = NULL;
    int halves = dtype == GCOMP_F16 || dtype == GCOMP_BF16;
    size_t bytes = dtype == GCOMP_I8 ? 1 : dtype == GCOMP_I16 || halves ? 2 : 4;
    size_t most = GCOMP_SOCKETS_PIECE / bytes * (size_t)s->world;
    const int brief = gcomp_sockets_brief(count) == count && gcomp_sockets_brief(count * bytes) &&
        count * bytes <= GCOMP_SOCKETS_AT_ONCE / 2 / (size_t)s->world;
    int error;
    /* where gcomp.h cannot calculate, which this worker alone may see: before the meeting */
    if (halves && gcomp_convert(NULL, GCOMP_F32, NULL, dtype, 0, NULL)) gcomp_sockets_fail(s);
    gcomp_sockets_enter(s);
    if (brief)
        gcomp_sockets_flow_all(s, data, 0, count * bytes, s->buffer, GCOMP_SOCKETS_PIECE,
                               count * bytes);
    error = gcomp_sockets_meet(s, kind, (uint32_t)dtype, count, 0);
    if (error) return error;
    if (kind == GCOMP_SOCKETS_MAX) fold = gcomp_sockets_largest;
    else if (dtype == GCOMP_F32) fold = gcomp_sockets_sum;
    else if (dtype == GCOMP_I8) fold = gcomp_sockets_sum8;
    else if (dtype == GCOMP_I16) fold = gcomp_sockets_sum16;
    else if (dtype == GCOMP_I32) fold = gcomp_sockets_sum32;
    if (!fold && !halves) return GCOMP_SOCKETS_MISMATCH; /* on all: they bring the same */
    if (brief) /* the data of all came with the meeting */
        error = gcomp_sockets_fold_own(s, (unsigned char *)data, count, bytes, dtype, fold);
    for (size_t at = 0; at < count && !error && !brief; at += most)
        error = gcomp_sockets_fold_piece(s, (unsigned char *)data + at * bytes,
                                         count - at < most ? count - at : most, bytes, dtype,
                                         fold);
    return error ? error : gcomp_sockets_part_company(s);
}

/* data[count] <- sum over the workers, in place. */
static inline int gcomp_sockets_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    return gcomp_sockets_reduce((gcomp_sockets *)user, GCOMP_SOCKETS_ALLREDUCE, data, count, dtype);
}

/* data[count] <- the largest of the workers, in place. */
static inline int gcomp_sockets_allreduce_max(void *user, float *data, size_t count)
{
    return gcomp_sockets_reduce((gcomp_sockets *)user, GCOMP_SOCKETS_MAX, data, count, GCOMP_F32);
}

/* After the meeting: the flows, then the parting. */
static inline int gcomp_sockets_finish(gcomp_sockets *s)
{
    int error = gcomp_sockets_move(s);
    return error ? error : gcomp_sockets_part_company(s);
}

/* all[world * bytes] <- mine[bytes] of every worker, in rank order. */
static inline int gcomp_sockets_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    gcomp_sockets *s = gcomp_sockets_enter(user);
    int error;
    gcomp_sockets_flow_all(s, mine, 0, bytes, all, bytes, bytes);
    error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHER, 0, bytes, 0);
    if (error) return error;
    if (bytes) /* a worker may send from its own place */
        memmove((unsigned char *)all + (size_t)s->rank * bytes, mine, bytes);
    return gcomp_sockets_finish(s);
}

/* all + w * stride <- bytes[w] bytes of worker w, for all w. Where all bring `stride` bytes this is
   gcomp_sockets_allgather: some workers may call the one function, and some the other. */
static inline int gcomp_sockets_allgatherv(void *user, const void *mine, void *all,
                                           const size_t *bytes, size_t stride)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    uint64_t list = 1469598103934665603u;
    int error, too_long = 0, even = 1;
    for (int w = 0; w < s->world; w++) {
        list = (list ^ (uint64_t)bytes[w]) * 1099511628211u;
        too_long |= bytes[w] > stride;
        even &= bytes[w] == stride;
    }
    if (even) return gcomp_sockets_allgather(user, mine, all, stride);
    gcomp_sockets_enter(s);
    if (!too_long) gcomp_sockets_flow_all(s, mine, 0, bytes[s->rank], all, stride, 0);
    for (int w = 0; w < s->world && !too_long; w++)
        s->flows[w].in_left = w == s->rank ? 0 : bytes[w];
    error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHERV, 0, stride, list);
    if (error || too_long) return error ? error : GCOMP_SOCKETS_MISMATCH;
    if (bytes[s->rank])
        memmove((unsigned char *)all + (size_t)s->rank * stride, mine, bytes[s->rank]);
    return gcomp_sockets_finish(s);
}

/* Worker w gets sent[w] bytes of send, and awaited[w] bytes come from worker w; both lie back to
   back in rank order, with this worker's own part among them. Two workers that do not agree about a
   size end the group, because nobody else sees the difference. */
static inline int gcomp_sockets_alltoallv(void *user, const void *send, const size_t *sent,
                                          void *recv, const size_t *awaited)
{
    gcomp_sockets *s = gcomp_sockets_enter(user);
    const unsigned char *from = (const unsigned char *)send, *own = from;
    unsigned char *to = (unsigned char *)recv, *own_place = to;
    int error;
    for (int w = 0; w < s->world; from += sent[w], to += awaited[w], w++) {
        gcomp_sockets_flow *flow = &s->flows[w];
        flow->out = from;
        flow->in = to;
        flow->out_left = w == s->rank ? 0 : sent[w];
        flow->in_left = w == s->rank ? 0 : awaited[w];
        own = w == s->rank ? from : own;
        own_place = w == s->rank ? to : own_place;
    }
    error = gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLTOALLV, 0, 0, 0);
    if (!error && sent[s->rank] != awaited[s->rank]) {
        gcomp_sockets_lose(s, s->rank, GCOMP_SOCKETS_SIZES);
        error = GCOMP_SOCKETS_FAILED;
    }
    if (!error && sent[s->rank]) memcpy(own_place, own, sent[s->rank]);
    return error ? error : gcomp_sockets_finish(s);
}

/* data[bytes] <- data of worker `root`. On error data is unspecified: gcomp_recover.h brings
   weights to all, and keeps the old ones until the new ones have come. */
static inline int gcomp_sockets_broadcast(void *user, void *data, size_t bytes, int root)
{
    gcomp_sockets *s = gcomp_sockets_enter(user);
    const int known = root >= 0 && root < s->world;
    int error;
    gcomp_sockets_flow_all(s, data, 0, s->rank == root ? bytes : 0, data, 0, 0);
    if (known && s->rank != root) s->flows[root].in_left = bytes;
    error = gcomp_sockets_meet(s, GCOMP_SOCKETS_BROADCAST, (uint32_t)root, bytes, 0);
    if (error || !known) return error ? error : GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_finish(s);
}

/* Returns when all workers have called it. */
static inline int gcomp_sockets_barrier(void *user)
{
    gcomp_sockets *s = gcomp_sockets_enter(user);
    int error = gcomp_sockets_meet(s, GCOMP_SOCKETS_BARRIER, 0, 0, 0);
    return error ? error : gcomp_sockets_part_company(s);
}

/* ---- messages between two workers */

#define GCOMP_SOCKETS_MESSAGE 0x4d534347u

static inline int gcomp_sockets_incomplete(const gcomp_sockets_inbox *in)
{
    return in->head_come > 0 || (in->last && in->last->come < in->last->bytes);
}

/* The head is complete: makes room for its message. Returns 0, or -1 if there is none. */
static inline int gcomp_sockets_make_room(gcomp_sockets_inbox *in)
{
    gcomp_sockets_message *m;
    if (in->head.bytes > GCOMP_SOCKETS_LONGEST || in->head.bytes > SIZE_MAX - sizeof *m) return -1;
    m = (gcomp_sockets_message *)malloc(sizeof *m + (size_t)in->head.bytes);
    if (!m) return -1;
    m->next = NULL;
    m->bytes = (size_t)in->head.bytes;
    m->come = 0;
    if (in->first) in->last->next = m;
    else in->first = m;
    in->last = m;
    in->head_come = 0;
    return 0;
}

/* Takes in what worker w has sent, up to the first byte of a collective. Returns how many bytes
   that were; -1: the connection is gone, or says what no worker says. */
static inline long gcomp_sockets_take_in(gcomp_sockets *s, int w)
{
    gcomp_sockets_inbox *in = &s->inboxes[w];
    long moved = 0;
    for (;;) {
        const int body = in->last && in->last->come < in->last->bytes;
        unsigned char *to = body ? (unsigned char *)(in->last + 1) + in->last->come
                                 : (unsigned char *)&in->head + in->head_come;
        const size_t most = body ? in->last->bytes - in->last->come
                                 : sizeof in->head - in->head_come;
        uint32_t magic = GCOMP_SOCKETS_MESSAGE;
        ptrdiff_t n = (ptrdiff_t)sizeof magic;
        if (!body && !in->head_come)
            n = gcomp_sockets_get(s->peers[w], &magic, sizeof magic, MSG_PEEK);
        if (n > 0 && n < (ptrdiff_t)sizeof magic) return moved; /* the rest is on its way */
        in->waits = n > 0 && magic != GCOMP_SOCKETS_MESSAGE;
        if (in->waits) return moved;
        if (n > 0) n = gcomp_sockets_get(s->peers[w], to, most, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
        if (n <= 0) return -1;
        moved += (long)n;
        if (body) in->last->come += (size_t)n;
        else in->head_come += (size_t)n;
        if (in->head_come == sizeof in->head && gcomp_sockets_make_room(in)) return -1;
    }
}

/* Sends the flow to worker `to`, or waits for a message of worker `from`; the other one is -1.
   Takes in what comes meanwhile. Returns 0, GCOMP_SOCKETS_FAILED or GCOMP_SOCKETS_NOTHING. */
static inline int gcomp_sockets_talk(gcomp_sockets *s, int to, gcomp_sockets_flow *flow, int from,
                                     double seconds)
{
    double then;
    const int with = to >= 0 ? to : from;
    const gcomp_sockets_inbox *in = &s->inboxes[with];
    int once = !(seconds > 0);
    gcomp_sockets_settle(s, 0);
    then = gcomp_sockets_now() + seconds;
    if (from >= 0 && !once && gcomp_sockets_incomplete(in)) then = gcomp_sockets_now() + s->silence;
    for (int w = 0; w < s->world; w++) s->inboxes[w].waits = 0;
    for (;;) {
        if (to >= 0 && flow->out_left == 0) return 0;
        if (from >= 0 && in->first && in->first->come == in->first->bytes) return 0;
        if (s->failed || s->peers[with] < 0) return GCOMP_SOCKETS_FAILED;
        if (once < 0 || (!once && gcomp_sockets_now() >= then)) {
            if (once < 0) return GCOMP_SOCKETS_NOTHING; /* the rest may be coming */
            if (from >= 0 && !gcomp_sockets_incomplete(in)) return GCOMP_SOCKETS_NOTHING;
            gcomp_sockets_hang_up(s, with); /* in the midst of a message */
            return GCOMP_SOCKETS_FAILED;
        }
        for (int w = 0; w < s->world; w++) {
            const int in_events = s->inboxes[w].waits ? GCOMP_SOCKETS_ENDS : GCOMP_SOCKETS_IN;
            const int events = in_events | (w == to ? GCOMP_SOCKETS_OUT : 0);
            gcomp_sockets_poll_for(&s->polls[w], events ? s->peers[w] : -1,
                                   events | GCOMP_SOCKETS_URGENT);
        }
        if (once) gcomp_sockets_poll_once(s->polls, (size_t)s->world, 0);
        else gcomp_sockets_look(s, then);
        for (int w = 0; w < s->world; w++) {
            long moved = 0, sent = 0;
            if (s->polls[w].revents & GCOMP_SOCKETS_URGENT) gcomp_sockets_hear_last(s, w);
            /* who has begun a collective and closed takes part in nothing any more */
            if (s->polls[w].revents & ~(GCOMP_SOCKETS_OUT | GCOMP_SOCKETS_URGENT))
                moved = s->inboxes[w].waits ? -1 : gcomp_sockets_take_in(s, w);
            if (moved >= 0 && w == to && (s->polls[w].revents & GCOMP_SOCKETS_OUT))
                sent = gcomp_sockets_some(s->peers[w], flow, GCOMP_SOCKETS_OUT);
            if (moved < 0 || sent < 0) gcomp_sockets_hang_up(s, w);
            /* once a message has begun, the rule of silence holds for the rest of it */
            if (!once && ((w == to && sent > 0) || (w == from && moved > 0)))
                then = gcomp_sockets_now() + s->silence;
        }
        once = once ? -1 : 0;
    }
}

/* Sends data[bytes] to worker `to`. Waits while it takes bytes in, for at most `silence` seconds
   without one. Returns 0; GCOMP_SOCKETS_MISMATCH: there is no such other worker;
   GCOMP_SOCKETS_FAILED: it is gone, or was silent, and is gone for this worker from now on. */
static inline int gcomp_sockets_send_to(void *user, int to, const void *data, size_t bytes)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    const gcomp_sockets_head head = {GCOMP_SOCKETS_MESSAGE, 0, bytes};
    gcomp_sockets_flow flow = {(const unsigned char *)&head, NULL, sizeof head, 0};
    int error;
    if (to < 0 || to >= s->world || to == s->rank || (uint64_t)bytes > GCOMP_SOCKETS_LONGEST)
        return GCOMP_SOCKETS_MISMATCH;
    error = gcomp_sockets_talk(s, to, &flow, -1, s->silence);
    flow.out = (const unsigned char *)data;
    flow.out_left = bytes;
    return error ? error : gcomp_sockets_talk(s, to, &flow, -1, s->silence);
}

/* Receives the oldest message of worker `from` that was not received yet; waits `seconds` for its
   first byte, and then for the rest as gcomp_sockets_send_to; 0: does not wait. *bytes <- its
   length. Returns 0, or with data unchanged
     GCOMP_SOCKETS_NOTHING   no message came in time: it may come later
     GCOMP_SOCKETS_MISMATCH  the message has more than `capacity` bytes, and is dropped; or there
                             is no such other worker
     GCOMP_SOCKETS_FAILED    the worker is gone, and nothing of it is left to receive */
static inline int gcomp_sockets_receive_from(void *user, int from, void *data, size_t capacity,
                                             size_t *bytes, double seconds)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    gcomp_sockets_message *m;
    int error;
    if (from < 0 || from >= s->world || from == s->rank) return GCOMP_SOCKETS_MISMATCH;
    error = gcomp_sockets_talk(s, -1, NULL, from, seconds);
    if (error) return error;
    m = s->inboxes[from].first;
    s->inboxes[from].first = m->next;
    if (!m->next) s->inboxes[from].last = NULL;
    *bytes = m->bytes;
    error = m->bytes > capacity ? GCOMP_SOCKETS_MISMATCH : 0;
    if (!error && m->bytes) memcpy(data, m + 1, m->bytes);
    free(m);
    return error;
}

/* ---- proofs: SHA-256 of FIPS 180-4, HMAC of RFC 2104 */

static inline uint32_t gcomp_sockets_turned(uint32_t x, int right)
{
    return x >> right | x << (32 - right);
}

/* hash[8] <- hash, continued with one block of 64 bytes. */
static inline void gcomp_sockets_sha_block(uint32_t hash[8], const unsigned char *block)
{
    static const uint32_t constants[64] = {
        0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
        0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
        0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
        0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
        0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
        0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
        0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
        0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
        0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
        0xc67178f2u};
    uint32_t w[64], v[8];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
            (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t a = w[t - 15], b = w[t - 2];
        a = gcomp_sockets_turned(a, 7) ^ gcomp_sockets_turned(a, 18) ^ a >> 3;
        b = gcomp_sockets_turned(b, 17) ^ gcomp_sockets_turned(b, 19) ^ b >> 10;
        w[t] = w[t - 16] + a + w[t - 7] + b;
    }
    memcpy(v, hash, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t a = v[0], e = v[4];
        uint32_t one = gcomp_sockets_turned(e, 6) ^ gcomp_sockets_turned(e, 11) ^
            gcomp_sockets_turned(e, 25);
        uint32_t two = gcomp_sockets_turned(a, 2) ^ gcomp_sockets_turned(a, 13) ^
            gcomp_sockets_turned(a, 22);
        one += v[7] + ((e & v[5]) ^ (~e & v[6])) + constants[t] + w[t];
        two += (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) hash[i] += v[i];
}

static inline void gcomp_sockets_sha256(unsigned char digest[32], const void *message, size_t bytes)
{
    uint32_t hash[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    const unsigned char *from = (const unsigned char *)message;
    unsigned char last[128] = {0};
    size_t rest = bytes % 64, end = rest < 56 ? 64 : 128;
    for (size_t at = 0; at + 64 <= bytes; at += 64) gcomp_sockets_sha_block(hash, from + at);
    if (rest) memcpy(last, from + bytes - rest, rest);
    last[rest] = 0x80;
    for (size_t i = 0; i < 8; i++)
        last[end - 1 - i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    for (size_t at = 0; at < end; at += 64) gcomp_sockets_sha_block(hash, last + at);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(hash[i / 4] >> (24 - i % 4 * 8));
}

/* digest[32] <- HMAC of the message, of at most 128 bytes. A key shorter than 64 bytes ends in
   zeros. */
static inline void gcomp_sockets_hmac(unsigned char digest[32], const unsigned char key[64],
                                      const void *message, size_t bytes)
{
    unsigned char inner[64 + 128], outer[64 + 32];
    for (int i = 0; i < 64; i++) {
        inner[i] = (unsigned char)(key[i] ^ 0x36);
        outer[i] = (unsigned char)(key[i] ^ 0x5c);
    }
    memcpy(inner + 64, message, bytes);
    gcomp_sockets_sha256(outer + 64, inner, 64 + bytes);
    gcomp_sockets_sha256(digest, outer, sizeof outer);
}

/* Are the bytes equal? The time does not tell where they differ. */
static inline int gcomp_sockets_same(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    unsigned differs = 0;
    for (size_t i = 0; i < bytes; i++) differs |= (unsigned)(a[i] ^ b[i]);
    return !differs;
}

/* ---- connecting */

/* A connection that has not proven yet who it is. */
typedef struct gcomp_sockets_guest {
    double since;
    gcomp_sockets_place from;
    gcomp_sockets_challenge challenge;
    gcomp_sockets_hello hello;
    gcomp_sockets_flow flow;
} gcomp_sockets_guest;

/* What is needed until all workers are connected. s->peers[s->world] listens;
   s->peers[s->world + 1 + i] is the connection of guest i. */
typedef struct gcomp_sockets_meeting {
    gcomp_sockets *s;
    gcomp_sockets_hello own;     /* this worker's, without what differs from call to call */
    gcomp_sockets_place *places; /* [world] */
    gcomp_sockets_guest *guests; /* [most] */
    struct pollfd *polls;        /* [1 + most] of the listener and the guests */
    int most;                    /* guests at a time */
    int seats;                   /* `most`, or as many as there are descriptors for */
    double then;                 /* when it must be over */
    unsigned char secret[64], seed[64];
    uint64_t drawn; /* random numbers so far */
    int door;       /* of a team: 1 */
    uint64_t job;   /* of newcomers at the door */
} gcomp_sockets_meeting;

/* number[16] <- a random number, another one each time. */
static inline void gcomp_sockets_draw(gcomp_sockets_meeting *m, unsigned char number[16])
{
    unsigned char digest[32];
    gcomp_sockets_hmac(digest, m->seed, &m->drawn, sizeof m->drawn);
    memcpy(number, digest, 16);
    m->drawn++;
}

/* proof[32] <- the proof of one side of a connection. role: 'c' for the worker that calls, 'l' for
   the worker that listens. */
static inline void gcomp_sockets_prove(const gcomp_sockets_meeting *m, unsigned char proof[32],
                                       char role, const gcomp_sockets_challenge *challenge,
                                       const gcomp_sockets_hello *hello)
{
    unsigned char words[1 + 16 + offsetof(gcomp_sockets_hello, proof)];
    words[0] = (unsigned char)role;
    memcpy(words + 1, challenge->number, 16);
    memcpy(words + 17, hello, offsetof(gcomp_sockets_hello, proof));
    gcomp_sockets_hmac(proof, m->secret, words, sizeof words);
}

/* Does the error say that there is no descriptor, or no memory in the kernel? Then a later try may
   succeed. */
static inline int gcomp_sockets_short_of(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* A connection that never blocks and sends small messages at once. Returns it, or -1 with the
   socket closed. */
static inline int gcomp_sockets_tune(int fd)
{
    if (gcomp_sockets_unblock(fd)) {
        gcomp_sockets_shut(fd);
        return -1;
    }
    gcomp_sockets_no_delay(fd); /* if this fails, the same bytes come later */
    return fd;
}

/* The addresses of a name, for TCP: freeaddrinfo frees them. NULL: none is known. */
static inline struct addrinfo *gcomp_sockets_find(const char *host, const char *port, int flags)
{
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

/* Listens at the first address of a name that belongs to this host. Port "0": any free port.
   Returns the socket, or -1 with errno. */
static inline int gcomp_sockets_listen(const char *host, const char *port)
{
    struct addrinfo *found = gcomp_sockets_find(host, port, 0);
    int fd = -1, error = EADDRNOTAVAIL;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = gcomp_sockets_stream(a->ai_family);
        if (fd >= 0) fd = gcomp_sockets_tune(fd);
        if (fd >= 0 && gcomp_sockets_listen_at(fd, a) == 0) break;
        error = errno;
        if (fd >= 0) gcomp_sockets_shut(fd);
        fd = -1;
    }
    if (found) freeaddrinfo(found);
    errno = error;
    return fd;
}

/* One attempt to connect. Returns the connection, or -1 with errno. */
static inline int gcomp_sockets_connect(gcomp_sockets *s, const struct addrinfo *to, double then)
{
    int fd = gcomp_sockets_stream(to->ai_family), error;
    if (fd >= 0) fd = gcomp_sockets_tune(fd);
    if (fd < 0 || gcomp_sockets_connect_to(fd, to) == 0) return fd;
    error = errno;
    if (error == EINPROGRESS) {
        struct pollfd p;
        gcomp_sockets_poll_for(&p, fd, GCOMP_SOCKETS_OUT);
        error = gcomp_sockets_poll(s, &p, 1, then) == 1 ? gcomp_sockets_error_of(fd) : ETIMEDOUT;
    }
    if (!error) return fd;
    gcomp_sockets_shut(fd);
    errno = error;
    return -1;
}

/* Moves one flow of a connection to its end. Returns 0, or an errno value. */
static inline int gcomp_sockets_all_of(gcomp_sockets *s, int fd, gcomp_sockets_flow flow,
                                       double then)
{
    while (flow.out_left || flow.in_left) {
        struct pollfd p;
        gcomp_sockets_poll_for(&p, fd, flow.out_left ? GCOMP_SOCKETS_OUT : GCOMP_SOCKETS_IN);
        if (gcomp_sockets_now() >= then || (s && s->failed)) return ETIMEDOUT;
        if (gcomp_sockets_poll(s, &p, 1, then) == 1 &&
            gcomp_sockets_some(fd, &flow, p.events) < 0)
            return ECONNRESET;
    }
    return 0;
}

static inline int gcomp_sockets_send(gcomp_sockets *s, int fd, const void *bytes, size_t count,
                                     double then)
{
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    flow.out = (const unsigned char *)bytes;
    flow.out_left = count;
    return gcomp_sockets_all_of(s, fd, flow, then);
}

static inline int gcomp_sockets_receive(gcomp_sockets *s, int fd, void *bytes, size_t count,
                                        double then)
{
    gcomp_sockets_flow flow = {NULL, NULL, 0, 0};
    flow.in = (unsigned char *)bytes;
    flow.in_left = count;
    return gcomp_sockets_all_of(s, fd, flow, then);
}

/* The number and port behind an address. */
static inline int gcomp_sockets_name(const struct sockaddr_storage *address, socklen_t length,
                                     gcomp_sockets_place *place)
{
    return getnameinfo((const struct sockaddr *)(const void *)address, length, place->host,
                       sizeof place->host, place->port, sizeof place->port,
                       NI_NUMERICHOST | NI_NUMERICSERV)
        ? EAFNOSUPPORT
        : 0;
}

/* The number and port that a socket has on this host. Returns 0 or an errno value. */
static inline int gcomp_sockets_here(int fd, gcomp_sockets_place *here)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (gcomp_sockets_name_of(fd, &address, &length) != 0) return errno;
    return gcomp_sockets_name(&address, length, here);
}

/* Names a port of 127.0.0.1 where nobody listens now, for workers that all are on this host.
   Returns 0, or an error number. */
static inline int gcomp_sockets_free_port(char port[8])
{
    gcomp_sockets_place here;
    const int fd = gcomp_sockets_listen("127.0.0.1", "0");
    int error = fd < 0 ? errno : gcomp_sockets_here(fd, &here);
    if (fd >= 0) gcomp_sockets_shut(fd);
    if (!error) memcpy(port, here.port, sizeof here.port);
    return error;
}

/* Is the other end of a connection closed? */
static inline int gcomp_sockets_gone(int fd)
{
    char word;
    ptrdiff_t n = gcomp_sockets_get(fd, &word, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* The number of workers of higher rank that have not come. When all have come, rank 0 looks if one
   has died meanwhile: another process may come in its place. */
static inline int gcomp_sockets_missing(gcomp_sockets *s)
{
    int missing = 0;
    for (int w = s->rank + 1; w < s->world; w++) missing += s->peers[w] < 0;
    if (missing || s->rank) return missing;
    for (int w = 1; w < s->world; w++)
        if (gcomp_sockets_gone(s->peers[w])) {
            gcomp_sockets_hang_up(s, w);
            missing++;
        }
    return missing;
}

/* Does the hello fit at the door of a team? A newcomer has the world 0; the others are workers of
   this generation with a higher rank. */
static inline int gcomp_sockets_fits_door(const gcomp_sockets_meeting *m,
                                          const gcomp_sockets_hello *hello)
{
    const gcomp_sockets_hello *own = &m->own;
    if (hello->order != own->order || hello->port) return 0;
    if (hello->world == 0)
        return hello->job == m->job && hello->rank < own->world &&
            hello->rank < (uint32_t)GCOMP_SOCKETS_NEWCOMERS && hello->to == 0;
    return hello->job == own->job && hello->world == own->world && hello->to == own->rank &&
        hello->rank > own->rank && hello->rank < own->world;
}

/* The verdict on a guest that has said hello. If two guests prove the same rank, the first one
   stays while its connection lives. */
static inline int gcomp_sockets_judge(const gcomp_sockets_meeting *m,
                                      const gcomp_sockets_guest *guest)
{
    const gcomp_sockets_hello *hello = &guest->hello, *own = &m->own;
    unsigned char proof[32];
    gcomp_sockets_prove(m, proof, 'c', &guest->challenge, hello);
    if (!gcomp_sockets_same(proof, hello->proof, sizeof proof)) return GCOMP_SOCKETS_OTHER_SECRET;
    if (!m->door && hello->world == 0) return GCOMP_SOCKETS_TAKEN; /* a newcomer that is too early */
    if (m->door ? !gcomp_sockets_fits_door(m, hello)
                : hello->job != own->job || hello->order != own->order ||
                hello->world != own->world || hello->to != own->rank ||
                hello->rank <= own->rank || hello->rank >= own->world || hello->port > 65535)
        return GCOMP_SOCKETS_OTHER_JOB;
    return m->s->peers[hello->rank] >= 0 && !gcomp_sockets_gone(m->s->peers[hello->rank])
        ? GCOMP_SOCKETS_TAKEN
        : GCOMP_SOCKETS_WELCOME;
}

/* Answers a guest that has said hello. The guest becomes a peer, or its connection is closed. */
static inline void gcomp_sockets_answer(gcomp_sockets_meeting *m, int i)
{
    gcomp_sockets *s = m->s;
    gcomp_sockets_guest *guest = &m->guests[i];
    int *fd = &s->peers[s->world + 1 + i], rank = (int)guest->hello.rank;
    unsigned char words[33] = {0}; /* they fit into an empty buffer */
    if (memcmp(guest->hello.magic, m->own.magic, sizeof m->own.magic) == 0) {
        words[0] = (unsigned char)gcomp_sockets_judge(m, guest);
        if (words[0] == GCOMP_SOCKETS_WELCOME)
            gcomp_sockets_prove(m, words + 1, 'l', &guest->challenge, &guest->hello);
        if (gcomp_sockets_put(*fd, words, sizeof words, 0) == (ptrdiff_t)sizeof words &&
            words[0] == GCOMP_SOCKETS_WELCOME) {
            gcomp_sockets_hang_up(s, rank); /* an earlier connection that is gone */
            s->peers[rank] = *fd;
            m->places[rank] = guest->from;
            snprintf(m->places[rank].port, sizeof m->places[rank].port, "%u",
                     (unsigned)guest->hello.port);
            *fd = -1;
        }
    }
    gcomp_sockets_hang_up(s, s->world + 1 + i);
}

/* Hears what a guest says. Closes the connection of a guest that has been silent for too long. */
static inline void gcomp_sockets_hear(gcomp_sockets_meeting *m, int i, int events)
{
    gcomp_sockets_guest *guest = &m->guests[i];
    int fd = m->s->peers[m->s->world + 1 + i];
    long moved = events ? gcomp_sockets_some(fd, &guest->flow, GCOMP_SOCKETS_IN) : 0;
    if (moved >= 0 && guest->flow.in_left == 0) gcomp_sockets_answer(m, i);
    else if (moved < 0 || gcomp_sockets_now() > guest->since + GCOMP_SOCKETS_PATIENCE)
        gcomp_sockets_hang_up(m->s, m->s->world + 1 + i);
}

/* The oldest guest of the address from which most guests come. There is a guest. */
static inline int gcomp_sockets_worst(const gcomp_sockets_meeting *m)
{
    const int *fds = m->s->peers + m->s->world + 1;
    int worst = 0, most = 0;
    for (int i = 0; i < m->most; i++) {
        const gcomp_sockets_guest *guest = &m->guests[i], *beside = &m->guests[worst];
        int count = most && strcmp(guest->from.host, beside->from.host) == 0 ? most : 0;
        if (fds[i] < 0) continue;
        for (int k = 0; count != most && k < m->most; k++)
            count += fds[k] >= 0 && strcmp(guest->from.host, m->guests[k].from.host) == 0;
        if (count > most || (count == most && guest->since < beside->since)) {
            worst = i;
            most = count;
        }
    }
    return worst;
}

/* Gives a seat to the connection that waits, and sends the challenge. Returns 0; EAGAIN if no seat
   is free yet; another errno value if there is no descriptor for the connection. */
static inline int gcomp_sockets_seat(gcomp_sockets_meeting *m)
{
    gcomp_sockets *s = m->s;
    int *fds = s->peers + s->world + 1, seat = m->most, taken = 0, fd;
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    gcomp_sockets_guest *guest;
    for (int i = m->most - 1; i >= 0; i--)
        if (fds[i] < 0) seat = i;
        else taken++;
    if (taken >= m->seats) {
        seat = gcomp_sockets_worst(m);
        if (gcomp_sockets_now() < m->guests[seat].since + GCOMP_SOCKETS_GRACE) return EAGAIN;
        gcomp_sockets_hang_up(s, s->world + 1 + seat);
    }
    fd = gcomp_sockets_accept_from(s->peers[s->world], &address, &length);
    if (fd < 0 && gcomp_sockets_short_of(errno)) {
        m->seats = taken > 1 ? taken : 1; /* there are no descriptors for more */
        return errno;
    }
    if (fd >= 0) fd = gcomp_sockets_tune(fd);
    if (fd < 0) return 0;
    guest = &m->guests[seat];
    memset(guest, 0, sizeof *guest);
    fds[seat] = fd;
    guest->since = gcomp_sockets_now();
    memcpy(guest->challenge.magic, m->own.magic, sizeof m->own.magic);
    gcomp_sockets_draw(m, guest->challenge.number);
    guest->flow.in = (unsigned char *)&guest->hello;
    guest->flow.in_left = sizeof guest->hello;
    if (gcomp_sockets_name(&address, length, &guest->from) != 0 ||
        gcomp_sockets_put(fd, &guest->challenge, sizeof guest->challenge, 0) !=
            (ptrdiff_t)sizeof guest->challenge)
        gcomp_sockets_hang_up(s, s->world + 1 + seat);
    return 0;
}

/* Waits `most` seconds for those at the door, and hears them. *rest: no new connection is accepted
   before that time; *error: why one could not be. Both begin as 0. Returns 0 or an errno value. */
static inline int gcomp_sockets_turn(gcomp_sockets_meeting *m, double most, double *rest,
                                     int *error)
{
    gcomp_sockets *s = m->s;
    const int *fds = s->peers + s->world;
    double now = gcomp_sockets_now(), wake = now < *rest ? *rest : now + most;
    size_t count = 0;
    /* Only entries in use: poll refuses more than there may be descriptors. */
    for (int i = 0; i <= m->most; i++)
        if (i == 0 || fds[i] >= 0) {
            const int fd = i || now >= *rest ? fds[i] : -1;
            gcomp_sockets_poll_for(&m->polls[count++], fd, GCOMP_SOCKETS_IN);
        }
    if (gcomp_sockets_poll(s, m->polls, count, wake < m->then ? wake : m->then) < 0) return errno;
    count = 1;
    for (int i = 0; i < m->most; i++)
        if (fds[1 + i] >= 0) gcomp_sockets_hear(m, i, m->polls[count++].revents);
    if (m->polls[0].revents) {
        int full = gcomp_sockets_seat(m);
        *rest = full ? now + (full == EAGAIN ? 0.002 : 0.02) : 0;
        *error = full == EAGAIN ? *error : full;
    }
    return 0;
}

/* Accepts the workers of higher rank, then stops listening. Returns 0 or an errno value. */
static inline int gcomp_sockets_accept(gcomp_sockets_meeting *m)
{
    gcomp_sockets *s = m->s;
    double rest = 0;
    int error = 0;
    while (!s->failed && gcomp_sockets_missing(s)) {
        int failed;
        if (gcomp_sockets_now() >= m->then) return error ? error : ETIMEDOUT;
        failed = gcomp_sockets_turn(m, 0.1, &rest, &error);
        if (failed) return failed;
    }
    for (int i = s->world; i < s->descriptors; i++) gcomp_sockets_hang_up(s, i);
    return 0;
}

/* Says hello to a worker of lower rank. Returns 0; EAGAIN: try again; or another errno value: a
   later try would fail too. */
static inline int gcomp_sockets_greet(gcomp_sockets_meeting *m, int rank)
{
    gcomp_sockets_challenge challenge;
    gcomp_sockets_hello hello = m->own;
    unsigned char words[33], proof[32];
    double soon = gcomp_sockets_now() + GCOMP_SOCKETS_PATIENCE;
    int fd = m->s->peers[rank];
    soon = soon < m->then && !m->door ? soon : m->then; /* who lives opens its door in the end */
    if (gcomp_sockets_receive(m->s, fd, &challenge, sizeof challenge, soon) != 0) return EAGAIN;
    if (memcmp(challenge.magic, hello.magic, sizeof hello.magic) != 0) return EPROTO;
    hello.to = (uint32_t)rank;
    gcomp_sockets_draw(m, hello.number);
    gcomp_sockets_prove(m, hello.proof, 'c', &challenge, &hello);
    if (gcomp_sockets_send(m->s, fd, &hello, sizeof hello, m->then) != 0 ||
        gcomp_sockets_receive(m->s, fd, words, sizeof words, m->then) != 0)
        return EAGAIN;
    gcomp_sockets_prove(m, proof, 'l', &challenge, &hello);
    if (m->door && words[0] == GCOMP_SOCKETS_TAKEN) return EBUSY;
    if (words[0] == GCOMP_SOCKETS_OTHER_JOB || words[0] == GCOMP_SOCKETS_TAKEN) return ECONNRESET;
    return words[0] == GCOMP_SOCKETS_WELCOME && gcomp_sockets_same(proof, words + 1, sizeof proof)
        ? 0
        : EACCES;
}

/* Listens at the address that the connection with rank 0 has on this host. Returns 0 or an errno
   value. */
static inline int gcomp_sockets_listen_here(gcomp_sockets_meeting *m)
{
    gcomp_sockets_place here;
    int *listener = &m->s->peers[m->s->world], error;
    gcomp_sockets_hang_up(m->s, m->s->world); /* the listener of the last attempt */
    error = gcomp_sockets_here(m->s->peers[0], &here);
    if (error) return error;
    *listener = gcomp_sockets_listen(here.host, "0");
    error = *listener < 0 ? errno : gcomp_sockets_here(*listener, &here);
    if (!error) m->own.port = (uint32_t)strtoul(here.port, NULL, 10);
    return error;
}

/* Calls a worker of lower rank at all addresses of its name, until it is welcome at one. Returns as
   gcomp_sockets_greet. */
static inline int gcomp_sockets_call_once(gcomp_sockets_meeting *m, int rank,
                                          const gcomp_sockets_place *to, int flags)
{
    struct addrinfo *found = gcomp_sockets_find(to->host, to->port, flags);
    int error = EPROTO;
    if (!found) return EAGAIN;
    for (struct addrinfo *a = found; a && error; a = a->ai_next) {
        double soon = gcomp_sockets_now() + GCOMP_SOCKETS_PATIENCE;
        int *fd = &m->s->peers[rank], failed = 0;
        *fd = gcomp_sockets_connect(m->s, a, soon < m->then ? soon : m->then);
        if (*fd < 0) failed = gcomp_sockets_short_of(errno) ? errno : EAGAIN;
        else if (rank == 0) failed = gcomp_sockets_listen_here(m);
        if (!failed) failed = gcomp_sockets_greet(m, rank);
        if (failed) gcomp_sockets_hang_up(m->s, rank);
        if (failed != EPROTO && (!failed || error == EPROTO || error == EAGAIN))
            error = failed; /* a stranger at one address says nothing about the others */
    }
    freeaddrinfo(found);
    return error;
}

/* Calls a worker of lower rank again and again until this worker is welcome. Returns 0 or an errno
   value. */
static inline int gcomp_sockets_call(gcomp_sockets_meeting *m, int rank,
                                     const gcomp_sockets_place *to, int flags)
{
    for (;;) {
        int error = gcomp_sockets_call_once(m, rank, to, flags);
        if (error != EAGAIN && !gcomp_sockets_short_of(error)) return error;
        if (gcomp_sockets_now() >= m->then || m->s->failed)
            return error == EAGAIN ? ETIMEDOUT : error;
        gcomp_sockets_poll(m->s, NULL, 0, gcomp_sockets_now() + 0.02);
    }
}

/* Rank 0: accepts all, and tells them where each listens. */
static inline int gcomp_sockets_host(gcomp_sockets_meeting *m, const gcomp_sockets_place *root)
{
    gcomp_sockets *s = m->s;
    int error;
    s->peers[s->world] = gcomp_sockets_listen(root->host, root->port);
    if (s->peers[s->world] < 0) return errno;
    error = gcomp_sockets_accept(m);
    memcpy(m->places[0].host, m->own.magic, sizeof m->own.magic);
    for (int w = 1; w < s->world && !error; w++)
        error = gcomp_sockets_send(s, s->peers[w], m->places,
                                   (size_t)s->world * sizeof *m->places, m->then);
    return error;
}

/* Another rank: meets rank 0, hears where the others listen, calls the workers of lower rank, and
   is called by those of higher rank. */
static inline int gcomp_sockets_join(gcomp_sockets_meeting *m, const gcomp_sockets_place *root)
{
    gcomp_sockets *s = m->s;
    int error = gcomp_sockets_call(m, 0, root, 0);
    size_t bytes = (size_t)s->world * sizeof *m->places;
    if (!error && gcomp_sockets_receive(s, s->peers[0], m->places, bytes, m->then) != 0)
        error = ETIMEDOUT; /* rank 0 gave up: somebody did not come */
    if (!error && memcmp(m->places[0].host, m->own.magic, sizeof m->own.magic) != 0) error = EPROTO;
    for (int w = 1; w < s->rank && !error; w++) {
        gcomp_sockets_place *place = &m->places[w];
        place->host[sizeof place->host - 1] = 0;
        place->port[sizeof place->port - 1] = 0;
        error = gcomp_sockets_call(m, w, place, AI_NUMERICHOST | AI_NUMERICSERV);
    }
    return error ? error : gcomp_sockets_accept(m);
}

/* Fills in what the meeting needs. Returns 0 or an errno value. */
static inline int gcomp_sockets_prepare(gcomp_sockets_meeting *m, const gcomp_sockets_desc *desc,
                                        double seconds)
{
    int error = gcomp_sockets_begin();
    if (!error) error = gcomp_sockets_random(m->seed, sizeof m->seed);
    if (error) return error;
    m->then = gcomp_sockets_now() + seconds;
    m->most = m->seats = m->s->world + GCOMP_SOCKETS_GUESTS;
    memcpy(m->own.magic, "GCOMPSK3", sizeof m->own.magic);
    m->own.job = desc->job;
    m->own.order = 0x01020304u;
    m->own.world = (uint32_t)desc->world;
    m->own.rank = (uint32_t)desc->rank;
    if (desc->secret) memcpy(m->secret, desc->secret, strlen(desc->secret));
    m->places = (gcomp_sockets_place *)calloc((size_t)m->s->world, sizeof *m->places);
    m->guests = (gcomp_sockets_guest *)malloc((size_t)m->most * sizeof *m->guests);
    m->polls = (struct pollfd *)malloc(((size_t)m->most + 1) * sizeof *m->polls);
    return m->places && m->guests && m->polls ? gcomp_sockets_watch(m->s) : ENOMEM;
}

/* A group without connections. NULL: no memory. */
static inline gcomp_sockets *gcomp_sockets_alone(int rank, int world, double silence)
{
    gcomp_sockets *s = (gcomp_sockets *)calloc(1, sizeof *s);
    size_t count = (size_t)world;
    if (!s) return NULL;
    s->rank = rank;
    s->world = world;
    s->lost = -1;
    s->silence = silence;
    s->descriptors = 2 * world + 1 + GCOMP_SOCKETS_GUESTS;
    s->peers = (int *)malloc((size_t)s->descriptors * sizeof *s->peers);
    s->polls = (struct pollfd *)calloc(count, sizeof *s->polls);
    s->flows = (gcomp_sockets_flow *)calloc(count, sizeof *s->flows);
    s->later = (gcomp_sockets_flow *)calloc(count, sizeof *s->later);
    s->brief = (unsigned char *)malloc(count * (sizeof *s->parts + GCOMP_SOCKETS_BRIEF));
    s->parts = (gcomp_sockets_part *)calloc(count, sizeof *s->parts);
    s->inboxes = (gcomp_sockets_inbox *)calloc(count, sizeof *s->inboxes);
    s->buffer = (unsigned char *)malloc(count * GCOMP_SOCKETS_PIECE);
    for (int i = 0; s->peers && i < s->descriptors; i++) s->peers[i] = -1;
    for (int w = 0; s->inboxes && w < world; w++) s->inboxes[w].told = -1;
    if (s->peers && s->polls && s->flows && s->later && s->brief && s->parts && s->inboxes &&
        s->buffer)
        return s;
    gcomp_sockets_close(s);
    return NULL;
}

/* Connects this worker with all others; returns on all when all are connected. Returns 0 or an
   errno value; on error *sockets is NULL.
     EINVAL        rank, world (at most 65535), a time or the length of a text is out of range
     ETIMEDOUT     not all came, or one died meanwhile
     ECANCELED     desc.stop said so
     EACCES        this worker and the one it called do not have the same secret
     ECONNRESET    this worker was sent away: it has another job or world, or its rank is taken
     EPROTO        something else listens where rank 0 should listen
     EMFILE        too few file descriptors until the end (ulimit -n): a worker needs world + 2
     EADDRNOTAVAIL the name of the host is unknown
     ENOMEM; ENOENT if there is no /dev/urandom; on rank 0 EADDRINUSE and the like */
static inline int gcomp_sockets_start(gcomp_sockets **sockets, const gcomp_sockets_desc *desc)
{
    const char *host = desc->host ? desc->host : "127.0.0.1";
    const char *port = desc->port ? desc->port : "7077";
    double rendezvous = desc->rendezvous > 0 ? desc->rendezvous : GCOMP_SOCKETS_SECONDS;
    double silence = desc->silence > 0 ? desc->silence : GCOMP_SOCKETS_SECONDS;
    gcomp_sockets_place root;
    gcomp_sockets_meeting m;
    int error;
    *sockets = NULL;
    memset(&m, 0, sizeof m);
    memset(&root, 0, sizeof root);
    if (desc->world < 1 || desc->world > 65535 || desc->rank < 0 || desc->rank >= desc->world ||
        !(desc->rendezvous >= 0 && rendezvous <= 1e6) || !(desc->silence >= 0 && silence <= 1e6) ||
        strlen(host) >= sizeof root.host || strlen(port) >= sizeof root.port ||
        (desc->secret && strlen(desc->secret) > sizeof m.secret))
        return EINVAL;
    memcpy(root.host, host, strlen(host));
    memcpy(root.port, port, strlen(port));
    m.s = gcomp_sockets_alone(desc->rank, desc->world, silence);
    if (!m.s) return ENOMEM;
    m.s->stop = desc->stop;
    m.s->stop_user = desc->stop_user;
    error = gcomp_sockets_prepare(&m, desc, rendezvous);
    if (!error && desc->world > 1)
        error = desc->rank ? gcomp_sockets_join(&m, &root) : gcomp_sockets_host(&m, &root);
    m.s->silence = m.then - gcomp_sockets_now();
    if (!error && gcomp_sockets_barrier(m.s) != 0) error = ETIMEDOUT;
    if (m.s->stopped) error = ECANCELED;
    m.s->silence = silence;
    m.s->descriptors = error ? m.s->descriptors : m.s->world;
    memset(&m.secret, 0, sizeof m.secret);
    free(m.places);
    free(m.guests);
    free(m.polls);
    if (error) gcomp_sockets_close(m.s);
    else *sockets = m.s;
    return error;
}

/* gcomp_sockets_start without a secret, in one line. timeout: seconds for both times; 0: 300. */
static inline int gcomp_sockets_open(gcomp_sockets **sockets, int rank, int world, const char *host,
                                     const char *port, uint64_t job, double timeout)
{
    gcomp_sockets_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.rank = rank;
    desc.world = world;
    desc.host = host;
    desc.port = port;
    desc.job = job;
    desc.rendezvous = timeout;
    desc.silence = timeout;
    return gcomp_sockets_start(sockets, &desc);
}

/* ---- requests that are under way while the caller computes */

/* Carries out one request, and returns when it is done. */
static inline int gcomp_sockets_carry(gcomp_sockets *s, const gcomp_request *r)
{
    switch (r->kind) {
    case GCOMP_ALLREDUCE: return gcomp_sockets_allreduce(s, r->recv, r->count, r->dtype);
    case GCOMP_ALLREDUCE_MAX: return gcomp_sockets_allreduce_max(s, (float *)r->recv, r->count);
    case GCOMP_ALLGATHER:
        return gcomp_sockets_allgatherv(s, r->send, r->recv, r->bytes, r->stride);
    case GCOMP_ALLTOALL:
        return gcomp_sockets_alltoallv(s, r->send, r->send_bytes, r->recv, r->bytes);
    default: return GCOMP_SOCKETS_MISMATCH; /* nothing moves */
    }
}

/* The thread: carries out requests in the order in which they were started. */
static inline void gcomp_sockets_behind(void *arg)
{
    gcomp_sockets *s = (gcomp_sockets *)arg;
    gcomp_sockets_queue *q = s->queue;
    gcomp_sockets_mutex_lock(&q->lock);
    for (;;) {
        gcomp_sockets_flight *f = &q->flights[q->order[q->carried % GCOMP_SOCKETS_FLIGHTS]];
        int status, failed;
        if (q->carried == q->started) {
            if (q->ends) break;
            gcomp_sockets_cond_wait(&q->changed, &q->lock, 0);
            continue;
        }
        gcomp_sockets_mutex_unlock(&q->lock);
        failed = s->failed;
        status = gcomp_sockets_carry(s, &f->of);
        gcomp_sockets_mutex_lock(&q->lock);
        if (q->broken && !failed) { /* the connections have ended here, and not because of another worker */
            s->failed = 1;
            s->lost = -1;
            s->end = GCOMP_SOCKETS_OWN;
            s->stopped = q->broken == 2;
        }
        f->status = status;
        f->done = 1;
        q->carried++;
        gcomp_sockets_cond_wake(&q->changed);
    }
    gcomp_sockets_mutex_unlock(&q->lock);
}

/* Begins to carry out a request. Returns 0, or GCOMP_SOCKETS_MISMATCH: the place of its id is
   taken. */
static inline int gcomp_sockets_request_start(void *user, const gcomp_request *r)
{
    gcomp_sockets_queue *q = ((gcomp_sockets *)user)->queue;
    const int place = (int)(r->id % GCOMP_SOCKETS_FLIGHTS);
    gcomp_sockets_flight *f;
    int taken;
    if (!q) return GCOMP_SOCKETS_FAILED; /* in a child */
    f = &q->flights[place];
    gcomp_sockets_mutex_lock(&q->lock);
    taken = f->busy;
    if (!taken) {
        f->of = *r;
        f->busy = 1;
        f->done = 0;
        q->order[q->started++ % GCOMP_SOCKETS_FLIGHTS] = place;
        gcomp_sockets_cond_wake(&q->changed);
    }
    gcomp_sockets_mutex_unlock(&q->lock);
    return taken ? GCOMP_SOCKETS_MISMATCH : 0;
}

/* Is a request done? waits 1: waits until it is. *done <- 1 if it is done or has failed. */
static inline int gcomp_sockets_request_ask(gcomp_sockets *s, uint32_t id, int waits, int *done)
{
    gcomp_sockets_queue *q = s->queue;
    gcomp_sockets_flight *f;
    int status = 0;
    *done = 0;
    if (!q) return GCOMP_SOCKETS_FAILED;
    f = &q->flights[id % GCOMP_SOCKETS_FLIGHTS];
    gcomp_sockets_mutex_lock(&q->lock);
    if (!f->busy || f->of.id != id) status = GCOMP_SOCKETS_MISMATCH;
    while (waits && !status && !f->done) gcomp_sockets_sleep(s);
    if (!status && f->done) {
        *done = 1;
        f->busy = 0;
        status = f->status;
    }
    gcomp_sockets_mutex_unlock(&q->lock);
    return status;
}

/* Never waits. */
static inline int gcomp_sockets_request_test(void *user, uint32_t id, int *done)
{
    return gcomp_sockets_request_ask((gcomp_sockets *)user, id, 0, done);
}

static inline int gcomp_sockets_request_wait(void *user, uint32_t id)
{
    int done;
    return gcomp_sockets_request_ask((gcomp_sockets *)user, id, 1, &done);
}

/* From now on gcomp_sockets_comm has start, test and wait too. Starts a thread, which signals do
   not interrupt. All workers call it or none, each for itself. Returns 0 or an errno value; then
   nothing is changed. */
static inline int gcomp_sockets_overlap(gcomp_sockets *s)
{
    gcomp_sockets_queue *q;
    int error;
    if (s->queue) return 0;
    q = (gcomp_sockets_queue *)calloc(1, sizeof *q);
    if (!q) return ENOMEM;
    error = gcomp_sockets_mutex_begin(&q->lock);
    if (error) {
        free(q);
        return error;
    }
    error = gcomp_sockets_cond_begin(&q->changed);
    if (!error) {
        s->queue = q;
        error = gcomp_sockets_thread_begin(&q->thread, gcomp_sockets_behind, s);
        if (error) gcomp_sockets_cond_end(&q->changed);
    }
    if (!error) return 0;
    s->queue = NULL;
    gcomp_sockets_mutex_end(&q->lock);
    free(q);
    return error;
}

/* The transport, for gcomp_desc.comm. Valid until the group is closed. */
static inline gcomp_comm gcomp_sockets_comm(gcomp_sockets *s)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.user = s;
    comm.rank = s->rank;
    comm.world = s->world;
    comm.allreduce = gcomp_sockets_allreduce;
    comm.allgather = gcomp_sockets_allgather;
    comm.allgatherv = gcomp_sockets_allgatherv;
    comm.allreduce_max = gcomp_sockets_allreduce_max;
    comm.alltoallv = gcomp_sockets_alltoallv;
    comm.allreduce_dtypes = 1u << GCOMP_F16 | 1u << GCOMP_BF16 | 1u << GCOMP_I8 | 1u << GCOMP_I16 |
        1u << GCOMP_I32;
    if (s->queue) {
        comm.start = gcomp_sockets_request_start;
        comm.test = gcomp_sockets_request_test;
        comm.wait = gcomp_sockets_request_wait;
    }
    return comm;
}

/* ---------------- workers that come and go

   A team is a group whose workers may die, leave and join:

       gcomp_sockets_team *team;
       error = gcomp_sockets_team_start(&team, &net_desc);    as gcomp_sockets_start; or, a newcomer:
       error = gcomp_sockets_team_join(&team, &net_desc);     waits until the team regroups
       desc.comm = gcomp_sockets_comm(team->net);
       ...
       error = gcomp_sockets_team_regroup(team, 30, 1);       after a failure, or for newcomers
       comm = gcomp_sockets_comm(team->net);                  for gcomp_regroup; a newcomer opens gc
       error = gcomp_sockets_team_bring(team, gc, is_new);    newcomers get step number and state
       ...
       gcomp_sockets_team_close(team);

   Each worker of a team listens as long as the team exists, behind the proofs and seats of the
   first meeting. A connection that ends, or is refused, says that a worker is dead. When a team
   regroups, each worker calls the workers of lower old rank, the lowest first. The first one that
   lives is the host: it waits for all that live, closes its list, and gives out ranks. Those who
   stay keep their order, and newcomers follow. Then all meet as in gcomp_sockets_start.

   A newcomer calls the root's address of the desc. After the death of rank 0 the new rank 0 listens
   there if the address is one of its host; else at team->places[0], which newcomers must be told.

   Limits
     - A machine that vanishes without closing its connections is waited for.
     - If a network breaks into two parts, each may become a team. Let `least` be more than half of
       the workers where that matters.
     - A worker that comes when the list is closed is alone: `least` above 1 makes that an error. It
       closes its team, and joins.
     - A newcomer waits behind a number that it draws, one of GCOMP_SOCKETS_NEWCOMERS. */

/* Seconds until those on the list must have met. If one has died meanwhile, the others make a new
   list. */
#ifndef GCOMP_SOCKETS_AGAIN
#define GCOMP_SOCKETS_AGAIN 10.0
#endif

typedef struct gcomp_sockets_team {
    gcomp_sockets *net;  /* the group of now; NULL after a gcomp_sockets_team_regroup that failed */
    int rank, world;     /* of this worker now */
    int *was;            /* [world] the old rank of each worker; -1: a newcomer */
    int *gone;           /* [gone_count] old ranks that are here no more */
    int gone_count, joined;
    uint64_t generation; /* times that the team has regrouped */
    gcomp_sockets_desc desc;
    char host[56], port[8], secret[65]; /* the texts of desc */
    gcomp_sockets_place *places;        /* [world] where each worker listens */
    gcomp_sockets_meeting door;         /* listens; s NULL: closed */
} gcomp_sockets_team;

/* What the host tells each worker. The list `was` follows. */
typedef struct gcomp_sockets_roll {
    char magic[8];
    uint64_t generation;
    uint32_t rank, world, old, zero;
    gcomp_sockets_place root;
} gcomp_sockets_roll;

/* The job of a generation: those of an older one are strangers. */
static inline uint64_t gcomp_sockets_team_job(const gcomp_sockets_team *t, uint64_t generation)
{
    return t->desc.job + generation * 0x9e3779b97f4a7c15u;
}

static inline void gcomp_sockets_door_close(gcomp_sockets_team *t)
{
    gcomp_sockets_close(t->door.s);
    free(t->door.places);
    free(t->door.guests);
    free(t->door.polls);
    memset(&t->door, 0, sizeof t->door);
}

/* A door that does not listen yet. Returns 0 or an errno value. */
static inline int gcomp_sockets_door_make(gcomp_sockets_team *t)
{
    gcomp_sockets_meeting *m = &t->door;
    int error;
    gcomp_sockets_door_close(t);
    m->s = gcomp_sockets_alone(GCOMP_SOCKETS_NEWCOMERS + t->rank,
                               GCOMP_SOCKETS_NEWCOMERS + t->world, GCOMP_SOCKETS_SECONDS);
    if (!m->s) return ENOMEM;
    m->s->stop = t->desc.stop;
    m->s->stop_user = t->desc.stop_user;
    error = gcomp_sockets_prepare(m, &t->desc, GCOMP_SOCKETS_SECONDS);
    m->door = 1;
    m->job = t->desc.job;
    m->own.job = gcomp_sockets_team_job(t, t->generation);
    m->own.rank = (uint32_t)m->s->rank;
    m->own.world = (uint32_t)m->s->world;
    if (error) gcomp_sockets_door_close(t);
    return error;
}

/* A door that listens. Returns 0 or an errno value. */
static inline int gcomp_sockets_door_open(gcomp_sockets_team *t, const char *host, const char *port)
{
    int error = gcomp_sockets_door_make(t), fd;
    if (error) return error;
    fd = gcomp_sockets_listen(host, port);
    error = fd < 0 ? errno : 0;
    t->door.s->peers[t->door.s->world] = fd;
    if (error) gcomp_sockets_door_close(t);
    return error;
}

/* Opens this worker's door, and tells all where it is. known: where rank 0 is. Returns 0 or an errno
   value. */
static inline int gcomp_sockets_team_settle(gcomp_sockets_team *t, const char *known)
{
    gcomp_sockets_place mine;
    int error = EADDRNOTAVAIL;
    memset(&mine, 0, sizeof mine);
    if (t->rank == 0) {
        memcpy(mine.host, t->host, sizeof t->host);
        memcpy(mine.port, t->port, sizeof t->port);
        error = gcomp_sockets_door_open(t, mine.host, mine.port);
    }
    if (error) {
        if (t->rank) error = gcomp_sockets_here(t->net->peers[0], &mine);
        else error = 0, snprintf(mine.host, sizeof mine.host, "%s", known);
        if (!error) error = gcomp_sockets_door_open(t, mine.host, "0");
        if (!error) error = gcomp_sockets_here(t->door.s->peers[t->door.s->world], &mine);
    }
    if (error) gcomp_sockets_fail(t->net); /* the others do not wait */
    free(t->places);
    t->places = (gcomp_sockets_place *)calloc((size_t)t->world, sizeof *t->places);
    if (!t->places && !error) error = ENOMEM;
    if (!error && gcomp_sockets_allgather(t->net, &mine, t->places, sizeof mine)) error = ETIMEDOUT;
    return error;
}

/* Closes all that the team has. NULL is allowed. */
static inline void gcomp_sockets_team_close(gcomp_sockets_team *t)
{
    if (!t) return;
    gcomp_sockets_door_close(t);
    gcomp_sockets_close(t->net);
    free(t->was);
    free(t->gone);
    free(t->places);
    memset(t->secret, 0, sizeof t->secret);
    free(t);
}

/* A team with the texts of desc, and no group. NULL with *error. */
static inline gcomp_sockets_team *gcomp_sockets_team_make(const gcomp_sockets_desc *desc, int *error)
{
    const char *host = desc->host ? desc->host : "127.0.0.1";
    const char *port = desc->port ? desc->port : "7077";
    gcomp_sockets_team *t = (gcomp_sockets_team *)calloc(1, sizeof *t);
    *error = ENOMEM;
    if (!t) return NULL;
    *error = EINVAL;
    if (strlen(host) < sizeof t->host && strlen(port) < sizeof t->port &&
        (!desc->secret || strlen(desc->secret) < sizeof t->secret)) {
        *error = 0;
        t->desc = *desc;
        memcpy(t->host, host, strlen(host));
        memcpy(t->port, port, strlen(port));
        if (desc->secret) memcpy(t->secret, desc->secret, strlen(desc->secret));
        t->desc.host = t->host;
        t->desc.port = t->port;
        t->desc.secret = t->secret;
        return t;
    }
    free(t);
    return NULL;
}

/* gcomp_sockets_start for a team. Returns as that does; on error *team is NULL. */
static inline int gcomp_sockets_team_start(gcomp_sockets_team **team,
                                           const gcomp_sockets_desc *desc)
{
    int error;
    gcomp_sockets_team *t = gcomp_sockets_team_make(desc, &error);
    *team = NULL;
    if (!t) return error;
    error = gcomp_sockets_start(&t->net, &t->desc);
    t->rank = desc->rank;
    t->world = desc->world;
    if (!error) {
        t->was = (int *)malloc((size_t)t->world * sizeof *t->was);
        t->gone = (int *)malloc((size_t)t->world * sizeof *t->gone);
        for (int w = 0; t->was && w < t->world; w++) t->was[w] = w;
        error = t->was && t->gone ? gcomp_sockets_team_settle(t, t->host) : ENOMEM;
    }
    if (error) gcomp_sockets_team_close(t);
    else *team = t;
    return error;
}

/* Takes from the host what it tells, over a connection that it has welcomed. Returns 0; ECONNRESET:
   the host is gone; or another errno value. */
static inline int gcomp_sockets_roll_take(gcomp_sockets_team *t, int fd, gcomp_sockets_roll *roll,
                                          int **was)
{
    gcomp_sockets_meeting *m = &t->door;
    int error = gcomp_sockets_receive(m->s, fd, roll, sizeof *roll, m->then);
    if (error) return error;
    if (memcmp(roll->magic, m->own.magic, sizeof roll->magic) != 0 || !roll->world ||
        roll->world > 65535 || roll->rank >= roll->world || roll->old > 65535)
        return EPROTO;
    *was = (int *)calloc(roll->world, sizeof **was);
    if (!*was) return ENOMEM;
    roll->root.host[sizeof roll->root.host - 1] = 0;
    roll->root.port[sizeof roll->root.port - 1] = 0;
    return gcomp_sockets_receive(m->s, fd, *was, roll->world * sizeof **was, m->then);
}

/* Calls one place until its worker has told who is left. peer: the index of its connection at the
   door. Returns 0; ECONNREFUSED: nobody lives there; or another errno value. */
static inline int gcomp_sockets_roll_call(gcomp_sockets_team *t, const gcomp_sockets_place *place,
                                          int peer, gcomp_sockets_roll *roll, int **was)
{
    gcomp_sockets_meeting *m = &t->door;
    int *fd = &m->s->peers[peer], error = EADDRNOTAVAIL;
    struct addrinfo *found = gcomp_sockets_find(place->host, place->port, 0);
    for (struct addrinfo *a = found; a && error; a = a->ai_next) {
        double soon = gcomp_sockets_now() + GCOMP_SOCKETS_PATIENCE;
        *fd = gcomp_sockets_connect(m->s, a, soon < m->then ? soon : m->then);
        if (*fd < 0) error = gcomp_sockets_short_of(errno) ? EAGAIN : ECONNREFUSED;
        else error = gcomp_sockets_greet(m, peer);
        if (!error) {
            error = gcomp_sockets_roll_take(t, *fd, roll, was);
            if (error == ECONNRESET) error = EAGAIN;
        }
        if (error) {
            free(*was);
            *was = NULL;
        }
        gcomp_sockets_hang_up(m->s, peer);
    }
    if (found) freeaddrinfo(found);
    return m->s->stopped ? ECANCELED : error;
}

/* The same, again and again while the host lives. */
static inline int gcomp_sockets_roll_ask(gcomp_sockets_team *t, const gcomp_sockets_place *place,
                                         int peer, gcomp_sockets_roll *roll, int **was)
{
    for (;;) {
        int error = gcomp_sockets_roll_call(t, place, peer, roll, was);
        if (error == EAGAIN && gcomp_sockets_now() >= t->door.then) error = ETIMEDOUT;
        if (error != EAGAIN) return error;
        gcomp_sockets_poll(t->door.s, NULL, 0, gcomp_sockets_now() + 0.02);
    }
}

/* Workers of higher rank that are neither here nor known to be dead. probes[w]: a connection to
   worker w, which ends when that worker dies. -1: none yet; -2: it is dead. */
static inline int gcomp_sockets_roll_missing(gcomp_sockets_team *t, int *probes)
{
    gcomp_sockets *s = t->door.s;
    int missing = 0;
    for (int w = t->rank + 1; w < t->world; w++) {
        int *peer = &s->peers[GCOMP_SOCKETS_NEWCOMERS + w];
        if (*peer >= 0 && !gcomp_sockets_gone(*peer)) continue;
        gcomp_sockets_hang_up(s, GCOMP_SOCKETS_NEWCOMERS + w);
        if (probes[w] >= 0 && gcomp_sockets_gone(probes[w])) {
            gcomp_sockets_shut(probes[w]);
            probes[w] = -1;
        }
        if (probes[w] == -1) {
            struct addrinfo *found = gcomp_sockets_find(t->places[w].host, t->places[w].port,
                                                        AI_NUMERICHOST | AI_NUMERICSERV);
            if (found) {
                const double soon = gcomp_sockets_now() + GCOMP_SOCKETS_REFUSAL;
                probes[w] = gcomp_sockets_connect(s, found, soon);
                if (probes[w] < 0) probes[w] = errno == ECONNREFUSED ? -2 : -1;
                freeaddrinfo(found);
            }
        }
        missing += probes[w] != -2;
    }
    return missing;
}

/* The host: waits for all that live, and tells each of them. Returns 0 or an errno value. */
static inline int gcomp_sockets_roll_host(gcomp_sockets_team *t, int least,
                                          gcomp_sockets_roll *roll, int **was)
{
    gcomp_sockets_meeting *m = &t->door;
    const int all = m->s->world, most = GCOMP_SOCKETS_NEWCOMERS;
    int *probes = (int *)malloc((size_t)t->world * sizeof *probes), error = 0, full = 0;
    double rest = 0;
    *was = (int *)calloc((size_t)all, sizeof **was);
    for (int w = 0; probes && w < t->world; w++) probes[w] = -1;
    while (probes && *was && !error && !m->s->failed && gcomp_sockets_now() < m->then &&
           gcomp_sockets_roll_missing(t, probes))
        error = gcomp_sockets_turn(m, 0.1, &rest, &full);
    for (int w = 0; probes && w < t->world; w++)
        if (probes[w] >= 0) gcomp_sockets_shut(probes[w]);
    free(probes);
    if (!probes || !*was) return ENOMEM;
    if (m->s->stopped) return ECANCELED;
    memcpy(roll->magic, m->own.magic, sizeof roll->magic);
    roll->generation = t->generation + 1;
    roll->old = (uint32_t)t->world;
    roll->root = t->places[t->rank];
    for (int i = 0; i < all && !error; i++) { /* those who stay, then newcomers */
        const int w = (i + most) % all;
        if (w != m->s->rank && (m->s->peers[w] < 0 || gcomp_sockets_gone(m->s->peers[w])))
            gcomp_sockets_hang_up(m->s, w);
        else (*was)[roll->world++] = w < most ? -1 : w - most;
    }
    if (!error && roll->world < (uint32_t)least) error = ETIMEDOUT;
    for (int i = 0, rank = 0; i < all && !error; i++) {
        const int w = (i + most) % all;
        gcomp_sockets_roll mine = *roll;
        if (w != m->s->rank && m->s->peers[w] < 0) continue;
        mine.rank = (uint32_t)rank++;
        if (w == m->s->rank) continue; /* the lowest that stays: rank 0 */
        /* One that has died meanwhile is missed at the meeting. */
        if (!gcomp_sockets_send(m->s, m->s->peers[w], &mine, sizeof mine, m->then + 1))
            gcomp_sockets_send(m->s, m->s->peers[w], *was, roll->world * sizeof **was, m->then + 1);
    }
    return error;
}

/* Meets those on the list, and takes over what the host has told. Returns 0 or an errno value. On
   error the team is as before, but for its door and group, which are closed. */
static inline int gcomp_sockets_team_meet(gcomp_sockets_team *t, const gcomp_sockets_roll *roll,
                                          int *was)
{
    gcomp_sockets_team next = *t;
    int *gone = (int *)malloc((roll->old + 1) * sizeof *gone), error = gone ? 0 : ENOMEM;
    gcomp_sockets_desc desc = t->desc;
    gcomp_sockets_door_close(t); /* rank 0 listens again at the same place */
    memset(&next.door, 0, sizeof next.door);
    next.places = NULL;
    next.rank = (int)roll->rank;
    next.world = (int)roll->world;
    next.generation = roll->generation;
    desc.rank = next.rank;
    desc.world = next.world;
    desc.host = roll->root.host;
    desc.port = roll->root.port;
    desc.job = gcomp_sockets_team_job(t, roll->generation);
    desc.rendezvous = GCOMP_SOCKETS_AGAIN;
    if (!error) error = gcomp_sockets_start(&next.net, &desc);
    if (!error) error = gcomp_sockets_team_settle(&next, roll->root.host);
    if (error) {
        gcomp_sockets_close(next.net);
        gcomp_sockets_door_close(&next);
        free(next.places);
        free(gone);
        return error;
    }
    next.was = was;
    next.gone = gone;
    next.gone_count = next.joined = 0;
    for (int w = 0; w < (int)roll->old; w++) {
        int here = 0;
        for (int k = 0; k < next.world; k++) here |= was[k] == w;
        if (!here) gone[next.gone_count++] = w;
    }
    for (int k = 0; k < next.world; k++) next.joined += was[k] < 0;
    free(t->was);
    free(t->gone);
    free(t->places);
    *t = next;
    t->desc.host = t->host;
    t->desc.port = t->port;
    t->desc.secret = t->secret;
    return 0;
}

/* Finds out who is left, and connects those with each other and with the newcomers that wait. All
   that live call it: after a failure, or because gcomp_sockets_team_asks said so. Closes the group
   of before, so that the others fail too. Then rank, world, net, was and gone are new ones.
     seconds  the host waits so long for workers that live, and others twice as long for a host
     least    workers that must be there, at least 1
   Returns 0 or an errno value; net is NULL then, and the call may be repeated.
     EINVAL      seconds or least is out of range
     ETIMEDOUT   fewer than `least` have come
     ECONNRESET  the others have regrouped without this worker
     ECANCELED   desc.stop said so
     else as gcomp_sockets_start */
static inline int gcomp_sockets_team_regroup(gcomp_sockets_team *t, double seconds, int least)
{
    const double until = gcomp_sockets_now() + seconds;
    int error;
    if (!(seconds > 0 && seconds <= 1e6) || least < 1) return EINVAL;
    if (t->net) gcomp_sockets_fail(t->net);
    gcomp_sockets_close(t->net);
    t->net = NULL;
    do {
        gcomp_sockets_roll roll;
        int *was = NULL;
        memset(&roll, 0, sizeof roll);
        error = t->door.s ? 0
                          : gcomp_sockets_door_open(t, t->places[t->rank].host,
                                                    t->places[t->rank].port);
        if (error) return error;
        t->door.then = gcomp_sockets_now() + 2 * seconds;
        error = ECONNREFUSED;
        for (int w = 0; w < t->rank && error == ECONNREFUSED; w++)
            error = gcomp_sockets_roll_ask(t, &t->places[w], GCOMP_SOCKETS_NEWCOMERS + w, &roll,
                                           &was);
        if (error == ECONNREFUSED) {
            t->door.then = gcomp_sockets_now() + seconds;
            error = gcomp_sockets_roll_host(t, least, &roll, &was);
        }
        if (error) {
            free(was);
            gcomp_sockets_door_close(t);
            return error;
        }
        error = gcomp_sockets_team_meet(t, &roll, was);
        if (error) free(was);
    } while (error == ETIMEDOUT && gcomp_sockets_now() < until);
    return error;
}

/* Joins a team: calls its rank 0 at the address of desc, and waits until the team regroups, at most
   desc.rendezvous seconds. rank and world of desc are not read; job and secret are those of the
   team. was tells who has been there before. Returns as gcomp_sockets_start; on error *team is
   NULL. */
static inline int gcomp_sockets_team_join(gcomp_sockets_team **team, const gcomp_sockets_desc *desc)
{
    const double until = gcomp_sockets_now() +
        (desc->rendezvous > 0 ? desc->rendezvous : GCOMP_SOCKETS_SECONDS);
    int error;
    gcomp_sockets_team *t = gcomp_sockets_team_make(desc, &error);
    *team = NULL;
    if (!t) return error;
    do {
        unsigned char number[16];
        gcomp_sockets_roll roll;
        gcomp_sockets_place root;
        int *was = NULL;
        memset(&roll, 0, sizeof roll);
        memset(&root, 0, sizeof root);
        memcpy(root.host, t->host, sizeof t->host);
        memcpy(root.port, t->port, sizeof t->port);
        t->world = 1;
        error = gcomp_sockets_door_make(t);
        if (error) break;
        gcomp_sockets_draw(&t->door, number);
        t->door.own.job = t->desc.job;
        t->door.own.world = 0; /* a newcomer, behind a number */
        t->door.own.rank = number[0] % GCOMP_SOCKETS_NEWCOMERS;
        t->door.then = until;
        error = gcomp_sockets_roll_call(t, &root, 0, &roll, &was);
        if (!error) error = gcomp_sockets_team_meet(t, &roll, was);
        if (!error) break;
        free(was);
        if (error == ECONNREFUSED || error == EBUSY || error == ETIMEDOUT) error = EAGAIN;
        if (error == EAGAIN) gcomp_sockets_poll(t->door.s, NULL, 0, gcomp_sockets_now() + 0.05);
    } while (error == EAGAIN && gcomp_sockets_now() < until);
    if (error == EAGAIN) error = ETIMEDOUT;
    if (error) gcomp_sockets_team_close(t);
    else *team = t;
    return error;
}

/* A collective, between two steps. *waiting <- newcomers that wait, the same on all: if it is not
   0, all call gcomp_sockets_team_regroup. Rank 0 looks at its door meanwhile. Returns as the other
   collectives. */
static inline int gcomp_sockets_team_asks(gcomp_sockets_team *t, int *waiting)
{
    gcomp_sockets_meeting *m = &t->door;
    int32_t count = 0;
    int error;
    *waiting = 0;
    if (!t->net) return GCOMP_SOCKETS_FAILED;
    for (int turns = 0; t->rank == 0 && turns < GCOMP_SOCKETS_GUESTS; turns++) {
        gcomp_sockets *s = m->s;
        struct pollfd p;
        double rest = 0;
        int guests = 0, full = 0;
        gcomp_sockets_poll_for(&p, s->peers[s->world], GCOMP_SOCKETS_IN);
        for (int i = 0; i < m->most; i++) guests += s->peers[s->world + 1 + i] >= 0;
        if (gcomp_sockets_poll_once(&p, 1, 0) != 1 && (!guests || turns)) break;
        m->then = gcomp_sockets_now() + GCOMP_SOCKETS_PATIENCE;
        if (gcomp_sockets_turn(m, 0, &rest, &full)) break;
    }
    for (int i = 0; t->rank == 0 && i < GCOMP_SOCKETS_NEWCOMERS; i++) {
        if (m->s->peers[i] >= 0 && gcomp_sockets_gone(m->s->peers[i]))
            gcomp_sockets_hang_up(m->s, i);
        count += m->s->peers[i] >= 0;
    }
    error = gcomp_sockets_allreduce(t->net, &count, 1, GCOMP_I32);
    if (!error) *waiting = (int)count;
    return error;
}

/* A collective, after a team has met and gc has the new comm: if any worker is new, gcomp_save of
   rank 0 goes to all, and those that are new take it with gcomp_join. is_new: 1 on a worker from
   its gcomp_sockets_team_join until this call has succeeded; its gc was just opened, with the
   tensors of the others. Then step number, warm starts and momenta are those of the others; weights
   and the state of the optimizer are not, see gcomp_recover.h. Returns 0, or another number: a
   worker was lost or has no memory, or the newcomer's tensors are others (gcomp_error). Then the
   group has ended on all, and the team may regroup. */
static inline int gcomp_sockets_team_bring(gcomp_sockets_team *t, gcomp *gc, int is_new)
{
    int32_t newcomers = is_new != 0;
    uint64_t bytes = 0;
    size_t length = 0;
    void *save = NULL;
    int error;
    if (!t->net) return GCOMP_SOCKETS_FAILED;
    error = gcomp_sockets_allreduce(t->net, &newcomers, 1, GCOMP_I32);
    if (error || !newcomers) return error;
    error = t->rank == 0 && gcomp_save(gc, NULL, 0, &length) != GCOMP_OK;
    bytes = length;
    if (!error) error = gcomp_sockets_broadcast(t->net, &bytes, sizeof bytes, 0);
    if (!error && bytes == (size_t)bytes) save = malloc((size_t)bytes + 1);
    if (!error && !save) error = ENOMEM;
    if (!error && t->rank == 0) error = gcomp_save(gc, save, (size_t)bytes, &length) != GCOMP_OK;
    if (!error) error = gcomp_sockets_broadcast(t->net, save, (size_t)bytes, 0);
    if (!error && is_new) error = gcomp_join(gc, save, (size_t)bytes) != GCOMP_OK;
    free(save);
    if (error) gcomp_sockets_fail(t->net);
    return error;
}

/* ---------------- for other languages

   With GCOMP_SOCKETS_SHARED, in one file of a shared object, these functions are the transport for
   programs that call C from outside. A group is a pointer. One thread at a time may use it; a
   second one gets GCOMP_SOCKETS_BUSY. What a program still does with a group that it has closed is
   GCOMP_SOCKETS_CLOSED, until it frees the group. */

#ifdef GCOMP_SOCKETS_SHARED
#define GCOMP_SOCKETS_CLOSED 4
#define GCOMP_SOCKETS_BUSY 5

GCOMP_API int gcomp_sockets_shared_open(void **group, int elastic, int rank, int world,
                                        const char *host, const char *port, const char *secret,
                                        double rendezvous, double silence, gcomp_sockets_stop stop);
GCOMP_API int gcomp_sockets_shared_carry(void *group, const gcomp_request *request);
GCOMP_API int gcomp_sockets_shared_comm(void *group, gcomp_comm *comm);
GCOMP_API int gcomp_sockets_shared_close(void *group);
GCOMP_API void gcomp_sockets_shared_free(void *group);
GCOMP_API int gcomp_sockets_shared_asks(void *group, int *waiting);
GCOMP_API int gcomp_sockets_shared_regroup(void *group, double seconds, int least);
GCOMP_API int gcomp_sockets_shared_who(void *group, int count[4], int *was, int *gone);

typedef struct gcomp_sockets_shared {
    gcomp_sockets_team *team; /* has net; NULL: none, or closed */
    gcomp_sockets *net;  /* NULL: closed */
    gcomp_sockets_mutex use; /* of the thread that uses net */
} gcomp_sockets_shared;

/* Closes what the group has. */
static void gcomp_sockets_shared_end(gcomp_sockets_shared *shared)
{
    if (shared->team) gcomp_sockets_team_close(shared->team);
    else gcomp_sockets_close(shared->net);
    shared->team = NULL;
    shared->net = NULL;
}

/* Closes and frees the group, which nothing uses any more. */
void gcomp_sockets_shared_free(void *group)
{
    gcomp_sockets_shared *shared = (gcomp_sockets_shared *)group;
    gcomp_sockets_shared_end(shared);
    gcomp_sockets_mutex_end(&shared->use);
    free(shared);
}

/* elastic 0: gcomp_sockets_start; 1: gcomp_sockets_team_start, or with world 0
   gcomp_sockets_team_join. Returns 0 or an errno value; on error *group is NULL. */
int gcomp_sockets_shared_open(void **group, int elastic, int rank, int world, const char *host,
                              const char *port, const char *secret, double rendezvous,
                              double silence, gcomp_sockets_stop stop)
{
    gcomp_sockets_shared *made = (gcomp_sockets_shared *)calloc(1, sizeof *made);
    gcomp_sockets_desc desc;
    int error;
    *group = NULL;
    if (!made) return ENOMEM;
    memset(&desc, 0, sizeof desc);
    desc.rank = rank;
    desc.world = world;
    desc.host = host;
    desc.port = port;
    desc.secret = secret;
    desc.rendezvous = rendezvous;
    desc.silence = silence;
    desc.stop = stop;
    error = gcomp_sockets_mutex_begin(&made->use);
    if (error) {
        free(made);
        return error;
    }
    if (!elastic) error = gcomp_sockets_start(&made->net, &desc);
    else if (world) error = gcomp_sockets_team_start(&made->team, &desc);
    else error = gcomp_sockets_team_join(&made->team, &desc);
    if (made->team) made->net = made->team->net;
    if (error) gcomp_sockets_shared_free(made);
    else *group = made;
    return error;
}

/* The group, taken for this thread; NULL: it cannot be, and *status says why. */
static gcomp_sockets *gcomp_sockets_shared_take(void *group, int *status)
{
    gcomp_sockets_shared *shared = (gcomp_sockets_shared *)group;
    *status = GCOMP_SOCKETS_BUSY;
    if (!gcomp_sockets_mutex_try(&shared->use)) return NULL;
    if (shared->net) return shared->net;
    *status = GCOMP_SOCKETS_CLOSED;
    gcomp_sockets_mutex_unlock(&shared->use);
    return NULL;
}

/* Lets other threads take the group. Returns status. */
static int gcomp_sockets_shared_leave(void *group, int status)
{
    gcomp_sockets_mutex_unlock(&((gcomp_sockets_shared *)group)->use);
    return status;
}

static int gcomp_sockets_shared_sum(void *group, void *data, size_t count, gcomp_dtype dtype)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group, gcomp_sockets_allreduce(s, data, count, dtype));
}

static int gcomp_sockets_shared_max(void *group, float *data, size_t count)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group, gcomp_sockets_allreduce_max(s, data, count));
}

static int gcomp_sockets_shared_gather(void *group, const void *mine, void *all, size_t bytes)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group, gcomp_sockets_allgather(s, mine, all, bytes));
}

static int gcomp_sockets_shared_gatherv(void *group, const void *mine, void *all,
                                        const size_t *bytes, size_t stride)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group, gcomp_sockets_allgatherv(s, mine, all, bytes, stride));
}

static int gcomp_sockets_shared_swap(void *group, const void *send, const size_t *sent, void *recv,
                                     const size_t *awaited)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group,
                                      gcomp_sockets_alltoallv(s, send, sent, recv, awaited));
}

/* Carries out one request in the memory that it names. Returns 0, GCOMP_SOCKETS_MISMATCH, _FAILED,
   _CLOSED or _BUSY. */
int gcomp_sockets_shared_carry(void *group, const gcomp_request *r)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    return gcomp_sockets_shared_leave(group, gcomp_sockets_carry(s, r));
}

/* The transport, for gcomp_desc.comm. Valid until the group is freed. Returns 0,
   GCOMP_SOCKETS_CLOSED or _BUSY. */
int gcomp_sockets_shared_comm(void *group, gcomp_comm *comm)
{
    int status;
    gcomp_sockets *s = gcomp_sockets_shared_take(group, &status);
    if (!s) return status;
    *comm = gcomp_sockets_comm(s);
    comm->user = group;
    comm->allreduce = gcomp_sockets_shared_sum;
    comm->allgather = gcomp_sockets_shared_gather;
    comm->allgatherv = gcomp_sockets_shared_gatherv;
    comm->allreduce_max = gcomp_sockets_shared_max;
    comm->alltoallv = gcomp_sockets_shared_swap;
    return gcomp_sockets_shared_leave(group, 0);
}

/* Closes all connections; the others fail. Returns 0 or GCOMP_SOCKETS_BUSY. */
int gcomp_sockets_shared_close(void *group)
{
    int status;
    if (!gcomp_sockets_shared_take(group, &status))
        return status == GCOMP_SOCKETS_CLOSED ? 0 : status; /* a team without a group is freed */
    gcomp_sockets_shared_end((gcomp_sockets_shared *)group);
    return gcomp_sockets_shared_leave(group, 0);
}

/* gcomp_sockets_team_asks. */
int gcomp_sockets_shared_asks(void *group, int *waiting)
{
    int status;
    if (!gcomp_sockets_shared_take(group, &status)) return status;
    status = GCOMP_SOCKETS_MISMATCH;
    if (((gcomp_sockets_shared *)group)->team)
        status = gcomp_sockets_team_asks(((gcomp_sockets_shared *)group)->team, waiting);
    return gcomp_sockets_shared_leave(group, status);
}

/* gcomp_sockets_team_regroup. Returns 0 or an errno value: EBUSY if another thread uses the group,
   EINVAL if it is no team, or closed. After another error the group has no connections, and the call
   may be repeated. */
int gcomp_sockets_shared_regroup(void *group, double seconds, int least)
{
    gcomp_sockets_shared *shared = (gcomp_sockets_shared *)group;
    int error = EINVAL;
    if (!gcomp_sockets_mutex_try(&shared->use)) return EBUSY;
    if (shared->team) {
        error = gcomp_sockets_team_regroup(shared->team, seconds, least);
        shared->net = shared->team->net;
    }
    return gcomp_sockets_shared_leave(group, error);
}

/* Who is left: count gets rank, world, workers that are gone, newcomers; was[world] and gone the
   lists, if they are not NULL. Returns 0, GCOMP_SOCKETS_CLOSED or _BUSY, or _MISMATCH: no team. */
int gcomp_sockets_shared_who(void *group, int count[4], int *was, int *gone)
{
    const gcomp_sockets_team *t;
    int status;
    if (!gcomp_sockets_shared_take(group, &status)) return status;
    t = ((gcomp_sockets_shared *)group)->team;
    if (!t) return gcomp_sockets_shared_leave(group, GCOMP_SOCKETS_MISMATCH);
    count[0] = t->rank;
    count[1] = t->world;
    count[2] = t->gone_count;
    count[3] = t->joined;
    if (was) memcpy(was, t->was, (size_t)t->world * sizeof *was);
    if (gone && t->gone_count) memcpy(gone, t->gone, (size_t)t->gone_count * sizeof *gone);
    return gcomp_sockets_shared_leave(group, 0);
}
#endif /* GCOMP_SOCKETS_SHARED */

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

#endif /* GCOMP_SOCKETS_H */
