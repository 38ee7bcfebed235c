/* ring_attention_mpi: a plan of ring_attention.h on the ranks of an MPI communicator.
 *
 * Chapter 08. In a library of its own, libringattn_mpi, so that libringattn needs no MPI. All
 * functions here are collective: every rank of the communicator, or of the ring, calls them
 * together. Threads that use plans at the same time need MPI_THREAD_MULTIPLE.
 */
#ifndef RING_ATTENTION_MPI_H
#define RING_ATTENTION_MPI_H

/* MPI's old classes for C++ would have to be linked, too; include mpi.h before this to have
 * them. */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include "ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a link between the ranks of `comm`, for ra_plan_create. `comm` stays the caller's: it is
 * duplicated, once. Ranks 0..P-1 of it are one ring, the next P another, P = ring_size (0: all
 * ranks are one ring). Rings are independent. All ranks of `comm` call this together and give the
 * same ring size; if they do not, or one does not come within `timeout` seconds (0: they wait for
 * ever), all fail. After RA_LOST `comm` must not be freed: MPI may still be duplicating it. A plan
 * passes its config.timeout to the link. */
RA_CHECKED enum ra_status ra_mpi_link(struct ra_link *link, MPI_Comm comm, int ring_size,
                                      double timeout, char error[RA_ERROR_SIZE]);

/* Makes the link of ra_mpi_link from a communicator as a number: in Fortran comm, or comm%MPI_VAL
 * of mpi_f08; in Python comm.py2f() of mpi4py. A caller without struct ra_link gives 256 bytes, at
 * an address that 8 divides. */
RA_CHECKED enum ra_status ra_mpi_link_f(struct ra_link *link, MPI_Fint comm, int ring_size,
                                        double timeout, char error[RA_ERROR_SIZE]);

/* Shards a whole that one rank has: rank `root` of each ring gives every other one its rows.
 * `whole` is read there alone. Arguments as in ra_shard, the same on all ranks of the ring. After
 * RA_LOST a large row that was on its way may still be read from `whole` or written to `local`. */
RA_CHECKED enum ra_status ra_mpi_scatter(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                         int64_t row_bytes, int root, const void *whole,
                                         void *local);

/* Collects a whole on one rank, as ra_mpi_scatter deals it: rank `root` of each ring gets the rows
 * of all. */
RA_CHECKED enum ra_status ra_mpi_gather(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                        int64_t row_bytes, int root, const void *local,
                                        void *whole);

#ifdef __cplusplus
}
#endif

#endif
