/* ra_sum: sums whose error does not grow with the number of terms.
 *
 * Chapter 02. Internal: for the tiles.
 */
#ifndef RA_SUM_H
#define RA_SUM_H

#include <math.h>
#include <stdint.h>

/* out += scale * more. What rounding cuts off the sum is kept in comp and added next time: so the
 * error stays that of one rounding, however many times something is added (Kahan, 1965). What is
 * lost of a + b is exactly (a - (sum - part)) + (b - part), where part = sum - a (Knuth). It is NaN
 * where the sum is infinite: there nothing can be made good. */
static inline void ra_sum_add(int64_t cols, float scale, const float *restrict more,
                              float *restrict out, float *restrict comp)
{
    for (int64_t c = 0; c < cols; c++) {
        float a = out[c], b = scale * more[c] + comp[c], sum = a + b, part = sum - a;
        float error = (a - (sum - part)) + (b - part);
        comp[c] = isnan(error) ? 0 : error;
        out[c] = sum;
    }
}

#endif
