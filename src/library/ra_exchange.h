/* ra_exchange: the backend that exchanges heads: every rank of a group gets some heads of all rows
 * of the group, attends with them as one rank would, and gives the results back. Internal.
 *
 * Chapter 12. What attends is a plan of its own, of the host's backend, whose rows are the group's
 * and whose ring is that of the groups: with one group there is no ring.
 */
#ifndef RA_EXCHANGE_H
#define RA_EXCHANGE_H

#include "ra_plan.h"

extern const struct ra_backend ra_exchange;

/* Returns the backend of a plan whose config has been read, with its method and ring_size. */
const struct ra_backend *ra_exchange_backend(const struct ra_config *config);

#endif
