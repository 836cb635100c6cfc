/* transformer_options.h - the command line of transformer.c:

     --optimizer NAME  adamw, adam1bit, signum or demo; see transformer_optimizers.h
     --method CODEC    none, qsgd|sign, vote or dct:top=32 if it is not given. As in train.c it may
                       be "CODEC|CODEC@SCHEDULE%RESIDUAL", or advise; an epoch of a schedule is a
                       twentieth of the steps. "OPTIMIZER/CODEC" names both, and
                       "OPTIMIZER:refresh=K/CODEC" or "OPTIMIZER:rate=R/CODEC" a number too
     --gradients TYPE  fp32 or bf16
     --rate R          the learning rate behind its warm-up; --sign-rate R: that of steps by signs,
                       in rates; .3 for signum and 1 for demo if it is not given
     --refresh K       adam1bit: every K steps a mean gradient moves the second moment; 0: it stays;
                       20 if it is not given
     --steps N, --seed S, --workers N
     --layers L --channels C --heads H --context T --batch B (sequences of a worker)
     --text FILE       instead of Debian's fortunes
     --sample N        characters that are written at the end
     --aggregate WAY, --transport, --rank, --root, --in-order, --interface, --out: as train.c
     --bare            no describing text and no sample, for scripts

     --checkpoint NAME each worker has the file NAME.RANK; with --save-at N it is written before
                       step N, else read before the first
     --nan N           in step N the gradient of the last worker is not a number: all skip it */

#ifndef TRANSFORMER_OPTIONS_H
#define TRANSFORMER_OPTIONS_H

#include "../train/train_options.h" /* train_name_method, train_aggregate, train_workers */
#include "transformer_optimizers.h"

typedef struct transformer_options {
    size_t kind; /* a transformer_kind; TRANSFORMER_KINDS: not given */
    const char *method, *label;
    int halves, bare;
    float rate, sign_rate;
    size_t refresh, steps, seed, sample, save_at, nan, world;
    transformer_shape shape;
    train_workers workers;
    const char *text, *out, *interface, *checkpoint;
    gcomp_aggregate aggregate;
} transformer_options;

static const char transformer_usage[] =
    "usage: transformer [OPTION]...\n"
    "    --optimizer adamw|adam1bit|signum|demo\n"
    "    --method CODEC         as in train; OPTIMIZER/CODEC names both; adamw takes advise too\n"
    "    --gradients fp32|bf16\n"
    "    --rate R, --sign-rate R, --refresh K\n"
    "    --steps N, --seed N\n"
    "    --layers L, --channels C, --heads H (the channels are a multiple of them), --context T\n"
    "    --batch B              sequences of a worker\n"
    "    --text FILE            instead of Debian's fortunes\n"
    "    --sample N             characters that are written at the end\n"
    "    --aggregate gather|shards|two-shot\n"
    "    --workers 1.." ARGS_TEXT(TRAIN_WORKERS) ", --transport " TRAIN_TRANSPORTS ", --rank N --root HOST:PORT, --in-order\n"
    "    --out DIR, --interface NAME, --bare\n"
    "    --checkpoint NAME, --save-at N, --nan N\n";

/* The kind whose name the first `length` characters are; TRANSFORMER_KINDS if there is none. */
static inline size_t transformer_kind_of(const char *name, size_t length)
{
    size_t k = 0;
    while (k < TRANSFORMER_KINDS &&
           (strlen(transformer_kinds[k]) != length || strncmp(transformer_kinds[k], name, length)))
        k++;
    return k;
}

/* Reads an option and its value. Returns 0, 1 if the value is wrong, or 2 if there is no such option. */
static inline int transformer_option(transformer_options *o, const char *name, const char *value)
{
    const struct {
        const char *name;
        size_t most, *number;
        int zero; /* 1: it may be 0 */
    } numbers[] = {{"--steps", 10000000, &o->steps, 0},
                   {"--seed", 1000000000, &o->seed, 0},
                   {"--workers", TRAIN_WORKERS, &o->world, 0},
                   {"--layers", TRANSFORMER_LAYERS - 1, &o->shape.layers, 0},
                   {"--channels", 4096, &o->shape.channels, 0},
                   {"--heads", 256, &o->shape.heads, 0},
                   {"--context", 4096, &o->shape.context, 0},
                   {"--batch", 4096, &o->shape.batch, 0},
                   {"--refresh", 1000000, &o->refresh, 1},
                   {"--sample", 1000000, &o->sample, 1},
                   {"--save-at", 10000000, &o->save_at, 0},
                   {"--nan", 10000000, &o->nan, 0}};
    const struct {
        const char *name, **text;
    } texts[] = {{"--interface", &o->interface}, {"--root", &o->workers.root}, {"--out", &o->out},
                 {"--checkpoint", &o->checkpoint}, {"--text", &o->text}, {"--method", &o->method}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(name, numbers[i].name)) {
            *numbers[i].number = args_number(value, numbers[i].most);
            return !*numbers[i].number && !(numbers[i].zero && !strcmp(value, "0"));
        }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(name, texts[i].name)) return !*(*texts[i].text = value);
    if (!strcmp(name, "--rate")) return !((o->rate = strtof(value, NULL)) > 0);
    if (!strcmp(name, "--sign-rate")) return !((o->sign_rate = strtof(value, NULL)) > 0);
    if (!strcmp(name, "--gradients"))
        return (o->halves = !strcmp(value, "bf16")) == 0 && strcmp(value, "fp32");
    if (!strcmp(name, "--optimizer"))
        return (o->kind = transformer_kind_of(value, strlen(value))) == TRANSFORMER_KINDS;
    if (!strcmp(name, "--rank"))
        return (o->workers.rank = (int)args_number(value, TRAIN_WORKERS)) == 0 &&
            strcmp(value, "0");
    if (!strcmp(name, "--aggregate"))
        return (o->aggregate = train_aggregate(value)) == GCOMP_AGGREGATE_AUTO;
    if (!strcmp(name, "--transport"))
        return o->workers.transport = value, !train_workers_know(value);
    return 2;
}

/* Splits "OPTIMIZER/CODEC", and fills in what was not given. Returns NULL, or what does not go
   together. */
static inline const char *transformer_complete(transformer_options *o)
{
    static char label[160];
    const char *all = o->method ? o->method : "", *slash = strchr(all, '/');
    if (slash) {
        const size_t length = strcspn(all, ":/");
        if (o->kind != TRANSFORMER_KINDS) return "--optimizer, or OPTIMIZER/CODEC behind --method";
        o->kind = transformer_kind_of(all, length);
        if (o->kind == TRANSFORMER_KINDS) return "no optimizer before the slash of --method";
        if (all[length] == ':' && sscanf(all + length, ":refresh=%5zu/", &o->refresh) != 1 &&
            (sscanf(all + length, ":rate=%8f/", &o->sign_rate) != 1 || !(o->sign_rate > 0)))
            return "behind the optimizer of --method: refresh=K or rate=R";
    }
    if (o->kind == TRANSFORMER_KINDS) o->kind = BY_ADAMW;
    o->method = slash ? slash + 1 : all;
    if (!*o->method) o->method = transformer_codecs[o->kind];
    if (!(o->sign_rate > 0)) o->sign_rate = o->kind == BY_DEMO ? 1.0f : 0.3f;
    if (slash) snprintf(label, sizeof label, "%.*s", (int)(slash + 1 - all), all);
    else if (o->kind) snprintf(label, sizeof label, "%s/", transformer_kinds[o->kind]);
    strncat(label, o->method, sizeof label - strlen(label) - 1);
    o->label = label;
    if (!strcmp(o->method, "advise") && o->kind != BY_ADAMW) return "--method advise is for adamw";
    o->workers.world = (int)o->world;
    if (o->shape.channels % o->shape.heads) return "--channels is a multiple of --heads";
    return o->save_at && !o->checkpoint ? "--save-at needs --checkpoint" : NULL;
}

/* Reads the command line. Returns 0, or the exit status after saying what is wrong. */
static inline int transformer_read_options(transformer_options *o, int argc, char **argv)
{
    const transformer_options defaults = {.kind = TRANSFORMER_KINDS,
                                          .rate = 0.002f,
                                          .refresh = 20,
                                          .steps = 400,
                                          .seed = 1,
                                          .sample = 400,
                                          .world = 4,
                                          .shape = {4, 128, 4, 64, 4, 0},
                                          .out = "build"};
    const char *clash;
    args_help(argc, argv, transformer_usage);
    *o = defaults;
    o->workers.rank = -1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bare")) o->bare = 1;
        else if (!strcmp(argv[i], "--in-order")) o->workers.in_order = 1;
        else {
            const char *value = i + 1 < argc ? argv[i + 1] : "";
            const int wrong = transformer_option(o, argv[i], value);
            if (wrong) return args_wrong(argv[0], argv[i], wrong == 2 ? NULL : value);
            i++;
        }
    }
    clash = transformer_complete(o);
    return clash ? args_clash(argv[0], clash) : 0;
}

#endif /* TRANSFORMER_OPTIONS_H */
