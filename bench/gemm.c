/* gemm.c - the matrix products of powersgd beside sgemm of OpenBLAS and BLIS.

   Shows     for shapes of layers and ranks 1 to 32: GB/s of matrix of M Q, M^T P and P Q^T, each
             with the reordering of the small factors that a step does, and the ratio to the faster
             library; M Q and M^T P with the residual added on the fly, as a ratio to axpy; at the
             end how many entries reach 0.9 and 1, the median, and orthonormalisation
   How       one thread, pinned; contenders interleaved, median of the rounds; results are compared
             first. The libraries are loaded at run time, with the same instruction set. They use
             their kernels for this maker's processors, and the program prints the names of these;
             OPENBLAS_CORETYPE and BLIS_ARCH_TYPE override the choice
   Run       build/gemm [--isa NAME] [--rank R] [--rows ROWS] */

#include "measure.h"

#include <dlfcn.h>

enum { ROUNDS = 7, MAX_R = 32, LIBRARIES = 2, ENTRIES = 128 };
enum { ROW_MAJOR = 101, PLAIN = 111, TURNED = 112 }; /* of cblas.h */
typedef void sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                   int lda, const float *b, int ldb, float beta, float *c, int ldc);

static const char *const kernels[] = {"M Q", "M^T P", "P Q^T"};
static const char *const names[LIBRARIES] = {"OpenBLAS", "BLIS"};
static sgemm *gemm[LIBRARIES];

static float *floats(size_t n, float scale)
{
    static uint64_t s = BENCH_SEED;
    float *p = memory(4 * n);
    for (size_t i = 0; i < n; i++) p[i] = scale * ((float)(random_word(&s) >> 40) / 8388608.0f - 1);
    return p;
}

/* ---------------- the libraries */

static void *need(void *library, const char *name)
{
    void *p = library ? dlsym(library, name) : NULL;
    if (p) return p;
    fprintf(stderr, "missing %s: apt-get install libopenblas-dev libblis-dev\n", name);
    exit(1);
}

static void load_libraries(gcomp_isa isa)
{
    int amd = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    amd = __builtin_cpu_is("amd");
#endif
    const char *core = isa == GCOMP_ISA_AVX512 ? "SkylakeX" : amd ? "Zen" : "Haswell";
    const char *arch = isa == GCOMP_ISA_AVX512 ? "skx" : amd ? "zen3" : "haswell";
    void *library[LIBRARIES];
    char number[16];
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    setenv("BLIS_NUM_THREADS", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("OPENBLAS_CORETYPE", core, 0);
    library[0] = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    library[1] = dlopen("libblis.so.4", RTLD_NOW | RTLD_LOCAL);
    for (int l = 0; l < LIBRARIES; l++) gemm[l] = (sgemm *)need(library[l], "cblas_sgemm");
    const char *(*arch_name)(int) = (const char *(*)(int))need(library[1], "bli_arch_string");
    for (int id = 0; id < 20; id++) { /* known by number */
        if (strcmp(arch_name(id), arch)) continue;
        snprintf(number, sizeof number, "%d", id);
        setenv("BLIS_ARCH_TYPE", number, 0);
        break;
    }
    float a = 1, b = 1, c = 0;
    for (int l = 0; l < LIBRARIES; l++)
        gemm[l](ROW_MAJOR, PLAIN, PLAIN, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1);
    const char *(*core_name)(void) =
        (const char *(*)(void))need(library[0], "openblas_get_corename");
    int (*arch_id)(void) = (int (*)(void))need(library[1], "bli_arch_query_id");
    printf("OpenBLAS runs its kernels for %s, BLIS those for %s\n", core_name(),
           arch_name(arch_id()));
}

/* ---------------- one product */

typedef struct data {
    size_t rows, cols, rank;
    float *g, *e, *y, *other;           /* matrices */
    float *p, *q, *p_turned, *q_turned; /* rank after rank; row after row for the libraries */
    float *p_out, *q_out, *local[3];
    const gcomp__gemm_kernels *kernels;
} data;

static void ours(const data *d, int kernel, int feedback)
{
    gcomp__source in = {0};
    gcomp__matrix m = {0};
    gcomp__factors f;
    const size_t rank = d->rank, columns = gcomp__powersgd_columns(rank);
    in.grad = d->g;
    in.scale = 1;
    in.residual.floats = feedback ? d->e : NULL;
    m.in = &in;
    m.rows = d->rows;
    m.cols = d->cols;
    m.rank = rank;
    m.pitch = gcomp__gemm_pitch(rank);
    m.uncached = gcomp__powersgd_is_uncached(d->rows * d->cols, rank);
    f.p = d->local[0];
    f.q = d->local[1];
    if (kernel == 0) {
        gcomp__to_projected(d->kernels, f.q, d->q, d->cols, rank);
        for (size_t i = 0; i < d->rows; i += GCOMP__GEMM_ROWS)
            d->kernels->project(&m, i, gcomp__min(d->rows, i + GCOMP__GEMM_ROWS), f.q, f.p);
        d->kernels->transpose(d->p_out, d->rows, f.p, m.pitch, rank, d->rows);
    } else if (kernel == 1) {
        d->kernels->transpose(f.p, m.pitch, d->p, d->rows, d->rows, rank);
        for (size_t j = 0; j < d->cols; j += columns)
            d->kernels->back(&m, j, gcomp__min(d->cols, j + columns), f.p, f.q);
        gcomp__from_panels(d->q_out, f.q, d->cols, rank);
    } else {
        d->kernels->transpose(f.p, m.pitch, d->p, d->rows, d->rows, rank);
        gcomp__to_panels(f.q, d->q, d->cols, rank);
        for (size_t i = 0; i < d->rows; i += GCOMP__GEMM_ROWS)
            d->kernels->expand(&m, i, gcomp__min(d->rows, i + GCOMP__GEMM_ROWS), &f, NULL, &f,
                               d->y);
    }
}

static void theirs(const data *d, int kernel, int library)
{
    const int rows = (int)d->rows, cols = (int)d->cols, r = (int)d->rank;
    if (kernel == 0)
        gemm[library](ROW_MAJOR, PLAIN, PLAIN, rows, r, cols, 1, d->g, cols, d->q_turned, r, 0,
                      d->local[0], r);
    else if (kernel == 1)
        gemm[library](ROW_MAJOR, TURNED, PLAIN, cols, r, rows, 1, d->g, cols, d->p_turned, r, 0,
                      d->local[1], r);
    else
        gemm[library](ROW_MAJOR, PLAIN, TURNED, rows, cols, r, 1, d->p_turned, r, d->q_turned, r, 0,
                      d->other, cols);
}

static double timed(const data *d, int kernel, int contender, size_t calls)
{
    data same = *d;
    double from = now();
    same.other = d->y; /* all write to one place */
    for (size_t k = 0; k < calls; k++) {
        if (contender == 0) ours(d, kernel, 0);
        else if (contender == 3) ours(d, kernel, 1);
        else if (contender == 4) axpy_range(d->y, d->other, d->rows * d->cols);
        else theirs(&same, kernel, contender - 1);
    }
    return (now() - from) / (double)calls;
}

/* The largest difference to the first library's result, as a part of its largest number. */
static double difference(const data *d, int kernel)
{
    const size_t n = kernel == 0 ? d->rows : d->cols, r = d->rank;
    double worst = 0, most = 0;
    ours(d, kernel, 0);
    theirs(d, kernel, 0);
    if (kernel == 2) {
        for (size_t i = 0; i < d->rows * d->cols; i++) {
            worst = fmax(worst, fabs((double)d->y[i] - (double)d->other[i]));
            most = fmax(most, fabs((double)d->other[i]));
        }
        return worst / most;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < r; c++) {
            const float mine = kernel ? d->q_out[c * n + i] : d->p_out[c * n + i];
            const float other = d->local[kernel][i * r + c];
            worst = fmax(worst, fabs((double)mine - (double)other));
            most = fmax(most, fabs((double)other));
        }
    return worst / most;
}

static double compare(const data *d, int kernel)
{
    const double n = (double)(d->rows * d->cols), wrong = difference(d, kernel);
    double seconds[5][ROUNDS], once, ratio;
    size_t calls;
    if (wrong > 1e-4)
        exit((fprintf(stderr, "%s, rank %zu: off by %g\n", kernels[kernel], d->rank, wrong), 1));
    once = timed(d, kernel, 0, 1);
    calls = once < 1e-3 ? (size_t)(1e-3 / once) + 1 : 1;
    /* In two parts: what other contenders leave in the caches matters. */
    for (int part = 0; part < (kernel == 2 ? 1 : 2); part++)
        for (int round = 0; round < ROUNDS; round++)
            for (int c = part ? 3 : 0; c < (part ? 5 : 3); c++)
                seconds[c][round] = timed(d, kernel, c, calls);
    for (int c = 0; c < (kernel == 2 ? 3 : 5); c++) seconds[c][0] = median(seconds[c], ROUNDS);
    ratio = fmin(seconds[1][0], seconds[2][0]) / seconds[0][0];
    printf("%4zux%-5zu %4zu %-6s %8.2f %9.2f %9.2f %8.2f", d->rows, d->cols, d->rank,
           kernels[kernel], 4e-9 * n / seconds[0][0], 4e-9 * n / seconds[1][0],
           4e-9 * n / seconds[2][0], ratio);
    if (kernel < 2)
        printf(" %10.2f %8.2f", 4e-9 * n / seconds[3][0], seconds[4][0] / seconds[3][0]);
    printf("\n");
    fflush(stdout);
    return ratio;
}

/* Orthonormalisation of n x r numbers with singular values from 1 to 1e-6. */
static void orthonormalise(const data *d, size_t n, size_t r)
{
    double best = 1e9, off = 0;
    float *p = floats(n * r, 1);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t c = 0; c < r; c++)
            for (size_t i = 0; i < n; i++)
                p[c * n + i] = d->g[i] +
                    (float)pow(1e-6, (double)c / (double)(r - 1)) * (c ? d->g[c * n + i] : 0);
        double from = now();
        gcomp__orthonormalise(d->kernels, p, n, r);
        best = fmin(best, now() - from);
    }
    for (size_t a = 0; a < r; a++)
        for (size_t b = 0; b < r; b++) {
            double sum = a == b ? -1 : 0;
            for (size_t i = 0; i < n; i++) sum += (double)p[a * n + i] * (double)p[b * n + i];
            off += sum * sum;
        }
    printf("orthonormalise %zux%zu: %.0f us, |P^T P - I| %.1e\n", n, r, 1e6 * best, sqrt(off));
}

int main(int argc, char **argv)
{
    static const size_t shapes[][2] = {{4096, 4096}, {512, 4608}, {1024, 1024}, {64, 576}};
    static const size_t ranks[] = {1, 2, 4, 8, 16, 32};
    size_t only_rank = 0, only_rows = 0, entries = 0, nine = 0, one = 0;
    double ratios[ENTRIES];
    gcomp_isa isa = GCOMP_ISA_AUTO;
    const gcomp__set *set;
    data d = {0};
    args_help(argc, argv, "usage: gemm [--isa NAME] [--rank 1|2|4|8|16|32] [--rows ROWS]; takes some 2 minutes\n");
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int good = *value != 0;
        if (!strcmp(argv[i], "--isa") && good) isa = isa_of(value);
        else if (!strcmp(argv[i], "--rank")) good = (only_rank = args_number(value, MAX_R)) != 0;
        else if (!strcmp(argv[i], "--rows")) good = (only_rows = args_number(value, 1 << 20)) != 0;
        else if (strcmp(argv[i], "--isa")) return args_wrong(argv[0], argv[i], NULL);
        if (!good) return args_wrong(argv[0], argv[i], value);
    }
    pin();
    set = gcomp__set_of(isa);
    load_libraries(set->isa);
    printf("gcomp %d, gcc %s, %s, one thread; GB/s of matrix\n", gcomp_version(), __VERSION__,
           gcomp_isa_name(set->isa));
    printf("%-10s %4s %-6s %8s %9s %9s %8s %10s %8s\n", "shape", "rank", "kernel", "gcomp",
           names[0], names[1], "ratio", "residual", "/ axpy");
    d.kernels = (const gcomp__gemm_kernels *)gcomp__row_powersgd.kernels[set->isa];
    d.g = floats(4096 * 4096, 1);
    d.e = floats(4096 * 4096, 1);
    d.y = floats(4096 * 4096, 1);
    d.other = floats(4096 * 4096, 1e-9f);
    d.p = floats(4608 * MAX_R, 1);
    d.q = floats(4608 * MAX_R, 1);
    d.p_turned = floats(4608 * MAX_R, 1);
    d.q_turned = floats(4608 * MAX_R, 1);
    d.p_out = floats(4608 * MAX_R, 1);
    d.q_out = floats(4608 * MAX_R, 1);
    for (int i = 0; i < 3; i++) d.local[i] = floats(4624 * MAX_R, 1);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
            d.rows = shapes[s][0];
            d.cols = shapes[s][1];
            d.rank = ranks[r];
            if ((only_rank && d.rank != only_rank) || (only_rows && d.rows != only_rows)) continue;
            d.kernels->transpose(d.p_turned, d.rank, d.p, d.rows, d.rows, d.rank);
            d.kernels->transpose(d.q_turned, d.rank, d.q, d.cols, d.cols, d.rank);
            for (int k = 0; k < 3; k++) ratios[entries++] = compare(&d, k);
        }
    for (size_t i = 0; i < entries; i++) {
        nine += ratios[i] >= 0.9;
        one += ratios[i] >= 1;
    }
    if (entries)
        printf("%zu of %zu entries reach 0.9, %zu reach 1; median %.2f\n", nine, entries, one,
               median(ratios, entries));
    for (size_t r = 4; r <= 32; r *= r == 4 ? 4 : 2) orthonormalise(&d, 4096, r);
    return 0;
}
