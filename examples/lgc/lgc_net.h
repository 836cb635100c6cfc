/* lgc_net.h - the autoencoder of lgc.c: convolutions forward and backward by plain loops, and a step of SGD.

   Licence: as gcomp.h. A vector stands place by place, the channels of a place side by side. */

#ifndef LGC_NET_H
#define LGC_NET_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float noise(uint64_t i) /* in [-1, 1), the same on all workers */
{
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    return (float)((i ^ i >> 27) >> 40) / 8388608.0f - 1.0f;
}

enum { LENGTH = 96, CODE = LENGTH / 4, LAYERS = 10, ENCODER = 5, WIDEST = 64 * LENGTH, WORKERS = 4 };
static const struct layer { int in, out, taps, stride, up; } layers[LAYERS] = {
    {1, 64, 3, 2, 0},  {64, 128, 3, 2, 0}, {128, 256, 3, 2, 0}, {256, 64, 3, 2, 0}, {64, 4, 1, 1, 0},
    {4, 32, 3, 2, 1},  {32, 64, 3, 2, 1},  {64, 128, 3, 2, 1},  {128, 32, 3, 2, 1}, {32, 1, 1, 1, 0}};
enum { NET = 3 * (64 + 64 * 128 + 128 * 256 + 256 * 64 + 4 * 32 + 32 * 64 + 64 * 128 + 128 * 32) + 64 * 4 + 32 };
static float net[NET], slope[NET], velocity[NET]; /* worker 0 trains; [tap][in][out] of each layer */

typedef struct trace { float at[LAYERS + 1][WIDEST]; } trace; /* what goes into each layer, and what comes out of the last */

static inline size_t weights_before(int l) /* of layer l */
{
    size_t at = 0;
    for (int i = 0; i < l; i++) at += (size_t)(layers[i].in * layers[i].out * layers[i].taps);
    return at;
}

/* A layer, which takes `places` places x to places y. up 0, Conv1d: y[t] takes w[j] x[stride t + j - 1]; up 1, ConvTranspose1d:
   y[stride t + j - 1] takes w[j] x[t]. gy NULL: forward. Else backward: gx <- the slope of x, and slope takes that of w. */
static inline void run_layer(int l, int places, const float *x, float *y, const float *gy, float *gx)
{
    const struct layer *a = &layers[l];
    const int longer = a->up ? places * a->stride : places, shorter = longer / a->stride, out = a->up ? longer : shorter;
    const float *const w = net + weights_before(l);
    const int bent = l != ENCODER - 1 && l != LAYERS - 1; /* LeakyReLU follows */
    float turned[256];
    if (!gy) memset(y, 0, sizeof *y * (size_t)(out * a->out));
    else memset(gx, 0, sizeof *gx * (size_t)(places * a->in));
    for (int t = 0; t < shorter; t++)
        for (int j = 0; j < a->taps; j++) {
            const int s = a->stride * t + j - a->taps / 2, from = a->up ? t : s, to = a->up ? s : t;
            if (s < 0 || s >= longer) continue;
            for (int o = 0; gy && o < a->out; o++)
                turned[o] = gy[to * a->out + o] * (bent && y[to * a->out + o] < 0 ? 0.01f : 1.0f);
            for (int c = 0; c < a->in; c++) {
                const size_t at = (size_t)((j * a->in + c) * a->out);
                const float p = x[from * a->in + c];
                float sum = 0;
                for (int o = 0; !gy && o < a->out; o++) y[to * a->out + o] += p * w[at + (size_t)o];
                for (int o = 0; gy && o < a->out; o++) {
                    slope[weights_before(l) + at + (size_t)o] += p * turned[o];
                    sum += turned[o] * w[at + (size_t)o];
                }
                if (gy) gx[from * a->in + c] += sum;
            }
        }
    for (int i = 0; !gy && bent && i < out * a->out; i++) y[i] *= y[i] < 0 ? 0.01f : 1.0f;
}

static inline int places_before(int l) { return l <= 4 ? LENGTH >> l : l <= 9 ? LENGTH >> (l == 5 ? 4 : 9 - l) : LENGTH; }

static inline void forward(trace *t, int from, int to)
{
    for (int l = from; l < to; l++) run_layer(l, places_before(l), t->at[l], t->at[l + 1], NULL, NULL);
}

/* g: the slope of what comes out of layer to - 1; then that of what goes into layer `from`. */
static inline void backward(trace *t, int from, int to, float *g)
{
    static float next[WIDEST];
    for (int l = to; l-- > from;) {
        run_layer(l, places_before(l), t->at[l], t->at[l + 1], g, next);
        memcpy(g, next, sizeof next);
    }
}

static inline void begin_net(void)
{
    size_t at = 0;
    for (int l = 0; l < LAYERS; l++) {
        const size_t count = (size_t)(layers[l].in * layers[l].out * layers[l].taps);
        const float most = sqrtf(6.0f / (float)(layers[l].in * layers[l].taps)) / (layers[l].up ? sqrtf(1.5f) : 1);
        for (size_t i = 0; i < count; i++, at++) net[at] = most * noise(at + 900000);
    }
}

/* One step of SGD on what the workers hold: x[w] their values divided by their size (which stands behind them), mean what the
   decoder shall find. Returns |decoded - mean|^2 / |mean|^2 before the step. Worker 0 alone calls it. */
static inline double train_net(float (*x)[LENGTH + 1], const float *mean, float rate)
{
    static trace t[WORKERS], d;
    static float g[WIDEST], of_code[CODE];
    double error = 0, size = 0;
    memset(slope, 0, sizeof slope);
    memset(d.at[ENCODER], 0, sizeof d.at[ENCODER]);
    for (int w = 0; w < WORKERS; w++) {
        memcpy(t[w].at[0], x[w], 4 * LENGTH);
        forward(&t[w], 0, ENCODER);
        for (int i = 0; i < CODE; i++) d.at[ENCODER][i] += t[w].at[ENCODER][i] / WORKERS;
    }
    forward(&d, ENCODER, LAYERS);
    for (int i = 0; i < LENGTH; i++) {
        const float e = d.at[LAYERS][i] - mean[i];
        g[i] = e / LENGTH;
        error += (double)e * (double)e;
        size += (double)mean[i] * (double)mean[i];
    }
    backward(&d, ENCODER, LAYERS, g);
    memcpy(of_code, g, sizeof of_code);
    for (int w = 0; w < WORKERS; w++) { /* the mean over pairs of |a - b|^2 is 2 / (WORKERS - 1) of the sum of |a - mean|^2 */
        for (int i = 0; i < CODE; i++)
            g[i] = of_code[i] / WORKERS + 2.0f / (WORKERS - 1) * (t[w].at[ENCODER][i] - d.at[ENCODER][i]) / CODE;
        backward(&t[w], 0, ENCODER, g);
    }
    for (size_t i = 0; i < NET; i++) net[i] -= rate * (velocity[i] = 0.9f * velocity[i] + slope[i]);
    return size > 0 ? error / size : 0;
}

#endif
