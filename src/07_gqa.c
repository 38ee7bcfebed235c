/* 07-gqa: several query heads read one key/value head, and what travels shrinks.
 * Chapter 07. New here: the head map. Keys, values and their gradients have G heads, queries H;
 * nothing is repeated in memory or on the wire.
 */
#include "ra_heads.h"
#include "ra_schedule.h"
#include "stage_fold.h"
#include "stage_layout.h"

/* The key/value head that query head h reads. */
static int64_t key_head(const struct stage *stage, int64_t h)
{
    return ra_heads_key(stage->config.head_map, stage->H, stage->G, h);
}

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
    stage_fold_open(&x, argc, argv, 7, "07-gqa",
                    "Attention in which query heads share key/value heads, on a ring of ranks.",
                    fold_head);
    stage_layout_deal(&x);
    x.key_head = key_head;
    const struct ra_config *config = &x.stage.config;
    if (config->causal && !config->local_keys)
        x.ring.schedule = ra_schedule_causal(stage_layout(&x.stage, config->queries),
                                             stage_layout(&x.stage, config->keys), config->lookback,
                                             x.ring.schedule.hop);
    return stage_ring_run(&x);
}
