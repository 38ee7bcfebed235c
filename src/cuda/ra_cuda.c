/* ra_cuda: forward and backward of a plan on GPUs. See ring_attention_cuda.h and ra_cuda.h.
 *
 * Chapter 11. New here: the loop of ra_ring.c, enqueued. Streams take the place of waiting: the
 * caller's computes, one sends keys, one sends gradients, and events order them.
 *
 * Order. Work is enqueued in an order in which all of it could also run, one piece after the other,
 * on all ranks: whatever waits for something is enqueued after it. So no rank can be stuck on
 * another, even if every launch were to wait for its end.
 */
#include "ra_cuda.h"

/* ---- Keys. */

/* Can copy engines take this array (B, rows, G, D) as a part of a message? It has no gaps, and lies in memory
 * that CUDA knows: other memory they may read at once, not when it is their turn. */
static bool is_message(const struct ra_plan *plan, struct ra_tensor x)
{
    const struct ra_config *c = &plan->config;
    struct ra_tensor dense =
        ra_tensor_bnhd(x.data, x.type, plan->rows[RA_KEY_SIDE], c->key_heads, c->dim);
    struct cudaPointerAttributes attributes;
    return (c->key_heads == 1 || x.head == dense.head) && x.row == dense.row &&
           (c->batch == 1 || x.batch == dense.batch) &&
           cudaPointerGetAttributes(&attributes, x.data) == cudaSuccess &&
           attributes.type != cudaMemoryTypeUnregistered;
}

/* Copies the mask, and puts this rank's keys into the message that carries them, if they travel and a copy
 * engine cannot take them from where they are. */
static void pack_keys(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], G = c->key_heads, D = c->dim;
    int64_t bytes = c->batch * m * G * D * ra_type_bytes(c->type);
    ra_cuda_begin_mask(call);
    bool sends = ra_ring_sends(&plan->ring, plan->link.rank, 0);
    call->keys_in_place = sends && cuda->transport == RA_PEER_COPIES &&
                          is_message(plan, call->x.k) && is_message(plan, call->x.v);
    if (!sends || call->keys_in_place) {
        RA_DO(plan, cudaEventRecord(cuda->packed, call->stream));
        return;
    }

    /* The message of the call before must have left. */
    char *message = plan->ring.keys[0];
    RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->keys_left, 0));
    RA_DO(plan, ra_kernel_copy(ra_tensor_bnhd(message, c->type, m, G, D), call->x.k, c->batch, m, G,
                               D, call->stream));
    RA_DO(plan, ra_kernel_copy(ra_tensor_bnhd(message + bytes, c->type, m, G, D), call->x.v,
                               c->batch, m, G, D, call->stream));
    if (c->has_mask)
        RA_DO(plan, cudaMemcpyAsync(message + 2 * bytes, cuda->mask, (size_t)(c->batch * m),
                                    cudaMemcpyDeviceToDevice, call->stream));
    RA_DO(plan, cudaEventRecord(cuda->packed, call->stream));
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

    /* A rank that sends nothing waits for this, too: nothing is due before the caller's stream comes
     * here. */
    if (step == 0)
        RA_DO(plan, cudaStreamWaitEvent(cuda->keys_stream, cuda->packed, 0));
    if (ra_ring_receives(&plan->ring, rank, next))
        cuda->pass->expect(call, RA_KEYS, next);
    if (ra_ring_sends(&plan->ring, rank, step))
        cuda->pass->push(call, RA_KEYS, next, ra_cuda_all_keys(plan, step),
                         ra_cuda_timer(plan, call->backward, step, RA_EVENT_KEYS));
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
    if (ra_ring_receives(&plan->ring, plan->link.rank, step))
        cuda->pass->room(call, RA_KEYS, step);
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

/* Sets this rank's share of the gradients of this step's keys to 0, once what lay there has left; or its
 * launch writes them. */
static void clear_gradients(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_ring *ring = &plan->ring;
    int slot = ra_ring_slot(step);
    int64_t bytes = ra_ring_rows(ring, plan->link.rank, step) * ring->gradient_bytes;
    float *lost = ra_cuda_of(plan)->share_lost;
    ra_cuda_find_writes(call, step);
    RA_DO(plan, cudaStreamWaitEvent(call->stream, ra_cuda_of(plan)->left[slot], 0));
    if (bytes > 0 && !call->writes_keys)
        RA_DO(plan, cudaMemsetAsync(ring->gradients[slot], 0, (size_t)bytes, call->stream));
    if (bytes > 0 && lost)
        RA_DO(plan, cudaMemsetAsync(lost, 0, (size_t)bytes, call->stream));
}

/* Adds to this rank's share what rounding has lost of it. */
static void add_lost(struct ra_cuda_call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_ring *ring = &plan->ring;
    const struct ra_config *c = &plan->config;
    int64_t all = 2 * c->batch * ra_ring_rows(ring, plan->link.rank, step), G = c->key_heads;
    float *lost = ra_cuda_of(plan)->share_lost;
    if (lost)
        RA_DO(plan, ra_kernel_add(ra_tensor_bnhd(ring->gradients[ra_ring_slot(step)], RA_FLOAT32,
                                                 all, G, c->dim),
                                  ra_tensor_bnhd(lost, RA_FLOAT32, all, G, c->dim), 1, all, G,
                                  c->dim, call->stream));
}

/* Adds the sum of the ranks before, which arrives meanwhile, to this rank's share: these rows. */
static void add_gradients(struct ra_cuda_call *call, int step, struct ra_range rows)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_ring *ring = &plan->ring;
    const struct ra_config *c = &plan->config;
    int rank = plan->link.rank;
    if (ring->schedule.count == 1)
        return;
    if (rows.end == ra_ring_rows(ring, rank, step))
        cuda->pass->await(call, RA_GRADIENTS, step);
    if (ra_ring_receives(ring, rank, step)) {
        RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, cuda->gradients_stream));
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));

        /* dk and dv lie one behind the other: they are twice as many batches. */
        int64_t all = ra_ring_rows(ring, rank, step), G = c->key_heads, D = c->dim;
        struct ra_tensor share =
            ra_tensor_bnhd(ring->gradients[ra_ring_slot(step)], RA_FLOAT32, all, G, D);
        struct ra_tensor sum = ra_tensor_bnhd(ring->gradients[3], RA_FLOAT32, all, G, D);
        RA_DO(plan, ra_kernel_add(ra_tensor_from_row(share, rows.first),
                                  ra_tensor_from_row(sum, rows.first), 2 * c->batch,
                                  rows.end - rows.first, G, D, call->stream));
    }
    RA_DO(plan, cudaEventRecord(cuda->summed, call->stream));
    RA_DO(plan, cudaStreamWaitEvent(cuda->gradients_stream, cuda->summed, 0));
    if (ra_ring_receives(ring, rank, step) && rows.first == 0)
        cuda->pass->room(call, RA_GRADIENTS, step);
}

/* Begins to send these rows of the sum on, or home, and to receive the next one. */
static void pass_gradients(struct ra_cuda_call *call, int step, struct ra_range rows)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_ring *ring = &plan->ring;
    struct ra_cuda_timer *timer = ra_cuda_timer(plan, call->backward, step, RA_EVENT_GRADIENTS);
    int rank = plan->link.rank, next = step + 1;
    if (ring->schedule.count == 1)
        return;

    /* From step 1 on this rank's own gradients may come home at any time. */
    if (step == 1 && ra_ring_sends(ring, rank, 0))
        cuda->pass->expect(call, RA_HOME, step);
    if (next < ring->schedule.count && ra_ring_receives(ring, rank, next))
        cuda->pass->expect(call, RA_GRADIENTS, next);
    if (ra_ring_sends(ring, rank, step))
        cuda->pass->push(call, RA_GRADIENTS, next, rows, timer);
    else if (ra_ring_sends_home(ring, rank, step))
        cuda->pass->push(call, RA_HOME, step, rows, timer);
    RA_DO(plan, cudaEventRecord(cuda->left[ra_ring_slot(step)], cuda->gradients_stream));
}

/* The parts of a step's work. No work is left behind the last step, beside which its gradients could go home. So
 * those of keys go while those of queries are computed; or, if one kernel computes both, most of them go while the
 * rest is computed. Returns how many parts there are. */
static int parts_of(struct ra_cuda_call *call, int step, struct ra_cuda_part parts[2])
{
    struct ra_range all = ra_cuda_all_keys(call->plan, step);
    int64_t rest = ra_cuda_rest_of_keys(call->plan, step);
    bool last = step > 0 && step == call->plan->ring.schedule.count - 1;
    parts[0] = parts[1] = ra_cuda_whole(call->plan, step);
    if (last && ra_cuda_separates(call, step)) {
        parts[0].queries = parts[1].keys = false;
        return 2;
    }
    if (rest == all.end)
        return 1;
    parts[0].rows.first = parts[1].rows.end = rest;
    return 2;
}

/* The work of a step, and the way of the gradients that are ready. */
static void work(struct ra_cuda_call *call, int step)
{
    struct ra_cuda_part parts[2];
    int count = parts_of(call, step, parts);
    for (int i = 0; i < count; i++) {
        ra_cuda_fold(call, step, parts[i]);
        if (i == count - 1)
            leave_keys(call, step);
        if (!parts[i].keys)
            continue;
        add_lost(call, step);
        add_gradients(call, step, parts[i].rows);
        pass_gradients(call, step, parts[i].rows);
    }
}

/* At which step a rank's own keys are used for the last time. */
static int last_step(const struct ra_ring *ring, int rank)
{
    int step = 0;
    while (ring->schedule.hop[step] < ring->schedule.last[rank])
        step++;
    return step;
}

/* Lets what follows on the caller's stream use this rank's own gradients. */
static void take_gradients(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank;
    if (plan->ring.schedule.count == 1)
        return;
    cuda->pass->await(call, RA_HOME, last_step(&plan->ring, rank));
    if (!ra_ring_sends(&plan->ring, rank, 0))
        return;
    RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, cuda->gradients_stream));
    RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));
}

/* ---- The loop. */

/* The first launch reads no carry, but what rounding has lost of it, which begins at 0. */
static void begin_carries(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    int64_t rows = plan->config.batch * plan->rows[RA_QUERY_SIDE] * plan->config.heads;
    size_t bytes = (size_t)rows * sizeof(float);
    if (!cuda->wide_lost || rows == 0)
        return;
    RA_DO(plan, cudaMemsetAsync(cuda->sum_lost, 0, bytes, call->stream));
    RA_DO(plan,
          cudaMemsetAsync(cuda->wide_lost, 0, bytes * (size_t)plan->config.dim, call->stream));
}

void ra_cuda_enqueue_forward(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    ra_cuda_begin_order(call);
    pack_keys(call);
    begin_carries(call);
    for (int step = 0; step < plan->ring.schedule.count && ra_cuda_goes_on(plan); step++) {
        ra_cuda_of(plan)->hop = plan->ring.schedule.hop[step];
        pass_keys(call, step);
        ra_cuda_fold(call, step, ra_cuda_whole(plan, step));
        leave_keys(call, step);
        take_keys(call, step);
    }
    ra_cuda_end_order(call);
}

/* delta of all queries, and dq: a sum, which begins at 0, unless a single launch writes it. */
static void begin_queries(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], numbers = c->batch * n * c->heads * c->dim;
    if (numbers == 0)
        return;
    ra_cuda_find_writes(call, 0);
    ra_cuda_begin_delta(call);
    if (!call->in_callers_queries)
        RA_DO(plan, cudaMemsetAsync(cuda->wide, 0, (size_t)numbers * sizeof(float), call->stream));
    if (cuda->wide_lost)
        RA_DO(plan,
              cudaMemsetAsync(cuda->wide_lost, 0, (size_t)numbers * sizeof(float), call->stream));
}

/* Writes dq, dk and dv to the caller's arrays, but for those that the launch has written. Sums are rounded
 * here, once. */
static void write_gradients(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], m = plan->rows[RA_KEY_SIDE];
    int64_t H = c->heads, G = c->key_heads, D = c->dim, numbers = c->batch * m * G * D;
    struct ra_tensor dq = ra_tensor_bnhd(ra_cuda_of(plan)->wide, RA_FLOAT32, n, H, D);
    struct ra_tensor dk = ra_tensor_bnhd(plan->ring.gradients[0], RA_FLOAT32, m, G, D);
    struct ra_tensor dv = ra_tensor_bnhd(plan->ring.gradients[0] + numbers, RA_FLOAT32, m, G, D);
    float *lost = ra_cuda_of(plan)->wide_lost;
    if (c->batch * n > 0 && lost)
        RA_DO(plan, ra_kernel_add(dq, ra_tensor_bnhd(lost, RA_FLOAT32, n, H, D), c->batch, n, H, D,
                                  call->stream));
    if (c->batch * n > 0 && !call->in_callers_queries)
        ra_cuda_give_rows(call, RA_QUERY_SIDE, call->x.dq, dq, H, D);
    if (numbers > 0 && !call->in_callers_keys) {
        ra_cuda_give_rows(call, RA_KEY_SIDE, call->x.dk, dk, G, D);
        ra_cuda_give_rows(call, RA_KEY_SIDE, call->x.dv, dv, G, D);
    }
}

void ra_cuda_enqueue_backward(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    ra_cuda_begin_order(call);
    pack_keys(call);
    begin_queries(call);
    for (int step = 0; step < plan->ring.schedule.count && ra_cuda_goes_on(plan); step++) {
        ra_cuda_of(plan)->hop = plan->ring.schedule.hop[step];
        pass_keys(call, step);
        clear_gradients(call, step);
        work(call, step);
        take_keys(call, step);
    }
    take_gradients(call);
    write_gradients(call);
}
