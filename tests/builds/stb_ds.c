/* Proves that one file can hold the implementations of gcomp.h and of stb_ds.h, in each of the
   orders -DORDER=0 .. 4. Exit status 0: both work. */
#define GCOMP_IMPLEMENTATION
#if ORDER == 0 /* stb_ds.h first */
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>
#include "gcomp.h"
#elif ORDER == 1 /* gcomp.h first */
#include "gcomp.h"
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>
#elif ORDER == 2 /* declarations, gcomp.h, implementation */
#include <stb/stb_ds.h>
#include "gcomp.h"
#define STB_DS_IMPLEMENTATION
#include <stb/stb_ds.h>
#elif ORDER == 3 /* the macro first, for what comes behind gcomp.h */
#define STB_DS_IMPLEMENTATION
#include "gcomp.h"
#include <stb/stb_ds.h>
#else /* a user without stb_ds.h, with names of his own that are like its short ones */
#include "gcomp.h"
#if defined(arrlen) || defined(hmput) || defined(STBDS_REALLOC) || defined(STBDS_NO_SHORT_NAMES) || defined(INCLUDE_STB_DS_H) || \
    defined(STB_DS_IMPLEMENTATION) || defined(stbds_array_header)
#error "gcomp.h has left something of stb_ds.h"
#endif
static int arrlen(const int *a) { return a[0]; }
static int arrput(int *a, int v) { return a[0] = v; }
#endif

int main(void)
{
    char name[] = "a";
    gcomp *gc;
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp_tensor_info info;
    int i, bad;
#if ORDER < 4
    int *own = NULL;
    for (i = 0; i < 100; i++) arrput(own, i);
    bad = arrlen(own) != 100 || own[99] != 99;
    arrfree(own);
#else
    int own[1];
    arrput(own, 7);
    bad = arrlen(own) != 7;
#endif
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.codec = "none";
    tensor.name = name;
    tensor.rows = tensor.cols = 8;
    if (gcomp_open(&gc, &desc) != GCOMP_OK) return 2;
    for (i = 0; i < 40; i++) { /* more than the first arrays hold */
        name[0] = (char)('0' + i * 7 % 40);
        if (gcomp_add_tensor(gc, &tensor) != GCOMP_OK) return 3;
    }
    bad |= gcomp_tensor_get(gc, 39, &info) || gcomp_tensor_get(gc, 40, &info) == GCOMP_OK || info.name[0] != name[0];
    gcomp_close(gc);
    return bad;
}
