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

/* Numbers of a row of q, and of a row of q, k and v. */
static int64_t query_width(const struct ra_model_config *c)
{
    return c->heads * c->head_dim;
}

static int64_t qkv_width(const struct ra_model_config *c)
{
    return query_width(c) + 2 * c->key_heads * c->head_dim;
}

/* ---- Products. W is (out, in). y = x W^T, or y += x W^T; and backward dW += dy^T x, dx = dy W. dx
 * may be where x is. */

static void linear_forward(const struct ra_model *model, int64_t in, int64_t out, const float *x,
                           const float *weight, float *y, bool add)
{
    ra_matrix_multiply(&model->work, model->rows, in, out, ra_matrix(x, in),
                       ra_matrix_transposed(weight, in), y, out, add);
}

static void linear_backward(const struct ra_model *model, int64_t in, int64_t out, const float *x,
                            const float *weight, const float *dy, float *dx, float *d_weight)
{
    ra_matrix_multiply(&model->work, out, model->rows, in, ra_matrix_transposed(dy, out),
                       ra_matrix(x, in), d_weight, in, true);
    ra_matrix_multiply(&model->work, model->rows, out, in, ra_matrix(dy, out),
                       ra_matrix(weight, in), dx, in, false);
}

/* ---- Attention. */

struct ra_tensor ra_model_part(const struct ra_model *model, float *qkv, int64_t first)
{
    int64_t row = qkv_width(&model->config);
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

/* Turns q and k, which stand side by side, by the angles of their positions. */
static void rotate(const struct ra_model *model, float *qkv, int direction)
{
    const struct ra_model_config *c = &model->config;
    ra_rotary_rotate(model->work.threads, model->run.batch, model->n, c->heads + c->key_heads,
                     c->head_dim, model->cosines, model->sines, direction, qkv, qkv_width(c));
}

/* ---- A layer. */

/* mid = x + attention(norm(x)), then out = mid + feed(norm(mid)). For the backward, all but out is
 * computed again. */
static enum ra_status layer_forward(struct ra_model *model, int64_t l, const float *weights,
                                    const struct ra_model_batch *batch, bool again)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    int threads = model->work.threads;
    const struct ra_layer_rows *x = &model->layers[l];
    struct ra_layer_weights w = ra_layer_weights(c, weights, l);

    ra_norm_forward(threads, T, dim, x->x, w.attention_gamma, model->normal);
    linear_forward(model, dim, qkv_width(c), model->normal, w.qkv, x->qkv, false);
    rotate(model, x->qkv, 1);
    enum ra_status status = attend(model, l, x, batch);
    if (status != RA_OK)
        return status;
    memcpy(x->mid, x->x, (size_t)(T * dim) * sizeof *x->mid);
    linear_forward(model, query_width(c), dim, x->o, w.out, x->mid, true);

    ra_norm_forward(threads, T, dim, x->mid, w.feed_gamma, model->normal);
    ra_bias_forward(threads, T, c->hidden, w.up_bias, NULL, x->up);
    linear_forward(model, dim, c->hidden, model->normal, w.up, x->up, true);
    if (again)
        return RA_OK;
    float *out = model->layers[l + 1].x;
    ra_gelu_forward(model->work.vector, threads, T * c->hidden, x->up, model->wide);
    ra_bias_forward(threads, T, dim, w.down_bias, x->mid, out);
    linear_forward(model, c->hidden, dim, model->wide, w.down, out, true);
    return RA_OK;
}

/* model->gradient is with respect to what the layer gave, and becomes that with respect to what it
 * got. */
static enum ra_status layer_backward(struct ra_model *model, int64_t l, const float *weights,
                                     const struct ra_model_batch *batch, float *gradients)
{
    const struct ra_model_config *c = &model->config;
    int64_t T = model->rows, dim = c->dim;
    int threads = model->work.threads;
    const struct ra_layer_rows *x = &model->layers[l];
    struct ra_layer_weights w = ra_layer_weights(c, weights, l),
                            d = ra_layer_weights(c, gradients, l);
    float *gradient = model->gradient, *normal = model->normal, *wide = model->wide;

    /* out = mid + down_bias + gelu(up) down^T */
    ra_gelu_forward(model->work.vector, threads, T * c->hidden, x->up, wide);
    ra_bias_backward(threads, T, dim, gradient, d.down_bias);
    linear_backward(model, c->hidden, dim, wide, w.down, gradient, wide, d.down);
    ra_gelu_backward(model->work.vector, threads, T * c->hidden, x->up, wide, wide);

    /* up = up_bias + norm(mid) up^T */
    ra_norm_forward(threads, T, dim, x->mid, w.feed_gamma, normal);
    ra_bias_backward(threads, T, c->hidden, wide, d.up_bias);
    linear_backward(model, dim, c->hidden, normal, w.up, wide, normal, d.up);
    ra_norm_backward(threads, T, dim, x->mid, w.feed_gamma, normal, gradient, d.feed_gamma,
                     model->factors);

    /* mid = x + attention(rotate(norm(x) qkv^T)) out^T */
    float *d_o = wide, *d_qkv = wide + T * query_width(c);
    linear_backward(model, query_width(c), dim, x->o, w.out, gradient, d_o, d.out);
    struct ra_arrays arrays = arrays_of(model, x, batch, d_o, d_qkv);
    enum ra_status status = ra_backward(model->plans[l], &arrays);
    if (status != RA_OK)
        return ra_model_fail(model, status, "layer %d: %s", (int)l, ra_plan_error(model->plans[l]));
    rotate(model, d_qkv, -1);
    ra_norm_forward(threads, T, dim, x->x, w.attention_gamma, normal);
    linear_backward(model, dim, qkv_width(c), normal, w.qkv, d_qkv, normal, d.qkv);
    ra_norm_backward(threads, T, dim, x->x, w.attention_gamma, normal, gradient, d.attention_gamma,
                     model->factors);
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

enum ra_status ra_model_forward(struct ra_model *model, const float *weights,
                                const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_end_weights(c, weights);
    for (int64_t a = 0; a < model->rows; a++)
        if (batch->tokens[a] < 0 || batch->tokens[a] >= c->vocabulary)
            return refuse_number(model, "tokens", a, batch->tokens[a], "0 to ");
    ra_embedding_forward(model->work.threads, model->rows, c->dim, batch->tokens, w.embedding,
                         model->layers[0].x);
    enum ra_status status = RA_OK;
    for (int64_t l = 0; l < c->depth && status == RA_OK; l++)
        status = layer_forward(model, l, weights, batch, false);
    return status;
}

void ra_model_logits(struct ra_model *model, const float *weights, int64_t first, int64_t count,
                     float *logits)
{
    const struct ra_model_config *c = &model->config;
    struct ra_end_weights w = ra_end_weights(c, weights);
    ra_norm_forward(model->work.threads, count, c->dim, model->layers[c->depth].x + first * c->dim,
                    w.gamma, model->normal);
    ra_matrix_multiply(&model->work, count, c->dim, c->vocabulary, ra_matrix(model->normal, c->dim),
                       ra_matrix_transposed(w.logits, c->dim), logits, c->vocabulary, false);
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
    ra_norm_forward(model->work.threads, T, c->dim, x, w.gamma, model->normal);
    double loss = ra_loss(&model->work, T, c->dim, c->vocabulary, model->normal, w.logits, labels,
                          factor, gradients ? model->wide : NULL, d.logits, model->logits);
    if (gradients) {
        memset(model->gradient, 0, (size_t)(T * c->dim) * sizeof *model->gradient);
        ra_norm_backward(model->work.threads, T, c->dim, x, w.gamma, model->wide, model->gradient,
                         d.gamma, model->factors);
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
    ra_embedding_backward(model->work.threads, model->rows, c->dim, batch->tokens, model->gradient,
                          ra_end_weights(c, gradients).embedding);
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
