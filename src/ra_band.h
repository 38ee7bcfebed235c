/* ra_band: visibility between two spans of positions, as two integers; and the fold that skips
 * what no query sees.
 * Chapter 04. A causal mask, with or without a limit on how far back a query looks, is a band in
 * the plane of local rows: row a sees key b when lo <= b - a <= hi. So no tile needs positions, no
 * rank needs a mask matrix, and whether a tile or a whole hop is empty follows from the same two
 * integers.
 */
#ifndef RA_BAND_H
#define RA_BAND_H

#include "ra_span.h"
#include "ra_tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the band between a span of queries and a span of keys of the same stride, whose rows are
 * positions (they may be negative): a query sees the keys at its own position and before, at most
 * `lookback` tokens back (>= 0; RA_BAND_FAR or more: no limit). Positions are below RA_BAND_FAR in
 * magnitude. */
struct ra_band ra_band_causal(struct ra_span queries, struct ra_span keys, int64_t lookback);

/* Returns the same band, counted from row a of the queries and row b of the keys, where a tile
 * begins. */
struct ra_band ra_band_from(struct ra_band band, int64_t a, int64_t b);

/* Tells whether a band hides all pairs of a tile of this many query and key rows. */
bool ra_band_is_empty(struct ra_band band, int64_t query_rows, int64_t key_rows);

/* How to fold: what all tiles have in common, and what is counted on the way. */
struct ra_fold {
    struct ra_dims dims;
    struct ra_score score;
    void (*tile)(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                 const struct ra_keys *keys, struct ra_band band, float *workspace);
    /* ra_tile_forward or ra_tile_backward */
    int64_t tile_queries, tile_keys; /* rows of a tile at most */
    float *workspace;                /* ra_tile_workspace of these */
    void (*between)(void *context);  /* called after every tile that was computed; may be NULL */
    void *context;
    int64_t pairs, skipped; /* added to: query-key pairs of the tiles computed; tiles skipped */
};

/* Folds all of these keys into all of these queries, tile by tile, but for the tiles in which
 * no query sees a key. The band counts from the first rows of both. */
void ra_band_fold(struct ra_fold *fold, const struct ra_queries *queries,
                  const struct ra_keys *keys, struct ra_band band);

#ifdef __cplusplus
}
#endif

#endif
