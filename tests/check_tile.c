/* check_tile: the tile functions against the definition (tests/rig/truth.h), on random tiles.
 *
 * Outputs start as NaN, or as known numbers where a function adds to them, and rows lie further
 * apart than D, with NaN between them, so that a write or a read in the wrong place shows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ra_vector.h"
#include "suite.h"
#include "truth.h"

enum { ROWS = 24, DIM = 9, STRIDE = DIM + 3, SIZE = ROWS * STRIDE };

/* What is tested: the plain tile, or that of an instruction set. */
static struct {
    void (*forward)(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                    const struct ra_keys *keys, struct ra_band band, float *workspace);
    void (*backward)(struct ra_dims dims, struct ra_score score, const struct ra_queries *queries,
                     const struct ra_keys *keys, struct ra_band band, float *workspace);
    void (*begin_backward)(struct ra_dims dims, const struct ra_queries *queries);
    int64_t (*workspace)(int64_t query_rows, int64_t key_rows, struct ra_dims dims);
    enum ra_type type; /* of its inputs and weights */
} tested = {.forward = ra_tile_forward,
            .backward = ra_tile_backward,
            .begin_backward = ra_tile_begin_backward,
            .workspace = ra_tile_workspace};

/* One problem of N queries and M keys, and its results. */
struct tiles {
    int64_t N, M;
    struct ra_score score;
    float q[SIZE], k[SIZE], v[SIZE], d_out[SIZE];
    bool mask[ROWS];
    struct ra_band band;
    struct ra_places at[2]; /* by side */
    double slope;           /* that of score, for the truth */
    int64_t places[2][ROWS];
    float o[SIZE], max[ROWS], lse[ROWS], delta[ROWS], dq[SIZE], dk[SIZE], dv[SIZE];
    float comp[SIZE], dk_comp[SIZE], dv_comp[SIZE];
    double sum[ROWS];
};

/* Rows of D numbers with NaN between them. */
static void fill(float *rows, float size, uint64_t *state)
{
    for (int e = 0; e < SIZE; e++)
        rows[e] = e % STRIDE < DIM ? size * (float)random_number(state) : NAN;
}

static void make(struct tiles *t, int64_t N, int64_t M, float score_scale, uint64_t seed)
{
    uint64_t state = seed;
    memset(t, 0xFF, sizeof *t);
    t->N = N;
    t->M = M;
    t->score = (struct ra_score){.scale = 0.7f};
    fill(t->q, score_scale, &state);
    fill(t->k, 1, &state);
    fill(t->v, 2, &state);
    fill(t->d_out, 3, &state);
    for (int b = 0; b < ROWS; b++)
        t->mask[b] = true;
    t->band = RA_ALL_KEYS;
    t->at[0] = t->at[1] = (struct ra_places){0, 1};
}

/* The numbers of these rows of `width`, which lie `stride` apart, side by side. */
static double *dense(const float *rows, int64_t count, int64_t width, int64_t stride)
{
    double *numbers = truth_numbers(count * width);
    for (int64_t e = 0; e < count * width; e++)
        numbers[e] = rows[e / width * stride + e % width];
    return numbers;
}

/* What is asked. */
static struct truth truth_of_tiles(struct tiles *t)
{
    t->slope = t->score.slope;
    for (int side = 0; side < 2; side++)
        for (int64_t a = 0; a < ROWS; a++)
            t->places[side][a] = t->at[side].first + a * t->at[side].step;
    struct truth truth = {.B = 1,
                          .N = t->N,
                          .M = t->M,
                          .H = 1,
                          .G = 1,
                          .D = DIM,
                          .scale = t->score.scale,
                          .softcap = t->score.softcap,
                          .slopes = &t->slope,
                          .places = {t->places[0], t->places[1]},
                          .band = t->band,
                          .weights = tested.type};
    truth.x[Q] = dense(t->q, t->N, DIM, STRIDE);
    truth.x[K] = dense(t->k, t->M, DIM, STRIDE);
    truth.x[V] = dense(t->v, t->M, DIM, STRIDE);
    truth.x[D_OUT] = dense(t->d_out, t->N, DIM, STRIDE);
    truth.x[MASK] = truth_numbers(t->M);
    for (int64_t b = 0; b < t->M; b++)
        truth.x[MASK][b] = t->mask[b];
    return truth;
}

/* The whole problem as the tile functions take it. */
static struct ra_queries queries_of(struct tiles *t)
{
    return (struct ra_queries){.rows = t->N,
                               .stride = {STRIDE, STRIDE, STRIDE, STRIDE, STRIDE},
                               .q = t->q,
                               .o = t->o,
                               .max = t->max,
                               .sum = t->sum,
                               .comp = t->comp,
                               .lse = t->lse,
                               .d_out = t->d_out,
                               .delta = t->delta,
                               .dq = t->dq,
                               .at = t->at[0]};
}

static struct ra_keys keys_of(struct tiles *t)
{
    return (struct ra_keys){.rows = t->M,
                            .stride = {STRIDE, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE},
                            .k = t->k,
                            .v = t->v,
                            .mask = t->mask,
                            .dk = t->dk,
                            .dv = t->dv,
                            .dk_comp = t->dk_comp,
                            .dv_comp = t->dv_comp,
                            .at = t->at[1]};
}

static float *room(int64_t query_rows, int64_t key_rows, int64_t D)
{
    float *workspace =
        malloc(sizeof(float) * (size_t)tested.workspace(query_rows, key_rows, RA_DIMS(D)));
    ck_assert_ptr_nonnull(workspace);
    return workspace;
}

/* Cuts the rows into tiles of this many and runs the tile functions, forward and backward. Keys are
 * taken in ascending or in descending order. */
static void run_tiles(struct ra_score score, struct ra_queries queries, struct ra_keys keys,
                      struct ra_band band, int64_t query_rows, int64_t key_rows, bool descending)
{
    int64_t key_tiles = (keys.rows + key_rows - 1) / key_rows;
    size_t bytes = sizeof(float) * (size_t)tested.workspace(query_rows, key_rows, RA_DIMS(DIM));
    float *workspace = room(query_rows, key_rows, DIM);

    for (int backward = 0; backward < 2; backward++)
        for (int64_t i = 0; i < queries.rows; i += query_rows) {
            struct ra_queries rows = ra_queries_block(&queries, i, query_rows);
            (backward ? tested.begin_backward : ra_tile_begin)(RA_DIMS(DIM), &rows);
            for (int64_t n = 0; n < key_tiles; n++) {
                int64_t j = (descending ? key_tiles - 1 - n : n) * key_rows;
                struct ra_keys seen = ra_keys_block(&keys, j, key_rows);
                /* The band counts from the tile's own first rows. */
                struct ra_band part = {band.lo + i - j, band.hi + i - j};
                memset(workspace, 0xFF, bytes);
                (backward ? tested.backward : tested.forward)(RA_DIMS(DIM), score, &rows, &seen,
                                                              part, workspace);
            }
            if (!backward)
                ra_tile_finish(RA_DIMS(DIM), &rows);
        }
    free(workspace);
}

/* Rounds inputs to the type that is tested. */
static void round_inputs(struct tiles *t)
{
    float *inputs[] = {t->q, t->k, t->v, t->d_out};
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < SIZE && tested.type != RA_FLOAT32; e++)
            inputs[i][e] = (float)number_rounded(tested.type, (double)inputs[i][e]);
}

static void compute(struct tiles *t, int64_t query_rows, int64_t key_rows, bool descending)
{
    round_inputs(t);
    for (int e = 0; e < SIZE; e++)
        t->dk[e] = t->dv[e] = t->dk_comp[e] = t->dv_comp[e] = e % STRIDE < DIM ? 0 : NAN;
    run_tiles(t->score, queries_of(t), keys_of(t), t->band, query_rows, key_rows, descending);
}

static void judge(const struct truth *truth, enum truth_array array, const float *rows)
{
    int64_t count = truth_rows(truth, array), width = truth_width(truth, array);
    int64_t stride = width == DIM ? STRIDE : 1;
    char text[TRUTH_TEXT];
    double *got = dense(rows, count, width, stride);

    /* Unlike ck_assert, which writes to a file each time, this costs nothing when all is well. */
    if (!(truth_judge(truth, array, got, text) <= 1))
        ck_abort_msg("%s", text);
    for (int64_t e = 0; e < count * stride; e++)
        if (e % stride >= width && !isnan(rows[e]))
            ck_abort_msg("%s row %d: written past D", truth_names[array], (int)(e / stride));
    free(got);
}

static void judge_gradients(const struct truth *truth, const struct tiles *t)
{
    judge(truth, DQ, t->dq);
    judge(truth, DK, t->dk);
    judge(truth, DV, t->dv);
}

static void grade(struct tiles *t)
{
    struct truth truth = truth_of_tiles(t);
    truth_forward(&truth);
    truth_backward(&truth, NULL);
    judge(&truth, O, t->o);
    judge(&truth, LSE, t->lse);
    judge(&truth, DELTA, t->delta);
    judge_gradients(&truth, t);
    truth_clear(&truth);
}

/* How far the rounding of weights may move them, and what is a sum of them. */
static double weight_step(void)
{
    return tested.type == RA_BFLOAT16 ? 0x1p-8 : 0;
}

static const int64_t tile_rows[] = {1, 2, 3, 7, 8, 16, ROWS, 100};
enum { TILE_ROWS = sizeof tile_rows / sizeof tile_rows[0] };

TESTS(tiles_of_any_size, 0, TILE_ROWS)
{
    static const int64_t lengths[] = {1, 2, 7, 8, 17, ROWS};
    struct tiles t;
    for (int n = 0; n < 6; n++)
        for (int m = 0; m < 6; m++)
            for (int r = 0; r < TILE_ROWS; r++) {
                make(&t, lengths[n], lengths[m], 1, (uint64_t)(n * 6 + m));
                compute(&t, tile_rows[_i], tile_rows[r], r % 2);
                grade(&t);
            }
}

/* Large scores grow or shrink along the keys, so the running maximum moves often or never. */
TESTS(large_scores, 0, 4)
{
    struct tiles t;
    for (int descending = 0; descending < 2; descending++)
        for (int r = 0; r < TILE_ROWS; r++) {
            make(&t, 10, ROWS, 30, (uint64_t)_i);
            for (int64_t b = 0; b < t.M; b++)
                t.k[b * STRIDE] = 0.3f * (float)b;
            compute(&t, 4, tile_rows[r], descending);
            grade(&t);
        }
}

/* Every band whose edges can fall inside, at the ends of and outside the tiles. */
TESTS(bands, 0, TILE_ROWS)
{
    struct tiles t;
    for (int64_t lo = -9; lo <= 9; lo++)
        for (int64_t hi = lo - 2; hi <= 9; hi++) {
            make(&t, 7, 8, 1, 5);
            t.band = (struct ra_band){lo, hi};
            compute(&t, tile_rows[_i], tile_rows[(_i + 1) % TILE_ROWS], false);
            grade(&t);
        }
}

/* Bands with one open end. */
TESTS(half_open_bands, 0, 2)
{
    struct tiles t;
    for (int64_t edge = -20; edge <= 20; edge++) {
        make(&t, 12, 17, 1, 6);
        t.band = _i ? (struct ra_band){edge, RA_BAND_FAR} : (struct ra_band){-RA_BAND_FAR, edge};
        compute(&t, 5, 4, false);
        grade(&t);
    }
}

/* Every key mask of nine keys, alone and under a causal band. */
TESTS(masks, 0, 2)
{
    struct tiles t;
    for (int bits = 0; bits < 512; bits++) {
        make(&t, 5, 9, 1, 7);
        for (int b = 0; b < 9; b++)
            t.mask[b] = bits >> b & 1;
        if (_i)
            t.band = (struct ra_band){-RA_BAND_FAR, 2};
        compute(&t, 2, 4, false);
        grade(&t);
    }
}

/* A row that sees nothing: o = 0, lse = -inf, dq = 0, and no part in dk and dv. */
TEST(rows_that_see_nothing)
{
    struct tiles t;
    make(&t, 6, 6, 1, 8);
    t.band = (struct ra_band){-RA_BAND_FAR, -3};
    compute(&t, 4, 4, false);
    grade(&t);
    for (int64_t a = 0; a < 3; a++) {
        ck_assert(t.lse[a] == -INFINITY);
        for (int c = 0; c < DIM; c++)
            ck_assert(t.o[a * STRIDE + c] == 0 && t.dq[a * STRIDE + c] == 0);
    }
}

/* The carry that others take over: empty before the first key, and after keys that nobody sees. */
TEST(empty_carry)
{
    struct tiles t;
    float *workspace = room(6, 9, DIM);
    make(&t, 6, 9, 1, 11);
    struct ra_queries queries = queries_of(&t);
    struct ra_keys keys = keys_of(&t);
    ra_tile_begin(RA_DIMS(DIM), &queries);
    for (int folded = 0; folded < 2; folded++) {
        for (int a = 0; a < 6; a++) {
            ck_assert(t.max[a] == -INFINITY && t.sum[a] == 0);
            for (int c = 0; c < DIM; c++)
                ck_assert(t.o[a * STRIDE + c] == 0);
        }
        tested.forward(RA_DIMS(DIM), t.score, &queries, &keys, (struct ra_band){9, 9}, workspace);
    }
    free(workspace);
}

/* No mask at all is the mask that allows everything, to the bit. */
TEST(no_mask)
{
    struct tiles t, u;
    make(&t, 6, 9, 1, 9);
    make(&u, 6, 9, 1, 9);
    compute(&t, 3, 9, false);

    float *workspace = room(6, 9, DIM);
    struct ra_queries queries = queries_of(&u);
    struct ra_keys keys = keys_of(&u);
    keys.mask = NULL;
    ra_tile_begin(RA_DIMS(DIM), &queries);
    tested.forward(RA_DIMS(DIM), u.score, &queries, &keys, RA_ALL_KEYS, workspace);
    ra_tile_finish(RA_DIMS(DIM), &queries);
    ck_assert_mem_eq(t.o, u.o, 6 * STRIDE * sizeof(float));
    ck_assert_mem_eq(t.lse, u.lse, 6 * sizeof(float));
    free(workspace);
}

/* The backward adds to what is there. */
TEST(gradients_are_added)
{
    struct tiles t;
    float *workspace = room(6, 9, DIM);
    make(&t, 6, 9, 1, 10);
    compute(&t, 6, 9, false);
    struct truth truth = truth_of_tiles(&t);
    truth.before[DQ] = dense(t.dq, t.N, DIM, STRIDE);
    truth.before[DK] = dense(t.dk, t.M, DIM, STRIDE);
    truth.before[DV] = dense(t.dv, t.M, DIM, STRIDE);
    struct ra_queries queries = queries_of(&t);
    struct ra_keys keys = keys_of(&t);
    tested.backward(RA_DIMS(DIM), t.score, &queries, &keys, RA_ALL_KEYS, workspace);
    truth_forward(&truth);
    truth_backward(&truth, NULL);
    judge_gradients(&truth, &t);
    for (int array = DQ; array <= DV; array++)
        free(truth.before[array]);
    truth_clear(&truth);
    free(workspace);
}

/* ---- The soft cap. */

/* Grades tiles of these rows in one of four ways: under either of two bands, the lower one with
 * keys hidden besides, and in either order of the tiles. */
static void judge_way(struct tiles *t, int way, int rows)
{
    t->band = (struct ra_band){-RA_BAND_FAR, way / 2 ? -3 : 2};
    for (int b = 0; b < ROWS; b++)
        t->mask[b] = way / 2 == 0 || b % 3 != 1;
    compute(t, tile_rows[rows], tile_rows[TILE_ROWS - 1 - rows], way % 2);
    grade(t);
}

/* From a cap that bends nearly every score to one that bends hardly any; scales of both signs;
 * hidden keys, and rows that see nothing, without and with a mask. */
TESTS(soft_caps, 0, TILE_ROWS)
{
    static const float score_scales[] = {0.1f, 1, 10, 30};
    static const float softcaps[] = {0.01f, 0.5f, 3, 20, 500};
    struct tiles t;
    for (int n = 0; n < 4; n++)
        for (int m = 0; m < 5; m++)
            for (int way = 0; way < 4; way++) {
                make(&t, 11, 17, score_scales[n], (uint64_t)(n * 5 + m));
                t.score =
                    (struct ra_score){.scale = way % 2 ? -0.7f : 0.7f, .softcap = softcaps[m]};
                judge_way(&t, way, _i);
            }
}

/* Slopes of both signs, alone and above a soft cap; places that are neighbours or lie apart, close
 * to each other at 10^7, or far apart. */
TESTS(scores_with_slopes, 0, TILE_ROWS)
{
    static const float all[] = {-0.01f, 0.25f, 3};
    static const struct ra_places at[][2] = {{{0, 1}, {0, 1}},
                                             {{4, 3}, {1, 3}},
                                             {{10000019, 1}, {10000003, 1}},
                                             {{0, 7}, {-3, 2}},
                                             {{INT64_C(1) << 40, 5}, {(INT64_C(1) << 40) - 9, 5}}};
    struct tiles t;
    for (int s = 0; s < 3; s++)
        for (int p = 0; p < 5; p++)
            for (int way = 0; way < 4; way++) {
                make(&t, 11, 17, 2, (uint64_t)(s * 5 + p));
                t.score = (struct ra_score){
                    .scale = way % 2 ? -0.7f : 0.7f, .softcap = way / 2 ? 3 : 0, .slope = all[s]};
                t.at[0] = at[p][0], t.at[1] = at[p][1];
                judge_way(&t, way, _i);
            }
}

/* Scores that are nothing but a slope are exact, wherever the rows are: of one key lse is the
 * product of two float32, a number of theirs. Beyond 2^24 the distance is rounded first. */
TEST(exact_slopes)
{
    static const int64_t first[] = {0, 9999999, 16777217, INT64_C(1) << 33};
    static const int64_t distances[] = {0, 1, -1, 5, -9999999, 16777217, -33554435};
    struct tiles t;
    for (int f = 0; f < 4; f++)
        for (int d = 0; d < 7; d++)
            for (int row = 0; row < 20; row++) {
                make(&t, 20, 1, 0, 3);
                t.score.slope = 0.3f;
                t.at[0] = (struct ra_places){first[f] - row, 1};
                t.at[1] = (struct ra_places){first[f] + distances[d], 1};
                compute(&t, 20, 1, false);
                ck_assert(t.lse[row] == 0.3f * (float)distances[d]);
                for (int c = 0; c < DIM; c++)
                    ck_assert(t.dq[row * STRIDE + c] == 0 && t.o[row * STRIDE + c] == t.v[c]);
            }
}

/* A slope that float32 cannot hold as a score, or that is none, makes NaN of the rows that see the
 * key, also where it would make it -inf, and of no other. */
TESTS(slopes_beyond_float32, 0, 5)
{
    static const float all[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    struct tiles t;
    make(&t, 12, 12, 1, 8);
    t.score.slope = all[_i];
    t.at[0].first = 2;
    t.band = (struct ra_band){3, 4};
    compute(&t, 12, 12, false);
    for (int a = 0; a < 12; a++) {
        /* Keys are 1 or 2 further on: only one of them is beyond 3.4e38. */
        bool sees = a < 9;
        ck_assert(sees ? isnan(t.lse[a]) || (a == 8 && isfinite(all[_i])) : t.lse[a] == -INFINITY);
        ck_assert(sees || (t.o[a * STRIDE] == 0 && t.dq[a * STRIDE] == 0));
    }
}

/* The sum of o * d_out. */
static double loss(struct truth *truth)
{
    double sum = 0;
    truth_forward(truth);
    for (int64_t e = 0; e < truth->N * DIM; e++)
        sum += truth->x[O][e] * truth->x[D_OUT][e];
    return sum;
}

/* Holds gradients against the slope of the loss as one of the numbers of `array` moves. Taken from
 * both sides, a difference errs by the square of the step, 2^-20, times a third derivative, which
 * is up to 100 times the slope here. */
static void check_differences(struct truth *truth, enum truth_array array, const float *got)
{
    double *slopes = truth_numbers(truth_count(truth, array)), largest = 0;
    for (int64_t e = 0; e < truth_count(truth, array); e++) {
        double *number = &truth->x[array][e], kept = *number;
        *number = kept + 0x1p-10;
        slopes[e] = loss(truth);
        *number = kept - 0x1p-10;
        slopes[e] = (slopes[e] - loss(truth)) / 0x1p-9;
        *number = kept;
        largest = fmax(largest, fabs(slopes[e]));
    }
    for (int64_t e = 0; e < truth_count(truth, array); e++)
        if (!(fabs(slopes[e] - got[e / DIM * STRIDE + e % DIM]) <=
              (1e-4 + weight_step()) * largest))
            ck_abort_msg("number %d of gradient of %s", (int)e, truth_names[array]);
    free(slopes);
}

/* No derivation of the slope enters here: gradients are what the loss does when a number moves. */
TESTS(soft_cap_against_differences, 0, 4)
{
    static const float softcaps[] = {0.5f, 1, 3, 20};
    struct tiles t;
    make(&t, 4, 6, 2, 12);
    t.score.softcap = softcaps[_i];
    compute(&t, 3, 4, false);
    struct truth truth = truth_of_tiles(&t);
    check_differences(&truth, Q, t.dq);
    check_differences(&truth, K, t.dk);
    truth_clear(&truth);
}

/* Scores far beyond the cap, even infinite ones, are the cap, and nothing moves them: no gradient,
 * and no NaN. */
TESTS(saturated_scores, 0, 3)
{
    static const float sizes[] = {1e3f, 1e30f, 3e38f};
    struct tiles t;
    make(&t, 5, 9, 0, 14);
    for (int a = 0; a < 5; a++)
        t.q[a * STRIDE] = a % 2 ? sizes[_i] : -sizes[_i];
    for (int b = 0; b < 9; b++)
        t.k[b * STRIDE] = b % 3 ? 2 : -2;
    t.score.softcap = 1.7f;
    t.band = (struct ra_band){-RA_BAND_FAR, -1};
    compute(&t, 2, 4, false);

    grade(&t);
    for (int c = 0; c < DIM; c++) {
        for (int a = 0; a < 5; a++)
            ck_assert(t.dq[a * STRIDE + c] == 0);
        for (int b = 0; b < 9; b++)
            ck_assert(t.dk[b * STRIDE + c] == 0);
    }
}

/* One key and whole numbers: without a cap nothing is rounded. A huge cap is not the same as none,
 * but near. */
TESTS(no_soft_cap, 0, 2)
{
    struct tiles t;
    float *workspace = room(1, 1, DIM);
    for (int n = 0; n < 20; n++) {
        make(&t, 1, 1, 1, 15);
        float product = 0;
        for (int c = 0; c < DIM; c++) {
            t.q[c] = (float)(c - n);
            t.k[c] = (float)(c % 3 + n);
            t.v[c] = t.d_out[c] = c == 0 ? 2 : 0;
            product += t.q[c] * t.k[c];
        }
        t.score = (struct ra_score){.scale = -0.5f, .softcap = _i ? 1e30f : 0};
        compute(&t, 1, 1, false);
        /* The cap costs a few roundings. */
        ck_assert_float_le(fabsf(t.lse[0] + 0.5f * product), _i ? 4e-7f * fabsf(product) : 0);

        /* dp is 4; had delta been 3, ds were the scale. */
        struct ra_queries queries = queries_of(&t);
        struct ra_keys keys = keys_of(&t);
        t.delta[0] = 3;
        tested.backward(RA_DIMS(DIM), t.score, &queries, &keys, RA_ALL_KEYS, workspace);
        for (int c = 0; c < DIM; c++) {
            ck_assert(t.dq[c] == -0.5f * t.k[c]);
            ck_assert(t.dk[c] == -0.5f * t.q[c]);
        }
    }
    free(workspace);
}

/* ---- One rounded score. */

/* Adds up the squares of the errors of a plain program in float32, and of these rows. */
static void add_squares(const struct truth *truth, enum truth_array array, const float *rows,
                        double squares[2])
{
    double *got = dense(rows, truth_rows(truth, array), DIM, STRIDE);
    for (int64_t e = 0; e < truth_count(truth, array); e++) {
        squares[0] += pow(truth->plain[array][e] - truth->x[array][e], 2);
        squares[1] += pow(got[e] - truth->x[array][e], 2);
    }
    free(got);
}

/* What all keys have in common moves all scores of a row alike, and nothing else. A score is then
 * rounded coarsely. If forward and backward round it differently, ds does not sum to 0, and dq gets
 * that sum times what the keys have in common. Errors are at most twice as large, root mean square,
 * as those of a plain program. (truth_judge also allows four roundings of each score, so it would
 * see nothing.) */
TESTS(common_component, 0, 8)
{
    static const struct {
        double shift;
        float offset;
    } cases[] = {{0, 0},      {-10, 0},    {-100, 0}, {-1000, 0},
                 {-10000, 0}, {-60000, 0}, {0, 100},  {0, 1000}};
    for (int way = 0; way < 4; way++) {
        double squares[DV + 1][2] = {{0}};
        for (uint64_t seed = 0; seed < 12; seed++) {
            struct tiles t;
            make(&t, ROWS, ROWS, 1, 30 + seed);
            float common = (float)sqrt(-cases[_i].shift / (double)t.score.scale);
            for (int e = 0; e < SIZE; e++) {
                t.k[e] += cases[_i].offset;
                if (common > 0 && e % STRIDE == 0) {
                    t.q[e] = common;
                    t.k[e] = -common;
                }
            }
            t.score.softcap = way / 2 ? 3 - 2 * (float)cases[_i].shift + 10 * cases[_i].offset : 0;
            compute(&t, 16, way % 2 ? 7 : ROWS, seed % 2);
            struct truth truth = truth_of_tiles(&t);
            truth_forward(&truth);
            truth_backward(&truth, NULL);
            add_squares(&truth, DQ, t.dq, squares[DQ]);
            add_squares(&truth, DK, t.dk, squares[DK]);
            add_squares(&truth, DV, t.dv, squares[DV]);
            truth_clear(&truth);
        }
        for (int array = DQ; array <= DV; array++)
            if (!(squares[array][1] <= 4 * squares[array][0]))
                ck_abort_msg("shift %g, keys + %g, %s, %s tile: %s errs by %.2g times what a plain "
                             "program does",
                             cases[_i].shift, (double)cases[_i].offset,
                             way / 2 ? "soft cap" : "no cap", way % 2 ? "more than one" : "one",
                             truth_names[array], sqrt(squares[array][1] / squares[array][0]));
    }
}

/* A query that sees one key, of one or of many, weighs it with 1: o is its value, and no number of
 * q or of the key moves it. dq and dk are exactly 0. */
TESTS(one_key, 0, 2)
{
    struct tiles t;
    for (int way = 0; way < 6; way++)
        for (int r = 0; r < TILE_ROWS; r++) {
            make(&t, way == 0 ? 7 : ROWS, way == 0 ? 1 : ROWS, 5, (uint64_t)(50 + way));
            t.score.softcap = _i ? 3 : 0;
            bool diagonal = way == 1 || way == 4, masked = way == 2 || way == 5;
            for (int b = 0; b < ROWS; b++) {
                t.mask[b] = !masked || b == 13;
                t.k[b * STRIDE] += way >= 4 ? 1000 : 0;
            }
            if (diagonal)
                t.band = (struct ra_band){2, 2};
            if (way == 3)
                t.band = (struct ra_band){-RA_BAND_FAR, 0};
            compute(&t, tile_rows[r], tile_rows[(r + way) % TILE_ROWS], r % 2);
            grade(&t);

            /* Causal, only the first query sees a single key, and that key is seen by others. */
            for (int64_t a = 0; a < (way == 3 ? 1 : t.N); a++)
                for (int c = 0; c < DIM; c++)
                    ck_assert_msg(t.dq[a * STRIDE + c] == 0, "way %d: dq of row %d is %g", way,
                                  (int)a, (double)t.dq[a * STRIDE + c]);
            for (int64_t b = 0; b < (way == 3 ? 0 : t.M); b++)
                for (int c = 0; c < DIM; c++)
                    ck_assert_msg(t.dk[b * STRIDE + c] == 0, "way %d: dk of row %d is %g", way,
                                  (int)b, (double)t.dk[b * STRIDE + c]);
        }
}

/* ---- Long rows. */

/* Numbers of an array of the truth, or with NULL zeros, as float32. */
static float *floats(const double *from, int64_t count)
{
    float *numbers = calloc((size_t)count, sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    for (int64_t e = 0; e < count && from; e++)
        numbers[e] = (float)from[e];
    return numbers;
}

/* More rows of both sides, and longer ones, than any instruction set multiplies at once: one tile,
 * without a band, with one that begins and ends between blocks, and with one key for each query:
 * then dq is exactly 0. */
TESTS(long_rows, 0, 9)
{
    enum { N = 210, M = 300 };
    static const struct ra_dims all[] = {{72, 40}, {33, 129}, {64, 64}};
    static const struct ra_band bands[] = {{-RA_BAND_FAR, RA_BAND_FAR}, {-70, 33}, {7, 7}};
    struct ra_dims dims = all[_i % 3];
    struct ra_score score = {.scale = 0.3f};
    uint64_t state = (uint64_t)_i;
    struct truth truth = {.B = 1,
                          .N = N,
                          .M = M,
                          .H = 1,
                          .G = 1,
                          .D = dims.key,
                          .D_v = dims.value,
                          .scale = (double)score.scale,
                          .band = bands[_i / 3],
                          .type = {tested.type, tested.type, tested.type, [D_OUT] = tested.type},
                          .weights = tested.type};
    truth_make_inputs(&truth, random_number, 2, &state);
    truth_forward(&truth);
    truth_backward(&truth, NULL);
    float *x[ARRAYS], *comp[3], *max = floats(NULL, N), *delta = floats(NULL, N);
    double *sum = truth_numbers(N);
    for (int a = 0; a < ARRAYS; a++)
        x[a] = a == MASK ? NULL
                         : floats(truth_is_output(a) ? NULL : truth.x[a], truth_count(&truth, a));
    for (int a = 0; a < 3; a++)
        comp[a] = floats(NULL, M * ra_dims_most(dims));
    struct ra_queries queries = {
        .rows = N,
        .stride = {dims.key, dims.value, dims.value, dims.key, ra_dims_most(dims)},
        .q = x[Q],
        .o = x[O],
        .max = max,
        .sum = sum,
        .comp = comp[0],
        .lse = x[LSE],
        .d_out = x[D_OUT],
        .delta = delta,
        .dq = x[DQ]};
    struct ra_keys keys = {
        .rows = M,
        .stride = {dims.key, dims.value, dims.key, dims.value, dims.key, dims.value},
        .k = x[K],
        .v = x[V],
        .dk = x[DK],
        .dv = x[DV],
        .dk_comp = comp[1],
        .dv_comp = comp[2]};
    float *workspace = floats(NULL, tested.workspace(N, M, dims));
    ra_tile_begin(dims, &queries);
    tested.forward(dims, score, &queries, &keys, truth.band, workspace);
    ra_tile_finish(dims, &queries);
    tested.begin_backward(dims, &queries);
    tested.backward(dims, score, &queries, &keys, truth.band, workspace);
    for (enum truth_array a = O; a < ARRAYS; a++) {
        char text[TRUTH_TEXT];
        double *got = dense(x[a], 1, truth_count(&truth, a), 0);
        ck_assert_msg(!truth_is_output(a) || truth_judge(&truth, a, got, text) <= 1, "%s", text);
        for (int64_t e = 0; a == DQ && _i / 3 == 2 && e < truth_count(&truth, a); e++)
            ck_assert_msg(got[e] == 0, "number %d of dq is %g", (int)e, got[e]);
        free(got);
    }
    for (int a = 0; a < ARRAYS; a++)
        free(x[a]);
    for (int a = 0; a < 3; a++)
        free(comp[a]);
    free(max);
    free(delta);
    free(sum);
    free(workspace);
    truth_clear(&truth);
}

/* ---- Numbers that are none. */

static bool sees(const struct tiles *t, int64_t a, int64_t b)
{
    return t->mask[b] && b - a >= t->band.lo && b - a <= t->band.hi;
}

/* Puts this value into number c of a row of an input. What depends on it by a pair of rows that see
 * each other must not be finite; the rest must keep its bits. */
static void judge_value(const struct tiles *clean, enum truth_array array, int64_t row, int c,
                        float value, int64_t tile)
{
    struct tiles t = *clean;
    (array == Q ? t.q : array == K ? t.k : array == V ? t.v : t.d_out)[row * STRIDE + c] = value;
    compute(&t, tile, tile, false);

    /* Queries with a score or a weight that is none, and keys that such a query sees. */
    bool hit[ROWS] = {false}, seen[ROWS] = {false};
    for (int64_t a = 0; a < t.N; a++)
        for (int64_t b = 0; b < t.M; b++)
            hit[a] = hit[a] || ((truth_is_of_keys(array) ? b : a) == row && sees(&t, a, b));
    for (int64_t a = 0; a < t.N; a++)
        for (int64_t b = 0; b < t.M; b++)
            seen[b] = seen[b] || (hit[a] && sees(&t, a, b));

    /* v and d_out enter o and dv column by column, o does not depend on d_out, nor dv on v. */
    bool scores = array == Q || array == K;
    const struct {
        const float *got, *want;
        const bool *rows;
        int64_t count, width;
        bool depends, whole;
    } outputs[] = {{t.o, clean->o, hit, t.N, DIM, array != D_OUT, scores},
                   {t.lse, clean->lse, hit, t.N, 1, scores, true},
                   {t.dq, clean->dq, hit, t.N, DIM, true, true},
                   {t.dk, clean->dk, seen, t.M, DIM, true, true},
                   {t.dv, clean->dv, seen, t.M, DIM, array != V, scores}};
    for (int o = 0; o < 5; o++)
        for (int64_t e = 0; e < outputs[o].count * outputs[o].width; e++) {
            int64_t of = e / outputs[o].width, column = e % outputs[o].width;
            int64_t at = outputs[o].width == 1 ? e : of * STRIDE + column;
            bool touched =
                outputs[o].depends && outputs[o].rows[of] && (outputs[o].whole || column == c);
            if (touched ? isfinite(outputs[o].got[at])
                        : memcmp(&outputs[o].got[at], &outputs[o].want[at], sizeof(float)) != 0)
                ck_abort_msg("%s row %d = %g, output %d, row %d, column %d: %g, before %g",
                             truth_names[array], (int)row, value, o, (int)of, (int)column,
                             outputs[o].got[at], outputs[o].want[at]);
        }
}

/* Every value that is no number, in every row of every input; keys are hidden by a band and by a
 * mask, and one query sees nothing. */
TESTS(no_numbers, 0, TILE_ROWS)
{
    static const enum truth_array inputs[] = {Q, K, V, D_OUT};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    struct tiles clean;
    make(&clean, 9, 11, 1, 19);
    clean.mask[0] = clean.mask[5] = false;
    clean.band = (struct ra_band){-4, _i ? 0 : 2};
    compute(&clean, tile_rows[_i], tile_rows[_i], false);
    for (int i = 0; i < 4; i++)
        for (int64_t row = 0; row < (truth_is_of_keys(inputs[i]) ? clean.M : clean.N); row++)
            for (int n = 0; n < 3; n++)
                judge_value(&clean, inputs[i], row, 3, values[n], tile_rows[_i]);
}

/* Scores beyond the range of float32, whichever key they are of and whatever the others are: o and
 * lse are NaN, and not those of the other keys, or of none. */
TESTS(overflowing_scores, 0, 2)
{
    struct tiles t;
    for (int tile = 1; tile <= 4; tile++)
        for (int way = 0; way < 16; way++) {
            /* The product overflows, or only the scale makes it too large. */
            float large = way < 8 ? 1e20f : 1e15f;
            make(&t, 1, 4, 1, 20);
            t.score.scale = way < 8 ? t.score.scale : 1e10f;
            t.q[0] = 1e20f;
            for (int b = 0; b < 4; b++)
                t.k[b * STRIDE] = way % 8 >= 4 || b == way % 8 ? (_i ? large : -large) : 1e-20f;
            compute(&t, 1, tile, way % 2);
            ck_assert(isnan(t.lse[0]) && isnan(t.o[0]) && isnan(t.dq[0]) && isnan(t.dk[0]));
        }
}

/* ---- Many rows. By itself, as it takes longer than all the others. */

CASE(many, 300);

/* One query folds a tile of equal keys so often that it has seen `count` of them; the first tile
 * has a key with a larger score, so that the others' weights are no powers of two. Backward, one
 * key is seen by as many queries. All must be right to 1e-5, as if nothing were added up. */
TESTS(many_rows, 0, 7)
{
    static const double counts[] = {1e5, 1e6, 4e6, 2e7};
    enum { MOST = 4096, D = 2 };
    static float ones[MOST * D], v[MOST * D], d_out[MOST * D], first[D], sums[D], comp_sums[D];
    static float lse[MOST], delta[MOST];
    const int64_t rows = _i % 2 ? MOST : 64, times = (int64_t)(counts[_i / 2] / (double)rows);
    const double count = (double)(times * rows);
    float *workspace = room(MOST, MOST, D);
    for (int e = 0; e < MOST * D; e++) {
        ones[e] = 1;
        v[e] = (float)number_rounded(tested.type, e % D ? -0.7 : 0.1);
        d_out[e] = (float)number_rounded(tested.type, e % D ? 0.3 : 0.1);
    }
    first[0] = first[1] = (float)number_rounded(tested.type, 1.1);

    /* Scores are 1, and 1.1 once. Weights that are rounded all err alike. */
    double error = 1e-5 + weight_step();
    struct ra_score score = {.scale = 0.5f};
    float o[D], comp[D], max[1], dq[D], dk[D] = {0}, dv[D] = {0}, dk_comp[D] = {0},
                                        dv_comp[D] = {0};
    double sum[1];
    struct ra_queries query = {.rows = 1,
                               .stride = {D, D, D, D, D},
                               .q = ones,
                               .o = o,
                               .max = max,
                               .sum = sum,
                               .comp = comp,
                               .lse = lse,
                               .d_out = d_out,
                               .delta = delta,
                               .dq = dq};
    struct ra_keys keys = {.rows = rows,
                           .stride = {.k = D, .v = D},
                           .k = ones,
                           .v = v,
                           .dk = sums,
                           .dv = sums,
                           .dk_comp = comp_sums,
                           .dv_comp = comp_sums};
    struct ra_keys larger = keys;
    larger.k = first;
    larger.rows = 1;
    ra_tile_begin(RA_DIMS(D), &query);
    tested.forward(RA_DIMS(D), score, &query, &larger, RA_ALL_KEYS, workspace);
    for (int64_t n = 0; n < times; n++)
        tested.forward(RA_DIMS(D), score, &query, &keys, RA_ALL_KEYS, workspace);
    ra_tile_finish(RA_DIMS(D), &query);
    double want = log(exp((double)first[0]) + count * exp(1));
    ck_assert_double_le(fabs(lse[0] - want), 1e-5 * want);
    for (int c = 0; c < D; c++)
        ck_assert_double_le(fabs(o[c] - (double)v[c]), error * fabs(v[c]));

    /* p = exp(1 - lse), and delta makes ds = scale p. */
    double p = exp(1 - (double)lse[0]);
    float dp = d_out[0] * v[0] + d_out[1] * v[1];
    tested.begin_backward(RA_DIMS(D), &query);
    delta[0] = dp - 1;
    for (int64_t n = 0; n < times; n++)
        tested.backward(RA_DIMS(D), score, &query, &keys, RA_ALL_KEYS, workspace);
    for (int c = 0; c < D; c++)
        ck_assert_double_le(fabs(dq[c] - 0.5 * p * count), 0.5 * error * p * count);

    struct ra_queries queries = query;
    struct ra_keys key = keys;
    queries.rows = rows;
    queries.stride.dq = queries.stride.comp = 0;
    queries.dq = sums;
    queries.comp = comp_sums;
    key.rows = 1;
    key.dk = dk, key.dv = dv, key.dk_comp = dk_comp, key.dv_comp = dv_comp;
    for (int64_t a = 0; a < rows; a++) {
        lse[a] = lse[0];
        delta[a] = delta[0];
    }
    for (int64_t n = 0; n < times; n++)
        tested.backward(RA_DIMS(D), score, &queries, &key, RA_ALL_KEYS, workspace);
    for (int c = 0; c < D; c++) {
        ck_assert_double_le(fabs(dk[c] - 0.5 * p * count), 0.5 * error * p * count);
        ck_assert_double_le(fabs(dv[c] - p * count * d_out[c]), error * p * count * d_out[c]);
    }
    free(workspace);
}

/* ---- Where numbers lie. */

/* Places for the arrays (rows, D): in which room, how many numbers from its beginning, and how far
 * apart the rows are. q, k and v as a projection leaves them, all three in one row, and their
 * gradients in another; then each array with a stride of its own. */
enum { ROOM = ROWS * 29 };
static const struct {
    int room, offset, stride;
} places[2][ARRAYS] = {
    {[Q] = {0, 0, 29},
     [K] = {0, DIM, 29},
     [V] = {0, 2 * DIM, 29},
     [D_OUT] = {1, 0, DIM},
     [O] = {2, 0, 10},
     [DQ] = {3, 2 * DIM, 28},
     [DK] = {3, 0, 28},
     [DV] = {3, DIM, 28}},
    {[Q] = {0, 0, 16},
     [K] = {1, 0, 9},
     [V] = {2, 0, 11},
     [D_OUT] = {3, 0, 10},
     [O] = {4, 0, 13},
     [DQ] = {5, 0, 12},
     [DK] = {6, 0, 15},
     [DV] = {7, 0, 14}},
};

/* Copies rows that are STRIDE apart to their place. */
static float *place(float rooms[ARRAYS][ROOM], int way, int array, int64_t count, const float *rows)
{
    float *first = rooms[places[way][array].room] + places[way][array].offset;
    for (int64_t a = 0; a < count; a++)
        memcpy(first + a * places[way][array].stride, rows + a * STRIDE, DIM * sizeof(float));
    return first;
}

CASE(tile, 60);

/* The same bits as with one stride for all, and not a number between the rows is touched: whole
 * rooms are compared. */
TESTS(strides, 0, 2)
{
    static float want[ARRAYS][ROOM], got[ARRAYS][ROOM], comp[2][SIZE];
    static const float zeros[SIZE];
    struct tiles t;
    make(&t, 10, 13, 1, 16);
    t.score.softcap = 3;
    t.band = (struct ra_band){-6, 5};
    compute(&t, 4, 5, false);
    memset(want, 0xFF, sizeof want);
    memset(got, 0xFF, sizeof got);
    memset(comp, 0, sizeof comp);

    struct ra_queries queries = queries_of(&t);
    struct ra_keys keys = keys_of(&t);
    queries.q = place(got, _i, Q, t.N, t.q);
    queries.d_out = place(got, _i, D_OUT, t.N, t.d_out);
    queries.o = got[places[_i][O].room] + places[_i][O].offset;
    queries.dq = place(got, _i, DQ, t.N, zeros);
    keys.k = place(got, _i, K, t.M, t.k);
    keys.v = place(got, _i, V, t.M, t.v);
    keys.dk = place(got, _i, DK, t.M, zeros);
    keys.dv = place(got, _i, DV, t.M, zeros);
    queries.stride.q = places[_i][Q].stride;
    queries.stride.o = places[_i][O].stride;
    queries.stride.d_out = places[_i][D_OUT].stride;
    queries.stride.dq = places[_i][DQ].stride;
    keys.stride.k = places[_i][K].stride;
    keys.stride.v = places[_i][V].stride;
    keys.stride.dk = places[_i][DK].stride;
    keys.stride.dv = places[_i][DV].stride;
    keys.dk_comp = comp[0], keys.dv_comp = comp[1];
    keys.stride.dk_comp = keys.stride.dv_comp = DIM;
    run_tiles(t.score, queries, keys, t.band, 4, 5, false);

    const float *arrays[ARRAYS] = {t.q, t.k, t.v, NULL, t.o, NULL, t.d_out, t.dq, t.dk, t.dv};
    for (int n = 0; n < ARRAYS; n++)
        if (arrays[n])
            place(want, _i, n, truth_is_of_keys(n) ? t.M : t.N, arrays[n]);
    for (int room = 0; room < ARRAYS; room++)
        ck_assert_msg(memcmp(want[room], got[room], sizeof want[room]) == 0, "room %d", room);
}

/* Rows of whole vectors that lie as a tile's own copies do are not copied. Further apart they are:
 * that must give the same bits; also of what is no number, in some row of some input, where queries
 * do not see all keys. */
enum { WHOLE = 16, WHOLE_ROWS = 12, WHOLE_ROOM = WHOLE * (WHOLE + 1) };

static void fold_whole(const float *rows, int64_t stride, float *results)
{
    /* q, k, v and d_out; o, dq, dk, dv, and lse. */
    const float *in[4];
    float *out[5], comp[3][WHOLE_ROWS * WHOLE], max[WHOLE_ROWS], delta[WHOLE_ROWS];
    double sum[WHOLE_ROWS];
    for (int i = 0; i < 4; i++)
        in[i] = rows + i * WHOLE_ROOM;
    for (int i = 0; i < 5; i++)
        out[i] = results + i * WHOLE_ROWS * WHOLE;
    memset(results, 0, 5 * WHOLE_ROWS * WHOLE * sizeof *results);
    memset(comp, 0, sizeof comp);
    struct ra_queries queries = {.rows = WHOLE_ROWS,
                                 .stride = {stride, WHOLE, stride, WHOLE, WHOLE},
                                 .q = in[0],
                                 .o = out[0],
                                 .max = max,
                                 .sum = sum,
                                 .comp = comp[0],
                                 .lse = out[4],
                                 .d_out = in[3],
                                 .delta = delta,
                                 .dq = out[1]};
    struct ra_keys keys = {.rows = WHOLE_ROWS,
                           .stride = {stride, stride, WHOLE, WHOLE, WHOLE, WHOLE},
                           .k = in[1],
                           .v = in[2],
                           .dk = out[2],
                           .dv = out[3],
                           .dk_comp = comp[1],
                           .dv_comp = comp[2]};
    struct ra_band band = {-5, 2};
    float *workspace = room(WHOLE_ROWS, WHOLE_ROWS, WHOLE);
    ra_tile_begin(RA_DIMS(WHOLE), &queries);
    tested.forward(RA_DIMS(WHOLE), (struct ra_score){.scale = 0.7f}, &queries, &keys, band,
                   workspace);
    ra_tile_finish(RA_DIMS(WHOLE), &queries);
    tested.begin_backward(RA_DIMS(WHOLE), &queries);
    tested.backward(RA_DIMS(WHOLE), (struct ra_score){.scale = 0.7f}, &queries, &keys, band,
                    workspace);
    free(workspace);
}

TEST(rows_without_a_copy)
{
    enum { NUMBERS = WHOLE_ROWS * WHOLE };
    static const float values[] = {1, NAN, INFINITY};
    static _Alignas(64) float rows[2][4 * WHOLE_ROOM], results[2][5 * NUMBERS];
    uint64_t state = 21;
    for (int n = 0; n < 4; n++)
        for (int e = 0; e < NUMBERS; e++)
            rows[0][n * WHOLE_ROOM + e] = (float)random_number(&state);
    for (int v = 0; v < 3; v++)
        for (int at = 3; at < 4 * NUMBERS; at += 17) {
            float *one = &rows[0][at / NUMBERS * WHOLE_ROOM + at % NUMBERS], before = *one;
            *one = values[v];
            for (int n = 0; n < 4; n++)
                for (int a = 0; a < WHOLE_ROWS; a++)
                    memcpy(&rows[1][n * WHOLE_ROOM + a * (WHOLE + 1)],
                           &rows[0][n * WHOLE_ROOM + a * WHOLE], WHOLE * sizeof(float));
            fold_whole(rows[0], WHOLE, results[0]);
            fold_whole(rows[1], WHOLE + 1, results[1]);
            *one = before;
            ck_assert_msg(memcmp(results[0], results[1], sizeof results[0]) == 0,
                          "input %d, number %d: %g", at / NUMBERS, at % NUMBERS, values[v]);
        }
}

/* A block moves every array by its own stride, a head by what lies before it in arrays (B, rows,
 * heads, D). The last block has what is left. */
TEST(blocks_and_heads)
{
    struct tiles t;
    make(&t, 5, 7, 1, 17);
    struct ra_queries queries = queries_of(&t), block, head;
    struct ra_keys keys = keys_of(&t), some, one;
    queries.stride.o = 1, queries.stride.d_out = 2, queries.stride.dq = 3, queries.stride.comp = 7;
    keys.stride.v = 4, keys.stride.dk = 5, keys.stride.dv = 6, keys.stride.dk_comp = 8;
    keys.stride.dv_comp = 9;
    block = ra_queries_block(&queries, 2, 3);
    ck_assert(block.rows == 3 && block.q == t.q + 2 * STRIDE && block.o == t.o + 2);
    ck_assert(block.d_out == t.d_out + 4 && block.dq == t.dq + 6 && block.max == t.max + 2);
    ck_assert(block.comp == t.comp + 14);
    ck_assert(block.sum == t.sum + 2 && block.lse == t.lse + 2 && block.delta == t.delta + 2);
    some = ra_keys_block(&keys, 2, 4);
    ck_assert(some.rows == 4 && some.k == t.k + 2 * STRIDE && some.v == t.v + 8);
    ck_assert(some.dk == t.dk + 10 && some.dv == t.dv + 12 && some.mask == t.mask + 2);
    ck_assert(some.dk_comp == t.dk_comp + 16 && some.dv_comp == t.dv_comp + 18);
    ck_assert(ra_queries_block(&queries, 3, 3).rows == 2 && ra_keys_block(&keys, 4, 4).rows == 3);

    /* Head 2 of 4, of three numbers each; 3 and 7 rows of 12 numbers lie before batch 1. */
    queries = queries_of(&t), keys = keys_of(&t);
    queries.rows = 3;
    head = ra_queries_head(&queries, 3, 1, 2);
    ck_assert(head.q == t.q + 42 && head.o == t.o + 42 && head.d_out == t.d_out + 42);
    ck_assert(head.dq == t.dq + 42 && head.rows == 3 && head.max == t.max + 18);
    ck_assert(head.comp == t.comp + 42);
    ck_assert(head.sum == t.sum + 18 && head.lse == t.lse + 18 && head.delta == t.delta + 18);
    one = ra_keys_head(&keys, 3, 1, 2);
    ck_assert(one.k == t.k + 90 && one.v == t.v + 90 && one.dk == t.dk + 90);
    ck_assert(one.dv == t.dv + 90 && one.rows == 7 && one.mask == t.mask + 7);
    ck_assert(one.dk_comp == t.dk_comp + 90 && one.dv_comp == t.dv_comp + 90);
}

/* Arrays that are not there do not appear when a block or a head is taken. */
TEST(null_stays_null)
{
    struct ra_queries none = {.rows = 5, .stride = {12, 12, 12, 12, 12}}, rows[2];
    struct ra_keys no_keys = {.rows = 5, .stride = {12, 12, 12, 12, 12, 12}}, seen[2];
    rows[0] = ra_queries_block(&none, 2, 2);
    rows[1] = ra_queries_head(&none, 3, 1, 2);
    seen[0] = ra_keys_block(&no_keys, 2, 2);
    seen[1] = ra_keys_head(&no_keys, 3, 1, 2);
    for (int n = 0; n < 2; n++) {
        ck_assert(!rows[n].q && !rows[n].o && !rows[n].max && !rows[n].sum && !rows[n].lse);
        ck_assert(!rows[n].d_out && !rows[n].delta && !rows[n].dq && !rows[n].comp);
        ck_assert(!seen[n].k && !seen[n].v && !seen[n].mask && !seen[n].dk && !seen[n].dv);
        ck_assert(!seen[n].dk_comp && !seen[n].dv_comp);
    }
}

/* ---- The judge itself. */

/* What is right is right; a number that is not one, -inf where something is seen and a little more
 * than is allowed are wrong, in every array; a little less is right. Row 0 sees nothing. */
TESTS(the_judge, 0, 2)
{
    struct tiles t;
    make(&t, 4, 6, 1, 18);
    t.band = (struct ra_band){-RA_BAND_FAR, -1};
    struct truth truth = truth_of_tiles(&t);
    truth.weights = _i ? RA_BFLOAT16 : RA_FLOAT32;
    truth_forward(&truth);
    truth_backward(&truth, NULL);
    ck_assert(truth.x[LSE][0] == -INFINITY && truth.x[LSE][1] > -INFINITY);
    for (enum truth_array a = O; a <= DELTA; a++) {
        if (!truth_is_output(a))
            continue;
        char text[TRUTH_TEXT];
        int64_t at = truth_width(&truth, a); /* row 1 */
        double right = truth.x[a][at];
        double *copy = truth_numbers(truth_count(&truth, a)), allowed = truth.allowed[a][0];
        memcpy(copy, truth.x[a], (size_t)truth_count(&truth, a) * sizeof *copy);
        ck_assert(allowed > 0 && truth_judge(&truth, a, copy, text) == 0);
        const double wrong[] = {NAN, INFINITY, -INFINITY, right + 1.01 * allowed,
                                right - 1.01 * allowed};
        for (int i = 0; i < 5; i++) {
            copy[at] = wrong[i];
            ck_assert_msg(truth_judge(&truth, a, copy, text) > 1, "%s: %g", truth_names[a],
                          wrong[i]);
        }
        copy[at] = right + 0.99 * allowed;
        ck_assert(truth_judge(&truth, a, copy, text) <= 1);
        free(copy);
    }
    truth_clear(&truth);
}

/* check-tile [INSTRUCTION-SET]: the plain tile, or that on vectors; "best" is what the library
 * takes. */
int main(int argc, char **argv)
{
    if (argc > 1) {
        const char *name = strcmp(argv[1], "best") == 0 ? NULL : argv[1];
        const struct ra_vector *vector = ra_vector_find(name);
        if (!vector) {
            printf("skipped the tile on %s: this processor does not have it\n", argv[1]);
            return 0;
        }
        tested.workspace = vector->narrow ? ra_vector_narrow_workspace : ra_vector_workspace;
        tested.type = vector->narrow ? RA_BFLOAT16 : RA_FLOAT32;
        vector = vector->narrow ? vector->narrow : vector;
        tested.forward = vector->forward;
        tested.backward = vector->backward;
        tested.begin_backward = vector->begin_backward;
    }
    return suite_main("tile", 60);
}
