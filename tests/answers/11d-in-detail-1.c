int available(int groups, int loading)
{
    return (65536 / 128 - loading) / groups / 8 * 8;
}

int needed(int D, int keys, bool overlap)
{
    return D / 2 + keys / 2 + (overlap ? keys / 4 : 0);
}
