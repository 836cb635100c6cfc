/* test.h over MPI: CHECK inside test functions, RUN for each of them. Rank 0 prints TAP for all
   ranks: a check holds if it holds on each rank. */

#ifndef MPI_TEST_H
#define MPI_TEST_H

#include "gcomp_mpi.h"

#ifndef GCOMP_LINKED
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"

#include <stdio.h>

static gcomp_mpi mpi;
static int wrong; /* failed checks of the test under way, on this rank */
static int count, failed;

#define CHECK(condition) \
    do { \
        if (!(condition) && wrong++ < 10) printf("# rank %d: %s:%d: %s\n", mpi.rank, __FILE__, __LINE__, #condition); \
    } while (0)

static inline const float *tensor_residual(const gcomp *gc, size_t tensor)
{
    gcomp_tensor_info info;
    return gcomp_tensor_get(gc, tensor, &info) == GCOMP_OK ? info.residual : NULL;
}

static void run(void (*function)(void), const char *name)
{
    int all = 0;
    wrong = 0;
    function();
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    count++;
    failed += all != 0;
    if (mpi.rank == 0) printf("%s %d - %s\n", all ? "not ok" : "ok", count, name);
    fflush(stdout);
}

#define RUN(function) run(function, #function)

#endif
