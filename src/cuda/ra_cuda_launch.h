/* ra_cuda_launch: the work of a GPU at one step. Internal. */
#ifndef RA_CUDA_LAUNCH_H
#define RA_CUDA_LAUNCH_H

#include "ra_cuda.h"

/* The part of a kernel that all launches of a plan have in common. */
struct ra_kernel ra_cuda_kernel(const struct ra_plan *plan);

/* A part of the work of a step: with these rows of the keys; and in the backward their gradients,
 * or what they add to those of the queries, or both. */
struct ra_cuda_part {
    struct ra_range rows;
    bool keys, queries;
};

/* All of it. */
struct ra_cuda_part ra_cuda_full_step(const struct ra_plan *plan, int step);

/* Do the kernels of this step have the gradients of keys before they compute those of queries? */
bool ra_cuda_has_separate_dq(struct ra_cuda_call *call, int step);

/* How many of this rank's own keys, the first, the backward leaves for the end: so many that the
 * gradients of all of them come home while it works on these. 0: it has no reason to. */
int64_t ra_cuda_deferred_keys(const struct ra_plan *plan);

/* Folds a part of the keys of this step into the queries, but for spans of which nobody sees
 * anything. */
void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part);

/* Finds out which gradients the launches of this step can write: those that need no sum in
 * memory. */
void ra_cuda_find_overwrites(struct ra_cuda_call *call, int step);

/* Counts the steps of a rank by span of queries (steps may be NULL); says whether one span has
 * several launches, between which there is a carry, and how many semaphores the backward needs. */
void ra_cuda_count_steps(const struct ra_plan *plan, int rank, int64_t *steps, bool *carries,
                         int64_t *semaphores);

#endif
