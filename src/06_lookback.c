/* 06-lookback: an exact window of tokens, and no message that nobody needs.
 * Chapter 06. New here: the window, and the schedule: which hops are taken, and how far the keys
 * of each rank travel. Gradients go straight home from where their keys are seen last.
 */
#include "ra_schedule.h"
#include "stage_fold.h"
#include "stage_layout.h"

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *x = context;
    const struct stage *stage = x->stage;
    struct ra_keys visiting = stage_ring_keys(x, step);
    struct ra_fold fold = stage_fold(x, backward);
    int rank = x->link.rank, origin = ra_ring_origin(&x->ring, rank, step);
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_layout_fold(&fold, stage_layout(stage, stage->N), rank,
                           stage_layout(stage, stage->M), origin, stage->config.causal,
                           stage->config.lookback, &queries, &keys);
        }
    stage_ring_work(x, step, backward, fold.pairs, fold.skipped);
}

int main(int argc, char **argv)
{
    struct stage stage;
    struct stage_ring x;
    stage_open_mpi(&stage, argc, argv, 6, "06-lookback",
                   "Causal attention with a window of tokens, and no message that nobody needs.");
    stage_ring_open(&x, &stage, fold_hop);
    struct ra_layout queries = stage_layout(&stage, stage.N), keys = stage_layout(&stage, stage.M);
    stage_shard_layouts(&stage, queries, keys, x.link.rank);
    for (int r = 0; r < x.link.size; r++)
        x.rows[r] = ra_layout_rows(keys, r);
    if (stage.config.causal && !stage.config.local_keys)
        x.ring.schedule =
            ra_schedule_causal(queries, keys, stage.config.lookback, x.ring.schedule.hop);
    return stage_ring_run(&x);
}
