/* ra_cuda_observe: when each part of a call was, for config.observe. See ra_cuda_observe.h.
 *
 * Chapter 11. New here: events on streams, which the observer is told of when all is done.
 */
#include "ra_cuda_observe.h"
#include "ra_clock.h"

/* Of enum ra_event_kind. */
enum { EVENT_KINDS = RA_EVENT_GRADIENTS + 1 };

int64_t ra_cuda_timer_count(const struct ra_plan *plan)
{
    int64_t parts = plan->ring.schedule.count + 1;
    return plan->config.observe && !plan->inner ? 2 * (RA_EVENT_GRADIENTS + 1) * parts : 0;
}

struct ra_cuda_timer *ra_cuda_timer(const struct ra_plan *plan, bool backward, int step,
                                    enum ra_event_kind kind)
{
    if (!ra_cuda_of(plan)->timers)
        return NULL;
    return &ra_cuda_of(plan)
                ->timers[(backward * (plan->ring.schedule.count + 1) + step) * EVENT_KINDS +
                         (int)kind];
}

void ra_cuda_timer_start(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream)
{
    if (timer)
        RA_DO(plan, cudaEventRecord(timer->began, stream));
}

void ra_cuda_timer_stop(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream)
{
    if (timer)
        timer->recorded = RA_DO(plan, cudaEventRecord(timer->ended, stream));
}

void ra_cuda_tell_observer(struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    struct ra_cuda *cuda = plan->own;
    if (!cuda->timers)
        return;

    /* Events have no clock, but know how long ago they were. */
    RA_DO(plan, cudaEventRecord(cuda->now, cuda->keys_stream));
    RA_DO(plan, cudaEventSynchronize(cuda->now));
    double now = ra_seconds();
    for (int64_t i = 0; i < ra_cuda_timer_count(plan); i++) {
        struct ra_cuda_timer *timer = &cuda->timers[i];
        float began = 0, ended = 0; /* milliseconds ago */
        if (!timer->recorded)
            continue;
        timer->recorded = false;
        RA_DO(plan, cudaEventElapsedTime(&began, timer->began, cuda->now));
        if (!RA_DO(plan, cudaEventElapsedTime(&ended, timer->ended, cuda->now)))
            return;
        int parts = plan->ring.schedule.count + 1, part = (int)(i / EVENT_KINDS % parts);
        struct ra_event event = {.kind = (enum ra_event_kind)(i % EVENT_KINDS),
                                 .backward = i / EVENT_KINDS >= parts,
                                 .hop = part + 1 < parts ? plan->ring.schedule.hop[part] : 0,
                                 .start = now - 1e-3 * (double)began,
                                 .end = now - 1e-3 * (double)ended};
        c->observe(c->observer, &event);
    }
}
