static bool sees(struct ra_layout queries, int rank, struct ra_layout keys, int origin,
                 int64_t lookback)
{
    for (int64_t a = 0; a < ra_layout_rows(queries, rank); a++)
        for (int64_t b = 0; b < ra_layout_rows(keys, origin); b++) {
            int64_t i = ra_layout_position(queries, rank, a) + keys.length - queries.length;
            int64_t j = ra_layout_position(keys, origin, b);
            if (j <= i && i - j <= lookback)
                return true;
        }
    return false;
}
