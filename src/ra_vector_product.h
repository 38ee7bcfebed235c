/* ra_vector_product: products of matrices whose sums stay in registers.
 *
 * Chapter 09. Internal: included once for each instruction set. New here: the block of sums.
 */
#ifndef RA_VECTOR_PRODUCT_H
#define RA_VECTOR_PRODUCT_H

#include "ra_vector_lanes.h"
#include "ra_math.h"

/* out (rows, width) from the sums over k < inner of left(i, k) times row k of `right`, where
 * left(i, k) is at left[i * row + k * step]: neighbours in memory are of one row (step 1) or of one
 * column (row 1). The sums are written, or added to what is there, or added to that times a factor
 * of the row. */
struct product {
    int64_t rows, inner, width; /* width: a multiple of LANES */
    const float *left;
    int64_t row, step;
    const float *right;
    int64_t right_row;
    float *out;
    int64_t out_row;
    enum { WRITE, ADD } kind;
    const float *factors; /* (rows), of what is there; NULL: all 1 */
};

/* One block of it, M rows from row `first` on and V vectors from column c on. All M * V sums stay
 * in registers: for each k V vectors are loaded, M numbers are spread over a vector each, and M * V
 * vectors are multiplied and added. `row` is product->row. */
INLINE void multiply_block(const int M, const int V, const struct product *product, int64_t row,
                           int64_t first, int64_t c)
{
    const float *left = product->left + first * row, *right = product->right + c;
    int64_t step = product->step, right_row = product->right_row;
    lanes sums[12][4] = {{{0}}};
    ROLLED
    for (int64_t k = 0; k < product->inner; k++) {
        lanes b[4];
        UNROLLED
        for (int j = 0; j < V; j++)
            b[j] = load(right + k * right_row + j * LANES);
        UNROLLED
        for (int i = 0; i < M; i++) {
            lanes a = all_lanes(left[i * row + k * step]);
            UNROLLED
            for (int j = 0; j < V; j++)
                sums[i][j] = multiply_add(a, b[j], sums[i][j]);
        }
    }
    /* Copies: as far as the compiler knows, a store may change *product. */
    float *out = product->out + first * product->out_row + c;
    const float *factors = product->factors ? product->factors + first : NULL;
    int64_t out_row = product->out_row;
    bool write = product->kind == WRITE;
    UNROLLED
    for (int i = 0; i < M; i++) {
        lanes factor = all_lanes(factors ? factors[i] : 1);
        UNROLLED
        for (int j = 0; j < V; j++) {
            float *place = out + i * out_row + j * LANES;
            store(place, write ? sums[i][j] : multiply_add(load(place), factor, sums[i][j]));
        }
    }
}

/* V vectors of all rows, by blocks of as many rows as fit into the registers; what is left, by
 * smaller ones. ROW is product->row, or 1 where the compiler shall know that. */
#define BLOCKS(M, V, ROW)                  \
    for (; i + M <= product->rows; i += M) \
        multiply_block(M, V, product, ROW, i, c);
#define COLUMNS(name, V, ROW)                                  \
    static void name(const struct product *product, int64_t c) \
    {                                                          \
        int64_t i = 0;                                         \
        BLOCKS((V == 1 ? 12 : ACCUMULATORS / V), V, ROW)       \
        BLOCKS(4, V, ROW)                                      \
        BLOCKS(2, V, ROW)                                      \
        BLOCKS(1, V, ROW)                                      \
    }
COLUMNS(by_rows_1, 1, product->row)
COLUMNS(by_rows_2, 2, product->row)
COLUMNS(by_rows_3, 3, product->row)
COLUMNS(by_rows_4, 4, product->row)
COLUMNS(by_columns_1, 1, 1)
COLUMNS(by_columns_2, 2, 1)
COLUMNS(by_columns_3, 3, 1)
COLUMNS(by_columns_4, 4, 1)

static void multiply(struct product product)
{
    static void (*const functions[2][4])(const struct product *product, int64_t c) = {
        {by_rows_1, by_rows_2, by_rows_3, by_rows_4},
        {by_columns_1, by_columns_2, by_columns_3, by_columns_4}};
    for (int64_t c = 0, V; c < product.width; c += V * LANES) {
        V = ra_max(1, ra_min(4, (product.width - c) / LANES));
        functions[product.row == 1][V - 1](&product, c);
    }
}

#endif
