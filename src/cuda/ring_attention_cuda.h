/* ring_attention_cuda: the plan of ring_attention.h on GPUs.
 *
 * Chapter 11. In a library of its own, libringattn_cuda, so that libringattn needs no CUDA. A plan
 * computes on a GPU if its config says so; it is made, asked and destroyed like any other, over any
 * link or none.
 *
 *     config.device = ra_cuda();                      the current device, when the plan is made
 *     ra_plan_create(&plan, &config, NULL, error);
 *     ra_cuda_forward(plan, &arrays, stream);         enqueue as often as you like,
 *     ra_wait(plan);                                  and hear what came of it,
 *     ra_plan_destroy(plan);
 *
 * Arrays lie in memory that the device can reach. q, k, v and d_out have config.type; o, dq, dk and
 * dv have config.type or float32. Strides are not negative. dim and dim_value are at most 256.
 * Numbers of heads (sink, slopes, d_sink, largest) lie there, too; nobody compares the sinks and
 * slopes of ranks. With slopes a sequence has at most 2^30 rows. Float32 is computed without tensor
 * cores, 16-bit types with them; sums are float32 in both. config.tile_queries and tile_keys are
 * only used to count work.
 *
 * config.method is not RA_DOUBLE_RING.
 * With RA_EXCHANGED_HEADS and RA_HYBRID o has config.type. With any but RA_RING sequences have at
 * most 2^31 - 1 rows, what ranks exchange is in the plan's own memory, not in that of
 * ra_plan_set_workspace, and config.observe hears of the work in between.
 */

/* ra_wait tells config.observe of the last forward and the last backward before it: with
 * RA_EVENT_WORK for each hop, from its first launch to the end of its last, and perhaps once more
 * for hop 0 of a backward, which leaves some of its work for the end; and if GPUs write to each
 * other's memory, with RA_EVENT_KEYS and RA_EVENT_GRADIENTS for what this rank sent at a hop, while
 * the copy engine was at it. RA_EVENT_WAIT does not come. Times are those of the host's clock,
 * right to some tens of microseconds.
 *
 * Memory of the device is taken when a plan is created, with cudaMalloc, and at no other time; with
 * RA_AUTO_METHOD up to 1.5 GB more meanwhile, for what is measured. A call may be enqueued while
 * earlier ones run, also on another stream: it waits for them. Calls
 * cannot be captured into a graph. Each call leaves the current device as it was, and that device's
 * primary context current; an error that cudaGetLastError has not yet told is forgotten.
 *
 * Messages. GPUs that reach each other's memory (config.transport) pass messages on their own, and
 * wait for each other on the device: their calls return once the work is enqueued. Keys and
 * gradients that go round a ring are moved by copy engines, exchanged heads and gathered keys by
 * kernels that write and read the memory of other GPUs. If the link passes messages, the host is
 * needed between hops, and calls return when the work is done.
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

/* Returns the backend for config.device: a plan computes on the GPU that is the current device when
 * it is created. A plan to look at (ring_size above 1, no link) needs no device. The ranks of a
 * link also tell each other where their memory is, and agree how to pass messages. */
const struct ra_backend *ra_cuda(void);

/* Enqueues what ra_forward or ra_backward computes, in the order of `stream`. RA_OK says that the
 * work is enqueued; what came of it is told by the next call or by ra_wait. RA_LOST, here or there:
 * results since the last ra_wait that returned RA_OK are not to be used. While ra_wait waits it
 * hears of ranks that have failed, which cudaStreamSynchronize does not: that takes config.timeout.
 * ra_forward and ra_backward themselves use the default stream, and wait. */
RA_CHECKED enum ra_status ra_cuda_forward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                          cudaStream_t stream);
RA_CHECKED enum ra_status ra_cuda_backward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
