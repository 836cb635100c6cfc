/* Proves of the step: memory, what workers tell of it, halves, calls out of order, statistics, restarts. */

#include "step.h"

/* ---------------- gradients that share memory */

enum { PARTS = 6, PART = 64 };

/* On rank 1, tensor t of PARTS lies at byte place[t] of one buffer; on the other rank the
   tensors lie apart. Tensors become ready in the order that `way` says. Returns the results of
   rank 1 and of the other rank, and the sentence of rank 1. */
static void share_memory(const size_t *place, const gcomp_dtype *dtype, int way, size_t bucket, gcomp_result *own, gcomp_result *other,
                         char *why)
{
    static const char *const names[PARTS] = {"a", "b", "c", "d", "e", "f"};
    static float buffer[2][PARTS * PART];
    gcomp_request request[2];
    gcomp *gc[2];
    gcomp_result result[2] = {GCOMP_OK, GCOMP_OK};
    uint64_t before[2];
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.codec = "int";
        desc.min_elements = 1;
        desc.compress_vectors = 1;
        desc.bucket_bytes = bucket;
        desc.comm.rank = w;
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < PARTS; t++) {
            gcomp_tensor tensor;
            memset(&tensor, 0, sizeof tensor);
            tensor.name = names[t];
            tensor.rows = PART;
            tensor.dtype = dtype[t];
            CHECK(gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        }
        CHECK(gcomp_prepare(gc[w]) == GCOMP_OK);
        for (size_t i = 0; i < PARTS * PART; i++) buffer[w][i] = 0.5f;
        before[w] = fnv(FNV, buffer[w], sizeof buffer[w]);
    }
    for (int w = 0; w < 2; w++) {
        CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK);
        for (size_t k = 0; k < PARTS; k++) {
            const size_t t = way == 0 ? k : way == 1 ? PARTS - 1 - k : (5 * k + 3) % PARTS;
            void *grad = (char *)buffer[w] + (place[t] == SIZE_MAX ? 0 : w ? place[t] : 4 * PART * t);
            CHECK(gcomp_step_ready(gc[w], t, place[t] == SIZE_MAX ? NULL : grad) == GCOMP_OK);
        }
    }
    while (!result[0] && !result[1]) {
        for (int w = 0; w < 2; w++) result[w] = gcomp_step_next(gc[w], &request[w]);
        if (result[0] || result[1] || request[0].kind == GCOMP_DONE) break;
        CHECK(request[0].kind == GCOMP_ALLGATHER && request[1].kind == GCOMP_ALLGATHER);
        for (int w = 0; w < 2; w++)
            for (int f = 0; f < 2; f++)
                memcpy((char *)request[w].recv + (size_t)f * request[w].stride, request[f].send, request[f].bytes[f]);
        for (int w = 0; w < 2; w++) CHECK(gcomp_step_done(gc[w], request[w].id, 0) == GCOMP_OK);
    }
    *own = result[1];
    *other = result[0];
    snprintf(why, 256, "%s", gcomp_error(gc[1]));
    for (int w = 0; w < 2; w++) {
        if (!result[w]) CHECK(gcomp_step_commit(gc[w]) == GCOMP_OK);
        else CHECK(fnv(FNV, buffer[w], sizeof buffer[w]) == before[w]);
        gcomp_close(gc[w]);
    }
}

static void test_gradients_that_share_memory_are_refused_by_all(void)
{
    static const gcomp_dtype floats[PARTS] = {GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32, GCOMP_F32};
    static const gcomp_dtype halves[PARTS] = {GCOMP_F16, GCOMP_F32, GCOMP_F16, GCOMP_BF16, GCOMP_F32, GCOMP_BF16};
    enum { ONE = 4 * PART };
    static const struct {
        size_t place[PARTS];
        const gcomp_dtype *dtype;
        const char *pair; /* NULL: apart */
    } cases[] = {{{0, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE}, floats, NULL},
                 {{5 * ONE, 3 * ONE, ONE, 0, 2 * ONE, 4 * ONE}, floats, NULL},
                 {{0, ONE, 2 * ONE, ONE, 4 * ONE, 5 * ONE}, floats, "tensor 'b' and tensor 'd': their gradients share memory"},
                 {{5 * ONE, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE}, floats, "tensor 'a' and tensor 'f'"},
                 {{0, ONE, 2 * ONE, 3 * ONE, 4 * ONE, 5 * ONE - 4}, floats, "tensor 'e' and tensor 'f'"},
                 {{4 * ONE + ONE / 2, 0, ONE, 2 * ONE, 3 * ONE, 4 * ONE}, floats, "tensor 'a' and tensor 'f'"},
                 {{0, ONE / 2, 3 * ONE / 2, 2 * ONE, 5 * ONE / 2, 7 * ONE / 2}, halves, NULL},
                 {{0, ONE / 2, 3 * ONE / 2 - 2, 2 * ONE, 5 * ONE / 2, 7 * ONE / 2}, halves, "tensor 'b' and tensor 'c'"},
                 {{0, SIZE_MAX, 2 * ONE, SIZE_MAX, 4 * ONE, 5 * ONE}, floats, NULL},
                 {{SIZE_MAX, SIZE_MAX, 2 * ONE, 2 * ONE, SIZE_MAX, SIZE_MAX}, floats, "tensor 'c' and tensor 'd'"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int way = 0; way < 3; way++)
            for (size_t bucket = 0; bucket <= 600; bucket += 300) {
                gcomp_result own, other;
                char why[256];
                share_memory(cases[c].place, cases[c].dtype, way, bucket, &own, &other, why);
                CHECK(own == (cases[c].pair ? GCOMP_INVALID_ARGUMENT : GCOMP_OK));
                CHECK(other == (cases[c].pair ? GCOMP_PEER_FAILED : GCOMP_OK));
                CHECK(!cases[c].pair || strstr(why, cases[c].pair));
            }
}

static int calls_of_comm;

static int gather_alone(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user, (void)mine, (void)all, (void)bytes;
    calls_of_comm++;
    return 1; /* nobody else is there: after one frame it is over */
}

/* gcomp_exchange sends nothing but the frame that tells of the shared memory, also where tensors of
   later buckets share it. Many tensors are sorted quickly. */
static void test_exchange_knows_all_gradients_before_it_sends_anything(void)
{
    enum { MANY = 3000 };
    static float buffer[8 * MANY + 8];
    static void *grads[MANY];
    for (int way = 0; way < 4; way++)
        for (int tied = 0; tied < 2; tied++) {
            gcomp_desc desc;
            gcomp *gc;
            memset(&desc, 0, sizeof desc);
            desc.bucket_bytes = 4000;
            CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
            for (size_t t = 0; t < MANY; t++) {
                const size_t at = way == 0 ? t : way == 1 ? MANY - 1 - t : way == 2 ? t * 1009 % MANY : t ^ 1;
                char name[16];
                gcomp_tensor tensor;
                memset(&tensor, 0, sizeof tensor);
                snprintf(name, sizeof name, "%d", (int)t);
                tensor.name = name;
                tensor.rows = 8;
                CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
                grads[t] = buffer + 8 * at;
            }
            if (tied) grads[7] = (float *)grads[2500] + 7;
            for (int again = 0; again < 2; again++) {
                CHECK(gcomp_exchange(gc, grads, NULL) == (tied ? GCOMP_INVALID_ARGUMENT : GCOMP_OK));
                CHECK(!tied || strstr(gcomp_error(gc), "tensor '7' and tensor '"));
            }
            gcomp_close(gc);
        }
    {
        gcomp_desc desc;
        gcomp_tensor tensor;
        gcomp *gc;
        float *two[2] = {buffer, buffer + 1};
        memset(&desc, 0, sizeof desc);
        memset(&tensor, 0, sizeof tensor);
        desc.comm.world = 2;
        desc.comm.allgather = gather_alone;
        tensor.rows = 2;
        tensor.codec = "sign";
        CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
        tensor.name = "p";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        tensor.name = "q";
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
        calls_of_comm = 0;
        CHECK(exchange_floats(gc, two, NULL) == GCOMP_CALLBACK_FAILED);
        CHECK(calls_of_comm == 1); /* the frame, so that nobody waits */
        gcomp_close(gc);
    }
}

/* ---------------- memory */

enum { PAGE = 4096, FRESH = 0xA5, BLOCKS = 256 };

typedef struct pages {
    uint8_t *raw[BLOCKS], *block[BLOCKS]; /* block NULL: freed */
    size_t bytes[BLOCKS], count;
} pages;

static void *pages_alloc(void *user, size_t bytes, size_t align)
{
    pages *p = (pages *)user;
    uint8_t *raw = (uint8_t *)malloc(bytes + 2 * PAGE), *block;
    if (!raw || p->count == BLOCKS || align > PAGE) abort();
    memset(raw, FRESH, bytes + 2 * PAGE);
    block = raw + PAGE - (uintptr_t)raw % PAGE;
    p->raw[p->count] = raw;
    p->block[p->count] = block;
    p->bytes[p->count++] = bytes;
    return block;
}

static void pages_free(void *user, void *memory, size_t bytes)
{
    pages *p = (pages *)user;
    (void)bytes;
    for (size_t i = 0; i < p->count; i++)
        if (p->block[i] == memory) {
            free(p->raw[i]);
            p->block[i] = NULL;
            p->bytes[i] = 0;
        }
}

/* Bytes of pages that hold something else than what the allocator left there. */
static size_t pages_touched(const pages *p)
{
    size_t touched = 0;
    for (size_t i = 0; i < p->count; i++)
        for (size_t at = 0; at < p->bytes[i]; at += PAGE) {
            size_t k = 0;
            while (k < PAGE && p->block[i][at + k] == FRESH) k++;
            touched += k < PAGE ? PAGE : 0;
        }
    return touched;
}

/* An object reserves room for the longest payloads that there can be. A system that gives memory
   page by page gives only what is used. */
static void test_memory_that_a_step_does_not_use_is_not_touched(void)
{
    enum { N = 200000, USED = 2000, WORKERS = 4 };
    static const char *const codecs[] = {"nonzero", "strom:threshold=0.5", "dryden:density=0.001", "topk:density=0.01"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int buckets = 0; buckets < 2; buckets++) {
            const gcomp_tensor tensors[2] = {{"a", N, 0, 0, GCOMP_F32, codecs[c]}, {"b", N, 0, 0, GCOMP_F32, codecs[c]}};
            static pages memory;
            size_t touched, reserved;
            gcomp_desc desc;
            group g;
            memset(&desc, 0, sizeof desc);
            memset(&memory, 0, sizeof memory);
            desc.allocator.user = &memory;
            desc.allocator.alloc = pages_alloc;
            desc.allocator.free = pages_free;
            desc.bucket_bytes = buckets ? 4 * N : 0;
            desc.no_error_feedback = 1;
            group_open_with(&g, WORKERS, &desc, tensors, 2, NULL);
            for (size_t w = 0; w < WORKERS; w++) CHECK(gcomp_prepare(g.gc[w]) == GCOMP_OK);
            touched = pages_touched(&memory) / WORKERS;
            CHECK(touched < 40 * PAGE);
            for (uint64_t step = 0; step < 2; step++) {
                group_fill(&g, step);
                for (size_t w = 0; w < WORKERS; w++)
                    for (size_t t = 0; t < 2; t++)
                        for (size_t i = USED; i < N; i++) g.grad[w][t][i] = 0; /* few rows of an embedding */
                group_step(&g);
                CHECK(all_are(&g, GCOMP_OK));
            }
            touched = pages_touched(&memory) / WORKERS;
            reserved = memory_of(g.gc[0]);
            printf("# %s, %s: %d KB reserved, %d touched\n", codecs[c], buckets ? "2 buckets" : "1 bucket", (int)(reserved / 1024),
                   (int)(touched / 1024));
            CHECK(touched < reserved / 4 || reserved < 2 * 4 * N);
            group_close(&g);
        }
}

static void test_memory_needed_is_memory_used_by_every_method(void)
{
    static const size_t elements[] = {1, 300, 5000};
    size_t opened = 0;
    for (size_t m = 0; gcomp_method_name(m); m++)
        for (int world = 1; world <= 17; world += world < 2 ? 1 : 5)
            for (int way = 0; way < 10; way++) {
                gcomp_tensor tensors[3];
                gcomp_desc desc;
                gcomp *gc;
                size_t needed;
                memset(&desc, 0, sizeof desc);
                memset(tensors, 0, sizeof tensors);
                desc.codec = gcomp_method_name(m);
                desc.min_elements = 1;
                desc.compress_vectors = 1;
                desc.comm.world = world;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
                desc.aggregate = (gcomp_aggregate)(way % 5);
                desc.bucket_bytes = way >= 5 ? 2000 : 0;
                for (size_t t = 0; t < 3; t++) {
                    static const char *const names[] = {"x", "y", "z"};
                    tensors[t].name = names[t];
                    tensors[t].rows = elements[t];
                    tensors[t].cols = 7;
                }
                needed = gcomp_memory_needed(&desc, tensors, 3);
                CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && needed > 0);
                for (size_t t = 0; t < 3; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
                CHECK(gcomp_prepare(gc) == GCOMP_OK);
                if (memory_of(gc) != needed)
                    printf("# %s, world %d, way %d: needed %lu, used %lu\n", desc.codec, world, way, (unsigned long)needed,
                           (unsigned long)memory_of(gc));
                CHECK(memory_of(gc) == needed);
                gcomp_close(gc);
                opened++;
            }
    CHECK(opened > 500);
}

/* ---------------- scale and element types */

static void test_scaled_gradients_give_the_same_bits(void)
{
    group a, b;
    gcomp_step step = step_with(1.0f / 1024.0f, -1, 0);
    pair_open(&a, &b, 3, mixed, MIXED, 0);
    for (uint64_t s = 0; s < 4; s++) {
        group_advance(&a, s);
        group_fill(&b, s);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MIXED; t++)
                for (size_t i = 0; i < b.n[t]; i++) b.grad[w][t][i] *= 1024.0f;
        group_step_skipping(&b, &step, 0);
        CHECK(all_are(&b, GCOMP_OK));
        CHECK(groups_agree(&a, &b));
    }
    pair_close(&a, &b);
}

/* A scale is that of the loss, or a rate: a worker's own weight is gcomp_step.samples. */
static void test_what_workers_tell_of_a_step_is_compared(void)
{
    static const gcomp_tensor tensor = {"v", 300, 0, 0, GCOMP_F32, NULL};
    static const char *const said[] = {"rank 1 has step.scale 1.5, rank 0 has step.scale 0.5", "rank 1 has step.batch 20, rank 0 has step.batch 10",
                                       "rank 1 has step.number 4, rank 0 has step.number 3", "rank 1 has step.epoch 2, rank 0 has step.epoch 1",
                                       "rank 1 has step.batch over 1e40, rank 0 has step.batch below 1e-40",
                                       "rank 1 has step.scale -1.5, rank 0 has step.scale below 1e-40"};
    for (int field = 0; field < 6; field++) {
        group g;
        group_open(&g, 3, &tensor, 1);
        group_fill(&g, 0);
        group_begin(&g, NULL);
        for (size_t w = 0; w < 3; w++) {
            gcomp_step step = GCOMP_STEP;
            const int other = w == 1;
            if (field == 0) step.scale = other ? 1.5f : 0.5f;
            if (field == 1) step.samples = 5, step.batch = other ? 20 : 10;
            if (field == 2) step.number = other ? 4 : 3;
            if (field == 3) step.epoch = other ? 2 : 1;
            if (field == 4) step.samples = 1e-200, step.batch = other ? 1e200 : 1e-200;
            if (field == 5) step.scale = other ? -1.5f : 1e-43f;
            CHECK(gcomp_step_abort(g.gc[w]) == GCOMP_OK);
            CHECK(gcomp_step_begin(g.gc[w], &step) == GCOMP_OK);
            group_ready(&g, w, 0, 0);
        }
        group_finish(&g);
        CHECK(all_are(&g, GCOMP_MISMATCH));
        for (size_t w = 0; w < 3; w++) CHECK(strstr(gcomp_error(g.gc[w]), said[field]));
        group_close(&g);
    }
}

/* One worker has nobody to send to: the gradient comes back as it is, with what waited in the residual. */
static void test_one_worker_alone_loses_nothing(void)
{
    static const char *const codecs[] = {"topk:density=0.02", "sign", "powersgd:rank=1", "int:bits=2", "sketch", "randomk", "intsum:rounding=nearest"};
    static float grad[2][4096], before[4096];
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int kind = 0; kind < 2; kind++) {
            static float waits[4096];
            gcomp *gc[2];
            gcomp_comm alone;
            char text[400];
            memset(&alone, 0, sizeof alone);
            for (int w = 0; w < 2; w++) { /* two workers take a step; then one of them is left */
                gcomp_desc desc;
                gcomp_tensor tensor = {"w", 64, 64, 0, GCOMP_F32, NULL};
                memset(&desc, 0, sizeof desc);
                desc.codec = codecs[c];
                desc.residual = kind ? "bf16" : NULL;
                desc.comm.rank = w;
                desc.comm.world = 2;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
                CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
                for (size_t i = 0; i < 4096; i++) grad[w][i] = noise(3, (size_t)w, 0, i);
            }
            CHECK(gcomp_commit(gc[0], 0, grad[0], NULL, 0, NULL, NULL, 0) == GCOMP_OK);
            CHECK(gcomp_regroup(gc[0], &alone, NULL) == GCOMP_OK);
            CHECK(gcomp_residual_get(gc[0], 0, waits) == GCOMP_OK);
            gcomp_describe(gc[0], text, sizeof text);
            CHECK(strstr(text, "fp32, none (one worker alone; with more: ") && strstr(text, codecs[c]) && strstr(text, " 1.0 times less"));
            for (size_t i = 0; i < 4096; i++) before[i] = grad[0][i] = noise(4, 0, 0, i);
            CHECK(gcomp_exchange_flat(gc[0], grad[0], NULL) == GCOMP_OK);
            size_t wrong = 0;
            for (size_t i = 0; i < 4096; i++) wrong += grad[0][i] != before[i] + waits[i];
            CHECK(wrong == 0 && gcomp_residual_get(gc[0], 0, waits) == GCOMP_OK);
            for (size_t i = 0; i < 4096; i++) wrong += waits[i] != 0;
            CHECK(wrong == 0);
            alone.world = 2; /* and another joins: the codec is back */
            alone.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32;
            CHECK(gcomp_regroup(gc[0], &alone, NULL) == GCOMP_OK);
            gcomp_describe(gc[0], text, sizeof text);
            CHECK(!strstr(text, "alone") && strstr(text, codecs[c]));
            gcomp_close(gc[0]);
            gcomp_close(gc[1]);
        }
}

/* What an allreduce does: nothing, 1 it averages, 2 it adds, 3 what it adds is not a number. */
static void test_an_allreduce_that_does_not_add_is_named_in_the_first_step(void)
{
    static const char *const codecs[] = {"none", "powersgd:rank=1", "intsum:bits=8", "intsum:bits=16", "intsum:bits=32", "fp16", "bf16", "topk:density=0.1,global=1"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int does = 0; does < 4; does++) {
            gcomp *gc[3];
            static float grad[3][4096];
            gcomp_request q[3];
            gcomp_result result[3] = {GCOMP_OK, GCOMP_OK, GCOMP_OK};
            const int halves = codecs[c][1] == 'p' || codecs[c][1] == 'f';
            if (halves && does) continue; /* this test can add integers and floats */
            const int counts = !strncmp(codecs[c], "topk", 4);
            if (does == 3 && c > 1 && !counts) continue; /* integers are numbers */
            for (int w = 0; w < 3; w++) {
                gcomp_desc desc;
                gcomp_tensor tensor = {"w", 64, 64, 0, GCOMP_F32, NULL};
                memset(&desc, 0, sizeof desc);
                desc.codec = codecs[c];
                desc.comm.rank = w;
                desc.comm.world = 3;
                desc.comm.allreduce_dtypes = 1u << GCOMP_I8 | 1u << GCOMP_I16 | 1u << GCOMP_I32 | 1u << GCOMP_F16 | 1u << GCOMP_BF16;
                if (counts) desc.aggregate = GCOMP_AGGREGATE_SHARDS;
                CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
                for (size_t i = 0; i < 4096; i++) grad[w][i] = 1;
                CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad[w]) == GCOMP_OK);
            }
            for (int call = 0; call < 9 && result[0] == GCOMP_OK; call++) {
                size_t took[3] = {0, 0, 0};
                for (int w = 0; w < 3; w++) result[w] = gcomp_step_next(gc[w], &q[w]);
                if (result[0] != GCOMP_OK || q[0].kind == GCOMP_DONE) break;
                for (int w = 0; w < 3 && q[0].kind == GCOMP_ALLTOALL; w++) {
                    char *recv = (char *)q[w].recv;
                    for (int from = 0; from < 3; from++) {
                        memcpy(recv, (const char *)q[from].send + took[from], q[from].send_bytes[w]);
                        recv += q[from].send_bytes[w];
                        took[from] += q[from].send_bytes[w];
                    }
                }
                for (int w = 0; w < 3 && q[0].kind == GCOMP_ALLGATHER; w++)
                    for (int from = 0; from < 3; from++)
                        memcpy((char *)q[w].recv + (size_t)from * q[w].stride, q[from].send, q[from].bytes[from]);
                if (q[0].kind == GCOMP_ALLREDUCE && does) {
                    for (int w = 1; w < 3; w++) plain_reduce(&q[0], &q[w]);
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_F32; i++) ((float *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I8; i++) ((int8_t *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I16; i++) ((int16_t *)q[0].recv)[i] /= 3;
                    for (size_t i = 0; i < q[0].count && does == 1 && q[0].dtype == GCOMP_I32; i++) ((int32_t *)q[0].recv)[i] /= 3;
                    if (does == 3) ((float *)q[0].recv)[q[0].count - 1] = c ? NAN : -INFINITY;
                    for (int w = 1; w < 3; w++) memcpy(q[w].recv, q[0].recv, q[0].count * bytes_of_dtype(q[0].dtype));
                }
                for (int w = 0; w < 3; w++) CHECK(gcomp_step_done(gc[w], q[w].id, 0) == GCOMP_OK);
            }
            for (int w = 0; w < 3; w++) {
                if (does == 2) {
                    CHECK(result[w] == GCOMP_OK && gcomp_step_commit(gc[w]) == GCOMP_OK);
                } else {
                    CHECK(result[w] == GCOMP_MISSING_CALLBACK && grad[w][0] == 1);
                    CHECK(strstr(gcomp_error(gc[w]), does == 3 ? "comm.allreduce makes NaN or Inf of a one from each of 3 workers: it must add"
                                                               : "comm.allreduce makes 1 of a one from each of 3 workers: it must add, and not average"));
                }
                gcomp_close(gc[w]);
            }
        }
}

/* What another version of the library sends may mean something else. */
static void test_another_version_of_the_library_is_named(void)
{
    gcomp *gc[2];
    gcomp_request q[2];
    static float grad[2][100];
    for (int w = 0; w < 2; w++) {
        gcomp_desc desc;
        gcomp_tensor tensor = {"w", 100, 0, 0, GCOMP_F32, NULL};
        memset(&desc, 0, sizeof desc);
        desc.comm.rank = w;
        desc.comm.world = 2;
        CHECK(gcomp_open(&gc[w], &desc) == GCOMP_OK && gcomp_add_tensor(gc[w], &tensor) == GCOMP_OK);
        CHECK(gcomp_step_begin(gc[w], NULL) == GCOMP_OK && gcomp_step_ready(gc[w], 0, grad[w]) == GCOMP_OK);
        CHECK(gcomp_step_next(gc[w], &q[w]) == GCOMP_OK && q[w].stride == FRAME_BYTES);
    }
    gcomp_result result = GCOMP_OK;
    for (int call = 0; call < 20 && result == GCOMP_OK; call++) {
        uint8_t *all = (uint8_t *)q[0].recv, *other = all + FRAME_BYTES;
        memcpy(all, q[0].send, FRAME_BYTES);
        memcpy(other, call ? q[0].send : q[1].send, FRAME_BYTES);
        put_word(other + 4, 1, 4);
        if (call == 0) put_word(other + 44, 7, 4); /* the digest of options */
        else memcpy(other + 16, "GCOMP_VERSION 603", 18); /* looked for, it is the first that differs; then its text */
        put_word(other + 60, plain_crc(0, other, 60), 4);
        CHECK(gcomp_step_done(gc[0], q[0].id, 0) == GCOMP_OK);
        result = gcomp_step_next(gc[0], &q[0]);
        CHECK(result != GCOMP_OK || q[0].stride == FRAME_BYTES);
    }
    CHECK(result == GCOMP_MISMATCH);
    CHECK(strstr(gcomp_error(gc[0]), "rank 1 has GCOMP_VERSION 603, rank 0 has GCOMP_VERSION 400"));
    gcomp_close(gc[0]);
    gcomp_close(gc[1]);
}

/* A bad scale is this worker's error: it joins the frame, and the others hear of it. */
static void test_a_bad_scale_on_one_worker_fails_its_peers_in_the_frame(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        group g;
        group_open(&g, 3, mixed, MIXED);
        group_fill(&g, 0);
        snapshot before = snapshot_take(&g);
        group_begin(&g, NULL);
        gcomp_step step = GCOMP_STEP;
        step.scale = bad[i];
        CHECK(gcomp_step_abort(g.gc[1]) == GCOMP_OK);
        CHECK(gcomp_step_begin(g.gc[1], &step) == GCOMP_OK);
        for (size_t w = 0; w < 3; w++)
            for (size_t t = 0; t < MIXED; t++) group_ready(&g, w, t, 0);
        group_finish(&g);
        CHECK(g.result[0] == GCOMP_PEER_FAILED);
        CHECK(g.result[1] == GCOMP_INVALID_ARGUMENT);
        CHECK(strstr(gcomp_error(g.gc[1]), "scale") != NULL);
        CHECK(g.result[2] == GCOMP_PEER_FAILED);
        CHECK(names_worker(gcomp_error(g.gc[0]), 1));
        CHECK(group_equals(&g, &before));
        group_step(&g);
        CHECK(all_are(&g, GCOMP_OK));
        snapshot_free(&before);
        group_close(&g);
    }
}

/* From the definitions: sign, exponent, 10 bits; to nearest, ties to even, saturated. */
static uint16_t half_of(float x)
{
    double a = fabs((double)x), best = 0;
    uint16_t found = 0, sign = signbit(x) ? 0x8000 : 0;
    if (a >= 65504.0) return (uint16_t)(sign | 0x7BFF);
    unsigned low = 0, high = 0x7BFF;
    while (low < high) { /* the largest half that is not above a */
        unsigned middle = (low + high + 1) / 2;
        double value =
            middle < 1024 ? ldexp((double)middle, -24) : ldexp((double)(1024 + (middle & 1023)), (int)(middle >> 10) - 25);
        if (value <= a) low = middle;
        else high = middle - 1;
    }
    double below = low < 1024 ? ldexp((double)low, -24) : ldexp((double)(1024 + (low & 1023)), (int)(low >> 10) - 25);
    unsigned up = low + 1;
    double above = up < 1024 ? ldexp((double)up, -24) : ldexp((double)(1024 + (up & 1023)), (int)(up >> 10) - 25);
    (void)best;
    found = (uint16_t)low;
    if (low < 0x7BFF && (a - below > above - a || (a - below == above - a && (low & 1)))) found = (uint16_t)up;
    return (uint16_t)(sign | found);
}

static float float_of_half(uint16_t h)
{
    unsigned low = h & 0x7FFF;
    double value = low < 1024 ? ldexp((double)low, -24) : ldexp((double)(1024 + (low & 1023)), (int)(low >> 10) - 25);
    return (float)(h & 0x8000 ? -value : value);
}

static uint16_t bfloat_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static float float_of_bfloat(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static void test_half_gradients_hold_the_rounded_mean_of_the_float_run(void)
{
    for (int type = GCOMP_F16; type <= GCOMP_BF16; type++) {
        gcomp_tensor narrow[MIXED];
        group a, b;
        memcpy(narrow, mixed, sizeof mixed);
        for (size_t t = 0; t < MIXED; t++) narrow[t].dtype = (gcomp_dtype)type;
        group_open(&a, 2, mixed, MIXED);
        group_open(&b, 2, narrow, MIXED);  /* its gradient arrays hold 2 bytes an element */
        for (uint64_t step = 0; step < 4; step++) {
            group_fill(&a, step);
            for (size_t w = 0; w < 2; w++)
                for (size_t t = 0; t < MIXED; t++)
                    for (size_t i = 0; i < a.n[t]; i++) {
                        uint16_t x = type == GCOMP_F16 ? half_of(a.grad[w][t][i]) : bfloat_of(a.grad[w][t][i]);
                        ((uint16_t *)(void *)b.grad[w][t])[i] = x;
                        a.grad[w][t][i] = type == GCOMP_F16 ? float_of_half(x) : float_of_bfloat(x);
                    }
            group_step(&a);
            group_step(&b);
            CHECK(all_are(&a, GCOMP_OK));
            CHECK(all_are(&b, GCOMP_OK));
            for (size_t w = 0; w < 2; w++)
                for (size_t t = 0; t < MIXED; t++) {
                    const uint16_t *got = (const uint16_t *)(const void *)b.grad[w][t];
                    size_t wrong = 0;
                    for (size_t i = 0; i < a.n[t]; i++)
                        wrong += got[i] != (type == GCOMP_F16 ? half_of(a.grad[w][t][i]) : bfloat_of(a.grad[w][t][i]));
                    if (wrong) printf("# %s: %d wrong\n", mixed[t].name, (int)wrong);
                    CHECK(wrong == 0);
                    const float *ea = tensor_residual(a.gc[w], t), *eb = tensor_residual(b.gc[w], t);
                    CHECK((ea == NULL) == (eb == NULL));
                    if (ea && eb) CHECK(memcmp(ea, eb, 4 * a.n[t]) == 0);
                }
        }
        pair_close(&a, &b);
    }
}

static void test_exchange_any_of_one_worker_rounds_and_saturates(void)
{
    static const gcomp_tensor tensors[] = {{"h", 40, 40, 0, GCOMP_F16, "topk:density=0.5"}, {"b", 70, 0, 0, GCOMP_BF16, NULL},
                                           {"f", 70, 0, 0, GCOMP_F32, NULL}};
    gcomp *gc;
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < 3; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
    uint16_t h[1600], b[70];
    float f[70];
    for (size_t i = 0; i < 1600; i++) h[i] = half_of(60000.0f);
    for (size_t i = 0; i < 70; i++) {
        b[i] = bfloat_of(noise(1, 0, 0, i));
        f[i] = noise(2, 0, 0, i);
    }
    void *grads[3];
    grads[0] = h;
    grads[1] = b;
    grads[2] = f;
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
    CHECK(h[0] == half_of(60000.0f) && h[799] == half_of(60000.0f) && h[800] == 0); /* of equals the first are kept */
    CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
    CHECK(h[0] == half_of(60000.0f) || h[800] == half_of(60000.0f));
    for (size_t i = 0; i < 1600; i++) h[i] = 0x7BFF;
    for (int step = 0; step < 3; step++) {  /* the residual adds up above 65504: saturated, never infinite */
        CHECK(gcomp_exchange(gc, grads, NULL) == GCOMP_OK);
        for (size_t i = 0; i < 1600; i++) {
            CHECK((h[i] & 0x7C00) != 0x7C00);
            h[i] = 0x7BFF;
        }
    }
    for (size_t i = 0; i < 70; i++) CHECK(b[i] == bfloat_of(noise(1, 0, 0, i)) && f[i] == noise(2, 0, 0, i));
    gcomp_close(gc);
}

/* ---------------- abort, state, statistics */

static void test_abort_leaves_everything_as_it_was(void)
{
    for (size_t stage = 0; stage < 5; stage++) {
        group a, b;
        pair_open(&a, &b, 2, mixed, MIXED, 1);
        group_fill(&a, 1);
        snapshot before = snapshot_take(&a);
        group_begin(&a, NULL);
        size_t some = stage == 0 ? 0 : stage == 1 ? 3 : (size_t)MIXED;
        for (size_t w = 0; w < 2; w++)
            for (size_t t = 0; t < some; t++) group_ready(&a, w, t, 0);
        if (stage == 3)
            for (size_t w = 0; w < 2; w++) CHECK(gcomp_step_next(a.gc[w], &a.queue[w][0]) == GCOMP_OK);
        if (stage == 4) group_pump(&a);  /* all communicated, not committed */
        for (size_t w = 0; w < 2; w++) {
            CHECK(gcomp_step_abort(a.gc[w]) == GCOMP_OK);
            CHECK(gcomp_step_abort(a.gc[w]) == GCOMP_OK);  /* no effect outside a step */
            CHECK(gcomp_step_number(a.gc[w]) == 1);
        }
        CHECK(group_equals(&a, &before));
        group_step(&a);
        CHECK(all_are(&a, GCOMP_OK));
        group_advance(&b, 1);
        CHECK(groups_agree(&a, &b));
        snapshot_free(&before);
        pair_close(&a, &b);
    }
}

static void test_calls_out_of_order_are_refused_and_do_no_harm(void)
{
    group a, b;
    gcomp_request request;
    float *none[MIXED] = {0};
    static const gcomp_tensor late = {"late", 5, 0, 0, GCOMP_F32, NULL};
    gcomp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.comm.allreduce = no_allreduce;
    desc.comm.allgather = no_allgather;
    group_open_with(&a, 2, &desc, mixed, MIXED, NULL);
    group_open(&b, 2, mixed, MIXED);
    gcomp *gc = a.gc[0];
    CHECK(gcomp_step_ready(gc, 0, a.grad[0][0]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_next(gc, &request) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_done(gc, 0, 0) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_error(gc)[0] != 0);
    group_fill(&a, 0);
    group_begin(&a, NULL);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_prepare(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_add_tensor(gc, &late) == GCOMP_WRONG_STATE);
    CHECK(exchange_floats(gc, none, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_residual_set(gc, 0, NULL) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_ready(gc, MIXED, a.grad[0][0]) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_next(gc, NULL) == GCOMP_INVALID_ARGUMENT);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < MIXED; t++) group_ready(&a, w, t, 0);
    CHECK(gcomp_step_ready(gc, 1, a.grad[0][1]) == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    gcomp_result unknown = gcomp_step_done(gc, 12345, 0);
    CHECK(unknown == GCOMP_INVALID_ARGUMENT || unknown == GCOMP_WRONG_STATE);
    group_finish(&a);
    CHECK(all_are(&a, GCOMP_OK));
    CHECK(gcomp_step_commit(gc) == GCOMP_WRONG_STATE);
    CHECK(gcomp_add_tensor(gc, &late) == GCOMP_WRONG_STATE);
    group_advance(&b, 0);
    CHECK(groups_agree(&a, &b));
    pair_advance(&a, &b, 1);
    CHECK(groups_agree(&a, &b));
    pair_close(&a, &b);
}

static void test_a_request_is_done_once(void)
{
    group g;
    group_open(&g, 2, gathered, GATHERED);
    group_fill(&g, 0);
    group_begin(&g, NULL);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < GATHERED; t++) group_ready(&g, w, t, 0);
    gcomp_request request[2];
    for (size_t w = 0; w < 2; w++) CHECK(gcomp_step_next(g.gc[w], &request[w]) == GCOMP_OK);
    for (size_t w = 0; w < 2; w++)
        for (size_t s = 0; s < 2; s++)
            memcpy((char *)request[w].recv + s * request[w].stride, request[s].send, request[s].bytes[s]);
    CHECK(gcomp_step_done(g.gc[0], request[0].id, 0) == GCOMP_OK);
    gcomp_result twice = gcomp_step_done(g.gc[0], request[0].id, 0);
    CHECK(twice == GCOMP_INVALID_ARGUMENT || twice == GCOMP_WRONG_STATE);
    CHECK(gcomp_step_done(g.gc[1], request[1].id, 0) == GCOMP_OK);
    group_finish(&g);
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(means_agree(&g));
    group_close(&g);
}

static void test_statistics_add_up(void)
{
    gcomp_desc desc;
    group g;
    memset(&desc, 0, sizeof desc);
    desc.measure = 1;
    group_open_with(&g, 3, &desc, mixed, MIXED, NULL);
    size_t elements = 0;
    for (size_t t = 0; t < MIXED; t++) elements += g.n[t];
    for (uint64_t step = 0; step < 5; step++) {
        group_advance(&g, step);
        for (size_t w = 0; w < 3; w++) {
            gcomp_statistics stats;
            CHECK(gcomp_stats(g.gc[w], &stats) == GCOMP_OK);
            CHECK(stats.steps == step + 1 && stats.skipped == 0 && stats.failed == 0 && stats.not_finite == 0);
            CHECK(stats.bytes_in == 4 * (uint64_t)elements * (step + 1));
            CHECK(stats.bytes_out == g.bytes[w]);
            uint64_t ring = 0;
            for (size_t t = 0; t < MIXED; t++) ring += ring_bytes(g.n[t], 3);
            CHECK(stats.bytes_ring == ring * (step + 1));
            CHECK(fabs(stats.ratio - (double)stats.bytes_ring / (double)stats.bytes_out) <= 1e-9 * stats.ratio);
            double residual = 0, mean = 0, sent = 0, p = 0;
            for (size_t t = 0; t < MIXED; t++) {
                const float *e = tensor_residual(g.gc[w], t);
                for (size_t i = 0; i < g.n[t]; i++) {
                    if (e) residual += (double)e[i] * (double)e[i];
                    mean += (double)g.grad[w][t][i] * (double)g.grad[w][t][i];
                    if (step > 0) continue;
                    double x = (double)gradient(0, w, t, i);  /* the first p is the gradient */
                    p += x * x;
                    if (e) sent += (double)e[i] * (double)e[i];
                }
            }
            CHECK(fabs(stats.residual_norm - sqrt(residual)) <= 1e-5 * sqrt(residual));
            CHECK(fabs(stats.mean_norm - sqrt(mean)) <= 1e-5 * sqrt(mean));
            if (step == 0) CHECK(fabs(stats.relative_error - sqrt(sent / p)) <= 1e-3);
            CHECK(stats.encode_seconds >= 1 && stats.commit_seconds >= 1);
            CHECK(stats.encode_seconds + stats.communicate_seconds + stats.commit_seconds <= g.now[w]);
        }
    }
    group_close(&g);
}

static void test_statistics_of_a_skipped_tensor_do_not_count_it(void)
{
    group g;
    gcomp_statistics stats;
    group_open(&g, 2, mixed, MIXED);
    group_fill(&g, 0);
    group_step_skipping(&g, NULL, ~(1u << VECTOR));
    CHECK(all_are(&g, GCOMP_OK));
    CHECK(gcomp_stats(g.gc[0], &stats) == GCOMP_OK);
    CHECK(stats.bytes_in == 4 * (uint64_t)g.n[VECTOR]);
    CHECK(stats.bytes_out == g.bytes[0]);
    group_close(&g);
}

/* ---------------- restart and reset */

static void test_restart_forgets_and_reset_forgets_one_tensor(void)
{
    group a, b;
    pair_open(&a, &b, 2, mixed, MIXED, 0);
    for (uint64_t step = 0; step < 3; step++) group_advance(&a, step);
    for (size_t w = 0; w < 2; w++) CHECK(gcomp_restart(a.gc[w], 0) == GCOMP_OK);
    for (size_t w = 0; w < 2; w++)
        for (size_t t = 0; t < MIXED; t++) {
            const float *e = tensor_residual(a.gc[w], t);
            int zero = 1;
            for (size_t i = 0; e && i < a.n[t]; i++) zero = zero && e[i] == 0;
            CHECK(zero);
        }
    for (uint64_t step = 0; step < 2; step++) {  /* as new */
        pair_advance(&a, &b, step);
        CHECK(groups_agree(&a, &b));
    }
    for (size_t w = 0; w < 2; w++) {
        CHECK(gcomp_residual_set(a.gc[w], SIGN, NULL) == GCOMP_OK);
        CHECK(gcomp_residual_set(a.gc[w], MIXED, NULL) == GCOMP_INVALID_ARGUMENT);
        const float *e = tensor_residual(a.gc[w], SIGN);
        int zero = 1;
        for (size_t i = 0; i < a.n[SIGN]; i++) zero = zero && e[i] == 0;
        CHECK(zero);
    }
    pair_advance(&a, &b, 2);
    CHECK(memcmp(a.grad[0][SIGN], b.grad[0][SIGN], 4 * a.n[SIGN]) != 0);
    CHECK(memcmp(a.grad[0][TOPK], b.grad[0][TOPK], 4 * a.n[TOPK]) == 0);
    CHECK(memcmp(a.grad[0][MATRIX], b.grad[0][MATRIX], 4 * a.n[MATRIX]) == 0);
    CHECK(means_agree(&a));
    pair_close(&a, &b);
}

static void test_restart_inside_a_step_ends_it(void)
{
    group a, b;
    pair_open(&a, &b, 2, mixed, MIXED, 0);
    group_fill(&a, 0);
    group_begin(&a, NULL);
    for (size_t w = 0; w < 2; w++) {
        group_ready(&a, w, 0, 0);
        CHECK(gcomp_restart(a.gc[w], 5) == GCOMP_OK);
        CHECK(gcomp_restart(b.gc[w], 5) == GCOMP_OK);
    }
    group_step(&a);
    CHECK(all_are(&a, GCOMP_OK));
    group_advance(&b, 0);
    CHECK(groups_agree(&a, &b));
    pair_close(&a, &b);
}

int main(void)
{
    RUN(test_memory_that_a_step_does_not_use_is_not_touched);
    RUN(test_memory_needed_is_memory_used_by_every_method);
    RUN(test_gradients_that_share_memory_are_refused_by_all);
    RUN(test_exchange_knows_all_gradients_before_it_sends_anything);
    RUN(test_scaled_gradients_give_the_same_bits);
    RUN(test_what_workers_tell_of_a_step_is_compared);
    RUN(test_one_worker_alone_loses_nothing);
    RUN(test_an_allreduce_that_does_not_add_is_named_in_the_first_step);
    RUN(test_another_version_of_the_library_is_named);
    RUN(test_a_bad_scale_on_one_worker_fails_its_peers_in_the_frame);
    RUN(test_half_gradients_hold_the_rounded_mean_of_the_float_run);
    RUN(test_exchange_any_of_one_worker_rounds_and_saturates);
    RUN(test_abort_leaves_everything_as_it_was);
    RUN(test_calls_out_of_order_are_refused_and_do_no_harm);
    RUN(test_a_request_is_done_once);
    RUN(test_statistics_add_up);
    RUN(test_statistics_of_a_skipped_tensor_do_not_count_it);
    RUN(test_restart_forgets_and_reset_forgets_one_tensor);
    RUN(test_restart_inside_a_step_ends_it);
    return test_end();
}
