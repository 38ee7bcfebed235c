/* ra_count: how much work a hop is, by formula. See ra_count.h.
 *
 * Chapter 08. New here: the points of a grid below a line, counted as Euclid finds divisors.
 */
#include "ra_count.h"
#include "ra_math.h"

/* The sum of floor((a * i + b) / m) for i = 0 .. n - 1; n, a, b >= 0, m > 0. */
static __int128 sum_of_floors(int64_t n, int64_t m, int64_t a, int64_t b)
{
    /* Whole steps first. What is left is the number of points (i, j), j > 0, on or below a line of
     * slope less than 1: along j its slope is m / a, and the same steps go on with that. */
    __int128 whole = (__int128)n * (n - 1) / 2 * (a / m) + (__int128)n * (b / m);
    a %= m;
    b %= m;
    int64_t top = a * n + b;
    return top < m ? whole : whole + sum_of_floors(top / m, a, m, top % m);
}

/* The first x from 0 to X with a * x >= b; a > 0. */
static int64_t first_at(int64_t a, int64_t b, int64_t X)
{
    return b <= 0 ? 0 : ra_min((b - 1) / a + 1, X);
}

/* How many points of the grid 0 <= x < X, 0 <= y < Y have m * y <= a * x + b? */
static __int128 points_below(int64_t X, int64_t Y, int64_t m, int64_t a, int64_t b)
{
    /* A column has none before `some`, and all Y of them from `all` on. */
    int64_t some = first_at(a, -b, X), all = first_at(a, (Y - 1) * m - b, X), n = all - some;
    __int128 points = (__int128)(X - all) * Y;
    return n > 0 ? points + n + sum_of_floors(n, m, a, a * some + b) : points;
}

/* Adds X times Y tiles of this many query and key rows. */
static void add_tiles(struct ra_count *count, int64_t X, int64_t Y, int64_t query_rows,
                      int64_t key_rows, struct ra_band band)
{
    if (X == 0 || Y == 0)
        return;

    /* Tile (x, y) is empty if the first key of it is beyond the reach of the last query, or the
     * last key before that of the first one; see ra_band_is_empty. */
    __int128 computed = 0;
    if (band.lo <= band.hi)
        computed = points_below(X, Y, key_rows, query_rows, query_rows - 1 + band.hi) -
                   points_below(X, Y, key_rows, query_rows, band.lo - key_rows);
    count->pairs += computed * query_rows * key_rows;
    count->skipped += (__int128)X * Y - computed;
}

/* Adds all tiles of two spans: those of full size, and what is left at the two ends. */
static void add_spans(struct ra_count *count, const struct ra_config *c, int64_t query_rows,
                      int64_t key_rows, struct ra_band band)
{
    int64_t X = query_rows / c->tile_queries, Y = key_rows / c->tile_keys;
    int64_t a = X * c->tile_queries, b = Y * c->tile_keys;
    bool rows_left = a < query_rows, keys_left = b < key_rows;
    add_tiles(count, X, Y, c->tile_queries, c->tile_keys, band);
    add_tiles(count, X, keys_left, c->tile_queries, key_rows - b, ra_band_from(band, 0, b));
    add_tiles(count, rows_left, Y, query_rows - a, c->tile_keys, ra_band_from(band, a, 0));
    add_tiles(count, rows_left, keys_left, query_rows - a, key_rows - b, ra_band_from(band, a, b));
}

/* The same under a list of slices: tiles begin where a cut does. */
static struct ra_count count_cuts(const struct ra_plan *plan, const struct ra_shard_pair *shards)
{
    struct ra_count count = {0, 0};
    struct ra_span_pair cut;
    struct ra_walk walk =
        ra_slices_walk(&plan->slices, shards, 0, ra_layout_rows(shards->queries, shards->rank), 0,
                       ra_layout_rows(shards->keys, shards->origin));
    while (ra_walk_next(&walk, &cut))
        add_spans(&count, &plan->config, cut.rows, cut.visitors, cut.band);
    return count;
}

struct ra_count ra_count_fold(const struct ra_plan *plan, int rank, int origin)
{
    struct ra_shard_pair shards = ra_plan_shards(plan, rank, origin);
    int64_t S = ra_layout_spans(shards.queries), T = ra_layout_spans(shards.keys);
    struct ra_count count = {0, 0};
    if (plan->listed)
        return count_cuts(plan, &shards);

    /* Stripes s + 1 and t + 1 have the band of s and t: along a diagonal, d = s - t, little is
     * new. */
    for (int64_t d = 1 - T; d < S; d++)
        for (int64_t s = d > 0 ? d : 0, t = s - d, alike; s < S && t < T; s += alike, t += alike) {
            struct ra_count one = {0, 0};
            struct ra_span_pair pair = ra_layout_pair(&shards, s, t);
            add_spans(&one, &plan->config, pair.rows, pair.visitors, pair.band);
            alike = ra_min(ra_layout_alike(shards.queries, rank, s),
                           ra_layout_alike(shards.keys, origin, t));
            count.pairs += alike * one.pairs;
            count.skipped += alike * one.skipped;
        }
    return count;
}
