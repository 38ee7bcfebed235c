/* k03: attention on tensor cores, forward, in float16 or bfloat16; k03_backward.cu has the backward.
 *
 * Chapter 11. New here: matrix products by mma.sync, 16 x 8 x 16 at a time; operands that ldmatrix
 * brings out of swizzled shared memory; and the next tile of keys, copied by cp.async while this one
 * is computed. Scores and weights never leave the registers.
 *
 * A block of threads has a tile of query rows of one head; each of its warps has Blocks x 16 of
 * them, whole rows, and folds one tile of keys after the other into them: ra_tile_forward, 32
 * threads wide.
 */
#include "ra_device.h"

/* The shape of a tile. Dim: D, rounded up with zeros. Blocks: of 16 query rows, for each of Warps
 * warps. Keys: of a tile. All of these are known to the compiler, so that every loop over registers
 * unrolls. */
template <class Type_, int Dim_, int Blocks_, int Keys_, int Warps_ = 4> struct tile_shape {
    typedef Type_ Type;
    static constexpr int Dim = Dim_, Blocks = Blocks_, Keys = Keys_;
    static constexpr int Warps = Warps_, Threads = 32 * Warps, Rows = Warps * 16 * Blocks;
    static constexpr int Row_bytes = 2 * Dim, Chunks = Dim / 8;
    static constexpr int Key_bytes = Keys * Row_bytes, Query_bytes = Rows * Row_bytes;

    /* The larger tiles need the shared memory of compute capability 9.0 for two blocks of threads at
     * once, and its registers: for older GPUs they are not compiled. */
    static constexpr bool Needs_90 = Dim <= 128 && Dim * Keys > 4096;

    /* The queries, and twice, one for now and one for next: keys and values. */
    static constexpr int Shared_bytes = Query_bytes + 4 * Key_bytes;
};

/* What the launcher works out once for all threads. */
struct forward {
    struct ra_kernel x;
    float factor;      /* a score times this is its power of two */
    float over_cap;    /* 1 / soft cap */
    bool plain;        /* that is all: no soft cap, and factor > 0 */
    bool chunks;       /* rows of q, k and v can be read 16 bytes at a time */
    bool pairs;        /* rows of o and the carry can be reached two numbers at a time */
    int tiles;         /* of query rows */
    int heads_at_once; /* a set of heads that go together: see launch */
};

/* One row of an array (B, rows, heads, D) of 16-bit numbers. */
RA_DEVICE const char *row_at(const struct ra_tensor &x, int64_t b, int64_t row, int64_t h)
{
    return (const char *)x.data + 2 * ra_place(x, b, row, h);
}

/* One number of an array (B, rows, heads) of float32. */
RA_DEVICE float *float_at(const struct ra_tensor &x, int64_t b, int64_t row, int64_t h)
{
    return (float *)x.data + ra_place(x, b, row, h);
}

/* Begins to copy rows into shared memory, swizzled: `Count` rows from `from` on, `stride` bytes
 * apart; zeros for a row whose bit in `there` is not set, and for columns from `dim` on. */
template <class Shape, int Count>
RA_DEVICE void copy_rows(char *shared, const char *from, int64_t stride,
                         const uint32_t there[Count / 32], int dim, bool chunks)
{
    /* All threads together copy Step rows at a time. Step divides 32, so which word a bit is in does
     * not depend on the thread. */
    constexpr int Step = Shape::Threads / Shape::Chunks, Steps = Count / Step;
    int chunk = threadIdx.x % Shape::Chunks, row = threadIdx.x / Shape::Chunks;
    char *to = shared + row * Shape::Row_bytes;
    from += row * stride + 16 * chunk;
    if (chunks) {
#pragma unroll
        for (int i = 0; i < Steps; i++, from += Step * stride) {
            bool copied = there[i * Step / 32] >> row >> i * Step % 32 & 1 && 8 * chunk < dim;
            ra_copy16(ra_shared(to) + i * Step * Shape::Row_bytes +
                          16 * ra_swizzle(row + i * Step, chunk),
                      from, copied);
        }
        return;
    }

    /* Number by number: rows that do not lie at multiples of 16 bytes. */
#pragma unroll
    for (int w = 0; w < Count / 32; w++)
#pragma unroll 1
        for (int r = 32 * w + row; r < 32 * w + 32; r += Step, from += Step * stride) {
            unsigned short *place =
                (unsigned short *)(shared + r * Shape::Row_bytes + 16 * ra_swizzle(r, chunk));
#pragma unroll 1
            for (int c = 0; c < 8; c++) {
                bool copied = there[w] >> r % 32 & 1 && 8 * chunk + c < dim;
                place[c] = copied ? ((const unsigned short *)from)[c] : 0;
            }
        }
}

/* Which of the `Count` keys from b0 on are there: before `end`, and not hidden by the mask. Every
 * warp finds out for itself, 32 keys at a time. */
template <int Count>
RA_DEVICE void keys_there(uint32_t there[Count / 32], const struct ra_tensor &mask, int64_t b,
                          int64_t b0, int64_t end)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int w = 0; w < Count / 32; w++) {
        int64_t key = b0 + 32 * w + lane;
        bool seen = key < end;
        if (mask.data && seen)
            seen = ((const bool *)mask.data)[b * mask.batch + key * mask.row];
        there[w] = __ballot_sync(0xffffffff, seen);
    }
}

/* Two neighbouring numbers of a row, columns c and c + 1; what is beyond column dim is left out. */
template <class Type>
RA_DEVICE void store_pair(const struct ra_tensor &x, int64_t at, int c, int dim, bool pairs,
                          float first, float second)
{
    if (x.type == RA_FLOAT32) {
        float *to = (float *)x.data + at + c;
        if (pairs && c < dim) {
            *(float2 *)to = make_float2(first, second);
        } else {
            if (c < dim)
                to[0] = first;
            if (c + 1 < dim)
                to[1] = second;
        }
    } else {
        uint16_t *to = (uint16_t *)x.data + at + c;
        uint32_t both = Type::pair(first, second);
        if (c < dim)
            to[0] = (uint16_t)both;
        if (c + 1 < dim)
            to[1] = (uint16_t)(both >> 16);
    }
}

/* This thread's numbers of a row of the carry, two of every eight columns; 0 beyond column dim. All
 * are asked for before the first is used: they are on their way together. */
template <int Columns>
RA_DEVICE void load_row(float2 to[Columns], const struct ra_tensor &x, int64_t at, int dim,
                        bool pairs)
{
    const float *row = (const float *)x.data + at;
    if (pairs) {
#pragma unroll
        for (int c = 0; c < Columns; c++)
            to[c] = 8 * c < dim ? *(const float2 *)(row + 8 * c) : make_float2(0, 0);
        return;
    }
#pragma unroll
    for (int c = 0; c < Columns; c++) {
        to[c].x = 8 * c < dim ? row[8 * c] : 0;
        to[c].y = 8 * c + 1 < dim ? row[8 * c + 1] : 0;
    }
}

/* The largest, and the sum, of the numbers of the four threads that share a row. */
RA_DEVICE float most_of_row(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

RA_DEVICE float sum_of_row(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* One tile of query rows of one head, against all the keys that it sees. */
template <class Shape>
__global__ void __launch_bounds__(Shape::Threads, 2)
    forward_kernel(const __grid_constant__ struct forward f)
{
#if __CUDA_ARCH__ < 900
    if constexpr (Shape::Needs_90)
        return;
#endif
    typedef typename Shape::Type Type;
    constexpr int Blocks = Shape::Blocks, Keys = Shape::Keys, Row_bytes = Shape::Row_bytes;
    constexpr int Columns = Shape::Dim / 8; /* of 8 numbers, in o */
    extern __shared__ __align__(1024) char shared[];
    const struct ra_kernel &x = f.x;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = (int)x.dim;

    /* Which tile is this? Tiles of the last rows come first: under a causal mask they have the most
     * work. Heads come in sets whose keys and values stay in the L2 cache, and query heads that
     * read the same keys side by side. */
    int H = (int)x.heads, G = (int)x.key_heads, all = (int)x.batch * H;
    int set = blockIdx.x / (f.heads_at_once * f.tiles) * f.heads_at_once;
    int place = blockIdx.x - set * f.tiles, heads = min(f.heads_at_once, all - set);
    int head = set + place % heads, b = head / H;
    int g = head % H / (H / G), h = ra_query_head(x.head_map, H, G, g, head % H % (H / G));
    int64_t a0 = (int64_t)(f.tiles - 1 - place / heads) * Shape::Rows;

    /* Which keys does it see? */
    struct ra_range range = ra_keys_seen(x.band, a0, ra_least(Shape::Rows, x.queries - a0), x.keys);
    int count = range.end > range.first ? (int)((range.end - range.first + Keys - 1) / Keys) : 0;
    if (count == 0 && !x.first && !x.last)
        return;

    /* The queries, and the first keys. */
    char *queries = shared, *stages = shared + Shape::Query_bytes;
    const char *k = row_at(x.k, b, range.first, g), *v = row_at(x.v, b, range.first, g);
    uint32_t there[Keys / 32], next[Keys / 32], rows_there[Shape::Rows / 32];
    const struct ra_tensor no_mask = {};
    keys_there<Shape::Rows>(rows_there, no_mask, b, a0, x.queries);
    keys_there<Keys>(next, x.mask, b, range.first, range.end);
    if (count > 0) {
        copy_rows<Shape, Shape::Rows>(queries, row_at(x.q, b, a0, h), 2 * x.q.row, rows_there, dim,
                                      f.chunks);
        copy_rows<Shape, Keys>(stages, k, 2 * x.k.row, next, dim, f.chunks);
        copy_rows<Shape, Keys>(stages + Shape::Key_bytes, v, 2 * x.v.row, next, dim, f.chunks);
        ra_copies_end();
    }

    /* Where this thread's rows of 16 bytes are, for ldmatrix, in chunk 0 of block 0: matrices one
     * below the other and then side by side, for q and v; side by side first for k. Chunk 2 i is
     * reached by ^ 32 i, since a row begins at a multiple of its length. */
    int below = lane % 16, beside = lane / 16, below_k = lane % 8 + lane / 16 * 8;
    uint32_t at_q = ra_shared(queries) + (warp * 16 * Blocks + below) * Row_bytes +
                    16 * ra_swizzle(below, beside);
    uint32_t at_k =
        ra_shared(stages) + below_k * Row_bytes + 16 * ra_swizzle(below_k, lane / 8 % 2);
    uint32_t at_v =
        ra_shared(stages) + Shape::Key_bytes + below * Row_bytes + 16 * ra_swizzle(below, beside);

    /* The carry. Number [i][r] is of row 16 i + 8 r + lane / 4 of the warp; o has columns 8 c + 2
     * (lane % 4) and the next. Sums are this thread's part of the row, until the end. */
    float o[Blocks][Columns][4], most[Blocks][2], sum[Blocks][2];
#pragma unroll
    for (int i = 0; i < Blocks; i++) {
#pragma unroll
        for (int c = 0; c < Columns; c++)
            o[i][c][0] = o[i][c][1] = o[i][c][2] = o[i][c][3] = 0;
        most[i][0] = most[i][1] = -CUDART_INF_F;
        sum[i][0] = sum[i][1] = 0;
    }
    int64_t row0 = a0 + warp * 16 * Blocks + lane / 4;
    int column = 2 * (lane % 4);

    /* One tile of keys after the other. Behind the barrier this tile is there, and all threads are
     * through with the one before: its place is free for the next. */
    for (int tile = 0; tile < count; tile++) {
        int64_t b0 = range.first + (int64_t)tile * Keys;
        uint32_t stage = tile % 2 * 2 * Shape::Key_bytes;
        ra_copies_wait<0>();
        __syncthreads();
#pragma unroll
        for (int w = 0; w < Keys / 32; w++)
            there[w] = next[w];
        if (tile + 1 < count) {
            char *to = stages + (2 * Shape::Key_bytes - stage);
            k += Keys * 2 * x.k.row;
            v += Keys * 2 * x.v.row;
            keys_there<Keys>(next, x.mask, b, b0 + Keys, range.end);
            copy_rows<Shape, Keys>(to, k, 2 * x.k.row, next, dim, f.chunks);
            copy_rows<Shape, Keys>(to + Shape::Key_bytes, v, 2 * x.v.row, next, dim, f.chunks);
            ra_copies_end();
        }

        /* Scores: s = q k^T. Of the 16 steps of D = 256 half are unrolled: for all of them there
         * are not enough registers. */
        float s[Blocks][Keys / 8][4];
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int c = 0; c < Keys / 8; c++)
                s[i][c][0] = s[i][c][1] = s[i][c][2] = s[i][c][3] = 0;
#pragma unroll 8
        for (int d = 0; d < Shape::Dim / 16; d++) {
            uint32_t a[Blocks][4];
#pragma unroll
            for (int i = 0; i < Blocks; i++)
                ra_load_matrices(a[i], (at_q ^ 32 * d) + 16 * i * Row_bytes);
#pragma unroll
            for (int c = 0; c < Keys / 16; c++) {
                uint32_t y[4];
                ra_load_matrices(y, ((at_k + stage) ^ 32 * d) + 16 * c * Row_bytes);
#pragma unroll
                for (int i = 0; i < Blocks; i++) {
                    Type::multiply(s[i][2 * c], a[i], y[0], y[1]);
                    Type::multiply(s[i][2 * c + 1], a[i], y[2], y[3]);
                }
            }
        }

        /* A soft cap, or a scale that is not positive: the power of two itself, factor is 1. */
        if (!f.plain) {
            float cap = x.score.softcap;
#pragma unroll
            for (int e = 0; e < Blocks * Keys / 2; e++) {
                float &score = s[e / (Keys / 2)][e % (Keys / 2) / 4][e % 4];
                score *= x.score.scale;
                score = RA_LOG2E * (cap > 0 ? cap * ra_tanh(score * f.over_cap) : score);
            }
        }

        /* Who sees nothing of whom: -inf. Most tiles are inside the band, and all keys there. */
        bool whole = ra_all_seen(x.band, a0, Shape::Rows, b0, Keys);
#pragma unroll
        for (int w = 0; w < Keys / 32; w++)
            whole = whole && there[w] == 0xffffffff;
        if (!whole) {
#pragma unroll
            for (int i = 0; i < Blocks; i++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    /* Column 8 c + e of the tile is seen from lo to hi, counted from this thread's
                     * first column. */
                    int64_t from = row0 + 16 * i + 8 * r - b0 - column;
                    int lo = (int)ra_most(-Keys, ra_least(Keys, from + x.band.lo));
                    int hi = (int)ra_most(-Keys, ra_least(Keys, from + x.band.hi));
#pragma unroll
                    for (int c = 0; c < Keys / 8; c++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            uint32_t bit = there[c / 4] >> (8 * (c % 4) + e + column) & 1;
                            if (!bit || 8 * c + e < lo || 8 * c + e > hi)
                                s[i][c][2 * r + e] = -CUDART_INF_F;
                        }
                }
        }

        /* The largest score of each row so far. */
        float largest[Blocks][2], base[Blocks][2], before[Blocks][2];
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                largest[i][r] = most[i][r];
#pragma unroll
                for (int c = 0; c < Keys / 8; c++)
                    largest[i][r] = fmaxf(largest[i][r], fmaxf(s[i][c][2 * r], s[i][c][2 * r + 1]));
            }
        bool grown = false;
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                /* A row that has seen nothing has no largest score: -inf - -inf would be NaN. */
                float now = most_of_row(largest[i][r]);
                base[i][r] = now == -CUDART_INF_F ? 0 : __fmul_rn(now, f.factor);

                /* Where nothing has grown this must be 2^0. A product and a difference that are
                 * rounded as one would make it 1 + 10^-7, and of 10,000 tiles 1.001. */
                before[i][r] = ra_exp2(__fmul_rn(most[i][r], f.factor) - base[i][r]);
                grown = grown || now > most[i][r];
                most[i][r] = now;
                sum[i][r] *= before[i][r];
            }

            /* Weights, and their sum. */
#pragma unroll
        for (int i = 0; i < Blocks; i++)
#pragma unroll
            for (int c = 0; c < Keys / 8; c++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &weight = s[i][c][e];
                    weight = ra_exp2(weight * f.factor - base[i][e / 2]);
                    sum[i][e / 2] += weight;
                }

        /* Once a row has seen many keys its largest score stays the same, mostly. */
        if (__any_sync(0xffffffff, grown)) {
#pragma unroll
            for (int i = 0; i < Blocks; i++)
#pragma unroll
                for (int c = 0; c < Columns; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        o[i][c][e] *= before[i][e / 2];
        }

        /* o += weights v. What a thread has of two products side by side is just what it has to
         * bring of the next one's left matrix. */
#pragma unroll
        for (int c = 0; c < Keys / 16; c++) {
            uint32_t a[Blocks][4];
#pragma unroll
            for (int i = 0; i < Blocks; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[i][e] = Type::pair(s[i][2 * c + e / 2][e % 2 * 2],
                                         s[i][2 * c + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int d = 0; d < Shape::Dim / 16; d++) {
                uint32_t y[4];
                ra_load_transposed(y, ((at_v + stage) ^ 32 * d) + 16 * c * Row_bytes);
#pragma unroll
                for (int i = 0; i < Blocks; i++) {
                    Type::multiply(o[i][2 * d], a[i], y[0], y[1]);
                    Type::multiply(o[i][2 * d + 1], a[i], y[2], y[3]);
                }
            }
        }
    }

    /* The keys of this launch and those of the carry, together; and, at the end, the results. */
#pragma unroll
    for (int i = 0; i < Blocks; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t a = row0 + 16 * i + 8 * r;
            bool there = a < x.queries;
            float sums = sum_of_row(sum[i][r]), largest = most[i][r] * f.factor;
            float here = 1, before = 0;
            if (!x.first && there) {
                float old = *float_at(x.carry_max, b, a, h) * RA_LOG2E;
                float both = fmaxf(old, largest);
                before = old == -CUDART_INF_F ? 0 : ra_exp2(old - both);
                here = largest == -CUDART_INF_F ? 0 : ra_exp2(largest - both);
                sums = sums * here + *float_at(x.carry_sum, b, a, h) * before;
                largest = both;
            }
            if (x.last) {
                float over = sums > 0 ? 1 / sums : 0;
                here *= over;
                before *= over;
            }

            /* All four threads of the row have read the carry before one of them writes it. */
            __syncwarp();
            if (!there)
                continue;
            if (lane % 4 == 0 && x.last) {
                *float_at(x.lse, b, a, h) =
                    sums > 0 ? RA_LN2 * largest + logf(sums) : -CUDART_INF_F;
            } else if (lane % 4 == 0) {
                *float_at(x.carry_max, b, a, h) = RA_LN2 * largest;
                *float_at(x.carry_sum, b, a, h) = sums;
            }

            /* And o, in the same way. */
            int64_t at = ra_place(x.o, b, a, h), carry_at = ra_place(x.carry_o, b, a, h);
            float2 old[Columns] = {};
            if (!x.first)
                load_row<Columns>(old, x.carry_o, carry_at + column, dim - column, f.pairs);
#pragma unroll
            for (int c = 0; c < Columns; c++) {
                o[i][c][2 * r] = o[i][c][2 * r] * here + old[c].x * before;
                o[i][c][2 * r + 1] = o[i][c][2 * r + 1] * here + old[c].y * before;
            }
            if (x.last && f.pairs && x.o.type != RA_FLOAT32) {
#pragma unroll
                for (int c = 0; c < Columns; c++)
                    if (8 * c + column < dim)
                        *(uint32_t *)((uint16_t *)x.o.data + at + 8 * c + column) =
                            Type::pair(o[i][c][2 * r], o[i][c][2 * r + 1]);
            } else {
                const struct ra_tensor &to = x.last ? x.o : x.carry_o;
#pragma unroll
                for (int c = 0; c < Columns; c++)
                    store_pair<Type>(to, x.last ? at : carry_at, 8 * c + column, dim, f.pairs,
                                     o[i][c][2 * r], o[i][c][2 * r + 1]);
            }
        }
}

/* May rows of x be read and written two numbers at a time? */
static bool in_pairs(struct ra_tensor x, int64_t dim)
{
    uintptr_t pair = 2 * (uintptr_t)ra_type_bytes(x.type);
    return !x.data || ((uintptr_t)x.data % pair == 0 && dim % 2 == 0 && x.batch % 2 == 0 &&
                       x.row % 2 == 0 && x.head % 2 == 0);
}

template <class Shape> static cudaError_t launch(const struct ra_kernel *x, cudaStream_t stream)
{
    struct forward f = {*x};
    float factor = x->score.scale * RA_LOG2E;
    f.plain = x->score.softcap == 0 && factor > 1e-30f;
    f.factor = f.plain ? factor : 1;
    f.over_cap = x->score.softcap > 0 ? 1 / x->score.softcap : 0;
    f.chunks =
        ra_in_chunks(x->q, x->dim) && ra_in_chunks(x->k, x->dim) && ra_in_chunks(x->v, x->dim);
    f.pairs = (!x->last || in_pairs(x->o, x->dim)) &&
              ((x->first && x->last) || in_pairs(x->carry_o, x->dim));
    f.tiles = (int)((x->queries + Shape::Rows - 1) / Shape::Rows);
    static_assert(Shape::Shared_bytes <= 99 << 10, "a GPU has not the shared memory");

    /* As many heads at once as half of an L2 cache of 50 MB holds, but enough of them that the
     * blocks with little work, which come last, can fill what is left by those with much. */
    int64_t heads = x->batch * x->heads, bytes = 4 * x->dim * ra_most(1, x->keys);
    int64_t fit = (24 << 20) / bytes * (x->heads / x->key_heads);
    int64_t at_once = ra_most(ra_most(1, fit), 1024 / f.tiles);
    f.heads_at_once = (int)ra_least(at_once, heads);

    cudaError_t status = cudaFuncSetAttribute(
        forward_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::Shared_bytes);
    if (status != cudaSuccess)
        return status;
    forward_kernel<Shape>
        <<<(unsigned)(heads * f.tiles), Shape::Threads, Shape::Shared_bytes, stream>>>(f);
    return cudaGetLastError();
}

template <class Type> static cudaError_t launch_type(const struct ra_kernel *x, cudaStream_t stream)
{
    int device, capability;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device);
    if (status != cudaSuccess)
        return status;
    if (capability < 8)
        return cudaErrorNotSupported;
    bool large = capability >= 9;
    if (x->dim <= 64)
        return large ? launch<tile_shape<Type, 64, 2, 128>>(x, stream)
                     : launch<tile_shape<Type, 64, 2, 64>>(x, stream);
    if (x->dim <= 128)
        return large ? launch<tile_shape<Type, 128, 2, 64>>(x, stream)
                     : launch<tile_shape<Type, 128, 2, 32>>(x, stream);
    return launch<tile_shape<Type, 256, 1, 32>>(x, stream);
}

extern "C" cudaError_t ra_k03_forward(const struct ra_kernel *x, cudaStream_t stream)
{
    if (x->batch * x->heads * x->queries == 0)
        return cudaSuccess;
    if (x->dim > 256)
        return cudaErrorNotSupported;
    switch (x->q.type) {
    case RA_FLOAT16:
        return launch_type<ra_float16>(x, stream);
    case RA_BFLOAT16:
        return launch_type<ra_bfloat16>(x, stream);
    default:
        return cudaErrorNotSupported;
    }
}
