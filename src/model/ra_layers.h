/* ra_layers: the small layers of a transformer: embedding, bias, RMSNorm and GELU, forward and
 * backward.
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
#include "ra_vector.h"

/* The sum of a[i] * b[i]. In double, as squares of float32 need not be numbers of float32. */
double ra_dot(int64_t count, const float *a, const float *b);

/* out (rows, dim): row tokens[a] of table (vocabulary, dim). And its backward. */
void ra_embedding_forward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                          const float *table, float *out);
void ra_embedding_backward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                           const float *d_out, float *d_table);

/* out (rows, width) = x + bias in each row, or bias alone if x is NULL: for products to be added
 * to. Backward, d_bias is the sum of the rows. */
void ra_bias_forward(int threads, int64_t rows, int64_t width, const float *bias, const float *x,
                     float *out);
void ra_bias_backward(int threads, int64_t rows, int64_t width, const float *d_out, float *d_bias);

/* out = sqrt(dim) * x / |x| * gamma, for rows x of dim numbers. A row shorter than 1e-12 is divided
 * by that instead. The backward adds to dx, and needs scratch for one float a row. */
void ra_norm_forward(int threads, int64_t rows, int64_t dim, const float *x, const float *gamma,
                     float *out);
void ra_norm_backward(int threads, int64_t rows, int64_t dim, const float *x, const float *gamma,
                      const float *d_out, float *dx, float *d_gamma, float *scratch);

/* out = x P(x), where P(x) is the probability that a normal variable is below x. d_x may be d_out.
 * Numbers and slopes are off by less than 5e-7. */
void ra_gelu_forward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                     float *out);
void ra_gelu_backward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                      const float *d_out, float *d_x);

#endif
