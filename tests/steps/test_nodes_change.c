/* Proves of two levels (desc.node): steps that are left, codecs that change, machines and workers that come and go, memory. */

#include "nodes.h"

/* ---------------- steps that a callback leaves by a jump */

static void *turn_with_a_way_out(void *arg)
{
    member *m = (member *)arg;
    jmp_buf out;
    m->way_out = &out;
    m->result = GCOMP__RESULT_END;
    if (!setjmp(out)) (void)turn(m);
    m->way_out = NULL;
    return NULL;
}

/* All workers leave in the same callback of their machine. */
static void test_a_step_that_was_left_by_a_jump_is_ended_by_abort_and_by_restart(void)
{
    static fleet f;
    for (int at = 1; at <= 4; at++)
        for (int restarts = 0; restarts < 2; restarts++) {
            pthread_t id[MOST];
            uint8_t save[8];
            size_t length;
            fleet_open(&f, 2, 2, "sign", 0);
            fleet_fill(&f, 0);
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            for (int r = 0; r < 4; r++) f.m[r].fail_at = f.m[r].calls + at;
            for (int r = 0; r < 4; r++) CHECK(pthread_create(&id[r], NULL, turn_with_a_way_out, &f.m[r]) == 0);
            for (int r = 0; r < 4; r++) pthread_join(id[r], NULL);
            for (int r = 0; r < 4; r++) {
                CHECK(f.m[r].result == GCOMP__RESULT_END); /* it never came back */
                if (at < 3) { /* inside the step of the machine: until it is ended nothing can be done, nor waits */
                    CHECK(turn(&f.m[r]) == NULL && f.m[r].result == GCOMP_WRONG_STATE);
                    CHECK(gcomp_prepare(f.m[r].gc) == GCOMP_WRONG_STATE && gcomp_residual_set(f.m[r].gc, 0, NULL) == GCOMP_WRONG_STATE);
                    CHECK(gcomp_take_over(f.m[r].gc, save, length = sizeof save) == GCOMP_WRONG_STATE);
                }
                CHECK((restarts ? gcomp_restart(f.m[r].gc, 7) : gcomp_step_abort(f.m[r].gc)) == GCOMP_OK);
                if (!restarts) CHECK(gcomp_step_number(f.m[r].gc) == (at == 4 && r % 2 == 0 ? 2u : 1u));
                if (at == 4) CHECK(gcomp_restart(f.m[r].gc, 7) == GCOMP_OK); /* first workers had committed */
            }
            for (int again = 0; again < 2; again++) {
                fleet_step(&f);
                CHECK(all_are(&f, GCOMP_OK));
            }
            fleet_close(&f);
        }
}

/* ---------------- what workers know that are not the first of their machine */

static void test_all_workers_of_a_machine_know_the_codecs_of_the_step(void)
{
    static fleet f;
    static const char *const lists[] = {"topk:density=0.001", "topk:density=0.5|topk:density=0.05"};
    static const char *const schedules[] = {"warmup:epochs=4", "accordion:every=1"};
    for (int which = 0; which < 2; which++) {
        gcomp_statistics first, stats;
        schedule = schedules[which];
        fleet_open(&f, 2, 2, lists[which], 0);
        schedule = NULL;
        for (uint32_t s = 0; s < 8; s++) {
            f.step.epoch = s;
            fleet_fill(&f, which ? 0 : s);
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            for (size_t t = 0; t < TENSORS; t++)
                for (int r = 1; r < 4; r++)
                    CHECK(!memcmp(tensor_codec(f.m[r].gc, t), tensor_codec(f.m[0].gc, t), sizeof(gcomp_codec)));
        }
        CHECK(gcomp_stats(f.m[0].gc, &first) == GCOMP_OK && first.switches > 0);
        for (int r = 1; r < 4; r++)
            CHECK(gcomp_stats(f.m[r].gc, &stats) == GCOMP_OK && stats.switches == first.switches && stats.steps == 8);
        fleet_close(&f);
    }
}

static void test_workers_of_a_machine_with_other_codecs_are_named(void)
{
    static fleet f;
    gcomp_desc desc;
    fleet_open(&f, 2, 2, "sign", 0);
    gcomp_close(f.m[3].gc);
    desc = desc_of(&f, 3, "int");
    CHECK(gcomp_open(&f.m[3].gc, &desc) == GCOMP_OK);
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor tensor = tensor_of(&f, t);
        CHECK(gcomp_add_tensor(f.m[3].gc, &tensor) == GCOMP_OK);
    }
    fleet_step(&f);
    for (int r = 0; r < 4; r++) CHECK(f.m[r].result == (r < 2 ? GCOMP_PEER_FAILED : GCOMP_MISMATCH));
    CHECK(strstr(gcomp_error(f.m[2].gc), "other codecs") && strstr(gcomp_error(f.m[3].gc), "rank 0"));
    fleet_close(&f);
}

/* Whichever worker has such gradients, a first one of its machine or not: all hear of it,
   nothing has changed, and the step can be repeated without the fault. */
static void test_gradients_that_share_memory_are_refused_on_all_machines(void)
{
    for (int halves = 0; halves < 2; halves++)
        for (int odd = 0; odd < 4; odd++) {
            static fleet f;
            uint64_t before[4];
            fleet_open(&f, 2, 2, "sign", halves);
            fleet_fill(&f, 0);
            for (int r = 0; r < 4; r++) before[r] = digest(&f.m[r], 1);
            f.m[odd].tied = 1;
            fleet_step(&f);
            for (int r = 0; r < 4; r++) {
                CHECK(f.m[r].result == (r == odd ? GCOMP_INVALID_ARGUMENT : GCOMP_PEER_FAILED));
                CHECK(digest(&f.m[r], 1) == before[r]);
            }
            CHECK(strstr(gcomp_error(f.m[odd].gc), "tensor 'a' and tensor 'b': their gradients share memory"));
            f.m[odd].tied = 0;
            fleet_step(&f);
            CHECK(all_are(&f, GCOMP_OK));
            fleet_close(&f);
        }
}

/* One worker alone has a transport to other machines, or alone has none. The workers of its machine
   are told, and do not wait. */
static void test_a_first_worker_without_callbacks_says_so_to_its_machine(void)
{
    static fleet f;
    gcomp_desc desc;
    fleet_open(&f, 2, 2, "sign", 0);
    for (int r = 0; r < 4; r += 2) {
        gcomp_close(f.m[r].gc);
        desc = desc_of(&f, r, "sign");
        desc.comm.allgather = NULL;
        CHECK(gcomp_open(&f.m[r].gc, &desc) == GCOMP_OK);
        for (size_t t = 0; t < TENSORS; t++) {
            gcomp_tensor tensor = tensor_of(&f, t);
            CHECK(gcomp_add_tensor(f.m[r].gc, &tensor) == GCOMP_OK);
        }
    }
    for (int again = 0; again < 2; again++) {
        fleet_step(&f);
        for (int r = 0; r < 4; r++) CHECK(f.m[r].result == (r % 2 ? GCOMP_PEER_FAILED : GCOMP_MISSING_CALLBACK));
    }
    CHECK(strstr(gcomp_error(f.m[0].gc), "comm.allgather"));
    fleet_close(&f);
}

/* First workers save and load; the others are told the number of the step. */
static void test_saves_of_first_workers_go_on_with_the_same_bits(void)
{
    static fleet f, again;
    static uint8_t save[NODES][1 << 16];
    size_t length[NODES] = {0, 0, 0};
    fleet_open(&f, 2, 2, "topk:density=0.1", 0);
    fleet_open(&again, 2, 2, "topk:density=0.1", 0);
    for (uint64_t s = 0; s < 4; s++) {
        if (s == 2)
            for (int r = 0; r < 4; r++) {
                const void *saves[1] = {save[r / 2]};
                gcomp_result result = gcomp_save(f.m[r].gc, save[r / 2], sizeof save[0], &length[r / 2]);
                CHECK(result == (r % 2 ? GCOMP_WRONG_STATE : GCOMP_OK));
                result = gcomp_load(again.m[r].gc, saves, &length[r / 2], 1, NULL);
                CHECK(result == (r % 2 ? GCOMP_WRONG_STATE : GCOMP_OK));
                if (r % 2) CHECK(strstr(gcomp_error(f.m[r].gc), "node.rank 0") && strstr(gcomp_error(again.m[r].gc), "node.rank 0"));
                if (r % 2) CHECK(gcomp_restart(again.m[r].gc, 2) == GCOMP_OK);
            }
        fleet_fill(&f, s);
        fleet_step(&f);
        CHECK(all_are(&f, GCOMP_OK));
        if (s < 2) continue;
        fleet_fill(&again, s);
        fleet_step(&again);
        CHECK(all_are(&again, GCOMP_OK));
        for (int r = 0; r < 4; r++) CHECK(digest(&f.m[r], 1) == digest(&again.m[r], 1));
    }
    fleet_close(&f);
    fleet_close(&again);
}

/* ---------------- workers of a machine, and machines, that come and go */

enum { AWAY = -1 };

/* Which machine each worker is on; beside them a worker for each machine, in one level, that has
   the mean of its gradients. */
typedef struct site {
    fleet f; /* its transports, and its members */
    gcomp_threads *outside;
    flat_worker plain[NODES];
    int on[MOST];
    const char *codec;
    uint64_t step;
    uint8_t save[1 << 16];
    size_t length;
} site;

static int machines(const site *t)
{
    int count = 0;
    for (int r = 0; r < MOST; r++) count = t->on[r] >= count ? t->on[r] + 1 : count;
    return count;
}

/* The rank of a worker within its machine, or how many there are (r = MOST). */
static int rank_on(const site *t, int machine, int r)
{
    int rank = 0;
    for (int other = 0; other < r; other++) rank += t->on[other] == machine;
    return rank;
}

static gcomp_desc site_desc(const site *t, int r)
{
    gcomp_desc desc;
    const int machine = t->on[r], rank = rank_on(t, machine, r);
    memset(&desc, 0, sizeof desc);
    desc.codec = t->codec;
    desc.min_elements = 1;
    if (rank == 0) desc.comm = gcomp_threads_comm(t->f.between, machine);
    desc.comm.rank = machine;
    desc.comm.world = machines(t);
    desc.node = gcomp_threads_comm(t->f.within[machine], rank);
    return desc;
}

static gcomp *open_with_tensors(const site *t, const gcomp_desc *desc)
{
    gcomp *gc;
    CHECK(gcomp_open(&gc, desc) == GCOMP_OK);
    for (size_t i = 0; i < TENSORS; i++) {
        gcomp_tensor tensor = tensor_of(&t->f, i);
        if (desc->node.world == 0) tensor.dtype = GCOMP_F32; /* one of those beside them */
        CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    }
    return gc;
}

static void close_transports(site *t)
{
    gcomp_threads_close(t->f.between);
    gcomp_threads_close(t->outside);
    for (int n = 0; n < NODES; n++) gcomp_threads_close(t->f.within[n]);
}

/* Makes transports for the workers as they are now. A worker that was here before regroups; a new
   one opens an object. */
static void site_settle(site *t)
{
    const int count = machines(t);
    close_transports(t);
    CHECK(gcomp_threads_open(&t->f.between, count, 20) == 0 && gcomp_threads_open(&t->outside, count, 20) == 0);
    for (int n = 0; n < NODES; n++)
        CHECK(gcomp_threads_open(&t->f.within[n], n < count ? rank_on(t, n, MOST) : 1, 20) == 0);
    for (int r = 0; r < MOST; r++) {
        member *m = &t->f.m[r];
        gcomp_desc desc;
        m->of = &t->f;
        m->rank = r;
        if (t->on[r] == AWAY) {
            gcomp_close(m->gc);
            m->gc = NULL;
            continue;
        }
        desc = site_desc(t, r);
        if (!m->gc) m->gc = open_with_tensors(t, &desc);
        else CHECK(gcomp_regroup(m->gc, &desc.comm, &desc.node) == GCOMP_OK);
    }
    for (int n = 0; n < NODES; n++) {
        gcomp_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.codec = t->codec;
        desc.min_elements = 1;
        if (n < count) desc.comm = gcomp_threads_comm(t->outside, n);
        if (n < count && t->plain[n].gc) CHECK(gcomp_regroup(t->plain[n].gc, &desc.comm, NULL) == GCOMP_OK);
        else if (n < count) t->plain[n].gc = open_with_tensors(t, &desc);
        t->plain[n].skip = -1;
    }
}

/* Takes two steps. All workers must get the same means, and the first worker of each machine must
   have the residual of the worker that stands for the machine on one level. */
static void site_steps(site *t)
{
    for (int again = 0; again < 2; again++, t->step++) {
        pthread_t id[MOST], beside[NODES];
        fleet_fill(&t->f, t->step);
        for (int n = 0; n < machines(t); n++) {
            const float part = 1.0f / (float)rank_on(t, n, MOST);
            for (size_t i = 0; i < TENSORS; i++)
                for (size_t k = 0; k < elements(i); k++) {
                    float sum = 0;
                    for (int r = 0; r < MOST; r++) {
                        volatile float share = gradient(t->step, r, i, k) * part; /* rounded, not fused with the sum */
                        if (t->on[r] == n) sum += share;
                    }
                    t->plain[n].grad[i][k] = sum;
                }
            CHECK(pthread_create(&beside[n], NULL, flat_turn, &t->plain[n]) == 0);
        }
        for (int r = 0; r < MOST; r++)
            if (t->f.m[r].gc) CHECK(pthread_create(&id[r], NULL, turn, &t->f.m[r]) == 0);
        for (int n = 0; n < machines(t); n++) pthread_join(beside[n], NULL);
        for (int r = 0; r < MOST; r++) {
            const int first = t->on[r] != AWAY && rank_on(t, t->on[r], r) == 0;
            if (!t->f.m[r].gc) continue;
            pthread_join(id[r], NULL);
            CHECK(t->f.m[r].result == GCOMP_OK && t->plain[t->on[r]].result == GCOMP_OK);
            CHECK(gcomp_step_number(t->f.m[r].gc) == t->step + 1);
            for (size_t i = 0; i < TENSORS; i++) {
                const float *mine = kept(t->f.m[r].gc, i, 0), *other = kept(t->plain[t->on[r]].gc, i, 1);
                size_t wrong = 0;
                for (size_t k = 0; k < elements(i); k++)
                    if (!(t->f.halves && i == TENSORS - 1)) wrong += t->f.m[r].grad[i][k] != t->plain[0].grad[i][k];
                CHECK(!wrong);
                CHECK(first ? !mine == !other && (!mine || !memcmp(mine, other, 4 * elements(i))) : !mine);
            }
        }
    }
}

static void save_of(site *t, gcomp *gc) { CHECK(gcomp_save(gc, t->save, sizeof t->save, &t->length) == GCOMP_OK); }

static void check_who_comes_and_goes(const char *codec, int halves)
{
    static site t;
    static const int begin[MOST] = {0, 0, 1, 1, AWAY, AWAY};
    const void *saves[1] = {t.save};
    memset(&t, 0, sizeof t);
    t.codec = codec;
    t.f.skip = -1;
    t.f.halves = halves;
    t.f.each = MOST; /* what fleet_fill fills */
    t.f.nodes = 1;
    memcpy(t.on, begin, sizeof begin);
    site_settle(&t);
    site_steps(&t);
    t.on[3] = AWAY; /* a worker leaves; the other one of its machine is alone */
    site_settle(&t);
    site_steps(&t);
    t.on[4] = 0; /* a worker joins a machine, another makes two of one */
    t.on[5] = 1;
    site_settle(&t);
    for (int r = 4; r < 6; r++) CHECK(gcomp_restart(t.f.m[r].gc, t.step) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[0].gc); /* the first worker leaves, and the next one takes its place */
    t.on[0] = AWAY;
    site_settle(&t);
    CHECK(gcomp_load(t.f.m[1].gc, saves, &t.length, 1, NULL) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[2].gc); /* a machine of two workers joins */
    t.on[0] = t.on[3] = 2;
    site_settle(&t);
    CHECK(gcomp_join(t.f.m[0].gc, t.save, t.length) == GCOMP_OK && gcomp_restart(t.f.m[3].gc, t.step) == GCOMP_OK);
    CHECK(gcomp_join(t.plain[2].gc, t.save, t.length) == GCOMP_OK);
    site_steps(&t);
    save_of(&t, t.f.m[2].gc); /* a machine leaves, the last one takes its number */
    CHECK(gcomp_take_over(t.f.m[1].gc, t.save, t.length) == GCOMP_OK);
    CHECK(gcomp_take_over(t.plain[0].gc, t.save, t.length) == GCOMP_OK);
    t.on[2] = t.on[5] = AWAY;
    t.on[0] = t.on[3] = 1;
    gcomp_close(t.plain[1].gc);
    t.plain[1].gc = t.plain[2].gc;
    t.plain[2].gc = NULL;
    site_settle(&t);
    site_steps(&t);
    t.on[0] = AWAY; /* the first worker of a machine is lost; the next one does no step without what all first workers know */
    site_settle(&t);
    {
        pthread_t id[MOST];
        for (int r = 0; r < MOST; r++)
            if (t.f.m[r].gc) CHECK(pthread_create(&id[r], NULL, turn, &t.f.m[r]) == 0);
        for (int r = 0; r < MOST; r++)
            if (t.f.m[r].gc) CHECK(pthread_join(id[r], NULL) == 0);
        CHECK(t.f.m[3].result == GCOMP_WRONG_STATE && strstr(gcomp_error(t.f.m[3].gc), "gcomp_join"));
        CHECK(t.f.m[1].result == GCOMP_PEER_FAILED && t.f.m[4].result == GCOMP_PEER_FAILED);
    }
    save_of(&t, t.f.m[1].gc);
    CHECK(gcomp_join(t.f.m[3].gc, t.save, t.length) == GCOMP_OK && gcomp_join(t.plain[1].gc, t.save, t.length) == GCOMP_OK);
    site_steps(&t);
    close_transports(&t);
    for (int r = 0; r < MOST; r++) gcomp_close(t.f.m[r].gc);
    for (int n = 0; n < NODES; n++) gcomp_close(t.plain[n].gc);
}

static void test_workers_and_machines_come_and_go_and_keep_what_was_not_sent(void)
{
    static const char *const codecs[] = {"sign", "topk:density=0.05", "powersgd:rank=2", "dgc:density=0.05,warmup=0", "leadertopk:density=0.05",
                                         "dct:top=20,decay=0.9"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) check_who_comes_and_goes(codecs[c], c == 0);
    residual = "int8";
    check_who_comes_and_goes("topk:density=0.05", 0);
    check_who_comes_and_goes("topk:density=0.05,global=1+int:bits=4", 0);
    residual = "bf16";
    check_who_comes_and_goes("sign", 1);
    residual = NULL;
}

/* A worker moves from each place to each other one, with a schedule, for which rank 0 holds
   more. */
static void test_regrouping_a_machine_takes_the_memory_that_was_said_or_changes_nothing(void)
{
    static fleet f;
    memset(&f, 0, sizeof f);
    f.halves = 1;
    for (int way_to = 0; way_to < 16; way_to++)
        for (int prepared = 0; prepared < 4; prepared++) { /* bit 1: with small residuals */
            gcomp_desc from, to;
            gcomp_tensor tensors[TENSORS];
            gcomp_result result = GCOMP_OUT_OF_MEMORY;
            gcomp *gc;
            test_heap heap = {SIZE_MAX, 0, 0, 0};
            memset(&from, 0, sizeof from);
            from.codec = "topk:density=0.5|topk:density=0.05";
            from.schedule = "accordion";
            from.residual = prepared & 2 ? "int8" : NULL;
            from.min_elements = 1;
            from.allocator = heap_of(&heap);
            from.comm.world = 2;
            from.node.allreduce = no_allreduce;
            from.node.allgather = no_allgather;
            to = from;
            from.node.world = way_to & 1 ? 2 : 1;
            from.node.rank = (way_to & 3) == 3;
            to.node.world = way_to & 4 ? 2 : 1;
            to.node.rank = (way_to & 12) == 12;
            to.comm.world = way_to & 2 ? 3 : 2;
            for (size_t t = 0; t < TENSORS; t++) tensors[t] = tensor_of(&f, t);
            CHECK(gcomp_open(&gc, &from) == GCOMP_OK);
            for (size_t t = 0; t < TENSORS; t++) CHECK(gcomp_add_tensor(gc, &tensors[t]) == GCOMP_OK);
            if (prepared & 1) CHECK(gcomp_prepare(gc) == GCOMP_OK);
            for (size_t left = 0; result == GCOMP_OUT_OF_MEMORY; left++) {
                const size_t held = heap.held, blocks = heap.blocks, used = memory_of(gc);
                heap.left = left;
                result = gcomp_regroup(gc, &to.comm, &to.node);
                if (result == GCOMP_OK) continue;
                CHECK(result == GCOMP_OUT_OF_MEMORY && held == heap.held && blocks == heap.blocks);
                CHECK(memory_of(gc) == used && !kept(gc, 0, 0) == (from.node.rank != 0));
            }
            heap.left = SIZE_MAX;
            CHECK(result == GCOMP_OK && heap.held == memory_of(gc));
            CHECK(!kept(gc, 0, 0) == (to.node.rank != 0));
            if (!(prepared & 1)) CHECK(gcomp_prepare(gc) == GCOMP_OK);
            CHECK(memory_of(gc) == gcomp_memory_needed(&to, tensors, TENSORS));
            gcomp_close(gc);
            CHECK(heap.blocks == 0);
        }
}

static void test_what_a_new_machine_lacks_is_named_and_changes_nothing(void)
{
    gcomp_desc desc;
    gcomp_comm comm, node;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&node, 0, sizeof node);
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    comm = desc.comm;
    node.world = 2;
    CHECK(gcomp_regroup(gc, &comm, &node) == GCOMP_MISSING_CALLBACK && strstr(gcomp_error(gc), "node"));
    node.rank = 2;
    CHECK(gcomp_regroup(gc, &comm, &node) == GCOMP_INVALID_ARGUMENT && strstr(gcomp_error(gc), "node.rank is 2"));
    CHECK(gcomp_regroup(gc, NULL, &node) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_regroup(NULL, &comm, &node) == GCOMP_INVALID_ARGUMENT);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK); /* one level, still */
    node.rank = node.world = 0;
    CHECK(gcomp_regroup(gc, &comm, &node) == GCOMP_WRONG_STATE);
    gcomp_close(gc);
}

/* ---------------- memory, and what open refuses */

static void test_memory_is_what_was_said_and_may_end_anywhere(void)
{
    static fleet f;
    memset(&f, 0, sizeof f);
    f.nodes = f.each = 2;
    f.halves = 1;
    CHECK(gcomp_threads_open(&f.between, 2, 1) == 0);
    CHECK(gcomp_threads_open(&f.within[0], 2, 1) == 0);
    for (int r = 0; r < 2; r++) {
        gcomp_desc desc = desc_of(&f, r, "sign");
        gcomp_tensor tensors[TENSORS];
        gcomp *gc = NULL;
        test_heap heap = {0, 0, 0, 0};
        size_t needed, made, left;
        desc.allocator = heap_of(&heap);
        for (size_t t = 0; t < TENSORS; t++) tensors[t] = tensor_of(&f, t);
        needed = gcomp_memory_needed(&desc, tensors, TENSORS);
        for (left = made = 0; !made; left++) { /* memory ends once, after so many */
            gcomp_result result;
            heap.left = left;
            result = gcomp_open(&gc, &desc);
            made = result == GCOMP_OK;
            for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) {
                result = gcomp_add_tensor(gc, &tensors[t]);
                if (result == GCOMP_OK) continue;
                CHECK(result == GCOMP_OUT_OF_MEMORY && tensors_of(gc) == t);
                made = 0;
                heap.left = SIZE_MAX;
                result = gcomp_add_tensor(gc, &tensors[t]); /* there is memory again: on both levels as if nothing had been */
            }
            if (result == GCOMP_OK && gcomp_prepare(gc) != GCOMP_OK) {
                made = 0;
                heap.left = SIZE_MAX;
                result = gcomp_prepare(gc);
            }
            CHECK(result == GCOMP_OK || (result == GCOMP_OUT_OF_MEMORY && !gc));
            if (result == GCOMP_OK) CHECK(memory_of(gc) == needed && tensors_of(gc) == TENSORS);
            gcomp_close(gc);
            CHECK(heap.blocks == 0);
        }
        CHECK(left > 10);
    }
    gcomp_threads_close(f.between);
    gcomp_threads_close(f.within[0]);
}

static void test_what_a_node_lacks_is_named(void)
{
    char why[200];
    gcomp_desc desc;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    desc.why = why;
    desc.why_capacity = sizeof why;
    desc.node.world = 2;
    desc.node.allreduce = no_allreduce;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_MISSING_CALLBACK && strstr(why, "node") && !gc);
    desc.node.allgather = no_allgather;
    desc.node.rank = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "node.rank is 2"));
    desc.node.rank = 1;
    desc.node.world = -1;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_INVALID_ARGUMENT && strstr(why, "node.world is -1"));
    desc.node.world = 2;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK);
    CHECK(gcomp_step_begin(gc, NULL) == GCOMP_WRONG_STATE && strstr(gcomp_error(gc), "desc.node"));
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_a_step_that_was_left_by_a_jump_is_ended_by_abort_and_by_restart);
    RUN(test_all_workers_of_a_machine_know_the_codecs_of_the_step);
    RUN(test_workers_of_a_machine_with_other_codecs_are_named);
    RUN(test_gradients_that_share_memory_are_refused_on_all_machines);
    RUN(test_a_first_worker_without_callbacks_says_so_to_its_machine);
    RUN(test_saves_of_first_workers_go_on_with_the_same_bits);
    RUN(test_workers_and_machines_come_and_go_and_keep_what_was_not_sent);
    RUN(test_regrouping_a_machine_takes_the_memory_that_was_said_or_changes_nothing);
    RUN(test_what_a_new_machine_lacks_is_named_and_changes_nothing);
    RUN(test_memory_is_what_was_said_and_may_end_anywhere);
    RUN(test_what_a_node_lacks_is_named);
    return test_end();
}
