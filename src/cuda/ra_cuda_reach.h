/* ra_cuda_reach: how a rank makes the memory of another one that it can write to. Internal.
 *
 * Chapter 11.
 */
#ifndef RA_CUDA_REACH_H
#define RA_CUDA_REACH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* What a rank says of itself: where its memory is. */
struct ra_cuda_address {
    char host[128]; /* the same in all processes that can name each other */
    int64_t process;
    int device;
    bool exported;
    char *memory; /* as its own process calls it; NULL: nobody is to write there */
    cudaIpcMemHandle_t handle;
};

/* Returns how long an allocation is that others are to reach, and that has so many bytes at least:
 * CUDA shares whole pages between processes. */
int64_t ra_cuda_reach_bytes(int64_t bytes);

/* Writes the address of an allocation of `device`, the current one. */
void ra_cuda_address_write(struct ra_cuda_address *address, int device, char *memory);

/* Tells whether these are the addresses of threads of one process. */
bool ra_cuda_address_same_process(const struct ra_cuda_address *a, const struct ra_cuda_address *b);

/* Returns where rank `rank` can write to the memory of rank `other`; *opened: by
 * cudaIpcOpenMemHandle, so that it is to be closed. NULL: nowhere, and why has the reason. */
char *ra_cuda_reach(const struct ra_cuda_address *mine, int rank,
                    const struct ra_cuda_address *theirs, int other, bool *opened, char why[160]);

#endif
