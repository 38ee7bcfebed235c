/* ra_matrix: products of matrices of any order. See ra_matrix.h.
 *
 * Chapter 10.
 *
 * A product goes by blocks: DEPTH terms of all sums, for STRIPS strips of columns as wide as the
 * register block. These terms of `right` are packed once, strip by strip, and stay in the
 * second-level cache while every block of rows of `left` comes by. A sum is added up within DEPTH
 * terms in a register, and from block to block in `out`: in one order, whichever thread does it.
 */
#include "ra_matrix.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "ra_math.h"
#include "ra_vector.h"

enum { DEPTH = 384, STRIPS = 8, ROWS = 96, GAP = 16 };

/* What all threads read, and what each has for itself. */
static int64_t shared_scratch(const struct ra_vector *vector)
{
    return DEPTH * STRIPS * vector->columns;
}

static int64_t own_scratch(const struct ra_vector *vector)
{
    return ROWS * (DEPTH + GAP) + ROWS * vector->columns;
}

struct ra_matrix_work ra_matrix_best(int threads, float *scratch)
{
    return (struct ra_matrix_work){ra_vector_find(getenv("RA_VECTOR")), threads, scratch, false};
}

int64_t ra_matrix_scratch(const struct ra_vector *vector, int threads)
{
    return shared_scratch(vector) + threads * own_scratch(vector);
}

/* Packs `count` rows and `width` columns of a matrix into rows of `columns`, the rest of which is
 * 0. */
static void pack_right(struct ra_matrix right, int64_t count, int64_t width, int64_t columns,
                       float *to)
{
    if (width < columns)
        memset(to, 0, (size_t)(count * columns) * sizeof *to);
    if (right.column == 1)
        for (int64_t k = 0; k < count; k++)
            memcpy(to + k * columns, right.data + k * right.row, (size_t)width * sizeof *to);
    else
        for (int64_t k = 0; k < count; k += GAP) /* a line of the cache of each column */
            for (int64_t c = 0; c < width; c++) {
                /* The processor does not guess that many columns go on. */
                __builtin_prefetch(right.data + c * right.column + k + 2 * GAP);
                for (int64_t i = k; i < ra_min(count, k + GAP); i++)
                    to[i * columns + c] = right.data[i + c * right.column];
            }
}

/* Packs `rows` rows of `count` numbers in the order in which they lie. */
static struct ra_matrix pack_left(struct ra_matrix left, int64_t rows, int64_t count, float *to)
{
    bool by_rows = left.column == 1;
    int64_t outer = by_rows ? rows : count, inner = by_rows ? count : rows;
    int64_t from = by_rows ? left.row : left.column, row = by_rows ? DEPTH + GAP : ROWS;
    for (int64_t i = 0; i < outer; i++)
        memcpy(to + i * row, left.data + i * from, (size_t)inner * sizeof *to);
    return by_rows ? (struct ra_matrix){to, row, 1} : (struct ra_matrix){to, 1, row};
}

/* Multiplies packed rows with a strip of packed columns, of which `width` are of the matrix. */
static void multiply_strip(const struct ra_vector *vector, int64_t rows, int64_t inner,
                           int64_t width, struct ra_matrix left, const float *right, float *out,
                           int64_t out_row, bool add, float *sums)
{
    int64_t columns = vector->columns;
    struct ra_vector_product product = {rows,  inner,   columns, left.data, left.row, left.column,
                                        right, columns, out,     out_row,   add};
    if (width == columns) {
        vector->multiply(&product);
        return;
    }

    /* The last strip is wider than what is left of the matrix. */
    product.out = sums;
    product.out_row = columns;
    product.add = false;
    vector->multiply(&product);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < width; c++)
            out[i * out_row + c] = sums[i * columns + c] + (add ? out[i * out_row + c] : 0);
}

/* How many rows of the left operand a thread takes at once: at most ROWS, and so few that in each
 * round every thread has a block, as far as whole eights allow. */
static int64_t rows_of_block(int64_t rows, int threads)
{
    int64_t rounds = ra_ceiling_division(rows, threads * ROWS);
    int64_t each = rounds > 0 ? ra_ceiling_division(rows, threads * rounds) : 1;
    return ra_min(ROWS, ra_round_up(each, 8));
}

void ra_matrix_multiply(const struct ra_matrix_work *work, int64_t rows, int64_t inner,
                        int64_t width, struct ra_matrix left, struct ra_matrix right, float *out,
                        int64_t out_row, bool add)
{
    const struct ra_vector *vector = work->vector;
    int64_t columns = vector->columns, block = rows_of_block(rows, work->threads);
    for (int64_t i = 0; i < rows && inner == 0 && !add; i++)
        memset(out + i * out_row, 0, (size_t)width * sizeof *out);

#pragma omp parallel num_threads(work->threads) if (work->threads > 1)
    for (int64_t k = 0; k < inner; k += DEPTH)
        for (int64_t c = 0; c < width; c += STRIPS * columns) {
            int64_t depth = ra_min(DEPTH, inner - k), wide = ra_min(STRIPS * columns, width - c);
            int64_t strips = ra_ceiling_division(wide, columns);
#pragma omp for
            for (int64_t s = 0; s < strips; s++) {
                int64_t first = c + s * columns;
                struct ra_matrix from = right;
                from.data += k * right.row + first * right.column;
                pack_right(from, depth, ra_min(columns, width - first), columns,
                           work->scratch + s * DEPTH * columns);
            }
#pragma omp for
            for (int64_t i = 0; i < rows; i += block) {
                int64_t these = ra_min(block, rows - i);
                float *own = work->scratch + shared_scratch(vector) +
                             omp_get_thread_num() * own_scratch(vector);
                struct ra_matrix from = left;
                from.data += i * left.row + k * left.column;
                struct ra_matrix packed = pack_left(from, these, depth, own);
                for (int64_t s = 0; s < strips; s++)
                    multiply_strip(vector, these, depth, ra_min(columns, wide - s * columns),
                                   packed, work->scratch + s * DEPTH * columns,
                                   out + i * out_row + c + s * columns, out_row, add || k > 0,
                                   own + ROWS * (DEPTH + GAP));
            }
        }
}
