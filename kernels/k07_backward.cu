/* k07, backward: attention's gradients by wgmma and TMA, in one kernel.
 *
 * Chapter 11e. As the first kernel of k06: a tile of keys stays, the queries pass, dk and dv are in
 * registers until the end. New here is dq = ds k, which k06 left to a second kernel. It is a
 * product over keys, of which each warpgroup has ds of its own 64: so ds goes to shared memory, and
 * when that of all is there, one warpgroup multiplies dq. They take turns, a step each, and the
 * others go on. dq goes to shared memory, too, and from there TMA adds it to memory, told to by a
 * thread that has nothing to load. Other blocks add to the same rows, in any order: who wants equal
 * bits takes k06.
 *
 * A step, of a warpgroup, in the order in which products are issued; in brackets what it does in
 * its turn:
 *
 *     s = k q^T   dp = v d_out^T             dv += p d_out         dk += ds q [dq = ds k]
 *                 p = 2^(s factor - lse2)   ds to shared memory             [dq to shared memory]
 *                        ds = p (dp - delta)
 *
 * Each warpgroup has a slot from which it reads ds. `ds_full` says that all have written there.
 * That it was read needs no barrier: before a warpgroup writes there again it has had a turn of its
 * own, and waited for ds of all, that of the reader too. dq has one slot, or two, with barriers
 * before and behind TMA.
 */
#include "hopper_backward.h"

template <class Shape> struct fused_memory : keys_memory<Shape> {
    static_assert(Shape::Queries == 64, "dq of a step is for one warpgroup");
    static constexpr int Slots = Shape::Dim == 64 ? 2 : 1; /* of dq */
    /* A row for each key; and panels of 32 columns of float32. */
    alignas(RA_PANEL_ALIGNMENT) char ds[Shape::Groups][2 * Shape::Keys * Shape::Queries];
    char dq[Slots][4 * Shape::Queries * Shape::Dim];
    ra_barrier ds_full[Shape::Groups], dq_full[Slots], dq_empty[Slots];
};

/* This warpgroup's ds, into shared memory as it is computed: a row for each key, in panels of 64
 * queries. Four 8 x 8 matrices at a time. */
template <class Shape>
RA_DEVICE void store_slopes(char *to, const uint32_t (&ds)[Shape::Queries / 16][4])
{
    constexpr int Keys = Shape::Keys;
    int lane = ra_afresh(threadIdx.x) % 32, row = my_row() % Keys / 16 * 16 + lane % 16;
    uint32_t first = ra_shared(to) + ra_panel_offset(row, lane / 16 * 8, Keys);
#pragma unroll
    for (int i = 0; i < Shape::Queries / 16; i++)
        ra_store_matrices(ra_panel_along(first, 16 * i, Keys), ds[i]);
}

/* dq = ds k over all keys: both have a row for each key. */
template <class Shape>
RA_DEVICE void multiply_keys(float (&dq)[Shape::Dim / 8][4], uint64_t ds, uint64_t k)
{
    constexpr int Keys = Shape::Keys;
#pragma unroll
    for (int key = 0; key < Keys; key += 16)
        ra_wgmma<typename Shape::Type, Shape::Dim>::template multiply<true, true>(
            dq, ra_descriptor_beyond(ds, ra_panel_offset(key, 0, Keys)),
            ra_descriptor_beyond(k, ra_panel_offset(key, 0, Keys)), key > 0);
    ra_products_end();
}

/* This thread's numbers of dq, into the slot from which they are added. In a panel a number of
 * float32 takes the place of two of 16 bits. Every other pair of threads writes 16 columns further
 * on, or back: so the 16 threads that write at a time reach all banks of shared memory. */
template <int Dim> RA_DEVICE void store_dq(char *slot, float scale, const float (&dq)[Dim / 8][4])
{
    bool far = my_column() >= 4;
    int first = ra_panel_offset(my_row() % 64, 2 * my_column(), 64) ^ (far ? 64 : 0);
#pragma unroll
    for (int j = 0; j < Dim / 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            *(float2 *)(slot + ra_panel_along(first, 16 * j, 64) + ra_panel_offset(8 * r, 0, 64)) =
                make_float2(scale * (far ? dq[j ^ 2][2 * r] : dq[j][2 * r]),
                            scale * (far ? dq[j ^ 2][2 * r + 1] : dq[j][2 * r + 1]));
}

/* dq of step j, by the warpgroup whose turn it is, when ds of all is there. Then dq of the step
 * before has been stored: its warpgroup did that before it stored ds of this step. */
template <class Shape>
RA_DEVICE void multiply_dq(struct fused_memory<Shape> &shared, int j, struct pipeline_state turn,
                           float scale)
{
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Slots = fused_memory<Shape>::Slots;
    int slot = j % Slots;
    float dq[Dim / 8][4];
    ra_barrier_wait(&shared.ds_full[turn.stage], turn.parity);
    ra_products_begin();
    multiply_keys<Shape>(dq, ra_descriptor(ra_shared(shared.ds[turn.stage]), ra_panel_stride(Keys)),
                         ra_descriptor(ra_shared(shared.k), ra_panel_stride(Keys)));
    ra_products_wait<0>();
    ra_pin(dq);
    ra_barrier_wait(&shared.dq_empty[slot], j / Slots % 2 ^ 1);
    store_dq<Dim>(shared.dq[slot], scale, dq);
    ra_stores_before_wgmma();
    ra_barrier_arrive(&shared.dq_full[slot]);
}

/* The thread that has TMA add. What is beyond the array is left out. */
template <class Shape>
RA_DEVICE void add_dq(struct fused_memory<Shape> &shared, const struct backward &f)
{
    if (threadIdx.x > LOADER_THREADS)
        return;
    struct pipeline_state state = {0, 0};
    each_step<Shape>(f, shared.task, [&](int a0, int h, int) {
        ra_barrier_wait(&shared.dq_full[state.stage], state.parity);
#pragma unroll
        for (int panel = 0; panel < Shape::Dim / 32; panel++)
            ra_add_box(&f.dq, shared.dq[state.stage] + panel * ra_panel_stride(64), 32 * panel, a0,
                       h, shared.task.b);
        ra_stores_end();
        ra_stores_wait_read();
        ra_barrier_arrive(&shared.dq_empty[state.stage]);
        advance<fused_memory<Shape>::Slots>(state);
    });
}

template <class Shape>
__global__ void __cluster_dims__(Shape::Blocks) __launch_bounds__(Shape::Threads + 128, 1)
    k07_fused(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    extern __shared__ __align__(1024) char bytes[];
    struct fused_memory<Shape> &shared = *(struct fused_memory<Shape> *)bytes;
    const struct ra_kernel &kernel = f.kernel;

    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (idle(task.first, task.end, writes_keys(kernel)))
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::Groups; i++)
            ra_barrier_init(&shared.ds_full[i], Shape::Threads);
        for (int i = 0; i < fused_memory<Shape>::Slots; i++) {
            ra_barrier_init(&shared.dq_full[i], 128);
            ra_barrier_init(&shared.dq_empty[i], 1);
        }
    }
    if (begin_or_load<Shape>(shared, f, task, [&]() { add_dq<Shape>(shared, f); }))
        return;

    /* This warpgroup has 64 rows of k and v. */
    float dk[Dim / 8][4] = {}, dv[Dim / 8][4] = {};
    int group = ra_uniform(threadIdx.x / 128) - 1, mine = group * ra_panel_offset(64, 0, Keys);
    uint64_t k = ra_descriptor(ra_shared(shared.k + mine), ra_panel_stride(Keys));
    uint64_t v = ra_descriptor(ra_shared(shared.v + mine), ra_panel_stride(Keys));
    find_seen<Shape>(shared, f, task);
    ra_barrier_wait(&shared.keys_full, 0);
    zero_nonfinite_keys<Shape>(shared.k, shared.nonfinite);

    bool sound = all_sound<Shape>(shared);
    int steps = ra_uniform(shared.task.steps);
    struct pipeline_state turn = {0, 0}; /* the warpgroup whose turn it is */
    for (int j = 0; j < steps; j++, advance<Shape::Groups>(turn)) {
        int stage = j % Shape::Stages;
        uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
        uint64_t d_out = ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
        uint32_t p[Queries / 16][4], ds[Queries / 16][4];
        weigh_step<Shape>(p, ds, shared, &shared.full[stage], f, j, sound, k, v, q, d_out);

        ra_pin(p);
        ra_pin(dv);
        ra_products_begin();
        add_product<Type, Dim, Queries>(dv, p, d_out);
        store_slopes<Shape>(shared.ds[turn.stage], ds);
        ra_stores_before_wgmma();
        ra_barrier_arrive(&shared.ds_full[turn.stage]);
        ra_pin(ds);
        ra_pin(dk);
        ra_products_begin();
        add_product<Type, Dim, Queries>(dk, ds, q);
        ra_products_wait<0>();
        ra_pin(dv);
        ra_pin(dk);
        release_queries<Shape>(&shared.empty[stage]);
        if (turn.stage == group)
            multiply_dq<Shape>(shared, j, turn, kernel.score.scale);
    }

    /* Nobody writes to this warpgroup's slot any more: it has had its last turn. */
    store_dk_dv<Shape, 64>(shared, f, shared.ds[group], dk, dv);

    /* Until here the other block of a pair may have loaded something into this one's memory, or
     * arrived there. */
    if (Shape::Blocks == 2)
        ra_cluster_barrier();
#endif
}

/* At D = 128 pairs of blocks gain 1 to 4 %, at D = 64 nothing. */
static bool pairs_pay(const struct ra_kernel *kernel, int keys)
{
    return ra_pairs_pay(kernel->keys, keys, keys, [=](int64_t b0, int64_t rows) {
        return ra_queries_seeing(kernel->band, kernel->band_step, b0, rows, kernel->queries);
    });
}

/* In the L2 cache: q, d_out, and dq in float32. */
template <class Type, int Dim, int Groups, int Stages, int Blocks, bool Listed = false,
          bool Sloped = false>
static cudaError_t launch_fused(const struct ra_kernel *kernel, cudaStream_t stream)
{
    typedef backward_tile<Type, Dim, 64 * Groups, 64, Stages, Blocks, Groups, Listed, Sloped> Shape;
    return launch_keys<Shape, struct fused_memory<Shape>>(k07_fused<Shape>, kernel, 8, stream);
}

/* The same, a block for every tile of keys. */
template <class Type, bool Listed, bool Sloped>
static cudaError_t launch_alone(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return ra_kernel_widest(kernel) <= 64
               ? launch_fused<Type, 64, 3, 4, 1, Listed, Sloped>(kernel, stream)
               : launch_fused<Type, 128, 2, 2, 1, Listed, Sloped>(kernel, stream);
}

/* Of D > 128 sums of dk and dv leave no registers for dq: there k06 is the faster one. */
static bool runs_k06(const struct ra_kernel *kernel)
{
    return ra_work_separates(kernel->q.type, ra_kernel_widest(kernel), kernel->deterministic);
}

extern "C" cudaError_t ra_k07_separates(const struct ra_kernel *kernel, bool *separates)
{
    cudaError_t error = k06_supports(kernel, separates);
    *separates = *separates && runs_k06(kernel);
    return error;
}

/* k07's own dq is added up in memory, by many blocks. */
extern "C" cudaError_t ra_k07_writes(const struct ra_kernel *kernel, bool *keys, bool *queries)
{
    cudaError_t error = ra_k06_writes(kernel, keys, queries);
    *queries = *queries && runs_k06(kernel);
    return error;
}

extern "C" cudaError_t ra_k07_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    bool supported;
    cudaError_t error = supports_sums(kernel, ra_k07_writes, &supported);
    if (error != cudaSuccess)
        return error;
    if (kernel->work.count > 0 && !runs_k06(kernel))
        return launch_for_type(kernel, [=](auto type) {
            typedef decltype(type) Type;
            return kernel->slopes.data ? launch_alone<Type, true, true>(kernel, stream)
                                       : launch_alone<Type, true, false>(kernel, stream);
        });
    if (!supported || runs_k06(kernel) || !ra_in_boxes(kernel->dq, kernel->queries, kernel->dim))
        return ra_k06_backward(kernel, stream);
    return in_pieces(kernel, [=](const struct ra_kernel *piece) {
        return launch_for_type(kernel, [=](auto type) {
            typedef decltype(type) Type;
            if (kernel->slopes.data)
                return launch_alone<Type, false, true>(piece, stream);
            return ra_kernel_widest(piece) > 64 && pairs_pay(piece, 128)
                       ? launch_fused<Type, 128, 2, 2, 2>(piece, stream)
                       : launch_alone<Type, false, false>(piece, stream);
        });
    });
}

extern "C" cudaError_t ra_k07_takes_backward(const struct ra_kernel *kernel, bool *takes)
{
    cudaError_t error = k06_supports(kernel, takes);
    *takes = *takes && (runs_k06(kernel) || ra_in_boxes(kernel->dq, kernel->queries, kernel->dim));
    return error;
}
