/* ra_threads: links between threads of one process. See ring_attention_threads.h and ra_link.h.
 *
 * Chapter 08. New here: a message is only two notes, where the sender has it and where the receiver
 * wants it. Once both are there, the receiver copies.
 */
#include "ring_attention_threads.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_message.h"
#include "ra_system.h"

/* One message in one direction, while it is under way and after. */
struct passage {
    bool under_way;
    bool copying; /* its receiver reads it at this moment; of messages out */
    enum ra_message message;
    int hop, peer;
    void *data; /* where it is, or is to go */
    int64_t bytes;
    double started, finished; /* finished: 0 until it is, and again once that was asked about */
};

/* One rank: `self` of its link. */
struct rank {
    struct ring *ring;
    int rank;
    double timeout; /* seconds; 0: no limit */
    char error[RA_ERROR_SIZE];
    atomic_bool cancelled;
    int in_call;
    struct passage in[RA_MESSAGES];

    /* Other ranks look at these, under the ring's mutex. */
    struct passage out[RA_MESSAGES];
    bool closed, waits;
    double polled;          /* when it last did; ra_seconds */
    pthread_cond_t changed; /* something that this rank may wait for */
};

/* What all ranks share. */
struct ring {
    pthread_mutex_t mutex;
    int ranks, open;             /* how many, and how many of them have not closed their link */
    char failure[RA_ERROR_SIZE]; /* the first error of any rank */
    struct rank rank[];
};

/* ---- Errors, under the mutex. */

/* Fails for this reason, and makes all other ranks fail. */
static void fail_for(struct rank *self, const char *reason)
{
    struct ring *ring = self->ring;
    snprintf(self->error, sizeof self->error, "%s", reason);
    if (!ring->failure[0])
        memcpy(ring->failure, self->error, sizeof ring->failure);
    for (int r = 0; r < ring->ranks; r++)
        pthread_cond_signal(&ring->rank[r].changed);
}

/* The same, with the rank and this hop in front of the reason. */
static void fail_at(struct rank *self, int hop, const char *format, ...)
{
    char reason[RA_ERROR_SIZE], text[RA_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    ra_message_place(text, self->rank, hop, "%s", reason);
    fail_for(self, text);
}

/* Fails because somebody has called cancel. */
static void fail_cancelled(struct rank *self)
{
    char text[RA_ERROR_SIZE];
    ra_message_cancelled(text, self->rank);
    fail_for(self, text);
}

/* Fails if another rank has; returns whether this one can go on. */
static bool can_go_on(struct rank *self)
{
    if (!self->error[0])
        memcpy(self->error, self->ring->failure, sizeof self->error);
    return !self->error[0];
}

/* ---- Messages. These two, too, are called under the mutex: copy and take_messages. */

static struct passage *way_out(struct rank *self, enum ra_message message)
{
    return &self->out[ra_message_way_out(message)];
}

/* Begins a message in either direction. */
static bool begin(struct rank *self, bool outgoing, enum ra_message message, int hop, int distance,
                  void *data, int64_t bytes)
{
    struct ring *ring = self->ring;
    struct passage *passage = outgoing ? way_out(self, message) : &self->in[message];
    int peer = (self->rank + distance % ring->ranks + ring->ranks) % ring->ranks;
    const char *verb = outgoing ? "sends" : "receives", *name = ra_message_name(message);
    pthread_mutex_lock(&ring->mutex);
    if (can_go_on(self) && passage->under_way)
        fail_at(self, hop, "%s %s without having waited for %s of hop %d", verb, name,
                ra_message_name(passage->message), passage->hop);
    if (can_go_on(self) && (!data || bytes <= 0))
        fail_at(self, hop, "%s %" PRId64 " bytes of %s at %p", verb, bytes, name, data);
    if (can_go_on(self)) {
        *passage = (struct passage){true, false, message, hop, peer, data, bytes, ra_seconds(), 0};
        if (outgoing)
            pthread_cond_signal(&ring->rank[peer].changed);
    }
    pthread_mutex_unlock(&ring->mutex);
    return !self->error[0];
}

static bool send(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes)
{
    /* The cast is safe: what is sent is only read. */
    return begin(self, true, message, hop, distance, (void *)(uintptr_t)from, bytes);
}

static bool receive(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes)
{
    return begin(self, false, message, hop, distance, into, bytes);
}

/* Copies a message, without the mutex: others have messages to copy, too. */
static void copy(struct rank *self, struct passage *in, struct passage *out)
{
    out->copying = true;
    pthread_mutex_unlock(&self->ring->mutex);
    memcpy(in->data, out->data, (size_t)in->bytes);
    pthread_mutex_lock(&self->ring->mutex);
    in->under_way = out->under_way = out->copying = false;
    in->finished = ra_seconds();
    pthread_cond_signal(&self->ring->rank[in->peer].changed);
}

/* Takes whatever has been sent to this rank, of all kinds: the sender of one may wait for it while
 * this rank waits for another. Returns whether there was anything. Fails if another rank has. */
static bool take_messages(struct rank *self)
{
    bool taken = false;
    for (int m = 0; m < RA_MESSAGES && can_go_on(self); m++) {
        struct passage *in = &self->in[m];
        struct passage *out = way_out(&self->ring->rank[in->peer], (enum ra_message)m);
        if (!in->under_way || !out->under_way || out->peer != self->rank ||
            out->message != in->message)
            continue;
        if (in->bytes == out->bytes)
            copy(self, in, out);
        else
            fail_at(self, in->hop, "expects %" PRId64 " bytes of %s, rank %d sends %" PRId64,
                    in->bytes, ra_message_name(m), in->peer, out->bytes);
        taken = true;
    }
    return taken;
}

static bool poll(void *link)
{
    struct rank *self = link;
    pthread_mutex_lock(&self->ring->mutex);
    self->polled = ra_seconds();
    take_messages(self);
    pthread_mutex_unlock(&self->ring->mutex);
    return !self->error[0];
}

/* Until when this rank, which has waited since `began`, waits for another: by point 7 of
 * ra_link.h. */
static double deadline(const struct rank *self, const struct rank *peer, double began)
{
    double last = peer->polled > began ? peer->polled : began;
    for (int r = 0; r < self->ring->ranks && peer->waits; r++)
        last = self->ring->rank[r].polled > last ? self->ring->rank[r].polled : last;
    return last + self->timeout * (peer->waits ? 1.5 : 1);
}

/* Sleeps until something may have changed, under the mutex. Fails if this message cannot come any
 * more, or has not come in time. */
static void wait_for_change(struct rank *self, const struct passage *due, bool incoming,
                            double began)
{
    const double longest = 0.01; /* seconds: a signal handler that cancels cannot wake this rank */
    const struct rank *peer = &self->ring->rank[due->peer];
    double now = ra_seconds();
    double left = self->timeout > 0 ? deadline(self, peer, began) - now : longest;
    if (peer->closed || left <= 0) {
        enum ra_peer_state absence = peer->waits ? RA_IS_WAITING : RA_IS_SILENT;
        char text[RA_ERROR_SIZE];
        ra_message_timeout_text(text, self->rank, due->hop, self->timeout, due->peer, incoming,
                                due->message, peer->closed ? RA_IS_GONE : absence);
        fail_for(self, text);
        return;
    }
    double until = now + (left < longest ? left : longest);
    struct timespec when = {(time_t)until, (long)(1e9 * (until - (double)(time_t)until))};
    ra_system_wait_until(&self->changed, &self->ring->mutex, &when);
}

static bool wait(void *link, enum ra_message message)
{
    struct rank *self = link;
    const struct passage *in = &self->in[message], *out = &self->out[message];
    double began = ra_seconds();
    pthread_mutex_lock(&self->ring->mutex);
    self->waits = true;
    while (!self->error[0] && (in->under_way || out->under_way))
        if (atomic_load(&self->cancelled))
            fail_cancelled(self);
        /* While one message was copied another may have come, without waking anybody. */
        else if (!take_messages(self) && !self->error[0])
            wait_for_change(self, in->under_way ? in : out, in->under_way, began);
    self->waits = false;
    pthread_mutex_unlock(&self->ring->mutex);
    return !self->error[0];
}

static bool arrival(void *link, enum ra_message message, int *hop, double *start, double *end)
{
    struct passage *in = &((struct rank *)link)->in[message];
    if (in->finished == 0)
        return false;
    *hop = in->hop;
    *start = in->started;
    *end = in->finished;
    in->finished = 0;
    return true;
}

static void set_timeout(void *link, double seconds)
{
    ((struct rank *)link)->timeout = seconds;
}

static void fail(void *link, const char *reason)
{
    struct rank *self = link;
    pthread_mutex_lock(&self->ring->mutex);
    if (!self->error[0])
        fail_for(self, reason);
    pthread_mutex_unlock(&self->ring->mutex);
}

static const char *error_of(void *link)
{
    return ((struct rank *)link)->error;
}

static void cancel(void *link)
{
    atomic_store(&((struct rank *)link)->cancelled, true);
}

/* ---- The end, and the beginning. */

static void free_ring(struct ring *ring)
{
    for (int r = 0; r < ring->ranks; r++)
        pthread_cond_destroy(&ring->rank[r].changed);
    pthread_mutex_destroy(&ring->mutex);
    free(ring);
}

static bool close_link(void *link)
{
    struct rank *self = link;
    struct ring *ring = self->ring;
    pthread_mutex_lock(&ring->mutex);
    for (int m = 0; m < RA_MESSAGES; m++) {
        struct passage *in = &self->in[m], *out = &self->out[m];
        if (!self->error[0] && (in->under_way || out->under_way))
            fail_at(self, in->under_way ? in->hop : out->hop,
                    "closes its link without having waited for %s", ra_message_name(m));

        /* After an error nobody begins to copy any more. The end of what has begun is near. */
        while (out->copying)
            pthread_cond_wait(&self->changed, &ring->mutex);
    }

    /* This rank will not come to those that wait for it. */
    self->closed = true;
    for (int r = 0; r < ring->ranks; r++)
        pthread_cond_signal(&ring->rank[r].changed);
    bool last = --ring->open == 0;
    pthread_mutex_unlock(&ring->mutex);
    if (last)
        free_ring(ring);
    return true;
}

/* Makes all that the ranks share. NULL: out of memory. */
static struct ring *new_ring(int ranks, size_t bytes)
{
    struct ring *ring = calloc(1, bytes);
    if (!ring || pthread_mutex_init(&ring->mutex, NULL) != 0)
        return free(ring), NULL;
    while (ring->ranks < ranks && ra_system_condition(&ring->rank[ring->ranks].changed) == 0)
        ring->ranks++;
    if (ring->ranks == ranks)
        return ring;
    free_ring(ring);
    return NULL;
}

enum ra_status ra_thread_links(struct ra_link *links, int ranks, char error[RA_ERROR_SIZE])
{
    if (ranks < 1) {
        snprintf(error, error ? RA_ERROR_SIZE : 0, "ranks = %d: give at least 1", ranks);
        return RA_INVALID;
    }
    if (!links) {
        snprintf(error, error ? RA_ERROR_SIZE : 0, "links is NULL: give an array of %d links",
                 ranks);
        return RA_INVALID;
    }
    size_t bytes = sizeof(struct ring) + (size_t)ranks * sizeof(struct rank);
    struct ring *ring = new_ring(ranks, bytes);
    if (!ring) {
        snprintf(error, error ? RA_ERROR_SIZE : 0, "no memory for the links of %d threads", ranks);
        return RA_OUT_OF_MEMORY;
    }
    ring->open = ranks;
    for (int r = 0; r < ranks; r++) {
        ring->rank[r].ring = ring;
        ring->rank[r].rank = r;
        ring->rank[r].timeout = 600;
        links[r] = (struct ra_link){.rank = r,
                                    .size = ranks,
                                    .sharing = ranks,
                                    .bytes = (int64_t)bytes / ranks,
                                    .self = &ring->rank[r],
                                    .send = send,
                                    .receive = receive,
                                    .poll = poll,
                                    .wait = wait,
                                    .fail = fail,
                                    .error = error_of,
                                    .arrival = arrival,
                                    .set_timeout = set_timeout,
                                    .close = close_link,
                                    .in_call = &ring->rank[r].in_call,
                                    .cancel = cancel};
    }
    return RA_OK;
}
