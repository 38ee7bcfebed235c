static void predict(double tokens, double ranks)
{
    double n = tokens / ranks, bytes = n * 2 * DIM * KEY_HEADS * BYTES;

    /* Of the n * n pairs of a hop half see each other; a pair is D multiply-adds for its score and
     * D for its output. A message goes round in the host; one to the next host has 8 hops. */
    double work = n * n / 2 * 2 * DIM * HEADS / F;
    double inside = bytes / INSIDE, between = bytes / BETWEEN / 8;
    double message = inside > between ? inside : between;
    double hop = work > message ? work : message;

    double all = (ranks - 1) * hop + work;
    printf("%5.0f%10.0f%10.3g%10.3g%11.4f%9.1f %%\n", ranks, n, 1e3 * work, 1e3 * message, all,
           100 * (1 - ranks * work / all));
}
