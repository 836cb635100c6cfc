/* leader.c - follow the best: Leader SGD, in a group or in groups of groups, and Elastic Averaging
   SGD, in which a common centre takes the leader's place.

   Leader   Every T steps all tell their loss, a mean over their last batches. The one with the
            least is the leader, and the others are pulled towards it:  x += c (b - x). All hold the
            same copy b of what leaders have sent: the leader sends q = C(x - b), and b += q on all.
            What q lost is in the next difference, whoever leads, so no residual is needed.
   Groups   The same within a machine (desc.node's transport), and at other times among all.
   Elastic  All gather q = C(x - centre). Each worker takes x -= alpha q of its own, and all take
            centre += alpha q of all: x of all + centre stays what it was, whatever C loses.

   Shows     gcomp_encode, gcomp_decode_add and the callbacks of a gcomp_comm, without an object
   Leaves    pulls between two rounds, towards the last leader
   Build     cc -O2 -I. -Iexamples/adapters examples/patterns/leader.c gcomp_impl.c -o build/leader -lopenblas -lz -lm -pthread
   Run       build/leader [OPTION]...   train_pattern.h has the options
   Papers    Teng, Gao, Chalus, Choromanska, Goldfarb, Weller: Leader Stochastic Gradient Descent,
             NeurIPS 2019; Zhang, Choromanska, LeCun: Deep Learning with Elastic Averaging SGD,
             NeurIPS 2015

   NaN       A loss of NaN never leads. A worker whose weights are not finite begins again at b, or
             at the centre. If no loss is finite, or the leader's weights are not, nobody moves.
   Dies      The transport fails, and x and b are as before. Connect the workers that are left, and
             set comm: b is the same on all of them.
   Joins     It gets b (or the centre) and the round from another, and begins with x = b. Where
             there are more workers than ever, all open anew, with b as their x and the same round. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One group: of a leader and its copy b, or of an elastic centre, which stands in b too. */
typedef struct leader_loop {
    gcomp_comm comm; /* needs allgather and allgatherv */
    size_t n;
    gcomp_codec codec;
    uint64_t seed, round;
    float pull; /* c: 0.1 in the paper; alpha: 0.9 / world */
    float *b, *d;
    unsigned char *mine, *all, *scratch;
    size_t capacity;
    float *losses;
    size_t *bytes;
    int leads;     /* who was the leader in the last round; -1: nobody */
    int restarted; /* 1: x was not finite, and was set to b; clear the local optimizer */
} leader_loop;

static void leader_close(leader_loop *l)
{
    free(l->b);
    free(l->d);
    free(l->mine);
    free(l->all);
    free(l->scratch);
    free(l->losses);
    free(l->bytes);
    memset(l, 0, sizeof *l);
}

/* Sets l up; comm, n, codec, seed and pull are set. x[n]: the weights, the same on all. Returns 0,
   or 1 if memory is short, or the codec has no payloads. */
static int leader_open(leader_loop *l, const float *x)
{
    const size_t world = (size_t)l->comm.world;
    l->capacity = gcomp_bound(&l->codec, l->n, NULL);
    l->b = (float *)malloc(l->n * sizeof(float));
    l->d = (float *)malloc(l->n * sizeof(float));
    l->mine = (unsigned char *)malloc(l->capacity);
    l->all = (unsigned char *)malloc(world * l->capacity);
    l->scratch = (unsigned char *)malloc(GCOMP_SCRATCH(l->n));
    l->losses = (float *)malloc(world * sizeof(float));
    l->bytes = (size_t *)malloc(world * sizeof(size_t));
    if (!l->capacity || !l->b || !l->d || !l->mine || !l->all || !l->scratch || !l->losses ||
        !l->bytes) {
        leader_close(l);
        return 1;
    }
    memcpy(l->b, x, l->n * sizeof(float));
    return 0;
}

/* The rank of the least finite loss, the lowest of equal ones; -1: none is finite. */
static int leader_of(const float *losses, int world)
{
    int best = -1;
    for (int w = 0; w < world; w++)
        if (isfinite(losses[w]) && (best < 0 || losses[w] < losses[best])) best = w;
    return best;
}

/* Gathers payloads: of the worker `only`, or of all if it is -1. *bad: this worker's difference is
   not finite; it has sent a refusal. Payload w then stands at all + w * stride. */
static gcomp_result leader_gather(leader_loop *l, const float *x, int only, size_t *stride,
                                  int *bad)
{
    const size_t world = (size_t)l->comm.world, rank = (size_t)l->comm.rank;
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp_result result;
    size_t length = 0;
    *bad = 0;
    exec.scratch = l->scratch;
    exec.scratch_bytes = GCOMP_SCRATCH(l->n);
    for (size_t i = 0; i < l->n; i++) l->d[i] = x[i] - l->b[i];
    in.grad = l->d;
    in.rows = l->n;
    in.key = gcomp_key_make(l->seed, l->round, 0, (uint32_t)l->comm.rank);
    if (only < 0 || only == (int)rank) {
        result = gcomp_encode(&l->codec, &in, &exec, l->mine, l->capacity, &length);
        *bad = result == GCOMP_NOT_FINITE;
        if (result != GCOMP_OK && !*bad) return result;
    }
    if (l->comm.allgather(l->comm.user, &length, l->bytes, sizeof length))
        return GCOMP_CALLBACK_FAILED;
    *stride = 0;
    for (size_t w = 0; w < world; w++) {
        if (l->bytes[w] > l->capacity) return GCOMP_CALLBACK_FAILED;
        *stride = l->bytes[w] > *stride ? l->bytes[w] : *stride;
    }
    if (l->comm.allgatherv(l->comm.user, l->mine, l->all, l->bytes, *stride))
        return GCOMP_CALLBACK_FAILED;
    l->round++;
    return GCOMP_OK;
}

static void leader_restart(leader_loop *l, float *x)
{
    int bad = 0;
    for (size_t i = 0; i < l->n; i++) bad |= !isfinite(x[i]);
    if (bad) memcpy(x, l->b, l->n * sizeof(float));
    l->restarted |= bad;
}

/* A round of Leader SGD. After an error x and b are as they were. */
static gcomp_result leader_round(leader_loop *l, float *x, float loss)
{
    size_t stride;
    int bad;
    gcomp_result result;
    if (l->comm.allgather(l->comm.user, &loss, l->losses, sizeof loss))
        return GCOMP_CALLBACK_FAILED;
    l->leads = leader_of(l->losses, l->comm.world);
    if (l->leads < 0) return GCOMP_OK;
    result = leader_gather(l, x, l->leads, &stride, &bad);
    if (result != GCOMP_OK) return result;
    result = gcomp_decode_add(l->all + (size_t)l->leads * stride, l->bytes[l->leads], 1, l->b, GCOMP_F32, l->n, NULL);
    if (result != GCOMP_OK && result != GCOMP_NOT_FINITE) return result;
    leader_restart(l, x);
    if (result == GCOMP_NOT_FINITE) l->leads = -1; /* its weights are not finite: nobody moves */
    for (size_t i = 0; i < l->n && l->leads >= 0 && l->leads != l->comm.rank; i++)
        x[i] += l->pull * (l->b[i] - x[i]);
    return GCOMP_OK;
}

/* A round of Elastic Averaging SGD. All payloads are checked before the first is added. */
static gcomp_result leader_elastic(leader_loop *l, float *x)
{
    size_t stride;
    int bad;
    gcomp_result result = leader_gather(l, x, -1, &stride, &bad);
    for (int w = 0; w < l->comm.world && result == GCOMP_OK; w++) {
        result = gcomp_check(l->all + (size_t)w * stride, l->bytes[w], l->n);
        if (result == GCOMP_NOT_FINITE) result = GCOMP_OK; /* a refusal: nothing to add */
    }
    if (result != GCOMP_OK) return result;
    if (!bad) result = gcomp_decode_add(l->mine, l->bytes[l->comm.rank], -l->pull, x, GCOMP_F32, l->n, NULL);
    for (int w = 0; w < l->comm.world && result == GCOMP_OK; w++) {
        result = gcomp_decode_add(l->all + (size_t)w * stride, l->bytes[w], l->pull, l->b, GCOMP_F32, l->n, NULL);
        if (result == GCOMP_NOT_FINITE) result = GCOMP_OK;
    }
    leader_restart(l, x);
    return result;
}

#ifndef PATTERN_FUNCTIONS /* tests take the functions above alone */

#include "train_pattern.h"

/* A group of `size` neighbours in rank among all workers, as if on one machine. A machine would
   have a transport of its own; this one gathers among all, and takes the group's part. */
typedef struct group_part {
    const gcomp_comm *all;
    int size;
    unsigned char *room; /* [all->world * the longest block] */
    size_t *bytes;       /* [all->world] */
} group_part;

static int group_allgather(void *user, const void *mine, void *part, size_t bytes)
{
    const group_part *g = (const group_part *)user;
    const size_t first = (size_t)(g->all->rank / g->size * g->size);
    if (g->all->allgather(g->all->user, mine, g->room, bytes)) return 1;
    memcpy(part, g->room + first * bytes, (size_t)g->size * bytes);
    return 0;
}

static int group_allgatherv(void *user, const void *mine, void *part, const size_t *bytes,
                            size_t stride)
{
    group_part *g = (group_part *)user;
    const size_t own = bytes[g->all->rank % g->size];
    const size_t first = (size_t)(g->all->rank / g->size * g->size);
    size_t most = 0; /* the longest block of any group: the stride must be the same on all */
    if (g->all->allgather(g->all->user, &own, g->bytes, sizeof own)) return 1;
    for (int w = 0; w < g->all->world; w++) most = g->bytes[w] > most ? g->bytes[w] : most;
    if (g->all->allgatherv(g->all->user, mine, g->room, g->bytes, most)) return 1;
    for (size_t w = 0; w < (size_t)g->size; w++)
        memcpy((unsigned char *)part + w * stride, g->room + (first + w) * most, bytes[w]);
    return 0;
}

/* with: T, c, workers of a group (0: no groups), 1: elastic. */
static int leader_train(pattern_worker *w, const pattern *p)
{
    leader_loop l = {0}, local = {0};
    group_part part = {0};
    float *x = w->net.parameters;
    const size_t every = (size_t)p->with[0];
    gcomp_result result = gcomp_codec_parse(&l.codec, p->codec, NULL, 0);
    l.comm = w->comm;
    l.n = w->net.count;
    l.seed = w->seed;
    l.pull = (float)p->with[1];
    part.all = w->plain; /* within a machine: not counted */
    part.size = (int)p->with[2];
    if (part.size && w->plain->world % part.size) {
        fprintf(stderr, "%s: no groups of %d in %d workers\n", p->name, part.size,
                w->plain->world);
        return 1;
    }
    if (result == GCOMP_OK && leader_open(&l, x)) result = GCOMP_OUT_OF_MEMORY;
    if (part.size && result == GCOMP_OK) {
        local.comm = l.comm;
        local.n = l.n;
        local.codec = l.codec;
        local.seed = l.seed + 1000;
        local.pull = l.pull;
        local.comm.user = &part;
        local.comm.rank = w->plain->rank % part.size;
        local.comm.world = part.size;
        local.comm.allgather = group_allgather;
        local.comm.allgatherv = group_allgatherv;
        part.room = (unsigned char *)malloc((size_t)w->plain->world * l.capacity);
        part.bytes = (size_t *)malloc((size_t)w->plain->world * sizeof(size_t));
        if (leader_open(&local, x) || !part.room || !part.bytes) result = GCOMP_OUT_OF_MEMORY;
    }
    while (w->step < w->steps && result == GCOMP_OK) {
        float loss = 0;
        const size_t step = w->step + 1, past = step < 10 ? step : 10;
        pattern_gradient(w);
        pattern_local(w);
        for (size_t k = 0; k < past; k++) loss += w->r.loss[w->step - k] / (float)past;
        /* groups: half of the rounds within the machine, halfway between those among all */
        if (part.size && step % every == every / 2) result = leader_round(&local, x, loss);
        if (result == GCOMP_OK && step % every == 0) {
            result = p->with[3] > 0 ? leader_elastic(&l, x) : leader_round(&l, x, loss);
            w->rounds++;
        }
        pattern_next(w);
    }
    if (part.size) leader_close(&local);
    leader_close(&l);
    free(part.room);
    free(part.bytes);
    return result == GCOMP_OK ? 0 : pattern_say(w, p->name, result);
}

int main(int argc, char **argv)
{
    static const pattern rows[] = {
        {.name = "synchronous SGD", .codec = "none", .train = pattern_synchronous},
        {.name = "leader none", .codec = "none", .train = leader_train, .with = {16, 0.1}},
        {.name = "leader int:bits=4", .codec = "int:bits=4", .train = leader_train,
         .with = {16, 0.1}, .beside = "leader none", .most = 1},
        {.name = "leader topk:density=0.02", .codec = "topk:density=0.02", .train = leader_train,
         .with = {16, 0.1}},
        {.name = "leader in groups, int:bits=4", .codec = "int:bits=4", .train = leader_train,
         .with = {16, 0.1, 2}},
        {.name = "elastic none", .codec = "none", .train = leader_train,
         .with = {16, 0.9 / 4, 0, 1}},
        {.name = "elastic int:bits=4", .codec = "int:bits=4", .train = leader_train,
         .with = {16, 0.9 / 4, 0, 1}, .beside = "elastic none", .most = 1}};
    return pattern_main(argc, argv, "leader", rows, sizeof rows / sizeof *rows, 4, 0.05f, 0.001f);
}

#endif
