/* A small harness that speaks TAP: CHECK inside test functions, RUN for each of them, return test_end() from main. A test's
   name states the property. The first failures of a test are printed with file and line. */
#ifndef TEST_H
#define TEST_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int test_count, test_failed, test_errors;

#define CHECK(condition) \
    do { \
        if (!(condition) && test_errors++ < 10) printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
    } while (0)

#define RUN(function) \
    do { \
        test_errors = 0; \
        function(); \
        test_count++; \
        test_failed += test_errors != 0; \
        printf("%s %d - %s\n", test_errors ? "not ok" : "ok", test_count, #function); \
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

static inline int test_end(void)
{
    printf("1..%d\n", test_count);
    return test_failed != 0;
}

#endif
