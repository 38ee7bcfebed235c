/* stage_layout: a stage program whose rows are dealt out by a layout.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_LAYOUT_H
#define STAGE_LAYOUT_H

#include "ra_layout.h"
#include "stage.h"

/* stage_shard with the rows that these layouts give to a rank of the ring. */
void stage_shard_layouts(struct stage *stage, struct ra_layout queries, struct ra_layout keys,
                         int rank);

#endif
