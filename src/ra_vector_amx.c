/* ra_vector_amx: ra_vector for processors with AMX, which multiplies matrices of bfloat16.
 *
 * Chapter 09. New here: tiles, registers of 16 rows of 64 bytes. What is not bfloat16 is computed
 * as on AVX512.
 */
#if defined __x86_64__ || defined RA_AMX_STAND_IN
#ifdef RA_AMX_STAND_IN
#include "amx.h"
#else
#include <immintrin.h>
#endif
#include "ra_vector.h"

#define RA_AVX512
#ifdef RA_AMX_STAND_IN
#elif defined __clang__
#pragma clang attribute push(                                                            \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma,f16c," \
                          "amx-tile,amx-bf16"))),                                        \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")
#endif
#include "ra_vector_set.h"

/* ---- Numbers in tiles. */

/* A tile of 16 rows has 32 numbers in each, or 16 pairs of them; a product adds up 32 terms. */
enum { ROWS = 16, TERMS = 32, TILE = ROWS * TERMS, SUMS = ROWS * LANES };

/* As many keys are multiplied at once. */
enum { SPAN = RA_VECTOR_SPAN, SPAN_TILES = SPAN / ROWS, SPAN_BLOCKS = SPAN / TERMS };

typedef uint16_t halves __attribute__((vector_size(2 * TERMS)));

/* 32 numbers, rounded to bfloat16; the same by turns; numbers of two rows by turns, those of the
 * first or of the second half. */
#define narrow(x, y) ((halves)_mm512_cvtne2ps_pbh((__m512)(y), (__m512)(x)))
#define by_turns(x)                                                                              \
    __builtin_shufflevector(x, x, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, \
                            9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define first_pairs(x, y)                                                                        \
    __builtin_shufflevector(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, \
                            9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47)
#define last_pairs(x, y)                                                                          \
    __builtin_shufflevector(x, y, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, \
                            24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63)

INLINE void store_halves(uint16_t *to, halves x)
{
    memcpy(to, &x, sizeof x);
}

/* Blocks of 32 that hold this many rows or numbers. */
static int64_t blocks_of(int64_t count)
{
    return (count + TERMS - 1) / TERMS;
}

/* Rows of a panel, times `sign`. */
struct rows {
    int64_t count, D;
    const float *numbers;
    int64_t stride;
    float sign;
};

/* The 32 numbers from c on of row a, and 0 where there are none. */
INLINE halves numbers_at(const struct rows *rows, int64_t a, int64_t c)
{
    lanes none = all_lanes(0), first = none, second = none;
    if (a < rows->count) {
        first = load(rows->numbers + a * rows->stride + c) * rows->sign;
        if (c + LANES < rows->D)
            second = load(rows->numbers + a * rows->stride + c + LANES) * rows->sign;
    }
    return narrow(first, second);
}

enum form { PLAIN, PAIRED };

/* Packs a matrix as an operand, tile after tile. PLAIN, 16 rows of 32 numbers are a tile of a left
 * operand; PAIRED, 16 pairs of rows and 16 columns are one of a right operand. Transposed, 16 by 16
 * pairs on their side, the one is a tile of the other: of the transposed matrix. Tiles whose terms
 * are added up to the same sums lie one behind the other. */
static void pack_tiles(const struct rows *rows, enum form form, bool transposed, uint16_t *to)
{
    int64_t down = blocks_of(rows->count), across = blocks_of(rows->D);
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++)
            for (int half = 0; half < 2; half++) {
                lanes tile[ROWS];
                for (int r = 0; r < ROWS; r++) {
                    int64_t a = i * TERMS + (form == PLAIN ? half * ROWS + r : 2 * r);
                    halves row = numbers_at(rows, a, j * TERMS);
                    if (form == PAIRED) {
                        halves next = numbers_at(rows, a + 1, j * TERMS);
                        row = half ? last_pairs(row, next) : first_pairs(row, next);
                    }
                    tile[r] = (lanes)row;
                }
                if (transposed)
                    transpose_square(tile);
                int64_t at =
                    form == PLAIN ? (2 * i + half) * across + j : (2 * j + half) * down + i;
                for (int r = 0; r < ROWS; r++)
                    store_halves(to + at * TILE + r * TERMS, (halves)tile[r]);
            }
}

/* ---- Products. */

/* Where the tiles of an operand are, 1 KiB each. They are numbered by rows of a left operand, by
 * columns of a right one; `second` tiles lie from an even one to the next, `pair` to the next but
 * one, and `inner` to that with the next terms of the same sums. */
struct operand {
    const uint16_t *first;
    int64_t second, pair, inner;
};

/* An operand as pack_tiles leaves it: so many blocks of terms. */
static struct operand packed(const uint16_t *first, int64_t blocks)
{
    return (struct operand){first, blocks, 2 * blocks, 1};
}

/* out (rows, columns) = left (rows, inner) times right (inner, columns), all counted in tiles, or
 * that is added to what is there. Rows of a tile of sums are `row` floats apart, its tiles `down`
 * and, across, `second` and `pair`. */
struct tile_product {
    int64_t rows, columns, inner;
    struct operand left, right;
    float *out;
    int64_t row, down, second, pair;
    bool add;
};

/* Two rows and two columns of tiles, or what is left of them. Tiles 0 to 3 are sums, 4 and 5 of the
 * left operand, 6 and 7 of the right one: each that is loaded is multiplied twice. */
static void multiply_four(const struct tile_product *p, int64_t i, int64_t j)
{
    const uint16_t *left = p->left.first + i / 2 * p->left.pair * TILE;
    const uint16_t *right = p->right.first + j / 2 * p->right.pair * TILE;
    float *out = p->out + i * p->down + j / 2 * p->pair;
    bool two_rows = i + 1 < p->rows, two_columns = j + 1 < p->columns;
    int64_t row = 4 * p->row;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (p->add) {
        _tile_loadd(0, out, row);
        if (two_columns)
            _tile_loadd(1, out + p->second, row);
        if (two_rows)
            _tile_loadd(2, out + p->down, row);
        if (two_rows && two_columns)
            _tile_loadd(3, out + p->down + p->second, row);
    }

    /* 32 terms of each sum at a time. */
    for (int64_t k = 0; k < p->inner; k++) {
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_columns) {
            _tile_loadd(7, right + p->right.second * TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, left + p->left.second * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (two_columns)
                _tile_dpbf16ps(3, 5, 7);
        }
        left += p->left.inner * TILE;
        right += p->right.inner * TILE;
    }

    /* The sums. */
    _tile_stored(0, out, row);
    if (two_columns)
        _tile_stored(1, out + p->second, row);
    if (two_rows)
        _tile_stored(2, out + p->down, row);
    if (two_rows && two_columns)
        _tile_stored(3, out + p->down + p->second, row);
}

static void multiply_tiles(struct tile_product product)
{
    /* The compiler does not know that tiles are loaded from memory. */
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < product.rows; i += 2)
        for (int64_t j = 0; j < product.columns; j += 2)
            multiply_four(&product, i, j);
}

/* Eight tiles of 16 rows of 64 bytes, for this thread. */
static void open_tiles(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&tiles);
}

/* Tiles that hold so many rows, or columns of sums. */
static int64_t tiles_of(int64_t count)
{
    return (count + ROWS - 1) / ROWS;
}

/* ---- Memory, from the workspace. */

static float *take(float **workspace, int64_t floats)
{
    float *place = *workspace;
    *workspace += floats;
    return place;
}

/* For a matrix as an operand. */
static uint16_t *take_tiles(float **workspace, int64_t count, int64_t D)
{
    return (uint16_t *)take(workspace, blocks_of(count) * blocks_of(D) * TILE);
}

/* to (count, row) from tiles of its transpose: tile (c, a) is number c * across + a. */
static void transpose_back(int64_t count, int64_t D, const float *from, int64_t across, float *to,
                           int64_t row)
{
    for (int64_t a = 0; a < count; a += LANES)
        for (int64_t c = 0; c < D; c += LANES) {
            const float *tile = from + (c / ROWS * across + a / LANES) * SUMS;
            lanes square[LANES];
            UNROLLED
            for (int i = 0; i < LANES; i++)
                square[i] = load(tile + i * LANES);
            transpose_square(square);
            UNROLLED
            for (int i = 0; i < LANES; i++)
                if (a + i < count)
                    store(to + (a + i) * row + c, square[i]);
        }
}

/* ---- The forward. Products of keys and 16 queries are tiles side by side, row after row. */

/* exp(x) = 2^t, t = x / ln 2: a polynomial of what t is above a whole number, 1 at 0, and as an
 * exponent that number. It errs by 1e-7 (1 + |x|) of itself, far less than bfloat16; small results
 * are 0. */
INLINE lanes exp_narrow(lanes x)
{
    lanes t = x * all_lanes(0x1.715476p0f);
    lanes f = (lanes)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    lanes p = all_lanes(0x1.e975p-10f);
    p = multiply_add(p, f, all_lanes(0x1.277854p-7f));
    p = multiply_add(p, f, all_lanes(0x1.c91ce6p-5f));
    p = multiply_add(p, f, all_lanes(0x1.ebdb56p-3f));
    p = multiply_add(p, f, all_lanes(0x1.62e4bap-1f));
    p = multiply_add(p, f, all_lanes(1));
    lanes power = (lanes)_mm512_scalef_ps((__m512)p, (__m512)t);
    return (lanes)((lane_bits)power & ~(t < all_lanes(-126)));
}

/* The second half of weigh. Weights of two keys are stored as pairs, rounded, over the first of
 * their products: so products become tiles of a right operand. Stored elsewhere, they would hold up
 * loads from addresses whose last 12 bits are the same. Keys up to a whole tile are hidden. */
static void weigh_pairs(const struct tile *tile, int64_t count, lanes highest, float *products,
                        float *max, float *sum, float *rescale)
{
    lanes factor = all_lanes(tile->factor), none = all_lanes(-INFINITY);
    lanes old = load(max), next = larger(highest, old), reference = reference_of(next * factor);
    lanes worth = exp_narrow(old * factor - reference), more = all_lanes(0), others = more;
    uint16_t *to = (uint16_t *)products;
    for (int64_t i = count; i % TERMS != 0; i++)
        store(products + i * LANES, none);
    for (int64_t i = 0; i < blocks_of(count) * TERMS; i += 2) {
        lanes first = exp_narrow(load(products + i * LANES) * factor - reference);
        lanes second = exp_narrow(load(products + (i + 1) * LANES) * factor - reference);
        halves weights = narrow(first, second);
        store_halves(to + i / TERMS * 2 * TILE + i % TERMS / 2 * TERMS, by_turns(weights));
        more += first;
        others += second;
    }
    store(max, next);
    store(sum, multiply_add(load(sum), worth, more + others));
    store(rescale, worth);
}

/* The weight of key i and of query j in such tiles. */
static float weight_at(const uint16_t *weights, int64_t i, int64_t j)
{
    int64_t tile = j / LANES * SPAN_TILES + i / TERMS * 2;
    uint32_t bits = (uint32_t)weights[tile * TILE + i % TERMS / 2 * TERMS + j % LANES * 2 + i % 2]
                    << 16;
    float weight;
    memcpy(&weight, &bits, sizeof weight);
    return weight;
}

/* o = o times the factors of its columns, which are queries, plus more. */
static void add_columns(int64_t rows, int64_t columns, const float *factors, const float *more,
                        float *o)
{
    for (int64_t c = 0; c < rows; c++)
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = (c * (QUERIES / LANES) + j) * SUMS;
            lanes factor = load(factors + j * LANES);
            for (int64_t e = at; e < at + SUMS; e += LANES)
                store(o + e, multiply_add(load(o + e), factor, load(more + e)));
        }
}

/* forward_block with both products on tiles; here o has its queries as columns until the end, and
 * keys begin at a whole tile. */
static void forward_tiles(const struct tile *tile, const uint16_t *k, const uint16_t *v,
                          const struct ra_queries *queries, int64_t a, int64_t count,
                          float *workspace)
{
    int64_t D = tile->D, D_v = tile->D_v, first, last, stride = queries->stride.q;
    int64_t key_blocks = blocks_of(tile->key_rows), columns = tiles_of(count);
    float max[QUERIES], sum[QUERIES] = {0}, rescale[QUERIES];
    keys_in_sight(tile, a, count, &first, &last);
    if (first >= last)
        return;
    first -= first % TERMS;
    float *weights = take(&workspace, SPAN * QUERIES);
    float *o = take(&workspace, blocks_of(D_v) * TERMS * QUERIES + 512);
    float *more = take(&workspace, blocks_of(D_v) * TERMS * QUERIES);
    float *q_rows = take(&workspace, QUERIES * tile->row);
    float *o_rows = take(&workspace, QUERIES * tile->v_row);
    uint16_t *q_tiles = take_tiles(&workspace, QUERIES, D);
    struct panel q = pack(count, D, queries->q + a * stride, stride, NULL, q_rows);
    pack_tiles(&(struct rows){count, D, q.rows, tile->row, tile->sign}, PLAIN, true, q_tiles);
    fill(0, NULL, -INFINITY, max);
    for (int64_t b = first, keys; b < last; b += keys) {
        keys = ra_min(SPAN, last - b);
        bool whole = sees_all(tile, a, count, b, keys);
        multiply_tiles(
            (struct tile_product){.rows = tiles_of(keys),
                                  .columns = columns,
                                  .inner = blocks_of(D),
                                  .left = packed(k + b / ROWS * blocks_of(D) * TILE, blocks_of(D)),
                                  .right = packed(q_tiles, blocks_of(D)),
                                  .out = weights,
                                  .row = LANES,
                                  .down = SUMS,
                                  .second = SPAN_TILES * SUMS,
                                  .pair = 2 * SPAN_TILES * SUMS});
        for (int64_t j = 0; j < count; j += LANES) {
            float *products = weights + j * SPAN;
            add_missing(D, tile->k, b, keys, q, j, ra_min(LANES, count - j), tile->sign, products,
                        LANES);
            lanes highest = hide(tile, a + j, b, keys, whole, products, LANES);
            weigh_pairs(tile, keys, highest, products, max + j, sum + j, rescale + j);
        }
        multiply_tiles(
            (struct tile_product){.rows = tiles_of(D_v),
                                  .columns = columns,
                                  .inner = blocks_of(keys),
                                  .left = packed(v + b / TERMS * TILE, key_blocks),
                                  .right = {(uint16_t *)weights, SPAN_TILES, 2 * SPAN_TILES, 2},
                                  .out = b == first ? o : more,
                                  .row = LANES,
                                  .down = QUERIES / LANES * SUMS,
                                  .second = SUMS,
                                  .pair = 2 * SUMS});
        if (b > first)
            add_columns(tiles_of(D_v), columns, rescale, more, o);
        for (int64_t i = 0; i < keys && !tile->v.numbers; i++)
            for (int64_t j = 0; j < count; j++)
                for (int64_t c = 0; c < D_v && sees(tile, a + j, b + i); c++) {
                    float value = tile->v.all[(b + i) * tile->v.stride + c];
                    int64_t at = c / ROWS * (QUERIES / LANES) + j / LANES;
                    if (!isfinite(value))
                        o[at * SUMS + c % ROWS * LANES + j % LANES] +=
                            weight_at((uint16_t *)weights, i, j) * value;
                }
    }
    transpose_back(count, D_v, o, QUERIES / LANES, o_rows, tile->v_row);
    add_to_carry(tile, queries, a, count, max, sum, o_rows);
}

static void forward_narrow(struct ra_dims dims, struct ra_score score,
                           const struct ra_queries *queries, const struct ra_keys *keys,
                           struct ra_band band, float *workspace)
{
    struct tile tile = tile_of(dims, score, queries, keys, band, workspace);
    float *rest = workspace + keys->rows * (tile.row + tile.v_row);
    uint16_t *k = take_tiles(&rest, keys->rows, dims.key);
    uint16_t *v = take_tiles(&rest, keys->rows, dims.value);
    pack_tiles(&(struct rows){keys->rows, dims.key, tile.k.rows, tile.row, 1}, PLAIN, false, k);
    pack_tiles(&(struct rows){keys->rows, dims.value, tile.v.rows, tile.v_row, 1}, PAIRED, true, v);
    open_tiles();
    for (int64_t a = 0; a < queries->rows; a += QUERIES)
        forward_tiles(&tile, k, v, queries, a, ra_min(QUERIES, queries->rows - a), rest);
    _tile_release();
}

/* ---- The backward. */

/* 16 rows of 16 numbers on their side; 0 where there are no more than `rows` and `numbers`. */
static void load_transposed(int64_t rows, int64_t numbers, const float *from, int64_t stride,
                            lanes square[LANES])
{
    for (int i = 0; i < LANES; i++) {
        float row[LANES] = {0};
        if (i < rows && numbers >= LANES)
            square[i] = load(from + i * stride);
        else {
            if (i < rows)
                memcpy(row, from + i * stride, (size_t)numbers * sizeof *row);
            square[i] = load(row);
        }
    }
    transpose_square(square);
}

/* Clears dq, and computes delta as a product of tiles adds up d_out and v: where o is a row of v,
 * dp - delta is exactly 0. There 32 terms are two sums, of the even and of the odd ones. */
static void begin_narrow(struct ra_dims dims, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a += LANES) {
        int64_t rows = ra_min(LANES, queries->rows - a), o_row = queries->stride.o;
        const float *d_out = queries->d_out + a * queries->stride.d_out;
        const float *o = queries->o + a * o_row;
        lanes delta = all_lanes(0), x[LANES], y[LANES];
        for (int64_t c = 0; c < dims.value; c += TERMS) {
            lanes even = all_lanes(0), odd = even;
            for (int64_t b = c; b < ra_min(c + TERMS, dims.value); b += LANES) {
                load_transposed(rows, dims.value - b, d_out + b, queries->stride.d_out, x);
                load_transposed(rows, dims.value - b, o + b, o_row, y);
                for (int i = 0; i < LANES; i += 2) {
                    even = multiply_add(x[i], y[i], even);
                    odd = multiply_add(x[i + 1], y[i + 1], odd);
                }
            }
            delta += even + odd;
        }
        float out[LANES];
        store(out, delta);
        memcpy(queries->delta + a, out, (size_t)rows * sizeof *out);
    }
    clear_dq(dims, queries);
}

/* p and ds of a span of keys and a group: units of 32 keys and 32 queries, of four tiles each.
 * Tiles 0 and 2 of p and of ds are left operands, 16 keys each. Tile 1 of ds has pairs of keys of
 * the first 16 queries, a right operand; tile 1 of p has those of the other 16, of ds, too. So
 * nothing is stored where addresses end like those of products that are still to be loaded. */
enum { UNIT = 4, UNITS = SPAN_BLOCKS * (GROUP / TERMS) };

/* What a backward reads and writes. */
struct operands {
    /* Of all keys, left operands; of a group, right ones, whose terms are those of D or queries. */
    const uint16_t *k, *k_transposed, *v;
    uint16_t *q_transposed, *d_out_transposed, *q, *d_out;

    uint16_t *ds, *p;        /* side by side, UNITS each */
    float *products[2];      /* of 32 keys and QUERIES, in tiles: k and q, v and d_out */
    float *p_rows, *ds_rows; /* (SPAN, GROUP), of pairs that weigh_again weighs */
    float *dq;               /* (D, GROUP), in tiles */
};

/* Rounds p and ds of two keys, or of one, and of 32 queries of a group from j on, to rows of a unit
 * of each, from `row` on. If they are not weighed yet, they are products of pairs that see each
 * other, in tiles; else they are in rows. */
INLINE void put_keys(const bool weighed, const int keys, const struct tile *tile,
                     const struct group *group, int64_t j, int64_t row, const float *products,
                     const float *changes, uint16_t *p_to, uint16_t *ds_to)
{
    lanes factor = all_lanes(tile->factor);
    halves rows[2] = {{0}};
    UNROLLED
    for (int r = 0; r < keys; r++) {
        lanes p[2], ds[2];
        int64_t left = (row + r) / ROWS * 2 * TILE + (row + r) % ROWS * TERMS;
        UNROLLED
        for (int h = 0; h < 2; h++) {
            int64_t at = (row + r) * GROUP + h * LANES;
            if (!weighed)
                at = ((row + r) / ROWS * 2 + h) * SUMS + (row + r) % ROWS * LANES;
            p[h] = load(products + at);
            ds[h] = load(changes + at);
            if (!weighed) {
                p[h] = exp_narrow(p[h] * factor - load(group->lse + j + h * LANES));
                ds[h] = p[h] * (ds[h] - load(group->delta + j + h * LANES));
            }
        }
        halves weights = narrow(p[0], p[1]);
        rows[r] = narrow(ds[0], ds[1]);
        store_halves(p_to + left, weights);
        store_halves(ds_to + left, rows[r]);
    }
    store_halves(ds_to + TILE + row / 2 * TERMS, first_pairs(rows[0], rows[1]));
    store_halves(p_to + TILE + row / 2 * TERMS, last_pairs(rows[0], rows[1]));
}

/* The same of `count` keys, at most 32; what is left of the tiles is 0. */
INLINE void put_unit(const bool weighed, const struct tile *tile, const struct group *group,
                     int64_t j, int64_t count, const float *products, const float *changes,
                     uint16_t *p, uint16_t *ds)
{
    for (int64_t row = 0; row < TERMS; row += 2)
        if (row + 2 <= count) {
            put_keys(weighed, 2, tile, group, j, row, products, changes, p, ds);
        } else {
            int64_t left = row / ROWS * 2 * TILE + row % ROWS * TERMS;
            memset(p + left, 0, 2 * TERMS * sizeof *p);
            memset(ds + left, 0, 2 * TERMS * sizeof *ds);
            put_keys(weighed, row < count, tile, group, j, row, products, changes, p, ds);
        }
}

static void round_unit(const struct tile *tile, const struct group *group, int64_t j, int64_t count,
                       const float *products, const float *changes, uint16_t *p, uint16_t *ds)
{
    put_unit(true, tile, group, j, count, products, changes, p, ds);
}

static void weigh_unit(const struct tile *tile, const struct group *group, int64_t j, int64_t count,
                       const float *products, const float *changes, uint16_t *p, uint16_t *ds)
{
    put_unit(false, tile, group, j, count, products, changes, p, ds);
}

/* p and ds of QUERIES of a group from j on, and of `count` keys, at most 32, from row i of the span
 * from b on. */
static void weigh_tiles(const struct tile *tile, struct group *group, const struct operands *of,
                        int64_t j, int64_t b, int64_t i, int64_t count)
{
    int64_t rows = ra_min(QUERIES, group->count - j), width = blocks_of(rows) * TERMS;
    int64_t D = blocks_of(tile->D), D_v = blocks_of(tile->D_v), key = (b + i) / ROWS;
    bool numbers = tile->k.numbers && tile->v.numbers && group->q.numbers && group->d_out.numbers;
    bool plain = numbers && !tile->shaped && sees_all(tile, group->a + j, rows, b + i, count);
    struct tile_product product = {.rows = tiles_of(count),
                                   .columns = tiles_of(width),
                                   .inner = D,
                                   .left = packed(of->k + key * D * TILE, D),
                                   .right = packed(of->q_transposed + j / ROWS * D * TILE, D),
                                   .out = of->products[0],
                                   .row = LANES,
                                   .down = 2 * SUMS,
                                   .second = SUMS,
                                   .pair = UNIT * SUMS};
    if (!plain) {
        product.out = of->p_rows + i * GROUP + j;
        product.row = GROUP;
        product.down = ROWS * GROUP;
        product.second = LANES;
        product.pair = 2 * LANES;
    }
    multiply_tiles(product);
    product.inner = D_v;
    product.left = packed(of->v + key * D_v * TILE, D_v);
    product.right = packed(of->d_out_transposed + j / ROWS * D_v * TILE, D_v);
    product.out = plain ? of->products[1] : of->ds_rows + i * GROUP + j;
    multiply_tiles(product);
    if (!plain) {
        group->p = of->p_rows + i * GROUP;
        group->ds = of->ds_rows + i * GROUP;
        add_missing(tile->D, tile->k, b + i, count, group->q, j, rows, tile->sign, group->p + j,
                    GROUP);
        add_missing(tile->D_v, tile->v, b + i, count, group->d_out, j, rows, 1, group->ds + j,
                    GROUP);
        weigh_again(tile, group, j, j + width, b + i, count);
    }
    for (int64_t l = 0; l < width; l += TERMS) {
        int64_t unit = ((j + l) / TERMS * SPAN_BLOCKS + i / TERMS) * UNIT * TILE;
        if (plain)
            weigh_unit(tile, group, j + l, count, of->products[0] + l * TERMS,
                       of->products[1] + l * TERMS, of->p + unit, of->ds + unit);
        else
            round_unit(tile, group, j + l, count, group->p + j + l, group->ds + j + l, of->p + unit,
                       of->ds + unit);
    }
}

/* add_gradients with its products on tiles; b is the first key of a tile. */
static void add_gradients_tiles(const struct tile *tile, struct group *group,
                                const struct operands *of, int64_t b, int64_t count,
                                const struct gradients *sums)
{
    int64_t first, last, row = tile->row, v_row = tile->v_row;
    blocks_in_sight(tile, group, b, count, &first, &last);
    if (first >= last)
        return;
    for (int64_t i = 0; i < count; i += TERMS)
        for (int64_t j = first; j < last; j += QUERIES)
            weigh_tiles(tile, group, of, j, b, i, ra_min(TERMS, count - i));

    /* dv and dk; and dq, which has its queries as columns. */
    int64_t queries = blocks_of(group->count), at = first / TERMS * TILE;
    int64_t unit = first / TERMS * SPAN_BLOCKS * UNIT * TILE;
    struct tile_product product = {.rows = tiles_of(count),
                                   .columns = tiles_of(tile->D_v),
                                   .inner = blocks_of(last - first),
                                   .left = {of->p + unit, 2, UNIT, SPAN_BLOCKS * UNIT},
                                   .right = packed(of->d_out + at, queries),
                                   .out = sums->dv + b * v_row,
                                   .row = v_row,
                                   .down = ROWS * v_row,
                                   .second = LANES,
                                   .pair = 2 * LANES,
                                   .add = !sums->dk_is_new};
    multiply_tiles(product);
    product.columns = tiles_of(tile->D);
    product.left.first = of->ds + unit;
    product.right = packed(of->q + at, queries);
    product.out = sums->dk + b * row;
    product.row = row;
    product.down = ROWS * row;
    multiply_tiles(product);
    multiply_tiles((struct tile_product){
        .rows = tiles_of(tile->D),
        .columns = tiles_of(last - first),
        .inner = blocks_of(count),
        .left = packed(of->k_transposed + b / TERMS * TILE, blocks_of(tile->key_rows)),
        .right = {of->ds + unit + TILE, UNITS * UNIT, SPAN_BLOCKS * UNIT, UNIT},
        .out = of->dq + first / LANES * SUMS,
        .row = LANES,
        .down = GROUP / LANES * SUMS,
        .second = SUMS,
        .pair = 2 * SUMS,
        .add = !sums->dq_is_new});
    group->p = of->p_rows;
    add_missing_rows(tile, group, first, last, b, count, sums);
}

/* backward_group on tiles. */
static void backward_tiles(const struct tile *tile, const struct ra_queries *queries, int64_t a,
                           int64_t count, struct gradients *sums, struct operands of,
                           float *workspace)
{
    int64_t D = tile->D, D_v = tile->D_v, first, last;
    struct group group = {.a = a, .count = count};
    float *q_rows = take(&workspace, GROUP * tile->row);
    float *d_out_rows = take(&workspace, GROUP * tile->v_row);
    keys_in_sight(tile, a, count, &first, &last);
    if (first >= last)
        return;
    first -= first % TERMS;
    group.q = pack(count, D, queries->q + a * queries->stride.q, queries->stride.q, NULL, q_rows);
    group.d_out = pack(count, D_v, queries->d_out + a * queries->stride.d_out,
                       queries->stride.d_out, NULL, d_out_rows);
    struct rows q = {count, D, group.q.rows, tile->row, tile->sign};
    struct rows d_out = {count, D_v, group.d_out.rows, tile->v_row, 1};
    pack_tiles(&q, PLAIN, true, of.q_transposed);
    pack_tiles(&d_out, PLAIN, true, of.d_out_transposed);
    q.sign = 1;
    pack_tiles(&q, PAIRED, false, of.q);
    pack_tiles(&d_out, PAIRED, false, of.d_out);
    for (int64_t j = 0; j < count; j += QUERIES) {
        fill(ra_min(QUERIES, count - j), queries->lse + a + j, 0, group.lse + j);
        fill(ra_min(QUERIES, count - j), queries->delta + a + j, 0, group.delta + j);
    }
    sums->dq_is_new = sees_all(tile, a, count, 0, tile->key_rows);
    if (!sums->dq_is_new)
        memset(of.dq, 0, (size_t)(blocks_of(D) * TERMS * GROUP) * sizeof *of.dq);
    for (int64_t b = first, keys; b < last; b += keys) {
        keys = ra_min(SPAN, last - b);
        add_gradients_tiles(tile, &group, &of, b, keys, sums);
        sums->dq_is_new = false;
    }
    transpose_back(count, D, of.dq, GROUP / LANES, sums->dq, tile->row);
    add_rows(count, D, tile->score.scale, sums->dq, tile->row, queries->dq + a * queries->stride.dq,
             queries->comp + a * queries->stride.comp, queries->stride.dq, queries->stride.comp);
}

static void backward_narrow(struct ra_dims dims, struct ra_score score,
                            const struct ra_queries *queries, const struct ra_keys *keys,
                            struct ra_band band, float *workspace)
{
    int64_t n = queries->rows, m = keys->rows, D = dims.key, D_v = dims.value;
    struct tile tile = tile_of(dims, score, queries, keys, band, workspace);
    float *rest = workspace + m * (tile.row + tile.v_row);
    int64_t sums_rows = blocks_of(m) * TERMS;
    struct gradients sums = {.dk = take(&rest, sums_rows * tile.row),
                             .dv = take(&rest, sums_rows * tile.v_row),
                             .dq = take(&rest, GROUP * tile.row)};
    uint16_t *k = take_tiles(&rest, m, D), *k_transposed = take_tiles(&rest, m, D);
    uint16_t *v = take_tiles(&rest, m, D_v);
    uint16_t *ds = (uint16_t *)take(&rest, 2 * UNITS * UNIT * SUMS);
    float *products = take(&rest, 2 * TERMS * QUERIES);
    struct operands operands = {.k = k,
                                .k_transposed = k_transposed,
                                .v = v,
                                .q_transposed = take_tiles(&rest, GROUP, D),
                                .d_out_transposed = take_tiles(&rest, GROUP, D_v),
                                .q = take_tiles(&rest, GROUP, D),
                                .d_out = take_tiles(&rest, GROUP, D_v),
                                .ds = ds,
                                .p = ds + UNITS * UNIT * TILE,
                                .products = {products, products + TERMS * QUERIES},
                                .p_rows = take(&rest, SPAN * GROUP),
                                .ds_rows = take(&rest, SPAN * GROUP),
                                .dq = take(&rest, blocks_of(D) * TERMS * GROUP)};
    struct rows k_rows = {m, D, tile.k.rows, tile.row, 1};
    pack_tiles(&k_rows, PLAIN, false, k);
    pack_tiles(&k_rows, PAIRED, true, k_transposed);
    pack_tiles(&(struct rows){m, D_v, tile.v.rows, tile.v_row, 1}, PLAIN, false, v);
    sums.dk_is_new = n > 0 && sees_all(&tile, 0, ra_min(GROUP, n), 0, m);
    if (!sums.dk_is_new)
        memset(sums.dk, 0, (size_t)(sums_rows * (tile.row + tile.v_row)) * sizeof *sums.dk);
    open_tiles();
    for (int64_t a = 0; a < n; a += GROUP) {
        backward_tiles(&tile, queries, a, ra_min(GROUP, n - a), &sums, operands, rest);
        sums.dk_is_new = false;
    }
    _tile_release();
    add_rows(m, D, score.scale, sums.dk, tile.row, keys->dk, keys->dk_comp, keys->stride.dk,
             keys->stride.dk_comp);
    add_rows(m, D_v, 1, sums.dv, tile.v_row, keys->dv, keys->dv_comp, keys->stride.dv,
             keys->stride.dv_comp);
}

static const struct ra_vector tiles = {.name = "amx",
                                       .forward = forward_narrow,
                                       .begin_backward = begin_narrow,
                                       .backward = backward_narrow};

const struct ra_vector ra_vector_amx = {"amx",      forward,      begin_backward,
                                        backward,   exp_all,      load_all,
                                        normal_all, multiply_all, 16 * ((QUERIES + 15) / 16),
                                        &tiles};
#if defined __clang__ && !defined RA_AMX_STAND_IN
#pragma clang attribute pop
#endif
#endif
