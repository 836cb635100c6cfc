/* Proves of gcomp_bound and gcomp_scratch: they grow with n for every codec; the constant
   expressions cover them; and the bound of a sparse codec is what the worst places of its elements
   take, or hardly more. */
#include "codecs.h"
#include "test.h"

#include <math.h>

static void check_growth(const char *text)
{
    gcomp_codec codec;
    size_t before[2] = {0, 0}, falls = 0, above = 0, where = 0, power = 16384;
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    if (gcomp_bound(&codec, 0) == 0) return; /* no payload */
    for (size_t n = 0; n <= ((size_t)1 << 20) + 40; n++) {
        const size_t now[2] = {gcomp_bound(&codec, n), gcomp_scratch(&codec, n)};
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
    size_t length = 0, bound = gcomp_bound(codec, n);
    uint8_t *exact = (uint8_t *)malloc(bound);
    memset(&exec, 0, sizeof exec);
    memset(&in, 0, sizeof in);
    exec.scratch = scratch;
    exec.scratch_bytes = gcomp_scratch(codec, n);
    in.grad = grad;
    in.rows = n;
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
            if (gcomp_bound(&codec, n) - 4 * k > (longest - 4 * k) * 13 / 10)
                printf("# %s of %d: longest %d, bound %d\n", text, (int)n, (int)longest, (int)gcomp_bound(&codec, n));
            CHECK(gcomp_bound(&codec, n) - 4 * k <= (longest - 4 * k) * 13 / 10);
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
    CHECK(gcomp_bound(&codec, 10000000) <= 6 * 10000 + 42); /* 4 bytes a value, 12 bits an index */
    CHECK(gcomp_codec_parse(&codec, "blocktopk:density=0.001,block=256", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 10000000) <= 40 * (4 * 256 + 2) + 43);
    CHECK(gcomp_codec_parse(&codec, "topk:density=0.001+int", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_bound(&codec, 10000000) <= 3 * 10000);
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
        ROW("fp8", GCOMP_BOUND_FP8),
        ROW("mx", GCOMP_BOUND_MX),
        ROW("nvfp4", GCOMP_BOUND_NVFP4),
        ROW("e3m0", GCOMP_BOUND_E3M0),
        ROW("nf4", GCOMP_BOUND_NF4),
        ROW("topk", GCOMP_BOUND_TOPK)};
#undef ROW
    static const size_t sizes[4] = {1, 1000, 4096, 100000};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int s = 0; s < 4; s++) {
            gcomp_codec codec;
            CHECK(gcomp_codec_parse(&codec, rows[r].text, NULL, 0) == GCOMP_OK);
            const size_t bound = gcomp_bound(&codec, sizes[s]);
            if (bound > rows[r].bytes[s] || rows[r].bytes[s] > bound + bound / 2 + 16)
                printf("# %s of %lu: %lu, the macro %lu\n", rows[r].text, (unsigned long)sizes[s],
                       (unsigned long)bound, (unsigned long)rows[r].bytes[s]);
            CHECK(bound <= rows[r].bytes[s] && rows[r].bytes[s] <= bound + bound / 2 + 16);
        }
    CHECK(GCOMP_BOUND_SIGN(4096) == 560);
}

int main(void)
{
    RUN(test_macros_bound_the_payloads_of_single_codecs);
    RUN(test_bounds_and_scratch_grow_with_n);
    RUN(test_all_places_in_short_tensors_fit);
    RUN(test_the_worst_places_take_what_the_bound_says);
    RUN(test_payloads_fit_wherever_the_elements_are);
    RUN(test_the_bound_of_few_elements_is_near_to_what_they_take);
    return test_end();
}
