bool sees(int64_t n, int64_t i, int64_t j)
{
    (void)n;
    return j <= i && (j < 4 || i - j <= 16);
}

int64_t write_slices(int64_t n, struct ra_slice *slices)
{
    int64_t first = n < 4 ? n : 4;
    slices[0] = (struct ra_slice){0, n, 0, first, -RA_BAND_FAR, 0};
    slices[1] = (struct ra_slice){first, n, first, n, -16, 0};
    return 2;
}
