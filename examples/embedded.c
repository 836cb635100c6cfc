/* embedded.c - a device without a heap learns on its own data, and sends what it learned by radio,
   244 bytes at a time.

   Shows     the codec layer alone, with static buffers whose sizes are constant expressions:
             gcomp_codec_parse, gcomp_encode, gcomp_retain, gcomp_peek,
             gcomp_decode_add; payloads in pieces, some of which are lost
   Leaves    the radio: the pieces go straight to the server, which is part of the same program and
             may print
   Build     cc -Os -I. -c examples/embedded_gcomp.c -o build/embedded_gcomp.o
             cc -Os -I. -Iexamples/adapters examples/embedded.c build/embedded_gcomp.o -o build/embedded
   Run       build/embedded

   The device sends a twentieth of each gradient, in 4 bits an element. It keeps the rest in
   `residual` and adds that to the next gradient. If a payload did not arrive whole, the device adds
   it back to the residual: nothing is lost. */

#include "gcomp.h"
#include "args.h"

#include <stdio.h>
#include <string.h>

enum { COUNT = 4096, STEPS = 200, PIECE = 244, HEAD = 4, BODY = PIECE - HEAD };

/* ---- the device */

static float gradient[COUNT];
static float residual[COUNT];
static unsigned char payload[GCOMP_BOUND(COUNT)]; /* suffices for every codec */
static unsigned char scratch[GCOMP_SCRATCH(COUNT)];
static double wanted[COUNT]; /* what it has wanted to send so far; for the check at the end only */

/* Stands for a backward pass: a few large elements, many small ones, all different in every
   step. */
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

/* Makes a payload of gradient and residual. What is not sent stays in the residual. */
static gcomp_result make_payload(const gcomp_codec *codec, uint32_t step, size_t *length)
{
    gcomp_input in = {0};
    in.scale = 1;
    gcomp_exec exec = {0};
    gcomp_result result;
    in.grad = gradient;
    in.residual = residual;
    in.rows = COUNT;
    in.key = gcomp_key_make(1, step, 0, 0);
    in.checksum = 1;
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    result = gcomp_encode(codec, &in, &exec, payload, sizeof payload, length);
    if (result == GCOMP_OK) result = gcomp_retain(payload, *length, &in, residual, &exec);
    return result;
}

/* Makes piece `index` of the payload: the step (2 bytes), the index, the number of pieces, then up
   to 240 bytes of the payload. Returns the length of the piece. */
static size_t make_piece(unsigned char piece[PIECE], uint32_t step, size_t index, size_t length)
{
    size_t at = index * BODY, bytes = length - at < BODY ? length - at : BODY;
    piece[0] = (unsigned char)step;
    piece[1] = (unsigned char)(step >> 8);
    piece[2] = (unsigned char)index;
    piece[3] = (unsigned char)((length + BODY - 1) / BODY);
    memcpy(piece + HEAD, payload + at, bytes);
    return HEAD + bytes;
}

/* ---- the server */

static float received[COUNT];
static unsigned char inbox[GCOMP_BOUND(COUNT)];
static size_t inbox_bytes, inbox_pieces;
static unsigned inbox_step;

/* Receives a piece. Pieces of a payload come in order or not at all. Returns 1 when a payload is
   complete and valid, and was added. */
static int take_piece(const unsigned char *piece, size_t bytes)
{
    unsigned step;
    gcomp_info info;
    if (bytes <= HEAD || bytes > PIECE) return 0;
    step = (unsigned)piece[0] | (unsigned)piece[1] << 8;
    if (piece[2] == 0) { /* a new payload; an unfinished one is dropped */
        inbox_step = step;
        inbox_bytes = inbox_pieces = 0;
    }
    if (step != inbox_step || piece[2] != inbox_pieces || inbox_bytes + bytes - HEAD > sizeof inbox)
        return 0;
    memcpy(inbox + inbox_bytes, piece + HEAD, bytes - HEAD);
    inbox_bytes += bytes - HEAD;
    inbox_pieces++;
    if (inbox_pieces == 1 &&
        (gcomp_peek(inbox, inbox_bytes, &info) != GCOMP_OK || info.count != COUNT))
        inbox_pieces = 256; /* the header is in the first piece: nothing that follows can help */
    if (inbox_pieces != piece[3]) return 0;
    /* gcomp_decode_add checks before it adds. */
    return gcomp_decode_add(inbox, inbox_bytes, 1.0f, received, GCOMP_F32, COUNT, NULL) == GCOMP_OK;
}

int main(int argc, char **argv)
{
    gcomp_codec codec;
    gcomp_result result;
    char why[160] = "";
    size_t sent = 0, pieces = 0, lost = 0;
    double most = 0;
    args_none(argc, argv, "usage: embedded\n  a device without a heap sends what it learned, 244 bytes at a time\n");
    result = gcomp_codec_parse(&codec, "topk:density=0.05+int:bits=4", why, sizeof why);
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    for (uint32_t step = 0; step < STEPS && result == GCOMP_OK; step++) {
        size_t length = 0;
        int arrived = 0;
        make_gradient(step);
        result = make_payload(&codec, step, &length);
        /* Retry (not finite): nothing is sent, nothing has changed. Any other error is fatal. There
           are no collectives, so nothing has to be resynchronised. */
        if (gcomp_result_class(result) == GCOMP_CLASS_RETRY) {
            result = GCOMP_OK;
            continue;
        }
        for (size_t index = 0; index * BODY < length && result == GCOMP_OK; index++) {
            unsigned char piece[PIECE];
            size_t bytes = make_piece(piece, step, index, length);
            sent += bytes;
            pieces++;
            if (pieces % 17 != 0) /* every 17th piece is lost */
                arrived = take_piece(piece, bytes);
        }
        if (result == GCOMP_OK && !arrived) { /* no acknowledgement: back to the residual */
            lost++;
            result = gcomp_decode_add(payload, length, 1.0f, residual, GCOMP_F32, COUNT, NULL);
        }
    }
    if (result != GCOMP_OK) {
        fprintf(stderr, "%s\n", gcomp_result_string(result));
        return 1;
    }
    for (size_t i = 0; i < COUNT; i++) {
        double missing = wanted[i] - (double)received[i] - (double)residual[i];
        most = missing > most ? missing : -missing > most ? -missing : most;
    }
    printf("%d steps of %d elements: %zu bytes in %zu pieces instead of %zu; %zu "
           "payloads lost with a piece\n",
           STEPS, COUNT, sent, pieces, (size_t)STEPS * COUNT * 4, lost);
    printf("wanted - received - residual: at most %.1e, nothing is lost\n", most);
    printf("static memory: payload %zu, scratch %zu, residual %zu bytes\n", sizeof payload,
           sizeof scratch, sizeof residual);
    return most < 1e-4 && lost > 10 && pieces > 2 * STEPS - 20 ? 0 : 1;
}
