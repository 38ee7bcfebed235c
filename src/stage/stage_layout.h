/* stage_layout: the rows of a stage program, from stage 05 on.
 *
 * Common ground, which chapter 05 shows where it is first needed.
 */
#ifndef STAGE_LAYOUT_H
#define STAGE_LAYOUT_H

#include "ra_layout.h"
#include "stage_ring.h"

/* How the command line deals a sequence of this length to the ranks of a ring. */
struct ra_layout stage_layout(const struct stage *stage, int64_t length);

/* stage_shard with the rows that this rank of the ring has by these layouts. */
void stage_shard_layouts(struct stage *stage, struct ra_layout queries, struct ra_layout keys,
                         int rank);

/* stage_fold_open, of a program that folds a head by these layouts, the mask and the window. */
void stage_layout_open(struct stage_ring *x, int argc, char **argv, int number,
                       const char *program, const char *about);

/* The rows of a program on a ring: every rank's, as the command line deals them. */
void stage_layout_deal(struct stage_ring *x);

#endif
