/* ra_cuda_observe: when each part of a call was, for config.observe. Internal. */
#ifndef RA_CUDA_OBSERVE_H
#define RA_CUDA_OBSERVE_H

#include "ra_cuda.h"

/* Counts the timers that a plan needs: none if nobody observes. */
int64_t ra_cuda_timer_count(const struct ra_plan *plan);

/* Returns the timer of a part of a step, where the step behind the last stands for what step 0 has
 * left; NULL if nobody observes. */
struct ra_cuda_timer *ra_cuda_timer(const struct ra_plan *plan, bool backward, int step,
                                    enum ra_event_kind kind);

/* Marks on a stream where the work of a timer begins. NULL: does nothing. */
void ra_cuda_timer_start(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream);

/* Marks on a stream where the work of a timer ends. NULL: does nothing. */
void ra_cuda_timer_stop(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream);

/* Tells the observer what has happened since the last time. */
void ra_cuda_tell_observer(struct ra_plan *plan);

#endif
