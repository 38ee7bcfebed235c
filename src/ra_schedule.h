/* ra_schedule: which hops of a ring are worth going, and how far each rank's keys travel.
 * Chapter 06. At hop t a rank works on the keys of the rank t to its left. If at some hop nobody
 * sees anything, no message stops there: keys jump from one useful hop to the next. A block of
 * keys goes no further than the last rank that sees some of it. Every rank computes the same
 * schedule from the layouts alone.
 */
#ifndef RA_SCHEDULE_H
#define RA_SCHEDULE_H

#include "ra_band.h"
#include "ra_layout.h"

struct ra_schedule {
    /* How many hops: 1..ranks; and which, ascending. The first is 0, at home. */
    int count, *hop;

    /* (ranks) At which hop the journey of each rank's keys ends. 0: they stay at home. */
    int *last;
};

/* Ints of storage that a schedule for this many ranks needs. */
int64_t ra_schedule_storage(int ranks);

/* Every block goes through the hops 0, 1, ... hops - 1: all the way round if hops = ranks, nowhere
 * if hops = 1. storage belongs to the caller and must live as long as the schedule. */
struct ra_schedule ra_schedule_round(int ranks, int hops, int *storage);

/* The schedule of a causal ring, in which a query looks at most `lookback` tokens back
 * (RA_BAND_FAR: no limit), with positions as in ra_layout_band. Key masks are not looked at. */
struct ra_schedule ra_schedule_causal(struct ra_layout queries, struct ra_layout keys,
                                      int64_t lookback, int *storage);

#endif
