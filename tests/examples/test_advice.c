/* Proves of the adviser: with given figures it calculates what plain sums over all choices give;
   it measures figures and links as its clock says (here all clocks are made up); and what it
   advises gains more than the noise of its measurements. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "gcomp_advise.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { TENSORS = 4, CANDIDATES = 5 };
enum { NONE, SIGN, TOPK, POWERSGD, INTSUM };

static gcomp_tensor tensors[TENSORS] = {{"large", 512, 768, 0, GCOMP_F32, NULL},
                                        {"stack", 64, 64, 4, GCOMP_F32, NULL},
                                        {"small", 40, 40, 0, GCOMP_F32, NULL},
                                        {"bias", 5000, 0, 0, GCOMP_F32, NULL}};

static gcomp_desc desc;
static gcomp_advise_candidate candidates[CANDIDATES];
static gcomp_advise_question question;
static gcomp_advise_choice each[TENSORS];
static gcomp_advice advice;
static char why[256];

static void ask(int world)
{
    static const gcomp_advise_candidate all[CANDIDATES] = {{"none", {1e-6, 1e-9, 0, 0, 0}},
                                                    {"sign:block=tensor", {2e-6, 2e-9, 0.5e-9, 0.125, 0}},
                                                    {"topk:density=0.01", {5e-6, 3e-9, 0.1e-9, 0.06, 0}},
                                                    {"powersgd:rank=2", {20e-6, 4e-9, 0, 0, 0}},
                                                    {"intsum:bits=8", {3e-6, 2.5e-9, 0, 0, 0}}};
    memcpy(candidates, all, sizeof all);
    memset(&desc, 0, sizeof desc);
    desc.comm.world = world;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8;
    desc.why = why;
    desc.why_capacity = sizeof why;
    memset(&question, 0, sizeof question);
    question.desc = &desc;
    question.tensors = tensors;
    question.tensor_count = TENSORS;
    question.candidates = candidates;
    question.candidate_count = CANDIDATES;
}

static int near(double x, double y) { return fabs(x - y) <= 1e-9 * fabs(y); }

/* ---------------- the arithmetic */

static void test_the_link_of_a_ring_is_its_formula(void)
{
    gcomp_advise_link link = gcomp_advise_link_of(8e9, 1e-5, 4), alone = gcomp_advise_link_of(8e9, 1e-5, 1);
    CHECK(near(link.sum_start, 6e-5) && near(link.sum_byte, 1.5e-9)); /* 6 messages of a quarter, a byte takes 1e-9 s */
    CHECK(near(link.gather_start, 3e-5) && near(link.gather_byte, 3e-9));
    CHECK(near(link.exchange_start, 3e-5) && near(link.exchange_byte, 0.75e-9)); /* 3 messages of a quarter */
    CHECK(alone.sum_start == 0 && alone.sum_byte == 0 && alone.gather_start == 0 && alone.gather_byte == 0);
    CHECK(alone.exchange_start == 0 && alone.exchange_byte == 0);
}

static void test_an_adam_user_is_not_offered_what_does_not_suit_adam(void)
{
    for (int optimizer = GCOMP_OPTIMIZER_UNKNOWN; optimizer <= GCOMP_OPTIMIZER_ADAM; optimizer++) {
        ask(4);
        desc.optimizer = (gcomp_optimizer)optimizer;
        question.link = gcomp_advise_link_of(1e8, 50e-6, 4); /* so slow that all compress */
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && advice.compressed == 3);
        for (int t = 0; t < 3; t++)
            CHECK(optimizer == GCOMP_OPTIMIZER_ADAM ? each[t].choice == INTSUM
                                                    : each[t].choice != NONE && each[t].choice != INTSUM);
        question.candidate_count = INTSUM; /* nothing is left for Adam */
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
        CHECK(advice.compressed == (optimizer == GCOMP_OPTIMIZER_ADAM ? 0 : 3));
    }
}

static void test_no_compression_is_the_answer_on_a_fast_link(void)
{
    ask(4);
    question.link = gcomp_advise_link_of(100e9, 2e-6, 4);
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
    CHECK(advice.compressed == 0 && advice.seconds == advice.plain && advice.plain > 0);
    for (size_t i = 0; i < TENSORS; i++) CHECK(each[i].choice == 0 && each[i].seconds == each[i].plain);
    ask(1);
    CHECK(gcomp_advise(&question, NULL, &advice) == GCOMP_OK && advice.compressed == 0 && advice.link_seconds == 0);
}

static void test_figures_and_link_give_the_times_of_the_comment(void)
{
    double n = 512 * 768, codec, link;
    ask(4);
    question.link = gcomp_advise_link_of(1e9, 50e-6, 4);
    candidates[1] = candidates[TOPK];
    question.candidate_count = 2;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
    CHECK(each[0].choice == 1 && each[1].choice == 1 && each[2].choice == 1 && each[3].choice == NONE);
    CHECK(near(each[0].plain, 1e-6 + n * 1e-9 + 4 * n * question.link.sum_byte));
    CHECK(near(each[0].seconds, 5e-6 + n * 3.3e-9 + (32 + 0.06 * n) * question.link.gather_byte));
    codec = 3 * 5e-6 + (n + 16384 + 1600) * 3.3e-9 + 1e-6 + 5000 * 1e-9;
    link = (64 + 32 + 0.06 * (n + 16384 + 1600)) * question.link.gather_byte + 2 * question.link.gather_start; /* they send one list */
    link += 20000 * question.link.sum_byte + question.link.sum_start;
    CHECK(near(advice.codec_seconds, codec) && near(advice.link_seconds, link) && near(advice.seconds, codec + link));
    CHECK(advice.compressed == 3);
}

/* Candidate c for tensor t by the formulas alone: its seconds, and a bit for each collective; 0
   if the rules do not compress it. */
static double plain_price(int t, int c, int world, unsigned *uses)
{
    static const double elements[TENSORS] = {512 * 768, 4 * 64 * 64, 40 * 40, 5000};
    static const double factors[TENSORS] = {512 + 768, 4 * 128, 80, 0};
    const gcomp_advise_figures *f = &candidates[c].figures;
    double n = elements[t], s = f->tensor + n * (f->element + (world - 1) * f->payload);
    *uses = c == NONE ? 1u : c == POWERSGD ? 3u : c == INTSUM ? 12u : 16u;
    if (t == 3 && c != NONE) return 0;
    if (c == SIGN || c == TOPK) return s + (32 + n * f->bytes) * question.link.gather_byte;
    if (c == NONE) return s + 4 * n * question.link.sum_byte;
    if (c == POWERSGD) return s + 4 * 2 * factors[t] * question.link.sum_byte;
    return s + (n + 4 * (t == 1 ? 4 : 1)) * question.link.sum_byte; /* a byte each, and the largest: one of each matrix */
}

/* Payloads of a codec share a header, unless one of another codec stands between; those of topk are one list. */
static double plain_step(const int *choice, int world)
{
    double seconds = question.link.gather_start + 64 * question.link.gather_byte;
    unsigned all = 0;
    int last = NONE;
    for (int t = 0; t < TENSORS; t++) {
        unsigned uses;
        double price = plain_price(t, choice[t], world, &uses);
        if (price == 0) return 0;
        seconds += price;
        all |= uses;
        if (!(uses & 16)) continue;
        if (last == choice[t]) seconds -= (last == TOPK ? 32 : 28) * question.link.gather_byte;
        last = choice[t];
    }
    for (int k = 0; k < 4; k++) seconds += all >> k & 1 ? question.link.sum_start : 0;
    return seconds + (all & 16 ? question.link.gather_start : 0);
}

static void test_no_choice_is_better_than_the_advice(void)
{
    static const double rates[] = {1e8, 1e9, 4e9, 1e10, 4e10}, latencies[] = {0, 5e-6, 1e-4, 2e-3};
    static const int worlds[] = {2, 4, 64};
    int mixed = 0, exact = 0;
    for (size_t k = 0; k < 60; k++) {
        int world = worlds[k / 20], choice[TENSORS], all = 1;
        double least = 1e30, found;
        ask(world);
        question.link = gcomp_advise_link_of(rates[k % 5], latencies[k / 5 % 4], world);
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
        for (int i = 0; i < TENSORS; i++) all *= CANDIDATES;
        for (int i = 0; i < all; i++) {
            for (int t = 0, rest = i; t < TENSORS; t++, rest /= CANDIDATES) choice[t] = rest % CANDIDATES;
            found = plain_step(choice, world);
            if (found > 0 && found < least) least = found;
        }
        for (int t = 0; t < TENSORS; t++) choice[t] = (int)each[t].choice;
        CHECK(near(advice.seconds, plain_step(choice, world)));
        CHECK(advice.seconds <= least + 3 * 32 * question.link.gather_byte); /* headers that one would share with other choices */
        exact += near(advice.seconds, least);
        mixed += choice[0] != choice[1] || choice[1] != choice[2];
        for (int t = 0; t < TENSORS; t++) choice[t] = NONE;
        CHECK(near(advice.plain, plain_step(choice, world)));
    }
    CHECK(mixed > 5 && exact > 50);
}

/* ---------------- means that are made in other ways */

/* Is never called: says that the transport can. */
static int exchange_parts(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)awaited;
    return 1;
}

/* Asks about "none" and one other candidate for the first `count` tensors. */
static void ask_about(const char *codec, int world, size_t count)
{
    ask(world);
    desc.comm.alltoallv = exchange_parts;
    question.link = gcomp_advise_link_of(1e8, 50e-6, world);
    candidates[1] = candidates[SIGN];
    candidates[1].codec = codec;
    question.candidate_count = 2;
    question.tensor_count = count;
}

static void test_sign_goes_in_two_shots_where_the_transport_can(void)
{
    const double n = 512 * 768, frame = 64 * gcomp_advise_link_of(1e8, 50e-6, 8).gather_byte;
    gcomp_advise_link link;
    double shards;
    ask_about("sign:block=tensor", 8, 1);
    link = question.link;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1);
    CHECK(each[0].form == GCOMP_ALLTOALL && each[0].dtype == GCOMP_U8);
    shards = 8 * 32 + n / 8; /* a header for each of 8 ranges */
    CHECK(near(each[0].seconds, 8 * 2e-6 + n * (2e-9 + 1.875 * 0.5e-9) + shards * (link.exchange_byte + link.gather_byte / 8)));
    CHECK(fabs(shards * (link.exchange_byte + link.gather_byte / 8) / (2 * shards * 7 / 8 * 8e-8) - 1) < 1e-9); /* 2 b 7 / 8 bytes */
    CHECK(each[0].sent >= 2 * shards * 7 / 8 && each[0].sent < 2 * shards * 7 / 8 + 8 * 64);
    CHECK(near(advice.link_seconds, shards * (link.exchange_byte + link.gather_byte / 8) + frame + 2 * link.gather_start +
               link.exchange_start));
    question.tensor_count = 2; /* both share the stages; the vector is a sum */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[1].choice == 1 && each[1].form == GCOMP_ALLTOALL);
    shards += 4 + 4 * 64 * 64 / 8; /* it lies in the last range of their bundle, behind the header there */
    CHECK(near(advice.link_seconds, shards * (link.exchange_byte + link.gather_byte / 8) + frame + 2 * link.gather_start +
               link.exchange_start));
    ask_about("sign:block=tensor", 8, 1);
    desc.comm.alltoallv = NULL;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1 && each[0].form == GCOMP_ALLGATHER);
    CHECK(near(each[0].seconds, 2e-6 + n * (2e-9 + 7 * 0.5e-9) + (32 + n / 8) * 7 * 8e-8)); /* 7 b */
    CHECK(near(advice.link_seconds, (32 + n / 8) * link.gather_byte + frame + 2 * link.gather_start));
    ask_about("sign:block=tensor", 8, 1);
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* the user's own choice holds */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLGATHER);
}

static void test_a_link_without_times_of_an_alltoall_takes_those_of_the_gather(void)
{
    gcomp_advice given;
    ask_about("int", 8, 3);
    CHECK(gcomp_advise(&question, each, &given) == GCOMP_OK && each[0].form == GCOMP_ALLTOALL);
    question.link.exchange_start = question.link.exchange_byte = 0;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && near(advice.seconds, given.seconds) && near(advice.link_seconds, given.link_seconds));
    question.link.exchange_byte = 1e-12; /* one is given: none is made up */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && advice.link_seconds < given.link_seconds);
    question.link.exchange_start = NAN;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_INVALID_ARGUMENT && strstr(why, "link"));
}

static void test_halves_are_summed_where_the_transport_can(void)
{
    const double n = 512 * 768;
    ask_about("bf16", 8, 1);
    candidates[1].figures.bytes = 2;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLTOALL && each[0].dtype == GCOMP_U8);
    desc.comm.allreduce_dtypes |= 1u << GCOMP_BF16; /* two shots lose nothing, and come first */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLTOALL);
    desc.comm.alltoallv = NULL;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1);
    CHECK(each[0].form == GCOMP_ALLREDUCE && each[0].dtype == GCOMP_BF16 && each[0].sent == 2 * n * 14 / 8);
    CHECK(near(each[0].seconds, 2e-6 + n * 2e-9 + 2 * n * question.link.sum_byte)); /* others bring no payloads */
    CHECK(near(advice.link_seconds, 2 * n * question.link.sum_byte + question.link.sum_start + question.link.gather_start + 64 * question.link.gather_byte));
    desc.comm.allreduce_dtypes = 0;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 0 && each[0].form == GCOMP_ALLREDUCE && each[0].dtype == GCOMP_F32);
    CHECK(advice.compressed == 0); /* gathered halves of 8 workers are more bytes than a sum of floats */
}

static void test_sparse_means_have_at_most_the_elements_of_all(void)
{
    static const gcomp_advise_figures few = {5e-6, 3e-9, 0.1e-9, 0.05, 0};
    const double n = 512 * 768;
    double shards, lengths;
    gcomp_advise_link link;
    ask_about("topk:density=0.01", 8, 1);
    candidates[1].figures = few;
    desc.aggregate = GCOMP_AGGREGATE_SHARDS;
    link = question.link;
    lengths = 8 * 16 * link.exchange_byte + 2 * 16 * link.gather_byte;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1 && each[0].form == GCOMP_ALLTOALL);
    shards = 8 * 32 + 0.05 * n;
    CHECK(near(each[0].seconds, 8 * 5e-6 + n * (3e-9 + 8.875 * 0.1e-9) + shards * (link.exchange_byte + link.gather_byte)));
    ask_about("topk:density=0.01,global=1", 8, 1);
    candidates[1].figures = few;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1 && each[0].form == GCOMP_ALLTOALL);
    CHECK(each[0].seconds > 8 * 5e-6 + n * (3e-9 + 1.875 * 0.1e-9) + shards * (link.exchange_byte + link.gather_byte / 8));
    CHECK(each[0].seconds < 8 * 5e-6 + n * (3e-9 + 2.275 * 0.1e-9) + shards * (link.exchange_byte + 1.4 * link.gather_byte / 8)); /* little more than k come back */
    CHECK(near(advice.link_seconds - (each[0].seconds - advice.codec_seconds), 64 * link.gather_byte + lengths + 2 * link.exchange_start + 4 * link.gather_start + link.sum_start));
}

static void test_scattered_means_are_not_gathered(void)
{
    const double n = 512 * 768;
    gcomp_advise_link link;
    ask_about("sign:block=tensor", 8, 1);
    desc.aggregate = GCOMP_AGGREGATE_SCATTER;
    link = question.link;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1 && each[0].form == GCOMP_ALLTOALL);
    CHECK(near(each[0].seconds, 8 * 2e-6 + n * (2e-9 + 0.875 * 0.5e-9) + (8 * 32 + n / 8) * link.exchange_byte));
    CHECK(near(each[0].plain, 8 * 1e-6 + n * 1e-9 + (8 * 32 + 4 * n) * link.exchange_byte)); /* shards of floats */
    CHECK(near(advice.link_seconds, (8 * 32 + n / 8) * link.exchange_byte + (64 + 16) * link.gather_byte + link.exchange_start + 2 * link.gather_start));
}

/* Lengths of shards that vary take two stages more, and a total. */
static void test_lengths_that_vary_are_told(void)
{
    for (int scatters = 0; scatters < 2; scatters++) {
        double fixed;
        ask_about("sign", 8, 1);
        desc.aggregate = scatters ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_TWO_SHOT;
        const gcomp_advise_link link = question.link;
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLTOALL);
        fixed = advice.link_seconds - (each[0].seconds - advice.codec_seconds);
        ask_about("ecsq", 8, 1);
        desc.aggregate = scatters ? GCOMP_AGGREGATE_SCATTER : GCOMP_AGGREGATE_TWO_SHOT;
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == 1 && each[0].form == GCOMP_ALLTOALL);
        CHECK(near(advice.link_seconds - (each[0].seconds - advice.codec_seconds) - fixed,
                   link.exchange_start + 8 * 16 * link.exchange_byte + (scatters ? 1 : 2) * (link.gather_start + 16 * link.gather_byte)));
    }
}

static void test_a_vector_that_is_alone_may_be_compressed(void)
{
    gcomp_tensor vectors[2] = {{"v", 5000, 0, 0, GCOMP_F32, NULL}, {"w", 5000, 0, 0, GCOMP_F32, NULL}};
    ask(4);
    question.link = gcomp_advise_link_of(1e8, 1e-5, 4);
    question.tensors = vectors;
    question.candidate_count = 2;
    for (question.tensor_count = 1; question.tensor_count <= 2; question.tensor_count++) {
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
        CHECK(advice.compressed == (question.tensor_count == 1));
    }
}

static void test_wrong_questions_are_refused_with_a_sentence(void)
{
    gcomp_advice untouched;
    gcomp_tensor bad = {"bad", 0, 0, 0, GCOMP_F32, NULL};
    memset(&advice, 7, sizeof advice);
    untouched = advice;
    ask(4);
    CHECK(gcomp_advise(NULL, each, &advice) == GCOMP_INVALID_ARGUMENT && gcomp_advise(&question, each, NULL) == GCOMP_INVALID_ARGUMENT);
    question.desc = NULL;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_INVALID_ARGUMENT);
#define REFUSED(change, result, text) \
    do { \
        ask(4); \
        change; \
        CHECK(gcomp_advise(&question, each, &advice) == result); \
        CHECK(strstr(why, text)); \
    } while (0)
    REFUSED(question.candidate_count = 0, GCOMP_INVALID_ARGUMENT, "candidate_count");
    REFUSED(question.candidate_count = GCOMP_ADVISE_CANDIDATES + 1, GCOMP_INVALID_ARGUMENT, "candidate_count");
    REFUSED(question.candidates = NULL, GCOMP_INVALID_ARGUMENT, "candidate");
    REFUSED(question.tensors = NULL, GCOMP_INVALID_ARGUMENT, "tensors");
    REFUSED(question.tensors = &bad; question.tensor_count = 1, GCOMP_INVALID_ARGUMENT, "tensor 'bad': rows");
    REFUSED(question.link.sum_byte = -1, GCOMP_INVALID_ARGUMENT, "link");
    REFUSED(question.link.exchange_byte = -1, GCOMP_INVALID_ARGUMENT, "link");
    REFUSED(question.link = gcomp_advise_link_of(0, 0, 4), GCOMP_INVALID_ARGUMENT, "link");
    REFUSED(candidates[2].figures.bytes = NAN, GCOMP_INVALID_ARGUMENT, "candidate 2");
    REFUSED(candidates[0].codec = "sign", GCOMP_INVALID_ARGUMENT, "candidate 0");
    REFUSED(candidates[1].codec = "none", GCOMP_INVALID_ARGUMENT, "candidate 1");
    REFUSED(candidates[1].codec = NULL, GCOMP_INVALID_ARGUMENT, "candidate 1");
    REFUSED(candidates[1].codec = "sine", GCOMP_BAD_CODEC, "candidate 1");
    REFUSED(desc.comm.allreduce_dtypes = 0, GCOMP_MISSING_CALLBACK, "candidate 4");
    REFUSED(desc.comm.world = -1, GCOMP_INVALID_ARGUMENT, "comm.world");
    REFUSED(memset(&candidates[1].figures, 0, sizeof candidates[1].figures), GCOMP_MISSING_CALLBACK, "desc.clock");
    CHECK(!memcmp(&advice, &untouched, sizeof advice));
}

/* ---------------- what the adviser asks the library */

/* A step of the object: the bytes that this worker brings to the rounds of its only tensor,
   those of payloads apart. */
static void bring(gcomp *gc, float *grad, size_t sums[2], size_t *payloads)
{
    gcomp_request request;
    gcomp_info info;
    sums[0] = sums[1] = *payloads = 0;
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK && gcomp_step_ready(gc, 0, grad) == GCOMP_OK);
    while (gcomp_step_next(gc, &request) == GCOMP_OK && request.kind != GCOMP_DONE) {
        const size_t width = request.dtype == GCOMP_I8 ? 1 : request.dtype == GCOMP_I16 ? 2 : 4;
        if (request.kind == GCOMP_ALLREDUCE) sums[0] += width * request.count;
        if (request.kind == GCOMP_ALLREDUCE_MAX) sums[1] += width * request.count;
        if (request.kind == GCOMP_ALLGATHER) {
            memcpy(request.recv, request.send, request.bytes[0]);
            if (gcomp_peek(request.send, request.bytes[0], &info) == GCOMP_OK) *payloads += request.bytes[0];
        }
        CHECK(gcomp_step_done(gc, request.id, 0) == GCOMP_OK);
    }
    CHECK(gcomp_step_commit(gc) == GCOMP_OK);
}

static void test_rounds_are_those_of_a_step_with_every_method(void)
{
    static float grad[512 * 768];
    for (size_t m = 0; gcomp_method_name(m); m++) {
        size_t sums[2], payloads, expected[2] = {0, 0}, bound = 0;
        gcomp_tensor tensor = {"w", 512, 96, 8, GCOMP_F32, NULL};
        gcomp_round rounds[GCOMP_ROUNDS];
        gcomp_codec codec;
        gcomp_desc d = {0};
        gcomp *gc;
        d.codec = gcomp_method_name(m);
        if (!strcmp(d.codec, "dgc")) d.codec = "dgc:warmup=0";
        d.why = why;
        d.why_capacity = sizeof why;
        d.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
        CHECK(gcomp_rounds(&d, &tensor, 1, &codec, rounds) == GCOMP_OK);
        CHECK(gcomp_open(&gc, &d) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        CHECK(!memcmp(&codec, tensor_codec(gc, 0), sizeof codec));
        for (size_t i = 0; i < sizeof grad / sizeof *grad; i++) grad[i] = (float)((int)(i * 2654435761u >> 12 & 1023) - 512) / 256.0f;
        bring(gc, grad, sums, &payloads);
        for (int r = 0; r < GCOMP_ROUNDS; r++) {
            if (rounds[r].kind == GCOMP_ALLREDUCE) expected[0] += rounds[r].bytes;
            else if (rounds[r].kind == GCOMP_ALLREDUCE_MAX) expected[1] += rounds[r].bytes;
            else if (rounds[r].kind == GCOMP_ALLGATHER) bound += rounds[r].bytes;
            else CHECK(rounds[r].kind == GCOMP_WAIT && rounds[r].bytes == 0);
        }
        if (sums[0] != expected[0] || sums[1] != expected[1]) printf("# %s: %zu %zu, %zu %zu\n", d.codec, sums[0], expected[0], sums[1], expected[1]);
        CHECK(sums[0] == expected[0] && sums[1] == expected[1]);
        CHECK(payloads <= bound && (payloads > 0) == (bound > 0));
        gcomp_close(gc);
    }
}

static void test_rounds_go_by_the_rules_and_refuse_what_is_wrong(void)
{
    gcomp_tensor tensor = {"w", 100, 100, 0, GCOMP_F32, NULL}, vector = {"v", 10000, 0, 0, GCOMP_F32, NULL};
    gcomp_tensor both[2];
    gcomp_round rounds[2 * GCOMP_ROUNDS], untouched[2 * GCOMP_ROUNDS];
    gcomp_codec codecs[2];
    gcomp_desc d = {0};
    d.codec = "topk";
    d.comm.world = 4;
    d.aggregate = GCOMP_AGGREGATE_SHARDS;
    d.why = why;
    d.why_capacity = sizeof why;
    both[0] = tensor;
    both[1] = vector;
    CHECK(gcomp_rounds(&d, both, 2, codecs, rounds) == GCOMP_OK && rounds[0].kind == GCOMP_ALLTOALL && rounds[1].kind == GCOMP_WAIT);
    CHECK(rounds[GCOMP_ROUNDS].kind == GCOMP_ALLREDUCE && rounds[GCOMP_ROUNDS].bytes == 40000);
    CHECK(gcomp_rounds(&d, &vector, 1, NULL, rounds) == GCOMP_OK && rounds[0].kind == GCOMP_ALLTOALL);
    CHECK(gcomp_rounds(&d, &vector, 1, codecs, NULL) == GCOMP_OK && gcomp_rounds(&d, NULL, 0, codecs, rounds) == GCOMP_OK);
    memcpy(untouched, rounds, sizeof rounds);
    CHECK(gcomp_rounds(NULL, &tensor, 1, NULL, rounds) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_rounds(&d, NULL, 1, NULL, rounds) == GCOMP_INVALID_ARGUMENT && strstr(why, "tensors is NULL"));
    both[1].name = "w";
    CHECK(gcomp_rounds(&d, both, 2, codecs, rounds) == GCOMP_DUPLICATE_NAME && strstr(why, "tensor 'w': a tensor of this name"));
    both[1].name = "z";
    both[1].rows = 0; /* the last one alone is wrong: nothing is told of the first */
    CHECK(gcomp_rounds(&d, both, 2, codecs, rounds) == GCOMP_INVALID_ARGUMENT && strstr(why, "tensor 'z': rows"));
    tensor.rows = 0;
    CHECK(gcomp_rounds(&d, &tensor, 1, NULL, rounds) == GCOMP_INVALID_ARGUMENT && strstr(why, "tensor 'w': rows"));
    d.codec = "sine";
    CHECK(gcomp_rounds(&d, &vector, 1, NULL, rounds) == GCOMP_BAD_CODEC && strstr(why, "sine"));
    d.codec = "intsum";
    CHECK(gcomp_rounds(&d, &vector, 1, NULL, rounds) == GCOMP_MISSING_CALLBACK && strstr(why, "allreduce_dtypes"));
    CHECK(!memcmp(untouched, rounds, sizeof rounds));
}

/* Many small tensors, among them vectors and one large one, as an object with the choices of the advice describes them: to the byte. */
static void test_many_small_tensors_send_what_an_object_says(void)
{
    enum { MANY = 301 };
    static const struct {
        const char *codecs[2]; /* candidates */
        int world;
        size_t bucket;
        gcomp_aggregate aggregate;
    } all[] = {{{"int:bits=4", NULL}, 64, 0, GCOMP_AGGREGATE_AUTO},          {{"int:bits=4", NULL}, 1024, 0, GCOMP_AGGREGATE_AUTO},
               {{"int:bits=4", NULL}, 64, 1 << 18, GCOMP_AGGREGATE_AUTO},    {{"int:bits=4", NULL}, 1024, 1 << 20, GCOMP_AGGREGATE_AUTO},
               {{"topk:density=0.01", NULL}, 64, 0, GCOMP_AGGREGATE_AUTO},   {{"topk:density=0.01,global=1+int:bits=4", NULL}, 64, 0, GCOMP_AGGREGATE_AUTO},
               {{"topk:density=0.01,global=1+int:bits=4", NULL}, 1024, 0, GCOMP_AGGREGATE_AUTO}, {{"sign", NULL}, 64, 0, GCOMP_AGGREGATE_SCATTER},
               {{"sign", "powersgd:rank=2"}, 64, 0, GCOMP_AGGREGATE_AUTO},   {{"sign:block=tensor", "int:bits=4"}, 8, 0, GCOMP_AGGREGATE_AUTO}};
    static char names[MANY][8];
    static gcomp_tensor many[MANY];
    static gcomp_advise_choice choices[MANY];
    for (int i = 0; i < MANY; i++) {
        gcomp_tensor t = {names[i], 32, 32, 0, GCOMP_F32, NULL};
        if (i % 10 == 9) t.cols = 0, t.rows = 1024; /* a vector, that is not compressed */
        if (i == 150) t.rows = t.cols = 1024;
        snprintf(names[i], sizeof names[i], "t%d", i);
        many[i] = t;
    }
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        static char text[1 << 16];
        size_t sent = 0, alone = 0, described = 0;
        gcomp *gc;
        ask_about(all[k].codecs[0], all[k].world, MANY);
        if (all[k].codecs[1]) {
            candidates[2] = candidates[1];
            candidates[2].codec = all[k].codecs[1];
            question.candidate_count = 3;
        }
        if (!strncmp(all[k].codecs[0], "topk", 4)) candidates[1].figures.bytes = 0.04;
        question.tensors = many;
        desc.bucket_bytes = all[k].bucket;
        desc.aggregate = all[k].aggregate;
        CHECK(gcomp_advise(&question, choices, &advice) == GCOMP_OK && advice.compressed > 0);
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        for (int i = 0; i < MANY; i++) {
            gcomp_tensor t = many[i];
            gcomp_round rounds[GCOMP_ROUNDS];
            t.codec = candidates[choices[i].choice].codec;
            CHECK(gcomp_add_tensor(gc, &t) == GCOMP_OK && gcomp_rounds(&desc, &t, 1, NULL, rounds) == GCOMP_OK);
            for (int r = 0; r < GCOMP_ROUNDS; r++) alone += rounds[r].sent;
            sent += choices[i].sent;
        }
        CHECK(gcomp_describe(gc, text, sizeof text) < sizeof text);
        const char *end = strstr(text, "\n301 tensors: ");
        CHECK(end != NULL);
        if (end) described = strtoul(end + (strstr(end, "at most ") ? 22 : 14), NULL, 10);
        if (sent != described) printf("# %s, %d workers: %zu bytes, the object says %zu\n", all[k].codecs[0], all[k].world, sent, described);
        CHECK(sent == described);
        CHECK(sent < alone || (sent == alone && choices[0].form == GCOMP_ALLREDUCE)); /* one by one they would send more, but for sums */
        gcomp_close(gc);
    }
}

/* ---------------- figures that are measured */

static double now;

static double tick(void *user)
{
    (void)user;
    return now += 1e-3;
}

static test_heap heap;

static void ask_without_figures(int world)
{
    ask(world);
    for (int c = 0; c < CANDIDATES; c++) memset(&candidates[c].figures, 0, sizeof candidates[c].figures);
    desc.clock = tick;
    desc.allocator = heap_of(&heap);
    heap.left = SIZE_MAX;
}

static void test_figures_are_measured_once_and_written(void)
{
    const double compressed = 512 * 768 + 4 * 64 * 64 + 40 * 40;
    gcomp_advise_candidate measured[CANDIDATES];
    gcomp_advice again;
    ask_without_figures(4);
    question.link = gcomp_advise_link_of(1e9, 1e-5, 4);
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && heap.held == 0);
    for (int c = 0; c < CANDIDATES; c++) CHECK(candidates[c].figures.element > 0 && candidates[c].figures.payload >= 0);
    CHECK(candidates[NONE].figures.bytes == 0 && candidates[POWERSGD].figures.bytes == 0 && candidates[INTSUM].figures.bytes == 0);
    CHECK(near(candidates[SIGN].figures.bytes, (3 * 4 + compressed / 8) / compressed)); /* a scale for each of three tensors */
    for (int c = 0; c < CANDIDATES; c++) { /* all tensors together take what was measured: whole milliseconds by this clock */
        const gcomp_advise_figures *f = &candidates[c].figures;
        const double tensors_of = c ? 3 : 4, elements = compressed + (c ? 0 : 5000);
        const double all = 1e3 * (tensors_of * f->tensor + elements * (f->element + 3 * f->payload));
        CHECK(all > 0.5 && fabs(all - floor(all + 0.5)) < 1e-6);
    }
    CHECK(candidates[TOPK].figures.bytes > 0.045 && candidates[TOPK].figures.bytes < 0.06); /* 1 % of 4 bytes and 6.6 to 10 bits */
    memcpy(measured, candidates, sizeof measured);
    desc.clock = NULL; /* not needed any more */
    heap.left = 5;     /* the table of tensors and candidates, and what gcomp_rounds is asked and tells */
    CHECK(gcomp_advise(&question, each, &again) == GCOMP_OK && !memcmp(&again, &advice, sizeof again));
    CHECK(!memcmp(measured, candidates, sizeof measured));
}

/* A machine that is busy with other work at any time: a call takes 0.1 ms, or sometimes 50. */
static double stop_and_go(void *user)
{
    const uint64_t draw = gcomp_key_make(9, (uint64_t)(*(int *)user)++, 0, 0).shared;
    return now += draw % 6 == 0 ? 50e-3 : 1e-4;
}

static void test_no_figure_of_a_busy_machine_is_negative(void)
{
    int draws = 0;
    for (int trial = 0; trial < 100; trial++) {
        const gcomp_advise_figures *f = &candidates[SIGN].figures;
        ask_without_figures(4);
        question.link = gcomp_advise_link_of(1e9, 1e-5, 4);
        question.tensors = tensors + 2; /* "small" and "bias" */
        question.tensor_count = 2;
        question.candidate_count = 2;
        desc.clock = stop_and_go;
        desc.clock_user = &draws;
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && advice.codec_seconds > 0);
        CHECK(f->tensor >= 0 && f->element >= 0 && f->payload >= 0 && f->tensor + f->element + f->payload > 0);
    }
}

static void test_figures_of_ranges_are_those_of_payloads(void)
{
    gcomp_advise_figures gathered, ranges;
    ask_without_figures(8);
    question.link = gcomp_advise_link_of(1e8, 1e-5, 8);
    question.candidate_count = 2;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLGATHER);
    gathered = candidates[SIGN].figures;
    ask_without_figures(8);
    question.link = gcomp_advise_link_of(1e8, 1e-5, 8);
    question.candidate_count = 2;
    desc.comm.alltoallv = exchange_parts;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].form == GCOMP_ALLTOALL && heap.held == 0);
    ranges = candidates[SIGN].figures;
    CHECK(ranges.element > 0 && near(ranges.bytes, gathered.bytes));
    candidates[SIGN].figures.bytes = 0; /* is measured, also where no tensor is gathered */
    desc.clock = NULL;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && candidates[SIGN].figures.bytes == ranges.bytes);
    CHECK(candidates[SIGN].figures.element == ranges.element);
}

/* dct keeps the momentum, and asks for steps by the sign: Adam does not get it, even where the question names it. */
static void test_dct_is_gathered_and_not_chosen_before_adam(void)
{
    const double elements = 512 * 768 + 4 * 64 * 64 + 40 * 40;
    for (int optimizer = GCOMP_OPTIMIZER_UNKNOWN; optimizer <= GCOMP_OPTIMIZER_ADAM; optimizer++) {
        const int adam = optimizer == GCOMP_OPTIMIZER_ADAM;
        size_t sent = 0;
        ask_without_figures(4);
        desc.optimizer = (gcomp_optimizer)optimizer;
        desc.comm.alltoallv = exchange_parts; /* no use to it: it is gathered */
        question.link = gcomp_advise_link_of(1e8, 50e-6, 4);
        question.candidate_count = 2;
        candidates[1].codec = "dct:top=8+bf16";
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && heap.held == 0);
        CHECK(advice.compressed == (adam ? 0 : 3));
        CHECK((candidates[1].figures.element > 0) == !adam); /* what is not chosen is not measured */
        for (int t = 0; t < 3 && !adam; t++) {
            gcomp_round all[TENSORS * GCOMP_ROUNDS];
            const gcomp_round *rounds = all + GCOMP_ROUNDS * t;
            desc.codec = candidates[1].codec;
            CHECK(gcomp_rounds(&desc, tensors, TENSORS, NULL, all) == GCOMP_OK);
            CHECK(rounds[0].kind == GCOMP_ALLGATHER && rounds[1].kind == GCOMP_WAIT);
            CHECK(each[t].choice == 1 && each[t].form == GCOMP_ALLGATHER && each[t].sent == rounds[0].sent);
            sent += rounds[0].bytes;
        }
        if (!adam) CHECK(near(candidates[1].figures.bytes, ((double)sent - 3 * 32) / elements)); /* lengths are known before */
    }
}

/* What is given stays, to the bit, and only what is missing is measured: nothing is taken to
   cost nothing. */
static void test_figures_that_are_given_stay_and_the_others_are_measured(void)
{
    gcomp_advise_figures all[CANDIDATES];
    ask_without_figures(4);
    question.link = gcomp_advise_link_of(1e9, 1e-5, 4);
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
    for (int c = 0; c < CANDIDATES; c++) all[c] = candidates[c].figures;
    ask_without_figures(4);
    candidates[TOPK].figures.bytes = 0.5; /* alone: the times are measured */
    candidates[SIGN].figures.element = 3e-9; /* alone: the bytes are */
    candidates[POWERSGD].figures.payload = 1e-9; /* has no payload to measure */
    candidates[INTSUM].figures.bytes = 0.25; /* is not used */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && heap.held == 0);
    CHECK(candidates[TOPK].figures.bytes == 0.5 && candidates[TOPK].figures.element > 0);
    CHECK(candidates[SIGN].figures.element == 3e-9 && candidates[SIGN].figures.tensor == 0 && candidates[SIGN].figures.payload == 0);
    CHECK(near(candidates[SIGN].figures.bytes, all[SIGN].bytes));
    CHECK(candidates[POWERSGD].figures.payload == 1e-9 && candidates[POWERSGD].figures.element == 0);
    CHECK(candidates[INTSUM].figures.bytes == 0.25 && candidates[INTSUM].figures.element > 0);
    ask(4);
    question.link = gcomp_advise_link_of(1e9, 1e-5, 4);
    candidates[SIGN].figures.bytes = 0; /* payloads are measured without a clock */
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && near(candidates[SIGN].figures.bytes, all[SIGN].bytes));
    memset(&candidates[TOPK].figures, 0, sizeof candidates[TOPK].figures);
    candidates[TOPK].figures.bytes = 0.5;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_MISSING_CALLBACK && strstr(why, "candidate 2") && strstr(why, "clock"));
    CHECK(candidates[TOPK].figures.element == 0);
}

static void test_an_advice_without_memory_leaves_nothing_behind(void)
{
    gcomp_result result = GCOMP_OUT_OF_MEMORY;
    for (long allocations = 0; result != GCOMP_OK && allocations < 1000; allocations += allocations < 60 ? 1 : 100) {
        ask_without_figures(2);
        question.tensors = tensors + 2; /* "small" and "bias" */
        question.tensor_count = 2;
        question.candidate_count = 2;
        heap.left = allocations;
        result = gcomp_advise(&question, each, &advice);
        CHECK((result == GCOMP_OK || result == GCOMP_OUT_OF_MEMORY) && heap.held == 0);
        if (result) CHECK(strstr(why, allocations >= 5 ? "measuring" : "table"));
        if (allocations == 0) CHECK(result == GCOMP_OUT_OF_MEMORY);
    }
    CHECK(result == GCOMP_OK);
}

/* ---------------- links that are measured */

typedef struct wire {
    double sum_start, sum_byte, gather_start, gather_byte, exchange_start, exchange_byte;
    int fail_at, calls; /* fail_at: this call fails */
    int other;          /* what the other worker says: 0 the same, 1 no memory, 2 NaN, 3 it is twice as slow */
    int poor;           /* no memory */
} wire;

/* A sum of one number says how many workers have no memory. A sum of twelve numbers brings what
   both workers measured, six numbers of each. */
static int wire_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    wire *w = (wire *)user;
    float *x = (float *)data;
    CHECK(dtype == GCOMP_F32);
    if (count == 1 && w->other == 1) x[0] += 1;
    for (int i = 0; i < 6 && count == 12; i++) {
        CHECK(x[6 + i] == 0);
        x[6 + i] = w->other == 2 ? NAN : w->other == 3 ? 2 * x[i] : x[i];
    }
    now += w->sum_start + w->sum_byte * 4 * (double)count;
    return ++w->calls == w->fail_at ? 5 : 0;
}

static int wire_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    wire *w = (wire *)user;
    memcpy(all, mine, bytes);
    memcpy((uint8_t *)all + bytes, mine, bytes);
    now += w->gather_start + w->gather_byte * (double)bytes;
    return ++w->calls == w->fail_at ? 5 : 0;
}

static int wire_alltoallv(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    wire *w = (wire *)user;
    CHECK(sent[0] == sent[1] && awaited[0] == sent[0] && awaited[1] == sent[0] && sent[0] > 0);
    memcpy(recv, send, sent[0]);
    memcpy((uint8_t *)recv + sent[0], send, sent[0]);
    now += w->exchange_start + w->exchange_byte * (double)(sent[0] + sent[1]);
    return ++w->calls == w->fail_at ? 5 : 0;
}

static double read_now(void *user)
{
    (void)user;
    return now;
}

static gcomp_result measure_wire(wire *w, int world, size_t bytes, gcomp_advise_link *link, gcomp_desc *d)
{
    gcomp_result result;
    now = 0;
    w->calls = 0;
    d->comm.user = w;
    d->comm.world = world;
    d->why = why;
    d->why_capacity = sizeof why;
    why[0] = 0;
    heap.left = w->poor ? 0 : SIZE_MAX;
    result = gcomp_advise_link_measure(d, bytes, link);
    CHECK((result == GCOMP_OK || !link) == (why[0] == 0));
    return result;
}

static void test_a_link_is_measured_through_the_callbacks(void)
{
    wire w = {1e-3, 2e-9, 3e-3, 5e-9, 4e-3, 7e-9, 0, 0, 0, 0}, same = w;
    gcomp_advise_link link, untouched;
    gcomp_desc d;
    memset(&d, 0, sizeof d);
    d.comm.allreduce = wire_allreduce;
    d.comm.allgather = wire_allgather;
    d.clock = read_now;
    d.allocator = heap_of(&heap);
    for (size_t bytes = 0; bytes < 5000000; bytes += 2000000) {
        heap.left = SIZE_MAX;
        CHECK(measure_wire(&w, 2, bytes, &link, &d) == GCOMP_OK && heap.held == 0);
        CHECK(fabs(link.sum_start - 1e-3) < 1e-9 && fabs(link.sum_byte - 2e-9) < 1e-13);
        CHECK(fabs(link.gather_start - 3e-3) < 1e-9 && fabs(link.gather_byte - 5e-9) < 1e-13);
        CHECK(link.exchange_start == 0 && link.exchange_byte == 0); /* the transport has no alltoall */
    }
    d.comm.alltoallv = wire_alltoallv;
    for (size_t bytes = 0; bytes < 4000000; bytes += 1999999) {
        CHECK(measure_wire(&w, 2, bytes, &link, &d) == GCOMP_OK && heap.held == 0);
        CHECK(fabs(link.gather_start - 3e-3) < 1e-9 && fabs(link.gather_byte - 5e-9) < 1e-13);
        CHECK(fabs(link.exchange_start - 4e-3) < 1e-9 && fabs(link.exchange_byte - 7e-9) < 1e-13);
    }
    w.other = 3;
    CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_OK && fabs(link.sum_start - 2e-3) < 1e-9); /* the slowest counts */
    CHECK(fabs(link.exchange_start - 8e-3) < 1e-9);
    memset(&link, 9, sizeof link);
    untouched = link;
    for (w = same, w.fail_at = 1; w.fail_at <= 1 + 24 + 1; w.fail_at++)
        CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_CALLBACK_FAILED && w.calls == w.fail_at);
    w = same;
    w.other = 1;
    CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_PEER_FAILED);
    w.other = 2;
    CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_MISMATCH);
    w = same;
    w.poor = 1;
    CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_OUT_OF_MEMORY && w.calls == 1 && heap.held == 0);
    w.poor = 0;
    heap.left = SIZE_MAX;
    for (d.comm.rank = -1; d.comm.rank < 4; d.comm.rank += 3) /* -1 and 2 of two workers: there is no place for their times */
        CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_INVALID_ARGUMENT && w.calls == 0);
    d.comm.rank = 0;
    d.comm.allreduce = NULL;
    CHECK(measure_wire(&w, 2, 0, &link, &d) == GCOMP_MISSING_CALLBACK);
    CHECK(measure_wire(&w, 2, 0, NULL, &d) == GCOMP_INVALID_ARGUMENT && gcomp_advise_link_measure(NULL, 0, &link) == GCOMP_INVALID_ARGUMENT);
    CHECK(!memcmp(&link, &untouched, sizeof link));
    CHECK(measure_wire(&w, 1, 0, &link, &d) == GCOMP_OK && link.sum_start == 0 && link.gather_byte == 0);
    d.clock = NULL;
    CHECK(measure_wire(&w, 1, 0, &link, &d) == GCOMP_MISSING_CALLBACK);
}

/* ---------------- when a gain is a gain */

/* The machine is never quiet, and the link costs nothing: what was measured of codecs does not count. */
static void test_where_nothing_can_be_gained_nothing_is_compressed_and_a_sentence_says_why(void)
{
    int draws = 0;
    for (int trial = 0; trial < 30; trial++) {
        const int world = trial % 3 ? 1 : 4;
        ask_without_figures(world);
        if (world == 1) question.link = gcomp_advise_link_of(1e8, 1e-3, 4); /* whatever it costs */
        desc.clock = stop_and_go;
        desc.clock_user = &draws;
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
        CHECK(advice.compressed == 0 && advice.noise == 0 && advice.seconds == advice.plain && advice.plain > 0);
        for (int t = 0; t < TENSORS; t++) CHECK(each[t].choice == NONE);
        CHECK(advice.note && strstr(advice.note, world == 1 ? "one worker" : "the link takes no time"));
    }
    ask(4);
    question.link = gcomp_advise_link_of(1e9, 1e-5, 4);
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && advice.note == NULL);
}

static void test_a_codec_gains_more_than_the_noise_or_is_not_chosen(void)
{
    const double n = 512 * 768;
    double gain, processor;
    ask(4);
    question.link = gcomp_advise_link_of(1e9, 50e-6, 4);
    question.candidate_count = 2;
    question.tensor_count = 1;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == SIGN && advice.noise == 0);
    gain = advice.plain - advice.seconds;
    processor = 2e-6 + n * (2e-9 + 3 * 0.5e-9); /* of "sign" */
    for (int k = -1; k <= 1; k += 2) { /* a little less noise than gain, and a little more */
        candidates[SIGN].figures.noise = gain / processor * (1 + 0.01 * k);
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == (k < 0 ? 1u : 0u));
        CHECK(near(advice.noise, k < 0 ? 0.99 * gain : 0));
    }
    candidates[SIGN].figures.noise = 0.5 * gain / processor; /* that of "none" counts too */
    for (int k = -1; k <= 1; k += 2) {
        candidates[NONE].figures.noise = 0.5 * gain / (1e-6 + n * 1e-9) * (1 + 0.01 * k);
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK && each[0].choice == (k < 0 ? 1u : 0u));
    }
    candidates[NONE].figures.noise = NAN;
    CHECK(gcomp_advise(&question, each, &advice) == GCOMP_INVALID_ARGUMENT && strstr(why, "figures"));
}

static void test_noise_is_how_far_measurements_lie_apart(void)
{
    const double steady[3] = {2, 2, 2}, apart[3] = {3, 1, 2}, none[3] = {0, 0, 0};
    int draws = 0, chosen = 0;
    CHECK(gcomp_advise_spread(steady) == 0 && gcomp_advise_spread(apart) == 1 && gcomp_advise_spread(none) == 0);
    for (int trial = 0; trial < 100; trial++) { /* on a busy machine, over a fast link and a slow one */
        ask_without_figures(4);
        question.link = gcomp_advise_link_of(trial % 2 ? 1e11 : 1e6, 1e-6, 4);
        question.tensors = tensors + 2;
        question.tensor_count = 2;
        question.candidate_count = 3;
        desc.clock = stop_and_go;
        desc.clock_user = &draws;
        CHECK(gcomp_advise(&question, each, &advice) == GCOMP_OK);
        if (advice.compressed) CHECK(advice.seconds + advice.noise < advice.plain);
        else CHECK(advice.seconds == advice.plain && advice.noise == 0);
        chosen += advice.compressed != 0;
    }
    CHECK(chosen > 0 && chosen < 100);
}

int main(void)
{
    RUN(test_the_link_of_a_ring_is_its_formula);
    RUN(test_no_compression_is_the_answer_on_a_fast_link);
    RUN(test_an_adam_user_is_not_offered_what_does_not_suit_adam);
    RUN(test_figures_and_link_give_the_times_of_the_comment);
    RUN(test_no_choice_is_better_than_the_advice);
    RUN(test_sign_goes_in_two_shots_where_the_transport_can);
    RUN(test_a_link_without_times_of_an_alltoall_takes_those_of_the_gather);
    RUN(test_halves_are_summed_where_the_transport_can);
    RUN(test_sparse_means_have_at_most_the_elements_of_all);
    RUN(test_scattered_means_are_not_gathered);
    RUN(test_lengths_that_vary_are_told);
    RUN(test_a_vector_that_is_alone_may_be_compressed);
    RUN(test_wrong_questions_are_refused_with_a_sentence);
    RUN(test_rounds_are_those_of_a_step_with_every_method);
    RUN(test_rounds_go_by_the_rules_and_refuse_what_is_wrong);
    RUN(test_many_small_tensors_send_what_an_object_says);
    RUN(test_figures_are_measured_once_and_written);
    RUN(test_no_figure_of_a_busy_machine_is_negative);
    RUN(test_figures_of_ranges_are_those_of_payloads);
    RUN(test_dct_is_gathered_and_not_chosen_before_adam);
    RUN(test_figures_that_are_given_stay_and_the_others_are_measured);
    RUN(test_an_advice_without_memory_leaves_nothing_behind);
    RUN(test_a_link_is_measured_through_the_callbacks);
    RUN(test_where_nothing_can_be_gained_nothing_is_compressed_and_a_sentence_says_why);
    RUN(test_a_codec_gains_more_than_the_noise_or_is_not_chosen);
    RUN(test_noise_is_how_far_measurements_lie_apart);
    return test_end();
}
