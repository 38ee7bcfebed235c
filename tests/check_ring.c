/* check_ring: the loop of the ring, and what its messages hold; without MPI.
 *
 * The reference here moves every rank's keys round the ring, one rank at a time, and notes where
 * they are at each step. What the ring says of a step is held against that, for schedules of all
 * kinds; and so is what a fold finds when the loop itself runs, on ranks that are threads.
 */
#include "ra_clock.h"
#include "ra_message.h"
#include "ra_ring.h"
#include "ring_attention_threads.h"
#include "suite.h"
#include "thread_link.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A macro of libcheck's, and a function of a link. */
#undef fail

enum { MOST_RANKS = 8, NOWHERE = -1 };

/* ---- Rings, and where their keys are. ---- */

/* Who has how many rows, how far they travel, and which rank has them at each step. */
struct shape {
    int ranks, storage[2 * MOST_RANKS];
    struct ra_schedule schedule;
    int64_t rows[MOST_RANKS];
    int at[MOST_RANKS][MOST_RANKS]; /* [step][origin]; NOWHERE: nobody needs them any more */
};

static uint32_t seed = 1;

/* A random number, 0..below-1. */
static int draw(int below)
{
    seed = seed * 1664525 + 1013904223;
    return (int)((seed >> 8) % (uint32_t)below);
}

/* The rank at this distance from another, one rank at a time. */
static int walk(int rank, int distance, int ranks)
{
    for (; distance > 0; distance--)
        rank = rank == ranks - 1 ? 0 : rank + 1;
    for (; distance < 0; distance++)
        rank = rank == 0 ? ranks - 1 : rank - 1;
    return rank;
}

/* Goes round with the keys of this origin. */
static void travel(struct shape *shape, int origin)
{
    const struct ra_schedule *schedule = &shape->schedule;
    int at = origin;
    for (int step = 0; step < schedule->count; step++) {
        if (step > 0)
            at = walk(at, schedule->hop[step] - schedule->hop[step - 1], shape->ranks);
        shape->at[step][origin] = schedule->hop[step] <= schedule->last[origin] ? at : NOWHERE;
    }
}

/* Number 0: keys go all the way round. 1: they stay at home. The others: home is always in the
 * schedule, other hops by chance; each rank's keys go as far as some hop that is in it. Some ranks
 * have no rows. */
static void make_shape(struct shape *shape, int ranks, int number)
{
    struct ra_schedule *schedule = &shape->schedule;
    shape->ranks = ranks;
    *schedule = ra_schedule_round(ranks, number == 1 ? 1 : ranks, shape->storage);
    if (number > 1) {
        schedule->count = 1;
        for (int hop = 1; hop < ranks; hop++)
            if (draw(3) > 0)
                schedule->hop[schedule->count++] = hop;
        for (int origin = 0; origin < ranks; origin++)
            schedule->last[origin] = schedule->hop[draw(schedule->count)];
    }
    for (int origin = 0; origin < ranks; origin++) {
        shape->rows[origin] = number < 2 || draw(4) > 0 ? 1 + draw(5) : 0;
        travel(shape, origin);
    }
}

/* What a rank does at a step. */
struct part {
    int origin;   /* whose keys are due */
    int64_t rows; /* of them that have come */
    bool receives, sends, sends_home;
};

static struct part part_of(const struct shape *shape, int64_t key_bytes, int rank, int step)
{
    struct part part = {.origin = walk(rank, -shape->schedule.hop[step], shape->ranks)};
    if (shape->at[step][part.origin] != rank)
        return part;
    part.rows = shape->rows[part.origin];
    bool travels = part.rows > 0 && key_bytes > 0;
    bool goes_on = step + 1 < shape->schedule.count && shape->at[step + 1][part.origin] != NOWHERE;
    part.receives = travels && step > 0;
    part.sends = travels && goes_on;
    part.sends_home = travels && step > 0 && !goes_on;
    return part;
}

/* ---- The questions of a step. ---- */

static void judge_step(const struct shape *shape, const struct ra_ring *ring, int rank, int step)
{
    struct part part = part_of(shape, ring->key_bytes, rank, step);
    ck_assert_int_eq(ra_ring_origin(ring, rank, step), part.origin);
    ck_assert_int_eq(ra_ring_rows(ring, rank, step), part.rows);
    ck_assert_int_eq(ra_ring_receives(ring, rank, step), part.receives);
    ck_assert_int_eq(ra_ring_sends(ring, rank, step), part.sends);
    ck_assert_int_eq(ra_ring_sends_home(ring, rank, step), part.sends_home);
    if (step + 1 < shape->schedule.count)
        ck_assert_int_eq(walk(rank, ra_ring_stride(ring, step), shape->ranks),
                         walk(part.origin, shape->schedule.hop[step + 1], shape->ranks));
}

/* Whatever rank the link is of: all can say it of all. */
TESTS(steps, 1, MOST_RANKS + 1)
{
    for (int number = 0; number < 300; number++) {
        struct shape shape;
        make_shape(&shape, _i, number);
        struct ra_link link = {.rank = draw(_i), .size = _i};
        struct ra_ring ring = {.link = &link,
                               .schedule = shape.schedule,
                               .rows = shape.rows,
                               .key_bytes = number % 5 == 4 ? 0 : 7};
        for (int rank = 0; rank < _i; rank++) {
            for (int step = 0; step < shape.schedule.count; step++)
                judge_step(&shape, &ring, rank, step);
            for (int distance = -3 * _i; distance <= 3 * _i; distance++)
                ck_assert_int_eq(ra_ring_rank_at(&ring, rank, distance), walk(rank, distance, _i));
        }
    }
}

/* This rank's own keys stay in place 0; the next visitors never arrive on top of these. */
TEST(slots)
{
    ck_assert_int_eq(ra_ring_slot(0), 0);
    for (int step = 1; step < 20; step++) {
        ck_assert(ra_ring_slot(step) == 1 || ra_ring_slot(step) == 2);
        ck_assert_int_ne(ra_ring_slot(step), ra_ring_slot(step + 1));
    }
    ck_assert_int_eq(ra_ring_slot(1), 1); /* a ring of two steps has no third place */
}

/* ---- The loop, on threads. ---- */

enum { MOST_EVENTS = 6 * MOST_RANKS, FLOATS = 3 };

/* What all ranks of a test share, and each rank's own. */
static struct {
    struct shape shape;
    struct thread_ring *threads;
    bool arrivals; /* the link tells of them */
} world;

static struct rank {
    struct ra_link link;
    struct ra_ring ring;
    int call, steps;
    struct ra_event events[MOST_EVENTS];
    int event_count;
    char wrong[200]; /* the first thing; libcheck's assertions are for one thread */
} ranks[MOST_RANKS];

__attribute__((format(printf, 3, 4))) static void expect(struct rank *self, bool so,
                                                         const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!so && !self->wrong[0])
        vsnprintf(self->wrong, sizeof self->wrong, format, arguments);
    va_end(arguments);
}

/* Byte i of the keys of a rank at a call. */
static unsigned char key_byte(int origin, int call, int64_t i)
{
    return (unsigned char)(31 * origin + 7 * call + 13 * i);
}

/* Number e of a rank's share of gradients. In a sum of shares every rank can be told from every
 * other, and how often it is in it; all sums are exact. */
static float share_of(int rank, int call, int64_t e)
{
    return (float)(((int64_t)1 << 2 * rank) * (1 + (e + call) % 3));
}

/* Are these the right keys, and is this rank's share for them 0, with nothing lost? Then adds the
 * share, of visitors a part as if it had been lost. */
static void fold(void *context, int step, bool backward)
{
    struct rank *self = context;
    const struct ra_ring *ring = &self->ring;
    int rank = self->link.rank, slot = ra_ring_slot(step);
    struct part part = part_of(&world.shape, ring->key_bytes, rank, step);
    expect(self, step == self->steps++, "step %d", step);
    const unsigned char *keys = ring->keys[slot];
    for (int64_t i = 0; i < part.rows * ring->key_bytes; i++)
        expect(self, keys[i] == key_byte(part.origin, self->call, i),
               "call %d, step %d: byte %" PRId64 " is not of rank %d", self->call, step, i,
               part.origin);
    for (int64_t e = 0; backward && e < part.rows * ring->gradient_bytes / 4; e++) {
        float comp = step > 0 ? 0.5f : 0;
        expect(self, ring->gradients[slot][e] == 0 && ring->comp[e] == 0, "step %d: not cleared",
               step);
        ring->gradients[slot][e] += share_of(rank, self->call, e) - comp;
        ring->comp[e] += comp;
        ra_ring_poll(&self->ring);
    }
}

static void observe(void *observer, const struct ra_event *event)
{
    struct rank *self = observer;
    expect(self, self->event_count < MOST_EVENTS, "too many events");
    if (self->event_count < MOST_EVENTS)
        self->events[self->event_count++] = *event;
}

/* The next event must be this one. What is told of messages is told if the link knows it. */
static void next_event(struct rank *self, int *at, enum ra_event_kind kind, bool backward, int hop)
{
    bool arrival = kind == RA_EVENT_KEYS || kind == RA_EVENT_GRADIENTS;
    if (arrival && !world.arrivals)
        return;
    const struct ra_event *event = &self->events[*at];
    expect(self,
           *at < self->event_count && event->kind == kind && event->backward == backward &&
               event->hop == hop && event->start <= event->end,
           "event %d of %d is of kind %d, hop %d; not %d, hop %d", *at, self->event_count,
           event->kind, event->hop, kind, hop);
    expect(self, *at == 0 || arrival || self->events[*at - 1].end <= event->end, "event %d", *at);
    ++*at;
}

/* Work and waits in their order, each wait before what it waited for. */
static void judge_events(struct rank *self, bool backward)
{
    const struct shape *shape = &world.shape;
    const int *hop = shape->schedule.hop;
    int rank = self->link.rank, at = 0, last = shape->schedule.count - 1;
    int64_t bytes = self->ring.key_bytes;
    for (int step = 0; step <= last; step++) {
        next_event(self, &at, RA_EVENT_WORK, backward, hop[step]);
        if (backward)
            next_event(self, &at, RA_EVENT_WAIT, true, hop[step]);
        if (backward && part_of(shape, bytes, rank, step).receives)
            next_event(self, &at, RA_EVENT_GRADIENTS, true, hop[step - 1]);
        next_event(self, &at, RA_EVENT_WAIT, backward, hop[step]);
        if (step < last && part_of(shape, bytes, rank, step + 1).receives)
            next_event(self, &at, RA_EVENT_KEYS, backward, hop[step]);
    }
    if (backward) {
        next_event(self, &at, RA_EVENT_WAIT, true, hop[last]);
        next_event(self, &at, RA_EVENT_WAIT, true, hop[last]);
        if (part_of(shape, bytes, rank, 0).sends)
            next_event(self, &at, RA_EVENT_GRADIENTS, true, shape->schedule.last[rank]);
    }
    expect(self, at == self->event_count, "%d events instead of %d", self->event_count, at);
}

/* What was sent at each hop, as the link saw it, and what the ring has counted since the call
 * before. */
static void judge_traffic(struct rank *self, bool backward)
{
    struct ra_ring *ring = &self->ring;
    int64_t messages = 0, bytes = 0;
    for (int step = 0; step < world.shape.schedule.count; step++) {
        struct part part = part_of(&world.shape, ring->key_bytes, self->link.rank, step);
        struct thread_traffic sent =
            thread_ring_sent(world.threads, self->link.rank, world.shape.schedule.hop[step]);
        bool gradients = backward && (part.sends || part.sends_home);
        int64_t sizes = part.sends * ring->key_bytes + gradients * ring->gradient_bytes;
        expect(self, sent.messages == part.sends + gradients && sent.bytes == part.rows * sizes,
               "step %d: %" PRId64 " messages, %" PRId64 " bytes", step, sent.messages, sent.bytes);
        messages += sent.messages;
        bytes += sent.bytes;
    }
    expect(self, ring->messages_sent == messages && ring->bytes_sent == bytes,
           "counted %" PRId64 " messages, %" PRId64 " bytes", ring->messages_sent,
           ring->bytes_sent);
    ring->messages_sent = ring->bytes_sent = 0;
}

/* This rank's gradients are home: the shares of all ranks that had its keys, each once. */
static void judge_gradients(struct rank *self)
{
    const struct shape *shape = &world.shape;
    int rank = self->link.rank;
    for (int64_t e = 0; e < shape->rows[rank] * self->ring.gradient_bytes / 4; e++) {
        float sum = 0;
        for (int step = 0; step < shape->schedule.count; step++)
            if (shape->at[step][rank] != NOWHERE)
                sum += share_of(shape->at[step][rank], self->call, e);
        expect(self, self->ring.gradients[0][e] == sum,
               "call %d: gradient %" PRId64 " is %g, not %g", self->call, e,
               self->ring.gradients[0][e], sum);
    }
}

/* Memory for just as many rows as may come, and no place that is not needed. */
static void take_memory(struct ra_ring *ring)
{
    const struct shape *shape = &world.shape;
    int64_t most = 0;
    for (int r = 0; r < shape->ranks; r++)
        most = shape->rows[r] > most ? shape->rows[r] : most;
    for (int i = 0; i < 4; i++) {
        int64_t rows = i == 0 ? shape->rows[ring->link->rank] : most;
        bool needed = i == 3 ? shape->schedule.count > 1 : i < shape->schedule.count;
        if (needed && i < 3)
            ring->keys[i] = malloc((size_t)(rows * ring->key_bytes) + 1);
        if (needed)
            ring->gradients[i] = malloc((size_t)(rows * ring->gradient_bytes) + 1);
    }
    ring->comp = malloc((size_t)(most * ring->gradient_bytes) + 1);
}

/* One rank's thread: forward and backward, several times. */
static void run_rank(void *key_bytes, int rank)
{
    static const bool backward[] = {false, true, true, false, false, true};
    struct rank *self = &ranks[rank];
    struct ra_ring *ring = &self->ring;
    *self = (struct rank){.link = thread_ring_link(world.threads, rank)};
    *ring = (struct ra_ring){.link = &self->link,
                             .schedule = world.shape.schedule,
                             .rows = world.shape.rows,
                             .key_bytes = *(int64_t *)key_bytes,
                             .gradient_bytes = *(int64_t *)key_bytes ? 4 * FLOATS : 0,
                             .fold = fold,
                             .context = self,
                             .observe = observe,
                             .observer = self};
    take_memory(ring);
    for (int call = 0; call < 6; call++) {
        self->call = call;
        self->steps = self->event_count = 0;
        for (int64_t i = 0; i < ring->rows[rank] * ring->key_bytes; i++)
            ((unsigned char *)ring->keys[0])[i] = key_byte(rank, call, i);
        bool good = (backward[call] ? ra_ring_backward : ra_ring_forward)(ring);
        expect(self, good, "call %d: %s", call, self->link.error(self->link.self));
        expect(self, self->steps == ring->schedule.count, "folded %d steps", self->steps);
        judge_events(self, backward[call]);
        judge_traffic(self, backward[call]);
        if (backward[call])
            judge_gradients(self);
    }
    self->link.close(self->link.self);
    for (int i = 0; i < 4; i++) {
        free(i < 3 ? ring->keys[i] : NULL);
        free(ring->gradients[i]);
    }
    free(ring->comp);
}

TESTS(loop, 1, 7)
{
    for (int number = 0; number < 30; number++) {
        int64_t key_bytes = number % 6 == 5 ? 0 : 5;
        world.arrivals = number / 2 % 2;
        make_shape(&world.shape, _i, number);
        world.threads = thread_ring_open(_i, 6, world.arrivals ? THREAD_LATE : THREAD_EARLY);
        thread_ring_run(_i, run_rank, &key_bytes);
        for (int rank = 0; rank < _i; rank++)
            ck_assert_msg(!ranks[rank].wrong[0], "ring %d, rank %d of %d: %s", number, rank, _i,
                          ranks[rank].wrong);
        thread_ring_close(world.threads);
    }
}

/* ---- Ranks in different calls. ---- */

/* A forward, a backward, and so on, in rings whose keys go round; in which rank 0 gets no keys, as
 * under a causal mask; and whose messages skip ranks. */
enum { CALLS = 4, CALL_RANKS = 5 };
static const struct {
    int count, hop[CALL_RANKS], last[CALL_RANKS];
} call_rings[] = {
    {5, {0, 1, 2, 3, 4}, {4, 4, 4, 4, 4}},
    {5, {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}},
    {3, {0, 1, 4}, {4, 4, 4, 4, 4}},
    {2, {0, 2}, {2, 2, 2, 2, 2}},
};

/* Rank `victim` leaves out one of the calls, or makes a gather instead. */
static struct {
    int ring, victim, missing;
    bool instead;
} mixed;

/* Are these keys of the call that this rank is in? They hold its number in the list of all. */
static void fold_of_call(void *context, int step, bool backward)
{
    struct rank *self = context;
    (void)backward;
    if (ra_ring_rows(&self->ring, self->link.rank, step) > 0)
        expect(self, *(int *)self->ring.keys[ra_ring_slot(step)] == self->call,
               "call %d, step %d: keys of call %d", self->call, step,
               *(int *)self->ring.keys[ra_ring_slot(step)]);
}

static void make_calls(void *context, int rank)
{
    static const int64_t rows[CALL_RANKS] = {1, 1, 1, 1, 1};
    struct rank *self = &ranks[rank];
    struct ra_ring *ring = &self->ring;
    int hop[CALL_RANKS], last[CALL_RANKS], keys[3] = {0};
    float memory[5] = {0};
    (void)context;
    memcpy(hop, call_rings[mixed.ring].hop, sizeof hop);
    memcpy(last, call_rings[mixed.ring].last, sizeof last);
    *self = (struct rank){.link = thread_ring_link(world.threads, rank)};
    *ring = (struct ra_ring){.link = &self->link,
                             .schedule = {call_rings[mixed.ring].count, hop, last},
                             .rows = rows,
                             .keys = {&keys[0], &keys[1], &keys[2]},
                             .gradients = {&memory[0], &memory[1], &memory[2], &memory[3]},
                             .comp = &memory[4],
                             .key_bytes = 4,
                             .gradient_bytes = 4,
                             .fold = fold_of_call,
                             .context = self};
    bool good = true;
    for (self->call = 0; self->call < CALLS && good; self->call++) {
        bool wrong = rank == mixed.victim && self->call == mixed.missing;
        keys[0] = self->call;
        if (wrong && mixed.instead)
            good = ra_ring_agree(ring, RA_CALL_GATHER);
        else if (!wrong)
            good = (self->call % 2 ? ra_ring_backward : ra_ring_forward)(ring);
    }

    /* All hear of it, this rank in the call after at the latest; who has left out the last call has
     * none. */
    bool last_missing = rank == mixed.victim && mixed.missing == CALLS - 1 && !mixed.instead;
    good = good && !last_missing && self->link.poll(self->link.self);
    for (double began = ra_seconds(); good && ra_seconds() - began < 5;)
        good = self->link.poll(self->link.self);
    const char *error = self->link.error(self->link.self);
    expect(self, !good, "no error");
    expect(self,
           last_missing || strstr(error, ": all ranks make the same calls in the same order") ||
               strstr(error, "has closed its link and did not "),
           "%s", error);
    self->link.close(self->link.self);
}

TESTS(calls_mixed, 0, 4)
{
    mixed.ring = _i;
    for (int at = 0; at < 2 * CALLS * CALL_RANKS; at++) {
        mixed.victim = at % CALL_RANKS;
        mixed.missing = at / CALL_RANKS % CALLS;
        mixed.instead = at >= CALLS * CALL_RANKS;
        world.threads = thread_ring_open(CALL_RANKS, 20, THREAD_LATE);
        double began = ra_seconds();
        thread_ring_run(CALL_RANKS, make_calls, NULL);
        for (int rank = 0; rank < CALL_RANKS; rank++)
            ck_assert_msg(!ranks[rank].wrong[0], "rank %d, without call %d of rank %d: %s", rank,
                          mixed.missing, mixed.victim, ranks[rank].wrong);
        ck_assert(ra_seconds() - began < 10);
        thread_ring_close(world.threads);
    }
}

static void *take_call(void *link)
{
    const struct ra_link *other = link;
    other->wait(other->self, RA_CALL);
    return NULL;
}

/* What they are told. */
TEST(calls_named)
{
    struct ra_link links[2];
    ck_assert_int_eq(ra_thread_links(links, 2, NULL), RA_OK);
    struct ra_ring ring = {.link = &links[0], .call = {.number = 4, .kind = RA_CALL_BACKWARD}};
    int hops[] = {0, 1}, last[] = {1, 1};
    struct ra_call other = {.number = 4, .kind = RA_CALL_SCATTER}, heard;
    ring.schedule = (struct ra_schedule){2, hops, last};
    ck_assert(links[1].receive(links[1].self, RA_CALL, 0, -1, &heard, sizeof heard));
    ck_assert(links[1].send(links[1].self, RA_CALL, 0, 1, &other, sizeof other));
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, take_call, &links[1]), 0);
    ck_assert(!ra_ring_agree(&ring, RA_CALL_FORWARD));
    pthread_join(thread, NULL);
    ck_assert_str_eq(links[0].error(links[0].self),
                     "ring rank 0: rank 1 is in its call 4, a scatter, this rank in its call 5, a "
                     "forward: all ranks make the same calls in the same order");
    ck_assert(heard.number == 5 && heard.kind == RA_CALL_FORWARD);
    ck_assert(links[0].close(links[0].self) && links[1].close(links[1].self));
}

/* ---- A link that does nothing, and fails at some call. ---- */

static struct {
    int calls, polls, folds;
    int fails_at; /* this call and all after it; 0: none */
    int folds_then;
    bool told;       /* a wait has said so */
    int calls_after; /* that */
    void *heard;     /* where another rank's call is to be written */
    int heard_of;    /* at which distances to the left, a digit for each */
} stub;

static bool stub_call(void)
{
    stub.calls_after += stub.told;
    if (++stub.calls == stub.fails_at)
        stub.folds_then = stub.folds;
    return stub.fails_at == 0 || stub.calls < stub.fails_at;
}

static bool stub_receive(void *self, enum ra_message message, int hop, int distance, void *into,
                         int64_t bytes)
{
    (void)self, (void)hop, (void)bytes;
    if (message == RA_CALL) {
        stub.heard = into;
        stub.heard_of = 10 * stub.heard_of - distance;
    }
    return stub_call();
}

/* Every other rank is in the call that this one is in. */
static bool stub_send(void *self, enum ra_message message, int hop, int distance, const void *from,
                      int64_t bytes)
{
    (void)self, (void)hop, (void)distance;
    if (message == RA_CALL)
        memcpy(stub.heard, from, (size_t)bytes);
    return stub_call();
}

static bool stub_poll(void *self)
{
    (void)self;
    stub.polls++;
    return stub_call();
}

static bool stub_wait(void *self, enum ra_message message)
{
    (void)self, (void)message;
    bool good = stub_call();
    stub.told = stub.told || !good;
    return good;
}

static void stub_fold(void *context, int step, bool backward)
{
    (void)context, (void)step, (void)backward;
    stub.folds++;
}

static const struct ra_link stub_link = {.rank = 1,
                                         .size = 3,
                                         .send = stub_send,
                                         .receive = stub_receive,
                                         .poll = stub_poll,
                                         .wait = stub_wait};

/* A ring of ranks with one row each, of one float, over this link. Nobody observes. */
static struct ra_ring small_ring(const struct ra_link *link, int hops,
                                 void (*its_fold)(void *context, int step, bool backward))
{
    static float memory[8];
    static int storage[2 * MOST_RANKS];
    static const int64_t rows[] = {1, 1, 1};
    memset(&stub, 0, sizeof stub);
    return (struct ra_ring){
        .link = link,
        .schedule = ra_schedule_round(link->size, hops, storage),
        .rows = rows,
        .keys = {&memory[0], &memory[1], &memory[2]},
        .gradients = {&memory[3], &memory[4], &memory[5], &memory[6]},
        .comp = &memory[7],
        .key_bytes = 4,
        .gradient_bytes = 4,
        .fold = its_fold,
    };
}

/* Whichever call of the link fails, the ring notices before it uses what has not come: nothing more
 * is folded than the keys that are here already, and after a wait in vain the link is left
 * alone. */
TESTS(failing_link, 0, 2)
{
    bool (*const call)(struct ra_ring *) = _i ? ra_ring_backward : ra_ring_forward;
    struct ra_ring ring = small_ring(&stub_link, 3, stub_fold);
    ck_assert(call(&ring));
    ck_assert_int_eq(stub.folds, 3);

    /* A poll, the call in and out, and a wait for it, 2 messages of keys in and 2 out, 3 waits;
     * backward 3 of gradients in and 3 out, and 5 waits more. */
    int calls = stub.calls;
    ck_assert_int_eq(calls, _i ? 22 : 11);
    for (int n = 1; n <= calls; n++) {
        ring = small_ring(&stub_link, 3, stub_fold);
        stub.fails_at = n;
        ck_assert_msg(!call(&ring), "call %d of %d failed, and the ring went on", n, calls);
        ck_assert_int_le(stub.folds, n == 1 ? 0 : stub.folds_then + 1);
        ck_assert_int_eq(stub.calls_after, 0);

        /* The next call does not even begin. */
        stub.folds = 0;
        ck_assert(!call(&ring));
        ck_assert_int_eq(stub.folds, 0);
    }
}

/* Every rank whose messages come directly is asked, once. */
TEST(each_sender_asked)
{
    struct ra_link link = stub_link;
    link.size = 7;
    int hops[] = {0, 1, 2, 5, 6}, last[7] = {0};
    static const int64_t rows[7] = {0};
    struct ra_ring ring = small_ring(&link, 2, stub_fold);
    ring.schedule = (struct ra_schedule){5, hops, last};
    ring.rows = rows;
    ck_assert(ra_ring_forward(&ring));
    ck_assert_int_eq(stub.heard_of, 131);
    ring.schedule.count = 1;
    ck_assert(ra_ring_backward(&ring) && ra_ring_agree(&ring, RA_CALL_SCATTER));
    ck_assert_int_eq(stub.heard_of, 131);
    ck_assert_int_eq(ring.call.number, 3);
}

/* Another rank has failed since the last call. */
TEST(other_rank_has_failed)
{
    struct ra_link links[2];
    ck_assert_int_eq(ra_thread_links(links, 2, NULL), RA_OK);
    struct ra_ring ring = small_ring(&links[0], 2, stub_fold);
    links[1].fail(links[1].self, "over");
    ck_assert(!ra_ring_forward(&ring) && !ra_ring_backward(&ring));
    ck_assert_int_eq(stub.folds, 0);
    ck_assert_str_eq(links[0].error(links[0].self), "over");
    ck_assert(links[0].close(links[0].self) && links[1].close(links[1].self));
}

/* ---- Polls. ---- */

/* A call begins with a poll, and the first tile is followed by one. */
static void fold_one_tile(void *ring, int step, bool backward)
{
    stub_fold(ring, step, backward);
    ra_ring_poll(ring);
}

TEST(first_polls)
{
    struct ra_ring ring = small_ring(&stub_link, 1, fold_one_tile);
    ring.context = &ring;
    for (int call = 0; call < 20; call++) {
        ck_assert((call % 2 ? ra_ring_backward : ra_ring_forward)(&ring));
        ck_assert_int_eq(stub.folds, call + 1);
        ck_assert_int_eq(stub.polls, 2 * (call + 1));
    }
}

/* However many tiles there are, at most 20,000 polls a second; and polls until the end. */
static void fold_many_tiles(void *ring, int step, bool backward)
{
    stub_fold(ring, step, backward);
    int before = stub.polls;
    double start = ra_seconds();
    for (int tile = 0; tile < 200000; tile++)
        ra_ring_poll(ring);
    double most = 1 + 20000 * (ra_seconds() - start);
    ck_assert_msg(stub.polls - before <= most, "%d polls, %g are many", stub.polls - before, most);

    for (before = stub.polls; stub.polls < before + 5 && ra_seconds() - start < 20;)
        ra_ring_poll(ring);
    ck_assert_int_eq(stub.polls, before + 5);
}

TEST(bounded_polls)
{
    struct ra_ring ring = small_ring(&stub_link, 2, fold_many_tiles);
    ring.context = &ring;
    ck_assert(ra_ring_forward(&ring));
    ck_assert_int_eq(stub.folds, 2);
}

/* ---- Alone. ---- */

static void count_work(void *observer, const struct ra_event *event)
{
    ck_assert_int_eq(event->kind, RA_EVENT_WORK);
    ck_assert(event->hop == 0 && event->start <= event->end);
    ++*(int *)observer;
}

/* The link of one rank has no functions, and nothing is waited for. */
TEST(alone)
{
    const struct ra_link link = {.size = 1};
    int events = 0;
    struct ra_ring ring = small_ring(&link, 1, fold_one_tile);
    ring.context = &ring;
    ring.observe = count_work;
    ring.observer = &events;
    ck_assert(ra_ring_forward(&ring) && ra_ring_backward(&ring));
    ck_assert_int_eq(stub.folds, 2);
    ck_assert_int_eq(events, 2);
    ck_assert(ring.messages_sent == 0 && ring.bytes_sent == 0);
}

/* ---- What messages hold. ---- */

/* A row of B = 2 batches of two heads of three numbers has 12 numbers, 48 bytes, for k and for v;
 * and 2 bytes of the mask. */
TEST(message_bytes)
{
    ck_assert_int_eq(ra_message_gradient_bytes(2, 2, RA_DIMS(3)), 96);
    ck_assert_int_eq(ra_message_key_bytes(2, 2, RA_DIMS(3), 4, false), 96);
    ck_assert_int_eq(ra_message_key_bytes(2, 2, RA_DIMS(3), 4, true), 98);
    ck_assert_int_eq(ra_message_key_bytes(2, 2, RA_DIMS(3), 2, true), 50);
    ck_assert(ra_message_gradient_bytes(0, 2, RA_DIMS(3)) == 0 &&
              ra_message_key_bytes(0, 2, RA_DIMS(3), 4, true) == 0);

    /* 32 GiB: no int holds that. */
    ck_assert_int_eq(ra_message_gradient_bytes(1 << 20, 64, RA_DIMS(64)), (int64_t)1 << 35);
    ck_assert_int_eq(ra_message_key_bytes(3 << 20, 64, RA_DIMS(64), 4, true),
                     3 * (((int64_t)1 << 35) + (1 << 20)));
}

TEST(message_keys)
{
    float message[200], gradients[200], comp[200];
    struct ra_keys keys = ra_message_keys(2, 2, RA_DIMS(3), true, 5, message, gradients, comp);
    ck_assert(keys.rows == 5 && keys.stride.k == 6 && keys.stride.v == 6);
    ck_assert(keys.stride.dk == 6 && keys.stride.dv == 6 && keys.stride.dk_comp == 6 &&
              keys.stride.dv_comp == 6);
    ck_assert(keys.k == message && keys.v == message + 60);
    ck_assert(keys.dk == gradients && keys.dv == gradients + 60);
    ck_assert(keys.dk_comp == comp && keys.dv_comp == comp + 60);
    ck_assert_ptr_eq(keys.mask, (const bool *)message + 480);

    /* Rows of v and dv may have another length. */
    const struct ra_dims wide = {3, 5};
    keys = ra_message_keys(2, 2, wide, true, 5, message, gradients, comp);
    ck_assert(keys.stride.k == 6 && keys.stride.dk == 6 && keys.stride.dk_comp == 6);
    ck_assert(keys.stride.v == 10 && keys.stride.dv == 10 && keys.stride.dv_comp == 10);
    ck_assert(keys.v == message + 60 && keys.dv == gradients + 60 && keys.dv_comp == comp + 60);
    ck_assert_ptr_eq(keys.mask + 10,
                     (const bool *)message + 5 * ra_message_key_bytes(2, 2, wide, 4, true));
    ck_assert_ptr_eq(keys.dv + 100, gradients + 5 * ra_message_gradient_bytes(2, 2, wide) / 4);
    ck_assert_int_eq(ra_message_key_bytes(2, 2, wide, 2, true), 66);
    keys = ra_message_keys(2, 2, RA_DIMS(3), true, 5, message, gradients, comp);

    /* The mask ends where the message does, and dv where the gradients do. */
    ck_assert_ptr_eq(keys.mask + 10,
                     (const bool *)message + 5 * ra_message_key_bytes(2, 2, RA_DIMS(3), 4, true));
    ck_assert_ptr_eq(keys.dv + 60, gradients + 5 * ra_message_gradient_bytes(2, 2, RA_DIMS(3)) / 4);

    /* What is not there is NULL. */
    keys = ra_message_keys(2, 2, RA_DIMS(3), false, 5, message, NULL, NULL);
    ck_assert(keys.k == message && keys.v == message + 60);
    ck_assert(!keys.mask && !keys.dk && !keys.dv);
    keys = ra_message_keys(2, 2, RA_DIMS(3), true, 5, message, NULL, NULL);
    ck_assert(keys.mask && !keys.dk && !keys.dv && !keys.dk_comp && !keys.dv_comp);
}

int main(void)
{
    return suite_main("ring", 30);
}
