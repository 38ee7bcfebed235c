double bytes_added(int queries, int keys, int tile)
{
    int tiles = (keys + tile - 1) / tile;
    return 4.0 * tiles * queries * 128;
}
