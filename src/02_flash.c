/* 02-flash: the same attention from tiles, forward and backward, in float32.
 *
 * Chapter 02. New here: no score matrix. Blocks of keys are folded, one after the other, into a
 * carry per query row; the backward computes the scores anew, tile by tile. Memory grows with N and
 * M, not with their product.
 */
#include <stddef.h>
#include "stage_tile.h"

/* The problem and the results, whole. */
struct arrays {
    struct ra_queries queries; /* q, o, d_out, dq, comp (B, N, H, D); the others (B, H, N) */
    struct ra_keys keys;       /* k, v, dk, dv and theirs (B, M, H, D); mask (B, M), or NULL */
    float *workspace;          /* ra_tile_workspace */
    int64_t pairs[2];          /* query-key pairs of all tiles: forward, backward */
};

/* One head h of batch b. Forward: o and lse, where every block of keys is folded into every block
 * of queries. Backward: dq, dk and dv, where every such pair adds to all three; dk and dv must be
 * zero before. */
static void fold_head(const struct stage *stage, struct arrays *all, int64_t b, int64_t h,
                      bool backward)
{
    struct ra_queries queries = ra_queries_head(&all->queries, stage->D, b, h);
    struct ra_keys keys = ra_keys_head(&all->keys, stage->D, b, h);
    for (int64_t i = 0; i < stage->N; i += stage->config.tile_queries) {
        int64_t row = (b * stage->H + h) * stage->N + i, rows = stage->B * stage->H * stage->N;
        stage_progress(stage, backward ? "backward" : "forward", row, rows);
        struct ra_queries block = ra_queries_block(&queries, i, stage->config.tile_queries);
        (backward ? ra_tile_begin_backward : ra_tile_begin)(RA_DIMS(stage->D), &block);

        for (int64_t j = 0; j < stage->M; j += stage->config.tile_keys) {
            struct ra_keys seen = ra_keys_block(&keys, j, stage->config.tile_keys);
            (backward ? ra_tile_backward : ra_tile_forward)(
                RA_DIMS(stage->D), stage_score(stage), &block, &seen, RA_ALL_KEYS, all->workspace);
            all->pairs[backward] += block.rows * seen.rows;
        }
        if (!backward)
            ra_tile_finish(RA_DIMS(stage->D), &block);
    }
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open(&stage, argc, argv, 2, "02-flash",
               "Attention from tiles: online softmax, and a backward that recomputes.",
               NPY_FLOAT32);
    int64_t workspace =
        ra_tile_workspace(stage.config.tile_queries, stage.config.tile_keys, RA_DIMS(stage.D));
    int64_t width = stage.H * stage.D;
    struct arrays all = {
        .queries = stage_queries(&stage),
        .keys = {.rows = stage.M,
                 .stride = {width, width, width, width, width, width},
                 .k = stage_input(&stage, STAGE_K),
                 .v = stage_input(&stage, STAGE_V),
                 .mask = stage_mask(&stage)},
        .workspace = stage_allocate(&stage, workspace, sizeof(float)),
    };

    /* The gradients are sums, so they start at zero. */
    if (!stage.config.forward_only) {
        int64_t numbers = stage.B * stage.M * width;
        all.keys.dk = stage_zeros(&stage, numbers, sizeof(float));
        all.keys.dv = stage_zeros(&stage, numbers, sizeof(float));
        all.keys.dk_comp = stage_zeros(&stage, numbers, sizeof(float));
        all.keys.dv_comp = stage_zeros(&stage, numbers, sizeof(float));
    }
    stage_lap(&stage, STAGE_READ);

    for (int64_t b = 0; b < stage.B; b++)
        for (int64_t h = 0; h < stage.H; h++) {
            fold_head(&stage, &all, b, h, false);
            stage_lap(&stage, STAGE_FORWARD);
            if (!stage.config.forward_only)
                fold_head(&stage, &all, b, h, true);
            stage_lap(&stage, STAGE_BACKWARD);
        }

    stage_write_queries(&stage, &all.queries);
    if (!stage.config.forward_only) {
        stage_write(&stage, STAGE_DK, all.keys.dk);
        stage_write(&stage, STAGE_DV, all.keys.dv);
    }

    /* Products of matrices only: s and o forward; s again, dp, dv, dq and dk backward. */
    stage_count(&stage, "multiply-adds forward", 0, 2 * all.pairs[0] * stage.D);
    if (!stage.config.forward_only)
        stage_count(&stage, "multiply-adds backward", 0, 5 * all.pairs[1] * stage.D);
    return stage_close(&stage);
}
