int rounds_of(int n, int m)
{
    return n > m ? n : m;
}

int queries_of(int round, int keys, int n, int m)
{
    int i = (keys + round) % rounds_of(n, m);
    return i < n ? i : NONE;
}
