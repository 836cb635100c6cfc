/* A small harness that speaks TAP: CHECK inside test functions, RUN for each of them, return test_end() from main. A test's
   name states the property. The first failures of a test are printed with file and line. */
#ifndef TEST_H
#define TEST_H

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

static int test_end(void)
{
    printf("1..%d\n", test_count);
    return test_failed != 0;
}

#endif
