/* ra_cuda_lists: the lists of work of a plan with slices. Internal. */
#ifndef RA_CUDA_LISTS_H
#define RA_CUDA_LISTS_H

#include "ra_cuda.h"

/* Tells whether the plan now computes by lists, or cut by cut. Otherwise it has a mask that is one
 * band. */
bool ra_cuda_is_sliced(const struct ra_plan *plan);

/* Counts the bytes of the device's memory that lists take, and of the host's, with ra_cuda_lists
 * itself; 0 if the plan takes no slices. No device and no mask changes that. */
int64_t ra_cuda_lists_device_bytes(const struct ra_plan *plan);
int64_t ra_cuda_lists_bytes(const struct ra_plan *plan);

/* Takes host memory that the device copies from, and an event; and gives them back. */
void ra_cuda_lists_begin(struct ra_plan *plan);
void ra_cuda_lists_end(struct ra_plan *plan);

/* Makes the lists of the plan's mask. They are on their way to the device with the next call. */
void ra_cuda_lists_make(struct ra_plan *plan);

/* Enqueues the copy of lists that have been made since the last call. */
void ra_cuda_lists_send(struct ra_cuda_call *call);

/* Returns the list of a step. */
struct ra_work ra_cuda_lists_of(const struct ra_plan *plan, int step, enum ra_work_use use);

/* Begins a walk over what slices have of a step, which needs `shards` as long as it goes on. */
struct ra_walk ra_cuda_lists_walk(const struct ra_plan *plan, int step,
                                  struct ra_shard_pair *shards);

/* Tells whether the lists of the forward, or the backward, hold all of the mask. If it has more
 * parts than there is room for, or a sum of more rows than one launch adds up well, the work is
 * done cut by cut. */
bool ra_cuda_lists_hold(const struct ra_plan *plan, bool backward);

#endif
