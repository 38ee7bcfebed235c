/* stage_device: the GPU of a rank. See stage_device.h. */
#include "stage_device.h"

#include <cuda_runtime_api.h>
#include <mpi.h>

void stage_take_device(const struct stage *stage)
{
    MPI_Comm machine;
    int rank, devices = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &rank);
    MPI_Comm_free(&machine);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        stage_fail(stage, "no CUDA device: this program needs an NVIDIA GPU and its driver; "
                          "nvidia-smi shows what there is");
    cudaError_t code = cudaSetDevice(rank % devices);
    if (code != cudaSuccess)
        stage_fail(stage, "the choice of a GPU: %s", cudaGetErrorString(code));
}
