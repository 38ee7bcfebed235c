/* 05-striped: the same work for every rank, by dealing the rows out differently.
 * Chapter 05. New here: layouts. A rank's rows are a list of spans; every pair of spans has its
 * band.
 */
#include <string.h>
#include "ra_band.h"
#include "ra_layout.h"
#include "stage_ring.h"

/* What one rank has: n query rows and m key rows of its own, and room for visiting keys. */
struct shard {
    struct ra_queries queries; /* q, o, d_out, dq (B, n, H, D); max, sum, lse, delta (B, H, n) */
    float *keys[3];            /* own keys; visiting ones take turns in two buffers, see slot() */
    float *gradients[4];       /* of those keys: this rank's share; [3]: that of the ranks before */
    float *workspace;          /* ra_tile_workspace */
    int64_t stride;            /* of keys: H * D */
    struct ra_ring ring;
    int hops; /* P, or 1 if nothing travels */
    struct ra_layout query_layout, key_layout;
};

/* All spans of a rank, in memory of the stage's. */
static struct ra_span *spans_of(struct stage *stage, struct ra_layout layout, int rank)
{
    int64_t count = ra_layout_spans(layout);
    struct ra_span *spans = stage_allocate(stage, count, sizeof *spans);
    for (int64_t s = 0; s < count; s++)
        spans[s] = ra_layout_span(layout, rank, s);
    return spans;
}

/* Which buffer the keys of this hop are in, and their gradients. */
static int slot(int hop)
{
    return hop == 0 ? 0 : 2 - hop % 2;
}

/* The keys that are here at this hop: those of the rank `hop` to the left. */
static struct ra_keys keys_at(const struct stage *stage, const struct shard *x, int hop)
{
    int64_t rows = ra_layout_rows(x->key_layout, ra_ring_rank_at(&x->ring, -hop));
    return ra_message_keys(stage->B, x->stride, stage->config.has_mask, rows, x->keys[slot(hop)],
                           x->gradients[slot(hop)]);
}

/* Calls a function of ra_tile for the queries of every batch and head. */
static void each_head(const struct stage *stage, const struct shard *x,
                      void (*function)(int64_t D, const struct ra_queries *queries))
{
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            function(stage->D, &queries);
        }
}

/* Folds the keys of this hop into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(struct stage *stage, struct shard *x, int hop, bool backward)
{
    struct ra_keys visiting = keys_at(stage, x, hop);
    struct ra_fold fold = stage_fold(stage, &x->ring, backward, x->workspace);
    double start = ra_ring_seconds();
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_layout_fold(&fold, x->query_layout, x->ring.rank, x->key_layout,
                           ra_ring_rank_at(&x->ring, -hop), stage->config.causal, RA_BAND_FAR, &queries,
                           &keys);
        }
    stage_ring_work(stage, hop, backward, start, fold.pairs, fold.skipped);
}

/* Begins to send the keys of this hop on to the right, and to receive the next ones from the
 * left. */
static void pass_keys(struct stage *stage, struct shard *x, int hop)
{
    if (hop + 1 == x->hops)
        return;
    int64_t here = keys_at(stage, x, hop).rows, next = keys_at(stage, x, hop + 1).rows;
    ra_ring_receive(&x->ring, RA_KEYS, hop, -1, x->keys[slot(hop + 1)],
                    ra_message_key_bytes(stage->B, x->stride, stage->config.has_mask, next));
    ra_ring_send(&x->ring, RA_KEYS, hop, 1, x->keys[slot(hop)],
                 ra_message_key_bytes(stage->B, x->stride, stage->config.has_mask, here));
}

/* The same with the gradients of these keys. From the last hop they go straight home. */
static void pass_gradients(struct stage *stage, struct shard *x, int hop)
{
    if (x->hops == 1)
        return;
    bool home = hop + 1 == x->hops;
    int64_t here = keys_at(stage, x, hop).rows;
    int64_t next = home ? stage->m : keys_at(stage, x, hop + 1).rows;
    ra_ring_receive(&x->ring, RA_GRADIENTS, hop, home ? hop : -1, x->gradients[home ? 0 : 3],
                    ra_message_gradient_bytes(stage->B, x->stride, next));
    ra_ring_send(&x->ring, RA_GRADIENTS, hop, home ? -hop : 1, x->gradients[slot(hop)],
                 ra_message_gradient_bytes(stage->B, x->stride, here));
}

/* o and lse: folds the keys of one hop while those of the next are on their way. */
static void forward(struct stage *stage, struct shard *x)
{
    each_head(stage, x, ra_tile_begin);
    for (int hop = 0; hop < x->hops; hop++) {
        pass_keys(stage, x, hop);
        fold_hop(stage, x, hop, false);
        stage_ring_wait(stage, &x->ring, RA_KEYS);
        stage_ring_count(stage, &x->ring, hop, false);
    }
    each_head(stage, x, ra_tile_finish);
}

/* dq, dk and dv: the keys come by once more, their gradients one hop behind them. */
static void backward(struct stage *stage, struct shard *x)
{
    each_head(stage, x, ra_tile_delta);
    for (int hop = 0; hop < x->hops; hop++) {
        pass_keys(stage, x, hop);
        float *share = x->gradients[slot(hop)], *arrived = x->gradients[3];
        int64_t bytes = ra_message_gradient_bytes(stage->B, x->stride, keys_at(stage, x, hop).rows);
        memset(share, 0, (size_t)bytes);
        fold_hop(stage, x, hop, true);

        /* While this rank computed its share, the sum of the ranks before arrived; hop 0 has none
         * before it. The two together go on. */
        stage_ring_wait(stage, &x->ring, RA_GRADIENTS);
        for (int64_t e = 0; hop > 0 && e < bytes / (int64_t)sizeof(float); e++)
            share[e] += arrived[e];
        pass_gradients(stage, x, hop);
        stage_ring_wait(stage, &x->ring, RA_KEYS);
        stage_ring_count(stage, &x->ring, hop, true);
    }
    stage_ring_wait(stage, &x->ring, RA_GRADIENTS);
}

int main(int argc, char **argv)
{
    struct stage stage;
    struct shard x = {0};
    stage_open_mpi(&stage, argc, argv, 5, "05-striped",
                   "Causal attention on a ring of ranks that all have the same to do.");
    stage_ring_open(&stage, &x.ring);
    x.hops = stage.config.local_keys ? 1 : x.ring.size;
    int64_t stripes = ra_layout_stripes(x.ring.size, stage.N, stage.config.bucket);
    x.query_layout = (struct ra_layout){stage.config.layout, x.ring.size, stage.N, stripes};
    x.key_layout = (struct ra_layout){stage.config.layout, x.ring.size, stage.M, stripes};
    stage_shard(&stage, spans_of(&stage, x.query_layout, x.ring.rank),
                ra_layout_spans(x.query_layout), spans_of(&stage, x.key_layout, x.ring.rank),
                ra_layout_spans(x.key_layout));

    x.stride = stage.H * stage.D;
    x.workspace = stage_workspace(&stage);
    x.queries = stage_queries(&stage);
    stage_ring_memory(&stage, ra_layout_most_rows(x.key_layout), x.hops, x.keys, x.gradients);
    stage_lap(&stage, STAGE_READ);

    forward(&stage, &x);
    if (!stage.config.forward_only)
        backward(&stage, &x);

    stage_write_queries(&stage, &x.queries);
    if (!stage.config.forward_only)
        stage_write_gradients(&stage, x.gradients[0]);
    ra_ring_close(&x.ring);
    return stage_close(&stage);
}
