/* ra_mpi_open: how a link over MPI begins. See ra_mpi_link.h.
 *
 * Chapter 03. New here: rings as groups of neighbouring ranks, which all of them open together.
 */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_clock.h"
#include "ra_mpi_link.h"

enum ra_status ra_mpi_link_await(struct ra_mpi_link *mpi, int code, const char *what)
{
    double began = ra_seconds();
    for (int done = 0; code == MPI_SUCCESS && !done;) {
        if (mpi->timeout > 0 && ra_seconds() - began > mpi->timeout) {
            snprintf(mpi->error, sizeof mpi->error,
                     "waited %g s for all ranks to open the ring; has one died?", mpi->timeout);
            return RA_LOST;
        }
        sched_yield();
        code = MPI_Test(&mpi->opening, &done, MPI_STATUS_IGNORE);
    }
    if (code != MPI_SUCCESS)
        snprintf(mpi->error, sizeof mpi->error, "MPI cannot %s", what);
    return code == MPI_SUCCESS ? RA_OK : RA_LOST;
}

/* Do all ranks give the same ring size, and does it divide their number? Do all give a timeout? */
static enum ra_status agree_on_size(struct ra_mpi_link *mpi, int size, double timeout, char *error)
{
    /* The smallest size and, negated, the largest. They stay in the link: if a rank does not come,
     * MPI may write them later. */
    int ranks, *mine = mpi->mine, *least = mpi->least;
    MPI_Comm_size(mpi->comm, &ranks);
    mine[0] = size;
    mine[1] = size == INT_MIN ? INT_MAX : -size;
    mine[2] = timeout >= 0 ? 0 : -1;
    enum ra_status status = ra_mpi_link_await(
        mpi, MPI_Iallreduce(mine, least, 3, MPI_INT, MPI_MIN, mpi->comm, &mpi->opening),
        "compare the ring sizes");
    if (status != RA_OK)
        return status;
    if (least[0] != -least[1]) {
        snprintf(error, RA_ERROR_SIZE, "ranks disagree about ring_size: one gives %d, another %d",
                 least[0], -least[1]);
        return RA_DISAGREEMENT;
    }
    if (least[2] < 0)
        snprintf(error, RA_ERROR_SIZE,
                 "timeout, on one of the ranks: give seconds, or 0 for no limit");
    else if (size < 0 || (size > 0 && ranks % size != 0))
        snprintf(error, RA_ERROR_SIZE,
                 "ring_size = %d: give a number that divides the %d ranks, or 0 for all of them",
                 size, ranks);
    else
        mpi->size = size > 0 ? size : ranks;
    return mpi->size > 0 ? RA_OK : RA_INVALID;
}

/* Finds this rank's place in its ring, and begins to listen. */
static enum ra_status take_place(struct ra_mpi_link *mpi)
{
    /* Neighbours in the world make a ring. */
    int rank;
    MPI_Comm_rank(mpi->comm, &rank);
    mpi->rank = rank % mpi->size;
    mpi->first = rank - mpi->rank;

    /* By default MPI ends the program at any error; this link names rank, hop and peer first. */
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);

    /* Another rank may fail at any time: its text is always expected. */
    struct ra_passage *failure = &mpi->in[RA_FAILURE];
    failure->message = RA_FAILURE;
    int code = MPI_Irecv(mpi->failure, sizeof mpi->failure, MPI_CHAR, MPI_ANY_SOURCE, RA_FAILURE,
                         mpi->comm, &failure->request);
    if (code != MPI_SUCCESS)
        snprintf(mpi->error, sizeof mpi->error, "MPI cannot listen for failures");
    else
        ra_mpi_alive_begin(mpi);
    return code == MPI_SUCCESS ? RA_OK : RA_LOST;
}

enum ra_status ra_mpi_link_open(struct ra_link *link, MPI_Comm world, int size, double timeout,
                                char error[RA_ERROR_SIZE])
{
    int ranks;
    MPI_Comm_size(world, &ranks);
    struct ra_mpi_link *mpi;
    size_t bytes = sizeof *mpi + (size_t)ranks * (sizeof *mpi->heard + sizeof *mpi->keys);
    mpi = malloc(bytes);
    if (!mpi) {
        snprintf(error, RA_ERROR_SIZE, "no memory for a link over MPI");
        return RA_OUT_OF_MEMORY;
    }
    *mpi = (struct ra_mpi_link){.comm = MPI_COMM_NULL,
                                .bytes = (int64_t)bytes,
                                .keys = (int64_t *)(void *)(mpi->heard + ranks),
                                .timeout = timeout >= 0 ? timeout : 60,
                                .opening = MPI_REQUEST_NULL,
                                .signs = MPI_REQUEST_NULL};
    for (int m = 0; m < RA_MESSAGES; m++)
        mpi->in[m].request = mpi->out[m].request = MPI_REQUEST_NULL;
    error[0] = '\0';
    enum ra_status status = ra_mpi_link_await(mpi, MPI_Comm_idup(world, &mpi->comm, &mpi->opening),
                                              "duplicate the communicator");
    if (status == RA_OK)
        status = agree_on_size(mpi, size, timeout, error);
    if (status == RA_OK)
        status = take_place(mpi);
    if (status != RA_OK) {
        if (!error[0])
            snprintf(error, RA_ERROR_SIZE, "%s", mpi->error);
        ra_mpi_link_table(mpi).close(mpi);
        return status;
    }
    *link = ra_mpi_link_table(mpi);
    return RA_OK;
}
