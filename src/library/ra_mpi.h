/* ra_mpi: how a plan of any kind is made on the ranks of a communicator. Internal.
 *
 * Chapter 11.
 */
#ifndef RA_MPI_H
#define RA_MPI_H

#include "ra_plan.h"
#include "ring_attention_mpi.h"

/* ra_mpi_plan_create with this builder. */
enum ra_status ra_mpi_plan_make(struct ra_plan **plan, const struct ra_config *config,
                                MPI_Comm comm, char *error, ra_plan_builder *build);

#endif
