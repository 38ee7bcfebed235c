/* The first tile of a block; the number of tiles or more if there is none. */
static unsigned first_tile(unsigned *counter, unsigned block, unsigned blocks, unsigned tiles)
{
    return atomic_inc(counter, tiles + blocks - 1);
}

/* The next tile of a block; the number of tiles or more if there is none. */
static unsigned next_tile(unsigned *counter, unsigned blocks, unsigned tiles)
{
    return atomic_inc(counter, tiles + blocks - 1);
}
