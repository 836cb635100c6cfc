/* train_data.h - what train.c learns from: Fashion-MNIST, or any text.

   Images: the four gzipped idx files of Debian's dataset-fashion-mnist (Xiao, Rasul, Vollgraf,
   2017); MNIST's have the same form. Text: the next byte from the TRAIN_CONTEXT bytes before it,
   one-hot. Needs zlib. */

#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define TRAIN_IMAGES "/usr/share/datasets/fashion-mnist"
#define TRAIN_BATCH 64 /* samples of a worker in a step */
#define TRAIN_CONTEXT 16
#define TRAIN_TESTS 10000 /* at most so many samples of a text are set aside */

typedef struct train_data {
    const char *what; /* "Fashion-MNIST" or the name of the text */
    size_t inputs;    /* floats of one sample */
    size_t active;    /* of them not zero */
    size_t classes;
    size_t count;          /* training samples */
    size_t tests;          /* test samples follow them: count .. count + tests - 1 */
    size_t pixels;         /* of an image; 0: text */
    unsigned char *bytes;  /* images, or text as class numbers */
    unsigned char *labels; /* images only */
    float *mean;           /* images only: [pixels], of the training images */
} train_data;

/* A well mixed function of its argument (splitmix64). All random choices of the demo use it. */
static inline uint64_t train_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline void train_data_free(train_data *data)
{
    free(data->bytes);
    free(data->labels);
    free(data->mean);
    memset(data, 0, sizeof *data);
}

/* Reads a gzipped idx file of `dimensions` dimensions, items * item_bytes bytes, into bytes[].
   Returns 0, or 1 if the file is missing, or is not such a file. */
static inline int train_read_idx(const char *name, unsigned dimensions, size_t items,
                                 size_t item_bytes, unsigned char *bytes)
{
    char path[256];
    unsigned char header[16];
    size_t header_bytes = 4 + 4 * dimensions, total = items * item_bytes, found = 1;
    gzFile file;
    int bad = 1;
    snprintf(path, sizeof path, "%s/%s", TRAIN_IMAGES, name);
    file = gzopen(path, "rb");
    if (!file) return 1;
    if (gzread(file, header, (unsigned)header_bytes) == (int)header_bytes &&
        header[3] == dimensions) {
        for (unsigned d = 0; d < dimensions; d++) {
            const unsigned char *h = header + 4 + 4 * d;
            found *= (size_t)h[0] << 24 | (size_t)h[1] << 16 | (size_t)h[2] << 8 | h[3];
        }
        bad = found != total || gzread(file, bytes, (unsigned)total) != (int)total;
    }
    gzclose(file);
    return bad;
}

/* Finds the mean of each pixel, which is subtracted from the images. Otherwise all images share one
   direction, which is so much steeper than the others that it alone would limit the learning rate.
   Returns 0, or 1 if memory is short. */
static inline int train_find_mean(train_data *data)
{
    data->mean = (float *)calloc(data->pixels, sizeof(float));
    if (!data->mean) return 1;
    for (size_t p = 0; p < data->pixels; p++) {
        uint64_t sum = 0;
        /* An eighth of the images is enough for that. */
        for (size_t i = 0; i < data->count; i += 8) sum += data->bytes[i * data->pixels + p];
        data->mean[p] = (float)((double)sum / (double)(data->count / 8));
    }
    return 0;
}

/* Loads Fashion-MNIST. Returns 0, or 1 if the data set is not installed or memory is short. */
static inline int train_load_images(train_data *data)
{
    memset(data, 0, sizeof *data);
    data->what = "Fashion-MNIST";
    data->pixels = data->inputs = data->active = 28 * 28;
    data->classes = 10;
    data->count = 60000;
    data->tests = 10000;
    data->bytes = (unsigned char *)malloc((data->count + data->tests) * data->pixels);
    data->labels = (unsigned char *)malloc(data->count + data->tests);
    if (data->bytes && data->labels &&
        !train_read_idx("train-images-idx3-ubyte.gz", 3, data->count, data->pixels, data->bytes) &&
        !train_read_idx("train-labels-idx1-ubyte.gz", 1, data->count, 1, data->labels) &&
        !train_read_idx("t10k-images-idx3-ubyte.gz", 3, data->tests, data->pixels,
                        data->bytes + data->count * data->pixels) &&
        !train_read_idx("t10k-labels-idx1-ubyte.gz", 1, data->tests, 1,
                        data->labels + data->count)) {
        for (size_t i = 0; i < data->count + data->tests; i++)
            if (data->labels[i] >= data->classes) {
                train_data_free(data);
                return 1;
            }
        if (!train_find_mean(data)) return 0;
    }
    train_data_free(data);
    return 1;
}

/* Renumbers the bytes that occur in a text as 0, 1, ..., so that the one-hot form has columns for
   these alone. Returns how many there are. */
static inline size_t train_number_bytes(unsigned char *bytes, size_t length)
{
    unsigned char number[256] = {0};
    size_t classes = 0;
    for (size_t i = 0; i < length; i++) number[bytes[i]] = 1;
    for (size_t c = 0; c < 256; c++)
        if (number[c]) number[c] = (unsigned char)classes++;
    for (size_t i = 0; i < length; i++) bytes[i] = number[bytes[i]];
    return classes;
}

/* Loads a text. Returns 0, or 1 if the file cannot be read or is shorter than 10,000 bytes. */
static inline int train_load_text(train_data *data, const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t length = 0, capacity = (size_t)64 << 20; /* more would not be seen in a demo */
    memset(data, 0, sizeof *data);
    if (!file) return 1;
    data->bytes = (unsigned char *)malloc(capacity);
    if (data->bytes) length = fread(data->bytes, 1, capacity, file);
    fclose(file);
    if (length < 10000) {
        train_data_free(data);
        return 1;
    }
    data->what = path;
    data->classes = train_number_bytes(data->bytes, length);
    data->inputs = TRAIN_CONTEXT * data->classes;
    data->active = TRAIN_CONTEXT;
    data->tests = (length - TRAIN_CONTEXT) / 10;
    data->count = length - TRAIN_CONTEXT - data->tests;
    if (data->tests > TRAIN_TESTS) data->tests = TRAIN_TESTS;
    return 0;
}

/* Writes the input of a sample to x[inputs] and returns its class. */
static inline unsigned train_sample(const train_data *data, size_t sample, float *x)
{
    if (data->pixels) {
        const unsigned char *image = data->bytes + sample * data->pixels;
        for (size_t i = 0; i < data->pixels; i++) /* 90: deviation of all pixels */
            x[i] = ((float)image[i] - data->mean[i]) * (1.0f / 90.0f);
        return data->labels[sample];
    }
    memset(x, 0, data->inputs * sizeof *x);
    for (size_t i = 0; i < TRAIN_CONTEXT; i++)
        x[i * data->classes + data->bytes[sample + i]] = 1.0f;
    return data->bytes[sample + TRAIN_CONTEXT];
}

/* Loads the images; if they are not installed, or if a text is given, loads a text. Returns 0, or 1
   after saying what is wrong. */
static inline int train_load(train_data *data, const char *text, int rank)
{
    const char *path = text ? text : "gcomp.h";
    if (!text && train_load_images(data) == 0) return 0;
    if (!text && rank == 0)
        printf(
            "no Fashion-MNIST (Debian: dataset-fashion-mnist): learning the text of %s instead\n",
            path);
    if (train_load_text(data, path) == 0) return 0;
    fprintf(stderr, "%s: cannot be read, or is shorter than 10,000 bytes\n", path);
    return 1;
}

/* The steps in which this many workers together see as many samples as there are. */
static inline size_t train_epoch_steps(const train_data *data, size_t workers)
{
    const size_t steps = data->count / (TRAIN_BATCH * workers);
    return steps ? steps : 1;
}

#endif /* TRAIN_DATA_H */
