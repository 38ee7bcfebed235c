static int64_t bytes_sent(enum ra_layout_kind layout, int rank, int ranks)
{
    int64_t block = 2 * N / ranks * G * D * (int64_t)sizeof(float);
    return block * (layout == RA_CONTIGUOUS ? ranks - 1 - rank : ranks - 1);
}
