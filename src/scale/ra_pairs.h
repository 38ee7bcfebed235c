/* ra_pairs: how many queries and keys of a band see each other, in closed form. Internal.
 *
 * Chapter 12. New here: a count whose time does not depend on rows or tiles.
 */
#ifndef RA_PAIRS_H
#define RA_PAIRS_H

#include "ra_band.h"

/* Counts the pairs 0 <= a < rows, 0 <= b < keys with lo <= b - a <= hi. Exact. */
__int128 ra_pairs_visible(struct ra_band band, int64_t rows, int64_t keys);

/* Counts the pairs that lie in tiles in which anybody sees anything. Exact with tiles of one pair,
 * and where everybody sees everybody; else off by tiles at the corners of the band at most. */
double ra_pairs_computed(struct ra_band band, int64_t rows, int64_t keys, int64_t tile_queries,
                         int64_t tile_keys);

#endif
