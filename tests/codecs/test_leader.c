/* Proves that leadertopk does what a plain reference does, element by element: the leader of a step, its list, the bytes of the
   list as floats, the mean and the residual. Then that bad lists are refused by all workers, and what travels. */
#include "group.h"

enum { FLOATS = 1, VALUES = 2, SOME = 1500 }; /* calls of a step: the frames, the list, the values */
static gcomp_isa isa;
static gcomp_parallel parallel;

static gcomp_desc own_desc(void)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    desc.isa = isa;
    desc.parallel = parallel;
    return desc;
}

static void open_one(group *g, size_t world, const char *codec, size_t n)
{
    gcomp_desc desc = own_desc();
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* also one worker alone encodes */
    group_open(g, world, &desc, &codec, &n, 1);
}

/* ---------------- the list, as the manual describes it */

typedef struct words {
    float *at;
    size_t count;
} words;

/* Bits of the list, 31 a float. */
static uint64_t bits_at(const words *x, size_t bit, unsigned count)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < count; i++, bit++) {
        const uint32_t u = bits_of(x->at[bit / 31]);
        const uint32_t w = (u & 0x3fffffffu) | (u >> 31 << 30);
        CHECK((u >> 30 & 1) != (u >> 29 & 1));
        value |= (uint64_t)(w >> bit % 31 & 1) << i;
    }
    return value;
}

static void put_bits(words *x, size_t bit, unsigned count, uint64_t value)
{
    for (unsigned i = 0; i < count; i++, bit++) {
        uint32_t u = bits_of(x->at[bit / 31]);
        const size_t at = bit % 31 == 30 ? 31 : bit % 31;
        u = (u & ~(1u << at)) | (uint32_t)(value >> i & 1) << at;
        u = (u & ~(1u << 30)) | (~u << 1 & 1u << 30);
        x->at[bit / 31] = float_of(u);
    }
}

/* The CRC of bytes 4 .. 12 + those of the indices, where it belongs. */
static uint32_t crc_of(const words *x)
{
    uint32_t crc = 0;
    const size_t bytes = 13 + (size_t)bits_at(x, 64, 32);
    for (size_t i = 4; i < bytes && 8 * i + 8 <= 31 * x->count; i++) {
        const uint8_t byte = (uint8_t)bits_at(x, 8 * i, 8);
        crc = plain_crc(crc, &byte, 1);
    }
    return crc;
}

/* ---------------- the reference */

static const float *ranked;

static int larger_first(const void *x, const void *y)
{
    const size_t a = *(const size_t *)x, b = *(const size_t *)y;
    const float p = fabsf(ranked[a]), q = fabsf(ranked[b]);
    return p != q ? p > q ? -1 : 1 : a < b ? -1 : 1;
}

/* sent[i] <- 1 for the k largest of p, of equal ones the first; zeros never. */
static void largest_of(const float *p, size_t n, size_t k, uint8_t *sent)
{
    size_t *order = (size_t *)malloc(n * sizeof *order);
    memset(sent, 0, n);
    for (size_t i = 0; i < n; i++) order[i] = i;
    ranked = p;
    qsort(order, n, sizeof *order, larger_first);
    for (size_t j = 0; j < k && p[order[j]] != 0; j++) sent[order[j]] = 1;
    free(order);
}

static words seen;  /* the sum of round 0, as worker 0 got it */
static void look(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    (void)g, (void)from;
    if (call != FLOATS || rank != 0) return;
    free(seen.at);
    seen.at = (float *)malloc(length);
    memcpy(seen.at, bytes, length);
    seen.count = length / 4;
}

/* One step of the group, all of whose bits are checked. */
static void check_step(group *g, uint64_t step, double density)
{
    const size_t n = g->n[0], k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    const float part = 1.0f / (float)g->world;
    float *p[MOST];
    uint8_t *sent = (uint8_t *)malloc(n);
    size_t wrong = 0, count = 0;
    for (size_t w = 0; w < g->world; w++) {
        const float *e = tensor_residual(g->gc[w], 0);
        p[w] = (float *)malloc(4 * n);
        for (size_t i = 0; i < n; i++) {
            volatile float scaled = ((float *)g->grad[w][0])[i] * (g->step ? g->step->scale : 1);
            p[w][i] = scaled + e[i];
        }
    }
    largest_of(p[step % g->world], n, k, sent);
    g->change_sum = look;
    group_step(g);
    g->change_sum = NULL;
    CHECK(all_are(g, GCOMP_OK));
    CHECK(g->world == 1 || g->carried == 3 || !n);
    for (size_t i = 0; i < n; i++) {
        float mean = 0;
        for (size_t w = 0; w < g->world && sent[i]; w++) {
            volatile float own = p[w][i] * part;
            mean = w ? mean + own : own;
        }
        count += sent[i];
        for (size_t w = 0; w < g->world; w++) {
            wrong += bits_of(((float *)g->grad[w][0])[i]) != bits_of(mean);
            wrong += bits_of(tensor_residual(g->gc[w], 0)[i]) != (sent[i] ? 0 : bits_of(p[w][i]));
        }
    }
    if (wrong) printf("# step %d of %d workers, %d elements: %d wrong\n", (int)step, (int)g->world, (int)n, (int)wrong);
    CHECK(wrong == 0);
    if (g->world > 1) { /* what stands in the floats */
        CHECK(bits_at(&seen, 32, 32) == count && bits_at(&seen, 0, 32) == crc_of(&seen));
        for (size_t i = 0; i < seen.count; i++) CHECK(fabsf(seen.at[i]) >= 1e-20f && fabsf(seen.at[i]) <= 4e19f);
        CHECK(g->request[0][VALUES].count == k);
    }
    for (size_t w = 0; w < g->world; w++) free(p[w]);
    free(sent);
}

static void test_steps_equal_the_plain_reference(void)
{
    static const size_t sizes[] = {15, 16, 17, 61, 1009, 4096, 70001, (1 << 20) + 3};
    static const struct { double density; const char *codec; } c[] = {
        {0.2, "leadertopk:density=0.2"}, {0.001, "leadertopk"}, {0.7, "leadertopk:density=0.7"}, {0.01, "leadertopk:density=0.01"}};
    gcomp_step scaled = GCOMP_STEP;
    scaled.scale = 0.3f;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t world = 1; world <= 5; world += s > 5 ? 3 : 1) {
            const size_t which = s < 4 ? 0 : s < 6 ? world % 4 : s == 6 ? 2 * (world / 4) + 1 : 1;
            group g;
            open_one(&g, world, c[which].codec, sizes[s]);
            for (uint64_t step = 0; step < (s > 6 ? 2u : 7u); step++) {
                group_fill(&g, step);
                if (step == 2) /* ties, and one huge value */
                    for (size_t w = 0; w < world; w++)
                        for (size_t i = 0; i < g.n[0]; i++) ((float *)g.grad[w][0])[i] = i == 7 ? 3e38f : 0.5f;
                if (step == 4) /* subnormal numbers, and zeros */
                    for (size_t w = 0; w < world; w++)
                        for (size_t i = 0; i < g.n[0]; i++) ((float *)g.grad[w][0])[i] = i % 3 ? 0 : 1e-42f;
                g.step = step == 3 ? &scaled : NULL;
                check_step(&g, step, c[which].density);
            }
            g.step = NULL;
            for (size_t w = 0; w < world; w++) /* p is zero, everywhere and on all */
                for (size_t i = 0; i < g.n[0]; i++) ((float *)g.grad[w][0])[i] = -tensor_residual(g.gc[w], 0)[i];
            check_step(&g, s > 6 ? 2 : 7, c[which].density);
            group_close(&g);
        }
}

static void test_threads_change_no_bit(void)
{
    group a, b;
    open_one(&a, 2, "leadertopk", 300001);
    parallel.run = run_backwards;
    open_one(&b, 2, "leadertopk", 300001);
    for (uint64_t step = 0; step < 3; step++) {
        group_fill(&a, step);
        group_fill(&b, step);
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && digest(&a, 1) == digest(&b, 1));
    }
    group_close(&a);
    group_close(&b);
    parallel.run = NULL;
}

/* A worker alone leads always. A stack has the elements of one tensor. */
static void test_one_worker_is_topk(void)
{
    for (size_t stack = 1; stack < 4; stack++) {
        enum { N = 60 * 50 };
        static float grad[2][3 * N];
        gcomp *gc[2];
        for (int c = 0; c < 2; c++) {
            gcomp_desc desc = own_desc();
            gcomp_tensor t = {0};
            desc.comm.world = 1;
            t.name = "w";
            t.rows = 60;
            t.cols = 50;
            t.stack = stack;
            t.codec = c ? "leadertopk:density=0.02" : "topk:density=0.02";
            CHECK(gcomp_open(&gc[c], &desc) == GCOMP_OK && gcomp_add_tensor(gc[c], &t) == GCOMP_OK);
        }
        for (uint64_t step = 0; step < 50; step++) {
            for (int c = 0; c < 2; c++) {
                float *at = grad[c];
                for (size_t i = 0; i < stack * N; i++) at[i] = value_of(step, 0, 0, i);
                CHECK(exchange_floats(gc[c], &at, NULL) == GCOMP_OK);
            }
            CHECK(memcmp(grad[0], grad[1], 4 * stack * N) == 0);
            CHECK(memcmp(tensor_residual(gc[0], 0), tensor_residual(gc[1], 0), 4 * stack * N) == 0);
        }
        gcomp_close(gc[0]);
        gcomp_close(gc[1]);
    }
}

/* On each worker: what it sent and what is left is what came in. */
static void test_nothing_is_lost_in_a_thousand_steps(void)
{
    enum { STEPS = 1000, N = 400, WORLD = 3 };
    static double sum[WORLD][N], before[WORLD][N], size[N];
    size_t wrong = 0, places = 0;
    group g;
    memset(sum, 0, sizeof sum);
    memset(size, 0, sizeof size);
    open_one(&g, WORLD, "leadertopk:density=0.02", N);
    for (uint64_t step = 0; step < STEPS; step++) {
        group_fill(&g, step);
        for (size_t w = 0; w < WORLD; w++)
            for (size_t i = 0; i < N; i++) {
                const double came = (double)((float *)g.grad[w][0])[i];
                before[w][i] = came + (double)tensor_residual(g.gc[w], 0)[i];
                sum[w][i] += came;
                size[i] += fabs(came);
            }
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        for (size_t i = 0; i < N; i++) {
            double mean = 0;
            int sent = 0;
            for (size_t w = 0; w < WORLD; w++) sent += before[w][i] != 0 && tensor_residual(g.gc[w], 0)[i] == 0;
            for (size_t w = 0; w < WORLD; w++) {
                if (sent) mean += before[w][i] / WORLD;
                if (sent) sum[w][i] -= before[w][i];
            }
            CHECK(sent == 0 || sent == WORLD); /* the same places on all */
            places += sent != 0;
            wrong += !(fabs((double)((float *)g.grad[0][0])[i] - mean) <= 1e-6 * (fabs(mean) + 1));
        }
    }
    for (size_t w = 0; w < WORLD; w++)
        for (size_t i = 0; i < N; i++) wrong += !(fabs(sum[w][i] - (double)tensor_residual(g.gc[w], 0)[i]) <= 1e-6 * size[i]);
    CHECK(wrong == 0 && places == STEPS * N / 50);
    group_close(&g);
}

/* ---------------- faults */

static void test_a_step_that_fails_changes_nothing(void)
{
    for (int call = 0; call < 3; call++)
        for (int rank = -1; rank < 3; rank++) {
            uint64_t before[MOST];
            group g;
            open_one(&g, 3, "leadertopk:density=0.05", SOME);
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                group_step(&g);
            }
            group_fill(&g, 2);
            digest_all(&g, before);
            g.fail_call = call;
            g.fail_rank = rank;
            group_step(&g);
            for (size_t w = 0; w < 3; w++) { /* who has not heard of a failure in the last call commits */
                const int fails = call < 2 || rank < 0 || (size_t)rank == w;
                CHECK((g.result[w] != GCOMP_OK) == fails && (digest(&g, w) == before[w]) == fails);
            }
            group_close(&g);
        }
}

static void test_what_is_not_finite_is_refused_wherever_it_is(void)
{
    for (size_t worker = 0; worker < 2; worker++)
        for (size_t at = 0; at < SOME; at += 499) {
            uint64_t before[MOST];
            float good;
            group g;
            open_one(&g, 2, "leadertopk:density=0.05", SOME);
            group_fill(&g, 0);
            good = ((float *)g.grad[worker][0])[at];
            ((float *)g.grad[worker][0])[at] = at & 1 ? NAN : -INFINITY;
            digest_all(&g, before);
            group_step(&g);
            CHECK(all_are(&g, GCOMP_NOT_FINITE) && digests_are(&g, before));
            ((float *)g.grad[worker][0])[at] = good;
            check_step(&g, 0, 0.05);
            group_close(&g);
        }
}

/* How a list is spoiled. Those from COUNT on have the right CRC. */
enum { NOTHING, A_NAN, AN_INFINITY, A_ZERO, A_BIT, COUNT, TOO_MANY, LENGTH, TOO_LONG, CODER, BITMAP, INDEX, SPOILS };

static void spoil(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    words x;
    (void)from;
    x.at = (float *)(void *)bytes;
    x.count = length / 4;
    if (call != FLOATS || (g->at < g->world && rank != g->at)) return;
    switch (g->arg) {
    case A_NAN: x.at[x.count - 1] = NAN; break;
    case AN_INFINITY: x.at[0] = INFINITY; break;
    case A_ZERO: x.at[1] = 0; break;
    case A_BIT: put_bits(&x, 150, 1, !bits_at(&x, 150, 1)); return;
    case COUNT: put_bits(&x, 32, 32, bits_at(&x, 32, 32) - 1); break;
    case TOO_MANY: put_bits(&x, 32, 32, 0xffffffffu); break;
    case LENGTH: put_bits(&x, 64, 32, bits_at(&x, 64, 32) - 1); break;
    case TOO_LONG: put_bits(&x, 64, 32, 0xfffffff0u); return;
    case CODER: put_bits(&x, 96, 8, 100); break;
    case BITMAP: put_bits(&x, 96, 8, 255); break;
    case INDEX: /* as words: the second one is not above the first */
        put_bits(&x, 96, 8, 253);
        put_bits(&x, 32, 32, 2);
        put_bits(&x, 64, 32, 8);
        put_bits(&x, 104, 64, (uint64_t)9 << 32 | 9);
        break;
    default: break;
    }
    if (g->arg >= COUNT) put_bits(&x, 0, 32, crc_of(&x));
}

/* Who alone sees a bad list tells all by the sum that follows: no worker commits, and the step can be taken again. */
static void test_bad_lists_are_refused_by_all(void)
{
    for (size_t how = NOTHING; how < SPOILS; how++)
        for (size_t rank = 0; rank < 4; rank++) { /* 3: all workers */
            uint64_t before[MOST];
            group g;
            open_one(&g, 3, "leadertopk:density=0.05", SOME);
            group_fill(&g, 0);
            group_step(&g);
            group_fill(&g, 1);
            digest_all(&g, before);
            g.at = rank;
            g.arg = how;
            g.change_sum = spoil;
            group_step(&g);
            g.change_sum = NULL;
            for (size_t w = 0; w < 3; w++) {
                const gcomp_result result = g.result[w];
                if (how == NOTHING) CHECK(result == GCOMP_OK);
                else if (rank != w && rank < 3) CHECK(result == GCOMP_NOT_FINITE && strstr(gcomp_error(g.gc[w]), "not finite"));
                else if (how == A_BIT) CHECK(result == GCOMP_CHECKSUM_MISMATCH);
                else if (how == A_NAN || how == AN_INFINITY) CHECK(result == GCOMP_NOT_FINITE);
                else CHECK(result == GCOMP_CORRUPT || (how <= LENGTH && (result == GCOMP_TRAILING_BYTES || result == GCOMP_RESERVED_BITS)));
                CHECK(result == GCOMP_OK || gcomp_result_class(result) == GCOMP_CLASS_RETRY);
            }
            if (how == NOTHING) {
                group_close(&g);
                continue;
            }
            CHECK(digests_are(&g, before));
            check_step(&g, 1, 0.05);
            group_close(&g);
        }
}

/* Whatever the floats of a list are, no worker reads or writes outside of its buffers. */
static void garble(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    words x;
    (void)rank, (void)from;
    x.at = (float *)(void *)bytes;
    x.count = length / 4;
    if (call != FLOATS) return;
    for (size_t i = 0; i < 1 + g->arg % 3; i++) {
        const uint64_t r = mix(g->arg * 8 + i);
        put_bits(&x, 32 + (size_t)(r % (i || g->arg & 1 ? 31 * x.count - 40 : 72)), 1 + (unsigned)(r >> 40 & 7), r >> 50);
    }
    put_bits(&x, 0, 32, crc_of(&x));
}

static void test_any_list_is_read_within_its_bounds(void)
{
    size_t good = 0, bad = 0;
    for (size_t c = 0; c < 4; c++) {
        static const char *const codecs[] = {"leadertopk:density=0.05", "leadertopk:density=0.5", "leadertopk", "leadertopk:density=0.3"};
        group g;
        open_one(&g, 2, codecs[c], c == 3 ? 17 : SOME);
        g.change_sum = garble;
        for (size_t turn = 0; turn < 500; turn++) {
            group_fill(&g, turn);
            g.arg = 4 * turn + c;
            group_step(&g);
            CHECK(g.result[0] == g.result[1]);
            good += g.result[0] == GCOMP_OK;
            bad += g.result[0] != GCOMP_OK;
        }
        group_close(&g);
    }
    CHECK(good > 10 && bad > 500);
}

/* ---------------- workers that come and go, saves */

static void test_leaders_follow_workers_and_saves(void)
{
    group g;
    open_one(&g, 5, "leadertopk:density=0.05", SOME);
    for (uint64_t step = 0; step < 4; step++) {
        group_fill(&g, step);
        check_step(&g, step, 0.05);
    }
    group_shrink(&g, 3);
    for (uint64_t step = 4; step < 9; step++) {
        group_fill(&g, step);
        check_step(&g, step, 0.05);
    }
    for (size_t w = 0; w < 3; w++) { /* a save in a new object: the same leader, the same bits */
        size_t bytes = save_size(g.gc[w]);
        uint8_t *save = (uint8_t *)malloc(bytes);
        gcomp_desc desc = own_desc();
        gcomp_tensor t = {0};
        gcomp *other;
        const void *saves[1];
        saves[0] = save;
        desc.comm.rank = (int)w;
        desc.comm.world = 3;
        t.name = "a";
        t.rows = SOME;
        t.codec = "leadertopk:density=0.05";
        CHECK(gcomp_save(g.gc[w], save, bytes, &bytes) == GCOMP_OK);
        CHECK(gcomp_open(&other, &desc) == GCOMP_OK && gcomp_add_tensor(other, &t) == GCOMP_OK);
        CHECK(gcomp_load(other, saves, &bytes, 1, NULL) == GCOMP_OK);
        gcomp_close(g.gc[w]);
        g.gc[w] = other;
        free(save);
    }
    for (uint64_t step = 9; step < 13; step++) {
        group_fill(&g, step);
        check_step(&g, step, 0.05);
    }
    group_close(&g);
}

/* ---------------- what travels */

static size_t bytes_of(const char *text, int world, size_t n, size_t *sent)
{
    gcomp_round rounds[GCOMP_ROUNDS];
    gcomp_desc desc = own_desc();
    gcomp_tensor t = {0};
    size_t bytes = 0;
    desc.codec = "none";
    desc.comm.world = world;
    t.rows = n;
    t.name = "w";
    t.codec = text;
    CHECK(gcomp_rounds(&desc, &t, 1, NULL, rounds) == GCOMP_OK);
    *sent = 0;
    for (int r = 0; r < GCOMP_ROUNDS; r++) {
        bytes += rounds[r].bytes;
        *sent += rounds[r].sent;
    }
    return bytes;
}

/* A worker brings the same bytes to its sums however many workers there are. A ring receives 2 (W - 1) / W times as many, which
   is 1.31 times as much for 64 workers as for 4, for any sum; topk's gather receives 21 times as much. */
static void test_what_travels_does_not_grow_with_the_workers(void)
{
    static const char *const texts[] = {"leadertopk", "leadertopk:density=0.01", "topk:density=0.001", "topk:density=0.01"};
    for (int c = 0; c < 4; c++) {
        size_t few, many, a, b;
        a = bytes_of(texts[c], 4, 1 << 20, &few);
        b = bytes_of(texts[c], 64, 1 << 20, &many);
        printf("# %-24s 2^20 elements: a worker brings %d bytes with 4 workers, %d with 64; a ring brings it %d and %d\n", texts[c],
               (int)a, (int)b, (int)few, (int)many);
        if (c < 2) CHECK(a == b && (double)many <= 1.313 * (double)few);
        else CHECK((double)many > 10 * (double)few);
    }
}

static void test_small_tensors_and_texts(void)
{
    gcomp_codec codec;
    char why[200];
    for (size_t n = 1; n < 40; n++) {
        gcomp *gc;
        gcomp_desc desc = own_desc();
        gcomp_tensor t = {0};
        desc.comm.world = 2;
        t.name = "w";
        t.rows = n;
        t.codec = "leadertopk:density=0.2";
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &t) == GCOMP_OK);
        CHECK((tensor_codec(gc, 0)->method == 1) == (n < 7)); /* where five floats and k are not fewer */
        gcomp_close(gc);
    }
    CHECK(gcomp_codec_parse(&codec, "leadertopk+int", why, sizeof why) == GCOMP_BAD_CODEC && strstr(why, "leadertopk"));
    CHECK(gcomp_codec_parse(&codec, "topk+leadertopk", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "leadertopk:density=0", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "leadertopk:exact=0", why, sizeof why) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "leadertopk", why, sizeof why) == GCOMP_OK && gcomp_bound(&codec, 100, NULL) == 0);
    for (size_t n = 1; n < 3000000; n += n / 3 + 1) CHECK(scratch_of(&codec, n) <= GCOMP_SCRATCH(n));
}

int main(void)
{
    const char *only = getenv("GCOMP_ISA");
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_steps_equal_the_plain_reference);
        RUN(test_threads_change_no_bit);
        RUN(test_one_worker_is_topk);
        RUN(test_nothing_is_lost_in_a_thousand_steps);
        RUN(test_what_is_not_finite_is_refused_wherever_it_is);
    }
    if (only && *only && strcmp(only, "scalar")) return test_end(); /* the rest is the same on all */
    isa = GCOMP_ISA_AUTO;
    RUN(test_a_step_that_fails_changes_nothing);
    RUN(test_bad_lists_are_refused_by_all);
    RUN(test_any_list_is_read_within_its_bounds);
    RUN(test_leaders_follow_workers_and_saves);
    RUN(test_what_travels_does_not_grow_with_the_workers);
    RUN(test_small_tensors_and_texts);
    free(seen.at);
    return test_end();
}
