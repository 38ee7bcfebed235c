/* ra_tree: attention of a few new tokens over a sharded cache. See ra_tree.h.
 *
 * Chapter 10.
 */
#include "ra_tree.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_arena.h"
#include "ra_collective.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_host.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_mpi_link.h"
#include "ra_number.h"
#include "ra_processors.h"
#include "ra_vector.h"

/* Blocks of memory begin at cache lines. */
enum { LINE = 64 };

struct ra_tree {
    struct ra_config config; /* queries: most tokens at once; keys: most positions */
    struct ra_link link;
    int64_t sharers;      /* query heads that read one key head, H / G */
    int64_t rows, length; /* most positions of this rank; positions there are, of all ranks */
    int64_t bytes;
    char *k, *v;    /* (B, G, rows, D) and (B, G, rows, D_v) of config.type */
    float *carries; /* (B, G, tokens, sharers) records, see below */
    int threads;
    char *scratch; /* one of each thread */
    int64_t scratch_bytes;
    const struct ra_vector *vector; /* NULL: tiles are plain */
    MPI_Datatype record;
    MPI_Op combine;
    MPI_Request request;
    enum ra_status status; /* not RA_OK: the tree is at its end */
    char error[RA_ERROR_SIZE];
};

/* What a thread has to itself: the query rows that share a head of keys, (tokens, sharers). */
struct scratch {
    double *sum;
    float *q, *o, *comp, *max, *lse, *workspace;
    float *k, *v; /* (tile_keys, D) and (tile_keys, D_v), unless the cache is float32 */
};

/* ---- Carries as MPI combines them: max, sum and D_v numbers of o, all float32. */

enum { MAX, SUM, OUT };

/* What a carry is worth under another max. A row that has seen no number has max = -inf, and -inf -
 * -inf would be NaN: any other reference will do for it. */
static float worth(float max, float new_max)
{
    return expf(max - (new_max == -INFINITY ? 0 : new_max));
}

/* Combines two carries. Both ways round the bits are the same, but for those of a NaN: a + b = b +
 * a. */
static void add_carry(int64_t D_v, const float *from, float *to)
{
    float max = from[MAX] > to[MAX] ? from[MAX] : to[MAX];
    float a = worth(from[MAX], max), b = worth(to[MAX], max);
    for (int64_t i = SUM; i < OUT + D_v; i++)
        to[i] = a * from[i] + b * to[i];
    to[MAX] = max;
}

/* A function of MPI_Op_create. The size of a record says what D_v is. */
static void combine(void *from, void *to, int *count, MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    int64_t numbers = bytes / (int64_t)sizeof(float);
    for (int64_t i = 0; i < *count; i++)
        add_carry(numbers - OUT, (const float *)from + i * numbers, (float *)to + i * numbers);
}

/* ---- Memory. */

/* Cuts a thread's scratch into its parts, or only counts if `start` is NULL. Returns how many bytes
 * they have. */
static int64_t lay_out_scratch(const struct ra_tree *tree, char *start, struct scratch *scratch)
{
    const struct ra_config *c = &tree->config;
    struct ra_arena arena = {start, LINE, 0};
    const int64_t number = sizeof(float);
    int64_t rows = c->queries * tree->sharers;
    int64_t (*workspace)(int64_t, int64_t, struct ra_dims) =
        c->tile == RA_PLAIN_TILE ? ra_tile_workspace : ra_vector_workspace;
    scratch->sum = ra_arena_take(&arena, rows * (int64_t)sizeof *scratch->sum);
    scratch->q = ra_arena_take(&arena, rows * c->dim * number);
    scratch->o = ra_arena_take(&arena, rows * c->dim_value * number);
    scratch->comp = ra_arena_take(&arena, rows * c->dim_value * number);
    scratch->max = ra_arena_take(&arena, rows * number);
    scratch->lse = ra_arena_take(&arena, rows * number);
    int64_t block = c->type == RA_FLOAT32 ? 0 : c->tile_keys;
    scratch->k = ra_arena_take(&arena, block * c->dim * number);
    scratch->v = ra_arena_take(&arena, block * c->dim_value * number);
    scratch->workspace =
        ra_arena_take(&arena, number * workspace(c->tile_queries, c->tile_keys, ra_config_dims(c)));
    return arena.used;
}

/* Bytes of a number of the cache. */
static int64_t number_bytes(const struct ra_tree *tree)
{
    return tree->config.type == RA_FLOAT32 ? sizeof(float) : sizeof(uint16_t);
}

/* Gives every part its place in memory; returns how much that is. */
static int64_t lay_out(struct ra_tree *tree, char *start)
{
    const struct ra_config *c = &tree->config;
    struct ra_arena arena = {start, LINE, 0};
    struct scratch scratch;
    int64_t cache = c->batch * c->key_heads * tree->rows * number_bytes(tree);
    ra_arena_take(&arena, sizeof *tree);
    tree->k = ra_arena_take(&arena, cache * c->dim);
    tree->v = ra_arena_take(&arena, cache * c->dim_value);
    tree->carries = ra_arena_take(&arena, ra_tree_reduced(tree, c->queries));
    tree->scratch_bytes = lay_out_scratch(tree, NULL, &scratch);
    tree->scratch = ra_arena_take(&arena, tree->threads * tree->scratch_bytes);
    return arena.used;
}

/* ---- The life of a tree. */

/* Reads a config. What a plan may have and a tree may not is refused. */
static enum ra_status read_config(struct ra_config *c, const struct ra_config *given, char *error)
{
    enum ra_status status = ra_config_read(c, given, error);
    if (status != RA_OK)
        return status;
    if (c->has_mask || c->local_keys || c->device)
        return ra_error_set(error, "config: give no has_mask, local_keys or device");
    if (c->max_slices > 0)
        return ra_error_set(error,
                            "config.max_slices = %" PRId64
                            ": give 0, as a cache has one text; give each packed document a batch, "
                            "or a tree, of its own",
                            c->max_slices);
    if (c->layout != RA_STRIPED || c->bucket != 0)
        return ra_error_set(error,
                            "config.layout: give RA_STRIPED, with bucket = 0, as the cache has");
    if (c->queries < 1 || c->queries > c->keys)
        return ra_error_set(error,
                            "config.queries = %" PRId64
                            ": give how many new tokens there are at most at "
                            "once, 1 to keys = %" PRId64,
                            c->queries, c->keys);

    if ((double)c->batch * (double)c->queries * (double)c->heads > INT_MAX ||
        c->dim_value > INT_MAX / 8)
        return ra_error_set(
            error, "config: batch * queries * heads, or dim_value, are more than MPI counts");

    /* The heads that share keys are rows of one tile. */
    int64_t rows = c->queries * (c->heads / c->key_heads);
    c->tile_queries =
        ra_min(rows, c->tile == RA_PLAIN_TILE ? 64 : ra_vector_queries(ra_config_dims(c)));
    return RA_OK;
}

/* Makes this rank's part. */
static enum ra_status build(struct ra_tree **tree, const struct ra_config *c, struct ra_link link,
                            char *error)
{
    struct ra_layout layout = {RA_STRIPED, link.size, c->keys, 1, NULL};
    struct ra_tree made = {
        .config = *c,
        .link = link,
        .sharers = c->heads / c->key_heads,
        .rows = ra_layout_rows(layout, link.rank),
        .threads = ra_processors_threads(c->threads, link.sharing, c->batch * c->key_heads),
        .vector = c->tile == RA_VECTOR_TILE ? ra_host_vector(error) : NULL,
        .request = MPI_REQUEST_NULL};
    if (c->tile == RA_VECTOR_TILE && !made.vector)
        return RA_INVALID;
    int64_t bytes = lay_out(&made, NULL);
    made.bytes = bytes + link.bytes;
    char *memory = aligned_alloc(LINE, (size_t)bytes);
    if (!memory) {
        ra_error_set(error, "no memory: the tree needs %" PRId64 " bytes", bytes);
        return RA_OUT_OF_MEMORY;
    }
    lay_out(&made, memory);
    MPI_Type_contiguous((int)(c->dim_value + OUT), MPI_FLOAT, &made.record);
    MPI_Type_commit(&made.record);
    MPI_Op_create(combine, 1, &made.combine);
    *tree = memcpy(memory, &made, sizeof made);
    return RA_OK;
}

void ra_tree_destroy(struct ra_tree *tree)
{
    if (!tree)
        return;
    bool unused = tree->request == MPI_REQUEST_NULL;
    if (unused) {
        MPI_Type_free(&tree->record);
        MPI_Op_free(&tree->combine);
    }
    if (tree->link.close(tree->link.self) && unused)
        free(tree);
}

enum ra_status ra_tree_create(struct ra_tree **tree, const struct ra_config *config, MPI_Comm ring,
                              char error[RA_ERROR_SIZE])
{
    struct ra_config own = RA_CONFIG_INIT;
    struct ra_link link;
    struct ra_tree *made = NULL;
    *tree = NULL;
    char text[RA_ERROR_SIZE];
    enum ra_status status = read_config(&own, config, text);
    enum ra_status linked = ra_mpi_link(&link, ring, 0, status == RA_OK ? own.timeout : 60, error);
    if (linked != RA_OK)
        return linked;
    if (status == RA_OK && own.ring_size != 0 && own.ring_size != link.size)
        status = ra_error_set(text, "config.ring_size = %d: give 0, or the %d ranks of ring",
                              own.ring_size, link.size);
    if (status == RA_OK)
        status = build(&made, &own, link, text);

    /* All ranks have a tree, or none. */
    int64_t number = 0; /* a tree shares its link with nobody */
    status = ra_agree_config(&link, &own, "a tree", status, &number, text);
    if (status == RA_OK)
        *tree = made;
    else if (made)
        ra_tree_destroy(made);
    else
        link.close(link.self);
    if (status != RA_OK && error)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    return status;
}

const char *ra_tree_error(const struct ra_tree *tree)
{
    return tree->error;
}

int64_t ra_tree_length(const struct ra_tree *tree)
{
    return tree->length;
}

int64_t ra_tree_bytes(const struct ra_tree *tree)
{
    return tree->bytes;
}

int64_t ra_tree_reduced(const struct ra_tree *tree, int64_t count)
{
    const struct ra_config *c = &tree->config;
    return c->batch * count * c->heads * (OUT + c->dim_value) * (int64_t)sizeof(float);
}

/* ---- The cache. */

/* How many of this rank's rows are at positions before this one. */
static int64_t rows_before(const struct ra_tree *tree, int64_t position)
{
    struct ra_layout layout = {RA_STRIPED, tree->link.size, position > 0 ? position : 0, 1, NULL};
    return ra_layout_rows(layout, tree->link.rank);
}

/* Copies rows first, first + step, ... of an array into the cache, to `count` rows from `to` on. */
static void copy_rows(const struct ra_tree *tree, struct ra_tensor from, int64_t dim, int64_t first,
                      int64_t step, int64_t count, int64_t to, char *cache)
{
    const struct ra_config *c = &tree->config;
    int64_t row = dim * number_bytes(tree);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t g = 0; g < c->key_heads; g++)
            for (int64_t i = 0; i < count; i++)
                ra_number_store(c->type, dim,
                                (const float *)from.data + b * from.batch +
                                    (first + i * step) * from.row + g * from.head,
                                cache + ((b * c->key_heads + g) * tree->rows + to + i) * row);
}

/* Writes the rows of this rank among positions first, ..., end - 1, which are the rows at0, at0 +
 * step, ... of k and v. */
static enum ra_status write_cache(struct ra_tree *tree, int64_t first, int64_t end, int64_t at,
                                  int64_t step, struct ra_tensor k, struct ra_tensor v)
{
    int64_t row = rows_before(tree, first), count = rows_before(tree, end) - row;
    if (tree->status != RA_OK)
        return tree->status;
    if (end > tree->config.keys)
        return ra_error_set(tree->error,
                            "%" PRId64 " positions: the tree has room for config.keys = %" PRId64,
                            end, tree->config.keys);
    if (count > 0 && (!k.data || !v.data || k.type != RA_FLOAT32 || v.type != RA_FLOAT32))
        return ra_error_set(tree->error, "k or v: give arrays of RA_FLOAT32");
    copy_rows(tree, k, tree->config.dim, at, step, count, row, tree->k);
    copy_rows(tree, v, tree->config.dim_value, at, step, count, row, tree->v);
    tree->length = end;
    return RA_OK;
}

enum ra_status ra_tree_fill(struct ra_tree *tree, int64_t length, struct ra_tensor k,
                            struct ra_tensor v)
{
    if (length < 0)
        return ra_error_set(tree->error, "length = %" PRId64 ": give at least 0", length);
    return write_cache(tree, 0, length, 0, 1, k, v);
}

enum ra_status ra_tree_extend(struct ra_tree *tree, int64_t first, int64_t count,
                              struct ra_tensor k, struct ra_tensor v)
{
    int P = tree->link.size;
    if (first < 0 || first > tree->length || first % P != 0 || count < 0)
        return ra_error_set(tree->error,
                            "first = %" PRId64 ", count = %" PRId64
                            ": give a first position from 0 to the length of the cache, %" PRId64
                            ", that is a multiple of %d, the number of ranks, and a count of at "
                            "least 0",
                            first, count, tree->length, P);
    return write_cache(tree, first, first + count, 0, 1, k, v);
}

struct ra_tensor ra_tree_cached(const struct ra_tree *tree, int64_t first, bool values)
{
    const struct ra_config *c = &tree->config;
    int64_t dim = values ? c->dim_value : c->dim, head = tree->rows * dim;
    char *cache = values ? tree->v : tree->k;
    return (struct ra_tensor){cache + first * dim * number_bytes(tree), c->type,
                              c->key_heads * head, dim, head};
}

enum ra_status ra_tree_keep(struct ra_tree *tree, int64_t first, int64_t count, struct ra_tensor k,
                            struct ra_tensor v)
{
    if (first < 0 || first > tree->length || count < 0)
        return ra_error_set(tree->error,
                            "first = %" PRId64 ", count = %" PRId64
                            ": give a first position from 0 to the "
                            "length of the cache, %" PRId64 ", and a count of at least 0",
                            first, count, tree->length);
    int64_t P = tree->link.size, own = rows_before(tree, first) * P + tree->link.rank;
    return write_cache(tree, first, first + count, own - first, P, k, v);
}

/* ---- Attention. */

/* The query head that is number `sharer` of those that read head g of the keys. */
static int64_t query_head(const struct ra_config *c, int64_t g, int64_t sharer)
{
    int64_t h = 0;
    while (ra_heads_key(c->head_map, c->heads, c->key_heads, h) != g || sharer-- > 0)
        h++;
    return h;
}

static struct ra_fold fold_of(const struct ra_tree *tree, const struct scratch *scratch)
{
    const struct ra_config *c = &tree->config;
    return (struct ra_fold){.dims = ra_config_dims(c),
                            .score = {.scale = (float)c->scale, .softcap = (float)c->softcap},
                            .tile = tree->vector ? tree->vector->forward : ra_tile_forward,
                            .tile_queries = c->tile_queries,
                            .tile_keys = c->tile_keys,
                            .workspace = scratch->workspace};
}

/* This rank's keys of one head, and where a thread reads them as float32. */
struct cache {
    const struct ra_tree *tree;
    const struct scratch *scratch;
    int64_t head; /* b G + g */
};

/* Rows first, ..., first + count - 1 of them, for one use. */
static struct ra_keys read_keys(const struct cache *cache, int64_t first, int64_t count)
{
    const struct ra_tree *tree = cache->tree;
    const struct ra_config *c = &tree->config;
    int64_t row = cache->head * tree->rows + first, bytes = number_bytes(tree), P = tree->link.size;
    const char *k = tree->k + row * c->dim * bytes, *v = tree->v + row * c->dim_value * bytes;
    struct ra_keys keys = {.rows = count,
                           .stride = {.k = c->dim, .v = c->dim_value},
                           .k = (const float *)k,
                           .v = (const float *)v,
                           .at = {tree->link.rank + first * P, P}};
    if (c->type == RA_FLOAT32)
        return keys;
    ra_number_load(c->type, count * c->dim, k, cache->scratch->k);
    ra_number_load(c->type, count * c->dim_value, v, cache->scratch->v);
    keys.k = cache->scratch->k;
    keys.v = cache->scratch->v;
    return keys;
}

/* Folds rows first, ..., last - 1 of the keys, which these queries all see. */
static void fold_rows(struct ra_fold *fold, struct ra_queries queries, const struct cache *cache,
                      int64_t first, int64_t last)
{
    const struct ra_config *c = &cache->tree->config;
    int64_t block = c->type == RA_FLOAT32 ? last - first : c->tile_keys;
    for (; first < last; first += block) {
        struct ra_keys seen = read_keys(cache, first, ra_min(block, last - first));
        ra_band_fold(fold, &queries, &seen, RA_ALL_KEYS);
    }
}

/* One call: its tokens and arrays. The rows of a tile are the heads that share keys, token by
 * token; or, if each head has a slope of its own, tokens, head by head. */
struct call {
    int64_t count;
    const struct ra_arrays *arrays;
    bool by_head;
};

static int64_t token_of(const struct ra_tree *tree, const struct call *call, int64_t a)
{
    return call->by_head ? a % call->count : a / tree->sharers;
}

/* The query head of row a, of those that read head g of the keys. */
static int64_t head_of(const struct ra_tree *tree, const struct call *call, int64_t g, int64_t a)
{
    return query_head(&tree->config, g, call->by_head ? a / call->count : a % tree->sharers);
}

/* The number of head h in an array of one for each head; `none` if it is empty. */
static float number_of(const struct ra_tensor *tensor, int64_t h, float none)
{
    return tensor->data ? ((const float *)tensor->data)[h * tensor->head] : none;
}

/* Folds this rank's keys of one head into the last `count` tokens, of which each has `sharers`
 * rows. What every token sees is read once, for all of them; then each token takes what it sees
 * before that, and after. */
static void fold_tokens(const struct cache *cache, struct ra_fold *fold, int64_t count,
                        int64_t sharers, const struct ra_queries *queries)
{
    const struct ra_tree *tree = cache->tree;
    if (!tree->config.causal) {
        fold_rows(fold, *queries, cache, 0, rows_before(tree, tree->length));
        return;
    }
    int64_t first_token = tree->length - count,
            lookback = ra_min(tree->config.lookback, tree->length);
    int64_t first = rows_before(tree, tree->length - 1 - lookback);
    int64_t last = rows_before(tree, first_token + 1);
    last = last > first ? last : first;
    fold_rows(fold, *queries, cache, first, last);
    for (int64_t t = 0; t < count; t++) {
        struct ra_queries token = ra_queries_block(queries, t * sharers, sharers);
        int64_t from = rows_before(tree, first_token + t - lookback);
        int64_t to = rows_before(tree, first_token + t + 1);
        fold_rows(fold, token, cache, from, ra_min(first, to));
        fold_rows(fold, token, cache, last, to);
    }
}

/* Folds them into all rows of the call. */
static void fold_head(const struct cache *cache, const struct call *call, int64_t g,
                      const struct ra_queries *queries)
{
    const struct ra_tree *tree = cache->tree;
    struct ra_fold fold = fold_of(tree, cache->scratch);
    if (!call->by_head) {
        fold_tokens(cache, &fold, call->count, tree->sharers, queries);
        return;
    }
    for (int64_t a = 0; a < queries->rows; a += call->count) {
        struct ra_queries head = ra_queries_block(queries, a, call->count);
        head.at = (struct ra_places){tree->length - call->count, 1};
        fold.score.slope = number_of(&call->arrays->slopes, head_of(tree, call, g, a), 0);
        fold_tokens(cache, &fold, call->count, 1, &head);
    }
}

/* The carry of all query heads that read head g of batch b, over the keys of this rank. */
static void carry_head(const struct ra_tree *tree, const struct scratch *scratch,
                       const struct call *call, int64_t b, int64_t g)
{
    const struct ra_config *c = &tree->config;
    const struct ra_tensor *q = &call->arrays->q;
    int64_t D = c->dim, D_v = c->dim_value, rows = call->count * tree->sharers,
            head = b * c->key_heads + g;
    for (int64_t a = 0; a < rows; a++)
        memcpy(scratch->q + a * D,
               (const float *)q->data + b * q->batch + token_of(tree, call, a) * q->row +
                   head_of(tree, call, g, a) * q->head,
               (size_t)D * sizeof(float));
    struct ra_queries queries = {.rows = rows,
                                 .stride = {.q = D, .o = D_v, .comp = D_v},
                                 .q = scratch->q,
                                 .o = scratch->o,
                                 .max = scratch->max,
                                 .sum = scratch->sum,
                                 .comp = scratch->comp,
                                 .lse = scratch->lse};
    struct cache cache = {tree, scratch, head};

    /* Begun empty, folded, and put where MPI takes it. */
    ra_tile_begin(ra_config_dims(c), &queries);
    fold_head(&cache, call, g, &queries);
    for (int64_t a = 0; a < rows; a++) {
        float *carry = tree->carries + (head * rows + a) * (OUT + D_v);
        carry[MAX] = scratch->max[a];
        carry[SUM] = (float)scratch->sum[a];
        memcpy(carry + OUT, scratch->o + a * D_v, (size_t)D_v * sizeof(float));
    }
}

/* The results of these heads. A query sees itself, so there is a sum. A sink joins it here, when
 * the carries of all ranks have been combined. Of a NaN the bits depend on the order in which that
 * was done: all of them become the same. */
static void finish_head(const struct ra_tree *tree, const struct call *call, int64_t b, int64_t g)
{
    const struct ra_config *c = &tree->config;
    const struct ra_tensor *o = &call->arrays->o, *largest = &call->arrays->largest;
    int64_t rows = call->count * tree->sharers;
    for (int64_t a = 0; a < rows; a++) {
        const float *carry =
            tree->carries + ((b * c->key_heads + g) * rows + a) * (OUT + c->dim_value);
        int64_t h = head_of(tree, call, g, a);
        float sink = number_of(&call->arrays->sink, h, -INFINITY);
        float max = sink > carry[MAX] ? sink : carry[MAX], old = worth(carry[MAX], max);
        float sum = old * carry[SUM] + worth(sink, max);
        float *to =
            (float *)o->data + b * o->batch + token_of(tree, call, a) * o->row + h * o->head;
        for (int64_t i = 0; i < c->dim_value; i++) {
            float mean = old * carry[OUT + i] / sum;
            to[i] = isnan(mean) ? NAN : mean;
        }
        float *most = largest->data ? (float *)largest->data + h * largest->head : NULL;
        if (most && isnan(carry[SUM]))
            *most = NAN;
        else if (most && carry[MAX] > *most)
            *most = carry[MAX];
    }
}

/* Finishes all heads. */
static void finish(const struct ra_tree *tree, const struct call *call)
{
    const struct ra_config *c = &tree->config;
    const struct ra_tensor *largest = &call->arrays->largest;
    for (int64_t h = 0; h < c->heads && largest->data; h++)
        ((float *)largest->data)[h * largest->head] = -INFINITY;
    for (int64_t item = 0; item < c->batch * c->key_heads; item++)
        finish_head(tree, call, item / c->key_heads, item % c->key_heads);
}

/* This rank cannot take part, for this reason: the others must not wait for it. */
static enum ra_status give_up(struct ra_tree *tree, const char *reason)
{
    if (tree->link.size == 1)
        return ra_error_set(tree->error, "%s", reason);
    tree->status = RA_LOST;
    ra_message_place(tree->error, tree->link.rank, -1, "%s", reason);
    tree->link.fail(tree->link.self, tree->error);
    return RA_INVALID;
}

/* Combines the carries of all ranks. */
static enum ra_status reduce(struct ra_tree *tree, int64_t count)
{
    const struct ra_config *c = &tree->config;
    const struct ra_mpi_link *mpi = tree->link.self;
    int code = MPI_Iallreduce(MPI_IN_PLACE, tree->carries, (int)(c->batch * count * c->heads),
                              tree->record, tree->combine, mpi->comm, &tree->request);
    if (ra_collective_wait_link(&tree->link, mpi->comm, code, &tree->request, c->timeout,
                                "carries of all ranks"))
        return RA_OK;
    snprintf(tree->error, sizeof tree->error, "%s", ra_message_error(&tree->link));
    return tree->status = RA_LOST;
}

/* Is this an array of float32 that a call can use? */
static bool is_usable(const struct ra_tensor *tensor)
{
    return tensor->data && tensor->type == RA_FLOAT32;
}

enum ra_status ra_tree_attend(struct ra_tree *tree, int64_t count, const struct ra_arrays *arrays)
{
    const struct ra_config *c = &tree->config;
    const struct call call = {count, arrays, arrays->slopes.data != NULL};
    char text[RA_ERROR_SIZE];
    if (tree->status != RA_OK)
        return tree->status;
    if (count < 1 || count > c->queries || count > tree->length) {
        ra_error_set(text,
                     "count = %" PRId64 ": give 1 to config.queries = %" PRId64
                     ", and no more than the %" PRId64 " positions there are",
                     count, c->queries, tree->length);
        return give_up(tree, text);
    }
    if (c->batch > 0 && (!is_usable(&arrays->q) || !is_usable(&arrays->o)))
        return give_up(tree, "q or o: give arrays of RA_FLOAT32");
    const struct ra_tensor *optional[] = {&arrays->sink, &arrays->slopes, &arrays->largest};
    for (int i = 0; i < 3; i++)
        if (optional[i]->data && !is_usable(optional[i]))
            return give_up(tree, "sink, slopes or largest: give arrays of RA_FLOAT32, or none");

    /* A head of keys is one thread's work. */
    int64_t heads = c->batch * c->key_heads;
#pragma omp parallel for num_threads(tree->threads) if (tree->threads > 1)
    for (int64_t item = 0; item < heads; item++) {
        struct scratch scratch;
        lay_out_scratch(tree, tree->scratch + omp_get_thread_num() * tree->scratch_bytes, &scratch);
        carry_head(tree, &scratch, &call, item / c->key_heads, item % c->key_heads);
    }
    enum ra_status status = reduce(tree, count);
    if (status == RA_OK)
        finish(tree, &call);
    return status;
}
