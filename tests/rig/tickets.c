/* tickets: blocks of k03's backward that add to dq one after the other, on fewer multiprocessors
 * than there are blocks.
 *
 * Chapter 11c. A block has a tile of keys, and goes through all tiles of queries. To each it may
 * add only when the tile of keys before has. It holds its multiprocessor while it waits. Without a
 * GPU it shows when all wait for blocks that cannot begin.
 */
#include <stdbool.h>
#include <stdio.h>

enum { SMS = 4, BLOCKS = 16, QUERY_TILES = 8, RUNS = 200 };
enum { AHEAD = 2 }; /* the hardware starts any of so many blocks next */

static int drawn;
static int semaphores[QUERY_TILES]; /* which tile of keys may add next */

/* The tile of keys of a block, when it begins. */
static int tile_of(int block)
{
    (void)block;
    return drawn++;
}

/* What an SM is at: -1: it is free. */
static struct {
    int tile, step;
} sms[SMS];

/* The next addition of the block on an SM. False: it has to wait. */
static bool add(int sm)
{
    int *semaphore = &semaphores[sms[sm].step];
    if (*semaphore != sms[sm].tile)
        return false;
    ++*semaphore;
    if (++sms[sm].step == QUERY_TILES)
        sms[sm].tile = -1;
    return true;
}

static unsigned roll(void)
{
    static unsigned long long dice = 1;
    dice = dice * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(dice >> 33);
}

/* Plays a launch. Returns how many additions are left when nobody can go on. */
static int play(void)
{
    int waiting[BLOCKS], count = BLOCKS, left = BLOCKS * QUERY_TILES;
    drawn = 0;
    for (int i = 0; i < QUERY_TILES; i++)
        semaphores[i] = 0;
    for (int block = 0; block < BLOCKS; block++)
        waiting[block] = block;
    for (int sm = 0; sm < SMS; sm++)
        sms[sm].tile = -1;
    for (int idle = 0; idle < 200; idle++) {
        int sm = (int)(roll() % SMS);
        if (sms[sm].tile < 0 && count > 0) {
            int next = (int)roll() % (count < AHEAD ? count : AHEAD);
            sms[sm].tile = tile_of(waiting[next]);
            sms[sm].step = 0;
            for (count--; next < count; next++)
                waiting[next] = waiting[next + 1];
        } else if (sms[sm].tile >= 0 && add(sm)) {
            idle = 0;
            left--;
        }
    }
    return left;
}

int main(void)
{
    int stuck = 0;
    for (int run = 0; run < RUNS; run++) {
        int left = play();
        if (left > 0 && stuck++ == 0)
            for (int sm = 0; sm < SMS; sm++)
                printf("run %d: tile of keys %d waits for tile %d\n", run, sms[sm].tile,
                       semaphores[sms[sm].step]);
    }
    printf("%d runs: %d got stuck\n", RUNS, stuck);
    return stuck > 0;
}
