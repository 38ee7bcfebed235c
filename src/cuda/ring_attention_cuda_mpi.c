/* ring_attention_cuda_mpi: the plan on the GPUs of the ranks of a communicator. See
 * ring_attention_cuda_mpi.h.
 *
 * Chapter 11. New here: a plan that MPI brings together, and then is not needed for.
 */
#include "ring_attention_cuda_mpi.h"
#include <stdio.h>
#include "ra_cuda.h"
#include "ra_mpi.h"

enum ra_status ra_cuda_mpi_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                       MPI_Comm comm, char error[RA_ERROR_SIZE])
{
    char text[RA_ERROR_SIZE] = "";
    enum ra_status status = ra_mpi_plan_make(plan, config, comm, text, ra_cuda_plan_build);
    if (status == RA_OK) {
        status = ra_cuda_plan_connect(*plan, &(*plan)->link, RA_OK, text);

        /* All plans are made, but the ranks cannot work together: all take theirs back. */
        if (status != RA_OK) {
            ra_plan_destroy(*plan);
            *plan = NULL;
        }
    }
    if (error && status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    return status;
}
