/* model_sums: sums over rows, of losses and of squares, each in one order. See ra_model_kernels.h.
 *
 * Chapter 14. Threads that add to one number in any order would give other bits each time: so each
 * block writes what it has as a partial sum, and a second launch adds those up.
 */
#include "model_device.h"

/* Strip number blockIdx.y of the rows, for columns Count (32 blockIdx.x + lane)... A block has 32
 * columns, or chunks of columns, and each of its warps a share of the rows. Twice: blocks with a
 * blockIdx.z of 1 have the rows from PARTIALS on, and their sums are `more`. */
template <typename T, int Count, int Warps, bool Twice>
static __global__ void __launch_bounds__(32 * Warps)
    add_columns(int64_t rows, int64_t width, const T *d, int64_t stride, int64_t strip, bool add,
                float *sums, float *more)
{
    __shared__ float parts[Warps][32 * Count + 1];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = ((int64_t)blockIdx.x * 32 + lane) * Count, first = blockIdx.y * strip;
    int64_t end = first + strip < rows ? first + strip : rows;
    float sum[Count] = {};
    if (Twice && blockIdx.z == 1) {
        d += PARTIALS * stride;
        sums = more;
    }
    if (c < width)
#pragma unroll 4
        for (int64_t a = first + warp; a < end; a += Warps) {
            float x[Count];
            load(x, d + a * stride + c);
#pragma unroll
            for (int e = 0; e < Count; e++)
                sum[e] += x[e];
        }
#pragma unroll
    for (int e = 0; e < Count; e++)
        parts[warp][lane * Count + e] = sum[e];
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * Count; i += 32 * Warps) {
        int64_t column = (int64_t)blockIdx.x * 32 * Count + i;
        float all = 0;
        for (int w = 0; w < Warps; w++)
            all += parts[w][i];
        if (column < width && add)
            sums[column] += all;
        else if (column < width)
            sums[blockIdx.y * width + column] = all;
    }
}

cudaError_t add_partials(int64_t count, int64_t width, const float *partial, float *sums,
                         float *more, cudaStream_t stream)
{
    /* Few blocks, each with many warps: it is over when one warp has waited for all its rows. */
    dim3 blocks(blocks_of(width, 32), 1, more ? 2 : 1);
    add_columns<float, 1, 32, true>
        <<<blocks, 1024, 0, stream>>>(count, width, partial, width, count, true, sums, more);
    return cudaGetLastError();
}

extern "C" int64_t ra_kernel_sum_scratch(int64_t width)
{
    return 2 * PARTIALS * width;
}

template <typename T, int Count>
static cudaError_t add_strips(int64_t rows, int64_t width, const T *d, int64_t stride, float *sums,
                              float *scratch, cudaStream_t stream)
{
    int64_t strip = (rows + 63) / 64, strips = blocks_of(rows, strip);
    dim3 blocks(blocks_of(width, 32 * Count), (unsigned)strips);
    add_columns<T, Count, THREADS / 32, false>
        <<<blocks, THREADS, 0, stream>>>(rows, width, d, stride, strip, false, scratch, NULL);
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? add_partials(strips, width, scratch, sums, NULL, stream) : code;
}

extern "C" cudaError_t ra_kernel_add_rows(int64_t rows, int64_t width, enum ra_type type,
                                          const void *d, int64_t stride, float *sums,
                                          float *scratch, cudaStream_t stream)
{
    if (rows == 0)
        return cudaSuccess;
    bool in_fours = width % 4 == 0 && stride % 4 == 0;
    auto run = [&](auto *none) {
        typedef decltype(none) P;
        return in_fours ? add_strips<std::remove_pointer_t<P>, 4>(rows, width, (P)d, stride, sums,
                                                                  scratch, stream)
                        : add_strips<std::remove_pointer_t<P>, 1>(rows, width, (P)d, stride, sums,
                                                                  scratch, stream);
    };
    return WITH_TYPE(type, run);
}

/* ---- Sums of doubles. */

static __global__ void __launch_bounds__(1024)
    add_up(int64_t count, const float *x, double factor, double *sum)
{
    double mine = 0;
    for (int64_t i = threadIdx.x; i < count; i += 1024)
        mine += x[i];
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        *sum += factor * mine;
}

extern "C" cudaError_t ra_kernel_add_up(int64_t count, const float *x, double factor, double *sum,
                                        cudaStream_t stream)
{
    add_up<<<1, 1024, 0, stream>>>(count, x, factor, sum);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS)
    add_squares(int64_t count, const float *x, double *sums)
{
    double mine = 0;
    int64_t stride = (int64_t)gridDim.x * THREADS;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
#pragma unroll 4
    for (int64_t chunk = i; chunk < count / 4; chunk += stride) {
        float4 four = ((const float4 *)x)[chunk];
        mine += (double)four.x * four.x + (double)four.y * four.y;
        mine += (double)four.z * four.z + (double)four.w * four.w;
    }
    if (i < count % 4)
        mine += (double)x[count - 1 - i] * x[count - 1 - i];
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = mine;
}

static __global__ void __launch_bounds__(THREADS) root_of_sum(const double *sums, double *length)
{
    double mine = 0;
    for (int i = threadIdx.x; i < RA_SQUARES_SCRATCH; i += THREADS)
        mine += sums[i];
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        *length = sqrt(mine);
}

extern "C" cudaError_t ra_kernel_length(int64_t count, const float *x, double *length,
                                        double *scratch, cudaStream_t stream)
{
    add_squares<<<RA_SQUARES_SCRATCH, THREADS, 0, stream>>>(count, x, scratch);
    root_of_sum<<<1, THREADS, 0, stream>>>(scratch, length);
    return cudaGetLastError();
}
