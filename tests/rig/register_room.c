/* register_room: judges exercise 4 of page 11d: how many registers a thread that computes can have,
 * and how many its numbers take. A warpgroup has 128 threads and 64 query rows. */
#include <stdbool.h>
#include <stdio.h>

enum { REGISTERS = 65536, THREADS = 128, ROWS = 64, STEP = 8 };

/* The reader's. */
int available(int groups, int loading);
int needed(int D, int keys, bool overlap);

/* As many as all threads together find room for, in steps of 8. */
static int most(int groups, int loading)
{
    int each = 0;
    while (THREADS * (loading + groups * (each + STEP)) <= REGISTERS)
        each += STEP;
    return each;
}

/* o and the scores, of four bytes; with overlap the weights of the tile before, of two. */
static int numbers(int D, int keys, bool overlap)
{
    int bytes = 4 * ROWS * D + 4 * ROWS * keys + (overlap ? 2 * ROWS * keys : 0);
    return bytes / THREADS / 4;
}

int main(void)
{
    static const int rooms[][2] = {{3, 32}, {2, 40}, {4, 24}, {2, 24}};
    static const int tiles[][2] = {{128, 128}, {64, 176}, {256, 64}, {192, 80}};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        int groups = rooms[i][0], loading = rooms[i][1], yours = available(groups, loading);
        if (yours != most(groups, loading)) {
            printf("%d warpgroups compute, %d registers to load: available says %d\n", groups,
                   loading, yours);
            return 1;
        }
    }
    for (size_t i = 0; i < 2 * sizeof tiles / sizeof *tiles; i++) {
        int D = tiles[i / 2][0], keys = tiles[i / 2][1], yours = needed(D, keys, i % 2);
        if (yours != numbers(D, keys, i % 2)) {
            printf("D = %d, %d keys, %s overlap: needed says %d\n", D, keys,
                   i % 2 ? "with" : "without", yours);
            return 1;
        }
    }
    return 0;
}
