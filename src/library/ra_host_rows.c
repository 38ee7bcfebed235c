/* ra_host_rows: the rows of queries and of keys that the host folds. See ra_host.h.
 *
 * Chapters 08 and 09. New here: arrays of 16 bits are never whole as float32; each thread reads
 * what it folds.
 */
#include <stdatomic.h>
#include <string.h>
#include "ra_arrays.h"
#include "ra_carry.h"
#include "ra_gather.h"
#include "ra_host.h"
#include "ra_math.h"
#include "ra_number.h"

/* ---- Blocks. */

int64_t ra_host_chunk(const struct ra_config *config, enum ra_side side)
{
    /* Plain tiles are folded in the order of the stages, all rows of a head by one thread. Else a
     * chunk is a tile, or as many small ones as are worth a turn. */
    int64_t all = side == RA_QUERY_SIDE ? config->queries : config->keys;
    int64_t tile = side == RA_QUERY_SIDE ? config->tile_queries : config->tile_keys;
    if (config->tile == RA_PLAIN_TILE)
        return all > 0 ? all : 1;
    return tile < 256 ? 256 / tile * tile : tile;
}

int64_t ra_host_blocks(struct ra_layout layout, int64_t rows, int64_t chunk)
{
    return ra_layout_spans(layout) + rows / ra_min(chunk, RA_HOST_PART);
}

int64_t ra_host_scratch(const struct ra_config *config, bool narrow, int64_t query_chunk,
                        int64_t key_chunk)
{
    struct ra_dims dims = ra_config_dims(config);
    int64_t rows = (3 * query_chunk + 2 * key_chunk) * ra_host_row(config);
    int64_t n = config->tile_queries, m = config->tile_keys;
    int64_t floats =
        (config->tile == RA_PLAIN_TILE ? ra_tile_workspace : ra_vector_workspace)(n, m, dims);
    if (narrow)
        floats = ra_max(floats, ra_vector_narrow_workspace(n, m, dims));
    return (config->type == RA_FLOAT32 ? 0 : rows) + floats;
}

const struct ra_vector *ra_host_narrow(const struct ra_config *config,
                                       const struct ra_vector *vector)
{
    enum { ENOUGH = 32 };
    bool fits = config->tile == RA_VECTOR_TILE && config->type == RA_BFLOAT16;
    return vector && fits && config->queries >= ENOUGH ? vector->narrow : NULL;
}

const struct ra_vector *ra_host_tiles(const struct ra_host *host, bool backward)
{
    bool narrow =
        host->arrays.q.type == RA_BFLOAT16 && (!backward || host->arrays.d_out.type == RA_BFLOAT16);
    return narrow && host->narrow ? host->narrow : host->vector;
}

/* ---- Rows. */

/* Reads rows of head h of batch b, from row a on, as float32, as far apart as tiles want them.
 * Returns how far that is. */
static int64_t load_rows(const struct ra_host *host, struct ra_tensor from, int64_t b, int64_t h,
                         int64_t a, int64_t count, int64_t D, float *to)
{
    const char *data = from.data;
    int64_t bytes = ra_type_bytes(from.type), row = ra_vector_row(D);
    for (int64_t i = 0; i < count; i++)
        (host->vector && from.type != RA_FLOAT32 ? host->vector->load : ra_number_load)(
            from.type, D, data + (b * from.batch + h * from.head + (a + i) * from.row) * bytes,
            to + i * row);
    return row;
}

/* The first row of head h of batch b, of an array of float32; of another, or of none, NULL. */
static float *rows_of(struct ra_tensor tensor, int64_t b, int64_t h)
{
    float *data = tensor.data;
    return data && tensor.type == RA_FLOAT32 ? data + b * tensor.batch + h * tensor.head : NULL;
}

/* The query rows of one batch and head. */
static struct ra_queries queries_of(const struct ra_plan *plan, int64_t b, int64_t h)
{
    const struct ra_host *host = plan->own;
    const struct ra_arrays *arrays = &host->arrays;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads, width = host->width;
    int64_t row = (b * H + h) * n;
    return (struct ra_queries){.rows = n,
                               .stride = {arrays->q.row, host->computed.row, arrays->d_out.row,
                                          host->computed.row, H * width},
                               .q = rows_of(arrays->q, b, h),
                               .o = rows_of(host->computed, b, h),
                               .d_out = rows_of(arrays->d_out, b, h),
                               .dq = rows_of(host->computed, b, h),
                               .max = host->max + row,
                               .sum = host->sum + row,
                               .comp = host->comp ? host->comp + (b * n * H + h) * width : NULL,
                               .lse = host->lse + row,
                               .delta = host->delta ? host->delta + row : NULL};
}

/* `count` of them, from row a on. What is not float32 is read into `scratch`. What a result of 16
 * bits has lost in float32 is kept while its rows are folded, and no longer: its own rounding cuts
 * off far more. */
struct ra_queries ra_host_take_queries(const struct ra_plan *plan, bool backward, int64_t b,
                                       int64_t h, int64_t a, int64_t count, float *scratch)
{
    const struct ra_host *host = plan->own;
    const struct ra_arrays *arrays = &host->arrays;
    const struct ra_config *c = &plan->config;
    int64_t place = count * ra_host_row(c), row = ra_vector_row(host->width);
    struct ra_queries all = queries_of(plan, b, h), block = ra_queries_block(&all, a, count);
    if (arrays->q.type != RA_FLOAT32) {
        block.q = scratch;
        block.stride.q = load_rows(host, arrays->q, b, h, a, count, c->dim, scratch);
    }
    if (backward && arrays->d_out.type != RA_FLOAT32) {
        block.d_out = scratch + place;
        block.stride.d_out =
            load_rows(host, arrays->d_out, b, h, a, count, c->dim_value, scratch + place);
    }
    if (!host->comp) {
        block.comp = scratch + 2 * place;
        block.stride.comp = row;
        memset(block.comp, 0, (size_t)(count * row) * sizeof *block.comp);
    }
    return block;
}

/* Where the keys of this step are that came from another rank. */
static void *message_of(const struct ra_plan *plan, int step)
{
    if (ra_plan_doubles(plan))
        return ((const struct ra_host *)plan->own)->both->keys;
    return ra_plan_gathers(plan) ? ra_gather_keys(&plan->ring, step)
                                 : plan->ring.keys[ra_ring_slot(step)];
}

/* Where this rank's share of the gradients of this step's keys is added up. */
static float *share_of(const struct ra_plan *plan, int step)
{
    if (ra_plan_doubles(plan))
        return ((const struct ra_host *)plan->own)->both->gradients;
    return ra_plan_gathers(plan) ? ra_gather_gradients(&plan->ring, step)
                                 : plan->ring.gradients[ra_ring_slot(step)];
}

/* The same of the keys of this step, of head g. */
struct ra_keys ra_host_take_keys(const struct ra_plan *plan, int step, bool backward, int64_t b,
                                 int64_t g, int64_t first, int64_t count, float *scratch)
{
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    int64_t rows = host->visiting, k_row = c->key_heads * c->dim,
            v_row = c->key_heads * c->dim_value;
    struct ra_keys keys = {
        .rows = rows,
        .stride = {host->k.row, host->v.row, host->dk.row, host->dv.row, k_row, v_row},
        .k = rows_of(host->k, b, g),
        .v = rows_of(host->v, b, g)};

    /* The mask lies behind the numbers of a message. */
    if (c->has_mask && step == 0)
        keys.mask = host->mask + b * rows;
    else if (c->has_mask)
        keys.mask = (const bool *)message_of(plan, step) +
                    c->batch * rows * (k_row + v_row) * ra_type_bytes(c->type) + b * rows;
    if (backward) {
        keys.dk = rows_of(host->dk, b, g);
        keys.dv = rows_of(host->dv, b, g);
        keys.dk_comp = plan->ring.comp + b * rows * k_row + g * c->dim;
        keys.dv_comp = plan->ring.comp + (c->batch * k_row + b * v_row) * rows + g * c->dim_value;
    }
    struct ra_keys block = ra_keys_block(&keys, first, count);
    if (host->k.type != RA_FLOAT32) {
        block.k = scratch;
        block.stride.k = load_rows(host, host->k, b, g, first, count, c->dim, scratch);
    }
    if (host->v.type != RA_FLOAT32) {
        float *place = scratch + count * ra_host_row(c);
        block.v = place;
        block.stride.v = load_rows(host, host->v, b, g, first, count, c->dim_value, place);
    }
    return block;
}

/* Makes the keys of this step ready: where they are, and of which type; backward, their
 * gradients. */
void ra_host_open_keys(struct ra_plan *plan, int step, bool backward)
{
    const struct ra_config *c = &plan->config;
    struct ra_host *host = plan->own;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step), G = c->key_heads;
    int64_t numbers = c->batch * rows * G * c->dim; /* of k: behind it lies v */
    host->visiting = rows;
    host->k = host->arrays.k;
    host->v = host->arrays.v;
    host->dk = host->arrays.dk;
    host->dv = host->arrays.dv;
    if (step > 0) {
        char *message = message_of(plan, step);
        host->k = ra_tensor_bnhd(message, c->type, rows, G, c->dim);
        host->v = ra_tensor_bnhd(message + numbers * ra_type_bytes(c->type), c->type, rows, G,
                                 c->dim_value);
    }
    if (backward && !ra_plan_adds_in_place(plan)) {
        float *share = share_of(plan, step);
        host->dk = ra_tensor_bnhd(share, RA_FLOAT32, rows, G, c->dim);
        host->dv = ra_tensor_bnhd(share + numbers, RA_FLOAT32, rows, G, c->dim_value);
    }
}

/* What each thread does with chunks of queries of a head. */
struct rows {
    struct ra_plan *plan;
    void (*function)(const struct ra_plan *plan, const struct ra_queries *queries, int64_t b,
                     int64_t h, int64_t a);
    bool delta;        /* the function computes delta, and needs o */
    atomic_llong next; /* head that no thread has taken */
};

/* Calls the function for the queries of one head, chunk by chunk. */
static void call_for_head(const struct rows *rows, int64_t b, int64_t h)
{
    const struct ra_plan *plan = rows->plan;
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    struct ra_tensor o = host->arrays.o;
    int64_t n = plan->rows[RA_QUERY_SIDE];
    int64_t chunk = ra_min(ra_host_chunk(c, RA_QUERY_SIDE), n > 0 ? n : 1);
    float *scratch = host->scratch + ra_host_thread(host) * host->scratch_floats;
    for (int64_t a = 0; a < n; a += chunk) {
        int64_t count = ra_min(chunk, n - a);
        struct ra_queries queries =
            ra_host_take_queries(plan, rows->delta, b, h, a, count, scratch);
        if (rows->delta && o.type == RA_FLOAT32) {
            queries.o = rows_of(o, b, h) + a * o.row;
            queries.stride.o = o.row;
        } else if (rows->delta) {
            /* q is not needed: o takes its place. */
            queries.o = scratch;
            queries.stride.o = load_rows(host, o, b, h, a, count, c->dim_value, scratch);
        }
        rows->function(plan, &queries, b, h, a);
    }
}

static void call_for_heads(void *context)
{
    struct rows *rows = context;
    const struct ra_config *c = &rows->plan->config;
    for (int64_t item; (item = atomic_fetch_add(&rows->next, 1)) < c->batch * c->heads;)
        call_for_head(rows, item / c->heads, item % c->heads);
}

/* ---- What is done with queries before the first key and after the last. Rows of a head are one
 * thread's, in order: so sums over them have the same bits whatever the number of threads. */

void ra_host_begin_block(const struct ra_plan *plan, const struct ra_queries *queries)
{
    ra_tile_begin(ra_config_dims(&plan->config), queries);
}

void ra_host_finish_block(const struct ra_plan *plan, const struct ra_queries *queries, int64_t h)
{
    const struct ra_tensor *sink = &((const struct ra_host *)plan->own)->arrays.sink;
    if (sink->data)
        ra_carry_add_sink(ra_config_dims(&plan->config).value, queries, rows_of(*sink, 0, h)[0]);
    ra_tile_finish(ra_config_dims(&plan->config), queries);
}

/* Only where what a carry has lost is kept beside it (host->comp; not with 16 bits): so the order
 * of the work changes no bit. */
bool ra_host_is_at_once(const struct ra_plan *plan)
{
    const struct ra_host *host = plan->own;
    return host->vector && host->comp && !host->arrays.largest.data &&
           plan->ring.schedule.count == 1 && ra_ring_rows(&plan->ring, plan->link.rank, 0) > 0;
}

/* The functions that call_for_all is given. Each gets some queries of head h of batch b, those from
 * row a on. */
static void begin(const struct ra_plan *plan, const struct ra_queries *queries, int64_t b,
                  int64_t h, int64_t a)
{
    (void)b, (void)h, (void)a;
    ra_host_begin_block(plan, queries);
}

static void finish(const struct ra_plan *plan, const struct ra_queries *queries, int64_t b,
                   int64_t h, int64_t a)
{
    (void)a;
    const struct ra_host *host = plan->own;
    double *largest = host->of_heads + b * plan->config.heads + h;
    if (host->arrays.largest.data)
        *largest = (double)ra_carry_largest(queries, (float)*largest);
    ra_host_finish_block(plan, queries, h);
}

static void begin_backward(const struct ra_plan *plan, const struct ra_queries *queries, int64_t b,
                           int64_t h, int64_t a)
{
    const struct ra_host *host = plan->own;
    const struct ra_arrays *arrays = &host->arrays;
    (host->vector ? ra_host_tiles(host, true)->begin_backward
                  : ra_tile_begin_backward)(ra_config_dims(&plan->config), queries);
    if (arrays->d_lse.data)
        ra_carry_add_lse_gradient(queries, rows_of(arrays->d_lse, b, h) + a * arrays->d_lse.row,
                                  arrays->d_lse.row);
    if (arrays->d_sink.data)
        host->of_heads[b * plan->config.heads + h] +=
            ra_carry_sink_gradient(queries, rows_of(arrays->sink, 0, h)[0]);
}

/* Calls one of these functions for all queries, head by head and chunk by chunk. With `delta` the
 * queries have o as well, of which delta is computed. */
static void call_for_all(struct ra_plan *plan, bool delta,
                         void (*function)(const struct ra_plan *plan,
                                          const struct ra_queries *queries, int64_t b, int64_t h,
                                          int64_t a))
{
    struct rows rows = {.plan = plan, .function = function, .delta = delta};
    ra_host_share(plan->own, call_for_heads, &rows);
}

void ra_host_begin(struct ra_plan *plan)
{
    call_for_all(plan, false, begin);
}

void ra_host_finish(struct ra_plan *plan)
{
    const struct ra_host *host = plan->own;
    ra_arrays_begin_heads(plan, false, host->of_heads);
    call_for_all(plan, false, finish);
    ra_arrays_end_heads(plan, false, host->of_heads, &host->arrays);
}

void ra_host_begin_backward(struct ra_plan *plan)
{
    const struct ra_host *host = plan->own;
    ra_arrays_begin_heads(plan, true, host->of_heads);
    call_for_all(plan, true, begin_backward);
    ra_arrays_end_heads(plan, true, host->of_heads, &host->arrays);
}
