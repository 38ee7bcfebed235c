/* peak: how many multiply-adds a second this machine does in plain C, when memory does not matter.
 *
 * 48 sums that stay in registers, each a chain of multiply-adds that depend on nothing else: with the
 * same flags as the stages, no loop over arrays in memory can do better. Prints one number, in
 * thousand millions a second: the best of 20 runs.
 */
#include <stdio.h>
#include <time.h>

#define SUMS 48
#define STEPS 2000000

int main(void)
{
    float sums[SUMS], factor = 0.999f, term = 1e-3f, total = 0;
    double best = 0;
    for (int run = 0; run < 20; run++) {
        struct timespec start, end;
        for (int s = 0; s < SUMS; s++)
            sums[s] = (float)s;

        /* Each step multiplies and adds once in every sum. */
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int step = 0; step < STEPS; step++)
            for (int s = 0; s < SUMS; s++)
                sums[s] = sums[s] * factor + term;
        clock_gettime(CLOCK_MONOTONIC, &end);

        double seconds =
            (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        double rate = 1e-9 * SUMS * STEPS / seconds;
        best = rate > best ? rate : best;
        /* The sums are used, so that no compiler leaves the work out. */
        for (int s = 0; s < SUMS; s++)
            total += sums[s];
    }
    fprintf(stderr, "(sum of the sums: %g)\n", total);
    printf("%.2f\n", best);
    return 0;
}
