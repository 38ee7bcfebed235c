/* ra_ring: messages between the ranks of a ring, over MPI, in flight while the caller computes.
 * See ra_ring.h.
 * Chapter 03. New here: nonblocking sends and receives that are driven by the caller's own loop,
 * and a wait that does not last for ever.
 */
#include "ra_ring.h"
#include <sched.h>
#include <stdio.h>
#include <time.h>

static const char *const message_names[RA_MESSAGES] = {"keys", "gradients",
                                                       "gradients coming home"};

double ra_ring_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Puts what MPI says about an error code into ring->error; returns whether there is none. */
static bool succeeded(struct ra_ring *ring, int code, bool outgoing,
                      const struct ra_passage *passage)
{
    if (code == MPI_SUCCESS)
        return true;
    char reason[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, reason, &length);
    snprintf(ring->error, sizeof ring->error, "ring rank %d, hop %d: %s %s %s rank %d: %.120s",
             ring->rank, passage->hop, outgoing ? "sending" : "receiving",
             message_names[passage->message], outgoing ? "to" : "from", passage->peer, reason);
    return false;
}

bool ra_ring_open(struct ra_ring *ring, MPI_Comm world, int size, double timeout)
{
    *ring = (struct ra_ring){.comm = MPI_COMM_NULL, .size = size, .timeout = timeout};
    for (int m = 0; m < RA_MESSAGES; m++)
        ring->in[m].request = ring->out[m].request = MPI_REQUEST_NULL;

    /* Ranks of one colour make a ring, in the order of their ranks in the world. */
    int rank;
    if (MPI_Comm_rank(world, &rank) != MPI_SUCCESS ||
        MPI_Comm_split(world, rank / size, rank, &ring->comm) != MPI_SUCCESS) {
        snprintf(ring->error, sizeof ring->error, "MPI cannot cut the world into rings of %d",
                 size);
        return false;
    }
    ring->rank = rank % size;

    /* By default MPI ends the program at any error; we want to name rank, hop and peer first. */
    MPI_Comm_set_errhandler(ring->comm, MPI_ERRORS_RETURN);
    return true;
}

int ra_ring_rank_at(const struct ra_ring *ring, int distance)
{
    return ((ring->rank + distance) % ring->size + ring->size) % ring->size;
}

int64_t ra_ring_gradient_bytes(int64_t B, int64_t stride, int64_t rows)
{
    return 2 * B * rows * stride * (int64_t)sizeof(float);
}

int64_t ra_ring_key_bytes(int64_t B, int64_t stride, bool has_mask, int64_t rows)
{
    return ra_ring_gradient_bytes(B, stride, rows) + (has_mask ? B * rows : 0);
}

struct ra_keys ra_ring_keys(int64_t B, int64_t stride, bool has_mask, int64_t rows, float *message,
                            float *gradients)
{
    int64_t numbers = B * rows * stride;
    struct ra_keys keys = {.rows = rows, .stride = stride, .k = message, .v = message + numbers};
    if (has_mask)
        keys.mask = (const bool *)(message + 2 * numbers);
    if (gradients) {
        keys.dk = gradients;
        keys.dv = gradients + numbers;
    }
    return keys;
}

/* A type for this many bytes. MPI counts in int, which ends at 2 GiB: so whole GiB are counted as
 * one element each, and the rest as bytes. */
static int type_of_bytes(int64_t bytes, MPI_Datatype *type)
{
    const int64_t gibibyte = 1 << 30;
    MPI_Datatype large;
    MPI_Type_contiguous((int)gibibyte, MPI_BYTE, &large);
    int counts[] = {(int)(bytes / gibibyte), (int)(bytes % gibibyte)};
    MPI_Aint places[] = {0, bytes / gibibyte * gibibyte};
    MPI_Type_create_struct(2, counts, places, (MPI_Datatype[]){large, MPI_BYTE}, type);
    MPI_Type_free(&large);
    return MPI_Type_commit(type);
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
    type_of_bytes(bytes, &type);
    int code = MPI_Isend(from, 1, type, passage->peer, message, ring->comm, &passage->request);
    MPI_Type_free(&type);
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
    type_of_bytes(bytes, &type);
    int code = MPI_Irecv(into, 1, type, passage->peer, message, ring->comm, &passage->request);
    MPI_Type_free(&type);
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
            snprintf(ring->error, sizeof ring->error,
                     "ring rank %d, hop %d: waited %.3g s for rank %d to %s %s; has it died? If it "
                     "is only slow, wait longer",
                     ring->rank, incoming ? in->hop : out->hop, waited,
                     incoming ? in->peer : out->peer, incoming ? "send" : "take",
                     message_names[incoming ? in->message : out->message]);
            return false;
        }

        /* Somebody else may need this processor to send what we wait for. */
        sched_yield();
    }
    return !ring->error[0];
}

void ra_ring_close(struct ra_ring *ring)
{
    MPI_Comm_free(&ring->comm);
}
