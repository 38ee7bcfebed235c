/* The block of a hop: how many chunks of queries and of keys it has. Causal: a query does not see
 * all of its keys. */
static struct block block_of(int ranks, int rank, int hop)
{
    int from = (rank - hop + ranks) % ranks;
    if (from == rank)
        return (struct block){2, 2, true};
    return from < rank ? (struct block){2, 1, false} : (struct block){1, 2, false};
}
