/* rounds: what a reader writes for exercise 3 of page 09a. */
#pragma once

enum { NONE = -1 };

/* How many rounds n chunks of queries and m chunks of keys need. */
int rounds_of(int n, int m);

/* Which chunk of queries, 0 .. n - 1, chunk `keys` meets in this round, or NONE. */
int queries_of(int round, int keys, int n, int m);
