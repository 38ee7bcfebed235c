/* ra_ring: messages between the ranks of a ring, over MPI, in flight while the caller computes.
 * See ra_ring.h.
 * Chapter 03. New here: nonblocking sends and receives that are driven by the caller's own loop,
 * and a wait that does not last for ever.
 */
#include "ra_ring.h"
#include <sched.h>
#include <stdio.h>
#include <time.h>

static const char *const message_names[RA_MESSAGES] = {"keys", "gradients", "gradients coming home",
                                                       "rows of a shard", "word of an error"};

double ra_ring_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ra_ring_fail(struct ra_ring *ring, const char *reason)
{
    if (ring->error[0])
        return;
    snprintf(ring->error, sizeof ring->error, "%s", reason);

    /* So short a message leaves at once, or as soon as MPI has found the way, whether or not its
     * receiver listens. Longer than a second we do not stay for it. */
    double began = ra_ring_seconds();
    for (int r = 0; r < ring->size; r++) {
        MPI_Request request = MPI_REQUEST_NULL;
        int gone = 0;
        if (r != ring->rank)
            MPI_Isend(ring->error, sizeof ring->error, MPI_CHAR, ring->first + r, RA_TROUBLE,
                      ring->comm, &request);
        do
            MPI_Test(&request, &gone, MPI_STATUS_IGNORE);
        while (!gone && ra_ring_seconds() - began < 1);
        if (!gone) {
            MPI_Request_free(&request);
            ring->telling = true;
        }
    }
}

/* Fails with what MPI says about an error code; returns whether there is none. */
static bool succeeded(struct ra_ring *ring, int code, bool outgoing,
                      const struct ra_passage *passage)
{
    if (code == MPI_SUCCESS)
        return true;
    char reason[MPI_MAX_ERROR_STRING] = "", text[RA_RING_ERROR];
    int length;
    MPI_Error_string(code, reason, &length);
    snprintf(text, sizeof text, "ring rank %d, hop %d: %s %s %s rank %d: %.120s", ring->rank,
             passage->hop, outgoing ? "sending" : "receiving", message_names[passage->message],
             outgoing ? "to" : "from", passage->peer, reason);
    ra_ring_fail(ring, text);
    return false;
}

/* Duplicates `world`. Not by MPI_Comm_dup, which would wait for ever for a rank that does not
 * come. */
static bool duplicate(struct ra_ring *ring, MPI_Comm world)
{
    double began = ra_ring_seconds();
    int done = 0, code = MPI_Comm_idup(world, &ring->comm, &ring->opening);
    while (code == MPI_SUCCESS && !done) {
        double waited = ra_ring_seconds() - began;
        if (ring->timeout > 0 && waited > ring->timeout) {
            snprintf(ring->error, sizeof ring->error,
                     "waited %g s for all ranks to open the ring; has one died?", ring->timeout);
            return false;
        }
        sched_yield();
        code = MPI_Test(&ring->opening, &done, MPI_STATUS_IGNORE);
    }
    if (code != MPI_SUCCESS)
        snprintf(ring->error, sizeof ring->error, "MPI cannot duplicate the communicator");
    return code == MPI_SUCCESS;
}

bool ra_ring_open(struct ra_ring *ring, MPI_Comm world, int size, double timeout)
{
    *ring = (struct ra_ring){
        .comm = MPI_COMM_NULL, .size = size, .timeout = timeout, .opening = MPI_REQUEST_NULL};
    for (int m = 0; m < RA_MESSAGES; m++)
        ring->in[m].request = ring->out[m].request = MPI_REQUEST_NULL;
    if (!duplicate(ring, world))
        return false;

    /* Neighbours in the world make a ring. */
    int rank;
    MPI_Comm_rank(ring->comm, &rank);
    ring->rank = rank % size;
    ring->first = rank - ring->rank;

    /* By default MPI ends the program at any error; we want to name rank, hop and peer first. */
    MPI_Comm_set_errhandler(ring->comm, MPI_ERRORS_RETURN);

    /* Another rank may fail at any time: its word is always expected. */
    struct ra_passage *news = &ring->in[RA_TROUBLE];
    news->message = RA_TROUBLE;
    int code = MPI_Irecv(ring->trouble, sizeof ring->trouble, MPI_CHAR, MPI_ANY_SOURCE, RA_TROUBLE,
                         ring->comm, &news->request);
    return succeeded(ring, code, false, news);
}

int ra_ring_rank_at(const struct ra_ring *ring, int distance)
{
    return ((ring->rank + distance) % ring->size + ring->size) % ring->size;
}

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

bool ra_ring_send(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                  const void *from, int64_t bytes)
{
    struct ra_passage *passage = &ring->out[message == RA_HOME ? RA_GRADIENTS : message];
    *passage = (struct ra_passage){MPI_REQUEST_NULL,  message, hop, ra_ring_rank_at(ring, distance),
                                   ra_ring_seconds(), 0};
    if (bytes == 0 || ring->error[0])
        return !ring->error[0];
    ring->bytes_sent += bytes;
    ring->messages_sent++;

    /* The kind is the tag. MPI keeps the order of messages with the same tag. */
    MPI_Datatype type;
    int code = type_of_bytes(bytes, &type);
    if (code == MPI_SUCCESS) {
        code = MPI_Isend(from, 1, type, ring->first + passage->peer, message, ring->comm,
                         &passage->request);
        MPI_Type_free(&type);
    }
    return succeeded(ring, code, true, passage);
}

bool ra_ring_receive(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                     void *into, int64_t bytes)
{
    struct ra_passage *passage = &ring->in[message];
    *passage = (struct ra_passage){MPI_REQUEST_NULL,  message, hop, ra_ring_rank_at(ring, distance),
                                   ra_ring_seconds(), 0};
    if (bytes == 0 || ring->error[0])
        return !ring->error[0];
    MPI_Datatype type;
    int code = type_of_bytes(bytes, &type);
    if (code == MPI_SUCCESS) {
        code = MPI_Irecv(into, 1, type, ring->first + passage->peer, message, ring->comm,
                         &passage->request);
        MPI_Type_free(&type);
    }
    return succeeded(ring, code, false, passage);
}

/* Is it done? Every call lets MPI move all messages, not only this one. */
static bool test(struct ra_ring *ring, struct ra_passage *passage, bool outgoing)
{
    int done = passage->request == MPI_REQUEST_NULL;
    if (done)
        return true;
    int code = MPI_Test(&passage->request, &done, MPI_STATUS_IGNORE);
    if (done)
        passage->finished = ra_ring_seconds();
    return succeeded(ring, code, outgoing, passage);
}

bool ra_ring_poll(struct ra_ring *ring)
{
    for (int m = 0; m < RA_MESSAGES && !ring->error[0]; m++)
        if (!test(ring, &ring->out[m], true) || !test(ring, &ring->in[m], false))
            return false;

    /* Word has come that another rank has failed: this one fails with it. */
    if (!ring->error[0] && ring->in[RA_TROUBLE].request == MPI_REQUEST_NULL)
        snprintf(ring->error, sizeof ring->error, "%s", ring->trouble);
    return !ring->error[0];
}

bool ra_ring_wait(struct ra_ring *ring, enum ra_message message)
{
    const struct ra_passage *out = &ring->out[message], *in = &ring->in[message];
    double began = ra_ring_seconds();
    while (in->request != MPI_REQUEST_NULL || out->request != MPI_REQUEST_NULL) {
        if (!ra_ring_poll(ring))
            return false;

        /* A peer that died or stalls must not take us with it. */
        double waited = ra_ring_seconds() - began;
        if (ring->timeout > 0 && waited > ring->timeout) {
            bool incoming = in->request != MPI_REQUEST_NULL;
            const struct ra_passage *late = incoming ? in : out;
            char text[RA_RING_ERROR];
            snprintf(text, sizeof text,
                     "ring rank %d, hop %d: waited %g s for rank %d to %s %s; has it died? If it"
                     " is only slow, wait longer",
                     ring->rank, late->hop, ring->timeout, late->peer, incoming ? "send" : "take",
                     message_names[late->message]);
            ra_ring_fail(ring, text);
            return false;
        }

        /* Somebody else may need this processor to send what we wait for. */
        sched_yield();
    }
    return !ring->error[0];
}

/* Tries to have nothing under way any more; returns whether that is so. MPI can call off a receive
 * that nothing has come for; of other messages one can only wait for the end, which may never
 * be. */
static bool call_off(struct ra_ring *ring)
{
    /* First all of them: a test lets messages arrive, for any receive that is still there. */
    for (int m = 0; m < RA_MESSAGES; m++)
        if (ring->in[m].request != MPI_REQUEST_NULL)
            MPI_Cancel(&ring->in[m].request);

    int opened = 0;
    MPI_Test(&ring->opening, &opened, MPI_STATUS_IGNORE);
    bool quiet = opened && !ring->telling;
    for (int m = 0; m < RA_MESSAGES; m++) {
        int received = 0, sent = 0;
        MPI_Test(&ring->in[m].request, &received, MPI_STATUS_IGNORE);
        MPI_Test(&ring->out[m].request, &sent, MPI_STATUS_IGNORE);
        quiet = quiet && received && sent;
    }
    return quiet;
}

bool ra_ring_close(struct ra_ring *ring)
{
    /* Without an error this ends the one receive that is always under way. If it has just brought
     * the error of another rank after all, that rank will not free the communicator with us. */
    bool quiet = call_off(ring);
    if (quiet && !ring->error[0] && !ring->trouble[0])
        MPI_Comm_free(&ring->comm);
    return quiet;
}
