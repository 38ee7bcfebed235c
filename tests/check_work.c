/* check_work: lists of work for kernels, held against the slices that they are made of, pair by
 * pair.
 */
#include <stdlib.h>
#include <string.h>
#include "../kernels/ra_work.h"
#include "numbers.h"
#include "patterns.h"
#include "ra_math.h"
#include "ra_slices.h"
#include "suite.h"

enum { MOST_ROWS = 700, MOST_STEPS = 4, MOST_PARTS = 3000 };

static struct trial {
    int64_t n, m;
    int steps;
    struct ra_span keys[MOST_STEPS];
    struct ra_slice slices[PATTERN_SLICES];
    int64_t count;
} p;

static struct ra_work_lists lists;
static int64_t first[MOST_STEPS], count[MOST_STEPS];

static bool sees(int64_t i, int64_t j)
{
    for (int64_t s = 0; s < p.count; s++) {
        const struct ra_slice *slice = &p.slices[s];
        if (i >= slice->q0 && i < slice->q1 && j >= slice->k0 && j < slice->k1 &&
            j - i >= slice->lo && j - i <= slice->hi)
            return true;
    }
    return false;
}

static int64_t cut(int step, struct ra_span_pair *pairs)
{
    int64_t some = 0;
    for (int64_t s = 0; s < p.count; s++) {
        pairs[some] = ra_slice_cut(&p.slices[s], (struct ra_span){0, 1, p.n}, p.keys[step]);
        some += pairs[some].rows > 0;
    }
    return some;
}

/* Lists of queries for all steps; of keys, which must be of one step. */
static void make(int tile_rows, bool of_keys)
{
    static bool edge[MOST_ROWS + 1];
    struct ra_span_pair pairs[PATTERN_SLICES];
    int64_t rows = of_keys ? p.m : p.n, most = ra_work_most_tiles(rows, tile_rows);
    lists = (struct ra_work_lists){.tile_rows = tile_rows, .rows = rows, .most_parts = MOST_PARTS};
    lists.start = calloc((size_t)most + 1, sizeof *lists.start);
    lists.newest = calloc((size_t)most, sizeof *lists.newest);
    lists.tile = calloc((size_t)(most * p.steps), sizeof *lists.tile);
    lists.part = calloc(MOST_PARTS, sizeof *lists.part);
    lists.sight = calloc((size_t)MOST_PARTS * (size_t)tile_rows, sizeof *lists.sight);
    memset(edge, 0, sizeof edge);
    for (int64_t s = 0; s < p.count; s++)
        edge[p.slices[s].q0] = edge[p.slices[s].q1] = true;
    ra_work_cut(&lists, of_keys ? NULL : edge);
    ck_assert_int_le(lists.tiles, most);
    for (int step = p.steps - 1; step >= 0; step--) {
        first[step] = lists.tile_count;
        count[step] = ra_work_add(&lists, step, pairs, cut(step, pairs), of_keys, of_keys);
        ck_assert_int_ge(count[step], 0);
    }
    for (int step = 0; step < p.steps; step++)
        ra_work_sort(lists.tile + first[step], count[step]);
}

static void forget(void)
{
    void *all[] = {lists.start, lists.newest, lists.tile, lists.part, lists.sight};
    for (int i = 0; i < 5; i++)
        free(all[i]);
}

/* Does row `row` of those that stay see row `other`, of this step, by the slices? */
static bool sees_at(int step, bool of_keys, int64_t row, int64_t other)
{
    int64_t query = of_keys ? other : row, key = of_keys ? row : other;
    return sees(query, p.keys[step].first + key);
}

static bool within(struct ra_sight sight, int64_t i)
{
    return sight.first <= i && i < sight.end;
}

/* One tile of a step: every pair is in as many parts as it should be, none or one; and what a part
 * says of its rows together is what they see. */
static void check_tile(int step, bool of_keys, const struct ra_work_tile *tile)
{
    int64_t others = of_keys ? p.n : p.keys[step].count;
    ck_assert_int_ge(tile->parts, 1);
    ck_assert(tile->rows >= 1 && tile->rows <= lists.tile_rows);
    for (int64_t other = 0; other < others; other++)
        for (int i = 0; i < tile->rows; i++) {
            int in = 0;
            for (int part = tile->part; part < tile->part + tile->parts; part++)
                in += within(lists.sight[(int64_t)part * lists.tile_rows + i], other);
            ck_assert_msg(in == sees_at(step, of_keys, tile->row + i, other),
                          "step %d: row %d of those that stay, %d of the others: in %d parts", step,
                          tile->row + i, (int)other, in);
        }
    for (int part = tile->part; part < tile->part + tile->parts; part++) {
        const struct ra_work_part *seen = &lists.part[part];
        for (int64_t other = 0; other < others; other++)
            for (int g = -1; g < lists.tile_rows / 64; g++) {
                bool some = false, every = true;
                int begin = g < 0 ? 0 : 64 * g;
                int end = (int)ra_min(tile->rows, g < 0 ? tile->rows : begin + 64);
                for (int i = begin; i < end; i++) {
                    bool in = within(lists.sight[(int64_t)part * lists.tile_rows + i], other);
                    some = some || in;
                    every = every && in;
                }
                every = every && begin < end;
                ck_assert(!some || within(g < 0 ? seen->some : seen->some_of[g], other));
                ck_assert(within(g < 0 ? seen->every : seen->every_of[g], other) == every);
            }
        for (int i = tile->rows; i < lists.tile_rows; i++) {
            struct ra_sight sight = lists.sight[(int64_t)part * lists.tile_rows + i];
            ck_assert_int_le(sight.end, sight.first);
        }
    }
}

/* All tiles. Each row is in one tile at most at a step, and in all of them in the same one; its
 * first tile is `first`, its last `last`, and there is one. */
static void check_lists(bool of_keys)
{
    int64_t rows = of_keys ? p.m : p.n;
    for (int64_t row = 0; row < rows; row++) {
        const struct ra_work_tile *before = NULL;
        for (int step = 0; step < p.steps; step++) {
            const struct ra_work_tile *at = NULL;
            bool any = false;
            for (int64_t t = first[step]; t < first[step] + count[step]; t++) {
                const struct ra_work_tile *tile = &lists.tile[t];
                if (row < tile->row || row >= tile->row + tile->rows)
                    continue;
                ck_assert_ptr_null(at);
                at = tile;
            }
            for (int64_t other = 0; other < (of_keys ? p.n : p.keys[step].count); other++)
                any = any || sees_at(step, of_keys, row, other);
            ck_assert(at || !any);
            if (!at)
                continue;
            ck_assert(at->first == !before);
            ck_assert(!before || (before->row == at->row && !before->last));
            before = at;
        }
        ck_assert(before && before->last);
    }
    for (int step = 0; step < p.steps; step++)
        for (int64_t t = first[step]; t < first[step] + count[step]; t++) {
            check_tile(step, of_keys, &lists.tile[t]);
            ck_assert(t == first[step] || lists.tile[t].work <= lists.tile[t - 1].work);
        }
}

TESTS(masks, 0, 8 * PATTERNS)
{
    uint64_t state = (uint64_t)_i + 1;
    enum pattern pattern = (enum pattern)(_i % PATTERNS);
    p.n = 1 + random_below(&state, _i % 5 ? 90 : MOST_ROWS);
    p.m = pattern < PAIRS_OF_DOCUMENTS ? p.n : 1 + random_below(&state, _i % 5 ? 90 : MOST_ROWS);
    p.count = pattern_make(pattern, p.n, p.m, &state, p.slices);
    int tile_rows = random_below(&state, 2) ? 192 : 128;

    /* Steps have neighbouring keys, in any order. */
    p.steps = 1 + (int)random_below(&state, MOST_STEPS);
    int64_t ends[MOST_STEPS], turn = random_below(&state, p.steps);
    for (int i = 0; i < p.steps; i++)
        ends[i] = i + 1 == p.steps ? p.m : p.m * (i + 1) / p.steps;
    for (int i = 0; i < p.steps; i++) {
        int64_t from = i == 0 ? 0 : ends[i - 1];
        p.keys[(i + turn) % p.steps] = (struct ra_span){from, 1, ends[i] - from};
    }
    make(tile_rows, false);
    check_lists(false);
    forget();

    p.steps = 1;
    p.keys[0] = (struct ra_span){0, 1, p.m};
    make(tile_rows, true);
    check_lists(true);
    forget();
}

/* Many documents of a token share tiles; a long one has tiles of its own, of whole groups. */
TEST(tiles)
{
    bool edge[MOST_ROWS + 1] = {false};
    for (int i = 0; i <= 300; i++)
        edge[i] = true;
    int start[100];
    int64_t newest[100];
    lists = (struct ra_work_lists){
        .tile_rows = 192, .rows = MOST_ROWS, .start = start, .newest = newest};
    ra_work_cut(&lists, edge);
    const int wanted[] = {0, 192, 300, 364, 556, MOST_ROWS};
    ck_assert_int_eq(lists.tiles, 5);
    for (int t = 0; t <= 5; t++)
        ck_assert_int_eq(start[t], wanted[t]);
}

/* More parts than there is room for. */
TEST(no_room)
{
    p = (struct trial){.n = 200, .m = 200, .steps = 1, .keys = {{0, 1, 200}}, .count = 1};
    p.slices[0] = (struct ra_slice){0, 200, 0, 200, -RA_BAND_FAR, 0};
    struct ra_span_pair pairs[PATTERN_SLICES];
    make(128, false);
    lists.tile_count = lists.part_count = 0;
    lists.most_parts = 1;
    ra_work_cut(&lists, NULL);
    ck_assert_int_eq(ra_work_add(&lists, 0, pairs, cut(0, pairs), false, false), -1);
    forget();
}

int main(void)
{
    return suite_main("work", 120);
}
