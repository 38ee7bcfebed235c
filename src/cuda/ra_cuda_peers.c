/* ra_cuda_peers: messages that the copy engine writes into another rank's memory, and the signals
 * between them. See ra_cuda.h and ra_signal.h.
 *
 * Chapter 11. New here: a rank that writes to another's memory, for which that rank does nothing.
 * So it must know where, and when the slot is free.
 */
#include <string.h>
#include "ra_cuda_peers.h"
#include "ra_cuda_observe.h"

int ra_cuda_sender_of(const struct ra_plan *plan, int rank, int step)
{
    return ra_ring_rank_at(&plan->ring, rank, -ra_ring_stride(&plan->ring, step - 1));
}

/* Does a signal come to a rank for the message of this step? With slices one comes also where there
 * is no message: the mask of the next call, and so which messages that has, nobody knows yet; but a
 * place must be given back to somebody. */
static bool is_signalled(const struct ra_plan *plan, int rank, enum ra_message message, int step)
{
    if (plan->config.max_slices == 0 || message == RA_GRADIENTS_RETURN)
        return ra_cuda_expects_message(plan, rank, message, step);
    return step > (message == RA_GRADIENTS);
}

/* The message, or signal, that comes into the same place after that of this step; once round, in
 * the next call. Keys have two places, for odd steps and for even ones; gradients have one. */
static int next_in_place(const struct ra_plan *plan, int rank, enum ra_message message, int step,
                         bool *next_call)
{
    int period = message == RA_KEYS ? 2 : 1;
    *next_call = false;
    do {
        step += period;
        if (step >= plan->ring.schedule.count) {
            step = message == RA_KEYS && step % 2 == 0 ? 2 : 1;
            *next_call = true;
        }
    } while (!is_signalled(plan, rank, message, step));
    return step;
}

/* ---- Signals. */

int64_t ra_cuda_flag_count(const struct ra_plan *plan)
{
    return 3 * 2 * (int64_t)plan->ring.schedule.count;
}

/* Of what comes home there is one in a call, at whatever step. */
static int64_t flag_of(const struct ra_plan *plan, enum ra_message message, bool is_credit,
                       int step)
{
    return (message * 2 + is_credit) * (int64_t)plan->ring.schedule.count +
           (message == RA_GRADIENTS_RETURN ? 0 : step);
}

void ra_cuda_begin_table(struct ra_plan *plan)
{
    int table[RA_SIGNALS + 1] = {0};
    for (int i = 0; i < RA_SIGNALS; i++)
        table[i] = i;
    RA_DO(plan, cudaMemcpy(ra_cuda_of(plan)->table, table, sizeof table, cudaMemcpyHostToDevice));
}

void ra_cuda_begin_signals(struct ra_plan *plan, int *flags)
{
    struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank;
    memset(flags, 0, (size_t)ra_cuda_flag_count(plan) * sizeof *flags);
    for (int step = 0; step + 1 < plan->ring.schedule.count; step++)
        for (int message = RA_KEYS; message <= RA_GRADIENTS; message++) {
            /* It is the first there if, round the ring of messages in that place, no earlier one
             * comes before the call ends. */
            int to = ra_ring_rank_at(&plan->ring, rank, ra_ring_stride(&plan->ring, step)),
                before = step + 1;
            bool first = is_signalled(plan, to, message, before);
            for (before -= message == RA_KEYS ? 2 : 1; before > 0;
                 before -= message == RA_KEYS ? 2 : 1)
                first = first && !is_signalled(plan, to, message, before);
            flags[flag_of(plan, message, true, step + 1)] = first;
        }
    ra_cuda_begin_table(plan);
    RA_DO(plan, cudaMemcpy(cuda->flags, flags, (size_t)ra_cuda_flag_count(plan) * sizeof *flags,
                           cudaMemcpyHostToDevice));
}

void ra_cuda_send_signal(struct ra_plan *plan, int to, int64_t flag, int number,
                         cudaStream_t stream)
{
    struct ra_peer *peer = &ra_cuda_of(plan)->peers[to];
    int *at = (int *)(void *)(peer->memory + peer->flags) + flag;
    RA_DO(plan, cudaMemcpyAsync(at, ra_cuda_speaker(plan)->table + number % RA_SIGNALS, sizeof *at,
                                cudaMemcpyDefault, stream));
}

static void send_signal(struct ra_plan *plan, int to, enum ra_message message, bool is_credit,
                        int step, int number, cudaStream_t stream)
{
    ra_cuda_send_signal(plan, to, flag_of(plan, message, is_credit, step), number, stream);
}

void ra_cuda_wait_for_signal(struct ra_plan *plan, int64_t flag, int number,
                             struct ra_signal signal, cudaStream_t stream)
{
    double nanoseconds = 1e9 * plan->config.timeout;
    signal.word = ra_cuda_of(plan)->flags + flag;
    signal.number = number % RA_SIGNALS;
    signal.table = ra_cuda_speaker(plan)->table;
    signal.error = ra_cuda_speaker(plan)->mapped_error;
    signal.peer = ra_ring_name(&plan->ring, signal.peer);

    /* Three centuries or more count as no limit. */
    signal.nanoseconds = nanoseconds < 1e19 / 2 ? (int64_t)nanoseconds : 0;
    if (plan->config.timeout > 0 && nanoseconds < 1)
        signal.nanoseconds = 1;
    RA_DO(plan, ra_signal_wait(&signal, stream));
}

/* Holds the stream until a signal of rank `from` has come: its message of this step or, with
 * is_credit, that it has a credit for one. */
static void wait_for_signal(struct ra_plan *plan, int from, enum ra_message message, bool is_credit,
                            int step, int number, cudaStream_t stream)
{
    struct ra_signal signal = {.message = message,
                               .is_credit = is_credit,
                               .hop = plan->ring.schedule.hop[step],
                               .peer = from};
    ra_cuda_wait_for_signal(plan, flag_of(plan, message, is_credit, step), number, signal, stream);
}

/* ---- The transport. */

/* The number that the signals of this call hold. */
static int number_of(const struct ra_cuda_call *call, enum ra_message message)
{
    return message == RA_KEYS ? call->number : call->backward_number;
}

static void expect(struct ra_cuda_call *call, enum ra_message message, int step)
{
    /* The sender knows by a signal, a credit, that the slot is free. */
    (void)call;
    (void)message;
    (void)step;
}

/* Copies bytes of a message to its place, `offset` bytes behind its beginning. */
static void copy(struct ra_plan *plan, char *place, int64_t offset, const void *from, int64_t bytes,
                 cudaStream_t stream)
{
    if (bytes > 0)
        RA_DO(plan,
              cudaMemcpyAsync(place + offset, from, (size_t)bytes, cudaMemcpyDefault, stream));
}

/* This rank's own keys, from where the caller has them, and the mask. */
static void copy_own_keys(struct ra_cuda_call *call, char *place)
{
    struct ra_plan *plan = call->plan;
    const struct ra_config *c = &plan->config;
    cudaStream_t stream = ra_cuda_stream(plan, RA_KEYS);
    int64_t m = plan->rows[RA_KEY_SIDE];
    int64_t k_bytes = ra_cuda_key_bytes(c, m, c->dim),
            v_bytes = ra_cuda_key_bytes(c, m, c->dim_value);
    copy(plan, place, 0, call->arrays.k.data, k_bytes, stream);
    copy(plan, place, k_bytes, call->arrays.v.data, v_bytes, stream);
    if (c->has_mask)
        copy(plan, place, k_bytes + v_bytes, ra_cuda_of(plan)->mask, c->batch * m, stream);
}

static void push(struct ra_cuda_call *call, enum ra_message message, int step,
                 struct ra_cuda_timer *timer)
{
    struct ra_plan *plan = call->plan;
    const struct ra_ring *ring = &plan->ring;
    const struct ra_cuda *cuda = plan->own;
    cudaStream_t stream = ra_cuda_stream(plan, message);
    bool home = message == RA_GRADIENTS_RETURN;
    int rank = plan->link.rank, sent_at = home ? step : step - 1, slot = ra_ring_slot(sent_at);
    int to = home ? ra_ring_origin(ring, rank, step)
                  : ra_ring_rank_at(ring, rank, ra_ring_stride(ring, sent_at));
    int number = number_of(call, message);
    int64_t rows = ra_ring_rows(ring, rank, sent_at);

    /* Where it goes. For gradients that come home the slot is always free: before a rank sends the
     * keys of a call, it has used what came home in the call before. */
    const struct ra_peer *peer = &cuda->peers[to];
    char *place = peer->memory + (message == RA_KEYS ? peer->keys[ra_ring_slot(step)]
                                  : home             ? peer->home
                                                     : peer->sum);
    if (!home)
        wait_for_signal(plan, to, message, true, step, number, stream);
    ra_cuda_timer_start(plan, timer, stream);
    if (message != RA_KEYS)
        copy(plan, place, 0, ring->gradients[slot], rows * ring->gradient_bytes, stream);
    else if (sent_at == 0 && call->keys_in_place)
        copy_own_keys(call, place);
    else
        copy(plan, place, 0, ring->keys[slot], rows * ring->key_bytes, stream);
    ra_cuda_timer_stop(plan, timer, stream);
    send_signal(plan, to, message, false, step, number, stream);
}

/* The signal alone, as if the message had no bytes. */
static void skip(struct ra_cuda_call *call, enum ra_message message, int step)
{
    struct ra_plan *plan = call->plan;
    cudaStream_t stream = ra_cuda_stream(plan, message);
    int to = ra_ring_rank_at(&plan->ring, plan->link.rank, ra_ring_stride(&plan->ring, step - 1));
    int number = number_of(call, message);
    if (!is_signalled(plan, to, message, step))
        return;
    wait_for_signal(plan, to, message, true, step, number, stream);
    send_signal(plan, to, message, false, step, number, stream);
}

/* With slices gradients come home in some calls, and not in others. A signal must not be older than
 * the call before: so where none comes this rank writes it, before others can be in the next
 * call. */
static void sign_return(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    const struct ra_cuda *cuda = plan->own;
    if (plan->config.max_slices > 0)
        RA_DO(plan, cudaMemcpyAsync(cuda->flags + flag_of(plan, RA_GRADIENTS_RETURN, false, 0),
                                    cuda->table + call->backward_number % RA_SIGNALS,
                                    sizeof *cuda->flags, cudaMemcpyDefault, call->stream));
}

static void await(struct ra_cuda_call *call, enum ra_message message, int step)
{
    struct ra_plan *plan = call->plan;
    int rank = plan->link.rank;
    if (!is_signalled(plan, rank, message, step)) {
        if (message == RA_GRADIENTS_RETURN)
            sign_return(call);
        return;
    }
    int from = message == RA_GRADIENTS_RETURN
                   ? ra_ring_rank_at(&plan->ring, rank, plan->ring.schedule.last[rank])
                   : ra_cuda_sender_of(plan, rank, step);
    wait_for_signal(plan, from, message, false, step, number_of(call, message),
                    ra_cuda_stream(plan, message));
}

static void credit(struct ra_cuda_call *call, enum ra_message message, int step)
{
    struct ra_plan *plan = call->plan;
    int rank = plan->link.rank;
    bool next_call;
    if (!is_signalled(plan, rank, message, step))
        return;
    int next = next_in_place(plan, rank, message, step, &next_call);
    send_signal(plan, ra_cuda_sender_of(plan, rank, next), message, true, next,
                number_of(call, message) + next_call, ra_cuda_stream(plan, message));
}

const struct ra_cuda_transport ra_cuda_peer_copies = {.name = "peer copies",
                                                      .expect = expect,
                                                      .push = push,
                                                      .skip = skip,
                                                      .await = await,
                                                      .credit = credit};
