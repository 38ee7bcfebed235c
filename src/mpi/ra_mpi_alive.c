/* ra_mpi_alive: which ranks of a ring over MPI are alive, and which compute. See ra_mpi_link.h.
 *
 * Chapter 03. New here: signs of life, by which a rank that waits can tell one that computes for
 * long from one that has died.
 *
 * Each rank sends a sign to all others four times in a timeout, whether it computes or waits, as
 * long as it polls or waits at all. Why no healthy wait fails: follow the chain from a rank that
 * waits to the one that it waits for, and so on. Its end does not wait for anybody, so it computes,
 * or its message is on the way. While it computes, all hear so four times in a timeout, and every
 * rank of the chain is heard itself. Why every other wait fails: a rank that has died, or stopped,
 * or does something else is silent, and who waits for it fails a timeout later; and if all wait for
 * each other, nobody computes.
 */
#include <math.h>
#include <sched.h>
#include "ra_clock.h"
#include "ra_mpi_link.h"

/* The tag of signs, behind those of messages. */
enum { SIGN = RA_MESSAGES };

/* Seconds that a message may still be on its way after its sender has taken leave: MPI keeps the
 * order in which messages are matched, but where two connections lead to a rank, the leave may
 * overtake a long one. */
#define ON_ITS_WAY 5

/* Begins to listen for the next sign, of any rank. */
static void listen(struct ra_mpi_link *mpi)
{
    if (MPI_Irecv(&mpi->sign, 1, MPI_INT, MPI_ANY_SOURCE, SIGN, mpi->comm, &mpi->signs) !=
        MPI_SUCCESS)
        mpi->signs = MPI_REQUEST_NULL;
}

/* Sends a sign to all. Those that have taken leave listen until this rank has done so, too. */
static void send_sign(struct ra_mpi_link *mpi, enum ra_mpi_sign sign)
{
    /* They leave at once, or some time: what is sent never changes, so nobody waits for it. */
    static const int signs[] = {RA_WAITS, RA_COMPUTES, RA_LEAVES};
    for (int r = 0; r < mpi->size; r++) {
        MPI_Request request;
        if (r != mpi->rank && MPI_Isend(&signs[sign], 1, MPI_INT, mpi->first + r, SIGN, mpi->comm,
                                        &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    }
}

void ra_mpi_alive_begin(struct ra_mpi_link *mpi)
{
    mpi->shown = mpi->work = ra_seconds();
    for (int r = 0; r < mpi->size; r++)
        mpi->heard[r] = mpi->shown;
    if (mpi->size > 1)
        listen(mpi);
}

void ra_mpi_alive_show(struct ra_mpi_link *mpi, enum ra_mpi_sign sign)
{
    double now = ra_seconds();
    if (sign == RA_COMPUTES)
        mpi->work = now;
    if (mpi->timeout > 0 && now - mpi->shown > mpi->timeout / 4) {
        mpi->shown = now;
        send_sign(mpi, sign);
    }

    /* And hears what has come from others. */
    for (int arrived = 1; arrived && mpi->signs != MPI_REQUEST_NULL;) {
        MPI_Status status;
        if (MPI_Test(&mpi->signs, &arrived, &status) != MPI_SUCCESS || !arrived)
            return;
        int peer = status.MPI_SOURCE - mpi->first;
        mpi->heard[peer] = mpi->sign == RA_LEAVES ? -now : now;
        mpi->gone += mpi->sign == RA_LEAVES;
        if (mpi->sign == RA_COMPUTES)
            mpi->work = now;
        listen(mpi);
    }
}

bool ra_mpi_alive_gone(const struct ra_mpi_link *mpi, int peer)
{
    double most = mpi->timeout > 0 ? fmin(mpi->timeout / 2, ON_ITS_WAY) : ON_ITS_WAY;
    return mpi->heard[peer] < 0 && ra_seconds() + mpi->heard[peer] > most;
}

bool ra_mpi_alive_leave(struct ra_mpi_link *mpi)
{
    /* Nobody sends anything after this sign, and MPI keeps the order of signs: so who has all of
     * them will get nothing any more. Ranks that take leave much later keep nobody here. */
    const double most = 10;
    double began = ra_seconds();
    if (mpi->size <= 1)
        return true;
    send_sign(mpi, RA_LEAVES);
    mpi->shown = INFINITY;
    while (mpi->gone < mpi->size - 1 && mpi->failure[0] == '\0' && ra_seconds() - began < most) {
        ra_mpi_alive_show(mpi, RA_WAITS);
        sched_yield();
    }
    return mpi->gone == mpi->size - 1;
}
