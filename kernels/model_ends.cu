/* model_ends: where a model begins, with rows of a table, and ends, with a loss. See
 * ra_model_kernels.h.
 *
 * Chapter 14.
 */
#include "model_device.h"

/* ---- Embedding. */

/* Thread (x, y) of a block has ROWS rows from ROWS (blockDim.y blockIdx.x + y) on, and of each the
 * chunks x, x + blockDim.x, ... It asks for all tokens first, then for all their rows. */
enum { ROWS = 4 };

template <typename T, int Count>
static __global__ void __launch_bounds__(THREADS)
    embed(int64_t rows, int64_t n, int dim, const int32_t *tokens, const T *table,
          const int32_t *places, const T *positions, float scale, float *out)
{
    int64_t first = ((int64_t)blockIdx.x * blockDim.y + threadIdx.y) * ROWS;
    const T *from[ROWS], *place[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = first + r < rows ? first + r : rows - 1;
        from[r] = table + tokens[row] * (int64_t)dim;
        place[r] = positions ? positions + places[row % n] * (int64_t)dim : NULL;
    }
    for (int c = (int)threadIdx.x * Count; c < dim; c += (int)blockDim.x * Count) {
        float x[ROWS][Count];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            load(x[r], from[r] + c);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (positions) {
                float at[Count];
                load(at, place[r] + c);
#pragma unroll
                for (int e = 0; e < Count; e++)
                    x[r][e] += scale * at[e];
            }
            if (first + r < rows)
                store(out + (first + r) * dim + c, x[r]);
        }
    }
}

template <typename T, int Count>
static cudaError_t launch_embed(int64_t rows, int64_t n, int64_t dim, const int32_t *tokens,
                                const T *table, const int32_t *places, const T *positions,
                                float scale, float *out, cudaStream_t stream)
{
    /* As many threads to a row as it has chunks, more or less, and as many rows as that leaves. */
    dim3 threads(1, THREADS);
    for (; threads.x < THREADS && threads.x < (unsigned)(dim / Count); threads.x *= 2)
        threads.y /= 2;
    embed<T, Count><<<blocks_of(rows, ROWS * threads.y), threads, 0, stream>>>(
        rows, n, (int)dim, tokens, table, places, positions, scale, out);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_kernel_embed(int64_t rows, int64_t n, int64_t dim, enum ra_type type,
                                       const int32_t *tokens, const void *table,
                                       const int32_t *places, const void *positions, double scale,
                                       float *out, cudaStream_t stream)
{
    if (rows == 0)
        return cudaSuccess;
    auto run = [&](auto *none) {
        typedef std::remove_pointer_t<decltype(none)> T;
        auto launch = dim % 4 == 0 ? launch_embed<T, 4> : launch_embed<T, 1>;
        return launch(rows, n, dim, tokens, (const T *)table, places, (const T *)positions,
                      (float)scale, out, stream);
    };
    return WITH_TYPE(type, run);
}

/* A token may come often: so a block has a row of the table, and adds up what belongs to it in one
 * order. */
template <int Count>
static __global__ void __launch_bounds__(128)
    scatter(const __grid_constant__ struct ra_groups groups, int64_t dim, float scale,
            const float *d, float *d_table)
{
    int64_t c = ((int64_t)blockIdx.y * 128 + threadIdx.x) * Count;
    if (c >= dim)
        return;
    int32_t end = groups.first[blockIdx.x + 1];
    float sum[Count] = {}, old[Count];
#pragma unroll 4
    for (int32_t i = groups.first[blockIdx.x]; i < end; i++) {
        float x[Count];
        load(x, d + groups.order[i] * dim + c);
#pragma unroll
        for (int e = 0; e < Count; e++)
            sum[e] += x[e];
    }
    float *to = d_table + groups.key[blockIdx.x] * dim + c;
    load(old, to);
#pragma unroll
    for (int e = 0; e < Count; e++)
        old[e] += scale * sum[e];
    store(to, old);
}

extern "C" cudaError_t ra_kernel_scatter(const struct ra_groups *groups, int64_t dim, double scale,
                                         const float *d, float *d_table, cudaStream_t stream)
{
    if (groups->count == 0)
        return cudaSuccess;
    unsigned count = (unsigned)groups->count;
    if (dim % 4 == 0)
        scatter<4><<<dim3(count, blocks_of(dim, 128 * 4)), 128, 0, stream>>>(
            *groups, dim, (float)scale, d, d_table);
    else
        scatter<1><<<dim3(count, blocks_of(dim, 128)), 128, 0, stream>>>(*groups, dim, (float)scale,
                                                                         d, d_table);
    return cudaGetLastError();
}

/* ---- Loss. */

/* The largest number so far, and the sum of e^(number - largest). */
struct softmax {
    float max, sum;
};

RA_DEVICE struct softmax merge(struct softmax x, struct softmax y)
{
    float max = x.max > y.max ? x.max : y.max;
    if (max == -CUDART_INF_F)
        return {max, x.sum + y.sum};
    return {max, x.sum * expf(x.max - max) + y.sum * expf(y.max - max)};
}

RA_DEVICE struct softmax merge_block(struct softmax x)
{
    __shared__ struct softmax warps[32];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = merge(x, {__shfl_xor_sync(0xffffffff, x.max, lanes),
                      __shfl_xor_sync(0xffffffff, x.sum, lanes)});
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++)
        x = merge(x, warps[w]);
    return x;
}

enum { LOSS_THREADS = 512 };

/* A row goes through registers in batches, of so many chunks a thread. */
enum { BATCH = 8 };

/* A thread's numbers of a batch: beyond the row, -infinity. */
template <int Count>
RA_DEVICE void load_batch(int vocabulary, const float *row, int first, float (&x)[BATCH][Count])
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int c = first + (i * LOSS_THREADS + (int)threadIdx.x) * Count;
        if (c < vocabulary)
            load(x[i], row + c);
        else
            for (int e = 0; e < Count; e++)
                x[i][e] = -CUDART_INF_F;
    }
}

/* The softmax of a block's row, from its last batch to its first. Of the first, e^(number - base)
 * stays in registers. A NaN makes the sum NaN, and so all of the row's gradients and its loss. */
template <int Count>
RA_DEVICE struct softmax softmax_of_row(int vocabulary, const float *row, float (&x)[BATCH][Count],
                                        float *base)
{
    const int batch = BATCH * LOSS_THREADS * Count;
    struct softmax mine = {-CUDART_INF_F, 0};
    for (int first = (vocabulary - 1) / batch * batch; first >= 0; first -= batch) {
        load_batch(vocabulary, row, first, x);
        float max = mine.max;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            for (int e = 0; e < Count; e++)
                max = fmaxf(max, x[i][e]);
        *base = max > -CUDART_INF_F ? max : 0; /* else nothing was there */
        mine = {max, mine.sum * __expf(mine.max - *base)};
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            for (int e = 0; e < Count; e++) {
                x[i][e] = __expf(x[i][e] - *base);
                mine.sum += x[i][e];
            }
    }
    return merge_block(mine);
}

/* x, with the label's taken off, in the place of a batch's logits. */
template <typename T, int Count>
RA_DEVICE void store_batch(int vocabulary, float *row, int first, const float (&x)[BATCH][Count],
                           float scale, int32_t label, float factor)
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int c = first + (i * LOSS_THREADS + (int)threadIdx.x) * Count;
        float d[Count];
#pragma unroll
        for (int e = 0; e < Count; e++)
            d[e] = x[i][e] * scale - (c + e == label ? factor : 0);
        if (c < vocabulary)
            store((T *)row + c, d);
    }
}

/* A block has a row, and two blocks have the registers of a multiprocessor. It reads its first
 * batch once and the others twice, the second time most likely in the cache. What it writes,
 * (softmax - one) factor, may be of a shorter type, and then lands on logits further to the left:
 * those all threads have read by then. */
template <typename T, int Count>
static __global__ void __launch_bounds__(LOSS_THREADS, 2)
    loss_of_rows(int vocabulary, float *logits, const int32_t *labels, float factor, float *losses)
{
    const int batch = BATCH * LOSS_THREADS * Count;
    float *row = logits + (int64_t)blockIdx.x * vocabulary, loss = 0;
    int32_t label = labels[blockIdx.x];
    if (label < 0) {
        const float zeros[Count] = {};
        for (int c = threadIdx.x * Count; c < vocabulary; c += LOSS_THREADS * Count)
            store((T *)row + c, zeros);
    } else {
        float of_label = row[label], x[BATCH][Count], base;
        struct softmax all = softmax_of_row(vocabulary, row, x, &base);
        float share = factor / all.sum;
        store_batch<T>(vocabulary, row, 0, x, __expf(base - all.max) * share, label, factor);
        for (int first = batch; first < vocabulary; first += batch) {
            load_batch(vocabulary, row, first, x);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                for (int e = 0; e < Count; e++)
                    x[i][e] = __expf(x[i][e] - all.max);
            store_batch<T>(vocabulary, row, first, x, share, label, factor);
        }
        loss = logf(all.sum) - (of_label - all.max);
    }
    if (threadIdx.x == 0)
        losses[blockIdx.x] = loss;
}

extern "C" cudaError_t ra_kernel_loss(int64_t rows, int64_t vocabulary, float *logits,
                                      const int32_t *labels, double factor, enum ra_type type,
                                      float *losses, cudaStream_t stream)
{
    if (rows == 0)
        return cudaSuccess;
    auto run = [&](auto *none) {
        typedef std::remove_pointer_t<decltype(none)> T;
        if (vocabulary % 4 == 0)
            loss_of_rows<T, 4><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(
                (int)vocabulary, logits, labels, (float)factor, losses);
        else
            loss_of_rows<T, 1><<<(unsigned)rows, LOSS_THREADS, 0, stream>>>(
                (int)vocabulary, logits, labels, (float)factor, losses);
        return cudaGetLastError();
    };
    return WITH_TYPE(type, run);
}
