/* ra_slice: a mask of slices as it is written down, and masks that people ask for.
 *
 * Installed with the library. The definition, 01-naive, reads slices too; how a ring works on them
 * is told in chapter 13 (ra_slices.h).
 */
#ifndef RA_SLICE_H
#define RA_SLICE_H

#include "ra_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries q0 <= i < q1 see keys k0 <= j < k1 where lo <= j - i <= hi. i and j are positions in the
 * whole sequences, 0..N-1 and 0..M-1. A bound of magnitude RA_BAND_FAR or more is none. */
struct ra_slice {
    int64_t q0, q1, k0, k1, lo, hi;
};

/* ---- Makers. Each writes slices into the caller's array and returns how many. `back` and `ahead`
 * are how many tokens before and after itself a query sees at most; RA_NO_LOOKBACK: no limit.
 * Document i has the rows bounds[i] .. bounds[i + 1] - 1: count + 1 bounds, ascending, as in
 * cu_seqlens. */

/* Writes one slice for each document, whose rows see each other: causal with ahead = 0. */
int64_t ra_slices_documents(const int64_t *bounds, int64_t count, int64_t back, int64_t ahead,
                            struct ra_slice *slices);

/* Writes one slice: all queries see the keys in their window. The last query stands beside the last
 * key, as in ra_config: with ahead = 0 it is `causal`, with back = L also `lookback` L. */
int64_t ra_slices_window(int64_t queries, int64_t keys, int64_t back, int64_t ahead,
                         struct ra_slice *slices);

/* Writes two slices for each document: its first prefixes[i] rows are seen by all of its rows, the
 * others by those after them (prefix LM). */
int64_t ra_slices_prefix(const int64_t *bounds, int64_t count, const int64_t *prefixes,
                         struct ra_slice *slices);

/* Writes ceil(length / chunk) slices: causal in chunks of this many rows (chunked attention).
 * chunk >= 1. */
int64_t ra_slices_chunks(int64_t length, int64_t chunk, struct ra_slice *slices);

/* Writes two slices for each document, causal: its first `first` rows are seen by all rows after
 * them, the others at most `back` tokens back (first tokens beside a window). */
int64_t ra_slices_first(const int64_t *bounds, int64_t count, int64_t first, int64_t back,
                        struct ra_slice *slices);

/* Writes one slice for each pair of documents: queries query_bounds[i] .. query_bounds[i + 1] - 1
 * see all keys from key_bounds[i] to key_bounds[i + 1] - 1 (cross-attention of packed pairs). */
int64_t ra_slices_pairs(const int64_t *query_bounds, const int64_t *key_bounds, int64_t count,
                        struct ra_slice *slices);

/* Writes `count` slices, causal: document 0 is a question that all documents see, the others are
 * answers, each of which sees itself besides. */
int64_t ra_slices_answers(const int64_t *bounds, int64_t count, struct ra_slice *slices);

/* Turns positions in the sequence, of this many rows in any order, into places in their documents:
 * row 0 of each is at place 0. That is where rotary angles begin anew. */
void ra_slices_places(const int64_t *bounds, int64_t count, int64_t rows, int64_t *positions);

#ifdef __cplusplus
}
#endif

#endif
