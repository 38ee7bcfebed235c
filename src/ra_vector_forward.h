/* ra_vector_forward: a tile of the forward on vectors.
 *
 * Chapter 09. Internal: included once for each instruction set. New here: lanes that are queries,
 * so that max and sum of a row are those of a lane.
 */
#ifndef RA_VECTOR_FORWARD_H
#define RA_VECTOR_FORWARD_H

#include "ra_sum.h"
#include "ra_vector_panel.h"

/* What is subtracted from scores under this max. Where no key has been seen, -inf - -inf would be
 * NaN: any other reference will do. (inf - inf is NaN, too, and so is the row of a score that
 * float32 cannot hold as a power of 2.) */
INLINE lanes reference_of(lanes max)
{
    return choose(max == all_lanes(-INFINITY), all_lanes(0), max);
}

/* Makes scores of products of LANES queries, from row a on, and of `count` keys, from b on, which
 * lie `stride` apart, as far as they are not products times the factor: hides them, and caps them.
 * Returns the largest. */
static lanes hide(const struct tile *tile, int64_t a, int64_t b, int64_t count, bool whole,
                  float *products, int64_t stride)
{
    bool shaped = tile->shaped;
    lanes factor = all_lanes(tile->factor), none = all_lanes(-INFINITY);
    lanes highest = none, lowest = all_lanes(INFINITY);
    for (int64_t i = 0; i < count; i++) {
        lanes product = load(products + i * stride);
        if (shaped)
            product = sloped(tile, capped(tile, product), a, b + i);
        lowest = smaller(product, lowest);
        if (!whole)
            product = choose(seen(tile, a, b + i), product, none);
        if (shaped || !whole)
            store(products + i * stride, product);
        highest = larger(product, highest);
    }

    /* The score of a key that is seen is never -inf: what float32 cannot hold becomes NaN. */
    bool overflow = any(lowest * factor == none);
    for (int64_t i = 0; i < count && overflow; i++) {
        lanes product = load(products + i * stride);
        lane_bits lost = (product * factor == none) & seen(tile, a, b + i);
        store(products + i * stride, choose(lost, all_lanes(NAN), product));
    }
    return highest;
}

/* Turns products of LANES queries, from row a on, and of `count` keys, from b on, into weights
 * under the new max; max, still a product, and sum are those of all keys so far. rescale is what
 * earlier weights are worth under the new max. A score is product * factor, rounded before anything
 * is subtracted: the backward rounds it in the same way, whatever the max is. */
static void weigh(const struct tile *tile, int64_t a, int64_t b, int64_t count, bool whole,
                  float *products, float *max, float *sum, float *rescale)
{
    lanes highest = hide(tile, a, b, count, whole, products, QUERIES),
          factor = all_lanes(tile->factor);

    /* The largest scores so far, what earlier weights are worth under them, and the new weights. */
    lanes old = load(max), next = larger(highest, old), reference = reference_of(next * factor);
    lanes worth = weight_lanes(old * factor - reference), more = all_lanes(0),
          others = all_lanes(0);
    for (int64_t i = 0; i < count; i++) {
        lanes weight = weight_lanes(load(products + i * QUERIES) * factor - reference);
        store(products + i * QUERIES, weight);
        lanes swapped = more;
        more = others;
        others = swapped + weight;
    }
    store(max, next);
    store(sum, multiply_add(load(sum), worth, more + others));
    store(rescale, worth);
}

/* Adds the max, sum and o of a tile's keys to the carry of the query rows from a on, `count` of
 * them. */
static void add_to_carry(const struct tile *tile, const struct ra_queries *queries, int64_t a,
                         int64_t count, const float *tile_max, const float *tile_sum,
                         const float *o)
{
    float max[QUERIES], rescale[QUERIES], worth[QUERIES];
    fill(count, queries->max + a, -INFINITY, max);
    for (int64_t j = 0; j < QUERIES; j += LANES) {
        lanes old = load(max + j), here = load(tile_max + j) * tile->factor;
        lanes next = larger(here, old), reference = reference_of(next);
        store(max + j, next);
        store(rescale + j, exp_lanes(old - reference));
        store(worth + j, exp_lanes(here - reference));
    }
    for (int64_t i = 0; i < count; i++) {
        float *to = queries->o + (a + i) * queries->stride.o;
        float *comp = queries->comp + (a + i) * queries->stride.comp;
        queries->max[a + i] = max[i];
        queries->sum[a + i] = queries->sum[a + i] * rescale[i] + worth[i] * tile_sum[i];
        for (int64_t c = 0; c < tile->D_v; c++) {
            to[c] *= rescale[i];
            comp[c] *= rescale[i];
        }
        ra_sum_add(tile->D_v, worth[i], o + i * tile->v_row, to, comp);
    }
}

/* Folds the tile's keys into the carry of the query rows from a on, `count` of them. */
static void forward_block(const struct tile *tile, const struct ra_queries *queries, int64_t a,
                          int64_t count, float *workspace)
{
    float *q_rows = workspace, *transposed = q_rows + QUERIES * tile->row;
    float *weights = transposed + tile->D * QUERIES, *o = weights + KEYS * QUERIES;
    float max[QUERIES], sum[QUERIES] = {0}, rescale[QUERIES];
    int64_t first, last, stride = queries->stride.q;
    keys_in_sight(tile, a, count, &first, &last);
    if (first >= last)
        return;
    struct panel q = pack(count, tile->D, queries->q + a * stride, stride, NULL, q_rows);
    transpose(count, tile->D, q.rows, tile->sign, transposed);
    fill(0, NULL, -INFINITY, max);

    /* Keys in order: their products with the queries, their weights, and their values into o. */
    for (int64_t b = first, asked = 0, keys; b < last; b += keys) {
        keys = ra_min(KEYS, last - b);
        bool whole = sees_all(tile, a, count, b, keys);
        multiply((struct product){keys, tile->D, padded(count), tile->k.rows + b * tile->row,
                                  tile->row, 1, transposed, QUERIES, weights, QUERIES, WRITE,
                                  NULL});
        add_missing(tile->D, tile->k, b, keys, q, 0, count, tile->sign, weights, QUERIES);
        for (int64_t j = 0; j < count; j += LANES)
            weigh(tile, a + j, b, keys, whole, weights + j, max + j, sum + j, rescale + j);
        multiply((struct product){count, keys, padded(tile->D_v), weights, 1, QUERIES,
                                  tile->v.rows + b * tile->v_row, tile->v_row, o, tile->v_row,
                                  b == first ? WRITE : ADD, rescale});
        for (int64_t i = 0; i < keys && !tile->v.numbers; i++)
            for (int64_t j = 0; j < count; j++)
                if (sees(tile, a + j, b + i))
                    add_row(tile->D_v, tile->v, b + i, weights[i * QUERIES + j],
                            o + j * tile->v_row);
        /* A few at a time: the carry of this block, and the queries of the next. */
        for (; asked < count * (b + keys - first) / (last - first); asked++) {
            ask_for(tile->D_v, queries->o + (a + asked) * queries->stride.o);
            ask_for(tile->D_v, queries->comp + (a + asked) * queries->stride.comp);
            if (a + QUERIES + asked < tile->query_rows)
                ask_for(tile->D, queries->q + (a + QUERIES + asked) * stride);
        }
    }
    add_to_carry(tile, queries, a, count, max, sum, o);
}

static void forward(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                    const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    struct tile tile = tile_of(dims, score, queries, keys, band, workspace);
    float *rest = workspace + keys->rows * (tile.row + tile.v_row);
    for (int64_t a = 0; a < queries->rows; a += QUERIES)
        forward_block(&tile, queries, a, ra_min(QUERIES, queries->rows - a), rest);
}

#endif
