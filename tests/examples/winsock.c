/* Proofs of gcomp_sockets.h where the system is Windows, or wine: workers are processes of
   this program that reach each other by TCP. They exchange, with the bits of threads; they send
   messages; who dies, gives up or is silent is seen by all others; a team goes on and takes newcomers.
   The protocol itself is tested by test_sockets.c and test_elastic.c. Prints TAP. */

#include "gcomp_sockets.h"
#include "gcomp_try.h"
#include "halves.h"
#include "test.h"
#include "training.h"

enum { MOST = 8 };

/* What a worker, a process, tells the test. */
typedef struct told {
    int opened; /* what start or join returned; -1: not reached */
    int status; /* of the body */
    int wrong;  /* failed checks */
    int reached;
    int lost;
    double took;
    uint64_t digest;
    char why[80];
    int rank, world, joined, gone_count; /* of a team */
    float sum;
} told;

/* What all processes see. */
typedef struct shared {
    told tell[MOST];
    gcomp_sockets_desc asked; /* but for rank, world and the texts */
    char port[8], secret[MOST][16];
    int number, overlaps, victim; /* the number of a codec, or of a way to leave */
    volatile int wanted; /* newcomers; or: worker 0 is done */
} shared;

static shared *all;
static char name[40], program[MAX_PATH]; /* of the shared memory; of this file */

/* A port where nobody listens. */
static void choose_port(void)
{
    memset(all, 0, sizeof *all);
    if (gcomp_sockets_free_port(all->port) != 0) exit(1);
    all->victim = -1;
    all->asked.job = 7;
    all->asked.rendezvous = all->asked.silence = 60;
    for (int w = 0; w < MOST; w++) strcpy(all->secret[w], "a secret");
}

static gcomp_sockets_desc desc_of(int rank, int world)
{
    gcomp_sockets_desc desc = all->asked;
    desc.rank = rank;
    desc.world = world;
    desc.port = all->port;
    desc.secret = all->secret[rank];
    return desc;
}

/* The process is gone at once, as one that has crashed. */
static void die(void) { TerminateProcess(GetCurrentProcess(), 9); }

/* ---------------- bodies of workers */

static int body_collectives(gcomp_sockets *s, told *t)
{
    const gcomp_comm comm = gcomp_sockets_comm(s);
    int status = 0;
    if (gcomp_try(&comm, t->why, sizeof t->why)) t->wrong++;
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16 && !status; dtype++)
        t->wrong += halves_are_wrong(&comm, 1999, (gcomp_dtype)dtype, &status) != 0;
    for (int root = 0; root < s->world && !status; root++) {
        int data = s->rank;
        status = gcomp_sockets_broadcast(s, &data, sizeof data, root);
        t->wrong += data != root;
    }
    for (int w = 0; w < s->world; w++) {
        DWORD flags = 0;
        if (w == s->rank) continue;
        t->wrong += !GetHandleInformation((HANDLE)(SOCKET)s->peers[w], &flags) || flags & HANDLE_FLAG_INHERIT;
    }
    return status ? status : gcomp_sockets_barrier(s);
}

/* More than the buffers of the system hold, so that all must send and receive at once. */
static int body_large(gcomp_sockets *s, told *t)
{
    enum { BYTES = 3000000 };
    static unsigned char mine[BYTES], gathered[3 * BYTES];
    memset(mine, s->rank + 1, sizeof mine);
    if (gcomp_sockets_allgather(s, mine, gathered, sizeof mine)) return 1;
    for (size_t i = 0; i < sizeof mine * (size_t)s->world; i += 997) t->wrong += gathered[i] != i / sizeof mine + 1;
    return 0;
}

/* All send to all, and then receive. */
static int body_messages(gcomp_sockets *s, told *t)
{
    static const size_t sizes[] = {0, 15, 1500000};
    static unsigned char data[1500000];
    size_t bytes = 9;
    const int next = (s->rank + 1) % s->world;
    t->wrong += gcomp_sockets_receive_from(s, next, data, sizeof data, &bytes, 0) != GCOMP_SOCKETS_NOTHING;
    if (gcomp_sockets_barrier(s)) return 1;
    for (size_t k = 0; k < 3; k++)
        for (int to = 0; to < s->world; to++) {
            memset(data, s->rank * 16 + to * 4 + (int)k, sizes[k]);
            if (to != s->rank) t->wrong += gcomp_sockets_send_to(s, to, data, sizes[k]) != 0;
        }
    for (int by = 0; by < s->world; by++)
        for (size_t k = 0; k < 3 && by != s->rank; k++) {
            t->wrong += gcomp_sockets_receive_from(s, by, data, sizes[k], &bytes, 60) != 0 || bytes != sizes[k];
            for (size_t i = 0; i < bytes; i++) t->wrong += data[i] != by * 16 + s->rank * 4 + (int)k;
        }
    t->took = gcomp_sockets_now();
    t->wrong += gcomp_sockets_receive_from(s, next, data, 1, &bytes, 0.1) != GCOMP_SOCKETS_NOTHING;
    t->took = gcomp_sockets_now() - t->took;
    return gcomp_sockets_barrier(s);
}

static int body_train(gcomp_sockets *s, told *t)
{
    gcomp_comm comm;
    codec = trained[all->number];
    if (all->overlaps) t->wrong += gcomp_sockets_overlap(s) != 0;
    comm = gcomp_sockets_comm(s);
    t->wrong += (comm.start != NULL) != all->overlaps;
    return train(&comm, &t->digest);
}

static int nothing(void *user, int round) { return (void)user, (void)round, 0; }

static int body_requests(gcomp_sockets *s, told *t)
{
    gcomp_comm comm;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    return eight_requests(&comm, 0, GCOMP_SOCKETS_MISMATCH, nothing, &t->wrong) || gcomp_sockets_barrier(s);
}

static int stop_when_asked(void *user) { return ++*(int *)user > 2; }

/* Worker 0 waits for a request that worker 1 never starts, until it is told to stop. */
static int body_stops(gcomp_sockets *s, told *t)
{
    static float data[9];
    gcomp_request r = sum_request(0, data, 9);
    gcomp_comm comm;
    int asks = 0;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    if (s->rank) {
        for (int i = 0; i < 6000 && !all->wanted; i++) Sleep(10);
        gcomp_sockets_barrier(s); /* may find what worker 0 has brought to its request */
        return gcomp_sockets_barrier(s);
    }
    s->stop = stop_when_asked;
    s->stop_user = &asks;
    if (comm.start(s, &r)) return 1;
    t->wrong += comm.wait(s, 0) != GCOMP_SOCKETS_FAILED || asks != 3 || !s->stopped;
    all->wanted = 1;
    return GCOMP_SOCKETS_FAILED;
}

enum { DIES, GIVES_UP, IS_SILENT, WAYS };

/* The others see what becomes of the victim in the midst of a sum. */
static int body_loses(gcomp_sockets *s, told *t)
{
    static float data[50000];
    int status = gcomp_sockets_barrier(s);
    const int way = all->number;
    if (status) return status;
    if (s->rank == all->victim) {
        if (way != IS_SILENT) gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLREDUCE, GCOMP_F32, 50000, 0);
        if (way == DIES) die();
        if (way == GIVES_UP) gcomp_sockets_fail(s);
        else Sleep(2500);
        return 0;
    }
    t->took = gcomp_sockets_now();
    status = gcomp_sockets_allreduce(s, data, 50000, GCOMP_F32);
    t->took = gcomp_sockets_now() - t->took;
    t->lost = gcomp_sockets_lost(s);
    gcomp_sockets_why(s, t->why, sizeof t->why);
    t->wrong += status != GCOMP_SOCKETS_FAILED || gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED;
    return 0;
}

static int body_barrier(gcomp_sockets *s, told *t)
{
    (void)t;
    return gcomp_sockets_barrier(s);
}

/* ---------------- bodies of workers of a team */

static void note(gcomp_sockets_team *team, told *t)
{
    t->rank = team->rank;
    t->world = team->world;
    t->joined = team->joined;
    t->gone_count = team->gone_count;
    t->sum = (float)(1 << team->rank);
    if (gcomp_sockets_allreduce(team->net, &t->sum, 1, GCOMP_F32)) t->sum = -1;
}

static int body_regroups(gcomp_sockets_team *team, told *t)
{
    float data[10000] = {0};
    int error, waiting = 0;
    if (all->victim == team->rank) {
        gcomp_sockets_meet(team->net, GCOMP_SOCKETS_ALLREDUCE, GCOMP_F32, 10000, 0);
        die();
    }
    if (all->victim >= 0) {
        t->wrong += gcomp_sockets_allreduce(team->net, data, 10000, GCOMP_F32) != GCOMP_SOCKETS_FAILED;
        error = gcomp_sockets_team_regroup(team, 60, 1);
        if (error) return error;
        note(team, t);
    }
    t->reached = 1;
    while (all->wanted && waiting < all->wanted)
        if (gcomp_sockets_team_asks(team, &waiting)) return -1;
    error = all->wanted ? gcomp_sockets_team_regroup(team, 60, 1) : 0;
    if (!error) note(team, t);
    return error;
}

static int body_joins(gcomp_sockets_team *team, told *t)
{
    note(team, t);
    return 0;
}

/* ---------------- processes */

typedef int (*body)(gcomp_sockets *, told *);
typedef int (*team_body)(gcomp_sockets_team *, told *);
static const body bodies[] = {body_collectives, body_large, body_messages, body_train, body_requests, body_stops, body_loses, body_barrier};
static const team_body team_bodies[] = {body_regroups, body_joins};
enum { BODIES = sizeof bodies / sizeof *bodies };

static int number_of_body(body does)
{
    int n = 0;
    while (bodies[n] != does) n++;
    return n;
}

/* argv of a worker: memory, rank, world, number of the body. */
static int be_a_worker(char **argv)
{
    const int rank = atoi(argv[2]), world = atoi(argv[3]), number = atoi(argv[4]);
    const gcomp_sockets_desc desc = desc_of(rank, world);
    told *t = &all->tell[rank];
    if (number < BODIES) {
        gcomp_sockets *s;
        t->opened = gcomp_sockets_start(&s, &desc);
        if (!t->opened) t->status = bodies[number](s, t);
        gcomp_sockets_close(s);
    } else {
        gcomp_sockets_team *team;
        t->opened = world ? gcomp_sockets_team_start(&team, &desc) : gcomp_sockets_team_join(&team, &desc);
        if (!t->opened) t->status = team_bodies[number - BODIES](team, t);
        gcomp_sockets_team_close(team);
    }
    return 0;
}

static HANDLE begin(int rank, int world, int number)
{
    char command[MAX_PATH + 100];
    STARTUPINFOA how;
    PROCESS_INFORMATION made;
    memset(&how, 0, sizeof how);
    how.cb = sizeof how;
    all->tell[rank].opened = -1;
    snprintf(command, sizeof command, "\"%s\" %s %d %d %d", program, name, rank, world, number);
    if (!CreateProcessA(NULL, command, NULL, NULL, TRUE, 0, NULL, NULL, &how, &made)) {
        printf("# no process: %lu\n", GetLastError());
        exit(1);
    }
    CloseHandle(made.hThread);
    return made.hProcess;
}

/* Waits until a process has ended, and returns its exit status. */
static DWORD end(HANDLE process)
{
    DWORD status = 1;
    if (WaitForSingleObject(process, 120000) != WAIT_OBJECT_0) TerminateProcess(process, 1);
    GetExitCodeProcess(process, &status);
    CloseHandle(process);
    return status;
}

/* Has worker w done its work, with this status? Prints why not. */
static int is_well(int w, HANDLE process, int status)
{
    const told *t = &all->tell[w];
    const DWORD ended = end(process);
    if (ended == 0 && t->opened == 0 && t->status == status && t->wrong == 0) return 1;
    if (w != all->victim)
        printf("# worker %d: exit %lu, opened %d, status %d, wrong %d: %s\n", w, ended, t->opened, t->status, t->wrong, t->why);
    return w == all->victim;
}

/* All workers as asked. Returns 1 if all but the victim did well. */
static int run(int world, int number)
{
    HANDLE processes[MOST];
    int good = 1;
    for (int w = 0; w < world; w++) processes[w] = begin(w, world, number);
    for (int w = 0; w < world; w++) good &= is_well(w, processes[w], 0);
    return good;
}

/* ---------------- the tests */

static void test_collectives_are_right(void)
{
    for (int world = 1; world <= 4; world += world == 1 ? 2 : 1) {
        choose_port();
        CHECK(run(world, number_of_body(body_collectives)));
    }
    choose_port();
    CHECK(run(3, number_of_body(body_large)));
}

static void test_messages_go_from_one_to_one(void)
{
    choose_port();
    CHECK(run(3, number_of_body(body_messages)));
    for (int w = 0; w < 3; w++) CHECK(all->tell[w].took > 0.09);
}

static void test_training_ends_with_the_bits_of_threads(void)
{
    for (int c = 0; c < (int)TRAINED; c++) {
        uint64_t digest;
        codec = trained[c];
        digest = train_by_threads(3);
        choose_port();
        all->number = c;
        all->overlaps = c % 2;
        CHECK(digest && run(3, number_of_body(body_train)));
        for (int w = 0; w < 3; w++) CHECK(all->tell[w].digest == digest);
    }
}

static void test_requests_are_carried_out_by_a_thread(void)
{
    choose_port();
    CHECK(run(3, number_of_body(body_requests)));
}

static void test_what_becomes_of_a_worker_is_seen_by_all(void)
{
    for (int how = 0; how < WAYS; how++)
        for (int victim = 0; victim < 2; victim++) {
            choose_port();
            all->victim = victim;
            all->number = how;
            if (how == IS_SILENT) all->asked.silence = 1;
            CHECK(run(3, number_of_body(body_loses)));
            for (int w = 0; w < 3; w++) {
                const told *t = &all->tell[w];
                if (w == victim) continue;
                CHECK(t->lost == victim && (how == IS_SILENT ? t->took > 0.9 : t->took < 30));
                CHECK(how != GIVES_UP || strstr(t->why, "gave up") || strstr(t->why, "says another"));
                if (t->lost != victim) printf("# way %d, victim %d, worker %d: lost %d, %s\n", how, victim, w, t->lost, t->why);
            }
        }
}

static void test_a_call_that_waits_asks_if_it_shall_end(void)
{
    gcomp_sockets *s;
    gcomp_sockets_desc desc;
    HANDLE two[2];
    int asks = 0;
    choose_port();
    desc = desc_of(0, 2);
    desc.stop = stop_when_asked;
    desc.stop_user = &asks;
    CHECK(gcomp_sockets_start(&s, &desc) == ECANCELED && !s && asks == 3);
    for (int w = 0; w < 2; w++) two[w] = begin(w, 2, number_of_body(body_stops));
    for (int w = 0; w < 2; w++) CHECK(is_well(w, two[w], GCOMP_SOCKETS_FAILED));
}

static void test_who_does_not_know_the_secret_is_sent_away(void)
{
    HANDLE workers[3];
    choose_port();
    strcpy(all->secret[2], "another secret");
    workers[0] = begin(0, 2, number_of_body(body_barrier));
    workers[2] = begin(2, 3, number_of_body(body_barrier));
    CHECK(end(workers[2]) == 0 && all->tell[2].opened == EACCES);
    workers[1] = begin(1, 2, number_of_body(body_barrier));
    for (int w = 0; w < 2; w++) CHECK(is_well(w, workers[w], 0));
}

static void test_start_says_what_is_wrong(void)
{
    unsigned char one[16], two[16];
    gcomp_sockets *s;
    gcomp_sockets_desc desc;
    int listener;
    double from = gcomp_sockets_now();
    choose_port();
    desc = desc_of(0, 2);
    desc.rendezvous = 0.3;
    CHECK(gcomp_sockets_start(&s, &desc) == ETIMEDOUT && !s);
    desc.rank = 1; /* nobody listens */
    CHECK(gcomp_sockets_start(&s, &desc) == ETIMEDOUT && !s);
    CHECK(gcomp_sockets_now() - from < 20);
    desc.world = 0;
    CHECK(gcomp_sockets_start(&s, &desc) == EINVAL && !s);
    desc = desc_of(0, 2);
    listener = gcomp_sockets_listen("127.0.0.1", all->port); /* another one has the port, and keeps it */
    CHECK(listener >= 0 && gcomp_sockets_start(&s, &desc) == EADDRINUSE && !s);
    gcomp_sockets_shut(listener);
    desc.host = "192.0.2.1";
    CHECK(gcomp_sockets_start(&s, &desc) == EADDRNOTAVAIL && !s);
    CHECK(gcomp_sockets_errno_of(WSAEISCONN) == EIO && gcomp_sockets_errno_of(0) == 0);
    CHECK(gcomp_sockets_random(one, 16) == 0 && gcomp_sockets_random(two, 16) == 0 && memcmp(one, two, 16) != 0);
    CHECK(gcomp_sockets_error_of(listener) == EIO && gcomp_sockets_unblock(listener) < 0); /* it is closed */
}

static void test_eight_workers_meet(void)
{
    choose_port();
    CHECK(run(8, number_of_body(body_barrier)));
}

static void test_a_team_goes_on_without_the_dead(void)
{
    for (int victim = 0; victim < 3; victim++) {
        choose_port();
        all->victim = victim;
        CHECK(run(3, BODIES));
        for (int w = 0, rank = 0; w < 3; w++) {
            const told *t = &all->tell[w];
            if (w == victim) continue;
            CHECK(t->rank == rank++ && t->world == 2 && t->gone_count == 1 && t->joined == 0 && fabsf(t->sum - 3) < 0.5f);
        }
    }
}

static void test_newcomers_join_a_team(void)
{
    HANDLE workers[3];
    choose_port();
    all->wanted = 1;
    for (int w = 0; w < 2; w++) workers[w] = begin(w, 2, BODIES);
    workers[2] = begin(2, 0, BODIES + 1);
    for (int w = 0; w < 3; w++) {
        const told *t = &all->tell[w];
        CHECK(is_well(w, workers[w], 0));
        CHECK(t->rank == w && t->world == 3 && t->joined == 1 && fabsf(t->sum - 7) < 0.5f);
    }
}

int main(int argc, char **argv)
{
    HANDLE memory;
    snprintf(name, sizeof name, "gcomp_winsock_%lu", GetCurrentProcessId());
    if (argc > 1) snprintf(name, sizeof name, "%s", argv[1]);
    memory = CreateFileMappingA(INVALID_HANDLE_VALUE, NULL, PAGE_READWRITE, 0, sizeof(shared), name);
    all = memory ? (shared *)MapViewOfFile(memory, FILE_MAP_ALL_ACCESS, 0, 0, sizeof(shared)) : NULL;
    if (!all || !GetModuleFileNameA(NULL, program, sizeof program)) return 1;
    if (argc == 5) return be_a_worker(argv);
    if (gcomp_sockets_begin() || gcomp_sockets_begin()) return 1;
    RUN(test_collectives_are_right);
    RUN(test_messages_go_from_one_to_one);
    RUN(test_training_ends_with_the_bits_of_threads);
    RUN(test_requests_are_carried_out_by_a_thread);
    RUN(test_what_becomes_of_a_worker_is_seen_by_all);
    RUN(test_a_call_that_waits_asks_if_it_shall_end);
    RUN(test_who_does_not_know_the_secret_is_sent_away);
    RUN(test_start_says_what_is_wrong);
    RUN(test_eight_workers_meet);
    RUN(test_a_team_goes_on_without_the_dead);
    RUN(test_newcomers_join_a_team);
    return test_end();
}
