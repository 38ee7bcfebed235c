/* check_ring: messages between the ranks of a ring. An MPI program, and therefore without libcheck,
 * which runs each test in a process of its own.
 *
 *   mpirun -n RANKS build/check-ring [RING_SIZE]
 *
 * Every rank runs every test. Messages are bytes that say who sent them, as what and at which hop, so
 * that a message of another ring, kind or hop is never taken for the right one. Which rank is where
 * is worked out here by single steps round the ring.
 */

/* type_of_bytes is static: messages of gibibytes are too large to be sent here. */
#include "ra_ring.c"

#include <stdlib.h>
#include <string.h>
#include "verdict.h"

/* Small messages travel with the sender's first word (eager), large ones when both sides are there
 * (rendezvous). Behind every message lies a guard that nothing may be written to. */
enum { MEDIUM = 64 << 10, LARGE = 9 << 20, GUARD = 64, GUARD_BYTE = 0x5A };

/* What no error is worth waiting for, and the timeout of the tests of timeouts. */
static const double patience = 10, soon = 0.1;

static int world_rank, ranks, ring_size;

/* This rank in the communicator that the rings of a test are made of. */
static int place;

/* Room for one message of each kind, out and in, and for what nobody wants. */
static unsigned char *outgoing[RA_MESSAGES], *incoming[RA_MESSAGES], *scrap;

/* How many types and communicators there are now. MPI lets a program stand in for its functions,
 * under whose second names, PMPI_..., the work is still done. */
static int types, communicators;

/* The function of MPI whose next call fails; whether words of trouble only leave when they are
 * received; whether a message has come for every receive, so that none can be called off. */
enum function { NOTHING, IDUP, CONTIGUOUS, STRUCT, SEND, RECEIVE };
static enum function broken;
static bool synchronous, too_late;

static bool breaks(enum function function)
{
    bool now = broken == function;
    if (now)
        broken = NOTHING;
    return now;
}

int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *type)
{
    if (breaks(CONTIGUOUS))
        return MPI_ERR_OTHER;
    types++;
    return PMPI_Type_contiguous(count, old, type);
}

int MPI_Type_create_struct(int count, const int lengths[], const MPI_Aint places[],
                           const MPI_Datatype old[], MPI_Datatype *type)
{
    if (breaks(STRUCT))
        return MPI_ERR_OTHER;
    types++;
    return PMPI_Type_create_struct(count, lengths, places, old, type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    types--;
    return PMPI_Type_free(type);
}

int MPI_Comm_idup(MPI_Comm old, MPI_Comm *comm, MPI_Request *request)
{
    if (breaks(IDUP))
        return MPI_ERR_OTHER;
    communicators++;
    return PMPI_Comm_idup(old, comm, request);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    communicators--;
    return PMPI_Comm_free(comm);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (breaks(SEND))
        return MPI_ERR_OTHER;
    return (synchronous && tag == RA_TROUBLE ? PMPI_Issend : PMPI_Isend)(from, count, type, rank,
                                                                         tag, comm, request);
}

int MPI_Cancel(MPI_Request *request)
{
    return too_late ? MPI_SUCCESS : PMPI_Cancel(request);
}

int MPI_Irecv(void *into, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    if (breaks(RECEIVE))
        return MPI_ERR_OTHER;
    return PMPI_Irecv(into, count, type, rank, tag, comm, request);
}

/* Ends a test that does not find what it expects. */
#define EXPECT(...)              \
    do {                         \
        if (!HOLDS(__VA_ARGS__)) \
            return false;        \
    } while (0)

/* ---- Who is where, and what they say. */

/* The ring rank at this distance from another, one step at a time. */
static int walk_from(int at, int distance)
{
    for (; distance > 0; distance--)
        at = at == ring_size - 1 ? 0 : at + 1;
    for (; distance < 0; distance++)
        at = at == 0 ? ring_size - 1 : at - 1;
    return at;
}

static int walk(int distance)
{
    return walk_from(place % ring_size, distance);
}

/* Writes the bytes that the rank at this distance sends as this kind at this hop. */
static void write_down(unsigned char *text, int distance, enum ra_message message, int hop,
                       int64_t bytes)
{
    int sender = place / ring_size * ring_size + walk(distance);
    uint32_t voice = 0x9E3779B9u * (uint32_t)(1 + sender * 1000 + message * 100 + hop);
    for (int64_t i = 0; i < bytes; i++) {
        uint32_t hash = (uint32_t)i + voice;
        hash = (hash ^ hash >> 15) * 0x85EBCA6Bu;
        text[i] = (unsigned char)(hash >> 21);
    }
}

/* Begins to send what this rank says. */
static bool speak(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                  int64_t bytes)
{
    write_down(outgoing[message], 0, message, hop, bytes);
    return ra_ring_send(ring, message, hop, distance, outgoing[message], bytes);
}

/* Begins to listen to the rank at this distance. */
static bool await(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                  int64_t bytes)
{
    memset(incoming[message], GUARD_BYTE, (size_t)bytes + GUARD);
    return ra_ring_receive(ring, message, hop, distance, incoming[message], bytes);
}

static bool guard_holds(const unsigned char *guard)
{
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != GUARD_BYTE)
            return false;
    return true;
}

/* Has arrived what the rank at this distance said, and no byte more? */
static bool heard(enum ra_message message, int hop, int distance, int64_t bytes)
{
    int64_t same = 0;
    write_down(scrap, distance, message, hop, bytes);
    if (memcmp(incoming[message], scrap, (size_t)bytes) != 0) {
        while (incoming[message][same] == scrap[same])
            same++;
        return WRONG("hop %d, distance %d, %s: byte %lld of %lld is not the sender's", hop,
                     distance, message_names[message], (long long)same, (long long)bytes);
    }
    return guard_holds(incoming[message] + bytes) ||
           WRONG("written behind a message of %lld bytes", (long long)bytes);
}

/* ---- The tests. Each opens rings of its own, so that what a failed one leaves is nobody's. */

static bool test_open(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, 7.5), "%s", ring.error);
    EXPECT(ring.size == ring_size, "%d", ring.size);
    EXPECT(ring.rank == world_rank % ring_size, "%d", ring.rank);
    EXPECT(ring.timeout == 7.5, "%g", ring.timeout);
    EXPECT(ring.bytes_sent == 0 && ring.messages_sent == 0 && ring.error[0] == '\0', "%s",
           ring.error);

    /* The communicator is a copy of the world, and its errors come back to us. */
    int alike;
    MPI_Comm_compare(ring.comm, MPI_COMM_WORLD, &alike);
    EXPECT(alike == MPI_CONGRUENT, "%d", alike);
    EXPECT(ring.first == world_rank / ring_size * ring_size, "%d", ring.first);
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(ring.comm, &handler);
    EXPECT(handler == MPI_ERRORS_RETURN, "MPI would end the program");

    EXPECT(ra_ring_close(&ring), "MPI still uses memory");
    EXPECT(ring.comm == MPI_COMM_NULL, "not freed");
    return true;
}

/* Rings of a communicator in which the ranks stand in another order than in the world: neighbours
 * are those of that order. */
static bool test_reversed(void)
{
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &comm);
    place = ranks - 1 - world_rank;
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, comm, ring_size, patience), "%s", ring.error);
    EXPECT(ring.rank == place % ring_size, "%d", ring.rank);
    EXPECT(ring.first == place / ring_size * ring_size, "%d", ring.first);
    for (int distance = -1; distance <= 1; distance += 2) {
        EXPECT(await(&ring, RA_KEYS, 2, -distance, 8), "%s", ring.error);
        EXPECT(speak(&ring, RA_KEYS, 2, distance, 8), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
        if (!heard(RA_KEYS, 2, -distance, 8))
            return false;
    }
    EXPECT(ra_ring_close(&ring), "MPI still uses memory");
    PMPI_Comm_free(&comm);
    place = world_rank;
    return true;
}

static bool test_rank_at(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int distance = -3 * ring_size; distance <= 3 * ring_size; distance++)
        EXPECT(ra_ring_rank_at(&ring, distance) == walk(distance), "distance %d gives %d", distance,
               ra_ring_rank_at(&ring, distance));
    ra_ring_close(&ring);
    return true;
}

/* B = 2 batches of 5 rows of 6 numbers are 60 numbers, 240 bytes, for k and for v; the mask has a
 * byte for each of the 10 rows. */
static bool test_bytes(void)
{
    EXPECT(ra_message_gradient_bytes(2, 6, 5) == 480, "B 2, stride 6, 5 rows");
    EXPECT(ra_message_key_bytes(2, 6, false, 5) == 480, "B 2, stride 6, 5 rows");
    EXPECT(ra_message_key_bytes(2, 6, true, 5) == 490, "B 2, stride 6, 5 rows");
    EXPECT(ra_message_gradient_bytes(2, 6, 0) == 0 && ra_message_key_bytes(2, 6, true, 0) == 0,
           "no rows");

    /* 32 GiB: no int holds that. */
    EXPECT(ra_message_gradient_bytes(1, 4096, 1 << 20) == (int64_t)1 << 35, "a million rows");
    EXPECT(ra_message_key_bytes(3, 4096, true, 1 << 20) == 3 * (((int64_t)1 << 35) + (1 << 20)),
           "a million rows and a mask");
    return true;
}

static bool test_keys(void)
{
    float message[200], gradients[200];
    struct ra_keys keys = ra_message_keys(2, 6, true, 5, message, gradients);
    EXPECT(keys.rows == 5 && keys.stride.k == 6, "%lld rows, stride %lld", (long long)keys.rows,
           (long long)keys.stride.k);
    EXPECT(keys.k == message && keys.v == message + 60, "k or v");
    EXPECT(keys.dk == gradients && keys.dv == gradients + 60, "dk or dv");
    EXPECT((const char *)keys.mask == (const char *)message + 480, "mask");
    EXPECT((const char *)(keys.mask + 10) - (const char *)message ==
               ra_message_key_bytes(2, 6, true, 5),
           "the mask ends where the message does");

    /* What is not there is NULL. */
    keys = ra_message_keys(2, 6, false, 5, message, NULL);
    EXPECT(keys.k == message && keys.v == message + 60, "k or v, without mask");
    EXPECT(!keys.mask && !keys.dk && !keys.dv, "forward only, without mask");
    keys = ra_message_keys(2, 6, true, 5, message, NULL);
    EXPECT(keys.mask && !keys.dk && !keys.dv, "forward only");
    return true;
}

/* A message of every size goes round, each rank handing on what it got, until it is home. */
static bool test_round(void)
{
    const int64_t sizes[] = {0, 1, 3, MEDIUM, LARGE};
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int s = 0; s < 5; s++) {
        write_down(outgoing[RA_KEYS], 0, RA_KEYS, s, sizes[s]);
        for (int hop = 0; hop < ring_size; hop++) {
            EXPECT(await(&ring, RA_KEYS, hop, -1, sizes[s]), "%s", ring.error);
            EXPECT(ra_ring_send(&ring, RA_KEYS, hop, 1, outgoing[RA_KEYS], sizes[s]), "%s",
                   ring.error);
            EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
            if (!heard(RA_KEYS, s, -hop - 1, sizes[s]))
                return false;
            memcpy(outgoing[RA_KEYS], incoming[RA_KEYS], (size_t)sizes[s]);
        }
    }
    ra_ring_close(&ring);
    return true;
}

/* To every distance, and from as far on the other side. */
static bool test_distances(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int distance = -ring_size; distance <= ring_size; distance++) {
        EXPECT(await(&ring, RA_GRADIENTS, 4, -distance, 3), "%s", ring.error);
        EXPECT(speak(&ring, RA_GRADIENTS, 4, distance, 3), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_GRADIENTS), "%s", ring.error);
        if (!heard(RA_GRADIENTS, 4, -distance, 3))
            return false;
    }
    ra_ring_close(&ring);
    return true;
}

/* Three messages, small enough to leave on their own, are on their way before anybody listens: they
 * arrive in the order sent. */
static bool test_order(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int hop = 0; hop < 3; hop++) {
        EXPECT(speak(&ring, RA_KEYS, hop, 1, 8), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
    }
    MPI_Barrier(ring.comm);
    for (int hop = 0; hop < 3; hop++) {
        EXPECT(await(&ring, RA_KEYS, hop, -1, 8), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
        if (!heard(RA_KEYS, hop, -1, 8))
            return false;
    }
    ra_ring_close(&ring);
    return true;
}

/* Keys and gradients are under way at once, of any two sizes, in any order of waiting. */
static bool test_both_kinds(void)
{
    const int64_t sizes[] = {3, MEDIUM, LARGE};
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int s = 0; s < 9; s++) {
        int64_t keys = sizes[s % 3], gradients = sizes[s / 3];
        EXPECT(await(&ring, RA_KEYS, s, -1, keys), "%s", ring.error);
        EXPECT(await(&ring, RA_GRADIENTS, s, -1, gradients), "%s", ring.error);
        EXPECT(speak(&ring, RA_GRADIENTS, s, 1, gradients), "%s", ring.error);
        EXPECT(speak(&ring, RA_KEYS, s, 1, keys), "%s", ring.error);
        EXPECT(ra_ring_poll(&ring), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, s % 2 ? RA_KEYS : RA_GRADIENTS), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, s % 2 ? RA_GRADIENTS : RA_KEYS), "%s", ring.error);
        if (!heard(RA_KEYS, s, -1, keys) || !heard(RA_GRADIENTS, s, -1, gradients))
            return false;
    }
    ra_ring_close(&ring);
    return true;
}

/* What comes home and what comes on, from the same peer, are not mixed up, whichever left first. */
static bool test_home(void)
{
    const enum ra_message kinds[] = {RA_HOME, RA_GRADIENTS};
    const int64_t sizes[] = {8, LARGE};
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int s = 0; s < 4; s++) {
        int64_t bytes = sizes[s / 2];
        EXPECT(await(&ring, RA_GRADIENTS, s, -1, bytes), "%s", ring.error);
        EXPECT(await(&ring, RA_HOME, s, -1, bytes), "%s", ring.error);
        for (int k = 0; k < 2; k++) {
            /* They share the way out: the one before must have left. */
            enum ra_message kind = kinds[(s + k) % 2];
            EXPECT(speak(&ring, kind, s, 1, bytes), "%s", ring.error);
            EXPECT(ring.out[RA_GRADIENTS].request != MPI_REQUEST_NULL, "not the shared way out");
            while (ring.out[RA_GRADIENTS].request != MPI_REQUEST_NULL)
                EXPECT(ra_ring_poll(&ring), "%s", ring.error);
        }
        EXPECT(ra_ring_wait(&ring, RA_HOME), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_GRADIENTS), "%s", ring.error);
        if (!heard(RA_HOME, s, -1, bytes) || !heard(RA_GRADIENTS, s, -1, bytes))
            return false;
    }
    ra_ring_close(&ring);
    return true;
}

/* wait returns when both are done, the one in and the one out; and poll alone gets a large message
 * across. */
static bool test_done(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    for (int round = 0; round < 2; round++) {
        double before = ra_ring_seconds();
        EXPECT(await(&ring, RA_KEYS, 0, -1, LARGE), "%s", ring.error);
        EXPECT(speak(&ring, RA_KEYS, 0, 1, LARGE), "%s", ring.error);
        const struct ra_passage *in = &ring.in[RA_KEYS], *out = &ring.out[RA_KEYS];
        EXPECT(in->finished == 0 && out->finished == 0, "finished before it began");
        while (round == 1 && (in->request != MPI_REQUEST_NULL || out->request != MPI_REQUEST_NULL))
            EXPECT(ra_ring_poll(&ring), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);

        EXPECT(in->request == MPI_REQUEST_NULL && out->request == MPI_REQUEST_NULL, "not done");
        double after = ra_ring_seconds();
        EXPECT(before <= in->started && in->started <= in->finished && in->finished <= after,
               "in: started %g, finished %g", in->started - before, in->finished - before);
        EXPECT(before <= out->started && out->started <= out->finished && out->finished <= after,
               "out: started %g, finished %g", out->started - before, out->finished - before);
        EXPECT(in->peer == walk(-1) && out->peer == walk(1), "%d, %d", in->peer, out->peer);
        if (!heard(RA_KEYS, 0, -1, LARGE))
            return false;
    }
    ra_ring_close(&ring);
    return true;
}

/* Counted is what is sent, when it is sent; messages of no bytes do not exist. */
static bool test_counts(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    const int64_t sizes[RA_MESSAGES][2] = {{3, 0}, {MEDIUM, 0}, {1, 0}, {2, 0}};
    for (int zero = 0; zero < 2; zero++)
        for (int m = 0; m < RA_TROUBLE; m++) {
            EXPECT(await(&ring, m, 0, -1, sizes[m][zero]), "%s", ring.error);
            EXPECT(speak(&ring, m, 0, 1, sizes[m][zero]), "%s", ring.error);
            EXPECT(ra_ring_wait(&ring, RA_GRADIENTS), "%s", ring.error);
            EXPECT(ra_ring_wait(&ring, m), "%s", ring.error);
        }
    EXPECT(ring.messages_sent == 4, "%lld", (long long)ring.messages_sent);
    EXPECT(ring.bytes_sent == 3 + MEDIUM + 1 + 2, "%lld", (long long)ring.bytes_sent);
    ra_ring_close(&ring);
    return true;
}

/* With nothing under way there is nothing to wait for, not even with a timeout of 0. */
static bool test_idle(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, 0), "%s", ring.error);
    double start = ra_ring_seconds();
    for (int m = 0; m < RA_TROUBLE; m++) {
        EXPECT(ra_ring_wait(&ring, m), "%s", ring.error);
        EXPECT(await(&ring, m, 0, -1, 0) && speak(&ring, m, 0, 1, 0), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, m), "after a message of no bytes: %s", ring.error);
    }
    EXPECT(ra_ring_poll(&ring), "%s", ring.error);
    EXPECT(ra_ring_seconds() - start < 1, "took %g s", ra_ring_seconds() - start);
    ra_ring_close(&ring);
    return true;
}

/* A peer that is only late is waited for: within the timeout, and for ever if it is 0. */
static bool test_late(void)
{
    for (int forever = 0; forever < 2; forever++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, forever ? 0 : patience), "%s",
               ring.error);
        EXPECT(await(&ring, RA_KEYS, 0, -1, 3), "%s", ring.error);
        struct timespec pause = {0, ring.rank == 0 ? 100000000 : 0};
        nanosleep(&pause, NULL);
        EXPECT(speak(&ring, RA_KEYS, 0, 1, 3), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
        if (!heard(RA_KEYS, 0, -1, 3))
            return false;
        ra_ring_close(&ring);
    }
    return true;
}

/* After an error the ring does nothing more, and says so whatever it is asked. */
static bool is_dead(struct ra_ring *ring, enum ra_message idle)
{
    char error[sizeof ring->error];
    memcpy(error, ring->error, sizeof error);
    int64_t sent = ring->messages_sent, bytes = ring->bytes_sent;
    for (int64_t size = 0; size <= 3; size += 3) {
        EXPECT(!ra_ring_send(ring, idle, 9, 1, outgoing[idle], size), "%lld bytes",
               (long long)size);
        EXPECT(!ra_ring_receive(ring, idle, 9, -1, incoming[idle], size), "%lld bytes",
               (long long)size);
    }
    EXPECT(!ra_ring_poll(ring), "poll goes on");
    for (int m = 0; m < RA_TROUBLE; m++)
        EXPECT(!ra_ring_wait(ring, m), "wait goes on with %s", message_names[m]);
    EXPECT(ring->out[idle].request == MPI_REQUEST_NULL, "sends after the error");
    EXPECT(ring->in[idle].request == MPI_REQUEST_NULL, "receives after the error");
    EXPECT(ring->messages_sent == sent && ring->bytes_sent == bytes, "counted, but not sent");
    EXPECT(strcmp(ring->error, error) == 0, "the first error was overwritten by: %s", ring->error);
    return true;
}

/* The error must say who, at which hop, what and whom, in one line that was not cut off. Who: any
 * rank of this ring, as all fail with the words of one; whom: the rank at this distance from it. */
static bool names(const struct ra_ring *ring, int hop, const char *before, int distance,
                  const char *after)
{
    int who = -1;
    char expected[RA_RING_ERROR];
    sscanf(ring->error, "ring rank %d,", &who);
    EXPECT(who >= 0 && who < ring_size, "%s", ring->error);
    snprintf(expected, sizeof expected, "ring rank %d, hop %d: %s rank %d%s", who, hop, before,
             walk_from(who, distance), after);
    EXPECT(strstr(ring->error, expected) == ring->error, "%s not in: %s", expected, ring->error);
    EXPECT(!strchr(ring->error, '\n') && strlen(ring->error) < sizeof ring->error - 1, "%s",
           ring->error);
    return true;
}

/* Closes a ring after an error, at once; `quiet`: nothing may use memory any more. Its communicator
 * is MPI's from then on. */
static bool ends(struct ra_ring *ring, bool quiet)
{
    double start = ra_ring_seconds();
    EXPECT(ra_ring_close(ring) == quiet, "wrong about memory");
    EXPECT(ra_ring_seconds() - start < 1, "took %g s", ra_ring_seconds() - start);
    EXPECT(!quiet || ring->comm != MPI_COMM_NULL, "freed, but not by all ranks");
    communicators--;
    return true;
}

/* Takes from a ring that has been closed what still comes, until all ranks have nothing under way:
 * tests share their memory. */
static void drain(struct ra_ring *ring)
{
    MPI_Request all = MPI_REQUEST_NULL;
    for (int here, done, meeting = 0, met = 0; !met;) {
        MPI_Status status;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ring->comm, &here, &status);
        if (here)
            MPI_Recv(scrap, LARGE, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, ring->comm,
                     MPI_STATUS_IGNORE);
        int busy = 0;
        for (int m = 0; m < RA_MESSAGES; m++) {
            MPI_Test(&ring->in[m].request, &done, MPI_STATUS_IGNORE);
            busy += !done;
            MPI_Test(&ring->out[m].request, &done, MPI_STATUS_IGNORE);
            busy += !done;
        }
        if (meeting)
            MPI_Test(&all, &met, MPI_STATUS_IGNORE);
        else if (!busy)
            meeting = MPI_Ibarrier(MPI_COMM_WORLD, &all) == MPI_SUCCESS;
    }
}

/* Waits for what never happens; `idle` is a kind of which nothing is under way. */
static bool gives_up(struct ra_ring *ring, enum ra_message message, enum ra_message idle, int hop,
                     int distance, const char *what)
{
    ring->timeout = soon;
    double start = ra_ring_seconds();
    EXPECT(!ra_ring_wait(ring, message), "came back as if all were well");
    double waited = ra_ring_seconds() - start;
    EXPECT(waited < soon + 5, "after %g s", waited);
    char own[40];
    snprintf(own, sizeof own, "ring rank %d,", ring->rank);
    EXPECT(waited >= soon || strstr(ring->error, own) != ring->error, "after %g s", waited);
    return names(ring, hop, "waited 0.1 s for", distance, what) && is_dead(ring, idle);
}

/* Nobody sends. */
static bool test_nobody_sends(void)
{
    const char *const what[RA_TROUBLE] = {" to send keys; has", " to send gradients; has",
                                          " to send gradients coming home; has",
                                          " to send rows of a shard; has"};
    for (int m = 0; m < RA_TROUBLE; m++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
        EXPECT(await(&ring, m, 7 + m, m - 2, 3), "%s", ring.error);
        if (!gives_up(&ring, m, m == RA_KEYS ? RA_GRADIENTS : RA_KEYS, 7 + m, m - 2, what[m]) ||
            !ends(&ring, true))
            return false;
    }
    return true;
}

/* Nobody takes a message, which is too large to leave on its own. What goes home is waited for as
 * gradients, whose way out it shares, and is called by its own name. */
static bool test_nobody_takes(void)
{
    const enum ra_message kinds[] = {RA_GRADIENTS, RA_HOME};
    const char *const what[] = {" to take gradients; has", " to take gradients coming home; has"};
    for (int k = 0; k < 2; k++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
        EXPECT(speak(&ring, kinds[k], 3, 1, LARGE), "%s", ring.error);
        bool good = gives_up(&ring, RA_GRADIENTS, RA_KEYS, 3, 1, what[k]) && ends(&ring, false);

        /* Once all have given up, the messages are taken after all. */
        MPI_Barrier(MPI_COMM_WORLD);
        drain(&ring);
        if (!good)
            return false;
    }
    return true;
}

/* A message longer than the receiver's room is an error of the receiver, and so of its ring. Open
 * MPI 4.1 writes all bytes of a large one nevertheless, so there must be memory for them here; and
 * to a message from the same rank it says nothing at all. */
static bool test_too_long(void)
{
    const int64_t rooms[] = {3, MEDIUM}, sizes[] = {5, LARGE};
    for (int s = 0; s < 2 && ring_size > 1; s++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
        EXPECT(await(&ring, RA_KEYS, 5, -1, rooms[s]), "%s", ring.error);
        EXPECT(speak(&ring, RA_KEYS, 5, 1, sizes[s]), "%s", ring.error);
        EXPECT(!ra_ring_wait(&ring, RA_KEYS), "came back as if all were well");
        EXPECT(s > 0 || guard_holds(incoming[RA_KEYS] + rooms[s]), "written behind the room");
        if (!names(&ring, 5, "receiving keys from", -1, ": MPI_ERR_TRUNCATE") ||
            !is_dead(&ring, RA_GRADIENTS))
            return false;
        ra_ring_close(&ring);
        communicators--;
        drain(&ring);
    }
    return true;
}

/* ---- Errors, which a ring has together. */

/* What a rank of this ring says when it fails: as much as there is room for. */
static void compose(char text[RA_RING_ERROR], int rank)
{
    int length = snprintf(text, RA_RING_ERROR, "rank %d of the ring at %d: ", rank,
                          place / ring_size * ring_size);
    for (; length < RA_RING_ERROR - 1; length++)
        text[length] = (char)('a' + (length + rank) % 26);
    text[length] = '\0';
}

/* What the other ranks do when one fails. */
enum others { WAIT, POLL, POST_LATER, OTHERS };

/* Comes back from a ring of which another rank has failed. */
static bool hears_of_it(struct ra_ring *ring, enum others others)
{
    double start = ra_ring_seconds();
    EXPECT(await(ring, RA_KEYS, 1, -1, MEDIUM), "%s", ring->error);
    if (others == POST_LATER)
        EXPECT(speak(ring, RA_HOME, 1, 1, 3), "%s", ring->error);
    while (others == POLL && ra_ring_poll(ring))
        EXPECT(ra_ring_seconds() - start < 5, "polls in vain");
    EXPECT(!ra_ring_wait(ring, RA_KEYS), "came back as if all were well");
    EXPECT(ra_ring_seconds() - start < 5, "took %g s", ra_ring_seconds() - start);
    return true;
}

/* A rank of the last ring fails: all of that ring fail with its words, to the last letter. No other
 * ring hears of it. */
static bool one_fails(int who, enum others others)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    bool concerned = world_rank >= ranks - ring_size;
    char text[RA_RING_ERROR];
    compose(text, who);

    /* The first reason counts. If the others are to wait for it, they have begun to. */
    if (concerned && ring.rank == who) {
        struct timespec pause = {0, 5000000};
        if (others != POST_LATER)
            nanosleep(&pause, NULL);
        ra_ring_fail(&ring, text);
        ra_ring_fail(&ring, "what is not said");
    }
    if (others == POST_LATER)
        MPI_Barrier(MPI_COMM_WORLD);
    if (concerned) {
        if (ring.rank != who && !hears_of_it(&ring, others))
            return false;
        EXPECT(strcmp(ring.error, text) == 0, "%s", ring.error);
        ra_ring_fail(&ring, "what is not said either");
        if (!is_dead(&ring, RA_GRADIENTS) || !ends(&ring, true))
            return false;
    } else {
        EXPECT(await(&ring, RA_KEYS, 0, -1, 3) && speak(&ring, RA_KEYS, 0, 1, 3), "%s", ring.error);
        EXPECT(ra_ring_wait(&ring, RA_KEYS), "%s", ring.error);
    }

    /* By now everything has arrived that was sent. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (concerned)
        return true;
    EXPECT(ra_ring_poll(&ring), "%s", ring.error);
    EXPECT(ring.error[0] == '\0' && ring.trouble[0] == '\0', "%s", ring.trouble);
    return heard(RA_KEYS, 0, -1, 3) && ra_ring_close(&ring);
}

static bool test_one_fails(void)
{
    for (int who = 0; who < ring_size; who++)
        for (enum others others = 0; others < OTHERS; others++)
            if (!one_fails(who, others))
                return false;
    return true;
}

/* Of two that fail at once each keeps its own reason; the others take one of the two. */
static bool test_two_fail(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    char text[2][RA_RING_ERROR];
    compose(text[0], 0);
    compose(text[1], 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (ring.rank < 2) {
        ra_ring_fail(&ring, text[ring.rank]);
        EXPECT(strcmp(ring.error, text[ring.rank]) == 0, "%s", ring.error);
    } else if (!hears_of_it(&ring, WAIT)) {
        return false;
    }
    EXPECT(!strcmp(ring.error, text[0]) || !strcmp(ring.error, text[1]), "%s", ring.error);
    return is_dead(&ring, RA_GRADIENTS) && ends(&ring, true);
}

/* An error that rank 0 runs into by itself is all ranks' error, too: when it alone loses patience,
 * and when MPI refuses what it asks for. */
static bool test_shared_errors(void)
{
    const char *const before[] = {[NOTHING] = "waited 0.1 s for",
                                  [CONTIGUOUS] = "receiving keys from",
                                  [STRUCT] = "receiving keys from",
                                  [SEND] = "sending keys to",
                                  [RECEIVE] = "receiving keys from"};
    for (enum function function = NOTHING; function <= RECEIVE; function++) {
        if (function == IDUP)
            continue;
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
        if (ring.rank != 0 && !hears_of_it(&ring, WAIT))
            return false;
        if (ring.rank == 0) {
            ring.timeout = soon;
            broken = function == SEND ? NOTHING : function;
            bool received = await(&ring, RA_KEYS, 6, -1, 3);
            EXPECT(received == (function == NOTHING || function == SEND), "%s", ring.error);
            if (function == SEND) {
                broken = SEND;
                EXPECT(!speak(&ring, RA_KEYS, 6, -1, 3), "sends what it cannot");
            }
            EXPECT(!ra_ring_wait(&ring, RA_KEYS), "came back as if all were well");
        }
        EXPECT(strncmp(ring.error, "ring rank 0,", 12) == 0, "%s", ring.error);
        if (!names(&ring, 6, before[function], -1,
                   function == NOTHING ? " to send keys; has" : ": ") ||
            !is_dead(&ring, RA_GRADIENTS) || !ends(&ring, true))
            return false;
    }
    return true;
}

/* The word of trouble has come, and nobody has looked when the ring is closed: then it is not
 * closed as if all were well. */
static bool test_unheard(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    char text[RA_RING_ERROR];
    compose(text, 0);
    if (ring.rank == 0)
        ra_ring_fail(&ring, text);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    return ends(&ring, true);
}

/* What is under way when a ring fails may be half way through. Either close says that memory is in
 * use, or nothing is written to it any more. */
static bool test_half_way(void)
{
    for (int round = 0; round < 4; round++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
        EXPECT(await(&ring, RA_KEYS, 0, -1, LARGE), "%s", ring.error);
        EXPECT(ra_ring_send(&ring, RA_KEYS, 0, 1, outgoing[RA_KEYS], LARGE), "%s", ring.error);
        for (int polls = 0; polls < round; polls++)
            ra_ring_poll(&ring);
        ra_ring_fail(&ring, "no more");
        bool quiet = ra_ring_close(&ring);
        communicators--;
        bool idle = ring.in[RA_KEYS].request == MPI_REQUEST_NULL &&
                    ring.out[RA_KEYS].request == MPI_REQUEST_NULL;
        EXPECT(quiet == idle, "wrong about memory in round %d", round);

        /* All bytes that are like the one before are like the first. */
        unsigned char *bytes = incoming[RA_KEYS];
        if (quiet)
            memset(bytes, GUARD_BYTE, LARGE);
        drain(&ring);
        EXPECT(!quiet || (bytes[0] == GUARD_BYTE && !memcmp(bytes, bytes + 1, LARGE - 1)),
               "written after the end, in round %d", round);
    }
    return true;
}

/* Of a message that has begun to arrive and stops half way. */
static bool test_too_late(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    EXPECT(await(&ring, RA_ROWS, 0, -1, 3), "%s", ring.error);
    ra_ring_fail(&ring, "no more");
    too_late = true;
    bool good = ends(&ring, false);
    too_late = false;
    EXPECT(call_off(&ring), "MPI still uses memory");
    return good;
}

/* Nobody listens any more, and MPI keeps the words: it is not waited for, and close says so. */
static bool test_nobody_listens(void)
{
    if (ring_size != 3)
        return true;
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    if (ring.rank != 0) {
        MPI_Cancel(&ring.in[RA_TROUBLE].request);
        MPI_Wait(&ring.in[RA_TROUBLE].request, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    synchronous = true;
    double start = ra_ring_seconds();
    if (ring.rank == 0)
        ra_ring_fail(&ring, "no more");
    synchronous = false;
    EXPECT(ra_ring_seconds() - start < 2, "took %g s", ra_ring_seconds() - start);
    MPI_Barrier(MPI_COMM_WORLD);
    strcpy(ring.error, "no more");
    bool good = ends(&ring, ring.rank != 0);
    drain(&ring);
    return good;
}

/* MPI cannot make a communicator. */
static bool test_open_refused(void)
{
    struct ra_ring ring;
    broken = IDUP;
    EXPECT(!ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience),
           "came back as if all were well");
    EXPECT(strstr(ring.error, "cannot duplicate"), "%s", ring.error);
    ra_ring_fail(&ring, "what is not said");
    EXPECT(ra_ring_close(&ring), "nothing uses memory");
    return true;
}

/* A rank that does not come, or so late that the others have given up. */
static bool gives_up_opening(struct ra_ring *ring, MPI_Comm comm)
{
    double start = ra_ring_seconds();
    EXPECT(!ra_ring_open(ring, comm, ring_size, soon), "came back as if all were well");
    double waited = ra_ring_seconds() - start;
    EXPECT(waited >= soon && waited < soon + 5, "after %g s", waited);
    EXPECT(strstr(ring->error, "waited 0.1 s for all ranks"), "%s", ring->error);
    ra_ring_fail(ring, "what is not said");
    return is_dead(ring, RA_KEYS) && ends(ring, false);
}

static bool test_opened_late(void)
{
    struct ra_ring ring;
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    bool late = world_rank == ranks - 1, good = late || gives_up_opening(&ring, comm);
    MPI_Barrier(MPI_COMM_WORLD);
    if (late)
        good = ra_ring_open(&ring, comm, ring_size, patience) && ra_ring_close(&ring);
    if (!late) {
        MPI_Wait(&ring.opening, MPI_STATUS_IGNORE);
        PMPI_Comm_free(&ring.comm);
    }
    PMPI_Comm_free(&comm);
    return good;
}

/* The last test. MPI_Finalize does not hang either, when a message is never taken and when a rank
 * never comes to open a ring. MPI may use the memory of these until then. */
static bool test_left_behind(void)
{
    static unsigned char message[LARGE];
    static struct ra_ring ring, never;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, patience), "%s", ring.error);
    EXPECT(ra_ring_send(&ring, RA_KEYS, 0, 1, message, LARGE), "%s", ring.error);
    ra_ring_fail(&ring, "no more");
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return ends(&ring, false) && (world_rank == ranks - 1 || gives_up_opening(&never, comm));
}

/* Two rings of the same ranks, and messages that belong to none: each hears its own. That rings of
 * other ranks are not heard shows in every other test. */
static bool test_rings_apart(void)
{
    struct ra_ring first, second;
    EXPECT(ra_ring_open(&first, MPI_COMM_WORLD, ring_size, patience), "%s", first.error);
    EXPECT(ra_ring_open(&second, MPI_COMM_WORLD, ring_size, patience), "%s", second.error);
    int left = world_rank - first.rank + walk(-1), right = world_rank - first.rank + walk(1);
    unsigned char stray[8] = {0};
    MPI_Request strays[2];
    MPI_Isend(stray, 8, MPI_BYTE, right, RA_KEYS, MPI_COMM_WORLD, &strays[0]);
    EXPECT(speak(&first, RA_KEYS, 0, 1, 8), "%s", first.error);
    EXPECT(ra_ring_wait(&first, RA_KEYS), "%s", first.error);
    EXPECT(speak(&second, RA_KEYS, 1, 1, 8), "%s", second.error);

    /* The second ring's comes first; then the first ring's; then the stray one. */
    EXPECT(await(&second, RA_KEYS, 1, -1, 8), "%s", second.error);
    EXPECT(ra_ring_wait(&second, RA_KEYS), "%s", second.error);
    if (!heard(RA_KEYS, 1, -1, 8))
        return false;
    EXPECT(await(&first, RA_KEYS, 0, -1, 8), "%s", first.error);
    EXPECT(ra_ring_wait(&first, RA_KEYS), "%s", first.error);
    if (!heard(RA_KEYS, 0, -1, 8))
        return false;
    MPI_Irecv(stray, 8, MPI_BYTE, left, RA_KEYS, MPI_COMM_WORLD, &strays[1]);
    MPI_Waitall(2, strays, MPI_STATUSES_IGNORE);
    ra_ring_close(&first);
    ra_ring_close(&second);
    return true;
}

/* The type of a message has its number of bytes, one after the other from the first, also where an
 * int ends. */
static bool test_types(void)
{
    const int64_t GiB = 1 << 30;
    const int64_t sizes[] = {1,           3,           LARGE,       GiB - 1,     GiB,
                             2 * GiB - 1, 2 * GiB,     2 * GiB + 1, 5 * GiB + 3, 4096 * GiB,
                             GiB + 1,     4 * GiB - 1, 4 * GiB};
    for (int s = 0; s < 13; s++) {
        MPI_Datatype type;
        EXPECT(type_of_bytes(sizes[s], &type) == MPI_SUCCESS, "%lld", (long long)sizes[s]);
        MPI_Count size, low, extent;
        MPI_Type_size_x(type, &size);
        EXPECT(size == sizes[s], "%lld for %lld", (long long)size, (long long)sizes[s]);
        MPI_Type_get_true_extent_x(type, &low, &extent);
        EXPECT(low == 0 && extent == sizes[s], "from %lld, %lld for %lld", (long long)low,
               (long long)extent, (long long)sizes[s]);

        /* Bytes without gaps, first to last: packed, they are what they were. */
        if (sizes[s] <= LARGE) {
            int position = 0;
            write_down(outgoing[0], 0, RA_KEYS, s, sizes[s]);
            MPI_Pack(outgoing[0], 1, type, incoming[0], LARGE, &position, MPI_COMM_WORLD);
            EXPECT(position == sizes[s], "%d for %lld", position, (long long)sizes[s]);
            EXPECT(memcmp(outgoing[0], incoming[0], (size_t)sizes[s]) == 0, "out of order");
        }
        MPI_Type_free(&type);
    }
    return true;
}

/* The clock goes forward as fast as MPI's. */
static bool test_seconds(void)
{
    double mine = ra_ring_seconds(), theirs = MPI_Wtime(), last = mine;
    while (MPI_Wtime() - theirs < 0.1) {
        EXPECT(ra_ring_seconds() >= last, "backward");
        last = ra_ring_seconds();
    }
    mine = ra_ring_seconds() - mine;
    theirs = MPI_Wtime() - theirs;
    EXPECT(mine > theirs - 0.05 && mine < theirs + 0.05, "%g s for %g s", mine, theirs);
    return true;
}

/* The last but one: the others have left no type and no communicator behind. */
static bool test_all_freed(void)
{
    EXPECT(types == 0 && communicators == 0, "%d types, %d communicators", types, communicators);
    return true;
}

#define TEST(name)         \
    {                      \
#name, test_##name \
    }
static const struct {
    const char *name;
    bool (*run)(void);
} tests[] = {TEST(open),         TEST(reversed),    TEST(rank_at),      TEST(bytes),
             TEST(keys),         TEST(round),       TEST(distances),    TEST(order),
             TEST(both_kinds),   TEST(home),        TEST(done),         TEST(counts),
             TEST(idle),         TEST(late),        TEST(nobody_sends), TEST(nobody_takes),
             TEST(too_long),     TEST(one_fails),   TEST(two_fail),     TEST(shared_errors),
             TEST(unheard),      TEST(half_way),    TEST(too_late),     TEST(nobody_listens),
             TEST(open_refused), TEST(opened_late), TEST(rings_apart),  TEST(types),
             TEST(seconds),      TEST(all_freed),   TEST(left_behind)};
#undef TEST
enum { TESTS = sizeof tests / sizeof tests[0] };

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    place = world_rank;
    ring_size = argc > 1 ? atoi(argv[1]) : ranks;
    if (ring_size < 1 || ranks % ring_size != 0) {
        fprintf(stderr, "rings of %s do not divide %d ranks\n", argv[1], ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    scrap = malloc(LARGE);
    for (int m = 0; m < RA_TROUBLE; m++) {
        outgoing[m] = malloc(LARGE + GUARD);
        incoming[m] = malloc(LARGE + GUARD);
        if (!outgoing[m] || !incoming[m] || !scrap)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }

    verdict_start(world_rank, patience + 5, "rank %d of %d, rings of %d: ", world_rank, ranks,
                  ring_size);
    for (int t = 0; t < TESTS; t++) {
        verdict_state.test = tests[t].name;
        verdict_state.complaints += !tests[t].run();
        verdict("%s", tests[t].name);
    }
    int code = verdict_end();
    for (int m = 0; m < RA_TROUBLE; m++) {
        free(outgoing[m]);
        free(incoming[m]);
    }
    free(scrap);
    MPI_Finalize();
    return code;
}
