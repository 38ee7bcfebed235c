/* model_norms: the norm of rows, forward and backward. See ra_model_kernels.h.
 *
 * Chapter 14. A row stays in registers between its sums and its use: a few warps share one. So a
 * row is read once, whatever the norm.
 */
#include "model_device.h"

/* Blocks of the backward, each of which has partial sums: so many run at a time on a GPU of 132
 * multiprocessors. */
enum { BLOCKS = 264 };

static const float SHORTEST = 1e-12f;

/* What a norm does with a row, as in ra_layers.c: out = (x - mean) factor gamma + bias; share is
 * what (g . z) is multiplied by for the gradient. */
struct scale {
    float mean, factor, inverse; /* inverse: 1 / square */
};

/* Sums over the threads that share a row, in place of what each of them has. From one call to the
 * next of as many sums, step is 0 and 1 by turns: so whoever writes a step's sums has met the
 * others since they were last read. */
template <int Warps, int N> RA_DEVICE void add_up_row(float (&x)[N], int step)
{
    __shared__ float sums[2][N][THREADS / 32];
    int warp = threadIdx.x / 32, first = warp / Warps * Warps;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = sum_of_warp(x[i]);
    if (Warps == 1)
        return;
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < N; i++)
            sums[step][i][warp] = x[i];
    /* These warps alone meet: others have other rows. */
    asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / Warps), "n"(32 * Warps) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
#pragma unroll 4 /* 8 at once do not all have registers */
        for (int w = 0; w < Warps; w++)
            x[i] += sums[step][i][first + w];
    }
}

template <int Warps> RA_DEVICE float sum_of_row(float x, int step)
{
    float one[1] = {x};
    add_up_row<Warps>(one, step);
    return one[0];
}

/* Where chunk i of this thread begins in its row. */
template <int Count, int Warps> RA_DEVICE int column(int i)
{
    return ((int)threadIdx.x % (32 * Warps) + i * 32 * Warps) * Count;
}

template <int Count, int Chunks, int Warps, typename T>
RA_DEVICE void load_row(float (&x)[Chunks][Count], bool there, int64_t dim, const T *from)
{
#pragma unroll
    for (int i = 0; i < Chunks; i++) {
        int c = column<Count, Warps>(i);
        if (there && c < dim)
            load(x[i], from + c);
        else
            for (int e = 0; e < Count; e++)
                x[i][e] = 0;
    }
}

/* What is subtracted from a row, of which all of x beyond it is 0. */
template <int Count, int Chunks, int Warps>
RA_DEVICE float mean_of(struct ra_norm norm, int64_t dim, const float (&x)[Chunks][Count], int step)
{
    float mean = 0;
    if (norm.kind != RA_NORM_LAYER)
        return 0;
#pragma unroll
    for (int i = 0; i < Chunks; i++)
        for (int e = 0; e < Count; e++)
            mean += x[i][e];
    return sum_of_row<Warps>(mean, step) / (float)dim;
}

/* `square` is the sum of (x - mean)^2. */
RA_DEVICE struct scale scale_of_square(struct ra_norm norm, int64_t dim, float mean, float square)
{
    if (norm.kind == RA_NORM_UNIT) {
        float length = sqrtf(square);
        bool is_short = length < SHORTEST; /* NaN is not */
        return {0, sqrtf((float)dim) / (is_short ? SHORTEST : length), is_short ? 0 : 1 / square};
    }
    square += (float)(norm.eps * (double)dim);
    return {mean, sqrtf((float)dim / square), 1 / square};
}

template <int Count, int Chunks, int Warps>
RA_DEVICE struct scale scale_of(struct ra_norm norm, int64_t dim, const float (&x)[Chunks][Count])
{
    float mean = mean_of<Count, Chunks, Warps>(norm, dim, x, 0), square = 0;
#pragma unroll
    for (int i = 0; i < Chunks; i++)
        for (int e = 0; e < Count; e++) {
            float z = column<Count, Warps>(i) < dim ? x[i][e] - mean : 0;
            square += z * z;
        }
    return scale_of_square(norm, dim, mean, sum_of_row<Warps>(square, 1));
}

template <typename T, int Count, int Chunks, int Warps>
static __global__ void __launch_bounds__(THREADS)
    norm_forward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x, const float *gamma,
                 const float *bias, T *out)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / 32 / Warps) + threadIdx.x / (32 * Warps);
    float mine[Chunks][Count];
    bool there = row < rows;
    load_row<Count, Chunks, Warps>(mine, there, dim, x + row * dim);
    struct scale scale = scale_of<Count, Chunks, Warps>(norm, dim, mine);
#pragma unroll
    for (int i = 0; i < Chunks; i++) {
        int c = column<Count, Warps>(i);
        if (!there || c >= dim)
            continue;
        float g[Count], b[Count] = {};
        load(g, gamma + c);
        if (bias)
            load(b, bias + c);
#pragma unroll
        for (int e = 0; e < Count; e++)
            b[e] += (mine[i][e] - scale.mean) * scale.factor * g[e];
        store(out + row * dim + c, b);
    }
}

/* The sums over rows of a block: of the rows that its groups of threads had, one after another. */
template <int Count, int Chunks, int Warps>
RA_DEVICE void store_sums(int64_t dim, const float (&sums)[Chunks][Count], float *partial)
{
    extern __shared__ __align__(16) float shared[]; /* (groups, dim) */
    int group = threadIdx.x / (32 * Warps);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Chunks; i++)
        if (column<Count, Warps>(i) < dim)
            store(shared + group * dim + column<Count, Warps>(i), sums[i]);
    __syncthreads();
    for (int c = threadIdx.x; c < dim; c += THREADS) {
        float sum = 0;
        for (int g = 0; g < THREADS / 32 / Warps; g++)
            sum += shared[g * dim + c];
        partial[c] = sum;
    }
}

template <typename T, int Count, int Chunks, int Warps, bool HasBias>
static __global__ void __launch_bounds__(THREADS, Count *Chunks > 16 ? 1 : 2)
    norm_backward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                  const float *gamma, const T *d_out, bool add, float *gradient, T *copy,
                  float *partial)
{
    extern __shared__ __align__(16) float shared[]; /* gamma; at the end, sums */
    const int groups = THREADS / 32 / Warps;
    float gammas[Chunks][Count] = {}, biases[Chunks][Count] = {};
    int step = 0;
    /* From global memory gamma would wait for the rows that were asked for before it. */
    for (int c = threadIdx.x; c < dim; c += THREADS)
        shared[c] = gamma[c];
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * groups; first < rows;
         first += (int64_t)gridDim.x * groups) {
        int64_t row = first + threadIdx.x / (32 * Warps);
        bool there = row < rows;
        float z[Chunks][Count], d[Chunks][Count], old[Chunks][Count];
        load_row<Count, Chunks, Warps>(z, there, dim, x + row * dim);
        load_row<Count, Chunks, Warps>(d, there, dim, d_out + row * dim);
        load_row<Count, Chunks, Warps>(old, there && add, dim, gradient + row * dim);
        float mean = mean_of<Count, Chunks, Warps>(norm, dim, z, step);
        float sums[3] = {}; /* z^2; and d, times gamma: along z, and all */
#pragma unroll
        for (int i = 0; i < Chunks; i++) {
            int c = column<Count, Warps>(i);
            if (!there || c >= dim)
                continue;
            float g[Count];
            load(g, shared + c);
#pragma unroll
            for (int e = 0; e < Count; e++) {
                float slope = __fmul_rn(d[i][e], g[e]);
                z[i][e] -= mean;
                sums[0] += z[i][e] * z[i][e];
                sums[1] += slope * z[i][e];
                sums[2] += slope;
            }
        }
        add_up_row<Warps>(sums, step);
        step = 1 - step;
        struct scale scale = scale_of_square(norm, dim, mean, sums[0]);
        float share = sums[1] * scale.inverse;
        mean = norm.kind == RA_NORM_LAYER ? sums[2] / (float)dim : 0;
#pragma unroll
        for (int i = 0; i < Chunks; i++) {
            int c = column<Count, Warps>(i);
            if (!there || c >= dim)
                continue;
            float g[Count];
            load(g, shared + c);
#pragma unroll
            for (int e = 0; e < Count; e++) {
                gammas[i][e] += d[i][e] * z[i][e] * scale.factor;
                if (HasBias)
                    biases[i][e] += d[i][e];
                float slope = __fmul_rn(d[i][e], g[e]);
                old[i][e] += scale.factor * (slope - mean - z[i][e] * share);
            }
            store(gradient + row * dim + c, old[i]);
            if (copy)
                store(copy + row * dim + c, old[i]);
        }
    }
    store_sums<Count, Chunks, Warps>(dim, gammas, partial + blockIdx.x * dim);
    if (HasBias)
        store_sums<Count, Chunks, Warps>(dim, biases, partial + (PARTIALS + blockIdx.x) * dim);
}

/* One call of a norm, and which of the kernels it wants. */
struct call {
    struct ra_norm norm;
    int64_t rows, dim;
    const float *x, *gamma, *bias;
    void *out; /* forward */
    const void *d_out;
    float *gradient;
    bool add;
    void *copy;
    float *d_gamma, *d_bias, *partial;
    cudaStream_t stream;
};

template <typename T, int Count, int Chunks, int Warps>
static cudaError_t forward(const struct call *c)
{
    norm_forward<T, Count, Chunks, Warps>
        <<<blocks_of(c->rows, THREADS / 32 / Warps), THREADS, 0, c->stream>>>(
            c->norm, c->rows, c->dim, c->x, c->gamma, c->bias, (T *)c->out);
    return cudaGetLastError();
}

template <typename T, int Count, int Chunks, int Warps>
static cudaError_t backward(const struct call *c)
{
    int groups = THREADS / 32 / Warps;
    unsigned blocks = blocks_of(c->rows, groups);
    blocks = blocks < BLOCKS ? blocks : (unsigned)BLOCKS;
    size_t shared = (size_t)groups * c->dim * sizeof(float);
    auto kernel = c->d_bias ? norm_backward<T, Count, Chunks, Warps, true>
                            : norm_backward<T, Count, Chunks, Warps, false>;
    kernel<<<blocks, THREADS, shared, c->stream>>>(c->norm, c->rows, c->dim, c->x, c->gamma,
                                                   (const T *)c->d_out, c->add, c->gradient,
                                                   (T *)c->copy, c->partial);
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess
               ? add_partials(blocks, c->dim, c->partial, c->d_gamma, c->d_bias, c->stream)
               : code;
}

/* Rows of chunks take as few warps as have room for them: a thread keeps 32 numbers, or in the
 * backward, which has three arrays of them, 16. Rows that are no chunks are rare. */
template <typename T> static cudaError_t launch(const struct call *c)
{
    bool ahead = c->out;
    if (c->dim % 4 != 0 && c->dim <= 256)
        return ahead ? forward<T, 1, 8, 1>(c) : backward<T, 1, 8, 1>(c);
    if (c->dim % 4 != 0)
        return ahead ? forward<T, 1, 8, 8>(c) : backward<T, 1, 8, 8>(c);
    if (c->dim <= 512)
        return ahead ? forward<T, 4, 4, 1>(c) : backward<T, 4, 4, 1>(c);
    if (c->dim <= 1024)
        return ahead ? forward<T, 4, 8, 1>(c) : backward<T, 4, 4, 2>(c);
    if (c->dim <= 2048)
        return ahead ? forward<T, 4, 8, 2>(c) : backward<T, 4, 4, 4>(c);
    if (c->dim <= 4096)
        return ahead ? forward<T, 4, 8, 4>(c) : backward<T, 4, 4, 8>(c);
    return ahead ? forward<T, 4, 8, 8>(c) : backward<T, 4, 8, 8>(c);
}

static cudaError_t launch_type(enum ra_type type, const struct call *c)
{
    if (c->rows == 0)
        return cudaSuccess;
    if (!ra_kernel_takes_norm(c->dim))
        return cudaErrorNotSupported;
    auto run = [&](auto *none) { return launch<std::remove_pointer_t<decltype(none)>>(c); };
    return WITH_TYPE(type, run);
}

extern "C" cudaError_t ra_kernel_norm_forward(struct ra_norm norm, int64_t rows, int64_t dim,
                                              const float *x, const float *gamma, const float *bias,
                                              enum ra_type type, void *out, cudaStream_t stream)
{
    struct call call = {norm, rows,  dim,  x,    gamma, bias, out,   NULL,
                        NULL, false, NULL, NULL, NULL,  NULL, stream};
    return launch_type(type, &call);
}

extern "C" cudaError_t ra_kernel_norm_backward(struct ra_norm norm, int64_t rows, int64_t dim,
                                               const float *x, const float *gamma,
                                               enum ra_type type, const void *d_out, bool add,
                                               float *gradient, void *copy, float *d_gamma,
                                               float *d_bias, float *scratch, cudaStream_t stream)
{
    struct call call = {norm,     rows, dim,  x,       gamma,  NULL,    NULL,  d_out,
                        gradient, add,  copy, d_gamma, d_bias, scratch, stream};
    return launch_type(type, &call);
}
