/* one_tile: judges exercise 6 of page 11b. Goes through one tile of k03's forward, warp by warp,
 * and counts what it takes. */
#include <math.h>
#include <stdio.h>

enum { WARPS = 4, ROWS = 32, LANES = 32, COUNTS = 4 };

/* The reader's, for D and the keys of a tile: registers of a thread, then clocks of an SM. */
double registers(int D, int keys);
double products(int D, int keys);
double shared_memory(int D, int keys);
double exponentials(int D, int keys);

/* A number of q, k or v has two bytes. */
static void count(int D, int keys, double counts[COUNTS])
{
    double operations = 0, weights = 0, bytes = 2.0 * 2 * keys * D; /* the next keys and values */
    for (int warp = 0; warp < WARPS; warp++) {
        bytes += 2.0 * (ROWS + keys + keys) * D;
        for (int row = 0; row < ROWS; row++)
            for (int key = 0; key < keys; key++) {
                operations += 2.0 * D + 2.0 * D;
                weights++;
            }
    }
    counts[0] = (double)(ROWS * D + ROWS * keys) / LANES;
    counts[1] = operations / 2729;
    counts[2] = bytes / 128;
    counts[3] = weights / 16;
}

int main(void)
{
    static const int shapes[][2] = {{128, 64}, {64, 128}, {128, 32}, {64, 48}};
    static const char *const names[] = {"registers", "products", "shared_memory", "exponentials"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int D = shapes[i][0], keys = shapes[i][1];
        double wanted[COUNTS], yours[] = {registers(D, keys), products(D, keys),
                                          shared_memory(D, keys), exponentials(D, keys)};
        count(D, keys, wanted);
        for (int k = 0; k < COUNTS; k++)
            if (!(fabs(yours[k] - wanted[k]) < 1)) {
                printf("D = %d, %d keys: %s says %.0f, which is wrong\n", D, keys, names[k],
                       yours[k]);
                return 1;
            }
    }
    return 0;
}
