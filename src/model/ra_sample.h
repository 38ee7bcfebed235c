/* ra_sample: the next token, drawn from logits.
 *
 * Chapter 10. New here: random numbers that are computed from their number, not from the one
 * before. So token i of a run depends on the seed, i and the logits alone: every rank draws the
 * same token, and a run that is continued goes on as if it had never stopped.
 */
#ifndef RA_SAMPLE_H
#define RA_SAMPLE_H

#include <stddef.h>
#include <stdint.h>
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How tokens are drawn. Begin with RA_SAMPLE_INIT: from all tokens, as the logits say. */
struct ra_sample {
    size_t size;
    double temperature; /* logits are divided by it; 0: always the most likely token, the first of
                         * equals */
    int64_t top_k;      /* only from this many likeliest tokens; 0: from all */
    double top_p;       /* then, only from the most likely ones that together have this share of the
                         * probability, 0 to 1; the most likely one is always among them */
    uint64_t seed;
};

#define RA_SAMPLE_INIT                       \
    {                                        \
        sizeof(struct ra_sample), 1, 0, 1, 0 \
    }

/* A token and its weight: memory for ra_sample_draw. */
struct ra_sample_choice {
    double weight;
    float logit;
    int64_t token;
};

/* Draws a number from 0 to below 1, number `number` of this seed: 2^53 values, all equally
 * likely. */
double ra_sample_random(uint64_t seed, uint64_t number);

/* Draws token number `number` of a run from `count` logits. choices has room for `count`. A logit
 * of -inf is a token that is never drawn. RA_INVALID, and error, unless it is NULL, says why: a
 * logit is NaN or +inf, all are -inf, or `how` is wrong; then *token is -1. */
RA_CHECKED enum ra_status ra_sample_draw(const struct ra_sample *how, uint64_t number,
                                         int64_t count, const float *logits,
                                         struct ra_sample_choice *choices, int64_t *token,
                                         char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
