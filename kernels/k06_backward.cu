/* k06, backward: attention's gradients by wgmma and TMA, in two kernels.
 *
 * Chapter 11d. In the first a tile of keys stays and the queries pass: dk and dv are in registers until
 * the end. In the second a tile of queries stays and the keys pass: so is dq. Every row of a result has
 * one block that adds to it, and equal inputs give equal bits. For that s and dp are multiplied twice:
 * seven products, where k07 has five.
 *
 * A step of the first, of a warpgroup with 64 keys, is in the order in which products are issued:
 *
 *     s = k q^T   dp = v d_out^T                          dv += p d_out   dk += ds q
 *                 p = 2^(s factor - lse2)   ds = p (dp - delta)
 *
 * Keys are the rows, so p and ds are transposed already; and they lie in registers as the next product
 * wants its left matrix. Nothing but what TMA loads goes through shared memory.
 */
#include "k06.h"

/* ---- dk and dv. A key that is not finite spoils its own row of s, and what is hidden there becomes 0:
 * here no product runs over keys. */
template <class Shape>
__global__ void __launch_bounds__(K06_THREADS, 1)
    k06_dk_dv(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    extern __shared__ __align__(1024) char bytes[];
    struct keys_memory<Shape> &shared = *(struct keys_memory<Shape> *)bytes;
    const struct ra_kernel &x = f.x;

    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (task.end <= task.first)
        return;
    begin(shared, task);
    int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        ra_fewer_registers<K06_LOAD_REGISTERS>();
        load_queries(shared, f, task);
        return;
    }
    ra_more_registers<K06_MULTIPLY_REGISTERS>();

    float dk[Dim / 8][4] = {}, dv[Dim / 8][4] = {};
    int mine = ra_panel_place(64 * (warpgroup - 1), 0, Keys);
    uint64_t k = ra_descriptor(ra_shared(shared.k + mine), ra_panel_stride(Keys));
    uint64_t v = ra_descriptor(ra_shared(shared.v + mine), ra_panel_stride(Keys));
    bool plain = !find_seen(shared, f, task) && x.score.softcap <= 0;
    ra_barrier_wait(&shared.keys_full, 0);

    struct turn turn = {0, 0};
    for (int i = 0; i < f.group; i++)
        for (int a0 = shared.task.first; a0 < shared.task.end; a0 += Queries, advance<Shape::Stages>(turn)) {
            int stage = turn.stage;
            uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
            uint64_t d_out =
                ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
            bool whole = plain && inside_band<Shape>(f, shared.task, a0);
            float s[Queries / 8][4], dp[Queries / 8][4];
            uint32_t p[Queries / 16][4], ds[Queries / 16][4];

            ra_barrier_wait(&shared.full[stage], turn.parity);
            ra_products_begin();
            multiply_rows<Type, Dim, Keys, Queries>(s, k, q);
            multiply_rows<Type, Dim, Keys, Queries>(dp, v, d_out);
            ra_products_wait<1>();
            ra_pin(s);
            if (whole)
                weigh_queries(shared, f, stage, s);
            ra_products_wait<0>();
            ra_pin(dp);
            slope_queries(shared, f, stage, a0, whole, p, ds, s, dp);

            ra_pin(p);
            ra_pin(ds);
            ra_pin(dk);
            ra_pin(dv);
            ra_products_begin();
            add_product<Type, Dim, Queries>(dv, p, d_out);
            add_product<Type, Dim, Queries>(dk, ds, q);
            ra_products_wait<0>();
            ra_pin(dk);
            ra_pin(dv);
            give(&shared.empty[stage]);
        }
    add_keys<Dim>(x, x.dk, shared.task, x.score.scale, dk);
    add_keys<Dim>(x, x.dv, shared.task, 1, dv);
#endif
}

template <class Type, int Dim, int Queries>
static cudaError_t launch_dk_dv(const struct ra_kernel *x, cudaStream_t stream)
{
    typedef hopper_tile<Type, Dim, 128, Queries> Shape;
    return launch_keys<Shape, struct keys_memory<Shape>>(k06_dk_dv<Shape>, x, 4, stream);
}

extern "C" cudaError_t ra_k06_backward(const struct ra_kernel *x, cudaStream_t stream)
{
    bool takes;
    cudaError_t error = k06_takes(x, &takes);
    if (error != cudaSuccess || !takes)
        return error != cudaSuccess ? error : ra_k03_backward(x, stream);
    return in_pieces(x, [=](const struct ra_kernel *piece) {
        return launch_for_type(x, [=](auto type) {
            typedef decltype(type) Type;
            return piece->dim <= 64 ? launch_dk_dv<Type, 64, 128>(piece, stream)
                                    : launch_dk_dv<Type, 128, 64>(piece, stream);
        });
    });
}
