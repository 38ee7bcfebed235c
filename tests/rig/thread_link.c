/* thread_link: a ring whose ranks are threads of one process. See thread_link.h. */
#include "thread_link.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "ring_attention_threads.h"

struct thread_ring {
    struct checked_ring *checked;
    int ranks;
    double timeout;
    struct ra_link links[]; /* close is NULL: taken */
};

struct thread_ring *thread_ring_open(int ranks, double timeout, enum thread_delivery delivery)
{
    struct thread_ring *ring = malloc(sizeof *ring + (size_t)ranks * sizeof *ring->links);
    enum checked_delivery as = delivery == THREAD_EARLY ? CHECKED_EARLY : CHECKED_LATE;
    *ring = (struct thread_ring){checked_ring_open(ranks, as), ranks, timeout};
    if (ra_thread_links(ring->links, ranks, NULL) != RA_OK)
        abort();
    return ring;
}

struct ra_link thread_ring_link(struct thread_ring *ring, int rank)
{
    struct ra_link inside = ring->links[rank];
    ring->links[rank].close = NULL;
    inside.set_timeout(inside.self, ring->timeout);
    inside.set_timeout = NULL;
    inside.bytes = 0; /* the plans' memory is what tests count */
    return checked_ring_link(ring->checked, inside);
}

void thread_ring_set_timeout(struct thread_ring *ring, int rank, double seconds)
{
    ring->links[rank].set_timeout(ring->links[rank].self, seconds);
}

void thread_ring_close(struct thread_ring *ring)
{
    for (int r = 0; r < ring->ranks; r++)
        if (ring->links[r].close)
            ring->links[r].close(ring->links[r].self);
    checked_ring_close(ring->checked);
    free(ring);
}

void thread_ring_fail(struct thread_ring *ring, int rank, enum checked_call call, int64_t number)
{
    checked_ring_fail(ring->checked, rank, call, number);
}

bool thread_ring_failed(struct thread_ring *ring, int rank)
{
    return checked_ring_failed(ring->checked, rank);
}

struct checked_traffic thread_ring_sent(struct thread_ring *ring, int rank, int hop)
{
    return checked_ring_sent(ring->checked, rank, hop);
}

int64_t thread_ring_polls(struct thread_ring *ring, int rank)
{
    return checked_ring_polls(ring->checked, rank);
}

int thread_ring_closed(struct thread_ring *ring)
{
    return checked_ring_closed(ring->checked);
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
