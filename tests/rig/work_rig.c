/* work_rig: lists of work on the device. See work_rig.h. */
#include "work_rig.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_math.h"

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "work_rig: %s\n", what);
    exit(1);
}

static void *zeros(int64_t count, size_t size)
{
    void *memory = calloc((size_t)ra_max(count, 1), size);
    must(memory, "out of memory");
    return memory;
}

/* What one launch has of each slice. */
static int64_t cut(const struct ra_slice *slices, int64_t count, int64_t queries,
                   struct ra_span keys, struct ra_span_pair *pairs)
{
    int64_t some = 0;
    for (int64_t i = 0; i < count; i++) {
        pairs[some] = ra_slice_cut(&slices[i], (struct ra_span){0, 1, queries}, keys);
        some += pairs[some].rows > 0;
    }
    return some;
}

void *work_make(const struct ra_slice *slices, int64_t count, int64_t queries,
                const struct ra_span *keys, int launches, enum ra_work_use use, int tile_rows,
                struct ra_work *work)
{
    bool of_keys = use == RA_WORK_BACKWARD;
    int64_t rows = queries;
    for (int i = 0; of_keys && i < launches; i++)
        rows = ra_max(i == 0 ? 0 : rows, keys[i].count);
    int64_t most = ra_work_most_tiles(rows, tile_rows);
    struct ra_work_lists lists = {
        .tile_rows = tile_rows, .rows = rows, .most_parts = launches * (2 * most + 4 * count)};
    struct ra_span_pair *pairs = zeros(count + 1, sizeof *pairs);
    bool *edge = zeros(rows + 1, sizeof *edge);
    for (int64_t i = 0; i < count && !of_keys; i++)
        edge[slices[i].q0] = edge[slices[i].q1] = true;
    lists.start = zeros(most + 1, sizeof *lists.start);
    lists.newest = zeros(most, sizeof *lists.newest);
    lists.tile = zeros(launches * most, sizeof *lists.tile);
    lists.part = zeros(lists.most_parts, sizeof *lists.part);
    lists.sight = zeros(lists.most_parts * tile_rows, sizeof *lists.sight);
    ra_work_cut(&lists, of_keys ? NULL : edge);
    must(lists.tiles <= most, "more tiles than there are at most");
    int64_t *first = zeros(launches, sizeof *first);
    for (int i = launches - 1; i >= 0; i--) {
        int64_t some = cut(slices, count, queries, keys[i], pairs);
        first[i] = lists.tile_count;
        int64_t tiles = ra_work_add(&lists, i, pairs, some, of_keys, of_keys && launches == 1);
        must(tiles >= 0, "more parts than there is room for");
        work[i].count = (int)tiles;
    }
    for (int i = 0; i < launches; i++)
        ra_work_sort(lists.tile + first[i], work[i].count);

    const size_t bytes[] = {(size_t)lists.tile_count * sizeof *lists.tile,
                            (size_t)lists.part_count * sizeof *lists.part,
                            (size_t)(lists.part_count * tile_rows) * sizeof *lists.sight};
    const void *const parts[] = {lists.tile, lists.part, lists.sight};
    char *memory, *to[3];
    must(cudaMalloc((void **)&memory, bytes[0] + bytes[1] + bytes[2] + 1) == cudaSuccess,
         "no memory on the device");
    for (int i = 0; i < 3; i++) {
        to[i] = i == 0 ? memory : to[i - 1] + bytes[i - 1];
        must(cudaMemcpy(to[i], parts[i], bytes[i], cudaMemcpyHostToDevice) == cudaSuccess,
             "a list cannot be copied");
    }
    for (int i = 0; i < launches; i++) {
        work[i].tile = (struct ra_work_tile *)(void *)to[0] + first[i];
        work[i].part = (struct ra_work_part *)(void *)to[1];
        work[i].sight = (struct ra_sight *)(void *)to[2];
    }
    void *all[] = {pairs,      edge,       lists.start, lists.newest,
                   lists.tile, lists.part, lists.sight, first};
    for (int i = 0; i < 8; i++)
        free(all[i]);
    return memory;
}
