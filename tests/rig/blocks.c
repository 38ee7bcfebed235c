/* blocks: judges exercise 1 of page 11f-spans: the block of a hop with zigzag, found by looking at
 * every pair of chunks.
 */
#include <stdbool.h>
#include <stdio.h>

struct block {
    int query_chunks, key_chunks;
    bool causal;
};

/* The reader's. */
#include "block.h"

static struct block wanted_of(int ranks, int rank, int hop)
{
    int from = (rank - hop + ranks) % ranks;
    int queries[] = {rank, 2 * ranks - 1 - rank}, keys[] = {from, 2 * ranks - 1 - from};
    bool query_sees[2] = {false}, key_seen[2] = {false}, hidden = false;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (keys[j] <= queries[i])
                query_sees[i] = key_seen[j] = true;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            hidden = hidden || (query_sees[i] && key_seen[j] && keys[j] >= queries[i]);
    return (struct block){query_sees[0] + query_sees[1], key_seen[0] + key_seen[1], hidden};
}

int main(void)
{
    for (int ranks = 1; ranks <= 6; ranks++)
        for (int rank = 0; rank < ranks; rank++)
            for (int hop = 0; hop < ranks; hop++) {
                struct block mine = block_of(ranks, rank, hop), all = wanted_of(ranks, rank, hop);
                if (mine.query_chunks == all.query_chunks && mine.key_chunks == all.key_chunks &&
                    mine.causal == all.causal)
                    continue;
                printf("%d ranks, rank %d, hop %d: not %d x %d chunks, %s\n", ranks, rank, hop,
                       mine.query_chunks, mine.key_chunks, mine.causal ? "causal" : "full");
                return 1;
            }
    return 0;
}
