/* Does any query of `rank` see any key of `origin`? */
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

struct ra_schedule ra_schedule_causal(struct ra_layout queries, struct ra_layout keys,
                                      int64_t lookback, int *storage)
{
    int P = queries.ranks;
    struct ra_schedule schedule = {0, storage, storage + P};
    for (int origin = 0; origin < P; origin++)
        schedule.last[origin] = 0;

    /* Home is always taken: it costs no message. */
    for (int hop = 0; hop < P; hop++) {
        bool needed = hop == 0;
        for (int origin = 0; origin < P; origin++)
            if (sees(queries, (origin + hop) % P, keys, origin, lookback)) {
                schedule.last[origin] = hop;
                needed = true;
            }
        if (needed)
            schedule.hop[schedule.count++] = hop;
    }
    return schedule;
}
