/* transformer_checkpoint.h - what a worker of transformer.c must save to go on with the same bits:
   weights, the state of the optimizer, and the state of gcomp (residuals, momenta, warm starts).
   Each worker has a file of its own, NAME.RANK. */

#ifndef TRANSFORMER_CHECKPOINT_H
#define TRANSFORMER_CHECKPOINT_H

#include "transformer_optimizers.h"

#include <errno.h>

#define TRANSFORMER_MAGIC 0x31304b4843534e54u /* "TNSCHK01" */

typedef struct transformer_saved {
    uint64_t magic, step, applied, kind, count;
    uint64_t bytes[2]; /* of the saves of gc and exact, which follow the arrays */
} transformer_saved;

static inline FILE *transformer_open_file(const char *name, int rank, const char *mode, char *path,
                                          size_t capacity)
{
    FILE *file;
    snprintf(path, capacity, "%s.%d", name, rank);
    file = fopen(path, mode);
    if (!file) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return file;
}

/* step: the next one. Returns 0, or 1 after saying what is wrong. */
static inline int transformer_save(const transformer_optimizer *o, uint64_t step, const char *name,
                                   int rank)
{
    transformer_saved head = {TRANSFORMER_MAGIC, step,     o->applied, (uint64_t)o->kind,
                              o->model->count,   {0, 0}};
    const float *const arrays[] = {o->model->weights, o->m, o->v, o->own};
    gcomp *const objects[] = {o->gc, o->exact};
    unsigned char *saves[2] = {NULL, NULL};
    char path[512];
    FILE *file = transformer_open_file(name, rank, "wb", path, sizeof path);
    int error = !file;
    for (size_t k = 0; k < 2 && !error; k++) {
        size_t length = 0, capacity = 0;
        if (objects[k]) error = gcomp_save(objects[k], NULL, 0, &capacity) != GCOMP_OK;
        saves[k] = (unsigned char *)malloc(capacity + 1);
        error = error || !saves[k] ||
            (objects[k] && gcomp_save(objects[k], saves[k], capacity, &length) != GCOMP_OK);
        head.bytes[k] = length;
    }
    error = error || fwrite(&head, sizeof head, 1, file) != 1;
    for (size_t k = 0; k < 4 && !error; k++)
        error = fwrite(arrays[k], sizeof(float), o->model->count, file) != o->model->count;
    for (size_t k = 0; k < 2 && !error; k++)
        error = fwrite(saves[k], 1, head.bytes[k], file) != head.bytes[k];
    if (file && (fclose(file) != 0 || error)) {
        fprintf(stderr, "%s: could not be written\n", path);
        error = 1;
    }
    free(saves[0]);
    free(saves[1]);
    return error;
}

/* Reads a save of `bytes` bytes into an object. */
static inline int transformer_load_object(gcomp *gc, FILE *file, uint64_t bytes, const char *path)
{
    unsigned char *save = (unsigned char *)malloc((size_t)bytes + 1);
    const void *const all[] = {save};
    const size_t length[] = {(size_t)bytes};
    int error = !save || fread(save, 1, length[0], file) != length[0];
    if (!error && gcomp_load(gc, all, length, 1, NULL) != GCOMP_OK) {
        fprintf(stderr, "%s: %s\n", path, gcomp_error(gc));
        error = 1;
    }
    free(save);
    return error;
}

/* Into an optimizer that was opened as the one that was saved. Returns 0, or 1 after saying what is
   wrong. */
static inline int transformer_resume(transformer_optimizer *o, uint64_t *step, const char *name,
                                     int rank)
{
    float *const arrays[] = {o->model->weights, o->m, o->v, o->own};
    gcomp *const objects[] = {o->gc, o->exact};
    transformer_saved head;
    char path[512];
    FILE *file = transformer_open_file(name, rank, "rb", path, sizeof path);
    int error;
    if (!file) return 1;
    error = fread(&head, sizeof head, 1, file) != 1 || head.magic != TRANSFORMER_MAGIC ||
        head.kind != (uint64_t)o->kind || head.count != o->model->count ||
        head.bytes[0] > (size_t)1 << 40 || head.bytes[1] > (size_t)1 << 40 ||
        (!o->exact && head.bytes[1]);
    for (size_t k = 0; k < 4 && !error; k++)
        error = fread(arrays[k], sizeof(float), head.count, file) != head.count;
    for (size_t k = 0; k < 2 && !error; k++)
        error = objects[k] && transformer_load_object(objects[k], file, head.bytes[k], path);
    if (!error) error = getc(file) != EOF;
    fclose(file);
    if (error) {
        fprintf(stderr, "%s: no checkpoint of this model and optimizer\n", path);
        return 1;
    }
    o->applied = head.applied;
    *step = head.step;
    return 0;
}

#endif /* TRANSFORMER_CHECKPOINT_H */
