/* 03-ring: the same attention on P ranks, each with its own part of the sequence.
 * Chapter 03. New here: keys and values travel from rank to rank and are folded wherever they are.
 * In the backward their gradients travel one hop behind them, and at last go home. The loop is that
 * of ra_ring.c; this program says what it folds.
 */
#include "ra_span.h"
#include "stage_ring.h"

/* Folds every block of these keys into every block of these queries; the messages move on between
 * the tiles. Returns how many pairs were computed. */
static int64_t fold_tiles(struct stage_ring *run, const struct ra_queries *queries,
                          const struct ra_keys *keys, bool backward)
{
    const struct stage *stage = &run->stage;
    int64_t pairs = 0, tile_queries = stage->config.tile_queries;
    for (int64_t a = 0; a < queries->rows; a += tile_queries)
        for (int64_t b = 0; b < keys->rows; b += stage->config.tile_keys) {
            struct ra_queries rows = ra_queries_block(queries, a, tile_queries);
            struct ra_keys seen = ra_keys_block(keys, b, stage->config.tile_keys);
            (backward ? ra_tile_backward : ra_tile_forward)(
                RA_DIMS(stage->D), stage_score(stage), &rows, &seen, RA_ALL_KEYS, run->workspace);
            pairs += rows.rows * seen.rows;
            ra_ring_poll(&run->ring);
        }
    return pairs;
}

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *run = context;
    struct ra_keys visiting = stage_ring_keys(run, step);
    int64_t pairs = 0, D = run->stage.D;
    for (int64_t b = 0; b < run->stage.B; b++)
        for (int64_t h = 0; h < run->stage.H; h++) {
            struct ra_queries queries = ra_queries_head(&run->queries, D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, D, b, h);
            pairs += fold_tiles(run, &queries, &keys, backward);
        }
    stage_ring_work(run, step, backward, pairs, 0);
}

int main(int argc, char **argv)
{
    struct stage_ring run;
    stage_ring_open(&run, argc, argv, 3, "03-ring",
                    "Attention on a ring of ranks: keys and values travel, and their gradients.",
                    fold_hop);
    stage_ring_chunks(&run);
    return stage_ring_run(&run);
}
