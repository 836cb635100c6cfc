/* Proves of two levels (desc.node): all workers get what the first workers of the machines would get, on one level, from the means of the machines; and faults. */

#include "nodes.h"

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
        plain[n].step = default_step();
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
    check_against_means("topk:density=0.05,global=1+int:bits=4", 3, 2, 0, 1);
    way = GCOMP_AGGREGATE_AUTO;
    check_against_means("topk:density=0.05,global=1", 3, 2, 0, 1);
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

/* ---------------- no memory, and NaN, in one step of a machine of two */

typedef struct {
    gcomp_threads *machine;
    int rank, left; /* allocations that it still gets */
    gcomp_result first, then;
} scarce;

static void *scarce_alloc(void *user, size_t bytes, size_t align)
{
    scarce *s = (scarce *)user;
    void *memory = NULL;
    if (s->left-- <= 0 || posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes)) return NULL;
    return memory;
}

static void scarce_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

static void *scarce_turn(void *arg)
{
    enum { ALL = 1000 };
    static float grads[2][4096];
    scarce *s = (scarce *)arg;
    const int left = s->left;
    void *grad[1] = {grads[s->rank]};
    gcomp *gc;
    gcomp_desc desc;
    gcomp_tensor tensor = {"a", 64, 64, 0, GCOMP_F32, "int"};
    memset(&desc, 0, sizeof desc);
    desc.node = gcomp_threads_comm(s->machine, s->rank);
    desc.aggregate = GCOMP_AGGREGATE_GATHER;
    desc.allocator.alloc = scarce_alloc;
    desc.allocator.free = scarce_free;
    desc.allocator.user = s;
    s->left = ALL;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    if (s->rank == 0) s->left = left;
    for (int i = 0; i < 4096; i++) grads[s->rank][i] = 1;
    grads[s->rank][7] = NAN;
    s->first = gcomp_exchange(gc, grad, NULL);
    s->left = ALL;
    grads[s->rank][7] = 1;
    s->then = gcomp_exchange(gc, grad, NULL);
    gcomp_close(gc);
    return NULL;
}

static void test_no_memory_beside_what_is_not_finite_fails_and_can_be_repeated(void)
{
    for (int left = 0; left < 8; left++) {
        scarce s[2];
        pthread_t id[2];
        gcomp_threads *machine;
        CHECK(gcomp_threads_open(&machine, 2, 20) == 0);
        for (int r = 0; r < 2; r++) {
            memset(&s[r], 0, sizeof s[r]);
            s[r].machine = machine;
            s[r].rank = r;
            s[r].left = left;
            CHECK(pthread_create(&id[r], NULL, scarce_turn, &s[r]) == 0);
        }
        for (int r = 0; r < 2; r++) pthread_join(id[r], NULL);
        for (int r = 0; r < 2; r++) CHECK(s[r].first != GCOMP_OK && s[r].then == GCOMP_OK);
        gcomp_threads_close(machine);
    }
}

int main(void)
{
    RUN(test_no_memory_beside_what_is_not_finite_fails_and_can_be_repeated);
    RUN(test_the_mean_is_that_of_the_machines_means);
    RUN(test_a_skipped_tensor_takes_no_bytes_within_a_machine);
    RUN(test_what_is_not_finite_on_one_worker_is_skipped_by_all);
    RUN(test_a_callback_of_a_node_that_fails_leaves_each_worker_before_or_behind_the_step);
    RUN(test_a_callback_between_machines_that_fails_leaves_each_worker_before_or_behind_the_step);
    RUN(test_a_damaged_outcome_is_refused);
    RUN(test_means_that_differ_between_machines_are_told_to_all_workers);
    return test_end();
}
