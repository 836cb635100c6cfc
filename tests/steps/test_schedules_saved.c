/* Proves of schedules: saves, other workers, forged states, and decisions that are none. */

#include "schedules.h"

static const gcomp_tensor matrix = {"matrix", 40, 32, 2, GCOMP_F32, NULL};
static const gcomp_tensor other = {"other", 48, 32, 0, GCOMP_F32, NULL};
static const gcomp_tensor bias = {"bias", 48, 0, 0, GCOMP_F32, NULL};

/* ---------------- saves, and other workers */

typedef struct saved {
    uint8_t *bytes[WORLD_MAX];
    size_t length[WORLD_MAX];
} saved;

static void save_team(const team *t, saved *s)
{
    memset(s, 0, sizeof *s);
    for (size_t w = 0; w < t->world; w++) {
        size_t size = save_size(t->gc[w]);
        s->bytes[w] = (uint8_t *)malloc(size);
        CHECK(gcomp_save(t->gc[w], s->bytes[w], size, &s->length[w]) == GCOMP_OK && s->length[w] == size);
    }
}

static void load_team(team *t, const saved *s, size_t count)
{
    for (size_t w = 0; w < t->world; w++)
        CHECK(gcomp_load(t->gc[w], (const void *const *)(const void *)s->bytes, s->length, count, NULL) == GCOMP_OK);
}

static void drop(saved *s)
{
    for (size_t w = 0; w < WORLD_MAX; w++) free(s->bytes[w]);
}

static int same_saves(const team *a, const team *b)
{
    saved x, y;
    int same = 1;
    save_team(a, &x);
    save_team(b, &y);
    for (size_t w = 0; w < a->world; w++)
        same = same && x.length[w] == y.length[w] && !memcmp(x.bytes[w], y.bytes[w], x.length[w]);
    drop(&x);
    drop(&y);
    return same;
}

enum { BREAK_STEPS = 18 };

static void step_of(team *t, size_t k)
{
    gcomp_step step = step_with(1, 0.5f, 0);
    step.epoch = (uint32_t)(k / 3);
    if (k >= 13) step.learning_rate = 0.25f;
    fill(t, k / 6); /* the norm changes now and then */
    team_step(t, &step);
    CHECK(all_are(t, GCOMP_OK));
}

static const struct {
    const char *codec, *schedule;
    size_t levels; /* that the steps come to */
} breaks[] = {{"powersgd:rank=1|powersgd:rank=3|none|powersgd:rank=2", "warmup:epochs=4", 4},
              {"topk:density=0.002", "warmup:epochs=4", 5},
              {"dgc:density=0.2,warmup=0|dgc:density=0.05,warmup=0", "accordion:every=1", 2},
              {"powersgd:rank=4|powersgd:rank=1", "accordion:every=1", 2},
              {"powersgd:rank=4|powersgd:rank=1", "accordion:every=1,scope=model", 2},
              {"topk:density=0.5|topk:density=0.1|powersgd:rank=1", "bytes:target=900,every=2", 3},
              {"int|int:bits=4|powersgd:rank=1", "error:target=0.2,every=2", 3}};

/* Adds the codec that tensor 0 has now to those seen, unless it is among them. Returns how many
   were seen. */
static size_t count_levels(const team *t, char seen[8][160], size_t count)
{
    const char *codec = codec_of(t, 0);
    size_t i;
    for (i = 0; i < count && strcmp(seen[i], codec); i++) {}
    if (i == count) strcpy(seen[count++], codec);
    return count;
}

static void test_a_run_goes_on_after_a_break_with_the_same_bits(void)
{
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 0; c < sizeof breaks / sizeof *breaks; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        saved saves[BREAK_STEPS];
        uint64_t digests[BREAK_STEPS];
        char seen[8][160];
        size_t levels = 0;
        team t, after;
        team_open(&t, 2, &desc, tensors, 3);
        for (size_t k = 0; k < BREAK_STEPS; k++) {
            save_team(&t, &saves[k]);
            levels = count_levels(&t, seen, levels);
            step_of(&t, k);
            digests[k] = digest_of(&t);
        }
        if (levels != breaks[c].levels) printf("# %s: %d levels\n", breaks[c].schedule, (int)levels);
        CHECK(levels == breaks[c].levels);
        for (size_t from = 1; from < BREAK_STEPS; from++) {
            team_open(&after, 2, &desc, tensors, 3);
            load_team(&after, &saves[from], 2);
            for (size_t k = from; k < BREAK_STEPS; k++) {
                step_of(&after, k);
                CHECK(digest_of(&after) == digests[k]);
            }
            CHECK(same_saves(&t, &after));
            team_close(&after);
        }
        for (size_t k = 0; k < BREAK_STEPS; k++) drop(&saves[k]);
        team_close(&t);
    }
}

/* Rank 0 has the same gradients whatever the number of workers: accordion decides the same. */
static void test_a_schedule_goes_on_with_another_number_of_workers(void)
{
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 2; c < 7; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        for (size_t from = 4; from < 12; from += 7) {
            saved saves, again;
            team t, after;
            team_open(&t, 3, &desc, tensors, 3);
            for (size_t k = 0; k < from; k++) step_of(&t, k);
            save_team(&t, &saves);
            for (size_t world = 1; world <= 4; world += 3) {
                team_open(&after, world, &desc, tensors, 3);
                load_team(&after, &saves, 3);
                save_team(&after, &again);
                CHECK(again.length[0] == saves.length[0]);
                CHECK(!memcmp(again.bytes[0] + 44, saves.bytes[0] + 44, 8 + 8 * 3 + 16)); /* codecs, levels, what all know */
                for (size_t k = from; k < BREAK_STEPS; k++) {
                    step_of(&after, k);
                    if (world == 1 && c < 5) step_of(&t, k);
                    if (world == 1 && c < 5) CHECK(!strcmp(codec_of(&t, 0), "differs") || has_codec(&after, 0, codec_of(&t, 0)));
                }
                drop(&again);
                team_close(&after);
            }
            drop(&saves);
            team_close(&t);
        }
    }
    CHECK(heap.blocks == 0);
}

/* Workers get these ranks; rank 0 stands first in the team again. */
static void regroup(team *t, size_t world, const int *ranks)
{
    gcomp *gc[WORLD_MAX] = {0};
    gcomp_comm comm;
    memset(&comm, 0, sizeof comm);
    comm.world = (int)world;
    for (size_t w = 0; w < t->world; w++) {
        comm.rank = ranks[w];
        CHECK(gcomp_regroup(t->gc[w], &comm, NULL) == GCOMP_OK);
        gc[ranks[w]] = t->gc[w];
    }
    memcpy(t->gc, gc, sizeof gc);
}

/* The level of a tensor in a save. */
/* The place of a codec in its list, from the record of a tensor. */
static size_t saved_level(const saved *s, size_t w, size_t tensor)
{
    const uint8_t *record = s->bytes[w] + 60;
    while (tensor--) record += 64 + get_word(record, 8) + get_word(record + 8, 8);
    return get_word(record + 60, 4);
}

static void test_who_joins_has_the_levels_of_the_others(void)
{
    static const int same[2] = {0, 1};
    const gcomp_tensor tensors[3] = {matrix, other, bias};
    for (size_t c = 0; c < sizeof breaks / sizeof *breaks; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        saved saves;
        team t;
        team_open(&t, 2, &desc, tensors, 3);
        for (size_t k = 0; k < 10; k++) step_of(&t, k);
        save_team(&t, &saves);
        CHECK(saved_level(&saves, 1, 0) > 0 || saved_level(&saves, 1, 1) > 0);
        regroup(&t, 3, same);
        desc.comm.rank = 2;
        desc.comm.world = 3;
        CHECK(gcomp_open(&t.gc[2], &desc) == GCOMP_OK);
        for (size_t i = 0; i < 3; i++) {
            CHECK(gcomp_add_tensor(t.gc[2], tensors + i) == GCOMP_OK);
            t.grad[2][i] = (float *)calloc(t.n[i], sizeof(float));
        }
        CHECK(gcomp_join(t.gc[2], saves.bytes[c % 2], saves.length[c % 2]) == GCOMP_OK);
        t.world = 3;
        for (size_t k = 10; k < BREAK_STEPS; k++) {
            CHECK(strcmp(codec_of(&t, 0), "differs") && strcmp(codec_of(&t, 1), "differs"));
            step_of(&t, k);
        }
        drop(&saves);
        team_close(&t);
    }
    CHECK(heap.blocks == 0);
}

static void test_a_new_rank_0_does_not_judge_by_half_an_epoch(void)
{
    static const int swap[2] = {1, 0};
    static const float size[9] = {1, 1, 1, 1, 1, 1, 1, 4, 4};
    for (int model = 0; model < 2; model++) {
        for (int between = 0; between < 2; between++) {
            gcomp_desc desc = desc_of(LOW "|" HIGH, model ? "accordion:every=1,scope=model" : "accordion:every=1");
            size_t used[2];
            team t;
            team_open(&t, 2, &desc, &other, 1);
            for (uint32_t epoch = 0; epoch < 3; epoch++) epoch_of(&t, epoch, &size[epoch], 0);
            CHECK(has_codec(&t, 0, HIGH));
            if (!between) { /* in the midst of an epoch: three steps, two with the new rank 0 */
                gcomp_step step = step_with(1, -1, 3);
                team_step(&t, &step);
                CHECK(all_are(&t, GCOMP_OK));
            }
            for (size_t w = 0; w < 2; w++) used[w] = memory_of(t.gc[w]);
            regroup(&t, 2, swap);
            CHECK(memory_of(t.gc[0]) == used[0] && memory_of(t.gc[1]) == used[1] && used[0] > used[1]);
            for (uint32_t epoch = 3; epoch < 8; epoch++) {
                epoch_of(&t, epoch, &size[epoch], 0);
                CHECK(has_codec(&t, 0, HIGH)); /* up to the first whole sum, and from two on by them */
            }
            epoch_of(&t, 8, &size[8], 0);
            CHECK(has_codec(&t, 0, LOW));
            epoch_of(&t, 9, &size[8], 0);
            CHECK(has_codec(&t, 0, HIGH));
            team_close(&t);
        }
    }
    CHECK(heap.blocks == 0);
}

static void test_a_new_rank_0_controls_bytes_and_errors(void)
{
    static const int swap[2] = {1, 0};
    const gcomp_tensor tensors[2] = {matrix, other};
    for (size_t c = 5; c < 7; c++) {
        gcomp_desc desc = desc_of(breaks[c].codec, breaks[c].schedule);
        gcomp_statistics stats;
        char settled[160];
        team t;
        team_open(&t, 2, &desc, tensors, 2);
        for (size_t k = 0; k < 2; k++) step_of(&t, k);
        regroup(&t, 2, swap);
        for (size_t k = 2; k < 30; k++) {
            fill(&t, k);
            team_step(&t, NULL);
            CHECK(all_are(&t, GCOMP_OK));
        }
        strcpy(settled, codec_of(&t, 0));
        CHECK(strcmp(settled, "differs") && strncmp(settled, desc.codec, strlen(settled)));
        CHECK(gcomp_stats(t.gc[0], &stats) == GCOMP_OK && (c == 5 || stats.relative_error > 0));
        regroup(&t, 2, swap); /* what it has settled on stays */
        CHECK(has_codec(&t, 0, settled));
        team_close(&t);
    }
}

static void test_regroup_without_memory_changes_no_schedule(void)
{
    const gcomp_tensor tensors[2] = {matrix, other};
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    gcomp_comm comm;
    gcomp_result result = GCOMP_OUT_OF_MEMORY;
    saved before, after;
    team t;
    memset(&comm, 0, sizeof comm);
    comm.world = 2;
    team_open(&t, 2, &desc, tensors, 2);
    for (size_t k = 0; k < 8; k++) step_of(&t, k);
    save_team(&t, &before);
    for (size_t left = 0; result != GCOMP_OK; left++) {
        size_t used = memory_of(t.gc[1]), held = heap.blocks;
        heap.left = left;
        result = gcomp_regroup(t.gc[1], &comm, NULL);
        heap.left = SIZE_MAX;
        CHECK(result == (left < 5 ? GCOMP_OUT_OF_MEMORY : GCOMP_OK)); /* frames, two sums, scratch, buffers */
        if (result == GCOMP_OK || left > 9) break;
        CHECK(memory_of(t.gc[1]) == used && heap.blocks == held);
        save_team(&t, &after);
        CHECK(after.length[1] == before.length[1] && !memcmp(after.bytes[1], before.bytes[1], before.length[1]));
        drop(&after);
    }
    CHECK(save_size(t.gc[1]) == before.length[0]);
    drop(&before);
    team_close(&t);
    CHECK(heap.blocks == 0);
}

static void test_saves_at_other_levels_are_told_apart(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "warmup:epochs=1"), changed = desc_of(LOW "|" HIGH, "warmup:epochs=2");
    gcomp_step first = GCOMP_STEP, second = step_with(1, -1, 1);
    saved low, high;
    team a, b, c;
    team_open(&a, 2, &desc, &matrix, 1);
    team_open(&b, 2, &desc, &matrix, 1);
    team_open(&c, 2, &changed, &matrix, 1);
    fill(&a, 1);
    fill(&b, 1);
    team_step(&a, &first);
    team_step(&b, &second);
    save_team(&a, &low);
    save_team(&b, &high);
    CHECK(low.length[0] == high.length[0] && saved_level(&low, 0, 0) == 0 && saved_level(&high, 0, 0) == 1);
    CHECK(gcomp_take_over(a.gc[0], low.bytes[1], low.length[1]) == GCOMP_OK);
    CHECK(gcomp_take_over(a.gc[0], high.bytes[1], high.length[1]) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[0]), "'matrix': it is at another codec"));
    free(low.bytes[1]);
    low.bytes[1] = high.bytes[1];
    high.bytes[1] = NULL;
    CHECK(gcomp_load(a.gc[0], (const void *const *)(const void *)low.bytes, low.length, 2, NULL) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[0]), "save 1: it is at other codecs"));
    CHECK(gcomp_join(c.gc[0], high.bytes[0], high.length[0]) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(c.gc[0]), "another schedule"));
    drop(&low);
    drop(&high);
    team_close(&a);
    team_close(&b);
    team_close(&c);
}

/* gcomp_step.learning_rate is rank 0's: what the others were told is in their saves, and does
   not matter there. */
static void test_saves_load_together_whatever_the_others_were_told_of_the_learning_rate(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    const float size[1] = {1};
    for (size_t world = 2; world <= 4; world++) {
        saved saves;
        team t, after;
        team_open(&t, 3, &desc, &matrix, 1);
        t.knows_alone = 1;
        for (uint32_t epoch = 0; epoch < 3; epoch++) epoch_of(&t, epoch, size, 1);
        CHECK(has_codec(&t, 0, HIGH));
        save_team(&t, &saves);
        team_open(&after, world, &desc, &matrix, 1);
        after.knows_alone = 1;
        load_team(&after, &saves, 3);
        CHECK(has_codec(&after, 0, HIGH));
        epoch_of(&after, 2, size, 1); /* no fall: the rate of rank 0 was 1, that of worker 1 was 7 */
        CHECK(has_codec(&after, 0, HIGH));
        epoch_of(&after, 2, size, 0.5f);
        CHECK(has_codec(&after, 0, LOW));
        drop(&saves);
        team_close(&after);
        team_close(&t);
    }
}

static void test_saves_of_other_epochs_are_told_apart(void)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, "accordion:every=1");
    const float size[1] = {1};
    saved now, later;
    team t, b;
    team_open(&t, 2, &desc, &matrix, 1);
    team_open(&b, 2, &desc, &matrix, 1);
    epoch_of(&t, 0, size, 0);
    epoch_of(&b, 1, size, 0);
    save_team(&t, &now);
    save_team(&b, &later);
    free(now.bytes[1]);
    now.bytes[1] = later.bytes[1];
    later.bytes[1] = NULL;
    CHECK(gcomp_load(t.gc[0], (const void *const *)(const void *)now.bytes, now.length, 2, NULL) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(t.gc[0]), "save 1: it is in another epoch"));
    drop(&now);
    drop(&later);
    team_close(&t);
    team_close(&b);
}

/* Each bit of a save is changed in turn, and the checksum with it. The save is refused and
   nothing has changed, or it is taken as it stands. */
static void test_forged_schedules_are_refused_or_taken_as_they_stand(void)
{
    static const gcomp_tensor small[2] = {{"w", 6, 5, 0, GCOMP_F32, NULL}, {"b", 5, 0, 0, GCOMP_F32, NULL}};
    static const char *const lists_of[2] = {"powersgd:rank=1|none", "sign|topk:density=0.1|powersgd:rank=1"};
    static const char *const schedules[3] = {"accordion:every=1,eta=0.01", "accordion:every=1,eta=0.01,scope=model", "bytes:target=100,every=3"};
    const gcomp_step first = GCOMP_STEP;
    for (size_t c = 0; c < 3; c++) {
        gcomp_desc desc = desc_of(lists_of[c / 2], schedules[c]);
        size_t refused = 0, taken = 0, length;
        saved saves;
        team t, fresh;
        desc.min_elements = 1;
        team_open(&t, 1, &desc, small, 2);
        for (size_t k = 0; k < 8; k++) step_of(&t, k);
        save_team(&t, &saves);
        length = saves.length[0];
        team_open(&fresh, 1, &desc, small, 2);
        for (size_t bit = 8 * 48; bit < 8 * (length - 4); bit++) {
            uint8_t bad[2048], had[2048], has[2048];
            const void *list = bad;
            size_t n;
            CHECK(length <= sizeof bad && gcomp_save(fresh.gc[0], had, sizeof had, &n) == GCOMP_OK && n == length);
            memcpy(bad, saves.bytes[0], length);
            bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
            put_word(bad + length - 4, plain_crc(0, bad, length - 4), 4);
            gcomp_result result = gcomp_load(fresh.gc[0], &list, &length, 1, NULL);
            CHECK(result == GCOMP_OK || result == GCOMP_CORRUPT || result == GCOMP_SAVE_MISMATCH);
            CHECK(gcomp_save(fresh.gc[0], has, sizeof has, &n) == GCOMP_OK && n == length);
            CHECK(!memcmp(has, result == GCOMP_OK ? bad : had, length));
            refused += result != GCOMP_OK;
            taken += result == GCOMP_OK;
            if (bit % 16) continue;
            fill(&fresh, bit); /* and steps go on */
            team_step(&fresh, &first);
            CHECK(fresh.result[0] == GCOMP_OK);
        }
        if (refused < 300 || taken < 1000) printf("# %s: %d refused, %d taken\n", schedules[c], (int)refused, (int)taken);
        CHECK(refused > 300 && taken > 1000);
        drop(&saves);
        team_close(&t);
        team_close(&fresh);
    }
}

/* Words of a save that no schedule can have, for each rule, in the order of the manual. The save
   is that of rank 0. */
static void test_what_no_schedule_knows_is_refused(void)
{
    static const struct {
        size_t at; /* behind the levels of tensors */
        uint64_t word;
        int bytes;
    } accordion[] = {{0, 1, 4}, {4, 2, 4}, {4, 0, 4}, {12, 0x7f800000u, 4}, {12, 0x80000000u, 4}, {12, 0x7fc00000u, 4}, {16 + 140, 2, 4},
                     {16 + 144, 2, 4}, {16 + 148, 0x7ff0000000000000u, 8}, {16 + 148, 0x8000000000000000u, 8},
                     {16 + 156, 0x7ff8000000000000u, 8}, {16 + 164, 0x7f800001u, 4}},
      bytes[] = {{0, 3, 4}, {0, 1, 4}, {16 + 140, 3, 4}, {16 + 144, 0xffffffffu, 4}, {16 + 148, 2, 4}, {16 + 152, 3, 4},
                 {16 + 156, 0xbff0000000000000u, 8}, {16 + 164, 0x7ff0000000000000u, 8}, {16 + 172, 0x8000000000000000u, 8}};
    static const gcomp_tensor small = {"w", 6, 5, 0, GCOMP_F32, NULL};
    for (int c = 0; c < 2; c++) {
        gcomp_desc desc = desc_of(c ? "sign|topk:density=0.1|powersgd:rank=1" : "powersgd:rank=1|none",
                                  c ? "bytes:target=1e9,every=3" : "accordion:every=1");
        const size_t count = c ? sizeof bytes / sizeof *bytes : sizeof accordion / sizeof *accordion;
        saved saves;
        team t;
        desc.min_elements = 1;
        team_open(&t, 1, &desc, &small, 1);
        step_of(&t, 0);
        save_team(&t, &saves);
        uint8_t *s = saves.bytes[0];
        const size_t length = saves.length[0];
        const void *list = s;
        for (size_t i = 0; i <= count; i++) {
            uint8_t had[8];
            size_t at = 60 + get_word(s + 52, 8) + (c ? bytes : accordion)[i % count].at;
            int n = (c ? bytes : accordion)[i % count].bytes;
            memcpy(had, s + at, 8);
            if (i < count) put_word(s + at, (c ? bytes : accordion)[i].word, n);
            put_word(s + length - 4, plain_crc(0, s, length - 4), 4);
            gcomp_result result = gcomp_load(t.gc[0], &list, &length, 1, NULL);
            if (result != (i < count ? GCOMP_CORRUPT : GCOMP_OK)) printf("# rule %d, case %d\n", c, (int)i);
            CHECK(result == (i < count ? GCOMP_CORRUPT : GCOMP_OK));
            memcpy(s + at, had, 8);
        }
        drop(&saves);
        team_close(&t);
    }
}

static void test_workers_with_other_schedules_are_named(void)
{
    static const struct {
        const char *schedule[2], *codec; /* of the second worker */
        const char *part;
    } cases[] = {
        {{"accordion", "accordion:eta=0.4"}, LOW "|" HIGH, "rank 1 has a parameter of desc.schedule 0.4, rank 0 has a parameter of desc.schedule 0.5"},
        {{"accordion", "accordion:every=9"}, LOW "|" HIGH, "rank 1 has a parameter of desc.schedule 9"},
        {{"bytes:target=100", "bytes:target=101"}, LOW "|" HIGH, "desc.schedule 101"},
        {{"accordion", "error:target=0.1"}, LOW "|" HIGH, "rank 1 has desc.schedule error, rank 0 has desc.schedule accordion"},
        {{"accordion", "accordion"}, LOW "|topk:density=0.02", "|topk:density=0.02"}, /* the first is the same, the second is not */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_desc desc = desc_of(LOW "|" HIGH, cases[c].schedule[0]), second = desc_of(cases[c].codec, cases[c].schedule[1]);
        team t;
        team_open(&t, 2, &desc, &matrix, 1);
        gcomp_close(t.gc[1]);
        second.comm.rank = 1;
        second.comm.world = 2;
        CHECK(gcomp_open(&t.gc[1], &second) == GCOMP_OK && gcomp_add_tensor(t.gc[1], &matrix) == GCOMP_OK);
        team_step(&t, NULL);
        CHECK(all_are(&t, GCOMP_MISMATCH) && strstr(gcomp_error(t.gc[0]), cases[c].part));
        team_close(&t);
    }
}

/* ---------------- hostile frames */

static size_t hostile_rank, hostile_call, hostile_at;

static uint8_t hostile_byte;
static int hostile_seal;

/* Another byte in what one worker sent, with a checksum that fits. */
static void hostile(size_t call, uint8_t *all, size_t stride)
{
    uint8_t *p = all + hostile_rank * stride;
    if (call != hostile_call) return;
    p[hostile_at] = hostile_byte;
    if (call == 0 && hostile_seal) put_word(p + 60, plain_crc(0, p, 60), 4);
    if (call == 1 && hostile_seal) {
        uint8_t step[8];
        put_word(step, 3, 8);
        put_word(p + stride - 4, plain_crc(plain_crc(0, step, 8), p, stride - 4), 4);
    }
}

/* Three steps; in the fourth rank 0 has each tensor switch (tensors), or all (not). */
static void before_a_switch(team *t, int tensors, gcomp_step *step)
{
    gcomp_desc desc = desc_of(LOW "|" HIGH, tensors ? "accordion:every=1" : "warmup:epochs=1");
    const gcomp_tensor both[2] = {matrix, other};
    *step = default_step();
    team_open(t, 2, &desc, both, 2);
    for (int k = 0; k < 3; k++) {
        step->epoch = tensors ? (uint32_t)k / 2 : 0;
        fill(t, 1);
        team_step(t, step);
        CHECK(all_are(t, GCOMP_OK));
    }
    if (tensors) { /* norms of epochs 0 and 1 are 2 and 1 of these gradients */
        for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(t->gc[w], 0) == GCOMP_OK);
        for (int k = 0; k < 3; k++) {
            step->epoch = k ? (uint32_t)k - 1 : 0;
            for (size_t w = 0; w < 2; w++)
                for (size_t i = 0; i < 2; i++)
                    for (size_t j = 0; j < t->n[i]; j++) t->grad[w][i][j] = k == 2 ? 2 : 1;
            team_step(t, step);
            CHECK(all_are(t, GCOMP_OK));
        }
    }
    step->epoch++;
    fill(t, 2);
}

static void test_decisions_that_are_none_are_refused_by_all(void)
{
    static const struct {
        int tensors;
        size_t rank, call, at;
        uint8_t byte;
        int seal;
    } cases[] = {
        {0, 0, 0, 13, 3, 1}, {0, 0, 0, 13, 255, 1}, {0, 0, 0, 13, 1, 0}, {0, 1, 0, 13, 1, 1},
        {1, 0, 0, 13, 1, 1}, {1, 0, 0, 13, 254, 1}, {1, 1, 0, 13, 255, 1},
        {1, 0, 1, 0, 2, 1},  {1, 0, 1, 1, 255, 1}, {1, 0, 1, 0, 0, 0},  {1, 0, 1, 5, 77, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        gcomp_step step;
        team t;
        before_a_switch(&t, cases[c].tensors, &step);
        hostile_rank = cases[c].rank;
        hostile_call = cases[c].call;
        hostile_at = cases[c].at;
        hostile_byte = cases[c].byte;
        hostile_seal = cases[c].seal;
        t.tamper = hostile;
        uint64_t digest = digest_of(&t);
        team_step(&t, &step);
        for (size_t w = 0; w < 2; w++) /* a worker sees a change of its own frame */
            CHECK(t.result[w] == (cases[c].call                            ? GCOMP_CHECKSUM_MISMATCH
                                  : cases[c].seal && w != cases[c].rank ? GCOMP_MISMATCH
                                                                           : GCOMP_CALLBACK_FAILED));
        CHECK(digest_of(&t) == digest && has_codec(&t, 0, LOW) && has_codec(&t, 1, LOW));
        t.tamper = NULL;
        team_step(&t, &step); /* and it can be tried again */
        CHECK(all_are(&t, GCOMP_OK) && has_codec(&t, 0, HIGH) && has_codec(&t, 1, HIGH));
        CHECK(t.strides[1] == 6 || !cases[c].tensors);
        team_close(&t);
    }
}

static void test_decisions_damaged_on_one_worker_are_named_in_the_next_frame(void)
{
    gcomp_step step;
    team t;
    before_a_switch(&t, 1, &step);
    hostile_rank = 0;
    hostile_call = 1;
    hostile_at = 1;
    hostile_byte = 9;
    hostile_seal = 0;
    t.tamper = hostile;
    t.only = 1;
    team_step(&t, &step);
    CHECK(t.result[0] == GCOMP_OK && t.result[1] == GCOMP_CHECKSUM_MISMATCH && strstr(gcomp_error(t.gc[1]), "damaged"));
    t.tamper = NULL;
    team_step(&t, &step);
    CHECK(t.result[0] == GCOMP_OUT_OF_STEP && t.result[1] == GCOMP_OUT_OF_STEP);
    team_close(&t);
}

int main(void)
{
    RUN(test_a_run_goes_on_after_a_break_with_the_same_bits);
    RUN(test_a_schedule_goes_on_with_another_number_of_workers);
    RUN(test_who_joins_has_the_levels_of_the_others);
    RUN(test_a_new_rank_0_does_not_judge_by_half_an_epoch);
    RUN(test_a_new_rank_0_controls_bytes_and_errors);
    RUN(test_regroup_without_memory_changes_no_schedule);
    RUN(test_saves_at_other_levels_are_told_apart);
    RUN(test_saves_load_together_whatever_the_others_were_told_of_the_learning_rate);
    RUN(test_saves_of_other_epochs_are_told_apart);
    RUN(test_forged_schedules_are_refused_or_taken_as_they_stand);
    RUN(test_what_no_schedule_knows_is_refused);
    RUN(test_workers_with_other_schedules_are_named);
    RUN(test_decisions_that_are_none_are_refused_by_all);
    RUN(test_decisions_damaged_on_one_worker_are_named_in_the_next_frame);
    return test_end();
}
