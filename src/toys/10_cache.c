/* 10_cache: chapter 10's products of matrices as a toy: how many lines a cache must fetch from
 * memory for a product by three loops, and by blocks. The cache is played: it has 64 sets of 8
 * lines of 16 numbers, 32 KiB, as a first-level cache has.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, DEPTH = 64, WIDE = 32 }; /* of all matrices; terms and columns of a strip */
enum { ROW = N };                        /* numbers from row to row of the right operand */
enum { LINE = 16, SETS = 64, WAYS = 8 };

/* Each begins at the first set. */
static _Alignas(4096) float left[N][N];
static _Alignas(4096) float right[N][ROW];
static _Alignas(4096) float packed[DEPTH][WIDE];
static _Alignas(4096) float out[N][N];
static uintptr_t cache[SETS][WAYS]; /* numbers of lines, the latest of a set first */
static long fetched;

/* Reads a number. If its line is not in its set, it is fetched, and the oldest one leaves. */
static float number(const float *x)
{
    uintptr_t line = (uintptr_t)x / sizeof *x / LINE, *set = cache[line % SETS];
    int at = 0;
    while (at < WAYS && set[at] != line)
        at++;
    fetched += at == WAYS;
    memmove(set + 1, set, (size_t)(at < WAYS ? at : WAYS - 1) * sizeof *set);
    set[0] = line;
    return *x;
}

/* Each number of out is one sum, from its first term to its last. */
static void three_loops(void)
{
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < N; k++)
                out[i][j] += number(&left[i][k]) * number(&right[k][j]);
}

/* A strip of the right operand meets all rows of the left one, and then the next strip does. */
static void by_blocks(bool pack)
{
    for (int first = 0; first < N; first += DEPTH)
        for (int column = 0; column < N; column += WIDE) {
            for (int k = 0; k < DEPTH && pack; k++)
                for (int j = 0; j < WIDE; j++)
                    packed[k][j] = number(&right[first + k][column + j]);
            for (int i = 0; i < N; i++) {
                float sums[WIDE] = {0}; /* in registers */
                for (int k = 0; k < DEPTH; k++)
                    for (int j = 0; j < WIDE; j++)
                        sums[j] += number(&left[i][first + k]) *
                                   number(pack ? &packed[k][j] : &right[first + k][column + j]);
                for (int j = 0; j < WIDE; j++)
                    out[i][column + j] = number(&out[i][column + j]) + sums[j];
            }
        }
}

/* Prints what has been fetched, and begins anew. */
static void report(const char *how)
{
    double sum = 0;
    for (int e = 0; e < N * N; e++)
        sum += fabs(out[e / N][e % N]);
    printf("%-24s %9ld lines; sum of |out| %.0f\n", how, fetched, sum);
    memset(out, 0, sizeof out);
    memset(cache, 0, sizeof cache);
    fetched = 0;
}

int main(void)
{
    for (int e = 0; e < N * N; e++) {
        left[e / N][e % N] = (float)sin(e);
        right[e / N][e % N] = (float)cos(2 * e);
    }
    three_loops();
    report("three loops");
    by_blocks(false);
    report("strips where they lie");
    by_blocks(true);
    report("strips packed");
    return 0;
}
