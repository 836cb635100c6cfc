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
   Run       build/bench [--filter TEXT] [--isa NAME] [--n COUNT] [--data KIND] [--threads T]
                         [--csv FILE] [--list | --worlds | --halves]
             KIND of gradient: normal, cubed, zeros (90 % zeros), constant, ascending, descending */

#define _GNU_SOURCE
#define GCOMP_IMPLEMENTATION
#include "gcomp.h"

#include "bench_codecs.h"
#include "bench_sparse.h"
#include "bench_worlds.h"
#include "bench_halves.h"

static int usage(void)
{
    fprintf(stderr,
            "usage: bench [--filter TEXT] [--isa NAME] [--n COUNT] [--data KIND] [--threads T]\n"
            "             [--csv FILE] [--list | --worlds | --halves]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {1u << 14, 1u << 20, 1u << 25};
    const char *filter = NULL, *isa = NULL, *csv_name = NULL;
    size_t n = 0;
    FILE *csv = NULL;
    int worlds = 0, halves = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--worlds")) {
            worlds = 1;
            continue;
        }
        if (!strcmp(argv[i], "--halves")) {
            halves = 1;
            continue;
        }
        if (!strcmp(argv[i], "--list")) {
            for (size_t c = 0; c < ALL_CODECS; c++)
                if (codec_list[c].bench) puts(codec_list[c].text);
            return 0;
        }
        if (!value) return usage();
        i++;
        if (!strcmp(argv[i - 1], "--filter")) filter = value;
        else if (!strcmp(argv[i - 1], "--isa")) isa = value;
        else if (!strcmp(argv[i - 1], "--n")) n = strtoull(value, NULL, 0);
        else if (!strcmp(argv[i - 1], "--threads")) thread_count = strtoull(value, NULL, 0);
        else if (!strcmp(argv[i - 1], "--csv")) csv_name = value;
        else if (!strcmp(argv[i - 1], "--data")) {
            size_t k = 0;
            while (kinds[k] && strcmp(kinds[k], value)) k++;
            if (!kinds[k]) return fprintf(stderr, "no data '%s'\n", value), 2;
            kind = kinds[k];
        } else return fprintf(stderr, "unknown option %s\n", argv[i - 1]), 2;
    }
    if (thread_count < 1 || thread_count > 16)
        return fprintf(stderr, "--threads takes 1 to 16\n"), 2;
    if (thread_count > 1) threads.run = run_parallel;
    if (csv_name && !(csv = fopen(csv_name, "w"))) return perror(csv_name), 1;
    if (csv)
        fprintf(csv,
                "method,kernel,isa,threads,n,gb_per_s,ratio_to_axpy,compression_ratio,"
                "relative_error\n");
    if (thread_count == 1) pin();
    printf("gcomp %d, gcc %s, %zu thread(s)\n", gcomp_version(), __VERSION__, thread_count);
    if (worlds) {
        data d;
        fill(&d, n ? n : 1u << 19);
        bench_worlds(&d, gcomp__set_of(isa ? isa_of(isa) : GCOMP_ISA_AUTO)->isa, filter);
        return 0;
    }
    if (halves) {
        data d;
        fill(&d, n ? n : 1u << 25);
        printf("%-24s %-8s %-7s %9s %9s %9s %7s\n", "codec", "part", "isa", "n", "fp32 G/s", "bf16 G/s", "ratio");
        for (int i = GCOMP_ISA_AVX2; i <= GCOMP_ISA_NEON; i++)
            if (isa ? (gcomp_isa)i == isa_of(isa) : gcomp_isa_available((gcomp_isa)i)) bench_halves(&d, (gcomp_isa)i, filter);
        return 0;
    }
    printf("%-24s %-13s %-7s %9s %9s %7s %9s %9s\n", "method", "kernel", "isa", "n", "GB/s",
           "/axpy", "ratio", "error");
    for (size_t s = 0; s < (n ? 1 : sizeof sizes / sizeof *sizes); s++) {
        data d;
        fill(&d, n ? n : sizes[s]);
        for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
            if (isa ? (gcomp_isa)i != isa_of(isa) : !gcomp_isa_available((gcomp_isa)i)) continue;
            /* scalar takes minutes then, and is nobody's choice */
            if (!isa && i == GCOMP_ISA_SCALAR && d.n > (1u << 14)) continue;
            bench(&d, (gcomp_isa)i, filter, csv);
            if (d.n <= 0xffffffffu) bench_indices(&d, (gcomp_isa)i, filter);
            bench_aggregate(&d, (gcomp_isa)i, filter);
            bench_mean(&d, (gcomp_isa)i, filter);
        }
    }
    if (csv) fclose(csv);
    return sink == 12345.678 ? 1 : 0;
}
