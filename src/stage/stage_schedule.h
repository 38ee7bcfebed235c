/* stage_schedule: the schedule of a stage program, from stage 06 on.
 *
 * Common ground, which chapter 06 shows where it is first needed.
 */
#ifndef STAGE_SCHEDULE_H
#define STAGE_SCHEDULE_H

#include "stage_ring.h"

/* Leaves out of a causal ring the hops that nobody needs. Any other goes all the way round. */
void stage_schedule(struct stage_ring *x);

#endif
