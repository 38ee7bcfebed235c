/* transformer_device: weights where a model computes: on the host, or copies on a device. */
#ifndef TRANSFORMER_DEVICE_H
#define TRANSFORMER_DEVICE_H

#include "ra_model_device.h"
#include "transformer_options.h"

/* The arrays of learning, each like weights. */
struct transformer_arrays {
    float *weights, *gradients, *means, *squares;
};

/* Returns an array of `count` numbers where the model computes: this one, or a copy, for as long as
 * the program runs; and copies it back. */
float *transformer_place(const struct transformer *t, const float *array, int64_t count);
void transformer_fetch(const struct transformer *t, const float *placed, float *array,
                       int64_t count);

/* Places the arrays of learning where this model computes: gradients, and copies of what the host
 * has. Of means and squares a rank of GPUs may hold a share; transformer_fetch_moments makes them
 * whole again, on all ranks together. */
struct transformer_arrays transformer_place_all(const struct transformer *t, struct ra_model *model,
                                                const float *weights, const float *gradients,
                                                const float *means, const float *squares);
void transformer_fetch_moments(const struct transformer *t, struct ra_model *model,
                               const float *placed, float *array);

/* Makes a step of AdamW, after which all ranks have the same weights. Returns the length of the
 * gradient. */
double transformer_learn(const struct transformer *t, struct ra_model *model,
                         const struct ra_optimizer *optimizer, int64_t step,
                         const struct transformer_arrays *arrays);

/* Gives t->run an observer of attention, if --trace is given. */
void transformer_trace_attention(struct transformer *t);

/* Traces the parts of all steps from here on, if --trace is given and the model computes on a
 * device. */
void transformer_trace_parts(struct transformer *t, struct ra_model *model);

#endif
