/* cuda_rig: what programs that measure GPUs share. See cuda_rig.h. */
#include "cuda_rig.h"
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"

struct rig rig;

void rig_begin(const char *program, int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rig.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rig.ranks);
    rig.program = program;
}

void rig_choose_device(const char *shared)
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
            fprintf(stderr, "%s: no CUDA device: %s\n", rig.program,
                    status != cudaSuccess ? cudaGetErrorString(status) : "none found");
        MPI_Finalize();
        exit(1);
    }
    if (here == devices)
        fprintf(stderr, "%s: there are more ranks than GPUs (%d): %s\n", rig.program, devices,
                shared);
    must(cudaStreamCreate(&rig.stream), "cudaStreamCreate");
}

struct ra_plan *rig_plan(const struct ra_config *config)
{
    struct ra_plan *plan;
    struct ra_link link;
    struct ra_config on_gpu = *config;
    char error[RA_ERROR_SIZE];
    on_gpu.device = ra_cuda();
    enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, 0, config->timeout, error);
    if (status == RA_OK)
        status = ra_plan_create(&plan, &on_gpu, &link, error);
    if (status != RA_OK)
        stop(ra_status_text(status), error);
    return plan;
}

void rig_end(void)
{
    must(cudaStreamDestroy(rig.stream), "cudaStreamDestroy");
    MPI_Finalize();
}

void stop(const char *what, const char *why)
{
    fprintf(stderr, "%s: rank %d: %s: %s\n", rig.program, rig.rank, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* NVML comes with the driver, not with the toolkit: it is looked for when the program runs. */
struct rig_state rig_read_state(void)
{
    static int (*clock)(void *, int, unsigned *), (*power)(void *, unsigned *);
    static void *device;
    static bool asked;
    if (!asked) {
        asked = true;
        char bus[32];
        int id;
        void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        int (*start)(void) = library ? (int (*)(void))dlsym(library, "nvmlInit_v2") : NULL;
        int (*find)(const char *, void **) =
            library
                ? (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2")
                : NULL;
        if (start && find && start() == 0 && cudaGetDevice(&id) == cudaSuccess &&
            cudaDeviceGetPCIBusId(bus, sizeof bus, id) == cudaSuccess && find(bus, &device) == 0) {
            clock = (int (*)(void *, int, unsigned *))dlsym(library, "nvmlDeviceGetClockInfo");
            power = (int (*)(void *, unsigned *))dlsym(library, "nvmlDeviceGetPowerUsage");
        }
    }
    enum { MULTIPROCESSORS = 1 };
    unsigned megahertz = 0, milliwatts = 0;
    if (clock && clock(device, MULTIPROCESSORS, &megahertz))
        megahertz = 0;
    if (power && power(device, &milliwatts))
        milliwatts = 0;
    return (struct rig_state){1e-3 * megahertz, 1e-3 * milliwatts};
}

void must(cudaError_t status, const char *what)
{
    if (status != cudaSuccess)
        stop(what, cudaGetErrorString(status));
}

void must_ra(enum ra_status status, const struct ra_plan *plan)
{
    if (status != RA_OK)
        stop(ra_status_text(status), ra_plan_error(plan));
}

void *on_host(int64_t count, size_t size)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    if (!memory)
        stop("memory", "the host has none left");
    return memory;
}
