/* 04-causal: no query sees a later key, and what no query sees is not computed.
 * Chapter 04. New here: positions, and the band of a tile that follows from them. Tiles that lie in
 * the future are skipped, and with them whole hops.
 */
#include "ra_band.h"
#include "ra_span.h"
#include "stage_ring.h"

/* The band between this rank's queries and the keys of rank `origin`. The last query is at the
 * position of the last key, so query row i is at position i + M - N. */
static struct ra_band band_of(const struct stage_ring *x, int origin)
{
    int64_t N = x->stage.N, M = x->stage.M;
    struct ra_span queries = ra_span_chunk(N, x->link.size, x->link.rank);
    struct ra_span keys = ra_span_chunk(M, x->link.size, origin);
    queries.first += M - N;
    return x->stage.config.causal ? ra_band_causal(queries, keys, RA_BAND_FAR) : RA_ALL_KEYS;
}

/* Folds the keys of this step into the carries of all queries; backward, adds to dq, dk and dv. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *x = context;
    const struct stage *stage = &x->stage;
    struct ra_band band = band_of(x, ra_ring_origin(&x->ring, x->link.rank, step));
    struct ra_keys visiting = stage_ring_keys(x, step);
    struct ra_fold fold = stage_ring_fold(x, backward);
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
    struct stage_ring x;
    stage_ring_open(&x, argc, argv, 4, "04-causal",
                    "Causal attention on a ring of ranks: what no query sees is not computed.",
                    fold_hop);
    stage_ring_chunks(&x);
    return stage_ring_run(&x);
}
