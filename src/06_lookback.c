/* 06-lookback: an exact window of tokens, and no message that nobody needs.
 * Chapter 06. New here: the window, and the schedule: which hops are taken, and how far the keys
 * of each rank travel. Gradients go straight home from where their keys are seen last.
 */
#include "ra_schedule.h"
#include "stage_fold.h"
#include "stage_layout.h"

static void fold_head(struct stage_ring *x, struct ra_fold *fold, int origin,
                      const struct ra_queries *queries, const struct ra_keys *keys)
{
    const struct ra_config *config = &x->stage.config;
    ra_layout_fold(fold, stage_layout(&x->stage, config->queries), x->link.rank,
                   stage_layout(&x->stage, config->keys), origin, config->causal, config->lookback,
                   queries, keys);
}

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_fold_open(&x, argc, argv, 6, "06-lookback",
                    "Causal attention with a window of tokens, and no message that nobody needs.",
                    fold_head);
    stage_layout_deal(&x);
    const struct ra_config *config = &x.stage.config;
    if (config->causal && !config->local_keys)
        x.ring.schedule = ra_schedule_causal(stage_layout(&x.stage, config->queries),
                                             stage_layout(&x.stage, config->keys), config->lookback,
                                             x.ring.schedule.hop);
    return stage_ring_run(&x);
}
