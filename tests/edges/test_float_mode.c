/* Proves that the caller's floating-point mode changes no bits, and that the caller gets it back.
   With GCOMP__KEEP_MODE it proves what holds on machines where the library cannot set the mode: a
   mode other than the default is an error, and nothing has changed. test_api tries more modes, on
   x86. */

#define _POSIX_C_SOURCE 200809L /* alarm */

#include "codecs.h"
#include "test.h"

#include <fenv.h>
#include <math.h>
#include <unistd.h>

enum { COUNT = 40 * 60, OUT = 3 * GCOMP_BOUND(COUNT) + 8 * COUNT };

/* Rounding modes, and with the highest bit flushing of subnormals where the machine can: 0 is
   the default. */
static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST};
enum { MODES = 5 };

static int flush(int on) /* returns 0 where the machine cannot */
{
#if defined(__SSE2__)
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? mode | 0x8040u : mode & ~0x8040u);
#elif defined(__aarch64__)
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    mode = on ? mode | 1ul << 24 : mode & ~(1ul << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#elif defined(__arm__)
    unsigned mode;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(mode));
    mode = on ? mode | 1u << 24 : mode & ~(1u << 24);
    __asm__ volatile("vmsr fpscr, %0" : : "r"(mode));
#else
    (void)on;
    return 0;
#endif
    return 1;
}

static int flushes(void)
{
    const volatile float least = 1.1754943508222875e-38f, half = 0.5f;
    const volatile float product = least * half;
    return product == 0;
}

/* Writes the payload of a codec, what it decodes to, and the means of an exchange to `out`, one
   after the other: `length` bytes. Returns the first error. */
static gcomp_result calculate(const char *text, int has_payload, const float *grad, unsigned char *out, size_t *length)
{
    static unsigned char scratch[GCOMP_SCRATCH(COUNT)], payload[GCOMP_BOUND(COUNT)];
    static float y[COUNT];
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    gcomp_desc desc;
    gcomp_tensor tensor;
    const gcomp_step first = GCOMP_STEP; /* dgc wants an epoch */
    gcomp_result result;
    gcomp *gc = NULL;
    float *grads[1];
    size_t bytes;
    memset(&in, 0, sizeof in);
    memset(&exec, 0, sizeof exec);
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    in.grad = grad;
    in.rows = COUNT;
    in.scale = 0.3f;
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    *length = 0;
    result = gcomp_codec_parse(&codec, text, NULL, 0);
    if (result != GCOMP_OK) return result;
    if (has_payload) {
        result = gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &bytes);
        if (result == GCOMP_OK) result = gcomp_decode(payload, bytes, y, GCOMP_F32, COUNT, NULL);
        if (result != GCOMP_OK) return result;
        memcpy(out, payload, bytes);
        memcpy(out + bytes, y, sizeof y);
        *length = bytes + sizeof y;
    }
    desc.codec = text;
    tensor.name = "w";
    tensor.rows = 40;
    tensor.cols = COUNT / 40;
    memcpy(y, grad, sizeof y);
    grads[0] = y;
    result = gcomp_open(&gc, &desc);
    if (result == GCOMP_OK) result = gcomp_add_tensor(gc, &tensor);
    if (result == GCOMP_OK) result = exchange_floats(gc, grads, &first);
    if (result == GCOMP_OK) memcpy(out + *length, y, sizeof y);
    *length += sizeof y;
    gcomp_close(gc);
    return result;
}

static void gradient(float *grad, int tiny)
{
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t u = (uint32_t)i * 2654435761u;
        grad[i] = (float)(int32_t)(u ^ u >> 15) / 2147483648.0f;
        if (tiny) grad[i] = ldexpf(grad[i], -130);
    }
}

static void test_the_callers_mode_changes_no_bits_and_comes_back(void)
{
    static float grad[COUNT];
    static unsigned char plain[OUT], strange[OUT];
    for (int tiny = 0; tiny < 2; tiny++) {
        gradient(grad, tiny);
        for (size_t c = 0; c < ALL_CODECS; c++) {
            const char *text = codec_list[c].text;
            const int has_payload = codec_has_payload(text);
            size_t a, b;
            CHECK(calculate(text, has_payload, grad, plain, &a) == GCOMP_OK);
            for (int mode = 0; mode < MODES; mode++) {
                const int rounding = mode < 4 ? modes[mode] : FE_TONEAREST, flushing = mode == 4 && flush(1);
                CHECK(fesetround(rounding) == 0);
                alarm(60); /* whatever the mode, it ends */
                gcomp_result result = calculate(text, has_payload, grad, strange, &b);
                const int after = fegetround(), flushed = flushes();
                CHECK(fesetround(FE_TONEAREST) == 0);
                flush(0);
                CHECK(after == rounding);
                CHECK(flushed == flushing);
#ifdef GCOMP__KEEP_MODE
                CHECK(result == (rounding != FE_TONEAREST || flushing ? GCOMP_FLOAT_MODE : GCOMP_OK));
#else
                if (result != GCOMP_OK || a != b || memcmp(plain, strange, a))
                    printf("# %s, tiny %d, mode %d: %s, or other bits\n", text, tiny, mode, result_name(result));
                CHECK(result == GCOMP_OK && a == b && memcmp(plain, strange, a) == 0);
#endif
            }
        }
    }
    alarm(0);
}

#ifdef GCOMP__KEEP_MODE
static void test_another_mode_in_the_midst_of_a_step_is_an_error_that_changes_nothing(void)
{
    static float grad[COUNT], before[COUNT];
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp_request request;
    gcomp *gc = NULL;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.codec = "int:bits=4";
    desc.aggregate = GCOMP_AGGREGATE_GATHER; /* one worker alone encodes all the same */
    tensor.name = "w";
    tensor.rows = 40;
    tensor.cols = COUNT / 40;
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    for (int at = 0; at < 4; at++) { /* the mode changes before: begin, ready, next, commit */
        gradient(grad, 0);
        memcpy(before, grad, sizeof grad);
        if (at == 0) fesetround(FE_UPWARD);
        CHECK(gcomp_step_begin(gc, NULL) == GCOMP_OK);
        if (at == 1) fesetround(FE_UPWARD);
        CHECK(gcomp_step_ready(gc, 0, grad) == GCOMP_OK);
        if (at == 2) fesetround(FE_UPWARD);
        gcomp_result result;
        int frames = 0;
        for (;;) {
            result = gcomp_step_next(gc, &request);
            if (result != GCOMP_OK || request.kind == GCOMP_DONE) break;
            if (request.kind == GCOMP_ALLGATHER) memcpy(request.recv, request.send, request.stride);
            frames += request.kind == GCOMP_ALLGATHER && request.stride == 64;
            CHECK(gcomp_step_done(gc, request.id, 0) == GCOMP_OK);
        }
        CHECK(result == (at < 3 ? GCOMP_FLOAT_MODE : GCOMP_OK));
        CHECK(frames == 1); /* it tells the others */
        if (at == 3) {
            fesetround(FE_UPWARD);
            CHECK(gcomp_step_commit(gc) == GCOMP_FLOAT_MODE);
        }
        CHECK(strstr(gcomp_error(gc), "floating-point mode") != NULL);
        fesetround(FE_TONEAREST);
        CHECK(memcmp(grad, before, sizeof grad) == 0);
        if (at == 3) CHECK(gcomp_step_commit(gc) == GCOMP_OK && memcmp(grad, before, sizeof grad) != 0);
    }
    gcomp_close(gc);
}

static int told;
static int count_frames(void *user, const void *mine, void *all, size_t bytes)
{
    told += bytes == 64;
    return echo_frame(user, mine, all, bytes);
}

static void test_an_exchange_in_another_mode_tells_the_others(void)
{
    static float grad[COUNT];
    gcomp_desc desc;
    gcomp_tensor tensor;
    gcomp *gc = NULL;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.comm.world = 2;
    desc.comm.allgather = count_frames;
    tensor.name = "w";
    tensor.rows = COUNT;
    tensor.codec = "sign";
    CHECK(gcomp_open(&gc, &desc) == GCOMP_OK && gcomp_add_tensor(gc, &tensor) == GCOMP_OK);
    fesetround(FE_UPWARD);
    CHECK(gcomp_exchange_flat(gc, grad, NULL) == GCOMP_FLOAT_MODE && told == 1);
    fesetround(FE_TONEAREST);
    gcomp_close(gc);
}
#endif

int main(void)
{
    RUN(test_the_callers_mode_changes_no_bits_and_comes_back);
#ifdef GCOMP__KEEP_MODE
    RUN(test_another_mode_in_the_midst_of_a_step_is_an_error_that_changes_nothing);
    RUN(test_an_exchange_in_another_mode_tells_the_others);
#endif
    return test_end();
}
