/* ra_scale_cost: seconds of a rank's work at a hop, and of a message. See ra_scale_cost.h.
 *
 * Chapter 12. New here: the numbers of a machine, and the error that names the one that is missing.
 */
#include "ra_scale_cost.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_exchange.h"
#include "ra_groups.h"
#include "ra_math.h"
#include "ra_pairs.h"

/* Beyond these no machine is, and a product of such numbers with any work is a finite double. */
#define LEAST 1e-30
#define MOST 1e30

enum ra_status ra_cost_missing(const char *name, double value, const char *meaning, char *error)
{
    if (value == 0)
        return ra_error_set(error, "machine.%s is missing: give %s", name, meaning);
    if (!(value >= LEAST && value <= MOST))
        return ra_error_set(error, "machine.%s = %g: give %s, from %g to %g", name, value, meaning,
                            LEAST, MOST);
    return RA_OK;
}

/* Numbers for which 0 is a good value. */
static enum ra_status check_others(const struct ra_scale_machine *m, int ranks, char *error)
{
    const struct {
        const char *name;
        double value;
    } none[] = {{"memory", m->memory},
                {"memory_bandwidth", m->memory_bandwidth},
                {"latency", m->latency},
                {"host_latency", m->host_latency},
                {"overhead", m->overhead}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (none[i].value != 0 && !(none[i].value >= LEAST && none[i].value <= MOST))
            return ra_error_set(error, "machine.%s = %g: give 0, or %g to %g", none[i].name,
                                none[i].value, LEAST, MOST);
    if (m->tile_queries < 1 || m->tile_keys < 1)
        return ra_error_set(
            error, "machine.tile_queries = %" PRId64 ", tile_keys = %" PRId64 ": give at least 1",
            m->tile_queries, m->tile_keys);
    if (m->ranks_per_host < 0)
        return ra_error_set(error, "machine.ranks_per_host = %d: give at least 0",
                            m->ranks_per_host);
    if (m->slow_rank < -1 || m->slow_rank >= ranks)
        return ra_error_set(error, "machine.slow_rank = %d: give 0 to %d, or -1", m->slow_rank,
                            ranks - 1);
    if (m->slow_link < -1 || m->slow_link >= ranks)
        return ra_error_set(error, "machine.slow_link = %d: give 0 to %d, or -1", m->slow_link,
                            ranks - 1);
    enum ra_status status = ra_cost_missing("slow_rank_factor", m->slow_rank_factor,
                                            "1 for a rank that is as fast as others", error);
    return status == RA_OK ? ra_cost_missing("slow_link_factor", m->slow_link_factor,
                                             "1 for messages that are as fast as others", error)
                           : status;
}

/* Are all numbers there that this many ranks need? */
static enum ra_status check_machine(const struct ra_scale_machine *m, int ranks, bool forward_only,
                                    char *error)
{
    enum ra_status status = check_others(m, ranks, error);
    if (status == RA_OK)
        status = ra_cost_missing("forward_rate", m->forward_rate,
                                 "the multiply-adds a second of a rank", error);
    if (status == RA_OK && !forward_only)
        status = ra_cost_missing("backward_rate", m->backward_rate,
                                 "the multiply-adds a second of a rank", error);
    bool hosts = m->ranks_per_host > 0 && m->ranks_per_host < ranks;
    if (status == RA_OK && ranks > 1 && m->ranks_per_host != 1)
        status = ra_cost_missing("bandwidth", m->bandwidth,
                                 "the bytes a second between ranks of a host", error);
    if (status == RA_OK && hosts)
        status = ra_cost_missing("host_bandwidth", m->host_bandwidth,
                                 "the bytes a second of a rank between hosts", error);
    return status;
}

/* Makes the plan of the cost, whose config has been read. Also a plan of one rank is only looked
 * at, and takes no memory for arrays. */
static enum ra_status make_plan(struct ra_cost *cost, const struct ra_config *config,
                                const struct ra_scale_mask *mask, char *error)
{
    struct ra_link alone = {.rank = 0, .size = config->ring_size};
    enum ra_status status =
        ra_plan_build(&cost->plan, config, NULL, &alone, ra_exchange_backend(config), true, error);
    if (status != RA_OK || !mask)
        return status;
    status = ra_plan_set_slices(cost->plan, mask->slices, mask->count, mask->deal);
    if (status != RA_OK) {
        ra_error_set(error, "%s.%s", mask == config->expected ? "config.expected" : "mask",
                     ra_plan_error(cost->plan));
        ra_plan_release(cost->plan);
    }
    return status;
}

/* The same for a mask of slices. How many rows a deal gives to a rank is known when it is made. */
static enum ra_status make_plan_of(struct ra_cost *cost, struct ra_config *config,
                                   const struct ra_scale_mask *mask, char *error)
{
    config->max_slices = ra_max(mask->count, 1);
    config->max_rows = ra_max(config->queries, config->keys);
    enum ra_status status = make_plan(cost, config, mask, error);
    if (status != RA_OK)
        return status;
    config->max_rows = ra_max(ra_layout_most_rows(cost->plan->layouts[RA_QUERY_SIDE]),
                              ra_layout_most_rows(cost->plan->layouts[RA_KEY_SIDE]));
    ra_plan_release(cost->plan);
    return make_plan(cost, config, mask, error);
}

/* Finds what each member of a group computes with. */
static enum ra_status count_members(struct ra_cost *cost, char *error)
{
    const struct ra_plan *plan = cost->plan;
    bool exchanged = cost->group > 1;
    cost->attends = exchanged ? plan->inner : plan;
    cost->carries = cost->attends->ring.schedule.count > 1 && (exchanged || !plan->inner);
    cost->members = malloc((size_t)cost->group * sizeof *cost->members);
    if (!cost->members) {
        ra_error_set(error, "no memory for a group of %d ranks", cost->group);
        ra_plan_release(cost->plan);
        return RA_OUT_OF_MEMORY;
    }
    for (int member = 0; member < cost->group; member++) {
        struct ra_plan part = exchanged ? ra_groups_part(plan, member) : *plan;
        cost->members[member] = (struct ra_cost_member){part.config.heads, part.ring.key_bytes,
                                                        part.ring.gradient_bytes};
    }
    return RA_OK;
}

enum ra_status ra_cost_open(struct ra_cost *cost, const struct ra_config *config,
                            const struct ra_scale_mask *mask,
                            const struct ra_scale_machine *machine, char *error)
{
    if (!config || !machine)
        return ra_error_set(error, "%s is NULL", config ? "machine" : "config");
    if (machine->size != sizeof *machine)
        return ra_error_set(error, "machine.size = %zu: begin with RA_SCALE_MACHINE_INIT",
                            machine->size);
    struct ra_config c;
    enum ra_status status = ra_config_read(&c, config, error);
    if (status != RA_OK)
        return status;
    mask = mask ? mask : c.expected;
    if (c.bucket != 0)
        return ra_error_set(error, "config.bucket: give 0, as a rank has one stripe here");
    if (c.local_keys)
        return ra_error_set(error, "config.local_keys leaves no ring to scale");
    if (c.ring_size > RA_COST_MOST_RANKS)
        return ra_error_set(error, "config.ring_size = %d: give at most %d", c.ring_size,
                            RA_COST_MOST_RANKS);
    c.ring_size = c.ring_size > 0 ? c.ring_size : 1;
    c.caller_workspace = false; /* whose it is, it takes memory */
    status = check_machine(machine, c.ring_size, c.forward_only, error);
    if (status == RA_OK)
        status = ra_config_read_method(&c, 1, error);
    if (status != RA_OK)
        return status;

    *cost =
        (struct ra_cost){.machine = *machine, .ranks = c.ring_size, .group = ra_config_group(&c)};
    status = mask ? make_plan_of(cost, &c, mask, error) : make_plan(cost, &c, NULL, error);
    if (status == RA_OK)
        status = count_members(cost, error);
    if (status != RA_OK)
        return status;
    if (cost->machine.ranks_per_host == 0 || cost->machine.ranks_per_host > cost->ranks)
        cost->machine.ranks_per_host = cost->ranks;
    return RA_OK;
}

void ra_cost_close(struct ra_cost *cost)
{
    free(cost->members);
    ra_plan_release(cost->plan);
}

struct ra_cost_pairs ra_cost_count(const struct ra_cost *cost, int group, int origin)
{
    struct ra_shard_pair shards = ra_plan_shards(cost->attends, group, origin);
    struct ra_cost_pairs sum = {0, 0};
    struct ra_span_pair cut;
    struct ra_walk walk =
        ra_slices_walk(&cost->plan->slices, &shards, 0, ra_layout_rows(shards.queries, group), 0,
                       ra_layout_rows(shards.keys, origin));
    while (ra_walk_next(&walk, &cut)) {
        sum.visible += (double)ra_pairs_visible(cut.band, cut.rows, cut.visitors);
        sum.computed += ra_pairs_computed(cut.band, cut.rows, cut.visitors,
                                          cost->machine.tile_queries, cost->machine.tile_keys);
    }
    return sum;
}

double ra_cost_multiply_adds(const struct ra_cost *cost, int rank, double pairs, bool backward)
{
    const struct ra_config *c = &cost->plan->config;
    int64_t products = ra_dims_products(ra_config_dims(c), backward);
    return (double)(c->batch * ra_cost_member(cost, rank)->heads * products) * pairs;
}

double ra_cost_work(const struct ra_cost *cost, int rank, int origin, double computed,
                    bool backward)
{
    const struct ra_config *c = &cost->plan->config;
    const struct ra_scale_machine *m = &cost->machine;
    const struct ra_plan *attends = cost->attends;
    const struct ra_cost_member *member = ra_cost_member(cost, rank);
    if (computed == 0)
        return 0;
    double rate = backward ? m->backward_rate : m->forward_rate;
    double seconds = ra_cost_multiply_adds(cost, rank, computed, backward) / rate + m->overhead;

    /* The carry, or dq, is read and written at each hop. The rate includes the launch's own writes
     * of its share of gradients; what a ring adds is to read that share and the sum of the ranks
     * before, and to write their sum. */
    if (cost->carries && m->memory_bandwidth > 0) {
        int group = rank / cost->group;
        double queries = (double)ra_layout_rows(attends->layouts[RA_QUERY_SIDE], group);
        double keys = (double)attends->ring.rows[origin];
        int64_t width = backward ? c->dim : c->dim_value;
        double bytes = 2 * queries * (double)(c->batch * member->heads * width) * sizeof(float);
        if (backward)
            bytes += 3 * keys * (double)member->gradient_bytes;
        seconds += bytes / m->memory_bandwidth;
    }
    return rank == m->slow_rank ? seconds * m->slow_rank_factor : seconds;
}

bool ra_cost_leaves_host(const struct ra_cost *cost, int from, int to)
{
    return from / cost->machine.ranks_per_host != to / cost->machine.ranks_per_host;
}

double ra_cost_message(const struct ra_cost *cost, int from, int to, double bytes)
{
    const struct ra_scale_machine *m = &cost->machine;
    if (bytes == 0)
        return 0;
    double seconds = ra_cost_leaves_host(cost, from, to)
                         ? m->host_latency + bytes / m->host_bandwidth
                         : m->latency + bytes / m->bandwidth;
    return from == m->slow_link ? seconds * m->slow_link_factor : seconds;
}
