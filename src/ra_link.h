/* ra_link: how the ranks of a ring reach each other, as a table of functions.
 *
 * Chapter 08. A plan sends and receives through one of these and knows nothing else of its
 * neighbours, so the same plan runs over MPI (ring_attention_mpi.c), over threads of one process
 * (tests/rig/thread_link.c), or over whatever you bring.
 */
#ifndef RA_LINK_H
#define RA_LINK_H

#include "ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "ra_message.h"

/* Functions mean what those of the same name in ra_ring.h mean; `self` is their first argument.
 * A function that returns false has failed for good: all later ones return false as well, and
 * `error` says why. A link of one rank needs no functions. */
struct ra_link {
    int rank, size;
    int64_t bytes;      /* of memory that the link itself holds, for ra_plan_bytes */
    bool device_memory; /* send and receive take pointers to device memory, too */
    void *self;
    bool (*send)(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes);
    bool (*receive)(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes);
    bool (*poll)(void *self);
    bool (*wait)(void *self, enum ra_message message);

    /* This rank cannot go on, for this reason: makes all other ranks of the ring fail with it. */
    void (*fail)(void *self, const char *reason);
    const char *(*error)(void *self);

    /* When message number `message` that came in was begun and was seen to have arrived, in
     * seconds; false: none since the last time. May be NULL. */
    bool (*arrival)(void *self, enum ra_message message, int *hop, double *start, double *end);

    /* Frees the link. False: memory that was given to send or receive is still in use, and must
     * not be freed. */
    bool (*close)(void *self);
};

/* Makes this rank's part of a plan over a link, which from then on belongs to the plan (also if
 * this fails). Nothing is said to the other ranks: comparing configs is up to the caller. */
RA_CHECKED enum ra_status ra_link_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                              struct ra_link link, char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
