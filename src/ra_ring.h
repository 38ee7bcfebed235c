/* ra_ring: messages between the ranks of a ring, over MPI, in flight while the caller computes.
 * Chapter 03. A ring is `size` ranks of a communicator; what rank r sends to distance +1 arrives
 * at rank r + 1, and rank size - 1 sends to rank 0. Nothing here blocks but ra_ring_wait, and that
 * one gives up after `timeout` seconds.
 * A function that returns false has put one line into `error`: which rank, which hop, which peer,
 * what went wrong. After that the ring does nothing more, and all its functions return false; so a
 * caller may leave the others unchecked and look at ra_ring_wait alone, before it uses what has
 * arrived.
 */
#ifndef RA_RING_H
#define RA_RING_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "ra_tile.h"

/* The kinds of message. Of each kind one may be on its way in, and one on its way out; but
 * gradients go either on or home, so these two kinds share the way out, that of RA_GRADIENTS. */
enum ra_message { RA_KEYS, RA_GRADIENTS, RA_HOME, RA_MESSAGES };

/* One message in one direction, while it is under way and after. */
struct ra_passage {
    MPI_Request request;     /* MPI_REQUEST_NULL: not under way */
    enum ra_message message; /* what it is */
    int hop, peer;
    double started, finished; /* seconds on the clock of ra_ring_seconds; finished: seen to be so */
};

struct ra_ring {
    MPI_Comm comm; /* the ring's own: nobody else's messages come here */
    int rank, size;
    double timeout; /* seconds; 0: wait for ever */
    struct ra_passage out[RA_MESSAGES], in[RA_MESSAGES];
    int64_t bytes_sent, messages_sent;
    char error[256];
};

/* Cuts `world` into rings of `size` ranks each: ranks 0..size-1 are ring 0, and so on. size divides
 * the number of ranks. All ranks of `world` call this together. */
bool ra_ring_open(struct ra_ring *ring, MPI_Comm world, int size, double timeout);

/* The rank at this distance to the right (negative: to the left). */
int ra_ring_rank_at(const struct ra_ring *ring, int distance);

/* Keys travel as one message: k (B, rows, heads, D), behind it v, behind it the mask (B, rows) if
 * there is one. Their gradients do, too: dk, behind it dv. stride = heads * D. How many bytes
 * these are: */
int64_t ra_ring_key_bytes(int64_t B, int64_t stride, bool has_mask, int64_t rows);
int64_t ra_ring_gradient_bytes(int64_t B, int64_t stride, int64_t rows);

/* The arrays in a message of keys and in one of gradients (NULL: forward only). */
struct ra_keys ra_ring_keys(int64_t B, int64_t stride, bool has_mask, int64_t rows, float *message,
                            float *gradients);

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

/* Frees the communicator. Nothing may be under way. */
void ra_ring_close(struct ra_ring *ring);

/* Seconds on a clock that only goes forward. */
double ra_ring_seconds(void);

#endif
