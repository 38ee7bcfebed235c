/* ra_products: products of matrices on a GPU, by cuBLASLt of the CUDA Toolkit.
 *
 * Chapter 14. New here: no kernel of our own. A product of large matrices is the one thing that a
 * vendor's library does as well as a GPU can, and it takes what comes before and after along: a
 * bias, what is added to, the type of what comes out.
 *
 * Matrices lie as in ra_layers.h: rows of numbers side by side, weights (out, in). Sums are
 * float32. Equal calls give equal bits: which algorithm computes a product depends on its shape
 * alone.
 */
#ifndef RA_PRODUCTS_H
#define RA_PRODUCTS_H

#include <cuda_runtime_api.h>

#include "ra_status.h"
#include "ra_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_products;

/* Takes a handle of cuBLASLt and memory of the current device for products whose inputs are of
 * `type`, float32 or bfloat16, one after the other on `stream`. */
RA_CHECKED enum ra_status ra_products_create(struct ra_products **products, enum ra_type type,
                                             cudaStream_t stream, char error[RA_ERROR_SIZE]);
void ra_products_destroy(struct ra_products *products);

/* Counts the bytes of the device that it holds. */
int64_t ra_products_bytes(void);

/* Multiplies: y (rows, out) = x (rows, in) weight^T, with a bias (out) of y's type or NULL, plus
 * base (rows, out) of float32 or NULL. y is of the inputs' type or, with `wide`, float32; only then
 * may there be a base. All of these begin to compute and return; false: cuBLASLt cannot, and
 * ra_products_error says why. */
bool ra_products_forward(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                         const void *x, const void *weight, const void *bias, const float *base,
                         bool wide, void *y);

/* Multiplies: d_weight (out, in), float32, = dy^T x, or has that added (`add`). Rows of dy (rows,
 * out) begin `stride` numbers apart. */
bool ra_products_d_weight(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                          const void *x, const void *dy, int64_t stride, bool add, float *d_weight);

/* Multiplies: dx (rows, in), of the inputs' type, = dy weight. */
bool ra_products_d_x(struct ra_products *products, int64_t rows, int64_t in, int64_t out,
                     const void *weight, const void *dy, int64_t stride, void *dx);

/* Says which product was the first that failed, in words; "" if none has. */
const char *ra_products_error(const struct ra_products *products);

#ifdef __cplusplus
}
#endif

#endif
