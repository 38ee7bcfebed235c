/* Rounds of pairs of chunks: see rounds.h. Here all keys of a round meet the same queries. */
#include "rounds.h"

int rounds_of(int n, int m)
{
    (void)m;
    return n;
}

int queries_of(int round, int keys, int n, int m)
{
    (void)keys, (void)n, (void)m;
    return round;
}
