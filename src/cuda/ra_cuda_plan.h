/* ra_cuda_plan: a plan on a GPU in which keys move, and what it shares with one that exchanges
 * heads. Internal.
 *
 * Chapter 11.
 */
#ifndef RA_CUDA_PLAN_H
#define RA_CUDA_PLAN_H

#include "ra_cuda.h"

/* The methods of GPUs besides the ring. The double ring is not among them: a hybrid whose groups
 * are the hosts sends as few bytes between them. */
#define RA_CUDA_METHODS (1u << RA_GATHERED_KEYS | 1u << RA_EXCHANGED_HEADS | 1u << RA_HYBRID)

/* What ranks measure with: see ra_meter.h. */
extern const struct ra_meter ra_cuda_meter;

/* The backend of the ring. */
extern const struct ra_backend ra_cuda_ring_backend;

/* Takes streams, events and cuda->device_bytes of memory, which is 0, of the current device, once
 * that is known to be good enough. What was taken ra_cuda_release gives back, and the plan's own
 * part with it. */
enum ra_status ra_cuda_take_device(struct ra_plan *plan, char *error);
void ra_cuda_release(struct ra_plan *plan, bool unused);

/* Says that CUDA has refused this much memory of the host, from which the device copies. Returns
 * RA_OUT_OF_MEMORY. */
enum ra_status ra_cuda_lacks_host_memory(const struct ra_plan *plan, int64_t bytes, char *error);

/* Finishes all work, and lets go of the other ranks: see struct ra_backend. */
bool ra_cuda_leave(struct ra_plan *plan);

/* Says whether an array, or the workspace, may be at this address. */
enum ra_status ra_cuda_check_address(const struct ra_plan *plan, const char *name,
                                     const void *address, char *error);

#endif
