/* Proves of two levels (desc.node): all workers get what the first workers of the machines would
   get, on one level, from the means of the machines; an error of one worker is told to all; and
   nothing is lost. Prints TAP. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_threads.h"
#include "test.h"

#include <setjmp.h>

enum { MOST = 6, NODES = 3, TENSORS = 3, LARGEST = 3000, ALL = 2 * LARGEST };

static const size_t rows[TENSORS] = {60, 37, 50}, cols[TENSORS] = {50, 0, 40};

typedef struct fleet fleet;
typedef struct member {
    fleet *of;
    gcomp *gc;
    gcomp_comm within; /* of the node, without what stands before it here */
    int rank;
    gcomp_result result;
    float grad[TENSORS][LARGEST];
    uint16_t half[LARGEST]; /* of the last tensor, where it is of 16 bits */
    int calls, fail_at, damage_at; /* callbacks of the node: count, which one fails (from 1), which one's bytes are changed */
    int breaks;                    /* a failing one breaks the node's transport for all */
    size_t summed;                 /* bytes of all sums within the node */
    gcomp_comm beyond;             /* that between machines, likewise */
    int trips, trip_fails_at, trip_lies_at;
    int tied;                      /* its gradient of the second tensor begins in the last element of the first one's */
    jmp_buf *way_out;              /* where a failing callback jumps to, in the place of a return */
} member;

struct fleet {
    int nodes, each, halves;
    gcomp_aggregate aggregate;
    gcomp_step step;
    int skip; /* a tensor, or -1 */
    gcomp_threads *within[NODES], *between;
    member m[MOST];
};

/* ---------------- transports that fail when told to */

static int fails(member *m)
{
    if (++m->calls != m->fail_at) return 0;
    if (m->breaks) gcomp_threads_fail(m->of->within[m->rank / m->of->each]);
    if (m->way_out) longjmp(*m->way_out, 1);
    return 1;
}

static int trip_fails(member *m)
{
    if (++m->trips != m->trip_fails_at) return 0;
    if (m->way_out) longjmp(*m->way_out, 1);
    return 1;
}

static int beyond_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    member *m = (member *)user;
    int status = m->beyond.allreduce(m->beyond.user, data, count, dtype);
    if (m->trips + 1 == m->trip_lies_at) ((float *)data)[0] += 1;
    return trip_fails(m) ? 1 : status;
}

static int beyond_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    member *m = (member *)user;
    int status = m->beyond.allgather(m->beyond.user, mine, all, bytes);
    return trip_fails(m) ? 1 : status;
}

static int beyond_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *came)
{
    member *m = (member *)user;
    int status = m->beyond.alltoallv(m->beyond.user, send, sent, recv, came);
    return trip_fails(m) ? 1 : status;
}

static int node_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    member *m = (member *)user;
    int status = m->within.allreduce(m->within.user, data, count, dtype);
    m->summed += count * bytes_of_dtype(dtype);
    if (m->calls + 1 == m->damage_at) ((float *)data)[count - 1] += 1;
    return fails(m) ? 1 : status;
}

static int node_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    member *m = (member *)user;
    int status = m->within.allgather(m->within.user, mine, all, bytes);
    if (m->calls + 1 == m->damage_at) ((uint8_t *)all)[5] ^= 1;
    return fails(m) ? 1 : status;
}

static const char *schedule; /* of the next fleet */
static const char *residual; /* likewise */
static uint32_t checks;      /* its check_every */

static gcomp_desc desc_of(fleet *f, int r, const char *codec)
{
    gcomp_desc desc;
    member *m = &f->m[r];
    memset(&desc, 0, sizeof desc);
    desc.codec = codec;
    desc.schedule = schedule;
    desc.residual = residual;
    desc.check_every = checks;
    desc.min_elements = 1;
    desc.aggregate = f->aggregate;
    desc.bucket_bytes = f->halves ? 8000 : 0; /* two buckets */
    if (r % f->each == 0) {
        m->beyond = gcomp_threads_comm(f->between, r / f->each);
        desc.comm.user = m;
        desc.comm.allreduce = beyond_allreduce;
        desc.comm.allgather = beyond_allgather;
        desc.comm.alltoallv = beyond_alltoallv;
    }
    desc.comm.rank = r / f->each; /* callbacks of the others are not called: there are none */
    desc.comm.world = f->nodes;
    m->within = gcomp_threads_comm(f->within[r / f->each], r % f->each);
    desc.node.user = m;
    desc.node.rank = r % f->each;
    desc.node.world = f->each;
    desc.node.allreduce = node_allreduce;
    desc.node.allgather = node_allgather;
    return desc;
}

static gcomp_tensor tensor_of(const fleet *f, size_t t)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    gcomp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = names[t];
    tensor.rows = rows[t];
    tensor.cols = cols[t];
    if (f->halves && t == TENSORS - 1) tensor.dtype = GCOMP_F16;
    return tensor;
}

static gcomp_aggregate way; /* of the next fleet */
static double patience = 20; /* seconds that its workers wait for each other */

static void fleet_open(fleet *f, int nodes, int each, const char *codec, int halves)
{
    memset(f, 0, sizeof *f);
    f->step = gcomp_step_default();
    f->aggregate = way;
    f->nodes = nodes;
    f->each = each;
    f->halves = halves;
    f->skip = -1;
    CHECK(gcomp_threads_open(&f->between, nodes, patience) == 0);
    for (int n = 0; n < nodes; n++) CHECK(gcomp_threads_open(&f->within[n], each, patience) == 0);
    for (int r = 0; r < nodes * each; r++) {
        gcomp_desc desc = desc_of(f, r, codec);
        f->m[r].of = f;
        f->m[r].rank = r;
        CHECK(gcomp_open(&f->m[r].gc, &desc) == GCOMP_OK);
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_tensor tensor = tensor_of(f, t);
            CHECK(gcomp_add_tensor(f->m[r].gc, &tensor) == GCOMP_OK);
        }
    }
}

static void fleet_close(fleet *f)
{
    for (int r = 0; r < f->nodes * f->each; r++) gcomp_close(f->m[r].gc);
    for (int n = 0; n < f->nodes; n++) gcomp_threads_close(f->within[n]);
    gcomp_threads_close(f->between);
}

static size_t elements(size_t t) { return rows[t] * (cols[t] ? cols[t] : 1); }

static float gradient(uint64_t step, int rank, size_t t, size_t i)
{
    uint64_t x = mix(step << 40 ^ (uint64_t)rank << 32 ^ t << 24 ^ i);
    return (float)((int)(x & 1023) - 512) / 256.0f; /* exact in 16 bits; sums of a few are exact in floats */
}

static uint16_t half_of(float x) /* a multiple of 1/256 below 4 */
{
    int e = 0, q = (int)(x < 0 ? -x * 256 : x * 256);
    if (!q) return 0;
    while (q >> (e + 1)) e++;
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (e + 15 - 8) << 10 | (q << (10 - e) & 1023));
}

static void fleet_fill(fleet *f, uint64_t step)
{
    for (int r = 0; r < f->nodes * f->each; r++)
        for (size_t t = 0; t < TENSORS; t++)
            for (size_t i = 0; i < elements(t); i++) {
                f->m[r].grad[t][i] = gradient(step, r, t, i);
                if (f->halves && t == TENSORS - 1) f->m[r].half[i] = half_of(f->m[r].grad[t][i]);
            }
}

static void *turn(void *arg)
{
    member *m = (member *)arg;
    const fleet *f = m->of;
    void *grads[TENSORS];
    for (int t = 0; t < TENSORS; t++) grads[t] = t == f->skip ? NULL : (void *)m->grad[t];
    if (f->halves) grads[TENSORS - 1] = m->half;
    if (m->tied) grads[1] = m->grad[0] + LARGEST - 1;
    m->result = gcomp_exchange_any(m->gc, grads, &f->step);
    return NULL;
}

static void fleet_step(fleet *f)
{
    pthread_t id[MOST];
    for (int r = 0; r < f->nodes * f->each; r++) CHECK(pthread_create(&id[r], NULL, turn, &f->m[r]) == 0);
    for (int r = 0; r < f->nodes * f->each; r++) pthread_join(id[r], NULL);
}

static int all_are(const fleet *f, gcomp_result result)
{
    int good = 1;
    for (int r = 0; r < f->nodes * f->each; r++) good &= f->m[r].result == result;
    return good;
}

/* The residual of a tensor of any kind, in one of two rooms; NULL: none. */
static const float *kept(const gcomp *gc, size_t t, int room)
{
    static float rooms[2][LARGEST];
    return gcomp_residual_get(gc, t, rooms[room]) == GCOMP_OK ? rooms[room] : NULL;
}

static uint64_t digest(const member *m, int residuals)
{
    uint64_t h = fnv(FNV, m->grad, sizeof m->grad / TENSORS * (m->of->halves ? TENSORS - 1 : TENSORS));
    h = fnv(h, m->half, sizeof m->half);
    for (size_t t = 0; t < TENSORS && residuals; t++)
        if (kept(m->gc, t, 0)) h = fnv(h, kept(m->gc, t, 0), 4 * elements(t));
    return h;
}

/* ---------------- the same as one level of the machines' means */

typedef struct flat_worker {
    gcomp *gc;
    float grad[TENSORS][LARGEST];
    gcomp_step step;
    int skip;
    gcomp_result result;
} flat_worker;

static void *flat_turn(void *arg)
{
    flat_worker *w = (flat_worker *)arg;
    float *grads[TENSORS];
    for (int t = 0; t < TENSORS; t++) grads[t] = t == w->skip ? NULL : w->grad[t];
    w->result = gcomp_exchange(w->gc, grads, &w->step);
    return NULL;
}

static void check_against_means(const char *codec, int nodes, int each, int halves, float scale)
{
    static fleet f;
    static flat_worker plain[NODES];
    gcomp_threads *group;
    pthread_t id[NODES];
    fleet_open(&f, nodes, each, codec, halves);
    CHECK(gcomp_threads_open(&group, nodes, 20) == 0);
    for (int n = 0; n < nodes; n++) {
        gcomp_desc desc = desc_of(&f, n * each, codec);
        memset(&desc.node, 0, sizeof desc.node);
        desc.comm = gcomp_threads_comm(group, n);
        plain[n].step = gcomp_step_default();
        CHECK(gcomp_open(&plain[n].gc, &desc) == GCOMP_OK);
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_tensor tensor = tensor_of(&f, t);
            tensor.dtype = GCOMP_F32;
            CHECK(gcomp_add_tensor(plain[n].gc, &tensor) == GCOMP_OK);
        }
    }
    for (uint64_t s = 0; s < 4; s++) {
        f.skip = s == 2 ? 1 : -1;
        f.step.scale = scale;
        fleet_fill(&f, s);
        for (int n = 0; n < nodes; n++) {
            for (size_t t = 0; t < TENSORS; t++)
                for (size_t i = 0; i < elements(t); i++) {
                    float sum = 0;
                    for (int r = 0; r < each; r++) sum += gradient(s, n * each + r, t, i);
                    plain[n].grad[t][i] = scale * sum / (float)each;
                }
            plain[n].skip = f.skip;
            CHECK(pthread_create(&id[n], NULL, flat_turn, &plain[n]) == 0);
        }
        for (int n = 0; n < nodes; n++) pthread_join(id[n], NULL);
        fleet_step(&f);
        CHECK(all_are(&f, GCOMP_OK));
        for (int r = 0; r < nodes * each; r++) {
            CHECK(gcomp_step_number(f.m[r].gc) == s + 1);
            for (int t = 0; t < TENSORS; t++) {
                size_t wrong = 0;
                const float *mine = kept(f.m[r].gc, (size_t)t, 0), *other = kept(plain[r / each].gc, (size_t)t, 1);
                if (t == f.skip) continue;
                for (size_t i = 0; i < elements((size_t)t); i++)
                    if (!(f.halves && t == TENSORS - 1)) wrong += f.m[r].grad[t][i] != plain[0].grad[t][i]; /* -0 is 0 */
                CHECK(!wrong);
                CHECK(r % each ? !mine : !mine == !other && (!mine || !memcmp(mine, other, 4 * elements((size_t)t))));
            }
            CHECK(digest(&f.m[r], 0) == digest(&f.m[0], 0) || f.skip >= 0); /* each keeps its own of a skipped one */
        }
    }
    for (int n = 0; n < nodes; n++) gcomp_close(plain[n].gc);
    gcomp_threads_close(group);
    fleet_close(&f);
}

static void test_the_mean_is_that_of_the_machines_means(void)
{
    static const char *const codecs[] = {"none", "sign", "topk:density=0.05", "powersgd:rank=2", "qsgd", "leadertopk:density=0.05",
                                         "dct:top=20,decay=0.9"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) check_against_means(codecs[c], 2, 2, c == 1, c == 1 ? 0.5f : 1.0f);
    check_against_means("int", 3, 2, 1, 1);
    way = GCOMP_AGGREGATE_TWO_SHOT;
    check_against_means("int:bits=4", 2, 2, 0, 1);
    way = GCOMP_AGGREGATE_AUTO;
    check_against_means("sign", 1, 4, 0, 1); /* one machine: its own transport outside */
    check_against_means("sign", 2, 1, 0, 1); /* machines of one worker: one level */
    residual = "int8";
    check_against_means("int:bits=4", 2, 2, 0, 1);
    residual = "bf16";
    check_against_means("topk:density=0.05", 2, 2, 0, 1);
    residual = NULL;
}

/* Within the machine too: neither the sum of the gradients nor that of the means has bytes of it.
   Beside these, the last sum has a byte of each tensor and 16 more, as floats. Where a collective
   within a machine fails, the workers that return an error are as they were. */
static void test_a_skipped_tensor_takes_no_bytes_within_a_machine(void)
{
    static fleet f;
    for (int halves = 0; halves < 2; halves++)
        for (int skip = -1; skip < (halves ? 2 : 3); skip++)
            for (int fail_at = 0; fail_at <= 4; fail_at++) {
                uint64_t before[4], untouched[4];
                size_t n = 0;
                fleet_open(&f, 2, 2, "sign", halves);
                for (uint64_t step = 0; step < 2; step++) {
                    fleet_fill(&f, step);
                    f.skip = step ? skip : -1;
                    for (int r = 0; r < 4; r++) {
                        f.m[r].summed = 0;
                        f.m[r].calls = 0;
                        before[r] = digest(&f.m[r], 1);
                        untouched[r] = skip < 0 ? 0 : fnv(FNV, f.m[r].grad[skip], 4 * elements((size_t)skip));
                        f.m[r].fail_at = step && r == 3 ? fail_at : 0;
                        f.m[r].breaks = 1; /* nobody waits for the others */
                    }
                    fleet_step(&f);
                }
                if (!fail_at) CHECK(all_are(&f, GCOMP_OK));
                else CHECK(!all_are(&f, GCOMP_OK));
                for (size_t t = 0; t < TENSORS; t++) n += (int)t == skip ? 0 : elements(t);
                for (int r = 0; r < 4; r++) {
                    if (!fail_at) CHECK(f.m[r].summed == 4 * (2 * n + TENSORS + 16));
                    if (f.m[r].result != GCOMP_OK) CHECK(digest(&f.m[r], 1) == before[r]);
                    if (skip >= 0) CHECK(fnv(FNV, f.m[r].grad[skip], 4 * elements((size_t)skip)) == untouched[r]);
                }
                fleet_close(&f);
            }
}

static void test_what_is_not_finite_on_one_worker_is_skipped_by_all(void)
{
    static fleet f;
    uint64_t before[4];
    const float bad = (float)1e38;
    fleet_open(&f, 2, 2, "sign", 0);
    fleet_fill(&f, 0);
    fleet_step(&f);
    fleet_fill(&f, 1);
    f.m[3].grad[0][7] = bad * bad;
    for (int r = 0; r < 4; r++) before[r] = digest(&f.m[r], 1);
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_NOT_FINITE));
    for (int r = 0; r < 4; r++) {
        gcomp_statistics stats;
        CHECK(digest(&f.m[r], 1) == before[r] && gcomp_error(f.m[r].gc)[0]);
        CHECK(gcomp_stats(f.m[r].gc, &stats) == GCOMP_OK && stats.skipped == 1 && stats.steps == 1);
        CHECK(stats.not_finite == (r == 3));
    }
    f.m[3].grad[0][7] = 0;
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_OK));
    fleet_close(&f);
}

/* A step of a fresh fleet behind one that all took. Whatever fails on one worker, each has
   either taken the step, with the bits of all and its residual, or has an error, a sentence, and
   everything as it was. How many took it; the fleet goes on. */
static int step_with_a_failure(fleet *f, const char *codec, int who, int at, int trip, int breaks)
{
    static fleet sound;
    uint64_t before[MOST], after[MOST];
    int took = 0;
    fleet_open(&sound, 2, 2, codec, 0);
    fleet_open(f, 2, 2, codec, 0);
    for (uint64_t s = 0; s < 2; s++) {
        fleet_fill(&sound, s);
        fleet_step(&sound);
        CHECK(all_are(&sound, GCOMP_OK));
        fleet_fill(f, s);
        for (int r = 0; r < 4; r++) before[r] = digest(&f->m[r], 1), after[r] = digest(&sound.m[r], 1);
        if (s == 1) {
            f->m[who].breaks = breaks;
            if (at) f->m[who].fail_at = f->m[who].calls + at;
            if (trip) f->m[who].trip_fails_at = f->m[who].trips + trip;
        }
        fleet_step(f);
        CHECK(s == 1 || all_are(f, GCOMP_OK));
    }
    for (int r = 0; r < 4; r++) {
        const int ok = f->m[r].result == GCOMP_OK;
        took += ok;
        CHECK(digest(&f->m[r], 1) == (ok ? after[r] : before[r]));
        CHECK(gcomp_step_number(f->m[r].gc) == (ok ? 2u : 1u));
        CHECK(!ok == (gcomp_error(f->m[r].gc)[0] != 0));
    }
    fleet_close(&sound);
    return took;
}

/* A step calls the callbacks of a node in this order: 1 gathers frames, 2 sums, 3 gathers the
   outcomes, 4 sums the means. */
static void test_a_callback_of_a_node_that_fails_leaves_each_worker_before_or_behind_the_step(void)
{
    static const char *const codecs[] = {"sign", "powersgd:rank=2"};
    static fleet f;
    for (int breaks = 0; breaks < 2; breaks++)
        for (int who = 0; who < 4; who++)
            for (int at = 1; at <= 4; at++) {
                const int others = who % 2 ? 3 : 4; /* a first worker has its mean before the last sum */
                int took, expected = at < 3 || (at == 3 && !(who % 2)) ? 0 : at == 3 && !breaks ? 4 : others;
                patience = at == 1 ? 0.3 : 20; /* who cannot know what the others do next is waited for */
                took = step_with_a_failure(&f, codecs[(who + at) % 2], who, at, 0, breaks);
                CHECK(f.m[who].calls >= f.m[who].fail_at); /* it was called */
                CHECK(took == expected);
                if (took == 0 && at > 1 && !breaks) { /* all saw it: the step can be repeated */
                    fleet_step(&f);
                    CHECK(all_are(&f, GCOMP_OK));
                } else if (took != 4) { /* the next step names it on all */
                    patience = 1;
                    fleet_step(&f);
                    for (int r = 0; r < 4; r++) CHECK(f.m[r].result != GCOMP_OK && gcomp_error(f.m[r].gc)[0]);
                    if (!breaks && took) CHECK(all_are(&f, GCOMP_OUT_OF_STEP));
                }
                fleet_close(&f);
            }
    patience = 20;
}

static void test_a_callback_between_machines_that_fails_leaves_each_worker_before_or_behind_the_step(void)
{
    static fleet f;
    for (int who = 0; who < 4; who += 2)
        for (int trip = 1; trip <= 3; trip++) { /* gather of frames, sum, gather of payloads */
            int took;
            patience = 0.5;
            took = step_with_a_failure(&f, "sign", who, 0, trip, 0);
            CHECK(took == (trip < 3 ? 0 : 2));
            for (int r = who; r < who + 2; r++) CHECK(f.m[r].result == (r == who ? GCOMP_CALLBACK_FAILED : GCOMP_PEER_FAILED));
            fleet_step(&f);
            if (trip == 3)
                for (int r = 0; r < 4; r++) CHECK(f.m[r].result == GCOMP_OUT_OF_STEP);
            fleet_close(&f);
        }
    patience = 20;
}

static void test_a_damaged_outcome_is_refused(void)
{
    static fleet f;
    fleet_open(&f, 2, 2, "sign", 0);
    fleet_fill(&f, 0);
    f.m[0].damage_at = 3; /* before the first worker goes out: all are told */
    fleet_step(&f);
    CHECK(f.m[0].result == GCOMP_CHECKSUM_MISMATCH && strstr(gcomp_error(f.m[0].gc), "damaged"));
    for (int r = 1; r < 4; r++) CHECK(f.m[r].result == GCOMP_PEER_FAILED);
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_OK));
    f.m[1].damage_at = f.m[1].calls + 4; /* of the last sum: for this worker alone */
    fleet_step(&f);
    for (int r = 0; r < 4; r++) CHECK(f.m[r].result == (r == 1 ? GCOMP_CHECKSUM_MISMATCH : GCOMP_OK));
    CHECK(strstr(gcomp_error(f.m[1].gc), "damaged"));
    fleet_step(&f);
    for (int r = 0; r < 4; r++) CHECK(f.m[r].result == GCOMP_OUT_OF_STEP);
    fleet_close(&f);
}

/* The transport between machines brings one machine another sum than the others. First workers see
   it, and all workers must be told. */
static void test_means_that_differ_between_machines_are_told_to_all_workers(void)
{
    static fleet f;
    checks = 1;
    fleet_open(&f, 2, 2, "none", 0);
    checks = 0;
    f.m[2].trip_lies_at = 2; /* behind the frames */
    fleet_fill(&f, 0);
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_OK));
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_DIVERGED));
    for (int r = 0; r < 4; r++) CHECK(gcomp_error(f.m[r].gc)[0]);
    for (int r = 0; r < 4; r++) CHECK(gcomp_restart(f.m[r].gc, 1) == GCOMP_OK);
    fleet_step(&f);
    CHECK(all_are(&f, GCOMP_OK));
    fleet_close(&f);
}

/* ---------------- steps that a callback leaves by a jump */

static void *turn_with_a_way_out(void *arg)
{
    member *m = (member *)arg;
    jmp_buf out;
    m->way_out = &out;
    m->result = GCOMP__RESULT_END;
    if (!setjmp(out)) (void)turn(m);
    m->way_out = NULL;
    return NULL;
}

/* All workers leave in the same callback of their machine. */
static void test_a_step_that_was_left_by_a_jump_is_ended_by_abort_and_by_restart(void)
{
    static fleet f;
    for (int at = 1; at <= 4; at++)
        for (int restarts = 0; restarts < 2; restarts++) {
            pthread_t id[MOST];
            uint8_t save[8];
            size_t length;
            fleet_open(&f, 2, 2, "sign", 0);
            fleet_fill(&f, 0);
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            for (int r = 0; r < 4; r++) f.m[r].fail_at = f.m[r].calls + at;
            for (int r = 0; r < 4; r++) CHECK(pthread_create(&id[r], NULL, turn_with_a_way_out, &f.m[r]) == 0);
            for (int r = 0; r < 4; r++) pthread_join(id[r], NULL);
            for (int r = 0; r < 4; r++) {
                CHECK(f.m[r].result == GCOMP__RESULT_END); /* it never came back */
                if (at < 3) { /* inside the step of the machine: until it is ended nothing can be done, nor waits */
                    CHECK(turn(&f.m[r]) == NULL && f.m[r].result == GCOMP_WRONG_STATE);
                    CHECK(gcomp_prepare(f.m[r].gc) == GCOMP_WRONG_STATE && gcomp_reset(f.m[r].gc, 0) == GCOMP_WRONG_STATE);
                    CHECK(gcomp_take_over(f.m[r].gc, save, length = sizeof save) == GCOMP_WRONG_STATE);
                }
                CHECK((restarts ? gcomp_restart(f.m[r].gc, 7) : gcomp_step_abort(f.m[r].gc)) == GCOMP_OK);
                if (!restarts) CHECK(gcomp_step_number(f.m[r].gc) == (at == 4 && r % 2 == 0 ? 2u : 1u));
                if (at == 4) CHECK(gcomp_restart(f.m[r].gc, 7) == GCOMP_OK); /* first workers had committed */
            }
            for (int again = 0; again < 2; again++) {
                fleet_step(&f);
                CHECK(all_are(&f, GCOMP_OK));
            }
            fleet_close(&f);
        }
}

/* ---------------- what workers know that are not the first of their machine */

static void test_all_workers_of_a_machine_know_the_codecs_of_the_step(void)
{
    static fleet f;
    static const char *const lists[] = {"topk:density=0.001", "topk:density=0.5|topk:density=0.05"};
    static const char *const schedules[] = {"warmup:epochs=4", "accordion:every=1"};
    for (int which = 0; which < 2; which++) {
        gcomp_statistics first, stats;
        schedule = schedules[which];
        fleet_open(&f, 2, 2, lists[which], 0);
        schedule = NULL;
        for (uint32_t s = 0; s < 8; s++) {
            f.step.epoch = s;
            fleet_fill(&f, which ? 0 : s);
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            for (size_t t = 0; t < TENSORS; t++)
                for (int r = 1; r < 4; r++)
                    CHECK(!memcmp(gcomp_tensor_codec(f.m[r].gc, t), gcomp_tensor_codec(f.m[0].gc, t), sizeof(gcomp_codec)));
        }
        CHECK(gcomp_stats(f.m[0].gc, &first) == GCOMP_OK && first.switches > 0);
        for (int r = 1; r < 4; r++)
            CHECK(gcomp_stats(f.m[r].gc, &stats) == GCOMP_OK && stats.switches == first.switches && stats.steps == 8);
        fleet_close(&f);
    }
}

static void test_workers_of_a_machine_with_other_codecs_are_named(void)
{
    static fleet f;
    gcomp_desc desc;
    fleet_open(&f, 2, 2, "sign", 0);
    gcomp_close(f.m[3].gc);
    desc = desc_of(&f, 3, "int");
    CHECK(gcomp_open(&f.m[3].gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor tensor = tensor_of(&f, t);
        CHECK(gcomp_add_tensor(f.m[3].gc, &tensor) == GCOMP_OK);
    }
    fleet_step(&f);
    for (int r = 0; r < 4; r++) CHECK(f.m[r].result == (r < 2 ? GCOMP_PEER_FAILED : GCOMP_MISMATCH));
    CHECK(strstr(gcomp_error(f.m[2].gc), "other codecs") && strstr(gcomp_error(f.m[3].gc), "rank 0"));
    fleet_close(&f);
}

/* Whichever worker has such gradients, a first one of its machine or not: all hear of it,
   nothing has changed, and the step can be repeated without the fault. */
static void test_gradients_that_share_memory_are_refused_on_all_machines(void)
{
    for (int halves = 0; halves < 2; halves++)
        for (int odd = 0; odd < 4; odd++) {
            static fleet f;
            uint64_t before[4];
            fleet_open(&f, 2, 2, "sign", halves);
            fleet_fill(&f, 0);
            for (int r = 0; r < 4; r++) before[r] = digest(&f.m[r], 1);
            f.m[odd].tied = 1;
            fleet_step(&f);
            for (int r = 0; r < 4; r++) {
                CHECK(f.m[r].result == (r == odd ? GCOMP_INVALID_ARGUMENT : GCOMP_PEER_FAILED));
                CHECK(digest(&f.m[r], 1) == before[r]);
            }
            CHECK(strstr(gcomp_error(f.m[odd].gc), "tensor 'a' and tensor 'b': their gradients share memory"));
            f.m[odd].tied = 0;
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            fleet_close(&f);
        }
}

/* One worker alone has a transport to other machines, or alone has none. The workers of its machine
   are told, and do not wait. */
static void test_a_first_worker_without_callbacks_says_so_to_its_machine(void)
{
    static fleet f;
    gcomp_desc desc;
    fleet_open(&f, 2, 2, "sign", 0);
    for (int r = 0; r < 4; r += 2) {
        gcomp_close(f.m[r].gc);
        desc = desc_of(&f, r, "sign");
        desc.comm.allgather = NULL;
        CHECK(gcomp_open(&f.m[r].gc, &desc) == GCOMP_OK);
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_tensor tensor = tensor_of(&f, t);
            CHECK(gcomp_add_tensor(f.m[r].gc, &tensor) == GCOMP_OK);
        }
    }
    for (int again = 0; again < 2; again++) {
        fleet_step(&f);
        for (int r = 0; r < 4; r++) CHECK(f.m[r].result == (r % 2 ? GCOMP_PEER_FAILED : GCOMP_MISSING_CALLBACK));
    }
    CHECK(strstr(gcomp_error(f.m[0].gc), "comm.allgather"));
    fleet_close(&f);
}

/* First workers save and load; the others are told the number of the step. */
static void test_saves_of_first_workers_go_on_with_the_same_bits(void)
{
    static fleet f, again;
    static uint8_t save[NODES][1 << 16];
    size_t length[NODES] = {0, 0, 0};
    fleet_open(&f, 2, 2, "topk:density=0.1", 0);
    fleet_open(&again, 2, 2, "topk:density=0.1", 0);
    for (uint64_t s = 0; s < 4; s++) {
        if (s == 2)
            for (int r = 0; r < 4; r++) {
                const void *saves[1] = {save[r / 2]};
                gcomp_result result = gcomp_save(f.m[r].gc, save[r / 2], sizeof save[0], &length[r / 2]);
                CHECK(result == (r % 2 ? GCOMP_WRONG_STATE : GCOMP_OK));
                result = gcomp_load(again.m[r].gc, saves, &length[r / 2], 1);
                CHECK(result == (r % 2 ? GCOMP_WRONG_STATE : GCOMP_OK));
                if (r % 2) CHECK(strstr(gcomp_error(f.m[r].gc), "node.rank 0") && strstr(gcomp_error(again.m[r].gc), "node.rank 0"));
                if (r % 2) CHECK(gcomp_restart(again.m[r].gc, 2) == GCOMP_OK);
            }
        fleet_fill(&f, s);
        fleet_step(&f);
        CHECK(all_are(&f, GCOMP_OK));
        if (s < 2) continue;
        fleet_fill(&again, s);
        fleet_step(&again);
        CHECK(all_are(&again, GCOMP_OK));
        for (int r = 0; r < 4; r++) CHECK(digest(&f.m[r], 1) == digest(&again.m[r], 1));
    }
    fleet_close(&f);
    fleet_close(&again);
}

/* ---------------- workers of a machine, and machines, that come and go */

enum { AWAY = -1 };

/* Which machine each worker is on; beside them a worker for each machine, in one level, that has
   the mean of its gradients. */
typedef struct site {
    fleet f; /* its transports, and its members */
    gcomp_threads *outside;
    flat_worker plain[NODES];
    int on[MOST];
    const char *codec;
    uint64_t step;
    uint8_t save[1 << 16];
    size_t length;
} site;

static int machines(const site *t)
{
    int count = 0;
    for (int r = 0; r < MOST; r++) count = t->on[r] >= count ? t->on[r] + 1 : count;
    return count;
}

/* The rank of a worker within its machine, or how many there are (r = MOST). */
static int rank_on(const site *t, int machine, int r)
{
    int rank = 0;
    for (int other = 0; other < r; other++) rank += t->on[other] == machine;
    return rank;
}

static gcomp_desc site_desc(const site *t, int r)
{
    gcomp_desc desc;
    const int machine = t->on[r], rank = rank_on(t, machine, r);
    memset(&desc, 0, sizeof desc);
    desc.codec = t->codec;
    desc.min_elements = 1;
    if (rank == 0) desc.comm = gcomp_threads_comm(t->f.between, machine);
    desc.comm.rank = machine;
    desc.comm.world = machines(t);
    desc.node = gcomp_threads_comm(t->f.within[machine], rank);
    return desc;
}

static gcomp *open_with_tensors(const site *t, const gcomp_desc *desc)
{
    gcomp *gc;
    CHECK(gcomp_open(&gc, desc) == GCOMP_OK);
    for (size_t i = 0; i < TENSORS; i++) {
        gcomp_tensor tensor = tensor_of(&t->f, i);
        if (desc->node.world == 0) tensor.dtype = GCOMP_F32; /* one of those beside them */
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    return gc;
}

static void close_transports(site *t)
{
    gcomp_threads_close(t->f.between);
    gcomp_threads_close(t->outside);
    for (int n = 0; n < NODES; n++) gcomp_threads_close(t->f.within[n]);
}

/* Makes transports for the workers as they are now. A worker that was here before regroups; a new
   one opens an object. */
static void site_settle(site *t)
{
    const int count = machines(t);
    close_transports(t);
    CHECK(gcomp_threads_open(&t->f.between, count, 20) == 0 && gcomp_threads_open(&t->outside, count, 20) == 0);
    for (int n = 0; n < NODES; n++)
        CHECK(gcomp_threads_open(&t->f.within[n], n < count ? rank_on(t, n, MOST) : 1, 20) == 0);
    for (int r = 0; r < MOST; r++) {
        member *m = &t->f.m[r];
        gcomp_desc desc;
        m->of = &t->f;
        m->rank = r;
        if (t->on[r] == AWAY) {
            gcomp_close(m->gc);
            m->gc = NULL;
            continue;
        }
        desc = site_desc(t, r);
        if (!m->gc) m->gc = open_with_tensors(t, &desc);
        else CHECK(gcomp_regroup_machines(m->gc, &desc.comm, &desc.node) == GCOMP_OK);
    }
    for (int n = 0; n < NODES; n++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.codec = t->codec;
        desc.min_elements = 1;
        if (n < count) desc.comm = gcomp_threads_comm(t->outside, n);
        if (n < count && t->plain[n].gc) CHECK(gcomp_regroup(t->plain[n].gc, &desc.comm) == GCOMP_OK);
        else if (n < count) t->plain[n].gc = open_with_tensors(t, &desc);
        t->plain[n].skip = -1;
    }
}

/* Takes two steps. All workers must get the same means, and the first worker of each machine must
   have the residual of the worker that stands for the machine on one level. */
static void site_steps(site *t)
{
    for (int again = 0; again < 2; again++, t->step++) {
        pthread_t id[MOST], beside[NODES];
        fleet_fill(&t->f, t->step);
        for (int n = 0; n < machines(t); n++) {
            const float part = 1.0f / (float)rank_on(t, n, MOST);
            for (size_t i = 0; i < TENSORS; i++)
                for (size_t k = 0; k < elements(i); k++) {
                    float sum = 0;
                    for (int r = 0; r < MOST; r++) {
                        volatile float share = gradient(t->step, r, i, k) * part; /* rounded, not fused with the sum */
                        if (t->on[r] == n) sum += share;
                    }
                    t->plain[n].grad[i][k] = sum;
                }
            CHECK(pthread_create(&beside[n], NULL, flat_turn, &t->plain[n]) == 0);
        }
        for (int r = 0; r < MOST; r++)
            if (t->f.m[r].gc) CHECK(pthread_create(&id[r], NULL, turn, &t->f.m[r]) == 0);
        for (int n = 0; n < machines(t); n++) pthread_join(beside[n], NULL);
        for (int r = 0; r < MOST; r++) {
            const int first = t->on[r] != AWAY && rank_on(t, t->on[r], r) == 0;
            if (!t->f.m[r].gc) continue;
            pthread_join(id[r], NULL);
            CHECK(t->f.m[r].result == GCOMP_OK && t->plain[t->on[r]].result == GCOMP_OK);
            CHECK(gcomp_step_number(t->f.m[r].gc) == t->step + 1);
            for (size_t i = 0; i < TENSORS; i++) {
                const float *mine = kept(t->f.m[r].gc, i, 0), *other = kept(t->plain[t->on[r]].gc, i, 1);
                size_t wrong = 0;
                for (size_t k = 0; k < elements(i); k++)
                    if (!(t->f.halves && i == TENSORS - 1)) wrong += t->f.m[r].grad[i][k] != t->plain[0].grad[i][k];
                CHECK(!wrong);
                CHECK(first ? !mine == !other && (!mine || !memcmp(mine, other, 4 * elements(i))) : !mine);
            }
        }
    }
}

static void save_of(site *t, gcomp *gc) { CHECK(gcomp_save(gc, t->save, sizeof t->save, &t->length) == GCOMP_OK); }

static void check_who_comes_and_goes(const char *codec, int halves)
{
    static site t;
    static const int begin[MOST] = {0, 0, 1, 1, AWAY, AWAY};
    const void *saves[1] = {t.save};
    memset(&t, 0, sizeof t);
    t.codec = codec;
    t.f.skip = -1;
    t.f.halves = halves;
    t.f.each = MOST; /* what fleet_fill fills */
    t.f.nodes = 1;
    memcpy(t.on, begin, sizeof begin);
    site_settle(&t);
    site_steps(&t);
    t.on[3] = AWAY; /* a worker leaves; the other one of its machine is alone */
    site_settle(&t);
    site_steps(&t);
    t.on[4] = 0; /* a worker joins a machine, another makes two of one */
    t.on[5] = 1;
    site_settle(&t);
    for (int r = 4; r < 6; r++) CHECK(gcomp_restart(t.f.m[r].gc, t.step) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[0].gc); /* the first worker leaves, and the next one takes its place */
    t.on[0] = AWAY;
    site_settle(&t);
    CHECK(gcomp_load(t.f.m[1].gc, saves, &t.length, 1) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[2].gc); /* a machine of two workers joins */
    t.on[0] = t.on[3] = 2;
    site_settle(&t);
    CHECK(gcomp_join(t.f.m[0].gc, t.save, t.length) == GCOMP_OK && gcomp_restart(t.f.m[3].gc, t.step) == GCOMP_OK);
    CHECK(gcomp_join(t.plain[2].gc, t.save, t.length) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[2].gc); /* a machine leaves, the last one takes its number */
    CHECK(gcomp_take_over(t.f.m[1].gc, t.save, t.length) == GCOMP_OK);
    CHECK(gcomp_take_over(t.plain[0].gc, t.save, t.length) == GCOMP_OK);
    t.on[2] = t.on[5] = AWAY;
    t.on[0] = t.on[3] = 1;
    gcomp_close(t.plain[1].gc);
    t.plain[1].gc = t.plain[2].gc;
    t.plain[2].gc = NULL;
    site_settle(&t);
    site_steps(&t);
    t.on[0] = AWAY; /* the first worker of a machine is lost; the next one does no step without what all first workers know */
    site_settle(&t);
    {
        pthread_t id[MOST];
        for (int r = 0; r < MOST; r++)
            if (t.f.m[r].gc) CHECK(pthread_create(&id[r], NULL, turn, &t.f.m[r]) == 0);
        for (int r = 0; r < MOST; r++)
            if (t.f.m[r].gc) CHECK(pthread_join(id[r], NULL) == 0);
        CHECK(t.f.m[3].result == GCOMP_WRONG_STATE && strstr(gcomp_error(t.f.m[3].gc), "gcomp_join"));
        CHECK(t.f.m[1].result == GCOMP_PEER_FAILED && t.f.m[4].result == GCOMP_PEER_FAILED);
    }
    save_of(&t, t.f.m[1].gc);
    CHECK(gcomp_join(t.f.m[3].gc, t.save, t.length) == GCOMP_OK && gcomp_join(t.plain[1].gc, t.save, t.length) == GCOMP_OK);
    site_steps(&t);
    close_transports(&t);
    for (int r = 0; r < MOST; r++) gcomp_close(t.f.m[r].gc);
    for (int n = 0; n < NODES; n++) gcomp_close(t.plain[n].gc);
}

static void test_workers_and_machines_come_and_go_and_keep_what_was_not_sent(void)
{
    static const char *const codecs[] = {"sign", "topk:density=0.05", "powersgd:rank=2", "dgc:density=0.05,warmup=0", "leadertopk:density=0.05",
                                         "dct:top=20,decay=0.9"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) check_who_comes_and_goes(codecs[c], c == 0);
    residual = "int8";
    check_who_comes_and_goes("topk:density=0.05", 0);
    residual = "bf16";
    check_who_comes_and_goes("sign", 1);
    residual = NULL;
}

/* A worker moves from each place to each other one, with a schedule, for which rank 0 holds
   more. */
static void test_regrouping_a_machine_takes_the_memory_that_was_said_or_changes_nothing(void)
{
    static fleet f;
    memset(&f, 0, sizeof f);
    f.halves = 1;
    for (int way_to = 0; way_to < 16; way_to++)
        for (int prepared = 0; prepared < 4; prepared++) { /* bit 1: with small residuals */
            gcomp_desc from, to;
            gcomp_tensor tensors[TENSORS];
            gcomp_result result = GCOMP_OUT_OF_MEMORY;
            gcomp *gc;
            test_heap heap = {SIZE_MAX, 0, 0, 0};
            memset(&from, 0, sizeof from);
            from.codec = "topk:density=0.5|topk:density=0.05";
            from.schedule = "accordion";
            from.residual = prepared & 2 ? "int8" : NULL;
            from.min_elements = 1;
            from.allocator = heap_of(&heap);
            from.comm.world = 2;
            from.node.allreduce = no_allreduce;
            from.node.allgather = no_allgather;
            to = from;
            from.node.world = way_to & 1 ? 2 : 1;
            from.node.rank = (way_to & 3) == 3;
            to.node.world = way_to & 4 ? 2 : 1;
            to.node.rank = (way_to & 12) == 12;
            to.comm.world = way_to & 2 ? 3 : 2;
            for (size_t t = 0; t < TENSORS; t++) tensors[t] = tensor_of(&f, t);
            CHECK(gcomp_open(&gc, &from) == GCOMP_OK);
            for (size_t t = 0; t < TENSORS; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
            if (prepared & 1) CHECK(gcomp_prepare(gc) == GCOMP_OK);
            for (size_t left = 0; result == GCOMP_OUT_OF_MEMORY; left++) {
                const size_t held = heap.held, blocks = heap.blocks, used = gcomp_memory_used(gc);
                heap.left = left;
                result = gcomp_regroup_machines(gc, &to.comm, &to.node);
                if (result == GCOMP_OK) continue;
                CHECK(result == GCOMP_OUT_OF_MEMORY && held == heap.held && blocks == heap.blocks);
                CHECK(gcomp_memory_used(gc) == used && !kept(gc, 0, 0) == (from.node.rank != 0));
            }
            heap.left = SIZE_MAX;
            CHECK(result == GCOMP_OK && heap.held == gcomp_memory_used(gc));
            CHECK(!kept(gc, 0, 0) == (to.node.rank != 0));
            if (!(prepared & 1)) CHECK(gcomp_prepare(gc) == GCOMP_OK);
            CHECK(gcomp_memory_used(gc) == gcomp_memory_needed(&to, tensors, TENSORS));
            gcomp_close(gc);
            CHECK(heap.blocks == 0);
        }
}

static void test_what_a_new_machine_lacks_is_named_and_changes_nothing(void)
{
    gcomp_desc desc;
    gcomp_comm comm, node;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&node, 0, sizeof node);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    comm = desc.comm;
    node.world = 2;
    CHECK(gcomp_regroup_machines(gc, &comm, &node) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "node"));
    node.rank = 2;
    CHECK(gcomp_regroup_machines(gc, &comm, &node) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "node.rank is 2"));
    CHECK(gcomp_regroup_machines(gc, &comm, NULL) == GCOMP_INVALID_ARGUMENT && gcomp_error(gc)[0]);
    CHECK(gcomp_regroup_machines(gc, NULL, &node) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_regroup_machines(NULL, &comm, &node) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK); /* one level, still */
    node.rank = node.world = 0;
    CHECK(gcomp_regroup_machines(gc, &comm, &node) == GCOMP_WRONG_STATE);
    gcomp_close(gc);
}

/* ---------------- memory, and what open refuses */

static void test_memory_is_what_was_said_and_may_end_anywhere(void)
{
    static fleet f;
    memset(&f, 0, sizeof f);
    f.nodes = f.each = 2;
    f.halves = 1;
    CHECK(gcomp_threads_open(&f.between, 2, 1) == 0);
    CHECK(gcomp_threads_open(&f.within[0], 2, 1) == 0);
    for (int r = 0; r < 2; r++) {
        gcomp_desc desc = desc_of(&f, r, "sign");
        gcomp_tensor tensors[TENSORS];
        gcomp *gc = NULL;
        test_heap heap = {0, 0, 0, 0};
        size_t needed, made, left;
        desc.allocator = heap_of(&heap);
        for (size_t t = 0; t < TENSORS; t++) tensors[t] = tensor_of(&f, t);
        needed = gcomp_memory_needed(&desc, tensors, TENSORS);
        for (left = made = 0; !made; left++) { /* memory ends once, after so many */
            gcomp_result result;
            heap.left = left;
            result = gcomp_open(&gc, &desc);
            made = result == GCOMP_OK;
            for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) {
                result = gcomp_add_tensor(gc, &tensors[t]);
                if (result == GCOMP_OK) continue;
                CHECK(result == GCOMP_OUT_OF_MEMORY && gcomp_tensor_count(gc) == t);
                made = 0;
                heap.left = SIZE_MAX;
                result = gcomp_add_tensor(gc, &tensors[t]); /* there is memory again: on both levels as if nothing had been */
            }
            if (result == GCOMP_OK && gcomp_prepare(gc) != GCOMP_OK) {
                made = 0;
                heap.left = SIZE_MAX;
                result = gcomp_prepare(gc);
            }
            CHECK(result == GCOMP_OK || (result == GCOMP_OUT_OF_MEMORY && !gc));
            if (result == GCOMP_OK) CHECK(gcomp_memory_used(gc) == needed && gcomp_tensor_count(gc) == TENSORS);
            gcomp_close(gc);
            CHECK(heap.blocks == 0);
        }
        CHECK(left > 10);
    }
    gcomp_threads_close(f.between);
    gcomp_threads_close(f.within[0]);
}

static void test_what_a_node_lacks_is_named(void)
{
    char why[200];
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.why = why;
    desc.why_capacity = sizeof why;
    desc.node.world = 2;
    desc.node.allreduce = no_allreduce;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_MISSING_CALLBACK && strstr(why, "node") && !gc);
    desc.node.allgather = no_allgather;
    desc.node.rank = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "node.rank is 2"));
    desc.node.rank = 1;
    desc.node.world = -1;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "node.world is -1"));
    desc.node.world = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_WRONG_STATE && strstr(gcomp_error(gc), "desc.node"));
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_the_mean_is_that_of_the_machines_means);
    RUN(test_a_skipped_tensor_takes_no_bytes_within_a_machine);
    RUN(test_what_is_not_finite_on_one_worker_is_skipped_by_all);
    RUN(test_a_callback_of_a_node_that_fails_leaves_each_worker_before_or_behind_the_step);
    RUN(test_a_callback_between_machines_that_fails_leaves_each_worker_before_or_behind_the_step);
    RUN(test_a_damaged_outcome_is_refused);
    RUN(test_means_that_differ_between_machines_are_told_to_all_workers);
    RUN(test_a_step_that_was_left_by_a_jump_is_ended_by_abort_and_by_restart);
    RUN(test_all_workers_of_a_machine_know_the_codecs_of_the_step);
    RUN(test_workers_of_a_machine_with_other_codecs_are_named);
    RUN(test_gradients_that_share_memory_are_refused_on_all_machines);
    RUN(test_a_first_worker_without_callbacks_says_so_to_its_machine);
    RUN(test_saves_of_first_workers_go_on_with_the_same_bits);
    RUN(test_workers_and_machines_come_and_go_and_keep_what_was_not_sent);
    RUN(test_regrouping_a_machine_takes_the_memory_that_was_said_or_changes_nothing);
    RUN(test_what_a_new_machine_lacks_is_named_and_changes_nothing);
    RUN(test_memory_is_what_was_said_and_may_end_anywhere);
    RUN(test_what_a_node_lacks_is_named);
    return test_end();
}
