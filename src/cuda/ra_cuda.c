/* ra_cuda: the plan's device, and the first CUDA call that failed on it. See ra_cuda.h.
 *
 * Chapter 11.
 */
#include "ra_cuda.h"
#include <stdio.h>
#include <string.h>

int ra_cuda_enter(const struct ra_plan *plan)
{
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(ra_cuda_of(plan)->device);
    return before;
}

bool ra_cuda_ok(const struct ra_plan *plan)
{
    return ra_cuda_of(plan)->code == cudaSuccess && plan->status == RA_OK;
}

bool ra_cuda_note(struct ra_plan *plan, cudaError_t code, const char *call)
{
    struct ra_cuda *cuda = plan->own;
    if (code != cudaSuccess && cuda->code == cudaSuccess) {
        cuda->code = code;
        cuda->failed_hop = cuda->hop;
        snprintf(cuda->call, sizeof cuda->call, "%.*s", (int)strcspn(call, "("), call);
    }
    return ra_cuda_ok(plan);
}

enum ra_status ra_cuda_error(const struct ra_plan *plan, char *error)
{
    snprintf(error, RA_ERROR_SIZE, "%s: %s", ra_cuda_of(plan)->call,
             cudaGetErrorString(ra_cuda_of(plan)->code));
    return RA_DEVICE;
}

struct ra_kernel ra_cuda_kernel(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    return (struct ra_kernel){.batch = c->batch,
                              .heads = c->heads,
                              .key_heads = c->key_heads,
                              .dim = c->dim,
                              .dim_value = c->dim_value,
                              .head_map = c->head_map,
                              .score = plan->score,
                              .deterministic = c->deterministic,
                              .semaphores = ra_cuda_of(plan)->semaphores};
}
