/* truth: what attention is, and how far from it a program may be. The one definition in C that the
 * tests are judged by; the other judges are src/01_naive.c and tests/rig/oracle.py.
 *
 * The definition is computed twice, pair by pair: exactly, in double, and plainly, every step in
 * float32, as the most obvious program would. A result may err, in each head of each batch, by
 *
 *     2 max |plain - exact|  +  4 u max magnitude  +  2 max rounding            u = 2^-24
 *
 * No number in it is tuned to a program. The terms:
 *
 * 2 |plain - exact|: at most twice as wrong as the obvious program in the same precision.
 *
 * 4 u magnitude: four float32 roundings, for problems in which the obvious program is right by
 * luck. The magnitude is what one rounding of every step makes of the result, in units of u: the
 * sum of the absolute values of the terms, and what the errors of the factors make of it to first
 * order. tests/rig/oracle.py derives it line by line.
 *
 * 2 rounding: only where the program rounds its weights to 16 bits, because tensor cores multiply
 * nothing wider; the plain twin then rounds them, too. It is what these roundings, each of at most
 * half a step, make of the result if they are independent: the root of the sum of the squares,
 * which tests/rig/oracle.h derives and calls the unit. A rounding is uniform within its half step
 * and half a step is on average 3/4 of the largest one, so the root mean square of the error is 3/4
 * / sqrt(3) = 0.43 of that root: twice the root is 4.6 standard deviations, as good as the largest
 * of 200,000 errors, of which a head has hardly more. And tensor cores cut off where float32 rounds
 * to nearest, which doubles u: 8 u instead of 4 u.
 *
 * An output of 16 bits may differ from the exact one by half a step more. What is NaN is wrong.
 */
#ifndef TRUTH_H
#define TRUTH_H

#include "ra_config.h"
#include "ra_slice.h"
#include "ra_tile.h"

/* The arrays of struct ra_arrays, in its order, and delta = sum over c of d_out o, which the
 * backward goes through. */
enum truth_array { Q, K, V, MASK, O, LSE, D_OUT, DQ, DK, DV, ARRAYS, DELTA = ARRAYS, TRUTHS };

extern const char *const truth_names[TRUTHS];

/* A problem, and what is right. Arrays are (B, rows, heads, width) without gaps, in double,
 * whatever the type of the program's; lse and delta (B, N, H), mask (B, M), 0: hidden. */
struct truth {
    int64_t B, N, M, H, G, D;
    int64_t D_v; /* numbers of v, o, d_out and dv; 0: D */
    enum ra_head_map head_map;
    double scale, softcap; /* 0: no cap */

    /* Query i sees key j if all of these let it: by position, where query i is at i + M - N; by
     * row; by rank; and the mask. */
    bool causal;
    int64_t lookback;
    const struct ra_slice *slices; /* or NULL: i and j are in one of them. The caller's */
    int64_t slice_count;
    struct ra_band band;  /* lo <= j - i <= hi */
    int lo_step, hi_step; /* there i is the first of so many rows; 0: each is */
    const int
        *home[2]; /* by enum ra_side: the rank of each row, which sees its own keys only; NULL:
                          * all keys */

    /* Beside the keys, each the caller's or NULL: slopes and sinks of the heads (H), a gradient of
     * lse (B, N, H). A slope counts between places: of rows by enum ra_side, or NULL: key j is at
     * j, query i at i + M - N. */
    const double *slopes, *sink, *d_lse;
    const int64_t *places[2];

    /* The program. */
    enum ra_type type[ARRAYS]; /* of its arrays */
    enum ra_type weights;      /* what it rounds weights, p and ds, to */
    bool tanh_of_exp; /* its tanh is 1 - 2 / (e^2x + 1), so rounds as 1 does, however small */

    double *x[TRUTHS];      /* inputs, then what is right; MASK may be NULL */
    double *before[DV + 1]; /* what the gradients are added to; NULL: 0. The caller's */

    /* Of each head (H): the largest score, the gradient of the sink, and what they may err by. */
    double *largest, *largest_error, *d_sink, *d_sink_error;

    double *allowed[TRUTHS]; /* error of each head, (B, heads); NaN if the plain twin overflows */
    double *plain[TRUTHS], *magnitude[TRUTHS]; /* the terms above, by element */
    double *rounding[TRUTHS];                  /* squared */
};

/* What a config asks for, in arrays of its type; band and ranks hide nothing. */
struct truth truth_of(const struct ra_config *config);

/* Does query i see key j, as far as their places say? */
bool truth_sees(const struct truth *t, int64_t i, int64_t j);

bool truth_is_output(enum truth_array a);
bool truth_is_of_keys(enum truth_array a);
int64_t truth_rows(const struct truth *t, enum truth_array a);
int64_t truth_heads(const struct truth *t, enum truth_array a);
int64_t truth_width(const struct truth *t, enum truth_array a);
int64_t truth_count(const struct truth *t, enum truth_array a);

/* Where row i of head h of batch b lies in arrays that are laid out as x is. */
double *truth_row(const struct truth *t, double *const *arrays, enum truth_array a, int64_t b,
                  int64_t i, int64_t h);

/* Memory for so many doubles, all 0. Without memory the program ends. */
double *truth_numbers(int64_t count);

/* Makes q, k, v and d_out of what `draw` gives, q times q_size, rounded to their types. */
void truth_make_inputs(struct truth *t, double (*draw)(uint64_t *state), double q_size,
                       uint64_t *state);

/* Fills in o and lse, and what is allowed; then delta and the gradients. The backward is that of an
 * o which is given, such as the 16-bit one that a program kept; NULL: that of the own one, which in
 * the plain twin is rounded to its type. */
void truth_forward(struct truth *t);
void truth_backward(struct truth *t, const double *o);

/* Fills in the largest score of each head. */
void truth_largest(struct truth *t);

/* The worst error of an array as a share of what is allowed, infinite for NaN. If it is not within
 * 1, says where in `text`. */
enum { TRUTH_TEXT = 200 };
double truth_judge(const struct truth *t, enum truth_array a, const double *got, char *text);

/* Frees all arrays but `before`. */
void truth_clear(struct truth *t);

#endif
