/* model_device: what the kernels of a model have in common: rows in chunks, sums of warps.
 *
 * Chapter 14.
 */
#ifndef MODEL_DEVICE_H
#define MODEL_DEVICE_H

#include <cuda_bf16.h>
#include <math_constants.h>
#include <stdint.h>

#include "ra_model_kernels.h"

#define RA_DEVICE static __device__ __forceinline__

/* The most numbers of a chunk, and the threads of a block. */
enum { CHUNK = 8, THREADS = 256 };

RA_DEVICE float number(float x)
{
    return x;
}

RA_DEVICE float number(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

RA_DEVICE void put(float *to, float x)
{
    *to = x;
}

RA_DEVICE void put(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

/* Words as large as a chunk: numbers of 2, 4, 8, 16 or 32 bytes in all. */
template <int Bytes> struct words {
    uint4 all[Bytes / 16];
};
template <> struct words<8> {
    uint2 all;
};
template <> struct words<4> {
    uint32_t all;
};
template <> struct words<2> {
    uint16_t all;
};

/* Count numbers side by side, at a multiple of their size or of 16 bytes. */
template <int Count, typename T> RA_DEVICE void load(float (&x)[Count], const T *from)
{
    typedef words<Count *(int)sizeof(T)> chunk;
    __align__(16) T numbers[Count];
    *(chunk *)numbers = *(const chunk *)from;
#pragma unroll
    for (int e = 0; e < Count; e++)
        x[e] = number(numbers[e]);
}

template <int Count, typename T> RA_DEVICE void store(T *to, const float (&x)[Count])
{
    typedef words<Count *(int)sizeof(T)> chunk;
    __align__(16) T numbers[Count];
#pragma unroll
    for (int e = 0; e < Count; e++)
        put(&numbers[e], x[e]);
    *(chunk *)to = *(const chunk *)numbers;
}

/* The sum over the threads of a warp, the same for all of them. */
template <typename N> RA_DEVICE N sum_of_warp(N x)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

/* The sum over all threads of a block, the same for all of them; for blocks of whole warps. */
template <typename N> RA_DEVICE N sum_of_block(N x)
{
    __shared__ N sums[32];
    int warps = blockDim.x / 32;
    x = sum_of_warp(x);
    __syncthreads(); /* sums of the call before this one are read */
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = x;
    __syncthreads();
    return sum_of_warp((int)threadIdx.x % 32 < warps ? sums[threadIdx.x % 32] : (N)0);
}

static inline unsigned blocks_of(int64_t count, int64_t each)
{
    return (unsigned)((count + each - 1) / each);
}

/* Calls `function` with a null pointer to the type's numbers, for templates. */
#define WITH_TYPE(type, function)                           \
    ((type) == RA_FLOAT32    ? function((float *)0)         \
     : (type) == RA_BFLOAT16 ? function((__nv_bfloat16 *)0) \
                             : cudaErrorNotSupported)

/* Adds to sums (width) the rows of partial (count, width), in their order; and unless it is null,
 * to `more` those from row PARTIALS on. In model_sums.cu. */
cudaError_t add_partials(int64_t count, int64_t width, const float *partial, float *sums,
                         float *more, cudaStream_t stream);

/* How many partial sums a sum over rows has: a constant, so that bits are the same on all GPUs. */
enum { PARTIALS = 396 };

#endif
