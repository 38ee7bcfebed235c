/* stage_plan: a stage program whose attention is the library's.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_PLAN_H
#define STAGE_PLAN_H

#include "ring_attention.h"
#include "stage_observe.h"

/* Shards the files as the plan does, and counts the plan's memory into the peak. With --method auto
 * says on stderr which method the plan has, and why. */
void stage_use_plan(struct stage *stage, struct ra_plan *plan);

/* Counts what the plan says of every hop of one direction. */
void stage_count_hops(struct stage *stage, struct ra_plan *plan, bool backward);

/* Counts the hops of a pass that was computed, and writes its results: o and lse, or backward dq,
 * dk and dv. */
void stage_write_pass(struct stage *stage, struct ra_plan *plan, const struct ra_arrays *arrays,
                      bool backward);

/* Allocates an array of float32 (B, rows, heads, dim), which the library fills. */
struct ra_tensor stage_output(struct stage *stage, int64_t rows, int64_t heads, int64_t dim);

#endif
