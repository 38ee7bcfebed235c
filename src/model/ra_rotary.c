/* ra_rotary: rotary embedding. See ra_rotary.h.
 *
 * Chapter 10.
 */
#include "ra_rotary.h"
#include <math.h>

void ra_rotary_angles(int64_t rows, const int64_t *positions, int64_t D, double theta, double scale,
                      float *cosines, float *sines)
{
    for (int64_t a = 0; a < rows; a++)
        for (int64_t t = 0; t < D / 2; t++) {
            double angle = (double)positions[a] / scale * pow(theta, -2.0 * (double)t / (double)D);
            cosines[a * (D / 2) + t] = (float)cos(angle);
            sines[a * (D / 2) + t] = (float)sin(angle);
        }
}

void ra_rotary_rotate(int threads, int64_t batch, int64_t rows, int64_t heads, int64_t D,
                      const float *cosines, const float *sines, int direction, float *x,
                      int64_t stride)
{
    int64_t half = D / 2;
    float sign = (float)direction;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < batch * rows; a++) {
        const float *cosine = cosines + a % rows * half, *sine = sines + a % rows * half;
        for (int64_t h = 0; h < heads; h++) {
            float *first = x + a * stride + h * D, *second = first + half;
            for (int64_t t = 0; t < half; t++) {
                float p = first[t], q = second[t];
                first[t] = p * cosine[t] - q * sign * sine[t];
                second[t] = q * cosine[t] + p * sign * sine[t];
            }
        }
    }
}
