/* k07, backward: attention's gradients by wgmma and TMA, in one kernel.
 *
 * Chapter 11e. As the first kernel of k06: a tile of keys stays, the queries pass, dk and dv are in
 * registers until the end. New here is dq = ds k, which k06 left to a second kernel. It is a product
 * over keys, of which each warpgroup has ds of its own 64: so ds goes to shared memory, and after a
 * barrier each warpgroup multiplies half of dq, over all keys, and adds it to memory. Other blocks add
 * to the same rows, in any order: who wants equal bits takes k06.
 *
 * A step, of a warpgroup, in the order in which products are issued; dq is added while dk is multiplied:
 *
 *     s = k q^T   dp = v d_out^T              dv += p d_out             dq = ds k   dk += ds q
 *                 p = 2^(s factor - lse2)     ds to shared memory                   add dq
 *                        ds = p (dp - delta)                  barrier
 *
 * ds has two places, in turn: so one barrier a step is enough. Who comes to the next barrier has read
 * what lies in the other place.
 */
#include "k06_wide.h"

/* ds lies as it is computed, a row for each key, in panels of 64 queries. */
template <class Shape> struct fused_memory : keys_memory<Shape> {
    static_assert(Shape::Stages == 2, "ds lies in the place of its stage");
    alignas(RA_PANEL_ALIGNMENT) char ds[2][2 * Shape::Keys * Shape::Queries];
};

template <class Shape>
__global__ void __launch_bounds__(K06_THREADS, 1)
    k07_fused(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    constexpr bool By_queries = dq_part<Shape>::By_queries;
    extern __shared__ __align__(1024) char bytes[];
    struct fused_memory<Shape> &shared = *(struct fused_memory<Shape> *)bytes;
    const struct ra_kernel &x = f.x;

    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (task.end <= task.first)
        return;
    if (begin_or_load<Shape>(shared, f, task))
        return;

    float dk[Dim / 8][4] = {}, dv[Dim / 8][4] = {};
    find_seen<Shape>(shared, f, task);
    ra_barrier_wait(&shared.keys_full, 0);
    take_out_keys<Shape>(shared.k, shared.spoiled);

    for (int j = 0; j < shared.task.steps; j++) {
        /* This warpgroup has half of the rows of k and v; and of dq = ds k, over all keys, half of the
         * rows or of the columns. Worked out each time: registers are scarce. */
        int stage = j % Shape::Stages, half = my_number() / 128;
        int rows = half * ra_panel_place(64, 0, Keys), panel = half * ra_panel_stride(Keys);
        uint64_t k = ra_descriptor(ra_shared(shared.k + rows), ra_panel_stride(Keys));
        uint64_t v = ra_descriptor(ra_shared(shared.v + rows), ra_panel_stride(Keys));
        uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
        uint64_t d_out = ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
        uint32_t p[Queries / 16][4], ds[Queries / 16][4];
        weigh_step<Shape>(p, ds, shared, &shared.full[stage], f, j, k, v, q, d_out);

        ra_pin(p);
        ra_pin(dv);
        ra_products_begin();
        add_product<Type, Dim, Queries>(dv, p, d_out);

        store_slopes<Shape>(shared.ds[stage], ds);
        ra_stores_before_wgmma();
        ra_named_barrier(1, K06_CONSUMERS);
        char *ds_part = shared.ds[stage] + (By_queries ? panel : 0);
        char *k_part = shared.k + (By_queries ? 0 : panel);
        float dq[dq_part<Shape>::Columns / 8][4];
        ra_pin(ds);
        ra_pin(dk);
        ra_products_begin();
        multiply_keys<Shape>(dq, ra_descriptor(ra_shared(ds_part), ra_panel_stride(Keys)),
                             ra_descriptor(ra_shared(k_part), ra_panel_stride(Keys)));
        add_product<Type, Dim, Queries>(dk, ds, q);
        ra_products_wait<1>();
        ra_pin(dv);
        ra_pin(dq);
        add_dq<Shape>(f, shared.task.b, shared.step[stage], dq);
        ra_products_wait<0>();
        ra_pin(dk);
        give(&shared.empty[stage]);
    }
    add_keys<Shape>(x, x.dk, shared.task, x.score.scale, dk);
    add_keys<Shape>(x, x.dv, shared.task, 1, dv);
#endif
}

template <class Type, int Dim, int Queries>
static cudaError_t launch_fused(const struct ra_kernel *x, cudaStream_t stream)
{
    /* In the L2 cache: q, d_out, and dq in float32. */
    typedef backward_tile<Type, Dim, 128, Queries> Shape;
    return launch_keys<Shape, struct fused_memory<Shape>>(k07_fused<Shape>, x, 8, stream);
}

extern "C" cudaError_t ra_k07_backward(const struct ra_kernel *x, cudaStream_t stream)
{
    if (x->deterministic)
        return ra_k06_backward(x, stream);
    bool takes;
    cudaError_t error = k06_takes(x, &takes);
    if (error != cudaSuccess || !takes)
        return error != cudaSuccess ? error : ra_k03_backward(x, stream);
    return in_pieces(x, [=](const struct ra_kernel *piece) {
        return launch_for_type(x, [=](auto type) {
            typedef decltype(type) Type;
            return piece->dim <= 64    ? launch_fused<Type, 64, 128>(piece, stream)
                   : piece->dim <= 128 ? launch_fused<Type, 128, 64>(piece, stream)
                                       : launch_wide<Type, true>(piece, stream);
        });
    });
}
