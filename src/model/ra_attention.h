/* ra_attention: the half of a layer that attends, but for attention itself: what stands before and
 * behind it, y = [x +] out attention(rotate(head_norm(qkv norm(x)))), and its backward. Internal.
 *
 * Chapter 10. New here: two callers have this half, with memory of their own: a layer by itself
 * (ra_layer.h) and those of a model (ra_model_step.c). The attention between is theirs, too: a
 * layer's goes by a plan, a decoder's over a cache.
 */
#ifndef RA_ATTENTION_H
#define RA_ATTENTION_H

#include "ra_layer.h"
#include "ra_layers.h"

/* The shape of a half, and what it is computed with. A part whose weights are NULL is not there. */
struct ra_attention {
    struct ra_matrix_work work;
    int64_t batch, rows; /* B, n of this rank; T = B n */
    int64_t dim, heads, key_heads, D, D_v;
    struct ra_norm norm;          /* of x; its eps is that of the norm of heads, too */
    const float *cosines, *sines; /* (n, D / 2); NULL: q and k are not rotated */
    const bool *mask;             /* (B, n), of keys, or NULL */
};

/* What a forward leaves to its backward. W = H D + G D + G D_v. */
struct ra_attention_rows {
    const float *x; /* (T, dim), what comes in */
    float *raw;     /* q (T, H D) and k (T, G D) before the norm of heads, if there is one */
    float *qkv;     /* (T, W), q and k rotated */
    float *o, *lse; /* (T, H D_v), (B, H, n) */
};

/* Writes rows->qkv, and raw, of rows->x. `normal` (T, dim) is scratch. */
void ra_attention_before(const struct ra_attention *attention, const struct ra_attention_weights *w,
                         const struct ra_attention_rows *rows, float *normal);

/* Returns the arrays of attention itself, forward; with d_qkv (T, W), backward, of d_o (T, H D_v).
 * Then the gradients of the sinks, if there are any, go to the first H numbers of `scales`. */
struct ra_arrays ra_attention_arrays(const struct ra_attention *attention,
                                     const struct ra_attention_weights *w,
                                     const struct ra_attention_rows *rows, float *d_o, float *d_qkv,
                                     float *scales);

/* Writes y (T, dim) of rows->o; `base` (T, dim), unless it is NULL, is added. */
void ra_attention_behind(const struct ra_attention *attention, const struct ra_attention_weights *w,
                         const struct ra_attention_rows *rows, const float *base, float *y);

/* Writes d_o, given dy (T, dim), and adds to the gradients `d` of the weights. */
void ra_attention_behind_backward(const struct ra_attention *attention,
                                  const struct ra_attention_weights *w,
                                  const struct ra_attention_rows *rows, const float *dy, float *d_o,
                                  const struct ra_attention_weights *d);

/* Adds the gradient of x to dx, given d_qkv, which is written over, and to those of the weights.
 * `normal` (T, dim) and `scales` (2 T, or 2 T H with a norm of heads) are scratch. */
void ra_attention_before_backward(const struct ra_attention *attention,
                                  const struct ra_attention_weights *w,
                                  const struct ra_attention_rows *rows, float *d_qkv, float *dx,
                                  const struct ra_attention_weights *d, float *normal,
                                  float *scales);

#endif
