/* stage_slices: the mask of a problem as slices, of which chapter 13 tells.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_SLICES_H
#define STAGE_SLICES_H

#include "ra_slices.h"
#include "stage.h"

/* Reads the mask of the problem into memory from stage_allocate, and sets `count`; NULL if it has
 * none. Each slice lies within the sequences; whether two overlap is for the caller to check. */
const struct ra_slice *stage_slices(struct stage *stage, int64_t *count);

#endif
