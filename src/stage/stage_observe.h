/* stage_observe: progress, --time and --trace of a stage program, from the events of its ring.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_OBSERVE_H
#define STAGE_OBSERVE_H

#include "ra_ring.h"
#include "stage.h"

/* Notes an event of a ring or a plan in the counts and the trace: an `observe` for struct ra_ring
 * and struct ra_config, whose observer is the struct stage. */
void stage_observe(void *observer, const struct ra_event *event);

/* Notes an event in the trace alone. `passage` is what it calls a message on its way: "receive", or
 * "send". */
void stage_observe_trace(struct stage *stage, const struct ra_event *event, const char *passage);

#endif
