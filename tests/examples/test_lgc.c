/* Proves that the autoencoder of examples/lgc/lgc.c is trained by the slopes of its loss, and that it learns what can be learned. */
#include "test.h"

#include "../../examples/lgc/lgc_net.h"

#include <stdio.h>

static float x[WORKERS][LENGTH + 1], mean[LENGTH];

/* Vectors that the workers have in common but for some noise; smooth along their places, or not. */
static void fill(size_t step, int smooth)
{
    memset(mean, 0, sizeof mean);
    for (int i = 0; i < LENGTH; i++) {
        const float common = smooth ? sinf(0.2f * (float)i + (float)step) : noise(step * LENGTH + (size_t)i);
        for (int w = 0; w < WORKERS; w++) {
            x[w][i] = common + 0.3f * noise(1000000 + (step * WORKERS + (size_t)w) * LENGTH + (size_t)i);
            mean[i] += x[w][i] / WORKERS;
        }
    }
}

/* The loss by its formula: half the mean square of what is decoded less the mean, and half that of the differences between the
   codes of two workers, of all pairs. */
static double plain_loss(void)
{
    static trace t[WORKERS], d;
    double loss = 0, apart = 0;
    memset(d.at[ENCODER], 0, sizeof d.at[ENCODER]);
    for (int w = 0; w < WORKERS; w++) {
        memcpy(t[w].at[0], x[w], 4 * LENGTH);
        forward(&t[w], 0, ENCODER);
        for (int i = 0; i < CODE; i++) d.at[ENCODER][i] += t[w].at[ENCODER][i] / WORKERS;
    }
    forward(&d, ENCODER, LAYERS);
    for (int i = 0; i < LENGTH; i++) loss += pow((double)d.at[LAYERS][i] - (double)mean[i], 2) / (2 * LENGTH);
    for (int a = 0; a < WORKERS; a++)
        for (int b = 0; b < a; b++)
            for (int i = 0; i < CODE; i++) apart += pow((double)t[a].at[ENCODER][i] - (double)t[b].at[ENCODER][i], 2);
    return loss + apart / (CODE * WORKERS * (WORKERS - 1));
}

/* The slope along a direction of all weights of a layer, against the difference of the loss. */
static void test_slopes_are_those_of_the_loss(void)
{
    static float before[NET], direction[NET];
    begin_net();
    fill(0, 0);
    memcpy(before, net, sizeof net);
    (void)train_net(x, mean, 0);
    for (int l = 0; l < LAYERS; l++)
        for (uint64_t turn = 0; turn < (test_is_slow() ? 1u : 3u); turn++) {
            const size_t begin = weights_before(l), end = weights_before(l + 1);
            double expected = 0, length = 0, found, loss[2];
            for (size_t i = begin; i < end; i++) direction[i] = noise(turn * NET + i + 77) + (slope[i] > 0 ? 0.5f : -0.5f);
            for (size_t i = begin; i < end; i++) length += (double)direction[i] * (double)direction[i];
            for (size_t i = begin; i < end; i++) expected += (double)slope[i] * (double)direction[i] / sqrt(length);
            for (int side = 0; side < 2; side++) {
                for (size_t i = begin; i < end; i++)
                    net[i] = before[i] + (side ? -2e-3f : 2e-3f) * (float)((double)direction[i] / sqrt(length));
                loss[side] = plain_loss();
            }
            memcpy(net, before, sizeof net);
            found = (loss[0] - loss[1]) / 4e-3;
            if (!(fabs(found - expected) <= 0.03 * fabs(expected))) printf("# layer %d: %g, expected %g\n", l, found, expected);
            CHECK(fabs(found - expected) <= 0.03 * fabs(expected));
        }
}

static void test_it_learns_vectors_that_are_smooth(void)
{
    const size_t steps = test_is_slow() ? 40 : 200; /* each is some 30 million products */
    double first = 0, last = 0;
    begin_net();
    memset(velocity, 0, sizeof velocity);
    for (size_t step = 0; step < steps; step++) {
        fill(step, 1);
        const double error = train_net(x, mean, 0.01f);
        if (step < 10) first += error / 10;
        if (step >= steps - 10) last += error / 10;
    }
    printf("# error of what is decoded: %.2f, after %d steps %.2f\n", first, (int)steps, last);
    CHECK(first > 0.8 && last < (steps < 200 ? 0.8 : 0.15));
}

int main(void)
{
    RUN(test_slopes_are_those_of_the_loss);
    RUN(test_it_learns_vectors_that_are_smooth);
    return test_end();
}
