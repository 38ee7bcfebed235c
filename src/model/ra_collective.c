/* ra_collective: waits of all ranks for each other, with an end. See ra_collective.h.
 *
 * Chapter 10.
 */
#include "ra_collective.h"
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_clock.h"
#include "ra_message.h"

/* ---- The roll call. A collective does not say who is missing. So a rank that has waited too long
 * asks all others whether they are here, and those that are waiting, too, answer. The tags are the
 * largest that every MPI has. */

enum { CALL = 32766, HERE };

static void tell(MPI_Comm comm, int rank, int tag)
{
    MPI_Request request;
    if (MPI_Isend(NULL, 0, MPI_BYTE, rank, tag, comm, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

/* Takes a message with this tag, and returns the rank that has sent it; -1: there is none. */
static int take_message(MPI_Comm comm, int tag)
{
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &there, &status) != MPI_SUCCESS || !there)
        return -1;
    MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE);
    return status.MPI_SOURCE;
}

static void answer(MPI_Comm comm)
{
    for (int rank; (rank = take_message(comm, CALL)) >= 0;)
        tell(comm, rank, HERE);
}

/* Writes who is missing: "rank 3 has not come", "ranks 3, 5 have not come". */
static void call_roll(MPI_Comm comm, char text[RA_ERROR_SIZE])
{
    const double patience = 1;
    int rank, ranks, heard, count, used = 0, missing = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    bool *here = calloc((size_t)ranks, sizeof *here);
    snprintf(text, RA_ERROR_SIZE, "one has not come");
    if (!here)
        return;
    here[rank] = true;
    count = 1;
    for (int r = 0; r < ranks; r++)
        if (r != rank)
            tell(comm, r, CALL);
    for (double began = ra_seconds(); count < ranks && ra_seconds() - began < patience;) {
        answer(comm);
        if ((heard = take_message(comm, HERE)) >= 0) {
            count += !here[heard];
            here[heard] = true;
        }
        sched_yield();
    }
    for (int r = 0; r < ranks && used < RA_ERROR_SIZE / 4; r++)
        if (!here[r])
            used += snprintf(text + used, (size_t)(RA_ERROR_SIZE - used), "%s%d",
                             missing++ > 0        ? ", "
                             : ranks - count == 1 ? "rank "
                                                  : "ranks ",
                             r);
    if (missing > 0)
        snprintf(text + used, (size_t)(RA_ERROR_SIZE - used), "%s not come",
                 missing < ranks - count ? " and others have"
                 : missing == 1          ? " has"
                                         : " have");
    else
        snprintf(text, RA_ERROR_SIZE, "the last came too late");
    free(here);
}

/* Says why a wait has failed: MPI would not begin or reported an error, or a rank is missing. */
static void explain(MPI_Comm comm, bool mpi, double timeout, const char *what,
                    char error[RA_ERROR_SIZE])
{
    char missing[RA_ERROR_SIZE];
    if (mpi) {
        snprintf(error, RA_ERROR_SIZE, "MPI fails at %s", what);
        return;
    }
    call_roll(comm, missing);
    snprintf(error, RA_ERROR_SIZE,
             "waited %g s for %s: %.200s; has it died? If it is only slow, wait longer", timeout,
             what, missing);
}

/* ---- Waits. */

bool ra_collective_wait(MPI_Comm comm, int code, MPI_Request *request, double timeout,
                        const char *what, char error[RA_ERROR_SIZE])
{
    double began = ra_seconds();
    int done = 0;
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done && timeout > 0 && ra_seconds() - began > timeout)
            break;
        answer(comm);
        sched_yield();
    }
    if (!done || code != MPI_SUCCESS)
        explain(comm, code != MPI_SUCCESS, timeout, what, error);
    return done && code == MPI_SUCCESS;
}

enum ra_status ra_collective_agree(MPI_Comm comm, double timeout, struct ra_refusal *refusal,
                                   enum ra_status status, bool *lost, char error[RA_ERROR_SIZE])
{
    char late[RA_ERROR_SIZE];
    MPI_Request request;
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    refusal->first = status == RA_OK ? ranks : rank;
    int begun =
        MPI_Iallreduce(MPI_IN_PLACE, &refusal->first, 1, MPI_INT64_T, MPI_MIN, comm, &request);
    *lost = !ra_collective_wait(comm, begun, &request, timeout, "what other ranks say", late);
    if (!*lost && refusal->first == ranks)
        return RA_OK;
    if (!*lost) {
        /* The first rank speaks for all. */
        if (refusal->first == rank) {
            refusal->status = status;
            snprintf(refusal->text, sizeof refusal->text, "rank %d: %.*s", rank, RA_ERROR_SIZE - 20,
                     error);
        }
        begun = MPI_Ibcast(&refusal->status, sizeof *refusal - offsetof(struct ra_refusal, status),
                           MPI_BYTE, (int)refusal->first, comm, &request);
        *lost = !ra_collective_wait(comm, begun, &request, timeout, "an error of a rank", late);
    }
    snprintf(error, RA_ERROR_SIZE, "%s", *lost ? late : refusal->text);
    return *lost ? RA_LOST : (enum ra_status)refusal->status;
}

bool ra_collective_wait_link(const struct ra_link *link, MPI_Comm comm, int code,
                             MPI_Request *request, double timeout, const char *what)
{
    char reason[RA_ERROR_SIZE], text[RA_ERROR_SIZE + 40];
    double began = ra_seconds();
    int done = 0;
    while (link->poll(link->self)) {
        if (code == MPI_SUCCESS)
            code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done && code == MPI_SUCCESS)
            return true;
        if (code != MPI_SUCCESS || (timeout > 0 && ra_seconds() - began > timeout)) {
            explain(comm, code != MPI_SUCCESS, timeout, what, reason);
            ra_message_place(text, link->rank, -1, "%s", reason);
            link->fail(link->self, text);
        }
        answer(comm);
        sched_yield();
    }
    return false;
}
