/* ra_cuda_launch: the work of a GPU at one step of the ring: which kernels are launched, on which
 * rows. See ra_cuda_launch.h.
 *
 * Chapter 11. New here: one launch for all spans of a step, if one band says who sees whom;
 * otherwise one for each pair of spans that see each other, with the carry between the launches of
 * one span.
 */
#include "ra_cuda_launch.h"
#include "ra_cuda_observe.h"
#include "ra_cuda_spans.h"

/* ---- What is launched. */

struct ra_kernel ra_cuda_kernel(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    return (struct ra_kernel){.batch = c->batch,
                              .heads = c->heads,
                              .key_heads = c->key_heads,
                              .dim = c->dim,
                              .head_map = c->head_map,
                              .score = plan->score,
                              .deterministic = c->deterministic,
                              .semaphores = ra_cuda_of(plan)->semaphores};
}

static struct ra_range spans_of(const struct ra_plan *plan, enum ra_side side)
{
    return (struct ra_range){0, ra_layout_spans(plan->layouts[side])};
}

static struct ra_cuda_block block_of_all(const struct ra_plan *plan, int rank, int step)
{
    return ra_cuda_block_of(plan, rank, step, spans_of(plan, RA_QUERY_SIDE),
                            spans_of(plan, RA_KEY_SIDE));
}

/* How many rows of a side a block has, and which part of an array. */
static int64_t rows_of(const struct ra_cuda_block *block, struct ra_range side)
{
    return (side.end - side.first + block->stride - 1) / block->stride;
}

static struct ra_tensor part_of(const struct ra_cuda_block *block, struct ra_tensor x,
                                struct ra_range side)
{
    x = ra_tensor_from_row(x, side.first);
    x.row *= block->stride;
    return x;
}

/* How many launches a forward of a block takes, with so many keys in one. */
static int64_t launches_of(const struct ra_cuda_block *block, int64_t most)
{
    return block->one_band ? (rows_of(block, block->keys) + most - 1) / most : block->pairs;
}

void ra_cuda_count_steps(const struct ra_plan *plan, int rank, int64_t *steps, bool *carries,
                         int64_t *semaphores)
{
    const struct ra_config *c = &plan->config;
    bool deterministic = c->deterministic && !c->forward_only && c->type != RA_FLOAT32;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    struct ra_range queries = spans_of(plan, RA_QUERY_SIDE), keys = spans_of(plan, RA_KEY_SIDE);
    int64_t most = ra_kernel_most_keys(c->type);
    *carries = false;
    *semaphores = c->type != RA_FLOAT32; /* the forward draws its tiles with one */
    for (int step = 0; step < plan->ring.schedule.count; step++) {
        struct ra_cuda_block all = block_of_all(plan, rank, step);
        *carries = *carries || (all.one_band && launches_of(&all, most) > 1);
        kernel.queries = rows_of(&all, all.queries);
        kernel.keys = rows_of(&all, all.keys);
        *semaphores = ra_max(*semaphores, deterministic ? ra_kernel_semaphores(&kernel) : 0);
    }
    for (int64_t s = 0; s < queries.end; s++) {
        int64_t count = 0, launches = 0;
        for (int step = 0; step < plan->ring.schedule.count; step++) {
            struct ra_range own = {s, s + 1};
            struct ra_cuda_block block = ra_cuda_block_of(plan, rank, step, own, keys);
            count += block.pairs > 0;
            launches += launches_of(&block, most);
        }
        *carries = *carries || launches > 1;
        if (steps)
            steps[s] = count;
    }
}

/* Keys, values and mask of a step: the caller's own, or those of a message. */
static void open_keys(const struct ra_cuda_call *call, int step, struct ra_tensor *k,
                      struct ra_tensor *v, struct ra_tensor *mask)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step), G = c->key_heads;
    int64_t bytes = c->batch * rows * G * c->dim * ra_type_bytes(c->type);
    char *message = plan->ring.keys[ra_ring_slot(step)];
    bool own = step == 0;
    *k = own ? call->x.k : ra_tensor_bnhd(message, c->type, rows, G, c->dim);
    *v = own ? call->x.v : ra_tensor_bnhd(message + bytes, c->type, rows, G, c->dim);
    *mask = (struct ra_tensor)RA_NO_TENSOR;
    if (c->has_mask)
        *mask = ra_tensor_bn(own ? (void *)ra_cuda_of(plan)->mask : message + 2 * bytes, rows);
}

/* An array (B, n, H, D), or (B, n, H) for width 1, that has what rounding lost of another, if it is
 * there. */
static struct ra_tensor comp_of(const struct ra_cuda_call *call, float *comp, int64_t width)
{
    const struct ra_plan *plan = call->plan;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads;
    if (!comp)
        return (struct ra_tensor)RA_NO_TENSOR;
    return width == 1 ? ra_tensor_bhn(comp, n, H) : ra_tensor_bnhd(comp, RA_FLOAT32, n, H, width);
}

/* Launches the forward of these queries and keys, in pieces of the keys that are added up well. */
static void launch_forward(struct ra_cuda_call *call, const struct ra_kernel *whole)
{
    struct ra_plan *plan = call->plan;
    enum ra_type type = plan->config.type;
    int64_t most = ra_kernel_most_keys(type), b = 0;
    do {
        struct ra_kernel piece = ra_kernel_keys(*whole, b, most);
        piece.first = whole->first && b == 0;
        b += most;
        piece.last = whole->last && b >= whole->keys;
        if (type == RA_FLOAT32)
            RA_DO(plan, ra_k02_forward(&piece, call->stream));
        else
            RA_DO(plan, ra_k07_forward(&piece, call->stream));
    } while (b < whole->keys);
}

/* The keys of a step, and backward their gradients. */
struct key_arrays {
    struct ra_tensor k, v, mask, dk, dv, dk_comp, dv_comp;
};

/* A launch of the queries and keys of a block. */
static struct ra_kernel kernel_of(const struct ra_cuda_call *call,
                                  const struct ra_cuda_block *block, const struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    const struct ra_arrays *x = &call->x;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_range a = block->queries, b = block->keys;
    struct ra_tensor wide = ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, c->dim);
    struct ra_tensor dq = call->in_callers_queries ? x->dq : wide;
    struct ra_tensor wide_comp = comp_of(call, cuda->wide_comp, c->dim);
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    kernel.queries = rows_of(block, a);
    kernel.keys = rows_of(block, b);
    kernel.band = block->band;
    kernel.stairs = block->stairs;
    kernel.q = part_of(block, x->q, a);
    kernel.k = part_of(block, keys->k, b);
    kernel.v = part_of(block, keys->v, b);
    kernel.mask = part_of(block, keys->mask, b);
    kernel.lse = part_of(block, x->lse, a);
    if (!call->backward) {
        kernel.o = part_of(block, x->o, a);
        kernel.carry_o = part_of(block, wide, a);
        kernel.carry_max = part_of(block, ra_tensor_bhn(cuda->max, n, H), a);
        kernel.carry_sum = part_of(block, ra_tensor_bhn(cuda->sum, n, H), a);
        kernel.o_comp = part_of(block, wide_comp, a);
        kernel.sum_comp = part_of(block, comp_of(call, cuda->sum_comp, 1), a);
        return kernel;
    }
    kernel.d_out = part_of(block, x->d_out, a);
    kernel.delta = part_of(block, ra_tensor_bhn(cuda->delta, n, H), a);
    kernel.dq = part_of(block, dq, a);
    kernel.dq_comp = part_of(block, wide_comp, a);
    kernel.dk = part_of(block, keys->dk, b);
    kernel.dv = part_of(block, keys->dv, b);
    kernel.dk_comp = part_of(block, keys->dk_comp, b);
    kernel.dv_comp = part_of(block, keys->dv_comp, b);
    kernel.writes_keys = call->writes_keys;
    return kernel;
}

/* How many keys of a block lie before this row. */
static int64_t keys_before(const struct ra_cuda_block *block, int64_t row)
{
    struct ra_range rows = block->keys;
    rows.end = ra_min(rows.end, ra_max(rows.first, row));
    return rows_of(block, rows);
}

/* Launches the backward, as much of it as is of this part. */
static void launch_backward(struct ra_cuda_call *call, const struct ra_kernel *whole,
                            const struct ra_cuda_block *block, struct ra_cuda_part part)
{
    struct ra_plan *plan = call->plan;
    int64_t first = keys_before(block, part.rows.first), end = keys_before(block, part.rows.end);
    if (first >= end)
        return;
    struct ra_kernel kernel = ra_kernel_keys(*whole, first, end - first);
    if (!part.queries)
        kernel.dq = (struct ra_tensor)RA_NO_TENSOR;
    if (!part.keys)
        kernel.dk = kernel.dv = (struct ra_tensor)RA_NO_TENSOR;
    if (plan->config.type != RA_FLOAT32)
        RA_DO(plan, ra_k07_backward(&kernel, call->stream));
    else
        RA_DO(plan, ra_k02_backward(&kernel, call->stream));
}

/* Launches a block; forward, as the first or last launch of its queries. */
static void launch(struct ra_cuda_call *call, const struct ra_cuda_block *block, bool first,
                   bool last, struct ra_cuda_part part, const struct key_arrays *keys)
{
    struct ra_kernel kernel = kernel_of(call, block, keys);
    kernel.first = first;
    kernel.last = last;
    if (call->backward)
        launch_backward(call, &kernel, block, part);
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
    *dv = ra_tensor_bnhd(share + c->batch * rows * G * c->dim, RA_FLOAT32, rows, G, c->dim);
}

/* Where dk and dv of this step go: into this rank's share or, of a single launch, to where the
 * caller wants them. */
static void open_gradients(const struct ra_cuda_call *call, int step, struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step);
    if (call->in_callers_keys) {
        keys->dk = call->x.dk;
        keys->dv = call->x.dv;
        return;
    }
    open_share(plan, rows, plan->ring.gradients[ra_ring_slot(step)], &keys->dk, &keys->dv);
    open_share(plan, rows, ra_cuda_of(plan)->share_comp, &keys->dk_comp, &keys->dv_comp);
}

void ra_cuda_find_overwrites(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct key_arrays keys = {.dk = call->x.dk, .dv = call->x.dv};
    struct ra_cuda_block block = block_of_all(plan, plan->link.rank, step);
    int64_t n = rows_of(&block, block.queries), m = rows_of(&block, block.keys);
    int64_t all = ra_ring_rows(&plan->ring, plan->link.rank, step);
    bool single = plan->ring.schedule.count == 1 && ra_cuda_stripes(plan) == 1;
    call->writes_keys = call->in_callers_keys = call->in_callers_queries = false;
    if (plan->config.type == RA_FLOAT32 || !block.one_band || m < all)
        return;
    open_keys(call, step, &keys.k, &keys.v, &keys.mask);
    if (!single)
        open_gradients(call, step, &keys);
    struct ra_kernel kernel = kernel_of(call, &block, &keys);
    if (single && n == plan->rows[RA_QUERY_SIDE])
        kernel.dq = call->x.dq;
    RA_DO(plan, ra_k07_writes(&kernel, &call->writes_keys, &call->in_callers_queries));
    call->in_callers_keys = single && call->writes_keys;
}

struct ra_cuda_part ra_cuda_full_step(const struct ra_plan *plan, int step)
{
    struct ra_range all = {0, ra_ring_rows(&plan->ring, plan->link.rank, step)};
    return (struct ra_cuda_part){all, true, true};
}

int64_t ra_cuda_deferred_keys(const struct ra_plan *plan)
{
    /* A key's gradients, 8 bytes for each of its numbers, travel in the time in which a Hopper
     * works on it for some 1,200 queries, of all heads that read it; 2,048 are safe. A tile has 128
     * keys; they come in whole waves. The first keys are those that most queries see under a causal
     * mask. At least a third stays in the first step, beside which keys travel. */
    enum { QUERIES = 2048, TILE = 128 };
    const struct ra_config *c = &plan->config;
    int64_t tiles = (plan->rows[RA_KEY_SIDE] + TILE - 1) / TILE;
    int64_t queries = ra_max(1, plan->rows[RA_QUERY_SIDE] * (c->heads / c->key_heads));
    int64_t heads = ra_max(1, c->batch * c->key_heads);
    int64_t wave = ra_max(1, ra_cuda_of(plan)->processors / heads);
    int64_t needed = (tiles * QUERIES + queries - 1) / queries;
    int64_t rest = (needed + wave - 1) / wave * wave;
    bool home = ra_cuda_expects_message(plan, plan->link.rank, RA_GRADIENTS_RETURN, 0) &&
                !ra_cuda_of(plan)->share_comp;
    return home && 3 * rest <= 2 * tiles ? rest * TILE : 0;
}

bool ra_cuda_has_separate_dq(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda_block block = block_of_all(plan, plan->link.rank, step);
    struct key_arrays keys = {.dk = RA_NO_TENSOR, .dv = RA_NO_TENSOR};
    bool separates = false;
    if (plan->config.type == RA_FLOAT32)
        return false;
    open_keys(call, step, &keys.k, &keys.v, &keys.mask);
    open_gradients(call, step, &keys);
    struct ra_kernel kernel = kernel_of(call, &block, &keys);
    RA_DO(plan, ra_k07_separates(&kernel, &separates));
    return separates;
}

/* Is this step the first, or the last, at which these queries see keys? */
static bool is_first(const struct ra_cuda *cuda, int64_t span)
{
    return cuda->steps_done[span] == 0;
}

static bool is_last(const struct ra_cuda *cuda, int64_t span)
{
    return cuda->steps_done[span] + 1 == cuda->steps[span];
}

/* Can these spans of queries share a launch of the forward? It reads a carry for all of its rows,
 * or for none, and writes one for all of them, or o. */
static bool are_alike(const struct ra_cuda *cuda, struct ra_range spans)
{
    for (int64_t s = spans.first + 1; s < spans.end; s++)
        if (is_first(cuda, s) != is_first(cuda, s - 1) || is_last(cuda, s) != is_last(cuda, s - 1))
            return false;
    return true;
}

/* Some spans of the queries against all keys of this step: in one launch, if one band says who sees
 * whom, else pair by pair. */
static void fold_spans(struct ra_cuda_call *call, int step, struct ra_range spans,
                       struct ra_cuda_part part, const struct key_arrays *keys)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    struct ra_cuda_block block =
        ra_cuda_block_of(plan, plan->link.rank, step, spans, spans_of(plan, RA_KEY_SIDE));
    int64_t s = block.query_spans.first, pairs = 0;
    bool first = is_first(cuda, s), last = is_last(cuda, s);
    if (block.one_band)
        launch(call, &block, first, last, part, keys);
    for (int64_t t = block.key_spans.first; t < block.key_spans.end && !block.one_band; t++) {
        struct ra_range key_span = {t, t + 1};
        struct ra_cuda_block pair = ra_cuda_block_of(plan, plan->link.rank, step, spans, key_span);
        pairs += pair.pairs;
        if (pair.pairs > 0)
            launch(call, &pair, first && pairs == 1, last && pairs == block.pairs, part, keys);
    }
    for (; s < block.query_spans.end; s++)
        cuda->steps_done[s]++;
}

/* Queries that never see anything need a result, too. */
static void finish_unseen(struct ra_cuda_call *call, const struct key_arrays *keys)
{
    const struct ra_plan *plan = call->plan;
    struct ra_cuda_block unseen = {.stride = ra_cuda_stripes(plan), .band = {1, 0}};
    for (int64_t s = 0; s < spans_of(plan, RA_QUERY_SIDE).end; s++) {
        unseen.queries = ra_cuda_query_rows(plan, plan->link.rank, s);
        if (ra_cuda_of(plan)->steps[s] == 0 && rows_of(&unseen, unseen.queries) > 0)
            launch(call, &unseen, true, true, ra_cuda_full_step(plan, 0), keys);
    }
}

void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part)
{
    struct ra_plan *plan = call->plan;
    struct key_arrays keys = {.dk = RA_NO_TENSOR, .dv = RA_NO_TENSOR};
    open_keys(call, step, &keys.k, &keys.v, &keys.mask);
    if (call->backward)
        open_gradients(call, step, &keys);
    struct ra_range spans = spans_of(plan, RA_QUERY_SIDE);
    struct ra_cuda_block all = block_of_all(plan, plan->link.rank, step);
    bool together = all.one_band && (call->backward || are_alike(plan->own, all.query_spans));
    int64_t at_once = together ? spans.end : 1;
    for (int64_t s = 0; s < spans.end; s += at_once)
        fold_spans(call, step, (struct ra_range){s, s + at_once}, part, &keys);
    if (!call->backward && step == 0)
        finish_unseen(call, &keys);
}
