/* Proves of the transport examples/adapters/gcomp_sockets.h, between processes on the loopback: its results are right, training has the bits that it has over threads, and what workers that disagree, give up or die do to the others. */

#include "sockets.h"

/* How a worker of the tests about failures ends. */
enum {
    KILLED_BEFORE_FRAMES,
    KILLED_IN_FRAMES,
    KILLED_BEFORE_PAYLOADS,
    KILLED_AFTER_MEETING,
    KILLED_BEFORE_PARTING,
    SILENT,
    WAYS
};

static int way;
static double limit;

/* ---- collectives */

static int body_sums(gcomp_sockets *s, told *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 64, 65, 1000};
    static float data[1000], most[1000];
    static int8_t a[1000];
    static int16_t b[1000];
    static int32_t c[1000];
    gcomp_comm comm = gcomp_sockets_comm(s);
    int status = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++) {
        size_t count = counts[k];
        for (size_t i = 0; i < count; i++) {
            data[i] = most[i] = value(s->rank, i);
            a[i] = (int8_t)((int)i % 25 - s->rank);
            b[i] = (int16_t)((int)i * 7 - 1000 * s->rank);
            c[i] = (int32_t)i * 500000 - s->rank;
        }
        status = comm.allreduce(s, data, count, GCOMP_F32);
        if (!status) status = comm.allreduce_max(s, most, count);
        if (!status) status = comm.allreduce(s, a, count, GCOMP_I8);
        if (!status) status = comm.allreduce(s, b, count, GCOMP_I16);
        if (!status) status = comm.allreduce(s, c, count, GCOMP_I32);
        for (size_t i = 0; i < count; i++) {
            float sum = value(0, i), largest = sum;
            int ranks = s->world * (s->world - 1) / 2;
            for (int r = 1; r < s->world; r++) {
                float x = value(r, i);
                sum += x;
                largest = x > largest ? x : largest;
            }
            t->wrong += memcmp(&sum, &data[i], 4) != 0 || memcmp(&largest, &most[i], 4) != 0;
            t->wrong += a[i] != (int)i % 25 * s->world - ranks || b[i] != (int)i * 7 * s->world - 1000 * ranks;
            t->wrong += c[i] != (int32_t)i * 500000 * s->world - ranks;
        }
    }
    t->wrong += comm.allreduce(s, data, 4, GCOMP_U8) != GCOMP_SOCKETS_MISMATCH;
    return status ? status : gcomp_sockets_barrier(s);
}

/* Sums of fp16 and bf16: in float32, in rank order, rounded once. */
static int body_halves(gcomp_sockets *s, told *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 65, 127, 1000, 1999};
    gcomp_comm comm = gcomp_sockets_comm(s);
    int status = 0;
    for (size_t k = 0; k < sizeof counts / sizeof *counts && !status; k++)
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16 && !status; dtype++)
            t->wrong += halves_are_wrong(&comm, counts[k], (gcomp_dtype)dtype, &status) != 0;
    return status ? status : gcomp_sockets_barrier(s);
}

/* A worker sends 2 (W - 1) / W of the data, of 2 bytes an element, beside what all collectives
   send: 40 bytes to each other worker in the meeting; a byte to rank 0, and back, in the parting. */
static int body_bytes(gcomp_sockets *s, told *t)
{
    static uint16_t data[1200]; /* of each shard as many elements, for 1 to 4 workers */
    gcomp_comm comm = gcomp_sockets_comm(s);
    const size_t world = (size_t)s->world, others = world - 1;
    for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
        const size_t before = bytes_sent;
        const int status = comm.allreduce(s, data, 1200, (gcomp_dtype)dtype);
        if (status) return status;
        t->wrong += bytes_sent - before !=
                    2 * others * (sizeof data / world) + others * sizeof(gcomp_sockets_part) +
                        (s->rank ? 1 : others);
    }
    return gcomp_sockets_barrier(s);
}

static int body_gathers(gcomp_sockets *s, told *t)
{
    unsigned char mine[24], all[MOST * 32], send[MOST * 160], recv[MOST * 160];
    size_t bytes[MOST], sent[MOST], awaited[MOST], from = 0, to = 0, world = (size_t)s->world;
    int status;
    memset(mine, s->rank + 1, sizeof mine);
    memset(all, 0xee, sizeof all);
    status = gcomp_sockets_allgather(s, mine, all, 24);
    for (size_t i = 0; i < sizeof all; i++) t->wrong += all[i] != (i < world * 24 ? i / 24 + 1 : 0xee);
    memset(all, 0xee, sizeof all);
    for (size_t r = 0; r < world; r++) bytes[r] = r * 3;
    if (!status) status = gcomp_sockets_allgatherv(s, mine, all, bytes, 32);
    for (size_t i = 0; i < sizeof all; i++) t->wrong += all[i] != (i / 32 < world && i % 32 < bytes[i / 32] ? i / 32 + 1 : 0xee);
    for (int r = 0; r < s->world; r++) { /* some of no bytes, some that take turns */
        sent[r] = (size_t)((2 * s->rank + r) % 5 * 40);
        awaited[r] = (size_t)((2 * r + s->rank) % 5 * 40);
        memset(send + from, 16 * s->rank + r, sent[r]);
        from += sent[r];
    }
    if (!status) status = gcomp_sockets_alltoallv(s, send, sent, recv, awaited);
    for (int r = 0; r < s->world; r++)
        for (size_t i = 0; i < awaited[r]; i++, to++) t->wrong += recv[to] != 16 * r + s->rank;
    for (int root = 0; root < s->world && !status; root++) {
        int data[3] = {s->rank, s->rank, s->rank};
        status = gcomp_sockets_broadcast(s, data, sizeof data, root);
        t->wrong += data[0] != root || data[2] != root;
    }
    return status;
}

/* Two megabytes each way: more than the kernel's buffers hold, so that all must send and receive
   at once. */
static int body_large(gcomp_sockets *s, told *t)
{
    static unsigned char mine[2000000], all[MOST * 2000000];
    memset(mine, s->rank + 1, sizeof mine);
    if (gcomp_sockets_allgather(s, mine, all, sizeof mine)) return 1;
    for (size_t i = 0; i < sizeof mine * (size_t)s->world; i += 997) t->wrong += all[i] != i / sizeof mine + 1;
    return 0;
}

static int body_disagree(gcomp_sockets *s, told *t)
{
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    unsigned char mine[8] = {0}, all[MOST * 8];
    size_t list[MOST] = {1, 2, 3, 4}, longer[MOST] = {1, 9, 3, 4};
    list[0] += s->rank == 1;
    t->wrong += gcomp_sockets_allreduce(s, data, s->rank == 2 ? 7 : 8, GCOMP_F32) != GCOMP_SOCKETS_MISMATCH;
    for (int i = 0; i < 8; i++) t->wrong += data[i] < 1 || data[i] > 1; /* nobody has written */
    t->wrong += (s->rank ? gcomp_sockets_allreduce_max(s, data, 8) : gcomp_sockets_allreduce(s, data, 8, GCOMP_F32))
                != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allreduce(s, data, 8, s->rank ? GCOMP_F16 : GCOMP_BF16) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += (s->rank ? gcomp_sockets_allgather(s, mine, all, 8) : gcomp_sockets_barrier(s)) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, list, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_allgatherv(s, mine, all, longer, 8) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->rank ? 0 : 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_broadcast(s, data, 4, s->world) != GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_barrier(s); /* the group can go on */
}

static int body_try(gcomp_sockets *s, told *t)
{
    const gcomp_comm comm = gcomp_sockets_comm(s);
    char why[200];
    if (gcomp_try(&comm, why, sizeof why)) printf("# %s\n", why), t->wrong++;
    return 0;
}

static void test_callbacks_do_what_is_asked_of_them(void)
{
    for (int world = 1; world <= MOST; world++) CHECK(run(world, 30, body_try) && all_are(world, 0));
}

static void test_collectives_of_1_to_4_workers_are_right(void)
{
    for (int world = 1; world <= MOST; world++) {
        CHECK(run(world, 30, body_sums) && all_are(world, 0));
        CHECK(run(world, 30, body_gathers) && all_are(world, 0));
        CHECK(run(world, 30, body_halves) && all_are(world, 0));
        CHECK(run(world, 30, body_bytes) && all_are(world, 0));
    }
    CHECK(run(3, 30, body_large) && all_are(3, 0));
}

static void test_workers_that_disagree_are_told_and_go_on(void) { CHECK(run(3, 30, body_disagree) && all_are(3, 0)); }

/* Two workers do not agree about a size: all get an error, and the group is over. */
static int body_pair(gcomp_sockets *s, told *t)
{
    unsigned char send[12] = {0}, recv[12];
    size_t sent[MOST] = {3, 3, 3, 3}, awaited[MOST] = {3, 3, 3, 3};
    sent[2] -= s->rank == 0;
    t->wrong += gcomp_sockets_alltoallv(s, send, sent, recv, awaited) != GCOMP_SOCKETS_FAILED;
    return gcomp_sockets_barrier(s);
}

/* What one has for the most bytes that go with a meeting, the others have not. */
static int body_other_brief(gcomp_sockets *s, told *t)
{
    float data[600] = {1};
    if (s->rank == 1) most_brief = 20;
    t->wrong += gcomp_sockets_allreduce(s, data, 600, GCOMP_F32) != GCOMP_SOCKETS_FAILED;
    return gcomp_sockets_barrier(s);
}

static int body_gives_up(gcomp_sockets *s, told *t)
{
    if (s->rank == 1) gcomp_sockets_fail(s);
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED;
    return gcomp_sockets_barrier(s);
}

static void test_one_that_was_compiled_otherwise_ends_the_group(void)
{
    CHECK(run(3, 30, body_other_brief) && all_are(3, GCOMP_SOCKETS_FAILED));
}

static void test_one_that_gives_up_ends_the_group_at_once(void)
{
    double from = gcomp_sockets_now();
    CHECK(run(4, 60, body_pair) && all_are(4, GCOMP_SOCKETS_FAILED));
    CHECK(run(4, 60, body_gives_up) && all_are(4, GCOMP_SOCKETS_FAILED));
    CHECK(gcomp_sockets_now() - from < 30);
}

/* ---- messages between two workers */

/* All send to all, more than the kernel's buffers hold, and then receive. */
static int body_messages(gcomp_sockets *s, told *t)
{
    static const size_t sizes[] = {0, 1, 15, 4096, 1500000};
    static unsigned char data[1500000];
    size_t bytes = 9;
    double from;
    const int next = (s->rank + 1) % s->world;
    t->wrong += gcomp_sockets_receive_from(s, next, data, sizeof data, &bytes, 0) != GCOMP_SOCKETS_NOTHING;
    if (gcomp_sockets_barrier(s)) return 1; /* nobody has sent before all have looked */
    for (size_t k = 0; k < 5; k++)
        for (int to = 0; to < s->world; to++) {
            memset(data, s->rank * 16 + to * 4 + (int)k % 4, sizes[k]);
            if (to != s->rank) t->wrong += gcomp_sockets_send_to(s, to, data, sizes[k]) != 0;
        }
    for (int by = s->world - 1; by >= 0; by--)
        for (size_t k = 0; k < 5 && by != s->rank; k++) {
            t->wrong += gcomp_sockets_receive_from(s, by, data, sizes[k], &bytes, 30) != 0 || bytes != sizes[k];
            for (size_t i = 0; i < bytes; i++) t->wrong += data[i] != by * 16 + s->rank * 4 + (int)k % 4;
        }
    from = gcomp_sockets_now();
    t->wrong += gcomp_sockets_receive_from(s, next, data, 1, &bytes, 0.05) != GCOMP_SOCKETS_NOTHING;
    t->wrong += gcomp_sockets_now() - from < 0.049;
    if (gcomp_sockets_barrier(s)) return 1;
    t->wrong += gcomp_sockets_send_to(s, next, data, 10) != 0; /* longer than there is room for: dropped */
    data[0] = 77;
    t->wrong += gcomp_sockets_receive_from(s, (s->rank + s->world - 1) % s->world, data, 9, &bytes, 30) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += bytes != 10 || data[0] != 77;
    t->wrong += gcomp_sockets_send_to(s, s->world, data, 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_send_to(s, s->rank, data, 1) != GCOMP_SOCKETS_MISMATCH;
    t->wrong += gcomp_sockets_receive_from(s, -1, data, 1, &bytes, 0) != GCOMP_SOCKETS_MISMATCH;
    return gcomp_sockets_barrier(s); /* collectives go on */
}

/* A collective that some have begun does not disturb messages of others. */
static int body_messages_beside_a_barrier(gcomp_sockets *s, told *t)
{
    unsigned char data[4] = {1, 2, 3, 4};
    size_t bytes;
    if (s->rank == 1) {
        poll(NULL, 0, 50); /* worker 2 waits in the barrier */
        t->wrong += gcomp_sockets_send_to(s, 0, data, 4) != 0;
    }
    if (s->rank == 0) t->wrong += gcomp_sockets_receive_from(s, 1, data, 4, &bytes, 30) != 0 || bytes != 4;
    return gcomp_sockets_barrier(s);
}

/* Worker 3 dies in the midst of a message to worker 0, after one to worker 1. */
static int body_dies_in_a_message(gcomp_sockets *s, told *t)
{
    static unsigned char data[100];
    const gcomp_sockets_head head = {GCOMP_SOCKETS_MESSAGE, 0, sizeof data};
    double from = gcomp_sockets_now();
    size_t bytes;
    if (s->rank == 3) {
        gcomp_sockets_send_to(s, 1, data, 50);
        if (send(s->peers[0], &head, sizeof head, MSG_NOSIGNAL) < 0) _exit(1);
        if (send(s->peers[0], data, 40, MSG_NOSIGNAL) < 0) _exit(1);
        raise(SIGKILL);
    }
    if (s->rank == 1) t->wrong += gcomp_sockets_receive_from(s, 3, data, 100, &bytes, 30) != 0 || bytes != 50;
    t->wrong += gcomp_sockets_receive_from(s, 3, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    t->wrong += gcomp_sockets_send_to(s, 3, data, 100) != GCOMP_SOCKETS_FAILED;
    for (int w = 0; w < 3; w++)
        if (w != s->rank) t->wrong += gcomp_sockets_send_to(s, w, data, 100) != 0;
    for (int w = 0; w < 3; w++)
        if (w != s->rank) t->wrong += gcomp_sockets_receive_from(s, w, data, 100, &bytes, 30) != 0 || bytes != 100;
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED || gcomp_sockets_now() - from > 20;
    return 0;
}

/* Worker 1 stops in the midst of a message: silence ends its connection, and no other one. And a
   length that nobody sends. */
static int body_silent_in_a_message(gcomp_sockets *s, told *t)
{
    unsigned char data[100];
    const gcomp_sockets_head head = {GCOMP_SOCKETS_MESSAGE, 0, s->rank == 1 ? 100 : UINT64_MAX};
    size_t bytes;
    if (s->rank) {
        t->wrong += send(s->peers[0], &head, sizeof head, MSG_NOSIGNAL) != sizeof head;
        t->wrong += gcomp_sockets_receive_from(s, 0, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
        return 0;
    }
    t->wrong += gcomp_sockets_receive_from(s, 2, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    t->wrong += gcomp_sockets_receive_from(s, 1, data, 100, &bytes, 30) != GCOMP_SOCKETS_FAILED;
    return 0;
}

static void test_messages_go_from_one_worker_to_one_other(void)
{
    for (int world = 2; world <= MOST; world++) CHECK(run(world, 30, body_messages) && all_are(world, 0));
    CHECK(run(3, 30, body_messages_beside_a_barrier) && all_are(3, 0));
}

static void test_a_worker_that_dies_fails_the_messages_that_name_it(void)
{
    double from = gcomp_sockets_now();
    victim = 3;
    CHECK(run(4, 30, body_dies_in_a_message) && all_are(4, 0));
    victim = -1;
    CHECK(run(3, 0.3, body_silent_in_a_message) && all_are(3, 0));
    CHECK(gcomp_sockets_now() - from < 25);
}

/* ---- the same training as over threads */

static int body_train(gcomp_sockets *s, told *t)
{
    gcomp_comm comm = gcomp_sockets_comm(s);
    return train(&comm, &t->digest);
}

static void test_training_ends_with_the_bits_of_threads(void)
{
    for (int world = 1; world <= MOST; world++)
        for (size_t c = 0; c < TRAINED; c++) {
            uint64_t digest;
            codec = trained[c];
            digest = train_by_threads(world);
            CHECK(digest != 0);
            CHECK(run(world, 30, body_train) && all_are(world, 0));
            for (int w = 0; w < world; w++) CHECK(tell[w].digest == digest);
        }
}

/* ---- a worker dies */

static int gathers; /* of the step under way, on the victim */

static void end_here(void) { raise(way == SILENT ? SIGSTOP : SIGKILL); }

/* The gather of the frames, then that of the payloads, up to where this worker ends. */
static int dying_gather(void *user, const void *mine, void *all, size_t bytes)
{
    gcomp_sockets *s = (gcomp_sockets *)user;
    int frames = gathers++ == 0;
    if (way == KILLED_BEFORE_FRAMES || (way == KILLED_BEFORE_PAYLOADS && !frames) || way == SILENT) end_here();
    if (way == KILLED_IN_FRAMES || !frames) {
        gcomp_sockets_flow_all(s, mine, 0, bytes, all, bytes, bytes);
        if (gcomp_sockets_meet(s, GCOMP_SOCKETS_ALLGATHER, 0, bytes, 0)) return 1;
        if (way == KILLED_IN_FRAMES || way == KILLED_AFTER_MEETING) end_here();
        if (gcomp_sockets_move(s)) return 1;
        if (way == KILLED_BEFORE_PARTING) end_here();
    }
    return gcomp_sockets_allgather(user, mine, all, bytes);
}

/* The survivors' error comes in step 2, with everything as before that step; then they go on
   without the victim. */
static int body_dies(gcomp_sockets *s, told *t)
{
    static model m, before;
    static float residual[ROWS * COLS];
    gcomp_comm comm = gcomp_sockets_comm(s), wrapped;
    gcomp_sockets *fewer = NULL;
    gcomp_result result;
    double from;
    char next[16];
    comm.allgatherv = NULL;
    comm.alltoallv = NULL;
    wrapped = comm;
    result = open_model(&m, &wrapped);
    for (int step = 0; result == GCOMP_OK && step < 9; step++) {
        make_gradients(&m, s->rank, step);
        before = m;
        memcpy(residual, tensor_residual(m.gc, 0), sizeof residual);
        from = gcomp_sockets_now();
        if (step == 2 && s->rank == victim) {
            /* the object's callbacks are copied: this worker drives the step itself */
            gcomp_request request;
            t->wrong += gcomp_step_begin(m.gc, NULL) != GCOMP_OK;
            for (size_t i = 0; i < 2; i++) t->wrong += gcomp_step_ready(m.gc, i, m.grads[i]) != GCOMP_OK;
            for (;;) {
                int status = 0;
                if (gcomp_step_next(m.gc, &request) != GCOMP_OK || request.kind == GCOMP_DONE) break;
                if (request.kind == GCOMP_ALLGATHER) status = dying_gather(s, request.send, request.recv, request.stride);
                if (request.kind == GCOMP_ALLREDUCE)
                    status = gcomp_sockets_allreduce(s, request.recv, request.count, request.dtype);
                if (gcomp_step_done(m.gc, request.id, status) != GCOMP_OK) break;
            }
            _exit(3); /* not reached */
        }
        result = gcomp_exchange(m.gc, m.grads, NULL);
        t->took = gcomp_sockets_now() - from;
        t->steps += result == GCOMP_OK;
    }
    t->wrong += memcmp(&m, &before, sizeof m) != 0;
    t->wrong += memcmp(residual, tensor_residual(m.gc, 0), sizeof residual) != 0;
    t->wrong += s->failed != 1;
    t->lost = 1 + gcomp_sockets_lost(s);
    gcomp_sockets_why(s, t->why, sizeof t->why);
    snprintf(next, sizeof next, "%d", atoi(port) - 10000);
    asked.port = next;
    asked.job = 8;
    t->wrong += open_as(&fewer, s->rank - (s->rank > victim), s->world - 1) != 0;
    if (fewer) {
        comm = gcomp_sockets_comm(fewer);
        t->wrong += gcomp_regroup(m.gc, &comm, NULL) != GCOMP_OK || gcomp_exchange(m.gc, m.grads, NULL) != GCOMP_OK;
        memcpy(m.weight, m.weight_gradient, sizeof m.weight);
        memcpy(m.bias, m.bias_gradient, sizeof m.bias);
        t->digest = digest_of(&m);
    }
    gcomp_close(m.gc);
    gcomp_sockets_close(fewer);
    return (int)result;
}

static void test_a_worker_that_dies_is_an_error_on_all_others(void)
{
    codec = "sign";
    for (way = 0; way < WAYS; way++)
        for (victim = way == SILENT ? 3 : 0; victim < 4; victim++) {
            limit = way == SILENT ? 1 : 300;
            CHECK(run(4, limit, body_dies) && all_are(4, GCOMP_CALLBACK_FAILED));
            for (int w = 0; w < 4; w++) {
                if (w == victim) continue;
                CHECK(tell[w].steps == 2);
                CHECK(tell[w].lost == 1 + victim && strstr(tell[w].why, "rank ") && atoi(tell[w].why + 5) == victim);
                if (tell[w].lost != 1 + victim) printf("# way %d, victim %d, worker %d: %s\n", way, victim, w, tell[w].why);
                CHECK(tell[w].digest != 0 && tell[w].digest == tell[victim == 0].digest); /* of a step without the victim */
                CHECK(way == SILENT ? tell[w].took > 0.9 : tell[w].took < 200); /* seen at once, long before the time-out */
            }
        }
    victim = -1;
}

/* The child of a worker, a data loader, lives on when the worker dies; and in it the group has
   failed. */
static int test_goes_on[2]; /* a pipe: the child reads its end when the test is over */

static int body_has_a_child(gcomp_sockets *s, told *t)
{
    double from;
    int word[2];
    char byte = 0;
    if (s->rank == 1) {
        if (pipe(word) != 0) return 1;
        fflush(stdout);
        if (fork() == 0) {
            byte = (char)gcomp_sockets_barrier(s);
            gcomp_sockets_close(s);
            close(test_goes_on[1]);
            if (write(word[1], &byte, 1) == 1) _exit(read(test_goes_on[0], &byte, 1) != 0);
            _exit(1);
        }
        close(word[1]);
        t->wrong += read(word[0], &byte, 1) != 1 || byte != GCOMP_SOCKETS_FAILED;
        t->steps = gcomp_sockets_barrier(s) == 0; /* the parent has the group still */
        raise(SIGKILL);
    }
    t->wrong += gcomp_sockets_barrier(s) != 0;
    from = gcomp_sockets_now();
    t->wrong += gcomp_sockets_barrier(s) != GCOMP_SOCKETS_FAILED;
    t->took = gcomp_sockets_now() - from;
    return gcomp_sockets_barrier(s);
}

static void test_a_worker_that_dies_is_seen_at_once_though_its_child_lives(void)
{
    victim = 1;
    CHECK(pipe(test_goes_on) == 0);
    CHECK(run(3, 300, body_has_a_child) && all_are(3, GCOMP_SOCKETS_FAILED));
    CHECK(tell[1].steps == 1 && tell[1].wrong == 0 && tell[0].took < 200 && tell[2].took < 200);
    close(test_goes_on[0]);
    close(test_goes_on[1]);
    victim = -1;
}

int main(void)
{
    tell = (told *)mmap(NULL, CROWD * sizeof *tell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    victim = -1;
    RUN(test_callbacks_do_what_is_asked_of_them);
    RUN(test_collectives_of_1_to_4_workers_are_right);
    RUN(test_workers_that_disagree_are_told_and_go_on);
    RUN(test_one_that_was_compiled_otherwise_ends_the_group);
    RUN(test_one_that_gives_up_ends_the_group_at_once);
    RUN(test_messages_go_from_one_worker_to_one_other);
    RUN(test_a_worker_that_dies_fails_the_messages_that_name_it);
    RUN(test_training_ends_with_the_bits_of_threads);
    RUN(test_a_worker_that_dies_is_an_error_on_all_others);
    RUN(test_a_worker_that_dies_is_seen_at_once_though_its_child_lives);
    return test_end();
}
