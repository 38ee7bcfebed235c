/* 06-lookback: an exact window of tokens, and no message that nobody needs.
 * Chapter 06. New here: the window, and the schedule: which hops are taken, and how far the keys
 * of each rank travel. Gradients go straight home from where the journey of their keys ends.
 */
#include <string.h>
#include "ra_schedule.h"
#include "stage_ring.h"

/* What one rank has: n query rows and m key rows of its own, and room for visiting keys. */
struct shard {
    struct ra_queries queries; /* q, o, d_out, dq (B, n, H, D); max, sum, lse, delta (B, H, n) */
    float *keys[3];            /* own keys; visiting ones take turns in two buffers, see slot() */
    float *gradients[4];       /* of those keys: this rank's share; [3]: that of the ranks before */
    float *workspace;          /* ra_tile_workspace */
    int64_t stride;            /* of keys: H * D */
    struct ra_ring ring;
    struct ra_layout query_layout, key_layout;
    struct ra_schedule schedule; /* its hops are taken in steps: step 0, 1, ... */
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

/* Which buffer the keys of this step are in, and their gradients. */
static int slot(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

/* Whose keys are due at this step: at hop t, those of the rank t to the left. */
static int origin_at(const struct shard *x, int step)
{
    return ra_ring_rank_at(&x->ring, -x->schedule.hop[step]);
}

/* Those keys; none if their journey ended before. */
static struct ra_keys keys_at(const struct stage *stage, const struct shard *x, int step)
{
    int origin = origin_at(x, step);
    bool here = x->schedule.hop[step] <= x->schedule.last[origin];
    int64_t rows = here ? ra_layout_rows(x->key_layout, origin) : 0;
    return ra_message_keys(stage->B, x->stride, stage->config.has_mask, rows, x->keys[slot(step)],
                           x->gradients[slot(step)]);
}

/* Does their journey go on? */
static bool travel_on(const struct shard *x, int step)
{
    return x->schedule.hop[step] < x->schedule.last[origin_at(x, step)];
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

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(struct stage *stage, struct shard *x, int step, bool backward)
{
    struct ra_keys visiting = keys_at(stage, x, step);
    struct ra_fold fold = stage_fold(stage, &x->ring, backward, x->workspace);
    double start = ra_ring_seconds();
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t h = 0; h < stage->H; h++) {
            struct ra_queries queries = ra_queries_head(&x->queries, stage->D, b, h);
            struct ra_keys keys = ra_keys_head(&visiting, stage->D, b, h);
            ra_layout_fold(&fold, x->query_layout, x->ring.rank, x->key_layout, origin_at(x, step),
                           stage->config.causal, stage->config.lookback, &queries, &keys);
        }
    stage_ring_work(stage, x->schedule.hop[step], backward, start, fold.pairs, fold.skipped);
}

/* Begins to send the keys of this step to where they are needed next, and to receive the next
 * ones. */
static void pass_keys(struct stage *stage, struct shard *x, int step)
{
    if (step + 1 == x->schedule.count)
        return;
    int hop = x->schedule.hop[step], jump = x->schedule.hop[step + 1] - hop;
    int64_t here = keys_at(stage, x, step).rows, next = keys_at(stage, x, step + 1).rows;
    ra_ring_receive(&x->ring, RA_KEYS, hop, -jump, x->keys[slot(step + 1)],
                    ra_message_key_bytes(stage->B, x->stride, stage->config.has_mask, next));
    if (travel_on(x, step))
        ra_ring_send(&x->ring, RA_KEYS, hop, jump, x->keys[slot(step)],
                     ra_message_key_bytes(stage->B, x->stride, stage->config.has_mask, here));
}

/* The same with the gradients of these keys. Where a journey ends they go straight home. */
static void pass_gradients(struct stage *stage, struct shard *x, int step)
{
    int hop = x->schedule.hop[step], jump = 0;
    if (step + 1 < x->schedule.count) {
        jump = x->schedule.hop[step + 1] - hop;
        int64_t next = keys_at(stage, x, step + 1).rows;
        ra_ring_receive(&x->ring, RA_GRADIENTS, hop, -jump, x->gradients[3],
                        ra_message_gradient_bytes(stage->B, x->stride, next));
    }
    int64_t bytes = ra_message_gradient_bytes(stage->B, x->stride, keys_at(stage, x, step).rows);
    if (travel_on(x, step))
        ra_ring_send(&x->ring, RA_GRADIENTS, hop, jump, x->gradients[slot(step)], bytes);
    else if (hop > 0)
        ra_ring_send(&x->ring, RA_HOME, hop, -hop, x->gradients[slot(step)], bytes);
}

/* o and lse: folds the keys of one step while those of the next are on their way. */
static void forward(struct stage *stage, struct shard *x)
{
    each_head(stage, x, ra_tile_begin);
    for (int step = 0; step < x->schedule.count; step++) {
        pass_keys(stage, x, step);
        fold_hop(stage, x, step, false);
        stage_ring_wait(stage, &x->ring, RA_KEYS);
        stage_ring_count(stage, &x->ring, x->schedule.hop[step], false);
    }
    each_head(stage, x, ra_tile_finish);
}

/* dq, dk and dv: the keys come by once more, their gradients one step behind them. */
static void backward(struct stage *stage, struct shard *x)
{
    each_head(stage, x, ra_tile_delta);
    for (int step = 0; step < x->schedule.count; step++) {
        pass_keys(stage, x, step);
        float *share = x->gradients[slot(step)], *arrived = x->gradients[3];
        int64_t bytes =
            ra_message_gradient_bytes(stage->B, x->stride, keys_at(stage, x, step).rows);
        memset(share, 0, (size_t)bytes);
        fold_hop(stage, x, step, true);

        /* While this rank computed its share, the sum of the ranks before arrived; step 0 has none
         * before it. The two together go on. */
        stage_ring_wait(stage, &x->ring, RA_GRADIENTS);
        for (int64_t e = 0; step > 0 && e < bytes / (int64_t)sizeof(float); e++)
            share[e] += arrived[e];

        /* The own gradients left at step 0 and are waited for from now on, not at the end: who
         * sends them home may not go on before somebody takes them. */
        int last = x->schedule.last[x->ring.rank];
        if (step == 1 && last > 0)
            ra_ring_receive(&x->ring, RA_HOME, last, last, x->gradients[0],
                            ra_message_gradient_bytes(stage->B, x->stride, stage->m));
        pass_gradients(stage, x, step);
        stage_ring_wait(stage, &x->ring, RA_KEYS);
        stage_ring_count(stage, &x->ring, x->schedule.hop[step], true);
    }
    stage_ring_wait(stage, &x->ring, RA_GRADIENTS);
    stage_ring_wait(stage, &x->ring, RA_HOME);
}

int main(int argc, char **argv)
{
    struct stage stage;
    struct shard x = {0};
    stage_open_mpi(&stage, argc, argv, 6, "06-lookback",
                   "Causal attention with a window of tokens, and no message that nobody needs.");
    stage_ring_open(&stage, &x.ring);
    int64_t stripes = ra_layout_stripes(x.ring.size, stage.N, stage.config.bucket);
    x.query_layout = (struct ra_layout){stage.config.layout, x.ring.size, stage.N, stripes};
    x.key_layout = (struct ra_layout){stage.config.layout, x.ring.size, stage.M, stripes};
    int *storage = stage_allocate(&stage, ra_schedule_storage(x.ring.size), sizeof *storage);
    if (stage.config.causal && !stage.config.local_keys)
        x.schedule = ra_schedule_causal(x.query_layout, x.key_layout, stage.config.lookback, storage);
    else
        x.schedule = ra_schedule_round(x.ring.size, stage.config.local_keys ? 1 : x.ring.size, storage);
    stage_shard(&stage, spans_of(&stage, x.query_layout, x.ring.rank),
                ra_layout_spans(x.query_layout), spans_of(&stage, x.key_layout, x.ring.rank),
                ra_layout_spans(x.key_layout));

    x.stride = stage.H * stage.D;
    x.workspace = stage_workspace(&stage);
    x.queries = stage_queries(&stage);
    stage_ring_memory(&stage, ra_layout_most_rows(x.key_layout), x.schedule.count, x.keys,
                      x.gradients);
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
