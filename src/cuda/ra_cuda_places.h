/* ra_cuda_places: where rows lie in the whole sequences, in memory of the device. Internal. */
#ifndef RA_CUDA_PLACES_H
#define RA_CUDA_PLACES_H

#include "ra_cuda.h"

/* The longest sequences whose places a device can tell apart. */
#define RA_CUDA_MOST_PLACES ((int64_t)1 << 30)

/* Counts the bytes that places take: as much on the device as on the host. */
int64_t ra_cuda_places_bytes(const struct ra_plan *plan, int rank);

/* Takes host memory that the device copies from, and an event; and gives them back. */
void ra_cuda_places_begin(struct ra_plan *plan);
void ra_cuda_places_end(struct ra_plan *plan);

/* Tells whether a call has slopes, or exchanges heads, while rows lie elsewhere than they did at
 * the last call that had or did. */
bool ra_cuda_places_are_due(const struct ra_cuda_call *call);

/* Enqueues the copy of places that are due, from memory that no copy before reads any more. */
void ra_cuda_places_send(struct ra_cuda_call *call);

/* Returns the places of this rank's queries, or of the keys of a step, as int32. */
struct ra_tensor ra_cuda_places_of(const struct ra_plan *plan, enum ra_side side, int step);

#endif
