/* ra_sample: the next token, drawn from logits. See ra_sample.h.
 *
 * Chapter 10.
 */
#include "ra_sample.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "ra_error.h"
#include "ra_random.h"
#include "ra_struct.h"

/* ---- Random numbers. */

double ra_sample_random(uint64_t seed, uint64_t number)
{
    /* The counter begins at the seed, mixed: seeds that are neighbours must not give the same
     * numbers, one step apart. */
    uint64_t bits = ra_random_mix(ra_random_mix(seed) + number * RA_RANDOM_STEP);
    return (double)(bits >> 11) * 0x1p-53;
}

/* ---- Checks. */

static enum ra_status check(const struct ra_sample *how, int64_t count, const float *logits,
                            char *error)
{
    int64_t possible = 0;
    if (!(how->temperature >= 0 && how->temperature < (double)INFINITY))
        return ra_error_set(error, "temperature = %g: give a number of at least 0",
                            how->temperature);
    if (how->top_k < 0)
        return ra_error_set(error, "top_k = %" PRId64 ": give at least 1, or 0 for no limit",
                            how->top_k);
    if (!(how->top_p >= 0 && how->top_p <= 1))
        return ra_error_set(error, "top_p = %g: give a number from 0 to 1", how->top_p);
    for (int64_t i = 0; i < count; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return ra_error_set(error, "logits[%" PRId64 "] = %g: the model has overflowed", i,
                                (double)logits[i]);
        possible += logits[i] > -INFINITY;
    }
    if (possible == 0)
        return ra_error_set(error, "logits: give at least one of %" PRId64 " that is not -inf",
                            count);
    return RA_OK;
}

/* ---- The draw. */

/* The most likely first, the first of equals before the others. */
static int compare(const void *one, const void *other)
{
    const struct ra_sample_choice *a = one, *b = other;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : a->token > b->token;
}

/* How many of the choices, which are in order, are left; *total is what they weigh. */
static int64_t limit(const struct ra_sample *how, int64_t count,
                     const struct ra_sample_choice *choices, double *total)
{
    int64_t most = how->top_k > 0 && how->top_k < count ? how->top_k : count, left = 0;
    double all = 0;
    for (int64_t i = 0; i < most; i++)
        all += choices[i].weight;
    *total = 0;
    while (left < most && *total < how->top_p * all)
        *total += choices[left++].weight;
    return left;
}

RA_STRUCT_ENDS(struct ra_sample, seed);

enum ra_status ra_sample_draw(const struct ra_sample *given, uint64_t number, int64_t count,
                              const float *logits, struct ra_sample_choice *choices, int64_t *token,
                              char error[RA_ERROR_SIZE])
{
    struct ra_sample own = RA_SAMPLE_INIT, *how = &own;
    *token = -1;
    enum ra_status status =
        ra_struct_take("sample", "RA_SAMPLE_INIT", how, sizeof *how,
                       offsetof(struct ra_sample, seed) + sizeof how->seed, given, error);
    if (status == RA_OK)
        status = check(how, count, logits, error);
    if (status != RA_OK)
        return status;
    for (int64_t i = 0; i < count; i++)
        choices[i] = (struct ra_sample_choice){0, logits[i], i};
    qsort(choices, (size_t)count, sizeof *choices, compare);
    *token = choices[0].token;
    if (how->temperature == 0)
        return RA_OK;
    for (int64_t i = 0; i < count; i++)
        choices[i].weight = exp(((double)choices[i].logit - choices[0].logit) / how->temperature);

    /* The choices lie side by side, each as long as its weight; what the random number hits is
     * drawn. Where rounding leaves it behind the last one, the last with a weight. */
    double total, end = 0;
    int64_t left = limit(how, count, choices, &total);
    double place = ra_sample_random(how->seed, number) * total;
    for (int64_t i = 0; i < left && end <= place; i++) {
        end += choices[i].weight;
        if (choices[i].weight > 0)
            *token = choices[i].token;
    }
    return RA_OK;
}
