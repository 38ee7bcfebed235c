/* ra_rotary: rotary embedding, which tells a query how far away a key is.
 *
 * Chapter 10. New here: pairs of numbers of a query or key are rotated by an angle that grows with
 * the position, so that the product of the two depends on the distance alone.
 */
#ifndef RA_ROTARY_H
#define RA_ROTARY_H

#include "ra_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The angle by which pair t of a vector of D numbers is turned from one position to the next:
 * theta^(-2t / D), changed by the scaling, divided by `scale`. */
struct ra_rotary {
    int64_t D; /* even */
    double theta, scale;
    struct ra_rotary_scaling scaling;
};
double ra_rotary_frequency(const struct ra_rotary *rotary, int64_t t);

/* Writes cos and sin (rows, D / 2) of the angles position times frequency, for t < D / 2. Angles
 * are taken in double: in float32 those at position 10^6 are off by 0.06. */
void ra_rotary_angles(const struct ra_rotary *rotary, int64_t rows, const int64_t *positions,
                      float *cosines, float *sines);

/* Turns D numbers of each head of each of `batch` times `rows` rows: numbers t and t + D / 2 are a
 * point in a plane. Row a begins at x + a * stride; forward by the angles, backward by minus the
 * angles: the gradient of a rotated vector is rotated back. */
void ra_rotary_rotate(int threads, int64_t batch, int64_t rows, int64_t heads, int64_t D,
                      const float *cosines, const float *sines, int direction, float *x,
                      int64_t stride);

#ifdef __cplusplus
}
#endif

#endif
