/* Keys that a row computes and does not see, on average. */
static double beyond(int T, int U, int hi)
{
    int g = common_divisor(T, U), e = (g - hi % g) % g;
    return (T - 1) / 2. + (U - g) / 2. + e;
}
