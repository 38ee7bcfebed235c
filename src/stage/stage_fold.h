/* stage_fold: how a stage program folds the tiles of a hop, from stage 04 on.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_FOLD_H
#define STAGE_FOLD_H

#include "ra_band.h"
#include "stage_ring.h"

/* As the command line has it, with the ring polled between the tiles. */
struct ra_fold stage_fold(struct stage_ring *x, bool backward);

#endif
