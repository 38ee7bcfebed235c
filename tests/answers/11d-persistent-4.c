/* May a block ask for its half of this tile of keys? This block has given back `here` tiles, the
 * other one `there`. */
static bool may_ask(int tile, int here, int there)
{
    return tile < here + 2 && tile < there + 2;
}

/* May a block end that has given back all its tiles? */
static bool may_end(int tiles, int here, int there)
{
    return there == tiles;
}
