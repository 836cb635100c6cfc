/* static_memory.c - the codec layer on a device without a heap: every buffer is static, its size a constant
   expression.

   Shows     gcomp_codec_parse, gcomp_encode, gcomp_seal, gcomp_retain, gcomp_decode_add;
             GCOMP_BOUND and GCOMP_SCRATCH
   Leaves    the network: here the payload of the device goes straight to the server in the same program
   Build     cc -I. examples/static_memory.c -o build/static_memory
   Run       build/static_memory

   A device learns on its own data and sends a hundredth of each gradient; what it does not send it keeps in
   `residual`, and adds to the next one. With GCOMP_NO_STDLIB the implementation does without malloc too, then
   only the tensors, the step and the exchange need an allocator. */

#define GCOMP_IMPLEMENTATION
#include "gcomp.h"

#include <stdio.h>

enum { COUNT = 4096, STEPS = 200 };

/* The device. */
static float gradient[COUNT];
static float residual[COUNT];
static unsigned char payload[GCOMP_BOUND(COUNT)]; /* suffices for every codec */
static unsigned char scratch[GCOMP_SCRATCH(COUNT)];

/* The server. */
static float received[COUNT];

/* What the device has wanted to send so far. */
static double wanted[COUNT];

/* Stands for a backward pass: a few large elements, many small ones, all different in every step. */
static void make_gradient(uint32_t step)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t x = (i * 2654435761u) ^ (step * 2246822519u);
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        gradient[i] = ((float)(x >> 8) * (1.0f / 16777216.0f) - 0.5f) / (float)(1 + i % 64);
        wanted[i] += (double)gradient[i];
    }
}

/* One step of the device: gradient and residual -> payload; what did not fit stays in the residual. */
static gcomp_result device_step(const gcomp_codec *codec, uint32_t step, size_t *length)
{
    gcomp_input in = {0};
    gcomp_exec exec = {0};
    gcomp_result result;
    in.grad = gradient;
    in.residual = residual;
    in.rows = COUNT;
    in.key = gcomp_key_make(1, step, 0, 0);
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    result = gcomp_encode(codec, &in, &exec, payload, sizeof payload, length);
    if (result == GCOMP_OK)
        result = gcomp_seal(payload, *length, &exec);
    if (result == GCOMP_OK)
        result = gcomp_retain(payload, *length, &in, residual, &exec);
    return result;
}

int main(void)
{
    gcomp_codec codec;
    gcomp_result result;
    char why[160] = "";
    size_t length = 0, sent = 0;
    double most = 0;
    result = gcomp_codec_parse(&codec, "topk:density=0.01", why, sizeof why);
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    for (uint32_t step = 0; step < STEPS && result == GCOMP_OK; step++) {
        make_gradient(step);
        result = device_step(&codec, step, &length);
        sent += length;
        /* The server checks everything it is sent before it touches its own numbers. */
        if (result == GCOMP_OK)
            result = gcomp_decode_add(payload, length, 1.0f, received, COUNT, NULL);
    }
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s\n", gcomp_result_string(result));
        return 1;
    }
    for (size_t i = 0; i < COUNT; i++) {
        double lost = wanted[i] - (double)received[i] - (double)residual[i];
        most = lost > most ? lost : -lost > most ? -lost : most;
    }
    printf("%d steps of %d elements: %zu bytes sent instead of %zu\n", STEPS, COUNT, sent,
           (size_t)STEPS * COUNT * 4);
    printf("wanted - received - residual: at most %.1e, nothing is lost\n", most);
    printf("static memory: payload %zu, scratch %zu, residual %zu bytes\n", sizeof payload, sizeof scratch,
           sizeof residual);
    return most < 1e-4 ? 0 : 1;
}
