/* live_pipeline: the simulator of chapter 11d, one thread at a time: who goes next, the page says.
 */
#include "live.h"
#define main pipeline_main
#include "../../tests/rig/pipeline.c"

enum { PRODUCER = WARPS, TMA };

static int state[4 * 7 + 2 * (WARPS + 2) + 1];

/* Begins a run. */
EXPORT(pipeline_begin) void live_pipeline_begin(void)
{
    begin();
}

/* Lets one thread go on until it has to wait: a warp by its number, the producer, or TMA, which
 * does the copy that `dice` draws. Returns how many tasks it did; 0: it waits, or is done. */
EXPORT(pipeline_advance) int live_pipeline_advance(int who, int most, unsigned dice)
{
    int done = 0;
    if (who == TMA)
        return copy(dice);
    while (done < most && advance(who == PRODUCER ? &producer : &warps[who]))
        done++;
    return done;
}

static int *put_barrier(int *to, const struct barrier *barrier)
{
    *to++ = barrier->phase;
    *to++ = barrier->pending;
    return to;
}

/* The slots, keys before values: the tiles of their two boxes, phase and pending arrivals of full
 * and empty, bytes that full still expects; then of each warp, the producer and TMA how many tasks
 * they have done, and have; and whether something went wrong. */
EXPORT(pipeline_state) int *live_pipeline_state(void)
{
    int *to = state;
    for (int i = 0; i < 2 * STAGES; i++) {
        const struct stage *stage = i < STAGES ? &keys[i] : &values[i - STAGES];
        for (int box = 0; box < BOXES; box++)
            *to++ = stage->tile[box];
        to = put_barrier(to, &stage->full);
        to = put_barrier(to, &stage->empty);
        *to++ = stage->full.bytes;
    }
    for (int who = 0; who < WARPS + 2; who++) {
        const struct tasks *thread = who < WARPS ? &warps[who] : who == PRODUCER ? &producer : &tma;
        *to++ = thread->done;
        *to++ = thread->count;
    }
    *to = trouble[0] != 0;
    return state;
}
