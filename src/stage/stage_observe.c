/* stage_observe: progress, --time and --trace of a stage program. See stage_observe.h. */
#include "stage_observe.h"

void stage_observe_trace(struct stage *stage, const struct ra_event *event, const char *passage)
{
    static const enum stage_lane lanes[] = {[RA_EVENT_WORK] = STAGE_LANE_WORK,
                                            [RA_EVENT_WAIT] = STAGE_LANE_WORK,
                                            [RA_EVENT_KEYS] = STAGE_LANE_KEYS,
                                            [RA_EVENT_GRADIENTS] = STAGE_LANE_GRADIENTS};
    const char *const names[] = {[RA_EVENT_WORK] = event->backward ? "backward" : "forward",
                                 [RA_EVENT_WAIT] = "wait",
                                 [RA_EVENT_KEYS] = passage,
                                 [RA_EVENT_GRADIENTS] = passage};
    stage_trace(stage, lanes[event->kind], names[event->kind], event->hop, event->start,
                event->end);
}

void stage_observe(void *observer, const struct ra_event *event)
{
    struct stage *stage = observer;
    stage_observe_trace(stage, event, "receive");
    if (event->kind == RA_EVENT_WORK) {
        stage_progress(stage, event->backward ? "backward" : "forward", event->hop + 1,
                       stage->config.ring_size);
        stage_lap(stage, event->backward ? STAGE_BACKWARD : STAGE_FORWARD);
    } else if (event->kind == RA_EVENT_WAIT)
        stage_lap(stage, STAGE_WAIT);
}
