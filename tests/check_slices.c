/* check_slices: lists of slices, from all pairs of positions.
 *
 * The references here ask of every query and key whether they are in a slice, one pair after the
 * other. They know no sweep, no cut and no search. Results of the library are
 * judged by tests/rig/truth.h; outputs begin as NaN.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ra_deal.h"
#include "ra_math.h"
#include "ring_attention_threads.h"
#include "runs.h"
#include "suite.h"

enum { MOST = 24 }; /* slices of the small lists */

/* A random number, 0 .. below - 1. */
static int64_t draw(uint64_t *state, int64_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((*state >> 33) % (uint64_t)below);
}

static bool sees(const struct ra_slice *s, int64_t i, int64_t j)
{
    return i >= s->q0 && i < s->q1 && j >= s->k0 && j < s->k1 && j - i >= s->lo && j - i <= s->hi;
}

static int how_often(const struct ra_slice *slices, int64_t count, int64_t i, int64_t j)
{
    int times = 0;
    for (int64_t x = 0; x < count; x++)
        times += sees(&slices[x], i, j);
    return times;
}

/* A slice of any shape, mostly not empty: a rectangle, and a band that may be open on either
 * side. */
static struct ra_slice random_slice(uint64_t *state, int64_t N, int64_t M)
{
    struct ra_slice s;
    s.q0 = draw(state, N + 1);
    s.q1 = s.q0 + draw(state, N - s.q0 + 1);
    s.k0 = draw(state, M + 1);
    s.k1 = s.k0 + draw(state, M - s.k0 + 1);
    s.lo = draw(state, 3) == 0 ? -RA_BAND_FAR : s.k0 - s.q1 + draw(state, M + 2);
    s.hi = draw(state, 3) == 0 ? RA_BAND_FAR : s.k0 - s.q1 + draw(state, N + M + 2);
    if (draw(state, 10) == 0)
        s.lo = INT64_MIN;
    if (draw(state, 10) == 0)
        s.hi = INT64_MAX;
    return s;
}

/* A list that has been read, with its memory. */
struct list_read {
    struct ra_slices slices;
    void *storage;
    enum ra_status status;
    char error[RA_ERROR_SIZE];
};

static struct list_read read_list(const struct ra_slice *given, int64_t count, int64_t N, int64_t M)
{
    struct list_read got = {.storage = malloc((size_t)ra_slices_storage(count) + 8)};
    ck_assert_ptr_nonnull(got.storage);
    got.status = ra_slices_read(&got.slices, given, count, N, M, got.storage, got.error);
    return got;
}

/* ---- One slice. */

CASE(one, 120);

TESTS(tightened_slices_see_the_same, 0, 4)
{
    enum { N = 9, M = 11 };
    uint64_t state = (uint64_t)_i + 1;
    for (int round = 0; round < 2000; round++) {
        struct ra_slice s = random_slice(&state, N, M), t = ra_slice_tighten(&s);
        int64_t pairs = 0, edges[6] = {0};
        for (int64_t i = 0; i < N; i++)
            for (int64_t j = 0; j < M; j++) {
                ck_assert_int_eq(sees(&s, i, j), sees(&t, i, j));
                if (!sees(&s, i, j))
                    continue;
                pairs++;
                edges[0] += i == t.q0;
                edges[1] += i == t.q1 - 1;
                edges[2] += j == t.k0;
                edges[3] += j == t.k1 - 1;
                edges[4] += j - i == t.lo;
                edges[5] += j - i == t.hi;
            }
        ck_assert_int_eq(ra_slice_pairs(&s), pairs);
        ck_assert_int_eq(ra_slice_is_empty(&s), pairs == 0);
        for (int e = 0; e < 6; e++)
            ck_assert_int_eq(edges[e] > 0, pairs > 0);
    }
}

/* Local row a of the queries sees local key b exactly if the cut says so. */
TESTS(cuts_hold_what_the_slice_sees, 0, 4)
{
    enum { N = 23, M = 19 };
    uint64_t state = (uint64_t)_i + 77;
    for (int round = 0; round < 2000; round++) {
        struct ra_slice s = random_slice(&state, N, M);
        int64_t stride = 1 + draw(&state, 4);
        struct ra_span q = {draw(&state, N), stride, 0}, k = {draw(&state, M), stride, 0};
        q.count = draw(&state, (N - 1 - q.first) / stride + 2);
        k.count = draw(&state, (M - 1 - k.first) / stride + 2);
        struct ra_span_pair cut = ra_slice_cut(&s, q, k);
        int64_t seen = 0;
        for (int64_t a = 0; a < q.count; a++)
            for (int64_t b = 0; b < k.count; b++) {
                int64_t x = a - cut.a, y = b - cut.b;
                bool inside = x >= 0 && x < cut.rows && y >= 0 && y < cut.visitors &&
                              y - x >= cut.band.lo && y - x <= cut.band.hi;
                bool want = sees(&s, q.first + a * stride, k.first + b * stride);
                ck_assert_int_eq(inside, want);
                seen += want;
            }
        ck_assert(cut.a >= 0 && cut.a + cut.rows <= q.count);
        ck_assert(cut.b >= 0 && cut.b + cut.visitors <= k.count);
        if (seen == 0)
            ck_assert(cut.rows == 0 && cut.visitors == 0);
    }
}

/* ---- Lists. */

CASE(lists, 120);

/* Random lists: the sweep finds an overlap exactly if a pair is in two slices, and names two that
 * have one. Kept lists have all slices that are not empty. */
TESTS(overlaps_are_found, 0, 12)
{
    int overlaps = 0, kept = 0;
    uint64_t state = (uint64_t)_i * 1000 + 5;
    for (int round = 0; round < 3000; round++) {
        int64_t N = 1 + draw(&state, 12), M = 1 + draw(&state, 12), count = draw(&state, 12);
        struct ra_slice list[MOST];
        for (int64_t x = 0; x < count; x++)
            list[x] = random_slice(&state, N, M);

        /* So that long lists without overlap are not rare: what overlaps with those before it is
         * left out, at times. */
        bool disjoint = draw(&state, 2) == 0;
        for (int more = 0; disjoint && more < 100 && count < MOST; more++)
            list[count++] = random_slice(&state, N, M);
        for (int64_t x = 0; disjoint && x < count;) {
            bool meets = false;
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < M; j++)
                    meets |= sees(&list[x], i, j) && how_often(list, x, i, j) > 0;
            if (meets)
                list[x] = list[--count];
            else
                x++;
        }

        int most = 0;
        int64_t filled = 0;
        for (int64_t i = 0; i < N; i++)
            for (int64_t j = 0; j < M; j++)
                most = how_often(list, count, i, j) > most ? how_often(list, count, i, j) : most;
        for (int64_t x = 0; x < count; x++)
            filled += !ra_slice_is_empty(&list[x]);
        struct list_read got = read_list(list, count, N, M);
        ck_assert_int_eq(got.status, most > 1 ? RA_INVALID : RA_OK);
        if (most > 1) {
            int x = -1, y = -1;
            bool shared = false;
            ck_assert_int_eq(sscanf(got.error, "slices[%d] and slices[%d]", &x, &y), 2);
            ck_assert(x >= 0 && x < y && y < count);
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < M; j++)
                    shared |= sees(&list[x], i, j) && sees(&list[y], i, j);
            ck_assert(shared);
        } else {
            ck_assert_int_eq(got.slices.count, filled);
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < M; j++)
                    ck_assert_int_eq(how_often(got.slices.slice, got.slices.count, i, j),
                                     how_often(list, count, i, j));
        }
        overlaps += most > 1;
        kept += most <= 1 && filled > 3;
        free(got.storage);
    }
    ck_assert_int_gt(overlaps, 200);
    ck_assert_int_gt(kept, 500);
}

/* Those whose queries are among these positions, one after the other. */
TESTS(slices_are_found, 0, 4)
{
    enum { N = 40 };
    uint64_t state = (uint64_t)_i + 3;
    for (int round = 0; round < 300; round++) {
        struct ra_slice list[MOST];
        int64_t count = draw(&state, MOST + 1);
        for (int64_t x = 0; x < count; x++) {
            int64_t q0 = draw(&state, N), q1 = q0 + 1 + draw(&state, draw(&state, 4) ? 4 : N);
            list[x] = (struct ra_slice){q0, ra_min(q1, N), x, x + 1, -RA_BAND_FAR, RA_BAND_FAR};
        }
        struct list_read got = read_list(list, count, N, MOST);
        ck_assert_int_eq(got.status, RA_OK);
        int wrong = 0; /* an assertion each would be a message to the parent each */
        for (int64_t first = 0; first < N; first++)
            for (int64_t last = first; last < N; last++) {
                int64_t next = ra_slices_next(&got.slices, 0, first, last);
                for (int64_t x = 0; x < count; x++) {
                    const struct ra_slice *s = &got.slices.slice[x];
                    if (s->q0 > last || s->q1 <= first)
                        continue;
                    wrong += next != x;
                    next = ra_slices_next(&got.slices, x + 1, first, last);
                }
                wrong += next != count;
            }
        ck_assert_int_eq(wrong, 0);
        free(got.storage);
    }
}

/* Two slices that overlap in late rows only, and until then have one between them: they become
 * neighbours when no slice begins any more. */
TEST(late_neighbours_overlap)
{
    struct ra_slice list[] = {{0, 20, 0, 20, -RA_BAND_FAR, 0},
                              {0, 6, 8, 10, -RA_BAND_FAR, RA_BAND_FAR},
                              {0, 20, 10, 13, -RA_BAND_FAR, RA_BAND_FAR}};
    struct list_read got = read_list(list, 3, 20, 20);
    ck_assert_int_eq(got.status, RA_INVALID);
    ck_assert_str_eq(got.error, "slices[0] and slices[2] overlap: give each pair of a query and a "
                                "key to one slice at most");
    free(got.storage);
}

TEST(wrong_slices_are_named)
{
    const struct ra_slice good = {0, 10, 0, 20, -RA_BAND_FAR, 0};
    const struct {
        struct ra_slice slice;
        const char *text;
    } wrong[] = {
        {{-1, 10, 0, 20, 0, 0}, "slices[1].q0 = -1: give 0 to 10, the number of queries"},
        {{0, 11, 0, 20, 0, 0},
         "slices[1].q1 = 11: give 0, where it begins, to 10, the number of queries"},
        {{7, 6, 0, 20, 0, 0},
         "slices[1].q1 = 6: give 7, where it begins, to 10, the number of queries"},
        {{0, 10, 21, 21, 0, 0}, "slices[1].k0 = 21: give 0 to 20, the number of keys"},
        {{0, 10, 3, 2, 0, 0},
         "slices[1].k1 = 2: give 3, where it begins, to 20, the number of keys"},
        {good, "slices[0] and slices[1] overlap: give each pair of a query and a key to one slice "
               "at most"},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        struct ra_slice list[] = {good, wrong[w].slice};
        struct list_read got = read_list(list, 2, 10, 20);
        ck_assert_int_eq(got.status, RA_INVALID);
        ck_assert_str_eq(got.error, wrong[w].text);
        free(got.storage);
    }

    /* No slice at all, and some that are empty in one way or another, at the ends of the sequences,
     * too. */
    struct ra_slice empty[] = {{10, 10, 0, 20, 0, 0}, {0, 10, 20, 20, 0, 0},  {0, 10, 0, 20, 1, 0},
                               {0, 1, 0, 1, 1, 5},    {0, 10, 0, 20, 25, 30}, good};
    for (int64_t count = 0; count <= 6; count++) {
        struct list_read got = read_list(empty, count, 10, 20);
        ck_assert_int_eq(got.status, RA_OK);
        ck_assert_int_eq(got.slices.count, count == 6);
        free(got.storage);
    }
}

/* ---- Makers: what the table of masks says, pair by pair. */

static const int64_t bounds[] = {0, 5, 5, 6, 13, 30};
enum { DOCUMENTS = 5, LENGTH = 30 };

static int document_of(const int64_t *begins, int64_t i)
{
    int d = 0;
    while (i >= begins[d + 1])
        d++;
    return d;
}

enum maker { CAUSAL, FULL, WINDOW, PREFIX, CHUNKS, FIRST, PAIRS, ANSWERS, WHOLE, MAKERS };

static const int64_t key_bounds[] = {0, 3, 9, 9, 20, 24}, prefixes[] = {2, 0, 4, 0, 9};

static int64_t make(enum maker maker, struct ra_slice *list)
{
    switch (maker) {
    case CAUSAL:
        return ra_slices_documents(bounds, DOCUMENTS, RA_NO_LOOKBACK, 0, list);
    case FULL:
        return ra_slices_documents(bounds, DOCUMENTS, RA_NO_LOOKBACK, RA_NO_LOOKBACK, list);
    case WINDOW:
        return ra_slices_documents(bounds, DOCUMENTS, 3, 2, list);
    case PREFIX:
        return ra_slices_prefix(bounds, DOCUMENTS, prefixes, list);
    case CHUNKS:
        return ra_slices_chunks(LENGTH, 7, list);
    case FIRST:
        return ra_slices_first(bounds, DOCUMENTS, 4, 3, list);
    case PAIRS:
        return ra_slices_pairs(bounds, key_bounds, DOCUMENTS, list);
    case ANSWERS:
        return ra_slices_answers(bounds, DOCUMENTS, list);
    default:
        return ra_slices_window(LENGTH, 24, 8, 1, list);
    }
}

static bool wanted(enum maker maker, int64_t i, int64_t j)
{
    int d = document_of(bounds, i),
        e = maker == PAIRS || maker == WHOLE ? 0 : document_of(bounds, j);
    int64_t begin = bounds[d];
    switch (maker) {
    case CAUSAL:
        return d == e && j <= i;
    case FULL:
        return d == e;
    case WINDOW:
        return d == e && j >= i - 3 && j <= i + 2;
    case PREFIX:
        return d == e && (j <= i || j < begin + prefixes[d]);
    case CHUNKS:
        return i / 7 == j / 7 && j <= i;
    case FIRST:
        return d == e && j <= i && (j >= i - 3 || j < begin + 4);
    case PAIRS:
        return document_of(key_bounds, j) == d;
    case ANSWERS:
        return j <= i && (e == 0 || e == d);
    default: /* the last query stands beside the last key */
        return j >= i - 6 - 8 && j <= i - 6 + 1;
    }
}

TESTS(makers_make_the_masks, 0, MAKERS)
{
    struct ra_slice list[MOST];
    int64_t count = make((enum maker)_i, list), M = _i == PAIRS || _i == WHOLE ? 24 : LENGTH;
    struct list_read got = read_list(list, count, LENGTH, M);
    ck_assert_int_eq(got.status, RA_OK);
    for (int64_t i = 0; i < LENGTH; i++)
        for (int64_t j = 0; j < M; j++)
            ck_assert_int_eq(how_often(list, count, i, j), wanted((enum maker)_i, i, j));
    free(got.storage);
}

/* ---- Who has which rows, and who needs whose. */

enum { LONGEST = 60 };

static const struct {
    const char *name;
    enum ra_layout_kind kind;
    int64_t bucket;
    enum ra_deal deal;
} layouts[] = {{"contiguous", RA_CONTIGUOUS, 0, RA_DEAL_LAYOUT},
               {"striped", RA_STRIPED, 0, RA_DEAL_LAYOUT},
               {"striped, bucket 3", RA_STRIPED, 3, RA_DEAL_LAYOUT},
               {"zigzag", RA_ZIGZAG, 0, RA_DEAL_LAYOUT},
               {"documents", RA_CONTIGUOUS, 0, RA_DEAL_DOCUMENTS}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A list of slices that do not overlap: random ones, but for those that meet one before them. */
static int64_t disjoint(uint64_t *state, int64_t N, int64_t M, struct ra_slice list[MOST])
{
    int64_t count = 0;
    bool *seen = calloc((size_t)(N * M) + 1, 1);
    for (int tries = (int)draw(state, 40); tries >= 0 && count < MOST; tries--) {
        struct ra_slice s = random_slice(state, N, M);
        bool meets = false;
        for (int64_t e = 0; e < N * M; e++)
            meets |= seen[e] && sees(&s, e / M, e % M);
        for (int64_t e = 0; e < N * M && !meets; e++)
            seen[e] |= sees(&s, e / M, e % M);
        if (!meets)
            list[count++] = s;
    }
    free(seen);
    return count;
}

/* Documents of random lengths, many of one row, some of none, and some that end where shards do. */
static int64_t documents(uint64_t *state, int64_t N, int64_t P, struct ra_slice list[MOST])
{
    int64_t ends[MOST + 1] = {0}, count = 0, run = (N + P - 1) / P;
    while (ends[count] < N && count < MOST) {
        int64_t kind = draw(state, 4), left = N - ends[count];
        int64_t rows = kind == 0 ? 1 : kind == 1 ? draw(state, left + 1) : draw(state, 9);
        if (kind == 2 && run > 0)
            rows = (ends[count] / run + 1) * run - ends[count];
        ends[count + 1] = ends[count] + ra_min(rows, left);
        count++;
    }
    return ra_slices_documents(ends, count, draw(state, 2) ? RA_NO_LOOKBACK : draw(state, 6),
                               draw(state, 3) ? 0 : RA_NO_LOOKBACK, list);
}

/* Layouts of both sides, with their memory. */
struct dealt {
    struct ra_layout layouts[2];
    struct ra_layout_list lists[2];
    void *storage;
};

static struct dealt *deal(int n, const struct ra_slices *slices, int P, int64_t N, int64_t M)
{
    struct dealt *made = calloc(1, sizeof *made);
    struct ra_config config = RA_CONFIG_INIT;
    config.layout = layouts[n].kind;
    config.bucket = layouts[n].bucket;
    config.queries = N;
    config.ring_size = P;
    made->layouts[0] = ra_layout_of(&config, N);
    made->layouts[1] = ra_layout_of(&config, M);
    int64_t bytes = ra_deal_storage(P, N, M, slices->count);
    made->storage = malloc((size_t)bytes + 64);
    memset((char *)made->storage + bytes, 0x5A, 64);
    if (layouts[n].deal == RA_DEAL_DOCUMENTS)
        ra_deal_documents(slices, P, N, M, made->storage, made->lists, made->layouts);
    for (int b = 0; b < 64; b++)
        ck_assert_int_eq(((char *)made->storage)[bytes + b], 0x5A);
    return made;
}

static void undeal(struct dealt *made)
{
    free(made->storage);
    free(made);
}

/* Has every row one rank, whatever function is asked? */
static void judge_layout(struct ra_layout layout)
{
    int64_t rows = 0, most = 0, end = 0;
    for (int rank = 0; rank < layout.ranks; rank++) {
        int64_t own = 0, before = -1;
        for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
            struct ra_span span = ra_layout_span(layout, rank, s);
            ck_assert_int_eq(ra_layout_rows_before(layout, rank, s), own);
            for (int64_t a = 0; a < span.count; a++, own++) {
                int64_t at = span.first + a * span.stride, row, offset;
                ck_assert_int_eq(ra_layout_find(layout, at, &row), rank);
                ck_assert_int_eq(row, own);
                ck_assert_int_eq(ra_layout_position(layout, rank, own), at);
                ck_assert_int_eq(ra_layout_span_at(layout, rank, own, &offset), s);
                ck_assert_int_eq(offset, a);
                ck_assert(layout.kind != RA_DEALT || at > before);
                before = at;
            }
        }
        ck_assert_int_eq(ra_layout_rows(layout, rank), own);
        rows += own;
        most = ra_max(most, own);
    }
    ck_assert_int_eq(rows, layout.length);
    ck_assert_int_eq(ra_layout_most_rows(layout), most);
    for (int64_t i = 0; i < layout.length; i = end) {
        int rank = ra_layout_run(layout, i, &end);
        ck_assert(end > i && end <= layout.length);
        for (int64_t row; i < end; i++)
            ck_assert_int_eq(ra_layout_find(layout, i, &row), rank);
    }
}

/* The schedule, from all pairs of positions. */
static void judge_schedule(const struct ra_slices *slices, const struct ra_layout pair[2])
{
    int P = pair[0].ranks, last[MOST_RANKS] = {0}, storage[2 * MOST_RANKS], count = 0;
    bool needed[MOST_RANKS] = {true};
    for (int64_t i = 0, row; i < pair[0].length; i++)
        for (int64_t j = 0; j < pair[1].length; j++) {
            if (how_often(slices->slice, slices->count, i, j) == 0)
                continue;
            int origin = ra_layout_find(pair[1], j, &row);
            int hop = (ra_layout_find(pair[0], i, &row) - origin + P) % P;
            needed[hop] = true;
            last[origin] = hop > last[origin] ? hop : last[origin];
        }
    struct ra_schedule got = ra_slices_schedule(slices, pair[0], pair[1], storage);
    for (int rank = 0; rank < P; rank++)
        ck_assert_int_eq(got.last[rank], last[rank]);
    for (int hop = 0; hop < P; hop++)
        if (needed[hop]) {
            ck_assert_int_lt(count, got.count);
            ck_assert_int_eq(got.hop[count++], hop);
        }
    ck_assert_int_eq(got.count, count);
}

/* The cuts of a walk over some rows and keys have each visible pair of them once, and no other. */
static void judge_walk(const struct ra_slices *slices, const struct ra_shard_pair *shards,
                       int64_t a, int64_t rows, int64_t b, int64_t visitors)
{
    static int times[LONGEST * LONGEST];
    memset(times, 0, sizeof times);
    struct ra_span_pair cut;
    struct ra_walk walk = ra_slices_walk(slices, shards, a, rows, b, visitors);
    while (ra_walk_next(&walk, &cut)) {
        int64_t pairs = 0;
        for (int64_t x = 0; x < cut.rows; x++)
            for (int64_t y = 0; y < cut.visitors; y++)
                if (y - x >= cut.band.lo && y - x <= cut.band.hi) {
                    times[(cut.a + x) * LONGEST + cut.b + y]++;
                    pairs++;
                }
        ck_assert_int_gt(pairs, 0);
    }
    for (int64_t x = 0; x < ra_layout_rows(shards->queries, shards->rank); x++)
        for (int64_t y = 0; y < ra_layout_rows(shards->keys, shards->origin); y++) {
            bool inside = x >= a && x < a + rows && y >= b && y < b + visitors;
            int64_t i = ra_layout_position(shards->queries, shards->rank, x);
            int64_t j = ra_layout_position(shards->keys, shards->origin, y);
            ck_assert_int_eq(times[x * LONGEST + y],
                             inside ? how_often(slices->slice, slices->count, i, j) : 0);
        }
}

CASE(ranks, 120);

/* Deals, schedules and walks of random lists, on 1 to 8 ranks. */
TESTS(ranks_are_found, 0, 3 * LAYOUTS)
{
    uint64_t state = (uint64_t)_i * 31 + 7;
    for (int round = 0; round < 60; round++) {
        int P = 1 + (int)draw(&state, MOST_RANKS);
        int64_t N = draw(&state, LONGEST), M = draw(&state, 3) ? N : draw(&state, LONGEST);
        struct ra_slice list[MOST];
        int64_t count = N == M && draw(&state, 2) ? documents(&state, N, P, list)
                                                  : disjoint(&state, N, M, list);
        struct list_read got = read_list(list, count, N, M);
        ck_assert_int_eq(got.status, RA_OK);
        struct dealt *made = deal(_i % LAYOUTS, &got.slices, P, N, M);
        judge_layout(made->layouts[0]);
        judge_layout(made->layouts[1]);
        judge_schedule(&got.slices, made->layouts);
        struct ra_shard_pair shards = {.queries = made->layouts[0], .keys = made->layouts[1]};
        for (int pair = 0; pair < 4; pair++) {
            shards.rank = (int)draw(&state, P), shards.origin = (int)draw(&state, P);
            int64_t n = ra_layout_rows(shards.queries, shards.rank), a = draw(&state, n + 1);
            int64_t m = ra_layout_rows(shards.keys, shards.origin), b = draw(&state, m + 1);
            judge_walk(&got.slices, &shards, 0, n, 0, m);
            judge_walk(&got.slices, &shards, a, draw(&state, n - a + 1), b,
                       draw(&state, m - b + 1));
        }
        int64_t pairs = 0, first = draw(&state, N + 1), end = first + draw(&state, N - first + 1);
        for (int64_t i = first; i < end; i++)
            for (int64_t j = 0; j < M; j++)
                pairs += how_often(list, count, i, j);
        ck_assert_int_eq(ra_slices_seen(&got.slices, first, end), pairs);
        undeal(made);
        free(got.storage);
    }
}

/* A length out of exp(N(6.5, 1.2)), rounded. */
static int64_t lognormal(uint64_t *state)
{
    double u = (double)(1 + draw(state, 1 << 30)) / (1 << 30), v = (double)draw(state, 1 << 30);
    double normal = sqrt(-2 * log(u)) * cos(2 * acos(-1) * v / (1 << 30));
    return (int64_t)round(exp(6.5 + 1.2 * normal));
}

static struct ra_plan *plan_to_look_at(int64_t N, int64_t M, int P, int64_t max_slices,
                                       int64_t max_rows)
{
    struct ra_config config = RA_CONFIG_INIT;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    config.queries = N, config.keys = M, config.dim = 8, config.ring_size = P;
    config.max_slices = max_slices, config.max_rows = max_rows;
    ck_assert_msg(ra_plan_create(&plan, &config, NULL, error) == RA_OK, "%s", error);
    return plan;
}

/* Busiest / mean work, and the same of rows; and what a deal by zigzag would be. */
static double balance_of(struct ra_plan *plan, double *rows)
{
    double all = 0, most = 0, longest = 0;
    int P = ra_plan_ranks(plan);
    struct ra_layout layout = ra_plan_layout(plan, RA_QUERY_SIDE);
    for (int rank = 0; rank < P; rank++) {
        double work = (double)ra_plan_work(plan, rank);
        double own = (double)ra_layout_rows(layout, rank);
        all += work;
        most = work > most ? work : most;
        longest = own > longest ? own : longest;
    }
    *rows = longest * P / (double)layout.length;
    return most * P / all;
}

/* 64 documents of log-normal lengths on 8 ranks, ten times; and many short ones. */
TEST(deals_are_balanced)
{
    enum { COUNT = 10000, P = 8 };
    static int64_t ends[COUNT + 1];
    static struct ra_slice list[COUNT];
    for (int seed = 0; seed < 12; seed++) {
        uint64_t state = (uint64_t)seed * 1234567 + 89;
        int count = seed < 10 ? 64 : COUNT;
        for (int d = 0; d < count; d++)
            ends[d + 1] = ends[d] + (seed < 10    ? lognormal(&state)
                                     : seed == 10 ? 1
                                                  : 1 + draw(&state, 30));
        ra_slices_documents(ends, count, RA_NO_LOOKBACK, 0, list);
        struct ra_plan *plan = plan_to_look_at(ends[count], ends[count], P, COUNT, ends[count]);
        double rows, dealt;
        ck_assert_int_eq(ra_plan_set_slices(plan, list, count, RA_DEAL_LAYOUT), RA_OK);
        double before = balance_of(plan, &rows);
        ck_assert_int_eq(ra_plan_set_slices(plan, list, count, RA_DEAL_DOCUMENTS), RA_OK);
        dealt = balance_of(plan, &rows);
        printf("seed %2d, %5d documents: busiest / mean work %.4f, contiguous %.2f; rows %.3f; %d "
               "spans\n",
               seed, count, dealt, before, rows,
               (int)ra_layout_spans(ra_plan_layout(plan, RA_QUERY_SIDE)));

        /* A deal that forgets who has how much comes to 1.005. */
        ck_assert_double_le(dealt, 1.001);
        ck_assert_double_le(rows, 1.05);
        ra_plan_destroy(plan);
    }
}

/* ---- The library. */

/* A run under a list of slices. */
struct listed {
    struct run run;
    struct problem *p;
    const struct ra_slice *list;
    int64_t count;
    const struct ra_plan *like; /* rows are dealt as they are there; NULL: by this list */
    int64_t bytes[MOST_RANKS];  /* of a rank's plan */
};

/* What a hop may send: keys that somebody further on sees, and gradients that follow them or go
 * home; from all pairs of positions. */
static bool check_traffic(struct listed *run, struct ra_plan *plan, bool backward, char *trouble)
{
    const struct ra_config *c = &run->p->config;
    struct ra_layout queries = ra_plan_layout(plan, RA_QUERY_SIDE);
    struct ra_layout keys = ra_plan_layout(plan, RA_KEY_SIDE);
    int P = ra_plan_ranks(plan), rank = ra_plan_rank(plan), last[MOST_RANKS] = {0};
    bool needed[MOST_RANKS] = {true};
    for (int64_t i = 0, row; i < c->queries && !c->local_keys; i++)
        for (int64_t j = 0; j < c->keys; j++)
            if (how_often(run->list, run->count, i, j) > 0) {
                int origin = ra_layout_find(keys, j, &row);
                int hop = (ra_layout_find(queries, i, &row) - origin + P) % P;
                needed[hop] = true;
                last[origin] = hop > last[origin] ? hop : last[origin];
            }
    int step = 0;
    for (int hop = 0; hop < P; hop++) {
        struct thread_traffic sent = thread_ring_sent(run->run.ring, rank, hop);
        int origin = (rank - hop + P) % P;
        int64_t width = c->dim + (c->dim_value > 0 ? c->dim_value : c->dim);
        int64_t rows = ra_layout_rows(keys, origin), row = c->batch * c->key_heads * width;
        bool here = needed[hop] && hop <= last[origin] && rows > 0, on = here && hop < last[origin];
        bool gradients = backward && here && (on || hop > 0);
        int64_t messages = on + gradients;
        int64_t bytes = rows * (on * (row * ra_type_bytes(c->type) + c->has_mask * c->batch) +
                                gradients * row * 4);
        struct ra_hop said = {.messages = 0};
        if (needed[hop] &&
            (ra_plan_hop(plan, rank, step++, backward, &said) != RA_OK || said.distance != hop ||
             said.messages != messages || said.bytes != bytes))
            snprintf(trouble, TEXT, "says of hop %d: %d messages, %d bytes", hop,
                     (int)said.messages, (int)said.bytes);
        if (sent.messages != messages || sent.bytes != bytes)
            snprintf(trouble, TEXT, "hop %d: sends %d messages, %d bytes for %d, %d", hop,
                     (int)sent.messages, (int)sent.bytes, (int)messages, (int)bytes);
    }
    if (step != ra_plan_hops(plan))
        snprintf(trouble, TEXT, "%d hops for %d", ra_plan_hops(plan), step);
    return !trouble[0];
}

/* Another list first, which leaves nothing behind, and at last one that is refused. */
static bool give_list(struct run *run, struct ra_plan *plan, char *trouble)
{
    struct listed *listed = (struct listed *)run;
    int64_t N = listed->p->config.queries, M = listed->p->config.keys;
    listed->bytes[ra_plan_rank(plan)] = ra_plan_bytes(plan);
    struct ra_slice whole[2] = {{0, N, 0, M, -RA_BAND_FAR, RA_BAND_FAR},
                                {0, N, 0, M, -RA_BAND_FAR, RA_BAND_FAR}};
    if (ra_plan_set_slices(plan, whole, 1, (enum ra_deal)(1 - run->deal)) != RA_OK ||
        (listed->like
             ? ra_plan_set_slices_like(plan, listed->list, listed->count, listed->like)
             : ra_plan_set_slices(plan, listed->list, listed->count, run->deal)) != RA_OK ||
        (N * M > 0 && ra_plan_set_slices(plan, whole, 2, RA_DEAL_LAYOUT) != RA_INVALID))
        snprintf(trouble, TEXT, "slices: %s", ra_plan_error(plan));
    return !trouble[0];
}

static bool check_call(struct run *run, struct ra_plan *plan, bool backward, char *trouble)
{
    struct listed *listed = (struct listed *)run;
    int64_t bytes = listed->bytes[ra_plan_rank(plan)];
    if (ra_plan_bytes(plan) != bytes)
        snprintf(trouble, TEXT, "%" PRId64 " bytes, and %" PRId64 " before", ra_plan_bytes(plan),
                 bytes);
    return !trouble[0] && (!run->ring || check_traffic(listed, plan, backward, trouble));
}

static void run_listed(struct listed *listed)
{
    listed->run.p = listed->p;
    listed->run.order = (enum order)(listed->p->seed % BROADCAST);
    listed->run.delivery = listed->p->seed % 2 ? THREAD_EARLY : THREAD_LATE;
    listed->run.begin = give_list;
    listed->run.check = check_call;
    run_all(&listed->run);
}

/* A random problem under a random list, in this layout. */
static void draw_problem(uint64_t *state, int n, struct problem *p, struct ra_slice list[MOST],
                         int64_t *count)
{
    static const int64_t dims[] = {8, 16, 20, 33};
    *p = (struct problem){.config = RA_CONFIG_INIT};
    struct ra_config *c = &p->config;
    p->seed = (unsigned)draw(state, 1 << 20);
    p->ranks = (int)draw(state, MOST_RANKS + 1);
    p->size = (double[]){0.1, 1, 10, 30}[draw(state, 4)];
    c->batch = 1 + draw(state, 2);

    /* Shorter ones are dealt in one piece. */
    bool pieces = layouts[n].deal == RA_DEAL_DOCUMENTS && draw(state, 8) == 0;
    int64_t longest = pieces ? 200 : LONGEST;
    c->queries = draw(state, longest);
    c->keys = draw(state, 3) ? c->queries : draw(state, longest);
    c->key_heads = 1 + draw(state, 3);
    c->heads = c->key_heads * (1 + draw(state, 3));
    c->head_map = draw(state, 2) ? RA_GROUPED : RA_INTERLEAVED;
    c->dim = dims[draw(state, 4)];
    if (p->seed % BROADCAST != PACKED && draw(state, 3) == 0)
        c->dim_value = 1 + draw(state, 40);
    c->type = draw(state, 3) ? RA_FLOAT32 : draw(state, 2) ? RA_FLOAT16 : RA_BFLOAT16;
    c->softcap = draw(state, 4) ? 0 : 3;
    c->layout = layouts[n].kind;
    c->bucket = layouts[n].bucket;
    c->tile = draw(state, 2) ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    c->threads = 1 + (int)draw(state, 3);
    c->tile_queries = draw(state, 3) ? 1 + draw(state, 20) : 0;
    c->tile_keys = draw(state, 3) ? 1 + draw(state, 20) : 0;
    c->causal = draw(state, 2); /* the mask until slices come */
    if (c->causal && draw(state, 2))
        c->lookback = 0; /* then nothing travels */
    c->max_slices = MOST;
    c->max_rows = longest;
    if (draw(state, 2)) {
        p->masking =
            (enum masking[]){RANDOM_MASK, BATCH_HIDDEN, FIRST_HIDDEN, LAST_SEEN}[draw(state, 4)];
        p->nan_hidden = draw(state, 2);
    }
    *count = c->queries == c->keys && draw(state, 2)
                 ? documents(state, c->queries, problem_ranks(p), list)
                 : disjoint(state, c->queries, c->keys, list);
}

/* Makes a problem of slices, and solves it: with extras, unless that is NULL. */
static void make_problem(struct problem *p, const struct ra_slice *list, int64_t count,
                         struct extras *extras, uint64_t *state)
{
    static const struct ra_slice none[1] = {{0, 0, 0, 0, 0, 0}};
    problem_make(p);
    p->truth.causal = false;
    p->truth.slices = count > 0 ? list : none;
    p->truth.slice_count = count > 0 ? count : 1;
    if (extras)
        extras_solve(extras, p, (int)draw(state, ALL_EXTRAS + 1),
                     (enum sinks)draw(state, SINK_KINDS));
    else
        problem_solve(p);
}

enum { ROUNDS = 15 };
static int first_results = 0, end_of_results = 2 * LAYOUTS; /* rounds; see main */

CASE(library, 300);

TESTS(results_are_right, first_results, end_of_results)
{
    uint64_t state = (uint64_t)_i * 977 + 13;
    for (int round = 0; round < ROUNDS; round++) {
        struct ra_slice list[MOST];
        struct problem p;
        struct extras extras;
        int n = _i % LAYOUTS;
        struct listed x = {.p = &p, .list = list, .run.deal = layouts[n].deal}, again;
        draw_problem(&state, n, &p, list, &x.count);
        x.run.extras = draw(&state, 2) ? &extras : NULL;
        make_problem(&p, list, x.count, x.run.extras, &state);
        again = x;
        run_listed(&x);
        run_judge(&p, &x.run);

        /* The same bits again, with other threads. */
        p.config.threads = 4 - p.config.threads;
        run_listed(&again);
        run_same_bits(&x.run, &again.run);
        outputs_clear(x.run.got);
        outputs_clear(again.run.got);
        if (x.run.extras)
            extras_clear(&extras);
        problem_clear(&p);
    }
}

/* Rows dealt by another list, in another plan that is gone by the time of the calls. Sequences are
 * long enough for many pieces. */
TESTS(rows_of_another_plan_are_taken, 0, 8)
{
    uint64_t state = (uint64_t)_i * 31 + 5;
    for (int round = 0; round < 4; round++) {
        struct ra_slice list[MOST], others[MOST];
        struct problem p;
        struct listed x = {.p = &p, .list = list, .run.deal = RA_DEAL_DOCUMENTS};
        draw_problem(&state, 0, &p, list, &x.count);
        struct ra_config *c = &p.config;
        int64_t N = c->queries = c->max_rows = 200 + draw(&state, 200);
        int64_t M = c->keys = round % 2 ? N : 150 + draw(&state, 50);
        c->batch = 1, c->heads = c->key_heads = 2;
        int P = problem_ranks(&p);
        x.count = disjoint(&state, N, M, list);
        int64_t count = N == M ? documents(&state, N, P, others) : disjoint(&state, N, M, others);
        make_problem(&p, list, x.count, NULL, &state);
        struct ra_plan *one = plan_to_look_at(N, M, P, MOST, N);
        struct ra_plan *two = plan_to_look_at(N, M, P, MOST, N);
        enum ra_deal deal = round == 3 ? RA_DEAL_LAYOUT : RA_DEAL_DOCUMENTS;
        ck_assert_int_eq(ra_plan_set_slices(one, others, count, deal), RA_OK);
        ck_assert_int_eq(ra_plan_set_slices_like(two, list, x.count, one), RA_OK);
        for (int side = 0; side < 2; side++)
            for (int rank = 0; rank < P; rank++)
                for (int64_t a = 0; a < ra_layout_rows(ra_plan_layout(one, side), rank); a++)
                    ck_assert_int_eq(ra_layout_position(ra_plan_layout(two, side), rank, a),
                                     ra_layout_position(ra_plan_layout(one, side), rank, a));
        ra_plan_destroy(one);
        x.like = two;
        run_listed(&x);
        run_judge(&p, &x.run);
        ra_plan_destroy(two);
        outputs_clear(x.run.got);
        problem_clear(&p);
    }
}

/* A list of one slice that says what causal and lookback say: the same results, in the layouts of
 * a config, bit for bit on the tiles of chapter 02. */
TESTS(one_causal_slice_is_causal, 0, 8)
{
    struct ra_slice list[1];
    struct problem p = {.config = RA_CONFIG_INIT, .seed = 3, .ranks = _i / 2};
    struct ra_config *c = &p.config;
    c->queries = 50, c->keys = 50, c->heads = 4, c->key_heads = 2, c->dim = 16;
    c->causal = true, c->layout = RA_ZIGZAG, c->tile = RA_PLAIN_TILE;
    c->tile_queries = 7, c->tile_keys = 5;
    c->lookback = _i % 2 ? 17 : RA_NO_LOOKBACK;
    c->max_slices = 1;
    c->max_rows = 50;
    problem_make(&p);
    problem_solve(&p);
    ra_slices_window(50, 50, c->lookback, 0, list);
    struct listed x = {.p = &p, .list = list, .count = 1};
    run_listed(&x);
    run_judge(&p, &x.run);

    /* And without a list. */
    struct run none = {.p = &p};
    if (p.ranks == 0) {
        run_all(&none);
        run_same_bits(&x.run, &none);
        outputs_clear(none.got);
    }
    outputs_clear(x.run.got);
    problem_clear(&p);
}

/* Ranks that give different lists, or deals: all fail, whatever hops each of them would take, and
 * none has to wait until it is tired. */
struct disagreement {
    struct thread_ring *ring;
    pthread_barrier_t made; /* all have a plan: what a lost create keeps would count as leaked */
    int P, odd, kind, backward;
    enum ra_status status[MOST_RANKS];
    char text[MOST_RANKS][RA_ERROR_SIZE];
    bool written[MOST_RANKS];
};

static void disagree(void *context, int rank)
{
    enum { N = 40, D = 8 };
    struct disagreement *disagreement = context;
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N, config.dim = D, config.max_slices = 3, config.max_rows = N;
    config.threads = 1;
    struct ra_plan *plan;
    struct ra_link link = thread_ring_link(disagreement->ring, rank);
    disagreement->status[rank] = ra_plan_create(&plan, &config, &link, disagreement->text[rank]);
    pthread_barrier_wait(&disagreement->made);
    if (disagreement->status[rank] != RA_OK)
        return;
    static const int64_t bounds_of[] = {0, 13, 27, N};
    struct ra_slice list[3];
    ra_slices_documents(bounds_of, 3, RA_NO_LOOKBACK, 0, list);
    enum ra_deal dealt = RA_DEAL_LAYOUT;
    int64_t count = 3;
    if (rank == disagreement->odd && disagreement->kind < 6)
        ((int64_t *)&list[1])[disagreement->kind] += disagreement->kind % 2 ? -1 : 1;
    if (rank == disagreement->odd && disagreement->kind == 6)
        count = 2;
    if (rank == disagreement->odd && disagreement->kind == 7)
        dealt = RA_DEAL_DOCUMENTS;
    if (rank == disagreement->odd && disagreement->kind == 10) {
        struct ra_plan *other = plan_to_look_at(N, N, disagreement->P, 3, N);
        disagreement->status[rank] = ra_plan_set_slices(other, list, 2, RA_DEAL_DOCUMENTS);
        if (disagreement->status[rank] == RA_OK)
            disagreement->status[rank] = ra_plan_set_slices_like(plan, list, 3, other);
        ra_plan_destroy(other);
    }
    if (disagreement->kind == 10 && rank != disagreement->odd)
        dealt = RA_DEAL_DOCUMENTS;
    if (rank == disagreement->odd &&
        disagreement->kind == 11) { /* the same slices in another order */
        struct ra_slice first = list[0];
        list[0] = list[1], list[1] = first;
    }
    if (rank == disagreement->odd && disagreement->kind == 8)
        ra_slices_window(N, N, 1, 0, list), count = 1;
    if (rank != disagreement->odd || disagreement->kind < 9 ||
        disagreement->kind > 10) /* 9: none; 10: dealt by another list */
        disagreement->status[rank] = ra_plan_set_slices(plan, list, count, dealt);
    float q[N * D], outputs[3][N * D], lse[N];
    for (int e = 0; e < N * D; e++)
        q[e] = outputs[0][e] = outputs[1][e] = outputs[2][e] = (float)(e % 7);
    for (int e = 0; e < N; e++)
        lse[e] = 1;
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = arrays.k = arrays.v = arrays.d_out = ra_tensor_bnhd(q, RA_FLOAT32, n, 1, D);
    arrays.o = ra_tensor_bnhd(outputs[0], RA_FLOAT32, n, 1, D);
    arrays.lse = ra_tensor_bnhd(lse, RA_FLOAT32, n, 1, 1);
    arrays.dq = arrays.o;
    arrays.dk = ra_tensor_bnhd(outputs[1], RA_FLOAT32, n, 1, D);
    arrays.dv = ra_tensor_bnhd(outputs[2], RA_FLOAT32, n, 1, D);
    arrays.dq = ra_tensor_bnhd(q, RA_FLOAT32, n, 1, D);
    struct ra_arrays backward = arrays;
    float dq[N * D];
    backward.dq = ra_tensor_bnhd(dq, RA_FLOAT32, n, 1, D);
    arrays.dq.data = NULL;

    /* What a rank hears from those that agree with it is right, and may be all that it needs. But
     * no call can go on for longer than it takes the failure to come round. */
    for (int calls = 0; calls < 2 * disagreement->P && disagreement->status[rank] == RA_OK; calls++)
        disagreement->status[rank] =
            disagreement->backward ? ra_backward(plan, &backward) : ra_forward(plan, &arrays);
    snprintf(disagreement->text[rank], RA_ERROR_SIZE, "%s", ra_plan_error(plan));
    ra_plan_destroy(plan);
}

TESTS(ranks_that_differ_fail, 0, 2)
{
    for (int P = 2; P <= 5; P++)
        for (int kind = 0; kind < 12; kind++) {
            struct disagreement x = {.P = P, .odd = (kind + P) % P, .kind = kind, .backward = _i};
            x.ring = thread_ring_open(P, 60, THREAD_LATE);
            pthread_barrier_init(&x.made, NULL, (unsigned)P);
            thread_ring_run(P, disagree, &x);
            pthread_barrier_destroy(&x.made);
            thread_ring_close(x.ring);
            bool named = false;
            for (int rank = 0; rank < P; rank++) {
                ck_assert_msg(x.status[rank] == RA_LOST, "kind %d, rank %d of %d: %s: %s", kind,
                              rank, P, ra_status_text(x.status[rank]), x.text[rank]);
                named |= strstr(x.text[rank], "was given other slices, or another deal") != NULL;
                ck_assert_ptr_null(strstr(x.text[rank], "waited"));
            }
            ck_assert(named);
        }
}

/* What a plan refuses, and that nothing has changed then. */
TEST(limits_are_named)
{
    struct ra_slice list[3] = {{0, 50, 0, 50, -RA_BAND_FAR, 0},
                               {50, 90, 50, 90, -RA_BAND_FAR, 0},
                               {90, 100, 90, 100, -RA_BAND_FAR, 0}};
    struct ra_plan *plan = plan_to_look_at(100, 100, 4, 0, 0);
    ck_assert_int_eq(ra_plan_set_slices(plan, list, 1, RA_DEAL_LAYOUT), RA_INVALID);
    ck_assert_str_eq(ra_plan_error(plan),
                     "config.max_slices = 0: plan with as many slices as there will be");
    ck_assert_int_eq(ra_plan_set_slices(NULL, list, 1, RA_DEAL_LAYOUT), RA_INVALID);
    ck_assert_int_eq(ra_plan_work(NULL, 0), -1);
    ck_assert_int_eq(ra_plan_work(plan, 4), -1);
    ck_assert_int_eq(ra_plan_work(plan, -1), -1);
    ck_assert_int_eq(ra_plan_work(plan, 3), 2500);
    ra_plan_destroy(plan);

    plan = plan_to_look_at(100, 100, 4, 2, 0);
    const struct {
        const struct ra_slice *list;
        int64_t count;
        int deal;
        const char *text;
    } wrong[] = {
        {list, -1, 0, "count = -1: give 0 to 2, which is config.max_slices"},
        {list, 3, 0, "count = 3: give 0 to 2, which is config.max_slices"},
        {NULL, 1, 0, "slices is NULL: give an array of 1"},
        {list, 1, 2, "deal = 2: give RA_DEAL_LAYOUT or RA_DEAL_DOCUMENTS"},
        {list, 1, 1, "config.max_rows = 0: this deal gives rank "},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        int hops = ra_plan_hops(plan);
        ck_assert_int_eq(
            ra_plan_set_slices(plan, wrong[w].list, wrong[w].count, (enum ra_deal)wrong[w].deal),
            RA_INVALID);
        ck_assert_msg(strncmp(ra_plan_error(plan), wrong[w].text, strlen(wrong[w].text)) == 0, "%s",
                      ra_plan_error(plan));
        ck_assert_int_eq(ra_plan_hops(plan), hops);
        ck_assert_int_eq(ra_plan_work(plan, 0), 2500);
        ck_assert_int_eq(ra_plan_layout(plan, RA_QUERY_SIDE).kind, RA_CONTIGUOUS);
    }

    /* No slices: nobody sees anything, and nothing travels. */
    ck_assert_int_eq(ra_plan_set_slices(plan, NULL, 0, RA_DEAL_LAYOUT), RA_OK);
    ck_assert_int_eq(ra_plan_hops(plan), 1);
    ck_assert_int_eq(ra_plan_work(plan, 1), 0);
    ck_assert_int_eq(ra_plan_set_slices(plan, list + 1, 2, RA_DEAL_LAYOUT), RA_OK);
    ck_assert_int_eq(ra_plan_hops(plan), 2);
    ra_plan_destroy(plan);
}

/* Plans that do not go together. */
TEST(other_plans_are_refused)
{
    static const struct {
        int64_t N, M, slices;
        int P;
        const char *text;
    } others[] = {{99, 100, 2, 4, "other: give a plan whose config.queries"},
                  {100, 99, 2, 4, "other: give a plan whose config.queries"},
                  {100, 100, 2, 5, "other: give a plan whose config.queries"},
                  {100, 100, 3, 4, "config.max_slices = 2: `other` has 3"},
                  {100, 100, 2, 4, "config.max_rows = 0: this deal gives rank "}};
    struct ra_slice list[2] = {{0, 50, 0, 50, -RA_BAND_FAR, 0}, {50, 90, 50, 90, -RA_BAND_FAR, 0}};
    struct ra_plan *plan = plan_to_look_at(100, 100, 4, 2, 0);
    ck_assert_int_eq(ra_plan_set_slices_like(plan, list, 2, NULL), RA_INVALID);
    ck_assert_str_eq(ra_plan_error(plan), "other is NULL: give a plan");
    ck_assert_int_eq(ra_plan_set_slices_like(NULL, list, 2, plan), RA_INVALID);
    for (size_t o = 0; o < sizeof others / sizeof *others; o++) {
        struct ra_plan *other =
            plan_to_look_at(others[o].N, others[o].M, others[o].P, others[o].slices, 100);
        if (o == 4)
            ck_assert_int_eq(ra_plan_set_slices(other, list, 2, RA_DEAL_DOCUMENTS), RA_OK);
        ck_assert_int_eq(ra_plan_set_slices_like(plan, list, 2, other), RA_INVALID);
        ck_assert_msg(strncmp(ra_plan_error(plan), others[o].text, strlen(others[o].text)) == 0,
                      "%s", ra_plan_error(plan));
        ck_assert_int_eq(ra_plan_work(plan, 0), 2500);
        ra_plan_destroy(other);
    }
    ra_plan_destroy(plan);
}

/* ---- Many. */

/* The best of a few tries: other processes take time, too. */
static double milliseconds_to_read(const struct ra_slice *list, int64_t count, int64_t N, int64_t M)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        clock_t start = clock(); /* of the processor: others may use it, too */
        struct list_read got = read_list(list, count, N, M);
        double took = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
        ck_assert_int_eq(got.status, RA_OK);
        ck_assert_int_eq(got.slices.count, count);
        free(got.storage);
        best = took < best ? took : best;
    }
    return best;
}

CASE(lists, 120);

/* Places in documents, of which one is empty, of rows in any order. */
TEST(rows_have_places)
{
    int64_t positions[LENGTH];
    for (int64_t a = 0; a < LENGTH; a++)
        positions[a] = a * 7 % LENGTH;
    ra_slices_places(bounds, DOCUMENTS, LENGTH, positions);
    for (int64_t a = 0; a < LENGTH; a++) {
        int64_t i = a * 7 % LENGTH;
        ck_assert_int_eq(positions[a], i - bounds[document_of(bounds, i)]);
    }
}

/* A hundred thousand slices: documents, in order and not; columns, all of which every query sees;
 * diagonals. Under sanitizers this takes longer, but not hours. */
TEST(many_slices_take_milliseconds)
{
    enum { COUNT = 100000, ROWS = 7 };
    struct ra_slice *list = malloc(COUNT * sizeof *list);
    uint64_t state = 9;
    int64_t all = (int64_t)COUNT * ROWS;
    ck_assert_ptr_nonnull(list);
    for (int shape = 0; shape < 4; shape++) {
        for (int64_t x = 0; x < COUNT; x++) {
            int64_t at = x * ROWS;
            list[x] = (struct ra_slice){at, at + ROWS, at, at + ROWS, -RA_BAND_FAR, 0};
            if (shape == 2)
                list[x].q0 = 0, list[x].q1 = all, list[x].hi = RA_BAND_FAR;
            if (shape == 3)
                list[x] = (struct ra_slice){0, all, 0, all, at - all / 2, at - all / 2 + ROWS - 1};
        }
        for (int64_t x = COUNT - 1; shape > 0 && x > 0; x--) {
            int64_t other = draw(&state, x + 1);
            struct ra_slice swapped = list[x];
            list[x] = list[other];
            list[other] = swapped;
        }
        double took = milliseconds_to_read(list, COUNT, all, all);
        printf("%d slices, shape %d: %.1f ms\n", COUNT, shape, took);
        ck_assert_double_lt(took, 1000);
    }
    free(list);
}

/* check-slices [COUNT [FIRST]]: with COUNT that many random problems alone, a process for every 15,
 * from number FIRST on; each is run twice, with threads of different numbers. */
int main(int argc, char **argv)
{
    if (argc > 1) {
        int first = argc > 2 ? atoi(argv[2]) : 0;
        first_results = first / ROUNDS;
        end_of_results = (first + atoi(argv[1]) + ROUNDS - 1) / ROUNDS;
        setenv("RUN_TEST", "results_are_right", 1);
    }
    return suite_main("slices", 300);
}
