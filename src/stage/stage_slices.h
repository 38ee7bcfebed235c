/* stage_slices: the mask of a problem as slices, of which chapter 13 tells.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_SLICES_H
#define STAGE_SLICES_H

#include "ra_slice.h"
#include "stage.h"

/* Returns the mask as slices, in memory from stage_allocate, and sets `count`: those of the
 * problem, or what the flags make; NULL if there are neither. Each slice lies within the sequences;
 * whether two overlap is for the caller to check. */
const struct ra_slice *stage_slices(struct stage *stage, int64_t *count);

#endif
