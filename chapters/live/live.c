/* live: the project's own modules, as the live pictures of the book call them. Each export answers
 * one question of live.js with numbers that a module has counted; it computes none itself.
 *
 * Answers of more than one number lie in `numbers` or `cells`, until the next question.
 */
#include "live.h"
#include "ra_config_check.h"
#include "ra_scale_cost.h"
#include "ra_tile.h"

enum { MOST_ROWS = 4096, MOST_RANKS = 64, MOST_DOCUMENTS = 16 };
enum { MOST_CELLS = 128 * 128 };

static double numbers[3 * MOST_RANKS * MOST_RANKS + 3];
static unsigned char cells[MOST_CELLS];
static char error[RA_ERROR_SIZE];

EXPORT(error) const char *live_error(void)
{
    return error;
}

/* ---- A backend that is never asked to compute. The cost model prices plans for `the host`. */

static enum ra_status create(struct ra_plan *made, char *text)
{
    (void)made, (void)text;
    return RA_OK;
}

static int64_t no_bytes(const struct ra_plan *any, int rank)
{
    (void)any, (void)rank;
    return 0;
}

static void leave_memory(struct ra_plan *dead, bool unused)
{
    (void)dead, (void)unused;
}

static enum ra_status use_slices(struct ra_plan *made, char *text)
{
    return create(made, text);
}

const struct ra_backend ra_host = {.place = "a page",
                                   .create = create,
                                   .bytes = no_bytes,
                                   .workspace_bytes = no_bytes,
                                   .use_slices = use_slices,
                                   .free = leave_memory};

/* ---- The ring and its mask. */

static struct ra_config config;
static struct ra_plan *plan;
static struct ra_slice slices[MOST_DOCUMENTS];
static int64_t bounds[MOST_DOCUMENTS + 1];
static struct ra_scale_mask mask;

/* Document i ends before this row. */
EXPORT(document) void live_document(int i, int end)
{
    bounds[i + 1] = end;
}

static enum ra_status make_plan(void)
{
    struct ra_link alone = {.rank = 0, .size = config.ring_size};
    struct ra_config read;
    enum ra_status status = ra_config_read(&read, &config, error);
    if (status == RA_OK)
        status = ra_plan_build(&plan, &read, NULL, &alone, &ra_host, true, error);
    if (status == RA_OK && mask.count > 0)
        status = ra_plan_set_slices(plan, mask.slices, mask.count, mask.deal);
    return status;
}

/* Makes the plan of a ring: layout 3 deals by document; lookback -1 is none. Float32, one head of
 * 64 numbers, tiles of one query and one key. Returns how many hops it has; -1: see error. */
EXPORT(plan)
int live_plan(int ranks, int rows, int layout, int causal, int lookback, int documents)
{
    static void *mark;
    mark = live_heap(mark); /* what the plan before took */
    bool dealt = layout == RA_DEALT;
    config = (struct ra_config)RA_CONFIG_INIT;
    config.queries = rows;
    config.dim = 64;
    config.causal = causal && documents == 0;
    config.lookback = config.causal && lookback >= 0 ? lookback : RA_NO_LOOKBACK;
    config.layout = dealt ? RA_CONTIGUOUS : (enum ra_layout_kind)layout;
    config.ring_size = ranks;
    config.tile_queries = config.tile_keys = 1;
    config.tile = RA_PLAIN_TILE;
    mask = (struct ra_scale_mask){slices, 0, dealt ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT};
    if (documents > 0) {
        int64_t back = lookback >= 0 ? lookback : RA_NO_LOOKBACK;
        mask.count =
            ra_slices_documents(bounds, documents, back, causal ? 0 : RA_NO_LOOKBACK, slices);
        config.max_slices = mask.count;
        config.max_rows = dealt ? rows : 0;
    }
    return make_plan() == RA_OK ? ra_plan_hops(plan) : -1;
}

EXPORT(rows) int live_rows(int rank)
{
    return (int)ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank);
}

EXPORT(position) int live_position(int rank, int row)
{
    return (int)ra_layout_position(plan->layouts[RA_QUERY_SIDE], rank, row);
}

/* What a rank does in a hop: distance, origin, multiply-adds, tiles skipped, messages, bytes; and
 * the rank to which its keys go, -1: they stay. */
EXPORT(hop) double *live_hop(int rank, int step, int backward)
{
    struct ra_hop hop = {0};
    if (ra_plan_hop(plan, rank, step, backward, &hop) != RA_OK)
        return NULL;
    bool sends = ra_ring_sends(&plan->ring, rank, step);
    const double answer[] = {
        hop.distance,
        hop.origin,
        (double)hop.multiply_adds,
        (double)hop.tiles_skipped,
        (double)hop.messages,
        (double)hop.bytes,
        sends ? ra_ring_rank_at(&plan->ring, rank, ra_ring_stride(&plan->ring, step)) : -1};
    for (int i = 0; i < 7; i++)
        numbers[i] = answer[i];
    return numbers;
}

/* Marks what a rectangle of local rows with a band has visible, in cells (rows, keys). */
static void mark(const struct ra_span_pair *pair, int64_t keys)
{
    for (int64_t a = 0; a < pair->rows; a++)
        for (int64_t b = 0; b < pair->visitors; b++)
            if (pair->band.lo <= b - a && b - a <= pair->band.hi)
                cells[(pair->a + a) * keys + pair->b + b] = 1;
}

/* Which keys of `origin` the queries of `rank` see: cells (rows of rank, rows of origin). */
EXPORT(seen) unsigned char *live_seen(int rank, int origin)
{
    struct ra_shard_pair shards = {.queries = plan->layouts[RA_QUERY_SIDE],
                                   .keys = plan->layouts[RA_KEY_SIDE],
                                   .rank = rank,
                                   .origin = origin,
                                   .causal = plan->config.causal,
                                   .lookback = plan->config.lookback};
    int64_t rows = live_rows(rank), keys = live_rows(origin);
    if (rows * keys > MOST_CELLS)
        return NULL;
    for (int64_t i = 0; i < rows * keys; i++)
        cells[i] = 0;
    struct ra_span_pair pair;
    if (plan->listed) {
        struct ra_walk walk = ra_slices_walk(&plan->slices, &shards, 0, rows, 0, keys);
        while (ra_walk_next(&walk, &pair))
            mark(&pair, keys);
        return cells;
    }
    for (int64_t s = 0; s < ra_layout_spans(shards.queries); s++)
        for (int64_t t = 0; t < ra_layout_spans(shards.keys); t++) {
            pair = ra_layout_pair(&shards, s, t);
            mark(&pair, keys);
        }
    return cells;
}

/* When each rank of the plan works and waits: seconds of all; then of each hop, and in it of each
 * rank, when it began, had worked, and went on. A multiply-add is a second; `ratio`: so many of
 * them take as long as one byte. */
EXPORT(simulate) double *live_simulate(double ratio, int backward)
{
    void *before = live_heap(NULL);
    struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
    struct ra_cost cost;
    machine.forward_rate = machine.backward_rate = 1;
    machine.bandwidth = 1 / ratio;
    if (ra_cost_open(&cost, &config, mask.count > 0 ? &mask : NULL, &machine, error) != RA_OK)
        return NULL;
    static struct ra_simulated_hop hops[MOST_RANKS * MOST_RANKS];
    enum ra_status status = ra_simulate(numbers, &cost, backward, NULL, hops, error);
    int count = cost.plan->ring.schedule.count * cost.ranks;
    for (int i = 0; i < count; i++) {
        numbers[1 + 3 * i] = hops[i].begin;
        numbers[2 + 3 * i] = hops[i].worked;
        numbers[3 + 3 * i] = hops[i].end;
    }
    live_heap(before);
    return status == RA_OK ? numbers : NULL;
}

/* ---- A band over tiles. */

/* Which tiles of `rows` queries and keys are computed: cells (tiles of queries, tiles of keys);
 * lookback -1: none. */
EXPORT(tiles)
unsigned char *live_tiles(int rows, int lookback, int tile_queries, int tile_keys)
{
    struct ra_span all = {0, 1, rows};
    struct ra_band band = ra_band_causal(all, all, lookback >= 0 ? lookback : RA_BAND_FAR);
    unsigned char *cell = cells;
    for (int a = 0; a < rows; a += tile_queries)
        for (int b = 0; b < rows; b += tile_keys)
            *cell++ = !ra_band_is_empty(ra_band_from(band, a, b),
                                        rows - a < tile_queries ? rows - a : tile_queries,
                                        rows - b < tile_keys ? rows - b : tile_keys);
    return cells;
}

/* ---- What it costs. */

/* Attention of `tokens` on a ring of `ranks` that need not exist, 32 heads of 128 numbers of 16
 * bits, `key_heads` of keys: seconds of the pass, of work and of waiting of a rank on average; and
 * of its first hop and the message behind it. `rate` in multiply-adds a second, `bandwidth` in
 * bytes. */
EXPORT(predict)
double *live_predict(int ranks, double tokens, int layout, int causal, int key_heads, double rate,
                     double bandwidth, int backward)
{
    void *before = live_heap(NULL);
    struct ra_config asked = RA_CONFIG_INIT;
    struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
    struct ra_scale scale;
    static struct ra_scale_hop hops[2 * 4096];
    asked.queries = (int64_t)tokens;
    asked.heads = 32;
    asked.key_heads = key_heads;
    asked.dim = 128;
    asked.type = RA_BFLOAT16;
    asked.causal = causal;
    asked.layout = (enum ra_layout_kind)layout;
    asked.ring_size = ranks;
    machine.forward_rate = machine.backward_rate = rate;
    machine.bandwidth = bandwidth;
    enum ra_status status =
        ra_scale_predict(&scale, &asked, NULL, &machine, RA_SCALE_RING, hops, error);
    live_heap(before);
    if (status != RA_OK)
        return NULL;
    const struct ra_scale_pass *pass = backward ? &scale.backward : &scale.forward;
    const struct ra_scale_hop *hop = &hops[backward ? ranks : 0];
    numbers[0] = pass->seconds;
    numbers[1] = pass->work;
    numbers[2] = pass->waiting;
    numbers[3] = hop->work;
    numbers[4] = hop->messages;
    return numbers;
}

/* ---- Online softmax: one query and one number in each key and value, as in the toy of chapter
 * 02. */

static const struct ra_dims one = {1, 1};
static float o, max, lse, comp;
static double sum;

static struct ra_queries row(void)
{
    static const float q = 1;
    struct ra_queries queries = {.rows = 1, .q = &q, .o = &o, .max = &max, .sum = &sum};
    queries.comp = &comp;
    queries.lse = &lse;
    queries.stride.q = queries.stride.o = queries.stride.comp = 1;
    return queries;
}

static double *carry(void)
{
    numbers[0] = max;
    numbers[1] = sum;
    numbers[2] = o;
    numbers[3] = lse;
    return numbers;
}

/* Empties the carry; folds one key into it; ends: o is the mean of the values then. Returns max,
 * sum, o and lse. */
EXPORT(fold_begin) double *live_fold_begin(void)
{
    struct ra_queries queries = row();
    ra_tile_begin(one, &queries);
    lse = 0;
    return carry();
}

EXPORT(fold) double *live_fold(double key, double value)
{
    float k = (float)key, v = (float)value, workspace[256];
    struct ra_score score = {.scale = 1};
    struct ra_queries queries = row();
    struct ra_keys keys = {.rows = 1, .k = &k, .v = &v};
    keys.stride.k = keys.stride.v = 1;
    ra_tile_forward(one, score, &queries, &keys, RA_ALL_KEYS, workspace);
    return carry();
}

EXPORT(fold_end) double *live_fold_end(void)
{
    struct ra_queries queries = row();
    ra_tile_finish(one, &queries);
    return carry();
}
