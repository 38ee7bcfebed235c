/* ra_layer: an attention layer over a sequence that is cut into shards. See ra_layer.h.
 *
 * Chapter 10.
 */
#include "ra_layer.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_arena.h"
#include "ra_attention.h"
#include "ra_batch.h"
#include "ra_error.h"
#include "ra_host.h"
#include "ra_math.h"
#include "ra_plan.h"
#include "ra_processors.h"
#include "ra_rotary.h"
#include "ra_struct.h"

/* Memory begins at multiples of this many bytes: lines of the cache. More numbers than any array
 * has, so that no product of sizes overflows. */
enum { LINE = 64 };
#define MOST ((int64_t)1 << 50)

struct ra_layer {
    struct ra_layer_config config;
    struct ra_plan *plan;
    struct ra_config attention;    /* that of the plan */
    struct ra_batch *masks;        /* the way of a mask, if there is one and a batch */
    struct ra_matrix_work work;    /* without scratch, which every call brings */
    int64_t query, key, wide, all; /* numbers of a row of q, of k, of o and of the three: W */
    char error[RA_ERROR_SIZE];
};

/* What a forward leaves to its backward; T = B n rows. */
struct kept {
    float *x;               /* (T, dim), with a batch */
    float *raw;             /* q (T, H D) and k (T, G D) before the norm of heads */
    float *qkv;             /* (T, W), q and k rotated */
    float *o, *lse;         /* (T, H D_v), (B, H, n) */
    float *cosines, *sines; /* (n, D / 2) */
};

/* And what it does not. */
struct scratch {
    float *normal; /* (T, dim): after the norm, and its gradient */
    float *d_o, *d_qkv;
    float *scales; /* of the norms' backward; before, the gradients of sinks */
    float *y, *dx; /* (T, dim), with a batch; also dy */
    bool *mask;    /* (T), the same */
    float *products;
};

/* ---- Memory. */

static int64_t lay_out_kept(const struct ra_layer *layer, int64_t n, void *start, struct kept *kept)
{
    const struct ra_layer_config *l = &layer->config;
    const struct ra_config *c = &layer->attention;
    struct ra_arena arena = {start, LINE, 0};
    int64_t T = c->batch * n, number = sizeof(float);
    kept->x = ra_arena_take(&arena, l->batch ? T * l->dim * number : 0);
    kept->raw = ra_arena_take(&arena, l->head_norm ? T * (layer->query + layer->key) * number : 0);
    kept->qkv = ra_arena_take(&arena, T * layer->all * number);
    kept->o = ra_arena_take(&arena, T * layer->wide * number);
    kept->lse = ra_arena_take(&arena, T * c->heads * number);
    kept->cosines = ra_arena_take(&arena, l->rotary ? n * (c->dim / 2) * number : 0);
    kept->sines = ra_arena_take(&arena, l->rotary ? n * (c->dim / 2) * number : 0);
    return arena.used;
}

static int64_t lay_out_scratch(const struct ra_layer *layer, int64_t n, void *start,
                               struct scratch *scratch)
{
    const struct ra_layer_config *l = &layer->config;
    const struct ra_config *c = &layer->attention;
    struct ra_arena arena = {start, LINE, 0};
    int64_t T = c->batch * n, number = sizeof(float), backward = c->forward_only ? 0 : number;
    scratch->normal = ra_arena_take(&arena, T * l->dim * number);
    scratch->d_o = ra_arena_take(&arena, T * layer->wide * backward);
    scratch->d_qkv = ra_arena_take(&arena, T * layer->all * backward);
    int64_t scales = 2 * T * (l->head_norm ? c->heads : 1);
    scratch->scales = ra_arena_take(&arena, ra_max(scales, l->sinks ? c->heads : 0) * backward);
    scratch->y = ra_arena_take(&arena, l->batch ? T * l->dim * number : 0);
    scratch->dx = ra_arena_take(&arena, l->batch ? T * l->dim * backward : 0);
    scratch->mask = ra_arena_take(&arena, layer->masks ? T : 0);
    scratch->products =
        ra_arena_take(&arena, ra_matrix_scratch(layer->work.vector, layer->work.threads) * number);
    return arena.used;
}

/* As many rows as this rank can have. */
static int64_t most_rows(const struct ra_layer *layer)
{
    int64_t rows = ra_plan_rows(layer->plan, RA_QUERY_SIDE);
    if (layer->attention.max_slices == 0)
        return rows;
    struct ra_layout layout = ra_layout_of(&layer->attention, layer->attention.queries);
    return ra_max(ra_layout_most_rows(layout), layer->attention.max_rows);
}

int64_t ra_layer_kept_bytes(const struct ra_layer *layer)
{
    struct kept kept;
    return layer ? lay_out_kept(layer, most_rows(layer), NULL, &kept) : 0;
}

int64_t ra_layer_scratch_bytes(const struct ra_layer *layer)
{
    struct scratch scratch;
    return layer ? lay_out_scratch(layer, most_rows(layer), NULL, &scratch) : 0;
}

/* ---- Beginning and end. */

static enum ra_status check_config(const struct ra_layer_config *l, char *error)
{
    if (l->dim < 1)
        return ra_error_set(error, "config.dim = %" PRId64 ": give at least 1", l->dim);
    if (l->norm < RA_NORM_UNIT || l->norm > RA_NORM_RMS_PLUS_ONE)
        return ra_error_set(error,
                            "config.norm = %d: give RA_NORM_UNIT, RA_NORM_RMS, "
                            "RA_NORM_LAYER or RA_NORM_RMS_PLUS_ONE",
                            (int)l->norm);
    bool needs_eps = l->head_norm || (l->prenorm && l->norm != RA_NORM_UNIT);
    if (needs_eps && !(l->norm_eps > 0 && l->norm_eps < 1))
        return ra_error_set(error, "config.norm_eps = %g: give a number above 0 and below 1",
                            l->norm_eps);
    if (!l->rotary)
        return RA_OK;
    if (!(l->rotary_theta > 0 && isfinite(l->rotary_theta)))
        return ra_error_set(error, "config.rotary_theta = %g: give a number above 0",
                            l->rotary_theta);
    if (!(l->rotary_scale > 0 && isfinite(l->rotary_scale)))
        return ra_error_set(error, "config.rotary_scale = %g: give a number above 0",
                            l->rotary_scale);
    const struct ra_rotary_scaling *s = &l->rotary_scaling;
    if (s->kind < RA_ROTARY_PLAIN || s->kind > RA_ROTARY_YARN_UNTRUNCATED)
        return ra_error_set(error,
                            "config.rotary_scaling.kind = %d: give RA_ROTARY_PLAIN, "
                            "RA_ROTARY_LLAMA3, RA_ROTARY_YARN or RA_ROTARY_YARN_UNTRUNCATED",
                            (int)s->kind);
    if (s->kind > RA_ROTARY_LLAMA3 && !(l->rotary_theta > 1))
        return ra_error_set(error, "config.rotary_theta = %g: YaRN needs one above 1",
                            l->rotary_theta);
    if (s->kind != RA_ROTARY_PLAIN && !(s->factor > 0 && s->low > 0 && s->high > s->low &&
                                        isfinite(s->factor + s->high) && s->original > 0))
        return ra_error_set(error,
                            "config.rotary_scaling has factor %g, low %g, high %g, original "
                            "%" PRId64 ": give a factor above 0, 0 < low < high, and "
                            "an original of at least 1",
                            s->factor, s->low, s->high, s->original);
    return RA_OK;
}

static enum ra_status check_plan(const struct ra_layer *layer, char *error)
{
    const struct ra_layer_config *l = &layer->config;
    const struct ra_config *c = &layer->attention;
    const struct ra_batch *batch = l->batch;
    /* A backend that asks where arrays lie has them in memory of its own. */
    if (layer->plan->backend->check_address)
        return ra_error_set(error, "plan: it computes on %s; a layer needs one on the host",
                            layer->plan->backend->place);
    if (c->type != RA_FLOAT32)
        return ra_error_set(error, "plan: its type is not RA_FLOAT32, which a layer needs");
    if (c->keys != c->queries)
        return ra_error_set(error,
                            "plan: it has %" PRId64 " keys for %" PRId64 " queries; tokens "
                            "of a layer attend to each other, so leave config.keys at "
                            "RA_SAME",
                            c->keys, c->queries);
    if (l->rotary && c->dim % 2 != 0)
        return ra_error_set(error, "plan: its dim is %" PRId64 "; rotary needs an even one",
                            c->dim);
    if ((double)c->batch * (double)c->queries * ((double)layer->all + (double)l->dim) >
            (double)MOST ||
        (double)l->dim * (double)layer->all > (double)MOST)
        return ra_error_set(error, "config.dim = %" PRId64 ": give arrays of at most 2^50 numbers",
                            l->dim);
    if (!batch)
        return RA_OK;
    struct ra_layout own = ra_plan_layout(layer->plan, RA_QUERY_SIDE), other = batch->layout;
    if (own.kind != other.kind || own.ranks != other.ranks || own.length != other.length ||
        own.stripes != other.stripes)
        return ra_error_set(error, "config.batch: its layout is another than the plan's");
    if (batch->set_rows != c->batch)
        return ra_error_set(error,
                            "config.batch: it has %" PRId64 " rows for this ring, but the "
                            "plan's batch is %" PRId64 ": give the plan set_rows",
                            batch->set_rows, c->batch);
    if (batch->token_bytes != l->dim * (int64_t)sizeof(float))
        return ra_error_set(error,
                            "config.batch: its tokens are %" PRId64 " bytes; give one whose "
                            "are dim floats, %" PRId64,
                            batch->token_bytes, l->dim * (int64_t)sizeof(float));
    return RA_OK;
}

RA_STRUCT_ENDS(struct ra_layer_config, reserved);
RA_STRUCT_ENDS(struct ra_attention_weights, sinks);
RA_STRUCT_ENDS(struct ra_layer_arrays, dx);

static enum ra_status build(struct ra_layer *layer, const struct ra_layer_config *config,
                            struct ra_plan *plan, char *error)
{
    struct ra_layer_config *l = &layer->config;
    struct ra_config *c = &layer->attention;
    *l = (struct ra_layer_config)RA_LAYER_INIT;
    size_t least = offsetof(struct ra_layer_config, batch) + sizeof l->batch;
    enum ra_status status =
        ra_struct_take("config", "RA_LAYER_INIT", l, sizeof *l, least, config, error);
    if (status != RA_OK)
        return status;
    if (!plan)
        return ra_error_set(error, "plan is NULL: give one of ra_plan_create");

    layer->plan = plan;
    ra_plan_config(plan, c, sizeof *c);
    layer->query = c->heads * c->dim;
    layer->key = c->key_heads * c->dim;
    layer->wide = c->heads * c->dim_value;
    layer->all = layer->query + layer->key + c->key_heads * c->dim_value;
    layer->work =
        ra_matrix_best(ra_processors_threads(c->threads, plan->link.sharing, INT32_MAX), NULL);
    status = ra_host_vector(error) ? check_config(l, error) : RA_INVALID;
    if (status == RA_OK)
        status = check_plan(layer, error);

    /* All ranks make the way of a mask together, or none does. */
    if (!l->batch || !c->has_mask)
        return status;
    status = ra_batch_agree(l->batch, status, error);
    if (status == RA_OK)
        status = ra_batch_create(&layer->masks, l->batch->comm, l->batch->layout, sizeof(bool),
                                 l->batch->rows, l->batch->timeout, error);
    return status;
}

enum ra_status ra_layer_create(struct ra_layer **layer, const struct ra_layer_config *config,
                               struct ra_plan *plan, char error[RA_ERROR_SIZE])
{
    struct ra_layer *made = calloc(1, sizeof *made);
    enum ra_status status = RA_OUT_OF_MEMORY;
    char text[RA_ERROR_SIZE] = "no memory for a layer";
    *layer = NULL;
    if (made && (status = build(made, config, plan, text)) == RA_OK) {
        *layer = made;
        return RA_OK;
    }
    free(made);
    if (error)
        memcpy(error, text, sizeof text);
    return status;
}

void ra_layer_destroy(struct ra_layer *layer)
{
    if (!layer)
        return;
    ra_batch_destroy(layer->masks);
    free(layer);
}

const char *ra_layer_error(const struct ra_layer *layer)
{
    return layer ? layer->error : "layer is NULL";
}

/* ---- Weights. */

/* The weights of a layer: where each is in the struct, what it is called, and how many numbers it
 * has; 0: the layer has none such. */
struct weight {
    size_t offset;
    const char *name;
    int64_t count;
};
enum { WEIGHTS = 9 };

static void list_weights(const struct ra_layer *layer, struct weight weights[WEIGHTS])
{
    const struct ra_layer_config *l = &layer->config;
    int64_t dim = l->dim, D = layer->attention.dim;
    const struct weight all[WEIGHTS] = {
#define AT(name) offsetof(struct ra_attention_weights, name), #name
        {AT(gamma), l->prenorm ? dim : 0},
        {AT(bias), l->prenorm && l->norm == RA_NORM_LAYER ? dim : 0},
        {AT(qkv), layer->all * dim},
        {AT(qkv_bias), l->qkv_bias ? layer->all : 0},
        {AT(q_gamma), l->head_norm ? D : 0},
        {AT(k_gamma), l->head_norm ? D : 0},
        {AT(out), dim * layer->wide},
        {AT(out_bias), l->out_bias ? dim : 0},
        {AT(sinks), l->sinks ? layer->attention.heads : 0},
#undef AT
    };
    memcpy(weights, all, sizeof all);
}

int64_t ra_layer_weight_count(const struct ra_layer *layer)
{
    struct weight list[WEIGHTS];
    int64_t count = 0;
    if (!layer)
        return 0;
    list_weights(layer, list);
    for (int i = 0; i < WEIGHTS; i++)
        count += list[i].count;
    return count;
}

void ra_layer_weights_in(const struct ra_layer *layer, float *all,
                         struct ra_attention_weights *weights, size_t size)
{
    struct ra_attention_weights own = RA_ATTENTION_WEIGHTS_INIT;
    struct weight list[WEIGHTS] = {{0}};
    if (layer)
        list_weights(layer, list);
    for (int i = 0; i < WEIGHTS && layer; i++) {
        float *place = list[i].count > 0 ? all : NULL;
        memcpy((char *)&own + list[i].offset, &place, sizeof place);
        all += list[i].count;
    }
    ra_struct_give(weights, size, &own, sizeof own);
}

/* ---- Calls. */

/* A call: what it was given, with the sizes that are known here, and where its numbers lie. With a
 * batch x, y, dy and dx are those of the shard. Weights that the layer does not have are NULL. */
struct call {
    struct ra_attention_weights w, d;
    struct ra_layer_arrays arrays;
    struct kept kept;
    struct scratch scratch;
    int64_t n, T;
    struct ra_attention half;
    struct ra_attention_rows rows;
};

/* This rank cannot take part in a call: the ring must not wait for it. */
static enum ra_status refuse(struct ra_layer *layer)
{
    struct ra_plan *plan = layer->plan;
    if (plan->link.fail && ra_plan_enter(plan)) {
        if (ra_plan_abort(plan, RA_INVALID, layer->error) == RA_INVALID)
            snprintf(layer->error, sizeof layer->error, "%s", plan->error);
        ra_plan_leave(plan);
    }
    return RA_INVALID;
}

static enum ra_status take_weights(const struct ra_layer *layer, const char *name,
                                   const struct ra_attention_weights *given,
                                   struct ra_attention_weights *own, char *error)
{
    struct weight list[WEIGHTS];
    size_t least = offsetof(struct ra_attention_weights, out_bias) + sizeof own->out_bias;
    *own = (struct ra_attention_weights)RA_ATTENTION_WEIGHTS_INIT;
    if (ra_struct_take(name, "RA_ATTENTION_WEIGHTS_INIT", own, sizeof *own, least, given, error) !=
        RA_OK)
        return RA_INVALID;
    list_weights(layer, list);
    for (int i = 0; i < WEIGHTS; i++) {
        const float *place;
        memcpy(&place, (const char *)own + list[i].offset, sizeof place);
        if (list[i].count > 0 && !place)
            return ra_error_set(error, "%s.%s is NULL: give %" PRId64 " numbers", name,
                                list[i].name, list[i].count);
        if (list[i].count == 0)
            memset((char *)own + list[i].offset, 0, sizeof place);
    }
    return RA_OK;
}

/* With a batch: brings what a call reads to its shard. */
static enum ra_status shard(struct ra_layer *layer, struct call *call, bool backward)
{
    struct ra_batch *batch = layer->config.batch;
    struct ra_layer_arrays *a = &call->arrays;
    enum ra_status status = RA_OK;
    if (!batch)
        return RA_OK;
    if (!backward)
        status = ra_batch_shard(batch, a->x, call->kept.x, layer->error);
    else
        status = ra_batch_shard(batch, a->dy, call->scratch.y, layer->error);
    if (status == RA_OK && layer->masks) {
        status = ra_batch_shard(layer->masks, a->mask, call->scratch.mask, layer->error);
        a->mask = call->scratch.mask;
    }
    a->x = call->kept.x;
    a->y = call->scratch.y;
    a->dy = call->scratch.y;
    a->dx = call->scratch.dx;
    return status;
}

/* Checks what a call was given. An array without numbers may be anything. */
static enum ra_status check_arrays(const struct ra_layer *layer, const struct call *call,
                                   bool backward, char *error)
{
    const struct ra_config *c = &layer->attention;
    const struct ra_layer_arrays *a = &call->arrays;
    const struct ra_batch *batch = layer->config.batch;
    int64_t outer = batch ? batch->rows : c->batch, rows = batch ? c->queries : call->n;
    bool some = outer * rows > 0;
    const struct {
        const char *name;
        bool is_there, needed;
    } table[] = {
        {"x", a->x, some},
        {"mask", a->mask, some && c->has_mask},
        {"y", a->y, some && !backward},
        {"dy", a->dy, some && backward},
        {"dx", a->dx, some && backward},
        {"kept", a->kept, true},
        {"scratch", a->scratch, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].needed && !table[i].is_there)
            return ra_error_set(error, "arrays.%s is NULL", table[i].name);
    if (a->mask && !c->has_mask)
        return ra_error_set(error, "arrays.mask is given, but the plan has config.has_mask = "
                                   "false: plan with true, or leave the mask NULL");
    if ((uintptr_t)a->kept % LINE != 0 || (uintptr_t)a->scratch % LINE != 0)
        return ra_error_set(error,
                            "arrays.%s is at %p: give an address that 64 divides, as of "
                            "aligned_alloc(64, ...)",
                            (uintptr_t)a->kept % LINE ? "kept" : "scratch",
                            (uintptr_t)a->kept % LINE ? a->kept : a->scratch);
    if (batch && call->n != batch->length)
        return ra_error_set(error, "config.batch deals rows by the layout, but the plan's slices "
                                   "are dealt by document: give RA_DEAL_LAYOUT");
    if (backward && c->forward_only)
        return ra_error_set(error, "ra_layer_backward: the plan has config.forward_only = true: "
                                   "plan with false");
    return RA_OK;
}

/* What stands around attention in this call. */
static void describe(const struct ra_layer *layer, struct call *call)
{
    const struct ra_layer_config *l = &layer->config;
    const struct ra_config *c = &layer->attention;
    const struct kept *kept = &call->kept;
    call->half = (struct ra_attention){.work = layer->work,
                                       .batch = c->batch,
                                       .rows = call->n,
                                       .dim = l->dim,
                                       .heads = c->heads,
                                       .key_heads = c->key_heads,
                                       .D = c->dim,
                                       .D_v = c->dim_value,
                                       .norm = {l->norm, l->norm_eps},
                                       .cosines = l->rotary ? kept->cosines : NULL,
                                       .sines = kept->sines,
                                       .mask = call->arrays.mask};
    call->half.work.scratch = call->scratch.products;
    call->rows =
        (struct ra_attention_rows){call->arrays.x, kept->raw, kept->qkv, kept->o, kept->lse};
}

static enum ra_status begin(struct ra_layer *layer, const struct ra_attention_weights *weights,
                            const struct ra_layer_arrays *arrays,
                            const struct ra_attention_weights *gradients, struct call *call)
{
    struct ra_layer_arrays *a = &call->arrays;
    size_t least = offsetof(struct ra_layer_arrays, dx) + sizeof a->dx;
    *call = (struct call){.arrays = RA_LAYER_ARRAYS_INIT};
    call->n = ra_plan_rows(layer->plan, RA_QUERY_SIDE);
    call->T = layer->attention.batch * call->n;
    enum ra_status status =
        ra_struct_take("arrays", "RA_LAYER_ARRAYS_INIT", a, sizeof *a, least, arrays, layer->error);
    if (status == RA_OK)
        status = take_weights(layer, "weights", weights, &call->w, layer->error);
    if (status == RA_OK && gradients)
        status = take_weights(layer, "gradients", gradients, &call->d, layer->error);
    if (status == RA_OK)
        status = check_arrays(layer, call, gradients, layer->error);
    if (layer->config.batch)
        status = ra_batch_agree(layer->config.batch, status, layer->error);
    else if (status != RA_OK)
        status = refuse(layer);
    if (status != RA_OK)
        return status;
    lay_out_kept(layer, call->n, a->kept, &call->kept);
    lay_out_scratch(layer, call->n, a->scratch, &call->scratch);
    status = shard(layer, call, gradients != NULL);
    describe(layer, call);
    return status;
}

/* Ends attention. With a batch other rings wait for this one's rows, and learn that there are none.
 * If ranks do not come even to that, what this one knows itself says more. */
static enum ra_status attended(struct ra_layer *layer, enum ra_status status)
{
    char others[RA_ERROR_SIZE];
    struct ra_batch *batch = layer->config.batch;
    if (status != RA_OK)
        snprintf(layer->error, sizeof layer->error, "%s", ra_plan_error(layer->plan));
    if (!batch)
        return status;
    snprintf(others, sizeof others, "%s", layer->error);
    enum ra_status agreed = ra_batch_agree(batch, status, others);
    if (status != RA_OK && batch->lost)
        return status;
    snprintf(layer->error, sizeof layer->error, "%s", others);
    return agreed;
}

/* Finds the angles of the rows' positions. */
static void find_angles(const struct ra_layer *layer, const struct call *call)
{
    const struct ra_layer_config *l = &layer->config;
    int64_t half = layer->attention.dim / 2;
    struct ra_rotary rotary = {2 * half, l->rotary_theta, l->rotary_scale, l->rotary_scaling};
    for (int64_t a = 0; a < call->n && l->rotary; a++) {
        int64_t position = call->arrays.positions ? call->arrays.positions[a]
                                                  : ra_plan_position(layer->plan, RA_QUERY_SIDE, a);
        ra_rotary_angles(&rotary, 1, &position, call->kept.cosines + a * half,
                         call->kept.sines + a * half);
    }
}

enum ra_status ra_layer_forward(struct ra_layer *layer, const struct ra_attention_weights *weights,
                                const struct ra_layer_arrays *arrays)
{
    struct call call;
    if (!layer)
        return RA_INVALID;
    enum ra_status status = begin(layer, weights, arrays, NULL, &call);
    if (status != RA_OK)
        return status;
    const struct ra_layer_config *l = &layer->config;
    find_angles(layer, &call);
    ra_attention_before(&call.half, &call.w, &call.rows, call.scratch.normal);
    struct ra_arrays attention =
        ra_attention_arrays(&call.half, &call.w, &call.rows, NULL, NULL, NULL);
    status = attended(layer, ra_forward(layer->plan, &attention));
    if (status != RA_OK)
        return status;
    ra_attention_behind(&call.half, &call.w, &call.rows, l->residual ? call.arrays.x : NULL,
                        call.arrays.y);
    if (l->batch)
        status = ra_batch_unshard(l->batch, call.arrays.y, arrays->y, layer->error);
    return status;
}

enum ra_status ra_layer_backward(struct ra_layer *layer, const struct ra_attention_weights *weights,
                                 const struct ra_layer_arrays *arrays,
                                 const struct ra_attention_weights *gradients)
{
    static const struct ra_attention_weights none;
    struct call call;
    if (!layer)
        return RA_INVALID;
    enum ra_status status = begin(layer, weights, arrays, gradients ? gradients : &none, &call);
    if (status != RA_OK)
        return status;
    const struct ra_layer_config *l = &layer->config;
    const struct scratch *scratch = &call.scratch;
    float *dx = call.arrays.dx;
    size_t bytes = (size_t)(call.T * l->dim) * sizeof *dx;
    ra_attention_behind_backward(&call.half, &call.w, &call.rows, call.arrays.dy, scratch->d_o,
                                 &call.d);
    struct ra_arrays attention = ra_attention_arrays(&call.half, &call.w, &call.rows, scratch->d_o,
                                                     scratch->d_qkv, scratch->scales);
    status = attended(layer, ra_backward(layer->plan, &attention));
    if (status != RA_OK)
        return status;
    if (!l->residual)
        memset(dx, 0, bytes);
    else if (dx != call.arrays.dy)
        memcpy(dx, call.arrays.dy, bytes);
    ra_attention_before_backward(&call.half, &call.w, &call.rows, scratch->d_qkv, dx, &call.d,
                                 scratch->normal, scratch->scales);
    if (l->batch)
        status = ra_batch_unshard(l->batch, dx, arrays->dx, layer->error);
    return status;
}
