/* definition: attention, pair by pair, as the maths has it: for tests/rig/truth.c, which says what
 * it is for. Nothing is skipped, nothing is kept from one call to the next, so they may be made
 * side by side, in any order.
 */
#ifndef DEFINITION_H
#define DEFINITION_H

#include "truth.h"

/* One of the two computations: `single`, every step in float32; or in double, and with it the
 * magnitude and the rounding of every number. */
struct definition {
    struct truth *t;
    bool single;
    double **out;          /* plain or x of the truth */
    const double *given_o; /* the o of which the backward is; NULL: that of `out` */
};

/* o and lse, and then delta, of one query row, number `at` of (B, N, H). */
void definition_forward(const struct definition *d, int64_t at);
void definition_delta(const struct definition *d, int64_t at);

/* After delta of all rows: the gradients of key/value head number `at` of (B, G), and of all that
 * reads it. */
void definition_backward(const struct definition *d, int64_t at);

/* Of a head: the largest score, and after delta of all rows the gradient of its sink. */
void definition_largest(struct truth *t, int64_t h);
void definition_d_sink(struct truth *t, int64_t h);

#endif
