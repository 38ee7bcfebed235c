/* The keys that the rows from a on see between them: one run, from *first to *last, of keys that
 * are there. False: none. */
static bool seen_keys(struct ra_band band, int64_t a, int64_t rows, int64_t keys, int64_t *first,
                      int64_t *last)
{
    *first = a + band.lo < 0 ? 0 : a + band.lo;
    *last = a + rows - 1 + band.hi < keys - 1 ? a + rows - 1 + band.hi : keys - 1;
    return band.lo <= band.hi && *first <= *last;
}

void ra_band_fold(struct ra_fold *fold, const struct ra_queries *queries,
                  const struct ra_keys *keys, struct ra_band band)
{
    int64_t C = fold->tile_keys, tiles = (keys->rows + C - 1) / C, first, last;
    for (int64_t a = 0; a < queries->rows; a += fold->tile_queries) {
        struct ra_queries rows = ra_queries_block(queries, a, fold->tile_queries);
        bool any = seen_keys(band, a, rows.rows, keys->rows, &first, &last);
        fold->skipped += any ? tiles - (last / C - first / C + 1) : tiles;
        for (int64_t b = first / C * C; any && b <= last; b += C) {
            struct ra_keys seen = ra_keys_block(keys, b, C);
            fold->pairs += rows.rows * seen.rows;
            fold->tile(fold->dims, fold->score, &rows, &seen, ra_band_from(band, a, b),
                       fold->workspace);
            if (fold->between)
                fold->between(fold->context);
        }
    }
}
