/* The predicted time of a forward by the average rank, divided by that by the busiest one. */
static double promised(double ranks)
{
    return ranks / 2 / (ranks - 0.5);
}
