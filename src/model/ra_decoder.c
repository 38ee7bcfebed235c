/* ra_decoder: goes on with a text. See ra_decoder.h.
 *
 * Chapter 10.
 */
#include "ra_decoder.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_model_parts.h"

struct ra_decoder {
    struct ra_model *model;         /* of the new tokens; its attention is over the cache */
    int64_t most, length, most_new; /* tokens in all; so far; at once */
};

/* All but the decoder itself. What was made stays with it. */
static enum ra_status build(struct ra_decoder *decoder, MPI_Comm comm)
{
    struct ra_model *model = decoder->model;
    enum ra_status status = ra_model_begin(model, comm);
    if (status == RA_OK && (!model->config.causal || decoder->most < 1 || decoder->most_new < 1))
        status = ra_model_fail(model, RA_INVALID,
                               "a decoder needs a causal model, a length, and new tokens");
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++) {
        struct ra_config attention = ra_model_attention(model, l);
        attention.queries = decoder->most_new;
        attention.keys = decoder->most;
        status = ra_tree_create(&model->trees[l], &attention, model->comm, model->error);
    }
    if (status == RA_OK && !ra_model_allocate(model))
        status = ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for a decoder");
    return status;
}

enum ra_status ra_decoder_create(struct ra_decoder **decoder, const struct ra_model_config *config,
                                 const struct ra_model_run *run, int64_t most_new, MPI_Comm comm,
                                 char error[RA_ERROR_SIZE])
{
    struct ra_decoder *made = calloc(1, sizeof *made);
    struct ra_model *model = calloc(1, sizeof *model);
    *decoder = NULL;
    if (!made || !model) {
        free(made);
        free(model);
        snprintf(error, RA_ERROR_SIZE, "no memory for a decoder");
        return RA_OUT_OF_MEMORY;
    }
    *made = (struct ra_decoder){model, run->length, 0, most_new};
    model->config = *config;
    model->run = (struct ra_model_run){.batch = 1,
                                       .length = run->length,
                                       .forward_only = true,
                                       .layout = RA_STRIPED,
                                       .threads = run->threads,
                                       .timeout = run->timeout};
    model->comm = MPI_COMM_NULL;
    model->n = model->rows = most_new;
    enum ra_status status = ra_model_note(model, build(made, comm));
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

/* Computes a prompt with a model of its length, puts its keys and values into the caches, and sends
 * the logits of its last token from the rank that has it to all. */
static enum ra_status fill(struct ra_decoder *decoder, struct ra_model *prompt,
                           const float *weights, int64_t count, const int32_t *own, float *logits)
{
    struct ra_model *model = decoder->model;
    struct ra_model_batch batch = {.tokens = own};
    enum ra_status status = ra_model_forward(prompt, weights, &batch);
    if (status != RA_OK)
        return ra_model_fail(model, status, "%s", ra_model_error(prompt));
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++) {
        status = ra_tree_fill(model->trees[l], count, ra_model_keys(prompt, l),
                              ra_model_values(prompt, l));
        if (status != RA_OK)
            return ra_model_fail(model, status, "%s", ra_tree_error(model->trees[l]));
    }
    int64_t row;
    struct ra_layout layout = ra_plan_layout(prompt->plans[0], RA_QUERY_SIDE);
    int root = ra_layout_find(layout, count - 1, &row), rank;
    MPI_Comm_rank(model->comm, &rank);
    if (rank == root)
        ra_model_logits(prompt, weights, row, 1, logits);
    MPI_Request request;
    int code =
        MPI_Ibcast(logits, (int)model->config.vocabulary, MPI_FLOAT, root, model->comm, &request);
    status = ra_model_await(model, code, &request, "logits of the prompt");
    decoder->length = status == RA_OK ? count : decoder->length;
    return status;
}

enum ra_status ra_decoder_prompt(struct ra_decoder *decoder, const float *weights, int64_t count,
                                 const int32_t *tokens, float *logits)
{
    struct ra_model *model = decoder->model, *prompt;
    if (count < 1 || count > decoder->most)
        return ra_model_fail(model, RA_INVALID,
                             "the prompt has %" PRId64 " tokens: give 1 to %" PRId64, count,
                             decoder->most);
    struct ra_model_run run = model->run;
    run.length = count;
    run.keep_keys = true;
    enum ra_status status = ra_model_note(
        model, ra_model_create(&prompt, &model->config, &run, model->comm, model->error));
    if (status != RA_OK)
        return status;
    int64_t n = ra_model_rows(prompt);
    int64_t *positions = malloc((size_t)(n + 1) * sizeof *positions);
    int32_t *own = malloc((size_t)(n + 1) * sizeof *own);
    if (positions && own) {
        ra_model_positions(prompt, positions);
        for (int64_t a = 0; a < n; a++)
            own[a] = tokens[positions[a]];
        status = fill(decoder, prompt, weights, count, own, logits);
    } else
        status = ra_model_fail(model, RA_OUT_OF_MEMORY, "no memory for the prompt");
    free(positions);
    free(own);
    ra_model_destroy(prompt);
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
    struct ra_model_batch batch = {.tokens = tokens};
    enum ra_status status = ra_model_forward(model, weights, &batch);
    if (status != RA_OK)
        return status;
    ra_model_logits(model, weights, 0, count, logits);
    decoder->length += count;
    return RA_OK;
}
