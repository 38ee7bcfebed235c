/* The bytes of the window that just fills the cable. */
static double filling(void)
{
    return 100e9 / 8 * 0.0002;
}

/* Seconds that the message takes, if no more than `window` bytes may be under way. */
static double seconds(double window)
{
    double rate = 100e9 / 8, trip = 0.0002;
    if (window / trip < rate)
        rate = window / trip;
    return 3 * trip / 2 + 67108864 / rate;
}
