/* ra_rotary: rotary embedding, which tells a query how far away a key is.
 *
 * Chapter 10. New here: pairs of numbers of a query or key are rotated by an angle that grows with
 * the position, so that the product of the two depends on the distance alone.
 */
#ifndef RA_ROTARY_H
#define RA_ROTARY_H

#include <stdint.h>

/* How frequencies are changed for texts longer than those that a model learnt from. LLAMA3: those
 * whose wave is longer than `original` / low_factor positions are divided by `factor`, those whose
 * wave is shorter than `original` / high_factor stay, and between them the frequency is a mean of
 * both. */
enum ra_rotary_kind { RA_ROTARY_PLAIN, RA_ROTARY_LLAMA3 };
struct ra_rotary_scaling {
    enum ra_rotary_kind kind;
    double factor, low_factor, high_factor;
    int64_t original; /* positions that the model learnt from first */
};

/* cos and sin (rows, D / 2) of the angles position / scale * theta^(-2t / D), for t < D / 2. Angles
 * are taken in double: in float32 those at position 10^6 are off by 0.06. */
void ra_rotary_angles(int64_t rows, const int64_t *positions, int64_t D, double theta, double scale,
                      float *cosines, float *sines);

/* Turns D numbers of each head of each of `batch` times `rows` rows: numbers t and t + D / 2 are a
 * point in a plane. Row a begins at x + a * stride; forward by the angles, backward by minus the
 * angles: the gradient of a rotated vector is rotated back. */
void ra_rotary_rotate(int threads, int64_t batch, int64_t rows, int64_t heads, int64_t D,
                      const float *cosines, const float *sines, int direction, float *x,
                      int64_t stride);

#endif
