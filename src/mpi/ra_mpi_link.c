/* ra_mpi_link: a link over MPI. See ra_mpi_link.h and the contract in ra_link.h.
 *
 * Chapter 03. New here: nonblocking sends and receives that are driven by the caller's own loop,
 * and waits with a timeout.
 */
#include "ra_mpi_link.h"
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_clock.h"
#include "ra_message.h"

/* Some MPIs say here whether they can reach the memory of GPUs. */
#ifdef __has_include
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

/* ---- Errors. */

static void fail(void *self, const char *reason)
{
    struct ra_mpi_link *mpi = self;
    if (mpi->error[0])
        return;
    snprintf(mpi->error, sizeof mpi->error, "%s", reason);

    /* A message this short leaves at once, or as soon as MPI has found the way, whether or not its
     * receiver listens. This rank does not stay for it longer than a second. */
    double began = ra_seconds();
    for (int r = 0; r < mpi->size; r++) {
        MPI_Request request = MPI_REQUEST_NULL;
        int gone = 0;
        if (r != mpi->rank)
            MPI_Isend(mpi->error, sizeof mpi->error, MPI_CHAR, mpi->first + r, RA_FAILURE,
                      mpi->comm, &request);
        do
            MPI_Test(&request, &gone, MPI_STATUS_IGNORE);
        while (!gone && ra_seconds() - began < 1);
        if (!gone) {
            MPI_Request_free(&request);
            mpi->telling = true;
        }
    }
}

static const char *error_of(void *self)
{
    return ((struct ra_mpi_link *)self)->error;
}

/* Fails with what MPI says about an error code; returns whether there is none. */
static bool succeeded(struct ra_mpi_link *mpi, int code, bool outgoing,
                      const struct ra_passage *passage)
{
    if (code == MPI_SUCCESS)
        return true;
    char reason[MPI_MAX_ERROR_STRING] = "", text[RA_ERROR_SIZE];
    int length;
    MPI_Error_string(code, reason, &length);
    ra_message_place(text, mpi->rank, passage->hop, "%s %s %s rank %d: %s",
                     outgoing ? "sending" : "receiving", ra_message_name(passage->message),
                     outgoing ? "to" : "from", passage->peer, reason);
    fail(mpi, text);
    return false;
}

/* ---- Messages. */

/* A type for this many bytes. MPI counts in int, which ends at 2 GiB: so whole GiB are counted as
 * one element each, and the rest as bytes. */
static int type_of_bytes(int64_t bytes, MPI_Datatype *type)
{
    const int64_t gibibyte = 1 << 30;
    MPI_Datatype large;
    int code = MPI_Type_contiguous((int)gibibyte, MPI_BYTE, &large);
    if (code != MPI_SUCCESS)
        return code;
    int counts[] = {(int)(bytes / gibibyte), (int)(bytes % gibibyte)};
    MPI_Aint places[] = {0, bytes / gibibyte * gibibyte};
    code = MPI_Type_create_struct(2, counts, places, (MPI_Datatype[]){large, MPI_BYTE}, type);
    MPI_Type_free(&large);
    return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

bool ra_mpi_link_begin(struct ra_mpi_link *mpi, bool outgoing, enum ra_message message, int hop,
                       int peer, void *data, MPI_Datatype type)
{
    struct ra_passage *passage =
        outgoing ? &mpi->out[ra_message_way_out(message)] : &mpi->in[message];
    if (mpi->error[0])
        return false;
    if (passage->request != MPI_REQUEST_NULL) {
        /* Two callers use the link at the same time, or one of them has not kept the contract. */
        char text[RA_ERROR_SIZE];
        ra_message_place(text, mpi->rank, hop, "%s %s without having waited for %s of hop %d",
                         outgoing ? "sends" : "receives", ra_message_name(message),
                         ra_message_name(passage->message), passage->hop);
        fail(mpi, text);
        return false;
    }
    *passage = (struct ra_passage){MPI_REQUEST_NULL, message, hop, peer, ra_seconds(), 0};

    /* The kind is the tag. MPI keeps the order of messages with the same tag. */
    int rank = mpi->first + peer, tag = (int)message;
    int code = outgoing ? MPI_Isend(data, 1, type, rank, tag, mpi->comm, &passage->request)
                        : MPI_Irecv(data, 1, type, rank, tag, mpi->comm, &passage->request);
    return succeeded(mpi, code, outgoing, passage);
}

/* The same for this many bytes, to or from the rank at this distance. */
static bool begin_bytes(struct ra_mpi_link *mpi, bool outgoing, enum ra_message message, int hop,
                        int distance, void *data, int64_t bytes)
{
    int peer = ((mpi->rank + distance) % mpi->size + mpi->size) % mpi->size;
    struct ra_passage here = {.message = message, .hop = hop, .peer = peer};
    MPI_Datatype type;
    if (mpi->error[0] || !succeeded(mpi, type_of_bytes(bytes, &type), outgoing, &here))
        return false;
    bool begun = ra_mpi_link_begin(mpi, outgoing, message, hop, peer, data, type);
    MPI_Type_free(&type);
    return begun;
}

static bool send_bytes(void *self, enum ra_message message, int hop, int distance, const void *from,
                       int64_t bytes)
{
    /* The cast is safe: what is sent is only read. */
    return begin_bytes(self, true, message, hop, distance, (void *)(uintptr_t)from, bytes);
}

static bool receive_bytes(void *self, enum ra_message message, int hop, int distance, void *into,
                          int64_t bytes)
{
    return begin_bytes(self, false, message, hop, distance, into, bytes);
}

/* Is it done? Every call lets MPI move all messages, not only this one. */
static bool test(struct ra_mpi_link *mpi, struct ra_passage *passage, bool outgoing)
{
    int done = passage->request == MPI_REQUEST_NULL;
    if (done)
        return true;
    int code = MPI_Test(&passage->request, &done, MPI_STATUS_IGNORE);
    if (done)
        passage->finished = ra_seconds();
    return succeeded(mpi, code, outgoing, passage);
}

static void cancel(void *self)
{
    atomic_store(&((struct ra_mpi_link *)self)->cancelled, true);
}

/* Fails if somebody has called that; returns whether it is so. */
static bool heed_cancel(struct ra_mpi_link *mpi)
{
    char text[RA_ERROR_SIZE];
    if (!atomic_load(&mpi->cancelled))
        return false;
    ra_message_cancelled(text, mpi->rank);
    fail(mpi, text);
    return true;
}

/* Moves all messages, and shows what this rank does. */
static bool move(struct ra_mpi_link *mpi, enum ra_mpi_sign sign)
{
    for (int m = 0; m < RA_MESSAGES && !mpi->error[0]; m++)
        if (!test(mpi, &mpi->out[m], true) || !test(mpi, &mpi->in[m], false))
            return false;

    /* Another rank has failed: this one fails with it. */
    if (!mpi->error[0] && mpi->in[RA_FAILURE].request == MPI_REQUEST_NULL)
        snprintf(mpi->error, sizeof mpi->error, "%s", mpi->failure);
    if (!mpi->error[0])
        ra_mpi_alive_show(mpi, sign);
    return !mpi->error[0];
}

static bool poll(void *self)
{
    return move(self, RA_COMPUTES);
}

/* Fails if this message will not come any more, or has not come in time. `gone`: the other rank was
 * gone before this one last looked. */
static void check_overdue(struct ra_mpi_link *mpi, const struct ra_passage *late, bool incoming,
                          bool gone, double began)
{
    double now = ra_seconds(), silent = now - fmax(began, fabs(mpi->heard[late->peer]));
    double idle = now - fmax(began, mpi->work), timeout = mpi->timeout;

    /* This rank may have slept since it last looked: then what has come is there the next time. */
    if (!gone && (ra_mpi_alive_gone(mpi, late->peer) || timeout <= 0 ||
                  (silent <= timeout && idle <= 1.5 * timeout)))
        return;
    enum ra_peer_state absence = silent > timeout ? RA_IS_SILENT : RA_IS_WAITING;
    char text[RA_ERROR_SIZE];
    ra_message_timeout_text(text, mpi->rank, late->hop, timeout, late->peer, incoming,
                            late->message, gone ? RA_IS_GONE : absence);
    fail(mpi, text);
}

static bool wait(void *self, enum ra_message message)
{
    struct ra_mpi_link *mpi = self;
    const struct ra_passage *out = &mpi->out[message], *in = &mpi->in[message];
    double began = ra_seconds(), looked = began;
    while (in->request != MPI_REQUEST_NULL || out->request != MPI_REQUEST_NULL) {
        bool incoming = in->request != MPI_REQUEST_NULL;
        const struct ra_passage *late = incoming ? in : out;
        bool gone = ra_mpi_alive_gone(mpi, late->peer);
        if (heed_cancel(mpi) || !move(mpi, RA_WAITS))
            return false;

        /* A rank that was stopped itself has heard nobody meanwhile. */
        double now = ra_seconds();
        if (now - looked > mpi->timeout / 2)
            began = now;
        looked = now;

        /* A peer that died or stalls must not take this rank with it. */
        if (late->request != MPI_REQUEST_NULL)
            check_overdue(mpi, late, incoming, gone, began);

        /* Another rank may need this processor to send what this one waits for. */
        sched_yield();
    }
    return !mpi->error[0];
}

static bool arrival(void *self, enum ra_message message, int *hop, double *start, double *end)
{
    struct ra_passage *passage = &((struct ra_mpi_link *)self)->in[message];
    if (passage->finished == 0)
        return false;
    *hop = passage->hop;
    *start = passage->started;
    *end = passage->finished;
    passage->finished = 0;
    return true;
}

static void set_timeout(void *self, double seconds)
{
    ((struct ra_mpi_link *)self)->timeout = seconds;
}

/* ---- The end, and the table. */

/* Tries to have nothing under way any more; returns whether that is so. MPI can call off a receive
 * that nothing has come for; of other messages one can only wait for the end, which may never
 * be. */
static bool call_off(struct ra_mpi_link *mpi)
{
    if (mpi->signs != MPI_REQUEST_NULL)
        MPI_Cancel(&mpi->signs);

    /* First all of them: a test lets messages arrive, for any receive that is still there. */
    for (int m = 0; m < RA_MESSAGES; m++)
        if (mpi->in[m].request != MPI_REQUEST_NULL)
            MPI_Cancel(&mpi->in[m].request);

    int opened = 0, heard = 0;
    MPI_Test(&mpi->opening, &opened, MPI_STATUS_IGNORE);
    MPI_Test(&mpi->signs, &heard, MPI_STATUS_IGNORE);
    bool quiet = opened && heard && !mpi->telling;
    for (int m = 0; m < RA_MESSAGES; m++) {
        int received = 0, sent = 0;
        MPI_Test(&mpi->in[m].request, &received, MPI_STATUS_IGNORE);
        MPI_Test(&mpi->out[m].request, &sent, MPI_STATUS_IGNORE);
        quiet = quiet && received && sent;
    }
    return quiet;
}

static bool close_link(void *self)
{
    /* After MPI_Finalize nothing of MPI's may be touched, and nothing of it is left. */
    struct ra_mpi_link *mpi = self;
    int finalized;
    MPI_Finalized(&finalized);
    if (!finalized) {
        /* Without an error this ends the receives that are always under way. MPI keeps a
         * communicator on which something may still come: signs of ranks that compute, or their
         * error. */
        bool alone = mpi->comm != MPI_COMM_NULL && !mpi->error[0] && ra_mpi_alive_leave(mpi);
        if (!call_off(mpi))
            return false;
        if (alone && !mpi->failure[0])
            MPI_Comm_free(&mpi->comm);
    }
    free(mpi);
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

struct ra_link ra_mpi_link_table(struct ra_mpi_link *mpi)
{
    return (struct ra_link){.rank = mpi->rank,
                            .size = mpi->size,
                            .bytes = mpi->bytes,
                            .device_memory = reaches_devices(),
                            .self = mpi,
                            .send = send_bytes,
                            .receive = receive_bytes,
                            .poll = poll,
                            .wait = wait,
                            .fail = fail,
                            .error = error_of,
                            .arrival = arrival,
                            .set_timeout = set_timeout,
                            .close = close_link,
                            .in_call = &mpi->in_call,
                            .cancel = cancel};
}

bool ra_mpi_link_is(const struct ra_link *link)
{
    return link->wait == wait;
}
