/* own_mask: judges any mask that a reader has written for the last exercise of chapter 13: whether
 * its slices are what its other function says, for many lengths. Prints the slices for 1,024
 * tokens, a line for each, or says on stderr what is wrong. */
#include "own_mask.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1024, ENOUGH = 64, GUARD = -77 };

/* How often each pair of the longest sequence is in a slice. */
static unsigned char times[LONGEST][LONGEST];

/* Prints what is wrong, and ends the program. */
#define fail(...) exit((fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), 1))

/* Counts the pairs of a slice of n tokens. */
static void draw(int64_t n, int64_t s, struct ra_slice slice)
{
    if (slice.q0 < 0 || slice.q1 > n || slice.k0 < 0 || slice.k1 > n)
        fail("slice %" PRId64 " of %" PRId64 " tokens has rows or keys that are not there", s, n);
    for (int64_t i = slice.q0; i < slice.q1; i++)
        for (int64_t j = slice.k0; j < slice.k1; j++)
            if (j - i >= slice.lo && j - i <= slice.hi && ++times[i][j] > 1)
                fail("with %" PRId64 " tokens, query %" PRId64 " and key %" PRId64
                     " are in two slices",
                     n, i, j);
}

/* Compares the slices for n tokens with sees, pair by pair. Returns how many slices there are. */
static int64_t judge(int64_t n, struct ra_slice *slices)
{
    int64_t most = n / 2 + 4;
    slices[most].q0 = GUARD;
    int64_t count = write_slices(n, slices);
    if (count < 0 || count > most || slices[most].q0 != GUARD)
        fail("%" PRId64 " slices for %" PRId64 " tokens: there is room for %" PRId64, count, n,
             most);
    memset(times, 0, sizeof times);
    for (int64_t s = 0; s < count; s++)
        draw(n, s, slices[s]);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (sees(n, i, j) != times[i][j])
                fail("with %" PRId64 " tokens, query %" PRId64 " %s key %" PRId64
                     ", but the slices say otherwise",
                     n, i, sees(n, i, j) ? "sees" : "does not see", j);
    return count;
}

/* Whether only the distance of query and key counts, as in all that flags can say. */
static bool is_band(int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = 1; j < n; j++)
            if (sees(n, i, j) != sees(n, i - 1, j - 1))
                return false;
    return true;
}

int main(void)
{
    static struct ra_slice slices[LONGEST / 2 + 5];
    for (int64_t n = 1; n <= ENOUGH; n++)
        judge(n, slices);
    if (is_band(ENOUGH))
        fail("only the distance of query and key counts: that is a band, think of another mask");
    int64_t count = judge(LONGEST, slices);
    for (int64_t s = 0; s < count; s++)
        printf("%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n",
               slices[s].q0, slices[s].q1, slices[s].k0, slices[s].k1, slices[s].lo, slices[s].hi);
}
