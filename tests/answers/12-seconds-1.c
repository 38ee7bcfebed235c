/* Milliseconds of hop t. */
static double hop(int t)
{
    double n = 32768, pairs = t == 0 ? n * n / 2 : n * n;
    double work = 2 * 16 * 128 * pairs / (689e12 / 2), carry = 2 * 4 * n * 16 * 128 / 3.35e12;
    return 1e3 * (work + carry);
}
