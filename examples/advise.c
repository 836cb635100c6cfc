/* advise.c - does compressing pay, for this model, on this machine, over which link?

   Shows     gcomp_advise, gcomp_advise_link_of, gcomp_advise_link_measure (gcomp_advise.h)
   Build     make build/advise
   Run       build/advise [OPTION...] [CODEC...]     --help lists the options
             build/advise --rank R --root HOST:PORT [OPTION...] [CODEC...]
             the same on each of W machines

   The workers are two threads of this process. They measure the candidates at the same time, as
   they would work. Then the adviser is asked about four links, and about the memory that the
   threads share. Steps are taken as it says, over a transport that is slowed down to the link, and
   the program prints the time that the adviser expected (and the link's part of it) beside the time
   they took. Behind the advice it says how the means are made: by ranges (block payloads: in two
   shots), by a gather, or by a sum of halves.

   With --rank the workers are processes that meet over TCP, and the link between them is measured.
   All need the same GCOMP_SECRET in the environment, or none. With --each the adviser is also asked
   about "none" alone, and about "none" and each candidate. More than two workers share what cores
   there are: then the times of the processor are those of a machine that is too busy. */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif

#include "gcomp.h" /* implemented in build/gcomp.o */

#include "gcomp_advise.h"
#include "args.h"
#include "gcomp_recover.h"
#include "gcomp_sockets.h"
#include "gcomp_threads.h"

#include <stdio.h>
#include <stdlib.h>

/* The matrices of ResNet-18, convolutions as output channels x all else, and its vectors. */
static const struct {
    const char *name;
    size_t rows, cols, count;
} shapes[] = {{"conv1", 64, 147, 1},    {"layer1", 64, 576, 4},       {"layer2.0", 128, 576, 1},
              {"layer2", 128, 1152, 3}, {"layer2.down", 128, 64, 1},  {"layer3.0", 256, 1152, 1},
              {"layer3", 256, 2304, 3}, {"layer3.down", 256, 128, 1}, {"layer4.0", 512, 2304, 1},
              {"layer4", 512, 4608, 3}, {"layer4.down", 512, 256, 1}, {"fc", 1000, 512, 1},
              {"fc.bias", 1000, 0, 1},  {"norm", 240, 0, 40}};
static const struct {
    const char *name;
    double bits_per_second, latency; /* 0: what is measured between the threads */
} links[] = {{"100 Mbit/s", 1e8, 1e-4},
             {"1 Gbit/s", 1e9, 5e-5},
             {"10 Gbit/s", 1e10, 2e-5},
             {"100 Gbit/s", 1e11, 5e-6},
             {"in memory", 0, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes, LINKS = sizeof links / sizeof *links };
#define MOST_WORKERS 64
enum { STEPS = 5, MOST = 64, NOISE = 1 << 16 };

static const char *codecs[GCOMP_ADVISE_CANDIDATES] = {
    "none", "fp16", "int:bits=4", "sign", "topk:density=0.01", "powersgd:rank=4"};
static size_t codec_count = 6, tensor_count, elements;
static gcomp_tensor tensors[MOST];
static float noise[NOISE];
static int workers = 2, one_by_one, link_count = LINKS;
static gcomp_aggregate aggregate = GCOMP_AGGREGATE_AUTO;
static gcomp_optimizer optimizer = GCOMP_OPTIMIZER_UNKNOWN;

typedef struct worker {
    gcomp_threads *group; /* NULL: sockets */
    gcomp_comm comm;
    gcomp_advise_link link;     /* what they are slowed down to; zeros: they are not */
    unsigned char choice[MOST]; /* of candidates, for each tensor: rank 0's */
    int failed;
} worker;

static double seconds(void *user)
{
    struct timespec t;
    (void)user;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits until the time at which the link would have carried the bytes. Returns status. */
static int wait_until(double end, int status)
{
    struct timespec nap = {0, 50000};
    while (seconds(NULL) < end)
        if (end - seconds(NULL) > 2e-4) nanosleep(&nap, NULL);
    return status;
}

static int slow_allreduce(void *user, void *data, size_t count, gcomp_dtype dtype)
{
    const worker *w = (const worker *)user;
    const int whole = dtype == GCOMP_F32 || dtype == GCOMP_I32; /* else halves, or I16 */
    double bytes = (double)count * (dtype == GCOMP_I8 ? 1 : whole ? 4 : 2);
    double end = seconds(NULL) + w->link.sum_start + bytes * w->link.sum_byte;
    return wait_until(end, w->comm.allreduce(w->comm.user, data, count, dtype));
}

static int slow_allgather(void *user, const void *mine, void *all, size_t bytes)
{
    const worker *w = (const worker *)user;
    double end = seconds(NULL) + w->link.gather_start + (double)bytes * w->link.gather_byte;
    return wait_until(end, w->comm.allgather(w->comm.user, mine, all, bytes));
}

static int slow_alltoallv(void *user, const void *send, const size_t *send_bytes, void *recv,
                          const size_t *recv_bytes)
{
    const worker *w = (const worker *)user;
    double bytes = 0, end;
    for (int i = 0; i < workers; i++) bytes += (double)send_bytes[i];
    end = seconds(NULL) + w->link.exchange_start + bytes * w->link.exchange_byte;
    return wait_until(end, w->comm.alltoallv(w->comm.user, send, send_bytes, recv, recv_bytes));
}

static gcomp_desc desc_of(worker *w)
{
    gcomp_desc desc = {0};
    desc.comm.user = w;
    desc.comm.rank = w->comm.rank;
    desc.comm.world = workers;
    desc.comm.allreduce = slow_allreduce;
    desc.comm.allgather = slow_allgather;
    if (w->comm.alltoallv) desc.comm.alltoallv = slow_alltoallv;
    /* no other callbacks: they would have to be slow too */
    desc.aggregate = aggregate;
    desc.optimizer = optimizer;
    desc.comm.allreduce_dtypes = w->comm.allreduce_dtypes;
    desc.clock = seconds;
    return desc;
}

/* bytes[MOST] <- that of rank 0, on all workers. They begin together after it. */
static gcomp_result tell_all(const worker *w, unsigned char bytes[MOST])
{
    /* for each worker of this process */
    static unsigned char all[MOST_WORKERS][MOST_WORKERS * MOST];
    unsigned char *mine = all[w->comm.rank];
    if (w->comm.allgather(w->comm.user, bytes, mine, MOST) != 0) return GCOMP_CALLBACK_FAILED;
    memcpy(bytes, mine, MOST);
    return GCOMP_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of steps that compress as advised. */
static gcomp_result take_steps(worker *w, float *grads, double *step_seconds)
{
    gcomp_desc desc = desc_of(w);
    gcomp_recover recover = {0}; /* there is no model whose weights would be brought together */
    double took[STEPS];
    gcomp *gc = NULL;
    gcomp_result result = gcomp_open(&gc, &desc);
    recover.comm = w->comm;
    for (size_t i = 0; i < tensor_count && result == GCOMP_OK; i++) {
        gcomp_tensor tensor = tensors[i];
        tensor.codec = codecs[w->choice[i]];
        result = gcomp_add_tensor(gc, &tensor);
    }
    /* step -1 touches memory for the first time, and does not count */
    for (int step = -1; step < STEPS && result == GCOMP_OK;) {
        const size_t turn = (size_t)(step + 2 + w->comm.rank) * 12345;
        double from, seconds_taken;
        for (size_t i = 0; i < elements; i++) /* stands for a backward pass */
            grads[i] = noise[(i + i / 1000 * 7 + turn) % NOISE];
        result = tell_all(w, w->choice);
        if (result != GCOMP_OK) break;
        from = seconds(NULL);
        result = gcomp_exchange_flat(gc, grads, NULL);
        seconds_taken = seconds(NULL) - from;
        if (gcomp_recover_after(&recover, gc, result)) break;
        if (result == GCOMP_OK && step >= 0) took[step] = seconds_taken;
        step += result == GCOMP_OK;
        result = GCOMP_OK; /* a step that failed is taken again */
    }
    gcomp_close(gc);
    if (result == GCOMP_OK) {
        qsort(took, STEPS, sizeof *took, ascending);
        *step_seconds = took[STEPS / 2];
    }
    return result;
}

/* How the mean of a tensor is made; 3: a sum of other numbers than halves. */
static const char *const form_names[] = {"by ranges", "gathered", "halves summed"};

static int form_of(const gcomp_advise_choice *choice)
{
    if (choice->form == GCOMP_ALLTOALL) return 0;
    if (choice->form == GCOMP_ALLGATHER) return 1;
    return choice->dtype == GCOMP_F16 || choice->dtype == GCOMP_BF16 ? 2 : 3;
}

static void print_line(const worker *w, const char *link, const gcomp_advice *advice,
                       const gcomp_advise_choice *each, double measured)
{
    double parameters[GCOMP_ADVISE_CANDIDATES] = {0};
    int forms[4] = {0}; /* tensors */
    printf("%-11s %9.2f %9.2f %9.2f %9.2f %6.2f   ", link, 1e3 * advice->plain,
           1e3 * advice->link_seconds, 1e3 * advice->seconds, 1e3 * measured,
           advice->seconds / measured);
    if (!advice->compressed) printf("%s", advice->note ? advice->note : "do not compress");
    for (size_t i = 0; i < tensor_count; i++)
        parameters[w->choice[i]] += (double)(tensors[i].rows *
                                             (tensors[i].cols ? tensors[i].cols : 1));
    for (size_t c = 1; c < codec_count; c++)
        if (parameters[c] > 0)
            printf("%s for %.1f %%  ", codecs[c], 100 * parameters[c] / (double)elements);
    for (size_t i = 0; i < tensor_count; i++)
        forms[form_of(each + i)]++;
    for (int f = 0; f < 3; f++)
        if (forms[f]) printf("(%d %s) ", forms[f], form_names[f]);
    printf("\n");
    fflush(stdout);
}

/* Asks about candidate c beside "none", about "none" alone or about all, and takes the steps. */
static gcomp_result ask_and_try(worker *w, const char *link, const gcomp_advise_question *question,
                                size_t c, float *grads)
{
    gcomp_advise_candidate two[2];
    gcomp_advise_question some = *question;
    gcomp_advise_choice each[MOST];
    gcomp_advice advice;
    gcomp_result result;
    double measured;
    if (c < codec_count) {
        two[0] = question->candidates[0];
        two[1] = question->candidates[c];
        some.candidates = two;
        some.candidate_count = c ? 2 : 1;
    }
    result = gcomp_advise(&some, each, &advice);
    if (result != GCOMP_OK) return result;
    for (size_t i = 0; i < tensor_count; i++)
        w->choice[i] = (unsigned char)(c < codec_count && each[i].choice ? c : each[i].choice);
    result = tell_all(w, w->choice);
    if (result == GCOMP_OK) result = take_steps(w, grads, &measured);
    if (result == GCOMP_OK && w->comm.rank == 0) print_line(w, link, &advice, each, measured);
    return result;
}

static gcomp_result ask_about_links(worker *w, float *grads)
{
    gcomp_advise_candidate candidates[GCOMP_ADVISE_CANDIDATES] = {{0}};
    gcomp_desc desc = desc_of(w);
    gcomp_advise_question question = {0};
    gcomp_advise_link here;
    gcomp_advice advice;
    gcomp_result result;
    char why[256] = "";
    desc.why = why;
    desc.why_capacity = sizeof why;
    for (size_t c = 0; c < codec_count; c++) candidates[c].codec = codecs[c];
    question.desc = &desc;
    question.tensors = tensors;
    question.tensor_count = tensor_count;
    question.candidates = candidates;
    question.candidate_count = codec_count;
    result = gcomp_advise_link_measure(&desc, 0, &here);
    /* The time a byte depends on the size: measure again with the bytes of the model, or with as
       many as take a second. */
    if (result == GCOMP_OK) {
        double second = 1 / (here.gather_byte + 1e-12);
        size_t bytes = second < 4.0 * (double)elements ? (size_t)second : 4 * elements;
        result = gcomp_advise_link_measure(&desc, bytes, &here);
    }
    question.link = here;
    if (result == GCOMP_OK)
        result = gcomp_advise(&question, NULL, &advice); /* the first time it measures */
    if (result != GCOMP_OK && (w->comm.rank == 0 || !w->group)) fprintf(stderr, "%s\n", why);
    for (int l = w->group ? 0 : LINKS - 1; l < (w->group ? link_count : LINKS); l++) {
        const int made_up = links[l].bits_per_second > 0;
        question.link = made_up
            ? gcomp_advise_link_of(links[l].bits_per_second, links[l].latency, workers)
            : here;
        memset(&w->link, 0, sizeof w->link);
        if (made_up) w->link = question.link;
        for (size_t c = one_by_one ? 0 : codec_count; c <= codec_count && result == GCOMP_OK; c++)
            result = ask_and_try(w, w->group ? links[l].name : "this one", &question, c, grads);
    }
    return result;
}

static void *work(void *arg)
{
    worker *w = (worker *)arg;
    float *grads = (float *)malloc(4 * elements);
    gcomp_result result = grads ? ask_about_links(w, grads) : GCOMP_OUT_OF_MEMORY;
    free(grads);
    w->failed = result != GCOMP_OK;
    if (w->failed) {
        fprintf(stderr, "worker %d: %s\n", w->comm.rank, gcomp_result_string(result));
        if (w->group) gcomp_threads_fail(w->group);
    }
    return NULL;
}

static int run_threads(void)
{
    static worker all[MOST_WORKERS];
    pthread_t threads[MOST_WORKERS];
    gcomp_threads *group;
    int failed = 0, started = 0;
    if (gcomp_threads_open(&group, workers, 60.0) != 0) return 1;
    for (; started < workers && !failed; started += !failed) {
        all[started].group = group;
        all[started].comm = gcomp_threads_comm(group, started);
        failed = pthread_create(&threads[started], NULL, work, &all[started]) != 0;
        if (failed) gcomp_threads_fail(group);
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        failed |= all[i].failed;
    }
    gcomp_threads_close(group);
    return failed;
}

static int run_alone(int rank, char *root)
{
    static worker alone;
    gcomp_sockets *net;
    gcomp_sockets_desc desc = {0};
    char *port = strrchr(root, ':'), why[80];
    int error;
    if (!port) return fprintf(stderr, "--root HOST:PORT\n"), 1;
    *port++ = 0;
    desc.rank = rank;
    desc.world = workers;
    desc.host = root;
    desc.port = port;
    desc.secret = getenv("GCOMP_SECRET");
    error = gcomp_sockets_start(&net, &desc);
    if (error) return fprintf(stderr, "rank %d: %s\n", rank, strerror(error)), 1;
    alone.comm = gcomp_sockets_comm(net);
    work(&alone);
    if (gcomp_sockets_lost(net) >= 0)
        fprintf(stderr, "rank %d: %s\n", rank, gcomp_sockets_why(net, why, sizeof why));
    gcomp_sockets_close(net);
    return alone.failed;
}

static const char usage[] =
    "usage: advise [OPTION]... [CODEC]...\n"
    "    --optimizer sgd|adam   the optimizer behind the mean; adam: Adam, AdamW and their like\n"
    "    --workers 2.." ARGS_TEXT(MOST_WORKERS) "\n"
    "    --rank R --root HOST:PORT   this process is one of the workers, rank 0 listens there\n"
    "    --each                 one candidate after the other\n"
    "    --gather               all payloads are gathered\n"
    "    --links 1..5           the first links only\n"
    "    CODEC                  candidates of yours; takes some 20 s without them\n";

/* Reads the command line. Returns 0, or the exit status after saying what is wrong. */
static int read_arguments(int argc, char **argv, int *rank, char **root)
{
    size_t own = 1;
    args_help(argc, argv, usage);
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        gcomp_codec parsed;
        int good;
        if (!strcmp(name, "--each")) one_by_one = 1;
        else if (!strcmp(name, "--gather")) aggregate = GCOMP_AGGREGATE_GATHER;
        else if (strncmp(name, "-", 1)) {
            if (gcomp_codec_parse(&parsed, name, NULL, 0)) return args_wrong(argv[0], "CODEC", name);
            if (own == GCOMP_ADVISE_CANDIDATES) return args_clash(argv[0], "there are too many candidates");
            codecs[own++] = name;
        } else {
            if (!strcmp(name, "--links")) good = (link_count = (int)args_number(value, LINKS)) != 0;
            else if (!strcmp(name, "--workers")) good = (workers = (int)args_number(value, MOST_WORKERS)) > 1;
            else if (!strcmp(name, "--root")) good = *(*root = argv[i + 1 < argc ? i + 1 : i]) != '-';
            else if (!strcmp(name, "--rank"))
                good = (*rank = (int)args_number(value, MOST_WORKERS)) != 0 || !strcmp(value, "0");
            else if (!strcmp(name, "--optimizer")) {
                optimizer = !strcmp(value, "sgd") ? GCOMP_OPTIMIZER_SGD : GCOMP_OPTIMIZER_ADAM;
                good = optimizer == GCOMP_OPTIMIZER_SGD || !strcmp(value, "adam");
            } else return args_wrong(argv[0], name, NULL);
            if (!good) return args_wrong(argv[0], name, value);
            i++;
        }
    }
    if (own > 1) codec_count = own;
    if ((*rank >= 0) != (*root != NULL)) return args_clash(argv[0], "--rank and --root go together");
    if (*rank >= workers) return args_clash(argv[0], "--rank is below --workers");
    return 0;
}

/* Asks for the optimizer, if somebody sits there: whether signs and the largest elements are good candidates depends on it. */
static void ask_for_optimizer(void)
{
    char answer[16] = "";
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        printf("Which optimizer comes behind the mean, sgd or adam? ");
        fflush(stdout);
        if (!fgets(answer, sizeof answer, stdin)) answer[0] = 0;
    }
    if (!strncmp(answer, "sgd", 3)) optimizer = GCOMP_OPTIMIZER_SGD;
    else if (!strncmp(answer, "adam", 4)) optimizer = GCOMP_OPTIMIZER_ADAM;
    else
        printf("The optimizer is not known, and the advice is that for SGD. With Adam some of these codecs train worse:\n"
               "advise --optimizer adam leaves them out.\n");
}

int main(int argc, char **argv)
{
    static char names[MOST][24];
    char *root = NULL;
    int rank = -1, status = read_arguments(argc, argv, &rank, &root);
    if (status) return status;
    if (optimizer == GCOMP_OPTIMIZER_UNKNOWN && rank <= 0) ask_for_optimizer();
    for (size_t s = 0; s < SHAPES; s++)
        for (size_t k = 0; k < shapes[s].count; k++, tensor_count++) {
            snprintf(names[tensor_count], sizeof names[0], "%s.%d", shapes[s].name, (int)k);
            tensors[tensor_count].name = names[tensor_count];
            tensors[tensor_count].rows = shapes[s].rows;
            tensors[tensor_count].cols = shapes[s].cols;
            elements += shapes[s].rows * (shapes[s].cols ? shapes[s].cols : 1);
        }
    /* sums of two uniform numbers */
    for (uint32_t i = 0, x = 1; i < NOISE; i++, x = x * 1664525u + 1013904223u)
        noise[i] = (float)((int)(x >> 8 & 4095) + (int)(x >> 20) - 4095) / 1672.0f;
    if (rank <= 0) {
        printf("ResNet-18, %.1f million parameters, %d workers; milliseconds a step "
               "without the backward pass\n",
               1e-6 * (double)elements, workers);
        printf("%-11s %9s %9s %9s %9s %6s   %s\n", "over", "none", "link", "expected",
               "measured", "ratio", "advice");
    }
    return rank < 0 ? run_threads() : run_alone(rank, root);
}
