/* ra_rotary: rotary embedding. See ra_rotary.h.
 *
 * Chapter 10.
 */
#include "ra_rotary.h"
#include <math.h>
#include <stdbool.h>

#define TWO_PI 6.283185307179586

/* The number of the pair, with a fraction, whose wave comes round so often in the length that was
 * learnt. */
static double pair_of(const struct ra_rotary *rotary, double waves)
{
    double length = (double)rotary->scaling.original / (waves * TWO_PI);
    return (double)rotary->D * log(length) / (2 * log(rotary->theta));
}

/* How much of its own frequency pair t keeps in YaRN: all, 1 or more, up to the pair of `high`
 * waves; nothing from that of `low` waves on. */
static double kept_by_yarn(const struct ra_rotary *rotary, int64_t t)
{
    bool whole = rotary->scaling.kind == RA_ROTARY_YARN;
    double first = pair_of(rotary, rotary->scaling.high),
           last = pair_of(rotary, rotary->scaling.low);
    first = fmax(whole ? floor(first) : first, 0);
    last = fmin(whole ? ceil(last) : last, (double)rotary->D - 1);
    if (first == last)
        last += 0.001; /* a step, as in transformers */
    return 1 - ((double)t - first) / (last - first);
}

double ra_rotary_frequency(const struct ra_rotary *rotary, int64_t t)
{
    const struct ra_rotary_scaling *scaling = &rotary->scaling;
    double frequency = pow(rotary->theta, -2.0 * (double)t / (double)rotary->D);
    if (scaling->kind != RA_ROTARY_PLAIN) {
        /* Waves in the length that was learnt: `low` of them or fewer, `high` or more. */
        double waves = (double)scaling->original * frequency / TWO_PI;
        double kept = scaling->kind == RA_ROTARY_LLAMA3
                          ? (waves - scaling->low) / (scaling->high - scaling->low)
                          : kept_by_yarn(rotary, t);
        kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
        frequency *= kept + (1 - kept) / scaling->factor;
    }
    return frequency / rotary->scale;
}

void ra_rotary_angles(const struct ra_rotary *rotary, int64_t rows, const int64_t *positions,
                      float *cosines, float *sines)
{
    int64_t half = rotary->D / 2;
    for (int64_t t = 0; t < half; t++) {
        double frequency = ra_rotary_frequency(rotary, t);
        for (int64_t a = 0; a < rows; a++) {
            double angle = (double)positions[a] * frequency;
            cosines[a * half + t] = (float)cos(angle);
            sines[a * half + t] = (float)sin(angle);
        }
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
