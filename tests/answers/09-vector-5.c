/* Chapter 09, exercise 5: as many rounds as halve LANES to 1. */
static void transpose_square(lanes x[LANES])
{
    for (int rest = LANES; rest > 1; rest /= 2) {
        lanes y[LANES];
        for (int i = 0; i < LANES; i++)
            y[i] = x[i];
        for (int i = 0; i < LANES / 2; i++) {
            x[2 * i] = lower(y[i], y[i + LANES / 2]);
            x[2 * i + 1] = upper(y[i], y[i + LANES / 2]);
        }
    }
}
