/* embedded_gcomp.c - the header's object for a small device, see embedded.c: no malloc, no stdio,
   one instruction set, and only the methods that are used there. `nm -u` of the object names what
   it needs of the C library: see GCOMP_NO_STDLIB. */

#define GCOMP_NO_STDLIB
#define GCOMP_MAX_ISA 1
#define GCOMP_WITHOUT_FP16
#define GCOMP_WITHOUT_BF16
#define GCOMP_WITHOUT_FP8
#define GCOMP_WITHOUT_MX
#define GCOMP_WITHOUT_EDEN
#define GCOMP_WITHOUT_SIGN
#define GCOMP_WITHOUT_ONEBIT
#define GCOMP_WITHOUT_TWOBIT
#define GCOMP_WITHOUT_THRESHOLD1
#define GCOMP_WITHOUT_VOTE
#define GCOMP_WITHOUT_QSGD
#define GCOMP_WITHOUT_TERNGRAD
#define GCOMP_WITHOUT_NATURAL
#define GCOMP_WITHOUT_STROM
#define GCOMP_WITHOUT_NONZERO
#define GCOMP_WITHOUT_DRYDEN
#define GCOMP_WITHOUT_WANGNI
#define GCOMP_WITHOUT_ADACOMP
#define GCOMP_WITHOUT_BLOCKTOPK
#define GCOMP_WITHOUT_DGC
#define GCOMP_WITHOUT_RANDOMK
#define GCOMP_WITHOUT_SKETCH
#define GCOMP_WITHOUT_FETCH
#define GCOMP_WITHOUT_POWERSGD
#define GCOMP_WITHOUT_INTSUM
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
