/* 11d_persistent: page 11d as a toy: which multiprocessor takes which tile of queries, and when the
 * last of them is done. A tile takes a step for each tile of keys that it sees under a causal mask,
 * and EDGE steps for its first loads and its outputs if nothing else is done meanwhile.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>

enum { SMS = 132, ROWS = 192, KEYS = 128, EDGE = 1, MOST = 1536 };
enum policy { BLOCK_A_TILE, FIXED_SHARE, DRAWN_EARLY, DRAWN_LATE };
static const char *const names[] = {"a block a tile", "a fixed share", "drawn early", "drawn late"};

static int heads, heads_of_set, tiles_of_head;

/* The steps of tile number i. Heads come in sets whose keys fit into the L2 cache together; of a
 * set, the tiles with the most work come first. */
static int steps(int i)
{
    int of_set = heads_of_set * tiles_of_head, left = heads - i / of_set * heads_of_set;
    int tile = tiles_of_head - 1 - i % of_set / (left < heads_of_set ? left : heads_of_set);
    return ((tile + 1) * ROWS + KEYS - 1) / KEYS;
}

/* When the last multiprocessor is done. The one that is free first takes the next tile. Who draws
 * late draws it then; who draws early has drawn it when the tile before began; a fixed share is
 * every 132nd tile. */
static int last_done(enum policy policy)
{
    int done[SMS] = {0}, mine[SMS], tiles = heads * tiles_of_head, last = 0;
    int drawn = policy == DRAWN_EARLY ? SMS : 0;
    bool taken[MOST] = {false};
    for (int s = 0; s < SMS; s++)
        mine[s] = s;
    for (int left = tiles; left > 0; left--) {
        int s = 0;
        for (int other = 1; other < SMS; other++)
            if (mine[s] >= tiles || (mine[other] < tiles && done[other] < done[s]))
                s = other;
        bool late = policy == BLOCK_A_TILE || policy == DRAWN_LATE;
        bool border = policy == BLOCK_A_TILE || done[s] == 0;
        int tile = late ? drawn++ : mine[s];
        assert(tile < tiles && !taken[tile]);
        taken[tile] = true;
        done[s] += steps(tile) + (border ? EDGE : 0);
        if (policy == DRAWN_EARLY)
            mine[s] = drawn++;
        if (policy == FIXED_SHARE)
            mine[s] += SMS;
        last = done[s] > last ? done[s] : last;
    }
    return last;
}

int main(void)
{
    static const int shapes[][3] = {{16, 4, 16384}, {64, 16, 4096}, {256, 44, 1024}};
    for (int i = 0; i < 3; i++) {
        heads = shapes[i][0], heads_of_set = shapes[i][1];
        tiles_of_head = (shapes[i][2] + ROWS - 1) / ROWS;
        int all = 0;
        for (int tile = 0; tile < heads * tiles_of_head; tile++)
            all += steps(tile);
        printf("%d heads, %d tokens: %d steps a multiprocessor\n", heads, shapes[i][2], all / SMS);
        for (enum policy p = BLOCK_A_TILE; p <= DRAWN_LATE; p++) {
            int last = last_done(p);
            printf("    %-16s%5d steps  %5.1f %% busy\n", names[p], last, 100. * all / SMS / last);
        }
    }
    return 0;
}
