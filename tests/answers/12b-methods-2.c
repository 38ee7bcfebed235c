/* Bytes that a rank sends in a ring. */
static double ring(double ranks)
{
    double rows = 131072 / ranks;
    return (ranks - 1) * rows * 2 * 8 * 128 * 2;
}

/* Bytes that a rank sends if heads are exchanged. */
static double exchanged(double ranks)
{
    double rows = 131072 / ranks, key_heads = ranks > 8 ? ranks : 8;
    return (1 - 1 / ranks) * rows * (2 * 64 + 2 * key_heads) * 128 * 2;
}
