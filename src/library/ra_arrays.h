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

#endif
