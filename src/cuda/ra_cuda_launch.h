/* ra_cuda_launch: the work of a GPU at one step. Internal. */
#ifndef RA_CUDA_LAUNCH_H
#define RA_CUDA_LAUNCH_H

#include "ra_cuda.h"

/* A part of the work of a step: with these rows of the keys; and in the backward their gradients,
 * or what they add to those of the queries, or both. */
struct ra_cuda_part {
    struct ra_range rows;
    bool keys, queries;
};

/* Returns all of the work of a step. */
struct ra_cuda_part ra_cuda_full_step(const struct ra_plan *plan, int step);

/* Asks the kernels what they can do with the arrays of a backward, at each of its steps: which
 * gradients they write, as no sum in memory is needed; whether they have those of keys before they
 * compute dq. */
void ra_cuda_open_steps(struct ra_cuda_call *call);

/* Folds a part of the keys of this step into the queries, but for spans of which nobody sees
 * anything. */
void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part);

#endif
