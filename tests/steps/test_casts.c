/* Casts whose halves the transport sums, in two shots, or gathered: the means and residuals of a plain reference. */

#include "test.h"

enum { MOST = 8, TENSORS = 3 };

typedef struct group {
    size_t world, count, n[TENSORS];
    gcomp *gc[MOST];
    void *grad[MOST][TENSORS];
    gcomp_result result[MOST];
    size_t sums[7];      /* requests that summed each type */
    uint64_t bytes;      /* that these brought, on worker 0 */
    int fail_at, at;     /* which request of worker 1 fails; requests so far */
} group;

static int no_exchange(void *user, const void *send, const size_t *sent, void *recv, const size_t *awaited)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)awaited;
    return 1;
}

static float value(size_t step, size_t worker, size_t tensor, size_t i)
{
    const gcomp_key key = gcomp_key_make(step, worker, (uint32_t)tensor, (uint32_t)i);
    const float x = (float)(int32_t)(uint32_t)key.shared * 0x1p-31f;
    return x * (i % 7 ? 1.0f : 1e-6f) * (float)(1 + tensor);
}

static float to_float(uint16_t h, gcomp_dtype type)
{
    float x;
    if (type == GCOMP_BF16) {
        const uint32_t u = (uint32_t)h << 16;
        memcpy(&x, &u, 4);
        return x;
    }
    const int e = h >> 10 & 31, m = h & 1023;
    x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
    return h >> 15 ? -x : x;
}

/* To nearest, ties to even, by trying all: the reference needs no speed. An overflow is infinite. */
static uint16_t to_half(float x, gcomp_dtype type)
{
    if (type == GCOMP_BF16) {
        uint32_t u;
        memcpy(&u, &x, 4);
        return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    const double a = fabs((double)x);
    uint32_t low = 0, high = 0x7c00;
    while (high - low > 1) { /* the largest half that is not above a */
        const uint32_t mid = (low + high) / 2;
        if ((double)to_float((uint16_t)mid, type) <= a) low = mid;
        else high = mid;
    }
    const double below = (double)to_float((uint16_t)low, type), above = high == 0x7c00 ? 65536.0 : (double)to_float((uint16_t)high, type);
    uint32_t h = a - below < above - a || (a - below == above - a && low % 2 == 0) ? low : high;
    return (uint16_t)(h | (signbit(x) ? 0x8000u : 0));
}

static gcomp_dtype gradient_type; /* of the next group's tensors */

static void open_group(group *g, size_t world, const gcomp_desc *given, const char *const *codecs, const size_t *n, size_t count)
{
    memset(g, 0, sizeof *g);
    g->world = world;
    g->count = count;
    g->fail_at = -1;
    for (size_t w = 0; w < world; w++) {
        gcomp_desc desc = *given;
        desc.comm.rank = (int)w;
        desc.comm.world = (int)world;
        CHECK(gcomp_open(&g->gc[w], &desc) == GCOMP_OK);
        for (size_t t = 0; t < count; t++) {
            char name[8];
            gcomp_tensor tensor = {0};
            snprintf(name, sizeof name, "t%d", (int)t);
            tensor.name = name;
            tensor.rows = g->n[t] = n[t];
            tensor.codec = codecs[t];
            tensor.dtype = gradient_type;
            CHECK(gcomp_add_tensor(g->gc[w], &tensor) == GCOMP_OK);
            g->grad[w][t] = calloc(n[t], 4);
        }
    }
}

static void close_group(group *g)
{
    for (size_t w = 0; w < g->world; w++) {
        gcomp_close(g->gc[w]);
        for (size_t t = 0; t < g->count; t++) free(g->grad[w][t]);
    }
}

/* Carries out one request of all workers. */
static void carry(group *g, gcomp_request *r)
{
    const size_t world = g->world, count = r[0].count;
    if (r[0].kind == GCOMP_ALLREDUCE) {
        const gcomp_dtype type = r[0].dtype;
        g->sums[type]++;
        g->bytes += (type == GCOMP_F32 ? 4 : 2) * (uint64_t)count;
        for (size_t i = 0; i < count; i++) {
            float sum = 0;
            for (size_t w = 0; w < world; w++)
                sum += type == GCOMP_F32 ? ((float *)r[w].recv)[i] : to_float(((uint16_t *)r[w].recv)[i], type);
            for (size_t w = 0; w < world; w++) {
                if (type == GCOMP_F32) ((float *)r[w].recv)[i] = sum;
                else ((uint16_t *)r[w].recv)[i] = to_half(sum, type);
            }
        }
    }
    if (r[0].kind == GCOMP_ALLGATHER)
        for (size_t w = 0; w < world; w++)
            for (size_t from = 0; from < world; from++)
                memcpy((char *)r[w].recv + from * r[w].stride, r[from].send, r[w].bytes[from]);
    if (r[0].kind == GCOMP_ALLTOALL)
        for (size_t w = 0; w < world; w++) {
            char *to = (char *)r[w].recv;
            for (size_t from = 0; from < world; from++) {
                const char *p = (const char *)r[from].send;
                for (size_t i = 0; i < w; i++) p += r[from].send_bytes[i];
                memcpy(to, p, r[w].bytes[from]);
                to += r[w].bytes[from];
            }
        }
}

/* A step of all workers. Of requests under way together the last one is done first. */
static void step(group *g)
{
    memset(g->sums, 0, sizeof g->sums);
    g->bytes = 0;
    for (size_t w = 0; w < g->world; w++) {
        g->result[w] = gcomp_step_begin(g->gc[w], NULL);
        for (size_t t = 0; t < g->count; t++) CHECK(gcomp_step_ready(g->gc[w], t, g->grad[w][t]) == GCOMP_OK);
    }
    for (;;) {
        gcomp_request r[MOST][10];
        size_t handed[MOST] = {0}, ended = 0;
        for (size_t w = 0; w < g->world; w++) {
            for (; g->result[w] == GCOMP_OK && handed[w] < 10; handed[w]++) {
                g->result[w] = gcomp_step_next(g->gc[w], &r[w][handed[w]]);
                if (g->result[w] || r[w][handed[w]].kind == GCOMP_WAIT || r[w][handed[w]].kind == GCOMP_DONE) break;
                for (size_t i = 0; i < handed[w]; i++) /* they can number a transport's slots */
                    CHECK(r[w][i].id % 8 != r[w][handed[w]].id % 8);
            }
            ended += g->result[w] != GCOMP_OK || r[w][handed[w]].kind == GCOMP_DONE;
        }
        if (ended) {
            CHECK(ended == g->world);
            break;
        }
        for (size_t k = handed[0]; k-- > 0;) {
            gcomp_request each[MOST];
            for (size_t w = 0; w < g->world; w++) each[w] = r[w][k];
            carry(g, each);
            for (size_t w = 0; w < g->world; w++) {
                const int fails = w == 1 && g->at++ == g->fail_at;
                const gcomp_result result = gcomp_step_done(g->gc[w], each[w].id, fails);
                if (result && g->result[w] == GCOMP_OK) g->result[w] = result;
            }
        }
        if (g->fail_at >= 0 && g->result[1] != GCOMP_OK) { /* worker 1 has left: the others end too */
            for (size_t w = 0; w < g->world; w++)
                if (w != 1) CHECK(gcomp_step_abort(g->gc[w]) == GCOMP_OK);
            return;
        }
    }
    for (size_t w = 0; w < g->world; w++)
        if (g->result[w] == GCOMP_OK) g->result[w] = gcomp_step_commit(g->gc[w]);
}

static gcomp_desc summing(unsigned types)
{
    gcomp_desc desc = {0};
    desc.seed = 5;
    desc.comm.allreduce_dtypes = types;
    return desc;
}

static const unsigned both = 1u << GCOMP_F16 | 1u << GCOMP_BF16;

/* C(x), by the codec layer: rounding at random too, with the key of the step. */
static void cast(const char *codec, float *x, size_t n, gcomp_key key)
{
    gcomp_codec c;
    gcomp_input in = {0};
    in.scale = 1;
    size_t length;
    unsigned char *payload = malloc(2 * n + 64);
    CHECK(gcomp_codec_parse(&c, codec, NULL, 0) == GCOMP_OK);
    in.grad = x;
    in.rows = n;
    in.key = key;
    CHECK(gcomp_encode(&c, &in, NULL, payload, 2 * n + 64, &length) == GCOMP_OK);
    CHECK(gcomp_decode(payload, length, x, GCOMP_F32, n, NULL) == GCOMP_OK);
    free(payload);
}

static const char *const casts[] = {"fp16", "bf16", "fp16:rounding=stochastic", "bf16:rounding=stochastic"};
static const size_t sizes[] = {1, 15, 100, 513, 70001};

/* Every step: mean and residual of every worker, bit for bit. */
static void check_sum(const char *codec, size_t world, size_t n)
{
    static float residual[MOST][70001], c[MOST][70001];
    const gcomp_dtype type = codec[0] == 'f' ? GCOMP_F16 : GCOMP_BF16;
    const gcomp_desc desc = summing(both);
    float f = 1;
    group g;
    memset(residual, 0, sizeof residual);
    while (f * (float)world > 1) f /= 2;
    open_group(&g, world, &desc, &codec, &n, 1);
    for (uint64_t s = 0; s < 3; s++) {
        size_t wrong = 0;
        for (size_t w = 0; w < world; w++)
            for (size_t i = 0; i < n; i++) {
                float x = value(s, w, 0, i), p;
                if (gradient_type == GCOMP_F32) {
                    ((float *)g.grad[w][0])[i] = x;
                } else {
                    const uint16_t half = ((uint16_t *)g.grad[w][0])[i] = to_half(x, gradient_type);
                    x = to_float(half, gradient_type);
                }
                p = x + residual[w][i];
                residual[w][i] = p;
                c[w][i] = p * f;
            }
        for (size_t w = 0; w < world; w++) {
            cast(codec, c[w], n, gcomp_key_make(5, s, 0, (uint32_t)w));
            for (size_t i = 0; i < n; i++) residual[w][i] += -1 / f * c[w][i];
        }
        step(&g);
        CHECK(g.sums[type] == 1 && g.sums[GCOMP_F32] == 0 && g.bytes == 2 * n + (s ? 0 : 2)); /* the first sum has a one behind it */
        for (size_t w = 0; w < world; w++) {
            const float *left = tensor_residual(g.gc[w], 0);
            CHECK(g.result[w] == GCOMP_OK);
            for (size_t i = 0; i < n; i++) {
                float sum = 0;
                for (size_t v = 0; v < world; v++) sum += c[v][i];
                sum = to_float(to_half(sum, type), type) * (1 / (f * (float)world));
                if (gradient_type == GCOMP_F32) wrong += memcmp((float *)g.grad[w][0] + i, &sum, 4) != 0;
                else wrong += ((uint16_t *)g.grad[w][0])[i] != to_half(sum, gradient_type);
                wrong += left[i] != residual[w][i];
            }
        }
        CHECK(wrong == 0);
    }
    close_group(&g);
}

static void test_sums_of_halves_are_those_of_a_plain_reference(void)
{
    static const size_t worlds[] = {3, 4, 5, 8};
    for (size_t c = 0; c < 4; c++)
        for (size_t w = 0; w < 4; w++)
            for (size_t s = 0; s < 5; s++) check_sum(casts[c], worlds[w], sizes[s]);
    for (int type = GCOMP_F16; type <= GCOMP_BF16; type++)
        for (size_t c = 0; c < 4; c++) {
            gradient_type = (gcomp_dtype)type;
            check_sum(casts[c], 3 + c, 2000);
        }
    gradient_type = GCOMP_F32;
}

/* The form by what the transport can do, and by the number of workers. */
static void test_the_form_is_that_of_the_fewest_bytes(void)
{
    static const struct {
        const char *codec;
        unsigned types;
        int world, exchanges;
        gcomp_aggregate aggregate;
        gcomp_request_kind kind;
    } rule[] = {
        {"bf16", 1u << GCOMP_BF16, 3, 0, GCOMP_AGGREGATE_AUTO, GCOMP_ALLREDUCE},
        {"bf16", 1u << GCOMP_BF16, 3, 1, GCOMP_AGGREGATE_AUTO, GCOMP_ALLTOALL},
        {"bf16", 1u << GCOMP_F16, 3, 1, GCOMP_AGGREGATE_AUTO, GCOMP_ALLTOALL},
        {"bf16", 1u << GCOMP_F16, 3, 0, GCOMP_AGGREGATE_AUTO, GCOMP_ALLGATHER},
        {"bf16", 1u << GCOMP_BF16, 2, 1, GCOMP_AGGREGATE_AUTO, GCOMP_ALLGATHER},
        {"bf16", 1u << GCOMP_BF16, 1, 1, GCOMP_AGGREGATE_GATHER, GCOMP_ALLGATHER},
        {"fp16", 1u << GCOMP_F16, 64, 0, GCOMP_AGGREGATE_AUTO, GCOMP_ALLREDUCE},
        {"fp16", 1u << GCOMP_BF16, 64, 1, GCOMP_AGGREGATE_AUTO, GCOMP_ALLTOALL},
        {"fp16", 1u << GCOMP_F16, 8, 1, GCOMP_AGGREGATE_GATHER, GCOMP_ALLGATHER},
        {"fp16", 1u << GCOMP_F16, 8, 1, GCOMP_AGGREGATE_TWO_SHOT, GCOMP_ALLTOALL},
        {"int", both, 7, 0, GCOMP_AGGREGATE_AUTO, GCOMP_ALLGATHER},
    };
    for (size_t r = 0; r < sizeof rule / sizeof *rule; r++) {
        gcomp_desc desc = summing(rule[r].types);
        gcomp_tensor tensor = {0};
        gcomp_round rounds[GCOMP_ROUNDS];
        desc.comm.world = rule[r].world;
        desc.aggregate = rule[r].aggregate;
        if (rule[r].exchanges) desc.comm.alltoallv = no_exchange;
        tensor.name = "a";
        tensor.rows = 100000;
        tensor.codec = rule[r].codec;
        CHECK(gcomp_rounds(&desc, &tensor, 1, NULL, rounds) == GCOMP_OK);
        CHECK(rounds[0].kind == rule[r].kind && rounds[1].kind == GCOMP_WAIT);
        if (rounds[0].kind != GCOMP_ALLREDUCE) continue;
        CHECK(rounds[0].bytes == 200000 && rounds[0].dtype == (rule[r].codec[0] == 'f' ? GCOMP_F16 : GCOMP_BF16));
        CHECK(rounds[0].sent == (400000u * (size_t)(rule[r].world - 1) + (size_t)rule[r].world - 1) / (size_t)rule[r].world);
    }
}

/* Both halves, floats, and a payload in one object: the two halves wait for each other. */
static void test_both_halves_and_others_travel_together(void)
{
    static const char *const codecs[] = {"bf16", "fp16", "none"};
    static const size_t n[] = {700, 300, 40};
    const gcomp_desc desc = summing(both);
    group g, alone[3];
    open_group(&g, 4, &desc, codecs, n, 3);
    for (size_t t = 0; t < 3; t++) open_group(&alone[t], 4, &desc, codecs + t, n + t, 1);
    for (uint64_t s = 0; s < 3; s++) {
        for (size_t w = 0; w < 4; w++)
            for (size_t t = 0; t < 3; t++)
                for (size_t i = 0; i < n[t]; i++)
                    ((float *)alone[t].grad[w][0])[i] = ((float *)g.grad[w][t])[i] = value(s, w, t, i);
        step(&g);
        CHECK(g.sums[GCOMP_F16] == 1 && g.sums[GCOMP_BF16] == 1 && g.sums[GCOMP_F32] == 1);
        CHECK(g.bytes == 2 * 1000 + 4 * 40 + (s ? 0 : 4)); /* a one in the first sum, that of floats */
        for (size_t t = 0; t < 3; t++) {
            step(&alone[t]);
            for (size_t w = 0; w < 4; w++)
                CHECK(g.result[w] == GCOMP_OK && alone[t].result[w] == GCOMP_OK &&
                      memcmp(g.grad[w][t], alone[t].grad[w][0], 4 * n[t]) == 0);
        }
    }
    close_group(&g);
    for (size_t t = 0; t < 3; t++) close_group(&alone[t]);
}

/* What fails changes nothing: each request, NaN on one worker, a sum that overflows. */
static void test_failures_leave_no_trace(void)
{
    static const char *const codecs[] = {"bf16", "fp16"};
    static const size_t n[] = {600, 500};
    static float copy[4][600], kept[4][600];
    const gcomp_desc desc = summing(both);
    group g;
    open_group(&g, 4, &desc, codecs, n, 2);
    for (int fault = -1; fault < 5; fault++) {
        for (size_t w = 0; w < 4; w++)
            for (size_t t = 0; t < 2; t++)
                for (size_t i = 0; i < n[t]; i++) ((float *)g.grad[w][t])[i] = value(9, w, t, i);
        if (fault == 3) ((float *)g.grad[2][0])[599] = NAN;
        if (fault == 4) /* each is finite, and so is the mean; bf16 sums of a quarter of the largest float are not */
            for (size_t w = 0; w < 4; w++) ((float *)g.grad[w][0])[7] = w < 3 ? 3.3e38f : 3.4e38f;
        for (size_t w = 0; w < 4; w++) {
            memcpy(copy[w], g.grad[w][0], 4 * n[0]);
            memcpy(kept[w], tensor_residual(g.gc[w], 0), 4 * n[0]);
        }
        g.at = 0;
        g.fail_at = fault < 3 ? fault : -1; /* the frames, one half, the other */
        step(&g);
        for (size_t w = 0; w < 4; w++) {
            if (fault == -1 || fault == 4) {
                CHECK(g.result[w] == GCOMP_OK);
                continue;
            }
            if (fault == 3) CHECK(g.result[w] == GCOMP_NOT_FINITE);
            if (fault < 3 && w == 1) CHECK(g.result[w] == GCOMP_CALLBACK_FAILED && (fault == 0 || strstr(gcomp_error(g.gc[w]), "allreduce")));
            CHECK(memcmp(copy[w], g.grad[w][0], 4 * n[0]) == 0);
            CHECK(memcmp(kept[w], tensor_residual(g.gc[w], 0), 4 * n[0]) == 0);
        }
    }
    close_group(&g);
    /* a transport whose sum is infinite */
    open_group(&g, 3, &desc, codecs + 1, n + 1, 1);
    for (size_t w = 0; w < 3; w++)
        for (size_t i = 0; i < n[1]; i++) ((float *)g.grad[w][0])[i] = i ? 1.0f : 262144.0f; /* f * p is at 65504, three times */
    step(&g);
    for (size_t w = 0; w < 3; w++)
        CHECK(g.result[w] == GCOMP_NOT_FINITE && strstr(gcomp_error(g.gc[w]), "the sum over the workers"));
    close_group(&g);
}

/* With another number of workers, and from save to load, the form changes and residuals stay. */
static void test_another_world_takes_another_form(void)
{
    const char *codec = "bf16";
    const size_t n = 3000;
    static float kept[3000];
    static unsigned char save[20000];
    const gcomp_desc desc = summing(1u << GCOMP_BF16);
    size_t length;
    group g;
    open_group(&g, 3, &desc, &codec, &n, 1);
    for (size_t w = 0; w < 3; w++)
        for (size_t i = 0; i < n; i++) ((float *)g.grad[w][0])[i] = value(0, w, 0, i);
    step(&g);
    CHECK(g.sums[GCOMP_BF16] == 1);
    memcpy(kept, tensor_residual(g.gc[0], 0), sizeof kept);
    CHECK(gcomp_save(g.gc[0], save, sizeof save, &length) == GCOMP_OK);
    for (size_t w = 0; w < 2; w++) {
        gcomp_comm comm = desc.comm;
        comm.rank = (int)w;
        comm.world = 2;
        CHECK(gcomp_regroup(g.gc[w], &comm, NULL) == GCOMP_OK);
    }
    for (size_t i = 0; i < n; i++) CHECK(tensor_residual(g.gc[0], 0)[i] == kept[i] * (2.0f / 3));
    gcomp_close(g.gc[2]);
    free(g.grad[2][0]);
    g.world = 2;
    step(&g);
    CHECK(g.result[0] == GCOMP_OK && g.sums[GCOMP_BF16] == 0); /* gathered */
    for (size_t w = 0; w < 2; w++) {
        gcomp_comm comm = desc.comm;
        comm.rank = (int)w;
        comm.world = 3;
        comm.alltoallv = no_exchange;
        CHECK(gcomp_regroup(g.gc[w], &comm, NULL) == GCOMP_OK);
        CHECK(strstr((gcomp_describe(g.gc[w], (char *)save, sizeof save), (char *)save), "in two shots"));
    }
    close_group(&g);
}

int main(void)
{
    RUN(test_sums_of_halves_are_those_of_a_plain_reference);
    RUN(test_the_form_is_that_of_the_fewest_bytes);
    RUN(test_both_halves_and_others_travel_together);
    RUN(test_failures_leave_no_trace);
    RUN(test_another_world_takes_another_form);
    return test_end();
}
