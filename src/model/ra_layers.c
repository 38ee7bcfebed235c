/* ra_layers: the small layers of a transformer. See ra_layers.h.
 *
 * Chapter 10.
 */
#include "ra_layers.h"
#include "ra_math.h"
#include <math.h>
#include <string.h>

/* Numbers side by side that one thread works on: a few lines of the cache, or a chunk of a long
 * array. */
enum { COLUMNS = 64, CHUNK = 1024, ROWS = 256 };

double ra_dot(int64_t count, const float *a, const float *b)
{
    /* As many sums as compilers can put into vectors. */
    double sums[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++)
            sums[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < count; i++)
        sums[i % 16] += (double)a[i] * (double)b[i];
    for (int j = 0; j < 16; j++)
        sum += sums[j];
    return sum;
}

/* ---- Embedding. */

void ra_embedding_forward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                          const float *table, float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        memcpy(out + a * dim, table + tokens[a] * dim, (size_t)dim * sizeof *out);
}

void ra_embedding_backward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                           const float *d_out, float *d_table)
{
    /* A token may come twice: so threads share columns, not rows. */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < dim; first += COLUMNS)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t c = first; c < ra_min(dim, first + COLUMNS); c++)
                d_table[tokens[a] * dim + c] += d_out[a * dim + c];
}

/* ---- Bias. */

void ra_bias_forward(int threads, int64_t rows, int64_t width, const float *bias, const float *x,
                     float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        for (int64_t c = 0; c < width; c++)
            out[a * width + c] = x ? x[a * width + c] + bias[c] : bias[c];
}

/* Adds to sums (width) the rows of d_out, each number of them times that of x and the row's factor,
 * unless x is NULL. In two levels: a long sum keeps its digits. */
static void add_columns(int threads, int64_t rows, int64_t width, const float *d_out,
                        const float *x, const float *factors, float *sums)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < width; first += COLUMNS)
        for (int64_t begin = 0; begin < rows; begin += ROWS) {
            int64_t columns = ra_min(COLUMNS, width - first);
            float these[COLUMNS] = {0};
            for (int64_t a = begin; a < ra_min(rows, begin + ROWS); a++)
                for (int64_t c = 0; c < columns; c++) {
                    int64_t at = a * width + first + c;
                    these[c] += x ? d_out[at] * x[at] * factors[a] : d_out[at];
                }
            for (int64_t c = 0; c < columns; c++)
                sums[first + c] += these[c];
        }
}

void ra_bias_backward(int threads, int64_t rows, int64_t width, const float *d_out, float *d_bias)
{
    add_columns(threads, rows, width, d_out, NULL, NULL, d_bias);
}

/* ---- RMSNorm. */

#define SHORTEST 1e-12

/* sqrt(dim) / |x|, from the square of |x|. NaN stays NaN, as it is not below anything. */
static float norm_factor(int64_t dim, double square)
{
    double length = sqrt(square);
    return (float)(sqrt((double)dim) / (length < SHORTEST ? SHORTEST : length));
}

void ra_norm_forward(int threads, int64_t rows, int64_t dim, const float *x, const float *gamma,
                     float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++) {
        float factor = norm_factor(dim, ra_dot(dim, x + a * dim, x + a * dim));
        for (int64_t c = 0; c < dim; c++)
            out[a * dim + c] = x[a * dim + c] * factor * gamma[c];
    }
}

void ra_norm_backward(int threads, int64_t rows, int64_t dim, const float *x, const float *gamma,
                      const float *d_out, float *dx, float *d_gamma, float *scratch)
{
    /* out = f x gamma with f = sqrt(dim) / |x|, and the gradient of f with respect to x is
     * -f x / |x|^2: so dx = f (g - x (g . x) / |x|^2), where g = d_out * gamma. */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++) {
        const float *row = x + a * dim, *d_row = d_out + a * dim;
        double square = ra_dot(dim, row, row), along = 0;
        float factor = norm_factor(dim, square);
        for (int64_t first = 0; first < dim; first += COLUMNS) {
            float g[COLUMNS];
            int64_t columns = ra_min(COLUMNS, dim - first);
            for (int64_t c = 0; c < columns; c++)
                g[c] = d_row[first + c] * gamma[first + c];
            along += ra_dot(columns, g, row + first);
        }
        float share = sqrt(square) < SHORTEST ? 0 : (float)(along / square);
        for (int64_t c = 0; c < dim; c++)
            dx[a * dim + c] += factor * (d_row[c] * gamma[c] - row[c] * share);
        scratch[a] = factor;
    }
    add_columns(threads, rows, dim, d_out, x, scratch, d_gamma);
}

/* ---- GELU. */

void ra_gelu_forward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                     float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < count; first += CHUNK) {
        float below[CHUNK], bell[CHUNK];
        int64_t these = ra_min(CHUNK, count - first);
        vector->normal(these, x + first, below, bell);
        for (int64_t i = 0; i < these; i++)
            out[first + i] = x[first + i] * below[i];
    }
}

void ra_gelu_backward(const struct ra_vector *vector, int threads, int64_t count, const float *x,
                      const float *d_out, float *d_x)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < count; first += CHUNK) {
        float below[CHUNK], bell[CHUNK];
        int64_t these = ra_min(CHUNK, count - first);
        vector->normal(these, x + first, below, bell);
        for (int64_t i = 0; i < these; i++)
            d_x[first + i] = d_out[first + i] * (below[i] + x[first + i] * bell[i]);
    }
}
