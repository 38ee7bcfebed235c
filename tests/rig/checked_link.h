/* checked_link: a link around any other link, which holds its caller to the contract of ra_link.h.
 *
 * A caller that breaks it (two messages of a kind at a time, none awaited before the link is
 * closed, messages that nobody takes, a link that is used after it was closed) is told so on
 * stderr, and the process is aborted. What a receiver reads before it has waited is NaN. Of lengths
 * that differ the link inside knows. All links of a ring are in one process.
 */
#ifndef CHECKED_LINK_H
#define CHECKED_LINK_H

#include "ra_link.h"

/* When a sender may go on. Both are allowed: when its message has been taken; or at once, as with
 * MPI's short messages. An early message is taken by the time its sender begins another of its
 * kind, or closes its link. */
enum checked_delivery { CHECKED_EARLY, CHECKED_LATE };

/* What a rank has sent, but for numbers of calls, which the ring does not count either. */
struct checked_traffic {
    int64_t messages, bytes;
};

struct checked_ring;

/* A ring of so many ranks; checked_ring_link puts a link of it around one of the same rank, which
 * it owns. Freed when all of these links are closed. */
struct checked_ring *checked_ring_open(int ranks, enum checked_delivery delivery);
struct ra_link checked_ring_link(struct checked_ring *ring, struct ra_link inside);
void checked_ring_close(struct checked_ring *ring);

/* From now on call number `number` that this rank makes of a function of its link, 1 being the
 * next, ends the ring: "a call that fails". And has it come to that? */
enum checked_call { CHECKED_SEND, CHECKED_RECEIVE, CHECKED_POLL, CHECKED_WAIT, CHECKED_CALLS };
void checked_ring_fail(struct checked_ring *ring, int rank, enum checked_call call, int64_t number);
bool checked_ring_failed(struct checked_ring *ring, int rank);

/* What this rank has sent at a hop, 0..ranks-1, since the last time that this was asked. */
struct checked_traffic checked_ring_sent(struct checked_ring *ring, int rank, int hop);

/* How often this rank has polled while it expected keys. */
int64_t checked_ring_polls(struct checked_ring *ring, int rank);

/* How many ranks have closed their link. */
int checked_ring_closed(struct checked_ring *ring);

#endif
