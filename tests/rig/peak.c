/* peak: how many multiply-adds a second this machine does when memory does not matter.
 *
 * Twelve vectors of four sums stay in registers, each a chain of multiply-adds that depends on nothing
 * else: with the same flags as the stages, no loop over arrays in memory can do better. They are
 * separate variables of the compiler's own vector type because compilers find ways to do worse with
 * an array of sums: gcc 13 takes one sum after the other. Prints one number, in thousand millions a
 * second: the best of 20 runs.
 */
#include <stdio.h>
#include "ra_clock.h"

typedef float four __attribute__((vector_size(16)));

#define STEPS 2000000

int main(void)
{
    four factor = {0.999f, 0.998f, 0.997f, 0.996f}, term = {1e-3f, 2e-3f, 3e-3f, 4e-3f},
         total = {0};
    double best = 0;
    for (int run = 0; run < 20; run++) {
        four a = {0}, b = {1}, c = {2}, d = {3}, e = {4}, f = {5};
        four g = {6}, h = {7}, i = {8}, j = {9}, k = {10}, l = {11};

        /* Each step multiplies and adds once in every sum. */
        double start = ra_seconds();
        for (int step = 0; step < STEPS; step++) {
            a = a * factor + term, b = b * factor + term, c = c * factor + term;
            d = d * factor + term, e = e * factor + term, f = f * factor + term;
            g = g * factor + term, h = h * factor + term, i = i * factor + term;
            j = j * factor + term, k = k * factor + term, l = l * factor + term;
        }
        double rate = 1e-9 * 12 * 4 * STEPS / (ra_seconds() - start);
        best = rate > best ? rate : best;
        /* The sums are used, so that no compiler leaves the work out. */
        total += a + b + c + d + e + f + g + h + i + j + k + l;
    }
    fprintf(stderr, "(sum of the sums: %g)\n", total[0] + total[1] + total[2] + total[3]);
    printf("%.2f\n", best);
    return 0;
}
