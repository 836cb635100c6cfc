/* Proves of block=row in steps: the ranges of two shots cut rows anywhere, and each part of a row has a scale of its own; nothing is
   lost, whatever the residual is; gcomp_describe says the bytes; workers leave and join. */

#include "group.h"

static const char *const codecs[] = {"sign:block=row", "onebit:block=row", "sign:block=row,scale=rms"};
static const char *const alone[] = {"sign:block=tensor", "onebit:block=tensor", "sign:block=tensor,scale=rms"};

/* y <- what is decoded of elements begin .. end - 1 of a matrix: each part of a row is a tensor alone, or of as many short rows as have
   16 elements. */
static void pass_rows(size_t c, const float *x, size_t begin, size_t end, size_t cols, float *y)
{
    size_t row = cols;
    while (row < 16) row += cols;
    for (size_t next; begin < end; x += next - begin, y += next - begin, begin = next) {
        next = begin / row * row + row < end ? begin / row * row + row : end;
        pass(alone[c], x, next - begin, 0, 0, 0, y);
    }
}

static float plain_p[MOST][ROOM], plain_rest[MOST][ROOM], plain_mean[ROOM];

/* Makes plain_mean and all plain_rest from plain_p, for the ranges of tensor t. */
static void plain_two_shot(const group *g, size_t c, size_t t, size_t cols)
{
    static float q[ROOM], d[ROOM];
    const float part = 1.0f / (float)g->world;
    for (size_t o = 0; o < g->world; o++) {
        size_t begin, end;
        CHECK(gcomp_shard(g->gc[0], t, (int)o, &begin, &end) == GCOMP_OK);
        for (size_t i = begin; i < end; i++) q[i] = plain_p[o][i] * part;
        for (size_t w = 0; w < g->world; w++) {
            if (w == o) continue;
            pass_rows(c, plain_p[w] + begin, begin, end, cols, d + begin);
            for (size_t i = begin; i < end; i++) {
                volatile float term = d[i] * part;
                q[i] = q[i] + term;
                plain_rest[w][i] = plain_p[w][i] - d[i];
            }
        }
        pass_rows(c, q + begin, begin, end, cols, plain_mean + begin);
        for (size_t i = begin; i < end; i++) {
            volatile float lost = q[i] - plain_mean[i];
            plain_mean[i] += 0.0f;
            plain_rest[o][i] = lost * (float)g->world;
        }
    }
}

static uint64_t said_by(const gcomp *gc, size_t tensors) /* bytes of all tensors, as gcomp_describe says them */
{
    static char text[4096];
    unsigned long long sum = 0, said = 0;
    const char *at = text;
    (void)gcomp_describe(gc, text, sizeof text);
    for (size_t t = 0; t < tensors; t++) {
        at = strstr(at, "at most ");
        CHECK(at && sscanf(at + 8, "%llu", &said) == 1);
        at += 8;
        sum += said;
    }
    return sum;
}

static uint64_t sent_by(const gcomp *gc)
{
    gcomp_statistics stats;
    CHECK(gcomp_stats(gc, &stats) == GCOMP_OK);
    return stats.bytes_out;
}

static void check_two_shot(size_t c, size_t world, size_t cols, const size_t *n, size_t count)
{
    const char *const same[3] = {codecs[c], codecs[c], codecs[c]};
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    size_t wrong = 0;
    group g;
    group_open_matrices(&g, world, &desc, same, n, count, cols);
    for (uint64_t step = 0; step < 3; step++) {
        static float p[3][MOST][ROOM];
        group_fill(&g, step);
        for (size_t t = 0; t < count; t++)
            for (size_t w = 0; w < world; w++)
                for (size_t i = 0; i < n[t]; i++) p[t][w][i] = ((float *)g.grad[w][t])[i] + tensor_residual(g.gc[w], t)[i];
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == 1);
        for (size_t t = 0; t < count; t++) {
            memcpy(plain_p, p[t], sizeof plain_p);
            plain_two_shot(&g, c, t, cols == 1 || n[t] % cols ? n[t] : cols); /* a vector is a row */
            for (size_t w = 0; w < world; w++) {
                wrong += memcmp(g.grad[w][t], plain_mean, 4 * n[t]) != 0;
                wrong += memcmp(tensor_residual(g.gc[w], t), plain_rest[w], 4 * n[t]) != 0;
            }
        }
    }
    if (wrong) printf("# %s, %d workers, %d columns: %d wrong\n", codecs[c], (int)world, (int)cols, (int)wrong);
    CHECK(wrong == 0);
    group_close(&g);
}

static void test_ranges_cut_rows_anywhere(void)
{
    static const size_t cols[] = {1, 2, 7, 15, 16, 17, 50, 100, 333, 1000, 1500, 2250};
    for (size_t k = 0; k < sizeof cols / sizeof *cols; k++)
        for (size_t c = 0; c < 3; c++) {
            const size_t n = 4500 / cols[k] * cols[k];
            check_two_shot(c, 3, cols[k], &n, 1);
            check_two_shot(c, 8, cols[k], &n, 1);
        }
}

/* Of matrices with rows of one length; and with a vector between them. */
static void test_ranges_of_bundles_cut_rows_anywhere(void)
{
    static const size_t n[3] = {50 * 33, 50 * 9, 50 * 41}, mixed[3] = {50 * 33, 1111, 50 * 41};
    for (size_t c = 0; c < 3; c++) {
        check_two_shot(c, 3, 50, n, 3);
        check_two_shot(c, 5, 50, n, 3);
        check_two_shot(c, 4, 50, mixed, 3);
    }
}

/* Ranges are cut from all tensors of a bundle: worker 0 has nothing of its last tensor, but something of a tensor alone. */
static void test_rows_of_one_length_are_a_bundle(void)
{
    static const size_t n[2][3] = {{50 * 33, 50 * 30, 50 * 41}, {50 * 33, 1111, 50 * 41}};
    const char *const same[3] = {codecs[0], codecs[0], codecs[0]};
    for (int mixed = 0; mixed < 2; mixed++) {
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
        size_t begin, end;
        group g;
        group_open_matrices(&g, 3, &desc, same, n[mixed], 3, 50);
        CHECK(gcomp_shard(g.gc[0], 2, 0, &begin, &end) == GCOMP_OK && (begin < end) == mixed);
        group_close(&g);
    }
}

/* In a gather, and in two shots by the bytes on average, since workers own different ranges. */
static void test_it_says_what_is_sent(void)
{
    static const size_t cols[] = {1, 7, 50, 640, 3000}, worlds[] = {2, 3, 8};
    for (size_t k = 0; k < 5; k++)
        for (size_t w = 0; w < 3; w++)
            for (int two = 0; two < 2; two++) {
                const gcomp_desc desc = desc_of(two ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER);
                const size_t n = 6300 / cols[k] * cols[k], world = worlds[w];
                uint64_t sum = 0;
                group g;
                group_open_matrices(&g, world, &desc, codecs + 1, &n, 1, cols[k]);
                group_fill(&g, 1);
                const uint64_t said = said_by(g.gc[0], 1);
                uint64_t before[MOST];
                for (size_t i = 0; i < world; i++) before[i] = sent_by(g.gc[i]);
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK) && exchanges(&g) == two);
                for (size_t i = 0; i < world; i++) sum += sent_by(g.gc[i]) - before[i];
                const uint64_t extra = sum / world - said; /* the frame, lengths, answers, totals: the same for all codecs */
                static uint64_t overhead[2][3];
                if (k == 0) overhead[two][w] = extra;
                if (llabs((long long)(extra - overhead[two][w])) > 1)
                    printf("# %d columns, %d workers, %s: said %llu, sent %llu\n", (int)cols[k], (int)world, two ? "two shots" : "gather",
                           (unsigned long long)said, (unsigned long long)(sum / world));
                CHECK(llabs((long long)(extra - overhead[two][w])) <= 1); /* halves of bytes */
                group_close(&g);
            }
}

/* Gathers and two shots, and residuals of all kinds: what is applied and what waits is what was given. */
static void test_nothing_is_lost(void)
{
    static const char *const residuals[] = {NULL, "bf16", "int8"};
    static double given[ROOM], applied[ROOM];
    for (int kind = 0; kind < 3; kind++)
        for (int two = 0; two < 2; two++)
            for (size_t c = 0; c < 2; c++) {
                gcomp_desc desc = desc_of(two ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_GATHER);
                static const size_t n = 77 * 50;
                static float rest[ROOM];
                double lost = 0, size = 0;
                group g;
                desc.residual = residuals[kind];
                group_open_matrices(&g, 4, &desc, codecs + c, &n, 1, 77);
                memset(given, 0, sizeof given);
                memset(applied, 0, sizeof applied);
                for (uint64_t step = 0; step < 20; step++) {
                    group_fill(&g, step);
                    for (size_t w = 0; w < 4; w++)
                        for (size_t i = 0; i < n; i++) given[i] += (double)((float *)g.grad[w][0])[i] / 4;
                    if (step == 10) g.fail_call = 1, g.fail_rank = -1; /* a step that fails, and is tried again */
                    group_step(&g);
                    if (step == 10) {
                        CHECK(!all_are(&g, GCOMP_OK));
                        g.fail_call = -1;
                        group_fill(&g, step);
                        group_step(&g);
                    }
                    CHECK(all_are(&g, GCOMP_OK));
                    for (size_t i = 0; i < n; i++) applied[i] += (double)((float *)g.grad[3][0])[i];
                }
                for (size_t w = 0; w < 4; w++) {
                    CHECK(gcomp_residual_get(g.gc[w], 0, rest) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) applied[i] += (double)rest[i] / 4;
                }
                for (size_t i = 0; i < n; i++) lost += fabs(given[i] - applied[i]), size += fabs(given[i]);
                if (lost > (kind ? 0.01 : 1e-5) * size) printf("# %s, residual %d: lost %g of %g\n", codecs[c], kind, lost, size);
                CHECK(lost <= (kind ? 0.01 : 1e-5) * size);
                group_close(&g);
            }
}

/* A save is that of another world too; a worker that leaves hands its residual over; and the ranges of two workers differ from those of
   four. */
static void test_workers_leave_and_join(void)
{
    static const size_t n = 30 * 130;
    static uint8_t save[4][20000];
    static double before[ROOM];
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
    size_t length[4], lost = 0;
    group a, b;
    group_open_matrices(&a, 4, &desc, codecs + 1, &n, 1, 130);
    group_open_matrices(&b, 4, &desc, codecs + 1, &n, 1, 130);
    for (uint64_t step = 0; step < 5; step++) {
        group_fill(&a, step);
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK));
        for (size_t w = 0; w < 4 && step == 2; w++) {
            const void *const saved[1] = {save[w]};
            CHECK(gcomp_save(a.gc[w], save[w], sizeof save[w], &length[w]) == GCOMP_OK);
            CHECK(gcomp_load(b.gc[w], saved, length + w, 1, NULL) == GCOMP_OK);
        }
        if (step < 3) continue;
        group_fill(&b, step);
        group_step(&b);
        for (size_t w = 0; w < 4; w++) CHECK(digest(&a, w) == digest(&b, w));
    }
    CHECK(gcomp_save(a.gc[3], save[3], sizeof save[3], &length[3]) == GCOMP_OK);
    CHECK(gcomp_take_over(a.gc[1], save[3], length[3]) == GCOMP_OK);
    group_shrink(&a, 3);
    group_fill(&a, 9);
    for (size_t i = 0; i < n; i++) {
        before[i] = 0;
        for (size_t w = 0; w < 3; w++)
            before[i] += ((double)((float *)a.grad[w][0])[i] + (double)tensor_residual(a.gc[w], 0)[i]) / 3;
    }
    group_step(&a);
    CHECK(all_are(&a, GCOMP_OK) && exchanges(&a) == 1);
    for (size_t i = 0; i < n; i++) {
        double after = (double)((float *)a.grad[0][0])[i];
        for (size_t w = 0; w < 3; w++) after += (double)tensor_residual(a.gc[w], 0)[i] / 3;
        lost += fabs(before[i] - after) > 2e-6 * (1 + fabs(before[i]));
    }
    CHECK(lost == 0);
    group_close(&a);
    group_close(&b);
}

/* Half a word of the body in a shard is another one: the owner finds it, with a right checksum. */
static size_t change_at;
static uint32_t change_to;
static void change_word(group *g, size_t call, size_t rank, size_t from, uint8_t *bytes, size_t length)
{
    (void)g;
    if (call != SHARDS || rank != 1 || from != 0 || length <= 40) return;
    put_word(bytes + 32 + change_at, change_to, 4);
    (void)add_checksum(bytes, length);
}

static void test_owners_refuse_other_rows(void)
{
    static const uint32_t words[][2] = {{0, 0}, {0, 15}, {0, 0xffffffff}, {0, 16}, {4, 50}, {4, 0xffffffff}, {0, 0x40000001}};
    static const size_t n = 50 * 60;
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_TWO_SHOT);
        group g;
        group_open_matrices(&g, 3, &desc, codecs, &n, 1, 50);
        uint64_t digests[MOST];
        group_fill(&g, 1);
        digest_all(&g, digests);
        change_at = words[k][0];
        change_to = words[k][1];
        g.change = change_word;
        group_step(&g);
        for (size_t w = 0; w < 3; w++) CHECK(g.result[w] != GCOMP_OK);
        CHECK(digests_are(&g, digests));
        g.change = NULL;
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        group_close(&g);
    }
}

int main(void)
{
    RUN(test_ranges_cut_rows_anywhere);
    RUN(test_ranges_of_bundles_cut_rows_anywhere);
    RUN(test_rows_of_one_length_are_a_bundle);
    RUN(test_it_says_what_is_sent);
    RUN(test_nothing_is_lost);
    RUN(test_workers_leave_and_join);
    RUN(test_owners_refuse_other_rows);
    return test_end();
}
