/* Proves of examples/patterns/gossip.c: push-sum and CHOCO, over messages that get lost, and with peers that vanish. */

#include "patterns.h"

/* ---------------- gossip.c, over a network of messages that does what a test says: all in one thread

   Of each message it may say that it cannot be sent, lose it, keep it back, or deliver it twice. */

enum { PEERS = 9, G = 150, QUEUE = 4096 };

typedef struct letter {
    int from, to, after; /* rounds that it is kept back */
    size_t bytes;
    unsigned char data[GCOMP_BOUND(G) + 8];
} letter;

static letter *letters[QUEUE]; /* in order */
static size_t waiting;
static unsigned refuse, lose, keep, twice; /* of 100 messages */
static int dead = -1;
static uint64_t luck;
static peers nets[PEERS];
static gossip_loop gossips[PEERS];
static choco_loop chocos[PEERS];
static float xs[PEERS][G];

static unsigned draw(void) { return (unsigned)(mix(luck++) % 100); }

static void post(int from, int to, const void *data, size_t bytes, int after)
{
    letter *l = (letter *)malloc(sizeof *l);
    CHECK(waiting < QUEUE && bytes <= sizeof l->data);
    l->from = from;
    l->to = to;
    l->after = after;
    l->bytes = bytes;
    memcpy(l->data, data, bytes);
    letters[waiting++] = l;
}

static int script_send(void *user, int to, const void *data, size_t bytes)
{
    const peers *me = (const peers *)user;
    if (to == dead || draw() < refuse) return 2;
    if (draw() < lose) return 0;
    post(me->rank, to, data, bytes, draw() < keep ? 5 : 0);
    if (draw() < twice) post(me->rank, to, data, bytes, 3);
    return 0;
}

static int script_receive(void *user, int from, void *data, size_t capacity, size_t *bytes, double seconds)
{
    const peers *me = (const peers *)user;
    (void)seconds;
    for (size_t i = 0; i < waiting; i++) {
        letter *l = letters[i];
        if (l->from != from || l->to != me->rank || l->after > 0) continue;
        CHECK(l->bytes <= capacity);
        memcpy(data, l->data, l->bytes);
        *bytes = l->bytes;
        free(l);
        memmove(letters + i, letters + i + 1, (--waiting - i) * sizeof *letters);
        return 0;
    }
    return from == dead ? 2 : 3;
}

static void open_peers(int world)
{
    while (waiting) free(letters[--waiting]);
    refuse = lose = keep = twice = 0;
    dead = -1;
    luck = 1;
    for (int w = 0; w < world; w++) {
        nets[w].user = &nets[w];
        nets[w].rank = w;
        nets[w].world = world;
        nets[w].send = script_send;
        nets[w].receive = script_receive;
    }
}

static void open_gossip(int world)
{
    open_peers(world);
    for (int w = 0; w < world; w++) {
        for (size_t i = 0; i < G; i++) xs[w][i] = at_first(i * 7 + (size_t)w * 311) * 3;
        memset(&gossips[w], 0, sizeof gossips[w]);
        gossips[w].n = G;
        CHECK(gossip_open(&gossips[w], &nets[w], xs[w]) == 0);
    }
}

static void close_gossip(int world)
{
    for (int w = 0; w < world; w++) gossip_close(&gossips[w]);
    while (waiting) free(letters[--waiting]);
}

/* A round of all that live: they send, then they receive. rate > 0: with a step of their loss. */
static void gossip_round(int world, float rate)
{
    for (int w = 0; w < world; w++) {
        gossip_loop *g = &gossips[w];
        if (w == dead) continue;
        for (size_t i = 0; i < G && rate > 0; i++) g->y[i] -= rate * slope(i, w % WORLD, g->y[i] / (float)g->s);
        gossip_send(g);
    }
    for (int w = 0; w < world; w++) {
        if (w != dead) gossip_receive(&gossips[w], gossips[w].round);
        gossips[w].round++;
    }
    for (size_t i = 0; i < waiting; i++) letters[i]->after--;
}

/* The sum of element i over all workers, with what is on its way or lost and will come with the next message. */
static double mass(int world, size_t i)
{
    double sum = 0;
    for (int w = 0; w < world; w++) {
        const gossip_loop *g = &gossips[w];
        sum += i < G ? (double)g->y[i] : g->s;
        for (int l = 0; l < g->links; l++) {
            const gossip_loop *to = &gossips[(w + (1 << l)) % world];
            const size_t at = i < G ? GOSSIP_HEAD + i : 1;
            sum += gossip_new(g->sent[l][at], to->seen[l][at]);
        }
    }
    return sum;
}

static void masses(int world, double *of)
{
    for (size_t i = 0; i <= G; i++) of[i] = mass(world, i);
}

static double mass_change(int world, const double *before)
{
    double most = 0;
    for (size_t i = 0; i <= G; i++) most = fmax(most, fabs(mass(world, i) - before[i]));
    return most;
}

/* The largest difference of z from the mean that `before` says. */
static double from_mean(int world, const double *before)
{
    double most = 0;
    for (int w = 0; w < world; w++)
        for (size_t i = 0; i < G && w != dead; i++)
            most = fmax(most, fabs((double)gossips[w].y[i] / gossips[w].s - before[i] / world));
    return most;
}

static void test_push_sum_of_2_to_the_l_workers_averages_exactly_in_l_rounds(void)
{
    double before[G + 1];
    for (int world = 1; world <= PEERS; world++) {
        const int exact = (world & (world - 1)) == 0;
        int rounds = 0;
        open_gossip(world);
        masses(world, before);
        CHECK(before[G] <= world && before[G] >= world);
        while (1 << rounds < world) rounds++;
        CHECK(gossips[0].links == rounds);
        for (int r = 0; r < (exact ? rounds : 60); r++) gossip_round(world, 0);
        CHECK(from_mean(world, before) < 1e-5); /* some units of 2^-20 */
        CHECK(mass_change(world, before) < 1e-4);
        for (int w = 0; w < world && exact; w++) CHECK(gossips[w].s <= 1 && gossips[w].s >= 1);
        close_gossip(world);
    }
}

static void test_nothing_is_lost_with_messages_that_are(void)
{
    double before[G + 1];
    open_gossip(8);
    masses(8, before);
    refuse = 10;
    lose = 30;
    keep = 20;
    twice = 20;
    for (int r = 0; r < 300; r++) {
        gossip_round(8, 0);
        if (r % 50 == 0) CHECK(mass_change(8, before) < 1e-3);
    }
    CHECK(mass_change(8, before) < 1e-3 && fabs(mass(8, G) - 8) <= 0); /* the weights are exact */
    CHECK(gossips[0].failed > 10 && gossips[0].missing > 50);
    refuse = lose = keep = twice = 0;
    for (int r = 0; r < 60; r++) gossip_round(8, 0);
    CHECK(from_mean(8, before) < 1e-3); /* the mean of what there was at first */
    close_gossip(8);
}

static void test_gossip_trains_while_messages_get_lost(void)
{
    double most = 0;
    open_gossip(8);
    lose = 20;
    for (int r = 0; r < 1000; r++) gossip_round(8, 0.1f / (1 + (float)r / 40));
    for (int w = 0; w < 8; w++)
        for (size_t i = 0; i < G; i++) { /* the optimum of all, where the mean slope is 0 */
            double mean = 0;
            for (int k = 0; k < WORLD; k++) mean += (double)slope(i, k, gossips[w].y[i] / (float)gossips[w].s) / WORLD;
            most = fmax(most, fabs(mean));
        }
    CHECK(most < 0.1);
    close_gossip(8);
}

static void test_an_update_of_nan_is_left_out_and_a_huge_half_is_not_sent(void)
{
    float u[G] = {0};
    double before[G + 1];
    open_gossip(4);
    masses(4, before);
    u[3] = NAN;
    gossip_step(&gossips[1], xs[1], u);
    CHECK(gossips[1].left_out == 1 && isfinite(xs[1][3]) && mass_change(4, before) < 1e-6);
    gossips[2].y[0] = 5000;
    masses(4, before);
    gossip_send(&gossips[2]);
    CHECK(gossips[2].failed == 1 && gossips[2].s >= 1 && mass_change(4, before) < 1e-6);
    close_gossip(4);
}

static void test_when_a_peer_vanishes_the_others_come_together(void)
{
    float least[G], most[G];
    double spread = 0;
    open_gossip(8);
    for (size_t i = 0; i < G; i++) {
        least[i] = most[i] = xs[0][i];
        for (int w = 1; w < 8; w++) {
            least[i] = fminf(least[i], xs[w][i]);
            most[i] = fmaxf(most[i], xs[w][i]);
        }
    }
    gossip_round(8, 0);
    dead = 5;
    for (int r = 0; r < 150; r++) gossip_round(8, 0);
    for (int w = 0; w < 8; w++)
        for (size_t i = 0; i < G && w != dead; i++) {
            const double z = (double)gossips[w].y[i] / gossips[w].s;
            spread = fmax(spread, fabs(z - (double)gossips[0].y[i] / gossips[0].s));
            CHECK(z > (double)least[i] - 1e-4 && z < (double)most[i] + 1e-4); /* in the hull */
        }
    CHECK(spread < 1e-4);
    close_gossip(8);
}

static void test_a_peer_may_join(void)
{
    double before[G + 1];
    open_gossip(4);
    for (int r = 0; r < 9; r++) gossip_round(4, 0);
    open_peers(5); /* nothing is under way: every round was received */
    memset(&gossips[4], 0, sizeof gossips[4]);
    gossips[4].n = G;
    for (size_t i = 0; i < G; i++) xs[4][i] = gossips[0].y[i] / (float)gossips[0].s;
    CHECK(gossip_open(&gossips[4], &nets[4], xs[4]) == 0);
    for (int w = 0; w < 4; w++) CHECK(gossip_regroup(&gossips[w], &nets[w]) == 0);
    masses(5, before);
    CHECK(fabs(before[G] - 5) <= 0);
    for (int r = 0; r < 40; r++) gossip_round(5, 0);
    CHECK(from_mean(5, before) < 1e-4 && mass_change(5, before) < 1e-4);
    close_gossip(5);
}

/* The same over threads, with messages that are waited for two steps later. */
static void body_gossip_threads(worker *w)
{
    gossip_loop g = {0};
    peers net = {0};
    float x[G], u[G];
    net.user = w->comm.user;
    net.rank = w->rank;
    net.world = w->comm.world;
    net.send = gcomp_threads_send;
    net.receive = gcomp_threads_receive;
    g.n = G;
    g.late = 2;
    g.seconds = 30;
    for (size_t i = 0; i < G; i++) x[i] = at_first(i);
    w->wrong = gossip_open(&g, &net, x) != 0;
    for (int s = 0; s < 1000 && !w->wrong; s++) {
        for (size_t i = 0; i < G; i++) u[i] = 0.1f / (1 + (float)s / 40) * slope(i, w->rank, x[i]);
        gossip_step(&g, x, u);
    }
    gossip_end(&g, x);
    memcpy(w->x, x, sizeof x);
    w->wrong += g.missing + g.failed != 0 || gcomp_threads_barrier(w->comm.user) != 0;
    gossip_close(&g);
}

static void test_late_messages_of_threads_end_near_the_optimum(void)
{
    memset(workers, 0, sizeof workers);
    each(WORLD, body_gossip_threads);
    for (int w = 0; w < WORLD; w++) {
        double most = 0;
        for (size_t i = 0; i < G; i++) {
            double mean = 0;
            for (int k = 0; k < WORLD; k++) mean += (double)slope(i, k, workers[w].x[i]) / WORLD;
            most = fmax(most, fabs(mean));
        }
        CHECK(workers[w].wrong == 0 && most < 0.05);
    }
}

/* ---------------- CHOCO */

static void open_choco(int world, const char *text, float gamma)
{
    open_peers(world);
    for (int w = 0; w < world; w++) {
        float first[G];
        for (size_t i = 0; i < G; i++) first[i] = at_first(i);
        for (size_t i = 0; i < G; i++) xs[w][i] = at_first(i * 7 + (size_t)w * 311);
        memset(&chocos[w], 0, sizeof chocos[w]);
        chocos[w].n = G;
        chocos[w].gamma = gamma;
        CHECK(gcomp_codec_parse(&chocos[w].codec, text, NULL, 0) == GCOMP_OK);
        CHECK(choco_open(&chocos[w], &nets[w], first) == 0);
    }
}

static void close_choco(int world)
{
    for (int w = 0; w < world; w++) choco_close(&chocos[w]);
    while (waiting) free(letters[--waiting]);
}

static int choco_rounds;
static float poison; /* added to an element of worker 2 in round 5 */
static int quits;    /* after round 10 */

static void body_choco(worker *w)
{
    choco_loop *c = &chocos[w->rank];
    c->net.user = w->comm.user;
    c->net.send = gcomp_threads_send;
    c->net.receive = gcomp_threads_receive;
    c->seconds = 30;
    w->result = GCOMP_OK;
    for (int r = 0; r < choco_rounds && w->result == GCOMP_OK; r++) {
        if (r == 5 && w->rank == 2) xs[2][9] += poison;
        if (r == 10 && w->rank == quits) {
            gcomp_threads_leave(w->comm.user);
            return;
        }
        w->result = choco_step(c, xs[w->rank]);
    }
}

static void run_choco(int world, int rounds)
{
    choco_rounds = rounds;
    memset(workers, 0, sizeof workers);
    each(world, body_choco);
    for (int w = 0; w < world; w++) CHECK(workers[w].result == GCOMP_OK);
}

static void test_choco_conserves_the_mean_and_comes_to_it(void)
{
    static const struct {
        const char *codec;
        float gamma;
    } ways[] = {{"none", 1}, {"int:bits=4", 0.3f}, {"qsgd", 0.3f}, {"topk:density=0.1", 0.1f}, {"sign", 0.1f}};
    quits = -1;
    poison = 0;
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++)
        for (int world = 1; world <= 5; world++) {
            double before[G], most = 0, drift = 0;
            open_choco(world, ways[k].codec, ways[k].gamma);
            for (size_t i = 0; i < G; i++) {
                before[i] = 0;
                for (int w = 0; w < world; w++) before[i] += (double)xs[w][i] / world;
            }
            run_choco(world, 400);
            for (size_t i = 0; i < G; i++) {
                double mean = 0;
                for (int w = 0; w < world; w++) mean += (double)xs[w][i] / world;
                drift = fmax(drift, fabs(mean - before[i]));
                for (int w = 0; w < world; w++) most = fmax(most, fabs((double)xs[w][i] - before[i]));
            }
            if (!(drift < 1e-4 && most < 0.02)) printf("# %s, %d: drift %g, apart %g\n", ways[k].codec, world, drift, most);
            CHECK(drift < 1e-4 && most < 0.02);
            for (int w = 0; w < world && world > 2; w++) { /* the copies of a worker are the same bits everywhere */
                const float *own = chocos[w].copy[0];
                CHECK(memcmp(own, chocos[(w + 1) % world].copy[1], G * sizeof *own) == 0);
                CHECK(memcmp(own, chocos[(w + world - 1) % world].copy[2], G * sizeof *own) == 0);
            }
            close_choco(world);
        }
}

static void test_choco_refuses_nan_and_goes_on(void)
{
    quits = -1;
    poison = NAN;
    open_choco(4, "int:bits=4", 0.3f);
    run_choco(4, 200);
    CHECK(chocos[1].refused == 1 && chocos[3].refused == 1 && chocos[0].refused == 0);
    for (int w = 0; w < 4; w++)
        for (size_t i = 0; i < G; i++) CHECK(fabsf(xs[w][i] - xs[0][i]) < 0.02f);
    CHECK(memcmp(chocos[2].copy[0], chocos[1].copy[2], G * sizeof(float)) == 0);
    close_choco(4);
}

static void test_choco_leaves_out_a_neighbour_that_vanishes(void)
{
    quits = 2;
    poison = 0;
    open_choco(5, "int:bits=4", 0.3f);
    run_choco(5, 400);
    CHECK(chocos[1].out[2] && chocos[3].out[1] && !chocos[1].out[1] && !chocos[4].out[1]);
    for (int w = 0; w < 5; w++)
        for (size_t i = 0; i < G && w != 2; i++) CHECK(fabsf(xs[w][i] - xs[0][i]) < 0.02f);
    close_choco(5);
}

int main(void)
{
    RUN(test_push_sum_of_2_to_the_l_workers_averages_exactly_in_l_rounds);
    RUN(test_nothing_is_lost_with_messages_that_are);
    RUN(test_gossip_trains_while_messages_get_lost);
    RUN(test_an_update_of_nan_is_left_out_and_a_huge_half_is_not_sent);
    RUN(test_when_a_peer_vanishes_the_others_come_together);
    RUN(test_a_peer_may_join);
    RUN(test_late_messages_of_threads_end_near_the_optimum);
    RUN(test_choco_conserves_the_mean_and_comes_to_it);
    RUN(test_choco_refuses_nan_and_goes_on);
    RUN(test_choco_leaves_out_a_neighbour_that_vanishes);
    return test_end();
}
