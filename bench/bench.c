/* bench.c - how fast is gcomp here? Speed of every codec beside the bandwidth of this machine's
   memory.

   Shows     bench_codecs.h: GB/s of gradient (4 n bytes / time) for every codec, and the ratio to
             axpy (a[i] += b[i]), measured in the same rounds
             bench_sparse.h: the index coder of sparse methods, indices a second and bits; a step of
             8 workers, gathered and by ranges; the mean of 8 sparse payloads against decoding and
             adding each
             bench_worlds.h, with --worlds: the step of one of 4 to 64 workers with every block
             method, as AUTO makes the mean, and for some of them gathered and in two shots; a
             minute, 2 GB. --filter: a codec, or gather, two-shot, auto
   How       pinned to a core, all contenders interleaved, median of the rounds; memory touched
             before; state that a commit changes is put back untimed
   Run       build/bench --help. Without --rows and --filter it shows a bar, and at the end one
             screen of the largest size and the last instruction set
   Files     measure.h, then bench_data.h are below the chapters bench_codecs.h, bench_sparse.h,
             bench_worlds.h and bench_halves.h, which this file calls; each compiles by itself */

#include "bench_codecs.h"
#include "bench_halves.h"
#include "bench_sparse.h"
#include "bench_worlds.h"

static const char usage[] =
    "usage: bench [OPTION]...\n"
    "  all codecs at three sizes: takes some 4 minutes, 2 GB\n"
    "    --filter TEXT          only methods and kernels whose name has TEXT; prints each row\n"
    "    --rows                 prints each row, and those of index, aggregate and mean\n"
    "    --isa NAME, --n COUNT, --threads 1..16\n"
    "    --data KIND            normal, cubed, zeros (90 % zeros), constant, ascending, descending\n"
    "    --csv FILE             each row\n"
    "  instead:\n"
    "    --list                 the codecs\n"
    "    --worlds               the step of one of 4 to 64 workers; a minute, 2 GB\n"
    "    --halves               gradients in bf16 beside floats\n";

static struct {
    const char *filter, *isa, *csv;
    size_t n;
    int rows, list, worlds, halves;
} options;

/* Reads the command line. Returns 0, or the exit status after saying what is wrong. */
static int read_arguments(int argc, char **argv)
{
    args_help(argc, argv, usage);
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        int good = *value != 0;
        if (!strcmp(name, "--worlds")) options.worlds = 1;
        else if (!strcmp(name, "--halves")) options.halves = 1;
        else if (!strcmp(name, "--rows")) options.rows = 1;
        else if (!strcmp(name, "--list")) options.list = 1;
        else {
            if (!strcmp(name, "--filter")) options.filter = value;
            else if (!strcmp(name, "--isa")) options.isa = value;
            else if (!strcmp(name, "--csv")) options.csv = value;
            else if (!strcmp(name, "--n")) good = (options.n = args_number(value, (size_t)1 << 34)) != 0;
            else if (!strcmp(name, "--threads")) good = (thread_count = args_number(value, 16)) != 0;
            else if (!strcmp(name, "--data")) {
                size_t k = 0;
                while (kinds[k] && strcmp(kinds[k], value)) k++;
                good = (kind = kinds[k]) != NULL;
            } else return args_wrong(argv[0], name, NULL);
            if (!good) return args_wrong(argv[0], name, value);
            i++;
        }
    }
    return 0;
}

/* Is the instruction set measured, at n elements? */
static int takes_part(gcomp_isa isa, size_t n)
{
    if (options.isa) return isa == isa_of(options.isa);
    /* scalar takes minutes at more elements, and is nobody's choice */
    return can_run(isa) && (isa != GCOMP_ISA_SCALAR || n <= 1u << 14);
}

static void all_codecs(FILE *csv)
{
    static const size_t three[] = {1u << 14, 1u << 20, 1u << 25};
    static row rows[MAX_ROWS];
    const size_t *sizes = options.n ? &options.n : three, size_count = options.n ? 1 : 3;
    report to = {csv, options.rows || options.filter, 0, 0, now()};
    size_t count = 0;
    for (size_t s = 0; s < size_count; s++)
        for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++)
            if (takes_part((gcomp_isa)i, sizes[s])) to.all += make_rows(rows, (gcomp_isa)i, options.filter);
    if (to.each)
        printf("%-24s %-13s %-7s %9s %9s %7s %9s %9s\n", "method", "kernel", "isa", "n", "GB/s",
               "/axpy", "ratio", "error");
    for (size_t s = 0; s < size_count; s++) {
        data d;
        fill(&d, sizes[s]);
        for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
            const gcomp_isa isa = (gcomp_isa)i;
            if (!takes_part(isa, d.n)) continue;
            count = bench(&d, rows, isa, options.filter, &to);
            if (!to.each) continue;
            if (d.n <= 0xffffffffu) bench_indices(&d, isa, options.filter);
            bench_aggregate(&d, isa, options.filter);
            bench_mean(&d, isa, options.filter);
        }
        if (!to.each && s + 1 == size_count) print_screen(rows, count, d.n);
    }
    if (!to.each) printf("%zu rows in %.0f s%s%s\n", to.done, now() - to.began, csv ? ": " : "", csv ? options.csv : "");
}

int main(int argc, char **argv)
{
    FILE *csv = NULL;
    data d;
    const int wrong = read_arguments(argc, argv);
    if (wrong) return wrong;
    if (options.list) {
        for (size_t c = 0; c < ALL_CODECS; c++)
            if (codec_list[c].bench) puts(codec_list[c].text);
        return 0;
    }
    if (thread_count > 1) threads.run = run_parallel;
    if (options.csv && !(csv = fopen(options.csv, "w"))) return perror(options.csv), 1;
    if (csv)
        fprintf(csv,
                "method,kernel,isa,threads,n,gb_per_s,ratio_to_axpy,compression_ratio,"
                "relative_error\n");
    if (thread_count == 1) pin();
    printf("gcomp %d, gcc %s, %zu thread(s)\n", gcomp_version(), __VERSION__, thread_count);
    fflush(stdout);
    if (options.worlds) {
        fill(&d, options.n ? options.n : 1u << 19);
        bench_worlds(&d, gcomp__set_of(options.isa ? isa_of(options.isa) : GCOMP_ISA_AUTO)->isa, options.filter);
    } else if (options.halves) {
        fill(&d, options.n ? options.n : 1u << 25);
        printf("%-24s %-8s %-7s %9s %9s %9s %7s\n", "codec", "part", "isa", "n", "fp32 G/s", "bf16 G/s", "ratio");
        for (int i = GCOMP_ISA_AVX2; i <= GCOMP_ISA_NEON; i++)
            if (options.isa ? (gcomp_isa)i == isa_of(options.isa) : can_run((gcomp_isa)i))
                bench_halves(&d, (gcomp_isa)i, options.filter);
    } else all_codecs(csv);
    if (csv) fclose(csv);
    return sink == 12345.678 ? 1 : 0;
}
