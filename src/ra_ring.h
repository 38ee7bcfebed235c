/* ra_ring: messages between the ranks of a ring, over MPI, in flight while the caller computes.
 * Chapter 03. A ring is `size` ranks of a communicator; what rank r sends to distance +1 arrives
 * at rank r + 1, and rank size - 1 sends to rank 0. Nothing here blocks but ra_ring_open and
 * ra_ring_wait, and they give up after `timeout` seconds.
 * A function that returns false has put one line into `error`: which rank, which hop, which peer,
 * what went wrong. After that the ring does nothing more, and all its functions return false; so a
 * caller may leave the others unchecked and look at ra_ring_wait alone, before it uses what has
 * arrived. The other ranks of the ring fail with the same line when they next poll, or wait for a
 * message.
 */
#ifndef RA_RING_H
#define RA_RING_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "ra_message.h"

/* One message in one direction, while it is under way and after. */
struct ra_passage {
    MPI_Request request;     /* MPI_REQUEST_NULL: not under way */
    enum ra_message message; /* what it is */
    int hop, peer;
    double started, finished; /* seconds on the clock of ra_ring_seconds; finished: seen to be so */
};

#define RA_RING_ERROR 400

struct ra_ring {
    MPI_Comm comm; /* a copy of the caller's: nobody else's messages come here */
    int rank, size;
    int first;      /* in comm, this ring is ranks first .. first + size - 1 */
    double timeout; /* seconds; 0: wait for ever */
    struct ra_passage out[RA_MESSAGES], in[RA_MESSAGES];
    int64_t bytes_sent, messages_sent;
    char error[RA_RING_ERROR];   /* "": none */
    char trouble[RA_RING_ERROR]; /* the error of another rank, received here */
    MPI_Request opening;         /* what all ranks of comm do together, such as making it */
    bool telling;                /* MPI may still read `error`, to send it */
};

/* Cuts `world` into rings of `size` ranks each: ranks 0..size-1 are ring 0, and so on. size divides
 * the number of ranks. All ranks of `world` call this together; one that does not come is an error
 * after `timeout`. The ring must stay where it is in memory until it is closed. */
bool ra_ring_open(struct ra_ring *ring, MPI_Comm world, int size, double timeout);

/* The rank at this distance to the right (negative: to the left). */
int ra_ring_rank_at(const struct ra_ring *ring, int distance);

/* Begins to send `bytes` bytes to the rank at this distance; they must not change until
 * ra_ring_wait. Begins to receive bytes from there; they mean nothing until ra_ring_wait. Messages
 * of one kind between two ranks arrive in the order in which they were sent. No bytes: no message.
 * Both sides give the same number of bytes; MPI may write a longer message past the room for it
 * before it reports the error. `hop` is for error texts and traces. The message of this kind
 * before has been waited for. */
bool ra_ring_send(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                  const void *from, int64_t bytes);
bool ra_ring_receive(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                     void *into, int64_t bytes);

/* Lets the messages make progress. MPI moves large messages only inside its own calls, so who
 * computes for long calls this now and then. */
bool ra_ring_poll(struct ra_ring *ring);

/* Returns when both messages of this kind, the one out and the one in, are done. */
bool ra_ring_wait(struct ra_ring *ring, enum ra_message message);

/* This rank cannot go on, for this reason (not ""): an error, as above, of this rank and of all
 * others. After another error it does nothing. */
void ra_ring_fail(struct ra_ring *ring, const char *reason);

/* Ends the ring. Without an error nothing may be under way, and all ranks call this together. After
 * an error, also one of ra_ring_open, what is under way is called off as far as MPI can, and the
 * communicator, which only all ranks together could free, is left to MPI. False: MPI may still use
 * the ring and memory that was given to ra_ring_send or ra_ring_receive; both must stay. */
bool ra_ring_close(struct ra_ring *ring);

/* Seconds on a clock that only goes forward. */
double ra_ring_seconds(void);

#endif
