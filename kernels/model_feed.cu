/* model_feed: what stands between the matrices of a feed-forward, forward and backward. See
 * ra_model_kernels.h.
 *
 * Chapter 14. The backward reads what the first matrix gave, and writes two arrays: its gradient,
 * and once more what the forward gave to the second matrix, which need not be kept.
 */
#include "model_device.h"

/* The probability P that a normal variable is below x: not the tanh that libraries put into their
 * epilogues. GELU is x P(x), and its slope P(x) + x P'(x). bell = exp(-x^2 / 2), of which P'(x) has
 * 1 / sqrt(2 pi). erff takes some 30 instructions, and then they, not memory, set the pace. So this
 * is formula 26.2.17 of Abramowitz and Stegun: the bell times a polynomial of t, off by at most
 * 8e-8. */
RA_DEVICE float below(float x, float bell)
{
    float t = __fdividef(1, 1 + 0.2316418882f * fabsf(x));
    float sum = 0.530702714f;
    sum = sum * t - 0.726576013f;
    sum = sum * t + 0.710706871f;
    sum = sum * t - 0.142248368f;
    sum = sum * t + 0.127414796f;
    float beyond = sum * t * bell;
    return x > 0 ? 1 - beyond : beyond;
}

/* s(x) = 1 / (1 + exp(-x)). */
RA_DEVICE float sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

/* bent = x P(x), number by number; a thread has one of `chunks` chunks of Count numbers. Backward,
 * d_x = d_bent times the slope, too. A thread has read all of its chunk before it writes, so d_x
 * may be d_bent. */
template <typename T, int Count, bool Backward>
static __global__ void __launch_bounds__(THREADS)
    gelu_rows(int64_t chunks, const T *x, const T *d_bent, T *bent, T *d_x)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * Count;
    if (at >= chunks * Count)
        return;
    float mine[Count], d[Count], out[Count];
    load(mine, x + at);
    if (Backward)
        load(d, d_bent + at);
#pragma unroll
    for (int e = 0; e < Count; e++) {
        float bell = __expf(-0.5f * mine[e] * mine[e]), share = below(mine[e], bell);
        out[e] = mine[e] * share;
        if (Backward)
            d[e] *= share + mine[e] * 0.3989422804014327f * bell;
    }
    store(bent + at, out);
    if (Backward)
        store(d_x + at, d);
}

/* The slope of g s(g) is s (1 + g (1 - s)). */
template <typename T, int Count>
static __global__ void __launch_bounds__(THREADS)
    swiglu_rows(int64_t rows, int64_t hidden, const T *x, const T *d_bent, T *bent, T *d_x)
{
    int64_t chunk = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunks = hidden / Count;
    int64_t row = chunk / chunks, c = chunk % chunks * Count;
    if (row >= rows)
        return;
    float gate[Count], up[Count], d[Count] = {}, out[Count], d_up[Count];
    load(gate, x + 2 * row * hidden + c);
    load(up, x + (2 * row + 1) * hidden + c);
    if (d_x)
        load(d, d_bent + row * hidden + c);
#pragma unroll
    for (int e = 0; e < Count; e++) {
        float share = sigmoid(gate[e]), silu = gate[e] * share;
        out[e] = silu * up[e];
        d_up[e] = d[e] * silu;
        d[e] = d[e] * up[e] * (share + silu * (1 - share));
    }
    store(bent + row * hidden + c, out);
    if (d_x) {
        store(d_x + 2 * row * hidden + c, d);
        store(d_x + (2 * row + 1) * hidden + c, d_up);
    }
}

template <typename T, int Count>
static cudaError_t launch(enum ra_feed_kind kind, int64_t rows, int64_t hidden, const T *x,
                          const T *d_bent, T *bent, T *d_x, cudaStream_t stream)
{
    int64_t chunks = rows * hidden / Count;
    if (chunks == 0)
        return cudaSuccess;
    unsigned blocks = blocks_of(chunks, THREADS);
    if (kind == RA_FEED_GELU && d_x)
        gelu_rows<T, Count, true><<<blocks, THREADS, 0, stream>>>(chunks, x, d_bent, bent, d_x);
    else if (kind == RA_FEED_GELU)
        gelu_rows<T, Count, false><<<blocks, THREADS, 0, stream>>>(chunks, x, d_bent, bent, d_x);
    else
        swiglu_rows<T, Count><<<blocks, THREADS, 0, stream>>>(rows, hidden, x, d_bent, bent, d_x);
    return cudaGetLastError();
}

static cudaError_t bend(enum ra_feed_kind kind, int64_t rows, int64_t hidden, enum ra_type type,
                        const void *x, const void *d_bent, void *bent, void *d_x,
                        cudaStream_t stream)
{
    auto run = [&](auto *none) {
        typedef std::remove_pointer_t<decltype(none)> T;
        const T *from = (const T *)x, *d = (const T *)d_bent;
        const int eight = sizeof(T) == 2 ? 8 : 4;
        return hidden % eight == 0
                   ? launch<T, eight>(kind, rows, hidden, from, d, (T *)bent, (T *)d_x, stream)
                   : launch<T, 1>(kind, rows, hidden, from, d, (T *)bent, (T *)d_x, stream);
    };
    return WITH_TYPE(type, run);
}

extern "C" cudaError_t ra_kernel_bend_forward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                              enum ra_type type, const void *x, void *bent,
                                              cudaStream_t stream)
{
    return bend(kind, rows, hidden, type, x, NULL, bent, NULL, stream);
}

extern "C" cudaError_t ra_kernel_bend_backward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                               enum ra_type type, const void *x, const void *d_bent,
                                               void *bent, void *d_x, cudaStream_t stream)
{
    return bend(kind, rows, hidden, type, x, d_bent, bent, d_x, stream);
}
