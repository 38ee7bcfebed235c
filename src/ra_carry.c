/* ra_carry: what takes part in attention beside the keys. See ra_carry.h.
 *
 * Chapter 13. New here: a score without a value, and the gradient of lse.
 */
#include "ra_carry.h"
#include <math.h>

void ra_carry_add_sink(int64_t D, const struct ra_queries *queries, float sink)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        float *o = queries->o + a * queries->stride.o;
        float *comp = queries->comp + a * queries->stride.comp;

        /* As a key's score is folded, see fold_row in ra_tile.c. The sink has no value: o is only
         * rescaled. */
        float old_max = queries->max[a], max = sink > old_max ? sink : old_max;
        float reference = max == -INFINITY ? 0 : max, rescale = expf(old_max - reference);
        queries->max[a] = max;
        queries->sum[a] = queries->sum[a] * rescale + exp((double)sink - reference);
        for (int64_t c = 0; c < D; c++) {
            o[c] *= rescale;
            comp[c] *= rescale;
        }
    }
}

float ra_carry_largest(const struct ra_queries *queries, float least)
{
    float largest = least;
    for (int64_t a = 0; a < queries->rows; a++)
        if (isnan(queries->sum[a]))
            largest = NAN;
        else if (queries->max[a] > largest)
            largest = queries->max[a];
    return largest;
}

void ra_carry_add_lse_gradient(const struct ra_queries *queries, const float *d_lse, int64_t stride)
{
    for (int64_t a = 0; a < queries->rows; a++)
        queries->delta[a] -= d_lse[a * stride];
}

double ra_carry_sink_gradient(const struct ra_queries *queries, float sink)
{
    double gradient = 0;
    if (sink == -INFINITY)
        return 0;
    for (int64_t a = 0; a < queries->rows; a++)
        gradient -= exp((double)sink - queries->lse[a]) * queries->delta[a];
    return gradient;
}
