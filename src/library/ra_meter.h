/* ra_meter: what ranks measure with before there is a plan, where it is going to compute. Internal.
 *
 * Chapter 12. A backend has one, or its ranks cannot choose a method. The host's is here.
 */
#ifndef RA_METER_H
#define RA_METER_H

#include <stdint.h>
#include "ring_attention.h"

/* A time that is being taken; what is in it is the meter's. */
struct ra_stopwatch {
    double seconds;
    void *began, *ended;
};

struct ra_meter {
    /* Gives memory for arrays, which begins as these bytes; with NULL as any. NULL: there is
     * none. */
    void *(*take)(const void *from, int64_t bytes);
    void (*give_back)(void *memory);

    /* Begins to copy from such memory to such memory. */
    void (*copy)(void *to, const void *from, int64_t bytes);

    /* Take the time of what is begun between the two, by this thread: `seconds` waits until that is
     * done. Each `start` has one `stop` and one `seconds`. INFINITY: it cannot be told. */
    void (*start)(struct ra_stopwatch *watch);
    void (*stop)(struct ra_stopwatch *watch);
    double (*seconds)(struct ra_stopwatch *watch);

    /* Rows of a tile of which everything is computed once anything is; NULL: tiles do not matter
     * there. */
    int64_t (*tile)(const struct ra_config *config, enum ra_side side);

    /* Of the plan that is timed, rows, and heads of all batches, at most; and bytes of messages. */
    int64_t rows, heads, least, most;
};

extern const struct ra_meter ra_host_meter;

#endif
