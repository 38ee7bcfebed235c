/* ra_batch: a batch that is sharded by rows becomes sharded by sequence, and back. See ra_batch.h.
 *
 * Chapter 10.
 */
#include "ra_batch.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_collective.h"

/* A batch, and what its ranks tell each other of one that cannot take part. It lies here because
 * MPI may still write it after RA_LOST, when the call is over. */
struct own {
    struct ra_batch batch;
    struct ra_refusal refusal;
};

/* What ranks compare: all fields before the rows must be equal; the last says whether there is no
 * memory. */
enum { RING_SIZE, LENGTH, KIND, STRIPES, TOKEN_BYTES, ROWS, NO_MEMORY, FIELDS };
_Static_assert(2 * FIELDS == sizeof((struct ra_batch *)NULL)->compared / sizeof(int64_t),
               "room for least and most");
static const char *const names[] = {"layout.ranks",   "layout.length", "layout.kind",
                                    "layout.stripes", "token_bytes",   "rows"};

/* How many of the rows 0 .. end - 1 of the whole batch are of this set? */
static int64_t rows_of_set(int64_t end, int set, int sets)
{
    return (end + sets - 1 - set) / sets;
}

/* Checks what all ranks together were given, by the least and the most of each field. */
static enum ra_status check(int ranks, const int64_t *least, const int64_t *most, char *error)
{
    for (int f = 0; f < ROWS; f++)
        if (least[f] != most[f]) {
            snprintf(error, RA_ERROR_SIZE,
                     "ranks disagree about %s: one has %" PRId64 ", another %" PRId64, names[f],
                     least[f], most[f]);
            return RA_DISAGREEMENT;
        }
    static const int64_t lowest[] = {[RING_SIZE] = 1, [LENGTH] = 0,      [KIND] = RA_CONTIGUOUS,
                                     [STRIPES] = 1,   [TOKEN_BYTES] = 1, [ROWS] = 0};
    static const int64_t highest[] = {
        [RING_SIZE] = INT_MAX, [LENGTH] = INT64_MAX,    [KIND] = RA_ZIGZAG,
        [STRIPES] = INT_MAX,   [TOKEN_BYTES] = INT_MAX, [ROWS] = INT_MAX};
    for (int f = 0; f <= ROWS; f++)
        if (least[f] < lowest[f] || most[f] > highest[f]) {
            snprintf(error, RA_ERROR_SIZE, "%s = %" PRId64 ": give %" PRId64 " to %" PRId64,
                     names[f], least[f] < lowest[f] ? least[f] : most[f], lowest[f], highest[f]);
            return RA_INVALID;
        }
    if (ranks % most[RING_SIZE] != 0) {
        snprintf(error, RA_ERROR_SIZE,
                 "layout.ranks = %" PRId64 ": give a ring size that divides the %d ranks",
                 most[RING_SIZE], ranks);
        return RA_INVALID;
    }
    if (most[ROWS] > 0 && most[LENGTH] > INT_MAX / most[ROWS]) {
        snprintf(error, RA_ERROR_SIZE,
                 "rows = %" PRId64 ", layout.length = %" PRId64
                 ": more than INT_MAX tokens a rank, which MPI cannot count",
                 most[ROWS], most[LENGTH]);
        return RA_INVALID;
    }
    return RA_OK;
}

/* Takes all memory. False: there is none. */
static bool allocate(struct ra_batch *batch)
{
    size_t W = (size_t)batch->ranks;
    int64_t bytes = batch->rows * batch->layout.length * batch->token_bytes;
    batch->rows_of = calloc(W, sizeof *batch->rows_of);
    batch->parcel = calloc(4 * W, sizeof *batch->parcel);
    batch->parcels = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!batch->rows_of || !batch->parcel || !batch->parcels)
        return false;
    batch->parcels_at = batch->parcel + W;
    batch->part = batch->parcel + 2 * W;
    batch->parts_at = batch->parcel + 3 * W;
    return MPI_Type_contiguous((int)batch->token_bytes, MPI_BYTE, &batch->token) == MPI_SUCCESS &&
           MPI_Type_commit(&batch->token) == MPI_SUCCESS;
}

/* Waits for all ranks in what MPI has `begun`. If one does not come, the batch is at its end. */
static enum ra_status await(struct ra_batch *batch, int begun, MPI_Request *request,
                            const char *what, char *error)
{
    if (ra_collective_wait(batch->comm, begun, request, batch->timeout, what, error))
        return RA_OK;
    batch->lost = true;
    return RA_LOST;
}

/* Takes the memory, and compares what the ranks were given and whether each got it. All of them
 * get the least and the most of each field, and so the same verdict. */
static enum ra_status agree(struct ra_batch *batch, char *error)
{
    struct ra_layout layout = batch->layout;
    int64_t stripes = layout.kind == RA_STRIPED ? layout.stripes : 1;
    int64_t fields[] = {layout.ranks,       layout.length, layout.kind, stripes,
                        batch->token_bytes, batch->rows,   false};

    /* Of values that are themselves wrong no size can be computed: nothing is allocated, and the
     * check below refuses on all ranks. */
    if (check(batch->ranks, fields, fields, error) == RA_OK)
        fields[NO_MEMORY] = !allocate(batch);

    /* The least is found as the most of the complements: unlike negatives, all numbers have one. */
    int64_t *least = batch->compared, *most = least + FIELDS;
    for (int f = 0; f < FIELDS; f++)
        least[f] = ~(most[f] = fields[f]);
    MPI_Request request;
    int begun = MPI_Iallreduce(MPI_IN_PLACE, least, 2 * FIELDS, MPI_INT64_T, MPI_MAX, batch->comm,
                               &request);
    enum ra_status status = await(batch, begun, &request, "sizes of a batch", error);
    for (int f = 0; f < FIELDS && status == RA_OK; f++)
        least[f] = ~least[f];
    if (status == RA_OK)
        status = check(batch->ranks, least, most, error);
    if (status == RA_OK && most[NO_MEMORY]) {
        snprintf(error, RA_ERROR_SIZE, "rows: no memory to send those of a rank");
        status = RA_OUT_OF_MEMORY;
    }
    return status;
}

/* Finds who sends how much to whom. Parcels lie in the order of the ranks that they are for; a
 * shard has its rows in the order of the ranks that they come from. */
static enum ra_status plan(struct ra_batch *batch, char *error)
{
    MPI_Request request;
    batch->rows_of[batch->rank] = batch->rows;
    int begun = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, batch->rows_of, 1, MPI_INT64_T,
                               batch->comm, &request);
    enum ra_status status = await(batch, begun, &request, "row counts of a batch", error);
    if (status != RA_OK)
        return status;

    int P = batch->layout.ranks, S = batch->ranks / P;
    for (int r = 0; r < batch->ranks; r++) {
        batch->first += r < batch->rank ? batch->rows_of[r] : 0;
        batch->total += batch->rows_of[r];
    }
    batch->set = batch->rank / P;
    batch->set_rows = rows_of_set(batch->total, batch->set, S);
    batch->length = ra_layout_rows(batch->layout, batch->rank % P);
    int64_t most = rows_of_set(batch->total, 0, S), longest = ra_layout_most_rows(batch->layout);
    if (longest > 0 && most > INT_MAX / longest) {
        snprintf(error, RA_ERROR_SIZE,
                 "rows: %" PRId64 " on all ranks, shards of %" PRId64 " tokens of %" PRId64
                 " rows: more than INT_MAX tokens of a shard, which MPI cannot count",
                 batch->total, longest, most);
        return RA_INVALID;
    }

    int64_t before = 0;
    int parcels = 0, parts = 0;
    for (int r = 0; r < batch->ranks; r++) {
        int64_t after = before + batch->rows_of[r], end = batch->first + batch->rows;
        batch->parcel[r] =
            (int)((rows_of_set(end, r / P, S) - rows_of_set(batch->first, r / P, S)) *
                  ra_layout_rows(batch->layout, r % P));
        batch->part[r] =
            (int)((rows_of_set(after, batch->set, S) - rows_of_set(before, batch->set, S)) *
                  batch->length);
        batch->parcels_at[r] = parcels;
        batch->parts_at[r] = parts;
        parcels += batch->parcel[r];
        parts += batch->part[r];
        before = after;
    }
    return RA_OK;
}

enum ra_status ra_batch_create(struct ra_batch **batch, MPI_Comm comm, struct ra_layout layout,
                               int64_t token_bytes, int64_t rows, double timeout, char *error)
{
    struct own *own = malloc(sizeof *own);
    struct ra_batch *b = *batch = own ? &own->batch : NULL;
    if (!b) {
        snprintf(error, RA_ERROR_SIZE, "no memory for a batch");
        return RA_OUT_OF_MEMORY;
    }
    *b = (struct ra_batch){.comm = comm,
                           .layout = layout,
                           .token_bytes = token_bytes,
                           .rows = rows,
                           .timeout = timeout,
                           .token = MPI_DATATYPE_NULL};
    MPI_Comm_rank(comm, &b->rank);
    MPI_Comm_size(comm, &b->ranks);
    enum ra_status status = agree(b, error);
    if (status == RA_OK)
        status = plan(b, error);
    if (status != RA_OK) {
        ra_batch_destroy(b);
        *batch = NULL;
    }
    return status;
}

/* Copies this rank's rows into the parcels, or out of them: for each rank those of its set, and of
 * each its positions. */
static void copy_parcels(const struct ra_batch *batch, bool pack, char *rows)
{
    int P = batch->layout.ranks, S = batch->ranks / P;
    int64_t bytes = batch->token_bytes, row_bytes = batch->layout.length * bytes;
    for (int r = 0; r < batch->ranks; r++) {
        char *at = batch->parcels + batch->parcels_at[r] * bytes;
        for (int64_t i = 0; i < batch->rows; i++) {
            int64_t g = batch->first + i;
            if (rows_of_set(g + 1, r / P, S) == rows_of_set(g, r / P, S))
                continue;
            char *row = rows + i * row_bytes;
            if (pack)
                ra_layout_shard(batch->layout, r % P, bytes, row, at);
            else
                ra_layout_unshard(batch->layout, r % P, bytes, at, row);
            at += ra_layout_rows(batch->layout, r % P) * bytes;
        }
    }
}

enum ra_status ra_batch_agree(struct ra_batch *batch, enum ra_status status, char *error)
{
    if (!batch) {
        snprintf(error, RA_ERROR_SIZE, "batch is NULL: give one of ra_batch_create");
        return RA_INVALID;
    }
    if (batch->lost) {
        snprintf(error, RA_ERROR_SIZE, "a rank was lost in an earlier call");
        return RA_LOST;
    }
    return ra_collective_agree(batch->comm, batch->timeout, &((struct own *)batch)->refusal, status,
                               &batch->lost, error);
}

/* Are all arrays there? An array without tokens may be NULL. All ranks get the same answer. */
static enum ra_status check_arrays(struct ra_batch *batch, const void *rows, const void *shard,
                                   char *error)
{
    bool no_rows = batch && !rows && batch->rows * batch->layout.length > 0;
    bool no_shard = batch && !shard && batch->set_rows * batch->length > 0;
    if (no_rows)
        snprintf(error, RA_ERROR_SIZE, "rows is NULL: give %" PRId64 " rows of %" PRId64 " tokens",
                 batch->rows, batch->layout.length);
    else if (no_shard)
        snprintf(error, RA_ERROR_SIZE,
                 "shard is NULL: give room for %" PRId64 " rows of %" PRId64 " tokens",
                 batch->set_rows, batch->length);
    return ra_batch_agree(batch, no_rows || no_shard ? RA_INVALID : RA_OK, error);
}

/* Passes parcels to the ranks whose shards have them as parts, or the parts back. */
static enum ra_status exchange(struct ra_batch *batch, bool forth, char *shard, char *error)
{
    MPI_Request request;
    int begun =
        forth
            ? MPI_Ialltoallv(batch->parcels, batch->parcel, batch->parcels_at, batch->token, shard,
                             batch->part, batch->parts_at, batch->token, batch->comm, &request)
            : MPI_Ialltoallv(shard, batch->part, batch->parts_at, batch->token, batch->parcels,
                             batch->parcel, batch->parcels_at, batch->token, batch->comm, &request);
    return await(batch, begun, &request, "rows of a batch", error);
}

/* The casts are safe: what is const is only read. */
enum ra_status ra_batch_shard(struct ra_batch *batch, const void *rows, void *shard, char *error)
{
    enum ra_status status = check_arrays(batch, rows, shard, error);
    if (status != RA_OK)
        return status;
    copy_parcels(batch, true, (char *)(uintptr_t)rows);
    return exchange(batch, true, shard, error);
}

enum ra_status ra_batch_unshard(struct ra_batch *batch, const void *shard, void *rows, char *error)
{
    enum ra_status status = check_arrays(batch, rows, shard, error);
    if (status == RA_OK)
        status = exchange(batch, false, (char *)(uintptr_t)shard, error);
    if (status == RA_OK)
        copy_parcels(batch, false, rows);
    return status;
}

void ra_batch_destroy(struct ra_batch *batch)
{
    if (!batch || batch->lost)
        return;
    if (batch->token != MPI_DATATYPE_NULL)
        MPI_Type_free(&batch->token);
    free(batch->rows_of);
    free(batch->parcel);
    free(batch->parcels);
    free(batch); /* with all of its struct own */
}
