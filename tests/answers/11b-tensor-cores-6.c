double registers(int D, int keys)
{
    return D + keys;
}

double products(int D, int keys)
{
    return 4.0 * 128 * keys * D / 2729;
}

double shared_memory(int D, int keys)
{
    return (4 * (32 + 2 * keys) + 2 * keys) * 2.0 * D / 128;
}

double exponentials(int D, int keys)
{
    return 128 * keys / 16.0;
}
