/* Proves of examples/adapters/gcomp_sockets.h: requests that are under way while the caller goes on, and their faults. */

#include "sockets.h"

static int way;

/* ---- requests that are under way while the caller computes */

/* A blocking collective, and a message behind the requests. */
static int beside(void *user, int round)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    const unsigned char word = (unsigned char)s->rank;
    if (round == 1) return gcomp_sockets_barrier(s);
    return round == 2 ? gcomp_sockets_send_to(s, (s->rank + 1) % s->world, &word, 1) : 0;
}

static int body_requests(gcomp_sockets *s, told *t)
{
    const int left = (s->rank + s->world - 1) % s->world;
    unsigned char word = 0;
    size_t bytes = 0;
    gcomp_comm comm;
    int status = 0;
    t->wrong += gcomp_sockets_comm(s).start != NULL;
    t->wrong += gcomp_sockets_overlap(s) != 0 || gcomp_sockets_overlap(s) != 0;
    comm = gcomp_sockets_comm(s);
    for (int round = 0; round < 3 && !status; round++)
        status = eight_requests(&comm, round, GCOMP_SOCKETS_MISMATCH, beside, &t->wrong);
    status |= gcomp_sockets_receive_from(s, left, &word, 1, &bytes, 30);
    t->wrong += bytes != 1 || word != left;
    return status ? status : gcomp_sockets_barrier(s);
}

static void test_requests_are_carried_out_while_the_caller_goes_on(void)
{
    for (int world = 2; world <= MOST; world++) CHECK(run(world, 30, body_requests) && all_are(world, 0));
}

/* Tensor by tensor, the last one first, with a bucket for each. */
static int body_train_overlapped(gcomp_sockets *s, told *t)
{
    model *m = (model *)malloc(sizeof *m);
    gcomp_comm comm;
    gcomp_result result;
    if (!m || gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    result = open_model(m, &comm);
    for (int step = 0; step < STEPS && result == GCOMP_OK; step++) {
        make_gradients(m, comm.rank, step);
        result = gcomp_step_begin(m->gc, NULL);
        for (size_t tensor = 2; tensor-- > 0 && result == GCOMP_OK;) {
            result = gcomp_step_ready(m->gc, tensor, m->grads[tensor]);
            if (result == GCOMP_OK) result = gcomp_step_progress(m->gc);
        }
        if (result == GCOMP_OK) result = gcomp_step_finish(m->gc);
        for (size_t i = 0; i < ROWS * COLS; i++) m->weight[i] -= 0.1f * m->weight_gradient[i];
        for (size_t i = 0; i < BIAS; i++) m->bias[i] -= 0.1f * m->bias_gradient[i];
    }
    t->digest = digest_of(m);
    gcomp_close(m->gc);
    free(m);
    return (int)result;
}

static void test_overlapped_training_ends_with_the_bits_of_threads(void)
{
    for (int world = 2; world <= MOST; world++)
        for (size_t c = 0; c < TRAINED; c++) {
            uint64_t digest;
            int good = 1;
            codec = trained[c];
            bucket_bytes = 1;
            digest = train_by_threads(world);
            CHECK(digest && run(world, 30, body_train_overlapped) && all_are(world, 0));
            for (int w = 0; w < world; w++) good &= tell[w].digest == digest;
            CHECK(good);
        }
    bucket_bytes = 0;
}

/* If only some workers overlap, the frames differ: all are told, and nobody hangs. */
static int body_some_overlap(gcomp_sockets *s, told *t)
{
    gcomp_comm comm;
    if (s->rank == 1 && gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    t->wrong += train(&comm, &t->digest) != GCOMP_MISMATCH;
    return gcomp_sockets_barrier(s); /* the group can go on */
}

static void test_workers_of_which_some_overlap_are_told(void)
{
    codec = "sign";
    CHECK(run(3, 30, body_some_overlap) && all_are(3, 0));
}

/* Sizes of the second request differ; what is behind it is done as if nothing had been. */
static int body_requests_disagree(gcomp_sockets *s, told *t)
{
    static float data[3][9];
    gcomp_comm comm;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    for (uint32_t k = 0; k < 3; k++) {
        gcomp_request r = sum_request(k, data[k], k == 1 && s->rank ? 8 : 9);
        data[k][0] = 1;
        t->wrong += comm.start(comm.user, &r) != 0;
    }
    t->wrong += comm.wait(comm.user, 0) != 0 || data[0][0] < (float)s->world;
    t->wrong += comm.wait(comm.user, 1) != GCOMP_SOCKETS_MISMATCH || data[1][0] > 1;
    t->wrong += comm.wait(comm.user, 2) != 0 || data[2][0] < (float)s->world;
    return gcomp_sockets_barrier(s);
}

/* How worker 1 leaves while requests of all others wait for it. */
enum { REQUEST_KILLED, REQUEST_SILENT, REQUEST_FAILED, REQUEST_CLOSED, REQUEST_WAYS };

/* The others have started two requests, and worker 1 one; then it leaves. */
static int body_requests_fail(gcomp_sockets *s, told *t)
{
    static float data[2][1000];
    double from = gcomp_sockets_now();
    gcomp_comm comm;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    for (uint32_t k = 0; k < 2; k++) {
        gcomp_request r = sum_request(k, data[k], 1000);
        if (s->rank != 1 || k == 0) t->wrong += comm.start(comm.user, &r) != 0;
    }
    t->wrong += comm.wait(comm.user, 0) != 0;
    if (s->rank == 1) {
        if (way == REQUEST_KILLED) raise(SIGKILL);
        if (way == REQUEST_SILENT) poll(NULL, 0, 60000);
        if (way == REQUEST_FAILED) gcomp_sockets_fail(s);
        return GCOMP_SOCKETS_FAILED; /* and closes */
    }
    t->wrong += (s->rank ? comm.wait(comm.user, 1) : ask_until_done(&comm, 1)) != GCOMP_SOCKETS_FAILED;
    t->lost = 1 + gcomp_sockets_lost(s);
    gcomp_sockets_why(s, t->why, sizeof t->why);
    t->took = gcomp_sockets_now() - from;
    return gcomp_sockets_barrier(s);
}

static void test_a_request_fails_when_a_worker_leaves(void)
{
    CHECK(run(3, 30, body_requests_disagree) && all_are(3, 0));
    for (way = 0; way < REQUEST_WAYS; way++) {
        victim = way <= REQUEST_SILENT ? 1 : -1;
        CHECK(run(4, way == REQUEST_SILENT ? 1 : 60, body_requests_fail) && all_are(4, GCOMP_SOCKETS_FAILED));
        for (int w = 0; w < 4; w++) {
            if (w != 1 && (tell[w].lost != 2 || tell[w].took > 30)) printf("# way %d: rank %d lost %d, %s\n", way, w, tell[w].lost - 1, tell[w].why);
            if (w != 1) CHECK(tell[w].lost == 2 && strstr(tell[w].why, "rank 1") && tell[w].took < 30);
        }
        victim = -1;
    }
}

/* Rank 0 ends the group itself while its own request is under way, which the other never starts. */
static int body_ends_its_own_request(gcomp_sockets *s, told *t)
{
    static float data[1000];
    gcomp_comm comm;
    gcomp_request r = sum_request(3, data, 1000);
    char why[80];
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    if (s->rank == 0) {
        t->wrong += comm.start(comm.user, &r) != 0;
        if (way == REQUEST_CLOSED) poll(NULL, 0, 100); /* its bytes stand in the stream, and nobody reads them */
        if (way == REQUEST_CLOSED) return GCOMP_SOCKETS_FAILED;
        gcomp_sockets_fail(s);
        t->wrong += comm.wait(comm.user, 3) != GCOMP_SOCKETS_FAILED || gcomp_sockets_lost(s) != -1;
        t->wrong += strcmp(gcomp_sockets_why(s, why, sizeof why), "this worker gave up") != 0;
        r.id = 4;
        t->wrong += comm.start(comm.user, &r) != 0 || comm.wait(comm.user, 4) != GCOMP_SOCKETS_FAILED;
    } else {
        while (gcomp_sockets_receive_from(s, 0, data, 1, &(size_t){0}, 0.05) == GCOMP_SOCKETS_NOTHING) {}
    }
    return gcomp_sockets_barrier(s);
}

static void test_a_worker_ends_its_own_requests(void)
{
    for (way = REQUEST_FAILED; way <= REQUEST_CLOSED; way++)
        CHECK(run(2, 60, body_ends_its_own_request) && all_are(2, GCOMP_SOCKETS_FAILED));
}

/* A child of fork() has no thread that carries out requests: they fail there, and the parent goes on. */
static int body_forks_beside_requests(gcomp_sockets *s, told *t)
{
    static float data[4000];
    gcomp_comm comm;
    gcomp_request r = sum_request(0, data, 4000);
    pid_t child;
    int how = 0;
    if (gcomp_sockets_overlap(s)) return 1;
    comm = gcomp_sockets_comm(s);
    t->wrong += comm.start(comm.user, &r) != 0;
    child = fork();
    if (child == 0) {
        int done = 0;
        r.id = 1;
        if (comm.start(comm.user, &r) != GCOMP_SOCKETS_FAILED || comm.wait(comm.user, 0) != GCOMP_SOCKETS_FAILED) _exit(1);
        if (comm.test(comm.user, 0, &done) != GCOMP_SOCKETS_FAILED || done) _exit(2);
        if (gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED) _exit(3);
        gcomp_sockets_close(s);
        _exit(0);
    }
    t->wrong += comm.wait(comm.user, 0) != 0;
    t->wrong += waitpid(child, &how, 0) != child || how != 0;
    return gcomp_sockets_barrier(s);
}

static void test_a_child_has_no_requests(void) { CHECK(run(2, 30, body_forks_beside_requests) && all_are(2, 0)); }

/* desc.stop is asked by the call that waits, on its thread. */
static pthread_t asker;

static int stop_at_third_on_my_thread(void *asks)
{
    if (!pthread_equal(pthread_self(), asker)) *(int *)asks = 1000;
    return ++*(int *)asks == 3;
}

static void test_a_wait_for_a_request_asks_if_it_shall_end(void)
{
    static float data[4];
    gcomp_sockets *s = NULL;
    gcomp_request r = sum_request(0, data, 4);
    gcomp_comm comm;
    int asks = 3, how;
    pid_t child;
    choose_port();
    child = begin(1, 2, body_waits_until_the_other_hangs_up);
    asker = pthread_self();
    asked.silence = 1e6;
    asked.stop = stop_at_third_on_my_thread;
    asked.stop_user = &asks;
    CHECK(open_as(&s, 0, 2) == 0 && gcomp_sockets_overlap(s) == 0);
    comm = gcomp_sockets_comm(s);
    asks = 0;
    CHECK(comm.start(comm.user, &r) == 0);
    CHECK(comm.wait(comm.user, 0) == GCOMP_SOCKETS_FAILED && asks == 3 && s->stopped && gcomp_sockets_lost(s) == -1);
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && asks == 3);
    gcomp_sockets_close(s);
    waitpid(child, &how, 0);
    CHECK(WIFEXITED(how) && tell[1].opened == 0 && tell[1].status == 0);
}

static void test_open_says_what_is_wrong(void)
{
    gcomp_sockets *s = NULL;
    pid_t child;
    int how, other;
    char words[4096];
    choose_port();
    CHECK(open_as(&s, 0, 0) == EINVAL && !s);
    CHECK(open_as(&s, 2, 2) == EINVAL && !s);
    asked.rendezvous = -1;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.rendezvous = 2e6;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.rendezvous = 0.1;
    asked.silence = -1;
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.silence = 1;
    asked.port = "123456789";
    CHECK(open_as(&s, 0, 2) == EINVAL && !s);
    asked.port = port;
    CHECK(open_as(&s, 0, 2) == ETIMEDOUT && !s); /* nobody comes */
    CHECK(open_as(&s, 1, 2) == ETIMEDOUT && !s); /* nobody is there */
    asked.host = "no.such.host.invalid";
    CHECK(open_as(&s, 0, 2) == EADDRNOTAVAIL && !s);
    asked.host = NULL;
    other = gcomp_sockets_listen("127.0.0.1", port);
    CHECK(open_as(&s, 0, 2) == EADDRINUSE && !s);
    CHECK(open_as(&s, 1, 2) == ETIMEDOUT && !s); /* it listens and says nothing */
    close(other);
    choose_port();
    memset(words, 'x', sizeof words);
    child = begin_stranger("127.0.0.1", words, sizeof words);
    CHECK(open_as(&s, 1, 2) == EPROTO && !s); /* something else listens there, and answers */
    end_worker(child);
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.rendezvous = 1;
    child = begin(0, 2, body_barrier);
    asked.job = 6;
    CHECK(open_as(&s, 1, 2) == ECONNRESET && !s); /* another job */
    asked.job = 7;
    CHECK(open_as(&s, 1, 3) == ECONNRESET && !s); /* another world */
    waitpid(child, &how, 0);
    CHECK(tell[0].opened == ETIMEDOUT);
    gcomp_sockets_close(NULL);
    CHECK(open_as(&s, 0, 1) == 0 && s); /* one alone needs nobody */
    CHECK(gcomp_sockets_barrier(s) == 0);
    gcomp_sockets_close(s);
}

int main(void)
{
    tell = (told *)mmap(NULL, CROWD * sizeof *tell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    victim = -1;
    RUN(test_requests_are_carried_out_while_the_caller_goes_on);
    RUN(test_overlapped_training_ends_with_the_bits_of_threads);
    RUN(test_workers_of_which_some_overlap_are_told);
    RUN(test_a_request_fails_when_a_worker_leaves);
    RUN(test_a_worker_ends_its_own_requests);
    RUN(test_a_child_has_no_requests);
    RUN(test_a_wait_for_a_request_asks_if_it_shall_end);
    RUN(test_open_says_what_is_wrong);
    return test_end();
}
