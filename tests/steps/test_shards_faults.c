/* Proves of the mean made by ranges of elements: faults, hostile shards, memory, threads, and which form is taken. */

#include "group.h"

static const size_t worlds[] = {1, 2, 3, 4, 7, 8};

/* ---------------- failures */

/* Sparse payloads; the two-shot form, which has no counts, and where lengths are known no lengths; both for tensors that travel
   together; scattered, sparse payloads and others, which has no sums either; two shots of lengths that vary. */
enum { FORMS = 7 };

static const char *const some[FORMS][2] = {{"topk:density=0.1", "topk:density=0.1,global=1"}, {"sign:block=64", "qsgd:levels=1"},
                                           {"sign:block=64", "sign:block=64"}, {"topk:density=0.1", "topk:density=0.1"},
                                           {"topk:density=0.1", "dgc:density=0.1,warmup=0"}, {"sign:block=64", "none"},
                                           {"sign:block=64", "ecsq"}};

static const size_t some_n[FORMS][2] = {{300, 220}, {900, 770}, {500, 770}, {300, 220}, {300, 220}, {900, 770}, {900, 770}};

static const gcomp_aggregate ways[FORMS] = {GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_TWO_SHOT, GCOMP_AGGREGATE_TWO_SHOT,
                                            GCOMP_AGGREGATE_SHARDS, GCOMP_AGGREGATE_SCATTER, GCOMP_AGGREGATE_SCATTER,
                                           GCOMP_AGGREGATE_TWO_SHOT};

/* The stages that a form has, in the order of FRAMES .. SUMS: a letter each. */
static const char *const stages_of[FORMS] = {"FLASCTU", "FSU", "FSU", "FLASTU", "FLAST", "FST", "FLASTU"};

static const char *const *few = some[0];
static const size_t *few_n = some_n[0];
static int form;

static gcomp_desc choose_form(int which)
{
    form = which;
    few = some[which];
    few_n = some_n[which];
    return desc_of(ways[which]);
}

/* The stage of a request, and the request of a stage. The last stage, and how many requests there
   are. */
static const char all_stages[] = "FLASCTU"; /* U: sums */

static int stage_of(size_t call) { return (int)(strchr(all_stages, stages_of[form][call]) - all_stages); }

static int has(size_t stage) { return strchr(stages_of[form], all_stages[stage]) != NULL; }

static size_t call_of(size_t stage) { return (size_t)(strchr(stages_of[form], all_stages[stage]) - stages_of[form]); }

static size_t calls(void) { return strlen(stages_of[form]); }

static int last_stage(void) { return stage_of(calls() - 1); }

static void open_few(group *g, const gcomp_desc *desc)
{
    group_open(g, 3, desc, few, few_n, 2);
    for (uint64_t step = 0; step < 2; step++) { /* residuals that are not zero */
        group_fill(g, step);
        group_step(g);
        CHECK(all_are(g, GCOMP_OK));
    }
    group_fill(g, 2);
}

/* What the workers of open_few hold after a step without a fault. */
static void digests_without_a_fault(const gcomp_desc *desc, uint64_t *digests)
{
    group g;
    open_few(&g, desc);
    group_step(&g);
    CHECK(g.carried == calls());
    digest_all(&g, digests);
    group_close(&g);
}

static void failing_requests(const gcomp_desc desc)
{
    uint64_t control[3], before[3];
    group g;
    digests_without_a_fault(&desc, control);
    for (int call = 0; call < (int)calls(); call++)
        for (int rank = -1; rank < 3; rank += 2) {
            open_few(&g, &desc);
            digest_all(&g, before);
            g.fail_call = call;
            g.fail_rank = rank;
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int last = stage_of((size_t)call) == last_stage() && rank >= 0 && (int)w != rank; /* who has all commits */
                CHECK(g.result[w] == (last ? GCOMP_OK : GCOMP_CALLBACK_FAILED));
                CHECK(digest(&g, w) == (last ? control[w] : before[w]));
                CHECK(last || strstr(gcomp_error(g.gc[w]), "failed with status 5") || call == FRAMES || rank >= 0);
            }
            if (stage_of((size_t)call) == SHARDS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "alltoallv") != NULL);
            if (stage_of((size_t)call) == SUMS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "allgather of sums") != NULL);
            if (stage_of((size_t)call) == TOTALS && rank < 0) CHECK(strstr(gcomp_error(g.gc[0]), "allgather of totals") != NULL);
            g.fail_call = -1;
            if (rank < 0) { /* all have seen it */
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
                CHECK(digests_are(&g, control));
            }
            group_close(&g);
        }
}

static void test_a_request_that_fails_leaves_everything_as_it_was(void)
{
    for (int which = FORMS; which-- > 0;) failing_requests(choose_form(which));
}

static void flip(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || rank != 1 || from != 2) return;
    if (g->arg < length) bytes[g->arg] ^= (uint8_t)(1u << (g->arg & 7));
    else g->arg = SIZE_MAX;
}

/* Every byte of what one worker gets from another, in every stage. */
static void damaged_bytes(const gcomp_desc desc)
{
    for (size_t at_call = 1; at_call < calls(); at_call++) {
        const int call = stage_of(at_call), is_last = call == last_stage();
        group g;
        size_t tried = 0;
        if (call == COUNTED) continue; /* a sum has no bytes of another worker: see damaged_counts */
        open_few(&g, &desc);
        for (size_t at = 0; at != SIZE_MAX; at = g.arg == SIZE_MAX ? SIZE_MAX : at + 1) {
            uint64_t before[3];
            digest_all(&g, before);
            g.change = flip;
            g.at = at_call;
            g.arg = at;
            group_step(&g);
            if (g.arg == SIZE_MAX) break;
            tried++;
            CHECK(g.result[1] != GCOMP_OK);
            if (call != ANSWERS) CHECK(g.result[1] != GCOMP_PEER_FAILED);
            CHECK(digest(&g, 1) == before[1]);
            for (size_t w = 0; w < 3; w += 2) {
                /* what one has seen is told to all; a bad total ends the step of one, which
                   cannot take part in the last gather */
                CHECK(g.result[w] == (is_last          ? GCOMP_OK
                                      : call == TOTALS ? GCOMP_CALLBACK_FAILED
                                                       : GCOMP_PEER_FAILED));
                CHECK(is_last || digest(&g, w) == before[w]);
            }
            if (call == SHARDS) CHECK(strstr(gcomp_error(g.gc[0]), "rank 1") && strstr(gcomp_error(g.gc[1]), "rank 2, tensor"));
            if (call == TOTALS) CHECK(g.result[1] == GCOMP_CALLBACK_FAILED && strstr(gcomp_error(g.gc[1]), "damaged length"));
            else if (call == SHARDS || call == SUMS) CHECK(g.result[1] != GCOMP_CALLBACK_FAILED);
            else CHECK(g.result[1] == GCOMP_CHECKSUM_MISMATCH);
            CHECK(gcomp_result_class(g.result[1]) == (call == TOTALS ? GCOMP_CLASS_RESYNCHRONISE : GCOMP_CLASS_RETRY));
            if (call == LENGTHS) CHECK(g.carried == ANSWERS + 1);
            if (is_last) break; /* the others have gone on */
        }
        CHECK(tried >= 1 && (is_last || tried >= 16));
        g.change = NULL;
        if (call < TOTALS) group_step(&g); /* all have heard of it: goes on at once */
        if (call < TOTALS) CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

static void test_every_damaged_byte_is_refused_without_a_trace(void)
{
    for (int which = FORMS; which-- > 0;) damaged_bytes(choose_form(which));
}

/* One worker gets counts that nobody has made. */
static void miscount(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    float *count = (float *)(void *)bytes, *one = count + length / 4 - 1; /* behind the counts: a one of each */
    (void)from;
    if (call != COUNTED || rank != 1) return;
    CHECK(*one == 3);
    if (g->arg == 0) *one = 2;
    else if (g->arg == 1) count[5] = NAN;
    else if (g->arg == 2) count[5] += 0.5f;
    else if (g->arg == 3) count[5] = -1;
    else if (g->arg == 4) count[5] = 33554432;
    else count[15] += (float)(g->arg - 5) * 7; /* nobody sees this */
}

/* Counts that cannot be are told to all. Others change how many sums one owner sends: the workers have one mean all the same. */
static void test_counts_that_arrive_wrong_are_refused_or_do_no_harm(void)
{
    const gcomp_desc desc = choose_form(0);
    group g;
    open_few(&g, &desc);
    g.change_sum = miscount;
    for (g.arg = 0; g.arg < 20; g.arg++) {
        uint64_t before[3];
        digest_all(&g, before);
        group_step(&g);
        if (g.arg < 5) {
            CHECK(g.result[1] == (g.arg ? GCOMP_CHECKSUM_MISMATCH : GCOMP_MISSING_CALLBACK));
            CHECK(strstr(gcomp_error(g.gc[1]), "comm.allreduce makes ") || strstr(gcomp_error(g.gc[1]), "comm.allreduce made no sums"));
            CHECK(g.result[0] == GCOMP_PEER_FAILED && g.result[2] == GCOMP_PEER_FAILED && digests_are(&g, before));
        } else {
            CHECK(all_are(&g, GCOMP_OK));
            for (size_t w = 1; w < 3; w++)
                for (size_t t = 0; t < 2; t++) CHECK(!memcmp(g.grad[0][t], g.grad[w][t], 4 * g.n[t]));
            group_fill(&g, g.arg);
        }
    }
    group_close(&g);
}

typedef struct forgery {
    const char *codec;
    size_t n;
    int cut; /* bytes that are missing at the end, or too many */
    size_t at;
    int flip;
    gcomp_result result;
} forgery;

/* A worker makes up a shard, in a world of two with 1792 elements. The owner of the range refuses
   the shard, and the step fails on all. */
static void forge(const forgery *f, const char *codec, gcomp_aggregate way, int is_checked, int is_sealed)
{
    static const size_t n[1] = {1792}; /* ranges of 896, of sparse payloads 90 elements at most */
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    static float x[ROOM];
    gcomp_desc desc = desc_of(way);
    uint64_t before[2];
    group g;
    desc.no_checksum = !is_checked;
    group_open(&g, 2, &desc, &codec, n, 1);
    group_fill(&g, 0);
    for (size_t i = 0; i < ROOM; i++) x[i] = value_of(9, 9, 9, i) + 3;
    digest_all(&g, before);
    memset(payload, 0, sizeof payload);
    g.forged_length = (size_t)((int)encode(f->codec, x, f->n, payload, 0) - f->cut);
    if (is_sealed) CHECK(add_checksum(payload, g.forged_length) == GCOMP_OK);
    payload[f->at] ^= (uint8_t)f->flip;
    g.forged = payload;
    group_step(&g);
    if (g.result[1] != f->result) printf("# %s for %s: %s\n", f->codec, codec, result_name(g.result[1]));
    CHECK(g.result[1] == f->result);
    CHECK(g.result[0] == (f->result ? GCOMP_PEER_FAILED : GCOMP_OK));
    if (f->result) CHECK(digests_are(&g, before));
    group_close(&g);
    if (way != GCOMP_AGGREGATE_SCATTER) forge(f, codec, GCOMP_AGGREGATE_SCATTER, is_checked, is_sealed); /* the same */
}

static void test_hostile_shards_are_refused_by_all(void)
{
    static const forgery sparse[] = {
        {"topk:density=0.1", 896, 0, 0, 0, GCOMP_OK},
        {"topk:density=0.10125", 896, 0, 0, 0, GCOMP_CORRUPT}, /* 91: more than anyone selects */
        {"topk:density=0.1", 895, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"topk:density=0.1", 897, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"topk:density=0.1", 896, 1, 0, 0, GCOMP_TRUNCATED},
        {"topk:density=0.1", 896, 400, 0, 0, GCOMP_TRUNCATED},
        {"topk:density=0.01", 896, -1, 0, 0, GCOMP_TRAILING_BYTES},
        {"topk:density=0.1+fp16", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"dryden:density=0.05", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"sign", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"topk:density=0.1", 896, 0, 4, 3, GCOMP_UNSUPPORTED_VERSION},
        {"topk:density=0.1", 896, 0, 6, 2, GCOMP_CHECKSUM_MISMATCH},
        {"topk:density=0.1", 896, 0, 32, 1, GCOMP_CORRUPT},   /* k: 91 */
        {"topk:density=0.1", 896, 0, 40, 255, GCOMP_CORRUPT}, /* the coder */
    };
    static const forgery two_shot[] = {
        {"int:bits=4", 896, 0, 0, 0, GCOMP_OK},
        {"int:bits=4", 895, 0, 0, 0, GCOMP_COUNT_MISMATCH},
        {"int:bits=2", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"int:bits=4,block=512", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"sign:block=tensor", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"topk:density=0.01", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH},
        {"int:bits=4", 896, 0, 6, 1, GCOMP_TRAILING_BYTES}, /* a refusal has no body */
        {"int:bits=4", 896, 0, 33, 64, GCOMP_CORRUPT},      /* a scale whose multiples are infinite */
    };
    static const forgery of_any_length[] = {
        {"ecsq", 896, 0, 0, 0, GCOMP_OK},
        {"ecsq", 896, 1, 0, 0, GCOMP_TRUNCATED},
        {"ecsq", 896, -1, 0, 0, GCOMP_TRAILING_BYTES},
    };
    const forgery dense = {"none", 896, 0, 0, 0, GCOMP_CODEC_MISMATCH}; /* sums may be that */
    forgery sealed = {"topk:density=0.1", 896, 0, 0, 0, GCOMP_CHECKSUM_MISMATCH};
    const char *const codec = "topk:density=0.05";
    for (size_t f = 0; f < sizeof sparse / sizeof *sparse; f++) forge(sparse + f, codec, GCOMP_AGGREGATE_SHARDS, 0, 0);
    for (size_t f = 0; f < sizeof two_shot / sizeof *two_shot; f++)
        forge(two_shot + f, "int:bits=4", GCOMP_AGGREGATE_TWO_SHOT, 0, 0);
    for (size_t f = 0; f < sizeof of_any_length / sizeof *of_any_length; f++)
        forge(of_any_length + f, "ecsq", GCOMP_AGGREGATE_TWO_SHOT, 0, 0);
    forge(&dense, "topk:density=0.5", GCOMP_AGGREGATE_SHARDS, 0, 0);
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 1, 0); /* workers want one, there is one, both */
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 0, 1);
    sealed.result = GCOMP_OK;
    forge(&sealed, codec, GCOMP_AGGREGATE_SHARDS, 1, 1);
}

/* Whatever a shard says, no worker reads or writes outside of its buffers, and the step ends alike
   on all. */
static void test_mutated_shards_do_no_harm(void)
{
    static const size_t n[1] = {400};
    static uint8_t payload[GCOMP_BOUND(ROOM)];
    static float x[ROOM];
    size_t taken = 0;
    for (int global = 0; global < 3; global++) { /* 2: scattered */
        gcomp_desc desc = desc_of(global == 2 ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_SHARDS);
        group g;
        desc.no_checksum = 1;
        group_open(&g, 2, &desc, few + global % 2, n, 1);
        for (size_t i = 0; i < ROOM; i++) x[i] = value_of(9, 9, 9, i);
        for (uint64_t round = 0; round < 400; round++) {
            uint64_t before[2];
            g.forged_length = encode("topk:density=0.1", x, 144, payload, 0);
            for (uint64_t j = 0; j <= round % 3; j++)
                payload[mix(round * 8 + j) % g.forged_length] ^= (uint8_t)(1u << (mix(round * 8 + j) >> 40) % 8);
            g.forged = payload;
            group_fill(&g, round);
            digest_all(&g, before);
            group_step(&g);
            taken += g.result[1] == GCOMP_OK;
            CHECK(g.result[0] == (g.result[1] ? GCOMP_PEER_FAILED : GCOMP_OK));
            if (g.result[1]) CHECK(digests_are(&g, before));
            else CHECK(global == 2 || !memcmp(g.grad[0][0], g.grad[1][0], 4 * n[0]));
        }
        group_close(&g);
    }
    printf("# %d of 1200 mutated shards were accepted\n", (int)taken);
    CHECK(taken > 30 && taken < 1170); /* flipped values are numbers too */
}

/* A length, an answer or a total that is well formed, but says something false. */
static void lie(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    if (call != g->at || from != 0 || (stage_of(call) == LENGTHS && rank != 1)) return; /* what is gathered all get alike */
    CHECK(length == 16);
    if (g->arg == SIZE_MAX) put_word(bytes + 8, 12, 4); /* a status */
    else put_word(bytes, g->arg, 8);
    put_word(bytes + 12, plain_crc(0, bytes, 12), 4);
}

/* Only the receiver sees the length of a shard: it tells all before anybody waits for shards. */
static void forged_lengths(const gcomp_desc desc)
{
    static const size_t stages[] = {LENGTHS, ANSWERS, TOTALS}, lies[] = {SIZE_MAX, SIZE_MAX - 1, (size_t)1 << 40, 5000};
    for (size_t s = 0; s < 3; s++)
        for (size_t l = 0; l < 4 && has(stages[s]); l++) {
            uint64_t before[3], control[3];
            const int goes_on = stages[s] == ANSWERS && l; /* with all sizes known, until the totals */
            group g;
            digests_without_a_fault(&desc, control);
            open_few(&g, &desc);
            digest_all(&g, before);
            g.change = lie;
            g.at = call_of(stages[s]);
            g.arg = lies[l];
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int sees = stages[s] != LENGTHS || w == 1;
                CHECK(g.result[w] == (!sees || !l ? GCOMP_PEER_FAILED : stages[s] == TOTALS ? GCOMP_MISMATCH : GCOMP_CORRUPT));
                CHECK(digest(&g, w) == before[w]);
                CHECK(strstr(gcomp_error(g.gc[w]), !sees ? "rank 1: " : l ? "rank 0 announces more bytes than" : "rank 0: "));
            }
            CHECK(g.carried == (stages[s] == LENGTHS ? ANSWERS + 1 : goes_on ? call_of(TOTALS) + 1 : g.at + 1));
            g.change = NULL;
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            CHECK(digests_are(&g, control));
            group_close(&g);
        }
}

static void test_a_forged_length_ends_the_step_of_all_and_it_can_be_repeated(void)
{
    for (int which = FORMS; which-- > 0;) forged_lengths(choose_form(which));
}

/* In place of its sums an owner may tell an error: all workers stop. What looks like that, but is none, is a bad sum. */
static void tell(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    (void)rank;
    if (stage_of(call) != SUMS || from != 0) return;
    CHECK(length >= 32);
    put_word(bytes, g->arg == 1, 8);
    put_word(bytes + 8, g->arg == 2 ? 0 : 12, 4);
    put_word(bytes + 12, plain_crc(0, bytes, 12) ^ (g->arg == 3), 4);
}

static void test_an_error_in_place_of_sums_stops_all(void)
{
    const gcomp_desc desc = choose_form(1);
    uint64_t before[3], control[3];
    group g;
    digests_without_a_fault(&desc, control);
    open_few(&g, &desc);
    digest_all(&g, before);
    for (g.arg = 0; g.arg < 4; g.arg++) {
        g.change = tell;
        group_step(&g);
        for (size_t w = 0; w < 3; w++) {
            CHECK(g.arg ? g.result[w] != GCOMP_OK && g.result[w] != GCOMP_PEER_FAILED : g.result[w] == GCOMP_PEER_FAILED);
            CHECK(strstr(gcomp_error(g.gc[w]), g.arg ? "rank 0, tensor 'a'" : "rank 0: ") != NULL);
        }
        CHECK(digests_are(&g, before));
    }
    g.change = NULL;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && digests_are(&g, control));
    group_close(&g);
}

/* What is told in place of the sums of a bucket stops all behind it, too. */
static void test_a_bad_shard_of_an_early_bucket_stops_all(void)
{
    gcomp_desc desc = choose_form(1);
    uint64_t before[3];
    group g;
    desc.bucket_bytes = 1;
    open_few(&g, &desc);
    digest_all(&g, before);
    g.change = flip;
    g.at = call_of(SHARDS);
    g.arg = 40;
    group_step(&g);
    for (size_t w = 0; w < 3; w++) CHECK(g.result[w] == (w == 1 ? GCOMP_CHECKSUM_MISMATCH : GCOMP_PEER_FAILED));
    CHECK(digests_are(&g, before) && g.carried == 4); /* the frames of the next bucket */
    g.change = NULL;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && g.carried == 6);
    group_close(&g);
}

static void not_finite(const gcomp_desc desc, size_t at)
{
    uint64_t before[3];
    group g;
    open_few(&g, &desc);
    ((float *)g.grad[2][1])[at] = NAN;
    digest_all(&g, before);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_NOT_FINITE) && g.carried == 1);
    CHECK(digests_are(&g, before));
    group_fill(&g, 2);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
}

static void test_not_finite_on_one_worker_is_told_to_all(void)
{
    not_finite(choose_form(1), 0);   /* in a range of another */
    not_finite(choose_form(1), 769); /* in its own */
    not_finite(choose_form(5), 0);   /* the same of floats that are scattered */
    not_finite(choose_form(5), 769);
    not_finite(choose_form(4), 219);
    not_finite(choose_form(0), 219);
}

/* powersgd finds only in its second sum that numbers are too large, and only on the worker that has
   them. All workers skip the step. */
static void too_large(int which, const char *codec)
{
    static const size_t n = 900;
    const gcomp_desc desc = choose_form(which);
    gcomp_tensor matrix = {"matrix", 20, 3, 0, GCOMP_F32, "powersgd:rank=1,momentum=0.9"};
    uint64_t before[3];
    group g;
    group_open(&g, 3, &desc, &codec, &n, 1);
    g.n[g.count++] = 60;
    for (size_t w = 0; w < 3; w++) {
        CHECK(gcomp_add_tensor(g.gc[w], &matrix) == GCOMP_OK);
        g.grad[w][1] = calloc(60, 4);
    }
    group_fill(&g, 1);
    for (size_t i = 0; i < 60; i++) ((float *)g.grad[1][1])[i] *= 2e38f;
    digest_all(&g, before);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_NOT_FINITE));
    CHECK(digests_are(&g, before));
    group_close(&g);
}

static void test_numbers_too_large_on_one_worker_are_told_to_all(void)
{
    too_large(2, "topk:density=0.1");
    too_large(0, "topk:density=0.1");
    too_large(1, "sign:block=64"); /* in place of sums */
}

static void aborts(const gcomp_desc desc)
{
    uint64_t control[3], before[3];
    group g;
    digests_without_a_fault(&desc, control);
    open_few(&g, &desc);
    digest_all(&g, before);
    for (size_t upto = 0; upto <= calls(); upto++) {
        gcomp_request request;
        g.carried = 0;
        for (size_t w = 0; w < 3; w++) {
            g.result[w] = gcomp_step_begin(g.gc[w], NULL);
            for (size_t t = 0; t < 2; t++) CHECK(gcomp_step_ready(g.gc[w], t, g.grad[w][t]) == GCOMP_OK);
        }
        for (size_t k = 0; k < upto; k++) {
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_step_next(g.gc[w], &g.request[w][k]) == GCOMP_OK);
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_step_next(g.gc[w], &request) == GCOMP_OK && request.kind == GCOMP_WAIT);
            CHECK(gcomp_step_done(g.gc[0], g.request[0][k].id + 1, 0) == GCOMP_WRONG_STATE);
            carry(&g, k);
            CHECK(gcomp_step_done(g.gc[0], g.request[0][k].id, 0) == GCOMP_WRONG_STATE);
        }
        for (size_t w = 0; w < 3; w++) {
            CHECK(gcomp_step_abort(g.gc[w]) == GCOMP_OK);
            CHECK(digest(&g, w) == before[w]);
        }
    }
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(digests_are(&g, control));
    group_close(&g);
}

static void test_abort_in_every_stage_changes_nothing(void)
{
    for (int which = FORMS; which-- > 0;) aborts(choose_form(which));
}

/* ---------------- memory, agreement, callbacks */

static void failing_allocations(gcomp_desc desc)
{
    gcomp_tensor tensors[2];
    test_heap heap = {0, 0, 0, 0};
    int made = 0;
    memset(tensors, 0, sizeof tensors);
    desc.allocator = heap_of(&heap);
    desc.comm.world = 3;
    for (size_t t = 0; t < 2; t++) {
        tensors[t].name = t ? "b" : "a";
        tensors[t].rows = few_n[t];
        tensors[t].codec = few[t];
    }
    for (size_t left = 0; !made; left++) {
        gcomp *gc = NULL;
        gcomp_result result;
        heap.left = left;
        result = gcomp_open(&gc, &desc);
        for (size_t t = 0; t < 2 && result == GCOMP_OK; t++) result = gcomp_add_tensor(gc, &tensors[t]);
        if (result == GCOMP_OK) result = gcomp_prepare(gc);
        made = result == GCOMP_OK;
        CHECK(made || result == GCOMP_OUT_OF_MEMORY);
        if (made) CHECK(memory_of(gc) == gcomp_memory_needed(&desc, tensors, 2));
        gcomp_close(gc);
        CHECK(heap.blocks == 0 && (!made || left > 7));
    }
    heap.left = SIZE_MAX;
    group g;
    open_few(&g, &desc);
    heap.asked = 0;
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK) && heap.asked == 0);
    group_close(&g);
    CHECK(heap.blocks == 0);
}

static void test_every_allocation_may_fail_and_none_comes_later(void)
{
    for (int which = FORMS; which-- > 0;) failing_allocations(choose_form(which));
}

static int no_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)awaited;
    return 1;
}

static void test_workers_agree_on_the_way(void)
{
    for (int difference = 0; difference < 2; difference++) {
        group g;
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
        group_open(&g, 3, &desc, few, few_n, 2);
        gcomp_close(g.gc[2]);
        desc.comm.rank = 2;
        desc.comm.world = 3;
        if (difference) desc.comm.alltoallv = no_alltoallv;
        else desc.aggregate = GCOMP_AGGREGATE_AUTO;
        CHECK(gcomp_open(&g.gc[2], &desc) == GCOMP_OK);
        for (size_t t = 0; t < 2; t++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = t ? "b" : "a";
            tensor.rows = few_n[t];
            tensor.codec = few[t];
            CHECK(gcomp_add_tensor(g.gc[2], &tensor) == GCOMP_OK);
        }
        group_fill(&g, 0);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        CHECK(strstr(gcomp_error(g.gc[0]), difference ? "rank 2 has comm.alltoallv set, rank 0 has comm.alltoallv NULL"
                                                      : "rank 2 has desc.aggregate 0, rank 0 has desc.aggregate 2"));
        group_close(&g);
    }
}

static void test_a_missing_alltoallv_and_a_wrong_way_are_named(void)
{
    char why[128];
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SHARDS);
    gcomp_tensor tensor;
    float grad[600] = {0}, *grads[1];
    gcomp *gc = NULL;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "fc1";
    tensor.rows = 300;
    tensor.codec = few[0];
    grads[0] = grad;
    desc.comm.world = 2;
    desc.comm.allgather = echo_frame;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.alltoallv") && strstr(gcomp_error(gc), "fc1"));
    gcomp_close(gc);
    desc.comm.alltoallv = no_alltoallv; /* counts of sums need comm.allreduce */
    tensor.codec = few[1];
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK);
    CHECK(strstr(gcomp_error(gc), "comm.allreduce") && strstr(gcomp_error(gc), "fc1"));
    gcomp_close(gc);
    desc.comm.alltoallv = NULL;
    desc.aggregate = GCOMP_AGGREGATE_TWO_SHOT;
    tensor.rows = 600;
    tensor.codec = "sign";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "TWO_SHOT"));
    gcomp_close(gc);
    desc.aggregate = (gcomp_aggregate)5;
    desc.why = why;
    desc.why_capacity = sizeof why;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "aggregate is 5"));
}

/* ---------------- threads */

typedef struct seat {
    gcomp_comm inner;
    int exchanges, at, fail_at;
    gcomp_aggregate aggregate;
    int without;
    const char *codec;
    gcomp_result result[2];
    uint64_t digest;
} seat;

static int seat_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    seat *s = (seat *)user;
    int status = s->inner.alltoallv(s->inner.user, send, sent, recv, awaited);
    s->exchanges++;
    return s->at++ == s->fail_at ? 9 : status;
}

static int seat_allgatherv(void *user, const void *mine, void *all, const size_t *bytes, size_t stride)
{
    seat *s = (seat *)user;
    int status = s->inner.allgatherv(s->inner.user, mine, all, bytes, stride);
    return s->at++ == s->fail_at ? 9 : status;
}

static int seat_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    seat *s = (seat *)user;
    int status = s->inner.allgather(s->inner.user, mine, all, bytes);
    return s->at++ == s->fail_at ? 9 : status;
}

static int seat_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    seat *s = (seat *)user;
    int status = s->inner.allreduce(s->inner.user, data, count, dtype);
    return s->at++ == s->fail_at ? 9 : status;
}

static const size_t threads_n[1] = {9000};

/* One step, repeated if the first try fails. */
static void *work(void *arg)
{
    seat *s = (seat *)arg;
    gcomp_desc desc = desc_of(s->aggregate);
    float *grads[1];
    group g;
    desc.comm = s->inner;
    desc.comm.user = s;
    desc.comm.allreduce = strstr(s->codec, "global=1") ? seat_allreduce : NULL; /* it counts sums */
    desc.comm.allreduce_max = NULL;
    desc.comm.allgather = seat_allgather;
    desc.comm.allgatherv = seat_allgatherv;
    desc.comm.alltoallv = s->without ? NULL : seat_alltoallv;
    memset(&g, 0, sizeof g);
    g.world = g.count = 1;
    g.n[0] = threads_n[0];
    g.grad[0][0] = calloc(g.n[0], 4);
    grads[0] = (float *)g.grad[0][0];
    for (size_t i = 0; i < g.n[0]; i++) grads[0][i] = value_of(0, (size_t)s->inner.rank, 0, i);
    if (gcomp_open(&g.gc[0], &desc) == GCOMP_OK) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = "a";
        tensor.rows = g.n[0];
        tensor.codec = s->codec;
        s->result[0] = gcomp_add_tensor(g.gc[0], &tensor);
        if (s->result[0] == GCOMP_OK) s->result[0] = exchange_floats(g.gc[0], grads, NULL);
        s->result[1] = s->result[0] ? exchange_floats(g.gc[0], grads, NULL) : GCOMP_OK;
        s->digest = digest(&g, 0);
    }
    group_close(&g);
    return NULL;
}

static void run_threads(seat *seats, size_t world, const char *codec, gcomp_aggregate aggregate, int without, int fail_at)
{
    pthread_t threads[MOST];
    gcomp_threads *all;
    CHECK(gcomp_threads_open(&all, (int)world, 60.0) == 0);
    memset(seats, 0, world * sizeof *seats);
    for (size_t w = 0; w < world; w++) {
        seats[w].inner = gcomp_threads_comm(all, (int)w);
        seats[w].codec = codec;
        seats[w].aggregate = aggregate;
        seats[w].without = without;
        seats[w].fail_at = fail_at;
        CHECK(pthread_create(&threads[w], NULL, work, &seats[w]) == 0);
    }
    for (size_t w = 0; w < world; w++) pthread_join(threads[w], NULL);
    gcomp_threads_close(all);
}

static void test_threads_give_the_bits_of_the_gather(void)
{
    for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++)
        for (int global = 0; global < 2; global++) {
            const char *const codec[1] = {global ? "topk:density=0.1,global=1" : "topk:density=0.1"};
            const gcomp_desc gather = desc_of(GCOMP_AGGREGATE_GATHER);
            seat seats[MOST];
            group a;
            group_open(&a, worlds[c], &gather, codec, threads_n, 1);
            group_fill(&a, 0);
            group_step(&a);
            for (int form = 0; form < 2; form++) {
                run_threads(seats, worlds[c], codec[0], form ? GCOMP_AGGREGATE_SHARDS : GCOMP_AGGREGATE_AUTO, 0, -1);
                for (size_t w = 0; w < worlds[c]; w++) {
                    CHECK(seats[w].result[0] == GCOMP_OK);
                    CHECK(seats[w].digest == digest(&a, w) || (worlds[c] == 1 && !form)); /* AUTO compresses nothing for one */
                    CHECK(seats[w].exchanges == (worlds[c] >= (form ? 2 : global ? 3 : 6) ? 2 : 0)); /* by the rule of AUTO */
                }
            }
            group_close(&a);
        }
}

static void test_threads_give_two_shots_the_bits_of_an_event_loop(void)
{
    static const char *const codec[1] = {"onebit"};
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    for (size_t c = 0; c < sizeof worlds / sizeof *worlds; c++) {
        seat seats[MOST];
        group a;
        group_open(&a, worlds[c], &desc, codec, threads_n, 1);
        group_fill(&a, 0);
        group_step(&a);
        run_threads(seats, worlds[c], codec[0], GCOMP_AGGREGATE_TWO_SHOT, 0, -1);
        for (size_t w = 0; w < worlds[c]; w++)
            CHECK(seats[w].result[0] == GCOMP_OK && seats[w].digest == digest(&a, w) &&
                  seats[w].exchanges == (worlds[c] > 1 ? 1 : 0));
        group_close(&a);
    }
}

/* Is the mean of a tensor of n elements made by ranges? no_feedback 2: a transport that cannot sum. */
static int ranges(const char *codec, size_t n, int world, int no_feedback)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    if (no_feedback == 2) desc.comm.allgather = no_allgather, no_feedback = 0;
    gcomp_tensor tensor;
    gcomp_round rounds[GCOMP_ROUNDS];
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "a";
    tensor.rows = n;
    tensor.codec = codec;
    desc.comm.world = world;
    desc.comm.alltoallv = no_alltoallv;
    desc.no_error_feedback = no_feedback;
    CHECK(gcomp_rounds(&desc, &tensor, 1, NULL, rounds) == GCOMP_OK);
    if (rounds[0].kind == GCOMP_ALLTOALL) { /* never more than a gather of the same payloads */
        size_t gathered;
        gcomp_codec parsed;
        CHECK(gcomp_codec_parse(&parsed, codec, NULL, 0) == GCOMP_OK);
        gathered = gcomp_bound(&parsed, n, NULL) * (size_t)(world - 1);
        CHECK(strstr(codec, "topk") || rounds[0].sent <= gathered);
    }
    return rounds[0].kind == GCOMP_ALLTOALL;
}

static void test_auto_takes_the_form_that_receives_fewest_bytes(void)
{
    seat seats[MOST];
    static const struct {
        const char *codec;
        int without, exchanges;
    } rule[] = {{"topk:density=0.057", 0, 2}, {"topk:density=0.0565", 0, 0}, {"topk:density=0.1", 1, 0},
                {"topk:density=0.1+int", 0, 0}, {"blocktopk:density=0.1", 0, 0}, {"sign", 0, 1}, {"sign", 1, 0}};
    for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) { /* 512 elements make eight shards of 64 */
        run_threads(seats, 8, rule[r].codec, GCOMP_AGGREGATE_AUTO, rule[r].without, -1);
        for (size_t w = 0; w < 8; w++) CHECK(seats[w].result[0] == GCOMP_OK && seats[w].exchanges == rule[r].exchanges);
    }
    /* sparse: where the mean of payloads that were chosen independently is shorter than all but one of them */
    CHECK(!ranges("topk:density=0.01", 1000000, 14, 0) && ranges("topk:density=0.01", 1000000, 16, 0));
    CHECK(!ranges("topk:density=0.1", 1000000, 5, 0) && ranges("topk:density=0.1", 1000000, 6, 0));
    CHECK(!ranges("topk:density=0.01,global=1", 1000000, 2, 0) && ranges("topk:density=0.01,global=1", 1000000, 3, 0));
    CHECK(!ranges("topk:density=0.01,global=1", 1000000, 3, 2)); /* AUTO gathers where nobody can sum counts */
    CHECK(!ranges("nonzero", 1000000, 7, 0) && ranges("nonzero", 1000000, 8, 0));
    CHECK(!ranges("topk:density=0.5", 1000000, 2, 0) && ranges("topk:density=0.5", 1000000, 3, 0));
    /* block payloads: from three workers on */
    for (size_t c = 0; c < ALL_CODECS; c++) {
        const char *text = codec_list[c].text;
        if (!codec_list[c].steps || !has_two_shots(text)) continue;
        const int fixed = !strncmp(text, "threshold1", 10) || (!strncmp(text, "twobit", 6) && !strstr(text, "auto"));
        CHECK(!ranges(text, 100000, 2, 0));
        CHECK(ranges(text, 100000, 3, 0) == !fixed && ranges(text, 100000, 64, 0) == !fixed);
        CHECK(!ranges(text, 767, 3, 0)); /* a range has 256 elements or more */
    }
    /* a codec that loses what it does not send does not lose twice; what is right on average stays so */
    CHECK(!ranges("sign", 768, 3, 0) && ranges("int", 768, 3, 0)); /* with the headers of all ranges */
    CHECK(!ranges("sign", 100000, 8, 1) && !ranges("int:bits=4", 100000, 8, 1));
    CHECK(ranges("qsgd", 100000, 8, 1) && ranges("vote", 100000, 8, 1));
}

static void test_every_callback_of_threads_may_fail(void)
{
    seat seats[MOST];
    uint64_t control[3];
    for (int which = FORMS; which-- > 0;) {
        choose_form(which);
        run_threads(seats, 3, few[1], ways[which], 0, -1);
        for (size_t w = 0; w < 3; w++) control[w] = seats[w].digest;
        CHECK(seats[0].at == (int)calls());
        for (int call = 0; call < (int)calls(); call++) {
            run_threads(seats, 3, few[1], ways[which], 0, call);
            for (size_t w = 0; w < 3; w++) {
                CHECK(seats[w].result[0] == GCOMP_CALLBACK_FAILED && seats[w].result[1] == GCOMP_OK);
                CHECK(seats[w].digest == control[w]);
            }
        }
    }
}

/* ---------------- bytes */

/* Workers whose gradients differ by a little noise: what one of them receives. */
static uint64_t received_by_one(size_t world, const char *codec, gcomp_aggregate aggregate)
{
    static const size_t n[1] = {40000};
    const gcomp_desc desc = desc_of(aggregate);
    uint64_t bytes;
    group g;
    group_open(&g, world, &desc, &codec, n, 1);
    for (size_t w = 0; w < world; w++)
        for (size_t i = 0; i < n[0]; i++) {
            float common = value_of(0, 0, 0, i);
            ((float *)g.grad[w][0])[i] = common * common * common + 0.02f * value_of(1, w, 1, i);
        }
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    bytes = g.received;
    group_close(&g);
    return bytes;
}

static void test_received_bytes_do_not_grow_with_the_world(void)
{
    const char *const plain = "topk:density=0.02", *const global = "topk:density=0.02,global=1";
    uint64_t gather[4], shards[4], kept[4], two_shot[4];
    for (size_t c = 0; c < 4; c++) {
        const size_t world = (size_t)2 << c;
        gather[c] = received_by_one(world, plain, GCOMP_AGGREGATE_GATHER);
        shards[c] = received_by_one(world, plain, GCOMP_AGGREGATE_SHARDS);
        kept[c] = received_by_one(world, global, GCOMP_AGGREGATE_SHARDS);
        two_shot[c] = received_by_one(world, "sign", GCOMP_AGGREGATE_TWO_SHOT);
        printf("# world %2d: bytes received by a worker, k = 800: gather %6d, shards %6d, global %6d; sign, two shots: %6d\n",
               (int)world, (int)gather[c], (int)shards[c], (int)kept[c], (int)two_shot[c]);
    }
    CHECK(two_shot[3] < 5 * two_shot[0] / 2); /* (world - 1) / world of two payloads, and headers */
    CHECK(gather[3] > 7 * gather[1] / 2);
    CHECK(shards[3] < 2 * shards[1] && 3 * shards[3] < gather[3]);
    CHECK(kept[3] < 2 * kept[1] && 3 * kept[3] < gather[3]);
}

int main(void)
{
    RUN(test_a_request_that_fails_leaves_everything_as_it_was);
    RUN(test_every_damaged_byte_is_refused_without_a_trace);
    RUN(test_counts_that_arrive_wrong_are_refused_or_do_no_harm);
    RUN(test_hostile_shards_are_refused_by_all);
    RUN(test_mutated_shards_do_no_harm);
    RUN(test_a_forged_length_ends_the_step_of_all_and_it_can_be_repeated);
    RUN(test_an_error_in_place_of_sums_stops_all);
    RUN(test_a_bad_shard_of_an_early_bucket_stops_all);
    RUN(test_not_finite_on_one_worker_is_told_to_all);
    RUN(test_numbers_too_large_on_one_worker_are_told_to_all);
    RUN(test_abort_in_every_stage_changes_nothing);
    RUN(test_every_allocation_may_fail_and_none_comes_later);
    RUN(test_workers_agree_on_the_way);
    RUN(test_a_missing_alltoallv_and_a_wrong_way_are_named);
    RUN(test_threads_give_the_bits_of_the_gather);
    RUN(test_threads_give_two_shots_the_bits_of_an_event_loop);
    RUN(test_auto_takes_the_form_that_receives_fewest_bytes);
    RUN(test_every_callback_of_threads_may_fail);
    RUN(test_received_bytes_do_not_grow_with_the_world);
    return test_end();
}
