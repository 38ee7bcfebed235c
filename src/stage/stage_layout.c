/* stage_layout: a stage program whose rows are dealt out by a layout. See stage_layout.h. */
#include "stage_layout.h"

/* All spans of a rank, in memory of the stage's. */
static struct ra_span *spans_of(struct stage *stage, struct ra_layout layout, int rank)
{
    int64_t count = ra_layout_spans(layout);
    struct ra_span *spans = stage_allocate(stage, count, sizeof *spans);
    for (int64_t s = 0; s < count; s++)
        spans[s] = ra_layout_span(layout, rank, s);
    return spans;
}

void stage_shard_layouts(struct stage *stage, struct ra_layout queries, struct ra_layout keys,
                         int rank)
{
    stage_shard(stage, spans_of(stage, queries, rank), ra_layout_spans(queries),
                spans_of(stage, keys, rank), ra_layout_spans(keys));
}
