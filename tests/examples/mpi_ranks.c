/* Proves of examples/adapters/gcomp_mpi.h, for any number of ranks: collectives that go in pieces are
   right, a communicator may have a part of the ranks, and training ends as it does over threads.
   Run: mpirun -n 4 tests/mpi_ranks */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#define GCOMP_MPI_PIECE ((size_t)100) /* so that all goes in pieces, as counts beyond int do */
#define GCOMP_MPI_ORDER ((size_t)300)
#include "gcomp_try.h"
#include "halves.h"
#include "mpi_test.h"
#include "training.h"

#include <math.h>

static const size_t sizes[] = {0, 250};
enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 8, LARGEST = 250 };

/* Blocking; with sums in rank order; and with requests under way. */
static void test_callbacks_do_what_is_asked_of_them(void)
{
    char why[200];
    gcomp_mpi part;
    gcomp_comm comm;
    CHECK(gcomp_mpi_open(&part, MPI_COMM_WORLD) == 0);
    for (int form = 0; form < 3; form++) {
        if (form) CHECK((form == 1 ? gcomp_mpi_sum_in_order(&part) : gcomp_mpi_overlap(&part)) == 0);
        comm = gcomp_mpi_comm(&part);
        CHECK(gcomp_try(&comm, why, sizeof why) == GCOMP_OK);
        if (why[0]) printf("# rank %d: %s\n", mpi.rank, why);
    }
    gcomp_mpi_close(&part);
}

static void test_sums_in_pieces_are_right(void)
{
    gcomp_comm comm = gcomp_mpi_comm(&mpi);
    for (size_t k = 0; k < SIZES; k += SIZES - 1) {
        float sum[LARGEST], most[LARGEST];
        int8_t a[LARGEST];
        int16_t b[LARGEST];
        int32_t c[LARGEST];
        int ranks = mpi.world * (mpi.world - 1) / 2;
        size_t bad = 0;
        for (size_t i = 0; i < sizes[k]; i++) {
            sum[i] = most[i] = (float)((int)i % 100 - 30 * mpi.rank);
            a[i] = (int8_t)((int)i % 15 - mpi.rank);
            b[i] = (int16_t)((int)i - 1000 * mpi.rank);
            c[i] = (int32_t)i * 300000 - mpi.rank;
        }
        CHECK(comm.allreduce(comm.user, sum, sizes[k], GCOMP_F32) == 0);
        CHECK(comm.allreduce_max(comm.user, most, sizes[k]) == 0);
        CHECK(comm.allreduce(comm.user, a, sizes[k], GCOMP_I8) == 0);
        CHECK(comm.allreduce(comm.user, b, sizes[k], GCOMP_I16) == 0);
        CHECK(comm.allreduce(comm.user, c, sizes[k], GCOMP_I32) == 0);
        for (size_t i = 0; i < sizes[k]; i++) {
            bad += sum[i] != (float)((int)i % 100 * mpi.world - 30 * ranks) || most[i] != (float)((int)i % 100);
            bad += a[i] != (int)i % 15 * mpi.world - ranks || b[i] != (int)i * mpi.world - 1000 * ranks;
            bad += c[i] != (int32_t)i * 300000 * mpi.world - ranks;
        }
        CHECK(bad == 0);
    }
    CHECK(comm.allreduce(comm.user, NULL, 0, GCOMP_U8) != 0);
}

/* Sums of fp16 and bf16 have the bits that they have over threads: in float32, in rank order,
   rounded once. More than GCOMP_MPI_ORDER elements a rank go in pieces. */
static void test_sums_of_halves_are_rounded_once(void)
{
    static const size_t counts[] = {0, 1, 7, 250, 301, 2600};
    gcomp_comm comm = gcomp_mpi_comm(&mpi);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
            int status = 0;
            CHECK(halves_are_wrong(&comm, counts[k], (gcomp_dtype)dtype, &status) == 0 && status == 0);
        }
}

/* A sum as a request that is under way, for halves_are_wrong. */
static gcomp_comm started;

static int allreduce_by_start(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    gcomp_request request;
    int error;
    memset(&request, 0, sizeof request);
    request.kind = GCOMP_ALLREDUCE;
    request.id = 8;
    request.send = request.recv = data;
    request.count = count;
    request.dtype = dtype;
    error = started.start(user, &request);
    return error ? error : started.wait(user, 8);
}

/* Through start and wait, in one piece and in several. */
static void test_sums_of_halves_under_way_are_rounded_once(void)
{
    static const size_t counts[] = {0, 1, 7, 99, 100, 101, 700};
    gcomp_mpi part;
    gcomp_comm comm;
    CHECK(gcomp_mpi_open(&part, MPI_COMM_WORLD) == 0 && gcomp_mpi_overlap(&part) == 0);
    started = comm = gcomp_mpi_comm(&part);
    comm.allreduce = allreduce_by_start;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (int dtype = GCOMP_F16; dtype <= GCOMP_BF16; dtype++) {
            int status = 0;
            CHECK(halves_are_wrong(&comm, counts[k], (gcomp_dtype)dtype, &status) == 0 && status == 0);
        }
    gcomp_mpi_close(&part);
}

static void test_gathers_in_pieces_are_right(void)
{
    static unsigned char all[MOST * LARGEST], send[MOST * LARGEST];
    size_t world = (size_t)mpi.world, me = (size_t)mpi.rank, list[MOST];
    gcomp_comm comm = gcomp_mpi_comm(&mpi);
    for (size_t k = 0; k < SIZES; k++) {
        size_t size = sizes[k], bad = 0;
        for (size_t i = 0; i < world * size; i++) send[i] = (unsigned char)(i * 7 + 31 * me);
        memset(all, 0xee, sizeof all);
        CHECK(comm.allgather(comm.user, send, all, size) == 0);
        for (size_t i = 0; i < sizeof all; i++)
            bad += all[i] != (i < world * size ? (unsigned char)(i % size * 7 + 31 * (i / size)) : 0xee);
        CHECK(bad == 0);
        memset(all, 0xee, sizeof all);
        for (size_t w = 0; w < world; w++) list[w] = w == 1 ? 0 : size / (w + 1);
        CHECK(comm.allgatherv(comm.user, send, all, list, LARGEST) == 0);
        for (size_t i = 0; i < sizeof all; i++) {
            int sent = i / LARGEST < world && i % LARGEST < list[i / LARGEST];
            bad += all[i] != (sent ? (unsigned char)(i % LARGEST * 7 + 31 * (i / LARGEST)) : 0xee);
        }
        CHECK(bad == 0);
        CHECK(gcomp_mpi_alltoall(&mpi, send, all, size) == 0);
        for (size_t i = 0; i < world * size; i++) bad += all[i] != (unsigned char)((me * size + i % size) * 7 + 31 * (i / size));
        CHECK(bad == 0);
        for (int root = 0; root < mpi.world && k + 1 == SIZES; root++) {
            memset(all, mpi.rank, size);
            CHECK(gcomp_mpi_broadcast(&mpi, all, size, root) == 0);
            for (size_t i = 0; i < size; i++) bad += all[i] != root;
        }
        CHECK(bad == 0);
    }
    list[0] = LARGEST + 1;
    CHECK(comm.allgatherv(comm.user, send, all, list, LARGEST) != 0);
    CHECK(gcomp_mpi_barrier(&mpi) == 0);
}

/* Every rank ends with the parameters that threads end with. */
static void test_training_ends_with_the_bits_of_threads(void)
{
    CHECK(gcomp_mpi_sum_in_order(&mpi) == 0 && gcomp_mpi_sum_in_order(&mpi) == 0);
    for (size_t c = 0; c < TRAINED; c += c ? 4 : 2) { /* where ranks spin, each collective costs a slice of time */
        gcomp_comm comm = gcomp_mpi_comm(&mpi);
        uint64_t digest[2] = {0, 0};
        codec = trained[c];
        CHECK(train(&comm, &digest[0]) == 0);
        if (mpi.rank == 0) digest[1] = train_by_threads(mpi.world);
        CHECK(gcomp_mpi_broadcast(&mpi, &digest[1], sizeof digest[1], 0) == 0);
        CHECK(digest[0] && digest[0] == digest[1]);
    }
}

/* The same in two buckets, through start, test and wait: sums have the bits of rank order; what
   goes in pieces is done in start. */
static void test_overlap_ends_with_the_bits_of_threads(void)
{
    gcomp_mpi part;
    gcomp_comm comm;
    uint64_t digest[2] = {0, 0};
    CHECK(gcomp_mpi_open(&part, MPI_COMM_WORLD) == 0 && gcomp_mpi_overlap(&part) == 0 && gcomp_mpi_overlap(&part) == 0);
    CHECK(gcomp_mpi_sum_in_order(&part) == 0);
    comm = gcomp_mpi_comm(&part);
    for (int halves = 0; halves < 2; halves++) {
        codec = halves ? "bf16" : "intsum:bits=16";
        bucket_bytes = 100;
        CHECK(comm.start && train(&comm, &digest[0]) == 0);
        bucket_bytes = 0;
        if (mpi.rank == 0) digest[1] = train_by_threads(mpi.world);
        CHECK(gcomp_mpi_broadcast(&mpi, &digest[1], sizeof digest[1], 0) == 0);
        CHECK(digest[0] && digest[0] == digest[1]);
    }
    int done = 0;
    CHECK(gcomp_mpi_test(&part, 1, &done) != 0 && gcomp_mpi_wait(&part, 1) != 0); /* nothing is under way */
    gcomp_mpi_close(&part);
}

/* Ranks 0, 1, ... of the even ones and of the odd ones train apart. */
static void test_a_part_of_the_ranks_is_a_world(void)
{
    MPI_Comm half;
    gcomp_mpi part;
    gcomp_comm comm;
    uint64_t digest = 0;
    codec = "sign";
    CHECK(MPI_Comm_split(MPI_COMM_WORLD, mpi.rank % 2, mpi.rank, &half) == 0);
    CHECK(gcomp_mpi_open(&part, half) == 0 && gcomp_mpi_sum_in_order(&part) == 0);
    comm = gcomp_mpi_comm(&part);
    CHECK(comm.world == (mpi.world + 1 - mpi.rank % 2) / 2 && comm.rank == mpi.rank / 2);
    CHECK(train(&comm, &digest) == 0 && digest == train_by_threads(comm.world));
    gcomp_mpi_close(&part);
    MPI_Comm_free(&half);
}

/* Pairs of ranks are machines: the mean over all, and residuals on the first of each pair alone. */
static void test_two_levels_give_the_mean_of_all_workers(void)
{
    enum { N = 2000 };
    static float grad[N];
    const int pairs = (mpi.world + 1) / 2;
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp_mpi node, between;
    MPI_Comm pair;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "t";
    tensor.rows = N;
    CHECK(MPI_Comm_split(MPI_COMM_WORLD, mpi.rank / 2, mpi.rank, &pair) == 0);
    CHECK(gcomp_mpi_open_levels(&node, &between, MPI_COMM_WORLD, pair, &desc) == 0);
    CHECK(desc.comm.rank == mpi.rank / 2 && desc.comm.world == pairs && desc.node.rank == mpi.rank % 2);
    for (int c = 0; c < 2; c++) {
        gcomp_step step = GCOMP_STEP;
        step.samples = 1;
        step.batch = mpi.world; /* the last one of a pair may be alone */
        size_t wrong = 0;
        tensor.codec = c ? "topk:density=1" : "none";
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        for (size_t i = 0; i < N; i++) grad[i] = (float)((i % 7 + 1) * (size_t)(mpi.rank + 1) * 4);
        void *grads[1] = {grad};
        CHECK(gcomp_exchange(gc, grads, &step) == GCOMP_OK && gcomp_step_number(gc) == 1);
        for (size_t i = 0; i < N; i++)
            wrong += fabsf(grad[i] - (float)((i % 7 + 1) * (size_t)(mpi.world + 1) * 2)) > 1e-4f * grad[i];
        CHECK(!wrong && !tensor_residual(gc, 0) == (!c || node.rank));
        gcomp_close(gc);
    }
    gcomp_mpi_close(&between);
    gcomp_mpi_close(&node);
    MPI_Comm_free(&pair);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (gcomp_mpi_open(&mpi, MPI_COMM_WORLD) || mpi.world > MOST) MPI_Abort(MPI_COMM_WORLD, 1);
    RUN(test_callbacks_do_what_is_asked_of_them);
    RUN(test_sums_in_pieces_are_right);
    RUN(test_sums_of_halves_are_rounded_once);
    RUN(test_sums_of_halves_under_way_are_rounded_once);
    RUN(test_gathers_in_pieces_are_right);
    RUN(test_training_ends_with_the_bits_of_threads);
    RUN(test_overlap_ends_with_the_bits_of_threads);
    RUN(test_a_part_of_the_ranks_is_a_world);
    RUN(test_two_levels_give_the_mean_of_all_workers);
    if (mpi.rank == 0) printf("1..%d\n", count);
    fflush(stdout);
    gcomp_mpi_close(&mpi);
    MPI_Finalize();
    return failed != 0;
}
