/* ra_cuda_reach: memory of other ranks. See ra_cuda_reach.h.
 *
 * Chapter 11. New here: memory of another process, which the driver lends.
 */
#include "ra_cuda_reach.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "ra_math.h"

/* Reads the first line of a file, or nothing. */
static void read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "r");
    line[0] = '\0';
    if (file && !fgets(line, size, file))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (file)
        fclose(file);
}

int64_t ra_cuda_reach_bytes(int64_t bytes)
{
    return ra_round_up(bytes, 2 << 20); /* whole pages */
}

void ra_cuda_address_write(struct ra_cuda_address *address, int device, char *memory)
{
    /* Each boot of a host has its own id, and each container its own names for processes. */
    char boot[64], space[60] = "";
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        space[0] = '\0';
    snprintf(address->host, sizeof address->host, "%s %s", boot, space);
    address->process = getpid();
    address->device = device;
    address->memory = memory;
    address->exported = memory && cudaIpcGetMemHandle(&address->handle, memory) == cudaSuccess;

    /* If the memory cannot be exported, `exported` says so. The error must not show in later
     * calls. */
    cudaGetLastError();
}

bool ra_cuda_address_same_process(const struct ra_cuda_address *a, const struct ra_cuda_address *b)
{
    return strcmp(a->host, b->host) == 0 && a->process == b->process;
}

/* The same for another process of this host. */
static void *open_memory(const struct ra_cuda_address *theirs, cudaError_t *code)
{
    void *memory = NULL;
    *code = cudaErrorNotSupported;
    if (theirs->exported)
        *code = cudaIpcOpenMemHandle(&memory, theirs->handle, cudaIpcMemLazyEnablePeerAccess);
    return *code == cudaSuccess ? memory : NULL;
}

char *ra_cuda_reach(const struct ra_cuda_address *mine, int rank,
                    const struct ra_cuda_address *theirs, int other, bool *opened, char why[160])
{
    char *memory = NULL;
    cudaError_t code;
    int can = 0;
    if (strcmp(mine->host, theirs->host) != 0) {
        snprintf(why, 160, "rank %d is not on the host of rank %d", other, rank);
    } else if (mine->process != theirs->process) {
        memory = open_memory(theirs, &code);
        *opened = memory != NULL;
        if (!memory)
            snprintf(why, 160, "rank %d does not reach the memory of rank %d: %.80s", rank, other,
                     cudaGetErrorString(code));
    } else {
        code = cudaDeviceCanAccessPeer(&can, mine->device, theirs->device);
        if (code == cudaSuccess && can)
            code = cudaDeviceEnablePeerAccess(theirs->device, 0);
        if (can && (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled))
            memory = theirs->memory;
        else
            snprintf(why, 160, "device %d does not reach the memory of device %d", mine->device,
                     theirs->device);
    }

    /* A failed attempt must not show as the error of a later call. */
    cudaGetLastError();
    return memory;
}
