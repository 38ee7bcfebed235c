/* ra_cuda_calls: the calls of the backend. Internal. */
#ifndef RA_CUDA_CALLS_H
#define RA_CUDA_CALLS_H

#include "ra_cuda.h"

/* Checks the arrays of a call, agrees with the other ranks about it, and enqueues its work on this
 * stream. If the link passes messages it waits until the work is done. */
enum ra_status ra_cuda_enqueue(struct ra_plan *plan, const struct ra_arrays *given, bool backward,
                               void *stream, void (*work)(struct ra_cuda_call *call));

/* Enqueues a forward round the ring on this stream, as ra_cuda_enqueue does. */
enum ra_status ra_cuda_forward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                  void *stream);

/* Enqueues a backward round the ring on this stream, as ra_cuda_enqueue does. */
enum ra_status ra_cuda_backward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                   void *stream);

#endif
