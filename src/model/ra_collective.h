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

/* What ranks tell each other of one that cannot take part. MPI may still write it when a wait has
 * failed, so it lies in what the ranks do together. */
struct ra_refusal {
    int64_t first, status; /* first: the rank; as many as there are ranks: none */
    char text[RA_ERROR_SIZE];
};

/* Tells all ranks of comm, which call this together, when one of them cannot go on, so that none
 * waits for it in vain. Each comes with its status and, unless that is RA_OK, with its text in
 * error. All return RA_OK if all came with that; otherwise the status of the first rank that did
 * not, with its number and its text in error. *lost: a rank did not come within `timeout` seconds
 * (0: no limit), and RA_LOST is returned; *refusal must then stay. */
RA_CHECKED enum ra_status ra_collective_agree(MPI_Comm comm, double timeout,
                                              struct ra_refusal *refusal, enum ra_status status,
                                              bool *lost, char error[RA_ERROR_SIZE]);

/* Waits for a request that all ranks of comm have begun, and MPI has answered with `code`. `what`
 * is for the error: "keys of all ranks". False: it was not done after `timeout` seconds (0: no
 * limit), or MPI reports an error. What it uses must then stay. */
bool ra_collective_wait(MPI_Comm comm, int code, MPI_Request *request, double timeout,
                        const char *what, char error[RA_ERROR_SIZE]);

/* Waits as ra_collective_wait does, for the ranks of a link, which are those of comm: any of them
 * may fail the link, and ends the waits of all others. False: the link has failed, and says why. */
bool ra_collective_wait_link(const struct ra_link *link, MPI_Comm comm, int code,
                             MPI_Request *request, double timeout, const char *what);

#ifdef __cplusplus
}
#endif

#endif
