/* ra_cuda_fold: the work of a GPU at one step of the ring: which kernels are launched, on which rows.
 * See ra_cuda.h.
 *
 * Chapter 11. New here: a launch for every pair of spans that see each other, with the carry between
 * the launches of one span.
 */
#include "ra_cuda.h"

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

/* Sets shape and band for span s of the queries of `rank` and span t of the keys of this step; does
 * any query see any key? */
static bool is_seen(const struct ra_plan *plan, int rank, int64_t s, int step, int64_t t,
                    struct ra_kernel *kernel)
{
    const struct ra_config *c = &plan->config;
    int origin = ra_ring_origin(&plan->ring, rank, step);
    kernel->queries = ra_layout_span(plan->layouts[RA_QUERY_SIDE], rank, s).count;
    kernel->keys = ra_layout_span(plan->layouts[RA_KEY_SIDE], origin, t).count;
    kernel->band = RA_ALL_KEYS;
    if (c->causal)
        kernel->band = ra_layout_band(plan->layouts[RA_QUERY_SIDE], rank, s,
                                      plan->layouts[RA_KEY_SIDE], origin, t, c->lookback);
    return kernel->queries > 0 && kernel->keys > 0 && c->batch > 0 &&
           ra_ring_rows(&plan->ring, rank, step) > 0 &&
           !ra_band_is_empty(kernel->band, kernel->queries, kernel->keys);
}

void ra_cuda_count_launches(const struct ra_plan *plan, int rank, int64_t *launches, bool *carries,
                            int64_t *semaphores)
{
    const struct ra_config *c = &plan->config;
    bool deterministic = c->deterministic && !c->forward_only && c->type != RA_FLOAT32;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    int64_t most = ra_kernel_most_keys(c->type);
    *carries = false;
    *semaphores = c->type != RA_FLOAT32; /* the forward draws its tiles with one */
    for (int64_t s = 0; s < ra_layout_spans(plan->layouts[RA_QUERY_SIDE]); s++) {
        int64_t count = 0;
        for (int step = 0; step < plan->ring.schedule.count; step++)
            for (int64_t t = 0; t < ra_layout_spans(plan->layouts[RA_KEY_SIDE]); t++) {
                if (!is_seen(plan, rank, s, step, t, &kernel))
                    continue;
                count += (kernel.keys + most - 1) / most;
                int64_t needed = deterministic ? ra_kernel_semaphores(&kernel) : 0;
                *semaphores = needed > *semaphores ? needed : *semaphores;
            }
        *carries = *carries || count > 1;
        if (launches)
            launches[s] = count;
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
static struct ra_tensor lost_of(const struct ra_cuda_call *call, float *lost, int64_t width)
{
    const struct ra_plan *plan = call->plan;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads;
    if (!lost)
        return (struct ra_tensor)RA_NO_TENSOR;
    return width == 1 ? ra_tensor_bhn(lost, n, H) : ra_tensor_bnhd(lost, RA_FLOAT32, n, H, width);
}

/* Launches the forward of these queries and keys, in pieces of the keys that are added up well: k07's for
 * few keys, as it loads queries while it writes outputs; otherwise k06's. */
static void launch_forward(struct ra_cuda_call *call, const struct ra_kernel *whole, int64_t s)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    enum ra_type type = plan->config.type;
    int64_t most = ra_kernel_most_keys(type), b = 0;
    do {
        struct ra_kernel piece = ra_kernel_keys(*whole, b, most);
        piece.first = cuda->launched[s] == 0;
        cuda->launched[s]++;
        piece.last = cuda->launched[s] >= cuda->launches[s];
        if (type == RA_FLOAT32)
            RA_DO(plan, ra_k02_forward(&piece, call->stream));
        else if (piece.keys <= RA_CUDA_FEW_KEYS)
            RA_DO(plan, ra_k07_forward(&piece, call->stream));
        else
            RA_DO(plan, ra_k06_forward(&piece, call->stream));
        b += most;
    } while (b < whole->keys);
}

/* The keys of a step, and backward their gradients. */
struct key_arrays {
    struct ra_tensor k, v, mask, dk, dv, dk_lost, dv_lost;
};

/* Span s of the queries, from row a on, and a span of the keys, from row b on; backward, those of its rows
 * that are among these. */
static void launch(struct ra_cuda_call *call, struct ra_kernel *kernel, int64_t s, int64_t a,
                   int64_t b, struct ra_range rows, const struct key_arrays *keys)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    const struct ra_arrays *x = &call->x;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_tensor wide = ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, c->dim);
    struct ra_tensor dq = call->in_callers_queries ? x->dq : wide;
    struct ra_tensor wide_lost = lost_of(call, cuda->wide_lost, c->dim);
    kernel->q = ra_tensor_from_row(x->q, a);
    kernel->k = ra_tensor_from_row(keys->k, b);
    kernel->v = ra_tensor_from_row(keys->v, b);
    kernel->mask = ra_tensor_from_row(keys->mask, b);
    kernel->lse = ra_tensor_from_row(x->lse, a);
    if (!call->backward) {
        kernel->o = ra_tensor_from_row(x->o, a);
        kernel->carry_o = ra_tensor_from_row(wide, a);
        kernel->carry_max = ra_tensor_from_row(ra_tensor_bhn(cuda->max, n, H), a);
        kernel->carry_sum = ra_tensor_from_row(ra_tensor_bhn(cuda->sum, n, H), a);
        kernel->o_lost = ra_tensor_from_row(wide_lost, a);
        kernel->sum_lost = ra_tensor_from_row(lost_of(call, cuda->sum_lost, 1), a);
        launch_forward(call, kernel, s);
        return;
    }
    kernel->d_out = ra_tensor_from_row(x->d_out, a);
    kernel->delta = ra_tensor_from_row(ra_tensor_bhn(cuda->delta, n, H), a);
    kernel->dq = ra_tensor_from_row(dq, a);
    kernel->dq_lost = ra_tensor_from_row(wide_lost, a);
    kernel->dk = ra_tensor_from_row(keys->dk, b);
    kernel->dv = ra_tensor_from_row(keys->dv, b);
    kernel->dk_lost = ra_tensor_from_row(keys->dk_lost, b);
    kernel->dv_lost = ra_tensor_from_row(keys->dv_lost, b);
    kernel->writes_keys = call->writes_keys;
    int64_t first = ra_most(0, rows.first - b), end = ra_least(kernel->keys, rows.end - b);
    if (first >= end)
        return;
    struct ra_kernel part = ra_kernel_keys(*kernel, first, end - first);
    if (c->type != RA_FLOAT32)
        RA_DO(plan, ra_k07_backward(&part, call->stream));
    else
        RA_DO(plan, ra_k02_backward(&part, call->stream));
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

/* Where dk and dv of this step go: into this rank's share or, of a single launch, to where the caller wants
 * them. */
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
    open_share(plan, rows, ra_cuda_of(plan)->share_lost, &keys->dk_lost, &keys->dv_lost);
}

void ra_cuda_find_writes(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_arrays *x = &call->x;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    struct key_arrays keys = {.dk = x->dk, .dv = x->dv};
    bool single = plan->ring.schedule.count == 1;
    call->writes_keys = call->in_callers_keys = call->in_callers_queries = false;
    if (plan->config.type == RA_FLOAT32 || ra_layout_spans(plan->layouts[RA_QUERY_SIDE]) > 1 ||
        ra_layout_spans(plan->layouts[RA_KEY_SIDE]) > 1 ||
        !is_seen(plan, plan->link.rank, 0, step, 0, &kernel))
        return;
    open_keys(call, step, &keys.k, &keys.v, &keys.mask);
    if (!single)
        open_gradients(call, step, &keys);
    kernel.q = x->q;
    kernel.k = keys.k;
    kernel.v = keys.v;
    kernel.d_out = x->d_out;
    kernel.dq = single ? x->dq : (struct ra_tensor)RA_NO_TENSOR;
    kernel.dk = keys.dk;
    kernel.dv = keys.dv;
    RA_DO(plan, ra_k07_writes(&kernel, &call->writes_keys, &call->in_callers_queries));
    call->in_callers_keys = single && call->writes_keys;
}

struct ra_range ra_cuda_all_keys(const struct ra_plan *plan, int step)
{
    return (struct ra_range){0, ra_ring_rows(&plan->ring, plan->link.rank, step)};
}

int64_t ra_cuda_rest_of_keys(const struct ra_plan *plan, int step)
{
    /* A key's gradients, 8 bytes for each of its numbers, leave in the time in which a Hopper works on it
     * for some 2,000 queries, of all heads that read it. A tile has 128 keys; they come in whole waves. The
     * first keys are those that most queries see under a causal mask. Many batches would be many small
     * copies: these go whole. */
    enum { QUERIES = 2048, TILE = 128, MOST_COPIES = 16 };
    const struct ra_config *c = &plan->config;
    const struct ra_cuda *cuda = plan->own;
    int64_t rows = ra_cuda_all_keys(plan, step).end, tiles = (rows + TILE - 1) / TILE;
    int64_t queries = plan->rows[RA_QUERY_SIDE] * (c->heads / c->key_heads);
    int64_t wave = ra_most(1, cuda->processors / ra_most(1, c->batch * c->key_heads));
    int64_t needed = tiles * QUERIES / (queries + QUERIES) + 1;
    int64_t rest = (needed + wave - 1) / wave * wave;
    bool last = step > 0 && step == plan->ring.schedule.count - 1 && cuda->pass->in_parts;
    bool good = last && !cuda->share_lost && 2 * c->batch <= MOST_COPIES && rest < tiles;
    return good ? rest * TILE : rows;
}

void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_range rows)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    struct key_arrays keys = {.dk = RA_NO_TENSOR, .dv = RA_NO_TENSOR};
    struct ra_cuda_timer *timer = ra_cuda_timer(plan, call->backward, step, RA_EVENT_WORK);
    int rank = plan->link.rank;
    int64_t a = 0;
    open_keys(call, step, &keys.k, &keys.v, &keys.mask);
    if (rows.end == ra_cuda_all_keys(plan, step).end)
        ra_cuda_begins(plan, timer, call->stream);
    if (call->backward)
        open_gradients(call, step, &keys);
    for (int64_t s = 0; s < ra_layout_spans(plan->layouts[RA_QUERY_SIDE]); s++) {
        int64_t b = 0;
        for (int64_t t = 0; t < ra_layout_spans(plan->layouts[RA_KEY_SIDE]); t++) {
            if (is_seen(plan, rank, s, step, t, &kernel))
                launch(call, &kernel, s, a, b, rows, &keys);
            b += kernel.keys;
        }

        /* Queries that never see anything need a result, too. */
        if (!call->backward && step == 0 && cuda->launches[s] == 0 && kernel.queries > 0) {
            kernel.keys = 0;
            kernel.band = (struct ra_band){1, 0};
            launch(call, &kernel, s, a, 0, rows, &keys);
        }
        a += kernel.queries;
    }
    ra_cuda_ends(plan, timer, call->stream);
}
