/* stair: judges exercise 2 of page 11f-spans: which row of keys a row sees last, if both are in the
 * order of neighbours. It compares tokens.
 */
#include <stdbool.h>
#include <stdio.h>

/* The reader's. */
#include "stair.h"

static int token(int row, int f, int rank, int ranks)
{
    return row / f * ranks * f + rank * f + row % f;
}

/* Whether the reader's row is the last that row a of `rank` sees, of the keys of rank `from`. */
static bool is_right(int a, int f, int rank, int from, int ranks)
{
    int wanted = -1, mine = last_seen(a, f, rank, from);
    for (int b = 0; b < 5 * f; b++)
        if (token(b, f, from, ranks) <= token(a, f, rank, ranks))
            wanted = b;
    bool right = mine == wanted || (mine < 0 && wanted < 0);
    if (!right)
        printf("f = %d, keys of rank %d: row %d of rank %d does not see row %d last\n", f, from, a,
               rank, mine);
    return right;
}

int main(void)
{
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int f = 1; f <= 5; f++)
            for (int rank = 0; rank < ranks; rank++)
                for (int from = 0; from < ranks; from++)
                    for (int a = 0; a < 4 * f; a++)
                        if (!is_right(a, f, rank, from, ranks))
                            return 1;
    return 0;
}
