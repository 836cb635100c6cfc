/* transformer_text.h - what transformer.c learns: any text, by default sayings and songs of
   Debian's package fortunes. The last tenth of it is for validation. */

#ifndef TRANSFORMER_TEXT_H
#define TRANSFORMER_TEXT_H

#include "transformer_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRANSFORMER_FORTUNES "/usr/share/games/fortunes/"
enum {
    TRANSFORMER_LEAST = 20000,      /* bytes of a text, at least */
    TRANSFORMER_MOST = 16 << 20,    /* the rest is not read */
    TRANSFORMER_VALIDATION = 16384, /* characters, or a few more, so that batches are full */
};

typedef struct transformer_text {
    unsigned char *bytes; /* as numbers 0 .. characters - 1 */
    size_t length, cut;   /* bytes[cut] is the first for validation */
    size_t characters;
    unsigned char of[256]; /* what the numbers stand for */
} transformer_text;

/* Reads a file behind what is there. Returns 0, or 1 if it cannot be read. */
static inline int transformer_read(transformer_text *text, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return 1;
    text->length += fread(text->bytes + text->length, 1, TRANSFORMER_MOST - text->length, file);
    return fclose(file) != 0;
}

/* path NULL: the fortunes. Returns 0, or 1 after saying what is wrong. */
static inline int transformer_load(transformer_text *text, const char *path)
{
    static const char *const files[] = {"literature", "people",  "politics", "science",
                                        "songs-poems", "wisdom", "work"};
    int error;
    memset(text, 0, sizeof *text);
    text->bytes = (unsigned char *)malloc(TRANSFORMER_MOST);
    if (!text->bytes) return 1;
    error = path && transformer_read(text, path);
    for (size_t i = 0; !path && !error && i < sizeof files / sizeof *files; i++) {
        char name[128];
        snprintf(name, sizeof name, TRANSFORMER_FORTUNES "%s", files[i]);
        error = transformer_read(text, name);
    }
    if (error && !path)
        fprintf(stderr, "no text in " TRANSFORMER_FORTUNES
                        ": apt-get install fortunes, or make deps demo, or --text FILE\n");
    else if (error || text->length < TRANSFORMER_LEAST)
        fprintf(stderr, "%s: cannot be read, or is shorter than %d bytes\n",
                path ? path : TRANSFORMER_FORTUNES, TRANSFORMER_LEAST);
    if (error || text->length < TRANSFORMER_LEAST) return 1;
    for (size_t i = 0; i < text->length; i++) text->of[text->bytes[i]] = 1;
    for (size_t c = 0, n = 0; c < 256; c++) /* numbers rise with the bytes: n <= c */
        if (text->of[c]) text->of[n++] = (unsigned char)c;
    text->characters = train_number_bytes(text->bytes, text->length);
    text->cut = text->length / 10 * 9;
    return 0;
}

/* Draws the batch of a worker in a step, a function of the arguments. in[R + 1] */
static inline void transformer_draw(const transformer_text *text, const transformer_shape *s,
                                    uint64_t seed, uint64_t step, uint64_t rank, unsigned char *in,
                                    unsigned char *out)
{
    for (size_t b = 0; b < s->batch; b++) {
        const uint64_t random = train_mix(train_mix(train_mix(seed) ^ step) ^ (rank << 20 | b));
        const unsigned char *from = text->bytes + random % (text->cut - s->context - 1);
        memcpy(in + b * s->context, from, s->context);
        memcpy(out + b * s->context, from + 1, s->context);
    }
}

/* Loss and accuracy (0 .. 1) of fixed sequences of the validation part, shared among the workers.
   Returns 0, or 1 if the transport failed. */
static inline int transformer_validate(transformer *m, const transformer_text *text,
                                       const gcomp_comm *comm, unsigned char *in,
                                       unsigned char *out, double *loss, double *accuracy)
{
    const size_t t = m->shape.context, batch = m->shape.batch, world = (size_t)comm->world;
    const size_t batches = (TRANSFORMER_VALIDATION + batch * t - 1) / (batch * t);
    const size_t room = text->length - text->cut - t - 1;
    double mine[2] = {0, 0}, *all = (double *)calloc(2 * world, sizeof *all);
    int error = !all;
    for (size_t i = (size_t)comm->rank; i < batches; i += world) {
        for (size_t b = 0; b < batch; b++) {
            const size_t at = text->cut + room * (i * batch + b) / (batches * batch);
            memcpy(in + b * t, text->bytes + at, t);
            memcpy(out + b * t, text->bytes + at + 1, t);
        }
        mine[0] += transformer_loss(m, in, out) / (double)batches;
        mine[1] += (double)m->correct / (double)(batches * batch * t);
    }
    if (!error && world > 1) error = comm->allgather(comm->user, mine, all, sizeof mine);
    else if (!error) memcpy(all, mine, sizeof mine);
    *loss = *accuracy = 0;
    for (size_t w = 0; !error && w < world; w++) {
        *loss += all[2 * w];
        *accuracy += all[2 * w + 1];
    }
    free(all);
    return error != 0;
}

/* Prints `count` characters that the model writes behind the first ones for validation. */
static inline void transformer_write(transformer *m, const transformer_text *text, size_t count,
                                     uint64_t seed, unsigned char *in, unsigned char *out)
{
    const size_t t = m->shape.context, v = m->shape.characters;
    memset(in, 0, m->shape.batch * t);
    memset(out, 0, m->shape.batch * t);
    memcpy(in, text->bytes + text->cut, t);
    for (size_t k = 0; k < count; k++) {
        const double u = (double)(train_mix(train_mix(seed) ^ k) >> 11) / 9007199254740992.0;
        const float *p = m->scores + (t - 1) * v;
        double sum = 0, below = 0;
        size_t next = 0;
        transformer_loss(m, in, out);
        for (size_t j = 0; j < v; j++) sum += pow((double)p[j], 1.25); /* likely ones likelier */
        while (next + 1 < v && (below += pow((double)p[next], 1.25)) < u * sum) next++;
        putchar(text->of[next]);
        memmove(in, in + 1, t - 1);
        in[t - 1] = (unsigned char)next;
    }
    putchar('\n');
}

#endif /* TRANSFORMER_TEXT_H */
