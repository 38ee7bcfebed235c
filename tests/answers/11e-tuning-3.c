/* Written to a block's shared memory and read there, for dq, if its own half is stored, too. */
static int both_stored(void)
{
    int half = 64 * 128 * 4 / 2, own = half, comes = half, sum = half;
    return own + comes + (own + comes) + sum + sum;
}

/* The same, if its own half stays in registers. */
static int own_in_registers(void)
{
    int half = 64 * 128 * 4 / 2, comes = half, sum = half;
    return comes + comes + sum + sum;
}

/* What a block sends to L2. */
static int leaves(void)
{
    return 64 * 128 * 4 / 2;
}
