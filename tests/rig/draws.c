/* draws: judges exercise 3 of page 11d-persistent: persistent blocks draw every tile from one
 * counter, the first one, too. Several launches go one after another, as k07's do, and nobody sets
 * the counter in between.
 */
#include <stdio.h>

/* atomicInc of CUDA: adds 1 to a counter, or makes it 0 if it has reached `last`. Returns what it
 * was before. */
static unsigned atomic_inc(unsigned *counter, unsigned last)
{
    unsigned old = *counter;
    *counter = old >= last ? 0 : old + 1;
    return old;
}

/* The reader's. */
#include "draw.h"

enum { MOST = 64 };

/* One launch, whose blocks draw in a random order until each has drawn in vain. Returns whether it
 * went wrong, and says how. */
static int launch(unsigned blocks, unsigned tiles, unsigned *counter, unsigned long long *dice)
{
    int taken[MOST] = {0}, done[MOST] = {0}, begun[MOST] = {0};
    for (unsigned running = blocks; running > 0;) {
        unsigned block;
        do {
            *dice = *dice * 6364136223846793005 + 1442695040888963407;
            block = (unsigned)(*dice >> 33) % blocks;
        } while (done[block]);
        unsigned tile = begun[block] ? next_tile(counter, blocks, tiles)
                                     : first_tile(counter, block, blocks, tiles);
        begun[block] = 1;
        if (tile < tiles && taken[tile]++) {
            printf("%u blocks, %u tiles: tile %u is taken twice\n", blocks, tiles, tile);
            return 1;
        }
        running -= done[block] = tile >= tiles;
    }
    for (unsigned tile = 0; tile < tiles; tile++)
        if (!taken[tile]) {
            printf("%u blocks, %u tiles: nobody takes tile %u\n", blocks, tiles, tile);
            return 1;
        }
    if (*counter != 0)
        printf("%u blocks, %u tiles: the counter is left at %u\n", blocks, tiles, *counter);
    return *counter != 0;
}

int main(void)
{
    static const unsigned launches[][2] = {{5, 14}, {5, 5}, {1, 3}, {7, 60}, {5, 14}};
    unsigned counter = 0;
    unsigned long long dice = 1;
    first_tile(&counter, 3, 5, 14);
    if (counter == 0) {
        printf("block 3 has not drawn its first tile\n");
        return 1;
    }
    counter = 0;
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++)
        if (launch(launches[i][0], launches[i][1], &counter, &dice))
            return 1;
    return 0;
}
