/* k06: the forward with roles: one warpgroup only loads, the others only compute. For compute
 * capability 9.0; elsewhere k03 runs.
 *
 * Chapter 11d. New here: a warp that has nothing to do but to keep TMA busy, two tiles ahead of the
 * others; mbarriers in both directions, full and empty; registers that the loading warpgroup gives
 * to those that compute. Three of these, each with 64 rows of queries and a pace of its own: while one
 * is at its exponentials, the others' products keep the tensor cores busy.
 */
#include "k04.h"

/* Shared memory: two places for keys and two for values. */
template <class Shape> struct shared_memory {
    alignas(1024) char q[Shape::Query_bytes];
    alignas(1024) char k[2][Shape::Key_bytes];
    alignas(1024) char v[2][Shape::Key_bytes];

    /* Which keys the mask allows, of the last four tiles: a place is written again when the keys of
     * two tiles later have been multiplied, and by then nobody reads the old one. */
    uint32_t allowed[4][Shape::Words];
    struct hopper_task task;
    ra_barrier full_q, full_k[2], empty_k[2], full_v[2], empty_v[2];
};

/* Of tile number `tile`: its place, and the parity of its phase there. */
RA_DEVICE int place_of(int tile)
{
    return tile % 2;
}

RA_DEVICE int parity_of(int tile)
{
    return tile / 2 % 2;
}

/* The loading warp: the queries, then keys and values in the order in which they are wanted: K of a tile,
 * then V of the tile before. A place is filled when all consumers have given it back; before its first
 * filling nobody has to. */
template <class Shape>
RA_DEVICE void load(struct shared_memory<Shape> &shared, const struct hopper_forward &f)
{
    constexpr int Dim = Shape::Dim, Keys = Shape::Keys;
    const struct hopper_task &task = shared.task;
    bool leads = threadIdx.x == 0;
    if (leads) {
        ra_barrier_expect(&shared.full_q, Shape::Query_bytes);
        ra_load_tile<Dim, Shape::Rows>(shared.q, &f.q_map, &shared.full_q, (int)task.a0, task.h,
                                       task.b);
    }
    int count = task.count, b0 = (int)task.first;
#pragma unroll 1
    for (int tile = 0; tile <= count; tile++, b0 += Keys) {
        if (tile < count) {
            int place = place_of(tile);
            uint32_t allowed[Shape::Words];
            if (f.x.mask.data)
                rows_there<Keys>(allowed, f.x.mask, task.b, b0, task.end);
            ra_barrier_wait(&shared.empty_k[place], parity_of(tile) ^ 1);
            if (leads) {
                if (f.x.mask.data)
#pragma unroll
                    for (int w = 0; w < Shape::Words; w++)
                        shared.allowed[tile % 4][w] = allowed[w];
                ra_barrier_expect(&shared.full_k[place], Shape::Key_bytes);
                ra_load_tile<Dim, Keys>(shared.k[place], &f.k_map, &shared.full_k[place], b0,
                                        task.g, task.b);
            }
        }
        if (tile > 0) {
            int place = place_of(tile - 1);
            ra_barrier_wait(&shared.empty_v[place], parity_of(tile - 1) ^ 1);
            if (leads) {
                ra_barrier_expect(&shared.full_v[place], Shape::Key_bytes);
                ra_load_tile<Dim, Keys>(shared.v[place], &f.v_map, &shared.full_v[place],
                                        b0 - Keys, task.g, task.b);
            }
        }
    }
}

/* This warp is through with a place. */
RA_DEVICE void give(ra_barrier *empty)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ra_barrier_arrive(empty);
}

/* One tile of keys. q: this warpgroup's rows, described; row: this thread's first one. */
template <class Shape>
RA_DEVICE void fold(struct shared_memory<Shape> &shared, const struct hopper_forward &f, int tile,
                    uint64_t q, int row, struct carry<Shape> &carry)
{
    constexpr int Keys = Shape::Keys;
    const struct hopper_task &task = shared.task;
    int place = place_of(tile), parity = parity_of(tile);
    ra_barrier_wait(&shared.full_k[place], parity);

    /* Mostly everybody sees all of these keys: then nothing is hidden. */
    const uint32_t *allowed = shared.allowed[tile % 4];
    bool whole = tile >= task.whole && tile < task.whole_end &&
                 (!f.x.mask.data || all_there<Shape>(allowed));
    if (!whole) {
        ra_barrier_wait(&shared.full_v[place], parity);
        take_out_spoiled_values<Shape>(shared.k[place], shared.v[place], threadIdx.x - 128, 1);
    }

    typename Shape::Scores s;
    ra_products_begin();
    multiply_keys<Shape>(s, q, ra_descriptor(ra_shared(shared.k[place]), 0));
    ra_products_end();
    ra_products_wait<0>();
    ra_pin(s[0]);
    give(&shared.empty_k[place]);

    soften<Shape>(s, carry, f, task, tile, whole, row, allowed);
    uint32_t p[Keys / 16][4];
    pack<Shape>(p, s);

    ra_barrier_wait(&shared.full_v[place], parity);
    ra_pin(carry.o[0]);
    ra_pin(p);
    ra_products_begin();
    add_values<Shape>(carry.o, p,
                      ra_descriptor(ra_shared(shared.v[place]), ra_panel_stride(Keys)));
    ra_products_end();
    ra_products_wait<0>();
    ra_pin(carry.o[0]);
    give(&shared.empty_v[place]);
}

/* A warpgroup that computes: all tiles of keys, one after the other, and the end. */
template <class Shape>
RA_DEVICE void consume(struct shared_memory<Shape> &shared, const struct hopper_forward &f,
                       int group)
{
    uint64_t q = ra_descriptor(ra_shared(shared.q) + ra_panel_place(64 * group, 0, Shape::Rows), 0);
    int row = 64 * group + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    int count = shared.task.count;
    struct carry<Shape> carry;
    begin(carry);
    ra_barrier_wait(&shared.full_q, 0);
    for (int tile = 0; tile < count; tile++)
        fold(shared, f, tile, q, row, carry);
    finish(f, shared.task, shared.task.a0 + row, carry);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::Threads + 128, 1)
    forward_kernel(const __grid_constant__ struct hopper_forward f)
{
#if RA_IS_HOPPER
    extern __shared__ __align__(1024) char bytes[];
    struct shared_memory<Shape> &shared = *(struct shared_memory<Shape> *)bytes;

    /* Full: one thread says how many bytes come. Empty: every warp that computes is through. */
    if (threadIdx.x == 0) {
        shared.task = hopper_task_of<Shape>(f, blockIdx.x);
        ra_barrier_init(&shared.full_q, 1);
        for (int i = 0; i < 2; i++) {
            ra_barrier_init(&shared.full_k[i], 1);
            ra_barrier_init(&shared.full_v[i], 1);
            ra_barrier_init(&shared.empty_k[i], Shape::Warps);
            ra_barrier_init(&shared.empty_v[i], Shape::Warps);
        }
        ra_barriers_ready();
    }
    __syncthreads();
    if (shared.task.count == 0 && !f.x.first && !f.x.last)
        return;

    /* The same for all threads of a warp, so that the compiler knows it, too. */
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp < 4) {
        ra_fewer_registers<Shape::Groups == 3 ? 32 : 24>();
        if (warp == 0)
            load(shared, f);
    } else {
        ra_more_registers<Shape::Groups == 3 ? 160 : 240>();
        consume(shared, f, warp / 4 - 1);
    }
#endif
}

/* Three warpgroups; of D = 256 two, as o takes 128 registers. */
template <class Type, int Dim> struct shape_of;
template <class Type> struct shape_of<Type, 64> : hopper_tile<Type, 64, 176, 3> {};
template <class Type> struct shape_of<Type, 128> : hopper_tile<Type, 128, 128, 3> {};
template <class Type> struct shape_of<Type, 256> : hopper_tile<Type, 256, 64, 2> {};

extern "C" cudaError_t ra_k06_forward(const struct ra_kernel *x, cudaStream_t stream)
{
    return launch_or_k03(x, stream, [=](auto type, auto dim) {
        typedef shape_of<decltype(type), decltype(dim)::value> Shape;
        return launch_hopper<Shape, struct shared_memory<Shape>>(
            forward_kernel<Shape>, Shape::Threads + 128, x, stream);
    });
}
