/* stage_deal: deals the rows of a problem to the ranks by a layout. See stage_deal.h. */
#include "stage_deal.h"

/* All spans of a rank, in memory of the stage's. */
static struct ra_span *spans_of(struct stage *stage, struct ra_layout layout, int rank)
{
    int64_t count = ra_layout_spans(layout);
    struct ra_span *spans = stage_allocate(stage, count, sizeof *spans);
    for (int64_t s = 0; s < count; s++)
        spans[s] = ra_layout_span(layout, rank, s);
    return spans;
}

void stage_deal(struct stage *stage, struct ra_layout queries, struct ra_layout keys, int rank)
{
    const struct ra_span *query_spans = spans_of(stage, queries, rank);
    const struct ra_span *key_spans = spans_of(stage, keys, rank);
    stage_shard(stage, query_spans, ra_layout_spans(queries), key_spans, ra_layout_spans(keys));
}

void stage_ring_deal(struct stage_ring *run, struct ra_layout queries, struct ra_layout keys)
{
    stage_deal(&run->stage, queries, keys, run->link.rank);
    for (int r = 0; r < run->link.size; r++)
        run->rows[r] = ra_layout_rows(keys, r);
}
