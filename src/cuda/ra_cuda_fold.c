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
    *carries = false;
    *semaphores = 0;
    for (int64_t s = 0; s < ra_layout_spans(plan->layouts[RA_QUERY_SIDE]); s++) {
        int64_t count = 0;
        for (int step = 0; step < plan->ring.schedule.count; step++)
            for (int64_t t = 0; t < ra_layout_spans(plan->layouts[RA_KEY_SIDE]); t++) {
                if (!is_seen(plan, rank, s, step, t, &kernel))
                    continue;
                count++;
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

/* One launch: span s of the queries, from row a on, and a span of the keys, from row b on, of k, v,
 * mask, and backward dk and dv. */
static void launch(struct ra_cuda_call *call, struct ra_kernel *kernel, int64_t s, int64_t a,
                   int64_t b, struct ra_tensor k, struct ra_tensor v, struct ra_tensor mask,
                   struct ra_tensor dk, struct ra_tensor dv)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    const struct ra_arrays *x = &call->x;
    bool narrow = c->type != RA_FLOAT32;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_tensor wide = ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, c->dim);
    kernel->q = ra_tensor_from_row(x->q, a);
    kernel->k = ra_tensor_from_row(k, b);
    kernel->v = ra_tensor_from_row(v, b);
    kernel->mask = ra_tensor_from_row(mask, b);
    kernel->lse = ra_tensor_from_row(x->lse, a);
    if (call->backward) {
        kernel->d_out = ra_tensor_from_row(x->d_out, a);
        kernel->delta = ra_tensor_from_row(ra_tensor_bhn(cuda->delta, n, H), a);
        kernel->dq = ra_tensor_from_row(wide, a);
        kernel->dk = ra_tensor_from_row(dk, b);
        kernel->dv = ra_tensor_from_row(dv, b);
        if (narrow)
            RA_DO(plan, ra_k03_backward(kernel, call->stream));
        else
            RA_DO(plan, ra_k02_backward(kernel, call->stream));
        return;
    }
    kernel->o = ra_tensor_from_row(x->o, a);
    kernel->carry_o = ra_tensor_from_row(wide, a);
    kernel->carry_max = ra_tensor_from_row(ra_tensor_bhn(cuda->max, n, H), a);
    kernel->carry_sum = ra_tensor_from_row(ra_tensor_bhn(cuda->sum, n, H), a);
    kernel->first = cuda->launched[s] == 0;
    cuda->launched[s]++;
    kernel->last = cuda->launched[s] >= cuda->launches[s];
    if (narrow)
        RA_DO(plan, ra_k03_forward(kernel, call->stream));
    else
        RA_DO(plan, ra_k02_forward(kernel, call->stream));
}

void ra_cuda_fold(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    struct ra_tensor k, v, mask, dk = RA_NO_TENSOR, dv = RA_NO_TENSOR;
    struct ra_cuda_timer *timer = ra_cuda_timer(plan, call->backward, step, RA_EVENT_WORK);
    int rank = plan->link.rank;
    int64_t rows = ra_ring_rows(&plan->ring, rank, step), G = c->key_heads, a = 0;
    open_keys(call, step, &k, &v, &mask);
    ra_cuda_begins(plan, timer, call->stream);
    if (call->backward) {
        float *share = plan->ring.gradients[ra_ring_slot(step)];
        dk = ra_tensor_bnhd(share, RA_FLOAT32, rows, G, c->dim);
        dv = ra_tensor_bnhd(share + c->batch * rows * G * c->dim, RA_FLOAT32, rows, G, c->dim);
    }
    for (int64_t s = 0; s < ra_layout_spans(plan->layouts[RA_QUERY_SIDE]); s++) {
        int64_t b = 0;
        for (int64_t t = 0; t < ra_layout_spans(plan->layouts[RA_KEY_SIDE]); t++) {
            if (is_seen(plan, rank, s, step, t, &kernel))
                launch(call, &kernel, s, a, b, k, v, mask, dk, dv);
            b += kernel.keys;
        }

        /* Queries that never see anything need a result, too. */
        if (!call->backward && step == 0 && cuda->launches[s] == 0 && kernel.queries > 0) {
            kernel.keys = 0;
            kernel.band = (struct ra_band){1, 0};
            launch(call, &kernel, s, a, 0, k, v, mask, dk, dv);
        }
        a += kernel.queries;
    }
    ra_cuda_ends(plan, timer, call->stream);
}
