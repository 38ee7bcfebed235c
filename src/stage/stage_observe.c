/* stage_observe: progress, --time and --trace of a stage program. See stage_observe.h. */
#include "stage_observe.h"

void stage_observe(void *observer, const struct ra_event *event)
{
    static const enum stage_lane lanes[] = {STAGE_LANE_WORK, STAGE_LANE_WORK, STAGE_LANE_KEYS,
                                            STAGE_LANE_GRADIENTS};
    struct stage *stage = observer;
    const char *direction = event->backward ? "backward" : "forward";
    const char *const names[] = {direction, "wait", "receive", "receive"};
    stage_trace(stage, lanes[event->kind], names[event->kind], event->hop, event->start,
                event->end);
    if (event->kind == RA_EVENT_WORK) {
        stage_progress(stage, direction, event->hop + 1, stage->config.ring_size);
        stage_lap(stage, event->backward ? STAGE_BACKWARD : STAGE_FORWARD);
    } else if (event->kind == RA_EVENT_WAIT) {
        stage_lap(stage, STAGE_WAIT);
    }
}
