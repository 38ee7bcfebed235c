/* check_threads: the link between threads (ring_attention_threads.h), held against the contract in
 * ra_link.h; and the checked link of the other suites, which must see its callers break it.
 *
 * What nothing has to be waited for is tested in one thread, which plays all ranks. Linked with
 * --wrap of calloc and of pthread's init functions, so that they can be refused.
 */
/* For memory that can be taken away at once. */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked_link.h"
#include "ra_clock.h"
#include "ring_attention_threads.h"
#include "suite.h"

/* A macro of libcheck's, and a function of a link. */
#undef fail

enum { MOST_RANKS = 8, MOST_BYTES = 3000, LARGE = 64 << 20 };

/* ---- What may be refused. ---- */

void *__real_calloc(size_t count, size_t size);
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __real_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);
void *__wrap_calloc(size_t count, size_t size);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes);

static int refuse; /* this call from now on fails; 0: none */

static bool refused(void)
{
    return refuse > 0 && --refuse == 0;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused() ? NULL : __real_calloc(count, size);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    return refused() ? 1 : __real_pthread_mutex_init(mutex, attributes);
}

int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    return refused() ? 1 : __real_pthread_cond_init(condition, attributes);
}

/* ---- Rings. ---- */

static struct ra_link links[MOST_RANKS];

static void open_links(int ranks)
{
    char error[RA_ERROR_SIZE] = "";
    ck_assert_msg(ra_thread_links(links, ranks, error) == RA_OK, "%s", error);
    for (int r = 0; r < ranks; r++)
        ck_assert_int_eq(links[r].sharing, ranks); /* of this process's processors */
    for (int r = 0; r < ranks; r++)
        links[r].set_timeout(links[r].self, 20);
}

static bool close_link(int rank)
{
    return links[rank].close(links[rank].self);
}

static void close_links(int ranks)
{
    for (int r = 0; r < ranks; r++)
        ck_assert(close_link(r));
}

/* The functions of a rank's link. */
static bool sends(int rank, enum ra_message message, int hop, int distance, const void *from,
                  int64_t bytes)
{
    return links[rank].send(links[rank].self, message, hop, distance, from, bytes);
}

static bool receives(int rank, enum ra_message message, int hop, int distance, void *into,
                     int64_t bytes)
{
    return links[rank].receive(links[rank].self, message, hop, distance, into, bytes);
}

static bool polls(int rank)
{
    return links[rank].poll(links[rank].self);
}

static bool waits(int rank, enum ra_message message)
{
    return links[rank].wait(links[rank].self, message);
}

static void fails(int rank, const char *reason)
{
    links[rank].fail(links[rank].self, reason);
}

static const char *error_of(int rank)
{
    return links[rank].error(links[rank].self);
}

/* What went wrong in a thread, by rank; libcheck's assertions are for one thread. */
static char trouble[MOST_RANKS][600];

/* In a thread: leaves the function if this is not so. */
#define EXPECT(rank, condition)                                                                \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            snprintf(trouble[rank], sizeof trouble[rank], "line %d: not %s; \"%s\"", __LINE__, \
                     #condition, error_of(rank));                                              \
            return;                                                                            \
        }                                                                                      \
    } while (0)

struct thread {
    void (*body)(int rank);
    int rank;
};

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    thread->body(thread->rank);
    return NULL;
}

/* Runs all ranks of the ring, each in a thread. */
static void run_ranks(int ranks, void (*body)(int rank))
{
    pthread_t handles[MOST_RANKS];
    struct thread threads[MOST_RANKS];
    for (int r = 0; r < ranks; r++) {
        threads[r] = (struct thread){body, r};
        ck_assert_int_eq(pthread_create(&handles[r], NULL, run_thread, &threads[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(handles[r], NULL);
    for (int r = 0; r < ranks; r++)
        ck_assert_msg(!trouble[r][0], "rank %d of %d: %s", r, ranks, trouble[r]);
}

static void sleep_for(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

/* The bytes of a message: other ones for every sender, receiver, kind and number. */
static void write_down(unsigned char *data, int64_t bytes, int from, int to, int message,
                       int number)
{
    uint32_t state = (uint32_t)(((from * 31 + to) * 31 + message) * 1009 + number);
    for (int64_t i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = (unsigned char)(state >> 24);
    }
}

/* Are these the bytes of this message? */
static bool is_right(const unsigned char *data, int64_t bytes, int from, int to, int message,
                     int number)
{
    unsigned char wanted[MOST_BYTES];
    write_down(wanted, bytes, from, to, message, number);
    return memcmp(data, wanted, (size_t)bytes) == 0;
}

static int ring_size; /* of the threads' ring */

static int rank_at(int rank, int distance)
{
    return ((rank + distance) % ring_size + ring_size) % ring_size;
}

/* ---- Messages. ---- */

static const int ring_sizes[] = {1, 2, 3, 8};

/* Every distance, to the right and to the left, more than once around. The sender writes over what
 * it has sent as soon as it may; nothing is written beyond the end. */
static void talk_to_all(int rank)
{
    unsigned char out[MOST_BYTES], in[MOST_BYTES];
    for (int distance = -2 * ring_size; distance <= 2 * ring_size; distance++) {
        int hop = distance + 2 * ring_size, to = rank_at(rank, distance);
        int64_t bytes = 1 + 13 * hop;
        write_down(out, bytes, rank, to, RA_ROWS, hop);
        memset(in, 0xAB, sizeof in);
        EXPECT(rank, receives(rank, RA_ROWS, hop, -distance, in, bytes));
        EXPECT(rank, sends(rank, RA_ROWS, hop, distance, out, bytes));
        EXPECT(rank, waits(rank, RA_ROWS));
        memset(out, 0, sizeof out);
        EXPECT(rank, is_right(in, bytes, rank_at(rank, -distance), rank, RA_ROWS, hop));
        EXPECT(rank, in[bytes] == 0xAB);
    }
    EXPECT(rank, close_link(rank));
}

TESTS_OF(all_distances, ring_sizes)
{
    ring_size = ring_sizes[_i];
    open_links(ring_size);
    run_ranks(ring_size, talk_to_all);
}

/* Three kinds at once, two to the right and one to the left, for many rounds: each in its order and
 * for itself. Some ranks are slow, and some poll. */
static void talk_at_once(int rank)
{
    static const enum ra_message kinds[] = {RA_KEYS, RA_GRADIENTS, RA_ROWS};
    static const int distances[] = {1, 1, -1};
    static unsigned char out[MOST_RANKS][3][MOST_BYTES], in[MOST_RANKS][3][MOST_BYTES];
    for (int round = 0; round < 300; round++) {
        int64_t bytes = 1 + round * 7919 % MOST_BYTES;
        for (int k = 0; k < 3; k++) {
            write_down(out[rank][k], bytes, rank, rank_at(rank, distances[k]), k, round);
            EXPECT(rank, receives(rank, kinds[k], round, -distances[k], in[rank][k], bytes));
            EXPECT(rank, sends(rank, kinds[k], round, distances[k], out[rank][k], bytes));
            EXPECT(rank, (rank + round) % 3 > 0 || polls(rank));
        }
        if (rank == round % 50)
            sleep_for(1e-3);
        for (int k = 2; k >= 0; k--) {
            EXPECT(rank, waits(rank, kinds[k]));
            EXPECT(rank,
                   is_right(in[rank][k], bytes, rank_at(rank, -distances[k]), rank, k, round));
        }
    }
    EXPECT(rank, close_link(rank));
}

TESTS_OF(all_at_once, ring_sizes)
{
    ring_size = ring_sizes[_i];
    open_links(ring_size);
    run_ranks(ring_size, talk_at_once);
}

/* Gradients and those that come home, from the same rank at the same time, share its way out and
 * nothing else. The receiver expects home from the beginning, and waits for it at the end. */
TEST(coming_home)
{
    unsigned char first[100], second[100], home[100], gradients[100];
    open_links(2);
    write_down(first, 100, 0, 1, RA_GRADIENTS, 0);
    write_down(second, 100, 0, 1, RA_GRADIENTS_RETURN, 0);
    ck_assert(receives(1, RA_GRADIENTS_RETURN, 1, 1, home, 100));
    ck_assert(sends(0, RA_GRADIENTS, 1, 1, first, 100));
    ck_assert(polls(1));
    ck_assert(!links[1].arrival(links[1].self, RA_GRADIENTS_RETURN, &(int){0}, &(double){0},
                                &(double){0}));
    ck_assert(receives(1, RA_GRADIENTS, 1, -1, gradients, 100));
    ck_assert(waits(1, RA_GRADIENTS));
    ck_assert(is_right(gradients, 100, 0, 1, RA_GRADIENTS, 0));
    ck_assert(waits(0, RA_GRADIENTS));

    /* Gone home, they belong to the sender's wait for gradients, not to its wait for home. The
     * receiver takes them while it waits for another kind. */
    ck_assert(sends(0, RA_GRADIENTS_RETURN, 2, -1, second, 100));
    ck_assert(waits(0, RA_GRADIENTS_RETURN));
    ck_assert(sends(0, RA_KEYS, 2, 1, first, 100));
    ck_assert(receives(1, RA_KEYS, 2, -1, gradients, 100));
    ck_assert(waits(1, RA_KEYS));
    ck_assert(waits(0, RA_GRADIENTS) && waits(0, RA_KEYS));
    ck_assert(waits(1, RA_GRADIENTS_RETURN));
    ck_assert(is_right(home, 100, 0, 1, RA_GRADIENTS_RETURN, 0));
    close_links(2);
}

/* What is received twice before it is waited for breaks the contract also if it has arrived: so a
 * poll is enough to move a message, and arrival tells when it has come, once. */
TEST(polled)
{
    char out[8] = "message", in[8] = "";
    int hop = 0;
    double start = 0, end = 0, before = ra_seconds();
    open_links(3);
    ck_assert(!links[2].arrival(links[2].self, RA_KEYS, &hop, &start, &end));
    ck_assert(receives(2, RA_KEYS, 7, 1, in, 8));
    ck_assert(polls(2) && polls(0));
    ck_assert(!links[2].arrival(links[2].self, RA_KEYS, &hop, &start, &end));
    ck_assert(sends(0, RA_KEYS, 7, -1, out, 8));
    ck_assert_str_eq(in, "");
    ck_assert(polls(1) && polls(0));
    ck_assert_str_eq(in, "");
    ck_assert(polls(2));
    ck_assert_str_eq(in, "message");
    ck_assert(links[2].arrival(links[2].self, RA_KEYS, &hop, &start, &end));
    ck_assert_int_eq(hop, 7);
    ck_assert(before <= start && start <= end && end <= ra_seconds());
    ck_assert(!links[2].arrival(links[2].self, RA_KEYS, &hop, &start, &end));

    /* Nothing is left to wait for, of this kind or of any. */
    for (int m = 0; m < RA_MESSAGES; m++)
        for (int rank = 0; rank < 3; rank++)
            ck_assert(waits(rank, (enum ra_message)m));
    close_links(3);
}

/* Two rings of the same threads: one fails, the other does not hear of it. */
TEST(rings_apart)
{
    char out[8] = "message", in[8] = "";
    open_links(2);
    struct ra_link first[2] = {links[0], links[1]};
    open_links(2);
    ck_assert(first[1].receive(first[1].self, RA_KEYS, 0, -1, in, 8));
    ck_assert(sends(0, RA_KEYS, 0, 1, out, 8));
    fails(0, "over");
    ck_assert(!polls(1) && first[1].poll(first[1].self));
    ck_assert_str_eq(in, "");
    ck_assert(first[0].send(first[0].self, RA_KEYS, 0, 1, out, 8));
    ck_assert(first[1].wait(first[1].self, RA_KEYS) && first[0].wait(first[0].self, RA_KEYS));
    ck_assert_str_eq(in, "message");
    close_links(2);
    ck_assert(first[1].close(first[1].self) && first[0].close(first[0].self));
}

/* ---- Time. ---- */

/* One rank waits for a message of each kind, out or in, for which nobody comes. */
static const struct {
    enum ra_message message;
    bool outgoing;
    const char *text;
} late[] = {
    {RA_KEYS, false, "waited 0.2 s for rank 2 to send keys;"},
    {RA_KEYS, true, "waited 0.2 s for rank 2 to take keys;"},
    {RA_GRADIENTS, false, "waited 0.2 s for rank 2 to send gradients;"},
    {RA_GRADIENTS, true, "waited 0.2 s for rank 2 to take gradients;"},
    {RA_GRADIENTS_RETURN, false, "waited 0.2 s for rank 2 to send gradients coming home;"},
    {RA_GRADIENTS_RETURN, true, "waited 0.2 s for rank 2 to take gradients coming home;"},
    {RA_ROWS, false, "waited 0.2 s for rank 2 to send rows;"},
};

TESTS_OF(too_late, late)
{
    unsigned char data[8] = "";
    open_links(3);
    links[1].set_timeout(links[1].self, 0.2);
    double began = ra_seconds();
    bool out = late[_i].outgoing;
    ck_assert((out ? sends(1, late[_i].message, 5, 1, data, 8)
                   : receives(1, late[_i].message, 5, 1, data, 8)));
    ck_assert(!waits(1, out && late[_i].message == RA_GRADIENTS_RETURN ? RA_GRADIENTS
                                                                       : late[_i].message));
    double seconds = ra_seconds() - began;
    ck_assert_msg(seconds > 0.19 && seconds < 25, "%g s", seconds);
    ck_assert_msg(strstr(error_of(1), "ring rank 1, hop 5: ") && strstr(error_of(1), late[_i].text),
                  "%s", error_of(1));
    for (int rank = 0; rank < 3; rank += 2) {
        ck_assert(!polls(rank));
        ck_assert_str_eq(error_of(rank), error_of(1));
    }
    close_links(3);
}

/* A message that is slow, and timeouts that last: very long ones, and 0. */
static double patience;

static void send_slowly(int rank)
{
    unsigned char data[8] = "message";
    links[rank].set_timeout(links[rank].self, patience);
    if (rank == 0) {
        sleep_for(0.3);
        EXPECT(rank, sends(rank, RA_KEYS, 0, 1, data, 8));
    } else {
        EXPECT(rank, receives(rank, RA_KEYS, 0, -1, data, 8));
    }
    EXPECT(rank, waits(rank, RA_KEYS));
    EXPECT(rank, close_link(rank));
}

TESTS(in_time, 0, 4)
{
    static const double patiences[] = {0, 5, 1e9, 1e300};
    patience = patiences[_i];
    ring_size = 2;
    open_links(2);
    links[1].set_timeout(links[1].self, 1e-3);
    run_ranks(2, send_slowly);
}

/* ---- Progress. ---- */

/* Rank 0 waits for rank 1, that one for rank 2, and rank 2 does one of these. Rank 3 waits for
 * nobody, and polls now and then where it says so. A timeout is 1.2 s; where it must not be over,
 * though the machine be busy, 3 s. */
enum rank_2 { COMPUTES, IS_SILENT, WAITS_FOR_RANK_0 };
static struct {
    enum rank_2 does;
    bool rank_3_computes;
    double began;
    _Atomic double ended[4]; /* seconds after that; 0: not yet */
} progress;

static void wait_in_a_chain(int rank);

static void run_chain(enum rank_2 does, bool rank_3_computes)
{
    progress.does = does;
    progress.rank_3_computes = rank_3_computes;
    progress.began = ra_seconds();
    for (int rank = 0; rank < 4; rank++)
        progress.ended[rank] = 0;
    ring_size = 4;
    open_links(4);
    run_ranks(4, wait_in_a_chain);
}

static void compute(int rank, double seconds)
{
    for (double began = ra_seconds(); ra_seconds() - began < seconds && polls(rank);)
        sleep_for(0.01);
}

static void wait_in_a_chain(int rank)
{
    unsigned char data[8] = "message";
    bool good = progress.does == COMPUTES;
    links[rank].set_timeout(links[rank].self, good ? 3 : 1.2);
    if (rank == 3 && progress.rank_3_computes) {
        compute(rank, 3);
    } else if (rank == 2 && progress.does != WAITS_FOR_RANK_0) {
        if (good)
            compute(rank, 7);
        while (!good && progress.ended[0] == 0)
            sleep_for(0.01);
        EXPECT(rank, sends(rank, RA_KEYS, 0, -1, data, 8) == good);
    } else if (rank < 3) {
        EXPECT(rank, receives(rank, RA_KEYS, 0, rank == 2 ? 2 : 1, data, 8));
        EXPECT(rank, waits(rank, RA_KEYS) == good);
        EXPECT(rank, !good || rank == 0 || sends(rank, RA_KEYS, 0, -1, data, 8));
    }
    progress.ended[rank] = ra_seconds() - progress.began;
    if (good)
        EXPECT(rank, rank == 3 || waits(rank, RA_KEYS));
}

/* Whoever waits for a rank that computes, itself or through others, waits as long as that takes. */
TEST(computing_is_progress)
{
    run_chain(COMPUTES, false);
    for (int rank = 0; rank < 4; rank++)
        ck_assert_str_eq(error_of(rank), "");
    ck_assert(progress.ended[0] > 6.8);
    close_links(4);
}

/* A rank that is silent is found by who waits for it, and named, though another one computes. */
TESTS(silence_is_none, 0, 2)
{
    run_chain(IS_SILENT, _i);
    ck_assert_ptr_nonnull(
        strstr(error_of(0), "ring rank 1, hop 0: waited 1.2 s for rank 2 to send"));
    ck_assert_ptr_nonnull(strstr(error_of(0), "has it died?"));
    ck_assert(progress.ended[0] > 1.19);
    close_links(4);
}

/* Nor is it progress if all wait for each other, but while another one computes that is not
 * known. */
TESTS(waiting_is_none, 0, 2)
{
    run_chain(WAITS_FOR_RANK_0, _i);
    ck_assert_ptr_nonnull(strstr(error_of(0), "it waits as well, and no rank computes"));
    ck_assert(progress.ended[0] > (_i ? 4 : 1.79));
    close_links(4);
}

/* ---- Failures. ---- */

static const char reason[] = "ring rank 2: no more";

/* Rank 2 fails. Rank 0 waits meanwhile to be sent something, rank 1 for something to be taken, and
 * rank 3 polls. No link is closed, which would wake others as well. */
static void fail_together(int rank)
{
    char data[8] = "before";
    double began = ra_seconds();
    if (rank == 2) {
        sleep_for(0.1);
        fails(rank, reason);
        fails(rank, "and more");
    } else if (rank == 0) {
        EXPECT(rank, receives(rank, RA_KEYS, 1, -1, data, 8));
        EXPECT(rank, !waits(rank, RA_KEYS));
    } else if (rank == 1) {
        EXPECT(rank, sends(rank, RA_ROWS, 1, 1, data, 8));
        EXPECT(rank, !waits(rank, RA_ROWS));
    } else {
        while (polls(rank) && ra_seconds() - began < 10)
            sleep_for(1e-3);
    }
    EXPECT(rank, ra_seconds() - began < 10);
    EXPECT(rank, strcmp(error_of(rank), reason) == 0);

    /* For good. */
    fails(rank, "something else");
    EXPECT(rank, !sends(rank, RA_GRADIENTS, 1, 0, data, 8));
    EXPECT(rank, !receives(rank, RA_GRADIENTS, 1, 0, data, 8));
    EXPECT(rank, !polls(rank) && !waits(rank, RA_GRADIENTS) && !waits(rank, RA_GRADIENTS_RETURN));
    EXPECT(rank, strcmp(data, "before") == 0);
    EXPECT(rank, strcmp(error_of(rank), reason) == 0);
}

TEST(one_fails)
{
    ring_size = 4;
    open_links(4);
    run_ranks(4, fail_together);
    close_links(4);
}

/* Each of two that fail keeps its own reason; a long one is cut. */
TEST(two_fail)
{
    char endless[2 * RA_ERROR_SIZE];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = 0;
    open_links(3);
    fails(0, endless);
    fails(1, "second");
    ck_assert_str_eq(error_of(1), "second");
    ck_assert(!polls(0) && !polls(1) && !polls(2));
    ck_assert_uint_eq(strlen(error_of(0)), RA_ERROR_SIZE - 1);
    ck_assert_str_eq(error_of(2), error_of(0));
    ck_assert_str_eq(error_of(1), "second");
    close_links(3);
}

/* A failure is heard before a message that has been sent, and this message is not taken. */
TEST(nothing_is_taken_after)
{
    char out[8] = "message", in[8] = "";
    open_links(2);
    ck_assert(receives(1, RA_KEYS, 0, -1, in, 8));
    ck_assert(sends(0, RA_KEYS, 0, 1, out, 8));
    fails(0, "over");
    ck_assert(!waits(1, RA_KEYS));
    ck_assert_str_eq(in, "");
    close_links(2);
}

/* A rank fails and closes its link while its large message is copied, and its memory goes. The copy
 * has begun when the receiver's memory, which nobody has touched, gets its first page. */
static unsigned char *large[2];

static void close_in_the_middle(int rank)
{
    unsigned char begun = 0;
    if (rank == 0) {
        EXPECT(rank, sends(rank, RA_KEYS, 0, 1, large[rank], LARGE));
        for (double began = ra_seconds(); !(begun & 1) && ra_seconds() - began < 10;)
            mincore(large[1], 1, &begun);
        fails(rank, reason);
    } else {
        EXPECT(rank, !waits(rank, RA_KEYS));
    }
    EXPECT(rank, close_link(rank));
    munmap(large[rank], LARGE);
}

TEST(closed_in_the_middle)
{
    for (int rank = 0; rank < 2; rank++) {
        large[rank] = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert(large[rank] != MAP_FAILED);
    }
    ring_size = 2;
    open_links(2);
    ck_assert(receives(1, RA_KEYS, 0, -1, large[1], LARGE));
    run_ranks(2, close_in_the_middle);
}

/* What a rank that has failed and closed its link had sent and expected is called off. */
TEST(called_off)
{
    unsigned char *out = malloc(8), *in = malloc(8), other[8] = "other";
    open_links(2);
    ck_assert(sends(0, RA_KEYS, 0, 1, out, 8));
    ck_assert(receives(0, RA_KEYS, 0, -1, in, 8));
    fails(0, "over");
    ck_assert(close_link(0));
    free(out);
    free(in);
    ck_assert(!receives(1, RA_KEYS, 0, -1, other, 8));
    ck_assert(!sends(1, RA_KEYS, 0, 1, other, 8));
    ck_assert(!waits(1, RA_KEYS) && !polls(1));
    ck_assert_str_eq(error_of(1), "over");
    ck_assert(close_link(1));
}

/* A rank whose neighbour has closed its link waits no longer: it waits already, or begins to. */
static void leave(int rank)
{
    unsigned char data[8] = "";
    if (rank == 0) {
        sleep_for(0.2);
    } else {
        double began = ra_seconds();
        EXPECT(rank, receives(rank, RA_ROWS, 3, -1, data, 8));
        EXPECT(rank, !waits(rank, RA_ROWS));
        EXPECT(rank, ra_seconds() - began < 10);
        EXPECT(rank, strstr(error_of(rank), "hop 3: rank 0 has closed its link"));
    }
    EXPECT(rank, close_link(rank));
}

TEST(neighbour_gone)
{
    ring_size = 2;
    open_links(2);
    run_ranks(2, leave);
    unsigned char data[8] = "";
    open_links(3);
    ck_assert(close_link(2));
    ck_assert(sends(0, RA_KEYS, 1, -1, data, 8));
    ck_assert(polls(1) && polls(0));
    ck_assert(!waits(0, RA_KEYS));
    ck_assert_ptr_nonnull(strstr(error_of(0), "rank 2 has closed its link and did not take keys"));
    close_links(2);
}

/* ---- What breaks the contract, or makes no sense. ---- */

TESTS(misuse, 0, 8)
{
    unsigned char data[8], other[8];
    static const char *const texts[] = {
        "ring rank 0, hop 2: sends keys without having waited for keys of hop 1",
        "ring rank 0, hop 2: receives rows without having waited for rows of hop 1",
        "ring rank 0, hop 2: sends gradients coming home without having waited for gradients",
        "ring rank 0, hop 2: sends 0 bytes of keys",
        "ring rank 0, hop 2: receives -1 bytes of keys",
        "ring rank 0, hop 2: sends 8 bytes of keys at ",
        "ring rank 0, hop 2: expects 8 bytes of keys, rank 1 sends 7",
        "ring rank 0, hop 1: closes its link without having waited for gradients",
    };
    open_links(2);
    switch (_i) {
    case 0:
        ck_assert(sends(0, RA_KEYS, 1, 1, data, 8) && !sends(0, RA_KEYS, 2, 1, other, 8));
        break;
    case 1:
        ck_assert(receives(0, RA_ROWS, 1, 1, data, 8) && !receives(0, RA_ROWS, 2, 1, other, 8));
        break;
    case 2:
        ck_assert(sends(0, RA_GRADIENTS, 1, 1, data, 8) &&
                  !sends(0, RA_GRADIENTS_RETURN, 2, 1, other, 8));
        break;
    case 3:
        ck_assert(!sends(0, RA_KEYS, 2, 1, data, 0));
        break;
    case 4:
        ck_assert(!receives(0, RA_KEYS, 2, 1, data, -1));
        break;
    case 5:
        ck_assert(!sends(0, RA_KEYS, 2, 1, NULL, 8));
        break;
    case 6:
        ck_assert(receives(0, RA_KEYS, 2, 1, data, 8) && sends(1, RA_KEYS, 2, -1, other, 7));
        ck_assert(!waits(0, RA_KEYS));
        break;
    case 7:
        ck_assert(receives(0, RA_GRADIENTS, 1, 1, data, 8));
        ck_assert(close_link(0));
    }

    /* All get it. */
    ck_assert(!waits(1, RA_KEYS) || !polls(1));
    ck_assert_msg(strstr(error_of(1), texts[_i]), "%s", error_of(1));
    ck_assert(close_link(1) && (_i == 7 || close_link(0)));
}

TEST(opened)
{
    char error[RA_ERROR_SIZE];
    static const int sizes[] = {0, -1, INT32_MIN};
    for (int i = 0; i < COUNT(sizes); i++) {
        ck_assert_int_eq(ra_thread_links(links, sizes[i], error), RA_INVALID);
        ck_assert_ptr_nonnull(strstr(error, "ranks = "));
        ck_assert_int_eq(ra_thread_links(links, sizes[i], NULL), RA_INVALID);
    }
    ck_assert_int_eq(ra_thread_links(NULL, 2, error), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "links is NULL"));

    /* One block, a mutex, and a condition for each rank. */
    for (int call = 1; call <= 5; call++) {
        refuse = call;
        ck_assert_int_eq(ra_thread_links(links, 3, error), RA_OUT_OF_MEMORY);
        ck_assert_ptr_nonnull(strstr(error, "memory"));
        ck_assert_int_eq(refuse, 0);
    }

    /* Closed in any order. */
    for (int first = 0; first < 3; first++) {
        open_links(3);
        for (int r = 0; r < 3; r++) {
            ck_assert_int_eq(links[r].rank, r);
            ck_assert_int_eq(links[r].size, 3);
            ck_assert_int_gt(links[r].bytes, 0);
            ck_assert(!links[r].device_memory);
            ck_assert_str_eq(error_of(r), "");
        }
        for (int r = 0; r < 3; r++)
            ck_assert(close_link((first + r) % 3));
    }
}

/* ---- The checked link. ---- */

static struct checked_ring *checked;

static void open_checked(int ranks, enum checked_delivery delivery)
{
    open_links(ranks);
    checked = checked_ring_open(ranks, delivery);
    for (int r = 0; r < ranks; r++)
        links[r] = checked_ring_link(checked, links[r]);
}

CASE(checked, 30);

/* It counts, and it hides what has not been waited for. A late message is taken before its sender
 * goes on; an early one is a copy, and may wait for its receiver. */
TESTS(checked_counts, CHECKED_EARLY, CHECKED_LATE + 1)
{
    bool early = _i == CHECKED_EARLY;
    float out[2] = {1, 2}, in[2] = {3, 4};
    open_checked(2, (enum checked_delivery)_i);
    for (int hop = 0; hop < 2; hop++) {
        ck_assert(polls(1));
        ck_assert(early || receives(1, RA_KEYS, hop, -1, in, 8));
        ck_assert(early || (in[0] != in[0] && polls(1)));
        ck_assert(sends(0, RA_KEYS, hop, 1, out, 8));
        ck_assert(early || waits(1, RA_KEYS));
        ck_assert(waits(0, RA_KEYS));
        out[0] = out[1] = 7;
        ck_assert(!early || (receives(1, RA_KEYS, hop, -1, in, 8) && waits(1, RA_KEYS)));
        ck_assert(hop == 1 || (in[0] == 1 && in[1] == 2));
    }
    struct checked_traffic sent = checked_ring_sent(checked, 0, 1);
    ck_assert(sent.messages == 1 && sent.bytes == 8);
    sent = checked_ring_sent(checked, 0, 1);
    ck_assert(sent.messages == 0 && sent.bytes == 0);
    ck_assert_int_eq(checked_ring_polls(checked, 0), 0);
    ck_assert_int_eq(checked_ring_polls(checked, 1), early ? 0 : 2);
    ck_assert_int_eq(checked_ring_closed(checked), 0);
    close_links(2);
    ck_assert_int_eq(checked_ring_closed(checked), 2);
    checked_ring_close(checked);
}

/* All ranks at once through it, of either delivery. */
TESTS(checked_talk, CHECKED_EARLY, CHECKED_LATE + 1)
{
    ring_size = 300; /* hops that it can count */
    open_links(3);
    checked = checked_ring_open(ring_size, (enum checked_delivery)_i);
    ring_size = 3;
    for (int r = 0; r < 3; r++)
        links[r] = checked_ring_link(checked, links[r]);
    run_ranks(3, talk_at_once);
    checked_ring_close(checked);
}

static void *poll_in_a_thread(void *nothing)
{
    polls(0);
    return nothing;
}

/* It aborts when its caller breaks the contract. */
TESTS_RAISING(SIGABRT, checked_aborts, 0, 10)
{
    unsigned char data[8], other[8];
    pthread_t thread;
    open_checked(2, _i == 7 ? CHECKED_EARLY : CHECKED_LATE);
    links[0].set_timeout(links[0].self, 0.1);
    switch (_i) {
    case 0:
        sends(0, RA_GRADIENTS, 0, 1, data, 8);
        sends(0, RA_GRADIENTS_RETURN, 0, 1, other, 8);
        break;
    case 1:
        receives(0, RA_KEYS, 0, 1, data, 8);
        sends(1, RA_KEYS, 0, 1, other, 8);
        polls(0);
        receives(0, RA_KEYS, 0, 1, data, 8);
        break;
    case 2:
        sends(0, RA_KEYS, 0, 1, data, 0);
        break;
    case 3:
        receives(0, RA_KEYS, 0, 1, data, 0);
        break;
    case 4:
        receives(0, RA_GRADIENTS_RETURN, 0, 1, data, 8);
        close_link(0);
        break;
    case 5:
        close_link(0);
        close_link(0);
        break;
    case 6:
        fails(0, "");
        break;
    case 7:
        if (sends(0, RA_KEYS, 0, 1, data, 8) && waits(0, RA_KEYS))
            close_link(0);
        break;
    case 8:
        close_link(0);
        polls(0);
        break;
    case 9:
        receives(0, RA_KEYS, 0, 1, data, 8);
        pthread_create(&thread, NULL, poll_in_a_thread, NULL);
        pthread_join(thread, NULL);
    }
}

int main(void)
{
    return suite_main("threads", 30);
}
