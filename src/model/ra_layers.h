/* ra_layers: the small layers of a transformer: embeddings, biases, norms, and what is between the
 * matrices of a feed-forward; each forward and backward.
 *
 * Chapter 10. New here: each layer is two functions. The backward is given the gradient of the loss
 * with respect to what the forward wrote, and finds those with respect to what it read.
 *
 * Rows are tokens, and belong to the caller. Gradients of weights are added to. The bits do not
 * depend on the number of threads: a row has one thread, and so has a column of a sum over rows.
 */
#ifndef RA_LAYERS_H
#define RA_LAYERS_H

#include <stdint.h>
#include "ra_matrix.h"
#include "ra_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the sum of a[i] * b[i], in double, as squares of float32 need not be numbers of
 * float32. */
double ra_dot(int64_t count, const float *a, const float *b);

/* Writes out (rows, dim): scale times row tokens[a] of table (vocabulary, dim). The backward adds
 * to d_table. */
void ra_embedding_forward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                          double scale, const float *table, float *out);
void ra_embedding_backward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                           double scale, const float *d_out, float *d_table);

/* Adds to x (batch, rows, dim) scale times row positions[a] of table (longest, dim), in row a of
 * each batch. The backward adds to d_table. */
void ra_positions_forward(int threads, int64_t batch, int64_t rows, int64_t dim,
                          const int64_t *positions, double scale, const float *table, float *x);
void ra_positions_backward(int threads, int64_t batch, int64_t rows, int64_t dim,
                           const int64_t *positions, double scale, const float *dx, float *d_table);

/* Writes out (rows, width) = x + bias in each row, or one of them if the other is NULL: for
 * products to be added to. Backward, d_bias is the sum of the rows. */
void ra_bias_forward(int threads, int64_t rows, int64_t width, const float *bias, const float *x,
                     float *out);
void ra_bias_backward(int threads, int64_t rows, int64_t width, const float *d_out, float *d_bias);

/* Computes y (rows, out) = x weight^T + bias + base, where weight is (out, in), and bias (out) or
 * base (rows, out) may be NULL. Backward, d_weight += dy^T x, and d_bias, unless it is NULL, += the
 * sum of dy's rows; dx = dy weight, which may be written where x is, and with work->bfloat16 is
 * rounded. */
void ra_linear_forward(const struct ra_matrix_work *work, int64_t rows, int64_t in, int64_t out,
                       const float *x, const float *weight, const float *bias, const float *base,
                       float *y);
void ra_linear_backward(const struct ra_matrix_work *work, int64_t rows, int64_t in, int64_t out,
                        const float *x, const float *weight, const float *dy, float *dx,
                        float *d_weight, float *d_bias);

/* A norm of ra_parts.h. eps is above 0; the norm UNIT has none, but divides a row that is shorter
 * than 1e-12 by that instead. */
struct ra_norm {
    enum ra_norm_kind kind;
    double eps;
};

/* Computes out (rows, dim) = norm(x). bias and d_bias are NULL for a norm without. The backward
 * adds to dx, and needs scratch for two floats a row. */
void ra_norm_forward(int threads, struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                     const float *gamma, const float *bias, float *out);
void ra_norm_backward(int threads, struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                      const float *gamma, const float *d_out, float *dx, float *d_gamma,
                      float *d_bias, float *scratch);

/* Computes a norm in place, for heads of D numbers that lie side by side in rows, `stride` numbers
 * apart; all heads share gamma (D). `raw` (rows, heads, D) gets what x was. The backward is given
 * the gradient with respect to what x became, in d, which becomes that with respect to raw. It
 * needs scratch for two floats a head. */
void ra_head_norm_forward(int threads, struct ra_norm norm, int64_t rows, int64_t heads, int64_t D,
                          const float *gamma, float *x, int64_t stride, float *raw);
void ra_head_norm_backward(int threads, struct ra_norm norm, int64_t rows, int64_t heads, int64_t D,
                           const float *raw, const float *gamma, float *d, int64_t stride,
                           float *d_gamma, float *scratch);

/* Computes out = x P(x), where P(x) is the probability that a normal variable is below x. d_x may
 * be d_out. Numbers and slopes are off by less than 5e-7. */
void ra_gelu_forward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                     float *out);
void ra_gelu_backward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                      const float *d_out, float *d_x);

/* Computes out (rows, hidden) = bend(gate) times up, where x (rows, 2 hidden) has the gate first,
 * and bend is that of RA_FEED_SWIGLU or RA_FEED_GEGLU. Backward, dx is not d_out. */
void ra_gated_forward(const struct ra_vector *vector, int threads, enum ra_feed_kind kind,
                      int64_t rows, int64_t hidden, const float *x, float *out);
void ra_gated_backward(const struct ra_vector *vector, int threads, enum ra_feed_kind kind,
                       int64_t rows, int64_t hidden, const float *x, const float *d_out, float *dx);

#ifdef __cplusplus
}
#endif

#endif
