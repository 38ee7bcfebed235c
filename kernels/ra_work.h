/* ra_work: the work of one launch as a list in memory of the device, where no one band says who
 * sees whom: tiles of rows that stay, sorted, those with the most work first; and for each tile
 * what its rows see of those that pass.
 *
 * Chapter 13. Documents, prefixes and windows let a row see neighbouring rows, whatever the shape
 * of the whole mask: so what a row sees is an interval, first .. end - 1, and seldom several. A
 * tile has a `part` for the first interval of each of its rows, another for the second, and so on.
 * Rows of several short documents share a tile, and a part.
 *
 * Queries stay in the forward, keys in the backward, and queries again where dq has a kernel of its
 * own. The host makes the list, with plain arithmetic, from the rectangles with a band that
 * ra_slice_cut finds.
 */
#ifndef RA_WORK_H
#define RA_WORK_H

#include "ra_layout.h"
#include "ra_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a tile are in groups of 64, as many as a warpgroup has. */
enum { RA_WORK_GROUP = 64, RA_WORK_GROUPS = 3 };

/* Rows first .. end - 1 of those that pass; none if end <= first. */
struct ra_sight {
    int first, end;
};

/* Of a part: what some row of the tile sees, and what every row of it sees; and the same of each
 * group. */
struct ra_work_part {
    struct ra_sight some, every, some_of[RA_WORK_GROUPS], every_of[RA_WORK_GROUPS];
};

/* Rows row .. row + rows - 1, and `parts` parts from number `part` on, one at least. `first`: these
 * rows have seen nothing in the launches before; `last`: they see nothing in those that follow. */
struct ra_work_tile {
    int row, rows, part, parts;
    bool first, last;
    int64_t work; /* rows that its parts see, together */
};

/* A list, in memory that the kernel reaches. count = 0: there is none. */
struct ra_work {
    int count;                       /* tiles */
    const struct ra_work_tile *tile; /* (count) */
    const struct ra_work_part *part;
    const struct ra_sight *sight; /* what each row of a tile sees: of part p from p tile_rows on */
};

/* What a list is for: the forward, in which queries stay; the backward, in which keys do; or dq
 * alone, for a backward that computes it by itself, with queries that stay. */
enum ra_work_use { RA_WORK_FORWARD, RA_WORK_BACKWARD, RA_WORK_DQ, RA_WORK_USES };

/* Does the backward compute dq by itself? In k02 and k06; k07 runs k06 for these. dim: the larger
 * one of D and D_v. */
static inline bool ra_work_separates(enum ra_type type, int64_t dim, bool deterministic)
{
    return type == RA_FLOAT32 || deterministic || dim > 128;
}

/* Counts the rows of a tile, for heads of this size, the larger one of D and D_v. */
static inline int ra_work_rows(enum ra_type type, int64_t dim, bool deterministic,
                               enum ra_work_use use)
{
    if (type == RA_FLOAT32)
        return RA_WORK_GROUP;
    switch (use) {
    case RA_WORK_FORWARD:
        return dim <= 128 ? 192 : 128;
    case RA_WORK_BACKWARD:
        return dim > 128 ? 64 : dim > 64 || deterministic ? 128 : 192;
    default:
        return 128;
    }
}

/* ---- Making lists: one for each of several launches, steps, of the same tiles. All memory is the
 * caller's; the counts begin as 0. */

struct ra_work_lists {
    int tile_rows;
    int64_t rows;                   /* that stay, in `tiles` tiles */
    int64_t tiles, most_parts;      /* room for so many parts, of all steps */
    int *start;                     /* (most tiles + 1): the first row of each, and the end */
    int64_t *newest;                /* (most tiles): where each was last written down */
    struct ra_work_tile *tile;      /* (steps, most tiles) */
    struct ra_work_part *part;      /* (most_parts) */
    struct ra_sight *sight;         /* (most_parts tile_rows) */
    int64_t tile_count, part_count; /* so far */
    int64_t most_seen;              /* rows that a tile sees at a step, at most */
};

/* Counts the tiles into which rows are cut at most. */
static inline int64_t ra_work_most_tiles(int64_t rows, int tile_rows)
{
    return 6 * rows / tile_rows + 4;
}

/* Cuts rows into tiles. With `edge` (rows + 1), which is true where a row sees something else than
 * the one before may, long stretches between edges have tiles of their own; NULL: only the last
 * tile has less than tile_rows. */
void ra_work_cut(struct ra_work_lists *lists, const bool *edge);

/* Adds the list of a step: steps are added from the last one to the first, number 0. `pair` (count)
 * are rectangles in any order, which it sorts; no two of them have a pair of rows in common. With
 * of_keys keys stay; with whole all tiles are listed, whatever they see. Returns how many tiles it
 * has, the last ones of lists->tile; -1: there is no room for so many parts. */
int64_t ra_work_add(struct ra_work_lists *lists, int step, struct ra_span_pair *pair, int64_t count,
                    bool of_keys, bool whole);

/* Sorts the tiles of a step, `count` of them. Once all steps have been added. */
void ra_work_sort(struct ra_work_tile *tile, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
