/* ra_gpu_step: the forward of a model on a GPU, its backward, and a step of AdamW. See ra_gpu.h.
 *
 * Chapter 14. New here: everything is begun on one stream, and only the end of a step waits. The
 * lines are those of ra_model_step.c; what differs is what shares a visit to memory.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_gpu.h"
#include "ra_math.h"
#include "ring_attention_cuda.h"

/* The current batch of rows, and the weights, as the products read them. */
struct step {
    struct ra_model *model;
    struct ra_gpu *gpu;
    const struct ra_model_config *c;
    const float *weights;
    float *gradients; /* NULL: none are wanted */
    bool add, last;   /* to gradients of a micro-batch before this one; there is none behind it */
    int64_t T, dim, query, qkv, up;
    bool has_mask;
};

static struct step step_of(struct ra_model *model, const float *weights,
                           const struct ra_model_batch *batch)
{
    const struct ra_model_config *c = &model->config;
    return (struct step){.model = model,
                         .gpu = model->own,
                         .c = c,
                         .weights = weights,
                         .has_mask = batch && batch->mask,
                         .T = model->rows,
                         .dim = c->dim,
                         .query = c->heads * c->head_dim,
                         .qkv = ra_qkv_width(c),
                         .up = ra_feed_width(c)};
}

/* An array of weights in the type of products; NULL stays NULL. */
static const void *in_type(const struct step *s, const float *array)
{
    if (!array || s->gpu->type == RA_FLOAT32)
        return array;
    return (const uint16_t *)s->gpu->rounded + (array - s->weights);
}

static void *part(const struct ra_gpu *gpu, void *rows, int64_t first)
{
    return (char *)rows + first * ra_type_bytes(gpu->type);
}

/* ---- A batch. */

/* Sorts rows by where they belong, stably: groups of those that have a place in common. Returns
 * how many groups there are. */
static int64_t group(int32_t *counts, int64_t places, int64_t rows, int64_t n, const int32_t *place,
                     int32_t *first, int32_t *key, int32_t *order)
{
    int64_t groups = 0;
    int32_t begun = 0;
    memset(counts, 0, (size_t)places * sizeof *counts);
    for (int64_t a = 0; a < rows; a++)
        counts[place[a % n]]++;
    for (int64_t p = 0; p < places; p++) {
        if (counts[p] == 0)
            continue;
        first[groups] = begun;
        key[groups++] = (int32_t)p;
        begun += counts[p];
        counts[p] = begun - counts[p];
    }
    first[groups] = begun;
    for (int64_t a = 0; a < rows; a++)
        order[counts[place[a % n]]++] = (int32_t)a;
    return groups;
}

/* Begins to copy what the host knows of a batch. Its place there is free again once that which was
 * copied from it two batches ago has left. */
static void upload(const struct step *s, const struct ra_model_batch *batch)
{
    struct ra_gpu *gpu = s->gpu;
    const struct ra_model *model = s->model;
    struct ra_gpu_batch *from = &gpu->staged[gpu->turn], *to = &gpu->batch;
    int64_t T = s->T, n = model->n, half = n * s->c->head_dim / 2;
    RA_GPU(gpu, cudaEventSynchronize(gpu->uploaded[gpu->turn]));
    memcpy(from->tokens, batch->tokens, (size_t)T * sizeof(int32_t));
    bool learns = !model->run.forward_only, stay = gpu->placed && model->placed;
    if (learns)
        to->groups = group(gpu->counts, s->c->vocabulary, T, T, from->tokens, from->first,
                           from->key, from->order);
    if (batch->labels)
        memcpy(from->labels, batch->labels, (size_t)T * sizeof(int32_t));
    if (s->has_mask)
        memcpy(from->mask, batch->mask, (size_t)T);
    if (s->c->position == RA_POSITIONS_LEARNED) {
        for (int64_t a = 0; a < n; a++)
            from->places[a] = (int32_t)model->positions[a];
        if (learns)
            to->place_groups = group(gpu->counts, s->c->longest, T, n, from->places,
                                     from->place_first, from->place_key, from->place_order);
    } else if (!stay) {
        memcpy(from->cosines, model->cosines, (size_t)half * sizeof(float));
        memcpy(from->sines, model->sines, (size_t)half * sizeof(float));
    }

    /* One copy of all, as the parts lie one after the other in both places; angles are the last. */
    char *start = (char *)from->tokens;
    char *end = gpu->turn == 0 ? (char *)gpu->staged[1].tokens : (char *)gpu->results;
    end = stay ? (char *)from->cosines : end;
    RA_GPU(gpu, cudaMemcpyAsync(to->tokens, start, (size_t)(end - start), cudaMemcpyHostToDevice,
                                gpu->stream));
    gpu->placed = model->placed && s->c->position == RA_POSITIONS_ROTARY;
    RA_GPU(gpu, cudaEventRecord(gpu->uploaded[gpu->turn], gpu->stream));
    gpu->turn = 1 - gpu->turn;
}

/* ---- The parts. */

static struct ra_norm norm_of(const struct step *s)
{
    return (struct ra_norm){s->c->norm, s->c->norm_eps};
}

static void norm_forward(const struct step *s, int64_t rows, const float *x, const float *gamma,
                         const float *bias)
{
    RA_GPU(s->gpu, ra_kernel_norm_forward(norm_of(s), rows, s->dim, x, gamma, bias, s->gpu->type,
                                          s->gpu->normal, s->gpu->stream));
}

/* The gradient of a norm's output lies in `normal`. */
static void norm_backward(const struct step *s, const float *x, const float *gamma, bool add,
                          float *d_gamma, float *d_bias)
{
    struct ra_gpu *gpu = s->gpu;
    RA_GPU(gpu, ra_kernel_norm_backward(norm_of(s), s->T, s->dim, x, gamma, gpu->type, gpu->normal,
                                        add, gpu->gradient,
                                        gpu->type == RA_FLOAT32 ? NULL : gpu->rounded_gradient,
                                        d_gamma, d_bias, gpu->scratch, gpu->stream));
}

/* The gradients of a product's weight and bias, of inputs x (T, in) and dy (T, out). */
static void d_weight(const struct step *s, int64_t in, int64_t out, const void *x, const void *dy,
                     float *weight, float *bias)
{
    struct ra_gpu *gpu = s->gpu;
    ra_products_d_weight(gpu->products, s->T, in, out, x, dy, out, s->add, weight);
    if (bias)
        RA_GPU(gpu,
               ra_kernel_add_rows(s->T, out, gpu->type, dy, out, bias, gpu->scratch, gpu->stream));
}

/* The heads of q, or of k, or of both, which lie side by side. */
static struct ra_heads heads_of(const struct step *s, int64_t heads, const float *gamma)
{
    bool rotated = s->c->position == RA_POSITIONS_ROTARY;
    return (struct ra_heads){s->T,
                             s->model->n,
                             heads,
                             s->c->head_dim,
                             s->qkv,
                             rotated ? s->gpu->batch.cosines : NULL,
                             rotated ? s->gpu->batch.sines : NULL,
                             gamma,
                             s->c->norm_eps};
}

static void heads_forward(const struct step *s, const struct ra_attention_weights *w,
                          const struct ra_gpu_layer *kept)
{
    struct ra_gpu *gpu = s->gpu;
    struct ra_heads both = heads_of(s, s->c->heads + s->c->key_heads, NULL);
    struct ra_heads q = heads_of(s, s->c->heads, w->q_gamma);
    struct ra_heads k = heads_of(s, s->c->key_heads, w->k_gamma);
    if (s->c->head_norm) {
        RA_GPU(gpu, ra_kernel_heads_forward(&q, gpu->type, kept->qkv, kept->raw, gpu->stream));
        RA_GPU(gpu, ra_kernel_heads_forward(&k, gpu->type, part(gpu, kept->qkv, s->query),
                                            part(gpu, kept->raw, s->T * s->query), gpu->stream));
    } else if (both.cosines) {
        RA_GPU(gpu, ra_kernel_heads_forward(&both, gpu->type, kept->qkv, NULL, gpu->stream));
    }
}

static void heads_backward(const struct step *s, const struct ra_attention_weights *w,
                           const struct ra_gpu_layer *kept, void *d_qkv,
                           const struct ra_attention_weights *d)
{
    struct ra_gpu *gpu = s->gpu;
    struct ra_heads both = heads_of(s, s->c->heads + s->c->key_heads, NULL);
    struct ra_heads q = heads_of(s, s->c->heads, w->q_gamma);
    struct ra_heads k = heads_of(s, s->c->key_heads, w->k_gamma);
    if (s->c->head_norm) {
        RA_GPU(gpu, ra_kernel_heads_backward(&q, gpu->type, d_qkv, kept->raw, d->q_gamma,
                                             gpu->scratch, gpu->stream));
        RA_GPU(gpu, ra_kernel_heads_backward(&k, gpu->type, part(gpu, d_qkv, s->query),
                                             part(gpu, kept->raw, s->T * s->query), d->k_gamma,
                                             gpu->scratch, gpu->stream));
    } else if (both.cosines) {
        RA_GPU(gpu,
               ra_kernel_heads_backward(&both, gpu->type, d_qkv, NULL, NULL, NULL, gpu->stream));
    }
}

/* q, k or v, or their gradients: a part of rows of all three. */
static struct ra_tensor tensor(const struct step *s, void *qkv, int64_t first)
{
    return (struct ra_tensor){part(s->gpu, qkv, first), s->gpu->type, s->model->n * s->qkv, s->qkv,
                              s->c->head_dim};
}

/* Attention forward, or with d_o backward. */
static enum ra_status attend(const struct step *s, int64_t l, void *d_o, void *d_qkv)
{
    const struct ra_model_config *c = s->c;
    const struct ra_gpu_layer *kept = &s->gpu->layers[l];
    int64_t n = s->model->n, k = s->query, v = k + c->key_heads * c->head_dim;
    struct ra_plan *plan = s->model->plans[l];
    if (ra_gpu_decodes(s->model))
        return ra_gpu_decode(s->model, l);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = tensor(s, kept->qkv, 0);
    arrays.k = tensor(s, kept->qkv, k);
    arrays.v = tensor(s, kept->qkv, v);
    arrays.mask = ra_tensor_bn(s->has_mask ? s->gpu->batch.mask : NULL, n);
    arrays.o = ra_tensor_bnhd(kept->o, s->gpu->type, n, c->heads, c->head_dim);
    arrays.lse = ra_tensor_bhn(kept->lse, n, c->heads);
    if (d_o) {
        arrays.d_out = ra_tensor_bnhd(d_o, s->gpu->type, n, c->heads, c->head_dim);
        arrays.dq = tensor(s, d_qkv, 0);
        arrays.dk = tensor(s, d_qkv, k);
        arrays.dv = tensor(s, d_qkv, v);
    }
    enum ra_status status = ra_gpu_status(s->model);
    if (status != RA_OK)
        return status;
    status = d_o ? ra_cuda_backward(plan, &arrays, s->gpu->stream)
                 : ra_cuda_forward(plan, &arrays, s->gpu->stream);
    if (status != RA_OK)
        ra_model_fail(s->model, status, "layer %d: %s", (int)l, ra_plan_error(plan));
    return status;
}

/* ---- A layer. */

static enum ra_status layer_forward(const struct step *s, int64_t l, bool again)
{
    struct ra_gpu *gpu = s->gpu;
    const struct ra_gpu_layer *kept = &gpu->layers[l];
    struct ra_layer_weights w = ra_places_of_layer(s->c, s->weights, l);

    ra_gpu_mark(gpu, l, "norm");
    norm_forward(s, s->T, kept->x, w.attention.gamma, w.attention.bias);
    ra_gpu_mark(gpu, l, "qkv");
    ra_products_forward(gpu->products, s->T, s->dim, s->qkv, gpu->normal,
                        in_type(s, w.attention.qkv), in_type(s, w.attention.qkv_bias), NULL, false,
                        kept->qkv);
    ra_gpu_mark(gpu, l, "heads");
    heads_forward(s, &w.attention, kept);
    ra_gpu_mark(gpu, l, "attention");
    enum ra_status status = attend(s, l, NULL, NULL);
    if (status != RA_OK)
        return status;
    ra_gpu_mark(gpu, l, "out");
    ra_products_forward(gpu->products, s->T, s->query, s->dim, kept->o, in_type(s, w.attention.out),
                        w.attention.out_bias, kept->x, true, kept->mid);

    ra_gpu_mark(gpu, l, "norm");
    norm_forward(s, s->T, kept->mid, w.feed_gamma, w.feed_bias);
    ra_gpu_mark(gpu, l, "feed");
    ra_products_forward(gpu->products, s->T, s->dim, s->up, gpu->normal, in_type(s, w.up),
                        in_type(s, w.up_bias), NULL, false, kept->up);
    if (again)
        return RA_OK;
    RA_GPU(gpu, ra_kernel_bend_forward(s->c->feed, s->T, s->c->hidden, gpu->type, kept->up,
                                       gpu->wide[1], gpu->stream));
    ra_products_forward(gpu->products, s->T, s->c->hidden, s->dim, gpu->wide[1], in_type(s, w.down),
                        w.down_bias, kept->mid, true, gpu->layers[l + 1].x);
    return RA_OK;
}

/* Each half of a layer's backward turns gpu->gradient, which is that of the half's output, into
 * that of its input. */
static void feed_backward(const struct step *s, int64_t l)
{
    struct ra_gpu *gpu = s->gpu;
    const struct ra_gpu_layer *kept = &gpu->layers[l];
    struct ra_layer_weights w = ra_places_of_layer(s->c, s->weights, l);
    struct ra_layer_weights d = ra_places_of_layer(s->c, s->gradients, l);
    void *gradient = gpu->rounded_gradient, *normal = gpu->normal;

    /* out = mid + down_bias + bend(up) down^T */
    void *d_bent = gpu->wide[0], *bent = gpu->wide[1], *d_up = gpu->wide[2];
    ra_gpu_mark(gpu, l, "feed backward");
    ra_products_d_x(gpu->products, s->T, s->c->hidden, s->dim, in_type(s, w.down), gradient, s->dim,
                    d_bent);
    RA_GPU(gpu, ra_kernel_bend_backward(s->c->feed, s->T, s->c->hidden, gpu->type, kept->up, d_bent,
                                        bent, d_up, gpu->stream));
    d_weight(s, s->c->hidden, s->dim, bent, gradient, d.down, d.down_bias);

    /* up = up_bias + norm(mid) up^T */
    norm_forward(s, s->T, kept->mid, w.feed_gamma, w.feed_bias);
    d_weight(s, s->dim, s->up, normal, d_up, d.up, d.up_bias);
    ra_products_d_x(gpu->products, s->T, s->dim, s->up, in_type(s, w.up), d_up, s->up, normal);
    ra_gpu_mark(gpu, l, "norm backward");
    norm_backward(s, kept->mid, w.feed_gamma, true, d.feed_gamma, d.feed_bias);
}

static enum ra_status attention_backward(const struct step *s, int64_t l)
{
    struct ra_gpu *gpu = s->gpu;
    const struct ra_gpu_layer *kept = &gpu->layers[l];
    struct ra_attention_weights w = ra_places_of_layer(s->c, s->weights, l).attention;
    struct ra_attention_weights d = ra_places_of_layer(s->c, s->gradients, l).attention;
    void *gradient = gpu->rounded_gradient, *normal = gpu->normal;

    /* mid = x + out_bias + attention(rotate(head_norm(qkv_bias + norm(x) qkv^T))) out^T */
    void *d_o = gpu->wide[0], *d_qkv = gpu->wide[1];
    ra_gpu_mark(gpu, l, "out backward");
    ra_products_d_x(gpu->products, s->T, s->query, s->dim, in_type(s, w.out), gradient, s->dim,
                    d_o);
    d_weight(s, s->query, s->dim, kept->o, gradient, d.out, d.out_bias);
    ra_gpu_mark(gpu, l, "attention backward");
    enum ra_status status = attend(s, l, d_o, d_qkv);
    if (status != RA_OK)
        return status;
    ra_gpu_mark(gpu, l, "heads backward");
    heads_backward(s, &w, kept, d_qkv, &d);
    ra_gpu_mark(gpu, l, "qkv backward");
    norm_forward(s, s->T, kept->x, w.gamma, w.bias);
    d_weight(s, s->dim, s->qkv, normal, d_qkv, d.qkv, d.qkv_bias);
    ra_products_d_x(gpu->products, s->T, s->dim, s->qkv, in_type(s, w.qkv), d_qkv, s->qkv, normal);
    ra_gpu_mark(gpu, l, "norm backward");
    norm_backward(s, kept->x, w.gamma, true, d.gamma, d.bias);
    return RA_OK;
}

/* ---- The model. */

/* Adds the loss of all rows to RA_GPU_LOSS; with gradients, gpu->gradient becomes that of the rows
 * of the last layer. Only one block of logits exists at a time; its gradient takes its place. */
static void end_forward_and_backward(const struct step *s, double factor)
{
    struct ra_gpu *gpu = s->gpu;
    int64_t V = s->c->vocabulary, stride = V * (int64_t)sizeof(float) / ra_type_bytes(gpu->type);
    struct ra_end_weights w = ra_places_of_ends(s->c, s->weights), d = {0};
    const float *x = gpu->layers[s->c->depth].x;
    if (s->gradients)
        d = ra_places_of_ends(s->c, s->gradients);
    ra_gpu_mark(gpu, -1, "loss");
    norm_forward(s, s->T, x, w.gamma, w.bias);
    for (int64_t first = 0; first < s->T; first += gpu->block) {
        int64_t rows = ra_min(gpu->block, s->T - first);
        void *normal = part(gpu, gpu->normal, first * s->dim);
        ra_products_forward(gpu->products, rows, s->dim, V, normal, in_type(s, w.logits),
                            w.logits_bias, NULL, true, gpu->logits);
        RA_GPU(gpu, ra_kernel_loss(rows, V, gpu->logits, gpu->batch.labels + first, factor,
                                   gpu->type, gpu->losses + first, gpu->stream));
        if (!s->gradients)
            continue;
        ra_products_d_weight(gpu->products, rows, s->dim, V, normal, gpu->logits, stride,
                             s->add || first > 0, d.logits);
        if (d.logits_bias)
            RA_GPU(gpu, ra_kernel_add_rows(rows, V, gpu->type, gpu->logits, stride, d.logits_bias,
                                           gpu->scratch, gpu->stream));
        ra_products_d_x(gpu->products, rows, s->dim, V, in_type(s, w.logits), gpu->logits, stride,
                        normal);
    }
    RA_GPU(gpu, ra_kernel_add_up(s->T, gpu->losses, factor, gpu->numbers, gpu->stream));
    if (s->gradients)
        norm_backward(s, x, w.gamma, false, d.gamma, d.bias);
}

/* Begins to add up the gradients of a segment over all ranks. They are complete now; meanwhile
 * those of the next segment are computed. */
static void begin_sums(const struct step *s, int64_t segment)
{
    struct ra_gpu *gpu = s->gpu;
    if (!s->last || !gpu->ranks)
        return;
    ra_gpu_mark_sums(gpu, s->c->depth - 1 - segment, "sums");
    for (int p = gpu->segments[segment]; p < gpu->segments[segment + 1]; p++)
        ra_gpu_ranks_begin(gpu->ranks, s->gradients, gpu->pieces[p], true,
                           !ra_gpu_shards(s->model));
    ra_gpu_mark_sums(gpu, -1, NULL);
    ra_gpu_ranks_advance(gpu->ranks);
}

/* All layers, in the opposite order, and the embedding. */
static enum ra_status all_backward(const struct step *s)
{
    struct ra_gpu *gpu = s->gpu;
    struct ra_end_weights d = ra_places_of_ends(s->c, s->gradients);
    enum ra_status status = RA_OK;
    for (int64_t l = s->c->depth - 1; l >= 0 && status == RA_OK; l--) {
        if (s->model->run.recompute && l < s->c->depth - 1)
            status = layer_forward(s, l, true);
        if (status == RA_OK) {
            feed_backward(s, l);
            status = attention_backward(s, l);
        }
        if (status == RA_OK)
            begin_sums(s, s->c->depth - 1 - l);
    }
    const struct ra_gpu_batch *b = &gpu->batch;
    struct ra_groups tokens = {b->groups, b->first, b->key, b->order};
    struct ra_groups places = {b->place_groups, b->place_first, b->place_key, b->place_order};
    ra_gpu_mark(gpu, -1, "embedding backward");
    RA_GPU(gpu, ra_kernel_scatter(&tokens, s->dim, 1, gpu->gradient, d.embedding, gpu->stream));
    if (d.positions)
        RA_GPU(gpu, ra_kernel_scatter(&places, s->dim, s->c->position_scale, gpu->gradient,
                                      d.positions, gpu->stream));
    if (status == RA_OK)
        begin_sums(s, s->c->depth);
    else if (s->last && gpu->ranks)
        ra_gpu_ranks_stop(gpu->ranks);
    return status;
}

enum ra_status ra_gpu_begin(struct ra_model *model, const float *weights, float *gradients)
{
    struct ra_gpu *gpu = model->own;
    int64_t count = ra_parameter_numbers(&model->config);
    gpu->mark_count = 0; /* of a step that nobody learned from */
    ra_gpu_mark(gpu, -1, "clear");
    if (gpu->type != RA_FLOAT32 && gpu->fresh != weights)
        RA_GPU(gpu, ra_kernel_round(count, weights, gpu->rounded, gpu->stream));
    gpu->fresh = ra_gpu_decodes(model) ? weights : NULL; /* which stay, as a text goes on */
    RA_GPU(gpu, cudaMemsetAsync(gpu->numbers, 0, sizeof *gpu->numbers, gpu->stream));
    if (gradients)
        RA_GPU(gpu, cudaMemsetAsync(gradients, 0, (size_t)count * sizeof *gradients, gpu->stream));
    return ra_gpu_status(model);
}

enum ra_status ra_gpu_forward(struct ra_model *model, const float *weights,
                              const struct ra_model_batch *batch)
{
    struct ra_gpu *gpu = model->own;
    struct step s = step_of(model, weights, batch);
    struct ra_end_weights w = ra_places_of_ends(s.c, weights);
    ra_gpu_mark(gpu, -1, "upload");
    upload(&s, batch);
    ra_gpu_mark(gpu, -1, "embedding");
    RA_GPU(gpu,
           ra_kernel_embed(s.T, model->n, s.dim, gpu->type, gpu->batch.tokens,
                           in_type(&s, w.embedding), gpu->batch.places, in_type(&s, w.positions),
                           s.c->position_scale, gpu->layers[0].x, gpu->stream));
    enum ra_status status = RA_OK;
    for (int64_t l = 0; l < s.c->depth && status == RA_OK; l++)
        status = layer_forward(&s, l, false);
    return status;
}

enum ra_status ra_gpu_backward(struct ra_model *model, const float *weights,
                               const struct ra_model_batch *batch, double factor, float *gradients,
                               bool add, bool last)
{
    struct step s = step_of(model, weights, batch);
    s.gradients = gradients;
    s.add = add;
    s.last = last;
    end_forward_and_backward(&s, factor);
    enum ra_status status = gradients ? all_backward(&s) : RA_OK;
    ra_gpu_mark(s.gpu, -1, NULL);
    return status;
}

/* Waits for all that was begun. Attention comes first: it hears of ranks that have failed, and sums
 * of gradients need not wait for those. */
static enum ra_status await_all(struct ra_model *model)
{
    struct ra_gpu *gpu = model->own;
    char error[RA_ERROR_SIZE];
    enum ra_status status = ra_gpu_status(model);
    for (int64_t l = 0; l < model->config.depth && status == RA_OK; l++)
        if (model->plans[l] && (status = ra_wait(model->plans[l])) != RA_OK)
            ra_model_fail(model, status, "layer %d: %s", (int)l, ra_plan_error(model->plans[l]));
    enum ra_status sums = gpu->ranks ? ra_gpu_ranks_end(gpu->ranks, status != RA_OK, error) : RA_OK;
    if (status == RA_OK && sums != RA_OK)
        status = ra_model_fail(model, sums, "%s", error);
    RA_GPU(gpu, cudaStreamSynchronize(gpu->stream));
    return status == RA_OK ? ra_gpu_status(model) : status;
}

enum ra_status ra_gpu_end(struct ra_model *model, double *loss)
{
    struct ra_gpu *gpu = model->own;
    if (loss)
        RA_GPU(gpu, cudaMemcpyAsync(gpu->results, gpu->numbers, sizeof(double),
                                    cudaMemcpyDeviceToHost, gpu->stream));
    enum ra_status status = await_all(model);
    if (loss)
        *loss = gpu->results[RA_GPU_LOSS];
    return status;
}

enum ra_status ra_gpu_logits(struct ra_model *model, const float *weights, int64_t first,
                             int64_t count, float *logits)
{
    struct step s = step_of(model, weights, NULL);
    struct ra_gpu *gpu = s.gpu;
    struct ra_end_weights w = ra_places_of_ends(s.c, weights);
    const float *x = gpu->layers[s.c->depth].x;
    int64_t V = s.c->vocabulary;
    for (int64_t i = 0; i < count * V; i++)
        logits[i] = NAN;
    for (int64_t done = 0; done < count && ra_gpu_status(model) == RA_OK; done += gpu->block) {
        int64_t rows = ra_min(gpu->block, count - done);
        norm_forward(&s, rows, x + (first + done) * s.dim, w.gamma, w.bias);
        ra_products_forward(gpu->products, rows, s.dim, V, gpu->normal, in_type(&s, w.logits),
                            w.logits_bias, NULL, true, gpu->logits);
        if (ra_gpu_status(model) == RA_OK)
            RA_GPU(gpu, cudaMemcpyAsync(logits + done * V, gpu->logits,
                                        (size_t)(rows * V) * sizeof(float), cudaMemcpyDeviceToHost,
                                        gpu->stream));
        RA_GPU(gpu, cudaStreamSynchronize(gpu->stream));
    }
    return ra_gpu_status(model);
}

/* Finds the length of the gradient of all ranks, for the caller and, on the device, for AdamW. Each
 * rank adds up the squares of its own part of every piece; the sums of all ranks are added on the
 * host, in one order. */
static enum ra_status length_of_parts(struct ra_model *model, const float *gradients,
                                      double *length)
{
    struct ra_gpu *gpu = model->own;
    int pieces = gpu->piece_count;
    double *on_device = gpu->numbers + RA_GPU_PARTS, *on_host = gpu->results + RA_GPU_PARTS;
    for (int p = 0; p < pieces; p++) {
        struct ra_gpu_piece own = ra_gpu_own_part(model, p);
        RA_GPU(gpu, ra_kernel_length(own.end - own.first, gradients + own.first, on_device + p,
                                     gpu->squares, gpu->stream));
    }
    RA_GPU(gpu, cudaMemcpyAsync(on_host, on_device, (size_t)pieces * sizeof *on_host,
                                cudaMemcpyDeviceToHost, gpu->stream));
    RA_GPU(gpu, cudaStreamSynchronize(gpu->stream));

    /* A rank whose GPU has failed shares, too, or the others would wait; of NaN nobody learns. */
    double *mine = gpu->sums + model->rank * pieces, sum = 0;
    char error[RA_ERROR_SIZE];
    for (int p = 0; p < pieces; p++)
        mine[p] = gpu->code == cudaSuccess ? on_host[p] * on_host[p] : (double)NAN;
    enum ra_status status = ra_gpu_ranks_share(gpu->ranks, pieces, gpu->sums, error);
    if (status != RA_OK)
        return ra_model_fail(model, status, "%s", error);
    for (int i = 0; i < model->ranks * pieces; i++)
        sum += gpu->sums[i];
    *length = gpu->results[RA_GPU_LENGTH] = sqrt(sum);
    RA_GPU(gpu, cudaMemcpyAsync(gpu->numbers + RA_GPU_LENGTH, gpu->results + RA_GPU_LENGTH,
                                sizeof(double), cudaMemcpyHostToDevice, gpu->stream));
    return ra_gpu_status(model);
}

/* AdamW on this rank's parts alone; then all get all weights. */
static void learn_parts(struct ra_model *model, struct ra_adamw adamw, const float *gradients,
                        float *weights, float *means, float *squares)
{
    struct ra_gpu *gpu = model->own;
    for (int p = 0; p < gpu->piece_count; p++) {
        struct ra_gpu_piece own = ra_gpu_own_part(model, p);
        adamw.begin = own.first;
        adamw.count = own.end - own.first;
        ra_gpu_mark(gpu, -1, "AdamW");
        RA_GPU(gpu, ra_kernel_adamw(&adamw, gradients + own.first, weights + own.first, means,
                                    squares, NULL, gpu->stream));
        means += adamw.count;
        squares += adamw.count;
        ra_gpu_mark_sums(gpu, -1, "weights");
        ra_gpu_ranks_begin(gpu->ranks, weights, gpu->pieces[p], false, true);
        ra_gpu_mark_sums(gpu, -1, NULL);
        ra_gpu_ranks_advance(gpu->ranks);
    }
}

enum ra_status ra_gpu_learn(struct ra_model *model, const struct ra_optimizer *optimizer,
                            int64_t step, const float *gradients, float *weights, float *means,
                            float *squares, double *length)
{
    struct ra_gpu *gpu = model->own;
    double rate = ra_optimizer_rate(optimizer, step);
    int64_t count = ra_parameter_numbers(&model->config);
    struct ra_adamw adamw = {
        .rate = (float)rate,
        .kept = (float)(1 - rate * optimizer->decay),
        .clip = (float)optimizer->clip,
        .epsilon = (float)optimizer->epsilon,
        .beta1 = (float)optimizer->beta1,
        .share1 = (float)(1 - optimizer->beta1),
        .beta2 = (float)optimizer->beta2,
        .share2 = (float)(1 - optimizer->beta2),
        .mean_factor = (float)(1 / (1 - pow(optimizer->beta1, (double)step))),
        .square_factor = (float)(1 / (1 - pow(optimizer->beta2, (double)step))),
        .count = count,
        .arrays = ra_parameter_count(&model->config),
        .first = gpu->starts,
        .decays = gpu->decays,
        .length = gpu->numbers + RA_GPU_LENGTH,
    };
    enum ra_status status = RA_OK;
    bool shards = ra_gpu_shards(model);
    if (isnan(rate)) { /* the optimizer did not begin with RA_OPTIMIZER_INIT: nothing is changed */
        *length = (double)NAN;
        return RA_OK;
    }
    ra_gpu_mark(gpu, -1, "length");
    if (gpu->ranks)
        status = length_of_parts(model, gradients, length);
    else
        RA_GPU(gpu, ra_kernel_length(count, gradients, gpu->numbers + RA_GPU_LENGTH, gpu->squares,
                                     gpu->stream));
    if (!shards)
        ra_gpu_mark(gpu, -1, "AdamW");
    if (shards && status == RA_OK)
        learn_parts(model, adamw, gradients, weights, means, squares);
    else if (status == RA_OK)
        RA_GPU(gpu, ra_kernel_adamw(&adamw, gradients, weights, means, squares, gpu->rounded,
                                    gpu->stream));
    ra_gpu_mark(gpu, -1, NULL);
    if (!gpu->ranks)
        RA_GPU(gpu, cudaMemcpyAsync(gpu->results + RA_GPU_LENGTH, gpu->numbers + RA_GPU_LENGTH,
                                    sizeof(double), cudaMemcpyDeviceToHost, gpu->stream));
    status = status == RA_OK ? await_all(model) : status;
    if (status == RA_OK)
        ra_gpu_tell(gpu);
    *length = status == RA_OK ? gpu->results[RA_GPU_LENGTH] : (double)NAN;

    /* Weights of other ranks come as float32, and are not rounded yet. */
    gpu->fresh = status == RA_OK && isfinite(*length) && !shards ? weights : NULL;
    return status;
}
