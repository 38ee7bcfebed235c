/* ra_ring: the loop of the ring. Keys travel from rank to rank and are folded wherever they are; in
 * the backward their gradients travel one step behind them, and at last go home.
 *
 * Chapter 03. Written once: the programs from 03-ring on and the library run this loop, and the
 * GPUs' ring, which cannot wait between its steps, asks the same questions in the same order. The
 * loop knows neither what a fold computes nor how messages are sent: the caller brings both.
 */
#ifndef RA_RING_H
#define RA_RING_H

#include "ra_link.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which hops are taken. At hop t a rank works on the keys of the rank t to its left. Hops at which
 * no query sees a key may be left out, so a ring goes in steps: step 0, 1, ... takes hop[0],
 * hop[1], .... */
struct ra_schedule {
    int count,
        *hop;  /* how many steps, 1..ranks, and their hops, ascending; the first is 0, at home */
    int *last; /* (ranks) up to which hop each rank's keys travel; 0: they stay at home */
};

/* Counts the ints of storage that a schedule for this many ranks needs. */
int64_t ra_schedule_storage(int ranks);

/* Makes a schedule in which every block goes through the hops 0, 1, ... hops - 1: all the way round
 * if hops = ranks, nowhere if hops = 1. storage belongs to the caller and must live as long as the
 * schedule. */
struct ra_schedule ra_schedule_round(int ranks, int hops, int *storage);

/* Names what an observer is told: that this rank has computed, or waited for messages, or that a
 * message of keys or of gradients was on its way to it. */
enum ra_event_kind { RA_EVENT_WORK, RA_EVENT_WAIT, RA_EVENT_KEYS, RA_EVENT_GRADIENTS };

/* Tells an observer (config.observe) what happened from start to end, in seconds on
 * CLOCK_MONOTONIC; a message was seen to have arrived at `end`. On GPUs it is told other things:
 * see ring_attention_cuda.h. */
struct ra_event {
    enum ra_event_kind kind;
    bool backward;
    int hop;
    double start, end;
};

/* What all ranks do together, and in the same order. */
enum ra_call_kind { RA_CALL_FORWARD, RA_CALL_BACKWARD, RA_CALL_SCATTER, RA_CALL_GATHER };

/* A call as one rank counts it: its first is 1. `ring` tells rings that share a link apart; it is
 * the same number on all ranks. So is `heads`, a checksum of what the caller gives for each head
 * (sinks, slopes; 0: nothing), and `slices`, one of the mask that the plan was given (0: none). */
struct ra_call {
    int64_t number, kind, ring, heads, slices;
};

/* One rank's part of a ring. All memory belongs to the caller; it begins as 0 but for what it is
 * given. */
struct ra_ring {
    const struct ra_link *link;
    struct ra_schedule schedule;
    const int64_t *rows; /* (ranks) of keys that each rank has */

    /* Messages. [0] holds this rank's own keys, and visitors take turns in [1] and [2], see
     * ra_ring_slot. The gradients of the same number are this rank's share for those keys; [3]
     * receives the sum of the ranks before. `comp` is for what rounding loses of a share while it
     * is added up. Forward only: gradients and comp are NULL. If no keys travel gradients[0] may be
     * NULL: then the caller adds its share up elsewhere, and sets it to 0 before. */
    void *keys[3];
    float *gradients[4], *comp;
    int64_t key_bytes, gradient_bytes; /* that one row adds to a message; 0: nothing travels */

    /* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
     * gradients of these keys, which are 0 before, as is comp. */
    void (*fold)(void *context, int step, bool backward);
    void *context;
    void (*observe)(void *observer, const struct ra_event *event); /* may be NULL */
    void *observer;

    struct ra_call call, heard;        /* this rank's last call, and what another says of its own */
    int64_t messages_sent, bytes_sent; /* of keys and gradients; added to */
    double next_poll;                  /* not before this time: see ra_ring_poll */

    /* The schedule may change from call to call. Ranks of different ones would wait for messages
     * that nobody sends, so neighbours tell each other at the beginning which call this is. */
    bool schedule_varies;

    /* Error texts name rank r of the link as first + r * stride, where it is a part of another;
     * stride 0: as r. */
    int first, stride;
};

/* ---- What happens at a step, on any rank of the ring. Pure arithmetic. */

/* Returns the slot of the keys of this step, and of their gradients. */
int ra_ring_slot(int step);

/* Returns the rank at this distance from another. */
int ra_ring_rank_at(const struct ra_ring *ring, int rank, int distance);

/* Returns the rank whose keys are due at this step; and counts the rows of them that come, 0 if
 * they do not travel so far. */
int ra_ring_origin(const struct ra_ring *ring, int rank, int step);
int64_t ra_ring_rows(const struct ra_ring *ring, int rank, int step);

/* Tells whether the keys of this step came to this rank by a message; whether they go on from here;
 * whether their gradients go home from here. */
bool ra_ring_receives(const struct ra_ring *ring, int rank, int step);
bool ra_ring_sends(const struct ra_ring *ring, int rank, int step);
bool ra_ring_sends_home(const struct ra_ring *ring, int rank, int step);

/* Tells what error texts call a rank of the link. */
int ra_ring_name(const struct ra_ring *ring, int rank);

/* Returns how many ranks further messages go from this step, which is not the last, to the next. */
int ra_ring_stride(const struct ra_ring *ring, int step);

/* ---- The loop. */

/* Folds the keys of every step, while those of the next are on their way. With the backward, the
 * gradients of this rank's keys end up complete in gradients[0]. All ranks call it together: before
 * a rank uses what another sends, it makes sure that the two are in the same call. False: the link
 * has failed, and says why. */
bool ra_ring_forward(struct ra_ring *ring);
bool ra_ring_backward(struct ra_ring *ring);

/* Waits, before a call that does not go through this loop, until every rank whose messages come to
 * this one is in the same call. */
bool ra_ring_agree(struct ra_ring *ring, enum ra_call_kind kind);

/* ---- Calls outside of the loop, of messages that go straight to other ranks. */

/* Begins a call. False: the link has failed, or the slices of neighbours differ. */
bool ra_ring_begin(struct ra_ring *ring, enum ra_call_kind kind);

/* A message out, to the rank at distance `to`, and one in, from the rank at distance `from`, of
 * this kind and these bytes each, which may be 0. `hop` is for the observer and for error texts. */
struct ra_exchange {
    enum ra_message message;
    int hop, to, from;
    const void *out;
    int64_t out_bytes;
    void *in;
    int64_t in_bytes;
};

/* Sends the one, receives the other, and waits for both. If `first`, the two ranks make sure before
 * that they are in the same call. False: the link has failed, and says why. */
bool ra_ring_exchange(struct ra_ring *ring, const struct ra_exchange *exchange, bool first);

/* Folds the keys of a step, and tells the observer. */
void ra_ring_fold(struct ra_ring *ring, int step, bool backward);

/* Lets the messages make progress. For a fold to call between its tiles, as often as it likes: the
 * link is polled at a bounded rate. */
void ra_ring_poll(void *ring);

#ifdef __cplusplus
}
#endif

#endif
