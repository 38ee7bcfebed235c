/* ra_math: the smaller and the larger of two numbers, and division rounded down or up, for the host
 * and for CUDA's device. */
#ifndef RA_MATH_H
#define RA_MATH_H

#include <stdint.h>

#ifdef __CUDACC__
#define RA_BOTH static __host__ __device__ __forceinline__
#else
#define RA_BOTH static inline
#endif

RA_BOTH int64_t ra_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

RA_BOTH int64_t ra_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Returns n / d rounded down, for d > 0. C's own division rounds towards 0: -1 / 4 is 0, and would
 * let a query see one key of the future. */
RA_BOTH int64_t ra_floor_division(int64_t n, int64_t d)
{
    return n / d - (n % d < 0);
}

/* Returns n / d rounded up, for d > 0. */
RA_BOTH int64_t ra_ceiling_division(int64_t n, int64_t d)
{
    return n / d + (n % d > 0);
}

/* Returns the least multiple of d that is at least n, for d > 0. */
RA_BOTH int64_t ra_round_up(int64_t n, int64_t d)
{
    return ra_ceiling_division(n, d) * d;
}

#endif
