/* ra_cuda_steps: which launches each step of a plan takes. Internal. */
#ifndef RA_CUDA_STEPS_H
#define RA_CUDA_STEPS_H

#include "ra_cuda_spans.h"

/* A launch of these queries and keys; several, one for each pair of spans, if no one band says who
 * sees whom. `first`: no step before this has keys that they see, so the forward reads no carry;
 * `last`: none after it has, so it writes o and lse. */
struct ra_cuda_launch {
    struct ra_cuda_block block;
    bool first, last;
};

/* A step of this rank. */
struct ra_cuda_step {
    /* All pairs of spans that see each other. If one band says so, the backward launches this. */
    struct ra_cuda_block all;

    /* What the forward launches, and otherwise the backward, too: the same, or some spans of the
     * queries at a time. */
    struct ra_cuda_launch *launches;
    int64_t count;

    /* What the arrays of the backward that is being enqueued allow: launches write dk and dv,
     * instead of adding to them; kernels have these before they compute dq. */
    bool writes_keys, separates_dq;
};

/* Counts the bytes of the steps of a rank: of all of them, and of one more, behind the last, for
 * queries that never see anything, and need a result, too. No device changes that. */
int64_t ra_cuda_steps_bytes(const struct ra_plan *plan);

/* Finds all launches of this rank, once its device is known. */
void ra_cuda_steps_find(const struct ra_plan *plan, struct ra_cuda_step *steps);

/* Finds what the launches of a rank need of memory. No device changes that. */
struct ra_cuda_needs ra_cuda_needs_of(const struct ra_plan *plan, int rank);

/* Tells whether sums over this many rows lose more to rounding than they may, launch by launch. */
bool ra_cuda_loses(const struct ra_plan *plan, int64_t rows);

/* Counts the keys of this rank, the first of them, that a backward leaves for the end: so many that
 * the gradients of all of them come home while it works on these. 0: it has no reason to. */
int64_t ra_cuda_deferred_keys(const struct ra_plan *plan);

#endif
