/* server.c - a parameter server. Workers push compressed gradients, together or each at its own
   pace. The server adds them and answers with compressed weights. What either side does not send,
   it keeps and sends later.

   Shows     gcomp_compress, gcomp_commit and gcomp_give_back on both sides of a link; pushes that
             carry their age
   Leaves    the network: messages are passed in one process, in the order that clocks of different
             speed make
   Build     cc -I. -Iexamples/adapters examples/server.c gcomp_impl.o -o build/server
   Run       build/server

   Up        A push is the payloads of all tensors, and the version of the weights that they were
             made with. A version is the number of pushes that the server has added.
   Staleness s = the server's version now - the push's version. A push with s <= STALE is added with
             weight 1 / (1 + s) (after Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD for
             Distributed Deep Learning, IJCAI 2016). An older push is refused. A push of the future,
             or a damaged one, is invalid. Neither changes the server, and the worker gives the
             payloads back to its residual.
   Down      For each worker the server keeps what it has not told that worker yet: the updates
             since the last answer, and the residual of the last answer. The worker's weights are
             the server's weights minus both, at any time.
   Errors    A gradient that is not finite (retry): the worker pushes nothing this time. Nothing
             here has to be resynchronised. Any other error is fatal. */

#include "gcomp.h"
#include "args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 4, TENSORS = 2, ROWS = 128, COLS = 64, COUNT = ROWS * COLS };
enum { STALE = 8, TICKS = 1500 };
static const float RATE = 0.03f;

typedef struct message {
    uint64_t version;
    unsigned char payload[TENSORS][GCOMP_BOUND(COUNT)];
    size_t length[TENSORS];
} message;

typedef struct worker {
    gcomp *up; /* residuals of its gradients */
    float weights[TENSORS][COUNT], gradient[COUNT];
    uint64_t version, pushes;
    message push;
    int has_push; /* 0: its gradient was not finite */
} worker;

typedef struct server {
    float weights[TENSORS][COUNT];
    uint64_t version;
    gcomp *down[WORKERS]; /* residuals of its answers */
    float untold[WORKERS][TENSORS][COUNT];
    size_t bytes_up, bytes_down, refused;
} server;

typedef enum verdict { ADDED, REFUSED, INVALID } verdict;

static worker workers[WORKERS];
static server srv;
static message answer;

static gcomp *open_one(const char *codec, uint64_t seed)
{
    static const char *const names[TENSORS] = {"fc1", "fc2"};
    gcomp_desc desc = {0};
    gcomp *gc = NULL;
    desc.codec = codec;
    desc.seed = seed;
    if (gcomp_open(&gc, &desc) != GCOMP_OK) return NULL;
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor tensor = {0};
        tensor.name = names[t];
        tensor.rows = ROWS;
        tensor.cols = COLS;
        if (gcomp_add_tensor(gc, &tensor) != GCOMP_OK) {
            gcomp_close(gc);
            return NULL;
        }
    }
    return gc;
}

/* Each worker has data of its own, with an optimum of its own: optimum + skew. Only the data of all
   workers together has its optimum at `optimum`. */
static float optimum(size_t t, size_t i)
{
    return (float)((int)((i * 2654435761u + t * 977) % 2001) - 1000) / 1000.0f;
}
static float skew(int w) { return 0.1f * (float)(2 * w - WORKERS + 1); }

/* Makes a payload of x and the residual of gc. What is not sent becomes the residual. */
static gcomp_result pack(gcomp *gc, size_t t, uint64_t number, float *x, message *m)
{
    gcomp_result result = gcomp_compress(gc, t, number, x, m->payload[t], sizeof m->payload[t],
                                         &m->length[t]);
    return result != GCOMP_OK ? result
                              : gcomp_commit(gc, t, x, m->payload[t], m->length[t], NULL, NULL, 0);
}

/* Makes a worker's next push. If a later tensor is not finite, the earlier ones go back to the
   residual. */
static gcomp_result make_push(int number)
{
    worker *w = &workers[number];
    gcomp_result result = GCOMP_OK;
    size_t t;
    for (t = 0; t < TENSORS && result == GCOMP_OK; t++) {
        for (size_t i = 0; i < COUNT; i++)
            w->gradient[i] = w->weights[t][i] - optimum(t, i) - skew(number);
        result = pack(w->up, t, w->pushes, w->gradient, &w->push);
    }
    w->push.version = w->version;
    w->pushes++;
    w->has_push = result == GCOMP_OK;
    if (gcomp_result_class(result) != GCOMP_CLASS_RETRY) return result;
    for (t--, result = GCOMP_OK; t-- > 0 && result == GCOMP_OK;)
        result = gcomp_give_back(w->up, t, w->push.payload[t], w->push.length[t]);
    return result;
}

/* Adds weight * the push to the server's weights, and notes it for all workers. Checks first: all
   or nothing. */
static verdict add(const message *m, float weight)
{
    for (size_t t = 0; t < TENSORS; t++)
        if (gcomp_check(m->payload[t], m->length[t], COUNT) != GCOMP_OK) return INVALID;
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_result result = gcomp_decode_add(m->payload[t], m->length[t], -weight,
                                               srv.weights[t], GCOMP_F32, COUNT, NULL);
        for (int w = 0; w < WORKERS && result == GCOMP_OK; w++)
            result = gcomp_decode_add(m->payload[t], m->length[t], -weight, srv.untold[w][t],
                                      GCOMP_F32, COUNT, NULL);
        if (result != GCOMP_OK) return INVALID; /* not after the check */
        srv.bytes_up += m->length[t];
    }
    srv.version++;
    return ADDED;
}

/* Receives a push by the rule of staleness above. */
static verdict receive(const message *m)
{
    uint64_t stale = srv.version - m->version;
    if (m->version > srv.version) return INVALID;
    if (stale > STALE) {
        srv.refused++;
        return REFUSED;
    }
    return add(m, RATE / (float)(1 + stale));
}

/* Sends a worker the updates that it does not have yet, compressed, and the verdict on its push. A
   push that was not added goes back to the worker's residual. */
static gcomp_result tell(int number, verdict v)
{
    worker *w = &workers[number];
    gcomp_result result = GCOMP_OK;
    for (size_t t = 0; t < TENSORS && result == GCOMP_OK; t++) {
        result = pack(srv.down[number], t, srv.version, srv.untold[number][t], &answer);
        memset(srv.untold[number][t], 0, sizeof srv.untold[number][t]);
        srv.bytes_down += answer.length[t];
        if (result == GCOMP_OK) /* from here on at the worker */
            result = gcomp_decode_add(answer.payload[t], answer.length[t], 1, w->weights[t],
                                      GCOMP_F32, COUNT, NULL);
        if (result == GCOMP_OK && v != ADDED && w->has_push)
            result = gcomp_give_back(w->up, t, w->push.payload[t], w->push.length[t]);
    }
    w->version = srv.version;
    return result;
}

static double distance(void)
{
    double sum = 0;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < COUNT; i++) {
            double d = (double)srv.weights[t][i] - (double)optimum(t, i);
            sum += d * d / (TENSORS * COUNT);
        }
    return sum;
}

/* The largest |server's weights - worker's weights - what the worker has not been told|. */
static double unaccounted(int w)
{
    double most = 0;
    for (size_t t = 0; t < TENSORS; t++) {
        gcomp_tensor_info info;
        if (gcomp_tensor_get(srv.down[w], t, &info) != GCOMP_OK) return 1;
        for (size_t i = 0; i < COUNT; i++) {
            double d = (double)srv.weights[t][i] - (double)workers[w].weights[t][i] -
                (double)srv.untold[w][t][i] - (double)info.residual[i];
            most = d > most ? d : -d > most ? -d : most;
        }
    }
    return most;
}

static int begin(void)
{
    int good = 1;
    memset(&srv, 0, sizeof srv);
    memset(workers, 0, sizeof workers);
    for (int w = 0; w < WORKERS; w++) {
        workers[w].up = open_one("topk:density=0.1+int:bits=4", (uint64_t)w);
        srv.down[w] = open_one("int:bits=4", (uint64_t)(100 + w));
        good &= workers[w].up && srv.down[w];
    }
    return good;
}

static int end(const char *name, int good)
{
    double lost = 0, each = (double)(srv.version + 1) * TENSORS * COUNT / 8;
    for (int w = 0; w < WORKERS; w++) {
        double d = good ? unaccounted(w) : 0;
        lost = d > lost ? d : lost;
        gcomp_close(workers[w].up);
        gcomp_close(srv.down[w]);
    }
    printf("%-13s %llu pushes added, %zu refused; %.1f bits up and %.1f down an "
           "element; distance %.4f; unaccounted %.0e\n",
           name, (unsigned long long)srv.version, srv.refused, (double)srv.bytes_up / each,
           (double)srv.bytes_down / each, distance(), lost);
    return good && lost < 1e-4 && distance() < 0.01;
}

/* All workers push, then all get an answer: versions never differ by more than one round. */
static int together(void)
{
    int good = begin();
    for (int round = 0; round < 100 && good; round++) {
        for (int w = 0; w < WORKERS && good; w++) {
            good = make_push(w) == GCOMP_OK;
            if (good && workers[w].has_push) good = add(&workers[w].push, RATE) == ADDED;
        }
        for (int w = 0; w < WORKERS && good; w++) good = tell(w, ADDED) == GCOMP_OK;
    }
    return end("together:", good);
}

/* Each worker pushes at its own pace. Worker 3 sleeps for a while, and its next push is too old. */
static int apart(void)
{
    static const int pace[WORKERS] = {5, 6, 7, 8};
    int good = begin(), invalid = 0;
    for (int w = 0; w < WORKERS && good; w++) good = make_push(w) == GCOMP_OK;
    for (int tick = 1; tick <= TICKS && good; tick++)
        for (int w = 0; w < WORKERS && good; w++) {
            verdict v = ADDED;
            if (tick % pace[w] || (w == 3 && tick > 400 && tick < 450)) continue;
            if (workers[w].has_push) v = receive(&workers[w].push);
            good = tell(w, v) == GCOMP_OK && make_push(w) == GCOMP_OK;
            invalid += v == INVALID;
        }
    return end("apart:", good && srv.refused == 1 && invalid == 0);
}

int main(int argc, char **argv)
{
    int good;
    args_none(argc, argv, "usage: server\n  a parameter server with workers that come and go\n");
    good = together();
    return apart() && good ? 0 : 1;
}
