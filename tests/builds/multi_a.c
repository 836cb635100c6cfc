/* multi_a.c - one of two files that include the header: this one holds the implementation.
   Build     cc tests/builds/multi_a.c tests/builds/multi_b.c */

#include "gcomp.h"
#include "gcomp.h" /* declarations twice, before */
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"
#include "gcomp.h" /* and once more, after: the implementation is compiled once */

#include <stdio.h>

gcomp_result multi_b_round_trip(const char *text, const float *x, float *y, size_t n);

int main(void)
{
    float x[100], y[100];
    int same = 1, i;
    for (i = 0; i < 100; i++) x[i] = (float)(i - 50) * 0.25f;
    if (multi_b_round_trip("fp16", x, y, 100) != GCOMP_OK) same = 0;
    for (i = 0; i < 100 && same; i++) same = x[i] == y[i]; /* small quarters are exact in fp16 */
    printf("1..1\n%sok 1 - two files share one implementation\n", same ? "" : "not ");
    return !same;
}
