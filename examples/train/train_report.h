/* train_report.h - what train.c shows: how far it is, the table, a CSV file and a plot. */

#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include "../args.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* One training run, as worker 0 saw it. */
typedef struct train_result {
    const char *codec;
    size_t steps;
    float *loss;          /* [steps], mean over the workers */
    double *sent;         /* [steps], bytes that one worker has sent so far */
    double *seconds;      /* [steps], that have passed so far */
    float *gradient;      /* where the first layer's gradient of the middle step goes, or NULL */
    double final_loss;    /* mean over the last tenth of the steps */
    double accuracy;      /* of the test samples, 0..1 */
    double bytes;         /* that a worker sends over the network in a step, see train_meter.h */
    double received;      /* that it gets from the network */
    double calls;         /* collectives of a step */
    double reported;      /* bytes sent in a step, as the statistics of gcomp say */
    double codec_seconds; /* encode and commit, a step */
    double compute_seconds;
    /* bytes that the network interface sent and received in all steps; 0: not asked for */
    double wire[2];
    uint64_t digest; /* of the parameters at the end */
    int identical;   /* 1: all workers ended with the same parameters, bit for bit */
} train_result;

static const double train_links[3] = {1e8, 1e9, 1e10};
static const char *const train_link_names[3] = {"100 Mbit/s", "1 Gbit/s", "10 Gbit/s"};

/* Shows how far a run is. With `last` prints the line that stays. */
static inline void train_bar(const char *codec, size_t step, size_t steps, double loss, double sent,
                             int last)
{
    char more[64];
    snprintf(more, sizeof more, "  loss %.4f  sent %8.2f MB", loss, sent * 1e-6);
    args_bar(codec, step, steps, more, last);
}

/* Seconds of a step on a link: compute + encode and commit + the bytes that come in / link. */
static inline double train_step_seconds(const train_result *r, double compute,
                                        double bits_per_second)
{
    return compute + r->codec_seconds + r->received * 8.0 / bits_per_second;
}

static inline void train_verdicts(const train_result *r, size_t count, double compute)
{
    for (int l = 0; l < 3; l++) {
        double none = train_step_seconds(&r[0], compute, train_links[l]), least = none;
        size_t best = 0;
        for (size_t i = 1; i < count; i++) {
            double t = train_step_seconds(&r[i], compute, train_links[l]);
            if (r[i].final_loss <= 1.03 * r[0].final_loss && t < least) {
                best = i;
                least = t;
            }
        }
        if (best)
            printf("%10s: %s pays best, %.1f ms a step instead of %.1f: %.1f times as fast.\n",
                   train_link_names[l], r[best].codec, least * 1e3, none * 1e3, none / least);
        else
            printf("%10s: compressing does not pay, %.1f ms a step uncompressed is the best.\n",
                   train_link_names[l], none * 1e3);
    }
    if (count > 1)
        printf("            (methods whose final loss is within 3 %% of uncompressed take "
               "part)\n");
}

/* r[0] is the uncompressed run. */
static inline void train_table(const train_result *r, size_t count)
{
    double compute = 0;
    int identical = 1, width = 18;
    /* The computation is the same in all runs: one figure for all, so that only what differs is
       compared. */
    for (size_t i = 0; i < count; i++) {
        compute += r[i].compute_seconds / (double)count;
        width = (int)strlen(r[i].codec) > width ? (int)strlen(r[i].codec) : width;
    }
    printf("\n%-*s %10s %7s %8s %8s %9s %7s   %s\n", width, "", "bytes/step", "", "final", "to un-",
           "test", "codec", "ms a step at");
    printf("%-*s %10s %7s %8s %8s %9s %7s %9s %8s %9s\n", width, "method", "a worker", "ratio",
           "loss", "compr.", "accuracy", "ms/step", "100 Mbit", "1 Gbit", "10 Gbit");
    for (size_t i = 0; i < count; i++) {
        double change = 100.0 * (r[i].final_loss / r[0].final_loss - 1.0);
        printf("%-*s %10.0f %7.1f %8.4f %+7.1f%% %8.2f%% %7.2f", width, r[i].codec, r[i].bytes,
               r[i].bytes > 0 ? r[0].bytes / r[i].bytes : 1.0, r[i].final_loss, change,
               100.0 * r[i].accuracy, 1e3 * r[i].codec_seconds);
        for (int l = 0; l < 3; l++)
            printf(" %*.2f", l == 1 ? 8 : 9,
                   1e3 * train_step_seconds(&r[i], compute, train_links[l]));
        printf("\n");
        identical &= r[i].identical;
    }
    printf("\nA step = %.2f ms of computation + encode and commit (both as processor "
           "time of one worker)\n",
           compute * 1e3);
    printf("+ bytes / link. An all-reduce of b bytes sends 2 b (W - 1) / W, a "
           "gather (W - 1) b.\n\n");
    train_verdicts(r, count, compute);
    printf("\nreplicas: %s\n", identical ? "identical" : "DIFFERENT");
}

/* Makes the directory if it is missing, and opens a file in it. Says what is wrong. */
static inline FILE *train_create(const char *out, const char *name, char *path, size_t capacity)
{
    FILE *file;
    if (mkdir(out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "%s: %s\n", out, strerror(errno));
        return NULL;
    }
    if ((size_t)snprintf(path, capacity, "%s/%s", out, name) >= capacity) {
        fprintf(stderr, "%s: the name is too long\n", out);
        return NULL;
    }
    file = fopen(path, "w");
    if (!file) fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return file;
}

/* method,step,loss,bytes,seconds. Returns 0, or 1 after saying what is wrong. */
static inline int train_csv(const train_result *r, size_t count, const char *out)
{
    char path[512];
    FILE *file = train_create(out, "demo.csv", path, sizeof path);
    if (!file) return 1;
    fprintf(file, "method,step,loss,bytes,seconds\n");
    for (size_t i = 0; i < count; i++) {
        const char *quote = strchr(r[i].codec, ',') ? "\"" : "";
        for (size_t s = 0; s < r[i].steps; s++)
            fprintf(file, "%s%s%s,%zu,%.6g,%.0f,%.6f\n", quote, r[i].codec, quote, s + 1,
                    (double)r[i].loss[s], r[i].sent[s], r[i].seconds[s]);
    }
    if (fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    printf("%s: every step of every run\n", path);
    return 0;
}

/* Writes a line for each run, with means over its steps: bytes of this worker as gcomp reports
   them; bytes sent and received over the network, and collectives, as counted beside the transport;
   bytes that the network interface sent and received; milliseconds of computation and of the codec
   (processor time), and of the whole step (clock). Returns 0, or 1 after saying what is wrong. */
static inline int train_runs_csv(const train_result *r, size_t count, const char *out)
{
    char path[512];
    FILE *file = train_create(out, "runs.csv", path, sizeof path);
    if (!file) return 1;
    fprintf(file,
            "method,steps,reported,sent,received,calls,sent_by_interface,"
            "received_by_interface,compute_ms,"
            "codec_ms,step_ms,loss,accuracy,parameters\n");
    for (size_t i = 0; i < count; i++) {
        const char *quote = strchr(r[i].codec, ',') ? "\"" : "";
        double steps = (double)r[i].steps;
        fprintf(file, "%s%s%s,%zu,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.3f,%.3f,%.3f,%.6g,%.4f,%016llx\n",
                quote, r[i].codec, quote, r[i].steps, r[i].reported, r[i].bytes,
                r[i].received, r[i].calls, r[i].wire[0] / steps, r[i].wire[1] / steps,
                1e3 * r[i].compute_seconds, 1e3 * r[i].codec_seconds,
                1e3 * r[i].seconds[r[i].steps - 1] / steps, r[i].final_loss, r[i].accuracy,
                (unsigned long long)r[i].digest);
    }
    if (fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    printf("%s: a line a run\n", path);
    return 0;
}

/* Do the curves of two runs over steps look like one? Then the later one covers the other. Lines are about 1 % of the loss wide;
   above `most` nothing is drawn. */
static inline int train_covers(const train_result *a, const train_result *b, double most)
{
    double x = (double)a->loss[0], y = (double)b->loss[0], sum = 0, count = 1e-9;
    for (size_t s = 0; s < a->steps; s++) {
        x += ((double)a->loss[s] - x) * 0.02;
        y += ((double)b->loss[s] - y) * 0.02;
        sum += x < most ? fabs(x / y - 1) : 0;
        count += x < most;
    }
    return sum / count < 0.007;
}

/* Writes the gnuplot script: it reads demo.csv and needs nothing of this program. */
static inline int train_script(const train_result *r, size_t count, const char *what, size_t world,
                               const char *out, char *path, size_t capacity)
{
    static const char *const colors[] = {"#222222", "#d62728", "#ff9f1c", "#1f77b4", "#2ca02c",
                                         "#9467bd", "#8c564b", "#17becf", "#e377c2"};
    size_t hues = sizeof colors / sizeof *colors; /* with more runs they come again, dashed */
    FILE *file = train_create(out, "demo.gnuplot", path, capacity);
    static const char *const tics[] = {"0.2", "0.3", "0.4", "0.6", "0.8", "1", "2", "3"};
    double least = r[0].final_loss, top;
    if (!file) return 1;
    for (size_t i = 1; i < count; i++) least = r[i].final_loss < least ? r[i].final_loss : least;
    top = fmin((double)r[0].loss[0], 3.0 * least);
    fprintf(file,
            "set terminal svg size 1000,430 noenhanced font 'Helvetica,14' background "
            "rgb 'white'\n");
    fprintf(file, "set output '%s/demo.svg'\nset datafile separator ','\n", out);
    fprintf(file, "csv = '%s/demo.csv'\nmethods = \"", out);
    for (size_t i = 0; i < count; i++) fprintf(file, "%s%s", i ? " " : "", r[i].codec);
    fprintf(file, "\"\n");
    for (size_t i = 0; i < count; i++)
        fprintf(file, "set linetype %zu lc rgb '%s' lw %s dt %zu\n", i + 1, colors[i % hues],
                i ? "2" : "3", i / hues + 1);
    /* Exponential mean over about 50 steps; a run begins where the step number is 1. */
    fprintf(file,
            "s = 0.0\n"
            "smooth(step, loss) = (s = step == 1 ? loss : s + (loss - s) * 0.02)\n");
    fprintf(file, "is(i) = strcol(1) eq word(methods, i)\n");
    fprintf(file,
            "set border 3 lc rgb '#666666'\nset tics nomirror\n"
            "set grid lc rgb '#dddddd' lt 1 lw 1\n");
    fprintf(file, "set logscale y\nset ytics add (");
    for (size_t i = 0; i < sizeof tics / sizeof *tics; i++)
        fprintf(file, "%s'%s' %s", i ? ", " : "", tics[i], tics[i]);
    fprintf(file, ")\n");
    /* The first steps are alike in all runs: without them the rest is larger. */
    fprintf(file, "set yrange [%.3g:%.3g]\n", 0.9 * least, top);
    fprintf(file, "set multiplot layout 1,2 title '%s, %zu workers: ", what, world);
    fprintf(file, "training loss (exponential mean of 50 steps), and bytes'\n");
    fprintf(file, "set xlabel 'step'\nset ylabel 'loss'\nset key top right samplen 2 opaque width -6 font ',12'\n");
    /* The mean is of all steps, but drawn at 100 of them: the picture is small enough to keep. */
    fprintf(file, "thin(step, y) = int(step) %% %zu ? NaN : y\nset datafile missing NaN\n",
            r[0].steps / 100 + 1);
    fprintf(file, "ema(i) = is(i) ? thin(column(2), smooth(column(2), column(3))) : NaN\n");
    fprintf(file, "array name[%zu] = [", count);
    for (size_t i = 0; i < count; i++) {
        const char *codec = strcmp(r[i].codec, "none") ? r[i].codec : "uncompressed";
        size_t above = count;
        while (--above > i && !train_covers(&r[i], &r[above], top));
        fprintf(file, "%s'%s", i ? ", " : "", codec);
        if (r[i].bytes > 0 && r[i].bytes < r[0].bytes) fprintf(file, ", %.1f times less", r[0].bytes / r[i].bytes);
        if (above > i) fprintf(file, " (under %s)", r[above].codec);
        fprintf(file, "'");
    }
    fprintf(file, "]\n");
    fprintf(file, "plot for [i=1:words(methods)] csv using (is(i) ? $2 : NaN):(ema(i)) \\\n");
    fprintf(file, "    with lines lt i title name[i]\n");
    fprintf(file, "set logscale x\nset xlabel 'sent by a worker'\nunset key\nset ylabel ' '\n");
    fprintf(file, "set xtics ('1 kB' 1e3, '10 kB' 1e4, '100 kB' 1e5, '1 MB' 1e6, '10 MB' 1e7, ");
    fprintf(file, "'100 MB' 1e8, '1 GB' 1e9, '10 GB' 1e10)\n");
    fprintf(file, "plot for [i=1:words(methods)] csv using (is(i) ? $4 : NaN):(ema(i)) \\\n");
    fprintf(file, "    with lines lt i notitle\nunset multiplot\n");
    if (fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    return 0;
}

/* Runs a script. Returns 0, -1 after saying that gnuplot is missing, or 1 after saying what is
   wrong. */
static inline int train_gnuplot(char *path)
{
    char program[] = "gnuplot";
    char *arguments[] = {program, path, NULL};
    pid_t child;
    int status = 0, error = posix_spawnp(&child, program, NULL, NULL, arguments, environ);
    if (error == ENOENT) {
        printf("gnuplot is not installed (Debian: gnuplot-nox): no picture; later: "
               "gnuplot %s\n",
               path);
        return -1;
    }
    if (error || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "gnuplot %s: %s\n", path, error ? strerror(error) : "failed");
        return 1;
    }
    return 0;
}

/* The plot; a machine without gnuplot gets a sentence instead, and the script for later. Returns 0,
   or 1 on an error. */
static inline int train_plot(const train_result *r, size_t count, const char *what, size_t world,
                             const char *out)
{
    char path[512];
    int failed;
    if (world < 2) {
        printf("one worker sends nothing: no plot\n");
        return 0;
    }
    if (train_script(r, count, what, world, out, path, sizeof path)) return 1;
    failed = train_gnuplot(path);
    if (failed == 0) printf("%s/demo.svg: loss against steps and against bytes\n", out);
    return failed > 0;
}

#endif /* TRAIN_REPORT_H */
