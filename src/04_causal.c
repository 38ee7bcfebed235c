/* 04-causal: nobody sees the future, and what nobody sees is not computed.
 * Chapter 04. New here: positions, and the band of a tile that follows from them. Tiles that are
 * all future are skipped, and with them whole hops.
 */
#include "ra_span.h"
#include "stage_fold.h"

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *x = context;
    const struct stage *stage = x->stage;
    struct ra_keys visiting = stage_ring_keys(x, step);
    struct ra_fold fold = stage_fold(x, backward);

    /* The last query stands beside the last key, and so row i at position i + M - N. */
    int P = x->link.size, rank = x->link.rank, origin = ra_ring_origin(&x->ring, rank, step);
    struct ra_span rows = ra_span_chunk(stage->N, P, rank);
    struct ra_span seen = ra_span_chunk(stage->M, P, origin);
    rows.first += stage->M - stage->N;
    struct ra_band band =
        stage->config.causal ? ra_band_causal(rows, seen, RA_BAND_FAR) : RA_ALL_KEYS;
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_band_fold(&fold, &queries, &keys, band);
        }
    stage_ring_work(x, step, backward, fold.pairs, fold.skipped);
}

int main(int argc, char **argv)
{
    struct stage stage;
    struct stage_ring x;
    stage_open_mpi(&stage, argc, argv, 4, "04-causal",
                   "Causal attention on a ring of ranks: what nobody sees is not computed.");
    stage_ring_open(&x, &stage, fold_hop);

    int P = x.link.size;
    struct ra_span queries = ra_span_chunk(stage.N, P, x.link.rank);
    struct ra_span keys = ra_span_chunk(stage.M, P, x.link.rank);
    stage_shard(&stage, &queries, 1, &keys, 1);
    for (int r = 0; r < P; r++)
        x.rows[r] = ra_span_chunk(stage.M, P, r).count;
    return stage_ring_run(&x);
}
