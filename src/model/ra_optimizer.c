/* ra_optimizer: AdamW. See ra_optimizer.h.
 *
 * Chapter 10.
 */
#include "ra_optimizer.h"
#include <math.h>
#include "ra_layers.h"
#include "ra_math.h"
#include "ra_model_struct.h"
#include "ra_struct.h"

enum { CHUNKS = 256 };

RA_STRUCT_ENDS(struct ra_optimizer, clip);

/* Copies a caller's settings, whatever size its header gives them. */
static bool take(struct ra_optimizer *optimizer, const struct ra_optimizer *given)
{
    size_t least = offsetof(struct ra_optimizer, clip) + sizeof optimizer->clip;
    *optimizer = (struct ra_optimizer)RA_OPTIMIZER_INIT;
    return ra_struct_take("optimizer", "RA_OPTIMIZER_INIT", optimizer, sizeof *optimizer, least,
                          given, NULL) == RA_OK;
}

double ra_optimizer_rate(const struct ra_optimizer *given, int64_t step)
{
    struct ra_optimizer own, *optimizer = &own;
    if (!take(optimizer, given))
        return NAN;
    if (step <= optimizer->warmup)
        return optimizer->rate * (double)step / (double)optimizer->warmup;
    if (optimizer->steps == 0)
        return optimizer->rate;
    double left = (double)(optimizer->steps - optimizer->warmup);
    double share = left > 0 ? (double)(step - optimizer->warmup) / left : 1;
    double cosine = 0.5 + 0.5 * cos(3.141592653589793 * fmin(1, share));
    return optimizer->rate * (0.1 + 0.9 * cosine);
}

double ra_length(int threads, int64_t count, const float *vector)
{
    double sums[CHUNKS], sum = 0;
    int64_t chunk = ra_ceiling_division(count, CHUNKS);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < CHUNKS; i++) {
        int64_t first = i * chunk, left = ra_min(count - first, chunk);
        sums[i] = left > 0 ? ra_dot(left, vector + first, vector + first) : 0;
    }
    for (int64_t i = 0; i < CHUNKS; i++)
        sum += sums[i];
    return sqrt(sum);
}

double ra_optimizer_step(const struct ra_optimizer *given, const struct ra_model_config *model,
                         struct ra_share share, int threads, int64_t step, const float *gradients,
                         float *weights, float *means, float *squares)
{
    struct ra_optimizer own, *optimizer = &own;
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(model, &room, NULL);
    if (!take(optimizer, given) || !config)
        return NAN;
    double length = ra_length(threads, ra_parameter_numbers(config), gradients);
    if (!isfinite(length))
        return length;
    double rate = ra_optimizer_rate(optimizer, step);
    float cut =
        optimizer->clip > 0 && length > optimizer->clip ? (float)(optimizer->clip / length) : 1;
    /* What is near 1 as float32 has lost the digits of its distance from 1. */
    float beta1 = (float)optimizer->beta1, share1 = (float)(1 - optimizer->beta1);
    float beta2 = (float)optimizer->beta2, share2 = (float)(1 - optimizer->beta2);

    /* Means that began at 0 are too small by these factors. */
    float mean_factor = (float)(1 / (1 - pow(optimizer->beta1, (double)step)));
    float square_factor = (float)(1 / (1 - pow(optimizer->beta2, (double)step)));
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter x = ra_parameter(config, i);
        int64_t first = x.first > share.first ? x.first : share.first;
        int64_t end = x.first + x.count < share.end ? x.first + x.count : share.end;
        float kept = x.columns > 0 ? (float)(1 - rate * optimizer->decay) : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
        for (int64_t e = first; e < end; e++) {
            float gradient = gradients[e] * cut;
            means[e] = beta1 * means[e] + share1 * gradient;
            squares[e] = beta2 * squares[e] + share2 * gradient * gradient;
            float root = sqrtf(squares[e] * square_factor) + (float)optimizer->epsilon;
            weights[e] = kept * weights[e] - (float)rate * means[e] * mean_factor / root;
        }
    }
    return length;
}
