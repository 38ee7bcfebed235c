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

/* Describes what a rank of the ring computes once heads have been exchanged: a plan to ask, of
 * which the rank is number rank / U, in groups of U. */
struct ra_plan ra_exchange_part(const struct ra_plan *plan, int rank);

/* Counts the bytes that a rank sends to another of its group in a call, or keeps if that is itself:
 * inwards, before attention, or outwards, after it. */
int64_t ra_exchange_bytes(const struct ra_plan *plan, int from, int to, bool backward,
                          bool outwards);

/* Counts what a rank sends within its group in a call: messages, and bytes in them. */
void ra_exchange_count(const struct ra_plan *plan, int rank, bool backward, int64_t *messages,
                       int64_t *bytes);

/* Says which heads are those of a rank of a group: `per_key` query heads of each of `keys` key
 * heads, the latter from number `key` on, the former from number `first` of each on. */
struct ra_head_share {
    int64_t key, keys, first, per_key;
};

/* Returns the share of member `member` of a group of U that exchanges H heads on G. Members get
 * whole key heads, as equal in number as can be; if there are fewer key heads than members, several
 * neighbours get one key head, and a part each of the query heads that read it. H is at least U. */
struct ra_head_share ra_exchange_share(int64_t H, int64_t G, int U, int member);

#endif
