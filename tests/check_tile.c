/* check_tile: the tile functions against the definition, on random tiles.
 *
 * The reference here is written once more, in double, pair by pair; it shares nothing with ra_tile.c
 * or 01_naive.c. Outputs start as NaN, or as known numbers where a function adds to them, and rows
 * lie further apart than D, with NaN between them, so that a write or a read in the wrong place shows.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ra_tile.h"
#include "suite.h"

enum { ROWS = 24, DIM = 9, STRIDE = DIM + 3, SIZE = ROWS * STRIDE };

/* One problem: N queries, M keys, its results by ra_tile and by the reference. */
struct tiles {
    int64_t N, M;
    float scale;
    float q[SIZE], k[SIZE], v[SIZE], d_out[SIZE];
    bool mask[ROWS];
    struct ra_band band;
    float o[SIZE], max[ROWS], sum[ROWS], lse[ROWS], delta[ROWS], dq[SIZE], dk[SIZE], dv[SIZE];
    double want_o[ROWS][DIM], want_lse[ROWS], want_delta[ROWS];
    double want_dq[ROWS][DIM], want_dk[ROWS][DIM], want_dv[ROWS][DIM];
};

static float random_number(uint64_t *state)
{
    /* The high bits of a linear congruence are random enough for test data. */
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int64_t)(*state >> 40) / (1 << 23) - 0.9f;
}

/* Rows of D numbers with NaN between them. */
static void fill(float *rows, float size, uint64_t *state)
{
    for (int e = 0; e < SIZE; e++)
        rows[e] = e % STRIDE < DIM ? size * random_number(state) : NAN;
}

static void make(struct tiles *t, int64_t N, int64_t M, float score_scale, uint64_t seed)
{
    uint64_t state = seed * 977 + 13;
    memset(t, 0xFF, sizeof *t);
    t->N = N;
    t->M = M;
    t->scale = 0.7f;
    fill(t->q, score_scale, &state);
    fill(t->k, 1, &state);
    fill(t->v, 2, &state);
    fill(t->d_out, 3, &state);
    for (int b = 0; b < ROWS; b++)
        t->mask[b] = true;
    t->band = RA_ALL_KEYS;
}

/* The definition, pair by pair, in double. */
static void reference(struct tiles *t)
{
    double s[ROWS][ROWS];
    memset(t->want_dk, 0, sizeof t->want_dk);
    memset(t->want_dv, 0, sizeof t->want_dv);
    for (int64_t a = 0; a < t->N; a++) {
        double total = 0, top = -INFINITY;
        for (int64_t b = 0; b < t->M; b++) {
            s[a][b] = 0;
            for (int c = 0; c < DIM; c++)
                s[a][b] += (double)t->scale * t->q[a * STRIDE + c] * t->k[b * STRIDE + c];
            if (!t->mask[b] || b < a + t->band.lo || b > a + t->band.hi)
                s[a][b] = -INFINITY;
            top = fmax(top, s[a][b]);
        }
        for (int64_t b = 0; b < t->M; b++)
            total += s[a][b] > -INFINITY ? exp(s[a][b] - top) : 0;
        t->want_lse[a] = top + log(total);

        t->want_delta[a] = 0;
        for (int c = 0; c < DIM; c++) {
            t->want_o[a][c] = t->want_dq[a][c] = 0;
            for (int64_t b = 0; b < t->M; b++)
                if (s[a][b] > -INFINITY)
                    t->want_o[a][c] += exp(s[a][b] - t->want_lse[a]) * t->v[b * STRIDE + c];
            t->want_delta[a] += t->d_out[a * STRIDE + c] * t->want_o[a][c];
        }
        for (int64_t b = 0; b < t->M; b++) {
            if (s[a][b] == -INFINITY)
                continue;
            double p = exp(s[a][b] - t->want_lse[a]), dp = 0;
            for (int c = 0; c < DIM; c++)
                dp += (double)t->d_out[a * STRIDE + c] * t->v[b * STRIDE + c];
            for (int c = 0; c < DIM; c++) {
                double ds = p * (dp - t->want_delta[a]) * t->scale;
                t->want_dv[b][c] += p * t->d_out[a * STRIDE + c];
                t->want_dq[a][c] += ds * t->k[b * STRIDE + c];
                t->want_dk[b][c] += ds * t->q[a * STRIDE + c];
            }
        }
    }
}

/* Cuts the problem into tiles of this many rows and runs the tile functions. Keys are taken in
 * ascending or in descending order. */
static void compute(struct tiles *t, int64_t query_rows, int64_t key_rows, bool descending)
{
    int64_t key_tiles = (t->M + key_rows - 1) / key_rows;
    float *workspace = malloc(sizeof(float) * (size_t)ra_tile_workspace(query_rows, key_rows, DIM));
    ck_assert_ptr_nonnull(workspace);

    for (int e = 0; e < SIZE; e++)
        t->dq[e] = t->dk[e] = t->dv[e] = e % STRIDE < DIM ? 0 : NAN;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < t->N; i += query_rows) {
            struct ra_queries queries = {.rows = t->N - i < query_rows ? t->N - i : query_rows,
                                         .stride = STRIDE,
                                         .q = t->q + i * STRIDE,
                                         .o = t->o + i * STRIDE,
                                         .max = t->max + i,
                                         .sum = t->sum + i,
                                         .d_out = t->d_out + i * STRIDE,
                                         .lse = t->lse + i,
                                         .delta = t->delta + i,
                                         .dq = t->dq + i * STRIDE};
            if (pass == 0)
                ra_tile_begin(DIM, &queries);
            else
                ra_tile_delta(DIM, &queries);
            for (int64_t n = 0; n < key_tiles; n++) {
                int64_t j = (descending ? key_tiles - 1 - n : n) * key_rows;
                struct ra_keys keys = {.rows = t->M - j < key_rows ? t->M - j : key_rows,
                                       .stride = STRIDE,
                                       .k = t->k + j * STRIDE,
                                       .v = t->v + j * STRIDE,
                                       .mask = t->mask + j,
                                       .dk = t->dk + j * STRIDE,
                                       .dv = t->dv + j * STRIDE};
                /* The band counts from the tile's own first rows. */
                struct ra_band band = {t->band.lo + i - j, t->band.hi + i - j};
                if (pass == 0)
                    ra_tile_forward(DIM, t->scale, &queries, &keys, band, workspace);
                else
                    ra_tile_backward(DIM, t->scale, &queries, &keys, band, workspace);
            }
            if (pass == 0)
                ra_tile_finish(DIM, &queries);
        }
    free(workspace);
}

static void near(double want, double got, double allowed, const char *what, int64_t row)
{
    /* Written so that NaN fails; -inf must be met by -inf. */
    ck_assert_msg(want == got || fabs(want - got) <= allowed, "%s row %d: want %.9g got %.9g", what,
                  (int)row, want, got);
}

static void all_near(const char *what, int64_t rows, double want[ROWS][DIM], const float *got,
                     double allowed)
{
    double largest = 0;
    for (int64_t a = 0; a < rows; a++)
        for (int c = 0; c < DIM; c++)
            largest = fmax(largest, fabs(want[a][c]));
    for (int64_t a = 0; a < rows; a++)
        for (int c = 0; c < STRIDE; c++) {
            if (c < DIM)
                near(want[a][c], got[a * STRIDE + c], allowed * largest, what, a);
            else
                ck_assert_msg(isnan(got[a * STRIDE + c]), "%s row %d: written past D", what,
                              (int)a);
        }
}

/* Allowed: a hundred roundings of float32 per unit of the largest score. */
static void grade(struct tiles *t, double largest_score)
{
    double allowed = 100 * 6e-8 * (1 + largest_score);
    reference(t);
    for (int64_t a = 0; a < t->N; a++) {
        near(t->want_lse[a], t->lse[a], allowed, "lse", a);
        near(t->want_delta[a], t->delta[a], 10 * allowed, "delta", a);
    }
    all_near("o", t->N, t->want_o, t->o, allowed);
    all_near("dq", t->N, t->want_dq, t->dq, allowed);
    all_near("dk", t->M, t->want_dk, t->dk, allowed);
    all_near("dv", t->M, t->want_dv, t->dv, allowed);
}

static const int64_t tile_rows[] = {1, 2, 3, 7, 8, 16, ROWS, 100};
enum { TILE_ROWS = sizeof tile_rows / sizeof tile_rows[0] };

START_TEST(tiles_of_any_size)
{
    static const int64_t lengths[] = {1, 2, 7, 8, 17, ROWS};
    struct tiles t;
    for (int n = 0; n < 6; n++)
        for (int m = 0; m < 6; m++)
            for (int r = 0; r < TILE_ROWS; r++) {
                make(&t, lengths[n], lengths[m], 1, (uint64_t)(n * 6 + m));
                compute(&t, tile_rows[_i], tile_rows[r], r % 2);
                grade(&t, 5);
            }
}
END_TEST

/* Large scores grow or shrink along the keys, so the running maximum moves often or never. */
START_TEST(large_scores)
{
    struct tiles t;
    for (int descending = 0; descending < 2; descending++)
        for (int r = 0; r < TILE_ROWS; r++) {
            make(&t, 10, ROWS, 30, (uint64_t)_i);
            for (int64_t b = 0; b < t.M; b++)
                t.k[b * STRIDE] = 0.3f * (float)b;
            compute(&t, 4, tile_rows[r], descending);
            grade(&t, 150);
        }
}
END_TEST

/* Every band whose edges can fall inside, at the ends of and outside the tiles. */
START_TEST(bands)
{
    struct tiles t;
    for (int64_t lo = -9; lo <= 9; lo++)
        for (int64_t hi = lo - 2; hi <= 9; hi++) {
            make(&t, 7, 8, 1, 5);
            t.band = (struct ra_band){lo, hi};
            compute(&t, tile_rows[_i], tile_rows[(_i + 1) % TILE_ROWS], false);
            grade(&t, 5);
        }
}
END_TEST

/* Bands with one open end. */
START_TEST(half_open_bands)
{
    struct tiles t;
    for (int64_t edge = -20; edge <= 20; edge++) {
        make(&t, 12, 17, 1, 6);
        t.band = _i ? (struct ra_band){edge, RA_BAND_FAR} : (struct ra_band){-RA_BAND_FAR, edge};
        compute(&t, 5, 4, false);
        grade(&t, 5);
    }
}
END_TEST

/* Every key mask of nine keys, alone and under a causal band. */
START_TEST(masks)
{
    struct tiles t;
    for (int bits = 0; bits < 512; bits++) {
        make(&t, 5, 9, 1, 7);
        for (int b = 0; b < 9; b++)
            t.mask[b] = bits >> b & 1;
        if (_i)
            t.band = (struct ra_band){-RA_BAND_FAR, 2};
        compute(&t, 2, 4, false);
        grade(&t, 5);
    }
}
END_TEST

/* A row that sees nothing: o = 0, lse = -inf, dq = 0, and no part in dk and dv. */
START_TEST(rows_that_see_nothing)
{
    struct tiles t;
    make(&t, 6, 6, 1, 8);
    t.band = (struct ra_band){-RA_BAND_FAR, -3};
    compute(&t, 4, 4, false);
    grade(&t, 5);
    for (int64_t a = 0; a < 3; a++) {
        ck_assert(t.lse[a] == -INFINITY);
        for (int c = 0; c < DIM; c++)
            ck_assert(t.o[a * STRIDE + c] == 0 && t.dq[a * STRIDE + c] == 0);
    }
}
END_TEST

/* The carry that others take over: empty before the first key, and after keys that nobody sees. */
START_TEST(empty_carry)
{
    struct tiles t;
    float workspace[6 * 9 * 2 + 9 * DIM];
    make(&t, 6, 9, 1, 11);
    struct ra_queries queries = {
        .rows = 6, .stride = STRIDE, .q = t.q, .o = t.o, .max = t.max, .sum = t.sum};
    struct ra_keys keys = {.rows = 9, .stride = STRIDE, .k = t.k, .v = t.v};
    ra_tile_begin(DIM, &queries);
    for (int folded = 0; folded < 2; folded++) {
        for (int a = 0; a < 6; a++) {
            ck_assert(t.max[a] == -INFINITY && t.sum[a] == 0);
            for (int c = 0; c < DIM; c++)
                ck_assert(t.o[a * STRIDE + c] == 0);
        }
        ra_tile_forward(DIM, t.scale, &queries, &keys, (struct ra_band){9, 9}, workspace);
    }
}
END_TEST

/* No mask at all is the mask that allows everything, to the bit. */
START_TEST(no_mask)
{
    struct tiles t, u;
    make(&t, 6, 9, 1, 9);
    make(&u, 6, 9, 1, 9);
    compute(&t, 3, 9, false);

    float workspace[6 * 9 * 2 + 9 * DIM];
    ck_assert_int_eq(ra_tile_workspace(6, 9, DIM), 6 * 9 * 2 + 9 * DIM);
    struct ra_queries queries = {
        .rows = 6, .stride = STRIDE, .q = u.q, .o = u.o, .max = u.max, .sum = u.sum, .lse = u.lse};
    struct ra_keys keys = {.rows = 9, .stride = STRIDE, .k = u.k, .v = u.v};
    ra_tile_begin(DIM, &queries);
    ra_tile_forward(DIM, u.scale, &queries, &keys, RA_ALL_KEYS, workspace);
    ra_tile_finish(DIM, &queries);
    ck_assert_mem_eq(t.o, u.o, 6 * STRIDE * sizeof(float));
    ck_assert_mem_eq(t.lse, u.lse, 6 * sizeof(float));
}
END_TEST

/* The backward adds: run twice without clearing, every gradient doubles. */
START_TEST(gradients_are_added)
{
    struct tiles t;
    float workspace[6 * 9 * 2 + 9 * DIM];
    make(&t, 6, 9, 1, 10);
    compute(&t, 6, 9, false);
    struct ra_queries queries = {.rows = 6,
                                 .stride = STRIDE,
                                 .q = t.q,
                                 .d_out = t.d_out,
                                 .lse = t.lse,
                                 .delta = t.delta,
                                 .dq = t.dq};
    struct ra_keys keys = {.rows = 9, .stride = STRIDE, .k = t.k, .v = t.v, .dk = t.dk, .dv = t.dv};
    ra_tile_backward(DIM, t.scale, &queries, &keys, RA_ALL_KEYS, workspace);
    reference(&t);
    for (int a = 0; a < 9; a++)
        for (int c = 0; c < DIM; c++) {
            t.want_dq[a][c] *= 2;
            t.want_dk[a][c] *= 2;
            t.want_dv[a][c] *= 2;
        }
    all_near("dq", 6, t.want_dq, t.dq, 4e-5);
    all_near("dk", 9, t.want_dk, t.dk, 4e-5);
    all_near("dv", 9, t.want_dv, t.dv, 4e-5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tile");
    TCase *cases = tcase_create("tile");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, tiles_of_any_size, 0, TILE_ROWS);
    tcase_add_loop_test(cases, large_scores, 0, 4);
    tcase_add_loop_test(cases, bands, 0, TILE_ROWS);
    tcase_add_loop_test(cases, half_open_bands, 0, 2);
    tcase_add_loop_test(cases, masks, 0, 2);
    tcase_add_test(cases, rows_that_see_nothing);
    tcase_add_test(cases, empty_carry);
    tcase_add_test(cases, no_mask);
    tcase_add_test(cases, gradients_are_added);
    suite_add_tcase(suite, cases);
    return suite_run(suite);
}
