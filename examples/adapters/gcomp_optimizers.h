/* gcomp_optimizers.h - two optimizers that belong to methods of gcomp.h. Copy it, change it. Licence:
   as gcomp.h.

   For n elements, where mean is what an exchange left in the gradient, x are the weights, and
   velocity is zero at first:

     gcomp_momentum_step   velocity <- momentum * velocity + mean
                           x <- x - learning_rate * (mean + velocity)
                           PowerSGD's algorithm 2, whose momentum comes after error feedback. This
                           is not Nesterov's momentum: the step is 2 mean + momentum * the old
                           velocity
     gcomp_outer_step      velocity <- momentum * velocity + mean
                           x <- x - learning_rate * (mean + momentum * velocity)
                           the outer step of DiLoCo, with Nesterov's momentum; mean is the mean over
                           the workers of start - x, and x the weights that all share (start)

   Papers    Vogels et al.: PowerSGD, arXiv 1905.13727; Douillard et al.: DiLoCo, arXiv 2311.08105
             (learning_rate 0.7, momentum 0.9)

   Each product is rounded to a float before it is added, so that workers with other processors and
   compilers keep the same weights. The arrays do not overlap. Both return GCOMP_OK, or
   GCOMP_INVALID_ARGUMENT: a pointer is NULL and n > 0, or a number is not finite; then nothing has
   changed. */

#ifndef GCOMP_OPTIMIZERS_H
#define GCOMP_OPTIMIZERS_H

#include "gcomp.h"

#include <stdint.h>
#include <string.h>

/* a * b, rounded to a float: no compiler joins it with an addition. */
static inline float gcomp_optimizers_product(float a, float b)
{
    const volatile float product = a * b;
    return product;
}

/* By its bits: under -ffast-math compilers take each float for finite. */
static inline int gcomp_optimizers_finite(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits & 0x7F800000u) != 0x7F800000u;
}

/* v <- momentum * v + mean, x <- x - rate * (mean + ahead * v) */
static inline gcomp_result gcomp_optimizers_step(float *x, float *velocity, const float *mean,
                                                 size_t n, float rate, float momentum, float ahead)
{
    if ((n && (!x || !velocity || !mean)) || !gcomp_optimizers_finite(rate) ||
        !gcomp_optimizers_finite(momentum))
        return GCOMP_INVALID_ARGUMENT;
    for (size_t i = 0; i < n; i++) {
        const float v = gcomp_optimizers_product(momentum, velocity[i]) + mean[i];
        x[i] -= gcomp_optimizers_product(rate, gcomp_optimizers_product(ahead, v) + mean[i]);
        velocity[i] = v;
    }
    return GCOMP_OK;
}

static inline gcomp_result gcomp_momentum_step(float *x, float *velocity, const float *mean,
                                               size_t n, float learning_rate, float momentum)
{
    return gcomp_optimizers_step(x, velocity, mean, n, learning_rate, momentum, 1);
}

static inline gcomp_result gcomp_outer_step(float *x, float *velocity, const float *mean, size_t n,
                                            float learning_rate, float momentum)
{
    return gcomp_optimizers_step(x, velocity, mean, n, learning_rate, momentum, momentum);
}

#endif
