/* ra_tile: attention on one tile, a block of query rows against a block of key rows of one head.
 *
 * Chapter 02. New here: the carry (o, max, sum), folded block by block, whose error does not grow
 * with the number of keys; the backward recomputes its scores from q, k and lse instead of keeping
 * them.
 */
#include "ra_tile.h"
#include <math.h>
#include <stddef.h>
#include "ra_sum.h"

/* Moves a pointer of any type on by this many numbers; NULL stays NULL. */
#define MOVE(pointer, numbers) ((pointer) = (pointer) ? (pointer) + (numbers) : NULL)

/* How far MOVE goes in an array whose rows are `stride` numbers apart: `rows` rows on, and then to
 * head h of the `heads` in a row. These three are arguments of the functions below. */
#define WAY(stride) (rows * (stride) + h * ((stride) / heads))

/* Both move every pointer: of arrays that have a row of numbers for each query or key by WAY, and
 * of arrays that have one number for each by `row`. */
static struct ra_queries queries_from(struct ra_queries queries, int64_t rows, int64_t h,
                                      int64_t heads, int64_t row)
{
    MOVE(queries.q, WAY(queries.stride.q));
    MOVE(queries.o, WAY(queries.stride.o));
    MOVE(queries.d_out, WAY(queries.stride.d_out));
    MOVE(queries.dq, WAY(queries.stride.dq));
    MOVE(queries.comp, WAY(queries.stride.comp));
    MOVE(queries.max, row);
    MOVE(queries.sum, row);
    MOVE(queries.lse, row);
    MOVE(queries.delta, row);
    return queries;
}

static struct ra_keys keys_from(struct ra_keys keys, int64_t rows, int64_t h, int64_t heads,
                                int64_t row)
{
    MOVE(keys.k, WAY(keys.stride.k));
    MOVE(keys.v, WAY(keys.stride.v));
    MOVE(keys.dk, WAY(keys.stride.dk));
    MOVE(keys.dv, WAY(keys.stride.dv));
    MOVE(keys.dk_comp, WAY(keys.stride.dk_comp));
    MOVE(keys.dv_comp, WAY(keys.stride.dv_comp));
    MOVE(keys.mask, row);
    return keys;
}

struct ra_queries ra_queries_head(const struct ra_queries *all, int64_t D, int64_t b, int64_t h)
{
    int64_t heads = all->stride.q / D;
    return queries_from(*all, b * all->rows, h, heads, (b * heads + h) * all->rows);
}

struct ra_keys ra_keys_head(const struct ra_keys *all, int64_t D, int64_t b, int64_t h)
{
    return keys_from(*all, b * all->rows, h, all->stride.k / D, b * all->rows);
}

struct ra_queries ra_queries_block(const struct ra_queries *queries, int64_t first, int64_t most)
{
    struct ra_queries block = queries_from(*queries, first, 0, 1, first);
    block.rows = most < queries->rows - first ? most : queries->rows - first;
    block.at.first += first * block.at.step;
    return block;
}

struct ra_keys ra_keys_block(const struct ra_keys *keys, int64_t first, int64_t most)
{
    struct ra_keys block = keys_from(*keys, first, 0, 1, first);
    block.rows = most < keys->rows - first ? most : keys->rows - first;
    block.at.first += first * block.at.step;
    return block;
}

/* How many products are added up in float32 before their sum goes where rounding is made good. */
enum { SHORT_SUM = 64 };

/* Stands for the weight of a key that is not seen: minus zero, which exp never gives. */
#define HIDDEN (-0.0f)

static bool is_hidden(float weight)
{
    return weight == 0 && signbit(weight);
}

/* out (cols) += sum over e of factors[e * step] times row e of `rows`. Columns run innermost: each
 * number of out is a sum of its own, so the compiler may compute several at once without changing
 * the order of any sum. */
static void add_products(int64_t inner, int64_t cols, const float *restrict factors, int64_t step,
                         const float *restrict rows, int64_t row, float *restrict out)
{
    for (int64_t e = 0; e < inner; e++)
        for (int64_t b = 0; b < cols; b++)
            out[b] += factors[e * step] * rows[e * row + b];
}

/* A matrix of weights: element (a, b) is at first[a * row + b * col], so a transposed one costs
 * nothing. It is whole if nothing in it is hidden. */
struct weights {
    const float *first;
    int64_t row, col;
    bool whole;
};

/* Rows of sums, and what rounding has lost of them. */
struct sums {
    float *out, *comp;
    int64_t out_row, comp_row;
};

/* sums (rows, cols) += weights (rows, inner) times right (inner, cols). What is hidden is left out:
 * 0 times NaN would be NaN. `partial` is room for cols numbers. */
static void add_weighted(int64_t rows, int64_t inner, int64_t cols, struct weights weights,
                         const float *right, int64_t right_row, struct sums sums, float *partial)
{
    for (int64_t a = 0; a < rows; a++) {
        const float *weight = weights.first + a * weights.row;
        for (int64_t first = 0, last; first < inner; first = last) {
            last = inner - first < SHORT_SUM ? inner : first + SHORT_SUM;
            for (int64_t c = 0; c < cols; c++)
                partial[c] = 0;
            for (int64_t b = first, end; b < last; b = end + 1) {
                end = weights.whole ? last : b;
                while (end < last && !is_hidden(weight[end * weights.col]))
                    end++;
                add_products(end - b, cols, weight + b * weights.col, weights.col,
                             right + b * right_row, right_row, partial);
            }
            ra_sum_add(cols, 1, partial, sums.out + a * sums.out_row,
                       sums.comp + a * sums.comp_row);
        }
    }
}

/* out (rows, cols) = left (rows, D) times the transpose of right (cols, D), whose rows are
 * right_stride apart. right is first transposed into `transposed` (D, cols), because in
 * add_products neighbours must be neighbours in memory. */
static void multiply_transposed(int64_t rows, int64_t D, int64_t cols, const float *left,
                                int64_t left_stride, const float *right, int64_t right_stride,
                                float *restrict transposed, float *restrict out)
{
    for (int64_t b = 0; b < cols; b++)
        for (int64_t c = 0; c < D; c++)
            transposed[c * cols + b] = right[b * right_stride + c];

    for (int64_t e = 0; e < rows * cols; e++)
        out[e] = 0;
    for (int64_t a = 0; a < rows; a++)
        add_products(D, cols, left + a * left_stride, 1, transposed, cols, out + a * cols);
}

/* The score that belongs to a product q . k, without a slope. That of a key that is seen is never
 * -inf: what is too small for float32 has no value here, and becomes NaN. */
static float score_value(struct ra_score rule, float product)
{
    float score = rule.scale * product;
    if (rule.softcap > 0)
        return rule.softcap * tanhf(score / rule.softcap);
    return score == -INFINITY ? NAN : score;
}

/* The same with the slope: of row a and key b, from their score without one. -inf stays: the key is
 * not seen. */
static float score_at(struct ra_score rule, const struct ra_queries *queries,
                      const struct ra_keys *keys, int64_t a, int64_t b, float score)
{
    if (score == -INFINITY)
        return score;
    int64_t distance =
        keys->at.first + b * keys->at.step - (queries->at.first + a * queries->at.step);
    score += rule.slope * (float)distance;
    return score == -INFINITY ? NAN : score;
}

/* The derivative of a score by scale * q . k, from the score without a slope: without a soft cap
 * 1. */
static float score_derivative(struct ra_score rule, float score)
{
    float bent = score / rule.softcap;
    return rule.softcap > 0 ? 1 - bent * bent : 1;
}

/* scores (queries, keys): the score of q_a and k_b, without a slope, where row a may see key b, and
 * -inf where it may not. Returns whether all rows see all keys. */
static bool tile_scores(int64_t D, struct ra_score rule, const struct ra_queries *queries,
                        const struct ra_keys *keys, struct ra_band band, float *transposed,
                        float *scores)
{
    bool whole = !keys->mask && band.lo <= 1 - queries->rows && band.hi >= keys->rows - 1;
    multiply_transposed(queries->rows, D, keys->rows, queries->q, queries->stride.q, keys->k,
                        keys->stride.k, transposed, scores);

    for (int64_t a = 0; a < queries->rows; a++)
        for (int64_t b = 0; b < keys->rows; b++) {
            bool inside = b - a >= band.lo && b - a <= band.hi;
            bool visible = whole || (inside && (!keys->mask || keys->mask[b]));
            float *score = &scores[a * keys->rows + b];
            *score = visible ? score_value(rule, *score) : -INFINITY;
        }
    return whole;
}

int64_t ra_tile_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims)
{
    return 2 * query_rows * key_rows + ra_dims_most(dims) * (key_rows + 1);
}

void ra_tile_begin(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        queries->max[a] = -INFINITY;
        queries->sum[a] = 0;
        for (int64_t c = 0; c < dims.value; c++)
            queries->o[a * queries->stride.o + c] = queries->comp[a * queries->stride.comp + c] = 0;
    }
}

/* Folds the scores of row a and of these keys into its carry: max and sum are new, o and comp are
 * rescaled. The scores become weights under the new max. */
static void fold_row(int64_t D_v, const struct ra_queries *queries, int64_t a, int64_t keys,
                     float *weight)
{
    float *o = queries->o + a * queries->stride.o;
    float *comp = queries->comp + a * queries->stride.comp;

    /* The largest score so far, old keys and new. A NaN is not larger than anything: it comes in
     * by its weight. */
    float old_max = queries->max[a], max = old_max;
    for (int64_t b = 0; b < keys; b++)
        if (weight[b] > max)
            max = weight[b];

    /* Rescale the old carry to the new max. An empty carry has old_max = -inf: exp gives 0. A row
     * that has still seen no number keeps max = -inf, and -inf - -inf would be NaN: such a row has
     * 0 as its reference instead. */
    float reference = max == -INFINITY ? 0 : max, rescale = expf(old_max - reference);
    double sum = queries->sum[a] * rescale;
    for (int64_t c = 0; c < D_v; c++) {
        o[c] *= rescale;
        comp[c] *= rescale;
    }

    /* Turn the new scores into weights under the new max, and sum them. */
    for (int64_t b = 0; b < keys; b++) {
        weight[b] = weight[b] == -INFINITY ? HIDDEN : expf(weight[b] - reference);
        sum += weight[b];
    }
    queries->max[a] = max;
    queries->sum[a] = sum;
}

void ra_tile_forward(struct ra_dims dims, struct ra_score rule, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    float *weights = workspace, *transposed = weights + queries->rows * keys->rows;
    float *partial = transposed + dims.key * keys->rows;
    bool whole = tile_scores(dims.key, rule, queries, keys, band, transposed, weights);

    for (int64_t a = 0; a < queries->rows; a++) {
        float *row = weights + a * keys->rows;
        for (int64_t b = 0; b < keys->rows && rule.slope != 0; b++)
            row[b] = score_at(rule, queries, keys, a, b, row[b]);
        fold_row(dims.value, queries, a, keys->rows, row);
    }

    /* o_a += sum over b of weight_ab v_b. */
    struct sums o = {queries->o, queries->comp, queries->stride.o, queries->stride.comp};
    add_weighted(queries->rows, keys->rows, dims.value,
                 (struct weights){weights, keys->rows, 1, whole}, keys->v, keys->stride.v, o,
                 partial);
}

void ra_tile_finish(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        double sum = queries->sum[a];
        float *o = queries->o + a * queries->stride.o;
        const float *comp = queries->comp + a * queries->stride.comp;
        queries->lse[a] = (float)(queries->max[a] + log(sum));

        /* A row that has seen nothing has sum = 0: log 0 is the -inf we want, 0 / 0 would be
         * NaN. */
        for (int64_t c = 0; c < dims.value; c++)
            o[c] = sum == 0 ? 0 : (float)(((double)o[c] + comp[c]) / sum);
    }
}

void ra_tile_begin_backward(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        const float *d_out = queries->d_out + a * queries->stride.d_out;
        const float *o = queries->o + a * queries->stride.o;
        float delta = 0;
        for (int64_t c = 0; c < dims.value; c++)
            delta += d_out[c] * o[c];
        queries->delta[a] = delta;
        for (int64_t c = 0; c < dims.key; c++)
            queries->dq[a * queries->stride.dq + c] = queries->comp[a * queries->stride.comp + c] =
                0;
    }
}

void ra_tile_backward(struct ra_dims dims, struct ra_score rule, const struct ra_queries *queries,
                      const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    float *p = workspace, *ds = p + queries->rows * keys->rows;
    float *transposed = ds + queries->rows * keys->rows;
    float *partial = transposed + ra_dims_most(dims) * keys->rows;
    /* The scores again, and dp_ab = d_out_a . v_b. */
    bool whole = tile_scores(dims.key, rule, queries, keys, band, transposed, p);
    multiply_transposed(queries->rows, dims.value, keys->rows, queries->d_out,
                        queries->stride.d_out, keys->v, keys->stride.v, transposed, ds);

    /* p_ab = exp(s_ab - lse_a), ds_ab = scale * p_ab (dp_ab - delta_a) * the soft cap's slope. */
    for (int64_t a = 0; a < queries->rows; a++)
        for (int64_t b = 0; b < keys->rows; b++) {
            int64_t e = a * keys->rows + b;
            if (p[e] == -INFINITY) {
                p[e] = ds[e] = HIDDEN;
                continue;
            }
            float derivative = score_derivative(rule, p[e]);
            float score = rule.slope != 0 ? score_at(rule, queries, keys, a, b, p[e]) : p[e];
            p[e] = expf(score - queries->lse[a]);
            ds[e] = rule.scale * p[e] * (ds[e] - queries->delta[a]) * derivative;
        }

    /* dv_b += sum over a of p_ab d_out_a. */
    struct sums dv = {keys->dv, keys->dv_comp, keys->stride.dv, keys->stride.dv_comp};
    add_weighted(keys->rows, queries->rows, dims.value, (struct weights){p, 1, keys->rows, whole},
                 queries->d_out, queries->stride.d_out, dv, partial);

    /* dq_a += sum over b of ds_ab k_b. */
    struct sums dq = {queries->dq, queries->comp, queries->stride.dq, queries->stride.comp};
    add_weighted(queries->rows, keys->rows, dims.key, (struct weights){ds, keys->rows, 1, whole},
                 keys->k, keys->stride.k, dq, partial);

    /* dk_b += sum over a of ds_ab q_a. */
    struct sums dk = {keys->dk, keys->dk_comp, keys->stride.dk, keys->stride.dk_comp};
    add_weighted(keys->rows, queries->rows, dims.key, (struct weights){ds, 1, keys->rows, whole},
                 queries->q, queries->stride.q, dk, partial);
}
