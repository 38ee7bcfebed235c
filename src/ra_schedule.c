/* ra_schedule: which hops of a ring are worth going. See ra_schedule.h.
 *
 * Chapter 06. New here: hops that nobody needs are neither sent nor waited for.
 */
#include "ra_schedule.h"

/* Does any query of `rank` see any key of `origin`? */
static bool sees(struct ra_layout queries, int rank, struct ra_layout keys, int origin,
                 int64_t lookback)
{
    for (int64_t s = 0; s < ra_layout_spans(queries); s++)
        for (int64_t t = 0; t < ra_layout_spans(keys); t++) {
            /* Stripe s against t is stripe s - 1 against t - 1 moved by one: asked already. */
            if (keys.kind == RA_STRIPED && s > 0 && t > 0)
                break;
            struct ra_band band = ra_layout_band(queries, rank, s, keys, origin, t, lookback);
            if (!ra_band_is_empty(band, ra_layout_span(queries, rank, s).count,
                                  ra_layout_span(keys, origin, t).count))
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

    /* Take a hop into the schedule if some rank needs it, and note how far each block has to go.
     * Home is always taken: it costs no message. */
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
