/* One step: the values of the tile before are multiplied, the scores of this one get weights. */
static void step(int tile)
{
    rescale(before);
    multiply_values(tile - 1);
    before = weigh(tile);
}

/* After the last step. */
static void finish(int tiles)
{
    rescale(before);
    multiply_values(tiles - 1);
}
