/* check_band: the band against positions, pair by pair; the fold against folding every tile.
 *
 * The reference here asks each query and key where they stand and compares. It knows no strides,
 * no division and no local rows. Tests of bands run once for each stride.
 */
#include "ra_band.h"
#include "suite.h"
#include <inttypes.h>

/* Firsts of spans -FIRST..FIRST, rows of a span 0..ROWS - 1, strides 1..STRIDES, lookbacks
 * 0..LOOKBACKS - 1 and none. */
enum { FIRST = 6, ROWS = 6, STRIDES = 5, LOOKBACKS = 15 };
#define NO_LIMIT RA_BAND_FAR

/* Does row a of the queries see row b of the keys? */
static bool sees(struct ra_span queries, int64_t a, struct ra_span keys, int64_t b,
                 int64_t lookback)
{
    int64_t query = queries.first + a * queries.stride, key = keys.first + b * keys.stride;
    return key <= query && (lookback >= NO_LIMIT || query - key <= lookback);
}

/* What the tile makes of a band. */
static bool inside(struct ra_band band, int64_t a, int64_t b)
{
    return b - a >= band.lo && b - a <= band.hi;
}

/* Fails the test and names the case. Unlike ck_assert it costs nothing when all is well: there are
 * millions of cases. */
static void wrong(const char *what, struct ra_span queries, struct ra_span keys, int64_t lookback,
                  int64_t a, int64_t b)
{
    ck_abort_msg("%s: queries from %" PRId64 ", keys from %" PRId64 ", stride %" PRId64
                 ", lookback %" PRId64 ", row %" PRId64 ", key %" PRId64,
                 what, queries.first, keys.first, keys.stride, lookback, a, b);
}

/* Every tile of a pair of spans: the band counted from where it begins, and whether it is empty. */
static void judge_tiles(struct ra_span queries, struct ra_span keys, int64_t lookback)
{
    struct ra_band band = ra_band_causal(queries, keys, lookback);
    for (int64_t a = 0; a < queries.count; a++)
        for (int64_t b = 0; b < keys.count; b++) {
            struct ra_band from = ra_band_from(band, a, b);
            for (int64_t query_rows = 0; query_rows <= queries.count - a; query_rows++)
                for (int64_t key_rows = 0; key_rows <= keys.count - b; key_rows++) {
                    bool any = false;
                    for (int64_t x = 0; x < query_rows; x++)
                        for (int64_t y = 0; y < key_rows; y++) {
                            bool want = sees(queries, a + x, keys, b + y, lookback);
                            if (inside(from, x, y) != want)
                                wrong("band", queries, keys, lookback, a + x, b + y);
                            any = any || want;
                        }
                    if (ra_band_is_empty(from, query_rows, key_rows) == any)
                        wrong("is_empty of a tile", queries, keys, lookback, a, b);
                }
        }
}

TESTS(every_small_pair_of_spans, 1, STRIDES + 1)
{
    for (int64_t i = -FIRST; i <= FIRST; i++)
        for (int64_t j = -FIRST; j <= FIRST; j++)
            for (int64_t lookback = 0; lookback <= LOOKBACKS; lookback++)
                judge_tiles((struct ra_span){i, _i, ROWS}, (struct ra_span){j, _i, ROWS},
                            lookback < LOOKBACKS ? lookback : NO_LIMIT);
}

/* The band belongs to the first rows and the stride; how many rows follow does not change it. */
TESTS(counts_do_not_matter, 1, STRIDES + 1)
{
    for (int64_t i = -FIRST; i <= FIRST; i++)
        for (int64_t lookback = 0; lookback <= LOOKBACKS; lookback++) {
            struct ra_span queries = {i, _i, ROWS}, keys = {1, _i, ROWS};
            struct ra_band want = ra_band_causal(queries, keys, lookback);
            for (queries.count = 0; queries.count <= ROWS; queries.count++)
                for (keys.count = 0; keys.count <= ROWS; keys.count++) {
                    struct ra_band band = ra_band_causal(queries, keys, lookback);
                    if (band.lo != want.lo || band.hi != want.hi)
                        wrong("counts", queries, keys, lookback, queries.count, keys.count);
                }
        }
}

/* hi is the floor of ahead / stride, lo the ceiling of (ahead - lookback) / stride, by what floor
 * and ceiling mean: every residue, and numerators of both signs. */
TESTS(floor_and_ceiling, 1, STRIDES + 1)
{
    for (int64_t ahead = -40; ahead <= 40; ahead++)
        for (int64_t lookback = 0; lookback <= 80; lookback++) {
            struct ra_span queries = {7 + ahead, _i, 1}, keys = {7, _i, 1};
            struct ra_band band = ra_band_causal(queries, keys, lookback);
            if (band.hi * _i > ahead || (band.hi + 1) * _i <= ahead)
                wrong("floor", queries, keys, lookback, 0, band.hi);
            if (band.lo * _i < ahead - lookback || (band.lo - 1) * _i >= ahead - lookback)
                wrong("ceiling", queries, keys, lookback, 0, band.lo);
        }
}

/* Any two bounds, also the wrong way round, which nobody can satisfy. */
TEST(emptiness)
{
    for (int64_t lo = -9; lo <= 9; lo++)
        for (int64_t hi = -9; hi <= 9; hi++)
            for (int64_t query_rows = 0; query_rows <= 7; query_rows++)
                for (int64_t key_rows = 0; key_rows <= 7; key_rows++) {
                    struct ra_band band = {lo, hi};
                    bool any = false;
                    for (int64_t a = 0; a < query_rows; a++)
                        for (int64_t b = 0; b < key_rows; b++)
                            any = any || inside(band, a, b);
                    if (ra_band_is_empty(band, query_rows, key_rows) == any)
                        ck_abort_msg("band %d..%d, tile of %d queries and %d keys", (int)lo,
                                     (int)hi, (int)query_rows, (int)key_rows);
                }
}

/* From RA_BAND_FAR on, a lookback is no limit, and no sum overflows (the sanitizers would see). */
TESTS(no_limit, 1, STRIDES + 1)
{
    static const int64_t lookbacks[] = {RA_BAND_FAR, RA_BAND_FAR + 1, INT64_MAX - 1, INT64_MAX};
    for (int n = 0; n < 4; n++)
        for (int64_t i = -FIRST; i <= FIRST; i++)
            for (int64_t j = -FIRST; j <= FIRST; j++) {
                struct ra_span queries = {i, _i, ROWS}, keys = {j, _i, ROWS};
                judge_tiles(queries, keys, lookbacks[n]);

                /* A query 2^59 rows further on sees all of them too. */
                struct ra_band band = ra_band_causal(queries, keys, lookbacks[n]);
                if (!inside(band, INT64_C(1) << 59, 0))
                    wrong("far back", queries, keys, lookbacks[n], INT64_C(1) << 59, 0);
                if (band.lo != -RA_BAND_FAR)
                    wrong("an open end is RA_BAND_FAR", queries, keys, lookbacks[n], 0, band.lo);
            }
}

/* The longest lookback that is a limit, and positions as large as they may be. */
TESTS(largest_numbers, 1, STRIDES + 1)
{
    static const int64_t firsts[] = {1 - RA_BAND_FAR, 2 - RA_BAND_FAR, -1, 0, 1,
                                     RA_BAND_FAR - 2, RA_BAND_FAR - 1};
    static const int64_t lookbacks[] = {0, 1, RA_BAND_FAR - 1, RA_BAND_FAR, INT64_MAX};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++)
            for (int n = 0; n < 5; n++)
                judge_tiles((struct ra_span){firsts[i], _i, 1}, (struct ra_span){firsts[j], _i, 1},
                            lookbacks[n]);
}

/* ---- The fold: the same results as without skipping, and the right tiles skipped. */

enum { DIM = 3, MOST = 7, SIZE = MOST * DIM };

/* Queries and keys of one head, and all that is computed from them. */
struct arrays {
    float q[SIZE], k[SIZE], v[SIZE], d_out[SIZE];
    float o[SIZE], max[MOST], lse[MOST], delta[MOST], dq[SIZE], dk[SIZE], dv[SIZE];
    float comp[SIZE], dk_comp[SIZE], dv_comp[SIZE];
    double sum[MOST];
    struct ra_queries queries;
    struct ra_keys keys;
};

static void make(struct arrays *arrays, int64_t N, int64_t M)
{
    /* Any numbers will do that differ from each other. */
    *arrays = (struct arrays){0};
    for (int e = 0; e < SIZE; e++) {
        arrays->q[e] = (float)(e * 7 % 11) / 5 - 1;
        arrays->k[e] = (float)(e * 5 % 13) / 6 - 1;
        arrays->v[e] = (float)(e * 3 % 17) / 8 - 1;
        arrays->d_out[e] = (float)(e * 4 % 19) / 9 - 1;
    }
    arrays->queries = (struct ra_queries){.rows = N,
                                          .stride = {DIM, DIM, DIM, DIM, DIM},
                                          .q = arrays->q,
                                          .o = arrays->o,
                                          .max = arrays->max,
                                          .sum = arrays->sum,
                                          .comp = arrays->comp,
                                          .lse = arrays->lse,
                                          .d_out = arrays->d_out,
                                          .delta = arrays->delta,
                                          .dq = arrays->dq};
    arrays->keys = (struct ra_keys){.rows = M,
                                    .stride = {DIM, DIM, DIM, DIM, DIM, DIM},
                                    .k = arrays->k,
                                    .v = arrays->v,
                                    .dk = arrays->dk,
                                    .dv = arrays->dv,
                                    .dk_comp = arrays->dk_comp,
                                    .dv_comp = arrays->dv_comp};
}

static void count_tile(void *context)
{
    ++*(int64_t *)context;
}

/* Every tile, also those in which nobody sees anything; counts the two sorts. */
static void fold_all(struct arrays *arrays, struct ra_band band, const struct ra_fold *fold,
                     int64_t *pairs, int64_t *computed, int64_t *skipped)
{
    for (int64_t a = 0; a < arrays->queries.rows; a += fold->tile_queries)
        for (int64_t b = 0; b < arrays->keys.rows; b += fold->tile_keys) {
            struct ra_queries rows = ra_queries_block(&arrays->queries, a, fold->tile_queries);
            struct ra_keys seen = ra_keys_block(&arrays->keys, b, fold->tile_keys);
            struct ra_band tile = {band.lo + a - b, band.hi + a - b};
            if (fold->tile == ra_tile_backward)
                ra_tile_backward(RA_DIMS(DIM), fold->score, &rows, &seen, tile, fold->workspace);
            else
                ra_tile_forward(RA_DIMS(DIM), fold->score, &rows, &seen, tile, fold->workspace);

            bool any = false;
            for (int64_t i = 0; i < rows.rows; i++)
                for (int64_t j = 0; j < seen.rows; j++)
                    any = any || inside(band, a + i, b + j);
            *pairs += any ? rows.rows * seen.rows : 0;
            *computed += any;
            *skipped += !any;
        }
}

static void equal(const char *what, const float *want, const float *got, int64_t count)
{
    for (int64_t e = 0; e < count; e++)
        ck_assert_msg(want[e] == got[e], "%s[%d] is %g, not %g", what, (int)e, got[e], want[e]);
}

/* Forward, then backward, once with every tile and once with the fold. A skipped tile would have
 * added nothing but zeros, so the numbers are equal, not near. */
static void judge_fold(int64_t N, int64_t M, struct ra_band band, int64_t tile_queries,
                       int64_t tile_keys)
{
    struct arrays want, got;
    float workspace[3 * MOST * (MOST + DIM)];
    int64_t calls = 0, pairs = 100, computed = 0, skipped = 1000;
    struct ra_fold fold = {.dims = RA_DIMS(DIM),
                           .tile = ra_tile_forward,
                           .score = {.scale = 0.5f, .softcap = 2},
                           .tile_queries = tile_queries,
                           .tile_keys = tile_keys,
                           .workspace = workspace,
                           .between = count_tile,
                           .context = &calls,
                           .pairs = pairs,
                           .skipped = skipped};
    make(&want, N, M);
    make(&got, N, M);
    ck_assert(ra_tile_workspace(MOST, MOST, RA_DIMS(DIM)) <=
              (int64_t)(sizeof workspace / sizeof(float)));

    ra_tile_begin(RA_DIMS(DIM), &want.queries);
    ra_tile_begin(RA_DIMS(DIM), &got.queries);
    fold_all(&want, band, &fold, &pairs, &computed, &skipped);
    ra_band_fold(&fold, &got.queries, &got.keys, band);
    equal("max", want.max, got.max, N);
    ck_assert_mem_eq(want.sum, got.sum, sizeof want.sum);
    equal("o", want.o, got.o, N * DIM);
    ck_assert_int_eq(fold.pairs, pairs);
    ck_assert_int_eq(fold.skipped, skipped);
    ck_assert_int_eq(calls, computed);

    /* The backward adds to the same counts, and may do without somebody to call. */
    ra_tile_finish(RA_DIMS(DIM), &want.queries);
    ra_tile_finish(RA_DIMS(DIM), &got.queries);
    ra_tile_begin_backward(RA_DIMS(DIM), &want.queries);
    ra_tile_begin_backward(RA_DIMS(DIM), &got.queries);
    fold.tile = ra_tile_backward;
    fold.between = NULL;
    fold_all(&want, band, &fold, &pairs, &computed, &skipped);
    ra_band_fold(&fold, &got.queries, &got.keys, band);
    equal("dq", want.dq, got.dq, N * DIM);
    equal("dk", want.dk, got.dk, M * DIM);
    equal("dv", want.dv, got.dv, M * DIM);
    ck_assert_int_eq(fold.pairs, pairs);
    ck_assert_int_eq(fold.skipped, skipped);
}

TESTS(fold, 0, 5)
{
    static const int64_t rows[][2] = {{5, 7}, {7, 4}, {1, 1}, {0, 3}, {3, 0}};
    static const int64_t tiles[][2] = {{1, 1}, {2, 3}, {3, 2}, {9, 4}, {4, 9}, {9, 9}};
    for (int t = 0; t < 6; t++) {
        int64_t N = rows[_i][0], M = rows[_i][1];
        for (int64_t lo = -8; lo <= 8; lo++)
            for (int64_t hi = -8; hi <= 8; hi++)
                judge_fold(N, M, (struct ra_band){lo, hi}, tiles[t][0], tiles[t][1]);
        judge_fold(N, M, RA_ALL_KEYS, tiles[t][0], tiles[t][1]);
    }
}

int main(void)
{
    return suite_main("band", 60);
}
