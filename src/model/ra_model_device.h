/* ra_model_device: where a model computes, if not on the host: what a library of a device brings.
 *
 * Chapter 14. With one of these in struct ra_model_run a model's calls stay what they are, but the
 * arrays of weights, gradients, means and squares that they are given lie in the device's memory.
 * Tokens, labels, masks and logits stay on the host.
 */
#ifndef RA_MODEL_DEVICE_H
#define RA_MODEL_DEVICE_H

#include "ra_model.h"
#include "ra_optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The means and squares of AdamW on a device. A rank holds `count` numbers of each: as many as
 * there are weights or, with run.shard_optimizer, its share. `put` makes that of an array of the
 * host that has all of them, `get` the opposite, which all ranks do together. */
struct ra_model_moments {
    int64_t (*count)(const struct ra_model *model);
    enum ra_status (*put)(struct ra_model *model, const float *from, float *moments);
    enum ra_status (*get)(struct ra_model *model, const float *moments, float *to);
};

/* A decoder's cache on a device. `kept` says where a model that keeps its keys, or values, has
 * those of a layer, (1, n, G, D); `fill` makes them what the layer's cache has of a text of this
 * length, of which they are this rank's striped shard. */
struct ra_model_cache {
    struct ra_tensor (*kept)(const struct ra_model *model, int64_t layer, bool values);
    enum ra_status (*fill)(struct ra_model *model, int64_t layer, int64_t length,
                           struct ra_tensor k, struct ra_tensor v);
};

/* Tells when a device was busy with a part of a step, from start to end in seconds on
 * CLOCK_MONOTONIC: with what its stream of compute did or, beside that, with sums over all ranks.
 * Layer -1: that of no layer. The name is a constant. */
struct ra_model_part {
    const char *name;
    int layer;
    bool is_sum;
    double start, end;
};

struct ra_model_device {
    /* For ra_config.device: attention computes there, too. */
    const struct ra_backend *(*attention)(void);

    /* Takes an array of floats on the device, every byte 0; NULL: there is no room. And copies from
     * and to the host, when all that was begun is done; false: the device has failed. */
    float *(*take)(int64_t count);
    void (*give_back)(float *array);
    bool (*put)(float *array, const float *from, int64_t count);
    bool (*get)(const float *array, float *to, int64_t count);

    /* What ra_optimizer_step does, with a model's weights, in arrays of the device. *length gets
     * what that returns. RA_DEVICE: see ra_model_error. */
    enum ra_status (*learn)(struct ra_model *model, const struct ra_optimizer *optimizer,
                            int64_t step, const float *gradients, float *weights, float *means,
                            float *squares, double *length);

    struct ra_model_moments moments;
    struct ra_model_cache cache;
    const char *(*transport)(const struct ra_model *model); /* of gradients; NULL: one rank */

    /* For ra_model.c: takes and gives back a model's memory. */
    enum ra_status (*create)(struct ra_model *model);
    void (*destroy)(struct ra_model *model);

    /* For ra_model_step.c. Between begin, which makes gradients 0 unless they are NULL, and end,
     * which waits for all of it, each micro-batch that has been checked goes forward, and then
     * backward, which adds to the loss and, with `add`, to the gradients of those before it. That
     * of the `last` also begins to add up the gradients of all ranks; the loss is this rank's.
     * ra_model_forward has no backward, and gives NULL for the loss. */
    enum ra_status (*begin)(struct ra_model *model, const float *weights, float *gradients);
    enum ra_status (*forward)(struct ra_model *model, const float *weights,
                              const struct ra_model_batch *batch);
    enum ra_status (*backward)(struct ra_model *model, const float *weights,
                               const struct ra_model_batch *batch, double factor, float *gradients,
                               bool add, bool last);
    enum ra_status (*end)(struct ra_model *model, double *loss);
    enum ra_status (*logits)(struct ra_model *model, const float *weights, int64_t first,
                             int64_t count, float *logits);

    /* Times the parts of all steps from here on. `learn` tells the observer of those of its step,
     * at its end; sums that pass through the host it does not know. NULL: times no more. */
    void (*trace)(struct ra_model *model,
                  void (*observe)(void *observer, const struct ra_model_part *part),
                  void *observer);
};

#ifdef __cplusplus
}
#endif

#endif
