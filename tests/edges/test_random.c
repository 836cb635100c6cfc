/* A random test: groups of workers of every kind go through random operations and random faults,
   and are compared with what must hold, and with a twin that has no faults and other options
   wherever the manual promises the same bits.

     test_random [--seconds N] [--first S] [--cases N] [--seed S]

   A case follows from its seed alone. What a case finds is printed with the seed: --seed S runs
   this case again and prints every operation. The workers of the group stand in one thread. Their
   transport carries out requests in a random order, and fails where it is told. Those of the twin
   stand there too, or each in a thread, where they call gcomp_exchange. */

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
             "open without memory: %s", gcomp_result_name(result));
        gcomp_close(c->gc[w]);
        MUST(!h->blocks && !h->held, "an open without memory keeps %d blocks", (int)h->blocks);
    }
    h->left = SIZE_MAX;
    result = gcomp_open(&c->gc[w], &desc);
    MUST(result == GCOMP_OK, "open of %s: %s: %s", c->name, gcomp_result_name(result), why);
    for (size_t t = 0; t < job.count && !found; t++) {
        size_t held = h->held;
        if (once_in(16)) h->left = below(6);
        result = gcomp_add_tensor(c->gc[w], &job.tensor[t]);
        if (result == GCOMP_OUT_OF_MEMORY && h->left == 0) {
            MUST(gcomp_tensor_count(c->gc[w]) == t && h->held == held &&
                     gcomp_memory_used(c->gc[w]) == held,
                 "add_tensor without memory leaves a trace");
            h->left = SIZE_MAX;
            result = gcomp_add_tensor(c->gc[w], &job.tensor[t]);
        }
        h->left = SIZE_MAX;
        MUST(result == GCOMP_OK, "add_tensor %d of %s: %s: %s", (int)t, c->name,
             gcomp_result_name(result), gcomp_error(c->gc[w]));
        MUST(gcomp_tensor_count(c->gc[w]) == t + 1 &&
                 gcomp_tensor_elements(c->gc[w], t) == job.n[t],
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

/* ---------------- a step */

/* Frames and lengths go before payloads. */
static int is_control(const gcomp_request *request, size_t world)
{
    int lengths = 1;
    if (request->kind == GCOMP_ALLGATHER)
        return request->stride == 16 ||
               (request->stride == 64 && !memcmp(request->send, "GCF1", 4));
    if (request->kind != GCOMP_ALLTOALL) return 0;
    for (size_t w = 0; w < world; w++)
        lengths = lengths && request->bytes[w] == 16 && request->send_bytes[w] == 16;
    return lengths;
}

/* Does the fault hit this collective? Counts. */
static int strikes(crew *c, const fault *f, const gcomp_request *request)
{
    int may = 0, control = is_control(request, c->world);
    if (f->kind == FAIL_ALL || f->kind == FAIL_ONE) may = 1;
    if (f->kind == DAMAGE_ONE)
        may = !control && (request->kind == GCOMP_ALLGATHER || request->kind == GCOMP_ALLTOALL);
    if (f->kind == DAMAGE_ALL) may = !control && request->kind == GCOMP_ALLGATHER;
    if (f->kind == DAMAGE_FRAME) may = control;
    if (f->kind == DAMAGE_SUM) may = request->kind == GCOMP_ALLREDUCE;
    return may && c->may_strike++ == f->call;
}

static size_t total(const size_t *bytes, size_t count)
{
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += bytes[i];
    return sum;
}

/* Another bit in what a worker received. Returns 0 if there is nothing. */
static int damage(const crew *c, size_t w, const gcomp_request *request, uint64_t where)
{
    size_t from = (size_t)(where >> 32) % c->world, at = 0, length;
    uint8_t *bytes = (uint8_t *)request->recv;
    if (request->kind == GCOMP_ALLREDUCE) {
        length = request->count * bytes_of_dtype(request->dtype);
    } else {
        for (size_t i = 0; i < c->world && !request->bytes[from]; i++) from = (from + 1) % c->world;
        at = total(request->bytes, from);
        if (request->kind == GCOMP_ALLGATHER) at = from * request->stride;
        length = request->bytes[from];
    }
    (void)w;
    if (!length) return 0;
    bytes[at + (size_t)(where & 0xffffff) % length] ^= (uint8_t)(1u << (where >> 24 & 7));
    return 1;
}

static void carry_gather(crew *c, const gcomp_request *const *r)
{
    const size_t stride = r[0]->stride;
    uint8_t *all = (uint8_t *)malloc(c->world * stride + 1);
    for (size_t w = 0; w < c->world; w++) {
        MUST(r[w]->stride == stride && !memcmp(r[w]->bytes, r[0]->bytes, c->world * sizeof(size_t)),
             "workers gather different sizes");
        MUST(r[w]->bytes[w] <= stride, "more bytes than the stride");
        if (found) break;
        memcpy(all + w * stride, r[w]->send, stride);
        for (size_t i = r[w]->bytes[w]; i < stride; i++)
            all[w * stride + i] = (uint8_t)draw(); /* what it likes behind the end */
    }
    for (size_t w = 0; w < c->world && !found; w++) memcpy(r[w]->recv, all, c->world * stride);
    free(all);
}

static void carry_alltoall(crew *c, const gcomp_request *const *r)
{
    for (size_t from = 0; from < c->world; from++)
        for (size_t to = 0; to < c->world && !found; to++) {
            const size_t bytes = r[from]->send_bytes[to];
            MUST(bytes == r[to]->bytes[from], "worker %d sends %d bytes, worker %d awaits %d",
                 (int)from, (int)bytes, (int)to, (int)r[to]->bytes[from]);
            if (found || !bytes) continue;
            memcpy((uint8_t *)r[to]->recv + total(r[to]->bytes, from),
                   (const uint8_t *)r[from]->send + total(r[from]->send_bytes, to), bytes);
        }
}

static void carry_sum(crew *c, const gcomp_request *const *r)
{
    const size_t count = r[0]->count, bytes = count * bytes_of_dtype(r[0]->dtype);
    uint8_t *sum = (uint8_t *)malloc(bytes + 1);
    for (size_t w = 0; w < c->world; w++) {
        MUST(r[w]->count == count && r[w]->dtype == r[0]->dtype, "workers sum different sizes");
        if (found) break;
        if (!w) memcpy(sum, r[w]->recv, bytes);
        else if (r[0]->kind == GCOMP_ALLREDUCE) plain_sum(sum, r[w]->recv, count, r[0]->dtype);
        else
            for (size_t i = 0; i < count; i++) {
                float *to = (float *)(void *)sum + i, x = ((const float *)r[w]->recv)[i];
                MUST(x >= 0, "a negative number to find the largest of");
                if (x > *to) *to = x;
            }
    }
    for (size_t w = 0; w < c->world && !found; w++) memcpy(r[w]->recv, sum, bytes);
    free(sum);
}

/* May a worker that ends leave others waiting? Only where nobody can tell them. */
static int may_leave(const fault *f)
{
    return f->kind == FAIL_ONE || f->kind == ABORT_ONE || f->kind == DAMAGE_FRAME;
}

/* What a collective that failed leaves in its buffers. */
static void spoil(const crew *c, const gcomp_request *r)
{
    size_t bytes = r->kind == GCOMP_ALLGATHER  ? c->world * r->stride
                   : r->kind == GCOMP_ALLTOALL ? total(r->bytes, c->world)
                                               : r->count * bytes_of_dtype(r->dtype);
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)r->recv)[i] = (uint8_t)draw();
}

static void end(crew *c, size_t w, int result)
{
    c->result[w] = result;
    c->state[w] = ENDED;
}

/* Carries out collective k, that all have asked for who are still in the step. */
static void carry(crew *c, size_t k, const fault *f)
{
    const gcomp_request *r[MOST];
    size_t order[MOST], missing = c->world;
    int hit = 0;
    c->carried[k] = 1;
    for (size_t w = 0; w < c->world; w++) {
        r[w] = &c->queue[w][k];
        if (c->state[w] == ENDED) missing = w;
        else MUST(c->state[w] == RUNNING, "worker %d is done, others ask for more", (int)w);
    }
    for (size_t w = 0; w < c->world; w++)
        for (size_t v = 0; v < w; v++)
            if (c->state[w] == RUNNING && c->state[v] == RUNNING)
                MUST(r[w]->kind == r[v]->kind && r[w]->id == r[v]->id,
                     "workers ask for different things: %d and %d", (int)r[w]->kind,
                     (int)r[v]->kind);
    if (missing < c->world)
        MUST(may_leave(f), "worker %d left with %s, others wait for a collective of kind %d: %s",
             (int)missing, gcomp_result_name((gcomp_result)c->result[missing]),
             (int)c->queue[missing ? 0 : c->world - 1][k].kind, gcomp_error(c->gc[missing]));
    if (found) return;
    if (missing == c->world) {
        hit = strikes(c, f, r[0]);
        if (r[0]->kind == GCOMP_ALLGATHER) carry_gather(c, r);
        else if (r[0]->kind == GCOMP_ALLTOALL) carry_alltoall(c, r);
        else carry_sum(c, r);
    }
    if (found) return;
    if (hit && f->kind != DAMAGE_ONE && f->kind != DAMAGE_ALL && f->kind != DAMAGE_FRAME &&
        f->kind != DAMAGE_SUM)
        c->struck = 1;
    else
        for (size_t w = 0; w < c->world && hit; w++)
            if (w == f->worker || f->kind == DAMAGE_ALL) c->struck |= damage(c, w, r[w], f->where);
    shuffle(order, c->world);
    for (size_t i = 0; i < c->world; i++) {
        const size_t w = order[i];
        const int fails = missing < c->world ||
                          (hit && (f->kind == FAIL_ALL || (f->kind == FAIL_ONE && w == f->worker)));
        gcomp_result result;
        if (c->state[w] != RUNNING) continue;
        if (fails) spoil(c, r[w]);
        if (!c->orderly && once_in(16))
            MUST(gcomp_step_done(c->gc[w], r[w]->id + 8 * (1 + (uint32_t)below(7)), 0) ==
                     GCOMP_WRONG_STATE,
                 "step_done takes the id of no request");
        result = gcomp_step_done(c->gc[w], r[w]->id, fails ? (f->status ? f->status : 1) : 0);
        MUST(result == (fails ? GCOMP_CALLBACK_FAILED : GCOMP_OK), "step_done: %s",
             gcomp_result_name(result));
        if (!c->orderly && !fails && once_in(16))
            MUST(gcomp_step_done(c->gc[w], r[w]->id, 0) == GCOMP_WRONG_STATE,
                 "step_done takes a request twice");
        if (fails) end(c, w, result);
    }
}

/* Calls that do not fit into a step change nothing. */
static void misbehave(crew *c, size_t w)
{
    gcomp *gc = c->gc[w];
    gcomp_comm comm = comm_of(c, w, c->world);
    gcomp_result result = GCOMP_WRONG_STATE;
    const void *nothing = NULL;
    size_t length = 0;
    switch (below(8)) {
    case 0: result = gcomp_step_begin(gc, NULL); break;
    case 1: result = gcomp_regroup(gc, &comm); break;
    case 2: result = gcomp_reset(gc, 0); break;
    case 3: result = gcomp_prepare(gc); break;
    case 4: result = gcomp_load(gc, &nothing, &length, 1); break;
    case 5: result = gcomp_join(gc, NULL, 0); break;
    case 6: result = gcomp_add_tensor(gc, &job.tensor[0]); break;
    default:
        if (c->given[w] < job.count) result = gcomp_step_commit(gc);
    }
    MUST(result == GCOMP_WRONG_STATE, "a call that does not fit into a step: %s",
         gcomp_result_name(result));
}

static int give(crew *c, size_t w)
{
    size_t t;
    void *grad;
    gcomp_result result;
    if (c->given[w] == job.count || c->state[w] != RUNNING) return 0;
    t = c->order[w][c->given[w]++];
    grad = c->tied_to && w == c->tied_worker && t == c->tied ? c->tied_to : c->grad[w][t];
    result = gcomp_step_ready(c->gc[w], t, c->skipped[w] >> t & 1 ? NULL : grad);
    MUST(result == GCOMP_OK, "step_ready: %s", gcomp_result_name(result));
    if (!c->orderly && once_in(32)) {
        MUST(gcomp_step_ready(c->gc[w], t, c->grad[w][t]) == GCOMP_WRONG_STATE,
             "a tensor is ready twice");
        MUST(gcomp_step_ready(c->gc[w], job.count, c->grad[w][t]) == GCOMP_INVALID_ARGUMENT,
             "a tensor too many is ready");
    }
    return 1;
}

/* Takes the next request. 0: there is none. */
static int poll(crew *c, size_t w)
{
    gcomp_request request;
    gcomp_result result;
    if (c->state[w] != RUNNING) return 0;
    memset(&request, 0x5A, sizeof request);
    result = gcomp_step_next(c->gc[w], &request);
    if (result != GCOMP_OK) return end(c, w, result), 1;
    if (request.kind == GCOMP_WAIT) return 0;
    if (request.kind == GCOMP_DONE) return c->state[w] = FINISHED, 1;
    MUST(c->asked[w] < QUEUE, "no end of requests");
    if (found) return 0;
    c->queue[w][c->asked[w]++] = request;
    return 1;
}

/* Carries out some of what all have asked for. */
static int carry_some(crew *c, const fault *f, int at_least_one)
{
    size_t ready[QUEUE], count = 0, upto = SIZE_MAX, done = 0, order[QUEUE];
    for (size_t w = 0; w < c->world; w++)
        if (c->state[w] == RUNNING && c->asked[w] < upto) upto = c->asked[w];
    for (size_t k = 0; upto != SIZE_MAX && k < upto; k++)
        if (!c->carried[k]) ready[count++] = k;
    shuffle(order, count);
    for (size_t i = 0; i < count && !found; i++) {
        size_t k = ready[c->orderly ? i : order[i]], running = 0;
        for (size_t w = 0; w < c->world; w++) running += c->state[w] == RUNNING;
        if (!running || (!c->orderly && once_in(3) && !(at_least_one && !done))) continue;
        carry(c, k, f);
        done++;
    }
    return done != 0;
}

static void abort_some(crew *c, const fault *f)
{
    for (size_t w = 0; w < c->world; w++) {
        if (f->kind == ABORT_ONE && w != f->worker) continue;
        if (c->state[w] == ENDED) continue;
        MUST(gcomp_step_abort(c->gc[w]) == GCOMP_OK, "step_abort");
        end(c, w, ABORTED);
        c->struck = 1;
    }
}

/* The step of a worker: the learning rate of rank 0 counts. */
static gcomp_step step_of(const crew *c, size_t w, const gcomp_step *step)
{
    gcomp_step own = gcomp_step_default();
    if (step) own = *step;
    if (step) own.samples = job.samples[w], own.batch = job.batch;
    if (step && w)
        own.learning_rate = 0.01f * (float)(mix(gcomp_step_number(c->gc[w]) * MOST + w) % 4);
    return own;
}

/* A worker's step in a thread of its own. */
typedef struct errand {
    crew *c;
    size_t w;
    const gcomp_step *step;
    unsigned skip;
} errand;

static void *run_errand(void *arg)
{
    const errand *a = (const errand *)arg;
    const gcomp_step own = step_of(a->c, a->w, a->step), *step = a->step ? &own : NULL;
    void *grads[TENSORS];
    int floats = 1;
    for (size_t t = 0; t < job.count; t++) {
        grads[t] = a->skip >> t & 1 ? NULL : a->c->grad[a->w][t];
        floats = floats && job.tensor[t].dtype == GCOMP_F32;
    }
    if (floats)
        a->c->result[a->w] = gcomp_exchange(a->c->gc[a->w], (float *const *)(void *)grads, step);
    else a->c->result[a->w] = gcomp_exchange_any(a->c->gc[a->w], grads, step);
    return NULL;
}

static void exchange_all(crew *c, const gcomp_step *step, unsigned skip)
{
    pthread_t thread[MOST];
    errand all[MOST];
    size_t asked[MOST];
    for (size_t w = 0; w < c->world; w++) {
        all[w] = (errand){c, w, step, skip};
        asked[w] = c->heap[w]->asked;
        if (w && pthread_create(&thread[w], NULL, run_errand, &all[w])) abort();
    }
    run_errand(&all[0]);
    for (size_t w = 0; w < c->world; w++) {
        if (w) pthread_join(thread[w], NULL);
        MUST(!c->prepared[w] || asked[w] == c->heap[w]->asked, "an exchange asks for memory");
        if (c->result[w] == GCOMP_OK) c->prepared[w] = 1;
    }
    steps++;
}

/* The fault: a tensor's gradient lies in that of another, of the same type. */
static void tie(crew *c, const fault *f, unsigned skip)
{
    const size_t from = (size_t)(f->where % job.count);
    c->tied_to = NULL;
    for (size_t a = 0; a < job.count && f->kind == TIED; a++) {
        const size_t size = bytes_of_dtype(job.tensor[a].dtype);
        if (a == from || (skip >> a & 1) || (skip >> from & 1) || job.n[a] < job.n[from]) continue;
        if (job.tensor[a].dtype != job.tensor[from].dtype) continue;
        c->tied_worker = f->worker;
        c->tied = from;
        c->tied_to = (char *)c->grad[f->worker][a] +
                     size * ((size_t)(f->where >> 8) % (job.n[a] - job.n[from] + 1));
    }
    c->struck |= c->tied_to != NULL;
}

/* Drives a step to its end on all workers. */
static void crew_step(crew *c, const gcomp_step *step, unsigned skip, const fault *f)
{
    size_t order[MOST], running = c->world, asked[MOST], turns = 0;
    const size_t abort_at = f->kind == ABORT_ALL || f->kind == ABORT_ONE ? f->call : SIZE_MAX;
    if (c->threads) {
        exchange_all(c, step, skip);
        return;
    }
    memset(c->carried, 0, sizeof c->carried);
    c->may_strike = 0;
    c->struck = f->kind == NOT_A_NUMBER;
    tie(c, f, skip);
    shuffle(order, c->world);
    for (size_t i = 0; i < c->world; i++) {
        const size_t w = order[i];
        gcomp_step own = step_of(c, w, step);
        int odd = w == f->worker && (f->kind == BAD_SCALE || f->kind == OTHER_EPOCH);
        if (odd && f->kind == BAD_SCALE) own.scale = f->where & 1 ? INFINITY : NAN;
        if (odd && f->kind == OTHER_EPOCH) own.epoch++;
        c->struck |= odd;
        c->asked[w] = c->given[w] = 0;
        c->state[w] = RUNNING;
        c->skipped[w] = skip;
        if (w == f->worker && f->kind == OTHER_SKIP)
            c->skipped[w] ^= 1u << f->where % job.count, c->struck = 1;
        if (w == f->worker && f->kind == SCARCE) c->heap[w]->left = (size_t)f->where % 4;
        asked[w] = c->heap[w]->asked;
        c->result[w] = gcomp_step_begin(c->gc[w], step || odd || !c->orderly ? &own : NULL);
        MUST(c->result[w] == GCOMP_OK, "step_begin: %s",
             gcomp_result_name((gcomp_result)c->result[w]));
        shuffle(c->order[w], job.count);
        for (size_t t = 0; t < job.count && c->orderly; t++) c->order[w][t] = t;
    }
    while (running && !found) {
        int moved = 0;
        if (turns++ == abort_at) abort_some(c, f);
        MUST(turns < PATIENCE, "a step without an end");
        shuffle(order, c->world);
        for (size_t i = 0; i < c->world; i++) {
            size_t w = order[i];
            while ((c->orderly || once_in(2)) && give(c, w)) moved = 1;
            if (!c->orderly && once_in(40) && c->state[w] == RUNNING) misbehave(c, w);
            while ((c->orderly || !once_in(4)) && poll(c, w)) moved = 1;
        }
        if (carry_some(c, f, !moved)) moved = 1;
        for (size_t w = 0; w < c->world && !moved; w++)
            while (give(c, w)) moved = 1;
        for (size_t w = 0; w < c->world && !moved; w++) moved = poll(c, w);
        for (size_t w = 0; w < c->world && !moved; w++)
            MUST(c->state[w] != RUNNING, "%s: worker %d of %d waits for ever, after %d requests",
                 c->name, (int)w, (int)c->world, (int)c->asked[w]);
        for (size_t w = running = 0; w < c->world; w++) running += c->state[w] == RUNNING;
    }
    if (f->kind == ABORT_ALL && abort_at >= turns) abort_some(c, f); /* before the commit */
    for (size_t w = 0; w < c->world; w++) {
        if (f->kind == SCARCE) c->struck |= !c->heap[w]->left;
        c->heap[w]->left = SIZE_MAX;
        if (found) {
            gcomp_result ignored = gcomp_step_abort(c->gc[w]);
            (void)ignored;
        } else if (c->state[w] == FINISHED) {
            c->result[w] = gcomp_step_commit(c->gc[w]);
            MUST(c->result[w] == GCOMP_OK, "step_commit: %s", gcomp_error(c->gc[w]));
        }
        MUST(!c->prepared[w] || asked[w] == c->heap[w]->asked, "a step asks for memory");
        if (c->result[w] == GCOMP_OK) c->prepared[w] = 1;
    }
    steps++;
}

/* ---------------- saves */

typedef struct saves {
    size_t world;
    void *bytes[MOST];
    size_t length[MOST];
} saves;

static void free_saves(saves *s)
{
    for (size_t w = 0; w < s->world; w++) free(s->bytes[w]);
    memset(s, 0, sizeof *s);
}

static void take_saves(const crew *c, saves *s)
{
    s->world = c->world;
    for (size_t w = 0; w < c->world; w++) {
        size_t size = gcomp_save_size(c->gc[w]);
        s->bytes[w] = malloc(size);
        MUST(gcomp_save(c->gc[w], s->bytes[w], size, &s->length[w]) == GCOMP_OK &&
                 s->length[w] == size,
             "save");
    }
}

/* Which worker's state is another than that in its save? world: none. */
static size_t other_than(const crew *c, const saves *s)
{
    saves now;
    size_t w;
    take_saves(c, &now);
    for (w = 0; w < c->world; w++)
        if (now.length[w] != s->length[w] || memcmp(now.bytes[w], s->bytes[w], now.length[w]))
            break;
    free_saves(&now);
    return w;
}

/* Are group and twin in the same state? */
static void same_state(const char *after)
{
    saves s;
    size_t w;
    if (found) return;
    take_saves(&twin, &s);
    w = other_than(&group, &s);
    free_saves(&s);
    MUST(w == group.world, "the state of worker %d is another than its twin's %s", (int)w, after);
}

/* ---------------- gradients */

static float half_to_float(uint16_t h)
{
    int e = h >> 10 & 31;
    float m = (float)(h & 1023), x = e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
    return h >> 15 ? -x : x;
}

static float value_at(const void *grad, gcomp_dtype dtype, size_t i)
{
    uint32_t bits;
    float x;
    if (dtype == GCOMP_F32) return ((const float *)grad)[i];
    if (dtype == GCOMP_F16) return half_to_float(((const uint16_t *)grad)[i]);
    bits = (uint32_t)((const uint16_t *)grad)[i] << 16;
    memcpy(&x, &bits, 4);
    return x;
}

static void put_value(void *grad, gcomp_dtype dtype, size_t i, float x)
{
    uint32_t bits;
    int e;
    float m;
    memcpy(&bits, &x, 4);
    if (dtype == GCOMP_F32) ((float *)grad)[i] = x;
    if (dtype == GCOMP_BF16) ((uint16_t *)grad)[i] = (uint16_t)(bits >> 16);
    if (dtype != GCOMP_F16) return;
    m = frexpf(fabsf(x), &e); /* .5 .. 1 */
    bits = bits >> 31 << 15;
    if (isnan(x)) bits |= 0x7e00;
    else if (x == 0) bits |= 0;
    else if (e > 15) bits |= 0x7bff;
    else if (e > -14) bits |= (uint32_t)(e + 14) << 10 | ((uint32_t)(m * 2048) & 1023);
    else if (e > -24) bits |= (uint32_t)ldexpf(m, e + 24);
    ((uint16_t *)grad)[i] = (uint16_t)bits;
}

/* Gradients of all workers, of one kind a tensor. */
static void draw_gradients(void)
{
    for (size_t t = 0; t < job.count; t++) {
        const size_t kind = below(12), n = job.n[t], only = below(n);
        const uint64_t key = draw();
        float size = 1;
        if (kind == 1) size = 1e-20f;
        if (kind == 2) size = 1e-40f;
        if (kind == 3) size = 1e15f;
        if (kind == 4 && once_in(8)) size = 3e38f, job.large = 1;
        for (size_t w = 0; w < group.world; w++)
            for (size_t i = 0; i < n; i++) {
                const uint64_t own = mix(key + w * 0x10000001 + i), common = mix(key ^ (i << 20));
                const double a = (double)(int64_t)own / 9.3e18,
                             b = (double)(int64_t)common / 9.3e18;
                double x = .5 * a + .5 * b;
                if (kind == 5 && own % 10) x = 0;           /* sparse */
                if (kind == 6) x = (double)(own % 3) - 1;   /* ties */
                if (kind == 7) x = i == only ? 100 * b : 0; /* one */
                if (kind == 8) x = 0;
                if (kind == 9) x = x * x * x * x * x; /* heavy tails */
                if (kind == 10) x = w ? 0 : x;        /* one worker */
                if (kind == 11) x = own & 1 ? -0.0 : .25;
                put_value(job.input[w][t], job.tensor[t].dtype, i, (float)x * size);
            }
    }
}

/* How many samples each worker has: maybe none, but not all. batch 0: all alike. */
static void draw_samples(void)
{
    const int alike = !once_in(4);
    memset(job.samples, 0, sizeof job.samples);
    job.batch = 0;
    for (size_t w = 0; w < group.world && !alike; w++) {
        job.samples[w] = (double)below(4);
        job.batch += job.samples[w];
    }
}

/* What the gradient of a worker is multiplied by. */
static float weight_of(const crew *c, size_t w, const gcomp_step *step)
{
    const double part = job.batch > 0 ? job.samples[w] / job.batch * (double)c->world : 1;
    return (float)((step ? (double)step->scale : 1) * part);
}

static void load_gradients(crew *c)
{
    for (size_t w = 0; w < c->world; w++)
        for (size_t t = 0; t < job.count; t++) memcpy(c->grad[w][t], job.input[w][t], bytes_of(t));
}

/* ---------------- what a step does to gradients and residuals */

typedef struct model {
    float *old[MOST][TENSORS], *e[MOST][TENSORS], *y[TENSORS]; /* NULL: not known */
    int conserves[TENSORS];
    double least[TENSORS]; /* numbers that all elements are made of: what is lost of them */
} model;

static int method_is(const gcomp_codec *codec, const char *name, char *text)
{
    size_t length = strlen(name);
    gcomp_codec_format(codec, text, TEXT);
    return !strncmp(text, name, length) &&
           (text[length] == 0 || text[length] == ':' || text[length] == '+');
}

/* e <- decay * e, as a commit does where the codec or the desc says so. */
static void decay(const gcomp_desc *desc, const gcomp_codec *codec, float *e, size_t n)
{
    char text[TEXT];
    const float by = method_is(codec, "dct", text) ? (float)codec->param[2] : desc->decay;
    for (size_t i = 0; i < n && (by != 0 || method_is(codec, "dct", text)); i++) e[i] *= by;
}

/* The step by the codec layer, where it can be had: before the step. */
static void predict(const crew *c, model *m, const gcomp_step *step, unsigned skip, uint64_t number)
{
    memset(m, 0, sizeof *m);
    for (size_t t = 0; t < job.count; t++) {
        const size_t n = job.n[t];
        const gcomp_codec *codec = gcomp_tensor_codec(c->gc[0], t);
        const size_t bound = gcomp_bound(codec, n), scratch = gcomp_scratch(codec, n);
        char text[TEXT];
        void *payload[MOST], *room = malloc(scratch + 1);
        size_t length[MOST];
        gcomp_exec exec;
        int known = bound && !(skip >> t & 1) && !method_is(codec, "none", text);
        memset(&exec, 0, sizeof exec);
        exec.scratch = room;
        exec.scratch_bytes = scratch;
        for (size_t w = 0; w < c->world && gcomp_residual(c->gc[w], t); w++) {
            m->old[w][t] = (float *)malloc(4 * n);
            memcpy(m->old[w][t], gcomp_residual(c->gc[w], t), 4 * n);
        }
        if (method_is(codec, "terngrad", text) && strstr(text, "share=1")) known = 0;
        if (method_is(codec, "topk", text) && strstr(text, "global=1") && c->world > 1) known = 0;
        if (c->desc.aggregate >= GCOMP_AGGREGATE_TWO_SHOT) known = 0;
        if (c->desc.aggregate == GCOMP_AGGREGATE_AUTO && c->world == 1) known = 0;
        for (size_t w = 0; w < c->world; w++)
            if (weight_of(c, w, step) == 0) known = 0; /* there 0 is 1 */
        m->conserves[t] =
            m->old[0][t] && !method_is(codec, "dgc", text) && !method_is(codec, "fetch", text) &&
            !method_is(codec, "dct", text) && c->desc.decay == 0;
        if (method_is(codec, "powersgd", text) && strstr(text, "momentum")) m->conserves[t] = 0;
        for (size_t w = 0; w < c->world && m->conserves[t] && method_is(codec, "powersgd", text);
             w++)
            for (size_t i = 0; i < n; i++)
                m->least[t] = fmax(m->least[t],
                                   fabs((double)weight_of(c, w, step) *
                                        (double)value_at(job.input[w][t], job.tensor[t].dtype, i)) +
                                       fabs((double)m->old[w][t][i]));
        if (known) m->y[t] = (float *)malloc(4 * n);
        for (size_t w = 0; w < c->world && known; w++) {
            gcomp_input in;
            memset(&in, 0, sizeof in);
            in.grad = job.input[w][t];
            in.dtype = job.tensor[t].dtype;
            in.scale = weight_of(c, w, step);
            in.residual = m->old[w][t];
            in.cols = job.tensor[t].cols ? job.tensor[t].cols : 1;
            in.rows = n / in.cols; /* a stack is a tall matrix */
            in.key = gcomp_key_make(c->desc.seed, number, (uint32_t)t, (uint32_t)w);
            payload[w] = malloc(bound);
            if (m->old[w][t]) m->e[w][t] = (float *)malloc(4 * n);
            if (m->old[w][t]) memcpy(m->e[w][t], m->old[w][t], 4 * n);
            if (gcomp_encode(codec, &in, &exec, payload[w], bound, &length[w]) ||
                (m->e[w][t] && gcomp_retain(payload[w], length[w], &in, m->e[w][t], &exec)))
                known = 0;
            if (m->e[w][t]) decay(&c->desc, codec, m->e[w][t], n);
            if (!known)
                for (size_t v = 0; v <= w; v++) free(payload[v]);
        }
        if (known) {
            const void *const *all = (const void *const *)(const void *)payload;
            gcomp_result result = gcomp_decode_mean(all, length, c->world, m->y[t], n, &exec);
            MUST(result == GCOMP_OK, "decode_mean: %s", gcomp_result_name(result));
            for (size_t w = 0; w < c->world; w++) free(payload[w]);
        } else {
            free(m->y[t]);
            m->y[t] = NULL;
        }
        free(room);
    }
}

static void free_model(model *m)
{
    for (size_t t = 0; t < job.count; t++) {
        free(m->y[t]);
        for (size_t w = 0; w < MOST; w++) free(m->old[w][t]), free(m->e[w][t]);
    }
}

static const uint8_t *element_at(const void *grad, size_t t, size_t i)
{
    return (const uint8_t *)grad + bytes_of(t) / job.n[t] * i;
}

/* The gradient that holds element i of the mean: that of the owner. */
static const void *mean_of(const crew *c, size_t t, size_t i)
{
    for (size_t w = 0; w < c->world; w++) {
        size_t begin, end;
        MUST(gcomp_shard(c->gc[0], t, (int)w, &begin, &end) == GCOMP_OK, "no shard of worker %d",
             (int)w);
        if (i >= begin && i < end) return c->grad[w][t];
    }
    MUST(0, "tensor %d: element %d has no owner", (int)t, (int)i);
    return c->grad[0][t];
}

/* Scattered: outside of the own range a worker has its own gradient, as it was (apart); otherwise
   all have the mean (whole). It must be the same for all workers and elements. Returns 1 if the
   tensor is whole and can be nothing else. */
static int compare_scattered(const crew *c, size_t t)
{
    const size_t each = bytes_of(t) / job.n[t];
    int whole = 1, apart = 1;
    for (size_t i = 0; i < job.n[t]; i++) {
        const void *mean = mean_of(c, t, i);
        for (size_t w = 0; w < c->world; w++) {
            if (c->grad[w][t] == mean) continue;
            whole &= !memcmp(element_at(c->grad[w][t], t, i), element_at(mean, t, i), each);
            apart &= !memcmp(element_at(c->grad[w][t], t, i),
                             element_at(job.input[w][t], t, i), each);
        }
    }
    MUST(whole || apart, "tensor %d is neither whole nor scattered", (int)t);
    return whole && !apart;
}

/* A step is past: do gradients and residuals hold what they must? Returns a bit for each tensor
   whose mean is not scattered. */
static unsigned compare(const crew *c, const model *m, const gcomp_step *step, unsigned skip)
{
    unsigned all_whole = 0;
    const double part = 1 / (double)c->world;
    for (size_t t = 0; t < job.count && !found; t++) {
        const gcomp_dtype dtype = job.tensor[t].dtype;
        for (size_t w = 0; w < c->world; w++) {
            const float *e = gcomp_residual(c->gc[w], t);
            if (skip >> t & 1) {
                MUST(!memcmp(c->grad[w][t], job.input[w][t], bytes_of(t)),
                     "a skipped tensor's gradient is another");
                MUST(!e || !memcmp(e, m->old[w][t], 4 * job.n[t]),
                     "a skipped tensor's residual is another");
                continue;
            }
            MUST(c->desc.aggregate == GCOMP_AGGREGATE_SCATTER ||
                     !memcmp(c->grad[w][t], c->grad[0][t], bytes_of(t)),
                 "%s: tensor %d: the means of workers 0 and %d differ", c->name, (int)t, (int)w);
            MUST(!m->y[t] || !m->e[w][t] || !e || !memcmp(e, m->e[w][t], 4 * job.n[t]),
                 "tensor %d: the residual of worker %d is not that of the codec layer", (int)t,
                 (int)w);
        }
        if (skip >> t & 1) continue;
        if (c->desc.aggregate != GCOMP_AGGREGATE_SCATTER || compare_scattered(c, t))
            all_whole |= 1u << t;
        for (size_t i = 0; i < job.n[t] && !found; i++) {
            const double y = (double)value_at(mean_of(c, t, i), dtype, i);
            double before = 0, after = 0, size = fmax(fabs(y), m->least[t]), slack;
            MUST(isfinite(y), "tensor %d: element %d of the mean is not finite", (int)t, (int)i);
            if (m->y[t] && dtype == GCOMP_F32) {
                uint32_t a, b;
                memcpy(&a, m->y[t] + i, 4);
                memcpy(&b, (const float *)c->grad[0][t] + i, 4);
                MUST(a == b, "tensor %d: element %d of the mean is %g, of the codec layer %g",
                     (int)t, (int)i, y, (double)m->y[t][i]);
            }
            if (!m->conserves[t]) continue;
            for (size_t w = 0; w < c->world; w++) {
                const double g = (double)value_at(job.input[w][t], dtype, i);
                const double p = (double)weight_of(c, w, step) * g, old = (double)m->old[w][t][i];
                const double e = (double)gcomp_residual(c->gc[w], t)[i];
                MUST(isfinite(e), "tensor %d: the residual is not finite", (int)t);
                before += (p + old) * part;
                after += e * part;
                if (fabs(p) + fabs(old) + fabs(e) > size) size = fabs(p) + fabs(old) + fabs(e);
            }
            slack = ldexp(size, -19) + 1e-37;
            if (dtype == GCOMP_F16) slack += ldexp(fabs(y), -11) + ldexp(1, -25);
            if (dtype == GCOMP_BF16) slack += ldexp(fabs(y), -8);
            if (dtype == GCOMP_F16 && fabs(y) > 65000) continue;
            if (size > 1e38) continue;
            MUST(fabs(before - after - y) <= slack,
                 "tensor %d, element %d: mean %g + residuals %g is not gradients and residuals "
                 "before, %g",
                 (int)t, (int)i, y, after, before);
        }
    }
    return all_whole;
}

static void same_gradients(const char *after)
{
    for (size_t w = 0; w < group.world && !found; w++)
        for (size_t t = 0; t < job.count; t++)
            MUST(!memcmp(group.grad[w][t], twin.grad[w][t], bytes_of(t)),
                 "worker %d, tensor %d: another mean than its twin's %s", (int)w, (int)t, after);
}

/* ---------------- operations: steps */

static int all_are(const crew *c, int result)
{
    for (size_t w = 0; w < c->world; w++)
        if (c->result[w] != result) return 0;
    return 1;
}

/* The results of all workers as text. */
static const char *results(const crew *c)
{
    static char text[600];
    text[0] = 0;
    for (size_t w = 0; w < c->world; w++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s", w ? ", " : "",
                 c->result[w] == ABORTED ? "aborted"
                                         : gcomp_result_name((gcomp_result)c->result[w]));
    }
    return text;
}

static fault draw_fault(unsigned skip)
{
    fault f;
    memset(&f, 0, sizeof f);
    if (once_in(2)) return f;
    f.kind = (fault_kind)(1 + below(FAULTS - 1));
    f.worker = below(group.world);
    f.call = once_in(2) ? below(3) : below(12);
    f.where = draw();
    f.status = once_in(2) ? 1 : -5;
    if (f.kind == NOT_A_NUMBER && skip == (1u << job.count) - 1) f.kind = NO_FAULT;
    if (group.world == 1 && (f.kind == OTHER_SKIP || f.kind == OTHER_EPOCH)) f.kind = NO_FAULT;
    return f;
}

/* The results that a fault may have. */
static void check_results(const fault *f)
{
    const size_t x = f->worker;
    int others = -9999, fine = 1;
    if (!group.struck && f->kind != SCARCE) {
        MUST(all_are(&group, GCOMP_OK), "nothing happened: %s: %s", results(&group),
             gcomp_error(group.gc[0]));
        return;
    }
    for (size_t w = 0; w < group.world; w++)
        if (w != x) {
            if (others == -9999) others = group.result[w];
            fine = fine && group.result[w] == others;
        }
    switch (f->kind) {
    case FAIL_ALL: fine = all_are(&group, GCOMP_CALLBACK_FAILED); break;
    case FAIL_ONE:
        fine = fine && group.result[x] == GCOMP_CALLBACK_FAILED &&
               (others == GCOMP_CALLBACK_FAILED || others == GCOMP_OK || others == -9999);
        break;
    case ABORT_ALL: fine = all_are(&group, ABORTED); break;
    case ABORT_ONE: fine = fine && group.result[x] == ABORTED; break;
    case NOT_A_NUMBER: fine = all_are(&group, GCOMP_NOT_FINITE); break;
    case BAD_SCALE:
        fine = fine && group.result[x] == GCOMP_INVALID_ARGUMENT &&
               (others == GCOMP_PEER_FAILED || others == -9999);
        break;
    case TIED:
        fine = fine && group.result[x] == GCOMP_INVALID_ARGUMENT &&
               (others == GCOMP_PEER_FAILED || others == -9999);
        fine |= job.large && all_are(&group, GCOMP_NOT_FINITE);
        break;
    case OTHER_SKIP: /* a tensor that only this worker does not skip may have numbers too large */
        fine = all_are(&group, GCOMP_MISMATCH);
        fine |= job.large && !(group.skipped[x] >> f->where % job.count & 1) &&
                all_are(&group, GCOMP_NOT_FINITE);
        break;
    case OTHER_EPOCH: fine = all_are(&group, GCOMP_MISMATCH); break;
    case SCARCE:
        fine =
            all_are(&group, GCOMP_OK) || (group.struck && group.result[x] == GCOMP_OUT_OF_MEMORY &&
                                          (others == GCOMP_PEER_FAILED || others == -9999));
        break;
    case DAMAGE_ALL:
        fine = group.desc.no_checksum;
        for (size_t w = 0; w < group.world; w++) fine |= group.result[w] != GCOMP_OK;
        break;
    case DAMAGE_ONE: fine = group.desc.no_checksum || group.result[x] != GCOMP_OK; break;
    case DAMAGE_FRAME: fine = group.result[x] != GCOMP_OK; break;
    default: break;
    }
    MUST(fine, "%s: %s", fault_names[f->kind], results(&group));
}

/* Back to the state of saves: in the same objects, or in new ones. */
static void restore(crew *c, const saves *s)
{
    for (size_t w = 0; w < c->world && !found; w++) {
        const int own = once_in(2);
        gcomp_result result;
        if (once_in(6)) {
            dismiss(c, w);
            hire(c, w, c->world);
            if (found) return;
        }
        result =
            gcomp_load(c->gc[w], (const void *const *)(const void *)(own ? s->bytes + w : s->bytes),
                       own ? s->length + w : s->length, own ? 1 : s->world);
        MUST(result == GCOMP_OK, "load: %s: %s", gcomp_result_name(result), gcomp_error(c->gc[w]));
    }
}

static void clean_step(const gcomp_step *step, unsigned skip, const char *after)
{
    static const fault none;
    load_gradients(&group);
    crew_step(&group, step, skip, &none);
    MUST(all_are(&group, GCOMP_OK), "the step %s: %s: %s", after, results(&group),
         gcomp_error(group.gc[0]));
    same_gradients(after);
}

static void join_all(crew *c, size_t newcomer, size_t of);

static void restart_all(uint64_t number)
{
    for (size_t w = 0; w < group.world; w++) {
        MUST(gcomp_restart(group.gc[w], number) == GCOMP_OK, "restart");
        MUST(gcomp_restart(twin.gc[w], number) == GCOMP_OK, "restart");
        MUST(gcomp_step_number(group.gc[w]) == number, "restart has another number");
    }
}

/* Some workers are a step ahead: the next step says so on all. Then all begin anew, or go back. */
static void resynchronise(const saves *before, const gcomp_step *step, unsigned skip, int ahead,
                          int diverged)
{
    static const fault none;
    if (once_in(2) && (ahead || diverged)) {
        if (diverged && !ahead && group.world < MOST &&
            once_in(3)) { /* a worker that joins them hears of it too */
            const size_t newcomer = below(group.world + 1);
            join_all(&group, newcomer, below(group.world));
            for (size_t w = group.world - 1, t = 0; t < job.count; t++)
                memset(job.input[w][t], 0, bytes_of(t));
        }
        if (found) return;
        load_gradients(&group);
        crew_step(&group, step, skip, &none);
        faults++;
        for (size_t w = 0; w < group.world && ahead; w++)
            MUST(group.result[w] == GCOMP_OUT_OF_STEP, "after a step that not all made: %s",
                 results(&group));
        MUST(ahead || all_are(&group, GCOMP_DIVERGED) || all_are(&group, GCOMP_NOT_FINITE),
             "after means that differ: %s", results(&group));
    }
    if (found) return;
    if (group.world != twin.world) {
        for (size_t w = 0; w < group.world; w++) dismiss(&group, w);
        group.world = twin.world;
        for (size_t w = 0; w < group.world && !found; w++) hire(&group, w, group.world);
    } else if (once_in(2)) {
        restart_all(gcomp_step_number(twin.gc[0]));
        return;
    }
    if (!found) restore(&group, before);
    if (!found) clean_step(step, skip, "after a load");
}

/* Does a step behind this save compare the means of tensor t? Its record has the number of its steps. */
static int is_checked(const uint8_t *save, size_t t)
{
    const uint8_t *record = save + 60;
    while (t--) record += 64 + get_word(record, 8) + get_word(record + 8, 8);
    return twin.desc.check_every && (get_word(record + 48, 8) + 1) % twin.desc.check_every == 0;
}

/* After a step of the group with a fault, whose twin has none. whole: the tensors that are not
   scattered, a bit each. */
static void after_fault(const fault *f, const saves *before, const gcomp_step *step, unsigned skip,
                        unsigned whole)
{
    size_t good = 0;
    saves now;
    int differ = 0;
    check_results(f);
    if (found) return;
    take_saves(&group, &now);
    for (size_t w = 0; w < group.world; w++) {
        good += group.result[w] == GCOMP_OK;
        if (group.result[w] == GCOMP_OK) continue;
        for (size_t t = 0; t < job.count; t++)
            MUST(!memcmp(group.grad[w][t], job.input[w][t], bytes_of(t)),
                 "%s: the gradient of worker %d is another", fault_names[f->kind], (int)w);
        MUST(!memcmp(now.bytes[w], before->bytes[w], now.length[w]),
             "%s: the state of worker %d is another", fault_names[f->kind], (int)w);
        MUST(group.result[w] == ABORTED || gcomp_error(group.gc[w])[0], "%s: no sentence",
             fault_names[f->kind]);
    }
    free_saves(&now);
    for (size_t w = 0; w < group.world; w++)
        for (size_t t = 0; t < job.count; t++) {
            if (group.result[w] || skip >> t & 1) continue;
            differ |= !group.result[0] && whole >> t & 1 && is_checked(before->bytes[0], t) &&
                      memcmp(group.grad[w][t], group.grad[0][t], bytes_of(t));
            for (size_t i = 0; i < job.n[t]; i++)
                MUST(isfinite(value_at(group.grad[w][t], job.tensor[t].dtype, i)),
                     "a mean that is not finite");
        }
    if (found) return;
    if (good == group.world && (f->kind < DAMAGE_ALL || !group.struck)) {
        same_gradients("after a step");
    } else if (good == 0) {
        return; /* the caller tries again */
    } else {
        resynchronise(before, step, skip, good < group.world,
                      differ && group.result[0] == GCOMP_OK);
    }
}

static void *spot(fault *f, unsigned skip, float *kept)
{
    size_t t = f->where % job.count;
    void *grad;
    while (skip >> t & 1) t = (t + 1) % job.count;
    grad = job.input[f->worker][t];
    *kept = value_at(grad, job.tensor[t].dtype, (size_t)(f->where >> 16) % job.n[t]);
    put_value(grad, job.tensor[t].dtype, (size_t)(f->where >> 16) % job.n[t],
              f->where >> 8 & 1 ? NAN : -NAN);
    f->where = t;
    return grad;
}

static void make_step(void)
{
    static const fault none;
    gcomp_step full, *step = &full;
    unsigned skip = 0;
    const uint64_t number = gcomp_step_number(group.gc[0]);
    model m;
    saves before;
    fault f;
    int tries = 0;
    float kept = 0;
    uint64_t where;
    memset(&full, 0, sizeof full);
    full.scale = 1;
    draw_gradients();
    draw_samples();
    if (job.batch == 0 && once_in(3) && !job.says_epoch && !job.epoch && job.rate == 0) step = NULL;
    if (step && once_in(3)) full.scale = once_in(2) ? 0.5f : once_in(2) ? -3.0f : 1e-3f;
    if (step && once_in(4)) job.epoch++;
    if (step && once_in(12)) job.rate = once_in(2) ? 0 : 0.1f / (float)(1 + below(8));
    if (step) step->epoch = job.epoch, step->learning_rate = job.rate;
    for (size_t t = 0; t < job.count; t++) skip |= (unsigned)once_in(12) << t;
    f = draw_fault(skip);
    snprintf(doing, sizeof doing,
             "step %u with scale %g, epoch %u, rate %g, skipping %x, %s of worker %u",
             (unsigned)number, (double)full.scale, full.epoch, (double)full.learning_rate, skip,
             fault_names[f.kind], (unsigned)f.worker);
    if (verbose) printf("# %d: %s\n", operation_now, doing);
    take_saves(&twin, &before);
    predict(&twin, &m, step, skip, number);
    load_gradients(&twin);
    crew_step(&twin, step, skip, &none);
    if (!found && !all_are(&twin, GCOMP_OK)) {
        MUST(job.large && all_are(&twin, GCOMP_NOT_FINITE), "the twin's step: %s: %s",
             results(&twin), gcomp_error(twin.gc[0]));
        load_gradients(&group);
        crew_step(&group, step, skip, &none);
        MUST(all_are(&group, GCOMP_NOT_FINITE),
             "the twin's numbers are too large, but not these: %s", results(&group));
        MUST(other_than(&twin, &before) == twin.world, "a step of numbers too large changes state");
    } else if (!found) {
        const unsigned whole = compare(&twin, &m, step, skip);
        where = f.where;
        do {
            void *grad = f.kind == NOT_A_NUMBER ? spot(&f, skip, &kept) : NULL;
            load_gradients(&group);
            if (f.kind == SCARCE && group.prepared[f.worker]) f.kind = NO_FAULT;
            if (!found) crew_step(&group, step, skip, &f);
            faults += group.struck != 0;
            if (!found) after_fault(&f, &before, step, skip, whole);
            if (grad)
                put_value(grad, job.tensor[f.where].dtype, (size_t)(where >> 16) % job.n[f.where],
                          kept);
            if (gcomp_step_number(group.gc[0]) != number || found) break;
            f = draw_fault(skip);
            where = f.where;
            if (tries++ > 2) f.kind = NO_FAULT;
            if (verbose)
                printf("#    again, %s of worker %u\n", fault_names[f.kind], (unsigned)f.worker);
        } while (!found);
    }
    same_state("after the step");
    free_model(&m);
    free_saves(&before);
}

/* ---------------- operations: saves, and other workers */

static void make_load(void)
{
    saves s;
    const size_t w = below(group.world), v = below(group.world);
    gcomp_result result;
    uint8_t *wrong;
    snprintf(doing, sizeof doing, "save and load");
    take_saves(&group, &s);
    for (int i = 0; i < 3; i++) { /* damaged saves */
        size_t length = s.length[v], at = below(length);
        const void *save;
        wrong = (uint8_t *)malloc(length);
        memcpy(wrong, s.bytes[v], length);
        if (once_in(2)) wrong[at] ^= (uint8_t)(1u << below(8));
        else length = at;
        save = wrong;
        result = once_in(2)   ? gcomp_load(group.gc[w], &save, &length, 1)
                 : once_in(2) ? gcomp_join(group.gc[w], save, length)
                              : gcomp_take_over(group.gc[w], save, length);
        MUST(result != GCOMP_OK && result != GCOMP_WRONG_STATE, "a damaged save is taken");
        free(wrong);
    }
    MUST(other_than(&group, &s) == group.world, "a damaged save changes state");
    restore(&group, &s);
    MUST(other_than(&group, &s) == group.world, "a load gives another state");
    free_saves(&s);
}

typedef struct sums {
    double *e[TENSORS], *size[TENSORS];
} sums;

/* What was not sent: sums of e / world. */
static void add_residuals(const crew *c, sums *s)
{
    for (size_t t = 0; t < job.count; t++) {
        s->e[t] = (double *)calloc(job.n[t], sizeof(double));
        s->size[t] = (double *)calloc(job.n[t], sizeof(double));
        for (size_t w = 0; w < c->world; w++)
            for (size_t i = 0; i < job.n[t] && gcomp_residual(c->gc[w], t); i++) {
                s->e[t][i] += (double)gcomp_residual(c->gc[w], t)[i] / (double)c->world;
                s->size[t][i] += fabs((double)gcomp_residual(c->gc[w], t)[i]);
            }
    }
}

static void same_residuals(const crew *c, sums *before)
{
    sums now;
    add_residuals(c, &now);
    for (size_t t = 0; t < job.count; t++) {
        char text[TEXT]; /* of dct each worker keeps what it has, see tests/codecs/test_dct.c */
        const int stays = method_is(gcomp_tensor_codec(c->gc[0], t), "dct", text);
        for (size_t i = 0; i < job.n[t] && before->size[t][i] < 1e37 && !stays; i++)
            MUST(fabs(now.e[t][i] - before->e[t][i]) <=
                     ldexp(before->size[t][i] + now.size[t][i], -20) + 1e-40,
                 "tensor %d, element %d: residuals were %g, and are %g", (int)t, (int)i,
                 before->e[t][i], now.e[t][i]);
        free(now.e[t]), free(now.size[t]), free(before->e[t]), free(before->size[t]);
    }
}

/* The saves of all, loaded by another number of workers. */
static void make_other_world(void)
{
    const size_t world = 1 + below(MOST);
    sums before;
    saves s;
    snprintf(doing, sizeof doing, "%d workers load the saves of %d", (int)world, (int)group.world);
    take_saves(&group, &s);
    add_residuals(&group, &before);
    for (crew *c = &group; c; c = c == &group ? &twin : NULL) {
        for (size_t w = 0; w < c->world; w++) dismiss(c, w);
        c->world = world;
        meet(c, world);
        for (size_t w = 0; w < world && !found; w++) {
            gcomp_result result;
            hire(c, w, world);
            if (found) break;
            result =
                gcomp_load(c->gc[w], (const void *const *)(const void *)s.bytes, s.length, s.world);
            MUST(result == GCOMP_OK, "load: %s: %s", gcomp_result_name(result),
                 gcomp_error(c->gc[w]));
        }
    }
    if (!found) same_residuals(&group, &before);
    free_saves(&s);
}

/* Another place for each worker, of `world`, without the one at `gone`: old place -> new. */
static void regroup_all(crew *c, const size_t *place, size_t gone, size_t world)
{
    gcomp *gc[MOST];
    test_heap *heap[MOST];
    int prepared[MOST];
    const size_t before = c->world;
    meet(c, world);
    memset(gc, 0, sizeof gc);
    memset(heap, 0, sizeof heap);
    for (size_t w = 0; w < before && !found; w++) {
        gcomp_comm comm;
        gcomp_result result;
        if (w == gone) continue;
        comm = comm_of(c, place[w], world);
        if (c == &group && once_in(6)) { /* without enough memory first */
            size_t length = gcomp_save_size(c->gc[w]), held = c->heap[w]->held, again;
            uint8_t *old = (uint8_t *)malloc(2 * length), *now = old + length;
            MUST(gcomp_save(c->gc[w], old, length, &length) == GCOMP_OK, "save");
            c->heap[w]->left = below(3);
            result = gcomp_regroup(c->gc[w], &comm);
            c->heap[w]->left = SIZE_MAX;
            if (result == GCOMP_OUT_OF_MEMORY) {
                MUST(gcomp_save(c->gc[w], now, length, &again) == GCOMP_OK &&
                         !memcmp(old, now, length) && held == c->heap[w]->held &&
                         gcomp_memory_used(c->gc[w]) == held,
                     "regroup without memory leaves a trace");
                result = gcomp_regroup(c->gc[w], &comm);
            }
            free(old);
        } else {
            result = gcomp_regroup(c->gc[w], &comm);
        }
        MUST(result == GCOMP_OK, "regroup: %s: %s", gcomp_result_name(result),
             gcomp_error(c->gc[w]));
        MUST(gcomp_memory_used(c->gc[w]) == c->heap[w]->held, "memory_used after regroup");
    }
    if (gone < before) dismiss(c, gone);
    for (size_t w = 0; w < before; w++) {
        if (w == gone) continue;
        gc[place[w]] = c->gc[w];
        heap[place[w]] = c->heap[w];
        prepared[place[w]] = c->prepared[w];
    }
    memcpy(c->gc, gc, sizeof gc);
    memcpy(c->heap, heap, sizeof heap);
    for (size_t w = 0; w < world; w++)
        if (gc[w]) c->prepared[w] = prepared[w];
    c->world = world;
}

static void make_leave(void)
{
    const size_t gone = below(group.world),
                 heir = (gone + 1 + below(group.world - 1)) % group.world;
    size_t order[MOST], place[MOST] = {0}, at = 0;
    sums before;
    saves s;
    snprintf(doing, sizeof doing, "worker %d of %d leaves, to worker %d", (int)gone,
             (int)group.world, (int)heir);
    shuffle(order, group.world);
    for (size_t i = 0; i < group.world; i++)
        if (order[i] != gone) place[order[i]] = at++;
    take_saves(&group, &s);
    add_residuals(&group, &before);
    MUST(gcomp_take_over(group.gc[heir], s.bytes[heir], s.length[heir]) == GCOMP_SAVE_MISMATCH,
         "a worker takes itself over");
    for (crew *c = &group; c && !found; c = c == &group ? &twin : NULL) {
        MUST(gcomp_take_over(c->gc[heir], s.bytes[gone], s.length[gone]) == GCOMP_OK,
             "take_over: %s", gcomp_error(c->gc[heir]));
        regroup_all(c, place, gone, s.world - 1);
    }
    if (!found) same_residuals(&group, &before);
    free_saves(&s);
}

/* A worker joins, with the save of worker `of`: a save of before the others regroup, or behind. */
static void join_with(crew *c, const size_t *place, size_t newcomer, size_t of, int behind)
{
    const size_t world = c->world + 1, size = gcomp_save_size(c->gc[of]);
    void *save = malloc(size + 64);
    size_t length = 0;
    gcomp_result result = gcomp_save(c->gc[of], save, size, &length);
    MUST(result == GCOMP_OK, "save");
    regroup_all(c, place, world, world);
    if (!found && behind) {
        free(save);
        length = gcomp_save_size(c->gc[place[of]]);
        save = malloc(length);
        MUST(gcomp_save(c->gc[place[of]], save, length, &length) == GCOMP_OK, "save");
    }
    if (!found) hire(c, newcomer, world);
    if (!found) {
        result = gcomp_join(c->gc[newcomer], save, length);
        MUST(result == GCOMP_OK, "join: %s: %s", gcomp_result_name(result),
             gcomp_error(c->gc[newcomer]));
    }
    free(save);
}

/* Another place for each of the workers, and none for the newcomer. */
static void draw_places(size_t *place, size_t before, size_t newcomer)
{
    size_t order[MOST];
    shuffle(order, before);
    for (size_t i = 0; i < before; i++) place[order[i]] = i + (i >= newcomer);
}

static void join_all(crew *c, size_t newcomer, size_t of)
{
    size_t place[MOST];
    draw_places(place, c->world, newcomer);
    join_with(c, place, newcomer, of, once_in(2));
}

static void make_join(void)
{
    const size_t newcomer = below(group.world + 1), of = below(group.world);
    const int behind = once_in(2);
    size_t place[MOST];
    sums before;
    snprintf(doing, sizeof doing, "a worker joins %d, as rank %d", (int)group.world, (int)newcomer);
    draw_places(place, group.world, newcomer);
    add_residuals(&group, &before);
    join_with(&group, place, newcomer, of, behind);
    if (!found) join_with(&twin, place, newcomer, of, behind);
    if (!found) same_residuals(&group, &before);
}

/* ---------------- operations: all others */

static void make_restart(void)
{
    const uint64_t number = once_in(2) ? draw() >> below(63) : gcomp_step_number(group.gc[0]);
    snprintf(doing, sizeof doing, "restart");
    restart_all(number);
    for (size_t w = 0; w < group.world; w++)
        for (size_t t = 0; t < job.count; t++)
            for (size_t i = 0; i < job.n[t] && gcomp_residual(group.gc[w], t); i++)
                MUST(gcomp_residual(group.gc[w], t)[i] == 0, "a residual after restart");
}

static void make_reset(void)
{
    const size_t t = below(job.count);
    snprintf(doing, sizeof doing, "reset of tensor %d", (int)t);
    for (size_t w = 0; w < group.world; w++) {
        MUST(gcomp_reset(group.gc[w], t) == GCOMP_OK && gcomp_reset(twin.gc[w], t) == GCOMP_OK,
             "reset");
        MUST(gcomp_reset(group.gc[w], job.count) == GCOMP_INVALID_ARGUMENT, "reset of no tensor");
    }
}

/* Prepares, counts memory, reads statistics. */
static void make_audit(void)
{
    const size_t w = below(group.world);
    gcomp *gc = group.gc[w];
    test_heap *h = group.heap[w];
    gcomp_statistics a, b;
    gcomp_result result;
    snprintf(doing, sizeof doing, "audit of worker %d", (int)w);
    if (once_in(2)) {
        const size_t held = h->held;
        const int scarce = once_in(2);
        if (scarce) h->left = below(4);
        result = gcomp_prepare(gc);
        h->left = SIZE_MAX;
        MUST(result == GCOMP_OK || (result == GCOMP_OUT_OF_MEMORY && scarce && !group.prepared[w]),
             "prepare: %s", gcomp_result_name(result));
        MUST(result == GCOMP_OK || h->held == held, "prepare without memory keeps some");
        if (result == GCOMP_OK) {
            gcomp_desc desc = group.desc;
            desc.comm = comm_of(&group, w, group.world);
            group.prepared[w] = 1;
            MUST(gcomp_memory_used(gc) == gcomp_memory_needed(&desc, job.tensor, job.count),
                 "memory_used is %zu, memory_needed %zu", gcomp_memory_used(gc),
                 gcomp_memory_needed(&desc, job.tensor, job.count));
        }
    }
    MUST(gcomp_memory_used(gc) == h->held, "memory_used is %zu, held are %zu",
         gcomp_memory_used(gc), h->held);
    MUST(gcomp_stats(gc, &a) == GCOMP_OK && gcomp_stats(twin.gc[w], &b) == GCOMP_OK, "stats");
    MUST(!memcmp(&a.residual_norm, &b.residual_norm, sizeof(double)) && isfinite(a.residual_norm) &&
             a.residual_norm >= 0,
         "the norm of residuals is %g, its twin's %g", a.residual_norm, b.residual_norm);
}

/* A tensor's codec without a step: compress, commit, give back. */
static void make_one_way(void)
{
    const size_t w = below(group.world), t = below(job.count), n = job.n[t];
    const gcomp_codec *codec = gcomp_tensor_codec(group.gc[w], t);
    const size_t bound = gcomp_bound(codec, n), room = bound ? bound : 1;
    const uint64_t number = draw() >> 40, key = draw();
    const gcomp_dtype dtype = job.tensor[t].dtype;
    void *g[2];
    float *e = (float *)malloc(4 * n);
    uint8_t *payload[2];
    size_t length[2] = {0, 0};
    gcomp_result result[2];
    gcomp_input in;
    const int how = (int)below(4);
    int sent;
    crew *both[2] = {&group, &twin};
    snprintf(doing, sizeof doing, "one way, tensor %d of worker %d, way %d", (int)t, (int)w, how);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (int k = 0; k < 2; k++) {
        const float *residual = gcomp_residual(both[k]->gc[w], t);
        g[k] = malloc(4 * n);
        payload[k] = (uint8_t *)malloc(room);
        for (size_t i = 0; i < n; i++)
            put_value(g[k], dtype, i, (float)((double)(int64_t)mix(key + i) / 9.3e18));
        if (k == 0 && residual) memcpy(e, residual, 4 * n);
        result[k] = gcomp_compress(both[k]->gc[w], t, number, g[k], payload[k], room, &length[k]);
        MUST(result[k] == GCOMP_OK || result[k] == GCOMP_NEEDS_ROUNDS ||
                 result[k] == GCOMP_NOT_FINITE,
             "compress: %s", gcomp_result_name(result[k]));
    }
    MUST(result[0] == result[1] && length[0] == length[1] &&
             (result[0] || !memcmp(payload[0] + 32, payload[1] + 32, length[0] - 32)),
         "compress gives other bytes than its twin");
    if (result[0] == GCOMP_OK) {
        MUST(gcomp_check(payload[0], length[0], n) == GCOMP_OK,
             "compress gives a payload that is none");
        if (!group.desc.no_checksum && !found) {
            const size_t at = below(length[0]);
            const void *damaged = payload[0];
            payload[0][at] ^= 4;
            MUST(gcomp_commit(group.gc[w], t, g[0], payload[0], length[0], &damaged, length, 1) !=
                     GCOMP_OK,
                 "commit takes a damaged payload");
            MUST(gcomp_give_back(group.gc[w], t, payload[0], length[0]) != GCOMP_OK,
                 "give_back takes a damaged payload");
            payload[0][at] ^= 4;
        }
    }
    if (!found) {
        const size_t at = below(n);
        const float kept = value_at(g[0], dtype, at);
        put_value(g[0], dtype, at, once_in(2) || dtype == GCOMP_F16 ? NAN : INFINITY); /* fp16: saturated */
        result[0] = gcomp_commit(group.gc[w], t, g[0], NULL, 0, NULL, NULL, 0);
        MUST(result[0] != GCOMP_OK || !gcomp_residual(group.gc[w], t),
             "commit of nothing takes NaN or Inf");
        put_value(g[0], dtype, at, kept);
        result[0] = result[1];
    }
    same_state("after compress");
    sent = result[0] == GCOMP_OK && how != 3;
    for (int k = 0; k < 2 && !found; k++) {
        const void *own = sent ? payload[k] : NULL, *all = payload[k];
        result[k] = gcomp_commit(both[k]->gc[w], t, g[k], own, own ? length[k] : 0, &all,
                                 &length[k], own && how == 1);
        if (result[k] == GCOMP_OK && how == 2 && own && gcomp_residual(both[k]->gc[w], t))
            MUST(gcomp_give_back(both[k]->gc[w], t, own, length[k]) == GCOMP_OK, "give_back");
    }
    MUST(found || result[0] == result[1], "commit: %s, its twin: %s", gcomp_result_name(result[0]),
         gcomp_result_name(result[1]));
    MUST(found || !memcmp(g[0], g[1], bytes_of_dtype(dtype) * n),
         "commit gives another mean than its twin");
    if (!found && result[0] == GCOMP_OK && how == 0 && sent && gcomp_residual(group.gc[w], t)) {
        in.grad = g[0];
        in.dtype = dtype;
        in.scale = 1;
        in.rows = n;
        const gcomp_result retained = gcomp_retain(payload[0], length[0], &in, e, NULL);
        decay(&group.desc, gcomp_tensor_codec(group.gc[w], t), e, n);
        MUST(retained == GCOMP_OK && !memcmp(e, gcomp_residual(group.gc[w], t), 4 * n),
             "commit keeps another residual than retain");
    }
    for (int k = 0; k < 2; k++) free(g[k]), free(payload[k]);
    free(e);
}

/* ---------------- cases */

static gcomp_isa draw_isa(void)
{
    for (;;) {
        gcomp_isa isa = (gcomp_isa)(1 + below(4));
        if (gcomp_isa_available(isa)) return isa;
    }
}

static size_t draw_size(void)
{
    return 1 + (once_in(20) ? below(5000) : once_in(4) ? below(700) : below(100));
}

static void draw_tensor(size_t t, size_t most)
{
    gcomp_tensor *tensor = &job.tensor[t];
    size_t size = draw_size();
    memset(tensor, 0, sizeof *tensor);
    snprintf(job.name[t], sizeof job.name[t], "t%d", (int)t);
    tensor->name = job.name[t];
    if (size > most) size = most;
    tensor->rows = size;
    if (!once_in(4) && size > 3) {
        tensor->cols = 1 + below(size / 2);
        tensor->rows = (size + tensor->cols - 1) / tensor->cols;
        if (once_in(4)) tensor->stack = 1 + below(3);
    } else {
        tensor->cols = below(2);
    }
    if (once_in(5)) tensor->dtype = once_in(2) ? GCOMP_F16 : GCOMP_BF16;
    job.n[t] =
        tensor->rows * (tensor->cols ? tensor->cols : 1) * (tensor->stack ? tensor->stack : 1);
}

/* A desc and tensors that an object takes. */
static void draw_job(void)
{
    static const gcomp_aggregate one_shot[] = {GCOMP_AGGREGATE_AUTO, GCOMP_AGGREGATE_GATHER,
                                               GCOMP_AGGREGATE_SHARDS};
    static const size_t least[] = {0, 1, 1, 16, 100};
    gcomp_desc *d = &group.desc;
    gcomp *gc = NULL;
    char why[256];
    gcomp_result result;
    memset(&job, 0, sizeof job);
    memset(d, 0, sizeof *d);
    group.world = 1 + below(MOST);
    d->seed = draw();
    d->min_elements = least[below(5)];
    d->compress_vectors = !once_in(3);
    d->no_error_feedback = once_in(8);
    d->no_checksum = once_in(6);
    d->measure = once_in(4);
    d->aggregate = !once_in(3) ? one_shot[below(3)]
                   : once_in(2) ? GCOMP_AGGREGATE_TWO_SHOT
                                : GCOMP_AGGREGATE_SCATTER;
    d->check_every = (uint32_t)below(4);
    d->decay = once_in(6) ? 0.75f : 0; /* 0: 1 */
    d->isa = draw_isa();
    d->codec = job.list;
    d->comm = comm_of(&group, 0, group.world);
    d->why = why;
    d->why_capacity = sizeof why;
    job.count = 1 + below(TENSORS);
    do {
        job.schedule[0] = 0;
        if (once_in(3)) draw_schedule(job.schedule, sizeof job.schedule);
        d->schedule = job.schedule[0] ? job.schedule : NULL;
        if (d->schedule && (strncmp(job.schedule, "warmup", 6) || once_in(2)))
            draw_list(job.list, TEXT);
        else draw_codec(job.list, TEXT);
        gcomp_close(gc);
        why[0] = 0;
        result = gcomp_open(&gc, d);
        MUST(result == GCOMP_OK || (result == GCOMP_BAD_CODEC && why[0]), "open of %s: %s: %s",
             job.list, gcomp_result_name(result), why);
    } while (result && !found);
    for (size_t t = 0; t < job.count && !found; t++) {
        draw_tensor(t, group.world > 4 ? 1500 : 5000);
        if (once_in(60) && group.world < 3)
            job.tensor[t].rows = job.n[t] = 140000, job.tensor[t].cols = job.tensor[t].stack = 0;
        do {
            job.tensor[t].codec = NULL;
            if (d->schedule) {
                if (once_in(6)) strcpy(job.codec[t], job.list), job.tensor[t].codec = job.codec[t];
            } else if (once_in(2)) {
                draw_codec(job.codec[t], TEXT);
                job.tensor[t].codec = job.codec[t];
            }
            result = gcomp_add_tensor(gc, &job.tensor[t]);
            MUST(result == GCOMP_OK || (result == GCOMP_BAD_CODEC && gcomp_error(gc)[0]),
                 "add_tensor with %s: %s: %s", job.codec[t], gcomp_result_name(result),
                 gcomp_error(gc));
        } while (result && !found);
    }
    gcomp_close(gc);
    job.says_epoch = d->schedule || strstr(job.list, "dgc");
    for (size_t t = 0; t < job.count; t++) job.says_epoch |= strstr(job.codec[t], "dgc") != NULL;
    d->why = NULL;
    if (once_in(2)) d->bucket_bytes = 4 * (1 + below(2000));
}

static void describe(void)
{
    const gcomp_desc *d = &group.desc;
    char codec[TEXT];
    plan[0] = 0;
    say("# %d workers, codec %s, schedule %s, aggregate %d, bucket_bytes %d, min_elements %d, "
        "options%s%s%s%s, check_every %d, "
        "decay %g, set %s\n",
        (int)group.world, d->codec, d->schedule ? d->schedule : "none", (int)d->aggregate,
        (int)d->bucket_bytes, (int)d->min_elements, d->compress_vectors ? " compress_vectors" : "",
        d->no_error_feedback ? " no_error_feedback" : "", d->no_checksum ? " no_checksum" : "",
        d->measure ? " measure" : "", (int)d->check_every, (double)d->decay, gcomp_isa_name(d->isa));
    for (size_t t = 0; t < job.count; t++) {
        gcomp_codec_format(gcomp_tensor_codec(group.gc[0], t), codec, sizeof codec);
        say("# tensor %d: %d x %d x %d of type %d, %s%s\n", (int)t, (int)job.tensor[t].rows,
            (int)job.tensor[t].cols, (int)job.tensor[t].stack, (int)job.tensor[t].dtype, codec,
            gcomp_residual(group.gc[0], t) ? ", residual" : "");
    }
    if (verbose) printf("%s", plan);
}

static void open_case(void)
{
    gcomp_desc *d = &twin.desc;
    const gcomp_parallel shuffled = {run_shuffled, &group.luck}, backwards = {run_backwards, NULL};
    group.name = "the group";
    twin.name = "the twin";
    group.orderly = once_in(8);
    twin.orderly = 1;
    twin.world = group.world;
    *d = group.desc;
    d->isa = draw_isa();
    if (!group.desc.schedule || strncmp(job.schedule, "bytes", 5)) {
        d->bucket_bytes = once_in(2) ? 0 : 4 * (1 + below(2000));
        /* with callbacks AUTO has other forms than without; and it compresses nothing for one worker */
        twin.threads = d->aggregate != GCOMP_AGGREGATE_AUTO && once_in(4);
        if (d->aggregate == GCOMP_AGGREGATE_GATHER || d->aggregate == GCOMP_AGGREGATE_SHARDS)
            d->aggregate = once_in(2) ? GCOMP_AGGREGATE_GATHER : GCOMP_AGGREGATE_SHARDS;
        twin.without = (int)below(8);
    }
    d->no_checksum = once_in(2);
    if (!group.desc.schedule || strncmp(job.schedule, "error", 5)) d->measure = once_in(4);
    if (once_in(2)) group.desc.parallel = shuffled;
    if (once_in(4)) d->parallel = backwards;
    for (crew *c = &group; c && !found; c = c == &group ? &twin : NULL) {
        meet(c, c->world);
        for (size_t w = 0; w < c->world && !found; w++) hire(c, w, c->world);
    }
    for (size_t t = 0; t < job.count; t++)
        for (size_t w = 0; w < MOST; w++) {
            group.grad[w][t] = malloc(bytes_of(t));
            twin.grad[w][t] = malloc(bytes_of(t));
            job.input[w][t] = malloc(bytes_of(t));
        }
}

static void close_case(void)
{
    for (crew *c = &group; c; c = c == &group ? &twin : NULL)
        for (size_t w = 0; w < MOST; w++) {
            dismiss(c, w);
            for (size_t t = 0; t < job.count; t++) free(c->grad[w][t]);
            meet(c, 0);
        }
    for (size_t w = 0; w < MOST; w++)
        for (size_t t = 0; t < job.count; t++) free(job.input[w][t]);
}

static void operate(void)
{
    size_t kind = below(40);
    if (kind < 26) make_step();
    else if (kind < 28) make_load();
    else if (kind < 29) make_other_world();
    else if (kind < 31 && group.world > 1) make_leave();
    else if (kind < 33 && group.world < MOST) make_join();
    else if (kind < 34) make_restart();
    else if (kind < 35) make_reset();
    else if (kind < 37) make_audit();
    else make_one_way();
    if (verbose && kind >= 26) printf("# %d: %s\n", operation_now, doing);
    same_state(doing);
    operations++;
}

static void run_case(uint64_t seed)
{
    size_t count;
    memset(&group, 0, sizeof group);
    memset(&twin, 0, sizeof twin);
    memset(&job, 0, sizeof job);
    luck = mix(seed);
    seed_now = seed;
    found = operation_now = 0;
    plan[0] = 0;
    snprintf(doing, sizeof doing, "begin");
    draw_job();
    if (!found) open_case();
    if (!found) describe();
    count = 10 + below(40);
    for (operation_now = 1; operation_now <= (int)count && !found; operation_now++) operate();
    snprintf(doing, sizeof doing, "end");
    close_case();
    cases++;
}

/* ---------------- a hostile worker

   A party of workers, each in a thread of its own; one runs at a time, until it waits for a
   collective. When all of a group have asked for it, the collective is carried out, and what a
   hostile worker seems to have sent is another for some of those who receive: any field, any
   length, with a right checksum. A receiver may take a value that can be, or return an error; it
   must not end otherwise, write behind its memory, wait for ever, or change on an error. */

enum { PEERS = 6, GROUPS = 4, CALLS = 512, GUARD = 128, PAST = 8, PAST_BYTES = 2048 };

/* A heap with bytes before and behind each block that nobody may touch. */
typedef struct guarded {
    struct guarded *next, *before;
    size_t bytes;
    uint8_t *block, *user;
} guarded;

static uint8_t guard_byte(size_t i) { return (uint8_t)(0xA5 ^ i * 29); }

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define CLOSE_GUARD(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define OPEN_GUARD(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define CLOSE_GUARD(at, bytes) ((void)0)
#define OPEN_GUARD(at, bytes) ((void)0)
#endif

static void *guarded_alloc(void *user, size_t bytes, size_t align)
{
    guarded *heap = (guarded *)user, *g = (guarded *)malloc(sizeof *g);
    const size_t front = align > GUARD ? align : GUARD;
    void *block;
    if (!g || posix_memalign(&block, front, front + bytes + GUARD)) abort();
    g->block = (uint8_t *)block;
    g->user = g->block + front;
    g->bytes = bytes;
    memset(g->user, 0x7f, bytes);
    for (size_t i = 0; i < GUARD; i++)
        g->user[bytes + i] = (g->user - GUARD)[i] = guard_byte(i);
    CLOSE_GUARD(g->user - GUARD, GUARD);
    CLOSE_GUARD(g->user + bytes, GUARD);
    g->next = heap->next;
    g->before = heap;
    if (heap->next) heap->next->before = g;
    heap->next = g;
    return g->user;
}

static int guards_are_whole(const guarded *g)
{
    int whole = 1;
    OPEN_GUARD(g->user - GUARD, GUARD);
    OPEN_GUARD(g->user + g->bytes, GUARD);
    for (size_t i = 0; i < GUARD; i++)
        whole &= (g->user - GUARD)[i] == guard_byte(i) && g->user[g->bytes + i] == guard_byte(i);
    CLOSE_GUARD(g->user - GUARD, GUARD);
    CLOSE_GUARD(g->user + g->bytes, GUARD);
    return whole;
}

static void guarded_free(void *user, void *memory, size_t bytes)
{
    guarded *g = (guarded *)user;
    while (g && g->user != memory) g = g->next;
    MUST(g && g->bytes == bytes, "a block is freed that is none, or with other bytes");
    if (!g) return;
    MUST(guards_are_whole(g), "bytes before or behind a block of %zu bytes were written", bytes);
    OPEN_GUARD(g->user - GUARD, GUARD);
    OPEN_GUARD(g->user + g->bytes, GUARD);
    g->before->next = g->next;
    if (g->next) g->next->before = g->before;
    free(g->block);
    free(g);
}

/* ---------------- the party */

typedef struct call {
    gcomp_request r;
    size_t bytes[PEERS], sent[PEERS]; /* copies of what r points to */
    int status, over;
} call;

/* A worker's place in a group: among all, or among the first workers of machines; or in a
   machine. */
typedef struct seat {
    struct peer *peer;
    size_t group, rank, asked;
    call *calls; /* CALLS of them */
} seat;

typedef struct peer {
    gcomp *gc;
    guarded heap;
    seat seat[2]; /* 0: comm, 1: node */
    pthread_t thread;
    sem_t go;
    const call *waits;
    int over, way; /* the step has ended; how it is driven */
    gcomp_result result;
    void *grad[TENSORS];
    uint8_t *before; /* a save */
    size_t before_bytes;
} peer;

static struct {
    size_t count, machines, each, members[GROUPS], carried[GROUPS];
    seat *member[GROUPS][PEERS];
    peer peer[PEERS];
    sem_t back;
    gcomp_desc desc;
    gcomp_step step;
    unsigned skip;
    /* what is done to collectives */
    size_t hostile, rate, only, collective;
    unsigned victims; /* a bit for each worker that receives it */
    int alike, honest;
    int clean; /* the saves that are kept are those of workers that agree */
    uint8_t past[PAST][PAST_BYTES];
    size_t past_bytes[PAST], pasts;
    unsigned long struck, ok, errors, refused;
} party;

static void wait_for_call(peer *p, const call *c)
{
    while (!c->over) {
        p->waits = c;
        sem_post(&party.back);
        sem_wait(&p->go);
    }
    p->waits = NULL;
}

/* Asks for a collective; it is carried out when all of the group have asked. */
static call *ask(seat *s, const gcomp_request *r)
{
    call *c = &s->calls[s->asked % CALLS];
    const size_t members = party.members[s->group];
    if (s->asked >= CALLS) {
        finding("a step without an end");
        abort();
    }
    c->r = *r;
    c->over = c->status = 0;
    if (r->bytes) memcpy(c->bytes, r->bytes, members * sizeof(size_t));
    if (r->send_bytes) memcpy(c->sent, r->send_bytes, members * sizeof(size_t));
    for (size_t w = 0; w < members && !r->bytes; w++) c->bytes[w] = r->stride;
    s->asked++;
    return c;
}

static int ask_and_wait(void *user, gcomp_request_kind kind, const void *send, void *recv,
                        size_t stride, const size_t *bytes, const size_t *sent, size_t count,
                        gcomp_dtype dtype)
{
    seat *s = (seat *)user;
    gcomp_request r;
    memset(&r, 0, sizeof r);
    r.kind = kind;
    r.send = send;
    r.recv = recv;
    r.stride = stride;
    r.bytes = bytes;
    r.send_bytes = sent;
    r.count = count;
    r.dtype = dtype;
    const call *c = ask(s, &r);
    wait_for_call(s->peer, c);
    return c->status;
}

static int party_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    return ask_and_wait(user, GCOMP_ALLGATHER, mine, all, bytes, NULL, NULL, 0, GCOMP_U8);
}

static int party_allgatherv(void *user, const void *mine, void *all, const size_t *bytes,
                            size_t stride)
{
    return ask_and_wait(user, GCOMP_ALLGATHER, mine, all, stride, bytes, NULL, 0, GCOMP_U8);
}

static int party_alltoallv(void *user, const void *send, const size_t *sent, void *recv,
                           const size_t *came)
{
    return ask_and_wait(user, GCOMP_ALLTOALL, send, recv, 0, came, sent, 0, GCOMP_U8);
}

static int party_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    return ask_and_wait(user, GCOMP_ALLREDUCE, data, data, 0, NULL, NULL, count, dtype);
}

static int party_max(void *user, float *data, size_t count)
{
    return ask_and_wait(user, GCOMP_ALLREDUCE_MAX, data, data, 0, NULL, NULL, count, GCOMP_F32);
}

static int party_start(void *user, const gcomp_request *r)
{
    (void)ask((seat *)user, r);
    return 0;
}

/* The last request of this id: ids come again in the next step only. */
static const call *call_of(const seat *s, uint32_t id)
{
    size_t k = s->asked;
    while (k && s->calls[k - 1].r.id != id) k--;
    MUST(k, "a request is tested or waited for that was not started");
    return &s->calls[k ? k - 1 : 0];
}

static int party_test(void *user, uint32_t id, int *done)
{
    const call *c = call_of((const seat *)user, id);
    *done = c->over;
    return c->over ? c->status : 0;
}

static int party_wait(void *user, uint32_t id)
{
    seat *s = (seat *)user;
    const call *c = call_of(s, id);
    wait_for_call(s->peer, c);
    return c->status;
}

/* ---------------- what a hostile worker sends */

static uint64_t draw_extreme(uint64_t old)
{
    static const uint64_t some[] = {
        0, 1, 2, 3, 15, 16, 64, 127, 128, 255, 256, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff,
        0x80000000u, 0xffffffffu, 0x100000000u, (uint64_t)1 << 40, (uint64_t)1 << 62,
        (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 31, 0x7f800000u, 0x7fc00000u, 0xff800000u,
        0x7f7fffffu, 0xff7fffffu, 0x00800000u, 0x80000001u, 0x3f800000u, 0x7f7f7f7fu};
    switch (below(7)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return once_in(2) ? old * 2 : old / 2;
    case 3: return old ^ (uint64_t)1 << below(64);
    case 4: return draw() >> below(64);
    default: return some[below(sizeof some / sizeof *some)];
    }
}

/* Another value in `bytes` bytes at p, of those that lie in n bytes. */
static void change_word(uint8_t *p, size_t n, size_t at, int bytes)
{
    if (at + (size_t)bytes > n) return;
    put_word(p + at, draw_extreme(get_word(p + at, bytes)), bytes);
}

/* A word of any size anywhere, or a few bits, or noise, or zeros. */
static void change_blindly(uint8_t *p, size_t n)
{
    const size_t at = n ? below(n) : 0, length = n ? 1 + below(n - at) : 0;
    if (!n) return;
    switch (below(6)) {
    case 0: change_word(p, n, once_in(2) ? at & ~(size_t)3 : at, 4); break;
    case 1: change_word(p, n, once_in(2) ? 0 : at, 8); break;
    case 2: p[at] = (uint8_t)draw_extreme(p[at]); break;
    case 3: p[at] ^= (uint8_t)(1u << below(8)); break;
    case 4: memset(p + at, once_in(2) ? 0 : 255, length); break;
    default:
        for (size_t i = 0; i < length; i++) p[at + i] = (uint8_t)draw();
    }
}

static void change_frame(uint8_t *f)
{
    static const struct { size_t at; int bytes; } fields[] = {
        {0, 4}, {4, 4}, {8, 4}, {12, 1}, {13, 1}, {13, 1}, {14, 2}, {16, 8}, {24, 8}, {24, 8},
        {32, 4}, {36, 4}, {40, 4}, {44, 4}, {48, 4}, {52, 4}, {56, 4}};
    for (size_t times = 1 + below(2); times; times--) {
        const size_t k = below(sizeof fields / sizeof *fields);
        if (once_in(3)) change_word(f, 60, below(60), 1 << below(4));
        else if (once_in(4)) f[13] = (uint8_t)(once_in(2) ? 255 : below(9));
        else if (once_in(4)) put_word(f + 24, draw() % 5000, 8);
        else change_word(f, 60, fields[k].at, fields[k].bytes);
    }
    put_word(f + 60, plain_crc(0, f, 60), 4);
}

static void change_length(uint8_t *p)
{
    if (once_in(3)) change_word(p, 16, 8, 4);
    else if (once_in(2)) put_word(p, draw() % 3000, 8);
    else change_word(p, 16, 0, 8);
    put_word(p + 12, plain_crc(0, p, 12), 4);
}

/* Bytes of the payload at p, which n bytes hold; 0: there is none. */
static size_t payload_at(const uint8_t *p, size_t n)
{
    uint64_t body;
    if (n < 32 || memcmp(p, "GCMP", 4)) return 0;
    body = get_word(p + 16, 8);
    return body > n - 32 ? 0 : 32 + (size_t)body;
}

static void renew_seal(uint8_t *p, size_t length)
{
    if (p[6] & 2) put_word(p + 28, plain_crc(plain_crc(0, p, 28), p + 32, length - 32), 4);
}

/* A valid payload of another codec, or of the same number of elements, in place of this one. */
static void replace_payload(uint8_t *p, size_t length)
{
    static uint8_t other[GCOMP_BOUND(8000)], scratch[GCOMP_SCRATCH(8000)];
    static float g[8000];
    const size_t said = (size_t)get_word(p + 8, 8), n = said <= 8000 ? said : 100;
    gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_input in;
    gcomp_codec codec;
    char text[2 * TEXT];
    size_t made = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    for (size_t i = 0; i < n; i++) g[i] = once_in(3) ? 0 : float_of((uint32_t)draw() & 0xff7fffffu);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(g[i])) g[i] = 3e38f;
    in.grad = g;
    in.rows = n;
    draw_codec(text, TEXT);
    if (gcomp_codec_parse(&codec, text, NULL, 0) || gcomp_scratch(&codec, n) > sizeof scratch ||
        gcomp_encode(&codec, &in, &exec, other, sizeof other, &made) || made > length)
        return;
    if (p[6] & 2 && gcomp_seal(other, made, NULL)) return;
    memcpy(p, other, made);
}

static void change_payload(uint8_t *p, size_t n)
{
    static const struct { size_t at; int bytes; } fields[] = {
        {0, 4}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 8}, {16, 8}, {24, 4}, {28, 4}};
    size_t length = payload_at(p, n), at = 0;
    while (payload_at(p + at + length, n - at - length) && once_in(2)) {
        at += length;
        length = payload_at(p + at, n - at);
    }
    p += at;
    for (size_t times = 1 + below(3); times; times--) {
        const size_t k = below(sizeof fields / sizeof *fields);
        if (once_in(8)) replace_payload(p, length);
        else if (once_in(4)) change_word(p, length, fields[k].at, fields[k].bytes);
        else if (once_in(16)) p[6] |= 1, put_word(p + 16, 0, 8), put_word(p + 24, 0, 4);
        else if (length > 32 && once_in(3)) change_blindly(p + 32, length - 32 > 16 ? 16 : length - 32);
        else if (length > 32) change_blindly(p + 32, length - 32);
    }
    length = payload_at(p, n - at);
    if (length) renew_seal(p, length);
}

/* Lists of decisions: behind rank 0's frame, with the number of the step in the checksum. */
static void change_decisions(uint8_t *p, size_t n)
{
    uint8_t number[8];
    put_word(number, gcomp_step_number(party.peer[0].gc), 8);
    p[below(n - 4)] = (uint8_t)draw_extreme(1);
    put_word(p + n - 4, plain_crc(plain_crc(0, number, 8), p, n - 4), 4);
}

/* The bytes that the hostile worker seems to have sent, in the place where they came. */
static void change_bytes(uint8_t *p, size_t n)
{
    const size_t k = below(PAST);
    if (once_in(12)) change_blindly(p, n);
    else if (once_in(12) && party.past_bytes[k])
        memcpy(p, party.past[k], n < party.past_bytes[k] ? n : party.past_bytes[k]);
    else if (n == 64 && !memcmp(p, "GCF", 3)) change_frame(p);
    else if (n == 16 && !memcmp(p, "GCN", 3)) {
        change_word(p, 12, below(12), 1 << below(4));
        put_word(p + 12, plain_crc(0, p, 12), 4);
    } else if (n == 16) change_length(p);
    else if (payload_at(p, n)) change_payload(p, n);
    else if (n == job.count + 4) change_decisions(p, n);
    else if (n > 4 && get_word(p, 4) == plain_crc(0, p + 4, n - 4)) {
        change_blindly(p + 4, n - 4);
        put_word(p, plain_crc(0, p + 4, n - 4), 4);
    } else change_blindly(p, n);
}

/* The word of a machine's first worker behind the means, a byte in each float. */
static void change_told(float *x, size_t count)
{
    uint8_t word[16 + TENSORS];
    const size_t n = 16 + job.count;
    if (count < n || x[count - n] != 'G') return;
    for (size_t i = 0; i < n; i++) /* what looks like a word may be gradients */
        word[i] = (uint8_t)(x[count - n + i] >= 0 && x[count - n + i] <= 255 ? x[count - n + i] : 0);
    change_blindly(word, n - 4);
    put_word(word + n - 4, plain_crc(0, word, n - 4), 4);
    for (size_t i = 0; i < n; i++) x[count - n + i] = word[i];
}

static void change_sums(void *sums, size_t count, gcomp_dtype dtype)
{
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f7fffffu,
                                    0xff7fffffu, 0x00000001u, 0x80000000u, 0, 0xbf800000u};
    const size_t bytes = bytes_of_dtype(dtype);
    for (size_t times = 1 + below(3); times && count; times--) {
        const size_t at = below(count), some = once_in(2) ? 1 : 1 + below(count - at);
        const uint64_t value = once_in(3) ? draw() : bits[below(9)] >> (bytes == 2 ? 16 : 0);
        for (size_t i = at; i < at + some; i++)
            put_word((uint8_t *)sums + bytes * i, value, (int)bytes);
    }
    if (dtype == GCOMP_F32 && once_in(2)) change_told((float *)sums, count);
}

/* ---------------- a collective is carried out */

static void add_halves(void *to, const void *from, size_t count, gcomp_dtype dtype)
{
    for (size_t i = 0; i < count; i++)
        put_value(to, dtype, i, value_at(to, dtype, i) + value_at(from, dtype, i));
}

static void carry_party_sum(size_t group, call *const *c)
{
    const size_t members = party.members[group], count = c[0]->r.count;
    const gcomp_dtype dtype = c[0]->r.dtype;
    const size_t bytes = count * bytes_of_dtype(dtype);
    uint8_t *sum = (uint8_t *)malloc(bytes + 1);
    memcpy(sum, c[0]->r.recv, bytes);
    for (size_t w = 1; w < members; w++) {
        float *most = (float *)(void *)sum;
        const float *x = (const float *)c[w]->r.recv;
        if (dtype == GCOMP_F16 || dtype == GCOMP_BF16) add_halves(sum, x, count, dtype);
        else if (c[0]->r.kind == GCOMP_ALLREDUCE) plain_sum(sum, x, count, dtype);
        else
            for (size_t i = 0; i < count; i++) most[i] = x[i] > most[i] ? x[i] : most[i];
    }
    for (size_t w = 0; w < members; w++) memcpy(c[w]->r.recv, sum, bytes);
    free(sum);
}

/* What worker w of the group gets from all. nothing: nothing comes, and the transport says
   success. Sizes differ where one worker was told another length. */
static void deliver(size_t group, call *const *c, size_t w, int nothing)
{
    const gcomp_request *r = &c[w]->r;
    for (size_t v = 0, at = 0; v < party.members[group] && !nothing; v++) {
        const call *from = c[v];
        const int gather = r->kind == GCOMP_ALLGATHER;
        const size_t wanted = c[w]->bytes[v], has = gather ? from->r.stride : from->sent[w];
        uint8_t *to = (uint8_t *)r->recv + (gather ? v * r->stride : at);
        const uint8_t *bytes = (const uint8_t *)from->r.send;
        if (!gather) bytes += total(from->sent, w);
        if (wanted) memcpy(to, bytes, wanted < has ? wanted : has);
        for (size_t i = has; i < wanted; i++) to[i] = (uint8_t)draw();
        for (size_t i = wanted; i < r->stride && gather; i++) to[i] = (uint8_t)draw();
        at += wanted;
    }
}

/* Keeps what was sent, to be sent again at another place. */
static void keep_past(const call *c)
{
    const size_t bytes = c->r.kind == GCOMP_ALLGATHER ? c->r.stride : 0, k = party.pasts % PAST;
    if (!bytes || bytes > PAST_BYTES) return;
    memcpy(party.past[k], c->r.send, bytes);
    party.past_bytes[k] = bytes;
    party.pasts++;
}

/* Changes what the victims got. */
static void strike(size_t group, call *const *c, size_t hostile, int nothing)
{
    const uint64_t luck_of_all = draw();
    for (size_t w = 0; w < party.members[group]; w++) {
        const gcomp_request *r = &c[w]->r;
        const uint64_t kept = luck;
        const int sums = r->kind == GCOMP_ALLREDUCE || r->kind == GCOMP_ALLREDUCE_MAX;
        uint8_t *to = (uint8_t *)r->recv;
        if (!(party.victims >> w & 1) || nothing) continue;
        if (party.alike) luck = luck_of_all;
        if (r->kind == GCOMP_ALLGATHER) to += hostile * r->stride;
        if (r->kind == GCOMP_ALLTOALL) to += total(c[w]->bytes, hostile);
        if (sums) change_sums(to, r->count, r->dtype);
        else change_bytes(to, c[w]->bytes[hostile]);
        if (party.alike) luck = kept;
    }
}

/* Carries out the next collective of a group, if all have asked; 0: not yet. A worker that has
   ended makes it fail for all others. */
static int carry_group(size_t group)
{
    const size_t members = party.members[group], k = party.carried[group];
    call *c[PEERS];
    size_t asked = 0, gone = 0;
    int fits = 1;
    for (size_t w = 0; w < members; w++) {
        seat *s = party.member[group][w];
        c[w] = s->asked > k ? &s->calls[k] : NULL;
        asked += c[w] != NULL;
        gone += !c[w] && s->peer->over;
    }
    if (!asked || asked + gone < members) return 0;
    party.carried[group]++;
    for (size_t w = 0; w < members && !gone; w++)
        fits &= c[w]->r.kind == c[0]->r.kind && c[w]->r.count == c[0]->r.count &&
                c[w]->r.dtype == c[0]->r.dtype;
    if (!gone && fits) {
        const size_t turn = party.collective++;
        const int hit = !party.honest && (party.rate ? once_in(party.rate) : turn == party.only);
        const int nothing = hit && once_in(10);
        keep_past(c[below(members)]);
        if (c[0]->r.kind == GCOMP_ALLREDUCE || c[0]->r.kind == GCOMP_ALLREDUCE_MAX)
            carry_party_sum(group, c);
        else
            for (size_t w = 0; w < members; w++)
                deliver(group, c, w, nothing && party.victims >> w & 1);
        if (hit && verbose)
            printf("#    group %d, collective %d of kind %d: %s\n", (int)group, (int)turn,
                   (int)c[0]->r.kind, nothing ? "nothing comes" : "other bytes");
        if (hit) strike(group, c, party.hostile % members, nothing);
        party.struck += (unsigned long)hit;
    }
    for (size_t w = 0; w < members; w++) {
        if (!c[w]) continue;
        c[w]->status = gone || !fits;
        c[w]->over = 1;
    }
    return 1;
}

/* Nobody can go on: workers wait for different things. The transport gives up. */
static void fail_all_calls(void)
{
    for (size_t w = 0; w < party.count; w++)
        for (size_t level = 0; level < 2; level++) {
            seat *s = &party.peer[w].seat[level];
            for (size_t k = 0; k < s->asked; k++)
                if (!s->calls[k].over) s->calls[k].over = s->calls[k].status = 1;
        }
    for (size_t g = 0; g < GROUPS; g++)
        for (size_t w = 0; w < party.members[g]; w++)
            if (party.member[g][w]->asked > party.carried[g])
                party.carried[g] = party.member[g][w]->asked;
}

/* ---------------- a step of the party */

static gcomp_result drive_step(peer *p, void *const *grads)
{
    size_t order[TENSORS];
    gcomp_result result = gcomp_step_begin(p->gc, &party.step);
    shuffle(order, job.count);
    for (size_t i = 0; i < job.count && result == GCOMP_OK; i++) {
        result = gcomp_step_ready(p->gc, order[i], grads[order[i]]);
        if (result == GCOMP_OK) result = gcomp_step_progress(p->gc);
    }
    return result == GCOMP_OK ? gcomp_step_finish(p->gc) : result;
}

static void *run_peer(void *arg)
{
    peer *p = (peer *)arg;
    void *grads[TENSORS];
    sem_wait(&p->go);
    for (size_t t = 0; t < job.count; t++) grads[t] = party.skip >> t & 1 ? NULL : p->grad[t];
    p->result = p->way && party.each == 1 ? drive_step(p, grads)
                                          : gcomp_exchange_any(p->gc, grads, &party.step);
    p->over = 1;
    sem_post(&party.back);
    return NULL;
}

static void party_step(void)
{
    size_t left = party.count, order[PEERS];
    memset(party.carried, 0, sizeof party.carried);
    party.collective = 0;
    for (size_t w = 0; w < party.count; w++) {
        peer *p = &party.peer[w];
        p->seat[0].asked = p->seat[1].asked = 0;
        p->over = 0;
        p->waits = NULL;
        for (size_t t = 0; t < job.count; t++) memcpy(p->grad[t], job.input[w][t], bytes_of(t));
        if (pthread_create(&p->thread, NULL, run_peer, p)) abort();
    }
    while (left) {
        int moved = 0;
        shuffle(order, party.count);
        for (size_t i = 0; i < party.count; i++) {
            peer *p = &party.peer[order[i]];
            if (p->over || (p->waits && !p->waits->over)) continue;
            sem_post(&p->go);
            sem_wait(&party.back);
            left -= (size_t)p->over;
            moved = 1;
        }
        for (size_t g = 0; g < GROUPS; g++)
            while (carry_group(g)) moved = 1;
        if (!moved) fail_all_calls();
    }
    for (size_t w = 0; w < party.count; w++) pthread_join(party.peer[w].thread, NULL);
    steps++;
}

static int keeps_state(const peer *p) { return p->seat[1].rank == 0; }

static void keep_states(void)
{
    for (size_t w = 0; w < party.count; w++) {
        peer *p = &party.peer[w];
        if (!keeps_state(p)) continue;
        MUST(gcomp_save(p->gc, p->before, p->before_bytes, &p->before_bytes) == GCOMP_OK, "save");
    }
}

static void same_as_before(const peer *p, size_t w, const char *after)
{
    uint8_t *now = (uint8_t *)malloc(p->before_bytes + 1);
    size_t length = 0;
    if (keeps_state(p)) {
        MUST(gcomp_save(p->gc, now, p->before_bytes, &length) == GCOMP_OK &&
                 !memcmp(now, p->before, length),
             "%s: the state of worker %d is another", after, (int)w);
    }
    free(now);
}

/* After a step with a hostile worker. */
static void check_party(void)
{
    for (size_t w = 0; w < party.count && !found; w++) {
        peer *p = &party.peer[w];
        const gcomp_result result = p->result;
        char sentence[256];
        snprintf(sentence, sizeof sentence, "%s", gcomp_error(p->gc));
        if (verbose)
            printf("#    worker %d: %s: %s\n", (int)w, gcomp_result_name(result), sentence);
        for (const guarded *g = p->heap.next; g; g = g->next)
            MUST(guards_are_whole(g), "bytes before or behind a block of %zu bytes were written",
                 g->bytes);
        MUST(result <= 0 && strcmp(gcomp_result_name(result), "unknown"), "result %d", (int)result);
        for (size_t t = 0; t < job.count; t++) {
            if (result != GCOMP_OK)
                MUST(!memcmp(p->grad[t], job.input[w][t], bytes_of(t)),
                     "%s: the gradient %d of worker %d is another", gcomp_result_name(result),
                     (int)t, (int)w);
            for (size_t i = 0; i < job.n[t] && result == GCOMP_OK; i++)
                MUST(isfinite(value_at(p->grad[t], job.tensor[t].dtype, i)),
                     "tensor %d of worker %d: element %d of the mean is not finite", (int)t, (int)w,
                     (int)i);
        }
        MUST(result == GCOMP_OK || sentence[0], "%s: no sentence", gcomp_result_name(result));
        if (result == GCOMP_OK) party.ok++;
        else party.errors++;
        /* a worker may change the sum with which allreduce is tried */
        if (result == GCOMP_WRONG_STATE ||
            (result == GCOMP_MISSING_CALLBACK && !strstr(sentence, "comm.allreduce makes")))
            finding("worker %d: %s: %s", (int)w, gcomp_result_name(result), sentence);
        if (result != GCOMP_OK && !found) same_as_before(p, w, gcomp_result_name(result));
    }
}

/* All begin anew, or load what they had; then a step without hostility. */
static void recover_party(void)
{
    const uint64_t number = once_in(4) ? draw() >> below(64) : 7;
    const int anew = party.each > 1 || !party.clean || once_in(2);
    const int hostile = party.honest;
    for (size_t w = 0; w < party.count && !found; w++) {
        peer *p = &party.peer[w];
        const void *save = p->before;
        const gcomp_result result = anew ? gcomp_restart(p->gc, number)
                                         : gcomp_load(p->gc, &save, &p->before_bytes, 1);
        MUST(result == GCOMP_OK, "%s: %s", anew ? "restart" : "load", gcomp_error(p->gc));
    }
    if (found) return;
    party.honest = party.clean = 1;
    draw_gradients();
    party_step();
    party.honest = hostile;
    for (size_t w = 0; w < party.count && !found; w++) {
        const peer *p = &party.peer[w];
        if (job.large && p->result == GCOMP_NOT_FINITE) continue;
        MUST(p->result == GCOMP_OK, "worker %d after all began anew: %s: %s", (int)w,
             gcomp_result_name(p->result), gcomp_error(p->gc));
        for (size_t t = 0; t < job.count && group.desc.aggregate != GCOMP_AGGREGATE_SCATTER; t++)
            MUST(p->result != party.peer[0].result || party.skip >> t & 1 ||
                     !memcmp(p->grad[t], party.peer[0].grad[t], bytes_of(t)),
                 "tensor %d: workers 0 and %d hold other means", (int)t, (int)w);
    }
}

/* ---------------- hostile saves */

static void change_save(uint8_t *s, size_t length)
{
    static const struct { size_t at; int bytes; } fields[] = {
        {0, 4}, {4, 4}, {8, 8}, {16, 8}, {24, 8}, {32, 4}, {36, 4}, {40, 4}, {44, 4}, {48, 4}};
    for (size_t times = 1 + below(2); times; times--) {
        const size_t k = below(10), tail = length > 150 ? length - 150 : 0;
        switch (below(5)) {
        case 0: change_word(s, length - 4, fields[k].at, fields[k].bytes); break;
        case 1: change_word(s, length - 4, 52 + 4 * below(2 * job.count + 4), 4); break;
        case 2: change_blindly(s + tail, length - 4 - tail); break;
        case 3: change_word(s, length - 4, below(length) & ~(size_t)3, 4); break;
        default: change_blindly(s, length - 4);
        }
    }
    put_word(s + length - 4, plain_crc(0, s, length - 4), 4);
}

/* One worker, or all, take a save with another value in a field and a right checksum. */
static void make_hostile_load(void)
{
    const size_t from = below(party.count), way = below(3);
    const size_t cut = once_in(12) ? below(60) : 0;
    peer *f = &party.peer[from];
    uint8_t *s = (uint8_t *)malloc(f->before_bytes + 1);
    size_t length = f->before_bytes, taken = 0;
    const void *save = s;
    snprintf(doing, sizeof doing, "a hostile save");
    keep_states();
    if (keeps_state(f)) {
        memcpy(s, f->before, length);
        if (cut && cut < length) length = cut < 8 ? cut : length - cut;
        if (length > 60) change_save(s, length);
        for (size_t w = 0; w < party.count && !found; w++) {
            peer *p = &party.peer[w];
            const gcomp_result result = way == 0   ? gcomp_load(p->gc, &save, &length, 1)
                                        : way == 1 ? gcomp_join(p->gc, save, length)
                                                   : gcomp_take_over(p->gc, save, length);
            if (verbose)
                printf("#    load %d by worker %d: %s: %s\n", (int)way, (int)w,
                       gcomp_result_name(result), gcomp_error(p->gc));
            taken += result == GCOMP_OK;
            MUST(result == GCOMP_OK || gcomp_error(p->gc)[0], "load: no sentence");
            if (result != GCOMP_OK) same_as_before(p, w, "a refused save");
        }
    }
    party.refused += party.count - taken;
    free(s);
    if (found || !taken) return;
    keep_states(); /* what was taken can be saved, and is taken again */
    for (size_t w = 0; w < party.count && !found; w++) {
        peer *p = &party.peer[w];
        save = p->before;
        if (!keeps_state(p) || get_word(p->before + 36, 4) != party.count / party.each) continue;
        MUST(gcomp_load(p->gc, &save, &p->before_bytes, 1) == GCOMP_OK,
             "a worker does not take its own save: %s", gcomp_error(p->gc));
    }
    keep_states();
    draw_gradients();
    party_step();
    check_party();
    party.clean = 0;
    if (!found) recover_party();
}

/* ---------------- cases */

static unsigned dtypes_of(unsigned without)
{
    const unsigned integers = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
    return without & 8 ? integers | 1u << GCOMP_F16 | 1u << GCOMP_BF16 : integers;
}

static void party_comm(gcomp_comm *comm, seat *s, unsigned without)
{
    memset(comm, 0, sizeof *comm);
    comm->user = s;
    comm->rank = (int)s->rank;
    comm->world = (int)party.members[s->group];
    comm->allreduce = party_allreduce;
    comm->allgather = party_allgather;
    comm->allgatherv = without & 1 ? NULL : party_allgatherv;
    comm->allreduce_max = without & 2 ? NULL : party_max;
    comm->alltoallv = without & 4 ? NULL : party_alltoallv;
    if (!(without & 16) || s->group) return;
    comm->start = party_start;
    comm->test = party_test;
    comm->wait = party_wait;
}

static void seat_peer(peer *p, size_t level, size_t group, size_t rank)
{
    seat *s = &p->seat[level];
    s->peer = p;
    s->group = group;
    s->rank = rank;
    s->calls = (call *)calloc(CALLS, sizeof(call));
    party.member[group][rank] = s;
    if (party.members[group] <= rank) party.members[group] = rank + 1;
}

/* 0: these options do not go together. */
static int open_party(void)
{
    static const char *const kept[] = {NULL, NULL, NULL, "bf16", "int8"};
    const unsigned without = (unsigned)draw();
    const unsigned allowed = group.desc.aggregate < GCOMP_AGGREGATE_SHARDS ? 31 : 27;
    const gcomp_allocator allocator = {guarded_alloc, guarded_free, NULL};
    const int nodes = once_in(3);
    party.machines = nodes ? 1 + below(3) : 2 + below(3);
    party.each = nodes ? 2 + below(party.machines == 1 ? 3 : 1) : 1;
    party.count = party.machines * party.each;
    party.desc = group.desc;
    party.desc.residual = kept[below(5)];
    for (size_t w = 0; w < party.count; w++) {
        const size_t m = w / party.each, r = w % party.each;
        if (nodes) seat_peer(&party.peer[w], 1, 1 + m, r);
        if (r == 0) seat_peer(&party.peer[w], 0, 0, m);
        if (sem_init(&party.peer[w].go, 0, 0)) abort();
        party.peer[w].way = once_in(2);
    }
    if (sem_init(&party.back, 0, 0)) abort();
    for (size_t w = 0; w < party.count; w++) {
        peer *p = &party.peer[w];
        gcomp_desc d = party.desc;
        if (p->seat[0].calls) party_comm(&d.comm, &p->seat[0], without & allowed);
        else d.comm.rank = (int)(w / party.each), d.comm.world = (int)party.machines;
        if (party.each > 1) party_comm(&d.node, &p->seat[1], 7);
        d.allocator = allocator;
        d.allocator.user = &p->heap;
        d.comm.allreduce_dtypes = dtypes_of(without);
        if (gcomp_open(&p->gc, &d)) return 0;
        for (size_t t = 0; t < job.count; t++)
            if (gcomp_add_tensor(p->gc, &job.tensor[t])) return 0;
        p->before_bytes = gcomp_save_size(p->gc);
        p->before = (uint8_t *)malloc(p->before_bytes + 1);
        for (size_t t = 0; t < job.count; t++) {
            p->grad[t] = malloc(bytes_of(t));
            job.input[w][t] = malloc(bytes_of(t));
        }
    }
    return 1;
}

static void close_party(void)
{
    for (size_t w = 0; w < party.count; w++) {
        peer *p = &party.peer[w];
        gcomp_close(p->gc);
        MUST(!p->heap.next, "close leaks a block of %zu bytes", p->heap.next->bytes);
        free(p->before);
        for (size_t level = 0; level < 2; level++) free(p->seat[level].calls);
        for (size_t t = 0; t < job.count; t++) free(p->grad[t]), free(job.input[w][t]);
        sem_destroy(&p->go);
    }
    sem_destroy(&party.back);
}

static void make_hostile_step(void)
{
    memset(&party.step, 0, sizeof party.step);
    party.step.scale = 1;
    party.step.epoch = job.epoch += once_in(3);
    party.step.learning_rate = once_in(4) ? 0.1f / (float)(1 + below(4)) : 0;
    party.skip = 0;
    for (size_t t = 0; t < job.count; t++) party.skip |= (unsigned)once_in(12) << t;
    party.honest = once_in(8);
    party.hostile = below(party.count);
    party.rate = once_in(2) ? 0 : 1 + below(6);
    party.only = below(once_in(2) ? 3 : 10);
    party.victims = once_in(2) ? 63 : 1 + (unsigned)below(63);
    party.alike = once_in(2);
    snprintf(doing, sizeof doing,
             "epoch %u, skipping %x, worker %d is hostile to %x, rate %d, only %d, alike %d",
             party.step.epoch, party.skip, (int)party.hostile, party.victims, (int)party.rate,
             (int)party.only, party.alike);
    if (verbose) printf("# %d: %s\n", operation_now, doing);
    draw_gradients();
    keep_states();
    party_step();
    check_party();
    if (!found && !once_in(4)) recover_party();
    else party.clean = 0;
}

static void run_hostile_case(uint64_t seed)
{
    unsigned long ok, errors, refused, struck;
    memset(&group, 0, sizeof group);
    memset(&job, 0, sizeof job);
    ok = party.ok, errors = party.errors, refused = party.refused, struck = party.struck;
    memset(&party, 0, sizeof party);
    party.ok = ok, party.errors = errors, party.refused = refused, party.struck = struck;
    luck = mix(seed ^ 0x605711E);
    seed_now = seed;
    found = operation_now = 0;
    plan[0] = 0;
    snprintf(doing, sizeof doing, "begin");
    draw_job();
    if (!found && open_party()) {
        const size_t count = 3 + below(8);
        party.clean = 1;
        group.world = party.count;
        group.gc[0] = party.peer[0].gc;
        describe();
        say("# %d machines of %d, residual %s\n", (int)party.machines, (int)party.each,
            party.desc.residual ? party.desc.residual : "fp32");
        if (verbose) printf("%s", strrchr(plan, '#'));
        for (operation_now = 1; operation_now <= (int)count && !found; operation_now++) {
            if (once_in(5)) make_hostile_load();
            else make_hostile_step();
            operations++;
        }
        group.gc[0] = NULL;
    }
    close_party();
    cases++;
}

/* ---------------- */

static double seconds;
static uint64_t first_seed = 1;
static size_t most_cases = SIZE_MAX;
static uint64_t hostile_seed = 1, hostile_cases;
static int says_seeds;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void workers_agree_conserve_and_recover(void)
{
    const double until = now() + seconds;
    for (uint64_t seed = first_seed; cases < most_cases && found_in_all < 3; seed++) {
        run_case(seed);
        if (now() > until) break;
    }
    CHECK(!found_in_all);
    printf("# %lu cases, %lu operations, %lu steps of a group or its twin, %lu of them with a fault\n", cases,
           operations, steps, faults);
}

/* As many cases as asked for, from a seed on. */
static void receivers_of_a_hostile_worker_answer_or_go_on(void)
{
    cases = operations = steps = 0;
    found_in_all = 0;
    for (uint64_t seed = hostile_seed; cases < hostile_cases && found_in_all < 3; seed++) {
        if (says_seeds) printf("# seed %llu\n", (unsigned long long)seed);
        run_hostile_case(seed);
    }
    CHECK(!found_in_all);
    printf("# %lu cases, %lu operations, %lu steps; %lu collectives with other bytes, %lu results "
           "are GCOMP_OK, %lu are errors; %lu saves are refused\n",
           cases, operations, steps, party.struck, party.ok, party.errors, party.refused);
}

static int run_hostile(int argc, char **argv)
{
    hostile_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    hostile_cases = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    says_seeds = 1;
    verbose = hostile_cases == 1;
    RUN(receivers_of_a_hostile_worker_answer_or_go_on);
    return test_end();
}

int main(int argc, char **argv)
{
    const char *limit = getenv("GCOMP_TEST_SECONDS");
    if (argc > 1 && !strcmp(argv[1], "hostile")) return run_hostile(argc, argv);
    hostile_cases = test_is_long() ? 2000 : test_is_slow() ? 50 : 200;
    seconds = limit ? atof(limit) : test_is_long() ? 60 : 10;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
        if (!strcmp(argv[i], "--first")) first_seed = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--cases")) most_cases = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seed"))
            first_seed = strtoull(argv[i + 1], NULL, 10), most_cases = 1, verbose = 1;
    }
    RUN(workers_agree_conserve_and_recover);
    if (!verbose) RUN(receivers_of_a_hostile_worker_answer_or_go_on);
    return test_end();
}
