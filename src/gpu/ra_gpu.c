/* ra_gpu: the first call that failed on a model's GPU, and its share of the weights. See ra_gpu.h.
 *
 * Chapter 14.
 */
#include "ra_gpu.h"
#include <stdio.h>
#include <string.h>

void ra_gpu_note(struct ra_gpu *gpu, cudaError_t code, const char *call)
{
    if (code == cudaSuccess || gpu->code != cudaSuccess)
        return;
    gpu->code = code;
    snprintf(gpu->call, sizeof gpu->call, "%.*s", (int)strcspn(call, "("), call);
}

enum ra_status ra_gpu_status(struct ra_model *model)
{
    struct ra_gpu *gpu = model->own;
    if (gpu->code != cudaSuccess)
        return ra_model_fail(model, RA_DEVICE, "%s: %s", gpu->call, cudaGetErrorString(gpu->code));
    if (gpu->products && ra_products_error(gpu->products)[0])
        return ra_model_fail(model, RA_DEVICE, "%s", ra_products_error(gpu->products));
    return RA_OK;
}

bool ra_gpu_shards(const struct ra_model *model)
{
    return model->run.shard_optimizer && model->ranks > 1;
}

struct ra_gpu_piece ra_gpu_own_part(const struct ra_model *model, int piece)
{
    const struct ra_gpu *gpu = model->own;
    return ra_gpu_part(gpu->pieces[piece], model->rank, model->ranks);
}
