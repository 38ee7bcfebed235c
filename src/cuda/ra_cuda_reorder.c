/* ra_cuda_reorder: rows of several stripes, brought into the order of the sequence and back. See
 * ra_cuda_reorder.h.
 *
 * Chapter 11. New here: a rank that has f stripes has f tokens in a row out of every f * P. In
 * its own arrays stripe lies behind stripe; but side by side, the rows of a tile see what lies side
 * by side, and one band says what. Each array is copied once in a call, whatever the number of
 * hops.
 */
#include "ra_cuda_reorder.h"
#include "ra_cuda_launch.h"
#include "ra_cuda_spans.h"

/* Neighbouring stripes of one batch, with equally many rows: `count` of them, from number `first`
 * on. `before`: how many rows of the caller's array lie before theirs. */
struct stripes {
    int64_t batch, first, count, rows, before;
};

/* How many such groups there are, and one of them: of each batch come first the stripes with most
 * rows, then those, if there are any, that have a row less. */
static int64_t group_count(const struct ra_plan *plan)
{
    return 2 * plan->config.batch;
}

static struct stripes group_of(const struct ra_plan *plan, enum ra_side side, int64_t i)
{
    struct ra_layout layout = plan->layouts[side];
    int rank = plan->link.rank;
    int64_t first = ra_layout_alike(layout, rank, 0), rows = ra_layout_span(layout, rank, 0).count;
    if (i % 2 == 0)
        return (struct stripes){i / 2, 0, first, rows, 0};
    return (struct stripes){i / 2, first, ra_layout_spans(layout) - first, rows > 0 ? rows - 1 : 0,
                            first * rows};
}

/* Their rows in an array, as if each stripe were a batch: in the caller's, and in one in the order
 * of the sequence, where every f-th row is of one stripe. */
static struct ra_tensor view(struct ra_tensor tensor, int64_t batch, int64_t first, int64_t stripe,
                             int64_t row)
{
    if (tensor.data)
        tensor.data = (char *)tensor.data + batch * tensor.batch * ra_type_bytes(tensor.type);
    tensor = ra_tensor_from_row(tensor, first);
    tensor.batch = stripe * tensor.row;
    tensor.row *= row;
    return tensor;
}

static struct ra_tensor in_stripes(struct ra_tensor tensor, struct stripes group)
{
    return view(tensor, group.batch, group.before, group.rows, 1);
}

static struct ra_tensor in_order(struct ra_tensor tensor, struct stripes group, int64_t f)
{
    return view(tensor, group.batch, group.first, 1, f);
}

/* Copies rows of the caller's into the order of the sequence. */
static void copy_rows(struct ra_cuda_call *call, enum ra_side side, struct ra_tensor ordered,
                      struct ra_tensor caller, int64_t heads, int64_t dim)
{
    struct ra_plan *plan = call->plan;
    for (int64_t i = 0; i < group_count(plan); i++) {
        struct stripes group = group_of(plan, side, i);
        struct ra_tensor to = in_order(ordered, group, ra_cuda_stripes(plan));
        if (group.count * group.rows > 0)
            RA_DO(plan, ra_kernel_copy(to, in_stripes(caller, group), group.count, group.rows,
                                       heads, dim, call->stream));
    }
}

void ra_cuda_begin_order(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    struct ra_arrays *arrays = &call->arrays;
    int64_t n = plan->rows[RA_QUERY_SIDE], m = plan->rows[RA_KEY_SIDE];
    call->caller = call->arrays;
    if (ra_cuda_stripes(plan) == 1)
        return;
    arrays->q = ra_tensor_bnhd(cuda->q, c->type, n, c->heads, c->dim);
    arrays->k = ra_tensor_bnhd(cuda->k, c->type, m, c->key_heads, c->dim);
    arrays->v = ra_tensor_bnhd(cuda->v, c->type, m, c->key_heads, c->dim_value);
    arrays->lse = ra_tensor_bhn(cuda->lse, n, c->heads);
    arrays->o = ra_tensor_bnhd(cuda->rows, arrays->o.type, n, c->heads,
                               c->dim_value); /* perhaps in float32 */
    arrays->d_out = ra_tensor_bnhd(cuda->rows, c->type, n, c->heads, c->dim_value);
    copy_rows(call, RA_QUERY_SIDE, arrays->q, call->caller.q, c->heads, c->dim);
    copy_rows(call, RA_KEY_SIDE, arrays->k, call->caller.k, c->key_heads, c->dim);
    copy_rows(call, RA_KEY_SIDE, arrays->v, call->caller.v, c->key_heads, c->dim_value);
    if (call->backward) {
        copy_rows(call, RA_QUERY_SIDE, arrays->lse, call->caller.lse, c->heads, 1);
        copy_rows(call, RA_QUERY_SIDE, arrays->d_out, call->caller.d_out, c->heads, c->dim_value);
    }
}

void ra_cuda_begin_mask(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], f = ra_cuda_stripes(plan);
    struct ra_tensor own = ra_tensor_bn(ra_cuda_of(plan)->mask, m);
    if (!c->has_mask || c->batch * m == 0)
        return;
    if (f == 1)
        RA_DO(plan, ra_signal_mask(own, call->caller.mask, c->batch, m, call->stream));
    for (int64_t i = 0; f > 1 && i < group_count(plan); i++) {
        struct stripes group = group_of(plan, RA_KEY_SIDE, i);
        RA_DO(plan, ra_signal_mask(in_order(own, group, f), in_stripes(call->caller.mask, group),
                                   group.count, group.rows, call->stream));
    }
}

void ra_cuda_begin_delta(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], f = ra_cuda_stripes(plan);
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    struct ra_tensor delta = ra_tensor_bhn(ra_cuda_of(plan)->delta, n, c->heads);
    kernel.queries = n;
    kernel.d_out = call->caller.d_out;
    kernel.o = call->caller.o;
    kernel.lse = call->caller.lse;
    kernel.d_lse = call->caller.d_lse;
    kernel.delta = delta;
    if (f == 1)
        RA_DO(plan, ra_kernel_delta(&kernel, call->stream));
    for (int64_t i = 0; f > 1 && i < group_count(plan); i++) {
        struct stripes group = group_of(plan, RA_QUERY_SIDE, i);
        kernel.batch = group.count;
        kernel.queries = group.rows;
        kernel.d_out = in_stripes(call->caller.d_out, group);
        kernel.o = in_stripes(call->caller.o, group);
        kernel.lse = in_stripes(call->caller.lse, group);
        kernel.d_lse = in_stripes(call->caller.d_lse, group);
        kernel.delta = in_order(delta, group, f);
        RA_DO(plan, ra_kernel_delta(&kernel, call->stream));
    }
}

void ra_cuda_copy_rows_back(struct ra_cuda_call *call, enum ra_side side, struct ra_tensor to,
                            struct ra_tensor from, struct ra_tensor plus, int64_t heads,
                            int64_t dim)
{
    struct ra_plan *plan = call->plan;
    int64_t f = ra_cuda_stripes(plan);
    if (f == 1)
        RA_DO(plan, ra_kernel_sum(to, from, plus, plan->config.batch, plan->rows[side], heads, dim,
                                  call->stream));
    for (int64_t i = 0; f > 1 && i < group_count(plan); i++) {
        struct stripes group = group_of(plan, side, i);
        if (group.count * group.rows > 0)
            RA_DO(plan, ra_kernel_sum(in_stripes(to, group), in_order(from, group, f),
                                      in_order(plus, group, f), group.count, group.rows, heads, dim,
                                      call->stream));
    }
}

void ra_cuda_end_order(struct ra_cuda_call *call)
{
    const struct ra_config *c = &call->plan->config;
    const struct ra_tensor none = RA_NO_TENSOR;
    if (ra_cuda_stripes(call->plan) == 1)
        return;
    ra_cuda_copy_rows_back(call, RA_QUERY_SIDE, call->caller.o, call->arrays.o, none, c->heads,
                           c->dim_value);
    ra_cuda_copy_rows_back(call, RA_QUERY_SIDE, call->caller.lse, call->arrays.lse, none, c->heads,
                           1);
}
