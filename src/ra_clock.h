/* ra_clock: the one clock of all programs and of the library. */
#ifndef RA_CLOCK_H
#define RA_CLOCK_H

#include <time.h>

/* Seconds on a clock that only goes forward. */
static inline double ra_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
