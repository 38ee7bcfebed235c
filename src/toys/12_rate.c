/* 12_rate: chapter 12 as a toy: at what rate a GPU attends to few rows and to many, if it loses
 * time in three places only: in the last wave of tiles, in tiles that are not full, and at the
 * beginning and end of each tile.
 */
#include <math.h>
#include <stdio.h>

/* The multiprocessors of an H100; k07's tiles with heads of 128 numbers: so many queries, which
 * meet so many keys in a step. */
enum { SMS = 132, QUERIES = 192, KEYS = 128, HEADS = 32 };

/* What happens once in a tile of queries, in steps; 10^12 operations a second if nothing is lost.
 * Both are chosen, to agree with what was measured for 1,024 and 65,536 rows. */
static const double ONCE = 2, BEST = 705;

static void predict(double rows)
{
    double tiles = HEADS * ceil(rows / QUERIES);
    double waves = ceil(tiles / SMS); /* a multiprocessor has one tile at a time */
    double time = waves * (ceil(rows / KEYS) + ONCE);

    /* The steps that are asked for, and those that all multiprocessors could do in that time. */
    double asked = HEADS * (rows / QUERIES) * (rows / KEYS);
    double share = asked / (SMS * time);
    printf("%6.0f%8.0f%8.2f%8.0f%8.0f %%%8.0f\n", rows, tiles, tiles / SMS, waves, 100 * share,
           BEST * share);
}

int main(void)
{
    static const double rows[] = {1024, 1536, 1600, 4096, 16384, 65536};
    puts("  rows   tiles  of 132   waves     used    rate");
    for (int i = 0; i < 6; i++)
        predict(rows[i]);
    return 0;
}
