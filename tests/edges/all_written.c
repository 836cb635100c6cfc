/* Proves that no codec reads a byte that was never written. Run it under MemorySanitizer or
   valgrind, which find such a read. It takes every listed codec with few elements, all ways to
   read a payload, and steps. */
#include "codecs.h"
#include "test.h"

static volatile unsigned odd_sums;

/* Decides something by all bytes. */
static void use(const void *bytes, size_t count)
{
    if (fnv(FNV, bytes, count) & 1) odd_sums++;
}

static void check_steps(const char *text, gcomp_isa isa, float *y, size_t n)
{
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.isa = isa;
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker, who encodes all the same */
    tensor.name = "w";
    tensor.codec = text;
    tensor.rows = n / 8;
    tensor.cols = 8;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    for (int step = 0; step < 3; step++) {
        gcomp_step epoch; /* some methods warm up by epochs */
        epoch = default_step();
        epoch.epoch = (uint32_t)step;
        CHECK(gcomp_exchange_flat(gc, y, &epoch) == GCOMP_OK);
        use(y, 4 * n);
        if (tensor_residual(gc, 0)) use(tensor_residual(gc, 0), 4 * n);
    }
    gcomp_close(gc);
}

static void check_payload(const gcomp_codec *codec, gcomp_isa isa, const gcomp_input *in, size_t n, float *residual, float *y)
{
    const size_t room = scratch_of(codec, n), bound = gcomp_bound(codec, n, NULL);
    uint8_t *scratch = (uint8_t *)malloc(room + 1), *payload = (uint8_t *)malloc(bound);
    const void *payloads[3] = {payload, payload, payload};
    size_t lengths[3], length = 0;
    gcomp_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.isa = isa;
    exec.scratch = scratch;
    exec.scratch_bytes = room;
    CHECK(gcomp_encode(codec, in, &exec, payload, bound, &length) == GCOMP_OK);
    lengths[0] = lengths[1] = lengths[2] = length;
    use(payload, length);
    CHECK(gcomp_decode(payload, length, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    use(y, 4 * n);
    CHECK(gcomp_decode_add(payload, length, 0.5f, y, GCOMP_F32, n, &exec) == GCOMP_OK);
    use(y, 4 * n);
    CHECK(gcomp_retain(payload, length, in, residual, &exec) == GCOMP_OK);
    use(residual, 4 * n);
    for (size_t count = 1; count <= 3; count++) {
        CHECK(gcomp_decode_mean(payloads, lengths, count, y, GCOMP_F32, n, count == 2 ? NULL : &exec) == GCOMP_OK);
        use(y, 4 * n);
    }
    free(scratch);
    free(payload);
}

static void check_codec(const char *text, gcomp_isa isa, size_t n, gcomp_dtype dtype, int feedback)
{
    const size_t bytes = bytes_of_dtype(dtype) * n;
    uint8_t *grad = (uint8_t *)malloc(bytes + 1);
    float *e = (float *)malloc(4 * n + 1), *residual = (float *)malloc(4 * n + 1), *y = (float *)malloc(4 * n + 1);
    gcomp_codec codec;
    gcomp_input in;
    CHECK(gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK);
    for (size_t i = 0; i < n; i++) {
        const float x = (float)((int)(mix(i) % 2001) - 1000) / 500.0f;
        const uint32_t half = (dtype == GCOMP_F16 ? 0x3000u : 0x3e80u) + (uint32_t)(i * 37 & 0xff) + (i & 1 ? 0x8000u : 0);
        e[i] = residual[i] = x / 8;
        y[i] = x;
        if (dtype == GCOMP_F32) memcpy(grad + 4 * i, &x, 4);
        else put_word(grad + 2 * i, half, 2);
    }
    memset(&in, 0, sizeof in);
    in.grad = grad;
    in.dtype = dtype;
    in.rows = n;
    in.residual = feedback ? e : NULL;
    in.scale = feedback ? 0.5f : 1;
    in.key = gcomp_key_make(1, 2, 3, 4);
    if (gcomp_bound(&codec, n, NULL)) check_payload(&codec, isa, &in, n, residual, y);
    if (n && n % 8 == 0 && dtype == GCOMP_F32) check_steps(text, isa, y, n);
    free(grad);
    free(e);
    free(residual);
    free(y);
}

static void test_nothing_is_read_that_was_not_written(void)
{
    static const size_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 32, 40, 48, 65, 100, 192, 208, 255, 257, 1000, 4099};
    for (int isa = 1; isa <= GCOMP_ISA_NEON; isa++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes && isa_available((gcomp_isa)isa); s++)
            for (int dtype = GCOMP_F32; dtype <= (sizes[s] < 300 ? GCOMP_BF16 : GCOMP_F32); dtype++)
                for (int feedback = 0; feedback < 2; feedback++)
                    for (size_t c = 0; c < ALL_CODECS; c++)
                        check_codec(codec_list[c].text, (gcomp_isa)isa, sizes[s], (gcomp_dtype)dtype, feedback);
}

int main(void)
{
    RUN(test_nothing_is_read_that_was_not_written);
    return test_end();
}
