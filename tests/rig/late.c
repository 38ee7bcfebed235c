/* late: judges exercise 1 of page 11d-two-tiles: a query folds tiles of keys with overlap, and o
 * is rescaled late, in the next step, while that step's scores are multiplied. So in a step nothing
 * may rescale o behind the softmax, and the output must be right all the same.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

enum { TILES = 6, KEYS = 4 };

static double most, sum, o, p[KEYS], before; /* before: what the last softmax found for o */
static bool weighed, too_early;

/* A score that grows in some tiles and not in others, and a value. */
static double score(int key)
{
    return key * 7 % 11 + key / 2;
}

static double value(int key)
{
    return 1 + key * 3 % 8;
}

/* o += p v, with the values of a tile; there is none before tile 0. */
static void multiply_values(int tile)
{
    for (int i = 0; i < KEYS && tile >= 0; i++)
        o += p[i] * value(tile * KEYS + i);
}

/* The softmax of a tile: its weights p, under the largest score so far. Returns what a carry under
 * the largest score before must be multiplied by. */
static double weigh(int tile)
{
    double old = most;
    for (int i = 0; i < KEYS; i++)
        most = fmax(most, score(tile * KEYS + i));
    double factor = exp(old - most);
    sum *= factor;
    for (int i = 0; i < KEYS; i++)
        sum += p[i] = exp(score(tile * KEYS + i) - most);
    weighed = true;
    return factor;
}

static void rescale(double factor)
{
    too_early = too_early || weighed;
    o *= factor;
}

/* The reader's. */
#include "step.h"

int main(void)
{
    double all = 0, wanted = 0;
    for (int key = 0; key < TILES * KEYS; key++) {
        all += exp(score(key));
        wanted += exp(score(key)) * value(key);
    }
    most = -INFINITY;
    before = 1;
    for (int tile = 0; tile < TILES; tile++, weighed = false)
        step(tile);
    finish(TILES);
    bool right = fabs(o / sum - wanted / all) < 1e-12;
    if (!right)
        printf("the output is %.6f, wanted %.6f\n", o / sum, wanted / all);
    else if (too_early)
        printf("the output is right, but o is rescaled behind the softmax of a step\n");
    return !right || too_early;
}
