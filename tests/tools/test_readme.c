/* The figures of the first page are those of this library: the table of README.md and the names in examples/demo.svg say how many
   times fewer bytes a codec sends, and so does gcomp_describe. Nothing is trained here. */

#include "test.h"

static char *whole_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1 << 20, 1);
    size_t length = file && text ? fread(text, 1, (1 << 20) - 1, file) : 0;
    if (file) fclose(file);
    if (!length) printf("# %s cannot be read\n", path);
    return text;
}

/* As no_allreduce of test.h: gcomp_describe calls none of them. */
static int no_alltoallv(void *user, const void *send, const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    (void)user, (void)send, (void)send_bytes, (void)recv, (void)recv_bytes;
    return 1;
}

/* How many times fewer bytes four workers send with a codec, for a network of three layers with these widths. 0: an error. */
static double ratio_of(const char *codec, const size_t width[4])
{
    static const char *const name[2][3] = {{"w0", "w1", "w2"}, {"b0", "b1", "b2"}};
    static char text[8000];
    gcomp_desc desc = {0};
    gcomp *gc;
    unsigned long long sent = 0, of = 0;
    const char *line;
    desc.codec = codec;
    desc.comm.world = 4;
    desc.comm.allreduce = no_allreduce;
    desc.comm.allgather = no_allgather;
    desc.comm.alltoallv = no_alltoallv;
    if (gcomp_open(&gc, &desc)) return 0;
    for (size_t i = 0; i < 6; i++) {
        gcomp_tensor tensor = {0};
        tensor.name = name[i & 1][i / 2];
        tensor.rows = width[i / 2 + (i & 1)];
        tensor.cols = i & 1 ? 0 : width[i / 2 + 1];
        if (gcomp_add_tensor(gc, &tensor)) break;
    }
    gcomp_describe(gc, text, sizeof text);
    gcomp_close(gc);
    line = strstr(text, "\n6 tensors: ");
    if (!line) return 0;
    line += strlen("\n6 tensors: ");
    if (!strncmp(line, "at most ", 8)) line += 8;
    return sscanf(line, "%llu of %llu bytes a step", &sent, &of) == 2 && sent ? (double)of / (double)sent : 0;
}

/* Is a figure with its digits the rounded value? The bytes of sparse codecs depend on the gradient: 2 % are allowed. */
static void check_figure(const char *where, const char *codec, const char *figure, double value)
{
    char *end;
    const double said = strtod(figure, &end), unit = memchr(figure, '.', (size_t)(end - figure)) ? 0.1 : 1;
    if (value > 0 && fabs(said - value) < fmax(0.6 * unit, 0.02 * value)) return;
    printf("# %s has %.8s for %s; it is %.2f now\n", where, figure, codec, value);
    test_errors++;
}

/* The rows "| `codec` | figure |" and "| uncompressed | 1 |" between the marks of make readme. */
static void test_the_table_has_the_bytes_of_this_library(void)
{
    static const size_t width[4] = {784, 1152, 1152, 10};
    char *readme = whole_file("README.md");
    char *at = strstr(readme, "<!-- make readme -->"), *end = at ? strstr(at, "<!-- end of make readme -->") : NULL;
    int rows = 0;
    CHECK(at && end);
    for (; at && end && at < end; at = strchr(at + 1, '\n')) {
        char codec[64];
        int length = 0;
        if (sscanf(at, "\n| `%63[^`]` | %n", codec, &length) == 1 && length) {
            check_figure("README.md", codec, at + length, ratio_of(codec, width));
            rows++;
        }
    }
    CHECK(rows == 4);
    free(readme);
}

/* The names "codec, 7.4 times less" in the picture of the demo. */
static void test_the_picture_has_the_bytes_of_this_library(void)
{
    static const size_t width[4] = {784, 512, 256, 10};
    char *svg = whole_file("examples/demo.svg"), *at = svg;
    int names = 0;
    while ((at = strstr(at, "<text>")) != NULL) {
        char codec[64];
        int length = 0;
        at += strlen("<text>");
        if (sscanf(at, "%63[^<, ], %n", codec, &length) == 1 && length && !strncmp(at + length + strcspn(at + length, " <"), " times less", 11)) {
            check_figure("examples/demo.svg", codec, at + length, ratio_of(codec, width));
            names++;
        }
    }
    CHECK(names == 6);
    free(svg);
}

int main(void)
{
    RUN(test_the_table_has_the_bytes_of_this_library);
    RUN(test_the_picture_has_the_bytes_of_this_library);
    return test_end();
}
