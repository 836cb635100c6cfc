/* A small harness that speaks TAP: CHECK inside test functions, RUN for each of them, return
   test_end() from main. A test's name states the property. The first failures of a test are
   printed with file and line. */
#ifndef TEST_H
#define TEST_H

#ifndef GCOMP_LINKED /* with an object of the implementation */
#undef GCOMP_IMPLEMENTATION
#define GCOMP_IMPLEMENTATION
#endif
#include "gcomp.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int test_count, test_failed, test_errors;
static const char *test_skipped; /* set by a test that cannot run here: why */

#define CHECK(condition) \
    do { \
        if (!(condition) && test_errors++ < 10) printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
    } while (0)

#define RUN(function) \
    do { \
        test_errors = 0; \
        test_skipped = NULL; \
        function(); \
        test_count++; \
        test_failed += test_errors != 0; \
        printf("%s %d - %s%s%s\n", test_errors ? "not ok" : "ok", test_count, #function, test_skipped ? " # SKIP " : "", \
               test_skipped ? test_skipped : ""); \
        fflush(stdout); \
    } while (0)

/* The scratch that a codec's encoder needs. */
static inline size_t scratch_of(const gcomp_codec *codec, size_t n)
{
    size_t bytes = 0;
    (void)gcomp_bound(codec, n, &bytes);
    return bytes;
}

/* Can this machine and this build run the instruction set? */
static inline int isa_available(gcomp_isa isa)
{
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    return gcomp_convert(NULL, GCOMP_F32, NULL, GCOMP_F32, 0, &exec) != GCOMP_ISA_UNAVAILABLE;
}

/* "GCOMP_OK" */
static inline const char *result_name(gcomp_result result)
{
#define RESULT_NAME(name, value, kind, sentence) \
    if ((int)result == (value)) return #name;
    GCOMP_RESULTS(RESULT_NAME)
#undef RESULT_NAME
    return "unknown";
}

/* Continues the CRC-32C of earlier bytes by these; 0 is that of no bytes. */
static inline uint32_t plain_crc(uint32_t crc, const void *bytes, size_t count)
{
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= ((const uint8_t *)bytes)[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

/* Puts the right checksum into a payload: of changed ones, too. */
static inline gcomp_result add_checksum(void *payload, size_t length)
{
    uint8_t *p = (uint8_t *)payload;
    p[6] |= 2;
    const uint32_t crc = plain_crc(plain_crc(0, p, 28), p + 32, length - 32);
    for (int i = 0; i < 4; i++) p[28 + i] = (uint8_t)(crc >> 8 * i);
    return GCOMP_OK;
}

#ifndef GCOMP_NO_OBJECT
/* What gcomp_tensor_get tells of a tensor; of one that is not there zeros. */
static inline gcomp_tensor_info info_of(const gcomp *gc, size_t tensor)
{
    gcomp_tensor_info info;
    memset(&info, 0, sizeof info);
    if (gcomp_tensor_get(gc, tensor, &info) != GCOMP_OK) memset(&info, 0, sizeof info);
    return info;
}

static inline const float *tensor_residual(const gcomp *gc, size_t tensor)
{
    return info_of(gc, tensor).residual;
}

static inline const gcomp_codec *tensor_codec(const gcomp *gc, size_t tensor)
{
    return info_of(gc, tensor).codec;
}

static inline size_t tensor_elements(const gcomp *gc, size_t tensor)
{
    return info_of(gc, tensor).elements;
}

static inline const char *tensor_name(const gcomp *gc, size_t tensor)
{
    return info_of(gc, tensor).name;
}

static inline size_t tensors_of(const gcomp *gc)
{
    size_t count = 0;
    while (tensor_name(gc, count)) count++;
    return count;
}

/* The number of the tensor of that name; the number of tensors if there is none. */
static inline size_t tensor_named(const gcomp *gc, const char *name)
{
    size_t i = 0;
    while (tensor_name(gc, i) && (!name || strcmp(tensor_name(gc, i), name) != 0)) i++;
    return i;
}

static inline gcomp_step default_step(void)
{
    const gcomp_step step = GCOMP_STEP;
    return step;
}

/* gcomp_exchange of gradients in arrays of pointers to floats. */
static inline gcomp_result exchange_floats(gcomp *gc, float *const *grads, const gcomp_step *step)
{
    return gcomp_exchange(gc, (void *const *)(const void *)grads, step);
}

/* The bytes that an object takes, and those of its save; 0 without an object. */
static inline size_t memory_of(const gcomp *gc)
{
    gcomp_statistics stats;
    return gcomp_stats(gc, &stats) == GCOMP_OK ? (size_t)stats.memory : 0;
}

static inline size_t save_size(gcomp *gc)
{
    size_t bytes = 0;
    return gcomp_save(gc, NULL, 0, &bytes) == GCOMP_OK ? bytes : 0;
}

/* gcomp_load of saves whose tensors may be others. */
static inline gcomp_result load_some(gcomp *gc, const void *const *saves, const size_t *lengths, size_t count, char *text,
                                     size_t capacity, size_t *length)
{
    gcomp_report report = {NULL, 0, 0};
    report.text = text;
    report.capacity = capacity;
    if (length) report.length = *length;
    const gcomp_result result = gcomp_load(gc, saves, lengths, count, &report);
    if (length) *length = report.length;
    return result;
}

/* A step with a scale, a learning rate (negative: unknown) and an epoch. */
static inline gcomp_step step_with(float scale, float learning_rate, uint32_t epoch)
{
    gcomp_step step = GCOMP_STEP;
    step.scale = scale;
    step.learning_rate = learning_rate;
    step.epoch = epoch;
    return step;
}
#endif

/* Should this run try everything? The long run of all tests sets TEST_LONG. Without it, slow
   tests try a part. */
static inline int test_is_long(void)
{
    return getenv("TEST_LONG") != NULL;
}

/* Is this a build with a sanitizer, in which each element costs a lot? */
static inline int test_is_slow(void)
{
#ifdef __SANITIZE_ADDRESS__
    return 1;
#else
    return 0;
#endif
}

/* Shall a test run on this instruction set? Only if the machine has the set, and if GCOMP_ISA names
   it or no set at all. Prints the name of the set. */
static inline int isa_is_wanted(gcomp_isa isa)
{
    const char *only = getenv("GCOMP_ISA");
    if (!isa_available(isa)) return 0;
    if (only && *only && strcmp(only, gcomp_isa_name(isa))) return 0;
    printf("# %s\n", gcomp_isa_name(isa));
    return 1;
}

/* Little-endian words of 1 to 8 bytes. */
static inline void put_word(uint8_t *to, uint64_t word, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(word >> 8 * i);
}

static inline uint64_t get_word(const uint8_t *from, int bytes)
{
    uint64_t word = 0;
    for (int i = 0; i < bytes; i++) word |= (uint64_t)from[i] << 8 * i;
    return word;
}

/* The first two words of a block of Philox4x32-10. */
static inline uint64_t plain_philox(uint64_t seed, uint64_t step, uint32_t c2, uint32_t c3)
{
    uint32_t c0 = (uint32_t)step, c1 = (uint32_t)(step >> 32), k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0 | (uint64_t)c1 << 32;
}

/* Splitmix64: makes 64 bits that look random from any number. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Number i of a sequence of numbers that look random: uniform in (0, 1), or normal. */
static inline double uniform(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x ^= x >> 29;
    return ((double)(x >> 11) + 0.5) / 9007199254740992.0;
}

static inline float normal(uint64_t i)
{
    return (float)(sqrt(-2 * log(uniform(2 * i))) * cos(6.283185307179586 * uniform(2 * i + 1)));
}

/* The same for many elements: the list begins anew after 100000. */
static inline float some_normal(uint64_t i)
{
    static float made[100000];
    if (made[0] == 0)
        for (size_t j = 0; j < 100000; j++) made[j] = normal(j);
    return made[i % 100000];
}

/* Element i of n of a gradient, in one of 8 shapes: normal, zero, one huge element, subnormal, all
   equal, heavy tails, signs and zeros, huge everywhere. Then the residual that goes with it. */
static inline float shaped_gradient(int shape, size_t i, size_t n)
{
    const float v = normal(i);
    switch (shape) {
    case 0: return v;
    case 1: return 0;
    case 2: return i == n / 2 ? 3e38f : v;
    case 3: return v * 1e-40f;
    case 4: return -0.75f;
    case 5: return v * v * v;
    case 6: return (float)((int)(uniform(i) * 3) - 1);
    default: return v < 0 ? -3e38f : 3e38f;
    }
}

static inline float shaped_residual(int shape, size_t i)
{
    if (shape == 1 || shape == 4 || shape == 7) return 0;
    return normal(i + 77777) * (shape == 3 ? 1e-41f : 0.1f);
}

/* The bits of a float, and back. */
static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Continues the FNV-1a digest h of earlier bytes by these; FNV is that of no bytes. */
#define FNV 0xCBF29CE484222325u
static inline uint64_t fnv(uint64_t h, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    return h;
}

static inline size_t bytes_of_dtype(gcomp_dtype dtype)
{
    return dtype == GCOMP_I8 ? 1 : dtype == GCOMP_F32 || dtype == GCOMP_I32 ? 4 : 2;
}

/* What an allreduce does to floats and integers: to[i] += from[i]. */
static inline void plain_sum(void *to, const void *from, size_t count, gcomp_dtype dtype)
{
    CHECK(dtype == GCOMP_F32 || dtype == GCOMP_I8 || dtype == GCOMP_I16 || dtype == GCOMP_I32);
    for (size_t i = 0; i < count; i++) {
        if (dtype == GCOMP_F32) ((float *)to)[i] += ((const float *)from)[i];
        if (dtype == GCOMP_I8) ((int8_t *)to)[i] = (int8_t)(((int8_t *)to)[i] + ((const int8_t *)from)[i]);
        if (dtype == GCOMP_I16) ((int16_t *)to)[i] = (int16_t)(((int16_t *)to)[i] + ((const int16_t *)from)[i]);
        if (dtype == GCOMP_I32) ((int32_t *)to)[i] += ((const int32_t *)from)[i];
    }
}

/* Adds another worker's numbers to those of `to`, or keeps the larger ones, as the request asks. */
static inline void plain_reduce(const gcomp_request *to, const gcomp_request *from)
{
    float *most = (float *)to->recv;
    const float *other = (const float *)from->recv;
    CHECK(to->kind == from->kind && to->count == from->count && to->dtype == from->dtype);
    if (to->kind == GCOMP_ALLREDUCE) plain_sum(to->recv, from->recv, to->count, to->dtype);
    for (size_t i = 0; to->kind == GCOMP_ALLREDUCE_MAX && i < to->count; i++)
        if (other[i] > most[i]) most[i] = other[i];
}

static inline int request_is_a_reduction(const gcomp_request *r)
{
    return r->kind == GCOMP_ALLREDUCE || r->kind == GCOMP_ALLREDUCE_MAX;
}

/* gcomp_parallel.run: tasks from the last to the first, as unlike the plain order as can be
   without threads. */
static inline void run_backwards(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    (void)user;
    while (count) task(arg, --count);
}

/* An allocator: how many more calls get memory, the bytes and blocks that are held, and how often
   it was asked. */
typedef struct test_heap {
    size_t left, held, blocks, asked;
} test_heap;

static inline void *heap_alloc(void *user, size_t bytes, size_t align)
{
    test_heap *h = (test_heap *)user;
    void *p;
    h->asked++;
    if (!h->left) return NULL;
    h->left -= h->left != SIZE_MAX;
    p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    CHECK(p && align <= 64);
    h->blocks++;
    h->held += bytes;
    return p;
}

static inline void heap_free(void *user, void *memory, size_t bytes)
{
    test_heap *h = (test_heap *)user;
    h->blocks--;
    h->held -= bytes;
    free(memory);
}

static inline gcomp_allocator heap_of(test_heap *h)
{
    gcomp_allocator allocator = {heap_alloc, heap_free, NULL};
    allocator.user = h;
    return allocator;
}

/* Writes the first 41 bytes of a topk payload by hand: k of n elements, with this coder of indices.
   Behind them the caller writes `rest` bytes: the index stream and the values, which are floats. */
static inline void put_topk_header(uint8_t *payload, uint64_t n, uint64_t k, unsigned coder,
                                   size_t rest)
{
    memset(payload, 0, 32);
    memcpy(payload, "GCMP", 4);
    payload[4] = 1; /* version */
    payload[5] = 5; /* topk */
    payload[7] = 1; /* none: values are floats */
    put_word(payload + 8, n, 8);
    put_word(payload + 16, 9 + rest, 8);
    put_word(payload + 32, k, 8);
    payload[40] = (uint8_t)coder;
}

/* Did all workers get this result? Prints those that did not. */
static inline int results_are(gcomp *const *gc, const gcomp_result *result, size_t world, gcomp_result expected)
{
    int yes = 1;
    for (size_t w = 0; w < world; w++) {
        if (result[w] == expected) continue;
        printf("# worker %d: %s, expected %s: %s\n", (int)w, result_name(result[w]), result_name(expected),
               gcomp_error(gc[w]));
        yes = 0;
    }
    return yes;
}

/* Callbacks that fail: for tests of which callbacks a worker has. */
static inline int no_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user, (void)mine, (void)all, (void)bytes;
    return 1;
}

/* The allgather of rank 0 in a world of 2, for frames: rank 1 seems to send what rank 0 sends. */
static inline int echo_frame(void *user, const void *mine, void *all, size_t bytes)
{
    uint8_t *other = (uint8_t *)all + bytes;
    (void)user;
    if (bytes != 64) return 1;
    memcpy(all, mine, 64);
    memcpy(other, mine, 64);
    put_word(other + 4, 1, 4);
    put_word(other + 60, plain_crc(0, other, 60), 4);
    return 0;
}

static inline int no_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return 1;
}

static inline int test_end(void)
{
    printf("1..%d\n", test_count);
    return test_failed != 0;
}

#endif
