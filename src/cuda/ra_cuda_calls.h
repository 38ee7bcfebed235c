/* ra_cuda_calls: the calls of the backend. Internal. */
#ifndef RA_CUDA_CALLS_H
#define RA_CUDA_CALLS_H

#include "ra_cuda.h"

/* Check the arrays, and enqueue the ring on this stream. */
enum ra_status ra_cuda_forward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                  void *stream);
enum ra_status ra_cuda_backward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                   void *stream);

#endif
