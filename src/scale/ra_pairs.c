/* ra_pairs: how many queries and keys of a band see each other. See ra_pairs.h.
 *
 * Chapter 12.
 */
#include "ra_pairs.h"
#include <math.h>

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* How many pairs have b - a <= h? Row a sees a + h + 1 keys, at least 0 and at most all. */
static __int128 below(int64_t h, int64_t rows, int64_t keys)
{
    /* From row `some` on a row sees a key; from `all` on it sees all. Between them stands a
     * trapezoid. */
    int64_t some = clamp(-h, 0, rows), all = clamp(keys - h - 1, some, rows);
    __int128 first = (__int128)some + h + 1, last = (__int128)all + h, count = all - some;
    return (first + last) * count / 2 + (__int128)(rows - all) * keys;
}

__int128 ra_pairs_visible(struct ra_band band, int64_t rows, int64_t keys)
{
    if (ra_band_is_empty(band, rows, keys))
        return 0;
    return below(band.hi, rows, keys) - below(band.lo - 1, rows, keys);
}

/* `below` between whole numbers: on the line between the two. */
static double below_real(double h, int64_t rows, int64_t keys)
{
    /* Beyond the corners nothing changes, and the cast cannot overflow. */
    double bounded = fmax(-(double)rows - 1, fmin(h, (double)keys)), whole = floor(bounded);
    double low = (double)below((int64_t)whole, rows, keys);
    double high = (double)below((int64_t)whole + 1, rows, keys);
    return low + (bounded - whole) * (high - low);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

double ra_pairs_computed(struct ra_band band, int64_t rows, int64_t keys, int64_t tile_queries,
                         int64_t tile_keys)
{
    if (ra_band_is_empty(band, rows, keys))
        return 0;

    /* A row computes more keys than it sees at either edge of the band. First, as many as the last
     * row of its tile, or the first one at the lower edge: (tile_queries - 1) / 2 more on average.
     * Second, up to where a tile of keys ends. From one row of tiles to the next the edge moves by
     * tile_queries keys, so what is left of a tile of keys there takes all values that differ by
     * the common divisor. */
    int64_t divisor = common_divisor(tile_queries, tile_keys);
    double both = (double)(tile_queries - 1) / 2 + (double)(tile_keys - divisor) / 2;
    double above = both + (double)((divisor - band.hi % divisor) % divisor);
    double under = both + (double)((band.lo % divisor + divisor) % divisor);
    return below_real((double)band.hi + above, rows, keys) -
           below_real((double)(band.lo - 1) - under, rows, keys);
}
