/* ra_gather: attention of a ring without a ring: every rank collects the keys of all, and then
 * folds them alone. Internal.
 *
 * Chapter 12. The ring's schedule says who needs whose keys; here they go straight there, all
 * before the first of them is folded. A key that was copied to other ranks has a gradient on each
 * of them, and their sum is the gradient of the key: the adjoint of a gather is a sum, not a slice.
 */
#ifndef RA_GATHER_H
#define RA_GATHER_H

#include "ra_plan.h"

/* Gives the messages of a rank their places: its own keys, those of all others, one behind the
 * other by step, and their gradients; and a share of its own keys' gradients that arrives. */
void ra_gather_place_messages(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                              void *keys[3], float *gradients[4]);

/* Returns where the keys of this step lie on this rank, from step 1 on, and where its share of
 * their gradients is added up. */
void *ra_gather_keys(const struct ra_ring *ring, int step);
float *ra_gather_gradients(const struct ra_ring *ring, int step);

/* Tells whether a rank sends its keys at this step, from 1 on. They go to the rank so many hops
 * away. */
bool ra_gather_sends(const struct ra_ring *ring, int rank, int step);

/* Makes a forward, in the place of ra_ring_forward. Keys are folded in the order of the ranks. */
bool ra_gather_forward(struct ra_ring *ring);

/* Makes a backward, in the place of ra_ring_backward. The gradients of this rank's keys end up in
 * gradients[0], added up by distance. */
bool ra_gather_backward(struct ra_ring *ring);

#endif
