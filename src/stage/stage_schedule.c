/* stage_schedule: the schedule of a stage program. See stage_schedule.h. */
#include "stage_schedule.h"
#include "ra_schedule.h"
#include "stage_layout.h"

void stage_schedule(struct stage_ring *x)
{
    const struct ra_config *config = &x->stage.config;
    if (config->causal && !config->local_keys)
        x->ring.schedule = ra_schedule_causal(stage_layout(&x->stage, config->queries),
                                              stage_layout(&x->stage, config->keys),
                                              config->lookback, x->ring.schedule.hop);
}
