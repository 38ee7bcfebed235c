/* hopper_wide: the kernel of k06 in which keys stay, for D up to 256.
 *
 * Chapter 11e. dk and dv of 64 keys and 256 columns are all the registers that a warpgroup can have
 * for sums: so one warpgroup has dv, the other dk. Each has two of the four products:
 *
 *     first     s = k q^T        p = 2^(s factor - lse2)                     dv += p d_out
 *     second    dp = v d_out^T                              ds = p (dp - delta)  dk += ds q
 *     barrier                                           |                  |
 *
 * p goes from the first to the second through shared memory.
 */
#ifndef HOPPER_WIDE_H
#define HOPPER_WIDE_H

#include "hopper_backward.h"

template <class Shape> struct wide_memory : keys_memory<Shape> {
    float4 weights[Shape::Queries / 8][128]; /* as the threads of a warpgroup have them */
};

/* What dp - delta is to be multiplied by: the weights s, times the slope of the soft cap. */
template <class Shape>
RA_DEVICE void store_weights(struct wide_memory<Shape> &shared,
                             const float (&s)[Shape::Queries / 8][4],
                             const float (&slopes)[Shape::Queries / 8][4])
{
#pragma unroll
    for (int j = 0; j < Shape::Queries / 8; j++)
        shared.weights[j][my_number() % 128] =
            make_float4(s[j][0] * slopes[j][0], s[j][1] * slopes[j][1], s[j][2] * slopes[j][2],
                        s[j][3] * slopes[j][3]);
}

template <class Shape>
RA_DEVICE void load_weights(float (&s)[Shape::Queries / 8][4],
                            const struct wide_memory<Shape> &shared)
{
#pragma unroll
    for (int j = 0; j < Shape::Queries / 8; j++) {
        float4 x = shared.weights[j][my_number() % 128];
        s[j][0] = x.x;
        s[j][1] = x.y;
        s[j][2] = x.z;
        s[j][3] = x.w;
    }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    k06_wide(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    const int Stride = ra_panel_stride(Keys);
    static_assert(Keys == 64 && Queries == 64, "a warpgroup has all of them");
    extern __shared__ __align__(1024) char bytes[];
    struct wide_memory<Shape> &shared = *(struct wide_memory<Shape> *)bytes;
    const struct ra_kernel &x = f.x;

    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (idle(task.first, task.end, writes_keys(x)))
        return;
    if (begin_or_load<Shape>(shared, f, task, []() {}))
        return;

    float sum[Dim / 8][4] = {}; /* dv, or dk */
    bool first = ra_uniform(threadIdx.x / 128) == 1;
    bool capped = x.score.softcap > 0;
    find_seen<Shape>(shared, f, task);
    ra_barrier_wait(&shared.keys_full, 0);

    bool sound = all_sound<Shape>(shared);
    int steps = ra_uniform(shared.task.steps);
    for (int j = 0; j < steps; j++) {
        int stage = j % Shape::Stages;
        uint64_t k = ra_descriptor(ra_shared(shared.k), Stride);
        uint64_t v = ra_descriptor(ra_shared(shared.v), Stride);
        uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
        uint64_t d_out = ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
        const float *lses = &shared.lse2[stage][my_column()];
        const float *deltas = &shared.delta[stage][my_column()];
        auto lse2 = [=](int j, int) { return *(const float2 *)&lses[8 * j]; };
        auto delta = [=](int j, int) { return *(const float2 *)&deltas[8 * j]; };
        float product[Queries / 8][4], other[Queries / 8][4];
        uint32_t left[Queries / 16][4]; /* p, or ds */

        ra_barrier_wait(&shared.full[stage], j / Shape::Stages % 2);
        ra_products_begin();
        multiply_rows<Type, Dim, Keys, Queries>(product, first ? k : v, first ? q : d_out);
        ra_products_wait<0>();
        ra_pin(product);
        if (first) {
#pragma unroll
            for (int i = 0; i < Queries / 2; i++)
                other[i / 4][i % 4] = 1;
            if (capped)
                weigh_capped<Queries>(product, other, f, lse2,
                                      [](int, int) { return make_float2(0, 0); });
            else
                weigh<Queries>(product, f.factor, lse2);
            if (!(sound && shared.step[stage].inside))
                hide_queries<Shape>(product, other,
                                    sight_from<Shape>(shared, shared.step[stage].a0));
            store_weights(shared, product, other);
            pack<Type, Queries>(left, product);
        }
        ra_named_barrier(1, Shape::Threads);
        if (!first) {
            load_weights(other, shared);
            if (!(sound && shared.step[stage].inside))
                hide_queries<Shape>(other, product,
                                    sight_from<Shape>(shared, shared.step[stage].a0));
            slope<Type, Queries>(left, other, product, delta);
        }

        ra_pin(left);
        ra_pin(sum);
        ra_products_begin();
        add_product<Type, Dim, Queries>(sum, left, first ? d_out : q);
        ra_named_barrier(1, Shape::Threads); /* p was read */
        ra_products_wait<0>();
        ra_pin(sum);
        release_slot(&shared.empty[stage]);
    }
    if (first)
        put_keys<Shape>(x, x.dv, shared.task, 1, sum);
    else
        put_keys<Shape>(x, x.dk, shared.task, x.score.scale, sum);
#endif
}

template <class Type> static cudaError_t launch_wide(const struct ra_kernel *x, cudaStream_t stream)
{
    typedef backward_tile<Type, 256, 64, 64> Shape;
    return launch_keys<Shape, struct wide_memory<Shape>>(k06_wide<Shape>, x, 4, stream);
}

#endif
