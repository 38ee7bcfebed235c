/* hopper_backward: what the backwards for GPUs of compute capability 9.0 share, k06 and k07.
 *
 * Chapter 11e. Both are the backward of k03: s = q k^T and dp = d_out v^T, from these p and ds,
 * then dv += p^T d_out, dk += ds^T q and dq += ds k. New here is who does what. A block of threads
 * has warpgroups with two roles: one loads, by TMA, a tile ahead of where the others are; two
 * multiply, by wgmma, each for 64 of the rows that stay, or three, where D is small. Registers go
 * where the sums are: 24 to a thread that loads, 240 to one that multiplies; with three 32 and 160.
 *
 * A tile that passes lies in one of the Stages. `full` says that it is there, `empty` that all
 * warpgroups have read it; of a pair of blocks, those of both.
 */
#ifndef HOPPER_BACKWARD_H
#define HOPPER_BACKWARD_H

#include "mma_tiles.h"
#include "hopper_instructions.h"

enum { LOADER_THREADS = 64 }; /* threads that load queries */

/* The shape of a tile. Dim and Dim_value: D and D_v, rounded up with zeros, which TMA fills in.
 * Blocks: 1; or 2, if neighbouring tiles of keys are those of a pair: then each block loads half of
 * every tile of queries, for both. Groups: the warpgroups that multiply, with this many Threads; a
 * block has 128 more. Listed: tiles, and who sees their keys, are in a list. Sloped: places add to
 * scores. */
template <class Type_, int Dim_, int Keys_, int Queries_, int Stages_ = 2, int Blocks_ = 1,
          int Groups_ = 2, bool Listed_ = false, bool Sloped_ = false, int Dim_value_ = Dim_>
struct backward_tile {
    typedef Type_ Type;
    static constexpr int Dim = Dim_, Dim_value = Dim_value_, Keys = Keys_, Queries = Queries_,
                         Stages = Stages_;
    static constexpr bool Listed = Listed_, Sloped = Sloped_;
    static constexpr int Blocks = Blocks_, Groups = Groups_, Threads = 128 * Groups;
    static constexpr int Load_registers = Groups == 3 ? 32 : 24,
                         Multiply_registers = Groups == 3 ? 160 : 240;
    static constexpr int Key_bytes = 2 * Dim * Keys, Value_bytes = 2 * Dim_value * Keys;
    static constexpr int Query_bytes = 2 * Dim * Queries, Out_bytes = 2 * Dim_value * Queries;
};

/* What the launcher works out once for all threads. */
struct backward {
    CUtensorMap q, k, v, d_out, dk, dv, dq; /* dq: k07 */
    bool boxes;                             /* dk and dv leave by TMA */
    struct ra_kernel kernel;
    float factor; /* a score, or with a soft cap its tanh, times this is the power of two */
    float inside; /* with a soft cap: q . k times this goes into the tanh */
    int tiles;    /* of one head: of the rows that stay, or pairs of such */
    int sets;     /* of heads that go together */
    int group;    /* H / G query heads read a key/value head */
};

/* Which stage comes next, and the parity of the phase that is to be over there. */
struct pipeline_state {
    int stage, parity;
};

template <int Stages> RA_DEVICE void advance(struct pipeline_state &state)
{
    if (++state.stage == Stages) {
        state.stage = 0;
        state.parity ^= 1;
    }
}

/* Every thread arrives for itself. One could for the 32 of a warp, after a __syncwarp, as in the
 * forward; here threads have read and written shared memory themselves, and racecheck does not see
 * that such an arrival is for all of them. */
RA_DEVICE void release_slot(ra_barrier *barrier)
{
    ra_barrier_arrive(barrier);
}

/* The same, by the threads that load: `load`, in the first of them, issues the copies, of
 * `bytes`. */
template <class Load> RA_DEVICE void signal_full(ra_barrier *barrier, int bytes, const Load &load)
{
    if (threadIdx.x == 0) {
        ra_barrier_expect(barrier, bytes);
        load();
    } else {
        ra_barrier_arrive(barrier);
    }
}

/* ---- Products. What a thread has of a result, in c[j][2 r + e], is of row lane / 4 + 8 r of its
 * warp's 16 rows, and of column 8 j + 2 (lane % 4) + e. */

/* Of the threads that multiply, which one this is. Asked for each time: registers are scarce. */
RA_DEVICE int my_number(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread - 128;
}

/* Of the tile that stays this thread's first row, the other one being 8 further on; and its first
 * column, of two in every eight. */
RA_DEVICE int my_row(void)
{
    int number = my_number();
    return number / 32 * 16 + number % 32 / 4;
}

RA_DEVICE int my_column(void)
{
    return my_number() % 4 * 2;
}

/* c (64 x Columns) = a b^T over Dim columns, both as they lie, in panels of A_rows and Columns
 * rows. */
template <class Type, int Dim, int A_rows, int Columns>
RA_DEVICE void multiply_rows(float (&c)[Columns / 8][4], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int d = 0; d < Dim; d += 16)
        ra_wgmma<Type, Columns>::template multiply<false, false>(
            c, ra_descriptor_beyond(a, ra_panel_offset(0, d, A_rows)),
            ra_descriptor_beyond(b, ra_panel_offset(0, d, Columns)), d > 0);
    ra_products_end();
}

/* c (64 x Dim) += a (64 x Rows) b (Rows x Dim), a in registers. */
template <class Type, int Dim, int Rows>
RA_DEVICE void add_product(float (&c)[Dim / 8][4], const uint32_t (&a)[Rows / 16][4], uint64_t b)
{
#pragma unroll
    for (int i = 0; i < Rows / 16; i++)
        ra_wgmma<Type, Dim>::template multiply<true>(
            c, a[i], ra_descriptor_beyond(b, ra_panel_offset(16 * i, 0, Rows)), true);
    ra_products_end();
}

/* ---- From products to weights. lse2(j, r) and delta(j, r) are of columns 8 j and the next, and of
 * row 8 r, counted from this thread's first ones. */

/* Turns q . k, or the tanh of a soft cap, into weights. */
template <int Columns, class Lse>
RA_DEVICE void weigh(float (&s)[Columns / 8][4], float factor, const Lse &lse2)
{
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float2 base = lse2(j, e / 2);
            s[j][e] = ra_exp2(__fmaf_rn(s[j][e], factor, e % 2 ? -base.y : -base.x));
        }
}

/* A soft cap: scores of powers of two. dp - delta is to be multiplied by its slope: dp becomes such
 * that it is. */
template <int Columns, class Delta>
RA_DEVICE void cap_scores(float (&s)[Columns / 8][4], float (&dp)[Columns / 8][4],
                          const struct backward &f, const Delta &delta)
{
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float2 pair = delta(j, e / 2);
            float base = e % 2 ? pair.y : pair.x;
            s[j][e] = ra_tanh(s[j][e] * f.inside);
            dp[j][e] = (dp[j][e] - base) * (1 - s[j][e] * s[j][e]) + base;
            s[j][e] = __fmul_rn(s[j][e], f.factor); /* rounded, as in the forward */
        }
}

/* Weights with a soft cap. */
template <int Columns, class Lse, class Delta>
RA_DEVICE void weigh_capped(float (&s)[Columns / 8][4], float (&dp)[Columns / 8][4],
                            const struct backward &f, const Lse &lse2, const Delta &delta)
{
    cap_scores<Columns>(s, dp, f, delta);
    weigh<Columns>(s, 1, lse2);
}

/* Weights with a slope of head h, and perhaps a soft cap. distance(j, e): of the key from the query
 * of s[j][e]. */
template <int Columns, class Lse, class Delta, class Distance>
RA_DEVICE void weigh_sloped(float (&s)[Columns / 8][4], float (&dp)[Columns / 8][4],
                            const struct backward &f, int h, const Lse &lse2, const Delta &delta,
                            const Distance &distance)
{
    float slope = RA_LOG2E * ra_of_head(f.kernel.slopes, h);
    bool capped = f.kernel.score.softcap > 0;
    if (capped)
        cap_scores<Columns>(s, dp, f, delta);
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float score = capped ? s[j][e] : __fmul_rn(s[j][e], f.factor);
            s[j][e] = __fmaf_rn((float)distance(j, e), slope, score);
        }
    weigh<Columns>(s, 1, lse2);
}

/* What a query does not see has weight 0; until now it may be anything, and its dp too: 0 times NaN
 * is NaN. Of a key that is not finite, and was taken out, it sees NaN. */
RA_DEVICE void hide(float &weight, float &dp, bool hidden, bool nonfinite)
{
    weight = hidden ? 0 : nonfinite ? CUDART_NAN_F : weight;
    dp = hidden ? 0 : dp;
}

/* Numbers of 16 bits, as the left matrix of a product. */
template <class Type, int Columns>
RA_DEVICE void pack(uint32_t (&to)[Columns / 16][4], const float (&from)[Columns / 8][4])
{
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            to[j / 2][j % 2 * 2 + r] = Type::pair(from[j][2 * r], from[j][2 * r + 1]);
}

/* ds = p (dp - delta), of 16 bits, of weights p. In float16 ds, without the scale, must stay below
 * 65504, and is coarse below 6e-5: training in float16 scales the loss, as for every kernel. */
template <class Type, int Columns, class Delta>
RA_DEVICE void slope(uint32_t (&ds)[Columns / 16][4], const float (&p)[Columns / 8][4],
                     const float (&dp)[Columns / 8][4], const Delta &delta)
{
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 base = delta(j, r);
            ds[j / 2][j % 2 * 2 + r] = Type::pair(p[j][2 * r] * (dp[j][2 * r] - base.x),
                                                  p[j][2 * r + 1] * (dp[j][2 * r + 1] - base.y));
        }
}

/* lse times log2(e); a row that has seen nothing, lse = -inf, or is not there, gets weights of
 * 2^-inf = 0. */
RA_DEVICE float power_of_lse(float lse, bool valid)
{
    return valid && lse != -CUDART_INF_F ? lse * RA_LOG2E : CUDART_INF_F;
}

/* ---- What is not finite. */

/* zero_nonfinite of a tile of keys, as dq = ds k is a product over keys: the mark is a bit of
 * `nonfinite`. For the threads that multiply together. */
template <class Shape> RA_DEVICE void zero_nonfinite_keys(char *k, uint32_t *nonfinite)
{
    zero_nonfinite<typename Shape::Type>((uint4 *)k, Shape::Key_bytes / 16, my_number(),
                                         Shape::Threads,
                                         [](bool mine) {
                                             ra_stores_before_wgmma();
                                             return ra_named_barrier_or(1, Shape::Threads, mine);
                                         },
                                         [=](int chunk) {
                                             int key = chunk / 8 % Shape::Keys;
                                             atomicOr(&nonfinite[key / 32], 1u << key % 32);
                                         });
}

/* ---- Results. */

/* Are dk and dv written, and not added to what is there? */
RA_DEVICE bool writes_keys(const struct ra_kernel &kernel)
{
    return kernel.writes_keys || kernel.dk.type != RA_FLOAT32;
}

/* Adds scale * c to an array of float32, or writes it to one of float32 or of the inputs' type:
 * from row `row` on, which is this thread's first one, those before row `rows`. No other block has
 * these rows. */
template <class Type, int Columns>
RA_DEVICE void put_rows(const struct ra_tensor &to, bool adds, int b, int64_t row, int head,
                        int64_t rows, int dim, float scale, const float (&c)[Columns / 8][4])
{
    int64_t at = ra_offset(to, b, row, head) + my_column();
#pragma unroll
    for (int r = 0; r < 2; r++, at += 8 * to.row)
        if (row + 8 * r < rows)
#pragma unroll
            for (int j = 0; j < Columns / 8; j++)
                if (8 * j < dim) {
                    float first = scale * c[j][2 * r], second = scale * c[j][2 * r + 1];
                    float *sum = (float *)to.data + at + 8 * j;
                    if (adds)
                        ra_add2(sum, first, second);
                    else if (to.type == RA_FLOAT32)
                        *(float2 *)sum = make_float2(first, second);
                    else
                        *(uint32_t *)((uint16_t *)to.data + at + 8 * j) = Type::pair(first, second);
                }
}

/* ---- Keys that stay: dk and dv of a tile of keys, while all queries that see it pass. */

/* What a block of threads has to do: the tile of keys from b0 on, and the queries from `first` up
 * to `end`, tile by tile, of every head that reads these keys. The second of a pair may have no
 * keys; what passes is the same for both. In a list, queries first .. end - 1 are those of each of
 * `parts` parts, from number `part` on. */
struct keys_task {
    int b, g, b0, first, end, steps;
    int part, parts;
};

/* Is there nothing to do? Sums that are written, not added, are written even if they are 0. */
RA_DEVICE bool idle(int first, int end, bool writes)
{
    return end <= first && !writes;
}

/* A step: the tile of queries from a0 on, their head, and in a list their part. inside: all of them
 * see all keys, as far as the band goes. */
struct step {
    int a0, h, part;
    bool inside;
};

/* Tiles of the first keys come first: under a causal mask they have the most work. */
template <class Shape> RA_DEVICE struct keys_task keys_task_of(const struct backward &f, int block)
{
    int G = (int)f.kernel.key_heads;
    constexpr int Blocks = Shape::Blocks, Keys = Blocks * Shape::Keys;
    struct ra_tile_order order =
        ra_tile_order_of(block / Blocks, (int)f.kernel.batch * G, f.sets, f.tiles);
    struct keys_task task = {order.head / G, order.head % G};
    if (Shape::Listed) {
        const struct ra_work_tile &tile = f.kernel.work.tile[order.tile];
        task.b0 = tile.row;
        task.part = tile.part;
        task.parts = tile.parts;
        for (int i = 0; i < tile.parts; i++) {
            struct ra_sight seeing = f.kernel.work.part[tile.part + i].some;
            task.steps += (seeing.end - seeing.first + Shape::Queries - 1) / Shape::Queries;
        }
        task.steps *= f.group;
        task.end = task.steps;
        return task;
    }
    int first = order.tile * Keys;
    task.b0 = first + block % Blocks * Shape::Keys;
    struct ra_range range =
        ra_queries_seeing(f.kernel.band, f.kernel.band_step, first,
                          ra_min(Keys, f.kernel.keys - first), f.kernel.queries);
    if (range.first < range.end) {
        task.first = (int)(range.first / Shape::Queries * Shape::Queries);
        task.end = (int)range.end;
        task.steps = (task.end - task.first + Shape::Queries - 1) / Shape::Queries * f.group;
    }
    return task;
}

/* Named barriers: 1 is of all threads that multiply, these are of each warpgroup. */
enum { KEYS_ARE_PACKED = 2 };

template <class Shape> struct keys_memory {
    alignas(RA_PANEL_ALIGNMENT) char k[Shape::Key_bytes], v[Shape::Value_bytes];
    char q[Shape::Stages][Shape::Query_bytes], d_out[Shape::Stages][Shape::Out_bytes];
    float lse2[Shape::Stages][Shape::Queries], delta[Shape::Stages][Shape::Queries];
    int2 seen_by[Shape::Keys]; /* the first and the last query; 1 and 0: none; in a list, of the
                                  first part */
    uint32_t valid[Shape::Keys / 32]; /* a bit for every key: there, and not hidden by the mask */
    uint32_t
        nonfinite[Shape::Keys / 32]; /* with a number that is not finite, which was taken out */
    struct keys_task task;
    struct step step[Shape::Stages];
    ra_barrier keys_full, full[Shape::Stages], empty[Shape::Stages];
};

/* For all threads of the block. */
template <class Shape>
RA_DEVICE void begin(struct keys_memory<Shape> &shared, const struct keys_task &task)
{
    if (threadIdx.x == 0) {
        shared.task = task;
        ra_barrier_init(&shared.keys_full, 1);
        for (int i = 0; i < Shape::Stages; i++) {
            ra_barrier_init(&shared.full[i], LOADER_THREADS);
            ra_barrier_init(&shared.empty[i],
                            Shape::Threads + (Shape::Blocks - 1) * Shape::Threads / 32);
        }
        ra_barriers_ready();
    }
    ra_block_barrier<Shape::Blocks>();
}

/* Queries have been read: the threads that load may use their slot, of both blocks of a pair. To
 * the other block goes one thread of a warp, when all of it are through: it is far. */
template <class Shape> RA_DEVICE void release_queries(ra_barrier *empty)
{
    release_slot(empty);
    if (Shape::Blocks == 2) {
        __syncwarp();
        if (ra_afresh(threadIdx.x) % 32 == 0)
            ra_barrier_arrive_at(empty, blockIdx.x % 2 ^ 1);
    }
}

/* Calls step(a0, h, part) for the tiles of queries that pass, in their order. */
template <class Shape, class Step>
RA_DEVICE void each_step(const struct backward &f, const struct keys_task &task, const Step &step)
{
#pragma unroll 1
    for (int i = 0; i < f.group; i++) {
        int h = ra_query_head(f.kernel.head_map, (int)f.kernel.heads, (int)f.kernel.key_heads,
                              task.g, i);
        if constexpr (!Shape::Listed) {
#pragma unroll 1
            for (int a0 = task.first; a0 < task.end; a0 += Shape::Queries)
                step(a0, h, 0);
        } else {
#pragma unroll 1
            for (int part = task.part; part < task.part + task.parts; part++) {
                struct ra_sight queries = f.kernel.work.part[part].some;
#pragma unroll 1
                for (int a0 = queries.first; a0 < queries.end; a0 += Shape::Queries)
                    step(a0, h, part);
            }
        }
    }
}

/* Do all queries of a step see all keys of the tile? */
template <class Shape>
RA_DEVICE bool is_inside(const struct ra_kernel &kernel, int b0, const struct step &step)
{
    int end = step.a0 + Shape::Queries;
    if (!Shape::Listed)
        return end <= kernel.queries &&
               ra_all_seen(kernel.band, kernel.band_step, step.a0, Shape::Queries, b0, Shape::Keys);
    struct ra_sight every = kernel.work.part[step.part].every;
    return every.first <= step.a0 && end <= every.end;
}

/* The threads that load: the keys, then one tile of queries after the other. lse and delta may have
 * any strides: for these each thread has some rows, which it asks for before it waits. */
template <class Shape>
RA_DEVICE void load_queries(struct keys_memory<Shape> &shared, const struct backward &f)
{
    const struct keys_task &task = shared.task;
    constexpr int Dim = Shape::Dim, Dim_value = Shape::Dim_value, Keys = Shape::Keys,
                  Queries = Shape::Queries, Rows = Queries / LOADER_THREADS;
    const struct ra_kernel &kernel = f.kernel;
    if (threadIdx.x == 0) {
        ra_barrier_expect(&shared.keys_full, Shape::Key_bytes + Shape::Value_bytes);
        ra_load_tile<Dim, Keys>(shared.k, &f.k, &shared.keys_full, task.b0, task.g, task.b);
        ra_load_tile<Dim_value, Keys>(shared.v, &f.v, &shared.keys_full, task.b0, task.g, task.b);
    }

    struct pipeline_state state = {0, 1};
    each_step<Shape>(f, task, [&](int a0, int h, int part) {
        float lse2[Rows], delta[Rows];
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            int a = a0 + (int)threadIdx.x + LOADER_THREADS * i;
            bool valid = a < kernel.queries;
            lse2[i] = power_of_lse(valid ? *ra_floats(kernel.lse, task.b, a, h) : 0, valid);
            delta[i] = valid ? *ra_floats(kernel.delta, task.b, a, h) : 0;
        }
        struct step step = {a0, h, part};
        step.inside = is_inside<Shape>(kernel, task.b0, step);
        int stage = state.stage;
        ra_barrier *full = &shared.full[stage];
        ra_barrier_wait(&shared.empty[stage], state.parity);

        /* The copies begin before lse and delta are there: until this thread has arrived, and said
         * how many bytes there are, `full` cannot be complete. */
        if (threadIdx.x == 0) {
            ra_load_tile<Dim, Queries, Shape::Blocks>(shared.q[stage], &f.q, full, a0, h, task.b);
            ra_load_tile<Dim_value, Queries, Shape::Blocks>(shared.d_out[stage], &f.d_out, full, a0,
                                                            h, task.b);
        }
#pragma unroll
        for (int i = 0; i < Rows; i++) {
            shared.lse2[stage][threadIdx.x + LOADER_THREADS * i] = lse2[i];
            shared.delta[stage][threadIdx.x + LOADER_THREADS * i] = delta[i];
        }
        if (threadIdx.x == 0)
            shared.step[stage] = step;
        signal_full(full, Shape::Query_bytes + Shape::Out_bytes, []() {});
        advance<Shape::Stages>(state);
    });
}

/* How a block begins. True for the warpgroup that loads, which has then done all of its work; its
 * threads that do not load call rest(). (Not the warpgroup's number: the compiler gives each role
 * its registers only where they part at once.) */
template <class Shape, class Rest>
RA_DEVICE bool begin_or_load(struct keys_memory<Shape> &shared, const struct backward &f,
                             const struct keys_task &task, const Rest &rest)
{
    begin<Shape>(shared, task);
    if (ra_uniform(threadIdx.x / 128) == 0) {
        ra_fewer_registers<Shape::Load_registers>();
        if (threadIdx.x < LOADER_THREADS)
            load_queries<Shape>(shared, f);
        else
            rest();
        return true;
    }
    ra_more_registers<Shape::Multiply_registers>();
    return false;
}

/* In a list: the queries that see key i of a tile by one of its parts, and the one behind them. */
template <class Shape> RA_DEVICE int2 listed_sight(const struct backward &f, int part, int i)
{
    return __ldg((const int2 *)&f.kernel.work.sight[(int64_t)part * Shape::Keys + i]);
}

/* Finds out which queries see each key, for the threads that multiply together. */
template <class Shape>
RA_DEVICE void find_seen(struct keys_memory<Shape> &shared, const struct backward &f,
                         const struct keys_task &task)
{
    int i = my_number();
    if (i < Shape::Keys) {
        int64_t b = (int64_t)task.b0 + i;
        bool valid = b < f.kernel.keys && ra_allowed(f.kernel.mask, task.b, b);
        int2 range;
        if (Shape::Listed) {
            range = listed_sight<Shape>(f, task.part, i);
        } else {
            struct ra_range all =
                ra_queries_seeing(f.kernel.band, f.kernel.band_step, b, 1, f.kernel.queries);
            range = make_int2((int)all.first, (int)all.end);
        }
        bool seen = valid && range.x < range.y;
        shared.seen_by[i] = seen ? make_int2(range.x, range.y - 1) : make_int2(1, 0);
        shared.valid[i / 32] = __ballot_sync(0xffffffff, valid);
        shared.nonfinite[i / 32] = 0;
    }
    ra_named_barrier(1, Shape::Threads);
}

/* Are all keys there, and was none of them nonfinite? */
template <class Shape> RA_DEVICE bool all_sound(const struct keys_memory<Shape> &shared)
{
    bool all = true;
#pragma unroll
    for (int w = 0; w < Shape::Keys / 32; w++)
        all = all && shared.valid[w] == 0xffffffff && shared.nonfinite[w] == 0;
    return all;
}

/* Of this thread's two keys: the first and the last query that sees it, counted from this thread's
 * first column; and which of the two is nonfinite. */
struct sight {
    int2 seen_by[2];
    bool nonfinite[2];
};

template <class Shape>
RA_DEVICE struct sight sight_from(const struct keys_memory<Shape> &shared, const struct backward &f,
                                  const struct step &step)
{
    struct sight sight;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int key = my_row() % Shape::Keys + 8 * r, column = step.a0 + my_column();
        int2 seen_by = shared.seen_by[key];
        if (Shape::Listed && step.part != shared.task.part) {
            bool valid = shared.valid[key / 32] >> key % 32 & 1;
            seen_by = listed_sight<Shape>(f, step.part, key);
            seen_by.y = valid ? seen_by.y - 1 : -1;
        }
        sight.seen_by[r] = make_int2(seen_by.x - column, seen_by.y - column);
        sight.nonfinite[r] = shared.nonfinite[key / 32] >> key % 32 & 1;
    }
    return sight;
}

template <class Shape>
RA_DEVICE void hide_queries(float (&s)[Shape::Queries / 8][4], float (&dp)[Shape::Queries / 8][4],
                            const struct sight &sight)
{
#pragma unroll
    for (int j = 0; j < Shape::Queries / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = 8 * j + e % 2;
            int2 seen_by = sight.seen_by[e / 2];
            hide(s[j][e], dp[j][e], column < seen_by.x || column > seen_by.y,
                 sight.nonfinite[e / 2]);
        }
}

/* How far the keys of this thread are from the queries of a step: see weigh_sloped. */
template <class Shape> struct step_distance {
    const struct ra_kernel &kernel;
    int64_t a, b; /* this thread's first query, and its first key */

    __device__ __forceinline__ int operator()(int j, int e) const
    {
        return ra_place_of_row(kernel.key_place, b + e / 2 * 8, kernel.keys) -
               ra_place_of_row(kernel.query_place, a + 8 * j + e % 2, kernel.queries);
    }
};

template <class Shape>
RA_DEVICE struct step_distance<Shape> distance_of(const struct keys_memory<Shape> &shared,
                                                  const struct backward &f, int stage) {
    return {f.kernel, shared.step[stage].a0 + my_column(), shared.task.b0 + my_row() % Shape::Keys};
}

/* p and ds of step j, of this warpgroup's 64 keys: s = k q^T and dp = v d_out^T, and from these p =
 * 2^(s factor - lse2) and ds = p (dp - delta). The operands are described; q and d_out lie in a
 * stage, which has been waited for when this returns. sound: all keys are there and finite. */
template <class Shape>
RA_DEVICE void weigh_step(uint32_t (&p)[Shape::Queries / 16][4],
                          uint32_t (&ds)[Shape::Queries / 16][4],
                          const struct keys_memory<Shape> &shared, ra_barrier *full,
                          const struct backward &f, int j, bool sound, uint64_t k, uint64_t v,
                          uint64_t q, uint64_t d_out)
{
    typedef typename Shape::Type Type;
    constexpr int Keys = Shape::Keys, Queries = Shape::Queries;
    int stage = j % Shape::Stages;
    bool capped = f.kernel.score.softcap > 0;
    float s[Queries / 8][4], dp[Queries / 8][4];
    const float *lses = &shared.lse2[stage][my_column()];
    const float *deltas = &shared.delta[stage][my_column()];
    auto delta = [=](int j, int) { return *(const float2 *)&deltas[8 * j]; };

    /* What is read from shared memory behind the products waits until their operands have been
     * read: so here is read what there are registers for. */
    constexpr int Early = Shape::Groups == 3 ? 4 : 8;
    float2 early[Early];
    ra_barrier_wait(full, j / Shape::Stages % 2);
#pragma unroll
    for (int i = 0; i < Early; i++)
        early[i] = *(const float2 *)&lses[8 * i];
    auto lse2 = [&](int j, int) { return j < Early ? early[j] : *(const float2 *)&lses[8 * j]; };
    bool unmasked = sound && shared.step[stage].inside;

    ra_products_begin();
    multiply_rows<Type, Shape::Dim, Keys, Queries>(s, k, q);
    multiply_rows<Type, Shape::Dim_value, Keys, Queries>(dp, v, d_out);
    ra_products_wait<1>();
    ra_pin(s);
    if (!capped && !Shape::Sloped)
        weigh<Queries>(s, f.factor, lse2);
    ra_products_wait<0>();
    ra_pin(dp);
    if constexpr (Shape::Sloped)
        weigh_sloped<Queries>(s, dp, f, shared.step[stage].h, lse2, delta,
                              distance_of<Shape>(shared, f, stage));
    else if (capped)
        weigh_capped<Queries>(s, dp, f, lse2, delta);
    if (!unmasked)
        hide_queries<Shape>(s, dp, sight_from<Shape>(shared, f, shared.step[stage]));
    pack<Type, Queries>(p, s);
    slope<Type, Queries>(ds, s, dp, delta);
}

/* Adds or writes a warpgroup's 64 x Columns numbers of dk or dv. */
template <class Shape, int Columns>
RA_DEVICE void put_keys(const struct ra_kernel &kernel, const struct ra_tensor &to, int64_t dim,
                        const struct keys_task &task, float scale, const float (&c)[Columns][4])
{
    put_rows<typename Shape::Type, 8 * Columns>(to, !writes_keys(kernel), task.b,
                                                task.b0 + my_row() % Shape::Keys, task.g,
                                                kernel.keys, (int)dim, scale, c);
}

/* The same as numbers of 16 bits, into a slot in shared memory, in panels of this many rows. */
template <class Shape, int Rows, int Columns>
RA_DEVICE void pack_keys(char *slot, float scale, const float (&c)[Columns][4])
{
    int lane = ra_afresh(threadIdx.x) % 32, row = my_row() % 64 / 16 * 16 + lane % 16;
    uint32_t first = ra_shared(slot) + ra_panel_offset(row, lane / 16 * 8, Rows);
#pragma unroll
    for (int i = 0; i < Columns / 2; i++) {
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = Shape::Type::pair(scale * c[2 * i + e / 2][e % 2 * 2],
                                     scale * c[2 * i + e / 2][e % 2 * 2 + 1]);
        ra_store_matrices(ra_panel_along(first, 16 * i, Rows), x);
    }
}

/* A warpgroup's dk and dv, at its end. If they are written and TMA can take them, they leave by it:
 * dv from where its 64 rows of v were, which no other has read, and dk from a slot with panels of
 * this many rows. */
template <class Shape, int Rows>
RA_DEVICE void store_dk_dv(struct keys_memory<Shape> &shared, const struct backward &f,
                           char *dk_slot, const float (&dk)[Shape::Dim / 8][4],
                           const float (&dv)[Shape::Dim_value / 8][4])
{
    const struct keys_task &task = shared.task;
    if (!f.boxes) {
        put_keys<Shape>(f.kernel, f.kernel.dk, f.kernel.dim, task, f.kernel.score.scale, dk);
        put_keys<Shape>(f.kernel, f.kernel.dv, f.kernel.dim_value, task, 1, dv);
        return;
    }
    constexpr int Keys = Shape::Keys;
    int group = my_number() / 128;
    char *dv_slot = shared.v + group * ra_panel_offset(64, 0, Keys);
    pack_keys<Shape, Rows>(dk_slot, f.kernel.score.scale, dk);
    pack_keys<Shape, Keys>(dv_slot, 1, dv);
    ra_stores_before_wgmma();
    ra_named_barrier(KEYS_ARE_PACKED + group, 128);
    if (my_number() % 128 > 0)
        return;
#pragma unroll
    for (int panel = 0; panel < Shape::Dim / 64; panel++)
        ra_store_box(&f.dk, dk_slot + panel * ra_panel_stride(Rows), 64 * panel,
                     task.b0 + 64 * group, task.g, task.b);
#pragma unroll
    for (int panel = 0; panel < Shape::Dim_value / 64; panel++)
        ra_store_box(&f.dv, dv_slot + panel * ra_panel_stride(Keys), 64 * panel,
                     task.b0 + 64 * group, task.g, task.b);
    ra_stores_end();
    ra_stores_wait_read();
}

/* ---- For the host. */

/* Can these kernels take it? Otherwise k03 does, which takes everything, or says why not. */
static cudaError_t k06_supports(const struct ra_kernel *kernel, bool *supported)
{
    int64_t D = kernel->dim, D_v = kernel->dim_value;
    bool type = kernel->q.type == RA_FLOAT16 || kernel->q.type == RA_BFLOAT16;
    *supported = false;
    if (kernel->batch * kernel->queries * kernel->keys == 0 || kernel->band.lo > kernel->band.hi ||
        !type || D > RA_MOST_DIM || D_v > RA_MOST_DIM || D % 8 != 0 || D_v % 8 != 0 ||
        !in_pairs(kernel->dq, D) || !in_pairs(kernel->dk, D) || !in_pairs(kernel->dv, D_v) ||
        !ra_in_boxes(kernel->q, kernel->queries, D) ||
        !ra_in_boxes(kernel->d_out, kernel->queries, D_v) ||
        !ra_in_boxes(kernel->k, kernel->keys, D) || !ra_in_boxes(kernel->v, kernel->keys, D_v))
        return cudaSuccess;
    return ra_ask_hopper(supported);
}

/* The same, but refuses sums that are neither added to nor such as the kernel can write. */
static cudaError_t supports_sums(const struct ra_kernel *kernel, ra_kernel_writes *writes,
                                 bool *supported)
{
    bool keys, queries;
    bool added =
        !kernel->writes_keys && kernel->dk.type == RA_FLOAT32 && kernel->dv.type == RA_FLOAT32;
    cudaError_t error = writes(kernel, &keys, &queries);
    if (error == cudaSuccess && !((added || keys) && (kernel->dq.type == RA_FLOAT32 || queries)))
        error = cudaErrorNotSupported;
    return error == cudaSuccess ? k06_supports(kernel, supported) : error;
}

/* Launches a kernel, with `heads` heads of `tiles` tiles, or pairs, that stay each; `Memory` is
 * what it has in shared memory. What passes takes `head_bytes` of the L2 cache for a head. */
template <class Shape, class Memory>
static cudaError_t launch_hopper(void (*function)(struct backward), const struct ra_kernel *kernel,
                                 int64_t heads, int64_t tiles, int64_t head_bytes,
                                 cudaStream_t stream)
{
    struct backward f;
    float cap = kernel->score.softcap;
    f.kernel = *kernel;
    f.factor = RA_LOG2E * (cap > 0 ? cap : kernel->score.scale);
    f.inside = cap > 0 ? kernel->score.scale / cap : 0;
    f.group = (int)(kernel->heads / kernel->key_heads);
    f.tiles = (int)tiles;
    f.sets = ra_sets_of(heads, head_bytes);

    int64_t n = kernel->queries, m = kernel->keys, H = kernel->heads, G = kernel->key_heads,
            D = kernel->dim, D_v = kernel->dim_value;
    const struct {
        CUtensorMap *map;
        struct ra_tensor tensor;
        int64_t rows, heads, dim;
        int box;
    } maps[] = {{&f.dq, kernel->dq, n, H, D, 64},
                {&f.dk, kernel->dk, m, G, D, 64},
                {&f.dv, kernel->dv, m, G, D_v, 64},
                {&f.q, kernel->q, n, H, D, Shape::Queries / Shape::Blocks},
                {&f.d_out, kernel->d_out, n, H, D_v, Shape::Queries / Shape::Blocks},
                {&f.k, kernel->k, m, G, D, Shape::Keys},
                {&f.v, kernel->v, m, G, D_v, Shape::Keys}};
    /* k06 takes gradients wherever they lie. */
    f.boxes = kernel->dk.type == kernel->q.type &&
              ra_in_boxes(kernel->dk, kernel->keys, kernel->dim) &&
              ra_in_boxes(kernel->dv, kernel->keys, kernel->dim_value);
    bool has[] = {ra_in_boxes(kernel->dq, kernel->queries, kernel->dim),
                  f.boxes,
                  f.boxes,
                  true,
                  true,
                  true,
                  true};
    for (int i = 0; i < 7; i++) {
        if (!has[i])
            continue;
        cudaError_t error = ra_make_map(maps[i].map, maps[i].tensor, kernel->batch, maps[i].rows,
                                        maps[i].heads, maps[i].dim, maps[i].box);
        if (error != cudaSuccess)
            return error;
    }
    static_assert(sizeof(Memory) <= 227 << 10, "more shared memory than a block may have");
    return ra_launch(function, heads * tiles * Shape::Blocks, Shape::Threads + 128, sizeof(Memory),
                     stream, f);
}

/* The same where keys stay; `bytes` of L2 for each number of a query. */
template <class Shape, class Memory>
static cudaError_t launch_keys(void (*function)(struct backward), const struct ra_kernel *kernel,
                               int64_t bytes, cudaStream_t stream)
{
    int64_t heads = kernel->batch * kernel->key_heads, keys = Shape::Blocks * Shape::Keys;
    int64_t tiles = Shape::Listed ? kernel->work.count : (kernel->keys + keys - 1) / keys;
    int64_t numbers =
        kernel->heads / kernel->key_heads * kernel->queries * (kernel->dim + kernel->dim_value) / 2;
    return launch_hopper<Shape, Memory>(function, kernel, heads, tiles, bytes * numbers, stream);
}

/* Calls launch(piece) for pieces of the queries, of which no launch adds up more than it can well:
 * dk and dv are sums over queries of H / G heads. */
template <class Launch>
static cudaError_t in_pieces(const struct ra_kernel *kernel, const Launch &launch)
{
    int64_t most = ra_kernel_most_queries(kernel);
    cudaError_t error = cudaSuccess;
    for (int64_t a = 0; a < kernel->queries && error == cudaSuccess; a += most) {
        struct ra_kernel piece = ra_kernel_queries(*kernel, a, most);
        error = launch(&piece);
    }
    return error;
}

#endif
