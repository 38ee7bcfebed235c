/* ra_math: the smaller and the larger of two numbers, for the host and for CUDA's device. */
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

#endif
