/* check_model: what a model computes with on one rank: products of matrices, layers, rotary
 * embedding and loss, against plain loops in double. Needs no MPI.
 *
 * Bounds are those of rounding. A unit u = 2^-24 is what one rounding to float32 changes at most,
 * as a share of the number. A sum of n products in any order is off by n u times the sum of their
 * sizes at most, and each step before or after it by one u more. Outputs are NaN before each call,
 * which no bound lets pass.
 */
#include <complex.h>
#include <inttypes.h>

#include "ra_layers.h"
#include "ra_loss.h"
#include "ra_matrix.h"
#include "ra_rotary.h"
#include "ra_vector.h"
#include "model_rig.h"

/* Instruction sets. */
static const char *names[] = {"amx", "avx512", "avx2", "sse2", "neon"};
static int sets = sizeof names / sizeof names[0];

/* Is this within what is allowed? NaN never is. Keeps the largest share of it. */
static double worst;
static bool near(double got, double want, double allowed)
{
    if (got == want)
        return true;
    double share = fabs(got - want) / allowed;
    worst = share > worst ? share : worst;
    return share <= 1;
}

static void say(const char *what)
{
    printf("%s: %.2g of what is allowed at most\n", what, worst);
}

/* ---- Products of matrices. */

static struct ra_matrix_work work_of(const struct ra_vector *set, int count)
{
    return (struct ra_matrix_work){set, count, poisoned(ra_matrix_scratch(set, count)), false};
}

/* A matrix (rows, columns) with gaps of poison between what lies side by side. */
static struct ra_matrix laid(const float *x, int64_t rows, int64_t columns, bool transposed)
{
    int64_t apart = (transposed ? rows : columns) + 3;
    float *to = poisoned(apart * (transposed ? columns : rows));
    struct ra_matrix m = transposed ? ra_matrix_transposed(to, apart) : ra_matrix(to, apart);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            to[i * m.row + j * m.column] = x[i * columns + j];
    return m;
}

/* out (rows, width) of sums of products, and the sums of their sizes. */
static void multiply(int64_t rows, int64_t inner, int64_t width, const float *a, const float *b,
                     double *sums, double *sizes)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < inner; k++)
            for (int64_t j = 0; j < width; j++) {
                double product = (double)a[i * inner + k] * (double)b[k * width + j];
                sums[i * width + j] += product;
                sizes[i * width + j] += fabs(product);
            }
}

/* One shape in all orders, written and added, by one thread and by `count`. A register adds up 384
 * products at most, in a chain; those sums are added up in `out`. Without fused multiply-add a
 * product is rounded before, too. */
static void check_product(const struct ra_vector *set, int64_t rows, int64_t inner, int64_t width,
                          int count)
{
    enum { GAP = 5 };
    int64_t row = width + GAP;
    float *a = randoms(rows * inner), *b = randoms(inner * width), *old = randoms(rows * row);
    double *sums = zeros(rows * width), *sizes = zeros(rows * width);
    multiply(rows, inner, width, a, b, sums, sizes);
    struct ra_matrix_work one = work_of(set, 1), many = work_of(set, count);
    struct ra_matrix lefts[] = {laid(a, rows, inner, false), laid(a, rows, inner, true)};
    struct ra_matrix rights[] = {laid(b, inner, width, false), laid(b, inner, width, true)};
    float *outs[] = {poisoned(rows * row), poisoned(rows * row)};
    double steps = (double)((inner < 384 ? inner : 384) + inner / 384 + 3);
    for (int64_t i = 0; i < rows; i++)
        for (int g = 0; g < GAP; g++)
            old[i * row + width + g] = number_of_bits(poison);
    for (int order = 0; order < 8; order++) {
        struct ra_matrix left = lefts[order % 2], right = rights[order / 2 % 2];
        bool add = order >= 4;
        for (int o = 0; o < 2; o++) {
            for (int64_t e = 0; e < rows * row; e++)
                outs[o][e] = add ? old[e] : number_of_bits(poison);
            ra_matrix_multiply(o == 0 ? &one : &many, rows, inner, width, left, right, outs[o], row,
                               add);
        }
        expect(same_bits(outs[0], outs[1], rows * row), "other bits for %d threads", count);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < width; j++) {
                double before = add ? (double)old[i * row + j] : 0;
                double got = (double)outs[0][i * row + j], want = sums[i * width + j] + before;
                expect(near(got, want, steps * u * (sizes[i * width + j] + fabs(before))),
                       "%s (%" PRId64 ", %" PRId64 ", %" PRId64 ") order %d: (%" PRId64 ", %" PRId64
                       ") is %.9g, not %.9g",
                       set->name, rows, inner, width, order, i, j, got, want);
            }
            expect(is_poison(outs[0] + i * row + width, GAP), "written behind row %" PRId64, i);
        }
    }
    release();
}

CASE(matrix, 600);

TESTS(products, 0, sets)
{
    const struct ra_vector *set = ra_vector_find(names[_i]);
    if (!set)
        return;
    int64_t c = set->columns, inners[] = {0, 1, 7, 383, 384, 385, 800};
    int64_t rows[] = {1, 2, 5, 95, 96, 97, 200};
    int64_t widths[] = {1, 15, 16, 17, c - 1, c, c + 1, 10 * c - 1, 10 * c, 10 * c + 1, 11 * c + 7};
    for (int w = 0; w < 11; w++)
        for (int r = 0; r < 7; r++) {
            check_product(set, rows[r], inners[(r + w) % 7], widths[w], threads[1 + w % 3]);
            if (w % 2)
                check_product(set, rows[(2 * r + w) % 7], inners[r], widths[w], threads[1 + r % 3]);
        }
    check_product(set, 1000, 20, 3, 5);
    say(names[_i]);
}

/* What is not finite goes where it is a factor, and nowhere else. */
TESTS(products_of_nan, 0, sets)
{
    enum { ROWS = 100, INNER = 400, WIDTH = 53 };
    const struct ra_vector *set = ra_vector_find(names[_i]);
    if (!set)
        return;
    static const float specials[] = {NAN, INFINITY, -INFINITY};
    for (int s = 0; s < 12; s++) {
        float *a = randoms(ROWS * INNER), *b = randoms(INNER * WIDTH), special = specials[s % 3];
        int64_t i = random_below(&state, ROWS), k = random_below(&state, INNER);
        int64_t j = s < 6 ? WIDTH - 1 : random_below(&state, WIDTH);
        struct ra_matrix_work work = work_of(set, 2);
        (s % 2 ? a : b)[s % 2 ? i * INNER + k : k * WIDTH + j] = special;
        float *out = poisoned(ROWS * WIDTH);
        ra_matrix_multiply(&work, ROWS, INNER, WIDTH, laid(a, ROWS, INNER, s >= 6),
                           laid(b, INNER, WIDTH, s % 4 == 0), out, WIDTH, false);
        for (int64_t e = 0; e < ROWS * WIDTH; e++) {
            bool hit = s % 2 ? e / WIDTH == i : e % WIDTH == j;
            float factor = s % 2 ? b[k * WIDTH + e % WIDTH] : a[e / WIDTH * INNER + k];
            float want = special * factor;
            expect(!hit          ? isfinite(out[e])
                   : isnan(want) ? isnan(out[e])
                                 : out[e] == want,
                   "%g times %g is %g", (double)special, (double)factor, (double)out[e]);
        }
        release();
    }
}

/* ---- Embedding and bias. */

/* A sum over rows goes by 256 of them. */
static double steps_of_rows(int64_t rows)
{
    return (double)((rows < 256 ? rows : 256) + rows / 256 + 2);
}

static const int64_t many_rows[] = {1, 3, 256, 257, 600};
static const int64_t widths[] = {1, 2, 15, 16, 17, 63, 64, 65, 200, 1000};
enum { ROW_COUNTS = 5, WIDTHS = 10 };

CASE(layers, 600);

TEST(embedding)
{
    enum { V = 7 };
    for (int w = 0; w < WIDTHS; w++) {
        int64_t rows = many_rows[w % ROW_COUNTS], dim = widths[w], all = V * dim;
        int32_t *tokens = calloc((size_t)rows, sizeof *tokens);
        for (int64_t a = 0; a < rows; a++) /* token 3 never comes, others often */
            tokens[a] = (int32_t)random_below(&state, V) % 3 + (a % 2 ? 4 : 0);
        float *table = randoms(all), *d_out = randoms(rows * dim), *old = randoms(all),
              *first = old;
        double *sums = zeros(all), *sizes = zeros(all);
        for (int64_t e = 0; e < all; e++)
            sizes[e] = fabs(sums[e] = (double)old[e]);
        for (int64_t e = 0; e < rows * dim; e++) {
            int64_t at = tokens[e / dim] * dim + e % dim;
            sums[at] += (double)d_out[e];
            sizes[at] += fabs((double)d_out[e]);
        }
        for (int t = 0; t < COUNTS; t++) {
            float *out = poisoned(rows * dim), *d_table = copy_of(old, all);
            ra_embedding_forward(threads[t], rows, dim, tokens, 1, table, out);
            for (int64_t a = 0; a < rows; a++)
                expect(same_bits(out + a * dim, table + tokens[a] * dim, dim), "row %" PRId64, a);
            ra_embedding_backward(threads[t], rows, dim, tokens, 1, d_out, d_table);
            first = t == 0 ? d_table : first;
            expect(same_bits(first, d_table, all), "other bits for %d threads", threads[t]);
        }
        for (int64_t e = 0; e < all; e++)
            expect(near((double)first[e], sums[e], (double)rows * u * sizes[e]), "d_table");
        expect(same_bits(first + 3 * dim, old + 3 * dim, dim), "a token that never came");
        free(tokens);
        release();
    }
    say("embedding");
}

/* A table of positions, of which some come in no row; rows of all batches share a gradient. */
TEST(table_of_positions)
{
    enum { LONGEST = 90 };
    static const int64_t shapes[][3] = {{1, 1, 1}, {2, 5, 64}, {3, 30, 65}, {4, 7, 200}};
    for (int s = 0; s < 4; s++) {
        int64_t batch = shapes[s][0], rows = shapes[s][1], dim = shapes[s][2];
        int64_t all = batch * rows * dim, numbers = LONGEST * dim, places[30];
        for (int64_t a = 0; a < rows; a++)
            places[a] = (a * 37 + 5) % LONGEST;
        float *x = randoms(all), *table = randoms(numbers), *dx = randoms(all);
        float *old = randoms(numbers), *first = NULL;
        double *sums = zeros(numbers), *sizes = zeros(numbers);
        for (int64_t e = 0; e < numbers; e++)
            sizes[e] = fabs(sums[e] = (double)old[e]);
        for (int64_t e = 0; e < all; e++) {
            int64_t at = places[e / dim % rows] * dim + e % dim;
            sums[at] += 0.3 * (double)dx[e];
            sizes[at] += fabs(0.3 * (double)dx[e]);
        }
        for (int t = 0; t < COUNTS; t++) {
            float *y = copy_of(x, all), *d_table = copy_of(old, numbers);
            ra_positions_forward(threads[t], batch, rows, dim, places, 0.3, table, y);
            ra_positions_backward(threads[t], batch, rows, dim, places, 0.3, dx, d_table);
            for (int64_t e = 0; e < all; e++) {
                double add = 0.3 * (double)table[places[e / dim % rows] * dim + e % dim];
                expect(near((double)y[e], (double)x[e] + add,
                            3 * u * (fabs((double)x[e]) + fabs(add))),
                       "%g", (double)y[e]);
            }
            first = t == 0 ? d_table : first;
            expect(same_bits(first, d_table, numbers), "other bits for %d threads", threads[t]);
        }
        for (int64_t e = 0; e < numbers; e++)
            expect(near((double)first[e], sums[e], (double)(batch + 3) * u * sizes[e]) &&
                       (sums[e] != (double)old[e] || first[e] == old[e]),
                   "d_table");
        release();
    }
    say("positions");
}

TEST(biases)
{
    for (int w = 0; w < WIDTHS * ROW_COUNTS; w++) {
        int64_t rows = many_rows[w / WIDTHS], width = widths[w % WIDTHS], all = rows * width;
        float *x = randoms(all), *b = randoms(width), *d_out = randoms(all), *old = randoms(width);
        float *first = old;
        for (int t = 0; t < COUNTS; t++) {
            float *out = poisoned(all), *alone = poisoned(all), *d_bias = copy_of(old, width);
            float *copy = poisoned(all);
            ra_bias_forward(threads[t], rows, width, NULL, x, copy);
            expect(same_bits(copy, x, all), "no bias");
            ra_bias_forward(threads[t], rows, width, b, x, out);
            ra_bias_forward(threads[t], rows, width, b, NULL, alone);
            for (int64_t e = 0; e < all; e++) {
                expect(out[e] == x[e] + b[e % width], "%g", (double)out[e]);
                expect(alone[e] == b[e % width], "%g", (double)alone[e]);
            }
            ra_bias_backward(threads[t], rows, width, d_out, d_bias);
            first = t == 0 ? d_bias : first;
            expect(same_bits(first, d_bias, width), "other bits for %d threads", threads[t]);
        }
        for (int64_t c = 0; c < width; c++) {
            double sum = (double)old[c], size = fabs(sum);
            for (int64_t a = 0; a < rows; a++) {
                sum += (double)d_out[a * width + c];
                size += fabs((double)d_out[a * width + c]);
            }
            expect(near((double)first[c], sum, steps_of_rows(rows) * u * size), "d_bias");
        }
        release();
    }
    say("bias");
}

/* ---- Norms. */

static const struct ra_norm norms[] = {{RA_NORM_UNIT, 0},    {RA_NORM_RMS, 1e-5},
                                       {RA_NORM_RMS, 0.5},   {RA_NORM_LAYER, 1e-5},
                                       {RA_NORM_LAYER, 0.5}, {RA_NORM_RMS_PLUS_ONE, 1e-5}};
enum { NORMS = sizeof norms / sizeof norms[0] };

/* A norm's forward and backward of one row, in double, and what their roundings are a share of: of
 * a number less a mean, both of them; of a sum, all its terms. `scaled` is that of which d_gamma is
 * the sum, without d_out. */
struct norm_row {
    double *out, *out_sizes, *dx, *sizes, *scaled, *scaled_sizes;
};

static void norm_row(struct ra_norm norm, int64_t dim, const float *x, const float *gamma,
                     const float *bias, const float *d_out, struct norm_row *row)
{
    double mean = 0, square = norm.eps * (double)dim, along = 0, sum = 0, terms = 0, of_g = 0;
    bool layer = norm.kind == RA_NORM_LAYER;
    double one = norm.kind == RA_NORM_RMS_PLUS_ONE ? 1 : 0;
    for (int64_t c = 0; c < dim && layer; c++)
        mean += (double)x[c] / (double)dim;
    for (int64_t c = 0; c < dim; c++) {
        double g = (double)d_out[c] * (one + (double)gamma[c]), z = (double)x[c] - mean;
        square += z * z;
        along += g * z;
        terms += fabs(g) * (fabs((double)x[c]) + fabs(mean));
        sum += layer ? g / (double)dim : 0;
        of_g += layer ? fabs(g) / (double)dim : 0;
    }
    bool tiny = norm.kind == RA_NORM_UNIT && sqrt(square) < 1e-12;
    double factor = sqrt((double)dim) / (tiny ? 1e-12 : sqrt(square));
    for (int64_t c = 0; c < dim; c++) {
        double g = (double)d_out[c] * (one + (double)gamma[c]), z = (double)x[c] - mean;
        double both = fabs((double)x[c]) + fabs(mean), of_bias = bias ? (double)bias[c] : 0;
        row->scaled[c] = z * factor;
        row->scaled_sizes[c] = both * factor;
        row->out[c] = z * factor * (one + (double)gamma[c]) + of_bias;
        row->out_sizes[c] = both * factor * (one + fabs((double)gamma[c])) + fabs(of_bias);
        row->dx[c] = factor * (g - sum - (tiny ? 0 : z / square * along));
        row->sizes[c] = factor * (fabs(g) + of_g + (tiny ? 0 : both / square * terms));
    }
}

/* Memory for `all` numbers of such rows; the row that begins with number e. */
static struct norm_row norm_memory(int64_t all)
{
    return (struct norm_row){zeros(all), zeros(all), zeros(all),
                             zeros(all), zeros(all), zeros(all)};
}

static struct norm_row norm_at(struct norm_row x, int64_t e)
{
    return (struct norm_row){x.out + e,   x.out_sizes + e, x.dx + e,
                             x.sizes + e, x.scaled + e,    x.scaled_sizes + e};
}

/* Rows of all lengths, those first that are hard: 0, and around the shortest, and where a square is
 * no number of float32. Every other row of the rest has a mean. */
static float *norm_rows(int64_t rows, int64_t dim)
{
    static const double lengths[] = {
        1, 0, 1e-14, 1e-25, 1e-12 * (1 - 1e-5), 1e-12 * (1 + 1e-5), 1e-6, 1e18, 1e19, 1e25, 1e37};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
    float *x = randoms(rows * dim);
    for (int64_t a = 0; a < rows; a++) {
        double square = 0;
        for (int64_t c = 0; c < dim; c++)
            square += (double)x[a * dim + c] * (double)x[a * dim + c];
        for (int64_t c = 0; c < dim; c++)
            if (a < LENGTHS)
                x[a * dim + c] = (float)((double)x[a * dim + c] * lengths[a] / sqrt(square));
            else
                x[a * dim + c] += a % 2 ? 3 : 0;
    }
    return x;
}

/* Every number of a row is the outcome of a few roundings: the sums in it are of double. */
static void check_norm(struct ra_norm norm, int64_t rows, int64_t dim)
{
    int64_t all = rows * dim;
    bool layer = norm.kind == RA_NORM_LAYER;
    float *x = norm_rows(rows, dim), *gamma = randoms(dim), *d_out = randoms(all);
    float *bias = layer ? randoms(dim) : NULL, *old = randoms(all), *old_gamma = randoms(dim);
    float *old_bias = randoms(dim), *first[4] = {NULL, NULL, NULL, NULL};
    struct norm_row want = norm_memory(all);
    for (int64_t e = 0; e < all; e += dim) {
        struct norm_row row = norm_at(want, e);
        norm_row(norm, dim, x + e, gamma, bias, d_out + e, &row);
    }
    for (int t = 0; t < COUNTS; t++) {
        float *out = poisoned(all), *dx = copy_of(old, all), *d_gamma = copy_of(old_gamma, dim);
        float *d_bias = copy_of(old_bias, dim);
        ra_norm_forward(threads[t], norm, rows, dim, x, gamma, bias, out);
        ra_norm_backward(threads[t], norm, rows, dim, x, gamma, d_out, dx, d_gamma,
                         layer ? d_bias : NULL, poisoned(2 * rows));
        float *these[] = {out, dx, d_gamma, d_bias};
        for (int i = 0; i < 4; i++) {
            first[i] = t == 0 ? these[i] : first[i];
            expect(same_bits(first[i], these[i], i < 2 ? all : dim), "other bits for %d threads",
                   threads[t]);
        }
    }
    for (int64_t e = 0; e < all; e++) {
        double before = (double)old[e], got = (double)first[0][e], d_got = (double)first[1][e];
        expect(near(got, want.out[e], 5 * u * want.out_sizes[e] + 0x1p-149),
               "norm %d, row %" PRId64 " of %" PRId64 ": %g, not %g", (int)norm.kind, e / dim, dim,
               got, want.out[e]);
        expect(near(d_got, before + want.dx[e], 8 * u * (want.sizes[e] + fabs(before))),
               "norm %d, row %" PRId64 " of %" PRId64 ": dx %g, not %g", (int)norm.kind, e / dim,
               dim, d_got, before + want.dx[e]);
    }
    for (int64_t c = 0; c < dim; c++) {
        double sum = (double)old_gamma[c], size = fabs(sum);
        double of_bias = (double)old_bias[c], bias_size = fabs(of_bias);
        for (int64_t e = c; e < all; e += dim) {
            sum += want.scaled[e] * (double)d_out[e];
            size += want.scaled_sizes[e] * fabs((double)d_out[e]);
            of_bias += layer ? (double)d_out[e] : 0;
            bias_size += fabs((double)d_out[e]);
        }
        expect(near((double)first[2][c], sum, (5 + steps_of_rows(rows)) * u * size), "d_gamma");
        expect(near((double)first[3][c], of_bias, steps_of_rows(rows) * u * bias_size), "d_bias");
    }
    release();
}

TESTS(norm_of_rows, 0, NORMS)
{
    for (int w = 0; w < WIDTHS * ROW_COUNTS; w++)
        check_norm(norms[_i], many_rows[w / WIDTHS], widths[w % WIDTHS]);
    say("norm");
}

/* Heads side by side, in rows with a gap, are rows of their own: the same bits, but for d_gamma,
 * whose sum has another order. */
TEST(norm_of_heads)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {3, 2, 5}, {7, 4, 64}, {40, 3, 12}, {70, 300, 2}};
    for (int s = 0; s < 5 * NORMS; s++) {
        int64_t rows = shapes[s / NORMS][0], heads = shapes[s / NORMS][1], D = shapes[s / NORMS][2];
        int64_t stride = heads * D + 3, all = rows * heads * D, wide = rows * stride;
        struct ra_norm kind = norms[s % NORMS];
        float *x = norm_rows(rows * heads, D), *gamma = randoms(D), *d_out = randoms(all);
        float *plain = poisoned(all), *plain_dx = poisoned(all), *old = randoms(D);
        float *laid_x = poisoned(wide), *laid_d = poisoned(wide), *first = NULL;
        double *sums = zeros(D), *sizes = zeros(D);
        struct norm_row want = norm_memory(all);
        for (int64_t e = 0; e < all; e++) {
            struct norm_row row = norm_at(want, e);
            if (e % D == 0)
                norm_row(kind, D, x + e, gamma, NULL, d_out + e, &row);
            int64_t at = e / (heads * D) * stride + e % (heads * D);
            laid_x[at] = x[e];
            laid_d[at] = d_out[e];
            plain_dx[e] = 0;
        }
        for (int64_t e = 0; e < all; e++) {
            sums[e % D] += want.scaled[e] * (double)d_out[e];
            sizes[e % D] += want.scaled_sizes[e] * fabs((double)d_out[e]);
        }
        ra_norm_forward(1, kind, rows * heads, D, x, gamma, NULL, plain);
        ra_norm_backward(1, kind, rows * heads, D, x, gamma, d_out, plain_dx, randoms(D), NULL,
                         poisoned(2 * rows * heads));
        for (int t = 0; t < COUNTS; t++) {
            float *y = copy_of(laid_x, wide), *d = copy_of(laid_d, wide), *raw = poisoned(all);
            float *d_gamma = copy_of(old, D);
            ra_head_norm_forward(threads[t], kind, rows, heads, D, gamma, y, stride, raw);
            ra_head_norm_backward(threads[t], kind, rows, heads, D, raw, gamma, d, stride, d_gamma,
                                  poisoned(2 * rows * heads));
            first = t == 0 ? d_gamma : first;
            expect(same_bits(raw, x, all) && same_bits(first, d_gamma, D), "%d threads",
                   threads[t]);
            for (int64_t a = 0; a < rows; a++) {
                int64_t from = a * heads * D, to = a * stride;
                expect(same_bits(y + to, plain + from, heads * D), "row %" PRId64, a);
                for (int64_t c = 0; c < heads * D; c++)
                    expect(d[to + c] == plain_dx[from + c], "row %" PRId64 ": %g, not %g", a,
                           (double)d[to + c], (double)plain_dx[from + c]);
                expect(is_poison(y + to + heads * D, 3) && is_poison(d + to + heads * D, 3),
                       "written between rows");
            }
        }
        for (int64_t c = 0; c < D; c++)
            expect(near((double)first[c], (double)old[c] + sums[c],
                        (double)(rows * heads + 6) * u * (sizes[c] + fabs((double)old[c]))),
                   "d_gamma %g, not %g", (double)first[c], (double)old[c] + sums[c]);
        release();
    }
    say("norm of heads");
}

/* One number that is not finite spoils its row, and no other. */
TESTS(norm_of_nan, 0, NORMS)
{
    enum { ROWS = 3, DIM = 70, ALL = ROWS * DIM };
    for (int s = 0; s < 2; s++) {
        float *x = randoms(ALL), *gamma = randoms(DIM), *d_out = randoms(ALL);
        float *out = poisoned(ALL), *dx = randoms(ALL), *d_gamma = randoms(DIM);
        x[DIM + 3] = s ? INFINITY : NAN;
        ra_norm_forward(1, norms[_i], ROWS, DIM, x, gamma, NULL, out);
        ra_norm_backward(1, norms[_i], ROWS, DIM, x, gamma, d_out, dx, d_gamma, NULL,
                         poisoned(2 * ROWS));
        for (int e = 0; e < ALL; e++) {
            expect(e / DIM == 1 || (isfinite(out[e]) && isfinite(dx[e])), "row %d", e / DIM);
            expect(e / DIM != 1 || s || (isnan(out[e]) && isnan(dx[e])), "NaN becomes %g, dx %g",
                   (double)out[e], (double)dx[e]);
        }
        expect(isnan(out[DIM + 3]) && isnan(dx[DIM + 3]), "it becomes %g", (double)out[DIM + 3]);
        release();
    }
}

/* ---- GELU. */

static double gelu(double x)
{
    return 0.5 * x * erfc(-x * sqrt(0.5));
}

static double gelu_slope(double x)
{
    return 0.5 * erfc(-x * sqrt(0.5)) + x * exp(-x * x / 2) * 0.39894228040143268;
}

/* 2^22 numbers from -12 to 12, against what ra_layers.h says. Most of it is rounding: of t, on
 * whose powers the formula depends 3.4 times as much, and of terms that cancel each other; 9 u of P
 * at 0 at most. */
TESTS(gelu_everywhere, 0, sets)
{
    enum { MANY = 4099, BLOCKS = 1024 };
    const struct ra_vector *set = ra_vector_find(names[_i]);
    float *x = poisoned(MANY), *d_out = poisoned(MANY), *out = poisoned(MANY), *dx = poisoned(MANY);
    double worst_of = 0, worst_slope = 0;
    if (!set)
        return;
    for (int block = 0; block < BLOCKS; block++) {
        for (int e = 0; e < MANY; e++) {
            x[e] = (float)(-12 + 24 * ((double)block * MANY + e) / ((double)BLOCKS * MANY - 1));
            d_out[e] = 1;
            out[e] = dx[e] = number_of_bits(poison);
        }
        ra_gelu_forward(set, 1, MANY, x, out);
        ra_gelu_backward(set, 1, MANY, x, d_out, dx);
        for (int e = 0; e < MANY; e++) {
            double at = (double)x[e], off = fabs((double)out[e] - gelu(at));
            double d_off = fabs((double)dx[e] - gelu_slope(at));
            expect(off <= 5e-7 * fmin(1, fabs(at)) && d_off <= 5e-7,
                   "%s: at %.9g off by %.3g, slope by %.3g", names[_i], at, off, d_off);
            worst_of = fmax(worst_of, off);
            worst_slope = fmax(worst_slope, d_off);
        }
    }
    printf("%s: gelu is off by %.2g at most, its slope by %.2g\n", names[_i], worst_of,
           worst_slope);
    release();
}

/* Far away: 0 or x, and the slope 0 or 1. -inf times its probability, 0, is no number. */
TESTS(gelu_far_away, 0, sets)
{
    const struct ra_vector *set = ra_vector_find(names[_i]);
    static const float far[] = {13, 14, 20, 100, 1e10f, 1e19f, 1e30f, 3e38f};
    for (int i = 0; set && i < 8; i++) {
        float x[] = {far[i], -far[i]}, d_out[] = {3, 3}, out[2] = {NAN, NAN}, dx[2] = {NAN, NAN};
        ra_gelu_forward(set, 1, 2, x, out);
        ra_gelu_backward(set, 1, 2, x, d_out, dx);
        expect(out[0] == far[i] && dx[0] == 3, "%g: %g, slope %g", (double)far[i], (double)out[0],
               (double)dx[0]);
        expect(fabsf(out[1]) < 1e-35f && fabsf(dx[1]) < 1e-35f, "%g: %g, slope %g", (double)-far[i],
               (double)out[1], (double)dx[1]);
    }
    float x[] = {INFINITY, -INFINITY, NAN, -NAN, 0, -0.0f}, out[6], dx[6] = {1, 1, 1, 1, 1, 1};
    if (!set)
        return;
    ra_gelu_forward(set, 1, 6, x, out);
    ra_gelu_backward(set, 1, 6, x, dx, dx);
    expect(out[0] == INFINITY && isnan(out[1]) && isnan(out[2]) && isnan(out[3]), "%g %g %g %g",
           (double)out[0], (double)out[1], (double)out[2], (double)out[3]);
    expect(out[4] == 0 && out[5] == 0 && near((double)dx[4], 0.5, 2 * u), "at 0: %g, slope %.9g",
           (double)out[4], (double)dx[4]);
    expect(isnan(dx[2]) && isnan(dx[3]), "%g %g", (double)dx[2], (double)dx[3]);
}

/* Any count, threads, and a gradient in its own place. */
TESTS(gelu_counts, 0, sets)
{
    static const int64_t counts[] = {0, 1, 17, 1023, 1024, 1025, 5000};
    const struct ra_vector *set = ra_vector_find(names[_i]);
    for (int i = 0; set && i < 7; i++) {
        int64_t count = counts[i];
        float *x = randoms(count), *d_out = randoms(count), *first[2] = {NULL, NULL};
        for (int t = 0; t < COUNTS; t++) {
            float *out = poisoned(count), *dx = poisoned(count), *in_place = copy_of(d_out, count);
            ra_gelu_forward(set, threads[t], count, x, out);
            ra_gelu_backward(set, threads[t], count, x, d_out, dx);
            ra_gelu_backward(set, threads[t], count, x, in_place, in_place);
            first[0] = t == 0 ? out : first[0];
            first[1] = t == 0 ? dx : first[1];
            expect(same_bits(first[0], out, count) && same_bits(first[1], dx, count),
                   "other bits for %d threads", threads[t]);
            expect(same_bits(dx, in_place, count), "other bits in place");
        }
        for (int64_t e = 0; e < count; e++) {
            double at = (double)x[e], d = (double)d_out[e];
            expect(near((double)first[0][e], gelu(at), 3e-7 * (1 + fabs(at))), "gelu");
            expect(near((double)first[1][e], d * gelu_slope(at), 1e-6 * fabs(d)), "slope");
        }
        release();
    }
}

/* ---- SwiGLU. */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double silu_slope(double x)
{
    double s = 1 / (1 + exp(-x));
    return s + x * s * exp(-x) / (1 + exp(-x));
}

/* Gates from -100 to 100, most of them small. exp is off by 3 u of itself, so a share by 5 u of
 * itself; each product by one more. What is left of 1 is off by 6 u of 1. */
TESTS(swiglu, 0, sets)
{
    static const int64_t shapes[][2] = {{0, 5}, {1, 1}, {3, 17}, {2, 1023}, {5, 1024}, {2, 2500}};
    const struct ra_vector *set = ra_vector_find(names[_i]);
    for (int s = 0; set && s < 6; s++) {
        int64_t rows = shapes[s][0], hidden = shapes[s][1], all = rows * hidden;
        float *x = randoms(2 * all), *d_out = randoms(all), *first[2] = {NULL, NULL};
        for (int64_t e = 0; e < 2 * all; e++)
            if (e % (2 * hidden) < hidden)
                x[e] *= e % 7 ? 4 : 40;
        for (int t = 0; t < COUNTS; t++) {
            float *out = poisoned(all), *dx = poisoned(2 * all);
            ra_gated_forward(set, threads[t], RA_FEED_SWIGLU, rows, hidden, x, out);
            ra_gated_backward(set, threads[t], RA_FEED_SWIGLU, rows, hidden, x, d_out, dx);
            first[0] = t == 0 ? out : first[0];
            first[1] = t == 0 ? dx : first[1];
            expect(same_bits(first[0], out, all) && same_bits(first[1], dx, 2 * all),
                   "other bits for %d threads", threads[t]);
        }
        for (int64_t e = 0; e < all; e++) {
            int64_t at = e / hidden * 2 * hidden + e % hidden;
            double g = (double)x[at], up = (double)x[at + hidden], d = (double)d_out[e];
            double share = 1 / (1 + exp(-g)), off = 9 * u, tiny = 1e-35 * (1 + fabs(g * up * d));
            double slopes = off * share * (1 + fabs(g) * (1 - share)) + 6 * u * share * fabs(g);
            expect(near((double)first[0][e], silu(g) * up, off * fabs(silu(g) * up) + tiny),
                   "gate %g: %g, not %g", g, (double)first[0][e], silu(g) * up);
            expect(near((double)first[1][at], d * up * silu_slope(g), fabs(d * up) * slopes + tiny),
                   "gate %g: its gradient is %g, not %g", g, (double)first[1][at],
                   d * up * silu_slope(g));
            expect(near((double)first[1][at + hidden], d * silu(g), off * fabs(d * silu(g)) + tiny),
                   "gate %g: d_up %g, not %g", g, (double)first[1][at + hidden], d * silu(g));
        }
        release();
    }
    say("swiglu");
}

/* The approximation of GELU: x s(v(x)), and its slope by central differences in double. Beside what
 * SwiGLU rounds, v is off by 4 u of itself, and so is its slope. */
static double geglu_bend(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

TESTS(geglu, 0, sets)
{
    enum { HIDDEN = 1500 };
    const struct ra_vector *set = ra_vector_find(names[_i]);
    float *x = randoms(2 * HIDDEN), *d_out = randoms(HIDDEN);
    for (int t = 0; set && t < COUNTS; t++) {
        float *out = poisoned(HIDDEN), *dx = poisoned(2 * HIDDEN);
        for (int e = 0; e < HIDDEN; e++)
            x[e] *= t == 0 ? (e % 7 ? 4 : 40) : 1;
        ra_gated_forward(set, threads[t], RA_FEED_GEGLU, 1, HIDDEN, x, out);
        ra_gated_backward(set, threads[t], RA_FEED_GEGLU, 1, HIDDEN, x, d_out, dx);
        for (int e = 0; e < HIDDEN; e++) {
            double g = (double)x[e], up = (double)x[e + HIDDEN], d = (double)d_out[e], h = 1e-5;
            double slope = (geglu_bend(g + h) - geglu_bend(g - h)) / (2 * h);
            double off = 40 * u * (1 + fabs(g)) + 1e-9;
            expect(near((double)out[e], geglu_bend(g) * up, off * fabs(up)), "gate %g: %g", g,
                   (double)out[e]);
            expect(near((double)dx[e], d * up * slope, off * fabs(d * up)),
                   "gate %g: its gradient is %g, not %g", g, (double)dx[e], d * up * slope);
            expect(near((double)dx[e + HIDDEN], d * geglu_bend(g), off * fabs(d)),
                   "gate %g: d_up %g", g, (double)dx[e + HIDDEN]);
        }
    }
    release();
}

/* Logits with a soft cap, their slopes, and a loss of them with the gradients. */
TEST(softcap_of_logits)
{
    enum { V = 11, ROWS = 5, WIDE = 3 };
    struct ra_matrix_work work = ra_matrix_best(1, NULL);
    float *x = randoms(ROWS * WIDE), *weight = randoms(V * WIDE), *dx = poisoned(ROWS * WIDE),
          *d_weight = poisoned(V * WIDE), *scratch = poisoned(ra_loss_scratch(V, 1.5)),
          many[] = {0, 0.5f, -2, 100, -1e30f}, slopes[5];
    int32_t labels[ROWS] = {3, -1, 0, 10, 7};
    work.scratch = poisoned(ra_matrix_scratch(work.vector, 1));
    memset(d_weight, 0, V * WIDE * sizeof *d_weight);
    ck_assert_int_eq(ra_loss_scratch(V, 1.5), 2 * ra_loss_scratch(V, 0));
    ra_loss_softcap(1, 5, 0, many, NULL);
    expect(many[3] == 100, "no cap changes nothing");
    ra_loss_softcap(1, 5, 1.5, many, slopes);
    expect(many[0] == 0 && many[3] == 1.5f && many[4] == -1.5f && slopes[0] == 1 && slopes[3] == 0,
           "ends");
    expect(near((double)many[1], 1.5 * tanh(0.5 / 1.5), 1e-6) &&
               near((double)slopes[1], 1 - pow(tanh(0.5 / 1.5), 2), 1e-6),
           "%g, slope %g", (double)many[1], (double)slopes[1]);
    double loss = ra_loss(&work, ROWS, WIDE, V, x, weight, NULL, 1.5, labels, 0.25, dx, d_weight,
                          NULL, scratch);
    double sum = 0, d_x[ROWS * WIDE] = {0}, d_w[V * WIDE] = {0};
    for (int a = 0; a < ROWS; a++) {
        double z[V], l[V], all = 0;
        if (labels[a] < 0)
            continue;
        for (int c = 0; c < V; c++) {
            z[c] = 0;
            for (int i = 0; i < WIDE; i++)
                z[c] += (double)x[a * WIDE + i] * (double)weight[c * WIDE + i];
            l[c] = 1.5 * tanh(z[c] / 1.5);
            all += exp(l[c]);
        }
        sum += log(all) - l[labels[a]];
        for (int c = 0; c < V; c++) {
            double d = 0.25 * (exp(l[c]) / all - (c == labels[a])) * (1 - pow(l[c] / 1.5, 2));
            for (int i = 0; i < WIDE; i++) {
                d_x[a * WIDE + i] += d * (double)weight[c * WIDE + i];
                d_w[c * WIDE + i] += d * (double)x[a * WIDE + i];
            }
        }
    }
    expect(near(loss, sum, 1e-5), "loss %g, not %g", loss, sum);
    for (int i = 0; i < ROWS * WIDE; i++)
        expect(near((double)dx[i], d_x[i], 1e-6), "dx %g, not %g", (double)dx[i], d_x[i]);
    for (int i = 0; i < V * WIDE; i++)
        expect(near((double)d_weight[i], d_w[i], 1e-6), "dw %g, not %g", (double)d_weight[i],
               d_w[i]);
    release();
}

/* Far away a gate is open, or shut: its slope is 1, or 0. NaN stays NaN. */
TESTS(swiglu_far_away, 0, sets)
{
    const struct ra_vector *set = ra_vector_find(names[_i]);
    static const float gates[] = {100, 1e10f, 1e38f, -200, -1e10f, -3e38f, NAN};
    for (int i = 0; set && i < 7; i++) {
        float gate = gates[i], x[] = {gate, 3}, d_out = 2, out = NAN, dx[] = {NAN, NAN};
        ra_gated_forward(set, 1, RA_FEED_SWIGLU, 1, 1, x, &out);
        ra_gated_backward(set, 1, RA_FEED_SWIGLU, 1, 1, x, &d_out, dx);
        bool right = isnan(gate) ? isnan(out) && isnan(dx[0]) && isnan(dx[1])
                     : gate > 0
                         ? out == 3 * gate && dx[0] == 6 && dx[1] == 2 * gate
                         : fabsf(out) < 1e-30f && fabsf(dx[0]) < 1e-30f && fabsf(dx[1]) < 1e-30f;
        expect(right, "%g: %g, dx %g, %g", (double)gate, (double)out, (double)dx[0], (double)dx[1]);
    }
}

/* ---- The gradients that layers are held against are those of central differences, too. */

static double norm_value(struct ra_norm norm, int64_t dim, const float *x, const float *gamma,
                         const float *d_out)
{
    double numbers[6][64], sum = 0;
    struct norm_row row = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    norm_row(norm, dim, x, gamma, NULL, d_out, &row);
    for (int64_t c = 0; c < dim; c++)
        sum += row.out[c] * (double)d_out[c];
    return sum;
}

TEST(central_differences)
{
    enum { DIM = 17 };
    float *x = randoms(DIM), *gamma = randoms(DIM), *d_out = randoms(DIM);
    double numbers[6][DIM];
    struct norm_row row = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
    for (int i = 0; i < NORMS * DIM; i++) {
        struct ra_norm kind = norms[i / DIM];
        int c = i % DIM;
        norm_row(kind, DIM, x, gamma, NULL, d_out, &row);
        float at = x[c], up = at + 0x1p-12f, down = at - 0x1p-12f;
        x[c] = up;
        double change = norm_value(kind, DIM, x, gamma, d_out);
        x[c] = down;
        change -= norm_value(kind, DIM, x, gamma, d_out);
        x[c] = at;
        double slope = change / ((double)up - (double)down);
        expect(near(row.dx[c], slope, 1e-6 * row.sizes[c]), "norm: %g, not %g", row.dx[c], slope);
    }
    for (double at = -8; at < 8; at += 0.01) {
        double slope = (gelu(at + 1e-4) - gelu(at - 1e-4)) / 2e-4;
        expect(near(gelu_slope(at), slope, 1e-7), "gelu: %g, not %g", gelu_slope(at), slope);
        slope = (silu(at + 1e-4) - silu(at - 1e-4)) / 2e-4;
        expect(near(silu_slope(at), slope, 1e-7), "silu: %g, not %g", silu_slope(at), slope);
    }
    release();
}

/* ---- Rotary embedding. */

CASE(rotary, 600);

/* cos and sin are rounded once. Before, an angle has few roundings to double: what they change
 * grows with the angle, and with the power of theta. */
TEST(rotary_angles)
{
    static const int64_t positions[] = {0,       1,       2,        47,        4096,      99999,
                                        1000000, 9999999, 10000001, 123456789, 1000000007};
    static const struct {
        int64_t D;
        double theta, scale;
    } cases[] = {{2, 10000, 1}, {64, 10000, 1}, {34, 500000, 1}, {128, 1e6, 8}, {6, 1, 0.5}};
    enum { ROWS = sizeof positions / sizeof positions[0] };
    for (int i = 0; i < 5; i++) {
        int64_t D = cases[i].D, half = D / 2;
        float *cosines = poisoned(ROWS * half), *sines = poisoned(ROWS * half);
        struct ra_rotary rotary = {D, cases[i].theta, cases[i].scale, {0}};
        ra_rotary_angles(&rotary, ROWS, positions, cosines, sines);
        for (int64_t a = 0; a < ROWS; a++)
            for (int64_t t = 0; t < half; t++) {
                long double power = powl(cases[i].theta, -2 * (long double)t / (long double)D);
                long double angle = (long double)positions[a] / cases[i].scale * power;
                double allowed =
                    u / 2 + (double)angle * 0x1p-53 * (3 + log(cases[i].theta)) + 0x1p-50;
                double cosine = (double)cosines[a * half + t], sine = (double)sines[a * half + t];
                expect(near(cosine, (double)cosl(angle), allowed) &&
                           near(sine, (double)sinl(angle), allowed),
                       "position %" PRId64 ", pair %" PRId64 ": %.9g and %.9g", positions[a], t,
                       cosine, sine);
            }
        release();
    }
    say("angles");
}

/* Llama 3's frequencies, as its three regions say: waves that come round fewer than `low` times in
 * the length that was learnt are `factor` times as long, those of more than `high` are as they
 * were, and between, the frequency is a mean of both that is linear in the number of waves. */
TEST(rotary_scaling)
{
    static const struct ra_rotary_scaling scalings[] = {{RA_ROTARY_LLAMA3, 8, 1, 4, 8192},
                                                        {RA_ROTARY_LLAMA3, 32, 1, 4, 8192},
                                                        {RA_ROTARY_LLAMA3, 3, 2, 2.5, 40}};
    for (int i = 0; i < 3; i++) {
        const struct ra_rotary_scaling *scaling = &scalings[i];
        struct ra_rotary rotary = {128, i == 2 ? 50 : 500000, i == 1 ? 2 : 1, *scaling};
        int regions[3] = {0, 0, 0};
        for (int64_t t = 0; t < 64; t++) {
            double plain = pow(rotary.theta, -(double)t / 64);
            double wave = 6.283185307179586 / plain, length = (double)scaling->original;
            int region = wave > length / scaling->low ? 0 : wave < length / scaling->high ? 2 : 1;
            double share = (length / wave - scaling->low) / (scaling->high - scaling->low);
            const double means[] = {plain / scaling->factor,
                                    (1 - share) * plain / scaling->factor + share * plain, plain};
            double got = ra_rotary_frequency(&rotary, t), want = means[region] / rotary.scale;
            expect(near(got, want, 1e-14 * want), "pair %" PRId64 ": %.17g, not %.17g", t, got,
                   want);
            regions[region]++;
        }
        expect(regions[0] && regions[1] && regions[2], "%d, %d, %d", regions[0], regions[1],
               regions[2]);
    }
}

/* How often the wave of a pair comes round in the length that was learnt. */
static double waves_of(const struct ra_rotary *rotary, double pair)
{
    double plain = pow(rotary->theta, -2 * pair / (double)rotary->D);
    return (double)rotary->scaling.original * plain / 6.283185307179586;
}

/* YaRN's frequencies: linear in the number of the pair, which is the logarithm of its waves; from
 * the last whole pair with `high` waves or more to the first with `low` or fewer. */
TEST(rotary_yarn)
{
    static const struct ra_rotary_scaling scalings[] = {
        {RA_ROTARY_YARN, 4, 1, 32, 32768},
        {RA_ROTARY_YARN_UNTRUNCATED, 32, 1, 32, 4096},
        {RA_ROTARY_YARN, 8, 2, 5, 1000}};
    for (int i = 0; i < 3; i++) {
        const struct ra_rotary_scaling *scaling = &scalings[i];
        struct ra_rotary rotary = {128, i == 0 ? 1e6 : 150000, i == 2 ? 3 : 1, *scaling};
        int regions[3] = {0, 0, 0}, first = 0, last = 0;
        while (waves_of(&rotary, first + 1) >= scaling->high)
            first++;
        while (waves_of(&rotary, last) > scaling->low)
            last++;
        for (int t = 0; t < 64; t++) {
            double plain = pow(rotary.theta, -(double)t / 64);
            double share =
                scaling->kind == RA_ROTARY_YARN
                    ? (double)(last - t) / (last - first)
                    : log(waves_of(&rotary, t) / scaling->low) / log(scaling->high / scaling->low);
            share = fmin(1, fmax(0, share));
            double want = (plain / scaling->factor * (1 - share) + plain * share) / rotary.scale;
            double got = ra_rotary_frequency(&rotary, t);
            expect(near(got, want, 1e-13 * want), "%d, pair %d: %.17g, not %.17g", i, t, got, want);
            regions[share == 0 ? 0 : share == 1 ? 1 : 2]++;
        }
        expect(regions[0] && regions[1] && regions[2] > 1, "%d, %d, %d", regions[0], regions[1],
               regions[2]);
    }
}

/* What transformers 5.24 computes, in float64: limits below pair 0, behind the last number of a
 * head, at the same pair, and near each other. */
TEST(rotary_yarn_at_its_ends)
{
    static const struct {
        struct ra_rotary rotary;
        double want[4];
    } cases[] = {
        {{8, 10000.0, 1, {RA_ROTARY_YARN, 4.0, 1.0, 32.0, 16}},
         {1, 0.025000000000000001, 0.0025000000000000001, 0.00025000000000000001}},
        {{8, 50.0, 1, {RA_ROTARY_YARN, 8.0, 1.0, 3000.0, 100000}},
         {1, 0.37606030930863937, 0.12079740845270187, 0.037671262603360338}},
        {{8, 10000.0, 1, {RA_ROTARY_YARN, 4.0, 1.0, 32.0, 6}},
         {1, 0.025000000000000001, 0.0025000000000000001, 0.00025000000000000001}},
        {{8, 10000.0, 1, {RA_ROTARY_YARN_UNTRUNCATED, 4.0, 1.0, 32.0, 6}},
         {1, 0.10000000000000001, 0.01, 0.001}},
        {{8, 10000.0, 1, {RA_ROTARY_YARN_UNTRUNCATED, 8.0, 2.0, 2.0000001, 1257}},
         {1, 0.10000000000000001, 0.01, 0.000125}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 4; t++) {
            double got = ra_rotary_frequency(&cases[i].rotary, t), want = cases[i].want[t];
            expect(near(got, want, 1e-13 * want), "%zu, pair %d: %.17g, not %.17g", i, t, got,
                   want);
        }
}

/* Pairs are complex numbers, times e^(i angle); rotated back they are what they were. */
TEST(rotary_rotates)
{
    static const int64_t shapes[][4] = {/* batch, rows, heads, D */
                                        {1, 1, 1, 2},
                                        {2, 5, 3, 6},
                                        {3, 7, 2, 34},
                                        {1, 50, 4, 64}};
    for (int i = 0; i < 8; i++) {
        int64_t batch = shapes[i / 2][0], rows = shapes[i / 2][1], heads = shapes[i / 2][2];
        int64_t D = shapes[i / 2][3], half = D / 2, stride = heads * D + (i % 2 ? 7 : 0);
        int64_t all = batch * rows * stride, positions[50];
        float *cosines = poisoned(rows * half), *sines = poisoned(rows * half);
        for (int64_t a = 0; a < rows; a++)
            positions[a] = random_below(&state, 1000000);
        ra_rotary_angles(&(struct ra_rotary){D, 10000, 1, {0}}, rows, positions, cosines, sines);
        float *x = randoms(all), *first[2] = {NULL, NULL};
        for (int64_t e = 0; e < all; e++)
            if (e % stride >= heads * D)
                x[e] = number_of_bits(poison);
        for (int t = 0; t < COUNTS; t++) {
            float *y = copy_of(x, all), *back;
            ra_rotary_rotate(threads[t], batch, rows, heads, D, cosines, sines, 1, y, stride);
            back = copy_of(y, all);
            ra_rotary_rotate(threads[t], batch, rows, heads, D, cosines, sines, -1, back, stride);
            first[0] = t == 0 ? y : first[0];
            first[1] = t == 0 ? back : first[1];
            expect(same_bits(first[0], y, all) && same_bits(first[1], back, all),
                   "other bits for %d threads", threads[t]);
        }
        for (int64_t e = 0; e < all; e++) {
            if (e % stride >= heads * D) {
                expect(is_poison(first[0] + e, 1), "written between rows");
                continue;
            }
            int64_t a = e / stride % rows, t = e % stride % D;
            if (t >= half)
                continue;
            double angle = (double)positions[a] * pow(10000, -2.0 * (double)t / (double)D);
            double complex point = (double)x[e] + I * (double)x[e + half];
            double complex rotated = point * cexp(I * angle);
            double size = cabs(point), got[] = {(double)first[0][e], (double)first[0][e + half]};
            expect(near(got[0], creal(rotated), 3 * u * size + 1e-9 * size) &&
                       near(got[1], cimag(rotated), 3 * u * size + 1e-9 * size),
                   "(%g, %g), not (%g, %g)", got[0], got[1], creal(rotated), cimag(rotated));
            expect(near((double)first[1][e], creal(point), 7 * u * size) &&
                       near((double)first[1][e + half], cimag(point), 7 * u * size),
                   "not rotated back");
        }
        release();
    }
    say("turns");
}

/* ---- Loss. */

/* The loss of x and its gradients in double, with how far off they may be. Logits are sums of `dim`
 * products, which moves each by `off` at most. Probabilities then are off by twice that share and
 * that of exp, 1.2e-7, of its argument, of the sum and two products; gradients by that of each
 * term, and by those of a sum. */
struct truth {
    double loss, loss_off;
    double *dx, *dx_off, *d_weight, *d_weight_off, *d_bias, *d_bias_off;
};

static void true_row(int64_t dim, int64_t V, const float *x, const float *weight, const float *bias,
                     int32_t label, double factor, struct truth *truth, double *dx, double *dx_off)
{
    double *logits = calloc((size_t)V, sizeof *logits), max = -INFINITY, sum = 0, off = 0;
    for (int64_t c = 0; c < V; c++) {
        double size = bias ? fabs(logits[c] = (double)bias[c]) : 0;
        for (int64_t e = 0; e < dim; e++) {
            logits[c] += (double)x[e] * (double)weight[c * dim + e];
            size += fabs((double)x[e] * (double)weight[c * dim + e]);
        }
        off = fmax(off, (double)(dim + 2) * u * size);
        max = fmax(max, logits[c]);
    }
    for (int64_t c = 0; c < V; c++)
        sum += exp(logits[c] - max);
    double share = 2 * off + 1.2e-7 + 6 * u; /* of a probability; p log(1/p) < 1 */
    truth->loss += max + log(sum) - logits[label];
    truth->loss_off += share + u * fabs(max - logits[label]);
    for (int64_t c = 0; c < V; c++) {
        double p = exp(logits[c] - max) / sum, g = factor * (p - (c == label));
        double g_off = factor * (share * p + u * (p * log(1 / fmax(p, 1e-300)) + 2 * (c == label)));
        for (int64_t e = 0; e < dim; e++) {
            double w = (double)weight[c * dim + e], number = (double)x[e];
            dx[e] += g * w;
            dx_off[e] += g_off * fabs(w) + (double)(V + 1) * u * fabs(g * w);
            truth->d_weight[c * dim + e] += g * number;
            truth->d_weight_off[c * dim + e] += g_off * fabs(number) + 300 * u * fabs(g * number);
        }
        if (bias) {
            truth->d_bias[c] += g;
            truth->d_bias_off[c] += g_off + 300 * u * fabs(g);
        }
    }
    free(logits);
}

CASE(loss, 600);

TEST(loss_differences)
{
    enum { DIM = 5, V = 9 };
    float *x = randoms(DIM), *weight = randoms(V * DIM);
    double dx[DIM], off[DIM] = {0}, more[2 * V * DIM] = {0};
    for (int e = 0; e < DIM; e++) {
        float at = x[e], places[] = {at + 0x1p-12f, at - 0x1p-12f, at};
        struct truth truth[3] = {{0}};
        for (int i = 0; i < 3; i++) {
            truth[i].d_weight = more;
            truth[i].d_weight_off = more + V * DIM;
            x[e] = places[i];
            memset(dx, 0, sizeof dx);
            true_row(DIM, V, x, weight, NULL, 4, 1, &truth[i], dx, off);
        }
        double slope = (truth[0].loss - truth[1].loss) / (double)(places[0] - places[1]);
        expect(near(dx[e], slope, 1e-6), "loss: %g, not %g", dx[e], slope);
    }
    release();
}

static void check_loss(const struct ra_vector *set, int64_t rows, int64_t dim, int64_t V,
                       double size, int kept, bool biased)
{
    float *bias = biased ? randoms(V) : NULL, *old_bias = randoms(V), *d_bias[COUNTS];
    float *x = randoms(rows * dim), *weight = randoms(V * dim), *old = randoms(V * dim);
    float *dx[COUNTS], *d_weight[COUNTS], *scratch = poisoned(ra_loss_scratch(V, 0));
    int32_t *labels = calloc((size_t)rows + 1, sizeof *labels);
    int64_t count = 0;
    double loss[COUNTS], alone, factor = 0.25;
    struct truth truth = {
        0,        0,       zeros(rows * dim), zeros(rows * dim), zeros(V * dim), zeros(V * dim),
        zeros(V), zeros(V)};
    for (int64_t e = 0; e < rows * dim; e++)
        x[e] *= (float)size;
    for (int64_t a = 0; a < rows; a++) {
        labels[a] =
            random_below(&state, 4) < kept ? (int32_t)random_below(&state, V) : -1 - (int32_t)a;
        count += labels[a] >= 0;
        if (labels[a] >= 0)
            true_row(dim, V, x + a * dim, weight, bias, labels[a], factor, &truth,
                     truth.dx + a * dim, truth.dx_off + a * dim);
    }
    expect(ra_loss_labels(rows, labels) == count, "labels");
    for (int t = 0; t < COUNTS; t++) {
        struct ra_matrix_work work = work_of(set, threads[t]);
        for (int64_t e = 0; e < ra_loss_scratch(V, 0); e++)
            scratch[e] = number_of_bits(poison);
        dx[t] = poisoned(rows * dim);
        d_weight[t] = copy_of(old, V * dim);
        d_bias[t] = copy_of(old_bias, V);
        loss[t] = ra_loss(&work, rows, dim, V, x, weight, bias, 0, labels, factor, dx[t],
                          d_weight[t], d_bias[t], scratch);
        alone = ra_loss(&work, rows, dim, V, x, weight, bias, 0, labels, factor, NULL, NULL, NULL,
                        scratch);
        expect(loss[t] == loss[0] && alone == loss[0] && same_bits(dx[t], dx[0], rows * dim) &&
                   same_bits(d_weight[t], d_weight[0], V * dim) &&
                   same_bits(d_bias[t], d_bias[0], V),
               "other bits for %d threads", threads[t]);
    }
    expect(near(loss[0], truth.loss, truth.loss_off),
           "%s rows %" PRId64 " V %" PRId64 ": loss %.9g, not %.9g", set->name, rows, V, loss[0],
           truth.loss);
    for (int64_t e = 0; e < rows * dim; e++)
        expect(near((double)dx[0][e], truth.dx[e], truth.dx_off[e] + 1e-30),
               "V %" PRId64 ": dx %g, not %g", V, (double)dx[0][e], truth.dx[e]);
    for (int64_t e = 0; e < V * dim; e++) {
        double want = truth.d_weight[e] + (double)old[e];
        double allowed = truth.d_weight_off[e] + 4 * u * fabs((double)old[e]) + 1e-30;
        expect(near((double)d_weight[0][e], want, allowed), "V %" PRId64 ": d_weight %g, not %g", V,
               (double)d_weight[0][e], want);
    }
    for (int64_t c = 0; c < V; c++) {
        double want = truth.d_bias[c] + (double)old_bias[c];
        expect(near((double)d_bias[0][c], want,
                    truth.d_bias_off[c] + 4 * u * fabs((double)old_bias[c]) + 1e-30),
               "V %" PRId64 ": d_bias %g, not %g", V, (double)d_bias[0][c], want);
    }
    free(labels);
    release();
}

/* Vocabularies around vectors and strips; rows around blocks, of which large vocabularies have
 * more. No label counts, some do, all do. */
TESTS(loss, 0, sets)
{
    static const int64_t vocabularies[] = {1, 2, 15, 16, 17, 50, 481, 4097, 140000};
    static const int64_t rows[] = {0, 1, 33, 256, 257};
    const struct ra_vector *set = ra_vector_find(names[_i]);
    if (!set)
        return;
    for (int v = 0; v < 9; v++)
        for (int r = 0; r < 5; r++)
            if (v < 7 || (v == 7 && r >= 3) || r == 2)
                check_loss(set, rows[r], v < 7 ? 19 : 2, vocabularies[v], 0.3, (v + r) % 5,
                           r % 2 == 0);
    check_loss(set, 40, 5, 100, 3e3, 4, true); /* logits of 10^4 */
    say(names[_i]);
}

/* Of equal logits each is likely 1 / V, however large they are; of one far above the others the
 * loss is 0, or that distance. NaN anywhere in a row that counts is NaN. */
TESTS(loss_at_the_ends, 0, sets)
{
    enum { V = 20 };
    const struct ra_vector *set = ra_vector_find(names[_i]);
    if (!set)
        return;
    struct ra_matrix_work work = work_of(set, 1);
    float weight[V], x = 1, dx = NAN, *scratch = poisoned(ra_loss_scratch(V, 0));
    float d_weight[V] = {0};
    int32_t label = 3;
    static const float sizes[] = {0, 1e4f, -1e4f, 3e38f};
    for (int s = 0; s < 4; s++) {
        for (int c = 0; c < V; c++)
            weight[c] = sizes[s];
        double got =
            ra_loss(&work, 1, 1, V, &x, weight, NULL, 0, &label, 1, &dx, d_weight, NULL, scratch);
        expect(near(got, log(V), 3e-7), "loss %g", got);
    }
    for (int c = 0; c < V; c++)
        weight[c] = c == 3 ? 1e4f : 0;
    double near_by =
        ra_loss(&work, 1, 1, V, &x, weight, NULL, 0, &label, 1, &dx, d_weight, NULL, scratch);
    label = 4;
    double far =
        ra_loss(&work, 1, 1, V, &x, weight, NULL, 0, &label, 1, &dx, d_weight, NULL, scratch);
    expect(near_by == 0 && far == 1e4 && dx == 1e4f, "%g and %g, dx %g", near_by, far, (double)dx);
    for (int c = 0; c < V; c++) {
        weight[c] = NAN;
        double none =
            ra_loss(&work, 1, 1, V, &x, weight, NULL, 0, &label, 1, &dx, d_weight, NULL, scratch);
        expect(isnan(none) && isnan(dx), "NaN is logit %d: loss %g, dx %g", c, none, (double)dx);
        weight[c] = c == 3 ? 1e4f : 0;
    }
    release();
}

/* check-model [best]: on all instruction sets, or on that which the library takes. */
int main(int argc, char **argv)
{
    const struct ra_vector *best = ra_vector_find(NULL);
    if (argc > 1 && strcmp(argv[1], "best") == 0 && best) {
        names[0] = best->name;
        sets = 1;
    }
    return suite_main("model", 600);
}
