/* ra_batch: a batch that is sharded by rows becomes sharded by sequence, and back.
 *
 * Chapter 10. New here: every rank of a world loads some whole rows of a batch, as many as it
 * likes, and gets its positions of other ranks' rows. No rank ever holds more than its own rows, as
 * they are and as they are sent, and its shard.
 *
 * W ranks make S = W / P ring sets: set s is ranks s * P .. s * P + P - 1. Rows are numbered
 * through the ranks in order. Row b * S + s goes to set s, whose batch it is row b of; each rank of
 * the set gets its positions of it.
 */
#ifndef RA_BATCH_H
#define RA_BATCH_H

#include <stdbool.h>
#include <stdint.h>
#include "ra_status.h"
#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_batch {
    int64_t rows;     /* that this rank brings, of N tokens each */
    int64_t first;    /* the number of the first of them in the whole batch */
    int64_t total;    /* rows of the whole batch */
    int set;          /* s, of this rank */
    int64_t set_rows; /* B, rows of this set, possibly 0: other sets may have one more or less */
    int64_t length;   /* n, positions of each that this rank gets */

    /* For the functions below. */
    MPI_Comm comm;
    int rank, ranks; /* and W */
    struct ra_layout layout;
    int64_t token_bytes;
    double timeout;
    MPI_Datatype token;
    int64_t compared[14];     /* what the ranks agree about */
    int64_t *rows_of;         /* by rank */
    int *parcel, *parcels_at; /* by rank: tokens for its shard, and where they begin in `parcels` */
    int *part, *parts_at; /* by rank: tokens of the shard that come from it, and where they begin */
    char *parcels;        /* this rank's rows, in the order in which they are sent */
    bool lost;
};

/* Plans the way of a batch. All ranks of comm, which stays the caller's, call this together, each
 * with the rows that it brings, 0 or more. Layout, of the N positions over the P ranks of a ring,
 * and token_bytes are the same on all: 4 if a token is an int32, 4 * D if it is D floats.
 *
 * If this fails, *batch is NULL, and error (RA_ERROR_SIZE characters) has the reason. It fails on
 * all ranks, with the same status and text; RA_DISAGREEMENT: what should be the same is not. But
 * for RA_LOST: a rank did not come within `timeout` seconds (0: no limit). Then
 * comm must stay, as MPI may still use it. */
RA_CHECKED enum ra_status ra_batch_create(struct ra_batch **batch, MPI_Comm comm,
                                          struct ra_layout layout, int64_t token_bytes,
                                          int64_t rows, double timeout, char *error);

/* Copies rows, (rows, N) tokens, into the shards, (set_rows, n) tokens; and back. Each is the
 * inverse of the other, and as it only moves numbers also its adjoint: what brings activations to
 * the shards one way brings their gradients back the other. All ranks call it together.
 *
 * RA_INVALID: an array of some rank is NULL and has tokens. All ranks get this status and the same
 * text, which names the rank; nothing is written, and all can go on. RA_LOST: a rank did not come.
 * Then the batch is at its end on this rank, and comm and the arrays of the call must stay, as MPI
 * may still use them. */
RA_CHECKED enum ra_status ra_batch_shard(struct ra_batch *batch, const void *rows, void *shard,
                                         char *error);
RA_CHECKED enum ra_status ra_batch_unshard(struct ra_batch *batch, const void *shard, void *rows,
                                           char *error);

/* Tells all ranks of comm, which call this together, when one of them cannot go on, so that none
 * waits for it in vain. Each comes with its status and, unless that is RA_OK, with its text in
 * error. All return RA_OK if all came with that; otherwise the status of the first rank that did
 * not, with its text and its number in error. RA_LOST of its own as above. */
RA_CHECKED enum ra_status ra_batch_agree(struct ra_batch *batch, enum ra_status status,
                                         char *error);

/* Frees a batch; NULL is none. After RA_LOST what MPI may still use stays. */
void ra_batch_destroy(struct ra_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
