/* Proves of examples/adapters/gcomp_sockets.h: who comes in. Strangers, the silent, two of one rank, who does not know the secret; addresses and times. */

#include "sockets.h"

static int knock(void)
{
    struct addrinfo hints, *to;
    int fd = -1;
    double then = gcomp_sockets_now() + 20;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo("127.0.0.1", port, &hints, &to) != 0) return -1;
    while (fd < 0 && gcomp_sockets_now() < then) {
        fd = gcomp_sockets_connect(NULL, to, then);
        if (fd < 0) poll(NULL, 0, 2);
    }
    freeaddrinfo(to);
    return fd;
}

/* Says something to the listener at the port. Returns the connection. */
static int say(const void *words, size_t bytes)
{
    int fd = knock();
    CHECK(fd >= 0 && gcomp_sockets_send(NULL, fd, words, bytes, gcomp_sockets_now() + 20) == 0);
    return fd;
}

/* Hears the challenge, and answers with a hello, proven with a secret. Returns the connection. */
static int say_hello(const gcomp_sockets_hello *hello, const char *secret)
{
    gcomp_sockets_meeting m;
    gcomp_sockets_challenge challenge;
    gcomp_sockets_hello proven = *hello;
    int fd = knock();
    double then = gcomp_sockets_now() + 20;
    memset(&m, 0, sizeof m);
    memcpy(m.secret, secret, strlen(secret));
    CHECK(fd >= 0 && gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    gcomp_sockets_prove(&m, proven.proof, 'c', &challenge, &proven);
    CHECK(gcomp_sockets_send(NULL, fd, &proven, sizeof proven, then) == 0);
    return fd;
}

/* The verdict on a hello, -1: none. */
static int verdict(int fd)
{
    unsigned char words[33];
    return gcomp_sockets_receive(NULL, fd, words, sizeof words, gcomp_sockets_now() + 20) == 0 ? words[0] : -1;
}

/* Does the listener close this connection? */
static int sent_away(int fd)
{
    char words[64];
    int error = 0;
    while (!error) error = gcomp_sockets_receive(NULL, fd, words, 1, gcomp_sockets_now() + 20);
    return error == ECONNRESET;
}

static gcomp_sockets_hello hello_of(int rank, int world)
{
    gcomp_sockets_hello hello;
    memset(&hello, 0, sizeof hello);
    memcpy(hello.magic, "GCOMPSK3", 8);
    hello.job = 7;
    hello.order = 0x01020304u;
    hello.world = (uint32_t)world;
    hello.rank = (uint32_t)rank;
    hello.port = 9;
    return hello;
}

static void test_strangers_at_the_door_are_sent_away(void)
{
    gcomp_sockets_hello right = hello_of(1, 3), wrong;
    unsigned char garbage[200];
    int silent[FORTY], fd, how;
    pid_t children[3];
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.secret = "of three";
    children[0] = begin(0, 3, body_barrier);
    memset(garbage, 'G', sizeof garbage);
    fd = say(garbage, sizeof garbage);
    CHECK(sent_away(fd));
    close(fd);
    close(say(&right, 10)); /* hangs up in the middle of a word */
    for (int field = 0; field < 10; field++) {
        wrong = right;
        if (field == 0) wrong.magic[7] = '1';
        if (field == 1) wrong.job = 8;
        if (field == 2) wrong.order = 0x04030201u;
        if (field == 3) wrong.world = 4;
        if (field == 4) wrong.rank = 3;
        if (field == 5) wrong.rank = 0;
        if (field == 6) wrong.rank = 0xffffffffu;
        if (field == 7) wrong.port = 65536;
        if (field == 8) wrong.to = 1;
        fd = say_hello(&wrong, field == 9 ? "of four" : "of three");
        CHECK(verdict(fd) == (field == 0 ? -1 : field == 9 ? GCOMP_SOCKETS_OTHER_SECRET : GCOMP_SOCKETS_OTHER_JOB));
        CHECK(sent_away(fd));
        close(fd);
    }
    for (int i = 0; i < FORTY; i++) silent[i] = say(&right, i % 2 ? 31 : 0); /* more than there are places; and no more */
    children[1] = begin(1, 3, body_barrier);
    children[2] = begin(2, 3, body_barrier);
    for (int w = 0; w < 3; w++) {
        waitpid(children[w], &how, 0);
        CHECK(WIFEXITED(how) && tell[w].opened == 0 && tell[w].status == 0);
    }
    for (int i = 0; i < FORTY; i++) close(silent[i]);
}

/* Three that say nothing do not take all places; none the less they are not kept for long. */
static void test_the_silent_are_sent_away_after_a_while(void)
{
    int silent[3];
    double from;
    pid_t child;
    choose_port();
    patience = 1;
    child = begin(0, 2, body_barrier);
    patience = 20;
    for (int i = 0; i < 3; i++) silent[i] = say("GCOMP", i == 1 ? 5 : 0);
    from = gcomp_sockets_now();
    for (int i = 0; i < 3; i++) {
        CHECK(sent_away(silent[i]));
        close(silent[i]);
    }
    CHECK(gcomp_sockets_now() - from > 0.5 && gcomp_sockets_now() - from < 10);
    end_worker(child);
}

static void test_a_rank_has_one_worker_and_its_successor_when_it_is_dead(void)
{
    gcomp_sockets_hello right = hello_of(1, 3);
    gcomp_sockets *s;
    pid_t children[3];
    int fd, how;
    for (int last = 0; last < 2; last++) { /* its successor comes before the others, or last */
        memset(tell, 0, MANY * sizeof *tell);
        choose_port();
        children[0] = begin(0, 3, body_barrier);
        fd = say_hello(&right, "");
        CHECK(verdict(fd) == GCOMP_SOCKETS_WELCOME);
        CHECK(open_as(&s, 1, 3) == ECONNRESET && !s);
        close(fd); /* it dies */
        children[1 + last] = begin(1 + last, 3, body_barrier);
        poll(NULL, 0, 300);
        children[2 - last] = begin(2 - last, 3, body_barrier);
        for (int w = 0; w < 3; w++) {
            waitpid(children[w], &how, 0);
            CHECK(WIFEXITED(how) && tell[w].opened == 0 && tell[w].status == 0);
        }
    }
}

/* ---- many workers, and what disturbs them */

enum { NOTHING, BUSY, FLOOD, SLOW, GARBAGE, RANK_TAKERS, DISTURBANCES };

/* One process that disturbs, for ever. */
static pid_t disturb(int how)
{
    gcomp_sockets_hello hello = hello_of(1 + MANY / 2, MANY);
    char junk[4096];
    int fds[200], n = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child) return child;
    alarm(60); /* if nobody ends it */
    memset(fds, -1, sizeof fds);
    memset(junk, 'G', sizeof junk);
    for (unsigned k = 0; how != BUSY; k++) {
        if (how == SLOW && k % 40 == 0) /* a byte each 20 ms of 40 hellos */
            for (size_t i = 0; k && i < sizeof hello; i++) {
                for (n = 0; n < 40; n++) (void)!send(fds[n], (char *)&hello + i, 1, MSG_NOSIGNAL);
                poll(NULL, 0, 20);
            }
        n = (int)(k % (how == SLOW ? 40 : how == FLOOD ? 200 : 1));
        if (fds[n] >= 0) close(fds[n]);
        fds[n] = knock();
        if (how == GARBAGE) (void)!send(fds[n], junk, sizeof junk, MSG_NOSIGNAL);
        if (how == RANK_TAKERS) (void)!send(fds[n], &hello, sizeof hello, MSG_NOSIGNAL);
    }
    for (volatile unsigned k = 0;; k++) {}
    return 0;
}

/* 64 workers with a secret, disturbed. Returns the seconds until all have opened and closed
   again, -1 if one has not. */
static double open_many(int how)
{
    pid_t strangers[4];
    double from = gcomp_sockets_now();
    int good;
    choose_port();
    asked.secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    for (int i = 0; i < 4; i++) strangers[i] = how ? disturb(how) : -1;
    good = run_asked(MANY, body_barrier) && all_are(MANY, 0);
    for (int i = 0; i < 4; i++)
        if (strangers[i] > 0) end_worker(strangers[i]);
    for (int w = 0; w < MANY && !good; w++)
        if (tell[w].opened) printf("# disturbance %d, worker %d: %s\n", how, w, strerror(tell[w].opened));
    return good ? gcomp_sockets_now() - from : -1;
}

static void test_64_workers_meet(void) { CHECK(open_many(NOTHING) > 0); }

static void test_64_workers_meet_beside_a_flood_of_silent_strangers(void) { CHECK(open_many(FLOOD) > 0); }

/* One step whose mean is exact. */
static int body_steps_once(gcomp_sockets *s, told *t)
{
    static model m;
    const gcomp_comm comm = gcomp_sockets_comm(s);
    gcomp_result result;
    codec = "none";
    result = open_model(&m, &comm);
    for (size_t i = 0; i < ROWS * COLS; i++) m.weight_gradient[i] = (float)(s->rank + (int)i % 3);
    for (size_t i = 0; i < BIAS; i++) m.bias_gradient[i] = (float)-s->rank;
    if (result == GCOMP_OK) result = gcomp_exchange(m.gc, m.grads, NULL);
    for (size_t i = 0; i < ROWS * COLS; i++) t->wrong += m.weight_gradient[i] != 0.5f * (float)(s->world - 1) + (float)(i % 3);
    for (size_t i = 0; i < BIAS; i++) t->wrong += m.bias_gradient[i] != -0.5f * (float)(s->world - 1);
    gcomp_close(m.gc);
    return (int)result;
}

static void test_a_crowd_of_workers_takes_a_step(void)
{
    const int world = test_is_long() ? CROWD : MANY;
    choose_port();
    asked.rendezvous = asked.silence = 300;
    CHECK(run_asked(world, body_steps_once) && all_are(world, 0));
}

/* For the argument "many". */
static int open_many_times(int times)
{
    static const char *const names[] = {"nothing", "4 busy processes", "a flood of silent connections", "40 slow hellos",
                                        "garbage", "hellos without proof"};
    int failed = 0;
    for (int how = 0; how < DISTURBANCES; how++) {
        double longest = 0;
        int good = 0;
        for (int k = 0; k < times; k++) {
            double took = open_many(how);
            good += took > 0;
            longest = took > longest ? took : longest;
        }
        printf("# %d workers beside %s: %d of %d, the longest took %.1f s\n", MANY, names[how], good, times, longest);
        fflush(stdout);
        failed += times - good;
    }
    return failed != 0;
}

/* ---- descriptors, addresses, times */

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + (double)used.ru_stime.tv_sec
           + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* A worker that may have `more` descriptors than it has. */
static pid_t begin_limited(int rank, int world, int more)
{
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        struct rlimit limit;
        gcomp_sockets *s;
        int next = dup(0);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = (rlim_t)(next + more);
        close(next);
        setrlimit(RLIMIT_NOFILE, &limit);
        tell[rank].opened = open_as(&s, rank, world);
        if (!tell[rank].opened) tell[rank].status = gcomp_sockets_barrier(s);
        tell[rank].took = cpu_seconds();
        gcomp_sockets_close(s);
        _exit(0);
    }
    return child;
}

static void test_too_few_descriptors_are_waited_for_and_told(void)
{
    int silent[FORTY], fd, how;
    pid_t children[4];
    choose_port(); /* one for the listener, none for a worker */
    asked.rendezvous = 1.5;
    children[0] = begin_limited(0, 2, 1);
    fd = knock();
    waitpid(children[0], &how, 0);
    CHECK(tell[0].opened == EMFILE);
    CHECK(tell[0].took < 0.1); /* without turning around and around */
    close(fd);
    children[1] = begin_limited(1, 2, 1); /* one that calls, and has none to listen */
    asked.rendezvous = 3;
    children[0] = begin(0, 2, body_barrier);
    for (int w = 0; w < 2; w++) waitpid(children[w], &how, 0);
    CHECK(tell[0].opened == ETIMEDOUT && tell[1].opened == EMFILE);
    choose_port(); /* as many as the workers need, and strangers that want them */
    children[0] = begin_limited(0, 4, 4);
    for (int i = 0; i < FORTY; i++) silent[i] = knock();
    for (int w = 1; w < 4; w++) children[w] = begin(w, 4, body_barrier);
    for (int w = 0; w < 4; w++) {
        waitpid(children[w], &how, 0);
        CHECK(tell[w].opened == 0 && tell[w].status == 0);
    }
    for (int i = 0; i < FORTY; i++) close(silent[i]);
}

static void test_all_addresses_of_a_name_are_tried(void)
{
    char words[4096];
    pid_t stranger, other;
    int how;
    choose_port();
    asked.host = "three.addresses"; /* the first one of them is where rank 0 listens */
    CHECK(run_asked(3, body_barrier) && all_are(3, 0));
    choose_port();
    memset(words, 'x', sizeof words);
    stranger = begin_stranger("127.0.0.3", words, sizeof words);
    asked.host = "three.addresses"; /* rank 0 cannot listen at the first one: at the second */
    CHECK(run_asked(3, body_barrier) && all_are(3, 0));
    end_worker(stranger);
    choose_port();
    stranger = begin_stranger("127.0.0.2", words, sizeof words); /* rank 0 listens at the third */
    asked.host = "three.addresses";
    other = begin(1, 2, body_barrier); /* which waits for rank 0, though the stranger answers */
    poll(NULL, 0, 200);
    asked.host = "127.0.0.1";
    CHECK(waitpid(begin(0, 2, body_barrier), &how, 0) > 0 && tell[0].opened == 0);
    waitpid(other, &how, 0);
    CHECK(tell[1].opened == 0);
    end_worker(stranger);
}

static int body_defaults(gcomp_sockets *s, told *t)
{
    t->wrong += s->silence < 300 || s->silence > 300;
    return gcomp_sockets_barrier(s);
}

static void test_rendezvous_and_silence_have_times_of_their_own(void)
{
    gcomp_sockets *s;
    double from = gcomp_sockets_now();
    pid_t children[2];
    int how;
    choose_port();
    asked.rendezvous = 0.3;
    CHECK(open_as(&s, 0, 2) == ETIMEDOUT && !s);
    CHECK(gcomp_sockets_now() - from < 10);
    asked.rendezvous = 20;
    asked.silence = 0.2; /* shorter than rank 0 has to wait */
    children[0] = begin(0, 2, body_barrier);
    poll(NULL, 0, 600);
    children[1] = begin(1, 2, body_barrier);
    for (int w = 0; w < 2; w++) waitpid(children[w], &how, 0);
    CHECK(tell[0].opened == 0 && tell[1].opened == 0);
    choose_port();
    asked.rendezvous = asked.silence = 0; /* 300 */
    CHECK(run_asked(2, body_defaults) && all_are(2, 0));
}

/* ---- the secret */

static int digest_is(const unsigned char digest[32], const char *hex)
{
    char text[65];
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return strcmp(text, hex) == 0;
}

/* FIPS 180-4 and the examples of NIST; RFC 4231, cases 1 to 4. */
static void test_sha_256_and_hmac_give_the_published_digests(void)
{
    static const struct {
        const char *message, *digest;
    } hashes[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                  {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                  {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                   "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
                  {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmn"
                   "opqrstnopqrstu",
                   "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"}};
    static const struct {
        int key, bytes; /* a key of that many bytes of this, or -1: 1, 2, ..., 25 */
        const char *text, *message, *digest;
    } macs[] = {{20, 0x0b, NULL, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
                {4, 0, "Jefe", "what do ya want for nothing?",
                 "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
                {20, 0xaa, NULL, NULL, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
                {25, -1, NULL, NULL, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"}};
    static char million[1000000];
    unsigned char digest[32];
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        gcomp_sockets_sha256(digest, hashes[i].message, strlen(hashes[i].message));
        CHECK(digest_is(digest, hashes[i].digest));
    }
    memset(million, 'a', sizeof million);
    gcomp_sockets_sha256(digest, million, sizeof million);
    CHECK(digest_is(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
    for (size_t i = 0; i < sizeof macs / sizeof *macs; i++) {
        unsigned char key[64] = {0}, message[50];
        for (int k = 0; k < macs[i].key; k++)
            key[k] = (unsigned char)(macs[i].text ? macs[i].text[k] : macs[i].bytes < 0 ? k + 1 : macs[i].bytes);
        memset(message, i == 2 ? 0xdd : 0xcd, sizeof message);
        gcomp_sockets_hmac(digest, key, macs[i].message ? (const void *)macs[i].message : message,
                           macs[i].message ? strlen(macs[i].message) : sizeof message);
        CHECK(digest_is(digest, macs[i].digest));
    }
    CHECK(gcomp_sockets_same((const unsigned char *)"abc", (const unsigned char *)"abd", 2));
    CHECK(!gcomp_sockets_same((const unsigned char *)"abc", (const unsigned char *)"abd", 3));
}

static void test_numbers_differ_from_call_to_call_and_group_to_group(void)
{
    enum { DRAWN = 100 };
    unsigned char number[2 * DRAWN][16];
    gcomp_sockets_desc desc = {0};
    for (int k = 0; k < 2; k++) {
        gcomp_sockets_meeting m;
        memset(&m, 0, sizeof m);
        m.s = gcomp_sockets_alone(0, 1, 1);
        CHECK(m.s && gcomp_sockets_prepare(&m, &desc, 1) == 0);
        for (int i = 0; i < DRAWN; i++) gcomp_sockets_draw(&m, number[k * DRAWN + i]);
        gcomp_sockets_close(m.s);
        free(m.places);
        free(m.guests);
        free(m.polls);
    }
    for (int i = 0; i < 2 * DRAWN; i++)
        for (int k = 0; k < i; k++) CHECK(memcmp(number[i], number[k], 16) != 0);
}

static int opens_as(int rank, const char *secret)
{
    gcomp_sockets *s;
    const char *before = asked.secret;
    int error;
    asked.secret = secret;
    error = open_as(&s, rank, 2);
    asked.secret = before;
    gcomp_sockets_close(s);
    return error;
}

static void test_who_does_not_know_the_secret_is_sent_away(void)
{
    static const char longest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char other[66];
    pid_t child;
    int how;
    memset(tell, 0, MANY * sizeof *tell);
    choose_port();
    asked.secret = longest;
    child = begin(0, 2, body_barrier);
    memcpy(other, longest, sizeof longest);
    other[63] ^= 1;
    CHECK(opens_as(1, other) == EACCES);
    other[63] = 0; /* a part of it */
    CHECK(opens_as(1, other) == EACCES);
    CHECK(opens_as(1, "") == EACCES);
    CHECK(opens_as(1, NULL) == EACCES);
    memset(other, 'x', 65);
    other[65] = 0;
    CHECK(opens_as(1, other) == EINVAL);
    CHECK(waitpid(child, &how, WNOHANG) == 0); /* it waits for the right one */
    CHECK(waitpid(begin(1, 2, body_barrier), &how, 0) > 0 && tell[1].opened == 0);
    waitpid(child, &how, 0);
    CHECK(tell[0].opened == 0 && tell[0].status == 0);
    choose_port();
    child = begin(0, 2, body_barrier);
    CHECK(opens_as(1, "a secret where none is") == EACCES);
    end_worker(child);
}

/* A hello that was heard once is no proof in another connection. */
static void test_a_hello_that_is_said_again_proves_nothing(void)
{
    gcomp_sockets_hello hello = hello_of(1, 2);
    gcomp_sockets_challenge challenge;
    gcomp_sockets_meeting m;
    pid_t child;
    double then = gcomp_sockets_now() + 20;
    int fd;
    choose_port();
    asked.secret = "secret";
    child = begin(0, 2, body_barrier);
    fd = knock();
    memset(&m, 0, sizeof m);
    memcpy(m.secret, "secret", 6);
    CHECK(gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    close(fd);
    gcomp_sockets_prove(&m, hello.proof, 'c', &challenge, &hello); /* what the right worker says there */
    fd = knock();
    CHECK(gcomp_sockets_receive(NULL, fd, &challenge, sizeof challenge, then) == 0);
    CHECK(gcomp_sockets_send(NULL, fd, &hello, sizeof hello, then) == 0 && verdict(fd) == GCOMP_SOCKETS_OTHER_SECRET);
    close(fd);
    end_worker(child);
}

/* Who listens must know the secret too, also if it sends the caller's own proof back. */
static void test_a_false_rank_0_is_found_out(void)
{
    for (int echo = 0; echo < 2; echo++) {
        int listener, how;
        pid_t child;
        choose_port();
        asked.secret = "secret";
        listener = gcomp_sockets_listen("127.0.0.1", port);
        fflush(stdout);
        child = fork();
        if (child == 0) {
            struct pollfd p = {listener, POLLIN, 0};
            gcomp_sockets_challenge challenge;
            gcomp_sockets_hello hello;
            unsigned char words[33] = {0};
            double then = gcomp_sockets_now() + 20;
            int fd;
            alarm(60);
            memcpy(challenge.magic, "GCOMPSK3", 8);
            memset(challenge.number, 7, sizeof challenge.number);
            poll(&p, 1, 20000);
            fd = accept(listener, NULL, NULL);
            gcomp_sockets_send(NULL, fd, &challenge, sizeof challenge, then);
            gcomp_sockets_receive(NULL, fd, &hello, sizeof hello, then);
            if (echo) memcpy(words + 1, hello.proof, sizeof hello.proof);
            gcomp_sockets_send(NULL, fd, words, sizeof words, then);
            poll(NULL, 0, 5000);
            _exit(0);
        }
        CHECK(opens_as(1, "secret") == EACCES);
        kill(child, SIGKILL);
        waitpid(child, &how, 0);
        close(listener);
    }
}

static int stop_at_third(void *asks) { return ++*(int *)asks == 3; }

/* All times are longer than a test may take. */
static void test_a_call_that_waits_asks_if_it_shall_end(void)
{
    gcomp_sockets *s = NULL;
    int asks, how;
    pid_t child;
    for (int rank = 0; rank < 2; rank++) {
        choose_port();
        asked.rendezvous = 1e6;
        asked.stop = stop_at_third;
        asked.stop_user = &asks;
        asks = 0;
        CHECK(open_as(&s, rank, 2) == ECANCELED && !s && asks == 3);
    }
    choose_port();
    child = begin(1, 2, body_waits_until_the_other_hangs_up);
    asks = 3; /* no answer ends the meeting */
    asked.silence = 1e6;
    asked.stop = stop_at_third;
    asked.stop_user = &asks;
    CHECK(open_as(&s, 0, 2) == 0 && !s->stopped);
    asks = 0;
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && s->stopped && asks == 3);
    CHECK(gcomp_sockets_barrier(s) == GCOMP_SOCKETS_FAILED && asks == 3);
    gcomp_sockets_close(s);
    waitpid(child, &how, 0);
    CHECK(WIFEXITED(how) && tell[1].opened == 0 && tell[1].status == 0);
}

int main(int argc, char **argv)
{
    tell = (told *)mmap(NULL, CROWD * sizeof *tell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tell == MAP_FAILED) return 1;
    victim = -1;
    if (argc > 1 && !strcmp(argv[1], "many")) return open_many_times(20);
    RUN(test_strangers_at_the_door_are_sent_away);
    RUN(test_the_silent_are_sent_away_after_a_while);
    RUN(test_a_rank_has_one_worker_and_its_successor_when_it_is_dead);
    RUN(test_64_workers_meet);
    RUN(test_64_workers_meet_beside_a_flood_of_silent_strangers);
    RUN(test_a_crowd_of_workers_takes_a_step);
    RUN(test_too_few_descriptors_are_waited_for_and_told);
    RUN(test_all_addresses_of_a_name_are_tried);
    RUN(test_rendezvous_and_silence_have_times_of_their_own);
    RUN(test_sha_256_and_hmac_give_the_published_digests);
    RUN(test_numbers_differ_from_call_to_call_and_group_to_group);
    RUN(test_who_does_not_know_the_secret_is_sent_away);
    RUN(test_a_hello_that_is_said_again_proves_nothing);
    RUN(test_a_false_rank_0_is_found_out);
    RUN(test_a_call_that_waits_asks_if_it_shall_end);
    return test_end();
}
