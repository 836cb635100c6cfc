/* The one file that contains the implementation. */
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
