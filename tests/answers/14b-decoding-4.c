static int splits(int keys, int key_heads)
{
    int most = 2 * 132 / key_heads < 128 ? 2 * 132 / key_heads : 128, count = keys / 256;
    if (count > most)
        count = most;
    return count > 1 ? count : 1;
}
