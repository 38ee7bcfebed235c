/* ring_attention_model_cuda: a model of ring_attention_model.h that computes on a GPU.
 *
 * Chapter 14. For struct ra_model_run's `device`: then all calls of ra_model.h are as they are, but
 * weights and gradients lie in memory of the GPU that was the current device when the model was
 * made; see ra_model_device.h. run.type says what products read: float32, or bfloat16, which rounds
 * where ra_rounding.h says, as the host does.
 *
 * Ranks take a GPU each, before the model is made, or share one. Attention goes round the ring as
 * in ring_attention_cuda.h. Gradients are added up, in the order of ranks, while the backward goes
 * on; AdamW has the length of all of the gradient, and leaves all ranks the same weights. After
 * RA_LOST memory that other ranks may still write to stays.
 *
 * With run.deterministic equal calls give equal bits.
 */
#ifndef RING_ATTENTION_MODEL_CUDA_H
#define RING_ATTENTION_MODEL_CUDA_H

#include "ra_model_device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns what run.device points to. After `learn` the next step computes with what that has left
 * in the weights: whoever writes to them otherwise does so before the first step, or between two
 * calls of which the earlier is none of `learn`. */
const struct ra_model_device *ra_model_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
