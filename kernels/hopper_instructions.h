/* hopper_instructions: what GPUs of compute capability 9.0 add, each a few lines: barriers in
 * shared memory that count bytes, copies of whole boxes by TMA, and products by a warpgroup.
 *
 * Chapter 11d. Like ra_device.h, which it goes on from: instructions of PTX that CUDA C has no
 * words for. Tiles lie in shared memory as swizzled_panels.h says.
 */
#ifndef HOPPER_INSTRUCTIONS_H
#define HOPPER_INSTRUCTIONS_H

#include <cuda.h>

#include "ra_device.h"
#include "swizzled_panels.h"

/* Instructions of the GPU's own, which no other has. nvcc compiles a kernel for other GPUs, too,
 * where they are left out; a launcher asks which GPU it has. */
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RA_HOPPER_ONLY(...)
#define RA_IS_HOPPER 0
#else
#define RA_HOPPER_ONLY(...) asm volatile(__VA_ARGS__)
#define RA_IS_HOPPER 1
#endif

/* What is the same for all threads of a warp, so that the compiler knows it, too. */
RA_DEVICE int ra_uniform(int x)
{
    return __shfl_sync(0xffffffff, x, 0);
}

/* ---- mbarriers. One counts arrivals, and bytes that are still to come; when both are complete its
 * phase is over and it begins again. Phases are told apart by their parity: 0, 1, 0, ... */

typedef uint64_t ra_barrier;

RA_DEVICE void ra_barrier_init(ra_barrier *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ra_shared(barrier)),
                 "r"(arrivals));
}

/* After the last of them: TMA and the other blocks of a cluster may use them. */
RA_DEVICE void ra_barriers_ready(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

RA_DEVICE void ra_barrier_arrive(ra_barrier *barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(ra_shared(barrier))
                 : "memory");
}

/* Arrives, and says how many bytes will come in this phase. */
RA_DEVICE void ra_barrier_expect(ra_barrier *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ra_shared(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Arrives at the same barrier of another block of the cluster. */
RA_DEVICE void ra_barrier_arrive_at(ra_barrier *barrier, int block)
{
    asm volatile("{\n"
                 "    .reg .b32 there;\n"
                 "    mapa.shared::cluster.u32 there, %0, %1;\n"
                 "    mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(ra_shared(barrier)),
                 "r"(block)
                 : "memory");
}

/* Waits until the phase of this parity is over. Of a barrier that is fresh, the phase before its
 * first one, of parity 1, is. */
RA_DEVICE void ra_barrier_wait(ra_barrier *barrier, int parity)
{
    asm volatile("{\n"
                 "    .reg .pred over;\n"
                 "again:\n"
                 "    mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 over, [%0], %1;\n"
                 "    @!over bra again;\n"
                 "}" ::"r"(ra_shared(barrier)),
                 "r"(parity)
                 : "memory");
}

/* What was written to shared memory by stores may now be read by wgmma and TMA. */
RA_DEVICE void ra_stores_before_wgmma(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier of `threads` threads, of which several can be in use: number 1 to 15. And one that
 * tells all of them whether it is true for one. */
RA_DEVICE void ra_named_barrier(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

RA_DEVICE bool ra_named_barrier_or(int number, int threads, bool mine)
{
    int any;
    asm volatile("{\n"
                 "    .reg .pred in, out;\n"
                 "    setp.ne.b32 in, %3, 0;\n"
                 "    barrier.cta.red.or.pred out, %1, %2, in;\n"
                 "    selp.b32 %0, 1, 0, out;\n"
                 "}"
                 : "=r"(any)
                 : "r"(number), "r"(threads), "r"((int)mine)
                 : "memory");
    return any;
}

/* A barrier of all threads of all blocks of a cluster; those that have ended are not waited for. */
RA_DEVICE void ra_cluster_barrier(void)
{
    RA_HOPPER_ONLY("barrier.cluster.arrive.aligned;" ::: "memory");
    RA_HOPPER_ONLY("barrier.cluster.wait.aligned;" ::: "memory");
}

/* Of all threads of the block, or of the cluster if there are more blocks in it. */
template <int Blocks> RA_DEVICE void ra_block_barrier(void)
{
    if (Blocks == 1)
        __syncthreads();
    else
        ra_cluster_barrier();
}

/* Takes registers from this warpgroup, or gives it more, up to this many for each of its
 * threads. */
template <int Registers> RA_DEVICE void ra_fewer_registers(void)
{
    RA_HOPPER_ONLY("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers> RA_DEVICE void ra_more_registers(void)
{
    RA_HOPPER_ONLY("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

/* ---- TMA: one thread has a box of 128 bytes, 64 columns or of float32 32, by some rows copied
 * into a panel of shared memory, or out of it. What is beyond the array is 0 there, and is not
 * written. */

RA_DEVICE void ra_load_box(void *to, const CUtensorMap *map, ra_barrier *barrier, int column,
                           int row, int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(ra_shared(to)),
                 "l"(map), "r"(ra_shared(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* The same for the first two blocks of a cluster: the box comes to the same place in both, and the
 * barrier of each is told. */
RA_DEVICE void ra_load_box_twice(void *to, const CUtensorMap *map, ra_barrier *barrier, int column,
                                 int row, int head, int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(ra_shared(to)),
                 "l"(map), "r"(ra_shared(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch),
                 "h"((uint16_t)3)
                 : "memory");
}

/* A whole tile of `Rows` rows of Dim columns, panel beside panel. The barrier is told of its bytes.
 * Of a pair of blocks each loads half of the rows, for both. */
template <int Dim, int Rows, int Blocks = 1>
RA_DEVICE void ra_load_tile(char *to, const CUtensorMap *map, ra_barrier *barrier, int row,
                            int head, int batch)
{
    static_assert(Blocks == 1 || (Blocks == 2 && Rows % 16 == 0),
                  "not two halves of whole swizzles");
    int first = Blocks == 1 ? 0 : Rows / 2 * (blockIdx.x % 2);
#pragma unroll
    for (int panel = 0; panel < Dim / 64; panel++) {
        char *slot = to + panel * ra_panel_stride(Rows) + first * RA_PANEL_ROW;
        if (Blocks == 1)
            ra_load_box(slot, map, barrier, 64 * panel, row, head, batch);
        else
            ra_load_box_twice(slot, map, barrier, 64 * panel, row + first, head, batch);
    }
}

/* The other way: a panel of shared memory to a box of the array. Then, as for copies, the end of a
 * group; and a wait until the groups of this thread have been read out of shared memory, or are
 * there. */
RA_DEVICE void ra_store_box(const CUtensorMap *map, const void *from, int column, int row, int head,
                            int batch)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
                 " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(ra_shared(from)), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

/* The same, but the float32 numbers of the panel are added to those of the array. */
RA_DEVICE void ra_add_box(const CUtensorMap *map, const void *from, int column, int row, int head,
                          int batch)
{
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(ra_shared(from)), "r"(column), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}

RA_DEVICE void ra_stores_end(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

RA_DEVICE void ra_stores_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

RA_DEVICE void ra_stores_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Four 8 x 8 matrices of 16-bit numbers into shared memory: the reverse of ra_load_matrices. */
RA_DEVICE void ra_store_matrices(uint32_t shared, const uint32_t x[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* ---- wgmma: the 128 threads of a warpgroup multiply 64 x 16 by 16 x N numbers, out of shared
 * memory, while they go on. Thread t of warp w has of the result, in d[j][2 r + e], row 16 w + t /
 * 4 + 8 r and column 8 j + 2 (t % 4) + e: what mma.sync would have left there. */

/* Before the first product, and after registers were written that one uses. */
RA_DEVICE void ra_products_begin(void)
{
    RA_HOPPER_ONLY("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products; and waits until at most `Left` groups are under way. */
RA_DEVICE void ra_products_end(void)
{
    RA_HOPPER_ONLY("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int Left> RA_DEVICE void ra_products_wait(void)
{
    RA_HOPPER_ONLY("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}

/* The compiler does not know that products go on behind its back: it may not move what reads or
 * writes these registers across this. */
template <int Rows, int Columns> RA_DEVICE void ra_pin(float (&x)[Rows][Columns])
{
#pragma unroll
    for (int i = 0; i < Rows * Columns; i++)
        asm volatile("" : "+f"(x[i / Columns][i % Columns])::"memory");
}

template <int Rows, int Columns> RA_DEVICE void ra_pin(uint32_t (&x)[Rows][Columns])
{
#pragma unroll
    for (int i = 0; i < Rows * Columns; i++)
        asm volatile("" : "+r"(x[i / Columns][i % Columns])::"memory");
}

/* The two forms, for N columns of a type:
 *
 *     ra_wgmma<Type, N>::multiply<A_transposed, B_transposed>(d, a, b, add)     a and b described
 *     ra_wgmma<Type, N>::multiply<B_transposed>(d, a, b, add)               a in registers
 *
 * d = a b, or d += a b if `add`. b is its transpose (N x 16) as it lies in memory, or the matrix
 * itself (16 x N) if B_transposed; a is 64 x 16, or 16 x 64 if A_transposed. */
template <class Type, int N> struct ra_wgmma;

/* The names of operands: RA_TEN(3) is of numbers 30 to 39. And of the accumulators, as operands. */
#define RA_TEN(x)                                                                          \
    "%" #x "0, %" #x "1, %" #x "2, %" #x "3, %" #x "4, %" #x "5, %" #x "6, %" #x "7, %" #x \
    "8, %" #x "9, "
#define RA_TO_30 RA_TEN() RA_TEN(1) RA_TEN(2)
#define RA_TO_60 RA_TO_30 RA_TEN(3) RA_TEN(4) RA_TEN(5)
#define RA_TO_120 RA_TO_60 RA_TEN(6) RA_TEN(7) RA_TEN(8) RA_TEN(9) RA_TEN(10) RA_TEN(11)
#define RA_D1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define RA_D2(j) RA_D1(j), RA_D1(j + 1)
#define RA_D8(j) RA_D2(j), RA_D2(j + 2), RA_D2(j + 4), RA_D2(j + 6)

/* The rest are the numbers of the operands behind the accumulators, and these. */
#define RA_WGMMA(Type, type, N, names, a, b, add, transposed_a, transposed_b, a2, b2, add2,      \
                 transposed2, ...)                                                               \
    template <> struct ra_wgmma<Type, N> {                                                       \
        template <bool A_transposed, bool B_transposed>                                          \
        static __device__ __forceinline__ void multiply(float (&d)[N / 8][4], uint64_t x,        \
                                                        uint64_t y, bool more)                   \
        {                                                                                        \
            RA_HOPPER_ONLY(                                                                      \
                "{ .reg .pred add; setp.ne.b32 add, %" #add                                      \
                ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names  \
                "}, %" #a ", %" #b ", add, 1, 1, %" #transposed_a ", %" #transposed_b "; }"      \
                : __VA_ARGS__                                                                    \
                : "l"(x), "l"(y), "r"((int)more), "n"(A_transposed), "n"(B_transposed));         \
        }                                                                                        \
                                                                                                 \
        template <bool B_transposed>                                                             \
        static __device__ __forceinline__ void multiply(float (&d)[N / 8][4],                    \
                                                        const uint32_t (&x)[4], uint64_t y,      \
                                                        bool more)                               \
        {                                                                                        \
            RA_HOPPER_ONLY("{ .reg .pred add; setp.ne.b32 add, %" #add2                          \
                           ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type  \
                           " {" names "}, {%" #a ", %" #b ", %" #add ", %" #a2 "}, %" #b2        \
                           ", add, 1, 1, %" #transposed2 "; }"                                   \
                           : __VA_ARGS__                                                         \
                           : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(y), "r"((int)more), \
                             "n"(B_transposed));                                                 \
        }                                                                                        \
    };
#define RA_WGMMA_BOTH(...)                     \
    RA_WGMMA(ra_bfloat16, "bf16", __VA_ARGS__) \
    RA_WGMMA(ra_float16, "f16", __VA_ARGS__)
RA_WGMMA_BOTH(64, RA_TO_30 "%30, %31", 32, 33, 34, 35, 36, 35, 36, 37, 38, RA_D8(0))
RA_WGMMA_BOTH(80, RA_TO_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39", 40, 41, 42, 43, 44,
              43, 44, 45, 46, RA_D8(0), RA_D2(8))
RA_WGMMA_BOTH(128, RA_TO_60 "%60, %61, %62, %63", 64, 65, 66, 67, 68, 67, 68, 69, 70, RA_D8(0),
              RA_D8(8))
RA_WGMMA_BOTH(176, RA_TO_60 RA_TEN(6) RA_TEN(7) "%80, %81, %82, %83, %84, %85, %86, %87", 88, 89,
              90, 91, 92, 91, 92, 93, 94, RA_D8(0), RA_D8(8), RA_D2(16), RA_D2(18), RA_D2(20))
RA_WGMMA_BOTH(192, RA_TO_60 RA_TEN(6) RA_TEN(7) RA_TEN(8) "%90, %91, %92, %93, %94, %95", 96, 97,
              98, 99, 100, 99, 100, 101, 102, RA_D8(0), RA_D8(8), RA_D8(16))
RA_WGMMA_BOTH(256, RA_TO_120 "%120, %121, %122, %123, %124, %125, %126, %127", 128, 129, 130, 131,
              132, 131, 132, 133, 134, RA_D8(0), RA_D8(8), RA_D8(16), RA_D8(24))

/* ---- For the host. */

/* Can TMA take the array? Its addresses and strides are multiples of 16 bytes, a stride is not 0
 * and is below 2^40 bytes, and rows are numbered in 32 bits. */
static inline bool ra_in_boxes(struct ra_tensor x, int64_t rows, int64_t dim)
{
    int64_t bytes = ra_type_bytes(x.type), far = (int64_t)1 << 40;
    return ra_in_chunks(x, dim) && x.row > 0 && x.head > 0 && x.batch > 0 && rows > 0 &&
           rows < (int64_t)1 << 31 && x.row * bytes < far && x.head * bytes < far &&
           x.batch * bytes < far;
}

/* The map by which TMA finds boxes of 128 bytes by `box` rows in an array (batch, rows, heads,
 * dim). The driver makes it; the runtime knows where that is. */
static cudaError_t ra_make_map(CUtensorMap *map, struct ra_tensor x, int64_t batch, int64_t rows,
                               int64_t heads, int64_t dim, int box)
{
    typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static void *function; /* threads that find it at once all find the same */
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaSuccess;
    if (!function)
        error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                 cudaEnableDefault, &found);
    if (error != cudaSuccess || !function)
        return error != cudaSuccess ? error : cudaErrorNotSupported;

    /* A stride that is never taken may be anything, but TMA wants to like it. */
    int64_t bytes = ra_type_bytes(x.type);
    cuuint64_t sizes[] = {(cuuint64_t)dim, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)batch};
    cuuint64_t strides[] = {(cuuint64_t)(rows > 1 ? x.row * bytes : 16),
                            (cuuint64_t)(heads > 1 ? x.head * bytes : 16),
                            (cuuint64_t)(batch > 1 ? x.batch * bytes : 16)};
    cuuint32_t box_sizes[] = {(cuuint32_t)(RA_PANEL_ROW / bytes), (cuuint32_t)box, 1, 1};
    cuuint32_t steps[] = {1, 1, 1, 1};
    CUtensorMapDataType type = x.type == RA_FLOAT32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : x.type == RA_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUresult result =
        ((encode *)function)(map, type, 4, x.data, sizes, strides, box_sizes, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Does it pay to pair blocks, each with `tile` rows, if both then go through all that either of
 * them sees: a range, seen(first, count)? A pair wastes time if rows are missing from the last
 * pair, counted in parts of `part`; and if one block sees less than the other, which is asked in
 * the middle of the rows. Up to a 32nd of either will do. */
template <class Seen> static bool ra_pairs_pay(int64_t rows, int tile, int part, const Seen &seen)
{
    int64_t parts = (rows + part - 1) / part, pair = 2 * tile / part,
            first = ra_max(0, rows / 2 - tile);
    auto count = [=](int64_t begin, int64_t rows) {
        struct ra_range range = seen(begin, rows);
        return ra_max(0, range.end - range.first);
    };
    int64_t each = count(first, tile) + count(first + tile, tile);
    return 32 * ((pair - parts % pair) % pair) <= parts &&
           32 * (2 * count(first, 2 * tile) - each) <= each;
}

/* Is the current device one that these instructions are compiled for? */
static inline cudaError_t ra_ask_hopper(bool *hopper)
{
    int major;
    cudaError_t error = ra_ask_device(&major, cudaDevAttrComputeCapabilityMajor);
    *hopper = error == cudaSuccess && major == 9;
    return error;
}

#endif
