/* k04: the forward by wgmma: 64 x 16 by 16 x 128 numbers at a time, out of shared memory, by the
 * 128 threads of a warpgroup, while these go on. For compute capability 9.0; elsewhere k03 runs.
 *
 * Chapter 11d. New here: matrices that no thread loads, but that are described; tiles in panels of
 * 64 columns; products that are begun and waited for; and the fence between what threads write to
 * shared memory and what the tensor cores read there. A block of threads is one warpgroup, 64 rows
 * of queries. It copies keys and values by cp.async, as k03 does, but each of them while the other
 * is in use.
 */
#include "hopper_forward.h"

template <class Shape> struct shared_memory {
    alignas(1024) char q[Shape::Query_bytes];
    alignas(1024) char k[Shape::Key_bytes];
    alignas(1024) char v[Shape::Value_bytes];
    struct hopper_task task;
};

/* Begins to copy `Count` rows into panels, as one group: those from `from` on, `stride` numbers
 * apart; zeros for a row whose bit in `valid` is not set, and for columns from `dim` on. */
template <class Shape, int Count>
RA_DEVICE void copy_panels(char *to, const uint16_t *from, int64_t stride,
                           const uint32_t valid[(Count + 31) / 32], int dim)
{
    constexpr int Step = Shape::Threads / Shape::Chunks;
    int column = threadIdx.x % Shape::Chunks * 8, row = threadIdx.x / Shape::Chunks;
#pragma unroll
    for (int i = 0; i < Count; i += Step)
        ra_copy16(ra_shared(to) + ra_panel_offset(row + i, column, Count),
                  from + (row + i) * stride + column,
                  valid[i / 32] >> row >> i % 32 & 1 && column < dim);
    ra_copies_end();
}

/* Waits until at most one group is under way, of all threads, and lets wgmma see what was
 * copied. */
RA_DEVICE void await_copies(void)
{
    ra_copies_wait<1>();
    ra_stores_before_wgmma();
    __syncthreads();
}

/* Keys, or values, of one tile; an empty group behind the last one. */
template <class Shape>
RA_DEVICE void load(char *to, const struct hopper_forward &f, const struct ra_tensor &x,
                    int64_t dim, const struct hopper_task &task, int tile)
{
    int64_t b0 = task.first + (int64_t)tile * Shape::Keys;
    uint32_t valid[Shape::Words];
    if (tile >= task.count)
        return ra_copies_end();
    valid_rows<Shape::Keys>(valid, f.kernel.mask, task.b, b0, task.first + task.keys);
    copy_panels<Shape, Shape::Keys>(to, row_at(x, task.b, b0, task.g), x.row, valid, (int)dim);
}

/* One tile of keys. While S is used up the next keys are copied, and then the next values while the
 * next S is multiplied: between reading a slot and writing it again there is a barrier. */
template <class Shape>
RA_DEVICE void fold(struct shared_memory<Shape> &shared, const struct hopper_forward &f, int tile,
                    struct tiles unmasked_tiles, int row, struct carry<Shape> &carry)
{
    const struct hopper_task &task = shared.task;
    uint32_t allowed[Shape::Words];
    if (f.kernel.mask.data)
        valid_rows<Shape::Keys>(allowed, f.kernel.mask, task.b,
                                task.first + (int64_t)tile * Shape::Keys, task.first + task.keys);
    bool unmasked = is_unmasked<Shape>(f, unmasked_tiles, tile, allowed);

    await_copies();
    if (!unmasked) {
        ra_copies_wait<0>();
        __syncthreads();
        zero_nonfinite_values<Shape>(shared.k, shared.v, threadIdx.x, 1);
    }
    typename Shape::Scores s;
    qk<Shape>(s, ra_descriptor(ra_shared(shared.q), 0), ra_descriptor(ra_shared(shared.k), 0));
    __syncthreads();
    load<Shape>(shared.k, f, f.kernel.k, f.kernel.dim, task, tile + 1);

    online_softmax<Shape>(s, carry, f, task, tile, unmasked, row, allowed);
    uint32_t p[Shape::Keys / 16][4];
    pack<Shape>(p, s);

    await_copies();
    pv<Shape>(carry.o, p, ra_descriptor(ra_shared(shared.v), ra_panel_stride(Shape::Keys)));
    __syncthreads();
    load<Shape>(shared.v, f, f.kernel.v, f.kernel.dim_value, task, tile + 1);
}

template <class Shape>
__global__ void __launch_bounds__(128, Shape::Dim == 64    ? 3
                                       : Shape::Dim == 128 ? 2
                                                           : 1)
    forward_kernel(const __grid_constant__ struct hopper_forward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct shared_memory<Shape> &shared = *(struct shared_memory<Shape> *)bytes;
    if (threadIdx.x == 0)
        shared.task = hopper_task_of<Shape>(f, blockIdx.x);
    __syncthreads();
    const struct hopper_task &task = shared.task;
    if (task.keys == 0 && !f.kernel.first && !f.kernel.last)
        return;

    uint32_t valid[Shape::Rows / 32];
    valid_rows<Shape::Rows>(valid, RA_NO_TENSOR, task.b, task.a0, f.kernel.queries);
    copy_panels<Shape, Shape::Rows>(shared.q, row_at(f.kernel.q, task.b, task.a0, task.h),
                                    f.kernel.q.row, valid, (int)f.kernel.dim);
    load<Shape>(shared.k, f, f.kernel.k, f.kernel.dim, task, 0);
    load<Shape>(shared.v, f, f.kernel.v, f.kernel.dim_value, task, 0);

    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, count = task.count;
    struct tiles unmasked = unmasked_for_all(task);
    struct carry<Shape> carry;
    begin(carry);
    for (int tile = 0; tile < count; tile++)
        fold(shared, f, tile, unmasked, row, carry);
    store(f, task, task.a0 + row, carry);
#endif
}

extern "C" cudaError_t ra_k04_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_or_k03<false>(kernel, stream, [=](auto type, auto all) {
        typedef decltype(all) Widths;
        typedef hopper_tile<decltype(type), Widths, Widths::Dim == 256 ? 64 : 128, 1> Shape;
        return launch_hopper<Shape, struct shared_memory<Shape>>(forward_kernel<Shape>, 128, kernel,
                                                                 stream);
    });
}
