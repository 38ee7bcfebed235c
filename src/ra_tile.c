/* ra_tile: attention on one tile, a block of query rows against a block of key rows of one head.
 *
 * Chapter 02. New here: the carry (o, max, sum), folded block by block; the backward recomputes its
 * scores from q, k and lse instead of keeping them. All products of matrices go through one
 * function, multiply_add.
 */
#include "ra_tile.h"
#include <math.h>
#include <stddef.h>

/* Moves a pointer of any type on by so many numbers; NULL stays NULL. */
#define MOVE(pointer, numbers) ((pointer) = (pointer) ? (pointer) + (numbers) : NULL)

/* The same rows, `rows` rows further on in the arrays (rows, D) and then `element` numbers, and
 * `row` numbers further on in the arrays of one number per row. */
static struct ra_queries queries_from(struct ra_queries queries, int64_t rows, int64_t element,
                                      int64_t row)
{
    MOVE(queries.q, rows * queries.stride.q + element);
    MOVE(queries.o, rows * queries.stride.o + element);
    MOVE(queries.d_out, rows * queries.stride.d_out + element);
    MOVE(queries.dq, rows * queries.stride.dq + element);
    MOVE(queries.max, row);
    MOVE(queries.sum, row);
    MOVE(queries.lse, row);
    MOVE(queries.delta, row);
    return queries;
}

static struct ra_keys keys_from(struct ra_keys keys, int64_t rows, int64_t element, int64_t row)
{
    MOVE(keys.k, rows * keys.stride.k + element);
    MOVE(keys.v, rows * keys.stride.v + element);
    MOVE(keys.dk, rows * keys.stride.dk + element);
    MOVE(keys.dv, rows * keys.stride.dv + element);
    MOVE(keys.mask, row);
    return keys;
}

struct ra_queries ra_queries_head(const struct ra_queries *all, int64_t D, int64_t b, int64_t h)
{
    int64_t heads = all->stride.q / D;
    return queries_from(*all, b * all->rows, h * D, (b * heads + h) * all->rows);
}

struct ra_keys ra_keys_head(const struct ra_keys *all, int64_t D, int64_t b, int64_t h)
{
    return keys_from(*all, b * all->rows, h * D, b * all->rows);
}

struct ra_queries ra_queries_block(const struct ra_queries *queries, int64_t first, int64_t most)
{
    struct ra_queries block = queries_from(*queries, first, 0, first);
    block.rows = most < queries->rows - first ? most : queries->rows - first;
    return block;
}

struct ra_keys ra_keys_block(const struct ra_keys *keys, int64_t first, int64_t most)
{
    struct ra_keys block = keys_from(*keys, first, 0, first);
    block.rows = most < keys->rows - first ? most : keys->rows - first;
    return block;
}

/* out (rows, cols) += left (rows, inner) times right (inner, cols). Element (a, c) of left is at
 * a * left_row + c * left_col, so a transposed left costs nothing. Columns run innermost: each out
 * element is a sum of its own, so the compiler may compute several at once without changing the
 * order of any sum. */
static void multiply_add(int64_t rows, int64_t inner, int64_t cols, const float *restrict left,
                         int64_t left_row, int64_t left_col, const float *restrict right,
                         int64_t right_row, float *restrict out, int64_t out_row)
{
    for (int64_t a = 0; a < rows; a++)
        for (int64_t c = 0; c < inner; c++) {
            float factor = left[a * left_row + c * left_col];
            for (int64_t b = 0; b < cols; b++)
                out[a * out_row + b] += factor * right[c * right_row + b];
        }
}

/* out (rows, cols) = left (rows, D) times the transpose of right (cols, D), whose rows are
 * right_stride apart. right is first copied on its side, into turned (D, cols), because in
 * multiply_add the innermost index must step through neighbours in memory. */
static void multiply_transposed(int64_t rows, int64_t D, int64_t cols, const float *left,
                                int64_t left_stride, const float *right, int64_t right_stride,
                                float *restrict turned, float *restrict out)
{
    for (int64_t b = 0; b < cols; b++)
        for (int64_t c = 0; c < D; c++)
            turned[c * cols + b] = right[b * right_stride + c];

    for (int64_t e = 0; e < rows * cols; e++)
        out[e] = 0;
    multiply_add(rows, D, cols, left, left_stride, 1, turned, cols, out, cols);
}

/* The score that belongs to a product q . k. */
static float score_value(struct ra_score rule, float product)
{
    float score = rule.scale * product;
    return rule.softcap > 0 ? rule.softcap * tanhf(score / rule.softcap) : score;
}

/* Its derivative by scale * q . k, from the score itself: without a soft cap 1. A hidden key's -inf
 * is no value of the tanh; its weight is 0, and 0 times the slope must be 0, not NaN. */
static float score_slope(struct ra_score rule, float score)
{
    if (!(rule.softcap > 0) || score == -INFINITY)
        return 1;
    float bent = score / rule.softcap;
    return 1 - bent * bent;
}

/* scores (queries, keys): the score of q_a and k_b where row a may see key b, -inf where it may
 * not. */
static void tile_scores(int64_t D, struct ra_score rule, const struct ra_queries *queries,
                        const struct ra_keys *keys, struct ra_band band, float *turned,
                        float *scores)
{
    multiply_transposed(queries->rows, D, keys->rows, queries->q, queries->stride.q, keys->k,
                        keys->stride.k, turned, scores);

    for (int64_t a = 0; a < queries->rows; a++)
        for (int64_t b = 0; b < keys->rows; b++) {
            bool visible = b - a >= band.lo && b - a <= band.hi && (!keys->mask || keys->mask[b]);
            float *score = &scores[a * keys->rows + b];
            *score = visible ? score_value(rule, *score) : -INFINITY;
        }
}

int64_t ra_tile_workspace(int64_t query_rows, int64_t key_rows, int64_t D)
{
    return 2 * query_rows * key_rows + D * key_rows;
}

void ra_tile_begin(int64_t D, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        queries->max[a] = -INFINITY;
        queries->sum[a] = 0;
        for (int64_t c = 0; c < D; c++)
            queries->o[a * queries->stride.o + c] = 0;
    }
}

void ra_tile_forward(int64_t D, struct ra_score score, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    float *weights = workspace, *turned = weights + queries->rows * keys->rows;
    tile_scores(D, score, queries, keys, band, turned, weights);

    for (int64_t a = 0; a < queries->rows; a++) {
        float *weight = weights + a * keys->rows, *o = queries->o + a * queries->stride.o;

        /* The largest score so far, old keys and new. */
        float old_max = queries->max[a], max = old_max;
        for (int64_t b = 0; b < keys->rows; b++)
            if (weight[b] > max)
                max = weight[b];

        /* A row that has seen no key at all keeps its empty carry: -inf - -inf would be NaN. The
         * product below still reads its weights, so they must be 0. */
        if (max == -INFINITY) {
            for (int64_t b = 0; b < keys->rows; b++)
                weight[b] = 0;
            continue;
        }

        /* Rescale the old carry to the new max. An empty carry has old_max = -inf: exp gives 0. */
        float rescale = expf(old_max - max), sum = queries->sum[a] * rescale;
        for (int64_t c = 0; c < D; c++)
            o[c] *= rescale;

        /* Turn the new scores into weights under the new max, and sum them. */
        for (int64_t b = 0; b < keys->rows; b++) {
            weight[b] = expf(weight[b] - max);
            sum += weight[b];
        }
        queries->max[a] = max;
        queries->sum[a] = sum;
    }

    /* o_a += sum over b of weight_ab v_b. */
    multiply_add(queries->rows, keys->rows, D, weights, keys->rows, 1, keys->v, keys->stride.v,
                 queries->o, queries->stride.o);
}

void ra_tile_finish(int64_t D, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        float sum = queries->sum[a], *o = queries->o + a * queries->stride.o;
        queries->lse[a] = queries->max[a] + logf(sum);

        /* A row that has seen nothing has sum = 0: log 0 is the -inf we want, 0 / 0 would be
         * NaN. */
        for (int64_t c = 0; c < D; c++)
            o[c] = sum == 0 ? 0 : o[c] / sum;
    }
}

void ra_tile_delta(int64_t D, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        const float *d_out = queries->d_out + a * queries->stride.d_out;
        const float *o = queries->o + a * queries->stride.o;
        queries->delta[a] = 0;
        for (int64_t c = 0; c < D; c++)
            queries->delta[a] += d_out[c] * o[c];
    }
}

void ra_tile_backward(int64_t D, struct ra_score score, const struct ra_queries *queries,
                      const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    float *p = workspace, *ds = p + queries->rows * keys->rows;
    float *turned = ds + queries->rows * keys->rows;

    /* The scores again, and dp_ab = d_out_a . v_b. */
    tile_scores(D, score, queries, keys, band, turned, p);
    multiply_transposed(queries->rows, D, keys->rows, queries->d_out, queries->stride.d_out,
                        keys->v, keys->stride.v, turned, ds);

    /* p_ab = exp(s_ab - lse_a), and ds_ab = scale * p_ab (dp_ab - delta_a), times the slope. The
     * score goes where p goes, so the slope is taken first. A row that saw nothing has lse = -inf,
     * and -inf - -inf would be NaN: its weights are 0. */
    for (int64_t a = 0; a < queries->rows; a++)
        for (int64_t b = 0; b < keys->rows; b++) {
            int64_t e = a * keys->rows + b;
            float slope = score_slope(score, p[e]);
            p[e] = queries->lse[a] == -INFINITY ? 0 : expf(p[e] - queries->lse[a]);
            ds[e] = score.scale * p[e] * (ds[e] - queries->delta[a]) * slope;
        }

    /* dv_b += sum over a of p_ab d_out_a. */
    multiply_add(keys->rows, queries->rows, D, p, 1, keys->rows, queries->d_out,
                 queries->stride.d_out, keys->dv, keys->stride.dv);

    /* dq_a += sum over b of ds_ab k_b, and dk_b += sum over a of ds_ab q_a. */
    multiply_add(queries->rows, keys->rows, D, ds, keys->rows, 1, keys->k, keys->stride.k,
                 queries->dq, queries->stride.dq);
    multiply_add(keys->rows, queries->rows, D, ds, 1, keys->rows, queries->q, queries->stride.q,
                 keys->dk, keys->stride.dk);
}
