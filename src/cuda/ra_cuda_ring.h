/* ra_cuda_ring: the ring of GPUs, enqueued. Internal. */
#ifndef RA_CUDA_RING_H
#define RA_CUDA_RING_H

#include "ra_cuda.h"

/* Enqueues all of a forward, whose arrays have been checked. */
void ra_cuda_enqueue_forward(struct ra_cuda_call *call);

/* Enqueues all of a backward, whose arrays have been checked. */
void ra_cuda_enqueue_backward(struct ra_cuda_call *call);

#endif
