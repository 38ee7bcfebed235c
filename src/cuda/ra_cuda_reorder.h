/* ra_cuda_reorder: rows of several stripes in the order of the sequence. Internal. */
#ifndef RA_CUDA_REORDER_H
#define RA_CUDA_REORDER_H

#include "ra_cuda.h"

/* If a rank has several stripes, and the mask is causal, its rows are kept in the order of the
 * sequence while a call runs. This brings the caller's q, k, v, lse and d_out into it; kernels read
 * these, and write o and lse, in call->arrays. Then the mask, in any case copied, and delta, of the
 * caller's o and d_out. */
void ra_cuda_begin_order(struct ra_cuda_call *call);
void ra_cuda_begin_mask(struct ra_cuda_call *call);
void ra_cuda_begin_delta(struct ra_cuda_call *call);

/* The way back: rows of float32 to one of the caller's arrays, plus others if these have data; and
 * o and lse, at the end of a forward. */
void ra_cuda_copy_rows_back(struct ra_cuda_call *call, enum ra_side side, struct ra_tensor to,
                            struct ra_tensor from, struct ra_tensor plus, int64_t heads,
                            int64_t dim);
void ra_cuda_end_order(struct ra_cuda_call *call);

#endif
