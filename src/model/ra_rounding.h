/* ra_rounding: where a model in bfloat16 rounds. The host and a GPU follow the same list, so that a
 * step on one is the truth for a step on the other.
 *
 * Chapter 10. R(x) is the bfloat16 next to x, of two as near the even one. Matrices are multiplied
 * in bfloat16, all else is float32: that is the division of PyTorch's autocast, which keeps what
 * goes by between layers (x and mid below) in float32. A stream of bfloat16 has 8 bits for a sum of
 * 2 depth terms, and loses the small ones; in float32 it costs memory, but no product more.
 *
 * Weights. What an optimizer changes are masters of float32. A step computes with R of every
 * matrix (the tables of tokens and positions, too), and of the biases of qkv and up. Other biases
 * are added to sums of float32 and stay float32, as do the gammas and biases of norms, and sinks.
 * (Autocast leaves the tables in float32. Here a rank need not have the masters of others.)
 *
 * Forward. Sums of products are float32, and so is every norm, which reads float32:
 *
 *     x       = scale R(table)[token] [+ scale R(positions)[place]]    float32
 *     normal  = R(norm(x))
 *     qkv     = R(normal R(qkv)^T + R(bias))
 *     q, k    = R(rotate(head_norm(q, k)))      not rounded between norm and rotation; v stays
 *     o       = R(attention(q, k, v)), lse float32
 *     mid     = x + (o R(out)^T + bias)                                float32
 *     normal  = R(norm(mid))
 *     up      = R(normal R(up)^T + R(bias))
 *     bent    = R(gelu(up)), or R(silu(gate) times up) or R(gelu(gate) times up): of rounded
 *               numbers, computed in float32
 *     x       = mid + (bent R(down)^T + bias)                          float32
 *     normal  = R(norm(x))
 *     logits  = normal R(logits)^T + bias          float32, as are their soft cap and the loss
 *
 * A part that is not there rounds nothing: without a rotation and a norm of heads, q and k are
 * rounded once. A norm behind attention or a feed-forward (post_norm) reads what the matrix
 * gave as float32, and what it gives is added as float32.
 *
 * Backward. `gradient`, which goes by between layers, is float32. What comes into a product is
 * rounded, and so is what comes out; but the gradient of a weight is added up in float32:
 *
 *     d_logits   = R((softmax - one) factor slope): the slope of the soft cap, or 1
 *     d_normal   = R(d_logits R(logits))        d_weight += d_logits^T normal, d_bias += its rows
 *     gradient  += norm's backward of d_normal, in float32
 *     d_bent     = R(R(gradient) R(down))       d_weight and d_bias of R(gradient)
 *     d_up       = R(slope(up) d_bent)
 *     d_normal   = R(d_up R(up))
 *     d_o        = R(R(gradient) R(out))
 *     dq, dk, dv = R(attention's backward of R'd q, k, v, o, d_o and float32 lse)
 *     dq, dk     = R(head norm's backward of them, rotated back): the same part as in the forward
 *     d_normal   = R(dq, dk, dv R(qkv))
 *     d_table   += gradient, in float32
 *
 * Gradients of weights are added up over ranks in float32. AdamW has float32 masters and means.
 * Inside of attention the host rounds nothing. A GPU's tensor cores read the weights of keys and
 * their gradients as bfloat16, too; that depends on its tiles, and is part of its error.
 */
#ifndef RA_ROUNDING_H
#define RA_ROUNDING_H

#include <stdint.h>
#include <string.h>
#include "ra_matrix.h"

/* R(x), as float32. An Inf stays one, and so does a NaN. */
static inline float ra_round_number(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    bits = x == x ? rounded : (bits | 0x00400000) & 0xFFFF0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds these numbers in place if products are of bfloat16, and leaves them alone otherwise. */
static inline void ra_round(const struct ra_matrix_work *work, int64_t count, float *x)
{
    if (!work->bfloat16)
        return;
#pragma omp parallel for num_threads(work->threads) if (work->threads > 1)
    for (int64_t i = 0; i < count; i++)
        x[i] = ra_round_number(x[i]);
}

#endif
