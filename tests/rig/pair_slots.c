/* pair_slots: judges exercise 4 of page 11d-persistent: two blocks that load the halves of every
 * tile of keys for each other. Plays them in random orders: a block asks for its half, which is
 * written to the slots of both; a block that has both halves of a tile reads it and gives the slot
 * back, which it tells both; at last it ends.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The reader's. */
#include "pair.h"

enum { TILES = 20, SLOTS = 2, RUNS = 500 };

/* Of each block: the halves that it has asked for, the tiles that it has given back, whether it has
 * ended, and, for each of its slots, the tile of either half. */
static struct block {
    int asked, given_back, slots[SLOTS][2];
    bool ended;
} blocks[2];

static char trouble[100]; /* the first of all */

/* Asks for a block's half of its next tile, if the reader lets it. */
static void ask(int block)
{
    struct block *me = &blocks[block], *other = &blocks[!block];
    int tile = me->asked;
    if (me->ended || tile == TILES || !may_ask(tile, me->given_back, other->given_back))
        return;
    me->asked++;
    for (int to = 0; to < 2; to++) {
        if (tile >= blocks[to].given_back + SLOTS && !trouble[0])
            snprintf(trouble, sizeof trouble, "tile %d is written over tile %d, which %s needs",
                     tile, tile - SLOTS, to == block ? "this block" : "the other block");
        blocks[to].slots[tile % SLOTS][block] = tile;
    }
}

/* Reads the next tile of a block, if both halves are there, and gives its slot back. */
static void read_tile(int block)
{
    struct block *me = &blocks[block];
    int tile = me->given_back, *slot = me->slots[tile % SLOTS];
    if (tile == TILES || slot[0] != tile || slot[1] != tile)
        return;
    me->given_back++;
    if (blocks[!block].ended && !trouble[0])
        snprintf(trouble, sizeof trouble, "tile %d is given back to a block that has ended", tile);
}

int main(void)
{
    int most = 0, stuck = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        memset(blocks, 0, sizeof blocks);
        memset(blocks[0].slots, -1, sizeof blocks[0].slots);
        memset(blocks[1].slots, -1, sizeof blocks[1].slots);
        for (int i = 0; i < 1000 && !(blocks[0].ended && blocks[1].ended); i++) {
            dice = dice * 6364136223846793005 + 1442695040888963407;
            int block = (int)(dice >> 33) % 2;
            struct block *me = &blocks[block], *other = &blocks[!block];
            if (dice >> 40 & 1)
                ask(block);
            else
                read_tile(block);
            int given_back =
                me->given_back > other->given_back ? me->given_back : other->given_back;
            most = me->asked - given_back > most ? me->asked - given_back : most;
            me->ended = me->given_back == TILES && may_end(TILES, TILES, other->given_back);
        }
        stuck += !(blocks[0].ended && blocks[1].ended);
    }
    if (trouble[0])
        printf("%s\n", trouble);
    else if (stuck)
        printf("%d of %d pairs have not ended\n", stuck, RUNS);
    else if (most < SLOTS)
        printf("at most %d of %d slots are in use\n", most, SLOTS);
    return trouble[0] || stuck || most < SLOTS;
}
