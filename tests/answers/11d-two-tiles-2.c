/* The most keys of a tile. Keys have D numbers, values D_v; two or three warpgroups compute. */
static int most_keys(int D, int D_v, int groups)
{
    int keys = 16, spare = (groups == 3 ? 160 : 232) - 32;
    while (D_v / 2 + (keys + 16) / 2 + (keys + 16) / 4 <= spare &&
           64 * groups * D * 2 + 2 * (keys + 16) * (D + D_v) * 2 <= 227 * 1024)
        keys += 16;
    return keys;
}
