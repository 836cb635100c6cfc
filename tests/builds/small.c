/* What the codec layer adds to a small program: check_without.sh links this with and without -DNOTHING, and compares. The codec
   is set by number, which needs no text: see METHODS in the manual. */
#include "gcomp.h"

enum { COUNT = 4096, SIGN = 4 };
static float gradient[COUNT], residual[COUNT], mean[COUNT];
static unsigned char payload[GCOMP_BOUND_SIGN(COUNT)];

int main(void)
{
#ifdef NOTHING
    return gradient[1] != 0 || residual[1] != 0 || mean[1] != 0 || payload[1] != 0;
#else
    const gcomp_codec codec = {SIGN, 0, {0}, {1024}, {0}}; /* sign:block=1024 */
    const void *const payloads[1] = {payload};
    gcomp_input in = {0};
    in.scale = 1;
    size_t length = 0;
    float sum = 0;
    in.grad = gradient;
    in.residual = residual;
    in.rows = COUNT;
    in.key = gcomp_key_make(1, 2, 0, 0);
    for (int i = 0; i < COUNT; i++) gradient[i] = (float)(i % 7) - 3;
    if (gcomp_encode(&codec, &in, NULL, payload, sizeof payload, &length) != GCOMP_OK) return 1;
    if (gcomp_retain(payload, length, &in, residual, NULL) != GCOMP_OK) return 2;
    if (gcomp_decode(payload, length, mean, GCOMP_F32, COUNT, NULL) != GCOMP_OK) return 3;
    for (int i = 0; i < COUNT; i++) sum += mean[i] + residual[i] - gradient[i];
    if (sum != 0) return 4;
    if (gcomp_decode_mean(payloads, &length, 1, mean, GCOMP_F32, COUNT, NULL) != GCOMP_OK) return 5;
    return length == sizeof payload ? 0 : 6;
#endif
}
