/* The random test: draws and findings, memory that is scarce, codecs and schedules, a group of workers and their transport. */

#ifndef RANDOM_GROUP_H
#define RANDOM_GROUP_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, posix_memalign */
#endif

#include "gcomp_threads.h"

#include "codecs.h"
#include "test.h"

#include <math.h>
#include <semaphore.h>
#include <stdarg.h>
#include <time.h>

enum { MOST = 9, TENSORS = 6, QUEUE = 256, TEXT = 240, PATIENCE = 20000 };

/* ---------------- draws, findings */

static uint64_t luck;

static uint64_t draw(void) { return mix(luck++); }
static size_t below(size_t n) { return (size_t)(draw() % n); }
static int once_in(size_t n) { return below(n) == 0; }

static void shuffle(size_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t k = below(i), kept = order[k];
        order[k] = order[i - 1];
        order[i - 1] = kept;
    }
}

static uint64_t seed_now;
static int operation_now, verbose, found, found_in_all;
static char doing[TEXT], plan[2400];
static unsigned long cases, operations, steps, faults;

static void finding(const char *format, ...)
{
    va_list list;
    if (found++) return;
    found_in_all++;
    printf("# seed %llu, operation %d, %s: ", (unsigned long long)seed_now, operation_now, doing);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n%s# again: --seed %llu\n", plan, (unsigned long long)seed_now);
    fflush(stdout);
}

#define MUST(condition, ...) \
    do { \
        if (!(condition)) finding(__VA_ARGS__); \
    } while (0)

static void say(const char *format, ...)
{
    va_list list;
    size_t at = strlen(plan);
    va_start(list, format);
    vsnprintf(plan + at, sizeof plan - at, format, list);
    va_end(list);
}

/* ---------------- memory: exact blocks, aligned as asked, full of noise, maybe scarce */

static void *pool_alloc(void *user, size_t bytes, size_t align)
{
    test_heap *h = (test_heap *)user;
    size_t least = align < sizeof(void *) ? sizeof(void *) : align;
    void *block;
    h->asked++;
    if (!h->left) return NULL;
    h->left -= h->left != SIZE_MAX;
    if (posix_memalign(&block, least, bytes ? bytes : 1)) abort();
    memset(block, (int)(h->asked * 37 + 0x7f), bytes);
    h->blocks++;
    h->held += bytes;
    return block;
}

static void run_shuffled(void *user, size_t count, void (*task)(void *arg, size_t index), void *arg)
{
    uint64_t *state = (uint64_t *)user;
    size_t order[64];
    for (size_t from = 0; from < count; from += 64) {
        size_t piece = count - from < 64 ? count - from : 64;
        for (size_t i = 0; i < piece; i++) order[i] = from + i;
        for (size_t i = piece; i > 1; i--) {
            size_t k = (size_t)(mix((*state)++) % i), kept = order[k];
            order[k] = order[i - 1];
            order[i - 1] = kept;
        }
        for (size_t i = 0; i < piece; i++) task(arg, order[i]);
    }
}

/* ---------------- codecs and schedules */

static size_t method_count(void)
{
    size_t count = 0;
    while (gcomp_method_name(count)) count++;
    return count;
}

/* A listed codec of this method. */
static const char *draw_listed(const char *method)
{
    const size_t length = strlen(method);
    for (;;) {
        const char *text = codec_list[below(ALL_CODECS)].text;
        if (!strncmp(text, method, length) && strchr(":+", text[length])) return text;
    }
}

/* A method with values that codecs.h gives to its parameters, from several of its lines. */
static void draw_method(char *text, size_t capacity)
{
    const char *method = gcomp_method_name(below(method_count()));
    size_t at = (size_t)snprintf(text, capacity, "%s", method);
    for (int lines = 0; lines < 3; lines++) {
        const char *parameter = draw_listed(method) + strlen(method);
        while (*parameter == ':' || *parameter == ',') {
            const size_t key = strcspn(++parameter, "="), length = strcspn(parameter, ",+");
            char taken[40];
            snprintf(taken, sizeof taken, "%.*s=", (int)key, parameter);
            if (!strstr(text, taken) && !once_in(3) && strncmp(parameter, "columns=262144", length)) /* too large */
                at += (size_t)snprintf(text + at, capacity - at, "%c%.*s", strchr(text, ':') ? ',' : ':', (int)length, parameter);
            parameter += length;
        }
    }
    if (at >= capacity) abort();
}

/* A codec that the parser takes, as text. */
static void draw_codec(char *text, size_t capacity)
{
    gcomp_codec codec;
    do {
        draw_method(text, capacity);
        if (once_in(4)) {
            size_t at = strlen(text);
            text[at++] = '+';
            draw_method(text + at, capacity - at);
        }
    } while (gcomp_codec_parse(&codec, text, NULL, 0));
}

static const char *const lists[] = {"int|int:bits=4|int:bits=2",
                                    "powersgd:rank=4|powersgd:rank=1",
                                    "topk:density=0.1|topk:density=0.01",
                                    "none|sign|topk:density=0.02",
                                    "qsgd:levels=127|qsgd:levels=7|qsgd:levels=1",
                                    "fp16|onebit:block=64",
                                    "powersgd:rank=2|topk:density=0.05|sign",
                                    "topk:density=0.1,global=1|topk:density=0.01,global=1",
                                    "none|dgc:density=0.05",
                                    "sketch:density=0.1|sketch:density=0.01",
                                    "randomk:density=0.2|randomk:density=0.02,neighbours=1"};

static void draw_list(char *text, size_t capacity)
{
    size_t levels = 2 + below(2);
    if (once_in(2)) {
        snprintf(text, capacity, "%s", lists[below(sizeof lists / sizeof *lists)]);
        return;
    }
    for (text[0] = 0; levels; levels--) {
        draw_codec(text + strlen(text), capacity - strlen(text));
        if (levels > 1) strcat(text, "|");
    }
}

static void draw_schedule(char *text, size_t capacity)
{
    unsigned every = 1 + (unsigned)below(4);
    switch (below(4)) {
    case 0: snprintf(text, capacity, "warmup:epochs=%u", every); break;
    case 1:
        snprintf(text, capacity, "accordion:every=%u,eta=%s,scope=%s", every,
                 once_in(2) ? "0.5" : "0.1", once_in(2) ? "tensor" : "model");
        break;
    case 2:
        snprintf(text, capacity, "bytes:target=%u,every=%u", 100 + (unsigned)below(3000), every);
        break;
    default:
        snprintf(text, capacity, "error:target=0.%u,every=%u", 1 + (unsigned)below(9), every);
        break;
    }
}

/* ---------------- a group of workers, and their transport */

typedef enum fault_kind {
    NO_FAULT,
    FAIL_ALL,  /* a collective fails on all workers */
    FAIL_ONE,  /* ... on one of them */
    ABORT_ALL, /* all leave the step */
    ABORT_ONE,
    NOT_A_NUMBER,
    BAD_SCALE,  /* one worker's step.scale is not finite */
    OTHER_SKIP, /* one worker skips another tensor */
    OTHER_EPOCH,
    TIED,       /* two gradients of one worker share memory */
    SCARCE,       /* one worker gets no more memory */
    DAMAGE_ALL,   /* one bit of one worker's payloads is another, for all who receive them */
    DAMAGE_ONE,   /* ... for one of them */
    DAMAGE_FRAME, /* a bit of what comes before payloads is another, for one worker */
    DAMAGE_SUM,   /* a bit of a sum is another, for one worker */
    FAULTS
} fault_kind;

static const char *const fault_names[FAULTS] = {
    "no fault", "a collective fails on all", "a collective fails on one", "all abort", "one aborts",
    "NaN", "a bad scale", "another tensor is skipped", "another epoch",
    "gradients that share memory", "no memory",
    "damage for all", "damage for one", "a damaged frame", "a damaged sum"};

typedef struct fault {
    fault_kind kind;
    size_t worker; /* whose */
    size_t call;   /* which of the collectives that it may be */
    uint64_t where;
    int status;
} fault;

enum { ABORTED = 1000 }; /* in the place of a result */
typedef enum worker_state { RUNNING, FINISHED, ENDED } worker_state;

typedef struct crew {
    const char *name;
    size_t world;
    gcomp_desc desc;
    uint64_t luck; /* of run_shuffled */
    gcomp *gc[MOST];
    test_heap *heap[MOST];
    int prepared[MOST];
    void *grad[MOST][TENSORS];
    size_t tied_worker, tied; /* of whom, and which tensor */
    void *tied_to;
    int orderly;          /* requests one after the other, tensors in order */
    int threads, without; /* steps are exchanges, one thread a worker; bits: callbacks left out */
    gcomp_threads *transport;
    /* of a step */
    int result[MOST];
    worker_state state[MOST];
    gcomp_request queue[MOST][QUEUE];
    size_t asked[MOST], given[MOST], order[MOST][TENSORS];
    unsigned skipped[MOST];
    int carried[QUEUE];
    size_t may_strike; /* collectives so far that the fault may strike */
    int struck;
} crew;

static struct {
    size_t count, n[TENSORS];
    gcomp_tensor tensor[TENSORS];
    char name[TENSORS][8], codec[TENSORS][3 * TEXT], list[3 * TEXT], schedule[TEXT];
    unsigned epoch;
    float rate;
    int says_epoch; /* a step must say the epoch */
    double samples[MOST], batch; /* of this step */
    int large;      /* there were gradients that sums may overflow with */
    void *input[MOST][TENSORS];
} job;

static crew group, twin;

static size_t bytes_of(size_t t) { return job.n[t] * bytes_of_dtype(job.tensor[t].dtype); }

/* The workers get a transport for so many of them. */
static void meet(crew *c, size_t world)
{
    if (c->transport) gcomp_threads_close(c->transport);
    c->transport = NULL;
    if (c->threads && world)
        MUST(!gcomp_threads_open(&c->transport, (int)world, 30), "no transport");
}

static gcomp_comm comm_of(const crew *c, size_t rank, size_t world)
{
    gcomp_comm comm;
    if (c->transport) {
        comm = gcomp_threads_comm(c->transport, (int)rank);
        if (c->without & 1) comm.allgatherv = NULL;
        if (c->without & 2) comm.allreduce_max = NULL;
        if (c->without & 4 && c->desc.aggregate < GCOMP_AGGREGATE_SHARDS) comm.alltoallv = NULL;
        return comm;
    }
    memset(&comm, 0, sizeof comm);
    comm.rank = (int)rank;
    comm.world = (int)world;
    comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return comm;
}

/* Opens a worker with all tensors. */
static void hire(crew *c, size_t w, size_t world)
{
    gcomp_desc desc = c->desc;
    char why[256] = "";
    gcomp_result result;
    test_heap *h = c->heap[w] = (test_heap *)calloc(1, sizeof *h);
    gcomp_allocator allocator = {pool_alloc, heap_free, NULL};
    allocator.user = h;
    desc.comm = comm_of(c, w, world);
    desc.allocator = allocator;
    desc.why = why;
    desc.why_capacity = sizeof why;
    c->prepared[w] = 0;
    h->left = SIZE_MAX;
    while (once_in(8) && !found) { /* without enough memory first */
        h->left = below(8);
        result = gcomp_open(&c->gc[w], &desc);
        MUST(result == GCOMP_OK || (result == GCOMP_OUT_OF_MEMORY && !c->gc[w] && why[0]),
             "open without memory: %s", result_name(result));
        gcomp_close(c->gc[w]);
        MUST(!h->blocks && !h->held, "an open without memory keeps %d blocks", (int)h->blocks);
    }
    h->left = SIZE_MAX;
    result = gcomp_open(&c->gc[w], &desc);
    MUST(result == GCOMP_OK, "open of %s: %s: %s", c->name, result_name(result), why);
    for (size_t t = 0; t < job.count && !found; t++) {
        size_t held = h->held;
        if (once_in(16)) h->left = below(6);
        result = gcomp_add_tensor(c->gc[w], &job.tensor[t]);
        if (result == GCOMP_OUT_OF_MEMORY && h->left == 0) {
            MUST(tensors_of(c->gc[w]) == t && h->held == held &&
                     memory_of(c->gc[w]) == held,
                 "add_tensor without memory leaves a trace");
            h->left = SIZE_MAX;
            result = gcomp_add_tensor(c->gc[w], &job.tensor[t]);
        }
        h->left = SIZE_MAX;
        MUST(result == GCOMP_OK, "add_tensor %d of %s: %s: %s", (int)t, c->name,
             result_name(result), gcomp_error(c->gc[w]));
        MUST(tensors_of(c->gc[w]) == t + 1 &&
                 tensor_elements(c->gc[w], t) == job.n[t],
             "tensors are counted");
    }
}

static void dismiss(crew *c, size_t w)
{
    gcomp_close(c->gc[w]);
    if (c->heap[w])
        MUST(!c->heap[w]->blocks && !c->heap[w]->held, "close leaks %d blocks",
             (int)c->heap[w]->blocks);
    free(c->heap[w]);
    c->gc[w] = NULL;
    c->heap[w] = NULL;
}

#endif
