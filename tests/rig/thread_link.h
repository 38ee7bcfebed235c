/* thread_link: a ring whose ranks are threads of one process, for tests: the link of
 * ring_attention_threads.h, in a checked link.
 */
#ifndef THREAD_LINK_H
#define THREAD_LINK_H

#include "checked_link.h"

#define thread_traffic checked_traffic /* what a rank has sent */

enum thread_delivery { THREAD_EARLY, THREAD_LATE };

struct thread_ring;

/* A ring of so many ranks, each of which has a link. Its timeout is this one, whatever plans wish,
 * until a rank sets another one for itself. Freed when all plans on its links are destroyed. */
struct thread_ring *thread_ring_open(int ranks, double timeout, enum thread_delivery delivery);
struct ra_link thread_ring_link(struct thread_ring *ring, int rank);
void thread_ring_set_timeout(struct thread_ring *ring, int rank, double seconds);
void thread_ring_close(struct thread_ring *ring);

/* As checked_link says: a call that fails. */
void thread_ring_fail(struct thread_ring *ring, int rank, enum checked_call call, int64_t number);
bool thread_ring_failed(struct thread_ring *ring, int rank);

/* What a rank has sent at a hop, how often it has polled, and how many have closed their link: as
 * checked_link says. */
struct checked_traffic thread_ring_sent(struct thread_ring *ring, int rank, int hop);
int64_t thread_ring_polls(struct thread_ring *ring, int rank);
int thread_ring_closed(struct thread_ring *ring);

/* Runs `body` once per rank, each in a thread of its own, and returns when all have. */
void thread_ring_run(int ranks, void (*body)(void *context, int rank), void *context);

#endif
