/* ra_gathered: a plan whose keys are gathered instead of going round a ring, over MPI.
 *
 * Chapter 10. One all-gather instead of hops, as Llama 3 was trained (Llama Team 2024, section
 * 3.3.2). The library does it, for plans with config.method = RA_GATHERED_KEYS: this is a plan of
 * ring_attention.h, with the same arrays, results and manners.
 */
#ifndef RA_GATHERED_H
#define RA_GATHERED_H

#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes such a plan, whatever config.method says. Ranks 0..P-1 of comm are one set, the next P
 * another, P = config.ring_size (0: all ranks are one set). All ranks of comm call this together.
 * Errors are those of ra_mpi_link and ra_plan_create; after RA_LOST comm must not be freed. */
RA_CHECKED enum ra_status ra_gathered_create(struct ra_plan **plan, const struct ra_config *config,
                                             MPI_Comm comm, char error[RA_ERROR_SIZE]);

/* Counts the bytes that this rank sends in a call of a plan, the sum of ra_plan_hop. Here they are
 * its keys, values and mask, to the ranks that see them; backward its share of the gradients of
 * other ranks' keys and values as well. */
int64_t ra_gathered_sent(const struct ra_plan *plan, bool backward);

#ifdef __cplusplus
}
#endif

#endif
