/* ra_model_kernels: what a transformer computes on a GPU besides attention and products of
 * matrices, forward and backward.
 *
 * Chapter 14. Each of these reads and writes every number once and does little with it: it is as
 * fast as memory. So whatever can share a visit to memory is one launch. All are deterministic:
 * equal inputs give equal bits. Sums are float32, or double where they say so.
 *
 * Pointers are to memory of the current device, which arrays begin at multiples of 16 bytes. A row
 * has `width` numbers side by side. `type` is what rows between products are kept as, RA_FLOAT32 or
 * RA_BFLOAT16: arrays of void. A launcher checks nothing that its caller is to know, launches, and
 * returns at once.
 */
#ifndef RA_MODEL_KERNELS_H
#define RA_MODEL_KERNELS_H

#include <cuda_runtime_api.h>

#include "ra_layers.h"
#include "ra_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The longest head; and is there a norm for rows of so many numbers? */
enum { RA_MOST_HEAD_DIM = 256 };
static inline bool ra_kernel_takes_norm(int64_t dim)
{
    return dim <= (dim % 4 == 0 ? 8192 : 2048);
}

/* Returns how many floats of scratch a sum over rows wants, whose rows have `width` numbers. */
int64_t ra_kernel_sum_scratch(int64_t width);

/* Computes out (rows, dim) = norm(x), with a bias or NULL. Backward, `gradient` gets the gradient
 * with respect to x, or has it added (`add`), and `copy`, unless it is NULL, gets what gradient is
 * then in the type. d_gamma and d_bias (or NULL) are added to. */
cudaError_t ra_kernel_norm_forward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                                   const float *gamma, const float *bias, enum ra_type type,
                                   void *out, cudaStream_t stream);
cudaError_t ra_kernel_norm_backward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                                    const float *gamma, enum ra_type type, const void *d_out,
                                    bool add, float *gradient, void *copy, float *d_gamma,
                                    float *d_bias, float *scratch, cudaStream_t stream);

/* `heads` heads of D numbers side by side, in rows `stride` numbers apart: the norm RMS of each, if
 * there is a gamma (D), for which `raw` (rows, heads, D) gets what they were; then the rotation by
 * the angles of their row, if there are cosines (n, D / 2), where row a has those of a % n. In
 * place. The backward turns the gradient of what they became into that of what they were. */
struct ra_heads {
    int64_t rows, n, heads, D, stride;
    const float *cosines, *sines; /* or NULL */
    const float *gamma;           /* or NULL */
    double eps;
};
cudaError_t ra_kernel_heads_forward(const struct ra_heads *heads, enum ra_type type, void *x,
                                    void *raw, cudaStream_t stream);
cudaError_t ra_kernel_heads_backward(const struct ra_heads *heads, enum ra_type type, void *d,
                                     const void *raw, float *d_gamma, float *scratch,
                                     cudaStream_t stream);

/* Computes bent (rows, hidden), what stands between the matrices of a feed-forward, of x (rows,
 * hidden), or (rows, 2 hidden) with the gate first. The backward computes bent again, and d_x,
 * which may be d_bent for GELU. */
cudaError_t ra_kernel_bend_forward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                   enum ra_type type, const void *x, void *bent,
                                   cudaStream_t stream);
cudaError_t ra_kernel_bend_backward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                    enum ra_type type, const void *x, const void *d_bent,
                                    void *bent, void *d_x, cudaStream_t stream);

/* Adds to sums (width) the rows of d (rows, width), which begin `stride` numbers apart. */
cudaError_t ra_kernel_add_rows(int64_t rows, int64_t width, enum ra_type type, const void *d,
                               int64_t stride, float *sums, float *scratch, cudaStream_t stream);

/* Computes out (rows, dim) = row tokens[a] of table, plus, unless positions is NULL, scale times
 * row places[a % n] of positions. */
cudaError_t ra_kernel_embed(int64_t rows, int64_t n, int64_t dim, enum ra_type type,
                            const int32_t *tokens, const void *table, const int32_t *places,
                            const void *positions, double scale, float *out, cudaStream_t stream);

/* Which rows take part in each row of a table: group g are rows order[first[g]], ...,
 * order[first[g + 1] - 1], and theirs is row key[g]. Ascending in a group, so that sums have one
 * order. */
struct ra_groups {
    int64_t count;
    const int32_t *first, *key, *order;
};

/* Adds to row key[g] of d_table scale times the sum of the rows of group g of d (rows, dim). */
cudaError_t ra_kernel_scatter(const struct ra_groups *groups, int64_t dim, double scale,
                              const float *d, float *d_table, cudaStream_t stream);

/* Turns logits of a block (rows, vocabulary) of float32 into their gradients, in place: row a
 * begins where it did, but its numbers are of the type and so may take half of the room. losses
 * (rows) gets -log p(label), or 0 where the label is negative. */
cudaError_t ra_kernel_loss(int64_t rows, int64_t vocabulary, float *logits, const int32_t *labels,
                           double factor, enum ra_type type, float *losses, cudaStream_t stream);

/* Adds to *sum factor times the sum of x (count), in double. */
cudaError_t ra_kernel_add_up(int64_t count, const float *x, double factor, double *sum,
                             cudaStream_t stream);

/* *length = the root of the sum of squares of x (count), in double; scratch: RA_SQUARES_SCRATCH
 * doubles. */
enum { RA_SQUARES_SCRATCH = 1024 };
cudaError_t ra_kernel_length(int64_t count, const float *x, double *length, double *scratch,
                             cudaStream_t stream);

/* Rounds: to (count) = from in bfloat16. */
cudaError_t ra_kernel_round(int64_t count, const float *from, void *to, cudaStream_t stream);

/* Adds up x (count) over all ranks, in their order: this rank, `own`, has x itself, and rank r the
 * numbers from others + r * stride on. Both are multiples of 4. */
cudaError_t ra_kernel_add_parts(int64_t count, int ranks, int own, float *x, const float *others,
                                int64_t stride, cudaStream_t stream);

/* AdamW, as ra_optimizer_step, of numbers begin, ..., begin + count - 1 of the model: pointers are
 * to the first of these. *length is that of all of the gradient; if it is not finite nothing is
 * changed. Array p of `arrays` begins at number first[p], a multiple of 4, and decays if decays[p].
 * rounded, unless it is NULL, gets the weights in bfloat16. */
struct ra_adamw {
    float rate, kept, clip, epsilon, beta1, share1, beta2, share2, mean_factor, square_factor;
    int64_t begin, count;
    int arrays;
    const int64_t *first;
    const bool *decays;
    const double *length;
};
cudaError_t ra_kernel_adamw(const struct ra_adamw *adamw, const float *gradients, float *weights,
                            float *means, float *squares, void *rounded, cudaStream_t stream);

/* Attention of `tokens` new tokens, the last of a text, over a cache of which this rank of `ranks`
 * has positions rank, rank + ranks, ...: heads (D) side by side in rows of q of the type, `stride`
 * numbers apart; k and v (key_heads, rows, D) of the type `cache`. Token t is at position
 * first + t, and sees itself and `lookback` positions before. D is at most 256.
 *
 * Keys are split among blocks, into as many parts as ra_kernel_decode_splits says of the rows that
 * there are so far and of `tokens`: carries (splits, tokens, heads, D + 2) get o, max and sum of
 * each. A head has at most ra_kernel_decode_carries of them, for fewer rows or tokens, too. */
struct ra_decode {
    int64_t tokens, heads, key_heads, D, stride;
    const void *q;
    enum ra_type type;
    const void *k, *v;
    enum ra_type cache;
    int64_t rows, first, lookback;
    int rank, ranks;
    bool interleaved; /* query head h reads key head h % key_heads; else h / (heads / key_heads) */
    float scale, softcap; /* 0: none */
};
int64_t ra_kernel_decode_splits(int64_t rows, int64_t tokens, int64_t key_heads);
int64_t ra_kernel_decode_carries(int64_t rows, int64_t tokens, int64_t key_heads);
cudaError_t ra_kernel_decode(const struct ra_decode *decode, float *carries, cudaStream_t stream);

/* Combines `parts` carries of each of `rows` rows, in their order, which lie `stride` numbers
 * apart: into carry (rows, D + 2), or, if that is NULL, to what attention gives, out (rows, D) of
 * the type. */
cudaError_t ra_kernel_combine(int64_t rows, int64_t D, int64_t parts, int64_t stride,
                              const float *carries, enum ra_type type, void *out, float *carry,
                              cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
