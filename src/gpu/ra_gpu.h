/* ra_gpu: what a model holds on a GPU. Internal.
 *
 * Chapter 14.
 */
#ifndef RA_GPU_H
#define RA_GPU_H

#include "ra_gpu_ranks.h"
#include "ra_model_kernels.h"
#include "ra_model_parts.h"
#include "ra_products.h"
#include "ring_attention_model_cuda.h"

/* What a layer's forward leaves to its backward, as struct ra_layer_rows: void is of run.type. */
struct ra_gpu_layer {
    float *x;
    void *raw, *qkv, *o;
    float *lse, *mid;
    void *up;
    void *keys, *values; /* of a decoder: (G, rows, D) of run.cache_type */
};

/* What a batch brings, in the same places of a block on the host and of one on the device. */
struct ra_gpu_batch {
    int32_t *tokens, *labels;     /* (T) */
    int32_t *first, *key, *order; /* of ra_kernel_scatter: (T + 1), (T), (T) */
    int32_t *places;              /* (n), of a table of positions, and who is where: */
    int32_t *place_first, *place_key, *place_order;
    bool *mask; /* (T) */
    float *cosines, *sines;
    int64_t groups, place_groups;
};

/* Numbers that kernels find out for the host: the loss, the length of the gradient, and from
 * RA_GPU_PARTS on the lengths of this rank's parts of pieces. */
enum { RA_GPU_LOSS, RA_GPU_LENGTH, RA_GPU_PARTS };

/* A place on a stream, of ra_gpu_trace.c. */
struct ra_gpu_mark {
    const char *name;
    int layer;
    cudaStream_t stream;
    cudaEvent_t event;
};

struct ra_gpu {
    int device;
    cudaStream_t stream;
    struct ra_products *products;
    enum ra_type type;
    struct ra_gpu_layer layers[RA_MOST_LAYERS + 1];
    void *normal;           /* (T, dim) */
    float *gradient;        /* (T, dim), of what goes by between layers */
    void *rounded_gradient; /* the same in the type; gradient itself, if that is float32 */
    void *wide[3];          /* (T, hidden) twice and (T, R); or d_o and d_qkv */
    float *logits, *losses; /* (block, V), (T) */
    int64_t block;          /* rows whose logits are there at a time */
    float *scratch;
    float *carries;     /* of a decoder: of all ranks, then of this one's splits */
    double *numbers;    /* RA_GPU_LOSS, ... */
    double *squares;    /* ra_kernel_length's scratch */
    void *rounded;      /* the weights in bfloat16 */
    const float *fresh; /* the weights of which `rounded` is known to be a copy */
    int64_t *starts;    /* of the arrays of weights, for AdamW */
    bool *decays;

    /* With several ranks, else NULL: pieces of the arrays of weights, in the order in which the
     * backward completes their gradients. Those of segment k, which are the weights of layer
     * depth - 1 - k and at first what follows the layers, at last what precedes them, begin with
     * number segments[k]. */
    struct ra_gpu_ranks *ranks;
    struct ra_gpu_piece *pieces;
    int piece_count, segments[RA_MOST_LAYERS + 2];
    double *sums; /* (ranks, pieces): squares of gradients */

    struct ra_gpu_batch batch;     /* on the device */
    struct ra_gpu_batch staged[2]; /* and on the host, in turn */
    cudaEvent_t uploaded[2];
    int turn;
    bool placed;     /* the angles on the device are those of places in the sequence, which stay */
    int32_t *counts; /* by token, or position */
    void *memory, *pinned;
    double *results; /* pinned: copies of numbers */

    /* Of the step so far, if anybody observes; there is room for more. */
    void (*observe)(void *observer, const struct ra_model_part *part);
    void *observer;
    struct ra_gpu_mark *marks;
    int mark_count, mark_room;

    cudaError_t code; /* of the first call that failed */
    char call[40];
};

/* CUDA calls and launches go through RA_GPU: after the first that fails nothing more is done. */
#define RA_GPU(gpu, call) ra_gpu_note(gpu, (gpu)->code == cudaSuccess ? (call) : (gpu)->code, #call)
void ra_gpu_note(struct ra_gpu *gpu, cudaError_t code, const char *call);

/* Returns RA_OK, or notes the error of CUDA or of a product as the model's and returns its
 * status. */
enum ra_status ra_gpu_status(struct ra_model *model);

/* Implements struct ra_model_device, as do the functions below. */
enum ra_status ra_gpu_begin(struct ra_model *model, const float *weights, float *gradients);
enum ra_status ra_gpu_forward(struct ra_model *model, const float *weights,
                              const struct ra_model_batch *batch);
enum ra_status ra_gpu_backward(struct ra_model *model, const float *weights,
                               const struct ra_model_batch *batch, double factor, float *gradients,
                               bool add, bool last);
enum ra_status ra_gpu_end(struct ra_model *model, double *loss);
enum ra_status ra_gpu_logits(struct ra_model *model, const float *weights, int64_t first,
                             int64_t count, float *logits);
enum ra_status ra_gpu_learn(struct ra_model *model, const struct ra_optimizer *optimizer,
                            int64_t step, const float *gradients, float *weights, float *means,
                            float *squares, double *length);

/* Tells whether what AdamW knows is sharded over the ranks. */
bool ra_gpu_shards(const struct ra_model *model);

/* Returns this rank's part of a piece of the weights. */
struct ra_gpu_piece ra_gpu_own_part(const struct ra_model *model, int piece);

/* ---- ra_gpu_trace.c: when each part of a step was. Without an observer these do nothing. */

/* Says that a part begins, on the stream of compute, and that the one before ends; NULL: none
 * begins. The same of sums over all ranks of what has been computed so far, on their stream. */
void ra_gpu_mark(struct ra_gpu *gpu, int64_t layer, const char *name);
void ra_gpu_mark_sums(struct ra_gpu *gpu, int64_t layer, const char *name);

/* Tells the observer of all parts that were marked, when all is done; and forgets them. */
void ra_gpu_tell(struct ra_gpu *gpu);
void ra_gpu_trace(struct ra_model *model,
                  void (*observe)(void *observer, const struct ra_model_part *part),
                  void *observer);
void ra_gpu_end_trace(struct ra_gpu *gpu);

/* ---- ra_gpu_cache.c: a decoder, whose model has no plans. */

/* Tells whether this model is a decoder's, which has no plans. */
bool ra_gpu_decodes(const struct ra_model *model);

/* Counts the rows of a cache on each rank. */
int64_t ra_gpu_cache_rows(const struct ra_model *model);

/* Counts the numbers of the carries of one call. */
int64_t ra_gpu_carry_numbers(const struct ra_model *model);

/* Computes the attention of the new tokens, which join the cache first. */
enum ra_status ra_gpu_decode(struct ra_model *model, int64_t layer);

/* Implements struct ra_model_device for a decoder, as do the functions below. */
struct ra_tensor ra_gpu_kept(const struct ra_model *model, int64_t layer, bool values);
enum ra_status ra_gpu_fill(struct ra_model *model, int64_t layer, int64_t length,
                           struct ra_tensor k, struct ra_tensor v);

#endif
