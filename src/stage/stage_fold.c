/* stage_fold: how a stage program folds the tiles of a hop. See stage_fold.h. */
#include "stage_fold.h"

struct ra_fold stage_fold(struct stage_ring *x, bool backward)
{
    const struct stage *stage = x->stage;
    return (struct ra_fold){.D = stage->D,
                            .score = stage_score(stage),
                            .backward = backward,
                            .tile_queries = stage->config.tile_queries,
                            .tile_keys = stage->config.tile_keys,
                            .workspace = x->workspace,
                            .between = ra_ring_poll,
                            .context = &x->ring};
}
