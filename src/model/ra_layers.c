/* ra_layers: the small layers of a transformer. See ra_layers.h.
 *
 * Chapter 10.
 */
#include "ra_layers.h"
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "ra_math.h"
#include "ra_rounding.h"
#include "ra_vector.h"

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
                          double scale, const float *table, float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        for (int64_t c = 0; c < dim; c++)
            out[a * dim + c] = (float)scale * table[tokens[a] * dim + c];
}

void ra_embedding_backward(int threads, int64_t rows, int64_t dim, const int32_t *tokens,
                           double scale, const float *d_out, float *d_table)
{
    /* A token may come twice: so threads share columns, not rows. */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < dim; first += COLUMNS)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t c = first; c < ra_min(dim, first + COLUMNS); c++)
                d_table[tokens[a] * dim + c] += (float)scale * d_out[a * dim + c];
}

void ra_positions_forward(int threads, int64_t batch, int64_t rows, int64_t dim,
                          const int64_t *positions, double scale, const float *table, float *x)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < batch * rows; a++)
        for (int64_t c = 0; c < dim; c++)
            x[a * dim + c] += (float)scale * table[positions[a % rows] * dim + c];
}

void ra_positions_backward(int threads, int64_t batch, int64_t rows, int64_t dim,
                           const int64_t *positions, double scale, const float *dx, float *d_table)
{
    /* A position may come more than once: so threads share columns here, too. */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < dim; first += COLUMNS)
        for (int64_t a = 0; a < batch * rows; a++)
            for (int64_t c = first; c < ra_min(dim, first + COLUMNS); c++)
                d_table[positions[a % rows] * dim + c] += (float)scale * dx[a * dim + c];
}

/* ---- Bias. */

void ra_bias_forward(int threads, int64_t rows, int64_t width, const float *bias, const float *x,
                     float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        if (!bias)
            memcpy(out + a * width, x + a * width, (size_t)width * sizeof *out);
        else
            for (int64_t c = 0; c < width; c++)
                out[a * width + c] = x ? x[a * width + c] + bias[c] : bias[c];
}

/* Rows of heads that lie side by side: head h of row a begins at a * stride + h * width. */
struct rows {
    int64_t count, heads, width, stride;
};

/* Adds to sums (width) all heads of all rows of d, each number of them times (x - mean) times
 * factor, unless scales is NULL: the means and then the factors of all heads, which lie close in x.
 * In two levels: a long sum keeps its digits. */
static void add_columns(int threads, struct rows rows, const float *d, const float *x,
                        const float *scales, float *sums)
{
    int64_t block = ra_max(1, ROWS / rows.heads), all = rows.count * rows.heads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < rows.width; first += COLUMNS)
        for (int64_t begin = 0; begin < rows.count; begin += block) {
            int64_t columns = ra_min(COLUMNS, rows.width - first);
            int64_t end = ra_min(rows.count, begin + block) * rows.heads;
            float these[COLUMNS] = {0};
            for (int64_t i = begin * rows.heads; i < end; i++) {
                int64_t a = rows.heads > 1 ? i / rows.heads : i, h = i - a * rows.heads;
                const float *row = d + a * rows.stride + h * rows.width + first;
                if (!scales)
                    for (int64_t c = 0; c < columns; c++)
                        these[c] += row[c];
                else
                    for (int64_t c = 0; c < columns; c++)
                        these[c] +=
                            row[c] * (x[i * rows.width + first + c] - scales[i]) * scales[all + i];
            }
            for (int64_t c = 0; c < columns; c++)
                sums[first + c] += these[c];
        }
}

void ra_bias_backward(int threads, int64_t rows, int64_t width, const float *d_out, float *d_bias)
{
    add_columns(threads, (struct rows){rows, 1, width, width}, d_out, NULL, NULL, d_bias);
}

/* ---- Products. */

void ra_linear_forward(const struct ra_matrix_work *work, int64_t rows, int64_t in, int64_t out,
                       const float *x, const float *weight, const float *bias, const float *base,
                       float *y)
{
    if (bias || base)
        ra_bias_forward(work->threads, rows, out, bias, base, y);
    ra_matrix_multiply(work, rows, in, out, ra_matrix(x, in), ra_matrix_transposed(weight, in), y,
                       out, bias || base);
}

void ra_linear_backward(const struct ra_matrix_work *work, int64_t rows, int64_t in, int64_t out,
                        const float *x, const float *weight, const float *dy, float *dx,
                        float *d_weight, float *d_bias)
{
    if (d_bias)
        ra_bias_backward(work->threads, rows, out, dy, d_bias);
    ra_matrix_multiply(work, out, rows, in, ra_matrix_transposed(dy, out), ra_matrix(x, in),
                       d_weight, in, true);
    ra_matrix_multiply(work, rows, out, in, ra_matrix(dy, out), ra_matrix(weight, in), dx, in,
                       false);
    ra_round(work, rows * in, dx);
}

/* ---- Norms. out = (x - mean) factor gamma + bias, with a mean and a factor for each row. */

#define SHORTEST 1e-12

/* What a norm does with a row. `square` is such that the gradient of factor with respect to x is
 * -factor (x - mean) / square: it is |x - mean|^2 and, unless the norm is UNIT, dim eps. */
struct scale {
    float mean, factor;
    double square;
};

/* The sum of a row, and of its squares around a mean. */
static double sum_of(int64_t dim, const float *x)
{
    float ones[COLUMNS];
    double sum = 0;
    for (int64_t c = 0; c < COLUMNS; c++)
        ones[c] = 1;
    for (int64_t first = 0; first < dim; first += COLUMNS)
        sum += ra_dot(ra_min(COLUMNS, dim - first), x + first, ones);
    return sum;
}

static double squares_around(int64_t dim, const float *x, float mean)
{
    double sum = 0;
    for (int64_t first = 0; first < dim; first += COLUMNS) {
        float z[COLUMNS];
        int64_t columns = ra_min(COLUMNS, dim - first);
        for (int64_t c = 0; c < columns; c++)
            z[c] = x[first + c] - mean;
        sum += ra_dot(columns, z, z);
    }
    return sum;
}

/* NaN stays NaN, as it is not below anything. */
static struct scale scale_of(struct ra_norm norm, int64_t dim, const float *x)
{
    if (norm.kind == RA_NORM_UNIT) {
        double square = ra_dot(dim, x, x);
        bool is_short = sqrt(square) < SHORTEST;
        return (struct scale){0, (float)(sqrt((double)dim) / (is_short ? SHORTEST : sqrt(square))),
                              is_short ? (double)INFINITY : square};
    }
    bool centred = norm.kind == RA_NORM_LAYER;
    float mean = centred ? (float)(sum_of(dim, x) / (double)dim) : 0;
    double square = centred ? squares_around(dim, x, mean) : ra_dot(dim, x, x);
    square += norm.eps * (double)dim;
    return (struct scale){mean, (float)sqrt((double)dim / square), square};
}

/* What is added to gamma. */
static float one_of(struct ra_norm norm)
{
    return norm.kind == RA_NORM_RMS_PLUS_ONE ? 1 : 0;
}

static void row_forward(struct ra_norm norm, int64_t dim, const float *x, const float *gamma,
                        const float *bias, float *out)
{
    struct scale scale = scale_of(norm, dim, x);
    float one = one_of(norm);
    for (int64_t c = 0; c < dim; c++)
        out[c] = (x[c] - scale.mean) * scale.factor * (one + gamma[c]);
    for (int64_t c = 0; c < dim && bias; c++)
        out[c] += bias[c];
}

/* The backward of a norm, for one row: its dx is added to `dx`, or written if that is d_out. With
 * g = d_out gamma and z = x - mean it is factor (g - z (g . z) / square), for the norm LAYER with
 * the mean of g taken from g. Returns the scale of the row: mean, square and factor. */
static struct scale row_backward(struct ra_norm norm, int64_t dim, const float *x,
                                 const float *gamma, const float *d_out, float *dx)
{
    struct scale scale = scale_of(norm, dim, x);
    float one = one_of(norm);
    double along = 0, sum = 0;
    for (int64_t first = 0; first < dim; first += COLUMNS) {
        float g[COLUMNS], z[COLUMNS];
        int64_t columns = ra_min(COLUMNS, dim - first);
        for (int64_t c = 0; c < columns; c++) {
            g[c] = d_out[first + c] * (one + gamma[first + c]);
            z[c] = x[first + c] - scale.mean;
        }
        along += ra_dot(columns, g, z);
        sum += norm.kind == RA_NORM_LAYER ? sum_of(columns, g) : 0;
    }
    float share = (float)(along / scale.square), mean = (float)(sum / (double)dim);
    for (int64_t c = 0; c < dim; c++) {
        float g = d_out[c] * (one + gamma[c]);
        float d = scale.factor * (g - mean - (x[c] - scale.mean) * share);
        dx[c] = dx == d_out ? d : dx[c] + d;
    }
    return scale;
}

void ra_norm_forward(int threads, struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                     const float *gamma, const float *bias, float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        row_forward(norm, dim, x + a * dim, gamma, bias, out + a * dim);
}

void ra_norm_backward(int threads, struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                      const float *gamma, const float *d_out, float *dx, float *d_gamma,
                      float *d_bias, float *scratch)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++) {
        struct scale scale =
            row_backward(norm, dim, x + a * dim, gamma, d_out + a * dim, dx + a * dim);
        scratch[a] = scale.mean;
        scratch[rows + a] = scale.factor;
    }
    add_columns(threads, (struct rows){rows, 1, dim, dim}, d_out, x, scratch, d_gamma);
    if (d_bias)
        ra_bias_backward(threads, rows, dim, d_out, d_bias);
}

void ra_head_norm_forward(int threads, struct ra_norm norm, int64_t rows, int64_t heads, int64_t D,
                          const float *gamma, float *x, int64_t stride, float *raw)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++) {
        float *kept = raw + a * heads * D;
        memcpy(kept, x + a * stride, (size_t)(heads * D) * sizeof *raw);
        for (int64_t h = 0; h < heads; h++)
            row_forward(norm, D, kept + h * D, gamma, NULL, x + a * stride + h * D);
    }
}

void ra_head_norm_backward(int threads, struct ra_norm norm, int64_t rows, int64_t heads, int64_t D,
                           const float *raw, const float *gamma, float *d, int64_t stride,
                           float *d_gamma, float *scratch)
{
    /* The sum over rows needs d before it is written over, and the scales before that. */
    int64_t all = rows * heads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < all; i++) {
        struct scale scale = scale_of(norm, D, raw + i * D);
        scratch[i] = scale.mean;
        scratch[all + i] = scale.factor;
    }
    add_columns(threads, (struct rows){rows, heads, D, stride}, d, raw, scratch, d_gamma);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        for (int64_t h = 0; h < heads; h++) {
            float *head = d + a * stride + h * D;
            row_backward(norm, D, raw + (a * heads + h) * D, gamma, head, head);
        }
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

/* ---- Feed-forwards with a gate. */

/* 1 / (1 + exp(-x)). No exponential is above 1, so none overflows. */
static void sigmoid(const struct ra_vector *vector, int64_t count, const float *x, float *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = -fabsf(x[i]);
    vector->exp(count, out, out);
    for (int64_t i = 0; i < count; i++)
        out[i] = (x[i] < 0 ? out[i] : 1) / (1 + out[i]);
}

/* Both bends are g s(v), where s is the sigmoid: v is g itself, or 2 sqrt(2 / pi) (g + 0.044715
 * g^3), as (1 + tanh(u)) / 2 = s(2 u). Writes s(v) to `share`, and v's slope to `slope` unless it
 * is NULL. */
static void share_of(const struct ra_vector *vector, enum ra_feed_kind kind, int64_t count,
                     const float *gate, float *share, float *slope)
{
    const float twice = 1.5957691216057308f, cube = 0.044715f;
    bool plain = kind == RA_FEED_SWIGLU;
    float v[CHUNK];
    for (int64_t i = 0; i < count; i++) {
        float square = cube * gate[i] * gate[i];
        v[i] = plain ? gate[i] : twice * gate[i] * (1 + square);
        if (slope)
            slope[i] = plain ? 1 : twice * (1 + 3 * square);
    }
    sigmoid(vector, count, v, share);
}

void ra_gated_forward(const struct ra_vector *vector, int threads, enum ra_feed_kind kind,
                      int64_t rows, int64_t hidden, const float *x, float *out)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        for (int64_t first = 0; first < hidden; first += CHUNK) {
            float share[CHUNK];
            const float *gate = x + 2 * a * hidden + first, *up = gate + hidden;
            int64_t these = ra_min(CHUNK, hidden - first);
            share_of(vector, kind, these, gate, share, NULL);
            for (int64_t i = 0; i < these; i++)
                out[a * hidden + first + i] = gate[i] * share[i] * up[i];
        }
}

void ra_gated_backward(const struct ra_vector *vector, int threads, enum ra_feed_kind kind,
                       int64_t rows, int64_t hidden, const float *x, const float *d_out, float *dx)
{
    /* The slope of g s(v) is s (1 + g (1 - s) v'). */
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t a = 0; a < rows; a++)
        for (int64_t first = 0; first < hidden; first += CHUNK) {
            float share[CHUNK], slope[CHUNK];
            const float *gate = x + 2 * a * hidden + first, *up = gate + hidden;
            const float *d = d_out + a * hidden + first;
            float *d_gate = dx + 2 * a * hidden + first, *d_up = d_gate + hidden;
            int64_t these = ra_min(CHUNK, hidden - first);
            share_of(vector, kind, these, gate, share, slope);
            for (int64_t i = 0; i < these; i++) {
                d_gate[i] = d[i] * up[i] * share[i] * (1 + gate[i] * (1 - share[i]) * slope[i]);
                d_up[i] = d[i] * (gate[i] * share[i]);
            }
        }
}
