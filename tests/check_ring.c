/* check_ring: messages between the ranks of a ring. An MPI program, and therefore without libcheck,
 * which runs each test in a process of its own.
 *
 *   mpirun -n RANKS build/check-ring [RING_SIZE]
 *
 * Every rank runs every test, and a test has passed if it has passed on all of them; the last line
 * is "N passed, N failed". Messages are bytes that say who sent them, as what and at which hop, so
 * that a message of another ring, kind or hop is never taken for the right one. Which rank is where
 * is worked out here by single steps round the ring.
 */

/* type_of_bytes is static: messages of gibibytes are too large to be sent here. */
#include "ra_ring.c"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Small messages travel with the sender's first word (eager), large ones when both sides are there
 * (rendezvous). Behind every message lies a guard that nothing may be written to. */
enum { MEDIUM = 64 << 10, LARGE = 9 << 20, GUARD = 64, GUARD_BYTE = 0x5A };

/* What no error is worth waiting for, and the timeout of the tests of timeouts. */
static const double patience = 10, soon = 0.3;

static int world_rank, ranks, ring_size;

/* Room for one message of each kind, out and in. */
static unsigned char *outgoing[RA_MESSAGES], *incoming[RA_MESSAGES];

/* How many types and communicators there are now. MPI lets a program stand in for its functions,
 * under whose second names, PMPI_..., the work is still done. */
static int types, communicators;

int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *type)
{
    types++;
    return PMPI_Type_contiguous(count, old, type);
}

int MPI_Type_create_struct(int count, const int lengths[], const MPI_Aint places[],
                           const MPI_Datatype old[], MPI_Datatype *type)
{
    types++;
    return PMPI_Type_create_struct(count, lengths, places, old, type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    types--;
    return PMPI_Type_free(type);
}

int MPI_Comm_split(MPI_Comm old, int color, int key, MPI_Comm *comm)
{
    communicators++;
    return PMPI_Comm_split(old, color, key, comm);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    communicators--;
    return PMPI_Comm_free(comm);
}

/* Says in one line what this rank expected and what it found; returns false. */
__attribute__((format(printf, 3, 4))) static bool wrong(int line, const char *expected,
                                                        const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "FAILED check_ring.c:%d: rank %d of %d, rings of %d: %s: %s\n", line,
            world_rank, ranks, ring_size, expected, text);
    return false;
}

/* Ends a test that does not find what it expects. */
#define EXPECT(condition, ...)                               \
    do {                                                     \
        if (!(condition))                                    \
            return wrong(__LINE__, #condition, __VA_ARGS__); \
    } while (0)

/* ---- Who is where, and what they say. */

/* The ring rank at this distance, one step at a time. */
static int walk(int distance)
{
    int at = world_rank % ring_size;
    for (; distance > 0; distance--)
        at = at == ring_size - 1 ? 0 : at + 1;
    for (; distance < 0; distance++)
        at = at == 0 ? ring_size - 1 : at - 1;
    return at;
}

/* Byte i of what the rank at this distance sends as this kind at this hop. */
static unsigned char spoken(int distance, enum ra_message message, int hop, int64_t i)
{
    int sender = world_rank / ring_size * ring_size + walk(distance);
    uint32_t hash = (uint32_t)i + 0x9E3779B9u * (uint32_t)(1 + sender * 1000 + message * 100 + hop);
    hash = (hash ^ hash >> 15) * 0x85EBCA6Bu;
    return (unsigned char)(hash >> 21);
}

/* Begins to send what this rank says. */
static bool speak(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                  int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        outgoing[message][i] = spoken(0, message, hop, i);
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
    for (int64_t i = 0; i < bytes; i++)
        if (incoming[message][i] != spoken(distance, message, hop, i))
            return wrong(__LINE__, "the sender's bytes",
                         "hop %d, distance %d, %s: not byte %lld of %lld", hop, distance,
                         message_names[message], (long long)i, (long long)bytes);
    return guard_holds(incoming[message] + bytes) ||
           wrong(__LINE__, "the guard", "written behind a message of %lld bytes", (long long)bytes);
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

    /* The communicator has these ranks in this order, and its errors come back to us. */
    int rank, size;
    MPI_Comm_rank(ring.comm, &rank);
    MPI_Comm_size(ring.comm, &size);
    EXPECT(rank == ring.rank && size == ring_size, "%d of %d", rank, size);
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(ring.comm, &handler);
    EXPECT(handler == MPI_ERRORS_RETURN, "MPI would end the program");

    ra_ring_close(&ring);
    EXPECT(ring.comm == MPI_COMM_NULL, "not freed");
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
    EXPECT(ra_ring_gradient_bytes(2, 6, 5) == 480, "B 2, stride 6, 5 rows");
    EXPECT(ra_ring_key_bytes(2, 6, false, 5) == 480, "B 2, stride 6, 5 rows");
    EXPECT(ra_ring_key_bytes(2, 6, true, 5) == 490, "B 2, stride 6, 5 rows");
    EXPECT(ra_ring_gradient_bytes(2, 6, 0) == 0 && ra_ring_key_bytes(2, 6, true, 0) == 0,
           "no rows");

    /* 32 GiB: no int holds that. */
    EXPECT(ra_ring_gradient_bytes(1, 4096, 1 << 20) == (int64_t)1 << 35, "a million rows");
    EXPECT(ra_ring_key_bytes(3, 4096, true, 1 << 20) == 3 * (((int64_t)1 << 35) + (1 << 20)),
           "a million rows and a mask");
    return true;
}

static bool test_keys(void)
{
    float message[200], gradients[200];
    struct ra_keys keys = ra_ring_keys(2, 6, true, 5, message, gradients);
    EXPECT(keys.rows == 5 && keys.stride == 6, "%lld rows, stride %lld", (long long)keys.rows,
           (long long)keys.stride);
    EXPECT(keys.k == message && keys.v == message + 60, "k or v");
    EXPECT(keys.dk == gradients && keys.dv == gradients + 60, "dk or dv");
    EXPECT((const char *)keys.mask == (const char *)message + 480, "mask");
    EXPECT((const char *)(keys.mask + 10) - (const char *)message ==
               ra_ring_key_bytes(2, 6, true, 5),
           "the mask ends where the message does");

    /* What is not there is NULL. */
    keys = ra_ring_keys(2, 6, false, 5, message, NULL);
    EXPECT(keys.k == message && keys.v == message + 60, "k or v, without mask");
    EXPECT(!keys.mask && !keys.dk && !keys.dv, "forward only, without mask");
    keys = ra_ring_keys(2, 6, true, 5, message, NULL);
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
        for (int64_t i = 0; i < sizes[s]; i++)
            outgoing[RA_KEYS][i] = spoken(0, RA_KEYS, s, i);
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
    const int64_t sizes[RA_MESSAGES][2] = {{3, 0}, {MEDIUM, 0}, {1, 0}};
    for (int zero = 0; zero < 2; zero++)
        for (int m = 0; m < RA_MESSAGES; m++) {
            EXPECT(await(&ring, m, 0, -1, sizes[m][zero]), "%s", ring.error);
            EXPECT(speak(&ring, m, 0, 1, sizes[m][zero]), "%s", ring.error);
            EXPECT(ra_ring_wait(&ring, RA_GRADIENTS), "%s", ring.error);
            EXPECT(ra_ring_wait(&ring, m), "%s", ring.error);
        }
    EXPECT(ring.messages_sent == 3, "%lld", (long long)ring.messages_sent);
    EXPECT(ring.bytes_sent == 3 + MEDIUM + 1, "%lld", (long long)ring.bytes_sent);
    ra_ring_close(&ring);
    return true;
}

/* With nothing under way there is nothing to wait for, not even with a timeout of 0. */
static bool test_idle(void)
{
    struct ra_ring ring;
    EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, 0), "%s", ring.error);
    double start = ra_ring_seconds();
    for (int m = 0; m < RA_MESSAGES; m++) {
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
    for (int m = 0; m < RA_MESSAGES; m++)
        EXPECT(!ra_ring_wait(ring, m), "wait goes on with %s", message_names[m]);
    EXPECT(ring->out[idle].request == MPI_REQUEST_NULL, "sends after the error");
    EXPECT(ring->in[idle].request == MPI_REQUEST_NULL, "receives after the error");
    EXPECT(ring->messages_sent == sent && ring->bytes_sent == bytes, "counted, but not sent");
    EXPECT(strcmp(ring->error, error) == 0, "the first error was overwritten by: %s", ring->error);
    return true;
}

/* The error must say who, at which hop, what and whom, in one line that was not cut off. */
static bool names(const struct ra_ring *ring, int hop, const char *what, int peer)
{
    char who[40], whom[40];
    snprintf(who, sizeof who, "ring rank %d, hop %d:", ring->rank, hop);
    snprintf(whom, sizeof whom, "rank %d", peer);
    const char *rest = ring->error + strlen(who);
    EXPECT(strstr(ring->error, who) == ring->error, "%s not in: %s", who, ring->error);
    EXPECT(strstr(rest, whom), "%s not in: %s", whom, ring->error);
    EXPECT(strstr(rest, what), "%s not in: %s", what, ring->error);
    EXPECT(!strchr(rest, '\n') && strlen(ring->error) < sizeof ring->error - 1, "%s", ring->error);
    return true;
}

/* Waits for what never happens; `idle` is a kind of which nothing is under way. */
static bool gives_up(struct ra_ring *ring, enum ra_message message, enum ra_message idle, int hop,
                     const char *what, int peer)
{
    double start = ra_ring_seconds();
    EXPECT(!ra_ring_wait(ring, message), "came back as if all were well");
    double waited = ra_ring_seconds() - start;
    EXPECT(waited >= soon && waited < soon + 5, "after %g s", waited);
    return names(ring, hop, what, peer) && is_dead(ring, idle);
}

/* Nobody sends. */
static bool test_nobody_sends(void)
{
    const char *const what[RA_MESSAGES] = {"to send keys;", "to send gradients;",
                                           "to send gradients coming home;"};
    for (int m = 0; m < RA_MESSAGES; m++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, soon), "%s", ring.error);
        EXPECT(await(&ring, m, 7 + m, m - 2, 3), "%s", ring.error);
        if (!gives_up(&ring, m, m == RA_KEYS ? RA_GRADIENTS : RA_KEYS, 7 + m, what[m], walk(m - 2)))
            return false;
        MPI_Cancel(&ring.in[m].request);
        MPI_Wait(&ring.in[m].request, MPI_STATUS_IGNORE);
        ra_ring_close(&ring);
    }
    return true;
}

/* Nobody takes a message, which is too large to leave on its own. What goes home is waited for as
 * gradients, whose way out it shares, and is called by its own name. */
static bool test_nobody_takes(void)
{
    const enum ra_message kinds[] = {RA_GRADIENTS, RA_HOME};
    const char *const what[] = {"to take gradients;", "to take gradients coming home;"};
    for (int k = 0; k < 2; k++) {
        struct ra_ring ring;
        EXPECT(ra_ring_open(&ring, MPI_COMM_WORLD, ring_size, soon), "%s", ring.error);
        EXPECT(speak(&ring, kinds[k], 3, 1, LARGE), "%s", ring.error);
        bool good = gives_up(&ring, RA_GRADIENTS, RA_KEYS, 3, what[k], walk(1));

        /* Once all have given up, the messages are taken after all: nothing stays under way. */
        MPI_Barrier(ring.comm);
        MPI_Request request;
        MPI_Irecv(incoming[0], LARGE, MPI_BYTE, walk(-1), kinds[k], ring.comm, &request);
        MPI_Waitall(2, (MPI_Request[]){request, ring.out[RA_GRADIENTS].request},
                    MPI_STATUSES_IGNORE);
        ra_ring_close(&ring);
        if (!good)
            return false;
    }
    return true;
}

/* A message longer than the receiver's room is an error of the receiver. Open MPI 4.1 writes all
 * bytes of a large one nevertheless, so there must be memory for them here; and to a message from
 * the same rank it says nothing at all. */
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
        if (!names(&ring, 5, "receiving keys", walk(-1)) || !is_dead(&ring, RA_GRADIENTS))
            return false;
        MPI_Wait(&ring.out[RA_KEYS].request, MPI_STATUS_IGNORE);
        ra_ring_close(&ring);
    }
    return true;
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
            for (int64_t i = 0; i < sizes[s]; i++)
                outgoing[0][i] = spoken(0, RA_KEYS, s, i);
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

/* The last test: the others have left no type and no communicator behind. */
static bool test_all_freed(void)
{
    EXPECT(types == 0 && communicators == 0, "%d types, %d communicators", types, communicators);
    return true;
}

static bool (*const tests[])(void) = {
    test_open,      test_rank_at,     test_bytes,      test_keys,         test_round,
    test_distances, test_order,       test_both_kinds, test_home,         test_done,
    test_counts,    test_idle,        test_late,       test_nobody_sends, test_nobody_takes,
    test_too_long,  test_rings_apart, test_types,      test_seconds,      test_all_freed};
enum { TESTS = sizeof tests / sizeof tests[0] };

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ring_size = argc > 1 ? atoi(argv[1]) : ranks;
    if (ring_size < 1 || ranks % ring_size != 0) {
        fprintf(stderr, "rings of %s do not divide %d ranks\n", argv[1], ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int m = 0; m < RA_MESSAGES; m++) {
        outgoing[m] = malloc(LARGE + GUARD);
        incoming[m] = malloc(LARGE + GUARD);
        if (!outgoing[m] || !incoming[m])
            MPI_Abort(MPI_COMM_WORLD, 1);
    }

    /* The ranks meet after each test, so none is still in the one before. */
    int passed = 0;
    for (int t = 0; t < TESTS; t++) {
        int mine = tests[t](), all;
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        passed += all;
    }
    if (world_rank == 0)
        printf("%d passed, %d failed\n", passed, TESTS - passed);
    for (int m = 0; m < RA_MESSAGES; m++) {
        free(outgoing[m]);
        free(incoming[m]);
    }
    MPI_Finalize();
    return passed == TESTS ? 0 : 1;
}
