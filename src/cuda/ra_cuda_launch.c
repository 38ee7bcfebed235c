/* ra_cuda_launch: the work of a GPU at one step of the ring. See ra_cuda_launch.h.
 *
 * Chapter 11. New here: the launches that ra_cuda_steps.c has listed, with the arrays of a call.
 */
#include "ra_cuda_launch.h"
#include "ra_cuda_lists.h"
#include "ra_cuda_observe.h"
#include "ra_cuda_places.h"
#include "ra_cuda_steps.h"

/* The part of an array that has the rows of a block. */
static struct ra_tensor part_of(const struct ra_cuda_block *block, struct ra_tensor tensor,
                                struct ra_range side)
{
    tensor = ra_tensor_from_row(tensor, side.first);
    tensor.row *= block->stride;
    return tensor;
}

/* The keys of a step, and backward their gradients. */
struct key_arrays {
    struct ra_tensor k, v, mask, place, dk, dv, dk_comp, dv_comp;
    bool writes; /* launches write dk and dv, instead of adding to them */
};

/* Keys, values and mask of a step: the caller's own, or those of a message. */
static void open_keys(const struct ra_cuda_call *call, int step, struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step), G = c->key_heads;
    int64_t k_bytes = ra_cuda_key_bytes(c, rows, c->dim),
            bytes = k_bytes + ra_cuda_key_bytes(c, rows, c->dim_value);
    char *message = plan->ring.keys[ra_ring_slot(step)];
    bool own = step == 0;
    keys->k = own ? call->arrays.k : ra_tensor_bnhd(message, c->type, rows, G, c->dim);
    keys->v =
        own ? call->arrays.v : ra_tensor_bnhd(message + k_bytes, c->type, rows, G, c->dim_value);
    if (c->has_mask)
        keys->mask = ra_tensor_bn(own ? (void *)ra_cuda_of(plan)->mask : message + bytes, rows);
    if (call->arrays.slopes.data)
        keys->place = ra_cuda_places_of(plan, RA_KEY_SIDE, step);
}

/* An array (B, n, H, width), or (B, n, H) for width 0, that has what rounding lost of another, if
 * it is there. */
static struct ra_tensor comp_of(const struct ra_cuda_call *call, float *comp, int64_t width)
{
    const struct ra_plan *plan = call->plan;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads;
    if (!comp)
        return (struct ra_tensor)RA_NO_TENSOR;
    return width == 0 ? ra_tensor_bhn(comp, n, H) : ra_tensor_bnhd(comp, RA_FLOAT32, n, H, width);
}

/* Launches the forward, or as much of the backward as has arrays. */
static void launch_kernel(struct ra_cuda_call *call, const struct ra_kernel *kernel)
{
    struct ra_plan *plan = call->plan;
    bool wide = plan->config.type == RA_FLOAT32;
    if (wide && call->backward)
        RA_DO(plan, ra_k02_backward(kernel, call->stream));
    else if (wide)
        RA_DO(plan, ra_k02_forward(kernel, call->stream));
    else if (call->backward)
        RA_DO(plan, ra_k07_backward(kernel, call->stream));
    else
        RA_DO(plan, ra_k07_forward(kernel, call->stream));
}

/* Takes away the gradients that are not of this part. */
static void keep_part(struct ra_kernel *kernel, struct ra_cuda_part part)
{
    if (!part.queries)
        kernel->dq = (struct ra_tensor)RA_NO_TENSOR;
    if (!part.keys)
        kernel->dk = kernel->dv = (struct ra_tensor)RA_NO_TENSOR;
}

/* Launches the forward of these queries and keys, in pieces of the keys that are added up well. */
static void launch_forward(struct ra_cuda_call *call, const struct ra_kernel *whole)
{
    int64_t most = ra_kernel_most_keys(call->plan->config.type), b = 0;
    do {
        struct ra_kernel piece = ra_kernel_keys(*whole, b, most);
        piece.first = whole->first && b == 0;
        b += most;
        piece.last = whole->last && b >= whole->keys;
        launch_kernel(call, &piece);
    } while (b < whole->keys);
}

/* Returns a launch of the queries and keys of a block, whose rows and band ra_cuda_steps_find found
 * when the plan was made. */
static struct ra_kernel kernel_of(const struct ra_cuda_call *call,
                                  const struct ra_cuda_block *block, const struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    const struct ra_arrays *arrays = &call->arrays;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_range a = block->queries, b = block->keys;
    int64_t width = call->backward ? c->dim : c->dim_value; /* of dq, or of o */
    struct ra_tensor wide = ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, width);
    struct ra_tensor dq = call->in_callers_queries ? arrays->dq : wide;
    struct ra_tensor wide_comp = comp_of(call, cuda->wide_comp, width);
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    kernel.queries = ra_cuda_rows_of(block, a);
    kernel.keys = ra_cuda_rows_of(block, b);
    kernel.band = block->band;
    kernel.band_step = block->band_step;
    kernel.q = part_of(block, arrays->q, a);
    kernel.k = part_of(block, keys->k, b);
    kernel.v = part_of(block, keys->v, b);
    kernel.mask = part_of(block, keys->mask, b);
    kernel.lse = part_of(block, arrays->lse, a);
    kernel.slopes = arrays->slopes;
    kernel.key_place = part_of(block, keys->place, b);
    kernel.places_ascend = cuda->places_ascend;
    if (arrays->slopes.data)
        kernel.query_place = part_of(block, ra_cuda_places_of(plan, RA_QUERY_SIDE, 0), a);
    if (!call->backward) {
        kernel.sink = arrays->sink;
        kernel.largest = arrays->largest;
        kernel.o = part_of(block, arrays->o, a);
        kernel.carry_o = part_of(block, wide, a);
        kernel.carry_max = part_of(block, ra_tensor_bhn(cuda->max, n, H), a);
        kernel.carry_sum = part_of(block, ra_tensor_bhn(cuda->sum, n, H), a);
        kernel.o_comp = part_of(block, wide_comp, a);
        kernel.sum_comp = part_of(block, comp_of(call, cuda->sum_comp, 0), a);
        return kernel;
    }
    kernel.d_out = part_of(block, arrays->d_out, a);
    kernel.delta = part_of(block, ra_tensor_bhn(cuda->delta, n, H), a);
    kernel.dq = part_of(block, dq, a);
    kernel.dq_comp = part_of(block, wide_comp, a);
    kernel.dk = part_of(block, keys->dk, b);
    kernel.dv = part_of(block, keys->dv, b);
    kernel.dk_comp = part_of(block, keys->dk_comp, b);
    kernel.dv_comp = part_of(block, keys->dv_comp, b);
    kernel.writes_keys = keys->writes;
    return kernel;
}

/* How many keys of a block lie before this row. */
static int64_t keys_before(const struct ra_cuda_block *block, int64_t row)
{
    struct ra_range rows = block->keys;
    rows.end = ra_min(rows.end, ra_max(rows.first, row));
    return ra_cuda_rows_of(block, rows);
}

/* Launches the backward, as much of it as is of this part. */
static void launch_backward(struct ra_cuda_call *call, const struct ra_kernel *whole,
                            const struct ra_cuda_block *block, struct ra_cuda_part part)
{
    int64_t first = keys_before(block, part.rows.first), end = keys_before(block, part.rows.end);
    if (first >= end)
        return;
    struct ra_kernel kernel = ra_kernel_keys(*whole, first, end - first);
    keep_part(&kernel, part);
    launch_kernel(call, &kernel);
}

/* Launches a block. */
static void launch(struct ra_cuda_call *call, const struct ra_cuda_launch *of,
                   struct ra_cuda_part part, const struct key_arrays *keys)
{
    struct ra_kernel kernel = kernel_of(call, &of->block, keys);
    kernel.first = of->first;
    kernel.last = of->last;
    if (call->backward)
        launch_backward(call, &kernel, &of->block, part);
    else
        launch_forward(call, &kernel);
}

/* dk and dv of a share, which lie one behind the other. */
static void open_share(const struct ra_plan *plan, int64_t rows, float *share, struct ra_tensor *dk,
                       struct ra_tensor *dv)
{
    const struct ra_config *c = &plan->config;
    int64_t G = c->key_heads;
    if (!share)
        return;
    *dk = ra_tensor_bnhd(share, RA_FLOAT32, rows, G, c->dim);
    *dv = ra_tensor_bnhd(share + c->batch * rows * G * c->dim, RA_FLOAT32, rows, G, c->dim_value);
}

/* Where dk and dv of this step go: into this rank's share or, of a single launch, to where the
 * caller wants them. */
static void open_gradients(const struct ra_cuda_call *call, int step, struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step);
    keys->writes = ra_cuda_of(plan)->steps[step].writes_keys;
    if (call->in_callers_keys) {
        keys->dk = call->arrays.dk;
        keys->dv = call->arrays.dv;
        return;
    }
    open_share(plan, rows, plan->ring.gradients[ra_ring_slot(step)], &keys->dk, &keys->dv);
    open_share(plan, rows, ra_cuda_of(plan)->share_comp, &keys->dk_comp, &keys->dv_comp);
}

/* All queries of this rank, and all keys of a step. */
static struct ra_cuda_block all_rows(const struct ra_plan *plan, int step)
{
    struct ra_cuda_block block = {.stride = 1, .band = RA_ALL_KEYS, .one_band = true, .pairs = 1};
    block.queries.end = plan->rows[RA_QUERY_SIDE];
    block.keys.end = ra_ring_rows(&plan->ring, plan->link.rank, step);
    return block;
}

/* The launch of a step that a list makes one. */
static struct ra_kernel listed_kernel(const struct ra_cuda_call *call, int step,
                                      const struct key_arrays *keys)
{
    struct ra_cuda_block all = all_rows(call->plan, step);
    struct ra_kernel kernel = kernel_of(call, &all, keys);
    kernel.work =
        ra_cuda_lists_of(call->plan, step, call->backward ? RA_WORK_BACKWARD : RA_WORK_FORWARD);
    if (call->backward)
        kernel.dq_work = ra_cuda_lists_of(call->plan, step, RA_WORK_DQ);
    return kernel;
}

/* With slices: can every step be one launch, with these arrays? */
static bool takes_lists(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    bool all = ra_cuda_lists_hold(plan, call->backward) &&
               plan->config.batch * plan->rows[RA_QUERY_SIDE] > 0;
    if (plan->config.type == RA_FLOAT32)
        return all;
    for (int step = 0; step < plan->ring.schedule.count && all; step++) {
        struct key_arrays keys = {.dk = call->arrays.dk, .dv = call->arrays.dv};
        open_keys(call, step, &keys);
        struct ra_kernel kernel = listed_kernel(call, step, &keys);
        ra_kernel_takes *takes = call->backward ? ra_k07_takes_backward : ra_k07_takes_forward;
        if (kernel.keys > 0)
            RA_DO(plan, takes(&kernel, &all));
    }
    return all;
}

/* What the kernels can do with the arrays of this call at a step of the backward. */
static void ask_kernels(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda_step *now = &ra_cuda_of(plan)->steps[step];
    bool sliced = ra_cuda_is_sliced(plan);
    const struct ra_cuda_block whole = all_rows(plan, step), *all = sliced ? &whole : &now->all;
    struct key_arrays keys = {.dk = call->arrays.dk, .dv = call->arrays.dv};
    int64_t m = ra_ring_rows(&plan->ring, plan->link.rank, step);
    bool single = plan->ring.schedule.count == 1 && ra_cuda_stripes(plan) == 1;
    now->writes_keys = now->separates_dq = false;
    if (plan->config.type == RA_FLOAT32)
        return;
    open_keys(call, step, &keys);
    if (!single)
        open_gradients(call, step, &keys);
    struct ra_kernel kernel = kernel_of(call, all, &keys);
    RA_DO(plan, ra_k07_separates(&kernel, &now->separates_dq));

    /* A launch that has all keys may write their gradients. */
    if (sliced != call->listed || !all->one_band || ra_cuda_rows_of(all, all->keys) < m)
        return;
    if (single && ra_cuda_rows_of(all, all->queries) == plan->rows[RA_QUERY_SIDE])
        kernel.dq = call->arrays.dq;
    RA_DO(plan, ra_k07_writes(&kernel, &now->writes_keys, &call->in_callers_queries));
    call->in_callers_keys = single && now->writes_keys;
}

void ra_cuda_open_steps(struct ra_cuda_call *call)
{
    call->listed = ra_cuda_is_sliced(call->plan) && takes_lists(call);
    for (int step = 0; step < call->plan->ring.schedule.count && call->backward; step++)
        ask_kernels(call, step);
}

struct ra_cuda_part ra_cuda_full_step(const struct ra_plan *plan, int step)
{
    struct ra_range all = {0, ra_ring_rows(&plan->ring, plan->link.rank, step)};
    return (struct ra_cuda_part){all, true, true};
}

/* Launches a block of the list: at once, if one band holds for all of it, else pair by pair. */
static void launch_spans(struct ra_cuda_call *call, int step, const struct ra_cuda_launch *spans,
                         struct ra_cuda_part part, const struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_cuda_block *block = &spans->block;
    int64_t pairs = 0;
    if (block->one_band)
        launch(call, spans, part, keys);
    for (int64_t t = block->key_spans.first; t < block->key_spans.end && !block->one_band; t++) {
        struct ra_cuda_launch pair = {.block = ra_cuda_block_of(plan, plan->link.rank, step,
                                                                block->query_spans,
                                                                (struct ra_range){t, t + 1})};
        pairs += pair.block.pairs;
        pair.first = spans->first && pairs == 1;
        pair.last = spans->last && pairs == block->pairs;
        if (pair.block.pairs > 0)
            launch(call, &pair, part, keys);
    }
}

/* All rows, whose carry begins, or ends: they see no key in this launch. */
static void launch_ends(struct ra_cuda_call *call, bool first, bool last,
                        const struct key_arrays *keys)
{
    struct ra_cuda_launch all = {.block = all_rows(call->plan, 0), .first = first, .last = last};
    all.block.band = (struct ra_band){1, 0};
    all.block.keys.end = 0;
    if (call->plan->config.batch * all.block.queries.end > 0)
        launch(call, &all, ra_cuda_full_step(call->plan, 0), keys);
}

/* The work of a step by a list, in one launch. */
static void fold_list(struct ra_cuda_call *call, int step, struct ra_cuda_part part,
                      const struct key_arrays *keys)
{
    struct ra_kernel kernel = listed_kernel(call, step, keys);
    kernel.writes_keys = keys->writes;
    if (kernel.work.count == 0)
        return;
    if (kernel.keys == 0) {
        /* A rank without keys lists queries that never see any; those that do come later. */
        if (!call->backward)
            launch_ends(call, true, true, keys);
        return;
    }
    keep_part(&kernel, part);
    launch_kernel(call, &kernel);
}

/* The same cut by cut. A row may be in any number of cuts, so there is a carry from the beginning
 * to the end. */
static void fold_cuts(struct ra_cuda_call *call, int step, struct ra_cuda_part part,
                      const struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    struct ra_shard_pair shards;
    struct ra_walk walk = ra_cuda_lists_walk(plan, step, &shards);
    struct ra_span_pair cut;
    if (!call->backward && step == 0)
        launch_ends(call, true, false, keys);
    while (plan->config.batch > 0 && ra_cuda_ok(plan) && ra_walk_next(&walk, &cut)) {
        struct ra_cuda_launch one = {.block = {.queries = {cut.a, cut.a + cut.rows},
                                               .keys = {cut.b, cut.b + cut.visitors},
                                               .stride = 1,
                                               .band = cut.band,
                                               .one_band = true,
                                               .pairs = 1}};
        launch(call, &one, part, keys);
    }
    if (!call->backward && step == plan->ring.schedule.count - 1)
        launch_ends(call, false, true, keys);
}

void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_cuda_step *steps = ra_cuda_of(plan)->steps, *now = &steps[step];
    const struct ra_cuda_step *unseen = &steps[plan->ring.schedule.count];
    const struct ra_cuda_launch all = {.block = now->all};
    struct key_arrays keys = {.dk = RA_NO_TENSOR, .dv = RA_NO_TENSOR};
    open_keys(call, step, &keys);
    if (call->backward)
        open_gradients(call, step, &keys);
    if (ra_cuda_is_sliced(plan)) {
        if (call->listed)
            fold_list(call, step, part, &keys);
        else
            fold_cuts(call, step, part, &keys);
        return;
    }
    if (call->backward && all.block.one_band)
        launch(call, &all, part, &keys);
    else
        for (int64_t i = 0; i < now->count; i++)
            launch_spans(call, step, &now->launches[i], part, &keys);
    for (int64_t i = 0; i < unseen->count && !call->backward && step == 0; i++)
        launch(call, &unseen->launches[i], part, &keys);
}
