/* ra_cuda_exchange: heads exchanged between GPUs. See ring_attention_cuda.h and ra_cuda.h.
 *
 * Chapter 12. New here: kernels that write to the memory of other GPUs, and read there. Inwards, a
 * rank writes its rows of a member's heads into that member's arrays; outwards, it reads its rows
 * of the results there. So nothing is packed, and two signals of each member order all of it: that
 * its rows have come, and that its results may be read. Heads need no credit. A rank that writes
 * for a call has read the results of the call before, so the member has computed them; and a member
 * computes new ones when the rows of all have come, who by then have read the old ones.
 *
 * If the link passes messages, they are packed as on the host (ra_exchange.c), one by one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_agree.h"
#include "ra_config_check.h"
#include "ra_cuda_calls.h"
#include "ra_cuda_connect.h"
#include "ra_cuda_link.h"
#include "ra_cuda_peers.h"
#include "ra_cuda_places.h"
#include "ra_cuda_plan.h"
#include "ra_cuda_reach.h"
#include "ra_cuda_wait.h"
#include "ra_error.h"
#include "ra_groups.h"
#include "ra_message.h"
#include "ra_move.h"
#include "ring_attention_cuda.h"

/* Blocks of device memory begin where any access is aligned. */
enum { LINE = 256 };

/* This part of a plan: that of a plan on a GPU, and more. */
struct exchange {
    struct ra_cuda cuda; /* the first, so that ra_cuda_of is it */
    struct ra_groups groups;

    /* Kept from call to call: 0 and -inf, for what has no numbers of its own. */
    float *constants;

    /* In the workspace: dk and dv of this rank's rows while they are added up, if several members
     * have one key head; and numbers of this rank's heads. */
    float *dk, *dv, *sink, *slopes, *d_sink, *largest;
};

static struct exchange *exchange_of(const struct ra_plan *plan)
{
    return plan->own;
}

/* Have several members the same key head, so that its gradients are a sum? */
static bool adds(const struct ra_plan *plan)
{
    return ra_exchange_gathers(plan) || ra_exchange_group(plan) > plan->config.key_heads;
}

/* ---- Memory. */

/* Where the list begins that says which rows of the group are those of a member. The number of all
 * lists' rows if it is the one behind the last. */
static int64_t list_start(const struct ra_plan *plan, enum ra_side side, int member)
{
    int64_t before = side == RA_QUERY_SIDE
                         ? 0
                         : ra_exchange_group(plan) * ra_plan_most_bound(plan, RA_QUERY_SIDE);
    return before + member * ra_plan_most_bound(plan, side);
}

static int64_t lists_bytes(const struct ra_plan *plan)
{
    return list_start(plan, RA_KEY_SIDE, ra_exchange_group(plan)) * (int64_t)sizeof(int32_t);
}

/* How much memory of the device a rank needs for itself, and as workspace. */
struct sizes {
    int64_t own, workspace;
};

/* Gives everything that a rank has on its device a place there: behind `start` what is kept from
 * call to call, or others write to, or read; all else in the workspace, which ends with that of the
 * inner plan. */
static struct sizes lay_out(const struct ra_plan *plan, int rank, struct exchange *exchange,
                            char *start, char *workspace, char **inner_start)
{
    const struct ra_config *c = &plan->config;
    struct ra_arena own = {start, LINE, 0}, arena = {workspace, LINE, 0};
    int U = ra_exchange_group(plan), group = ra_groups_rank(plan, rank);
    struct ra_plan inner = ra_groups_part(plan, rank);
    struct ra_head_share share = ra_exchange_share_of(plan, rank % U);
    struct ra_cuda *cuda = &exchange->cuda;
    for (int i = 0; i < RA_EXCHANGE_PARTS; i++) {
        const struct ra_exchange_part *part = &ra_exchange_parts[i];
        int64_t rows = ra_plan_bound(&inner, part->side, group);
        bool needed = ra_exchange_needs(c, part);
        cuda->parts[i] =
            ra_arena_take(&own, needed ? ra_exchange_part_bytes(c, part, rows, share) : 0);
    }
    cuda->places = ra_arena_take(&own, lists_bytes(plan));
    cuda->table = ra_arena_take(&own, (RA_SIGNALS + 1) * sizeof *cuda->table);
    cuda->flags = ra_arena_take(&own, 2 * U * (int64_t)sizeof *cuda->flags);
    exchange->constants = ra_arena_take(&own, 2 * sizeof *exchange->constants);

    int64_t keys = c->batch * ra_plan_bound(plan, RA_KEY_SIDE, rank) * c->key_heads;
    int64_t bytes = adds(plan) && !c->forward_only ? keys * (int64_t)sizeof(float) : 0;
    exchange->dk = ra_arena_take(&arena, bytes * c->dim);
    exchange->dv = ra_arena_take(&arena, bytes * c->dim_value);
    float **of_heads[] = {&exchange->sink, &exchange->slopes, &exchange->d_sink,
                          &exchange->largest};
    for (int i = 0; i < 4; i++)
        *of_heads[i] = ra_arena_take(&arena, inner.config.heads * (int64_t)sizeof(float));
    *inner_start = ra_arena_take(&arena, inner.backend->workspace_bytes(&inner, group));
    return (struct sizes){own.used, arena.used};
}

static struct sizes sizes_of(const struct ra_plan *plan, int rank)
{
    struct exchange other;
    char *inner;
    return lay_out(plan, rank, &other, NULL, NULL, &inner);
}

static int64_t workspace_bytes_of(const struct ra_plan *plan, int rank)
{
    return sizes_of(plan, rank).workspace;
}

/* Memory of the device that is this part's. */
static int64_t device_bytes_of(const struct ra_plan *plan, int rank)
{
    struct sizes sizes = sizes_of(plan, rank);
    return ra_cuda_reach_bytes(sizes.own + (plan->config.caller_workspace ? 0 : sizes.workspace));
}

static void use_workspace(struct ra_plan *plan, char *workspace)
{
    struct exchange *exchange = plan->own;
    char *inner;
    lay_out(plan, plan->link.rank, exchange, exchange->cuda.memory, workspace, &inner);
    ra_groups_use_workspace(plan, inner);
}

/* Host memory of the plan: struct exchange and its arrays. */
static int64_t lay_out_host(const struct ra_plan *plan, struct exchange *exchange, char **storage)
{
    struct ra_arena arena = {(char *)exchange, 64, 0};
    ra_arena_take(&arena, sizeof *exchange);
    void *peers = ra_arena_take(&arena, plan->link.size * (int64_t)sizeof(struct ra_peer));
    void *arrived_at_end = ra_arena_take(&arena, plan->link.size);
    *storage = ra_arena_take(&arena, ra_groups_storage(&plan->config));
    if (exchange) {
        exchange->cuda.peers = peers;
        exchange->cuda.arrived_at_end = arrived_at_end;
    }
    return arena.used;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct ra_plan inner = ra_groups_part(plan, rank);
    char *storage;
    return device_bytes_of(plan, rank) + lay_out_host(plan, NULL, &storage) + lists_bytes(plan) +
           (int64_t)sizeof(struct ra_device_error) +
           ra_cuda_staging_bytes(plan, ra_cuda_of(plan)->transport, rank) +
           ra_plan_bytes_of(&inner, ra_groups_rank(plan, rank));
}

/* ---- What is moved. */

/* One call: the caller's arrays, those of the inner plan, and moves that are not enqueued yet. */
struct call {
    struct ra_cuda_call *cuda;
    struct ra_arrays home, inner;
    struct ra_moves moves;
};

static void flush(struct call *call)
{
    if (call->moves.count > 0)
        RA_DO(call->cuda->plan, ra_move_rows(&call->moves, call->cuda->stream));
    call->moves.count = 0;
}

/* Moves rows of the heads of a share, or of one head of a mask. */
static void move(struct call *call, const struct ra_exchange_part *part, struct ra_head_share share,
                 struct ra_rows_view to, struct ra_rows_view from, int64_t rows, bool added)
{
    const struct ra_config *c = &call->cuda->plan->config;
    bool queries = part->side == RA_QUERY_SIDE, is_mask = part->form == RA_PART_MASK;
    if (rows == 0)
        return;
    if (call->moves.count == RA_MOST_MOVES)
        flush(call);
    call->moves.move[call->moves.count++] =
        (struct ra_move){.to = to,
                         .from = from,
                         .rows = rows,
                         .keys = is_mask ? 1 : (int)share.keys,
                         .per_key = queries ? (int)share.per_key : 1,
                         .width = (int)ra_exchange_width(c, part),
                         .adds = added};
}

/* The heads of a share in an array of all heads; an array that is empty is 0 everywhere. */
static struct ra_rows_view among_all(const struct ra_plan *plan,
                                     const struct ra_exchange_part *part, struct ra_tensor all,
                                     struct ra_head_share share)
{
    const struct ra_config *c = &plan->config;
    struct ra_rows_view view = {.array = {exchange_of(plan)->constants, RA_FLOAT32, 0, 0, 0}};
    if (!all.data)
        return view;
    view.array = ra_exchange_heads_at(c, part, all, share, 0);
    struct ra_tensor next = ra_exchange_heads_at(c, part, all, share, 1);
    view.key = ((char *)next.data - (char *)view.array.data) / ra_type_bytes(all.type);
    return view;
}

/* And in an array of these heads alone. */
static struct ra_rows_view of_share(const struct ra_exchange_part *part, struct ra_tensor array,
                                    struct ra_head_share share, const int32_t *row)
{
    int64_t per_key = part->side == RA_QUERY_SIDE ? share.per_key : 1;
    return (struct ra_rows_view){array, per_key * array.head, row};
}

/* The array of a member's heads, of all rows of the group, in memory that begins there. What has
 * one number to a head has rows side by side, as kernels read them. */
static struct ra_tensor of_group(const struct ra_plan *plan, const struct ra_exchange_part *part,
                                 struct ra_head_share share, void *data)
{
    int64_t rows = plan->inner->rows[part->side];
    if (part->form == RA_PART_NUMBER)
        return ra_tensor_bhn(data, rows, ra_exchange_heads(part, share));
    return ra_exchange_packed(&plan->config, part, data, rows, share);
}

/* Which rows of the group are those of a member. */
static const int32_t *list_of(const struct ra_plan *plan, enum ra_side side, int member)
{
    return ra_cuda_of(plan)->places + list_start(plan, side, member);
}

/* The rows of a member, of the heads of another one, in that one's array. */
static struct ra_rows_view in_group(const struct ra_plan *plan, const struct ra_exchange_part *part,
                                    int heads_of, int rows_of)
{
    const struct ra_cuda *cuda = ra_cuda_of(plan);
    struct ra_head_share share = ra_exchange_share_of(plan, heads_of);
    int rank = ra_exchange_first(plan, plan->link.rank) + heads_of;
    int64_t i = part - ra_exchange_parts;
    char *data = rank == plan->link.rank ? cuda->parts[i]
                                         : cuda->peers[rank].memory + cuda->peers[rank].parts[i];
    return of_share(part, of_group(plan, part, share, data), share,
                    list_of(plan, part->side, rows_of));
}

/* ---- Phases. In round s a member gives to the one s places on and takes from the one s places
 * back; in round 0 both are itself. So what is added up is added in the same order every time, and
 * by every transport. */

static int own_member(const struct ra_plan *plan)
{
    return plan->link.rank % ra_exchange_group(plan);
}

/* Where the gradients of this rank's keys are added up, or any array goes. */
static struct ra_tensor home_of(const struct call *call, const struct ra_exchange_part *part,
                                bool outwards)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_config *c = &plan->config;
    const struct exchange *exchange = exchange_of(plan);
    struct ra_arrays home = call->home;
    bool is_sum = outwards && part->side == RA_KEY_SIDE && adds(plan);
    if (is_sum)
        return ra_tensor_bnhd(part->is_value ? exchange->dv : exchange->dk, RA_FLOAT32,
                              plan->rows[RA_KEY_SIDE], c->key_heads, ra_exchange_width(c, part));
    return *ra_exchange_tensor(&home, part);
}

/* Moves this rank's rows between the caller's arrays and those of a member's heads; with `message`
 * between the caller's arrays and a message that has them. */
static void move_home(struct call *call, enum ra_exchange_phase phase, int member, char *message)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_config *c = &plan->config;
    bool inwards = ra_exchange_is_inwards(phase);
    struct ra_head_share share = ra_exchange_share_of(plan, member);
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++) {
        int64_t rows = plan->rows[part->side];
        if (!ra_exchange_has(c, part, phase))
            continue;
        struct ra_rows_view home = among_all(plan, part, home_of(call, part, !inwards), share);
        struct ra_rows_view there =
            message ? of_share(part, ra_exchange_packed(c, part, message, rows, share), share, NULL)
                    : in_group(plan, part, member, own_member(plan));
        bool added = !inwards && part->side == RA_KEY_SIDE && adds(plan);
        move(call, part, share, inwards ? there : home, inwards ? home : there, rows, added);
        message += message ? ra_exchange_part_bytes(c, part, rows, share) : 0;
    }
    if (adds(plan) || message)
        flush(call);
}

/* Moves a member's rows of this rank's heads between this rank's arrays and a message. */
static void move_message(struct call *call, enum ra_exchange_phase phase, int member, char *message)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_config *c = &plan->config;
    bool inwards = ra_exchange_is_inwards(phase);
    int own = own_member(plan), rank = ra_exchange_first(plan, plan->link.rank) + member;
    struct ra_head_share share = ra_exchange_share_of(plan, own);
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++) {
        int64_t rows = ra_layout_rows(plan->layouts[part->side], rank);
        if (!ra_exchange_has(c, part, phase))
            continue;
        struct ra_rows_view there = in_group(plan, part, own, member);
        struct ra_rows_view packed =
            of_share(part, ra_exchange_packed(c, part, message, rows, share), share, NULL);
        move(call, part, share, inwards ? there : packed, inwards ? packed : there, rows, false);
        message += ra_exchange_part_bytes(c, part, rows, share);
    }
    flush(call);
}

/* The signal of a member that its rows have come, or that its results may be read. */
static int64_t flag_of(const struct ra_plan *plan, bool outwards, int member)
{
    return outwards * ra_exchange_group(plan) + member;
}

static void signal_all(struct call *call, bool outwards)
{
    struct ra_plan *plan = call->cuda->plan;
    int first = ra_exchange_first(plan, plan->link.rank), own = own_member(plan);
    for (int member = 0; member < ra_exchange_group(plan); member++)
        if (member != own)
            ra_cuda_send_signal(plan, first + member, flag_of(plan, outwards, own),
                                call->cuda->number, call->cuda->stream);
}

static void wait_for(struct call *call, bool outwards, int member, int number)
{
    struct ra_plan *plan = call->cuda->plan;
    struct ra_signal signal = {.message = RA_ROWS,
                               .peer = ra_exchange_first(plan, plan->link.rank) + member};
    if (member != own_member(plan))
        ra_cuda_wait_for_signal(plan, flag_of(plan, outwards, member), number, signal,
                                call->cuda->stream);
}

/* A phase by peer copies. Of gathered keys a forward has nothing to read: there a rank waits,
 * before it writes for the next call, until the member has used what it wrote for this one. */
static void exchange_by_peers(struct call *call, enum ra_exchange_phase phase)
{
    struct ra_plan *plan = call->cuda->plan;
    int U = ra_exchange_group(plan), own = own_member(plan), first = plan->link.rank - own;
    bool inwards = ra_exchange_is_inwards(phase);
    bool reads = !ra_exchange_gathers(plan) || phase == RA_BACKWARD_OUT;
    if (!inwards)
        signal_all(call, true);
    for (int s = 1; s < U && inwards && ra_exchange_gathers(plan); s++)
        wait_for(call, true, (own + s) % U, call->cuda->number + RA_SIGNALS - 1);
    for (int s = 0; s < U; s++) {
        int to = (own + s) % U, from = (own - s + U) % U;
        int64_t bytes = ra_exchange_bytes_between(plan, phase, first, own, to);
        plan->ring.messages_sent += s > 0 && bytes > 0;
        plan->ring.bytes_sent += s > 0 ? bytes : 0;
        if (!inwards && reads)
            wait_for(call, true, from, call->cuda->number);
        move_home(call, phase, inwards ? to : from, NULL);
    }
    flush(call);
    if (!inwards)
        return;
    signal_all(call, false);
    for (int s = 1; s < U; s++)
        wait_for(call, false, (own - s + U) % U, call->cuda->number);
}

/* The same by messages that the link passes: the host waits for the device before a message is
 * sent, and for the link before the device goes on. */
static void exchange_by_link(struct call *call, enum ra_exchange_phase phase)
{
    struct ra_plan *plan = call->cuda->plan;
    const struct ra_cuda *cuda = plan->own;
    int U = ra_exchange_group(plan), own = own_member(plan), first = plan->link.rank - own;
    bool inwards = ra_exchange_is_inwards(phase);
    move_home(call, phase, own, NULL);
    flush(call);
    for (int s = 1; s < U; s++) {
        int to = (own + s) % U, from = (own - s + U) % U;
        struct ra_exchange messages = {.message = RA_ROWS,
                                       .to = to - own,
                                       .from = from - own,
                                       .out = cuda->host_out,
                                       .in = cuda->host_in};
        messages.out_bytes = ra_exchange_bytes_between(plan, phase, first, own, to);
        messages.in_bytes = ra_exchange_bytes_between(plan, phase, first, from, own);
        (inwards ? move_home : move_message)(call, phase, to, cuda->host_out);
        if (!ra_cuda_settle(plan, call->cuda->stream))
            return;
        if (!ra_ring_exchange(&plan->ring, &messages, false)) {
            ra_cuda_fail(plan, RA_LOST, ra_message_error(&plan->link));
            return;
        }
        (inwards ? move_message : move_home)(call, phase, from, cuda->host_in);
    }
}

static void exchange_parts(struct call *call, bool outwards)
{
    struct ra_plan *plan = call->cuda->plan;
    enum ra_exchange_phase phase = ra_exchange_phase_of(call->cuda->backward, outwards);
    if (ra_cuda_of(plan)->transport == RA_PEER_COPIES)
        exchange_by_peers(call, phase);
    else
        exchange_by_link(call, phase);
}

/* ---- The calls. */

/* Sends the lists of rows, if the device does not have those of the mask of today. */
static void send_lists(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    if (!ra_cuda_places_are_due(call))
        return;
    for (int i = 0; i < 2 * ra_exchange_group(plan); i++) {
        enum ra_side side = i % 2 ? RA_KEY_SIDE : RA_QUERY_SIDE;
        struct ra_exchange_rows rows = ra_exchange_rows_of(plan, side, i / 2);
        int32_t *list = cuda->host_places + list_start(plan, side, i / 2);
        int64_t a = 0;
        for (int64_t s = 0; s < ra_layout_spans(rows.layout); s++) {
            struct ra_span span = ra_layout_span(rows.layout, rows.rank, s);
            for (int64_t t = 0; t < span.count; t++, a++)
                list[a] = (int32_t)ra_exchange_row(&rows, a, span.first + t * span.stride);
        }
    }
    RA_DO(plan, cudaMemcpyAsync(cuda->places, cuda->host_places, (size_t)lists_bytes(plan),
                                cudaMemcpyHostToDevice, call->stream));
    RA_DO(plan, cudaEventRecord(cuda->places_copied, call->stream));
    cuda->places_sent = true;
}

/* Moves numbers of this rank's heads between an array of all heads and one of these; a single row
 * of a single batch. */
static void move_heads(struct call *call, struct ra_tensor all, float *own, bool inwards)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_exchange_part *part = &ra_exchange_parts[0]; /* one number to a query head */
    struct ra_head_share share = ra_exchange_share_of(plan, own_member(plan));
    struct call one = {.cuda = call->cuda, .moves = {.batch = 1}};
    if (!all.data)
        return;
    struct ra_rows_view among = among_all(plan, part, all, share);
    struct ra_rows_view alone = of_share(part, ra_tensor_h(own), share, NULL);
    move(&one, part, share, inwards ? alone : among, inwards ? among : alone, 1, false);
    flush(&one);
}

/* Writes the numbers of this rank's heads to the caller's array. Other heads get number `rest` of
 * the constants. */
static void heads_out(struct call *call, struct ra_tensor all, float *own, int rest)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_exchange_part *part = &ra_exchange_parts[0];
    struct ra_head_share every = {0, 1, 0, plan->config.heads};
    struct ra_rows_view constant = {
        .array = {exchange_of(plan)->constants + rest, RA_FLOAT32, 0, 0, 0}};
    struct call one = {.cuda = call->cuda, .moves = {.batch = 1}};
    if (!all.data)
        return;
    move(&one, part, every, (struct ra_rows_view){.array = all}, constant, 1, false);
    flush(&one);
    move_heads(call, all, own, false);
}

/* The arrays of the inner plan's call. */
static void open_arrays(struct call *call)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct exchange *exchange = exchange_of(plan);
    bool backward = call->cuda->backward;
    struct ra_head_share share = ra_exchange_share_of(plan, own_member(plan));
    call->inner = ra_exchange_gathers(plan) ? call->home : (struct ra_arrays)RA_ARRAYS_INIT;
    for (int i = 0; i < RA_EXCHANGE_PARTS; i++) {
        const struct ra_exchange_part *part = &ra_exchange_parts[i];
        if (ra_exchange_has(&plan->config, part, ra_exchange_phase_of(backward, false)) ||
            ra_exchange_has(&plan->config, part, ra_exchange_phase_of(backward, true)))
            *ra_exchange_tensor(&call->inner, part) =
                of_group(plan, part, share, exchange->cuda.parts[i]);
    }
    if (ra_exchange_gathers(plan))
        return;
    const struct {
        struct ra_tensor all, *own;
        float *data;
    } of_heads[] = {{call->home.sink, &call->inner.sink, exchange->sink},
                    {call->home.slopes, &call->inner.slopes, exchange->slopes},
                    {call->home.d_sink, &call->inner.d_sink, exchange->d_sink},
                    {call->home.largest, &call->inner.largest, exchange->largest}};
    for (int i = 0; i < 4; i++) {
        if (of_heads[i].all.data)
            *of_heads[i].own = ra_tensor_h(of_heads[i].data);
        if (i < 2)
            move_heads(call, of_heads[i].all, of_heads[i].data, true);
    }
}

/* The sums of dk and dv, from where they are added up to the caller's arrays. */
static void write_sums(struct call *call)
{
    const struct ra_plan *plan = call->cuda->plan;
    const struct ra_config *c = &plan->config;
    struct ra_head_share every = {0, c->key_heads, 0, c->heads / c->key_heads};
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++)
        if (part->side == RA_KEY_SIDE && ra_exchange_has(c, part, RA_BACKWARD_OUT))
            move(call, part, every, among_all(plan, part, home_of(call, part, false), every),
                 among_all(plan, part, home_of(call, part, true), every), plan->rows[RA_KEY_SIDE],
                 false);
    flush(call);
}

/* Sets those sums to 0. */
static void begin_sums(struct call *call)
{
    struct ra_plan *plan = call->cuda->plan;
    const struct ra_config *c = &plan->config;
    const struct exchange *exchange = exchange_of(plan);
    int64_t heads = c->batch * plan->rows[RA_KEY_SIDE] * c->key_heads;
    const int64_t widths[] = {c->dim, c->dim_value};
    float *sums[] = {exchange->dk, exchange->dv};
    for (int i = 0; i < 2 && heads > 0; i++)
        RA_DO(plan, cudaMemsetAsync(sums[i], 0, (size_t)(heads * widths[i]) * sizeof(float),
                                    call->cuda->stream));
}

/* Rows to heads, attention, heads to rows. */
static void attend(struct ra_cuda_call *its)
{
    struct ra_plan *plan = its->plan, *inner = plan->inner;
    const struct ra_backend *backend = inner->backend;
    struct exchange *exchange = plan->own;
    struct call call = {.cuda = its, .home = its->arrays, .moves = {.batch = plan->config.batch}};
    bool sums = its->backward && adds(plan);
    send_lists(its);
    open_arrays(&call);
    if (sums)
        begin_sums(&call);
    exchange_parts(&call, false);
    if (!ra_cuda_ok(plan))
        return;
    inner->ring.call.ring = plan->ring.call.ring;
    enum ra_status status =
        (its->backward ? backend->backward : backend->forward)(inner, &call.inner, its->stream);
    if (status != RA_OK) {
        ra_cuda_fail(plan, status, inner->error);
        return;
    }
    exchange_parts(&call, true);
    if (sums)
        write_sums(&call);
    if (ra_exchange_gathers(plan))
        return;
    if (its->backward)
        heads_out(&call, its->arrays.d_sink, exchange->d_sink, 0);
    else
        heads_out(&call, its->arrays.largest, exchange->largest, 1);
}

static enum ra_status forward(struct ra_plan *plan, const struct ra_arrays *arrays, void *stream)
{
    return ra_cuda_enqueue(plan, arrays, false, stream, attend);
}

static enum ra_status backward(struct ra_plan *plan, const struct ra_arrays *arrays, void *stream)
{
    return ra_cuda_enqueue(plan, arrays, true, stream, attend);
}

/* ---- The life of a plan. */

static int describe(const struct ra_plan *plan, int rank, char *text, size_t size)
{
    static const char *const names[] = {"none", "peer copies", "device link", "host link"};
    const struct ra_cuda *cuda = plan->own;
    struct ra_plan part = ra_groups_part(plan, rank);
    int used = ra_groups_describe(plan, &part, rank, text, size);
    size_t left = used < (int)size ? size - (size_t)used : 0;
    return used + snprintf(left > 0 ? text + used : NULL, left,
                           "exchange: %s%s%s\n%" PRId64 " bytes on the device for it\n",
                           names[cuda->transport], cuda->why[0] ? ", as " : "", cuda->why,
                           device_bytes_of(plan, rank));
}

static void release(struct ra_plan *plan, bool unused)
{
    plan->inner->backend->free(plan->inner, unused);
    if (unused)
        free(plan->inner);
    ra_cuda_release(plan, unused);
}

static bool leave(struct ra_plan *plan)
{
    bool unused = ra_cuda_leave(plan);
    return plan->inner->backend->leave(plan->inner) && unused;
}

/* All of this part that is on a device. */
static enum ra_status begin(struct ra_plan *plan, char *error)
{
    struct exchange *exchange = plan->own;
    struct ra_cuda *cuda = &exchange->cuda;
    const float constants[2] = {0, -INFINITY};
    enum ra_status status = ra_cuda_take_device(plan, error);
    if (status != RA_OK)
        return status;
    bool lent = plan->config.caller_workspace;
    use_workspace(plan, lent ? NULL : cuda->memory + sizes_of(plan, plan->link.rank).own);
    RA_DO(plan, cudaEventCreateWithFlags(&cuda->places_copied, cudaEventDisableTiming));
    RA_DO(plan, cudaHostAlloc((void **)&cuda->host_places, (size_t)ra_max(1, lists_bytes(plan)),
                              cudaHostAllocPortable));
    if (cuda->code == cudaErrorMemoryAllocation)
        return ra_cuda_lacks_host_memory(plan, lists_bytes(plan), error);
    RA_DO(plan,
          cudaMemcpy(exchange->constants, constants, sizeof constants, cudaMemcpyHostToDevice));
    ra_cuda_begin_table(plan);
    RA_DO(plan, cudaDeviceSynchronize());
    return ra_cuda_ok(plan) ? RA_OK : ra_cuda_error(plan, error);
}

/* Lists of rows count to 2^31 - 1. */
static enum ra_status check_method(const struct ra_config *c, char *error)
{
    if (c->method != RA_RING && ra_max(c->queries, c->keys) > INT32_MAX)
        return ra_error_set(error,
                            "config.method = %s: sequences have "
                            "%" PRId64 " rows, on a GPU they can have at most 2^31 - 1 then",
                            ra_option_methods[c->method].constant, ra_max(c->queries, c->keys));
    return RA_OK;
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    const struct ra_config *c = &plan->config;
    char *storage;
    int64_t host_bytes = lay_out_host(plan, NULL, &storage);
    struct exchange *exchange = plan->own = calloc(1, (size_t)host_bytes);
    if (!exchange) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes of the host's",
                     host_bytes);
        return RA_OUT_OF_MEMORY;
    }
    lay_out_host(plan, exchange, &storage);
    struct ra_cuda *cuda = &exchange->cuda;
    cuda->transport = plan->dry_run ? c->transport : RA_ANY_TRANSPORT;
    cuda->hop = -1;
    plan->ring.observe = NULL; /* the inner plan tells */
    enum ra_status status =
        ra_groups_build(plan, &exchange->groups, storage, &ra_cuda_ring_backend, error);
    if (status != RA_OK) {
        free(exchange);
        return status;
    }
    ra_cuda_of(plan->inner)->outer = cuda;
    ra_cuda_of(plan->inner)->outer_link = &plan->link;
    cuda->device_bytes = device_bytes_of(plan, plan->link.rank);
    status = plan->dry_run ? RA_OK : begin(plan, error);
    if (status != RA_OK)
        release(plan, true);
    return status;
}

/* First all ranks, who then know which of them share a device; then the rings of groups, each for
 * itself. */
static enum ra_status connect(struct ra_plan *plan, char *error)
{
    enum ra_status status = ra_cuda_connect(plan, error);
    if (status != RA_OK || plan->inner->link.size == 1 || ra_exchange_gathers(plan))
        return status;
    return ra_agree(&plan->link, plan->inner->backend->connect(plan->inner, error), error);
}

static enum ra_status use_slices(struct ra_plan *plan, char *error)
{
    struct exchange *exchange = plan->own;
    exchange->cuda.places_sent = false;
    enum ra_status status = ra_groups_use_slices(plan, &exchange->groups, error);
    return plan->inner->status == RA_OK
               ? status
               : ra_cuda_fail(plan, plan->inner->status, plan->inner->error);
}

static const struct ra_backend device = {.place = "a GPU",
                                         .methods = RA_CUDA_METHODS,
                                         .check_method = check_method,
                                         .keys_move = &ra_cuda_ring_backend,
                                         .exchanges = RA_CUDA_METHODS,
                                         .takes_optional = true,
                                         .check_address = ra_cuda_check_address,
                                         .own_gradients_stay = true,
                                         .exchanges_in_place = true,
                                         .meter = &ra_cuda_meter,
                                         .create = create,
                                         .connect = connect,
                                         .bytes = bytes_of,
                                         .workspace_bytes = workspace_bytes_of,
                                         .use_workspace = use_workspace,
                                         .use_slices = use_slices,
                                         .keeps_hops = true,
                                         .line = LINE,
                                         .describe = describe,
                                         .forward = forward,
                                         .backward = backward,
                                         .wait = ra_cuda_wait,
                                         .leave = leave,
                                         .free = release};

const struct ra_backend *ra_cuda(void)
{
    return &device;
}
