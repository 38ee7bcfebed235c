/* ra_count: how much work a hop is, by formula: a plan of any length answers at once. Internal.
 *
 * Chapter 08.
 */
#ifndef RA_COUNT_H
#define RA_COUNT_H

#include "ra_plan.h"

/* What ra_layout_fold does for one head: pairs in the tiles that it computes, and tiles that it
 * skips. N and M may be 2^50 each, so their product needs 128 bits. */
struct ra_count {
    __int128 pairs, skipped;
};

/* Counts what `rank` computes when it folds the keys of `origin`. */
struct ra_count ra_count_fold(const struct ra_plan *plan, int rank, int origin);

#endif
