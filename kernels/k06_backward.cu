/* k06, backward: attention's gradients by wgmma and TMA, in two kernels.
 *
 * Chapter 11e. In the first a tile of keys stays and the queries pass: dk and dv are in registers
 * until the end. In the second a tile of queries stays and the keys pass: dq is in registers. Every
 * row of a result has one block that adds to it, and equal inputs give equal bits. For that s and
 * dp are multiplied twice: seven products, where k07 has five.
 *
 * A step of the first, of a warpgroup with 64 keys, is in the order in which products are issued:
 *
 *     s = k q^T   dp = v d_out^T                          dv += p d_out   dk += ds q
 *                 p = 2^(s factor - lse2)   ds = p (dp - delta)
 *
 * Keys are the rows, so p and ds are transposed already; and they lie in registers as the next
 * product wants its left matrix. Nothing but what TMA loads goes through shared memory.
 */
#include "hopper_backward.h"

/* ---- dk and dv. A key that is not finite spoils its own row of s, and what is hidden there
 * becomes 0: here no product runs over keys. */
template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    k06_dk_dv(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    extern __shared__ __align__(1024) char bytes[];
    struct keys_memory<Shape> &shared = *(struct keys_memory<Shape> *)bytes;
    const struct ra_kernel &kernel = f.kernel;

    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (idle(task.first, task.end, writes_keys(kernel)))
        return;
    if (begin_or_load<Shape>(shared, f, task, []() {}))
        return;

    float dk[Dim / 8][4] = {}, dv[Shape::Dim_value / 8][4] = {};
    int mine = ra_panel_offset(64 * (ra_uniform(threadIdx.x / 128) - 1), 0, Keys);
    uint64_t k = ra_descriptor(ra_shared(shared.k + mine), ra_panel_stride(Keys));
    uint64_t v = ra_descriptor(ra_shared(shared.v + mine), ra_panel_stride(Keys));
    find_seen(shared, f, task);
    ra_barrier_wait(&shared.keys_full, 0);

    bool sound = all_sound<Shape>(shared);
    int steps = ra_uniform(shared.task.steps);
    for (int j = 0; j < steps; j++) {
        int stage = j % Shape::Stages;
        uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
        uint64_t d_out = ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
        uint32_t p[Queries / 16][4], ds[Queries / 16][4];
        weigh_step<Shape>(p, ds, shared, &shared.full[stage], f, j, sound, k, v, q, d_out);

        ra_pin(p);
        ra_pin(ds);
        ra_pin(dk);
        ra_pin(dv);
        ra_products_begin();
        add_product<Type, Shape::Dim_value, Queries>(dv, p, d_out);
        add_product<Type, Dim, Queries>(dk, ds, q);
        ra_products_wait<0>();
        ra_pin(dk);
        ra_pin(dv);
        release_slot(&shared.empty[stage]);
    }
    char *mine_of_k = shared.k + my_number() / 128 * ra_panel_offset(64, 0, Keys);
    store_dk_dv<Shape, Keys>(shared, f, mine_of_k, dk, dv);
#endif
}

/* ---- dk and dv of D up to 256. Those of 64 keys and 256 columns are all the registers that a
 * warpgroup can have for sums: so one warpgroup has dv, the other dk. Each has two of the four
 * products:
 *
 *     first     s = k q^T        p = 2^(s factor - lse2)                     dv += p d_out
 *     second    dp = v d_out^T                              ds = p (dp - delta)  dk += ds q
 *
 * p goes from the first to the second through shared memory. There are two slots for it: so the
 * first need not wait for the second, and its products fill the gaps of the other's. */

template <class Shape> struct wide_memory : keys_memory<Shape> {
    float4 weights[2][Shape::Queries / 8][128]; /* as the threads of a warpgroup have them */
    ra_barrier weights_full[2], weights_empty[2];
};

/* What dp - delta is to be multiplied by: the weights s, times the slope of the soft cap. */
template <class Shape>
RA_DEVICE void store_weights(struct wide_memory<Shape> &shared, int slot,
                             const float (&s)[Shape::Queries / 8][4],
                             const float (&slopes)[Shape::Queries / 8][4])
{
#pragma unroll
    for (int j = 0; j < Shape::Queries / 8; j++)
        shared.weights[slot][j][my_number() % 128] =
            make_float4(s[j][0] * slopes[j][0], s[j][1] * slopes[j][1], s[j][2] * slopes[j][2],
                        s[j][3] * slopes[j][3]);
}

template <class Shape>
RA_DEVICE void load_weights(float (&s)[Shape::Queries / 8][4],
                            const struct wide_memory<Shape> &shared, int slot)
{
#pragma unroll
    for (int j = 0; j < Shape::Queries / 8; j++) {
        float4 x = shared.weights[slot][j][my_number() % 128];
        s[j][0] = x.x;
        s[j][1] = x.y;
        s[j][2] = x.z;
        s[j][3] = x.w;
    }
}

/* One of the two warpgroups: First has dv, the other dk. */
template <class Shape, bool First>
RA_DEVICE void multiply_wide(struct wide_memory<Shape> &shared, const struct backward &f)
{
    typedef typename Shape::Type Type;
    constexpr int Keys = Shape::Keys, Queries = Shape::Queries, Stages = Shape::Stages;
    constexpr int Dim = First ? Shape::Dim : Shape::Dim_value; /* of the first product */
    constexpr int Sums = First ? Shape::Dim_value : Shape::Dim;
    static_assert(Keys == 64 && Queries == 64, "a warpgroup has all of them");
    const struct ra_kernel &kernel = f.kernel;
    float sum[Sums / 8][4] = {};
    bool capped = kernel.score.softcap > 0, sound = all_sound<Shape>(shared);
    int steps = ra_uniform(shared.task.steps);
    for (int j = 0; j < steps; j++) {
        int stage = j % Stages, slot = j % 2, parity = j / 2 % 2;
        uint64_t q = ra_descriptor(ra_shared(shared.q[stage]), ra_panel_stride(Queries));
        uint64_t d_out = ra_descriptor(ra_shared(shared.d_out[stage]), ra_panel_stride(Queries));
        const float *lses = &shared.lse2[stage][my_column()];
        const float *deltas = &shared.delta[stage][my_column()];
        auto lse2 = [=](int j, int) { return *(const float2 *)&lses[8 * j]; };
        auto delta = [=](int j, int) { return *(const float2 *)&deltas[8 * j]; };
        float product[Queries / 8][4], other[Queries / 8][4];
        uint32_t left[Queries / 16][4]; /* p, or ds */

        ra_barrier_wait(&shared.full[stage], j / Stages % 2);
        ra_products_begin();
        multiply_rows<Type, Dim, Keys, Queries>(
            product, ra_descriptor(ra_shared(First ? shared.k : shared.v), ra_panel_stride(Keys)),
            First ? q : d_out);
        ra_products_wait<0>();
        ra_pin(product);
        bool unmasked = sound && shared.step[stage].inside;
        if (First) {
#pragma unroll
            for (int i = 0; i < Queries / 2; i++)
                other[i / 4][i % 4] = 1;
            auto none = [](int, int) { return make_float2(0, 0); };
            if constexpr (Shape::Sloped)
                weigh_sloped<Queries>(product, other, f, shared.step[stage].h, lse2, none,
                                      distance_of<Shape>(shared, f, stage));
            else if (capped)
                weigh_capped<Queries>(product, other, f, lse2, none);
            else
                weigh<Queries>(product, f.factor, lse2);
            if (!unmasked)
                hide_queries<Shape>(product, other,
                                    sight_from<Shape>(shared, f, shared.step[stage]));
            ra_barrier_wait(&shared.weights_empty[slot], parity ^ 1);
            store_weights(shared, slot, product, other);
            ra_barrier_arrive(&shared.weights_full[slot]);
            pack<Type, Queries>(left, product);
        } else {
            ra_barrier_wait(&shared.weights_full[slot], parity);
            load_weights(other, shared, slot);
            ra_barrier_arrive(&shared.weights_empty[slot]);
            if (!unmasked)
                hide_queries<Shape>(other, product,
                                    sight_from<Shape>(shared, f, shared.step[stage]));
            slope<Type, Queries>(left, other, product, delta);
        }

        ra_pin(left);
        ra_pin(sum);
        ra_products_begin();
        add_product<Type, Sums, Queries>(sum, left, First ? d_out : q);
        ra_products_wait<0>();
        ra_pin(sum);
        release_slot(&shared.empty[stage]);
    }
    put_keys<Shape>(kernel, First ? kernel.dv : kernel.dk, First ? kernel.dim_value : kernel.dim,
                    shared.task, First ? 1 : kernel.score.scale, sum);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    k06_wide(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct wide_memory<Shape> &shared = *(struct wide_memory<Shape> *)bytes;
    struct keys_task task = keys_task_of<Shape>(f, blockIdx.x);
    if (idle(task.first, task.end, writes_keys(f.kernel)))
        return;
    if (threadIdx.x == 0)
        for (int slot = 0; slot < 2; slot++) {
            ra_barrier_init(&shared.weights_full[slot], 128);
            ra_barrier_init(&shared.weights_empty[slot], 128);
        }
    if (begin_or_load<Shape>(shared, f, task, []() {}))
        return;
    find_seen<Shape>(shared, f, task);
    ra_barrier_wait(&shared.keys_full, 0);
    if (ra_uniform(threadIdx.x / 128) == 1)
        multiply_wide<Shape, true>(shared, f);
    else
        multiply_wide<Shape, false>(shared, f);
#endif
}

/* ---- dq. */

/* What a block of threads has to do: the tile of queries from a0 on, those before a_end, and the
 * keys that pass first; in a list, `tile` says what follows. */
struct queries_task {
    int b, h, g, a0, a_end;
    struct ra_work_tile tile;
    struct ra_passing<int> keys;
};

/* Tiles of the last queries come first: under a causal mask they have the most work. Query heads
 * that read the same keys go side by side. */
template <class Shape>
RA_DEVICE struct queries_task queries_task_of(const struct backward &f, int block)
{
    const struct ra_kernel &kernel = f.kernel;
    int H = (int)kernel.heads, G = (int)kernel.key_heads;
    struct ra_tile_order order = ra_tile_order_of(block, (int)kernel.batch * H, f.sets, f.tiles);
    struct queries_task task = {order.head / H};
    task.g = order.head % H / f.group;
    task.h = ra_query_head(kernel.head_map, H, G, task.g, order.head % H % f.group);
    if (Shape::Listed) {
        task.tile = kernel.dq_work.tile[order.tile];
        task.a0 = task.tile.row;
        task.a_end = task.a0 + task.tile.rows;
        task.keys = ra_pass_tile<int>(kernel.dq_work, task.tile);
        return task;
    }
    task.a_end = (int)kernel.queries;
    task.a0 = (f.tiles - 1 - order.tile) * Shape::Queries;
    struct ra_range range =
        ra_keys_seen(kernel.band, kernel.band_step, task.a0,
                     ra_min(Shape::Queries, kernel.queries - task.a0), kernel.keys);
    if (range.first < range.end) {
        task.keys.at = (int)range.first;
        task.keys.end = (int)range.end;
    }
    return task;
}

/* The keys behind these. */
template <class Shape>
RA_DEVICE struct ra_passing<int> next_keys(const struct backward &f,
                                           const struct queries_task &task,
                                           const struct ra_passing<int> &now) {
    return ra_pass<Shape::Listed>(now, f.kernel.dq_work, task.tile, Shape::Keys,
                                  (int)f.kernel.keys);
}

template <class Shape>
struct queries_memory {
    alignas(RA_PANEL_ALIGNMENT) char q[Shape::Query_bytes], d_out[Shape::Out_bytes];
    char k[Shape::Stages][Shape::Key_bytes], v[Shape::Stages][Shape::Value_bytes];
    uint32_t valid[Shape::Stages][Shape::Keys / 32];     /* a bit for every key: not hidden */
    uint32_t nonfinite[Shape::Stages][Shape::Keys / 32]; /* with a number that is not finite */
    ra_barrier queries_full, full[Shape::Stages], empty[Shape::Stages];
};

template <class Shape> RA_DEVICE void begin(struct queries_memory<Shape> &shared)
{
    if (threadIdx.x == 0) {
        ra_barrier_init(&shared.queries_full, 1);
        for (int i = 0; i < Shape::Stages; i++) {
            ra_barrier_init(&shared.full[i], Shape::Keys);
            ra_barrier_init(&shared.empty[i], Shape::Threads);
        }
        ra_barriers_ready();
    }
    __syncthreads();
}

/* The warpgroup that loads: the queries, then one tile of keys after the other. Each of its warps
 * has the mask of 32 keys. */
template <class Shape>
RA_DEVICE void load_keys(struct queries_memory<Shape> &shared, const struct backward &f,
                         const struct queries_task &task)
{
    constexpr int Dim = Shape::Dim, Dim_value = Shape::Dim_value, Keys = Shape::Keys,
                  Queries = Shape::Queries;
    if (threadIdx.x == 0) {
        ra_barrier_expect(&shared.queries_full, Shape::Query_bytes + Shape::Out_bytes);
        ra_load_tile<Dim, Queries>(shared.q, &f.q, &shared.queries_full, task.a0, task.h, task.b);
        ra_load_tile<Dim_value, Queries>(shared.d_out, &f.d_out, &shared.queries_full, task.a0,
                                         task.h, task.b);
    }
    if (threadIdx.x >= Keys)
        return;

    int word = threadIdx.x / 32;
    struct pipeline_state state = {0, 1};
#pragma unroll 1
    for (struct ra_passing<int> now = task.keys; now.at < now.end;
         now = next_keys<Shape>(f, task, now), advance<Shape::Stages>(state)) {
        int b0 = now.at;
        int64_t b = (int64_t)b0 + threadIdx.x;
        uint32_t valid =
            __ballot_sync(0xffffffff, b < f.kernel.keys && ra_allowed(f.kernel.mask, task.b, b));
        int stage = state.stage;
        ra_barrier_wait(&shared.empty[stage], state.parity);
        if (threadIdx.x % 32 == 0) {
            shared.valid[stage][word] = valid;
            shared.nonfinite[stage][word] = 0;
        }
        ra_barrier *full = &shared.full[stage];
        signal_full(full, Shape::Key_bytes + Shape::Value_bytes, [&]() {
            ra_load_tile<Dim, Keys>(shared.k[stage], &f.k, full, b0, task.g, task.b);
            ra_load_tile<Dim_value, Keys>(shared.v[stage], &f.v, full, b0, task.g, task.b);
        });
    }
}

/* Which columns this thread's two rows see: from lo to hi, counted from its first column, of those
 * whose bit is set. */
template <class Shape> struct keys_sight {
    int lo[2], hi[2];
    uint32_t valid[Shape::Keys / 32], nonfinite[Shape::Keys / 32];
};

template <class Shape>
RA_DEVICE struct keys_sight<Shape> sight_from(const struct queries_memory<Shape> &shared, int stage,
                                              const struct ra_kernel &kernel,
                                              const struct queries_task &task,
                                              const struct ra_passing<int> &now) {
    constexpr int Keys = Shape::Keys, Queries = Shape::Queries;
    struct keys_sight<Shape> sight;
    int column = my_column(), a0 = task.a0, b0 = now.at;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (Shape::Listed) {
            int64_t row = (int64_t)now.part * Queries + my_row() + 8 * r;
            int2 seen = __ldg((const int2 *)&kernel.dq_work.sight[row]);
            sight.lo[r] = seen.x - b0 - column;
            sight.hi[r] = seen.y - 1 - b0 - column;
            continue;
        }
        int64_t a = (int64_t)a0 + my_row() + 8 * r, from = a - b0 - column;
        int64_t lo = from + kernel.band.lo - ra_within_step(a, kernel.band_step.lo);
        int64_t hi = from + kernel.band.hi - ra_within_step(a, kernel.band_step.hi);
        sight.lo[r] = (int)ra_max(-Keys, ra_min(Keys, lo));
        sight.hi[r] = (int)ra_max(-Keys, ra_min(Keys, hi));
    }
#pragma unroll
    for (int w = 0; w < Keys / 32; w++) {
        sight.valid[w] = shared.valid[stage][w] >> column;
        sight.nonfinite[w] = shared.nonfinite[stage][w] >> column;
    }
    return sight;
}

template <class Shape>
RA_DEVICE void hide_keys(float (&s)[Shape::Keys / 8][4], float (&dp)[Shape::Keys / 8][4],
                         const struct keys_sight<Shape> &sight)
{
#pragma unroll
    for (int j = 0; j < Shape::Keys / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = 8 * j + e % 2, bit = column % 32;
            bool valid = sight.valid[j / 4] >> bit & 1;
            hide(s[j][e], dp[j][e], !valid || column < sight.lo[e / 2] || column > sight.hi[e / 2],
                 sight.nonfinite[j / 4] >> bit & 1);
        }
}

/* Does every query of the block see every key of this tile? */
template <class Shape>
RA_DEVICE bool all_seen(const struct queries_memory<Shape> &shared, const struct backward &f,
                        const struct queries_task &task, int stage,
                        const struct ra_passing<int> &now)
{
    int64_t rows = ra_min(Shape::Queries, f.kernel.queries - task.a0);
    bool all;
    if (Shape::Listed) {
        struct ra_sight every = f.kernel.dq_work.part[now.part].every;
        all = every.first <= now.at && now.at + Shape::Keys <= every.end;
    } else {
        all = ra_all_seen(f.kernel.band, f.kernel.band_step, task.a0, rows, now.at, Shape::Keys);
    }
#pragma unroll
    for (int w = 0; w < Shape::Keys / 32; w++)
        all = all && shared.valid[stage][w] == 0xffffffff;
    return all;
}

/* A step: s = q k^T and dp = d_out v^T; p = 2^(s factor - lse2) while dp is multiplied, but
 * after it with a softcap, whose slope goes into dp; ds = p (dp - delta); dq += ds k. */
template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    k06_dq(const __grid_constant__ struct backward f)
{
#if RA_IS_HOPPER
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys, Queries = Shape::Queries;
    extern __shared__ __align__(1024) char bytes[];
    struct queries_memory<Shape> &shared = *(struct queries_memory<Shape> *)bytes;
    const struct ra_kernel &kernel = f.kernel;

    struct queries_task task = queries_task_of<Shape>(f, blockIdx.x);
    if (idle(task.keys.at, task.keys.end, kernel.dq.type != RA_FLOAT32))
        return;
    begin(shared);
    int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        ra_fewer_registers<Shape::Load_registers>();
        load_keys(shared, f, task);
        return;
    }
    ra_more_registers<Shape::Multiply_registers>();

    /* Each thread has two rows, and of these all columns. */
    float lse2s[2], deltas[2], dq[Dim / 8][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t a = (int64_t)task.a0 + my_row() + 8 * r;
        bool valid = a < kernel.queries;
        lse2s[r] = power_of_lse(valid ? *ra_floats(kernel.lse, task.b, a, task.h) : 0, valid);
        deltas[r] = valid ? *ra_floats(kernel.delta, task.b, a, task.h) : 0;
    }
    auto lse2 = [&](int, int r) { return make_float2(lse2s[r], lse2s[r]); };
    auto delta = [&](int, int r) { return make_float2(deltas[r], deltas[r]); };
    int places[2] = {0, 0};
    for (int r = 0; r < 2 && Shape::Sloped; r++)
        places[r] = ra_place_of_row(kernel.query_place, (int64_t)task.a0 + my_row() + 8 * r,
                                    kernel.queries);

    int mine = ra_panel_offset(64 * (warpgroup - 1), 0, Queries);
    uint64_t q = ra_descriptor(ra_shared(shared.q + mine), ra_panel_stride(Queries));
    uint64_t d_out = ra_descriptor(ra_shared(shared.d_out + mine), ra_panel_stride(Queries));
    bool capped = kernel.score.softcap > 0;
    ra_barrier_wait(&shared.queries_full, 0);

    struct pipeline_state state = {0, 0};
    for (struct ra_passing<int> now = task.keys; now.at < now.end;
         now = next_keys<Shape>(f, task, now), advance<Shape::Stages>(state)) {
        int stage = state.stage;
        uint64_t k = ra_descriptor(ra_shared(shared.k[stage]), ra_panel_stride(Keys));
        uint64_t v = ra_descriptor(ra_shared(shared.v[stage]), ra_panel_stride(Keys));
        float s[Keys / 8][4], dp[Keys / 8][4];
        uint32_t ds[Keys / 16][4];

        ra_barrier_wait(&shared.full[stage], state.parity);
        bool unmasked = all_seen(shared, f, task, stage, now);
        if (!unmasked)
            zero_nonfinite_keys<Shape>(shared.k[stage], shared.nonfinite[stage]);

        ra_products_begin();
        multiply_rows<Type, Dim, Queries, Keys>(s, q, k);
        multiply_rows<Type, Shape::Dim_value, Queries, Keys>(dp, d_out, v);
        ra_products_wait<1>();
        ra_pin(s);
        if (!capped && !Shape::Sloped)
            weigh<Keys>(s, f.factor, lse2);
        ra_products_wait<0>();
        ra_pin(dp);
        if constexpr (Shape::Sloped)
            weigh_sloped<Keys>(s, dp, f, task.h, lse2, delta, [&](int j, int e) {
                int64_t b = (int64_t)now.at + my_column() + 8 * j + e % 2;
                return ra_place_of_row(kernel.key_place, b, kernel.keys) - places[e / 2];
            });
        else if (capped)
            weigh_capped<Keys>(s, dp, f, lse2, delta);
        if (!unmasked)
            hide_keys<Shape>(s, dp, sight_from(shared, stage, kernel, task, now));
        slope<Type, Keys>(ds, s, dp, delta);

        ra_pin(ds);
        ra_pin(dq);
        ra_products_begin();
        add_product<Type, Dim, Keys>(dq, ds, k);
        ra_products_wait<0>();
        ra_pin(dq);
        release_slot(&shared.empty[stage]);
    }

    put_rows<Type, Dim>(kernel.dq, kernel.dq.type == RA_FLOAT32, task.b, task.a0 + my_row(), task.h,
                        task.a_end, (int)kernel.dim, kernel.score.scale, dq);
#endif
}

/* ---- Launching. */

/* In pieces of the keys: dq is a sum over these, and no launch adds up more of them than it can
 * well; nor does a list. */
template <class Shape>
static cudaError_t launch_dq(const struct ra_kernel *kernel, cudaStream_t stream)
{
    int64_t most = Shape::Listed ? kernel->keys : ra_kernel_most_keys(kernel->q.type);
    int64_t heads = kernel->batch * kernel->heads;
    int64_t tiles = Shape::Listed ? kernel->dq_work.count
                                  : (kernel->queries + Shape::Queries - 1) / Shape::Queries;
    cudaError_t error = cudaSuccess;
    for (int64_t b = 0; b < kernel->keys && tiles > 0 && error == cudaSuccess; b += most) {
        /* In the L2 cache: k and v, which the query heads of a group share. */
        struct ra_kernel piece = ra_kernel_keys(*kernel, b, most);
        int64_t head_bytes = 2 * piece.keys * (kernel->dim + kernel->dim_value) /
                             (kernel->heads / kernel->key_heads);
        error = launch_hopper<Shape, struct queries_memory<Shape>>(k06_dq<Shape>, &piece, heads,
                                                                   tiles, head_bytes, stream);
    }
    return error;
}

template <class Shape>
static cudaError_t launch_dk_dv(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_keys<Shape, struct keys_memory<Shape>>(k06_dk_dv<Shape>, kernel, 4, stream);
}

template <class Shape>
static cudaError_t launch_wide(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_keys<Shape, struct wide_memory<Shape>>(k06_wide<Shape>, kernel, 4, stream);
}

/* Both kernels, or the one whose sums are wanted. */
template <class Type, bool Listed, bool Sloped>
static cudaError_t launch_type(const struct ra_kernel *kernel, cudaStream_t stream)
{
    typedef backward_tile<Type, 64, 128, 128, 2, 1, 2, Listed, Sloped> Least;
    cudaError_t error = cudaSuccess;
    int64_t dim = ra_kernel_widest(kernel);
    bool narrow = dim <= 192 && kernel->dim_value <= 128; /* values, if dim > 128 */
    if (kernel->dk.data) {
        typedef backward_tile<Type, 128, 128, 64, 2, 1, 2, Listed, Sloped> Usual;
        typedef backward_tile<Type, 192, 64, 64, 3, 1, 2, Listed, Sloped, 128> Narrow;
        typedef backward_tile<Type, 256, 64, 64, 2, 1, 2, Listed, Sloped> Most;
        error = dim <= 64    ? launch_dk_dv<Least>(kernel, stream)
                : dim <= 128 ? launch_dk_dv<Usual>(kernel, stream)
                : narrow     ? launch_wide<Narrow>(kernel, stream)
                             : launch_wide<Most>(kernel, stream);
    }
    if (error == cudaSuccess && kernel->dq.data) {
        typedef backward_tile<Type, 128, 128, 128, 2, 1, 2, Listed, Sloped> Usual;
        typedef backward_tile<Type, 192, 64, 128, 2, 1, 2, Listed, Sloped, 128> Narrow;
        typedef backward_tile<Type, 256, 64, 128, 1, 1, 2, Listed, Sloped> Most;
        error = dim <= 64    ? launch_dq<Least>(kernel, stream)
                : dim <= 128 ? launch_dq<Usual>(kernel, stream)
                : narrow     ? launch_dq<Narrow>(kernel, stream)
                             : launch_dq<Most>(kernel, stream);
    }
    return error;
}

extern "C" cudaError_t ra_k06_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    bool supported;
    cudaError_t error = supports_sums(kernel, ra_k06_writes, &supported);
    if (error != cudaSuccess || !supported)
        return error != cudaSuccess ? error : ra_k03_backward(kernel, stream);
    auto launch = [=](const struct ra_kernel *piece) {
        return launch_for_type(kernel, [=](auto type) {
            typedef decltype(type) Type;
            if (kernel->work.count > 0)
                return kernel->slopes.data ? launch_type<Type, true, true>(piece, stream)
                                           : launch_type<Type, true, false>(piece, stream);
            return kernel->slopes.data ? launch_type<Type, false, true>(piece, stream)
                                       : launch_type<Type, false, false>(piece, stream);
        });
    };
    return kernel->work.count > 0 ? launch(kernel) : in_pieces(kernel, launch);
}

/* Sums of which one launch has all. */
extern "C" cudaError_t ra_k06_writes(const struct ra_kernel *kernel, bool *keys, bool *queries)
{
    enum ra_type type = kernel->q.type;
    int64_t most = ra_kernel_most_keys(type);
    struct ra_kernel dk_dv = *kernel;
    dk_dv.dq = (struct ra_tensor)RA_NO_TENSOR;
    cudaError_t error = k06_supports(&dk_dv, keys);
    *keys = *keys && (kernel->dk.type == type || kernel->dk.type == RA_FLOAT32) &&
            kernel->dv.type == kernel->dk.type && kernel->queries <= ra_kernel_most_queries(kernel);
    *queries = *keys && kernel->dk.type == type && kernel->dq.type == type &&
               kernel->keys <= most && in_pairs(kernel->dq, kernel->dim);
    return error;
}
