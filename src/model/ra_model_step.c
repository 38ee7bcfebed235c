/* ra_model_step: the forward of a model, and its backward. See ra_model.h.
 *
 * Chapter 10. New here: the backward of each line, in the opposite order.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "ra_collective.h"
#include "ra_layers.h"
#include "ra_loss.h"
#include "ra_model_parts.h"
#include "ra_rotary.h"

/* Numbers of a row of q. */
static int64_t query_width(const struct ra_model_config *c)
{
    return c->heads * c->head_dim;
}

/* ---- Attention. */

struct ra_tensor ra_model_part(const struct ra_model *model, float *qkv, int64_t first)
{
    int64_t row = ra_qkv_width(&model->config);
    return (struct ra_tensor){qkv + first, RA_FLOAT32, model->n * row, row, model->config.head_dim};
}

/* The arrays of a layer's attention; with gradients, d_o and those of q, k and v. */
static struct ra_arrays arrays_of(const struct ra_model *model, const struct ra_layer_rows *x,
                                  const struct ra_model_batch *batch, float *d_o, float *d_qkv)
{
    const struct ra_model_config *c = &model->config;
    int64_t k = query_width(c), v = k + c->key_heads * c->head_dim;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_model_part(model, x->qkv, 0);
    arrays.k = ra_model_part(model, x->qkv, k);
    arrays.v = ra_model_part(model, x->qkv, v);
    arrays.mask = ra_tensor_bn((void *)batch->mask, model->n);
    arrays.o = ra_tensor_bnhd(x->o, RA_FLOAT32, model->n, c->heads, c->head_dim);
    arrays.lse = ra_tensor_bhn(x->lse, model->n, c->heads);
    if (d_qkv) {
        arrays.d_out = ra_tensor_bnhd(d_o, RA_FLOAT32, model->n, c->heads, c->head_dim);
        arrays.dq = ra_model_part(model, d_qkv, 0);
        arrays.dk = ra_model_part(model, d_qkv, k);
        arrays.dv = ra_model_part(model, d_qkv, v);
    }
    return arrays;
}

/* o = attention(q, k, v), of the whole sequence, or of the new tokens of a decoder over all so
 * far. */
static enum ra_status attend(struct ra_model *model, int64_t l, const struct ra_layer_rows *x,
                             const struct ra_model_batch *batch)
{
    struct ra_arrays arrays = arrays_of(model, x, batch, NULL, NULL);
    struct ra_tree *tree = model->trees[l];
    enum ra_status status;
    if (!tree)
        status = ra_forward(model->plans[l], &arrays);
    else if ((status = ra_tree_keep(tree, model->first, model->n, arrays.k, arrays.v)) == RA_OK)
        status = ra_tree_attend(tree, model->n, &arrays);
    if (status != RA_OK)
        ra_model_fail(model, status, "layer %d: %s", (int)l,
                      tree ? ra_tree_error(tree) : ra_plan_error(model->plans[l]));
    return status;
}

/* ---- The parts: each is the one that the config names. */

/* The norm of rows, and its gradient, which is added to model->gradient. */
static void norm_forward(const struct ra_model *model, int64_t rows, const float *x,
                         const float *gamma, const float *bias, float *out)
{
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    ra_norm_forward(model->work.threads, norm, rows, model->config.dim, x, gamma, bias, out);
}

static void norm_backward(const struct ra_model *model, const float *x, const float *gamma,
                          const float *d_out, float *d_gamma, float *d_bias)
{
    struct ra_norm norm = {model->config.norm, model->config.norm_eps};
    ra_norm_backward(model->work.threads, norm, model->rows, model->config.dim, x, gamma, d_out,
                     model->gradient, d_gamma, d_bias, model->scales);
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
        ra_swiglu_forward(vector, model->work.threads, T, hidden, in, out);
}

static float *bend_backward(const struct ra_model *model, const float *in)
{
    const struct ra_vector *vector = model->work.vector;
    int64_t T = model->rows, hidden = model->config.hidden;
    float *d_out = model->wide, *d_in = d_out + T * hidden;
    if (model->config.feed == RA_FEED_GELU) {
        ra_gelu_backward(vector, model->work.threads, T * hidden, in, d_out, d_out);
        return d_out;
    }
    ra_swiglu_backward(vector, model->work.threads, T, hidden, in, d_out, d_in);
    return d_in;
}

/* The norm of each head's q and k. What they were is kept: of q, then of k. */
static void head_norm_forward(const struct ra_model *model, const struct ra_layer_weights *w,
                              const struct ra_layer_rows *x)
{
    const struct ra_model_config *c = &model->config;
    struct ra_norm norm = {RA_NORM_RMS, c->norm_eps};
    int64_t T = model->rows, row = ra_qkv_width(c), query = query_width(c);
    if (!c->head_norm)
        return;
    ra_head_norm_forward(model->work.threads, norm, T, c->heads, c->head_dim, w->q_gamma, x->qkv,
                         row, x->raw);
    ra_head_norm_forward(model->work.threads, norm, T, c->key_heads, c->head_dim, w->k_gamma,
                         x->qkv + query, row, x->raw + T * query);
}

static void head_norm_backward(const struct ra_model *model, const struct ra_layer_weights *w,
                               const struct ra_layer_rows *x, float *d_qkv,
                               const struct ra_layer_weights *d)
{
    const struct ra_model_config *c = &model->config;
    struct ra_norm norm = {RA_NORM_RMS, c->norm_eps};
    int64_t T = model->rows, row = ra_qkv_width(c), query = query_width(c);
    if (!c->head_norm)
        return;
    ra_head_norm_backward(model->work.threads, norm, T, c->heads, c->head_dim, x->raw, w->q_gamma,
                          d_qkv, row, d->q_gamma, model->scales);
    ra_head_norm_backward(model->work.threads, norm, T, c->key_heads, c->head_dim,
                          x->raw + T * query, w->k_gamma, d_qkv + query, row, d->k_gamma,
                          model->scales);
}

/* Turns q and k, which stand side by side, by the angles of their positions. */
static void rotate(const struct ra_model *model, float *qkv, int direction)
{
    const struct ra_model_config *c = &model->config;
    if (c->position == RA_POSITIONS_ROTARY)
        ra_rotary_rotate(model->work.threads, model->run.batch, model->n, c->heads + c->key_heads,
                         c->head_dim, model->cosines, model->sines, direction, qkv,
                         ra_qkv_width(c));
}

/* ---- A layer. */

/* mid = x + attention(norm(x)), then out = mid + feed(norm(mid)). For the backward, all but out is
 * computed again. */
static enum ra_status layer_forward(struct ra_model *model, int64_t l, const float *weights,
                                    const struct ra_model_batch *batch, bool again)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    const struct ra_layer_rows *x = &model->layers[l];
    struct ra_layer_weights w = ra_layer_weights(c, weights, l);

    norm_forward(model, T, x->x, w.attention_gamma, w.attention_bias, model->normal);
    ra_linear_forward(&model->work, T, dim, ra_qkv_width(c), model->normal, w.qkv, w.qkv_bias, NULL,
                      x->qkv);
    head_norm_forward(model, &w, x);
    rotate(model, x->qkv, 1);
    enum ra_status status = attend(model, l, x, batch);
    if (status != RA_OK)
        return status;
    ra_linear_forward(&model->work, T, query_width(c), dim, x->o, w.out, w.out_bias, x->x, x->mid);

    norm_forward(model, T, x->mid, w.feed_gamma, w.feed_bias, model->normal);
    ra_linear_forward(&model->work, T, dim, ra_feed_width(c), model->normal, w.up, w.up_bias, NULL,
                      x->up);
    if (again)
        return RA_OK;
    bend_forward(model, x->up, model->wide);
    ra_linear_forward(&model->work, T, c->hidden, dim, model->wide, w.down, w.down_bias, x->mid,
                      model->layers[l + 1].x);
    return RA_OK;
}

/* model->gradient is with respect to what the layer gave, and becomes that with respect to what it
 * got. */
static enum ra_status layer_backward(struct ra_model *model, int64_t l, const float *weights,
                                     const struct ra_model_batch *batch, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    const struct ra_layer_rows *x = &model->layers[l];
    struct ra_layer_weights w = ra_layer_weights(c, weights, l);
    struct ra_layer_weights d = ra_layer_weights(c, gradients, l);
    float *gradient = model->gradient, *normal = model->normal, *wide = model->wide;

    /* out = mid + down_bias + bend(up) down^T */
    bend_forward(model, x->up, wide);
    ra_linear_backward(&model->work, T, c->hidden, dim, wide, w.down, gradient, wide, d.down,
                       d.down_bias);
    float *d_up = bend_backward(model, x->up);

    /* up = up_bias + norm(mid) up^T */
    norm_forward(model, T, x->mid, w.feed_gamma, w.feed_bias, normal);
    ra_linear_backward(&model->work, T, dim, ra_feed_width(c), normal, w.up, d_up, normal, d.up,
                       d.up_bias);
    norm_backward(model, x->mid, w.feed_gamma, normal, d.feed_gamma, d.feed_bias);

    /* mid = x + out_bias + attention(rotate(head_norm(qkv_bias + norm(x) qkv^T))) out^T */
    float *d_o = wide, *d_qkv = wide + T * query_width(c);
    ra_linear_backward(&model->work, T, query_width(c), dim, x->o, w.out, gradient, d_o, d.out,
                       d.out_bias);
    struct ra_arrays arrays = arrays_of(model, x, batch, d_o, d_qkv);
    enum ra_status status = ra_backward(model->plans[l], &arrays);
    if (status != RA_OK)
        return ra_model_fail(model, status, "layer %d: %s", (int)l, ra_plan_error(model->plans[l]));
    rotate(model, d_qkv, -1);
    head_norm_backward(model, &w, x, d_qkv, &d);
    norm_forward(model, T, x->x, w.attention_gamma, w.attention_bias, normal);
    ra_linear_backward(&model->work, T, dim, ra_qkv_width(c), normal, w.qkv, d_qkv, normal, d.qkv,
                       d.qkv_bias);
    norm_backward(model, x->x, w.attention_gamma, normal, d.attention_gamma, d.attention_bias);
    return RA_OK;
}

/* ---- The model. */

enum ra_status ra_model_await(struct ra_model *model, int code, MPI_Request *request,
                              const char *what)
{
    bool done =
        ra_collective_wait(model->comm, code, request, model->run.timeout, what, model->error);
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
    MPI_Iallreduce(MPI_IN_PLACE, gradients + first, (int)(last - first), MPI_FLOAT, MPI_SUM,
                   model->comm, &model->requests[model->request_count++]);
}

static enum ra_status end_sums(struct ra_model *model)
{
    enum ra_status status = RA_OK;
    while (model->request_count > 0 && status == RA_OK)
        status = ra_model_await(model, MPI_SUCCESS, &model->requests[--model->request_count],
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
    int64_t position = model->plans[0]
                           ? ra_layout_position(ra_plan_layout(model->plans[0], RA_QUERY_SIDE),
                                                model->rank % P, a % model->n)
                           : model->first + a;
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
    return model->plans[0] ? ra_plan_position(model->plans[0], RA_QUERY_SIDE, a) : model->first + a;
}

/* Finds out where a batch's rows are, unless they are where those before them were. */
static enum ra_status place_rows(struct ra_model *model, const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    struct ra_rotary rotary = {c->head_dim, c->rotary_theta, c->rotary_scale, c->rotary_scaling};
    bool stay = !batch->positions && model->run.max_slices == 0 && model->plans[0];
    if (stay && model->placed)
        return RA_OK;
    model->placed = stay;
    for (int64_t a = 0; a < model->n; a++) {
        int64_t position = model->positions[a] = position_of(model, batch, a);
        if (c->position == RA_POSITIONS_LEARNED && (position < 0 || position >= c->longest))
            return ra_model_fail(model, RA_INVALID,
                                 "positions: row %" PRId64 " is at %" PRId64 ": the model's table "
                                 "has 0 to %" PRId64,
                                 a, position, c->longest - 1);
    }
    if (c->position == RA_POSITIONS_ROTARY)
        ra_rotary_angles(&rotary, model->n, model->positions, model->cosines, model->sines);
    return RA_OK;
}

enum ra_status ra_model_forward(struct ra_model *model, const float *weights,
                                const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_end_weights(c, weights);
    enum ra_status status = ra_model_set_slices(model, batch);
    if (status == RA_OK)
        status = place_rows(model, batch);
    if (status != RA_OK)
        return status;
    for (int64_t a = 0; a < model->rows; a++)
        if (batch->tokens[a] < 0 || batch->tokens[a] >= c->vocabulary)
            return refuse_number(model, "tokens", a, batch->tokens[a], "0 to ");
    ra_embedding_forward(model->work.threads, model->rows, c->dim, batch->tokens, w.embedding,
                         model->layers[0].x);
    if (w.positions)
        ra_positions_forward(model->work.threads, model->run.batch, model->n, c->dim,
                             model->positions, c->position_scale, w.positions, model->layers[0].x);
    for (int64_t l = 0; l < c->depth && status == RA_OK; l++)
        status = layer_forward(model, l, weights, batch, false);
    return status;
}

void ra_model_logits(struct ra_model *model, const float *weights, int64_t first, int64_t count,
                     float *logits)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_end_weights(c, weights);
    norm_forward(model, count, model->layers[c->depth].x + first * c->dim, w.gamma, w.bias,
                 model->normal);
    if (w.logits_bias)
        ra_bias_forward(model->work.threads, count, c->vocabulary, w.logits_bias, NULL, logits);
    ra_matrix_multiply(&model->work, count, c->dim, c->vocabulary, ra_matrix(model->normal, c->dim),
                       ra_matrix_transposed(w.logits, c->dim), logits, c->vocabulary,
                       w.logits_bias != NULL);
}

struct ra_tensor ra_model_keys(const struct ra_model *model, int64_t layer)
{
    return ra_model_part(model, model->layers[layer].qkv, query_width(&model->config));
}

struct ra_tensor ra_model_values(const struct ra_model *model, int64_t layer)
{
    const struct ra_model_config *c = &model->config;
    return ra_model_part(model, model->layers[layer].qkv,
                         query_width(c) + c->key_heads * c->head_dim);
}

/* The sum of the losses of this rank's rows; the gradients with respect to the rows of the last
 * layer. */
static double end_forward_and_backward(struct ra_model *model, const float *weights,
                                       const int32_t *labels, double factor, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_end_weights(c, weights), d = {0};
    const float *x = model->layers[c->depth].x;
    int64_t T = model->rows;
    if (gradients)
        d = ra_end_weights(c, gradients);
    norm_forward(model, T, x, w.gamma, w.bias, model->normal);
    double loss = ra_loss(&model->work, T, c->dim, c->vocabulary, model->normal, w.logits,
                          w.logits_bias, labels, factor, gradients ? model->wide : NULL, d.logits,
                          d.logits_bias, model->logits);
    if (gradients) {
        memset(model->gradient, 0, (size_t)(T * c->dim) * sizeof *model->gradient);
        norm_backward(model, x, w.gamma, model->wide, d.gamma, d.bias);
    }
    return loss;
}

/* All layers, in the opposite order, and the embedding. Gradients are added to this rank's; the
 * last of the micro-batches also adds up those of all ranks. */
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
        int64_t first = ra_layer_weights(c, gradients, l).attention_gamma - gradients;
        begin_sum(model, gradients, first, summed);
        summed = first;
    }
    struct ra_end_weights d = ra_end_weights(c, gradients);
    ra_embedding_backward(model->work.threads, model->rows, c->dim, batch->tokens, model->gradient,
                          d.embedding);
    if (d.positions)
        ra_positions_backward(model->work.threads, model->run.batch, model->n, c->dim,
                              model->positions, c->position_scale, model->gradient, d.positions);
    if (last)
        begin_sum(model, gradients, 0, summed);
    return end_sums(model);
}

/* Counts this rank's labels of all micro-batches. */
static enum ra_status count_labels(struct ra_model *model, int64_t count,
                                   const struct ra_model_batch *batches, double *labels)
{
    int64_t vocabulary = model->config.vocabulary;
    *labels = 0;
    for (int64_t k = 0; k < count; k++) {
        enum ra_status status = ra_model_set_slices(model, &batches[k]);
        if (status != RA_OK)
            return status;
        *labels += (double)ra_loss_labels(model->rows, batches[k].labels);
        for (int64_t a = 0; a < model->rows; a++)
            if (batches[k].labels[a] >= vocabulary)
                return refuse_number(model, "labels", a, batches[k].labels[a], "at most ");
    }
    return RA_OK;
}

enum ra_status ra_model_step(struct ra_model *model, const float *weights, int64_t count,
                             const struct ra_model_batch *batches, float *gradients,
                             struct ra_model_loss *loss)
{
    double labels, sum = 0;
    if (count < 1)
        return ra_model_fail(model, RA_INVALID, "count = %d: give 1 micro-batch or more",
                             (int)count);
    enum ra_status status = count_labels(model, count, batches, &labels);
    if (status == RA_OK)
        status = sum_up(model, &labels);
    double factor = labels > 0 ? 1 / labels : 0;
    if (gradients)
        memset(gradients, 0, (size_t)ra_parameter_numbers(&model->config) * sizeof *gradients);
    for (int64_t k = 0; k < count && status == RA_OK; k++) {
        status = ra_model_forward(model, weights, &batches[k]);
        if (status != RA_OK)
            break;
        sum +=
            factor * end_forward_and_backward(model, weights, batches[k].labels, factor, gradients);
        if (gradients)
            status = backward(model, weights, &batches[k], k == count - 1, gradients);
    }
    if (status == RA_OK)
        status = sum_up(model, &sum);
    *loss = (struct ra_model_loss){sum, (int64_t)labels};
    return status;
}

enum ra_status ra_model_gather(struct ra_model *model, float *all)
{
    MPI_Request request;
    int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, all, model->counts, model->places,
                               MPI_FLOAT, model->comm, &request);
    return ra_model_await(model, code, &request, "weights of all ranks");
}
