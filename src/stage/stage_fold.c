/* stage_fold: how a stage program folds the tiles of a hop. See stage_fold.h. */
#include "stage_fold.h"

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. The ring is polled between the tiles. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *x = context;
    const struct stage *stage = &x->stage;
    struct ra_keys visiting = stage_ring_keys(x, step);
    struct ra_fold fold = {.D = stage->D,
                           .score = stage_score(stage),
                           .tile = backward ? ra_tile_backward : ra_tile_forward,
                           .tile_queries = stage->config.tile_queries,
                           .tile_keys = stage->config.tile_keys,
                           .workspace = x->workspace,
                           .between = ra_ring_poll,
                           .context = &x->ring};
    int origin = ra_ring_origin(&x->ring, x->link.rank, step);
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            int64_t g = x->key_head ? x->key_head(stage, h) : h;
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, g);
            x->fold_head(x, &fold, origin, &queries, &keys);
        }
    stage_ring_work(x, step, backward, fold.pairs, fold.skipped);
}

void stage_fold_open(struct stage_ring *x, int argc, char **argv, int number, const char *program,
                     const char *about,
                     void (*fold_head)(struct stage_ring *x, struct ra_fold *fold, int origin,
                                       const struct ra_queries *queries,
                                       const struct ra_keys *keys))
{
    stage_ring_open(x, argc, argv, number, program, about, fold_hop);
    x->fold_head = fold_head;
}
