/* ra_collective: waits of all ranks for each other, with an end.
 *
 * Chapter 10. New here: MPI's collectives wait for ever for a rank that has died or stopped; these do
 * not.
 */
#ifndef RA_COLLECTIVE_H
#define RA_COLLECTIVE_H

#include <mpi.h>
#include <stdbool.h>
#include "ra_link.h"

/* Waits for a request that all ranks of a communicator have begun. False: it was not done after
 * `timeout` seconds (0: this waits for ever), or MPI reports an error. What it uses must then stay. */
bool ra_collective_wait(MPI_Request *request, double timeout);

/* The same for the ranks of a link, after MPI has said `code` when it began: any of them may fail the link,
 * and ends the waits of all others. False: the link has failed, and says why. `what` is for its text: "keys
 * of all ranks". */
bool ra_collective_wait_link(const struct ra_link *link, int code, MPI_Request *request,
                             double timeout, const char *what);

#endif
