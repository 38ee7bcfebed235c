/* ra_mpi_link: a link over MPI. Its messages are in flight while the caller computes.
 *
 * Chapter 03. A ring is `size` neighbouring ranks of a communicator. Nothing here blocks but
 * opening and waiting, and both give up after `timeout` seconds.
 */
#ifndef RA_MPI_LINK_H
#define RA_MPI_LINK_H

#include <mpi.h>
#include <stdatomic.h>

#include "ra_link.h"
#include "ra_status.h"

/* One message in one direction, while it is under way and after. */
struct ra_passage {
    MPI_Request request;     /* MPI_REQUEST_NULL: not under way */
    enum ra_message message; /* what it is */
    int hop, peer;
    double started, finished; /* ra_seconds; finished: seen to be so */
};

/* The link's own state: `self` of its functions. */
struct ra_mpi_link {
    MPI_Comm comm; /* a copy of the caller's: nobody else's messages come here */
    int rank, size;
    int first;      /* in comm, this ring is ranks first .. first + size - 1 */
    double timeout; /* seconds without progress, see ra_link.h; 0: no limit */
    struct ra_passage out[RA_MESSAGES], in[RA_MESSAGES];
    char error[RA_ERROR_SIZE];   /* "": none */
    char failure[RA_ERROR_SIZE]; /* the error of another rank, received here */
    MPI_Request opening;         /* what all ranks of comm do together, such as making it */
    bool telling;                /* MPI may still read `error`, to send it */
    atomic_bool cancelled;
    int in_call;
    int mine[3], least[3]; /* what the ranks compare at the opening */
    int64_t *keys;         /* by rank of comm: for who finds out which of them share processors */
    int64_t bytes;         /* of all this */

    /* Signs of life: the request for the next one, and its place; when this rank has last shown
     * one; how many ranks have taken leave; when somebody computed, and when each rank was heard,
     * as a negative number if it then took leave. */
    MPI_Request signs;
    int sign, gone;
    double shown, work, heard[];
};

/* Cuts `world` into rings of `size` ranks each: ranks 0..size-1 are ring 0, and so on; 0: one ring
 * of all ranks. size divides the number of ranks. All ranks of `world` call this together, with the
 * same size; one that does not come is an error after `timeout`, and then `world` must not be
 * freed: MPI may still be duplicating it. If this fails, there is no link, and `error` says why: on
 * all ranks alike, unless one of them had no memory for its link, or MPI itself has failed there:
 * then it does not come. */
RA_CHECKED enum ra_status ra_mpi_link_open(struct ra_link *link, MPI_Comm world, int size,
                                           double timeout, char error[RA_ERROR_SIZE]);

/* Returns the functions of the link over this state, whose rank, size and communicator are set. */
struct ra_link ra_mpi_link_table(struct ra_mpi_link *mpi);

/* Tells whether this is a link over MPI. Then its self is a struct ra_mpi_link. */
bool ra_mpi_link_is(const struct ra_link *link);

/* Waits for what all ranks of the communicator have begun to do together, mpi->opening, which MPI's
 * blocking calls would never end if a rank does not come. `code` is what MPI said when it began,
 * `what` it is for an error's text: "compare the ring sizes". */
enum ra_status ra_mpi_link_await(struct ra_mpi_link *mpi, int code, const char *what);

/* ---- ra_mpi_alive.c */

/* What a rank tells all others of itself: it waits, it computes, it will send nothing any more. */
enum ra_mpi_sign { RA_WAITS, RA_COMPUTES, RA_LEAVES };

/* Begins, when rank and size are known. Nobody has been silent so far. */
void ra_mpi_alive_begin(struct ra_mpi_link *mpi);

/* Shows the others what this rank does, if it is time to, and hears what they show. */
void ra_mpi_alive_show(struct ra_mpi_link *mpi, enum ra_mpi_sign sign);

/* Tells whether this rank has taken leave, so long ago that nothing of it is on its way any
 * more. */
bool ra_mpi_alive_gone(const struct ra_mpi_link *mpi, int peer);

/* Takes leave of all. Have all others, too, within a moment? Then nothing will come from them. */
bool ra_mpi_alive_leave(struct ra_mpi_link *mpi);

/* ---- ra_mpi_link.c */

/* Begins one message, of one element of an MPI type, out of this rank or into it. ra_link's send
 * and receive are this with a type for this many bytes. */
bool ra_mpi_link_begin(struct ra_mpi_link *mpi, bool outgoing, enum ra_message message, int hop,
                       int peer, void *data, MPI_Datatype type);

#endif
