/* A small harness that speaks TAP: CHECK inside test functions, RUN for each of them, return test_end() from main. A test's
   name states the property. The first failures of a test are printed with file and line. */
#ifndef TEST_H
#define TEST_H

#include <stdint.h>
#include <stdio.h>
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

static inline int test_end(void)
{
    printf("1..%d\n", test_count);
    return test_failed != 0;
}

#endif
