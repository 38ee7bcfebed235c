/* ring_attention_mpi: the plan on the ranks of a communicator. See ring_attention_mpi.h.
 *
 * Chapter 08. New here: ra_ring as a link; ranks that compare what they were given; a sequence that
 * is handed out and collected.
 */
#include "ring_attention_mpi.h"
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_mpi.h"
#include "ra_ring.h"

/* Some MPIs say here whether they can reach the memory of GPUs. */
#ifdef __has_include
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

/* ---- The link: each function is that of ra_ring with the same name. */

static bool link_send(void *ring, enum ra_message message, int hop, int distance, const void *from,
                      int64_t bytes)
{
    return ra_ring_send(ring, message, hop, distance, from, bytes);
}

static bool link_receive(void *ring, enum ra_message message, int hop, int distance, void *into,
                         int64_t bytes)
{
    return ra_ring_receive(ring, message, hop, distance, into, bytes);
}

static bool link_poll(void *ring)
{
    return ra_ring_poll(ring);
}

static bool link_wait(void *ring, enum ra_message message)
{
    return ra_ring_wait(ring, message);
}

static void link_fail(void *ring, const char *reason)
{
    ra_ring_fail(ring, reason);
}

static const char *link_error(void *ring)
{
    return ((struct ra_ring *)ring)->error;
}

static bool link_arrival(void *ring, enum ra_message message, int *hop, double *start, double *end)
{
    struct ra_passage *passage = &((struct ra_ring *)ring)->in[message];
    if (passage->finished == 0)
        return false;
    *hop = passage->hop;
    *start = passage->started;
    *end = passage->finished;
    passage->finished = 0;
    return true;
}

/* After MPI_Finalize nothing of MPI's may be touched, and nothing of it is left. */
static bool link_close(void *ring)
{
    int finalized;
    MPI_Finalized(&finalized);
    if (!finalized && !ra_ring_close(ring))
        return false;
    free(ring);
    return true;
}

static bool reaches_devices(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

static struct ra_link link_over(struct ra_ring *ring)
{
    return (struct ra_link){.rank = ring->rank,
                            .size = ring->size,
                            .bytes = sizeof *ring,
                            .device_memory = reaches_devices(),
                            .self = ring,
                            .send = link_send,
                            .receive = link_receive,
                            .poll = link_poll,
                            .wait = link_wait,
                            .fail = link_fail,
                            .error = link_error,
                            .arrival = link_arrival,
                            .close = link_close};
}

/* ---- Creating a plan together. */

/* Is there an MPI to speak to, a libringattn of this version, and a communicator of one group? */
static enum ra_status check_communicator(MPI_Comm comm, int *ranks, char *error)
{
    int initialized, finalized, between_groups;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return ra_refuse(error, "MPI is not running: call between MPI_Init and MPI_Finalize");
    if (strcmp(ra_version(), RA_VERSION) != 0)
        return ra_refuse(error, "libringattn is %s, libringattn_mpi " RA_VERSION ": install a pair",
                         ra_version());
    if (comm == MPI_COMM_NULL)
        return ra_refuse(error, "comm is MPI_COMM_NULL: give a communicator that has this rank");
    MPI_Comm_test_inter(comm, &between_groups);
    if (between_groups)
        return ra_refuse(error, "comm is an intercommunicator: give one of a single group");
    MPI_Comm_size(comm, ranks);
    return RA_OK;
}

/* Every rank gets the records of all. False: not all came in time. */
static bool exchange(struct ra_ring *ring, const struct ra_record *mine, struct ra_record *all)
{
    int done = 0, bytes = sizeof *mine;
    double began = ra_ring_seconds();
    int code =
        MPI_Iallgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, ring->comm, &ring->opening);
    while (code == MPI_SUCCESS && !done) {
        if (ring->timeout > 0 && ra_ring_seconds() - began > ring->timeout)
            return false;
        sched_yield();
        code = MPI_Test(&ring->opening, &done, MPI_STATUS_IGNORE);
    }
    return code == MPI_SUCCESS;
}

/* Compares the configs of all ranks; this one's status so far becomes that of all. */
static enum ra_status agree(struct ra_ring *ring, const struct ra_config *config,
                            enum ra_status status, int ranks, struct ra_record *records,
                            char *error)
{
    /* The last record is for this rank, behind those of all. */
    records[ranks] = ra_config_record(config, status, error);
    if (!exchange(ring, &records[ranks], records)) {
        ra_refuse(error, "not all ranks said what they plan, within %g s; has one died?",
                  ring->timeout);
        ra_ring_fail(ring, error);

        /* The records stay: MPI may still write them, when the missing rank comes after all. */
        return RA_LOST;
    }
    status = ra_config_compare(records, ranks, config->ring_size, error);
    free(records);
    return status;
}

enum ra_status ra_mpi_plan_make(struct ra_plan **plan, const struct ra_config *config,
                                MPI_Comm comm, char *error, ra_plan_builder *build)
{
    char own[RA_ERROR_SIZE], *text = error ? error : own;
    int ranks;
    if (!plan)
        return ra_refuse(text, "plan is NULL: give the address of a pointer");
    *plan = NULL;
    enum ra_status status = check_communicator(comm, &ranks, text);
    if (status != RA_OK)
        return status;

    /* A config that is wrong is no reason to leave: the others would wait for this rank. */
    struct ra_config checked = RA_CONFIG_INIT;
    status = ra_config_read(&checked, config, text);
    if (checked.ring_size == 0)
        checked.ring_size = ranks;
    if (status == RA_OK && ranks % checked.ring_size != 0)
        status = ra_refuse(text, "config.ring_size = %d: does not divide the %d ranks",
                           checked.ring_size, ranks);
    if (status != RA_OK)
        checked = (struct ra_config){.ring_size = 1, .timeout = 600};

    struct ra_ring *ring = malloc(sizeof *ring);
    struct ra_record *records = malloc(((size_t)ranks + 1) * sizeof *records);
    if (!ring || !records) {
        free(ring);
        free(records);
        ra_refuse(text, "no memory to compare what %d ranks plan", ranks);
        return RA_OUT_OF_MEMORY;
    }
    if (!ra_ring_open(ring, comm, checked.ring_size, checked.timeout)) {
        snprintf(text, RA_ERROR_SIZE, "%.300s", ring->error);
        free(records);
        link_close(ring);
        return RA_LOST;
    }

    /* Whatever comes of it, the ranks meet once more; a plan that is not wanted is taken back. */
    if (status == RA_OK)
        status = build(plan, &checked, link_over(ring), false, text);
    status = agree(ring, &checked, status, ranks, records, text);
    if (status == RA_OK)
        return RA_OK;
    if (*plan)
        ra_plan_destroy(*plan);
    else
        link_close(ring);
    *plan = NULL;
    return status;
}

enum ra_status ra_mpi_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                  MPI_Comm comm, char error[RA_ERROR_SIZE])
{
    return ra_mpi_plan_make(plan, config, comm, error, ra_plan_build);
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
static bool pass_rows(struct ra_ring *ring, bool sends, int peer, struct ra_span span,
                      int64_t outer, int64_t rows, int64_t row_bytes, void *array)
{
    struct ra_passage *passage = sends ? &ring->out[RA_ROWS] : &ring->in[RA_ROWS];
    *passage = (struct ra_passage){MPI_REQUEST_NULL, RA_ROWS, 0, peer, ra_ring_seconds(), 0};
    if (span.count == 0 || outer == 0)
        return true;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    char *first = (char *)array + span.first * row_bytes;
    int code = type_of_rows(span, outer, rows, row_bytes, &type);
    if (code == MPI_SUCCESS && sends)
        code =
            MPI_Isend(first, 1, type, ring->first + peer, RA_ROWS, ring->comm, &passage->request);
    else if (code == MPI_SUCCESS)
        code =
            MPI_Irecv(first, 1, type, ring->first + peer, RA_ROWS, ring->comm, &passage->request);
    if (code != MPI_SUCCESS)
        ra_ring_fail(ring, "MPI cannot pass the rows of a shard");
    if (type != MPI_DATATYPE_NULL)
        MPI_Type_free(&type);
    bool well = ra_ring_wait(ring, RA_ROWS);

    /* The array is the caller's, who may use it for something else from now on. */
    int done;
    if (!well && !sends && passage->request != MPI_REQUEST_NULL) {
        MPI_Cancel(&passage->request);
        MPI_Test(&passage->request, &done, MPI_STATUS_IGNORE);
    }
    return well;
}

/* Both directions: the root and every other rank pass each other the other's rows, span by span.
 * `local` is in the order of the spans, (outer, own rows, row_bytes). */
static enum ra_status move_rows(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                int64_t row_bytes, int root, bool scatter, void *whole, void *local)
{
    struct ra_ring *ring = plan->link.self;
    struct ra_layout layout = ra_plan_layout(plan, side);
    bool well = true;
    for (int rank = 0; rank < ring->size && well; rank++) {
        bool with_root = rank != root && (ring->rank == root || ring->rank == rank);
        int64_t own_rows = ra_layout_rows(layout, rank), a = 0;
        for (int64_t s = 0; s < ra_layout_spans(layout) && with_root && well; s++) {
            struct ra_span span = ra_layout_span(layout, rank, s), here = {a, 1, span.count};
            a += span.count;
            if (ring->rank == root)
                well = pass_rows(ring, scatter, rank, span, outer, layout.length, row_bytes, whole);
            else
                well = pass_rows(ring, !scatter, root, here, outer, own_rows, row_bytes, local);
        }
    }
    if (well)
        return RA_OK;
    plan->lost = RA_LOST;
    snprintf(plan->error, sizeof plan->error, "%.300s", ring->error);
    return RA_LOST;
}

/* Checks the arguments of both; an error is one of all ranks. */
static enum ra_status check_move(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                 int64_t row_bytes, int root, const void *whole, const void *local)
{
    char text[RA_ERROR_SIZE];
    if (!plan)
        return RA_INVALID;
    if (plan->lost != RA_OK)
        return plan->lost;
    if (plan->link.close != link_close)
        return ra_refuse(plan->error, "the plan is not one of ra_mpi_plan_create");
    int P = plan->link.size;
    enum ra_status status = ra_plan_check_rows(plan, side, outer, row_bytes, whole,
                                               root == plan->link.rank, local, text);
    if (root < 0 || root >= P)
        status = ra_refuse(text, "root = %d: give a rank of the ring, 0 to %d", root, P - 1);
    else if (row_bytes > INT_MAX || outer > INT_MAX ||
             ra_layout_most_rows(ra_plan_layout(plan, side)) > INT_MAX)
        status = ra_refuse(text,
                           "outer = %" PRId64 ", row_bytes = %" PRId64
                           ": MPI counts to 2^31 - 1, and so must these and a rank's rows",
                           outer, row_bytes);
    return status == RA_OK ? RA_OK : ra_plan_give_up(plan, status, text);
}

enum ra_status ra_mpi_scatter(struct ra_plan *plan, enum ra_side side, int64_t outer,
                              int64_t row_bytes, int root, const void *whole, void *local)
{
    enum ra_status status = check_move(plan, side, outer, row_bytes, root, whole, local);
    if (status == RA_OK && plan->link.rank == root)
        status = ra_shard(plan, side, outer, row_bytes, whole, local);

    /* The cast is safe: of a scatter, whole is only read. */
    if (status == RA_OK)
        status =
            move_rows(plan, side, outer, row_bytes, root, true, (void *)(uintptr_t)whole, local);
    return status;
}

enum ra_status ra_mpi_gather(struct ra_plan *plan, enum ra_side side, int64_t outer,
                             int64_t row_bytes, int root, const void *local, void *whole)
{
    enum ra_status status = check_move(plan, side, outer, row_bytes, root, whole, local);
    if (status == RA_OK && plan->link.rank == root)
        status = ra_unshard(plan, side, outer, row_bytes, local, whole);

    /* The cast is safe: of a gather, local is only read. */
    if (status == RA_OK)
        status =
            move_rows(plan, side, outer, row_bytes, root, false, whole, (void *)(uintptr_t)local);
    return status;
}
