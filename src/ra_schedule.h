/* ra_schedule: which hops of a ring are worth going, and how far each rank's keys travel.
 * Chapter 06. At hop t a rank works on the keys of the rank t to its left. If at some hop nobody
 * sees anything, no message stops there: keys jump from one useful hop to the next. A block of
 * keys goes no further than the last rank that sees some of it. Every rank computes the same
 * schedule from the layouts alone. What a schedule is stands in ra_ring.h.
 */
#ifndef RA_SCHEDULE_H
#define RA_SCHEDULE_H

#include "ra_band.h"
#include "ra_layout.h"
#include "ra_ring.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the schedule of a causal ring, in which a query looks at most `lookback` tokens back
 * (RA_BAND_FAR: no limit), with positions as in ra_layout_pair. Key masks are not looked at. */
struct ra_schedule ra_schedule_causal(struct ra_layout queries, struct ra_layout keys,
                                      int64_t lookback, int *storage);

#ifdef __cplusplus
}
#endif

#endif
