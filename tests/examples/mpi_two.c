/* Proves that exchanges over MPI between 2 ranks give the means and the residuals of the formulas.
   Run: mpirun -n 2 tests/mpi_two */

#include "mpi_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40, COLS = 60, N = ROWS * COLS };

static float grad[N], other[N], before[N];

/* 1 if both ranks hold the same bytes. */
static int same_on_both(const void *data, size_t bytes)
{
    int same = 0, all = 0;
    memcpy(other, data, bytes);
    MPI_Bcast(other, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    same = memcmp(other, data, bytes) == 0;
    MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

static gcomp *open_one(const char *codec, int with_gatherv, gcomp_aggregate aggregate)
{
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_tensor tensor;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm = gcomp_mpi_comm(&mpi);
    if (!with_gatherv) desc.comm.allgatherv = NULL;
    desc.aggregate = aggregate;
    tensor.name = "w";
    tensor.rows = ROWS;
    tensor.cols = COLS;
    tensor.codec = codec;
    if (gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &tensor)) MPI_Abort(MPI_COMM_WORLD, 1);
    return gc;
}

/* A small integer, so that sums and halves are exact. */
static float known(int rank, int step, size_t i)
{
    return (float)((int)((i * 7919 + (size_t)step * 104729 + (size_t)rank * 1299709) % 201) - 100);
}

static void fill(int step)
{
    for (size_t i = 0; i < N; i++) grad[i] = known(mpi.rank, step, i);
}

static void test_integers_add_and_the_largest_float_wins(void)
{
    static int8_t a[N];
    static int16_t b[N];
    static int32_t c[N];
    gcomp_comm comm = gcomp_mpi_comm(&mpi);
    size_t bad = 0;
    for (size_t i = 0; i < N; i++) {
        int x = (int)known(mpi.rank, 0, i);
        a[i] = (int8_t)(x / 2);
        b[i] = (int16_t)(x * 150);
        c[i] = x * 10000000;
        grad[i] = known(mpi.rank, 0, i) - 50;
    }
    CHECK((comm.allreduce_dtypes & (1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32)) != 0);
    CHECK(comm.allreduce(comm.user, a, N, GCOMP_I8) == 0);
    CHECK(comm.allreduce(comm.user, b, N, GCOMP_I16) == 0);
    CHECK(comm.allreduce(comm.user, c, N, GCOMP_I32) == 0);
    CHECK(comm.allreduce_max(comm.user, grad, N) == 0);
    for (size_t i = 0; i < N; i++) {
        int x = (int)known(0, 0, i), y = (int)known(1, 0, i);
        bad += a[i] != x / 2 + y / 2 || b[i] != (x + y) * 150 || c[i] != (x + y) * 10000000;
        bad += grad[i] != (float)((x > y ? x : y) - 50);
    }
    CHECK(bad == 0);
    CHECK(comm.allreduce(comm.user, grad, 4, GCOMP_U8) != 0);
}

static void test_none_gives_the_mean(void)
{
    void *grads[1] = {grad};
    gcomp *gc = open_one("none", 1, GCOMP_AGGREGATE_AUTO);
    for (int step = 0; step < 3; step++) {
        size_t bad = 0;
        fill(step);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) bad += grad[i] != (known(0, step, i) + known(1, step, i)) / 2;
        CHECK(bad == 0);
    }
    gcomp_close(gc);
}

/* One block: the scale is |g|_1 / n, the mean that of both ranks' signed scales. */
static void test_sign_gives_the_mean_of_scaled_signs(void)
{
    for (int with = 0; with < 2; with++) {
        void *grads[1] = {grad};
        gcomp *gc = open_one("sign:block=tensor", with, GCOMP_AGGREGATE_AUTO);
        double scale[2] = {0, 0};
        size_t bad = 0;
        for (int rank = 0; rank < 2; rank++)
            for (size_t i = 0; i < N; i++) scale[rank] += fabs((double)known(rank, 0, i)) / N;
        fill(0);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) {
            double mean = 0;
            int zero = 0; /* of a zero either sign will do */
            for (int rank = 0; rank < 2; rank++) {
                zero = zero || known(rank, 0, i) == 0;
                mean += 0.5 * (known(rank, 0, i) < 0 ? -scale[rank] : scale[rank]);
            }
            bad += !zero && fabs((double)grad[i] - mean) > 1e-5 * (scale[0] + scale[1]);
        }
        CHECK(bad == 0);
        CHECK(same_on_both(grad, sizeof grad));
        gcomp_close(gc);
    }
}

/* Each rank has 24 large elements of its own, 1 % of all: they arrive halved, all others are 0
   and stay in the residual. */
static void test_topk_gives_the_largest_of_both(void)
{
    void *grads[1] = {grad};
    gcomp *gc = open_one("topk:density=0.01", 1, GCOMP_AGGREGATE_AUTO);
    size_t bad = 0;
    for (size_t i = 0; i < N; i++) grad[i] = i % 100 == (size_t)(50 * mpi.rank) ? 1000.0f + (float)i : 0.25f;
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
    for (size_t i = 0; i < N; i++) {
        bad += grad[i] != (i % 50 == 0 ? (1000.0f + (float)i) / 2 : 0.0f);
        bad += tensor_residual(gc, 0)[i] != (i % 100 == (size_t)(50 * mpi.rank) ? 0.0f : 0.25f);
    }
    CHECK(bad == 0);
    CHECK(same_on_both(grad, sizeof grad));
    gcomp_close(gc);
}

/* The same by ranges, with pieces smaller than the messages if the adapter is built so; and the
   largest of the mean alone. */
static void test_topk_by_ranges_gives_the_bits_of_the_gather(void)
{
    static const char *const codecs[] = {"topk:density=0.2", "topk:density=0.2,global=1"};
    for (size_t c = 0; c < 2; c++) {
        static float first[N], rest[N];
        for (int way = 1; way <= 2; way++) {
            void *grads[1] = {grad};
            gcomp *gc = open_one(codecs[c], 1, (gcomp_aggregate)way); /* GATHER, SHARDS */
            for (int step = 0; step < 3; step++) {
                fill(step);
                CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
            }
            CHECK(same_on_both(grad, sizeof grad));
            if (way == 1) memcpy(first, grad, sizeof grad), memcpy(rest, tensor_residual(gc, 0), sizeof grad);
            CHECK(memcmp(first, grad, sizeof grad) == 0 && memcmp(rest, tensor_residual(gc, 0), sizeof grad) == 0);
            gcomp_close(gc);
        }
    }
}

/* In each step the mean gradient plus the mean residual is the mean of gradient + residual
   before. */
static void test_powersgd_loses_nothing_and_ends_equal(void)
{
    void *grads[1] = {grad};
    gcomp *gc = open_one("powersgd:rank=2", 1, GCOMP_AGGREGATE_AUTO);
    for (int step = 0; step < 4; step++) {
        const float *e = tensor_residual(gc, 0);
        double worst = 0;
        fill(step);
        for (size_t i = 0; i < N; i++) before[i] = grad[i] + e[i];
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        CHECK(same_on_both(grad, sizeof grad));
        for (size_t i = 0; i < N; i++) before[i] = before[i] - e[i] - grad[i]; /* its mean over the ranks is 0 */
        MPI_Allreduce(MPI_IN_PLACE, before, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (size_t i = 0; i < N; i++) worst = fabs((double)before[i]) > worst ? fabs((double)before[i]) : worst;
        CHECK(worst <= 0.01); /* of gradients up to 100 with norms around 3000: rounding */
    }
    gcomp_close(gc);
}

/* The mean of two matrices of rank 1 has rank 2. */
static void test_powersgd_recovers_a_mean_of_rank_two(void)
{
    void *grads[1] = {grad};
    gcomp *gc = NULL;
    gcomp_desc desc;
    gcomp_tensor tensor;
    double error = 0, size = 0;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm = gcomp_mpi_comm(&mpi);
    desc.no_error_feedback = 1;
    tensor.name = "w";
    tensor.rows = ROWS;
    tensor.cols = COLS;
    tensor.codec = "powersgd:rank=2";
    if (gcomp_open(&gc, &desc) || gcomp_add_tensor(gc, &tensor)) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < N; i++) grad[i] = known(mpi.rank, 0, i / COLS) * known(mpi.rank, 1, i % COLS);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
    }
    for (size_t i = 0; i < N; i++) {
        double mean = 0;
        for (int rank = 0; rank < 2; rank++) mean += 0.5 * (double)known(rank, 0, i / COLS) * (double)known(rank, 1, i % COLS);
        error += (mean - (double)grad[i]) * (mean - (double)grad[i]);
        size += mean * mean;
    }
    CHECK(sqrt(error) <= 1e-5 * sqrt(size));
    CHECK(same_on_both(grad, sizeof grad));
    gcomp_close(gc);
}

enum { LAYERS = 3 };

/* Layers of one codec, each in its bucket where the callbacks do not block, or with global=1. */
static gcomp *open_layers(const gcomp_mpi *on, const char *codec)
{
    static const char *const names[LAYERS] = {"a", "b", "c"};
    gcomp *gc = NULL;
    gcomp_desc desc;
    int error;
    memset(&desc, 0, sizeof desc);
    desc.comm = gcomp_mpi_comm((gcomp_mpi *)on);
    desc.aggregate = GCOMP_AGGREGATE_SHARDS;
    /* what global=1 applies goes by ranges, which are cut from a bucket */
    desc.bucket_bytes = desc.comm.start || strstr(codec, "global=1") ? 1 : 0;
    error = gcomp_open(&gc, &desc);
    for (int l = 0; l < LAYERS && !error; l++) {
        gcomp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.name = names[l];
        tensor.rows = ROWS;
        tensor.cols = COLS;
        tensor.codec = codec;
        error = gcomp_add_tensor(gc, &tensor);
    }
    if (error) MPI_Abort(MPI_COMM_WORLD, 1);
    return gc;
}

/* All kinds of requests: of two ranks even sums of floats have one order. */
static void test_overlap_gives_the_bits_of_blocking(void)
{
    static const char *const codecs[] = {"none", "sign", "topk:density=0.1", "topk:density=0.1,global=1", "powersgd:rank=2",
                                         "intsum", "intsum:bits=16", "intsum:bits=32", "terngrad:share=1"};
    static float a[LAYERS][N], b[LAYERS][N];
    gcomp_mpi with;
    CHECK(gcomp_mpi_open(&with, MPI_COMM_WORLD) == 0 && gcomp_mpi_overlap(&with) == 0);
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        gcomp *whole = open_layers(&mpi, codecs[c]), *cut = open_layers(&with, codecs[c]);
        for (int step = 0; step < 2; step++) {
            void *grads[LAYERS];
            for (int l = 0; l < LAYERS; l++) {
                grads[l] = a[l];
                for (size_t i = 0; i < N; i++) a[l][i] = b[l][i] = sinf((float)i * 0.7f + known(mpi.rank, step, i + (size_t)l));
            }
            CHECK(gcomp_exchange(whole, grads, NULL) == GCOMP_OK);
            CHECK(gcomp_step_begin(cut, NULL) == GCOMP_OK);
            for (int l = LAYERS; l-- > 0;) {
                CHECK(gcomp_step_ready(cut, (size_t)l, b[l]) == GCOMP_OK);
                CHECK(gcomp_step_progress(cut) == GCOMP_OK);
            }
            CHECK(gcomp_step_finish(cut) == GCOMP_OK);
            CHECK(memcmp(a, b, sizeof a) == 0);
            for (size_t l = 0; l < LAYERS && tensor_residual(cut, l); l++)
                CHECK(memcmp(tensor_residual(whole, l), tensor_residual(cut, l), sizeof a[l]) == 0);
        }
        gcomp_close(whole);
        gcomp_close(cut);
    }
    gcomp_mpi_close(&with);
}

static void test_a_gradient_that_is_not_finite_on_one_rank_stops_both(void)
{
    static const char *const codecs[] = {"none", "sign", "topk", "powersgd:rank=2"};
    for (size_t c = 0; c < 4; c++) {
        void *grads[1] = {grad};
        gcomp *gc = open_one(codecs[c], 1, GCOMP_AGGREGATE_AUTO);
        fill(0);
        if (mpi.rank == 1) grad[77] = NAN;
        memcpy(before, grad, sizeof grad);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_NOT_FINITE);
        CHECK(memcmp(before, grad, sizeof grad) == 0);
        fill(0);
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        CHECK(same_on_both(grad, sizeof grad));
        gcomp_close(gc);
    }
}

static void test_ranks_with_other_codecs_are_told(void)
{
    void *grads[1] = {grad};
    gcomp *gc = open_one(mpi.rank ? "topk" : "sign", 1, GCOMP_AGGREGATE_AUTO);
    fill(0);
    memcpy(before, grad, sizeof grad);
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_MISMATCH);
    CHECK(strstr(gcomp_error(gc), "codec") != NULL);
    CHECK(memcmp(before, grad, sizeof grad) == 0);
    gcomp_close(gc);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (gcomp_mpi_open(&mpi, MPI_COMM_WORLD)) MPI_Abort(MPI_COMM_WORLD, 1);
    if (mpi.world != 2) {
        if (mpi.rank == 0) printf("1..0 # SKIP needs 2 ranks: mpirun -n 2\n");
    } else {
        RUN(test_integers_add_and_the_largest_float_wins);
        RUN(test_none_gives_the_mean);
        RUN(test_sign_gives_the_mean_of_scaled_signs);
        RUN(test_topk_gives_the_largest_of_both);
        RUN(test_topk_by_ranges_gives_the_bits_of_the_gather);
        RUN(test_powersgd_loses_nothing_and_ends_equal);
        RUN(test_powersgd_recovers_a_mean_of_rank_two);
        RUN(test_overlap_gives_the_bits_of_blocking);
        RUN(test_a_gradient_that_is_not_finite_on_one_rank_stops_both);
        RUN(test_ranks_with_other_codecs_are_told);
        if (mpi.rank == 0) printf("1..%d\n", count);
    }
    fflush(stdout);
    gcomp_mpi_close(&mpi);
    MPI_Finalize();
    return failed != 0;
}
