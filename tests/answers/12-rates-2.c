/* The share of the busiest rank's pairs that are in triangles. */
static double triangles(enum layout layout, double ranks)
{
    return layout == STRIPED ? 1 : layout == ZIGZAG ? 1 / ranks : 1 / (2 * ranks - 1);
}

/* One of the two lines, interpolated. */
static double between(const double *rates, double rows)
{
    double at = log2(fmin(fmax(rows, 1024), 65536) / 1024) / 2;
    int i = at < 3 ? (int)at : 2;
    return rates[i] + (at - i) * (rates[i + 1] - rates[i]);
}

/* The rate of a ring with so many rows on each rank. */
static double rate(double rows, double dim, double share)
{
    double time = share / between(causal, rows) + (1 - share) / between(full, rows);
    return dim / 128 / time;
}
