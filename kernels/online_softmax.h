/* online_softmax: what the forwards on tensor cores share, k03 to k07: which block of threads has
 * which rows, what a warp does with its scores between the two products, and how a launch ends,
 * with the carry.
 *
 * Chapter 11b.
 */
#ifndef ONLINE_SOFTMAX_H
#define ONLINE_SOFTMAX_H

#include "mma_tiles.h"

/* The shape of a tile. Blocks: of 16 query rows, for each warp. Keys: of a tile. Dim_value: D_v,
 * rounded up. */
template <class Type_, int Dim_, int Blocks_, int Keys_, int Warps_, int Dim_value_ = Dim_>
struct forward_tile : tile<Type_, Dim_, Warps_> {
    static constexpr int Dim_value = Dim_value_;
    static constexpr int Blocks = Blocks_, Keys = Keys_, Rows = Warps_ * 16 * Blocks;
    static constexpr int Words = (Keys + 31) / 32; /* with a bit for every key */
    static constexpr bool Listed = false;          /* see hopper_tile */

    /* What a thread has of its warp's rows of s, and of o. Number [i][c][2 r + e] is of row 16 i +
     * 8 r + lane / 4 of the warp, and of column 8 c + 2 (lane % 4) + e. */
    typedef float Scores[Blocks][Keys / 8][4], Outputs[Blocks][Dim_value_ / 8][4];
};

/* What the launcher works out once for all threads. */
struct forward {
    struct ra_kernel kernel;
    float factor; /* a score times this is its power of two */
    bool plain;   /* that is all: no soft cap, no slope, and factor > 0. Otherwise cap_scores comes
                   * before: */
    float before; /* scores are multiplied by this, and with a soft cap their tanh is */
    float inside; /* with a soft cap: q . k times this goes into the tanh */
    bool chunks;  /* rows of q, k and v can be read 16 bytes at a time */
    bool pairs;   /* rows of o and the carry can be reached two numbers at a time */
    int tiles;    /* of query rows */
    int group, sets; /* H / G; of key/value heads that go together */
};

/* What a block of threads has to do: the tile of query rows from a0 on, of one head. */
struct task {
    int b, h, g, tile;
    int64_t a0;
};

/* Where its rows are among all launches: has none of them seen anything before, does none see
 * anything after; and the row behind the last. */
struct borders {
    bool first, last;
    int64_t end;
};

/* Of a launch without a list all tasks have the same. */
RA_DEVICE struct borders borders_of(const struct ra_kernel &kernel)
{
    return {kernel.first, kernel.last, kernel.queries};
}

/* A thread's carry, of the keys of this launch: o, before it is divided; and of row 16 i + 8 r +
 * lane / 4 the largest score and the sum of the weights. Of the sum, each of the four threads that
 * share the row has a part, until the end. */
template <class Shape> struct carry {
    typename Shape::Outputs o;
    float most[Shape::Blocks][2], sum[Shape::Blocks][2];
};

/* ---- Which rows, and which keys. */

/* Tiles of the last rows come first: under a causal mask they have the most work. Key/value heads
 * come in sets that stay in the L2 cache, each with the tiles of all query heads that read it. */
template <class Shape> RA_DEVICE struct task task_of(const struct forward &f, int block)
{
    int H = (int)f.kernel.heads, G = (int)f.kernel.key_heads;
    struct ra_tile_order order =
        ra_tile_order_of(block, (int)f.kernel.batch * G, f.sets, f.group * f.tiles);
    struct task task;
    task.b = order.head / G;
    task.g = order.head % G;
    task.h = ra_query_head(f.kernel.head_map, H, G, task.g, order.tile % f.group);
    task.tile = order.tile / f.group;
    task.a0 = (int64_t)(f.tiles - 1 - task.tile) * Shape::Rows;
    return task;
}

/* A soft cap: turns products q . k into powers of two, so that the factor is 1. They are rounded
 * here and nowhere else, as in the backward: both passes weigh a pair by the same number. The same
 * for a scale near 0. A negative scale: changes the sign, which rounds nothing. */
template <class Shape> RA_DEVICE void cap_scores(typename Shape::Scores &s, const struct forward &f)
{
    constexpr int Keys = Shape::Keys;
    float cap = f.kernel.score.softcap;
#pragma unroll
    for (int e = 0; e < Shape::Blocks * Keys / 2; e++) {
        float &score = s[e / (Keys / 2)][e % (Keys / 2) / 4][e % 4];
        score = __fmul_rn(f.before, cap > 0 ? ra_tanh(score * f.inside) : score);
    }
}

/* Slopes: adds to each score, which is a power of two now, what the places of its query and its key
 * say. This thread's first row is a, the first key of the tile b. */
template <class Shape>
RA_DEVICE void add_slopes(typename Shape::Scores &s, const struct forward &f, int head, int64_t a,
                          int64_t b)
{
    const struct ra_kernel &kernel = f.kernel;
    float slope = RA_LOG2E * ra_of_head(kernel.slopes, head);
    int column = 2 * (threadIdx.x % 4);

#pragma unroll
    for (int i = 0; i < 2 * Shape::Blocks; i++) {
        int place = ra_place_of_row(kernel.query_place, a + 8 * i, kernel.queries);

        /* Mostly the keys of a tile are neighbours, as the first and the last say, if places
         * ascend. Then a distance is the first one and a constant: exact, where both are small. For
         * that a kernel with a list has no registers. */
        if constexpr (!Shape::Listed) {
            int first = ra_place_of_row(kernel.key_place, b, kernel.keys) - place;
            int last = ra_place_of_row(kernel.key_place, b + Shape::Keys - 1, kernel.keys) - place;
            if (kernel.places_ascend &&
                ra_are_neighbours((int)b, Shape::Keys, (int)kernel.keys, first, last) &&
                abs(first) < 1 << 23) {
                float distance = (float)(first + column);
#pragma unroll
                for (int e = 0; e < Shape::Keys / 4; e++) {
                    float &score = s[i / 2][e / 2][i % 2 * 2 + e % 2];
                    score = __fmaf_rn(distance + (float)(e / 2 * 8 + e % 2), slope, score);
                }
                continue;
            }
        }
#pragma unroll
        for (int e = 0; e < Shape::Keys / 4; e++) {
            int key =
                ra_place_of_row(kernel.key_place, b + e / 2 * 8 + column + e % 2, kernel.keys);
            float &score = s[i / 2][e / 2][i % 2 * 2 + e % 2];
            score = __fmaf_rn((float)(key - place), slope, score);
        }
    }
}

/* The bits of word w that are keys of the tile: where Keys is no multiple of 32 the last word has
 * others, too, which belong to the next tile. */
template <class Shape> RA_DEVICE uint32_t key_bits(int w)
{
    return Shape::Keys - 32 * w < 32 ? (1u << (Shape::Keys - 32 * w) % 32) - 1 : ~0u;
}

/* Are all keys of this tile there? */
template <class Shape> RA_DEVICE bool all_valid(const uint32_t valid[Shape::Words])
{
    bool all = true;
#pragma unroll
    for (int w = 0; w < Shape::Words; w++)
        all = all && (valid[w] & key_bits<Shape>(w)) == key_bits<Shape>(w);
    return all;
}

/* Where every row sees every key. */
template <class Shape> RA_DEVICE void note_seen(struct carry<Shape> &carry)
{
#pragma unroll
    for (int i = 0; i < Shape::Blocks; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            carry.most[i][r] = fmaxf(carry.most[i][r], RA_LOWEST_SCORE);
}

/* The largest, and the sum, of the numbers of the four threads that share a row. */
RA_DEVICE float most_of_row(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

RA_DEVICE float sum_of_row(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* ---- The end: the keys of this launch and those of the carry in memory, together. */

/* What o of this launch and o in memory have to be multiplied by, before they are added up; and the
 * largest score, times log2(e), and the sum of both. */
struct merged {
    float here, before, largest, sum;
};

/* What the carry in memory has of row a: the largest score and the sum. */
RA_DEVICE float2 sums_before(const struct ra_kernel &kernel, const struct task &task, int64_t a)
{
    return a < kernel.queries ? make_float2(*ra_floats(kernel.carry_max, task.b, a, task.h),
                                            *ra_floats(kernel.carry_sum, task.b, a, task.h))
                              : make_float2(-CUDART_INF_F, 0);
}

/* A sink is one score more, times log2(e), without a value. If neither it nor a key is there, the
 * sum stays 0. */
RA_DEVICE void add_sink(struct merged &m, float sink)
{
    float all = fmaxf(m.largest, sink), base = all == -CUDART_INF_F ? 0 : all;
    float rescale = ra_exp2(m.largest - base);
    m.here *= rescale;
    m.before *= rescale;
    m.sum = m.sum * rescale + ra_exp2(sink - base);
    m.largest = all;
}

/* For one row, of which this launch found a largest score, times log2(e), and a sum, `before` being
 * those of the carry. */
RA_DEVICE struct merged merge(const struct borders &at, float2 before, float sum, float largest)
{
    struct merged m = {1, 0, largest, sum};
    if (!at.first) {
        float old = before.x * RA_LOG2E;
        m.largest = fmaxf(old, largest);
        m.before = old == -CUDART_INF_F ? 0 : ra_exp2(old - m.largest);
        m.here = largest == -CUDART_INF_F ? 0 : ra_exp2(largest - m.largest);
        m.sum = sum * m.here + before.y * m.before;
    }
    return m;
}

/* At the end of all keys the factors divide by the sum, too. */
RA_DEVICE void divide(struct merged &m)
{
    float over = m.sum == 0 ? 0 : 1 / m.sum;
    m.here *= over;
    m.before *= over;
}

/* Writes lse of a row, or the largest score and the sum for the next launch. */
RA_DEVICE void store_sums(const struct ra_kernel &kernel, const struct borders &at,
                          const struct task &task, int64_t a, const struct merged &m)
{
    if (at.last) {
        *ra_floats(kernel.lse, task.b, a, task.h) =
            m.sum == 0 ? -CUDART_INF_F : RA_LN2 * m.largest + logf(m.sum);
    } else {
        *ra_floats(kernel.carry_max, task.b, a, task.h) = RA_LN2 * m.largest;
        *ra_floats(kernel.carry_sum, task.b, a, task.h) = m.sum;
    }
}

/* Two neighbouring numbers of a row, columns c and c + 1; what is beyond column dim is left out. */
template <class Type>
RA_DEVICE void store_pair(const struct ra_tensor &x, int64_t at, int c, int dim, bool pairs,
                          float first, float second)
{
    if (x.type == RA_FLOAT32) {
        float *to = (float *)x.data + at + c;
        if (pairs && c < dim) {
            *(float2 *)to = make_float2(first, second);
        } else {
            if (c < dim)
                to[0] = first;
            if (c + 1 < dim)
                to[1] = second;
        }
    } else {
        uint16_t *to = (uint16_t *)x.data + at + c;
        uint32_t both = Type::pair(first, second);
        if (c < dim)
            to[0] = (uint16_t)both;
        if (c + 1 < dim)
            to[1] = (uint16_t)(both >> 16);
    }
}

/* This thread's numbers of a row of the carry, two of every eight columns; 0 beyond column dim. All
 * are asked for before the first is used: they are on their way together. */
template <int Columns>
RA_DEVICE void load_row(float2 to[Columns], const struct ra_tensor &x, int64_t at, int dim,
                        bool pairs)
{
    const float *row = (const float *)x.data + at;
    if (pairs) {
#pragma unroll
        for (int c = 0; c < Columns; c++)
            to[c] = 8 * c < dim ? *(const float2 *)(row + 8 * c) : make_float2(0, 0);
        return;
    }
#pragma unroll
    for (int c = 0; c < Columns; c++) {
        to[c].x = 8 * c < dim ? row[8 * c] : 0;
        to[c].y = 8 * c + 1 < dim ? row[8 * c + 1] : 0;
    }
}

/* Where a thread finds the carry of row a, its row r: in memory. Another type with these two
 * functions may have it nearer by. */
template <class Shape> struct carry_in_memory {
    const struct forward &f;
    const struct task &task;

    __device__ __forceinline__ float2 sums_of(int64_t a, int r) const
    {
        return sums_before(f.kernel, task, a);
    }

    __device__ __forceinline__ void load(float2 (&to)[Shape::Dim_value / 8], int64_t a, int r) const
    {
        int column = 2 * (threadIdx.x % 4);
        load_row<Shape::Dim_value / 8>(to, f.kernel.carry_o,
                                       ra_offset(f.kernel.carry_o, task.b, a, task.h) + column,
                                       (int)f.kernel.dim_value - column, f.pairs);
    }
};

/* Writes this thread's numbers of a row of o, or of the carry: numbers [2 r] and [2 r + 1] of
 * `o`. */
template <class Shape, class Before>
RA_DEVICE void store_outputs(const struct forward &f, const struct borders &borders,
                             const struct task &task, int64_t a, int r,
                             float (&o)[Shape::Dim_value / 8][4], const struct merged &m,
                             const Before &before)
{
    constexpr int Columns = Shape::Dim_value / 8;
    typedef typename Shape::Type Type;
    const struct ra_kernel &kernel = f.kernel;
    int column = 2 * (threadIdx.x % 4), dim = (int)kernel.dim_value;
    int64_t at = ra_offset(kernel.o, task.b, a, task.h);
    int64_t carry_at = ra_offset(kernel.carry_o, task.b, a, task.h);
    float2 old[Columns] = {};
    if (!borders.first)
        before.load(old, a, r);
#pragma unroll
    for (int c = 0; c < Columns; c++) {
        o[c][2 * r] = o[c][2 * r] * m.here + old[c].x * m.before;
        o[c][2 * r + 1] = o[c][2 * r + 1] * m.here + old[c].y * m.before;
    }
    if (borders.last && f.pairs && kernel.o.type != RA_FLOAT32) {
#pragma unroll
        for (int c = 0; c < Columns; c++)
            if (8 * c + column < dim)
                *(uint32_t *)((uint16_t *)kernel.o.data + at + 8 * c + column) =
                    Type::pair(o[c][2 * r], o[c][2 * r + 1]);
        return;
    }
    const struct ra_tensor &to = borders.last ? kernel.o : kernel.carry_o;
#pragma unroll
    for (int c = 0; c < Columns; c++)
        store_pair<Type>(to, borders.last ? at : carry_at, 8 * c + column, dim, f.pairs,
                         o[c][2 * r], o[c][2 * r + 1]);
}

/* Row [i][r] of this thread, number a, with what the carry has: its largest score and its sum; and
 * at the end of all keys with what there is beside them. */
template <class Shape>
RA_DEVICE struct merged merge_row(const struct forward &f, const struct borders &borders,
                                  const struct task &task, int64_t a,
                                  const struct carry<Shape> &carry, int i, int r, float2 before)
{
    float sum = sum_of_row(carry.sum[i][r]);
    if (carry.most[i][r] == RA_LOWEST_SCORE)
        sum = CUDART_NAN_F;
    struct merged m = merge(borders, before, sum, carry.most[i][r] * f.factor);
    if (Shape::Extras && borders.last) {
        if (f.kernel.largest.data && a < borders.end && threadIdx.x % 4 == 0)
            ra_raise(f.kernel.largest, task.h, isnan(m.sum) ? m.sum : RA_LN2 * m.largest);
        if (f.kernel.sink.data)
            add_sink(m, RA_LOG2E * ra_of_head(f.kernel.sink, task.h));
    }
    if (borders.last)
        divide(m);

    /* All four threads of the row have read the carry before one of them writes it. */
    __syncwarp();
    return m;
}

/* Writes all rows of this thread, the first of which is row0. */
template <class Shape, class Before>
RA_DEVICE void store(const struct forward &f, const struct borders &borders,
                     const struct task &task, int64_t row0, struct carry<Shape> &carry,
                     const Before &before)
{
#pragma unroll
    for (int i = 0; i < Shape::Blocks; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int64_t a = row0 + 16 * i + 8 * r;
            float2 sums = borders.first ? make_float2(0, 0) : before.sums_of(a, r);
            struct merged m = merge_row<Shape>(f, borders, task, a, carry, i, r, sums);
            if (a >= borders.end)
                continue;
            if (threadIdx.x % 4 == 0)
                store_sums(f.kernel, borders, task, a, m);
            store_outputs<Shape>(f, borders, task, a, r, carry.o[i], m, before);
        }
}

template <class Shape>
RA_DEVICE void store(const struct forward &f, const struct task &task, int64_t row0,
                     struct carry<Shape> &carry)
{
    store(f, borders_of(f.kernel), task, row0, carry, carry_in_memory<Shape>{f, task});
}

/* ---- For the host. */

/* Of a launch with tiles of this many rows. */
static inline struct forward prepare_forward(const struct ra_kernel *kernel, int rows)
{
    struct forward f;
    f.kernel = *kernel;
    float cap = kernel->score.softcap, factor = RA_LOG2E * (cap > 0 ? cap : kernel->score.scale);
    bool alone = cap == 0 && !kernel->slopes.data, negative = alone && factor < -1e-30f;
    f.plain = alone && factor > 1e-30f;
    f.factor = f.plain ? factor : negative ? -factor : 1;
    f.before = negative ? -1 : factor;
    f.inside = cap > 0 ? kernel->score.scale / cap : 0;
    f.chunks = ra_in_chunks(kernel->q, kernel->dim) && ra_in_chunks(kernel->k, kernel->dim) &&
               ra_in_chunks(kernel->v, kernel->dim_value);
    f.pairs = (!kernel->last || in_pairs(kernel->o, kernel->dim_value)) &&
              ((kernel->first && kernel->last) || in_pairs(kernel->carry_o, kernel->dim_value));
    f.tiles = (int)((kernel->queries + rows - 1) / rows);
    f.group = (int)(kernel->heads / kernel->key_heads);
    f.sets = ra_sets_of(kernel->batch * kernel->key_heads,
                        2 * (kernel->dim + kernel->dim_value) * kernel->keys);
    return f;
}

#endif
