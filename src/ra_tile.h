/* ra_tile: attention on one tile, a block of query rows against a block of key rows of one head.
 *
 * Chapter 02. Everything later calls these functions: the ring once per hop and tile, the band to
 * mask a tile, the vector stage to make them fast. All arrays are float32 and belong to the caller;
 * nothing is allocated here.
 */
#ifndef RA_TILE_H
#define RA_TILE_H

#include "ra_config.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many numbers of one head a row has: D of them in q, k, dq and dk, and D_v in v, o, d_out and
 * dv. RA_DIMS(D) is the usual case, D_v = D. */
struct ra_dims {
    int64_t key, value; /* D, D_v */
};

#define RA_DIMS(D) ((struct ra_dims){(D), (D)})

/* Returns the larger of the two. */
static inline int64_t ra_dims_most(struct ra_dims dims)
{
    return dims.key > dims.value ? dims.key : dims.value;
}

/* Returns the multiply-adds of matrix products that a pair costs: forward the score, D of them, and
 * its value, D_v; backward the score again, dq and dk, and d_out . v and dv. */
static inline int64_t ra_dims_products(struct ra_dims dims, bool backward)
{
    return backward ? 3 * dims.key + 2 * dims.value : dims.key + dims.value;
}

/* Where rows lie in the whole sequence: row a at first + a * step. Only a slope asks for it. */
struct ra_places {
    int64_t first, step;
};

/* A block of query rows. Row a of q starts at q + a * stride.q, and so on. The carry is what a row
 * keeps of all keys folded so far: in o the sum of exp(score - max) * v, in max the largest score,
 * in sum the sum of exp(score - max). Nothing seen yet: o = 0, max = -inf, sum = 0. o and dq are
 * sums over any number of keys: what rounding cuts off them is kept in comp, and added with the
 * next block. */
struct ra_queries {
    int64_t rows;
    struct {
        int64_t q, o, d_out, dq, comp;
    } stride;
    const float *q;     /* (rows, D) */
    float *o, *max;     /* forward: the carry, o (rows, D_v), max (rows) */
    double *sum;        /* forward: the carry, (rows) */
    float *comp;        /* of o, (rows, D_v); backward of dq, (rows, D) */
    float *lse;         /* (rows) */
    const float *d_out; /* backward: (rows, D_v) */
    float *delta, *dq;  /* backward: delta (rows); dq (rows, D) */
    struct ra_places at;
};

/* A block of key rows. Row b of k starts at k + b * stride.k, and so on. dk_comp and dv_comp are to
 * dk and dv what comp is to dq. */
struct ra_keys {
    int64_t rows;
    struct {
        int64_t k, v, dk, dv, dk_comp, dv_comp;
    } stride;
    const float *k, *v;       /* (rows, D) and (rows, D_v) */
    const bool *mask;         /* (rows), true: this key may be seen; NULL: all may */
    float *dk, *dv;           /* backward: added to, (rows, D) and (rows, D_v) */
    float *dk_comp, *dv_comp; /* backward: the same, 0 where dk and dv begin */
    struct ra_places at;
};

/* Which keys of the block a query row may see: row a sees key b when lo <= b - a <= hi and the mask
 * allows b. A bound of magnitude RA_BAND_FAR or more is none. Nothing of a key reaches a query that
 * does not see it, and nothing of a query such a key: not a NaN either. */
struct ra_band {
    int64_t lo, hi;
};

#define RA_ALL_KEYS ((struct ra_band){-RA_BAND_FAR, RA_BAND_FAR})

/* How a score follows from a query and a key: scale * q . k; then, if there is a soft cap c > 0,
 * c * tanh(score / c), whose magnitude is never above c; then, if there is a slope, slope times the
 * distance from the place of the query to that of the key, negative for keys before it: an integer,
 * which is rounded to float32 once. A score that is NaN, or beyond the range of float32, makes o
 * and lse of its query NaN. */
struct ra_score {
    float scale, softcap, slope; /* softcap, slope 0: none */
};

/* Takes one head out of whole arrays: `all` has its pointers at the first numbers of arrays (B,
 * rows, heads, D) or (B, rows, heads, D_v), whose strides are heads * D or heads * D_v; max, sum,
 * lse and delta are (B, heads, rows); masks (B, rows). Arrays that are NULL stay NULL. */
struct ra_queries ra_queries_head(const struct ra_queries *all, int64_t D, int64_t b, int64_t h);
struct ra_keys ra_keys_head(const struct ra_keys *all, int64_t D, int64_t b, int64_t h);

/* Returns the block of rows that begins at row `first` of these: `most` rows, or as many as there
 * are. */
struct ra_queries ra_queries_block(const struct ra_queries *queries, int64_t first, int64_t most);
struct ra_keys ra_keys_block(const struct ra_keys *keys, int64_t first, int64_t most);

/* Counts the floats of workspace that the two tile functions need for blocks of up to this many
 * rows. Nothing in it is kept from one call to the next. */
int64_t ra_tile_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims);

/* Empties the carry: o = 0, max = -inf, sum = 0, nothing lost. */
void ra_tile_begin(struct ra_dims dims, const struct ra_queries *queries);

/* Folds one block of keys into the carry of the queries. */
void ra_tile_forward(struct ra_dims dims, struct ra_score rule, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace);

/* Turns the carry into results: o becomes the weighted mean, lse is written. A row that has
 * seen nothing gets o = 0 and lse = -inf. */
void ra_tile_finish(struct ra_dims dims, const struct ra_queries *queries);

/* Begins the backward: writes delta, each row's sum of d_out * o, for a finished o; dq = 0, nothing
 * lost. dq may be where o is. */
void ra_tile_begin_backward(struct ra_dims dims, const struct ra_queries *queries);

/* Adds this tile's share to dq, dk and dv. */
void ra_tile_backward(struct ra_dims dims, struct ra_score rule, const struct ra_queries *queries,
                      const struct ra_keys *keys, struct ra_band band, float *workspace);

#ifdef __cplusplus
}
#endif

#endif
