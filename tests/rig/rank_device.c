/* rank_device: which GPU a rank of a benchmark has. See rank_device.h. */
#include "rank_device.h"
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

void rank_device_choose(const char *program, const char *shared)
{
    MPI_Comm machine;
    int devices = 0, here;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &here);
    MPI_Comm_free(&machine);
    cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaSuccess && devices > 0)
        status = cudaSetDevice(here % devices);
    int none = status != cudaSuccess || devices == 0, somewhere;
    MPI_Allreduce(&none, &somewhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (somewhere) {
        if (none)
            fprintf(stderr, "%s: no CUDA device: %s\n", program,
                    status != cudaSuccess ? cudaGetErrorString(status) : "none found");
        MPI_Finalize();
        exit(1);
    }
    if (here == devices)
        fprintf(stderr, "%s: there are more ranks than GPUs (%d): %s\n", program, devices, shared);
}
