/* The random test: operations on a group (steps, saves, other workers, all others), and cases made of them. */

#ifndef RANDOM_OPERATIONS_H
#define RANDOM_OPERATIONS_H

#include "random_step.h"

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
                                         : result_name((gcomp_result)c->result[w]));
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
            gcomp_load(c->gc[w], (const void *const *)(const void *)(own ? s->bytes + w : s->bytes), own ? s->length + w : s->length, own ? 1 : s->world, NULL);
        MUST(result == GCOMP_OK, "load: %s: %s", result_name(result), gcomp_error(c->gc[w]));
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
        result = once_in(2)   ? gcomp_load(group.gc[w], &save, &length, 1, NULL)
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
            for (size_t i = 0; i < job.n[t] && tensor_residual(c->gc[w], t); i++) {
                s->e[t][i] += (double)tensor_residual(c->gc[w], t)[i] / (double)c->world;
                s->size[t][i] += fabs((double)tensor_residual(c->gc[w], t)[i]);
            }
    }
}

static void same_residuals(const crew *c, sums *before)
{
    sums now;
    add_residuals(c, &now);
    for (size_t t = 0; t < job.count; t++) {
        char text[TEXT]; /* of dct each worker keeps what it has, see tests/codecs/test_dct.c */
        const int stays = method_is(tensor_codec(c->gc[0], t), "dct", text);
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
                gcomp_load(c->gc[w], (const void *const *)(const void *)s.bytes, s.length, s.world, NULL);
            MUST(result == GCOMP_OK, "load: %s: %s", result_name(result),
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
            size_t length = save_size(c->gc[w]), held = c->heap[w]->held, again;
            uint8_t *old = (uint8_t *)malloc(2 * length), *now = old + length;
            MUST(gcomp_save(c->gc[w], old, length, &length) == GCOMP_OK, "save");
            c->heap[w]->left = below(3);
            result = gcomp_regroup(c->gc[w], &comm, NULL);
            c->heap[w]->left = SIZE_MAX;
            if (result == GCOMP_OUT_OF_MEMORY) {
                MUST(gcomp_save(c->gc[w], now, length, &again) == GCOMP_OK &&
                         !memcmp(old, now, length) && held == c->heap[w]->held &&
                         memory_of(c->gc[w]) == held,
                     "regroup without memory leaves a trace");
                result = gcomp_regroup(c->gc[w], &comm, NULL);
            }
            free(old);
        } else {
            result = gcomp_regroup(c->gc[w], &comm, NULL);
        }
        MUST(result == GCOMP_OK, "regroup: %s: %s", result_name(result),
             gcomp_error(c->gc[w]));
        MUST(memory_of(c->gc[w]) == c->heap[w]->held, "memory_used after regroup");
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
    const size_t world = c->world + 1, size = save_size(c->gc[of]);
    void *save = malloc(size + 64);
    size_t length = 0;
    gcomp_result result = gcomp_save(c->gc[of], save, size, &length);
    MUST(result == GCOMP_OK, "save");
    regroup_all(c, place, world, world);
    if (!found && behind) {
        free(save);
        length = save_size(c->gc[place[of]]);
        save = malloc(length);
        MUST(gcomp_save(c->gc[place[of]], save, length, &length) == GCOMP_OK, "save");
    }
    if (!found) hire(c, newcomer, world);
    if (!found) {
        result = gcomp_join(c->gc[newcomer], save, length);
        MUST(result == GCOMP_OK, "join: %s: %s", result_name(result),
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
            for (size_t i = 0; i < job.n[t] && tensor_residual(group.gc[w], t); i++)
                MUST(tensor_residual(group.gc[w], t)[i] == 0, "a residual after restart");
}

static void make_reset(void)
{
    const size_t t = below(job.count);
    snprintf(doing, sizeof doing, "reset of tensor %d", (int)t);
    for (size_t w = 0; w < group.world; w++) {
        MUST(gcomp_residual_set(group.gc[w], t, NULL) == GCOMP_OK && gcomp_residual_set(twin.gc[w], t, NULL) == GCOMP_OK,
             "reset");
        MUST(gcomp_residual_set(group.gc[w], job.count, NULL) == GCOMP_INVALID_ARGUMENT, "reset of no tensor");
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
             "prepare: %s", result_name(result));
        MUST(result == GCOMP_OK || h->held == held, "prepare without memory keeps some");
        if (result == GCOMP_OK) {
            gcomp_desc desc = group.desc;
            desc.comm = comm_of(&group, w, group.world);
            group.prepared[w] = 1;
            MUST(memory_of(gc) == gcomp_memory_needed(&desc, job.tensor, job.count),
                 "memory_used is %zu, memory_needed %zu", memory_of(gc),
                 gcomp_memory_needed(&desc, job.tensor, job.count));
        }
    }
    MUST(memory_of(gc) == h->held, "memory_used is %zu, held are %zu",
         memory_of(gc), h->held);
    MUST(gcomp_stats(gc, &a) == GCOMP_OK && gcomp_stats(twin.gc[w], &b) == GCOMP_OK, "stats");
    MUST(!memcmp(&a.residual_norm, &b.residual_norm, sizeof(double)) && isfinite(a.residual_norm) &&
             a.residual_norm >= 0,
         "the norm of residuals is %g, its twin's %g", a.residual_norm, b.residual_norm);
}

/* A tensor's codec without a step: compress, commit, give back. */
static void make_one_way(void)
{
    const size_t w = below(group.world), t = below(job.count), n = job.n[t];
    const gcomp_codec *codec = tensor_codec(group.gc[w], t);
    const size_t bound = gcomp_bound(codec, n, NULL), room = bound ? bound : 1;
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
        const float *residual = tensor_residual(both[k]->gc[w], t);
        g[k] = malloc(4 * n);
        payload[k] = (uint8_t *)malloc(room);
        for (size_t i = 0; i < n; i++)
            put_value(g[k], dtype, i, (float)((double)(int64_t)mix(key + i) / 9.3e18));
        if (k == 0 && residual) memcpy(e, residual, 4 * n);
        result[k] = gcomp_compress(both[k]->gc[w], t, number, g[k], payload[k], room, &length[k]);
        MUST(result[k] == GCOMP_OK || result[k] == GCOMP_NEEDS_ROUNDS ||
                 result[k] == GCOMP_NOT_FINITE,
             "compress: %s", result_name(result[k]));
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
        MUST(result[0] != GCOMP_OK || !tensor_residual(group.gc[w], t),
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
        if (result[k] == GCOMP_OK && how == 2 && own && tensor_residual(both[k]->gc[w], t))
            MUST(gcomp_give_back(both[k]->gc[w], t, own, length[k]) == GCOMP_OK, "give_back");
    }
    MUST(found || result[0] == result[1], "commit: %s, its twin: %s", result_name(result[0]),
         result_name(result[1]));
    MUST(found || !memcmp(g[0], g[1], bytes_of_dtype(dtype) * n),
         "commit gives another mean than its twin");
    if (!found && result[0] == GCOMP_OK && how == 0 && sent && tensor_residual(group.gc[w], t)) {
        in.grad = g[0];
        in.dtype = dtype;
        in.scale = 1;
        in.rows = n;
        const gcomp_result retained = gcomp_retain(payload[0], length[0], &in, e, NULL);
        decay(&group.desc, tensor_codec(group.gc[w], t), e, n);
        MUST(retained == GCOMP_OK && !memcmp(e, tensor_residual(group.gc[w], t), 4 * n),
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
        if (isa_available(isa)) return isa;
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
             job.list, result_name(result), why);
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
                 "add_tensor with %s: %s: %s", job.codec[t], result_name(result),
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
        gcomp_codec_format(tensor_codec(group.gc[0], t), codec, sizeof codec);
        say("# tensor %d: %d x %d x %d of type %d, %s%s\n", (int)t, (int)job.tensor[t].rows,
            (int)job.tensor[t].cols, (int)job.tensor[t].stack, (int)job.tensor[t].dtype, codec,
            tensor_residual(group.gc[0], t) ? ", residual" : "");
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
        /* global: only the largest sums are applied. rounded: a codec rounds them, and a gather rounds otherwise than ranges */
        int global = 0, rounded = 0;
        for (size_t t = 0; t <= job.count; t++) {
            const char *codec = t < job.count ? job.codec[t] : job.list;
            if (!strstr(codec, "global")) continue;
            global = 1;
            rounded |= strchr(codec, '+') != NULL;
        }
        /* ranges are cut from buckets: where they matter, the twin has the same ones */
        if ((d->aggregate == GCOMP_AGGREGATE_GATHER || d->aggregate == GCOMP_AGGREGATE_SHARDS) && !global)
            d->bucket_bytes = once_in(2) ? 0 : 4 * (1 + below(2000));
        /* with callbacks AUTO has other forms than without; and it compresses nothing for one worker */
        twin.threads = d->aggregate != GCOMP_AGGREGATE_AUTO && once_in(4);
        if ((d->aggregate == GCOMP_AGGREGATE_GATHER || d->aggregate == GCOMP_AGGREGATE_SHARDS) && !rounded)
            d->aggregate = once_in(2) ? GCOMP_AGGREGATE_GATHER : GCOMP_AGGREGATE_SHARDS;
        twin.without = (int)below(8);
        if (rounded) twin.without &= 3; /* with alltoallv, as the group */
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

#endif
