/* embedded_gcomp.c - the header's object for a small device, see embedded.c: no malloc, no stdio,
   one instruction set, only the methods that are used there, and no gcomp_open. `nm -u` of the
   object names what it needs of the C library: see GCOMP_NO_STDLIB. */

#define GCOMP_NO_STDLIB
#define GCOMP_NO_OBJECT
#define GCOMP_MAX_ISA 1
#define GCOMP_ONLY_INT
#define GCOMP_ONLY_TOPK
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
