/* ra_link: how the ranks of a ring reach each other, as a table of functions.
 *
 * Chapter 03. The ring sends and receives through one of these and knows nothing else of its
 * neighbours. So the same ring runs over MPI (ra_mpi_link.h; ring_attention_mpi.h for users of the
 * library), over threads of one process (ring_attention_threads.h), or over a link of your own.
 * This header needs neither MPI nor the rest of the library.
 *
 * The contract.
 *
 * 1. A ring has `size` ranks, 0..size-1, in a circle. A distance counts ranks to the right
 *    (negative: to the left): what rank r sends to distance +1 arrives at rank r + 1, and rank size
 *    - 1 sends to rank 0. The receiver gives the distance to the sender: -1 for a message from its
 *    left.
 *
 * 2. send and receive begin a message and return at once. What is sent must not change, and what is
 *    received means nothing, until wait has returned for this kind of message. Both sides give the
 *    same number of bytes, more than 0. Messages of one kind between two ranks arrive in the order
 *    in which they were sent.
 *
 * 3. Of each kind, one message may be under way out of a rank and one into it. wait(kind) returns
 *    when both are done; if none is under way, at once.
 *
 * 4. RA_GRADIENTS and RA_GRADIENTS_RETURN are received apart, but share one way out, which belongs
 *    to wait(RA_GRADIENTS): a rank sends the gradients of a block either on or home, never both. An
 *    example with three ranks, at the end of hop 1. Rank 2 holds the keys of rank 1, which go on to
 *    rank 0, and their gradients follow them: send(RA_GRADIENTS, distance +1). Had the keys gone no
 *    further, it would send the gradients home: send(RA_GRADIENTS_RETURN, distance -1). Rank 1 has
 *    called receive(RA_GRADIENTS_RETURN) at hop 1 already. It waits for this message only at its
 *    very end, and meanwhile sends and receives RA_GRADIENTS of other ranks' keys. The same holds
 *    of RA_OUTER_GRADIENTS and RA_OUTER_GRADIENTS_RETURN.
 *
 * 5. Messages may be moved only inside poll and wait. A caller that computes for long calls poll
 *    now and then.
 *
 * 6. A function that returns false has failed for good: all later ones return false as well and do
 *    nothing, and `error` says why. So a caller may leave send, receive and poll unchecked, and
 *    look at wait alone before it uses what has arrived. `fail` makes all other ranks of the ring
 *    fail with the same text, at the latest when they next poll or wait for a message. So does a
 *    wait that lasts too long, by point 7.
 *
 * 7. A timeout is time without progress, not the time that a wait lasts: a healthy rank may have to
 *    wait for as long as others compute, as the first rank of a causal ring does at the end of the
 *    backward. A wait for a rank fails when that rank has called neither poll nor wait for the
 *    timeout; or when it waits itself, and no rank of the ring has called poll for half as long
 *    again: so the rank that is lost is named by the one that waits for it. What was before this
 *    wait began does not count. A link that cannot know all this fails no wait before the time that
 *    the busiest rank needs for a whole call.
 *
 * 8. One thread at a time calls these functions. `cancel` is the exception: any thread may call it
 *    at any time before `close`, and so may a signal handler. It therefore only sets a flag that is
 *    atomic and lock-free. The rank's wait looks at the flag at least every hundredth of a second,
 *    and fails, as by `fail`, once it is set.
 */
#ifndef RA_LINK_H
#define RA_LINK_H

#include <stdbool.h>
#include <stdint.h>

/* The kinds of message. Keys travel on; gradients follow them, and at last go home. By RA_CALL
 * ranks tell each other which call they are in. Rows are what ranks exchange outside of the ring's
 * loop. A failure is the text of a rank that cannot go on. Outer messages are those of the ring of
 * hosts of a double ring, in the order of the first four, which they have to be told from: both are
 * under way at the same time. Of any other plan there are none. */
enum ra_message {
    RA_KEYS,
    RA_GRADIENTS,
    RA_GRADIENTS_RETURN,
    RA_CALL,
    RA_ROWS,
    RA_FAILURE,
    RA_OUTER_KEYS,
    RA_OUTER_GRADIENTS,
    RA_OUTER_GRADIENTS_RETURN,
    RA_OUTER_CALL,
    RA_MESSAGES
};

/* `self` is the first argument of each function. `hop` is for error texts and timelines. A link of
 * one rank needs no functions. */
struct ra_link {
    int rank, size;
    int sharing;        /* ranks that share this rank's processors, itself included; 0: as if 1 */
    int64_t bytes;      /* of memory that the link itself holds, for ra_plan_bytes */
    bool device_memory; /* send and receive take pointers to device memory, too */
    void *self;
    bool (*send)(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes);
    bool (*receive)(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes);
    bool (*poll)(void *self);
    bool (*wait)(void *self, enum ra_message message);

    /* This rank cannot go on, for this reason, not "". After another error it does nothing. */
    void (*fail)(void *self, const char *reason);
    const char *(*error)(void *self); /* one line; "": none */

    /* When the message of this kind that came in was begun and was seen to have arrived, in seconds
     * on CLOCK_MONOTONIC; false: none since the last time. May be NULL. */
    bool (*arrival)(void *self, enum ra_message message, int *hop, double *start, double *end);

    /* The timeout of point 7, from now on; 0: no limit. May be NULL, if the link
     * knows better. */
    void (*set_timeout)(void *self, double seconds);

    /* Ends the link. Without an error nothing may be under way, and all ranks call this together.
     * False: memory that was given to send or receive is still in use, and must not be freed. If it
     * is NULL in the copy that a plan is given, the caller keeps the link, and may share it among
     * plans. */
    bool (*close)(void *self);

    /* 0 at first, or NULL. Plans that share the link use it, atomically, to keep calls apart. */
    int *in_call;

    /* Ends the wait that is under way, or the next one: see point 8. May be NULL; then
     * ra_plan_cancel takes effect after the wait. */
    void (*cancel)(void *self);
};

#endif
