/* ra_cuda_ring: forward and backward of a plan on GPUs. See ra_cuda_ring.h.
 *
 * Chapter 11. New here: the loop of ra_ring.c, enqueued. Streams take the place of waiting: the
 * caller's computes, one sends keys, one sends gradients, and events order them.
 *
 * Order. Work is enqueued in an order in which all of it could also run, one piece after the other,
 * on all ranks: whatever waits for something is enqueued after it. So no rank can be stuck on
 * another, even if every launch were to wait for its end.
 */
#include "ra_cuda_ring.h"
#include "ra_cuda_launch.h"
#include "ra_cuda_lists.h"
#include "ra_cuda_observe.h"
#include "ra_cuda_places.h"
#include "ra_cuda_reorder.h"
#include "ra_cuda_steps.h"

/* ---- Keys. */

/* Can copy engines take this array (B, rows, G, dim) as a part of a message? It has no gaps, and
 * lies in memory that CUDA knows: other memory they may read at once, not when it is their turn. */
static bool is_message(const struct ra_plan *plan, struct ra_tensor tensor, int64_t dim)
{
    const struct ra_config *c = &plan->config;
    struct ra_tensor dense =
        ra_tensor_bnhd(tensor.data, tensor.type, plan->rows[RA_KEY_SIDE], c->key_heads, dim);
    struct cudaPointerAttributes attributes;
    return (c->key_heads == 1 || tensor.head == dense.head) && tensor.row == dense.row &&
           (c->batch == 1 || tensor.batch == dense.batch) &&
           cudaPointerGetAttributes(&attributes, tensor.data) == cudaSuccess &&
           attributes.type != cudaMemoryTypeUnregistered;
}

/* Copies the mask, and puts this rank's keys into the message that carries them, if they travel and
 * a copy engine cannot take them from where they are. */
static void pack_keys(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], G = c->key_heads, D = c->dim, D_v = c->dim_value;
    ra_cuda_begin_mask(call);
    bool sends = ra_ring_sends(&plan->ring, plan->link.rank, 0);
    call->keys_in_place = sends && cuda->transport == RA_PEER_COPIES &&
                          is_message(plan, call->arrays.k, D) &&
                          is_message(plan, call->arrays.v, D_v);
    if (!sends || call->keys_in_place) {
        RA_DO(plan, cudaEventRecord(cuda->packed, call->stream));
        return;
    }

    /* The message of the call before must have left. */
    char *k = plan->ring.keys[0], *v = k + ra_cuda_key_bytes(c, m, D);
    RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->keys_left, 0));
    RA_DO(plan, ra_kernel_copy(ra_tensor_bnhd(k, c->type, m, G, D), call->arrays.k, c->batch, m, G,
                               D, call->stream));
    RA_DO(plan, ra_kernel_copy(ra_tensor_bnhd(v, c->type, m, G, D_v), call->arrays.v, c->batch, m,
                               G, D_v, call->stream));
    if (c->has_mask)
        RA_DO(plan,
              cudaMemcpyAsync(v + ra_cuda_key_bytes(c, m, D_v), cuda->mask, (size_t)(c->batch * m),
                              cudaMemcpyDeviceToDevice, call->stream));
    RA_DO(plan, cudaEventRecord(cuda->packed, call->stream));
}

/* Begins to send what this rank has of a step, keys or gradients, as the message `step_there`. */
static void push(struct ra_cuda_call *call, enum ra_message message, int step, int step_there,
                 struct ra_cuda_timer *timer)
{
    struct ra_ring *ring = &call->plan->ring;
    ring->messages_sent++;
    ring->bytes_sent += ra_ring_rows(ring, ring->link->rank, step) *
                        (message == RA_KEYS ? ring->key_bytes : ring->gradient_bytes);
    ra_cuda_of(call->plan)->pass->push(call, message, step_there, timer);
}

/* Begins to send the keys of this step to where they are needed next, and to receive the next
 * ones. */
static void pass_keys(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank, next = step + 1;
    if (next == plan->ring.schedule.count)
        return;

    /* A rank that sends nothing waits for this, too: nothing is due before the caller's stream
     * comes here. */
    if (step == 0)
        RA_DO(plan, cudaStreamWaitEvent(cuda->keys_stream, cuda->packed, 0));
    if (ra_ring_receives(&plan->ring, rank, next))
        cuda->pass->expect(call, RA_KEYS, next);
    if (ra_ring_sends(&plan->ring, rank, step))
        push(call, RA_KEYS, step, next, ra_cuda_timer(plan, call->backward, step, RA_EVENT_KEYS));
    else
        cuda->pass->skip(call, RA_KEYS, next);
    if (step == 0)
        RA_DO(plan, cudaEventRecord(cuda->keys_left, cuda->keys_stream));
}

/* The keys of this step are used up, as soon as what was enqueued is done: others may come. */
static void leave_keys(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    RA_DO(plan, cudaEventRecord(cuda->computed, call->stream));

    /* They have also left, where they go on: that was enqueued before on the same stream. */
    RA_DO(plan, cudaStreamWaitEvent(cuda->keys_stream, cuda->computed, 0));
    if (step > 0)
        cuda->pass->credit(call, RA_KEYS, step);
    RA_DO(plan, cudaEventRecord(cuda->credit_sent, cuda->keys_stream));
}

/* Lets what follows on the caller's stream use the keys of the next step. */
static void take_keys(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int next = step + 1;
    if (next == plan->ring.schedule.count)
        return;
    cuda->pass->await(call, RA_KEYS, next);
    if (!ra_ring_receives(&plan->ring, plan->link.rank, next))
        return;
    RA_DO(plan, cudaEventRecord(cuda->keys_arrived, cuda->keys_stream));
    RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->keys_arrived, 0));
}

/* ---- Gradients. */

/* Sets this rank's share of the gradients of this step's keys to 0, once what lay there has left,
 * if it is one that leaves; or its launch writes them. */
static void clear_gradients(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_ring *ring = &plan->ring;
    int slot = ra_ring_slot(step);
    int64_t bytes = ra_ring_rows(ring, plan->link.rank, step) * ring->gradient_bytes;
    float *comp = ra_cuda_of(plan)->share_comp;
    if (step > 0)
        RA_DO(plan, cudaStreamWaitEvent(call->stream, ra_cuda_of(plan)->left[slot - 1], 0));
    if (bytes > 0 && !ra_cuda_of(plan)->steps[step].writes_keys)
        RA_DO(plan, cudaMemsetAsync(ring->gradients[slot], 0, (size_t)bytes, call->stream));
    if (bytes > 0 && comp)
        RA_DO(plan, cudaMemsetAsync(comp, 0, (size_t)bytes, call->stream));
}

/* Adds as many numbers to this rank's share as it has: dk and dv, one behind the other. */
static void add_to_share(struct ra_cuda_call *call, int step, float *numbers)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t all = c->batch * ra_ring_rows(&plan->ring, plan->link.rank, step);
    int64_t G = c->key_heads, both = c->dim + c->dim_value;
    struct ra_tensor share =
        ra_tensor_bnhd(plan->ring.gradients[ra_ring_slot(step)], RA_FLOAT32, all, G, both);
    RA_DO(plan, ra_kernel_sum(share, share, ra_tensor_bnhd(numbers, RA_FLOAT32, all, G, both), 1,
                              all, G, both, call->stream));
}

/* Adds the sum of the ranks before, which arrives meanwhile, to this rank's share. There is one
 * from step 2 on: the share of step 0 has stayed at home. */
static void add_gradients(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    bool comes = ra_cuda_expects_message(plan, plan->link.rank, RA_GRADIENTS, step);
    cuda->pass->await(call, RA_GRADIENTS, step);
    if (comes) {
        RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, cuda->gradients_stream));
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));
        add_to_share(call, step, plan->ring.gradients[3]);
    }
    RA_DO(plan, cudaEventRecord(cuda->summed, call->stream));
    RA_DO(plan, cudaStreamWaitEvent(cuda->gradients_stream, cuda->summed, 0));
    cuda->pass->credit(call, RA_GRADIENTS, step);
}

/* Begins to send the sum on, or home, and to receive the next one. */
static void pass_gradients(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_ring *ring = &plan->ring;
    struct ra_cuda_timer *timer = ra_cuda_timer(plan, call->backward, step, RA_EVENT_GRADIENTS);
    int rank = plan->link.rank, next = step + 1;

    /* From step 1 on this rank's own gradients may come home at any time. */
    if (step == 1 && ra_cuda_expects_message(plan, rank, RA_GRADIENTS_RETURN, step))
        cuda->pass->expect(call, RA_GRADIENTS_RETURN, step);
    if (next < ring->schedule.count && ra_ring_receives(ring, rank, next))
        cuda->pass->expect(call, RA_GRADIENTS, next);

    /* A copy engine does one copy at a time. If this one came before the credit for keys of
     * this step, all that follows the signal on its stream would be late by a whole message, and so
     * the next launch. */
    RA_DO(plan, cudaStreamWaitEvent(cuda->gradients_stream, cuda->credit_sent, 0));
    if (ra_ring_sends_home(ring, rank, step))
        push(call, RA_GRADIENTS_RETURN, step, step, timer);
    if (ra_ring_sends(ring, rank, step))
        push(call, RA_GRADIENTS, step, next, timer);
    else if (next < ring->schedule.count)
        cuda->pass->skip(call, RA_GRADIENTS, next);
    RA_DO(plan, cudaEventRecord(cuda->left[ra_ring_slot(step) - 1], cuda->gradients_stream));
}

/* At which step a rank's own keys are used for the last time. */
static int last_step(const struct ra_ring *ring, int rank)
{
    int step = 0;
    while (ring->schedule.hop[step] < ring->schedule.last[rank])
        step++;
    return step;
}

/* Lets what follows on the caller's stream use what the other ranks have made of this rank's own
 * gradients. */
static void take_gradients(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank;
    if (plan->ring.schedule.count == 1)
        return;
    cuda->pass->await(call, RA_GRADIENTS_RETURN, last_step(&plan->ring, rank));
    if (!ra_cuda_expects_message(plan, rank, RA_GRADIENTS_RETURN, 0))
        return;
    RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, cuda->gradients_stream));
    RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));
}

/* ---- The loop. */

/* Folds a part of a step, and times it: what step 0 has left as if it were a step behind the
 * last. */
static void fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part)
{
    struct ra_plan *plan = call->plan;
    bool is_rest = part.rows.end < ra_ring_rows(&plan->ring, plan->link.rank, step);
    struct ra_cuda_timer *timer = ra_cuda_timer(
        plan, call->backward, is_rest ? plan->ring.schedule.count : step, RA_EVENT_WORK);
    if (part.keys)
        ra_cuda_timer_start(plan, timer, call->stream);
    ra_cuda_fold(call, step, part);
    ra_cuda_timer_stop(plan, timer, call->stream);
}

/* The first launch reads no carry, but what rounding has lost of it, which begins at 0. */
static void begin_carries(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int64_t rows = plan->config.batch * plan->rows[RA_QUERY_SIDE] * plan->config.heads;
    size_t bytes = (size_t)rows * sizeof(float);
    if (!cuda->wide_comp || rows == 0)
        return;
    RA_DO(plan, cudaMemsetAsync(cuda->sum_comp, 0, bytes, call->stream));
    RA_DO(plan, cudaMemsetAsync(cuda->wide_comp, 0, bytes * (size_t)plan->config.dim_value,
                                call->stream));
}

/* The largest score of each head, if it is asked for: before all launches, and behind them. */
static void find_largest(struct ra_cuda_call *call, ra_kernel_launch *step)
{
    struct ra_kernel kernel = ra_cuda_kernel(call->plan);
    kernel.largest = call->arrays.largest;
    if (kernel.largest.data)
        RA_DO(call->plan, step(&kernel, call->stream));
}

void ra_cuda_enqueue_forward(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    ra_cuda_lists_send(call);
    ra_cuda_places_send(call);
    find_largest(call, ra_kernel_begin_largest);
    ra_cuda_begin_order(call);
    pack_keys(call);
    ra_cuda_open_steps(call);
    begin_carries(call);
    for (int step = 0; step < plan->ring.schedule.count && ra_cuda_ok(plan); step++) {
        ra_cuda_of(plan)->hop = plan->ring.schedule.hop[step];
        pass_keys(call, step);
        fold(call, step, ra_cuda_full_step(plan, step));
        leave_keys(call, step);
        take_keys(call, step);
    }
    find_largest(call, ra_kernel_end_largest);
    ra_cuda_end_order(call);
}

/* The gradient of the sinks, once delta is there. */
static void find_sink_gradient(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    if (!call->arrays.d_sink.data)
        return;
    kernel.queries = plan->rows[RA_QUERY_SIDE];
    kernel.sink = call->arrays.sink;
    kernel.lse = call->arrays.lse;
    kernel.delta = ra_tensor_bhn(ra_cuda_of(plan)->delta, kernel.queries, kernel.heads);
    RA_DO(plan, ra_kernel_sink_gradient(&kernel, call->arrays.d_sink, call->stream));
}

/* delta of all queries, and dq: a sum, which begins at 0, unless a single launch writes it. */
static void begin_queries(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], numbers = c->batch * n * c->heads * c->dim;
    if (numbers > 0)
        ra_cuda_begin_delta(call);
    find_sink_gradient(call);
    if (numbers == 0)
        return;
    if (!call->in_callers_queries)
        RA_DO(plan, cudaMemsetAsync(cuda->wide, 0, (size_t)numbers * sizeof(float), call->stream));
    if (cuda->wide_comp)
        RA_DO(plan,
              cudaMemsetAsync(cuda->wide_comp, 0, (size_t)numbers * sizeof(float), call->stream));
}

/* Writes dq to the caller's array, if no launch has. The sum is rounded here, once. */
static void write_queries(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_tensor dq = ra_tensor_bnhd(ra_cuda_of(plan)->wide, RA_FLOAT32, n, H, c->dim);
    const struct ra_tensor none = RA_NO_TENSOR;
    float *comp = ra_cuda_of(plan)->wide_comp;
    if (c->batch * n == 0 || call->in_callers_queries)
        return;
    if (comp)
        RA_DO(plan, ra_kernel_sum(dq, dq, ra_tensor_bnhd(comp, RA_FLOAT32, n, H, c->dim), c->batch,
                                  n, H, c->dim, call->stream));
    ra_cuda_copy_rows_back(call, RA_QUERY_SIDE, call->arrays.dq, dq, none, H, c->dim);
}

/* The same with dk and dv: what stayed at home and, if these keys travelled, what has come home. */
static void write_keys(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], G = c->key_heads, numbers = c->batch * m * G * c->dim;
    int64_t widths[2] = {c->dim, c->dim_value};
    struct ra_tensor results[2] = {call->arrays.dk, call->arrays.dv}, home = RA_NO_TENSOR;
    for (int i = 0; i < 2 && numbers > 0 && !call->in_callers_keys; i++) {
        int64_t D = widths[i];
        float *own = plan->ring.gradients[0] + i * numbers;
        if (ra_cuda_expects_message(plan, plan->link.rank, RA_GRADIENTS_RETURN, 0))
            home = ra_tensor_bnhd(ra_cuda_of(plan)->home + i * numbers, RA_FLOAT32, m, G, D);
        ra_cuda_copy_rows_back(call, RA_KEY_SIDE, results[i],
                               ra_tensor_bnhd(own, RA_FLOAT32, m, G, D), home, G, D);
    }
}

/* How much of the work on this rank's own keys is left for the end: none if gradients leave before
 * dq is computed, beside which they come home. */
static struct ra_cuda_part rest_of_work(const struct ra_plan *plan)
{
    const struct ra_cuda *cuda = plan->own;
    struct ra_cuda_part rest = ra_cuda_full_step(plan, 0);
    bool none = cuda->steps[0].separates_dq || ra_cuda_is_sliced(plan);
    rest.rows.end = none ? 0 : cuda->deferred;
    return rest;
}

/* The work of a step, and the way of the gradients that others are to have: where dk and dv are
 * there before dq, they leave before it. */
static void work(struct ra_cuda_call *call, int step)
{
    struct ra_cuda_part part = ra_cuda_full_step(call->plan, step);
    float *comp = ra_cuda_of(call->plan)->share_comp;
    bool apart = step > 0 && ra_cuda_of(call->plan)->steps[step].separates_dq;
    if (step == 0)
        part.rows.first = rest_of_work(call->plan).rows.end;
    part.queries = !apart;
    fold(call, step, part);
    if (!apart)
        leave_keys(call, step);
    if (comp)
        add_to_share(call, step, comp);
    if (step > 0) {
        add_gradients(call, step);
        pass_gradients(call, step);
    }
    if (apart) {
        part.keys = false;
        part.queries = true;
        fold(call, step, part);
        leave_keys(call, step);
    }
}

/* What step 0 has left of the work on this rank's own keys: while it is done, their gradients come
 * home. */
static void finish_own_keys(struct ra_cuda_call *call)
{
    struct ra_cuda_part rest = rest_of_work(call->plan);
    if (rest.rows.end == 0)
        return;
    ra_cuda_of(call->plan)->hop = 0;
    fold(call, 0, rest);
}

void ra_cuda_enqueue_backward(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    ra_cuda_lists_send(call);
    ra_cuda_places_send(call);
    ra_cuda_begin_order(call);
    pack_keys(call);
    ra_cuda_open_steps(call);
    begin_queries(call);
    for (int step = 0; step < plan->ring.schedule.count && ra_cuda_ok(plan); step++) {
        ra_cuda_of(plan)->hop = plan->ring.schedule.hop[step];
        pass_keys(call, step);
        clear_gradients(call, step);
        work(call, step);
        take_keys(call, step);
    }
    finish_own_keys(call);
    write_queries(call);
    take_gradients(call);
    write_keys(call);
}
