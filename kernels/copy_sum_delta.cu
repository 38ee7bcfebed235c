/* copy_sum_delta: what is done to arrays row by row: delta, copies, sums; and what becomes one
 * number of a head. As fast as memory is.
 *
 * Chapter 11. Numbers are taken 8 at a time, in chunks of 16 bytes, where the arrays allow it, and
 * one at a time where they do not.
 */
#include "ra_device.h"
#include "row_chunks.h"

/* LANES threads share a row of delta: 8 numbers of 2 bytes each are 128 bytes, read at once. */
enum { THREADS = 256, LANES = 8 };

/* Can both be read by chunks of 8 numbers? */
static bool in_chunks(struct ra_tensor x, struct ra_tensor y, int64_t dim)
{
    return dim % CHUNK == 0 && ra_in_chunks(x, dim) && ra_in_chunks(y, dim);
}

template <int Count>
static __global__ void __launch_bounds__(THREADS)
    delta_rows(const __grid_constant__ struct ra_kernel kernel)
{
    /* Row number i of (batch, rows, heads). */
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    int64_t head = i % kernel.heads, a = i / kernel.heads % kernel.queries;
    int64_t b = i / kernel.heads / kernel.queries;

    /* A row that is not there is summed up as 0: the lanes of a warp stay together. */
    float sum = 0;
    if (b < kernel.batch) {
        int64_t o = ra_offset(kernel.o, b, a, head), d_out = ra_offset(kernel.d_out, b, a, head);
        for (int c = threadIdx.x % LANES * Count; c < kernel.dim_value; c += LANES * Count) {
            __align__(16) float x[Count], y[Count];
            load<Count>(x, kernel.o, o + c);
            load<Count>(y, kernel.d_out, d_out + c);
#pragma unroll
            for (int e = 0; e < Count; e++)
                sum += x[e] * y[e];
        }
    }
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (b < kernel.batch && threadIdx.x % LANES == 0) {
        /* A gradient of lse counts in rows that have one. */
        if (kernel.d_lse.data && *ra_floats(kernel.lse, b, a, head) != -CUDART_INF_F)
            sum -= *ra_floats(kernel.d_lse, b, a, head);
        *ra_floats(kernel.delta, b, a, head) = sum;
    }
}

extern "C" cudaError_t ra_kernel_delta(const struct ra_kernel *kernel, cudaStream_t stream)
{
    int64_t rows = kernel->batch * kernel->queries * kernel->heads;
    if (rows == 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)((rows * LANES + THREADS - 1) / THREADS);
    if (in_chunks(kernel->o, kernel->d_out, kernel->dim_value))
        delta_rows<CHUNK><<<blocks, THREADS, 0, stream>>>(*kernel);
    else
        delta_rows<1><<<blocks, THREADS, 0, stream>>>(*kernel);
    return cudaGetLastError();
}

/* ---- One number of each head. */

/* What the largest scores begin with, and what they are in the end. */
static __global__ void largest_of_heads(const __grid_constant__ struct ra_kernel kernel, bool end)
{
    int h = blockIdx.x;
    int *at = (int *)kernel.largest.data + h * kernel.largest.head;
    *at = end ? ra_ordered(*at) : ra_ordered(__float_as_int(-CUDART_INF_F));
}

extern "C" cudaError_t ra_kernel_begin_largest(const struct ra_kernel *kernel, cudaStream_t stream)
{
    largest_of_heads<<<(unsigned)kernel->heads, 1, 0, stream>>>(*kernel, false);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_kernel_end_largest(const struct ra_kernel *kernel, cudaStream_t stream)
{
    largest_of_heads<<<(unsigned)kernel->heads, 1, 0, stream>>>(*kernel, true);
    return cudaGetLastError();
}

/* A block for each head. A thread has every THREADS-th row; their sums are added up in pairs. */
static __global__ void __launch_bounds__(THREADS)
    sink_gradient(const __grid_constant__ struct ra_kernel kernel, struct ra_tensor d_sink)
{
    __shared__ double sums[THREADS];
    int h = blockIdx.x, thread = threadIdx.x;
    double sink = ra_of_head(kernel.sink, h), sum = 0;
    for (int64_t i = thread; i < kernel.batch * kernel.queries; i += THREADS) {
        int64_t b = i / kernel.queries, a = i % kernel.queries;
        double lse = *ra_floats(kernel.lse, b, a, h), delta = *ra_floats(kernel.delta, b, a, h);
        sum -= exp(sink - lse) * delta;
    }

    /* A sink of -inf is none. */
    sums[thread] = sink == -(double)CUDART_INF_F ? 0 : sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half)
            sums[thread] += sums[thread + half];
    }
    if (thread == 0)
        ((float *)d_sink.data)[h * d_sink.head] = (float)sums[0];
}

extern "C" cudaError_t ra_kernel_sink_gradient(const struct ra_kernel *kernel,
                                               struct ra_tensor d_sink, cudaStream_t stream)
{
    sink_gradient<<<(unsigned)kernel->heads, THREADS, 0, stream>>>(*kernel, d_sink);
    return cudaGetLastError();
}

/* ---- Moves. */

/* A move of numbers: to = from, or to = from + plus. */
struct move {
    struct ra_tensor to, from, plus; /* plus may have no data */
    int64_t batch, rows;
    int chunks, heads; /* in a head, in a row */
};

/* Thread (x, y) of a block has row y of it, and of this row chunks x, x + blockDim.x, ... */
template <int Count>
static __global__ void __launch_bounds__(THREADS)
    move_rows(const __grid_constant__ struct move move)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t b = i / move.rows, row = i % move.rows;
    if (b >= move.batch)
        return;
    for (int c = threadIdx.x; c < move.heads * move.chunks; c += blockDim.x) {
        int head = c / move.chunks, first = c % move.chunks * Count;
        __align__(16) float x[Count], y[Count];
        load<Count>(x, move.from, ra_offset(move.from, b, row, head) + first);
        if (move.plus.data) {
            load<Count>(y, move.plus, ra_offset(move.plus, b, row, head) + first);
#pragma unroll
            for (int e = 0; e < Count; e++)
                x[e] += y[e];
        }
        store<Count>(move.to, ra_offset(move.to, b, row, head) + first, x);
    }
}

static cudaError_t launch(struct move move, int64_t dim, cudaStream_t stream)
{
    if (move.batch == 0 || move.rows == 0)
        return cudaSuccess;
    bool in_eights = in_chunks(move.to, move.from, dim) &&
                     (!move.plus.data || in_chunks(move.to, move.plus, dim));
    move.chunks = (int)(in_eights ? dim / CHUNK : dim);

    /* As many threads to a row as it has chunks, more or less, and as many rows as that leaves. */
    dim3 threads(1, THREADS);
    for (; threads.x < THREADS && threads.x < (unsigned)(move.heads * move.chunks); threads.x *= 2)
        threads.y /= 2;
    unsigned blocks = (unsigned)((move.batch * move.rows + threads.y - 1) / threads.y);
    if (in_eights)
        move_rows<CHUNK><<<blocks, threads, 0, stream>>>(move);
    else
        move_rows<1><<<blocks, threads, 0, stream>>>(move);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_kernel_sum(struct ra_tensor to, struct ra_tensor x, struct ra_tensor y,
                                     int64_t batch, int64_t rows, int64_t heads, int64_t dim,
                                     cudaStream_t stream)
{
    struct move move = {to, x, y, batch, rows, 0, (int)heads};
    return launch(move, dim, stream);
}

extern "C" cudaError_t ra_kernel_copy(struct ra_tensor to, struct ra_tensor from, int64_t batch,
                                      int64_t rows, int64_t heads, int64_t dim, cudaStream_t stream)
{
    const struct ra_tensor none = RA_NO_TENSOR;
    return ra_kernel_sum(to, from, none, batch, rows, heads, dim, stream);
}
