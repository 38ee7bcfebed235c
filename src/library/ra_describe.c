/* ra_describe: what a plan is going to do, hop by hop, before it does anything. See
 * ring_attention.h.
 *
 * Chapter 08. New here: the plan as a text.
 */
#include <inttypes.h>
#include <stdio.h>
#include "ra_config_check.h"
#include "ra_double.h"
#include "ra_error.h"
#include "ra_exchange_parts.h"
#include "ra_gather.h"
#include "ra_groups.h"
#include "ra_options.h"
#include "ra_count.h"
#include "ra_text.h"

/* The work of a hop: counts of ra_hop, which may be too large for it. */
struct work {
    __int128 multiply_adds, tiles_skipped;
};

static struct work find_hop(const struct ra_plan *plan, int rank, int step, bool backward,
                            struct ra_hop *hop);

/* The same where heads are exchanged: what is exchanged counts as sent in the first hop. */
static struct work find_exchanged(const struct ra_plan *plan, int rank, int step, bool backward,
                                  struct ra_hop *hop)
{
    struct ra_plan part = ra_groups_part(plan, rank);
    int64_t messages, bytes;
    int P = plan->link.size, U = ra_config_group(&plan->config);
    struct work work = find_hop(&part, ra_groups_rank(plan, rank), step, backward, hop);
    hop->distance *= U;
    hop->origin = (rank - hop->distance + P) % P;
    ra_exchange_count(plan, rank, backward, &messages, &bytes);
    hop->messages += step == 0 ? messages : 0;
    hop->bytes += step == 0 ? bytes : 0;
    return work;
}

/* What this rank does at this step; both have been checked. */
static struct work find_hop(const struct ra_plan *plan, int rank, int step, bool backward,
                            struct ra_hop *hop)
{
    if (plan->inner)
        return find_exchanged(plan, rank, step, backward, hop);
    const struct ra_ring *ring = &plan->ring;
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_ring_rows(ring, rank, step), heads = c->batch * c->heads;
    *hop = (struct ra_hop){.distance = ring->schedule.hop[step],
                           .origin = ra_ring_origin(ring, rank, step)};

    /* The messages: keys go on, if they do; their gradients go with them, or home, or stay
     * there. */
    bool onward = ra_ring_sends(ring, rank, step);
    bool stay = step == 0 && plan->backend->own_gradients_stay;
    bool gradients = backward && ((onward && !stay) || ra_ring_sends_home(ring, rank, step));
    hop->messages = onward + gradients;
    hop->bytes = rows * (onward * ring->key_bytes + gradients * ring->gradient_bytes);
    if (ra_plan_gathers(plan)) {
        /* Straight there, and their gradients straight home. */
        onward = ra_gather_sends(ring, rank, step);
        gradients = backward && ra_ring_receives(ring, rank, step);
        hop->messages = onward + gradients;
        hop->bytes =
            onward * ring->rows[rank] * ring->key_bytes + gradients * rows * ring->gradient_bytes;
    }

    if (ra_plan_doubles(plan) &&
        !ra_double_count(plan, rank, hop->distance, backward, &hop->messages, &hop->bytes))
        rows = 0;

    /* The work: two products of matrices forward, five backward. One head stands for all. */
    struct ra_count count = {0, 0};
    if (rows > 0)
        count = ra_count_fold(plan, rank, hop->origin);
    return (struct work){(__int128)heads * ra_dims_products(ra_config_dims(c), backward) *
                             count.pairs,
                         heads * count.skipped};
}

enum ra_status ra_plan_hop(struct ra_plan *plan, int rank, int step, bool backward,
                           struct ra_hop *hop)
{
    if (!plan)
        return RA_INVALID;
    int P = plan->link.size, hops = ra_plan_hops(plan);
    if (rank < 0 || rank >= P)
        return ra_error_set(plan->error, "rank = %d: give 0 to %d", rank, P - 1);
    if (!hop)
        return ra_error_set(plan->error, "hop is NULL: give the address of a struct ra_hop");
    if (step < 0 || step >= hops)
        return ra_error_set(plan->error, "step = %d: give 0 to %d", step, hops - 1);

    struct work work = find_hop(plan, rank, step, backward, hop);
    if (work.multiply_adds > INT64_MAX || work.tiles_skipped > INT64_MAX)
        return ra_error_set(
            plan->error,
            "rank %d, step %d: about %.2g multiply-adds and %.2g skipped tiles, and "
            "int64_t counts to 2^63 - 1; ra_plan_describe writes them in full",
            rank, step, (double)work.multiply_adds, (double)work.tiles_skipped);
    hop->multiply_adds = (int64_t)work.multiply_adds;
    hop->tiles_skipped = (int64_t)work.tiles_skipped;
    return RA_OK;
}

/* Shapes and rules. */
static void say_config(struct ra_text *page, const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    ra_text_add(page,
                "ring attention " RA_VERSION ": batch %" PRId64 ", queries %" PRId64
                ", keys %" PRId64 ", heads %" PRId64 " on %" PRId64 "%s, dim %" PRId64,
                c->batch, c->queries, c->keys, c->heads, c->key_heads,
                c->head_map == RA_INTERLEAVED ? " interleaved" : "", c->dim);
    if (c->dim_value != c->dim)
        ra_text_add(page, ", dim_value %" PRId64, c->dim_value);
    ra_text_add(page, ", %s\n", ra_option_types[c->type].word);
    ra_text_add(page, "scale %g, tiles %" PRId64 " x %" PRId64, c->scale, c->tile_queries,
                c->tile_keys);
    if (plan->listed)
        ra_text_add(page, ", %" PRId64 " slices", plan->slices.count);
    else
        ra_text_add(page, ", %s", c->causal ? "causal" : "not causal");
    if (!plan->listed && c->lookback < RA_BAND_FAR)
        ra_text_add(page, ", at most %" PRId64 " tokens back", c->lookback);
    if (c->softcap > 0)
        ra_text_add(page, ", soft cap %g", c->softcap);
    if (c->has_mask)
        ra_text_add(page, ", key mask");
    if (c->local_keys)
        ra_text_add(page, ", local keys only");
    if (c->forward_only)
        ra_text_add(page, ", forward only");
    if (plan->layouts[RA_QUERY_SIDE].kind == RA_DEALT) {
        ra_text_add(page, ", dealt per document\n");
        return;
    }
    ra_text_add(page, ", %s", ra_option_layouts[c->layout].word);
    struct ra_layout queries = plan->layouts[RA_QUERY_SIDE];
    int64_t rows = ra_layout_span(queries, 0, 0).count;
    if (c->layout == RA_STRIPED && queries.stripes > 1)
        ra_text_add(page, " in %" PRId64 " stripes a rank", queries.stripes);
    if (c->layout == RA_STRIPED && queries.stripes > 1 && rows < c->tile_queries)
        ra_text_add(page, " of %" PRId64 " rows at most: tiles are no larger, and slower", rows);
    ra_text_add(page, "\n");
}

/* Which rows of one side the rank has: the first ones and the last. */
static void say_rows(struct ra_text *page, const char *name, struct ra_layout layout, int rank)
{
    int64_t rows = ra_layout_rows(layout, rank);
    ra_text_add(page, "%" PRId64 " %s rows", rows, name);
    for (int64_t a = 0; a < rows; a++)
        if (a < 3 || a == rows - 1)
            ra_text_add(page, "%s%" PRId64,
                        a == 0                   ? ": "
                        : a == rows - 1 && a > 3 ? " ... "
                                                 : " ",
                        ra_layout_position(layout, rank, a));
        else
            a = rows - 2;
}

/* A number of up to 128 bits, at least 0, in a column of this width. */
static void say_count(struct ra_text *page, int width, __int128 count)
{
    char digits[40] = "", *first = digits + sizeof digits - 1;
    do
        *--first = (char)('0' + (int)(count % 10));
    while ((count /= 10) > 0);
    ra_text_add(page, " %*s", width, first);
}

/* A table with a line for each hop of one direction. */
static void say_hops(struct ra_text *page, const struct ra_plan *plan, int rank, bool backward)
{
    struct ra_hop all = {0};
    struct work all_work = {0, 0};
    ra_text_add(page, "%s\n  hop  keys of  multiply-adds  tiles skipped  messages  bytes sent\n",
                backward ? "backward" : "forward");
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        struct work work = find_hop(plan, rank, step, backward, &hop);
        ra_text_add(page, "%5d %8d", hop.distance, hop.origin);
        say_count(page, 14, work.multiply_adds);
        say_count(page, 14, work.tiles_skipped);
        ra_text_add(page, " %9" PRId64 " %11" PRId64 "\n", hop.messages, hop.bytes);
        all_work.multiply_adds += work.multiply_adds;
        all_work.tiles_skipped += work.tiles_skipped;
        all.messages += hop.messages;
        all.bytes += hop.bytes;
    }
    ra_text_add(page, "  all         ");
    say_count(page, 14, all_work.multiply_adds);
    say_count(page, 14, all_work.tiles_skipped);
    ra_text_add(page, " %9" PRId64 " %11" PRId64 "\n", all.messages, all.bytes);
}

int64_t ra_plan_describe(struct ra_plan *plan, int rank, char *text, size_t size)
{
    struct ra_text page = {text, text ? size : 0, 0};
    int P = ra_plan_ranks(plan);
    if (rank < 0 || rank >= P)
        return -1;
    say_config(&page, plan);
    ra_text_add(&page, "rank %d of %d: ", rank, P);
    say_rows(&page, "query", plan->layouts[RA_QUERY_SIDE], rank);
    ra_text_add(&page, "; ");
    say_rows(&page, "key", plan->layouts[RA_KEY_SIDE], rank);

    /* The most hops that there may be: gathered keys are one; where heads are exchanged, keys go
     * round a ring of one rank from each group. */
    bool is_gathered = plan->inner && ra_exchange_gathers(plan);
    int hops = ra_plan_hops(plan), all = is_gathered ? 1 : P / ra_config_group(&plan->config);
    ra_text_add(&page, "\n%d of %d hops", hops, all);
    if (hops < all && !plan->config.local_keys)
        ra_text_add(&page, ": at the others there is no work");
    ra_text_add(&page, "; %" PRId64 " bytes of memory in the plan", ra_plan_bytes_of(plan, rank));
    if (plan->config.caller_workspace)
        ra_text_add(&page, ", %" PRId64 " of the caller's workspace",
                    plan->backend->workspace_bytes(plan, rank));
    ra_text_add(&page, "\n");
    if (plan->choice)
        ra_text_add(&page, "%s", plan->choice);
    char lines[1024];
    if (plan->backend->describe && plan->backend->describe(plan, rank, lines, sizeof lines) > 0)
        ra_text_add(&page, "%s", lines);
    say_hops(&page, plan, rank, false);
    if (!plan->config.forward_only)
        say_hops(&page, plan, rank, true);
    return page.length;
}
