/* gossip.c - no collective at all: each worker talks to one or two others. Stochastic Gradient Push
   (push-sum over directed exponential graphs), and CHOCO-SGD (compressed differences on a ring).

   Push-sum. A worker holds y and a weight s; z = y / s are the weights that it trains.

       y -= u                               u: what the local optimizer subtracts, at z
       send half of y and s to rank + d, keep the other half; add what comes from rank - d
       d = 1, 2, 4, ... in turn: with 2^L workers, L steps average exactly

   Messages that get lost lose nothing: a message holds the sum of all halves that have left over
   this link, and the receiver adds what is new in it. The sums are integers that may wrap around
   (units of 2^-20), so they stay exact for ever; what a unit cannot hold stays with the sender. So
   the sum of all y and of all s is what it was, whatever gets lost, comes late, or comes twice.

   CHOCO. Each worker and its neighbours on a ring hold the same copy of its weights, c:

       q = C(x - c), sent to both neighbours;  c += q on all three
       x += gamma sum over the neighbours j of w (c_j - c)      w = 1 / 3

   Shows     gcomp_encode and gcomp_decode_add without an object; messages of gcomp_threads.h and
             gcomp_sockets.h
   Leaves    time-varying graphs with several peers
   Build     cc -O2 -I. -Iexamples/adapters examples/patterns/gossip.c gcomp_impl.c -o build/gossip -lopenblas -lz -lm -pthread
   Run       build/gossip [OPTION]...   train_pattern.h has the options; threads or sockets
   Papers    Assran, Loizou, Ballas, Rabbat: Stochastic Gradient Push, ICML 2019; Koloskova, Stich,
             Jaggi: CHOCO-SGD, ICML 2019; sums that survive losses: Hadjicostis, Vaidya,
             Dominguez-Garcia: Robust Distributed Average Consensus via Exchange of Running Sums,
             IEEE TAC 2016

   NaN       Push-sum: an update that is not finite is left out, so that y stays finite. CHOCO: what
             is sent is a refusal, to which nobody adds; the worker begins again at its copy c.
   Dies      A send that fails sends nothing: that half stays. Nothing comes from the dead worker,
             and what it held is lost with it: the others go on with what they hold. CHOCO: the
             neighbour is left out, and the ring is a line.
   Joins     All receive what is under way, and call gossip_regroup; the new worker begins with
             s = 1 and y = z of another. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A transport of messages; 0: success. gcomp_threads_send, gcomp_sockets_send_to and their like. */
typedef struct peers {
    void *user;
    int rank, world;
    int (*send)(void *user, int to, const void *data, size_t bytes);
    int (*receive)(void *user, int from, void *data, size_t capacity, size_t *bytes,
                   double seconds);
} peers;

/* ---------------- push-sum */

enum { GOSSIP_LINKS = 10, GOSSIP_HEAD = 2 }; /* 1024 workers; a message: round, s, y[n] */
#define GOSSIP_UNIT 1048576.0 /* 2^20 units are 1 */
#define GOSSIP_LARGEST 1000.0 /* of |y|: a larger half is not sent */

typedef struct gossip_loop {
    peers net;
    size_t n;
    unsigned late;  /* steps until a message is waited for; 0: in the same step */
    double seconds; /* that a message is waited for; then it counts as lost */
    int links;      /* ceil(log2(world)) */
    float *y;
    double s;
    uint32_t *sent[GOSSIP_LINKS], *seen[GOSSIP_LINKS]; /* [GOSSIP_HEAD + n] sums of halves */
    uint32_t *message;
    uint32_t round;
    size_t failed, missing, left_out; /* sends; messages; updates that were not finite */
} gossip_loop;

static void gossip_close(gossip_loop *g)
{
    for (int l = 0; l < GOSSIP_LINKS; l++) {
        free(g->sent[l]);
        free(g->seen[l]);
    }
    free(g->message);
    free(g->y);
    memset(g, 0, sizeof *g);
}

/* Other peers from now on. Nothing must be under way. Returns 0, or 1 if memory is short. */
static int gossip_regroup(gossip_loop *g, const peers *net)
{
    const size_t words = GOSSIP_HEAD + g->n;
    g->net = *net;
    g->round = 0;
    for (g->links = 0; g->links < GOSSIP_LINKS && 1 << g->links < net->world;) {
        uint32_t **sums[2] = {&g->sent[g->links], &g->seen[g->links]};
        for (int k = 0; k < 2; k++) {
            if (!*sums[k]) *sums[k] = (uint32_t *)malloc(words * sizeof(uint32_t));
            if (!*sums[k]) return 1;
            memset(*sums[k], 0, words * sizeof(uint32_t));
        }
        g->links++;
    }
    return 1 << g->links < net->world;
}

/* Sets g up; n, late and seconds are set. x[n]: the weights. Returns 0, or 1: no memory. */
static int gossip_open(gossip_loop *g, const peers *net, const float *x)
{
    g->y = (float *)malloc(g->n * sizeof(float));
    g->message = (uint32_t *)malloc((GOSSIP_HEAD + g->n) * sizeof(uint32_t));
    if (!g->y || !g->message || gossip_regroup(g, net)) {
        gossip_close(g);
        return 1;
    }
    memcpy(g->y, x, g->n * sizeof(float));
    g->s = 1;
    return 0;
}

static uint32_t gossip_half(double value)
{
    return (uint32_t)(int32_t)lrint(value * (0.5 * GOSSIP_UNIT));
}

static double gossip_new(uint32_t now, uint32_t before)
{
    return (double)(int32_t)(now - before) / GOSSIP_UNIT;
}

/* Sends half of y and s over the link of this round. If it cannot be sent, all of it stays. */
static void gossip_send(gossip_loop *g)
{
    const int l = (int)(g->round % (unsigned)g->links);
    uint32_t *m = g->message, *sent = g->sent[l];
    int large = 0;
    m[0] = g->round;
    m[1] = sent[1] + gossip_half(g->s);
    for (size_t i = 0; i < g->n; i++) {
        large |= !(fabs((double)g->y[i]) < GOSSIP_LARGEST);
        m[GOSSIP_HEAD + i] = sent[GOSSIP_HEAD + i] + (large ? 0 : gossip_half((double)g->y[i]));
    }
    if (large || g->net.send(g->net.user, (g->net.rank + (1 << l)) % g->net.world, m,
                             (GOSSIP_HEAD + g->n) * sizeof *m)) {
        g->failed++;
        return;
    }
    g->s -= gossip_new(m[1], sent[1]);
    for (size_t i = 0; i < g->n; i++)
        g->y[i] -= (float)gossip_new(m[GOSSIP_HEAD + i], sent[GOSSIP_HEAD + i]);
    memcpy(sent, m, (GOSSIP_HEAD + g->n) * sizeof *m);
}

/* Adds what is new in the message of a round, and in older ones of its link. */
static void gossip_receive(gossip_loop *g, uint32_t round)
{
    const int l = (int)(round % (unsigned)g->links);
    const int from = (g->net.rank + g->net.world - (1 << l) % g->net.world) % g->net.world;
    const size_t words = GOSSIP_HEAD + g->n;
    uint32_t *m = g->message, *seen = g->seen[l];
    size_t bytes = 0;
    do {
        if (g->net.receive(g->net.user, from, m, words * sizeof *m, &bytes, g->seconds) ||
            bytes != words * sizeof *m) {
            g->missing++;
            return;
        }
        if ((int32_t)(m[0] - seen[0]) < 0) continue; /* overtaken by one that held it too */
        g->s += gossip_new(m[1], seen[1]);
        for (size_t i = 0; i < g->n; i++)
            g->y[i] += (float)gossip_new(m[GOSSIP_HEAD + i], seen[GOSSIP_HEAD + i]);
        memcpy(seen, m, words * sizeof *m);
    } while ((int32_t)(m[0] - round) < 0);
}

/* A step: y -= u; one message leaves, and one comes. x <- y / s. */
static void gossip_step(gossip_loop *g, float *x, const float *u)
{
    int bad = 0;
    for (size_t i = 0; i < g->n; i++) bad |= !isfinite(u[i]);
    g->left_out += bad != 0;
    for (size_t i = 0; i < g->n && !bad; i++) g->y[i] -= u[i];
    if (g->links) {
        gossip_send(g);
        if (g->round >= g->late) gossip_receive(g, g->round - g->late);
        g->round++;
    }
    for (size_t i = 0; i < g->n; i++) x[i] = g->y[i] / (float)g->s;
}

/* Receives what is under way. x <- y / s. */
static void gossip_end(gossip_loop *g, float *x)
{
    for (unsigned k = g->round < g->late ? g->round : g->late; k > 0 && g->links; k--)
        gossip_receive(g, g->round - k);
    for (size_t i = 0; i < g->n; i++) x[i] = g->y[i] / (float)g->s;
}

/* ---------------- CHOCO */

typedef struct choco_loop {
    peers net;
    size_t n;
    gcomp_codec codec;
    uint64_t seed, step;
    float gamma;    /* above 0, at most 1; smaller for coarser codecs */
    double seconds; /* that a neighbour is waited for; then it is left out for ever */
    float *copy[3]; /* of the own weights, and of the neighbours rank - 1 and rank + 1 */
    int out[3];     /* 1: this neighbour is left out */
    float *d;
    unsigned char *mine, *got, *scratch;
    size_t capacity;
    size_t refused; /* payloads of neighbours that were not finite */
} choco_loop;

static void choco_close(choco_loop *c)
{
    for (int k = 0; k < 3; k++) free(c->copy[k]);
    free(c->d);
    free(c->mine);
    free(c->got);
    free(c->scratch);
    memset(c, 0, sizeof *c);
}

/* Sets c up; n, codec, seed, gamma, seconds are set; x[n]: the weights, the same on all. Returns 0,
   or 1 if memory is short. */
static int choco_open(choco_loop *c, const peers *net, const float *x)
{
    int bad = 0;
    c->net = *net;
    c->capacity = gcomp_bound(&c->codec, c->n, NULL);
    c->d = (float *)malloc(c->n * sizeof(float));
    c->mine = (unsigned char *)malloc(c->capacity);
    c->got = (unsigned char *)malloc(c->capacity);
    c->scratch = (unsigned char *)malloc(GCOMP_SCRATCH(c->n));
    for (int k = 0; k < 3; k++) {
        c->copy[k] = (float *)malloc(c->n * sizeof(float));
        if (c->copy[k]) memcpy(c->copy[k], x, c->n * sizeof(float));
        bad |= !c->copy[k];
    }
    c->out[1] = net->world < 2;
    c->out[2] = net->world < 3; /* of two workers, each has one neighbour */
    if (!bad && c->d && c->mine && c->got && c->scratch && c->capacity) return 0;
    choco_close(c);
    return 1;
}

/* A step after the local one: sends the difference to both neighbours, and moves x towards their
   copies. */
static gcomp_result choco_step(choco_loop *c, float *x)
{
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp_result result, own;
    size_t length = 0, bytes;
    exec.scratch = c->scratch;
    exec.scratch_bytes = GCOMP_SCRATCH(c->n);
    for (size_t i = 0; i < c->n; i++) c->d[i] = x[i] - c->copy[0][i];
    in.grad = c->d;
    in.rows = c->n;
    in.key = gcomp_key_make(c->seed, c->step++, 0, (uint32_t)c->net.rank);
    own = gcomp_encode(&c->codec, &in, &exec, c->mine, c->capacity, &length);
    if (own != GCOMP_OK && own != GCOMP_NOT_FINITE) return own;
    for (int k = 1; k <= 2; k++)
        if (!c->out[k])
            c->out[k] = c->net.send(c->net.user,
                                    (c->net.rank + (k == 1 ? c->net.world - 1 : 1)) % c->net.world,
                                    c->mine, length) != 0;
    if (own == GCOMP_OK) {
        result = gcomp_decode_add(c->mine, length, 1, c->copy[0], GCOMP_F32, c->n, &exec);
        if (result != GCOMP_OK) return result;
    } else memcpy(x, c->copy[0], c->n * sizeof(float)); /* it begins again */
    for (int k = 1; k <= 2; k++) {
        if (c->out[k]) continue;
        if (c->net.receive(c->net.user,
                           (c->net.rank + (k == 1 ? c->net.world - 1 : 1)) % c->net.world, c->got,
                           c->capacity, &bytes, c->seconds)) {
            c->out[k] = 1; /* its copy would be wrong from now on */
            continue;
        }
        result = gcomp_decode_add(c->got, bytes, 1, c->copy[k], GCOMP_F32, c->n, &exec);
        c->refused += result == GCOMP_NOT_FINITE;
        if (result != GCOMP_OK && result != GCOMP_NOT_FINITE) c->out[k] = 1;
    }
    for (int k = 1; k <= 2; k++)
        for (size_t i = 0; i < c->n && !c->out[k]; i++)
            x[i] += c->gamma / 3 * (c->copy[k][i] - c->copy[0][i]);
    return GCOMP_OK;
}

#ifndef PATTERN_FUNCTIONS /* tests take the functions above alone */

#include "train_pattern.h"

/* Counts the bytes of messages. */
typedef struct counted {
    peers inner;
    meter *m;
} counted;

static int counted_send(void *user, int to, const void *data, size_t bytes)
{
    counted *c = (counted *)user;
    c->m->sent += (double)bytes;
    return c->inner.send(c->inner.user, to, data, bytes);
}

static int counted_receive(void *user, int from, void *data, size_t capacity, size_t *bytes,
                           double seconds)
{
    counted *c = (counted *)user;
    return c->inner.receive(c->inner.user, from, data, capacity, bytes, seconds);
}

/* The messages of the worker's transport. Returns 0, or 1 after saying that it has none. */
static int count_peers(const pattern_worker *w, counted *c, meter *m, peers *net)
{
    const int sockets = train_workers_are(w->workers, "sockets");
    memset(net, 0, sizeof *net);
    net->user = w->plain->user;
    net->rank = w->plain->rank;
    net->world = w->plain->world;
    net->send = sockets ? gcomp_sockets_send_to : gcomp_threads_send;
    net->receive = sockets ? gcomp_sockets_receive_from : gcomp_threads_receive;
    c->inner = *net;
    c->m = m;
    net->user = c;
    net->send = counted_send;
    net->receive = counted_receive;
    if (sockets || train_workers_are(w->workers, "threads")) return 0;
    fprintf(stderr, "gossip needs --transport threads or sockets\n");
    return 1;
}

/* with: steps until a message is waited for. */
static int push_train(pattern_worker *w, const pattern *p)
{
    gossip_loop g = {0};
    counted c;
    peers net;
    g.n = w->net.count;
    g.late = (unsigned)p->with[0];
    g.seconds = TRAIN_TIMEOUT;
    if (count_peers(w, &c, &w->m, &net)) return 1;
    if (gossip_open(&g, &net, w->net.parameters))
        return pattern_say(w, p->name, GCOMP_OUT_OF_MEMORY);
    while (w->step < w->steps) {
        pattern_gradient(w);
        for (size_t i = 0; i < g.n; i++) w->net.gradients[i] *= w->rate;
        gossip_step(&g, w->net.parameters, w->net.gradients);
        w->rounds++;
        pattern_next(w);
    }
    gossip_end(&g, w->net.parameters);
    if (g.missing) fprintf(stderr, "worker %d: %zu messages did not come\n", net.rank, g.missing);
    gossip_close(&g);
    return 0;
}

/* with: gamma. */
static int choco_train(pattern_worker *w, const pattern *p)
{
    choco_loop c = {0};
    counted count;
    peers net;
    gcomp_result result = gcomp_codec_parse(&c.codec, p->codec, NULL, 0);
    c.n = w->net.count;
    c.seed = w->seed;
    c.gamma = (float)p->with[0];
    c.seconds = TRAIN_TIMEOUT;
    if (count_peers(w, &count, &w->m, &net)) return 1;
    if (result == GCOMP_OK && choco_open(&c, &net, w->net.parameters)) result = GCOMP_OUT_OF_MEMORY;
    while (w->step < w->steps && result == GCOMP_OK) {
        pattern_gradient(w);
        pattern_local(w);
        result = choco_step(&c, w->net.parameters);
        w->rounds++;
        pattern_next(w);
    }
    choco_close(&c);
    return result == GCOMP_OK ? 0 : pattern_say(w, p->name, result);
}

int main(int argc, char **argv)
{
    static const pattern rows[] = {
        {.name = "synchronous SGD", .codec = "none", .train = pattern_synchronous},
        {.name = "push-sum", .codec = "none", .train = push_train, .most = 2, .spread = 1e-3},
        {.name = "push-sum, one step late", .codec = "none", .train = push_train, .with = {1},
         .most = 2, .spread = 1e-3},
        {.name = "choco none", .codec = "none", .train = choco_train, .with = {1}},
        {.name = "choco int:bits=4", .codec = "int:bits=4", .train = choco_train, .with = {0.3},
         .most = 2, .spread = 1e-3},
        {.name = "choco topk:density=0.05", .codec = "topk:density=0.05", .train = choco_train,
         .with = {0.1}}};
    return pattern_main(argc, argv, "gossip", rows, sizeof rows / sizeof *rows, 8, 0.05f, 0.001f);
}

#endif
