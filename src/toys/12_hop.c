/* 12_hop: chapter 12 as a toy: what a causal, striped ring of H100s takes for one forward, if every
 * hop takes as long as its work or its message, whichever is longer.
 */
#include <stdio.h>

/* A GPU's multiply-adds a second; bytes a second to the next one of the same host of 8, and to one
 * of another host. Numbers of 2 bytes. */
static const double F = 325e12, INSIDE = 393e9, BETWEEN = 50e9;
enum { BYTES = 2, HEADS = 32, KEY_HEADS = 32, DIM = 128 };

static void predict(double tokens, double ranks)
{
    double n = tokens / ranks, W = ranks > 8 ? BETWEEN : INSIDE;

    /* Of the n * n pairs of a hop half see each other; a pair is D multiply-adds for its score and
     * D for its output. The message is k and v of n tokens. */
    double work = n * n / 2 * 2 * DIM * HEADS / F;
    double message = n * 2 * DIM * KEY_HEADS * BYTES / W;
    double hop = work > message ? work : message;

    /* Nothing is sent beside the last hop. */
    double all = (ranks - 1) * hop + work;
    printf("%5.0f%10.0f%10.3g%10.3g%11.4f%9.1f %%\n", ranks, n, 1e3 * work, 1e3 * message, all,
           100 * (1 - ranks * work / all));
}

int main(void)
{
    puts("ranks   rows of  a hop, ms:            all hops,");
    puts("           each      work   message          s      waits");
    for (double ranks = 8; ranks <= 4096; ranks *= 8)
        predict(1 << 20, ranks);
    return 0;
}
