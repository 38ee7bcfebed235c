/* ra_ring: the loop of the ring. See ra_ring.h.
 *
 * Chapter 03. New here: keys that are passed on while they are folded, and gradients that follow
 * them one step behind.
 */
#include "ra_ring.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_message.h"
#include "ra_status.h"

/* Seconds between two polls of the link. A poll of MPI may give the processor away, which costs
 * microseconds, and a tile may take less than one. */
#define POLL_EVERY 50e-6

int64_t ra_schedule_storage(int ranks)
{
    return 2 * (int64_t)ranks;
}

struct ra_schedule ra_schedule_round(int ranks, int hops, int *storage)
{
    struct ra_schedule schedule = {hops, storage, storage + ranks};
    for (int hop = 0; hop < hops; hop++)
        schedule.hop[hop] = hop;
    for (int origin = 0; origin < ranks; origin++)
        schedule.last[origin] = hops - 1;
    return schedule;
}

/* ---- What happens at a step. */

int ra_ring_slot(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

int ra_ring_rank_at(const struct ra_ring *ring, int rank, int distance)
{
    int P = ring->link->size;
    return ((rank + distance) % P + P) % P;
}

int ra_ring_origin(const struct ra_ring *ring, int rank, int step)
{
    return ra_ring_rank_at(ring, rank, -ring->schedule.hop[step]);
}

int64_t ra_ring_rows(const struct ra_ring *ring, int rank, int step)
{
    int origin = ra_ring_origin(ring, rank, step);
    return ring->schedule.hop[step] <= ring->schedule.last[origin] ? ring->rows[origin] : 0;
}

/* Do the keys of this step travel further? */
static bool travel_on(const struct ra_ring *ring, int rank, int step)
{
    return ring->schedule.hop[step] < ring->schedule.last[ra_ring_origin(ring, rank, step)];
}

/* Is there anything to send of the keys of this step? */
static bool has_keys(const struct ra_ring *ring, int rank, int step)
{
    return ring->key_bytes > 0 && ra_ring_rows(ring, rank, step) > 0;
}

bool ra_ring_receives(const struct ra_ring *ring, int rank, int step)
{
    return step > 0 && has_keys(ring, rank, step);
}

bool ra_ring_sends(const struct ra_ring *ring, int rank, int step)
{
    return has_keys(ring, rank, step) && travel_on(ring, rank, step);
}

bool ra_ring_sends_home(const struct ra_ring *ring, int rank, int step)
{
    return ra_ring_receives(ring, rank, step) && !travel_on(ring, rank, step);
}

int ra_ring_stride(const struct ra_ring *ring, int step)
{
    return ring->schedule.hop[step + 1] - ring->schedule.hop[step];
}

/* ---- Messages. */

/* Begins to send `bytes` bytes from the hop of this step to a rank at some distance. */
static void send(struct ra_ring *ring, enum ra_message message, int step, int distance,
                 const void *from, int64_t bytes)
{
    ring->messages_sent++;
    ring->bytes_sent += bytes;
    ring->link->send(ring->link->self, message, ring->schedule.hop[step], distance, from, bytes);
}

static void receive(struct ra_ring *ring, enum ra_message message, int hop, int distance,
                    void *into, int64_t bytes)
{
    ring->link->receive(ring->link->self, message, hop, distance, into, bytes);
}

/* Do the messages of the next step come from another rank than those before? */
static bool neighbour_changes(const struct ra_ring *ring, int step)
{
    return step + 1 < ring->schedule.count &&
           (step == 0 || ra_ring_stride(ring, step) != ra_ring_stride(ring, step - 1));
}

/* Begins to tell the rank at distance `to` which call this is, and to hear that from the one at
 * distance `from`. These messages are not counted. */
static void exchange_calls(struct ra_ring *ring, int hop, int to, int from)
{
    const struct ra_link *link = ring->link;
    receive(ring, RA_CALL, hop, from, &ring->heard, sizeof ring->heard);
    link->send(link->self, RA_CALL, hop, to, &ring->call, sizeof ring->call);
}

int ra_ring_name(const struct ra_ring *ring, int rank)
{
    return ring->stride > 0 ? ring->first + rank * ring->stride : rank;
}

/* Waits for that. Ranks in different calls would take each other's keys for those of their own:
 * then all fail. So no key of another call is folded or passed on, however many ranks it comes by:
 * each of them has made sure of the one before it. */
static bool same_call(struct ra_ring *ring, int from)
{
    static const char *const kinds[] = {"a forward", "a backward", "a scatter", "a gather"};
    const struct ra_call *own = &ring->call, *other = &ring->heard;
    const struct ra_link *link = ring->link;
    if (!link->wait(link->self, RA_CALL))
        return false;
    bool same_ring = own->ring == other->ring;
    bool together = own->number == other->number && own->kind == other->kind && same_ring;
    if (together && own->heads == other->heads && own->slices == other->slices)
        return true;
    int peer = ra_ring_name(ring, ra_ring_rank_at(ring, link->rank, from));
    int rank = ra_ring_name(ring, link->rank);
    char text[RA_ERROR_SIZE];
    if (together && own->slices != other->slices)
        ra_message_place(text, rank, -1,
                         "rank %d was given other slices, or another deal, than this rank: all "
                         "ranks give ra_plan_set_slices the same",
                         peer);
    else if (together)
        ra_message_place(text, rank, -1,
                         "rank %d has other sinks or slopes than this rank, in call %" PRId64
                         ", %s: all ranks give the same arrays.sink and arrays.slopes",
                         peer, own->number, kinds[own->kind]);
    else
        ra_message_place(text, rank, -1,
                         "rank %d is in its call %" PRId64 ", %s%s, this rank in its call %" PRId64
                         ", %s: all ranks make the same calls in the same order",
                         peer, other->number, kinds[other->kind & 3],
                         same_ring ? "" : " of another plan", own->number, kinds[own->kind]);
    link->fail(link->self, text);
    return false;
}

/* Begins to send the keys of this step to where they are needed next, and to receive the next
 * ones. */
static void pass_keys(struct ra_ring *ring, int step)
{
    int rank = ring->link->rank, next = step + 1;
    if (next == ring->schedule.count)
        return;
    int jump = ra_ring_stride(ring, step);
    if (neighbour_changes(ring, step))
        exchange_calls(ring, ring->schedule.hop[step], jump, -jump);
    if (ra_ring_receives(ring, rank, next))
        receive(ring, RA_KEYS, ring->schedule.hop[step], -jump, ring->keys[ra_ring_slot(next)],
                ra_ring_rows(ring, rank, next) * ring->key_bytes);
    if (ra_ring_sends(ring, rank, step))
        send(ring, RA_KEYS, step, jump, ring->keys[ra_ring_slot(step)],
             ra_ring_rows(ring, rank, step) * ring->key_bytes);
}

/* The same with the gradients of these keys. Where the keys go no further, they go straight
 * home. */
static void pass_gradients(struct ra_ring *ring, int step)
{
    int rank = ring->link->rank, next = step + 1, last = ring->schedule.last[rank];
    int hop = ring->schedule.hop[step];
    int64_t bytes = ra_ring_rows(ring, rank, step) * ring->gradient_bytes;
    const float *share = ring->gradients[ra_ring_slot(step)];

    /* This rank's own gradients left at step 0 and may come home at any time from step 1 on. They
     * are expected from then on, not at the end: the rank that sends them may wait for somebody to
     * take them before it goes on. */
    if (step == 1 && ra_ring_sends(ring, rank, 0))
        receive(ring, RA_GRADIENTS_RETURN, last, last, ring->gradients[0],
                ring->rows[rank] * ring->gradient_bytes);
    if (next < ring->schedule.count && ra_ring_receives(ring, rank, next))
        receive(ring, RA_GRADIENTS, hop, -ra_ring_stride(ring, step), ring->gradients[3],
                ra_ring_rows(ring, rank, next) * ring->gradient_bytes);
    if (ra_ring_sends(ring, rank, step))
        send(ring, RA_GRADIENTS, step, ra_ring_stride(ring, step), share, bytes);
    else if (ra_ring_sends_home(ring, rank, step))
        send(ring, RA_GRADIENTS_RETURN, step, -hop, share, bytes);
}

/* Tells the observer what happened at this hop. */
static void tell(const struct ra_ring *ring, enum ra_event_kind kind, bool backward, int hop,
                 double start, double end)
{
    if (ring->observe)
        ring->observe(ring->observer, &(struct ra_event){kind, backward, hop, start, end});
}

/* Waits for the messages of a kind, out and in. False: they will not come. */
static bool wait_for(struct ra_ring *ring, enum ra_message message, int step, bool backward)
{
    const struct ra_link *link = ring->link;
    int hop = ring->schedule.hop[step];
    double start = ra_seconds(), arrived;
    if (!link->wait)
        return true;
    bool asks = message == RA_KEYS && neighbour_changes(ring, step);
    if ((asks && !same_call(ring, -ra_ring_stride(ring, step))) || !link->wait(link->self, message))
        return false;
    tell(ring, RA_EVENT_WAIT, backward, hop, start, ra_seconds());
    if (link->arrival && link->arrival(link->self, message, &hop, &start, &arrived))
        tell(ring, message == RA_KEYS ? RA_EVENT_KEYS : RA_EVENT_GRADIENTS, backward, hop, start,
             arrived);
    return true;
}

void ra_ring_poll(void *its_ring)
{
    struct ra_ring *ring = its_ring;
    double now = ra_seconds();
    if (now < ring->next_poll || !ring->link->poll)
        return;
    ring->next_poll = now + POLL_EVERY;
    ring->link->poll(ring->link->self);
}

bool ra_ring_exchange(struct ra_ring *ring, const struct ra_exchange *exchange, bool first)
{
    const struct ra_link *link = ring->link;
    int hop = exchange->hop;
    double start = ra_seconds(), arrived;
    if (first) {
        exchange_calls(ring, hop, exchange->to, exchange->from);
        if (!same_call(ring, exchange->from))
            return false;
    }
    if (exchange->in_bytes > 0)
        receive(ring, exchange->message, hop, exchange->from, exchange->in, exchange->in_bytes);
    if (exchange->out_bytes > 0) {
        ring->messages_sent++;
        ring->bytes_sent += exchange->out_bytes;
        link->send(link->self, exchange->message, hop, exchange->to, exchange->out,
                   exchange->out_bytes);
    }
    if (!link->wait(link->self, exchange->message))
        return false;
    bool backward = ring->call.kind == RA_CALL_BACKWARD;
    tell(ring, RA_EVENT_WAIT, backward, hop, start, ra_seconds());
    if (link->arrival && link->arrival(link->self, exchange->message, &hop, &start, &arrived))
        tell(ring, exchange->message == RA_GRADIENTS ? RA_EVENT_GRADIENTS : RA_EVENT_KEYS, backward,
             hop, start, arrived);
    return true;
}

/* ---- The loop. */

/* Begins a call. Has no other rank failed since the last one? The next poll comes after the first
 * tile. */
bool ra_ring_begin(struct ra_ring *ring, enum ra_call_kind kind)
{
    ring->next_poll = 0;
    ring->call.number++;
    ring->call.kind = kind;
    if (ring->link->poll && !ring->link->poll(ring->link->self))
        return false;
    if (!ring->schedule_varies || ring->link->size == 1)
        return true;
    exchange_calls(ring, 0, 1, -1);
    return same_call(ring, -1);
}

bool ra_ring_agree(struct ra_ring *ring, enum ra_call_kind kind)
{
    bool agreed = ra_ring_begin(ring, kind);
    for (int step = 0; step < ring->schedule.count && agreed; step++) {
        if (!neighbour_changes(ring, step))
            continue;
        int jump = ra_ring_stride(ring, step);
        exchange_calls(ring, ring->schedule.hop[step], jump, -jump);
        agreed = same_call(ring, -jump);
    }
    return agreed;
}

void ra_ring_fold(struct ra_ring *ring, int step, bool backward)
{
    double start = ra_seconds();
    ring->fold(ring->context, step, backward);
    tell(ring, RA_EVENT_WORK, backward, ring->schedule.hop[step], start, ra_seconds());
}

bool ra_ring_forward(struct ra_ring *ring)
{
    if (!ra_ring_begin(ring, RA_CALL_FORWARD))
        return false;
    for (int step = 0; step < ring->schedule.count; step++) {
        pass_keys(ring, step);
        ra_ring_fold(ring, step, false);
        if (!wait_for(ring, RA_KEYS, step, false))
            return false;
    }
    return true;
}

/* Sets this rank's share of the gradients of this step's keys to 0, with nothing lost of it. */
static void clear_gradients(struct ra_ring *ring, int step)
{
    int64_t bytes = ra_ring_rows(ring, ring->link->rank, step) * ring->gradient_bytes;
    float *share = ring->gradients[ra_ring_slot(step)];
    if (share)
        memset(share, 0, (size_t)bytes);
    memset(ring->comp, 0, (size_t)bytes);
}

/* While this rank computed its share, the sum of the ranks before it arrived; at step 0 there are
 * none. Adds the two, which go on together, rounded once. */
static void add_gradients(struct ra_ring *ring, int step)
{
    float *share = ring->gradients[ra_ring_slot(step)], *arrived = ring->gradients[3];
    int64_t bytes = ra_ring_rows(ring, ring->link->rank, step) * ring->gradient_bytes;
    for (int64_t e = 0; step > 0 && e < bytes / (int64_t)sizeof(float); e++)
        share[e] = (float)((double)share[e] + ring->comp[e] + arrived[e]);
}

bool ra_ring_backward(struct ra_ring *ring)
{
    if (!ra_ring_begin(ring, RA_CALL_BACKWARD))
        return false;
    int last = ring->schedule.count - 1;
    for (int step = 0; step <= last; step++) {
        pass_keys(ring, step);
        clear_gradients(ring, step);
        ra_ring_fold(ring, step, true);
        if (!wait_for(ring, RA_GRADIENTS, step, true))
            return false;
        add_gradients(ring, step);
        pass_gradients(ring, step);
        if (!wait_for(ring, RA_KEYS, step, true))
            return false;
    }
    return wait_for(ring, RA_GRADIENTS, last, true) &&
           wait_for(ring, RA_GRADIENTS_RETURN, last, true);
}
