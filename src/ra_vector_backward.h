/* ra_vector_backward: a tile of the backward on vectors.
 *
 * Chapter 09. Internal: included once for each instruction set. New here: groups of queries, so
 * that dk and dv are added to less often.
 */
#ifndef RA_VECTOR_BACKWARD_H
#define RA_VECTOR_BACKWARD_H

#include "ra_sum.h"
#include "ra_vector_panel.h"

/* dq may be where o is: only when o is no longer needed. */
static void clear_dq(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        size_t bytes = (size_t)dims.key * sizeof(float);
        memset(queries->dq + a * queries->stride.dq, 0, bytes);
        memset(queries->comp + a * queries->stride.comp, 0, bytes);
    }
}

/* Clears dq, and computes delta, the row sums of d_out * o. Their terms are added up as the
 * products of d_out and v are: where o is a row of v, because only one key is seen, dp - delta is
 * exactly 0. */
static void begin_backward(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++) {
        const float *d_out = queries->d_out + a * queries->stride.d_out;
        const float *o = queries->o + a * queries->stride.o;
        lanes sum = all_lanes(0);
        for (int64_t c = 0; c < dims.value; c++)
            sum = multiply_add(all_lanes(d_out[c]), all_lanes(o[c]), sum);
        queries->delta[a] = sum[0];
    }
    clear_dq(dims, queries);
}

/* The sums of a group and of a tile, which are added to the caller's once. The first terms of a sum
 * are written, if each row has some; else they are added to zeros. */
struct gradients {
    float *dq, *dk, *dv; /* (GROUP, row), (key rows, row), (key rows, v_row) */
    bool dq_is_new, dk_is_new;
};

/* A group of queries: on their side and in rows, their lse and delta; weights p of keys and ds. */
struct group {
    int64_t a, count; /* from row a on */
    float *q_transposed, *d_out_transposed;
    struct panel q, d_out;
    float *p, *ds; /* (KEYS, GROUP) */
    float lse[GROUP], delta[GROUP];
};

/* p and ds of the blocks of queries that begin at first, ..., before last, and of the `count` keys
 * from b on: from the products of q and k in p, and those of d_out and v in ds. */
static void weigh_again(const struct tile *tile, const struct group *group, int64_t first,
                        int64_t last, int64_t b, int64_t count)
{
    bool shaped = tile->shaped, has_cap = tile->score.softcap > 0;
    bool whole = sees_all(tile, group->a + first, ra_min(last, group->count) - first, b, count);
    lanes factor = all_lanes(tile->factor), cap = all_lanes(tile->score.softcap);
    for (int64_t j = first; j < last; j += LANES) {
        lanes lse = load(group->lse + j), delta = load(group->delta + j);
        for (int64_t i = 0; i < count; i++) {
            float *p = group->p + i * GROUP + j, *ds = group->ds + i * GROUP + j;
            lanes score = load(p), derivative = all_lanes(1);
            if (shaped) {
                score = capped(tile, score);
                if (has_cap)
                    derivative -= score / cap * (score / cap);
                score = sloped(tile, score, group->a + j, b + i);
            }
            /* The score is rounded as in the forward. A multiply-add would not: ds would not sum to
             * 0. */
            lanes weight = exp_lanes(score * factor - lse);
            lanes change = weight * (load(ds) - delta) * derivative;
            if (!whole) {
                lane_bits sees = seen(tile, group->a + j, b + i);
                weight = choose(sees, weight, all_lanes(0));
                change = choose(sees, change, all_lanes(0));
            }
            store(p, weight);
            store(ds, change);
        }
    }
}

/* The blocks of queries of a group, from `first` to before `last`, that see any of the `count` keys
 * from b on: they are neighbours. */
static void blocks_in_sight(const struct tile *tile, const struct group *group, int64_t b,
                            int64_t count, int64_t *first, int64_t *last)
{
    int64_t from, to;
    *first = group->count;
    *last = 0;
    for (int64_t j = 0; j < group->count; j += QUERIES) {
        keys_in_sight(tile, group->a + j, ra_min(QUERIES, group->count - j), &from, &to);
        if (from < b + count && to > b && from < to) {
            *first = ra_min(*first, j);
            *last = j + padded(ra_min(QUERIES, group->count - j));
        }
    }
}

/* Adds to dv what is no number in rows of d_out, from `first` to before `last` of the group, times
 * their weights of the `count` keys from b on. */
static void add_missing_rows(const struct tile *tile, const struct group *group, int64_t first,
                             int64_t last, int64_t b, int64_t count, const struct gradients *sums)
{
    for (int64_t i = 0; i < count && !group->d_out.numbers; i++)
        for (int64_t j = first; j < ra_min(last, group->count); j++)
            if (sees(tile, group->a + j, b + i))
                add_row(tile->D_v, group->d_out, j, group->p[i * GROUP + j],
                        sums->dv + (b + i) * tile->v_row);
}

/* Adds what a group of queries and the `count` keys from b on give each other. */
static void add_gradients(const struct tile *tile, const struct group *group, int64_t b,
                          int64_t count, const struct gradients *sums)
{
    int64_t first, last;
    blocks_in_sight(tile, group, b, count, &first, &last);
    const float *k = tile->k.rows + b * tile->row, *v = tile->v.rows + b * tile->v_row;
    for (int64_t j = first; j < last; j += QUERIES) {
        int64_t width = ra_min(QUERIES, last - j);
        multiply((struct product){count, tile->D, width, k, tile->row, 1,
                                  group->q_transposed + j * tile->D, QUERIES, group->p + j, GROUP,
                                  WRITE, NULL});
        multiply((struct product){count, tile->D_v, width, v, tile->v_row, 1,
                                  group->d_out_transposed + j * tile->D_v, QUERIES, group->ds + j,
                                  GROUP, WRITE, NULL});
    }
    if (first >= last)
        return;
    int64_t rows = ra_min(last, group->count) - first;
    add_missing(tile->D, tile->k, b, count, group->q, first, rows, tile->sign, group->p + first,
                GROUP);
    add_missing(tile->D_v, tile->v, b, count, group->d_out, first, rows, 1, group->ds + first,
                GROUP);
    weigh_again(tile, group, first, last, b, count);

    /* dv_b += sum over a of p_ab d_out_a, dk_b += sum over a of ds_ab q_a, dq_a += sum over b of
     * ds_ab k_b. */
    int64_t width = padded(tile->D), row = tile->row, v_row = tile->v_row;
    int to_keys = sums->dk_is_new ? WRITE : ADD, to_queries = sums->dq_is_new ? WRITE : ADD;
    multiply((struct product){count, rows, padded(tile->D_v), group->p + first, GROUP, 1,
                              group->d_out.rows + first * v_row, v_row, sums->dv + b * v_row, v_row,
                              to_keys, NULL});
    add_missing_rows(tile, group, first, last, b, count, sums);
    multiply((struct product){count, rows, width, group->ds + first, GROUP, 1,
                              group->q.rows + first * row, row, sums->dk + b * row, row, to_keys,
                              NULL});
    multiply((struct product){rows, count, width, group->ds + first, 1, GROUP, k, tile->row,
                              sums->dq + first * row, row, to_queries, NULL});
}

/* to += scale times the sums, row by row. */
static void add_rows(int64_t rows, int64_t D, float scale, const float *sums, int64_t row,
                     float *to, float *comp, int64_t to_row, int64_t comp_row)
{
    for (int64_t a = 0; a < rows; a++) {
        if (a + AHEAD < rows) {
            ask_for(D, to + (a + AHEAD) * to_row);
            ask_for(D, comp + (a + AHEAD) * comp_row);
        }
        ra_sum_add(D, scale, sums + a * row, to + a * to_row, comp + a * comp_row);
    }
}

/* The gradients of a group, from row a on: dq, and its share of the sums of the tile. */
static void backward_group(const struct tile *tile, const struct ra_queries *queries, int64_t a,
                           int64_t count, struct gradients *sums, float *workspace)
{
    int64_t D = tile->D, D_v = tile->D_v, first, last;
    struct group group = {.a = a,
                          .count = count,
                          .q_transposed = workspace,
                          .d_out_transposed = workspace + GROUP * D,
                          .p = workspace + GROUP * (D + D_v),
                          .ds = workspace + GROUP * (D + D_v + KEYS)};
    float *panels = workspace + GROUP * (D + D_v + 2 * KEYS);
    const float *q = queries->q + a * queries->stride.q;
    const float *d_out = queries->d_out + a * queries->stride.d_out;
    keys_in_sight(tile, a, count, &first, &last);
    if (first >= last)
        return;
    group.q = pack(count, D, q, queries->stride.q, NULL, panels);
    group.d_out = pack(count, D_v, d_out, queries->stride.d_out, NULL, panels + GROUP * tile->row);
    for (int64_t j = 0; j < count; j += QUERIES) {
        int64_t rows = ra_min(QUERIES, count - j);
        transpose(rows, D, group.q.rows + j * tile->row, tile->sign, group.q_transposed + j * D);
        transpose(rows, D_v, group.d_out.rows + j * tile->v_row, 1,
                  group.d_out_transposed + j * D_v);
        fill(rows, queries->lse + a + j, 0, group.lse + j);
        fill(rows, queries->delta + a + j, 0, group.delta + j);
    }
    sums->dq_is_new = sees_all(tile, a, count, 0, tile->key_rows);
    if (!sums->dq_is_new)
        memset(sums->dq, 0, (size_t)(count * tile->row) * sizeof *sums->dq);
    for (int64_t b = first, asked = 0, keys; b < last; b += keys) {
        keys = ra_min(KEYS, last - b);
        add_gradients(tile, &group, b, keys, sums);
        sums->dq_is_new = false;

        /* A few rows at a time: dq of this group, and the next. */
        for (; asked < count * (b + keys - first) / (last - first); asked++) {
            ask_for(D, queries->dq + (a + asked) * queries->stride.dq);
            ask_for(D, queries->comp + (a + asked) * queries->stride.comp);
            if (a + GROUP + asked < tile->query_rows) {
                ask_for(D, q + (GROUP + asked) * queries->stride.q);
                ask_for(D_v, d_out + (GROUP + asked) * queries->stride.d_out);
            }
        }
    }
    add_rows(count, D, tile->score.scale, sums->dq, tile->row, queries->dq + a * queries->stride.dq,
             queries->comp + a * queries->stride.comp, queries->stride.dq, queries->stride.comp);
}

static void backward(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    int64_t n = queries->rows, m = keys->rows;
    struct tile tile = tile_of(dims, score, queries, keys, band, workspace);
    float *dk = workspace + m * (tile.row + tile.v_row), *dv = dk + m * tile.row,
          *dq = dv + m * tile.v_row;
    struct gradients sums = {.dq = dq, .dk = dk, .dv = dv};
    sums.dk_is_new = n > 0 && sees_all(&tile, 0, ra_min(GROUP, n), 0, m);
    if (!sums.dk_is_new)
        memset(dk, 0, (size_t)(m * (tile.row + tile.v_row)) * sizeof *dk);
    for (int64_t a = 0; a < n; a += GROUP) {
        backward_group(&tile, queries, a, ra_min(GROUP, n - a), &sums, dq + GROUP * tile.row);
        sums.dk_is_new = false;
    }

    add_rows(m, tile.D, score.scale, sums.dk, tile.row, keys->dk, keys->dk_comp, keys->stride.dk,
             keys->stride.dk_comp);
    add_rows(m, tile.D_v, 1, sums.dv, tile.v_row, keys->dv, keys->dv_comp, keys->stride.dv,
             keys->stride.dv_comp);
}

#endif
