/* k05: the forward whose tiles are copied by TMA: one thread asks for a box of 64 columns by some
 * rows, and an mbarrier tells when its bytes have come. For compute capability 9.0; elsewhere k03
 * runs.
 *
 * Chapter 11d. New here: maps of arrays, which the host makes; boxes, which come swizzled into
 * panels, with zeros beyond the array; and mbarriers, which count bytes and have phases. No thread
 * computes an address any more. All else is k04.
 */
#include "hopper_forward.h"

template <class Shape> struct shared_memory {
    alignas(1024) char q[Shape::Query_bytes];
    alignas(1024) char k[Shape::Key_bytes];
    alignas(1024) char v[Shape::Value_bytes];
    struct hopper_task task;
    ra_barrier full_q, full_k, full_v;
};

/* Asks for keys, or values, of one tile, if there is one. The barrier's phase is over when they are
 * there: of tile number 0 that of parity 0, then 1, then 0. */
template <class Shape>
RA_DEVICE void load(char *to, const CUtensorMap *map, ra_barrier *full,
                    const struct hopper_task &task, int tile)
{
    if (threadIdx.x > 0 || tile >= task.count)
        return;
    ra_barrier_expect(full, Shape::Key_bytes);
    ra_load_tile<Shape::Dim, Shape::Keys>(to, map, full, (int)task.first + tile * Shape::Keys,
                                          task.g, task.b);
}

/* One tile of keys. Between reading a slot and having it written again there is a barrier. */
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

    ra_barrier_wait(&shared.full_k, tile % 2);
    if (!unmasked) {
        ra_barrier_wait(&shared.full_v, tile % 2);
        zero_nonfinite_values<Shape>(shared.k, shared.v, threadIdx.x, 1);
    }
    typename Shape::Scores s;
    qk<Shape>(s, ra_descriptor(ra_shared(shared.q), 0), ra_descriptor(ra_shared(shared.k), 0));
    __syncthreads();
    load<Shape>(shared.k, &f.k_map, &shared.full_k, task, tile + 1);

    online_softmax<Shape>(s, carry, f, task, tile, unmasked, row, allowed);
    uint32_t p[Shape::Keys / 16][4];
    pack<Shape>(p, s);

    ra_barrier_wait(&shared.full_v, tile % 2);
    pv<Shape>(carry.o, p, ra_descriptor(ra_shared(shared.v), ra_panel_stride(Shape::Keys)));
    __syncthreads();
    load<Shape>(shared.v, &f.v_map, &shared.full_v, task, tile + 1);
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
    if (threadIdx.x == 0) {
        shared.task = hopper_task_of<Shape>(f, blockIdx.x);
        ra_barrier_init(&shared.full_q, 1);
        ra_barrier_init(&shared.full_k, 1);
        ra_barrier_init(&shared.full_v, 1);
        ra_barriers_ready();
    }
    __syncthreads();
    const struct hopper_task &task = shared.task;
    if (task.keys == 0 && !f.kernel.first && !f.kernel.last)
        return;
    if (threadIdx.x == 0) {
        ra_barrier_expect(&shared.full_q, Shape::Query_bytes);
        ra_load_tile<Shape::Dim, Shape::Rows>(shared.q, &f.q_map, &shared.full_q, (int)task.a0,
                                              task.h, task.b);
    }
    load<Shape>(shared.k, &f.k_map, &shared.full_k, task, 0);
    load<Shape>(shared.v, &f.v_map, &shared.full_v, task, 0);

    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, count = task.count;
    struct tiles unmasked = unmasked_for_all(task);
    struct carry<Shape> carry;
    begin(carry);
    ra_barrier_wait(&shared.full_q, 0);
    for (int tile = 0; tile < count; tile++)
        fold(shared, f, tile, unmasked, row, carry);
    store(f, task, task.a0 + row, carry);
#endif
}

extern "C" cudaError_t ra_k05_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_or_k03<false>(kernel, stream, [=](auto type, auto all) {
        typedef decltype(all) Widths;
        typedef hopper_tile<decltype(type), Widths, Widths::Dim == 256 ? 64 : 128, 1> Shape;
        return launch_hopper<Shape, struct shared_memory<Shape>>(forward_kernel<Shape>, 128, kernel,
                                                                 stream);
    });
}
