/* TFLOP/s of k07, if its tensor cores are as busy as those of k06. */
static double rate(void)
{
    return 476.0 * 7 / 5;
}

/* Percent of the time in which L2 adds, at that rate. */
static double adding(void)
{
    double n = 16384, seconds = 10 * n * n * 128 / (rate() * 1e12);
    double bytes = n / 128 * n * 128 * 4;
    return 100 * bytes / seconds / (14.7 * 132 * 1.98e9);
}
