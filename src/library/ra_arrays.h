/* ra_arrays: the arrays of a call, checked before anything is computed. Internal.
 *
 * Chapter 08.
 */
#ifndef RA_ARRAYS_H
#define RA_ARRAYS_H

#include "ra_plan.h"

/* Copies a call's arrays and checks those that it uses. RA_INVALID, and all other ranks get the
 * same text. Another status: the plan was at its end before. */
enum ra_status ra_arrays_read(struct ra_plan *plan, struct ra_arrays *arrays,
                              const struct ra_arrays *given, bool backward);

/* Returns a checksum of what a call gives for each head, on the host: sinks and slopes. 0:
 * neither. */
int64_t ra_arrays_of_heads(const struct ra_plan *plan, const struct ra_arrays *arrays);

/* Sets what a call finds out about each head, (B, H), to what it is before the call: forward the
 * largest score, -inf; backward the gradient of the sink, 0. At its end the caller's array gets the
 * largest of all batches (NaN if one is), or the sum of all batches, added up in double and in
 * order. */
void ra_arrays_begin_heads(const struct ra_plan *plan, bool backward, double *of_heads);
void ra_arrays_end_heads(const struct ra_plan *plan, bool backward, const double *of_heads,
                         const struct ra_arrays *arrays);

#endif
