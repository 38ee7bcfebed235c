/* ra_slices: one mask for documents, prefixes, chunks, windows to both sides: a list of slices.
 *
 * Chapter 13. A slice is a rectangle of the sequence with a band. Cut against a span of queries and
 * a span of keys it is a rectangle of local rows with a band, which every tile and kernel knows
 * already. So a mask of slices needs no tile of its own, and no matrix. What a slice is, and who
 * makes them, stands in ra_slice.h.
 */
#ifndef RA_SLICES_H
#define RA_SLICES_H

#include "ra_layout.h"
#include "ra_ring.h"
#include "ra_slice.h"
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- One slice. */

/* Tells whether a slice lets no query see a key. */
bool ra_slice_is_empty(const struct ra_slice *slice);

/* Makes the six numbers as tight as they can be: every query sees a key, every key is seen, and
 * both diagonals lo and hi have a visible pair. Nothing that is seen changes. An empty slice
 * becomes 0 in all of them. */
struct ra_slice ra_slice_tighten(const struct ra_slice *slice);

/* Counts the pairs of a query and a key that it sees. */
int64_t ra_slice_pairs(const struct ra_slice *slice);

/* Cuts a slice against a span of queries and a span of keys, of one stride: the local rows and keys
 * of its rectangle and the band, which counts from there. rows = 0: nothing is seen. */
struct ra_span_pair ra_slice_cut(const struct ra_slice *slice, struct ra_span queries,
                                 struct ra_span keys);

/* ---- Lists. */

/* A list that has been checked. Empty slices are left out; the others are in the order of q0, and
 * otherwise as the caller gave them. */
struct ra_slices {
    int64_t count;
    struct ra_slice *slice; /* (count) */
    int64_t *reach;         /* (count): for ra_slices_next */
};

/* Counts the bytes of storage that ra_slices_read needs for lists of up to this many slices. */
int64_t ra_slices_storage(int64_t most);

/* Checks a list: all slices lie within the sequences, and no pair of a query and a key is in two of
 * them. Exact, in O(n log n). Makes it ready for ra_slices_next. storage belongs to the caller,
 * begins at a multiple of 8 and must live as long as the list; `given` need not. RA_INVALID: the
 * text names the slice, or the two that overlap, by place in the list. */
RA_CHECKED enum ra_status ra_slices_read(struct ra_slices *slices, const struct ra_slice *given,
                                         int64_t count, int64_t queries, int64_t keys,
                                         void *storage, char error[RA_ERROR_SIZE]);

/* Finds the first slice, from number `from` on, whose queries are among positions first .. last (at
 * least one of them); `count` of the list if there is none. O(log n). */
int64_t ra_slices_next(const struct ra_slices *slices, int64_t from, int64_t first, int64_t last);

/* Counts the pairs of these queries, first .. end - 1, and the keys that they see. */
int64_t ra_slices_seen(const struct ra_slices *slices, int64_t first, int64_t end);

/* ---- Slices between two ranks. */

/* A walk over all that some query rows of a rank see of some key rows of another, cut by cut. Its
 * numbers are its own business. */
struct ra_walk {
    const struct ra_slices *slices;
    const struct ra_shard_pair *shards;
    int64_t a, end, b, keys_end;  /* local rows: those of queries still to come */
    struct ra_span queries, keys; /* of the cut */
    int64_t slice, span, row, key_row;
    int64_t to; /* the last key in sight */
};

/* Begins a walk: rows a .. a + rows - 1 of the queries of shards->rank, and b .. b + visitors - 1
 * of the keys of shards->origin. The shards' own mask is not looked at; shards and slices must live
 * as long as the walk. */
struct ra_walk ra_slices_walk(const struct ra_slices *slices, const struct ra_shard_pair *shards,
                              int64_t a, int64_t rows, int64_t b, int64_t visitors);

/* Writes the next cut, in which somebody sees something: local rows of the two ranks, and the band
 * that counts from there. False: there is no other. Cuts come by query rows; of the same ones, by
 * slice; of one slice, by keys. No pair of a query and a key is in two of them. */
bool ra_walk_next(struct ra_walk *walk, struct ra_span_pair *cut);

/* Folds keys into queries, as ra_layout_fold does, as far as slices go: local rows of the two
 * ranks, from a and from b on. The shards' own mask is not looked at. */
void ra_slices_fold(struct ra_fold *fold, const struct ra_slices *slices,
                    const struct ra_shard_pair *shards, const struct ra_queries *queries, int64_t a,
                    const struct ra_keys *keys, int64_t b);

/* Finds the schedule of a ring under this mask: a hop is taken if a row of some rank sees a key of
 * the rank so far to its left. As ra_schedule_causal. */
struct ra_schedule ra_slices_schedule(const struct ra_slices *slices, struct ra_layout queries,
                                      struct ra_layout keys, int *storage);

#ifdef __cplusplus
}
#endif

#endif
