/* ra_range: which rows and which heads a block of a kernel works on, and where a number lies in
 * shared memory. Plain arithmetic, for the device and for the host, where it is tested.
 *
 * Chapter 11.
 */
#ifndef RA_RANGE_H
#define RA_RANGE_H

#include "ra_heads.h"
#include "ra_math.h"
#include "ra_tile.h"

/* Returns the key/value head that query head h reads: ra_heads_key, on the device. */
RA_BOTH int ra_key_head(enum ra_head_map map, int H, int G, int h)
{
    return map == RA_GROUPED ? h / (H / G) : h % G;
}

/* Returns query head number i, 0..H/G-1, of those that read key/value head g. */
RA_BOTH int ra_query_head(enum ra_head_map map, int H, int G, int g, int i)
{
    return map == RA_GROUPED ? g * (H / G) + i : i * G + g;
}

/* How many rows a step has, at either edge of a band: there row a counts as the first row of its
 * step. 0, as 1: no steps. */
struct ra_band_step {
    int lo, hi;
};

RA_BOTH bool ra_has_steps(struct ra_band_step step)
{
    return step.lo > 1 || step.hi > 1;
}

/* Returns how far row a is behind the first row of its step. Rows have numbers below 2^32. */
RA_BOTH int ra_within_step(int64_t a, int step)
{
    return step > 1 ? (int)((uint32_t)a % (uint32_t)step) : 0;
}

/* The keys that some row of a0 .. a0 + rows - 1 sees by the band: first .. end - 1, within 0 .. m;
 * none if end <= first. And the queries that see some key of b0 .. b0 + rows - 1. Of a band with lo
 * above hi, in which no query sees a key, there may be some. */
struct ra_range {
    int64_t first, end;
};

RA_BOTH struct ra_range ra_keys_seen(struct ra_band band, struct ra_band_step step, int64_t a0,
                                     int64_t rows, int64_t m)
{
    int64_t last = a0 + rows - 1;
    struct ra_range range = {ra_max(0, a0 - ra_within_step(a0, step.lo) + band.lo),
                             ra_min(m, last - ra_within_step(last, step.hi) + 1 + band.hi)};
    return range;
}

RA_BOTH struct ra_range ra_queries_seeing(struct ra_band band, struct ra_band_step step, int64_t b0,
                                          int64_t rows, int64_t n)
{
    struct ra_range range = {ra_max(0, b0 - band.hi), ra_min(n, b0 + rows - band.lo)};

    /* The first row of a step is the first that sees a key; and if one sees it, the rest of its
     * step does. */
    if (step.hi > 1 && range.first < n)
        range.first += (step.hi - ra_within_step(range.first, step.hi)) % step.hi;
    if (step.lo > 1 && range.end > 0)
        range.end = ra_min(n, range.end - 1 - ra_within_step(range.end - 1, step.lo) + step.lo);
    return range;
}

/* Says whether each of these rows sees each of these keys, as far as the band goes. */
RA_BOTH bool ra_all_seen(struct ra_band band, struct ra_band_step step, int64_t a0, int64_t rows,
                         int64_t b0, int64_t keys)
{
    int64_t last = a0 + rows - 1;
    return band.lo <= b0 - (last - ra_within_step(last, step.lo)) &&
           b0 + keys - 1 - (a0 - ra_within_step(a0, step.hi)) <= band.hi;
}

/* Do the `count` keys of a tile, key b its first, follow one another, where places ascend? `first`
 * and `last` are the places of its first and of its last key, or of the last of all `keys` keys, if
 * the tile reaches beyond it. */
RA_BOTH bool ra_are_neighbours(int b, int count, int keys, int first, int last)
{
    return b + count - 1 < keys && last - first == count - 1;
}

/* Which tile of which head block number `block` has, where each of `heads` heads has `tiles` tiles.
 * Heads come in sets, so that what the blocks of one head read alike stays in the L2 cache; within
 * a set the first tiles of all heads come first. The first sets have at most one head more than the
 * others: a last set that is small leaves multiprocessors without work. */
struct ra_tile_order {
    int head, tile;
};

RA_BOTH struct ra_tile_order ra_tile_order_of(int block, int heads, int sets, int tiles)
{
    /* A head of the block's set, and the first one; `larger` heads are in the sets of one more. */
    int size = heads / sets, larger = heads % sets * (size + 1), head = block / tiles;
    int first = head < larger ? 0 : larger;
    size += head < larger;
    first += (head - first) / size * size;
    int within = block - first * tiles;
    struct ra_tile_order order = {first + within % size, within / size};
    return order;
}

/* For the host: as few sets as hold 24 MiB each, or one head, of which each has so many bytes. That
 * is half of an L2 cache of 50 MB, which keeps in both of its halves what multiprocessors of both
 * read. */
static inline int ra_sets_of(int64_t heads, int64_t head_bytes)
{
    int64_t fit = ra_max(1, (24 << 20) / ra_max(1, head_bytes));
    return (int)((heads + fit - 1) / fit);
}

/* Rows of 64, 128 or 256 numbers of 2 bytes lie in shared memory in chunks of 8 numbers, 16 bytes.
 * Chunk c of row r lies in place c ^ (r & 7) of its row: so the same chunk of 8 neighbouring rows,
 * which ldmatrix reads at once, lies in all 32 banks. */
RA_BOTH int ra_swizzle(int row, int chunk)
{
    return chunk ^ (row & 7);
}

#endif
