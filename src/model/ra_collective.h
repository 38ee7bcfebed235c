/* ra_collective: waits of all ranks for each other, with an end.
 *
 * Chapter 10. New here: MPI's collectives wait for ever for a rank that has died or stopped; these do
 * not.
 */
#ifndef RA_COLLECTIVE_H
#define RA_COLLECTIVE_H

#include <mpi.h>
#include <stdbool.h>

/* Waits for a request that all ranks of a communicator have begun. False: it was not done after
 * `timeout` seconds (0: this waits for ever), or MPI reports an error. What it uses must then stay. */
bool ra_collective_wait(MPI_Request *request, double timeout);

#endif
