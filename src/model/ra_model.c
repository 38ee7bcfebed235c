/* ra_model: its memory and its plans. See ra_model.h; ra_model_step.c computes.
 *
 * Chapter 10.
 */
#include "ra_model.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_arena.h"
#include "ra_host.h"
#include "ra_loss.h"
#include "ra_math.h"
#include "ra_model_device.h"
#include "ra_model_parts.h"
#include "ra_plan.h"
#include "ra_processors.h"
#include "ra_struct.h"
#include "ring_attention_mpi.h"

enum ra_status ra_model_fail(struct ra_model *model, enum ra_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(model->error, sizeof model->error, format, values);
    va_end(values);
    return ra_model_note(model, status);
}

enum ra_status ra_model_note(struct ra_model *model, enum ra_status status)
{
    if (status == RA_LOST)
        model->status = RA_LOST;
    return status;
}

const char *ra_model_error(const struct ra_model *model)
{
    return model->error;
}

/* ---- Plans. */

int64_t ra_model_seen_from(const struct ra_model *model, int64_t layer)
{
    int64_t from = model->first - ra_min(model->first, model->config.lookback[layer]);
    return model->past ? from / model->ranks * model->ranks : 0;
}

struct ra_config ra_model_attention(const struct ra_model *model, int64_t layer)
{
    const struct ra_model_config *c = &model->config;
    const struct ra_model_run *run = &model->run;
    struct ra_config config = RA_CONFIG_INIT;
    config.batch = run->batch;
    config.queries = run->length;
    if (model->past)
        config.keys = model->first + run->length - ra_model_seen_from(model, layer);
    config.heads = c->heads;
    config.key_heads = c->key_heads;
    config.dim = c->head_dim;
    config.has_mask = run->has_mask;
    config.forward_only = run->forward_only;
    config.causal = c->causal;
    config.lookback = c->lookback[layer];
    config.head_map = c->head_map;
    config.softcap = c->softcap;
    if (c->attention_scale > 0)
        config.scale = c->attention_scale;
    config.layout = run->layout;
    config.bucket = run->bucket;
    config.max_slices = run->max_slices > 0 ? run->max_slices + 1 : 0;
    config.max_rows = run->max_rows;
    config.ring_size = run->ring_size;
    config.timeout = run->timeout;
    config.threads = run->threads;
    config.observe = run->observe;
    config.observer = run->observer;
    config.type = run->device ? run->type : RA_FLOAT32;
    config.deterministic = run->deterministic;
    config.transport = run->transport;
    config.device = run->device ? run->device->attention() : NULL;
    config.method = run->gather ? RA_GATHERED_KEYS : RA_RING;
    return config;
}

/* Makes the plan of a layer, or finds that of an earlier layer which sees as much. */
static enum ra_status plan_layer(struct ra_model *model, int64_t layer)
{
    for (int64_t l = 0; l < layer; l++)
        if (model->config.lookback[l] == model->config.lookback[layer]) {
            model->plans[layer] = model->plans[l];
            return RA_OK;
        }
    struct ra_config config = ra_model_attention(model, layer);
    struct ra_link link;
    enum ra_status status =
        ra_mpi_link(&link, model->comm, config.ring_size, config.timeout, model->error);
    if (status != RA_OK)
        return status;

    /* The ranks of a ring make a plan, or none of them; and then those of all rings. */
    return ra_model_agree(model,
                          ra_plan_create(&model->plans[layer], &config, &link, model->error));
}

/* Is the plan of this layer that of an earlier one? */
static bool is_shared(const struct ra_model *model, int64_t layer)
{
    for (int64_t l = 0; l < layer; l++)
        if (model->plans[l] == model->plans[layer])
            return true;
    return false;
}

enum ra_status ra_model_end(struct ra_model *model, enum ra_status status)
{
    for (int64_t l = 0; l < model->config.depth && status != RA_OK; l++) {
        struct ra_plan *plan = model->plans[l];
        if (!plan || is_shared(model, l) || !ra_plan_enter(plan))
            continue;
        ra_plan_abort(plan, status, model->error);
        ra_plan_leave(plan);
    }
    return status;
}

/* The layer that sees most: by its mask rows are dealt. */
static int64_t widest_layer(const struct ra_model *model)
{
    int64_t widest = 0;
    for (int64_t l = 1; l < model->config.depth; l++)
        if (model->config.lookback[l] > model->config.lookback[widest])
            widest = l;
    return widest;
}

/* What a layer sees of a batch's slices: how many there are. */
static int64_t slices_of(struct ra_model *model, const struct ra_model_batch *batch, int64_t layer)
{
    int64_t N = model->run.length, count = batch->slices ? batch->slice_count : 1;
    const struct ra_slice whole = {0, N, 0, N, -RA_BAND_FAR, RA_BAND_FAR};
    for (int64_t i = 0; i < count; i++) {
        struct ra_slice *slice = &model->slices[i];
        *slice = batch->slices ? batch->slices[i] : whole;
        if (model->config.causal) {
            slice->lo = ra_max(slice->lo, -ra_min(model->config.lookback[layer], RA_BAND_FAR));
            slice->hi = ra_min(slice->hi, 0);
        }
    }
    return count;
}

/* Gives a layer's plan its slices; rows are dealt as they are in `other`, or by these if that is
 * NULL. */
static enum ra_status set_layer(struct ra_model *model, const struct ra_model_batch *batch,
                                int64_t layer, const struct ra_plan *other)
{
    struct ra_plan *plan = model->plans[layer];
    int64_t count = slices_of(model, batch, layer);
    enum ra_status status = other ? ra_plan_set_slices_like(plan, model->slices, count, other)
                                  : ra_plan_set_slices(plan, model->slices, count, batch->deal);
    if (status != RA_OK)
        ra_model_fail(model, status, "layer %d: %s", (int)layer, ra_plan_error(plan));
    return status;
}

RA_STRUCT_ENDS(struct ra_model_batch, positions);

enum ra_status ra_model_batch_take(struct ra_model *model, struct ra_model_batch *batch,
                                   const struct ra_model_batch *given)
{
    size_t least = offsetof(struct ra_model_batch, positions) + sizeof batch->positions;
    *batch = (struct ra_model_batch)RA_MODEL_BATCH_INIT;
    return ra_struct_take("batch", "RA_MODEL_BATCH_INIT", batch, sizeof *batch, least, given,
                          model->error);
}

enum ra_status ra_model_set_slices(struct ra_model *model, const struct ra_model_batch *batch)
{
    struct ra_model_batch own;
    enum ra_status status = ra_model_batch_take(model, &own, batch);
    return status == RA_OK ? ra_model_deal(model, &own) : status;
}

enum ra_status ra_model_deal(struct ra_model *model, const struct ra_model_batch *batch)
{
    int64_t most = model->run.max_slices, widest = widest_layer(model);
    if (batch->deal != RA_DEAL_LAYOUT && batch->deal != RA_DEAL_DOCUMENTS)
        return ra_model_fail(model, RA_INVALID,
                             "deal = %d: give RA_DEAL_LAYOUT or RA_DEAL_DOCUMENTS",
                             (int)batch->deal);
    if (batch->slices && (batch->slice_count < 0 || batch->slice_count > most))
        return ra_model_fail(model, RA_INVALID,
                             "slice_count = %" PRId64 ": give 0 to %" PRId64
                             ", which is run.max_slices",
                             batch->slice_count, most);
    if (most == 0)
        return RA_OK;
    const struct ra_plan *dealer = model->plans[widest];
    enum ra_status status = set_layer(model, batch, widest, NULL);
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++)
        if (model->plans[l] != dealer && !is_shared(model, l))
            status = set_layer(model, batch, l, dealer);
    model->n = ra_plan_rows(dealer, RA_QUERY_SIDE);
    model->rows = model->run.batch * model->n;
    return status;
}

/* ---- Memory. */

static float *take(struct ra_arena *arena, int64_t floats)
{
    return ra_arena_take(arena, floats * (int64_t)sizeof(float));
}

/* Gives everything its place. With recompute, layers share all but x; without a backward there is
 * no room for gradients, or for what only they need. Returns how many bytes that are. */
static int64_t lay_out(struct ra_model *model)
{
    const struct ra_model_config *c = &model->config;
    struct ra_arena arena = {(char *)model->memory, 64, 0}; /* pieces are whole cache lines */
    int64_t T = model->rows, query = c->heads * c->head_dim;
    int64_t qkv = ra_qkv_width(c), up = ra_feed_width(c);
    int64_t feed = c->feed == RA_FEED_GELU ? c->hidden : c->hidden + up;
    bool learns = !model->run.forward_only, share = model->run.recompute || !learns;
    int64_t most = learns ? ra_max(ra_max(feed, c->dim), query + qkv) : c->hidden;
    for (int64_t l = 0; l <= c->depth; l++) {
        struct ra_layer_rows *layer = &model->layers[l];
        if (l > 0 && share)
            *layer = model->layers[0];
        if (l < 2 || learns)
            layer->x = take(&arena, T * c->dim);
        else
            layer->x = model->layers[l - 2].x;
        if (l < c->depth && (l == 0 || !share || model->run.keep_keys))
            layer->qkv = take(&arena, T * qkv);
        if (l == c->depth || (l > 0 && share))
            continue;
        if (c->head_norm)
            layer->raw = take(&arena, T * (query + c->key_heads * c->head_dim));
        layer->o = take(&arena, T * query);
        layer->lse = take(&arena, T * c->heads);
        layer->mid = take(&arena, T * c->dim);
        layer->up = take(&arena, T * up);
        if (c->post_norm) {
            layer->attended = take(&arena, T * c->dim);
            layer->fed = take(&arena, T * c->dim);
        }
    }
    model->positions = (int64_t *)take(&arena, 2 * model->n);
    if (c->position == RA_POSITIONS_ROTARY) {
        model->cosines = take(&arena, model->n * c->head_dim / 2);
        model->sines = take(&arena, model->n * c->head_dim / 2);
    }
    model->normal = take(&arena, T * c->dim);
    model->wide = take(&arena, T * most);
    if (model->work.bfloat16)
        model->rounded = take(&arena, ra_parameter_numbers(c));
    if (learns) {
        model->gradient = take(&arena, T * c->dim);
        int64_t scales = 2 * T * (c->head_norm ? c->heads : 1);
        model->scales = take(&arena, ra_max(scales, c->sinks ? c->heads : 0));
    }
    if (learns && model->work.bfloat16)
        model->rounded_gradient = take(&arena, T * c->dim);
    model->logits = take(&arena, ra_loss_scratch(c->vocabulary, c->logits_softcap));
    model->work.scratch = take(&arena, ra_matrix_scratch(model->work.vector, model->work.threads));
    return arena.used;
}

bool ra_model_allocate(struct ra_model *model)
{
    /* As NaN: what nobody wrote shows. */
    int64_t bytes = lay_out(model);
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)bytes) != 0)
        return false;
    memset(memory, 0xFF, (size_t)bytes);
    model->memory = memory;
    model->bytes = bytes + (int64_t)sizeof *model;
    lay_out(model);
    return true;
}

/* ---- Beginning and end. */

enum ra_status ra_model_agree(struct ra_model *model, enum ra_status status)
{
    bool lost;
    char own[RA_ERROR_SIZE];
    if (model->ranks == 1)
        return status;
    memcpy(own, model->error, sizeof own);
    enum ra_status agreed = ra_collective_agree(model->comm, model->run.timeout, &model->refusal,
                                                status, &lost, model->error);
    if (lost)
        model->status = RA_LOST;

    /* If ranks do not come even to this, what this one knows itself says more. */
    if (lost && status != RA_OK)
        memcpy(model->error, own, sizeof own);
    return lost && status != RA_OK ? status : agreed;
}

enum ra_status ra_model_meet(MPI_Comm comm, double timeout, enum ra_status status, int *sharing,
                             char error[RA_ERROR_SIZE])
{
    struct ra_link link;
    char text[RA_ERROR_SIZE];
    enum ra_status met = ra_mpi_link(&link, comm, 0, timeout, text);
    if (met == RA_OK) {
        *sharing = link.sharing;
        status = ra_agree(&link, status, error);
        link.close(link.self);
    } else if (status == RA_OK) {
        memcpy(error, text, sizeof text);
        status = met;
    }
    return status;
}

/* Checks what this rank was given, and takes what a model needs before it has rows. */
static enum ra_status prepare(struct ra_model *model, int sharing)
{
    enum ra_status status = ra_model_check(&model->config, model->error);
    if (status != RA_OK)
        return status;
    if (model->config.position == RA_POSITIONS_LEARNED && model->run.max_slices == 0 &&
        model->run.length > model->config.longest)
        return ra_model_fail(model, RA_INVALID,
                             "a text of %" PRId64 " tokens: the model's table of positions has "
                             "only %" PRId64 " rows (longest)",
                             model->run.length, model->config.longest);
    if (model->run.threads < 0 || model->run.max_slices < 0)
        return ra_model_fail(model, RA_INVALID,
                             "run.threads = %d, max_slices = %" PRId64 ": give at least 0",
                             model->run.threads, model->run.max_slices);
    int64_t numbers = ra_parameter_numbers(&model->config);
    if (numbers / RA_SHARE_LINE > INT32_MAX)
        return ra_model_fail(model, RA_INVALID,
                             "the model has %" PRId64 " weights: at most %" PRId64 " are possible",
                             numbers, (int64_t)INT32_MAX * RA_SHARE_LINE);
    model->run.threads = ra_processors_threads(model->run.threads, sharing, INT32_MAX);
    model->work = ra_matrix_best(model->run.threads, NULL);
    model->work.bfloat16 = model->run.type == RA_BFLOAT16;

    /* The shares of all ranks. */
    model->counts = malloc(2 * (size_t)model->ranks * sizeof *model->counts);
    model->requests = malloc((size_t)(model->config.depth + 2 + numbers / RA_MOST_SUMMED) *
                             sizeof *model->requests);
    if (!model->counts || !model->requests)
        return ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for a model");
    model->places = model->counts + model->ranks;
    for (int r = 0; r < model->ranks; r++) {
        struct ra_share share = ra_share(&model->config, r, model->ranks);
        model->places[r] = (int)(share.first / RA_SHARE_LINE);
        model->counts[r] = (int)((share.end - share.first) / RA_SHARE_LINE);
    }
    if (MPI_Type_contiguous(RA_SHARE_LINE, MPI_FLOAT, &model->line) != MPI_SUCCESS ||
        MPI_Type_commit(&model->line) != MPI_SUCCESS)
        return ra_model_fail(model, RA_LOST, "MPI cannot make a type of %d numbers", RA_SHARE_LINE);

    /* On the host one rank may lack the vectors that its environment names. */
    return model->run.device || ra_host_vector(model->error) ? RA_OK : RA_INVALID;
}

enum ra_status ra_model_begin(struct ra_model *model, MPI_Comm comm, enum ra_status status)
{
    /* All ranks meet, for no longer than the timeout, whatever each was given. */
    char text[RA_ERROR_SIZE];
    int sharing = 1;
    if (status != RA_OK)
        model->run.timeout = RA_MODEL_PATIENCE;
    enum ra_status met = ra_model_meet(comm, model->run.timeout, RA_OK, &sharing, text);
    if (met != RA_OK)
        return status == RA_OK ? ra_model_fail(model, met, "%s", text) : status;
    if (MPI_Comm_dup(comm, &model->comm) != MPI_SUCCESS)
        return ra_model_fail(model, RA_LOST, "MPI cannot duplicate the communicator");
    MPI_Comm_rank(model->comm, &model->rank);
    MPI_Comm_size(model->comm, &model->ranks);
    if (status == RA_OK)
        status = prepare(model, sharing);
    return ra_model_agree(model, status);
}

RA_STRUCT_ENDS(struct ra_model_run, prompt_rows);

enum ra_status ra_model_run_take(struct ra_model_run *run, const struct ra_model_run *given,
                                 char *error)
{
    size_t least = offsetof(struct ra_model_run, observer) + sizeof run->observer;
    *run = (struct ra_model_run)RA_MODEL_RUN_INIT;
    return ra_struct_take("run", "RA_MODEL_RUN_INIT", run, sizeof *run, least, given, error);
}

/* All but the model itself. What was made stays with it. */
static enum ra_status build(struct ra_model *model, const struct ra_model_config *config,
                            const struct ra_model_run *run, MPI_Comm comm)
{
    enum ra_status status = ra_model_config_take(&model->config, config, model->error);
    if (status == RA_OK)
        status = ra_model_run_take(&model->run, run, model->error);
    if (status == RA_OK && !model->run.device && model->run.type != RA_FLOAT32 &&
        model->run.type != RA_BFLOAT16)
        status = ra_model_fail(model, RA_INVALID,
                               "type is %d: a model on the host computes in float32 or bfloat16",
                               (int)model->run.type);
    if (status == RA_OK && !model->run.device && model->run.shard_optimizer)
        status = ra_model_fail(model, RA_INVALID,
                               "shard_optimizer is true: only a device keeps shares of the means");
    status = ra_model_begin(model, comm, status);
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++)
        status = plan_layer(model, l);
    if (status != RA_OK)
        return status;
    model->n = ra_plan_rows(model->plans[0], RA_QUERY_SIDE);
    if (model->run.max_slices > 0) {
        struct ra_layout layout = ra_plan_layout(model->plans[0], RA_QUERY_SIDE);
        model->n = ra_max(ra_layout_most_rows(layout), model->run.max_rows);
        model->slices = calloc((size_t)model->run.max_slices + 1, sizeof *model->slices);
    }
    model->rows = model->run.batch * model->n;
    if ((model->run.max_slices > 0 && !model->slices) ||
        (!model->run.device && !ra_model_allocate(model)))
        status = ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for %" PRId64 " rows of a model",
                               model->rows);
    status = ra_model_agree(model, status);
    if (status == RA_OK && model->run.device)
        status = model->run.device->create(model);
    if (status != RA_OK)
        return status;
    model->n = ra_plan_rows(model->plans[0], RA_QUERY_SIDE);
    model->rows = model->run.batch * model->n;
    return RA_OK;
}

enum ra_status ra_model_create(struct ra_model **model, const struct ra_model_config *config,
                               const struct ra_model_run *run, MPI_Comm comm,
                               char error[RA_ERROR_SIZE])
{
    return ra_model_make(model, config, run, comm, NULL, 0, error);
}

enum ra_status ra_model_make(struct ra_model **model, const struct ra_model_config *config,
                             const struct ra_model_run *run, MPI_Comm comm,
                             const struct ra_model *past, int64_t first, char error[RA_ERROR_SIZE])
{
    struct ra_model *made = calloc(1, sizeof *made);
    *model = NULL;
    if (!made) {
        int sharing;
        snprintf(error, RA_ERROR_SIZE, "no memory for a model");
        return ra_model_meet(comm, RA_MODEL_PATIENCE, RA_OUT_OF_MEMORY, &sharing, error);
    }
    made->comm = MPI_COMM_NULL;
    made->line = MPI_DATATYPE_NULL;
    made->past = past;
    made->first = first;
    enum ra_status status = ra_model_note(made, build(made, config, run, comm));
    if (status == RA_OK) {
        *model = made;
        return RA_OK;
    }
    memcpy(error, made->error, RA_ERROR_SIZE);
    ra_model_destroy(made);
    return status;
}

void ra_model_destroy(struct ra_model *model)
{
    if (!model)
        return;
    if (model->own)
        model->run.device->destroy(model);
    for (int64_t l = model->config.depth - 1; l >= 0; l--) {
        if (!is_shared(model, l))
            ra_plan_destroy(model->plans[l]);
        ra_tree_destroy(model->trees[l]);
    }

    /* After RA_LOST MPI may still use the communicator, and this memory. */
    if (model->status != RA_OK)
        return;
    if (model->comm != MPI_COMM_NULL)
        MPI_Comm_free(&model->comm);
    if (model->line != MPI_DATATYPE_NULL)
        MPI_Type_free(&model->line);
    free(model->requests);
    free(model->slices);
    free(model->counts);
    free(model->memory);
    free(model);
}

int64_t ra_model_rows(const struct ra_model *model)
{
    return model->n;
}

void ra_model_positions(const struct ra_model *model, int64_t *positions)
{
    ra_plan_positions(model->plans[0], RA_QUERY_SIDE, positions);
}

int64_t ra_model_bytes(const struct ra_model *model)
{
    int64_t bytes = model->bytes;
    for (int64_t l = 0; l < model->config.depth; l++) {
        bytes += is_shared(model, l) ? 0 : ra_plan_bytes(model->plans[l]);
        bytes += model->trees[l] ? ra_tree_bytes(model->trees[l]) : 0;
    }
    return bytes;
}

int ra_model_threads(const struct ra_model *model)
{
    return model->work.threads;
}

struct ra_share ra_model_share(const struct ra_model *model)
{
    return ra_share(&model->config, model->rank, model->ranks);
}
