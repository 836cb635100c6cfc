/* The random test: a step, saves, gradients, and what a step does to gradients and residuals. */

#ifndef RANDOM_STEP_H
#define RANDOM_STEP_H

#include "random_group.h"

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
             (int)missing, result_name((gcomp_result)c->result[missing]),
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
             result_name(result));
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
    case 1: result = gcomp_regroup(gc, &comm, NULL); break;
    case 2: result = gcomp_residual_set(gc, 0, NULL); break;
    case 3: result = gcomp_prepare(gc); break;
    case 4: result = gcomp_load(gc, &nothing, &length, 1, NULL); break;
    case 5: result = gcomp_join(gc, NULL, 0); break;
    case 6: result = gcomp_add_tensor(gc, &job.tensor[0]); break;
    default:
        if (c->given[w] < job.count) result = gcomp_step_commit(gc);
    }
    MUST(result == GCOMP_WRONG_STATE, "a call that does not fit into a step: %s",
         result_name(result));
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
    MUST(result == GCOMP_OK, "step_ready: %s", result_name(result));
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
    gcomp_step own = GCOMP_STEP;
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
        a->c->result[a->w] = exchange_floats(a->c->gc[a->w], (float *const *)(void *)grads, step);
    else a->c->result[a->w] = gcomp_exchange(a->c->gc[a->w], grads, step);
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
             result_name((gcomp_result)c->result[w]));
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
        size_t size = save_size(c->gc[w]);
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

/* With AUTO: one worker alone, and where a gather would send more than a sum of floats. */
static int goes_as_none(const crew *c, const gcomp_codec *codec, size_t t)
{
    gcomp_desc desc = c->desc;
    gcomp_tensor tensor = job.tensor[t];
    gcomp_codec goes;
    gcomp_round rounds[GCOMP_ROUNDS];
    char text[TEXT], none[TEXT];
    gcomp_codec_format(codec, text, sizeof text);
    tensor.codec = text;
    desc.codec = desc.schedule = NULL;
    desc.comm = comm_of(c, 0, c->world);
    MUST(gcomp_rounds(&desc, &tensor, 1, &goes, rounds) == GCOMP_OK, "rounds of %s", text);
    return method_is(&goes, "none", none);
}

/* The step by the codec layer, where it can be had: before the step. */
static void predict(const crew *c, model *m, const gcomp_step *step, unsigned skip, uint64_t number)
{
    memset(m, 0, sizeof *m);
    for (size_t t = 0; t < job.count; t++) {
        const size_t n = job.n[t];
        const gcomp_codec *codec = tensor_codec(c->gc[0], t);
        const size_t bound = gcomp_bound(codec, n, NULL), scratch = scratch_of(codec, n);
        char text[TEXT];
        void *payload[MOST], *room = malloc(scratch + 1);
        size_t length[MOST];
        gcomp_exec exec;
        int known = bound && !(skip >> t & 1) && !method_is(codec, "none", text);
        memset(&exec, 0, sizeof exec);
        exec.scratch = room;
        exec.scratch_bytes = scratch;
        for (size_t w = 0; w < c->world && tensor_residual(c->gc[w], t); w++) {
            m->old[w][t] = (float *)malloc(4 * n);
            memcpy(m->old[w][t], tensor_residual(c->gc[w], t), 4 * n);
        }
        if (method_is(codec, "terngrad", text) && strstr(text, "share=1")) known = 0;
        if (method_is(codec, "topk", text) && strstr(text, "global=1") && c->world > 1) known = 0;
        if (c->desc.aggregate >= GCOMP_AGGREGATE_TWO_SHOT) known = 0;
        if (known && goes_as_none(c, codec, t)) known = 0;
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
            /* all tensors of eden have the random words of tensor 0 */
            in.key = gcomp_key_make(c->desc.seed, number,
                                    method_is(codec, "eden", text) ? 0 : (uint32_t)t, (uint32_t)w);
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
            gcomp_result result = gcomp_decode_mean(all, length, c->world, m->y[t], GCOMP_F32, n, &exec);
            MUST(result == GCOMP_OK, "decode_mean: %s", result_name(result));
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
            const float *e = tensor_residual(c->gc[w], t);
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
                const double e = (double)tensor_residual(c->gc[w], t)[i];
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

#endif
