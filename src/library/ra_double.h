/* ra_double: the double ring. Keys go round inside a host, and one message for a whole round goes
 * on to the next host. Internal.
 *
 * Chapter 12. A double ring is a ring of hosts whose fold is a ring of ranks: both are the loop of
 * ra_ring, over the plan's own link. In outer turn o a rank works on keys of the host o to its
 * left; at inner hop i of it, on those of that host's rank i to the left of its own place.
 */
#ifndef RA_DOUBLE_H
#define RA_DOUBLE_H

#include "ra_plan.h"

/* What the two rings of a rank need beside the plan's own messages. */
struct ra_double {
    struct ra_plan *plan;
    struct ra_ring outer, inner;
    struct ra_link links[2]; /* outer, inner */
    int64_t *rows[2];        /* of keys: of the ranks at this one's place; of those of a turn */
    int *schedules[2];
    int turn; /* the outer hop that is under way */

    /* The keys that are folded, and this rank's share of their gradients. */
    void *keys;
    float *gradients;
};

/* Gives the messages of both rings their places, and what else they need in the workspace. The
 * outer ring's are the plan's: keys[0] and gradients[0] are this rank's own. */
void ra_double_place(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                     struct ra_double *both, void *keys[3], float *gradients[4]);

/* Counts what a rank sends of the keys of the rank at this distance to its left, and of their
 * gradients: messages and bytes of both rings. False: they do not come to it. */
bool ra_double_count(const struct ra_plan *plan, int rank, int distance, bool backward,
                     int64_t *messages, int64_t *bytes);

/* Makes a forward, in the place of ra_ring_forward. */
bool ra_double_forward(struct ra_double *both);

/* Makes a backward, in the place of ra_ring_backward. */
bool ra_double_backward(struct ra_double *both);

#endif
