/* The random test of hostile workers: collectives, steps and saves of the party, and cases made of them. */

#ifndef HOSTILE_CASES_H
#define HOSTILE_CASES_H

#include "hostile_worker.h"

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
                                          : gcomp_exchange(p->gc, grads, &party.step);
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
            printf("#    worker %d: %s: %s\n", (int)w, result_name(result), sentence);
        for (const guarded *g = p->heap.next; g; g = g->next)
            MUST(guards_are_whole(g), "bytes before or behind a block of %zu bytes were written",
                 g->bytes);
        MUST(result <= 0 && strcmp(result_name(result), "unknown"), "result %d", (int)result);
        for (size_t t = 0; t < job.count; t++) {
            if (result != GCOMP_OK)
                MUST(!memcmp(p->grad[t], job.input[w][t], bytes_of(t)),
                     "%s: the gradient %d of worker %d is another", result_name(result),
                     (int)t, (int)w);
            for (size_t i = 0; i < job.n[t] && result == GCOMP_OK; i++)
                MUST(isfinite(value_at(p->grad[t], job.tensor[t].dtype, i)),
                     "tensor %d of worker %d: element %d of the mean is not finite", (int)t, (int)w,
                     (int)i);
        }
        MUST(result == GCOMP_OK || sentence[0], "%s: no sentence", result_name(result));
        if (result == GCOMP_OK) party.ok++;
        else party.errors++;
        /* a worker may change the sum with which allreduce is tried */
        if (result == GCOMP_WRONG_STATE ||
            (result == GCOMP_MISSING_CALLBACK && !strstr(sentence, "comm.allreduce makes")))
            finding("worker %d: %s: %s", (int)w, result_name(result), sentence);
        if (result != GCOMP_OK && !found) same_as_before(p, w, result_name(result));
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
                                         : gcomp_load(p->gc, &save, &p->before_bytes, 1, NULL);
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
             result_name(p->result), gcomp_error(p->gc));
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
            const gcomp_result result = way == 0   ? gcomp_load(p->gc, &save, &length, 1, NULL)
                                        : way == 1 ? gcomp_join(p->gc, save, length)
                                                   : gcomp_take_over(p->gc, save, length);
            if (verbose)
                printf("#    load %d by worker %d: %s: %s\n", (int)way, (int)w,
                       result_name(result), gcomp_error(p->gc));
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
        MUST(gcomp_load(p->gc, &save, &p->before_bytes, 1, NULL) == GCOMP_OK,
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
        p->before_bytes = save_size(p->gc);
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

#endif
