/* Proves that the mean of vote payloads is what most workers say, as a counter in plain C finds
   it. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 300, N = 65536 + 531 };

static unsigned char *payload[MOST];
static const void *list[MOST];
static size_t lengths[MOST];
static float *x, *y, *expected;
static gcomp_codec vote;

static gcomp_exec exec_of(gcomp_isa isa)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    return exec;
}

static void encode(size_t w, const float *from, size_t n)
{
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = from;
    in.rows = n;
    if (!payload[w]) payload[w] = (unsigned char *)malloc(GCOMP_BOUND(N));
    CHECK(gcomp_encode(&vote, &in, NULL, payload[w], GCOMP_BOUND(N), &lengths[w]) == GCOMP_OK);
    CHECK(lengths[w] == 32 + (n + 7) / 8 && lengths[w] == gcomp_bound(&vote, n, NULL));
    list[w] = payload[w];
}

/* Worker w's element i; about half are negative, and where `ties`, exactly half of an even
   number of workers. */
static float element(size_t w, size_t i, size_t count, int ties)
{
    size_t place = ties ? (w + mix(i) % count) % count : 0;
    if (ties) return place < count / 2 ? -1.5f : 2.5f;
    return mix(w * 1000003 + i) & 1 ? -(float)(i % 9 + 1) : (float)(i % 5); /* zeros vote +1 */
}

static void make(size_t count, size_t n, int ties)
{
    memset(expected, 0, 4 * n);
    for (size_t w = 0; w < count; w++) {
        for (size_t i = 0; i < n; i++) {
            x[i] = element(w, i, count, ties);
            expected[i] += x[i] < 0 ? -1.0f : 1.0f;
        }
        encode(w, x, n);
    }
    for (size_t i = 0; i < n; i++) expected[i] = expected[i] < 0 ? -1.0f : 1.0f;
}

static void check_mean(size_t count, size_t n)
{
    for (int isa = GCOMP_ISA_SCALAR; isa <= GCOMP_ISA_NEON; isa++) {
        gcomp_exec exec = exec_of((gcomp_isa)isa);
        if (!isa_available((gcomp_isa)isa)) continue;
        memset(y, 0xA5, 4 * (n + 1));
        CHECK(gcomp_decode_mean(list, lengths, count, y, GCOMP_F32, n, &exec) == GCOMP_OK);
        int same = memcmp(y, expected, 4 * n) == 0;
        if (!same) printf("# %d payloads of %d, %s\n", (int)count, (int)n, gcomp_isa_name((gcomp_isa)isa));
        CHECK(same);
        CHECK(((const unsigned char *)(y + n))[0] == 0xA5); /* nothing behind the end */
    }
}

static void test_one_payload_decodes_to_signs(void)
{
    static const float values[] = {1, -1, 0, -0.0f, 1e-45f, -1e-45f, 3e38f, -3e38f, 0.5f};
    encode(0, values, 9);
    CHECK(gcomp_decode(payload[0], lengths[0], y, GCOMP_F32, 9, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 9; i++) CHECK(y[i] == (values[i] < 0 ? -1.0f : 1.0f));
    encode(1, y, 9);
    CHECK(!memcmp(payload[0], payload[1], lengths[0])); /* the same again */
    CHECK(lengths[0] == 34);
}

static void test_every_pattern_of_up_to_eight_votes_is_counted(void)
{
    for (size_t count = 1; count <= 8; count++) {
        size_t n = (size_t)1 << count;
        for (size_t w = 0; w < count; w++) {
            for (size_t i = 0; i < n; i++) x[i] = i >> w & 1 ? -1.0f : 1.0f;
            encode(w, x, n);
        }
        for (size_t i = 0; i < n; i++) {
            size_t negative = 0;
            for (size_t w = 0; w < count; w++) negative += i >> w & 1;
            expected[i] = 2 * negative > count ? -1.0f : 1.0f; /* a tie is +1 */
        }
        check_mean(count, n);
    }
}

static void test_majority_is_right_for_any_number_of_votes_of_any_length(void)
{
    static const size_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 127, 128, 255, 256, 300};
    static const size_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 511, 512, 513, 1009};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            make(counts[c], sizes[s], (c + s) % 2 == 0);
            check_mean(counts[c], sizes[s]);
        }
    make(6, N, 0);
    check_mean(6, N);
    make(21, N, 0);
    check_mean(21, N);
}

static void test_the_order_of_votes_does_not_matter(void)
{
    make(12, 700, 0);
    for (size_t w = 0; w < 6; w++) {
        const void *other = list[w];
        list[w] = list[11 - w];
        list[11 - w] = other;
    }
    check_mean(12, 700);
}

static void test_a_vote_among_other_payloads_is_a_number(void)
{
    static unsigned char other[GCOMP_BOUND(100)];
    const void *both[2];
    size_t both_lengths[2];
    gcomp_codec none;
    gcomp_input in;
    size_t length = 0;
    for (size_t i = 0; i < 100; i++) x[i] = (float)i - 50;
    encode(0, x, 100);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = x;
    in.rows = 100;
    CHECK(gcomp_codec_parse(&none, "none", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&none, &in, NULL, other, sizeof other, &length) == GCOMP_OK);
    both[0] = payload[0];
    both[1] = other;
    both_lengths[0] = lengths[0];
    both_lengths[1] = length;
    CHECK(gcomp_decode_mean(both, both_lengths, 2, y, GCOMP_F32, 100, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 100; i++) CHECK(y[i] == 0.5f * ((x[i] < 0 ? -1.0f : 1.0f) + x[i]));
    CHECK(gcomp_decode_add(payload[0], lengths[0], 0.25f, y, GCOMP_F32, 100, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 100; i++) CHECK(y[i] == 0.5f * ((x[i] < 0 ? -1.0f : 1.0f) + x[i]) + (x[i] < 0 ? -0.25f : 0.25f));
}

static gcomp *open_one(int rank, int world, size_t n)
{
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_tensor tensor;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm.rank = rank;
    desc.comm.world = world;
    tensor.name = "w";
    tensor.rows = n;
    tensor.codec = "vote";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(tensor_residual(gc, 0) == NULL);
    return gc;
}

static void test_commit_takes_any_number_of_votes(void)
{
    static const size_t counts[] = {1, 2, 5, 8, 9, 30};
    for (size_t c = 0; c < 6; c++)
        for (int own = 0; own < 2; own++) {
            size_t n = 1009, count = counts[c];
            gcomp *gc = open_one(0, 1, n);
            make(count, n, 0);
            for (size_t i = 0; i < n; i++) x[i] = element(count / 2, i, count, 0);
            CHECK(gcomp_commit(gc, 0, x, own ? list[count / 2] : NULL, own ? lengths[count / 2] : 0, list, lengths, count) ==
                  GCOMP_OK);
            CHECK(!memcmp(x, expected, 4 * n));
            gcomp_close(gc);
        }
}

static void test_retain_subtracts_the_sign(void)
{
    static float e[100];
    gcomp_input in;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (size_t i = 0; i < 100; i++) x[i] = (float)i - 50;
    encode(0, x, 100);
    in.grad = x;
    in.rows = 100;
    in.residual = e;
    memset(e, 0, sizeof e);
    CHECK(gcomp_retain(payload[0], lengths[0], &in, e, NULL) == GCOMP_OK);
    for (size_t i = 0; i < 100; i++) CHECK(e[i] == x[i] - (x[i] < 0 ? -1.0f : 1.0f));
}

static void test_a_step_gives_the_majority_to_all_workers(void)
{
    for (int world = 1; world <= 12; world++) {
        enum { LENGTH = 1500 };
        gcomp *gc[12];
        gcomp_request q[12];
        float *grad[12];
        int done = 0;
        memset(expected, 0, 4 * LENGTH);
        memset(q, 0, sizeof q);
        for (int w = 0; w < world; w++) {
            gc[w] = open_one(w, world, LENGTH);
            grad[w] = (float *)malloc(4 * LENGTH);
            for (size_t i = 0; i < LENGTH; i++) {
                grad[w][i] = element((size_t)w, i, (size_t)world, world % 2 == 0 && i % 2);
                expected[i] += grad[w][i] < 0 ? -1.0f : 1.0f;
            }
            CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad[w]) == GCOMP_OK);
        }
        while (!done) {
            for (int w = 0; w < world; w++) CHECK(gcomp_step_next(gc[w], &q[w]) == GCOMP_OK);
            done = q[0].kind != GCOMP_ALLGATHER;
            for (int w = 0; w < world && !done; w++)
                for (int s = 0; s < world; s++)
                    memcpy((char *)q[w].recv + (size_t)s * q[w].stride, q[s].send, q[s].bytes[s]);
            for (int w = 0; w < world && !done; w++) CHECK(gcomp_step_done(gc[w], q[w].id, 0) == GCOMP_OK);
        }
        for (int w = 0; w < world; w++) {
            int right = 1;
            CHECK(q[w].kind == GCOMP_DONE && gcomp_step_commit(gc[w]) == GCOMP_OK);
            for (size_t i = 0; i < LENGTH; i++) right = right && grad[w][i] == (expected[i] < 0 ? -1.0f : 1.0f);
            CHECK(right);
            gcomp_close(gc[w]);
            free(grad[w]);
        }
    }
}

static void test_hostile_votes_are_refused_before_anything_is_written(void)
{
    make(9, 100, 0);
    payload[8][lengths[8] - 1] |= 0x80; /* padding */
    for (size_t i = 0; i < 100; i++) y[i] = 7;
    CHECK(gcomp_decode_mean(list, lengths, 9, y, GCOMP_F32, 100, NULL) == GCOMP_RESERVED_BITS);
    for (size_t i = 0; i < 100; i++) CHECK(y[i] == 7);
    payload[8][lengths[8] - 1] &= 0x7f;
    lengths[8]--;
    CHECK(gcomp_decode_mean(list, lengths, 9, y, GCOMP_F32, 100, NULL) == GCOMP_TRUNCATED);
    payload[8][24] = 1; /* there are no parameters */
    lengths[8]++;
    CHECK(gcomp_decode_mean(list, lengths, 9, y, GCOMP_F32, 100, NULL) != GCOMP_OK && y[0] == 7);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Not a check: what the bits of 16 workers take against decoding them one by one. */
static void print_speed(void)
{
    double whole = 1e9, one = 1e9;
    make(16, N, 0);
    for (int run = 0; run < 20; run++) {
        double from = now();
        if (gcomp_decode_mean(list, lengths, 16, y, GCOMP_F32, N, NULL)) return;
        from = now() - from;
        whole = from < whole ? from : whole;
        from = now();
        for (size_t w = 0; w < 16; w++)
            if (gcomp_decode_add(list[w], lengths[w], 1, y, GCOMP_F32, N, NULL)) return;
        from = now() - from;
        one = from < one ? from : one;
    }
    printf("# majority of 16 workers: %.1f GB/s of means, %.1f times as fast as adding them one by one\n",
           4e-9 * (double)N / whole, one / whole);
}

int main(void)
{
    x = (float *)malloc(4 * (N + 1));
    y = (float *)malloc(4 * (N + 1));
    expected = (float *)malloc(4 * (N + 1));
    CHECK(gcomp_codec_parse(&vote, "vote", NULL, 0) == GCOMP_OK && vote.method == 9);
    RUN(test_one_payload_decodes_to_signs);
    RUN(test_every_pattern_of_up_to_eight_votes_is_counted);
    RUN(test_majority_is_right_for_any_number_of_votes_of_any_length);
    RUN(test_the_order_of_votes_does_not_matter);
    RUN(test_a_vote_among_other_payloads_is_a_number);
    RUN(test_commit_takes_any_number_of_votes);
    RUN(test_retain_subtracts_the_sign);
    RUN(test_a_step_gives_the_majority_to_all_workers);
    RUN(test_hostile_votes_are_refused_before_anything_is_written);
    print_speed();
    for (size_t w = 0; w < MOST; w++) free(payload[w]);
    free(x);
    free(y);
    free(expected);
    return test_end();
}
