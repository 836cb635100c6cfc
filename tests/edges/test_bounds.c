/* Proves of gcomp_bound, of payloads and of scratch: both grow with n for every codec; the constant
   expressions cover them; and the bound of a sparse codec is what the worst places of its elements
   take, or hardly more. Of all functions of sizes: they return for sizes up to SIZE_MAX, and what
   cannot be addressed is refused by name. */
#include "codecs.h"
#include "test.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

static void check_growth(const char *text)
{
    gcomp_codec codec;
    size_t before[2] = {0, 0}, falls = 0, above = 0, where = 0, power = 16384;
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    if (gcomp_bound(&codec, 0, NULL) == 0) return; /* no payload */
    for (size_t n = 0; n <= ((size_t)1 << 20) + 40; n++) {
        const size_t now[2] = {gcomp_bound(&codec, n, NULL), scratch_of(&codec, n)};
        if (now[0] < before[0] || now[1] < before[1]) falls++, where = n;
        above += now[0] > GCOMP_BOUND(n) || now[1] > GCOMP_SCRATCH(n);
        memcpy(before, now, sizeof now);
        if (n > 20000 && n == 2 * power + 40) power *= 2;
        if (n >= 20000 && n < 2 * power - 40) n = 2 * power - 40; /* on to the next power of two */
    }
    if (falls) printf("# %s: falls %d times, last at n = %d\n", text, (int)falls, (int)where);
    CHECK(falls == 0 && above == 0);
}

static void test_bounds_and_scratch_grow_with_n(void)
{
    for (size_t c = 0; c < ALL_CODECS; c++) check_growth(codec_list[c].text);
}

/* ---------------- places */

enum { LARGEST = 200000 };
static float grad[LARGEST];
static uint8_t scratch[GCOMP_SCRATCH(LARGEST)];

/* The codec keeps what is not zero, in exactly as many bytes as it says it takes at most.
   Returns the length. */
static size_t encode(const gcomp_codec *codec, size_t n)
{
    gcomp_exec exec;
    gcomp_input in;
    size_t length = 0, bound = gcomp_bound(codec, n, NULL);
    uint8_t *exact = (uint8_t *)malloc(bound);
    memset(&exec, 0, sizeof exec);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    exec.scratch = scratch;
    exec.scratch_bytes = scratch_of(codec, n);
    in.grad = grad;
    in.rows = n;
    in.key = gcomp_key_make(1, 0, 0, 0);
    CHECK(gcomp_encode(codec, &in, &exec, exact, bound, &length) == GCOMP_OK && length <= bound);
    CHECK(gcomp_check(exact, length, n) == GCOMP_OK);
    free(exact);
    return length;
}

static void test_all_places_in_short_tensors_fit(void)
{
    for (size_t n = 1; n <= 13; n++)
        for (size_t k = 1; k <= n; k++) {
            char text[64];
            gcomp_codec codec;
            snprintf(text, sizeof text, "topk:density=%.6f", (double)k / (double)n);
            CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
            for (uint32_t set = 0; set < 1u << n; set++) {
                size_t ones = 0;
                for (size_t i = 0; i < n; i++) ones += set >> i & 1;
                if (ones != k) continue;
                for (size_t i = 0; i < n; i++) grad[i] = (float)(set >> i & 1);
                (void)encode(&codec, n);
            }
        }
}

/* k places below n: with gaps alike, in several ways unlike, at the ends, by chance. */
static void put_places(size_t n, size_t k, int how, uint64_t seed)
{
    size_t at = 0;
    memset(grad, 0, 4 * n);
    for (size_t i = 0; i < k; i++) {
        const size_t left = n - at - (k - i); /* what the gaps may still add up to */
        const size_t mean = (n - k) / k, alike = left / (k - i);
        size_t gap = how == 0 ? alike : how == 1 ? 0 : how == 2 ? (i % 128 == 0 ? left / (k / 128 + 1) : 0) : mean;
        if (how == 3) gap = i + 1 < k ? 0 : left;
        if (how == 4) gap = mean / 2 + mix(seed + i) % (mean + 1);
        if (how == 5) gap = (size_t)(-log(((double)(mix(seed + i) >> 11) + 1) / 9007199254740993.0) * (double)mean);
        if (how == 6) { /* just so long that one more bit would be needed */
            size_t power = 1;
            while (2 * power <= mean + 1) power *= 2;
            gap = i % 2 ? 2 * power - 1 : power - 1;
        }
        if (how == 7) gap = i % 2 ? 2 * mean : 0;
        at += gap < left ? gap : left;
        grad[at++] = 1 + (float)(i % 7);
    }
}

static void test_the_worst_places_take_what_the_bound_says(void)
{
    static const char *const densities[] = {"0.9", "0.5", "0.3", "0.2", "0.1", "0.03", "0.01", "0.003", "0.001", "0.0003", "0.0001"};
    static const size_t sizes[] = {20000, 65536, LARGEST};
    for (size_t s = 0; s < 3; s++)
        for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
            char text[64];
            gcomp_codec codec;
            size_t longest = 0, n = sizes[s], k = (size_t)ceil(strtod(densities[d], NULL) * (double)n - 1e-6);
            snprintf(text, sizeof text, "topk:density=%s", densities[d]);
            CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
            for (int how = 0; how < 8; how++)
                for (uint64_t seed = 0; seed < 2; seed++) {
                    size_t length;
                    put_places(n, k, how, seed);
                    length = encode(&codec, n);
                    longest = length > longest ? length : longest;
                }
            if (gcomp_bound(&codec, n, NULL) - 4 * k > (longest - 4 * k) * 13 / 10)
                printf("# %s of %d: longest %d, bound %d\n", text, (int)n, (int)longest, (int)gcomp_bound(&codec, n, NULL));
            CHECK(gcomp_bound(&codec, n, NULL) - 4 * k <= (longest - 4 * k) * 13 / 10);
        }
}

static void test_payloads_fit_wherever_the_elements_are(void)
{
    static const size_t sizes[] = {1, 2, 17, 255, 256, 257, 1000, 40000, LARGEST};
    for (size_t c = 0; c < ALL_CODECS; c++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes && codec_has_payload(codec_list[c].text); s++)
            for (int how = 0; how < 8; how++) {
                gcomp_codec codec;
                CHECK(gcomp_codec_parse(&codec, codec_list[c].text, NULL, 0) == GCOMP_OK);
                for (size_t share = 1; share <= sizes[s]; share = share * 30 + 3) {
                    put_places(sizes[s], (sizes[s] + share - 1) / share, how, c);
                    (void)encode(&codec, sizes[s]);
                }
            }
}

static void test_the_bound_of_few_elements_is_near_to_what_they_take(void)
{
    gcomp_codec codec;
    CHECK(gcomp_codec_parse(&codec, "topk:density=0.001", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 10000000, NULL) <= 6 * 10000 + 42); /* 4 bytes a value, 12 bits an index */
    CHECK(gcomp_codec_parse(&codec, "blocktopk:density=0.001,block=256", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 10000000, NULL) <= 40 * (4 * 256 + 2) + 43);
    CHECK(gcomp_codec_parse(&codec, "topk:density=0.001+int", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 10000000, NULL) <= 3 * 10000);
}

/* The macros for static memory are what gcomp_bound says of the default parameters, or little
   more. */
static void test_macros_bound_the_payloads_of_single_codecs(void)
{
#define ROW(text, macro) {text, {macro(1), macro(1000), macro(4096), macro(100000)}}
    static const struct {
        const char *text;
        size_t bytes[4];
    } rows[] = {
        ROW("none", GCOMP_BOUND_NONE),
        ROW("fp16", GCOMP_BOUND_FP16),
        ROW("bf16", GCOMP_BOUND_BF16),
        ROW("sign", GCOMP_BOUND_SIGN),
        ROW("onebit", GCOMP_BOUND_ONEBIT),
        ROW("twobit", GCOMP_BOUND_TWOBIT),
        ROW("vote", GCOMP_BOUND_VOTE),
        ROW("terngrad", GCOMP_BOUND_TERNGRAD),
        ROW("qsgd", GCOMP_BOUND_QSGD),
        ROW("natural", GCOMP_BOUND_NATURAL),
        ROW("int", GCOMP_BOUND_INT),
        ROW("ecsq", GCOMP_BOUND_ECSQ),
        ROW("fp8", GCOMP_BOUND_FP8),
        ROW("mx", GCOMP_BOUND_MX),
        ROW("nvfp4", GCOMP_BOUND_NVFP4),
        ROW("e3m0", GCOMP_BOUND_E3M0),
        ROW("nf4", GCOMP_BOUND_NF4),
        ROW("lloyd", GCOMP_BOUND_LLOYD),
        ROW("topk", GCOMP_BOUND_TOPK)};
#undef ROW
    static const size_t sizes[4] = {1, 1000, 4096, 100000};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int s = 0; s < 4; s++) {
            gcomp_codec codec;
            CHECK(gcomp_codec_parse(&codec, rows[r].text, NULL, 0) == GCOMP_OK);
            const size_t bound = gcomp_bound(&codec, sizes[s], NULL);
            if (bound > rows[r].bytes[s] || rows[r].bytes[s] > bound + bound / 2 + 16)
                printf("# %s of %lu: %lu, the macro %lu\n", rows[r].text, (unsigned long)sizes[s],
                       (unsigned long)bound, (unsigned long)rows[r].bytes[s]);
            CHECK(bound <= rows[r].bytes[s] && rows[r].bytes[s] <= bound + bound / 2 + 16);
        }
    CHECK(GCOMP_BOUND_SIGN(4096) == 560);
}

/* ---------------- sizes up to SIZE_MAX */

/* Parameters at their limits. test_sizes_of_any_n_are_told looks that each method is here. */
static const char *const limits[] = {
    "none", "fp16", "fp16:rounding=stochastic", "bf16", "sign:block=16", "sign:block=tensor,scale=rms", "onebit:block=16",
    "sign:block=row", "onebit:block=row",
    "onebit:block=tensor", "twobit:threshold=1e-22", "twobit:threshold=auto,rate=1", "threshold1", "vote", "int:bits=2,block=16",
    "int:bits=8,block=16,range=affine", "int:bits=4,block=tensor", "int:bits=4,block=16", "ecsq:bits=0.5", "ecsq:bits=6",
    "qsgd:levels=1,bucket=16", "qsgd:levels=32767,bucket=16", "qsgd:levels=32767,norm=l2,bucket=tensor",
    "qsgd:levels=1,bucket=65536,code=entropy", "qsgd:levels=127,bucket=16,code=entropy", "terngrad:clip=0", "terngrad:block=16,code=entropy", "terngrad:share=1", "natural",
    "fp8:block=16", "fp8:block=tensor", "mx", "mx:format=int8", "nvfp4", "e3m0:block=16", "e3m0:block=tensor", "nf4:block=16",
    "nf4:block=4096", "lloyd", "eden:bits=4,block=64", "eden:bits=1,block=65536,feedback=1", "eden:bits=4,block=65536",
    "topk:density=1", "topk:density=1e-9", "topk:density=1,exact=0", "topk:density=1,chunk=1", "topk:density=1e-9,chunk=1",
    "topk:density=1,chunk=65536", "topk:density=1,global=1", "topk:density=1+nvfp4", "topk:density=1+qsgd:levels=32767,bucket=16",
    "strom:threshold=1e-20", "strom+onebit:block=16", "nonzero", "nonzero+int:block=16", "dryden:density=1",
    "dryden:density=1e-9", "wangni:density=1", "wangni:density=1e-9", "wangni:density=0.5+fp16", "adacomp:bin=1",
    "adacomp:bin=65536", "blocktopk:density=1,block=16", "blocktopk:density=1e-9,block=65536", "dgc:density=1",
    "dgc:density=1e-9,warmup=0", "dct:top=4096,chunk=64", "dct:top=1,chunk=1", "randomk:density=1", "randomk:density=1e-9",
    "leadertopk:density=1", "leadertopk:density=1e-9", "sketch:density=1", "sketch:density=1e-9,rows=1",
    "sketch:columns=16", "fetch:density=1", "fetch:density=1e-9,columns=16,rows=7", "powersgd:rank=64", "powersgd:rank=1",
    "powersgd:rank=auto,share=1", "powersgd:rank=64,alternate=1,momentum=0.9999", "intsum", "intsum:bits=32"};
enum { LIMITS = sizeof limits / sizeof *limits };

/* The i-th of the sizes: 0, 1, 2; powers of two and their neighbours; SIZE_MAX and somewhat less.
   They grow. */
enum { BITS = sizeof(size_t) * CHAR_BIT, SIZES = 3 * BITS + 1 };
static size_t size_at(size_t i)
{
    static const size_t below[] = {4096, 65, 2, 0};
    if (i < 3) return i;
    if (i < SIZES - 4) return ((size_t)1 << (i / 3 + 1)) - 1 + i % 3;
    return SIZE_MAX - below[i + 4 - SIZES];
}

static void too_late(int signal_number)
{
    static const char text[] = "Bail out! a function of sizes does not return\n";
    (void)signal_number;
    (void)!write(1, text, sizeof text - 1);
    _exit(1);
}

/* Neither a bound nor a scratch gets smaller with n before it is 0, which means too much. */
static void check_sizes_of(const char *text)
{
    gcomp_codec codec;
    size_t most[2] = {0, 0}, wrong = 0, where = 0;
    /* of methods with values behind a plus dct alone has places in chunks, and no indices */
    const int sparse = codec_is_sparse(text) && codec_has_payload(text) && strncmp(text, "dct", 3) != 0;
    if (gcomp_codec_parse(&codec, text, NULL, 0) != GCOMP_OK) printf("# %s\n", text);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    const size_t few[2] = {gcomp_bound(&codec, 1, NULL), scratch_of(&codec, 1)};
    for (size_t i = 0; i < SIZES; i++) {
        const size_t n = size_at(i), now[2] = {gcomp_bound(&codec, n, NULL), scratch_of(&codec, n)};
        for (int which = 0; which < 2; which++) {
            const int too_much = few[which] != 0 && now[which] == 0;
            int bad = few[which] == 0 && now[which] != 0 && n > 0;
            if (too_much) bad |= n < SIZE_MAX / 16 && !(sparse && (uint64_t)n > UINT32_MAX);
            else bad |= now[which] < most[which];
            if (sparse && (uint64_t)n > (uint64_t)UINT32_MAX + 1) bad |= now[which] != 0;
            if (bad) wrong++, where = n;
            most[which] = too_much ? SIZE_MAX : now[which];
        }
    }
    if (wrong) printf("# %s: %d wrong, last at n = %zu\n", text, (int)wrong, where);
    CHECK(wrong == 0);
}

static void test_sizes_of_any_n_are_told(void)
{
    for (size_t i = 1; i < SIZES; i++) CHECK(size_at(i) > size_at(i - 1));
    for (size_t m = 0; gcomp_method_name(m); m++) { /* each method has a line */
        const char *name = gcomp_method_name(m);
        size_t found = 0;
        for (size_t i = 0; i < LIMITS; i++)
            found += strncmp(limits[i], name, strlen(name)) == 0 && strchr(":+", limits[i][strlen(name)]) != NULL;
        if (!found) printf("# %s has no line in limits\n", name);
        CHECK(found);
    }
    for (size_t i = 0; i < LIMITS; i++) check_sizes_of(limits[i]);
    for (size_t c = 0; c < ALL_CODECS; c++) check_sizes_of(codec_list[c].text);
}

static int no_largest(void *user, float *data, size_t count)
{
    (void)user, (void)data, (void)count;
    return 1;
}
static int no_alltoallv(void *user, const void *send, const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    (void)user, (void)send, (void)send_bytes, (void)recv, (void)recv_bytes;
    return 1;
}

/* An allocator with little memory: what is larger is not there. */
static void *alloc_little(void *user, size_t bytes, size_t align)
{
    (void)user, (void)align;
    return bytes > 262144 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
}
static void free_little(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

/* Adds one tensor of this shape. All functions agree on whether its bytes can be addressed. */
static void check_shape(const gcomp_desc *desc, const gcomp_tensor *tensor)
{
    gcomp *gc;
    gcomp_round rounds[GCOMP_ROUNDS];
    char text[512];
    const gcomp_result opened = gcomp_open(&gc, desc);
    if (opened != GCOMP_OK) printf("# %s: %s\n", desc->codec, desc->why);
    CHECK(opened == GCOMP_OK);
    if (opened != GCOMP_OK) return;
    const size_t needed = gcomp_memory_needed(desc, tensor, 1);
    const gcomp_result asked = gcomp_rounds(desc, tensor, 1, NULL, rounds), added = gcomp_add_tensor(gc, tensor);
    const size_t rows = tensor->rows, cols = tensor->cols ? tensor->cols : 1, stack = tensor->stack ? tensor->stack : 1;
    const int large = rows > SIZE_MAX / 8 / cols || rows * cols > SIZE_MAX / 8 / stack; /* more than PTRDIFF_MAX / 4 elements */
    const int refused = added == GCOMP_INVALID_ARGUMENT;
    int good = refused ? asked == added && strstr(gcomp_error(gc), "'large'") != NULL
                       : asked == GCOMP_OK && !large && needed != 0 && (added == GCOMP_OK || added == GCOMP_OUT_OF_MEMORY);
    if (rows == 0) good = good && refused;
    if (added == GCOMP_OK) {
        const gcomp_result prepared = gcomp_prepare(gc);
        const size_t length = gcomp_describe(gc, text, sizeof text);
        good = good && length > 0 && length < sizeof text && (prepared == GCOMP_OK || prepared == GCOMP_OUT_OF_MEMORY);
    }
    if (!good)
        printf("# %s, %zu workers, %zu x %zu x %zu: rounds %s, added %s, needed %zu: %s\n", desc->codec, (size_t)desc->comm.world,
               tensor->stack, rows, tensor->cols, result_name(asked), result_name(added), needed, gcomp_error(gc));
    CHECK(good);
    gcomp_close(gc);
}

static void test_tensors_that_cannot_be_addressed_are_refused_by_name(void)
{
    static const int worlds[] = {1, 2, 5, 1000};
    static const char *const residuals[] = {NULL, "bf16", "int8"};
    char why[256];
    gcomp_desc desc;
    gcomp_tensor tensor;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "large";
    desc.why = why;
    desc.why_capacity = sizeof why;
    desc.min_elements = 1;
    desc.compress_vectors = 1;
    desc.allocator.alloc = alloc_little;
    desc.allocator.free = free_little;
    desc.comm.allreduce = no_allreduce;
    desc.comm.allgather = no_allgather;
    desc.comm.allreduce_max = no_largest;
    for (int type = GCOMP_F32; type <= GCOMP_I32; type++)
        if (type != GCOMP_U8) desc.comm.allreduce_dtypes |= 1u << type;
    for (size_t i = 0; i < LIMITS; i++) {
        desc.codec = limits[i];
        for (size_t w = 0; w < 4; w++) {
            desc.comm.world = worlds[w];
            desc.comm.alltoallv = (i + w) % 2 ? no_alltoallv : NULL;
            desc.residual = residuals[(i + w) % 3];
            tensor.dtype = (gcomp_dtype)((i / 2 + w) % 3);
            if (worlds[w] > 127 && strncmp(limits[i], "intsum", 6) == 0) continue; /* too many for int8 */
            for (size_t s = 0; s < SIZES; s += 1 + (s > 9 && s + 8 < SIZES) * 4) { /* some of the sizes, and all at both ends */
                const size_t size = size_at(s), root = (size_t)1 << s / 6;
                const size_t shapes[][3] = {{size, 0, 0}, {1, size, 0}, {3, 1, size}, {size, size, 0}, {size, 2, size},
                                            {root, root + 1, 0}, {root, 64, root}, {64, root, 1}};
                for (size_t k = 0; k < 8; k++) {
                    tensor.rows = shapes[k][0];
                    tensor.cols = shapes[k][1];
                    tensor.stack = shapes[k][2];
                    check_shape(&desc, &tensor);
                }
            }
        }
    }
}

int main(void)
{
    signal(SIGALRM, too_late);
    alarm(600);
    RUN(test_sizes_of_any_n_are_told);
    RUN(test_tensors_that_cannot_be_addressed_are_refused_by_name);
    RUN(test_macros_bound_the_payloads_of_single_codecs);
    RUN(test_bounds_and_scratch_grow_with_n);
    RUN(test_all_places_in_short_tensors_fit);
    RUN(test_the_worst_places_take_what_the_bound_says);
    RUN(test_payloads_fit_wherever_the_elements_are);
    RUN(test_the_bound_of_few_elements_is_near_to_what_they_take);
    return test_end();
}
