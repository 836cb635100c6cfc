/* means.c - for test_torch.py: the means that a C program makes of gradients that another program has had.

   Reads, from a file, in ints of 4 bytes: workers, steps, tensors; rows and cols of each tensor; then the gradients as floats: by step,
   by worker, by tensor. Writes the means to another file: by step, by tensor. Exits with 1 if workers differ or anything fails.

   Use     means CODEC IN OUT */

#define _POSIX_C_SOURCE 200809L
#include "gcomp_threads.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64 };

static int head[3], shapes[MOST][2];
static size_t total; /* floats of all tensors */
static float *all;   /* [steps][workers][total]; each worker's part becomes the mean */
static const char *codec;
static gcomp_threads *group;

static void *work(void *arg)
{
    int rank = *(int *)arg;
    gcomp_desc desc = {0};
    gcomp *gc = NULL;
    int failed;
    desc.codec = codec;
    desc.comm = gcomp_threads_comm(group, rank);
    failed = gcomp_open(&gc, &desc) != GCOMP_OK;
    for (int t = 0; t < head[2] && !failed; t++) {
        char name[16];
        gcomp_tensor tensor = {name, (size_t)shapes[t][0], (size_t)shapes[t][1], 0, GCOMP_F32, NULL};
        snprintf(name, sizeof name, "t%d", t);
        failed = gcomp_add_tensor(gc, &tensor) != GCOMP_OK;
    }
    for (int s = 0; s < head[1] && !failed; s++) {
        failed = gcomp_exchange_flat(gc, all + total * (size_t)(s * head[0] + rank), NULL) != GCOMP_OK;
        if (failed) fprintf(stderr, "worker %d, step %d: %s\n", rank, s, gcomp_error(gc));
    }
    if (failed) gcomp_threads_fail(group);
    gcomp_close(gc);
    *(int *)arg = failed;
    return NULL;
}

int main(int argc, char **argv)
{
    FILE *in = argc == 4 ? fopen(argv[2], "rb") : NULL, *out = argc == 4 ? fopen(argv[3], "wb") : NULL;
    pthread_t threads[MOST];
    int ranks[MOST], failed = 0;
    size_t count;
    if (!in || !out || fread(head, sizeof head, 1, in) != 1 || head[0] > MOST || head[2] > MOST) return 1;
    if (fread(shapes, sizeof shapes[0], (size_t)head[2], in) != (size_t)head[2]) return 1;
    for (int t = 0; t < head[2]; t++) total += (size_t)shapes[t][0] * (size_t)(shapes[t][1] ? shapes[t][1] : 1);
    count = total * (size_t)head[0] * (size_t)head[1];
    all = (float *)malloc(count * sizeof *all);
    codec = argv[1];
    if (!all || fread(all, sizeof *all, count, in) != count || gcomp_threads_open(&group, head[0], 60)) return 1;
    for (int w = 0; w < head[0]; w++) {
        ranks[w] = w;
        if (pthread_create(&threads[w], NULL, work, &ranks[w])) return 1;
    }
    for (int w = 0; w < head[0]; w++) {
        pthread_join(threads[w], NULL);
        failed |= ranks[w];
    }
    for (int s = 0; s < head[1] && !failed; s++) {
        const float *first = all + total * (size_t)(s * head[0]);
        for (int w = 1; w < head[0]; w++) failed |= memcmp(first, first + total * (size_t)w, total * sizeof *first) != 0;
        failed |= fwrite(first, sizeof *first, total, out) != total;
    }
    gcomp_threads_close(group);
    free(all);
    return fclose(out) || failed;
}
