/* 11_core: a GPU of one processor core: what the toy of chapter 11, k01 and k02 want of CUDA.
 *
 * Blocks run one after the other. The threads of a block have a stack each and take turns: one runs
 * to the next barrier, or to its end, and then the next one. So a barrier that is missing gives the
 * same wrong numbers in every run. What this cannot show is two threads at the same moment.
 */
#ifndef CORE_H
#define CORE_H

#include <stdlib.h>
#include <string.h>

/* ---- The runtime. The GPU's memory is the host's, and a launch returns when all is done. */

typedef enum { cudaSuccess, cudaErrorNotSupported } cudaError_t;
typedef void *cudaStream_t;
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
#define cudaMalloc(memory, bytes) (*(memory) = (__typeof__(*(memory)))malloc(bytes), cudaSuccess)
#define cudaMemset(memory, byte, bytes) (memset(memory, byte, bytes), cudaSuccess)
#define cudaMemcpy(to, from, bytes, way) (memcpy(to, from, bytes), cudaSuccess)
#define cudaGetDeviceCount(devices) (*(devices) = 1, cudaSuccess)
#define cudaGetDevice(device) (*(device) = 0, cudaSuccess)
#define cudaDeviceGetAttribute(value, attribute, device) (*(value) = 1 << 20, cudaSuccess)
#define cudaGetErrorString(error) ((error) == cudaSuccess ? "no error" : "not supported")
#define cudaStreamSynchronize(stream) cudaSuccess
#define cudaGetLastError() cudaSuccess
#define cudaFuncSetAttribute(function, attribute, value) cudaSuccess

#ifdef __cplusplus
#include <float.h>
#include <math.h>
#include <ucontext.h>

/* ---- The language. */

#define __global__
#define __grid_constant__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y;
    dim3(unsigned x, unsigned y = 1) : x(x), y(y)
    {
    }
};
struct int2 {
    int x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

/* ---- A launch. */

enum { MOST = 256, STACK = 1 << 16 }; /* threads of a block; bytes of the stack of each */
static dim3 gridDim = 0, blockDim = 0, blockIdx = 0, threadIdx = 0;
static ucontext_t threads[MOST], home;
static char stacks[MOST][STACK];
static bool ended[MOST];
static const void *work;
inline float memory[1 << 16] __align__(16); /* shared memory */

static inline unsigned number(void)
{
    return threadIdx.y * blockDim.x + threadIdx.x;
}

template <typename Body> static void thread(void)
{
    (*(const Body *)work)();
    ended[number()] = true;
}

/* Runs so many blocks. Each iteration of the `left` loop takes every thread to its next barrier, or
 * to its end. */
template <typename Body> static void grid(unsigned blocks, dim3 block, Body body)
{
    unsigned count = block.x * block.y;
    gridDim = dim3(blocks);
    blockDim = block;
    work = &body;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        /* What a block finds in shared memory is whatever was there: here NaN. */
        memset(memory, 0xFF, sizeof memory);
        for (unsigned t = 0; t < count; t++) {
            ended[t] = false;
            getcontext(&threads[t]);
            threads[t].uc_stack.ss_sp = stacks[t];
            threads[t].uc_stack.ss_size = STACK;
            threads[t].uc_link = &home;
            makecontext(&threads[t], thread<Body>, 0);
        }
        for (unsigned left = count; left > 0;) {
            left = 0;
            for (unsigned t = 0; t < count; t++) {
                threadIdx = dim3(t % block.x, t / block.x);
                if (!ended[t])
                    swapcontext(&home, &threads[t]);
                left += !ended[t];
            }
        }
    }
}

/* Hands over to the next thread; returns when all have come here or ended. */
static inline void barrier(void)
{
    swapcontext(&threads[number()], &home);
}
#define __syncthreads() barrier()
#define __syncwarp() barrier()

/* ---- What the threads of a warp, or of a block, tell each other. */

static float shown[MOST];

/* Every thread t shows its x, and gets that of thread t ^ lanes. */
static inline float __shfl_xor_sync(unsigned, float x, int lanes)
{
    shown[threadIdx.x] = x;
    barrier();
    x = shown[threadIdx.x ^ lanes];
    barrier();
    return x;
}

/* Is x true in all of these threads, or in any of them? */
static inline bool vote(bool x, unsigned first, unsigned count, bool any)
{
    shown[threadIdx.x] = x;
    barrier();
    unsigned sum = 0;
    for (unsigned t = first; t < first + count; t++)
        sum += shown[t] != 0;
    barrier();
    return any ? sum > 0 : sum == count;
}
#define __all_sync(mask, yes) vote(yes, threadIdx.x / 32 * 32, 32, false)
#define __syncthreads_or(yes) vote(yes, 0, blockDim.x, true)

/* ---- Arithmetic. */

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define __fdividef(x, y) ((x) / (y))
#define __fadd_rn(x, y) ((x) + (y))
#define __fsub_rn(x, y) ((x) - (y))
#define __float_as_int(x) __builtin_bit_cast(int, (float)(x))
#define __ldg(address) (*(address))

static inline void atomicMax(int *at, int x)
{
    *at = x > *at ? x : *at;
}
#endif

#endif
