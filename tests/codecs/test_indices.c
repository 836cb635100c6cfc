/* Proves of the indices of sparse methods: an encoder writes them with the coder that takes the
   fewest bytes, by sizes counted here; they are read back; and what no encoder writes is refused
   with the right error. The writers and sizes here follow the text of the manual, bit by bit. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#if defined(__unix__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
#include <sys/mman.h>
#include <unistd.h>
#endif

enum { LARGEST = 1 << 20, RAW = 253, PACKED = 254, BITMAP = 255, STREAM = 1 << 20 };

static float g[LARGEST], y[LARGEST];
static uint32_t list[LARGEST];
static uint8_t payload[GCOMP_BOUND(LARGEST)], scratch[GCOMP_SCRATCH(LARGEST)], stream[STREAM], hand[2 * STREAM];
static size_t stream_bits;
static gcomp_isa isa;

static uint64_t mixed(uint64_t i)
{
    uint64_t x = (i + 3) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 29;
}

/* ---------------- by the manual */
static void put_bits(uint64_t value, unsigned count)
{
    for (unsigned b = 0; b < count; b++, stream_bits++)
        if (value >> b & 1) stream[stream_bits / 8] |= (uint8_t)(1u << stream_bits % 8);
}

static uint32_t gap_of(size_t i) { return i ? list[i] - list[i - 1] - 1 : list[0]; }

static unsigned width_of(size_t first, size_t k) /* of a block */
{
    unsigned width = 0;
    for (size_t i = first; i < k && i < first + 128; i++)
        while (width < 32 && gap_of(i) >> width) width++;
    return width;
}

static void pad(void) { stream_bits = (stream_bits + 7) / 8 * 8; }

/* The k indices of the list to the stream; blocks `wider` than they need be. Returns the bytes. */
static size_t write_stream(unsigned coder, size_t k, size_t n, unsigned wider)
{
    memset(stream, 0, sizeof stream);
    stream_bits = 0;
    for (size_t i = 0; i < k; i++) {
        const uint32_t gap = gap_of(i);
        if (coder == BITMAP) stream[list[i] / 8] |= (uint8_t)(1u << list[i] % 8);
        else if (coder == RAW) put_bits(list[i], 32);
        else if (coder == PACKED) {
            if (i % 128 == 0) {
                pad();
                put_bits(width_of(i, k) + wider, 8);
            }
            put_bits(gap, width_of(i / 128 * 128, k) + wider);
        } else {
            for (uint64_t q = (uint64_t)gap >> coder; q; q--) put_bits(1, 1);
            put_bits(0, 1);
            put_bits(gap & (((uint64_t)1 << coder) - 1), coder);
        }
    }
    pad();
    return coder == BITMAP ? (n + 7) / 8 : stream_bits / 8;
}

static uint64_t size_of(unsigned coder, size_t k, size_t n)
{
    uint64_t bits = 0, bytes = 0;
    if (coder == BITMAP) return (n + 7) / 8;
    if (coder == RAW) return 4 * (uint64_t)k;
    if (coder == PACKED) {
        for (size_t i = 0; i < k; i += 128) bytes += 1 + ((k - i < 128 ? k - i : 128) * width_of(i, k) + 7) / 8;
        return bytes;
    }
    for (size_t i = 0; i < k; i++) bits += ((uint64_t)gap_of(i) >> coder) + 1 + coder;
    return (bits + 7) / 8;
}

/* The coder that the manual asks for. */
static unsigned shortest(size_t k, size_t n)
{
    unsigned best = BITMAP;
    uint64_t least = 0;
    for (unsigned r = 0, rice = 0; r <= 32; r++) { /* of Rice parameters the one of fewest bits, not bytes */
        uint64_t bits = (uint64_t)k * (r + 1);
        for (size_t i = 0; i < k; i++) bits += (uint64_t)gap_of(i) >> r;
        if (r == 0 || bits < least) {
            least = bits;
            rice = r;
        }
        if (r == 32 && size_of(rice, k, n) < size_of(best, k, n)) best = rice;
    }
    if (size_of(PACKED, k, n) < size_of(best, k, n)) best = PACKED;
    if (size_of(RAW, k, n) < size_of(best, k, n)) best = RAW;
    return best;
}

/* ---------------- encoding */
static size_t send(size_t n) /* the elements of g that are not 0 */
{
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    exec.isa = isa;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    CHECK(gcomp_codec_parse(&codec, "nonzero", NULL, 0) == GCOMP_OK);
    CHECK(gcomp_encode(&codec, &in, &exec, payload, gcomp_bound(&codec, n, NULL), &length) == GCOMP_OK);
    CHECK(gcomp_check(payload, length, n) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK && !memcmp(y, g, 4 * n));
    return length;
}

/* The list is sent as the manual says; returns the coder. */
static unsigned check_list(size_t k, size_t n)
{
    const unsigned coder = shortest(k, n);
    size_t length, bytes;
    memset(g, 0, 4 * n);
    for (size_t i = 0; i < k; i++) g[list[i]] = (float)(i % 1000 + 1);
    length = send(n);
    bytes = write_stream(coder, k, n, 0);
    CHECK(get_word(payload + 32, 8) == k && payload[40] == coder);
    CHECK(length == 41 + bytes + 4 * k && !memcmp(payload + 41, stream, bytes));
    return coder;
}

static void test_every_subset_of_few_elements_is_sent_in_the_fewest_bytes(void)
{
    for (size_t n = 0; n <= 12; n++)
        for (uint32_t set = 0; set < (uint32_t)1 << n; set++) {
            size_t k = 0;
            for (uint32_t i = 0; i < n; i++)
                if (set >> i & 1) list[k++] = i;
            check_list(k, n);
        }
}

/* Lists of many kinds: random ones, runs, equal gaps, runs with gaps between, one gap that is
   large. */
static size_t make_list(int kind, size_t n, uint64_t seed)
{
    const uint64_t density = (uint64_t)1 << (1 + seed % 12);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = mixed(seed * 1000003 + i);
        int in = 0;
        if (kind == 0) in = r % density == 0;
        if (kind == 1) in = i % (4 * density) < 2 * density;
        if (kind == 2) in = i % density == density / 2;
        if (kind == 3) in = i / 500 % density == 0 && r & 1;
        if (kind == 4) in = i < 200 || i + seed % 500 >= n;
        if (kind == 5) in = r % density != 0;
        if (in) list[k++] = (uint32_t)i;
    }
    return k;
}

static void test_lists_of_every_kind_are_sent_in_the_fewest_bytes(void)
{
    static const size_t sizes[] = {1, 63, 64, 65, 127, 128, 129, 255, 257, 1000, 4096, 20011};
    size_t coded[256] = {0};
    for (int kind = 0; kind < 6; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (uint64_t seed = 0; seed < 12; seed++) coded[check_list(make_list(kind, sizes[s], seed), sizes[s])]++;
    CHECK(coded[BITMAP] && coded[PACKED] && coded[0] && coded[1] && coded[2] && coded[7]);
}

static void test_no_element_one_the_first_the_last_and_all_are_sent(void)
{
    static const size_t sizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 128, 129, 1000, 65536, LARGEST - 1};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        check_list(0, n);
        list[0] = 0;
        check_list(1, n);
        list[0] = (uint32_t)n / 2;
        check_list(1, n);
        list[0] = (uint32_t)n - 1;
        check_list(1, n);
        list[0] = 0;
        list[1] = (uint32_t)n - 1;
        if (n > 1) check_list(2, n);
        for (size_t i = 0; i < n; i++) list[i] = (uint32_t)i;
        check_list(n, n);
        check_list(n - 1, n);
    }
}

/* k random ones of n take at most 3 % more than log2 of the number of such sets. */
static void test_random_indices_are_within_three_percent_of_the_least(void)
{
    static const double densities[] = {0.1, 0.01, 0.001, 0.0001};
    for (int d = 0; d < 4; d++) {
        const size_t n = LARGEST - 1;
        double k = 0, limit;
        memset(g, 0, 4 * n);
        for (size_t i = 0; i < n; i++)
            if ((double)(mixed((uint64_t)d * n + i) >> 11) < densities[d] * 9007199254740992.0) {
                g[i] = 1;
                k++;
            }
        limit = (lgamma((double)n + 1) - lgamma(k + 1) - lgamma((double)n - k + 1)) / log(2) / 8;
        CHECK((double)(send(n) - 41) - 4 * k <= 1.03 * limit);
    }
}

/* ---------------- payloads made by hand */

/* A topk payload with `bytes` bytes of the stream. All its values are 1. Returns its length. */
static size_t by_hand(uint64_t n, uint64_t k, unsigned coder, size_t bytes)
{
    put_topk_header(hand, n, k, coder, bytes + 4 * (size_t)k);
    memcpy(hand + 41, stream, bytes);
    for (size_t i = 0; i < k; i++) put_word(hand + 41 + bytes + 4 * i, bits_of(1), 4);
    return 41 + bytes + 4 * (size_t)k;
}

static gcomp_result verdict(uint64_t n, uint64_t k, unsigned coder, size_t bytes)
{
    size_t length = by_hand(n, k, coder, bytes);
    uint8_t *exact = (uint8_t *)malloc(length); /* a byte too far is seen by the sanitizers */
    gcomp_exec exec = {GCOMP_ISA_AUTO, NULL, 0, {NULL, NULL}};
    gcomp_result result;
    exec.isa = isa;
    memcpy(exact, hand, length);
    result = gcomp_check(exact, length, (size_t)n);
    if (n <= LARGEST) CHECK(gcomp_decode(exact, length, y, GCOMP_F32, (size_t)n, &exec) == result);
    if (n <= LARGEST && result == GCOMP_OK) {
        size_t ones = 0;
        for (size_t i = 0; i < n; i++) ones += y[i] == 1;
        for (size_t i = 0; i < k; i++) CHECK(y[list[i]] == 1);
        CHECK(ones == k);
    }
    free(exact);
    return result;
}

static const unsigned coders[] = {0, 1, 2, 3, 5, 8, 13, 21, 27, 28, 31, 32, RAW, PACKED, BITMAP};
static const size_t counts[] = {0, 1, 2, 3, 15, 16, 17, 127, 128, 129, 255, 256, 257, 300};
enum { CODERS = sizeof coders / sizeof *coders, COUNTS = sizeof counts / sizeof *counts, N = 5000 };

static size_t some_list(size_t k, uint32_t most) /* gaps of 0 .. most, small ones more often; returns the number behind */
{
    uint32_t next = 0;
    for (size_t i = 0; i < k; i++) {
        uint64_t r = mixed(k + 7 * i);
        next += (uint32_t)(r % 3 ? r >> 8 & 3 : (r >> 8) % (most + 1));
        list[i] = next++;
    }
    return next;
}

static void test_every_coder_is_read_whether_it_is_the_shortest_or_not(void)
{
    static const uint32_t most[] = {0, 1, 15, 40, 800};
    for (size_t c = 0; c < CODERS; c++)
        for (size_t m = 0; m < 5; m++)
            for (size_t s = 0; s < COUNTS; s++) {
                const size_t k = counts[s], n = some_list(k, most[m]);
                CHECK(verdict(n, k, coders[c], write_stream(coders[c], k, n, 0)) == GCOMP_OK);
                if (k) CHECK(verdict(n - 1, k, coders[c], write_stream(coders[c], k, n - 1, 0)) == GCOMP_CORRUPT);
            }
}

static void test_every_other_length_is_refused(void)
{
    for (size_t c = 0; c < CODERS; c++)
        for (size_t s = 0; s < COUNTS; s++) {
            const size_t k = counts[s], bytes = (some_list(k, 15), write_stream(coders[c], k, N, 0));
            for (size_t cut = 0; cut < bytes; cut += 1 + cut / 40) CHECK(verdict(N, k, coders[c], cut) == GCOMP_CORRUPT);
            for (size_t more = 1; more < 12; more++)
                CHECK(verdict(N, k, coders[c], bytes + more) == (coders[c] == BITMAP ? GCOMP_CORRUPT : GCOMP_TRAILING_BYTES));
        }
}

static void test_padding_is_zero(void)
{
    for (size_t c = 0; c < CODERS; c++)
        for (size_t k = 1; k < 140; k += 1 + k / 20) {
            const size_t n = some_list(k, 15), bytes = write_stream(coders[c], k, n, 0);
            size_t bits = 8 * bytes; /* where padding begins */
            if (coders[c] == BITMAP) bits = n;
            else if (coders[c] == PACKED) bits -= (8 - (k % 128 ? k % 128 : 128) * width_of((k - 1) / 128 * 128, k) % 8) % 8;
            else if (coders[c] != RAW) {
                bits = 0;
                for (size_t i = 0; i < k; i++) bits += (gap_of(i) >> (coders[c] < 32 ? coders[c] : 31)) + 1 + coders[c];
            }
            for (; bits < 8 * bytes; bits++) {
                stream[bits / 8] ^= (uint8_t)(1u << bits % 8);
                CHECK(verdict(n, k, coders[c], bytes) == (coders[c] == BITMAP ? GCOMP_CORRUPT : GCOMP_RESERVED_BITS));
                stream[bits / 8] ^= (uint8_t)(1u << bits % 8);
            }
        }
}

static void test_blocks_are_as_narrow_as_can_be(void)
{
    for (size_t s = 1; s < COUNTS; s++)
        for (unsigned wider = 1; wider <= 40; wider++) {
            const size_t k = counts[s], n = some_list(k, 15), bytes = write_stream(PACKED, k, n, wider);
            CHECK(verdict(n, k, PACKED, bytes) == GCOMP_CORRUPT);
            CHECK(verdict(N, k, PACKED, bytes) == GCOMP_CORRUPT);
        }
    for (unsigned width = 33; width < 256; width++)
        for (size_t bytes = 1; bytes < 400; bytes += 19) {
            memset(stream, 0xff, bytes);
            stream[0] = (uint8_t)width;
            CHECK(verdict(N, 5, PACKED, bytes) == GCOMP_CORRUPT);
        }
}

static void test_indices_increase(void)
{
    for (size_t k = 2; k <= 300; k += 1 + k / 10)
        for (size_t at = 1; at < k; at += 1 + k / 10) {
            const uint32_t was = (some_list(k, 15), list[at]);
            list[at] = list[at - 1];
            CHECK(verdict(N, k, RAW, write_stream(RAW, k, N, 0)) == GCOMP_CORRUPT);
            list[at] = at > 1 ? list[at - 2] : N;
            CHECK(verdict(N, k, RAW, write_stream(RAW, k, N, 0)) == GCOMP_CORRUPT);
            list[at] = was;
            CHECK(verdict(N, k, RAW, write_stream(RAW, k, N, 0)) == GCOMP_OK);
        }
}

static void test_a_bitmap_has_as_many_as_are_said(void)
{
    for (size_t s = 0; s < COUNTS; s++) {
        const size_t k = counts[s], n = some_list(k, 15), bytes = write_stream(BITMAP, k, n, 0);
        CHECK(verdict(n, k, BITMAP, bytes) == GCOMP_OK);
        if (k) CHECK(verdict(n, k - 1, BITMAP, bytes) == GCOMP_CORRUPT);
        if (k < n) CHECK(verdict(n, k + 1, BITMAP, bytes) == GCOMP_CORRUPT);
    }
}

/* Gaps around 2^31, and the last index there can be. */
static void test_large_gaps_are_read_by_every_coder_that_holds_them(void)
{
#if SIZE_MAX > 0xffffffffu
    static const uint32_t gaps[] = {0x7ffffffeu, 0x7fffffffu, 0x80000000u, 0x80000001u};
    for (size_t c = 0; c < CODERS; c++)
        for (size_t i = 0; i < 4 && (coders[c] >= 13 && coders[c] != BITMAP); i++)
            for (uint64_t past = 0; past < 2; past++) {
                size_t bytes;
                list[0] = 0;
                list[1] = gaps[i] + 1;
                list[2] = 0xfffffffeu;
                bytes = write_stream(coders[c], 3, 0, 0);
                CHECK(verdict(0xffffffffu - past, 3, coders[c], bytes) == (past ? GCOMP_CORRUPT : GCOMP_OK));
                CHECK(verdict(0xffffffffu, 3, coders[c], bytes + 1) == GCOMP_TRAILING_BYTES);
                CHECK(verdict(0xffffffffu, 3, coders[c], bytes - 1) == GCOMP_CORRUPT);
                list[0] = 0xfffffffeu;
                CHECK(verdict(0xffffffffu - past, 1, coders[c], write_stream(coders[c], 1, 0, 0)) ==
                      (past ? GCOMP_CORRUPT : GCOMP_OK));
            }
#endif
}

/* ---------------- more elements than 32 bits count: in addresses that share the pages of one small file of zeros. Pages of no
   file are not enough: some kernels give each page that is read memory of its own. */
#if defined(__unix__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
static void *zeros(uint64_t bytes)
{
    const size_t piece = (size_t)1 << 24;
    const int access = PROT_READ | PROT_WRITE, how = MAP_PRIVATE | MAP_NORESERVE; /* what is written gets a page of its own */
    FILE *file = tmpfile();
    uint8_t *p = MAP_FAILED;
    if (file && !ftruncate(fileno(file), (off_t)piece) && bytes <= SIZE_MAX)
        p = mmap(NULL, (size_t)bytes, access, how | MAP_ANONYMOUS, -1, 0);
    for (uint64_t at = 0; p != MAP_FAILED && at + piece <= bytes; at += piece)
        if (mmap(p + at, piece, access, how | MAP_FIXED, fileno(file), 0) == MAP_FAILED) p = MAP_FAILED;
    if (file) fclose(file);
    return p == MAP_FAILED ? NULL : p;
}

static size_t send_large(const char *text, const float *x, size_t n, uint8_t *to)
{
    gcomp_exec exec = {GCOMP_ISA_AUTO, NULL, 0, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = x;
    in.rows = n;
    in.key = gcomp_key_make(1, 0, 0, 0);
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    exec.scratch_bytes = scratch_of(&codec, n);
    exec.scratch = zeros(exec.scratch_bytes);
    if (!exec.scratch) test_skipped = "no room for 50 GB of addresses";
    else {
        CHECK(gcomp_encode(&codec, &in, &exec, to, 4096, &length) == GCOMP_OK);
        CHECK(gcomp_check(to, length, n) == GCOMP_OK);
        munmap(exec.scratch, exec.scratch_bytes);
    }
    return length;
}

/* 2^32 elements, the last one among those that are sent. Decoding writes all elements: adding
   only writes those that are there, and that there are no others is seen by sending them again. */
static void test_indices_reach_2_to_the_32(void)
{
    static const uint64_t places[6] = {5, 70000, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};
    const uint64_t n = (uint64_t)1 << 32;
    const size_t k = 6;
    float *x = (float *)zeros(4 * n), *sum = (float *)zeros(4 * n);
    size_t length, more;
    if (!x || !sum) {
        test_skipped = "no room for 34 GB of addresses";
        return;
    }
    for (size_t i = 0; i < k; i++) x[places[i]] = (float)(i + 1);
    length = send_large("nonzero", x, (size_t)n, payload);
    if (test_skipped) return;
    CHECK(get_word(payload + 8, 8) == n && get_word(payload + 32, 8) == k);
    CHECK(gcomp_check(payload, length, (size_t)n - 1) == GCOMP_COUNT_MISMATCH);
    CHECK(gcomp_decode_add(payload, length, 1, sum, GCOMP_F32, (size_t)n, NULL) == GCOMP_OK);
    for (size_t i = 0; i < k; i++) CHECK(sum[places[i]] == (float)(i + 1));
    more = send_large("nonzero", sum, (size_t)n, stream);
    CHECK(more == length && !memcmp(stream, payload, length));
    length = send_large("topk:density=1e-9", x, (size_t)n, payload); /* 5: the first is the least */
    CHECK(get_word(payload + 32, 8) == 5);
    CHECK(gcomp_decode_add(payload, length, 1, sum, GCOMP_F32, (size_t)n, NULL) == GCOMP_OK);
    for (size_t i = 0; i < k; i++) CHECK(sum[places[i]] == (float)(i + 1) * (i ? 2 : 1));
    munmap(x, (size_t)(4 * n));
    munmap(sum, (size_t)(4 * n));
}
#endif

/* One element more: no bound, no payload, no decoding, and a sentence from gcomp_add_tensor. */
static void test_more_than_2_to_the_32_elements_are_refused(void)
{
    static const char *const sparse[] = {"topk", "strom", "nonzero", "dryden", "wangni", "adacomp", "blocktopk", "dgc"};
    const uint64_t n = ((uint64_t)1 << 32) + 1;
    if (SIZE_MAX <= 0xffffffffu) {
        test_skipped = "32 bits";
        return;
    }
    for (size_t i = 0; i < sizeof sparse / sizeof *sparse; i++) {
        gcomp_exec exec = {GCOMP_ISA_AUTO, NULL, 0, {NULL, NULL}};
        const float one = 1;
        gcomp_tensor tensor;
        gcomp_codec codec;
        gcomp_input in;
        gcomp_desc desc;
        gcomp *gc = NULL;
        size_t length = 0;
        memset(&in, 0, sizeof in);
        in.scale = 1;
        in.key = gcomp_key_make(1, 0, 0, 0);
        memset(&tensor, 0, sizeof tensor);
        memset(&desc, 0, sizeof desc);
        in.grad = &one;
        in.rows = tensor.rows = (size_t)n;
        CHECK(gcomp_codec_parse(&codec, sparse[i], NULL, 0) == GCOMP_OK);
        CHECK(gcomp_bound(&codec, (size_t)n, NULL) == 0 && scratch_of(&codec, (size_t)n) == 0);
        if (strcmp(sparse[i], "dgc")) {
            CHECK(gcomp_bound(&codec, (size_t)n - 1, NULL) > 0);
            CHECK(gcomp_encode(&codec, &in, &exec, hand, sizeof hand, &length) == GCOMP_INVALID_ARGUMENT && length == 0);
            in.rows = 1;
            exec.scratch = scratch;
            exec.scratch_bytes = sizeof scratch;
            CHECK(gcomp_encode(&codec, &in, &exec, hand, sizeof hand, &length) == GCOMP_OK);
            CHECK(gcomp_check(hand, length, 1) == GCOMP_OK);
            put_word(hand + 8, n, 8);
            CHECK(gcomp_check(hand, length, (size_t)n) == GCOMP_CORRUPT);
        }
        tensor.name = "w";
        tensor.codec = sparse[i];
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_INVALID_ARGUMENT);
        CHECK(strstr(gcomp_error(gc), "a sparse codec takes up to 2^32 elements: cut the tensor"));
        gcomp_close(gc);
    }
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_every_subset_of_few_elements_is_sent_in_the_fewest_bytes);
        RUN(test_lists_of_every_kind_are_sent_in_the_fewest_bytes);
        RUN(test_no_element_one_the_first_the_last_and_all_are_sent);
        RUN(test_random_indices_are_within_three_percent_of_the_least);
        if (i != GCOMP_ISA_SCALAR) continue; /* reading is the same code on all */
        RUN(test_every_coder_is_read_whether_it_is_the_shortest_or_not);
        RUN(test_every_other_length_is_refused);
        RUN(test_padding_is_zero);
        RUN(test_blocks_are_as_narrow_as_can_be);
        RUN(test_indices_increase);
        RUN(test_a_bitmap_has_as_many_as_are_said);
        RUN(test_large_gaps_are_read_by_every_coder_that_holds_them);
    }
    RUN(test_more_than_2_to_the_32_elements_are_refused);
#if defined(__unix__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__)
    const char *only = getenv("GCOMP_ISA");
    if (SIZE_MAX <= 0xffffffffu) printf("# SKIPPED tensors of 2^32 elements: 32 bits\n");
    else if (test_is_long() && (!only || strcmp(only, "scalar"))) RUN(test_indices_reach_2_to_the_32); /* which takes a minute */
#endif
    return test_end();
}
