/* test_nccl.c with the header of an NCCL before 2.14, which has no ncclInProgress. */
#define NCCL_VERSION_CODE 2804
#include "test_nccl.c"
