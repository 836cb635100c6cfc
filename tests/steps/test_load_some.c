/* Proves of loads into a model that has changed, which take what fits. */

#include "checkpoint.h"

static team a, b;

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
            if (k == 0 && w) CHECK(load_some(b.gc[w], &own, &a.length[w], 1, report, sizeof report, &length) == GCOMP_OK);
            else CHECK(load_some(b.gc[w], saves, a.length, a.world, report, sizeof report, &length) == GCOMP_OK);
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
        CHECK(load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, NULL, 0, NULL) == GCOMP_OK);
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
        CHECK(load_some(b.gc[w], &own, &a.length[w], 1, report, sizeof report, &length) == GCOMP_OK);
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
        CHECK(load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, NULL, 0, &length) == GCOMP_OK && length == 0);
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
        CHECK(load_some(b.gc[0], &own, a.length, 1, report, capacity, &length) == GCOMP_OK && length == sizeof new_report - 1);
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
            CHECK(load_some(b.gc[w], (const void *const *)(const void *)a.save, a.length, 2, report, sizeof report, NULL) == GCOMP_OK);
            CHECK(strstr(report, "new: the save") && strstr(report, "gone: only the save") && strstr(report, "bias: ") && !strstr(report, "w: it"));
            CHECK(!strstr(report, "the schedule measures anew") == (w || k == 0));
            b.save[w] = save_of(b.gc[w], &b.length[w]);
            for (size_t i = 0; i < 660; i++) wrong += tensor_residual(a.gc[w], 0)[i % 600] != tensor_residual(b.gc[w], 1)[i % 600];
            CHECK(wrong == 0 && tensor_codec(a.gc[w], 0)->param[0] == tensor_codec(b.gc[w], 1)->param[0]);
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
        CHECK(gcomp_load(here, &list, &length, 1, NULL) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        if (strcmp(gcomp_error(here), cases[c].sentence)) printf("# %s\n", gcomp_error(here));
        CHECK(gcomp_join(here, save, length) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        CHECK(gcomp_take_over(here, save, length) == GCOMP_SAVE_MISMATCH && !strcmp(gcomp_error(here), cases[c].sentence));
        put_word(save + 4, 2, 4);
        CHECK(gcomp_load(here, &list, &length, 1, NULL) == GCOMP_UNSUPPORTED_VERSION);
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
        CHECK(gcomp_load(less ? three : two, &list, &length, 1, NULL) == GCOMP_SAVE_MISMATCH);
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
            const gcomp_result result = load_some(gc, &list, &length, 1, report, sizeof report, NULL);
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
    CHECK(load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_CORRUPT && strstr(gcomp_error(a.gc[0]), "tensor 'a': it is there twice"));
    team_close(&a);
}

static void test_wrong_calls_for_what_fits_are_refused(void)
{
    char report[8] = "before";
    size_t length = 7;
    team_open(&a, 2);
    team_save(&a);
    const void *own = a.save[0], *none = NULL;
    CHECK(load_some(NULL, &own, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(load_some(a.gc[0], NULL, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(load_some(a.gc[0], &own, NULL, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(load_some(a.gc[0], &own, a.length, 0, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(load_some(a.gc[0], &none, a.length, 1, NULL, 0, NULL) == GCOMP_INVALID_ARGUMENT);
    CHECK(load_some(a.gc[1], &own, a.length, 1, report, sizeof report, &length) == GCOMP_SAVE_MISMATCH);
    CHECK(strstr(gcomp_error(a.gc[1]), "another rank: of 0, and this worker is rank 1") && length == 7 && !*report);
    CHECK(gcomp_step_begin(a.gc[0], NULL) == GCOMP_OK && load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_abort(a.gc[0]) == GCOMP_OK && load_some(a.gc[0], &own, a.length, 1, NULL, 0, NULL) == GCOMP_OK);
    team_close(&a);
}

int main(void)
{
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
    return test_end();
}
