/* k02: attention by tiles, in float32.
 *
 * Chapter 11. New here: a block of threads takes a tile of rows, keeps it in shared memory, and
 * lets the tiles of the other side pass by, each read from memory once for all rows; every thread
 * has a small tile of the products in registers, so that each number it reads from shared memory is
 * used several times. While one of two arrays is computed with, the next tile of the other is
 * copied.
 *
 * Three kernels, in each of which the results of a block are its own: the forward and dq, where
 * query rows stay and keys pass; dk and dv, where key rows stay and queries of all heads that read
 * them pass. Nothing is added to what is another's, so equal inputs give equal bits.
 */
#include "ra_device.h"

/* A block is LINES x LANES threads, and a warp two lines. Of a tile of products, line y has rows y,
 * y + LINES, ..., and lane x of it columns x, x + LANES, ...: then the numbers of neighbouring
 * lanes lie in different banks. Of a tile of sums, D wide, lane x has columns 4 x .. 4 x + 3 of
 * every 64. */
enum { LINES = 8, LANES = 16, THREADS = LINES * LANES };

/* Rows of shared memory are this many numbers longer than they must be: 8 neighbouring rows, 16
 * bytes of each, then lie in all 32 banks. */
enum { PAD = 4 };

/* Where a thread is in its block. */
RA_DEVICE int line(void)
{
    return threadIdx.x / LANES;
}

RA_DEVICE int lane(void)
{
    return threadIdx.x % LANES;
}

/* Four numbers at once; the address is a multiple of 16. */
RA_DEVICE void load4(float x[4], const float *shared)
{
    float4 y = *(const float4 *)shared;
    x[0] = y.x;
    x[1] = y.y;
    x[2] = y.z;
    x[3] = y.w;
}

/* An array, and of it the rows first .. end - 1 of one head; of these only what the mask allows, if
 * one is given. `chunks`: 16 bytes at a time can be read. */
struct rows {
    struct ra_tensor array, mask;
    int64_t b, end;
    int head, dim;
    bool chunks;
};

/* Begins to copy rows first .. first + Rows - 1 into shared memory, (Rows, Dim + PAD), this many
 * numbers at a time: all threads together some rows, or a part of one, then the next. What is not
 * there becomes 0, and so does what the mask hides: it may hold NaN, and 0 * NaN is NaN. */
template <int Dim, int Rows, int Numbers>
RA_DEVICE void copy_numbers(float *shared, const struct rows &rows, int64_t first)
{
    constexpr int Together = THREADS * Numbers, Step = Together < Dim ? 1 : Together / Dim;
    const int row = threadIdx.x * Numbers / Dim, left = (int)ra_min(Rows, rows.end - first);
    const int64_t stride = rows.array.row;
#pragma unroll
    for (int part = 0; part < Dim; part += Together) {
        int c = part + threadIdx.x * Numbers % Dim;
        const float *all = ra_floats(rows.array, rows.b, first, rows.head);
        const float *number = all + row * stride + c;
        uint32_t address = ra_shared(&shared[row * (Dim + PAD) + c]);
#pragma unroll 4
        for (int i = 0; i < Rows / Step; i++) {
            int r = row + i * Step;
            bool valid = r < left && c < rows.dim;
            if (rows.mask.data && valid)
                valid = ra_allowed(rows.mask, rows.b, first + r);
            if (Numbers == 4)
                ra_copy16(address, valid ? number : all, valid);
            else
                ra_copy4(address, valid ? number : all, valid);
            number += Step * stride;
            address += Step * (Dim + PAD) * sizeof(float);
        }
    }
}

template <int Dim, int Rows>
RA_DEVICE void load(float *shared, const struct rows &rows, int64_t first)
{
    if (rows.chunks)
        copy_numbers<Dim, Rows, 4>(shared, rows, first);
    else
        copy_numbers<Dim, Rows, 1>(shared, rows, first);
}

/* products (8 M rows, 16 N columns) = left (8 M, Dim) times the transpose of right (16 N, Dim). */
template <int Dim, int M, int N>
RA_DEVICE void multiply_transposed(float products[M][N], const float *left, const float *right)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            products[i][j] = 0;

#pragma unroll(4 / N)
    for (int c = 0; c < Dim; c += 4) {
        float y[N][4];
#pragma unroll
        for (int j = 0; j < N; j++)
            load4(y[j], &right[(lane() + j * LANES) * (Dim + PAD) + c]);
#pragma unroll
        for (int i = 0; i < M; i++) {
            float x[4];
            load4(x, &left[(line() + i * LINES) * (Dim + PAD) + c]);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int j = 0; j < N; j++)
                    products[i][j] += x[e] * y[j][e];
        }
    }
}

/* sums (8 M rows, Dim columns) += weights (8 M, 16 N) times rows (16 N, Dim). The tile is summed up
 * by itself first: the larger a sum is, the more a number that is added to it loses. So many
 * columns at a time: fewer take fewer registers, and read the weights more often. */
template <int Dim, int M, int N, int Columns = Dim>
RA_DEVICE void multiply_add(float sums[M][Dim / LANES], const float *weights, const float *rows)
{
#pragma unroll
    for (int first = 0; first < Dim; first += Columns) {
        float tile[M][Columns / LANES] = {};
#pragma unroll 1
        for (int b = 0; b < N * LANES; b += 4) {
            float weight[M][4];
#pragma unroll
            for (int i = 0; i < M; i++)
                load4(weight[i], &weights[(line() + i * LINES) * (N * LANES + PAD) + b]);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int c = 0; c < Columns; c += 64) {
                    float x[4];
                    load4(x, &rows[(b + e) * (Dim + PAD) + first + c + 4 * lane()]);
#pragma unroll
                    for (int i = 0; i < M; i++)
#pragma unroll
                        for (int u = 0; u < 4; u++)
                            tile[i][c / LANES + u] += weight[i][e] * x[u];
                }
        }
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int c = 0; c < Columns / LANES; c++)
                sums[i][first / LANES + c] += tile[i][c];
    }
}

/* Which column of an array is number c of a row of a thread's sums. */
RA_DEVICE int column(int c)
{
    return c / 4 * 64 + 4 * lane() + c % 4;
}

/* Writes a tile of products to shared memory, for multiply_add. There a line reads its own rows
 * only, so that its warp need not wait for others. */
template <int M, int N> RA_DEVICE void write_weights(float *weights, const float products[M][N])
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            weights[(line() + i * LINES) * (N * LANES + PAD) + lane() + j * LANES] = products[i][j];
    __syncwarp();
}

/* The kinds of each kernel. EXTRAS: there may be sinks, slopes, largest scores. LISTED: these, too,
 * and who sees whom is a list. */
enum kind { PLAIN, EXTRAS, LISTED };

/* The rows of a block that stay: from `first` on, as far as they are there, before `end`; and in a
 * list the tile that they are of, and what each of them sees in its first part. */
struct staying {
    int64_t first, end;
    struct ra_work_tile tile;
    const struct ra_sight *sight;
};

/* How many blocks share a tile of a list. */
template <int Stay> constexpr int Blocks_of_tile = RA_WORK_GROUP / Stay;

/* Of block number `number` of a head, where `first` is its first row without a list. */
template <int Stay, enum kind Kind>
RA_DEVICE struct staying rows_that_stay(const struct ra_kernel &kernel, const struct ra_work &work,
                                        int64_t number, int64_t first, int64_t end)
{
    struct staying rows = {first, end, {0, 0, 0, 1, kernel.first, kernel.last}, NULL};
    if (Kind == LISTED) {
        int64_t skipped = number % Blocks_of_tile<Stay> * Stay;
        rows.tile = work.tile[number / Blocks_of_tile<Stay>];
        rows.first = rows.tile.row + skipped;
        rows.end = rows.tile.row + rows.tile.rows;
        rows.sight = work.sight + (int64_t)rows.tile.part * RA_WORK_GROUP + skipped;
    }
    return rows;
}

/* The rows that pass a block: in a list those of its tile, otherwise these. */
template <enum kind Kind>
RA_DEVICE struct ra_passing<int64_t> rows_that_pass(const struct ra_work &work,
                                                    const struct staying &stay,
                                                    const struct ra_range &range) {
    if (Kind == LISTED && stay.first < stay.end)
        return ra_pass_tile<int64_t>(work, stay.tile);
    return {Kind == LISTED ? 0 : range.first, Kind == LISTED ? 0 : range.end, 0};
}

/* Which pairs of a tile see each other: row i, counted from a, and key j, counted from b, when
 * lo <= j - i <= hi and j is allowed; with steps, i is the first row of its step. In a list, what
 * each row that stays sees of those that pass, which are counted from `passing` on. */
struct view {
    bool unmasked; /* all do */
    bool inside;   /* all do, as far as the band goes, or the list */
    int lo, hi;
    struct ra_band_step band_step;
    int64_t a;
    const struct ra_sight *sight;
    int passing;
};

/* Do all of `rows` rows from `first` on that pass see, or are they seen by, all that stay? */
RA_DEVICE bool all_pass(const struct ra_work &work, const struct ra_passing<int64_t> &now, int rows)
{
    const struct ra_sight &every = work.part[now.part].every;
    return every.first <= now.at && now.at + rows <= every.end;
}

/* Of a list, for rows that pass from now.at on. */
RA_DEVICE struct view listed_view(const struct ra_work &work, const struct staying &stay,
                                  const struct ra_passing<int64_t> &now, int rows, bool masked)
{
    struct view view = {};
    view.inside = all_pass(work, now, rows);
    view.unmasked = view.inside && !masked;
    view.sight = stay.sight + (int64_t)(now.part - stay.tile.part) * RA_WORK_GROUP;
    view.passing = (int)now.at;
    return view;
}

/* Of a tile of `rows` query rows from a on and `keys` key rows from b on, of which those from
 * kernel.keys on are not there. */
RA_DEVICE struct view tile_view(const struct ra_kernel &kernel, int64_t a, int rows, int64_t b,
                                int keys)
{
    /* So near that they fit into ints, and so far that no pair of a tile is between. */
    const int64_t far = 1 << 20;
    bool inside = ra_all_seen(kernel.band, kernel.band_step, a, rows, b, keys);
    struct view view = {inside && b + keys <= kernel.keys && !kernel.mask.data,
                        inside,
                        (int)ra_max(-far, ra_min(far, kernel.band.lo - (b - a))),
                        (int)ra_max(-far, ra_min(far, kernel.band.hi - (b - a))),
                        kernel.band_step,
                        a};
    return view;
}

/* Of the tile of queries that stays, and of `keys` keys that pass. */
template <enum kind Kind>
RA_DEVICE struct view view_of_keys(const struct ra_kernel &kernel, const struct ra_work &work,
                                   const struct staying &stay, int rows,
                                   const struct ra_passing<int64_t> &now, int keys)
{
    return Kind == LISTED ? listed_view(work, stay, now, keys, kernel.mask.data)
                          : tile_view(kernel, stay.first, rows, now.at, keys);
}

/* Keys_stay: who passes is row i, otherwise key j. */
template <enum kind Kind, bool Keys_stay> RA_DEVICE bool sees(const struct view &view, int i, int j)
{
    if (Kind == LISTED) {
        if (view.inside)
            return true;
        int passing = view.passing + (Keys_stay ? i : j);
        int2 seen = __ldg((const int2 *)&view.sight[Keys_stay ? j : i]);
        return seen.x <= passing && passing < seen.y;
    }
    return view.lo <= j - i + ra_within_step(view.a + i, view.band_step.lo) &&
           j - i + ra_within_step(view.a + i, view.band_step.hi) <= view.hi;
}

/* Products q . k become scores. One question for all of them: a branch for each would keep the
 * compiler from computing them side by side. */
template <int M, int N> RA_DEVICE void score_values(float x[M][N], struct ra_score rule)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            x[i][j] *= rule.scale;
    if (rule.softcap > 0) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                x[i][j] = rule.softcap * ra_tanh(__fdividef(x[i][j], rule.softcap));
    }
}

/* The derivative of a score by scale * q . k. */
RA_DEVICE float score_slope(struct ra_score rule, float score)
{
    float bent = rule.softcap > 0 ? __fdividef(score, rule.softcap) : 0;
    return 1 - bent * bent;
}

/* What the places of row a and key b add to their score. */
RA_DEVICE float distance_score(const struct ra_kernel &kernel, int h, int64_t a, int64_t b)
{
    int place = ra_place_of_row(kernel.query_place, a, kernel.queries);
    return ra_of_head(kernel.slopes, h) *
           (float)(ra_place_of_row(kernel.key_place, b, kernel.keys) - place);
}

/* Adds that to the scores of a tile: of rows from a on and keys from b on. */
template <int M, int N>
RA_DEVICE void add_slopes(float scores[M][N], const struct ra_kernel &kernel, int h, int64_t a,
                          int64_t b)
{
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++)
            scores[i][j] +=
                distance_score(kernel, h, a + line() + i * LINES, b + lane() + j * LANES);
}

/* The largest, and the sum, of the numbers that the lanes of a line have. */
RA_DEVICE float line_max(float x)
{
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lanes));
    return x;
}

RA_DEVICE float line_sum(float x)
{
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

/* Sets the rows of a tile that are not all finite to 0, and nonfinite[row] says which: a query that
 * does not see such a key has weight 0 for it, and 0 times NaN is NaN; one that does see it gets
 * NaN by spoil_sums or weight. True: there are such rows. For all threads of the block together,
 * once the tile is there; when it returns they all see the same. */
template <int Dim, int Rows> RA_DEVICE bool zero_nonfinite(float *shared, bool nonfinite[Rows])
{
    int lane = threadIdx.x % 32, any = 0;
    for (int r = threadIdx.x / 32; r < Rows; r += THREADS / 32) {
        float *row = shared + r * (Dim + PAD);
        bool finite = true;
        for (int c = lane; c < Dim; c += 32)
            finite = finite && isfinite(row[c]);
        finite = __all_sync(0xffffffff, finite);
        for (int c = lane; c < Dim && !finite; c += 32)
            row[c] = 0;
        if (lane == 0)
            nonfinite[r] = !finite;
        any = any || !finite;
    }
    return __syncthreads_or(any);
}

/* Notes in `max` that each row has seen keys: where all of them see all keys. */
template <int M> RA_DEVICE void note_seen(float max[M])
{
#pragma unroll
    for (int i = 0; i < M; i++)
        max[i] = fmaxf(max[i], RA_LOWEST_SCORE);
}

/* The same where not all do: the score of a key that a row does not see becomes -inf. */
template <enum kind Kind, int M, int N>
RA_DEVICE void hide_scores(float scores[M][N], float max[M], const struct view &view,
                           const struct rows &keys, int64_t b0)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t key = b0 + lane() + j * LANES;
        bool allowed = key < keys.end && ra_allowed(keys.mask, keys.b, key);
#pragma unroll
        for (int i = 0; i < M; i++)
            if (allowed && sees<Kind, false>(view, line() + i * LINES, lane() + j * LANES))
                max[i] = fmaxf(max[i], RA_LOWEST_SCORE);
            else
                scores[i][j] = -CUDART_INF_F;
    }
}

/* Rescales the carry to the new max, and turns scores into weights under it. A row that has seen
 * nothing keeps its empty carry: all of these weights are 0. */
template <int M, int N, int Dim>
RA_DEVICE void weigh(float scores[M][N], float o[M][Dim / LANES], float max[M], float sum[M])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
        float most = max[i];
#pragma unroll
        for (int j = 0; j < N; j++)
            most = fmaxf(most, scores[i][j]);
        most = line_max(most);
        float base = most == -CUDART_INF_F ? 0 : most;
        float rescale = ra_exp2(RA_LOG2E * (max[i] - base));
        max[i] = most;
        sum[i] *= rescale;
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++)
            o[i][c] *= rescale;
#pragma unroll
        for (int j = 0; j < N; j++) {
            scores[i][j] = ra_exp2(RA_LOG2E * (scores[i][j] - base));
            sum[i] += scores[i][j];
        }
    }
}

/* The two products of the forward: s = q k^T, and o += p v. */
template <int Dim, int M, int N> RA_DEVICE void qk(float s[M][N], const float *q, const float *k)
{
    multiply_transposed<Dim, M, N>(s, q, k);
}

template <int Dim, int M, int N>
RA_DEVICE void pv(float o[M][Dim / LANES], const float *p, const float *v)
{
    multiply_add<Dim, M, N>(o, p, v);
}

/* What is done to the scores between them: they become weights, and the carry is rescaled. */
template <enum kind Kind, int M, int N, int Dim>
RA_DEVICE void online_softmax(float scores[M][N], float o[M][Dim / LANES], float max[M],
                              float sum[M], const struct view &view, const struct rows &keys,
                              int64_t b0)
{
    if (view.unmasked)
        note_seen<M>(max);
    else
        hide_scores<Kind, M, N>(scores, max, view, keys, b0);
    weigh<M, N, Dim>(scores, o, max, sum);
}

/* Rows that see a nonfinite key have no answer: their sums become NaN. */
template <enum kind Kind, int M, int N>
RA_DEVICE void spoil_sums(float sum[M], const bool *nonfinite, const struct view &view,
                          const struct rows &keys, int64_t b0)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        bool reaches = nonfinite[lane() + j * LANES] && b0 + lane() + j * LANES < keys.end;
#pragma unroll
        for (int i = 0; i < M; i++)
            if (reaches && sees<Kind, false>(view, line() + i * LINES, lane() + j * LANES))
                sum[i] = CUDART_NAN_F;
    }
}

/* Which tile a block has: block 0 the first or the last tile of the first head of the first batch,
 * and so on, all heads and batches before the next tile. */
struct position {
    int64_t tile, b;
    int head;
};

RA_DEVICE struct position this_position(int64_t heads, int64_t batch)
{
    int64_t i = blockIdx.x;
    struct position position = {i / (heads * batch), i / heads % batch, (int)(i % heads)};
    return position;
}

/* The shapes of tiles: 8 M rows stay, 16 N pass. Small: for 99 KiB of shared memory. */
template <int Dim, bool Small> struct shape {
    static constexpr int M = Dim < 256 ? 8 : Small ? 2 : 4, N = Small ? 1 : Dim == 64 ? 4 : 2;
    static constexpr int Stay = M * LINES, Pass = N * LANES;

    /* Numbers of shared memory in each kind of tile. */
    static constexpr int Stay_size = Stay * (Dim + PAD), Pass_size = Pass * (Dim + PAD);
    static constexpr int Weights_size = Stay * (Pass + PAD);
};

/* Adds the carry of the keys before to o and sum, which are those of these keys; max is already the
 * larger of both maxima. Each number of the carry is brought to that maximum, and so is what
 * rounding has cut off it, if the caller keeps that (sum_comp, o_comp). This is apart from the rest
 * so that a launch without a carry need not read these instructions. */
template <int Dim, int M>
RA_DEVICE void add_carry(const struct ra_kernel &kernel, int64_t b, const struct staying &stay,
                         int h, float o[M][Dim / LANES], const float max[M], float sum[M])
{
    int dim = (int)kernel.dim_value;
#pragma unroll
    for (int i = 0; i < M; i++) {
        int64_t a = stay.first + line() + i * LINES;
        float new_sum = line_sum(sum[i]);
        if (a >= stay.end)
            continue;

        /* A row that has seen no key at all has a max of -inf, and -inf - -inf would be NaN. */
        float base = max[i] == -CUDART_INF_F ? 0 : max[i];
        float rescale = ra_exp2(RA_LOG2E * (*ra_floats(kernel.carry_max, b, a, h) - base));

        /* store adds up the sums of all lanes: one has all of it, the others nothing. */
        float *sum_comp = kernel.sum_comp.data ? ra_floats(kernel.sum_comp, b, a, h) : NULL;
        sum[i] = 0;
        if (lane() == 0) {
            float all = rescale * *ra_floats(kernel.carry_sum, b, a, h);
            if (sum_comp)
                *sum_comp *= rescale;
            ra_add_kept(&all, sum_comp, new_sum);
            sum[i] = all;
        }

        /* The same for each number of o that this lane has. */
        float *o_comp = kernel.o_comp.data ? ra_floats(kernel.o_comp, b, a, h) : NULL;
        const float *carry_o = ra_floats(kernel.carry_o, b, a, h);
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++) {
            if (column(c) >= dim)
                continue;
            float all = rescale * carry_o[column(c)];
            if (o_comp)
                o_comp[column(c)] *= rescale;
            ra_add_kept(&all, o_comp ? &o_comp[column(c)] : NULL, o[i][c]);
            o[i][c] = all;
        }
    }
}

/* A sink is one score more, without a value. It may be far above those of keys, so the difference
 * is not multiplied by log2(e), and rounded, first. */
RA_DEVICE void add_sink(float &most, float &total, float &rescale, float sink)
{
    float all = fmaxf(most, sink), base = all == -CUDART_INF_F ? 0 : all;
    rescale = expf(most - base);
    total = total * rescale + expf(sink - base);
    most = all;
}

/* Passes the carry on; or finishes: a row that has seen nothing has sum = 0, and 0 / 0 would be
 * NaN, where log 0 is the -inf we want. */
template <int Dim, int M, enum kind Kind>
RA_DEVICE void store(const struct ra_kernel &kernel, int64_t b, const struct staying &stay, int h,
                     const float o[M][Dim / LANES], const float max[M], const float sum[M])
{
    bool last = stay.tile.last;
    const struct ra_tensor &results = last ? kernel.o : kernel.carry_o;
#pragma unroll
    for (int i = 0; i < M; i++) {
        int64_t a = stay.first + line() + i * LINES;
        float total = line_sum(sum[i]);
        if (max[i] == RA_LOWEST_SCORE)
            total = CUDART_NAN_F;
        if (a >= stay.end)
            continue;
        float most = max[i], rescale = 1;
        if (Kind != PLAIN && last && kernel.largest.data && lane() == 0)
            ra_raise(kernel.largest, h, isnan(total) ? total : most);
        if (Kind != PLAIN && last && kernel.sink.data)
            add_sink(most, total, rescale, ra_of_head(kernel.sink, h));
        float factor = !last ? 1 : total == 0 ? 0 : rescale / total;
        float *to = ra_floats(results, b, a, h);
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++)
            if (column(c) < kernel.dim_value)
                to[column(c)] = factor * o[i][c];
        if (lane() > 0)
            continue;
        if (last) {
            *ra_floats(kernel.lse, b, a, h) = most + logf(total);
        } else {
            *ra_floats(kernel.carry_max, b, a, h) = max[i];
            *ra_floats(kernel.carry_sum, b, a, h) = total;
        }
    }
}

/* The forward: a tile of query rows stays. */
template <int Dim, bool Small, enum kind Kind>
static __global__ void __launch_bounds__(THREADS, Dim == 64 && Kind == PLAIN ? 3 : 2)
    forward(const __grid_constant__ struct ra_kernel kernel, bool chunks)
{
    typedef struct shape<Dim, Small> shape;
    constexpr int M = shape::M, N = shape::N, Keys = shape::Pass;
    extern __shared__ __align__(16) float memory[];
    float *queries = memory, *keys = queries + shape::Stay_size;
    float *values = keys + shape::Pass_size, *weights = values + shape::Pass_size;
    __shared__ bool nonfinite[Keys];

    /* The last rows first: under a causal band they see the most keys. */
    struct position position = this_position(kernel.heads, kernel.batch);
    int64_t tiles = (kernel.queries + shape::Stay - 1) / shape::Stay;
    const struct staying stay = rows_that_stay<shape::Stay, Kind>(
        kernel, kernel.work, position.tile, (tiles - 1 - position.tile) * shape::Stay,
        kernel.queries);
    int64_t b = position.b, a0 = stay.first;
    int dim = (int)kernel.dim, dim_value = (int)kernel.dim_value, h = position.head;
    int g = ra_key_head(kernel.head_map, (int)kernel.heads, (int)kernel.key_heads, h);

    struct ra_passing<int64_t> now = rows_that_pass<Kind>(
        kernel.work, stay,
        ra_keys_seen(kernel.band, kernel.band_step, a0, shape::Stay, kernel.keys));
    if (now.end <= now.at && !stay.tile.first && !stay.tile.last)
        return;
    const struct ra_tensor none = {};
    const struct rows q = {kernel.q, none, b, stay.end, h, dim, chunks};
    const int64_t end = Kind == LISTED ? kernel.keys : now.end;
    const struct rows k = {kernel.k, kernel.mask, b, end, g, dim, chunks};
    const struct rows v = {kernel.v, kernel.mask, b, end, g, dim_value, chunks};

    /* The carry of these keys; of those before, their max already. Of the sum every lane has a
     * part, until the end. */
    float o[M][Dim / LANES] = {}, max[M], sum[M] = {};
#pragma unroll
    for (int i = 0; i < M; i++) {
        int64_t a = a0 + line() + i * LINES;
        bool carried = !stay.tile.first && a < stay.end;
        max[i] = carried ? *ra_floats(kernel.carry_max, b, a, h) : -CUDART_INF_F;
    }

    /* What the first round of the loop waits for, in two groups. */
    if (now.at < now.end) {
        load<Dim, shape::Stay>(queries, q, a0);
        load<Dim, Keys>(keys, k, now.at);
        ra_copies_end();
        load<Dim, Keys>(values, v, now.at);
        ra_copies_end();
    }

    /* Fold one tile of keys after the other. */
    for (struct ra_passing<int64_t> next; now.at < now.end; now = next) {
        int64_t b0 = now.at;
        next = ra_pass<Kind == LISTED>(now, kernel.work, stay.tile, Keys, kernel.keys);
        /* The keys are there when all but the last group of copies are; once every thread has read
         * them, the next may come. Values likewise, below. */
        float scores[M][N];
        ra_copies_wait<1>();
        __syncthreads();
        qk<Dim, M, N>(scores, queries, keys);
        __syncthreads();
        load<Dim, Keys>(keys, k, next.at);
        ra_copies_end();
        score_values<M, N>(scores, kernel.score);
        if (Kind != PLAIN && kernel.slopes.data)
            add_slopes<M, N>(scores, kernel, h, a0, b0);
        struct view view = view_of_keys<Kind>(kernel, kernel.work, stay, shape::Stay, now, Keys);
        online_softmax<Kind, M, N, Dim>(scores, o, max, sum, view, k, b0);
        write_weights<M, N>(weights, scores);
        ra_copies_wait<1>();
        __syncthreads();
        if (!view.inside && zero_nonfinite<Dim, Keys>(values, nonfinite))
            spoil_sums<Kind, M, N>(sum, nonfinite, view, k, b0);
        pv<Dim, M, N>(o, weights, values);
        __syncthreads();
        load<Dim, Keys>(values, v, next.at);
        ra_copies_end();
    }
    ra_copies_wait<0>();

    if (!stay.tile.first)
        add_carry<Dim, M>(kernel, b, stay, h, o, max, sum);
    store<Dim, M, Kind>(kernel, b, stay, h, o, max, sum);
}

/* lse and delta of a query row. One that saw nothing contributes nothing: under an lse of inf every
 * p is 0, where -inf - -inf would be NaN. The same for rows that are not there. */
struct known {
    float lse, delta;
};

RA_DEVICE struct known known_of(const struct ra_kernel &kernel, int64_t b, int64_t a, int h)
{
    struct known known = {CUDART_INF_F, 0};
    if (a >= kernel.queries)
        return known;
    known.delta = *ra_floats(kernel.delta, b, a, h);
    float lse = *ra_floats(kernel.lse, b, a, h);
    known.lse = lse == -CUDART_INF_F ? CUDART_INF_F : lse;
    return known;
}

/* The weight of a pair, exp(score - lse): 0 if the query does not see the key, NaN if it sees a
 * nonfinite one. */
RA_DEVICE float weight(bool visible, bool nonfinite, float score, float lse)
{
    float p = visible ? ra_exp2(RA_LOG2E * (score - lse)) : 0;
    return visible && nonfinite ? CUDART_NAN_F : p;
}

/* to (rows from `first` on, D) += sums, as far as there are rows that the mask allows; what
 * rounding loses goes to `comp`, if it is given. What is there is asked for a row at a time: number
 * by number, a thread would wait for each. */
template <int Dim, int M>
RA_DEVICE void add_sums(const struct rows &to, const struct ra_tensor &comp, int64_t first,
                        const float sums[M][Dim / LANES])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
        int64_t row = first + line() + i * LINES;
        if (row >= to.end || !ra_allowed(to.mask, to.b, row))
            continue;
        float *number = ra_floats(to.array, to.b, row, to.head);
        if (!comp.data) {
            float all[Dim / LANES];
#pragma unroll
            for (int c = 0; c < Dim / LANES; c++)
                all[c] = sums[i][c] + (column(c) < to.dim ? number[column(c)] : 0);
#pragma unroll
            for (int c = 0; c < Dim / LANES; c++)
                if (column(c) < to.dim)
                    number[column(c)] = all[c];
            continue;
        }
        float *error = ra_floats(comp, to.b, row, to.head);
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++)
            if (column(c) < to.dim)
                ra_add_kept(&number[column(c)], &error[column(c)], sums[i][c]);
    }
}

/* dq: a tile of query rows stays. Slopes add to scores, but not to what their derivative is by
 * q . k. */
template <int Dim, bool Small, enum kind Kind>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_queries(const __grid_constant__ struct ra_kernel kernel, bool chunks)
{
    typedef struct shape<Dim, Small> shape;
    constexpr int M = shape::M, N = shape::N, Keys = shape::Pass;
    extern __shared__ __align__(16) float memory[];
    float *queries = memory, *d_outs = queries + shape::Stay_size;
    float *keys = d_outs + shape::Stay_size, *values = keys + shape::Pass_size;
    float *weights = values + shape::Pass_size;
    __shared__ bool nonfinite[2][Keys];

    struct position position = this_position(kernel.heads, kernel.batch);
    int64_t tiles = (kernel.queries + shape::Stay - 1) / shape::Stay;
    const struct staying stay = rows_that_stay<shape::Stay, Kind>(
        kernel, kernel.dq_work, position.tile, (tiles - 1 - position.tile) * shape::Stay,
        kernel.queries);
    int64_t b = position.b, a0 = stay.first;
    int dim = (int)kernel.dim, dim_value = (int)kernel.dim_value, h = position.head;
    int g = ra_key_head(kernel.head_map, (int)kernel.heads, (int)kernel.key_heads, h);

    struct ra_passing<int64_t> now = rows_that_pass<Kind>(
        kernel.dq_work, stay,
        ra_keys_seen(kernel.band, kernel.band_step, a0, shape::Stay, kernel.keys));
    if (now.end <= now.at)
        return;
    const int64_t end = Kind == LISTED ? kernel.keys : now.end;
    const struct ra_tensor none = {};
    const struct rows q = {kernel.q, none, b, stay.end, h, dim, chunks};
    const struct rows d_out = {kernel.d_out, none, b, stay.end, h, dim_value, chunks};
    const struct rows dq = {kernel.dq, none, b, stay.end, h, dim, false};
    const struct rows k = {kernel.k, kernel.mask, b, end, g, dim, chunks};
    const struct rows v = {kernel.v, kernel.mask, b, end, g, dim_value, chunks};

    float sums[M][Dim / LANES];
    struct known known[M];
#pragma unroll
    for (int i = 0; i < M; i++) {
        known[i] = known_of(kernel, b, a0 + line() + i * LINES, h);
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++)
            sums[i][c] = 0;
    }

    auto placed = [&](float score, int i, int64_t key) {
        return Kind != PLAIN && kernel.slopes.data
                   ? score + distance_score(kernel, h, a0 + line() + i * LINES, key)
                   : score;
    };

    /* One group of copies for each round of the loop. */
    load<Dim, shape::Stay>(queries, q, a0);
    load<Dim, shape::Stay>(d_outs, d_out, a0);
    load<Dim, Keys>(keys, k, now.at);
    load<Dim, Keys>(values, v, now.at);
    ra_copies_end();

    /* One tile of keys after the other. */
    for (struct ra_passing<int64_t> next; now.at < now.end; now = next) {
        next = ra_pass<Kind == LISTED>(now, kernel.dq_work, stay.tile, Keys, kernel.keys);
        /* The products q . k, and dp = d_out . v. */
        float scores[M][N], ds[M][N];
        ra_copies_wait<0>();
        __syncthreads();
        struct view view = view_of_keys<Kind>(kernel, kernel.dq_work, stay, shape::Stay, now, Keys);
        bool any_nonfinite = false;
        if (!view.inside) {
            any_nonfinite = zero_nonfinite<Dim, Keys>(keys, nonfinite[0]);
            any_nonfinite |= zero_nonfinite<Dim, Keys>(values, nonfinite[1]);
        }
        multiply_transposed<Dim, M, N>(scores, queries, keys);
        multiply_transposed<Dim, M, N>(ds, d_outs, values);
        /* p = exp(score - lse), and ds = scale * p (dp - delta), times the slope. */
        score_values<M, N>(scores, kernel.score);
#pragma unroll
        for (int j = 0; j < N; j++) {
            int64_t key = now.at + lane() + j * LANES;
            int index = lane() + j * LANES;
            bool allowed = view.unmasked || (key < end && ra_allowed(kernel.mask, b, key));
            bool reaches = any_nonfinite && (nonfinite[0][index] || nonfinite[1][index]);
#pragma unroll
            for (int i = 0; i < M; i++) {
                bool visible = allowed && sees<Kind, false>(view, line() + i * LINES, index);
                float p = weight(visible, reaches, placed(scores[i][j], i, key), known[i].lse);
                ds[i][j] = kernel.score.scale * p * (ds[i][j] - known[i].delta) *
                           score_slope(kernel.score, scores[i][j]);
            }
        }
        write_weights<M, N>(weights, ds);
        /* The next values come as soon as every thread has read these; keys likewise. */
        __syncthreads();
        load<Dim, Keys>(values, v, next.at);
        multiply_add<Dim, M, N>(sums, weights, keys);
        __syncthreads();
        load<Dim, Keys>(keys, k, next.at);
        ra_copies_end();
    }

    ra_copies_wait<0>();
    add_sums<Dim, M>(dq, kernel.dq_comp, a0, sums);
}

/* dk and dv: a tile of key rows stays. Here the rows of a tile of products are keys, and its
 * columns queries. */
template <int Dim, bool Small, enum kind Kind>
static __global__ void __launch_bounds__(THREADS, 2)
    backward_keys(const __grid_constant__ struct ra_kernel kernel, bool chunks)
{
    typedef struct shape<Dim, Small> shape;
    constexpr int M = shape::M, N = shape::N, Queries = shape::Pass;
    extern __shared__ __align__(16) float memory[];
    float *keys = memory, *values = keys + shape::Stay_size;
    float *queries = values + shape::Stay_size, *d_outs = queries + shape::Pass_size;
    float *weights = d_outs + shape::Pass_size;
    __shared__ bool nonfinite[2][shape::Stay];

    /* The first keys first: under a causal band most queries see them. */
    struct position position = this_position(kernel.key_heads, kernel.batch);
    const struct staying stay = rows_that_stay<shape::Stay, Kind>(
        kernel, kernel.work, position.tile, position.tile * shape::Stay, kernel.keys);
    int64_t b = position.b, b0 = stay.first;
    int dim = (int)kernel.dim, dim_value = (int)kernel.dim_value, g = position.head;
    int H = (int)kernel.heads, G = (int)kernel.key_heads;

    const struct ra_passing<int64_t> first = rows_that_pass<Kind>(
        kernel.work, stay,
        ra_queries_seeing(kernel.band, kernel.band_step, b0, shape::Stay, kernel.queries));
    if (first.end <= first.at)
        return;
    const int64_t end = Kind == LISTED ? kernel.queries : first.end;
    const struct ra_tensor none = {};
    const struct rows k = {kernel.k, kernel.mask, b, stay.end, g, dim, chunks};
    const struct rows v = {kernel.v, kernel.mask, b, stay.end, g, dim_value, chunks};
    const struct rows dk = {kernel.dk, kernel.mask, b, stay.end, g, dim, false};
    const struct rows dv = {kernel.dv, kernel.mask, b, stay.end, g, dim_value, false};
    struct rows q = {kernel.q, none, b, end, 0, dim, chunks};
    struct rows d_out = {kernel.d_out, none, b, end, 0, dim_value, chunks};

    float dk_sums[M][Dim / LANES], dv_sums[M][Dim / LANES];
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int c = 0; c < Dim / LANES; c++)
            dk_sums[i][c] = dv_sums[i][c] = 0;

    q.head = d_out.head = ra_query_head(kernel.head_map, H, G, g, 0);
    load<Dim, shape::Stay>(keys, k, b0);
    load<Dim, shape::Stay>(values, v, b0);
    load<Dim, Queries>(queries, q, first.at);
    load<Dim, Queries>(d_outs, d_out, first.at);
    ra_copies_end();
    ra_copies_wait<0>();
    __syncthreads();
    bool any_nonfinite = zero_nonfinite<Dim, shape::Stay>(keys, nonfinite[0]);
    any_nonfinite |= zero_nonfinite<Dim, shape::Stay>(values, nonfinite[1]);

    /* The tiles of queries that see these keys, of all heads that read them. After the last tile
     * there are no rows to copy, only zeros. */
    struct ra_passing<int64_t> now = first, next;
    for (int i = 0; i < H / G; now = next) {
        int64_t a0 = now.at;
        int h = q.head;
        next = ra_pass<Kind == LISTED>(now, kernel.work, stay.tile, Queries, kernel.queries);
        if (next.at >= next.end && ++i < H / G) {
            next = first;
            q.head = d_out.head = ra_query_head(kernel.head_map, H, G, g, i);
        }

        struct known known[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            known[j] = known_of(kernel, b, a0 + lane() + j * LANES, h);
        float factors[M][N], products[M][N];
        ra_copies_wait<0>();
        __syncthreads();
        multiply_transposed<Dim, M, N>(products, keys, queries);

        /* p = exp(score - lse); and what dp - delta is to be multiplied by, as above. */
        score_values<M, N>(products, kernel.score);
        struct view view = Kind == LISTED ? listed_view(kernel.work, stay, now, Queries, false)
                                          : tile_view(kernel, a0, Queries, b0, shape::Stay);
#pragma unroll
        for (int i = 0; i < M; i++) {
            int index = line() + i * LINES;
            bool reaches = any_nonfinite && (nonfinite[0][index] || nonfinite[1][index]);
#pragma unroll
            for (int j = 0; j < N; j++) {
                bool visible = sees<Kind, true>(view, lane() + j * LANES, index);
                float score = products[i][j], placed = score;
                if (Kind != PLAIN && kernel.slopes.data)
                    placed += distance_score(kernel, h, a0 + lane() + j * LANES, b0 + index);
                float p = weight(visible, reaches, placed, known[j].lse);
                products[i][j] = p;
                factors[i][j] = kernel.score.scale * p * score_slope(kernel.score, score);
            }
        }

        /* dv += p d_out, with p turned on its side. */
        write_weights<M, N>(weights, products);
        multiply_add<Dim, M, N, 64>(dv_sums, weights, d_outs);

        /* dk += ds q. The weights p are read, and so are these rows of d_out, once all threads are
         * here. */
        multiply_transposed<Dim, M, N>(products, values, d_outs);
        __syncthreads();
        load<Dim, Queries>(d_outs, d_out, next.at);
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                products[i][j] = factors[i][j] * (products[i][j] - known[j].delta);
        write_weights<M, N>(weights, products);
        multiply_add<Dim, M, N, 64>(dk_sums, weights, queries);
        __syncthreads();
        load<Dim, Queries>(queries, q, next.at);
        ra_copies_end();
    }
    ra_copies_wait<0>();
    add_sums<Dim, M>(dk, kernel.dk_comp, b0, dk_sums);
    add_sums<Dim, M>(dv, kernel.dv_comp, b0, dv_sums);
}

/* Has this device so much shared memory for a block? On compute capability 8.6 and 12.0 it is 99
 * KiB, and never less. */
static cudaError_t has_room(bool *room, int numbers)
{
    int most;
    cudaError_t error = ra_ask_device(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    *room = error == cudaSuccess && most >= numbers * (int)sizeof(float);
    return error;
}

/* The kernels are launched like this: a block per tile of each of the heads, or for each part of a
 * list's tiles that a block takes, with so many numbers of shared memory. */
typedef void tile_kernel(struct ra_kernel kernel, bool chunks);

template <int Stay>
static cudaError_t launch(tile_kernel *function, const struct ra_kernel *kernel,
                          const struct ra_work *work, int64_t rows, int64_t heads, int numbers,
                          cudaStream_t stream)
{
    bool chunks = ra_in_chunks(kernel->q, kernel->dim) && ra_in_chunks(kernel->k, kernel->dim) &&
                  ra_in_chunks(kernel->v, kernel->dim_value) &&
                  ra_in_chunks(kernel->d_out, kernel->dim_value);
    int64_t tiles = work ? (int64_t)work->count * Blocks_of_tile<Stay> : (rows + Stay - 1) / Stay;
    int64_t blocks = tiles * heads * kernel->batch;
    if (blocks == 0) /* a list for dq in which nobody sees anything */
        return cudaSuccess;
    return ra_launch(function, blocks, THREADS, numbers * sizeof(float), stream, *kernel, chunks);
}

template <int Dim, bool Small = false>
static cudaError_t launch_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    typedef struct shape<Dim, Small> shape;
    const int numbers = shape::Stay_size + 2 * shape::Pass_size + shape::Weights_size;
    bool room;
    cudaError_t error = has_room(&room, numbers);
    if (error != cudaSuccess)
        return error;
    if constexpr (Dim == 256 && !Small)
        if (!room)
            return launch_forward<Dim, true>(kernel, stream);
    const struct ra_work *work = kernel->work.count > 0 ? &kernel->work : NULL;
    tile_kernel *function = work                    ? forward<Dim, Small, LISTED>
                            : ra_has_extras(kernel) ? forward<Dim, Small, EXTRAS>
                                                    : forward<Dim, Small, PLAIN>;
    return launch<shape::Stay>(function, kernel, work, kernel->queries, kernel->heads, numbers,
                               stream);
}

template <int Dim, bool Small = false>
static cudaError_t launch_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    typedef struct shape<Dim, Small> shape;
    const int numbers = 2 * shape::Stay_size + 2 * shape::Pass_size + shape::Weights_size;
    bool room;
    cudaError_t error = has_room(&room, numbers);
    if (error != cudaSuccess)
        return error;
    if constexpr (Dim > 64 && !Small)
        if (!room)
            return launch_backward<Dim, true>(kernel, stream);

    /* No launch adds up more rows than it can well; and no list has more. */
    bool sloped = kernel->slopes.data, listed = kernel->work.count > 0;
    tile_kernel *queries = listed   ? backward_queries<Dim, Small, LISTED>
                           : sloped ? backward_queries<Dim, Small, EXTRAS>
                                    : backward_queries<Dim, Small, PLAIN>;
    tile_kernel *keys = listed   ? backward_keys<Dim, Small, LISTED>
                        : sloped ? backward_keys<Dim, Small, EXTRAS>
                                 : backward_keys<Dim, Small, PLAIN>;
    int64_t most = listed ? kernel->keys : ra_kernel_most_keys(RA_FLOAT32);
    for (int64_t b = 0; b < kernel->keys && error == cudaSuccess; b += most) {
        struct ra_kernel piece = ra_kernel_keys(*kernel, b, most);
        error = launch<shape::Stay>(queries, &piece, listed ? &piece.dq_work : NULL, piece.queries,
                                    piece.heads, numbers, stream);
    }
    most = listed ? kernel->queries : ra_kernel_most_queries(kernel);
    for (int64_t a = 0; a < kernel->queries && error == cudaSuccess; a += most) {
        struct ra_kernel piece = ra_kernel_queries(*kernel, a, most);
        error = launch<shape::Stay>(keys, &piece, listed ? &piece.work : NULL, piece.keys,
                                    piece.key_heads, numbers, stream);
    }
    return error;
}

extern "C" cudaError_t ra_k02_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->q.type != RA_FLOAT32 || ra_kernel_widest(kernel) > RA_MOST_DIM)
        return cudaErrorNotSupported;
    if (kernel->batch == 0 || kernel->queries == 0)
        return cudaSuccess;
    int64_t dim = ra_kernel_widest(kernel);
    return dim <= 64    ? launch_forward<64>(kernel, stream)
           : dim <= 128 ? launch_forward<128>(kernel, stream)
                        : launch_forward<256>(kernel, stream);
}

extern "C" cudaError_t ra_k02_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->q.type != RA_FLOAT32 || ra_kernel_widest(kernel) > RA_MOST_DIM)
        return cudaErrorNotSupported;
    if (kernel->batch == 0 || kernel->queries == 0 || kernel->keys == 0)
        return cudaSuccess;
    int64_t dim = ra_kernel_widest(kernel);
    return dim <= 64    ? launch_backward<64>(kernel, stream)
           : dim <= 128 ? launch_backward<128>(kernel, stream)
                        : launch_backward<256>(kernel, stream);
}
