/* ra_host_fold: what the host computes, by one thread or by several. See ra_host.h.
 *
 * Chapter 09. New here: work is cut so that each sum has one thread at a time, and its terms one
 * order, whatever the number of threads. So the bits are the same, and nothing is locked.
 */
#include <stdatomic.h>
#include "ra_host.h"
#include "ra_math.h"

/* ---- Blocks. */

/* The rows of a block of queries, forward: a tile, or as many parts of one as leave each thread
 * four blocks. Large blocks pack their keys more seldom; small ones are enough for many threads.
 * Slices cut blocks anywhere, so under a list the bits depend on where blocks begin, which must not
 * depend on the threads: then these count as 64. */
static int64_t forward_chunk(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    int64_t chunk = ra_host_chunk(c, RA_QUERY_SIDE), rows = plan->rows[RA_QUERY_SIDE];
    int64_t fair = c->batch * c->heads * rows / (4 * (plan->listed ? 64 : host->threads));
    if (chunk % RA_HOST_PART != 0 || fair >= chunk)
        return chunk;
    return fair < RA_HOST_PART ? RA_HOST_PART : fair / RA_HOST_PART * RA_HOST_PART;
}

/* A hop that is folded, for all threads; and the next item of each round that no thread has taken.
 * Two counters take turns: while one counts, the other is set back for the next round. */
struct hop {
    struct ra_plan *plan;
    struct ra_shard_pair shards;
    int step;
    bool backward;
    int64_t blocks[2]; /* how many, by side */
    atomic_llong next[2];
    atomic_llong last_round; /* of fold_both: a plan that is cancelled has no more */
};

#define NO_KEYS ((struct ra_band){RA_BAND_FAR, -RA_BAND_FAR})

/* The band of a pair of spans in this hop: RA_ALL_KEYS, NO_KEYS, or one between. */
static struct ra_band span_band(const struct hop *hop, int64_t queries, int64_t keys)
{
    struct ra_span_pair pair = ra_layout_pair(&hop->shards, queries, keys);
    if (ra_band_is_empty(pair.band, pair.rows, pair.visitors))
        return NO_KEYS;
    bool all = pair.band.lo <= 1 - pair.rows && pair.band.hi >= pair.visitors - 1;
    return all ? RA_ALL_KEYS : pair.band;
}

/* The band of a pair of blocks. Empty: no query sees a key. */
static struct ra_band band_of(const struct hop *hop, const struct ra_host_block *queries,
                              const struct ra_host_block *keys)
{
    return ra_band_from(span_band(hop, queries->span, keys->span), queries->offset, keys->offset);
}

/* Are spans s and s + 1 of this side as good as one in this hop: does each span of the other side
 * see, or is it seen by, all of both or nothing of both? */
static bool are_one(const struct hop *hop, enum ra_side side, int64_t s)
{
    bool keys = side == RA_KEY_SIDE;
    const struct ra_host *host = hop->plan->own;

    /* Rows of one block lie at equal distances. */
    if (host->arrays.slopes.data)
        return false;
    for (int64_t t = 0; t < ra_layout_spans(hop->plan->layouts[keys ? RA_QUERY_SIDE : RA_KEY_SIDE]);
         t++) {
        int64_t hi = (keys ? span_band(hop, t, s) : span_band(hop, s, t)).hi;
        int64_t next = (keys ? span_band(hop, t, s + 1) : span_band(hop, s + 1, t)).hi;
        if (hi != next || (hi != RA_ALL_KEYS.hi && hi != NO_KEYS.hi))
            return false;
    }
    return true;
}

/* Cuts one side's rows into the blocks of this hop. Under a list of slices a block may have rows of
 * several spans. */
static void cut(struct hop *hop, enum ra_side side, int64_t chunk)
{
    const struct ra_host *host = hop->plan->own;
    struct ra_layout layout = hop->plan->layouts[side];
    int rank = side == RA_KEY_SIDE ? hop->shards.origin : hop->shards.rank;
    int64_t count = 0, row = 0, all = ra_layout_rows(layout, rank);
    for (; hop->plan->listed && row < all; row += chunk)
        host->blocks[side][count++] =
            (struct ra_host_block){.row = row, .count = ra_min(chunk, all - row)};
    hop->blocks[side] = count;
    if (hop->plan->listed)
        return;
    for (int64_t s = 0, next; s < ra_layout_spans(layout); s = next) {
        int64_t rows = ra_layout_span(layout, rank, s).count;
        for (next = s + 1; next < ra_layout_spans(layout) && are_one(hop, side, next - 1); next++)
            rows += ra_layout_span(layout, rank, next).count;
        for (int64_t a = 0; a < rows; a += chunk) {
            int64_t here = ra_min(chunk, rows - a);
            host->blocks[side][count++] = (struct ra_host_block){s, a, row, here};
            row += here;
        }
    }
    hop->blocks[side] = count;
}

/* ---- Threads. */

/* One thread of it: how it folds, and where it may write. */
struct worker {
    struct hop *hop;
    struct ra_fold fold;
    float *query_scratch, *key_scratch;
};

/* Waits for all threads of the plan. Alone, it must not: the barrier would be that of a caller's
 * team. */
static void wait_for_all(const struct ra_host *host)
{
    if (host->threads > 1) {
#pragma omp barrier
    }
}

/* The next item of this round for this thread; a plan that has been cancelled has none. */
static int64_t take(const struct worker *worker, int64_t round)
{
    if (ra_plan_is_cancelled(worker->hop->plan))
        return INT64_MAX;
    return atomic_fetch_add(&worker->hop->next[round % 2], 1);
}

static void no_tile(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                    const struct ra_keys *keys, struct ra_band band, float *workspace)
{
    (void)dims, (void)score, (void)queries, (void)keys, (void)band, (void)workspace;
}

/* Between two tiles: lets messages move, and leaves out the tiles of a plan that has been
 * cancelled. MPI may be called by the thread that made the call, and by no other. */
static void between_tiles(void *context)
{
    struct worker *worker = context;
    struct ra_plan *plan = worker->hop->plan;
    if (ra_host_thread(plan->own) == 0)
        ra_ring_poll(&plan->ring);
    if (!ra_plan_is_cancelled(plan))
        return;

    /* One more tile reaches to the end of all rows. */
    worker->fold.tile = no_tile;
    worker->fold.tile_queries = worker->fold.tile_keys = INT64_MAX / 2;
}

/* Where this thread may write, and how it folds. */
static struct worker worker_of(struct hop *hop)
{
    const struct ra_plan *plan = hop->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    int thread = ra_host_thread(host);
    float *scratch = host->scratch + thread * host->scratch_floats;
    struct worker worker = {
        .hop = hop,
        .fold = ra_plan_fold(plan, ra_host_tiles(host, hop->backward), hop->backward),
        .query_scratch = scratch};
    if (c->type != RA_FLOAT32) {
        int64_t row = ra_host_row(c), n = plan->rows[RA_QUERY_SIDE], m = host->visiting;
        worker.key_scratch = scratch + 3 * ra_min(ra_host_chunk(c, RA_QUERY_SIDE), n) * row;
        scratch = worker.key_scratch + 2 * ra_min(ra_host_chunk(c, RA_KEY_SIDE), m) * row;
    }
    worker.fold.workspace = scratch;
    worker.fold.between = between_tiles;
    return worker;
}

/* The slope of head h; 0: none. */
static float slope_of(const struct hop *hop, int64_t h)
{
    const struct ra_host *host = hop->plan->own;
    const struct ra_tensor *slopes = &host->arrays.slopes;
    return slopes->data ? ((const float *)slopes->data)[h * slopes->head] : 0;
}

/* Do these blocks see anything of each other? */
static bool meet(const struct hop *hop, const struct ra_host_block *queries,
                 const struct ra_host_block *keys)
{
    if (!hop->plan->listed)
        return !ra_band_is_empty(band_of(hop, queries, keys), queries->count, keys->count);
    struct ra_span_pair cut;
    struct ra_walk walk = ra_slices_walk(&hop->plan->slices, &hop->shards, queries->row,
                                         queries->count, keys->row, keys->count);
    return ra_walk_next(&walk, &cut);
}

/* Folds keys into queries of one head as far as slices go: local rows from a and from b on. */
static void fold_slices(struct worker *worker, const struct ra_queries *queries, int64_t a,
                        const struct ra_keys *keys, int64_t b)
{
    const struct hop *hop = worker->hop;
    ra_slices_fold(&worker->fold, &hop->plan->slices, &hop->shards, queries, a, keys, b);
}

/* Folds a block of keys into a block of queries of one head, some of which see some of them. */
static void fold_blocks(struct worker *worker, struct ra_queries *queries,
                        const struct ra_host_block *rows, struct ra_keys *keys,
                        const struct ra_host_block *seen)
{
    const struct hop *hop = worker->hop;
    if (hop->plan->listed) {
        fold_slices(worker, queries, rows->row, keys, seen->row);
        return;
    }
    if (worker->fold.score.slope != 0)
        ra_layout_place(&hop->shards, rows->row, queries, seen->row, keys);
    ra_band_fold(&worker->fold, queries, keys, band_of(hop, rows, seen));
}

/* All keys of head g into all queries of the heads that read it, as the stages do it. */
static void fold_head(struct worker *worker, int64_t b, int64_t g)
{
    const struct hop *hop = worker->hop;
    const struct ra_plan *plan = hop->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    struct ra_keys keys = ra_host_take_keys(plan, hop->step, hop->backward, b, g, 0, host->visiting,
                                            worker->key_scratch);
    for (int64_t h = 0; h < c->heads; h++) {
        if (ra_heads_key(c->head_map, c->heads, c->key_heads, h) != g)
            continue;
        struct ra_queries queries = ra_host_take_queries(
            plan, hop->backward, b, h, 0, plan->rows[RA_QUERY_SIDE], worker->query_scratch);
        worker->fold.score.slope = slope_of(hop, h);
        if (plan->listed)
            fold_slices(worker, &queries, 0, &keys, 0);
        else
            ra_layout_fold(&worker->fold, &hop->shards, &queries, &keys);
    }
}

/* One block of keys of head g into one block of queries of the heads that read it. */
static void fold_pair(struct worker *worker, int64_t b, int64_t g, int64_t i, int64_t j)
{
    const struct hop *hop = worker->hop;
    const struct ra_plan *plan = hop->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    const struct ra_host_block *rows = &host->blocks[RA_QUERY_SIDE][i];
    const struct ra_host_block *seen = &host->blocks[RA_KEY_SIDE][j];
    if (!meet(hop, rows, seen))
        return;
    struct ra_keys keys = ra_host_take_keys(plan, hop->step, hop->backward, b, g, seen->row,
                                            seen->count, worker->key_scratch);
    for (int64_t h = 0; h < c->heads; h++) {
        if (ra_heads_key(c->head_map, c->heads, c->key_heads, h) != g)
            continue;
        struct ra_queries queries = ra_host_take_queries(plan, hop->backward, b, h, rows->row,
                                                         rows->count, worker->query_scratch);
        worker->fold.score.slope = slope_of(hop, h);
        fold_blocks(worker, &queries, rows, &keys, seen);
    }
}

/* All keys of head g, in order, into a block of queries. */
static void fold_keys(struct worker *worker, int64_t b, int64_t g, struct ra_queries queries,
                      const struct ra_host_block *rows)
{
    const struct hop *hop = worker->hop;
    const struct ra_plan *plan = hop->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;

    /* Numbers that need not be converted need no blocks of keys: one walk goes over all of them. */
    if (plan->listed && c->type == RA_FLOAT32) {
        struct ra_keys all =
            ra_host_take_keys(plan, hop->step, false, b, g, 0, host->visiting, NULL);
        fold_slices(worker, &queries, rows->row, &all, 0);
        return;
    }
    for (int64_t j = 0; j < hop->blocks[RA_KEY_SIDE]; j++) {
        const struct ra_host_block *seen = &host->blocks[RA_KEY_SIDE][j];
        if (!meet(hop, rows, seen))
            continue;
        struct ra_keys keys = ra_host_take_keys(plan, hop->step, false, b, g, seen->row,
                                                seen->count, worker->key_scratch);
        fold_blocks(worker, &queries, rows, &keys, seen);
    }
}

/* Block i of the queries of head h: all that is done with it in this hop. */
static void fold_block(struct worker *worker, int64_t b, int64_t h, int64_t i)
{
    const struct ra_plan *plan = worker->hop->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    const struct ra_host_block *rows = &host->blocks[RA_QUERY_SIDE][i];
    bool at_once = ra_host_is_at_once(plan);
    struct ra_queries queries =
        ra_host_take_queries(plan, false, b, h, rows->row, rows->count, worker->query_scratch);
    worker->fold.score.slope = slope_of(worker->hop, h);
    if (at_once)
        ra_host_begin_block(plan, &queries);
    fold_keys(worker, b, ra_heads_key(c->head_map, c->heads, c->key_heads, h), queries, rows);
    if (at_once)
        ra_host_finish_block(plan, &queries, h);
}

/* A thread's part of a hop on plain tiles: dq, dk and dv of a head of keys belong to one thread. */
static void fold_heads(struct worker *worker)
{
    const struct ra_config *c = &worker->hop->plan->config;
    for (int64_t item; (item = take(worker, 0)) < c->batch * c->key_heads;)
        fold_head(worker, item / c->key_heads, item % c->key_heads);
}

/* Forward: a block of queries of a head belongs to one thread, which takes the keys in order. Late
 * blocks, which see more, come first. */
static void fold_queries(struct worker *worker)
{
    const struct hop *hop = worker->hop;
    const struct ra_config *c = &hop->plan->config;
    int64_t heads = c->batch * c->heads, blocks = hop->blocks[RA_QUERY_SIDE];
    for (int64_t item; (item = take(worker, 0)) < blocks * heads;) {
        int64_t i = blocks - 1 - item / heads, b = item % heads / c->heads, h = item % c->heads;
        fold_block(worker, b, h, i);
    }
}

/* Backward: in round t block j of keys meets block j + t of queries, and so on round. Then in one
 * round each block of queries and each block of keys belongs to one thread; between rounds all
 * wait. */
static void fold_both(struct worker *worker)
{
    struct hop *hop = worker->hop;
    const struct ra_config *c = &hop->plan->config;
    const struct ra_host *host = hop->plan->own;
    int64_t heads = c->batch * c->key_heads, n = hop->blocks[0], m = hop->blocks[1];
    int64_t rounds = n > m ? n : m;
    for (int64_t t = 0; t < rounds; t++) {
        if (ra_host_thread(host) == 0) {
            atomic_store(&hop->next[(t + 1) % 2], 0);
            if (ra_plan_is_cancelled(hop->plan))
                atomic_store(&hop->last_round, t);
        }
        for (int64_t item; (item = take(worker, t)) < m * heads;) {
            int64_t j = item / heads, i = (j + t) % rounds, b = item % heads / c->key_heads;
            if (i < n)
                fold_pair(worker, b, item % c->key_heads, i, j);
        }
        wait_for_all(host);

        /* All threads have to leave after the same round: each of them now reads what was stored
         * before. */
        if (t >= atomic_load(&hop->last_round))
            return;
    }
}

/* One thread's share of a hop. */
static void fold_share(void *context)
{
    struct hop *hop = context;
    struct worker worker = worker_of(hop);
    worker.fold.context = &worker;
    if (!((const struct ra_host *)hop->plan->own)->vector)
        fold_heads(&worker);
    else if (hop->backward)
        fold_both(&worker);
    else
        fold_queries(&worker);
}

void ra_host_fold(void *context, int step, bool backward)
{
    struct ra_plan *plan = context;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    int rank = plan->link.rank, origin = ra_ring_origin(&plan->ring, rank, step);
    struct hop hop = {.plan = plan,
                      .shards = ra_plan_shards(plan, rank, origin),
                      .step = step,
                      .backward = backward,
                      .last_round = INT64_MAX};
    ra_host_open_keys(plan, step, backward);
    if (host->visiting == 0)
        return;
    if (host->vector) {
        cut(&hop, RA_QUERY_SIDE, backward ? ra_host_chunk(c, RA_QUERY_SIDE) : forward_chunk(plan));
        cut(&hop, RA_KEY_SIDE, ra_host_chunk(c, RA_KEY_SIDE));
    }
    ra_host_share(host, fold_share, &hop);

    /* What was left out must not be sent on as if it were complete. */
    (void)ra_plan_state(plan);
}
