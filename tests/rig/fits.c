/* fits: judges exercise 2 of page 11d-two-tiles: how many keys a tile of k07 can have, if a
 * warpgroup works on two tiles at a time. It counts numbers, one tile after another.
 */
#include <stdbool.h>
#include <stdio.h>

/* The reader's. */
#include "keys.h"

enum { ROWS = 64, THREADS = 128, LEFT = 32, SHARED = 227 * 1024 };

/* Whether registers and shared memory hold a tile of so many keys. */
static bool fits(int D, int D_v, int groups, int keys)
{
    int o = ROWS * D_v, s = ROWS * keys, p = ROWS * keys / 2; /* registers of a warpgroup */
    int registers = (o + s + p) / THREADS, most = groups == 3 ? 160 : 232;
    int bytes = 2 * ROWS * groups * D;
    for (int slot = 0; slot < 2; slot++)
        bytes += 2 * keys * D + 2 * keys * D_v;
    return registers + LEFT <= most && bytes <= SHARED;
}

int main(void)
{
    static const struct {
        int D, D_v, groups;
    } tiles[] = {{64, 64, 3},   {64, 64, 2},   {128, 128, 3}, {128, 128, 2}, {192, 128, 2},
                 {192, 128, 3}, {256, 256, 2}, {64, 128, 3},  {96, 96, 3},   {256, 64, 2}};
    int wrong = 0;
    for (int i = 0; i < (int)(sizeof tiles / sizeof tiles[0]); i++) {
        int D = tiles[i].D, D_v = tiles[i].D_v, groups = tiles[i].groups, wanted = 0;
        for (int keys = 16; fits(D, D_v, groups, keys); keys += 16)
            wanted = keys;
        int mine = most_keys(D, D_v, groups);
        if (mine != wanted)
            printf("D = %d, D_v = %d, %d warpgroups: %d keys %s\n", D, D_v, groups, mine,
                   mine > wanted ? "do not fit" : "are fewer than fit");
        wrong += mine != wanted;
    }
    return wrong > 0;
}
