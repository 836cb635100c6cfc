/* train_options.h - the command line of train.c:

     --method CODEC    train with this codec; may be given again. A list of codecs with its schedule
                       is a method too: 'powersgd:rank=4|powersgd:rank=1@accordion:every=1'.
                       --method all: every method of the library. --method advise: for each tensor
                       what gcomp_advise.h finds, mostly nothing where workers are threads.
                       'sign%int8' is sign with desc.residual = "int8"; % stands behind @SCHEDULE
     --alone           no uncompressed run; the table compares with the first method
     --steps N, --epochs N, --seed S
     --workers N       4 if it is not given
     --text FILE       learn the next byte of a text instead of the images
     --hidden A,B      widths of the hidden layers
     --rate R          one learning rate for all steps
     --aggregate WAY   gather, shards or two-shot: how payloads become a mean, see gcomp_aggregate
     --out DIR         where files and pictures go; build if it is not given
     --no-pictures
     --interface NAME  also write the bytes of this network interface into runs.csv

     --transport threads   workers are threads
     --transport sockets   workers are processes. All of them run here, or with --rank R
                           --root HOST:PORT this process is one of them, and rank 0 listens there.
                           All need the same GCOMP_SECRET in the environment, or none
     --transport mpi       workers are ranks, with mpirun -n 4 build/train_mpi. --in-order gives its
                           sums the bits of the other transports

     --errors     train uncompressed only; show bits and error of every codec on one gradient
     --accuracy   topk, sign and powersgd with three seeds (or --seeds N), and bars for loss and
                  accuracy
     --accordion  the same with powersgd of rank 4, and of rank 4 or 1 as accordion chooses
     --dgc        the same over 20 epochs with dgc three ways, and with as few elements of topk
     --residuals  int:bits=4 and sign with residuals of fp32, bf16 and int8: the loss of the small
                  ones is compared with that of fp32 */

#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include "train_experiments.h"
#include "train_workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_WORKERS 64 /* at most */

static const char train_usage[] =
    "usage: train [OPTION]...\n"
    "  what is trained, instead of the demo:\n"
    "    --errors               uncompressed only; bits and error of every codec on one gradient\n"
    "    --accuracy             topk, sign and powersgd with three seeds, and bars\n"
    "    --accordion            powersgd of rank 4, and of rank 4 or 1 as accordion chooses\n"
    "    --dgc                  20 epochs with dgc three ways, and with topk\n"
    "    --residuals            residuals of fp32, bf16 and int8\n"
    "    --method CODEC         this codec; may be given again. 'CODEC|CODEC@SCHEDULE%RESIDUAL', all, or advise\n"
    "    --alone                no uncompressed run before\n"
    "  how:\n"
    "    --steps N | --epochs N\n"
    "    --seed N, --seeds 1.." ARGS_TEXT(TRAIN_SEEDS) "\n"
    "    --text FILE            learns the next byte of a text instead of the images\n"
    "    --hidden A,B           widths of the hidden layers\n"
    "    --rate R               one learning rate for all steps\n"
    "    --aggregate gather|shards|two-shot\n"
    "  who:\n"
    "    --workers 1.." ARGS_TEXT(TRAIN_WORKERS) "\n"
    "    --transport " TRAIN_TRANSPORTS "\n"
    "    --rank N --root HOST:PORT   of sockets: this process is one of the workers\n"
    "    --in-order             of mpi: sums with the bits of the other transports\n"
    "  what is written:\n"
    "    --out DIR              files and pictures go there; build if it is not given\n"
    "    --no-pictures\n"
    "    --interface NAME       the bytes of this network interface too\n";

typedef struct train_options {
    const train_experiment *experiment;
    const char *methods[TRAIN_RUNS];
    size_t method_count;
    train_workers workers;
    size_t steps;
    size_t epochs; /* if not 0, instead of steps */
    uint64_t seed;
    size_t seeds;
    const char *out;
    const char *text; /* NULL: the images, if they are there */
    size_t hidden[2]; /* widths of the hidden layers; 0: by the data */
    float rate;       /* one learning rate for all steps; 0: by the experiment */
    const char *interface;
    int no_pictures;
    int alone; /* the methods named, without an uncompressed run before them */
    gcomp_aggregate aggregate;
} train_options;

/* Splits "CODEC|CODEC@SCHEDULE%RESIDUAL" into desc.codec, desc.schedule and desc.residual.
   codec[capacity] holds the texts of the first two, which gcomp_open reads. "advise" is "none"
   here: its choices are set for each tensor. */
static inline void train_name_method(gcomp_desc *desc, const char *method, char *codec,
                                     size_t capacity)
{
    const char *kept = strchr(method, '%');
    char *at;
    if (!strcmp(method, "advise")) method = "none";
    snprintf(codec, capacity, "%.*s", kept ? (int)(kept - method) : (int)strlen(method), method);
    at = strchr(codec, '@');
    if (at) *at = 0;
    desc->codec = codec;
    desc->schedule = at ? at + 1 : NULL;
    desc->residual = kept ? kept + 1 : NULL;
}

/* Finds a wrong codec before the first run begins. Returns 0, or the exit status after saying what is wrong. */
static inline int train_check_methods(const train_options *o)
{
    for (size_t i = 0; i < o->method_count; i++) {
        gcomp_desc desc = {0};
        char why[256] = "", list[256];
        gcomp *gc;
        train_name_method(&desc, o->methods[i], list, sizeof list);
        desc.why = why;
        desc.why_capacity = sizeof why;
        if (gcomp_open(&gc, &desc) != GCOMP_OK) {
            fprintf(stderr, "--method %s: %s\n", o->methods[i], why);
            return 2;
        }
        gcomp_close(gc);
    }
    return 0;
}

/* The way to aggregate of that name, AUTO for any other text. */
static inline gcomp_aggregate train_aggregate(const char *text)
{
    if (!strcmp(text, "gather")) return GCOMP_AGGREGATE_GATHER;
    if (!strcmp(text, "shards")) return GCOMP_AGGREGATE_SHARDS;
    return !strcmp(text, "two-shot") ? GCOMP_AGGREGATE_TWO_SHOT : GCOMP_AGGREGATE_AUTO;
}

/* Reads an option and its value. Returns 0, 1 if the value is wrong, or 2 if there is no such option. */
static inline int train_option(train_options *o, const char *name, const char *value)
{
    const struct {
        const char *name;
        size_t most, *number;
    } numbers[] = {{"--steps", 10000000, &o->steps},
                   {"--epochs", 10000, &o->epochs},
                   {"--seeds", TRAIN_SEEDS, &o->seeds}};
    const struct {
        const char *name, **text;
    } texts[] = {{"--interface", &o->interface},
                 {"--root", &o->workers.root},
                 {"--out", &o->out},
                 {"--text", &o->text}};
    const size_t small = args_number(value, TRAIN_WORKERS);
    const int all = !strcmp(value, "all");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name))
            return !(*numbers[i].number = args_number(value, numbers[i].most));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(name, texts[i].name)) return !*(*texts[i].text = value);
    if (!strcmp(name, "--seed")) return !(o->seed = args_number(value, 1000000000));
    if (!strcmp(name, "--workers")) return !(o->workers.world = (int)small);
    if (!strcmp(name, "--rank")) return (o->workers.rank = (int)small) == 0 && strcmp(value, "0");
    if (!strcmp(name, "--hidden"))
        return sscanf(value, "%4zu,%4zu", &o->hidden[0], &o->hidden[1]) != 2;
    if (!strcmp(name, "--rate")) return !((o->rate = strtof(value, NULL)) > 0);
    if (!strcmp(name, "--aggregate"))
        return (o->aggregate = train_aggregate(value)) == GCOMP_AGGREGATE_AUTO;
    if (!strcmp(name, "--transport"))
        return o->workers.transport = value, !train_workers_know(value);
    if (strcmp(name, "--method")) return 2;
    if (!*value) return 1;
    for (size_t i = 1; i == 1 || (all && gcomp_method_name(i)); i++) {
        if (o->method_count + 1 == TRAIN_RUNS / 3) return !all;
        o->methods[o->method_count++] = all ? gcomp_method_name(i) : value;
    }
    return 0;
}

/* Fills in the experiment's defaults for options that were not given. Returns NULL, or which options
   do not go together. */
static inline const char *train_complete(train_options *o)
{
    const train_experiment *e = o->experiment;
    if (o->alone && e->kind != DEMO) return "--alone is of the demo";
    if (o->steps && o->epochs) return "--steps or --epochs";
    if (o->seeds > 1 && !train_is_judged(e)) return "--seeds is of the experiments that have bars";
    if (!o->seeds) o->seeds = e->seeds;
    if (!o->steps && !o->epochs) o->epochs = e->epochs;
    if (!o->steps) o->steps = e->steps ? e->steps : 1;
    if (e->kind == ERRORS) o->method_count = 0;
    if (!o->method_count)
        while (e->methods[o->method_count])
            o->methods[o->method_count] = e->methods[o->method_count], o->method_count++;
    return NULL;
}

/* Reads the command line. Returns 0, or the exit status after saying what is wrong. */
static inline int train_read_options(train_options *o, int argc, char **argv)
{
    const struct {
        const char *name;
        int *on;
    } flags[] = {{"--in-order", &o->workers.in_order},
                 {"--no-pictures", &o->no_pictures},
                 {"--alone", &o->alone}};
    const size_t flag_count = sizeof flags / sizeof *flags;
    const char *clash;
    args_help(argc, argv, train_usage);
    memset(o, 0, sizeof *o);
    o->experiment = train_experiments;
    o->workers.world = 4;
    o->workers.rank = -1;
    o->seed = 1;
    o->out = "build";
    for (int i = 1; i < argc; i++) {
        const train_experiment *e = train_find_experiment(argv[i]);
        size_t f = 0;
        while (f < flag_count && strcmp(argv[i], flags[f].name)) f++;
        if (f < flag_count) {
            *flags[f].on = 1;
        } else if (e) {
            if (o->experiment != train_experiments && o->experiment != e)
                return args_clash(argv[0], "there is one experiment at a time");
            o->experiment = e;
        } else {
            const char *value = i + 1 < argc ? argv[i + 1] : "";
            const int wrong = train_option(o, argv[i], value);
            if (wrong) return args_wrong(argv[0], argv[i], wrong == 2 ? NULL : value);
            i++;
        }
    }
    clash = train_complete(o);
    return clash ? args_clash(argv[0], clash) : train_check_methods(o);
}

#endif /* TRAIN_OPTIONS_H */
