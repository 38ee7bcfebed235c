/* ra_decoder: goes on with a text. See ra_decoder.h.
 *
 * Chapter 10.
 */
#include "ra_decoder.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_math.h"
#include "ra_model_device.h"
#include "ra_model_parts.h"
#include "ra_struct.h"

struct ra_decoder {
    struct ra_model *model;         /* of the new tokens; its attention is over the cache */
    int64_t most, length, most_new; /* tokens in all; so far; at once */
};

/* All but the decoder itself. What was made stays with it. */
static enum ra_status build(struct ra_decoder *decoder, const struct ra_model_config *config,
                            const struct ra_model_run *run, MPI_Comm comm)
{
    struct ra_model *model = decoder->model;
    struct ra_model_run own = RA_MODEL_RUN_INIT;
    enum ra_status status = ra_model_config_take(&model->config, config, model->error);
    if (status == RA_OK)
        status = ra_model_run_take(&own, run, model->error);
    decoder->most = own.length;
    model->run = (struct ra_model_run)RA_MODEL_RUN_INIT;
    model->run.batch = 1;
    model->run.length = own.length;
    model->run.forward_only = true;
    model->run.layout = RA_STRIPED;
    model->run.threads = own.threads;
    model->run.timeout = own.timeout;
    model->run.cache_type = own.cache_type;
    model->run.prompt_rows = own.prompt_rows;
    model->run.device = own.device;
    model->run.type = own.type;
    model->run.transport = own.transport;
    model->run.deterministic = own.deterministic;
    if (status == RA_OK && !model->config.causal)
        status =
            ra_model_fail(model, RA_INVALID,
                          "config.causal = false: a new token would change all those before "
                          "it, so nothing of them can be kept; a decoder needs a causal model");
    if (status == RA_OK && own.batch != 0 && own.batch != 1)
        status = ra_model_fail(model, RA_INVALID,
                               "run.batch = %" PRId64 ": a decoder has one text; give 1, or 0",
                               own.batch);
    if (status == RA_OK && own.prompt_rows < 0)
        status = ra_model_fail(model, RA_INVALID,
                               "run.prompt_rows = %" PRId64 ": give 0, for 8192, or more",
                               own.prompt_rows);
    if (status == RA_OK && (decoder->most < 1 || decoder->most_new < 1))
        status = ra_model_fail(model, RA_INVALID,
                               "run.length = %" PRId64 ", most_new = %" PRId64
                               ": a decoder needs at least 1 of both",
                               decoder->most, decoder->most_new);
    if (status == RA_OK && !own.device && own.type != RA_FLOAT32)
        status = ra_model_fail(model, RA_INVALID, "type is %d: without a device give RA_FLOAT32",
                               (int)own.type);
    status = ra_model_begin(model, comm, status);
    if (model->run.device)
        return status == RA_OK ? model->run.device->create(model) : status;
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++) {
        struct ra_config attention = ra_model_attention(model, l);
        attention.queries = decoder->most_new;
        attention.keys = decoder->most;
        attention.type = model->run.cache_type;
        status = ra_tree_create(&model->trees[l], &attention, model->comm, model->error);
    }
    if (status != RA_OK)
        return status;
    if (!ra_model_allocate(model))
        status = ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for a decoder");
    return ra_model_agree(model, status);
}

enum ra_status ra_decoder_create(struct ra_decoder **decoder, const struct ra_model_config *config,
                                 const struct ra_model_run *run, int64_t most_new, MPI_Comm comm,
                                 char error[RA_ERROR_SIZE])
{
    struct ra_decoder *made = calloc(1, sizeof *made);
    struct ra_model *model = calloc(1, sizeof *model);
    *decoder = NULL;
    if (!made || !model) {
        int sharing;
        free(made);
        free(model);
        snprintf(error, RA_ERROR_SIZE, "no memory for a decoder");
        return ra_model_meet(comm, RA_MODEL_PATIENCE, RA_OUT_OF_MEMORY, &sharing, error);
    }
    *made = (struct ra_decoder){model, 0, 0, most_new};
    model->comm = MPI_COMM_NULL;
    model->line = MPI_DATATYPE_NULL;
    model->n = model->rows = most_new;
    enum ra_status status = ra_model_note(model, build(made, config, run, comm));
    if (status == RA_OK)
        *decoder = made;
    else {
        memcpy(error, model->error, RA_ERROR_SIZE);
        ra_decoder_destroy(made);
    }
    return status;
}

void ra_decoder_destroy(struct ra_decoder *decoder)
{
    if (decoder)
        ra_model_destroy(decoder->model);
    free(decoder);
}

const char *ra_decoder_error(const struct ra_decoder *decoder)
{
    return decoder->model->error;
}

int64_t ra_decoder_length(const struct ra_decoder *decoder)
{
    return decoder->length;
}

int64_t ra_decoder_bytes(const struct ra_decoder *decoder)
{
    return ra_model_bytes(decoder->model);
}

/* Copies the keys and values of a prompt into the caches, unless they are there. */
static enum ra_status fill(struct ra_decoder *decoder, const struct ra_model *prompt)
{
    struct ra_model *model = decoder->model;
    const struct ra_model_device *device = model->run.device;
    enum ra_status status = RA_OK;
    for (int64_t l = 0; l < model->config.depth && !prompt->past && status == RA_OK; l++) {
        struct ra_tensor k = ra_model_keys(prompt, l), v = ra_model_values(prompt, l);
        status = device ? device->cache.fill(model, l, prompt->run.length, k, v)
                        : ra_tree_fill(model->trees[l], prompt->run.length, k, v);
        if (status != RA_OK && !device)
            ra_model_fail(model, status, "%s", ra_tree_error(model->trees[l]));
    }
    return status;
}

/* Sends the logits of the last token from the rank that has it to all, if all come with RA_OK. */
static enum ra_status send_logits(struct ra_decoder *decoder, struct ra_model *prompt,
                                  const float *weights, enum ra_status status, float *logits)
{
    struct ra_model *model = decoder->model;
    int64_t row;
    struct ra_layout layout = ra_plan_layout(prompt->plans[0], RA_QUERY_SIDE);
    int root = ra_layout_find(layout, prompt->run.length - 1, &row);
    if (status == RA_OK && model->rank == root &&
        (status = ra_model_logits(prompt, weights, row, 1, logits)) != RA_OK)
        ra_model_fail(model, status, "%s", ra_model_error(prompt));
    status = ra_model_agree(model, status);
    if (status != RA_OK)
        return status;
    MPI_Request request;
    int code =
        MPI_Ibcast(logits, (int)model->config.vocabulary, MPI_FLOAT, root, model->comm, &request);
    return ra_model_await(model, code, &request, "logits of the prompt");
}

/* Computes the next `count` tokens of a prompt with a model of that length, and its logits, if they
 * are the last. */
static enum ra_status add_piece(struct ra_decoder *decoder, const float *weights, int64_t count,
                                const int32_t *tokens, bool last, float *logits)
{
    struct ra_model *model = decoder->model, *prompt;
    bool cached = !model->run.device && model->run.cache_type == RA_FLOAT32;
    struct ra_model_run run = model->run;
    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    run.length = count;
    run.keep_keys = !cached;
    enum ra_status status =
        ra_model_note(model, ra_model_make(&prompt, &model->config, &run, model->comm,
                                           cached ? model : NULL, decoder->length, model->error));
    if (status != RA_OK)
        return status;
    int64_t n = ra_model_rows(prompt);
    int64_t *positions = malloc((size_t)(n + 1) * sizeof *positions);
    int32_t *own = malloc((size_t)(n + 1) * sizeof *own);
    if (!positions || !own)
        status = ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for the prompt");
    status = ra_model_agree(model, status);
    if (status == RA_OK) {
        ra_model_positions(prompt, positions);
        for (int64_t a = 0; a < n; a++)
            own[a] = tokens[positions[a]];
        batch.tokens = own;
        status = ra_model_forward(prompt, weights, &batch);
        if (status != RA_OK)
            ra_model_fail(model, status, "%s", ra_model_error(prompt));
        if (status == RA_OK)
            status = fill(decoder, prompt);
        if (last)
            status = send_logits(decoder, prompt, weights, status, logits);
    }
    free(positions);
    free(own);
    ra_model_destroy(prompt);
    decoder->length += status == RA_OK ? count : 0;
    return status;
}

enum ra_status ra_decoder_prompt(struct ra_decoder *decoder, const float *weights, int64_t count,
                                 const int32_t *tokens, float *logits)
{
    enum { ROWS = 8192 };
    struct ra_model *model = decoder->model;
    enum ra_status status = RA_OK;
    if (count < 1 || count > decoder->most)
        return ra_model_fail(model, RA_INVALID,
                             "the prompt has %" PRId64 " tokens: give 1 to %" PRId64, count,
                             decoder->most);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= model->config.vocabulary)
            return ra_model_fail(model, RA_INVALID,
                                 "tokens: position %" PRId64 " is %d: give 0 to %d", i, tokens[i],
                                 (int)model->config.vocabulary - 1);

    /* Later pieces read the keys of earlier ones in the cache: on a device, and where the cache has
     * rounded them, all of the prompt is one. */
    int64_t rows = model->run.prompt_rows > 0 ? model->run.prompt_rows : ROWS, piece = count;
    if (!model->run.device && model->run.cache_type == RA_FLOAT32 && rows < count / model->ranks)
        piece = rows * model->ranks;
    decoder->length = 0;
    for (int64_t first = 0; first < count && status == RA_OK; first += piece) {
        int64_t these = ra_min(piece, count - first);
        status = add_piece(decoder, weights, these, tokens + first, first + these == count, logits);
    }
    return status;
}

enum ra_status ra_decoder_add(struct ra_decoder *decoder, const float *weights, int64_t count,
                              const int32_t *tokens, float *logits)
{
    struct ra_model *model = decoder->model;
    if (count < 1 || count > decoder->most_new || decoder->length + count > decoder->most)
        return ra_model_fail(model, RA_INVALID,
                             "%" PRId64 " new tokens behind %" PRId64 ": at most %" PRId64
                             " at once, and %" PRId64 " in all, are possible",
                             count, decoder->length, decoder->most_new, decoder->most);
    model->n = model->rows = count;
    model->first = decoder->length;
    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    batch.tokens = tokens;
    enum ra_status status = ra_model_forward(model, weights, &batch);
    if (status != RA_OK)
        return status;
    status = ra_model_logits(model, weights, 0, count, logits);
    decoder->length += status == RA_OK ? count : 0;
    return status;
}
