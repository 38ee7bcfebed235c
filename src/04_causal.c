/* 04-causal: nobody sees the future, and what nobody sees is not computed.
 * Chapter 04. New here: positions, and the band of a tile that follows from them. Tiles that are
 * all future are skipped, and with them whole hops.
 */
#include "ra_span.h"
#include "stage_fold.h"

static void fold_head(struct stage_ring *x, struct ra_fold *fold, int origin,
                      const struct ra_queries *queries, const struct ra_keys *keys)
{
    /* The last query stands beside the last key, and so row i at position i + M - N. */
    int64_t N = x->stage.N, M = x->stage.M;
    struct ra_span rows = ra_span_chunk(N, x->link.size, x->link.rank);
    struct ra_span seen = ra_span_chunk(M, x->link.size, origin);
    rows.first += M - N;
    struct ra_band band = RA_ALL_KEYS;
    if (x->stage.config.causal)
        band = ra_band_causal(rows, seen, RA_BAND_FAR);
    ra_band_fold(fold, queries, keys, band);
}

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_fold_open(&x, argc, argv, 4, "04-causal",
                    "Causal attention on a ring of ranks: what nobody sees is not computed.",
                    fold_head);
    stage_ring_chunks(&x);
    return stage_ring_run(&x);
}
