/* model_heads: the norm of heads and their rotation, forward and backward. See ra_model_kernels.h.
 *
 * Chapter 14. Between the product that makes q and k and attention there is one visit to memory: a
 * few threads have a head in registers, both halves of it, for the norm and for the rotation.
 */
#include "model_device.h"

/* A head's numbers in a group of Lanes threads: pairs (t, t + D / 2), of which a thread has Times
 * chunks of Count. */
template <int Count, int Lanes, int Times> struct head {
    float first[Times][Count], second[Times][Count];
};

template <int Count, int Lanes> RA_DEVICE int pair_of(int i)
{
    return ((int)threadIdx.x % Lanes + i * Lanes) * Count;
}

template <int Lanes> RA_DEVICE float sum_of_lanes(float x)
{
#pragma unroll
    for (int lanes = Lanes / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

template <typename T, int Count, int Lanes, int Times>
RA_DEVICE void load_head(struct head<Count, Lanes, Times> *head, int half, const T *from)
{
#pragma unroll
    for (int i = 0; i < Times; i++) {
        int t = pair_of<Count, Lanes>(i);
        for (int e = 0; e < Count; e++)
            head->first[i][e] = head->second[i][e] = 0;
        if (from && t < half) {
            load(head->first[i], from + t);
            load(head->second[i], from + half + t);
        }
    }
}

template <typename T, int Count, int Lanes, int Times>
RA_DEVICE void store_head(const struct head<Count, Lanes, Times> &x, int half, T *to)
{
#pragma unroll
    for (int i = 0; i < Times; i++) {
        int t = pair_of<Count, Lanes>(i);
        if (to && t < half) {
            store(to + t, x.first[i]);
            store(to + half + t, x.second[i]);
        }
    }
}

template <int Count, int Lanes, int Times>
RA_DEVICE float product(const struct head<Count, Lanes, Times> &x,
                        const struct head<Count, Lanes, Times> &y)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Times; i++)
        for (int e = 0; e < Count; e++)
            sum += x.first[i][e] * y.first[i][e] + x.second[i][e] * y.second[i][e];
    return sum_of_lanes<Lanes>(sum);
}

/* Turns by the angles of a row, forward (sign 1) or back (-1). */
template <int Count, int Lanes, int Times>
RA_DEVICE void rotate(struct head<Count, Lanes, Times> *head, const struct ra_heads &heads,
                      int64_t row, float sign)
{
    int half = (int)heads.D / 2;
    if (!heads.cosines)
        return;
    const float *cosines = heads.cosines + row % heads.n * half;
    const float *sines = heads.sines + row % heads.n * half;
#pragma unroll
    for (int i = 0; i < Times; i++) {
        int t = pair_of<Count, Lanes>(i);
        float cosine[Count] = {}, sine[Count] = {};
        if (t < half) {
            load(cosine, cosines + t);
            load(sine, sines + t);
        }
#pragma unroll
        for (int e = 0; e < Count; e++) {
            float p = head->first[i][e], q = head->second[i][e];
            head->first[i][e] = p * cosine[e] - q * sign * sine[e];
            head->second[i][e] = q * cosine[e] + p * sign * sine[e];
        }
    }
}

template <typename T, int Count, int Lanes, int Times>
static __global__ void __launch_bounds__(THREADS)
    heads_forward(const __grid_constant__ struct ra_heads heads, T *x, T *raw, float sign)
{
    const int groups = THREADS / Lanes;
    int64_t item = (int64_t)blockIdx.x * groups + threadIdx.x / Lanes;
    int64_t row = item / heads.heads, h = item % heads.heads;
    int half = (int)heads.D / 2;
    T *at = row < heads.rows ? x + row * heads.stride + h * heads.D : (T *)NULL;
    struct head<Count, Lanes, Times> mine, gamma;
    load_head(&mine, half, at);
    if (heads.gamma) {
        load_head(&gamma, half, heads.gamma);
        store_head(mine, half, at ? raw + item * heads.D : (T *)NULL);
        float square = product(mine, mine) + (float)(heads.eps * (double)heads.D);
        float factor = sqrtf((float)heads.D / square);
#pragma unroll
        for (int i = 0; i < Times; i++)
            for (int e = 0; e < Count; e++) {
                mine.first[i][e] *= factor * gamma.first[i][e];
                mine.second[i][e] *= factor * gamma.second[i][e];
            }
    }
    rotate(&mine, heads, row, sign);
    store_head(mine, half, at);
}

template <typename T, int Count, int Lanes, int Times>
static __global__ void __launch_bounds__(THREADS)
    heads_backward(const __grid_constant__ struct ra_heads heads, T *d, const T *raw,
                   float *partial)
{
    const int groups = THREADS / Lanes;
    int half = (int)heads.D / 2, group = threadIdx.x / Lanes;
    int64_t all = heads.rows * heads.heads;
    struct head<Count, Lanes, Times> gamma, gammas;
    load_head(&gamma, half, heads.gamma);
    load_head(&gammas, half, (const float *)NULL);
    for (int64_t first = (int64_t)blockIdx.x * groups; first < all;
         first += (int64_t)gridDim.x * groups) {
        int64_t item = first + group, row = item / heads.heads, h = item % heads.heads;
        T *at = item < all ? d + row * heads.stride + h * heads.D : (T *)NULL;
        struct head<Count, Lanes, Times> mine, x;
        load_head(&mine, half, at);
        rotate(&mine, heads, row, -1);
        load_head(&x, half, at ? raw + item * heads.D : (const T *)NULL);
        float square = product(x, x) + (float)(heads.eps * (double)heads.D);
        float factor = sqrtf((float)heads.D / square);
#pragma unroll
        for (int i = 0; i < Times; i++)
            for (int e = 0; e < Count; e++) {
                gammas.first[i][e] += mine.first[i][e] * x.first[i][e] * factor;
                gammas.second[i][e] += mine.second[i][e] * x.second[i][e] * factor;
                mine.first[i][e] *= gamma.first[i][e];
                mine.second[i][e] *= gamma.second[i][e];
            }
        float share = product(mine, x) / square;
#pragma unroll
        for (int i = 0; i < Times; i++)
            for (int e = 0; e < Count; e++) {
                mine.first[i][e] = factor * (mine.first[i][e] - x.first[i][e] * share);
                mine.second[i][e] = factor * (mine.second[i][e] - x.second[i][e] * share);
            }
        store_head(mine, half, at);
    }

    /* What the groups of this block have of gamma's gradient, one after another. */
    extern __shared__ float shared[]; /* (groups, D) */
    store_head(gammas, half, shared + group * heads.D);
    __syncthreads();
    for (int c = threadIdx.x; c < heads.D; c += THREADS) {
        float sum = 0;
        for (int g = 0; g < groups; g++)
            sum += shared[g * heads.D + c];
        partial[blockIdx.x * heads.D + c] = sum;
    }
}

/* A call. */
struct call {
    const struct ra_heads *heads;
    bool backward;
    void *x, *raw;
    float *partial;
    unsigned blocks; /* of the backward */
    cudaStream_t stream;
};

template <typename T, int Count, int Lanes, int Times> static cudaError_t launch(struct call *c)
{
    const int groups = THREADS / Lanes;
    unsigned blocks = blocks_of(c->heads->rows * c->heads->heads, groups);
    c->blocks = blocks < PARTIALS ? blocks : (unsigned)PARTIALS;

    /* Without a norm the backward is the rotation back. */
    if (!c->backward || !c->heads->gamma)
        heads_forward<T, Count, Lanes, Times><<<blocks, THREADS, 0, c->stream>>>(
            *c->heads, (T *)c->x, (T *)c->raw, c->backward ? -1.0f : 1.0f);
    else
        heads_backward<T, Count, Lanes, Times>
            <<<c->blocks, THREADS, groups * c->heads->D * sizeof(float), c->stream>>>(
                *c->heads, (T *)c->x, (const T *)c->raw, c->partial);
    return cudaGetLastError();
}

template <typename T> static cudaError_t launch_lanes(struct call *c)
{
    int64_t D = c->heads->D;
    bool in_fours = D % 8 == 0 && c->heads->stride % 4 == 0 &&
                    (uintptr_t)c->x % (4 * sizeof(T)) == 0 && (uintptr_t)c->raw % 16 == 0;
    return !in_fours  ? launch<T, 1, 32, 4>(c)
           : D <= 64  ? launch<T, 4, 8, 1>(c)
           : D <= 128 ? launch<T, 4, 16, 1>(c)
                      : launch<T, 4, 32, 1>(c);
}

static cudaError_t launch_type(enum ra_type type, struct call *c)
{
    if (c->heads->rows == 0 || c->heads->heads == 0)
        return cudaSuccess;
    if (c->heads->D > RA_MOST_HEAD_DIM)
        return cudaErrorNotSupported;
    auto run = [&](auto *none) { return launch_lanes<std::remove_pointer_t<decltype(none)>>(c); };
    return WITH_TYPE(type, run);
}

extern "C" cudaError_t ra_kernel_heads_forward(const struct ra_heads *heads, enum ra_type type,
                                               void *x, void *raw, cudaStream_t stream)
{
    struct call call = {heads, false, x, raw, NULL, 0, stream};
    return launch_type(type, &call);
}

extern "C" cudaError_t ra_kernel_heads_backward(const struct ra_heads *heads, enum ra_type type,
                                                void *d, const void *raw, float *d_gamma,
                                                float *scratch, cudaStream_t stream)
{
    struct call call = {heads, true, d, (void *)raw, scratch, 0, stream};
    cudaError_t code = launch_type(type, &call);
    return code == cudaSuccess && heads->gamma && call.blocks > 0
               ? add_partials(call.blocks, heads->D, scratch, d_gamma, NULL, stream)
               : code;
}
