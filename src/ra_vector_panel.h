/* ra_vector_panel: what the products of a tile read, and which pairs are visible in it.
 *
 * Chapter 09. Internal: included once for each instruction set. New here: rows that are
 * packed, or transposed, and what is no number kept apart.
 */
#ifndef RA_VECTOR_PANEL_H
#define RA_VECTOR_PANEL_H

#include <stddef.h>
#include "ra_math.h"
#include "ra_tile.h"
#include "ra_vector.h"
#include "ra_vector_product.h"

/* QUERIES are a block of lanes, as many as one block of sums takes; KEYS are multiplied with them
 * at once; the backward does it with a GROUP of such blocks, so that dk and dv are added to less
 * often. */
enum {
    VECTORS = ACCUMULATORS == 24 ? 4 : 2,
    QUERIES = VECTORS * LANES,
    KEYS = RA_VECTOR_KEYS,
    GROUP = (LANES == 16 ? 3 : 128 / QUERIES) * QUERIES
};
_Static_assert((int)QUERIES <= RA_VECTOR_QUERIES && (int)GROUP <= RA_VECTOR_GROUP,
               "the workspace is for smaller blocks");

/* Numbers of as many whole vectors as hold this many. */
static int64_t padded(int64_t count)
{
    return ra_round_up(count, LANES);
}

/* Rows of D numbers (or D_v) side by side, ra_vector_row apart, with zeros up to a multiple of
 * LANES. What is infinite or NaN in them is 0, too, as 0 times it would not be: it is added apart,
 * pair by pair. */
struct panel {
    const float *rows;
    const float *all; /* the rows as they were, `stride` apart */
    int64_t stride;
    bool numbers; /* all of them are */
};

/* Asks for a row of the caller's before it is needed. The rows of a head lie far apart: the
 * processor does not guess which come next. */
static void ask_for(int64_t D, const float *row)
{
    for (int64_t c = 0; c < D; c += 16)
        __builtin_prefetch(row + c, 0, 2);
}

/* So many rows ahead. */
enum { AHEAD = 6 };

/* Stores a vector with 0 where it has no number. Returns where that is. */
INLINE lane_bits keep_numbers(lanes x, float *to)
{
    lane_bits number = x - x == 0;
    store(to, (lanes)((lane_bits)x & number));
    return ~number;
}

/* Do these rows need no copy: are they as far apart as a panel's, whole vectors, and all
 * numbers? */
static bool is_packed(int64_t count, int64_t D, const float *from, int64_t stride)
{
    lane_bits missing = {0};
    if (stride != ra_vector_row(D) || D % LANES != 0 || (uintptr_t)from % (4 * LANES) != 0)
        return false;
    for (int64_t b = 0; b < count; b++)
        for (int64_t c = 0; c < D; c += LANES) {
            lanes x = load(from + b * stride + c);
            missing |= ~(lane_bits)(x - x == 0);
        }
    return !any(missing);
}

/* Rows that the mask hides are 0. */
static struct panel pack(int64_t count, int64_t D, const float *from, int64_t stride,
                         const bool *mask, float *to)
{
    int64_t row = ra_vector_row(D);
    lane_bits missing = {0};
    if (!mask && is_packed(count, D, from, stride))
        return (struct panel){from, from, stride, true};
    for (int64_t b = 0; b < count; b++) {
        if (b + AHEAD < count)
            ask_for(D, from + (b + AHEAD) * stride);
        const float *in = from + b * stride;
        float *out = to + b * row;
        if (mask && !mask[b]) {
            memset(out, 0, (size_t)row * sizeof *out);
            continue;
        }
        int64_t c = 0;
        for (; c + LANES <= D; c += LANES)
            missing |= keep_numbers(load(in + c), out + c);
        if (c < D) {
            float rest[LANES] = {0};
            memcpy(rest, in + c, (size_t)(D - c) * sizeof *rest);
            missing |= keep_numbers(load(rest), out + c);
        }
    }
    return (struct panel){to, from, stride, !any(missing)};
}

/* LANES vectors on their side. A round shuffles the first half of them into the second, as cards;
 * after as many rounds as halve LANES to 1, number i of vector j is number j of vector i. */
INLINE void transpose_square(lanes x[LANES])
{
    UNROLLED
    for (int rest = LANES; rest > 1; rest /= 2) {
        lanes y[LANES];
        UNROLLED
        for (int i = 0; i < LANES; i++)
            y[i] = x[i];
        UNROLLED
        for (int i = 0; i < LANES / 2; i++) {
            x[2 * i] = lower(y[i], y[i + LANES / 2]);
            x[2 * i + 1] = upper(y[i], y[i + LANES / 2]);
        }
    }
}

/* to (D, QUERIES): a block of packed rows on its side, times `sign`; what is left of the last
 * vector is 0. */
static void transpose(int64_t count, int64_t D, const float *rows, float sign, float *to)
{
    int64_t row = ra_vector_row(D);
    for (int64_t a = 0; a < count; a += LANES)
        for (int64_t c = 0; c < D; c += LANES) {
            lanes square[LANES];
            UNROLLED
            for (int i = 0; i < LANES; i++)
                square[i] = a + i < count ? load(rows + (a + i) * row + c) * sign : all_lanes(0);
            transpose_square(square);
            UNROLLED
            for (int i = 0; i < LANES; i++)
                if (c + i < D)
                    store(to + (c + i) * QUERIES + a, square[i]);
        }
}

/* One number for each lane of a block, and `rest` where there is no row. */
static void fill(int64_t count, const float *from, float rest, float *to)
{
    for (int64_t a = 0; a < QUERIES; a++)
        to[a] = a < count ? from[a] : rest;
}

/* ---- Visibility. */

/* All that the blocks of a tile have in common. */
struct tile {
    int64_t D, row;     /* numbers of a row of q or k, and how far apart rows of a panel lie */
    int64_t D_v, v_row; /* of a row of v or d_out; likewise */
    int64_t query_rows, key_rows;
    struct ra_score score;
    float size, sign; /* those of scale: the sign is in the transposed queries; of 0: 1 and 0 */
    bool shaped;      /* has a soft cap or a slope */
    float factor;     /* of scores: size, or 1 of those that are shaped, which have it */
    struct ra_places queries_at, keys_at;
    const bool *mask;
    struct ra_band band;
    struct panel k, v;
};

/* May query row a see key b? */
static bool sees(const struct tile *tile, int64_t a, int64_t b)
{
    return b - a >= tile->band.lo && b - a <= tile->band.hi && !(tile->mask && !tile->mask[b]);
}

/* The keys, from `first` to before `last`, that the query rows from a on, `count` of them, may
 * see. */
static void keys_in_sight(const struct tile *tile, int64_t a, int64_t count, int64_t *first,
                          int64_t *last)
{
    *first = ra_max(0, a + tile->band.lo);
    *last = ra_min(tile->key_rows, a + count + tile->band.hi);
}

/* Do these rows see all of these keys? */
static bool sees_all(const struct tile *tile, int64_t a, int64_t count, int64_t b, int64_t keys)
{
    return !tile->mask && b - (a + count - 1) >= tile->band.lo && b + keys - 1 - a <= tile->band.hi;
}

/* Which of the LANES rows from a on see key b? */
INLINE lane_bits seen(const struct tile *tile, int64_t a, int64_t b)
{
    lane_bits lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = i;

    /* b - hi <= a + lane <= b - lo, in numbers that fit a lane. */
    int32_t first = (int32_t)ra_max(-1, ra_min(LANES, b - tile->band.hi - a));
    int32_t last = (int32_t)ra_max(-1, ra_min(LANES, b - tile->band.lo - a));
    if (tile->mask && !tile->mask[b])
        last = -1;
    return (lane >= first) & (lane <= last);
}

static struct tile tile_of(struct ra_dims dims, struct ra_score score,
                           const struct ra_queries *queries, const struct ra_keys *keys,
                           struct ra_band band, float *panels)
{
    int64_t room = keys->rows * ra_vector_row(dims.key);
    float size = score.scale == 0 ? 1 : fabsf(score.scale);
    return (struct tile){
        .D = dims.key,
        .row = ra_vector_row(dims.key),
        .D_v = dims.value,
        .v_row = ra_vector_row(dims.value),
        .query_rows = queries->rows,
        .key_rows = keys->rows,
        .score = score,
        .size = size,
        .sign = score.scale == 0 ? 0 : copysignf(1, score.scale),
        .shaped = score.softcap > 0 || score.slope != 0,
        .factor = score.softcap > 0 || score.slope != 0 ? 1 : size,
        .queries_at = queries->at,
        .keys_at = keys->at,
        .mask = keys->mask,
        .band = band,
        .k = pack(keys->rows, dims.key, keys->k, keys->stride.k, keys->mask, panels),
        .v = pack(keys->rows, dims.value, keys->v, keys->stride.v, keys->mask, panels + room)};
}

/* ---- What panels lack. */

/* Adds to the products of `keys` rows of the one panel, from row b on, and `count` of the other
 * what the panels lack: the terms of which a factor is no number. out (keys, out_row). */
static void add_missing(int64_t D, struct panel left, int64_t b, int64_t keys, struct panel right,
                        int64_t first, int64_t count, float sign, float *out, int64_t out_row)
{
    for (int64_t i = 0; i < keys && !(left.numbers && right.numbers); i++)
        for (int64_t j = 0; j < count; j++)
            for (int64_t c = 0; c < D; c++) {
                float factor = left.all[(b + i) * left.stride + c];
                float other = right.all[(first + j) * right.stride + c];
                if (!isfinite(factor) || !isfinite(other))
                    out[i * out_row + j] += sign * factor * other;
            }
}

/* Adds to out, a row of sums, weight times what is no number in a row that a panel lacks. */
static void add_row(int64_t D, struct panel panel, int64_t a, float weight, float *out)
{
    for (int64_t c = 0; c < D; c++)
        if (!isfinite(panel.all[a * panel.stride + c]))
            out[c] += weight * panel.all[a * panel.stride + c];
}

/* ---- Scores. */

/* A score from a product, without the slope. */
INLINE lanes capped(const struct tile *tile, lanes product)
{
    lanes score = product * tile->size, cap = all_lanes(tile->score.softcap);
    return tile->score.softcap > 0 ? cap * tanh_lanes(score / cap) : score;
}

/* Adds the slope to the scores of LANES rows from a on and of key b. Distances are integers, which
 * double holds: they are rounded once. */
INLINE lanes sloped(const struct tile *tile, lanes score, int64_t a, int64_t b)
{
    lane_doubles lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = i;
    int64_t first = tile->keys_at.first + b * tile->keys_at.step - tile->queries_at.first;
    lane_doubles distance =
        (double)(first - a * tile->queries_at.step) - lane * (double)tile->queries_at.step;
    if (tile->score.slope == 0)
        return score;
    return score + tile->score.slope * __builtin_convertvector(distance, lanes);
}

#endif
