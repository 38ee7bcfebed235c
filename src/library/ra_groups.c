/* ra_groups: the groups of ranks that exchange heads. See ra_groups.h.
 *
 * Chapter 12. New here: a ring whose ranks are every U-th of another, and whose rows are those of
 * whole groups.
 */
#include "ra_groups.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ra_config_check.h"
#include "ra_exchange_parts.h"
#include "ra_math.h"
#include "ra_message.h"

/* ---- The rows of groups. */

/* Writes the rows of all groups as a list: those of one group are in the order of the sequence. */
static void list_groups(struct ra_layout layout, int U, void *storage, struct ra_layout_list *list)
{
    int R = layout.ranks / U;
    ra_deal_begin(list, R, layout.kind == RA_DEALT ? layout.list->count : 2 * R, storage);
    for (int64_t i = 0, end; i < layout.length; i = end) {
        int group = ra_layout_run(layout, i, &end) / U;
        ra_deal_add(list, group, end - i);
    }
    ra_deal_end(list, R);
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
    return ra_deal_list_bytes((int)P, runs);
}

int64_t ra_groups_storage(const struct ra_config *config)
{
    return 4 * list_bytes(config);
}

/* Gathered keys, which every rank has: in the order of the sequence, or stripe by stripe. */
static struct ra_layout keys_of_all(struct ra_layout layout)
{
    bool striped = layout.kind == RA_STRIPED;
    return (struct ra_layout){striped ? RA_STRIPED : RA_CONTIGUOUS, 1, layout.length,
                              striped ? layout.ranks * layout.stripes : 1, NULL};
}

/* The rows of the inner plan: of groups; or every rank's queries, and all keys. */
static void inner_layouts(const struct ra_plan *plan, const struct ra_layout layouts[2],
                          struct ra_groups *groups, int i, struct ra_layout inner[2])
{
    int U = ra_config_group(&plan->config), P = plan->link.size;
    for (int side = 0; side < 2 && !ra_exchange_gathers(plan); side++)
        inner[side] =
            group_layout(layouts[side], U, groups->storage[i][side], &groups->lists[i][side]);
    if (!ra_exchange_gathers(plan))
        return;
    struct ra_layout queries = layouts[RA_QUERY_SIDE];
    struct ra_layout_list *list = &groups->lists[i][RA_QUERY_SIDE];
    inner[RA_KEY_SIDE] = keys_of_all(layouts[RA_KEY_SIDE]);
    inner[RA_QUERY_SIDE] = queries;
    if (queries.kind == RA_STRIPED)
        return;
    list_groups(queries, 1, groups->storage[i][RA_QUERY_SIDE], list);
    inner[RA_QUERY_SIDE] = (struct ra_layout){RA_DEALT, P, queries.length, 1, list};
}

int ra_groups_rank(const struct ra_plan *plan, int rank)
{
    return rank / ra_config_group(&plan->config);
}

/* ---- The inner plan. */

/* A causal mask is no single band between a rank's stripe and the stripes of all. As a list of one
 * slice it is the work of a single launch. */
static bool takes_own_mask(const struct ra_plan *plan)
{
    return ra_exchange_gathers(plan) && plan->config.causal && plan->config.layout == RA_STRIPED;
}

/* The config of the inner plan of this rank. */
static struct ra_config inner_config(const struct ra_plan *plan)
{
    struct ra_config config = plan->config;
    int U = ra_config_group(&config);
    config.method = RA_RING;
    config.group = 0;
    config.ring_size = plan->link.size / U;
    config.caller_workspace = true; /* it is a part of this plan's */
    if (ra_exchange_gathers(plan)) {
        config.local_keys = true;
        if (takes_own_mask(plan))
            config.max_slices = ra_max(config.max_slices, 1);
        return config;
    }
    struct ra_head_share share = ra_exchange_share_of(plan, plan->link.rank % U);
    config.heads = share.keys * share.per_key;
    config.key_heads = share.keys;
    config.head_map = RA_GROUPED; /* the order in which heads are exchanged */
    config.max_rows =
        U * ra_max(ra_plan_most_bound(plan, RA_QUERY_SIDE), ra_plan_most_bound(plan, RA_KEY_SIDE));
    return config;
}

enum ra_status ra_groups_build(struct ra_plan *plan, struct ra_groups *groups, char *storage,
                               const struct ra_backend *backend, char *error)
{
    int U = ra_config_group(&plan->config), rank = plan->link.rank;
    struct ra_layout layouts[2];
    for (int i = 0; i < 4; i++)
        groups->storage[i / 2][i % 2] = storage + i * list_bytes(&plan->config);
    inner_layouts(plan, plan->planned, groups, 0, layouts);
    groups->part = (struct ra_part){.all = &plan->link, .block = U, .across = true};
    struct ra_link link = ra_part_link(&groups->part);
    if (plan->dry_run || ra_exchange_gathers(plan))
        link = (struct ra_link){.rank = link.rank,
                                .size = link.size,
                                .sharing = link.sharing,
                                .device_memory = link.device_memory,
                                .self = groups};
    struct ra_config config = inner_config(plan);
    enum ra_status status =
        ra_plan_build(&plan->inner, &config, layouts, &link, backend, plan->dry_run, error);
    if (status != RA_OK)
        return status;
    plan->inner->ring.first = rank % U;
    plan->inner->ring.stride = U;
    if (ra_exchange_gathers(plan))
        plan->inner->ring.schedule_varies = false; /* nobody is asked */
    if (!takes_own_mask(plan))
        return RA_OK;
    ra_plan_use_slices(plan->inner, &plan->slices, layouts);
    status = backend->use_slices(plan->inner, error);
    if (status != RA_OK)
        ra_plan_release(plan->inner);
    return status;
}

enum ra_status ra_groups_use_slices(struct ra_plan *plan, struct ra_groups *groups, char *error)
{
    struct ra_layout layouts[2];
    inner_layouts(plan, plan->layouts, groups, 1, layouts);
    ra_plan_use_slices(plan->inner, &plan->slices, layouts);
    plan->inner->ring.call.slices = plan->ring.call.slices;
    return plan->inner->backend->use_slices(plan->inner, error);
}

void ra_groups_use_workspace(const struct ra_plan *plan, char *workspace)
{
    struct ra_plan *inner = plan->inner;
    inner->workspace = workspace;
    inner->workspace_bytes = workspace ? ra_plan_workspace_bytes(inner) : 0;
    inner->backend->use_workspace(inner, workspace);
}

struct ra_plan ra_groups_part(const struct ra_plan *plan, int rank)
{
    const struct ra_plan *inner = plan->inner;
    int U = ra_config_group(&plan->config);
    struct ra_head_share share = ra_exchange_share_of(plan, rank % U);
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
                           .own = inner->own,
                           .elsewhere = rank != plan->link.rank,
                           .fixed_bytes = inner->fixed_bytes};
    if (ra_exchange_gathers(plan)) {
        part.link.rank = rank;
        return part;
    }
    struct ra_config *c = &part.config;
    c->heads = share.keys * share.per_key;
    c->key_heads = share.keys;
    part.ring.key_bytes = ra_message_key_bytes(c->batch, c->key_heads, ra_config_dims(c),
                                               ra_type_bytes(c->type), c->has_mask);
    part.ring.gradient_bytes = ra_message_gradient_bytes(c->batch, c->key_heads, ra_config_dims(c));
    return part;
}

int ra_groups_describe(const struct ra_plan *plan, const struct ra_plan *part, int rank, char *text,
                       size_t size)
{
    int inner = ra_groups_rank(plan, rank), used;
    int64_t queries = ra_layout_rows(part->layouts[RA_QUERY_SIDE], inner);
    int64_t keys = ra_layout_rows(part->layouts[RA_KEY_SIDE], inner);
    if (ra_exchange_gathers(plan))
        used = snprintf(text, size,
                        "keys gathered: here %" PRId64 " query rows, and all %" PRId64 " of keys\n",
                        queries, keys);
    else
        used = snprintf(text, size,
                        "heads exchanged in groups of %d ranks: here %" PRId64 " of %" PRId64
                        " on %" PRId64 ", of %" PRId64 " query and %" PRId64 " key rows\n",
                        ra_exchange_group(plan), part->config.heads, plan->config.heads,
                        part->config.key_heads, queries, keys);
    return used + part->backend->describe(part, inner, text + used, size - (size_t)used);
}
