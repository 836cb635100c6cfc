/* scale.c - what a step costs one of W workers, for W up to 1,024, all of them objects of this process.

   Shows     processor time of a worker, bytes that it sends and receives, collectives, memory; and from these the seconds of a
             step over links of several speeds: a table, build/scale.csv, and build/scale.svg by gnuplot
   How       the steps of all workers are driven in turns by gcomp_step_next and gcomp_step_done; what they send is copied, and only
             calls of the library are timed. Gradients are normally distributed, with a part that all workers share. After each step
             all workers must have the same mean, bit for bit. Medians over steps
   A step    takes processor time + messages * latency + max(sent, received) / rate. An all-reduce is 2 log2(W) messages behind each
             other, any other collective one
   Run       build/scale [--elements N] [--tensors T] [--workers MOST] [--steps S]; see --help. make scale does it, in minutes */

#define GCOMP_LINKED /* with build/gcomp.o */
#include "measure.h"

enum { MOST_WORKERS = 4096, MOST_TENSORS = 10000, NOISE = 1 << 20 };

static size_t elements = 65536, tensors = 8, most_workers = 1024, steps = 3;

static const char usage[] =
    "usage: scale [OPTION]...\n"
    "Measures what a step costs one of W workers, W = 4, 16, ... 1024.\n"
    "    --elements N     of all tensors together: 65536\n"
    "    --tensors T      matrices of equal size: 8\n"
    "    --workers MOST   at most, up to " ARGS_TEXT(4096) ": 1024. All are objects here: they take memory\n"
    "    --steps S        of which medians are taken: 3\n"
    "    --csv FILE       build/scale.csv\n"
    "    --help\n";

/* A way to make the mean. */
typedef struct way {
    const char *name, *codec;
    size_t group;   /* so many workers are one machine, and count as one; 1: none */
    size_t between; /* a step of so many exchanges; 1: each */
    size_t fixed;   /* workers that exchange, however many there are; 0: all */
} way;

static const way ways[] = {
    {"none", "none", 1, 1, 0},
    {"eden", "eden", 1, 1, 0},
    {"int:bits=4", "int:bits=4", 1, 1, 0},
    {"topk+int:bits=4", "topk:density=0.01+int:bits=4", 1, 1, 0},
    {"the same, global=1", "topk:density=0.01,global=1+int:bits=4", 1, 1, 0},
    {"powersgd:rank=4", "powersgd:rank=4", 1, 1, 0},
    {"int:bits=4, machines of 8", "int:bits=4", 8, 1, 0},
    {"int:bits=4, each 20th step", "int:bits=4", 1, 20, 0}, /* as examples/patterns/outer.c */
    {"sign, two neighbours", "sign", 1, 1, 3},              /* as gossip.c on a ring: like a gather of three */
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct network {
    const char *name;
    double rate, latency; /* bytes and seconds */
} network;

static const network networks[] = {{"100 Mbit/s, 50 ms", 12.5e6, 50e-3},
                                {"100 Mbit/s, 1 ms", 12.5e6, 1e-3},
                                {"1 Gbit/s, 0.1 ms", 125e6, 1e-4},
                                {"10 Gbit/s, 0.02 ms", 1.25e9, 2e-5}};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* What a step costs a worker. */
typedef struct cost {
    double seconds;  /* of a processor */
    double sent, received, frames; /* bytes; frames, the first collective of a step, are part of both */
    double messages; /* behind each other */
    double collectives;
    double memory;
} cost;

typedef struct fleet {
    size_t world;
    gcomp **gc;             /* [world] */
    float *grads;           /* [world][elements] */
    gcomp_request *request; /* [world] */
    double seconds, received, frames, messages, collectives; /* of all workers, or of the step */
} fleet;

static float noise[NOISE];

static float *gradient(const fleet *f, size_t w, size_t t) { return f->grads + w * elements + t * (elements / tensors); }

static void must(gcomp_result result, const fleet *f, const char *call)
{
    if (result == GCOMP_OK) return;
    fprintf(stderr, "%s: %s: %s\n", call, gcomp_result_string(result), f->gc && f->gc[0] ? gcomp_error(f->gc[0]) : "");
    exit(1);
}

/* Never called: the requests are carried out here. Their presence says what the transport can do. */
static int no_sum(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    (void)user, (void)data, (void)count, (void)dtype;
    return 1;
}

static int no_largest(void *user, float *data, size_t count)
{
    (void)user, (void)data, (void)count;
    return 1;
}

static int no_gather(void *user, const void *send, void *recv, size_t bytes)
{
    (void)user, (void)send, (void)recv, (void)bytes;
    return 1;
}

static int no_exchange(void *user, const void *send, const size_t *sent, void *recv, const size_t *came)
{
    (void)user, (void)send, (void)sent, (void)recv, (void)came;
    return 1;
}

static void open_worker(fleet *f, size_t w, const char *codec)
{
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {0};
    char name[24];
    desc.codec = codec;
    desc.comm.rank = (int)w;
    desc.comm.world = (int)f->world;
    desc.comm.allreduce = no_sum;
    desc.comm.allreduce_max = no_largest;
    desc.comm.allgather = no_gather;
    desc.comm.alltoallv = no_exchange;
    must(gcomp_open(&f->gc[w], &desc), f, "gcomp_open");
    for (size_t t = 0; t < tensors; t++) {
        snprintf(name, sizeof name, "t%zu", t);
        tensor.name = name;
        tensor.cols = elements / tensors >= 4096 ? 64 : 32;
        tensor.rows = elements / tensors / tensor.cols;
        must(gcomp_add_tensor(f->gc[w], &tensor), f, "gcomp_add_tensor");
    }
}

/* ---------------- one collective of all workers */

static void gather(fleet *f)
{
    const gcomp_request *first = f->request;
    for (size_t to = 0; to < f->world; to++)
        for (size_t from = 0; from < f->world; from++) {
            memcpy((char *)f->request[to].recv + from * first->stride, f->request[from].send, first->bytes[from]);
            if (from == to) continue;
            f->received += (double)first->bytes[from];
            if (f->collectives == 0) f->frames += (double)first->bytes[from];
        }
}

static void exchange(fleet *f)
{
    const char **from = malloc(f->world * sizeof *from);
    for (size_t w = 0; w < f->world; w++) from[w] = f->request[w].send;
    for (size_t to = 0; to < f->world; to++) {
        char *recv = f->request[to].recv;
        for (size_t w = 0; w < f->world; w++) {
            const size_t bytes = f->request[w].send_bytes[to];
            memcpy(recv, from[w], bytes);
            recv += bytes;
            from[w] += bytes;
            if (w != to) f->received += (double)bytes;
        }
    }
    free(from);
}

/* A sum in the order of workers, or the largest of them. */
static void reduce(fleet *f, int largest)
{
    const size_t count = f->request[0].count;
    float *all = f->request[0].recv;
    if (f->request[0].dtype != GCOMP_F32) { /* comm.allreduce_dtypes names no other type */
        fprintf(stderr, "a sum of type %d\n", (int)f->request[0].dtype);
        exit(1);
    }
    for (size_t w = 1; w < f->world; w++) {
        const float *one = f->request[w].recv;
        for (size_t i = 0; i < count; i++) all[i] = !largest ? all[i] + one[i] : one[i] > all[i] ? one[i] : all[i];
    }
    for (size_t w = 1; w < f->world; w++) memcpy(f->request[w].recv, all, 4 * count);
    f->received += 8.0 * (double)count * (double)(f->world - 1);
}

static void carry_out(fleet *f)
{
    const int sums = f->request[0].kind == GCOMP_ALLREDUCE || f->request[0].kind == GCOMP_ALLREDUCE_MAX;
    if (f->request[0].kind == GCOMP_ALLGATHER) gather(f);
    else if (f->request[0].kind == GCOMP_ALLTOALL) exchange(f);
    else reduce(f, f->request[0].kind == GCOMP_ALLREDUCE_MAX);
    f->collectives++;
    f->messages += sums ? 2 * ceil(log2((double)f->world)) : 1;
}

/* ---------------- a step of all workers */

#define ALL(f, call)                                                                                    \
    do {                                                                                                \
        const double began = thread_seconds();                                                          \
        for (size_t w = 0; w < (f)->world; w++) must(call, f, #call);                                   \
        (f)->seconds += thread_seconds() - began;                                                       \
    } while (0)

static void step(fleet *f, size_t number)
{
    const size_t each = elements / tensors;
    for (size_t w = 0; w < f->world; w++)
        for (size_t i = 0; i < elements; i++)
            f->grads[w * elements + i] = noise[(i + 7919 * w + 104729 * number) % NOISE] + noise[(i + 31 * number) % NOISE];
    f->seconds = f->received = f->frames = f->messages = f->collectives = 0;
    ALL(f, gcomp_step_begin(f->gc[w], NULL));
    for (size_t t = 0; t < tensors; t++) ALL(f, gcomp_step_ready(f->gc[w], t, gradient(f, w, t)));
    for (;;) {
        ALL(f, gcomp_step_next(f->gc[w], &f->request[w]));
        if (f->request[0].kind == GCOMP_DONE) break;
        carry_out(f);
        ALL(f, gcomp_step_done(f->gc[w], f->request[w].id, 0));
    }
    ALL(f, gcomp_step_commit(f->gc[w]));
    for (size_t w = 1; w < f->world; w++)
        for (size_t t = 0; t < tensors; t++)
            if (memcmp(gradient(f, 0, t), gradient(f, w, t), 4 * each) != 0) {
                fprintf(stderr, "worker %zu has another mean of tensor %zu than worker 0\n", w, t);
                exit(1);
            }
}

static cost measure(const way *way, size_t world)
{
    fleet f = {0};
    cost c = {0};
    gcomp_statistics before, after;
    double seconds[100];
    if (way->fixed) world = way->fixed;
    f.world = world / way->group;
    if (f.world < 2) return c; /* one machine alone sends nothing */
    f.gc = calloc(f.world, sizeof *f.gc);
    f.request = calloc(f.world, sizeof *f.request);
    f.grads = malloc(4 * f.world * elements);
    if (!f.gc || !f.request || !f.grads) {
        fprintf(stderr, "no memory for %zu workers\n", f.world);
        exit(1);
    }
    for (size_t w = 0; w < f.world; w++) open_worker(&f, w, way->codec);
    step(&f, 0); /* memory is written to for the first time */
    must(gcomp_stats(f.gc[0], &before), &f, "gcomp_stats");
    for (size_t s = 0; s < steps; s++) {
        step(&f, s + 1);
        seconds[s] = f.seconds / (double)f.world;
    }
    must(gcomp_stats(f.gc[0], &after), &f, "gcomp_stats");
    c.seconds = median(seconds, steps) / (double)way->between;
    c.sent = (double)(after.bytes_out - before.bytes_out) / (double)(steps * way->between);
    c.received = f.received / (double)(f.world * way->between);
    c.frames = f.frames / (double)(f.world * way->between);
    c.messages = f.messages / (double)way->between;
    c.collectives = f.collectives / (double)way->between;
    c.memory = (double)after.memory;
    for (size_t w = 0; w < f.world; w++) gcomp_close(f.gc[w]);
    free(f.gc);
    free(f.request);
    free(f.grads);
    return c;
}

static double seconds_over(const cost *c, const network *l)
{
    const double bytes = c->sent > c->received ? c->sent : c->received;
    return c->seconds + c->messages * l->latency + bytes / l->rate;
}

int main(int argc, char **argv)
{
    static cost costs[WAYS][16];
    size_t worlds[16], count = 0;
    uint64_t random = BENCH_SEED;
    const char *file = "build/scale.csv";
    FILE *csv;
    args_help(argc, argv, usage);
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--csv") && *value) {
            file = value;
            continue;
        }
        size_t *to = !strcmp(argv[i], "--elements") ? &elements : !strcmp(argv[i], "--tensors") ? &tensors
            : !strcmp(argv[i], "--workers") ? &most_workers : !strcmp(argv[i], "--steps") ? &steps : NULL;
        if (!to) return args_wrong(argv[0], argv[i], NULL);
        *to = args_number(value, to == &most_workers ? MOST_WORKERS : to == &tensors ? MOST_TENSORS : to == &steps ? 99 : 1u << 26);
        if (!*to) return args_wrong(argv[0], argv[i], value);
    }
    if (elements % (tensors * 64)) return args_clash(argv[0], "--elements is no multiple of 64 times --tensors");
    for (size_t i = 0; i < NOISE; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) sum += (float)(random_word(&random) >> 40) / (float)(1 << 23) - 1;
        noise[i] = 0.01f * sum;
    }
    for (size_t w = 4; w <= most_workers && count < 16; w *= 4) worlds[count++] = w;
    if (!count) return args_clash(argv[0], "--workers is below 4");
    csv = fopen(file, "w");
    if (!csv) return fprintf(stderr, "%s cannot be written\n", file), 1;
    fprintf(csv, "way,workers,cpu_seconds,sent,received,frames,messages,collectives,memory");
    for (size_t l = 0; l < NETWORKS; l++) fprintf(csv, ",seconds_%zu", l);
    fprintf(csv, "\n");
    printf("%zu tensors of %zu elements; of one worker in one step\n\n", tensors, elements / tensors);
    printf("%-28s %7s %9s %10s %10s %9s %6s %9s\n", "", "workers", "ms of CPU", "KB sent", "KB received", "of frames", "calls", "MB memory");
    for (size_t v = 0; v < WAYS; v++) {
        for (size_t k = 0; k < count; k++) {
            const cost *c = &costs[v][k];
            costs[v][k] = measure(&ways[v], worlds[k]);
            if (c->messages == 0) continue;
            printf("%-28s %7zu %9.3f %10.1f %10.1f %9.1f %6.1f %9.2f\n", ways[v].name, worlds[k], 1e3 * c->seconds, c->sent / 1e3,
                   c->received / 1e3, c->frames / 1e3, c->collectives, c->memory / 1e6);
            fflush(stdout);
            fprintf(csv, "\"%s\",%zu,%.6g,%.0f,%.0f,%.0f,%.2f,%.2f,%.0f", ways[v].name, worlds[k], c->seconds, c->sent, c->received, c->frames,
                    c->messages, c->collectives, c->memory);
            for (size_t l = 0; l < NETWORKS; l++) fprintf(csv, ",%.6g", seconds_over(c, &networks[l]));
            fprintf(csv, "\n");
        }
        fprintf(csv, "\n\n");
    }
    for (size_t l = 0; l < NETWORKS; l++) {
        printf("\nms of a step over %s, with this many workers:\n%-28s", networks[l].name, "");
        for (size_t k = 0; k < count; k++) printf(" %8zu", worlds[k]);
        for (size_t v = 0; v < WAYS; v++) {
            printf("\n%-28s", ways[v].name);
            for (size_t k = 0; k < count; k++)
                if (costs[v][k].messages == 0) printf(" %8s", "");
                else printf(" %8.2f", 1e3 * seconds_over(&costs[v][k], &networks[l]));
        }
        printf("\n");
    }
    return fclose(csv) != 0;
}
