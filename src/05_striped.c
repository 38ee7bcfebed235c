/* 05-striped: the same work for every rank, by dealing the rows out differently.
 * Chapter 05. New here: layouts. A rank's rows are a list of spans; every pair of spans has its
 * band.
 */
#include "ra_layout.h"
#include "stage_fold.h"
#include "stage_layout.h"

static void fold_head(struct stage_ring *x, struct ra_fold *fold, int origin,
                      const struct ra_queries *queries, const struct ra_keys *keys)
{
    const struct ra_config *config = &x->stage.config;
    ra_layout_fold(fold, stage_layout(&x->stage, config->queries), x->link.rank,
                   stage_layout(&x->stage, config->keys), origin, config->causal, RA_BAND_FAR,
                   queries, keys);
}

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_fold_open(&x, argc, argv, 5, "05-striped",
                    "Causal attention on a ring of ranks that all have the same to do.", fold_head);
    stage_layout_deal(&x);
    return stage_ring_run(&x);
}
