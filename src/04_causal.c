/* 04-causal: no query sees a later key, and what no query sees is not computed.
 * Chapter 04. New here: positions, and the band of a tile that follows from them. Tiles that lie in
 * the future are skipped, and with them whole hops.
 */
#include "ra_band.h"
#include "ra_span.h"
#include "stage_ring.h"

/* The band between this rank's queries and the keys of rank `origin`. The last query is at the
 * position of the last key, so query row i is at position i + M - N. */
static struct ra_band band_of(const struct stage_ring *run, int origin)
{
    int64_t N = run->stage.N, M = run->stage.M;
    struct ra_span queries = ra_span_chunk(N, run->link.size, run->link.rank);
    struct ra_span keys = ra_span_chunk(M, run->link.size, origin);
    queries.first += M - N;
    return run->stage.config.causal ? ra_band_causal(queries, keys, RA_BAND_FAR) : RA_ALL_KEYS;
}

/* Folds the keys of this step into the carries of all queries; backward, adds to dq, dk and dv. */
static void fold_hop(void *context, int step, bool backward)
{
    struct stage_ring *run = context;
    const struct stage *stage = &run->stage;
    struct ra_band band = band_of(run, ra_ring_origin(&run->ring, run->link.rank, step));
    struct ra_keys visiting = stage_ring_keys(run, step);
    struct ra_fold fold = stage_ring_fold(run, backward);
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&run->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_band_fold(&fold, &queries, &keys, band);
        }
    stage_ring_work(run, step, backward, fold.pairs, fold.skipped);
}

int main(int argc, char **argv)
{
    struct stage_ring run;
    stage_ring_open(&run, argc, argv, 4, "04-causal",
                    "Causal attention on a ring of ranks: what no query sees is not computed.",
                    fold_hop);
    stage_ring_chunks(&run);
    return stage_ring_run(&run);
}
