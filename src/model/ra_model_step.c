/* ra_model_step: the forward of a model, and its backward. See ra_model.h.
 *
 * Chapter 10. New here: the backward of each line, in the opposite order.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_attention.h"
#include "ra_collective.h"
#include "ra_loss.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_model_device.h"
#include "ra_model_parts.h"
#include "ra_plan.h"
#include "ra_rotary.h"
#include "ra_rounding.h"

/* ---- Attention, and what stands around it. */

/* That of this batch, in all layers. */
static struct ra_attention attention_of(const struct ra_model *model,
                                        const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    return (struct ra_attention){.work = model->work,
                                 .batch = model->run.batch,
                                 .rows = model->n,
                                 .dim = c->dim,
                                 .heads = c->heads,
                                 .key_heads = c->key_heads,
                                 .D = c->head_dim,
                                 .D_v = c->head_dim,
                                 .norm = {c->norm, c->norm_eps},
                                 .cosines = model->cosines,
                                 .sines = model->sines,
                                 .mask = batch ? batch->mask : NULL};
}

static struct ra_attention_rows attention_rows(const struct ra_layer_rows *kept)
{
    return (struct ra_attention_rows){kept->x, kept->raw, kept->qkv, kept->o, kept->lse};
}

/* o = attention of a piece of a prompt, whose keys join those of the pieces before it in the cache;
 * from there they go round the ring. */
static enum ra_status attend_piece(struct ra_model *model, int64_t l,
                                   const struct ra_arrays *arrays)
{
    struct ra_tree *tree = model->past->trees[l];
    struct ra_arrays over = *arrays;
    int64_t row = ra_model_seen_from(model, l) / model->ranks;
    enum ra_status status =
        ra_tree_extend(tree, model->first, model->run.length, arrays->k, arrays->v);
    if (status != RA_OK)
        return ra_model_fail(model, status, "layer %d: %s", (int)l, ra_tree_error(tree));
    over.k = ra_tree_cached(tree, row, false);
    over.v = ra_tree_cached(tree, row, true);
    status = ra_forward(model->plans[l], &over);
    if (status != RA_OK)
        ra_model_fail(model, status, "layer %d: %s", (int)l, ra_plan_error(model->plans[l]));
    return status;
}

/* o = attention(q, k, v), of the whole sequence, or of the new tokens of a decoder over all so
 * far. */
static enum ra_status attend(struct ra_model *model, int64_t l, const struct ra_arrays *arrays)
{
    struct ra_tree *tree = model->trees[l];
    enum ra_status status;
    if (model->past)
        return attend_piece(model, l, arrays);
    if (!tree)
        status = ra_forward(model->plans[l], arrays);
    else if ((status = ra_tree_keep(tree, model->first, model->n, arrays->k, arrays->v)) == RA_OK)
        status = ra_tree_attend(tree, model->n, arrays);
    if (status != RA_OK)
        ra_model_fail(model, status, "layer %d: %s", (int)l,
                      tree ? ra_tree_error(tree) : ra_plan_error(model->plans[l]));
    ra_round(&model->work, model->rows * model->config.heads * model->config.head_dim,
             model->layers[l].o);
    return status;
}

/* ---- The parts: each is the one that the config names. */

/* The norm of rows, and its gradient, which is added to model->gradient. */
static void norm_forward(const struct ra_model *model, int64_t rows, const float *x,
                         const float *gamma, const float *bias, float *out)
{
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    ra_norm_forward(model->work.threads, norm, rows, model->config.dim, x, gamma, bias, out);
    ra_round(&model->work, rows * model->config.dim, out);
}

static void norm_backward(const struct ra_model *model, const float *x, const float *gamma,
                          const float *d_out, float *d_gamma, float *d_bias)
{
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    ra_norm_backward(model->work.threads, norm, model->rows, model->config.dim, x, gamma, d_out,
                     model->gradient, d_gamma, d_bias, model->scales);
}

/* What attention or a feed-forward adds to `base`, with a norm if there is a gamma: then `added` is
 * what it gave before, and out = base + norm(added). Otherwise out is there already. */
static void post_norm_forward(const struct ra_model *model, const float *added, const float *gamma,
                              const float *bias, const float *base, float *out)
{
    if (!gamma)
        return;
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    ra_norm_forward(model->work.threads, norm, model->rows, model->config.dim, added, gamma, bias,
                    out);
    for (int64_t e = 0; e < model->rows * model->config.dim; e++)
        out[e] += base[e];
}

/* The gradient with respect to what was given before that norm: model->gradient itself where there
 * is none, or in model->normal. */
static const float *post_norm_backward(const struct ra_model *model, const float *added,
                                       const float *gamma, float *d_gamma, float *d_bias)
{
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    if (!gamma)
        return model->gradient;
    memset(model->normal, 0, (size_t)(model->rows * model->config.dim) * sizeof *model->normal);
    ra_norm_backward(model->work.threads, norm, model->rows, model->config.dim, added, gamma,
                     model->gradient, model->normal, d_gamma, d_bias, model->scales);
    return model->normal;
}

/* What stands between the matrices of a feed-forward. The gradient of `out` lies in model->wide;
 * that of what came in begins where the result says. */
static void bend_forward(const struct ra_model *model, const float *in, float *out)
{
    const struct ra_vector *vector = model->work.vector;
    int64_t T = model->rows, hidden = model->config.hidden;
    if (model->config.feed == RA_FEED_GELU)
        ra_gelu_forward(vector, model->work.threads, T * hidden, in, out);
    else
        ra_gated_forward(vector, model->work.threads, model->config.feed, T, hidden, in, out);
    ra_round(&model->work, T * hidden, out);
}

static float *bend_backward(const struct ra_model *model, const float *in)
{
    const struct ra_vector *vector = model->work.vector;
    int64_t T = model->rows, hidden = model->config.hidden;
    float *d_out = model->wide, *d_in = d_out + T * hidden;
    if (model->config.feed == RA_FEED_GELU) {
        d_in = d_out;
        ra_gelu_backward(vector, model->work.threads, T * hidden, in, d_out, d_in);
    } else
        ra_gated_backward(vector, model->work.threads, model->config.feed, T, hidden, in, d_out,
                          d_in);
    ra_round(&model->work, T * ra_feed_width(&model->config), d_in);
    return d_in;
}

/* A gradient (T, dim) as products read it: itself, or rounded. */
static const float *rounded(const struct ra_model *model, const float *gradient)
{
    int64_t count = model->rows * model->config.dim;
    if (!model->work.bfloat16)
        return gradient;
    memcpy(model->rounded_gradient, gradient, (size_t)count * sizeof(float));
    ra_round(&model->work, count, model->rounded_gradient);
    return model->rounded_gradient;
}

/* ---- A layer. */

/* Computes mid = x + attention(norm(x)), then out = mid + feed(norm(mid)). With post_norm, what is
 * added goes through a norm first. `again`: repeats all but out, for the backward. */
static enum ra_status layer_forward(struct ra_model *model, int64_t l, const float *weights,
                                    const struct ra_model_batch *batch, bool again)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    const struct ra_layer_rows *kept = &model->layers[l];
    struct ra_layer_weights w = ra_places_of_layer(c, weights, l);
    struct ra_attention attention = attention_of(model, batch);
    struct ra_attention_rows rows = attention_rows(kept);

    ra_attention_before(&attention, &w.attention, &rows, model->normal);
    struct ra_arrays arrays =
        ra_attention_arrays(&attention, &w.attention, &rows, NULL, NULL, NULL);
    enum ra_status status = attend(model, l, &arrays);
    if (status != RA_OK)
        return status;
    bool post = c->post_norm;
    ra_attention_behind(&attention, &w.attention, &rows, post ? NULL : kept->x,
                        post ? kept->attended : kept->mid);
    post_norm_forward(model, kept->attended, w.attended_gamma, w.attended_bias, kept->x, kept->mid);

    norm_forward(model, T, kept->mid, w.feed_gamma, w.feed_bias, model->normal);
    ra_linear_forward(&model->work, T, dim, ra_feed_width(c), model->normal, w.up, w.up_bias, NULL,
                      kept->up);
    ra_round(&model->work, T * ra_feed_width(c), kept->up);
    if (again && !post)
        return RA_OK;
    float *out = model->layers[l + 1].x;
    bend_forward(model, kept->up, model->wide);
    ra_linear_forward(&model->work, T, c->hidden, dim, model->wide, w.down, w.down_bias,
                      post ? NULL : kept->mid, post ? kept->fed : out);
    if (!again)
        post_norm_forward(model, kept->fed, w.fed_gamma, w.fed_bias, kept->mid, out);
    return RA_OK;
}

/* model->gradient is with respect to what the layer gave, and becomes that with respect to what it
 * got. */
static enum ra_status layer_backward(struct ra_model *model, int64_t l, const float *weights,
                                     const struct ra_model_batch *batch, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    const struct ra_layer_rows *kept = &model->layers[l];
    struct ra_layer_weights w = ra_places_of_layer(c, weights, l);
    struct ra_layer_weights d = ra_places_of_layer(c, gradients, l);
    struct ra_attention attention = attention_of(model, batch);
    struct ra_attention_rows rows = attention_rows(kept);
    float *gradient = model->gradient, *normal = model->normal, *wide = model->wide;

    /* out = mid + down_bias + bend(up) down^T */
    const float *d_fed = post_norm_backward(model, kept->fed, w.fed_gamma, d.fed_gamma, d.fed_bias);
    bend_forward(model, kept->up, wide);
    ra_linear_backward(&model->work, T, c->hidden, dim, wide, w.down, rounded(model, d_fed), wide,
                       d.down, d.down_bias);
    float *d_up = bend_backward(model, kept->up);

    /* up = up_bias + norm(mid) up^T */
    norm_forward(model, T, kept->mid, w.feed_gamma, w.feed_bias, normal);
    ra_linear_backward(&model->work, T, dim, ra_feed_width(c), normal, w.up, d_up, normal, d.up,
                       d.up_bias);
    norm_backward(model, kept->mid, w.feed_gamma, normal, d.feed_gamma, d.feed_bias);

    /* mid = x + out_bias + attention(rotate(head_norm(qkv_bias + norm(x) qkv^T))) out^T */
    float *d_o = wide, *d_qkv = wide + T * c->heads * c->head_dim;
    const float *d_attended = post_norm_backward(model, kept->attended, w.attended_gamma,
                                                 d.attended_gamma, d.attended_bias);
    ra_attention_behind_backward(&attention, &w.attention, &rows, rounded(model, d_attended), d_o,
                                 &d.attention);
    struct ra_arrays arrays =
        ra_attention_arrays(&attention, &w.attention, &rows, d_o, d_qkv, model->scales);
    enum ra_status status = ra_backward(model->plans[l], &arrays);
    if (status != RA_OK)
        return ra_model_fail(model, status, "layer %d: %s", (int)l, ra_plan_error(model->plans[l]));
    ra_attention_before_backward(&attention, &w.attention, &rows, d_qkv, gradient, &d.attention,
                                 normal, model->scales);
    return RA_OK;
}

/* ---- The model. */

enum ra_status ra_model_await(struct ra_model *model, int code, MPI_Request *request,
                              const char *what)
{
    const struct ra_link *link = model->plans[0] ? &model->plans[0]->link : NULL;
    double timeout = model->run.timeout;
    bool done;
    if (!link || link->size == 1) {
        done = ra_collective_wait(model->comm, code, request, timeout, what, model->error);
    } else if (!(done = ra_collective_wait_link(link, model->comm, code, request, timeout, what))) {
        /* A rank of the ring may have failed in something else: that ends this wait, too. */
        snprintf(model->error, sizeof model->error, "%s", ra_message_error(link));
    }
    return ra_model_note(model, done ? RA_OK : RA_LOST);
}

/* Adds up what ranks have of a sum: in the model, where MPI may write also after RA_LOST. */
static enum ra_status sum_up(struct ra_model *model, double *sum)
{
    MPI_Request request;
    model->sum = *sum;
    int code =
        MPI_Iallreduce(MPI_IN_PLACE, &model->sum, 1, MPI_DOUBLE, MPI_SUM, model->comm, &request);
    enum ra_status status = ra_model_await(model, code, &request, "the losses of all ranks");
    *sum = model->sum;
    return status;
}

/* Begins to add up the gradients from number `first` to before `last` over all ranks: those of a
 * layer are on their way while the layer before it is computed. */
static void begin_sum(struct ra_model *model, float *gradients, int64_t first, int64_t last)
{
    for (int64_t end; first < last && model->begun == MPI_SUCCESS; first = end) {
        end = ra_min(last, first + RA_MOST_SUMMED);
        model->begun =
            MPI_Iallreduce(MPI_IN_PLACE, gradients + first, (int)(end - first), MPI_FLOAT, MPI_SUM,
                           model->comm, &model->requests[model->request_count++]);
    }
}

static enum ra_status end_sums(struct ra_model *model)
{
    enum ra_status status = RA_OK;
    while (model->request_count > 0 && status == RA_OK)
        status = ra_model_await(model, model->begun, &model->requests[--model->request_count],
                                "gradients of all ranks");
    return status;
}

/* Number a of this rank's tokens or labels is out of range: says where it is in the whole batch, in
 * which row b S + s is row b of ring s. */
static enum ra_status refuse_number(struct ra_model *model, const char *what, int64_t a,
                                    int32_t number, const char *least)
{
    int P = model->run.ring_size > 0 ? model->run.ring_size : model->ranks;
    int64_t row = a / model->n * (model->ranks / P) + model->rank / P;
    int64_t position =
        model->first + (model->plans[0]
                            ? ra_layout_position(ra_plan_layout(model->plans[0], RA_QUERY_SIDE),
                                                 model->rank % P, a % model->n)
                            : a);
    return ra_model_fail(model, RA_INVALID, "%s: row %d, position %" PRId64 " is %d: give %s%d",
                         what, (int)row, position, number, least,
                         (int)model->config.vocabulary - 1);
}

/* Where row a of a batch is. */
static int64_t position_of(const struct ra_model *model, const struct ra_model_batch *batch,
                           int64_t a)
{
    if (batch->positions)
        return batch->positions[a];
    return model->first +
           (model->plans[0] ? ra_plan_position(model->plans[0], RA_QUERY_SIDE, a) : a);
}

/* Do a batch's rows stay where they are, whatever batch it is? */
static bool rows_stay(const struct ra_model *model, const struct ra_model_batch *batch)
{
    return !batch->positions && model->run.max_slices == 0 && model->plans[0];
}

/* Finds out where a batch's rows are, unless they are where those before them were. */
static enum ra_status place_rows(struct ra_model *model, const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    model->placed = model->placed && rows_stay(model, batch);
    for (int64_t a = 0; a < model->n && !model->placed; a++) {
        int64_t position = model->positions[a] = position_of(model, batch, a);
        if (c->position == RA_POSITIONS_LEARNED && (position < 0 || position >= c->longest))
            return ra_model_fail(model, RA_INVALID,
                                 "positions: row %" PRId64 " is at %" PRId64 ": the model's table "
                                 "has 0 to %" PRId64,
                                 a, position, c->longest - 1);
    }
    return RA_OK;
}

/* The angles of the rows that were placed. */
static void rotate_rows(struct ra_model *model, const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    struct ra_rotary rotary = {c->head_dim, c->rotary_theta, c->rotary_scale, c->rotary_scaling};
    if (c->position == RA_POSITIONS_ROTARY && !model->placed)
        ra_rotary_angles(&rotary, model->n, model->positions, model->cosines, model->sines);
    model->placed = rows_stay(model, batch);
}

/* Makes a batch that was taken the one that is computed next, if all of it can be. */
static enum ra_status begin_batch(struct ra_model *model, const struct ra_model_batch *batch,
                                  bool labelled)
{
    int64_t vocabulary = model->config.vocabulary;
    enum ra_status status = ra_model_deal(model, batch);
    if (status == RA_OK)
        status = place_rows(model, batch);
    if (status != RA_OK)
        return status;
    if (model->rows > 0 && (!batch->tokens || (labelled && !batch->labels)))
        return ra_model_fail(model, RA_INVALID, "%s is NULL: give one for each row of this rank",
                             batch->tokens ? "labels" : "tokens");
    if (model->rows > 0 && model->run.has_mask && !batch->mask)
        return ra_model_fail(model, RA_INVALID, "mask is NULL: give one for each row of this rank");
    for (int64_t a = 0; a < model->rows; a++) {
        if (batch->tokens[a] < 0 || batch->tokens[a] >= vocabulary)
            return refuse_number(model, "tokens", a, batch->tokens[a], "0 to ");
        if (labelled && batch->labels[a] >= vocabulary)
            return refuse_number(model, "labels", a, batch->labels[a], "at most ");
    }
    return RA_OK;
}

/* The weights as a step on the host reads them: the caller's, or in bfloat16 a copy with matrices
 * rounded, and the biases of those whose products are. */
static const float *rounded_weights(struct ra_model *model, const float *weights)
{
    const struct ra_model_config *c = &model->config;
    if (!model->work.bfloat16 || model->run.device)
        return weights;
    memcpy(model->rounded, weights, (size_t)ra_parameter_numbers(c) * sizeof *weights);
    for (int i = 0; i < ra_parameter_count(c); i++) {
        struct ra_parameter x = ra_parameter(c, i);
        if (x.columns > 0)
            ra_round(&model->work, x.count, model->rounded + x.first);
    }
    for (int64_t l = 0; l < c->depth; l++) {
        struct ra_layer_weights w = ra_places_of_layer(c, model->rounded, l);
        ra_round(&model->work, w.attention.qkv_bias ? ra_qkv_width(c) : 0, w.attention.qkv_bias);
        ra_round(&model->work, w.up_bias ? ra_feed_width(c) : 0, w.up_bias);
    }
    return model->rounded;
}

/* The forward of the batch that was begun. */
static enum ra_status forward(struct ra_model *model, const float *weights,
                              const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_places_of_ends(c, weights);
    enum ra_status status = RA_OK;
    rotate_rows(model, batch);
    if (model->run.device)
        return model->run.device->forward(model, weights, batch);
    ra_embedding_forward(model->work.threads, model->rows, c->dim, batch->tokens,
                         c->embedding_scale, w.embedding, model->layers[0].x);
    if (w.positions)
        ra_positions_forward(model->work.threads, model->run.batch, model->n, c->dim,
                             model->positions, c->position_scale, w.positions, model->layers[0].x);
    for (int64_t l = 0; l < c->depth && status == RA_OK; l++)
        status = layer_forward(model, l, weights, batch, false);
    return status;
}

enum ra_status ra_model_forward(struct ra_model *model, const float *weights,
                                const struct ra_model_batch *batch)
{
    const struct ra_model_device *device = model->run.device;
    struct ra_model_batch own;
    enum ra_status status = ra_model_batch_take(model, &own, batch);
    if (status == RA_OK)
        status = begin_batch(model, &own, false);
    if (model->plans[0]) /* a decoder's tokens are the same on all ranks */
        status = ra_model_agree(model, status);
    if (status != RA_OK)
        return status;
    if (device)
        status = device->begin(model, weights, NULL);
    if (status == RA_OK)
        status = forward(model, rounded_weights(model, weights), &own);
    if (status == RA_OK && device)
        status = device->end(model, NULL);
    return ra_model_end(model, status);
}

enum ra_status ra_model_logits(struct ra_model *model, const float *weights, int64_t first,
                               int64_t count, float *logits)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_places_of_ends(c, model->rounded ? model->rounded : weights);
    if (model->run.device)
        return model->run.device->logits(model, weights, first, count, logits);
    norm_forward(model, count, model->layers[c->depth].x + first * c->dim, w.gamma, w.bias,
                 model->normal);
    if (w.logits_bias)
        ra_bias_forward(model->work.threads, count, c->vocabulary, w.logits_bias, NULL, logits);
    ra_matrix_multiply(&model->work, count, c->dim, c->vocabulary, ra_matrix(model->normal, c->dim),
                       ra_matrix_transposed(w.logits, c->dim), logits, c->vocabulary,
                       w.logits_bias != NULL);
    ra_loss_softcap(model->work.threads, count * c->vocabulary, c->logits_softcap, logits, NULL);
    return RA_OK;
}

/* The arrays of a layer's attention as they are now. */
static struct ra_arrays arrays_of(const struct ra_model *model, int64_t layer)
{
    struct ra_attention attention = attention_of(model, NULL);
    struct ra_attention_rows rows = attention_rows(&model->layers[layer]);
    const struct ra_attention_weights none = RA_ATTENTION_WEIGHTS_INIT;
    return ra_attention_arrays(&attention, &none, &rows, NULL, NULL, NULL);
}

struct ra_tensor ra_model_keys(const struct ra_model *model, int64_t layer)
{
    if (model->run.device)
        return model->run.device->cache.kept(model, layer, false);
    return arrays_of(model, layer).k;
}

struct ra_tensor ra_model_values(const struct ra_model *model, int64_t layer)
{
    if (model->run.device)
        return model->run.device->cache.kept(model, layer, true);
    return arrays_of(model, layer).v;
}

/* The sum of the losses of this rank's rows; the gradients with respect to the rows of the last
 * layer. */
static double end_forward_and_backward(struct ra_model *model, const float *weights,
                                       const int32_t *labels, double factor, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_places_of_ends(c, weights), d = {0};
    const float *x = model->layers[c->depth].x;
    int64_t T = model->rows;
    if (gradients)
        d = ra_places_of_ends(c, gradients);
    norm_forward(model, T, x, w.gamma, w.bias, model->normal);
    double loss = ra_loss(&model->work, T, c->dim, c->vocabulary, model->normal, w.logits,
                          w.logits_bias, c->logits_softcap, labels, factor,
                          gradients ? model->wide : NULL, d.logits, d.logits_bias, model->logits);
    if (gradients) {
        memset(model->gradient, 0, (size_t)(T * c->dim) * sizeof *model->gradient);
        norm_backward(model, x, w.gamma, model->wide, d.gamma, d.bias);
    }
    return loss;
}

/* Goes back through all layers, and the embedding. Gradients are added to this rank's; the last of
 * the micro-batches also adds them up over all ranks. */
static enum ra_status backward(struct ra_model *model, const float *weights,
                               const struct ra_model_batch *batch, bool last, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    int64_t numbers = ra_parameter_numbers(c), summed = numbers;
    enum ra_status status = RA_OK;
    for (int64_t l = c->depth - 1; l >= 0; l--) {
        if (model->run.recompute && l < c->depth - 1)
            status = layer_forward(model, l, weights, batch, true);
        if (status == RA_OK)
            status = layer_backward(model, l, weights, batch, gradients);
        if (status != RA_OK)
            return status;
        if (!last)
            continue;
        int64_t first = ra_places_of_layer(c, gradients, l).attention.gamma - gradients;
        begin_sum(model, gradients, first, summed);
        summed = first;
    }
    struct ra_end_weights d = ra_places_of_ends(c, gradients);
    ra_embedding_backward(model->work.threads, model->rows, c->dim, batch->tokens,
                          c->embedding_scale, model->gradient, d.embedding);
    if (d.positions)
        ra_positions_backward(model->work.threads, model->run.batch, model->n, c->dim,
                              model->positions, c->position_scale, model->gradient, d.positions);
    if (last)
        begin_sum(model, gradients, 0, summed);
    return end_sums(model);
}

/* Takes number k of the caller's batches, which lie as far apart as their size says. */
static enum ra_status take_batch(struct ra_model *model, const struct ra_model_batch *batches,
                                 int64_t k, struct ra_model_batch *own)
{
    const char *first = (const char *)batches;
    size_t size = batches ? batches->size : 0;
    return ra_model_batch_take(
        model, own, batches ? (const struct ra_model_batch *)(first + (size_t)k * size) : NULL);
}

/* Checks all micro-batches of this rank, and counts their labels. */
static enum ra_status count_labels(struct ra_model *model, int64_t count,
                                   const struct ra_model_batch *batches, double *labels)
{
    enum ra_status status = RA_OK;
    if (count < 1)
        return ra_model_fail(model, RA_INVALID, "count = %d: give 1 micro-batch or more",
                             (int)count);
    for (int64_t k = 0; k < count && status == RA_OK; k++) {
        struct ra_model_batch batch;
        status = take_batch(model, batches, k, &batch);
        if (status == RA_OK)
            status = begin_batch(model, &batch, true);
        if (status == RA_OK)
            *labels += (double)ra_loss_labels(model->rows, batch.labels);
    }
    return status;
}

/* The labels of all ranks. A rank that refuses what it was given adds -infinity: the sum then tells
 * all the others, by a message that is sent in any case. */
static enum ra_status sum_labels(struct ra_model *model, int64_t count,
                                 const struct ra_model_batch *batches, bool learns, double *labels)
{
    double sum = 0;
    enum ra_status own =
        learns && model->run.forward_only
            ? ra_model_fail(model, RA_INVALID, "gradients: give NULL, as run.forward_only is true")
            : count_labels(model, count, batches, &sum);
    if (own != RA_OK)
        sum = -(double)INFINITY;
    enum ra_status status = sum_up(model, &sum);
    if (status == RA_OK && sum < 0)
        status = ra_model_agree(model, own);
    *labels = status == RA_OK ? sum : 0;
    return status;
}

enum ra_status ra_model_step(struct ra_model *model, const float *weights, int64_t count,
                             const struct ra_model_batch *batches, float *gradients,
                             struct ra_model_loss *loss)
{
    const struct ra_model_device *device = model->run.device;
    double labels, sum = 0;
    enum ra_status status = sum_labels(model, count, batches, gradients != NULL, &labels);
    double factor = labels > 0 ? 1 / labels : 0;
    *loss = (struct ra_model_loss){0, (int64_t)labels};
    if (status != RA_OK)
        return status;
    if (device)
        status = device->begin(model, weights, gradients);
    else if (gradients)
        memset(gradients, 0, (size_t)ra_parameter_numbers(&model->config) * sizeof *gradients);
    if (status == RA_OK)
        weights = rounded_weights(model, weights);
    for (int64_t k = 0; k < count && status == RA_OK; k++) {
        struct ra_model_batch batch;
        status = take_batch(model, batches, k, &batch);
        if (status == RA_OK)
            status = begin_batch(model, &batch, true);
        if (status == RA_OK)
            status = forward(model, weights, &batch);
        if (status == RA_OK && device)
            status =
                device->backward(model, weights, &batch, factor, gradients, k > 0, k == count - 1);
        if (status != RA_OK || device)
            continue;
        sum += factor * end_forward_and_backward(model, weights, batch.labels, factor, gradients);
        if (gradients)
            status = backward(model, weights, &batch, k == count - 1, gradients);
    }
    if (device && status == RA_OK)
        status = device->end(model, &sum);
    if (status == RA_OK)
        status = sum_up(model, &sum);
    loss->mean = sum;
    return ra_model_end(model, status);
}

enum ra_status ra_model_gather(struct ra_model *model, float *all)
{
    MPI_Request request;
    int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, model->line, all, model->counts, model->places,
                               model->line, model->comm, &request);
    return ra_model_await(model, code, &request, "weights of all ranks");
}
