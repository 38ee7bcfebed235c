/* 09a_sums: page 09a as a toy: threads fold pairs of chunks, and each pair adds to the sums of
 * both. Carelessly, with a lock, and in rounds in which no chunk is in two pairs.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNKS = 8, ROWS = 20000, RUNS = 50 };
static float dq[CHUNKS][ROWS], dk[CHUNKS][ROWS];

/* Folds a chunk of queries and one of keys. The terms are any numbers. */
static void fold(int queries, int keys)
{
    for (int e = 0; e < ROWS; e++) {
        dq[queries][e] += 1.0f / (float)(1 + e + 31 * keys);
        dk[keys][e] += 1.0f / (float)(2 + e + 37 * queries);
    }
}

static void carelessly(void)
{
#pragma omp parallel for schedule(dynamic)
    for (int pair = 0; pair < CHUNKS * CHUNKS; pair++)
        fold(pair % CHUNKS, pair / CHUNKS);
}

static void with_a_lock(void)
{
#pragma omp parallel for schedule(dynamic)
    for (int pair = 0; pair < CHUNKS * CHUNKS; pair++)
#pragma omp critical
        fold(pair % CHUNKS, pair / CHUNKS);
}

/* Round t: chunk j of keys meets chunk j + t of queries, counted round. */
static void in_rounds(void)
{
    for (int t = 0; t < CHUNKS; t++)
#pragma omp parallel for schedule(dynamic)
        for (int j = 0; j < CHUNKS; j++)
            fold((j + t) % CHUNKS, j);
}

/* Adds up many times; counts runs that are wrong, and runs with other bits than the first. */
static void try_it(const char *name, void add_up(void))
{
    static float first[CHUNKS][ROWS];
    int wrong = 0, others = 0;
    for (int run = 0; run < RUNS; run++) {
        memset(dq, 0, sizeof dq);
        memset(dk, 0, sizeof dk);
        add_up();
        double error = 0;
        for (int j = 0; j < CHUNKS; j++)
            for (int e = 0; e < ROWS; e++) {
                double want = 0;
                for (int i = 0; i < CHUNKS; i++)
                    want += 1.0 / (2 + e + 37 * i);
                error = fmax(error, fabs(dk[j][e] / want - 1));
            }
        wrong += error > 1e-5;
        if (run == 0)
            memcpy(first, dk, sizeof dk);
        others += memcmp(first, dk, sizeof dk) != 0;
    }
    printf("%-12s of %d runs %3d are wrong, %3d have other bits than the first\n", name, RUNS,
           wrong, others);
}

int main(void)
{
    try_it("carelessly:", carelessly);
    try_it("with a lock:", with_a_lock);
    try_it("in rounds:", in_rounds);
    return 0;
}
