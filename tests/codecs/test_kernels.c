/* Proves that the kernels which methods share give on every instruction set what plain loops give:
   in buffers of exactly the size needed, for every length around the vector's, at every offset. */

#include "kernels.h"

/* ---------------- which ones */

static void test_the_sets_that_ran_are_named(void)
{
    size_t count = 0, scalar = 0;
    FOR_EACH_SET(s) {
        printf("# instruction set %s\n", gcomp_isa_name(gcomp__sets[s]->isa));
        count++;
        scalar += gcomp__sets[s]->isa == GCOMP_ISA_SCALAR;
    }
    CHECK(count >= 1);
    CHECK(scalar == 1);
}

/* ---------------- checksum */

static void test_crc32c_has_its_check_value(void)
{
    static const uint8_t zeros[32] = {0};
    uint8_t ones[32], up[32];
    for (size_t i = 0; i < 32; i++) {
        ones[i] = 0xFF;
        up[i] = (uint8_t)i;
    }
    FOR_EACH_SET(s) {
        CHECK(gcomp__sets[s]->common->crc(0, (const uint8_t *)"123456789", 9) == 0xE3069283u);
        CHECK(gcomp__sets[s]->common->crc(0, zeros, 32) == 0x8A9136AAu); /* RFC 3720 B.4 */
        CHECK(gcomp__sets[s]->common->crc(0, ones, 32) == 0x62A8AB43u);
        CHECK(gcomp__sets[s]->common->crc(0, up, 32) == 0x46DD794Eu);
        CHECK(gcomp__sets[s]->common->crc(0, zeros, 0) == 0);
    }
}

static void test_crc32c_of_every_length_and_offset_is_right(void)
{
    FOR_EACH_SET(s)
        for (size_t n = 0; n <= 67; n++)
            for (size_t offset = 0; offset < 8; offset++) {
                uint8_t *bytes = (uint8_t *)malloc(n + offset + (n + offset == 0));
                for (size_t i = 0; i < n + offset; i++) bytes[i] = (uint8_t)mix(i + 100 * n);
                uint32_t whole = plain_crc(0, bytes + offset, n);
                CHECK(gcomp__sets[s]->common->crc(0, bytes + offset, n) == whole);
                uint32_t first = gcomp__sets[s]->common->crc(0, bytes + offset, n / 3); /* in two parts */
                CHECK(gcomp__sets[s]->common->crc(first, bytes + offset + n / 3, n - n / 3) == whole);
                free(bytes);
            }
}

static void test_crc32c_of_long_data_is_right(void) /* whose parts are summed side by side */
{
    enum { PARTS = 3 * GCOMP__CRC_PART };
    static const size_t lengths[] = {PARTS - 1, PARTS, PARTS + 1, PARTS + 8, 2 * PARTS - 8, 2 * PARTS, 5 * PARTS + 13};
    uint8_t *bytes = (uint8_t *)malloc(6 * PARTS);
    for (size_t i = 0; i < 6 * PARTS; i++) bytes[i] = (uint8_t)mix(i);
    FOR_EACH_SET(s)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t offset = 0; offset < 3; offset++) {
                const uint32_t first = plain_crc(0, bytes, offset); /* it continues */
                CHECK(gcomp__sets[s]->common->crc(first, bytes + offset, lengths[i]) == plain_crc(0, bytes, offset + lengths[i]));
            }
    free(bytes);
}

/* ---------------- two-byte formats */

static void test_every_half_and_bfloat_widens_exactly(void)
{
    uint16_t *all = (uint16_t *)malloc(2 * 65536);
    float *y = floats(65536);
    for (size_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    FOR_EACH_SET(s) {
        size_t wrong = 0;
        gcomp__sets[s]->common->widen(y, all, GCOMP_F16, 65536);
        for (size_t i = 0; i < 65536; i++) {
            unsigned low = (unsigned)i & 0x7FFF;
            float magnitude = value_of_half(low);
            if (low > 0x7C00) wrong += isnan(y[i]) ? 0u : 1u;
            else if (low == 0x7C00) wrong += !isinf(y[i]) || !signbit(y[i]) != !(i & 0x8000);
            else wrong += bits_of(y[i]) != bits_of(i & 0x8000 ? -magnitude : magnitude);
        }
        CHECK(wrong == 0);
        wrong = 0;
        gcomp__sets[s]->common->widen(y, all, GCOMP_BF16, 65536);
        for (size_t i = 0; i < 65536; i++) {
            uint32_t b = (uint32_t)i << 16;
            wrong += (size_t)(isnan(float_of(b)) ? !isnan(y[i]) : bits_of(y[i]) != b);
        }
        CHECK(wrong == 0);
    }
    free(all);
    free(y);
}

static void test_narrowing_rounds_to_nearest_even_and_saturates(void)
{
    /* every half, the middle to the next, and one float beside each; around both ends; and 2^18
       of any finite bits */
    size_t n = 0, room = 12 * (size_t)0x7C00 + 64 + (1u << 18);
    float *x = floats(room);
    for (unsigned low = 0; low < 0x7C00; low++) {
        float here = value_of_half(low), next = low < 0x7BFF ? value_of_half(low + 1) : 65536.0f;
        float middle = (float)(((double)here + (double)next) / 2);
        float points[6];
        points[0] = here;
        points[1] = middle;
        points[2] = nextafterf(middle, 1e9f);
        points[3] = nextafterf(middle, 0.0f);
        points[4] = nextafterf(here, 1e9f);
        points[5] = nextafterf(here, 0.0f);
        for (size_t k = 0; k < 6; k++) {
            x[n++] = points[k];
            x[n++] = -points[k];
        }
    }
    static const float ends[] = {65504,  65519.996f, 65520,         65536,         1e6f,          3.4028235e38f,
                                 1e-45f, 1e-40f,     5.9604645e-8f, 2.9802322e-8f, 2.9802326e-8f, 1.1754944e-38f};
    for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) {
        x[n++] = ends[k];
        x[n++] = -ends[k];
    }
    for (size_t i = 0; i < 1u << 18; i++) x[n++] = sample(i & 1 ? 3 : 1, 7, i);
    uint16_t *y = (uint16_t *)malloc(2 * n), *expected = (uint16_t *)malloc(2 * n);
    for (size_t i = 0; i < n; i++) expected[i] = half_of(x[i]);
    FOR_EACH_SET(s) {
        size_t wrong = 0;
        gcomp__sets[s]->common->narrow(y, x, GCOMP_F16, n);
        for (size_t i = 0; i < n; i++) {
            if (y[i] != expected[i] && wrong++ < 3) printf("# %g -> %04x, expected %04x\n", (double)x[i], y[i], expected[i]);
        }
        CHECK(wrong == 0);
    }
    free(x);
    free(y);
    free(expected);
}

static void test_bfloats_round_to_nearest_even_and_saturate(void)
{
    static const uint32_t low[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    size_t n = 0;
    float *x = floats((size_t)65536 * 6);
    for (uint32_t high = 0; high < 65536; high++)
        for (size_t k = 0; k < 6; k++)
            if ((high & 0x7F80) != 0x7F80) x[n++] = float_of(high << 16 | low[k]);
    uint16_t *y = (uint16_t *)malloc(2 * n);
    FOR_EACH_SET(s) {
        size_t wrong = 0;
        gcomp__sets[s]->common->narrow(y, x, GCOMP_BF16, n);
        for (size_t i = 0; i < n; i++) wrong += y[i] != bfloat_of(x[i]);
        CHECK(wrong == 0);
    }
    free(x);
    free(y);
}

static void test_conversions_of_every_length_are_right(void)
{
    FOR_EACH_SET(s)
        for (size_t n = 0; n <= 67; n++)
            for (int type = GCOMP_F16; type <= GCOMP_BF16; type++) {
                float *x = floats(n), *back = floats(n);
                uint16_t *y = (uint16_t *)malloc(n ? 2 * n : 1);
                size_t wrong = 0;
                for (size_t i = 0; i < n; i++) x[i] = sample(1, n, i);
                gcomp__sets[s]->common->narrow(y, x, (gcomp_dtype)type, n);
                gcomp__sets[s]->common->widen(back, y, (gcomp_dtype)type, n);
                for (size_t i = 0; i < n; i++) {
                    uint16_t e = type == GCOMP_F16 ? half_of(x[i]) : bfloat_of(x[i]);
                    float m = value_of_half(e & 0x7FFF);
                    wrong += y[i] != e;
                    wrong += type == GCOMP_F16 ? back[i] != (e & 0x8000 ? -m : m) : bits_of(back[i]) != (uint32_t)e << 16;
                }
                CHECK(wrong == 0);
                free(x);
                free(back);
                free(y);
            }
}

/* ---------------- finite or not, sums */

static void test_worst_is_the_largest_magnitude_and_finds_what_is_not_finite(void)
{
    static const uint32_t bad[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF};
    FOR_EACH_SET(s)
        for (size_t n = 0; n <= 67; n++)
            for (int kind = 0; kind < KINDS; kind++) {
                float *x = floats(n);
                uint32_t most = 0;
                for (size_t i = 0; i < n; i++) {
                    x[i] = sample(kind, n, i);
                    if ((bits_of(x[i]) & 0x7FFFFFFF) > most) most = bits_of(x[i]) & 0x7FFFFFFF;
                }
                CHECK(gcomp__sets[s]->common->max_bits(x, n) == most);
                for (size_t i = 0; i < n; i++) { /* wherever it stands, whatever stands around it */
                    float was = x[i];
                    x[i] = float_of(bad[(i + n) % 6]);
                    CHECK(gcomp__sets[s]->common->max_bits(x, n) >= 0x7F800000u);
                    x[i] = was;
                }
                free(x);
            }
}

static void test_squares_add_up_the_same_on_every_set(void)
{
    static const size_t sizes[] = {
        0, 1, 15, 16, 17, 33, 1000, GCOMP_CHUNK - 1, GCOMP_CHUNK, GCOMP_CHUNK + 1, 3 * GCOMP_CHUNK + 77};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (int kind = 0; kind < 2; kind++) {
            size_t n = sizes[k];
            float *x = floats(n);
            double exact = 0, first = 0;
            int known = 0;
            for (size_t i = 0; i < n; i++) {
                x[i] = sample(kind, 3, i);
                exact += (double)x[i] * (double)x[i];
            }
            FOR_EACH_SET(s) {
                double got = gcomp__sets[s]->common->squares(x, n);
                CHECK(fabs(got - exact) <= 1e-11 * exact);
                if (known) CHECK(memcmp(&got, &first, sizeof got) == 0);
                first = got;
                known = 1;
            }
            free(x);
        }
}

static void test_scale_copy_equals_the_plain_loop(void)
{
    FOR_EACH_SET(s)
        for (size_t n = 0; n <= 67; n++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int type = GCOMP_F32; type <= GCOMP_BF16; type++)
                    for (size_t k = 0; k < 6; k++) {
                        dense d = dense_make(n, kind, type);
                        size_t begin = n / 5, wrong = 0;
                        uint32_t most = 0;
                        gcomp__source in;
                        memset(&in, 0, sizeof in);
                        in.grad = d.given;
                        in.dtype = d.type;
                        in.scale = scales[k % 3];
                        in.residual.floats = k < 3 ? d.residual : NULL;
                        uint32_t worst = gcomp__sets[s]->common->scale_copy(d.y, &in, begin, n, 0.25f);
                        for (size_t i = begin; i < n; i++) {
                            float p = product(in.scale, d.grad[i]);
                            if (in.residual.floats) p = sum(p, d.residual[i]);
                            if ((bits_of(p) & 0x7FFFFFFF) > most) most = bits_of(p) & 0x7FFFFFFF;
                            if (isfinite(p)) wrong += bits_of(d.y[i]) != bits_of(product(p, 0.25f));
                        }
                        CHECK(wrong == 0);
                        CHECK(most < 0x7F800000 ? worst == most : worst >= 0x7F800000);
                        dense_free(&d);
                    }
}

static void test_absorb_equals_the_plain_loop(void)
{
    FOR_EACH_SET(s)
        for (size_t n = 1; n <= 67; n++)
            for (int kind = 0; kind < KINDS; kind++)
                for (int type = GCOMP_F32; type <= GCOMP_BF16; type++)
                    for (size_t k = 0; k < 12; k++) { /* scale; y missing, apart, or the gradient itself; residual missing */
                        dense d = dense_make(n, kind, type), before = dense_make(n, kind, type);
                        size_t wrong = 0;
                        gcomp__sink sink;
                        memset(&sink, 0, sizeof sink);
                        sink.ending = GCOMP__COMMIT;
                        sink.fresh = 1;
                        sink.weight = 1;
                        sink.n = n;
                        sink.in.grad = d.given;
                        sink.in.dtype = d.type;
                        sink.in.scale = scales[k % 3];
                        sink.in.residual.floats = k < 9 ? d.residual : NULL;
                        sink.y.floats = k / 3 == 0 ? NULL : k / 3 == 2 && type == GCOMP_F32 ? d.grad : d.y;
                        gcomp__sets[s]->common->absorb(&sink, 0);
                        for (size_t i = 0; i < n; i++) {
                            float p = sum(product(sink.in.scale, before.grad[i]), before.residual[i]);
                            if (sink.in.residual.floats && isfinite(p)) wrong += bits_of(d.residual[i]) != bits_of(p);
                            if (sink.y.floats) wrong += bits_of(sink.y.floats[i]) != 0;
                        }
                        CHECK(wrong == 0);
                        dense_free(&d);
                        dense_free(&before);
                    }
}

/* ---------------- codecs through each set: payloads, and all ways to decode */

static void test_payloads_and_every_ending_equal_those_of_plain_loops(void)
{
    static const char *const texts[] = {"none", "fp16", "bf16", "sign:block=16", "sign:block=tensor", "topk:density=0.2",
                                        "topk:density=0.2+bf16"};
    static unsigned char scratch[GCOMP_SCRATCH(300)];
    for (size_t c = 0; c < sizeof texts / sizeof texts[0]; c++)
        for (size_t n = 0; n <= 300; n += n < 67 ? 1 : 29)
            for (int kind = 0; kind < KINDS; kind++) {
                gcomp_codec codec;
                gcomp_input in;
                dense d = dense_make(n, kind == 3 ? 1 : kind, GCOMP_F32);
                size_t first = 0, room = GCOMP_BOUND(n);
                unsigned char *reference = (unsigned char *)malloc(room);
                float *y = floats(n), *out = floats(n);
                int known = 0;
                memset(&in, 0, sizeof in);
                in.scale = 1;
                in.grad = d.grad;
                in.residual = d.residual;
                in.rows = n;
                in.key = gcomp_key_make(1, 0, 0, 0);
                CHECK(gcomp_codec_parse(&codec, texts[c], NULL, 0) == GCOMP_OK);
                FOR_EACH_SET(s) {
                    gcomp_exec exec;
                    size_t length = 0, wrong = 0;
                    unsigned char *payload = (unsigned char *)malloc(room);
                    memset(&exec, 0, sizeof exec);
                    exec.isa = gcomp__sets[s]->isa;
                    exec.scratch = scratch;
                    exec.scratch_bytes = sizeof scratch;
                    CHECK(gcomp_encode(&codec, &in, &exec, payload, room, &length) == GCOMP_OK);
                    CHECK(add_checksum(payload, length) == GCOMP_OK);
                    if (!known) {
                        memcpy(reference, payload, length);
                        first = length;
                    }
                    known = 1;
                    CHECK(length == first && memcmp(reference, payload, length) == 0);
                    unsigned char *exact = (unsigned char *)malloc(length); /* no byte behind the end may be read */
                    memcpy(exact, payload, length);
                    CHECK(gcomp_decode(exact, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n && c < 3; i++) { /* dense ones: the value itself, rounded to the format */
                        float p = sum(d.grad[i], d.residual[i]);
                        uint16_t h = half_of(p);
                        float m = value_of_half(h & 0x7FFF);
                        float e = c == 0 ? p : c == 1 ? (h & 0x8000 ? -m : m) : float_of((uint32_t)bfloat_of(p) << 16);
                        wrong += bits_of(y[i]) != bits_of(e);
                    }
                    CHECK(wrong == 0);
                    for (size_t i = 0; i < n; i++) out[i] = d.grad[i];
                    CHECK(gcomp_decode_add(exact, length, 0.7f, out, GCOMP_F32, n, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) /* the sign of a zero that was not sent is not part of the promise */
                        wrong += out[i] != sum(d.grad[i], product(y[i], 0.7f));
                    CHECK(wrong == 0);
                    const void *payloads[3];
                    size_t lengths[3];
                    for (size_t i = 0; i < 3; i++) {
                        payloads[i] = exact;
                        lengths[i] = length;
                    }
                    CHECK(gcomp_decode_mean(payloads, lengths, 3, out, GCOMP_F32, n, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) {
                        float t = product(y[i], 1.0f / 3.0f);
                        wrong += out[i] != sum(sum(t, t), t);
                    }
                    CHECK(wrong == 0);
                    for (size_t i = 0; i < n; i++) out[i] = d.residual[i];
                    CHECK(gcomp_retain(exact, length, &in, out, &exec) == GCOMP_OK);
                    for (size_t i = 0; i < n; i++) wrong += out[i] != sum(sum(d.grad[i], d.residual[i]), -y[i]);
                    CHECK(wrong == 0);
                    free(payload);
                    free(exact);
                }
                free(reference);
                free(y);
                free(out);
                dense_free(&d);
            }
}

static void test_collect_keeps_what_reaches_the_guess_in_order(void)
{
    size_t row = 0;
    while (gcomp__methods[row] && strcmp(gcomp__methods[row]->name, "topk")) row++;
    CHECK(gcomp__methods[row] != NULL);
    if (!gcomp__methods[row]) return;
    FOR_EACH_SET(s) {
        const gcomp__sparse_kernels *kernels = gcomp__sets[s]->sparse;
        for (size_t n = 0; n <= 200; n += n < 67 ? 1 : 19)
            for (int kind = 0; kind < KINDS; kind++)
                for (size_t g = 0; g < 4; g++) {
                    static const uint32_t guesses[] = {1, 0x00000100, 0x3F000000, 0x7F800000};
                    dense d = dense_make(n, kind, GCOMP_F32);
                    gcomp__selection job;
                    size_t at = 0, wrong = 0, rounds = 0;
                    if (n > 2) d.grad[n - 1] = 0.5f;     /* exactly at a guess, and just below it */
                    if (n > 2) d.grad[n - 2] = -0.49999997f;
                    if (n > 2) d.residual[n - 1] = d.residual[n - 2] = 0;
                    if (n > 40) d.grad[17] = NAN;
                    memset(&job, 0, sizeof job);
                    job.in.grad = d.grad;
                    job.in.scale = 1;
                    job.in.residual.floats = g & 1 ? d.residual : NULL;
                    job.n = job.end = n;
                    job.guess = guesses[g];
                    job.under = guesses[kind % 2 ? g : (g + 1) % 4]; /* the same for both signs, or another */
                    job.apart = job.under != job.guess;
                    job.capacity = 48; /* small, so that it stops and goes on */
                    job.value = floats(job.capacity + 16);
                    job.index = (uint32_t *)malloc(4 * (job.capacity + 16));
                    while (job.at < n && rounds++ < 100) {
                        kernels->collect(&job);
                        wrong += job.count > job.capacity;
                        for (size_t i = 0; i < job.count; i++, at++) {
                            for (;; at++) { /* the next that reaches it */
                                float p = at < n ? (job.in.residual.floats ? sum(d.grad[at], d.residual[at]) : d.grad[at]) : 0;
                                if (at >= n || reaches(&job, p)) break;
                            }
                            if (at >= n) {
                                wrong++;
                                break;
                            }
                            float p = job.in.residual.floats ? sum(d.grad[at], d.residual[at]) : d.grad[at];
                            wrong += job.index[i] != at || (bits_of(job.value[i]) != bits_of(p) && !isnan(p));
                        }
                        for (; at < job.at; at++) { /* what it went past does not reach it */
                            float p = job.in.residual.floats ? sum(d.grad[at], d.residual[at]) : d.grad[at];
                            wrong += (size_t)reaches(&job, p);
                        }
                        job.count = 0;
                    }
                    for (size_t i = 0; job.apart && i < n; i++) { /* each was counted once, by its sign */
                        const uint32_t p = bits_of(job.in.residual.floats ? sum(d.grad[i], d.residual[i]) : d.grad[i]);
                        job.sides[p >> 31] -= (p & 0x7fffffff) != 0;
                    }
                    CHECK(wrong == 0);
                    CHECK(job.at == n && job.sides[0] == 0 && job.sides[1] == 0);
                    free(job.value);
                    free(job.index);
                    dense_free(&d);
                }
    }
}

/* ---------------- low rank: the inner product and the update of orthonormalisation */

static void test_dot_and_update_equal_plain_loops(void)
{
    size_t row = 0;
    while (gcomp__methods[row] && strcmp(gcomp__methods[row]->name, "powersgd")) row++;
    CHECK(gcomp__methods[row] != NULL);
    if (!gcomp__methods[row]) return;
    for (size_t n = 0; n <= 100; n++) {
        float *x = floats(n), *y = floats(n), *z = floats(n);
        double exact = 0, size = 0, first = 0;
        int known = 0;
        for (size_t i = 0; i < n; i++) {
            x[i] = sample(0, 1, i);
            y[i] = sample(0, 2, i);
            exact += (double)x[i] * (double)y[i];
            size += fabs((double)x[i] * (double)y[i]);
        }
        FOR_EACH_SET(s) {
            const gcomp__gemm_kernels *kernels = (const gcomp__gemm_kernels *)gcomp__methods[row]->kernels[gcomp__sets[s]->isa];
            double got = kernels->dot(x, y, n);
            CHECK(fabs(got - exact) <= 1e-12 * size);
            if (known) CHECK(memcmp(&got, &first, sizeof got) == 0);
            first = got;
            known = 1;
            size_t wrong = 0;
            for (size_t i = 0; i < n; i++) z[i] = y[i];
            kernels->add_multiple(z, 0.37f, x, n);
            for (size_t i = 0; i < n; i++) {
                float e = fmaf(0.37f, x[i], y[i]); /* one rounding, on every set */
                wrong += bits_of(z[i]) != bits_of(e);
            }
            CHECK(wrong == 0);
        }
        free(x);
        free(y);
        free(z);
    }
}

static void test_low_rank_products_are_chains_in_the_stated_order(void)
{
    FOR_EACH_SET(s)
        for (size_t k = 0; k < sizeof product_shapes / sizeof *product_shapes; k++)
            for (int way = 0; way < 3; way++) check_products(gcomp__sets[s], product_shapes + k, way == 2 ? 0.3f : 1.0f, way > 0);
}

static void test_orthonormalisation_survives_every_matrix(void)
{
    enum { N = 1000, MOST = 32 };
    static float p[N * MOST];
    static const double scales[] = {1, 1e-30, 1e30};
    FOR_EACH_SET(s) {
        const gcomp__gemm_kernels *kernels =
            (const gcomp__gemm_kernels *)gcomp__row_powersgd.kernels[gcomp__sets[s]->isa];
        for (size_t r = 4; r <= MOST; r *= r == 4 ? 4 : 2)
            for (int kind = 0; kind < 5; kind++)
                for (size_t k = 0; k < 3; k++) {
                    size_t zeros;
                    for (size_t c = 0; c < r; c++)
                        for (size_t i = 0; i < N; i++) {
                            double x = (double)sample(0, 77, i);
                            const double own = (double)sample(0, c, i);
                            if (kind == 0) x = own;
                            if (kind == 1) x += pow(1e-6, (double)c / (double)(r - 1)) * own; /* condition 1e6 */
                            if (kind == 2) x = (double)sample(0, c % 3, i);                   /* rank 3 */
                            if (kind == 3) x = c % 2 ? 0 : own;                               /* zero columns */
                            if (kind == 4) x = i == c / 2;                                    /* twice the same unit vector */
                            p[c * N + i] = (float)(scales[k] * x);
                        }
                    gcomp__orthonormalise(kernels, p, N, r);
                    CHECK(skewness(p, N, r, &zeros) <= 1e-5);
                    CHECK(kind > 1 || zeros == 0);
                    CHECK(zeros <= r / 2 || kind == 2);
                }
    }
}

static void test_gaps_are_added_up_as_by_the_plain_loop(void)
{
    for (size_t c = 0; c < INDEX_COUNTS; c++)
        for (unsigned bits = 0; bits <= 32; bits += 4) {
            size_t k = index_counts[c], n;
            uint32_t *index = indices_of(k, bits, &n);
            for (unsigned base = 0; base <= 28; base += 7) {
                uint64_t sums[4] = {0, 0, 0, 0};
                size_t packed = 0;
                for (size_t i = 0; i < k; i += 128) {
                    size_t stop = k - i < 128 ? k : i + 128;
                    unsigned width = 0;
                    for (size_t j = i; j < stop; j++) {
                        uint64_t gap = j ? index[j] - index[j - 1] - 1 : index[0];
                        for (unsigned b = 0; b < 4; b++) sums[b] += gap >> (base + b);
                        while (gap >> width) width++;
                    }
                    packed += 1 + ((stop - i) * width + 7) / 8;
                }
                FOR_EACH_SET(s) {
                    gcomp__gap_sizes sizes;
                    memset(&sizes, 0, sizeof sizes);
                    gcomp__sets[s]->sparse->gaps(index, k, base, &sizes);
                    CHECK(!memcmp(sizes.quotients, sums, sizeof sums) && sizes.packed == packed);
                }
            }
            free(index);
        }
}

/* By every coder that is not absurdly long, in batches of every size; nothing is written behind
   the end. */
static void test_indices_come_back_in_any_batches(void)
{
    static const size_t batches[] = {1, 3, 15, 16, 17, 128, 1000};
    for (size_t c = 0; c < INDEX_COUNTS; c++)
        for (unsigned bits = 0; bits <= 32; bits += 4)
            for (unsigned coder = 0; coder < 256; coder = coder == 32 ? GCOMP__CODER_RAW : coder + 1) {
                size_t k = index_counts[c], n, bytes = 0;
                uint32_t *index = indices_of(k, bits, &n), got[1000];
                gcomp__gap_sizes sizes;
                uint64_t rice = 0;
                uint8_t *exact;
                for (size_t i = 0; i < k; i++) {
                    const uint64_t gap = i ? index[i] - index[i - 1] - 1 : index[0];
                    rice += 1 + coder + (gap >> coder % 64);
                }
                memset(&sizes, 0, sizeof sizes);
                gcomp__sets[0]->sparse->gaps(index, k, 0, &sizes);
                if (coder == GCOMP__CODER_RAW) bytes = 4 * k;
                else if (coder == GCOMP__CODER_PACKED) bytes = sizes.packed;
                else if (coder == GCOMP__CODER_BITMAP) bytes = (n + 7) / 8;
                else bytes = (size_t)(rice + 7) / 8;
                if (bytes > 100000) {
                    free(index);
                    continue;
                }
                exact = (uint8_t *)malloc(bytes + 8);
                memset(exact, 0x5a, bytes + 8);
                gcomp__put_indices(exact, index, k, coder, bytes);
                for (size_t i = 0; i < 8; i++) CHECK(exact[bytes + i] == 0x5a);
                for (size_t b = 0; b < 7; b++) {
                    gcomp__indices x;
                    size_t at = 0;
                    gcomp__indices_open(&x, exact, bytes, coder, k, n);
                    for (size_t more; x.left; at += more) {
                        more = gcomp__next_indices(&x, got, batches[(b + (b == 6 ? at : 0)) % 7]);
                        CHECK(more > 0 && !memcmp(got, index + at, 4 * more));
                        if (!more) break;
                    }
                    CHECK(at == k && gcomp__indices_end(&x) == GCOMP_OK);
                }
                free(exact);
                free(index);
            }
}

/* ---------------- levels by states */

/* The levels q[0 .. n-1], of lane 0 and on, from the last to the first, with the formulas of >>states: bytes to before `end`. */
static uint8_t *plain_put(const gcomp__shares *shares, uint32_t *x, size_t lanes, const uint8_t *q, size_t n, uint8_t *end)
{
    while (n) {
        const size_t some = (n - 1) % lanes + 1;
        n -= some;
        for (size_t j = some; j-- > 0;) {
            const int level = (int8_t)q[n + j], size = level < 0 ? -level : level;
            if ((unsigned)size >= shares->sizes || !shares->f[size]) *--end = q[n + j];
        }
        for (size_t j = some; j-- > 0;) {
            const int level = (int8_t)q[n + j], size = level < 0 ? -level : level;
            const int escaped = (unsigned)size >= shares->sizes || !shares->f[size];
            uint32_t f = escaped ? shares->f[128] : shares->f[size], start = 0;
            for (int t = 0; t < (escaped ? 128 : size); t++) start += (t ? 2u : 1u) * shares->f[t];
            if (level < 0 && !escaped) start += f;
            if (x[j] >> 22 >= f) {
                *--end = (uint8_t)(x[j] >> 8);
                *--end = (uint8_t)x[j];
                x[j] >>= 16;
            }
            x[j] = (x[j] / f << 9) + x[j] % f + start;
        }
    }
    return end;
}

/* Each f is 1 to 255, and 2 of 3 levels are drawn by the shares. The stream ends where its memory ends. */
static void test_levels_go_to_states_and_back_as_by_plain_loops(void)
{
    enum { MOST = 512 };
    static gcomp__state_writer w;
    static gcomp__state_reader r;
    uint8_t q[MOST], back[MOST], wanted[4 * MOST], out[4 * MOST];
    uint32_t x[32];
    FOR_EACH_SET(s)
        for (size_t round = 0; round < 400; round++) {
            const size_t lanes = (size_t)4 << round % 4, n = round < 40 ? round + 1 : 1 + mix(round) % MOST;
            uint8_t table[1 + 128] = {0};
            gcomp__shares shares;
            unsigned left = 510 - (unsigned)(mix(round + 7) % 200);
            table[0] = (uint8_t)(1 + mix(round + 1) % 60);
            table[1] = (uint8_t)(1 + mix(round + 2) % 2 * 30);
            left -= table[1];
            for (unsigned t = 1; t < table[0]; t++) {
                table[1 + t] = (uint8_t)(round % 5 == 0 && t == 1 ? 200 : mix(round * 100 + t) % 30);
                if (2u * table[1 + t] > left) table[1 + t] = 0;
                left -= 2u * table[1 + t];
            }
            CHECK(gcomp__get_shares(&shares, table) && shares.f[0]);
            for (size_t i = 0; i < n; i++) {
                const unsigned size = (unsigned)(mix(i + 1000 * round) % (i % 3 ? table[0] : 128u));
                q[i] = (uint8_t)(i & 1 ? size : 0 - size);
            }
            for (size_t j = 0; j < 32; j++) w.state[j] = x[j] = 0x8000u << mix(j + round) % 16 | (uint32_t)(mix(j) & 0x7fff);
            gcomp__new_table(&w, &shares);
            w.lanes = (unsigned)lanes;
            uint8_t *const from = plain_put(&shares, x, lanes, q, n, wanted + sizeof wanted);
            uint8_t *const got = gcomp__sets[s]->common->put_states(&w, q, n, out + sizeof out);
            const size_t bytes = (size_t)(wanted + sizeof wanted - from);
            CHECK((size_t)(out + sizeof out - got) == bytes && !memcmp(from, got, bytes) && !memcmp(x, w.state, sizeof x));
            const uint8_t *at = table;
            uint8_t *exact = (uint8_t *)malloc(bytes + !bytes);
            memcpy(exact, from, bytes);
            r.lanes = (unsigned)lanes;
            r.bad = 0;
            r.levels = 127;
            memcpy(r.state, x, sizeof x);
            CHECK(gcomp__read_table(&r, &at, table + sizeof table) == GCOMP_OK && at == table + 1 + table[0]);
            CHECK(gcomp__sets[s]->common->get_states(&r, exact, bytes, back, n) == bytes && !r.bad && !memcmp(back, q, n));
            for (size_t j = 0; j < 32; j++) CHECK(r.state[j] == (0x8000u << mix(j + round) % 16 | (uint32_t)(mix(j) & 0x7fff)));
            free(exact);
        }
}

/* Packed codes as bytes and back, and how many there are of each size. */
static void test_packed_codes_become_bytes_and_back(void)
{
    enum { MOST = 600 };
    for (unsigned bits = 2; bits <= 8; bits *= 2)
        for (size_t n = 0; n <= MOST; n += n < 40 ? 1 : 56) {
            uint8_t packed[MOST] = {0}, room[MOST], back[MOST + 8] = {0};
            uint32_t count[GCOMP__SIZES], wanted[GCOMP__SIZES] = {0};
            int q[MOST];
            for (size_t i = 0; i < n; i++) {
                const int most = (1 << (bits - 1)) - 1;
                q[i] = (int)(mix(i + 7 * n) % (unsigned)(2 * most + 1)) - most;
                packed[i * bits / 8] |= (uint8_t)(((unsigned)q[i] & ((1u << bits) - 1)) << i * bits % 8);
                wanted[abs(q[i])]++;
            }
            const uint8_t *const wide = gcomp__wide_codes(packed, n, bits, room);
            for (size_t i = 0; i < n; i++) CHECK(wide[i] == (uint8_t)q[i]);
            memcpy(back, wide, n);
            gcomp__narrow_codes(back, (n + 7) / 8 * 8, bits);
            CHECK(!memcmp(back, packed, (n * bits + 7) / 8));
            gcomp__count_sizes(packed, n, bits, count);
            CHECK(!memcmp(count, wanted, sizeof count));
        }
}

/* That of the C library is the nearest double, as IEEE 754 asks. */
static void test_roots_are_the_nearest_doubles(void)
{
    uint64_t u = 1;
    size_t wrong = 0;
    for (size_t i = 0; i < 200000; i++) {
        double x;
        u = u * 6364136223846793005u + 1442695040888963407u;
        if (i < 2000) x = (double)i * (i & 1 ? (double)i : 1);
        else if (i < 4000) x = ldexp(1 + (i & 1 ? -1 : 1) * ldexp(1, -52), (int)i - 3000); /* about powers of two */
        else x = ldexp(1 + (double)(u >> 12) * ldexp(1, -52), (int)(i % 2000) - 1000);
        wrong += gcomp__sqrt(x) != sqrt(x) || gcomp__sqrt_bits(x) != sqrt(x);
    }
    CHECK(wrong == 0);
    CHECK(gcomp__sqrt(-1) == 0 && gcomp__sqrt_bits(-1) == 0);
}

static void test_philox_gives_the_published_answers(void)
{
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
        {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu,
         0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
        {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u,
         0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        gcomp__philox(out, known[i], known[i] + 4);
        CHECK(!memcmp(out, known[i] + 6, sizeof out));
    }
}

static void test_keys_differ_where_they_must_and_agree_where_they_must(void)
{
    gcomp_key a = gcomp_key_make(1, 2, 3, 4), b = gcomp_key_make(1, 2, 3, 5);
    CHECK(a.shared == b.shared && a.own != b.own && a.own != a.shared);
    CHECK(gcomp_key_make(2, 2, 3, 4).shared != a.shared && gcomp_key_make(1, 3, 3, 4).shared != a.shared &&
          gcomp_key_make(1, 2, 4, 4).shared != a.shared);
    CHECK(gcomp__stream(a.own, 1) != gcomp__stream(a.own, 2));
}

/* 65,536 draws a key: the mean within 5 standard deviations of 32767.5, and no correlation above
   5 / sqrt(draws). */
static void test_draws_are_uniform_and_uncorrelated_between_neighbours_and_keys(void)
{
    enum { DRAWS = 65536, KEYS = 40 };
    for (int k = 0; k < KEYS; k++) {
        uint64_t w = gcomp__stream(gcomp_key_make(9, (uint64_t)k, 0, 0).own, 1),
                 v = gcomp__stream(gcomp_key_make(9, (uint64_t)k, 0, 1).own, 1);
        double mean = 0, lag = 0, cross = 0, sigma = 65536.0 / sqrt(12.0), limit = 5.0 / sqrt((double)DRAWS);
        double before = gcomp__draw(w, DRAWS) - 32767.5;
        for (uint64_t i = 0; i < DRAWS; i++) {
            double x = gcomp__draw(w, i) - 32767.5, y = gcomp__draw(v, i) - 32767.5;
            mean += x;
            lag += x * before;
            cross += x * y;
            before = x;
        }
        CHECK(fabs(mean / DRAWS) < sigma * limit);
        CHECK(fabs(lag / DRAWS) < sigma * sigma * limit);
        CHECK(fabs(cross / DRAWS) < sigma * sigma * limit);
    }
}

/* ---------------- rows: what their flags say of payloads holds, at their defaults */

static void test_payloads_are_as_the_flags_of_their_rows_say(void)
{
    enum { N = 400, KEYS = 1000 };
    static float p[N], y[N], rest[N];
    static double mean[N];
    static uint8_t payload[2][GCOMP_BOUND(N)], scratch[GCOMP_SCRATCH(N)];
    size_t told = 0;
    for (size_t i = 0; i < N; i++) p[i] = sample(0, 5, i) + sample(0, 6, i) + sample(0, 7, i);
    for (size_t r = 0; gcomp__methods[r]; r++) {
        const unsigned flags = gcomp__methods[r]->flags;
        const int unbiased = (flags & GCOMP__UNBIASED) != 0;
        gcomp_codec codec;
        gcomp_exec exec = {GCOMP_ISA_AUTO, scratch, sizeof scratch, {NULL, NULL}};
        gcomp_input in;
        size_t length[2];
        double variance = 0, bias = 0;
        CHECK(gcomp_codec_parse(&codec, gcomp__methods[r]->name, NULL, 0) == GCOMP_OK);
        if (!gcomp_bound(&codec, N, NULL)) continue; /* of steps alone */
        memset(&in, 0, sizeof in);
        in.scale = 1;
        memset(mean, 0, sizeof mean);
        in.rows = N;
        for (uint64_t k = 0; k < (unbiased ? KEYS : 1); k++) {
            in.grad = p;
            in.key = gcomp_key_make(3, k, 0, 0);
            CHECK(gcomp_encode(&codec, &in, &exec, payload[0], sizeof payload[0], &length[0]) == GCOMP_OK);
            CHECK(gcomp_decode(payload[0], length[0], y, GCOMP_F32, N, &exec) == GCOMP_OK);
            for (size_t i = 0; i < N; i++) {
                mean[i] += (double)y[i] / KEYS;
                variance += ((double)y[i] - p[i]) * ((double)y[i] - p[i]) / KEYS;
            }
        }
        for (size_t i = 0; i < N; i++) bias += (mean[i] - p[i]) * (mean[i] - p[i]);
        if (unbiased) CHECK(variance > 0 && bias * KEYS < 1.5 * variance); /* 1, and 5 standard deviations more */
        memset(rest, 0, sizeof rest);
        CHECK(gcomp_retain(payload[0], length[0], &in, rest, &exec) == GCOMP_OK);
        for (size_t i = 0; i < N && flags & GCOMP__CONSERVES_ELEMENT; i++)
            CHECK(bits_of(sum(p[i], -y[i])) == bits_of(rest[i]));
        in.grad = y;
        CHECK(gcomp_encode(&codec, &in, &exec, payload[1], sizeof payload[1], &length[1]) == GCOMP_OK);
        if (flags & GCOMP__IDEMPOTENT) CHECK(length[0] == length[1] && !memcmp(payload[0], payload[1], length[0]));
        told += unbiased + ((flags & GCOMP__IDEMPOTENT) != 0) + ((flags & GCOMP__CONSERVES_ELEMENT) != 0);
    }
    CHECK(told > 20);
}

/* Whether powersgd fetches ahead depends on all that a step reads, not on the tensor at hand
   alone. */
static void test_a_tensor_knows_what_else_the_step_holds(void)
{
    enum { SMALL = 40 * 50, LARGE = 1 << 21 };
    const gcomp_tensor small = {.name = "small", .rows = 40, .cols = 50};
    const gcomp_tensor large = {.name = "large", .rows = LARGE, .cols = 1, .codec = "none"};
    gcomp *gc;
    CHECK(gcomp_open(&gc, &(gcomp_desc){.codec = "powersgd:rank=2", .comm.world = 1}) == GCOMP_OK);
    CHECK(gcomp_add_tensor(gc, &small) == GCOMP_OK);
    gcomp__know_places(gc);
    CHECK(gcomp__work_of(gc, gc->tensors).together == SMALL && !gcomp__powersgd_is_uncached(SMALL, 2));
    CHECK(gcomp_add_tensor(gc, &large) == GCOMP_OK);
    gcomp__know_places(gc);
    CHECK(gcomp__work_of(gc, gc->tensors).together == SMALL + LARGE && gcomp__powersgd_is_uncached(SMALL + LARGE, 2));
    gcomp_close(gc);
}

/* ---------------- sums of which only the largest are applied */

/* 4096 owners have 5000 ones and 100 twos each, of which a million are wanted: there are more ones than a float can count. */
static void test_counts_of_sums_are_exact_beyond_what_a_float_holds(void)
{
    enum { WORLD = 4096, ONES = 5000, TWOS = 100, ALL = ONES + TWOS, K = 1000000 };
    static float sums[ALL], own[2048], all[2048];
    const gcomp_tensor tensor = {.name = "w", .rows = 4096, .cols = 8192, .codec = "topk:density=0.0001,global=1"};
    uint64_t sent = 0;
    size_t least = ALL, most = 0;
    gcomp *gc;
    CHECK(gcomp_open(&gc, &(gcomp_desc){.comm.world = WORLD, .aggregate = GCOMP_AGGREGATE_SHARDS, .no_error_feedback = 1}) == GCOMP_OK);
    CHECK(gcomp_add_tensor(gc, &tensor) == GCOMP_OK && gcomp__reserve_scratch(gc) == GCOMP_OK);
    gcomp__slot *slot = gc->tensors;
    gcomp__choose_mean(slot, &gc->desc);
    CHECK(slot->at.applied == 3356 && gcomp__tally_floats(slot) == 2 * gcomp__bins(3356) && gcomp__bins(K) == 1024);
    slot->at.applied = K;
    CHECK(gcomp__tally_floats(slot) == 2048 && gcomp__low_part(WORLD) == 12);
    for (size_t i = 0; i < ALL; i++) sums[i] = i % (ALL / TWOS) ? -1.0f : 2.0f;
    for (int w = 0; w < WORLD; w++) { /* sums of floats, as an allreduce makes them */
        gcomp__count_sums(gc, slot, sums, ALL, (size_t)w, own);
        for (size_t i = 0; i < 2048; i++) all[i] += own[i];
    }
    const gcomp__border border = gcomp__border_by(gc, slot, all);
    CHECK(border.there == (uint64_t)WORLD * ONES && border.wanted == K - (uint64_t)WORLD * TWOS);
    CHECK(border.least <= 0x3f800000u && border.above > 0x3f800000u && border.above <= 0x40000000u);
    const gcomp__selection all_of_them = {.value = sums, .count = ALL};
    for (size_t w = 0; w < WORLD; w++) {
        const size_t within = gcomp__sums_within(&border, &all_of_them, 0x12345678u + (uint32_t)w * 0x9e3779b9u);
        sent += within;
        least = within < least ? within : least;
        most = within > most ? within : most;
    }
    CHECK(most <= least + 1 && sent > K - 64 && sent < K + 64); /* the roundings of the owners are even */
    gcomp_close(gc);
}

int main(void)
{
    RUN(test_the_sets_that_ran_are_named);
    RUN(test_crc32c_has_its_check_value);
    RUN(test_crc32c_of_every_length_and_offset_is_right);
    RUN(test_crc32c_of_long_data_is_right);
    RUN(test_every_half_and_bfloat_widens_exactly);
    RUN(test_narrowing_rounds_to_nearest_even_and_saturates);
    RUN(test_bfloats_round_to_nearest_even_and_saturate);
    RUN(test_conversions_of_every_length_are_right);
    RUN(test_worst_is_the_largest_magnitude_and_finds_what_is_not_finite);
    RUN(test_squares_add_up_the_same_on_every_set);
    RUN(test_scale_copy_equals_the_plain_loop);
    RUN(test_absorb_equals_the_plain_loop);
    RUN(test_payloads_and_every_ending_equal_those_of_plain_loops);
    RUN(test_collect_keeps_what_reaches_the_guess_in_order);
    RUN(test_dot_and_update_equal_plain_loops);
    RUN(test_low_rank_products_are_chains_in_the_stated_order);
    RUN(test_orthonormalisation_survives_every_matrix);
    RUN(test_gaps_are_added_up_as_by_the_plain_loop);
    RUN(test_indices_come_back_in_any_batches);
    RUN(test_levels_go_to_states_and_back_as_by_plain_loops);
    RUN(test_packed_codes_become_bytes_and_back);
    RUN(test_payloads_are_as_the_flags_of_their_rows_say);
    RUN(test_a_tensor_knows_what_else_the_step_holds);
    RUN(test_counts_of_sums_are_exact_beyond_what_a_float_holds);
    RUN(test_roots_are_the_nearest_doubles);
    RUN(test_philox_gives_the_published_answers);
    RUN(test_keys_differ_where_they_must_and_agree_where_they_must);
    RUN(test_draws_are_uniform_and_uncorrelated_between_neighbours_and_keys);
    return test_end();
}
