/* ra_exchange: the backend that exchanges heads. See ra_exchange.h and ra_plan.h.
 *
 * Chapter 12. New here: rows become heads and heads rows, each the adjoint of the other.
 */
#include "ra_exchange.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_arrays.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_exchange_parts.h"
#include "ra_groups.h"
#include "ra_host.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_meter.h"
#include "ra_number.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

/* This part of a plan. */
struct exchange {
    struct ra_groups groups;
    char *memory; /* the workspace, if it is not the caller's */

    /* ---- In the workspace. The arrays of the heads of this rank: see `parts`. A message out and
     * one in; dk and dv of this rank's rows while they are added up; numbers of heads. */
    void *arrays[16];
    char *out, *in;
    float *dk, *dv, *sink, *slopes, *d_sink, *largest;
};

/* ---- Copies. */

enum how { COPY, ADD };

/* Copies a row of some heads of a batch; or adds it, of float32. */
static void copy_row(struct ra_tensor to, int64_t to_row, struct ra_tensor from, int64_t from_row,
                     int64_t b, int64_t heads, int64_t width, enum how how)
{
    for (int64_t h = 0; h < heads; h++) {
        int64_t to_at = b * to.batch + to_row * to.row + h * to.head;
        int64_t from_at = b * from.batch + from_row * from.row + h * from.head;
        char *into = (char *)to.data + to_at * ra_type_bytes(to.type);
        const char *of = (const char *)from.data + from_at * ra_type_bytes(from.type);
        if (how == ADD)
            for (int64_t c = 0; c < width; c++)
                ((float *)(void *)into)[c] += ((const float *)(const void *)of)[c];
        else if (to.type == from.type)
            memcpy(into, of, (size_t)(width * ra_type_bytes(to.type)));
        else
            ra_number_store(to.type, width, (const float *)(const void *)of, into);
    }
}

/* Between the caller's array of all heads and a message of those of a share: this rank's rows. What
 * the caller leaves empty is 0. */
static void copy_home(const struct ra_plan *plan, const struct ra_exchange_part *part,
                      struct ra_tensor home, struct ra_tensor message, struct ra_head_share share,
                      bool to_home)
{
    const struct ra_config *c = &plan->config;
    int64_t rows = plan->rows[part->side], width = ra_exchange_width(c, part);
    bool queries = part->side == RA_QUERY_SIDE;
    int64_t heads = queries ? share.per_key : 1, keys = part->form == RA_PART_MASK ? 1 : share.keys;
    enum how how = to_home && !queries ? ADD : COPY;
    if (!home.data) {
        memset(message.data, 0, (size_t)ra_exchange_part_bytes(c, part, rows, share));
        return;
    }
    for (int64_t i = 0; i < keys; i++) {
        struct ra_tensor own = ra_exchange_heads_at(c, part, home, share, i), there = message;
        there.data = (char *)message.data + i * heads * message.head * ra_type_bytes(message.type);
        for (int64_t b = 0; b < c->batch; b++)
            for (int64_t a = 0; a < rows; a++)
                copy_row(to_home ? own : there, a, to_home ? there : own, a, b, heads, width, how);
    }
}

/* Between the array of this rank's heads and a message: rows of a member of the group. */
static void copy_inner(const struct ra_plan *plan, const struct ra_exchange_part *part,
                       struct ra_tensor inner, struct ra_tensor message,
                       const struct ra_exchange_rows *rows, bool to_inner)
{
    const struct ra_config *c = &plan->inner->config;
    int64_t width = ra_exchange_width(c, part), a = 0;
    int64_t heads = part->form == RA_PART_MASK  ? 1
                    : part->side == RA_KEY_SIDE ? c->key_heads
                                                : c->heads;
    for (int64_t s = 0; s < ra_layout_spans(rows->layout); s++) {
        struct ra_span span = ra_layout_span(rows->layout, rows->rank, s);
        for (int64_t i = 0; i < span.count; i++, a++) {
            int64_t row = ra_exchange_row(rows, a, span.first + i * span.stride);
            for (int64_t b = 0; b < c->batch; b++)
                if (to_inner)
                    copy_row(inner, row, message, a, b, heads, width, COPY);
                else
                    copy_row(message, a, inner, row, b, heads, width, COPY);
        }
    }
}

/* ---- Messages. */

/* A call of this plan: the caller's arrays and those of this rank's heads. */
struct call {
    struct ra_arrays home, inner;
};

/* Packs a message of this phase to a member of the group, or unpacks one from there. Inwards, what
 * goes out has this rank's rows of the member's heads, outwards the member's rows of this rank's
 * heads; what comes in is the other way round. */
static void pack(const struct ra_plan *plan, struct call *call, enum ra_exchange_phase phase,
                 int member, bool packs, char *message)
{
    const struct ra_config *c = &plan->config;
    int own = plan->link.rank - ra_exchange_first(plan, plan->link.rank);
    bool inwards = phase == RA_FORWARD_IN || phase == RA_BACKWARD_IN, at_home = inwards == packs;
    struct ra_head_share share = ra_exchange_share_of(plan, at_home ? member : own);
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++) {
        if (!ra_exchange_has(c, part, phase))
            continue;
        struct ra_exchange_rows rows = ra_exchange_rows_of(plan, part->side, member);
        int64_t count = at_home ? plan->rows[part->side] : ra_layout_rows(rows.layout, rows.rank);
        struct ra_tensor there = ra_exchange_packed(c, part, message, count, share);
        if (at_home)
            copy_home(plan, part, *ra_exchange_tensor(&call->home, part), there, share, !packs);
        else
            copy_inner(plan, part, *ra_exchange_tensor(&call->inner, part), there, &rows, !packs);
        message += ra_exchange_part_bytes(c, part, count, share);
    }
}

/* All members of a group exchange their parts of this phase. In round s a member sends to the one s
 * places on and hears from the one s places back; in round 0 that is itself. So what is added up is
 * added in the same order every time. */
static bool exchange_parts(struct ra_plan *plan, struct call *call, enum ra_exchange_phase phase)
{
    struct exchange *own = plan->own;
    int U = ra_config_group(&plan->config), first = ra_exchange_first(plan, plan->link.rank);
    int member = plan->link.rank - first;
    bool inwards = phase == RA_FORWARD_IN || phase == RA_BACKWARD_IN;
    for (int s = 0; s < U; s++) {
        int to = (member + s) % U, from = (member - s + U) % U;
        struct ra_exchange messages = {.message = RA_ROWS,
                                       .to = to - member,
                                       .from = from - member,
                                       .out = own->out,
                                       .in = own->in};
        messages.out_bytes = ra_exchange_bytes_between(plan, phase, first, member, to);
        messages.in_bytes = ra_exchange_bytes_between(plan, phase, first, from, member);
        pack(plan, call, phase, to, true, own->out);
        if (s > 0 && !ra_ring_exchange(&plan->ring, &messages, inwards))
            return false;
        pack(plan, call, phase, from, false, s > 0 ? own->in : own->out);
    }
    return true;
}

/* ---- Memory. */

/* Gives every part of a rank's workspace its place; returns how much that is, and writes where that
 * of the inner plan begins. */
static int64_t lay_out(const struct ra_plan *plan, int rank, struct exchange *own, char *start,
                       char **inner_start)
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    int U = ra_config_group(c), group = rank / U;
    struct ra_plan inner = ra_groups_part(plan, rank);
    struct ra_head_share share = ra_exchange_share_of(plan, rank % U);
    bool backward = !c->forward_only;
    ra_arena_take(&arena, c->caller_workspace ? LINE : 0);
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++) {
        int64_t rows = ra_plan_bound(&inner, part->side, group);
        own->arrays[part - ra_exchange_parts] = ra_arena_take(
            &arena, ra_exchange_needs(c, part) ? ra_exchange_part_bytes(c, part, rows, share) : 0);
    }
    int64_t numbers = backward * c->batch * ra_plan_bound(plan, RA_KEY_SIDE, rank) * c->key_heads;
    own->dk = ra_arena_take(&arena, numbers * c->dim * (int64_t)sizeof(float));
    own->dv = ra_arena_take(&arena, numbers * c->dim_value * (int64_t)sizeof(float));
    own->out = ra_arena_take(&arena, ra_exchange_most_bytes(plan));
    own->in = ra_arena_take(&arena, ra_exchange_most_bytes(plan));
    float **of_heads[] = {&own->sink, &own->slopes, &own->d_sink, &own->largest};
    for (int i = 0; i < 4; i++)
        *of_heads[i] = ra_arena_take(&arena, inner.config.heads * (int64_t)sizeof(float));
    int64_t bytes = inner.backend->workspace_bytes(&inner, group);
    *inner_start = ra_arena_take(&arena, bytes);
    return arena.used;
}

static int64_t workspace_bytes_of(const struct ra_plan *plan, int rank)
{
    struct exchange other;
    char *inner;
    return lay_out(plan, rank, &other, NULL, &inner);
}

/* This part of the plan, with the lists of the groups' rows, behind which its own workspace
 * begins. */
static int64_t own_bytes(const struct ra_config *c)
{
    return ra_round_up((int64_t)sizeof(struct exchange) + ra_groups_storage(c), LINE);
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct ra_plan inner = ra_groups_part(plan, rank);
    int64_t workspace = plan->config.caller_workspace ? 0 : workspace_bytes_of(plan, rank);
    return own_bytes(&plan->config) + workspace +
           ra_plan_bytes_of(&inner, rank / ra_config_group(&plan->config));
}

static void use_workspace(struct ra_plan *plan, char *workspace)
{
    char *start;
    lay_out(plan, plan->link.rank, plan->own, workspace, &start);
    ra_groups_use_workspace(plan, start);
}

static enum ra_status use_slices(struct ra_plan *plan, char *error)
{
    struct exchange *own = plan->own;
    return ra_groups_use_slices(plan, &own->groups, error);
}

/* ---- The calls. */

/* Sets the numbers of this rank's heads: of all heads if `from` has them. Returns them as an array
 * for the inner plan; empty if there are none. */
static struct ra_tensor heads_in(const struct ra_plan *plan, struct ra_tensor from, float *to)
{
    static const struct ra_tensor none = RA_NO_TENSOR;
    const struct ra_config *c = &plan->config;
    struct ra_head_share share = ra_exchange_share_of(plan, plan->link.rank % ra_config_group(c));
    const struct ra_exchange_part *part =
        &ra_exchange_parts[0]; /* one number to a head, on the queries' side */
    if (!from.data)
        return none;
    for (int64_t i = 0; i < share.keys; i++) {
        struct ra_tensor heads = ra_exchange_heads_at(c, part, from, share, i);
        for (int64_t h = 0; h < share.per_key; h++)
            to[i * share.per_key + h] = ((const float *)heads.data)[h * heads.head];
    }
    return ra_tensor_h(to);
}

/* The opposite. Other heads get `rest`. */
static void heads_out(const struct ra_plan *plan, struct ra_tensor to, const float *from,
                      float rest)
{
    const struct ra_config *c = &plan->config;
    struct ra_head_share share = ra_exchange_share_of(plan, plan->link.rank % ra_config_group(c));
    for (int64_t h = 0; h < c->heads && to.data; h++)
        ((float *)to.data)[h * to.head] = rest;
    for (int64_t i = 0; i < share.keys && to.data; i++) {
        struct ra_tensor heads = ra_exchange_heads_at(c, &ra_exchange_parts[0], to, share, i);
        for (int64_t h = 0; h < share.per_key; h++)
            ((float *)heads.data)[h * heads.head] = from[i * share.per_key + h];
    }
}

/* The arrays of the inner plan's call; and dk and dv, which are added up at home, are 0. */
static void open_arrays(const struct ra_plan *plan, struct call *call, bool backward)
{
    const struct ra_config *c = &plan->config;
    const struct exchange *own = plan->own;
    struct ra_head_share share = ra_exchange_share_of(plan, plan->link.rank % ra_config_group(c));
    call->inner = (struct ra_arrays)RA_ARRAYS_INIT;
    for (const struct ra_exchange_part *part = ra_exchange_parts;
         part < ra_exchange_parts + RA_EXCHANGE_PARTS; part++)
        if (backward ? ra_exchange_has(c, part, RA_BACKWARD_IN) ||
                           ra_exchange_has(c, part, RA_BACKWARD_OUT)
                     : ra_exchange_has(c, part, RA_FORWARD_IN) ||
                           ra_exchange_has(c, part, RA_FORWARD_OUT))
            *ra_exchange_tensor(&call->inner, part) =
                ra_exchange_packed(c, part, own->arrays[part - ra_exchange_parts],
                                   plan->inner->rows[part->side], share);
    call->inner.sink = heads_in(plan, call->home.sink, own->sink);
    call->inner.slopes = heads_in(plan, call->home.slopes, own->slopes);
    call->inner.d_sink = heads_in(plan, call->home.d_sink, own->d_sink);
    call->inner.largest = heads_in(plan, call->home.largest, own->largest);
    if (!backward)
        return;
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads;
    memset(own->dk, 0, (size_t)(numbers * c->dim) * sizeof(float));
    memset(own->dv, 0, (size_t)(numbers * c->dim_value) * sizeof(float));
    call->home.dk = ra_tensor_bnhd(own->dk, RA_FLOAT32, m, c->key_heads, c->dim);
    call->home.dv = ra_tensor_bnhd(own->dv, RA_FLOAT32, m, c->key_heads, c->dim_value);
}

/* Rows to heads, attention, heads to rows. False: the link, or the inner plan, has failed. */
static bool attend(struct ra_plan *plan, struct call *call, bool backward)
{
    struct ra_plan *inner = plan->inner;
    const struct ra_backend *host = inner->backend;
    inner->ring.call.ring = plan->ring.call.ring;
    return ra_ring_begin(&plan->ring, backward ? RA_CALL_BACKWARD : RA_CALL_FORWARD) &&
           exchange_parts(plan, call, backward ? RA_BACKWARD_IN : RA_FORWARD_IN) &&
           (backward ? host->backward : host->forward)(inner, &call->inner, NULL) == RA_OK &&
           exchange_parts(plan, call, backward ? RA_BACKWARD_OUT : RA_FORWARD_OUT) &&
           !ra_plan_is_cancelled(plan);
}

static enum ra_status run(struct ra_plan *plan, const struct ra_arrays *given, bool backward)
{
    const struct ra_config *c = &plan->config;
    const struct exchange *own = plan->own;
    struct call call;
    enum ra_status status = ra_arrays_read(plan, &call.home, given, backward);
    if (status != RA_OK)
        return status;
    status = ra_plan_enter_workspace(plan);
    if (status != RA_OK)
        return status;
    struct ra_tensor dk = call.home.dk, dv = call.home.dv;
    plan->ring.call.heads = ra_arrays_of_heads(plan, &call.home);
    open_arrays(plan, &call, backward);
    if (!attend(plan, &call, backward)) {
        ra_plan_leave_workspace(plan);
        return ra_plan_fail(plan);
    }
    heads_out(plan, call.home.largest, own->largest, -INFINITY);
    heads_out(plan, call.home.d_sink, own->d_sink, 0);
    if (backward) {
        int64_t m = plan->rows[RA_KEY_SIDE];
        ra_number_store_all(dk, c->batch, m, c->key_heads, c->dim, own->dk);
        ra_number_store_all(dv, c->batch, m, c->key_heads, c->dim_value, own->dv);
    }
    ra_plan_leave_workspace(plan);
    return RA_OK;
}

static enum ra_status forward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    return run(plan, given, false);
}

static enum ra_status backward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    return run(plan, given, true);
}

/* ---- The life of a plan. */

static void release(struct ra_plan *plan, bool unused)
{
    struct exchange *own = plan->own;
    if (!unused)
        return;
    ra_plan_release(plan->inner);
    free(own->memory);
    free(own);
}

static int describe(const struct ra_plan *plan, int rank, char *text, size_t size)
{
    struct ra_plan part = ra_groups_part(plan, rank);
    return ra_groups_describe(plan, &part, rank, text, size);
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    int64_t bytes = own_bytes(&plan->config);
    struct exchange *own = calloc(1, (size_t)bytes);
    if (!own) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes", bytes);
        return RA_OUT_OF_MEMORY;
    }
    plan->own = own;
    enum ra_status status = ra_groups_build(plan, &own->groups, (char *)(own + 1), &ra_host, error);
    if (status != RA_OK) {
        free(own);
        return status;
    }
    if (plan->dry_run || plan->config.caller_workspace)
        return RA_OK;
    bytes = workspace_bytes_of(plan, plan->link.rank);
    own->memory = aligned_alloc(LINE, (size_t)bytes);
    if (!own->memory) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes", bytes);
        release(plan, true);
        return RA_OUT_OF_MEMORY;
    }
    use_workspace(plan, own->memory);
    return RA_OK;
}

const struct ra_backend ra_exchange = {.place = "the host",
                                       .methods = ~0u,
                                       .keys_move = &ra_host,
                                       .exchanges = 1u << RA_EXCHANGED_HEADS | 1u << RA_HYBRID,
                                       .takes_optional = true,
                                       .negative_strides = true,
                                       .meter = &ra_host_meter,
                                       .create = create,
                                       .bytes = bytes_of,
                                       .workspace_bytes = workspace_bytes_of,
                                       .use_workspace = use_workspace,
                                       .use_slices = use_slices,
                                       .line = LINE,
                                       .describe = describe,
                                       .forward = forward,
                                       .backward = backward,
                                       .free = release};

const struct ra_backend *ra_exchange_backend(const struct ra_config *config)
{
    const struct ra_backend *backend = config->device ? config->device : &ra_exchange;
    bool exchanges = (backend->exchanges >> config->method & 1) && config->ring_size > 1 &&
                     (config->method == RA_GATHERED_KEYS || ra_config_group(config) > 1);
    return exchanges || !backend->keys_move ? backend : backend->keys_move;
}
