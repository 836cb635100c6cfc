/* Proves that the training loop of the README ends on failures that stay, goes on after failures
   that pass, and tells why. Here stand small definitions of what the user writes.
   tests/tools/check_style.sh takes the loop from the README and builds it: cc -I. -DREADME='"BLOCK"'
   tests/tools/readme_loop.c gcomp.o */

#include "gcomp.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { COUNT = 784 * 1152, BATCHES = 30 };

typedef enum fault { NOTHING, DEAD, ECHO, ALWAYS_NAN, ONCE_NAN } fault;

static fault what;
static int batches, updates, sentences;
static char sentence[512];
static float grad[COUNT];

static void tell(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    sentences++;
}

static int my_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return what == DEAD;
}

/* The other worker says what this one says: it believes to be this one. */
static int my_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user;
    memcpy(all, mine, bytes);
    memcpy((char *)all + bytes, mine, bytes);
    return what == DEAD;
}

static int backward(void *const *grads)
{
    for (size_t i = 0; i < COUNT; i++) ((float *)grads[0])[i] = (float)((int)(i * 7 % 101) - 50);
    if (what == ALWAYS_NAN || (what == ONCE_NAN && batches == 3)) {
        const uint32_t bits = 0x7fc00000u;
        memcpy((float *)grads[0] + COUNT / 2, &bits, sizeof bits);
    }
    return batches++ < BATCHES;
}

static void optimizer_step(void *const *grads)
{
    (void)grads;
    updates++;
}

#define fprintf(stream, ...) tell(__VA_ARGS__)
#include README
#undef fprintf

/* Is it so? Says what is not. */
static int run(fault f, int world, int status, int took, int updated, int said, const char *word)
{
    what = f;
    batches = updates = sentences = 0;
    sentence[0] = 0;
    if (train(0, world, grad) == status && batches == took && updates == updated && sentences == said && strstr(sentence, word))
        return 0;
    printf("fault %d: %d batches, %d updates, %d sentences, the last one: %s\n", f, batches, updates, sentences, sentence);
    return 1;
}

int main(void)
{
    return run(NOTHING, 1, 0, BATCHES + 1, BATCHES, 0, "") | run(DEAD, 2, 1, 1, 0, 1, "allgather of the frames failed with status 1")
           | run(ECHO, 2, 1, 1, 0, 1, "rank 0 in the place of rank 1") | run(ALWAYS_NAN, 1, 1, 10, 0, 10, "NaN")
           | run(ONCE_NAN, 1, 0, BATCHES + 1, BATCHES - 1, 1, "NaN");
}
