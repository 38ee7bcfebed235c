double bytes_added(int queries, int keys, int tile)
{
    int tiles = (queries + tile - 1) / tile;
    return 2 * 4.0 * tiles * keys * 128;
}
