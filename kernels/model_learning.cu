/* model_learning: AdamW, and the rounding of weights. See ra_model_kernels.h.
 *
 * Chapter 14.
 */
#include "model_device.h"

static __global__ void __launch_bounds__(THREADS)
    round_numbers(int64_t count, const float *from, __nv_bfloat16 *to)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (at + 8 <= count) {
        float x[8];
        load(x, from + at);
        store(to + at, x);
        return;
    }
    for (; at < count; at++)
        put(to + at, from[at]);
}

extern "C" cudaError_t ra_kernel_round(int64_t count, const float *from, void *to,
                                       cudaStream_t stream)
{
    round_numbers<<<blocks_of(count, 8 * THREADS), THREADS, 0, stream>>>(count, from,
                                                                         (__nv_bfloat16 *)to);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS)
    add_parts(int64_t count, int ranks, int own, float *x, const float *others, int64_t stride)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (at >= count)
        return;
    float sum[4] = {}, part[4];
    for (int r = 0; r < ranks; r++) {
        load(part, r == own ? x + at : others + r * stride + at);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] = r == 0 ? part[e] : sum[e] + part[e];
    }
    store(x + at, sum);
}

extern "C" cudaError_t ra_kernel_add_parts(int64_t count, int ranks, int own, float *x,
                                           const float *others, int64_t stride, cudaStream_t stream)
{
    if (count == 0)
        return cudaSuccess;
    add_parts<<<blocks_of(count, 4 * THREADS), THREADS, 0, stream>>>(count, ranks, own, x, others,
                                                                     stride);
    return cudaGetLastError();
}

/* The array that has number `at`: the last that begins there or before. */
RA_DEVICE int array_of(const struct ra_adamw &adamw, int64_t at)
{
    int low = 0, high = adamw.arrays;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (adamw.first[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static __global__ void __launch_bounds__(THREADS)
    adamw_numbers(const __grid_constant__ struct ra_adamw a, const float *gradients, float *weights,
                  float *means, float *squares, __nv_bfloat16 *rounded)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    float length = (float)*a.length;
    if (at >= a.count || !isfinite(length))
        return;
    float cut = a.clip > 0 && length > a.clip ? a.clip / length : 1;
    float kept = a.decays[array_of(a, a.begin + at)] ? a.kept : 1;
    float g[4], w[4], m[4], s[4];
    load(g, gradients + at);
    load(w, weights + at);
    load(m, means + at);
    load(s, squares + at);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float gradient = g[e] * cut;
        m[e] = a.beta1 * m[e] + a.share1 * gradient;
        s[e] = a.beta2 * s[e] + a.share2 * gradient * gradient;
        float root = sqrtf(s[e] * a.square_factor) + a.epsilon;
        w[e] = kept * w[e] - a.rate * m[e] * a.mean_factor / root;
    }
    store(weights + at, w);
    store(means + at, m);
    store(squares + at, s);
    if (rounded)
        store(rounded + at, w);
}

extern "C" cudaError_t ra_kernel_adamw(const struct ra_adamw *adamw, const float *gradients,
                                       float *weights, float *means, float *squares, void *rounded,
                                       cudaStream_t stream)
{
    if (adamw->count == 0)
        return cudaSuccess;
    adamw_numbers<<<blocks_of(adamw->count, 4 * THREADS), THREADS, 0, stream>>>(
        *adamw, gradients, weights, means, squares, (__nv_bfloat16 *)rounded);
    return cudaGetLastError();
}
