/* ra_gpu_cache: keys and values of a text on GPUs, and attention of new tokens over them. See
 * ra_gpu.h.
 *
 * Chapter 14. New here: ra_tree.h's decoding with keys that are split twice, among the blocks of a
 * GPU and among ranks. Ranks gather each other's carries, and all combine them in the same order.
 */
#include <math.h>
#include "ra_gpu.h"
#include "ra_heads.h"
#include "ra_kernel.h"
#include "ra_math.h"

bool ra_gpu_decodes(const struct ra_model *model)
{
    return !model->plans[0];
}

int64_t ra_gpu_cache_rows(const struct ra_model *model)
{
    return ra_ceiling_division(model->run.length, model->ranks);
}

/* A carry of all heads of all tokens, in whole lines. */
int64_t ra_gpu_carry_numbers(const struct ra_model *model)
{
    const struct ra_model_config *c = &model->config;
    return ra_round_up(model->rows * c->heads * (c->head_dim + 2), RA_PIECE_LINE);
}

/* Keys or values of a layer's rows, where they stand beside the queries. */
static struct ra_tensor part_of_rows(const struct ra_model *model, int64_t layer, bool values)
{
    const struct ra_model_config *c = &model->config;
    const struct ra_gpu *gpu = model->own;
    int64_t first = c->heads * c->head_dim + (values ? c->key_heads * c->head_dim : 0);
    char *rows = gpu->layers[layer].qkv;
    return (struct ra_tensor){rows + first * ra_type_bytes(gpu->type), gpu->type,
                              model->n * ra_qkv_width(c), ra_qkv_width(c), c->head_dim};
}

struct ra_tensor ra_gpu_kept(const struct ra_model *model, int64_t layer, bool values)
{
    return part_of_rows(model, layer, values);
}

/* Copies `count` rows of keys or values, of which the first is number `first` and the next `step`
 * later, into the cache from row `to` on. */
static void copy_rows(struct ra_model *model, void *cache, struct ra_tensor from, int64_t first,
                      int64_t step, int64_t count, int64_t to)
{
    const struct ra_model_config *c = &model->config;
    struct ra_gpu *gpu = model->own;
    enum ra_type type = model->run.cache_type;
    int64_t rows = ra_gpu_cache_rows(model);
    struct ra_tensor place = {(char *)cache + to * c->head_dim * ra_type_bytes(type), type,
                              c->key_heads * rows * c->head_dim, c->head_dim, rows * c->head_dim};
    from.data = (char *)from.data + first * from.row * ra_type_bytes(from.type);
    from.row *= step;
    if (count > 0)
        RA_GPU(gpu, ra_kernel_copy(place, from, 1, count, c->key_heads, c->head_dim, gpu->stream));
}

/* How many of the positions before this one are a rank's own. */
static int64_t rows_before(const struct ra_model *model, int64_t position)
{
    return ra_ceiling_division(position - model->rank, model->ranks);
}

enum ra_status ra_gpu_fill(struct ra_model *model, int64_t layer, int64_t length,
                           struct ra_tensor k, struct ra_tensor v)
{
    struct ra_gpu *gpu = model->own;
    int64_t rows = rows_before(model, length);
    gpu->fresh = NULL; /* another text may have other weights in the same array */
    copy_rows(model, gpu->layers[layer].keys, k, 0, 1, rows, 0);
    copy_rows(model, gpu->layers[layer].values, v, 0, 1, rows, 0);
    RA_GPU(gpu, cudaStreamSynchronize(gpu->stream));
    return ra_gpu_status(model);
}

/* This rank's share of the new tokens' keys and values. */
static void keep(struct ra_model *model, int64_t layer)
{
    const struct ra_gpu_layer *kept = &((struct ra_gpu *)model->own)->layers[layer];
    int64_t row = rows_before(model, model->first), P = model->ranks;
    int64_t count = rows_before(model, model->first + model->n) - row;
    int64_t first = row * P + model->rank - model->first;
    copy_rows(model, kept->keys, part_of_rows(model, layer, false), first, P, count, row);
    copy_rows(model, kept->values, part_of_rows(model, layer, true), first, P, count, row);
}

/* What the new tokens meet. */
static struct ra_decode decode_of(const struct ra_model *model, int64_t layer)
{
    const struct ra_model_config *c = &model->config;
    const struct ra_gpu *gpu = model->own;
    const struct ra_gpu_layer *kept = &gpu->layers[layer];
    double plain = 1 / sqrt((double)c->head_dim);
    return (struct ra_decode){.tokens = model->rows,
                              .heads = c->heads,
                              .key_heads = c->key_heads,
                              .D = c->head_dim,
                              .stride = ra_qkv_width(c),
                              .q = kept->qkv,
                              .type = gpu->type,
                              .k = kept->keys,
                              .v = kept->values,
                              .cache = model->run.cache_type,
                              .rows = ra_gpu_cache_rows(model),
                              .first = model->first,
                              .lookback = ra_min(c->lookback[layer], model->run.length),
                              .rank = model->rank,
                              .ranks = model->ranks,
                              .interleaved = c->head_map == RA_INTERLEAVED,
                              .scale = (float)(c->attention_scale > 0 ? c->attention_scale : plain),
                              .softcap = (float)c->softcap};
}

enum ra_status ra_gpu_decode(struct ra_model *model, int64_t layer)
{
    const struct ra_model_config *c = &model->config;
    struct ra_gpu *gpu = model->own;
    const struct ra_gpu_layer *kept = &gpu->layers[layer];
    int64_t rows = model->rows * c->heads, width = c->head_dim + 2;
    int64_t size = ra_gpu_carry_numbers(model);
    float *own = gpu->carries + model->rank * size, *splits = gpu->carries + model->ranks * size;
    struct ra_decode decode = decode_of(model, layer);
    int64_t parts = ra_kernel_decode_splits(rows_before(model, model->first + model->n),
                                            model->rows, c->key_heads);
    keep(model, layer);
    RA_GPU(gpu, ra_kernel_decode(&decode, splits, gpu->stream));
    if (model->ranks == 1) {
        RA_GPU(gpu, ra_kernel_combine(rows, c->head_dim, parts, rows * width, splits, gpu->type,
                                      kept->o, NULL, gpu->stream));
        return ra_gpu_status(model);
    }
    RA_GPU(gpu, ra_kernel_combine(rows, c->head_dim, parts, rows * width, splits, gpu->type, NULL,
                                  own, gpu->stream));
    struct ra_gpu_piece all = {0, model->ranks * size};
    ra_gpu_ranks_begin(gpu->ranks, gpu->carries, all, false, true);
    ra_gpu_ranks_join(gpu->ranks);
    RA_GPU(gpu, ra_kernel_combine(rows, c->head_dim, model->ranks, size, gpu->carries, gpu->type,
                                  kept->o, NULL, gpu->stream));
    return ra_gpu_status(model);
}
