/* check_range: the plain arithmetic of the kernels, held against counting.
 */
#include "../kernels/ra_range.h"
#include "suite.h"

enum { ROWS = 7, REACH = 9 };

/* Edges with steps and without; steps of one size, as where they are used. */
static const struct ra_band_step steps[] = {{0, 0}, {2, 0}, {0, 3}, {3, 3}};
enum { STEPS = sizeof steps / sizeof *steps };

static int64_t step_of(int64_t a, int rows)
{
    return rows > 1 ? a / rows * rows : a;
}

static bool sees(struct ra_band band, struct ra_band_step edges, int64_t a, int64_t b)
{
    return step_of(a, edges.lo) + band.lo <= b && b <= step_of(a, edges.hi) + band.hi;
}

/* Bound number i: -REACH .. REACH, and with 2 * REACH + 1 none. */
static int64_t bound(int i, int64_t none)
{
    return i > 2 * REACH ? none : i - REACH;
}

/* The part of 0 .. count - 1 that some row of first .. first + rows - 1 of the other side sees, or
 * is seen by, counted. */
static struct ra_range counted(struct ra_band band, struct ra_band_step edges, bool of_keys,
                               int64_t first, int64_t rows, int64_t count)
{
    struct ra_range range = {count, 0};
    for (int64_t i = 0; i < count; i++)
        for (int64_t other = first; other < first + rows; other++)
            if (of_keys ? sees(band, edges, other, i) : sees(band, edges, i, other)) {
                range.first = ra_min(range.first, i);
                range.end = i + 1;
            }
    return range;
}

/* Is a range what was counted, or, where `gaps` may be in it, at least that? Neither has anything
 * if end <= first. */
static bool is_range(struct ra_range range, struct ra_range counted, bool gaps)
{
    if (counted.end == 0)
        return gaps || range.end <= range.first;
    return gaps ? range.first <= counted.first && range.end >= counted.end
                : range.first == counted.first && range.end == counted.end;
}

/* Every band, block and length; _i is the lower bound. A range has what is seen; and no more,
 * unless nobody sees some key between two that are seen, or bounds have crossed. */
TESTS(ranges, 0, 2 * REACH + 2)
{
    for (int i = 0; i < (2 * REACH + 2) * STEPS; i++) {
        struct ra_band band = {bound(_i, -RA_BAND_FAR), bound(i / STEPS, RA_BAND_FAR)};
        struct ra_band_step edges = steps[i % STEPS];
        int64_t step = ra_max(1, ra_max(edges.lo, edges.hi)), wrong = 0;
        bool gaps = band.hi - band.lo < step - 1; /* between what neighbouring rows see */
        for (int first = 0; first < ROWS; first++)
            for (int rows = 1; rows <= ROWS; rows++)
                for (int count = 0; count <= ROWS && band.lo <= band.hi; count++) {
                    wrong += !is_range(ra_keys_seen(band, edges, first, rows, count),
                                       counted(band, edges, true, first, rows, count), gaps);
                    wrong += !is_range(ra_queries_seeing(band, edges, first, rows, count),
                                       counted(band, edges, false, first, rows, count), gaps);
                }
        ck_assert_int_eq(wrong, 0);
    }
}

TESTS(all_seen, 0, 2 * REACH + 2)
{
    for (int i = 0; i < (2 * REACH + 2) * STEPS; i++) {
        struct ra_band band = {bound(_i, -RA_BAND_FAR), bound(i / STEPS, RA_BAND_FAR)};
        struct ra_band_step edges = steps[i % STEPS];
        int64_t wrong = 0;
        for (int a0 = 0; a0 < ROWS; a0++)
            for (int b0 = 0; b0 < ROWS; b0++)
                for (int rows = 1; rows <= ROWS; rows++)
                    for (int keys = 1; keys <= ROWS; keys++) {
                        bool all = true;
                        for (int a = a0; a < a0 + rows; a++)
                            for (int b = b0; b < b0 + keys; b++)
                                all = all && sees(band, edges, a, b);
                        wrong += ra_all_seen(band, edges, a0, rows, b0, keys) != all;
                    }
        ck_assert_int_eq(wrong, 0);
    }
}

/* Rows far down a long sequence: nothing overflows 32 bits on the way. */
TEST(far_rows)
{
    const int64_t far = INT64_C(1) << 40;
    const struct ra_band_step none = {0, 0};
    struct ra_range keys = ra_keys_seen((struct ra_band){-3, 2}, none, far, 4, 2 * far);
    ck_assert_int_eq(keys.first, far - 3);
    ck_assert_int_eq(keys.end, far + 6);
    struct ra_range queries = ra_queries_seeing((struct ra_band){-3, 2}, none, far, 4, 2 * far);
    ck_assert_int_eq(queries.first, far - 2);
    ck_assert_int_eq(queries.end, far + 7);
    ck_assert(ra_all_seen((struct ra_band){-3, 2}, none, far, 2, far - 2, 4));
    ck_assert(!ra_all_seen((struct ra_band){-3, 2}, none, far, 2, far - 3, 4));
}

/* The head maps are those of the library, and each the inverse of the other; _i is the map. */
TESTS(heads, RA_GROUPED, RA_INTERLEAVED + 1)
{
    for (int H = 1; H <= 24; H++)
        for (int G = 1; G <= H; G++) {
            if (H % G != 0)
                continue;
            int readers[24] = {0};
            for (int h = 0; h < H; h++)
                ck_assert_int_eq(ra_key_head(_i, H, G, h), ra_heads_key(_i, H, G, h));
            for (int g = 0; g < G; g++)
                for (int i = 0; i < H / G; i++) {
                    int h = ra_query_head(_i, H, G, g, i);
                    ck_assert(h >= 0 && h < H);
                    ck_assert_int_eq(ra_key_head(_i, H, G, h), g);
                    readers[h]++;
                }
            for (int h = 0; h < H; h++)
                ck_assert_int_eq(readers[h], 1);
        }
}

/* Every tile of every head has one block; heads go in _i sets of H / _i heads or one more, all of a
 * set before the next one, and in a set all first tiles before the second ones. */
TESTS(turns, 1, 11)
{
    for (int H = _i; H <= _i + 9; H++)
        for (int tiles = 1; tiles <= 5; tiles++) {
            int block = 0, head = 0;
            for (int set = 0; set < _i; set++) {
                int size = H / _i + (set < H % _i);
                for (int i = 0; i < size * tiles; i++, block++) {
                    struct ra_tile_order turn = ra_tile_order_of(block, H, _i, tiles);
                    ck_assert_int_eq(turn.head, head + i % size);
                    ck_assert_int_eq(turn.tile, i / size);
                }
                head += size;
            }
        }
}

/* As few sets as hold 24 MiB each, or one head. */
TEST(sets)
{
    const int64_t MiB = 1 << 20;
    ck_assert_int_eq(ra_sets_of(16, 8 * MiB), 6);
    ck_assert_int_eq(ra_sets_of(16, 8 * MiB + 1), 8);
    ck_assert_int_eq(ra_sets_of(256, MiB / 2), 6);
    ck_assert_int_eq(ra_sets_of(48, MiB / 2), 1);
    ck_assert_int_eq(ra_sets_of(49, MiB / 2), 2);
    ck_assert_int_eq(ra_sets_of(3, 1000 * MiB), 3);
    ck_assert_int_eq(ra_sets_of(70000, 0), 1);
}

/* A row keeps its chunks, each in a place of its own; and a chunk of 8 neighbouring rows lies in 8
 * different groups of banks, of which 128 bytes have 8. */
TEST(swizzle)
{
    for (int chunks = 8; chunks <= 32; chunks *= 2)
        for (int row = 0; row < 64; row++) {
            unsigned places = 0;
            for (int chunk = 0; chunk < chunks; chunk++) {
                int place = ra_swizzle(row, chunk);
                ck_assert(place >= 0 && place < chunks);
                places |= 1u << place;
            }
            ck_assert_uint_eq(places, chunks == 32 ? 0xFFFFFFFF : (1u << chunks) - 1);

            for (int chunk = 0; chunk < chunks && row % 8 == 0; chunk++) {
                unsigned groups = 0;
                for (int next = row; next < row + 8; next++)
                    groups |= 1u << (next * chunks + ra_swizzle(next, chunk)) % 8;
                ck_assert_uint_eq(groups, 0xFF);
            }
        }
}

/* Tiles of _i keys, all of them there or not, with a gap of any size, or without one. */
TESTS(neighbours, 1, 65)
{
    int wrong = 0;
    for (int b = 0; b <= _i; b += _i)
        for (int keys = b + 1; keys <= b + _i + 1; keys++)
            for (int at = b; at < keys; at++)
                for (int gap = 0; gap <= _i; gap++) {
                    bool follow = b + _i <= keys && (gap == 0 || at == b || at >= b + _i);
                    int end = (int)ra_min(keys, b + _i) - 1;
                    int first = b >= at ? b + gap : b, last = end >= at ? end + gap : end;
                    wrong += ra_are_neighbours(b, _i, keys, first, last) != follow;
                }
    ck_assert_int_eq(wrong, 0);
}

int main(void)
{
    return suite_main("range", 60);
}
