/* ra_processors: how many processors this process may use, and who shares them. Internal.
 *
 * Chapter 09.
 */
#ifndef RA_PROCESSORS_H
#define RA_PROCESSORS_H

#include <stdint.h>

/* The processors that this process may run on, or as many as its control group gives it the time of,
 * if that is fewer. At least 1. */
int ra_processors(void);

/* How many threads a process should have which shares its processors with `sharing` processes, itself
 * included: OMP_NUM_THREADS, or else its share. At least 1. */
int ra_processors_share(int sharing);

/* Processes of one machine that may run on the same processors have the same number. */
int64_t ra_processors_key(void);

#endif
