/* ra_cuda_steps: which launches each step of a plan takes. See ra_cuda_steps.h.
 *
 * Chapter 11. New here: a list, made once, that every call replays. One launch for all spans of a
 * step, if one band holds for all pairs; otherwise one for each pair of spans that see each other,
 * with the carry between the launches of one span. As there may be very many such pairs, the list
 * has the spans of queries; whoever launches takes them pair by pair.
 */
#include "ra_cuda_steps.h"

static struct ra_range spans_of(const struct ra_plan *plan, enum ra_side side)
{
    return (struct ra_range){0, ra_layout_spans(plan->layouts[side])};
}

static struct ra_cuda_block block_of_all(const struct ra_plan *plan, int rank, int step)
{
    return ra_cuda_block_of(plan, rank, step, spans_of(plan, RA_QUERY_SIDE),
                            spans_of(plan, RA_KEY_SIDE));
}

/* Span s of the queries, and all keys of a step that it sees. */
static struct ra_cuda_block block_of_span(const struct ra_plan *plan, int rank, int step, int64_t s)
{
    return ra_cuda_block_of(plan, rank, step, (struct ra_range){s, s + 1},
                            spans_of(plan, RA_KEY_SIDE));
}

int64_t ra_cuda_steps_bytes(const struct ra_plan *plan)
{
    int64_t spans = spans_of(plan, RA_QUERY_SIDE).end;
    return (plan->ring.schedule.count + 1) *
           (int64_t)(sizeof(struct ra_cuda_step) + spans * sizeof(struct ra_cuda_launch));
}

/* Span s: what it sees at each step, and what it needs if it sees nothing at any. */
static void find_launches(const struct ra_plan *plan, struct ra_cuda_step *steps, int64_t s)
{
    int count = plan->ring.schedule.count, rank = plan->link.rank;
    struct ra_cuda_launch *last = NULL;
    for (int step = 0; step < count; step++) {
        struct ra_cuda_launch *launch = &steps[step].launches[s];
        *launch =
            (struct ra_cuda_launch){.block = block_of_span(plan, rank, step, s), .first = !last};
        last = launch->block.pairs > 0 ? launch : last;
    }
    struct ra_range rows = ra_cuda_query_rows(plan, rank, s);
    if (last)
        last->last = true;
    else if (rows.first < rows.end)
        steps[count].launches[steps[count].count++] =
            (struct ra_cuda_launch){.block = {.queries = rows,
                                              .stride = ra_cuda_stripes(plan),
                                              .band = {1, 0},
                                              .one_band = true},
                                    .first = true,
                                    .last = true};
}

/* Can these spans of queries share a launch of the forward? It reads a carry for all of its rows,
 * or for none, and writes one for all of them, or o. */
static bool are_alike(const struct ra_cuda_launch *launches, struct ra_range spans)
{
    for (int64_t s = spans.first + 1; s < spans.end; s++)
        if (launches[s].first != launches[s - 1].first || launches[s].last != launches[s - 1].last)
            return false;
    return true;
}

void ra_cuda_steps_find(const struct ra_plan *plan, struct ra_cuda_step *steps)
{
    int count = plan->ring.schedule.count;
    int64_t spans = spans_of(plan, RA_QUERY_SIDE).end;
    struct ra_cuda_launch *launches = (struct ra_cuda_launch *)(steps + count + 1);
    for (int step = 0; step <= count; step++)
        steps[step] = (struct ra_cuda_step){.launches = launches + step * spans};
    for (int64_t s = 0; s < spans; s++)
        find_launches(plan, steps, s);

    /* What can be one launch is, and what sees nothing is none. */
    for (struct ra_cuda_step *step = steps; step < steps + count; step++) {
        step->all = block_of_all(plan, plan->link.rank, (int)(step - steps));
        struct ra_range seeing = step->all.query_spans;
        if (step->all.one_band && are_alike(step->launches, seeing)) {
            step->launches[0] = step->launches[seeing.first];
            step->launches[0].block = step->all;
            step->count = 1;
            continue;
        }
        for (int64_t s = 0; s < spans; s++)
            if (step->launches[s].block.pairs > 0)
                step->launches[step->count++] = step->launches[s];
    }
}

/* How many launches a forward of a block takes, with this many keys in one. */
static int64_t launches_of(const struct ra_cuda_block *block, int64_t most)
{
    return block->one_band ? ra_ceiling_division(ra_cuda_rows_of(block, block->keys), most)
                           : block->pairs;
}

struct ra_cuda_needs ra_cuda_needs_of(const struct ra_plan *plan, int rank)
{
    const struct ra_config *c = &plan->config;
    bool deterministic = c->deterministic && !c->forward_only && c->type != RA_FLOAT32;
    struct ra_kernel kernel = ra_cuda_kernel(plan);
    int64_t most = ra_kernel_most_keys(c->type);
    struct ra_cuda_needs needs = {
        .carry = c->max_slices > 0,
        .semaphores = c->type != RA_FLOAT32 /* the forward draws its tiles with one */};

    /* Any mask may come. */
    if (c->max_slices > 0) {
        kernel.queries = ra_plan_bound(plan, RA_QUERY_SIDE, rank);
        kernel.keys = ra_plan_most_bound(plan, RA_KEY_SIDE);
        needs.semaphores =
            ra_max(needs.semaphores, deterministic ? ra_kernel_semaphores(&kernel) : 0);
        return needs;
    }
    for (int step = 0; step < plan->ring.schedule.count; step++) {
        struct ra_cuda_block all = block_of_all(plan, rank, step);
        needs.carry = needs.carry || (all.one_band && launches_of(&all, most) > 1);
        kernel.queries = ra_cuda_rows_of(&all, all.queries);
        kernel.keys = ra_cuda_rows_of(&all, all.keys);
        needs.semaphores =
            ra_max(needs.semaphores, deterministic ? ra_kernel_semaphores(&kernel) : 0);
    }
    for (int64_t s = 0; s < spans_of(plan, RA_QUERY_SIDE).end; s++) {
        int64_t launches = 0;
        for (int step = 0; step < plan->ring.schedule.count; step++) {
            struct ra_cuda_block block = block_of_span(plan, rank, step, s);
            launches += launches_of(&block, most);
        }
        needs.carry = needs.carry || launches > 1;
    }
    return needs;
}

/* Adding up this many launches in float32 costs less than 10^-5: of more, what rounding loses is
 * kept. Of 16-bit inputs it never matters. */
enum { PLAIN_SUMS = 64 };

bool ra_cuda_loses(const struct ra_plan *plan, int64_t rows)
{
    enum ra_type type = plan->config.type;
    return type == RA_FLOAT32 && rows / PLAIN_SUMS > ra_kernel_most_keys(type);
}

int64_t ra_cuda_deferred_keys(const struct ra_plan *plan)
{
    /* A key's gradients, 8 bytes for each of its numbers, travel in the time in which a Hopper
     * works on it for some 1,200 queries, of all heads that read it; 2,048 are safe. A tile has 128
     * keys; they come in whole waves. The first keys are those that most queries see under a causal
     * mask. At least a third stays in the first step, beside which keys travel. */
    enum { QUERIES = 2048, TILE = 128 };
    const struct ra_config *c = &plan->config;
    int64_t tiles = ra_ceiling_division(plan->rows[RA_KEY_SIDE], TILE);
    int64_t queries = ra_max(1, plan->rows[RA_QUERY_SIDE] * (c->heads / c->key_heads));
    int64_t heads = ra_max(1, c->batch * c->key_heads);
    int64_t wave = ra_max(1, ra_cuda_of(plan)->processors / heads);
    int64_t rest = ra_round_up(ra_ceiling_division(tiles * QUERIES, queries), wave);
    bool home = ra_cuda_expects_message(plan, plan->link.rank, RA_GRADIENTS_RETURN, 0) &&
                !ra_cuda_loses(plan, queries);
    return home && 3 * rest <= 2 * tiles ? rest * TILE : 0;
}
