/* thread_link: a ring whose ranks are threads of one process. See thread_link.h. */
#include "thread_link.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ERROR_SIZE = 400 };

/* A message that has been sent and not yet taken. */
struct letter {
    enum ra_message message;
    int from, to;
    int64_t bytes;
    const void *data;
    void *copy; /* the data, if they were read early */
    struct letter *next;
};

/* The way out of one kind of message, and the way in. */
struct passage {
    bool under_way;
    enum ra_message message;
    int hop, peer;
    void *into;
    int64_t bytes;
    bool arrived; /* and not yet asked about */
    double started, finished;
};

struct rank {
    struct thread_ring *ring;
    int rank;
    struct passage out[RA_MESSAGES], in[RA_MESSAGES];
    struct letter letters[RA_MESSAGES]; /* late ones, by way out */
    struct thread_traffic *sent;        /* by hop */
    int64_t polls;                      /* while keys were on their way in */
    char error[ERROR_SIZE], trouble[ERROR_SIZE];
    bool closed;
};

struct thread_ring {
    int ranks;
    double timeout;
    enum thread_delivery delivery;
    pthread_mutex_t mutex; /* of everything here */
    pthread_cond_t news;
    struct letter *letters; /* in the order in which they were sent */
    struct rank *rank;
};

static const char *const names[RA_MESSAGES] = {"keys", "gradients", "gradients coming home", "rows",
                                               "trouble"};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A rank broke the contract of the link: nothing that the test finds later would mean anything. */
static void broken(const struct rank *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "thread_link: rank %d ", self->rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

/* Gradients go on or home, by the same way. */
static enum ra_message way_out(enum ra_message message)
{
    return message == RA_HOME ? RA_GRADIENTS : message;
}

static int rank_at(const struct rank *self, int distance)
{
    int ranks = self->ring->ranks;
    return ((self->rank + distance) % ranks + ranks) % ranks;
}

/* Takes what has come for this rank. The receiver reads the sender's memory, so a sender that
 * writes there too early is a race that a thread sanitizer sees. */
static void take_letters(struct rank *self)
{
    for (struct letter **at = &self->ring->letters, *letter; (letter = *at);) {
        struct passage *in = &self->in[letter->message];
        if (letter->to != self->rank || !in->under_way || in->peer != letter->from) {
            at = &letter->next;
            continue;
        }
        if (in->bytes != letter->bytes)
            broken(self, "hop %d: expects %" PRId64 " bytes of %s, rank %d sent %" PRId64, in->hop,
                   in->bytes, names[letter->message], letter->from, letter->bytes);
        memcpy(in->into, letter->data, (size_t)letter->bytes);
        in->under_way = false;
        in->arrived = true;
        in->finished = seconds();

        /* An early letter's sender has long gone on. */
        *at = letter->next;
        if (letter->copy) {
            free(letter->copy);
            free(letter);
        } else {
            self->ring->rank[letter->from].out[way_out(letter->message)].under_way = false;
        }
        pthread_cond_broadcast(&self->ring->news);
    }
}

/* Fails if another rank has. */
static bool listen(struct rank *self)
{
    if (!self->error[0])
        memcpy(self->error, self->trouble, sizeof self->error);
    return !self->error[0];
}

static bool send_message(void *link, enum ra_message message, int hop, int distance,
                         const void *from, int64_t bytes)
{
    struct rank *self = link;
    struct thread_ring *ring = self->ring;
    pthread_mutex_lock(&ring->mutex);
    struct passage *out = &self->out[way_out(message)];
    bool sound = !self->error[0];
    if (sound && out->under_way)
        broken(self, "hop %d: sends %s before those of hop %d were waited for", hop, names[message],
               out->hop);
    if (sound && (bytes < 0 || hop < 0 || hop >= ring->ranks))
        broken(self, "hop %d: sends %" PRId64 " bytes", hop, bytes);
    if (sound && bytes > 0) {
        *out = (struct passage){.message = message, .hop = hop, .peer = rank_at(self, distance)};
        self->sent[hop].messages++;
        self->sent[hop].bytes += bytes;

        /* Put it at the end of the queue, with its own copy of the data or without. */
        struct letter *letter = &self->letters[way_out(message)], **end = &ring->letters;
        out->under_way = ring->delivery == THREAD_LATE;
        if (ring->delivery == THREAD_EARLY)
            letter = malloc(sizeof *letter);
        *letter = (struct letter){message, self->rank, out->peer, bytes, from, NULL, NULL};
        if (ring->delivery == THREAD_EARLY)
            letter->data = letter->copy = memcpy(malloc((size_t)bytes), from, (size_t)bytes);
        while (*end)
            end = &(*end)->next;
        *end = letter;
        pthread_cond_broadcast(&ring->news);
    }
    pthread_mutex_unlock(&ring->mutex);
    return sound;
}

static bool receive_message(void *link, enum ra_message message, int hop, int distance, void *into,
                            int64_t bytes)
{
    struct rank *self = link;
    pthread_mutex_lock(&self->ring->mutex);
    struct passage *in = &self->in[message];
    bool sound = !self->error[0];
    if (sound && in->under_way)
        broken(self, "hop %d: receives %s before those of hop %d were waited for", hop,
               names[message], in->hop);
    if (sound && bytes > 0) {
        *in = (struct passage){true,  message,   hop, rank_at(self, distance), into, bytes,
                               false, seconds(), 0};
        memset(into, 0xFF, (size_t)bytes); /* NaN, to whom reads too early */
    }
    pthread_mutex_unlock(&self->ring->mutex);
    return sound;
}

static bool poll_messages(void *link)
{
    struct rank *self = link;
    pthread_mutex_lock(&self->ring->mutex);
    bool sound = listen(self);
    self->polls += self->in[RA_KEYS].under_way;
    if (sound)
        take_letters(self);
    pthread_mutex_unlock(&self->ring->mutex);
    return sound;
}

/* Waits for news; false: not until the deadline. */
static bool wait_for_news(struct thread_ring *ring, double deadline)
{
    if (ring->timeout <= 0)
        return pthread_cond_wait(&ring->news, &ring->mutex) == 0;
    struct timespec until = {(time_t)deadline, (long)(1e9 * (deadline - (double)(time_t)deadline))};
    return pthread_cond_timedwait(&ring->news, &ring->mutex, &until) == 0;
}

static bool wait_for_messages(void *link, enum ra_message message)
{
    struct rank *self = link;
    struct passage *in = &self->in[message], *out = &self->out[message];
    double deadline = seconds() + self->ring->timeout;
    pthread_mutex_lock(&self->ring->mutex);
    while (!self->error[0] && (in->under_way || out->under_way)) {
        /* Look before every sleep: news that came before it wakes nobody. */
        take_letters(self);
        if (!listen(self) || !(in->under_way || out->under_way))
            break;
        const struct passage *due = in->under_way ? in : out;
        if (!wait_for_news(self->ring, deadline) && due->under_way && listen(self))
            snprintf(self->error, sizeof self->error,
                     "ring rank %d, hop %d: waited %.3g s for rank %d to %s %s", self->rank,
                     due->hop, self->ring->timeout, due->peer, due == in ? "send" : "take",
                     names[due->message]);
    }
    bool sound = !self->error[0];
    pthread_mutex_unlock(&self->ring->mutex);
    return sound;
}

static void fail(void *link, const char *reason)
{
    struct rank *self = link;
    struct thread_ring *ring = self->ring;
    pthread_mutex_lock(&ring->mutex);
    if (!self->error[0]) {
        snprintf(self->error, sizeof self->error, "%s", reason);
        for (int r = 0; r < ring->ranks; r++)
            if (r != self->rank && !ring->rank[r].trouble[0])
                memcpy(ring->rank[r].trouble, self->error, sizeof self->error);
        pthread_cond_broadcast(&ring->news);
    }
    pthread_mutex_unlock(&ring->mutex);
}

static const char *error_of(void *link)
{
    struct rank *self = link;
    return self->error;
}

static bool arrival(void *link, enum ra_message message, int *hop, double *start, double *end)
{
    struct rank *self = link;
    struct passage *in = &self->in[message];
    pthread_mutex_lock(&self->ring->mutex);
    bool arrived = in->arrived;
    in->arrived = false;
    *hop = in->hop;
    *start = in->started;
    *end = in->finished;
    pthread_mutex_unlock(&self->ring->mutex);
    return arrived;
}

static bool close_link(void *link)
{
    struct rank *self = link;
    pthread_mutex_lock(&self->ring->mutex);
    if (self->closed)
        broken(self, "closes its link twice");
    self->closed = true;
    for (int m = 0; m < RA_MESSAGES; m++)
        if (!self->error[0] && (self->in[m].under_way || self->out[m].under_way))
            broken(self, "closes its link while %s are under way", names[m]);

    /* After an error call off the letters that nobody has taken: their data are about to be
     * freed. */
    for (struct letter **at = &self->ring->letters; *at;)
        if ((*at)->from == self->rank && !(*at)->copy)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&self->ring->mutex);
    return true;
}

struct thread_ring *thread_ring_open(int ranks, double timeout, enum thread_delivery delivery)
{
    struct thread_ring *ring = calloc(1, sizeof *ring);
    *ring = (struct thread_ring){.ranks = ranks, .timeout = timeout, .delivery = delivery};
    pthread_mutex_init(&ring->mutex, NULL);

    /* A clock that nobody sets. */
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ring->news, &attributes);
    pthread_condattr_destroy(&attributes);

    ring->rank = calloc((size_t)ranks, sizeof *ring->rank);
    for (int r = 0; r < ranks; r++) {
        ring->rank[r].ring = ring;
        ring->rank[r].rank = r;
        ring->rank[r].sent = calloc((size_t)ranks, sizeof *ring->rank[r].sent);
    }
    return ring;
}

void thread_ring_close(struct thread_ring *ring)
{
    /* Letters may be left over only if something went wrong. */
    for (const struct letter *letter = ring->letters; letter; letter = letter->next)
        if (!ring->rank[letter->from].error[0] && !ring->rank[letter->to].error[0])
            broken(&ring->rank[letter->from], "sent %s that rank %d never took",
                   names[letter->message], letter->to);
    for (struct letter *letter; (letter = ring->letters);) {
        ring->letters = letter->next;
        free(letter->copy);
        free(letter);
    }
    for (int r = 0; r < ring->ranks; r++)
        free(ring->rank[r].sent);
    pthread_cond_destroy(&ring->news);
    pthread_mutex_destroy(&ring->mutex);
    free(ring->rank);
    free(ring);
}

struct ra_link thread_ring_link(struct thread_ring *ring, int rank)
{
    return (struct ra_link){.rank = rank,
                            .size = ring->ranks,
                            .self = &ring->rank[rank],
                            .send = send_message,
                            .receive = receive_message,
                            .poll = poll_messages,
                            .wait = wait_for_messages,
                            .fail = fail,
                            .error = error_of,
                            .arrival = arrival,
                            .close = close_link};
}

struct thread_traffic thread_ring_sent(struct thread_ring *ring, int rank, int hop)
{
    struct thread_traffic sent = ring->rank[rank].sent[hop];
    ring->rank[rank].sent[hop] = (struct thread_traffic){0, 0};
    return sent;
}

int64_t thread_ring_polls(struct thread_ring *ring, int rank)
{
    return ring->rank[rank].polls;
}

int thread_ring_closed(struct thread_ring *ring)
{
    int closed = 0;
    for (int r = 0; r < ring->ranks; r++)
        closed += ring->rank[r].closed;
    return closed;
}

struct thread {
    void (*body)(void *context, int rank);
    void *context;
    int rank;
};

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    thread->body(thread->context, thread->rank);
    return NULL;
}

void thread_ring_run(int ranks, void (*body)(void *context, int rank), void *context)
{
    pthread_t *handles = calloc((size_t)ranks, sizeof *handles);
    struct thread *threads = calloc((size_t)ranks, sizeof *threads);
    for (int r = 0; r < ranks; r++) {
        threads[r] = (struct thread){body, context, r};
        if (pthread_create(&handles[r], NULL, run_thread, &threads[r]) != 0) {
            fprintf(stderr, "thread_link: cannot create a thread\n");
            abort();
        }
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(handles[r], NULL);
    free(handles);
    free(threads);
}
