/* ra_cuda: forward and backward of a plan on GPUs. See ring_attention_cuda.h and ra_cuda.h.
 *
 * Chapter 11. New here: the loop of ring_attention.c, enqueued. Streams take the place of waiting:
 * the caller's computes, one sends keys, one sends gradients, and events say who goes first.
 *
 * Order. Work is enqueued in an order in which all of it could also run, one piece after the other,
 * on all ranks: whatever waits for something comes behind it. So no rank can be stuck for another,
 * even if every launch were to wait for its end.
 */
#include "ra_cuda.h"
#include <string.h>
#include "ra_kernel.h"
#include "ring_attention_cuda.h"

/* ---- What is launched. */

/* The part of a kernel that all launches of a plan have in common. */
static struct ra_kernel kernel_of(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    return (struct ra_kernel){.batch = c->batch,
                              .heads = c->heads,
                              .key_heads = c->key_heads,
                              .dim = c->dim,
                              .head_map = c->head_map,
                              .score = plan->score,
                              .deterministic = c->deterministic,
                              .turns = plan->cuda->turns};
}

/* Sets shape and band for span s of the queries of `rank` and span t of the keys of this step; does
 * any query see any key? */
static bool is_seen(const struct ra_plan *plan, int rank, int64_t s, int step, int64_t t,
                    struct ra_kernel *kernel)
{
    const struct ra_config *c = &plan->config;
    int origin = ra_plan_origin(plan, rank, step);
    kernel->queries = ra_layout_span(plan->layouts[RA_QUERY_SIDE], rank, s).count;
    kernel->keys = ra_layout_span(plan->layouts[RA_KEY_SIDE], origin, t).count;
    kernel->band = RA_ALL_KEYS;
    if (c->causal)
        kernel->band = ra_layout_band(plan->layouts[RA_QUERY_SIDE], rank, s,
                                      plan->layouts[RA_KEY_SIDE], origin, t, c->lookback);
    return kernel->queries > 0 && kernel->keys > 0 && ra_cuda_has_keys(plan, rank, step) &&
           !ra_band_is_empty(kernel->band, kernel->queries, kernel->keys);
}

void ra_cuda_survey(const struct ra_plan *plan, int rank, int64_t *launches, bool *carries,
                    int64_t *turns)
{
    const struct ra_config *c = &plan->config;
    bool takes_turns = c->deterministic && !c->forward_only && c->type != RA_FLOAT32;
    struct ra_kernel kernel = kernel_of(plan);
    *carries = false;
    *turns = 0;
    for (int64_t s = 0; s < ra_layout_spans(plan->layouts[RA_QUERY_SIDE]); s++) {
        int64_t count = 0;
        for (int step = 0; step < plan->schedule.count; step++)
            for (int64_t t = 0; t < ra_layout_spans(plan->layouts[RA_KEY_SIDE]); t++) {
                if (!is_seen(plan, rank, s, step, t, &kernel))
                    continue;
                count++;
                int64_t needed = takes_turns ? ra_kernel_turns(&kernel) : 0;
                *turns = needed > *turns ? needed : *turns;
            }
        *carries = *carries || count > 1;
        if (launches)
            launches[s] = count;
    }
}

/* ---- Keys. */

/* One call: what its parts need. */
struct call {
    struct ra_plan *plan;
    struct ra_arrays x;
    cudaStream_t stream; /* the caller's */
    bool backward;
    int number, backward_number; /* of this call, and of this backward */
};

/* When a part of this step is done, for the observer. */
static struct ra_moment *moment_of(const struct call *call, int step, enum ra_event_kind kind)
{
    return ra_cuda_moment(call->plan, call->backward, step, kind);
}

/* Which buffer the keys of this step are in, and their gradients. */
static int slot(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

/* The rows of a tensor from this one on. */
static struct ra_tensor from_row(struct ra_tensor tensor, int64_t row)
{
    if (tensor.data)
        tensor.data = (char *)tensor.data + row * tensor.row * ra_type_bytes(tensor.type);
    return tensor;
}

static int64_t key_bytes(const struct ra_plan *plan, int step)
{
    return ra_plan_key_bytes(plan, ra_plan_visitors(plan, plan->link.rank, step));
}

/* Keys, values and mask of a step: the caller's own, or those of a message. */
static void open_keys(const struct call *call, int step, struct ra_tensor *k, struct ra_tensor *v,
                      struct ra_tensor *mask)
{
    const struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_plan_visitors(plan, plan->link.rank, step), G = c->key_heads;
    int64_t bytes = c->batch * rows * G * c->dim * ra_type_bytes(c->type);
    char *message = plan->cuda->keys[slot(step)];
    bool own = step == 0;
    *k = own ? call->x.k : ra_tensor_bnhd(message, c->type, rows, G, c->dim);
    *v = own ? call->x.v : ra_tensor_bnhd(message + bytes, c->type, rows, G, c->dim);
    *mask = (struct ra_tensor)RA_NO_TENSOR;
    if (c->has_mask)
        *mask = ra_tensor_bn(own ? (void *)plan->cuda->mask : message + 2 * bytes, rows);
}

/* Copies the mask, and puts the own keys into the message that carries them, if they travel. */
static void pack_keys(struct call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], G = c->key_heads, D = c->dim;
    int64_t bytes = c->batch * m * G * D * ra_type_bytes(c->type);
    if (c->has_mask && ra_cuda_has_keys(plan, plan->link.rank, 0))
        RA_DO(plan, ra_signal_mask(cuda->mask, call->x.mask, c->batch, m, call->stream));
    if (!ra_cuda_sends(plan, plan->link.rank, 0)) {
        RA_DO(plan, cudaEventRecord(cuda->packed, call->stream));
        return;
    }

    /* The message of the call before must have left. */
    char *message = cuda->keys[0];
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

/* Enqueues the way of the keys of this step to where they are needed next, and of the next ones to
 * here. */
static void push_keys(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    int rank = plan->link.rank, next = step + 1;
    cudaStream_t stream = cuda->keys_stream;
    if (next == plan->schedule.count)
        return;

    /* Who sends nothing yet waits, too: nothing is due before the caller's stream comes here. */
    if (step == 0)
        RA_DO(plan, cudaStreamWaitEvent(stream, cuda->packed, 0));
    if (ra_cuda_sends(plan, rank, step)) {
        int to = ra_cuda_rank_at(plan, rank, ra_cuda_jump(plan, step));
        ra_cuda_push(plan, to, RA_KEYS, next, call->number, cuda->peers[to].keys[slot(next)],
                     cuda->keys[slot(step)], key_bytes(plan, step),
                     moment_of(call, step, RA_EVENT_KEYS), stream);
        if (step == 0)
            RA_DO(plan, cudaEventRecord(cuda->keys_left, stream));
    }
    if (ra_cuda_receives(plan, rank, next)) {
        ra_cuda_await(plan, ra_cuda_sender_of(plan, rank, next), RA_KEYS, false, next, call->number,
                      stream);
        RA_DO(plan, cudaEventRecord(cuda->keys_arrived, stream));
    }
}

/* The same over the link, which does it as soon as it can. */
static void link_keys(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_link *link = &plan->link;
    bool by_host = cuda->transport == RA_HOST_LINK;
    int rank = link->rank, hop = plan->schedule.hop[step], next = step + 1;
    void **keys = by_host ? cuda->host_keys : cuda->keys;
    if (next == plan->schedule.count)
        return;

    /* What comes now takes the place of the keys of the step before. And what goes must be there;
     * later on it came over the link itself. */
    RA_DO(plan, cudaEventSynchronize(step == 0 ? cuda->packed : cuda->computed));
    if (step == 0 && by_host && ra_cuda_sends(plan, rank, 0)) {
        RA_DO(plan, cudaMemcpyAsync(keys[0], cuda->keys[0], (size_t)key_bytes(plan, 0),
                                    cudaMemcpyDeviceToHost, cuda->keys_stream));
        RA_DO(plan, cudaStreamSynchronize(cuda->keys_stream));
    }
    if (!ra_cuda_goes_on(plan))
        return;
    int jump = ra_cuda_jump(plan, step);
    if (ra_cuda_receives(plan, rank, next))
        link->receive(link->self, RA_KEYS, hop, -jump, keys[slot(next)], key_bytes(plan, next));
    if (ra_cuda_sends(plan, rank, step))
        link->send(link->self, RA_KEYS, hop, jump, keys[slot(step)], key_bytes(plan, step));
}

/* Waits for the link's messages of a kind; if they fail, the plan is lost. */
static void wait_for_link(struct ra_plan *plan, enum ra_message message)
{
    const struct ra_link *link = &plan->link;
    if (ra_cuda_goes_on(plan) && !link->wait(link->self, message))
        ra_cuda_end_plan(plan, RA_LOST, link->error(link->self));
}

/* Lets what follows on the caller's stream use the keys of the next step. */
static void take_keys(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    int next = step + 1;
    if (next == plan->schedule.count)
        return;
    if (cuda->transport != RA_PEER_COPIES)
        wait_for_link(plan, RA_KEYS);
    if (!ra_cuda_receives(plan, plan->link.rank, next))
        return;
    if (cuda->transport == RA_HOST_LINK) {
        RA_DO(plan, cudaMemcpyAsync(cuda->keys[slot(next)], cuda->host_keys[slot(next)],
                                    (size_t)key_bytes(plan, next), cudaMemcpyHostToDevice,
                                    cuda->keys_stream));
        RA_DO(plan, cudaEventRecord(cuda->keys_arrived, cuda->keys_stream));
    }
    if (cuda->transport != RA_DEVICE_LINK)
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->keys_arrived, 0));
}

static void pass_keys(struct call *call, int step)
{
    if (call->plan->cuda->transport == RA_PEER_COPIES)
        push_keys(call, step);
    else
        link_keys(call, step);
}

/* The keys of this step are used up, as soon as what was enqueued is done: others may come. */
static void leave_keys(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    RA_DO(plan, cudaEventRecord(cuda->computed, call->stream));
    if (cuda->transport != RA_PEER_COPIES || !ra_cuda_receives(plan, plan->link.rank, step))
        return;

    /* They have also left, where they go on: that was before on the same stream. */
    RA_DO(plan, cudaStreamWaitEvent(cuda->keys_stream, cuda->computed, 0));
    ra_cuda_tell_of_room(plan, RA_KEYS, step, call->number, cuda->keys_stream);
}

/* ---- The hop. */

/* One launch: span s of the queries, from row a on, and a span of the keys, from row b on, of k, v,
 * mask, and backward dk and dv. */
static void launch(struct call *call, struct ra_kernel *kernel, int64_t s, int64_t a, int64_t b,
                   struct ra_tensor k, struct ra_tensor v, struct ra_tensor mask,
                   struct ra_tensor dk, struct ra_tensor dv)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_config *c = &plan->config;
    const struct ra_arrays *x = &call->x;
    bool narrow = c->type != RA_FLOAT32;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = c->heads;
    struct ra_tensor wide = ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, c->dim);
    kernel->q = from_row(x->q, a);
    kernel->k = from_row(k, b);
    kernel->v = from_row(v, b);
    kernel->mask = from_row(mask, b);
    kernel->lse = from_row(x->lse, a);
    if (call->backward) {
        kernel->d_out = from_row(x->d_out, a);
        kernel->delta = from_row(ra_tensor_bhn(cuda->delta, n, H), a);
        kernel->dq = from_row(wide, a);
        kernel->dk = from_row(dk, b);
        kernel->dv = from_row(dv, b);
        if (narrow)
            RA_DO(plan, ra_k03_backward(kernel, call->stream));
        else
            RA_DO(plan, ra_k02_backward(kernel, call->stream));
        return;
    }
    kernel->o = from_row(x->o, a);
    kernel->carry_o = from_row(wide, a);
    kernel->carry_max = from_row(ra_tensor_bhn(cuda->max, n, H), a);
    kernel->carry_sum = from_row(ra_tensor_bhn(cuda->sum, n, H), a);
    kernel->first = cuda->launched[s] == 0;
    cuda->launched[s]++;
    kernel->last = cuda->launched[s] >= cuda->launches[s];
    if (narrow)
        RA_DO(plan, ra_k03_forward(kernel, call->stream));
    else
        RA_DO(plan, ra_k02_forward(kernel, call->stream));
}

/* Every span of the queries against every span of the keys of this step, but for those of which
 * nobody sees anything. */
static void fold_hop(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_config *c = &plan->config;
    struct ra_kernel kernel = kernel_of(plan);
    struct ra_tensor k, v, mask, dk = RA_NO_TENSOR, dv = RA_NO_TENSOR;
    struct ra_moment *moment = moment_of(call, step, RA_EVENT_WORK);
    int rank = plan->link.rank;
    int64_t rows = ra_plan_visitors(plan, rank, step), G = c->key_heads, a = 0;
    open_keys(call, step, &k, &v, &mask);
    ra_cuda_begins(plan, moment, call->stream);
    if (call->backward) {
        float *share = cuda->gradients[slot(step)];
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

        /* Who never sees anything needs a result, too. */
        if (!call->backward && step == 0 && cuda->launches[s] == 0 && kernel.queries > 0) {
            kernel.keys = 0;
            kernel.band = (struct ra_band){1, 0};
            launch(call, &kernel, s, a, 0, k, v, mask, dk, dv);
        }
        a += kernel.queries;
    }
    ra_cuda_ends(plan, moment, call->stream);
}

/* ---- Gradients. */

static int64_t gradient_bytes(const struct ra_plan *plan, int rank, int step)
{
    return ra_message_gradient_bytes(plan->config.batch, plan->config.key_heads * plan->config.dim,
                                     ra_plan_visitors(plan, rank, step));
}

/* Adds the sum of the ranks before, which has come, to this rank's share. */
static void add_arrived(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_plan_visitors(plan, plan->link.rank, step), G = c->key_heads, D = c->dim;

    /* dk and dv lie one behind the other: of one batch that is twice as many rows. */
    int64_t all = 2 * c->batch * rows;
    struct ra_tensor share =
        ra_tensor_bnhd(plan->cuda->gradients[slot(step)], RA_FLOAT32, all, G, D);
    struct ra_tensor arrived = ra_tensor_bnhd(plan->cuda->gradients[3], RA_FLOAT32, all, G, D);
    RA_DO(plan, ra_kernel_add(share, arrived, 1, all, G, D, call->stream));
}

/* Adds to this rank's share what has come, and enqueues the way of the sum: on, or home. */
static void push_gradients(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    int rank = plan->link.rank, number = call->backward_number, next = step + 1;
    cudaStream_t stream = cuda->gradients_stream;
    if (ra_cuda_receives(plan, rank, step)) {
        ra_cuda_await(plan, ra_cuda_sender_of(plan, rank, step), RA_GRADIENTS, false, step, number,
                      stream);
        RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, stream));
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));
        add_arrived(call, step);
    }
    RA_DO(plan, cudaEventRecord(cuda->summed, call->stream));
    RA_DO(plan, cudaStreamWaitEvent(stream, cuda->summed, 0));
    if (ra_cuda_receives(plan, rank, step))
        ra_cuda_tell_of_room(plan, RA_GRADIENTS, step, number, stream);

    const void *share = cuda->gradients[slot(step)];
    int64_t bytes = gradient_bytes(plan, rank, step);
    struct ra_moment *moment = moment_of(call, step, RA_EVENT_GRADIENTS);
    if (ra_cuda_sends(plan, rank, step)) {
        int to = ra_cuda_rank_at(plan, rank, ra_cuda_jump(plan, step));
        ra_cuda_push(plan, to, RA_GRADIENTS, next, number, cuda->peers[to].gradients[3], share,
                     bytes, moment, stream);
    } else if (ra_cuda_sends_home(plan, rank, step)) {
        int to = ra_plan_origin(plan, rank, step);
        ra_cuda_push(plan, to, RA_HOME, step, number, cuda->peers[to].gradients[0], share, bytes,
                     moment, stream);
    }
    RA_DO(plan, cudaEventRecord(cuda->left[slot(step)], stream));
}

/* Copies gradients from the host to the device, in the order of the caller's stream. */
static void lift(struct call *call, void *to, const void *from, int64_t bytes)
{
    if (call->plan->cuda->transport == RA_HOST_LINK)
        RA_DO(call->plan,
              cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, call->stream));
}

/* The same over the link. */
static void link_gradients(struct call *call, int step)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_link *link = &plan->link;
    bool by_host = cuda->transport == RA_HOST_LINK;
    int rank = link->rank, hop = plan->schedule.hop[step], last = plan->schedule.last[rank];
    void *share = cuda->gradients[slot(step)], *out = by_host ? cuda->host_out : share;
    int64_t bytes = gradient_bytes(plan, rank, step);
    wait_for_link(plan, RA_GRADIENTS);
    if (ra_cuda_receives(plan, rank, step)) {
        lift(call, cuda->gradients[3], cuda->host_in, bytes);
        add_arrived(call, step);
    }
    bool onward = ra_cuda_sends(plan, rank, step), homeward = ra_cuda_sends_home(plan, rank, step);
    if (by_host && (onward || homeward))
        RA_DO(plan,
              cudaMemcpyAsync(out, share, (size_t)bytes, cudaMemcpyDeviceToHost, call->stream));
    RA_DO(plan, cudaStreamSynchronize(call->stream));
    if (!ra_cuda_goes_on(plan))
        return;

    /* From step 1 on the own gradients may come home at any time. */
    if (step == 1 && ra_cuda_sends(plan, rank, 0))
        link->receive(link->self, RA_HOME, last, last,
                      by_host ? cuda->host_home : cuda->gradients[0],
                      gradient_bytes(plan, rank, 0));
    if (step + 1 < plan->schedule.count && ra_cuda_receives(plan, rank, step + 1))
        link->receive(link->self, RA_GRADIENTS, hop, -ra_cuda_jump(plan, step),
                      by_host ? cuda->host_in : cuda->gradients[3],
                      gradient_bytes(plan, rank, step + 1));
    if (onward)
        link->send(link->self, RA_GRADIENTS, hop, ra_cuda_jump(plan, step), out, bytes);
    else if (homeward)
        link->send(link->self, RA_HOME, hop, -hop, out, bytes);
}

static void pass_gradients(struct call *call, int step)
{
    if (call->plan->schedule.count == 1)
        return;
    if (call->plan->cuda->transport == RA_PEER_COPIES)
        push_gradients(call, step);
    else
        link_gradients(call, step);
}

/* At which step the journey of a rank's own keys ends. */
static int last_step(const struct ra_plan *plan, int rank)
{
    int step = 0;
    while (plan->schedule.hop[step] < plan->schedule.last[rank])
        step++;
    return step;
}

/* Lets what follows on the caller's stream use the own gradients. */
static void take_gradients(struct call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    int rank = plan->link.rank;
    bool come = ra_cuda_sends(plan, rank, 0);
    if (plan->schedule.count == 1)
        return;
    if (cuda->transport != RA_PEER_COPIES) {
        wait_for_link(plan, RA_GRADIENTS);
        wait_for_link(plan, RA_HOME);
        if (come)
            lift(call, cuda->gradients[0], cuda->host_home, gradient_bytes(plan, rank, 0));
    } else if (come) {
        ra_cuda_await(plan, ra_cuda_rank_at(plan, rank, plan->schedule.last[rank]), RA_HOME, false,
                      last_step(plan, rank), call->backward_number, cuda->gradients_stream);
        RA_DO(plan, cudaEventRecord(cuda->gradients_arrived, cuda->gradients_stream));
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->gradients_arrived, 0));
    }
}

/* ---- The calls. */

/* Can calls be enqueued on this stream? */
static enum ra_status check_stream(const struct ra_plan *plan, cudaStream_t stream, char *error)
{
    int device = plan->cuda->device;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
        capture != cudaStreamCaptureStatusNone)
        return ra_refuse(error, "stream is being captured into a graph, which calls cannot be: "
                                "give one that is not");
    if (cudaStreamGetDevice(stream, &device) == cudaSuccess && device != plan->cuda->device)
        return ra_refuse(error, "stream is one of device %d: give one of device %d", device,
                         plan->cuda->device);
    return RA_OK;
}

/* Checks what was given, and numbers the call. */
static enum ra_status begin(struct call *call, struct ra_plan *plan, const struct ra_arrays *given,
                            bool backward, cudaStream_t stream)
{
    *call = (struct call){.plan = plan, .stream = stream, .backward = backward};
    if (plan && plan->device == &ra_cuda_device && !plan->look_only)
        (void)ra_cuda_listen(plan);
    enum ra_status status = ra_arrays_read(plan, &call->x, given, &ra_cuda_device, backward);
    if (status != RA_OK)
        return status;
    char text[RA_ERROR_SIZE];
    if (check_stream(plan, stream, text) != RA_OK)
        return ra_plan_give_up(plan, RA_INVALID, text);
    struct ra_cuda *cuda = plan->cuda;
    call->number = cuda->calls = (cuda->calls + 1) % RA_SIGNALS;
    if (backward)
        cuda->backwards = (cuda->backwards + 1) % RA_SIGNALS;
    call->backward_number = cuda->backwards;
    memset(cuda->launched, 0,
           (size_t)ra_layout_spans(plan->layouts[RA_QUERY_SIDE]) * sizeof *cuda->launched);

    /* The memory of the plan is that of the call before until it has ended. */
    RA_DO(plan, cudaStreamWaitEvent(stream, cuda->ended, 0));
    return RA_OK;
}

/* What came of it. */
static enum ra_status end(struct call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    cuda->hop = -1;
    RA_DO(plan, cudaEventRecord(cuda->ended, call->stream));

    /* If the link passes messages, nothing is left to be waited for. */
    if (plan->schedule.count > 1 && cuda->transport != RA_PEER_COPIES)
        ra_cuda_note(plan, cudaStreamSynchronize(call->stream), "cudaStreamSynchronize");
    if (plan->lost == RA_OK && cuda->code != cudaSuccess)
        ra_cuda_end_by_cuda(plan);

    /* Nor are the arrays of a call that has failed used any longer. */
    if (plan->lost != RA_OK)
        cudaStreamSynchronize(call->stream);
    return plan->lost;
}

static void forward(struct call *call)
{
    struct ra_plan *plan = call->plan;
    pack_keys(call);
    for (int step = 0; step < plan->schedule.count && ra_cuda_goes_on(plan); step++) {
        plan->cuda->hop = plan->schedule.hop[step];
        pass_keys(call, step);
        fold_hop(call, step);
        leave_keys(call, step);
        take_keys(call, step);
    }
}

static void backward(struct call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->cuda;
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE], m = plan->rows[RA_KEY_SIDE];
    int64_t H = c->heads, G = c->key_heads, D = c->dim, query_numbers = c->batch * n * H * D;
    int rank = plan->link.rank;
    pack_keys(call);
    if (query_numbers > 0) {
        struct ra_kernel kernel = kernel_of(plan);
        kernel.queries = n;
        kernel.d_out = call->x.d_out;
        kernel.o = call->x.o;
        kernel.delta = ra_tensor_bhn(cuda->delta, n, H);
        RA_DO(plan, ra_kernel_delta(&kernel, call->stream));
        RA_DO(plan,
              cudaMemsetAsync(cuda->wide, 0, (size_t)query_numbers * sizeof(float), call->stream));
    }

    /* The ring: the keys come by once more, their gradients one step behind them. */
    for (int step = 0; step < plan->schedule.count && ra_cuda_goes_on(plan); step++) {
        cuda->hop = plan->schedule.hop[step];
        pass_keys(call, step);
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->left[slot(step)], 0));
        if (ra_cuda_has_keys(plan, rank, step))
            RA_DO(plan, cudaMemsetAsync(cuda->gradients[slot(step)], 0,
                                        (size_t)gradient_bytes(plan, rank, step), call->stream));
        fold_hop(call, step);
        leave_keys(call, step);
        pass_gradients(call, step);
        take_keys(call, step);
    }
    take_gradients(call);

    /* Sums are rounded here, once. */
    float *own = cuda->gradients[0];
    int64_t numbers = c->batch * m * G * D;
    if (query_numbers > 0)
        RA_DO(plan, ra_kernel_copy(call->x.dq, ra_tensor_bnhd(cuda->wide, RA_FLOAT32, n, H, D),
                                   c->batch, n, H, D, call->stream));
    if (numbers > 0) {
        RA_DO(plan, ra_kernel_copy(call->x.dk, ra_tensor_bnhd(own, RA_FLOAT32, m, G, D), c->batch,
                                   m, G, D, call->stream));
        RA_DO(plan, ra_kernel_copy(call->x.dv, ra_tensor_bnhd(own + numbers, RA_FLOAT32, m, G, D),
                                   c->batch, m, G, D, call->stream));
    }
}

/* Either call, on the device of the plan. */
static enum ra_status enqueue(struct ra_plan *plan, const struct ra_arrays *given, bool is_backward,
                              cudaStream_t stream)
{
    struct call call;
    int before = 0;
    bool switches = plan && plan->device == &ra_cuda_device && !plan->look_only;
    if (switches) {
        cudaGetDevice(&before);
        cudaSetDevice(plan->cuda->device);

        /* Launches report the last error of this thread: what failed before is none of this call. */
        cudaGetLastError();
    }
    enum ra_status status = begin(&call, plan, given, is_backward, stream);
    if (status == RA_OK) {
        (is_backward ? backward : forward)(&call);
        status = end(&call);
    }
    if (switches)
        cudaSetDevice(before);
    return status;
}

enum ra_status ra_cuda_forward(struct ra_plan *plan, const struct ra_arrays *arrays,
                               cudaStream_t stream)
{
    return enqueue(plan, arrays, false, stream);
}

enum ra_status ra_cuda_backward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                cudaStream_t stream)
{
    return enqueue(plan, arrays, true, stream);
}
