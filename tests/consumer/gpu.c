/* gpu: a program of somebody else's on the library for GPUs, as C and as C++; together with that
 * for MPI if WITH_MPI is defined. It needs no GPU: the plan is one to look at.
 */
#include <ring_attention_cuda.h>
#ifdef WITH_MPI
#include <ring_attention_mpi.h>
#endif
#include <stdio.h>

int main(int argc, char **argv)
{
    /* Whatever is called in a static library must be found when it is linked, if it is run or
     * not. */
    struct ra_config config = RA_CONFIG_INIT;
    struct ra_plan *plan = NULL;
    char error[RA_ERROR_SIZE] = "";
    cudaStream_t stream = NULL;
    if (argc > 1 && cudaStreamCreate(&stream) != cudaSuccess)
        return 1;
#ifdef WITH_MPI
    struct ra_link link;
    if (argc > 1 && ra_mpi_link(&link, MPI_COMM_WORLD, 0, config.timeout, error) != RA_OK)
        return 1;
#endif
    config.queries = 64;
    config.dim = 32;
    config.ring_size = 2;
    config.device = ra_cuda();
    enum ra_status status = ra_plan_create(&plan, &config, NULL, error);
    if (status == RA_OK && ra_cuda_forward(plan, NULL, stream) == RA_INVALID &&
        ra_wait(plan) == RA_OK)
        printf("%s on %d ranks\n", ra_version(), ra_plan_ranks(plan));
    else
        fprintf(stderr, "%s: %s\n", argv[0], error);
    ra_plan_destroy(plan);
    return status != RA_OK;
}
