/* 07-gqa: several query heads read one key/value head, and what travels shrinks.
 * Chapter 07. New here: the head map. Keys, values and their gradients have G heads, queries H;
 * nothing is repeated in memory or on the wire.
 */
#include "ra_heads.h"
#include "ra_layout.h"
#include "ra_schedule.h"
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
                                   .lookback = stage->config.lookback};
    struct ra_keys visiting = stage_ring_keys(run, step);
    struct ra_fold fold = stage_ring_fold(run, backward);
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            int64_t g = ra_heads_key(stage->config.head_map, stage->H, stage->G, h);
            struct ra_queries queries = ra_queries_head(&run->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, g);
            ra_layout_fold(&fold, &shards, &queries, &keys);
        }
    stage_ring_work(run, step, backward, fold.pairs, fold.skipped);
}

int main(int argc, char **argv)
{
    struct stage_ring run;
    stage_ring_open(&run, argc, argv, 7, "07-gqa",
                    "Attention in which query heads share key/value heads, on a ring of ranks.",
                    fold_hop);
    const struct ra_config *config = &run.stage.config;
    struct ra_layout queries = ra_layout_of(config, run.stage.N);
    struct ra_layout keys = ra_layout_of(config, run.stage.M);
    stage_ring_deal(&run, queries, keys);
    if (config->causal && !config->local_keys)
        run.ring.schedule =
            ra_schedule_causal(queries, keys, config->lookback, run.ring.schedule.hop);
    return stage_ring_run(&run);
}
