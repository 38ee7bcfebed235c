/* check_schedule: the hops and journeys of a causal ring, from all pairs of positions.
 *
 * The reference here asks of every query and key whether they see each other and which ranks hold
 * them, and notes the hop between the two. It knows no spans and no bands. A test in a loop runs
 * once for each number of ranks.
 */
#include "ra_schedule.h"
#include "suite.h"

enum { RANKS = 6, GUARD = 4, POISON = -77 };

static const struct {
    const char *name;
    enum ra_layout_kind kind;
    int64_t bucket; /* striped only */
} layouts[] = {{"contiguous", RA_CONTIGUOUS, 0},
               {"zigzag", RA_ZIGZAG, 0},
               {"striped", RA_STRIPED, 0},
               {"striped, bucket 1", RA_STRIPED, 1},
               {"striped, bucket 2", RA_STRIPED, 2},
               {"striped, bucket 3", RA_STRIPED, 3},
               {"striped, bucket 99", RA_STRIPED, 99}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* The layouts of queries and keys: the same number of stripes, enough for the longer. */
struct pair {
    struct ra_layout queries, keys;
};

static struct pair make(int n, int P, int64_t N, int64_t M)
{
    int64_t stripes = ra_layout_stripes(P, N > M ? N : M, layouts[n].bucket);
    return (struct pair){{layouts[n].kind, P, N, stripes, NULL},
                         {layouts[n].kind, P, M, stripes, NULL}};
}

/* A schedule between guards, that nothing may be written to. */
struct guarded {
    int storage[GUARD + 2 * RANKS + GUARD];
    struct ra_schedule schedule;
};

static int *poison(struct guarded *guarded)
{
    for (int e = 0; e < GUARD + 2 * RANKS + GUARD; e++)
        guarded->storage[e] = POISON;
    return guarded->storage + GUARD;
}

/* Fails the test and names the case. Unlike ck_assert it costs nothing when all is well: there are
 * many cases. */
static void wrong(const char *what, int n, const struct pair *pair, int64_t lookback, int at)
{
    ck_abort_msg("%s: %s, %d ranks, N %d, M %d, lookback %lld: at %d", what, layouts[n].name,
                 pair->keys.ranks, (int)pair->queries.length, (int)pair->keys.length,
                 (long long)lookback, at);
}

/* The schedule from all pairs of positions, and what ra_schedule makes of it. */
static void judge(int n, const struct pair *pair, int64_t lookback)
{
    int P = pair->keys.ranks, last[RANKS] = {0};
    bool needed[RANKS] = {true};
    for (int64_t i = 0; i < pair->queries.length; i++)
        for (int64_t j = 0; j < pair->keys.length; j++) {
            int64_t row, back = i + pair->keys.length - pair->queries.length - j;
            if (back < 0 || (lookback < RA_BAND_FAR && back > lookback))
                continue;
            int origin = ra_layout_find(pair->keys, j, &row);
            int hop = (ra_layout_find(pair->queries, i, &row) - origin + P) % P;
            needed[hop] = true;
            last[origin] = hop > last[origin] ? hop : last[origin];
        }

    struct guarded got;
    got.schedule = ra_schedule_causal(pair->queries, pair->keys, lookback, poison(&got));
    for (int origin = 0; origin < P; origin++)
        if (last[origin] != got.schedule.last[origin])
            wrong("last", n, pair, lookback, origin);
    int count = 0;
    for (int hop = 0; hop < P; hop++) {
        if (!needed[hop])
            continue;
        if (count >= got.schedule.count || got.schedule.hop[count] != hop)
            wrong("hop", n, pair, lookback, hop);
        count++;
    }
    if (got.schedule.count != count)
        wrong("count", n, pair, lookback, got.schedule.count);

    /* No more storage was touched than was asked for. */
    for (int e = 0; e < GUARD; e++)
        if (got.storage[e] != POISON || got.storage[GUARD + ra_schedule_storage(P) + e] != POISON)
            wrong("storage", n, pair, lookback, e);
}

static const int64_t lookbacks[] = {
    0, 1, 2, 3, 4, 5, 7, 11, 12, 30, RA_BAND_FAR - 1, RA_BAND_FAR, INT64_MAX};
enum { LOOKBACKS = sizeof lookbacks / sizeof lookbacks[0] };

static const int64_t lengths[] = {0, 1, 2, 3, 5, 6, 7, 8, 12, 13, 17, 24};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

/* Fewer, as many and more queries than keys; the last query stands at the last key. */
TESTS(all_pairs, 1, RANKS + 1)
{
    for (int n = 0; n < LAYOUTS; n++)
        for (int N = 0; N < LENGTHS; N++)
            for (int M = 0; M < LENGTHS; M++)
                for (int L = 0; L < LOOKBACKS; L++) {
                    struct pair pair = make(n, _i, lengths[N], lengths[M]);
                    judge(n, &pair, lookbacks[L]);
                }
}

/* The schedule of a self-attention ring of P ranks with n rows each. */
static struct ra_schedule self(enum ra_layout_kind kind, int P, int64_t n, int64_t lookback,
                               int *storage)
{
    struct ra_layout layout = {kind, P, n * P, 1, NULL};
    return ra_schedule_causal(layout, layout, lookback, storage);
}

/* A reach of L tokens on contiguous shards of n rows needs ceil(L / n) + 1 hops: the first query of
 * a shard may stand one token after the last key of another. */
TEST(hops_of_a_contiguous_ring)
{
    int storage[2 * RANKS];
    for (int P = 1; P <= RANKS; P++)
        for (int n = 1; n <= 9; n++)
            for (int L = 0; L <= P * n + 1; L++) {
                struct ra_schedule schedule = self(RA_CONTIGUOUS, P, n, L, storage);
                int want = (L + n - 1) / n + 1;
                ck_assert_int_eq(schedule.count, want < P ? want : P);
                for (int h = 0; h < schedule.count; h++)
                    ck_assert_int_eq(schedule.hop[h], h);
            }
}

/* Without a limit the keys of contiguous rank r go on to the last rank, and no further. */
TEST(journeys_of_a_contiguous_ring)
{
    int storage[2 * RANKS];
    for (int P = 1; P <= RANKS; P++)
        for (int n = 1; n <= 4; n++) {
            struct ra_schedule schedule = self(RA_CONTIGUOUS, P, n, RA_BAND_FAR, storage);
            ck_assert_int_eq(schedule.count, P);
            for (int r = 0; r < P; r++)
                ck_assert_int_eq(schedule.last[r], P - 1 - r);
        }
}

/* Striped, the token before is one rank to the left. A reach of L tokens needs L + 1 hops. */
TEST(hops_of_a_striped_ring)
{
    int storage[2 * RANKS];
    for (int P = 1; P <= RANKS; P++)
        for (int L = 0; L < 2 * P; L++) {
            struct ra_schedule schedule = self(RA_STRIPED, P, 3, L, storage);
            ck_assert_int_eq(schedule.count, L + 1 < P ? L + 1 : P);
            for (int h = 0; h < schedule.count; h++)
                ck_assert_int_eq(schedule.hop[h], h);
            for (int r = 0; r < P; r++)
                ck_assert_int_eq(schedule.last[r], L < P ? L : P - 1);
        }
}

/* Zigzag, with a reach of one chunk or less: the chunk before is one rank to the left on the way
 * up, one to the right on the way down, and at home where the ranks turn: hops 0, 1 and P - 1. */
TEST(hops_of_a_zigzag_ring)
{
    int storage[2 * RANKS];
    for (int P = 3; P <= RANKS; P++)
        for (int chunk = 1; chunk <= 4; chunk++) {
            ck_assert_int_eq(self(RA_ZIGZAG, P, 2 * chunk, 0, storage).count, 1);
            for (int L = 1; L <= chunk; L++) {
                struct ra_schedule schedule = self(RA_ZIGZAG, P, 2 * chunk, L, storage);
                ck_assert_int_eq(schedule.count, 3);
                ck_assert_int_eq(schedule.hop[0], 0);
                ck_assert_int_eq(schedule.hop[1], 1);
                ck_assert_int_eq(schedule.hop[2], P - 1);

                /* Rank 0 has the last chunk of all, which nobody looks back to. */
                ck_assert_int_eq(schedule.last[0], 1);
                for (int r = 1; r < P; r++)
                    ck_assert_int_eq(schedule.last[r], P - 1);
            }
        }
}

/* Without positions: the same number of hops for every block, from none to all the way round. */
TESTS(fixed_hops, 1, RANKS + 1)
{
    for (int hops = 1; hops <= _i; hops++) {
        struct guarded got;
        got.schedule = ra_schedule_round(_i, hops, poison(&got));
        ck_assert_int_eq(got.schedule.count, hops);
        for (int hop = 0; hop < hops; hop++)
            ck_assert_int_eq(got.schedule.hop[hop], hop);
        for (int origin = 0; origin < _i; origin++)
            ck_assert_int_eq(got.schedule.last[origin], hops - 1);
        for (int e = 0; e < GUARD; e++) {
            ck_assert_int_eq(got.storage[e], POISON);
            ck_assert_int_eq(got.storage[GUARD + ra_schedule_storage(_i) + e], POISON);
        }
    }
}

int main(void)
{
    return suite_main("schedule", 60);
}
