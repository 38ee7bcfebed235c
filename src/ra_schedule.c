/* ra_schedule: which hops of a ring are worth going. See ra_schedule.h.
 *
 * Chapter 06. New here: hops that nobody needs are neither sent nor waited for.
 */
#include "ra_schedule.h"
#include "ra_math.h"

/* In order of position, every layout deals out runs of this many rows: the first lap of P runs to
 * ranks 0, 1, ... P - 1. Striped, more laps follow; zigzag, one more, from rank P - 1 back to 0. */
static int64_t run_length(struct ra_layout layout)
{
    return layout.kind == RA_STRIPED ? layout.stripes : ra_layout_span(layout, 0, 0).count;
}

/* Which rank has run number `place` of a lap; or which number has the run of a rank: the same. */
static int64_t dealt(struct ra_layout layout, int64_t lap, int64_t place)
{
    return layout.kind == RA_ZIGZAG && lap == 1 ? layout.ranks - 1 - place : place;
}

/* Notes that keys of `origin` are seen by all ranks from `first` to `last`, either of which may be
 * the larger. Until all is noted, hop[h] is by how much hop h is needed more often than hop h -
 * 1. */
static void note(struct ra_schedule *schedule, int P, int origin, int64_t first, int64_t last)
{
    int64_t from = ra_min(first, last), to = first + last - from;
    int near = (int)((from - origin + P) % P), far = (int)((to - origin + P) % P);
    schedule->hop[near]++;
    if (far + 1 < P)
        schedule->hop[far + 1]--;
    if (near > far) /* the ranks go past home, so the hops past the last one */
        schedule->hop[0]++;
    int most = near > far ? P - 1 : far;
    if (most > schedule->last[origin])
        schedule->last[origin] = most;
}

/* Notes the ranks that have query rows from..to: they see keys of `origin`. */
static void note_rows(struct ra_schedule *schedule, struct ra_layout queries, int origin,
                      int64_t from, int64_t to)
{
    int P = queries.ranks;
    int64_t first = from / run_length(queries), last = to / run_length(queries);
    int64_t lap = first / P, last_lap = last / P;
    int64_t left = dealt(queries, lap, first % P), right = dealt(queries, last_lap, last % P);
    if (lap == last_lap) {
        note(schedule, P, origin, left, right);
    } else if (last_lap > lap + 1) {
        note(schedule, P, origin, 0, P - 1);
    } else {
        note(schedule, P, origin, left, dealt(queries, lap, P - 1));
        note(schedule, P, origin, dealt(queries, last_lap, 0), right);
    }
}

/* Notes all ranks that see keys of `origin`. */
static void note_origin(struct ra_schedule *schedule, struct ra_layout queries,
                        struct ra_layout keys, int64_t lookback, int origin)
{
    /* Query rows j - ahead .. j - ahead + lookback see the key at position j. */
    int64_t N = queries.length, M = keys.length, ahead = M - N, run = run_length(keys);
    int64_t round = keys.ranks * run, lap = 0;

    /* Of stripes two laps are enough. The first is the last one that begins at query row 0 or
     * before: every rank that sees an earlier lap sees this one, too. Each lap after the second is
     * seen by the same ranks as the second or, where the queries end, by fewer. */
    if (keys.kind == RA_STRIPED && ahead > origin * run)
        lap = (ahead - origin * run) / round;
    for (int64_t end = lap + 2; lap < end; lap++) {
        int64_t first = lap * round + dealt(keys, lap, origin) * run;
        int64_t from = first - ahead, to = N - 1;
        if (first >= M)
            break;
        if (lookback < RA_BAND_FAR)
            to = ra_min(to, ra_min(first + run, M) - 1 - ahead + lookback);
        if (from < 0)
            from = 0;
        if (from <= to)
            note_rows(schedule, queries, origin, from, to);
    }
}

struct ra_schedule ra_schedule_causal(struct ra_layout queries, struct ra_layout keys,
                                      int64_t lookback, int *storage)
{
    int P = queries.ranks, needed = 0;
    struct ra_schedule schedule = {0, storage, storage + P};
    for (int rank = 0; rank < P; rank++)
        schedule.hop[rank] = schedule.last[rank] = 0;

    /* Home is always taken: it costs no message. */
    for (int rank = 0; rank < P; rank++)
        note(&schedule, P, rank, rank, rank);
    for (int origin = 0; origin < P && queries.length > 0 && keys.length > 0; origin++)
        note_origin(&schedule, queries, keys, lookback, origin);

    /* The hops that somebody needs move up. */
    for (int hop = 0; hop < P; hop++) {
        needed += schedule.hop[hop];
        if (needed > 0)
            schedule.hop[schedule.count++] = hop;
    }
    return schedule;
}
