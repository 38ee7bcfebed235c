/* ra_collective: waits of all ranks for each other, with an end.
 *
 * Chapter 10. New here: MPI's collectives hang if a rank has died or stopped; these do not, and
 * say which rank that is.
 */
#ifndef RA_COLLECTIVE_H
#define RA_COLLECTIVE_H

#include <stdbool.h>
#include "ra_link.h"
#include "ra_status.h"
#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Waits for a request that all ranks of comm have begun, and MPI has answered with `code`. `what`
 * is for the error: "keys of all ranks". False: it was not done after `timeout` seconds (0: no
 * limit), or MPI reports an error. What it uses must then stay. */
bool ra_collective_wait(MPI_Comm comm, int code, MPI_Request *request, double timeout,
                        const char *what, char error[RA_ERROR_SIZE]);

/* The same for the ranks of a link, which are those of comm: any of them may fail the link, and
 * ends the waits of all others. False: the link has failed, and says why. */
bool ra_collective_wait_link(const struct ra_link *link, MPI_Comm comm, int code,
                             MPI_Request *request, double timeout, const char *what);

#ifdef __cplusplus
}
#endif

#endif
