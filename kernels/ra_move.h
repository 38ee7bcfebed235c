/* ra_move: rows of some heads, moved from one array to another, on one GPU or from GPU to GPU.
 *
 * Chapter 12. Where heads are exchanged, a rank's rows are spread over the rows of a group, and the
 * heads of a share over all heads. A row of the one or the other array is found in a list, a head
 * by two strides.
 */
#ifndef RA_MOVE_H
#define RA_MOVE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "ra_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Some rows and heads of an array: row a is row row[a] of it (NULL: a); head (i, j) is i * key +
 * j * array.head numbers behind array.data. */
struct ra_rows_view {
    struct ra_tensor array;
    int64_t key;
    const int32_t *row;
};

/* A move of `rows` rows of all batches, heads (i, j) with i < keys and j < per_key, each of `width`
 * numbers: to = from or, if `adds`, to += from. Types are those of floats, or both RA_BOOL, in
 * which whatever is not 0 counts as true. */
struct ra_move {
    struct ra_rows_view to, from;
    int64_t rows;
    int keys, per_key, width;
    bool adds;
};

/* One launch does several. None may read or write where another one writes. */
enum { RA_MOST_MOVES = 16 };
struct ra_moves {
    int64_t batch;
    int count;
    struct ra_move move[RA_MOST_MOVES];
};

/* Enqueues these moves. Arrays may be those of another GPU that this one reaches. */
cudaError_t ra_move_rows(const struct ra_moves *moves, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
