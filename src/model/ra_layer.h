/* ra_layer: an attention layer over a sequence that is cut into shards: RingAttention as a part of
 * somebody else's model.
 *
 * Chapter 10. New here: what stands around attention, which a plan of ring_attention.h computes:
 *
 *     y = [x +] out attention(rotate(head_norm(qkv norm(x))))
 *
 * The norm, the biases, the norm of heads, the rotation and x itself are there if the config says
 * so. Everything that attention sees is the plan's: layout, mask, window, slices, head map, soft
 * cap, and whether keys go round a ring or are gathered (ra_gathered.h). A layer itself sends
 * nothing.
 *
 *     struct ra_layer_config config = RA_LAYER_INIT;          say what the layer is,
 *     ra_layer_create(&layer, &config, plan, error);          check it,
 *     kept = malloc(ra_layer_kept_bytes(layer));              take memory,
 *     ra_layer_forward(layer, &weights, &arrays);             compute,
 *     ra_layer_backward(layer, &weights, &arrays, &gradients);
 *     ra_layer_destroy(layer);
 *
 * Letters: B batches, N tokens of a sequence, n of them on this rank, H query heads, G key/value
 * heads, D numbers per head (D_v of a value), dim numbers of a token. W = H D + G D + G D_v.
 *
 * Manners are those of ring_attention.h: nothing is printed, there is no state outside of the layer
 * and its plan, and memory is taken by ra_layer_create alone. All ranks of the plan's ring make the
 * same calls together. One layer may stand for many with different weights: what a forward leaves
 * to its backward is in memory of the caller's.
 */
#ifndef RA_LAYER_H
#define RA_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ra_parts.h"
#include "ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_batch; /* ra_batch.h: the way from whole rows of a batch to shards of a sequence */

/* What a layer is. Begin with RA_LAYER_INIT: its size tells the library which fields your header
 * has, and the defaults stand in brackets. They are those of RingAttention of
 * ring-attention-pytorch. Its head map, which is the plan's here, is RA_INTERLEAVED. */
struct ra_layer_config {
    size_t size;
    int64_t dim;                             /* numbers of a token, at least 1 [0] */
    bool prenorm;                            /* begins with a norm [true] */
    enum ra_norm_kind norm;                  /* of which kind [RA_NORM_UNIT] */
    double norm_eps;                         /* of RMS, LAYER and head_norm, above 0 [1e-6] */
    bool qkv_bias, out_bias;                 /* [false] */
    bool head_norm;                          /* q and k of each head get a norm RMS [false] */
    bool rotary;                             /* q and k are rotated by their positions [false] */
    double rotary_theta, rotary_scale;       /* as in ra_rotary.h [10000, 1] */
    struct ra_rotary_scaling rotary_scaling; /* [RA_ROTARY_PLAIN] */
    bool residual; /* y is x plus attention, not attention alone [false] */

    /* x, y and their gradients are whole rows of a batch, (rows, N, dim), as every rank has loaded
     * some, and a mask is (rows, N): calls send them to the shards and back. The batch has the
     * plan's layout, its set_rows are the plan's B, and its tokens are dim floats. It stays the
     * caller's, who keeps it as long as the layer. Not with a deal by documents [NULL: shards] */
    struct ra_batch *batch;

    bool sinks;       /* a sink of each head is learnt, as in ring_attention.h [false] */
    bool reserved[7]; /* not read */
};

#define RA_LAYER_INIT                                                                            \
    {                                                                                            \
        sizeof(struct ra_layer_config), 0, true, RA_NORM_UNIT, 1e-6, false, false, false, false, \
            10000, 1, {RA_ROTARY_PLAIN, 1, 1, 1, 1}, false, NULL, false,                         \
        {                                                                                        \
            false                                                                                \
        }                                                                                        \
    }

/* The weights of a layer, or gradients with respect to them. Begin with RA_ATTENTION_WEIGHTS_INIT.
 * Matrices are (out, in): a layer computes x times the transpose. What the config does not have may
 * stay NULL. */
struct ra_attention_weights {
    size_t size;
    float *gamma, *bias;      /* (dim), of the norm; the bias of RA_NORM_LAYER alone */
    float *qkv, *qkv_bias;    /* (W, dim), (W): rows of q, head by head, then of k, then of v */
    float *q_gamma, *k_gamma; /* (D), of the norm of heads */
    float *out, *out_bias;    /* (dim, H D_v), (dim) */
    float *sinks;             /* (H) */
};

#define RA_ATTENTION_WEIGHTS_INIT                                                                 \
    {                                                                                             \
        sizeof(struct ra_attention_weights), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL \
    }

/* This rank's part of the arrays of a call, float32 without gaps. Begin with RA_LAYER_ARRAYS_INIT.
 * Outputs overlap no other array, but dx may be dy. */
struct ra_layer_arrays {
    size_t size;
    const float *x;   /* (B, n, dim) */
    const bool *mask; /* (B, n), true: this key may be seen; if the plan has_mask */
    const int64_t
        *positions; /* (n): where rows count as being, for rotary angles, such as places in
                               * their documents; NULL: their places in the sequence */
    float *y;       /* (B, n, dim): out of the forward */
    void *kept;     /* ra_layer_kept_bytes: out of a forward, into its backward */
    void *scratch;  /* ra_layer_scratch_bytes, of which nothing is kept from one call to the next */
    const float *dy; /* (B, n, dim): the gradient of y, into the backward */
    float *dx;       /* (B, n, dim): that of x, out of the backward, overwritten */
};

#define RA_LAYER_ARRAYS_INIT                                                           \
    {                                                                                  \
        sizeof(struct ra_layer_arrays), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL \
    }

/* A layer: a config that has been checked, and the plan that it attends by. */
struct ra_layer;

/* Makes a layer whose attention is `plan`, of float32, on the host, with as many queries as keys.
 * The plan stays the caller's, may serve other layers, too, may be given slices, and is destroyed
 * after the layer. A plan to look at makes a layer to look at: it tells its bytes.
 *
 * With config.batch all ranks of its communicator call this together if the plan has a mask.
 * Otherwise nothing is sent. If this fails, *layer is NULL and error (RA_ERROR_SIZE characters,
 * unless it is NULL) has the reason. RA_INVALID: a layer cannot have such a config or plan;
 * RA_OUT_OF_MEMORY. */
RA_CHECKED enum ra_status ra_layer_create(struct ra_layer **layer,
                                          const struct ra_layer_config *config,
                                          struct ra_plan *plan, char error[RA_ERROR_SIZE]);

/* Frees a layer; NULL is none. Plan, batch and arrays stay the caller's. */
void ra_layer_destroy(struct ra_layer *layer);

/* Returns the text of the last error of a call with this layer; "" if there was none. */
const char *ra_layer_error(const struct ra_layer *layer);

/* Counts the bytes of memory of a call: what a forward leaves to its backward, and scratch. Both
 * are enough for as many rows as this rank can have, under any slices. Addresses are multiples of
 * 64. */
int64_t ra_layer_kept_bytes(const struct ra_layer *layer);
int64_t ra_layer_scratch_bytes(const struct ra_layer *layer);

/* Counts the numbers of all weights that a layer has; and gives each its place in an array of so
 * many, one behind the other in the order of the struct, NULL if the layer has none such: for
 * weights that are to be added up, or learnt, as one array. `size` is that of the caller's struct,
 * sizeof *weights. */
int64_t ra_layer_weight_count(const struct ra_layer *layer);
void ra_layer_weights_in(const struct ra_layer *layer, float *all,
                         struct ra_attention_weights *weights, size_t size);

/* Computes y of x. All ranks of the plan's ring call it together; with a batch, all ranks of that.
 *
 * RA_INVALID: an array is missing, and the text names it: the other ranks of the ring get RA_LOST,
 * and the plan is at its end. With a batch all its ranks get RA_INVALID and the same text, and can
 * go on. RA_LOST, RA_CANCELLED: as of ra_forward. */
RA_CHECKED enum ra_status ra_layer_forward(struct ra_layer *layer,
                                           const struct ra_attention_weights *weights,
                                           const struct ra_layer_arrays *arrays);

/* Computes the gradients of x, which are written to dx, and of the weights, which are added to
 * `gradients`: those of this rank's rows, to be added up over all ranks, as by MPI_Allreduce. Given
 * are dy, and x, kept and weights of the forward; mask and slices must be that forward's, too.
 * Errors are those of ra_layer_forward. */
RA_CHECKED enum ra_status ra_layer_backward(struct ra_layer *layer,
                                            const struct ra_attention_weights *weights,
                                            const struct ra_layer_arrays *arrays,
                                            const struct ra_attention_weights *gradients);

#ifdef __cplusplus
}
#endif

#endif
