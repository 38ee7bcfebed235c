/* The last row of the keys of rank `from` that row a of `rank` sees; below 0 if there is none. */
static int last_seen(int a, int f, int rank, int from)
{
    if (from == rank)
        return a;
    return a - a % f + (from < rank ? f - 1 : -1);
}
