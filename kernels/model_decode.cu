/* model_decode: attention of one query over very many keys. See ra_model_kernels.h.
 *
 * Chapter 14. New here: keys are split. A query meets each key once, so all that costs is to fetch
 * them; and a block for each head would leave most of the GPU idle. So many blocks share the keys
 * of a head, and carries join what they found: those of lanes in a block, those of blocks, and, by
 * the same kernel, those of ranks.
 */
#include <cuda_fp16.h>
#include "model_device.h"
#include "ra_math.h"

/* Threads of a block; numbers of a row that a lane has; query heads that share a visit to a key. */
enum { DECODERS = 128, EACH = 8, SHARERS = 4 };

/* A split has no fewer rows than this, and there are no more splits, of all tokens together. */
enum { LEAST_OF_SPLIT = 256, MOST_SPLITS = 128 };

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

/* Folds one key, of which v is this lane's part, with this score. */
RA_DEVICE void fold(part &x, float score, const float (&v)[EACH])
{
    float max = fmaxf(x.max, score), old = weight(x.max, max), now = weight(score, max);
    x.max = max;
    x.sum = old * x.sum + now;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        x.o[e] = old * x.o[e] + now * v[e];
}

/* Lanes threads have a key at a time, and all of them the same carries at the end. */
template <typename Q, typename T, int Lanes, bool Whole>
static __global__ void __launch_bounds__(DECODERS)
    decode(const __grid_constant__ struct ra_decode a, int splits, int64_t sharers, float *carries)
{
    extern __shared__ float shared[]; /* (groups, SHARERS, D + 2) */
    const int groups = DECODERS / Lanes, group = threadIdx.x / Lanes;
    const int at_once = Whole ? 4 : 2; /* keys that are under way; more would spill */
    const int first = threadIdx.x % Lanes * EACH;
    int64_t chunks = (sharers + SHARERS - 1) / SHARERS, g = blockIdx.y / chunks;
    int64_t begin = blockIdx.y % chunks * SHARERS, token = blockIdx.x, D = a.D, width = D + 2;
    int64_t base = a.interleaved ? g : g * sharers, step = a.interleaved ? a.key_heads : 1;
    int64_t position = a.first + token;
    int64_t from = rows_before(a, position - a.lookback), to = rows_before(a, position + 1);
    int64_t row = from + (to - from) * blockIdx.z / splits;
    int64_t end = from + (to - from) * (blockIdx.z + 1) / splits;
    const T *k = (const T *)a.k + g * a.rows * D, *v = (const T *)a.v + g * a.rows * D;
    float q[SHARERS][EACH];
    part x[SHARERS];
#pragma unroll
    for (int s = 0; s < SHARERS; s++) {
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
        for (int i = 0; i < at_once; i++) {
            bool there = at + i * groups + group < end;
#pragma unroll
            for (int s = 0; s < SHARERS; s++) {
                float score = 0;
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    score += q[s][e] * key[i][e];
                score = sum_of_lanes<Lanes>(score) * a.scale;
                if (a.softcap > 0)
                    score = a.softcap * tanhf(score / a.softcap);
                fold(x[s], there ? score : -CUDART_INF_F, value[i]);
            }
        }
    }

    /* The carries of all groups become one. */
#pragma unroll
    for (int s = 0; s < SHARERS; s++) {
        float *carry = shared + (group * SHARERS + s) * width;
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
    for (int64_t i = threadIdx.x; i < SHARERS * (D + 1); i += DECODERS) {
        int64_t s = i / (D + 1), c = i % (D + 1), h = base + (begin + s) * step;
        float max = -CUDART_INF_F, all = 0;
        if (begin + s >= sharers)
            continue;
        for (int r = 0; r < groups; r++)
            max = fmaxf(max, shared[(r * SHARERS + s) * width + D]);
        for (int r = 0; r < groups; r++) {
            const float *carry = shared + (r * SHARERS + s) * width;
            all += weight(carry[D], max) * carry[c < D ? c : D + 1];
        }
        float *out = carries + ((blockIdx.z * a.tokens + token) * a.heads + h) * width;
        out[c < D ? c : D + 1] = all;
        if (c == D)
            out[D] = max;
    }
}

extern "C" int64_t ra_kernel_decode_splits(int64_t rows, int64_t tokens)
{
    return ra_max(1, ra_min(rows / LEAST_OF_SPLIT, MOST_SPLITS / ra_max(1, tokens)));
}

extern "C" int64_t ra_kernel_decode_carries(int64_t rows, int64_t tokens)
{
    return ra_min(tokens * ra_kernel_decode_splits(rows, 1), ra_max(tokens, MOST_SPLITS));
}

template <typename Q, typename T, int Lanes>
static cudaError_t launch(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    int64_t sharers = a->heads / a->key_heads, chunks = (sharers + SHARERS - 1) / SHARERS;
    int splits = (int)ra_kernel_decode_splits(rows_before(*a, a->first + a->tokens), a->tokens);
    size_t shared = (size_t)(DECODERS / Lanes * SHARERS * (a->D + 2)) * sizeof(float);
    dim3 grid((unsigned)a->tokens, (unsigned)(a->key_heads * chunks), (unsigned)splits);
    if (a->D % EACH == 0)
        decode<Q, T, Lanes, true><<<grid, DECODERS, shared, stream>>>(*a, splits, sharers, carries);
    else
        decode<Q, T, Lanes, false>
            <<<grid, DECODERS, shared, stream>>>(*a, splits, sharers, carries);
    return cudaGetLastError();
}

template <typename Q, typename T>
static cudaError_t launch_lanes(const struct ra_decode *a, float *carries, cudaStream_t stream)
{
    return a->D <= 8 * EACH    ? launch<Q, T, 8>(a, carries, stream)
           : a->D <= 16 * EACH ? launch<Q, T, 16>(a, carries, stream)
           : a->D <= 32 * EACH ? launch<Q, T, 32>(a, carries, stream)
                               : cudaErrorNotSupported;
}

extern "C" cudaError_t ra_kernel_decode(const struct ra_decode *a, float *carries,
                                        cudaStream_t stream)
{
    auto run = [&](auto *none) {
        typedef std::remove_pointer_t<decltype(none)> Q;
        return a->cache == RA_FLOAT32    ? launch_lanes<Q, float>(a, carries, stream)
               : a->cache == RA_BFLOAT16 ? launch_lanes<Q, __nv_bfloat16>(a, carries, stream)
                                         : launch_lanes<Q, __half>(a, carries, stream);
    };
    return WITH_TYPE(a->type, run);
}

/* A block has one row of one carry. */
template <typename T>
static __global__ void __launch_bounds__(DECODERS)
    combine(int64_t D, int64_t parts, int64_t stride, const float *carries, T *out, float *carry)
{
    int64_t row = blockIdx.x, width = D + 2;
    const float *mine = carries + row * width;
    float max = -CUDART_INF_F, sum = 0;
    for (int64_t p = 0; p < parts; p++)
        max = fmaxf(max, mine[p * stride + D]);
    for (int64_t p = 0; p < parts; p++)
        sum += weight(mine[p * stride + D], max) * mine[p * stride + D + 1];
    for (int64_t c = threadIdx.x; c < D; c += DECODERS) {
        float o = 0;
        for (int64_t p = 0; p < parts; p++)
            o += weight(mine[p * stride + D], max) * mine[p * stride + c];
        if (carry)
            carry[row * width + c] = o;
        else
            put(out + row * D + c, o / sum);
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
        combine<<<(unsigned)rows, DECODERS, 0, stream>>>(D, parts, stride, carries,
                                                         (decltype(none))out, carry);
        return cudaGetLastError();
    };
    return WITH_TYPE(type, run);
}
