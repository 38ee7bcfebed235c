/* work_rig: lists of work on the device, made of slices, for tests and measurements of kernels. */
#ifndef WORK_RIG_H
#define WORK_RIG_H

#include "ra_slices.h"
#include "ra_work.h"

/* Lists of one use, whose tiles have so many rows, of a sequence of queries and one of keys, for
 * launches one after the other: launch i has the keys keys[i], of stride 1. Writes `launches`
 * lists, in one piece of memory of the device, which it returns, for cudaFree. Prints what is wrong
 * and ends the program if it cannot. */
void *work_make(const struct ra_slice *slices, int64_t count, int64_t queries,
                const struct ra_span *keys, int launches, enum ra_work_use use, int tile_rows,
                struct ra_work *work);

#endif
