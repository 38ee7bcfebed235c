/* ra_plan: layout, schedule and memory of a plan, and the questions that it answers. See
 * ring_attention.h and ra_plan.h.
 *
 * Chapter 08. New here: all memory is taken at once, when the plan is made, and its size is known
 * before.
 */
#include "ra_plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

int64_t ra_plan_key_bytes(const struct ra_plan *plan, int64_t rows)
{
    const struct ra_config *c = &plan->config;
    int64_t numbers = 2 * c->batch * rows * c->key_heads * c->dim;
    return numbers * ra_type_bytes(c->type) + (c->has_mask ? c->batch * rows : 0);
}

int ra_plan_origin(const struct ra_plan *plan, int rank, int step)
{
    int P = plan->link.size;
    return (rank - plan->schedule.hop[step] + P) % P;
}

int64_t ra_plan_visitors(const struct ra_plan *plan, int rank, int step)
{
    int origin = ra_plan_origin(plan, rank, step);
    bool here = plan->schedule.hop[step] <= plan->schedule.last[origin];
    return here ? ra_layout_rows(plan->layouts[RA_KEY_SIDE], origin) : 0;
}

bool ra_plan_travel_on(const struct ra_plan *plan, int rank, int step)
{
    return plan->schedule.hop[step] < plan->schedule.last[ra_plan_origin(plan, rank, step)];
}

struct ra_fold ra_plan_fold(const struct ra_plan *plan, bool backward)
{
    return (struct ra_fold){.D = plan->config.dim,
                            .score = plan->score,
                            .backward = backward,
                            .tile_queries = plan->config.tile_queries,
                            .tile_keys = plan->config.tile_keys,
                            .workspace = plan->tile};
}

/* Takes the next block of `bytes` bytes. Without memory, `start` = NULL, it only counts. */
static void *take(char *start, int64_t *used, int64_t bytes)
{
    void *block = start ? start + *used : NULL;
    *used += (bytes + LINE - 1) / LINE * LINE;
    return block;
}

/* Gives every part of the plan its place in memory; returns how much that is. */
static int64_t lay_out(struct ra_plan *plan, char *start)
{
    const struct ra_config *c = &plan->config;
    int64_t used = 0, n = ra_plan_rows(plan, RA_QUERY_SIDE), m = ra_plan_rows(plan, RA_KEY_SIDE);
    int64_t most = ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    int64_t query_bytes = c->batch * n * c->heads * c->dim * (int64_t)sizeof(float);
    int64_t row_bytes = c->batch * n * c->heads * (int64_t)sizeof(float);
    int64_t key_numbers = c->batch * c->key_heads * c->dim;
    int hops = plan->schedule.count;
    bool narrow = c->type != RA_FLOAT32, backward = !c->forward_only;

    plan->q = narrow ? take(start, &used, query_bytes) : NULL;
    plan->o = narrow ? take(start, &used, query_bytes) : NULL;
    plan->d_out = narrow && backward ? take(start, &used, query_bytes) : NULL;
    plan->max = take(start, &used, row_bytes);
    plan->sum = take(start, &used, row_bytes);
    plan->lse = take(start, &used, row_bytes);
    plan->delta = backward ? take(start, &used, row_bytes) : NULL;

    /* Own keys need a message only if they travel, visitors only if there are any. */
    int64_t own_bytes = plan->schedule.last[plan->link.rank] > 0 ? ra_plan_key_bytes(plan, m) : 0;
    plan->keys[0] = take(start, &used, own_bytes);
    plan->mask = take(start, &used, c->has_mask ? c->batch * m : 0);
    for (int i = 1; i < 3; i++)
        plan->keys[i] = take(start, &used, i < hops ? ra_plan_key_bytes(plan, most) : 0);
    int64_t gradient_bytes = 2 * key_numbers * (int64_t)sizeof(float);
    for (int i = 0; i < 4; i++) {
        int64_t rows = i == 0 ? m : most;
        bool needed = backward && (i < 3 ? i < hops : hops > 1);
        plan->gradients[i] = take(start, &used, needed ? rows * gradient_bytes : 0);
    }
    plan->visitors = take(start, &used, narrow ? (hops > 1 ? most : m) * gradient_bytes : 0);
    int64_t tile = ra_tile_workspace(c->tile_queries, c->tile_keys, c->dim);
    plan->tile = take(start, &used, tile * (int64_t)sizeof(float));
    return used;
}

/* Layouts and schedule, with its storage. */
static void arrange(struct ra_plan *plan, int *storage)
{
    const struct ra_config *c = &plan->config;
    int P = plan->link.size;
    int64_t stripes = ra_layout_stripes(P, c->queries, c->bucket);
    plan->layouts[RA_QUERY_SIDE] = (struct ra_layout){c->layout, P, c->queries, stripes};
    plan->layouts[RA_KEY_SIDE] = (struct ra_layout){c->layout, P, c->keys, stripes};
    for (int side = 0; side < 2; side++)
        plan->rows[side] = ra_layout_rows(plan->layouts[side], plan->link.rank);
    if (c->causal && !c->local_keys)
        plan->schedule = ra_schedule_causal(plan->layouts[RA_QUERY_SIDE],
                                            plan->layouts[RA_KEY_SIDE], c->lookback, storage);
    else
        plan->schedule = ra_schedule_round(P, c->local_keys ? 1 : P, storage);
}

enum ra_status ra_plan_build(struct ra_plan **plan, const struct ra_config *config,
                             struct ra_link link, bool look_only, char *error)
{
    /* First the plan itself and its schedule, which tells how much the rest needs. */
    int64_t first = 0;
    take(NULL, &first, sizeof **plan);
    int64_t storage = first, work = 0;
    take(NULL, &first, ra_schedule_storage(link.size) * (int64_t)sizeof(int));
    struct ra_plan *made = aligned_alloc(LINE, (size_t)first);
    if (made) {
        *made = (struct ra_plan){.config = *config, .link = link, .look_only = look_only};
        made->score = (struct ra_score){(float)config->scale, (float)config->softcap};
        arrange(made, (int *)(void *)((char *)made + storage));
        work = lay_out(made, NULL);
        made->fixed_bytes = first + link.bytes;
        if (!look_only)
            made->memory = aligned_alloc(LINE, (size_t)work);
    }
    if (made && (look_only || made->memory)) {
        lay_out(made, made->memory);
        *plan = made;
        return RA_OK;
    }
    ra_refuse(error, "no memory: the plan needs %" PRId64 " bytes", first + work);
    free(made);
    return RA_OUT_OF_MEMORY;
}

enum ra_status ra_plan_report(enum ra_status status, const char *text, char *error)
{
    if (error && status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    return status;
}

enum ra_status ra_plan_make(struct ra_plan **plan, const struct ra_config *config, char *error,
                            ra_plan_builder *build)
{
    char text[RA_ERROR_SIZE];
    struct ra_config checked = RA_CONFIG_INIT;
    if (!plan)
        return ra_plan_report(ra_refuse(text, "plan is NULL: give the address of a pointer"), text,
                              error);
    *plan = NULL;
    enum ra_status status = ra_config_read(&checked, config, text);
    struct ra_link alone = {.rank = 0, .size = checked.ring_size > 0 ? checked.ring_size : 1};
    if (status == RA_OK && alone.size > RA_PLAN_MOST_RANKS)
        status = ra_refuse(text, "config.ring_size = %d: a plan to look at has at most %d ranks",
                           alone.size, RA_PLAN_MOST_RANKS);
    if (status == RA_OK)
        status = build(plan, &checked, alone, alone.size > 1, text);
    return ra_plan_report(status, text, error);
}

enum ra_status ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                              char error[RA_ERROR_SIZE])
{
    return ra_plan_make(plan, config, error, ra_plan_build);
}

enum ra_status ra_plan_read(struct ra_plan **plan, struct ra_config *checked,
                            const struct ra_config *given, const struct ra_link *link, char *text)
{
    enum ra_status status = ra_config_read(checked, given, text);
    if (status == RA_OK && checked->ring_size > 0 && checked->ring_size != link->size)
        status = ra_refuse(text, "config.ring_size = %d: the link has %d ranks", checked->ring_size,
                           link->size);
    if (!plan)
        status = ra_refuse(text, "plan is NULL: give the address of a pointer");
    else
        *plan = NULL;
    return status;
}

enum ra_status ra_link_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                   struct ra_link link, char error[RA_ERROR_SIZE])
{
    char text[RA_ERROR_SIZE];
    struct ra_config checked = RA_CONFIG_INIT;
    enum ra_status status = ra_plan_read(plan, &checked, config, &link, text);
    if (status == RA_OK)
        status = ra_plan_build(plan, &checked, link, false, text);
    if (status != RA_OK && link.close)
        link.close(link.self);
    return ra_plan_report(status, text, error);
}

void ra_plan_destroy(struct ra_plan *plan)
{
    /* Without its memory a plan is small. With it, and a message that never ended, freeing it
     * would let the message overwrite whatever comes to lie there. */
    if (!plan)
        return;
    bool unused = !plan->device || plan->device->leave(plan);
    if (plan->link.close && !plan->link.close(plan->link.self))
        unused = false;
    if (plan->device)
        plan->device->free(plan, unused);
    else if (unused)
        free(plan->memory);
    free(plan);
}

const char *ra_plan_error(const struct ra_plan *plan)
{
    return plan ? plan->error : "plan is NULL";
}

int ra_plan_rank(const struct ra_plan *plan)
{
    return plan->link.rank;
}

int ra_plan_ranks(const struct ra_plan *plan)
{
    return plan->link.size;
}

struct ra_layout ra_plan_layout(const struct ra_plan *plan, enum ra_side side)
{
    return plan->layouts[side == RA_KEY_SIDE];
}

int64_t ra_plan_rows(const struct ra_plan *plan, enum ra_side side)
{
    return plan->rows[side == RA_KEY_SIDE];
}

int64_t ra_plan_position(const struct ra_plan *plan, enum ra_side side, int64_t row)
{
    if (row < 0 || row >= ra_plan_rows(plan, side))
        return -1;
    return ra_layout_position(ra_plan_layout(plan, side), plan->link.rank, row);
}

void ra_plan_positions(const struct ra_plan *plan, enum ra_side side, int64_t *positions)
{
    struct ra_layout layout = ra_plan_layout(plan, side);
    for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
        struct ra_span span = ra_layout_span(layout, plan->link.rank, s);
        for (int64_t a = 0; a < span.count; a++)
            *positions++ = span.first + a * span.stride;
    }
}

int64_t ra_plan_bytes_of(const struct ra_plan *plan, int rank)
{
    /* Everything is as large on all ranks, but for what depends on a rank's rows. */
    struct ra_plan other = *plan;
    other.link.rank = rank;
    for (int side = 0; side < 2; side++)
        other.rows[side] = ra_layout_rows(other.layouts[side], rank);
    if (plan->device)
        return plan->fixed_bytes + plan->device->bytes(plan, rank);
    return plan->fixed_bytes + lay_out(&other, NULL);
}

int64_t ra_plan_bytes(const struct ra_plan *plan)
{
    return ra_plan_bytes_of(plan, plan->link.rank);
}

int ra_plan_hops(const struct ra_plan *plan)
{
    return plan->schedule.count;
}

enum ra_status ra_plan_check_rows(const struct ra_plan *plan, enum ra_side side, int64_t outer,
                                  int64_t row_bytes, const void *whole, bool needs_whole,
                                  const void *local, char *error)
{
    if (outer < 0)
        return ra_refuse(error, "outer = %" PRId64 ": give at least 0", outer);
    if (row_bytes < 1)
        return ra_refuse(error, "row_bytes = %" PRId64 ": give at least 1", row_bytes);
    struct ra_layout layout = ra_plan_layout(plan, side);
    double bytes = (double)outer * (double)layout.length * (double)row_bytes;
    if (bytes > 0x1p60)
        return ra_refuse(error, "outer = %" PRId64 ", row_bytes = %" PRId64 ": %g bytes in all",
                         outer, row_bytes, bytes);
    if (!whole && needs_whole && bytes > 0)
        return ra_refuse(error, "whole is NULL");
    if (!local && bytes > 0 && plan->rows[side == RA_KEY_SIDE] > 0)
        return ra_refuse(error, "local is NULL");
    return RA_OK;
}

enum ra_status ra_shard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                        const void *whole, void *local)
{
    if (!plan)
        return RA_INVALID;
    enum ra_status status =
        ra_plan_check_rows(plan, side, outer, row_bytes, whole, true, local, plan->error);
    if (status != RA_OK)
        return status;
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t rows = plan->rows[side == RA_KEY_SIDE];
    for (int64_t i = 0; i < outer; i++)
        ra_layout_shard(layout, plan->link.rank, row_bytes,
                        (const char *)whole + i * layout.length * row_bytes,
                        (char *)local + i * rows * row_bytes);
    return RA_OK;
}

enum ra_status ra_unshard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                          const void *local, void *whole)
{
    if (!plan)
        return RA_INVALID;
    enum ra_status status =
        ra_plan_check_rows(plan, side, outer, row_bytes, whole, true, local, plan->error);
    if (status != RA_OK)
        return status;
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t rows = plan->rows[side == RA_KEY_SIDE];
    for (int64_t i = 0; i < outer; i++)
        ra_layout_unshard(layout, plan->link.rank, row_bytes,
                          (const char *)local + i * rows * row_bytes,
                          (char *)whole + i * layout.length * row_bytes);
    return RA_OK;
}
