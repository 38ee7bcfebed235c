/* check_slices: lists of slices, from all pairs of positions.
 *
 * The references here ask of every query and key whether they are in a slice, one pair after the
 * other. They know no sweep, no cut and no search.
 */
#include "ra_slices.h"
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_math.h"
#include "ra_system.h"
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
struct read {
    struct ra_slices slices;
    void *storage;
    enum ra_status status;
    char error[RA_ERROR_SIZE];
};

static struct read read_list(const struct ra_slice *given, int64_t count, int64_t N, int64_t M)
{
    struct read got = {.storage = malloc((size_t)ra_slices_storage(count) + 8)};
    ck_assert_ptr_nonnull(got.storage);
    got.status = ra_slices_read(&got.slices, given, count, N, M, got.storage, got.error);
    return got;
}

/* ---- One slice. */

START_TEST(tightened_slices_see_the_same)
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
END_TEST

/* Local row a of the queries sees local key b exactly if the cut says so. */
START_TEST(cuts_hold_what_the_slice_sees)
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
END_TEST

/* ---- Lists. */

/* Random lists: the sweep finds an overlap exactly if a pair is in two slices, and names two that
 * have one. Kept lists have all slices that are not empty. */
START_TEST(overlaps_are_found)
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
        struct read got = read_list(list, count, N, M);
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
END_TEST

/* Those whose queries are among these positions, one after the other. */
START_TEST(slices_are_found)
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
        struct read got = read_list(list, count, N, MOST);
        ck_assert_int_eq(got.status, RA_OK);
        for (int64_t first = 0; first < N; first++)
            for (int64_t last = first; last < N; last++) {
                int64_t next = ra_slices_next(&got.slices, 0, first, last);
                for (int64_t x = 0; x < count; x++) {
                    const struct ra_slice *s = &got.slices.slice[x];
                    if (s->q0 > last || s->q1 <= first)
                        continue;
                    ck_assert_int_eq(next, x);
                    next = ra_slices_next(&got.slices, x + 1, first, last);
                }
                ck_assert_int_eq(next, count);
            }
        free(got.storage);
    }
}
END_TEST

/* Two slices that overlap in late rows only, and until shortly before have one between them, which
 * is the last to begin. */
START_TEST(late_neighbours_overlap)
{
    struct ra_slice list[] = {{0, 20, 0, 20, -RA_BAND_FAR, 0},
                              {0, 20, 10, 13, -RA_BAND_FAR, RA_BAND_FAR},
                              {0, 6, 8, 10, -RA_BAND_FAR, RA_BAND_FAR}};
    struct read got = read_list(list, 3, 20, 20);
    ck_assert_int_eq(got.status, RA_INVALID);
    ck_assert_str_eq(got.error, "slices[0] and slices[1] overlap: give each pair of a query and a "
                                "key to one slice at most");
    free(got.storage);
}
END_TEST

START_TEST(wrong_slices_are_named)
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
        struct read got = read_list(list, 2, 10, 20);
        ck_assert_int_eq(got.status, RA_INVALID);
        ck_assert_str_eq(got.error, wrong[w].text);
        free(got.storage);
    }

    /* No slice at all, and some that are empty in one way or another, at the ends of the sequences,
     * too. */
    struct ra_slice empty[] = {{10, 10, 0, 20, 0, 0}, {0, 10, 20, 20, 0, 0},  {0, 10, 0, 20, 1, 0},
                               {0, 1, 0, 1, 1, 5},    {0, 10, 0, 20, 25, 30}, good};
    for (int64_t count = 0; count <= 6; count++) {
        struct read got = read_list(empty, count, 10, 20);
        ck_assert_int_eq(got.status, RA_OK);
        ck_assert_int_eq(got.slices.count, count == 6);
        free(got.storage);
    }
}
END_TEST

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

START_TEST(makers_make_the_masks)
{
    struct ra_slice list[MOST];
    int64_t count = make((enum maker)_i, list), M = _i == PAIRS || _i == WHOLE ? 24 : LENGTH;
    struct read got = read_list(list, count, LENGTH, M);
    ck_assert_int_eq(got.status, RA_OK);
    for (int64_t i = 0; i < LENGTH; i++)
        for (int64_t j = 0; j < M; j++)
            ck_assert_int_eq(how_often(list, count, i, j), wanted((enum maker)_i, i, j));
    free(got.storage);
}
END_TEST

/* ---- Many. */

/* The best of a few tries: other processes take time, too. */
static double milliseconds_to_read(const struct ra_slice *list, int64_t count, int64_t N, int64_t M)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double start = ra_seconds();
        struct read got = read_list(list, count, N, M);
        double took = 1e3 * (ra_seconds() - start);
        ck_assert_int_eq(got.status, RA_OK);
        ck_assert_int_eq(got.slices.count, count);
        free(got.storage);
        best = took < best ? took : best;
    }
    return best;
}

/* A hundred thousand slices: documents, in order and not; columns, all of which every query sees;
 * diagonals. Under sanitizers this takes longer, but not hours. */
START_TEST(many_slices_take_milliseconds)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("slices");
    TCase *one = tcase_create("one slice"), *lists = tcase_create("lists");
    tcase_add_loop_test(one, tightened_slices_see_the_same, 0, 4);
    tcase_add_loop_test(one, cuts_hold_what_the_slice_sees, 0, 4);
    tcase_set_timeout(lists, 120);
    tcase_add_loop_test(lists, overlaps_are_found, 0, 12);
    tcase_add_loop_test(lists, slices_are_found, 0, 4);
    tcase_add_test(lists, late_neighbours_overlap);
    tcase_add_test(lists, wrong_slices_are_named);
    tcase_add_loop_test(lists, makers_make_the_masks, 0, MAKERS);
    tcase_add_test(lists, many_slices_take_milliseconds);
    suite_add_tcase(suite, one);
    suite_add_tcase(suite, lists);
    return suite_run(suite);
}
