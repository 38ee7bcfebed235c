/* thread_link: a ring whose ranks are threads of one process, as an ra_link.
 *
 * For tests: rings of any size without MPI, under every sanitizer. It is stricter than it would
 * have to be. Who breaks the contract of ra_ring.h (two messages of one kind at a time, lengths
 * that differ, messages that nobody takes) is told so on stderr, and the process is aborted; what a
 * receiver reads before it has waited is NaN.
 */
#ifndef THREAD_LINK_H
#define THREAD_LINK_H

#include "ring_attention.h"
#include "ra_link.h"

/* When a message is read from the sender's memory. Both are allowed: at once, as MPI does with
 * short ones; or as late as can be, when the receiver polls or waits. */
enum thread_delivery { THREAD_EARLY, THREAD_LATE };

/* What a rank has sent. */
struct thread_traffic {
    int64_t messages, bytes;
};

struct thread_ring;

/* A ring of so many ranks, each of which has a link. timeout: as in struct ra_config. Freed when
 * all plans on its links are destroyed. */
struct thread_ring *thread_ring_open(int ranks, double timeout, enum thread_delivery delivery);
void thread_ring_close(struct thread_ring *ring);
struct ra_link thread_ring_link(struct thread_ring *ring, int rank);

/* What this rank has sent at a hop, 0..ranks-1, since the last time that this was asked. */
struct thread_traffic thread_ring_sent(struct thread_ring *ring, int rank, int hop);

/* How often this rank has polled while keys were on their way to it. */
int64_t thread_ring_polls(struct thread_ring *ring, int rank);

/* How many ranks have closed their link. */
int thread_ring_closed(struct thread_ring *ring);

/* Runs `body` once per rank, each in a thread of its own, and returns when all have. */
void thread_ring_run(int ranks, void (*body)(void *context, int rank), void *context);

#endif
