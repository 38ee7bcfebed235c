/* ra_cuda_spans: which spans of queries and keys one launch can take. Internal. */
#ifndef RA_CUDA_SPANS_H
#define RA_CUDA_SPANS_H

#include "ra_cuda.h"

/* A rectangle in the plane of queries and keys: neighbouring spans of both, and their rows in the
 * memory of the ranks that have them, every row or every `stride`-th. It is the smallest that has
 * all pairs of spans, of those asked for, of which some query sees some key as far as the causal
 * band goes. one_band: one band, from the first rows on and perhaps with steps, is that of all of
 * them. */
struct ra_cuda_block {
    struct ra_range query_spans, key_spans, queries, keys;
    int64_t stride;
    struct ra_band band;
    struct ra_band_step band_step;
    bool one_band;

    /* How many pairs of spans it has, or if rows are in the order of the sequence, any number; 0:
     * it is empty. */
    int64_t pairs;
};

/* Counts the rows of a block between the first of these and the one behind the last. */
static inline int64_t ra_cuda_rows_of(const struct ra_cuda_block *block, struct ra_range rows)
{
    return ra_ceiling_division(rows.end - rows.first, block->stride);
}

/* Finds the block of these spans of the queries of a rank, and of the keys of a step. */
struct ra_cuda_block ra_cuda_block_of(const struct ra_plan *plan, int rank, int step,
                                      struct ra_range query_spans, struct ra_range key_spans);

/* Counts the stripes of a rank whose rows are kept in the order of the sequence; 1: rows stay as
 * they are. Row i of stripe s is row i f + s, of f stripes. */
int64_t ra_cuda_stripes(const struct ra_plan *plan);

/* Finds the rows of span s of the queries of a rank in memory, from the first to behind the last,
 * with those of other stripes between. */
struct ra_range ra_cuda_query_rows(const struct ra_plan *plan, int rank, int64_t s);

#endif
