/* ra_random: random bits that are computed from their number, not from the bits before.
 *
 * Chapter 10. So every rank can have any of them, and a run that is resumed goes on with the next.
 */
#ifndef RA_RANDOM_H
#define RA_RANDOM_H

#include <stdint.h>

/* Mixes the bits of x: equal inputs give equal outputs, and a change of one bit changes half of
 * them. Numbers that are RA_RANDOM_STEP apart give a sequence (Steele, Lea and Flood, Fast
 * splittable pseudorandom number generators, 2014: SplitMix64). */
#define RA_RANDOM_STEP UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t ra_random_mix(uint64_t x)
{
    x += RA_RANDOM_STEP;
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

#endif
