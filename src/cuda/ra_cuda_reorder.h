/* ra_cuda_reorder: rows of several stripes in the order of the sequence. Internal. */
#ifndef RA_CUDA_REORDER_H
#define RA_CUDA_REORDER_H

#include "ra_cuda.h"

/* Brings the caller's q, k, v, lse and d_out into the order of the sequence, if a rank has several
 * stripes and the mask is causal: its rows stay so while the call runs. Kernels read these, and
 * write o and lse, in call->arrays. */
void ra_cuda_begin_order(struct ra_cuda_call *call);

/* Copies the key mask, in the order of the rows that kernels read. */
void ra_cuda_begin_mask(struct ra_cuda_call *call);

/* Computes delta of the caller's o and d_out, in the order of the rows that kernels read. */
void ra_cuda_begin_delta(struct ra_cuda_call *call);

/* Copies rows of float32 from the order of the sequence to one of the caller's arrays, plus others
 * if these have data. */
void ra_cuda_copy_rows_back(struct ra_cuda_call *call, enum ra_side side, struct ra_tensor to,
                            struct ra_tensor from, struct ra_tensor plus, int64_t heads,
                            int64_t dim);

/* Copies o and lse from the order of the sequence to the caller's arrays, at the end of a
 * forward. */
void ra_cuda_end_order(struct ra_cuda_call *call);

#endif
