/* Proves of saves, and of workers that come and go: after a save and a load steps have the bits
   that they have without the break; saves have the bytes that the manual lists; hostile saves are
   refused; and nothing is lost when the number of workers changes. The workers run in one thread,
   in lock-step. */
#include "test.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

enum { MOST_WORKERS = 5, TENSORS = 9, LARGEST = 2400 };

static const gcomp_tensor tensors[TENSORS] = {
    {"matrix", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},   {"stack", 18, 10, 3, GCOMP_F32, "powersgd:rank=1"},
    {"dgc", 40, 50, 0, GCOMP_F32, "dgc:density=0.02,warmup=0"}, {"topk", 50, 21, 0, GCOMP_F32, "topk:density=0.05"},
    {"qsgd", 30, 37, 0, GCOMP_F32, "qsgd:levels=3"},       {"int", 32, 20, 0, GCOMP_F32, "int:bits=2,rounding=stochastic"},
    {"intsum", 20, 20, 0, GCOMP_F32, "intsum:bits=16"},    {"randomk", 25, 40, 0, GCOMP_F32, "randomk:density=0.1"},
    {"bias", 129, 0, 0, GCOMP_F32, NULL}};
enum { MATRIX, STACK, DGC, TOPK, QSGD, INT, INTSUM, RANDOMK, BIAS };

typedef struct team {
    size_t world;
    gcomp *gc[MOST_WORKERS];
    float grad[MOST_WORKERS][TENSORS][LARGEST];
    uint8_t *save[MOST_WORKERS];
    size_t length[MOST_WORKERS];
} team;

static team a, b;

enum { RECORDS = 60, RECORD = 64 }; /* bytes in front of the records, and of one without its texts */

/* Where the floats begin in a save without a schedule. */
static size_t floats_at(const uint8_t *save) { return RECORDS + get_word(save + 52, 8); }

static gcomp_comm comm_of(size_t rank, size_t world)
{
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.rank = (int)rank;
    comm.world = (int)world;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return comm;
}

static gcomp *open_with(size_t rank, size_t world, const gcomp_tensor *list, size_t count, const char *schedule)
{
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.comm = comm_of(rank, world);
    desc.seed = 77;
    if (world == 1) desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    desc.check_every = 2;
    desc.schedule = schedule;
    if (schedule) desc.codec = "powersgd:rank=2|powersgd:rank=1";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < count; t++) CHECK(gcomp_add_tensor(gc, list + t) == GCOMP_OK);
    return gc;
}

static gcomp *open_worker(size_t rank, size_t world) { return open_with(rank, world, tensors, TENSORS, NULL); }

static void team_open_with(team *t, size_t world, const gcomp_tensor *list, size_t count, const char *schedule)
{
    memset(t, 0, sizeof *t);
    t->world = world;
    for (size_t w = 0; w < world; w++) t->gc[w] = open_with(w, world, list, count, schedule);
}

static void team_open(team *t, size_t world) { team_open_with(t, world, tensors, TENSORS, NULL); }

static void team_close(team *t)
{
    for (size_t w = 0; w < MOST_WORKERS; w++) {
        gcomp_close(t->gc[w]);
        free(t->save[w]);
    }
}

static uint8_t *save_of(gcomp *gc, size_t *length)
{
    size_t size = gcomp_save_size(gc);
    uint8_t *save = (uint8_t *)malloc(size);
    CHECK(gcomp_save(gc, save, size, length) == GCOMP_OK && *length == size);
    return save;
}

static void team_save(team *t)
{
    for (size_t w = 0; w < t->world; w++) {
        free(t->save[w]);
        t->save[w] = save_of(t->gc[w], &t->length[w]);
    }
}

static gcomp_result load_all(gcomp *gc, const team *from)
{
    return gcomp_load(gc, (const void *const *)(const void *)from->save, from->length, from->world);
}

/* ---------------- steps */

static float number(uint64_t i)
{
    uint64_t x = (i + 11) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x ^= x >> 29;
    return (float)((int32_t)(x >> 40) - 8388608) / 8388608.0f;
}

static void carry_out(team *t, gcomp_request *r)
{
    static uint8_t all[1 << 20];
    size_t world = t->world, bytes = r->count * bytes_of_dtype(r->dtype);
    CHECK(r->kind == GCOMP_ALLGATHER ? world * r->stride <= sizeof all : bytes <= sizeof all);
    for (size_t w = 0; w < world; w++) {
        if (r->kind == GCOMP_ALLGATHER) memcpy(all + w * r->stride, r[w].send, r[w].stride);
        else if (w == 0) memcpy(all, r->recv, bytes);
        else if (r->kind == GCOMP_ALLREDUCE) plain_sum(all, r[w].recv, r->count, r->dtype);
        for (size_t i = 0; r->kind == GCOMP_ALLREDUCE_MAX && i < r->count; i++)
            ((float *)(void *)all)[i] = fmaxf(((float *)(void *)all)[i], ((float *)r[w].recv)[i]);
    }
    for (size_t w = 0; w < world; w++) memcpy(r[w].recv, all, r->kind == GCOMP_ALLGATHER ? world * r->stride : bytes);
}

static void team_step(team *t, uint64_t step)
{
    gcomp_request r[MOST_WORKERS];
    gcomp_step about;
    memset(&about, 0, sizeof about);
    about.scale = 1;
    about.epoch = (uint32_t)step / 2;
    for (size_t w = 0; w < t->world; w++) {
        CHECK(gcomp_step_number(t->gc[w]) == step && gcomp_step_begin(t->gc[w], &about) == GCOMP_OK);
        for (size_t k = 0; k < gcomp_tensor_count(t->gc[w]); k++) {
            for (size_t i = 0; i < gcomp_tensor_elements(t->gc[w], k); i++)
                t->grad[w][k][i] = number(i + 10000 * (w + 10 * (k + 10 * step)));
            CHECK(gcomp_step_ready(t->gc[w], k, t->grad[w][k]) == GCOMP_OK);
        }
    }
    for (;;) {
        for (size_t w = 0; w < t->world; w++) {
            gcomp_result result = gcomp_step_next(t->gc[w], r + w);
            CHECK(result == GCOMP_OK && r[w].kind == r[0].kind);
            if (result) printf("# worker %d: %s\n", (int)w, gcomp_error(t->gc[w]));
            if (result) return;
        }
        if (r[0].kind == GCOMP_DONE) break;
        carry_out(t, r);
        for (size_t w = 0; w < t->world; w++) CHECK(gcomp_step_done(t->gc[w], r[w].id, 0) == GCOMP_OK);
    }
    for (size_t w = 0; w < t->world; w++) {
        CHECK(gcomp_step_commit(t->gc[w]) == GCOMP_OK);
        CHECK(memcmp(t->grad[w], t->grad[0], sizeof t->grad[0]) == 0);
    }
}

static int same_state(gcomp *x, gcomp *y)
{
    size_t m, n;
    uint8_t *p = save_of(x, &m), *q = save_of(y, &n);
    int same = m == n && !memcmp(p, q, n);
    free(p);
    free(q);
    return same;
}

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
            else CHECK(gcomp_load(b.gc[w], &own, &a.length[w], 1) == GCOMP_OK);
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
    const size_t name = strlen(tensors[t].name) + 1, codecs = gcomp_codec_format(gcomp_tensor_codec(gc, t), text, sizeof text) + 1;
    CHECK(get_word(r, 8) == name && get_word(r + 8, 8) == codecs && get_word(r + 16, 8) == tensors[t].rows);
    CHECK(get_word(r + 24, 8) == (tensors[t].cols ? tensors[t].cols : 1) && get_word(r + 32, 8) == (tensors[t].stack ? tensors[t].stack : 1));
    CHECK(get_word(r + 40, 8) == state && get_word(r + 48, 8) == 2); /* two steps */
    CHECK(get_word(r + 56, 4) == (gcomp_residual(gc, t) != NULL) && get_word(r + 60, 4) == 0);
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
            const float *residual = gcomp_residual(a.gc[w], t);
            size_t n = gcomp_tensor_elements(a.gc[w], t), state = t == MATRIX ? 2 * 40 : t == STACK ? 3 * 10 : t == DGC ? n : 0;
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
    CHECK(gcomp_save_size(NULL) == 0 && gcomp_save(NULL, buffer, 8, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_save(a.gc[0], NULL, 1 << 20, &length) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_save(a.gc[0], a.save[0], a.length[0], NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_save(a.gc[0], buffer, 8, &length) == GCOMP_DST_TOO_SMALL && length == 3);
    CHECK(gcomp_save(a.gc[0], a.save[0], a.length[0] - 1, &length) == GCOMP_DST_TOO_SMALL && length == 3);
    CHECK(gcomp_load(NULL, &own, a.length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], NULL, a.length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], &own, NULL, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load(a.gc[0], &own, a.length, 0) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_take_over(NULL, own, a.length[0]) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_join(NULL, own, a.length[0]) == GCOMP_INVALID_ARGUMENT);
    own = NULL;
    CHECK(gcomp_load(a.gc[0], &own, a.length, 1) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_take_over(a.gc[0], NULL, 100) == GCOMP_INVALID_ARGUMENT && gcomp_join(a.gc[0], NULL, 100) == GCOMP_INVALID_ARGUMENT);
    own = a.save[0];
    CHECK(gcomp_step_begin(a.gc[0], NULL) == GCOMP_OK);
    CHECK(gcomp_load(a.gc[0], &own, a.length, 1) == GCOMP_WRONG_STATE);
    CHECK(gcomp_take_over(a.gc[0], own, a.length[0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_join(a.gc[0], own, a.length[0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(a.gc[0]) == GCOMP_OK);
    team_open(&b, 1);
    CHECK(gcomp_load(b.gc[0], &own, a.length, 1) == GCOMP_OK && same_state(a.gc[0], b.gc[0]));
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
    result = gcomp_load(victim, &save, &length, 1);
    if (result != GCOMP_OK) {
        uint8_t after[512];
        CHECK(gcomp_error(victim)[0] != 0);
        if (result != GCOMP_SAVE_MISMATCH) CHECK(gcomp_load_some(victim, &save, &length, 1, NULL, 0, NULL) == result);
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

/* ---------------- another number of workers */

/* Float i of a tensor's residual, and of dgc's momentum behind it, from the worker's save. */
static size_t own_floats(const gcomp *gc, size_t t)
{
    return gcomp_residual(gc, t) ? gcomp_tensor_elements(gc, t) * (t == DGC ? 2 : 1) : 0;
}

static float saved_float(const uint8_t *save, const gcomp *gc, size_t tensor, size_t i)
{
    size_t at = floats_at(save) + 4 * i;
    uint32_t bits;
    float x;
    for (size_t t = 0; t < tensor; t++) at += 4 * (own_floats(gc, t) + (t == MATRIX ? 80 : t == STACK ? 30 : 0));
    bits = (uint32_t)get_word(save + at, 4);
    memcpy(&x, &bits, 4);
    return x;
}

/* Largest difference of the sums of residual (and momentum) / world between two teams, both
   saved. */
static double difference(const team *x, const team *y)
{
    double most = 0;
    for (size_t t = 0; t < TENSORS; t++) {
        for (size_t i = 0; i < own_floats(x->gc[0], t); i++) {
            double d = 0;
            for (size_t w = 0; w < x->world; w++) d += (double)saved_float(x->save[w], x->gc[0], t, i) / (double)x->world;
            for (size_t w = 0; w < y->world; w++) d -= (double)saved_float(y->save[w], x->gc[0], t, i) / (double)y->world;
            if (fabs(d) > most) most = fabs(d);
        }
    }
    return most;
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
    CHECK(gcomp_load(two, list, length, 2) == GCOMP_SAVE_MISMATCH);
    CHECK(gcomp_load(two, list, length, 1) == GCOMP_SAVE_MISMATCH);
    list[1] = a.save[2];
    CHECK(gcomp_load(two, list, length, 3) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(two), "save 1"));
    list[1] = a.save[0];
    CHECK(gcomp_load(two, list, length, 3) == GCOMP_SAVE_MISMATCH);
    team_step(&a, 1);
    list[1] = save_of(a.gc[1], &length[1]);
    CHECK(gcomp_load(two, list, length, 3) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(two), "step"));
    free((void *)(uintptr_t)list[1]);
    list[1] = a.save[1];
    a.save[2][60] ^= 1;
    CHECK(gcomp_load(two, list, length, 3) == GCOMP_CHECKSUM_MISMATCH && strstr(gcomp_error(two), "save 2"));
    a.save[2][60] ^= 1;
    CHECK(gcomp_load(two, list, length, 3) == GCOMP_OK && gcomp_step_number(two) == 1);
    CHECK(gcomp_load(a.gc[1], list, length, 1) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[1]), "another rank"));
    gcomp_close(two);
    team_close(&a);
}

/* ---------------- a model that has changed */

enum { OLD_TENSORS = 8, NEW_TENSORS = 9 };

static const gcomp_tensor old_model[OLD_TENSORS] = {
    {"words", 100, 8, 0, GCOMP_F32, "topk:density=0.05"},         {"fc1", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},
    {"fc2", 30, 31, 0, GCOMP_F32, "topk:density=0.05"},           {"gone", 20, 10, 0, GCOMP_F32, "dgc:density=0.05,warmup=0"},
    {"dgc", 40, 50, 0, GCOMP_F32, "dgc:density=0.02,warmup=0"},   {"head", 5, 64, 0, GCOMP_F32, "topk:density=0.05"},
    {"experts", 8, 20, 2, GCOMP_F32, "topk:density=0.05"},        {"cut", 50, 8, 0, GCOMP_F32, "dgc:density=0.05,warmup=0"}};
static const gcomp_tensor new_model[NEW_TENSORS] = {
    {"new", 16, 20, 0, GCOMP_F32, "topk:density=0.05"},           {"dgc", 40, 50, 0, GCOMP_F32, "dgc:density=0.02,warmup=0"},
    {"head", 10, 32, 0, GCOMP_F32, "topk:density=0.05"},          {"words", 130, 8, 0, GCOMP_F32, "topk:density=0.05"},
    {"fc1", 24, 40, 0, GCOMP_F32, "powersgd:rank=2"},             {"fc2", 30, 31, 0, GCOMP_F32, "dgc:density=0.1,warmup=0"},
    {"experts", 8, 20, 3, GCOMP_F32, "topk:density=0.05"},        {"cut", 40, 8, 0, GCOMP_F32, "dgc:density=0.05,warmup=0"},
    {"bias", 40, 0, 0, GCOMP_F32, NULL}};
static const char new_report[] =
    "new: the save does not have it: it begins empty\n"
    "head: it is 5 x 64 there, 10 x 32 here: it begins empty\n"
    "words: it is 100 x 8 there, 130 x 8 here: the residual of the first 100 rows is taken, all else begins empty\n"
    "fc2: its codec is topk:density=0.05 there, dgc:density=0.1,warmup=0 here: its residual is taken, its state begins empty\n"
    "experts: it is 2 x 8 x 20 there, 3 x 8 x 20 here: it begins empty\n"
    "cut: it is 50 x 8 there, 40 x 8 here: it begins empty\n"
    "bias: the save does not have it: it begins empty\n"
    "gone: only the save has it: it is left out\n";

/* Float i of residual and state of the tensor with this name, by the records of a save of floats; 0 where the tensor, or the
   float, is not there. */
static float named_float(const uint8_t *save, const char *name, size_t i)
{
    const uint8_t *r = save + RECORDS;
    size_t at = floats_at(save);
    for (; r < save + floats_at(save); r += RECORD + get_word(r, 8) + get_word(r + 8, 8)) {
        const size_t n = get_word(r + 56, 4) ? get_word(r + 16, 8) * get_word(r + 24, 8) * get_word(r + 32, 8) : 0;
        const size_t floats = n + get_word(r + 40, 8);
        if (!strcmp((const char *)r + RECORD, name)) {
            const uint32_t bits = i < floats ? (uint32_t)get_word(save + at + 4 * i, 4) : 0;
            float x;
            memcpy(&x, &bits, 4);
            return x;
        }
        at += 4 * floats;
    }
    return 0;
}

/* The mean over the saves of a team, as loads make it. */
static float mean_float(const team *t, const char *name, size_t i)
{
    double sum = 0;
    for (size_t w = 0; w < t->world; w++) sum += (double)named_float(t->save[w], name, i);
    return (float)(sum * (1 / (double)t->world));
}

/* Is each float of the new worker w the one that the old team has there? */
static void check_fit(const team *old, const team *now, size_t w)
{
    static const struct { const char *name; size_t floats, kept; } parts[] = {
        {"new", 320, 0}, {"dgc", 4000, 4000}, {"head", 320, 0}, {"words", 1040, 800}, {"fc1", 960 + 80, 960 + 80},
        {"fc2", 930 + 930, 930}, {"experts", 480, 0}, {"cut", 640, 0}};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        size_t wrong = 0, zeros = 0;
        for (size_t i = 0; i < parts[p].floats; i++) {
            const float x = named_float(now->save[w], parts[p].name, i);
            float expected = 0;
            if (i < parts[p].kept)
                expected = old->world == now->world ? named_float(old->save[w], parts[p].name, i) : mean_float(old, parts[p].name, i);
            wrong += memcmp(&x, &expected, 4) != 0;
            zeros += x == 0;
        }
        if (wrong) printf("# %s: %d floats\n", parts[p].name, (int)wrong);
        CHECK(wrong == 0 && (zeros < parts[p].floats / 2 || parts[p].kept <= parts[p].floats / 2));
    }
}

static void test_a_model_that_changed_takes_what_fits(void)
{
    static const size_t worlds[][2] = {{3, 3}, {3, 2}, {1, 4}, {4, 1}};
    for (size_t k = 0; k < sizeof worlds / sizeof *worlds; k++) {
        team_open_with(&a, worlds[k][0], old_model, OLD_TENSORS, NULL);
        for (uint64_t step = 0; step < 4; step++) team_step(&a, step);
        team_save(&a);
        team_open_with(&b, worlds[k][1], new_model, NEW_TENSORS, NULL);
        for (size_t w = 0; w < b.world; w++) {
            const void *const *saves = (const void *const *)(const void *)a.save, *own = a.save[w];
            char report[2000];
            size_t length = 7;
            if (k == 0 && w) CHECK(gcomp_load_some(b.gc[w], &own, &a.length[w], 1, report, sizeof report, &length) == GCOMP_OK);
            else CHECK(gcomp_load_some(b.gc[w], saves, a.length, a.world, report, sizeof report, &length) == GCOMP_OK);
            if (strcmp(report, new_report)) printf("# %s", report);
            CHECK(!strcmp(report, new_report) && length == strlen(new_report));
            CHECK(gcomp_step_number(b.gc[w]) == 4);
        }
        team_save(&b);
        for (size_t w = 0; w < b.world; w++) check_fit(&a, &b, w);
        for (uint64_t step = 4; step < 7; step++) team_step(&b, step);
        team_close(&a);
        team_close(&b);
    }
}

/* What was there before the load does not stay in the tensors that begin empty. */
static void test_a_load_of_what_fits_replaces_all(void)
{
    team_open_with(&a, 2, old_model, OLD_TENSORS, NULL);
    team_open_with(&b, 2, new_model, NEW_TENSORS, NULL);
    for (uint64_t step = 0; step < 3; step++) {
        team_step(&a, step);
        team_step(&b, step);
    }
    team_save(&a);
    for (size_t w = 0; w < 2; w++)
        CHECK(gcomp_load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, NULL, 0, NULL) == GCOMP_OK);
    team_save(&b);
    for (size_t w = 0; w < 2; w++) check_fit(&a, &b, w);
    team_step(&b, 3);
    team_close(&a);
    team_close(&b);
}

static void test_a_save_that_fits_is_loaded_as_by_gcomp_load(void)
{
    team_open(&a, 3);
    for (uint64_t step = 0; step < 3; step++) team_step(&a, step);
    team_save(&a);
    team_open(&b, 3);
    for (size_t w = 0; w < 3; w++) {
        char report[8] = "before";
        size_t length = 7;
        const void *own = a.save[w];
        CHECK(gcomp_load_some(b.gc[w], &own, &a.length[w], 1, report, sizeof report, &length) == GCOMP_OK);
        CHECK(length == 0 && !*report && same_state(a.gc[w], b.gc[w]));
    }
    team_step(&a, 3);
    team_step(&b, 3);
    CHECK(memcmp(a.grad, b.grad, sizeof a.grad) == 0);
    team_close(&a);
    team_close(&b);
}

/* All tensors are found, and nothing is said. */
static void test_the_order_of_tensors_does_not_matter(void)
{
    gcomp_tensor turned[OLD_TENSORS];
    for (size_t t = 0; t < OLD_TENSORS; t++) turned[t] = old_model[OLD_TENSORS - 1 - t];
    team_open_with(&a, 2, old_model, OLD_TENSORS, NULL);
    for (uint64_t step = 0; step < 3; step++) team_step(&a, step);
    team_save(&a);
    team_open_with(&b, 2, turned, OLD_TENSORS, NULL);
    for (size_t w = 0; w < 2; w++) {
        size_t length = 7, wrong = 0;
        CHECK(load_all(b.gc[w], &a) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(b.gc[w]), "save 0: it has tensor 'words' where"));
        CHECK(strstr(gcomp_error(b.gc[w]), "this object has tensor 'cut'"));
        CHECK(gcomp_load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, NULL, 0, &length) == GCOMP_OK && length == 0);
        b.save[w] = save_of(b.gc[w], &b.length[w]);
        for (size_t t = 0; t < OLD_TENSORS; t++)
            for (size_t i = 0; i < 4000; i++)
                wrong += named_float(a.save[w], old_model[t].name, i) != named_float(b.save[w], old_model[t].name, i);
        CHECK(wrong == 0);
    }
    team_step(&b, 3);
    team_close(&a);
    team_close(&b);
}

/* The report is cut to fit, and always ended. */
static void test_a_report_is_cut_to_fit(void)
{
    team_open_with(&a, 1, old_model, OLD_TENSORS, NULL);
    team_save(&a);
    team_open_with(&b, 1, new_model, NEW_TENSORS, NULL);
    for (size_t capacity = 0; capacity < sizeof new_report + 2; capacity += capacity < 4 || capacity + 4 > sizeof new_report ? 1 : 37) {
        char *report = (char *)malloc(capacity ? capacity : 1);
        size_t length = 7;
        const void *own = a.save[0];
        *report = 'x';
        CHECK(gcomp_load_some(b.gc[0], &own, a.length, 1, report, capacity, &length) == GCOMP_OK && length == sizeof new_report - 1);
        if (!capacity) CHECK(*report == 'x');
        else CHECK(strlen(report) == (capacity < sizeof new_report ? capacity - 1 : length) && !strncmp(report, new_report, strlen(report)));
        free(report);
    }
    team_close(&a);
    team_close(&b);
}

/* With a schedule: tensors are where it is; what rank 0 has measured is taken only where all fits. */
static void test_schedules_go_on_in_a_model_that_changed(void)
{
    static const char *const rules[] = {"warmup:epochs=9", "accordion:every=1", "accordion:every=1,scope=model", "bytes:target=3e4,every=2", "error:target=0.5,every=2"};
    static const gcomp_tensor before[2] = {{"w", 20, 30, 0, GCOMP_F32, "powersgd:rank=2|powersgd:rank=1"}, {"gone", 30, 30, 0, GCOMP_F32, "int:bits=8|int:bits=4"}};
    static const gcomp_tensor after[3] = {{"new", 10, 30, 0, GCOMP_F32, "int:bits=8|int:bits=4"}, {"w", 20, 30, 0, GCOMP_F32, "powersgd:rank=2|powersgd:rank=1"},
                                          {"bias", 10, 0, 0, GCOMP_F32, NULL}};
    for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
        team_open_with(&a, 2, before, 2, rules[k]);
        for (uint64_t step = 0; step < 5; step++) team_step(&a, step);
        team_save(&a);
        team_open_with(&b, 2, after, 3, rules[k]);
        for (size_t w = 0; w < 2; w++) {
            char report[500];
            size_t wrong = 0;
            CHECK(gcomp_load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, report, sizeof report, NULL) == GCOMP_OK);
            CHECK(strstr(report, "new: the save") && strstr(report, "gone: only the save") && strstr(report, "bias: ") && !strstr(report, "w: it"));
            CHECK(!strstr(report, "the schedule measures anew") == (w || k == 0));
            b.save[w] = save_of(b.gc[w], &b.length[w]);
            for (size_t i = 0; i < 660; i++) wrong += gcomp_residual(a.gc[w], 0)[i % 600] != gcomp_residual(b.gc[w], 1)[i % 600];
            CHECK(wrong == 0 && gcomp_tensor_codec(a.gc[w], 0)->param[0] == gcomp_tensor_codec(b.gc[w], 1)->param[0]);
        }
        for (uint64_t step = 5; step < 12; step++) team_step(&b, step);
        team_close(&a);
        team_close(&b);
    }
}

/* A failed load names the tensor, and what it is in the save and in the object. */
static void test_a_refused_save_names_both_values(void)
{
    static const struct { gcomp_tensor there, here; const char *sentence; } cases[] = {
        {{"w", 6, 5, 0, GCOMP_F32, "sign"}, {"w", 6, 7, 0, GCOMP_F32, "sign"}, "save 0, tensor 'w': it is 6 x 5 there, 6 x 7 here"},
        {{"w", 6, 5, 2, GCOMP_F32, "sign"}, {"w", 6, 5, 3, GCOMP_F32, "sign"}, "save 0, tensor 'w': it is 2 x 6 x 5 there, 3 x 6 x 5 here"},
        {{"w", 6, 5, 0, GCOMP_F32, "sign"}, {"w", 30, 0, 0, GCOMP_F32, "sign"}, "save 0, tensor 'w': it is 6 x 5 there, 30 here"},
        {{"w", 6, 5, 0, GCOMP_F32, "sign"}, {"v", 6, 5, 0, GCOMP_F32, "sign"}, "save 0: it has tensor 'w' where this object has tensor 'v'"},
        {{"w", 6, 5, 0, GCOMP_F32, "topk:density=0.1"}, {"w", 6, 5, 0, GCOMP_F32, "topk:density=0.2"},
         "save 0, tensor 'w': its codec is topk:density=0.1 there, topk:density=0.2 here"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp *there = open_with(0, 2, &cases[c].there, 1, NULL), *here = open_with(0, 2, &cases[c].here, 1, NULL);
        size_t length;
        uint8_t *save = save_of(there, &length);
        const void *list = save;
        CHECK(gcomp_load(here, &list, &length, 1) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        if (strcmp(gcomp_error(here), cases[c].sentence)) printf("# %s\n", gcomp_error(here));
        CHECK(gcomp_join(here, save, length) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        CHECK(gcomp_take_over(here, save, length) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        put_word(save + 4, 2, 4);
        CHECK(gcomp_load(here, &list, &length, 1) == GCOMP_UNSUPPORTED_VERSION);
        CHECK(!strcmp(gcomp_error(here), "save 0: it has version 2, and this library reads version 3"));
        free(save);
        gcomp_close(there);
        gcomp_close(here);
    }
    gcomp *two = open_with(0, 2, old_model, 2, NULL), *three = open_with(0, 2, old_model, 3, NULL);
    for (int less = 0; less < 2; less++) {
        size_t length;
        uint8_t *save = save_of(less ? two : three, &length);
        const void *list = save;
        CHECK(gcomp_load(less ? three : two, &list, &length, 1) == GCOMP_SAVE_MISMATCH);
        CHECK(!strcmp(gcomp_error(less ? three : two), less ? "save 0: it has 2 tensors, and this object has 3" : "save 0: it has 3 tensors, and this object has 2"));
        free(save);
    }
    gcomp_close(two);
    gcomp_close(three);
}

/* A save with any records, and the right checksum: it is refused and nothing has changed, or it is taken, and steps go on. */
static void test_forged_records_are_refused_or_taken_as_far_as_they_fit(void)
{
    static const uint64_t odd[] = {0, 1, 2, 7, 8, 100, 0xffffffffu, (uint64_t)1 << 32, (uint64_t)1 << 61, (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX};
    size_t refused = 0, taken = 0;
    team_open_with(&a, 1, old_model, OLD_TENSORS, NULL);
    team_open_with(&b, 1, new_model, NEW_TENSORS, NULL);
    for (uint64_t step = 0; step < 2; step++) team_step(&a, step);
    team_save(&a);
    const size_t length = a.length[0], end = floats_at(a.save[0]);
    uint8_t *bad = (uint8_t *)malloc(length);
    for (size_t i = 32; i < end; i++)
        for (size_t k = 0; k < 8 + sizeof odd / sizeof *odd; k++) {
            const void *list = bad;
            char report[3000];
            size_t had, has;
            gcomp *gc = b.gc[0];
            memcpy(bad, a.save[0], length);
            if (k < 8) bad[i] ^= (uint8_t)(1u << k);
            else if ((i - RECORDS) % 4) continue;
            else put_word(bad + i, odd[k - 8], 8);
            put_word(bad + length - 4, plain_crc(0, bad, length - 4), 4);
            uint8_t *before = save_of(gc, &had);
            const gcomp_result result = gcomp_load_some(gc, &list, &length, 1, report, sizeof report, NULL);
            uint8_t *after = save_of(gc, &has);
            CHECK(result == GCOMP_OK || result == GCOMP_CORRUPT || result == GCOMP_SAVE_MISMATCH);
            if (result) CHECK(had == has && !memcmp(before, after, had) && gcomp_error(gc)[0]);
            for (size_t j = floats_at(after); j < has - 4 && !result; j += 4) CHECK((get_word(after + j, 4) & 0x7f800000u) != 0x7f800000u);
            refused += result != GCOMP_OK;
            taken += result == GCOMP_OK;
            free(before);
            free(after);
        }
    free(bad);
    CHECK(refused > 1000 && taken > 1000);
    if (refused <= 1000 || taken <= 1000) printf("# %d refused, %d taken\n", (int)refused, (int)taken);
    team_close(&a);
    team_close(&b);
}

/* A name that stands twice in a save: which one is meant? */
static void test_a_save_with_a_name_twice_is_refused(void)
{
    static const gcomp_tensor list[2] = {{"a", 6, 5, 0, GCOMP_F32, "sign"}, {"b", 6, 5, 0, GCOMP_F32, "sign"}};
    team_open_with(&a, 1, list, 2, NULL);
    team_save(&a);
    const void *own = a.save[0];
    a.save[0][RECORDS + RECORD + get_word(a.save[0] + RECORDS, 8) + get_word(a.save[0] + RECORDS + 8, 8) + RECORD] = 'a';
    put_word(a.save[0] + a.length[0] - 4, plain_crc(0, a.save[0], a.length[0] - 4), 4);
    CHECK(gcomp_load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_CORRUPT && strstr(gcomp_error(a.gc[0]), "tensor 'a': it is there twice"));
    team_close(&a);
}

static void test_wrong_calls_for_what_fits_are_refused(void)
{
    char report[8] = "before";
    size_t length = 7;
    team_open(&a, 2);
    team_save(&a);
    const void *own = a.save[0], *none = NULL;
    CHECK(gcomp_load_some(NULL, &own, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load_some(a.gc[0], NULL, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load_some(a.gc[0], &own, NULL, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load_some(a.gc[0], &own, a.length, 0, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load_some(a.gc[0], &none, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_load_some(a.gc[1], &own, a.length, 1, report, sizeof report, &length) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[1]), "another rank: of 0, and this worker is rank 1") && length == 7 && !*report);
    CHECK(gcomp_step_begin(a.gc[0], NULL) == GCOMP_OK && gcomp_load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(a.gc[0]) == GCOMP_OK && gcomp_load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_OK);
    team_close(&a);
}

/* ---------------- workers leave and join */

/* The last worker hands over to the first; the others go on without it. */
static void leave(team *t)
{
    size_t last = t->world - 1, length;
    uint8_t *save = save_of(t->gc[last], &length);
    CHECK(gcomp_take_over(t->gc[0], save, length) == GCOMP_OK);
    free(save);
    gcomp_close(t->gc[last]);
    t->gc[last] = NULL;
    t->world = last;
    for (size_t w = 0; w < last; w++) {
        gcomp_comm comm = comm_of(w, last);
        CHECK(gcomp_regroup(t->gc[w], &comm) == GCOMP_OK);
    }
}

static void join(team *t)
{
    size_t length, world = t->world + 1;
    uint8_t *save = save_of(t->gc[0], &length);
    for (size_t w = 0; w < t->world; w++) {
        gcomp_comm comm = comm_of(w, world);
        CHECK(gcomp_regroup(t->gc[w], &comm) == GCOMP_OK);
    }
    t->gc[t->world] = open_worker(t->world, world);
    CHECK(gcomp_join(t->gc[t->world], save, length) == GCOMP_OK);
    t->save[t->world] = save_of(t->gc[t->world], &t->length[t->world]);
    for (size_t i = 0; i < 80; i++) /* it multiplies with the Q of the others, and has nothing to send yet */
        CHECK(saved_float(t->save[t->world], t->gc[0], MATRIX, 960 + i) == saved_float(save, t->gc[0], MATRIX, 960 + i));
    for (size_t i = 0; i < 4000; i++) CHECK(saved_float(t->save[t->world], t->gc[0], DGC, i) == 0);
    free(t->save[t->world]);
    t->save[t->world] = NULL;
    free(save);
    t->world = world;
}

static void test_workers_leave_and_join_and_nothing_is_lost(void)
{
    team_open(&a, 4);
    for (uint64_t step = 0; step < 8; step++) {
        team_step(&a, step);
        if (step == 1 || step == 3) continue;
        team_save(&a);
        memcpy(b.length, a.length, sizeof b.length);
        memcpy(b.gc, a.gc, sizeof b.gc);
        b.world = a.world;
        for (size_t w = 0; w < MOST_WORKERS; w++) {
            b.save[w] = a.save[w];
            a.save[w] = NULL;
        }
        if (step < 3) leave(&a);
        else join(&a);
        if (step == 6) leave(&a);
        team_save(&a);
        CHECK(difference(&a, &b) < 1e-6);
        for (size_t w = 0; w < MOST_WORKERS; w++) free(b.save[w]);
    }
    CHECK(a.world == 5);
    team_close(&a);
}

/* What reached the weights and what is still to come is what was given: sum of means + mean
   residual = sum of mean gradients. */
static void test_the_weights_get_all_gradients_through_changes_of_workers(void)
{
    static double given[LARGEST], got[LARGEST];
    size_t n = 1050;
    memset(given, 0, sizeof given);
    memset(got, 0, sizeof got);
    team_open(&a, 3);
    for (uint64_t step = 0; step < 12; step++) {
        for (size_t i = 0; i < n; i++)
            for (size_t w = 0; w < a.world; w++) given[i] += (double)number(i + 10000 * (w + 10 * (TOPK + 10 * step))) / (double)a.world;
        team_step(&a, step);
        for (size_t i = 0; i < n; i++) got[i] += (double)a.grad[0][TOPK][i];
        if (step == 3 || step == 5) leave(&a);
        if (step == 4 || step == 8) join(&a);
        if (step == 6) {
            team_save(&a);
            team_open(&b, 4);
            for (size_t w = 0; w < 4; w++) CHECK(load_all(b.gc[w], &a) == GCOMP_OK);
            team_close(&a);
            a = b;
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t w = 0; w < a.world; w++) got[i] += (double)gcomp_residual(a.gc[w], TOPK)[i] / (double)a.world;
        CHECK(fabs(got[i] - given[i]) < 1e-5);
    }
    team_close(&a);
}

static void test_what_cannot_be_taken_over_is_refused(void)
{
    team_open(&a, 3);
    team_open(&b, 2);
    team_step(&a, 0);
    team_step(&b, 0);
    team_save(&a);
    CHECK(gcomp_take_over(a.gc[0], a.save[0], a.length[0]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[0]), "itself"));
    CHECK(gcomp_take_over(b.gc[0], a.save[1], a.length[1]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(b.gc[0]), "workers"));
    team_step(&a, 1);
    CHECK(gcomp_take_over(a.gc[0], a.save[1], a.length[1]) == GCOMP_SAVE_MISMATCH && strstr(gcomp_error(a.gc[0]), "step"));
    team_close(&a);
    team_close(&b);
}

/* ---------------- regroup */

static void test_regroup_refuses_what_does_not_suit_and_changes_nothing(void)
{
    gcomp_comm comm = comm_of(0, 2);
    test_heap h = {1000, 0, 0, 0};
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.comm = comm_of(0, 2);
    desc.allocator = heap_of(&h);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor tensor = tensors[t];
        if (t == INTSUM) tensor.codec = "intsum:bits=8";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    CHECK(gcomp_regroup(NULL, &comm) == GCOMP_INVALID_ARGUMENT && gcomp_regroup(gc, NULL) == GCOMP_INVALID_ARGUMENT);
    comm.rank = 2;
    CHECK(gcomp_regroup(gc, &comm) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "comm.rank"));
    comm.rank = 0;
    comm.world = 200; /* more than 127 */
    CHECK(gcomp_regroup(gc, &comm) == GCOMP_BAD_CODEC && strstr(gcomp_error(gc), "'intsum'"));
    comm.world = 3;
    comm.allreduce_dtypes = 0;
    CHECK(gcomp_regroup(gc, &comm) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "'intsum'"));
    comm.allreduce_dtypes = 1u << GCOMP_I8;
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    for (long left = 0; left < 4; left++) {
        size_t held = h.held, used = gcomp_memory_used(gc);
        gcomp_result result;
        h.left = left;
        result = gcomp_regroup(gc, &comm);
        CHECK(result == (left < 3 ? GCOMP_OUT_OF_MEMORY : GCOMP_OK));
        if (result) CHECK(h.held == held && gcomp_memory_used(gc) == used);
        else CHECK(h.held > held && gcomp_memory_used(gc) == h.held);
    }
    h.left = 0;
    CHECK(gcomp_prepare(gc) == GCOMP_OK); /* all is reserved */
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK && gcomp_regroup(gc, &comm) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(gc) == GCOMP_OK);
    gcomp_close(gc);
    CHECK(h.held == 0);
}

static void test_regroup_of_as_many_workers_keeps_every_bit(void)
{
    gcomp_comm comm = comm_of(1, 2);
    team_open(&a, 2);
    team_step(&a, 0);
    team_save(&a);
    CHECK(gcomp_regroup(a.gc[0], &comm) == GCOMP_OK);
    comm.rank = 0;
    CHECK(gcomp_regroup(a.gc[1], &comm) == GCOMP_OK); /* they have changed places */
    for (size_t w = 0; w < 2; w++) {
        size_t length;
        uint8_t *save = save_of(a.gc[w], &length);
        CHECK(get_word(save + 32, 4) == 1 - w && !memcmp(save + 36, a.save[w] + 36, length - 40));
        free(save);
    }
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
    CHECK(gcomp_load(other, &saves, &length, 1) == GCOMP_OK);
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
            CHECK(all_are(gcomp_residual(gc[w], 0), most));
            save_loads(gc[w], &desc[w], &tensor);
            both[w] = saves[w] = save_of(gc[w], &lengths[w]);
        }
        desc[0].comm = comm_of(0, 1);
        CHECK(gcomp_open(&alone, &desc[0]) == GCOMP_OK && gcomp_add_tensor(alone, &tensor) == GCOMP_OK);
        CHECK(gcomp_load(alone, both, lengths, 2) == GCOMP_OK && all_are(gcomp_residual(alone, 0), most)); /* the mean of both */
        save_loads(alone, &desc[0], &tensor);
        CHECK(gcomp_take_over(gc[0], both[1], lengths[1]) == GCOMP_OK && all_are(gcomp_residual(gc[0], 0), most));
        CHECK(gcomp_regroup(gc[0], &comm) == GCOMP_OK && all_are(gcomp_residual(gc[0], 0), most));
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
    RUN(test_a_model_that_changed_takes_what_fits);
    RUN(test_a_load_of_what_fits_replaces_all);
    RUN(test_a_save_that_fits_is_loaded_as_by_gcomp_load);
    RUN(test_the_order_of_tensors_does_not_matter);
    RUN(test_a_report_is_cut_to_fit);
    RUN(test_schedules_go_on_in_a_model_that_changed);
    RUN(test_a_refused_save_names_both_values);
    RUN(test_forged_records_are_refused_or_taken_as_far_as_they_fit);
    RUN(test_a_save_with_a_name_twice_is_refused);
    RUN(test_wrong_calls_for_what_fits_are_refused);
    RUN(test_workers_leave_and_join_and_nothing_is_lost);
    RUN(test_the_weights_get_all_gradients_through_changes_of_workers);
    RUN(test_what_cannot_be_taken_over_is_refused);
    RUN(test_regroup_refuses_what_does_not_suit_and_changes_nothing);
    RUN(test_regroup_of_as_many_workers_keeps_every_bit);
    return test_end();
}
