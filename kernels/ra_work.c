/* ra_work: the work of one launch as a list. See ra_work.h.
 *
 * Chapter 13. New here: rectangles with a band become intervals of rows.
 */
#include "ra_work.h"
#include <stdlib.h>
#include "ra_math.h"

/* Tiles of a stretch of rows: as few as can be. If rows are not enough for whole ones, the first
 * has fewer groups: under a causal mask it sees the least. */
static int64_t cut_stretch(int *start, int64_t first, int64_t end, int tile_rows)
{
    int64_t groups = (end - first + RA_WORK_GROUP - 1) / RA_WORK_GROUP;
    int64_t most = tile_rows / RA_WORK_GROUP, tiles = (groups + most - 1) / most;
    for (int64_t i = 0; i < tiles; i++)
        start[i] = (int)(first + ra_max(0, i * most - (tiles * most - groups)) * RA_WORK_GROUP);
    return tiles;
}

void ra_work_cut(struct ra_work_lists *lists, const bool *edge)
{
    int64_t rows = lists->rows, begin = 0;
    lists->tiles = 0;
    if (!edge) {
        for (int64_t a = 0; a < rows; a += lists->tile_rows)
            lists->start[lists->tiles++] = (int)a;
    } else {
        /* A stretch that is too short for a tile goes with those before and behind it that are,
         * too. */
        for (int64_t a = 0, end; a < rows; a = end) {
            for (end = a + 1; end < rows && !edge[end];)
                end++;
            bool is_long = 2 * (end - a) >= lists->tile_rows;
            if (is_long || end - begin > lists->tile_rows) {
                lists->tiles +=
                    cut_stretch(lists->start + lists->tiles, begin, a, lists->tile_rows);
                begin = a;
            }
            if (is_long || end == rows) {
                lists->tiles +=
                    cut_stretch(lists->start + lists->tiles, begin, end, lists->tile_rows);
                begin = end;
            }
        }
    }
    lists->start[lists->tiles] = (int)rows;
    for (int64_t i = 0; i < lists->tiles; i++)
        lists->newest[i] = -1;
}

/* The same rectangle, with keys as rows. */
static struct ra_span_pair turn(struct ra_span_pair pair)
{
    struct ra_band band = {pair.band.hi >= RA_BAND_FAR ? -RA_BAND_FAR : -pair.band.hi,
                           pair.band.lo <= -RA_BAND_FAR ? RA_BAND_FAR : -pair.band.lo};
    return (struct ra_span_pair){pair.b, pair.a, pair.visitors, pair.rows, band};
}

static int compare_pairs(const void *x, const void *y)
{
    const struct ra_span_pair *one = x, *other = y;
    if (one->a != other->a)
        return one->a < other->a ? -1 : 1;
    return (one->b > other->b) - (one->b < other->b);
}

/* Those with the most work first, and otherwise in order. */
static int compare_tiles(const void *x, const void *y)
{
    const struct ra_work_tile *one = x, *other = y;
    if (one->work != other->work)
        return one->work > other->work ? -1 : 1;
    return (one->row > other->row) - (one->row < other->row);
}

/* Begins another part of a tile, of which no row sees anything yet. */
static bool add_part(struct ra_work_lists *lists, struct ra_work_tile *tile)
{
    if (lists->part_count == lists->most_parts)
        return false;
    struct ra_sight *sight = lists->sight + lists->part_count++ * lists->tile_rows;
    for (int i = 0; i < lists->tile_rows; i++)
        sight[i] = (struct ra_sight){0, 0};
    tile->parts++;
    return true;
}

/* Adds what rows of a tile see by a rectangle. `parts`: how many parts of each row are in use. */
static bool add_pair(struct ra_work_lists *lists, struct ra_work_tile *tile, int *parts,
                     const struct ra_span_pair *pair)
{
    int64_t first = ra_max(tile->row, pair->a);
    int64_t end = ra_min(tile->row + tile->rows, pair->a + pair->rows);
    for (int64_t a = first; a < end; a++) {
        int64_t i = a - tile->row, at = a - pair->a;
        struct ra_sight more = {(int)(pair->b + ra_max(0, at + pair->band.lo)),
                                (int)(pair->b + ra_min(pair->visitors, at + pair->band.hi + 1))};
        if (more.end <= more.first)
            continue;

        /* Neighbours become one interval. */
        struct ra_sight *sight = lists->sight + (int64_t)tile->part * lists->tile_rows + i;
        struct ra_sight *old = sight + (int64_t)(parts[i] - 1) * lists->tile_rows;
        if (parts[i] > 0 && (old->end == more.first || more.end == old->first)) {
            old->first = (int)ra_min(old->first, more.first);
            old->end = (int)ra_max(old->end, more.end);
            continue;
        }
        if (parts[i] == tile->parts && !add_part(lists, tile))
            return false;
        sight[(int64_t)parts[i]++ * lists->tile_rows] = more;
    }
    return true;
}

/* What some, and what every one of so many rows sees. */
static void sum_up(const struct ra_sight *sight, int rows, struct ra_sight *some,
                   struct ra_sight *every)
{
    *some = *every = (struct ra_sight){0, 0};
    for (int i = 0; i < rows; i++) {
        bool nothing = sight[i].end <= sight[i].first, none = some->end == 0;
        if (nothing || i == 0)
            *every = nothing ? (struct ra_sight){0, 0} : sight[i];
        every->first = (int)ra_max(every->first, sight[i].first);
        every->end = (int)ra_min(every->end, sight[i].end);
        if (nothing)
            continue;
        some->first = none ? sight[i].first : (int)ra_min(some->first, sight[i].first);
        some->end = (int)ra_max(some->end, sight[i].end);
    }
}

static void finish_part(const struct ra_work_lists *lists, const struct ra_work_tile *tile, int p)
{
    const struct ra_sight *sight = lists->sight + (int64_t)p * lists->tile_rows;
    struct ra_work_part *part = &lists->part[p];
    sum_up(sight, tile->rows, &part->some, &part->every);
    for (int g = 0; g < RA_WORK_GROUPS; g++) {
        int first = (int)ra_min(g * RA_WORK_GROUP, tile->rows);
        int rows = (int)ra_min(RA_WORK_GROUP, tile->rows - first);
        sum_up(sight + first, rows, &part->some_of[g], &part->every_of[g]);
    }
}

int64_t ra_work_add(struct ra_work_lists *lists, int step, struct ra_span_pair *pair, int64_t count,
                    bool of_keys, bool whole)
{
    int64_t before = lists->tile_count, from = 0;
    for (int64_t i = 0; i < count && of_keys; i++)
        pair[i] = turn(pair[i]);
    qsort(pair, (size_t)count, sizeof *pair, compare_pairs);
    for (int64_t t = 0; t < lists->tiles; t++) {
        struct ra_work_tile *tile = &lists->tile[lists->tile_count];
        *tile = (struct ra_work_tile){.row = lists->start[t],
                                      .rows = lists->start[t + 1] - lists->start[t],
                                      .part = (int)lists->part_count,
                                      .first = true,
                                      .last = lists->newest[t] < 0};
        int parts[RA_WORK_GROUP * RA_WORK_GROUPS] = {0};

        /* Those before `from` end before this tile. */
        while (from < count && pair[from].a + pair[from].rows <= tile->row)
            from++;
        for (int64_t i = from; i < count && pair[i].a < tile->row + tile->rows; i++)
            if (!add_pair(lists, tile, parts, &pair[i]))
                return -1;
        bool unseen = tile->last && step == 0;
        if (tile->parts == 0 && !whole && !unseen)
            continue;
        if (tile->parts == 0 && !add_part(lists, tile))
            return -1;
        for (int p = tile->part; p < tile->part + tile->parts; p++) {
            finish_part(lists, tile, p);
            tile->work += lists->part[p].some.end - lists->part[p].some.first;
        }
        lists->most_seen = ra_max(lists->most_seen, tile->work);

        /* Until now the first step was a later one. */
        if (lists->newest[t] >= 0)
            lists->tile[lists->newest[t]].first = false;
        lists->newest[t] = lists->tile_count++;
    }
    return lists->tile_count - before;
}

void ra_work_sort(struct ra_work_tile *tile, int64_t count)
{
    qsort(tile, (size_t)count, sizeof *tile, compare_tiles);
}
