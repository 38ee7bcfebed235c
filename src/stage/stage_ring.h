/* stage_ring: what a stage program does with its ring besides attention: waits that are booked and
 * traced, memory, counts.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_RING_H
#define STAGE_RING_H

#include "ra_band.h"
#include "ra_ring.h"
#include "stage_mpi.h"
#include "stage_tile.h"

/* ra_ring_open with the command line's ring size and timeout; an error ends the program. */
void stage_ring_open(struct stage *stage, struct ra_ring *ring);

/* ra_ring_wait, and an error ends all ranks. Books the time as STAGE_WAIT and traces it. */
void stage_ring_wait(struct stage *stage, struct ra_ring *ring, enum ra_message message);

/* Allocates keys and gradients for a ring of this many hops, and reads this rank's own keys into
 * keys[0]. keys[1] and [2] are for visitors of at most `most` rows; gradients[0] to [2] are as
 * large as those keys, gradients[3] is for those that arrive. What so few hops do not need stays
 * NULL. */
void stage_ring_memory(struct stage *stage, int64_t most, int hops, float *keys[3],
                       float *gradients[4]);

/* Memory for ra_tile_workspace, for tiles of the size that was asked for. */
float *stage_workspace(struct stage *stage);

/* Counts what was sent since the last call under this hop. */
void stage_ring_count(struct stage *stage, struct ra_ring *ring, int hop, bool backward);

/* Counts, books and traces one hop's work, which began at `start` (ra_ring_seconds): the pairs of
 * all tiles, and the tiles that were skipped (from stage 04 on). */
void stage_ring_work(struct stage *stage, int hop, bool backward, double start, int64_t pairs,
                     int64_t skipped);

/* How the tiles of a hop are folded, as the command line has it, with the ring polled between
 * them. */
struct ra_fold stage_fold(struct stage *stage, struct ra_ring *ring, bool backward,
                          float *workspace);

#endif
