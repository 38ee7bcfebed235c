/* ring_attention_threads: links between threads of one process, one thread for each rank of a ring.
 *
 * Chapter 08. In libringattn; needs neither MPI nor CUDA. ra_link.h says what a link is.
 *
 *     struct ra_link links[4];
 *     ra_thread_links(links, 4, error);                      one thread makes all of them,
 *     ra_plan_create(&plan, &config, &links[rank], error);   thread `rank` takes its own.
 *
 * chapters/08-reference.md has a whole program.
 */
#ifndef RING_ATTENTION_THREADS_H
#define RING_ATTENTION_THREADS_H

#include "ra_link.h"
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the links of one ring: links[r], of `ranks`, is that of rank r. A plan takes one over and
 * closes it; one that no plan gets must be closed by hand, links[r].close(links[r].self). What all
 * of them share is freed with the last. One thread at a time uses a link. A link that a plan has
 * taken over ends with that plan; ra_plan_create says how several plans can share one.
 *
 * A message is copied once, out of the sender's memory into the receiver's, by the receiver when it
 * polls or waits. A rank that waits for one which is silent for the timeout, 600 s if nothing else
 * is set, fails, and all others with it (ra_link.h, point 7); so does one whose neighbour has
 * closed its link, at once. What breaks the contract of ra_link.h is such a failure, too. When a
 * link has been closed, nobody touches memory that was given to it.
 *
 * RA_INVALID or RA_OUT_OF_MEMORY: there are no links, and `error`, unless it is NULL, says why. */
RA_CHECKED enum ra_status ra_thread_links(struct ra_link *links, int ranks,
                                          char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
