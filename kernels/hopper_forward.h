/* hopper_forward: what the forwards for Hopper share, k04 to k07: tiles in panels, the two products
 * of a tile by wgmma, and which launches these kernels take.
 *
 * Chapter 11d.
 */
#ifndef HOPPER_FORWARD_H
#define HOPPER_FORWARD_H

#include "online_softmax.h"
#include "hopper_instructions.h"

/* D and D_v, rounded up to whole panels: what is beyond them is 0. */
template <int Dim_, int Dim_value_ = Dim_> struct widths {
    static constexpr int Dim = Dim_, Dim_value = Dim_value_;
};

/* The shape of a tile: each warpgroup has 64 rows of queries. In k07 two blocks of threads, a
 * cluster, may share a tile: each has half of its rows; and a warpgroup may overlap two tiles of
 * keys. Listed: tiles, and what their rows see, are in a list. Extras: there may be sinks, slopes,
 * largest scores; without them the kernel is none of these instructions longer. */
template <class Type_, class Widths, int Keys_, int Groups_, int Cluster_ = 1, bool Listed_ = false,
          bool Extras_ = false, bool Overlaps_ = false>
struct hopper_tile : forward_tile<Type_, Widths::Dim, 1, Keys_, 4 * Groups_, Widths::Dim_value> {
    static constexpr bool Overlaps = Overlaps_;
    static constexpr int Groups = Groups_, Query_bytes = 64 * Widths::Dim * 2, /* of a warpgroup */
        Key_bytes = Keys_ * Widths::Dim * 2, Value_bytes = Keys_ * Widths::Dim_value * 2,
                         Cluster = Cluster_, Rows = 64 * Groups * Cluster;
    static constexpr bool Listed = Listed_, Extras = Extras_;
};

/* What the launcher works out, and how TMA finds the rows. */
struct hopper_forward : forward {
    CUtensorMap q_map, k_map, v_map;
    int blocks; /* tiles of queries of all heads */
};

/* Tiles of keys, from number `first` to before `end`. */
struct tiles {
    int first, end;
};

/* What a block of threads has to do: rows of queries, from a0 on, and the tiles of keys that these
 * rows see, or those of the other block of the cluster. Keys are counted from the first that one of
 * the rows sees, `first`; there are `keys` of them, in `count` tiles, at least one. Row i sees key
 * j when lo <= j - i <= hi and the mask allows it. Tiles have numbers, from `number` on, which is
 * not 0 where a block has several tasks: a warpgroup sees nothing but its tiles `of` [group], and
 * all its rows see every key of the tiles `unmasked` [group], but for the mask, and the rows of all
 * warpgroups those of the tiles `unmasked_for_all`. All of it stays in shared memory, as registers
 * are scarce. */
struct hopper_task : task {
    int groups;      /* how many warpgroups have rows, 64 each */
    int64_t rows[3]; /* where those of a warpgroup begin; beyond the last row if it has none */
    int64_t first;
    int keys, lo, hi, count;
    int number;
    struct tiles of[3], unmasked[3], unmasked_for_all;
    int iteration; /* the number of the task, of those that the block has */

    /* Of a list: a tile of queries has a task for each of its parts, one after the other, and its
     * queries stay. `turn`: how many tiles of queries the block has had before; without a list, how
     * many tasks. sight: what each row of the tile sees.
     * whole: a bit for every warpgroup that has 64 rows which no other launch has a part in. */
    int turn, drawn, part, whole;
    bool begins, ends;
    struct borders borders;
    const struct ra_sight *sight;
};

/* What row i of a tile in a list sees. Asked for each time: registers are scarce. */
RA_DEVICE struct ra_sight sight_of(const struct hopper_task &task, int i)
{
    struct ra_sight seen;
    asm volatile("ld.global.nc.v2.s32 {%0, %1}, [%2];"
                 : "=r"(seen.first), "=r"(seen.end)
                 : "l"(task.sight + i));
    return seen;
}

/* The first and the last key that row i sees by the band; keys may have such numbers or not. */
RA_DEVICE int first_seen(const struct ra_kernel &kernel, const struct hopper_task &task, int i)
{
    return i + task.lo - ra_within_step(task.a0 + i, kernel.band_step.lo);
}

RA_DEVICE int last_seen(const struct ra_kernel &kernel, const struct hopper_task &task, int i)
{
    return i + task.hi - ra_within_step(task.a0 + i, kernel.band_step.hi);
}

/* Of tile `tile` of queries, for the block of this rank in its cluster. */
template <class Shape>
RA_DEVICE struct hopper_task hopper_task_of(const struct hopper_forward &f, int tile, int rank = 0,
                                            int number = 0, int iteration = 0)
{
    constexpr int Groups = Shape::Groups, Keys = Shape::Keys, Far = 1 << 30;
    struct hopper_task task;
    (struct task &)task = task_of<Shape>(f, tile);

    /* If the rows are not enough for whole tiles, the first tile has fewer warpgroups: under a
     * causal mask it has the fewest keys. */
    int groups = Groups * Shape::Cluster,
        missing = f.tiles * groups - (int)((f.kernel.queries + 63) / 64);
    groups -= task.a0 == 0 ? missing : 0;
    task.a0 = ra_max(0, task.a0 - 64 * missing);
    struct ra_range range =
        ra_keys_seen(f.kernel.band, f.kernel.band_step, task.a0,
                     ra_min(64 * groups, f.kernel.queries - task.a0), f.kernel.keys);

    /* From here on all is of this block. */
    task.groups = max(0, min(Groups, groups - Groups * rank));
    task.a0 += 64 * Groups * rank;
    int64_t back = task.a0 - range.first;
    task.first = ra_min(range.first, f.kernel.keys);
    task.number = number;
    task.iteration = task.turn = iteration;
    task.keys = (int)ra_max(0, range.end - range.first);
    task.lo = (int)ra_max(-Far, ra_min(Far, back + f.kernel.band.lo));
    task.hi = (int)ra_max(-Far, ra_min(Far, back + f.kernel.band.hi));
    task.count = max(1, (task.keys + Keys - 1) / Keys);
#pragma unroll
    for (int g = 0; g < Groups; g++) {
        int first = max(0, first_seen(f.kernel, task, 64 * g)) / Keys;
        int end =
            g < task.groups ? max(0, last_seen(f.kernel, task, 64 * g + 63) + Keys) / Keys : 0;
        task.of[g].first = number + min(task.count, first);
        task.of[g].end = number + min(task.count, end);
        task.unmasked[g].first =
            number + (max(0, first_seen(f.kernel, task, 64 * g + 63)) + Keys - 1) / Keys;
        task.unmasked[g].end =
            number + max(0, min(task.keys, last_seen(f.kernel, task, 64 * g) + 1)) / Keys;
        task.rows[g] = g < task.groups ? task.a0 + 64 * g : f.kernel.queries;
    }
    task.unmasked_for_all = {task.unmasked[max(1, task.groups) - 1].first, task.unmasked[0].end};
    return task;
}

/* The tiles of keys that have, or are, some of keys first .. end - 1, counted from the first tile
 * of a part. */
template <class Shape> RA_DEVICE struct tiles tiles_with(const struct ra_sight &keys, int first)
{
    bool none = keys.end <= keys.first;
    return {none ? 0 : (keys.first - first) / Shape::Keys,
            none ? 0 : (keys.end - first + Shape::Keys - 1) / Shape::Keys};
}

template <class Shape> RA_DEVICE struct tiles tiles_within(const struct ra_sight &keys, int first)
{
    return {max(0, keys.first - first + Shape::Keys - 1) / Shape::Keys,
            max(0, keys.end - first) / Shape::Keys};
}

/* Of a list: tile number `drawn`, and of it part number `part`. */
template <class Shape>
RA_DEVICE struct hopper_task listed_task_of(const struct hopper_forward &f, int drawn, int part,
                                            int number, int iteration, int turn)
{
    struct hopper_task task;
    task.number = number;
    task.iteration = iteration;
    task.turn = turn;
    task.drawn = drawn;
    task.part = part;
    (struct task &)task = task_of<Shape>(f, drawn);
    const struct ra_work_tile *tile = &f.kernel.work.tile[task.tile];
    task.a0 = tile->row;
    task.borders.end = tile->row + tile->rows;
    task.borders.first = tile->first;
    task.borders.last = tile->last;
    task.whole = tile->first && tile->last ? (1 << tile->rows / 64) - 1 : 0;
    task.begins = part == 0;
    task.ends = part + 1 == tile->parts;
    part += tile->part;
    task.sight = f.kernel.work.sight + (int64_t)part * Shape::Rows;

    const struct ra_work_part *now = &f.kernel.work.part[part];
    int first = now->some.first;
    task.first = first;
    task.keys = now->some.end - first;
    task.count = max(1, (task.keys + Shape::Keys - 1) / Shape::Keys);
    struct tiles all = tiles_within<Shape>(now->every, first);
    task.unmasked_for_all = {number + all.first, number + all.end};
#pragma unroll 1
    for (int g = 0; g < Shape::Groups; g++) {
        struct tiles some = tiles_with<Shape>(now->some_of[g], first);
        struct tiles every = tiles_within<Shape>(now->every_of[g], first);
        task.of[g] = {number + some.first, number + some.end};
        task.unmasked[g] = {number + every.first, number + every.end};
        task.rows[g] = ra_min(task.a0 + 64 * g, task.borders.end);
    }
    return task;
}

/* Is this task the first, or the last, of a tile of queries? */
template <class Shape> RA_DEVICE bool begins_tile(const struct hopper_task &task)
{
    return !Shape::Listed || ra_uniform(task.begins);
}

template <class Shape> RA_DEVICE bool ends_tile(const struct hopper_task &task)
{
    return !Shape::Listed || ra_uniform(task.ends);
}

template <class Shape>
RA_DEVICE struct borders borders_of(const struct hopper_forward &f, const struct hopper_task &task)
{
    return Shape::Listed ? task.borders : borders_of(f.kernel);
}

/* Read before the loop, and the same for all threads of a warp, as the compiler then knows: so a
 * test of them waits for no memory, a warp stays together behind it, and what is the same for its
 * threads stays in registers of the warp's. */
RA_DEVICE struct tiles uniform(const struct tiles &x)
{
    return {ra_uniform(x.first), ra_uniform(x.end)};
}

/* The tiles that are unmasked for all warpgroups. */
RA_DEVICE struct tiles unmasked_for_all(const struct hopper_task &task)
{
    return uniform(task.unmasked_for_all);
}

/* Is this tile, of which the mask allows these keys, one of the `unmasked` ones? */
template <class Shape>
RA_DEVICE bool is_unmasked(const struct forward &f, struct tiles unmasked, int number,
                           const uint32_t allowed[Shape::Words])
{
    bool inside = number >= unmasked.first && number < unmasked.end;
    if (inside && f.kernel.mask.data)
        inside = __all_sync(0xffffffff, all_valid<Shape>(allowed));
    return inside;
}

/* s = q k^T, of 64 rows: as soon as its operands are described a product is on its way. When qk
 * returns, s is there. */
template <class Shape> RA_DEVICE void begin_qk(typename Shape::Scores &s, uint64_t q, uint64_t k)
{
    ra_products_begin();
#pragma unroll
    for (int d = 0; d < Shape::Dim; d += 16)
        ra_wgmma<typename Shape::Type, Shape::Keys>::template multiply<false, false>(
            s[0], ra_descriptor_beyond(q, ra_panel_offset(0, d, 64)),
            ra_descriptor_beyond(k, ra_panel_offset(0, d, Shape::Keys)), d > 0);
    ra_products_end();
}

template <class Shape> RA_DEVICE void qk(typename Shape::Scores &s, uint64_t q, uint64_t k)
{
    begin_qk<Shape>(s, q, k);
    ra_products_wait<0>();
    ra_pin(s[0]);
}

/* The weights as 16-bit numbers: what a thread has of two products side by side is just what it has
 * to bring of the next one's left matrix. */
template <class Shape>
RA_DEVICE void pack(uint32_t (&p)[Shape::Keys / 16][4], const typename Shape::Scores &weights)
{
#pragma unroll
    for (int i = 0; i < Shape::Keys / 4; i++)
        p[i / 4][i % 4] =
            Shape::Type::pair(weights[0][i / 2][i % 2 * 2], weights[0][i / 2][i % 2 * 2 + 1]);
}

/* o += p v, likewise. The values lie with one row for a key: for this product they are
 * transposed. */
template <class Shape>
RA_DEVICE void begin_pv(typename Shape::Outputs &o, uint32_t (&p)[Shape::Keys / 16][4], uint64_t v)
{
    ra_pin(o[0]);
    ra_pin(p);
    ra_products_begin();
#pragma unroll
    for (int b = 0; b < Shape::Keys; b += 16)
        ra_wgmma<typename Shape::Type, Shape::Dim_value>::template multiply<true>(
            o[0], p[b / 16], ra_descriptor_beyond(v, ra_panel_offset(b, 0, Shape::Keys)), true);
    ra_products_end();
}

template <class Shape>
RA_DEVICE void pv(typename Shape::Outputs &o, uint32_t (&p)[Shape::Keys / 16][4], uint64_t v)
{
    begin_pv<Shape>(o, p, v);
    ra_products_wait<0>();
    ra_pin(o[0]);
}

template <class Shape> RA_DEVICE void begin(struct carry<Shape> &carry)
{
    clear(carry.o);
    carry.most[0][0] = carry.most[0][1] = -CUDART_INF_F;
    carry.sum[0][0] = carry.sum[0][1] = 0;
}

/* The bits of a word from number `first` to number `last`; none if that is before. */
RA_DEVICE uint32_t bits_between(int first, int last)
{
    first = max(first, 0);
    last = min(last, 31);
    return first > last ? 0 : ~0u << first & ~0u >> (31 - last);
}

/* Sets the score of every key of this tile that a row does not see to -inf. What a row sees are
 * bits: those of keys that are there, and from the first to the last that its band lets it see. So
 * a score costs a test of one bit and a choice. */
template <class Shape>
RA_DEVICE void hide_scores(typename Shape::Scores &s, struct carry<Shape> &carry,
                           const struct forward &f, const struct hopper_task &task, int number,
                           int row, const uint32_t allowed[Shape::Words])
{
    int column = 2 * (threadIdx.x % 4), b0 = (number - task.number) * Shape::Keys;
    uint32_t valid[Shape::Words];
#pragma unroll
    for (int w = 0; w < Shape::Words; w++)
        valid[w] = key_bits<Shape>(w) &
                   (f.kernel.mask.data ? allowed[w] : bits_between(0, task.keys - b0 - 32 * w - 1));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int lo, hi;
        if (Shape::Listed) {
            struct ra_sight seen = sight_of(task, row + 8 * r);
            lo = seen.first - (int)task.first - b0;
            hi = seen.end - 1 - (int)task.first - b0;
        } else {
            lo = first_seen(f.kernel, task, row + 8 * r) - b0;
            hi = last_seen(f.kernel, task, row + 8 * r) - b0;
        }
        uint32_t any = 0;
#pragma unroll
        for (int w = 0; w < Shape::Words; w++) {
            uint32_t seen = valid[w] & bits_between(lo - 32 * w, hi - 32 * w);
            any |= seen;
            seen >>= column;
#pragma unroll
            for (int c = 4 * w; c < 4 * w + 4 && c < Shape::Keys / 8; c++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &score = s[0][c][2 * r + e];
                    score = seen >> (8 * (c % 4) + e) & 1 ? score : -CUDART_INF_F;
                }
        }
        if (any != 0)
            carry.most[0][r] = fmaxf(carry.most[0][r], RA_LOWEST_SCORE);
    }
}

/* Sets to NaN the scores that are not hidden of keys whose values are nonfinite. */
template <class Shape>
RA_DEVICE void spoil_scores(typename Shape::Scores &s, const uint16_t nonfinite[Shape::Keys / 16])
{
    int column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int c = 0; c < Shape::Keys / 8; c++) {
        uint32_t bits = nonfinite[c / 2] >> column >> 8 * (c % 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (bits >> e % 2 & 1 && s[0][c][e] != -CUDART_INF_F)
                s[0][c][e] = CUDART_NAN_F;
    }
}

/* zero_nonfinite of a tile of values: the mark is a NaN in the key. For the threads of these
 * warpgroups together, by a barrier of this number. */
template <class Shape>
RA_DEVICE void zero_nonfinite_values(char *k, char *v, int thread, int barrier)
{
    zero_nonfinite<typename Shape::Type>(
        (uint4 *)v, Shape::Value_bytes / 16, thread, Shape::Threads,
        [=](bool mine) { return ra_named_barrier_or(barrier, Shape::Threads, mine); },
        [=](int chunk) {
            int key = chunk / 8 % Shape::Keys;
            *(uint16_t *)(k + ra_panel_offset(key, 0, Shape::Keys)) = 0x7fff;
            ra_stores_before_wgmma();
        });
}

/* Turns the scores of row r into weights under its largest score so far. Returns what the carry of
 * the row is multiplied by. */
template <class Shape>
RA_DEVICE float weigh_row(typename Shape::Scores &s, struct carry<Shape> &carry, int r,
                          float factor)
{
    float old = carry.most[0][r], now = old;
#pragma unroll
    for (int c = 0; c < Shape::Keys / 8; c++)
        now = fmaxf(now, fmaxf(s[0][c][2 * r], s[0][c][2 * r + 1]));
    carry.most[0][r] = now = most_of_row(now);

    /* As in k03: a row that has seen nothing has no largest score, and where nothing has grown the
     * carry must be multiplied by 1. */
    float base = now == -CUDART_INF_F ? 0 : __fmul_rn(now, factor);
    float before = ra_exp2(__fmul_rn(old, factor) - base), sum = carry.sum[0][r] * before;
#pragma unroll
    for (int c = 0; c < Shape::Keys / 8; c++)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; e++) {
            s[0][c][e] = ra_exp2(s[0][c][e] * factor - base);
            sum += s[0][c][e];
        }
    carry.sum[0][r] = sum;
    return before;
}

/* Both rows of a thread, one after the other: while exponentials of the first are computed, the
 * largest score of the second is found. k03, with its four rows, has not the registers for that. */
template <class Shape>
RA_DEVICE void weigh_rows(typename Shape::Scores &s, struct carry<Shape> &carry, float factor)
{
    float before[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        before[r] = weigh_row<Shape>(s, carry, r, factor);

    /* Mostly nothing has grown, and o stays as it is. No branch: what is on one side of it the
     * compiler does not mix with what is on the other, and among the exponentials there is time for
     * the additions of both rows. 64 columns are so few that they are multiplied in any case. */
    bool any = Shape::Dim_value == 64 || __any_sync(0xffffffff, before[0] != 1 || before[1] != 1);
#pragma unroll
    for (int c = 0; c < Shape::Dim_value / 8; c++)
        ra_multiply_if(any, carry.o[0][c], before);
}

/* Hides what rows of this warpgroup do not see of this tile; unmasked: nothing. `allowed`: the bits
 * of the mask, if there is one; `nonfinite`: those of keys whose values were not finite, if anybody
 * has looked. */
template <class Shape>
RA_DEVICE void hide(typename Shape::Scores &s, struct carry<Shape> &carry, const struct forward &f,
                    const struct hopper_task &task, int number, bool unmasked, int row,
                    const uint32_t allowed[Shape::Words], const uint16_t *nonfinite)
{
    if (unmasked) {
        note_seen<Shape>(carry);
    } else {
        /* Some rows of the block do not see some of the keys; those of this warpgroup may. */
        if (is_unmasked<Shape>(f, uniform(task.unmasked[row / 64]), number, allowed))
            note_seen<Shape>(carry);
        else
            hide_scores<Shape>(s, carry, f, task, number, row, allowed);
        uint32_t any = 0;
        if (nonfinite)
#pragma unroll
            for (int i = 0; i < Shape::Keys / 16; i++)
                any |= nonfinite[i];
        if (any != 0)
            spoil_scores<Shape>(s, nonfinite);
    }
}

/* What comes before the largest score is looked for: a soft cap, slopes, and what is hidden. row:
 * this thread's first one, of the block. */
template <class Shape>
RA_DEVICE void prepare_scores(typename Shape::Scores &s, struct carry<Shape> &carry,
                              const struct forward &f, const struct hopper_task &task, int number,
                              bool unmasked, int row, const uint32_t allowed[Shape::Words],
                              const uint16_t *nonfinite = nullptr)
{
    if (!f.plain) {
        cap_scores<Shape>(s, f);
        if (Shape::Extras && f.kernel.slopes.data)
            add_slopes<Shape>(s, f, task.h, task.rows[row / 64] + row % 64,
                              task.first + (number - task.number) * Shape::Keys);
    }
    hide<Shape>(s, carry, f, task, number, unmasked, row, allowed, nonfinite);
}

/* What is done to the scores between the products. */
template <class Shape>
RA_DEVICE void online_softmax(typename Shape::Scores &s, struct carry<Shape> &carry,
                              const struct forward &f, const struct hopper_task &task, int number,
                              bool unmasked, int row, const uint32_t allowed[Shape::Words],
                              const uint16_t *nonfinite = nullptr)
{
    prepare_scores<Shape>(s, carry, f, task, number, unmasked, row, allowed, nonfinite);
    weigh_rows<Shape>(s, carry, f.factor);
}

/* ---- For the host. */

/* Can these kernels run it? They want a GPU of compute capability 9.0 and, for TMA, rows that lie
 * at multiples of 16 bytes. */
static inline cudaError_t supports(bool *answer, const struct ra_kernel *kernel)
{
    *answer = false;
    if (kernel->batch * kernel->heads * kernel->queries * kernel->keys == 0 ||
        kernel->q.type == RA_FLOAT32 || ra_kernel_widest(kernel) > RA_MOST_DIM ||
        !ra_in_boxes(kernel->q, kernel->queries, kernel->dim) ||
        !ra_in_boxes(kernel->k, kernel->keys, kernel->dim) ||
        !ra_in_boxes(kernel->v, kernel->keys, kernel->dim_value))
        return cudaSuccess;
    return ra_ask_hopper(answer);
}

/* A launch with tiles of this shape, but for the kernel. */
template <class Shape>
static cudaError_t prepare_hopper(struct hopper_forward *f, const struct ra_kernel *kernel)
{
    (struct forward &)*f = prepare_forward(kernel, Shape::Rows);
    f->blocks = (int)(kernel->batch * kernel->heads * f->tiles);
    cudaError_t error = ra_make_map(&f->q_map, kernel->q, kernel->batch, kernel->queries,
                                    kernel->heads, kernel->dim, 64);
    int keys = Shape::Keys / Shape::Cluster;
    if (error == cudaSuccess)
        error = ra_make_map(&f->k_map, kernel->k, kernel->batch, kernel->keys, kernel->key_heads,
                            kernel->dim, keys);
    if (error == cudaSuccess)
        error = ra_make_map(&f->v_map, kernel->v, kernel->batch, kernel->keys, kernel->key_heads,
                            kernel->dim_value, keys);
    return error;
}

/* Launches a kernel, a block of this many threads for every tile of queries. */
template <class Shape, class Memory>
static cudaError_t launch_hopper(void (*function)(struct hopper_forward), int threads,
                                 const struct ra_kernel *kernel, cudaStream_t stream)
{
    static_assert(sizeof(Memory) <= 227 << 10, "more shared memory than a block may have");
    struct hopper_forward f;
    cudaError_t error = prepare_hopper<Shape>(&f, kernel);
    return error != cudaSuccess ? error
                                : ra_launch(function, f.blocks, threads, sizeof(Memory), stream, f);
}

/* Calls launch(type, widths), both as types; where these kernels cannot run it, k03 does. Newer:
 * k06 and k07, which take extras, and have tiles whose values are narrower than their keys. */
template <bool Newer, class Launch>
static cudaError_t launch_or_k03(const struct ra_kernel *kernel, cudaStream_t stream,
                                 const Launch &launch)
{
    bool answer;
    cudaError_t error = supports(&answer, kernel);
    answer = answer && (Newer || !ra_has_extras(kernel));
    if (error != cudaSuccess || !answer)
        return error != cudaSuccess ? error : ra_k03_forward(kernel, stream);
    return launch_for_type(kernel, [&](auto type) {
        int64_t widest = ra_kernel_widest(kernel);
        if (widest <= 64)
            return launch(type, widths<64>());
        if (widest <= 128)
            return launch(type, widths<128>());
        if constexpr (Newer)
            if (widest <= 192 && kernel->dim_value <= 128)
                return launch(type, widths<192, 128>());
        return launch(type, widths<256>());
    });
}

#endif
