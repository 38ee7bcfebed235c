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
#include "ra_host.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_number.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

/* The link of the ring of groups: that of all ranks, in steps of `stride`. */
struct group_link {
    const struct ra_link *all;
    int stride;
};

/* This part of a plan. */
struct exchange {
    struct group_link link;
    struct ra_layout_list lists[2][2]; /* rows of the groups, if a list: planned, then dealt */
    void *storage[2][2];
    char *memory; /* the workspace, if it is not the caller's */

    /* ---- In the workspace. The arrays of the heads of this rank: see `parts`. A message out and
     * one in; dk and dv of this rank's rows while they are added up; numbers of heads. */
    void *arrays[16];
    char *out, *in;
    float *dk, *dv, *sink, *slopes, *d_sink, *largest;
};

/* ---- Who has what. */

struct ra_head_share ra_exchange_share(int64_t H, int64_t G, int U, int member)
{
    int64_t group = H / G;
    if (U <= G) {
        int64_t first = member * G / U;
        return (struct ra_head_share){first, (member + 1) * G / U - first, 0, group};
    }

    /* Members first .. end - 1 have this key head. */
    int64_t key = member * G / U, first = (key * U + G - 1) / G, end = ((key + 1) * U + G - 1) / G;
    int64_t heads = (member - first) * group / (end - first);
    return (struct ra_head_share){key, 1, heads,
                                  (member + 1 - first) * group / (end - first) - heads};
}

static struct ra_head_share share_of(const struct ra_plan *plan, int member)
{
    const struct ra_config *c = &plan->config;
    return ra_exchange_share(c->heads, c->key_heads, ra_config_group(c), member);
}

/* The first rank of the group of this rank. */
static int first_of(const struct ra_plan *plan, int rank)
{
    int U = ra_config_group(&plan->config);
    return rank / U * U;
}

/* Writes the rows of all groups as a list: those of one group are in the order of the sequence. */
static void list_groups(struct ra_layout layout, int U, void *storage, struct ra_layout_list *list)
{
    int R = layout.ranks / U;
    int64_t most = layout.kind == RA_DEALT ? layout.list->count : 2 * (int64_t)R;
    list->first = storage;
    list->span = list->first + R + 1;
    list->run = (struct ra_run *)(void *)(list->span + most);
    list->count = list->spans = list->rows = 0;
    memset(list->first, 0, (size_t)(R + 1) * sizeof *list->first);
    for (int64_t i = 0, end; i < layout.length; i = end) {
        int group = ra_layout_run(layout, i, &end) / U;
        struct ra_run *last = list->count > 0 ? &list->run[list->count - 1] : NULL;
        if (last && last->rank == group)
            last->count += end - i;
        else
            list->run[list->count++] = (struct ra_run){i, end - i, 0, group};
    }

    /* Numbers of runs, group by group. */
    int64_t at = 0;
    for (int group = 0; group < R; group++) {
        int64_t rows = 0;
        list->first[group] = at;
        for (int64_t run = 0; run < list->count; run++)
            if (list->run[run].rank == group) {
                list->run[run].row = rows;
                rows += list->run[run].count;
                list->span[at++] = run;
            }
        list->spans = ra_max(list->spans, at - list->first[group]);
        list->rows = ra_max(list->rows, rows);
    }
    list->first[R] = at;
}

/* The rows of the groups. Of one group they are the sequence; stripes stay stripes. */
static struct ra_layout group_layout(struct ra_layout layout, int U, void *storage,
                                     struct ra_layout_list *list)
{
    int R = layout.ranks / U;
    if (R == 1)
        return (struct ra_layout){RA_CONTIGUOUS, 1, layout.length, 1, NULL};
    if (layout.kind == RA_STRIPED)
        return (struct ra_layout){RA_STRIPED, R, layout.length, U * layout.stripes, NULL};
    list_groups(layout, U, storage, list);
    return (struct ra_layout){RA_DEALT, R, layout.length, 1, list};
}

/* Bytes of storage that such a list may need. */
static int64_t list_bytes(const struct ra_config *c)
{
    int64_t P = c->ring_size, runs = 2 * P;
    if (c->max_slices > 0)
        runs += ra_deal_storage((int)P, c->queries, c->keys, c->max_slices) /
                (int64_t)sizeof(struct ra_run);
    return (P + 1) * (int64_t)sizeof(int64_t) +
           runs * (int64_t)(sizeof(int64_t) + sizeof(struct ra_run));
}

/* Where the rows of a member of this rank's group are among those of the group. */
struct rows {
    struct ra_layout layout, group;
    int rank;
    int64_t before; /* of stripes: rows of the members before it */
};

static struct rows rows_of(const struct ra_plan *plan, enum ra_side side, int member)
{
    int first = first_of(plan, plan->link.rank);
    struct rows rows = {plan->layouts[side], plan->inner->layouts[side], first + member, 0};
    for (int r = first; r < rows.rank; r++)
        rows.before += ra_layout_rows(rows.layout, r);
    return rows;
}

static int64_t row_in_group(const struct rows *rows, int64_t a, int64_t position)
{
    int64_t row;
    if (rows->group.kind == RA_STRIPED)
        return rows->before + a;
    ra_layout_find(rows->group, position, &row);
    return row;
}

/* ---- What is exchanged. Inwards, from rows to heads, and outwards, in both directions. */

enum phase { FORWARD_IN = 1, FORWARD_OUT = 2, BACKWARD_IN = 4, BACKWARD_OUT = 8 };

/* The parts of messages, in their order: of four bytes first. What is an output of the backward, or
 * has one number to a head, is float32, the mask bool, and the rest as the plan. */
static const struct part {
    size_t offset; /* in struct ra_arrays */
    enum ra_side side;
    enum { NUMBER, GRADIENT, ROWS, MASK } form;
    bool is_value;
    int phases;
} parts[] = {
#define AT(name) offsetof(struct ra_arrays, name)
    {AT(lse), RA_QUERY_SIDE, NUMBER, false, FORWARD_OUT | BACKWARD_IN},
    {AT(d_lse), RA_QUERY_SIDE, NUMBER, false, BACKWARD_IN},
    {AT(dq), RA_QUERY_SIDE, GRADIENT, false, BACKWARD_OUT},
    {AT(dk), RA_KEY_SIDE, GRADIENT, false, BACKWARD_OUT},
    {AT(dv), RA_KEY_SIDE, GRADIENT, true, BACKWARD_OUT},
    {AT(q), RA_QUERY_SIDE, ROWS, false, FORWARD_IN | BACKWARD_IN},
    {AT(k), RA_KEY_SIDE, ROWS, false, FORWARD_IN | BACKWARD_IN},
    {AT(v), RA_KEY_SIDE, ROWS, true, FORWARD_IN | BACKWARD_IN},
    {AT(o), RA_QUERY_SIDE, ROWS, true, FORWARD_OUT | BACKWARD_IN},
    {AT(d_out), RA_QUERY_SIDE, ROWS, true, BACKWARD_IN},
    {AT(mask), RA_KEY_SIDE, MASK, false, FORWARD_IN | BACKWARD_IN},
#undef AT
};

enum { PARTS = sizeof parts / sizeof *parts };

static struct ra_tensor *tensor_of(struct ra_arrays *arrays, const struct part *part)
{
    return (struct ra_tensor *)(void *)((char *)arrays + part->offset);
}

static enum ra_type type_of(const struct ra_config *c, const struct part *part)
{
    if (part->form == MASK)
        return RA_BOOL;
    return part->form == ROWS ? c->type : RA_FLOAT32;
}

static int64_t width_of(const struct ra_config *c, const struct part *part)
{
    bool is_wide = part->form == GRADIENT || part->form == ROWS;
    return !is_wide ? 1 : part->is_value ? c->dim_value : c->dim;
}

/* Heads of a part in a share. */
static int64_t heads_of(const struct part *part, struct ra_head_share share)
{
    if (part->form == MASK)
        return 1;
    return part->side == RA_KEY_SIDE ? share.keys : share.keys * share.per_key;
}

/* Is this part in messages of this phase? */
static bool is_in(const struct ra_config *c, const struct part *part, enum phase phase)
{
    return (part->phases & (int)phase) != 0 && (part->form != MASK || c->has_mask);
}

/* Bytes of a part: so many rows of each batch, and the heads of a share. */
static int64_t part_bytes(const struct ra_config *c, const struct part *part, int64_t rows,
                          struct ra_head_share share)
{
    return c->batch * rows * heads_of(part, share) * width_of(c, part) *
           ra_type_bytes(type_of(c, part));
}

static int64_t message_bytes(const struct ra_config *c, enum phase phase, const int64_t rows[2],
                             struct ra_head_share share)
{
    int64_t bytes = 0;
    for (const struct part *part = parts; part < parts + PARTS; part++)
        if (is_in(c, part, phase))
            bytes += part_bytes(c, part, rows[part->side], share);
    return bytes;
}

/* An array (B, rows, heads of the share, width) without gaps, in the type in which it travels. */
static struct ra_tensor packed(const struct ra_config *c, const struct part *part, void *data,
                               int64_t rows, struct ra_head_share share)
{
    return ra_tensor_bnhd(data, type_of(c, part), rows, heads_of(part, share), width_of(c, part));
}

/* The heads of a share that read its key head number i, of an array of all heads; on the key's side
 * that head itself. */
static struct ra_tensor heads_at(const struct ra_config *c, const struct part *part,
                                 struct ra_tensor all, struct ra_head_share share, int64_t i)
{
    int64_t key = share.key + i, head = key;
    if (part->form == MASK)
        return all;
    if (part->side == RA_QUERY_SIDE && c->head_map == RA_INTERLEAVED) {
        head = share.first * c->key_heads + key;
        all.data = (char *)all.data + head * all.head * ra_type_bytes(all.type);
        all.head *= c->key_heads;
        return all;
    }
    if (part->side == RA_QUERY_SIDE)
        head = key * (c->heads / c->key_heads) + share.first;
    all.data = (char *)all.data + head * all.head * ra_type_bytes(all.type);
    return all;
}

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
static void copy_home(const struct ra_plan *plan, const struct part *part, struct ra_tensor home,
                      struct ra_tensor message, struct ra_head_share share, bool to_home)
{
    const struct ra_config *c = &plan->config;
    int64_t rows = plan->rows[part->side], width = width_of(c, part);
    bool queries = part->side == RA_QUERY_SIDE;
    int64_t heads = queries ? share.per_key : 1, keys = part->form == MASK ? 1 : share.keys;
    enum how how = to_home && !queries ? ADD : COPY;
    if (!home.data) {
        memset(message.data, 0, (size_t)part_bytes(c, part, rows, share));
        return;
    }
    for (int64_t i = 0; i < keys; i++) {
        struct ra_tensor own = heads_at(c, part, home, share, i), there = message;
        there.data = (char *)message.data + i * heads * message.head * ra_type_bytes(message.type);
        for (int64_t b = 0; b < c->batch; b++)
            for (int64_t a = 0; a < rows; a++)
                copy_row(to_home ? own : there, a, to_home ? there : own, a, b, heads, width, how);
    }
}

/* Between the array of this rank's heads and a message: rows of a member of the group. */
static void copy_inner(const struct ra_plan *plan, const struct part *part, struct ra_tensor inner,
                       struct ra_tensor message, const struct rows *rows, bool to_inner)
{
    const struct ra_config *c = &plan->inner->config;
    int64_t width = width_of(c, part), a = 0;
    int64_t heads = part->form == MASK ? 1 : part->side == RA_KEY_SIDE ? c->key_heads : c->heads;
    for (int64_t s = 0; s < ra_layout_spans(rows->layout); s++) {
        struct ra_span span = ra_layout_span(rows->layout, rows->rank, s);
        for (int64_t i = 0; i < span.count; i++, a++) {
            int64_t row = row_in_group(rows, a, span.first + i * span.stride);
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
static void pack(const struct ra_plan *plan, struct call *call, enum phase phase, int member,
                 bool packs, char *message)
{
    const struct ra_config *c = &plan->config;
    int own = plan->link.rank - first_of(plan, plan->link.rank);
    bool inwards = phase == FORWARD_IN || phase == BACKWARD_IN, at_home = inwards == packs;
    struct ra_head_share share = share_of(plan, at_home ? member : own);
    for (const struct part *part = parts; part < parts + PARTS; part++) {
        if (!is_in(c, part, phase))
            continue;
        struct rows rows = rows_of(plan, part->side, member);
        int64_t count = at_home ? plan->rows[part->side] : ra_layout_rows(rows.layout, rows.rank);
        struct ra_tensor there = packed(c, part, message, count, share);
        if (at_home)
            copy_home(plan, part, *tensor_of(&call->home, part), there, share, !packs);
        else
            copy_inner(plan, part, *tensor_of(&call->inner, part), there, &rows, !packs);
        message += part_bytes(c, part, count, share);
    }
}

/* Bytes of a message of this phase from one member of a group to another. */
static int64_t bytes_between(const struct ra_plan *plan, enum phase phase, int first, int from,
                             int to)
{
    bool inwards = phase == FORWARD_IN || phase == BACKWARD_IN;
    int rank = first + (inwards ? from : to);
    int64_t rows[2] = {ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank),
                       ra_layout_rows(plan->layouts[RA_KEY_SIDE], rank)};
    return message_bytes(&plan->config, phase, rows, share_of(plan, inwards ? to : from));
}

/* All members of a group exchange their parts of this phase. In round s a member sends to the one s
 * places on and hears from the one s places back; in round 0 that is itself. So what is added up is
 * added in the same order every time. */
static bool exchange_parts(struct ra_plan *plan, struct call *call, enum phase phase)
{
    struct exchange *own = plan->own;
    int U = ra_config_group(&plan->config), first = first_of(plan, plan->link.rank);
    int member = plan->link.rank - first;
    bool inwards = phase == FORWARD_IN || phase == BACKWARD_IN;
    for (int s = 0; s < U; s++) {
        int to = (member + s) % U, from = (member - s + U) % U;
        struct ra_exchange messages = {.message = RA_ROWS,
                                       .to = to - member,
                                       .from = from - member,
                                       .out = own->out,
                                       .in = own->in};
        messages.out_bytes = bytes_between(plan, phase, first, member, to);
        messages.in_bytes = bytes_between(plan, phase, first, from, member);
        pack(plan, call, phase, to, true, own->out);
        if (s > 0 && !ra_ring_exchange(&plan->ring, &messages, inwards))
            return false;
        pack(plan, call, phase, from, false, s > 0 ? own->in : own->out);
    }
    return true;
}

int64_t ra_exchange_bytes(const struct ra_plan *plan, int from, int to, bool backward,
                          bool outwards)
{
    enum phase phase = (enum phase)((backward ? BACKWARD_IN : FORWARD_IN) << outwards);
    int first = first_of(plan, from);
    return bytes_between(plan, phase, first, from - first, to - first);
}

void ra_exchange_count(const struct ra_plan *plan, int rank, bool backward, int64_t *messages,
                       int64_t *bytes)
{
    int U = ra_config_group(&plan->config), first = first_of(plan, rank);
    *messages = *bytes = 0;
    for (int outwards = 0; outwards < 2; outwards++)
        for (int to = first; to < first + U; to++) {
            int64_t more = to == rank ? 0 : ra_exchange_bytes(plan, rank, to, backward, outwards);
            *messages += more > 0;
            *bytes += more;
        }
}

/* ---- Memory. */

/* The most bytes of a message. */
static int64_t most_bytes(const struct ra_plan *plan)
{
    int U = ra_config_group(&plan->config);
    int64_t rows[2] = {ra_plan_most_bound(plan, RA_QUERY_SIDE),
                       ra_plan_most_bound(plan, RA_KEY_SIDE)};
    int64_t most = 0;
    for (int phase = FORWARD_IN; phase <= BACKWARD_OUT; phase *= 2)
        for (int member = 0; member < U; member++)
            if (phase <= FORWARD_OUT || !plan->config.forward_only)
                most = ra_max(most, message_bytes(&plan->config, (enum phase)phase, rows,
                                                  share_of(plan, member)));
    return most;
}

struct ra_plan ra_exchange_part(const struct ra_plan *plan, int rank)
{
    const struct ra_plan *inner = plan->inner;
    int U = ra_config_group(&plan->config);
    struct ra_head_share share = share_of(plan, rank % U);
    struct ra_plan part = {.config = inner->config,
                           .score = inner->score,
                           .link = inner->link,
                           .planned = {inner->planned[0], inner->planned[1]},
                           .layouts = {inner->layouts[0], inner->layouts[1]},
                           .ring = inner->ring,
                           .slices = inner->slices,
                           .listed = inner->listed,
                           .dry_run = inner->dry_run,
                           .backend = inner->backend,
                           .own = rank == plan->link.rank ? inner->own : NULL,
                           .fixed_bytes = inner->fixed_bytes};
    struct ra_config *c = &part.config;
    c->heads = share.keys * share.per_key;
    c->key_heads = share.keys;
    part.ring.key_bytes = ra_message_key_bytes(c->batch, c->key_heads, ra_config_dims(c),
                                               ra_type_bytes(c->type), c->has_mask);
    part.ring.gradient_bytes = ra_message_gradient_bytes(c->batch, c->key_heads, ra_config_dims(c));
    return part;
}

/* Gives every part of a rank's workspace its place; returns how much that is, and writes where that
 * of the inner plan begins. */
static int64_t lay_out(const struct ra_plan *plan, int rank, struct exchange *own, char *start,
                       char **inner_start)
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    int U = ra_config_group(c), group = rank / U;
    struct ra_plan inner = ra_exchange_part(plan, rank);
    struct ra_head_share share = share_of(plan, rank % U);
    bool backward = !c->forward_only;
    ra_arena_take(&arena, c->caller_workspace ? LINE : 0);
    for (const struct part *part = parts; part < parts + PARTS; part++) {
        int64_t rows = ra_plan_bound(&inner, part->side, group);
        bool needed = is_in(c, part, FORWARD_IN) || is_in(c, part, FORWARD_OUT) ||
                      (backward && (part->form != MASK || c->has_mask));
        own->arrays[part - parts] =
            ra_arena_take(&arena, needed ? part_bytes(c, part, rows, share) : 0);
    }
    int64_t numbers = backward * c->batch * ra_plan_bound(plan, RA_KEY_SIDE, rank) * c->key_heads;
    own->dk = ra_arena_take(&arena, numbers * c->dim * (int64_t)sizeof(float));
    own->dv = ra_arena_take(&arena, numbers * c->dim_value * (int64_t)sizeof(float));
    own->out = ra_arena_take(&arena, most_bytes(plan));
    own->in = ra_arena_take(&arena, most_bytes(plan));
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
    int64_t bytes = (int64_t)sizeof(struct exchange) + 4 * list_bytes(c);
    return (bytes + LINE - 1) / LINE * LINE;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct ra_plan inner = ra_exchange_part(plan, rank);
    int64_t workspace = plan->config.caller_workspace ? 0 : workspace_bytes_of(plan, rank);
    return own_bytes(&plan->config) + workspace +
           ra_plan_bytes_of(&inner, rank / ra_config_group(&plan->config));
}

static void use_workspace(struct ra_plan *plan, char *workspace)
{
    char *start;
    lay_out(plan, plan->link.rank, plan->own, workspace, &start);
    plan->inner->workspace = start;
    plan->inner->workspace_bytes = start ? ra_plan_workspace_bytes(plan->inner) : 0;
    plan->inner->backend->use_workspace(plan->inner, start);
}

static enum ra_status use_slices(struct ra_plan *plan, char *error)
{
    struct exchange *own = plan->own;
    struct ra_layout layouts[2];
    for (int side = 0; side < 2; side++)
        layouts[side] = group_layout(plan->layouts[side], ra_config_group(&plan->config),
                                     own->storage[1][side], &own->lists[1][side]);
    ra_plan_use_slices(plan->inner, &plan->slices, layouts);
    plan->inner->ring.call.slices = plan->ring.call.slices;
    return plan->inner->backend->use_slices(plan->inner, error);
}

/* ---- The calls. */

/* Sets the numbers of this rank's heads: of all heads if `from` has them. Returns them as an array
 * for the inner plan; empty if there are none. */
static struct ra_tensor heads_in(const struct ra_plan *plan, struct ra_tensor from, float *to)
{
    static const struct ra_tensor none = RA_NO_TENSOR;
    const struct ra_config *c = &plan->config;
    struct ra_head_share share = share_of(plan, plan->link.rank % ra_config_group(c));
    const struct part *part = &parts[0]; /* one number to a head, on the queries' side */
    if (!from.data)
        return none;
    for (int64_t i = 0; i < share.keys; i++) {
        struct ra_tensor heads = heads_at(c, part, from, share, i);
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
    struct ra_head_share share = share_of(plan, plan->link.rank % ra_config_group(c));
    for (int64_t h = 0; h < c->heads && to.data; h++)
        ((float *)to.data)[h * to.head] = rest;
    for (int64_t i = 0; i < share.keys && to.data; i++) {
        struct ra_tensor heads = heads_at(c, &parts[0], to, share, i);
        for (int64_t h = 0; h < share.per_key; h++)
            ((float *)heads.data)[h * heads.head] = from[i * share.per_key + h];
    }
}

/* The arrays of the inner plan's call; and dk and dv, which are added up at home, are 0. */
static void open_arrays(const struct ra_plan *plan, struct call *call, bool backward)
{
    const struct ra_config *c = &plan->config;
    const struct exchange *own = plan->own;
    struct ra_head_share share = share_of(plan, plan->link.rank % ra_config_group(c));
    call->inner = (struct ra_arrays)RA_ARRAYS_INIT;
    for (const struct part *part = parts; part < parts + PARTS; part++)
        if (backward ? is_in(c, part, BACKWARD_IN) || is_in(c, part, BACKWARD_OUT)
                     : is_in(c, part, FORWARD_IN) || is_in(c, part, FORWARD_OUT))
            *tensor_of(&call->inner, part) =
                packed(c, part, own->arrays[part - parts], plan->inner->rows[part->side], share);
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
           exchange_parts(plan, call, backward ? BACKWARD_IN : FORWARD_IN) &&
           (backward ? host->backward : host->forward)(inner, &call->inner, NULL) == RA_OK &&
           exchange_parts(plan, call, backward ? BACKWARD_OUT : FORWARD_OUT) &&
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

/* ---- The link of the ring of groups. */

static bool send(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes)
{
    const struct group_link *link = self;
    return link->all->send(link->all->self, message, hop, distance * link->stride, from, bytes);
}

static bool receive(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes)
{
    const struct group_link *link = self;
    return link->all->receive(link->all->self, message, hop, distance * link->stride, into, bytes);
}

static bool poll(void *self)
{
    const struct ra_link *all = ((const struct group_link *)self)->all;
    return all->poll(all->self);
}

static bool wait(void *self, enum ra_message message)
{
    const struct ra_link *all = ((const struct group_link *)self)->all;
    return all->wait(all->self, message);
}

static void fail(void *self, const char *reason)
{
    const struct ra_link *all = ((const struct group_link *)self)->all;
    all->fail(all->self, reason);
}

static const char *error_of(void *self)
{
    const struct ra_link *all = ((const struct group_link *)self)->all;
    return all->error(all->self);
}

static bool arrival(void *self, enum ra_message message, int *hop, double *start, double *end)
{
    const struct ra_link *all = ((const struct group_link *)self)->all;
    return all->arrival && all->arrival(all->self, message, hop, start, end);
}

/* ---- The life of a plan. */

/* The config of the inner plan of this rank. */
static struct ra_config inner_config(const struct ra_plan *plan)
{
    struct ra_config config = plan->config;
    int U = ra_config_group(&config);
    struct ra_head_share share = share_of(plan, plan->link.rank % U);
    config.heads = share.keys * share.per_key;
    config.key_heads = share.keys;
    config.head_map = RA_GROUPED; /* the order in which heads are exchanged */
    config.method = RA_RING;
    config.group = 0;
    config.ring_size = plan->link.size / U;
    config.caller_workspace = true; /* it is a part of this plan's */
    config.max_rows =
        U * ra_max(ra_plan_most_bound(plan, RA_QUERY_SIDE), ra_plan_most_bound(plan, RA_KEY_SIDE));
    return config;
}

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
    int U = ra_config_group(&plan->config);
    struct ra_plan part = ra_exchange_part(plan, rank);
    int used = snprintf(text, size,
                        "heads exchanged in groups of %d ranks: here %" PRId64 " of %" PRId64
                        " on %" PRId64 ", of %" PRId64 " query and %" PRId64 " key rows\n",
                        U, part.config.heads, plan->config.heads, part.config.key_heads,
                        ra_layout_rows(part.layouts[RA_QUERY_SIDE], rank / U),
                        ra_layout_rows(part.layouts[RA_KEY_SIDE], rank / U));
    return used + part.backend->describe(&part, rank / U, text + used, size - (size_t)used);
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    int U = ra_config_group(&plan->config), rank = plan->link.rank;
    int64_t bytes = own_bytes(&plan->config);
    struct exchange *own = calloc(1, (size_t)bytes);
    if (!own) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes", bytes);
        return RA_OUT_OF_MEMORY;
    }
    struct ra_layout layouts[2];
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < 2; i++)
            own->storage[i][side] = (char *)(own + 1) + (2 * i + side) * list_bytes(&plan->config);
        layouts[side] =
            group_layout(plan->planned[side], U, own->storage[0][side], &own->lists[0][side]);
    }
    plan->own = own;
    own->link = (struct group_link){&plan->link, U};
    struct ra_link link = {.rank = rank / U,
                           .size = plan->link.size / U,
                           .sharing = plan->link.sharing,
                           .self = &own->link};
    if (!plan->dry_run) {
        link.send = send;
        link.receive = receive;
        link.poll = poll;
        link.wait = wait;
        link.fail = fail;
        link.error = error_of;
        link.arrival = arrival;
    }
    struct ra_config config = inner_config(plan);
    enum ra_status status =
        ra_plan_build(&plan->inner, &config, layouts, &link, &ra_host, plan->dry_run, error);
    if (status != RA_OK) {
        free(own);
        return status;
    }
    plan->inner->ring.first = rank % U;
    plan->inner->ring.stride = U;
    if (plan->dry_run || plan->config.caller_workspace)
        return RA_OK;
    bytes = workspace_bytes_of(plan, rank);
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
                                       .takes_methods = true,
                                       .o_travels = true,
                                       .takes_optional = true,
                                       .negative_strides = true,
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
