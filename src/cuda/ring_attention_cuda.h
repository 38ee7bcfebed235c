/* ring_attention_cuda: the plan of ring_attention.h on GPUs.
 *
 * Chapter 11. In a library of its own, libringattn_cuda, so that libringattn needs no CUDA. The
 * config, the arrays and all questions about a plan are those of ring_attention.h; ra_forward and
 * ra_backward have their counterparts here. ring_attention_cuda_mpi.h makes a plan on the ranks of
 * a communicator.
 *
 *     ra_cuda_plan_create(&plan, &config, error);     on the current device,
 *     ra_cuda_forward(plan, &arrays, stream);         enqueue as often as you like,
 *     ra_cuda_wait(plan);                             and hear what came of it,
 *     ra_plan_destroy(plan);
 *
 * Arrays lie in memory that the device can reach. q, k, v and d_out have config.type; o, dq, dk and
 * dv have config.type or float32. Strides are not negative. dim is at most 256. Float32 is computed
 * without tensor cores, 16-bit types with them; sums are float32 in both. config.tile_queries and
 * tile_keys are only used to count work.
 *
 * ra_cuda_wait tells config.observe of the last forward and the last backward before it: with
 * RA_EVENT_WORK for each hop, from its first launch to the end of its last; and if GPUs write to
 * each other's memory, with RA_EVENT_KEYS and RA_EVENT_GRADIENTS for what this rank sent at a hop,
 * while the copy engine was at it. RA_EVENT_WAIT does not come. Times are those of the host's clock,
 * right to some tens of microseconds.
 *
 * Memory of the device is taken when a plan is created, with cudaMalloc, and at no other time. A
 * call may be enqueued while earlier ones run, also on another stream: it waits for them. Calls
 * cannot be captured into a graph. Each call leaves the current device as it was, and that device's
 * primary context current; an error that cudaGetLastError has not yet told is forgotten.
 *
 * Messages. GPUs that reach each other's memory (config.transport) pass all messages by their copy
 * engines and wait for each other on the device: their calls return once the work is enqueued. If
 * the link passes them, the host is needed between hops, and calls return when the work is done.
 *
 * Until all ranks have made a call, its waits keep the GPU busy. What waits for the whole device
 * (cudaMalloc, cudaFree, cudaDeviceSynchronize, mostly also the first launch of a kernel) waits for
 * them, too: the other ranks must get on without it. And streams of one process may lie in the same
 * queue of the GPU, where one waits in front of another. So
 * - a process that has several such plans for a GPU makes their calls one after the other, and the
 *   ranks of all these plans make them in the same order: as with collective calls of MPI;
 * - if ranks of a ring are threads of one process and share a GPU, the link passes all messages.
 *   Ranks that are processes may share one.
 */
#ifndef RING_ATTENTION_CUDA_H
#define RING_ATTENTION_CUDA_H

#include <cuda_runtime_api.h>

#include "ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "ra_link.h"

/* ra_plan_create, on the current device. A plan to look at (ring_size above 1) needs no device. */
RA_CHECKED enum ra_status ra_cuda_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                              char error[RA_ERROR_SIZE]);

/* Makes this rank's part of a plan over a link, on the current device. The link belongs to the plan
 * from then on, also if this fails. All ranks of the link call it together: they compare what they
 * were given, tell each other where their memory is, and agree how to pass messages. If one cannot,
 * all fail and get the same text, which names that rank. */
RA_CHECKED enum ra_status ra_cuda_link_plan_create(struct ra_plan **plan,
                                                   const struct ra_config *config,
                                                   struct ra_link link, char error[RA_ERROR_SIZE]);

/* ra_forward and ra_backward, in the order of `stream`. RA_OK says that the work is enqueued; what
 * came of it is told by the next call or by ra_cuda_wait. RA_LOST, here or there: results since the
 * last ra_cuda_wait that was well are not to be used. */
RA_CHECKED enum ra_status ra_cuda_forward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                          cudaStream_t stream);
RA_CHECKED enum ra_status ra_cuda_backward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                           cudaStream_t stream);

/* Returns when all that was enqueued with this plan is done, and says how it went. While it waits
 * it hears of ranks that have failed, which cudaStreamSynchronize does not: that takes
 * config.timeout. */
RA_CHECKED enum ra_status ra_cuda_wait(struct ra_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
