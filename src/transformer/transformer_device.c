/* transformer_device: weights where a model computes. See transformer_device.h. */
#include "transformer_device.h"
#include "stage_observe.h"

float *transformer_place(const struct transformer *t, const float *array, int64_t count)
{
    const struct ra_model_device *device = t->run.device;
    if (!device)
        return (float *)array;
    float *placed = device->take(count);
    if (!placed || !device->put(placed, array, count))
        stage_fail(&t->stage, "no memory of the GPU for %.1f MB of weights", 4e-6 * (double)count);
    return placed;
}

void transformer_fetch(const struct transformer *t, const float *placed, float *array,
                       int64_t count)
{
    if (placed != array && !t->run.device->get(placed, array, count))
        stage_fail(&t->stage, "the GPU has failed: weights cannot be copied from it");
}

static float *place_moments(const struct transformer *t, struct ra_model *model, const float *array)
{
    const struct ra_model_device *device = t->run.device;
    if (!device)
        return (float *)array;
    float *placed = device->take(device->moments.count(model));
    if (!placed)
        stage_fail(&t->stage, "no memory of the GPU for %.1f MB of means",
                   4e-6 * (double)device->moments.count(model));
    stage_check(&t->stage, device->moments.put(model, array, placed), ra_model_error(model));
    return placed;
}

struct transformer_arrays transformer_place_all(const struct transformer *t, struct ra_model *model,
                                                const float *weights, const float *gradients,
                                                const float *means, const float *squares)
{
    int64_t numbers = ra_parameter_numbers(&t->model);
    return (struct transformer_arrays){
        transformer_place(t, weights, numbers), transformer_place(t, gradients, numbers),
        place_moments(t, model, means), place_moments(t, model, squares)};
}

void transformer_fetch_moments(const struct transformer *t, struct ra_model *model,
                               const float *placed, float *array)
{
    const struct ra_model_device *device = t->run.device;
    stage_check(&t->stage,
                device ? device->moments.get(model, placed, array) : ra_model_gather(model, array),
                ra_model_error(model));
}

double transformer_learn(const struct transformer *t, struct ra_model *model,
                         const struct ra_optimizer *optimizer, int64_t step,
                         const struct transformer_arrays *arrays)
{
    double length = 0;
    if (t->run.device) {
        stage_check(&t->stage,
                    t->run.device->learn(model, optimizer, step, arrays->gradients, arrays->weights,
                                         arrays->means, arrays->squares, &length),
                    ra_model_error(model));
        return length;
    }
    length =
        ra_optimizer_step(optimizer, &t->model, ra_model_share(model), ra_model_threads(model),
                          step, arrays->gradients, arrays->weights, arrays->means, arrays->squares);
    stage_check(&t->stage, ra_model_gather(model, arrays->weights), ra_model_error(model));
    return length;
}

static void note(void *stage, const struct ra_event *event)
{
    stage_observe_trace(stage, event, "receive");
}

static void note_part(void *stage, const struct ra_model_part *part)
{
    stage_trace(stage, part->is_sum ? STAGE_LANE_SUMS : STAGE_LANE_PARTS, part->name, part->layer,
                part->start, part->end);
}

void transformer_trace_attention(struct transformer *t)
{
    t->run.observe = t->stage.trace_path ? note : NULL;
    t->run.observer = &t->stage;
}

void transformer_trace_parts(struct transformer *t, struct ra_model *model)
{
    if (t->stage.trace_path && t->run.device)
        t->run.device->trace(model, note_part, &t->stage);
}
