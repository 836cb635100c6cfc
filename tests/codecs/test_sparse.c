/* Proves that each sparse method sends the elements that it promises. */

#include "sparse.h"

static size_t share(double density, size_t n)
{
    size_t k = (size_t)ceil(density * (double)n * (1 - ldexp(1, -40)));
    return n && k < 1 ? 1 : k;
}

/* Of the elements of one sign (0: of both), every one sent is at least as large as every one
   that is not; values are p. */
static int is_a_cut(size_t n, int sign)
{
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < n; i++) {
        if (sign && (p[i] > 0) != (sign > 0)) continue;
        if (d[i] != 0 && d[i] != p[i]) return 0;
        if (d[i] != 0) least = fmin(least, fabs(p[i]));
        else most = fmax(most, fabs(p[i]));
    }
    return least >= most;
}

static void test_inexact_topk_sends_about_k_of_the_largest(void)
{
    static const double densities[] = {0.001, 0.01, 0.2, 1};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                char text[64];
                size_t n = sizes[s], k = share(densities[c], n), nonzero = 0, sent;
                snprintf(text, sizeof text, "topk:density=%g,exact=0", densities[c]);
                fill(shape, n);
                CHECK(send(text, n) == GCOMP_OK);
                CHECK(is_a_cut(n, 0));
                for (size_t i = 0; i < n; i++) nonzero += p[i] != 0;
                sent = count(n);
                CHECK(sent <= k + k / 4);
                CHECK(sent >= (k - k / 5 < nonzero ? k - k / 5 : nonzero));
                if (n < 32768) CHECK(sent == (k < nonzero ? k : nonzero)); /* too few for a sample: the k largest */
            }
}

/* Places of a chunk in the order in which topk takes them: the largest |p| first, of equal ones the first. */
static int by_size(const void *x, const void *y)
{
    const size_t i = *(const size_t *)x, j = *(const size_t *)y;
    const double a = fabs((double)p[i]), b = fabs((double)p[j]);
    return a > b ? -1 : a < b ? 1 : i < j ? -1 : i > j;
}

/* Also where the size of elements changes from chunk to chunk, so that what one chunk sends tells nothing of the next. */
static void check_chunks(const char *text, size_t n, size_t chunk, double density)
{
    static size_t place[LARGEST];
    CHECK(send(text, n) == GCOMP_OK);
    for (size_t begin = 0, end; begin < n; begin = end) {
        end = n - begin > chunk ? begin + chunk : n;
        const size_t k = share(density, end - begin);
        size_t wrong = 0;
        for (size_t i = begin; i < end; i++) place[i] = i;
        qsort(place + begin, end - begin, sizeof *place, by_size);
        for (size_t i = begin; i < end; i++) wrong += d[place[i]] != (i - begin < k ? p[place[i]] : 0);
        CHECK(wrong == 0);
    }
}

static void test_topk_by_chunks_sends_the_largest_of_each(void)
{
    static const size_t chunks[] = {1, 7, 64, 1000, 4096, 65536};
    static const double densities[] = {1e-9, 0.015625, 0.2, 1};
    for (size_t c = 0; c < 6; c++)
        for (size_t share_of = 0; share_of < 4; share_of++)
            for (int shape = 0; shape < SHAPES; shape++)
                for (size_t s = 0; s < SIZES; s++) {
                    char text[64];
                    /* of large vectors, some; where tests are slow, a third of all */
                    if (sizes[s] > 5000 && (chunks[c] < 64 || share_of != 1 || (shape != NORMAL && shape != HEAVY))) continue;
                    if (test_is_slow() && (share_of + c + (size_t)shape) % 3) continue;
                    snprintf(text, sizeof text, "topk:density=%g,chunk=%zu", densities[share_of], chunks[c]);
                    fill(shape, sizes[s]);
                    for (size_t i = 0; shape == HEAVY && i < sizes[s]; i++) {
                        g[i] *= (float)ldexp(1, (int)(mix(i / 1500) % 80) - 40);
                        p[i] = g[i] + e[i];
                    }
                    check_chunks(text, sizes[s], chunks[c], densities[share_of]);
                }
}

/* SparseLoCo's message: 64 of 4096, with values of 2 bits, and of 1 bit. */
static void test_an_element_of_a_chunk_takes_less_than_ten_bits(void)
{
    static const char *const texts[] = {"topk:density=0.015625,chunk=4096+int:bits=2,block=1024", "topk:density=0.015625,chunk=4096+sign"};
    static const double most[] = {9.6, 8.6};
    const size_t n = 1 << 20;
    float *x = (float *)malloc(4 * n);
    for (size_t i = 0; i < n; i++) x[i] = normal(i);
    for (size_t t = 0; t < 2; t++) {
        gcomp_input in = {0};
        in.scale = 1;
        gcomp_exec exec = {0};
        gcomp_codec codec;
        size_t length = 0;
        CHECK(gcomp_codec_parse(&codec, texts[t], NULL, 0) == GCOMP_OK);
        in.grad = x;
        in.rows = n;
        exec.isa = isa;
        exec.scratch_bytes = scratch_of(&codec, n);
        exec.scratch = malloc(exec.scratch_bytes);
        uint8_t *to = (uint8_t *)malloc(gcomp_bound(&codec, n, NULL));
        CHECK(gcomp_encode(&codec, &in, &exec, to, gcomp_bound(&codec, n, NULL), &length) == GCOMP_OK);
        const double bits = 8 * (double)length / (double)(n / 64);
        if (bits > most[t]) printf("# %s: %.2f bits an element\n", texts[t], bits);
        CHECK(bits > 1 && bits <= most[t]);
        free(to);
        free(exec.scratch);
    }
    free(x);
}

static void test_chunks_need_an_exact_choice(void)
{
    static const char *const texts[] = {"topk:exact=0,chunk=4096", "topk:global=1,chunk=4096"};
    gcomp_codec codec;
    char why[256];
    for (size_t t = 0; t < 2; t++)
        CHECK(gcomp_codec_parse(&codec, texts[t], why, sizeof why) == GCOMP_BAD_CODEC && strstr(why, "chunk"));
    CHECK(gcomp_codec_parse(&codec, "topk:chunk=65537", why, sizeof why) == GCOMP_BAD_CODEC);
}

static void test_strom_sends_what_reaches_the_threshold(void)
{
    static const char *const thresholds[] = {"0.5", "0.75", "1e-20", "1e20"};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                const float t = strtof(thresholds[c], NULL);
                char text[3][64];
                snprintf(text[0], sizeof *text, "strom:threshold=%s,send=value", thresholds[c]);
                snprintf(text[1], sizeof *text, "strom:threshold=%s", thresholds[c]);
                snprintf(text[2], sizeof *text, "strom:threshold=%s+onebit:block=tensor", thresholds[c]);
                fill(shape, sizes[s]);
                for (int form = 0; form < 3; form++) {
                    CHECK(send(text[form], sizes[s]) == GCOMP_OK);
                    for (size_t i = 0; i < sizes[s]; i++) {
                        const float quantum = p[i] < 0 ? -t : t, value = form ? quantum : p[i];
                        CHECK(d[i] == (fabsf(p[i]) >= t ? value : 0));
                    }
                }
            }
}

static void test_nonzero_is_lossless(void)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (size_t s = 0; s < SIZES; s++) {
            fill(shape, sizes[s]);
            CHECK(send("nonzero", sizes[s]) == GCOMP_OK);
            CHECK(memcmp(d, p, 4 * sizes[s]) == 0);
        }
}

static void test_nonzero_sends_nothing_for_zeros(void)
{
    gcomp_exec exec = {isa, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_codec codec;
    gcomp_input in;
    size_t length = 0, sent;
    fill(MOSTLY_ZERO, 5000);
    CHECK(send("nonzero+sign:block=tensor", 5000) == GCOMP_OK);
    sent = count(5000);
    for (size_t i = 0; i < 5000; i++) CHECK((d[i] != 0) == (p[i] != 0) && (p[i] == 0 || (d[i] < 0) == (p[i] < 0)));
    CHECK(gcomp_codec_parse(&codec, "nonzero+sign:block=tensor", NULL, 0) == GCOMP_OK);
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = p;
    in.rows = 5000;
    CHECK(gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK);
    CHECK(length <= 32 + 9 + 4 + sent / 8 + 1 + 5000 / 8 + 1); /* a bitmap at worst, and a bit a value */
}

/* One worker exchanges g as a matrix of 50 x 100. Returns 1 if it keeps a residual. */
static int keeps_a_residual(const char *codec)
{
    gcomp *gc = NULL;
    gcomp_desc desc = {0};
    gcomp_tensor tensor = {"weights", 50, 100, 0, GCOMP_F32, NULL};
    float *grads[1] = {g};
    desc.codec = codec;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    CHECK(exchange_floats(gc, grads, NULL) == GCOMP_OK);
    const int keeps = tensor_residual(gc, 0) != NULL;
    gcomp_close(gc);
    return keeps;
}

static void test_nonzero_keeps_a_residual_only_if_its_values_are_rounded(void)
{
    fill(MOSTLY_ZERO, 5000);
    CHECK(!keeps_a_residual("nonzero"));
    CHECK(memcmp(g, p, 4 * 5000) == 0);
    fill(MOSTLY_ZERO, 5000);
    CHECK(keeps_a_residual("nonzero+sign"));
}

static void test_dryden_cuts_each_sign_apart(void)
{
    static const double densities[] = {0.001, 0.01, 0.2, 1};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                char text[64];
                size_t n = sizes[s], sides[2] = {0, 0}, sent[2] = {0, 0};
                snprintf(text, sizeof text, "dryden:density=%g", densities[c]);
                fill(shape, n);
                CHECK(send(text, n) == GCOMP_OK);
                CHECK(count(n) <= 4 * share(densities[c], n));
                if (shape != CONSTANT) CHECK(is_a_cut(n, 1) && is_a_cut(n, -1)); /* of equal ones some may be left */
                for (size_t i = 0; i < n; i++) {
                    sides[p[i] < 0] += p[i] != 0;
                    sent[p[i] < 0] += d[i] != 0;
                }
                for (int k = 0; k < 2; k++) {
                    CHECK(sent[k] == (sides[k] ? share(densities[c], sides[k]) : 0));
                }
            }
}

/* The largest elements are of one sign, so the other one needs a limit of its own. */
static void test_dryden_sends_the_share_of_a_small_side_too(void)
{
    static const size_t some[] = {1000, 5000, 33000, LARGEST};
    for (int side = -1; side <= 1; side += 2)
        for (size_t s = 0; s < 4; s++) {
            const size_t n = some[s];
            size_t sides[2] = {0, 0}, sent[2] = {0, 0};
            fill(NORMAL, n);
            for (size_t i = 0; i < n; i++) {
                e[i] = 0;
                p[i] = g[i] = (g[i] < 0) == (side < 0) ? g[i] * 0x1p-10f : g[i];
            }
            CHECK(send("dryden:density=0.02", n) == GCOMP_OK);
            CHECK(is_a_cut(n, 1) && is_a_cut(n, -1));
            for (size_t i = 0; i < n; i++) {
                sides[p[i] < 0] += p[i] != 0;
                sent[p[i] < 0] += d[i] != 0;
            }
            for (int k = 0; k < 2; k++) CHECK(sent[k] == share(0.02, sides[k]));
        }
}

/* Samples meet one of 16 elements here at most, and the same in every step: what they miss would
   never be sent. */
static void test_one_element_among_zeros_is_sent_wherever_it_is(void)
{
    static const char *const texts[] = {"topk", "topk:exact=0", "dryden", "dryden:density=0.2", "dryden+onebit:block=tensor",
                                        "adacomp"};
    for (size_t c = 0; c < sizeof texts / sizeof *texts; c++)
        for (size_t k = 0; k < 5; k++) {
            const size_t at = k * (LARGEST / 5) + 7 * k;
            fill(ALL_ZERO, LARGEST);
            g[at] = k % 2 ? 3.0f : -3.0f;
            CHECK(send(texts[c], LARGEST) == GCOMP_OK);
            CHECK(count(LARGEST) == 1 && d[at] == g[at]);
        }
}

static void test_dryden_sends_the_means_of_both_sides(void)
{
    double sum[2] = {0, 0};
    size_t many[2] = {0, 0};
    fill(HEAVY, 4096);
    CHECK(send("dryden:density=0.1", 4096) == GCOMP_OK);
    for (size_t i = 0; i < 4096; i++)
        if (d[i] != 0) {
            sum[d[i] < 0] += d[i];
            many[d[i] < 0]++;
        }
    CHECK(send("dryden:density=0.1+onebit:block=tensor", 4096) == GCOMP_OK);
    for (size_t i = 0; i < 4096; i++)
        if (d[i] != 0) CHECK(fabs(d[i] - sum[d[i] < 0] / (double)many[d[i] < 0]) <= 1e-6 * fabs(d[i]));
}

/* ---------------- wangni */

/* Encodes g alone with a key of its own. */
static void send_key(const gcomp_codec *codec, size_t n, uint64_t step)
{
    gcomp_exec exec = {isa, scratch, sizeof scratch, {NULL, NULL}};
    gcomp_input in;
    size_t length = 0;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    in.grad = g;
    in.rows = n;
    in.key = gcomp_key_make(9, step, 0, 0);
    CHECK(gcomp_encode(codec, &in, &exec, payload, gcomp_bound(codec, n, NULL), &length) == GCOMP_OK);
    CHECK(length <= gcomp_bound(codec, n, NULL));
    CHECK(gcomp_decode(payload, length, d, GCOMP_F32, n, &exec) == GCOMP_OK);
}

/* q by the formulas of the paper: p = min(density n |g| / |g|_1, 1), then twice p = min(c p, 1). */
static double wangni_quantum(const float *x, size_t n, double density)
{
    static double probability[LARGEST];
    double sum = 0, lambda;
    for (size_t i = 0; i < n; i++) sum += fabs(x[i]);
    if (sum == 0) return 0;
    lambda = density * (double)n / sum;
    for (int round = 0; round < 2; round++) {
        double rest = 0, c;
        size_t below = 0;
        for (size_t i = 0; i < n; i++) {
            probability[i] = fmin(lambda * fabs(x[i]), 1);
            below += probability[i] < 1;
            if (probability[i] < 1) rest += probability[i];
        }
        if (rest == 0) break;
        c = (density * (double)n - (double)(n - below)) / rest;
        if (c <= 1) break;
        lambda *= c;
    }
    return fmin(1 / lambda, 3.4028234663852886e38);
}

static size_t wangni_most(double density, size_t n)
{
    const size_t k = share(density, n);
    const double most = (double)k + 9.01 * sqrt((double)k) + 32;
    return most < (double)n ? (size_t)most : n;
}

static void test_wangni_sends_a_quantum_or_what_is_above_it(void)
{
    static const double densities[] = {0.001, 0.02, 0.3, 1};
    for (size_t c = 0; c < 4; c++)
        for (int shape = 0; shape < SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                char text[64];
                const size_t n = sizes[s];
                double q, wrong = 0, expected = 0;
                snprintf(text, sizeof text, "wangni:density=%g", densities[c]);
                fill(shape, n);
                q = wangni_quantum(p, n, densities[c]);
                CHECK(send(text, n) == GCOMP_OK);
                for (size_t i = 0; i < n; i++) {
                    const double a = fabs(p[i]);
                    if (q > 0) expected += fmin(a / q, 1);
                    if (a == 0) CHECK(d[i] == 0);
                    else if (a > q * (1 + 1e-6) + 2e-45) CHECK(d[i] == p[i]);
                    else if (d[i] != 0)
                        wrong += (d[i] < 0) != (p[i] < 0) || fabs(fabs(d[i]) - q) > 1e-6 * q + 2e-45;
                }
                CHECK(wrong == 0);
                CHECK(expected <= densities[c] * (double)n * (1 + 1e-9));
                CHECK(count(n) <= wangni_most(densities[c], n));
                CHECK(fabs((double)count(n) - expected) <= 6 * sqrt(expected) + 6);
            }
}

/* Of 4096 keys: mean and variance of each element within 6 standard deviations, or 8 of the
   rarest, which are not normal; the sum of all elements' squared errors as the formula says; and
   how many are sent. */
static void test_wangni_is_unbiased_with_the_variance_of_its_formula(void)
{
    enum { KEYS = 4096, N = 100 };
    static const int shapes[] = {NORMAL, ONE_SIDED, MOSTLY_ZERO, CONSTANT, HEAVY, TINY};
    static const double densities[] = {0.1, 0.4};
    for (size_t k = 0; k < 2; k++)
        for (size_t shape = 0; shape < 6; shape++) {
            char text[64];
            gcomp_codec codec;
            double q, sum[N] = {0}, errors = 0, squares = 0, formula = 0, expected = 0, sent = 0, spread = 0, lost, fourth = 0;
            snprintf(text, sizeof text, "wangni:density=%g", densities[k]);
            CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
            fill(shapes[shape], N);
            q = wangni_quantum(g, N, densities[k]);
            for (uint64_t key = 0; key < KEYS; key++) {
                send_key(&codec, N, key);
                lost = 0;
                for (size_t i = 0; i < N; i++) {
                    const double error = ((double)d[i] - (double)g[i]) / q;
                    sum[i] += error;
                    lost += error * error;
                    sent += d[i] != 0;
                }
                errors += lost;
                squares += lost * lost;
            }
            for (size_t i = 0; i < N; i++) {
                const double a = fmin(fabs((double)g[i]) / q, 1), variance = a < 1 ? a * (1 - a) : 0;
                CHECK(fabs(sum[i]) <= 6 * sqrt(KEYS * variance) + 8 + 1e-5 * KEYS * a); /* rare ones come as whole quanta */
                formula += variance;
                expected += a;
                spread += a * (1 - a);
            }
            fourth = squares / KEYS - (errors / KEYS) * (errors / KEYS);
            CHECK(fabs(errors / KEYS - formula) <= 6 * sqrt(fmax(fourth, 0) / KEYS) + 1e-5 * formula);
            CHECK(fabs(sent / KEYS - expected) <= 6 * sqrt(spread / KEYS) + 1e-9);
        }
}

static void test_wangni_is_right_at_the_edges_of_numbers(void)
{
    static const double densities[] = {0.02, 0.2};
    gcomp_codec codec;
    for (size_t c = 0; c < 2; c++) {
        char text[64];
        snprintf(text, sizeof text, "wangni:density=%g", densities[c]);
        CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
        memset(g, 0, sizeof g);
        for (size_t at = 0; at < 1000; at += 333) { /* one that is not zero is sent as it is */
            static const float values[] = {1, -3e38f, 1e-45f, -1e-40f};
            for (size_t v = 0; v < 4; v++) {
                g[at] = values[v];
                send_key(&codec, 1000, at + v);
                CHECK(count(1000) == 1 && d[at] == g[at]);
                g[at] = 0;
            }
        }
        for (size_t i = 0; i < 40000; i++) g[i] = 3e38f; /* the quantum ends at the largest float, and the count at its bound */
        send_key(&codec, 40000, 1);
        CHECK(count(40000) <= wangni_most(densities[c], 40000));
        for (size_t i = 0; i < 40000; i++) CHECK(isfinite(d[i]));
        for (size_t i = 0; i < 40000; i++) g[i] = i % 5 ? 1e-45f : 1; /* so many large ones that a buffer does not hold them */
        send_key(&codec, 40000, 2);
        CHECK(count(40000) <= wangni_most(densities[c], 40000));
        for (size_t i = 0; i < 40000; i++) CHECK(d[i] == 0 || i % 5 == 0 || d[i] <= 1e-40f);
        for (size_t i = 0; i < 40000; i++) g[i] = i < 300 ? 1e20f : 1; /* what a sample can miss */
        send_key(&codec, 40000, 3);
        for (size_t i = 0; i < 300; i++) CHECK(d[i] == 1e20f);
        CHECK(fabs((double)count(40000) - densities[c] * 40000) <= 6 * sqrt(densities[c] * 40000));
    }
}

static void test_wangni_keeps_no_residual(void)
{
    fill(NORMAL, 5000);
    CHECK(!keeps_a_residual("wangni:density=0.1"));
    fill(NORMAL, 5000);
    CHECK(!keeps_a_residual("wangni:density=0.1+qsgd:levels=127"));
}

/* ---------------- adacomp */

static void check_adacomp(size_t n, size_t bin, const char *form)
{
    char text[80];
    double sum = 0;
    size_t bins = 0;
    float s;
    snprintf(text, sizeof text, "adacomp:bin=%zu%s", bin, form);
    CHECK(send(text, n) == GCOMP_OK);
    for (size_t begin = 0; begin < n; begin += bin) {
        float most = 0;
        for (size_t i = begin; i < n && i < begin + bin; i++) most = fmaxf(most, fabsf(p[i]));
        sum += (double)most;
        bins += most > 0;
    }
    s = bins ? (float)(sum / (double)bins) : 0;
    for (size_t begin = 0; begin < n; begin += bin) {
        float most = 0;
        for (size_t i = begin; i < n && i < begin + bin; i++) most = fmaxf(most, fabsf(p[i]));
        for (size_t i = begin; i < n && i < begin + bin; i++) {
            volatile float h = p[i] + g[i];
            const int sent = most > 0 && p[i] != 0 && fabsf(h) >= most;
            const float value = strstr(form, "value") ? p[i] : p[i] < 0 ? -s : s;
            CHECK(d[i] == (sent ? value : 0));
            if (fabsf(p[i]) == most && most > 0 && (g[i] > 0) == (p[i] > 0)) CHECK(sent);
        }
    }
}

static void test_adacomp_sends_what_the_gradient_carries_to_its_bins_largest(void)
{
    static const size_t bins[] = {1, 7, 16, 50, 500, 65536};
    static const char *const forms[] = {"", ",send=value", "+onebit:block=tensor"};
    for (size_t b = 0; b < 6; b++)
        for (int shape = 0; shape <= SHAPES; shape++)
            for (size_t s = 0; s < SIZES; s++) {
                const size_t n = sizes[s];
                fill(shape == SHAPES ? HEAVY : shape, n);
                for (size_t i = 0; i < n && shape == SHAPES; i++) { /* residuals that are larger, against, or cancel */
                    e[i] = i % 7 == 0 ? -g[i] : 5 * (float)(uniform(i + 9) - 0.5);
                    p[i] = g[i] + e[i];
                }
                for (int form = 0; form < 3; form++) check_adacomp(n, bins[b], forms[form]);
            }
}

static void test_adacomp_is_right_at_the_edges_of_numbers(void)
{
    memset(g, 0, sizeof g);
    memset(e, 0, sizeof e);
    for (size_t i = 0; i < 5000; i++) p[i] = 0;
    for (size_t at = 0; at < 5000; at += 777) {
        static const float values[] = {3e38f, -3e38f, 1e-45f, -1e-40f};
        for (size_t v = 0; v < 4; v++) {
            g[at] = p[at] = values[v]; /* twice that is no float any more */
            check_adacomp(5000, 500, "");
            CHECK(count(5000) == 1 && d[at] == values[v]);
        }
        g[at] = p[at] = 0;
    }
    for (size_t i = 0; i < 5000; i++) g[i] = p[i] = 3.4028234663852886e38f;
    check_adacomp(5000, 500, "");
    CHECK(count(5000) == 5000);
}

/* ---------------- blocktopk */
static double norms[LARGEST / 16 + 1];

static uint32_t order[LARGEST / 16 + 1];

static int by_norm(const void *x, const void *y) /* larger first; of equal ones the first */
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return norms[a] > norms[b] ? -1 : norms[a] < norms[b] ? 1 : a < b ? -1 : a > b;
}

static void check_blocktopk(double density, size_t block, size_t n)
{
    static char sent[LARGEST / 16 + 1];
    const size_t blocks = n / block + (n % block != 0), k = share(density, blocks);
    char text[80];
    snprintf(text, sizeof text, "blocktopk:density=%g,block=%zu", density, block);
    memset(sent, 0, sizeof sent);
    for (size_t b = 0; b < blocks; b++) {
        norms[b] = 0;
        order[b] = (uint32_t)b;
        for (size_t i = b * block; i < n && i < (b + 1) * block; i++) norms[b] += (double)p[i] * p[i];
    }
    qsort(order, blocks, sizeof *order, by_norm);
    for (size_t b = 0; b < k && b < blocks; b++) sent[order[b]] = norms[order[b]] > 0;
    CHECK(send(text, n) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) CHECK(d[i] == (sent[i / block] ? p[i] : 0));
    CHECK(count(n) <= k * block);
}

static void test_blocktopk_sends_the_blocks_of_largest_norm(void)
{
    static const double densities[] = {0.001, 0.01, 0.3, 1};
    static const size_t blocks[] = {16, 64, 256, 65536};
    for (size_t c = 0; c < 4; c++)
        for (size_t b = 0; b < 4; b++)
            for (int shape = 0; shape < SHAPES; shape++)
                for (size_t s = 0; s < SIZES; s++) {
                    fill(shape, sizes[s]);
                    check_blocktopk(densities[c], blocks[b], sizes[s]);
                }
}

static void test_blocktopk_is_right_at_the_edges_of_numbers(void)
{
    memset(g, 0, sizeof g);
    memset(e, 0, sizeof e);
    memset(p, 0, sizeof p);
    for (size_t at = 0; at < 5000; at += 833) {
        static const float values[] = {3e38f, -3e38f, 1e-45f, -1e-40f};
        for (size_t v = 0; v < 4; v++) {
            g[at] = p[at] = values[v];
            check_blocktopk(0.5, 256, 5000);
            CHECK(count(5000) == 1 && d[at] == values[v]);
        }
        g[at] = p[at] = 0;
    }
    for (size_t i = 0; i < 5000; i++) g[i] = p[i] = i % 700 ? 3e38f : 1e-45f;
    check_blocktopk(0.3, 256, 5000);
}

/* Bodies by hand: the last block, which is shorter, is counted where its index stands, and only
   there. */
static void test_blocktopk_counts_the_elements_of_its_blocks(void)
{
    gcomp_codec codec;
    for (int last = 0; last < 2; last++) {
        fill(NORMAL, 1000);
        for (size_t i = 0; i < 1000; i++) g[i] *= last == (i >= 768) ? 100.0f : 1.0f;
        CHECK(send("blocktopk:density=0.25,block=256", 1000) == GCOMP_OK);
        CHECK(get_word(payload + 32, 8) == (last ? 1000 - 768 : 256) && payload[41] == 8);
        CHECK(gcomp_codec_parse(&codec, "blocktopk:density=0.25,block=256", NULL, 0) == GCOMP_OK);
        for (uint64_t k = 0; k <= 256; k++) { /* more may be: zero bits behind the index are indices too */
            const size_t length = 32 + 10 + 1 + 4 * (size_t)k;
            const unsigned index = payload[42];
            uint8_t body[GCOMP_BOUND(1000)];
            memset(body, 0, sizeof body);
            memcpy(body, payload, 43);
            put_word(body + 16, 11 + 4 * k, 8);
            put_word(body + 32, k, 8);
            body[42] = (uint8_t)index;
            CHECK((gcomp_check(body, length, 1000) == GCOMP_OK) == (k == (last ? 1000 - 768 : 256)));
        }
        for (unsigned b = 0; b < 256; b++)
            if (b < 4 || b > 16) {
                payload[41] = (uint8_t)b;
                CHECK(gcomp_check(payload, 32 + (size_t)get_word(payload + 16, 8), 1000) == GCOMP_CORRUPT);
            }
    }
    CHECK(gcomp_codec_parse(&codec, "blocktopk:block=tensor", NULL, 0) == GCOMP_BAD_CODEC);
    CHECK(gcomp_codec_parse(&codec, "blocktopk:block=100", NULL, 0) == GCOMP_BAD_CODEC);
}

int main(void)
{
    for (int i = GCOMP_ISA_SCALAR; i <= GCOMP_ISA_NEON; i++) {
        isa = (gcomp_isa)i;
        if (!isa_is_wanted(isa)) continue;
        RUN(test_topk_by_chunks_sends_the_largest_of_each);
        RUN(test_an_element_of_a_chunk_takes_less_than_ten_bits);
        RUN(test_chunks_need_an_exact_choice);
        RUN(test_inexact_topk_sends_about_k_of_the_largest);
        RUN(test_strom_sends_what_reaches_the_threshold);
        RUN(test_nonzero_is_lossless);
        RUN(test_nonzero_sends_nothing_for_zeros);
        RUN(test_nonzero_keeps_a_residual_only_if_its_values_are_rounded);
        RUN(test_dryden_cuts_each_sign_apart);
        RUN(test_dryden_sends_the_share_of_a_small_side_too);
        RUN(test_one_element_among_zeros_is_sent_wherever_it_is);
        RUN(test_dryden_sends_the_means_of_both_sides);
        RUN(test_wangni_sends_a_quantum_or_what_is_above_it);
        RUN(test_wangni_is_unbiased_with_the_variance_of_its_formula);
        RUN(test_wangni_is_right_at_the_edges_of_numbers);
        RUN(test_wangni_keeps_no_residual);
        RUN(test_adacomp_sends_what_the_gradient_carries_to_its_bins_largest);
        RUN(test_adacomp_is_right_at_the_edges_of_numbers);
        RUN(test_blocktopk_sends_the_blocks_of_largest_norm);
        RUN(test_blocktopk_is_right_at_the_edges_of_numbers);
        RUN(test_blocktopk_counts_the_elements_of_its_blocks);
    }
    return test_end();
}
