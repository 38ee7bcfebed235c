/* ra_band: which pairs are visible, between two spans of positions, as two integers. See ra_band.h.
 * Chapter 04. New here: the mask of a pair of spans from floor and ceiling division, and tiles
 * that are not computed.
 */
#include "ra_band.h"
#include "ra_math.h"

struct ra_band ra_band_causal(struct ra_span queries, struct ra_span keys, int64_t lookback)
{
    /* Row a is at queries.first + a * stride, key b at keys.first + b * stride. Then
     *   not after the query:  b - a <= (queries.first - keys.first) / stride
     *   not too far back:     b - a >= (queries.first - keys.first - lookback) / stride */
    int64_t ahead = queries.first - keys.first, stride = keys.stride;
    struct ra_band band = {-RA_BAND_FAR, ra_floor_division(ahead, stride)};
    if (lookback < RA_BAND_FAR)
        band.lo = ra_ceiling_division(ahead - lookback, stride);
    return band;
}

struct ra_band ra_band_from(struct ra_band band, int64_t a, int64_t b)
{
    return (struct ra_band){band.lo + a - b, band.hi + a - b};
}

bool ra_band_is_empty(struct ra_band band, int64_t query_rows, int64_t key_rows)
{
    /* b - a runs from -(query_rows - 1) to key_rows - 1. */
    if (query_rows == 0 || key_rows == 0)
        return true;
    return band.lo > band.hi || band.lo > key_rows - 1 || band.hi < -(query_rows - 1);
}

void ra_band_fold(struct ra_fold *fold, const struct ra_queries *queries,
                  const struct ra_keys *keys, struct ra_band band)
{
    for (int64_t a = 0; a < queries->rows; a += fold->tile_queries) {
        struct ra_queries rows = ra_queries_block(queries, a, fold->tile_queries);
        for (int64_t b = 0; b < keys->rows; b += fold->tile_keys) {
            struct ra_keys seen = ra_keys_block(keys, b, fold->tile_keys);
            struct ra_band tile = ra_band_from(band, a, b);
            if (ra_band_is_empty(tile, rows.rows, seen.rows)) {
                fold->skipped++;
                continue;
            }
            fold->pairs += rows.rows * seen.rows;
            fold->tile(fold->dims, fold->score, &rows, &seen, tile, fold->workspace);
            if (fold->between)
                fold->between(fold->context);
        }
    }
}
