/* oracle: see oracle.h. Plain float64: no tiles, no running maximum, no tensor cores. A warp takes
 * a key or a query at a time, its lanes take dim / 32 numbers each, and the warps of a block share
 * out the sequence. */
#include "oracle.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

/* Threads and warps of a block, and numbers of a row that a lane has: c = lane, lane + 32, ... */
enum { THREADS = 512, WARPS = THREADS / 32, SHARE = ORACLE_MOST_DIM / 32 };

/* ---- Numbers. */

static __global__ void fill(struct ra_tensor to, int64_t from, struct ra_span span, int64_t heads,
                            int64_t dim, enum oracle_stream stream)
{
    int64_t width = heads * dim, all = span.count * width;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < all; e += step) {
        int64_t a = e / width, h = e % width / dim, c = e % dim;
        float x = oracle_number(stream, (span.first + a * span.stride) * width + e % width);
        int64_t place = (from + a) * to.row + h * to.head + c;
        if (to.type == RA_BFLOAT16)
            ((__nv_bfloat16 *)to.data)[place] = __float2bfloat16_rn(x);
        else if (to.type == RA_FLOAT16)
            ((__half *)to.data)[place] = __float2half_rn(x);
        else
            ((float *)to.data)[place] = x;
    }
}

cudaError_t oracle_fill(struct ra_tensor to, int64_t from, struct ra_span span, int64_t heads,
                        int64_t dim, enum oracle_stream stream, cudaStream_t cuda)
{
    if (span.count == 0)
        return cudaSuccess;
    fill<<<4096, 256, 0, cuda>>>(to, from, span, heads, dim, stream);
    return cudaGetLastError();
}

/* ---- What the lanes of a warp do together. */

/* A lane's numbers of row `row` of head h; 0 beyond dim. */
static __device__ void load(double x[SHARE], const void *array, const struct oracle &oracle,
                            int64_t row, int64_t h)
{
    const __nv_bfloat16 *numbers = (const __nv_bfloat16 *)array;
    for (int i = 0; i < SHARE; i++) {
        int64_t c = threadIdx.x % 32 + 32 * i;
        int64_t place = (row * oracle.heads + h) * oracle.dim + c;
        x[i] = c < oracle.dim ? (double)__bfloat162float(numbers[place]) : 0;
    }
}

/* The sum of a number of every lane, in all of them. */
static __device__ double warp_sum(double x)
{
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

static __device__ double product(const double a[SHARE], const double b[SHARE])
{
    double sum = 0;
    for (int i = 0; i < SHARE; i++)
        sum += a[i] * b[i];
    return warp_sum(sum);
}

/* Adds up x over the warps of the block, lane by lane; all get the sums. `shared` has a number per
 * thread. All threads call it together. */
static __device__ void block_sum(double x[SHARE], double *shared)
{
    for (int i = 0; i < SHARE; i++) {
        shared[threadIdx.x] = x[i];
        __syncthreads();
        x[i] = 0;
        for (int warp = 0; warp < WARPS; warp++)
            x[i] += shared[32 * warp + threadIdx.x % 32];
        /* The next i writes where slower warps may still read. */
        __syncthreads();
    }
}

/* Writes a row of an answer. All warps have it; the first one writes. */
static __device__ void store(double *answer, const double x[SHARE], int64_t dim)
{
    for (int i = 0; i < SHARE; i++) {
        int64_t c = threadIdx.x % 32 + 32 * i;
        if (threadIdx.x < 32 && c < dim)
            answer[(int64_t)blockIdx.x * dim + c] = x[i];
    }
}

/* ---- A query row: one block for each row and head. */

static __global__ void __launch_bounds__(THREADS, 1)
    answer_rows(struct oracle oracle, const int64_t *rows, struct oracle_rows answer)
{
    __shared__ double shared[THREADS];
    int64_t row = rows[blockIdx.x / oracle.heads], h = blockIdx.x % oracle.heads;
    int warp = threadIdx.x / 32;
    double q[SHARE], k[SHARE], v[SHARE], d_out[SHARE];
    load(q, oracle.q, oracle, row, h);
    load(d_out, oracle.d_out, oracle, row, h);

    /* The weights, not yet divided by their sum. No score needs a maximum taken out: numbers are
     * within 6 of 0, so scores within 36 sqrt(128) = 407, and e^407 is well within a double. */
    double o[SHARE] = {0}, squares[SHARE] = {0}, sum[SHARE] = {0};
    for (int64_t j = warp; j <= row; j += WARPS) {
        load(k, oracle.k, oracle, j, h);
        load(v, oracle.v, oracle, j, h);
        double weight = exp(oracle.scale * product(q, k));
        sum[0] += weight;
        for (int i = 0; i < SHARE; i++) {
            o[i] += weight * v[i];
            squares[i] += weight * weight * v[i] * v[i];
        }
    }
    block_sum(sum, shared);
    block_sum(o, shared);
    block_sum(squares, shared);

    /* o, lse, delta. */
    double o_unit[SHARE], delta_square = 0;
    for (int i = 0; i < SHARE; i++) {
        o[i] /= sum[0];
        o_unit[i] = sqrt(o[i] * o[i] + squares[i] / (sum[0] * sum[0]));
        delta_square += d_out[i] * d_out[i] * o_unit[i] * o_unit[i];
    }
    double delta = product(d_out, o);
    delta_square = warp_sum(delta_square);
    store(answer.o, o, oracle.dim);
    store(answer.o_unit, o_unit, oracle.dim);
    if (threadIdx.x == 0) {
        answer.lse[blockIdx.x] = log(sum[0]);
        answer.delta[blockIdx.x] = delta;
        answer.delta_unit[blockIdx.x] = sqrt(delta_square);
    }

    /* dq = scale * sum of ds k, with ds = p (dp - delta). */
    double dq[SHARE] = {0}, mean[SHARE] = {0};
    for (int i = 0; i < SHARE; i++)
        squares[i] = 0;
    for (int64_t j = warp; j <= row; j += WARPS) {
        load(k, oracle.k, oracle, j, h);
        load(v, oracle.v, oracle, j, h);
        double p = exp(oracle.scale * product(q, k)) / sum[0];
        double ds = p * (product(d_out, v) - delta);
        for (int i = 0; i < SHARE; i++) {
            dq[i] += ds * k[i];
            squares[i] += ds * ds * k[i] * k[i];
            mean[i] += p * k[i];
        }
    }
    block_sum(dq, shared);
    block_sum(squares, shared);
    block_sum(mean, shared);
    double dq_unit[SHARE];
    for (int i = 0; i < SHARE; i++) {
        dq[i] *= oracle.scale;
        double inside = squares[i] + delta_square * mean[i] * mean[i];
        dq_unit[i] = sqrt(dq[i] * dq[i] + oracle.scale * oracle.scale * inside);
    }
    store(answer.dq, dq, oracle.dim);
    store(answer.dq_unit, dq_unit, oracle.dim);
}

cudaError_t oracle_rows(const struct oracle *oracle, const int64_t *rows, int64_t count,
                        const struct oracle_rows *answer, cudaStream_t cuda)
{
    if (oracle->dim > ORACLE_MOST_DIM)
        return cudaErrorNotSupported;
    if (count == 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)(count * oracle->heads);
    answer_rows<<<blocks, THREADS, 0, cuda>>>(*oracle, rows, *answer);
    return cudaGetLastError();
}

/* ---- A key row: the same, over the queries that see it. */

static __global__ void __launch_bounds__(THREADS, 1)
    answer_keys(struct oracle oracle, const int64_t *rows, const double *lse, const double *delta,
                const double *delta_unit, struct oracle_keys answer)
{
    __shared__ double shared[THREADS];
    int64_t row = rows[blockIdx.x / oracle.heads], h = blockIdx.x % oracle.heads;
    int warp = threadIdx.x / 32;
    double q[SHARE], k[SHARE], v[SHARE], d_out[SHARE];
    load(k, oracle.k, oracle, row, h);
    load(v, oracle.v, oracle, row, h);

    double dk[SHARE] = {0}, dk_squares[SHARE] = {0}, dv[SHARE] = {0}, dv_squares[SHARE] = {0};
    for (int64_t i = row + warp; i < oracle.tokens; i += WARPS) {
        load(q, oracle.q, oracle, i, h);
        load(d_out, oracle.d_out, oracle, i, h);
        int64_t place = i * oracle.heads + h;
        double p = exp(oracle.scale * product(q, k) - lse[place]);
        double ds = p * (product(d_out, v) - delta[place]);
        double noise = p * delta_unit[place];
        for (int j = 0; j < SHARE; j++) {
            dv[j] += p * d_out[j];
            dv_squares[j] += p * p * d_out[j] * d_out[j];
            dk[j] += ds * q[j];
            dk_squares[j] += (ds * ds + noise * noise) * q[j] * q[j];
        }
    }
    block_sum(dk, shared);
    block_sum(dk_squares, shared);
    block_sum(dv, shared);
    block_sum(dv_squares, shared);

    double dk_unit[SHARE], dv_unit[SHARE];
    for (int j = 0; j < SHARE; j++) {
        dk[j] *= oracle.scale;
        dk_unit[j] = sqrt(dk[j] * dk[j] + oracle.scale * oracle.scale * dk_squares[j]);
        dv_unit[j] = sqrt(dv[j] * dv[j] + dv_squares[j]);
    }
    store(answer.dk, dk, oracle.dim);
    store(answer.dk_unit, dk_unit, oracle.dim);
    store(answer.dv, dv, oracle.dim);
    store(answer.dv_unit, dv_unit, oracle.dim);
}

cudaError_t oracle_keys(const struct oracle *oracle, const int64_t *rows, int64_t count,
                        const double *lse, const double *delta, const double *delta_unit,
                        const struct oracle_keys *answer, cudaStream_t cuda)
{
    if (oracle->dim > ORACLE_MOST_DIM)
        return cudaErrorNotSupported;
    if (count == 0)
        return cudaSuccess;
    unsigned blocks = (unsigned)(count * oracle->heads);
    answer_keys<<<blocks, THREADS, 0, cuda>>>(*oracle, rows, lse, delta, delta_unit, *answer);
    return cudaGetLastError();
}

/* ---- delta of a shard: a warp for each row and head. */

static __global__ void answer_delta(const void *o_array, const void *d_out_array, int64_t rows,
                                    int64_t heads, int64_t dim, double *delta, double *delta_unit)
{
    struct oracle shape = {rows, heads, dim, 0, NULL, NULL, NULL, NULL};
    int64_t warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (warp >= rows * heads)
        return;
    double o[SHARE], d_out[SHARE], square = 0;
    load(o, o_array, shape, warp / heads, warp % heads);
    load(d_out, d_out_array, shape, warp / heads, warp % heads);
    for (int i = 0; i < SHARE; i++)
        square += 2 * o[i] * o[i] * d_out[i] * d_out[i];
    double sum = product(o, d_out);
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) {
        delta[warp] = sum;
        delta_unit[warp] = sqrt(square);
    }
}

cudaError_t oracle_delta(const void *o, const void *d_out, int64_t rows, int64_t heads, int64_t dim,
                         double *delta, double *delta_unit, cudaStream_t cuda)
{
    if (dim > ORACLE_MOST_DIM)
        return cudaErrorNotSupported;
    if (rows == 0)
        return cudaSuccess;
    int64_t blocks = (rows * heads + 7) / 8;
    answer_delta<<<(unsigned)blocks, 256, 0, cuda>>>(o, d_out, rows, heads, dim, delta, delta_unit);
    return cudaGetLastError();
}
