/* Each method stands in every list that names methods: the two lists of the manual, the page of codecs, codecs.h, the corpus of the
   fuzzer. The library's table of methods says which there are. A failure names the method and the list that lacks it. And what
   examples in comments of the header print is what the library says.

   Run from the repository's root. */
#include "codecs.h"
#include "test.h"

#include <ctype.h>

static char *header, *page; /* the texts of gcomp.h and examples/CODECS.md */

static char *whole_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long bytes;
    CHECK(f != NULL);
    if (!f) exit(1);
    fseek(f, 0, SEEK_END);
    bytes = ftell(f);
    rewind(f);
    text = (char *)calloc((size_t)bytes + 1, 1);
    CHECK(text && fread(text, 1, (size_t)bytes, f) == (size_t)bytes);
    fclose(f);
    return text;
}

static void lacks(const char *list, const char *method)
{
    printf("# %s has no %s\n", list, method);
    CHECK(!"each method is in each list");
}

/* Is this word a method, and which is its number on the wire? 0: it is none. */
static unsigned number_of(const char *word)
{
    gcomp_codec codec;
    for (size_t i = 0; gcomp_method_name(i); i++)
        if (!strcmp(gcomp_method_name(i), word) && gcomp_codec_parse(&codec, word, NULL, 0) == GCOMP_OK) return codec.method;
    return 0;
}

/* ---------------- the manual: a list is a section, whose entries begin with five blanks and one or more names */

/* Copies the head of the next entry, its text up to two blanks, and goes on behind it. Returns 0
   behind the last. */
static int next_head(const char **at, char *head, size_t capacity)
{
    for (;;) {
        const char *line = *at, *end = strchr(line, '\n');
        size_t length = 0;
        if (!end || (!strncmp(line, "   ", 3) && isupper((unsigned char)line[3]))) return 0;
        *at = end + 1;
        if (strncmp(line, "     ", 5) || isspace((unsigned char)line[5])) continue;
        for (line += 5; line + length < end && strncmp(line + length, "  ", 2) && length + 1 < capacity;) length++;
        memcpy(head, line, length);
        head[length] = 0;
        return 1;
    }
}

static const char *section(const char *title)
{
    char text[40];
    const char *at;
    snprintf(text, sizeof text, "\n   %s", title);
    at = strstr(header, text);
    CHECK(at != NULL);
    return at ? strchr(at + 4, '\n') + 1 : "";
}

static int has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += length)
        if ((at == text || at[-1] == ' ') && (!at[length] || at[length] == ' ')) return 1;
    return 0;
}

static int is_headed(const char *title, const char *method)
{
    char head[200];
    const char *at = section(title);
    while (next_head(&at, head, sizeof head))
        if (has_word(head, method)) return 1;
    return 0;
}

static void test_the_manual_has_an_entry_of_each_method(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++)
        if (!is_headed("METHODS", gcomp_method_name(i))) lacks("METHODS in the manual", gcomp_method_name(i));
}

/* An entry names where the method comes from: a year, another method, MXNet; or "no paper". */
static void test_the_manual_has_a_source_of_each_method(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++) {
        char head[40], entry[1500] = "";
        const char *at, *end;
        snprintf(head, sizeof head, "\n     %-11s ", gcomp_method_name(i));
        at = strstr(section("METHODS") - 1, head);
        CHECK(at != NULL);
        if (!at) continue;
        for (end = strchr(at + 1, '\n'); !strncmp(end, "\n                 ", 18);) end = strchr(end + 1, '\n');
        snprintf(entry, sizeof entry, "%.*s", (int)(end - at), at);
        if (!strstr(entry, " 201") && !strstr(entry, " 202") && !strstr(entry, "\n                 as ") && !strstr(entry, "mxnet") && !strstr(entry, "no paper"))
            lacks("a source in METHODS in the manual", gcomp_method_name(i));
    }
}

/* An entry begins as "sign 4", or "strom 22, dryden 23" with a number behind each name. */
static void test_the_wire_format_has_the_number_of_each_method(void)
{
    unsigned long seen[256] = {0};
    const char *at = section("WIRE FORMAT");
    for (const char *end = strchr(at, '\n'); end && strncmp(at, "   SAVED", 8); at = end + 1, end = strchr(at, '\n')) {
        char word[64];
        unsigned long number;
        int used;
        const char *entry = at;
        if (strncmp(at, "     ", 5) || !islower((unsigned char)at[5])) continue;
        while (sscanf(entry, " %63[a-z0-9] %lu%n", word, &number, &used) == 2) {
            if (number_of(word) != number || number > 255) {
                printf("# in WIRE FORMAT %s has the number %lu\n", word, number);
                lacks("the table of methods", word);
            }
            else seen[number]++;
            entry += used;
            entry += *entry == ',';
        }
    }
    for (size_t i = 0; gcomp_method_name(i); i++)
        if (seen[number_of(gcomp_method_name(i))] != 1) lacks("WIRE FORMAT in the manual", gcomp_method_name(i));
}

/* An entry begins with "residual" where an object keeps one. nonzero goes by its values. */
static void test_the_manual_says_which_methods_keep_a_residual(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++) {
        const char *name = gcomp_method_name(i);
        char entry[40];
        gcomp_desc desc;
        gcomp_tensor tensor = {"m", 64, 64, 0, GCOMP_F32, NULL};
        gcomp *gc;
        if (has_word(" dgc fetch nonzero ", name)) continue;
        memset(&desc, 0, sizeof desc);
        desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
        tensor.codec = name;
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        snprintf(entry, sizeof entry, "\n     %-11s residual", name);
        if ((tensor_residual(gc, 0) != NULL) != (strstr(header, entry) != NULL)) lacks("what METHODS in the manual says of residuals", name);
        gcomp_close(gc);
    }
}

/* ---------------- the page of codecs: a method is named at the beginning of some code */

static void test_the_page_of_codecs_has_each_method(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++) {
        const char *name = gcomp_method_name(i), *at = page;
        int found = 0;
        while (!found && (at = strstr(at, name)) != NULL) {
            found = at > page && at[-1] == '`' && strchr("`:+", at[strlen(name)]) != NULL;
            at += strlen(name);
        }
        if (!found) lacks("examples/CODECS.md", name);
    }
}

/* ---------------- codecs.h, from which digests, fuzzing, bench and picture take their codecs */

static void test_codecs_h_has_each_method_with_defaults_and_in_the_bench(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++) {
        const char *name = gcomp_method_name(i);
        int plain = 0, measured = 0;
        for (size_t c = 0; c < ALL_CODECS; c++) {
            const char *text = codec_list[c].text;
            plain |= !strcmp(text, name);
            measured |= !strncmp(text, name, strlen(name)) && strchr(":+", text[strlen(name)]) && codec_list[c].bench;
        }
        if (!plain) lacks("codecs.h", name);
        if (!measured) lacks("the bench, a column of codecs.h,", name);
    }
}

/* Each parameter that a method has is given another value in some line: its code is in digests,
   fuzzing and tests of edges. */
static void test_codecs_h_has_each_parameter(void)
{
    for (size_t i = 0; gcomp_method_name(i); i++) {
        const char *name = gcomp_method_name(i), *has;
        char text[120], why[240], parameter[40], key[48];
        int used;
        gcomp_codec codec;
        snprintf(text, sizeof text, "%s:wrong=1", name);
        CHECK(gcomp_codec_parse(&codec, text, why, sizeof why) == GCOMP_BAD_CODEC);
        has = strstr(why, "; it has: ");
        for (has = has ? has + 10 : ""; sscanf(has, "%39s%n", parameter, &used) == 1; has += used) {
            int found = 0;
            snprintf(key, sizeof key, "%s=", parameter);
            for (size_t c = 0; c < ALL_CODECS && !found; c++)
                found = !strncmp(codec_list[c].text, name, strlen(name)) && codec_list[c].text[strlen(name)] == ':' &&
                        strstr(codec_list[c].text, key) != NULL;
            snprintf(text, sizeof text, "codec %s:%s", name, key);
            if (!found) lacks("codecs.h", text);
        }
    }
}

static void test_codecs_h_has_a_codec_once_and_as_the_library_prints_it(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        char printed[160];
        gcomp_codec codec;
        CHECK(gcomp_codec_parse(&codec, codec_list[c].text, NULL, 0) == GCOMP_OK);
        gcomp_codec_format(&codec, printed, sizeof printed);
        if (strcmp(printed, codec_list[c].text)) printf("# codecs.h: \"%s\" is printed \"%s\"\n", codec_list[c].text, printed);
        CHECK(!strcmp(printed, codec_list[c].text));
        for (size_t d = 0; d < c; d++) CHECK(strcmp(codec_list[c].text, codec_list[d].text));
        CHECK(codec_list[c].digest != 0 && codec_list[c].family >= 0 && codec_list[c].family < FAMILIES);
    }
}

/* ---------------- the corpus */

static void test_the_corpus_has_a_payload_of_each_codec(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) {
        char path[160];
        FILE *f;
        if (!codec_has_payload(codec_list[c].text)) continue;
        snprintf(path, sizeof path, "tests/edges/corpus/valid_%s", codec_list[c].text);
        for (char *at = path; *at; at++)
            if (strchr(":,+=", *at)) *at = '_';
        f = fopen(path, "rb");
        if (!f) lacks("tests/edges/corpus (gcc -DFUZZ_MAIN -I. -Iexamples/adapters tests/edges/fuzz_decode.c -o fuzz -lm && ./fuzz --make-corpus tests/edges/corpus)", codec_list[c].text);
        else fclose(f);
    }
}

/* ---------------- examples in comments of the header: what they print is what the library says */

static void test_the_examples_of_codec_texts_say_what_parsing_says(void)
{
    static const char title[] = "and what gcomp_codec_parse says:\n";
    const char *at = strstr(header, title);
    int examples = 0;
    CHECK(at != NULL);
    if (!at) return;
    for (at += sizeof title - 1; !strncmp(at, "     ", 5); at = strchr(at, '\n') + 1, examples++) {
        char text[80], says[160], why[160] = "", printed[80];
        const char *gap = strstr(at + 5, "  ");
        gcomp_codec codec;
        snprintf(text, sizeof text, "%.*s", (int)(gap - at - 5), at + 5);
        gap += strspn(gap, " ");
        snprintf(says, sizeof says, "%.*s", (int)strcspn(gap, "\n"), gap);
        if (gcomp_codec_parse(&codec, text, why, sizeof why) == GCOMP_OK) {
            gcomp_codec_format(&codec, printed, sizeof printed);
            snprintf(why, sizeof why, "is read; printed as \"%s\"", printed);
            says[strlen(why)] = 0; /* the reason follows */
        }
        if (strcmp(says, why)) printf("# \"%s\": the comment says %s, the library %s\n", text, says, why);
        CHECK(!strcmp(says, why));
    }
    CHECK(examples >= 8);
}

static void test_the_example_of_gcomp_describe_is_what_it_says(void)
{
    gcomp_desc desc = {0};
    gcomp_tensor weight = {0}, bias = {0};
    gcomp *gc = NULL;
    char text[600];
    desc.codec = "topk:density=0.02";
    desc.comm.world = 2;
    weight.name = "fc1.weight", weight.rows = 784, weight.cols = 1152;
    bias.name = "fc1.bias", bias.rows = 1152;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &weight) == GCOMP_OK && gcomp_add_tensor(gc, &bias) == GCOMP_OK);
    CHECK(gcomp_describe(gc, text, sizeof text) < sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char expected[160];
        snprintf(expected, sizeof expected, "\n     %s\n", line);
        if (!strstr(header, expected)) printf("# no comment has \"%s\"\n", line);
        CHECK(strstr(header, expected) != NULL);
    }
    gcomp_close(gc);
}

int main(void)
{
    header = whole_file("gcomp.h");
    page = whole_file("examples/CODECS.md");
    RUN(test_the_manual_has_an_entry_of_each_method);
    RUN(test_the_manual_has_a_source_of_each_method);
    RUN(test_the_wire_format_has_the_number_of_each_method);
    RUN(test_the_manual_says_which_methods_keep_a_residual);
    RUN(test_the_page_of_codecs_has_each_method);
    RUN(test_codecs_h_has_each_method_with_defaults_and_in_the_bench);
    RUN(test_codecs_h_has_each_parameter);
    RUN(test_codecs_h_has_a_codec_once_and_as_the_library_prints_it);
    RUN(test_the_corpus_has_a_payload_of_each_codec);
    RUN(test_the_examples_of_codec_texts_say_what_parsing_says);
    RUN(test_the_example_of_gcomp_describe_is_what_it_says);
    free(header);
    free(page);
    return test_end();
}
