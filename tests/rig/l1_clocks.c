/* l1_clocks: judges exercise 1 of chapter 11: what a warp of k01 takes of L1 for one column of one
 * pair of each of its rows, request by request. */
#include <math.h>
#include <stdio.h>

enum { LANES = 32, LINE = 128, MOST = 8 };

double clocks(int rows); /* the reader's */

/* A number of this many bytes for each thread, or one for all of them. */
static int requests(int bytes, int numbers)
{
    return (bytes * numbers + LINE - 1) / LINE;
}

int main(void)
{
    int wanted = requests(4, 1) + requests(4, 1); /* k and v */
    for (int rows = 1; rows <= MOST; rows++) {
        wanted += requests(4, LANES) + 2 * requests(8, LANES); /* q; o, read and written */
        if (!(fabs(clocks(rows) - wanted) < 0.5)) {
            printf("rows of a thread: %d; you say %g clocks, which is wrong\n", rows, clocks(rows));
            return 1;
        }
    }
    return 0;
}
