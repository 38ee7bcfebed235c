/* ra_meter: what ranks measure with on the host. See ra_meter.h.
 *
 * Chapter 12.
 */
#include "ra_meter.h"
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"

/* Takes memory of a rank, with a copy of these bytes, if there are any (NULL: none). */
static void *take(const void *from, int64_t bytes)
{
    void *memory = malloc((size_t)bytes);
    if (memory && from)
        memcpy(memory, from, (size_t)bytes);
    else if (memory)
        memset(memory, 1, (size_t)bytes); /* pages that nobody has touched are not there yet */
    return memory;
}

static void copy(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

static void start(struct ra_stopwatch *watch)
{
    watch->seconds = ra_seconds();
}

static void stop(struct ra_stopwatch *watch)
{
    watch->seconds = ra_seconds() - watch->seconds;
}

static double seconds(struct ra_stopwatch *watch)
{
    return watch->seconds;
}

/* So few rows that a plan does not take seconds to make. */
const struct ra_meter ra_host_meter = {.take = take,
                                       .give_back = free,
                                       .copy = copy,
                                       .start = start,
                                       .stop = stop,
                                       .seconds = seconds,
                                       .rows = 512,
                                       .heads = 4,
                                       .least = 1 << 16,
                                       .most = 1 << 24};
