/* stage_tile: what a stage program gives to the functions of ra_tile.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_TILE_H
#define STAGE_TILE_H

#include "ra_tile.h"
#include "stage.h"

/* Returns the scores that the command line asks for. */
struct ra_score stage_score(const struct stage *stage);

/* Allocates this rank's queries of all batches and heads: q, o, max, sum, comp and lse; unless this
 * is forward only, d_out, delta and dq. Only q and d_out have a meaning yet. */
struct ra_queries stage_queries(struct stage *stage);

/* Writes o and lse of this rank's queries, and unless this is forward only dq. */
void stage_write_queries(struct stage *stage, const struct ra_queries *queries);

#endif
