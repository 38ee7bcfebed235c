/* transformer_bench: how long a training step takes, and what share of a product's rate that is.
 * See transformer_bench.h. */
#include "transformer_bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_math.h"
#include "ra_matrix.h"
#include "ra_optimizer.h"
#include "transformer_device.h"
#include "transformer_files.h"

/* Multiply-adds of a step on all tokens of a batch: each weight of a product once forward and twice
 * backward, and attention's two products forward, four of them and the scores backward. */
static double work_of(const struct transformer *t)
{
    const struct ra_model_config *c = &t->model;
    double tokens = (double)(t->batch * t->length), dim = (double)c->dim;
    double query = (double)(c->heads * c->head_dim), key = (double)(c->key_heads * c->head_dim);
    double layer = dim * (2 * query + 2 * key) + dim * (double)(ra_feed_width(c) + c->hidden);
    double attention = query * (double)t->length * (c->causal ? 0.5 : 1);
    return tokens * (3 * ((double)c->depth * layer + dim * (double)c->vocabulary) +
                     7 * (double)c->depth * attention);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void transformer_bench(struct transformer *t)
{
    struct stage *stage = &t->stage;
    char error[RA_ERROR_SIZE];
    int64_t sets = stage->world.ranks / t->run.ring_size,
            set = stage->world.rank / t->run.ring_size;
    t->length = t->length > 0 ? t->length : 1024;
    t->run.batch = ra_ceiling_division(t->batch - set, sets);
    t->run.length = t->length;
    struct ra_model *model;
    stage_open_trace(stage);
    transformer_opened(t);
    transformer_trace_attention(t);
    stage_check(stage, ra_model_create(&model, &t->model, &t->run, MPI_COMM_WORLD, error), error);
    int64_t numbers = ra_parameter_numbers(&t->model), rows = t->run.batch * ra_model_rows(model);
    int32_t *tokens = stage_allocate(stage, rows + 1, sizeof *tokens);
    float *weights = stage_allocate(stage, numbers, sizeof *weights);
    float *gradients = stage_allocate(stage, numbers, sizeof *gradients);
    float *means = stage_zeros(stage, numbers, sizeof *means);
    float *squares = stage_zeros(stage, numbers, sizeof *squares);
    double *seconds = stage_allocate(stage, t->repeat, sizeof *seconds);
    struct ra_model_loss loss;
    ra_parameters_begin(&t->model, (uint64_t)t->seed, weights);
    struct transformer_arrays at =
        transformer_place_all(t, model, weights, gradients, means, squares);
    int64_t moments = t->run.device ? t->run.device->moments.count(model) : numbers;
    for (int64_t a = 0; a <= rows; a++)
        tokens[a] = (int32_t)((a * 2654435761 + t->seed) % t->model.vocabulary);
    struct ra_optimizer optimizer = {sizeof optimizer, t->rate, 0, t->repeat, 0.9, 0.95, 1e-8,
                                     t->decay,         t->clip};
    struct ra_model_batch batch = {.size = sizeof batch, .tokens = tokens, .labels = tokens + 1};
    for (int64_t s = -1; s < t->repeat + (stage->trace_path != NULL); s++) {
        if (s == t->repeat) { /* only this one is in the trace */
            stage_begin_trace(stage);
            transformer_trace_parts(t, model);
        }
        double began = ra_seconds();
        stage_check(stage, ra_model_step(model, at.weights, 1, &batch, at.gradients, &loss),
                    ra_model_error(model));
        transformer_learn(t, model, &optimizer, s + 2, &at);
        stage_trace(stage, STAGE_LANE_WORK, "step", (int)s, began, ra_seconds());
        if (s >= 0 && s < t->repeat)
            seconds[s] = ra_seconds() - began;
    }
    qsort(seconds, (size_t)t->repeat, sizeof *seconds, compare);
    double median = seconds[t->repeat / 2];
    if (stage->world.rank == 0)
        printf(
            "seconds per step %.6f\ntokens per second %.0f\ngflops %.1f\nbytes of a rank %" PRId64
            "\n",
            median, (double)(t->batch * t->length) / median, 2e-9 * work_of(t) / median,
            ra_model_bytes(model) + 2 * (numbers + moments) * (int64_t)sizeof *weights);
    const char *way = t->run.device ? t->run.device->transport(model) : NULL;
    if (stage->world.rank == 0 && way)
        printf("gradients pass by %s\n", way);
    ra_model_destroy(model);
    stage_close_trace(stage);
}
