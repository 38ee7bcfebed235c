/* ra_processors: how many processors this process may use, and who shares them. Internal.
 *
 * Chapter 09.
 */
#ifndef RA_PROCESSORS_H
#define RA_PROCESSORS_H

#include <stdint.h>

/* Counts the processors that this process may run on, or as many as its control group gives it the
 * time of, if that is fewer. At least 1. */
int ra_processors(void);

/* Returns how many threads a rank takes: `asked`, or if that is 0 what OMP_NUM_THREADS says, or
 * else its share of the processors, which `sharing` ranks share (0 counts as 1), but no more than
 * omp_set_num_threads allows. Never more than there are pieces of work, and at least 1. */
int ra_processors_threads(int asked, int sharing, int64_t pieces);

/* Returns a number that all processes of one machine have in common that may run on the same
 * processors. */
int64_t ra_processors_key(void);

#endif
