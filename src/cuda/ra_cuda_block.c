/* ra_cuda_block: which spans of queries and keys one launch can take. See ra_cuda.h.
 *
 * Chapter 11. New here: the bands of several pairs of spans as one band of all their rows, where there is one. So
 * a zigzag rank's own keys are as simple a launch as a contiguous rank's: its rows are in the order of the sequence.
 */
#include "ra_cuda.h"

/* How many rows of a rank lie before a span. */
static int64_t rows_before(struct ra_layout layout, int rank, int64_t span)
{
    int64_t rows = 0;
    for (int64_t s = 0; s < span; s++)
        rows += ra_layout_span(layout, rank, s).count;
    return rows;
}

/* The rows of a span that come behind these. */
static struct ra_range next_rows(struct ra_layout layout, int rank, int64_t span,
                                 struct ra_range before)
{
    return (struct ra_range){before.end, before.end + ra_layout_span(layout, rank, span).count};
}

/* As much of a band as lies among these rows; it counts from row 0 of both sides. lo is above hi if nobody
 * sees anything. Two bands let the same of these rows see the same keys if that is the same. */
static struct ra_band within(struct ra_band band, struct ra_range queries, struct ra_range keys)
{
    band.lo = ra_most(band.lo, keys.first - (queries.end - 1));
    band.hi = ra_least(band.hi, keys.end - 1 - queries.first);
    bool none = queries.first == queries.end || keys.first == keys.end || band.lo > band.hi;
    return none ? (struct ra_band){1, 0} : band;
}

/* The band between span s of the queries and span t of the keys of a step, as it is within these, their rows. */
static struct ra_band band_of(const struct ra_plan *plan, int rank, int step, int64_t s, int64_t t,
                              struct ra_range queries, struct ra_range keys)
{
    const struct ra_config *c = &plan->config;
    struct ra_band band = RA_ALL_KEYS;
    if (c->batch == 0 || ra_ring_rows(&plan->ring, rank, step) == 0)
        return (struct ra_band){1, 0};
    if (c->causal)
        band = ra_band_from(ra_layout_band(plan->layouts[RA_QUERY_SIDE], rank, s,
                                           plan->layouts[RA_KEY_SIDE],
                                           ra_ring_origin(&plan->ring, rank, step), t, c->lookback),
                            -queries.first, -keys.first);
    return within(band, queries, keys);
}

/* Is the band of a block, counted from row 0, that of each of its pairs of spans? */
static bool is_one_band(const struct ra_plan *plan, int rank, int step,
                        const struct ra_cuda_block *block)
{
    int origin = ra_ring_origin(&plan->ring, rank, step);
    struct ra_range a = {0, block->queries.first};
    for (int64_t s = block->query_spans.first; s < block->query_spans.end; s++) {
        a = next_rows(plan->layouts[RA_QUERY_SIDE], rank, s, a);
        struct ra_range b = {0, block->keys.first};
        for (int64_t t = block->key_spans.first; t < block->key_spans.end; t++) {
            b = next_rows(plan->layouts[RA_KEY_SIDE], origin, t, b);
            struct ra_band own = band_of(plan, rank, step, s, t, a, b),
                           all = within(block->band, a, b);
            if (own.lo != all.lo || own.hi != all.hi)
                return false;
        }
    }
    return true;
}

struct ra_cuda_block ra_cuda_block_of(const struct ra_plan *plan, int rank, int step,
                                      struct ra_range query_spans, struct ra_range key_spans)
{
    struct ra_layout queries = plan->layouts[RA_QUERY_SIDE], keys = plan->layouts[RA_KEY_SIDE];
    int origin = ra_ring_origin(&plan->ring, rank, step);
    struct ra_cuda_block block = {.band = {RA_BAND_FAR, -RA_BAND_FAR}};
    struct ra_range a = {0, rows_before(queries, rank, query_spans.first)};
    for (int64_t s = query_spans.first; s < query_spans.end; s++) {
        a = next_rows(queries, rank, s, a);
        struct ra_range b = {0, rows_before(keys, origin, key_spans.first)};
        for (int64_t t = key_spans.first; t < key_spans.end; t++) {
            b = next_rows(keys, origin, t, b);
            struct ra_band own = band_of(plan, rank, step, s, t, a, b);
            if (own.lo > own.hi)
                continue;

            /* The block grows to what has this pair, too, its band to what lets all see what they see. */
            bool first = block.pairs++ == 0;
            struct ra_range *grow[] = {&block.query_spans, &block.key_spans, &block.queries,
                                       &block.keys};
            struct ra_range by[] = {{s, s + 1}, {t, t + 1}, a, b};
            for (int i = 0; i < 4; i++) {
                grow[i]->first = first ? by[i].first : ra_least(grow[i]->first, by[i].first);
                grow[i]->end = ra_most(grow[i]->end, by[i].end);
            }
            block.band.lo = ra_least(block.band.lo, own.lo);
            block.band.hi = ra_most(block.band.hi, own.hi);
        }
    }
    block.one_band = block.pairs > 0 && is_one_band(plan, rank, step, &block);

    /* A limit that nobody meets is none. */
    struct ra_band most = within(RA_ALL_KEYS, block.queries, block.keys);
    block.band.lo = block.band.lo > most.lo ? block.band.lo : -RA_BAND_FAR;
    block.band.hi = block.band.hi < most.hi ? block.band.hi : RA_BAND_FAR;
    block.band = ra_band_from(block.band, block.queries.first, block.keys.first);
    return block;
}
