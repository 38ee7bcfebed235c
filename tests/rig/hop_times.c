/* hop_times: judges exercise 4 of page 11f-ring: from how many rows on a copy is hidden, and how
 * long the hops of a million tokens on eight GPUs take. It tries rows, and adds up hops.
 */
#include <math.h>
#include <stdio.h>

/* The reader's. */
#include "pencil.h"

/* Operations and bytes in a second; the numbers of a row of a head. */
static const double forward = 660e12, back = 575e12, wires = 390e9, network = 50e9, D = 128;

static double copy(double n, double key_heads, double rate)
{
    return 2 * n * key_heads * D * 2 / rate; /* k and v, of 16 bits */
}

/* The products of a hop, causal: q k^T and p v, or five in the backward. */
static double work(double n, double heads, int products, double rate)
{
    return products * 2 * (n * n / 2) * heads * D / rate;
}

/* The least rows with which the copy takes no longer than the work. */
static double least_rows(double heads, double key_heads)
{
    double n = 100;
    while (copy(n, key_heads, network) > work(n, heads, 2, forward))
        n += 10;
    return n;
}

static int judge(const char *name, double mine, double wanted)
{
    int wrong = !(fabs(mine / wanted - 1) <= 0.03);
    if (wrong)
        printf("%s: %g is too %s\n", name, mine, mine > wanted ? "large" : "small");
    return wrong;
}

int main(void)
{
    double n = 1048576 / 8, all = 0;
    for (int hop = 0; hop < 8; hop++)
        all += work(n, 8, 5, back);
    int wrong = judge("rows", rows, least_rows(8, 8));
    wrong += judge("rows of an eighth", rows_of_an_eighth, least_rows(8, 1));
    wrong += judge("share", share, 100 * copy(n, 8, wires) / work(n, 8, 2, forward));
    wrong += judge("last gradients", last_gradients, 1e3 * 2 * n * 8 * D * 4 / wires);
    wrong += judge("backward", backward, all);
    return wrong > 0;
}
