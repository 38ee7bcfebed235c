/* ra_cuda_spans: which spans of queries and keys one launch can take. See ra_cuda_spans.h.
 *
 * Chapter 11. New here: the bands of several pairs of spans as one band of all their rows, where
 * there is one. So a zigzag rank's own keys are as simple a launch as a contiguous rank's: its rows
 * are in the order of the sequence. Those of a rank with several stripes are not, until
 * ra_cuda_reorder.c has brought them into it. Then the edges of the band may have steps, which
 * have as many rows as there are stripes.
 */
#include "ra_cuda_spans.h"

int64_t ra_cuda_stripes(const struct ra_plan *plan)
{
    struct ra_layout layout = plan->layouts[RA_QUERY_SIDE];
    bool ordered = plan->config.causal && layout.kind == RA_STRIPED && plan->config.max_slices == 0;
    return ordered ? ra_layout_spans(layout) : 1;
}

/* As much of a band as lies among this many rows. lo is above hi if no query sees a key. Two bands
 * let the same of these rows see the same keys if that is the same. */
static struct ra_band within(struct ra_band band, int64_t queries, int64_t keys)
{
    band.lo = ra_max(band.lo, 1 - queries);
    band.hi = ra_min(band.hi, keys - 1);
    bool none = queries == 0 || keys == 0 || band.lo > band.hi;
    return none ? (struct ra_band){1, 0} : band;
}

/* Span s of the queries and span t of the keys of a step, which a rank has or not. */
static struct ra_span_pair pair_of(const struct ra_plan *plan, int rank, int step, int64_t s,
                                   int64_t t)
{
    struct ra_shard_pair shards =
        ra_plan_shards(plan, rank, ra_ring_origin(&plan->ring, rank, step));
    struct ra_span_pair pair = ra_layout_pair(&shards, s, t);

    /* One slice may be the mask of all rows. */
    if (plan->listed && plan->slices.count == 1)
        pair.band = ra_slice_cut(plan->slices.slice, ra_layout_span(shards.queries, rank, s),
                                 ra_layout_span(shards.keys, shards.origin, t))
                        .band;
    if (plan->config.batch == 0 || ra_ring_rows(&plan->ring, rank, step) == 0)
        pair.band = (struct ra_band){1, 0};
    return pair;
}

/* As much of its band as lies among its rows. */
static struct ra_band seen(const struct ra_span_pair *pair)
{
    return within(pair->band, pair->rows, pair->visitors);
}

/* The rows of a span in memory, from the first to behind the last, with those of other stripes
 * between: `row` lie before it, it has `count`. */
static struct ra_range in_memory(const struct ra_plan *plan, int64_t span, int64_t row,
                                 int64_t count)
{
    int64_t stripes = ra_cuda_stripes(plan), first = stripes > 1 ? span : row;
    return (struct ra_range){first, count > 0 ? first + (count - 1) * stripes + 1 : first};
}

struct ra_range ra_cuda_query_rows(const struct ra_plan *plan, int rank, int64_t s)
{
    struct ra_span_pair pair = pair_of(plan, rank, 0, s, 0);
    return in_memory(plan, s, pair.a, pair.rows);
}

/* Is the band of a block, counted from row 0, that of each of its pairs of spans? */
static bool is_one_band(const struct ra_plan *plan, int rank, int step,
                        const struct ra_cuda_block *block)
{
    for (int64_t s = block->query_spans.first; s < block->query_spans.end; s++)
        for (int64_t t = block->key_spans.first; t < block->key_spans.end; t++) {
            struct ra_span_pair pair = pair_of(plan, rank, step, s, t);
            struct ra_band own = seen(&pair);
            struct ra_band all =
                within(ra_band_from(block->band, pair.a, pair.b), pair.rows, pair.visitors);
            if (own.lo != all.lo || own.hi != all.hi)
                return false;
        }
    return true;
}

/* Finds the band of the rows that a block has, which lie side by side; until now it counts from row
 * 0. */
static void find_band(const struct ra_plan *plan, int rank, int step, struct ra_cuda_block *block)
{
    block->one_band = block->pairs > 0 && is_one_band(plan, rank, step, block);

    /* A limit that nobody meets is none. */
    struct ra_band *band = &block->band;
    *band = ra_band_from(*band, block->queries.first, block->keys.first);
    if (band->lo <= 1 - (block->queries.end - block->queries.first))
        band->lo = -RA_BAND_FAR;
    if (band->hi >= block->keys.end - block->keys.first - 1)
        band->hi = RA_BAND_FAR;
}

/* Is the band of a block, for rows in the order of the sequence, that of each pair of stripes? Of f
 * stripes, row i of stripe s is row i f + s. So by a band without steps it sees row j of stripe t
 * when
 *
 *     ceil((lo + s - t) / f) <= j - i <= floor((hi + s - t) / f)
 *
 * and by an edge with steps of f rows when the same holds without s. */
static bool is_band_of_all(const struct ra_plan *plan, int rank, int step,
                           const struct ra_cuda_block *block)
{
    /* What stripes see of each other depends on how far apart they are. */
    int64_t f = ra_cuda_stripes(plan);
    for (int64_t apart = 1 - f; apart < f; apart++) {
        int64_t s = ra_max(apart, 0), t = s - apart;
        struct ra_band own = pair_of(plan, rank, step, s, t).band;
        int64_t lo = block->band.lo + (block->band_step.lo > 0 ? 0 : s) - t;
        int64_t hi = block->band.hi + (block->band_step.hi > 0 ? 0 : s) - t;
        if (own.hi != ra_floor_division(hi, f) ||
            (own.lo > -RA_BAND_FAR && own.lo != ra_ceiling_division(lo, f)))
            return false;
    }
    return true;
}

/* Can the kernels that will be launched take a band with steps? */
static bool supports_steps(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    return c->type == RA_FLOAT32 ||
           (ra_cuda_of(plan)->capability / 10 == 9 && ra_cuda_in_eights(c));
}

/* Does some row of a stripe see a key of a step? */
static bool sees_any(const struct ra_plan *plan, int rank, int step, int64_t s)
{
    for (int64_t t = 0; t < ra_cuda_stripes(plan); t++) {
        struct ra_span_pair pair = pair_of(plan, rank, step, s, t);
        if (!ra_band_is_empty(pair.band, pair.rows, pair.visitors))
            return true;
    }
    return false;
}

/* All rows of a rank and of a step, in the order of the sequence. By what stripe 0 sees of stripe
 * 0, either edge of their band can only be one of two: with steps or without. One launch is counted
 * for all stripes, so each must see something. */
static struct ra_cuda_block block_in_order(const struct ra_plan *plan, int rank, int step)
{
    int origin = ra_ring_origin(&plan->ring, rank, step);
    int64_t f = ra_cuda_stripes(plan);
    struct ra_cuda_block block = {.stride = 1};
    struct ra_band own = pair_of(plan, rank, step, 0, 0).band;
    int64_t seeing = 0;
    for (int64_t s = 0; s < f; s++)
        seeing += sees_any(plan, rank, step, s);
    if (seeing == 0)
        return block;
    block.query_spans = block.key_spans = (struct ra_range){0, f};
    block.queries.end = ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank);
    block.keys.end = ra_layout_rows(plan->layouts[RA_KEY_SIDE], origin);
    block.pairs = f * f;
    for (int steps = 0; steps < 4 && !block.one_band && seeing == f && supports_steps(plan);
         steps++) {
        block.band_step.lo = steps & 1 ? (int)f : 0;
        block.band_step.hi = steps & 2 ? (int)f : 0;
        block.band.lo = own.lo > -RA_BAND_FAR ? own.lo * f : -RA_BAND_FAR;
        block.band.hi = own.hi * f + (steps & 2 ? f - 1 : 0);
        block.one_band = is_band_of_all(plan, rank, step, &block);
    }
    return block;
}

struct ra_cuda_block ra_cuda_block_of(const struct ra_plan *plan, int rank, int step,
                                      struct ra_range query_spans, struct ra_range key_spans)
{
    int64_t stripes = ra_cuda_stripes(plan);
    struct ra_cuda_block block = {.stride = 1, .band = {RA_BAND_FAR, -RA_BAND_FAR}};
    if (stripes > 1 && query_spans.end - query_spans.first == stripes &&
        key_spans.end - key_spans.first == stripes)
        return block_in_order(plan, rank, step);
    for (int64_t s = query_spans.first; s < query_spans.end; s++)
        for (int64_t t = key_spans.first; t < key_spans.end; t++) {
            struct ra_span_pair pair = pair_of(plan, rank, step, s, t);
            struct ra_band own = seen(&pair);
            if (own.lo > own.hi)
                continue;

            /* The block grows to what has this pair, too, its band to what lets all see what they
             * see. */
            bool first = block.pairs++ == 0;
            struct ra_range a = in_memory(plan, s, pair.a, pair.rows);
            struct ra_range b = in_memory(plan, t, pair.b, pair.visitors);
            struct ra_range *grow[] = {&block.query_spans, &block.key_spans, &block.queries,
                                       &block.keys};
            struct ra_range by[] = {{s, s + 1}, {t, t + 1}, a, b};
            for (int i = 0; i < 4; i++) {
                grow[i]->first = first ? by[i].first : ra_min(grow[i]->first, by[i].first);
                grow[i]->end = ra_max(grow[i]->end, by[i].end);
            }
            own = ra_band_from(own, -a.first, -b.first);
            block.band.lo = ra_min(block.band.lo, own.lo);
            block.band.hi = ra_max(block.band.hi, own.hi);
        }
    if (stripes == 1) {
        find_band(plan, rank, step, &block);
    } else if (query_spans.end - query_spans.first == 1 && key_spans.end - key_spans.first == 1) {
        /* Two stripes. */
        block.stride = stripes;
        block.one_band = block.pairs > 0;
        block.band = pair_of(plan, rank, step, query_spans.first, key_spans.first).band;
    }
    return block;
}
