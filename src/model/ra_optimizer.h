/* ra_optimizer: AdamW, its learning rate, and the length of a gradient.
 *
 * Chapter 10. New here: all weights are one array, so an optimizer is one loop. Every rank runs it
 * on a share of the weights, and the bits do not depend on how many ranks there are.
 */
#ifndef RA_OPTIMIZER_H
#define RA_OPTIMIZER_H

#include "ra_parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How to learn. Begin with RA_OPTIMIZER_INIT: rate 0.001 for all steps, no decay. */
struct ra_optimizer {
    size_t size;
    double rate; /* the highest learning rate: it rises linearly for `warmup` steps, then falls
                  * along half a cosine to a tenth at the last of `steps` [0: it does not fall] */
    int64_t warmup, steps;
    double beta1, beta2; /* how slowly the means of gradients and of their squares change */
    double epsilon;      /* is added to the root of the latter */
    double decay;        /* of matrices; gammas and biases do not decay */
    double clip;         /* gradients that are longer are cut to this length; 0: none are */
};

#define RA_OPTIMIZER_INIT                                                \
    {                                                                    \
        sizeof(struct ra_optimizer), 0.001, 0, 0, 0.9, 0.999, 1e-8, 0, 0 \
    }

/* Returns the learning rate of this step, 1..steps; NaN as below. */
double ra_optimizer_rate(const struct ra_optimizer *optimizer, int64_t step);

/* Returns the length of a vector: the root of the sum of squares. The bits do not depend on the
 * threads. */
double ra_length(int threads, int64_t count, const float *vector);

/* Makes step number `step`, 1, 2, ..., of this share of the weights, which ra_model_gather then
 * gives to all ranks. `means` and `squares` are arrays like weights, 0 before the first step.
 * Returns the length of the gradient before it was clipped; if that is not finite, nothing is
 * changed. It is NaN if the optimizer did not begin with RA_OPTIMIZER_INIT, or the config not with
 * ra_model_config_init. Loshchilov and Hutter, Decoupled weight decay regularization, 2019. */
double ra_optimizer_step(const struct ra_optimizer *optimizer, const struct ra_model_config *config,
                         struct ra_share share, int threads, int64_t step, const float *gradients,
                         float *weights, float *means, float *squares);

#ifdef __cplusplus
}
#endif

#endif
