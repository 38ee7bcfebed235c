/* ring_attention_cuda_mpi: the plan of ring_attention_cuda.h on the ranks of an MPI communicator.
 *
 * Chapter 11. In a library of its own, libringattn_cuda_mpi.
 */
#ifndef RING_ATTENTION_CUDA_MPI_H
#define RING_ATTENTION_CUDA_MPI_H

#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ra_mpi_plan_create, on the current device of each rank. MPI carries what the ranks tell each
 * other here, and messages only between GPUs that do not reach each other. */
RA_CHECKED enum ra_status ra_cuda_mpi_plan_create(struct ra_plan **plan,
                                                  const struct ra_config *config, MPI_Comm comm,
                                                  char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
