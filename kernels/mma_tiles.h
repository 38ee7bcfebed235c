/* mma_tiles: tiles of 16-bit numbers in shared memory, for k03 and the kernels after it: how rows
 * are copied into them, matrices loaded out of them, and non-finite numbers taken out.
 *
 * Chapter 11.
 */
#ifndef MMA_TILES_H
#define MMA_TILES_H

#include "ra_device.h"

/* What every shape of a tile has. Dim: D, rounded up with zeros. All of it is known to the
 * compiler, so that every loop over registers unrolls. */
template <class Type_, int Dim_, int Warps_> struct tile {
    typedef Type_ Type;
    static constexpr int Dim = Dim_, Chunks = Dim / 8; /* of 16 bytes, in a row */
    static constexpr int Warps = Warps_, Threads = 32 * Warps;
};

/* ---- Into shared memory. */

/* One row of an array (B, rows, heads, D) of 16-bit numbers. */
RA_DEVICE const uint16_t *row_at(const struct ra_tensor &x, int64_t b, int64_t row, int64_t h)
{
    return (const uint16_t *)x.data + ra_offset(x, b, row, h);
}

/* Which of the `Count` rows from `first` on are there: before `end`, and not hidden by the mask. A
 * bit for each. Every warp finds out for itself, 32 rows at a time. */
template <int Count>
RA_DEVICE void valid_rows(uint32_t valid[(Count + 31) / 32], const struct ra_tensor &mask,
                          int64_t b, int64_t first, int64_t end)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int w = 0; w < (Count + 31) / 32; w++) {
        int64_t row = first + 32 * w + lane;
        valid[w] = __ballot_sync(0xffffffff, row < end && ra_allowed(mask, b, row));
    }
}

/* Begins to copy `Count` rows into shared memory, swizzled: those from `from` on, `stride` numbers
 * apart; zeros for a row whose bit in `valid` is not set, and for columns from `dim` on. `chunks`:
 * they can be read 16 bytes at a time. `thread` is threadIdx.x. */
template <class Shape, int Count>
RA_DEVICE void copy_rows(uint16_t *shared, const uint16_t *from, int64_t stride,
                         const uint32_t valid[(Count + 31) / 32], int dim, bool chunks,
                         unsigned thread)
{
    /* All threads together copy Step rows at a time. Step divides 32, so which word a bit is in
     * does not depend on the thread. */
    constexpr int Step = Shape::Threads / Shape::Chunks;
    int chunk = thread % Shape::Chunks, row = thread / Shape::Chunks;
    from += row * stride + 8 * chunk;
    if (chunks) {
        uint32_t to = ra_shared(shared + row * Shape::Dim);
#pragma unroll
        for (int i = 0; i < Count; i += Step, from += Step * stride) {
            bool copied = valid[i / 32] >> row >> i % 32 & 1 && 8 * chunk < dim;
            ra_copy16(to + 2 * i * Shape::Dim + 16 * ra_swizzle(row + i, chunk), from, copied);
        }
        return;
    }

    /* Number by number: rows that do not lie at multiples of 16 bytes. */
#pragma unroll
    for (int first = 0; first < Count; first += 32)
#pragma unroll 1
        for (int r = row; r < (Count < 32 ? Count : 32); r += Step, from += Step * stride) {
            uint16_t *to = shared + (first + r) * Shape::Dim + 8 * ra_swizzle(r, chunk);
#pragma unroll 1
            for (int c = 0; c < 8; c++) {
                bool copied = valid[first / 32] >> r & 1 && 8 * chunk + c < dim;
                to[c] = copied ? from[c] : 0;
            }
        }
}

/* ---- Numbers that are infinite or NaN. A query that does not see a key gives it weight 0, but 0
 * times NaN is NaN. So where some query does not see all of a tile, and a product runs over its
 * keys, such numbers become 0 first, and their keys are marked: a query that does see one gets NaN
 * by the mark. */

/* Adds 0 times the 8 numbers of a chunk to two sums that are 0. They stay 0 if all are finite. */
template <class Type> RA_DEVICE uint32_t detect_nonfinite(uint32_t sums, uint4 chunk)
{
    sums = Type::detect_nonfinite(Type::detect_nonfinite(sums, chunk.x), chunk.y);
    return Type::detect_nonfinite(Type::detect_nonfinite(sums, chunk.z), chunk.w);
}

template <class Type> RA_DEVICE bool is_nonfinite(uint4 chunk)
{
    return detect_nonfinite<Type>(0, chunk) != 0;
}

/* Sets chunks that are not finite to 0, and calls mark(i) for chunk i. For `threads` threads
 * together, once the chunks are there; any(x) is a barrier of theirs, true if x is for one of them.
 * When it returns they all see the same. All threads of a warp go round the loops equally often,
 * and vote: see is_unmasked of hopper_forward.h. */
template <class Type, class Any, class Mark>
RA_DEVICE void zero_nonfinite(uint4 *chunks, int count, int thread, int threads, const Any &any,
                              const Mark &mark)
{
    uint32_t sums = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += threads) {
        int i = first + thread;
        if (i < count)
            sums = detect_nonfinite<Type>(sums, chunks[i]);
    }
    if (!__any_sync(0xffffffff, any(sums != 0)))
        return;
#pragma unroll 1
    for (int first = 0; first < count; first += threads) {
        int i = first + thread;
        if (i < count && is_nonfinite<Type>(chunks[i])) {
            chunks[i] = make_uint4(0, 0, 0, 0);
            mark(i);
        }
    }
    any(false);
}

/* The same for all threads of a block and whole rows: mark(row). */
template <class Shape, class Mark>
RA_DEVICE void zero_nonfinite(uint16_t *rows, int count, const Mark &mark)
{
    zero_nonfinite<typename Shape::Type>(
        (uint4 *)rows, count * Shape::Chunks, threadIdx.x, Shape::Threads,
        [](bool mine) { return __syncthreads_or(mine); }, [&](int i) { mark(i / Shape::Chunks); });
}

/* ---- Matrices out of shared memory. */

/* Where this thread's row of 16 bytes is for ldmatrix, in bytes from the beginning of a matrix with
 * rows of `Width` numbers: of the 16 x 16 numbers from (row, column) on, whose quarters come upper
 * left, lower left, upper right, lower right; or, `across`, upper left, upper right, lower left,
 * lower right. */
template <int Width> RA_DEVICE uint32_t corner(int lane, int row, int column, bool across)
{
    int second = lane / 8 % 2, third = lane / 16;
    row += lane % 8 + 8 * (across ? third : second);
    return 2 * Width * row + 16 * ra_swizzle(row, column / 8 + (across ? second : third));
}

template <int Rows, int Columns> RA_DEVICE void clear(float (&c)[Rows][Columns][4])
{
#pragma unroll
    for (int e = 0; e < Rows * Columns * 4; e++)
        c[e / 4 / Columns][e / 4 % Columns][e % 4] = 0;
}

/* ---- For the host. */

/* May rows of x be read and written two numbers at a time? */
static inline bool in_pairs(struct ra_tensor x, int64_t dim)
{
    uintptr_t pair = 2 * (uintptr_t)ra_type_bytes(x.type);
    return !x.data || ((uintptr_t)x.data % pair == 0 && dim % 2 == 0 && x.batch % 2 == 0 &&
                       x.row % 2 == 0 && x.head % 2 == 0);
}

/* Calls `launch` with a number type that tensor cores have, if the inputs are of one, and if D and
 * D_v are not too large. */
template <class Launch>
static cudaError_t launch_for_type(const struct ra_kernel *kernel, const Launch &launch)
{
    if (ra_kernel_widest(kernel) > RA_MOST_DIM)
        return cudaErrorNotSupported;
    switch (kernel->q.type) {
    case RA_FLOAT16:
        return launch(ra_float16());
    case RA_BFLOAT16:
        return launch(ra_bfloat16());
    default:
        return cudaErrorNotSupported;
    }
}

#endif
