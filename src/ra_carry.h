/* ra_carry: what takes part in attention beside the keys: a sink, a gradient of lse; and the
 * largest score.
 *
 * Chapter 13. All of it needs only what a row keeps anyway: the carry when the last key has been
 * folded, and in the backward lse and delta.
 */
#ifndef RA_CARRY_H
#define RA_CARRY_H

#include "ra_tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Folds one more score, which has no value, into the carry of the queries: between the last key and
 * ra_tile_finish, and once, whatever the number of hops. A row that has seen no key then ends with
 * o = 0 and lse = sink. A sink of -inf changes nothing; one that is NaN or inf makes o and lse
 * NaN. D is that of o. */
void ra_carry_add_sink(int64_t D, const struct ra_queries *queries, float sink);

/* Returns the largest score in the carry of these queries, or `least` if that is larger; NaN if
 * `least` is, or if one of them has seen a score that is NaN or beyond float32. Before the sink is
 * added, that is the largest score of a key. */
float ra_carry_largest(const struct ra_queries *queries, float least);

/* Changes delta for a gradient of lse, (rows), `stride` numbers apart: as lse' = p, the gradient of
 * a score is p * (dp - (delta - d_lse)). What a row that has seen nothing has in d_lse does not
 * matter. After ra_tile_begin_backward. */
void ra_carry_add_lse_gradient(const struct ra_queries *queries, const float *d_lse,
                               int64_t stride);

/* Returns what these queries add to the gradient of the sink that is in their lse: minus the sum of
 * exp(sink - lse) * delta. Their delta has the gradient of lse in it, if there is one. */
double ra_carry_sink_gradient(const struct ra_queries *queries, float sink);

#ifdef __cplusplus
}
#endif

#endif
