/* ra_double: the double ring. See ra_double.h.
 *
 * Chapter 12. New here: a ring whose fold is a ring.
 */
#include "ra_double.h"
#include <string.h>
#include "ra_math.h"

/* ---- The route. Rank r is rank r % I of host r / I. */

static int inner_of(const struct ra_plan *plan)
{
    return plan->config.inner;
}

/* Does somebody see keys of the rank at this distance to its left? */
static bool is_hop(const struct ra_plan *plan, int distance)
{
    const struct ra_schedule *needed = &plan->needed;
    int low = 0, high = needed->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (needed->hop[middle] < distance)
            low = middle + 1;
        else
            high = middle;
    }
    return low < needed->count && needed->hop[low] == distance;
}

/* Does this rank need the keys of that one? By the schedule of a ring: it is among its hops, and
 * keys travel so far. */
static bool needs(const struct ra_plan *plan, int rank, int origin)
{
    int P = plan->link.size, distance = (rank - origin + P) % P;
    return distance <= plan->needed.last[origin] && is_hop(plan, distance);
}

/* Is inner hop i a hop of outer turn o, on any host? If it goes past the end of the host the
 * distance between the two ranks is less by I. Hop 0 always is, as what arrives is there. */
static bool takes_hop(const struct ra_plan *plan, int o, int i)
{
    int P = plan->link.size, I = inner_of(plan);
    return i == 0 || is_hop(plan, (o * I + i) % P) || is_hop(plan, (o * I + i - I + P) % P);
}

static bool takes_turn(const struct ra_plan *plan, int o)
{
    bool taken = o == 0 || is_hop(plan, o * inner_of(plan));
    for (int i = 1; i < inner_of(plan) && !taken; i++)
        taken = takes_hop(plan, o, i);
    return taken;
}

/* Up to which inner hop of outer turn o do these keys travel? -1: that host needs none of them. */
static int last_hop(const struct ra_plan *plan, int o, int origin)
{
    int P = plan->link.size, I = inner_of(plan), last = I - 1;
    int host = (origin / I + o) % (P / I) * I;
    while (last >= 0 && !needs(plan, host + (origin + last) % I, origin))
        last--;
    return last;
}

/* Up to which outer turn? */
static int last_turn(const struct ra_plan *plan, int origin)
{
    int last = plan->link.size / inner_of(plan) - 1;
    while (last > 0 && last_hop(plan, last, origin) < 0)
        last--;
    return last;
}

/* ---- What two rings need. */

void ra_double_place(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                     struct ra_double *both, void *keys[3], float *gradients[4])
{
    const struct ra_ring *ring = &plan->ring;
    int I = inner_of(plan), sizes[2] = {plan->link.size / I, I};
    int64_t own = ra_plan_bound(plan, RA_KEY_SIDE, rank);
    int64_t most = ra_plan_most_bound(plan, RA_KEY_SIDE), backward = !plan->config.forward_only;
    struct ra_ring *rings[2] = {&both->outer, &both->inner};
    *both = (struct ra_double){0};
    for (int level = 0; level < 2; level++) {
        int size = sizes[level];
        both->rows[level] = ra_arena_take(arena, size * (int64_t)sizeof(int64_t));
        both->schedules[level] =
            ra_arena_take(arena, ra_schedule_storage(size) * (int64_t)sizeof(int));
        for (int i = level; i < 3; i++) {
            int64_t rows = i == 0 ? own : i < size ? most : 0;
            rings[level]->keys[i] = ra_arena_take(arena, rows * ring->key_bytes);
        }
        for (int i = level; i < 4; i++) {
            int64_t rows = i == 0 ? own : i < size || i == 3 ? most : 0;
            rings[level]->gradients[i] =
                ra_arena_take(arena, backward * rows * ring->gradient_bytes);
        }
    }
    memcpy(keys, both->outer.keys, sizeof both->outer.keys);
    memcpy(gradients, both->outer.gradients, sizeof both->outer.gradients);
}

bool ra_double_count(const struct ra_plan *plan, int rank, int distance, bool backward,
                     int64_t *messages, int64_t *bytes)
{
    const struct ra_ring *ring = &plan->ring;
    int P = plan->link.size, I = inner_of(plan), origin = (rank - distance + P) % P;
    int o = (rank / I - origin / I + P / I) % (P / I), i = (rank % I - origin % I + I) % I;
    int end = last_turn(plan, origin), last = (int)ra_max(last_hop(plan, o, origin), 0);
    int64_t rows = ring->key_bytes > 0 ? ring->rows[origin] : 0;
    bool comes = o <= end && i <= last && takes_turn(plan, o) && takes_hop(plan, o, i);

    /* On inside the host, or back to where they came in; and on to the next host, or home. */
    int64_t keys = (i < last) + (i == 0 && o < end);
    int64_t gradients = backward ? (i > 0 || last > 0) + (i == 0 && end > 0) : 0;
    *messages = comes && rows > 0 ? keys + gradients : 0;
    *bytes = comes ? rows * (keys * ring->key_bytes + gradients * ring->gradient_bytes) : 0;
    return comes;
}

/* ---- The links: the plan's own, where another rank is at another distance, and messages between
 * hosts are of other kinds than those inside. */

static enum ra_message between_hosts(enum ra_message message)
{
    return (enum ra_message)(RA_OUTER_KEYS + message - RA_KEYS);
}

/* How far is the rank at this distance in the ring of the host? */
static int inside(const struct ra_double *both, int distance)
{
    return ra_ring_rank_at(&both->inner, both->inner.link->rank, distance) - both->inner.link->rank;
}

static bool send_out(void *self, enum ra_message message, int hop, int distance, const void *from,
                     int64_t bytes)
{
    const struct ra_plan *plan = ((struct ra_double *)self)->plan;
    int I = inner_of(plan);
    return plan->link.send(plan->link.self, between_hosts(message), hop * I, distance * I, from,
                           bytes);
}

static bool receive_out(void *self, enum ra_message message, int hop, int distance, void *into,
                        int64_t bytes)
{
    const struct ra_plan *plan = ((struct ra_double *)self)->plan;
    int I = inner_of(plan);
    return plan->link.receive(plan->link.self, between_hosts(message), hop * I, distance * I, into,
                              bytes);
}

static bool send_in(void *self, enum ra_message message, int hop, int distance, const void *from,
                    int64_t bytes)
{
    const struct ra_double *both = self;
    const struct ra_link *link = &both->plan->link;
    return link->send(link->self, message, both->turn * inner_of(both->plan) + hop,
                      inside(both, distance), from, bytes);
}

static bool receive_in(void *self, enum ra_message message, int hop, int distance, void *into,
                       int64_t bytes)
{
    const struct ra_double *both = self;
    const struct ra_link *link = &both->plan->link;
    return link->receive(link->self, message, both->turn * inner_of(both->plan) + hop,
                         inside(both, distance), into, bytes);
}

static bool poll(void *self)
{
    const struct ra_link *link = &((struct ra_double *)self)->plan->link;
    return !link->poll || link->poll(link->self);
}

static bool wait_out(void *self, enum ra_message message)
{
    const struct ra_link *link = &((struct ra_double *)self)->plan->link;
    return link->wait(link->self, between_hosts(message));
}

static bool wait_in(void *self, enum ra_message message)
{
    const struct ra_link *link = &((struct ra_double *)self)->plan->link;
    return link->wait(link->self, message);
}

static void fail(void *self, const char *reason)
{
    const struct ra_link *link = &((struct ra_double *)self)->plan->link;
    link->fail(link->self, reason);
}

/* ra_ring counts hops in its own ring; an observer of the plan wants those of the route. */
static bool arrival_out(void *self, enum ra_message message, int *hop, double *start, double *end)
{
    const struct ra_double *both = self;
    const struct ra_link *link = &both->plan->link;
    bool arrived =
        link->arrival && link->arrival(link->self, between_hosts(message), hop, start, end);
    if (arrived)
        *hop /= inner_of(both->plan);
    return arrived;
}

static bool arrival_in(void *self, enum ra_message message, int *hop, double *start, double *end)
{
    const struct ra_double *both = self;
    const struct ra_link *link = &both->plan->link;
    bool arrived = link->arrival && link->arrival(link->self, message, hop, start, end);
    if (arrived)
        *hop %= inner_of(both->plan);
    return arrived;
}

/* ---- What the observer is told: hop o I + i. The work of a turn is told by its hops. */

static void observe_out(void *self, const struct ra_event *event)
{
    const struct ra_double *both = self;
    const struct ra_config *c = &both->plan->config;
    struct ra_event told = *event;
    told.hop *= c->inner;
    if (event->kind != RA_EVENT_WORK)
        c->observe(c->observer, &told);
}

static void observe_in(void *self, const struct ra_event *event)
{
    const struct ra_double *both = self;
    const struct ra_config *c = &both->plan->config;
    struct ra_event told = *event;
    told.hop += both->turn * c->inner;
    c->observe(c->observer, &told);
}

/* ---- The rings. */

/* Folds the keys of an inner hop, as the plan does those of a hop of a ring of all ranks. */
static void fold_hop(void *self, int step, bool backward)
{
    struct ra_double *both = self;
    struct ra_plan *plan = both->plan;
    int P = plan->link.size, I = inner_of(plan), rank = plan->link.rank, slot = ra_ring_slot(step);
    int host = ra_ring_rank_at(&both->outer, both->outer.link->rank, -both->turn);
    int origin = host * I + ra_ring_origin(&both->inner, rank % I, step);
    both->keys = both->inner.keys[slot];
    both->gradients = both->inner.gradients[slot];
    if (ra_ring_rows(&both->inner, rank % I, step) > 0)
        plan->ring.fold(plan, (rank - origin + P) % P, backward);
}

/* Folds the keys of an outer turn: they go round in the host, and their gradients come back. */
static void fold_turn(void *self, int step, bool backward)
{
    struct ra_double *both = self;
    struct ra_plan *plan = both->plan;
    struct ra_ring *inner = &both->inner, *outer = &both->outer;
    struct ra_schedule *schedule = &inner->schedule;
    int I = inner_of(plan), slot = ra_ring_slot(step), turn = outer->schedule.hop[step];
    int host = ra_ring_rank_at(outer, outer->link->rank, -turn);
    *schedule = ra_schedule_round(I, 1, both->schedules[1]);
    for (int i = 1; i < I; i++)
        if (takes_hop(plan, turn, i))
            schedule->hop[schedule->count++] = i;
    for (int i = 0; i < I; i++) {
        int origin = host * I + i, last = last_hop(plan, turn, origin);
        both->rows[1][i] = last_turn(plan, origin) >= turn ? plan->ring.rows[origin] : 0;
        schedule->last[i] = last > 0 ? last : 0;
    }
    both->turn = turn;
    inner->keys[0] = outer->keys[slot];
    inner->gradients[0] = outer->gradients[slot];
    inner->call = outer->call;
    inner->call.number--; /* the ring counts this call itself */
    inner->schedule_varies = plan->ring.schedule_varies && step == 0;

    /* If it fails so has the link, which the outer ring notices when it waits. */
    (void)(backward ? ra_ring_backward : ra_ring_forward)(inner);
    if (backward) /* the sum of the host is rounded */
        memset(outer->comp, 0,
               (size_t)(ra_ring_rows(outer, outer->link->rank, step) * outer->gradient_bytes));
}

/* Makes both rings ready for a call. */
static void begin(struct ra_double *both)
{
    struct ra_plan *plan = both->plan;
    const struct ra_ring *ring = &plan->ring;
    int P = plan->link.size, I = inner_of(plan), K = P / I, rank = plan->link.rank;
    both->links[0] = (struct ra_link){.rank = rank / I,
                                      .size = K,
                                      .self = both,
                                      .send = send_out,
                                      .receive = receive_out,
                                      .poll = poll,
                                      .wait = wait_out,
                                      .fail = fail,
                                      .arrival = arrival_out};
    both->links[1] = (struct ra_link){.rank = rank % I,
                                      .size = I,
                                      .self = both,
                                      .send = send_in,
                                      .receive = receive_in,
                                      .poll = poll,
                                      .wait = wait_in,
                                      .fail = fail,
                                      .arrival = arrival_in};
    struct ra_ring *rings[2] = {&both->outer, &both->inner};
    for (int level = 0; level < 2; level++) {
        struct ra_ring *one = rings[level];
        one->link = &both->links[level];
        one->rows = both->rows[level];
        one->comp = ring->comp;
        one->key_bytes = ring->key_bytes;
        one->gradient_bytes = ring->gradient_bytes;
        one->fold = level ? fold_hop : fold_turn;
        one->context = one->observer = both;
        one->observe = !ring->observe ? NULL : level ? observe_in : observe_out;
        one->first = level ? rank / I * I : rank % I;
        one->stride = level ? 1 : I;
    }
    both->outer.call = ring->call;
    both->outer.schedule_varies = ring->schedule_varies;
    both->turn = 0;

    struct ra_schedule *schedule = &both->outer.schedule;
    *schedule = ra_schedule_round(K, 1, both->schedules[0]);
    for (int o = 1; o < K; o++)
        if (takes_turn(plan, o))
            schedule->hop[schedule->count++] = o;
    for (int host = 0; host < K; host++) {
        both->rows[0][host] = ring->rows[host * I + rank % I];
        schedule->last[host] = last_turn(plan, host * I + rank % I);
    }
}

bool ra_double_forward(struct ra_double *both)
{
    begin(both);
    bool done = ra_ring_forward(&both->outer);
    both->plan->ring.call = both->outer.call;
    return done;
}

bool ra_double_backward(struct ra_double *both)
{
    begin(both);
    bool done = ra_ring_backward(&both->outer);
    both->plan->ring.call = both->outer.call;
    return done;
}
