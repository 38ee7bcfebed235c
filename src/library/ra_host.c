/* ra_host: the backend that computes on the host. See ra_host.h and ra_plan.h.
 *
 * Chapter 08. New here: the ring of 07-gqa on the caller's own arrays, of any type and order, over
 * any link.
 */
#include "ra_host.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "ra_arrays.h"
#include "ra_config_check.h"
#include "ra_number.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

/* The queries' arrays of a call, as float32: the caller's own, or copies. */
struct views {
    struct ra_tensor q, o, d_out, dq;
};

/* The host's part of a plan. */
struct host {
    /* Float32 copies of arrays that are not float32: (B, n, H, D). In the backward dq takes o's
     * place once delta is known. */
    float *q, *o, *d_out;

    /* What the tiles keep of each query row, (B, H, n), and of each number of o or dq, (B, n, H, D);
     * and what they lose of the share of a hop. */
    float *max, *lse, *delta, *lost, *share_lost;
    double *sum;

    bool *mask;      /* of this rank's keys, (B, m) */
    float *visitors; /* k and v of one hop as float32, if they are not float32: 2 (B, m, G, D) */
    float *tile;     /* ra_tile_workspace */

    /* The call that is under way; k and v of the hop that is folded, as float32, and how many rows
     * they have. */
    struct ra_arrays arrays;
    struct views x;
    struct ra_tensor k, v;
    int64_t visiting;
};

/* ---- Memory. */

/* Gives every part of a rank its place in memory; returns how much that is. */
static int64_t lay_out(const struct ra_plan *plan, int rank, struct host *host, char *start,
                       void *keys[3], float *gradients[4])
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    int64_t n = ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank), m = plan->ring.rows[rank];
    int64_t row_bytes = c->batch * n * c->heads * (int64_t)sizeof(float);
    int64_t query_bytes = row_bytes * c->dim;
    int64_t visitors =
        plan->ring.schedule.count > 1 ? ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]) : m;
    bool narrow = c->type != RA_FLOAT32, backward = !c->forward_only;

    ra_arena_take(&arena, sizeof *host);
    host->q = narrow ? ra_arena_take(&arena, query_bytes) : NULL;
    host->o = narrow ? ra_arena_take(&arena, query_bytes) : NULL;
    host->d_out = narrow && backward ? ra_arena_take(&arena, query_bytes) : NULL;
    host->max = ra_arena_take(&arena, row_bytes);
    host->sum = ra_arena_take(&arena, 2 * row_bytes);
    host->lse = ra_arena_take(&arena, row_bytes);
    host->delta = backward ? ra_arena_take(&arena, row_bytes) : NULL;
    host->lost = ra_arena_take(&arena, query_bytes);
    host->share_lost =
        backward ? ra_arena_take(&arena, visitors * plan->ring.gradient_bytes) : NULL;
    host->mask = ra_arena_take(&arena, c->has_mask ? c->batch * m : 0);
    ra_plan_place_messages(plan, rank, &arena, keys, gradients);
    host->visitors = ra_arena_take(&arena, narrow ? visitors * plan->ring.gradient_bytes : 0);
    int64_t tile = ra_tile_workspace(c->tile_queries, c->tile_keys, c->dim);
    host->tile = ra_arena_take(&arena, tile * (int64_t)sizeof(float));
    return arena.used;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct host other;
    void *keys[3];
    float *gradients[4];
    return lay_out(plan, rank, &other, NULL, keys, gradients);
}

/* ---- The caller's queries. */

/* The rows of batch b and head h, as float32. */
static float *rows_of(struct ra_tensor tensor, int64_t b, int64_t h)
{
    float *data = tensor.data;
    return data ? data + b * tensor.batch + h * tensor.head : NULL;
}

/* An array of queries that can be computed with: the caller's own if it is float32, else the copy,
 * which is filled with it if it is an input. */
static struct ra_tensor view(const struct ra_plan *plan, struct ra_tensor theirs, float *copy,
                             bool input)
{
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE];
    if (theirs.type == RA_FLOAT32)
        return theirs;
    if (input)
        ra_number_load_all(theirs, c->batch, n, c->heads, c->dim, copy);
    return ra_tensor_bnhd(copy, RA_FLOAT32, n, c->heads, c->dim);
}

/* Where an output was computed in a copy, writes it to the caller's array. */
static void write_back(const struct ra_plan *plan, struct ra_tensor theirs, struct ra_tensor ours)
{
    const struct ra_config *c = &plan->config;
    if (theirs.data != ours.data)
        ra_number_store_all(theirs, c->batch, plan->rows[RA_QUERY_SIDE], c->heads, c->dim,
                            ours.data);
}

/* The queries of one batch and head. */
static struct ra_queries queries_of(const struct ra_plan *plan, int64_t b, int64_t h)
{
    const struct host *host = plan->own;
    const struct views *x = &host->x;
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads, D = plan->config.dim;
    int64_t row = (b * H + h) * n;
    return (struct ra_queries){.rows = n,
                               .stride = {x->q.row, x->o.row, x->d_out.row, x->dq.row, H * D},
                               .q = rows_of(x->q, b, h),
                               .o = rows_of(x->o, b, h),
                               .d_out = rows_of(x->d_out, b, h),
                               .dq = rows_of(x->dq, b, h),
                               .max = host->max + row,
                               .sum = host->sum + row,
                               .lost = host->lost + (b * n * H + h) * D,
                               .lse = host->lse + row,
                               .delta = host->delta ? host->delta + row : NULL};
}

/* Calls a function of ra_tile for the queries of every batch and head. */
static void each_head(const struct ra_plan *plan,
                      void (*function)(int64_t D, const struct ra_queries *queries))
{
    for (int64_t b = 0; b < plan->config.batch; b++)
        for (int64_t h = 0; h < plan->config.heads; h++) {
            struct ra_queries queries = queries_of(plan, b, h);
            function(plan->config.dim, &queries);
        }
}

/* ---- Keys. */

/* Copies the mask of this rank's keys, in which whatever is not 0 counts as true, and puts keys and
 * mask into the message that will carry them, if they travel. */
static void pack_keys(struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    struct host *host = plan->own;
    int64_t m = plan->rows[RA_KEY_SIDE];
    const struct ra_tensor *mask = &host->arrays.mask;
    for (int64_t b = 0; b < c->batch && c->has_mask; b++)
        for (int64_t a = 0; a < m; a++)
            host->mask[b * m + a] =
                ((const unsigned char *)mask->data)[b * mask->batch + a * mask->row] != 0;
    if (!ra_ring_sends(&plan->ring, plan->link.rank, 0))
        return;

    /* Rows as they are: what travels has the caller's type. */
    int64_t G = c->key_heads, bytes = c->batch * m * G * c->dim * ra_type_bytes(c->type);
    char *message = plan->ring.keys[0];
    ra_number_pack(host->arrays.k, c->batch, m, G, c->dim, message);
    ra_number_pack(host->arrays.v, c->batch, m, G, c->dim, message + bytes);
    if (c->has_mask)
        memcpy(message + 2 * bytes, host->mask, (size_t)(c->batch * m));
}

/* Makes the keys of this step ready to compute with: float32 ones where they are, others as a
 * copy. */
static void open_keys(struct ra_plan *plan, int step)
{
    const struct ra_config *c = &plan->config;
    struct host *host = plan->own;
    int64_t rows = ra_ring_rows(&plan->ring, plan->link.rank, step), G = c->key_heads, D = c->dim;
    int64_t numbers = c->batch * rows * G * D;
    host->visiting = rows;
    host->k = host->arrays.k;
    host->v = host->arrays.v;
    if (step > 0) {
        char *message = plan->ring.keys[ra_ring_slot(step)];
        host->k = ra_tensor_bnhd(message, c->type, rows, G, D);
        host->v = ra_tensor_bnhd(message + numbers * ra_type_bytes(c->type), c->type, rows, G, D);
    }
    if (c->type == RA_FLOAT32)
        return;
    ra_number_load_all(host->k, c->batch, rows, G, D, host->visitors);
    ra_number_load_all(host->v, c->batch, rows, G, D, host->visitors + numbers);
    host->k = ra_tensor_bnhd(host->visitors, RA_FLOAT32, rows, G, D);
    host->v = ra_tensor_bnhd(host->visitors + numbers, RA_FLOAT32, rows, G, D);
}

/* Of these keys, batch b and head g. */
static struct ra_keys keys_of(const struct ra_plan *plan, int step, bool backward, int64_t b,
                              int64_t g)
{
    const struct ra_config *c = &plan->config;
    const struct host *host = plan->own;
    int slot = ra_ring_slot(step);
    int64_t rows = host->visiting, stride = c->key_heads * c->dim;
    int64_t numbers = c->batch * rows * stride;
    struct ra_keys keys = {.rows = rows,
                           .stride = {host->k.row, host->v.row, stride, stride},
                           .k = rows_of(host->k, b, g),
                           .v = rows_of(host->v, b, g)};

    /* The mask lies behind the numbers of a message. */
    if (c->has_mask && step == 0)
        keys.mask = host->mask + b * rows;
    else if (c->has_mask)
        keys.mask =
            (const bool *)plan->ring.keys[slot] + 2 * numbers * ra_type_bytes(c->type) + b * rows;
    if (backward) {
        keys.dk = plan->ring.gradients[slot] + b * rows * stride + g * c->dim;
        keys.dv = keys.dk + numbers;
        keys.dk_lost = plan->ring.lost + b * rows * stride + g * c->dim;
        keys.dv_lost = keys.dk_lost + numbers;
    }
    return keys;
}

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(void *context, int step, bool backward)
{
    struct ra_plan *plan = context;
    const struct ra_config *c = &plan->config;
    const struct host *host = plan->own;
    int rank = plan->link.rank, origin = ra_ring_origin(&plan->ring, rank, step);
    struct ra_fold fold = ra_plan_fold(plan, backward);
    fold.workspace = host->tile;
    fold.between = ra_ring_poll;
    fold.context = &plan->ring;
    open_keys(plan, step);
    for (int64_t b = 0; b < c->batch && host->visiting > 0; b++)
        for (int64_t h = 0; h < c->heads; h++) {
            struct ra_queries queries = queries_of(plan, b, h);
            int64_t g = ra_heads_key(c->head_map, c->heads, c->key_heads, h);
            struct ra_keys keys = keys_of(plan, step, backward, b, g);
            ra_layout_fold(&fold, plan->layouts[RA_QUERY_SIDE], rank, plan->layouts[RA_KEY_SIDE],
                           origin, c->causal, c->lookback, &queries, &keys);
        }
}

/* ---- The calls. */

/* The caller's lse with rows and heads in the order of the plan's, (B, H, n). */
static struct ra_tensor turned(struct ra_tensor lse)
{
    return (struct ra_tensor){lse.data, lse.type, lse.batch, lse.head, lse.row};
}

static enum ra_status forward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    const struct ra_config *c = &plan->config;
    struct host *host = plan->own;
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, false);
    if (status != RA_OK)
        return status;
    host->arrays = arrays;
    host->x = (struct views){.q = view(plan, arrays.q, host->q, true),
                             .o = view(plan, arrays.o, host->o, false)};
    pack_keys(plan);
    each_head(plan, ra_tile_begin);
    if (!ra_ring_forward(&plan->ring))
        return ra_plan_lose(plan);
    each_head(plan, ra_tile_finish);

    write_back(plan, arrays.o, host->x.o);
    ra_number_store_all(turned(arrays.lse), c->batch, c->heads, plan->rows[RA_QUERY_SIDE], 1,
                        host->lse);
    return RA_OK;
}

static enum ra_status backward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    const struct ra_config *c = &plan->config;
    struct host *host = plan->own;
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, true);
    if (status != RA_OK)
        return status;
    host->arrays = arrays;
    host->x = (struct views){.q = view(plan, arrays.q, host->q, true),
                             .o = view(plan, arrays.o, host->o, true),
                             .d_out = view(plan, arrays.d_out, host->d_out, true),
                             .dq = view(plan, arrays.dq, host->o, false)};
    ra_number_load_all(turned(arrays.lse), c->batch, c->heads, plan->rows[RA_QUERY_SIDE], 1,
                       host->lse);
    pack_keys(plan);

    /* o is needed for delta alone: dq takes the place of its copy. */
    each_head(plan, ra_tile_begin_backward);
    if (!ra_ring_backward(&plan->ring))
        return ra_plan_lose(plan);

    /* dk and dv are complete and at home. */
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads * c->dim;
    write_back(plan, arrays.dq, host->x.dq);
    ra_number_store_all(arrays.dk, c->batch, m, c->key_heads, c->dim, plan->ring.gradients[0]);
    ra_number_store_all(arrays.dv, c->batch, m, c->key_heads, c->dim,
                        plan->ring.gradients[0] + numbers);
    return RA_OK;
}

/* ---- The life of a plan. */

static enum ra_status create(struct ra_plan *plan, char *error)
{
    plan->ring.fold = fold_hop;
    if (plan->look_only)
        return RA_OK;
    struct ra_ring *ring = &plan->ring;
    int64_t bytes = bytes_of(plan, plan->link.rank);
    plan->own = aligned_alloc(LINE, (size_t)bytes);
    if (!plan->own) {
        ra_refuse(error, "no memory: the plan needs %" PRId64 " bytes", plan->fixed_bytes + bytes);
        return RA_OUT_OF_MEMORY;
    }
    lay_out(plan, plan->link.rank, plan->own, plan->own, ring->keys, ring->gradients);
    ring->lost = ((struct host *)plan->own)->share_lost;
    return RA_OK;
}

static void release(struct ra_plan *plan, bool unused)
{
    if (unused)
        free(plan->own);
}

const struct ra_backend ra_host = {.place = "the host",
                                   .converts_inputs = true,
                                   .negative_strides = true,
                                   .create = create,
                                   .bytes = bytes_of,
                                   .forward = forward,
                                   .backward = backward,
                                   .free = release};
