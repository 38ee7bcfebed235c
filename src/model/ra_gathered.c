/* ra_gathered: attention of a ring without a ring. See ra_gathered.h.
 *
 * Chapter 10.
 */
#include "ra_gathered.h"
#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include "ra_arrays.h"
#include "ra_carry.h"
#include "ra_clock.h"
#include "ra_collective.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_message.h"
#include "ra_mpi_link.h"
#include "ra_number.h"
#include "ra_processors.h"
#include "ra_vector.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

/* This part of a plan. A rank's piece of `keys` is its k (B, m, G, D) and behind it its v (B, m, G,
 * D_v); of `gradients` dk and dv; of `masks` (B, m). Pieces lie in the order of the ranks. */
struct gathered {
    const struct ra_vector *vector; /* NULL: tiles are plain */
    MPI_Comm ring;                  /* of the ranks of this set alone */
    MPI_Request request;
    int *numbers,
        *first_number; /* of each rank's piece of keys: how many numbers, and which is the first */
    int *bools, *first_bool;        /* of each rank's piece of masks */
    int64_t *first_row;             /* of each rank, in an array of all keys */
    float *keys, *gradients, *home; /* home: the piece of this rank, when it is complete */
    bool *masks;
    double *of_heads; /* (B, H): see ra_arrays_begin_heads */
    int threads;
    char *scratch; /* one of each thread */
    int64_t scratch_bytes;
    int64_t lists[2]; /* of slices, that all ranks must have alike: see agree */
};

/* What a thread has to itself: what the tiles keep of the queries of one head, and of dk and dv of
 * one head of keys of all ranks, (M, D) and (M, D_v). */
struct scratch {
    double *sum;
    float *max, *lse, *delta, *comp;
    float *dk, *dv, *dk_comp, *dv_comp, *workspace;
};

static bool is_backward(const struct ra_plan *plan)
{
    return !plan->config.forward_only;
}

/* Numbers that a row of keys has: k and v of all batches and heads. */
static int64_t row_numbers(const struct ra_config *c)
{
    return c->batch * c->key_heads * (c->dim + c->dim_value);
}

/* ---- Memory. */

/* Cuts a thread's scratch into its parts, or only counts if `start` is NULL. Returns how many bytes
 * they have. */
static int64_t lay_out_scratch(const struct ra_plan *plan, int rank, char *start,
                               struct scratch *scratch)
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    const int64_t number = sizeof(float);
    int64_t n = ra_plan_bound(plan, RA_QUERY_SIDE, rank);
    int64_t gradients = is_backward(plan) ? c->keys * number : 0;
    int64_t (*workspace)(int64_t, int64_t, struct ra_dims) =
        c->tile == RA_PLAIN_TILE ? ra_tile_workspace : ra_vector_workspace;
    scratch->sum = ra_arena_take(&arena, n * (int64_t)sizeof *scratch->sum);
    scratch->max = ra_arena_take(&arena, n * number);
    scratch->lse = ra_arena_take(&arena, n * number);
    scratch->delta = ra_arena_take(&arena, n * number);
    scratch->comp = ra_arena_take(&arena, n * number * ra_dims_most(ra_config_dims(c)));
    scratch->dk = ra_arena_take(&arena, gradients * c->dim);
    scratch->dv = ra_arena_take(&arena, gradients * c->dim_value);
    scratch->dk_comp = ra_arena_take(&arena, gradients * c->dim);
    scratch->dv_comp = ra_arena_take(&arena, gradients * c->dim_value);
    scratch->workspace =
        ra_arena_take(&arena, number * workspace(c->tile_queries, c->tile_keys, ra_config_dims(c)));
    return arena.used;
}

/* Gives every part of a rank its place in memory; returns how much that is. */
static int64_t lay_out(const struct ra_plan *plan, int rank, struct gathered *gathered, char *start)
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    struct scratch scratch;
    int64_t P = plan->link.size, whole = c->keys * row_numbers(c) * (int64_t)sizeof(float);
    int64_t own = ra_plan_bound(plan, RA_KEY_SIDE, rank) * row_numbers(c) * (int64_t)sizeof(float);
    ra_arena_take(&arena, sizeof *gathered);
    gathered->numbers = ra_arena_take(&arena, P * (int64_t)sizeof(int));
    gathered->first_number = ra_arena_take(&arena, P * (int64_t)sizeof(int));
    gathered->bools = ra_arena_take(&arena, P * (int64_t)sizeof(int));
    gathered->first_bool = ra_arena_take(&arena, P * (int64_t)sizeof(int));
    gathered->first_row = ra_arena_take(&arena, P * (int64_t)sizeof(int64_t));
    gathered->keys = ra_arena_take(&arena, whole);
    gathered->gradients = ra_arena_take(&arena, is_backward(plan) ? whole : 0);
    gathered->home = ra_arena_take(&arena, is_backward(plan) ? own : 0);
    gathered->masks = ra_arena_take(&arena, c->has_mask ? c->batch * c->keys : 0);
    gathered->of_heads = ra_arena_take(&arena, c->batch * c->heads * (int64_t)sizeof(double));
    gathered->threads = ra_processors_threads(
        c->threads, plan->link.sharing, c->batch * (is_backward(plan) ? c->key_heads : c->heads));
    gathered->scratch_bytes = lay_out_scratch(plan, rank, NULL, &scratch);
    gathered->scratch = ra_arena_take(&arena, gathered->threads * gathered->scratch_bytes);
    return arena.used;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct gathered other;
    return lay_out(plan, rank, &other, NULL);
}

/* ---- Rows. */

/* The first row of head h of batch b; NULL of an array that is not used. */
static float *rows_of(struct ra_tensor tensor, int64_t b, int64_t h)
{
    return tensor.data ? (float *)tensor.data + b * tensor.batch + h * tensor.head : NULL;
}

static struct ra_queries queries_of(const struct ra_plan *plan, const struct ra_arrays *x,
                                    const struct scratch *scratch, bool backward, int64_t b,
                                    int64_t h)
{
    const struct ra_config *c = &plan->config;
    return (struct ra_queries){
        .rows = plan->rows[RA_QUERY_SIDE],
        .stride = {x->q.row, x->o.row, x->d_out.row, x->dq.row, backward ? c->dim : c->dim_value},
        .q = rows_of(x->q, b, h),
        .o = rows_of(x->o, b, h),
        .d_out = rows_of(x->d_out, b, h),
        .dq = rows_of(x->dq, b, h),
        .max = scratch->max,
        .sum = scratch->sum,
        .comp = scratch->comp,
        .lse = scratch->lse,
        .delta = scratch->delta};
}

/* Head g of the keys of a rank. */
static struct ra_keys keys_of(const struct ra_plan *plan, const struct scratch *scratch, int origin,
                              int64_t b, int64_t g)
{
    const struct ra_config *c = &plan->config;
    const struct gathered *gathered = plan->own;
    int64_t rows = plan->ring.rows[origin], G = c->key_heads, D = c->dim, D_v = c->dim_value;
    const float *piece = gathered->keys + gathered->first_number[origin];
    int64_t head = b * rows * G + g, row = gathered->first_row[origin];
    struct ra_keys keys = {.rows = rows,
                           .stride = {G * D, G * D_v, D, D_v, D, D_v},
                           .k = piece + head * D,
                           .v = piece + c->batch * rows * G * D + head * D_v};
    if (c->has_mask)
        keys.mask = gathered->masks + gathered->first_bool[origin] + b * rows;
    if (is_backward(plan)) {
        keys.dk = scratch->dk + row * D;
        keys.dv = scratch->dv + row * D_v;
        keys.dk_comp = scratch->dk_comp + row * D;
        keys.dv_comp = scratch->dv_comp + row * D_v;
    }
    return keys;
}

/* ---- What the ranks do together. */

static void tell(const struct ra_plan *plan, enum ra_event_kind kind, bool backward, double start)
{
    if (plan->ring.observe)
        plan->ring.observe(plan->ring.observer,
                           &(struct ra_event){kind, backward, 0, start, ra_seconds()});
}

static bool await(struct ra_plan *plan, int code, bool backward, const char *what)
{
    struct gathered *gathered = plan->own;
    double start = ra_seconds();
    bool done = ra_collective_wait_link(&plan->link, gathered->ring, code, &gathered->request,
                                        plan->config.timeout, what);
    tell(plan, RA_EVENT_WAIT, backward, start);
    return done;
}

/* Do all ranks have the same list of slices, and so the same rows? Of a number and its complement
 * the most is found: if they all have the same, these are complements still. */
static enum ra_status agree(struct ra_plan *plan, bool backward)
{
    struct gathered *g = plan->own;
    if (plan->config.max_slices == 0)
        return RA_OK;
    g->lists[0] = plan->ring.call.slices;
    g->lists[1] = ~plan->ring.call.slices;
    if (!await(
            plan,
            MPI_Iallreduce(MPI_IN_PLACE, g->lists, 2, MPI_INT64_T, MPI_MAX, g->ring, &g->request),
            backward, "slices of all ranks"))
        return ra_plan_fail(plan);
    if (g->lists[0] == ~g->lists[1])
        return RA_OK;
    return ra_plan_abort(plan, RA_LOST,
                         "ranks were given different slices, or deals: all give "
                         "ra_plan_set_slices the same");
}

/* Every rank gets the keys, values and masks of all. */
static bool gather(struct ra_plan *plan, const struct ra_arrays *x, bool backward)
{
    const struct ra_config *c = &plan->config;
    struct gathered *g = plan->own;
    int rank = plan->link.rank;
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads * c->dim;
    float *own = g->keys + g->first_number[rank];
    ra_number_pack(x->k, c->batch, m, c->key_heads, c->dim, own);
    ra_number_pack(x->v, c->batch, m, c->key_heads, c->dim_value, own + numbers);
    if (!await(plan,
               MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, g->keys, g->numbers,
                               g->first_number, MPI_FLOAT, g->ring, &g->request),
               backward, "keys of all ranks"))
        return false;
    if (!c->has_mask)
        return true;

    /* Whatever is not 0 counts as true. */
    bool *mask = g->masks + g->first_bool[rank];
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t a = 0; a < m; a++)
            mask[b * m + a] =
                ((const unsigned char *)x->mask.data)[b * x->mask.batch + a * x->mask.row] != 0;
    return await(plan,
                 MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, g->masks, g->bools,
                                 g->first_bool, MPI_C_BOOL, g->ring, &g->request),
                 backward, "masks of all ranks");
}

/* The sum of all ranks' gradients of a key goes to the rank that has it. */
static bool reduce(struct ra_plan *plan)
{
    struct gathered *g = plan->own;
    return await(plan,
                 MPI_Ireduce_scatter(g->gradients, g->home, g->numbers, MPI_FLOAT, MPI_SUM, g->ring,
                                     &g->request),
                 true, "gradients of all ranks");
}

/* ---- The fold. */

static struct ra_fold fold_of(const struct ra_plan *plan, const struct scratch *scratch,
                              bool backward)
{
    const struct gathered *gathered = plan->own;
    struct ra_fold fold = ra_plan_fold(plan, gathered->vector, backward);
    fold.workspace = scratch->workspace;
    return fold;
}

/* The number of head h in an array of one for each head. */
static float number_of(struct ra_tensor tensor, int64_t h)
{
    return rows_of(tensor, 0, h)[0];
}

/* Head g of the keys of all ranks into head h of the queries. */
static void fold_all(const struct ra_plan *plan, const struct ra_arrays *x,
                     const struct scratch *scratch, bool backward, const struct ra_queries *queries,
                     int64_t b, int64_t g, int64_t h)
{
    struct ra_fold fold = fold_of(plan, scratch, backward);
    fold.score.slope = x->slopes.data ? number_of(x->slopes, h) : 0;
    for (int origin = 0; origin < plan->link.size; origin++) {
        struct ra_keys keys = keys_of(plan, scratch, origin, b, g);
        struct ra_shard_pair shards = ra_plan_shards(plan, plan->link.rank, origin);
        if (plan->listed)
            ra_slices_fold(&fold, &plan->slices, &shards, queries, 0, &keys, 0);
        else
            ra_layout_fold(&fold, &shards, queries, &keys);
    }
}

static void forward_head(const struct ra_plan *plan, const struct ra_arrays *x,
                         const struct scratch *scratch, int64_t b, int64_t h)
{
    const struct ra_config *c = &plan->config;
    const struct gathered *gathered = plan->own;
    struct ra_queries queries = queries_of(plan, x, scratch, false, b, h);
    double *largest = gathered->of_heads + b * c->heads + h;
    ra_tile_begin(ra_config_dims(c), &queries);
    fold_all(plan, x, scratch, false, &queries, b,
             ra_heads_key(c->head_map, c->heads, c->key_heads, h), h);
    if (x->largest.data)
        *largest = (double)ra_carry_largest(&queries, (float)*largest);
    if (x->sink.data)
        ra_carry_add_sink(ra_config_dims(c).value, &queries, number_of(x->sink, h));
    ra_tile_finish(ra_config_dims(c), &queries);
    for (int64_t a = 0; a < queries.rows; a++)
        rows_of(x->lse, b, h)[a * x->lse.row] = scratch->lse[a];
}

/* Copies rows of `dim` numbers, side by side, to head g of batch b. */
static void copy_head(struct ra_tensor to, int64_t b, int64_t g, int64_t rows, int64_t dim,
                      const float *from)
{
    for (int64_t a = 0; a < rows; a++)
        memcpy(rows_of(to, b, g) + a * to.row, from + a * dim, (size_t)dim * sizeof(float));
}

/* dq of all heads that read head g of the keys, and this rank's share of its dk and dv. */
static void backward_head(const struct ra_plan *plan, const struct ra_arrays *x,
                          const struct scratch *scratch, int64_t b, int64_t g)
{
    const struct ra_config *c = &plan->config;
    const struct gathered *gathered = plan->own;
    size_t bytes = (size_t)c->keys * sizeof(float), D = (size_t)c->dim, D_v = (size_t)c->dim_value;
    memset(scratch->dk, 0, bytes * D);
    memset(scratch->dv, 0, bytes * D_v);
    memset(scratch->dk_comp, 0, bytes * D);
    memset(scratch->dv_comp, 0, bytes * D_v);
    for (int64_t h = 0; h < c->heads; h++) {
        if (ra_heads_key(c->head_map, c->heads, c->key_heads, h) != g)
            continue;
        struct ra_queries queries = queries_of(plan, x, scratch, true, b, h);
        for (int64_t a = 0; a < queries.rows; a++)
            scratch->lse[a] = rows_of(x->lse, b, h)[a * x->lse.row];
        (gathered->vector ? gathered->vector->begin_backward
                          : ra_tile_begin_backward)(ra_config_dims(c), &queries);
        if (x->d_lse.data)
            ra_carry_add_lse_gradient(&queries, rows_of(x->d_lse, b, h), x->d_lse.row);
        if (x->d_sink.data)
            gathered->of_heads[b * c->heads + h] =
                ra_carry_sink_gradient(&queries, number_of(x->sink, h));
        fold_all(plan, x, scratch, true, &queries, b, g, h);
    }

    /* To the pieces of their ranks. What they have lost is less than their last digit. */
    for (int origin = 0; origin < plan->link.size; origin++) {
        int64_t rows = plan->ring.rows[origin], row = gathered->first_row[origin];
        float *piece = gathered->gradients + gathered->first_number[origin];
        struct ra_tensor dk = ra_tensor_bnhd(piece, RA_FLOAT32, rows, c->key_heads, c->dim);
        struct ra_tensor dv = ra_tensor_bnhd(piece + c->batch * dk.batch, RA_FLOAT32, rows,
                                             c->key_heads, c->dim_value);
        copy_head(dk, b, g, rows, c->dim, scratch->dk + row * c->dim);
        copy_head(dv, b, g, rows, c->dim_value, scratch->dv + row * c->dim_value);
    }
}

/* All heads of queries or, backward, of keys: each is one thread's work. */
static void fold_heads(const struct ra_plan *plan, const struct ra_arrays *x, bool backward)
{
    const struct gathered *gathered = plan->own;
    int64_t heads = backward ? plan->config.key_heads : plan->config.heads;
    double start = ra_seconds();
    ra_arrays_begin_heads(plan, backward, gathered->of_heads);
#pragma omp parallel for schedule(dynamic) num_threads(gathered->threads) if (gathered->threads > 1)
    for (int64_t item = 0; item < plan->config.batch * heads; item++) {
        struct scratch scratch;
        lay_out_scratch(plan, plan->link.rank,
                        gathered->scratch + omp_get_thread_num() * gathered->scratch_bytes,
                        &scratch);
        (backward ? backward_head : forward_head)(plan, x, &scratch, item / heads, item % heads);
    }
    ra_arrays_end_heads(plan, backward, gathered->of_heads, x);
    tell(plan, RA_EVENT_WORK, backward, start);
}

/* ---- The calls. */

static enum ra_status forward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, false);
    if (status == RA_OK)
        status = agree(plan, false);
    if (status != RA_OK)
        return status;
    if (!gather(plan, &arrays, false))
        return ra_plan_fail(plan);
    fold_heads(plan, &arrays, false);
    return RA_OK;
}

static enum ra_status backward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    const struct ra_config *c = &plan->config;
    const struct gathered *gathered = plan->own;
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, true);
    if (status == RA_OK)
        status = agree(plan, true);
    if (status != RA_OK)
        return status;
    if (!gather(plan, &arrays, true))
        return ra_plan_fail(plan);
    fold_heads(plan, &arrays, true);
    if (!reduce(plan))
        return ra_plan_fail(plan);
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads * c->dim;
    ra_number_store_all(arrays.dk, c->batch, m, c->key_heads, c->dim, gathered->home);
    ra_number_store_all(arrays.dv, c->batch, m, c->key_heads, c->dim_value,
                        gathered->home + numbers);
    return RA_OK;
}

/* ---- The life of a plan. */

/* Finds the pieces of all ranks. */
static enum ra_status use_rows(struct ra_plan *plan, char *error)
{
    const struct ra_config *c = &plan->config;
    struct gathered *gathered = plan->own;
    (void)error;
    for (int64_t r = 0, row = 0; r < plan->link.size; row += plan->ring.rows[r++]) {
        gathered->first_row[r] = row;
        gathered->numbers[r] = (int)(plan->ring.rows[r] * row_numbers(c));
        gathered->first_number[r] = (int)(row * row_numbers(c));
        gathered->bools[r] = (int)(plan->ring.rows[r] * c->batch);
        gathered->first_bool[r] = (int)(row * c->batch);
    }
    return RA_OK;
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    const struct ra_config *c = &plan->config;
    if (c->type != RA_FLOAT32)
        return ra_error_set(error, "config.type: give RA_FLOAT32 to a plan that gathers keys");
    if (c->local_keys)
        return ra_error_set(error,
                            "config.local_keys = true: a plan that gathers keys has those of all");
    if ((double)c->keys * (double)row_numbers(c) > INT_MAX)
        return ra_error_set(error,
                            "config.keys = %" PRId64
                            ": all keys and values have more than the %d numbers "
                            "that MPI counts; use the ring",
                            c->keys, INT_MAX);
    int64_t bytes = bytes_of(plan, plan->link.rank);
    plan->own = aligned_alloc(LINE, (size_t)bytes);
    if (!plan->own) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes",
                     plan->fixed_bytes + bytes);
        return RA_OUT_OF_MEMORY;
    }
    struct gathered *gathered = plan->own;
    lay_out(plan, plan->link.rank, gathered, plan->own);
    gathered->vector = c->tile == RA_VECTOR_TILE ? ra_vector_find(NULL) : NULL;
    gathered->ring = MPI_COMM_NULL;
    gathered->request = MPI_REQUEST_NULL;
    return use_rows(plan, error);
}

/* A communicator of the ranks of this set, on which the link sends nothing. */
static enum ra_status connect(struct ra_plan *plan, char *error)
{
    const struct ra_mpi_link *mpi = plan->link.self;
    struct gathered *gathered = plan->own;
    MPI_Group all, set;
    int range[1][3] = {{mpi->first, mpi->first + mpi->size - 1, 1}};
    MPI_Comm_group(mpi->comm, &all);
    MPI_Group_range_incl(all, 1, range, &set);
    int code = MPI_Comm_create_group(mpi->comm, set, 0, &gathered->ring);
    MPI_Group_free(&all);
    MPI_Group_free(&set);
    if (code != MPI_SUCCESS) {
        ra_message_place(error, plan->link.rank, -1, "MPI cannot make a communicator of the ring");
        return RA_LOST;
    }
    MPI_Comm_set_errhandler(gathered->ring, MPI_ERRORS_RETURN);
    return RA_OK;
}

static bool leave(struct ra_plan *plan)
{
    struct gathered *gathered = plan->own;
    int finalized;
    MPI_Finalized(&finalized);
    if (!finalized && plan->status == RA_OK && gathered->ring != MPI_COMM_NULL)
        MPI_Comm_free(&gathered->ring);
    return finalized || gathered->request == MPI_REQUEST_NULL;
}

static void release(struct ra_plan *plan, bool unused)
{
    if (unused)
        free(plan->own);
}

static const struct ra_backend backend = {.place = "gathered keys",
                                          .negative_strides = true,
                                          .takes_optional = true,
                                          .create = create,
                                          .connect = connect,
                                          .bytes = bytes_of,
                                          .use_slices = use_rows,
                                          .forward = forward,
                                          .backward = backward,
                                          .leave = leave,
                                          .free = release};

enum ra_status ra_gathered_create(struct ra_plan **plan, const struct ra_config *config,
                                  MPI_Comm comm, char error[RA_ERROR_SIZE])
{
    /* A config that is wrong is refused with all ranks, below: also one whose size is another. */
    struct ra_config own = RA_CONFIG_INIT;
    if (config && config->size == sizeof own)
        own = *config;
    else
        own.size = 0;
    own.device = &backend;
    if (own.tile == RA_VECTOR_TILE && own.dim > 0) {
        own.tile_queries =
            own.tile_queries > 0 ? own.tile_queries : ra_vector_queries(ra_config_dims(&own));
        own.tile_keys = own.tile_keys > 0 ? own.tile_keys : ra_vector_keys(ra_config_dims(&own));
    }
    struct ra_link link;
    enum ra_status status = ra_mpi_link(&link, comm, own.ring_size, own.timeout, error);
    if (plan)
        *plan = NULL;
    return status == RA_OK ? ra_plan_create(plan, config ? &own : NULL, &link, error) : status;
}

int64_t ra_gathered_sent(const struct ra_plan *plan, bool backward)
{
    if (!plan || plan->backend != &backend)
        return 0;
    const struct ra_config *c = &plan->config;
    int64_t row = row_numbers(c) * (int64_t)sizeof(float), m = plan->rows[RA_KEY_SIDE];
    int64_t bytes = (plan->link.size - 1) * m * (row + c->batch * c->has_mask);
    return backward ? bytes + (c->keys - m) * row : bytes;
}
