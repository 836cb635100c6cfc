/* Proves of gathers that grow with the workers: with GCOMP_AGGREGATE_AUTO nobody receives more than an uncompressed sum would bring,
   gcomp_describe says from how many workers on that matters, and what waited in residuals comes out. */

#include "group.h"

/* No step does as with none for these: the first ones change what the optimizer does, and nobody knows how much the others send. */
static int stays(const char *codec)
{
    static const char *const names[] = {"dgc", "fetch", "dct", "vote", "strom", "nonzero", "adacomp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(codec, names[i], strlen(names[i]))) return 1;
    return strstr(codec, "momentum=") != NULL;
}

static int no_exchange(void *user, const void *send, const size_t *sent, void *recv, const size_t *came)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)came;
    return 1;
}

/* Bytes of a step, of one tensor. 0: this number of workers cannot use the codec. */
static size_t bytes_of_step(const char *codec, size_t rows, int world, int exchanges)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    gcomp_tensor tensor = {"w", 0, 0, 0, GCOMP_F32, NULL};
    gcomp_round rounds[GCOMP_ROUNDS];
    size_t bytes = 0;
    desc.comm.world = world;
    desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    if (exchanges) desc.comm.alltoallv = no_exchange;
    tensor.rows = rows;
    tensor.cols = 64;
    tensor.codec = codec;
    if (gcomp_rounds(&desc, &tensor, 1, NULL, rounds)) return 0;
    for (int r = 0; r < GCOMP_ROUNDS; r++) bytes += rounds[r].sent;
    return bytes;
}

static void test_no_codec_sends_more_than_none(void)
{
    static const int worlds[] = {1, 2, 3, 4, 8, 15, 16, 17, 64, 256, 1024, 4096};
    static const size_t rows[] = {1, 7, 100, 4000, 40000};
    size_t asked = 0, less = 0;
    for (size_t c = 0; c < ALL_CODECS; c++)
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                for (int exchanges = 0; exchanges < 2; exchanges++) {
                    const char *codec = codec_list[c].text;
                    const size_t none = bytes_of_step("none", rows[r], worlds[w], exchanges);
                    const size_t bytes = bytes_of_step(codec, rows[r], worlds[w], exchanges);
                    if (!bytes || stays(codec)) continue;
                    asked++;
                    less += bytes < none;
                    /* integers of 4 bytes, and the largest |p| twice */
                    const size_t more = strstr(codec, "intsum:bits=32") ? 8 : 0;
                    if (bytes > none + more) printf("# %s, %zu x 64, %d workers, %d: %zu of %zu\n", codec, rows[r], worlds[w], exchanges, bytes, none);
                    CHECK(bytes <= none + more);
                }
    CHECK(asked > 5000 && less > asked / 3);
}

/* Of 8 workers one sends 7/8 of what goes out and comes back, of many all: a seventh more. Beside that there are headers of shards and
   of sums for each worker, frames and lengths. */
static void test_where_a_part_of_the_mean_is_applied_bytes_do_not_grow(void)
{
    static const char *const codecs[] = {"topk:density=0.01,global=1", "topk:density=0.01,global=1+int:bits=4", "topk:density=0.01,global=1+sign"};
    static const int worlds[] = {8, 64, 256, 1024, 4096};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        size_t first = 0;
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
            const size_t others = (size_t)worlds[w] - 1, beside = (64 + 3 * 16) * others, sent = bytes_of_step(codecs[c], (size_t)1 << 20, worlds[w], 1);
            const size_t headers = 2 * 48 * others;
            if (!w) first = (sent + beside) / 7 * 8;
            printf("# %s of 2^26 elements, %d workers: %zu bytes\n", codecs[c], worlds[w], sent + beside);
            CHECK(sent + beside <= first / 50 * 51 + beside + headers); /* 2 %: sums that are rounded up */
        }
    }
    CHECK(bytes_of_step(codecs[0], (size_t)1 << 20, 4096, 1) <= bytes_of_step(codecs[0], (size_t)1 << 20, 8, 1) / 100 * 123);
}

/* int is 8.13 bits an element: from 8 workers on a gather is more than floats. */
static void test_a_step_does_as_with_none_and_residuals_come_out(void)
{
    enum { WORLD = 18, N = 3000 };
    static const char *const codecs[] = {"int", "topk:density=0.5+int"}, *const none[] = {"none", "none"};
    static const size_t n[] = {N, N};
    const gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    static float waits[N], sum[2][WORLD][N];
    char text[1000];
    group a, b;
    group_open(&a, WORLD, &desc, codecs, n, 2);
    group_open(&b, WORLD, &desc, none, n, 2);
    for (uint64_t step = 0; step < 3; step++) {
        group_fill(&a, step);
        for (size_t w = 0; w < WORLD; w++)
            for (size_t t = 0; t < 2; t++) {
                for (size_t i = 0; i < N; i++) waits[i] = step == 1 ? value_of(9, w, t, i) : 0;
                if (step == 1) CHECK(gcomp_residual_set(a.gc[w], t, waits) == GCOMP_OK);
                for (size_t i = 0; i < N; i++) sum[t][w][i] = ((float *)a.grad[w][t])[i] + waits[i];
                memcpy(b.grad[w][t], sum[t][w], sizeof sum[t][w]);
            }
        group_step(&a);
        group_step(&b);
        CHECK(all_are(&a, GCOMP_OK) && all_are(&b, GCOMP_OK));
        for (size_t w = 0; w < WORLD; w++)
            for (size_t t = 0; t < 2; t++) {
                size_t left = 0;
                const float *e = tensor_residual(a.gc[w], t);
                for (size_t i = 0; i < N; i++) left += e[i] != 0;
                CHECK(left == 0 && memcmp(a.grad[w][t], b.grad[w][t], 4 * N) == 0);
            }
    }
    gcomp_describe(a.gc[0], text, sizeof text);
    CHECK(strstr(text, "fp32, none (from 8 workers on a gather is more; with fewer: int)"));
    CHECK(strstr(text, "1.0 times less"));
    /* seven workers are few: they gather, and keep what they did not send */
    group_shrink(&a, 7);
    group_fill(&a, 4);
    group_step(&a);
    CHECK(all_are(&a, GCOMP_OK) && a.kind[a.carried - 1] == GCOMP_ALLGATHER);
    gcomp_describe(a.gc[0], text, sizeof text);
    CHECK(strstr(text, "a: 3000 fp32, int, at most ") && !strstr(text, "none"));
    CHECK(gcomp_residual_get(a.gc[0], 0, waits) == GCOMP_OK);
    size_t left = 0;
    for (size_t i = 0; i < N; i++) left += waits[i] != 0;
    CHECK(left > N / 2);
    group_close(&a);
    group_close(&b);
}

/* Who has no callback for sums, or names GATHER, has the codec all the same. */
static void test_who_cannot_sum_or_names_the_gather_has_it(void)
{
    gcomp_tensor tensor = {"w", 4096, 0, 0, GCOMP_F32, "int:bits=4"};
    for (int way = 0; way < 3; way++) {
        gcomp_desc desc = desc_of(way == 1 ? GCOMP_AGGREGATE_GATHER : GCOMP_AGGREGATE_AUTO);
        gcomp_round rounds[GCOMP_ROUNDS];
        gcomp_codec codec;
        char text[80];
        desc.comm.world = 64;
        if (way == 2) desc.comm.allgather = (int (*)(void *, const void *, void *, size_t))1;
        CHECK(gcomp_rounds(&desc, &tensor, 1, &codec, rounds) == GCOMP_OK);
        gcomp_codec_format(&codec, text, sizeof text);
        CHECK(rounds[0].kind == (way ? GCOMP_ALLGATHER : GCOMP_ALLREDUCE) && !strcmp(text, way ? "int:bits=4" : "none"));
    }
}

/* What alltoallv would save is told also where a tensor goes as with none without it. */
static void test_the_hint_counts_from_what_is_sent_now(void)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
    gcomp_tensor tensor = {"w", 64 * 1024, 0, 0, GCOMP_F32, "int:bits=4"};
    gcomp *gc;
    char text[600], expected[100];
    desc.comm.world = 64;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    gcomp_describe(gc, text, sizeof text);
    snprintf(expected, sizeof expected, "up to %zu bytes less",
             bytes_of_step("none", 1024, 64, 0) - bytes_of_step("int:bits=4", 1024, 64, 1));
    CHECK(strstr(text, "from 16 workers on") && strstr(text, expected));
    gcomp_close(gc);
}

/* Two shots send as many halves as a sum of halves: then there is no hint. Of one worker and of two the sentence says no more
   than is so. */
static void test_what_is_said_of_few_workers_and_of_halves(void)
{
    for (int way = 0; way < 2; way++) {
        gcomp_desc desc = desc_of(GCOMP_AGGREGATE_AUTO);
        gcomp_tensor tensor = {"w", 64 * 1024, 0, 0, GCOMP_F32, way ? "topk:density=1" : "bf16"};
        gcomp *gc;
        char text[600];
        desc.comm.world = way ? 2 : 4;
        desc.comm.allreduce_dtypes = 1u << GCOMP_BF16;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        gcomp_describe(gc, text, sizeof text);
        CHECK(way ? strstr(text, "none (from 2 workers on a gather is more than a sum)") != NULL
                  : strstr(text, " in a sum") && !strstr(text, "hint"));
        gcomp_close(gc);
    }
}

/* A vector that gets company has its new place at once. */
static void test_a_vector_that_was_alone_is_described_as_it_will_travel(void)
{
    gcomp_desc desc = desc_of(GCOMP_AGGREGATE_SCATTER);
    gcomp_tensor first = {"a", 100000, 0, 0, GCOMP_F32, NULL}, second = {"b", 100, 100, 0, GCOMP_F32, NULL};
    gcomp *gc;
    char before[600], after[600];
    desc.codec = "int";
    desc.comm.world = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &first) == GCOMP_OK && gcomp_add_tensor(gc, &second) == GCOMP_OK);
    gcomp_describe(gc, before, sizeof before);
    CHECK(gcomp_prepare(gc) == GCOMP_OK);
    gcomp_describe(gc, after, sizeof after);
    CHECK(strstr(before, "a: 100000 fp32, none (a vector) scattered") && !strcmp(before, after));
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_what_is_said_of_few_workers_and_of_halves);
    RUN(test_a_vector_that_was_alone_is_described_as_it_will_travel);
    RUN(test_no_codec_sends_more_than_none);
    RUN(test_where_a_part_of_the_mean_is_applied_bytes_do_not_grow);
    RUN(test_a_step_does_as_with_none_and_residuals_come_out);
    RUN(test_who_cannot_sum_or_names_the_gather_has_it);
    RUN(test_the_hint_counts_from_what_is_sent_now);
    return test_end();
}
