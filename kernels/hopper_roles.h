/* hopper_roles: the roles of k06 and k07, for one tile of queries: the warp that loads, the warps
 * that clean the values, and the warpgroups that compute; and how the carry is read ahead.
 *
 * Chapter 11d.
 */
#ifndef HOPPER_ROLES_H
#define HOPPER_ROLES_H

#include "hopper_forward.h"

/* Three warpgroups compute; of D = 256 two, as o takes 128 registers; and of D = 192, as beside
 * three there is no shared memory for so many keys. Beside 176 scores a thread has no register left
 * for extras. */
template <class Type, class Widths, bool Extras = false> struct shape_of;
template <class Type, bool Extras>
struct shape_of<Type, widths<64>, Extras>
    : hopper_tile<Type, widths<64>, Extras ? 128 : 176, 3, 1, false, Extras> {
};
template <class Type, bool Extras>
struct shape_of<Type, widths<128>, Extras>
    : hopper_tile<Type, widths<128>, 128, 3, 1, false, Extras> {
};
template <class Type, bool Extras>
struct shape_of<Type, widths<192, 128>, Extras>
    : hopper_tile<Type, widths<192, 128>, 128, 2, 1, false, Extras> {
};
template <class Type, bool Extras>
struct shape_of<Type, widths<256>, Extras>
    : hopper_tile<Type, widths<256>, 64, 2, 1, false, Extras> {
};

/* Shared memory: two slots for keys and two for values. */
template <class Shape> struct roles_memory {
    alignas(1024) char q[Shape::Groups][Shape::Query_bytes];
    alignas(1024) char k[2][Shape::Key_bytes];
    alignas(1024) char v[2][Shape::Value_bytes];

    /* Which keys the mask allows, of the last four tiles: a slot is written again when the keys of
     * two tiles later have been multiplied, and by then nobody reads the old one. */
    uint32_t allowed[4][Shape::Words];

    /* Of values that not all rows see, a bit for every key whose row had a number that is not
     * finite. */
    uint16_t nonfinite[2][Shape::Keys / 16];
    ra_barrier full_q[Shape::Groups], empty_q[Shape::Groups];
    ra_barrier full_k[2], empty_k[2], full_v[2], clean_v[2], empty_v[2];
};

/* Of the warpgroup that loads, the warps that clean values. */
enum { SANITIZER_WARPS = 3 };

/* By one thread. Full: one thread says how many bytes come. Clean: what is not finite has been
 * taken out of the values. Empty: every warp that reads them is through; of a cluster those of both
 * blocks, as what one loads goes to both. */
template <class Shape> RA_DEVICE void begin_barriers(struct roles_memory<Shape> &shared)
{
    for (int g = 0; g < Shape::Groups; g++) {
        ra_barrier_init(&shared.full_q[g], 1);
        ra_barrier_init(&shared.empty_q[g], 4);
    }
    for (int i = 0; i < 2; i++) {
        ra_barrier_init(&shared.full_k[i], 1);
        ra_barrier_init(&shared.full_v[i], 1);
        ra_barrier_init(&shared.clean_v[i], SANITIZER_WARPS);
        ra_barrier_init(&shared.empty_k[i], Shape::Cluster * Shape::Warps);
        ra_barrier_init(&shared.empty_v[i], Shape::Cluster * (Shape::Warps + SANITIZER_WARPS));
    }
    ra_barriers_ready();
}

/* Of tile of keys number `number`, counted from the first one that the block loads: its slot, and
 * the parity of its phase there. */
RA_DEVICE int slot_of(unsigned number)
{
    return number % 2;
}

RA_DEVICE int parity_of(unsigned number)
{
    return number / 2 % 2;
}

/* ---- The warp that loads. */

/* The queries of a warpgroup, once it is through with those of the task before. */
template <class Shape>
RA_DEVICE void load_queries(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                            const struct hopper_task &task, int group)
{
    ra_barrier_wait(&shared.empty_q[group], task.turn % 2 ^ 1);
    if (threadIdx.x % 32 == 0) {
        ra_barrier_expect(&shared.full_q[group], Shape::Query_bytes);
        ra_load_tile<Shape::Dim, 64>(shared.q[group], &f.q_map, &shared.full_q[group],
                                     (int)task.a0 + 64 * group, task.h, task.b);
    }
}

template <class Shape>
RA_DEVICE void load_keys(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                         const struct hopper_task &task, int b0, int number)
{
    int slot = slot_of(number);
    uint32_t allowed[Shape::Words];
    if (f.kernel.mask.data)
        valid_rows<Shape::Keys>(allowed, f.kernel.mask, task.b, b0, task.first + task.keys);
    ra_barrier_wait(&shared.empty_k[slot], parity_of(number) ^ 1);
    if (threadIdx.x % 32 == 0) {
        if (f.kernel.mask.data)
#pragma unroll
            for (int w = 0; w < Shape::Words; w++)
                shared.allowed[number % 4][w] = allowed[w];
        ra_barrier_expect(&shared.full_k[slot], Shape::Key_bytes);
        ra_load_tile<Shape::Dim, Shape::Keys, Shape::Cluster>(
            shared.k[slot], &f.k_map, &shared.full_k[slot], b0, task.g, task.b);
    }
}

template <class Shape>
RA_DEVICE void load_values(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                           const struct hopper_task &task, int b0, int number)
{
    int slot = slot_of(number);
    ra_barrier_wait(&shared.empty_v[slot], parity_of(number) ^ 1);
    if (threadIdx.x % 32 == 0) {
        ra_barrier_expect(&shared.full_v[slot], Shape::Value_bytes);
        ra_load_tile<Shape::Dim_value, Shape::Keys, Shape::Cluster>(
            shared.v[slot], &f.v_map, &shared.full_v[slot], b0, task.g, task.b);
    }
}

/* How many tiles of keys are left when a block of k07 finds out which tile of queries is its next
 * one. If it draws that earlier, others may have nothing left to draw while it is still far from
 * this one; later, and the answer comes too late. */
enum { K07_LEFT = 8 };

/* Keys, queries and values in the order in which there is room and in which they are wanted. A slot
 * is filled when all warps have given it back; before its first filling nobody has to. Calls
 * meanwhile() once, when both slots are full and few tiles are left. */
template <class Shape, class Meanwhile>
RA_DEVICE void load(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                    const struct hopper_task &task, const Meanwhile &meanwhile)
{
    int count = task.count, number = task.number, b0 = (int)task.first;
#pragma unroll 1
    for (int tile = 0; tile < count; tile++, b0 += Shape::Keys) {
        load_keys(shared, f, task, b0, number + tile);
        if (tile == 0 && begins_tile<Shape>(task))
            load_queries(shared, f, task, 0);
        load_values(shared, f, task, b0, number + tile);
        if (tile == 0 && begins_tile<Shape>(task))
#pragma unroll 1
            for (int group = 1; group < Shape::Groups; group++)
                load_queries(shared, f, task, group);
        if (tile == max(min(1, count - 1), count - K07_LEFT))
            meanwhile();
    }
}

/* This warp is through with a slot, which one block has filled, or the two of a cluster. */
template <int Cluster = 1> RA_DEVICE void release_slot(ra_barrier *empty)
{
    __syncwarp();
    int lane = threadIdx.x % 32;
    if (Cluster == 1 && lane == 0)
        ra_barrier_arrive(empty);
    if (Cluster > 1 && lane < Cluster)
        ra_barrier_arrive_at(empty, lane);
}

/* ---- The warps that clean the values. */

/* zero_nonfinite by one warp, for 16 keys, while others multiply: two threads have a key, each half
 * of its columns. The mark is a bit of `nonfinite`. */
template <class Shape>
RA_DEVICE void zero_nonfinite_16_keys(struct roles_memory<Shape> &shared, int slot, int part)
{
    typedef typename Shape::Type Type;
    constexpr int Half = Shape::Dim_value / 2, Some = 2;
    int lane = threadIdx.x % 32, key = 16 * part + lane % 16, first = lane / 16 * Half;
    auto chunk_at = [&](int c) {
        return (uint4 *)&shared.v[slot][ra_panel_offset(key, c, Shape::Keys)];
    };
    uint32_t sums = 0;
#pragma unroll 1
    for (int c = first; c < first + Half; c += 8 * Some) {
        uint4 chunks[Some];
#pragma unroll
        for (int i = 0; i < Some; i++)
            chunks[i] = *chunk_at(c + 8 * i);
#pragma unroll
        for (int i = 0; i < Some; i++)
            sums = detect_nonfinite<Type>(sums, chunks[i]);
    }
    uint32_t nonfinite = __ballot_sync(0xffffffff, sums != 0);
    if (nonfinite != 0)
#pragma unroll 1
        for (int c = first; c < first + Half; c += 8)
            if (is_nonfinite<Type>(*chunk_at(c)))
                *chunk_at(c) = make_uint4(0, 0, 0, 0);
    if (lane == 0)
        shared.nonfinite[slot][part] = (uint16_t)(nonfinite | nonfinite >> 16);
}

/* Every tile that not all rows see. The unmasked ones are waited for and given back, too: a parity
 * tells a phase from the next one only. */
template <class Shape>
RA_DEVICE void sanitize(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                        const struct hopper_task &task)
{
    struct tiles unmasked = unmasked_for_all(task);
    int number = ra_uniform(task.number), end = number + ra_uniform(task.count);
#pragma unroll 1
    for (; number < end; number++) {
        int slot = slot_of(number);
        ra_barrier_wait(&shared.full_v[slot], parity_of(number));
        if (!is_unmasked<Shape>(f, unmasked, number, shared.allowed[number % 4])) {
#pragma unroll 1
            for (int part = threadIdx.x / 32 - 1; part < Shape::Keys / 16; part += SANITIZER_WARPS)
                zero_nonfinite_16_keys<Shape>(shared, slot, part);
            ra_stores_before_wgmma();
        }
        release_slot(&shared.clean_v[slot]);
        release_slot<Shape::Cluster>(&shared.empty_v[slot]);
    }
}

/* ---- A warpgroup that computes. */

/* Which warpgroup of those that compute this thread is of; and its first row, of the block's, the
 * other one being 8 further on. Asked for each time: registers are scarce. */
RA_DEVICE int group_of(void)
{
    return ra_afresh(threadIdx.x) / 128 - 1;
}

RA_DEVICE int row_of(void)
{
    unsigned thread = ra_afresh(threadIdx.x) - 128;
    return thread / 32 * 16 + thread % 32 / 4;
}

/* The same, counted from the first of all queries; beyond the last if the warpgroup has no rows. */
RA_DEVICE int64_t first_row(const struct hopper_task &task)
{
    return task.rows[group_of()] + row_of() % 64;
}

/* One tile of keys. */
template <class Shape>
RA_DEVICE void fold(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                    const struct hopper_task &task, unsigned number, struct tiles unmasked_tiles,
                    int group, struct carry<Shape> &carry)
{
    constexpr int Keys = Shape::Keys;
    int slot = slot_of(number), parity = parity_of(number);
    ra_barrier_wait(&shared.full_k[slot], parity);

    /* Mostly every row of the block sees every key. */
    bool unmasked = is_unmasked<Shape>(f, unmasked_tiles, number, shared.allowed[number % 4]);
    typename Shape::Scores s;
    qk<Shape>(s, ra_descriptor(ra_shared(shared.q[group]), 0),
              ra_descriptor(ra_shared(shared.k[slot]), 0));
    release_slot<Shape::Cluster>(&shared.empty_k[slot]);

    if (!unmasked) {
        ra_barrier_wait(&shared.full_v[slot], parity);
        ra_barrier_wait(&shared.clean_v[slot], parity);
    }
    online_softmax<Shape>(s, carry, f, task, number, unmasked, row_of(), shared.allowed[number % 4],
                          shared.nonfinite[slot]);
    uint32_t p[Keys / 16][4];
    pack<Shape>(p, s);

    ra_barrier_wait(&shared.full_v[slot], parity);
    pv<Shape>(carry.o, p, ra_descriptor(ra_shared(shared.v[slot]), ra_panel_stride(Keys)));
    release_slot<Shape::Cluster>(&shared.empty_v[slot]);
}

/* ---- Two tiles of keys at a time: while values of one are multiplied, the scores of the next
 * become weights. */

/* Sends the values of a tile, of which p are the weights, on their way into o. */
template <class Shape>
RA_DEVICE void begin_values(struct roles_memory<Shape> &shared, unsigned number,
                            uint32_t (&p)[Shape::Keys / 16][4], struct carry<Shape> &carry)
{
    int slot = slot_of(number);
    ra_barrier_wait(&shared.full_v[slot], parity_of(number));
    begin_pv<Shape>(carry.o, p,
                    ra_descriptor(ra_shared(shared.v[slot]), ra_panel_stride(Shape::Keys)));
}

/* Waits until they are there. */
template <class Shape>
RA_DEVICE void end_values(struct roles_memory<Shape> &shared, unsigned number,
                          struct carry<Shape> &carry)
{
    ra_products_wait<0>();
    ra_pin(carry.o[0]);
    release_slot<Shape::Cluster>(&shared.empty_v[slot_of(number)]);
}

template <class Shape> RA_DEVICE void rescale(struct carry<Shape> &carry, const float (&before)[2])
{
#pragma unroll
    for (int c = 0; c < Shape::Dim_value / 8; c++)
        ra_multiply_if(true, carry.o[0][c], before);
}

/* Of D_v = 256 a thread has so much of o that it is rescaled while scores are multiplied: one tile
 * later than elsewhere. */
template <class Shape> struct rescales_late {
    static constexpr bool value = Shape::Dim_value > 128;
};

/* Folds tile `number`. What comes in are the weights p of the tile before, unless this is the
 * first; what goes out are this one's, with what o must be multiplied by if it is rescaled late.
 *
 * Plain: every row sees every key, and a score is nothing but a product. Then no branch stands
 * between the largest scores and the end, and the compiler mixes all there is: exponentials of this
 * tile, the wait for the values of the one before, the rescaling, and the packing. */
template <class Shape, bool Plain>
RA_DEVICE void fold_next(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                         const struct hopper_task &task, unsigned number, bool first, bool unmasked,
                         int group, uint32_t (&p)[Shape::Keys / 16][4], float (&before)[2],
                         struct carry<Shape> &carry)
{
    constexpr bool Late = rescales_late<Shape>::value;
    int slot = slot_of(number);
    uint64_t q = ra_descriptor(ra_shared(shared.q[group]), 0),
             k = ra_descriptor(ra_shared(shared.k[slot]), 0);
    typename Shape::Scores s;

    /* The scores of this tile, and the values of the one before, if there is one. */
    if (Plain || !first) {
        begin_qk<Shape>(s, q, k);
        if (Late)
            rescale<Shape>(carry, before);
        begin_values<Shape>(shared, number - 1, p, carry);
        if (Plain)
            ra_products_wait<1>();
        else
            end_values<Shape>(shared, number - 1, carry);
        ra_pin(s[0]);
    } else {
        qk<Shape>(s, q, k);
    }
    release_slot<Shape::Cluster>(&shared.empty_k[slot]);
    if (Plain) {
        note_seen<Shape>(carry);
    } else {
        if (!unmasked) {
            ra_barrier_wait(&shared.full_v[slot], parity_of(number));
            ra_barrier_wait(&shared.clean_v[slot], parity_of(number));
        }
        prepare_scores<Shape>(s, carry, f, task, number, unmasked, row_of(),
                              shared.allowed[number % 4], shared.nonfinite[slot]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        before[r] = weigh_row<Shape>(s, carry, r, f.factor);
    if (Plain)
        end_values<Shape>(shared, number - 1, carry);
    pack<Shape>(p, s);
    if (!Late)
        rescale<Shape>(carry, before);
}

/* Folds tiles number to end - 1, if there are any. */
template <class Shape>
RA_DEVICE void fold_overlapping(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                                const struct hopper_task &task, int number, int end,
                                struct tiles unmasked_tiles, int group, struct carry<Shape> &carry)
{
    uint32_t p[Shape::Keys / 16][4];
    float before[2];
    if (number >= end)
        return;
    bool first = true;
#pragma unroll 1
    for (; number < end; number++, first = false) {
        ra_barrier_wait(&shared.full_k[slot_of(number)], parity_of(number));
        bool unmasked = is_unmasked<Shape>(f, unmasked_tiles, number, shared.allowed[number % 4]);
        if (unmasked && f.plain && !first)
            fold_next<Shape, true>(shared, f, task, number, false, true, group, p, before, carry);
        else
            fold_next<Shape, false>(shared, f, task, number, first, unmasked, group, p, before,
                                    carry);
    }
    if (rescales_late<Shape>::value)
        rescale<Shape>(carry, before);
    begin_values<Shape>(shared, number - 1, p, carry);
    end_values<Shape>(shared, number - 1, carry);
}

/* ---- All tiles of a task. */

/* A tile of keys that only the other warpgroups see. */
template <class Shape> RA_DEVICE void pass(struct roles_memory<Shape> &shared, unsigned number)
{
    int slot = slot_of(number), parity = parity_of(number);
    ra_barrier_wait(&shared.full_k[slot], parity);
    release_slot<Shape::Cluster>(&shared.empty_k[slot]);
    ra_barrier_wait(&shared.full_v[slot], parity);
    release_slot<Shape::Cluster>(&shared.empty_v[slot]);
}

/* All tiles of keys of a task, one after the other: in the middle those that this warpgroup
 * sees. */
template <class Shape>
RA_DEVICE void fold_tiles(struct roles_memory<Shape> &shared, const struct hopper_forward &f,
                          const struct hopper_task &task, struct carry<Shape> &carry)
{
    int group = ra_uniform(threadIdx.x / 128) - 1, number = ra_uniform(task.number);
    struct tiles unmasked = unmasked_for_all(task), own = uniform(task.of[group]);
    if (begins_tile<Shape>(task)) {
        ra_barrier_wait(&shared.full_q[group], task.turn % 2);
        begin(carry);
    }
#pragma unroll 1
    for (; number < own.first; number++)
        pass(shared, number);
    if constexpr (Shape::Overlaps) {
        fold_overlapping<Shape>(shared, f, task, number, own.end, unmasked, group, carry);
        number = max(number, own.end);
    } else {
#pragma unroll 1
        for (; number < own.end; number++)
            fold(shared, f, task, number, unmasked, group, carry);
    }
    if (ends_tile<Shape>(task))
        release_slot(&shared.empty_q[group_of()]);
#pragma unroll 1
    for (; number < task.number + task.count; number++)
        pass(shared, number);
}

/* ---- The carry, read ahead, where a block of threads, or a pair of them, has one tile. */

/* Where TMA finds the carry, if it can read it. */
struct tile_forward : hopper_forward {
    CUtensorMap carry_map;
    bool ahead;
};

template <class Shape> struct tile_memory : roles_memory<Shape> {
    struct hopper_task task;

    /* Of a carry that is read ahead: the largest score and the sum of every row. */
    float largest[Shape::Groups][64], sum[Shape::Groups][64];
    ra_barrier full_carry[Shape::Groups];
};

/* The carry is read while the last tiles are multiplied: each of the warps that clean reads it for
 * one warpgroup, to where a tile of values or keys was. Of D_v = 256 it does not fit there, and
 * beside extras there are no registers. */
template <class Shape> struct carry_fits {
    static constexpr int Bytes = 64 * Shape::Dim_value * (int)sizeof(float);
    static constexpr bool value = Bytes <= Shape::Value_bytes && Bytes <= Shape::Key_bytes;
};

template <class Shape> RA_DEVICE bool reads_ahead(const struct tile_forward &f)
{
    return carry_fits<Shape>::value && !Shape::Extras && f.ahead;
}

/* Where the rows of a warpgroup come to: a slot into which no tile of keys or values is loaded any
 * more. There is one for each. */
template <class Shape> RA_DEVICE char *carry_slot(struct tile_memory<Shape> &shared, int group)
{
    int slot = slot_of(shared.task.count + group / 2);
    return group == 1 ? shared.v[slot] : shared.k[slot];
}

/* Rows by TMA, as soon as the slot is empty; their sums by all threads of the warp, each of which
 * arrives for itself. */
template <class Shape>
RA_DEVICE void load_carry(struct tile_memory<Shape> &shared, const struct tile_forward &f,
                          int group)
{
    static_assert(Shape::Groups <= SANITIZER_WARPS, "no warp reads the carry of a warpgroup");
    if (group >= Shape::Groups)
        return;
    const struct hopper_task &task = shared.task;
    int number = task.count + group / 2, lane = threadIdx.x % 32;
    ra_barrier *empty = group == 1 ? shared.empty_v : shared.empty_k,
               *full = &shared.full_carry[group];
    ra_barrier_wait(&empty[slot_of(number)], parity_of(number) ^ 1);
    if (lane == 0) {
        ra_barrier_expect(full, carry_fits<Shape>::Bytes);
#pragma unroll
        for (int panel = 0; panel < Shape::Dim_value / 32; panel++)
            ra_load_box(carry_slot(shared, group) + panel * ra_panel_stride(64), &f.carry_map, full,
                        32 * panel, (int)task.rows[group], task.h, task.b);
    }
#pragma unroll
    for (int row = lane; row < 64; row += 32) {
        float2 sums = sums_before(f.kernel, task, task.rows[group] + row);
        shared.largest[group][row] = sums.x;
        shared.sum[group][row] = sums.y;
    }
    ra_barrier_arrive(full);
}

/* Where a thread that computes finds the carry: there, or in memory. */
template <class Shape> struct carry_ahead {
    const struct tile_forward &f;
    struct tile_memory<Shape> &shared;

    __device__ __forceinline__ float2 sums_of(int64_t a, int r) const
    {
        if (!reads_ahead<Shape>(f))
            return sums_before(f.kernel, shared.task, a);
        int group = group_of(), row = row_of() % 64 + 8 * r;
        return make_float2(shared.largest[group][row], shared.sum[group][row]);
    }

    __device__ __forceinline__ void load(float2 (&to)[Shape::Dim_value / 8], int64_t a, int r) const
    {
        if (!reads_ahead<Shape>(f))
            return carry_in_memory<Shape>{f, shared.task}.load(to, a, r);

        /* In a panel a number of float32 takes the place of two of 16 bits. */
        const char *slot = carry_slot(shared, group_of());
        int first = ra_panel_offset(row_of() % 64 + 8 * r, 4 * (threadIdx.x % 4), 64);
#pragma unroll
        for (int c = 0; c < Shape::Dim_value / 8; c++)
            to[c] = *(const float2 *)(slot + ra_panel_along(first, 16 * c, 64));
    }
};

/* ---- For the host. */

/* Launches a kernel with a block for every tile of queries, or a cluster of blocks. */
template <class Shape>
static cudaError_t launch_tiles(void (*function)(struct tile_forward),
                                const struct ra_kernel *kernel, cudaStream_t stream)
{
    static_assert(sizeof(struct tile_memory<Shape>) <= 227 << 10,
                  "more shared memory than a block may have");
    struct tile_forward f;
    cudaError_t error = prepare_hopper<Shape>(&f, kernel);
    f.ahead = carry_fits<Shape>::value && !kernel->first &&
              ra_in_boxes(kernel->carry_o, kernel->queries, kernel->dim_value);
    if (error == cudaSuccess && f.ahead)
        error = ra_make_map(&f.carry_map, kernel->carry_o, kernel->batch, kernel->queries,
                            kernel->heads, kernel->dim_value, 64);
    return error != cudaSuccess
               ? error
               : ra_launch(function, Shape::Cluster * f.blocks, Shape::Threads + 128,
                           sizeof(struct tile_memory<Shape>), stream, f);
}

#endif
