static double bytes_sent(double weights, int ranks)
{
    return 2 * 4 * weights * (ranks - 1) / ranks;
}
