/* stage_deal: deals the rows of a problem to the ranks by a layout, for a stage program.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_DEAL_H
#define STAGE_DEAL_H

#include "ra_layout.h"
#include "stage_ring.h"

/* Calls stage_shard with the rows that this rank of the ring has by these layouts. */
void stage_deal(struct stage *stage, struct ra_layout queries, struct ra_layout keys, int rank);

/* Calls stage_deal for a program on a ring, and sets the number of keys of every rank. */
void stage_ring_deal(struct stage_ring *run, struct ra_layout queries, struct ra_layout keys);

#endif
