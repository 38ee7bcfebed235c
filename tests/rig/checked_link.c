/* checked_link: a link that holds its caller to the contract. See checked_link.h. */
#include "checked_link.h"
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_message.h"

static const char *const names[RA_MESSAGES] = {"keys",
                                               "gradients",
                                               "gradients coming home",
                                               "the number of a call",
                                               "rows",
                                               "a failure",
                                               "outer keys",
                                               "outer gradients",
                                               "outer gradients coming home",
                                               "the number of an outer call"};

/* What is under way for the caller, who has not waited for it. */
struct passage {
    bool under_way;
    int hop;
};

struct rank {
    struct checked_ring *ring;
    int rank;
    struct ra_link inside;
    struct passage out[RA_MESSAGES], in[RA_MESSAGES]; /* out: by way out */
    void *early[RA_MESSAGES];                         /* copies that the link inside still sends */
    struct checked_traffic *sent;                     /* by hop */
    pthread_t receiver;                               /* the thread that began to receive */
    int64_t polls, left; /* left: calls until one of this kind fails; 0 or less: none does */
    enum checked_call failing;
    bool closed;
};

struct checked_ring {
    int ranks;
    enum checked_delivery delivery;
    struct rank *rank;
};

/* A rank broke the contract of the link: nothing that the test finds later would mean anything. */
static void broken(const struct rank *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "checked_link: rank %d ", self->rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

/* Gradients go on or home, by the same way. */
static enum ra_message way_out(enum ra_message message)
{
    return ra_message_way_out(message);
}

/* The error of the link inside; "": none. */
static const char *error_of(void *link)
{
    struct rank *self = link;
    if (self->closed)
        broken(self, "uses its link after it has closed it");
    return self->inside.error(self->inside.self);
}

/* Can this call go on? It may be the one that fails. */
static bool goes_on(struct rank *self, enum checked_call call)
{
    if (error_of(self)[0])
        return false;
    if (call == self->failing && self->left > 0 && --self->left == 0)
        self->inside.fail(self->inside.self, "a call that fails");
    return !error_of(self)[0];
}

/* Waits until the early message on this way out has been taken. */
static bool settle(struct rank *self, enum ra_message way)
{
    if (self->early[way] && !self->inside.wait(self->inside.self, way))
        return false;
    free(self->early[way]);
    self->early[way] = NULL;
    return true;
}

static bool send(void *link, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes)
{
    struct rank *self = link;
    enum ra_message way = way_out(message);
    struct passage *out = &self->out[way];
    if (!goes_on(self, CHECKED_SEND))
        return false;
    if (out->under_way)
        broken(self, "hop %d: sends %s before those of hop %d were waited for", hop, names[message],
               out->hop);
    if (bytes <= 0 || hop < 0 || hop >= self->ring->ranks)
        broken(self, "hop %d: sends %" PRId64 " bytes", hop, bytes);
    *out = (struct passage){true, hop};
    bool counts = message != RA_CALL && message != RA_OUTER_CALL;
    self->sent[hop].messages += counts;
    self->sent[hop].bytes += counts ? bytes : 0;
    if (!settle(self, way))
        return false;
    if (self->ring->delivery == CHECKED_EARLY)
        from = self->early[way] = memcpy(malloc((size_t)bytes), from, (size_t)bytes);
    return self->inside.send(self->inside.self, message, hop, distance, from, bytes);
}

static bool receive(void *link, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes)
{
    struct rank *self = link;
    struct passage *in = &self->in[message];
    if (!goes_on(self, CHECKED_RECEIVE))
        return false;
    if (in->under_way)
        broken(self, "hop %d: receives %s before those of hop %d were waited for", hop,
               names[message], in->hop);
    if (bytes <= 0)
        broken(self, "hop %d: receives %" PRId64 " bytes", hop, bytes);
    *in = (struct passage){true, hop};
    self->receiver = pthread_self();
    memset(into, 0xFF, (size_t)bytes); /* NaN, to a caller that reads too early */

    /* Before, not after: then nobody waits for an early message of this rank in order to send what
     * this rank would wait for, too. */
    return settle(self, message) &&
           self->inside.receive(self->inside.self, message, hop, distance, into, bytes);
}

static bool poll(void *link)
{
    struct rank *self = link;
    if (!goes_on(self, CHECKED_POLL))
        return false;
    bool expects_keys = self->in[RA_KEYS].under_way;
    if (expects_keys && !pthread_equal(self->receiver, pthread_self()))
        broken(self, "polls from another thread than that which receives");
    self->polls += expects_keys;
    return self->inside.poll(self->inside.self);
}

/* Waits for what comes in, and not for the early message that goes out. The link inside can wait
 * for both only; so this asks again and again, though not for ever. */
static bool arrives(struct rank *self, enum ra_message message)
{
    int hop;
    double start, end, began = ra_seconds();
    while (self->inside.poll(self->inside.self) && ra_seconds() - began < 1) {
        if (self->inside.arrival(self->inside.self, message, &hop, &start, &end))
            return true;
        sched_yield();
    }
    return false;
}

static bool wait(void *link, enum ra_message message)
{
    struct rank *self = link;
    struct passage *out = &self->out[message], *in = &self->in[message];
    if (!goes_on(self, CHECKED_WAIT))
        return false;
    bool early = self->early[message] && (!in->under_way || arrives(self, message));
    if (!early && !self->inside.wait(self->inside.self, message))
        return false;
    out->under_way = in->under_way = false;
    return true;
}

static void fail(void *link, const char *reason)
{
    struct rank *self = link;
    if (!reason[0])
        broken(self, "fails for no reason");
    if (!error_of(self)[0])
        self->inside.fail(self->inside.self, reason);
}

static bool arrival(void *link, enum ra_message message, int *hop, double *start, double *end)
{
    struct rank *self = link;
    error_of(self);
    return self->inside.arrival(self->inside.self, message, hop, start, end);
}

static void set_timeout(void *link, double seconds)
{
    struct rank *self = link;
    error_of(self);
    self->inside.set_timeout(self->inside.self, seconds);
}

static void cancel(void *link)
{
    struct rank *self = link;
    self->inside.cancel(self->inside.self);
}

static bool close_link(void *link)
{
    struct rank *self = link;
    char own[32];
    snprintf(own, sizeof own, "ring rank %d,", self->rank);
    for (int m = 0; m < RA_MESSAGES && !error_of(self)[0]; m++) {
        if (self->in[m].under_way || self->out[m].under_way)
            broken(self, "closes its link while %s are under way", names[m]);

        /* This rank's own error, not that of another: it has waited in vain. */
        if (!settle(self, (enum ra_message)m) && strstr(error_of(self), own))
            broken(self, "sent %s that nobody took: %s", names[m], error_of(self));
    }
    bool closed = self->inside.close(self->inside.self);
    self->closed = true;
    for (int m = 0; m < RA_MESSAGES && closed; m++)
        free(self->early[m]);
    return closed;
}

struct checked_ring *checked_ring_open(int ranks, enum checked_delivery delivery)
{
    struct checked_ring *ring = malloc(sizeof *ring);
    *ring = (struct checked_ring){ranks, delivery, calloc((size_t)ranks, sizeof *ring->rank)};
    for (int r = 0; r < ranks; r++) {
        ring->rank[r].ring = ring;
        ring->rank[r].rank = r;
        ring->rank[r].sent = calloc((size_t)ranks, sizeof *ring->rank[r].sent);
    }
    return ring;
}

struct ra_link checked_ring_link(struct checked_ring *ring, struct ra_link inside)
{
    struct rank *self = &ring->rank[inside.rank];
    self->inside = inside;
    bool late = ring->delivery == CHECKED_LATE;
    return (struct ra_link){.rank = inside.rank,
                            .size = inside.size,
                            .bytes = inside.bytes,
                            .self = self,
                            .send = send,
                            .receive = receive,
                            .poll = poll,
                            .wait = wait,
                            .fail = fail,
                            .error = error_of,
                            .arrival = late && inside.arrival ? arrival : NULL,
                            .set_timeout = inside.set_timeout ? set_timeout : NULL,
                            .close = close_link,
                            .in_call = inside.in_call,
                            .cancel = cancel};
}

void checked_ring_close(struct checked_ring *ring)
{
    for (int r = 0; r < ring->ranks; r++)
        free(ring->rank[r].sent);
    free(ring->rank);
    free(ring);
}

struct checked_traffic checked_ring_sent(struct checked_ring *ring, int rank, int hop)
{
    struct checked_traffic sent = ring->rank[rank].sent[hop];
    ring->rank[rank].sent[hop] = (struct checked_traffic){0, 0};
    return sent;
}

void checked_ring_fail(struct checked_ring *ring, int rank, enum checked_call call, int64_t number)
{
    ring->rank[rank].failing = call;
    ring->rank[rank].left = number;
}

bool checked_ring_failed(struct checked_ring *ring, int rank)
{
    return ring->rank[rank].left <= 0;
}

int64_t checked_ring_polls(struct checked_ring *ring, int rank)
{
    return ring->rank[rank].polls;
}

int checked_ring_closed(struct checked_ring *ring)
{
    int closed = 0;
    for (int r = 0; r < ring->ranks; r++)
        closed += ring->rank[r].closed;
    return closed;
}
