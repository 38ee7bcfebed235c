/* The least tokens of a rank, in a micro-batch, with which the sums are hidden. R operations and B
 * bytes a second. */
static double tokens(int ranks, double R, double B, int micro_batches)
{
    return 2.0 * (ranks - 1) / ranks * R / B;
}
