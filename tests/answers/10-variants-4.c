/* Chapter 10, Variants, exercise 4: what stays of a frequency in Llama 3. */
static double kept(int t)
{
    double waves = 4096 * pow(10000, -2.0 * t / 64) / 6.283185307179586;
    double stays = fmin(1, fmax(0, (waves - 1) / (4 - 1)));
    return stays + (1 - stays) / 4;
}
