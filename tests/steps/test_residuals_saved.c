/* Proves of small residuals (desc.residual): saves, other workers, faults, memory, and trainings. */

#include "residuals.h"

static const char *const kinds[] = {"fp32", "bf16", "int8"};
static const size_t shapes[][MOST_TENSORS] = {{2580, 300, 129}, {1, 2047, 640}, {16, 127, 1301}, {128, 1025, 260}};

/* ---------------- saves, and workers that come and go */

enum { SAVE_ROOM = 200000 };

static const char *const saved_codecs[MOST_TENSORS] = {"sign", "topk:density=0.05", "powersgd:rank=1"};
static const size_t saved_n[MOST_TENSORS] = {1333, 700, 260};
static uint8_t saves[WORLDS][SAVE_ROOM];
static size_t save_lengths[WORLDS];

static void saved_group(group *g, const char *kind, size_t world, uint64_t steps)
{
    const gcomp_desc desc = desc_of(kind, GCOMP_AGGREGATE_AUTO);
    group_open(g, world, &desc, saved_codecs, saved_n, MOST_TENSORS);
    for (uint64_t step = 0; step < steps; step++) {
        group_fill(g, step);
        group_step(g);
        CHECK(all_are(g, GCOMP_OK));
    }
}

static void save_all(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        CHECK(save_size(g->gc[w]) <= SAVE_ROOM);
        CHECK(gcomp_save(g->gc[w], saves[w], SAVE_ROOM, &save_lengths[w]) == GCOMP_OK);
        CHECK(save_lengths[w] == save_size(g->gc[w]));
    }
}

static void test_a_save_brings_back_every_bit(void)
{
    for (int k = 1; k < 3; k++) {
        group a, b;
        saved_group(&a, kinds[k], 3, 3);
        saved_group(&b, kinds[k], 3, 1);
        save_all(&a);
        for (size_t w = 0; w < 3; w++) {
            const void *const save[] = {saves[w]};
            CHECK(gcomp_load(b.gc[w], save, &save_lengths[w], 1, NULL) == GCOMP_OK);
        }
        for (uint64_t step = 3; step < 5; step++) {
            group_fill(&a, step);
            group_fill(&b, step);
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
            for (size_t w = 0; w < 3; w++) CHECK(digest(&a, w) == digest(&b, w));
        }
        group_close(&a);
        group_close(&b);
    }
}

/* Bytes in front of the residual of the first tensor in a save without a schedule: a header, and the records. */
static size_t first_residual(const uint8_t *save) { return 60 + (size_t)get_word(save + 52, 8); }

/* Beside the floats of the state, saves differ in the bytes of the residuals alone: >>format says how many. */
static void test_saves_have_the_bytes_that_the_format_says(void)
{
    static float e[MOST_ROOM];
    size_t length[3], bytes[3] = {0, 0, 0};
    for (size_t t = 0; t < MOST_TENSORS; t++) {
        bytes[0] += 4 * saved_n[t];
        bytes[1] += 2 * saved_n[t];
        bytes[2] += saved_n[t] + (saved_n[t] + 127) / 128 * 4;
    }
    for (int k = 0; k < 3; k++) {
        size_t wrong = 0;
        group g;
        saved_group(&g, kinds[k], 2, 2);
        save_all(&g);
        const size_t at = first_residual(saves[0]);
        length[k] = save_lengths[0];
        CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[0]; i++) {
            const uint8_t *s = saves[0] + at;
            float x = float_of((uint32_t)get_word(s + 4 * i, 4));
            if (k == 1) x = float_of((uint32_t)get_word(s + 2 * i, 2) << 16);
            if (k == 2) x = float_of((uint32_t)get_word(s + i / 128 * 132, 4)) * (float)(int8_t)s[i / 128 * 132 + 4 + i % 128];
            wrong += bits_of(x) != bits_of(e[i]);
        }
        CHECK(wrong == 0);
        group_close(&g);
    }
    CHECK(length[0] - length[1] == bytes[0] - bytes[1] && length[0] - length[2] == bytes[0] - bytes[2]);
}

static void test_a_save_of_another_kind_is_refused(void)
{
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            const void *const save[] = {saves[0]};
            char sentence[64];
            uint64_t before;
            group a, b;
            saved_group(&a, kinds[from], 1, 2);
            saved_group(&b, kinds[to], 1, 1);
            save_all(&a);
            before = digest(&b, 0);
            snprintf(sentence, sizeof sentence, "its residual is %s there", kinds[from]);
            CHECK(gcomp_load(b.gc[0], save, save_lengths, 1, NULL) == (from == to ? GCOMP_OK : GCOMP_SAVE_MISMATCH));
            if (from != to) {
                CHECK(strstr(gcomp_error(b.gc[0]), sentence) != NULL && digest(&b, 0) == before);
                CHECK(gcomp_join(b.gc[0], saves[0], save_lengths[0]) == GCOMP_SAVE_MISMATCH);
                CHECK(gcomp_take_over(b.gc[0], saves[0], save_lengths[0]) == GCOMP_SAVE_MISMATCH);
                CHECK(digest(&b, 0) == before);
            }
            group_close(&a);
            group_close(&b);
        }
}

/* gcomp_load with a report rounds the residuals of another kind, also where a tensor has more rows than in the save. */
static void test_a_save_of_another_kind_is_rounded_where_it_may_be(void)
{
    static const size_t rows[] = {5, 7, 31, 40};
    static float e[2][MOST_ROOM], now[MOST_ROOM], expected[MOST_ROOM];
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                for (size_t more = 0; more < 3; more++)
                    for (size_t world = 1; world < 3; world++) { /* the own save, or the mean of two */
                        const gcomp_desc were = desc_of(kinds[from], GCOMP_AGGREGATE_AUTO), are = desc_of(kinds[to], GCOMP_AGGREGATE_AUTO);
                        const size_t n[] = {20 * rows[r]}, grown[] = {20 * (rows[r] + 9 * more)};
                        const char *const codec[] = {"topk:density=0.1"};
                        const void *const both[] = {saves[0], saves[1]};
                        char report[200], what[100];
                        group a, b;
                        group_open(&a, 2, &were, codec, n, 1);
                        group_open(&b, world == 1 ? 2 : 1, &are, codec, grown, 1);
                        for (uint64_t step = 0; step < 2; step++) {
                            group_fill(&a, step);
                            group_step(&a);
                            group_fill(&b, step + 5);
                            group_step(&b);
                        }
                        save_all(&a);
                        for (size_t w = 0; w < 2; w++) CHECK(gcomp_residual_get(a.gc[w], 0, e[w]) == GCOMP_OK);
                        CHECK(load_some(b.gc[0], both, save_lengths, 2, report, sizeof report, NULL) == GCOMP_OK);
                        CHECK(gcomp_residual_get(b.gc[0], 0, now) == GCOMP_OK);
                        memset(expected, 0, sizeof expected);
                        for (size_t i = 0; i < *n; i++)
                            expected[i] = world == 1 ? e[0][i] : (float)(((double)e[0][i] + (double)e[1][i]) * 0.5);
                        if (from != to || world > 1) plain_keep(kinds[to], expected, *grown);
                        CHECK(!memcmp(now, expected, 4 * *grown));
                        snprintf(what, sizeof what, "its residual is %s there, %s here: its residual is taken", kinds[from], kinds[to]);
                        CHECK(more ? strstr(report, "rows is taken, all else begins empty") != NULL : from == to ? !*report : strstr(report, what) != NULL);
                        group_close(&a);
                        group_close(&b);
                    }
}

/* A save that somebody made up: its checksum is right, and a value is none. */
static void test_residuals_that_no_worker_keeps_are_refused(void)
{
    static const struct {
        int kind;
        size_t at;
        int bytes;
        uint64_t word;
        gcomp_result result;
    } forged[] = {{1, 2, 2, 0x7f80, GCOMP_CORRUPT},     {1, 2, 2, 0xff81, GCOMP_CORRUPT},     {1, 2, 2, 0xff7f, GCOMP_OK},
                  {2, 0, 4, 0x7f800000, GCOMP_CORRUPT}, {2, 0, 4, 0x7fc00000, GCOMP_CORRUPT}, {2, 132, 4, 0x80000000, GCOMP_CORRUPT},
                  {2, 132, 4, 0x7f7fffff, GCOMP_CORRUPT}, {2, 0, 4, 0x7c010203, GCOMP_OK},    {2, 140, 1, 0x80, GCOMP_CORRUPT},
                  {2, 140, 1, 0x81, GCOMP_OK}};
    for (size_t f = 0; f < sizeof forged / sizeof *forged; f++) {
        const void *const save[] = {saves[0]};
        uint64_t before;
        group g;
        saved_group(&g, kinds[forged[f].kind], 1, 2);
        save_all(&g);
        before = digest(&g, 0);
        put_word(saves[0] + first_residual(saves[0]) + forged[f].at, forged[f].word, forged[f].bytes);
        put_word(saves[0] + save_lengths[0] - 4, plain_crc(0, saves[0], save_lengths[0] - 4), 4);
        const gcomp_result result = gcomp_load(g.gc[0], save, save_lengths, 1, NULL);
        if (result != forged[f].result) printf("# word %x: %s\n", (unsigned)forged[f].word, result_name(result));
        CHECK(result == forged[f].result);
        if (forged[f].result) CHECK(digest(&g, 0) == before && strstr(gcomp_error(g.gc[0]), "tensor 'a': its residual holds"));
        group_close(&g);
    }
}

/* Worker 2 leaves, worker 0 takes over, both regroup, and another one joins: as with floats, then rounded. */
static void test_workers_leave_and_join(void)
{
    static float e[3][MOST_TENSORS][MOST_ROOM], now[MOST_ROOM];
    for (int k = 1; k < 3; k++) {
        gcomp_comm comm;
        gcomp_desc desc = desc_of(kinds[k], GCOMP_AGGREGATE_AUTO);
        gcomp *joins;
        size_t length = 0;
        group g;
        memset(&comm, 0, sizeof comm);
        comm.world = 2;
        saved_group(&g, kinds[k], 3, 3);
        save_all(&g);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MOST_TENSORS; t++) CHECK(gcomp_residual_get(g.gc[w], t, e[w][t]) == GCOMP_OK);
        CHECK(gcomp_take_over(g.gc[0], saves[2], save_lengths[2]) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            for (size_t i = 0; i < saved_n[t]; i++) e[0][t][i] = (float)((double)e[0][t][i] + (double)e[2][t][i]);
            plain_keep(kinds[k], e[0][t], saved_n[t]);
            CHECK(gcomp_residual_get(g.gc[0], t, now) == GCOMP_OK && !memcmp(now, e[0][t], 4 * saved_n[t]));
        }
        for (size_t w = 0; w < 2; w++) {
            comm.rank = (int)w;
            CHECK(gcomp_regroup(g.gc[w], &comm, NULL) == GCOMP_OK);
            for (size_t t = 0; t < MOST_TENSORS; t++) {
                for (size_t i = 0; i < saved_n[t]; i++) e[w][t][i] = (float)((double)e[w][t][i] * (2.0 / 3));
                plain_keep(kinds[k], e[w][t], saved_n[t]);
                CHECK(gcomp_residual_get(g.gc[w], t, now) == GCOMP_OK && !memcmp(now, e[w][t], 4 * saved_n[t]));
            }
        }
        desc.comm.world = 2;
        CHECK(gcomp_open(&joins, &desc) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            const gcomp_tensor tensor = tensor_of(t, saved_n[t], saved_codecs[t]);
            CHECK(gcomp_add_tensor(joins, &tensor) == GCOMP_OK);
        }
        CHECK(gcomp_save(g.gc[1], saves[1], SAVE_ROOM, &length) == GCOMP_OK);
        CHECK(gcomp_join(joins, saves[1], length) == GCOMP_OK && gcomp_step_number(joins) == 3);
        CHECK(gcomp_residual_get(joins, 1, now) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[1]; i++) CHECK(now[i] == 0);
        gcomp_close(joins);
        group_close(&g);
    }
}

/* Two workers load the saves of three: the mean of the residuals, in double, rounded once to a float and once more. */
static void test_another_number_of_workers_takes_the_mean_of_residuals(void)
{
    static float e[3][MOST_ROOM], now[MOST_ROOM];
    const void *const all[] = {saves[0], saves[1], saves[2]};
    for (int k = 1; k < 3; k++) {
        group a, b;
        saved_group(&a, kinds[k], 3, 3);
        save_all(&a);
        saved_group(&b, kinds[k], 2, 1);
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_load(b.gc[w], all, save_lengths, 3, NULL) == GCOMP_OK);
        for (size_t t = 0; t < MOST_TENSORS; t++) {
            for (size_t w = 0; w < 3; w++) CHECK(gcomp_residual_get(a.gc[w], t, e[w]) == GCOMP_OK);
            for (size_t i = 0; i < saved_n[t]; i++) {
                volatile double sum = (double)e[0][i] + (double)e[1][i];
                sum += (double)e[2][i];
                sum *= 1.0 / 3;
                e[0][i] = (float)sum;
            }
            plain_keep(kinds[k], e[0], saved_n[t]);
            for (size_t w = 0; w < 2; w++)
                CHECK(gcomp_residual_get(b.gc[w], t, now) == GCOMP_OK && !memcmp(now, e[0], 4 * saved_n[t]));
        }
        CHECK(gcomp_restart(b.gc[0], 7) == GCOMP_OK && gcomp_residual_get(b.gc[0], 0, now) == GCOMP_OK);
        for (size_t i = 0; i < saved_n[0]; i++) CHECK(now[i] == 0);
        group_close(&a);
        group_close(&b);
    }
}

/* ---------------- failures */

/* Each request fails once, on one worker and on all. */
static void failing_requests(const gcomp_desc *desc, const char *const *codecs, const size_t *n, size_t calls)
{
    for (size_t call = 0; call < calls; call++)
        for (size_t rank = 1; rank <= WORLDS; rank += WORLDS - 1) {
            uint64_t before[3];
            group g;
            group_open(&g, 3, desc, codecs, n, MOST_TENSORS);
            for (uint64_t step = 0; step < 2; step++) group_fill(&g, step), group_step(&g);
            CHECK(all_are(&g, GCOMP_OK) && g.calls == calls);
            group_fill(&g, 2);
            for (size_t w = 0; w < 3; w++) before[w] = digest(&g, w);
            g.fail_call = call;
            g.fail_rank = rank;
            group_step(&g);
            for (size_t w = 0; w < 3; w++) {
                const int last = call + 1 == calls && rank < WORLDS && w != rank; /* who has all may commit */
                CHECK(g.result[w] != GCOMP_OK || last);
                if (g.result[w] != GCOMP_OK) CHECK(digest(&g, w) == before[w]);
            }
            g.fail_call = SIZE_MAX;
            if (rank == WORLDS) {
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
                CHECK(digest(&g, 0) != before[0]);
            }
            group_close(&g);
        }
}

static void test_a_request_that_fails_leaves_small_residuals_as_they_were(void)
{
    static const char *const codecs[][MOST_TENSORS] = {{"sign", "topk:density=0.1", "powersgd:rank=1"},
                                                       {"int:bits=4", "eden:bits=2,feedback=1", "onebit"}};
    static const size_t n[MOST_TENSORS] = {900, 1100, 820};
    for (size_t c = 0; c < 2; c++)
        for (int k = 1; k < 3; k++) {
            gcomp_desc desc = desc_of(kinds[k], c ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_AUTO);
            group g;
            group_open(&g, 3, &desc, codecs[c], n, MOST_TENSORS);
            group_fill(&g, 0);
            group_step(&g);
            CHECK(all_are(&g, GCOMP_OK));
            group_close(&g);
            failing_requests(&desc, codecs[c], n, g.calls);
        }
}

/* NaN on one worker: all skip the step. */
static void test_a_skipped_step_changes_nothing(void)
{
    for (int k = 1; k < 3; k++) {
        uint64_t before[3];
        group g;
        saved_group(&g, kinds[k], 3, 2);
        group_fill(&g, 2);
        g.grad[1][0][700] = NAN;
        for (size_t w = 0; w < 3; w++) before[w] = digest(&g, w);
        group_step(&g);
        CHECK(all_are(&g, GCOMP_NOT_FINITE));
        for (size_t w = 0; w < 3; w++) CHECK(digest(&g, w) == before[w]);
        CHECK(gcomp_commit(g.gc[1], 0, g.grad[1][0], NULL, 0, NULL, NULL, 0) == GCOMP_NOT_FINITE && digest(&g, 1) == before[1]);
        group_close(&g);
    }
}

/* ---------------- memory */

static void test_memory_is_what_was_said(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++)
        for (int k = 0; k < 3; k++)
            for (int way = 0; way < 2; way++) {
                gcomp_desc desc = desc_of(kinds[k], way ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_AUTO);
                gcomp_tensor tensors[2];
                test_heap heap = {SIZE_MAX, 0, 0, 0};
                gcomp *gc;
                size_t needed;
                desc.comm.world = 3;
                desc.allocator = heap_of(&heap);
                for (size_t t = 0; t < 2; t++) tensors[t] = tensor_of(t, shapes[c % 4][t], codec_list[c].text);
                needed = gcomp_memory_needed(&desc, tensors, 2);
                CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
                for (size_t t = 0; t < 2; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
                CHECK(gcomp_prepare(gc) == GCOMP_OK && memory_of(gc) == needed && heap.held == needed);
                gcomp_close(gc);
                CHECK(heap.held == 0 && heap.blocks == 0);
            }
}

/* What one large tensor takes beside the buffers of its steps: 4, 2, or 1.03 bytes an element. */
static void test_a_residual_takes_the_bytes_that_the_manual_says(void)
{
    static const double each[] = {4, 2, 1.03125};
    gcomp_tensor tensor = tensor_of(0, 1 << 20, "sign");
    gcomp_desc desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO);
    desc.no_error_feedback = 1;
    const double without = (double)gcomp_memory_needed(&desc, &tensor, 1);
    desc.no_error_feedback = 0;
    for (int k = 0; k < 3; k++) {
        desc.residual = kinds[k];
        CHECK((double)gcomp_memory_needed(&desc, &tensor, 1) - without == each[k] * (1 << 20));
    }
}

/* Every allocation fails once: opening, adding, preparing, and calls on one tensor without gcomp_prepare. */
static void test_every_allocation_may_fail(void)
{
    static const char *const texts[] = {"sign", "topk:density=0.1"};
    static float grad[900], e[900];
    static uint8_t payload[GCOMP_BOUND(900)];
    for (size_t c = 0; c < 2; c++)
        for (size_t left = 0, done = 0; !done; left++) {
            gcomp_desc desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
            const gcomp_tensor tensor = tensor_of(0, 900, texts[c]);
            test_heap heap = {left, 0, 0, 0};
            gcomp *gc = NULL;
            size_t length = 0;
            gcomp_result result;
            desc.allocator = heap_of(&heap);
            for (size_t i = 0; i < 900; i++) grad[i] = gradient_at(0, 0, 0, i);
            result = gcomp_open(&gc, &desc);
            if (result == GCOMP_OK) result = gcomp_add_tensor(gc, &tensor);
            if (result == GCOMP_OK) result = gcomp_compress(gc, 0, 0, grad, payload, sizeof payload, &length);
            if (result == GCOMP_OK) result = gcomp_commit(gc, 0, grad, payload, length, NULL, NULL, 0);
            if (result == GCOMP_OK) {
                CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK);
                result = gcomp_give_back(gc, 0, payload, length);
                if (result != GCOMP_OK) {
                    float after[900];
                    CHECK(gcomp_residual_get(gc, 0, after) == GCOMP_OK && !memcmp(e, after, sizeof e));
                }
            }
            if (result == GCOMP_OK) result = gcomp_prepare(gc);
            CHECK(result == GCOMP_OK || result == GCOMP_OUT_OF_MEMORY);
            done = result == GCOMP_OK;
            gcomp_close(gc);
            CHECK(heap.held == 0 && heap.blocks == 0);
        }
    /* a commit without a compress before it reserves what it needs, or says that it cannot */
    test_heap heap = {5, 0, 0, 0};
    gcomp_desc desc = desc_of("bf16", GCOMP_AGGREGATE_AUTO);
    const gcomp_tensor tensor = tensor_of(0, 900, "topk:density=0.1");
    gcomp *gc = NULL;
    desc.allocator = heap_of(&heap);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    heap.left = 2;
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK && heap.left == 0);
    CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OUT_OF_MEMORY);
    CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK && e[5] == 0);
    heap.left = SIZE_MAX;
    CHECK(gcomp_commit(gc, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
    CHECK(gcomp_residual_get(gc, 0, e) == GCOMP_OK && e[5] == plain_bf16(grad[5]));
    gcomp_close(gc);
}

/* ---------------- training */

enum { INPUTS = 64, CLASSES = 32, BATCH = 8, TRAINED_STEPS = 80 };

static float taught[INPUTS * CLASSES]; /* the teacher's weights */

/* Softmax regression: adds the gradient of a sample that a teacher has labelled, unless grad is NULL. Returns the loss. */
static double sample(uint64_t seed, uint64_t number, const float *weight, float *grad)
{
    float x[INPUTS], y[CLASSES];
    double best = -1e9, top = -1e9, sum = 0;
    size_t label = 0;
    for (size_t i = 0; i < INPUTS; i++) x[i] = normal(mix(seed * 7919 + number) % 1000003 * INPUTS + i);
    for (size_t c = 0; c < CLASSES; c++) {
        double teacher = 0, own = 0;
        for (size_t i = 0; i < INPUTS; i++) {
            teacher += (double)(x[i] * taught[c * INPUTS + i]);
            own += (double)(x[i] * weight[c * INPUTS + i]);
        }
        if (teacher > best) best = teacher, label = c;
        if (own > top) top = own;
        y[c] = (float)own;
    }
    for (size_t c = 0; c < CLASSES; c++) sum += exp((double)y[c] - top);
    for (size_t c = 0; c < CLASSES && grad; c++) {
        const float error = (float)(exp((double)y[c] - top) / sum) - (c == label ? 1.0f : 0.0f);
        for (size_t i = 0; i < INPUTS; i++) grad[c * INPUTS + i] += error * x[i] / BATCH;
    }
    return top + log(sum) - (double)y[label];
}

/* The loss after a training of four workers, on samples that none of them has seen. */
static double train(const char *codec, const char *kind, uint64_t seed)
{
    static const size_t n[1] = {INPUTS * CLASSES};
    static float weight[INPUTS * CLASSES];
    const gcomp_desc desc = desc_of(kind, GCOMP_AGGREGATE_AUTO);
    double loss = 0;
    group g;
    group_open(&g, 4, &desc, &codec, n, 1);
    memset(weight, 0, sizeof weight);
    for (size_t i = 0; i < n[0]; i++) taught[i] = normal(seed << 40 | i);
    for (uint64_t step = 0; step < TRAINED_STEPS; step++) {
        for (size_t w = 0; w < 4; w++) {
            memset(g.grad[w][0], 0, sizeof weight);
            for (size_t b = 0; b < BATCH; b++) (void)sample(seed, (step * 4 + w) * BATCH + b, weight, g.grad[w][0]);
        }
        group_step(&g);
        for (size_t i = 0; i < n[0]; i++) weight[i] -= 0.5f * g.grad[0][0][i];
    }
    for (uint64_t i = 0; i < 200; i++) loss += sample(seed, 1000000 + i, weight, NULL) / 200;
    group_close(&g);
    return loss;
}

/* make residuals does the same on Fashion-MNIST. */
static void test_small_residuals_train_as_well_as_floats(void)
{
    static const char *const texts[] = {"int:bits=4", "sign"};
    for (size_t c = 0; c < 2; c++) {
        double loss[3] = {0, 0, 0};
        for (int k = 0; k < 3; k++)
            for (uint64_t seed = 1; seed <= 12; seed++) loss[k] += train(texts[c], kinds[k], seed) / 12;
        printf("# %s: loss %.4f, with bf16 %+.3f %%, with int8 %+.3f %%; %.4f before\n", texts[c], loss[0],
               100 * (loss[1] / loss[0] - 1), 100 * (loss[2] / loss[0] - 1), log(CLASSES));
        CHECK(loss[0] < 0.9 * log(CLASSES));
        for (int k = 1; k < 3; k++) CHECK(loss[k] < 1.003 * loss[0]);
    }
}

/* ---------------- arguments */

static void test_what_is_asked_for_is_checked(void)
{
    static const char *const codec[1] = {"sign"};
    static const size_t n[1] = {300};
    static float e[300];
    char why[256] = "";
    gcomp_desc desc = desc_of("int4", GCOMP_AGGREGATE_AUTO);
    gcomp *gc = NULL;
    group g;
    desc.why = why;
    desc.why_capacity = sizeof why;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && !gc && strstr(why, "residual is 'int4': it takes fp32, bf16 or int8"));
    if (!strstr(why, "int4")) printf("# %s\n", why);
    CHECK(gcomp_memory_needed(&desc, NULL, 0) == 0);
    desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
    group_open(&g, 2, &desc, codec, n, 1);
    CHECK(gcomp_residual_get(NULL, 0, e) == GCOMP_INVALID_ARGUMENT && gcomp_residual_get(g.gc[0], 1, e) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_residual_get(g.gc[0], 0, NULL) == GCOMP_INVALID_ARGUMENT && tensor_residual(g.gc[0], 0) == NULL);
    group_close(&g);
    gcomp_desc other = desc;
    other.residual = "bf16";
    expect_mismatch(&desc, &other, "residual");
    desc = desc_of("int8", GCOMP_AGGREGATE_AUTO);
    desc.no_error_feedback = 1;
    group_open(&g, 1, &desc, codec, n, 1);
    CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_WRONG_STATE);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(all_are(&g, GCOMP_OK));
    group_close(&g);
    desc = desc_of(NULL, GCOMP_AGGREGATE_AUTO); /* floats */
    group_open(&g, 1, &desc, codec, n, 1);
    group_fill(&g, 0);
    group_step(&g);
    CHECK(gcomp_residual_get(g.gc[0], 0, e) == GCOMP_OK && !memcmp(e, tensor_residual(g.gc[0], 0), sizeof e));
    group_close(&g);
}

int main(void)
{
    RUN(test_a_save_brings_back_every_bit);
    RUN(test_saves_have_the_bytes_that_the_format_says);
    RUN(test_a_save_of_another_kind_is_refused);
    RUN(test_a_save_of_another_kind_is_rounded_where_it_may_be);
    RUN(test_residuals_that_no_worker_keeps_are_refused);
    RUN(test_workers_leave_and_join);
    RUN(test_another_number_of_workers_takes_the_mean_of_residuals);
    RUN(test_a_request_that_fails_leaves_small_residuals_as_they_were);
    RUN(test_a_skipped_step_changes_nothing);
    RUN(test_memory_is_what_was_said);
    RUN(test_a_residual_takes_the_bytes_that_the_manual_says);
    RUN(test_every_allocation_may_fail);
    RUN(test_small_residuals_train_as_well_as_floats);
    RUN(test_what_is_asked_for_is_checked);
    return test_end();
}
