/* stage_layout: the rows of a stage program. See stage_layout.h. */
#include "stage_layout.h"
#include "stage_fold.h"

struct ra_layout stage_layout(const struct stage *stage, int64_t length)
{
    /* Queries and keys have the same number of stripes, that of the queries. */
    int P = stage->config.ring_size;
    int64_t stripes = ra_layout_stripes(P, stage->N, stage->config.bucket);
    return (struct ra_layout){stage->config.layout, P, length, stripes};
}

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
    const struct ra_span *query_spans = spans_of(stage, queries, rank);
    const struct ra_span *key_spans = spans_of(stage, keys, rank);
    stage_shard(stage, query_spans, ra_layout_spans(queries), key_spans, ra_layout_spans(keys));
}

static void fold_head(struct stage_ring *x, struct ra_fold *fold, int origin,
                      const struct ra_queries *queries, const struct ra_keys *keys)
{
    const struct ra_config *config = &x->stage.config;
    ra_layout_fold(fold, stage_layout(&x->stage, config->queries), x->link.rank,
                   stage_layout(&x->stage, config->keys), origin, config->causal, config->lookback,
                   queries, keys);
}

void stage_layout_open(struct stage_ring *x, int argc, char **argv, int number,
                       const char *program, const char *about)
{
    stage_fold_open(x, argc, argv, number, program, about, fold_head);
}

void stage_layout_deal(struct stage_ring *x)
{
    const struct ra_config *config = &x->stage.config;
    struct ra_layout keys = stage_layout(&x->stage, config->keys);
    stage_shard_layouts(&x->stage, stage_layout(&x->stage, config->queries), keys, x->link.rank);
    for (int r = 0; r < x->link.size; r++)
        x->rows[r] = ra_layout_rows(keys, r);
}
