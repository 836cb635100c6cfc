/* Proves of saves: after a save and a load steps have the bits that they have without the break; damaged, forged and foreign saves are refused by name. */

#include "checkpoint.h"

static team a, b;

/* ---------------- a break */

static void test_resuming_gives_the_bits_of_a_run_without_a_break(void)
{
    for (int all = 0; all < 2; all++) {
        team_open(&a, 3);
        for (uint64_t step = 0; step < 4; step++) team_step(&a, step);
        team_save(&a);
        team_open(&b, 3);
        for (size_t w = 0; w < 3; w++) {
            const void *own = a.save[w];
            if (all) CHECK(load_all(b.gc[w], &a) == GCOMP_OK);
            else CHECK(gcomp_load(b.gc[w], &own, &a.length[w], 1, NULL) == GCOMP_OK);
            CHECK(gcomp_step_number(b.gc[w]) == 4 && same_state(a.gc[w], b.gc[w]));
        }
        for (uint64_t step = 4; step < 7; step++) {
            team_step(&a, step);
            team_step(&b, step);
            CHECK(memcmp(a.grad, b.grad, sizeof a.grad) == 0);
        }
        for (size_t w = 0; w < 3; w++) CHECK(same_state(a.gc[w], b.gc[w]));
        team_close(&a);
        team_close(&b);
    }
}

/* Checks the record of a tensor, as the manual lists it; returns its bytes. */
static size_t check_record(const gcomp *gc, size_t t, const uint8_t *r, uint64_t state)
{
    char text[256];
    const size_t name = strlen(tensors[t].name) + 1, codecs = gcomp_codec_format(tensor_codec(gc, t), text, sizeof text) + 1;
    CHECK(get_word(r, 8) == name && get_word(r + 8, 8) == codecs && get_word(r + 16, 8) == tensors[t].rows);
    CHECK(get_word(r + 24, 8) == (tensors[t].cols ? tensors[t].cols : 1) && get_word(r + 32, 8) == (tensors[t].stack ? tensors[t].stack : 1));
    CHECK(get_word(r + 40, 8) == state && get_word(r + 48, 8) == 2); /* two steps */
    CHECK(get_word(r + 56, 4) == (tensor_residual(gc, t) != NULL) && get_word(r + 60, 4) == 0);
    CHECK(!memcmp(r + RECORD, tensors[t].name, name) && !memcmp(r + RECORD + name, text, codecs));
    return RECORD + name + codecs;
}

static void test_a_save_is_what_the_manual_says(void)
{
    team_open(&a, 2);
    for (uint64_t step = 0; step < 2; step++) team_step(&a, step);
    team_save(&a);
    for (size_t w = 0; w < 2; w++) {
        const uint8_t *s = a.save[w];
        static const uint8_t no_schedule[56];
        size_t at = floats_at(s), floats = 0, record = RECORDS;
        CHECK(!memcmp(s, "GCMS", 4) && get_word(s + 4, 4) == 3 && get_word(s + 48, 4) == plain_crc(0, no_schedule, 56));
        CHECK(get_word(s + 8, 8) == a.length[w]);
        CHECK(get_word(s + 16, 8) == 2 && get_word(s + 24, 8) == 77 && get_word(s + 32, 4) == w && get_word(s + 36, 4) == 2);
        CHECK(get_word(s + 40, 4) != 0 && get_word(s + 44, 4) == TENSORS); /* the means of step 1 were checked */
        for (size_t t = 0; t < TENSORS; t++) {
            const float *residual = tensor_residual(a.gc[w], t);
            size_t n = tensor_elements(a.gc[w], t), state = t == MATRIX ? 2 * 40 : t == STACK ? 3 * 10 : t == DGC ? n : 0;
            int zero = 1;
            record += check_record(a.gc[w], t, s + record, state);
            CHECK(!residual == (t == QSGD || t == INTSUM || t == BIAS));
            for (size_t i = 0; residual && i < n; i++, at += 4) {
                uint32_t bits;
                memcpy(&bits, residual + i, 4);
                CHECK(get_word(s + at, 4) == bits);
            }
            for (size_t i = 0; i < state; i++, at += 4) zero = zero && !get_word(s + at, 4);
            CHECK(!state || !zero);
            floats += state;
        }
        CHECK(record == floats_at(s) && floats == 80 + 30 + 2000 && at + 4 == a.length[w] && get_word(s + at, 4) == plain_crc(0, s, at));
    }
    CHECK(!memcmp(a.save[0] + 16, a.save[1] + 16, 16));
    team_close(&a);
}

static void test_wrong_calls_are_refused_and_change_nothing(void)
{
    uint8_t buffer[8];
    size_t length = 3;
    const void *own;
    team_open(&a, 1);
    team_step(&a, 0);
    team_save(&a);
    own = a.save[0];
    CHECK(save_size(NULL) == 0 && gcomp_save(NULL, buffer, 8, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_save(a.gc[0], NULL, 0, &length) == GCOMP_OK && length == a.length[0]);
    length = 3;
    CHECK(gcomp_save(a.gc[0], a.save[0], a.length[0], NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_save(a.gc[0], buffer, 8, &length) == GCOMP_DST_TOO_SMALL && length == 3);
    CHECK(gcomp_save(a.gc[0], a.save[0], a.length[0] - 1, &length) == GCOMP_DST_TOO_SMALL && length == 3);
    CHECK(gcomp_load(NULL, &own, a.length, 1, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], NULL, a.length, 1, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], &own, NULL, 1, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], &own, a.length, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_take_over(NULL, own, a.length[0]) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_join(NULL, own, a.length[0]) == GCOMP_INVALID_ARGUMENT);
    own = NULL;
    CHECK(gcomp_load(a.gc[0], &own, a.length, 1, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_take_over(a.gc[0], NULL, 100) == GCOMP_INVALID_ARGUMENT && gcomp_join(a.gc[0], NULL, 100) == GCOMP_INVALID_ARGUMENT);
    own = a.save[0];
    CHECK(gcomp_step_begin(a.gc[0], NULL) == GCOMP_OK);
    CHECK(gcomp_load(a.gc[0], &own, a.length, 1, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_take_over(a.gc[0], own, a.length[0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_join(a.gc[0], own, a.length[0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(a.gc[0]) == GCOMP_OK);
    team_open(&b, 1);
    CHECK(gcomp_load(b.gc[0], &own, a.length, 1, NULL) == GCOMP_OK && same_state(a.gc[0], b.gc[0]));
    team_close(&a);
    team_close(&b);
}

/* ---------------- hostile saves */

/* One small object, its save, and what all loaders say of bytes. */
static gcomp *victim;

static uint8_t good[512], copy[512], before[512];
static size_t good_length;

static gcomp *open_small(uint64_t seed, const char *name, size_t rows, const char *codec, int no_feedback)
{
    gcomp_desc desc;
    gcomp_tensor tensor = {name, rows, 5, 0, GCOMP_F32, codec};
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.seed = seed;
    desc.comm.rank = 1;
    desc.comm.world = 2;
    desc.no_error_feedback = no_feedback;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    return gc;
}

static void open_victim(void)
{
    float grad[30];
    gcomp *other = open_small(5, "w", 6, "topk:density=0.1", 0);
    victim = open_small(5, "w", 6, "topk:density=0.1", 0);
    for (size_t i = 0; i < 30; i++) grad[i] = number(i);
    CHECK(gcomp_commit(other, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK); /* a residual */
    CHECK(gcomp_save(other, good, sizeof good, &good_length) == GCOMP_OK && good_length == floats_at(good) + 120 + 4);
    for (size_t i = 0; i < 30; i++) grad[i] = number(i + 100);
    CHECK(gcomp_commit(victim, 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
    gcomp_close(other);
}

static gcomp_result try_save(const void *bytes, size_t length)
{
    void *exact = malloc(length ? length : 1); /* the sanitizers see one byte too far */
    const void *save = exact;
    size_t n;
    gcomp_result result;
    if (length) memcpy(exact, bytes, length);
    CHECK(gcomp_save(victim, before, sizeof before, &n) == GCOMP_OK);
    result = gcomp_load(victim, &save, &length, 1, NULL);
    if (result != GCOMP_OK) {
        uint8_t after[512];
        CHECK(gcomp_error(victim)[0] != 0);
        if (result != GCOMP_SAVE_MISMATCH) CHECK(load_some(victim, &save, &length, 1, NULL, 0, NULL) == result);
        CHECK(gcomp_join(victim, save, length) != GCOMP_OK && gcomp_take_over(victim, save, length) != GCOMP_OK);
        CHECK(gcomp_save(victim, after, sizeof after, &n) == GCOMP_OK && !memcmp(before, after, n));
    }
    free(exact);
    return result;
}

/* The good save with a word changed, and the checksum that belongs to it. */
static gcomp_result try_word(size_t at, uint64_t word, int bytes)
{
    memcpy(copy, good, good_length);
    put_word(copy + at, word, bytes);
    put_word(copy + good_length - 4, plain_crc(0, copy, good_length - 4), 4);
    return try_save(copy, good_length);
}

static gcomp_result try_length(size_t length)
{
    memset(copy, 0, sizeof copy);
    memcpy(copy, good, good_length);
    put_word(copy + 8, length, 8);
    put_word(copy + length - 4, plain_crc(0, copy, length - 4), 4);
    return try_save(copy, length);
}

static void test_damaged_saves_are_refused_by_kind_and_change_nothing(void)
{
    open_victim();
    for (size_t length = 0; length < good_length; length++) CHECK(try_save(good, length) == GCOMP_TRUNCATED);
    memcpy(copy, good, good_length);
    CHECK(try_save(copy, good_length + 1) == GCOMP_TRAILING_BYTES);
    for (size_t i = 0; i < 8 * good_length; i++) {
        gcomp_result result;
        memcpy(copy, good, good_length);
        copy[i / 8] = (uint8_t)(copy[i / 8] ^ 1u << i % 8);
        result = try_save(copy, good_length);
        if (i / 8 < 4) CHECK(result == GCOMP_NOT_A_SAVE);
        else if (i / 8 < 8) CHECK(result == GCOMP_UNSUPPORTED_VERSION);
        else if (i / 8 < 16) CHECK(result == GCOMP_TRUNCATED || result == GCOMP_TRAILING_BYTES);
        else CHECK(result == GCOMP_CHECKSUM_MISMATCH);
    }
    for (size_t length = 1; length < 4; length++) CHECK(try_save("GC!!", length) == (length < 3 ? GCOMP_TRUNCATED : GCOMP_NOT_A_SAVE));
    gcomp_close(victim);
}

static void test_forged_saves_with_a_right_checksum_are_refused(void)
{
    static const uint64_t odd[] = {0, 1, 2, 3, 4, 5, 6, 7, 30, 0x7fffffff, 0x80000000u, 0xffffffffu, (uint64_t)1 << 32, (uint64_t)1 << 61,
                                   (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX - 63, UINT64_MAX - 1, UINT64_MAX};
    open_victim();
    CHECK(try_word(24, 6, 8) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(victim), "seed"));
    for (uint64_t count = 0; count < 70; count += count == 0 ? 2 : 1) CHECK(try_word(44, count, 4) == GCOMP_CORRUPT);
    CHECK(try_word(44, 0xffffffffu, 4) == GCOMP_CORRUPT);
    CHECK(try_word(48, 1, 4) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(victim), "schedule"));
    for (size_t i = 0; i < 60; i++) /* the bytes of the records */
        for (uint64_t less = 0; less < 2; less++)
            if (i) CHECK(try_word(52, less ? get_word(good + 52, 8) - i : get_word(good + 52, 8) + i, 8) == GCOMP_CORRUPT);
    CHECK(try_word(52, UINT64_MAX, 8) == GCOMP_CORRUPT && try_word(52, (uint64_t)1 << 63, 8) == GCOMP_CORRUPT);
    for (size_t word = 0; word < 8; word++) /* what a record says, one number after the other */
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
            const size_t at = RECORDS + 8 * word;
            const gcomp_result result = try_word(at, odd[i], 8);
            /* the number of steps of a tensor may be any */
            if (word == 6) CHECK(result == GCOMP_OK);
            else CHECK(result == GCOMP_CORRUPT || (word > 1 && result == GCOMP_SAVE_MISMATCH) || odd[i] == get_word(good + at, 8));
        }
    CHECK(try_word(RECORDS + 60, 1, 4) == GCOMP_CORRUPT && strstr(gcomp_error(victim), "end of the list"));
    CHECK(try_word(RECORDS + RECORD + 1, 'x', 1) == GCOMP_CORRUPT); /* a name without its end */
    CHECK(try_word(32, 2, 4) == GCOMP_CORRUPT && try_word(36, 0, 4) == GCOMP_CORRUPT && try_word(32, 0xffffffffu, 4) == GCOMP_CORRUPT);
    CHECK(try_word(floats_at(good), 0x7f800000u, 4) == GCOMP_CORRUPT && try_word(good_length - 8, 0xffc00000u, 4) == GCOMP_CORRUPT);
    for (size_t length = RECORDS + 4; length < 400; length++) CHECK(try_length(length) == (length == good_length ? GCOMP_OK : GCOMP_CORRUPT));
    for (uint64_t k = 0; k < 3000; k++) { /* anything behind a right frame */
        for (size_t i = 16; i < good_length; i++) {
            float x = number(k * 512 + i);
            copy[i] = (uint8_t)(k % 2 && i > 40 ? good[i] : (int)(x * 1e6f));
        }
        memcpy(copy, good, 16);
        put_word(copy + good_length - 4, plain_crc(0, copy, good_length - 4), 4);
        CHECK(try_save(copy, good_length) != GCOMP_OK);
    }
    CHECK(try_save(good, good_length) == GCOMP_OK);
    gcomp_close(victim);
}

static void test_a_save_of_another_object_is_refused_by_name(void)
{
    gcomp *others[5];
    open_victim();
    others[0] = open_small(5, "v", 6, "topk:density=0.1", 0);
    others[1] = open_small(5, "w", 7, "topk:density=0.1", 0);
    others[2] = open_small(5, "w", 6, "topk:density=0.2", 0);
    others[3] = open_small(5, "w", 6, "topk:density=0.1", 1);
    others[4] = open_small(5, "w", 6, NULL, 0);
    for (size_t i = 0; i < 5; i++) {
        uint8_t save[512];
        size_t length;
        CHECK(gcomp_save(others[i], save, sizeof save, &length) == GCOMP_OK);
        CHECK(try_save(save, length) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(victim), "'w'"));
        gcomp_close(others[i]);
    }
    gcomp_close(victim);
}

static void test_loading_into_another_number_of_workers_keeps_the_mean(void)
{
    static const size_t worlds[][2] = {{4, 3}, {2, 5}, {1, 3}, {3, 1}};
    for (size_t k = 0; k < sizeof worlds / sizeof *worlds; k++) {
        team_open(&a, worlds[k][0]);
        for (uint64_t step = 0; step < 3; step++) team_step(&a, step);
        team_save(&a);
        team_open(&b, worlds[k][1]);
        for (size_t w = 0; w < b.world; w++) CHECK(load_all(b.gc[w], &a) == GCOMP_OK);
        team_save(&b);
        CHECK(difference(&a, &b) < 1e-6);
        for (size_t w = 0; w < b.world; w++) {
            CHECK(!memcmp(b.save[w] + 40, b.save[0] + 40, b.length[0] - 44));    /* the same on all */
            for (size_t i = 0; i < 80; i++) /* Q of "matrix" as it was */
                CHECK(saved_float(b.save[w], b.gc[0], MATRIX, 960 + i) == saved_float(a.save[0], a.gc[0], MATRIX, 960 + i));
        }
        for (uint64_t step = 3; step < 5; step++) team_step(&b, step);
        team_close(&a);
        team_close(&b);
    }
}

static void test_lists_of_saves_that_do_not_belong_together_are_refused(void)
{
    const void *list[3];
    size_t length[3];
    gcomp *two = open_worker(0, 2);
    team_open(&a, 3);
    team_step(&a, 0);
    team_save(&a);
    for (size_t w = 0; w < 3; w++) {
        list[w] = a.save[w];
        length[w] = a.length[w];
    }
    CHECK(gcomp_load(two, list, length, 2, NULL) == GCOMP_SAVE_MISMATCH);
    CHECK(gcomp_load(two, list, length, 1, NULL) == GCOMP_SAVE_MISMATCH);
    list[1] = a.save[2];
    CHECK(gcomp_load(two, list, length, 3, NULL) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(two), "save 1"));
    list[1] = a.save[0];
    CHECK(gcomp_load(two, list, length, 3, NULL) == GCOMP_SAVE_MISMATCH);
    team_step(&a, 1);
    list[1] = save_of(a.gc[1], &length[1]);
    CHECK(gcomp_load(two, list, length, 3, NULL) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(two), "step"));
    free((void *)(uintptr_t)list[1]);
    list[1] = a.save[1];
    a.save[2][60] ^= 1;
    CHECK(gcomp_load(two, list, length, 3, NULL) == GCOMP_CHECKSUM_MISMATCH && strstr(gcomp_error(two), "save 2"));
    a.save[2][60] ^= 1;
    CHECK(gcomp_load(two, list, length, 3, NULL) == GCOMP_OK && gcomp_step_number(two) == 1);
    CHECK(gcomp_load(a.gc[1], list, length, 1, NULL) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[1]), "another rank"));
    gcomp_close(two);
    team_close(&a);
}

/* A save of the object as it is now goes into a new one of the same rank and world. */
static void save_loads(gcomp *gc, const gcomp_desc *desc, const gcomp_tensor *tensor)
{
    gcomp *other;
    size_t length;
    uint8_t *save = save_of(gc, &length);
    const void *saves = save;
    CHECK(gcomp_open(&other, desc) == GCOMP_OK && gcomp_add_tensor(other, tensor) == GCOMP_OK);
    CHECK(gcomp_load(other, &saves, &length, 1, NULL) == GCOMP_OK);
    gcomp_close(other);
    free(save);
}

static int all_are(const float *x, float value)
{
    size_t wrong = 0;
    for (size_t i = 0; i < 30; i++) wrong += x[i] != value;
    return wrong == 0;
}

static void test_what_is_too_large_for_a_float_becomes_the_largest_and_is_saved(void)
{
    const gcomp_tensor tensor = {"w", 6, 5, 0, GCOMP_F32, "topk:density=0.1"};
    for (int negative = 0; negative < 2; negative++) {
        const float f = negative ? -3e38f : 3e38f, most = negative ? -FLT_MAX : FLT_MAX;
        gcomp_desc desc[2];
        gcomp *gc[2], *alone;
        gcomp_comm comm = comm_of(0, 4);
        uint8_t *saves[2];
        const void *both[2];
        size_t lengths[2];
        float grad[30];
        for (size_t i = 0; i < 30; i++) grad[i] = f;
        for (size_t w = 0; w < 2; w++) {
            memset(&desc[w], 0, sizeof desc[w]);
            desc[w].comm = comm_of(w, 2);
            CHECK(gcomp_open(&gc[w], &desc[w]) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
            for (int twice = 0; twice < 2; twice++) CHECK(gcomp_commit(gc[w], 0, grad, NULL, 0, NULL, NULL, 0) == GCOMP_OK);
            CHECK(all_are(tensor_residual(gc[w], 0), most));
            save_loads(gc[w], &desc[w], &tensor);
            both[w] = saves[w] = save_of(gc[w], &lengths[w]);
        }
        desc[0].comm = comm_of(0, 1);
        CHECK(gcomp_open(&alone, &desc[0]) == GCOMP_OK && gcomp_add_tensor(alone, &tensor) == GCOMP_OK);
        CHECK(gcomp_load(alone, both, lengths, 2, NULL) == GCOMP_OK && all_are(tensor_residual(alone, 0), most)); /* the mean of both */
        save_loads(alone, &desc[0], &tensor);
        CHECK(gcomp_take_over(gc[0], both[1], lengths[1]) == GCOMP_OK && all_are(tensor_residual(gc[0], 0), most));
        CHECK(gcomp_regroup(gc[0], &comm, NULL) == GCOMP_OK && all_are(tensor_residual(gc[0], 0), most));
        desc[0].comm = comm;
        save_loads(gc[0], &desc[0], &tensor);
        gcomp_close(alone);
        for (size_t w = 0; w < 2; w++) {
            gcomp_close(gc[w]);
            free(saves[w]);
        }
    }
}

int main(void)
{
    RUN(test_resuming_gives_the_bits_of_a_run_without_a_break);
    RUN(test_a_save_is_what_the_manual_says);
    RUN(test_wrong_calls_are_refused_and_change_nothing);
    RUN(test_damaged_saves_are_refused_by_kind_and_change_nothing);
    RUN(test_forged_saves_with_a_right_checksum_are_refused);
    RUN(test_a_save_of_another_object_is_refused_by_name);
    RUN(test_loading_into_another_number_of_workers_keeps_the_mean);
    RUN(test_lists_of_saves_that_do_not_belong_together_are_refused);
    RUN(test_what_is_too_large_for_a_float_becomes_the_largest_and_is_saved);
    return test_end();
}
