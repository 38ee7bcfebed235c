/* rounds: judges the rounds of exercise 3 of page 09a: n chunks of queries, m of keys. Every pair
 * must be in one round, and no chunk in two pairs of one round. Prints what is wrong, or ends with
 * 0. */
#include <stdbool.h>
#include <stdio.h>
#include "rounds.h"

enum { MOST = 9 };

static bool judge(int n, int m)
{
    bool met[MOST][MOST] = {{0}};
    int pairs = 0, rounds = rounds_of(n, m), least = n > m ? n : m;
    if (rounds != least) {
        printf("%d and %d chunks: %d rounds, wanted %d\n", n, m, rounds, least);
        return false;
    }
    for (int t = 0; t < rounds; t++) {
        bool taken[MOST] = {0};
        for (int j = 0; j < m; j++) {
            int i = queries_of(t, j, n, m);
            if (i == NONE)
                continue;
            if (i < 0 || i >= n) {
                printf("%d and %d chunks, round %d: there are no queries %d\n", n, m, t, i);
                return false;
            }
            if (taken[i] || met[i][j]) {
                printf("%d and %d chunks, round %d: queries %d %s\n", n, m, t, i,
                       taken[i] ? "are in two pairs" : "meet the same keys again");
                return false;
            }
            taken[i] = met[i][j] = true;
            pairs++;
        }
    }
    if (pairs != n * m)
        printf("%d and %d chunks: %d pairs, wanted %d\n", n, m, pairs, n * m);
    return pairs == n * m;
}

int main(void)
{
    for (int n = 1; n <= MOST; n++)
        for (int m = 1; m <= MOST; m++)
            if (!judge(n, m))
                return 1;
    return 0;
}
