/* ra_gpu_model: a model's memory on a GPU. See ring_attention_model_cuda.h; ra_gpu_step.c computes.
 *
 * Chapter 14.
 */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_arena.h"
#include "ra_gpu.h"
#include "ra_math.h"
#include "ring_attention_cuda.h"

/* Logits that are there at a time, at most, or a little more; and how many rows at least. */
enum { MOST_LOGITS = 1 << 26, LEAST_ROWS = 128 };

/* ---- Arrays. */

static float *take_array(int64_t count)
{
    void *array = NULL;
    size_t bytes = (size_t)(count > 0 ? count : 1) * sizeof(float);
    if (cudaMalloc(&array, bytes) != cudaSuccess)
        return NULL;
    if (cudaMemset(array, 0, bytes) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess)
        return array; /* models compute on streams of their own */
    cudaFree(array);
    return NULL;
}

static void give_back_array(float *array)
{
    cudaFree(array);
}

static bool copy(void *to, const void *from, int64_t count, enum cudaMemcpyKind kind)
{
    return cudaDeviceSynchronize() == cudaSuccess &&
           cudaMemcpy(to, from, (size_t)count * sizeof(float), kind) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
}

static bool put_array(float *array, const float *from, int64_t count)
{
    return copy(array, from, count, cudaMemcpyHostToDevice);
}

static bool get_array(const float *array, float *to, int64_t count)
{
    return copy(to, array, count, cudaMemcpyDeviceToHost);
}

/* ---- Several ranks. */

/* Cuts the weights into pieces, as the backward comes to them; counts only, if there is no place.
 * Returns the length of the longest. */
static int64_t cut(const struct ra_model *model, struct ra_gpu *gpu)
{
    const struct ra_model_config *c = &model->config;
    const float *all = model->own; /* any address will do */
    int64_t end = ra_parameter_numbers(c), longest = 0;
    gpu->piece_count = 0;
    for (int64_t l = c->depth - 1; l >= -1; l--) {
        int64_t first = l < 0 ? 0 : ra_places_of_layer(c, all, l).attention.gamma - all;
        gpu->segments[c->depth - 1 - l] = gpu->piece_count;
        for (int64_t at = first; at < end; at += RA_PIECE) {
            struct ra_gpu_piece piece = {at, ra_min(at + RA_PIECE, end)};
            longest = ra_max(longest, piece.end - piece.first);
            if (gpu->pieces)
                gpu->pieces[gpu->piece_count] = piece;
            gpu->piece_count++;
        }
        end = first;
    }
    gpu->segments[c->depth + 1] = gpu->piece_count;
    return longest;
}

/* Takes what ranks need to add up gradients, or to gather carries; alone they need nothing. */
static void take_ranks(const struct ra_model *model, struct ra_gpu *gpu)
{
    bool decodes = ra_gpu_decodes(model);
    if (model->ranks == 1 || (model->run.forward_only && !decodes) || gpu->code != cudaSuccess)
        return;
    int64_t longest = decodes ? model->ranks * ra_gpu_carry_numbers(model) : cut(model, gpu);
    gpu->pieces = calloc((size_t)gpu->piece_count + 1, sizeof *gpu->pieces);
    gpu->sums = calloc((size_t)(model->ranks * gpu->piece_count + 1), sizeof *gpu->sums);
    if (!decodes && gpu->pieces)
        cut(model, gpu);
    gpu->ranks = ra_gpu_ranks_create(model->comm, longest, model->run.timeout, gpu->stream);
    if (!gpu->pieces || !gpu->sums || !gpu->ranks)
        ra_gpu_note(gpu, cudaErrorMemoryAllocation, "ra_gpu_ranks_create");
}

static const char *transport(const struct ra_model *model)
{
    const struct ra_gpu *gpu = model->own;
    return gpu->ranks ? ra_gpu_ranks_transport(gpu->ranks) : NULL;
}

/* ---- What AdamW knows, whole or in shares: this rank's parts, one after the other. */

static int64_t moments(const struct ra_model *model)
{
    const struct ra_gpu *gpu = model->own;
    int64_t numbers = 0;
    if (!ra_gpu_shards(model))
        return ra_parameter_numbers(&model->config);
    for (int p = 0; p < gpu->piece_count; p++) {
        struct ra_gpu_piece own = ra_gpu_own_part(model, p);
        numbers += own.end - own.first;
    }
    return numbers;
}

/* Copies this rank's share to its places in an array of the host, or from there. */
static bool copy_share(const struct ra_model *model, float *share, float *host, bool up)
{
    const struct ra_gpu *gpu = model->own;
    bool done = true;
    for (int p = 0; p < gpu->piece_count && done; p++) {
        struct ra_gpu_piece own = ra_gpu_own_part(model, p);
        int64_t count = own.end - own.first;
        done = up ? put_array(share, host + own.first, count)
                  : get_array(share, host + own.first, count);
        share += count;
    }
    return done;
}

static enum ra_status put_moments(struct ra_model *model, const float *from, float *array)
{
    bool done = ra_gpu_shards(model) ? copy_share(model, array, (float *)from, true)
                                     : put_array(array, from, ra_parameter_numbers(&model->config));
    return done ? RA_OK : ra_model_fail(model, RA_DEVICE, "the GPU has failed at a copy");
}

/* Gives all ranks all parts of an array of the host, piece by piece. */
static enum ra_status gather_parts(struct ra_model *model, float *all)
{
    const struct ra_gpu *gpu = model->own;
    int W = model->ranks, *counts = calloc(2 * (size_t)W, sizeof *counts), *places = counts + W;
    enum ra_status status = counts ? RA_OK : RA_OUT_OF_MEMORY;
    for (int p = 0; p < gpu->piece_count && status == RA_OK; p++) {
        MPI_Request request;
        for (int r = 0; r < W; r++) {
            struct ra_gpu_piece part = ra_gpu_part(gpu->pieces[p], r, W);
            counts[r] = (int)(part.end - part.first);
            places[r] = (int)(part.first - gpu->pieces[p].first);
        }
        int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, all + gpu->pieces[p].first, counts,
                                   places, MPI_FLOAT, model->comm, &request);
        status = ra_model_await(model, code, &request, "the means of all ranks");
    }
    if (status != RA_LOST) /* MPI may still read them */
        free(counts);
    return status;
}

static enum ra_status get_moments(struct ra_model *model, const float *array, float *to)
{
    bool shards = ra_gpu_shards(model);
    bool done = shards ? copy_share(model, (float *)array, to, false)
                       : get_array(array, to, ra_parameter_numbers(&model->config));
    if (!done)
        return ra_model_fail(model, RA_DEVICE, "the GPU has failed at a copy");
    return shards ? gather_parts(model, to) : RA_OK;
}

/* ---- A model's memory. */

static void *take(struct ra_arena *arena, int64_t count, int64_t size)
{
    return ra_arena_take(arena, count * size);
}

static void lay_out_batch(const struct ra_model *model, struct ra_arena *arena,
                          struct ra_gpu_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, n = model->n, grouped = model->run.forward_only ? 0 : T;
    batch->tokens = take(arena, T, sizeof(int32_t));
    batch->labels = take(arena, T, sizeof(int32_t));
    batch->first = take(arena, grouped + 1, sizeof(int32_t));
    batch->key = take(arena, grouped, sizeof(int32_t));
    batch->order = take(arena, grouped, sizeof(int32_t));
    batch->mask = take(arena, model->run.has_mask ? T : 0, 1);
    if (c->position == RA_POSITIONS_ROTARY) {
        batch->cosines = take(arena, n * c->head_dim / 2, sizeof(float));
        batch->sines = take(arena, n * c->head_dim / 2, sizeof(float));
        return;
    }
    batch->places = take(arena, n, sizeof(int32_t));
    batch->place_first = take(arena, grouped + 1, sizeof(int32_t));
    batch->place_key = take(arena, grouped, sizeof(int32_t));
    batch->place_order = take(arena, grouped, sizeof(int32_t));
}

static void lay_out(const struct ra_model *model, struct ra_gpu *gpu, struct ra_arena *arena)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim, size = ra_type_bytes(gpu->type);
    int64_t query = c->heads * c->head_dim, qkv = ra_qkv_width(c), up = ra_feed_width(c);
    bool share = model->run.recompute || model->run.forward_only;
    for (int64_t l = 0; l <= c->depth; l++) {
        struct ra_gpu_layer *layer = &gpu->layers[l];
        if (l > 0 && share)
            *layer = gpu->layers[0];
        if (l < c->depth && ra_gpu_decodes(model)) {
            int64_t cache = c->key_heads * ra_gpu_cache_rows(model) * c->head_dim;
            layer->keys = take(arena, cache, ra_type_bytes(model->run.cache_type));
            layer->values = take(arena, cache, ra_type_bytes(model->run.cache_type));
        }
        if (l < 2 || !model->run.forward_only)
            layer->x = take(arena, T * dim, sizeof(float));
        else
            layer->x = gpu->layers[l - 2].x;
        if (l < c->depth && (l == 0 || !share || model->run.keep_keys))
            layer->qkv = take(arena, T * qkv, size);
        if (l == c->depth || (l > 0 && share))
            continue;
        layer->raw = take(arena, c->head_norm ? T * (query + c->key_heads * c->head_dim) : 0, size);
        layer->o = take(arena, T * query, size);
        layer->lse = take(arena, T * c->heads, sizeof(float));
        layer->mid = take(arena, T * dim, sizeof(float));
        layer->up = take(arena, T * up, size);
    }
    gpu->normal = take(arena, T * dim, size);
    gpu->gradient = take(arena, T * dim, sizeof(float));
    gpu->rounded_gradient =
        gpu->type == RA_FLOAT32 ? (void *)gpu->gradient : take(arena, T * dim, size);
    gpu->wide[0] = take(arena, T * ra_max(c->hidden, query), size);
    gpu->wide[1] = take(arena, T * ra_max(c->hidden, qkv), size);
    gpu->wide[2] = c->feed == RA_FEED_GELU ? gpu->wide[0] : take(arena, T * up, size);
    gpu->block = ra_min(T, ra_max(LEAST_ROWS, MOST_LOGITS / c->vocabulary / 128 * 128));
    gpu->logits = take(arena, gpu->block * c->vocabulary, sizeof(float));
    gpu->losses = take(arena, T, sizeof(float));
    int64_t widest = ra_max(ra_max(dim, qkv), ra_max(up, c->logits_bias ? c->vocabulary : 0));
    gpu->scratch = take(arena, ra_kernel_sum_scratch(widest), sizeof(float));
    gpu->numbers =
        take(arena, RA_GPU_PARTS + gpu->piece_count + RA_SQUARES_SCRATCH, sizeof(double));
    gpu->squares = gpu->numbers + RA_GPU_PARTS + gpu->piece_count;
    if (gpu->type != RA_FLOAT32)
        gpu->rounded = take(arena, ra_parameter_numbers(c), size);
    if (ra_gpu_decodes(model))
        gpu->carries =
            take(arena,
                 model->ranks * ra_gpu_carry_numbers(model) +
                     ra_kernel_decode_carries(ra_gpu_cache_rows(model), T, c->key_heads) *
                         c->heads * (c->head_dim + 2),
                 sizeof(float));
    gpu->starts = take(arena, ra_parameter_count(c), sizeof *gpu->starts);
    gpu->decays = take(arena, ra_parameter_count(c), sizeof *gpu->decays);
    lay_out_batch(model, arena, &gpu->batch);
}

/* Tells the device which weights decay: those of matrices. */
static void upload_arrays(const struct ra_model *model, struct ra_gpu *gpu)
{
    int count = ra_parameter_count(&model->config);
    for (int i = 0; i < count; i++) {
        struct ra_parameter x = ra_parameter(&model->config, i);
        bool decays = x.columns > 0;
        RA_GPU(gpu, cudaMemcpy(gpu->starts + i, &x.first, sizeof x.first, cudaMemcpyHostToDevice));
        RA_GPU(gpu, cudaMemcpy(gpu->decays + i, &decays, sizeof decays, cudaMemcpyHostToDevice));
    }
}

/* Memory begins as NaN: what nobody wrote shows. */
static void take_memory(struct ra_model *model)
{
    struct ra_gpu *gpu = model->own;
    const struct ra_model_config *c = &model->config;
    struct ra_arena device = {.line = 256}, host = {.line = 256};
    int64_t half = model->n * c->head_dim / 2;
    lay_out(model, gpu, &device);
    for (int i = 0; i < 2; i++)
        lay_out_batch(model, &host, &gpu->staged[i]);
    gpu->results = take(&host, RA_GPU_PARTS + gpu->piece_count, sizeof(double));
    RA_GPU(gpu, cudaMalloc((void **)&device.start, (size_t)device.used));
    RA_GPU(gpu, cudaHostAlloc((void **)&host.start, (size_t)host.used, cudaHostAllocDefault));
    gpu->memory = device.start;
    gpu->pinned = host.start;
    model->bytes = device.used + ra_products_bytes() + (int64_t)sizeof *model;
    RA_GPU(gpu, cudaMemset(gpu->memory, 0xFF, (size_t)device.used));
    if (gpu->code != cudaSuccess)
        return;
    device.used = host.used = 0;
    lay_out(model, gpu, &device);
    for (int i = 0; i < 2; i++)
        lay_out_batch(model, &host, &gpu->staged[i]);
    gpu->results = take(&host, RA_GPU_PARTS + gpu->piece_count, sizeof(double));
    upload_arrays(model, gpu);

    /* What ra_model_take writes. */
    int64_t groups = model->run.forward_only ? 0 : ra_max(c->vocabulary, c->longest);
    gpu->counts = malloc((size_t)(groups + 1) * sizeof *gpu->counts);
    model->positions = malloc((size_t)(model->n + 1) * sizeof *model->positions);
    model->memory = malloc((size_t)(2 * half + 1) * sizeof *model->memory);
    model->cosines = model->memory;
    model->sines = model->memory ? model->memory + half : NULL;
    if (!gpu->counts || !model->positions || !model->memory)
        ra_gpu_note(gpu, cudaErrorMemoryAllocation, "malloc");
}

static enum ra_status refuse(struct ra_model *model)
{
    const struct ra_model_config *c = &model->config;
    const struct ra_model_run *run = &model->run;
    if (run->type != RA_FLOAT32 && run->type != RA_BFLOAT16)
        return ra_model_fail(model, RA_INVALID,
                             "type is %d: a model on a GPU computes in float32 or bfloat16",
                             (int)run->type);
    if (run->gather)
        return ra_model_fail(model, RA_INVALID,
                             "gather: keys of a model on a GPU go round the ring: leave it out");
    if (!ra_kernel_takes_norm(c->dim))
        return ra_model_fail(model, RA_INVALID,
                             "dim is %" PRId64 ": on a GPU at most 8192, or 2048 if that is no "
                             "multiple of 4",
                             c->dim);
    const char *missing = c->norm == RA_NORM_RMS_PLUS_ONE ? "norm rms_plus_one"
                          : c->feed == RA_FEED_GEGLU      ? "feed geglu"
                          : c->post_norm                  ? "post_norm"
                          : c->logits_softcap != 0        ? "logits_softcap"
                          : c->embedding_scale != 1       ? "embedding_scale"
                          : c->sinks                      ? "sinks"
                                                          : NULL;
    if (missing)
        return ra_model_fail(model, RA_INVALID, "%s: so far a model on a GPU has no such part",
                             missing);
    if (c->head_norm && c->head_dim % 2)
        return ra_model_fail(model, RA_INVALID,
                             "head_dim is %" PRId64 ": with head_norm a GPU takes even ones",
                             c->head_dim);
    if (run->shard_optimizer && run->forward_only)
        return ra_model_fail(model, RA_INVALID,
                             "shard_optimizer is true, and so is forward_only: there is no "
                             "optimizer");
    if (ra_gpu_decodes(model) && run->cache_type != RA_FLOAT32 && run->cache_type != RA_BFLOAT16 &&
        run->cache_type != RA_FLOAT16)
        return ra_model_fail(model, RA_INVALID,
                             "cache_type is %d: give RA_FLOAT32, RA_BFLOAT16 or RA_FLOAT16",
                             (int)run->cache_type);
    if (c->head_dim > RA_MOST_HEAD_DIM)
        return ra_model_fail(model, RA_INVALID, "head_dim is %" PRId64 ": on a GPU at most %d",
                             c->head_dim, RA_MOST_HEAD_DIM);
    return RA_OK;
}

/* All that a rank makes by itself. */
static enum ra_status make(struct ra_model *model)
{
    enum ra_status status = refuse(model);
    if (status != RA_OK)
        return status;
    struct ra_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for a model");
    model->own = gpu;
    gpu->type = model->run.type;
    RA_GPU(gpu, cudaGetDevice(&gpu->device));
    RA_GPU(gpu, cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++)
        RA_GPU(gpu, cudaEventCreateWithFlags(&gpu->uploaded[i], cudaEventDisableTiming));
    cut(model, gpu);
    take_memory(model);
    take_ranks(model, gpu);
    status = ra_gpu_status(model);
    return status == RA_OK
               ? ra_products_create(&gpu->products, gpu->type, gpu->stream, model->error)
               : status;
}

/* Those of all ranks, who then find out how they add up gradients. */
static enum ra_status create(struct ra_model *model)
{
    char error[RA_ERROR_SIZE];
    enum ra_status status = ra_model_agree(model, make(model));
    struct ra_gpu *gpu = model->own;
    if (status != RA_OK || !gpu->ranks)
        return status;
    status = ra_gpu_ranks_connect(gpu->ranks, model->run.transport, error);
    if (status != RA_OK)
        return ra_model_fail(model, status, "%s", error);
    model->bytes += ra_gpu_ranks_bytes(gpu->ranks);
    return RA_OK;
}

static void destroy(struct ra_model *model)
{
    struct ra_gpu *gpu = model->own;
    if (gpu->ranks && (model->status != RA_OK || ra_gpu_status(model) != RA_OK))
        ra_gpu_ranks_stop(gpu->ranks); /* others may be in another call than the last */
    bool lost = !ra_gpu_ranks_destroy(gpu->ranks);
    if (lost)
        (void)ra_model_note(model, RA_LOST);
    if (gpu->stream)
        cudaStreamSynchronize(gpu->stream);
    ra_products_destroy(gpu->products);
    for (int i = 0; i < 2; i++)
        if (gpu->uploaded[i])
            cudaEventDestroy(gpu->uploaded[i]);
    if (gpu->stream)
        cudaStreamDestroy(gpu->stream);
    cudaFree(gpu->memory);
    cudaFreeHost(gpu->pinned);
    ra_gpu_end_trace(gpu);
    free(gpu->counts);
    free(gpu->pieces);
    if (!lost) /* or MPI may still write there */
        free(gpu->sums);
    free(model->positions);
    free(gpu);
    model->own = NULL;
}

const struct ra_model_device *ra_model_cuda(void)
{
    static const struct ra_model_device device = {
        .attention = ra_cuda,
        .take = take_array,
        .give_back = give_back_array,
        .put = put_array,
        .get = get_array,
        .learn = ra_gpu_learn,
        .moments = {moments, put_moments, get_moments},
        .transport = transport,
        .cache = {ra_gpu_kept, ra_gpu_fill},
        .create = create,
        .destroy = destroy,
        .begin = ra_gpu_begin,
        .forward = ra_gpu_forward,
        .backward = ra_gpu_backward,
        .end = ra_gpu_end,
        .logits = ra_gpu_logits,
        .trace = ra_gpu_trace,
    };
    return &device;
}
