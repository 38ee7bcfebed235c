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

/* One step of this rank. What the plan knows when it is made: */
struct ra_cuda_step {
    /* All that see each other: if it has one band, it is the launch of the backward. */
    struct ra_cuda_block all;

    /* Those of the forward, and else also of the backward: all at once, or some of the spans of
     * queries each. */
    struct ra_cuda_launch *launches;
    int64_t count;

    /* And what the arrays of the last backward allow: launches write dk and dv, instead of adding
     * to them; the kernels have these before they compute dq. */
    bool writes_keys, separates_dq;
};

/* How many bytes the steps of a rank take: all of them, and behind the last the launches of queries
 * that never see anything, and need a result, too. That depends on no device. */
int64_t ra_cuda_steps_bytes(const struct ra_plan *plan);

/* Finds all launches of this rank, once its device is known. */
void ra_cuda_steps_find(const struct ra_plan *plan, struct ra_cuda_step *steps);

/* What the launches of a rank need of memory. That, too, depends on no device. */
struct ra_cuda_needs ra_cuda_needs_of(const struct ra_plan *plan, int rank);

/* Does a sum of launches on so many rows in all lose more to rounding than float32 can bear? */
bool ra_cuda_loses(const struct ra_plan *plan, int64_t rows);

/* How many of this rank's own keys, the first, the backward leaves for the end: so many that the
 * gradients of all of them come home while it works on these. 0: it has no reason to. */
int64_t ra_cuda_deferred_keys(const struct ra_plan *plan);

#endif
