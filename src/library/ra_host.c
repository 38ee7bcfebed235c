/* ra_host: the backend that computes on the host. See ra_host.h and ra_plan.h.
 *
 * Chapter 08. New here: the ring of 07-gqa on the caller's own arrays, of any type and order, over
 * any link.
 */
#include "ra_host.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_arrays.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_gather.h"
#include "ra_math.h"
#include "ra_meter.h"
#include "ra_number.h"
#include "ra_processors.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

/* ---- Vectors. */

const struct ra_vector *ra_host_vector(char *error)
{
    const char *wanted = getenv("RA_VECTOR");
    const struct ra_vector *vector = ra_vector_find(wanted);
    if (!vector)
        ra_error_set(error, "RA_VECTOR=%s in the environment: %s", wanted ? wanted : "",
                     ra_vector_lacks(wanted ? wanted : ""));
    return vector;
}

/* What a plan on vectors computes on here, or NULL. */
static const struct ra_vector *vector_of(const struct ra_plan *plan)
{
    const struct ra_host *host = plan->own;
    return host ? host->vector : ra_host_vector(NULL);
}

/* ---- Memory. */

/* How many threads this process gives a rank: no more than there are blocks to fold at the same
 * time. */
static int threads_of(const struct ra_plan *plan, int rank)
{
    const struct ra_config *c = &plan->config;
    int64_t n = ra_plan_bound(plan, RA_QUERY_SIDE, rank);
    int64_t chunk = ra_host_chunk(c, RA_QUERY_SIDE);
    int64_t pieces = c->batch * c->key_heads;
    if (c->tile == RA_VECTOR_TILE)
        pieces *= ra_host_blocks(plan->planned[RA_QUERY_SIDE], n, chunk);
    return ra_processors_threads(c->threads, plan->link.sharing, pieces);
}

/* Gives every part of a rank's workspace its place; returns how much that is. */
static int64_t lay_out(const struct ra_plan *plan, int rank, int threads, struct ra_host *host,
                       char *start, void *keys[3], float *gradients[4])
{
    const struct ra_config *c = &plan->config;
    struct ra_arena arena = {start, LINE, 0};
    int64_t n = ra_plan_bound(plan, RA_QUERY_SIDE, rank),
            m = ra_plan_bound(plan, RA_KEY_SIDE, rank);
    int64_t row_bytes = c->batch * n * c->heads * (int64_t)sizeof(float);
    int64_t query_bytes = row_bytes * ra_dims_most(ra_config_dims(c)); /* of o or dq */
    int64_t visitors = ra_plan_may_travel(plan) ? ra_plan_most_bound(plan, RA_KEY_SIDE) : m;
    bool narrow = c->type != RA_FLOAT32, backward = !c->forward_only;

    /* One line for each array, in the order in which they lie in memory. The first is for the mark
     * of ra_plan_enter_workspace. */
    ra_arena_take(&arena, c->caller_workspace ? LINE : 0);
    host->wide = narrow ? ra_arena_take(&arena, query_bytes) : NULL;
    host->max = ra_arena_take(&arena, row_bytes);
    host->sum = ra_arena_take(&arena, 2 * row_bytes);
    host->lse = ra_arena_take(&arena, row_bytes);
    host->delta = backward ? ra_arena_take(&arena, row_bytes) : NULL;
    host->of_heads = ra_arena_take(&arena, c->batch * c->heads * (int64_t)sizeof(double));
    host->comp = narrow ? NULL : ra_arena_take(&arena, query_bytes);
    host->share_comp =
        backward ? ra_arena_take(&arena, visitors * plan->ring.gradient_bytes) : NULL;
    host->mask = ra_arena_take(&arena, c->has_mask ? c->batch * m : 0);
    if (ra_plan_doubles(plan))
        ra_double_place(plan, rank, &arena, host->both, keys, gradients);
    else if (ra_plan_gathers(plan))
        ra_gather_place_messages(plan, rank, &arena, keys, gradients);
    else
        ra_plan_place_messages(plan, rank, &arena, keys, gradients);

    int64_t chunks[2], rows[2] = {n, visitors};
    for (int side = 0; side < 2; side++) {
        chunks[side] = ra_host_chunk(c, side);
        int64_t blocks = ra_host_blocks(plan->planned[side], rows[side], chunks[side]);
        if (c->tile == RA_VECTOR_TILE)
            host->blocks[side] =
                ra_arena_take(&arena, blocks * (int64_t)sizeof(struct ra_host_block));
    }
    bool on_tiles = narrow && ra_host_narrow(c, vector_of(plan));
    host->scratch_floats = ra_round_up(
        ra_host_scratch(c, on_tiles, ra_min(chunks[0], n), ra_min(chunks[1], visitors)), LINE);
    host->scratch = ra_arena_take(&arena, threads * host->scratch_floats * (int64_t)sizeof(float));
    return arena.used;
}

/* The same without memory. */
static int64_t count(const struct ra_plan *plan, int rank, int threads)
{
    struct ra_double both;
    struct ra_host other = {.both = &both};
    void *keys[3];
    float *gradients[4];
    return lay_out(plan, rank, threads, &other, NULL, keys, gradients);
}

static int64_t workspace_bytes_of(const struct ra_plan *plan, int rank)
{
    /* How many threads this rank has was decided when the plan was made. */
    const struct ra_host *host = plan->own;
    return count(plan, rank, ra_plan_has_own(plan, rank) ? host->threads : threads_of(plan, rank));
}

/* The host's part of a plan, behind which its own workspace begins. */
enum {
    HOST = (sizeof(struct ra_host) + LINE - 1) / LINE * LINE,
    DOUBLE = (sizeof(struct ra_double) + LINE - 1) / LINE * LINE
};

static int64_t own_bytes(const struct ra_plan *plan)
{
    return HOST + (ra_plan_doubles(plan) ? DOUBLE : 0);
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    return own_bytes(plan) + (plan->config.caller_workspace ? 0 : workspace_bytes_of(plan, rank));
}

static void use_workspace(struct ra_plan *plan, char *workspace)
{
    struct ra_host *host = plan->own;
    struct ra_ring *ring = &plan->ring;
    lay_out(plan, plan->link.rank, host->threads, host, workspace, ring->keys, ring->gradients);
    ring->comp = host->share_comp;
    if (ra_plan_adds_in_place(plan))
        ring->gradients[0] = NULL;
}

/* Without keys that travel, gradients are added up elsewhere: that may have changed. */
static enum ra_status use_slices(struct ra_plan *plan, char *error)
{
    (void)error;
    bool lent = plan->config.caller_workspace;
    if (!plan->dry_run)
        use_workspace(plan, lent ? plan->workspace : (char *)plan->own + own_bytes(plan));
    return RA_OK;
}

/* ---- The caller's arrays. */

/* Says where o or dq is computed: in the caller's own array if it is float32, else in the plan's.
 * What it loses goes where the other could have been. */
static void compute_in(const struct ra_plan *plan, struct ra_tensor output, int64_t width)
{
    const struct ra_config *c = &plan->config;
    struct ra_host *host = plan->own;
    bool narrow = output.type != RA_FLOAT32;
    host->output = host->computed = output;
    host->width = width;
    if (narrow)
        host->computed =
            ra_tensor_bnhd(host->wide, RA_FLOAT32, plan->rows[RA_QUERY_SIDE], c->heads, width);
    if (c->type != RA_FLOAT32)
        host->comp = narrow ? NULL : host->wide;
}

/* If it was computed in the plan's, writes it to the caller's array. */
static void write_back(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    const struct ra_host *host = plan->own;
    if (host->computed.data != host->output.data)
        ra_number_store_all(host->output, c->batch, plan->rows[RA_QUERY_SIDE], c->heads,
                            host->width, host->computed.data);
}

/* Makes all numbers of an array of float32 0. */
static void clear(struct ra_tensor tensor, int64_t batch, int64_t rows, int64_t heads, int64_t dim)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t h = 0; h < heads; h++)
                memset((float *)tensor.data + b * tensor.batch + a * tensor.row + h * tensor.head,
                       0, (size_t)dim * sizeof(float));
}

/* Copies the mask of this rank's keys, in which whatever is not 0 counts as true, and puts keys and
 * mask into the message that will carry them, if they travel. */
static void pack_keys(struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    struct ra_host *host = plan->own;
    int64_t m = plan->rows[RA_KEY_SIDE];
    const struct ra_tensor *mask = &host->arrays.mask;
    for (int64_t b = 0; b < c->batch && c->has_mask; b++)
        for (int64_t a = 0; a < m; a++)
            host->mask[b * m + a] =
                ((const unsigned char *)mask->data)[b * mask->batch + a * mask->row] != 0;
    if (!ra_ring_sends(&plan->ring, plan->link.rank, 0))
        return;

    /* Rows as they are: what travels has the caller's type. */
    int64_t G = c->key_heads, number = c->batch * m * G * ra_type_bytes(c->type);
    char *k = plan->ring.keys[0], *v = k + number * c->dim, *behind = v + number * c->dim_value;
    ra_number_pack(host->arrays.k, c->batch, m, G, c->dim, k);
    ra_number_pack(host->arrays.v, c->batch, m, G, c->dim_value, v);
    if (c->has_mask)
        memcpy(behind, host->mask, (size_t)(c->batch * m));
}

/* ---- The calls. */

/* Reads the arrays of a call, and begins it. */
static enum ra_status begin(struct ra_plan *plan, const struct ra_arrays *given, bool backward)
{
    struct ra_host *host = plan->own;
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, backward);
    if (status != RA_OK)
        return status;
    status = ra_plan_enter_workspace(plan);
    if (status != RA_OK)
        return status;
    host->arrays = arrays;
    plan->ring.call.heads = ra_arrays_of_heads(plan, &arrays);

    /* After fork a child has none of its parent's threads, for which OpenMP would wait without
     * end. */
    if (host->process != getpid())
        host->threads = 1;
    if (backward)
        compute_in(plan, arrays.dq, plan->config.dim);
    else
        compute_in(plan, arrays.o, plan->config.dim_value);
    pack_keys(plan);
    return RA_OK;
}

/* Ends a call whose link has failed. */
static enum ra_status lose(struct ra_plan *plan)
{
    ra_plan_leave_workspace(plan);
    return ra_plan_fail(plan);
}

/* The caller's lse with rows and heads in the order of the plan's, (B, H, n). */
static struct ra_tensor transposed(struct ra_tensor lse)
{
    return (struct ra_tensor){lse.data, lse.type, lse.batch, lse.head, lse.row};
}

/* Brings keys and queries together by the plan's method. False: the link has failed. */
static bool meet(struct ra_plan *plan, bool backward)
{
    struct ra_host *host = plan->own;
    if (ra_plan_doubles(plan)) {
        host->both->plan = plan;
        return (backward ? ra_double_backward : ra_double_forward)(host->both);
    }
    if (ra_plan_gathers(plan))
        return (backward ? ra_gather_backward : ra_gather_forward)(&plan->ring);
    return (backward ? ra_ring_backward : ra_ring_forward)(&plan->ring);
}

static enum ra_status forward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    const struct ra_config *c = &plan->config;
    struct ra_host *host = plan->own;
    enum ra_status status = begin(plan, given, false);
    if (status != RA_OK)
        return status;
    bool at_once = ra_host_is_at_once(plan);
    if (!at_once)
        ra_host_begin(plan);
    if (!meet(plan, false) || ra_plan_is_cancelled(plan))
        return lose(plan);
    if (!at_once)
        ra_host_finish(plan);

    write_back(plan);
    ra_number_store_all(transposed(host->arrays.lse), c->batch, c->heads, plan->rows[RA_QUERY_SIDE],
                        1, host->lse);
    ra_plan_leave_workspace(plan);
    return RA_OK;
}

static enum ra_status backward(struct ra_plan *plan, const struct ra_arrays *given, void *stream)
{
    (void)stream;
    const struct ra_config *c = &plan->config;
    struct ra_host *host = plan->own;
    enum ra_status status = begin(plan, given, true);
    if (status != RA_OK)
        return status;
    ra_number_load_all(transposed(host->arrays.lse), c->batch, c->heads, plan->rows[RA_QUERY_SIDE],
                       1, host->lse);
    ra_host_begin_backward(plan);
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads * c->dim;
    bool in_place = ra_plan_adds_in_place(plan);
    if (in_place) {
        clear(host->arrays.dk, c->batch, m, c->key_heads, c->dim);
        clear(host->arrays.dv, c->batch, m, c->key_heads, c->dim_value);
    }
    if (!meet(plan, true) || ra_plan_is_cancelled(plan))
        return lose(plan);

    /* dk and dv are complete and at home. */
    write_back(plan);
    if (!in_place) {
        const float *dk = plan->ring.gradients[0], *dv = dk + numbers;
        ra_number_store_all(host->arrays.dk, c->batch, m, c->key_heads, c->dim, dk);
        ra_number_store_all(host->arrays.dv, c->batch, m, c->key_heads, c->dim_value, dv);
    }
    ra_plan_leave_workspace(plan);
    return RA_OK;
}

/* ---- The life of a plan. */

static int describe(const struct ra_plan *plan, int rank, char *text, size_t size)
{
    const struct ra_vector *vector = plan->config.tile == RA_VECTOR_TILE ? vector_of(plan) : NULL;
    const struct ra_host *host = plan->own;
    int threads = ra_plan_has_own(plan, rank) ? host->threads : threads_of(plan, rank);
    const char *name = vector ? vector->name : "plain";
    if (vector && vector->narrow && !ra_host_narrow(&plan->config, vector))
        name = "avx512";
    return snprintf(text, size, "%s%s tiles, %d thread%s\n", name, vector ? " vector" : "", threads,
                    threads == 1 ? "" : "s");
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    plan->ring.fold = ra_host_fold;
    const struct ra_vector *vector = ra_host_vector(error);
    if (plan->config.tile == RA_VECTOR_TILE && !vector)
        return RA_INVALID;
    if (plan->dry_run)
        return RA_OK;
    int threads = threads_of(plan, plan->link.rank);
    bool lent = plan->config.caller_workspace;
    int64_t bytes = own_bytes(plan) + (lent ? 0 : count(plan, plan->link.rank, threads));
    struct ra_host *host = plan->own = aligned_alloc(LINE, (size_t)bytes);
    if (!host) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes",
                     plan->fixed_bytes + bytes);
        return RA_OUT_OF_MEMORY;
    }
    *host = (struct ra_host){.vector = plan->config.tile == RA_VECTOR_TILE ? vector : NULL,
                             .narrow = ra_host_narrow(&plan->config, vector),
                             .threads = threads,
                             .process = getpid(),
                             .both = (struct ra_double *)((char *)host + HOST)};
    use_workspace(plan, lent ? NULL : (char *)host + own_bytes(plan));
    return RA_OK;
}

static void release(struct ra_plan *plan, bool unused)
{
    if (unused)
        free(plan->own);
}

const struct ra_backend ra_host = {.place = "the host",
                                   .converts_inputs = true,
                                   .methods = ~0u,
                                   .takes_optional = true,
                                   .adds_in_place = true,
                                   .meter = &ra_host_meter,
                                   .negative_strides = true,
                                   .create = create,
                                   .bytes = bytes_of,
                                   .workspace_bytes = workspace_bytes_of,
                                   .use_workspace = use_workspace,
                                   .use_slices = use_slices,
                                   .line = LINE,
                                   .describe = describe,
                                   .forward = forward,
                                   .backward = backward,
                                   .free = release};
