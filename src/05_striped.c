/* 05-striped: the same work for every rank, by dealing the rows out differently.
 * Chapter 05. New here: layouts. A rank's rows are a list of spans, and every pair of spans has its
 * band.
 */
#include "ra_layout.h"
#include "stage_deal.h"
#include "stage_ring.h"

/* Folds the keys of this step into the carries of all queries; backward, adds to dq, dk and dv. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *run = context;
    const struct stage *stage = &run->stage;
    struct ra_shard_pair shards = {.queries = ra_layout_of(&stage->config, stage->N),
                                   .keys = ra_layout_of(&stage->config, stage->M),
                                   .rank = run->link.rank,
                                   .origin = ra_ring_origin(&run->ring, run->link.rank, step),
                                   .causal = stage->config.causal,
                                   .lookback = RA_BAND_FAR};
    struct ra_keys visiting = stage_ring_keys(run, step);
    struct ra_fold fold = stage_ring_fold(run, backward);
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&run->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_layout_fold(&fold, &shards, &queries, &keys);
        }
    stage_ring_work(run, step, backward, fold.pairs, fold.skipped);
}

int main(int argc, char **argv)
{
    struct stage_ring run;
    stage_ring_open(&run, argc, argv, 5, "05-striped",
                    "Causal attention on a ring of ranks that all have the same to do.", fold_hop);
    const struct ra_config *config = &run.stage.config;
    stage_ring_deal(&run, ra_layout_of(config, run.stage.N), ra_layout_of(config, run.stage.M));
    return stage_ring_run(&run);
}
