/* k06: the forward with roles: one warpgroup only loads, the others only compute. For compute
 * capability 9.0; elsewhere k03 runs.
 *
 * Chapter 11d. New here: a warp that has nothing to do but to keep TMA busy, two tiles ahead of the
 * others; mbarriers in both directions, full and empty; registers that the loading warpgroup gives
 * to those that compute. Three of these, each with 64 rows of queries and a pace of its own: while
 * one is at its exponentials, the others' products keep the tensor cores busy.
 */
#include "hopper_roles.h"

template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    forward_kernel(const __grid_constant__ struct tile_forward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct tile_memory<Shape> &shared = *(struct tile_memory<Shape> *)bytes;
    if (threadIdx.x == 0) {
        shared.task = hopper_task_of<Shape>(f, blockIdx.x);
        for (int g = 0; g < Shape::Groups; g++)
            ra_barrier_init(&shared.full_carry[g], 1 + 32);
        begin_barriers<Shape>(shared);
    }
    __syncthreads();
    if (shared.task.keys == 0 && !f.kernel.first && !f.kernel.last)
        return;

    int warp = ra_uniform(threadIdx.x / 32);
    if (warp < 4) {
        ra_fewer_registers<Shape::Groups == 3 ? 32 : 40>();
        if (warp == 0) {
            load<Shape>(shared, f, shared.task, []() {});
        } else {
            sanitize<Shape>(shared, f, shared.task);
            if (reads_ahead<Shape>(f))
                load_carry(shared, f, warp - 1);
        }
    } else {
        ra_more_registers<Shape::Groups == 3 ? 160 : 232>();
        struct carry<Shape> carry;
        fold_tiles<Shape>(shared, f, shared.task, carry);
        if (reads_ahead<Shape>(f))
            ra_barrier_wait(&shared.full_carry[group_of()], 0);
        store(f, borders_of(f.kernel), shared.task, first_row(shared.task), carry,
              carry_ahead<Shape>{f, shared});
    }
#endif
}

extern "C" cudaError_t ra_k06_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_or_k03<true>(kernel, stream, [=](auto type, auto all) {
        typedef shape_of<decltype(type), decltype(all)> Shape;
        typedef shape_of<decltype(type), decltype(all), true> Extras;
        return ra_has_extras(kernel) ? launch_tiles<Extras>(forward_kernel<Extras>, kernel, stream)
                                     : launch_tiles<Shape>(forward_kernel<Shape>, kernel, stream);
    });
}
