/* model_decode: attention of one query over very many keys. See ra_model_kernels.h.
 *
 * Chapter 14. New here: keys are split. A query meets each key once, so all that costs is to fetch
 * them; and a block for each head would leave most of the GPU idle. So many blocks share the keys
 * of a head, and carries join what they found: those of warps or lanes in a block, those of blocks,
 * and, by the same kernel, those of ranks.
 *
 * In bfloat16 tensor cores compute, and the kernel is as fast as memory. The other types have a
 * kernel whose lanes multiply and add, and which computes longer than it fetches.
 */
#include <cuda_fp16.h>
#include "model_device.h"
#include "mma_tiles.h"

/* Threads of a block; numbers of a row that a lane has; query heads that share a visit to a key, at
 * most; threads of a block that combines. */
enum { DECODERS = 128, EACH = 8, SHARERS = 4, COMBINERS = 512 };

/* A split has no fewer rows than this; of a head there are no more splits, of all tokens together;
 * and of all heads these: two for each of 132 multiprocessors. */
enum { LEAST_OF_SPLIT = 256, MOST_SPLITS = 128, MOST_OF_ALL = 264 };

RA_DEVICE float number(__half x)
{
    return __half2float(x);
}

/* How many of the positions before `position` are this rank's. */
static __host__ __device__ __forceinline__ int64_t rows_before(const struct ra_decode &a,
                                                               int64_t position)
{
    return position <= a.rank ? 0 : (position - a.rank + a.ranks - 1) / a.ranks;
}

/* Numbers first, ... of a row, of which those from D on are 0. */
template <bool Whole, typename T>
RA_DEVICE void load_part(float (&x)[EACH], const T *row, int first, int64_t D)
{
    if (Whole && first < D) {
        load(x, row + first);
        return;
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        x[e] = first + e < D ? number(row[first + e]) : 0;
}

/* exp(x - max), where a score that is not there, -inf, has no weight. */
RA_DEVICE float weight(float x, float max)
{
    return x == -CUDART_INF_F ? 0 : expf(x - max);
}

template <int Lanes> RA_DEVICE float sum_of_lanes(float x)
{
#pragma unroll
    for (int lanes = Lanes / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

/* What a lane has of the carry of a head. */
struct part {
    float max, sum, o[EACH];
};

/* Folds some keys, of which v is this lane's part, with these scores. */
template <int Keys>
RA_DEVICE void fold(part &x, const float (&score)[Keys], const float (&v)[Keys][EACH])
{
    float max = x.max;
#pragma unroll
    for (int i = 0; i < Keys; i++)
        max = fmaxf(max, score[i]);
    float old = weight(x.max, max);
    x.max = max;
    x.sum *= old;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        x.o[e] *= old;
#pragma unroll
    for (int i = 0; i < Keys; i++) {
        float now = weight(score[i], max);
        x.sum += now;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            x.o[e] += now * v[i][e];
    }
}

/* Lanes threads have a key at a time, and all of them the same carries at the end. */
template <typename Q, typename T, int Lanes, int Sharers, bool Whole>
static __global__ void __launch_bounds__(DECODERS)
    decode(const __grid_constant__ struct ra_decode a, int splits, int64_t sharers, float *carries)
{
    extern __shared__ float shared[]; /* (groups, Sharers, D + 2) */
    const int groups = DECODERS / Lanes, group = threadIdx.x / Lanes;
    const int at_once = Whole ? 4 : 2; /* keys that are under way; more would spill */
    const int first = threadIdx.x % Lanes * EACH;
    int64_t chunks = (sharers + Sharers - 1) / Sharers, g = blockIdx.y / chunks;
    int64_t begin = blockIdx.y % chunks * Sharers, token = blockIdx.x, D = a.D, width = D + 2;
    int64_t base = a.interleaved ? g : g * sharers, step = a.interleaved ? a.key_heads : 1;
    int64_t position = a.first + token;
    int64_t from = rows_before(a, position - a.lookback), to = rows_before(a, position + 1);
    int64_t row = from + (to - from) * blockIdx.z / splits;
    int64_t end = from + (to - from) * (blockIdx.z + 1) / splits;
    const T *k = (const T *)a.k + g * a.rows * D, *v = (const T *)a.v + g * a.rows * D;
    float q[Sharers][EACH];
    part x[Sharers];
#pragma unroll
    for (int s = 0; s < Sharers; s++) {
        int64_t h = base + (begin + s < sharers ? begin + s : 0) * step;
        load_part<false>(q[s], (const Q *)a.q + token * a.stride + h * D, first, D);
        x[s] = {-CUDART_INF_F, 0, {}};
    }

    /* All lanes of a warp go round equally often, as they add up together. */
    for (int64_t at = row; at < end; at += groups * at_once) {
        float key[at_once][EACH], value[at_once][EACH];
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            int64_t mine = at + i * groups + group, safe = mine < end ? mine : row;
            load_part<Whole>(key[i], k + safe * D, first, D);
            load_part<Whole>(value[i], v + safe * D, first, D);
        }
#pragma unroll
        for (int s = 0; s < Sharers; s++) {
            float score[at_once];
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                float sum = 0;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    sum += q[s][e] * key[i][e];
                sum = sum_of_lanes<Lanes>(sum) * a.scale;
                if (a.softcap > 0)
                    sum = a.softcap * tanhf(sum / a.softcap);
                score[i] = at + i * groups + group < end ? sum : -CUDART_INF_F;
            }
            fold(x[s], score, value);
        }
    }

    /* The carries of all groups become one. */
#pragma unroll
    for (int s = 0; s < Sharers; s++) {
        float *carry = shared + (group * Sharers + s) * width;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (first + e < D)
                carry[first + e] = x[s].o[e];
        if (first == 0) {
            carry[D] = x[s].max;
            carry[D + 1] = x[s].sum;
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < Sharers * (D + 1); i += DECODERS) {
        int64_t s = i / (D + 1), c = i % (D + 1), h = base + (begin + s) * step;
        float max = -CUDART_INF_F, all = 0;
        if (begin + s >= sharers)
            continue;
        for (int r = 0; r < groups; r++)
            max = fmaxf(max, shared[(r * Sharers + s) * width + D]);
        for (int r = 0; r < groups; r++) {
            const float *carry = shared + (r * Sharers + s) * width;
            all += weight(carry[D], max) * carry[c < D ? c : D + 1];
        }
        float *out = carries + ((blockIdx.z * a.tokens + token) * a.heads + h) * width;
        out[c < D ? c : D + 1] = all;
        if (c == D)
            out[D] = max;
    }
}

/* ---- On tensor cores, for rows and a cache in bfloat16: query heads are rows of a product, whose
 * columns are keys. Each warp has keys of its own, which it copies into shared memory while it
 * works on those before, and waits for no other warp until the end. */

/* Rows of a product; keys of a warp at a time; copies of them, under way or in use. Dim: D, rounded
 * up with zeros. */
template <int Dim> struct key_stream {
    static constexpr int Rows = 16, Keys = 16, Stages = 3, Warps = DECODERS / 32;
    uint16_t keys[Warps][Stages][Keys * Dim], values[Warps][Stages][Keys * Dim];
};

/* A warp's carries of its rows: of row lane / 4 + 8 r columns 8 c + 2 (lane % 4) and the next. */
template <int Dim> struct warp_part {
    float max[2], sum[2], o[Dim / 8][4];
};

/* Begins to copy the rows of k and v from `at` on, zeros for those from `end` on. */
template <int Dim>
RA_DEVICE void copy_keys(struct key_stream<Dim> &shared, int stage, const struct ra_decode &a,
                         int64_t head, int64_t at, int64_t end)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint16_t *k = (const uint16_t *)a.k + head * a.rows * a.D,
                   *v = (const uint16_t *)a.v + head * a.rows * a.D;
    uint32_t keys = ra_shared(shared.keys[warp][stage]),
             values = ra_shared(shared.values[warp][stage]);
#pragma unroll
    for (int i = lane; i < key_stream<Dim>::Keys * Dim / 8; i += 32) {
        int row = i / (Dim / 8), chunk = i % (Dim / 8);
        bool there = at + row < end && 8 * chunk < a.D;
        int64_t from = there ? (at + row) * a.D + 8 * chunk : 0;
        uint32_t to = 2 * Dim * row + 16 * ra_swizzle(row, chunk);
        ra_copy16(keys + to, k + from, there);
        ra_copy16(values + to, v + from, there);
    }
}

/* The rows of q that are this thread's, two numbers at a time: heads `base` + i step of i below
 * `count`, and zeros. */
template <int Dim>
RA_DEVICE void load_queries(uint32_t (&q)[Dim / 16][4], const uint16_t *rows, int64_t base,
                            int64_t step, int64_t count, int64_t D)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < Dim / 16; d++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = lane / 4 + e % 2 * 8, column = 16 * d + 2 * (lane % 4) + e / 2 * 8;
            bool there = row < count && column < D;
            q[d][e] = there ? *(const uint32_t *)(rows + (base + row * step) * D + column) : 0;
        }
}

/* The scores of 16 keys, of which `there` are; the others' are -inf. */
template <int Dim>
RA_DEVICE void scores_of(float (&s)[2][4], const uint32_t (&q)[Dim / 16][4], uint32_t keys,
                         const struct ra_decode &a, int64_t there)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 8; e++)
        s[e / 4][e % 4] = 0;
#pragma unroll
    for (int d = 0; d < Dim / 16; d++) {
        uint32_t y[4];
        ra_load_matrices(y, keys + corner<Dim>(lane, 0, 16 * d, true));
        ra_bfloat16::multiply(s[0], q[d], y[0], y[1]);
        ra_bfloat16::multiply(s[1], q[d], y[2], y[3]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float &score = s[e / 4][e % 4];
        score *= a.scale;
        if (a.softcap > 0)
            score = a.softcap * tanhf(score / a.softcap);
        if (e / 4 * 8 + 2 * (lane % 4) + e % 2 >= there)
            score = -CUDART_INF_F;
    }
}

/* Turns scores into weights under the largest so far, and rescales the carries to it. */
template <int Dim> RA_DEVICE void weigh(float (&s)[2][4], warp_part<Dim> &x)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float max = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
        max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
        max = fmaxf(x.max[r], fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2)));
        float old = weight(x.max[r], max);
        x.max[r] = max;
        x.sum[r] *= old;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &score = s[e / 2][2 * r + e % 2];
            score = weight(score, max);
            x.sum[r] += score;
        }
#pragma unroll
        for (int c = 0; c < Dim / 8; c++) {
            x.o[c][2 * r] *= old;
            x.o[c][2 * r + 1] *= old;
        }
    }
}

/* Adds the values of 16 keys. A weight is the sum of two numbers in bfloat16, as good as float32
 * beside values that are rounded: a second product costs nothing where all wait for memory. */
template <int Dim>
RA_DEVICE void add_values(warp_part<Dim> &x, const float (&s)[2][4], uint32_t values)
{
    int lane = threadIdx.x % 32;
    uint32_t high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float first = s[e / 2][e % 2 * 2], second = s[e / 2][e % 2 * 2 + 1];
        high[e] = ra_bfloat16::pair(first, second);
        low[e] = ra_bfloat16::pair(first - __uint_as_float(high[e] << 16),
                                   second - __uint_as_float(high[e] & 0xffff0000));
    }
#pragma unroll
    for (int d = 0; d < Dim / 16; d++) {
        uint32_t y[4];
        ra_load_transposed(y, values + corner<Dim>(lane, 0, 16 * d, false));
        ra_bfloat16::multiply(x.o[2 * d], high, y[0], y[1]);
        ra_bfloat16::multiply(x.o[2 * d + 1], high, y[2], y[3]);
        ra_bfloat16::multiply(x.o[2 * d], low, y[0], y[1]);
        ra_bfloat16::multiply(x.o[2 * d + 1], low, y[2], y[3]);
    }
}

template <int Dim>
static __global__ void __launch_bounds__(DECODERS)
    decode_stream(const __grid_constant__ struct ra_decode a, int splits, int64_t sharers,
                  float *carries)
{
    typedef key_stream<Dim> Stream;
    extern __shared__ __align__(128) char memory[];
    Stream &shared = *(Stream *)memory;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t chunks = (sharers + Stream::Rows - 1) / Stream::Rows, g = blockIdx.y / chunks;
    int64_t begin = blockIdx.y % chunks * Stream::Rows, token = blockIdx.x, D = a.D, width = D + 2;
    int64_t base = a.interleaved ? g : g * sharers, step = a.interleaved ? a.key_heads : 1;
    int64_t position = a.first + token, count = sharers - begin;
    int64_t from = rows_before(a, position - a.lookback), to = rows_before(a, position + 1);
    int64_t row = from + (to - from) * blockIdx.z / splits;
    int64_t end = from + (to - from) * (blockIdx.z + 1) / splits;
    const int64_t stride = Stream::Warps * Stream::Keys;
    base += begin * step;
    uint32_t q[Dim / 16][4];
    load_queries<Dim>(q, (const uint16_t *)a.q + token * a.stride, base, step, count, D);
    warp_part<Dim> x = {{-CUDART_INF_F, -CUDART_INF_F}};

    int64_t next = row + warp * Stream::Keys;
#pragma unroll
    for (int stage = 0; stage < Stream::Stages - 1; stage++, next += stride) {
        if (next < end)
            copy_keys(shared, stage, a, g, next, end);
        ra_copies_end();
    }

    /* While the warp works on 16 keys, the next 32 are on their way. */
    int stage = 0, free = Stream::Stages - 1;
    for (int64_t at = row + warp * Stream::Keys; at < end; at += stride, next += stride) {
        ra_copies_wait<Stream::Stages - 2>();
        __syncwarp();
        if (next < end)
            copy_keys(shared, free, a, g, next, end);
        ra_copies_end();
        float s[2][4];
        scores_of<Dim>(s, q, ra_shared(shared.keys[warp][stage]), a, end - at);
        weigh<Dim>(s, x);
        add_values(x, s, ra_shared(shared.values[warp][stage]));
        free = stage;
        stage = stage + 1 < Stream::Stages ? stage + 1 : 0;
    }

    /* The carries of all warps become one. */
    ra_copies_wait<0>();
    __syncthreads();
    float *own = (float *)memory + warp * Stream::Rows * (Dim + 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *carry = own + (lane / 4 + 8 * r) * (Dim + 2);
        x.sum[r] += __shfl_xor_sync(0xffffffff, x.sum[r], 1);
        x.sum[r] += __shfl_xor_sync(0xffffffff, x.sum[r], 2);
#pragma unroll
        for (int c = 0; c < Dim / 8; c++) {
            carry[8 * c + 2 * (lane % 4)] = x.o[c][2 * r];
            carry[8 * c + 2 * (lane % 4) + 1] = x.o[c][2 * r + 1];
        }
        carry[Dim] = x.max[r];
        carry[Dim + 1] = x.sum[r];
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < ra_min(count, Stream::Rows) * (D + 1); i += DECODERS) {
        int64_t s = i / (D + 1), c = i % (D + 1), h = base + s * step;
        const float *first = (const float *)memory + s * (Dim + 2);
        float max = -CUDART_INF_F, all = 0;
        for (int w = 0; w < Stream::Warps; w++)
            max = fmaxf(max, first[w * Stream::Rows * (Dim + 2) + Dim]);
        for (int w = 0; w < Stream::Warps; w++) {
            const float *carry = first + w * Stream::Rows * (Dim + 2);
            all += weight(carry[Dim], max) * carry[c < D ? c : Dim + 1];
        }
        float *out = carries + ((blockIdx.z * a.tokens + token) * a.heads + h) * width;
        out[c < D ? c : D + 1] = all;
        if (c == D)
            out[D] = max;
    }
}

/* ---- Launches. */

/* How many splits there may be, of one key head. */
static int64_t most_splits(int64_t key_heads)
{
    return ra_min(MOST_SPLITS, MOST_OF_ALL / key_heads);
}

extern "C" int64_t ra_kernel_decode_splits(int64_t rows, int64_t tokens, int64_t key_heads)
{
    return ra_max(1, ra_min(rows / LEAST_OF_SPLIT, most_splits(key_heads) / ra_max(1, tokens)));
}

extern "C" int64_t ra_kernel_decode_carries(int64_t rows, int64_t tokens, int64_t key_heads)
{
    return ra_min(tokens * ra_kernel_decode_splits(rows, 1, key_heads),
                  ra_max(tokens, most_splits(key_heads)));
}

static int splits_of(const struct ra_decode *a)
{
    int64_t rows = rows_before(*a, a->first + a->tokens);
    return (int)ra_kernel_decode_splits(rows, a->tokens, a->key_heads);
}

template <typename Q, typename T, int Lanes, int Sharers>
static cudaError_t launch(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    int64_t sharers = a->heads / a->key_heads, chunks = (sharers + Sharers - 1) / Sharers;
    int splits = splits_of(a);
    size_t shared = (size_t)(DECODERS / Lanes * Sharers * (a->D + 2)) * sizeof(float);
    dim3 grid((unsigned)a->tokens, (unsigned)(a->key_heads * chunks), (unsigned)splits);
    if (a->D % EACH == 0)
        decode<Q, T, Lanes, Sharers, true>
            <<<grid, DECODERS, shared, stream>>>(*a, splits, sharers, carries);
    else
        decode<Q, T, Lanes, Sharers, false>
            <<<grid, DECODERS, shared, stream>>>(*a, splits, sharers, carries);
    return cudaGetLastError();
}

/* Heads that share no keys have a kernel that keeps one query. */
template <typename Q, typename T, int Lanes>
static cudaError_t launch_sharers(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    return a->heads == a->key_heads ? launch<Q, T, Lanes, 1>(a, carries, stream)
                                    : launch<Q, T, Lanes, SHARERS>(a, carries, stream);
}

template <typename Q, typename T>
static cudaError_t launch_lanes(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    return a->D <= 8 * EACH    ? launch_sharers<Q, T, 8>(a, carries, stream)
           : a->D <= 16 * EACH ? launch_sharers<Q, T, 16>(a, carries, stream)
           : a->D <= 32 * EACH ? launch_sharers<Q, T, 32>(a, carries, stream)
                               : cudaErrorNotSupported;
}

template <int Dim>
static cudaError_t launch_stream(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    typedef struct key_stream<Dim> Stream;
    int64_t sharers = a->heads / a->key_heads, chunks = (sharers + Stream::Rows - 1) / Stream::Rows;
    int splits = splits_of(a);
    dim3 grid((unsigned)a->tokens, (unsigned)(a->key_heads * chunks), (unsigned)splits);
    cudaError_t error = cudaFuncSetAttribute(
        decode_stream<Dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(Stream));
    if (error != cudaSuccess)
        return error;
    decode_stream<Dim><<<grid, DECODERS, sizeof(Stream), stream>>>(*a, splits, sharers, carries);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_kernel_decode(const struct ra_decode *a, float *carries,
                                        cudaStream_t stream)
{
    if (a->type == RA_BFLOAT16 && a->cache == RA_BFLOAT16 && a->D % 8 == 0 && a->D <= 256)
        return a->D <= 64    ? launch_stream<64>(a, carries, stream)
               : a->D <= 128 ? launch_stream<128>(a, carries, stream)
                             : launch_stream<256>(a, carries, stream);
    auto run = [&](auto *none) {
        typedef std::remove_pointer_t<decltype(none)> Q;
        return a->cache == RA_FLOAT32    ? launch_lanes<Q, float>(a, carries, stream)
               : a->cache == RA_BFLOAT16 ? launch_lanes<Q, __nv_bfloat16>(a, carries, stream)
                                         : launch_lanes<Q, __half>(a, carries, stream);
    };
    return WITH_TYPE(a->type, run);
}

/* A block has one row of one carry, and each of its warps every sixteenth of the parts. */
template <typename T>
static __global__ void __launch_bounds__(COMBINERS)
    combine(int64_t D, int64_t parts, int64_t stride, const float *carries, T *out, float *carry)
{
    constexpr int Warps = COMBINERS / 32, Columns = RA_MOST_HEAD_DIM / 32;
    __shared__ float shared[Warps][RA_MOST_HEAD_DIM + 2];
    int64_t row = blockIdx.x, width = D + 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *mine = carries + row * width;
    float max = -CUDART_INF_F, sum = 0, o[Columns] = {};

    /* The carries of this warp become one: four of them are asked for at once. */
#pragma unroll 4
    for (int64_t p = warp; p < parts; p += Warps) {
        const float *part = mine + p * stride;
        float most = fmaxf(max, part[D]), old = weight(max, most), now = weight(part[D], most);
        max = most;
        sum = old * sum + now * part[D + 1];
#pragma unroll
        for (int i = 0; i < Columns; i++)
            if (32 * i + lane < D)
                o[i] = old * o[i] + now * part[32 * i + lane];
    }

    /* And those of all warps. */
#pragma unroll
    for (int i = 0; i < Columns; i++)
        shared[warp][32 * i + lane] = o[i];
    shared[warp][RA_MOST_HEAD_DIM] = max;
    shared[warp][RA_MOST_HEAD_DIM + 1] = sum;
    __syncthreads();
    max = shared[0][RA_MOST_HEAD_DIM];
    for (int w = 1; w < Warps; w++)
        max = fmaxf(max, shared[w][RA_MOST_HEAD_DIM]);
    sum = 0;
    for (int w = 0; w < Warps; w++)
        sum += weight(shared[w][RA_MOST_HEAD_DIM], max) * shared[w][RA_MOST_HEAD_DIM + 1];
    for (int64_t c = threadIdx.x; c < D; c += COMBINERS) {
        float all = 0;
        for (int w = 0; w < Warps; w++)
            all += weight(shared[w][RA_MOST_HEAD_DIM], max) * shared[w][c];
        if (carry)
            carry[row * width + c] = all;
        else
            put(out + row * D + c, all / sum);
    }
    if (carry && threadIdx.x == 0) {
        carry[row * width + D] = max;
        carry[row * width + D + 1] = sum;
    }
}

extern "C" cudaError_t ra_kernel_combine(int64_t rows, int64_t D, int64_t parts, int64_t stride,
                                         const float *carries, enum ra_type type, void *out,
                                         float *carry, cudaStream_t stream)
{
    auto run = [&](auto *none) {
        combine<<<(unsigned)rows, COMBINERS, 0, stream>>>(D, parts, stride, carries,
                                                          (decltype(none))out, carry);
        return cudaGetLastError();
    };
    return WITH_TYPE(type, run);
}
