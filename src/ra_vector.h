/* ra_vector: the tile again, on vectors: the same functions as in ra_tile.h, several times as fast.
 *
 * Chapter 09. A processor's vectors hold 4 to 16 numbers of float32. Each instruction set has its
 * own copy of the code; which one runs is decided when a program asks for it.
 */
#ifndef RA_VECTOR_H
#define RA_VECTOR_H

#include "ra_config.h"
#include "ra_math.h"
#include "ra_tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out (rows, width) = left (rows, inner) times right (inner, width), or that is added to what is
 * there. Number (i, k) of left is at left[i * left_row + k * left_step], one of the two being 1;
 * rows of right and out lie side by side, and their width is a multiple of 16. Each sum is added up
 * in the order of k. */
struct ra_vector_product {
    int64_t rows, inner, width;
    const float *left;
    int64_t left_row, left_step;
    const float *right;
    int64_t right_row;
    float *out;
    int64_t out_row;
    bool add;
};

/* What one instruction set offers. forward, begin_backward and backward are ra_tile_forward,
 * ra_tile_begin_backward and ra_tile_backward but for rounding: sums are added up in another order,
 * which is that of the instruction set. */
struct ra_vector {
    const char *name; /* amx, avx512, avx2, sse2, neon */
    void (*forward)(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                    const struct ra_keys *keys, struct ra_band band, float *workspace);
    void (*begin_backward)(struct ra_dims dims, const struct ra_queries *queries);
    void (*backward)(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace);

    /* exp of each number; numbers of 16 bits, of this type, as float32. */
    void (*exp)(int64_t count, const float *from, float *to);
    void (*load)(enum ra_type type, int64_t count, const void *from, float *to);

    /* Of the normal distribution: how much of it lies below x, and its height there. */
    void (*normal)(int64_t count, const float *x, float *below, float *bell);

    /* A product of matrices, which is fastest if `width` is this many columns. Both are for chapter
     * 10. */
    void (*multiply)(const struct ra_vector_product *product);
    int64_t columns;

    /* amx: forward, begin_backward and backward, and nothing else, for rows of q, k, v and d_out
     * whose numbers are all bfloat16's. p and ds are rounded to bfloat16 where they are multiplied,
     * and numbers below 2^-126 in magnitude count as 0. Others: NULL. */
    const struct ra_vector *narrow;
};

/* Returns the instruction set of this name, or with NULL the best one. NULL: this processor has
 * none of that name. */
const struct ra_vector *ra_vector_find(const char *name);

/* Says what keeps this process from an instruction set that was not found. */
const char *ra_vector_lacks(const char *name);

/* The largest block of lanes and group of queries among the instruction sets, and the keys that are
 * multiplied at once, by vectors and on tiles. */
enum { RA_VECTOR_QUERIES = 64, RA_VECTOR_GROUP = 192, RA_VECTOR_KEYS = 96, RA_VECTOR_SPAN = 128 };

/* Returns how many rows of queries a tile has that is as large as speed asks for. */
int64_t ra_vector_queries(struct ra_dims dims);

/* Returns how many keys a tile has that is as large as speed asks for. */
int64_t ra_vector_keys(struct ra_dims dims);

/* Counts the floats of workspace that forward and backward need for blocks of up to this many rows.
 * Nothing in it is kept from one call to the next. */
int64_t ra_vector_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims);

/* Counts the floats of workspace that the functions of `narrow` need, as ra_vector_workspace does
 * for the others. */
int64_t ra_vector_narrow_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims);

/* How far apart rows of D numbers lie that need no copy. */
static inline int64_t ra_vector_row(int64_t D)
{
    /* Rows whose distance is a multiple of 1024 bytes would share a few sets of the cache. */
    int64_t row = ra_round_up(D, 16);
    return row % 256 == 0 ? row + 16 : row;
}

#ifdef __cplusplus
}
#endif

#endif
