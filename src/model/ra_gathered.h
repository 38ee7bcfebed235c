/* ra_gathered: attention of a ring without a ring: every rank collects the keys and values of all.
 *
 * Chapter 10. New here: one all-gather instead of hops, as Llama 3 was trained (Llama Team 2024,
 * section 3.3.2); and its adjoint. A number that is copied to P ranks has P gradients, and their
 * sum is the gradient of the number: dk and dv of all keys are reduced and scattered home.
 *
 * What this makes is a plan of ring_attention.h, with the same config, arrays, results and manners
 * as one of ra_plan_create. So a program chooses between the two in one place. In what they differ:
 *
 * - A rank holds the keys and values of the whole, and backward their gradients, too: what it needs
 *   in memory does not fall with the number of ranks. ra_plan_bytes says how much that is.
 * - Nothing is computed until all keys are there. All keys come, also those that no query here
 *   sees.
 * - Arrays and messages are float32, and all of k and v, or of their gradients, are fewer than 2^31
 *   numbers, as MPI counts them. local_keys is refused.
 * - With config.max_slices each call also compares the slices of all ranks: if they differ, all get
 *   RA_LOST.
 * - A rank that others wait for may be silent for config.timeout even if it computes.
 * - Questions about hops (ra_plan_hops, ra_plan_hop, ra_plan_describe) are answered for the ring of
 *   the same config. An observer is told of hop 0 alone.
 */
#ifndef RA_GATHERED_H
#define RA_GATHERED_H

#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a plan, for ra_forward, ra_backward and ra_plan_destroy. Ranks 0..P-1 of comm are one set,
 * the next P another, P = config.ring_size (0: all ranks are one set). All ranks of comm call this
 * together. Errors are those of ra_mpi_link and ra_plan_create; after RA_LOST comm must not be
 * freed. */
RA_CHECKED enum ra_status ra_gathered_create(struct ra_plan **plan, const struct ra_config *config,
                                             MPI_Comm comm, char error[RA_ERROR_SIZE]);

/* Bytes that this rank sends in a call, or others for it: its keys, values and mask to P - 1 ranks;
 * backward its share of the gradients of their keys and values as well. 0 if the plan is
 * another. */
int64_t ra_gathered_sent(const struct ra_plan *plan, bool backward);

#ifdef __cplusplus
}
#endif

#endif
