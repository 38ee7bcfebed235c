/* stage_observe: progress, --time and --trace of a stage program, from what its ring says of itself.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_OBSERVE_H
#define STAGE_OBSERVE_H

#include "ra_ring.h"
#include "stage.h"

/* For struct ra_ring and struct ra_config: the observer is the struct stage. */
void stage_observe(void *stage, const struct ra_event *event);

#endif
