/* k07: the forward of k06 by as many blocks of threads as there are multiprocessors, each of which
 * draws one tile of queries after the other; or by pairs of blocks. For compute capability 9.0;
 * elsewhere k03 runs.
 *
 * Chapter 11d. New here: while the outputs of a tile are written, the queries and the first keys of
 * the next one are loaded; a warpgroup that is through begins the next one while others are not;
 * and outputs leave by TMA, in whole rows, while the next tile is computed. Where a tile takes
 * long, this gains nothing: there two neighbouring blocks share a tile of twice the rows, and each
 * loads half of the keys for both; and where there are registers for it, a warpgroup works at two
 * tiles of keys at a time.
 */
#include "hopper_roles.h"

/* ---- Persistent blocks. */

/* Where TMA finds the outputs, if it can write them: whole rows of the inputs' type. Otherwise the
 * threads write them. */
struct persistent_forward : hopper_forward {
    CUtensorMap o_map;
    bool by_boxes;
};

/* Room for the outputs, of 64 rows for each warpgroup. Of D > 128 there is none. */
template <class Shape> struct shared_memory : roles_memory<Shape> {
    static constexpr int Output_bytes = Shape::Dim > 128 ? 0 : 64 * Shape::Dim_value * 2;
    alignas(1024) char o[Shape::Groups][Output_bytes];

    /* Of the last four iterations: when one is written, queries of the one before may still be
     * needed, and outputs of the one before that may not have been written yet. */
    struct hopper_task task[4];
};

/* The next tile of this block of threads, for a whole warp; f.blocks or more if there is none.
 * Blocks draw: so all of them end at about the same time, whatever their tiles cost. The last of
 * all draws brings the semaphore back to 0. */
RA_DEVICE int next_tile(const struct persistent_forward &f)
{
    int tile = 0;
    if (threadIdx.x % 32 == 0)
        tile = gridDim.x + atomicInc((unsigned *)f.kernel.semaphores, f.blocks - 1);
    return ra_uniform(tile);
}

/* Writes down what the block does next, or that there is nothing: no tiles of keys. By one
 * thread. */
template <class Shape>
RA_DEVICE void note_task(struct hopper_task &task, const struct persistent_forward &f, int tile,
                         int part, int number, int iteration, int turn)
{
    if (tile >= f.blocks)
        task.count = 0;
    else if (Shape::Listed)
        task = listed_task_of<Shape>(f, tile, part, number, iteration, turn);
    else
        task = hopper_task_of<Shape>(f, tile, 0, number, iteration);
}

/* The warp that loads. It works out the next task while this one's last tiles are computed. The
 * other warps read a task when its first keys, or values, have arrived; after the last task both
 * are said to be there, but the task has no tiles. */
template <class Shape>
RA_DEVICE void load_all(struct shared_memory<Shape> &shared, const struct persistent_forward &f)
{
    int iteration = 0, number = 0;
    bool is_leader = threadIdx.x == 0;
    if (is_leader)
        note_task<Shape>(shared.task[0], f, blockIdx.x, 0, 0, 0, 0);
    __syncwarp();
#pragma unroll 1
    for (; shared.task[iteration % 4].count > 0; iteration++) {
        const struct hopper_task &task = shared.task[iteration % 4];
        number += task.count;
        load<Shape>(shared, f, task, [&]() {
            bool ends = ends_tile<Shape>(task);
            int tile = ends ? next_tile(f) : task.drawn, part = ends ? 0 : task.part + 1;
            if (is_leader)
                note_task<Shape>(shared.task[(iteration + 1) % 4], f, tile, part, number,
                                 iteration + 1, task.turn + ends);
            __syncwarp();
        });
    }
    int slot = slot_of(number), parity = parity_of(number) ^ 1;
    ra_barrier_wait(&shared.empty_k[slot], parity);
    ra_barrier_wait(&shared.empty_v[slot], parity);
    if (is_leader) {
        ra_barrier_arrive(&shared.full_k[slot]);
        ra_barrier_arrive(&shared.full_v[slot]);
    }
}

/* The warps that clean the values. */
template <class Shape>
RA_DEVICE void sanitize_all(struct shared_memory<Shape> &shared, const struct persistent_forward &f)
{
    int number = 0;
#pragma unroll 1
    for (int iteration = 0;; iteration++) {
        ra_barrier_wait(&shared.full_v[slot_of(number)], parity_of(number));
        const struct hopper_task &task = shared.task[iteration % 4];
        int count = ra_uniform(task.count);
        if (count == 0)
            break;
        sanitize<Shape>(shared, f, task);
        number += count;
    }
}

/* The outputs of a warpgroup, through its slot in shared memory, by TMA. */
template <class Shape>
RA_DEVICE void store_boxes(char *slot, const struct persistent_forward &f,
                           const struct borders &borders, const struct hopper_task &task,
                           struct carry<Shape> &carry)
{
    int lane = threadIdx.x % 32, group = group_of();
    int first = row_of() / 16 * 16 % 64 + lane % 16;
    bool is_leader = threadIdx.x % 128 == 0;
    struct merged m[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t a = first_row(task) + 8 * r;
        /* There is no carry. */
        m[r] = merge_row<Shape>(f, borders, task, a, carry, 0, r, make_float2(0, 0));
        if (a < borders.end && lane % 4 == 0)
            store_sums(f.kernel, borders, task, a, m[r]);
    }

    /* What was there before has left. */
    if (is_leader)
        ra_stores_wait_read();
    ra_named_barrier(2 + group, 128);
#pragma unroll
    for (int c = 0; c < Shape::Dim_value / 16; c++) {
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = Shape::Type::pair(carry.o[0][2 * c + e / 2][e % 2 * 2] * m[e % 2].here,
                                     carry.o[0][2 * c + e / 2][e % 2 * 2 + 1] * m[e % 2].here);
        ra_store_matrices(ra_shared(slot) + ra_panel_offset(first, 16 * c + lane / 16 * 8, 64), x);
    }
    ra_stores_before_wgmma();
    ra_named_barrier(2 + group, 128);
    if (is_leader) {
#pragma unroll
        for (int panel = 0; panel < Shape::Dim_value / 64; panel++)
            ra_store_box(&f.o_map, slot + panel * ra_panel_stride(64), 64 * panel,
                         (int)task.rows[group], task.h, task.b);
        ra_stores_end();
    }
}

/* Can they be written so? All 64 rows are of this tile, and outputs. Without a list what is no row
 * is beyond the array, and left out. */
template <class Shape>
RA_DEVICE bool in_boxes(const struct persistent_forward &f, const struct hopper_task &task)
{
    return f.by_boxes && (!Shape::Listed || ra_uniform(task.whole >> group_of() & 1));
}

/* A warpgroup that computes. */
template <class Shape>
RA_DEVICE void compute_all(struct shared_memory<Shape> &shared, const struct persistent_forward &f)
{
    int number = 0, iteration = 0;
    struct carry<Shape> carry;
#pragma unroll 1
    for (;;) {
        const struct hopper_task &task = shared.task[iteration % 4];
        ra_barrier_wait(&shared.full_k[slot_of(number)], parity_of(number));
        if (ra_uniform(task.count) == 0)
            break;
        fold_tiles<Shape>(shared, f, task, carry);
        if (ends_tile<Shape>(task)) {
            struct borders borders = borders_of<Shape>(f, task);
            if (in_boxes<Shape>(f, task))
                store_boxes<Shape>(shared.o[group_of()], f, borders, task, carry);
            else
                store(f, borders, task, first_row(task), carry, carry_in_memory<Shape>{f, task});
        }
        number = task.number + task.count;
        iteration = task.iteration + 1;
    }
    if (threadIdx.x % 128 == 0)
        ra_stores_wait();
}

/* The first idea: persistent blocks. There are as many of them as multiprocessors, and each takes
 * one tile of queries after the other: its roles go on, and none waits for the others at the end of
 * a tile. So the next tile is loaded while outputs of this one leave. */
template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    persistent_kernel(const __grid_constant__ struct persistent_forward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct shared_memory<Shape> &shared = *(struct shared_memory<Shape> *)bytes;
    if (threadIdx.x == 0)
        begin_barriers<Shape>(shared);
    __syncthreads();
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp < 4) {
        ra_fewer_registers<Shape::Groups == 3 ? 32 : 40>();
        if (warp == 0)
            load_all(shared, f);
        else
            sanitize_all(shared, f);
    } else {
        ra_more_registers<Shape::Groups == 3 ? 160 : 232>();
        compute_all(shared, f);
    }
#endif
}

template <class Shape>
static cudaError_t launch_persistent(const struct ra_kernel *kernel, cudaStream_t stream)
{
    static_assert(sizeof(struct shared_memory<Shape>) <= 227 << 10,
                  "more shared memory than a block may have");
    struct persistent_forward f;
    int processors;
    cudaError_t error = ra_ask_device(&processors, cudaDevAttrMultiProcessorCount);
    if (error == cudaSuccess)
        error = prepare_hopper<Shape>(&f, kernel);
    if (Shape::Listed) {
        f.tiles = kernel->work.count;
        f.blocks = (int)(kernel->batch * kernel->heads * f.tiles);
        f.pairs =
            in_pairs(kernel->o, kernel->dim_value) && in_pairs(kernel->carry_o, kernel->dim_value);
    }
    f.by_boxes = kernel->o.type == kernel->q.type && shared_memory<Shape>::Output_bytes > 0 &&
                 ra_in_boxes(kernel->o, kernel->queries, kernel->dim_value);
    if (error == cudaSuccess && f.by_boxes)
        error = ra_make_map(&f.o_map, kernel->o, kernel->batch, kernel->queries, kernel->heads,
                            kernel->dim_value, 64);
    if (error != cudaSuccess)
        return error;
    return ra_launch(persistent_kernel<Shape>, ra_min(processors, f.blocks), Shape::Threads + 128,
                     sizeof(struct shared_memory<Shape>), stream, f);
}

/* ---- A block, or a pair of blocks, with one tile. */

/* Until the other block of a pair is through with all slots here, it arrives in this block's
 * memory: so this block must not end. */
template <class Shape> RA_DEVICE void await_other(struct tile_memory<Shape> &shared)
{
    for (int number = shared.task.count; number < shared.task.count + 2; number++) {
        ra_barrier_wait(&shared.empty_k[slot_of(number)], parity_of(number) ^ 1);
        ra_barrier_wait(&shared.empty_v[slot_of(number)], parity_of(number) ^ 1);
    }
}

/* The second idea: pairs by multicast. Two neighbouring blocks, a cluster, share a tile of twice
 * the rows, each with half of them. Both go through the same keys, and each loads half of every
 * tile of keys, for both: so what is read from the L2 cache, and the power that takes, is halved.
 * All else is k06, but that both begin together, and neither ends before the other is through. The
 * third idea, overlap, is in fold_tiles. */
template <class Shape>
__global__ void __cluster_dims__(Shape::Cluster) __launch_bounds__(Shape::Threads + 128, 1)
    tile_kernel(const __grid_constant__ struct tile_forward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct tile_memory<Shape> &shared = *(struct tile_memory<Shape> *)bytes;
    if (threadIdx.x == 0) {
        shared.task =
            hopper_task_of<Shape>(f, blockIdx.x / Shape::Cluster, blockIdx.x % Shape::Cluster);
        for (int g = 0; g < Shape::Groups; g++)
            ra_barrier_init(&shared.full_carry[g], 1 + 32);
        begin_barriers<Shape>(shared);
    }
    ra_block_barrier<Shape::Cluster>();
    if (shared.task.keys == 0 && !f.kernel.first && !f.kernel.last)
        return;

    int warp = ra_uniform(threadIdx.x / 32);
    if (warp < 4) {
        ra_fewer_registers<Shape::Groups == 3 ? 32 : 40>();
        if (warp == 0) {
            load<Shape>(shared, f, shared.task, []() {});
            if (Shape::Cluster > 1)
                await_other(shared);
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

/* ---- Which of them, or k06. */

/* Of D = 64, 192 and 256 tiles overlap, which takes registers for the weights of one tile beside
 * the scores of the next. Of D = 128 there are none for it beside three warpgroups, and two that
 * overlap are slower than three that do not. */
template <class Type, class Widths, int Cluster> struct tile_of;
template <class Type, int Cluster>
struct tile_of<Type, widths<64>, Cluster>
    : hopper_tile<Type, widths<64>, 128, 3, Cluster, false, false, true> {
};
template <class Type, int Cluster>
struct tile_of<Type, widths<128>, Cluster> : hopper_tile<Type, widths<128>, 128, 3, Cluster> {
};
template <class Type, int Cluster>
struct tile_of<Type, widths<192, 128>, Cluster>
    : hopper_tile<Type, widths<192, 128>, 128, 2, Cluster, false, false, true> {
};
template <class Type, int Cluster>
struct tile_of<Type, widths<256>, Cluster>
    : hopper_tile<Type, widths<256>, 80, 2, Cluster, false, false, true> {
};

/* Persistent blocks pay where there are few keys, with which the outputs take a good part of the
 * time, and no carry; of D = 256 nowhere. Of D = 192, where they go without overlap, few are those
 * that a query in the middle sees. Elsewhere each tile has a block of its own, as in k06; or
 * a pair of blocks has a tile of twice the rows: at D = 128 that gains 1 to 4 %, at D = 256 2 to 4
 * %, at D = 64 and 192 nothing. Overlap gains 5 to 8 % at D = 64, 5 to 10 % at D = 256, and 17 % at
 * D = 192. */
extern "C" cudaError_t ra_k07_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_or_k03<true>(kernel, stream, [=](auto type, auto all) {
        typedef decltype(type) Type;
        typedef decltype(all) Widths;
        typedef tile_of<Type, Widths, 1> Tile;
        constexpr int Dim = Widths::Dim, Few = Dim == 256 ? 64 : 128;
        constexpr int Few_keys = Dim <= 128 ? 4096 : Dim < 256 ? 1536 : 0;
        typedef hopper_tile<Type, Widths, Few, Tile::Groups> Single;
        typedef hopper_tile<Type, Widths, Few, Tile::Groups, 1, true> Listed;
        typedef hopper_tile<Type, Widths, Few, Tile::Groups, 1, true, true> Extras;
        if (kernel->work.count > 0)
            return ra_has_extras(kernel) ? launch_persistent<Extras>(kernel, stream)
                                         : launch_persistent<Listed>(kernel, stream);
        if (ra_has_extras(kernel))
            return ra_k06_forward(kernel, stream);
        if constexpr (Few_keys > 0) {
            struct ra_range seen =
                ra_keys_seen(kernel->band, kernel->band_step, kernel->queries / 2, 1, kernel->keys);
            int64_t keys = Dim <= 128 ? kernel->keys : seen.end - seen.first;
            if (kernel->first && kernel->last && kernel->semaphores && keys <= Few_keys)
                return launch_persistent<Single>(kernel, stream);
        }
        if constexpr (Dim == 128 || Dim == 256)
            if (ra_pairs_pay(kernel->queries, Tile::Rows, 64, [=](int64_t a0, int64_t rows) {
                    return ra_keys_seen(kernel->band, kernel->band_step, a0, rows, kernel->keys);
                })) {
                typedef tile_of<Type, Widths, 2> Pair;
                return launch_tiles<Pair>(tile_kernel<Pair>, kernel, stream);
            }
        if constexpr (Tile::Overlaps)
            return launch_tiles<Tile>(tile_kernel<Tile>, kernel, stream);
        else
            return ra_k06_forward(kernel, stream);
    });
}

/* A list wants persistent blocks, however many keys there are: it knows the work of every tile, and
 * who draws is done when the others are. */
extern "C" cudaError_t ra_k07_takes_forward(const struct ra_kernel *kernel, bool *takes)
{
    cudaError_t error = supports(takes, kernel);
    *takes = *takes && kernel->semaphores;
    return error;
}
