/* k03, backward: attention's gradients on tensor cores, in float16 or bfloat16.
 *
 * Chapter 11. ra_tile_backward, 256 threads wide: s = q k^T, dp = d_out v^T, and from these p and
 * ds; then dv += p^T d_out, dk += ds^T q and dq += ds k. Five products, where the forward has two.
 *
 * A block of threads has a tile of keys of one key/value head, and steps through the tiles of
 * queries that see it, of all query heads that read this head. So dk and dv stay in registers until
 * the end, and no other block adds to these rows; dq is added to in global memory at every step.
 *
 * A step has two halves, a barrier between them. `weigh` computes s and dp and leaves p and ds in
 * shared memory, as 16-bit numbers; `accumulate_gradients` multiplies them by what was written by
 * all warps. The first half ends in exponentials, in which tensor cores have nothing to do.
 * Therefore half of the warps take the halves in the other order, and every scheduler of an SM has
 * one warp of each kind:
 *
 *     barrier        j                             j + 1
 *     warps 4 to 7   | accumulate j, weigh j + 1   | accumulate j + 1, weigh j + 2   |
 *     warps 0 to 3   | weigh j + 1, accumulate j   | weigh j + 2, accumulate j + 1   |
 *
 * That takes one barrier a step, two slots for p and ds, and three for the queries: of this step,
 * of the next, and those that are being copied.
 */
#include "mma_tiles.h"

/* The shape of a tile. Stages: 3, as said above; or 2 where shared memory is smaller: then all
 * warps accumulate, wait for each other, and weigh. Queries: 64, 32 or 16. */
template <class Type_, int Dim_, int Stages_, int Queries_>
struct tile_shape : tile<Type_, Dim_, 8> {
    static constexpr int Stages = Stages_, Queries = Queries_, Keys = 2 * Queries;

    /* Rows of p and ds: the swizzle wants 8 chunks. */
    static constexpr int Width = Keys > 64 ? Keys : 64;

    /* The warps' parts of s and dp: 2 x 4 of them, each Rows x 16 rows by Columns x 8. Of 16
     * queries there are only 1 x 2 parts, and the other warps weigh nothing. */
    static constexpr int Row_warps = Queries > 16 ? 2 : 1, Column_warps = Queries > 16 ? 4 : 2;
    static constexpr int Rows = Queries / 16 / Row_warps, Columns = Keys / 8 / Column_warps;
    static constexpr int Weighing = Row_warps * Column_warps;

    /* Those of dq: 2 x 4, or 1 x 8. Those of dk and dv: 32 keys each. */
    static constexpr int Dq_warps = 8 / Row_warps, Dq_columns = Dim_ / 8 / Dq_warps;
    static constexpr int Key_warps = Keys / 32, Dk_columns = Dim_ / 8 * Key_warps / 8;
};

/* What a block of threads has to do: its keys, and the tiles of queries that see them, from the
 * last one down, for one query head after the other. */
struct task {
    int b, g, key_tile, first_tile, last_tile, steps;
};

/* A step: its tile of queries, and their head. */
struct step {
    int tile, h;
};

/* All of the shared memory, of rows of 16-bit numbers in swizzled chunks. A stage has the queries
 * of one step. */
template <class Shape> struct shared_memory {
    uint16_t k[Shape::Keys][Shape::Dim], v[Shape::Keys][Shape::Dim];
    struct {
        uint16_t q[Shape::Queries][Shape::Dim], d_out[Shape::Queries][Shape::Dim];
    } in[Shape::Stages];
    struct {
        uint16_t p[Shape::Queries][Shape::Width], ds[Shape::Queries][Shape::Width];
    } out[Shape::Stages - 1];
    float lse[Shape::Stages][Shape::Queries], delta[Shape::Stages][Shape::Queries];
    struct task task;
    struct step step[Shape::Stages];
    uint32_t valid[Shape::Keys / 32]; /* a bit for every key: there, and not hidden by the mask */
    uint32_t nonfinite[Shape::Keys / 32]; /* with a number that is not finite */
    unsigned ticket;
    struct ra_semaphore
        semaphore[Shape::Warps]; /* each warp's own: which one it has to release, and to whom */
};

/* What the launcher works out once for all threads. */
struct backward {
    struct ra_kernel kernel;
    float factor; /* a score, or with a soft cap its tanh, times this is the power of two */
    float inside; /* with a soft cap: q . k times this goes into the tanh */
    bool chunks;  /* rows of q, k, v and d_out can be read 16 bytes at a time */
    bool pairs;   /* rows of dq, dk and dv can be added to two numbers at a time */
    int key_tiles, query_tiles;
    int group, next_h; /* H / G query heads read a key/value head; how far apart they are */
};

/* ---- Into shared memory. */

/* Begins to copy the queries of a step. What lies beyond the last query is 0, delta and lse too: p
 * = 1 there, times d_out = 0; ds = 1 * (0 - 0). */
template <class Shape>
RA_DEVICE void copy_queries(struct shared_memory<Shape> &shared, const struct backward &f,
                            const struct task &task, struct step step, int stage)
{
    const struct ra_kernel &kernel = f.kernel;
    int64_t a0 = (int64_t)step.tile * Shape::Queries;
    int rows = (int)ra_min(Shape::Queries, kernel.queries - a0);
    uint32_t valid[(Shape::Queries + 31) / 32];
    const struct ra_tensor no_mask = {};
    valid_rows<Shape::Queries>(valid, no_mask, task.b, a0, kernel.queries);
    copy_rows<Shape, Shape::Queries>(shared.in[stage].q[0], row_at(kernel.q, task.b, a0, step.h),
                                     kernel.q.row, valid, (int)kernel.dim, f.chunks,
                                     ra_afresh(threadIdx.x));
    copy_rows<Shape, Shape::Queries>(
        shared.in[stage].d_out[0], row_at(kernel.d_out, task.b, a0, step.h), kernel.d_out.row,
        valid, (int)kernel.dim_value, f.chunks, ra_afresh(threadIdx.x));

    int row = threadIdx.x % Shape::Queries;
    if (threadIdx.x < Shape::Queries)
        ra_copy4(ra_shared(&shared.lse[stage][row]),
                 (const float *)kernel.lse.data + ra_offset(kernel.lse, task.b, a0 + row, step.h),
                 row < rows);
    else if (threadIdx.x < 2 * Shape::Queries)
        ra_copy4(ra_shared(&shared.delta[stage][row]),
                 (const float *)kernel.delta.data +
                     ra_offset(kernel.delta, task.b, a0 + row, step.h),
                 row < rows);
    else if (threadIdx.x == Shape::Threads - 1)
        shared.step[stage] = step;
    ra_copies_end();
}

/* ---- Products of matrices in shared memory. */

/* Loads 16 x 16 numbers, this many rows and columns, multiples of 16, after a corner. The swizzle
 * stays within 8 chunks, 64 numbers: ^ moves along there, since the bits of the column are apart
 * from those of the corner, and + from one 64 to the next. */
template <bool Transposed, int Width>
RA_DEVICE void load_quarters(uint32_t x[4], uint32_t corner, int row, int column)
{
    uint32_t address = (corner ^ 2 * (column % 64)) + 2 * (column / 64 * 64 + Width * row);
    if (Transposed)
        ra_load_transposed(x, address);
    else
        ra_load_matrices(x, address);
}

/* c (Rows x 16, Columns x 8) += a (Rows x 16, Inner) b (Inner, Columns x 8). In shared memory, from
 * the corners a and b, lie the matrices themselves, or their transposes: of a if A_transposed, of b
 * unless B_transposed, since the instruction wants b on its side. The corner of a is `across` if it
 * is transposed, that of b unless it is. */
template <class Type, int Rows, int Columns, int Inner, bool A_transposed, int A_width,
          bool B_transposed, int B_width>
RA_DEVICE void multiply(float (&c)[Rows][Columns][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < Inner; k += 16) {
        uint32_t x[Rows][4], y[Columns / 2][4];
#pragma unroll
        for (int i = 0; i < Rows; i++)
            load_quarters<A_transposed, A_width>(x[i], a, A_transposed ? k : 16 * i,
                                                 A_transposed ? 16 * i : k);
#pragma unroll
        for (int j = 0; j < Columns / 2; j++)
            load_quarters<B_transposed, B_width>(y[j], b, B_transposed ? k : 16 * j,
                                                 B_transposed ? 16 * j : k);
#pragma unroll
        for (int i = 0; i < Rows; i++)
#pragma unroll
            for (int j = 0; j < Columns; j++)
                Type::multiply(c[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}

/* To the rows of x that begin at number `first`: += scale * c, of which only (rows, columns) are
 * within. Pairs: two neighbours may be added at once. */
template <int Rows, int Columns>
RA_DEVICE void add_to(const struct ra_tensor &x, int64_t first, int64_t rows, int columns,
                      bool pairs, float scale, const float (&c)[Rows][Columns][4])
{
    int lane = ra_afresh(threadIdx.x) % 32, row = lane / 4, column = lane % 4 * 2;
    bool full = pairs && rows >= 16 * Rows && columns >= 8 * Columns;
    float *to = (float *)x.data + first + row * x.row + column;
#pragma unroll
    for (int i = 0; i < 2 * Rows; i++, to += 8 * x.row) {
        const float(*numbers)[4] = c[i / 2];
        int e = i % 2 * 2;
        if (full) {
#pragma unroll
            for (int j = 0; j < Columns; j++)
                ra_add2(to + 8 * j, scale * numbers[j][e], scale * numbers[j][e + 1]);
        } else if (row + 8 * i < rows) {
#pragma unroll
            for (int j = 0; j < 2 * Columns; j++)
                if (column + j / 2 * 8 + j % 2 < columns)
                    ra_add1(to + j / 2 * 8 + j % 2, scale * numbers[j / 2][e + j % 2]);
        }
    }
}

/* ---- The two halves of a step. */

/* A soft cap, and a slope of head h, turn q . k of query a and key b into powers of two, whose
 * factor is 1. Returns the slope of the cap. */
RA_DEVICE float bend_score(const struct backward &f, float &score, float &factor, int h, int64_t a,
                           int64_t b)
{
    float slope = 1;
    if (f.kernel.score.softcap > 0) {
        score = ra_tanh(score * f.inside);
        slope = 1 - score * score;
        score = __fmul_rn(score, factor); /* rounded, as in the forward */
        factor = 1;
    }

    /* A query that is not there gets a weight of 1, not one that overflows. */
    if (f.kernel.slopes.data && a < f.kernel.queries) {
        int place = ra_place_of_row(f.kernel.query_place, a, f.kernel.queries);
        int distance = ra_place_of_row(f.kernel.key_place, b, f.kernel.keys) - place;
        score = __fmaf_rn((float)distance, RA_LOG2E * ra_of_head(f.kernel.slopes, h),
                          __fmul_rn(score, factor));
        factor = 1;
    }
    return slope;
}

/* Turns q . k into weights p, which go to shared memory as 16-bit numbers, and leaves in s what dp
 * - delta is to be multiplied by: p, times the slope of the soft cap if there is one. Unmasked:
 * there is none, nor slopes of heads, and every query sees every key. Otherwise this thread's first
 * row, a of head h, sees those columns from lo to hi whose bit is set, counted from its first one,
 * key b; in nonfinite ones it sees NaN. */
template <class Shape, bool Unmasked>
RA_DEVICE void weigh_scores(const struct backward &f, float (&s)[Shape::Rows][Shape::Columns][4],
                            const float lse[Shape::Rows * 2], char *p, uint32_t offset, int lo,
                            int hi, uint32_t bits, uint32_t nonfinite, int h, int64_t a, int64_t b)
{
#pragma unroll
    for (int i = 0; i < 2 * Shape::Rows; i++) {
#pragma unroll
        for (int j = 0; j < Shape::Columns; j++) {
            float weight[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &score = s[i / 2][j][i % 2 * 2 + e], slope = 1, factor = f.factor;
                if (!Unmasked)
                    slope = bend_score(f, score, factor, h, a + 8 * i, b + 8 * j + e);
                weight[e] = ra_exp2(score * factor - lse[i]);

                /* A hidden key may have any score: its weight may be inf until now. */
                int column = 8 * j + e;
                if (!Unmasked &&
                    (!(bits >> column & 1) || column < lo + 8 * i || column > hi + 8 * i))
                    weight[e] = 0;
                else if (!Unmasked && nonfinite >> column & 1)
                    weight[e] = CUDART_NAN_F;
                score = weight[e] * slope;
            }
            *(uint32_t *)(p + (offset ^ 16 * j) + 2 * Shape::Width * 8 * i) =
                Shape::Type::pair(weight[0], weight[1]);
        }
    }
}

/* The first half of step j: p and ds. In float16 ds, without the scale, must stay below 65504, and
 * is coarse below 6e-5: training in float16 scales the loss, as for every kernel. */
template <class Shape>
RA_DEVICE void weigh(struct shared_memory<Shape> &shared, const struct backward &f, int warp, int j)
{
    typedef typename Shape::Type Type;
    constexpr int Rows = Shape::Rows, Columns = Shape::Columns, Dim = Shape::Dim;
    const struct ra_kernel &kernel = f.kernel;
    int stage = j % Shape::Stages, lane = ra_afresh(threadIdx.x) % 32;
    int row = warp / Shape::Column_warps * 16 * Rows;
    int column = warp % Shape::Column_warps * 8 * Columns;
    uint32_t a = corner<Dim>(lane, row, 0, false), b = corner<Dim>(lane, column, 0, true);
    auto &in = shared.in[stage];
    auto &out = shared.out[j % (Shape::Stages - 1)];

    float s[Rows][Columns][4];
    clear(s);
    multiply<Type, Rows, Columns, Dim, false, Dim, false, Dim>(s, ra_shared(in.q) + a,
                                                               ra_shared(shared.k) + b);

    /* This thread's rows of s are row + lane / 4 + 8 i. Those that have seen nothing, lse = -inf,
     * get weights of 2^-inf = 0. */
    float lse[2 * Rows];
#pragma unroll
    for (int i = 0; i < 2 * Rows; i++) {
        float natural = shared.lse[stage][row + lane / 4 + 8 * i];
        lse[i] = natural == -CUDART_INF_F ? CUDART_INF_F : natural * RA_LOG2E;
    }

    /* Mostly everybody of this warp's rows sees all of its columns. */
    uint32_t offset =
        2 * Shape::Width * (row + lane / 4) + 16 * ra_swizzle(lane / 4, column / 8) + lane % 4 * 4;
    uint32_t all = 0xffffffff >> (32 - 8 * Columns);
    uint32_t bits = shared.valid[column / 32] >> column % 32 & all;
    uint32_t nonfinite = shared.nonfinite[column / 32] >> column % 32 & all;
    int64_t a0 = (int64_t)shared.step[stage].tile * Shape::Queries + row;
    int64_t b0 = (int64_t)shared.task.key_tile * Shape::Keys + column;
    if (bits == all && nonfinite == 0 && kernel.score.softcap <= 0 && !kernel.slopes.data &&
        ra_all_seen(kernel.band, {}, a0, 16 * Rows, b0, 8 * Columns)) {
        weigh_scores<Shape, true>(f, s, lse, (char *)out.p, offset, 0, 0, 0, 0, 0, 0, 0);
    } else {
        int64_t from = a0 + lane / 4 - b0 - lane % 4 * 2, far = 1 << 20;
        int lo = (int)ra_max(-far, ra_min(far, from + kernel.band.lo));
        int hi = (int)ra_max(-far, ra_min(far, from + kernel.band.hi));
        weigh_scores<Shape, false>(f, s, lse, (char *)out.p, offset, lo, hi, bits >> lane % 4 * 2,
                                   nonfinite >> lane % 4 * 2, shared.step[stage].h, a0 + lane / 4,
                                   b0 + lane % 4 * 2);
    }

    float dp[Rows][Columns][4];
    clear(dp);
    multiply<Type, Rows, Columns, Dim, false, Dim, false, Dim>(dp, ra_shared(in.d_out) + a,
                                                               ra_shared(shared.v) + b);
#pragma unroll
    for (int i = 0; i < 2 * Rows; i++) {
        float delta = shared.delta[stage][row + lane / 4 + 8 * i];
        int e = i % 2 * 2;
#pragma unroll
        for (int j = 0; j < Columns; j++)
            *(uint32_t *)((char *)out.ds + (offset ^ 16 * j) + 2 * Shape::Width * 8 * i) =
                Type::pair(s[i / 2][j][e] * (dp[i / 2][j][e] - delta),
                           s[i / 2][j][e + 1] * (dp[i / 2][j][e + 1] - delta));
    }
}

/* Waits until this warp may add to dq. In every block of threads the same warp adds to the same
 * part of a tile of queries: so a semaphore orders the warps of one number, in the order of the
 * tiles of keys. All go through the queries from the last one down, so that where they begin at the
 * same one, each is soon a step behind its predecessor and waits no more. */
template <class Shape>
RA_DEVICE void await_semaphore(struct shared_memory<Shape> &shared, const struct backward &f,
                               int warp, struct step step)
{
    const struct ra_kernel &kernel = f.kernel;
    int64_t a0 = (int64_t)step.tile * Shape::Queries, key_tile = shared.task.key_tile;
    int64_t tile = (shared.task.b * kernel.heads + step.h) * f.query_tiles + step.tile;
    struct ra_range seen =
        ra_keys_seen(kernel.band, {}, a0, ra_min(Shape::Queries, kernel.queries - a0), kernel.keys);

    /* The last one leaves 0 behind. */
    int mine = (int)(key_tile - seen.first / Shape::Keys),
        *at = kernel.semaphores + tile * Shape::Warps + warp;
    ra_semaphore_wait(at, mine);
    if (threadIdx.x % 32 == 0) {
        shared.semaphore[warp].at = at;
        shared.semaphore[warp].next = key_tile == (seen.end - 1) / Shape::Keys ? 0 : mine + 1;
    }
}

/* The second half of step j: dv, dk and dq. */
template <class Shape>
RA_DEVICE void accumulate_gradients(struct shared_memory<Shape> &shared, const struct backward &f,
                                    int warp, int j, float (&dk)[2][Shape::Dk_columns][4],
                                    float (&dv)[2][Shape::Dk_columns][4])
{
    typedef typename Shape::Type Type;
    constexpr int Dim = Shape::Dim, Queries = Shape::Queries, Width = Shape::Width;
    const struct ra_kernel &kernel = f.kernel;
    int stage = j % Shape::Stages, lane = ra_afresh(threadIdx.x) % 32;
    auto &in = shared.in[stage];
    auto &out = shared.out[j % (Shape::Stages - 1)];

    /* dv += p^T d_out and dk += ds^T q. */
    uint32_t a = corner<Width>(lane, 0, warp % Shape::Key_warps * 32, true);
    uint32_t b = corner<Dim>(lane, 0, warp / Shape::Key_warps * 8 * Shape::Dk_columns, false);
    multiply<Type, 2, Shape::Dk_columns, Queries, true, Width, true, Dim>(dv, ra_shared(out.p) + a,
                                                                          ra_shared(in.d_out) + b);
    multiply<Type, 2, Shape::Dk_columns, Queries, true, Width, true, Dim>(dk, ra_shared(out.ds) + a,
                                                                          ra_shared(in.q) + b);

    /* dq = ds k. */
    int row = warp / Shape::Dq_warps * 16 * Shape::Rows;
    int column = warp % Shape::Dq_warps * 8 * Shape::Dq_columns;
    float dq[Shape::Rows][Shape::Dq_columns][4];
    clear(dq);
    multiply<Type, Shape::Rows, Shape::Dq_columns, Shape::Keys, false, Width, true, Dim>(
        dq, ra_shared(out.ds) + corner<Width>(lane, row, 0, false),
        ra_shared(shared.k) + corner<Dim>(lane, 0, column, false));

    struct step step = shared.step[stage];
    int64_t a0 = (int64_t)step.tile * Queries;
    if (kernel.deterministic)
        await_semaphore(shared, f, warp, step);
    add_to(kernel.dq, ra_offset(kernel.dq, shared.task.b, a0 + row, step.h) + column,
           kernel.queries - a0 - row, (int)kernel.dim - column, f.pairs, kernel.score.scale, dq);
}

/* One tile of keys of one key/value head, against all the queries that see it. */
template <class Shape>
__global__ void __launch_bounds__(Shape::Threads, 1)
    backward_kernel(const __grid_constant__ struct backward f)
{
    constexpr int Queries = Shape::Queries, Keys = Shape::Keys, Most_heads = 16;
    extern __shared__ __align__(1024) char bytes[];
    struct shared_memory<Shape> &shared = *(struct shared_memory<Shape> *)bytes;
#if __CUDA_ARCH__ < 900
    /* The launcher takes no shape that does not fit into shared memory: leave out its code. */
    if (sizeof shared > 163 << 10)
        return;
#endif
    const struct ra_kernel &kernel = f.kernel;

    /* The same for all threads of a warp, so that the compiler knows it, too. */
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    /* A wait is safe if the warps that come earlier have begun: so the blocks of threads
     * draw their numbers when they begin. The last number drawn leaves 0 behind. */
    unsigned number = blockIdx.x;
    if (kernel.deterministic) {
        if (threadIdx.x == 0) {
            int64_t semaphores = kernel.batch * kernel.heads * f.query_tiles * Shape::Warps;
            shared.ticket = atomicInc((unsigned *)kernel.semaphores + semaphores, gridDim.x - 1);
        }
        __syncthreads();
        number = shared.ticket;
    }

    /* Heads come in sets of 16 at most, whose queries stay in the L2 cache while they are read by
     * one tile of keys after the other. Within a set the first keys come first: under a causal mask
     * they have the most work. */
    int heads = (int)(kernel.batch * kernel.key_heads);
    int sets = (heads + Most_heads - 1) / Most_heads;
    struct ra_tile_order order = ra_tile_order_of((int)number, heads, sets, f.key_tiles);
    struct task task;
    task.b = order.head / (int)kernel.key_heads;
    task.g = order.head % (int)kernel.key_heads;
    task.key_tile = order.tile;

    /* The queries that see these keys. */
    int64_t b0 = (int64_t)task.key_tile * Keys;
    int keys = (int)ra_min(Keys, kernel.keys - b0);
    struct ra_range range = ra_queries_seeing(kernel.band, {}, b0, keys, kernel.queries);
    if (range.end <= range.first)
        return;
    task.first_tile = (int)(range.first / Queries);
    task.last_tile = (int)((range.end - 1) / Queries);
    task.steps = (task.last_tile - task.first_tile + 1) * f.group;

    /* The keys, and the queries of the first step. */
    uint32_t valid[Keys / 32];
    valid_rows<Keys>(valid, kernel.mask, task.b, b0, kernel.keys);
    if (threadIdx.x == 0)
#pragma unroll
        for (int w = 0; w < Keys / 32; w++) {
            shared.valid[w] = valid[w];
            shared.nonfinite[w] = 0;
        }
    copy_rows<Shape, Keys>(shared.k[0], row_at(kernel.k, task.b, b0, task.g), kernel.k.row, valid,
                           (int)kernel.dim, f.chunks, ra_afresh(threadIdx.x));
    copy_rows<Shape, Keys>(shared.v[0], row_at(kernel.v, task.b, b0, task.g), kernel.v.row, valid,
                           (int)kernel.dim_value, f.chunks, ra_afresh(threadIdx.x));
    struct step first = {task.last_tile, ra_query_head(kernel.head_map, (int)kernel.heads,
                                                       (int)kernel.key_heads, task.g, 0)};
    copy_queries(shared, f, task, first, 0);

    /* After the next barrier the task is in shared memory, too: registers are scarce. */
    if (threadIdx.x == 0)
        shared.task = task;

    /* Keys that some of the queries do not see must be finite: v lies behind k. */
    ra_copies_wait<0>();
    __syncthreads();
    zero_nonfinite<Shape>(shared.k[0], 2 * Keys, [&](int row) {
        atomicOr(&shared.nonfinite[row % Keys / 32], 1u << row % 32);
    });

    /* These stay in registers until the end. */
    float dk[2][Shape::Dk_columns][4], dv[2][Shape::Dk_columns][4];
    clear(dk);
    clear(dv);

    /* After barrier j the queries of step j + 1 are there, and those of j + 2 may take the place of
     * j - 1. `late` warps accumulate before the barrier what the others accumulate after it. */
    bool staged = Shape::Stages == 3, late = staged && warp < Shape::Warps / 2;
    for (int j = -1; j < task.steps + late; j++) {
        if (!staged) {
            ra_meet();
        } else if (!late) {
            ra_copies_wait<0>();
            ra_meet();
        }
        if (j >= late)
            accumulate_gradients(shared, f, warp, j - late, dk, dv);
        if ((!staged || late) && j < task.steps) {
            ra_copies_wait<0>();
            ra_meet();
        }
        if (j + 2 < task.steps) {
            struct step next = shared.step[(j + 1) % Shape::Stages];
            if (next.tile-- == shared.task.first_tile) {
                next.tile = shared.task.last_tile;
                next.h += f.next_h;
            }
            copy_queries(shared, f, shared.task, next, (j + 2) % Shape::Stages);
        }
        if (j + 1 < task.steps && (Shape::Weighing == Shape::Warps || warp < Shape::Weighing))
            weigh(shared, f, warp, j + 1);
        /* Only here, where what was added has arrived without a wait for it. */
        if (kernel.deterministic && j >= late)
            ra_semaphore_release(&shared.semaphore[warp]);
    }

    /* No other block adds to these rows. */
    b0 = (int64_t)shared.task.key_tile * Keys;
    int row = warp % Shape::Key_warps * 32;
    int column = warp / Shape::Key_warps * 8 * Shape::Dk_columns;
    add_to(kernel.dk, ra_offset(kernel.dk, shared.task.b, b0 + row, shared.task.g) + column,
           kernel.keys - b0 - row, (int)kernel.dim - column, f.pairs, kernel.score.scale, dk);
    add_to(kernel.dv, ra_offset(kernel.dv, shared.task.b, b0 + row, shared.task.g) + column,
           kernel.keys - b0 - row, (int)kernel.dim_value - column, f.pairs, 1, dv);
}

template <class Shape>
static cudaError_t launch(const struct ra_kernel *kernel, cudaStream_t stream)
{
    struct backward f;
    f.kernel = *kernel;
    float cap = kernel->score.softcap;
    f.factor = RA_LOG2E * (cap > 0 ? cap : kernel->score.scale);
    f.inside = cap > 0 ? kernel->score.scale / cap : 0;
    f.chunks = ra_in_chunks(kernel->q, kernel->dim) && ra_in_chunks(kernel->k, kernel->dim) &&
               ra_in_chunks(kernel->v, kernel->dim_value) &&
               ra_in_chunks(kernel->d_out, kernel->dim_value);
    f.pairs = in_pairs(kernel->dq, kernel->dim) && in_pairs(kernel->dk, kernel->dim) &&
              in_pairs(kernel->dv, kernel->dim_value);
    f.group = (int)(kernel->heads / kernel->key_heads);
    f.next_h = kernel->head_map == RA_GROUPED ? 1 : (int)kernel->key_heads;
    f.key_tiles = (int)((kernel->keys + Shape::Keys - 1) / Shape::Keys);
    f.query_tiles = (int)((kernel->queries + Shape::Queries - 1) / Shape::Queries);

    return ra_launch(backward_kernel<Shape>, kernel->batch * kernel->key_heads * f.key_tiles,
                     Shape::Threads, sizeof(struct shared_memory<Shape>), stream, f);
}

/* The first of these shapes that fits into the device's shared memory: 227 KiB on compute
 * capability 9.0, 163 KiB on 8.0, 99 KiB on 8.6 and 12.0. GPUs older than 8.0 have less than all of
 * these. */
template <class Large, class Medium, class Small = Medium>
static cudaError_t launch_fitting(const struct ra_kernel *kernel, cudaStream_t stream)
{
    constexpr int Least = 99 << 10;
    static_assert(sizeof(struct shared_memory<Small>) <= Least,
                  "more shared memory than a block may have");
    int most;
    cudaError_t status = ra_ask_device(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (status != cudaSuccess)
        return status;
    if (most < Least)
        return cudaErrorNotSupported;
    if (most >= (int)sizeof(struct shared_memory<Large>))
        return launch<Large>(kernel, stream);
    if (most >= (int)sizeof(struct shared_memory<Medium>))
        return launch<Medium>(kernel, stream);
    return launch<Small>(kernel, stream);
}

template <class Type>
static cudaError_t launch_type(const struct ra_kernel *kernel, cudaStream_t stream)
{
    int64_t dim = ra_kernel_widest(kernel);
    if (dim <= 64)
        return launch_fitting<tile_shape<Type, 64, 3, 64>, tile_shape<Type, 64, 2, 64>>(kernel,
                                                                                        stream);
    if (dim <= 128)
        return launch_fitting<tile_shape<Type, 128, 3, 64>, tile_shape<Type, 128, 2, 64>,
                              tile_shape<Type, 128, 3, 32>>(kernel, stream);
    return launch_fitting<tile_shape<Type, 256, 3, 32>, tile_shape<Type, 256, 2, 32>,
                          tile_shape<Type, 256, 3, 16>>(kernel, stream);
}

extern "C" cudaError_t ra_k03_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->batch * kernel->queries * kernel->keys == 0 || kernel->band.lo > kernel->band.hi)
        return cudaSuccess;
    if (ra_has_steps(kernel->band_step))
        return cudaErrorNotSupported;

    /* No launch adds up more rows than it can well. */
    int64_t most = ra_kernel_most_queries(kernel);
    cudaError_t error = cudaSuccess;
    for (int64_t a = 0; a < kernel->queries && error == cudaSuccess; a += most) {
        struct ra_kernel piece = ra_kernel_queries(*kernel, a, most);
        error = launch_for_type(
            kernel, [&](auto type) { return launch_type<decltype(type)>(&piece, stream); });
    }
    return error;
}

extern "C" int64_t ra_kernel_semaphores(const struct ra_kernel *kernel)
{
    /* One for every warp and tile of queries, and the number that is drawn next. Which shape a
     * device takes is not known here: the smallest has the most tiles. */
    int64_t dim = ra_kernel_widest(kernel), rows = dim <= 64 ? 64 : dim <= 128 ? 32 : 16;
    return kernel->batch * kernel->heads * ((kernel->queries + rows - 1) / rows) * 8 + 1;
}
