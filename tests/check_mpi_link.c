/* check_mpi_link: messages between the ranks of a ring, over MPI. An MPI program, and therefore
 * without libcheck, which runs each test in a process of its own.
 *
 *   mpirun -n RANKS build/check-mpi-link [RING_SIZE]
 *
 * Every rank runs every test. Messages are bytes that say who sent them, as what and at which hop,
 * so that a message of another ring, kind or hop is never taken for the right one. Which rank is
 * where is worked out here by single steps round the ring.
 */

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The module is included because messages of gibibytes are too large to be sent here, so that
 * type_of_bytes, which is static, must be asked directly. And a link frees its state when it is
 * closed, but tests look at it afterwards: its memory comes from here and is kept to the end. */
static void *new_state(size_t bytes);
static void end_state(const void *state);
#define malloc new_state
#define free end_state
#include "ra_mpi_alive.c"
#include "ra_mpi_link.c"
#include "ra_mpi_open.c"
#undef malloc
#undef free

#include "verdict.h"

/* Small messages travel with the sender's first word (eager), large ones when both sides are there
 * (rendezvous). Behind every message lies a guard that nothing may be written to. */
enum { MEDIUM = 64 << 10, LARGE = 9 << 20, GUARD = 64, GUARD_BYTE = 0x5A };

/* In seconds: what no error is worth waiting for, what a busy machine may need for what is done at
 * once, and the timeout of the tests of timeouts. */
static const double patience = 30, grace = 10, soon = 0.1;

static int world_rank, ranks, ring_size;

/* This rank in the communicator that the rings of a test are made of. */
static int place;

/* Room for one message of each kind, out and in, and for what nobody wants. */
static unsigned char *outgoing[RA_MESSAGES], *incoming[RA_MESSAGES], *scrap;

/* All states of links, the last of which is state[states - 1]; how many the module has not freed;
 * and whether there is no memory for another. */
static void *state[200];
static int states, living;
static bool no_memory;

static void *new_state(size_t bytes)
{
    if (no_memory || states == 200)
        return NULL;
    living++;
    return state[states++] = malloc(bytes);
}

static void end_state(const void *ended)
{
    living -= ended != NULL;
}

/* How many types and communicators there are now. MPI lets a program stand in for its functions,
 * under whose second names, PMPI_..., the work is still done. */
static int types, communicators;

/* The function of MPI whose next call fails; whether a failure only leaves when it is
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
    return (synchronous && tag == RA_FAILURE ? PMPI_Issend : PMPI_Isend)(from, count, type, rank,
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
#define REQUIRE(...)             \
    do {                         \
        if (!HOLDS(__VA_ARGS__)) \
            return false;        \
    } while (0)

/* ---- The functions of a link. */

/* Why a link could not be opened. */
static char error[RA_ERROR_SIZE];

/* When a ring was opened last. */
static double last_opening;

/* Opens a ring of all ranks' neighbours. */
static bool opens(struct ra_link *link, double timeout)
{
    last_opening = ra_seconds();
    return ra_mpi_link_open(link, MPI_COMM_WORLD, ring_size, timeout, error) == RA_OK;
}

static bool sends(struct ra_link *link, enum ra_message message, int hop, int distance,
                  const void *from, int64_t bytes)
{
    return link->send(link->self, message, hop, distance, from, bytes);
}

static bool receives(struct ra_link *link, enum ra_message message, int hop, int distance,
                     void *into, int64_t bytes)
{
    return link->receive(link->self, message, hop, distance, into, bytes);
}

static bool polls(struct ra_link *link)
{
    return link->poll(link->self);
}

static bool waits(struct ra_link *link, enum ra_message message)
{
    return link->wait(link->self, message);
}

static void fails(struct ra_link *link, const char *reason)
{
    link->fail(link->self, reason);
}

static const char *said(const struct ra_link *link)
{
    return link->error(link->self);
}

/* Closes a link; whether it says that nothing uses memory any more. Then its own is freed, too. */
static bool closes(struct ra_link *link)
{
    int before = living;
    bool quiet = link->close(link->self);
    return HOLDS(living == before - quiet, "%d states instead of %d", living, before - quiet) &&
           quiet;
}

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
static bool speak(struct ra_link *link, enum ra_message message, int hop, int distance,
                  int64_t bytes)
{
    write_down(outgoing[message], 0, message, hop, bytes);
    return sends(link, message, hop, distance, outgoing[message], bytes);
}

/* Begins to listen to the rank at this distance. */
static bool await(struct ra_link *link, enum ra_message message, int hop, int distance,
                  int64_t bytes)
{
    memset(incoming[message], GUARD_BYTE, (size_t)bytes + GUARD);
    return receives(link, message, hop, distance, incoming[message], bytes);
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
                     distance, ra_message_name(message), (long long)same, (long long)bytes);
    }
    return guard_holds(incoming[message] + bytes) ||
           WRONG("written behind a message of %lld bytes", (long long)bytes);
}

/* ---- The tests. Each opens rings of its own, so that what a failed one leaves is nobody's. */

static bool test_open(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, 7.5), "%s", error);
    REQUIRE(link.size == ring_size, "%d", link.size);
    REQUIRE(link.rank == world_rank % ring_size, "%d", link.rank);
    const struct ra_mpi_link *mpi = link.self;
    REQUIRE(mpi->timeout == 7.5, "%g", mpi->timeout);
    REQUIRE(said(&link)[0] == '\0' && error[0] == '\0', "%s%s", said(&link), error);
    REQUIRE(link.bytes == (int64_t)sizeof *mpi + 2 * ranks * (int64_t)sizeof(double), "%lld",
            (long long)link.bytes);
    REQUIRE(ra_mpi_link_is(&link) && !ra_mpi_link_is(&(struct ra_link){.self = link.self}),
            "not told from others");

    /* The communicator is a copy of the world, and its errors come back to us. */
    int alike;
    MPI_Comm_compare(mpi->comm, MPI_COMM_WORLD, &alike);
    REQUIRE(alike == MPI_CONGRUENT, "%d", alike);
    REQUIRE(mpi->first == world_rank / ring_size * ring_size, "%d", mpi->first);
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(mpi->comm, &handler);
    REQUIRE(handler == MPI_ERRORS_RETURN, "MPI would end the program");

    REQUIRE(closes(&link), "MPI still uses memory");
    REQUIRE(mpi->comm == MPI_COMM_NULL, "not freed");
    return true;
}

/* Rings of a communicator in which the ranks stand in another order than in the world: neighbours
 * are those of that order. */
static bool test_reversed(void)
{
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &comm);
    place = ranks - 1 - world_rank;
    struct ra_link link;
    REQUIRE(ra_mpi_link_open(&link, comm, ring_size, patience, error) == RA_OK, "%s", error);
    const struct ra_mpi_link *mpi = link.self;
    REQUIRE(link.rank == place % ring_size, "%d", link.rank);
    REQUIRE(mpi->first == place / ring_size * ring_size, "%d", mpi->first);
    for (int distance = -1; distance <= 1; distance += 2) {
        REQUIRE(await(&link, RA_KEYS, 2, -distance, 8), "%s", said(&link));
        REQUIRE(speak(&link, RA_KEYS, 2, distance, 8), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
        if (!heard(RA_KEYS, 2, -distance, 8))
            return false;
    }
    REQUIRE(closes(&link), "MPI still uses memory");
    PMPI_Comm_free(&comm);
    place = world_rank;
    return true;
}

/* A message of every size goes round, each rank handing on what it got, until it is home. */
static bool test_round(void)
{
    const int64_t sizes[] = {1, 3, MEDIUM, LARGE};
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int s = 0; s < 4; s++) {
        write_down(outgoing[RA_KEYS], 0, RA_KEYS, s, sizes[s]);
        for (int hop = 0; hop < ring_size; hop++) {
            REQUIRE(await(&link, RA_KEYS, hop, -1, sizes[s]), "%s", said(&link));
            REQUIRE(sends(&link, RA_KEYS, hop, 1, outgoing[RA_KEYS], sizes[s]), "%s", said(&link));
            REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
            if (!heard(RA_KEYS, s, -hop - 1, sizes[s]))
                return false;
            memcpy(outgoing[RA_KEYS], incoming[RA_KEYS], (size_t)sizes[s]);
        }
    }
    closes(&link);
    return true;
}

/* To every distance, and from as far on the other side. */
static bool test_distances(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int distance = -3 * ring_size; distance <= 3 * ring_size; distance++) {
        REQUIRE(await(&link, RA_GRADIENTS, 4, -distance, 3), "%s", said(&link));
        REQUIRE(speak(&link, RA_GRADIENTS, 4, distance, 3), "%s", said(&link));
        REQUIRE(waits(&link, RA_GRADIENTS), "%s", said(&link));
        if (!heard(RA_GRADIENTS, 4, -distance, 3))
            return false;
    }
    closes(&link);
    return true;
}

/* Three messages, small enough to leave on their own, are on their way before anybody listens: they
 * arrive in the order sent. */
static bool test_order(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int hop = 0; hop < 3; hop++) {
        REQUIRE(speak(&link, RA_KEYS, hop, 1, 8), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int hop = 0; hop < 3; hop++) {
        REQUIRE(await(&link, RA_KEYS, hop, -1, 8), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
        if (!heard(RA_KEYS, hop, -1, 8))
            return false;
    }
    closes(&link);
    return true;
}

/* Keys and gradients are under way at once, of any two sizes, in any order of waiting. */
static bool test_both_kinds(void)
{
    const int64_t sizes[] = {3, MEDIUM, LARGE};
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int s = 0; s < 9; s++) {
        int64_t keys = sizes[s % 3], gradients = sizes[s / 3];
        REQUIRE(await(&link, RA_KEYS, s, -1, keys), "%s", said(&link));
        REQUIRE(await(&link, RA_GRADIENTS, s, -1, gradients), "%s", said(&link));
        REQUIRE(speak(&link, RA_GRADIENTS, s, 1, gradients), "%s", said(&link));
        REQUIRE(speak(&link, RA_KEYS, s, 1, keys), "%s", said(&link));
        REQUIRE(polls(&link), "%s", said(&link));
        REQUIRE(waits(&link, s % 2 ? RA_KEYS : RA_GRADIENTS), "%s", said(&link));
        REQUIRE(waits(&link, s % 2 ? RA_GRADIENTS : RA_KEYS), "%s", said(&link));
        if (!heard(RA_KEYS, s, -1, keys) || !heard(RA_GRADIENTS, s, -1, gradients))
            return false;
    }
    closes(&link);
    return true;
}

/* What comes home and what comes on, from the same peer, are not mixed up, whichever left first. */
static bool test_home(void)
{
    const enum ra_message kinds[] = {RA_GRADIENTS_RETURN, RA_GRADIENTS};
    const int64_t sizes[] = {8, LARGE};
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int s = 0; s < 4; s++) {
        int64_t bytes = sizes[s / 2];
        REQUIRE(await(&link, RA_GRADIENTS, s, -1, bytes), "%s", said(&link));
        REQUIRE(await(&link, RA_GRADIENTS_RETURN, s, -1, bytes), "%s", said(&link));
        for (int k = 0; k < 2; k++) {
            /* They share the way out: the one before must have left. */
            enum ra_message kind = kinds[(s + k) % 2];
            REQUIRE(speak(&link, kind, s, 1, bytes), "%s", said(&link));
            const struct ra_passage *out = &((struct ra_mpi_link *)link.self)->out[RA_GRADIENTS];
            REQUIRE(out->request != MPI_REQUEST_NULL, "not the shared way out");
            while (out->request != MPI_REQUEST_NULL)
                REQUIRE(polls(&link), "%s", said(&link));
        }
        REQUIRE(waits(&link, RA_GRADIENTS_RETURN), "%s", said(&link));
        REQUIRE(waits(&link, RA_GRADIENTS), "%s", said(&link));
        if (!heard(RA_GRADIENTS_RETURN, s, -1, bytes) || !heard(RA_GRADIENTS, s, -1, bytes))
            return false;
    }
    closes(&link);
    return true;
}

/* wait returns when both are done, the one in and the one out; and poll alone gets a large message
 * across. */
static bool test_done(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    for (int round = 0; round < 2; round++) {
        double before = ra_seconds();
        REQUIRE(await(&link, RA_KEYS, 5, -1, LARGE), "%s", said(&link));
        REQUIRE(speak(&link, RA_KEYS, 5, 1, LARGE), "%s", said(&link));
        const struct ra_mpi_link *mpi = link.self;
        const struct ra_passage *in = &mpi->in[RA_KEYS], *out = &mpi->out[RA_KEYS];
        REQUIRE(in->finished == 0 && out->finished == 0, "finished before it began");
        while (round == 1 && (in->request != MPI_REQUEST_NULL || out->request != MPI_REQUEST_NULL))
            REQUIRE(polls(&link), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));

        REQUIRE(in->request == MPI_REQUEST_NULL && out->request == MPI_REQUEST_NULL, "not done");
        double after = ra_seconds();
        REQUIRE(before <= in->started && in->started <= in->finished && in->finished <= after,
                "in: started %g, finished %g", in->started - before, in->finished - before);
        REQUIRE(before <= out->started && out->started <= out->finished && out->finished <= after,
                "out: started %g, finished %g", out->started - before, out->finished - before);
        REQUIRE(in->peer == walk(-1) && out->peer == walk(1), "%d, %d", in->peer, out->peer);

        /* It arrived once, and what was only sent did not arrive. */
        int hop;
        double start, end, started = in->started, finished = in->finished;
        REQUIRE(link.arrival(link.self, RA_KEYS, &hop, &start, &end), "nothing has arrived");
        REQUIRE(hop == 5 && start == started && end == finished, "hop %d, %g to %g", hop,
                start - before, end - before);
        REQUIRE(!link.arrival(link.self, RA_KEYS, &hop, &start, &end), "arrived again");
        REQUIRE(!link.arrival(link.self, RA_ROWS, &hop, &start, &end), "arrived from nowhere");
        if (!heard(RA_KEYS, 5, -1, LARGE))
            return false;
    }
    closes(&link);
    return true;
}

/* With nothing under way there is nothing to wait for, not even with a timeout of 0. */
static bool test_idle(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, 0), "%s", error);
    double start = ra_seconds();
    for (int m = 0; m < RA_FAILURE; m++) {
        REQUIRE(waits(&link, m), "%s", said(&link));
    }
    REQUIRE(polls(&link), "%s", said(&link));
    REQUIRE(ra_seconds() - start < grace, "took %g s", ra_seconds() - start);
    closes(&link);
    return true;
}

/* A peer that is only late is waited for: within the timeout, and for ever if it is 0, from the
 * beginning or set later. */
static bool test_late(void)
{
    for (int forever = 0; forever < 3; forever++) {
        struct ra_link link;
        REQUIRE(opens(&link, forever == 1 ? 0 : patience), "%s", error);
        if (forever == 2) {
            link.set_timeout(link.self, 0.01);
            link.set_timeout(link.self, 0);
        }
        REQUIRE(await(&link, RA_KEYS, 0, -1, 3), "%s", said(&link));
        verdict_pause(link.rank == 0 ? 0.1 : 0);
        REQUIRE(speak(&link, RA_KEYS, 0, 1, 3), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
        if (!heard(RA_KEYS, 0, -1, 3))
            return false;
        closes(&link);
    }
    return true;
}

/* Every rank waits for the next one, and the last one lets them wait twice as long as the timeout.
 * If it computes, all is well. If it is silent, it is the one that is named, by the rank that waits
 * for it. */
static bool test_progress(void)
{
    const double timeout = 2;
    const int last = ring_size - 1, rounds = last == 0 ? 0 : ranks == 3 ? 2 : ranks == 4;
    for (int silent = 0; silent < rounds; silent++) {
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        link.set_timeout(link.self, timeout);
        /* Nobody waits earlier than anybody's `start`, and the last one computes from `after`
         * on. */
        double start = ra_seconds();
        MPI_Barrier(MPI_COMM_WORLD);
        double after = ra_seconds();
        if (link.rank < last)
            REQUIRE(await(&link, RA_KEYS, 0, 1, 3), "%s", said(&link));
        if (link.rank == last && silent)
            verdict_pause(2 * timeout);
        while (link.rank == last && ra_seconds() - after < 2 * timeout && polls(&link))
            verdict_pause(0.01);
        if (silent) {
            REQUIRE(!waits(&link, RA_KEYS) || !polls(&link), "came back as if all were well");
            double ended = ra_seconds() - start;
            const char words[] = "ring rank 1, hop 0: waited 2 s for rank 2 to send keys; has it";
            REQUIRE(strncmp(said(&link), words, strlen(words)) == 0, "%s", said(&link));
            REQUIRE(ended > timeout, "after %g s", ended);
            MPI_Barrier(MPI_COMM_WORLD);
            living -= !closes(&link);
            communicators--;
            continue;
        }
        REQUIRE(link.rank == 0 || link.rank == last || waits(&link, RA_KEYS), "%s", said(&link));
        if (link.rank > 0)
            REQUIRE(speak(&link, RA_KEYS, 0, -1, 3), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
        REQUIRE(link.rank == last || ra_seconds() - start >= 2 * timeout, "too early");
        if (link.rank < last && !heard(RA_KEYS, 0, 1, 3))
            return false;
        REQUIRE(closes(&link), "MPI still uses memory");
    }
    return true;
}

/* A rank that has closed its link is not waited for; nor is its communicator freed by the others,
 * to which signs may still be on their way. */
static bool test_gone(void)
{
    struct ra_link link;
    if (ring_size == 1)
        return true;
    REQUIRE(opens(&link, patience), "%s", error);
    double start = ra_seconds();
    if (link.rank > 0) {
        REQUIRE(await(&link, RA_CALL, 3, -link.rank, 3), "%s", said(&link));
        REQUIRE(!waits(&link, RA_CALL), "came back as if all were well");
        REQUIRE(strstr(said(&link),
                       "hop 3: rank 0 has closed its link and did not send the number of a call"),
                "%s", said(&link));
    }
    closes(&link);
    REQUIRE(ra_seconds() - start < patience, "after %g s", ra_seconds() - start);
    communicators--;
    return true;
}

/* Where two connections lead to a rank, the last sign of another may come before a long message
 * that was sent earlier. The message is waited for all the same. */
static bool test_overtaken(void)
{
    struct ra_link link;
    int before = communicators;
    if (ring_size != 2)
        return true;
    REQUIRE(opens(&link, patience), "%s", error);
    if (link.rank == 0) {
        const struct ra_mpi_link *mpi = link.self;
        int leaves = RA_LEAVES, behind_messages = RA_MESSAGES;
        MPI_Send(&leaves, 1, MPI_INT, mpi->first + 1, behind_messages, mpi->comm);
        for (double start = ra_seconds(); ra_seconds() - start < 1;)
            ;
        REQUIRE(speak(&link, RA_KEYS, 0, 1, 3), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
    } else {
        REQUIRE(await(&link, RA_KEYS, 0, -1, 3), "%s", said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
        if (!heard(RA_KEYS, 0, -1, 3))
            return false;
    }
    closes(&link);
    if (link.rank == 1)
        communicators = before; /* it keeps its own if it has counted two leaves */
    return true;
}

/* After an error the ring does nothing more, and says so whatever it is asked. */
static bool is_dead(struct ra_link *link, enum ra_message idle)
{
    const struct ra_mpi_link *mpi = link->self;
    char first[RA_ERROR_SIZE];
    memcpy(first, mpi->error, sizeof first);
    REQUIRE(!sends(link, idle, 9, 1, outgoing[idle], 3), "send goes on");
    REQUIRE(!receives(link, idle, 9, -1, incoming[idle], 3), "receive goes on");
    REQUIRE(!polls(link), "poll goes on");
    for (int m = 0; m < RA_FAILURE; m++)
        REQUIRE(!waits(link, m), "wait goes on with %s", ra_message_name(m));
    REQUIRE(mpi->out[idle].request == MPI_REQUEST_NULL, "sends after the error");
    REQUIRE(mpi->in[idle].request == MPI_REQUEST_NULL, "receives after the error");
    REQUIRE(strcmp(said(link), first) == 0, "the first error was overwritten by: %s", said(link));
    return true;
}

/* The error must say who, at which hop, what and whom, in one line that was not cut off. Who: any
 * rank of this ring, as all fail with the words of one; whom: the rank at this distance from it. */
static bool names(const struct ra_link *link, int hop, const char *before, int distance,
                  const char *after)
{
    int who = -1;
    char expected[RA_ERROR_SIZE];
    sscanf(said(link), "ring rank %d,", &who);
    REQUIRE(who >= 0 && who < ring_size, "%s", said(link));
    snprintf(expected, sizeof expected, "ring rank %d, hop %d: %s rank %d%s", who, hop, before,
             walk_from(who, distance), after);
    REQUIRE(strstr(said(link), expected) == said(link), "%s not in: %s", expected, said(link));
    REQUIRE(!strchr(said(link), '\n') && strlen(said(link)) < RA_ERROR_SIZE - 1, "%s", said(link));
    return true;
}

/* A rank that fails tries for one second to tell the others why. On a busy machine that may be too
 * short; then MPI keeps the words. This is whether it does, which is believed only if that second
 * has passed. */
static bool still_tells(const struct ra_mpi_link *mpi)
{
    return mpi->telling && ra_seconds() - last_opening >= 1;
}

/* Closes a ring after an error, at once; `quiet`: nothing may use memory any more. Its communicator
 * is MPI's from then on. */
static bool ends(struct ra_link *link, bool quiet)
{
    double start = ra_seconds();
    const struct ra_mpi_link *mpi = link->self;
    quiet = quiet && !still_tells(mpi);
    REQUIRE(closes(link) == quiet, "wrong about memory");
    REQUIRE(ra_seconds() - start < grace, "took %g s", ra_seconds() - start);
    REQUIRE(!quiet || mpi->comm != MPI_COMM_NULL, "freed, but not by all ranks");
    communicators--;
    living -= !quiet;
    return true;
}

/* Takes from a ring that has been closed what still comes, until all ranks have nothing under way:
 * tests share their memory. */
static void drain(struct ra_mpi_link *mpi)
{
    MPI_Request all = MPI_REQUEST_NULL;
    for (int here, done, meeting = 0, met = 0; !met;) {
        MPI_Status status;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &here, &status);
        if (here)
            MPI_Recv(scrap, LARGE, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, mpi->comm,
                     MPI_STATUS_IGNORE);
        int busy = 0;
        for (int m = 0; m < RA_MESSAGES; m++) {
            MPI_Test(&mpi->in[m].request, &done, MPI_STATUS_IGNORE);
            busy += !done;
            MPI_Test(&mpi->out[m].request, &done, MPI_STATUS_IGNORE);
            busy += !done;
        }
        if (meeting)
            MPI_Test(&all, &met, MPI_STATUS_IGNORE);
        else if (!busy)
            meeting = MPI_Ibarrier(MPI_COMM_WORLD, &all) == MPI_SUCCESS;
    }
}

/* Waits for what never happens; `idle` is a kind of which nothing is under way. */
static bool gives_up(struct ra_link *link, enum ra_message message, enum ra_message idle, int hop,
                     int distance, const char *what)
{
    link->set_timeout(link->self, soon);
    double start = ra_seconds();
    REQUIRE(!waits(link, message), "came back as if all were well");
    double waited = ra_seconds() - start;
    REQUIRE(waited < soon + grace, "after %g s", waited);
    char own[40];
    snprintf(own, sizeof own, "ring rank %d,", link->rank);
    REQUIRE(waited >= soon || strstr(said(link), own) != said(link), "after %g s", waited);
    return names(link, hop, "waited 0.1 s for", distance, what) && is_dead(link, idle);
}

/* Nobody sends. */
static bool test_nobody_sends(void)
{
    const char *const what[RA_FAILURE] = {" to send keys; ", " to send gradients; ",
                                          " to send gradients coming home; ",
                                          " to send the number of a call; ", " to send rows; "};
    for (int m = 0; m < RA_FAILURE; m++) {
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        REQUIRE(await(&link, m, 7 + m, m - 2, 3), "%s", said(&link));
        if (!gives_up(&link, m, m == RA_KEYS ? RA_GRADIENTS : RA_KEYS, 7 + m, m - 2, what[m]) ||
            !ends(&link, true))
            return false;
    }
    return true;
}

/* Nobody takes a message, which is too large to leave on its own. What goes home is waited for as
 * gradients, whose way out it shares, and is called by its own name. */
static bool test_nobody_takes(void)
{
    const enum ra_message kinds[] = {RA_GRADIENTS, RA_GRADIENTS_RETURN};
    const char *const what[] = {" to take gradients; ", " to take gradients coming home; "};
    for (int k = 0; k < 2; k++) {
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        REQUIRE(speak(&link, kinds[k], 3, 1, LARGE), "%s", said(&link));
        bool good = gives_up(&link, RA_GRADIENTS, RA_KEYS, 3, 1, what[k]) && ends(&link, false);

        /* Once all have given up, the messages are taken after all. */
        MPI_Barrier(MPI_COMM_WORLD);
        drain(link.self);
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
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        REQUIRE(await(&link, RA_KEYS, 5, -1, rooms[s]), "%s", said(&link));
        REQUIRE(speak(&link, RA_KEYS, 5, 1, sizes[s]), "%s", said(&link));
        REQUIRE(!waits(&link, RA_KEYS), "came back as if all were well");
        REQUIRE(s > 0 || guard_holds(incoming[RA_KEYS] + rooms[s]), "written behind the room");
        if (!names(&link, 5, "receiving keys from", -1, ": MPI_ERR_TRUNCATE") ||
            !is_dead(&link, RA_GRADIENTS))
            return false;

        /* The large one may still be on its way: who failed with another has not received it. */
        living -= !closes(&link);
        communicators--;
        drain(link.self);
    }
    return true;
}

/* ---- Errors, which a ring has together. */

/* What a rank of this ring says when it fails: as much as there is room for. */
static void compose(char text[RA_ERROR_SIZE], int rank)
{
    int length = snprintf(text, RA_ERROR_SIZE, "rank %d of the ring at %d: ", rank,
                          place / ring_size * ring_size);
    for (; length < RA_ERROR_SIZE - 1; length++)
        text[length] = (char)('a' + (length + rank) % 26);
    text[length] = '\0';
}

/* What the other ranks do when one fails. */
enum others { WAIT, POLL, POST_LATER, OTHERS };

/* Comes back from a ring of which another rank has failed. */
static bool hears_of_it(struct ra_link *link, enum others others)
{
    double start = ra_seconds();
    REQUIRE(await(link, RA_KEYS, 1, -1, MEDIUM), "%s", said(link));
    if (others == POST_LATER)
        REQUIRE(speak(link, RA_GRADIENTS_RETURN, 1, 1, 3), "%s", said(link));
    while (others == POLL && polls(link))
        REQUIRE(ra_seconds() - start < grace, "polls in vain");
    REQUIRE(!waits(link, RA_KEYS), "came back as if all were well");
    REQUIRE(ra_seconds() - start < grace, "took %g s", ra_seconds() - start);
    return true;
}

/* A rank of the last ring fails: all of that ring fail with its words, to the last letter. No other
 * ring hears of it. */
static bool one_fails(int who, enum others others)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    bool concerned = world_rank >= ranks - ring_size;
    char text[RA_ERROR_SIZE];
    compose(text, who);

    /* The first reason counts. If the others are to wait for it, they have begun to. */
    if (concerned && link.rank == who) {
        if (others != POST_LATER)
            verdict_pause(0.005);
        fails(&link, text);
        fails(&link, "what is not said");
    }
    if (others == POST_LATER)
        MPI_Barrier(MPI_COMM_WORLD);
    if (concerned) {
        if (link.rank != who && !hears_of_it(&link, others))
            return false;
        REQUIRE(strcmp(said(&link), text) == 0, "%s", said(&link));
        fails(&link, "what is not said either");
        if (!is_dead(&link, RA_GRADIENTS) || !ends(&link, true))
            return false;
    } else {
        REQUIRE(await(&link, RA_KEYS, 0, -1, 3) && speak(&link, RA_KEYS, 0, 1, 3), "%s",
                said(&link));
        REQUIRE(waits(&link, RA_KEYS), "%s", said(&link));
    }

    /* By now everything has arrived that was sent. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (concerned)
        return true;
    REQUIRE(polls(&link), "%s", said(&link));
    const struct ra_mpi_link *mpi = link.self;
    REQUIRE(mpi->error[0] == '\0' && mpi->failure[0] == '\0', "%s", mpi->failure);
    return heard(RA_KEYS, 0, -1, 3) && closes(&link);
}

static bool test_one_fails(void)
{
    for (int who = 0; who < ring_size; who++)
        for (enum others others = 0; others < OTHERS; others++)
            if (!one_fails(who, others))
                return false;
    return true;
}

/* A message that is still under way is not forgotten for a second one of its kind. */
static bool test_twice(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    REQUIRE(await(&link, RA_KEYS, 1, -1, 3), "%s", said(&link));
    REQUIRE(!receives(&link, RA_KEYS, 2, -1, scrap, 3), "receives twice");
    REQUIRE(strstr(said(&link), "hop 2: receives keys without having waited for keys of hop 1"),
            "%s", said(&link));
    return is_dead(&link, RA_GRADIENTS) && ends(&link, true);
}

/* Of two that fail at once each keeps its own reason; the others take one of the two. */
static bool test_two_fail(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    char text[2][RA_ERROR_SIZE];
    compose(text[0], 0);
    compose(text[1], 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (link.rank < 2) {
        fails(&link, text[link.rank]);
        REQUIRE(strcmp(said(&link), text[link.rank]) == 0, "%s", said(&link));
    } else if (!hears_of_it(&link, WAIT)) {
        return false;
    }
    REQUIRE(!strcmp(said(&link), text[0]) || !strcmp(said(&link), text[1]), "%s", said(&link));
    return is_dead(&link, RA_GRADIENTS) && ends(&link, true);
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
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        if (link.rank != 0 && !hears_of_it(&link, WAIT))
            return false;
        if (link.rank == 0) {
            link.set_timeout(link.self, soon);
            broken = function == SEND ? NOTHING : function;
            bool received = await(&link, RA_KEYS, 6, -1, 3);
            REQUIRE(received == (function == NOTHING || function == SEND), "%s", said(&link));
            if (function == SEND) {
                broken = SEND;
                REQUIRE(!speak(&link, RA_KEYS, 6, -1, 3), "sends what it cannot");
            }
            REQUIRE(!waits(&link, RA_KEYS), "came back as if all were well");
        }
        REQUIRE(strncmp(said(&link), "ring rank 0,", 12) == 0, "%s", said(&link));
        if (!names(&link, 6, before[function], -1,
                   function == NOTHING ? " to send keys; has" : ": ") ||
            !is_dead(&link, RA_GRADIENTS) || !ends(&link, true))
            return false;
    }
    return true;
}

/* The text of a failure has come, and nobody has looked when the ring is closed: then it is not
 * closed as if all were well. */
static bool test_unheard(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    char text[RA_ERROR_SIZE];
    compose(text, 0);
    if (link.rank == 0)
        fails(&link, text);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    return ends(&link, true);
}

/* What is under way when a ring fails may be half way through. Either close says that memory is in
 * use, or nothing is written to it any more. */
static bool test_half_way(void)
{
    for (int round = 0; round < 4; round++) {
        struct ra_link link;
        REQUIRE(opens(&link, patience), "%s", error);
        REQUIRE(await(&link, RA_KEYS, 0, -1, LARGE), "%s", said(&link));
        REQUIRE(sends(&link, RA_KEYS, 0, 1, outgoing[RA_KEYS], LARGE), "%s", said(&link));
        for (int n = 0; n < round; n++)
            polls(&link);
        fails(&link, "no more");
        bool quiet = closes(&link);
        communicators--;
        living -= !quiet;
        const struct ra_mpi_link *mpi = link.self;
        bool idle = mpi->in[RA_KEYS].request == MPI_REQUEST_NULL &&
                    mpi->out[RA_KEYS].request == MPI_REQUEST_NULL;
        REQUIRE(quiet == (idle && !still_tells(mpi)), "wrong about memory in round %d", round);

        /* All bytes that are like the one before are like the first. */
        unsigned char *bytes = incoming[RA_KEYS];
        if (quiet)
            memset(bytes, GUARD_BYTE, LARGE);
        drain(link.self);
        REQUIRE(!quiet || (bytes[0] == GUARD_BYTE && !memcmp(bytes, bytes + 1, LARGE - 1)),
                "written after the end, in round %d", round);
    }
    return true;
}

/* Of a message that has begun to arrive and stops half way. */
static bool test_too_late(void)
{
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    REQUIRE(await(&link, RA_ROWS, 0, -1, 3), "%s", said(&link));
    fails(&link, "no more");
    too_late = true;
    bool good = ends(&link, false);
    too_late = false;
    REQUIRE(call_off(link.self) || still_tells(link.self), "MPI still uses memory");
    return good;
}

/* Nobody listens any more, and MPI keeps the words: it is not waited for, and close says so. */
static bool test_nobody_listens(void)
{
    if (ring_size != 3)
        return true;
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    struct ra_mpi_link *mpi = link.self;
    if (link.rank != 0) {
        MPI_Cancel(&mpi->in[RA_FAILURE].request);
        MPI_Wait(&mpi->in[RA_FAILURE].request, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    synchronous = true;
    double start = ra_seconds();
    if (link.rank == 0)
        fails(&link, "no more");
    synchronous = false;
    REQUIRE(ra_seconds() - start < grace, "took %g s", ra_seconds() - start);
    MPI_Barrier(MPI_COMM_WORLD);
    strcpy(mpi->error, "no more");
    bool good = ends(&link, link.rank != 0);
    drain(link.self);
    return good;
}

/* ---- Opening. If it fails, there is no link, and nothing is left of it. */

/* Asks for what no rank may get. */
static bool is_refused(int size, double timeout, enum ra_status why, const char *words)
{
    struct ra_link link = {.rank = -1};
    int before = living;
    enum ra_status status = ra_mpi_link_open(&link, MPI_COMM_WORLD, size, timeout, error);
    REQUIRE(status == why && strstr(error, words), "status %d: %s", status, error);
    REQUIRE(link.rank == -1 && !link.self, "left a link");
    REQUIRE(living == before, "%d states are left", living - before);
    return true;
}

/* There is no memory for a link; MPI cannot make a communicator, or cannot listen on it. */
static bool test_open_refused(void)
{
    no_memory = true;
    bool good = is_refused(ring_size, patience, RA_OUT_OF_MEMORY, "no memory");
    no_memory = false;
    broken = IDUP;
    good = good && is_refused(ring_size, patience, RA_LOST, "cannot duplicate");
    broken = RECEIVE;
    good = good && is_refused(ring_size, patience, RA_LOST, "cannot listen");
    communicators--;
    return good;
}

/* A ring size that does not divide the ranks. 0 is a ring of all of them. */
static bool test_sizes(void)
{
    char words[100];
    const int wrong[] = {ranks + 1, 2 * ranks, -1, -ranks, INT_MAX};
    for (int i = 0; i < 5; i++) {
        snprintf(words, sizeof words, "ring_size = %d: give a number that divides the %d ranks",
                 wrong[i], ranks);
        if (!is_refused(wrong[i], patience, RA_INVALID, words))
            return false;
    }
    struct ra_link link;
    REQUIRE(ra_mpi_link_open(&link, MPI_COMM_WORLD, 0, patience, error) == RA_OK, "%s", error);
    REQUIRE(link.size == ranks && link.rank == world_rank, "rank %d of %d", link.rank, link.size);
    REQUIRE(closes(&link), "MPI still uses memory");
    return true;
}

/* One rank asks for another size than the others; even 0 and what it stands for are not the
 * same. */
static bool test_sizes_differ(void)
{
    const int sizes[] = {0, 1, -1, 2 * ranks};
    for (int i = 0; i < 4 && ranks > 1; i++)
        for (int who = 0; who < ranks; who += ranks - 1) {
            int least = sizes[i] < ranks ? sizes[i] : ranks, most = sizes[i] + ranks - least;
            char words[100];
            snprintf(words, sizeof words, "disagree about ring_size: one gives %d, another %d",
                     least, most);
            if (!is_refused(world_rank == who ? sizes[i] : ranks, patience, RA_DISAGREEMENT, words))
                return false;
        }
    return true;
}

/* One rank gives a timeout that is none. */
static bool test_timeouts(void)
{
    const double wrong[] = {NAN, -1, -INFINITY, -1e-300};
    for (int i = 0; i < 4; i++)
        for (int who = 0; who < ranks; who++)
            if (!is_refused(ring_size, world_rank == who ? wrong[i] : patience, RA_INVALID,
                            "timeout, on one of the ranks"))
                return false;
    return true;
}

/* A rank that does not come, or so late that the others have given up. */
static bool gives_up_opening(MPI_Comm comm)
{
    struct ra_link link;
    int before = living;
    double start = ra_seconds();
    REQUIRE(ra_mpi_link_open(&link, comm, ring_size, soon, error) == RA_LOST,
            "came back as if all were well");
    double waited = ra_seconds() - start;
    REQUIRE(waited >= soon && waited < soon + grace, "after %g s", waited);
    REQUIRE(strstr(error, "waited 0.1 s for all ranks"), "%s", error);

    /* MPI may still write to the link's state, which is freed only if the rest has come
     * meanwhile. */
    const struct ra_mpi_link *mpi = state[states - 1];
    REQUIRE(living > before || mpi->opening == MPI_REQUEST_NULL, "freed too early");
    communicators--;
    living = before;
    return true;
}

/* A rank that comes late finds that the others were there, but do not answer any more. */
static bool test_opened_late(void)
{
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    bool late = ranks > 1 && world_rank == ranks - 1, good = late || ranks == 1;
    if (!late && ranks > 1)
        good = gives_up_opening(comm);
    MPI_Barrier(MPI_COMM_WORLD);
    if (late)
        good = gives_up_opening(comm);

    /* Nothing uses the states any more once all have taken the steps that the late rank has. */
    if (good && ranks > 1) {
        struct ra_mpi_link *mpi = state[states - 1];
        int asks = mpi->mine[0] > 0;
        MPI_Bcast(&asks, 1, MPI_INT, ranks - 1, MPI_COMM_WORLD);
        MPI_Wait(&mpi->opening, MPI_STATUS_IGNORE);
        if (asks && !late)
            MPI_Iallreduce(mpi->mine, mpi->least, 3, MPI_INT, MPI_MIN, mpi->comm, &mpi->opening);
        MPI_Wait(&mpi->opening, MPI_STATUS_IGNORE);
        PMPI_Comm_free(&mpi->comm);
    }
    PMPI_Comm_free(&comm);
    return good;
}

/* ---- The end. */

/* MPI_Finalize does not hang, when a message is never taken and when a rank never comes to open a
 * ring. MPI may use the memory of these until then. */
static bool test_left_behind(void)
{
    static unsigned char message[LARGE];
    struct ra_link link;
    REQUIRE(opens(&link, patience), "%s", error);
    REQUIRE(sends(&link, RA_KEYS, 0, 1, message, LARGE), "%s", said(&link));
    fails(&link, "no more");
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return ends(&link, false) && (world_rank == ranks - 1 || gives_up_opening(comm));
}

/* Two rings of the same ranks, and messages that belong to none: each hears its own. That rings of
 * other ranks are not heard shows in every other test. */
static bool test_rings_apart(void)
{
    struct ra_link first, second;
    REQUIRE(opens(&first, patience), "%s", error);
    REQUIRE(opens(&second, patience), "%s", error);
    int left = world_rank - first.rank + walk(-1), right = world_rank - first.rank + walk(1);
    unsigned char stray[8] = {0};
    MPI_Request strays[2];
    MPI_Isend(stray, 8, MPI_BYTE, right, RA_KEYS, MPI_COMM_WORLD, &strays[0]);
    REQUIRE(speak(&first, RA_KEYS, 0, 1, 8), "%s", said(&first));
    REQUIRE(waits(&first, RA_KEYS), "%s", said(&first));
    REQUIRE(speak(&second, RA_KEYS, 1, 1, 8), "%s", said(&second));

    /* The second ring's comes first; then the first ring's; then the stray one. */
    REQUIRE(await(&second, RA_KEYS, 1, -1, 8), "%s", said(&second));
    REQUIRE(waits(&second, RA_KEYS), "%s", said(&second));
    if (!heard(RA_KEYS, 1, -1, 8))
        return false;
    REQUIRE(await(&first, RA_KEYS, 0, -1, 8), "%s", said(&first));
    REQUIRE(waits(&first, RA_KEYS), "%s", said(&first));
    if (!heard(RA_KEYS, 0, -1, 8))
        return false;
    MPI_Irecv(stray, 8, MPI_BYTE, left, RA_KEYS, MPI_COMM_WORLD, &strays[1]);
    MPI_Waitall(2, strays, MPI_STATUSES_IGNORE);
    closes(&first);
    closes(&second);
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
        REQUIRE(type_of_bytes(sizes[s], &type) == MPI_SUCCESS, "%lld", (long long)sizes[s]);
        MPI_Count size, low, extent;
        MPI_Type_size_x(type, &size);
        REQUIRE(size == sizes[s], "%lld for %lld", (long long)size, (long long)sizes[s]);
        MPI_Type_get_true_extent_x(type, &low, &extent);
        REQUIRE(low == 0 && extent == sizes[s], "from %lld, %lld for %lld", (long long)low,
                (long long)extent, (long long)sizes[s]);

        /* Bytes without gaps, first to last: packed, they are what they were. */
        if (sizes[s] <= LARGE) {
            int position = 0;
            write_down(outgoing[0], 0, RA_KEYS, s, sizes[s]);
            MPI_Pack(outgoing[0], 1, type, incoming[0], LARGE, &position, MPI_COMM_WORLD);
            REQUIRE(position == sizes[s], "%d for %lld", position, (long long)sizes[s]);
            REQUIRE(memcmp(outgoing[0], incoming[0], (size_t)sizes[s]) == 0, "out of order");
        }
        MPI_Type_free(&type);
    }
    return true;
}

/* The clock goes forward as fast as MPI's, which is looked at before and after it: however long a
 * rank has to wait for its processor in between, the time by this clock lies between two by that
 * one. */
static bool test_seconds(void)
{
    double theirs[4], mine[2], last = 0;
    for (int i = 0; i < 2; i++) {
        theirs[2 * i] = MPI_Wtime();
        mine[i] = ra_seconds();
        theirs[2 * i + 1] = MPI_Wtime();
        for (last = mine[i]; i == 0 && MPI_Wtime() - theirs[1] < 0.1;) {
            double now = ra_seconds();
            REQUIRE(now >= last, "backward");
            last = now;
        }
    }
    double took = mine[1] - mine[0], least = theirs[2] - theirs[1], most = theirs[3] - theirs[0];
    REQUIRE(took > least - 0.05 && took < most + 0.05, "%g s for %g to %g s", took, least, most);
    return true;
}

/* The last but one: the others have left no type, no communicator and no state behind. */
static bool test_all_freed(void)
{
    REQUIRE(types == 0 && communicators == 0 && living == 0,
            "%d types, %d communicators, %d states", types, communicators, living);
    return true;
}

#define ROW(name)          \
    {                      \
#name, test_##name \
    }
static const struct {
    const char *name;
    bool (*run)(void);
} tests[] = {
    ROW(open),         ROW(reversed),  ROW(round),          ROW(distances),     ROW(order),
    ROW(both_kinds),   ROW(home),      ROW(done),           ROW(idle),          ROW(late),
    ROW(progress),     ROW(gone),      ROW(overtaken),      ROW(nobody_sends),  ROW(nobody_takes),
    ROW(too_long),     ROW(one_fails), ROW(two_fail),       ROW(shared_errors), ROW(unheard),
    ROW(half_way),     ROW(too_late),  ROW(nobody_listens), ROW(open_refused),  ROW(sizes),
    ROW(sizes_differ), ROW(timeouts),  ROW(opened_late),    ROW(rings_apart),   ROW(types),
    ROW(seconds),      ROW(all_freed), ROW(left_behind),    ROW(twice)};
#undef ROW
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
    for (int m = 0; m < RA_FAILURE; m++) {
        outgoing[m] = malloc(LARGE + GUARD);
        incoming[m] = malloc(LARGE + GUARD);
        if (!outgoing[m] || !incoming[m] || !scrap)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }

    verdict_start(world_rank, patience + 5, "rank %d of %d, rings of %d: ", world_rank, ranks,
                  ring_size);
    for (int t = 0; t < TESTS; t++) {
        if (!verdict_wants("%s", tests[t].name))
            continue;
        verdict_state.test = tests[t].name;
        verdict_state.complaints += !tests[t].run();
        verdict("%s", tests[t].name);
    }
    /* A link may outlive MPI; then all that is left of it is memory. */
    struct ra_link last;
    bool opened = opens(&last, patience);
    int code = verdict_end();
    for (int m = 0; m < RA_FAILURE; m++) {
        free(outgoing[m]);
        free(incoming[m]);
    }
    free(scrap);
    MPI_Finalize();
    verdict_state.test = "after MPI_Finalize";
    if (!HOLDS(opened && closes(&last), "cannot be closed"))
        code = 1;
    while (states > 0)
        free(state[--states]);
    return code;
}
