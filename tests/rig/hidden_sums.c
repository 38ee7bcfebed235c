/* hidden_sums: judges exercise 5 of page 14a-gpus: with how many tokens the sums of a layer's
 * gradients are hidden behind the backward of the next one. It counts what a rank sends, and tries
 * tokens.
 */
#include <math.h>
#include <stdio.h>

/* The reader's. */
#include "tokens.h"

/* A layer's matrices. All micro-batches but the last add to gradients that nobody sends yet. */
static const double numbers = 12e6;

static double seconds_of_sums(int ranks, double B)
{
    double sent = 0;
    for (int r = 1; r < ranks; r++)
        sent += 2 * numbers / ranks; /* a part to each other rank, in each half */
    return 4 * sent / B;
}

static double least_tokens(int ranks, double R, double B)
{
    double T = 0;
    while (4 * T * numbers / R < seconds_of_sums(ranks, B))
        T++;
    return T;
}

int main(void)
{
    static const double rates[] = {3.9e11, 5e10};
    for (int ranks = 2; ranks <= 8; ranks++)
        for (int i = 0; i < 2; i++)
            for (int batches = 1; batches <= 2; batches++) {
                double mine = tokens(ranks, 7e14, rates[i], batches);
                double wanted = least_tokens(ranks, 7e14, rates[i]);
                if (fabs(mine / wanted - 1) <= 0.01)
                    continue;
                printf("%d ranks, B = %g, micro-batches %d: %.0f tokens are too %s\n", ranks,
                       rates[i], batches, mine, mine > wanted ? "many" : "few");
                return 1;
            }
    return 0;
}
