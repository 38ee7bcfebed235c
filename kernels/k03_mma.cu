/* k03: attention on tensor cores, forward, in float16 or bfloat16; k03_backward.cu has the
 * backward.
 *
 * Chapter 11. New here: matrix products by mma.sync, 16 x 8 x 16 at a time; operands that ldmatrix
 * brings out of swizzled shared memory; and the next tile of keys, copied by cp.async while this
 * one is computed. Scores and weights never leave the registers.
 *
 * A block of threads has a tile of query rows of one head; each of its warps has Blocks x 16 of
 * them, whole rows, and folds one tile of keys after the other into them: ra_tile_forward, 32
 * threads wide.
 */
#include "online_softmax.h"

/* The shape of a tile, and what it takes of shared memory. */
template <class Type_, int Dim_, int Blocks_, int Keys_, bool Extras_ = false, int Warps_ = 4>
struct tile_shape : forward_tile<Type_, Dim_, Blocks_, Keys_, Warps_> {
    static constexpr bool Extras = Extras_; /* there may be sinks, slopes, largest scores */
    static constexpr int Rows = Warps_ * 16 * Blocks_;

    /* Numbers of a tile of queries, and of one of keys or values. */
    static constexpr int Query_size = Rows * Dim_, Key_size = Keys_ * Dim_;

    /* The queries, and twice, one for now and one for next: keys and values. */
    static constexpr int Shared_bytes = 2 * (Query_size + 4 * Key_size);

    /* The larger tiles need the shared memory of compute capability 9.0 for two blocks of threads
     * at once, and its registers: for older GPUs they are not compiled. */
    static constexpr bool Needs_90 = Dim_ <= 128 && Dim_ * Keys_ > 4096;
};

/* Begins to copy a tile of keys and their values, as one group. */
template <class Shape>
RA_DEVICE void load(uint16_t *shared, const struct forward &f, const uint16_t *k, const uint16_t *v,
                    const uint32_t valid[Shape::Words])
{
    const struct ra_kernel &kernel = f.kernel;
    copy_rows<Shape, Shape::Keys>(shared, k, kernel.k.row, valid, (int)kernel.dim, f.chunks,
                                  threadIdx.x);
    copy_rows<Shape, Shape::Keys>(shared + Shape::Key_size, v, kernel.v.row, valid,
                                  (int)kernel.dim_value, f.chunks, threadIdx.x);
    ra_copies_end();
}

/* ---- One tile of keys. */

/* s = q k^T. From the corners q and k on, chunk 2 d of a row is reached by ^ 32 d, since a row
 * begins at a multiple of its length. Of the 16 steps of D = 256 half are unrolled: for all of them
 * there are not enough registers. */
template <class Shape> RA_DEVICE void qk(typename Shape::Scores &s, uint32_t q, uint32_t k)
{
    constexpr int Blocks = Shape::Blocks, Row_bytes = 2 * Shape::Dim;
    clear(s);
#pragma unroll 8
    for (int d = 0; d < Shape::Dim / 16; d++) {
        uint32_t a[Blocks][4];
#pragma unroll
        for (int i = 0; i < Blocks; i++)
            ra_load_matrices(a[i], (q ^ 32 * d) + 16 * i * Row_bytes);
#pragma unroll
        for (int c = 0; c < Shape::Keys / 16; c++) {
            uint32_t y[4];
            ra_load_matrices(y, (k ^ 32 * d) + 16 * c * Row_bytes);
#pragma unroll
            for (int i = 0; i < Blocks; i++) {
                Shape::Type::multiply(s[i][2 * c], a[i], y[0], y[1]);
                Shape::Type::multiply(s[i][2 * c + 1], a[i], y[2], y[3]);
            }
        }
    }
}

/* Sets the score of every key that a row does not see to -inf. `from`: how far this thread's first
 * row is behind the first key of the tile. */
template <class Shape>
RA_DEVICE void hide_scores(typename Shape::Scores &s, struct carry<Shape> &carry,
                           struct ra_band band, int64_t from, const uint32_t valid[Shape::Words])
{
    constexpr int Keys = Shape::Keys;
    int column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < Shape::Blocks; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* Column 8 c + e of the tile is seen from lo to hi, counted from this thread's first
             * column. */
            int64_t row = from + 16 * i + 8 * r - column;
            int lo = (int)ra_max(-Keys, ra_min(Keys, row + band.lo));
            int hi = (int)ra_max(-Keys, ra_min(Keys, row + band.hi));
            bool any = false;
#pragma unroll
            for (int c = 0; c < Keys / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    bool seen = valid[c / 4] >> (8 * (c % 4) + e + column) & 1;
                    seen = seen && lo <= 8 * c + e && 8 * c + e <= hi;
                    float &score = s[i][c][2 * r + e];
                    score = seen ? score : -CUDART_INF_F;
                    any = any || seen;
                }
            if (any)
                carry.most[i][r] = fmaxf(carry.most[i][r], RA_LOWEST_SCORE);
        }
}

/* The largest score of each row, this tile's and the carry's: of the numbers of this thread
 * alone. */
template <class Shape>
RA_DEVICE void find_largest(float (&largest)[Shape::Blocks][2], const typename Shape::Scores &s,
                            const struct carry<Shape> &carry)
{
#pragma unroll
    for (int i = 0; i < Shape::Blocks; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            largest[i][r] = carry.most[i][r];
#pragma unroll
            for (int c = 0; c < Shape::Keys / 8; c++)
                largest[i][r] = fmaxf(largest[i][r], fmaxf(s[i][c][2 * r], s[i][c][2 * r + 1]));
        }
}

/* Turns scores into weights under the largest score so far, and rescales the carry to it. */
template <class Shape>
RA_DEVICE void weigh(typename Shape::Scores &s, struct carry<Shape> &carry, float factor)
{
    constexpr int Blocks = Shape::Blocks;
    float largest[Blocks][2], base[Blocks][2], before[Blocks][2];
    find_largest<Shape>(largest, s, carry);
    bool grown = false;
#pragma unroll
    for (int i = 0; i < Blocks; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* A row that has seen nothing has no largest score: -inf - -inf would be NaN. */
            float now = most_of_row(largest[i][r]);
            base[i][r] = now == -CUDART_INF_F ? 0 : __fmul_rn(now, factor);
            /* Where nothing has grown this must be 2^0. A product and a difference that are rounded
             * as one would make it 1 + 10^-7, and of 10,000 tiles 1.001. */
            before[i][r] = ra_exp2(__fmul_rn(carry.most[i][r], factor) - base[i][r]);
            grown = grown || now > carry.most[i][r];
            carry.most[i][r] = now;
            carry.sum[i][r] *= before[i][r];
        }
    }

    /* The weights, and of each row this thread's part of their sum. */
#pragma unroll
    for (int i = 0; i < Blocks; i++)
#pragma unroll
        for (int c = 0; c < Shape::Keys / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &weight = s[i][c][e];
                weight = ra_exp2(weight * factor - base[i][e / 2]);
                carry.sum[i][e / 2] += weight;
            }

    /* Once a row has seen many keys its largest score stays the same, mostly: o need not change. */
    if (__any_sync(0xffffffff, grown)) {
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int c = 0; c < Shape::Dim / 8; c++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    carry.o[i][c][e] *= before[i][e / 2];
    }
}

/* What is done to the scores between the products. row0: this thread's first row; b0: the first key
 * of the tile; inside: by the band every row sees every key. */
template <class Shape>
RA_DEVICE void online_softmax(typename Shape::Scores &s, struct carry<Shape> &carry,
                              const struct forward &f, int head, int64_t row0, int64_t b0,
                              bool inside, const uint32_t valid[Shape::Words])
{
    if (!f.plain) {
        cap_scores<Shape>(s, f);
        if (Shape::Extras && f.kernel.slopes.data)
            add_slopes<Shape>(s, f, head, row0, b0);
    }
    if (inside && all_valid<Shape>(valid))
        note_seen<Shape>(carry);
    else
        hide_scores<Shape>(s, carry, f.kernel.band, row0 - b0, valid);
    weigh<Shape>(s, carry, f.factor);
}

/* o += weights v. What a thread has of two products side by side is just what it has to bring of
 * the next one's left matrix. */
template <class Shape>
RA_DEVICE void pv(typename Shape::Outputs &o, const typename Shape::Scores &weights, uint32_t v)
{
    constexpr int Blocks = Shape::Blocks;
    typedef typename Shape::Type Type;
#pragma unroll
    for (int c = 0; c < Shape::Keys / 16; c++) {
        uint32_t a[Blocks][4];
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[i][e] = Type::pair(weights[i][2 * c + e / 2][e % 2 * 2],
                                     weights[i][2 * c + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < Shape::Dim / 16; d++) {
            uint32_t y[4];
            ra_load_transposed(y, (v ^ 32 * d) + 16 * c * 2 * Shape::Dim);
#pragma unroll
            for (int i = 0; i < Blocks; i++) {
                Type::multiply(o[i][2 * d], a[i], y[0], y[1]);
                Type::multiply(o[i][2 * d + 1], a[i], y[2], y[3]);
            }
        }
    }
}

/* ---- The kernel: one tile of query rows of one head, against all the keys that it sees. */

template <class Shape>
__global__ void __launch_bounds__(Shape::Threads, 2)
    forward_kernel(const __grid_constant__ struct forward f)
{
#if __CUDA_ARCH__ < 900
    if constexpr (Shape::Needs_90)
        return;
#endif
    constexpr int Rows = Shape::Rows, Keys = Shape::Keys, Dim = Shape::Dim;
    extern __shared__ __align__(1024) uint16_t shared[];
    const struct ra_kernel &kernel = f.kernel;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    struct task task = task_of<Shape>(f, blockIdx.x);
    struct ra_range range =
        ra_keys_seen(kernel.band, {}, task.a0, ra_min(Rows, kernel.queries - task.a0), kernel.keys);
    int count = range.end > range.first ? (int)((range.end - range.first + Keys - 1) / Keys) : 0;
    if (count == 0 && !kernel.first && !kernel.last)
        return;

    /* The queries, and the first keys. */
    uint16_t *queries = shared, *stages = shared + Shape::Query_size;
    const uint16_t *k = row_at(kernel.k, task.b, range.first, task.g);
    const uint16_t *v = row_at(kernel.v, task.b, range.first, task.g);
    uint32_t valid[Keys / 32], next[Keys / 32], valid_queries[Rows / 32];
    const struct ra_tensor no_mask = {};
    valid_rows<Rows>(valid_queries, no_mask, task.b, task.a0, kernel.queries);
    valid_rows<Keys>(next, kernel.mask, task.b, range.first, range.end);
    if (count > 0) {
        copy_rows<Shape, Rows>(queries, row_at(kernel.q, task.b, task.a0, task.h), kernel.q.row,
                               valid_queries, (int)kernel.dim, f.chunks, threadIdx.x);
        load<Shape>(stages, f, k, v, next);
    }

    /* Where this thread's rows are for ldmatrix: matrices one below the other and then side by
     * side, for q and v; side by side first for k. */
    int row = warp * 16 * Shape::Blocks;
    uint32_t at_q = ra_shared(queries) + corner<Dim>(lane, row, 0, false);
    uint32_t at_k = ra_shared(stages) + corner<Dim>(lane, 0, 0, true);
    uint32_t at_v = ra_shared(stages + Shape::Key_size) + corner<Dim>(lane, 0, 0, false);
    int64_t row0 = task.a0 + row + lane / 4;

    struct carry<Shape> carry;
    clear(carry.o);
#pragma unroll
    for (int i = 0; i < Shape::Blocks; i++) {
        carry.most[i][0] = carry.most[i][1] = -CUDART_INF_F;
        carry.sum[i][0] = carry.sum[i][1] = 0;
    }

    /* One tile of keys after the other. Behind the barrier this tile is there, and all threads are
     * through with the one before: its place is free for the next. */
    for (int tile = 0; tile < count; tile++) {
        int64_t b0 = range.first + (int64_t)tile * Keys;
        uint32_t stage = tile % 2 * 2 * Shape::Key_size;
        ra_copies_wait<0>();
        __syncthreads();
#pragma unroll
        for (int w = 0; w < Keys / 32; w++)
            valid[w] = next[w];
        if (tile + 1 < count) {
            k += Keys * kernel.k.row;
            v += Keys * kernel.v.row;
            valid_rows<Keys>(next, kernel.mask, task.b, b0 + Keys, range.end);
            load<Shape>(stages + (2 * Shape::Key_size - stage), f, k, v, next);
        }
        /* Values that some of these rows do not see must be finite. The mark is a NaN in the
         * key. */
        bool inside = ra_all_seen(kernel.band, {}, task.a0, Rows, b0, Keys);
        if (!inside) {
            uint16_t *keys = stages + stage;
            zero_nonfinite<Shape>(keys + Shape::Key_size, Keys,
                                  [=](int key) { keys[key * Dim] = 0x7fff; });
        }
        typename Shape::Scores s;
        qk<Shape>(s, at_q, at_k + 2 * stage);
        online_softmax<Shape>(s, carry, f, task.h, row0, b0, inside, valid);
        pv<Shape>(carry.o, s, at_v + 2 * stage);
    }
    store(f, task, row0, carry);
}

template <class Shape>
static cudaError_t launch(const struct ra_kernel *kernel, cudaStream_t stream)
{
    struct forward f = prepare_forward(kernel, Shape::Rows);
    static_assert(Shape::Shared_bytes <= 99 << 10, "more shared memory than a block may have");

    return ra_launch(forward_kernel<Shape>, kernel->batch * kernel->heads * f.tiles, Shape::Threads,
                     Shape::Shared_bytes, stream, f);
}

/* What there is beside the keys leaves no registers for the larger tiles. */
template <class Type>
static cudaError_t launch_extras(const struct ra_kernel *kernel, cudaStream_t stream)
{
    int64_t dim = ra_kernel_widest(kernel);
    return dim <= 64    ? launch<tile_shape<Type, 64, 2, 64, true>>(kernel, stream)
           : dim <= 128 ? launch<tile_shape<Type, 128, 2, 32, true>>(kernel, stream)
                        : launch<tile_shape<Type, 256, 1, 32, true>>(kernel, stream);
}

template <class Type>
static cudaError_t launch_type(const struct ra_kernel *kernel, cudaStream_t stream)
{
    int capability;
    cudaError_t status = ra_ask_device(&capability, cudaDevAttrComputeCapabilityMajor);
    if (status != cudaSuccess)
        return status;
    if (capability < 8)
        return cudaErrorNotSupported;
    if (ra_has_extras(kernel))
        return launch_extras<Type>(kernel, stream);
    bool large = capability >= 9;
    int64_t dim = ra_kernel_widest(kernel);
    if (dim <= 64)
        return large ? launch<tile_shape<Type, 64, 2, 128>>(kernel, stream)
                     : launch<tile_shape<Type, 64, 2, 64>>(kernel, stream);
    if (dim <= 128)
        return large ? launch<tile_shape<Type, 128, 2, 64>>(kernel, stream)
                     : launch<tile_shape<Type, 128, 2, 32>>(kernel, stream);
    return launch<tile_shape<Type, 256, 1, 32>>(kernel, stream);
}

extern "C" cudaError_t ra_k03_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->batch * kernel->heads * kernel->queries == 0)
        return cudaSuccess;
    if (ra_has_steps(kernel->band_step))
        return cudaErrorNotSupported;
    return launch_for_type(kernel,
                           [=](auto type) { return launch_type<decltype(type)>(kernel, stream); });
}
