/* elastic.c - workers that come and go: four processes train over sockets, one is killed in the
   midst of a step, three go on, a new one joins, and all end with the same weights.

   Shows     gcomp_sockets_team (gcomp_sockets.h): who is left, ranks for those who stay, newcomers;
             gcomp_regroup and gcomp_join; gcomp_recover.h, which brings the weights to a newcomer
   Leaves    the model: softmax regression on samples that are made here
   Build     cc -O2 -I. -Iexamples/adapters examples/elastic.c gcomp_impl.c -o build/elastic -lm -pthread
   Run       build/elastic                    forks all workers, and checks how they end
             build/elastic --rank R --world W --root HOST:PORT --steps N     one worker
             build/elastic --join --root HOST:PORT                           a newcomer
             The environment's JOB_SECRET is the secret of all workers. Kill one, start another. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "gcomp_sockets.h" /* includes gcomp.h */
#include "gcomp_recover.h"
#include "args.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>

#define MOST 64 /* workers */
enum { INPUTS = 64, CLASSES = 10, COUNT = INPUTS * CLASSES, BATCH = 32 };
enum { VICTIM = 2, DIES = 30, AFTER = 60 }; /* of the run that forks all workers */

typedef struct options {
    int rank, world, join, alone; /* alone: one worker, by hand */
    char root[80];
    uint64_t steps;
} options;

typedef struct worker {
    gcomp_sockets_team *team;
    gcomp *gc;
    float weights[COUNT], momentum[COUNT], grad[COUNT];
    float *state[2];
    size_t count[2];
    gcomp_recover recover; /* its comm is that of now */
    uint64_t end;          /* the step at which training ends */
    uint64_t random;
    int first_rank, is_new;
    float loss;
} worker;

static float uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 16777216.0f - 0.5f;
}

/* A sample, and its class: that of the nearest of ten fixed directions. */
static int sample(uint64_t *random, float x[INPUTS])
{
    float best = -1e9f;
    int class = 0;
    for (int i = 0; i < INPUTS; i++) x[i] = uniform(random);
    for (int c = 0; c < CLASSES; c++) {
        uint64_t fixed = (uint64_t)c + 99;
        float dot = 0;
        uniform(&fixed);
        for (int i = 0; i < INPUTS; i++) dot += x[i] * uniform(&fixed);
        if (dot > best) best = dot, class = c;
    }
    return class;
}

/* grad <- the gradient of a batch; the loss too. */
static void backward(worker *w)
{
    memset(w->grad, 0, sizeof w->grad);
    w->loss = 0;
    for (int b = 0; b < BATCH; b++) {
        float x[INPUTS], out[CLASSES], sum = 0;
        const int class = sample(&w->random, x);
        for (int c = 0; c < CLASSES; c++) {
            out[c] = 0;
            for (int i = 0; i < INPUTS; i++) out[c] += x[i] * w->weights[c * INPUTS + i];
            out[c] = expf(out[c]);
            sum += out[c];
        }
        w->loss -= logf(out[class] / sum) / BATCH;
        for (int c = 0; c < CLASSES; c++) {
            const float slope = (out[c] / sum - (c == class)) / BATCH;
            for (int i = 0; i < INPUTS; i++) w->grad[c * INPUTS + i] += slope * x[i];
        }
    }
}

static void optimizer_step(worker *w)
{
    for (int i = 0; i < COUNT; i++) {
        w->momentum[i] = 0.9f * w->momentum[i] + w->grad[i];
        w->weights[i] -= 1.0f * w->momentum[i];
    }
}

static int dies_in_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    (void)user, (void)mine, (void)all, (void)bytes;
    raise(SIGKILL);
    return 1;
}

/* An object with one tensor. Returns 0 or 1. */
static int open_object(worker *w)
{
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    desc.codec = "topk:density=0.05";
    desc.comm = gcomp_sockets_comm(w->team->net);
    tensor.name = "weights";
    tensor.rows = CLASSES;
    tensor.cols = INPUTS;
    tensor.codec = desc.codec;
    return gcomp_open(&w->gc, &desc) || gcomp_add_tensor(w->gc, &tensor);
}

/* After all have met: the object takes the new workers, and all get the same state and step.
   Returns 0; 1: another worker was lost meanwhile. */
static int agree(worker *w)
{
    const gcomp_comm comm = gcomp_sockets_comm(w->team->net);
    int differ, rank;
    w->recover.comm = comm;
    if (w->gc ? gcomp_regroup(w->gc, &comm, NULL) != GCOMP_OK : open_object(w)) {
        fprintf(stderr, "%s\n", w->gc ? gcomp_error(w->gc) : "gcomp_open fails");
        exit(1);
    }
    if (gcomp_sockets_team_bring(w->team, w->gc, w->is_new) ||
        gcomp_recover_differs(&w->recover, gcomp_step_number(w->gc), &differ, &rank))
        return 1;
    /* residuals stay, unless a worker has committed a step that another has not */
    if (differ ? gcomp_recover_all(&w->recover, w->gc) : gcomp_recover_begin(&w->recover)) return 1;
    return gcomp_recover_compare(&w->recover);
}

/* Rank 0 says who is here. */
static void say(const worker *w)
{
    const gcomp_sockets_team *t = w->team;
    if (t->rank) return;
    printf("step %3llu: %d workers", (unsigned long long)gcomp_step_number(w->gc), t->world);
    for (int i = 0; i < t->gone_count; i++) printf(", rank %d is gone", t->gone[i]);
    for (int i = 0; i < t->world; i++)
        if (t->was[i] < 0) printf(", rank %d is new", i);
        else if (t->was[i] != i) printf(", rank %d was %d", i, t->was[i]);
    printf("\n");
    fflush(stdout);
}

/* Meets those who are left and those who are new. Returns 0 or 1. */
static int regroup(worker *w, const options *o)
{
    for (int tries = 0; tries < 10; tries++) {
        const int error = gcomp_sockets_team_regroup(w->team, 60, 1);
        if (error) {
            fprintf(stderr, "worker %d: nobody is left: %s\n", w->first_rank, strerror(error));
            return 1;
        }
        if (agree(w)) continue;
        if (w->team->joined && !o->alone) w->end = gcomp_step_number(w->gc) + AFTER;
        w->is_new = 0;
        say(w);
        return 0;
    }
    return 1;
}

/* Trains until `end`. Returns 0 or 1. */
static int train(worker *w, const options *o)
{
    while (gcomp_step_number(w->gc) < w->end) {
        int waiting = 0;
        if (gcomp_sockets_team_asks(w->team, &waiting) || waiting) {
            if (regroup(w, o)) return 1;
            continue;
        }
        if (!o->alone && w->first_rank == VICTIM && gcomp_step_number(w->gc) == DIES) {
            gcomp_comm comm = w->recover.comm;
            comm.allgather = dies_in_allgather;
            if (gcomp_regroup(w->gc, &comm, NULL)) return 1;
        }
        backward(w);
        {
            void *grads[1] = {w->grad};
            const gcomp_result result = gcomp_exchange(w->gc, grads, NULL);
            if (result == GCOMP_OK) {
                optimizer_step(w);
                continue;
            }
            if (result != GCOMP_CALLBACK_FAILED) {
                fprintf(stderr, "%s\n", gcomp_error(w->gc));
                return 1;
            }
            if (regroup(w, o)) return 1;
        }
    }
    return gcomp_recover_compare(&w->recover);
}

/* One worker, from its first meeting to the end. *digest <- that of its weights. Returns 0 or 1. */
static int work(const options *o, uint64_t *digest)
{
    worker *w = (worker *)calloc(1, sizeof *w);
    gcomp_sockets_desc desc = {0};
    char host[80], *colon;
    int error, failed;
    if (!w) return 1;
    snprintf(host, sizeof host, "%s", o->root);
    colon = strrchr(host, ':');
    *colon = 0;
    desc.host = host;
    desc.port = colon + 1;
    desc.rank = o->rank;
    desc.world = o->world;
    desc.secret = getenv("JOB_SECRET");
    desc.rendezvous = 60;
    error = o->join ? gcomp_sockets_team_join(&w->team, &desc)
                    : gcomp_sockets_team_start(&w->team, &desc);
    if (error) {
        fprintf(stderr, "worker %d does not meet the others: %s\n", o->rank, strerror(error));
        free(w);
        return 1;
    }
    w->first_rank = o->join ? -1 : o->rank;
    w->is_new = o->join;
    w->random = 7 * (uint64_t)(o->join ? 1000 + getpid() : o->rank) + 1;
    w->end = o->steps;
    w->state[0] = w->weights, w->state[1] = w->momentum;
    w->count[0] = w->count[1] = COUNT;
    w->recover.state = w->state;
    w->recover.count = w->count;
    w->recover.states = 2;
    failed = agree(w) && regroup(w, o);
    if (!failed && w->is_new && !o->alone) w->end = gcomp_step_number(w->gc) + AFTER;
    w->is_new = 0;
    if (!failed) {
        say(w);
        failed = train(w, o);
    }
    if (!failed && !w->team->rank)
        printf("step %3llu: the loss is %.2f, and all have the same weights\n",
               (unsigned long long)gcomp_step_number(w->gc), w->loss);
    failed = failed || !(w->loss < 1.8f); /* untrained: log(10) = 2.3 */
    *digest = gcomp_recover_digest(w->weights, COUNT);
    fflush(stdout);
    gcomp_close(w->gc);
    gcomp_sockets_team_close(w->team);
    free(w);
    return failed;
}

/* A worker as a process, which writes its digest to the pipe. */
static pid_t begin(const options *o, int pipe_in)
{
    const pid_t child = fork();
    uint64_t digest;
    if (child) return child;
    if (work(o, &digest) || write(pipe_in, &digest, sizeof digest) != sizeof digest) _exit(1);
    _exit(0);
}

/* All workers as processes of this one. Returns 0 or 1. */
static int run_all(options *o)
{
    enum { WORLD = 4 };
    pid_t children[WORLD + 1];
    uint64_t digests[WORLD];
    int ends[2], how, wrong = 0;
    setenv("JOB_SECRET", "only of this example", 0);
    if (pipe(ends)) return 1;
    o->world = WORLD;
    o->steps = 1000000; /* until a newcomer has come */
    for (int w = 0; w < WORLD; w++) {
        o->rank = w;
        children[w] = begin(o, ends[1]);
    }
    wrong |= waitpid(children[VICTIM], &how, 0) != children[VICTIM] || !WIFSIGNALED(how);
    printf("the worker of rank %d was killed in the midst of step %d\n", VICTIM, DIES);
    fflush(stdout);
    o->join = 1;
    children[WORLD] = begin(o, ends[1]);
    for (int w = 0; w <= WORLD; w++)
        if (w != VICTIM)
            wrong |= waitpid(children[w], &how, 0) != children[w] || !WIFEXITED(how) ||
                WEXITSTATUS(how) != 0;
    close(ends[1]);
    for (int w = 0; w < WORLD && !wrong; w++)
        wrong |= read(ends[0], &digests[w], sizeof *digests) != sizeof *digests ||
            digests[w] != digests[0];
    printf("%s\n", wrong ? "FAILED: a worker failed, or weights differ"
                         : "checked: 4 workers ended with the same weights, to the bit");
    return wrong;
}

static const char usage[] =
    "usage: elastic                                                 forks all workers, and checks how they end\n"
    "       elastic --rank R --world W [--root HOST:PORT] [--steps N]    one worker\n"
    "       elastic --join [--root HOST:PORT] [--steps N]                a newcomer\n"
    "  --rank R           from 0 to W - 1\n"
    "  --world W          how many workers begin, up to " ARGS_TEXT(MOST) "\n"
    "  --root HOST:PORT   where rank 0 listens; without it 127.0.0.1:7077\n"
    "  --steps N          how many steps they take; without it 2000\n"
    "JOB_SECRET in the environment is the secret of all workers.\n";

int main(int argc, char **argv)
{
    options o = {-1, 0, 0, 0, "", 2000};
    uint64_t digest;
    args_help(argc, argv, usage);
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        char *end = NULL;
        const long number = strtol(value, &end, 10);
        const int good = *value && !*end && number >= 0 && number <= 1000000;
        if (!strcmp(name, "--join")) {
            o.join = 1;
            continue;
        }
        if (strcmp(name, "--rank") && strcmp(name, "--world") && strcmp(name, "--steps") && strcmp(name, "--root"))
            return args_wrong(argv[0], name, NULL);
        if (!strcmp(name, "--rank") && good) o.rank = (int)number;
        else if (!strcmp(name, "--world") && good && number <= MOST) o.world = (int)number;
        else if (!strcmp(name, "--steps") && good) o.steps = (uint64_t)number;
        else if (!strcmp(name, "--root") && strrchr(value, ':') && strlen(value) < sizeof o.root)
            snprintf(o.root, sizeof o.root, "%s", value);
        else return args_wrong(argv[0], name, value);
        i++;
    }
    o.alone = o.join || o.rank >= 0;
    if (!o.join && o.alone && o.rank >= o.world) return args_clash(argv[0], "--rank is not below --world");
    if (!o.alone && o.world) return args_clash(argv[0], "--world needs --rank or --join");
    if (!o.root[0]) {
        char port[8] = "7077";
        const int error = o.alone ? 0 : gcomp_sockets_free_port(port);
        if (error) return fprintf(stderr, "no port on 127.0.0.1: %s\n", strerror(error)), 1;
        snprintf(o.root, sizeof o.root, "127.0.0.1:%s", port);
    }
    return o.alone ? work(&o, &digest) : run_all(&o);
}
