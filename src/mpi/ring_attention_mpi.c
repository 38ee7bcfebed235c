/* ring_attention_mpi: a link over MPI, and a sequence that is handed out and collected. See
 * ring_attention_mpi.h.
 *
 * Chapter 08. New here: the link of chapter 03 for callers that may give anything; rows of a shard
 * as types of MPI.
 */
#include "ring_attention_mpi.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "ra_error.h"
#include "ra_mpi_link.h"
#include "ra_plan.h"
#include "ra_processors.h"

/* ---- The link. */

static bool is_running(void)
{
    int initialized, finalized;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

/* Is MPI running, is libringattn of this version, and is this a communicator of one group? */
static enum ra_status check_communicator(MPI_Comm comm, char *error)
{
    int between_groups;
    if (!is_running())
        return ra_error_set(error, "MPI is not running: call between MPI_Init and MPI_Finalize");
    if (strcmp(ra_version(), RA_VERSION) != 0)
        return ra_error_set(error,
                            "libringattn is %s, libringattn_mpi " RA_VERSION ": install a pair",
                            ra_version());
    if (comm == MPI_COMM_NULL || !comm)
        return ra_error_set(error, "comm is MPI_COMM_NULL: give a communicator that has this rank");
    MPI_Comm_test_inter(comm, &between_groups);
    if (between_groups)
        return ra_error_set(error, "comm is an intercommunicator: give one of a single group");
    return RA_OK;
}

/* Counts the ranks that share this rank's processors: those of all rings of the communicator. */
static enum ra_status count_sharing(struct ra_link *link, char *error)
{
    struct ra_mpi_link *mpi = link->self;
    int ranks, rank;
    MPI_Comm_size(mpi->comm, &ranks);
    MPI_Comm_rank(mpi->comm, &rank);
    int64_t *keys = mpi->keys;
    keys[rank] = ra_processors_key();
    enum ra_status status =
        ra_mpi_link_await(mpi,
                          MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, keys, 1, MPI_INT64_T,
                                         mpi->comm, &mpi->opening),
                          "ask all ranks for their processors");
    if (status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", mpi->error);
    for (int r = 0; r < ranks && status == RA_OK; r++)
        link->sharing += keys[r] == keys[rank];
    return status;
}

enum ra_status ra_mpi_link(struct ra_link *link, MPI_Comm comm, int ring_size, double timeout,
                           char error[RA_ERROR_SIZE])
{
    char text[RA_ERROR_SIZE];
    enum ra_status status = check_communicator(comm, text);
    if (!link)
        status = ra_error_set(text, "link is NULL: give the address of a struct ra_link");
    if (status == RA_OK)
        status = ra_mpi_link_open(link, comm, ring_size, timeout, text);
    if (status == RA_OK && (status = count_sharing(link, text)) != RA_OK)
        link->close(link->self);
    if (error && status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    return status;
}

enum ra_status ra_mpi_link_f(struct ra_link *link, MPI_Fint comm, int ring_size, double timeout,
                             char error[RA_ERROR_SIZE])
{
    _Static_assert(sizeof *link <= 256, "ring_attention_mpi.h says so");

    /* MPI converts handles only while it is running. */
    return ra_mpi_link(link, is_running() ? MPI_Comm_f2c(comm) : MPI_COMM_NULL, ring_size, timeout,
                       error);
}

/* ---- Handing out and collecting. */

/* A type for the rows of a span, in all of (outer, rows, row_bytes), seen from the first of them.
 * MPI counts in int. */
static int type_of_rows(struct ra_span span, int64_t outer, int64_t rows, int64_t row_bytes,
                        MPI_Datatype *type)
{
    MPI_Datatype one;
    int code = MPI_Type_create_hvector((int)span.count, (int)row_bytes, span.stride * row_bytes,
                                       MPI_BYTE, &one);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Type_create_hvector((int)outer, 1, rows * row_bytes, one, type);
    MPI_Type_free(&one);
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

/* Sends the rows of a span to another rank of the ring, or receives them, and waits. `array` is
 * (outer, rows, row_bytes). */
static bool pass_rows(const struct ra_link *link, bool sends, int peer, struct ra_span span,
                      int64_t outer, int64_t rows, int64_t row_bytes, void *array)
{
    struct ra_mpi_link *mpi = link->self;
    if (span.count == 0 || outer == 0)
        return true;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    char *first = (char *)array + span.first * row_bytes;
    if (type_of_rows(span, outer, rows, row_bytes, &type) == MPI_SUCCESS)
        ra_mpi_link_begin(mpi, sends, RA_ROWS, 0, peer, first, type);
    else
        link->fail(mpi, "MPI cannot pass the rows of a shard");
    if (type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type);
    bool arrived = link->wait(mpi, RA_ROWS);

    /* The array is the caller's, which may use it for something else from now on. */
    int done;
    struct ra_passage *in = &mpi->in[RA_ROWS];
    if (!arrived && !sends && in->request != MPI_REQUEST_NULL) {
        MPI_Cancel(&in->request);
        MPI_Test(&in->request, &done, MPI_STATUS_IGNORE);
    }
    return arrived;
}

/* The root tells another rank what it was asked for, which must be the same there: rows of other
 * sizes would be cut, or left out. */
static bool agree_on_rows(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                          int root, bool scatter, int peer)
{
    const struct ra_link *link = &plan->link;
    int64_t own[] = {scatter, side, outer, row_bytes}, theirs[] = {scatter, side, outer, row_bytes};
    const struct ra_span all = {0, 1, 4};
    bool is_root = link->rank == root;
    if (!pass_rows(link, is_root, is_root ? peer : root, all, 1, 4, sizeof *own, theirs))
        return false;
    if (memcmp(own, theirs, sizeof own) == 0)
        return true;
    char text[RA_ERROR_SIZE];
    const char *const calls[] = {"ra_mpi_gather", "ra_mpi_scatter"};
    const char *const sides[] = {"RA_QUERY_SIDE", "RA_KEY_SIDE"};
    ra_error_set(text,
                 "rank %d calls %s with %s, outer %" PRId64 ", row_bytes %" PRId64
                 ", the root, rank %d, "
                 "%s with %s, %" PRId64 ", %" PRId64 ": give the same",
                 link->rank, calls[own[0]], sides[own[1]], own[2], own[3], root, calls[theirs[0]],
                 sides[theirs[1]], theirs[2], theirs[3]);
    link->fail(link->self, text);
    return false;
}

/* Both directions: the root and every other rank pass each other the other's rows, span by span.
 * `local` is in the order of the spans, (outer, own rows, row_bytes). */
static enum ra_status move_rows(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                int64_t row_bytes, int root, bool scatter, void *whole, void *local)
{
    const struct ra_link *link = &plan->link;
    struct ra_layout layout = ra_plan_layout(plan, side);
    bool moved = true;
    for (int rank = 0; rank < link->size && moved; rank++) {
        bool with_root = rank != root && (link->rank == root || link->rank == rank);
        int64_t own_rows = ra_layout_rows(layout, rank), a = 0;
        if (with_root)
            moved = agree_on_rows(plan, side, outer, row_bytes, root, scatter, rank);
        for (int64_t s = 0; s < ra_layout_spans(layout) && with_root && moved; s++) {
            struct ra_span span = ra_layout_span(layout, rank, s), here = {a, 1, span.count};
            a += span.count;
            if (link->rank == root)
                moved =
                    pass_rows(link, scatter, rank, span, outer, layout.length, row_bytes, whole);
            else
                moved = pass_rows(link, !scatter, root, here, outer, own_rows, row_bytes, local);
        }
    }
    return moved ? RA_OK : ra_plan_fail(plan);
}

/* Checks the arguments of both; an error is one of all ranks. */
static enum ra_status check_move(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                 int64_t row_bytes, int root, const void *whole, const void *local)
{
    char text[RA_ERROR_SIZE];
    if (ra_plan_state(plan) != RA_OK)
        return plan->status;
    if (!ra_mpi_link_is(&plan->link))
        return ra_error_set(plan->error, "the plan's link is not one of ra_mpi_link");
    int P = plan->link.size;
    enum ra_status status = ra_plan_check_rows(plan, side, outer, row_bytes, whole,
                                               root == plan->link.rank, local, text);
    if (root < 0 || root >= P)
        status = ra_error_set(text, "root = %d: give a rank of the ring, 0 to %d", root, P - 1);
    else if (row_bytes > INT_MAX || outer > INT_MAX ||
             ra_layout_most_rows(ra_plan_layout(plan, side)) > INT_MAX)
        status =
            ra_error_set(text,
                         "outer = %" PRId64 ", row_bytes = %" PRId64
                         ": these and a rank's rows may be INT_MAX at most, to which MPI counts",
                         outer, row_bytes);
    return status == RA_OK ? RA_OK : ra_plan_abort(plan, status, text);
}

enum ra_status ra_mpi_scatter(struct ra_plan *plan, enum ra_side side, int64_t outer,
                              int64_t row_bytes, int root, const void *whole, void *local)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status = check_move(plan, side, outer, row_bytes, root, whole, local);
    if (status == RA_OK && plan->link.rank == root)
        status = ra_shard(plan, side, outer, row_bytes, whole, local);

    /* The cast is safe: of a scatter, whole is only read. */
    if (status == RA_OK && !ra_ring_agree(&plan->ring, RA_CALL_SCATTER))
        status = ra_plan_fail(plan);
    if (status == RA_OK)
        status =
            move_rows(plan, side, outer, row_bytes, root, true, (void *)(uintptr_t)whole, local);
    ra_plan_leave(plan);
    return status;
}

enum ra_status ra_mpi_gather(struct ra_plan *plan, enum ra_side side, int64_t outer,
                             int64_t row_bytes, int root, const void *local, void *whole)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status = check_move(plan, side, outer, row_bytes, root, whole, local);
    if (status == RA_OK && plan->link.rank == root)
        status = ra_unshard(plan, side, outer, row_bytes, local, whole);

    /* The cast is safe: of a gather, local is only read. */
    if (status == RA_OK && !ra_ring_agree(&plan->ring, RA_CALL_GATHER))
        status = ra_plan_fail(plan);
    if (status == RA_OK)
        status =
            move_rows(plan, side, outer, row_bytes, root, false, whole, (void *)(uintptr_t)local);
    ra_plan_leave(plan);
    return status;
}
