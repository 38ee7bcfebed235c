/* ra_matrix: products of matrices of any order, on vectors and by threads.
 *
 * Chapter 10. New here: the register block of chapter 09, at work on whole matrices. All that a
 * model computes besides attention is such a product, or costs little beside one.
 */
#ifndef RA_MATRIX_H
#define RA_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ra_vector; /* ra_vector.h: the vectors of a processor */

/* A matrix to read: number (i, j) is at data[i * row + j * column]. One of the two distances is 1,
 * so this is a matrix as it lies in memory, or its transpose: of rows of `width` numbers side by
 * side, ra_matrix gives the one and ra_matrix_transposed the other. */
struct ra_matrix {
    const float *data;
    int64_t row, column;
};
static inline struct ra_matrix ra_matrix(const float *data, int64_t width)
{
    struct ra_matrix matrix = {data, width, 1};
    return matrix;
}
static inline struct ra_matrix ra_matrix_transposed(const float *data, int64_t width)
{
    struct ra_matrix matrix = {data, 1, width};
    return matrix;
}

/* How products are computed: by how many threads, on which vectors, and with which memory, which is
 * ra_matrix_scratch floats of the caller's. Arrays are float32 in any case; with bfloat16 layers
 * round the numbers in them as a GPU would, where ra_linear_backward and ra_loss say so. */
struct ra_matrix_work {
    const struct ra_vector *vector;
    int threads;
    float *scratch;
    bool bfloat16;
};

/* Says how this machine computes products: on its best vectors, or those that RA_VECTOR of the
 * environment names; the vector is NULL if it has none such. And counts the floats of scratch. */
struct ra_matrix_work ra_matrix_best(int threads, float *scratch);
int64_t ra_matrix_scratch(const struct ra_vector *vector, int threads);

/* Computes out (rows, width), whose rows lie out_row apart, = left (rows, inner) times right
 * (inner, width), or adds that to what is there. The bits do not depend on the number of
 * threads. */
void ra_matrix_multiply(const struct ra_matrix_work *work, int64_t rows, int64_t inner,
                        int64_t width, struct ra_matrix left, struct ra_matrix right, float *out,
                        int64_t out_row, bool add);

#ifdef __cplusplus
}
#endif

#endif
