/* ra_cuda_wait: waiting, and the end of a plan that has failed. Internal. */
#ifndef RA_CUDA_WAIT_H
#define RA_CUDA_WAIT_H

#include "ra_cuda.h"

/* Ends the plan for this reason: nothing on the device waits any more, and the other ranks hear of
 * it. Returns the status, or RA_CANCELLED if the plan has been cancelled. */
enum ra_status ra_cuda_fail(struct ra_plan *plan, enum ra_status status, const char *text);

/* Ends the plan, as ra_cuda_fail does, for the error that was noted. Returns its status. */
enum ra_status ra_cuda_fail_by_cuda(struct ra_plan *plan);

/* Ends the plan if the link has failed, or a wait on the device. Does not wait for what was
 * enqueued. Returns the plan's status. */
enum ra_status ra_cuda_poll_errors(struct ra_plan *plan);

/* Waits, before the link passes a message, until a stream has done what it needs. Heads may have
 * been exchanged by peer copies and keys not, or the reverse: then the stream has waits on the
 * device, too, and errors are heard of meanwhile. True if all is well. */
bool ra_cuda_settle(struct ra_plan *plan, cudaStream_t stream);

/* Waits for an event of the plan, and hears of errors meanwhile. Returns the plan's status. */
enum ra_status ra_cuda_finish(struct ra_plan *plan, cudaEvent_t event);

/* Waits until all is done that was enqueued. The second also says how it went. */
void ra_cuda_finish_all(struct ra_plan *plan);
enum ra_status ra_cuda_wait(struct ra_plan *plan);

#endif
