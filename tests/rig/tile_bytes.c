/* tile_bytes: judges exercise 1 of page 11a. Goes through the pairs of one tile, counts their
 * operations in a forward, and the bytes of the keys and values that come from memory for it. */
#include <math.h>
#include <stdio.h>

double intensity(int stay, int pass, int dim); /* the reader's */

static double count(int stay, int pass, int dim)
{
    double operations = 0, bytes = 0;
    for (int key = 0; key < pass; key++) {
        bytes += 2.0 * (double)sizeof(float) * dim;
        for (int query = 0; query < stay; query++)
            operations += 2.0 * 2 * dim;
    }
    return operations / bytes;
}

int main(void)
{
    static const int tiles[][3] = {{64, 32, 128}, {128, 32, 128}, {64, 64, 64}, {10, 96, 40}};
    int wrong = 0;
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        int stay = tiles[i][0], pass = tiles[i][1], dim = tiles[i][2];
        double yours = intensity(stay, pass, dim);
        printf("%3d rows stay, %d pass, D = %3d: you say %g\n", stay, pass, dim, yours);
        wrong += !(fabs(yours - count(stay, pass, dim)) <= 1e-9);
    }
    if (wrong > 0)
        printf("%d of these are wrong\n", wrong);
    return wrong > 0;
}
